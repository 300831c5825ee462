/* bounds_operands.c - memory, threads and operands of the bounds. */
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "reference/bounds_rows.h"
#include "reference/formats.h"
#include "reference/parallel.h"

double *bound_take(struct bound_pool *pool, int64_t count)
{
    const int max = sizeof pool->blocks / sizeof *pool->blocks;
    void *block = pool->count < max ? calloc((size_t)count + 1, sizeof(double)) : NULL;
    if (!block)
        pool->failed = true;
    else
        pool->blocks[pool->count++] = block;
    return block;
}

void bound_release(struct bound_pool *pool)
{
    for (int i = 0; i < pool->count; ++i) free(pool->blocks[i]);
    pool->count = 0;
}

struct crew {
    enum attest_status (*unit)(void *, int64_t);
    void *context;
    _Atomic int status;
};

static void work(void *context, int64_t index, int worker)
{
    struct crew *crew = context;
    int ok = ATTEST_OK;
    (void)worker;
    const enum attest_status status = crew->unit(crew->context, index);
    if (status != ATTEST_OK) atomic_compare_exchange_strong(&crew->status, &ok, status);
}

enum attest_status bound_for_each(int64_t count, int threads, enum attest_status (*unit)(void *context, int64_t i),
                                  void *context)
{
    struct crew crew = {.unit = unit, .context = context};
    ref_parallel(threads, count, work, &crew);
    return (enum attest_status)crew.status;
}

struct bound_matrix bound_decode_rows(struct bound_pool *pool, const struct attest_problem *p,
                                      const struct attest_tensor *t, const void *data, const struct ref_sequence *s,
                                      bool is_k, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t features)
{
    struct bound_matrix m = {.rows = rows, .features = features};
    m.value = bound_take(pool, rows * features);
    m.norm = bound_take(pool, rows);
    m.finite = bound_take(pool, rows);
    if (pool->failed) return m;
    for (int64_t r = 0; r < rows; ++r) {
        double *row = m.value + r * features;
        ref_load_row(t->dtype, data, ref_row_offset(p, t, s, is_k, b, first + r, h), features, row);
        m.finite[r] = 1.0;
        for (int64_t x = 0; x < features; ++x) {
            if (!isfinite(row[x])) row[x] = m.finite[r] = 0.0;
            m.norm[r] += fabs(row[x]);
        }
    }
    return m;
}

static double *panels_of(struct bound_pool *pool, const struct bound_matrix *m, bool transposed, double (*of)(double))
{
    const int64_t k = transposed ? m->features : m->rows, n = transposed ? m->rows : m->features;
    double *values = bound_take(pool, m->rows * m->features), *panels = bound_take(pool, k * ref_round_up(n));
    if (pool->failed) return NULL;
    for (int64_t i = 0; i < m->rows * m->features; ++i) values[i] = of(m->value[i]);
    ref_pack(k, n, values, transposed ? 1 : m->features, transposed ? m->features : 1, k, panels);
    return panels;
}

static double itself(double x) { return x; }
static double square(double x) { return x * x; }

struct bound_panels bound_make_panels(struct bound_pool *pool, const struct bound_matrix *matrix, bool transposed,
                                      int which)
{
    struct bound_panels panels = {.k_packed = transposed ? matrix->features : matrix->rows};
    if (which & 1) panels.plain = panels_of(pool, matrix, transposed, itself);
    if (which & 2) panels.absolute = panels_of(pool, matrix, transposed, fabs);
    if (which & 4) panels.square = panels_of(pool, matrix, transposed, square);
    return panels;
}

bool bound_load_keys(struct bound_pool *pool, struct bound_head *head)
{
    const struct attest_problem *p = head->problem;
    const struct attest_forward_args *a = head->args;
    head->sequence = ref_sequence(p, a, head->b);
    const struct ref_sequence *s = &head->sequence;
    const int64_t n = s->seqlen_k;
    head->num_keys = n;
    head->ld = ref_round_up(n);
    head->k = bound_decode_rows(pool, p, &p->k, a->k, s, true, head->b, head->h_kv, 0, n, p->head_dim);
    head->v = bound_decode_rows(pool, p, &p->v, a->v, s, true, head->b, head->h_kv, 0, n, p->head_dim_v);
    if (pool->failed) return false;
    if (!bound_hash_keys(pool, head)) return false;
    head->k_transposed = bound_make_panels(pool, &head->k, true, 7);
    head->v_rows = bound_make_panels(pool, &head->v, false, 7);
    head->v_max = bound_take(pool, p->head_dim_v);
    head->v_sum = bound_take(pool, p->head_dim_v);
    if (pool->failed) return false;
    for (int64_t j = 0; j < n; ++j)
        for (int64_t c = 0; c < p->head_dim_v; ++c) {
            const double v = fabs(head->v.value[j * p->head_dim_v + c]);
            head->v_max[c] = fmax(head->v_max[c], v);
            head->v_sum[c] += v;
        }
    const double dropped = floor(65536.0 * (double)p->dropout_p + 0.5);
    head->fmax = 65536.0 / (65536.0 - dropped);
    head->features = ref_sum_features(&head->machine, p->head_dim);
    return true;
}

void bound_product(int64_t rows, int64_t n, int64_t k, const double *a, int64_t a_row, int64_t a_col,
                   const double *panels, int64_t k_packed, bool add, double *c, int64_t c_row)
{
    if (k > 0) {
        ref_vector()->gemm(rows, n, k, a, a_row, a_col, panels, k_packed, add, c, c_row);
        return;
    }
    for (int64_t i = 0; i < rows && !add; ++i)
        for (int64_t j = 0; j < n; ++j) c[i * c_row + j] = 0.0;
}

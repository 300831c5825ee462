/* reference_device.c - runs of the reference device: the oracle's doubles, rounded once as they are stored. */
#include <math.h>
#include <stdlib.h>

#include "lib/error.h"
#include "lib/run.h"
#include "reference/formats.h"
#include "reference/oracle.h"

/* Room for rows x heads x features doubles, one byte at least so that only a lack of memory is NULL. */
static bool allocate(double **array, int64_t rows, int64_t heads, int64_t features)
{
    int64_t elements, bytes;
    const bool fits = !__builtin_mul_overflow(rows * heads, features, &elements) &&
                      !__builtin_mul_overflow(elements, (int64_t)sizeof **array, &bytes);
    *array = fits ? malloc(bytes > 0 ? (size_t)bytes : 1) : NULL;
    if (*array != NULL) return true;
    return attest_refuse(ATTEST_OUT_OF_MEMORY, "%lld x %lld x %lld doubles do not fit in memory", (long long)rows,
                         (long long)heads, (long long)features);
}

/* Stores a canonical array in a tensor of rows. Rows of no sequence stay as they are. */
static void store_rows(const struct attest_problem *p, const struct attest_forward_args *a,
                       const struct attest_tensor *t, bool is_k, int64_t features, const double *canonical, void *data)
{
    const int64_t heads = is_k ? p->num_heads_kv : p->num_heads_q;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, a, b);
        const int64_t rows = is_k ? s.rows_k : s.rows_q, first = is_k ? s.first_k : s.first_q;
        for (int64_t r = 0; r < rows; ++r) {
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t offset = ref_row_offset(p, t, &s, is_k, b, r, h);
                const double *row = canonical + ((first + r) * heads + h) * features;
                for (int64_t x = 0; x < features; ++x) ref_store(t->dtype, data, offset + x, row[x]);
            }
        }
    }
}

/* The extents of dbias: 1 along each axis that is summed over. */
struct score_extents {
    int64_t batch, heads, seqlen_q, seqlen_k;
};

static struct score_extents dbias_extents(const struct attest_problem *p)
{
    const struct attest_score_tensor *t = &p->dbias;
    return (struct score_extents){t->batch ? p->batch : 1, t->head ? p->num_heads_q : 1, t->seqlen_q ? p->seqlen_q : 1,
                                  t->seqlen_k ? p->seqlen_k : 1};
}

static void store_scores(const struct attest_problem *p, const double *canonical, void *data)
{
    const struct score_extents n = dbias_extents(p);
    for (int64_t b = 0; b < n.batch; ++b) {
        for (int64_t h = 0; h < n.heads; ++h) {
            for (int64_t r = 0; r < n.seqlen_q; ++r) {
                for (int64_t c = 0; c < n.seqlen_k; ++c) {
                    ref_store(p->dbias.dtype, data, ref_score_offset(&p->dbias, b, h, r, c), *canonical++);
                }
            }
        }
    }
}

static bool computed(enum attest_status status)
{
    return status == ATTEST_OK || attest_refuse(status, "the reference device has no memory for its panels");
}

bool attest_reference_forward(const struct attest_problem *p, const struct attest_forward_args *a)
{
    const int64_t rows = ref_rows_q(p), heads = p->num_heads_q;
    const bool wants_lse = p->lse.dtype != ATTEST_ABSENT;
    struct ref_forward out = {NULL, NULL};
    const bool ok = allocate(&out.o, rows, heads, p->head_dim_v) &&
                    (!wants_lse || allocate(&out.lse, rows, heads, 1)) && computed(ref_forward(p, a, &out, 0));
    if (ok) {
        store_rows(p, a, &p->o, false, p->head_dim_v, out.o, a->o);
        if (wants_lse) store_rows(p, a, &p->lse, false, 1, out.lse, a->lse);
    }
    free(out.o);
    free(out.lse);
    return ok;
}

static bool allocate_backward(const struct attest_problem *p, const struct attest_backward_args *a,
                              struct ref_backward *out)
{
    const struct score_extents n = dbias_extents(p);
    return allocate(&out->dq, ref_rows_q(p), p->num_heads_q, p->head_dim) &&
           allocate(&out->dk, ref_rows_k(p), p->num_heads_kv, p->head_dim) &&
           allocate(&out->dv, ref_rows_k(p), p->num_heads_kv, p->head_dim_v) &&
           (p->dbias.dtype == ATTEST_ABSENT || allocate(&out->dbias, n.batch * n.heads, n.seqlen_q, n.seqlen_k)) &&
           (!p->has_sink || a->dsink == NULL || allocate(&out->dsink, 1, p->num_heads_q, 1));
}

static void store_backward(const struct attest_problem *p, const struct attest_backward_args *a,
                           const struct ref_backward *out)
{
    store_rows(p, &a->forward, &p->dq, false, p->head_dim, out->dq, a->dq);
    store_rows(p, &a->forward, &p->dk, true, p->head_dim, out->dk, a->dk);
    store_rows(p, &a->forward, &p->dv, true, p->head_dim_v, out->dv, a->dv);
    if (out->dbias != NULL) store_scores(p, out->dbias, a->dbias);
    for (int64_t h = 0; out->dsink != NULL && h < p->num_heads_q; ++h) {
        ref_store(ATTEST_FP32, a->dsink, h, out->dsink[h]);
    }
}

bool attest_reference_backward(const struct attest_problem *p, const struct attest_backward_args *a)
{
    struct ref_backward out = {0};
    const bool ok = allocate_backward(p, a, &out) && computed(ref_backward(p, a, NULL, &out, 0));
    if (ok) store_backward(p, a, &out);
    free(out.dq);
    free(out.dk);
    free(out.dv);
    free(out.dbias);
    free(out.dsink);
    return ok;
}

/* ---- backward of a merge ---- */

/* Doubles of one row of the union and of one state, [head_dim_v] each. */
struct merge_row {
    double *o, *dout, *o_state, *do_state;
};

static int32_t merge_dtype(int32_t dtype) { return dtype == 0 ? ATTEST_FP32 : dtype; }

/* One row of state s; o and dout are there. */
static void differentiate_state(const struct attest_merge_backward_args *a, int64_t s, int64_t row,
                                const struct merge_row *r)
{
    const int64_t dim = a->head_dim_v, at = row * dim;
    const double lse = (double)a->lse[row], dlse = a->dlse != NULL ? (double)a->dlse[row] : 0;
    const double lse_state = (double)a->lse_states[s][row];
    const double *const o_state = r->o_state, *const lse_of = &lse_state;
    double dlse_state, *const do_state = r->do_state, *const dlse_of = &dlse_state;
    if (lse_state != -INFINITY) ref_load_row(ATTEST_FP32, a->o_states[s], at, dim, r->o_state);
    ref_merge_backward(1, 1, dim, &o_state, &lse_of, r->o, &lse, r->dout, &dlse, &do_state, &dlse_of);
    for (int64_t x = 0; x < dim; ++x) ref_store(ATTEST_FP32, a->do_states[s], at + x, do_state[x]);
    ref_store(ATTEST_FP32, a->dlse_states[s], row, dlse_state);
}

bool attest_reference_merge_backward(const struct attest_merge_backward_args *a)
{
    const int64_t dim = a->head_dim_v;
    double *numbers;
    if (!allocate(&numbers, 1, 4, dim)) return false;
    const struct merge_row r = {numbers, numbers + dim, numbers + 2 * dim, numbers + 3 * dim};
    for (int64_t row = 0; row < a->rows && a->num_states > 0; ++row) {
        ref_load_row(merge_dtype(a->o_dtype), a->o, row * dim, dim, r.o);
        ref_load_row(merge_dtype(a->dout_dtype), a->dout, row * dim, dim, r.dout);
        for (int64_t s = 0; s < a->num_states; ++s) differentiate_state(a, s, row, &r);
    }
    free(numbers);
    return true;
}

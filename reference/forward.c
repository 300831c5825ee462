/* forward.c - o and lse, block by block: all scores of a row, their maximum, the sum, the average of v. */
#include <math.h>
#include <string.h>

#include "reference/block.h"
#include "reference/formats.h"
#include "reference/plain.h"

struct forward {
    const struct attest_problem *p;
    const struct attest_forward_args *a;
    const struct ref_forward *out;
};

static void copy_queries(const struct ref_block *block, double *q, bool *plain)
{
    const struct attest_problem *p = block->head->p;
    for (int64_t r = 0; r < block->rows; ++r) {
        const int64_t offset =
            ref_row_offset(p, &p->q, &block->head->s, false, block->head->b, block->first_row + r, block->h);
        plain[r] = !ref_load_finite(p->q.dtype, block->head->a->q, offset, p->head_dim, q + r * p->head_dim);
    }
}

/* q.k to unnormalised weights: x becomes exp(x - max), times dropout, and zero where not visible. Returns the
 * sum before dropout, the sink's part included, and sets lse. 0: no key; NaN: the row needs the plain way. */
static double weigh_row(const struct ref_block *block, int64_t r, double *x, double *drop, double *lse)
{
    const struct attest_problem *p = block->head->p;
    const struct ref_vector *vector = ref_vector();
    double base;
    const int64_t visible = ref_block_exponents(block, r, x, NULL, &base);
    const double sink = p->has_sink ? (double)block->head->a->sink[block->h] - base : -INFINITY;
    double max = vector->max(block->width, x);
    if (sink > max) max = sink;
    *lse = sink;
    if (visible == 0 || !isfinite(max) || ref_block_sees_special(block, r)) {
        memset(x, 0, (size_t)block->width * sizeof *x);
        return visible == 0 ? 0.0 : NAN;
    }
    const double sum = vector->exp_sum(block->width, max, x) + (p->has_sink ? exp(sink - max) : 0.0);
    *lse = base + (max + log(sum));
    if (isnan(sum)) memset(x, 0, (size_t)block->width * sizeof *x);
    if (p->dropout_p > 0) {
        ref_block_dropout(block, r, drop);
        vector->multiply(block->width, drop, x);
    }
    return sum;
}

static void block_forward(void *context, const struct ref_block *block, double *scratch)
{
    const struct forward *f = context;
    const struct attest_problem *p = f->p;
    const struct ref_head *head = block->head;
    const struct ref_vector *vector = ref_vector();
    const int64_t d = p->head_dim, dv = p->head_dim_v, first = ref_block_row(block, 0);
    double *x = scratch, *line = x + block->rows * block->stride, *q = line + 2 * block->stride;
    double sum[REF_BLOCK_ROWS], lse;
    bool plain[REF_BLOCK_ROWS];

    copy_queries(block, q, plain);
    vector->gemm(block->rows, block->width, d, q, d, 1, head->k_scores + block->first_key * d, d, false, x,
                 block->stride);
    for (int64_t r = 0; r < block->rows; ++r) {
        double *row = x + r * block->stride;
        sum[r] = weigh_row(block, r, row, line, &lse);
        plain[r] = isnan(sum[r]) || (plain[r] && sum[r] != 0);
        if (f->out->lse) f->out->lse[first + r * p->num_heads_q] = lse;
    }
    if (f->out->o)
        vector->gemm(block->rows, dv, block->width, x, block->stride, 1, head->v_rows + block->first_key * REF_PANEL,
                     head->keys_packed, false, f->out->o + first * dv, p->num_heads_q * dv);
    for (int64_t r = 0; r < block->rows; ++r) {
        const int64_t row = first + r * p->num_heads_q;
        double *o = f->out->o ? f->out->o + row * dv : NULL;
        for (int64_t i = 0; o && sum[r] != 0 && i < dv; ++i) o[i] /= sum[r];
        if (plain[r]) ref_plain_forward(p, f->a, &head->s, head->b, block->h, block->first_row + r, line, o, &lse);
        if (plain[r] && f->out->lse) f->out->lse[row] = lse;
    }
}

/* What no block writes: rows past seqused are empty, rows of no sequence are nothing. */
static void fill_other_rows(const struct forward *f)
{
    const struct attest_problem *p = f->p;
    const int64_t heads = p->num_heads_q, count = p->ragged ? ref_rows_q(p) * heads : 0;
    for (int64_t i = 0; f->out->lse && i < count; ++i) f->out->lse[i] = NAN;
    for (int64_t i = 0; f->out->o && i < count * p->head_dim_v; ++i) f->out->o[i] = NAN;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, f->a, b);
        const int64_t first = (s.first_q + s.seqlen_q) * heads, last = (s.first_q + s.rows_q) * heads;
        for (int64_t i = first; f->out->lse && i < last; ++i) f->out->lse[i] = -INFINITY;
        for (int64_t i = first * p->head_dim_v; f->out->o && i < last * p->head_dim_v; ++i) f->out->o[i] = 0.0;
    }
}

enum attest_status ref_forward(const struct attest_problem *p, const struct attest_forward_args *a,
                               const struct ref_forward *out, int threads)
{
    struct forward f = {p, a, out};
    const struct ref_pass pass = {.p = p, .a = a, .threads = threads, .v_rows = out->o != NULL, .matrices = 1,
                                  .lines = 2, .per_row = p->head_dim, .body = block_forward, .context = &f};
    fill_other_rows(&f);
    return ref_for_each_block(&pass);
}

/* backward.c - dq, dk, dv, dbias, dsink and delta, block by block.
 *
 * A block of query rows computes p and ds against all keys once. dq is its own; what it adds to dk and dv
 * is added when its turn has come, so that the order of those sums is that of the rows and heads. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/block.h"
#include "reference/formats.h"
#include "reference/plain.h"

struct backward {
    struct ref_gradients g;
    bool dbias_in_order; /* blocks share elements of dbias */
};

/* Scratch of a block. */
struct work {
    double *p, *ds;                    /* [rows][stride]; ds begins as dout.v */
    double *t, *drop;                  /* [stride], of one row */
    double *q, *dout;                  /* [rows][head_dim], [rows][head_dim_v] */
    double *q_panels, *dout_panels;    /* B[row][x] */
    bool plain[REF_BLOCK_ROWS];
};

static int64_t doubles_per_row(const struct attest_problem *p)
{
    return p->head_dim + p->head_dim_v + ref_round_up(p->head_dim) + ref_round_up(p->head_dim_v);
}

static struct work divide_scratch(const struct ref_block *block, double *scratch)
{
    const int64_t d = block->head->p->head_dim, dv = block->head->p->head_dim_v, rows = block->rows;
    struct work w = {.p = scratch};
    w.ds = w.p + rows * block->stride;
    w.t = w.ds + rows * block->stride;
    w.drop = w.t + block->stride;
    w.q_panels = w.drop + block->stride;
    w.dout_panels = w.q_panels + rows * ref_round_up(d);
    w.q = w.dout_panels + rows * ref_round_up(dv);
    w.dout = w.q + rows * d;
    return w;
}

static void load_rows(const struct backward *c, const struct ref_block *block, struct work *w)
{
    const struct attest_problem *p = c->g.p;
    const struct ref_head *head = block->head;
    for (int64_t r = 0; r < block->rows; ++r) {
        const int64_t row = block->first_row + r;
        const int64_t q = ref_row_offset(p, &p->q, &head->s, false, head->b, row, block->h);
        const int64_t dout = ref_row_offset(p, &p->dout, &head->s, false, head->b, row, block->h);
        w->plain[r] = !ref_load_finite(p->q.dtype, c->g.a->forward.q, q, p->head_dim, w->q + r * p->head_dim);
        w->plain[r] |=
            !ref_load_finite(p->dout.dtype, c->g.a->dout, dout, p->head_dim_v, w->dout + r * p->head_dim_v);
    }
    ref_pack(block->rows, p->head_dim, w->q, p->head_dim, 1, block->rows, w->q_panels);
    ref_pack(block->rows, p->head_dim_v, w->dout, p->head_dim_v, 1, block->rows, w->dout_panels);
}

/* Exponents to p, with lse known or found on the way; all lack base. Returns a finite value unless the row needs the
 * plain way. */
static double probabilities(const struct attest_problem *p, const struct ref_block *block, double base, double *x,
                            double *lse)
{
    const struct ref_vector *vector = ref_vector();
    if (p->external_lse) return isfinite(*lse) ? vector->exp_sum(block->width, *lse, x) : NAN;
    const double sink = p->has_sink ? (double)block->head->a->sink[block->h] - base : -INFINITY;
    double max = vector->max(block->width, x);
    if (sink > max) max = sink;
    if (!isfinite(max)) return NAN;
    const double sum = vector->exp_sum(block->width, max, x) + (p->has_sink ? exp(sink - max) : 0.0);
    *lse = max + log(sum);
    vector->scale(block->width, 1.0 / sum, x);
    return sum;
}

static void add_dbias(const struct ref_gradients *g, const struct ref_block *block, int64_t r, const double *dx)
{
    for (int64_t c = block->first_key; c < block->last_key; ++c)
        *ref_dbias_at(g, block->head->b, block->h, block->first_row + r, c) += dx[c - block->first_key];
}

/* q.k and dout.v of row r to p (times dropout) and ds, softmax_scale included. Where the row sees no key, or
 * needs the plain way, both are zero. */
static void differentiate_row(const struct backward *c, const struct ref_block *block, int64_t r, struct work *w)
{
    const struct attest_problem *p = c->g.p;
    const struct ref_vector *vector = ref_vector();
    const int64_t width = block->width, row = ref_block_row(block, r);
    double *x = w->p + r * block->stride, *ds = w->ds + r * block->stride;
    double base;
    const int64_t visible = ref_block_exponents(block, r, x, p->softcap > 0 ? w->t : NULL, &base);
    w->plain[r] = visible > 0 ? w->plain[r] || ref_block_sees_special(block, r) : p->has_sink;
    if (visible > 0 && !w->plain[r]) {
        struct ref_row_state state =
            ref_given_state(&c->g, &block->head->s, block->head->b, block->h, block->first_row + r);
        state.lse -= base; /* what was given; else it is found */
        const double sum = probabilities(p, block, base, x, &state.lse);
        if (p->dropout_p > 0) {
            ref_block_dropout(block, r, w->drop);
            vector->multiply(width, w->drop, ds);
        }
        if (!p->external_lse) state.delta = vector->dot(width, x, ds);
        w->plain[r] = !isfinite(sum) || !isfinite(state.delta) || !isfinite(state.dlse);
        if (c->g.out->delta) c->g.out->delta[row] = state.delta;
        if (c->g.dsink_rows)
            c->g.dsink_rows[row] =
                exp((double)c->g.a->forward.sink[block->h] - base - state.lse) * (state.dlse - state.delta);
        vector->multiply_shifted(width, x, state.delta - state.dlse, ds);
    }
    if (visible == 0 || w->plain[r]) {
        memset(x, 0, (size_t)width * sizeof *x);
        memset(ds, 0, (size_t)width * sizeof *ds);
        return;
    }
    if (c->g.out->dbias) add_dbias(&c->g, block, r, ds);
    for (int64_t k = 0; p->softcap > 0 && k < width; ++k) ds[k] *= 1 - w->t[k] / p->softcap * (w->t[k] / p->softcap);
    vector->scale(width, p->softmax_scale, ds);
    if (p->dropout_p > 0) vector->multiply(width, w->drop, x);
}

/* What the block adds to dk and dv of keys first .. last - 1. */
static void add_to_keys(const struct backward *c, const struct ref_block *block, const struct work *w, int64_t first,
                        int64_t last)
{
    const struct ref_head *head = block->head;
    const int64_t d = c->g.p->head_dim, dv = c->g.p->head_dim_v, heads = c->g.p->num_heads_kv;
    const int64_t row = (head->s.first_k + first) * heads + head->h_kv, column = first - block->first_key;
    if (c->g.out->dk)
        ref_vector()->gemm(last - first, d, block->rows, w->ds + column, 1, block->stride, w->q_panels, block->rows,
                           true, c->g.out->dk + row * d, heads * d);
    if (c->g.out->dv)
        ref_vector()->gemm(last - first, dv, block->rows, w->p + column, 1, block->stride, w->dout_panels,
                           block->rows, true, c->g.out->dv + row * dv, heads * dv);
}

/* The rows left over, while the block still has every turn. */
static void add_plain_rows(const struct backward *c, const struct ref_block *block, const struct work *w,
                           double *scratch)
{
    const struct ref_head *head = block->head;
    for (int64_t r = 0; r < block->rows; ++r)
        if (w->plain[r]) ref_plain_backward(&c->g, &head->s, head->b, block->h, block->first_row + r, scratch);
}

static void block_backward(void *context, const struct ref_block *block, double *scratch)
{
    const struct backward *c = context;
    const struct attest_problem *p = c->g.p;
    const struct ref_head *head = block->head;
    const struct ref_vector *vector = ref_vector();
    const int64_t d = p->head_dim, dv = p->head_dim_v;
    struct work w = divide_scratch(block, scratch);

    load_rows(c, block, &w);
    vector->gemm(block->rows, block->width, d, w.q, d, 1, head->k_scores + block->first_key * d, d, false, w.p,
                 block->stride);
    vector->gemm(block->rows, block->width, dv, w.dout, dv, 1, head->v_scores + block->first_key * dv, dv, false,
                 w.ds, block->stride);
    if (c->dbias_in_order) ref_await_turn(block->lock, block->pass_turn, block->pass_index);
    bool any_plain = false;
    for (int64_t r = 0; r < block->rows; ++r) {
        differentiate_row(c, block, r, &w);
        any_plain |= w.plain[r];
    }
    if (c->g.out->dq)
        vector->gemm(block->rows, d, block->width, w.ds, block->stride, 1, head->k_rows + block->first_key * REF_PANEL,
                     head->keys_packed, false, c->g.out->dq + ref_block_row(block, 0) * d, p->num_heads_q * d);

    const int64_t parts = (head->s.seqlen_k + REF_KEY_PART - 1) / REF_KEY_PART;
    for (int64_t part = 0; part < parts; ++part) {
        const int64_t low = part * REF_KEY_PART, high = low + REF_KEY_PART;
        const int64_t first = low > block->first_key ? low : block->first_key;
        const int64_t last = high < block->last_key ? high : block->last_key;
        ref_await_turn(block->lock, &head->turns[part], block->index);
        if (first < last) add_to_keys(c, block, &w, first, last);
        if (!any_plain) ref_end_turn(block->lock, &head->turns[part]);
    }
    if (any_plain) {
        add_plain_rows(c, block, &w, scratch);
        for (int64_t part = 0; part < parts; ++part) ref_end_turn(block->lock, &head->turns[part]);
    }
    if (c->dbias_in_order) ref_end_turn(block->lock, block->pass_turn);
}

static void fill(double *array, int64_t first, int64_t last, double value)
{
    for (int64_t i = first; array && i < last; ++i) array[i] = value;
}

/* Zero for every row of a sequence, NaN for the others. */
static void clear_outputs(const struct backward *c)
{
    const struct attest_problem *p = c->g.p;
    const struct ref_backward *out = c->g.out;
    const int64_t hq = p->num_heads_q, hk = p->num_heads_kv, d = p->head_dim, dv = p->head_dim_v;
    const int64_t rows_q = p->ragged ? p->total_q : 0, rows_k = p->ragged ? p->total_k : 0;
    fill(out->dq, 0, rows_q * hq * d, NAN);
    fill(out->delta, 0, rows_q * hq, NAN);
    fill(out->dk, 0, rows_k * hk * d, NAN);
    fill(out->dv, 0, rows_k * hk * dv, NAN);
    fill(out->dbias, 0,
         (p->dbias.batch ? p->batch : 1) * (p->dbias.head ? hq : 1) * (p->dbias.seqlen_q ? p->seqlen_q : 1) *
             (p->dbias.seqlen_k ? p->seqlen_k : 1), 0.0);
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &c->g.a->forward, b);
        const int64_t end_q = s.first_q + s.rows_q, end_k = s.first_k + s.rows_k;
        fill(out->dq, s.first_q * hq * d, end_q * hq * d, 0.0);
        fill(out->delta, s.first_q * hq, end_q * hq, 0.0);
        fill(c->g.dsink_rows, s.first_q * hq, end_q * hq, 0.0);
        fill(out->dk, s.first_k * hk * d, end_k * hk * d, 0.0);
        fill(out->dv, s.first_k * hk * dv, end_k * hk * dv, 0.0);
    }
}

static void sum_dsink(const struct backward *c)
{
    const struct attest_problem *p = c->g.p;
    for (int64_t h = 0; h < p->num_heads_q; ++h) {
        c->g.out->dsink[h] = 0.0;
        for (int64_t b = 0; c->g.dsink_rows && b < p->batch; ++b) {
            const struct ref_sequence s = ref_sequence(p, &c->g.a->forward, b);
            for (int64_t r = 0; r < s.seqlen_q; ++r)
                c->g.out->dsink[h] += c->g.dsink_rows[(s.first_q + r) * p->num_heads_q + h];
        }
    }
}

enum attest_status ref_backward(const struct attest_problem *p, const struct attest_backward_args *a,
                                const struct ref_external *external, const struct ref_backward *out, int threads)
{
    struct backward c = {.g = {p, a, external, out, NULL}};
    c.dbias_in_order = out->dbias && !(p->dbias.batch && p->dbias.head && p->dbias.seqlen_q);
    if (out->dsink && p->has_sink) {
        c.g.dsink_rows = malloc((size_t)(ref_rows_q(p) * p->num_heads_q + 1) * sizeof *c.g.dsink_rows);
        if (!c.g.dsink_rows) return ATTEST_OUT_OF_MEMORY;
    }
    clear_outputs(&c);
    const struct ref_pass pass = {.p = p, .a = &a->forward, .threads = threads, .k_rows = out->dq != NULL,
                                  .v_scores = true, .matrices = 2, .lines = 4, .per_row = doubles_per_row(p),
                                  .body = block_backward, .context = &c};
    const enum attest_status status = ref_for_each_block(&pass);
    if (out->dsink && status == ATTEST_OK) sum_dsink(&c);
    free(c.g.dsink_rows);
    return status;
}

/* judge_scores.c - see judge_scores.h. */
#include "reference/judge_scores.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"

static double *allocate(int64_t count) { return calloc((size_t)count + 1, sizeof(double)); }

/* What rows beyond those that count are given is not read. */
static void load_lse(const struct judge_pass *pass)
{
    const struct attest_problem *p = pass->p;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &pass->a->forward, b);
        for (int64_t r = 0; r < s.seqlen_q; ++r)
            for (int64_t h = 0; h < p->num_heads_q; ++h)
                pass->lse[(s.first_q + r) * p->num_heads_q + h] =
                    ref_load(p->lse.dtype, pass->a->forward.lse, ref_row_offset(p, &p->lse, &s, false, b, r, h));
    }
}

enum attest_status judge_pass_init(struct judge_pass *pass, const struct attest_problem *p,
                                   const struct attest_backward_args *a, bool gradients, int threads)
{
    const int64_t count = ref_rows_q(p) * p->num_heads_q;
    *pass = (struct judge_pass){p, a, allocate(count), gradients ? allocate(count) : NULL};
    const struct ref_forward forward = {.lse = pass->lse};
    const struct ref_backward backward = {.delta = pass->delta};
    if (!pass->lse || (gradients && !pass->delta)) return ATTEST_OUT_OF_MEMORY;
    if (p->external_lse) load_lse(pass);
    else if (ref_forward(p, &a->forward, &forward, threads) != ATTEST_OK) return ATTEST_OUT_OF_MEMORY;
    return gradients ? ref_backward(p, a, NULL, &backward, threads) : ATTEST_OK;
}

void judge_pass_clear(struct judge_pass *pass)
{
    free(pass->lse);
    free(pass->delta);
}

/* A tensor of rows, which heads and features it has, and its data. */
struct operand {
    const struct attest_tensor *tensor;
    const void *data;
    bool is_k;
    int64_t features;
};

static void load(const struct judge_pass *pass, const struct operand *o, int64_t b, int64_t h, int64_t first,
                 int64_t count, double *out)
{
    const struct ref_sequence s = ref_sequence(pass->p, &pass->a->forward, b);
    for (int64_t r = 0; r < count; ++r)
        ref_load_finite(o->tensor->dtype, o->data, ref_row_offset(pass->p, o->tensor, &s, o->is_k, b, first + r, h),
                        o->features, out + r * o->features);
}

static struct operand operand_of(const struct judge_pass *pass, enum ref_tensor tensor)
{
    const struct attest_problem *p = pass->p;
    const struct attest_forward_args *a = &pass->a->forward;
    switch (tensor) {
    case REF_O: return (struct operand){&p->v, a->v, true, p->head_dim_v};
    case REF_DQ: return (struct operand){&p->k, a->k, true, p->head_dim};
    case REF_DK: return (struct operand){&p->q, a->q, false, p->head_dim};
    default: return (struct operand){&p->dout, pass->a->dout, false, p->head_dim_v};
    }
}

void judge_load(const struct judge_pass *pass, enum ref_tensor tensor, int64_t b, int64_t h, int64_t first,
                int64_t count, double *out)
{
    const struct operand o = operand_of(pass, tensor);
    load(pass, &o, b, h, first, count, out);
}

/* left right^T of the rows' operand and the keys'. */
static void multiply(const struct judge_pass *pass, struct judge_tile *tile, enum ref_tensor of_rows,
                     enum ref_tensor of_keys, double *out)
{
    const int64_t features = operand_of(pass, of_keys).features, group = pass->p->num_heads_q / pass->p->num_heads_kv;
    judge_load(pass, of_rows, tile->b, tile->h, tile->first_row, tile->rows, tile->left);
    judge_load(pass, of_keys, tile->b, tile->h / group, tile->first_key, tile->keys, tile->right);
    ref_pack(features, tile->keys, tile->right, 1, features, features, tile->panels);
    ref_vector()->gemm(tile->rows, ref_round_up(tile->keys), features, tile->left, features, 1, tile->panels, features,
                       false, out, JUDGE_TILE);
}

/* What a kernel makes of a row's dp to ds. */
static void differentiate(const struct judge_pass *pass, struct judge_tile *tile, const struct ref_block *block,
                          int64_t r, const double *t, const double *drop)
{
    const struct attest_problem *p = pass->p;
    const struct ref_sequence *s = &block->head->s;
    const double cap = p->softcap, delta = pass->delta[ref_block_row(block, r)];
    double dlse = 0.0;
    if (p->dlse.dtype && pass->a->dlse)
        dlse = ref_load(p->dlse.dtype, pass->a->dlse,
                        ref_row_offset(p, &p->dlse, s, false, tile->b, tile->first_row + r, tile->h));
    if (!isfinite(delta) || !isfinite(dlse)) return;
    tile->delta[r] = delta;
    for (int64_t j = 0; j < tile->keys; ++j) {
        const int64_t at = r * JUDGE_TILE + j;
        const double slope = cap > 0 ? 1 - t[j] / cap * (t[j] / cap) : 1.0, dp = tile->ds[at];
        tile->less[at] = p->softmax_scale * slope * tile->p[at];
        tile->ds[at] = tile->less[at] * (drop[j] * dp - delta + dlse);
    }
}

void judge_tile_compute(const struct judge_pass *pass, struct judge_tile *tile)
{
    const struct attest_problem *p = pass->p;
    const struct ref_head head = {.p = p,
                                  .a = &pass->a->forward,
                                  .s = ref_sequence(p, &pass->a->forward, tile->b),
                                  .b = tile->b,
                                  .h_kv = tile->h / (p->num_heads_q / p->num_heads_kv)};
    const struct ref_block block = {.head = &head, .h = tile->h, .first_row = tile->first_row, .rows = tile->rows,
                                    .first_key = tile->first_key, .last_key = tile->first_key + tile->keys,
                                    .width = ref_round_up(tile->keys), .stride = JUDGE_TILE};
    double t[JUDGE_TILE] = {0}, drop[JUDGE_TILE];
    memset(tile->p, 0, sizeof tile->p);
    memset(tile->kept, 0, sizeof tile->kept);
    memset(tile->ds, 0, sizeof tile->ds);
    memset(tile->less, 0, sizeof tile->less);
    memset(tile->delta, 0, sizeof tile->delta);
    multiply(pass, tile, REF_DK, REF_DQ, tile->p);
    memcpy(tile->s, tile->p, sizeof tile->s);
    ref_vector()->scale(JUDGE_SCORES, p->softmax_scale, tile->s);
    if (pass->delta) multiply(pass, tile, REF_DV, REF_O, tile->ds);
    for (int64_t j = 0; j < JUDGE_TILE; ++j) drop[j] = 1.0;
    for (int64_t r = 0; r < tile->rows; ++r) {
        double *const x = tile->p + r * JUDGE_TILE, *const kept = tile->kept + r * JUDGE_TILE;
        const double lse = pass->lse[ref_block_row(&block, r)];
        ref_block_exponents(&block, r, x, p->softcap > 0 ? t : NULL, NULL);
        const double sum = ref_vector()->exp_sum(block.width, isfinite(lse) ? lse : 0.0, x);
        if (!isfinite(lse) || !isfinite(sum)) {
            memset(x, 0, JUDGE_TILE * sizeof *x);
            memset(tile->ds + r * JUDGE_TILE, 0, JUDGE_TILE * sizeof *tile->ds);
            continue;
        }
        if (p->dropout_p > 0) ref_block_dropout(&block, r, drop);
        for (int64_t j = 0; j < tile->keys; ++j) kept[j] = x[j] * drop[j];
        if (pass->delta) differentiate(pass, tile, &block, r, t, drop);
    }
}

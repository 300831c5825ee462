/* params.c - turns the public structs into what launchers take. */
#include "kernels/shared/params.h"

#include <math.h>
#include <stdbool.h>
#include <stddef.h>

/* bytes is a power of two. */
static bool is_multiple(const void *pointer, uintptr_t bytes) { return ((uintptr_t)pointer & (bytes - 1)) == 0; }

/* elements is a power of two: every call asks this of every tensor, and a division takes long. */
static bool steps_by(const struct attest_problem *p, const struct attest_tensor *t, const void *data, int64_t elements)
{
    const int64_t strides = (p->ragged ? 0 : t->batch) | t->seqlen | t->head;
    const uintptr_t bytes = (uintptr_t)elements * (t->dtype == ATTEST_FP32 ? 4 : 2);
    return (strides & (elements - 1)) == 0 && is_multiple(data, bytes);
}

static struct row_tensor row_tensor_of(const struct attest_problem *p, const struct attest_tensor *t, const void *data)
{
    if (t->dtype == ATTEST_ABSENT) return (struct row_tensor){0};
    return (struct row_tensor){.data = (void *)(uintptr_t)data,
                               .batch = p->ragged ? 0 : t->batch,
                               .seqlen = t->seqlen,
                               .head = t->head,
                               .dtype = t->dtype,
                               .by_four = steps_by(p, t, data, 4),
                               .by_eight = steps_by(p, t, data, 8)};
}

static struct score_tensor score_tensor_of(const struct attest_score_tensor *t, const void *data)
{
    if (t->dtype == ATTEST_ABSENT) return (struct score_tensor){0};
    return (struct score_tensor){(void *)(uintptr_t)data, t->batch, t->head, t->seqlen_q, t->seqlen_k, t->dtype};
}

/* ALiBi's diagonal is the bottom-right one unless another is named. */
static bool alibi_is_bottom_right(const struct attest_problem *p)
{
    return p->alibi_diag_kind == ATTEST_DIAG_UNSET || p->alibi_diag_kind == ATTEST_DIAG_BOTTOM_RIGHT;
}

/* Divides by invariant integers (Granlund and Montgomery 1994, figure 4.1): with s = ceil(log2 by) and factor =
 * floor(2^32 (2^s - by) / by) + 1, floor(n / by) = (t + ((n - t) >> min(s, 1))) >> max(s - 1, 0), where t is the upper
 * half of factor n. */
struct divisor divisor_of(int64_t by)
{
    uint32_t s = 0;
    while (((int64_t)1 << s) < by) ++s;
    const uint64_t rest = ((uint64_t)1 << s) - (uint64_t)by;
    return (struct divisor){(uint32_t)by, (uint32_t)((rest << 32) / (uint64_t)by + 1), s > 0, s > 0 ? s - 1 : 0};
}

struct forward_params forward_params_of(const struct attest_problem *p, const struct attest_forward_args *a)
{
    const int64_t start = p->q_start - p->k_start;
    const uint32_t threshold = (uint32_t)floor(65536.0 * p->dropout_p + 0.5);
    return (struct forward_params){
        .most = {INT32_MAX, INT32_MAX},
        .of_others = {{-1, -1}, {-1, -1}, {-1, -1}},
        .q = row_tensor_of(p, &p->q, a->q),
        .k = row_tensor_of(p, &p->k, a->k),
        .v = row_tensor_of(p, &p->v, a->v),
        .o = row_tensor_of(p, &p->o, a->o),
        .lse = row_tensor_of(p, &p->lse, a->lse),
        .bias = score_tensor_of(&p->bias, a->bias),
        .mask = score_tensor_of(&p->mask, a->mask),
        .block_mask = score_tensor_of(&p->block_mask, a->block_mask),
        .cu_seqlens_q = p->ragged ? a->cu_seqlens_q : NULL,
        .cu_seqlens_k = p->ragged ? a->cu_seqlens_k : NULL,
        .seqused_q = p->has_seqused_q ? a->seqused_q : NULL,
        .seqused_k = p->has_seqused_k ? a->seqused_k : NULL,
        .sink = p->has_sink ? a->sink : NULL,
        .alibi_slopes = p->has_alibi ? a->alibi_slopes : NULL,
        .dropout_seed_at = a->dropout_seed,
        .dropout_offset_at = a->dropout_offset,
        .dropout_stream = a->dropout_stream,
        .dropout_seed = p->dropout_seed,
        .dropout_offset = p->dropout_offset,
        .batch = p->batch,
        .num_heads_q = p->num_heads_q,
        .by_heads_q = divisor_of(p->num_heads_q),
        .by_heads_kv = divisor_of(p->num_heads_kv),
        .by_group = divisor_of(p->num_heads_q / p->num_heads_kv),
        .rows_q = p->ragged ? p->total_q : p->batch * p->seqlen_q,
        .rows_k = p->ragged ? p->total_k : p->batch * p->seqlen_k,
        .group = (int32_t)(p->num_heads_q / p->num_heads_kv),
        .seqlen_q = (int32_t)p->seqlen_q,
        .seqlen_k = (int32_t)p->seqlen_k,
        .head_dim = (int32_t)p->head_dim,
        .head_dim_v = (int32_t)p->head_dim_v,
        .diag_is_bottom_right = p->diag_kind == ATTEST_DIAG_BOTTOM_RIGHT,
        .alibi_diag_is_bottom_right = alibi_is_bottom_right(p),
        .diag = start + (p->diag_kind == ATTEST_DIAG_GIVEN ? p->diag : 0),
        .alibi_diag = start + (p->alibi_diag_kind == ATTEST_DIAG_GIVEN ? p->alibi_diag : 0),
        .window_left = p->window_left,
        .window_right = p->window_right,
        .q_start = p->q_start,
        .k_start = p->k_start,
        .block_q = (int32_t)p->block_q,
        .block_k = (int32_t)p->block_k,
        .softmax_scale = p->softmax_scale,
        .softcap = p->softcap,
        .dropout_multiplier = (float)(65536.0 / (65536.0 - threshold)),
        .dropout_threshold = p->dropout_p != 0 ? threshold : 0,
    };
}

struct backward_params backward_params_of(const struct attest_problem *p, const struct attest_backward_args *a,
                                          void *workspace)
{
    return (struct backward_params){
        .forward = forward_params_of(p, &a->forward),
        .dout = row_tensor_of(p, &p->dout, a->dout),
        .dq = row_tensor_of(p, &p->dq, a->dq),
        .dk = row_tensor_of(p, &p->dk, a->dk),
        .dv = row_tensor_of(p, &p->dv, a->dv),
        .dlse = row_tensor_of(p, &p->dlse, a->dlse),
        .delta = row_tensor_of(p, &p->delta, a->delta),
        .dbias = score_tensor_of(&p->dbias, a->dbias),
        .dsink = p->has_sink ? a->dsink : NULL,
        .external_lse = p->external_lse,
        .workspace = workspace,
    };
}

/* 0 means fp32, too. */
static int32_t merge_dtype(int32_t dtype) { return dtype == 0 ? ATTEST_FP32 : dtype; }

/* Returns whether every row of features begins at a multiple of four elements. */
static bool is_by_four(const void *features, int32_t dtype)
{
    return is_multiple(features, merge_dtype(dtype) == ATTEST_FP32 ? 16 : 8);
}

struct merge_params merge_params_of(const struct attest_merge_args *a)
{
    struct merge_params out = {.o = a->o,
                               .lse = a->lse,
                               .rows = a->rows,
                               .head_dim_v = a->head_dim_v,
                               .num_states = (int32_t)a->num_states,
                               .o_dtype = merge_dtype(a->o_dtype),
                               .by_four = a->head_dim_v % 4 == 0 && is_by_four(a->o, a->o_dtype)};
    for (int64_t s = 0; s < a->num_states && a->rows > 0; ++s) { /* without rows the arrays may be NULL */
        out.o_states[s] = a->o_states[s];
        out.lse_states[s] = a->lse_states[s];
        out.by_four &= is_by_four(a->o_states[s], ATTEST_FP32);
    }
    return out;
}

struct merge_backward_params merge_backward_params_of(const struct attest_merge_backward_args *a)
{
    struct merge_backward_params out = {.o = a->o,
                                        .dout = a->dout,
                                        .lse = a->lse,
                                        .dlse = a->dlse,
                                        .rows = a->rows,
                                        .head_dim_v = a->head_dim_v,
                                        .num_states = (int32_t)a->num_states,
                                        .o_dtype = merge_dtype(a->o_dtype),
                                        .dout_dtype = merge_dtype(a->dout_dtype)};
    out.by_four = a->head_dim_v % 4 == 0 && is_by_four(a->o, a->o_dtype) && is_by_four(a->dout, a->dout_dtype);
    for (int64_t s = 0; s < a->num_states && a->rows > 0; ++s) {
        out.o_states[s] = a->o_states[s], out.lse_states[s] = a->lse_states[s];
        out.do_states[s] = a->do_states[s], out.dlse_states[s] = a->dlse_states[s];
        out.by_four &= is_by_four(a->o_states[s], ATTEST_FP32) && is_by_four(a->do_states[s], ATTEST_FP32);
    }
    return out;
}

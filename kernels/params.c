/* params.c - from the public structs to what launchers take. */
#include "kernels/params.h"

#include <stdbool.h>
#include <stddef.h>

static bool is_multiple(const void *pointer, int64_t bytes) { return (uintptr_t)pointer % (uintptr_t)bytes == 0; }

static struct row_tensor row_tensor_of(const struct attest_problem *p, const struct attest_tensor *t, const void *data)
{
    const int64_t element_bytes = t->dtype == ATTEST_FP32 ? 4 : 2, batch = p->ragged ? 0 : t->batch;
    const bool by_four =
        batch % 4 == 0 && t->seqlen % 4 == 0 && t->head % 4 == 0 && is_multiple(data, 4 * element_bytes);
    return (struct row_tensor){(void *)(uintptr_t)data, batch, t->seqlen, t->head, t->dtype, by_four};
}

struct forward_params forward_params_of(const struct attest_problem *p, const struct attest_forward_args *a)
{
    struct forward_params out = {
        .q = row_tensor_of(p, &p->q, a->q),
        .k = row_tensor_of(p, &p->k, a->k),
        .v = row_tensor_of(p, &p->v, a->v),
        .o = row_tensor_of(p, &p->o, a->o),
        .cu_seqlens_q = p->ragged ? a->cu_seqlens_q : NULL,
        .cu_seqlens_k = p->ragged ? a->cu_seqlens_k : NULL,
        .seqused_q = p->has_seqused_q ? a->seqused_q : NULL,
        .seqused_k = p->has_seqused_k ? a->seqused_k : NULL,
        .sink = p->has_sink ? a->sink : NULL,
        .batch = p->batch,
        .num_heads_q = p->num_heads_q,
        .group = (int32_t)(p->num_heads_q / p->num_heads_kv),
        .seqlen_q = (int32_t)p->seqlen_q,
        .seqlen_k = (int32_t)p->seqlen_k,
        .head_dim = (int32_t)p->head_dim,
        .head_dim_v = (int32_t)p->head_dim_v,
        .diag_is_bottom_right = p->diag_kind == ATTEST_DIAG_BOTTOM_RIGHT,
        .diag = p->q_start - p->k_start + (p->diag_kind == ATTEST_DIAG_GIVEN ? p->diag : 0),
        .window_left = p->window_left,
        .window_right = p->window_right,
        .softmax_scale = p->softmax_scale,
    };
    if (p->lse.dtype != ATTEST_ABSENT) out.lse = row_tensor_of(p, &p->lse, a->lse);
    return out;
}

struct merge_params merge_params_of(const struct attest_merge_args *a)
{
    struct merge_params out = {
        .o = a->o, .lse = a->lse, .rows = a->rows, .head_dim_v = a->head_dim_v, .num_states = (int32_t)a->num_states,
        .by_four = a->head_dim_v % 4 == 0 && is_multiple(a->o, 16)};
    for (int64_t s = 0; s < a->num_states; ++s) {
        out.o_states[s] = a->o_states[s];
        out.lse_states[s] = a->lse_states[s];
        out.by_four &= is_multiple(a->o_states[s], 16);
    }
    return out;
}

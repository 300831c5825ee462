/* testing.h - one small problem with everything in it, for the tests of lib/: valid as it stands, and
 * each test breaks or narrows a field of it. */
#ifndef ATTEST_LIB_TESTING_H
#define ATTEST_LIB_TESTING_H

#include <stdint.h>
#include <string.h>

#include "lib/attest.h"

enum { BATCH = 2, SEQLEN_Q = 3, SEQLEN_K = 5, HEADS_Q = 4, HEADS_KV = 2, HEAD_DIM = 8, HEAD_DIM_V = 4 };
enum { ROWS_Q = BATCH * SEQLEN_Q, ROWS_K = BATCH * SEQLEN_K, SCORES = BATCH * HEADS_Q * SEQLEN_Q * SEQLEN_K };

/* A packed tensor [batch][rows][heads][features]. */
static inline struct attest_tensor packed(int32_t dtype, int64_t rows, int64_t heads, int64_t features)
{
    return (struct attest_tensor){dtype, 0, rows * heads * features, heads * features, features};
}

static inline struct attest_score_tensor packed_scores(int32_t dtype)
{
    return (struct attest_score_tensor){dtype, 0, HEADS_Q * SEQLEN_Q * SEQLEN_K, SEQLEN_Q * SEQLEN_K, SEQLEN_K, 1};
}

/* Forward and backward, fp32, dense, with bias, masks, ALiBi, a sink and dropout. */
static inline struct attest_problem whole_problem(void)
{
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = ATTEST_REFERENCE;
    p.batch = BATCH, p.seqlen_q = SEQLEN_Q, p.seqlen_k = SEQLEN_K;
    p.num_heads_q = HEADS_Q, p.num_heads_kv = HEADS_KV, p.head_dim = HEAD_DIM, p.head_dim_v = HEAD_DIM_V;
    p.q = p.dq = packed(ATTEST_FP32, SEQLEN_Q, HEADS_Q, HEAD_DIM);
    p.k = p.dk = packed(ATTEST_FP32, SEQLEN_K, HEADS_KV, HEAD_DIM);
    p.v = p.dv = packed(ATTEST_FP32, SEQLEN_K, HEADS_KV, HEAD_DIM_V);
    p.o = p.dout = packed(ATTEST_FP32, SEQLEN_Q, HEADS_Q, HEAD_DIM_V);
    p.lse = p.dlse = p.delta = packed(ATTEST_FP32, SEQLEN_Q, HEADS_Q, 1);
    p.bias = p.dbias = packed_scores(ATTEST_FP32);
    p.mask = packed_scores(ATTEST_UINT8);
    p.block_mask = (struct attest_score_tensor){ATTEST_UINT8, 0, 0, 0, 3, 1}; /* [2][3] blocks, for every head */
    p.block_q = 2, p.block_k = 2;
    p.softmax_scale = 0.5f, p.softcap = 10.0f, p.dropout_p = 0.25f;
    p.has_alibi = p.has_sink = p.has_seqused_q = p.has_seqused_k = 1;
    p.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT, p.window_left = 3, p.window_right = 0;
    return p;
}

/* The same, its sequences packed one after the other. */
static inline struct attest_problem ragged_problem(void)
{
    struct attest_problem p = whole_problem();
    p.ragged = 1, p.total_q = ROWS_Q, p.total_k = ROWS_K;
    return p;
}

/* Buffers for those problems. Inputs are plain numbers; outputs are poison. */
struct buffers {
    float q[ROWS_Q * HEADS_Q * HEAD_DIM], k[ROWS_K * HEADS_KV * HEAD_DIM], v[ROWS_K * HEADS_KV * HEAD_DIM_V];
    float o[ROWS_Q * HEADS_Q * HEAD_DIM_V], lse[ROWS_Q * HEADS_Q];
    float dout[ROWS_Q * HEADS_Q * HEAD_DIM_V], dlse[ROWS_Q * HEADS_Q], delta[ROWS_Q * HEADS_Q];
    float dq[ROWS_Q * HEADS_Q * HEAD_DIM], dk[ROWS_K * HEADS_KV * HEAD_DIM], dv[ROWS_K * HEADS_KV * HEAD_DIM_V];
    float bias[SCORES], dbias[SCORES];
    uint8_t mask[SCORES], block_mask[6];
    float alibi_slopes[HEADS_Q], sink[HEADS_Q], dsink[HEADS_Q];
    int32_t cu_seqlens_q[BATCH + 1], cu_seqlens_k[BATCH + 1], seqused_q[BATCH], seqused_k[BATCH];
    uint64_t dropout_seed, dropout_offset;
    int64_t dropout_stream[BATCH * HEADS_Q];
    struct attest_backward_args args;
};

static inline void fill(float *array, int count, float step)
{
    for (int i = 0; i < count; ++i) array[i] = step * (float)((i * 37 + 11) % 23 - 11);
}

#define FILL(array, step) fill(array, sizeof(array) / sizeof *(array), step)

static inline void fill_buffers(struct buffers *b)
{
    memset(b, 0xff, sizeof *b); /* NaN */
    FILL(b->q, 0.125f), FILL(b->k, 0.0625f), FILL(b->v, 0.25f);
    FILL(b->dout, 0.0625f), FILL(b->dlse, 0.03125f), FILL(b->delta, 0.03125f);
    FILL(b->bias, 0.015625f), FILL(b->alibi_slopes, 0.0078125f), FILL(b->sink, 0.125f);
    for (int i = 0; i < SCORES; ++i) b->mask[i] = i % 7 != 3;
    for (int i = 0; i < 6; ++i) b->block_mask[i] = i != 1;
    for (int i = 0; i < BATCH; ++i) b->seqused_q[i] = SEQLEN_Q - i, b->seqused_k[i] = SEQLEN_K - 2 * i;
    for (int i = 0; i <= BATCH; ++i) b->cu_seqlens_q[i] = i * SEQLEN_Q, b->cu_seqlens_k[i] = i * SEQLEN_K;
    for (int i = 0; i < BATCH * HEADS_Q; ++i) b->dropout_stream[i] = i;
    b->dropout_seed = 42, b->dropout_offset = 7;

    b->args = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    struct attest_forward_args *f = &b->args.forward;
    f->q = b->q, f->k = b->k, f->v = b->v, f->o = b->o, f->lse = b->lse, f->bias = b->bias;
    f->mask = b->mask, f->block_mask = b->block_mask, f->alibi_slopes = b->alibi_slopes, f->sink = b->sink;
    f->cu_seqlens_q = b->cu_seqlens_q, f->cu_seqlens_k = b->cu_seqlens_k;
    f->seqused_q = b->seqused_q, f->seqused_k = b->seqused_k;
    f->dropout_seed = &b->dropout_seed, f->dropout_offset = &b->dropout_offset, f->dropout_stream = b->dropout_stream;
    b->args.dout = b->dout, b->args.dlse = b->dlse, b->args.delta = b->delta;
    b->args.dq = b->dq, b->args.dk = b->dk, b->args.dv = b->dv, b->args.dbias = b->dbias, b->args.dsink = b->dsink;
}

#endif

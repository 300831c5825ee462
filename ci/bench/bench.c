/* bench.c - what the timing script needs of C: attention over packed tensors through attest.h, from a struct
 * of integers, and arithmetic on long arrays. Python calls these by name. */
#define _POSIX_C_SOURCE 199309L /* clock_gettime */

#include <math.h>
#include <stdint.h>
#include <stddef.h>
#include <time.h>

#include "ci/bench/empty.h"
#include "lib/attest.h"
#include "proptests/cases/families.h"
#include "reference/formats.h"

#define BENCH_API __attribute__((visibility("default")))

/* The tensors of a run, in this order wherever they are passed as an array of pointers; those that a problem does not
 * have are not looked at. */
enum { Q, K, V, O, LSE, DOUT, DQ, DK, DV, BIAS, MASK, BLOCK_MASK, ALIBI_SLOPES, SINK, SEQUSED_K, DROPOUT_STREAM, DBIAS,
       DSINK, NUM_TENSORS };

/* Attention as the tables vary it; ours.py mirrors the names. What is 0 is absent. */
struct bench_problem {
    int64_t batch, heads, heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v;
    int64_t rows_first;      /* 1: tensors are [batch][seqlen][heads][head_dim]; 0: [batch][heads][seqlen][head_dim] */
    int64_t window_left, window_right; /* negative: unbounded; the last query sits on the last key, used or not */
    int64_t alibi, sink, seqused;      /* 1: slopes and sinks are [heads], lengths of the keys [batch] */
    int64_t softcap;
    int64_t dropout;         /* in thousandths */
    int64_t mask_k, mask;    /* 1: uint8 [batch][1][1][seqlen_k]; [batch][1][seqlen_q][seqlen_k] */
    int64_t bias, dbias;     /* 1: [1][heads][seqlen_q][seqlen_k] of the dtype of q; its gradient, too */
    int64_t block_mask;      /* rows and columns of a block; uint8 [1][1][blocks][blocks] */
};

/* head_dim 1: lse, which has no such axis. */
static struct attest_tensor packed(int32_t dtype, int64_t rows_first, int64_t heads, int64_t seqlen, int64_t head_dim)
{
    struct attest_tensor t = {.dtype = dtype, .batch = heads * seqlen * head_dim};
    t.seqlen = rows_first ? heads * head_dim : head_dim;
    t.head = rows_first ? head_dim : seqlen * head_dim;
    if (head_dim > 1 && head_dim % 8 == 0) t.align = 16;
    return t;
}

/* Packed rows of `keys` scores; a stride of zero broadcasts. */
static struct attest_score_tensor scores(int32_t dtype, int64_t keys, int64_t batch, int64_t head, int64_t seqlen_q)
{
    struct attest_score_tensor t = {.dtype = dtype, .batch = batch, .head = head, .seqlen_q = seqlen_q, .seqlen_k = 1};
    if (keys % 16 == 0) t.align = 16;
    return t;
}

static void set_scores(struct attest_problem *p, const struct bench_problem *b, int32_t dtype)
{
    const int64_t rows = b->seqlen_q, keys = b->seqlen_k;
    p->softcap = (float)b->softcap;
    p->dropout_p = (float)b->dropout / 1000;
    p->dropout_seed = 0x9e3779b97f4a7c15;
    p->has_alibi = b->alibi != 0;
    p->has_sink = b->sink != 0;
    p->has_seqused_k = b->seqused != 0;
    p->window_left = b->window_left;
    p->window_right = b->window_right;
    p->diag_kind = p->alibi_diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    if (b->seqused) {
        p->diag_kind = p->alibi_diag_kind = ATTEST_DIAG_GIVEN;
        p->diag = p->alibi_diag = keys - rows;
    }
    if (b->mask_k) p->mask = scores(ATTEST_UINT8, keys, keys, 0, 0);
    if (b->mask) p->mask = scores(ATTEST_UINT8, keys, rows * keys, 0, keys);
    if (b->bias) p->bias = scores(dtype, keys, 0, rows * keys, keys);
    if (b->block_mask) {
        const int64_t blocks = (keys + b->block_mask - 1) / b->block_mask;
        p->block_q = p->block_k = b->block_mask;
        p->block_mask = scores(ATTEST_UINT8, blocks, 0, 0, blocks);
    }
}

/* A plan of attention with the scale 1 / sqrt(head_dim), and with `backward` of its gradients, too.
 * Shapes   q, o, dout, dq have heads and seqlen_q rows, k, v, dk, dv heads_kv and seqlen_k; q, k, dq, dk have head_dim
 *          features, the others head_dim_v; all of `dtype`; lse fp32. On the reference device o, dq, dk, dv, dbias are
 *          fp32.
 * Errors   NULL; attest_last_error() is the sentence. */
BENCH_API struct attest_plan *bench_plan_problem(int32_t device, int32_t dtype, const struct bench_problem *b,
                                                 int32_t backward)
{
    const int32_t result = device == ATTEST_REFERENCE ? ATTEST_FP32 : dtype;
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = device;
    p.batch = b->batch;
    p.num_heads_q = b->heads;
    p.num_heads_kv = b->heads_kv;
    p.seqlen_q = b->seqlen_q;
    p.seqlen_k = b->seqlen_k;
    p.head_dim = b->head_dim;
    p.head_dim_v = b->head_dim_v;
    p.softmax_scale = (float)(1 / sqrt((double)b->head_dim));
    p.q = packed(dtype, b->rows_first, b->heads, b->seqlen_q, b->head_dim);
    p.k = packed(dtype, b->rows_first, b->heads_kv, b->seqlen_k, b->head_dim);
    p.v = packed(dtype, b->rows_first, b->heads_kv, b->seqlen_k, b->head_dim_v);
    p.o = packed(result, b->rows_first, b->heads, b->seqlen_q, b->head_dim_v);
    p.lse = packed(ATTEST_FP32, 0, b->heads, b->seqlen_q, 1);
    if (backward) {
        p.dout = packed(dtype, b->rows_first, b->heads, b->seqlen_q, b->head_dim_v);
        p.dq = packed(result, b->rows_first, b->heads, b->seqlen_q, b->head_dim);
        p.dk = packed(result, b->rows_first, b->heads_kv, b->seqlen_k, b->head_dim);
        p.dv = packed(result, b->rows_first, b->heads_kv, b->seqlen_k, b->head_dim_v);
        if (b->dbias) p.dbias = scores(result, b->seqlen_k, 0, b->seqlen_q * b->seqlen_k, b->seqlen_k);
    }
    set_scores(&p, b, dtype);
    struct attest_plan *plan;
    return attest_plan_create(&p, &plan) == ATTEST_OK ? plan : NULL;
}

BENCH_API size_t bench_workspace(const struct attest_plan *plan, int32_t backward)
{
    size_t bytes[2] = {0, 0};
    attest_plan_workspace(plan, &bytes[0], &bytes[1]);
    return bytes[backward];
}

static struct attest_forward_args forward_args(void *const tensors[NUM_TENSORS])
{
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    a.q = tensors[Q];
    a.k = tensors[K];
    a.v = tensors[V];
    a.o = tensors[O];
    a.lse = tensors[LSE];
    a.bias = tensors[BIAS];
    a.mask = tensors[MASK];
    a.block_mask = tensors[BLOCK_MASK];
    a.alibi_slopes = tensors[ALIBI_SLOPES];
    a.sink = tensors[SINK];
    a.seqused_k = tensors[SEQUSED_K];
    a.dropout_stream = tensors[DROPOUT_STREAM];
    return a;
}

/* Queue a run on the default stream. Return a status of attest.h. */
BENCH_API int bench_forward(const struct attest_plan *plan, void *const tensors[NUM_TENSORS], void *workspace,
                            size_t bytes)
{
    const struct attest_forward_args a = forward_args(tensors);
    return attest_run_forward(plan, &a, workspace, bytes, NULL);
}

BENCH_API int bench_backward(const struct attest_plan *plan, void *const tensors[NUM_TENSORS], void *workspace,
                             size_t bytes)
{
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    a.forward = forward_args(tensors);
    a.dout = tensors[DOUT];
    a.dq = tensors[DQ];
    a.dk = tensors[DK];
    a.dv = tensors[DV];
    a.dbias = tensors[DBIAS];
    a.dsink = tensors[DSINK];
    return attest_run_backward(plan, &a, workspace, bytes, NULL);
}

static int queue_one(const struct attest_plan *plan, int32_t backward, void *const tensors[NUM_TENSORS],
                     void *workspace, size_t bytes)
{
    if (!plan) return empty_cuda ? empty_cuda() : 1;
    return (backward ? bench_backward : bench_forward)(plan, tensors, workspace, bytes);
}

/* Queue `calls` runs in a row; where plan is NULL, launches of an empty kernel. Return the nanoseconds that the host
 * took, or -1 where a run failed. */
BENCH_API int64_t bench_queue(const struct attest_plan *plan, int32_t backward, void *const tensors[NUM_TENSORS],
                              void *workspace, size_t bytes, int32_t calls)
{
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (int32_t i = 0; i < calls; ++i)
        if (queue_one(plan, backward, tensors, workspace, bytes) != 0) return -1;
    clock_gettime(CLOCK_MONOTONIC, &end);
    return (end.tv_sec - start.tv_sec) * INT64_C(1000000000) + (end.tv_nsec - start.tv_nsec);
}

/* `count` numbers of an input family, rounded to `dtype`: enum family and, a tensor has numbers of its own, enum role
 * of proptests/cases/families.h. */
BENCH_API void bench_draw(int32_t dtype, int32_t family, int32_t role, int64_t count, void *out)
{
    const struct family_data data = {.family = (enum family)family, .dtype = dtype};
    for (int64_t i = 0; i < count; ++i)
        ref_store(dtype, out, i, family_value(&data, (enum role)role, 0, 0, 0, i));
}

/* |got - want| / |want| in Frobenius norms; want is fp32. Where a row sees no key, its lse of -inf is no difference. */
BENCH_API double bench_relative_error(int32_t dtype, const void *got, const float *want, int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double value = ref_load(dtype, got, i);
        if (isinf(want[i]) && value == (double)want[i]) continue;
        const double d = value - (double)want[i];
        difference += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(difference / norm);
}

/* bench.c - what the timing script needs of C: attention over packed tensors through attest.h, without a struct that
 * Python would have to mirror, and arithmetic on long arrays. Python calls these by name. */
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

/* The tensors of a run, in this order wherever they are passed as an array of pointers. */
enum { Q, K, V, O, LSE, DOUT, DQ, DK, DV, NUM_TENSORS };

/* A tensor [batch][heads][seqlen][head_dim]; head_dim 1: [batch][heads][seqlen]. */
static struct attest_tensor packed(int32_t dtype, int64_t heads, int64_t seqlen, int64_t head_dim)
{
    struct attest_tensor t = {.dtype = dtype, .seqlen = head_dim};
    t.head = seqlen * head_dim;
    t.batch = heads * t.head;
    if (head_dim > 1) t.align = 16;
    return t;
}

/* A plan of softmax(q k^T / sqrt(head_dim)) v, masked if causal, and with `backward` of its gradients, too.
 * Shapes   q, o, dout, dq [batch][heads][seqlen_q][head_dim], k, v, dk, dv [batch][heads][seqlen_k][head_dim] of
 *          `dtype`, lse [batch][heads][seqlen_q] fp32. On the reference device o, dq, dk, dv are fp32.
 * Errors   NULL; attest_last_error() is the sentence. */
BENCH_API struct attest_plan *bench_plan(int32_t device, int32_t dtype, int64_t batch, int64_t heads, int64_t seqlen_q,
                                         int64_t seqlen_k, int64_t head_dim, int32_t causal, int32_t backward)
{
    const int32_t result = device == ATTEST_REFERENCE ? ATTEST_FP32 : dtype;
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = device;
    p.batch = batch;
    p.num_heads_q = p.num_heads_kv = heads;
    p.seqlen_q = seqlen_q;
    p.seqlen_k = seqlen_k;
    p.head_dim = p.head_dim_v = head_dim;
    p.softmax_scale = (float)(1 / sqrt((double)head_dim));
    p.q = packed(dtype, heads, seqlen_q, head_dim);
    p.k = p.v = packed(dtype, heads, seqlen_k, head_dim);
    p.o = packed(result, heads, seqlen_q, head_dim);
    p.lse = packed(ATTEST_FP32, heads, seqlen_q, 1);
    if (causal) {
        p.window_right = 0;
        p.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    }
    if (backward) {
        p.dout = packed(dtype, heads, seqlen_q, head_dim);
        p.dq = p.o;
        p.dk = p.dv = packed(result, heads, seqlen_k, head_dim);
    }
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

/* |got - want| / |want| in Frobenius norms; want is fp32. */
BENCH_API double bench_relative_error(int32_t dtype, const void *got, const float *want, int64_t count)
{
    double difference = 0, norm = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double d = ref_load(dtype, got, i) - (double)want[i];
        difference += d * d;
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(difference / norm);
}

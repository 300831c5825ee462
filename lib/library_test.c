/* library_test.c - the reference device through the public calls: small problems worked out by hand. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>

#include <criterion/criterion.h>

#include "lib/testing.h"
#include "reference/formats.h"

/* One query head, one KV head, one feature: small enough to write the answer down. */
static struct attest_problem tiny_problem(int64_t seqlen_q, int64_t seqlen_k)
{
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = ATTEST_REFERENCE;
    p.batch = p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
    p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k;
    p.softmax_scale = 1.0f;
    p.q = p.o = p.dout = p.dq = packed(ATTEST_FP32, seqlen_q, 1, 1);
    p.k = p.v = p.dk = p.dv = packed(ATTEST_FP32, seqlen_k, 1, 1);
    p.lse = packed(ATTEST_FP32, seqlen_q, 1, 1);
    return p;
}

static struct attest_problem forward_part(struct attest_problem p)
{
    p.dq.dtype = p.dk.dtype = p.dv.dtype = p.dout.dtype = p.dlse.dtype = p.delta.dtype = p.dbias.dtype = ATTEST_ABSENT;
    return p;
}

static struct attest_plan *planned(const struct attest_problem *p)
{
    struct attest_plan *plan = NULL;
    cr_assert_eq(attest_plan_create(p, &plan), ATTEST_OK, "%s", attest_last_error());
    return plan;
}

static void run(const struct attest_problem *p, const struct attest_backward_args *a, bool backward)
{
    struct attest_plan *plan = planned(p);
    const enum attest_status status = backward ? attest_run_backward(plan, a, NULL, 0, NULL)
                                               : attest_run_forward(plan, &a->forward, NULL, 0, NULL);
    cr_assert_eq(status, ATTEST_OK, "%s", attest_last_error());
    attest_plan_destroy(plan);
}

/* `got` is `want` rounded to fp32. `want` was computed in double, so the tie may fall either way. */
static void rounds_to(float got, double want, const char *what)
{
    const double use = fabs((double)got - want) / (ref_half_ulp(ATTEST_FP32, want) * (1 + 0x1p-20));
    cr_assert(use <= 1, "%s: got %.9g, want %.17g", what, (double)got, want);
}

Test(library, says_what_it_is)
{
    cr_assert_eq(attest_version(), (uint32_t)ATTEST_VERSION);
    cr_assert_str_eq(attest_last_error(), "");
    cr_assert_str_eq(attest_status_name(ATTEST_OK), "ATTEST_OK");
    cr_assert_str_eq(attest_status_name(ATTEST_INVALID), "ATTEST_INVALID");
    cr_assert_str_eq(attest_status_name(ATTEST_UNSUPPORTED), "ATTEST_UNSUPPORTED");
    cr_assert_str_eq(attest_status_name(ATTEST_OUT_OF_MEMORY), "ATTEST_OUT_OF_MEMORY");
    cr_assert_str_eq(attest_status_name(ATTEST_DEVICE_ERROR), "ATTEST_DEVICE_ERROR");
    cr_assert_str_eq(attest_status_name((enum attest_status)77), "an unknown status");

    const struct attest_problem p = tiny_problem(1, 1);
    struct attest_plan *plan = planned(&p);
    size_t forward_bytes = 1, backward_bytes = 1;
    cr_assert_eq(attest_plan_workspace(plan, &forward_bytes, &backward_bytes), ATTEST_OK);
    cr_assert_eq(forward_bytes, 0);
    cr_assert_eq(backward_bytes, 0);
    for (enum attest_pass pass = ATTEST_FORWARD; pass <= ATTEST_BACKWARD; ++pass) {
        const struct attest_share *const share = attest_plan_share(plan, pass, 0);
        cr_assert_str_eq(attest_plan_kernel(plan, pass), "reference");
        cr_assert_str_eq(share->kernel, "reference");
        cr_assert_str_eq(share->recipe->name, "fp32");
        cr_assert(share->most_seqlen_q >= p.seqlen_q && share->most_seqlen_k >= p.seqlen_k);
        cr_assert_null(attest_plan_share(plan, pass, 1));
        cr_assert_null(attest_plan_share(plan, pass, -1));
    }
    attest_plan_destroy(plan);
    attest_plan_destroy(NULL);
}

Test(forward, is_the_softmax_average)
{
    const struct attest_problem p = tiny_problem(1, 3);
    const float q = 1.5f, k[] = {0.25f, -1.0f, 2.0f}, v[] = {3.0f, 5.0f, -7.0f};
    float o = NAN, lse = NAN;
    struct attest_backward_args a = {.forward = ATTEST_FORWARD_ARGS_INIT};
    a.forward.q = &q, a.forward.k = k, a.forward.v = v, a.forward.o = &o, a.forward.lse = &lse;
    run(&p, &a, false);
    const double e[] = {exp(0.375), exp(-1.5), exp(3.0)}, sum = e[0] + e[1] + e[2];
    rounds_to(o, (3 * e[0] + 5 * e[1] - 7 * e[2]) / sum, "o");
    rounds_to(lse, log(sum), "lse");
}

Test(backward, is_the_derivative)
{
    struct attest_problem p = tiny_problem(1, 2);
    p.dlse = p.lse, p.o.dtype = ATTEST_FP32;
    const float q = 0.5f, k[] = {1.0f, -2.0f}, v[] = {3.0f, 4.0f}, dout = 0.75f, dlse = 0.125f, o = 0, lse = 0;
    float dq = NAN, dk[] = {NAN, NAN}, dv[] = {NAN, NAN};
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    a.forward.q = &q, a.forward.k = k, a.forward.v = v, a.forward.o = (void *)&o, a.forward.lse = (void *)&lse;
    a.dout = &dout, a.dlse = &dlse, a.dq = &dq, a.dk = dk, a.dv = dv;
    run(&p, &a, true);

    /* With one weight p of key 0: o = 4 - p, do/ds_0 = p (1 - p) (3 - 4), dlse/ds_0 = p. */
    const double w = 1 / (1 + exp(-1.5)), slope = w * (1 - w);
    const double ds0 = 0.75 * slope * -1 + 0.125 * w, ds1 = 0.75 * slope * 1 + 0.125 * (1 - w);
    rounds_to(dv[0], 0.75 * w, "dv[0]");
    rounds_to(dv[1], 0.75 * (1 - w), "dv[1]");
    rounds_to(dk[0], 0.5 * ds0, "dk[0]");
    rounds_to(dk[1], 0.5 * ds1, "dk[1]");
    rounds_to(dq, ds0 * 1 + ds1 * -2, "dq");
}

Test(backward, takes_lse_and_delta_from_outside)
{
    struct attest_problem p = tiny_problem(1, 1);
    p.external_lse = 1, p.delta = p.lse, p.o.dtype = ATTEST_ABSENT;
    const float q = 1, k = 2, v = 3, dout = 1, lse = 4, delta = 0.5f;
    float dq = NAN, dk = NAN, dv = NAN;
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    a.forward.q = &q, a.forward.k = &k, a.forward.v = &v, a.forward.lse = (void *)&lse;
    a.dout = &dout, a.delta = &delta, a.dq = &dq, a.dk = &dk, a.dv = &dv;
    run(&p, &a, true);
    rounds_to(dv, exp(-2.0), "dv");
    rounds_to(dq, 2 * exp(-2.0) * 2.5, "dq");
    rounds_to(dk, 1 * exp(-2.0) * 2.5, "dk");
}

Test(forward, rounds_once_in_the_dtype_of_o)
{
    struct attest_problem p = tiny_problem(2, 2);
    p.o.dtype = ATTEST_BF16;
    /* Means of v: 1 + 2^-8 is a tie and goes to even, 1; 1 + 2^-8 + 2^-23 is above it. */
    const float q[] = {0, 0}, k[] = {0, 0}, v[] = {1, 1 + 0x1p-7f};
    uint16_t o[] = {0xdead, 0xdead};
    float lse[2];
    struct attest_backward_args a = {.forward = ATTEST_FORWARD_ARGS_INIT};
    a.forward.q = q, a.forward.k = k, a.forward.v = v, a.forward.o = o, a.forward.lse = lse;
    run(&p, &a, false);
    cr_assert_eq(o[0], 0x3f80);
    const float above[] = {1, 1 + 0x1p-7f + 0x1p-22f};
    a.forward.v = above;
    run(&p, &a, false);
    cr_assert_eq(o[0], 0x3f81);
    rounds_to(lse[1], log(2.0), "lse");
}

Test(forward, empty_rows_and_problems)
{
    struct attest_problem p = tiny_problem(2, 0);
    const float q[] = {NAN, 1}, sink = -3;
    float o[] = {NAN, NAN}, lse[] = {NAN, NAN};
    struct attest_backward_args a = {.forward = ATTEST_FORWARD_ARGS_INIT};
    a.forward.q = q, a.forward.o = o, a.forward.lse = lse; /* k and v have no element: NULL */
    run(&p, &a, false);
    for (int i = 0; i < 2; ++i) cr_assert(o[i] == 0 && lse[i] == -INFINITY);
    p.has_sink = 1, a.forward.sink = &sink;
    run(&p, &a, false);
    for (int i = 0; i < 2; ++i) cr_assert(o[i] == 0 && lse[i] == -3);
    p.seqlen_q = 0;
    a.forward.q = a.forward.o = a.forward.lse = NULL;
    run(&p, &a, false);
    p = tiny_problem(3, 3), p.batch = 0;
    run(&p, &a, false);
}

/* The whole problem, and the same in gapped, transposed memory: bitwise equal, and gaps untouched. */
static struct buffers plain, spread;
enum { WIDER = 3, SPREAD_SIZE = 4 * ROWS_K * HEADS_Q * HEAD_DIM * WIDER };
static float spread_o[SPREAD_SIZE], spread_dk[SPREAD_SIZE];

Test(library, strides_change_nothing_and_gaps_stay)
{
    struct attest_problem p = whole_problem();
    fill_buffers(&plain);
    run(&p, &plain.args, false);
    run(&p, &plain.args, true);

    fill_buffers(&spread);
    memset(spread_o, 0xff, sizeof spread_o);
    memset(spread_dk, 0xff, sizeof spread_dk);
    /* [batch][heads][seqlen][features and a gap] */
    p.o = (struct attest_tensor){ATTEST_FP32, 0, HEADS_Q * SEQLEN_Q * 7, 7, SEQLEN_Q * 7};
    p.dk = (struct attest_tensor){ATTEST_FP32, 0, HEADS_KV * SEQLEN_K * 11, 11, SEQLEN_K * 11};
    spread.args.forward.o = spread_o, spread.args.dk = spread_dk;
    run(&p, &spread.args, false);
    run(&p, &spread.args, true);
    cr_assert(memcmp(plain.lse, spread.lse, sizeof plain.lse) == 0);
    cr_assert(memcmp(plain.dq, spread.dq, sizeof plain.dq) == 0);
    cr_assert(memcmp(plain.dbias, spread.dbias, sizeof plain.dbias) == 0);
    int written = 0;
    for (int b = 0; b < BATCH; ++b) {
        for (int i = 0; i < SEQLEN_Q * HEADS_Q; ++i) {
            const int r = i / HEADS_Q, h = i % HEADS_Q, to = ((b * HEADS_Q + h) * SEQLEN_Q + r) * 7;
            const int from = ((b * SEQLEN_Q + r) * HEADS_Q + h) * HEAD_DIM_V;
            cr_assert(memcmp(&spread_o[to], &plain.o[from], HEAD_DIM_V * sizeof(float)) == 0);
            for (int x = 0; x < HEAD_DIM_V; ++x) written += isnan(spread_o[to + x]) ? 0 : 1;
        }
    }
    for (int i = 0; i < SPREAD_SIZE; ++i) written -= isnan(spread_o[i]) ? 0 : 1;
    cr_assert_eq(written, 0, "a gap of o was written");
    for (int i = 0; i < BATCH * HEADS_KV * SEQLEN_K; ++i) {
        for (int x = HEAD_DIM; x < 11; ++x) cr_assert(isnan(spread_dk[i * 11 + x]), "a gap of dk was written");
        for (int x = 0; x < HEAD_DIM; ++x) cr_assert(!isnan(spread_dk[i * 11 + x]));
    }
}

Test(library, ragged_rows_equal_dense_ones_and_rows_of_no_sequence_stay)
{
    struct attest_problem p = whole_problem();
    p.dbias.dtype = ATTEST_ABSENT; /* its place is the same in both */
    fill_buffers(&plain);
    run(&p, &plain.args, false);
    run(&p, &plain.args, true);

    fill_buffers(&spread);
    p.ragged = 1, p.total_q = ROWS_Q, p.total_k = ROWS_K;
    run(&p, &spread.args, false);
    run(&p, &spread.args, true);
    cr_assert(memcmp(plain.o, spread.o, sizeof plain.o) == 0);
    cr_assert(memcmp(plain.lse, spread.lse, sizeof plain.lse) == 0);
    cr_assert(memcmp(plain.dk, spread.dk, sizeof plain.dk) == 0);

    /* A first row and a last one that are nobody's. */
    fill_buffers(&spread);
    const int32_t starts[] = {1, 3, 5};
    memcpy(spread.cu_seqlens_q, starts, sizeof starts);
    spread.seqused_q[0] = 1, spread.seqused_q[1] = 2;
    run(&p, &spread.args, false);
    run(&p, &spread.args, true);
    for (int row = 0; row < ROWS_Q; ++row) {
        const bool nobodys = row == 0 || row == 5, unused = row == 2; /* the second row of the first sequence */
        for (int i = row * HEADS_Q; i < (row + 1) * HEADS_Q; ++i) {
            cr_assert_eq(isnan(spread.lse[i]) != 0, nobodys);
            cr_assert(!unused || spread.lse[i] == -INFINITY);
            for (int x = 0; x < HEAD_DIM_V; ++x) {
                cr_assert_eq(isnan(spread.o[i * HEAD_DIM_V + x]) != 0, nobodys);
                cr_assert(!unused || spread.o[i * HEAD_DIM_V + x] == 0);
            }
            for (int x = 0; x < HEAD_DIM; ++x) {
                cr_assert_eq(isnan(spread.dq[i * HEAD_DIM + x]) != 0, nobodys);
                cr_assert(!unused || spread.dq[i * HEAD_DIM + x] == 0);
            }
        }
    }
}

Test(library, dbias_is_summed_over_axes_of_stride_zero_and_written_whole)
{
    struct attest_problem p = whole_problem();
    fill_buffers(&plain);
    run(&p, &plain.args, true);
    fill_buffers(&spread);
    p.dbias.batch = p.dbias.head = 0;
    run(&p, &spread.args, true);
    for (int i = 0; i < SEQLEN_Q * SEQLEN_K; ++i) {
        double sum = 0, magnitude = 0;
        for (int h = 0; h < BATCH * HEADS_Q; ++h) {
            const double term = plain.dbias[h * SEQLEN_Q * SEQLEN_K + i];
            sum += term, magnitude += fabs(term);
        }
        cr_assert(fabs(spread.dbias[i] - sum) <= 0x1p-23 * magnitude, "%d", i); /* roundings of each term and the sum */
    }
    cr_assert(isnan(spread.dbias[SEQLEN_Q * SEQLEN_K]));
    cr_assert_eq(spread.dbias[4], 0); /* row 0 sees key 4 in no sequence */
    cr_assert(!isnan(spread.dsink[0]));
}

/* Many threads, one plan. */
struct worker {
    const struct attest_plan *plan;
    struct buffers buffers;
    enum attest_status status;
    bool own_error;
};

static void *work(void *argument)
{
    struct worker *w = argument;
    w->status = attest_run_forward(w->plan, &w->buffers.args.forward, NULL, 0, NULL);
    if (w->status == ATTEST_OK) w->status = attest_run_backward(w->plan, &w->buffers.args, NULL, 0, NULL);
    w->own_error = strcmp(attest_last_error(), "") == 0;
    return NULL;
}

Test(library, a_plan_is_shared_by_threads)
{
    enum { THREADS = 4 };
    static struct worker workers[THREADS];
    pthread_t threads[THREADS];
    const struct attest_problem p = whole_problem();
    struct attest_plan *plan = planned(&p);
    cr_assert_neq(attest_run_forward(plan, NULL, NULL, 0, NULL), ATTEST_OK); /* this thread's sentence, no other's */
    for (int t = 0; t < THREADS; ++t) {
        fill_buffers(&workers[t].buffers);
        workers[t].plan = plan;
        cr_assert_eq(pthread_create(&threads[t], NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; ++t) {
        cr_assert_eq(pthread_join(threads[t], NULL), 0);
        cr_assert_eq(workers[t].status, ATTEST_OK);
        cr_assert(workers[t].own_error);
        cr_assert(memcmp(workers[t].buffers.o, workers[0].buffers.o, sizeof workers[0].buffers.o) == 0);
        cr_assert(memcmp(workers[t].buffers.dk, workers[0].buffers.dk, sizeof workers[0].buffers.dk) == 0);
        cr_assert(!isnan(workers[t].buffers.dq[0]));
    }
    cr_assert(strstr(attest_last_error(), "args = NULL") != NULL);
    attest_plan_destroy(plan);
}

Test(library, a_plan_outlives_its_problem)
{
    struct attest_problem p = forward_part(tiny_problem(1, 1));
    struct attest_plan *plan = planned(&p);
    memset(&p, 0xff, sizeof p);
    const float q = 1, k = 1, v = 2.5f;
    float o = NAN, lse = NAN;
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    a.q = &q, a.k = &k, a.v = &v, a.o = &o, a.lse = &lse;
    cr_assert_eq(attest_run_forward(plan, &a, NULL, 0, NULL), ATTEST_OK);
    cr_assert(o == 2.5f && lse == 1.0f);
    attest_plan_destroy(plan);
}

/* 2^61 elements of o: addresses that a caller may promise, more doubles than there can be. */
Test(library, too_little_memory_is_said_and_nothing_written)
{
    struct attest_problem p = forward_part(tiny_problem(1, 1));
    p.seqlen_q = INT64_C(1) << 30, p.num_heads_q = INT64_C(1) << 23, p.head_dim_v = 256;
    p.lse.dtype = ATTEST_ABSENT;
    p.q.seqlen = p.q.head = 0;
    p.o = (struct attest_tensor){ATTEST_FP16, 0, 0, INT64_C(1) << 31, 256};
    static struct {
        float q, k, v[256];
        uint16_t o; /* last: it promises everything after it */
    } memory;
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    a.q = &memory.q, a.k = &memory.k, a.v = memory.v, a.o = &memory.o;
    struct attest_plan *plan = planned(&p);
    const enum attest_status status = attest_run_forward(plan, &a, NULL, 0, NULL);
    attest_plan_destroy(plan);
    cr_assert_eq(status, ATTEST_OUT_OF_MEMORY, "%s", attest_last_error());
    cr_assert(strstr(attest_last_error(), "1073741824 x 8388608 x 256 doubles") != NULL);
    cr_assert_eq(memory.o, 0);
}

/* devices_test.c - kernels through the public calls: which one a plan picks, what it gives, how a fault is said. */
#include <math.h>
#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "kernels/registry.h"
#include "kernels/sim/calls.h"
#include "kernels/sim/sim.h"
#include "lib/plan.h"
#include "lib/testing.h"
#include "reference/bounds.h"

/* Everything at once; delta is computed. In a ragged one dbias is summed over sequences and rows. */
static struct attest_problem kernel_problem(int32_t device, bool ragged)
{
    struct attest_problem p = ragged ? ragged_problem() : whole_problem();
    p.device = device;
    if (ragged) p.dbias.batch = p.dbias.seqlen_q = 0;
    p.delta.dtype = ATTEST_ABSENT;
    return p;
}

static struct attest_plan *plan_of(const struct attest_problem *p)
{
    struct attest_plan *plan;
    cr_assert_eq(attest_plan_create(p, &plan), ATTEST_OK, "%s", attest_last_error());
    return plan;
}

/* ---- shares ---- */

/* Each is a kernel's, by that kernel's recipe, and has room for what none before it has; the last has room for all. The
 * pass is called by their names. Returns how many there are. */
static int expect_shares(const struct attest_plan *plan, enum attest_pass pass)
{
    const struct attest_problem *const p = &plan->problem;
    const struct attest_share *s, *last = NULL;
    char names[MAX_SHARES * 40] = "";
    int count = 0;
    for (; (s = attest_plan_share(plan, pass, count)) != NULL; last = s, ++count) {
        const char *const kernel = pass == ATTEST_FORWARD ? plan->forward[count]->name : plan->backward[count]->name;
        cr_expect_lt(strlen(kernel), 39, "%s", kernel); /* a plan has room for as many such names */
        cr_expect(s->struct_size == sizeof *s && strcmp(s->kernel, kernel) == 0);
        cr_expect(s->recipe == ref_kernel_recipe(kernel) && strcmp(s->recipe->name, kernel) == 0);
        for (int i = 0; i < count; ++i) {
            const struct attest_share *const before = attest_plan_share(plan, pass, i);
            cr_expect(s->most_seqlen_q > before->most_seqlen_q || s->most_seqlen_k > before->most_seqlen_k);
            cr_expect(before->most_seqlen_q < p->seqlen_q || before->most_seqlen_k < p->seqlen_k);
        }
        snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", count > 0 ? "+" : "", kernel);
    }
    cr_assert(count > 0 && count <= MAX_SHARES);
    cr_expect(last->most_seqlen_q >= p->seqlen_q && last->most_seqlen_k >= p->seqlen_k);
    cr_expect_str_eq(attest_plan_kernel(plan, pass), names);
    return count;
}

/* Shares of a problem whose sequences are of up to so many rows and keys. */
static int shares_of_up_to(int32_t dtype, int64_t dim, int64_t dim_v, int64_t longest, bool causal, int major)
{
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_plan *plan;
    p.device = ATTEST_SIM;
    p.batch = 2, p.num_heads_q = p.num_heads_kv = 1, p.seqlen_q = p.seqlen_k = longest;
    p.head_dim = dim, p.head_dim_v = dim_v, p.softmax_scale = 0.125f;
    p.q = p.k = p.dq = p.dk = packed(dtype, longest, 1, dim);
    p.v = p.o = p.dout = p.dv = packed(dtype, longest, 1, dim_v);
    p.lse = packed(ATTEST_FP32, longest, 1, 1);
    p.has_seqused_q = p.has_seqused_k = 1;
    if (causal) p.window_right = 0, p.diag_kind = ATTEST_DIAG_TOP_LEFT;
    cr_assert_eq(attest_plan_create_for(&p, major, &plan), ATTEST_OK, "%s", attest_last_error());
    const int shares = expect_shares(plan, ATTEST_FORWARD) + expect_shares(plan, ATTEST_BACKWARD);
    attest_plan_destroy(plan);
    return shares;
}

Test(devices, a_plan_says_who_has_which_sequences)
{
    static const int64_t dims[][2] = {{32, 32}, {24, 32}, {32, 16}, {64, 64}, {32, 64}, {128, 128}, {256, 256}};
    static const int64_t longest[] = {1, 32, 64, 96, 128, 512, 1000};
    int shares = 0;
    for (int n = 0; n < 2 * 2 * 2 * 7 * 7; ++n)
        shares += shares_of_up_to(n % 2 ? ATTEST_BF16 : ATTEST_FP16, dims[n / 8 % 7][0], dims[n / 8 % 7][1],
                                  longest[n / 56], n / 2 % 2, n / 4 % 2 ? 9 : 8);
    cr_expect_gt(shares, 2 * 2 * 2 * 2 * 7 * 7);
}

Test(devices, a_plan_names_its_kernels)
{
    const struct attest_problem p = kernel_problem(ATTEST_SIM, false);
    struct attest_plan *plan = plan_of(&p);
    size_t forward_bytes, backward_bytes;
    cr_assert_str_eq(attest_plan_kernel(plan, ATTEST_FORWARD), "forward_fp32");
    cr_assert_str_eq(attest_plan_kernel(plan, ATTEST_BACKWARD), "backward_fp32");
    cr_assert_eq(expect_shares(plan, ATTEST_FORWARD), 1);
    cr_assert_eq(expect_shares(plan, ATTEST_BACKWARD), 1);
    cr_assert_eq(attest_plan_workspace(plan, &forward_bytes, &backward_bytes), ATTEST_OK);
    cr_assert_eq(forward_bytes, 0);
    cr_assert_eq(backward_bytes, 512); /* 4 ROWS_Q * HEADS_Q fp32, rounded up */
    attest_plan_destroy(plan);
}

/* ---- few full problems ---- */

/* One sequence of heads whose tiles are full, promised to be aligned. */
static struct attest_problem full_problem(int32_t dtype, int64_t dim, int64_t heads)
{
    enum { ROWS = 128 };
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_tensor rows = packed(dtype, ROWS, heads, dim);
    rows.align = 16;
    p.device = ATTEST_SIM;
    p.batch = 1, p.num_heads_q = p.num_heads_kv = heads, p.seqlen_q = p.seqlen_k = ROWS;
    p.head_dim = p.head_dim_v = dim, p.softmax_scale = 0.125f;
    p.q = p.k = p.v = p.o = p.dout = p.dq = p.dk = p.dv = rows;
    p.lse = packed(ATTEST_FP32, ROWS, heads, 1);
    return p;
}

/* Where the row of a kernel does not take a problem, the sentence is `why`; NULL: it does. A kernel with several rows
 * is the one that has such heads. */
static void expect_full(const struct attest_problem *p, const char *kernel, int64_t dim, const char *why)
{
    const struct backward_kernel *k = backward_kernels;
    char said[256] = "";
    while (strcmp(k->name, kernel) != 0 || (k->reach.full_dims & dim) == 0) ++k;
    const bool takes = kernel_takes(&k->reach, k->most, p, ATTEST_SIM_NUM_SMS, said, sizeof said);
    struct attest_plan *plan = plan_of(p);
    const char *const picked = attest_plan_kernel(plan, ATTEST_BACKWARD);
    cr_expect_eq(takes, why == NULL, "%s: %s", kernel, said);
    cr_expect(why == NULL || strcmp(said, why) == 0, "\"%s\", not \"%s\"", said, why);
    cr_expect_eq(strcmp(picked, kernel) == 0, why == NULL, "%s: %s", picked, why);
    cr_expect_eq(strstr(picked, "latency") == NULL, why != NULL, "%s: %s", picked, why);
    attest_plan_destroy(plan);
}

#define FULL(change)                                           \
    do {                                                       \
        struct attest_problem p = full_problem(dtype, dim, 3); \
        change;                                                \
        expect_full(&p, kernel, dim, NULL);                    \
    } while (0)

#define NOT_FULL(why, change)                                  \
    do {                                                       \
        struct attest_problem p = full_problem(dtype, dim, 3); \
        change;                                                \
        expect_full(&p, kernel, dim, why);                     \
    } while (0)

/* Every condition is broken alone. `dims`: of its heads, in words. */
static void expect_conditions(int32_t dtype, int64_t dim, const char *kernel, const char *dims, int64_t most)
{
    char text[128];
    FULL((void)0);
    FULL(p.o.align = 0);
    FULL(p.q.align = 32);
    FULL(p.batch = 0);
    FULL(p = full_problem(dtype, dim, most));
    NOT_FULL("ragged = 1, but must be 0", (p.ragged = 1, p.total_q = p.total_k = 128));
    NOT_FULL("has_seqused_q = 1, but must be 0", p.has_seqused_q = 1);
    NOT_FULL("has_seqused_k = 1, but must be 0", p.has_seqused_k = 1);
    NOT_FULL("seqlen_q = 127, but must be 128", p.seqlen_q = 127);
    NOT_FULL("seqlen_k = 120, but must be 128", p.seqlen_k = 120);
    NOT_FULL("q.align = 8, but must be at least 16", p.q.align = 8);
    NOT_FULL("k.align = 0, but must be at least 16", p.k.align = 0);
    NOT_FULL("v.align = 0, but must be at least 16", p.v.align = 0);
    NOT_FULL("dout.align = 0, but must be at least 16", p.dout.align = 0);
    NOT_FULL("dq.align = 8, but must be at least 16", p.dq.align = 8);
    NOT_FULL("dk.align = 0, but must be at least 16", p.dk.align = 0);
    NOT_FULL("dv.align = 0, but must be at least 16", p.dv.align = 0);
    snprintf(text, sizeof text, "head_dim = %d, but must be %s", (int)dim - 8, dims);
    NOT_FULL(text, p.head_dim -= 8);
    NOT_FULL(text, p.head_dim = p.head_dim_v -= 8);
    snprintf(text, sizeof text, "head_dim_v = %d, but must be head_dim, %d", (int)dim - 8, (int)dim);
    NOT_FULL(text, p.head_dim_v -= 8);
    snprintf(text, sizeof text,
             "batch times num_heads_q = %d, but must be at most %d, with 132 SMs for %d CTAs each", (int)most + 1,
             (int)most, 132 / (int)most);
    NOT_FULL(text, p = full_problem(dtype, dim, most + 1));
}

/* Its bits are those of the kernel of any problems: the aligned ones of kernels_long.c are asked both ways. */
Test(devices, few_full_problems_have_a_kernel_of_their_own)
{
    for (int32_t dtype = ATTEST_FP16; dtype <= ATTEST_BF16; ++dtype) {
        expect_conditions(dtype, 64, "short_backward_sm90_n128_latency", "64 or 128", 132);
        expect_conditions(dtype, 128, "short_backward_sm90_n128_latency", "64 or 128", 132);
        expect_conditions(dtype, 256, "short_backward_sm90_n128_d256_latency", "256", 33);
    }
    expect_conditions(ATTEST_FP16, 32, "short_backward_sm90_n128_latency", "32", 132);
    const struct attest_problem p = full_problem(ATTEST_BF16, 32, 3);
    struct attest_plan *plan = plan_of(&p);
    cr_expect_str_eq(attest_plan_kernel(plan, ATTEST_BACKWARD), "short_backward_sm90_n128_scaled");
    attest_plan_destroy(plan);
}

Test(devices, an_empty_batch_of_full_problems_is_not_launched)
{
    struct sim_gpu *gpu = sim_gpu_create(&(struct sim_options){.generation = SIM_SM_90});
    for (int64_t dim = 64; dim <= 256; dim *= 2) {
        struct attest_problem p = full_problem(ATTEST_BF16, dim, 3);
        p.batch = 0;
        struct attest_plan *plan = plan_of(&p);
        const struct attest_backward_args nothing = ATTEST_BACKWARD_ARGS_INIT;
        cr_expect(strstr(attest_plan_kernel(plan, ATTEST_BACKWARD), "latency") != NULL);
        cr_expect_eq(attest_run_backward(plan, &nothing, NULL, 0, gpu), ATTEST_OK, "%s", attest_last_error());
        attest_plan_destroy(plan);
    }
    cr_expect_eq(sim_counts(gpu)->launches, 0);
    sim_gpu_destroy(gpu);
}

/* ---- runs ---- */

/* Forward, then backward of its results. The workspace is poison. */
static void run(const struct attest_problem *p, struct buffers *b, struct sim_gpu *gpu)
{
    static _Alignas(256) char workspace[512];
    struct attest_plan *plan = plan_of(p);
    fill_buffers(b);
    memset(workspace, 0xff, sizeof workspace);
    cr_assert_eq(attest_run_forward(plan, &b->args.forward, NULL, 0, gpu), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(attest_run_backward(plan, &b->args, workspace, sizeof workspace, gpu), ATTEST_OK, "%s",
                 attest_last_error());
    attest_plan_destroy(plan);
}

/* Every result lies within the bound of the recipe. */
static void check(const struct attest_problem *p, const struct buffers *b, const struct attest_recipe *forward,
                  const struct attest_recipe *backward)
{
    enum { MOST = ROWS_Q * HEADS_Q * HEAD_DIM };
    static double oracle[REF_NUM_TENSORS][MOST], bound[REF_NUM_TENSORS][MOST];
    const void *const got[] = {[REF_O] = b->o,   [REF_LSE] = b->lse, [REF_DQ] = b->dq,      [REF_DK] = b->dk,
                               [REF_DV] = b->dv, [REF_DBIAS] = b->dbias, [REF_DSINK] = b->dsink};
    const struct ref_forward results = {oracle[REF_O], oracle[REF_LSE]};
    const struct ref_backward gradients = {oracle[REF_DQ],    oracle[REF_DK],    oracle[REF_DV],
                                           oracle[REF_DBIAS], oracle[REF_DSINK], NULL};
    struct ref_bound bounds[REF_NUM_TENSORS] = {{NULL}};
    for (int t = 0; t < REF_NUM_TENSORS; ++t) bounds[t].bound = bound[t];
    cr_assert_eq(ref_forward(p, &b->args.forward, &results, 1), ATTEST_OK);
    cr_assert_eq(ref_backward(p, &b->args, NULL, &gradients, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_forward(p, &b->args.forward, forward, &bounds[REF_O], &bounds[REF_LSE], 1), ATTEST_OK);
    cr_assert_eq(ref_bound_backward(p, &b->args, backward, bounds, 1), ATTEST_OK);
    for (enum ref_tensor t = REF_O; t < REF_NUM_TENSORS; ++t) {
        struct ref_report r;
        ref_judge(p, &b->args.forward, t, got[t], oracle[t], &bounds[t], 0, &r);
        cr_assert_eq(r.verdict, REF_PASS, "%s of %s is %g, not %g, with a bound of %g", ref_tensor_names[t],
                     t <= REF_LSE ? forward->name : backward->name, r.use_got, r.use_want, r.use_bound);
    }
}

static void compare_devices(bool ragged)
{
    static struct buffers want, got, again;
    const struct sim_options options = {.generation = SIM_SM_80, .async = SIM_ASYNC_RANDOM, .seed = 7, .workers = 2};
    const struct attest_problem on_reference = kernel_problem(ATTEST_REFERENCE, ragged);
    const struct attest_problem on_sim = kernel_problem(ATTEST_SIM, ragged);
    struct sim_gpu *gpu = sim_gpu_create(&options);
    run(&on_reference, &want, NULL);
    run(&on_sim, &got, NULL);
    run(&on_sim, &again, gpu);
    cr_assert_eq(memcmp(&got, &again, offsetof(struct buffers, args)), 0);
    cr_assert_gt(sim_counts(gpu)->launches, 0);
    sim_gpu_destroy(gpu);
    check(&on_reference, &want, ref_recipe("fp32"), ref_recipe("fp32")); /* the oracle's own, rounded once */
    check(&on_reference, &got, ref_kernel_recipe("forward_fp32"), ref_kernel_recipe("backward_fp32"));
}

/* Threads share a plan; each run has a simulated GPU, buffers and a workspace of its own. */
struct worker {
    const struct attest_plan *plan;
    struct buffers buffers;
    _Alignas(256) char workspace[512];
    bool ok;
};

static void *work(void *argument)
{
    struct worker *const w = argument;
    w->ok = attest_run_forward(w->plan, &w->buffers.args.forward, NULL, 0, NULL) == ATTEST_OK &&
            attest_run_backward(w->plan, &w->buffers.args, w->workspace, sizeof w->workspace, NULL) == ATTEST_OK;
    return NULL;
}

Test(devices, threads_share_a_plan)
{
    enum { THREADS = 4 };
    static struct worker workers[THREADS];
    const struct attest_problem p = kernel_problem(ATTEST_SIM, false);
    struct attest_plan *const plan = plan_of(&p);
    pthread_t threads[THREADS];
    for (int t = 0; t < THREADS; ++t) {
        fill_buffers(&workers[t].buffers);
        workers[t].plan = plan;
        cr_assert_eq(pthread_create(&threads[t], NULL, work, &workers[t]), 0);
    }
    for (int t = 0; t < THREADS; ++t) {
        cr_assert_eq(pthread_join(threads[t], NULL), 0);
        cr_assert(workers[t].ok);
        cr_assert_eq(memcmp(&workers[t].buffers, &workers[0].buffers, offsetof(struct buffers, args)), 0);
    }
    attest_plan_destroy(plan);
}

Test(devices, sim_gives_what_the_reference_gives) { compare_devices(false); }
Test(devices, sim_gives_what_the_reference_gives_ragged) { compare_devices(true); }

/* ---- numbers that are not finite ---- */

static void runs(const struct attest_plan *plan, struct buffers *b)
{
    static _Alignas(256) char workspace[512];
    cr_assert_eq(attest_run_forward(plan, &b->args.forward, NULL, 0, NULL), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(attest_run_backward(plan, &b->args, workspace, sizeof workspace, NULL), ATTEST_OK, "%s",
                 attest_last_error());
}

/* Every NaN of `want` is one of `got`, and no other is. Returns how many. */
static int compare_nans(const char *name, const float *got, const float *want, size_t count, const char *where, float x)
{
    int nans = 0;
    for (size_t i = 0; i < count; ++i) {
        cr_assert_eq(isnan(got[i]), isnan(want[i]), "%g in %s: %s[%zu] is %g, not %g", (double)x, where, name, i,
                     (double)got[i], (double)want[i]);
        nans += isnan(want[i]) != 0;
    }
    return nans;
}

#define COMPARE_NANS(array) \
    compare_nans(#array, got.array, want.array, sizeof got.array / sizeof *got.array, inputs[n].name, numbers[x])

/* A NaN or an infinity is felt by what sees it, in results and gradients, and by nothing else. */
Test(devices, numbers_that_are_not_finite)
{
    static const float numbers[] = {NAN, INFINITY, -INFINITY};
    static const struct {
        const char *name;
        size_t offset, count;
    } inputs[] = {{"q", offsetof(struct buffers, q), ROWS_Q * HEADS_Q * HEAD_DIM},
                  {"k", offsetof(struct buffers, k), ROWS_K * HEADS_KV * HEAD_DIM},
                  {"v", offsetof(struct buffers, v), ROWS_K * HEADS_KV * HEAD_DIM_V},
                  {"bias", offsetof(struct buffers, bias), SCORES},
                  {"dout", offsetof(struct buffers, dout), ROWS_Q * HEADS_Q * HEAD_DIM_V},
                  {"dlse", offsetof(struct buffers, dlse), ROWS_Q * HEADS_Q}};
    static struct buffers want, got;
    struct attest_problem on_reference = kernel_problem(ATTEST_REFERENCE, false);
    on_reference.softcap = 0; /* it would take infinite scores to finite ones */
    struct attest_problem on_sim = on_reference;
    on_sim.device = ATTEST_SIM;
    struct attest_plan *reference = plan_of(&on_reference), *sim = plan_of(&on_sim);
    int nans = 0;
    for (size_t n = 0; n < sizeof inputs / sizeof *inputs; ++n)
        for (size_t x = 0; x < sizeof numbers / sizeof *numbers; ++x)
            for (size_t at = n; at < inputs[n].count; at += inputs[n].count / 5) {
                fill_buffers(&want), fill_buffers(&got);
                memcpy((char *)&want + inputs[n].offset + at * sizeof(float), &numbers[x], sizeof(float));
                memcpy((char *)&got + inputs[n].offset + at * sizeof(float), &numbers[x], sizeof(float));
                runs(reference, &want), runs(sim, &got);
                nans += COMPARE_NANS(o) + COMPARE_NANS(lse) + COMPARE_NANS(dq) + COMPARE_NANS(dk) + COMPARE_NANS(dv) +
                        COMPARE_NANS(dbias) + COMPARE_NANS(dsink);
            }
    cr_expect_gt(nans, 500);
    attest_plan_destroy(reference);
    attest_plan_destroy(sim);
}

/* ---- faults ---- */

/* A kernel that forgets to launch. */
static int launch_nothing(const struct forward_params *params, void *stream)
{
    (void)params, (void)stream;
    return 0;
}

Test(devices, a_finding_is_a_device_error)
{
    static struct buffers b;
    const struct forward_kernel lazy = {.name = "lazy", .sim = launch_nothing};
    struct attest_plan plan = {
        .problem = kernel_problem(ATTEST_SIM, false), .forward = {&lazy}, .forward_pass = {.num_shares = 1}};
    attest_find_reach(&plan.problem, ATTEST_FORWARD, &plan.forward_reach);
    fill_buffers(&b);
    cr_assert_eq(attest_run_forward(&plan, &b.args.forward, NULL, 0, NULL), ATTEST_DEVICE_ERROR);
    cr_assert(strlen(attest_last_error()) > 20, "%s", attest_last_error());
}

/* ---- q, k and v in one buffer ---- */

enum { PACKED_ROWS = 4, PACKED_DIM = 8 };

static void read_float(const void *args)
{
    float number;
    sim_memcpy(&number, *(const float *const *)args, sizeof number);
}

/* Reads a number of q, from one thread. */
static int launch_read(const struct forward_params *p, int64_t at, struct sim_gpu *gpu)
{
    const float *const number = (const float *)p->q.data + at;
    const struct sim_launch launch = {.kernel = "read", .grid = {1, 1, 1}, .block = {1, 1, 1}, .cluster = {1, 1, 1},
                                      .max_threads = 1, .body = read_float, .args = &number,
                                      .args_bytes = sizeof number};
    return sim_launch(gpu, &launch);
}

static int read_last_of_q(const struct forward_params *p, void *gpu)
{
    return launch_read(p, (PACKED_ROWS - 1) * 3 * PACKED_DIM + PACKED_DIM - 1, gpu);
}

static int read_past_q(const struct forward_params *p, void *gpu) { return launch_read(p, PACKED_DIM, gpu); }

static void expect_of_packed(forward_launcher *read, const char *text)
{
    static float qkv[PACKED_ROWS * 3 * PACKED_DIM], o[PACKED_ROWS * PACKED_DIM], lse[PACKED_ROWS];
    const struct forward_kernel kernel = {.name = "read", .sim = read};
    struct attest_plan plan = {.forward = {&kernel}, .forward_pass = {.num_shares = 1}};
    struct attest_problem *const p = &plan.problem;
    *p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    p->device = ATTEST_SIM;
    p->batch = p->num_heads_q = p->num_heads_kv = 1, p->seqlen_q = p->seqlen_k = PACKED_ROWS;
    p->head_dim = p->head_dim_v = PACKED_DIM;
    p->q = p->k = p->v = (struct attest_tensor){ATTEST_FP32, 0, sizeof qkv / sizeof *qkv, 3 * PACKED_DIM, PACKED_DIM};
    p->o = (struct attest_tensor){ATTEST_FP32, 0, PACKED_ROWS * PACKED_DIM, PACKED_DIM, PACKED_DIM};
    p->lse = (struct attest_tensor){ATTEST_FP32, 0, PACKED_ROWS, 1, 1};
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    a.q = qkv, a.k = qkv + PACKED_DIM, a.v = qkv + 2 * PACKED_DIM, a.o = o, a.lse = lse;
    attest_find_reach(p, ATTEST_FORWARD, &plan.forward_reach);
    cr_assert_eq(attest_run_forward(&plan, &a, NULL, 0, NULL), ATTEST_DEVICE_ERROR, "%s", attest_last_error());
    cr_assert(strstr(attest_last_error(), text), "%s", attest_last_error());
}

/* What follows a row of q is no longer q, though k's row lies there. */
Test(devices, packed_tensors_are_watched_apart)
{
    expect_of_packed(read_last_of_q, "not written");
    expect_of_packed(read_past_q, "out of bounds");
}

/* ---- faults of the backward pass ---- */

static int launch_nothing_backward(const struct backward_params *params, void *stream)
{
    (void)params, (void)stream;
    return 0;
}

/* Of a plan whose backward pass needs 256 bytes. */
static void run_lazy_backward(struct buffers *b, void *workspace, size_t bytes, enum attest_status status,
                              const char *text)
{
    const struct backward_kernel lazy = {.name = "lazy", .sim = launch_nothing_backward};
    struct attest_plan plan = {.problem = whole_problem(),
                               .backward = {&lazy},
                               .backward_pass = {.num_shares = 1, .kernel = "lazy", .workspace_bytes = 256}};
    plan.problem.device = ATTEST_SIM;
    attest_find_reach(&plan.problem, ATTEST_BACKWARD, &plan.backward_reach);
    cr_assert_eq(attest_run_backward(&plan, &b->args, workspace, bytes, NULL), status, "%s", attest_last_error());
    cr_assert(strstr(attest_last_error(), text) != NULL, "\"%s\" is not in \"%s\"", text, attest_last_error());
}

Test(devices, a_workspace_is_checked)
{
    static struct buffers b;
    static _Alignas(256) char workspace[512];
    fill_buffers(&b);
    run_lazy_backward(&b, workspace, 255, ATTEST_INVALID, "workspace_bytes = 255, but must be at least 256");
    run_lazy_backward(&b, NULL, 256, ATTEST_INVALID, "workspace = NULL, but must point to workspace_bytes = 256 bytes");
    run_lazy_backward(&b, workspace + 16, 496, ATTEST_INVALID, ", but must be a multiple of 256");
    b.args.dq = workspace + 252;
    run_lazy_backward(&b, workspace, 256, ATTEST_INVALID, "but must not overlap");
    b.args.dq = b.dq;
    run_lazy_backward(&b, workspace, 256, ATTEST_DEVICE_ERROR, "dq");
}

/* Host-readable lengths are checked on the simulated GPU, too. */
Test(devices, lengths_are_checked)
{
    static struct buffers b;
    const struct attest_problem p = kernel_problem(ATTEST_SIM, false);
    struct attest_plan *plan = plan_of(&p);
    fill_buffers(&b);
    b.seqused_k[1] = SEQLEN_K + 1;
    cr_assert_eq(attest_run_forward(plan, &b.args.forward, NULL, 0, NULL), ATTEST_INVALID);
    attest_plan_destroy(plan);
}

/* ---- merge ---- */

enum { STATES = 3, ROWS = 7, DIM = 6 };

struct states {
    float o[STATES][ROWS * DIM], lse[STATES][ROWS], merged_o[ROWS * DIM], merged_lse[ROWS];
    const float *o_of[STATES], *lse_of[STATES];
    struct attest_merge_args args;
};

static void fill_states(struct states *s, int32_t device)
{
    memset(s, 0xff, sizeof *s);
    for (int a = 0; a < STATES; ++a) {
        for (int i = 0; i < ROWS * DIM; ++i) s->o[a][i] = 0.25f * (float)((i * 7 + a) % 11 - 5);
        for (int i = 0; i < ROWS; ++i) s->lse[a][i] = i % 4 == a ? -INFINITY : 0.5f * (float)(i - 2 * a);
        s->o_of[a] = s->o[a], s->lse_of[a] = s->lse[a];
    }
    s->args = (struct attest_merge_args)ATTEST_MERGE_ARGS_INIT;
    s->args.device = device;
    s->args.num_states = STATES, s->args.rows = ROWS, s->args.head_dim_v = DIM;
    s->args.o_states = s->o_of, s->args.lse_states = s->lse_of;
    s->args.o = s->merged_o, s->args.lse = s->merged_lse;
}

/* Within the bound of a merge in fp32, which is zero where a row has one state. */
static void check_merge(const struct states *s)
{
    double o_of[STATES][ROWS * DIM], lse_of[STATES][ROWS], o[ROWS * DIM], lse[ROWS];
    double o_bound[ROWS * DIM], lse_bound[ROWS];
    const struct attest_recipe *recipe = ref_kernel_recipe("merge");
    const double *o_states[STATES], *lse_states[STATES];
    for (int a = 0; a < STATES; ++a) {
        for (int i = 0; i < ROWS * DIM; ++i) o_of[a][i] = s->o[a][i];
        for (int i = 0; i < ROWS; ++i) lse_of[a][i] = s->lse[a][i];
        o_states[a] = o_of[a], lse_states[a] = lse_of[a];
    }
    ref_merge(STATES, ROWS, DIM, o_states, lse_states, o, lse);
    cr_assert_eq(ref_bound_merge(STATES, ROWS, DIM, o_states, lse_states, recipe, ATTEST_FP32, o_bound, lse_bound),
                 ATTEST_OK);
    for (int i = 0; i < ROWS * DIM; ++i)
        cr_assert(fabs(s->merged_o[i] - o[i]) <= o_bound[i], "o[%d] = %g, not %g", i, (double)s->merged_o[i], o[i]);
    for (int i = 0; i < ROWS; ++i)
        cr_assert(fabs(s->merged_lse[i] - lse[i]) <= lse_bound[i], "lse[%d] = %g, not %g", i,
                  (double)s->merged_lse[i], lse[i]);
}

Test(devices, sim_merges_within_its_bound)
{
    static struct states got;
    fill_states(&got, ATTEST_SIM);
    cr_assert_eq(attest_merge_states(&got.args, NULL), ATTEST_OK, "%s", attest_last_error());
    check_merge(&got);
}

static void refused(const struct attest_merge_args *args, enum attest_status status, const char *text)
{
    cr_assert_eq(attest_merge_states(args, NULL), status, "%s: %s", text, attest_last_error());
    cr_assert(strstr(attest_last_error(), text) != NULL, "\"%s\" is not in \"%s\"", text, attest_last_error());
}

#define REFUSED(status, text, change)           \
    do {                                        \
        fill_states(&s, ATTEST_SIM);            \
        struct attest_merge_args *a = &s.args;  \
        change;                                 \
        refused(a, status, text);               \
    } while (0)

Test(devices, a_bad_merge_is_refused)
{
    static struct states s;
    REFUSED(ATTEST_INVALID, "args.struct_size = 4", a->struct_size = 4);
    REFUSED(ATTEST_INVALID, "device = 3, but must be 0 .. 2", a->device = 3);
    REFUSED(ATTEST_INVALID, "device_ordinal = 1, but must be 0", a->device_ordinal = 1);
    REFUSED(ATTEST_INVALID, "device_ordinal = -1, but must be >= 0", (a->device = ATTEST_CUDA, a->device_ordinal = -1));
    REFUSED(ATTEST_INVALID, "o_dtype = 9, but must be 0, fp32, fp16 or bf16", a->o_dtype = 9);
    REFUSED(ATTEST_INVALID, "rows = -1", a->rows = -1);
    REFUSED(ATTEST_INVALID, "o_states[1] = (nil), but must point", s.o_of[1] = NULL);
    static const float *many[129];
    for (int i = 0; i < 129; ++i) many[i] = s.lse[0];
    REFUSED(ATTEST_UNSUPPORTED, "num_states = 129, but must be at most 128",
            (a->num_states = 129, a->head_dim_v = 1, a->o_states = many, a->lse_states = many));
    REFUSED(ATTEST_UNSUPPORTED, "rows = 8589934592, but must be at most 8589934588",
            (a->num_states = 0, a->rows = INT64_C(1) << 33, a->lse = (float *)(INT64_C(1) << 46)));
    cr_assert_eq(attest_merge_states(NULL, NULL), ATTEST_INVALID);
}

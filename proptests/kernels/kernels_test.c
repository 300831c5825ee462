/* kernels_test.c - every property that kernels can have, on the simulated GPU: through the library, with the tensor
 * cores of both generations, and in the build with polynomials. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/kernels/kernels.h"

/* Forward and backward cases of one test; its cases are its own. Many small ones, whose scores times head_dim are at
 * most WORK; and some of several tiles even where heads are wide. With ATTEST_ASK_ALL in the environment MORE times as
 * many small ones, and each long case in each dtype: otherwise half of them, as kernels of 16 bits are one template. */
enum { SEED = 11, CASES = 500, BACKWARD_CASES = 200, WORK = 1 << 13, MORE = 3, FEWER = 3, FAR = 1 << 20 };
enum { LARGE_CASES = 80, LARGE_BACKWARD_CASES = 30, LARGE_WORK = 1 << 18 };

static bool asks_all(void) { return getenv("ATTEST_ASK_ALL") != NULL; }

/* Under the address sanitizer, and while Bazel counts lines, the simulated GPU is slow. */
#ifdef __SANITIZE_ADDRESS__
static bool is_slow(void) { return true; }
#else
static bool is_slow(void) { return getenv("COVERAGE_DIR") != NULL; }
#endif

/* Whether to ask a test's cases in that dtype. Where it is slow not in fp16, whose kernels have the lines of bf16's. */
static bool asks(int32_t dtype) { return !is_slow() || dtype != ATTEST_FP16; }

/* Half of the cases by the kernels of any length: short sequences have kernels of their own, and most cases are
 * short. */
static void run(struct kernel_implementation *kernels, bool backward, int part, int64_t cases, int64_t work)
{
    static struct kernel_tally tally;
    const int64_t more = asks_all() && work == WORK ? cases * MORE : cases;
    struct kernel_run run = {.self = kernels,
                             .backward = backward,
                             .cases = (is_slow() ? cases / FEWER : more) / 2,
                             .first_case = (int64_t)part * FAR,
                             .seed = SEED,
                             .work = work};
    kernels_run(&run, &tally, stdout);
    kernels->is_general = true;
    run.first_case += FAR / 2;
    kernels_run(&run, &tally, stdout);
    cr_expect(kernels_report(&tally, kernels->implementation.name, stdout));
}

static void run_library(enum sim_generation generation, bool backward, int part)
{
    struct kernel_implementation kernels =
        kernels_on_sim(generation == SIM_SM_80 ? "sm_80" : "sm_90", generation, NULL);
    run(&kernels, backward, part, backward ? BACKWARD_CASES : CASES, WORK);
}

static struct kernel_implementation polynomials(enum sim_generation generation)
{
    const struct kernel_launchers launchers = kernels_sim_poly();
    return kernels_on_sim(generation == SIM_SM_80 ? "sm_80_poly" : "sm_90_poly", generation, &launchers);
}

Test(kernels, forward_sm_80) { run_library(SIM_SM_80, false, 0); }
Test(kernels, forward_sm_90) { run_library(SIM_SM_90, false, 1); }
Test(kernels, backward_sm_80) { run_library(SIM_SM_80, true, 2); }
Test(kernels, backward_sm_90) { run_library(SIM_SM_90, true, 3); }

Test(kernels, forward_with_polynomials)
{
    struct kernel_implementation kernels = polynomials(SIM_SM_90);
    run(&kernels, false, 4, CASES, WORK);
}

Test(kernels, backward_with_polynomials)
{
    struct kernel_implementation kernels = polynomials(SIM_SM_90);
    run(&kernels, true, 5, BACKWARD_CASES, WORK);
}

Test(kernels, forward_of_many_tiles)
{
    struct kernel_implementation kernels = kernels_on_sim("sm_90", SIM_SM_90, NULL);
    run(&kernels, false, 6, LARGE_CASES, LARGE_WORK);
}

Test(kernels, backward_of_many_tiles)
{
    struct kernel_implementation kernels = kernels_on_sim("sm_90", SIM_SM_90, NULL);
    run(&kernels, true, 7, LARGE_BACKWARD_CASES, LARGE_WORK);
}

Test(kernels, all_have_polynomials)
{
    const struct kernel_launchers launchers = kernels_sim_poly();
    for (int i = 0; forward_kernels[i].name != NULL; ++i)
        cr_expect_neq(launchers.forward[i], NULL, "%s", forward_kernels[i].name);
    for (int i = 0; backward_kernels[i].name != NULL; ++i)
        cr_expect_neq(launchers.backward[i], NULL, "%s", backward_kernels[i].name);
    cr_expect(launchers.merge != NULL && launchers.merge_backward != NULL);
}

Test(kernels, corpus)
{
    struct kernel_implementation kernels = kernels_on_sim("sm_90", SIM_SM_90, NULL);
    int replayed;
    cr_expect_eq(kernels_corpus("proptests/corpus.txt", &kernels.implementation, NULL, &replayed, stdout), 0);
    printf("%d lines of the corpus replayed on the simulated GPU\n", replayed);
    cr_expect_geq(replayed, 20);
}

Test(kernels, hold_in_corners)
{
    static struct prop_context context;
    static struct kernels_verdicts verdicts;
    struct kernel_implementation library = kernels_on_sim("sm_90", SIM_SM_90, NULL);
    for (int32_t dtype = ATTEST_FP32; dtype <= ATTEST_BF16; ++dtype)
        cr_expect_eq(kernels_corners(&library.implementation, dtype, &verdicts, &context), TRIAL_PASSES, "%s",
                     context.message);
    cr_expect(kernels_report_verdicts(&verdicts, "corners", stdout));
}

Test(kernels, hold_for_large_rows)
{
    static struct prop_context context;
    static struct kernels_verdicts verdicts;
    static const enum sim_generation generations[] = {SIM_SM_80, SIM_SM_90};
    for (int n = 0; n < 2; ++n) {
        struct kernel_implementation library = kernels_on_sim("library", generations[n], NULL);
        for (int32_t dtype = ATTEST_FP32; dtype <= ATTEST_BF16; ++dtype)
            if (asks(dtype) && (n == 0 || dtype != ATTEST_FP32)) /* kernels for fp32 are those of the first */
                cr_expect_eq(kernels_large(&library.implementation, dtype, &verdicts, &context), TRIAL_PASSES, "%s",
                             context.message);
    }
    cr_expect(kernels_report_verdicts(&verdicts, "corners of large rows", stdout));
}

/* Problems alone in which kernels for short sequences have a part. */
static void ask_short_ones(struct kernel_implementation *kernels)
{
    const struct forward_kernel *const forward = forward_kernels;
    const struct backward_kernel *const backward = backward_kernels;
    for (int i = 0; forward[i].name != NULL; ++i)
        if (!kernels_any_length(forward[i].most)) kernels->launchers.forward[i] = forward[i].sim;
    for (int i = 0; backward[i].name != NULL; ++i)
        if (!kernels_any_length(backward[i].most)) kernels->launchers.backward[i] = backward[i].sim;
    kernels->only_replaced = true;
}

/* Holds what cases of several tiles have been asked of kernels. */
struct long_run {
    struct prop_context context;
    struct kernels_verdicts verdicts;
};

/* Each case in fp32 and in one of the formats of 16 bits, unless all are to be asked. */
static void run_long(struct long_run *run, const struct kernel_implementation *kernels, int32_t dtype)
{
    const bool in_turns = !asks_all() && (is_slow() ? kernels->is_general : dtype != ATTEST_FP32);
    const struct kernels_long_asked asked = {
        .dtype = dtype, .every = in_turns ? 2 : 1, .from = in_turns && dtype == ATTEST_BF16};
    for (int backward = 0; backward < 2 && asks(dtype); ++backward)
        cr_expect_eq(kernels_long(&kernels->implementation, backward, &asked, &run->verdicts, &run->context),
                     TRIAL_PASSES, "%s", run->context.message);
}

/* Returns whether each of the cases was answered at least once. */
static bool report_long(const struct long_run *run)
{
    return kernels_report_verdicts(&run->verdicts, "cases of several tiles", stdout);
}

/* A test for each dtype, since together they would take longer than all others. */
static void run_general(int32_t dtype)
{
    static struct long_run run;
    struct kernel_implementation library = kernels_on_sim("sm_80", SIM_SM_80, NULL);
    library.is_general = true;
    run_long(&run, &library, dtype);
    const bool all_answered = report_long(&run);
    cr_expect(all_answered || is_slow());
}

Test(kernels, hold_in_several_tiles_fp32) { run_general(ATTEST_FP32); }
Test(kernels, hold_in_several_tiles_fp16) { run_general(ATTEST_FP16); }
Test(kernels, hold_in_several_tiles_bf16) { run_general(ATTEST_BF16); }

/* Longer ones are not theirs. */
Test(kernels, hold_in_several_tiles_of_short_ones)
{
    static struct long_run run;
    struct kernel_implementation library = kernels_on_sim("sm_80", SIM_SM_80, NULL);
    ask_short_ones(&library);
    for (int32_t dtype = ATTEST_FP16; dtype <= ATTEST_BF16; ++dtype) run_long(&run, &library, dtype);
    report_long(&run);
}

/* Likewise, a test for each dtype. */
static bool hold_on_hopper(int32_t dtype)
{
    static struct long_run run;
    struct kernel_implementation library = kernels_on_sim("sm_90", SIM_SM_90, NULL);
    run_long(&run, &library, dtype);
    return report_long(&run);
}

Test(kernels, hold_in_several_tiles_on_hopper_fp16) { cr_expect(hold_on_hopper(ATTEST_FP16)); }
Test(kernels, hold_in_several_tiles_on_hopper_bf16) { cr_expect(hold_on_hopper(ATTEST_BF16)); }

/* Traffic of one head of packed fp32 rows: q once for each 64 keys, k and v once for each 32 queries; no bank
 * conflicts. */
Test(kernels, move_what_their_tiles_say)
{
    enum { SEQLEN = 128, DIM = 64, ELEMENTS = SEQLEN * DIM, TILE_Q = 32, TILE_K = 64 };
    static float q[ELEMENTS], k[ELEMENTS], v[ELEMENTS], o[ELEMENTS], lse[SEQLEN];
    const struct sim_options options = {.generation = SIM_SM_90, .workers = 1, .counting = true};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    struct attest_plan *plan;
    p.device = ATTEST_SIM;
    p.batch = p.num_heads_q = p.num_heads_kv = 1, p.seqlen_q = p.seqlen_k = SEQLEN, p.head_dim = p.head_dim_v = DIM;
    p.q = p.k = p.v = p.o = (struct attest_tensor){ATTEST_FP32, 0, ELEMENTS, DIM, DIM};
    p.lse = (struct attest_tensor){ATTEST_FP32, 0, SEQLEN, 1, SEQLEN};
    p.softmax_scale = 0.125f;
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse;
    cr_assert_eq(attest_plan_create(&p, &plan), ATTEST_OK);
    cr_assert_eq(attest_run_forward(plan, &a, NULL, 0, gpu), ATTEST_OK, "%s", attest_last_error());
    const struct sim_counts *counts = sim_counts(gpu);
    cr_expect_eq(counts->global_read_bytes, SEQLEN / TILE_K * sizeof q + SEQLEN / TILE_Q * (sizeof k + sizeof v));
    cr_expect_eq(counts->global_read_sectors, counts->global_read_bytes / 32);
    cr_expect_eq(counts->global_write_bytes, sizeof o + sizeof lse);
    cr_expect_eq(counts->shared_bank_conflicts, 0);
    attest_plan_destroy(plan);
    sim_gpu_destroy(gpu);
}

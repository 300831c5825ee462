/* kernels_test.c - every property that kernels can have, on the simulated GPU: through the library, and in the build
 * with polynomials. */
#include <stdio.h>
#include <stdlib.h>

#include <criterion/criterion.h>

#include "kernels/sim/sim.h"
#include "proptests/kernels.h"

enum { SEED = 11, WORK = 1 << 13 };

enum { CASES = 2000, POLYNOMIAL_CASES = 1000, FEWER = 10 };

/* Under the address sanitizer, and while Bazel counts lines, the simulated GPU is slow. */
#ifdef __SANITIZE_ADDRESS__
static bool is_slow(void) { return true; }
#else
static bool is_slow(void) { return getenv("COVERAGE_DIR") != NULL; }
#endif

static void run(const struct kernel_implementation *kernels, int64_t cases)
{
    static struct kernel_tally tally;
    const struct kernel_run run = {.self = &kernels->implementation,
                                   .cases = is_slow() ? cases / FEWER : cases,
                                   .seed = SEED,
                                   .work = WORK};
    kernels_run(&run, &tally, stdout);
    cr_expect(kernels_report(&tally, run.self, stdout));
}

Test(kernels, the_librarys)
{
    const struct kernel_implementation library = kernels_on_sim("sim", NULL, NULL);
    run(&library, CASES);
}

Test(kernels, with_polynomials)
{
    struct kernel_implementation polynomial = kernels_on_sim("sim_poly", forward_fp32_sim_poly, merge_sim_poly);
    polynomial.merge_backward = merge_backward_sim_poly;
    run(&polynomial, POLYNOMIAL_CASES);
}

Test(kernels, hold_in_corners)
{
    static struct prop_context context;
    const struct kernel_implementation library = kernels_on_sim("sim", NULL, NULL);
    cr_assert_eq(kernels_corners(&library.implementation, &context), TRIAL_PASSES, "%s", context.message);
}

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

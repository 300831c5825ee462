/* functions_test.c - the portable functions keep what functions.h states, over a part of fp32 with both ends of every
 * binade, and give the bits that they give everywhere; the simulator's instructions keep the manual's limits. All of
 * fp32: bazel run //kernels/device:functions_probe -- --host. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>
#include <mpfr.h>

#include "kernels/device/functions_check.h"
#include "kernels/device/probes/functions_probe.h"
#include "kernels/sim/sim.h"

enum { BINADES = 512, BINADE = 1 << 23, PIECES = 32, PIECE = 4096, EDGE = 4096 };

/* Both ends of every binade of either sign, and pieces in between. */
static struct function_errors errors_of(enum function form)
{
    struct function_errors e = {0};
    for (uint32_t b = 0; b < BINADES; ++b) {
        const uint32_t first = b * BINADE;
        function_check(form, first, EDGE, NULL, 1, &e);
        function_check(form, first + BINADE - EDGE, EDGE, NULL, 1, &e);
        for (uint32_t p = 0; p < PIECES; ++p)
            function_check(form, first + EDGE + p * (BINADE / PIECES) + b * 499 % 250000, PIECE, NULL, 1, &e);
    }
    return e;
}

/* `worst`: where, of all fp32, the most neighbours are passed. */
static void check_form(enum function form, uint32_t worst, uint64_t hash)
{
    struct function_errors e = errors_of(form);
    const struct function_form *f = &function_forms[form];
    cr_expect_eq(e.hash, hash, "%s has other bits: %016llx", f->name, (unsigned long long)e.hash);
    function_check(form, worst - PIECE, 2 * PIECE, NULL, 1, &e);
    printf("%-14s %9llu inputs: relative 2^%.3f at %08x, %.4f distances of neighbours at %08x\n", f->name,
           (unsigned long long)e.count, log2(e.relative.size), e.relative.at, e.ulps.size, e.ulps.at);
    fflush(stdout);
    cr_expect(function_holds(form, &e), "%s: %llu wrong, the first at %08x", f->name, (unsigned long long)e.wrong,
              e.wrong_at);
    cr_expect(e.ulps.size > f->ulps - 0.01, "%s is better than it says: not the worst input", f->name);
}

/* The same bits on every machine. */
Test(functions, exp2) { check_form(FUNCTION_EXP2_PORTABLE, 0xc2fcfe35, UINT64_C(0xe75a23d78243ee78)); }
Test(functions, log2) { check_form(FUNCTION_LOG2_PORTABLE, 0x3f33fee5, UINT64_C(0x4a9243e0aa5a7920)); }
Test(functions, reciprocal) { check_form(FUNCTION_RCP_PORTABLE, 0x00fc3237, UINT64_C(0x6112bc0a91cfd832)); }
Test(functions, tanh) { check_form(FUNCTION_TANH_PORTABLE, 0x3f064595, UINT64_C(0x0b71ea74f359921b)); }

Test(functions, a_bit_is_seen)
{
    enum { COUNT = 1000 };
    float results[COUNT + 1];
    const uint32_t first = 0x3f000000;
    struct function_errors e = {0}, wrong = {0}, far = {0};
    function_values(FUNCTION_EXP2_PORTABLE, first - 1, COUNT + 1, results);
    function_check(FUNCTION_EXP2_PORTABLE, first, COUNT, results + 1, 1, &e);
    cr_expect(function_holds(FUNCTION_EXP2_PORTABLE, &e));
    results[701] = nextafterf(results[701], 0);
    function_check(FUNCTION_EXP2_PORTABLE, first, COUNT, results + 1, 2, &wrong);
    cr_expect(wrong.different == 1 && wrong.different_at == first + 700 && wrong.hash != e.hash);
    cr_expect(!function_holds(FUNCTION_EXP2_PORTABLE, &wrong));
    results[701] *= 1 - 0x1p-21f; /* as an instruction it may be a bit off, not four */
    function_check(FUNCTION_EX2_APPROX, first, COUNT, results + 1, 1, &far);
    cr_expect(!function_holds(FUNCTION_EX2_APPROX, &far) && far.relative.at == first + 700 && far.back == 1);
    results[701] = NAN;
    far = (struct function_errors){0};
    function_check(FUNCTION_EX2_APPROX, first, COUNT, results + 1, 1, &far);
    cr_expect(!function_holds(FUNCTION_EX2_APPROX, &far) && far.wrong == 1 && far.wrong_at == first + 700);
}

static float one_value(enum function form, float x)
{
    uint32_t bits;
    float y;
    memcpy(&bits, &x, sizeof bits);
    function_values(form, bits, 1, &y);
    return y;
}

Test(functions, exact_values)
{
    for (int n = -149; n <= 127; ++n) {
        cr_expect_eq(one_value(FUNCTION_EXP2_PORTABLE, (float)n), ldexpf(1, n), "exp2(%d)", n);
        cr_expect_eq(one_value(FUNCTION_LOG2_PORTABLE, ldexpf(1, n)), (float)n, "log2(2^%d)", n);
    }
    cr_expect_eq(one_value(FUNCTION_EXP2_PORTABLE, 0x1p-149f), 1);
    cr_expect_eq(one_value(FUNCTION_EXP2_PORTABLE, -INFINITY), 0);
    cr_expect_eq(one_value(FUNCTION_TANH_PORTABLE, 0x1p-149f), 0x1p-149f);
    cr_expect_eq(one_value(FUNCTION_TANH_PORTABLE, -100), -1);
}

/* ---- what the errors above are measured against ---- */

typedef int exact_function(mpfr_t result, const mpfr_t x, mpfr_rnd_t rounding);

static double largest_error(double (*f)(double), exact_function *exact, uint32_t first, uint32_t last)
{
    enum { SAMPLES = 1 << 17 };
    double worst = 0;
    mpfr_t want, error;
    mpfr_inits2(120, want, error, (mpfr_ptr)0);
    for (uint32_t i = 0; i < SAMPLES; ++i) {
        const uint32_t bits = first + (uint32_t)((uint64_t)(last - first) * (i * UINT32_C(2654435761)) >> 32);
        float x;
        memcpy(&x, &bits, sizeof x);
        mpfr_set_flt(want, x, MPFR_RNDN);
        exact(want, want, MPFR_RNDN);
        mpfr_sub_d(error, want, f(x), MPFR_RNDN);
        mpfr_div(error, error, want, MPFR_RNDN);
        const double size = mpfr_zero_p(want) ? f(x) != 0 : fabs(mpfr_get_d(error, MPFR_RNDN));
        if (!(size <= worst)) worst = size;
    }
    mpfr_clears(want, error, (mpfr_ptr)0);
    return worst;
}

Test(functions, the_c_library_is_within_2_to_the_minus_51)
{
    const double errors[] = {
        largest_error(exp2, mpfr_exp2, 0x00000000, 0x43000000), largest_error(exp2, mpfr_exp2, 0x80000000, 0xc3180000),
        largest_error(log2, mpfr_log2, 0x00000001, 0x7f7fffff), largest_error(log2, mpfr_log2, 0x3f000000, 0x40000000),
        largest_error(tanh, mpfr_tanh, 0x00000001, 0x41800000), largest_error(tanh, mpfr_tanh, 0x3c000000, 0x41800000)};
    for (size_t i = 0; i < sizeof errors / sizeof *errors; ++i)
        cr_expect(errors[i] <= 0x1p-51 && errors[i] > 0x1p-54, "%zu: 2^%.2f", i, log2(errors[i]));
}

/* ---- the simulator's instructions ---- */

/* Around every power of two, on the simulated GPU. */
static void check_simulated(enum function form)
{
    enum { REACH = 64, COUNT = 2 * REACH };
    const struct sim_options options = {.workers = 1};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    struct function_errors e = {0};
    char why[1024];
    cr_assert_not_null(gpu);
    for (uint32_t b = 0; b < BINADES; ++b) {
        float results[COUNT + 1];
        const uint32_t first = b * BINADE - REACH;
        memset(results, 0xff, sizeof results);
        cr_assert(functions_probe_sim(gpu, form, first - 1, COUNT + 1, results, why, sizeof why), "%s", why);
        function_check(form, first, COUNT, results + 1, 1, &e);
    }
    cr_expect_eq(sim_counts(gpu)->special_function_operations, BINADES * (COUNT + 1));
    cr_expect(function_holds(form, &e), "%s: %llu wrong, the first at %08x", function_forms[form].name,
              (unsigned long long)e.wrong, e.wrong_at);
    cr_expect(e.ulps.size <= 0.500001 && e.back == 0);
    cr_expect_eq(e.flushed > 0, form == FUNCTION_EX2_APPROX || form == FUNCTION_RCP_APPROX);
    sim_gpu_destroy(gpu);
}

Test(functions, simulated_instructions)
{
    for (enum function form = 0; form <= FUNCTION_TANH_APPROX; ++form) check_simulated(form);
}

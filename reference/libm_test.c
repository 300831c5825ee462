/* libm_test.c - the C library's functions against MPFR: the errors that reference/bounds.md takes for granted of the
 * oracle. Not a proof: dense samples of the arguments that occur, with the corners where such functions go
 * wrong. */
#include <math.h>
#include <stdio.h>

#include <criterion/criterion.h>
#include <mpfr.h>

#include "reference/judge_cases.h"
#include "reference/machine.h"

enum { SAMPLES = 1 << 18, BITS = 160 };

typedef double function(double x);
typedef int exact_function(mpfr_t result, const mpfr_t x, mpfr_rnd_t rounding);

/* Largest |f(x) - exact| / (relative |exact| + absolute) over arguments that `draw` makes. */
static double largest_share(function *f, exact_function *exact, double (*draw)(struct judge_random *g, int i),
                            double relative, double absolute, double *at)
{
    struct judge_random g = {3};
    double worst = 0;
    mpfr_t want, allowed, difference;
    mpfr_inits2(BITS, want, allowed, difference, (mpfr_ptr)0);
    for (int i = 0; i < SAMPLES; ++i) {
        const double x = draw(&g, i);
        mpfr_set_d(want, x, MPFR_RNDN);
        exact(want, want, MPFR_RNDN);
        mpfr_sub_d(difference, want, f(x), MPFR_RNDN);
        mpfr_mul_d(allowed, want, relative, MPFR_RNDD);
        mpfr_abs(allowed, allowed, MPFR_RNDN);
        mpfr_add_d(allowed, allowed, absolute, MPFR_RNDD);
        mpfr_div(difference, difference, allowed, MPFR_RNDA);
        const double share = mpfr_zero_p(allowed) ? f(x) != 0 : fabs(mpfr_get_d(difference, MPFR_RNDA));
        if (!(share <= worst)) worst = share, *at = x;
    }
    mpfr_clears(want, allowed, difference, (mpfr_ptr)0);
    return worst;
}

static void check(const char *name, function *f, exact_function *exact,
                  double (*draw)(struct judge_random *g, int i), double relative, double absolute)
{
    double at = 0;
    const double share = largest_share(f, exact, draw, relative, absolute, &at);
    printf("%-6s %.3f of what is allowed, at %a\n", name, share, at);
    fflush(stdout);
    cr_expect(share <= 1, "%s(%a): %g of what is allowed", name, at, share);
    /* The test sees what it looks for: with a sixteenth of the allowance it fails. */
    cr_expect_gt(largest_share(f, exact, draw, relative / 16, absolute / 16, &at), 1, "%s: sees no error at all", name);
}

static double between(struct judge_random *g, double low, double high)
{
    return low + (high - low) * judge_uniform(g);
}

static double any_magnitude(struct judge_random *g, int low, int high)
{
    return ldexp(1 + judge_uniform(g), (int)judge_range(g, low, high));
}

/* Exponents: scores less their maximum; and above zero, under an lse from outside. */
static double exponent(struct judge_random *g, int i)
{
    switch (i % 4) {
    case 0: return between(g, -746, 0);
    case 1: return -any_magnitude(g, -60, 9);
    case 2: return between(g, 0, 709);
    default: return (double)judge_range(g, -1022, 1022) * 0x1.62e42fefa39efp-1 + between(g, -1e-9, 1e-9);
    }
}

/* Arguments of softcap: every magnitude, and where tanh changes its formula. */
static double capped(struct judge_random *g, int i)
{
    const double sign = i % 2 ? -1 : 1;
    return sign * (i % 4 < 2 ? any_magnitude(g, -1000, 6) : between(g, 0, 23));
}

/* Sums of exponentials: from 1, or from a part of it where the sink or a blurred maximum is not among the keys, up to
 * the number of keys. */
static double sum_of_exponentials(struct judge_random *g, int i)
{
    return i % 2 ? 1 + any_magnitude(g, -52, 31) : between(g, 0.5, 2);
}

static double growth(struct judge_random *g, int i) { return i % 2 ? any_magnitude(g, -60, 8) : between(g, 0, 3); }
static double loss(struct judge_random *g, int i) { return i % 2 ? -any_magnitude(g, -60, -2) : -between(g, 0, 0.5); }

Test(libm, exp_keeps_its_error)
{
    const struct ref_machine m = ref_machine(NULL, NULL);
    check("exp", exp, mpfr_exp, exponent, m.exp_error, m.tiny);
}

Test(libm, tanh_keeps_its_error)
{
    const struct ref_machine m = ref_machine(NULL, NULL);
    check("tanh", tanh, mpfr_tanh, capped, m.tanh_error, m.tanh_floor);
}

/* |computed - ln l| <= log_error (1 + |ln l|) */
Test(libm, log_keeps_its_error)
{
    const struct ref_machine m = ref_machine(NULL, NULL);
    check("log", log, mpfr_log, sum_of_exponentials, m.log_error, m.log_error);
}

/* What the bounds themselves are computed with; their slack allows far more. */
Test(libm, expm1_and_log1p_are_within_two_units)
{
    check("expm1", expm1, mpfr_expm1, growth, 0x1p-51, 0);
    check("log1p", log1p, mpfr_log1p, loss, 0x1p-51, 0);
}

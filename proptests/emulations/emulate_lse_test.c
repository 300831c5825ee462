/* emulate_lse_test.c - the statistical threshold of lse is near what an honest kernel may err by: exponentials and
 * logarithms that are all off to one side, weights below half a unit of their sum (bounds.md, section 9). */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/emulations/emulate.h"
#include "proptests/cases/long_case.h"
#include "reference/bounds.h"

/* lse of an emulation, judged by its recipe. */
static struct ref_report judge(const char *name, struct prop_case *c)
{
    const struct implementation *const e = emulation_named(name);
    const int64_t counts[2] = {case_count(c, T_O), case_count(c, T_LSE)};
    double *const want[2] = {case_doubles(c, counts[0]), case_doubles(c, counts[1])};
    struct ref_bound bounds[2];
    struct ref_report report;
    memset(bounds, 0, sizeof bounds);
    for (int t = 0; t < 2; ++t)
        bounds[t] = (struct ref_bound){.bound = case_doubles(c, counts[t]),
                                       .sigma = case_doubles(c, counts[t]),
                                       .bias = case_doubles(c, counts[t])};
    const struct ref_forward oracle = {want[0], want[1]};
    struct computed how;
    case_reset_outputs(c);
    cr_assert_eq(ref_forward(&c->p, &c->a.forward, &oracle, 0), ATTEST_OK);
    cr_assert_eq(e->forward(e, &c->p, &c->a.forward, &how), ATTEST_OK);
    cr_assert_eq(ref_bound_forward(&c->p, &c->a.forward, e->recipe, &bounds[0], &bounds[1], 0), ATTEST_OK);
    ref_judge(&c->p, &c->a.forward, REF_LSE, c->a.forward.lse, want[1], &bounds[1], 1, &report);
    printf("%-10s lse: %.3g of the bound, %.3g of the threshold\n", name, report.use, report.rms_ratio);
    fflush(stdout);
    return report;
}

Test(emulate_lse, errors_of_one_sign_are_near_the_threshold)
{
    for (int dtype = ATTEST_FP16; dtype <= ATTEST_BF16; ++dtype) {
        struct prop_case c;
        long_case_of(&c, FAMILY_NORMAL, 1, dtype, 64, 1024, 1);
        const struct ref_report low = judge("hopper-low", &c), other = judge("hopper", &c);
        cr_expect_eq(low.verdict, REF_PASS);
        cr_expect_gt(low.rms_ratio, 0.29);
        cr_expect_eq(other.verdict, REF_PASS);
        case_free(&c);
    }
}

/* The first key weighs e^17.5 as much as each of 4095 others, all of which a sum in fp32 that has it first loses. */
Test(emulate_lse, weights_below_half_a_unit_of_their_sum_may_be_lost)
{
    struct prop_case c;
    long_case_of(&c, FAMILY_NORMAL, 1, ATTEST_BF16, 16, 4096, 1);
    for (int64_t i = 0; i < 16 * 64; ++i) c.values[T_Q][i] = i % 64 == 0 ? 8 : 0;
    for (int64_t j = 0; j < 4096; ++j) c.values[T_K][64 * j] = j == 0 ? 17.5 : 0;
    case_lay_out(&c);
    const struct ref_report report = judge("fp32", &c);
    cr_expect_eq(report.verdict, REF_PASS);
    cr_expect_gt(report.relative_error, 5e-6); /* 1e-4 of 17.5 */
    case_free(&c);
}

/* emulate_rescale_test.c - kernels that rescale o only where the running maximum grew by more than a power of two
 * (bounds.md, section 5.5): by a recipe that says so within the bound on every family, by one that does not beyond
 * it. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/emulations/emulate.h"
#include "proptests/cases/long_case.h"
#include "reference/bounds.h"

/* o and lse of an emulation of that recipe, judged by another. */
static void judge(const struct implementation *base, const struct attest_recipe *does, const struct attest_recipe *by,
                  enum family family, int32_t dtype, int64_t length, struct ref_report reports[2])
{
    struct prop_case c;
    struct ref_bound bounds[2];
    struct implementation e = *base;
    e.recipe = does;
    long_case(&c, family, 1, dtype, length, 1);
    const int64_t counts[2] = {case_count(&c, T_O), case_count(&c, T_LSE)};
    double *const want[2] = {case_doubles(&c, counts[0]), case_doubles(&c, counts[1])};
    for (int t = 0; t < 2; ++t)
        bounds[t] = (struct ref_bound){.bound = case_doubles(&c, counts[t]),
                                       .sigma = case_doubles(&c, counts[t]),
                                       .bias = case_doubles(&c, counts[t])};
    const struct ref_forward oracle = {want[0], want[1]};
    struct computed how;
    case_reset_outputs(&c);
    cr_assert_eq(ref_forward(&c.p, &c.a.forward, &oracle, 0), ATTEST_OK);
    cr_assert_eq(e.forward(&e, &c.p, &c.a.forward, &how), ATTEST_OK);
    cr_assert_eq(ref_bound_forward(&c.p, &c.a.forward, by, &bounds[0], &bounds[1], 0), ATTEST_OK);
    ref_judge(&c.p, &c.a.forward, REF_O, c.a.forward.o, want[0], &bounds[0], 0, &reports[0]);
    ref_judge(&c.p, &c.a.forward, REF_LSE, c.a.forward.lse, want[1], &bounds[1], 0, &reports[1]);
    case_free(&c);
}

Test(emulate_rescale, a_maximum_that_lags_is_within_where_the_recipe_says_so)
{
    const struct implementation *const e = emulation_named("lazy");
    const struct attest_recipe *const lazy = ref_recipe("lazy");
    struct attest_recipe strict_recipe = *lazy;
    strict_recipe.rescale_log2 = 0;
    double share = 0, without = 0;
    for (int dtype = ATTEST_FP16; dtype <= ATTEST_BF16; ++dtype)
        for (int f = 0; f < NUM_FAMILIES; ++f) {
            struct ref_report r[2], strict[2];
            judge(e, lazy, lazy, (enum family)f, dtype, 256, r);
            judge(e, lazy, &strict_recipe, (enum family)f, dtype, 256, strict);
            for (int t = 0; t < 2; ++t)
                cr_expect(r[t].use <= 1, "%s, dtype %d, %s: %g", family_names[f], dtype, t ? "lse" : "o", r[t].use);
            share = fmax(share, r[0].use), without = fmax(without, strict[0].use);
        }
    printf("o rescaled beyond 2^8: share of the bound %.3f, of that of a recipe without %.3f\n", share, without);
    cr_expect_gt(without, 1);
}

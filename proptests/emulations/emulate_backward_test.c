/* emulate_backward_test.c - dq on the family `mean`, where delta from a rounded o and rounded ds cost others a tenth of
 * it: with a corrected delta it is near the oracle and within its bound, without one it is not. */
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/emulations/emulate.h"
#include "proptests/cases/long_case.h"
#include "reference/bounds.h"

/* dq and dk of an emulation at seqlen 1024, judged by a recipe. */
struct judged {
    struct ref_report dq, dk;
};

static void judge(struct prop_case *c, enum ref_tensor tensor, const void *got, const double *oracle,
                  const struct ref_bound *bounds, struct ref_report *report)
{
    ref_judge(&c->p, &c->a.forward, tensor, got, oracle, &bounds[tensor], 1, report);
}

/* Runs both passes of a case that is laid out, judges dq and dk by a recipe, and frees the case. */
static struct judged judged_by(struct prop_case *c, const struct implementation *e, const struct attest_recipe *recipe)
{
    struct judged judged;
    struct computed how;
    struct ref_bound bounds[REF_NUM_TENSORS];
    memset(bounds, 0, sizeof bounds);
    const int64_t count = case_count(c, T_DQ);
    const struct ref_backward oracle = {.dq = case_doubles(c, count), .dk = case_doubles(c, count)};
    for (int t = REF_DQ; t <= REF_DK; ++t)
        bounds[t] = (struct ref_bound){.bound = case_doubles(c, count),
                                       .sigma = case_doubles(c, count),
                                       .bias = case_doubles(c, count)};
    case_reset_outputs(c);
    cr_assert_eq(ref_backward(&c->p, &c->a, NULL, &oracle, 0), ATTEST_OK);
    cr_assert_eq(e->forward(e, &c->p, &c->a.forward, &how), ATTEST_OK);
    cr_assert_eq(e->backward(e, &c->p, &c->a, &how), ATTEST_OK);
    cr_assert_eq(ref_bound_backward(&c->p, &c->a, recipe, bounds, 0), ATTEST_OK);
    judge(c, REF_DQ, c->a.dq, oracle.dq, bounds, &judged.dq);
    judge(c, REF_DK, c->a.dk, oracle.dk, bounds, &judged.dk);
    case_free(c);
    return judged;
}

/* Of recipe `by`. */
static struct judged run_as(const struct implementation *e, const char *by, int32_t dtype)
{
    struct prop_case c;
    long_case(&c, FAMILY_MEAN, 1, dtype, 1024, 1);
    const struct judged judged = judged_by(&c, e, ref_kernel_recipe(by));
    const struct ref_report *r = &judged.dq;
    printf("%-15s %s dq: relative error %.1e, largest share of its bound %.2f, rms of the threshold %.2f, "
           "RMS(bound) / RMS(oracle) %.3f\n",
           e->name, dtype == ATTEST_BF16 ? "bf16" : "fp16", r->relative_error, r->use, r->rms_ratio,
           r->rms_bound / r->rms_oracle);
    fflush(stdout);
    return judged;
}

static struct judged run(const char *name, int32_t dtype)
{
    return run_as(emulation_named(name), "backward_sm80", dtype);
}

static void expect_pass(const char *name, int32_t dtype, double relative_error)
{
    const struct judged j = run(name, dtype);
    cr_expect_eq(j.dq.verdict, REF_PASS);
    cr_expect_eq(j.dk.verdict, REF_PASS);
    cr_expect(j.dq.relative_error <= relative_error);
    cr_expect(j.dq.rms_bound <= 0.05 * j.dq.rms_oracle);
}

Test(emulate_backward, a_corrected_dq_is_near_the_oracle)
{
    expect_pass("portable", ATTEST_BF16, 3e-3);
    expect_pass("portable-unkind", ATTEST_BF16, 3e-3);
    expect_pass("portable", ATTEST_FP16, 6e-4);
}

Test(emulate_backward, emulations_are_of_the_kernels_recipes)
{
    cr_expect_eq(emulation_named("portable")->recipe, ref_kernel_recipe("backward_sm80"));
    cr_expect_eq(emulation_named("portable-unkind")->recipe, ref_kernel_recipe("backward_sm80"));
    cr_expect_eq(emulation_named("portable-fp32-unkind")->recipe, ref_kernel_recipe("backward_fp32"));
}

/* flash: delta from the rounded o. mixed: delta in fp32, but what ds was rounded by is not made good. */
Test(emulate_backward, others_are_beyond_its_bound)
{
    const struct judged flash = run("flash", ATTEST_BF16), mixed = run("mixed", ATTEST_BF16);
    cr_expect_eq(flash.dq.verdict, REF_FAIL);
    cr_expect(flash.dq.use > 1 && flash.dq.rms_ratio > 1 && flash.dq.relative_error > 0.05);
    cr_expect_eq(mixed.dq.verdict, REF_FAIL);
}

/* p and ds in two parts: what is left is how far p is from summing to one, times the mean of k. */
Test(emulate_backward, a_normalized_delta_is_nearer_than_the_plain_sum)
{
    struct implementation plain = *emulation_named("portable-short-unkind");
    const struct judged normalized = run_as(&plain, "short_backward_sm80", ATTEST_FP16);
    struct attest_recipe recipe = *plain.recipe;
    recipe.delta = ATTEST_DELTA_EXACT;
    plain.recipe = &recipe, plain.name = "plain sum";
    const struct judged exact = run_as(&plain, "short_backward_sm80", ATTEST_FP16);
    cr_expect_eq(normalized.dq.verdict, REF_PASS);
    cr_expect_lt(3 * normalized.dq.relative_error, exact.dq.relative_error);
}

/* fp16, 64 keys, softmax_scale 2^-14: all ds are normal numbers, all softmax_scale ds subnormal ones of few digits. */
static struct judged run_small_scale(const char *name, const char *by)
{
    const struct implementation *const e = emulation_named(name);
    struct prop_case c;
    long_case(&c, FAMILY_NORMAL, 1, ATTEST_FP16, 64, 1);
    c.p.softmax_scale = 0x1p-14f;
    c.p.dq.dtype = c.p.dk.dtype = ATTEST_FP32; /* what is left of softmax_scale ds is no more than fp16 has */
    case_lay_out(&c);
    const struct judged judged = judged_by(&c, e, ref_recipe(by));
    printf("%-10s by %-6s: dq and dk use %.3g and %.3g of their bounds, %.3g and %.3g of the threshold\n", name, by,
           judged.dq.use, judged.dk.use, judged.dq.rms_ratio, judged.dk.rms_ratio);
    fflush(stdout);
    return judged;
}

Test(emulate_backward, softmax_scale_is_in_ds_as_it_is_rounded_where_a_recipe_says_so)
{
    const struct judged folded = run_small_scale("flash", "flash"), late = run_small_scale("flash-late", "flash");
    const struct judged own = run_small_scale("hopper", "hopper"), beyond = run_small_scale("flash", "hopper");
    cr_expect_eq(folded.dq.verdict, REF_PASS);
    cr_expect_eq(folded.dk.verdict, REF_PASS);
    cr_expect_eq(late.dq.verdict, REF_PASS);
    cr_expect_eq(late.dk.verdict, REF_PASS);
    cr_expect_eq(own.dq.verdict, REF_PASS);
    cr_expect_eq(own.dk.verdict, REF_PASS);
    cr_expect(beyond.dq.use > 1 && beyond.dk.use > 1);
}

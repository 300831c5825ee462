/* power_test.c - faults that the judge must see, and an honest kernel that it must pass: a small form of power.c. */
#include <criterion/criterion.h>

#include "reference/power_judge.h"

static struct power_judge j;

static void init(int32_t dtype)
{
    const struct power_case kernel = {.dtype = dtype, .rows = 256, .keys = 512, .heads = 2, .dim = 64, .seed = 3,
                                      .sum = POWER_HOPPER, .rounds_weights = true};
    power_judge_init(&j, &kernel, ref_recipe("hopper"));
}

static double ratio_of(enum power_fault fault, double size, enum ref_tensor tensor)
{
    struct ref_report report;
    return power_judge_fault(&j, fault, size, tensor, &report);
}

static void see_faults(int32_t dtype)
{
    static const struct {
        enum power_fault fault;
        double size;
        enum ref_tensor tensor;
        double least;
    } seen[] = {
        {POWER_O_TRUNCATED, 0, REF_O, 1.5},      {POWER_DQ_TRUNCATED, 0, REF_DQ, 1.5},
        {POWER_DK_TRUNCATED, 0, REF_DK, 1.5},    {POWER_DV_TRUNCATED, 0, REF_DV, 1.5},
        {POWER_P_TRUNCATED, 0, REF_O, 1},        {POWER_P_TRUNCATED, 0, REF_DV, 1},
        {POWER_P_7_BITS, 0, REF_O, 1},           {POWER_P_7_BITS, 0, REF_DV, 1},
        {POWER_DS_TRUNCATED, 0, REF_DQ, 1},      {POWER_DS_TRUNCATED, 0, REF_DK, 1},
        {POWER_DS_7_BITS, 0, REF_DQ, 1},         {POWER_DS_7_BITS, 0, REF_DK, 1},
        {POWER_O_EVERY, 128, REF_O, 1},          {POWER_DQ_EVERY, 32, REF_DQ, 1},
        {POWER_O_SCALED, 5e-4, REF_O, 1},        {POWER_DQ_SCALED, 5e-4, REF_DQ, 1},
        {POWER_DK_SCALED, 5e-4, REF_DK, 1},      {POWER_DV_SCALED, 5e-4, REF_DV, 1},
        {POWER_SCORES_SCALED, 1e-4, REF_LSE, 1},
    };
    init(dtype);
    for (int t = REF_O; t <= REF_DV; ++t)
        cr_expect_leq(ratio_of(POWER_HONEST, 0, (enum ref_tensor)t), 1.0, "honest %s", ref_tensor_names[t]);
    for (size_t i = 0; i < sizeof seen / sizeof *seen; ++i) {
        const double ratio = ratio_of(seen[i].fault, seen[i].size, seen[i].tensor);
        cr_expect_gt(ratio, seen[i].least, "%s, %s: %g", power_fault_names[seen[i].fault],
                     ref_tensor_names[seen[i].tensor], ratio);
    }
    power_judge_clear(&j);
}

Test(power, faults_are_seen_in_bf16) { see_faults(ATTEST_BF16); }
Test(power, faults_are_seen_in_fp16) { see_faults(ATTEST_FP16); }

/* The verdict holds at long context, and says what the error looks like. */
Test(power, lost_values_are_seen_among_32768_keys)
{
    const struct power_case kernel = {.dtype = ATTEST_BF16, .rows = 16, .keys = 32768, .heads = 1, .dim = 64, .seed = 3,
                                      .sum = POWER_CHAIN, .rounds_weights = true};
    struct ref_report report;
    char text[256];
    power_judge_init(&j, &kernel, ref_recipe("flash"));
    cr_expect_leq(power_judge_fault(&j, POWER_HONEST, 0, REF_O, &report), 1.0);
    cr_expect_gt(power_judge_fault(&j, POWER_VALUES_LOST, 512, REF_O, &report), 1.0);
    cr_expect_eq(report.verdict, REF_FAIL);
    cr_expect_gt(power_judge_fault(&j, POWER_TILE_LOST, 1, REF_O, &report), 1.0);
    cr_expect_eq(report.direction, REF_ONE_TILE);
    cr_expect_eq(report.direction_index[0], 16384);
    cr_expect_float_eq(report.direction_size, -1.0, 0.05);
    cr_expect_gt(power_judge_fault(&j, POWER_O_SCALED, 0.02, REF_O, &report), 1.0);
    ref_describe_direction(&report, REF_O, text, sizeof text);
    cr_expect_eq(report.direction, REF_SCALED);
    cr_expect_float_eq(report.direction_size, 0.02, 2e-3, "%s", text);
    power_judge_clear(&j);
}

/* Thresholds are at most three times what honest kernels err by, and so is that of sums that are all cut off. */
Test(power, thresholds_are_near_honest_errors_among_32768_keys)
{
    static const enum power_sum sums[] = {POWER_HOPPER, POWER_CHAIN};
    for (int i = 0; i < 2; ++i) {
        const struct power_case kernel = {.dtype = ATTEST_FP16,
                                          .rows = 64,
                                          .keys = 32768,
                                          .heads = 1,
                                          .dim = 64,
                                          .seed = 3,
                                          .sum = sums[i],
                                          .rounds_weights = true,
                                          .folds_scale = true,
                                          .reuses_p = true};
        power_judge_init(&j, &kernel, ref_recipe("flash"));
        for (int t = REF_O; t <= REF_DV; ++t) {
            struct ref_report report;
            cr_expect_leq(power_judge_fault(&j, POWER_HONEST, 0, (enum ref_tensor)t, &report), 1.0);
            cr_expect_eq(report.verdict, REF_PASS, "%s", ref_tensor_names[t]);
            if (t != REF_LSE) cr_expect_gt(report.rms_ratio, 0.32, "%s: %g", ref_tensor_names[t], report.rms_ratio);
        }
        power_judge_clear(&j);
    }
}

/* judge_test.c - the judge passes what it must and nothing else. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "reference/bounds.h"
#include "reference/formats.h"

enum { ROWS = 64, HEADS = 2, FEATURES = 8, COUNT = ROWS * HEADS * FEATURES };

/* A tensor o of one sequence: what is got, what is wanted, and a bound of 0.25 everywhere. */
static struct fixture {
    struct attest_problem p;
    struct attest_forward_args a;
    float got[COUNT];
    double want[COUNT], bound[COUNT], sigma[COUNT], bias[COUNT];
    struct ref_report report;
} f;

static void set_up(void)
{
    memset(&f, 0, sizeof f);
    f.p.batch = 1;
    f.p.seqlen_q = f.p.seqlen_k = ROWS;
    f.p.num_heads_q = f.p.num_heads_kv = HEADS;
    f.p.head_dim = f.p.head_dim_v = FEATURES;
    f.p.o = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = HEADS * FEATURES, .head = FEATURES};
    f.p.dk = f.p.o;
    for (int i = 0; i < COUNT; ++i) {
        f.want[i] = 1.0 + i % 7;
        f.got[i] = (float)f.want[i];
        f.bound[i] = 0.25;
    }
}

/* Rows that have the same results and deviations would count as made of the same numbers. */
static void tell_rows_apart(void)
{
    for (int i = 0; i < COUNT; i += FEATURES) f.sigma[i] *= 1 + i / FEATURES * 0x1p-50;
}

static void judge_rows(const void *got, const struct ref_bound *b)
{
    tell_rows_apart();
    ref_judge(&f.p, &f.a, REF_O, got, f.want, b, 1, &f.report);
}

static enum ref_verdict judge(int statistical)
{
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    tell_rows_apart();
    ref_judge(&f.p, &f.a, REF_O, f.got, f.want, &b, statistical, &f.report);
    return f.report.verdict;
}

TestSuite(judge, .init = set_up);

Test(judge, equal_passes_with_use_zero)
{
    cr_assert_eq(judge(1), REF_PASS);
    cr_assert_eq(f.report.use, 0.0);
    cr_assert_eq(f.report.count, COUNT);
    cr_assert_eq(f.report.rmse, 0.0);
}

Test(judge, error_at_the_bound_passes_and_beyond_fails_at_its_index)
{
    const int at = (5 * HEADS + 1) * FEATURES + 3;
    f.got[at] = (float)(f.want[at] + 0.25);
    cr_assert_eq(judge(0), REF_PASS);
    cr_assert_eq(f.report.use, 1.0);
    f.got[at] = (float)(f.want[at] + 0.375);
    cr_assert_eq(judge(0), REF_FAIL);
    cr_assert_eq(f.report.use, 1.5);
    cr_assert_eq(f.report.max_error, 0.375);
    const int64_t where[4] = {0, 5, 1, 3};
    cr_assert_arr_eq(f.report.use_index, where, sizeof where);
    cr_assert_eq(f.report.use_want, f.want[at]);
    cr_assert_eq(f.report.use_got, (double)f.got[at]);
}

Test(judge, nan_fails_wherever_it_is)
{
    for (int at = 0; at < COUNT; at += COUNT - 1) {
        set_up();
        f.got[at] = NAN;
        f.got[COUNT / 2] = (float)(f.want[COUNT / 2] + 0.2); /* a smaller use after it changes nothing */
        cr_assert_eq(judge(0), REF_FAIL);
        cr_assert(isnan(f.report.use));
        cr_assert_eq(f.report.nan_count, 1);
    }
}

Test(judge, where_the_oracle_is_nan_only_nan_passes)
{
    f.want[3] = NAN;
    cr_assert_eq(judge(0), REF_FAIL);
    f.got[3] = NAN;
    cr_assert_eq(judge(0), REF_PASS);
    cr_assert_eq(f.report.nan_count, 0);
}

Test(judge, infinities_of_the_oracle_are_compared_exactly)
{
    f.want[3] = -INFINITY;
    cr_assert_eq(judge(0), REF_FAIL);
    f.got[3] = INFINITY;
    cr_assert_eq(judge(0), REF_FAIL);
    f.got[3] = -INFINITY;
    cr_assert_eq(judge(0), REF_PASS);
}

Test(judge, an_infinity_for_a_finite_value_fails)
{
    f.got[9] = INFINITY;
    cr_assert_eq(judge(0), REF_FAIL);
    cr_assert_eq(f.report.max_error, INFINITY);
}

Test(judge, overflow_of_the_output_format_passes_with_the_right_sign)
{
    f.want[3] = 3.40282e38;
    f.bound[3] = 1e33;
    f.got[3] = INFINITY;
    for (int i = 0; i < COUNT; ++i) f.sigma[i] = 0.1;
    cr_assert_eq(judge(0), REF_PASS);
    f.got[3] = -INFINITY;
    cr_assert_eq(judge(0), REF_FAIL);
    f.bound[3] = 1e31; /* does not reach the threshold */
    f.got[3] = INFINITY;
    cr_assert_eq(judge(0), REF_FAIL);
}

Test(judge, outside_the_domain_is_counted_and_never_a_pass)
{
    f.bound[3] = INFINITY;
    f.got[3] = NAN;
    cr_assert_eq(judge(0), REF_OVERFLOW);
    cr_assert_eq(f.report.overflow_count, 1);
    f.got[4] = 100.0f; /* a wrong number elsewhere is still wrong */
    cr_assert_eq(judge(0), REF_FAIL);
}

Test(judge, a_bound_that_is_nan_fails)
{
    f.bound[3] = NAN;
    cr_assert_eq(judge(0), REF_FAIL);
}

Test(judge, a_bound_of_zero_demands_equality)
{
    f.bound[3] = 0.0;
    cr_assert_eq(judge(0), REF_PASS);
    f.got[3] = nextafterf(f.got[3], INFINITY);
    cr_assert_eq(judge(0), REF_FAIL);
    cr_assert_eq(f.report.use, INFINITY);
}

Test(judge, a_bound_larger_than_the_result_is_vacuous)
{
    for (int i = 0; i < COUNT; ++i) f.bound[i] = 10.0;
    cr_assert_eq(judge(0), REF_VACUOUS);
    cr_assert_gt(f.report.rms_bound, f.report.rms_oracle);
    f.got[0] = 100.0f;
    cr_assert_eq(judge(0), REF_FAIL);
}

/* Uniform numbers in (-1, 1), a function of i alone. */
static double noise(int i)
{
    uint64_t x = ((uint64_t)i + 1) * UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1.0;
}

static void set_errors(double size, double shift)
{
    for (int i = 0; i < COUNT; ++i) {
        f.sigma[i] = 0.01 / sqrt(3.0);
        f.got[i] = (float)(f.want[i] + size * noise(i) + shift);
    }
}

Test(judge, roundings_of_the_stated_size_pass_the_statistical_verdict)
{
    set_errors(0.01, 0.0);
    cr_assert_eq(judge(1), REF_PASS);
    cr_assert_gt(f.report.rms_ratio, 0.5); /* ROWS * HEADS rows of FEATURES: not far from the threshold */
    cr_assert_lt(f.report.rms_ratio, 1.0);
}

Test(judge, roundings_twice_as_large_fail_it_inside_the_rigorous_bound)
{
    set_errors(0.02, 0.0);
    cr_assert_eq(judge(0), REF_PASS);
    cr_assert_eq(f.report.rms_ratio, 0.0);
    cr_assert_eq(judge(1), REF_FAIL);
    cr_assert_lt(f.report.use, 1.0);
    cr_assert_gt(f.report.rms_ratio, 1.0);
}

Test(judge, a_shift_fails_the_mean_where_the_rms_passes)
{
    set_errors(0.0, 0.0055);
    cr_assert_eq(judge(1), REF_FAIL);
    cr_assert_lt(f.report.rms_ratio, 1.0);
    cr_assert_gt(f.report.mean_ratio, 1.0);
    for (int i = 0; i < COUNT; ++i) f.bias[i] = 0.0055; /* unless the recipe says so */
    cr_assert_eq(judge(1), REF_PASS);
}

Test(judge, one_loud_row_does_not_hide_among_quiet_ones)
{
    set_errors(0.01, 0.0);
    cr_assert_eq(judge(1), REF_PASS);
    for (int i = 0; i < FEATURES; ++i) f.sigma[i] = 1.0; /* each element in units of what is expected of it */
    const double quiet = f.report.rms_ratio;
    cr_assert_eq(judge(1), REF_PASS);
    cr_assert_float_eq(f.report.rms_ratio, quiet, 0.05);
    set_errors(0.02, 0.0);
    for (int i = 0; i < FEATURES; ++i) f.sigma[i] = 1.0;
    cr_assert_eq(judge(1), REF_FAIL);
}

/* Every second row is the same: 64 times one row's errors are within what two rows make of each. */
Test(judge, rows_made_of_the_same_numbers_err_alike)
{
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    for (int i = 0; i < COUNT; ++i) {
        const double sign = noise(i % (2 * FEATURES)) < 0 ? -1 : 1;
        f.want[i] = 1 + i % (2 * FEATURES);
        f.sigma[i] = 0.01 / sqrt(3.0);
        f.got[i] = (float)(f.want[i] + 0.01 * sign);
    }
    ref_judge(&f.p, &f.a, REF_O, f.got, f.want, &b, 1, &f.report);
    cr_expect_eq(f.report.verdict, REF_PASS);
    judge_rows(f.got, &b);
    cr_expect_gt(f.report.rms_ratio, 1);
    for (int i = 0; i < COUNT; ++i) f.sigma[i] = 0.0025 / sqrt(3.0);
    ref_judge(&f.p, &f.a, REF_O, f.got, f.want, &b, 1, &f.report);
    cr_expect_gt(f.report.rms_ratio, 1);
}

/* Under dropout o of rows of one q differ, and their weights do not. */
Test(judge, rows_of_one_q_err_alike_under_dropout)
{
    static uint16_t q[COUNT];
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    set_errors(0.0, 0.0055);
    f.p.q = f.p.o, f.p.q.dtype = ATTEST_BF16, f.p.head_dim = FEATURES;
    f.p.dropout_p = 0.1f;
    f.a.q = q;
    ref_judge(&f.p, &f.a, REF_O, f.got, f.want, &b, 1, &f.report);
    cr_expect_eq(f.report.verdict, REF_PASS, "mean %g", f.report.mean_ratio);
    for (int i = 0; i < COUNT; ++i) ref_store(ATTEST_BF16, q, i, (double)(i / FEATURES));
    ref_judge(&f.p, &f.a, REF_O, f.got, f.want, &b, 1, &f.report);
    cr_expect_gt(f.report.mean_ratio, 1);
}

/* Each row of one head is one of the other, too: along a head's result they count once. */
Test(judge, rows_of_two_heads_that_are_equal_count_once_in_each)
{
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    double ratios[2];
    for (int apart = 0; apart < 2; ++apart) {
        for (int i = 0; i < COUNT; ++i) {
            const int row = i / (HEADS * FEATURES), head = i / FEATURES % HEADS;
            f.want[i] = 1 + 0.01 * row + 0.1 * (i % FEATURES);
            f.sigma[i] = 0.004;
            f.got[i] = (float)(f.want[i] * (head == 0 ? 1.002 : 1));
        }
        if (apart) tell_rows_apart();
        ref_judge(&f.p, &f.a, REF_O, f.got, f.want, &b, 1, &f.report);
        ratios[apart] = f.report.direction_ratio;
    }
    cr_expect(fabs(ratios[0] / ratios[1] - 1) < 1e-6, "%g, %g", ratios[0], ratios[1]);
}

Test(judge, equal_results_round_alike_without_alarm)
{
    static uint16_t rounded[COUNT];
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    f.p.o.dtype = ATTEST_BF16;
    for (int i = 0; i < COUNT; ++i) {
        f.want[i] = 1.0015;
        f.sigma[i] = 0x1p-8 / sqrt(3.0);
        ref_store(ATTEST_BF16, rounded, i, f.want[i]);
    }
    judge_rows(rounded, &b);
    cr_assert_eq(f.report.verdict, REF_PASS);
    for (int i = 0; i < COUNT; ++i) ref_store(ATTEST_BF16, rounded, i, 1.0078125); /* the neighbour above */
    judge_rows(rounded, &b);
    cr_assert_eq(f.report.verdict, REF_FAIL);
}

/* Results `place` units above numbers of bf16, of which half round down and half up, as the oracle's own would; all
 * answered by the number above. */
static double ratio_where_all_round_up(double place)
{
    static uint16_t rounded[COUNT];
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    f.p.o.dtype = ATTEST_BF16;
    for (int i = 0; i < COUNT; ++i) {
        const double below = 1 + i % 64 * 0x1p-7;
        f.want[i] = below + place * 0x1p-7;
        f.bias[i] = 1e-6;
        f.sigma[i] = sqrt(0x1p-16 / 3 + 1e-12);
        ref_store(ATTEST_BF16, rounded, i, below + 0x1p-7);
    }
    judge_rows(rounded, &b);
    return f.report.direction_ratio;
}

Test(judge, results_at_ties_round_to_one_side_without_alarm)
{
    cr_expect_leq(ratio_where_all_round_up(0.5), 1);
    cr_expect_leq(ratio_where_all_round_up(0.75), 1); /* as the oracle's */
    cr_expect_gt(ratio_where_all_round_up(0.375), 1); /* no error that small makes it go up */
}

/* Of 64 rows, results 0 to 0.45 of a unit of bf16 below the half that goes up, to just above which the row's weights,
 * rounded alike, take them, and as many 0.2 above it. */
static void set_rows_that_weights_take_up(uint16_t rounded[COUNT], double *phases)
{
    f.p.o.dtype = ATTEST_BF16;
    for (int i = 0; i < COUNT; ++i) {
        const int row = i / FEATURES;
        const double below = 1 + row / HEADS * 0x1p-7, moved = 0x1p-7 * 0.45 * (row / HEADS) / ROWS;
        f.want[i] = below + 0x1p-8 + (i % 2 == 0 ? -moved : 0.2 * 0x1p-7);
        f.bias[i] = moved;
        f.sigma[i] = sqrt(0x1p-16 / 3 + 1e-12);
        phases[row * REF_WAYS + 2] = 1.01 * (moved + 1e-6) / f.want[i];
        ref_store(ATTEST_BF16, rounded, i, below + 0x1p-7);
    }
}

Test(judge, what_weights_that_round_alike_make_of_results_is_rounded)
{
    static double phases[ROWS * HEADS * REF_WAYS];
    static uint16_t rounded[COUNT];
    struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias, .phases = phases};
    set_rows_that_weights_take_up(rounded, phases);
    judge_rows(rounded, &b);
    cr_expect_leq(f.report.direction_ratio, 1);
    const double mean = f.report.mean_ratio;
    b.phases = NULL;
    judge_rows(rounded, &b);
    cr_expect_gt(f.report.direction_ratio, 1);
    cr_expect_gt(f.report.mean_ratio, 1.3 * mean);
}

/* Weights of each head move its o by 0.001 of itself, one head's up and the other's down: nothing on the whole. */
Test(judge, weights_of_a_head_round_alike)
{
    static double phases[ROWS * HEADS * REF_WAYS];
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    struct ref_bound with_phases = b;
    with_phases.phases = phases;
    for (int i = 0; i < COUNT; ++i) {
        const double error = i / FEATURES % HEADS == 0 ? 0.001 : -0.001;
        f.want[i] = 1 + i % FEATURES;
        f.got[i] = (float)(f.want[i] * (1 + error));
        f.sigma[i] = 0.004;
        phases[i / FEATURES * REF_WAYS + 5] = error;
    }
    judge_rows(f.got, &b);
    cr_expect_gt(f.report.direction_ratio, 1);
    cr_expect_eq(f.report.direction, REF_SCALED_HEAD);
    judge_rows(f.got, &with_phases);
    cr_expect_eq(f.report.verdict, REF_PASS);
    for (int row = 0; row < ROWS * HEADS; ++row) phases[row * REF_WAYS + 5] /= 10;
    judge_rows(f.got, &with_phases);
    cr_expect_gt(f.report.direction_ratio, 1);
}

Test(judge, thresholds_are_those_of_bounds_md)
{
    set_errors(0.01, 0.0);
    cr_assert_eq(judge(1), REF_PASS);
    const double t = log(4e9), n = COUNT, rows = ROWS * HEADS, mu = FEATURES * 1e-4 / 3;
    const double rms = sqrt((rows * mu + 2 * sqrt(t * rows * mu * mu) + 2 * t * mu) / n);
    const double mean = sqrt(2 * (t + log(2.0)) * rows * pow(FEATURES * 0.01 / sqrt(3.0), 2.0)) / n;
    cr_assert_float_eq(f.report.rms_ratio, f.report.rmse / rms, 1e-6); /* fp32 rounds each element alone */
    cr_assert_float_eq(f.report.mean_ratio, fabs(f.report.mean_error) / mean, 1e-12);
}

/* The error is 0.001 of the result. */
static double ratio_of_a_factor(const double *along)
{
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias, .along = (double *)along};
    for (int i = 0; i < COUNT; ++i) {
        f.sigma[i] = 0.01 / sqrt(3.0);
        f.got[i] = (float)(f.want[i] * 1.001);
    }
    judge_rows(f.got, &b);
    return f.report.direction_ratio;
}

Test(judge, a_factor_on_the_result_is_seen_and_named)
{
    const double expected = 1e-4 / 3, shapes = 5 + HEADS * (1 + 1), t = log(4e9) + log(2 * shapes);
    double projection = 0.0, variance = 0.0, along[ROWS * HEADS];
    for (int i = 1; i < COUNT; i += 2) f.want[i] = -f.want[i]; /* no mean */
    for (int r = 0; r < ROWS * HEADS; ++r) {
        double row = 0.0;
        for (int c = 0; c < FEATURES; ++c) {
            const double want = f.want[r * FEATURES + c];
            projection += want * want * 0.001 / expected;
            row += fabs(want) / expected * sqrt(expected);
        }
        variance += row * row;
        along[r] = row * row / 4;
    }
    cr_assert_float_eq(ratio_of_a_factor(NULL), projection / sqrt(2 * t * variance), 1e-3);
    cr_assert_eq(f.report.direction, REF_SCALED);
    cr_assert_float_eq(f.report.direction_size, 0.001, 1e-6);
    cr_assert_float_eq(f.report.direction_share, 1.0, 1e-3);
    cr_assert_float_eq(ratio_of_a_factor(along), 2 * projection / sqrt(2 * t * variance), 2e-3); /* less noise */
    cr_assert_eq(f.report.verdict, REF_FAIL);
    cr_assert_lt(f.report.rms_ratio, 1.0);
    cr_assert_lt(f.report.mean_ratio, 1.0);
    char text[64];
    ref_describe_direction(&f.report, REF_O, text, sizeof text);
    cr_assert_str_eq(text, "o scaled by 1.001");
}

Test(judge, rows_of_no_sequence_are_left_out_and_gaps_not_read)
{
    const int32_t starts[] = {0, 3, 5}; /* rows from 5 on belong to nobody */
    f.p.ragged = 1;
    f.p.batch = 2;
    f.p.total_q = f.p.total_k = ROWS;
    f.a.cu_seqlens_q = f.a.cu_seqlens_k = starts;
    for (int i = 5 * HEADS * FEATURES; i < COUNT; ++i) {
        f.want[i] = NAN;
        f.got[i] = 1e30f;
    }
    cr_assert_eq(judge(1), REF_PASS);
    cr_assert_eq(f.report.count, 5 * HEADS * FEATURES);
    f.got[4 * HEADS * FEATURES] += 1.0f;
    cr_assert_eq(judge(1), REF_FAIL);
    cr_assert_eq(f.report.use_index[0], 1); /* row 1 of sequence 1 */
    cr_assert_eq(f.report.use_index[1], 1);
}

Test(judge, strides_of_the_problem_are_followed)
{
    static uint16_t heads_first[COUNT];
    f.p.o = (struct attest_tensor){.dtype = ATTEST_BF16, .seqlen = FEATURES, .head = ROWS * FEATURES};
    for (int r = 0; r < ROWS; ++r)
        for (int h = 0; h < HEADS; ++h)
            for (int x = 0; x < FEATURES; ++x)
                ref_store(ATTEST_BF16, heads_first, (h * ROWS + r) * FEATURES + x,
                          f.want[(r * HEADS + h) * FEATURES + x]);
    const struct ref_bound b = {.bound = f.bound};
    ref_judge(&f.p, &f.a, REF_O, heads_first, f.want, &b, 0, &f.report);
    cr_assert_eq(f.report.verdict, REF_PASS);
    cr_assert_eq(f.report.rmse, 0.0);
}

Test(judge, lse_dbias_and_dsink_have_their_own_shapes)
{
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    f.p.lse = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 1, .head = ROWS};
    for (int r = 0; r < ROWS; ++r)
        for (int h = 0; h < HEADS; ++h) f.got[h * ROWS + r] = (float)f.want[r * HEADS + h];
    ref_judge(&f.p, &f.a, REF_LSE, f.got, f.want, &b, 0, &f.report);
    cr_assert_eq(f.report.verdict, REF_PASS);
    cr_assert_eq(f.report.count, ROWS * HEADS);

    set_up();
    f.p.seqlen_k = 8;
    f.p.dbias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .head = ROWS * 8, .seqlen_q = 8, .seqlen_k = 1};
    ref_judge(&f.p, &f.a, REF_DBIAS, f.got, f.want, &b, 0, &f.report);
    cr_assert_eq(f.report.verdict, REF_PASS);
    cr_assert_eq(f.report.count, HEADS * ROWS * 8);
    f.p.dbias.head = f.p.dbias.seqlen_q = 0; /* summed over heads and rows */
    ref_judge(&f.p, &f.a, REF_DBIAS, f.got, f.want, &b, 0, &f.report);
    cr_assert_eq(f.report.count, 8);

    ref_judge(&f.p, &f.a, REF_DSINK, f.got, f.want, &b, 0, &f.report);
    cr_assert_eq(f.report.count, HEADS);
    f.got[1] += 1.0f;
    ref_judge(&f.p, &f.a, REF_DSINK, f.got, f.want, &b, 0, &f.report);
    cr_assert_eq(f.report.verdict, REF_FAIL);
    cr_assert_eq(f.report.use_index[2], 1);
}

Test(judge, key_tensors_walk_keys)
{
    const struct ref_bound b = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    f.got[COUNT - 1] += 1.0f;
    ref_judge(&f.p, &f.a, REF_DK, f.got, f.want, &b, 0, &f.report);
    cr_assert_eq(f.report.verdict, REF_FAIL);
    const int64_t where[4] = {0, ROWS - 1, HEADS - 1, FEATURES - 1};
    cr_assert_arr_eq(f.report.use_index, where, sizeof where);
}

Test(judge, verdicts_have_names)
{
    cr_assert_str_eq(ref_verdict_name(REF_PASS), "PASS");
    cr_assert_str_eq(ref_verdict_name(REF_FAIL), "FAIL");
    cr_assert_str_eq(ref_verdict_name(REF_OVERFLOW), "OVERFLOW");
    cr_assert_str_eq(ref_verdict_name(REF_VACUOUS), "VACUOUS");
}

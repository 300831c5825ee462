/* judge_planted_test.c - mistakes that one part of the verdict alone sees, planted in right results: a shift of the
 * wrong sign, dbias and others by weights of another sum, and which row carries the bound. */
#include <math.h>
#include <string.h>

#include <criterion/criterion.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/judge_cases.h"

enum { ROWS = 64, HEADS = 2, DIM = 64, KEYS = 16, COUNT = ROWS * HEADS * DIM };

static struct fixture {
    struct attest_problem p;
    struct attest_backward_args a;
    float q[COUNT], k[COUNT], v[COUNT], dout[COUNT], bias[ROWS * KEYS], got[COUNT];
    double want[COUNT], bound[REF_NUM_TENSORS][COUNT], sigma[COUNT], systematic[COUNT];
    struct ref_report report;
} f;

static struct attest_tensor rows_of(int64_t heads)
{
    return (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = heads * DIM, .head = DIM};
}

static void set_up(int64_t heads, int64_t heads_kv, int64_t keys)
{
    memset(&f, 0, sizeof f);
    f.p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    f.p.device = ATTEST_REFERENCE;
    f.p.batch = 1, f.p.seqlen_q = ROWS, f.p.seqlen_k = keys;
    f.p.num_heads_q = heads, f.p.num_heads_kv = heads_kv;
    f.p.head_dim = f.p.head_dim_v = DIM;
    f.p.softmax_scale = 1.0f;
    f.p.q = f.p.o = f.p.dq = f.p.dout = rows_of(heads);
    f.p.k = f.p.v = f.p.dk = f.p.dv = rows_of(heads_kv);
    f.a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    f.a.forward.q = f.q, f.a.forward.k = f.k, f.a.forward.v = f.v, f.a.dout = f.dout;
}

/* ---- shift ---- */

/* Errors known with their signs, which alternate: of that sign, or all of one. As a shift, or as a bias. */
static enum ref_verdict judge_known(bool one_signed, bool as_shift)
{
    static double bound[COUNT];
    const struct ref_bound b = {.bound = bound, .sigma = f.sigma, .bias = f.bound[0], .shift = f.bound[1]};
    set_up(HEADS, HEADS, KEYS);
    for (int i = 0; i < COUNT; ++i) {
        const double known = i % 2 ? 0.01 : -0.01;
        bound[i] = 0.25;
        f.sigma[i] = 1e-4;
        f.want[i] = 1 + i % 7;
        f.bound[as_shift][i] = as_shift ? known : fabs(known);
        f.got[i] = (float)(f.want[i] + (one_signed ? fabs(known) : known));
    }
    ref_judge(&f.p, &f.a.forward, REF_O, f.got, f.want, &b, 1, &f.report);
    return f.report.verdict;
}

Test(judge_planted, a_known_error_of_the_wrong_sign_fails_where_it_is_a_shift)
{
    cr_expect_eq(judge_known(false, true), REF_PASS);
    cr_expect_eq(judge_known(false, false), REF_PASS);
    cr_expect_eq(judge_known(true, false), REF_PASS); /* of a bias no sign is known */
    cr_expect_eq(judge_known(true, true), REF_FAIL);
    cr_expect_leq(f.report.use, 1.0);
    cr_expect_leq(f.report.rms_ratio, 1.0);
    cr_expect_gt(f.report.mean_ratio, 1.0);
    cr_expect_gt(f.report.direction_ratio, 1.0);
}

/* Of 3 keys that are all alike p is 1 / 3: dv by p rounded to the nearest number of bf16, or to the next one. */
static enum ref_verdict judge_thirds(double p)
{
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    struct judge_random random = {7};
    set_up(1, 1, 3);
    f.p.dout.dtype = f.p.v.dtype = ATTEST_BF16;
    static uint16_t dout[COUNT], v[COUNT];
    static double dv[COUNT], shift[COUNT];
    memset(dv, 0, sizeof dv);
    for (int i = 0; i < ROWS * DIM; ++i) {
        const double value = ref_round(ATTEST_BF16, 1 + judge_normal(&random));
        ref_store(ATTEST_BF16, dout, i, value);
        for (int j = 0; j < 3; ++j) dv[j * DIM + i % DIM] += p * value;
    }
    for (int i = 0; i < 3 * DIM; ++i) ref_store(ATTEST_BF16, v, i, judge_normal(&random));
    f.a.forward.v = v, f.a.dout = dout;
    for (int i = 0; i < 3 * DIM; ++i) f.got[i] = (float)dv[i];
    for (int t = 0; t < REF_NUM_TENSORS; ++t) bounds[t].bound = f.bound[t];
    bounds[REF_DV].sigma = f.sigma, bounds[REF_DV].bias = f.systematic, bounds[REF_DV].shift = shift;
    bounds[REF_DBIAS].bound = bounds[REF_DSINK].bound = NULL;
    const struct ref_backward backward = {.dv = f.want};
    cr_assert_eq(ref_backward(&f.p, &f.a, NULL, &backward, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_backward(&f.p, &f.a, ref_recipe("hopper"), bounds, 1), ATTEST_OK);
    ref_judge(&f.p, &f.a.forward, REF_DV, f.got, f.want, &bounds[REF_DV], 1, &f.report);
    return f.report.verdict;
}

Test(judge_planted, p_rounded_to_the_other_side_is_seen_by_its_sign)
{
    const double third = ref_round(ATTEST_BF16, 1.0 / 3), unit = 2 * ref_half_ulp(ATTEST_BF16, third);
    cr_expect_eq(judge_thirds(third), REF_PASS);
    cr_expect_eq(judge_thirds(1.0 / 3 - (third - 1.0 / 3)), REF_FAIL, "mirrored: rms %g, mean %g, direction %g",
                 f.report.rms_ratio, f.report.mean_ratio, f.report.direction_ratio);
    cr_expect_eq(judge_thirds(third > 1.0 / 3 ? third - unit : third + unit), REF_FAIL);
}

/* ---- an lse of other keys ---- */

/* dk of weights that are all off by `units` of 2^-24 |lse|, where lse and delta are a caller's own. */
static enum ref_verdict judge_external(double units)
{
    enum { LSE = 40 };
    static float lse[ROWS], delta[ROWS];
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    struct judge_random random = {17};
    set_up(1, 1, KEYS);
    f.p.external_lse = 1;
    f.p.lse = f.p.delta = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 1};
    f.p.o.dtype = ATTEST_ABSENT;
    f.a.forward.lse = lse, f.a.delta = delta;
    for (int i = 0; i < ROWS; ++i) lse[i] = LSE;
    for (int i = 0; i < ROWS * DIM; ++i)
        f.q[i] = (float)judge_normal(&random), f.dout[i] = (float)judge_normal(&random);
    for (int i = 0; i < KEYS * DIM; ++i) f.k[i] = (float)judge_normal(&random), f.v[i] = (float)judge_normal(&random);
    for (int t = REF_DQ; t <= REF_DV; ++t) bounds[t].bound = f.bound[t];
    bounds[REF_DK].sigma = f.sigma, bounds[REF_DK].bias = f.systematic;
    const struct ref_backward backward = {.dk = f.want};
    cr_assert_eq(ref_backward(&f.p, &f.a, NULL, &backward, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_backward(&f.p, &f.a, ref_kernel_recipe("backward_fp32"), bounds, 1), ATTEST_OK);
    for (int i = 0; i < KEYS * DIM; ++i) f.got[i] = (float)(f.want[i] * (1 + units * 0x1p-24 * LSE));
    ref_judge(&f.p, &f.a.forward, REF_DK, f.got, f.want, &bounds[REF_DK], 1, &f.report);
    return f.report.verdict;
}

/* A kernel rounds lse log2 e once for all of a row: 1.2 of these units; no lse of its own has an error beside. */
Test(judge_planted, the_rounding_of_a_given_lse_is_in_all_weights_of_its_row)
{
    cr_expect_eq(judge_external(1.2), REF_PASS, "direction %g", f.report.direction_ratio);
    cr_expect_eq(judge_external(-1.2), REF_PASS, "direction %g", f.report.direction_ratio);
    cr_expect_eq(judge_external(10), REF_FAIL, "direction %g", f.report.direction_ratio);
}

/* ---- a delta that is given ---- */

/* The largest bound of dq where the given delta is off by that much. */
static double bound_of_given(const char *recipe, double off)
{
    static double delta[ROWS];
    static float given[ROWS];
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    struct judge_random random = {19};
    double most = 0.0;
    set_up(1, 1, KEYS);
    f.p.lse = f.p.delta = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 1};
    f.p.o.dtype = ATTEST_BF16;
    for (int i = 0; i < ROWS * DIM; ++i)
        f.q[i] = 0.1f * (float)judge_normal(&random), f.dout[i] = (float)judge_normal(&random);
    for (int i = 0; i < KEYS * DIM; ++i)
        f.k[i] = 4 + (float)judge_normal(&random), f.v[i] = 4 + (float)judge_normal(&random);
    const struct ref_backward backward = {.delta = delta};
    cr_assert_eq(ref_backward(&f.p, &f.a, NULL, &backward, 1), ATTEST_OK);
    for (int i = 0; i < ROWS; ++i) given[i] = (float)(delta[i] + off);
    f.a.delta = given;
    for (int t = REF_DQ; t <= REF_DV; ++t) bounds[t].bound = f.bound[t];
    cr_assert_eq(ref_bound_backward(&f.p, &f.a, ref_kernel_recipe(recipe), bounds, 1), ATTEST_OK);
    for (int i = 0; i < ROWS * DIM; ++i) most = fmax(most, f.bound[REF_DQ][i]);
    return most;
}

/* Keys of mean 4: what a delta is off by is 4 times as much of dq, within what one of a rounded o may be. */
Test(judge_planted, kernels_that_take_a_given_delta_may_be_off_by_what_it_is)
{
    static const char *const recipes[] = {"backward_fp32", "one_query_backward_sm80", "short_backward_sm80"};
    for (int n = 0; n < 3; ++n) {
        const double exact = bound_of_given(recipes[n], 0), off = bound_of_given(recipes[n], 0.5);
        cr_expect(off - exact > 3.5 * 0.5, "%s: %g and %g", recipes[n], exact, off);
        cr_expect_lt(bound_of_given(recipes[n], 64), off + 64, "%s: a wrong one excuses nothing", recipes[n]);
    }
}

/* ---- dbias ---- */

/* A row of scores near 25000, apart by less than 1 from one another. */
static void find_weights(int64_t i, double *p)
{
    double scores[KEYS], most = -INFINITY, sum = 0.0;
    for (int64_t j = 0; j < KEYS; ++j) {
        scores[j] = 0.0;
        for (int64_t c = 0; c < DIM; ++c) scores[j] += (double)f.q[i * DIM + c] * (double)f.k[j * DIM + c];
        most = fmax(most, scores[j]);
    }
    for (int64_t j = 0; j < KEYS; ++j) sum += exp(scores[j] - most);
    for (int64_t j = 0; j < KEYS; ++j) p[j] = exp(scores[j] - most) / sum;
}

static void fill_large(void)
{
    struct judge_random random = {11};
    set_up(1, 1, KEYS);
    f.p.bias = f.p.dbias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_q = KEYS, .seqlen_k = 1};
    f.a.forward.bias = f.bias;
    for (int i = 0; i < ROWS * DIM; ++i) {
        f.q[i] = i % DIM == DIM - 1 ? 0.25f : (float)ref_round(ATTEST_BF16, 20 + judge_normal(&random));
        f.dout[i] = (float)ref_round(ATTEST_BF16, judge_normal(&random));
    }
    for (int i = 0; i < KEYS * DIM; ++i) {
        f.k[i] = i % DIM == DIM - 1 ? (float)(i / DIM) : (float)ref_round(ATTEST_BF16, 20 + i % DIM * 0.1);
        f.v[i] = (float)ref_round(ATTEST_BF16, judge_normal(&random));
    }
}

/* dbias and dv of weights that have another sum, by which all are that factor too large; judged by the recipe. */
static void judge_large(double factor, const struct attest_recipe *recipe, double *use_of_dbias, double *use_of_dv)
{
    static float dbias[ROWS * KEYS];
    static double dv[KEYS * DIM], want_dbias[ROWS * KEYS];
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    memset(dv, 0, sizeof dv);
    fill_large();
    for (int64_t i = 0; i < ROWS; ++i) {
        double p[KEYS], dp[KEYS] = {0}, delta = 0.0;
        find_weights(i, p);
        for (int64_t j = 0; j < KEYS; ++j) {
            for (int64_t c = 0; c < DIM; ++c) dp[j] += (double)f.dout[i * DIM + c] * (double)f.v[j * DIM + c];
            delta += p[j] * dp[j];
            p[j] *= factor;
        }
        for (int64_t j = 0; j < KEYS; ++j) {
            dbias[i * KEYS + j] = (float)(p[j] * (dp[j] - delta));
            for (int64_t c = 0; c < DIM; ++c) dv[j * DIM + c] += p[j] * (double)f.dout[i * DIM + c];
        }
    }
    for (int i = 0; i < KEYS * DIM; ++i) f.got[i] = (float)dv[i];
    for (int t = 0; t < REF_DSINK; ++t) bounds[t].bound = f.bound[t];
    const struct ref_backward backward = {.dv = f.want, .dbias = want_dbias};
    cr_assert_eq(ref_backward(&f.p, &f.a, NULL, &backward, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_backward(&f.p, &f.a, recipe, bounds, 1), ATTEST_OK);
    ref_judge(&f.p, &f.a.forward, REF_DBIAS, dbias, want_dbias, &bounds[REF_DBIAS], 0, &f.report);
    *use_of_dbias = f.report.use;
    ref_judge(&f.p, &f.a.forward, REF_DV, f.got, f.want, &bounds[REF_DV], 0, &f.report);
    *use_of_dv = f.report.use;
}

/* Of scores that are off by as much as sums of a tensor core may be the sum in which p is divided is not dbias's
 * own. */
Test(judge_planted, weights_by_another_sum_are_within_the_bound_of_dbias_alone)
{
    double dbias, dv;
    const struct attest_recipe *const recipe = ref_kernel_recipe("backward_sm80");
    struct attest_recipe fp32 = *recipe;
    fp32.accumulate = ATTEST_ACC_FP32; /* has no other dot products */
    judge_large(2.4, recipe, &dbias, &dv);
    cr_expect(dbias <= 1 && dbias > 0.5, "%g", dbias);
    cr_expect_gt(dv, 1.0, "%g", dv);
    judge_large(2.4, &fp32, &dbias, &dv);
    cr_expect_gt(dbias, 1.0, "%g", dbias);
    judge_large(3.5, recipe, &dbias, &dv);
    cr_expect_gt(dbias, 1.0, "%g", dbias);
}

/* ---- which row carries the bound ---- */

/* Two of the keys of row i that it sees, 0 and 1, have most of its weight where `heavy` is large. */
static void judge_rows(double heavy)
{
    set_up(HEADS, 1, ROWS);
    f.p.window_right = 0, f.p.diag_kind = ATTEST_DIAG_TOP_LEFT;
    for (int i = 0; i < COUNT; ++i) f.q[i] = i % DIM == 0, f.bound[0][i] = 0.25;
    f.k[0] = f.k[DIM] = (float)heavy;
}

static void judge_at(enum ref_tensor tensor, int64_t row, int64_t h)
{
    const struct ref_bound b = {.bound = f.bound[0]};
    const int64_t heads = tensor == REF_DK ? 1 : HEADS;
    memset(f.got, 0, sizeof f.got);
    f.got[(row * heads + h) * DIM + 5] = 0.2f;
    ref_judge(&f.p, &f.a.forward, tensor, f.got, f.want, &b, 0, &f.report);
    cr_assert_eq(f.report.use_index[1], row);
}

Test(judge_planted, the_row_of_the_largest_share_has_its_keys_counted)
{
    for (int64_t row = 1; row < ROWS; row += 31) {
        judge_rows(0);
        judge_at(REF_O, row, 1);
        cr_expect_eq(f.report.use_terms, row + 1);
        cr_expect_float_eq(f.report.use_keys, (double)row + 1, 1e-9);
        judge_rows(3);
        judge_at(REF_DQ, row, 0);
        const double e = exp(3), n = (double)row - 1, sum = 2 * e + n;
        cr_expect_eq(f.report.use_terms, row + 1);
        cr_expect_float_eq(f.report.use_keys, sum * sum / (2 * e * e + n), 1e-6, "%g", f.report.use_keys);
        judge_at(REF_DK, row, 0);
        cr_expect_eq(f.report.use_terms, HEADS * (ROWS - row)); /* the rows from there on, of both heads */
    }
}

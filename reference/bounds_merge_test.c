/* bounds_merge_test.c - merges in fp32 as kernels/merge/merge.cu does them, and their backward as
 * kernels/merge/merge_backward.cu, with functions as bad as their stated errors allow, stay within their bound, and
 * come near it; worse ones do not. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <criterion/criterion.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/judge_cases.h"

enum { TRIALS = 20000, MAX_STATES = 128, DIM = 4 };

/* One row of states, and how far a merge errs: shares of the errors that functions may have, -1 .. 1 allowed. */
struct trial {
    int64_t count;
    double o[MAX_STATES][DIM], lse[MAX_STATES];
    double exp_error; /* of the recipe */
    double exp_share, exp_share_below, log_share; /* below: of states with a negative o[1] */
    bool bf16_sums, flush;
};

static float flushed(const struct trial *t, float x) { return t->flush && fabsf(x) < FLT_MIN ? 0 : x; }

static float weight(const struct trial *t, int64_t a, float relative_to)
{
    const float exponent = ((float)t->lse[a] - relative_to) * 0x1.715476p0f;
    const double share = t->o[a][1] > 0 ? t->exp_share : t->exp_share_below;
    return exponent == 0 ? 1 : flushed(t, (float)(exp2(exponent) * (1 + share * (t->exp_error - 0x1p-24))));
}

static float summed(const struct trial *t, float x) { return t->bf16_sums ? (float)ref_round(ATTEST_BF16, x) : x; }

static void merge(const struct trial *t, float o[DIM], float *lse)
{
    float max = -INFINITY, sum = 0, sums[DIM] = {0};
    for (int64_t a = 0; a < t->count; ++a) max = fmaxf(max, (float)t->lse[a]);
    for (int64_t a = 0; a < t->count; ++a) {
        if (t->lse[a] == -INFINITY) continue;
        const float w = weight(t, a, max);
        sum = summed(t, sum + w);
        for (int x = 0; x < DIM; ++x) sums[x] = flushed(t, sums[x] + flushed(t, w * (float)t->o[a][x]));
    }
    for (int x = 0; x < DIM; ++x) o[x] = flushed(t, sums[x] / sum);
    const float log2_sum = (float)(log2(sum) + t->log_share * (0x1p-22 - 0x1p-24) * (1 / log(2) + log2(sum)));
    *lse = fmaf(log2_sum, 0x1.62e43p-1f, max);
}

static void draw(struct judge_random *g, int kind, struct trial *t)
{
    const double spread = (double[]){0, 1, 40, 3e5}[kind % 4], shift = kind % 3 == 0 ? 0 : 300 * judge_normal(g);
    t->count = kind % 5 == 0 ? 2 : judge_range(g, 1, kind % 16 == 1 ? MAX_STATES : 8);
    t->exp_error = kind % 13 < 3 ? 0x1p-12 : 0x1p-22;
    t->exp_share = kind % 7 < 3 ? 1 : -1;
    t->exp_share_below = kind % 7 % 2 ? t->exp_share : -t->exp_share;
    t->log_share = kind % 2 ? 1 : -1;
    t->bf16_sums = false, t->flush = kind % 3 == 0;
    for (int64_t a = 0; a < t->count; ++a) {
        t->lse[a] = judge_uniform(g) < 0.1 ? -INFINITY : (float)(shift + spread * judge_normal(g));
        for (int x = 0; x < DIM; ++x) {
            const double normal = judge_normal(g), number = x == 0 ? 1 + 0x1p-10 * normal : normal;
            const double size = x == 3 ? ldexp(1, (int)judge_range(g, -149, 100)) : 1;
            t->o[a][x] = (float)(number * size);
        }
    }
}

struct shares {
    double o, o_f16, o_bf16, lse, do_state, dlse_state;
};

/* |got - want| of the bound; 0 of 0 is none of it. */
static double share(double got, double want, double bound)
{
    const double error = fabs(got - want);
    return got == want ? 0 : !(error <= bound * 1e30) ? INFINITY : error / bound;
}

/* An o of 16 bits is that of fp32, rounded. Features 0 .. 2 are not too large for fp16. */
static double share_rounded(const struct trial *t, int32_t dtype, const float got[DIM], const double want[DIM])
{
    double o_bound[DIM], lse_bound, largest = 0;
    const double *o_states[MAX_STATES], *lse_states[MAX_STATES];
    struct attest_recipe recipe = *ref_kernel_recipe("merge");
    recipe.exp_error = t->exp_error;
    for (int64_t a = 0; a < t->count; ++a) o_states[a] = t->o[a], lse_states[a] = &t->lse[a];
    cr_assert_eq(ref_bound_merge(t->count, 1, DIM, o_states, lse_states, &recipe, dtype, o_bound, &lse_bound),
                 ATTEST_OK);
    for (int x = 0; x < 3; ++x) largest = fmax(largest, share(ref_round(dtype, got[x]), want[x], o_bound[x]));
    return largest;
}

static void judge(const struct trial *t, struct shares *s)
{
    float got[DIM], got_lse;
    double o[DIM], lse, o_bound[DIM], lse_bound;
    const double *o_states[MAX_STATES], *lse_states[MAX_STATES];
    for (int64_t a = 0; a < t->count; ++a) o_states[a] = t->o[a], lse_states[a] = &t->lse[a];
    struct attest_recipe recipe = *ref_kernel_recipe("merge");
    recipe.exp_error = t->exp_error;
    ref_merge(t->count, 1, DIM, o_states, lse_states, o, &lse);
    cr_assert_eq(ref_bound_merge(t->count, 1, DIM, o_states, lse_states, &recipe, ATTEST_FP32, o_bound, &lse_bound),
                 ATTEST_OK);
    merge(t, got, &got_lse);
    if (lse == -INFINITY) return; /* no state */
    int parts = 0;
    for (int64_t a = 0; a < t->count; ++a) parts += t->lse[a] != -INFINITY;
    cr_assert_eq(lse_bound > 0, parts > 1);
    if (parts < 2) return; /* copied, which this merge does not */
    for (int x = 0; x < DIM; ++x) s->o = fmax(s->o, share(got[x], o[x], o_bound[x]));
    s->o_f16 = fmax(s->o_f16, share_rounded(t, ATTEST_FP16, got, o));
    s->o_bf16 = fmax(s->o_bf16, share_rounded(t, ATTEST_BF16, got, o));
    s->lse = fmax(s->lse, share(got_lse, lse, lse_bound));
}

/* ---- backward ---- */

/* Of the merge in fp32, as a caller has it; or of another union, near or far. */
struct gradient {
    double o[DIM], lse, dout[DIM], dlse;
};

static void draw_gradient(struct judge_random *g, int kind, const struct trial *t, struct gradient *d)
{
    float o[DIM], lse;
    merge(t, o, &lse);
    d->lse = lse + (kind % 4 ? 0.0 : (float)judge_normal(g)), d->lse = (float)d->lse;
    d->dlse = kind % 3 ? (float)judge_normal(g) : 0;
    for (int x = 0; x < DIM; ++x) {
        d->o[x] = kind % 5 ? o[x] : (float)ref_round(ATTEST_BF16, o[x]);
        d->dout[x] = (float)judge_normal(g);
    }
}

static void differentiate(const struct trial *t, int64_t a, const struct gradient *d, float do_state[DIM], float *dlse)
{
    const float w = weight(t, a, (float)d->lse);
    float dot = 0;
    for (int x = 0; x < DIM; ++x) {
        dot = summed(t, fmaf((float)d->dout[x], (float)t->o[a][x] - (float)d->o[x], dot));
        do_state[x] = w * (float)d->dout[x];
    }
    *dlse = w * ((float)d->dlse + dot);
}

static void judge_backward(const struct trial *t, const struct gradient *d, struct shares *s)
{
    struct attest_recipe recipe = *ref_kernel_recipe("merge_backward");
    recipe.exp_error = t->exp_error;
    for (int64_t a = 0; a < t->count; ++a) {
        const double *const o = t->o[a], *const lse = &t->lse[a];
        double want[DIM], want_dlse, bound[DIM], bound_dlse;
        double *const to_do = want, *const to_dlse = &want_dlse;
        double *const do_bound = bound, *const dlse_bound = &bound_dlse;
        float got[DIM], got_dlse;
        ref_merge_backward(1, 1, DIM, &o, &lse, d->o, &d->lse, d->dout, &d->dlse, &to_do, &to_dlse);
        ref_bound_merge_backward(1, 1, DIM, &o, &lse, d->o, &d->lse, d->dout, &d->dlse, &recipe, &do_bound,
                                 &dlse_bound);
        if (*lse == -INFINITY) {
            cr_assert(bound[0] == 0 && bound_dlse == 0 && want[0] == 0 && want_dlse == 0);
            continue;
        }
        differentiate(t, a, d, got, &got_dlse);
        for (int x = 0; x < DIM; ++x) s->do_state = fmax(s->do_state, share(got[x], want[x], bound[x]));
        s->dlse_state = fmax(s->dlse_state, share(got_dlse, want_dlse, bound_dlse));
    }
}

/* The largest shares over random trials, functions `worse` times as bad as stated. */
static struct shares largest(double worse, bool bf16_sums)
{
    struct judge_random g = {17};
    struct shares s = {0};
    for (int i = 0; i < TRIALS; ++i) {
        struct trial t;
        struct gradient d;
        draw(&g, i, &t);
        t.exp_share *= worse, t.exp_share_below *= worse, t.log_share *= worse;
        t.bf16_sums = bf16_sums;
        judge(&t, &s);
        draw_gradient(&g, i, &t, &d);
        if (isfinite(d.lse)) judge_backward(&t, &d, &s);
    }
    return s;
}

Test(bounds_merge, functions_at_their_limits_stay_within)
{
    const struct shares s = largest(1, false);
    printf("largest share of a merge's bound: o %.3f (fp16 %.3f, bf16 %.3f), lse %.3f\n"
           "of its backward's: do %.3f, dlse %.3f\n", s.o, s.o_f16, s.o_bf16, s.lse, s.do_state, s.dlse_state);
    fflush(stdout);
    const double shares[] = {s.o, s.o_f16, s.o_bf16, s.lse, s.do_state, s.dlse_state};
    for (int i = 0; i < 6; ++i) cr_expect(shares[i] <= 1 && shares[i] > 0.5, "share %d", i);
}

Test(bounds_merge, worse_functions_and_sums_do_not)
{
    const struct shares functions = largest(3, false), sums = largest(1, true);
    cr_expect(functions.o > 1 && functions.lse > 1 && functions.do_state > 1 && functions.dlse_state > 1);
    cr_expect(sums.o > 1 && sums.lse > 1 && sums.dlse_state > 1);
}

Test(bounds_merge, outside_of_the_domain_nothing_is_claimed)
{
    double o_a[3] = {1, 3e38, NAN}, o_b[3] = {2, 3e38, 1}, o[3], lse, zero = 0, infinite = INFINITY, not = NAN;
    const double *const o_states[] = {o_a, o_b}, *lse_states[] = {&zero, &zero};
    const struct attest_recipe *recipe = ref_kernel_recipe("merge");
    cr_assert_eq(ref_bound_merge(2, 1, 3, o_states, lse_states, recipe, ATTEST_FP32, o, &lse), ATTEST_OK);
    cr_expect(o[0] < 1e-6 && o[0] > 0x1p-25 && o[1] == INFINITY && o[2] == INFINITY && lse < 1e-6 && lse > 0);
    lse_states[1] = &infinite;
    cr_assert_eq(ref_bound_merge(2, 1, 3, o_states, lse_states, recipe, ATTEST_FP32, o, &lse), ATTEST_OK);
    cr_expect(o[0] == INFINITY && lse == INFINITY);
    lse_states[1] = &not;
    cr_assert_eq(ref_bound_merge(2, 1, 3, o_states, lse_states, recipe, ATTEST_FP32, o, &lse), ATTEST_OK);
    cr_expect(o[0] == INFINITY && lse == INFINITY);
}

static void check_backward_bound(double lse_state, double o_state, double lse, double dout, bool known)
{
    double do_bound, dlse_bound, zero = 0;
    const double *const o_of = &o_state, *const lse_of = &lse_state;
    double *const to_do = &do_bound, *const to_dlse = &dlse_bound;
    ref_bound_merge_backward(1, 1, 1, &o_of, &lse_of, &zero, &lse, &dout, NULL, ref_kernel_recipe("merge_backward"),
                             &to_do, &to_dlse);
    cr_expect(known ? do_bound < 1 && dlse_bound < 1 : dlse_bound == INFINITY, "lse_a %g, o_a %g, lse %g, dout %g: %g",
              lse_state, o_state, lse, dout, dlse_bound);
}

Test(bounds_merge, outside_of_the_backwards_domain_nothing_is_claimed)
{
    check_backward_bound(0, 1, 1, 1, true);
    check_backward_bound(0, NAN, 1, 1, false);
    check_backward_bound(0, 1, 1, INFINITY, false);
    check_backward_bound(0, 3e38, 1, 2, false);
    check_backward_bound(0, INFINITY, 1, 0, false);
    check_backward_bound(0, 1, -INFINITY, 1, false);
    check_backward_bound(NAN, 1, 1, 1, false);
    check_backward_bound(INFINITY, 1, INFINITY, 1, false);
    check_backward_bound(89, 1, 0, 1, false);
    check_backward_bound(-INFINITY, NAN, NAN, NAN, true);
}

Test(bounds_merge, kernels_have_recipes)
{
    cr_expect_str_eq(ref_kernel_recipe("forward_fp32")->name, "forward_fp32");
    cr_expect_str_eq(ref_kernel_recipe("merge")->name, "merge");
    cr_expect_str_eq(ref_kernel_recipe("merge_backward")->name, "merge_backward");
    cr_expect_null(ref_kernel_recipe("fp32"));
}

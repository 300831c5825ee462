/* bounds_statistics_test.c - weights that differ by less than what their format resolves are rounded alike, row by row:
 * honest kernels pass the statistical verdict there, too, and it sees what it is for where weights differ. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/judge_cases.h"
#include "reference/machine.h"

enum { ROWS = 192, KEYS = 256, DIM = 16 };

/* One head. Values as doubles, and as the problem has them. */
static struct fixture {
    struct attest_problem p;
    struct attest_backward_args a;
    double q[ROWS * DIM], k[KEYS * DIM], v[KEYS * DIM], dout[ROWS * DIM], dlse[ROWS];
    unsigned char bytes[5][KEYS * DIM * 4];
    double x[ROWS][KEYS], lse[ROWS], o[ROWS * DIM];
    double dq[ROWS * DIM], dk[KEYS * DIM], dv[KEYS * DIM];
    double bound[KEYS * DIM], sigma[KEYS * DIM], bias[KEYS * DIM], alike[REF_WAYS][KEYS * DIM], along[ROWS];
    bool has_alike; /* these are asked for */
    float got[KEYS * DIM];
    struct ref_report report;
} f;

static struct attest_tensor rows_of(int32_t dtype, int64_t features)
{
    return (struct attest_tensor){.dtype = dtype, .batch = 0, .seqlen = features, .head = features};
}

static void fill(double *to, int64_t count, double mean, double size, uint64_t seed)
{
    struct judge_random g = {seed};
    for (int64_t i = 0; i < count; ++i) to[i] = mean + size * judge_normal(&g);
}

/* Rounds the values to `dtype`, which they are from then on, and lays them out. */
static void *store(double *values, int64_t count, int32_t dtype, int at)
{
    for (int64_t i = 0; i < count; ++i) {
        values[i] = ref_round(dtype, values[i]);
        ref_store(dtype, f.bytes[at], i, values[i]);
    }
    return f.bytes[at];
}

/* Scores of standard deviation `spread`, values of that mean. */
static void set_up(double spread, double mean, int32_t dout)
{
    memset(&f, 0, sizeof f);
    f.p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    f.p.device = ATTEST_REFERENCE;
    f.p.batch = f.p.num_heads_q = f.p.num_heads_kv = 1;
    f.p.seqlen_q = ROWS, f.p.seqlen_k = KEYS;
    f.p.head_dim = f.p.head_dim_v = DIM;
    f.p.softmax_scale = 0.25f;
    f.p.q = f.p.k = f.p.v = rows_of(ATTEST_BF16, DIM);
    f.p.o = f.p.dq = f.p.dk = f.p.dv = rows_of(ATTEST_FP32, DIM);
    f.p.dout = rows_of(dout, DIM);
    f.p.lse = rows_of(ATTEST_FP32, 1);
    f.a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    fill(f.q, ROWS * DIM, 0, spread, 1);
    fill(f.k, KEYS * DIM, 0, 1, 2);
    fill(f.v, KEYS * DIM, mean, 1, 3);
    fill(f.dout, ROWS * DIM, 4, 1, 4);
}

static void lay_out(void)
{
    f.a.forward.q = store(f.q, ROWS * DIM, ATTEST_BF16, 0);
    f.a.forward.k = store(f.k, KEYS * DIM, ATTEST_BF16, 1);
    f.a.forward.v = store(f.v, KEYS * DIM, ATTEST_BF16, 2);
    f.a.dout = store(f.dout, ROWS * DIM, f.p.dout.dtype, 3);
    if (f.p.dlse.dtype) f.a.dlse = store(f.dlse, ROWS, f.p.dlse.dtype, 4);
    const struct ref_forward forward = {f.o, f.lse};
    const struct ref_backward backward = {.dq = f.dq, .dk = f.dk, .dv = f.dv};
    cr_assert_eq(ref_forward(&f.p, &f.a.forward, &forward, 1), ATTEST_OK);
    cr_assert_eq(ref_backward(&f.p, &f.a, NULL, &backward, 1), ATTEST_OK);
    for (int64_t i = 0; i < f.p.seqlen_q; ++i) {
        for (int64_t j = 0; j < f.p.seqlen_k; ++j) {
            double dot = 0.0;
            for (int64_t c = 0; c < DIM; ++c) dot += f.q[i * DIM + c] * f.k[j * DIM + c];
            f.x[i][j] = (double)f.p.softmax_scale * dot;
        }
    }
}

/* o by tiles of so many keys and a running maximum; errs by the rounding of weights to so many digits, and no more. */
static void attend(int64_t tile, int digits)
{
    for (int64_t i = 0; i < f.p.seqlen_q; ++i) {
        double max = -INFINITY, sum = 0.0, o[DIM] = {0};
        for (int64_t first = 0; first < f.p.seqlen_k; first += tile) {
            double above = max;
            for (int64_t j = first; j < first + tile && j < f.p.seqlen_k; ++j) above = fmax(above, f.x[i][j]);
            const double rescale = exp(max - above);
            max = above, sum *= rescale;
            for (int64_t c = 0; c < DIM; ++c) o[c] *= rescale;
            for (int64_t j = first; j < first + tile && j < f.p.seqlen_k; ++j) {
                const double weight = exp(f.x[i][j] - max);
                int exponent;
                const double rounded = nearbyint(ldexp(frexp(weight, &exponent), digits));
                sum += weight;
                for (int64_t c = 0; c < DIM; ++c) o[c] += ldexp(rounded, exponent - digits) * f.v[j * DIM + c];
            }
        }
        for (int64_t c = 0; c < DIM; ++c) f.got[i * DIM + c] = (float)(o[c] / sum);
    }
}

static enum ref_verdict judge_o(const char *recipe)
{
    const struct ref_bound bound = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    cr_assert_eq(ref_bound_forward(&f.p, &f.a.forward, ref_recipe(recipe), &bound, NULL, 1), ATTEST_OK);
    ref_judge(&f.p, &f.a.forward, REF_O, f.got, f.o, &bound, 1, &f.report);
    return f.report.verdict;
}

static enum ref_verdict judge_gradient(const char *recipe, enum ref_tensor tensor, const double *want)
{
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    static double others[REF_NUM_TENSORS][KEYS * DIM];
    for (int t = REF_DQ; t <= REF_DV; ++t) bounds[t].bound = others[t];
    bounds[tensor] = (struct ref_bound){.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    for (int n = 0; f.has_alike && n < REF_WAYS; ++n) bounds[tensor].alike[n] = f.alike[n];
    if (tensor == REF_DQ) bounds[tensor].along = f.along;
    cr_assert_eq(ref_bound_backward(&f.p, &f.a, ref_recipe(recipe), bounds, 1), ATTEST_OK);
    ref_judge(&f.p, &f.a.forward, tensor, f.got, want, &bounds[tensor], 1, &f.report);
    return f.report.verdict;
}

/* The error along the result, as a share of what bias and noise allow; nothing is assumed of the noise within a row. */
static double share_along(const double *want, int64_t rows)
{
    double error = 0.0, bias = 0.0, variance = 0.0;
    for (int64_t r = 0; r < rows; ++r) {
        double sigma = 0.0;
        for (int64_t at = r * DIM; at < (r + 1) * DIM; ++at) {
            error += ((double)f.got[at] - want[at]) * want[at];
            bias += f.bias[at] * fabs(want[at]);
            sigma += f.sigma[at] * fabs(want[at]);
        }
        variance += sigma * sigma;
    }
    return fabs(error) / (bias + sqrt(2 * log(2 / REF_FALSE_ALARM) * variance));
}

#define EXPECT_PASS(verdict, ...)                                                                        \
    do {                                                                                                 \
        const enum ref_verdict is = (verdict);                                                           \
        char of[80];                                                                                     \
        snprintf(of, sizeof of, __VA_ARGS__);                                                            \
        cr_expect_eq(is, REF_PASS, "%s: %s, use %.3g, rms %.3g, mean %.3g", of, ref_verdict_name(is),    \
                     f.report.use, f.report.rms_ratio, f.report.mean_ratio);                             \
    } while (0)

/* A step of bf16 below 1 is 2^-8: from a hundredth of it to a hundred. */
Test(bounds_statistics, weights_near_one_round_alike)
{
    double largest = 0.0;
    for (int mean = 0; mean <= 4; mean += 4)
        for (double spread = 0x1p-15; spread < 1; spread *= 1.4)
            for (int64_t keys = 16; keys <= KEYS; keys *= 4)
                for (int64_t tile = 16; tile <= keys; tile *= 4) {
                    set_up(spread, mean, ATTEST_BF16);
                    f.p.seqlen_k = keys;
                    lay_out();
                    attend(tile, 8);
                    EXPECT_PASS(judge_o("hopper"), "mean %d, spread %.3g, %ld keys, tile %ld", mean, spread, (long)keys,
                                (long)tile);
                    largest = fmax(largest, f.report.rms_ratio);
                    const double along = share_along(f.o, ROWS);
                    cr_expect(along <= 1, "mean %d, spread %.3g, %ld keys, tile %ld: %g", mean, spread, (long)keys,
                              (long)tile, along);
                }
    cr_expect_gt(largest, 0.6);
}

/* All but one have nearly one weight, anywhere between two numbers of bf16, the same in all rows or not. */
Test(bounds_statistics, weights_far_below_one_round_alike)
{
    for (int offset = 0; offset < 40; ++offset)
        for (int64_t at = 0; at < KEYS; at += KEYS - 1) {
            set_up(0x1p-14, 4, ATTEST_BF16);
            for (int64_t i = 0; i < ROWS; ++i) f.q[i * DIM] = offset < 20 ? 1 : 1 + (double)i / ROWS;
            for (int64_t j = 0; j < KEYS; ++j) f.k[j * DIM] = j == at ? 1 + offset % 20 / 64.0 : 0;
            lay_out();
            attend(16, 8);
            EXPECT_PASS(judge_o("hopper"), "offset %d, key %ld", offset, (long)at);
        }
}

Test(bounds_statistics, weights_of_two_digits_less_are_seen)
{
    set_up(1, 4, ATTEST_BF16);
    lay_out();
    attend(16, 8);
    EXPECT_PASS(judge_o("hopper"), "8 digits");
    attend(16, 6);
    cr_expect_eq(judge_o("hopper"), REF_FAIL);
    cr_expect_gt(f.report.rms_ratio, 1);
}

/* Of n keys alike p is 1 / n; an honest p may be off by 2^-20 of itself. */
Test(bounds_statistics, equal_p_near_a_tie_round_alike)
{
    for (int64_t keys = 2; keys <= KEYS; ++keys)
        for (int sign = -1; sign <= 1; sign += 2) {
            set_up(0, 4, ATTEST_FP16);
            f.p.seqlen_k = keys, f.p.seqlen_q = 1;
            lay_out();
            const double p = ref_round(ATTEST_FP16, (1 + sign * 0x1p-20) / (double)keys);
            for (int64_t j = 0; j < keys; ++j)
                for (int64_t c = 0; c < DIM; ++c) f.got[j * DIM + c] = (float)(p * f.dout[c]);
            EXPECT_PASS(judge_gradient("mixed", REF_DV, f.dv), "%ld keys, %d", (long)keys, sign);
        }
}

/* Flash's ds is made of the p that was rounded for dv: with dlse its z are of one sign. q is, too, or not. */
static void compare_dk(double mean_of_q)
{
    for (int64_t keys = 3; keys <= KEYS; keys += 2) {
        set_up(0x1p-16, 4, ATTEST_BF16);
        f.p.seqlen_q = 16, f.p.seqlen_k = keys;
        fill(f.q, ROWS * DIM, mean_of_q, 0x1p-16, 5);
        f.p.dlse = rows_of(ATTEST_FP32, 1);
        fill(f.dlse, ROWS, 256, 1, 6);
        lay_out();
        double dk[KEYS * DIM] = {0};
        for (int64_t i = 0; i < f.p.seqlen_q; ++i) {
            double delta = 0.0, dp[KEYS] = {0};
            for (int64_t j = 0; j < keys; ++j) {
                for (int64_t c = 0; c < DIM; ++c) dp[j] += f.dout[i * DIM + c] * f.v[j * DIM + c];
                delta += exp(f.x[i][j] - f.lse[i]) * dp[j];
            }
            for (int64_t j = 0; j < keys; ++j) {
                const double p = ref_round(ATTEST_BF16, exp(f.x[i][j] - f.lse[i]));
                const double ds = ref_round(ATTEST_BF16, p * (dp[j] - delta + f.dlse[i]));
                for (int64_t c = 0; c < DIM; ++c) dk[j * DIM + c] += 0.25 * ds * f.q[i * DIM + c];
            }
        }
        for (int64_t at = 0; at < keys * DIM; ++at) f.got[at] = (float)dk[at];
        EXPECT_PASS(judge_gradient("flash", REF_DK, f.dk), "%ld keys", (long)keys);
        cr_expect(share_along(f.dk, keys) <= 1, "%ld keys: %g", (long)keys, share_along(f.dk, keys));
    }
}

Test(bounds_statistics, equal_p_in_ds_round_alike) { compare_dk(0x1p-14); }
Test(bounds_statistics, and_dk_of_either_sign_along_itself) { compare_dk(0); }

/* dq of one key is 0; with dropout its delta is not dp, but of a rounded o. */
Test(bounds_statistics, what_is_all_error_is_rounded_as_it_is)
{
    for (uint64_t seed = 0; seed < 200; ++seed) {
        static uint16_t o[ROWS * DIM];
        set_up(1, 4, ATTEST_BF16);
        f.p.seqlen_q = 2, f.p.seqlen_k = 1;
        f.p.dropout_p = 0.1f, f.p.dropout_seed = seed;
        fill(f.k, DIM, 0, 1, 2 + seed);
        fill(f.v, DIM, 4, 1, 3 + seed);
        f.p.o.dtype = f.p.dq.dtype = ATTEST_BF16;
        f.p.head_dim_v = 1;
        lay_out();
        f.a.forward.o = o;
        for (int64_t i = 0; i < f.p.seqlen_q; ++i) {
            const double m = ref_dropout(&f.p, &f.a.forward, 0, 0, i, 0);
            double dp = 0.0, delta = 0.0;
            for (int64_t c = 0; c < f.p.head_dim_v; ++c) {
                ref_store(ATTEST_BF16, o, i * DIM + c, m * f.v[c]);
                dp += m * f.dout[i * DIM + c] * f.v[c];
                delta += f.dout[i * DIM + c] * ref_load(ATTEST_BF16, o, i * DIM + c);
            }
            const double ds = ref_round(ATTEST_BF16, dp - delta);
            for (int64_t c = 0; c < DIM; ++c) ref_store(ATTEST_BF16, f.got, i * DIM + c, 0.25 * ds * f.k[c]);
        }
        cr_expect_eq(judge_gradient("hopper", REF_DQ, f.dq), REF_VACUOUS, "seed %ld: use %.6g, rms %.6g, mean %.6g",
                     (long)seed, f.report.use, f.report.rms_ratio, f.report.mean_ratio); /* and not FAIL */
    }
}

/* dq and dk of query rows whose p are alike, ds times `factor` rounded: where dropout takes keys away it is
 * -p delta. */
static void differentiate(double factor, double size, bool rounds_p, enum ref_tensor tensor)
{
    double dq[KEYS * DIM] = {0}, dk[KEYS * DIM] = {0};
    for (int64_t i = 0; i < f.p.seqlen_q; ++i) {
        double delta = 0.0, dp[KEYS] = {0}, p[KEYS];
        for (int64_t j = 0; j < f.p.seqlen_k; ++j) {
            const double kept = ref_dropout(&f.p, &f.a.forward, 0, 0, i, j);
            for (int64_t c = 0; c < DIM; ++c) dp[j] += kept * f.dout[i * DIM + c] * f.v[j * DIM + c];
            p[j] = exp(f.x[i][j] - f.lse[i]);
            delta += p[j] * dp[j];
        }
        for (int64_t j = 0; j < f.p.seqlen_k; ++j) {
            const double of_p = rounds_p ? ref_round(ATTEST_BF16, p[j]) : p[j];
            const double ds = ref_round(ATTEST_BF16, factor * of_p * (dp[j] - delta)) / factor;
            for (int64_t c = 0; c < DIM; ++c) dq[i * DIM + c] += f.p.softmax_scale * ds * f.k[j * DIM + c];
            for (int64_t c = 0; c < DIM; ++c) dk[j * DIM + c] += f.p.softmax_scale * ds * f.q[i * DIM + c];
        }
    }
    for (int64_t at = 0; at < KEYS * DIM; ++at) f.got[at] = (float)(size * (tensor == REF_DQ ? dq : dk)[at]);
}

/* Whatever factor of the recipe's ds has as it is rounded; a result of 1.01 times itself is none of it, and
 * softmax_scale is where the recipe says so. */
static void compare_dropped(const char *recipe, bool rounds_p, enum ref_tensor tensor)
{
    static float o[ROWS * DIM];
    const bool has_scale = ref_recipe(recipe)->round_scaled_ds;
    int64_t seen = 0, others = 0;
    for (uint64_t seed = 0; seed < (tensor == REF_DQ ? 10 : 100); ++seed) {
        set_up(0x1p-16, 4, ATTEST_BF16);
        f.p.seqlen_q = tensor == REF_DQ ? ROWS : 2, f.p.softmax_scale = 0.3f;
        f.p.dropout_p = 0.9f, f.p.dropout_seed = seed;
        f.has_alike = true;
        fill(f.k, KEYS * DIM, 4, 1, 2 + seed);
        fill(f.dout, ROWS * DIM, 0, 1, 4 + seed);
        lay_out();
        for (int64_t at = 0; at < f.p.seqlen_q * DIM; ++at) o[at] = (float)f.o[at];
        f.a.forward.o = o;
        const double *const want = tensor == REF_DQ ? f.dq : f.dk, kept = ref_share_kept(&f.p);
        const double factors[] = {1, f.p.softmax_scale, kept, f.p.softmax_scale * kept};
        for (int n = 0; n < 4; ++n) {
            differentiate(factors[n], 1, rounds_p, tensor);
            if (n % 2 == 1 && !has_scale) {
                others += judge_gradient(recipe, tensor, want) == REF_FAIL;
                continue;
            }
            EXPECT_PASS(judge_gradient(recipe, tensor, want), "%s, seed %ld, factor %g: direction %g", recipe,
                        (long)seed, factors[n], f.report.direction_ratio);
            f.has_alike = false;
            seen += judge_gradient(recipe, tensor, want) == REF_FAIL;
            f.has_alike = true;
            differentiate(factors[n], 1.01, rounds_p, tensor);
            cr_expect_eq(judge_gradient(recipe, tensor, want), REF_FAIL, "%s, seed %ld, factor %g: direction %g",
                         recipe, (long)seed, factors[n], f.report.direction_ratio);
        }
    }
    cr_expect(has_scale || tensor == REF_DQ || others > 0, "%s: softmax_scale ds passes", recipe);
    cr_expect_gt(seen, 0, "%s, %s: all of it passes as noise, too", recipe, ref_tensor_names[tensor]);
}

Test(bounds_statistics, dq_of_dropped_keys_rounds_alike) { compare_dropped("mixed", false, REF_DQ); }
Test(bounds_statistics, dk_of_dropped_keys_rounds_alike) { compare_dropped("mixed", false, REF_DK); }
Test(bounds_statistics, and_where_ds_is_of_a_rounded_p) { compare_dropped("flash", true, REF_DK); }

/* A sub-Gaussian deviation exceeds z standard deviations with probability exp(-z^2 / 2) at most, on either side. */
Test(bounds_statistics, deviations_of_all_rows_stay_within_at_the_stated_probability)
{
    set_up(1, 4, ATTEST_BF16);
    f.p.seqlen_q = 1000000;
    const struct ref_machine m = ref_machine(&f.p, ref_recipe("hopper"));
    const double deviations = 4 * 1e6;
    cr_expect(fabs(2 * deviations * exp(-m.row_sigmas * m.row_sigmas / 2) / REF_FALSE_ALARM - 1) < 1e-6, "%g",
              m.row_sigmas);
}

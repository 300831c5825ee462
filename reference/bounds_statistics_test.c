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
    f.a.forward.q = store(f.q, ROWS * DIM, f.p.q.dtype, 0);
    f.a.forward.k = store(f.k, KEYS * DIM, f.p.k.dtype, 1);
    f.a.forward.v = store(f.v, KEYS * DIM, f.p.v.dtype, 2);
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

/* recipe: its name, or that of a kernel. */
static enum ref_verdict judge_gradient(const char *recipe, enum ref_tensor tensor, const double *want)
{
    const struct attest_recipe *const named = ref_recipe(recipe), *const of_kernel = ref_kernel_recipe(recipe);
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    static double others[REF_NUM_TENSORS][KEYS * DIM];
    for (int t = REF_DQ; t <= REF_DV; ++t) bounds[t].bound = others[t];
    bounds[tensor] = (struct ref_bound){.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    for (int n = 0; f.has_alike && n < REF_WAYS; ++n) bounds[tensor].alike[n] = f.alike[n];
    if (tensor == REF_DQ) bounds[tensor].along = f.along;
    cr_assert_eq(ref_bound_backward(&f.p, &f.a, named ? named : of_kernel, bounds, 1), ATTEST_OK);
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

/* One query row and key, a cap of 0.25 and a score of `score` beneath it: of the slope 1 - tanh^2 nothing may be left. */
static void set_up_capped(double score, int32_t dtype)
{
    set_up(0, 4, dtype);
    f.p.seqlen_q = f.p.seqlen_k = 1;
    f.p.q.dtype = f.p.k.dtype = f.p.v.dtype = dtype;
    f.p.softcap = 0.25f;
    for (int64_t c = 0; c < DIM; ++c) f.q[c] = score / (0.25 * DIM), f.k[c] = 1 - 0.25 * (double)(c % 4);
    double dot = 0.0;
    for (int64_t c = 0; c < DIM; ++c) dot += f.q[c] * f.k[c];
    for (int64_t c = 0; c < DIM; ++c) f.q[c] *= score / (0.25 * dot);
}

/* dq of one key is 0, but for a delta of the o that is in memory, rounded: it meets the slope at hand, and an accurate
 * tanh of 10 in fp32 is a step below 1, or two, 7 to 14 times as far as tanh of 10. */
Test(bounds_statistics, a_slope_that_is_all_error_meets_the_delta_at_hand)
{
    for (uint64_t seed = 0; seed < 100; ++seed) {
        static uint16_t o[DIM];
        set_up_capped(2.5, ATTEST_FP32);
        f.p.o.dtype = ATTEST_FP16;
        fill(f.v, DIM, 4, 1, 3 + seed);
        lay_out();
        double off = 0.0;
        for (int64_t c = 0; c < DIM; ++c) {
            ref_store(ATTEST_FP16, o, c, f.v[c]);
            off += f.dout[c] * (f.v[c] - ref_load(ATTEST_FP16, o, c));
        }
        f.a.forward.o = o;
        for (int steps = 0; steps <= 2; ++steps) {
            const double slope = steps * 0x1p-23;
            for (int64_t c = 0; c < DIM; ++c) f.got[c] = (float)(0.25 * slope * off * f.k[c]);
            cr_expect_eq(judge_gradient("hopper", REF_DQ, f.dq), REF_VACUOUS, "seed %ld, %d: rms %.6g", (long)seed,
                         steps, f.report.rms_ratio); /* and not FAIL */
        }
    }
}

/* Rounds o of the first row, of keys of one v, to `dtype`. Returns what dout . o is off by. */
static double round_o(int32_t dtype)
{
    static uint16_t o[DIM];
    double off = 0.0;
    f.p.o.dtype = dtype;
    for (int64_t c = 0; c < DIM; ++c) {
        ref_store(dtype, o, c, f.v[c]);
        off += f.dout[c] * (f.v[c] - ref_load(dtype, o, c));
    }
    f.a.forward.o = o;
    return off;
}

/* One query row, keys of one v; all but the first have scores of `low`, and a bit less each. */
static void set_up_equal_values(int64_t keys, double low)
{
    set_up(0, 4, ATTEST_FP16);
    f.p.seqlen_q = 1, f.p.seqlen_k = keys;
    f.p.q.dtype = f.p.k.dtype = f.p.v.dtype = ATTEST_FP16;
    fill(f.dout, DIM, 256, 64, 4);
    for (int64_t at = 0; at < keys * DIM; ++at) f.v[at] = f.v[at % DIM];
    for (int64_t c = 0; c < DIM; ++c) f.q[c] = c == 0 ? 1 : 0;
    for (int64_t j = 0; j < keys; ++j) f.k[j * DIM] = j == 0 ? 0 : low / 0.25 - (double)j / 64;
}

/* The second of two keys of one v has ds 0, but for `p e` of a delta that is off by e, and p may round to twice itself.
 * So it is where that delta is given. */
Test(bounds_statistics, a_p_that_rounds_to_twice_itself_meets_the_delta_at_hand)
{
    for (int is_given = 0; is_given < 2; ++is_given) {
        static float delta;
        set_up_equal_values(2, -17.2);
        if (is_given) f.p.delta = rows_of(ATTEST_FP32, 1);
        f.a.delta = is_given ? &delta : NULL;
        lay_out();
        const double off = round_o(ATTEST_BF16), p = exp(f.x[0][1] - f.lse[0]), ds = ref_round(ATTEST_FP16, 0x1p-24 * off);
        double exact = 0.0;
        for (int64_t c = 0; c < DIM; ++c) exact += f.dout[c] * f.v[c];
        delta = (float)(exact - off);
        cr_assert(p > 0x1.01p-25 && p < 0x1.5p-25 && fabs(ds) > 0x1p-24, "%a, %a", p, ds);
        for (int64_t at = 0; at < 2 * DIM; ++at) f.got[at] = (float)(0.25 * f.q[at % DIM] * (at < DIM ? off : ds));
        cr_expect_eq(judge_gradient("flash", REF_DK, f.dk), REF_VACUOUS, "given: %d, use %.3g, rms %.6g", is_given,
                     f.report.use, f.report.rms_ratio);
    }
}

/* A corrected dq takes e off again by a sum of rounded p: what fp16 makes of its subnormals is left, f times. */
Test(bounds_statistics, what_rounding_p_leaves_of_a_correction)
{
    enum { MANY = 64 };
    set_up_equal_values(MANY, -16.6);
    for (int64_t at = 0; at < MANY * DIM; ++at)
        if (at % DIM > 0) f.k[at] *= at < DIM ? 0 : 1;
    lay_out();
    const double off = round_o(ATTEST_BF16);
    double sum = 0.0, a[DIM] = {0}, b[DIM] = {0};
    for (int64_t j = 0; j < MANY; ++j) {
        const double p = exp(f.x[0][j] - f.lse[0]), ds = ref_round(ATTEST_FP16, p * off), of_p = ref_round(ATTEST_FP16, p);
        sum += ds;
        for (int64_t c = 0; c < DIM; ++c) a[c] += ds * f.k[j * DIM + c], b[c] += of_p * f.k[j * DIM + c];
    }
    for (int64_t c = 0; c < DIM; ++c) f.got[c] = (float)(0.25 * (a[c] - sum * b[c]));
    cr_expect_eq(judge_gradient("backward_sm80", REF_DQ, f.dq), REF_VACUOUS, "use %.3g, rms %.6g, mean %.6g",
                 f.report.use, f.report.rms_ratio, f.report.mean_ratio);
}

/* All weights of scores near 2e6 are off by a fifth, as their lse is: so is `sum p e k`. */
Test(bounds_statistics, an_error_of_weights_meets_the_delta_at_hand)
{
    enum { FEW = 8 };
    set_up_equal_values(FEW, 0);
    f.p.q.dtype = f.p.k.dtype = f.p.v.dtype = ATTEST_FP32;
    f.q[0] = 8192;
    for (int64_t j = 0; j < FEW; ++j) f.k[j * DIM] = 1100 + (double)(j % 3) / 8192;
    lay_out();
    const double off = round_o(ATTEST_BF16);
    double dq[DIM] = {0};
    for (int64_t j = 0; j < FEW; ++j) {
        const double p = 1.2 * exp(f.x[0][j] - f.lse[0]);
        for (int64_t c = 0; c < DIM; ++c) dq[c] += 0.25 * p * off * f.k[j * DIM + c];
    }
    for (int64_t c = 0; c < DIM; ++c) f.got[c] = (float)dq[c];
    cr_expect_eq(judge_gradient("hopper", REF_DQ, f.dq), REF_VACUOUS, "use %.3g, rms %.6g, mean %.6g", f.report.use,
                 f.report.rms_ratio, f.report.mean_ratio);
}

/* Where c p is below half of fp16's least number, its sum cannot give back what ds lost by rounding to 0. */
Test(bounds_statistics, a_slope_that_rounds_to_zero_corrects_nothing)
{
    static const float sink = 8;
    set_up_capped(1.6, ATTEST_FP16); /* the slope is 1.1e-5, p 4e-4 */
    f.p.has_sink = 1;
    f.a.forward.sink = &sink;
    fill(f.dout, DIM, 0.01, 0.001, 4);
    lay_out();
    double most = 0.0;
    for (int64_t c = 0; c < DIM; ++c) most = fmax(most, fabs(f.dq[c])), f.got[c] = 0;
    cr_assert(most > 0 && most < 0x1p-20, "%g", most);
    cr_expect_eq(judge_gradient("backward_sm80", REF_DQ, f.dq), REF_VACUOUS, "rms %.6g", f.report.rms_ratio);
    for (int64_t c = 0; c < DIM; ++c) f.got[c] = (float)(3 * f.dq[c]);
    cr_expect_eq(judge_gradient("backward_sm80", REF_DQ, f.dq), REF_FAIL);
}

/* ds of query heads whose rows are equal round alike: dk has not the root of their number, but all of it. */
Test(bounds_statistics, equal_rows_of_a_group_are_not_independent)
{
    enum { GROUP = 8 };
    double sigma[2];
    for (int is_apart = 0; is_apart < 2; ++is_apart) {
        set_up(1, 0, ATTEST_BF16);
        f.p.num_heads_q = GROUP, f.p.seqlen_q = 1, f.p.seqlen_k = 2;
        for (int64_t at = DIM; at < GROUP * DIM; ++at) {
            f.q[at] = f.q[at % DIM] * (is_apart && at % DIM == 0 ? 1 + (double)(at / DIM) / 64 : 1);
            f.dout[at] = f.dout[at % DIM];
        }
        f.p.q.seqlen = f.p.o.seqlen = f.p.dout.seqlen = f.p.dq.seqlen = GROUP * DIM, f.p.lse.seqlen = GROUP;
        lay_out();
        for (int64_t at = 0; at < 2 * DIM; ++at) f.got[at] = (float)f.dk[at];
        EXPECT_PASS(judge_gradient("mixed", REF_DK, f.dk), "apart: %d", is_apart);
        sigma[is_apart] = f.sigma[1];
    }
    cr_expect(fabs(sigma[0] / sigma[1] - sqrt(GROUP)) < 0.2, "%g of %g", sigma[0], sigma[1]);
}

/* Dot products that are all cut off lack what their partial sums do, not their terms' sizes. An lse that lacks 5/4 of
 * what the sizes would give is seen; beside all else that lse may be off by it would not be if those were allowed. */
Test(bounds_statistics, what_products_lack_is_of_their_partial_sums)
{
    const struct ref_bound bound = {.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    const struct attest_recipe *const recipe = ref_recipe("hopper");
    set_up(16, 0, ATTEST_BF16);
    lay_out();
    const struct ref_machine machine = ref_forward_machine(&f.p, recipe);
    const struct ref_sum sum = ref_sum_features(&machine, DIM);
    cr_assert_eq(ref_bound_forward(&f.p, &f.a.forward, recipe, NULL, &bound, 1), ATTEST_OK);
    for (int64_t i = 0; i < ROWS; ++i) {
        double sizes = 0.0;
        for (int64_t j = 0; j < KEYS; ++j)
            for (int64_t c = 0; c < DIM; ++c)
                sizes += exp(f.x[i][j] - f.lse[i]) * fabs(f.q[i * DIM + c] * f.k[j * DIM + c]);
        f.got[i] = (float)(f.lse[i] - 1.25 * 0.25 * (sum.bias + sum.aligned) * sizes);
    }
    ref_judge(&f.p, &f.a.forward, REF_LSE, f.got, f.lse, &bound, 1, &f.report);
    cr_expect_eq(f.report.verdict, REF_FAIL, "mean %g", f.report.mean_ratio);
}

/* The root of the mean of variances, in units of `size`. */
static double noise_of(int64_t count, double size)
{
    double variance = 0.0;
    for (int64_t at = 0; at < count; ++at) variance += f.sigma[at] * f.sigma[at];
    return sqrt(variance / (double)count) / size;
}

/* Keys that are equal err alike: 16 times 16 of them leave the noise of 16. */
static void compare_keys(const char *recipe, enum ref_tensor tensor)
{
    double noise[2];
    for (int is_repeated = 0; is_repeated < 2; ++is_repeated) {
        set_up(1, 0, ATTEST_BF16);
        f.p.seqlen_k = is_repeated ? 256 : 16;
        for (int64_t at = 16 * DIM; at < 256 * DIM; ++at)
            f.k[at] = f.k[at % (16 * DIM)], f.v[at] = f.v[at % (16 * DIM)];
        for (int64_t j = 0; j < 256; ++j) f.k[j * DIM] = j / 16 % 2 == 0 ? 0.0 : -0.0; /* zeros of any sign are equal */
        lay_out();
        memset(f.got, 0, sizeof f.got);
        if (tensor == REF_O) judge_o(recipe);
        else judge_gradient(recipe, tensor, f.dq);
        noise[is_repeated] = noise_of(ROWS * DIM, 1);
    }
    cr_expect(fabs(noise[1] / noise[0] - 1) < 0.1, "%s, %s: %g of %g", recipe, ref_tensor_names[tensor], noise[1],
              noise[0]);
}

Test(bounds_statistics, equal_keys_err_alike_in_o) { compare_keys("mixed", REF_O); }
Test(bounds_statistics, equal_keys_err_alike_in_dq) { compare_keys("mixed", REF_DQ); }
Test(bounds_statistics, equal_keys_err_alike_in_a_corrected_dq) { compare_keys("backward_sm80", REF_DQ); }

/* Rows of one q share what p is off by and no more: ds, made of each row's own dout, rounds by itself. */
Test(bounds_statistics, rows_of_one_q_round_ds_each_by_itself)
{
    double noise[2];
    for (int is_one = 0; is_one < 2; ++is_one) {
        double size = 0.0;
        set_up(1, 0, ATTEST_BF16);
        fill(f.dout, ROWS * DIM, 0, 1, 4);
        for (int64_t at = DIM; is_one && at < ROWS * DIM; ++at) f.q[at] = f.q[at % DIM];
        lay_out();
        judge_gradient("mixed", REF_DK, f.dk);
        for (int64_t at = 0; at < ROWS * DIM; ++at) size += f.q[at] * f.q[at];
        noise[is_one] = noise_of(KEYS * DIM, sqrt(size));
    }
    cr_expect(noise[1] < 1.5 * noise[0], "%g of %g", noise[1], noise[0]);
}

enum { HEADS = 8 };

/* Heads of the same numbers. */
static void set_up_heads(int64_t heads_kv)
{
    set_up(1, 0, ATTEST_BF16);
    f.p.num_heads_q = HEADS, f.p.num_heads_kv = heads_kv, f.p.seqlen_q = 8, f.p.seqlen_k = 16;
    f.p.q.head = f.p.k.head = f.p.v.head = f.p.dout.head = 0;
    f.a.forward.q = store(f.q, ROWS * DIM, f.p.q.dtype, 0);
    f.a.forward.k = store(f.k, KEYS * DIM, f.p.k.dtype, 1);
    f.a.forward.v = store(f.v, KEYS * DIM, f.p.v.dtype, 2);
    f.a.dout = store(f.dout, ROWS * DIM, f.p.dout.dtype, 3);
}

static double noise_of_gradient(const struct attest_recipe *recipe, enum ref_tensor tensor, int64_t count)
{
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    bounds[tensor] = (struct ref_bound){.bound = f.bound, .sigma = f.sigma, .bias = f.bias};
    cr_assert_eq(ref_bound_backward(&f.p, &f.a, recipe, bounds, 1), ATTEST_OK);
    return noise_of(count, 1);
}

Test(bounds_statistics, dbias_of_equal_heads_has_one_error)
{
    static const float zeros[8 * 16];
    double noise[2];
    for (int is_sum = 0; is_sum < 2; ++is_sum) {
        set_up_heads(HEADS);
        f.p.num_heads_q = f.p.num_heads_kv = is_sum ? HEADS : 1;
        f.p.bias = f.p.dbias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_q = 16, .seqlen_k = 1};
        f.a.forward.bias = zeros;
        noise[is_sum] = noise_of_gradient(ref_recipe("mixed"), REF_DBIAS, 8 * 16);
    }
    cr_expect(fabs(noise[1] / noise[0] - HEADS) < 0.01, "%g of %g", noise[1], noise[0]);
}

Test(bounds_statistics, dbias_of_equal_keys_has_one_error)
{
    static const float zeros[16];
    double noise[2];
    for (int is_repeated = 0; is_repeated < 2; ++is_repeated) {
        set_up_heads(1);
        f.p.num_heads_q = 1;
        f.p.k.seqlen = f.p.v.seqlen = is_repeated ? 0 : DIM; /* 16 keys, or 16 times the first */
        f.p.bias = f.p.dbias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_q = 1};
        f.p.dlse = rows_of(ATTEST_FP32, 1);
        fill(f.dlse, 8, 1, 0.1, 5);
        f.a.dlse = store(f.dlse, 8, ATTEST_FP32, 4);
        f.a.forward.bias = zeros;
        noise[is_repeated] = noise_of_gradient(ref_recipe("mixed"), REF_DBIAS, 8);
    }
    cr_expect(noise[1] > 2 * noise[0], "%g of %g", noise[1], noise[0]);
}

/* The sum of 8 heads that round alike is off by 8 half units, as large as one of the sum. */
Test(bounds_statistics, dk_of_equal_heads_rounds_alike)
{
    struct attest_recipe recipe = *ref_recipe("fp32");
    double noise[2];
    for (int rounds = 0; rounds < 2; ++rounds) {
        set_up_heads(1);
        f.p.dk.dtype = ATTEST_BF16;
        recipe.round_dkv_heads = rounds;
        noise[rounds] = noise_of_gradient(&recipe, REF_DK, 16 * DIM);
    }
    cr_expect(fabs(noise[1] / noise[0] - sqrt(2)) < 0.1, "%g of %g", noise[1], noise[0]);
}

/* What delta is off by, too: dk of 64 equal rows is off by 64 times what one is. */
Test(bounds_statistics, delta_of_equal_rows_is_off_alike)
{
    double bias[2] = {0};
    for (int is_many = 0; is_many < 2; ++is_many) {
        set_up_heads(1);
        f.p.num_heads_q = 1, f.p.seqlen_q = is_many ? 64 : 1;
        f.p.q.seqlen = f.p.dout.seqlen = 0;
        noise_of_gradient(ref_recipe("fp32"), REF_DK, 16 * DIM);
        for (int64_t at = 0; at < 16 * DIM; ++at) bias[is_many] += f.bias[at];
    }
    cr_expect(fabs(bias[1] / bias[0] - 64) < 4, "%g of %g", bias[1], bias[0]);
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

/* formats_test.c - the number formats against independent implementations: MPFR's correct rounding with the
 * format's precision and exponent range, the compiler's own _Float16 and float, and the tables of every bit pattern
 * written from the definition. Exhaustive for formats of 8 and 16 bits; every tie and boundary for all. */
#include <fenv.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>
#include <mpfr.h>

#include "reference/formats.h"
#include "reference/judge_cases.h"

/* The definitions (IEEE 754, bfloat16, OCP 8-bit floating point 1.0), apart from the tables of formats.c. */
struct definition {
    int32_t dtype;
    int bits, fraction_bits, bias;
    bool ocp_e4m3; /* no infinities: the topmost exponent is an ordinary one, and only all ones is NaN */
};
static const struct definition definitions[] = {
    {ATTEST_FP32, 32, 23, 127, false}, {ATTEST_FP16, 16, 10, 15, false},  {ATTEST_BF16, 16, 7, 127, false},
    {ATTEST_FP8_E4M3, 8, 3, 7, true},  {ATTEST_FP8_E5M2, 8, 2, 15, false},
};
enum { NUM_FORMATS = sizeof definitions / sizeof *definitions };

static int exponent_bits(const struct definition *f) { return f->bits - 1 - f->fraction_bits; }
static uint32_t sign_bit(const struct definition *f) { return UINT32_C(1) << (f->bits - 1); }
static uint32_t largest_finite(const struct definition *f)
{
    return f->ocp_e4m3 ? sign_bit(f) - 2 : (((UINT32_C(1) << exponent_bits(f)) - 1) << f->fraction_bits) - 1;
}

/* The value of a pattern, from the definition. */
static double defined_value(const struct definition *f, uint32_t bits)
{
    const uint32_t magnitude = bits & (sign_bit(f) - 1), fraction = magnitude & ((UINT32_C(1) << f->fraction_bits) - 1);
    const int exponent = (int)(magnitude >> f->fraction_bits);
    const double sign = bits & sign_bit(f) ? -1 : 1;
    if (magnitude > largest_finite(f)) return f->ocp_e4m3 || fraction != 0 ? NAN : sign * INFINITY;
    mpfr_t value; /* (hidden bit + fraction) 2^(exponent - bias - fraction_bits) */
    mpfr_init2(value, 64);
    mpfr_set_ui_2exp(value, fraction + (exponent > 0 ? UINT32_C(1) << f->fraction_bits : 0),
                     (exponent > 0 ? exponent : 1) - f->bias - f->fraction_bits, MPFR_RNDN);
    const double result = sign * mpfr_get_d(value, MPFR_RNDN);
    mpfr_clear(value);
    return result;
}

/* Correct rounding to nearest even by MPFR, gradual underflow and overflow included. */
static double mpfr_round_to(const struct definition *f, double value)
{
    const mpfr_exp_t emin = mpfr_get_emin(), emax = mpfr_get_emax();
    const int top = (1 << exponent_bits(f)) - 1 - f->bias - (f->ocp_e4m3 ? 0 : 1); /* exponent of the largest binade */
    mpfr_t x;
    mpfr_init2(x, f->fraction_bits + 1);
    mpfr_set_emin(1 - f->bias - f->fraction_bits + 1); /* MPFR's significands are in [1/2, 1) */
    mpfr_set_emax(top + 1);
    const int inexact = mpfr_set_d(x, value, MPFR_RNDN);
    mpfr_subnormalize(x, mpfr_check_range(x, inexact, MPFR_RNDN), MPFR_RNDN);
    double result = mpfr_get_d(x, MPFR_RNDN);
    mpfr_set_emin(emin);
    mpfr_set_emax(emax);
    mpfr_clear(x);
    if (f->ocp_e4m3 && fabs(result) > 448) result = NAN;
    return result;
}

/* Equal as results: the same bits, or both NaN. */
static bool same(double a, double b) { return (isnan(a) && isnan(b)) || memcmp(&a, &b, sizeof a) == 0; }

struct count {
    long long checked, wrong;
    double first_wrong;
};

static void check_rounding(const struct definition *f, double value, struct count *count)
{
    const double got = ref_round(f->dtype, value);
    bool right = same(got, mpfr_round_to(f, value)) && same(got, ref_decode(f->dtype, ref_encode(f->dtype, value)));
    if (f->dtype == ATTEST_FP32) right = right && same(got, (double)(float)value);
#ifdef __FLT16_MAX__ /* a compiler that has the type */
    if (f->dtype == ATTEST_FP16) right = right && same(got, (double)(_Float16)value);
#endif
    if (isfinite(got)) right = right && fabs(got - value) <= ref_half_ulp(f->dtype, value);
    if (!right && count->wrong++ == 0) count->first_wrong = value;
    ++count->checked;
}

static void check_around(const struct definition *f, double value, struct count *count)
{
    check_rounding(f, value, count);
    check_rounding(f, nextafter(value, INFINITY), count);
    check_rounding(f, nextafter(value, -INFINITY), count);
}

static void expect_none_wrong(const struct definition *f, const struct count *count)
{
    printf("%-8s %lld roundings\n", ref_dtype_name(f->dtype), count->checked);
    cr_assert_gt(count->checked, 0);
    cr_expect_eq(count->wrong, 0, "%s: %lld of %lld wrong, the first at %a", ref_dtype_name(f->dtype), count->wrong,
                 count->checked, count->first_wrong);
}

Test(formats, every_pattern_decodes_as_defined_and_encodes_back)
{
    for (int i = 1; i < NUM_FORMATS; ++i) { /* not fp32, which is sampled below */
        const struct definition *f = &definitions[i];
        for (uint32_t bits = 0; bits < UINT32_C(1) << f->bits; ++bits) {
            const double value = ref_decode(f->dtype, bits);
            cr_assert(same(value, defined_value(f, bits)), "%s %x is %a", ref_dtype_name(f->dtype), bits, value);
            if (isnan(value)) cr_assert(isnan(ref_round(f->dtype, value)));
            else cr_assert_eq(ref_encode(f->dtype, value), bits, "%s %x", ref_dtype_name(f->dtype), bits);
        }
    }
}

Test(formats, fp32_patterns_decode_as_defined_and_encode_back)
{
    const struct definition *f = &definitions[0];
    for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 4096) {
        for (int near = -1; near <= 1; ++near) { /* so on both sides of every change of exponent */
            const uint32_t pattern = (uint32_t)bits + (uint32_t)near;
            const double value = ref_decode(f->dtype, pattern);
            cr_assert(same(value, defined_value(f, pattern)), "%x is %a", pattern, value);
            if (!isnan(value)) cr_assert_eq(ref_encode(f->dtype, value), pattern, "%x", pattern);
        }
    }
}

/* Every value of a small format, every tie between neighbours, and one ulp of a double to both sides. */
Test(formats, every_value_and_every_tie_rounds_correctly)
{
    for (int i = 1; i < NUM_FORMATS; ++i) {
        const struct definition *f = &definitions[i];
        struct count count = {0};
        for (uint32_t bits = 0; bits <= largest_finite(f); ++bits) {
            const double value = defined_value(f, bits);
            /* Past the largest finite value the tie is with the number that would come next. */
            const double next = bits < largest_finite(f) ? defined_value(f, bits + 1)
                                                         : 2 * value - defined_value(f, bits - 1);
            for (int sign = -1; sign <= 1; sign += 2) {
                check_around(f, sign * value, &count);
                check_around(f, sign * (value + next) / 2, &count);
                check_around(f, sign * next, &count);
            }
        }
        expect_none_wrong(f, &count);
    }
}

Test(formats, fp32_ties_round_correctly)
{
    const struct definition *f = &definitions[0];
    struct count count = {0};
    struct judge_random g = {1};
    for (int i = 0; i < 200000; ++i) { /* at random, and around every power of two */
        uint32_t bits = (uint32_t)(judge_bits(&g) % largest_finite(f));
        if (i < 3 * 255) bits = (uint32_t)(i / 3) << 23 | (i % 3 == 1 ? 1 : i % 3 == 2 ? 0x7fffff : 0);
        if (bits >= largest_finite(f)) bits = largest_finite(f) - 1;
        const double value = defined_value(f, bits), next = defined_value(f, bits + 1);
        for (int sign = -1; sign <= 1; sign += 2) {
            check_around(f, sign * value, &count);
            check_around(f, sign * (value + next) / 2, &count);
        }
    }
    expect_none_wrong(f, &count);
}

/* What lies at the edges of every format: zeros, the smallest double, half the smallest subnormal, the smallest normal,
 * the threshold of overflow, the largest double, infinities, NaN. */
Test(formats, boundaries_round_correctly)
{
    for (int i = 0; i < NUM_FORMATS; ++i) {
        const struct definition *f = &definitions[i];
        const double subnormal = defined_value(f, 1), normal = defined_value(f, UINT32_C(1) << f->fraction_bits);
        const double max = defined_value(f, largest_finite(f)), step = max - defined_value(f, largest_finite(f) - 1);
        const double edges[] = {0,       0x1p-1074, 0x1p-1022,      subnormal / 2,  subnormal,   1.5 * subnormal,
                                normal,  max,       max + step / 2, max + step,     2 * max,     0x1.fffffffffffffp1023,
                                INFINITY, NAN,      normal - subnormal / 2};
        struct count count = {0};
        for (size_t e = 0; e < sizeof edges / sizeof *edges; ++e)
            for (int sign = -1; sign <= 1; sign += 2) check_around(f, sign * edges[e], &count);
        expect_none_wrong(f, &count);
    }
}

/* Values of fp32 on a grid through its whole range, and doubles with exponents that the format has. */
Test(formats, dense_samples_round_correctly)
{
    for (int i = 0; i < NUM_FORMATS; ++i) {
        const struct definition *f = &definitions[i];
        const int binades = (1 << exponent_bits(f)) + f->fraction_bits + 4;
        struct judge_random g = {(uint64_t)i};
        struct count count = {0};
        for (uint64_t bits = 0; bits < UINT64_C(1) << 32; bits += 16381) {
            const uint32_t pattern = (uint32_t)bits;
            float value;
            memcpy(&value, &pattern, sizeof value);
            check_rounding(f, value, &count);
        }
        for (int k = 0; k < 300000; ++k) {
            const double significand = 1 + judge_uniform(&g);
            const int exponent = (int)judge_range(&g, 0, binades) - f->bias - f->fraction_bits - 2;
            check_rounding(f, ldexp(k % 2 ? significand : -significand, exponent), &count);
        }
        expect_none_wrong(f, &count);
    }
}

Test(formats, the_rounding_mode_of_the_host_has_no_say)
{
    static const int modes[] = {FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO};
    for (int i = 0; i < NUM_FORMATS; ++i) {
        const struct definition *f = &definitions[i];
        struct judge_random g = {(uint64_t)i};
        for (int k = 0; k < 30000; ++k) {
            const double value = ldexp(judge_normal(&g), (int)judge_range(&g, -20, 6));
            const double want = ref_round(f->dtype, value), decoded = ref_decode(f->dtype, (uint32_t)k);
            for (int m = 0; m < 3; ++m) {
                fesetround(modes[m]);
                const double got = ref_round(f->dtype, value), again = ref_decode(f->dtype, (uint32_t)k);
                fesetround(FE_TONEAREST);
                cr_assert(same(got, want) && same(again, decoded), "%s %a", ref_dtype_name(f->dtype), value);
            }
        }
    }
}

Test(formats, half_ulp_is_half_the_distance_of_the_neighbours)
{
    for (int i = 0; i < NUM_FORMATS; ++i) {
        const struct definition *f = &definitions[i];
        const uint32_t step = f->bits == 32 ? 65521 : 1;
        double previous = 0;
        for (uint32_t bits = 0; bits < largest_finite(f); bits += step) {
            const double low = defined_value(f, bits), high = defined_value(f, bits + 1), half = (high - low) / 2;
            const double inside = low + half * 0.75;
            cr_assert_eq(ref_half_ulp(f->dtype, low), half, "%s at %a", ref_dtype_name(f->dtype), low);
            cr_assert_eq(ref_half_ulp(f->dtype, -inside), half, "%s at %a", ref_dtype_name(f->dtype), -inside);
            cr_assert_geq(half, previous);
            previous = half;
        }
        cr_assert(isnan(ref_half_ulp(f->dtype, NAN)));
        cr_assert_eq(ref_half_ulp(f->dtype, -INFINITY), INFINITY);
    }
}

Test(formats, the_table_says_what_the_definition_says)
{
    for (int i = 0; i < NUM_FORMATS; ++i) {
        const struct definition *f = &definitions[i];
        const struct ref_format *got = ref_format(f->dtype);
        cr_assert_not_null(got);
        cr_expect_eq(got->bytes * 8, f->bits);
        cr_expect_eq(got->fraction_bits, f->fraction_bits);
        cr_expect_eq(got->min_exponent, 1 - f->bias);
        cr_expect_eq(got->unit_roundoff, ldexp(1, -f->fraction_bits - 1));
        cr_expect_eq(got->min_subnormal, defined_value(f, 1));
        cr_expect_eq(got->min_normal, defined_value(f, UINT32_C(1) << f->fraction_bits));
        cr_expect_eq(got->max_finite, defined_value(f, largest_finite(f)));
        cr_expect_eq(got->has_infinity, !f->ocp_e4m3);
        cr_expect_not(isfinite(mpfr_round_to(f, got->overflow)));
        cr_expect_eq(mpfr_round_to(f, nextafter(got->overflow, 0)), got->max_finite);
        cr_expect_eq(ref_dtype_bytes(f->dtype), (size_t)f->bits / 8);
        cr_expect_str_eq(ref_dtype_name(f->dtype), got->name);
    }
    const int32_t others[] = {ATTEST_ABSENT, ATTEST_UINT8, -1, ATTEST_UINT8 + 1, INT32_MAX, INT32_MIN};
    for (size_t i = 0; i < sizeof others / sizeof *others; ++i) {
        cr_expect_null(ref_format(others[i]));
        cr_expect_eq(ref_dtype_bytes(others[i]), others[i] == ATTEST_UINT8);
        cr_expect_not_null(ref_dtype_name(others[i]));
    }
}

/* Elements of arrays at any address: a store changes its own bytes alone, and loads give back what was stored. */
Test(formats, loads_and_stores_touch_their_element_alone)
{
    enum { COUNT = 7 };
    for (int i = 0; i < NUM_FORMATS; ++i) {
        const int32_t dtype = definitions[i].dtype;
        const size_t bytes = ref_dtype_bytes(dtype);
        unsigned char memory[4 * COUNT + 1], before[sizeof memory];
        struct judge_random g = {(uint64_t)i};
        for (int trial = 0; trial < 1000; ++trial) {
            unsigned char *const array = memory + trial % 2;
            for (size_t k = 0; k < sizeof memory; ++k) memory[k] = (unsigned char)judge_bits(&g);
            memcpy(before, memory, sizeof memory);
            const int64_t index = judge_range(&g, 0, COUNT - 1);
            const double value = judge_normal(&g);
            ref_store(dtype, array, index, value);
            cr_assert(same(ref_load(dtype, array, index), mpfr_round_to(&definitions[i], value)));
            double row[COUNT];
            ref_load_row(dtype, array, 1, COUNT - 1, row);
            for (int64_t k = 1; k < COUNT; ++k) cr_assert(same(row[k - 1], ref_load(dtype, array, k)));
            memcpy(array + (size_t)index * bytes, before + (array - memory) + (size_t)index * bytes, bytes);
            cr_assert_arr_eq(memory, before, sizeof memory);
        }
    }
    const uint8_t mask[] = {0, 1, 255};
    for (int k = 0; k < 3; ++k) cr_assert_eq(ref_load(ATTEST_UINT8, mask, k), mask[k]);
}

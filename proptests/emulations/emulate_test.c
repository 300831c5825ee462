/* emulate_test.c - the parts of the emulation by themselves: formats beside the reference's, the matrix units
 * beside what was measured on the chips and beside the same sum written in another way. */
#include <math.h>
#include <string.h>

#include <criterion/criterion.h>

#include "lib/attest.h"
#include "proptests/emulations/emulate_formats.h"
#include "proptests/emulations/emulate_unit.h"
#include "reference/formats.h"

static bool same(double a, double b) { return isnan(a) ? isnan(b) != 0 : a == b && !signbit(a) == !signbit(b); }

static float from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static const int32_t narrow[] = {ATTEST_FP16, ATTEST_BF16, ATTEST_FP8_E4M3, ATTEST_FP8_E5M2};

Test(formats, every_narrow_number_widens_as_the_reference_says)
{
    for (int f = 0; f < 4; ++f) {
        const uint32_t count = f < 2 ? 1u << 16 : 1u << 8;
        for (uint32_t bits = 0; bits < count; ++bits) {
            const uint16_t wide = (uint16_t)bits;
            const uint8_t byte = (uint8_t)bits;
            const float got = emulate_load(narrow[f], f < 2 ? (const void *)&wide : &byte, 0);
            cr_assert(same((double)got, ref_decode(narrow[f], bits)), "dtype %d, bits %x", narrow[f], bits);
        }
    }
}

/* Densely, and at and beside every tie: the bits below the least kept one are 0, 1 and the half. */
Test(formats, fp32_rounds_as_the_reference_says)
{
    for (int f = 0; f < 4; ++f) {
        for (uint64_t step = 0; step < UINT64_C(1) << 32; step += 4099) {
            const uint32_t near = (uint32_t)step & 0xfffff000u;
            const uint32_t bits[] = {(uint32_t)step, near, near + 1, near - 1};
            for (int i = 0; i < 4; ++i) {
                const float value = from_bits(bits[i]);
                cr_assert(same((double)emulate_round(narrow[f], value), ref_round(narrow[f], (double)value)),
                          "dtype %d, value %a", narrow[f], (double)value);
            }
        }
    }
}

/* c + sum a_l b_l in one call. */
static float dot(int32_t accumulate, int count, const float *a, const float *b, float c)
{
    const struct unit unit = {.accumulate = accumulate, .min_exponent = {-126, -126}};
    float a_copy[64], b_copy[64];
    memcpy(a_copy, a, (size_t)count * sizeof *a);
    memcpy(b_copy, b, (size_t)count * sizeof *b);
    unit_multiply(&unit, 1, 1, count, (struct matrix){a_copy, count, 1}, (struct seen){0},
                  (struct matrix){b_copy, 1, count}, (struct matrix){&c, 1, 1});
    return c;
}

/* 1 + 15 * 2^-n as one product of 1 and 15 of 2^-n. */
static float one_and_fifteen(int32_t accumulate, int n)
{
    float a[16], b[16];
    for (int l = 0; l < 16; ++l) {
        a[l] = l == 0 ? 1.0f : ldexpf(1.0f, -n);
        b[l] = 1.0f;
    }
    return dot(accumulate, 16, a, b, 0.0f);
}

Test(unit, hopper_keeps_25_bits_and_truncates)
{
    cr_assert_eq(one_and_fifteen(ATTEST_ACC_HOPPER, 25), 1.0f + 3 * 0x1p-23f); /* as measured on an H200 */
    cr_assert_eq(one_and_fifteen(ATTEST_ACC_HOPPER, 26), 1.0f);
}

Test(unit, ampere_keeps_24_bits_in_two_steps)
{
    /* 7 * 2^-24 of the first step are 3 units and a half, cut off; then 8 * 2^-24 are 4. */
    cr_assert_eq(one_and_fifteen(ATTEST_ACC_AMPERE, 24), 1.0f + 7 * 0x1p-23f);
    cr_assert_eq(one_and_fifteen(ATTEST_ACC_AMPERE, 25), 1.0f);
}

Test(unit, fp32_rounds_to_nearest_after_every_product)
{
    cr_assert_eq(one_and_fifteen(ATTEST_ACC_FP32, 24), 1.0f); /* every tie goes back to even */
    cr_assert_eq(one_and_fifteen(ATTEST_ACC_FP32, 23), 1.0f + 15 * 0x1p-23f);
}

Test(unit, an_infinity_or_a_nan_stays_in_its_own_elements)
{
    float a[] = {1.0f, 0.0f, 2.0f}, b[] = {3.0f, INFINITY, NAN};
    for (int accumulate = ATTEST_ACC_FP32; accumulate <= ATTEST_ACC_HOPPER; ++accumulate) {
        const struct unit unit = {.accumulate = accumulate, .min_exponent = {-126, -126}};
        const unsigned char first[] = {1, 0, 0}, second[] = {1, 1, 0};
        const struct matrix left = {a, 3, 1}, right = {b, 1, 3};
        float c = 0.0f;
        unit_multiply(&unit, 1, 1, 3, left, (struct seen){first, 3, 1}, right, (struct matrix){&c, 1, 1});
        cr_assert_eq(c, 3.0f);
        unit_multiply(&unit, 1, 1, 3, left, (struct seen){second, 3, 1}, right, (struct matrix){&c, 1, 1});
        cr_assert(isnan(c)); /* 0 * infinity */
    }
}

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 33;
}

static float random_bf16(uint64_t *state, int spread)
{
    const float significand = 1.0f + (float)(next_random(state) % 128) / 128;
    const float value = ldexpf(significand, (int)(next_random(state) % (uint64_t)spread) - spread / 2);
    return next_random(state) % 2 ? value : -value;
}

/* The step's definition in doubles: every aligned term and every sum of them is exact there. */
static float step_by_definition(int fraction_bits, int count, const float *a, const float *b, float c)
{
    int top = -10000, e, f;
    for (int l = 0; l < count; ++l) {
        frexp((double)a[l], &e);
        frexp((double)b[l], &f);
        top = e + f - 2 > top ? e + f - 2 : top;
    }
    frexp((double)c, &e);
    if (c != 0.0f) top = e - 1 > top ? e - 1 : top;
    const double unit = ldexp(1.0, top - fraction_bits);
    double sum = trunc((double)c / unit);
    for (int l = 0; l < count; ++l) sum += trunc((double)a[l] * (double)b[l] / unit);
    sum *= unit;
    const float nearest = (float)sum;
    return fabs((double)nearest) > fabs(sum) ? nextafterf(nearest, 0.0f) : nearest;
}

Test(unit, a_step_is_its_definition)
{
    static const struct {
        int32_t accumulate;
        int fraction_bits, count;
    } units[] = {{ATTEST_ACC_AMPERE, 24, 8}, {ATTEST_ACC_HOPPER, 25, 16}};
    static const int spreads[] = {2, 6, 12, 24, 40};
    uint64_t state = 1;
    for (int u = 0; u < 2; ++u) {
        for (int trial = 0; trial < 100000; ++trial) {
            const int spread = spreads[trial % 5];
            float a[16], b[16];
            for (int l = 0; l < units[u].count; ++l) {
                a[l] = random_bf16(&state, spread);
                b[l] = random_bf16(&state, spread);
            }
            const float c = trial % 2 ? random_bf16(&state, spread) * 1.2345678f : 0.0f;
            const float want = step_by_definition(units[u].fraction_bits, units[u].count, a, b, c);
            const float got = dot(units[u].accumulate, units[u].count, a, b, c);
            cr_assert_eq(got, want, "unit %d, trial %d: %a, not %a", u, trial, (double)got, (double)want);
        }
    }
}

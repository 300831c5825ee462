/* unit_test.c - the tensor cores' arithmetic against the model written out once more in double, where all of it is
 * exact, and the vector units against each other. */
#include <stdio.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/tests/unit_sets.h"
#include "kernels/sim/unit.h"

enum { M = 64, MOST_N = 40, MOST_K = 16 };

static const char *const format_names[] = {"fp16", "bf16", "tf32"};
static int k_of(enum sim_format format) { return format == SIM_TF32 ? 8 : 16; }
static int least_exponent_of(enum sim_format format) { return format == SIM_FP16 ? -14 : -126; }

static uint32_t bits_of(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* Operand `index`; fp16 through the definition of the format. */
static double operand(enum sim_format format, const void *array, int index)
{
    if (format == SIM_TF32) return (double)float_of(((const uint32_t *)array)[index] & 0xffffe000);
    uint16_t half;
    memcpy(&half, (const char *)array + 2 * index, sizeof half);
    if (format == SIM_BF16) return (double)float_of(half << 16);
    const int field = half >> 10 & 31, fraction = half & 1023;
    const double magnitude = field == 31 ? (fraction ? NAN : INFINITY)
                             : field ? ldexp(1024 + fraction, field - 25) : ldexp(fraction, -24);
    return half & 0x8000 ? -magnitude : magnitude;
}

static int exponent_of(double x, int least) { return ilogb(x) < least ? least : ilogb(x); }

/* One step. Every term, and the sum of the terms cut off, is exact in double. */
static float step(double c, const double *a, const double *b, int count, int fraction_bits, int floor_exponent,
                  int least)
{
    double plain = c;
    int top = c == 0 ? floor_exponent : exponent_of(c, -126);
    for (int l = 0; l < count; ++l) {
        plain += a[l] * b[l];
        if (a[l] * b[l] == 0 || !isfinite(a[l] * b[l])) continue;
        const int e = exponent_of(a[l], least) + exponent_of(b[l], least);
        if (e > top) top = e;
    }
    if (!isfinite(plain)) return isnan(plain) ? float_of(0x7fffffff) : (float)plain;
    if (top < floor_exponent) top = floor_exponent;
    double sum = trunc(ldexp(c, fraction_bits - top));
    for (int l = 0; l < count; ++l) sum += trunc(ldexp(a[l] * b[l], fraction_bits - top));
    const double exact = ldexp(sum, top - fraction_bits);
    if (exact == 0) return 0.0f;
    if (fabs(exact) >= 0x1p128) return (float)copysign(INFINITY, exact);
    const float nearest = (float)exact;
    const float cut = fabs((double)nearest) > fabs(exact) ? nextafterf(nearest, 0) : nearest;
    return cut == 0 ? 0.0f : cut; /* never -0 */
}

static float expected(enum sim_generation generation, enum sim_format format, const void *a, const void *b, float c)
{
    const int k = k_of(format), group = generation == SIM_SM_90 ? k : k / 2;
    const int fraction_bits = generation == SIM_SM_90 ? 25 : 24, floor_exponent = generation == SIM_SM_90 ? -133 : -132;
    double left[MOST_K], right[MOST_K];
    for (int l = 0; l < k; ++l) left[l] = operand(format, a, l), right[l] = operand(format, b, l);
    for (int l = 0; l < k; l += group)
        c = step(c, left + l, right + l, group, fraction_bits, floor_exponent, least_exponent_of(format));
    return c;
}

struct sets {
    uint32_t a[M * MOST_K], b_t[MOST_N * MOST_K]; /* of 4 bytes at most */
    float c[M * MOST_N];
};

static void fill(struct sets *sets, int family, int format, uint64_t seed, int n)
{
    unit_sets((enum unit_family)family, (enum sim_format)format, seed, M, n, k_of(format), sets->a, sets->b_t, sets->c);
}

#define FOR_EACH_MODEL(format, generation)          \
    for (int format = SIM_FP16; format <= SIM_TF32; ++format) \
        for (int generation = SIM_SM_80; generation <= SIM_SM_90; ++generation)

/* Result by result; how many sets there were. */
static int check_against_formula(int generation, int format, int family, uint64_t seed)
{
    static struct sets sets;
    static float d[M * MOST_N];
    const int n = 8 + 8 * (int)(seed % 5), k = k_of(format), bytes = sim_operand_bytes(format);
    fill(&sets, family, format, seed, n);
    memset(d, 0x5a, sizeof d);
    sim_unit(generation, format, M, n, k, sets.a, sets.b_t, sets.c, d);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < n; ++j) {
            const float want = expected(generation, format, (char *)sets.a + (size_t)i * k * bytes,
                                        (char *)sets.b_t + (size_t)j * k * bytes, sets.c[i * n + j]);
            cr_assert_eq(bits_of(d[i * n + j]), bits_of(want), "%s sm_%d0 %s seed %d (%d, %d): %08x, not %08x",
                         format_names[format], generation + 8, unit_family_name(family), (int)seed, i, j,
                         bits_of(d[i * n + j]), bits_of(want));
        }
    return M * n;
}

Test(unit, results_are_the_formulas)
{
    FOR_EACH_MODEL(format, generation)
    for (int family = 0; family < UNIT_FAMILIES; ++family)
        for (uint64_t seed = 0; seed < 30; ++seed) check_against_formula(generation, format, family, seed);
}

Test(unit, every_vector_unit_gives_the_same_bits_as_the_plain_model)
{
    static struct sets sets;
    static float plain[M * MOST_N], d[M * MOST_N];
    FOR_EACH_MODEL(format, generation)
    for (int family = 0; family < UNIT_FAMILIES; ++family)
        for (uint64_t seed = 100; seed < 105; ++seed) {
            const struct sim_unit_model model = sim_unit_model(generation, format);
            const int n = 8 + 8 * (int)(seed % 5), k = k_of(format);
            fill(&sets, family, format, seed, n);
            sim_unit_plain(&model, format, M, n, k, sets.a, sets.b_t, sets.c, plain);
            for (int v = 0; v < sim_unit_variants(); ++v) {
                memset(d, 0x5a, sizeof d);
                sim_unit_variant(v, &model, format, M, n, k, sets.a, sets.b_t, sets.c, d);
                cr_assert_arr_eq(d, plain, sizeof(float) * M * n, "%s, %s", sim_unit_variant_name(v),
                                 unit_family_name(family));
                memcpy(d, sets.c, sizeof d); /* in place */
                sim_unit_variant(v, &model, format, M, n, k, sets.a, sets.b_t, d, d);
                cr_assert_arr_eq(d, plain, sizeof(float) * M * n, "%s in place", sim_unit_variant_name(v));
            }
        }
}

Test(unit, no_accumulator_is_a_zero)
{
    static struct sets sets;
    static float with[M * 8], without[M * 8];
    FOR_EACH_MODEL(format, generation)
    for (int family = 0; family < UNIT_FAMILIES; ++family) {
        fill(&sets, family, format, 7, 8);
        memset(sets.c, 0, sizeof sets.c);
        sim_unit(generation, format, M, 8, k_of(format), sets.a, sets.b_t, sets.c, with);
        sim_unit(generation, format, M, 8, k_of(format), sets.a, sets.b_t, NULL, without);
        cr_assert_arr_eq(with, without, sizeof with);
    }
}

/* bf16 on an H200: 1 + 15 * 2^-25 is 1 + 3 * 2^-23, and 1 + 15 * 2^-26 is 1. */
Test(unit, known_answers_of_an_h200)
{
    for (int shift = 24; shift <= 26; ++shift) {
        uint16_t a[M * 16], b[8 * 16];
        float d[M * 8];
        for (int i = 0; i < M * 16; ++i) a[i] = i % 16 ? (uint16_t)((127 - shift + 10) << 7) : 0x3f80;
        for (int j = 0; j < 8 * 16; ++j) b[j] = j % 16 ? (uint16_t)((127 - 10) << 7) : 0x3f80;
        sim_unit(SIM_SM_90, SIM_BF16, M, 8, 16, a, b, NULL, d);
        const uint32_t want = 0x3f800000 + (shift == 24 ? 7 : shift == 25 ? 3 : 0);
        for (int i = 0; i < M * 8; ++i) cr_assert_eq(bits_of(d[i]), want, "%d: %08x", shift, bits_of(d[i]));
    }
}

/* Sixteen products of the largest significands and an accumulator are about 2^31 times 2^-25, to which terms are cut:
 * there the sum no longer fits in 32 bits. */
Test(unit, sums_may_take_more_than_32_bits)
{
    enum { N = 32, LARGEST = 0x3fff, NEGATIVE = 0x8000 }; /* 1.11.., fp16 and bf16 */
    static uint16_t a[M * 16], b[N * 16];
    static float c[M * N], d[M * N];
    for (int format = SIM_FP16; format <= SIM_BF16; ++format) {
        const struct sim_unit_model model = sim_unit_model(SIM_SM_90, format);
        const double largest = operand(format, &(uint16_t){LARGEST}, 0);
        const double rest = 0x1p31 - 16 * 0x1p25 * largest * largest;
        for (int i = 0; i < M * 16; ++i) a[i] = LARGEST;
        for (int j = 0; j < N * 16; ++j) b[j] = j / 16 % 2 ? LARGEST | NEGATIVE : LARGEST;
        for (int i = 0; i < M * N; ++i)
            c[i] = (float)((rest + i / 2 - M * N / 4) * (i % 2 ? -0x1p-25 : 0x1p-25));
        for (int v = 0; v < sim_unit_variants(); ++v) {
            sim_unit_variant(v, &model, format, M, N, 16, a, b, c, d);
            for (int i = 0; i < M * N; ++i)
                cr_assert_eq(bits_of(d[i]), bits_of(expected(SIM_SM_90, format, a, b + i % N * 16, c[i])),
                             "%s %s, c %a: %a", sim_unit_variant_name(v), format_names[format], c[i], d[i]);
        }
    }
}

/* Each number of the model is felt: with another one, some set gives other bits. */
Test(unit, other_models_are_told_apart)
{
    static struct sets sets;
    static float right[M * 8], wrong[M * 8];
    FOR_EACH_MODEL(format, generation)
    {
        const struct sim_unit_model model = sim_unit_model(generation, format);
        struct sim_unit_model others[6] = {model, model, model, model, model, model};
        others[0].fraction_bits += 1, others[1].fraction_bits -= 1;
        others[2].group = model.group == 4 ? 8 : model.group / 2, others[3].to_nearest = true;
        others[4].least_exponent += 1, others[5].least_exponent -= 1;
        for (int o = 0; o < (format == SIM_FP16 ? 4 : 6); ++o) { /* fp16's products stay above the least exponent */
            int different = 0;
            for (int family = 0; family < 8 * UNIT_FAMILIES; ++family) {
                fill(&sets, family % UNIT_FAMILIES, format, 11 + family, 8);
                sim_unit_plain(&model, format, M, 8, k_of(format), sets.a, sets.b_t, sets.c, right);
                sim_unit_plain(&others[o], format, M, 8, k_of(format), sets.a, sets.b_t, sets.c, wrong);
                for (int i = 0; i < M * 8; ++i) different += bits_of(right[i]) != bits_of(wrong[i]);
            }
            cr_assert_gt(different, 0, "%s sm_%d0, model %d", format_names[format], generation + 8, o);
        }
    }
}

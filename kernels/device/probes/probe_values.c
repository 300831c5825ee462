/* probe_values.c - what convert.h and arith.h must give, by definition: numbers in double precision, rounding by
 * choosing the nearer neighbour. */
#include "kernels/device/probes/probe_values.h"

#include <math.h>
#include <string.h>

#include "kernels/device/probes/probe.h"

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, 4);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

/* A format of sign, `exponent_bits`, `fraction_bits`: the number that a finite magnitude stands for. */
struct format {
    int exponent_bits, fraction_bits;
};

static const struct format fp16 = {5, 10}, bfloat16 = {8, 7}, tf32 = {8, 10};

static double value_of(struct format f, uint32_t magnitude)
{
    const int bias = (1 << (f.exponent_bits - 1)) - 1;
    const int exponent = (int)(magnitude >> f.fraction_bits);
    const int fraction = (int)(magnitude & ((1u << f.fraction_bits) - 1));
    if (exponent == 0) return ldexp(fraction, 1 - bias - f.fraction_bits);
    return ldexp((1 << f.fraction_bits) + fraction, exponent - bias - f.fraction_bits);
}

static uint32_t infinity_of(struct format f) { return ((1u << f.exponent_bits) - 1) << f.fraction_bits; }

/* The nearest magnitude; of two as near the even one, or the larger. Infinity counts as the number after the last. */
static uint32_t round_magnitude(struct format f, double x, bool ties_to_even)
{
    uint32_t low = 0, high = infinity_of(f);
    while (high - low > 1) {
        const uint32_t middle = (low + high) / 2;
        if (value_of(f, middle) <= x) low = middle;
        else high = middle;
    }
    const double below = x - value_of(f, low), above = value_of(f, high) - x;
    if (below != above) return below < above ? low : high;
    return ties_to_even && low % 2 == 0 ? low : high;
}

static uint32_t narrow(struct format f, uint32_t bits, bool ties_to_even, uint32_t nan)
{
    const float x = float_of(bits);
    if (isnan(x)) return nan;
    const uint32_t sign = (bits >> 31) << (f.exponent_bits + f.fraction_bits);
    return sign | (isinf(x) ? infinity_of(f) : round_magnitude(f, fabs((double)x), ties_to_even));
}

static void expect_widen(const void *in, void *out)
{
    (void)in;
    struct widen_out *w = out;
    for (uint32_t n = 0; n < WIDEN_COUNT; ++n) {
        const uint32_t magnitude = n & 0x7fff, sign = (n >> 15) << 31;
        if (magnitude > 0x7c00) w->from_f16[n] = 0x7fffffff;
        else if (magnitude == 0x7c00) w->from_f16[n] = sign | 0x7f800000;
        else w->from_f16[n] = sign | bits_of((float)value_of(fp16, magnitude));
        w->from_bf16[n] = n << 16;
    }
}

/* Numbers beside and on every halfway point of fp16 and bf16, then of tf32 at every exponent, then anything. */
static void fill_narrow(void *in)
{
    struct narrow_in *w = in;
    uint32_t count = 0;
    for (uint32_t n = 0; n < 0x8000; ++n)
        for (uint32_t s = 0; s < 2; ++s)
            for (int beside = -1; beside <= 1; ++beside) {
                const uint32_t halfway = n < 0x7c00 ? bits_of((float)((value_of(fp16, n) + value_of(fp16, n + 1)) / 2))
                                                    : 0x7f800000 + (n - 0x7c00) * 0x1fff;
                w->x[count++] = (halfway + (uint32_t)beside) | s << 31;
                w->x[count++] = ((n << 16 | 0x8000) + (uint32_t)beside) | s << 31;
            }
    for (uint32_t exponent = 0; exponent < 256; ++exponent)
        for (uint32_t n = 0; n < 64; ++n)
            w->x[count++] = (exponent << 23 | (probe_random(64 * exponent + n) & 0x7fe000) | 0x1000) + n % 3 - 1;
    for (; count < NARROW_COUNT; ++count) w->x[count] = probe_random(count);
}

static void expect_narrow(const void *in, void *out)
{
    const struct narrow_in *w = in;
    struct narrow_out *o = out;
    for (uint32_t n = 0; n < NARROW_COUNT; ++n) {
        const uint32_t half = narrow(fp16, w->x[n], true, 0x7fff), brain = narrow(bfloat16, w->x[n], true, 0x7fff);
        o->f16_bf16[n] = half | brain << 16;
        o->tf32[n] = isnan(float_of(w->x[n])) ? w->x[n] & 0xffffe000 : narrow(tf32, w->x[n], false, 0) << 13;
    }
    for (uint32_t n = 0; n < NARROW_COUNT; ++n) {
        const uint32_t next = o->f16_bf16[(n + 1) % NARROW_COUNT];
        o->f16x2[n] = (o->f16_bf16[n] & 0xffff) | next << 16;
        o->bf16x2[n] = o->f16_bf16[n] >> 16 | (next & 0xffff0000);
    }
}

/* Any three bit patterns; three of four times numbers of like size, so that sums cancel and quotients are ordinary. */
static void fill_arith(void *in)
{
    static const uint32_t hard[] = {0,          0x80000000, 0x7f800000, 0xff800000, 0x7fc12345, 0xffc00001,
                                    0x7f800001, 1,          0x80000001, 0x007fffff, 0x00800000, 0x7f7fffff,
                                    0x3f800000, 0xbf800000, 0x4b7fffff, 0x00400000};
    struct arith_in *w = in;
    for (uint32_t n = 0; n < ARITH_COUNT; ++n) {
        const uint32_t near = n % 4 == 0 ? 0xffffffff : 0x81ffffff, base = n % 4 == 0 ? 0 : 0x3e000000;
        w->a[n] = (probe_random(3 * n) & near) ^ base;
        w->b[n] = (probe_random(3 * n + 1) & near) ^ base;
        w->c[n] = (probe_random(3 * n + 2) & near) ^ base;
        if (n < 4096) w->a[n] = hard[n % 16], w->b[n] = hard[n / 16 % 16], w->c[n] = hard[n / 256];
    }
}

static uint32_t bits_or_nan(float x) { return isnan(x) ? 0x7fffffff : bits_of(x); }

static uint32_t extreme(uint32_t a, uint32_t b, int sign)
{
    const float x = float_of(a), y = float_of(b);
    if (isnan(x)) return bits_or_nan(y);
    if (isnan(y) || x == y) return isnan(y) ? a : (signbit(x) != 0) == (sign < 0) ? a : b;
    return (x > y) == (sign > 0) ? a : b;
}

static void expect_arith(const void *in, void *out)
{
    const struct arith_in *w = in;
    struct arith_out *o = out;
    for (uint32_t n = 0; n < ARITH_COUNT; ++n) {
        o->fma[n] = bits_or_nan(fmaf(float_of(w->a[n]), float_of(w->b[n]), float_of(w->c[n])));
        o->div[n] = bits_or_nan(float_of(w->a[n]) / float_of(w->b[n]));
        o->max[n] = extreme(w->a[n], w->b[n], 1);
        o->min[n] = extreme(w->a[n], w->b[n], -1);
        const bool has_nan = isnan(float_of(w->a[n])) || isnan(float_of(w->b[n]));
        o->max_or_nan[n] = has_nan ? 0x7fffffff : o->max[n];
        const uint32_t pair[2] = {w->a[n], w->b[n]};
        uint8_t bytes[8];
        memcpy(bytes, pair, sizeof bytes);
        o->permuted[n] = 0;
        for (int i = 0; i < 4; ++i) o->permuted[n] |= (uint32_t)bytes[w->c[n] >> 4 * i & 7] << 8 * i;
    }
}

/* A bf16 in the upper half of fp32 bits. */
static uint32_t extreme_half(uint32_t a, uint32_t b, int sign)
{
    const uint32_t wide = extreme(a << 16, b << 16, sign);
    return isnan(float_of(wide)) ? 0x7fff : wide >> 16;
}

/* The product of two bf16 has 16 bits: double has it exactly. */
static uint32_t product_half(uint32_t a, uint32_t b)
{
    const double x = float_of(a << 16), y = float_of(b << 16);
    if (isnan(x * y)) return 0x7fff;
    const uint32_t size = isinf(x * y) ? infinity_of(bfloat16) : round_magnitude(bfloat16, fabs(x * y), true);
    return size | ((a ^ b) & 0x8000);
}

static void expect_pairs(const void *in, void *out)
{
    const struct arith_in *w = in;
    struct pairs_out *o = out;
    memset(o, 0, sizeof *o);
    for (uint32_t n = 0; n < ARITH_COUNT; ++n)
        for (int shift = 0; shift < 32; shift += 16) {
            const uint32_t a = w->a[n] >> shift & 0xffff, b = w->b[n] >> shift & 0xffff;
            o->max[n] |= extreme_half(a, b, 1) << shift;
            o->min[n] |= extreme_half(a, b, -1) << shift;
            o->size[n] |= extreme_half(a & 0x7fff, b & 0x7fff, 1) << shift;
            o->product[n] |= product_half(a, b) << shift;
        }
}

/* The tables of special values of "ex2", "lg2", "rcp" (.ftz) and "tanh" in the manual. */
static const struct {
    uint32_t x, exp2, log2, rcp, tanh;
} special[SPECIAL_COUNT] = {
    {0xff800000, 0x00000000, 0x7fffffff, 0x80000000, 0xbf800000}, /* -inf */
    {0x80000001, 0x3f800000, 0xff800000, 0xff800000, 0x80000001}, /* -subnormal */
    {0x80000000, 0x3f800000, 0xff800000, 0xff800000, 0x80000000}, /* -0 */
    {0x00000000, 0x3f800000, 0xff800000, 0x7f800000, 0x00000000}, /* +0 */
    {0x00000001, 0x3f800000, 0xff800000, 0x7f800000, 0x00000001}, /* +subnormal */
    {0x007fffff, 0x3f800000, 0xff800000, 0x7f800000, 0x007fffff}, /* the largest */
    {0x7f800000, 0x7f800000, 0x7f800000, 0x00000000, 0x3f800000}, /* +inf */
    {0x7fc00000, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff}, /* NaN */
    {0xffc12345, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff},
    {0x7f800001, 0x7fffffff, 0x7fffffff, 0x7fffffff, 0x7fffffff},
    {0x7f000000, 0x7f800000, 0x42fe0000, 0x00000000, 0x3f800000}, /* 2^127: 1 / x is subnormal */
    {0xff000000, 0x00000000, 0x7fffffff, 0x80000000, 0xbf800000},
    {0xc3000000, 0x00000000, 0x7fffffff, 0xbc000000, 0xbf800000}, /* -128: 2^x is subnormal */
    {0x43000000, 0x7f800000, 0x40e00000, 0x3c000000, 0x3f800000}, /* 128 */
};

static void fill_special(void *in)
{
    struct special_in *w = in;
    for (int n = 0; n < SPECIAL_COUNT; ++n) w->x[n] = special[n].x;
}

static void expect_special(const void *in, void *out)
{
    (void)in;
    struct special_out *o = out;
    for (int n = 0; n < SPECIAL_COUNT; ++n) {
        o->exp2[n] = special[n].exp2;
        o->log2[n] = special[n].log2;
        o->rcp[n] = special[n].rcp;
        o->tanh[n] = special[n].tanh;
    }
}

PROBE_LAUNCHERS(probe_widen);
PROBE_LAUNCHERS(probe_narrow);
PROBE_LAUNCHERS(probe_arith);
PROBE_LAUNCHERS(probe_pairs);
PROBE_LAUNCHERS(probe_special);

const struct probe probes_of_values[] = {
    {"16 bits to fp32", 80, true, 0, sizeof(struct widen_out), NULL, expect_widen, PROBE_ON(probe_widen)},
    {"fp32 to fp16, bf16, tf32", 80, true, sizeof(struct narrow_in), sizeof(struct narrow_out), fill_narrow,
     expect_narrow, PROBE_ON(probe_narrow)},
    {"fma, division, max, min, bytes", 80, true, sizeof(struct arith_in), sizeof(struct arith_out), fill_arith,
     expect_arith, PROBE_ON(probe_arith)},
    {"max, min, product of two bf16", 90, true, sizeof(struct arith_in), sizeof(struct pairs_out), fill_arith,
     expect_pairs, PROBE_ON(probe_pairs)},
    {"special values of ex2, lg2, rcp, tanh", 80, true, sizeof(struct special_in), sizeof(struct special_out),
     fill_special, expect_special, PROBE_ON(probe_special)},
    {0},
};

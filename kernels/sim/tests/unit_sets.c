/* unit_sets.c - see unit_sets.h. */
#include "kernels/sim/tests/unit_sets.h"

#include <math.h>
#include <string.h>

const char *unit_family_name(enum unit_family family)
{
    static const char *const names[UNIT_FAMILIES] = {"near", "spread", "wide", "positive", "cancel", "edges", "zeros",
                                                     "subnormal", "tiny", "huge", "special", "bits"};
    return names[family];
}

static uint64_t random_bits(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

static int draw(uint64_t *state, int low, int high)
{
    return low + (int)(random_bits(state) % (uint64_t)(high - low + 1));
}

struct format {
    int fraction_bits, exponent_bits, unused_bits; /* unused: below the fraction, tf32's 13 */
};

static struct format format_of(enum sim_format format)
{
    if (format == SIM_FP16) return (struct format){10, 5, 0};
    if (format == SIM_BF16) return (struct format){7, 8, 0};
    return (struct format){10, 8, 13};
}

/* A number of the format with this biased exponent and random sign, fraction and unused bits. */
static uint32_t number(uint64_t *state, struct format f, int field)
{
    const int most = (1 << f.exponent_bits) - 1, clamped = field < 0 ? 0 : field > most ? most : field;
    const uint32_t fraction = (uint32_t)random_bits(state) & ((1u << f.fraction_bits) - 1);
    const uint32_t sign = (uint32_t)random_bits(state) & 1;
    const uint32_t unused = (uint32_t)random_bits(state) & ((1u << f.unused_bits) - 1);
    return ((sign << f.exponent_bits | (uint32_t)clamped) << f.fraction_bits | fraction) << f.unused_bits | unused;
}

static uint32_t operand(uint64_t *state, enum unit_family family, struct format f)
{
    const int bias = (1 << (f.exponent_bits - 1)) - 1, most = 2 * bias; /* of finite numbers */
    const uint32_t sign = 1u << (f.fraction_bits + f.exponent_bits + f.unused_bits);
    switch (family) {
    case UNIT_NEAR: return number(state, f, bias + draw(state, -1, 1));
    case UNIT_POSITIVE: return number(state, f, bias + draw(state, -1, 0)) & ~sign;
    case UNIT_WIDE: return number(state, f, draw(state, 1, most));
    case UNIT_EDGES: { /* few fraction bits, products 2^-22 .. 2^-28 beside a few large ones */
        const uint32_t keep = ~(uint32_t)0 << (f.fraction_bits - 2 + f.unused_bits);
        const int small = f.exponent_bits == 5 ? draw(state, -14, -11) : draw(state, -15, -10);
        return number(state, f, bias + (draw(state, 0, 7) ? small : 0)) & keep;
    }
    case UNIT_ZEROS:
        return draw(state, 0, 1) ? number(state, f, 0) & sign : number(state, f, bias + draw(state, -12, 12));
    case UNIT_SUBNORMAL: return number(state, f, draw(state, 0, 1) ? 0 : draw(state, 1, bias + 3));
    case UNIT_TINY: return number(state, f, f.exponent_bits == 5 ? draw(state, 0, 3) : bias + draw(state, -78, -66));
    case UNIT_HUGE: return number(state, f, f.exponent_bits == 5 ? most : bias + 62 + draw(state, -3, 2));
    case UNIT_SPECIAL: { /* about one row or column in three has one */
        if (draw(state, 0, 40)) return number(state, f, draw(state, 0, 9) ? bias + draw(state, -2, 2) : 0);
        const uint32_t bits = number(state, f, most + 1), infinity = sign | (uint32_t)(most + 1)
                                                                  << (f.fraction_bits + f.unused_bits);
        return draw(state, 0, 2) ? bits & infinity : bits;
    }
    case UNIT_BITS: return (uint32_t)random_bits(state);
    default: return number(state, f, bias + draw(state, -6, 6));
    }
}

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static float accumulator(uint64_t *state, enum unit_family family)
{
    const struct format f = {23, 8, 0};
    switch (family) {
    case UNIT_WIDE: return float_of(number(state, f, draw(state, 1, 254)));
    case UNIT_POSITIVE: return fabsf(float_of(number(state, f, 127 + draw(state, -2, 6))));
    case UNIT_EDGES: return draw(state, 0, 3) ? float_of(number(state, f, 127 + draw(state, -28, 1))) : 1.0f;
    case UNIT_ZEROS: return draw(state, 0, 1) ? float_of(number(state, f, 0) & 0x80000000) :
                                                float_of(number(state, f, 127 + draw(state, -40, 10)));
    case UNIT_SUBNORMAL:
    case UNIT_TINY: return draw(state, 0, 2) ? 0.0f : float_of(number(state, f, draw(state, 0, 5)));
    case UNIT_HUGE: return float_of(number(state, f, draw(state, 250, 254)));
    case UNIT_SPECIAL: return float_of(number(state, f, draw(state, 0, 20) ? 127 : 255));
    case UNIT_BITS: return float_of((uint32_t)random_bits(state));
    default: return draw(state, 0, 3) ? float_of(number(state, f, 127 + draw(state, -12, 12))) : 0.0f;
    }
}

static uint32_t get(enum sim_format format, const void *array, int index)
{
    const int bytes = format == SIM_TF32 ? 4 : 2;
    uint32_t bits = 0;
    memcpy(&bits, (const char *)array + (size_t)index * bytes, bytes);
    return bits;
}

static void put(enum sim_format format, void *array, int index, uint32_t bits)
{
    const int bytes = format == SIM_TF32 ? 4 : 2;
    memcpy((char *)array + (size_t)index * bytes, &bits, bytes);
}

static double value(enum sim_format format, uint32_t bits)
{
    const struct format f = format_of(format);
    const int field = (int)(bits >> (f.fraction_bits + f.unused_bits) & ((1u << f.exponent_bits) - 1));
    const int fraction = (int)(bits >> f.unused_bits & ((1u << f.fraction_bits) - 1));
    const bool negative = bits >> (f.fraction_bits + f.exponent_bits + f.unused_bits) & 1;
    const double magnitude = ldexp(field ? fraction | 1 << f.fraction_bits : fraction,
                                   (field ? field : 1) - ((1 << (f.exponent_bits - 1)) - 1) - f.fraction_bits);
    return negative ? -magnitude : magnitude;
}

/* Each odd product is nearly minus the one before it, and c nearly minus their sum. */
static void make_cancel(enum sim_format format, uint64_t *state, int m, int n, int k, void *a, void *b_t, float *c)
{
    const struct format f = format_of(format);
    const uint32_t sign = 1u << (f.fraction_bits + f.exponent_bits + f.unused_bits);
    for (int l = 1; l < k; l += 2) {
        for (int i = 0; i < m; ++i)
            put(format, a, i * k + l, (get(format, a, i * k + l - 1) ^ sign) + (uint32_t)draw(state, -1, 1));
        for (int j = 0; j < n; ++j) put(format, b_t, j * k + l, get(format, b_t, j * k + l - 1));
    }
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j) {
            double sum = 0;
            for (int l = 0; l < k; ++l)
                sum += value(format, get(format, a, i * k + l)) * value(format, get(format, b_t, j * k + l));
            if (draw(state, 0, 1)) c[i * n + j] = -(float)(sum * (1 + draw(state, -2, 2) * 0x1p-23));
        }
}

void unit_sets(enum unit_family family, enum sim_format format, uint64_t seed, int m, int n, int k, void *a, void *b_t,
               float *c)
{
    uint64_t state = seed * UNIT_FAMILIES + family;
    const struct format f = format_of(format);
    for (int i = 0; i < m * k; ++i) put(format, a, i, operand(&state, family, f));
    for (int i = 0; i < n * k; ++i) put(format, b_t, i, operand(&state, family, f));
    for (int i = 0; i < m * n; ++i) c[i] = accumulator(&state, family);
    if (family == UNIT_CANCEL) make_cancel(format, &state, m, n, k, a, b_t, c);
}

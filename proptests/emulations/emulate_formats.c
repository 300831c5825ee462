/* emulate_formats.c - conversions on bits of fp32; reference/formats.c does the same by arithmetic on doubles. */
#include "proptests/emulations/emulate_formats.h"

#include <math.h>
#include <string.h>

#include "lib/attest.h"

/* A format narrower than fp32, as bits: sign, exponent, fraction. */
struct narrow {
    int bytes, exponent_bits, fraction_bits;
};

static const struct narrow narrow_formats[] = {
    [ATTEST_FP16] = {2, 5, 10},
    [ATTEST_BF16] = {2, 8, 7},
    [ATTEST_FP8_E4M3] = {1, 4, 3},
    [ATTEST_FP8_E5M2] = {1, 5, 2},
};

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

static int bias_of(const struct narrow *f) { return (1 << (f->exponent_bits - 1)) - 1; }

int emulate_min_exponent(int32_t dtype)
{
    return dtype == ATTEST_FP32 ? -126 : 1 - bias_of(&narrow_formats[dtype]);
}

/* Whether these bits, without the sign, are an infinity or a NaN. e4m3 has one NaN and no infinity. */
static int is_special(int32_t dtype, uint32_t magnitude)
{
    const struct narrow *f = &narrow_formats[dtype];
    if (dtype == ATTEST_FP8_E4M3) return magnitude == 0x7f;
    return magnitude >> f->fraction_bits == (1u << f->exponent_bits) - 1;
}

static float widen(int32_t dtype, uint32_t bits)
{
    const struct narrow *f = &narrow_formats[dtype];
    const uint32_t sign_bit = 1u << (f->exponent_bits + f->fraction_bits), magnitude = bits & (sign_bit - 1);
    const uint32_t fraction = magnitude & ((1u << f->fraction_bits) - 1), sign = bits & sign_bit ? 0x80000000u : 0;
    const int exponent = (int)(magnitude >> f->fraction_bits);
    if (is_special(dtype, magnitude)) {
        const int is_infinity = fraction == 0 && dtype != ATTEST_FP8_E4M3;
        return float_of(sign | (is_infinity ? 0x7f800000u : 0x7fc00000u));
    }
    if (exponent == 0) { /* subnormal: an exact product of small numbers */
        const float value = ldexpf((float)fraction, 1 - bias_of(f) - f->fraction_bits);
        return float_of(sign | bits_of(value));
    }
    return float_of(sign | (uint32_t)(exponent - bias_of(f) + 127) << 23 | fraction << (23 - f->fraction_bits));
}

static uint32_t narrow_to(int32_t dtype, float value)
{
    const struct narrow *f = &narrow_formats[dtype];
    const uint32_t bits = bits_of(value), magnitude = bits & 0x7fffffffu;
    const uint32_t sign = bits >> 31 << (f->exponent_bits + f->fraction_bits);
    const uint32_t all_ones = ((1u << f->exponent_bits) - 1) << f->fraction_bits;
    const uint32_t nan = dtype == ATTEST_FP8_E4M3 ? 0x7f : all_ones | 1u << (f->fraction_bits - 1);
    const uint32_t beyond = dtype == ATTEST_FP8_E4M3 ? 0x7f : all_ones;
    if (magnitude > 0x7f800000u) return sign | nan;

    /* Below the smallest normal number the spacing stays that of the smallest binade: more bits are dropped. */
    const int exponent = (int)(magnitude >> 23) - 127, least = 1 - bias_of(f);
    const int below = exponent < least ? least - exponent : 0;
    const uint32_t significand = magnitude >> 23 ? (magnitude & 0x7fffffu) | 0x800000u : (magnitude & 0x7fffffu) << 1;
    const int dropped = 23 - f->fraction_bits + below;
    if (dropped > 25) return sign;
    const uint32_t kept = significand >> dropped, half = 1u << (dropped - 1);
    const uint32_t rest = significand & ((1u << dropped) - 1);
    const uint32_t rounded = kept + (rest > half || (rest == half && (kept & 1)));

    /* The significand's leading bit, or a carry out of it, counts one in the exponent. */
    const uint32_t base = below ? 0 : (uint32_t)(exponent - least) << f->fraction_bits;
    const uint32_t result = base + rounded;
    return sign | (result >= all_ones && (dtype != ATTEST_FP8_E4M3 || result >= 0x7f) ? beyond : result);
}

float emulate_load(int32_t dtype, const void *data, int64_t index)
{
    uint16_t bits;
    if (dtype == ATTEST_FP32) return ((const float *)data)[index];
    if (narrow_formats[dtype].bytes == 1) return widen(dtype, ((const uint8_t *)data)[index]);
    memcpy(&bits, (const char *)data + 2 * index, sizeof bits);
    return widen(dtype, bits);
}

void emulate_store(int32_t dtype, void *data, int64_t index, float value)
{
    if (dtype == ATTEST_FP32) {
        ((float *)data)[index] = value;
    } else if (narrow_formats[dtype].bytes == 1) {
        ((uint8_t *)data)[index] = (uint8_t)narrow_to(dtype, value);
    } else {
        const uint16_t bits = (uint16_t)narrow_to(dtype, value);
        memcpy((char *)data + 2 * index, &bits, sizeof bits);
    }
}

float emulate_round(int32_t dtype, float value)
{
    return dtype == ATTEST_FP32 ? value : widen(dtype, narrow_to(dtype, value));
}

float emulate_round_weight(int32_t dtype, int32_t weights, float value)
{
    if (weights == ATTEST_WEIGHTS_FP32) return value;
    const float first = emulate_round(dtype, value);
    return weights == ATTEST_WEIGHTS_ONE_PART || isinf(first) ? first : first + emulate_round(dtype, value - first);
}

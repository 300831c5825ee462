/* formats.c - see formats.h. */
#include "reference/formats.h"

#include <math.h>
#include <string.h>

static const struct ref_format formats[] = {
    [ATTEST_FP32] = {"fp32", 4, 23, -126, 0x1p-24, 0x1p-126, 0x1p-149, 0x1.fffffep127, 0x1.ffffffp127, 1},
    [ATTEST_FP16] = {"fp16", 2, 10, -14, 0x1p-11, 0x1p-14, 0x1p-24, 65504.0, 65520.0, 1},
    [ATTEST_BF16] = {"bf16", 2, 7, -126, 0x1p-8, 0x1p-126, 0x1p-133, 0x1.fep127, 0x1.ffp127, 1},
    [ATTEST_FP8_E4M3] = {"fp8_e4m3", 1, 3, -6, 0x1p-4, 0x1p-6, 0x1p-9, 448.0, 0x1.d000000000001p8, 0},
    [ATTEST_FP8_E5M2] = {"fp8_e5m2", 1, 2, -14, 0x1p-3, 0x1p-14, 0x1p-16, 57344.0, 61440.0, 1},
};

const struct ref_format *ref_format(int32_t dtype)
{
    return dtype >= ATTEST_FP32 && dtype <= ATTEST_FP8_E5M2 ? &formats[dtype] : NULL;
}

size_t ref_dtype_bytes(int32_t dtype)
{
    const struct ref_format *f = ref_format(dtype);
    return f != NULL ? (size_t)f->bytes : dtype == ATTEST_UINT8 ? 1 : 0;
}

const char *ref_dtype_name(int32_t dtype)
{
    const struct ref_format *f = ref_format(dtype);
    return f != NULL ? f->name : dtype == ATTEST_UINT8 ? "uint8" : dtype == ATTEST_ABSENT ? "absent" : "unknown";
}

static double fp32_from_bits(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* A small format inside fp32: `magnitude` moved to where fp32 keeps exponent and fraction is the value
 * divided by a power of two, subnormals included, so one exact product restores it. */
static double widen(uint32_t magnitude, int shift, double scale)
{
    return fp32_from_bits(magnitude << shift) * scale;
}

double ref_decode(int32_t dtype, uint32_t bits)
{
    switch (dtype) {
    case ATTEST_FP32: return fp32_from_bits(bits);
    case ATTEST_BF16: return fp32_from_bits((bits & 0xffff) << 16);
    case ATTEST_FP8_E5M2: bits = (bits & 0xff) << 8; /* the upper byte of an fp16 */ /* fall through */
    case ATTEST_FP16: {
        const uint32_t magnitude = bits & 0x7fff;
        const double value = magnitude < 0x7c00 ? widen(magnitude, 13, 0x1p112) : magnitude == 0x7c00 ? INFINITY : NAN;
        return bits & 0x8000 ? -value : value;
    }
    case ATTEST_FP8_E4M3: {
        const uint32_t magnitude = bits & 0x7f;
        const double value = magnitude < 0x7f ? widen(magnitude, 20, 0x1p120) : NAN;
        return bits & 0x80 ? -value : value;
    }
    default: return NAN;
    }
}

/* The exponent of the neighbours' distance around a value, before the fraction: subnormals share one. */
static int quantum_exponent(const struct ref_format *f, double magnitude)
{
    const int exponent = magnitude > 0 ? ilogb(magnitude) : f->min_exponent;
    return (exponent > f->min_exponent ? exponent : f->min_exponent) - f->fraction_bits;
}

uint32_t ref_encode(int32_t dtype, double value)
{
    const struct ref_format *f = ref_format(dtype);
    if (f == NULL) return 0;
    const int exponent_bits = 8 * f->bytes - 1 - f->fraction_bits;
    const uint32_t sign = signbit(value) ? UINT32_C(1) << (8 * f->bytes - 1) : 0;
    const uint32_t infinity = ((UINT32_C(1) << exponent_bits) - 1) << f->fraction_bits;
    const uint32_t quiet_nan = f->has_infinity ? infinity | UINT32_C(1) << (f->fraction_bits - 1) : 0x7f;
    const double magnitude = fabs(value);
    if (isnan(value)) return sign | quiet_nan;
    if (magnitude >= f->overflow) return sign | (f->has_infinity ? infinity : quiet_nan);

    const int quantum = quantum_exponent(f, magnitude);
    const double units = ldexp(magnitude, -quantum); /* exact: below 2^(fraction_bits + 1), or a tiny fraction */
    double whole = floor(units);
    const double rest = units - whole;
    if (rest > 0.5 || (rest == 0.5 && fmod(whole, 2.0) != 0.0)) whole += 1.0;
    /* The exponent field counts from the smallest normal's; a carry out of the fraction runs into it. */
    const uint32_t field = (uint32_t)(quantum + f->fraction_bits - f->min_exponent);
    return sign | ((field << f->fraction_bits) + (uint32_t)whole);
}

double ref_round(int32_t dtype, double value)
{
    return ref_decode(dtype, ref_encode(dtype, value));
}

double ref_half_ulp(int32_t dtype, double value)
{
    const struct ref_format *f = ref_format(dtype);
    return f == NULL || isnan(value) ? NAN : isinf(value) ? INFINITY : ldexp(0.5, quantum_exponent(f, fabs(value)));
}

double ref_load(int32_t dtype, const void *data, int64_t index)
{
    const size_t bytes = ref_dtype_bytes(dtype);
    const char *at = (const char *)data + index * (int64_t)bytes;
    if (bytes == 4) {
        float value;
        memcpy(&value, at, sizeof value);
        return value;
    }
    if (bytes == 2) {
        uint16_t bits;
        memcpy(&bits, at, sizeof bits);
        return ref_decode(dtype, bits);
    }
    const uint8_t byte = *(const uint8_t *)at;
    return dtype == ATTEST_UINT8 ? byte : ref_decode(dtype, byte);
}

void ref_store(int32_t dtype, void *data, int64_t index, double value)
{
    const size_t bytes = ref_dtype_bytes(dtype);
    const uint32_t bits = ref_encode(dtype, value);
    char *at = (char *)data + index * (int64_t)bytes;
    if (bytes == 4) memcpy(at, &bits, 4);
    else if (bytes == 2) memcpy(at, &(uint16_t){(uint16_t)bits}, 2);
    else *(uint8_t *)at = (uint8_t)bits;
}

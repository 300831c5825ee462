/* formats.c - decoding and encoding of every tensor format, in integer arithmetic. */
#include "reference/formats.h"

#include <math.h>
#include <string.h>

/* The tie between max_finite and what would come next goes to the even neighbour: upwards in every
 * format but e4m3, whose 448 is even and whose next pattern is NaN. */
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
    return f ? (size_t)f->bytes : dtype == ATTEST_UINT8;
}

const char *ref_dtype_name(int32_t dtype)
{
    const struct ref_format *f = ref_format(dtype);
    return f ? f->name : dtype == ATTEST_UINT8 ? "uint8" : dtype == ATTEST_ABSENT ? "absent" : "unknown";
}

static inline uint64_t bits_of(double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

static inline double from_bits(uint64_t bits)
{
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t sign_bit(const struct ref_format *f) { return UINT32_C(1) << (8 * f->bytes - 1); }

/* The smallest pattern, its sign bit left out, that is no finite number: infinity, or e4m3's only NaN. */
static inline uint32_t infinity_bits(const struct ref_format *f)
{
    const uint32_t all_ones = sign_bit(f) - 1;
    return f->has_infinity ? all_ones >> f->fraction_bits << f->fraction_bits : all_ones;
}

static uint32_t nan_bits(const struct ref_format *f)
{
    return f->has_infinity ? infinity_bits(f) | UINT32_C(1) << (f->fraction_bits - 1) : infinity_bits(f);
}

static inline __attribute__((always_inline)) double decode(const struct ref_format *f, uint32_t bits)
{
    const uint32_t magnitude = bits & (sign_bit(f) - 1);
    const uint32_t exponent = magnitude >> f->fraction_bits, fraction = magnitude & ((1u << f->fraction_bits) - 1);
    double value;
    if (magnitude >= infinity_bits(f)) {
        value = f->has_infinity && magnitude == infinity_bits(f) ? INFINITY : NAN;
    } else if (exponent == 0) {
        value = fraction * f->min_subnormal;
    } else {
        value = from_bits((uint64_t)((int)exponent - 1 + f->min_exponent + 1023) << 52 |
                          (uint64_t)fraction << (52 - f->fraction_bits));
    }
    /* Not by a branch: signs cannot be foretold. */
    return from_bits(bits_of(value) | (uint64_t)(bits & sign_bit(f)) << (64 - 8 * f->bytes));
}

double ref_decode(int32_t dtype, uint32_t bits)
{
    const struct ref_format *f = ref_format(dtype);
    return f ? decode(f, bits) : NAN;
}

/* Exponent of the binade of |value|, at least that of the smallest normal number. */
static int binade(const struct ref_format *f, double value)
{
    const int exponent = (int)(bits_of(value) >> 52 & 2047) - 1023;
    return exponent > f->min_exponent ? exponent : f->min_exponent;
}

/* |value| below overflow, in units of the last place of its binade: to nearest, ties to even. */
static uint64_t round_to_units(const struct ref_format *f, double value)
{
    const int exponent = (int)(bits_of(value) >> 52 & 2047) - 1023;
    const int shift = 52 - f->fraction_bits + binade(f, value) - exponent;
    if (exponent == -1023 || shift > 54) return 0; /* less than a quarter of the smallest number */
    const uint64_t significand = (bits_of(value) & ((UINT64_C(1) << 52) - 1)) | UINT64_C(1) << 52;
    const uint64_t units = significand >> shift, rest = significand & ((UINT64_C(1) << shift) - 1);
    const uint64_t half = UINT64_C(1) << (shift - 1);
    return units + (rest > half || (rest == half && units % 2 == 1));
}

uint32_t ref_encode(int32_t dtype, double value)
{
    const struct ref_format *f = ref_format(dtype);
    if (!f) return 0;
    if (isnan(value)) return nan_bits(f);
    const uint32_t sign = signbit(value) ? sign_bit(f) : 0;
    if (fabs(value) >= f->overflow) return sign | infinity_bits(f);
    /* The units of a normal number include its hidden bit, which adds one to the exponent field; so
     * does a carry into the next binade. */
    const uint32_t exponent = (uint32_t)(binade(f, value) - f->min_exponent) << f->fraction_bits;
    return sign | (exponent + (uint32_t)round_to_units(f, value));
}

double ref_round(int32_t dtype, double value) { return ref_decode(dtype, ref_encode(dtype, value)); }

double ref_half_ulp(int32_t dtype, double value)
{
    const struct ref_format *f = ref_format(dtype);
    if (!f || !isfinite(value)) return f ? fabs(value) : NAN;
    return ldexp(f->unit_roundoff, binade(f, value));
}

static inline uint32_t bits_at(const void *data, int64_t index, int bytes)
{
    const unsigned char *at = (const unsigned char *)data + index * bytes;
    uint32_t word;
    uint16_t half;
    if (bytes == 4) return memcpy(&word, at, sizeof word), word;
    if (bytes == 2) return memcpy(&half, at, sizeof half), half;
    return *at;
}

double ref_load(int32_t dtype, const void *data, int64_t index)
{
    const struct ref_format *f = ref_format(dtype);
    if (f) return decode(f, bits_at(data, index, f->bytes));
    return dtype == ATTEST_UINT8 ? bits_at(data, index, 1) : NAN;
}

/* Inlined with a constant format, so that the compiler has all of its numbers at hand. */
static inline __attribute__((always_inline)) void load_row(const struct ref_format *f, const void *data, int64_t index,
                                                           int64_t count, double *out)
{
    for (int64_t x = 0; x < count; ++x) out[x] = decode(f, bits_at(data, index + x, f->bytes));
}

void ref_load_row(int32_t dtype, const void *data, int64_t index, int64_t count, double *out)
{
    switch (dtype) {
    case ATTEST_FP32: load_row(&formats[ATTEST_FP32], data, index, count, out); return;
    case ATTEST_FP16: load_row(&formats[ATTEST_FP16], data, index, count, out); return;
    case ATTEST_BF16: load_row(&formats[ATTEST_BF16], data, index, count, out); return;
    default:
        for (int64_t x = 0; x < count; ++x) out[x] = ref_load(dtype, data, index + x);
    }
}

void ref_store(int32_t dtype, void *data, int64_t index, double value)
{
    const size_t bytes = ref_dtype_bytes(dtype);
    const uint32_t word = dtype == ATTEST_UINT8 ? (uint32_t)value : ref_encode(dtype, value);
    const uint16_t half = (uint16_t)word;
    const uint8_t byte = (uint8_t)word;
    const void *from = bytes == 4 ? (const void *)&word : bytes == 2 ? (const void *)&half : (const void *)&byte;
    memcpy((unsigned char *)data + index * (int64_t)bytes, from, bytes);
}

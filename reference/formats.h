/* formats.h - the number formats of tensors, exactly, in double precision.
 *
 * Every finite value of every format here is a double, so decoding is exact; encoding rounds to
 * nearest, ties to even, once. fp32 and fp64 arithmetic of the host is IEEE; nothing here depends on
 * the rounding mode or on hardware conversions. */
#ifndef ATTEST_REFERENCE_FORMATS_H
#define ATTEST_REFERENCE_FORMATS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/attest.h"

#ifdef __cplusplus
extern "C" {
#endif

struct ref_format {
    const char *name;     /* "bf16" */
    int bytes;            /* size of an element */
    int fraction_bits;    /* stored bits of the significand: 7 for bf16 */
    int min_exponent;     /* of the smallest normal number: -126 for bf16 */
    double unit_roundoff; /* 2^-(fraction_bits + 1) */
    double min_normal, min_subnormal, max_finite;
    double overflow;      /* smallest magnitude that rounds beyond max_finite */
    int has_infinity;     /* 0 for fp8 e4m3: overflow gives NaN */
};

/* NULL for a dtype that is not a floating-point format (absent, uint8, unknown). */
const struct ref_format *ref_format(int32_t dtype);

size_t ref_dtype_bytes(int32_t dtype); /* 0 for unknown or absent */
const char *ref_dtype_name(int32_t dtype);

double ref_decode(int32_t dtype, uint32_t bits);
uint32_t ref_encode(int32_t dtype, double value);
double ref_round(int32_t dtype, double value); /* ref_decode(ref_encode(value)) */

/* Largest error of one rounding of a value of this magnitude: half the distance between neighbours
 * (half of min_subnormal below min_normal). Monotone in |value|. */
double ref_half_ulp(int32_t dtype, double value);

/* Element `index` of an array. uint8 reads as its integer value. */
double ref_load(int32_t dtype, const void *data, int64_t index);
/* Elements index .. index + count - 1. */
void ref_load_row(int32_t dtype, const void *data, int64_t index, int64_t count, double *out);
void ref_store(int32_t dtype, void *data, int64_t index, double value);

#ifdef __cplusplus
}
#endif

#endif

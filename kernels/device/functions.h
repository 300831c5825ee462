/* functions.h - exp2, log2, reciprocal and tanh as kernels call them.
 *
 * exp2_f32, log2_f32, rcp_f32 and tanh_f32 are the approximate instructions of arith.h, or, built with
 * ATTEST_POLYNOMIAL, the functions of the same name with `_portable`: integer operations, comparisons, IEEE additions,
 * multiplications, divisions and fused multiply-adds alone, in a fixed order, so that every machine gives the same bits
 * (contraction off: nvcc -fmad=false, g++ -ffp-contract=off). They take every fp32, subnormals included, which the
 * instructions flush; a NaN gives the NaN 0x7fffffff. functions.md says where coefficients come from, and how their
 * errors were found. */
#ifndef ATTEST_KERNELS_DEVICE_FUNCTIONS_H
#define ATTEST_KERNELS_DEVICE_FUNCTIONS_H

#include "kernels/device/arith.h"
#include "kernels/device/convert.h"

/* Which of two NaNs comes out of an operation depends on the machine: so there is one. */
INLINE float one_nan_f32(float x) { return x != x ? float_of(0x7fffffff) : x; }

INLINE float infinity_f32() { return float_of(0x7f800000); }

/* 2^n, -126 <= n <= 127. */
INLINE float power_of_two_f32(int n) { return float_of(static_cast<uint32_t>(n + 127) << 23); }

/* 2^x within 2^-23.8, relative; 0.88 of the distance of neighbours where the result is subnormal. Exact at integers,
 * +inf from 128 on, 0 below -150. Not monotone: may step back by a last bit. */
INLINE float exp2_portable(float x)
{
    const float shift = 0x1.8p23f; /* the sum's last bit is worth 1: rounds to the nearest integer */
    const float limited = x < -151.0f ? -151.0f : x > 129.0f ? 129.0f : x;
    const float shifted = limited + shift;
    const float f = limited - (shifted - shift); /* exact, |f| <= 1/2 */
    float p = 0x1.3fa206p-13f;
    p = fma_rn(p, f, 0x1.5f0b82p-10f);
    p = fma_rn(p, f, 0x1.3b30ap-7f);
    p = fma_rn(p, f, 0x1.c6af76p-5f);
    p = fma_rn(p, f, 0x1.ebfbd8p-3f);
    p = fma_rn(p, f, 0x1.62e43p-1f);
    p = fma_rn(p, f, 1.0f);
    const int n = x == x ? static_cast<int>(bits_of(shifted) - bits_of(shift)) : 0;
    return one_nan_f32(p * power_of_two_f32(n / 2) * power_of_two_f32(n - n / 2));
}

/* log2(x) within 2^-23.07, relative, and 0.97 of the distance of neighbours. Exact at powers of two; -inf at either
 * zero, NaN below. */
INLINE float log2_portable(float x)
{
    const uint32_t sqrt_half = 0x3f3504f3, least_normal = 0x00800000;
    const bool subnormal = bits_of(x) < least_normal;
    const uint32_t bits = bits_of(subnormal ? x * 0x1p23f : x) - sqrt_half;
    /* x = 2^e (1 + f), 1 + f from sqrt(1/2) to sqrt(2); f is exact. */
    const int e = (static_cast<int>(bits) >> 23) - (subnormal ? 23 : 0);
    const float f = float_of((bits & 0x007fffff) + sqrt_half) - 1.0f;
    float p = 0x1.8a8506p-4f;
    p = fma_rn(p, f, -0x1.53831ap-3f);
    p = fma_rn(p, f, 0x1.5d8dcp-3f);
    p = fma_rn(p, f, -0x1.6f87bep-3f);
    p = fma_rn(p, f, 0x1.a47c86p-3f);
    p = fma_rn(p, f, -0x1.ec6a46p-3f);
    p = fma_rn(p, f, 0x1.277c3cp-2f);
    p = fma_rn(p, f, -0x1.7154bcp-2f);
    p = fma_rn(p, f, 0x1.ec7094p-2f);
    p = fma_rn(p, f, -0x1.715476p-1f);
    /* log2(1 + f) = f (log2 e in two parts + f p) */
    const float log2_1_f = fma_rn(f, 0x1.715476p0f, fma_rn(f, 0x1.4ae0cp-26f, f * f * p));
    const float result = static_cast<float>(e) + log2_1_f;
    if (!(x >= 0)) return float_of(0x7fffffff);
    if (x == 0) return -infinity_f32();
    return x == infinity_f32() ? x : result;
}

/* 1 / x, correctly rounded. */
INLINE float rcp_portable(float x) { return one_nan_f32(div_rn(1.0f, x)); }

/* tanh(x) of |x| < 1/2 by its polynomial. */
INLINE float tanh_near_zero(float x)
{
    const float x2 = x * x;
    float p = 0x1.06cf4ep-9f;
    p = fma_rn(p, x2, -0x1.07828ap-7f);
    p = fma_rn(p, x2, 0x1.62ce2ep-6f);
    p = fma_rn(p, x2, -0x1.b9e2ep-5f);
    p = fma_rn(p, x2, 0x1.111052p-3f);
    p = fma_rn(p, x2, -0x1.555554p-2f);
    return fma_rn(x * x2, p, x);
}

/* tanh(x) within 2^-22.08, relative. */
INLINE float tanh_portable(float x)
{
    const uint32_t sign = bits_of(x) & 0x80000000;
    const float a = float_of(bits_of(x) ^ sign);
    const float beyond = 1.0f - div_rn(2.0f, exp2_portable(a * 0x1.715476p1f) + 1.0f); /* e^2a = 2^(2a log2 e) */
    return one_nan_f32(float_of(bits_of(a < 0.5f ? tanh_near_zero(a) : beyond) | sign));
}

#ifdef ATTEST_POLYNOMIAL
INLINE float exp2_f32(float x) { return exp2_portable(x); }
INLINE float log2_f32(float x) { return log2_portable(x); }
INLINE float rcp_f32(float x) { return rcp_portable(x); }
INLINE float tanh_f32(float x) { return tanh_portable(x); }
#else
INLINE float exp2_f32(float x) { return exp2_approx(x); }
INLINE float log2_f32(float x) { return log2_approx(x); }
INLINE float rcp_f32(float x) { return rcp_approx(x); }
INLINE float tanh_f32(float x) { return tanh_approx(x); }
#endif

/* tanh(x) of |x| >= 1/2, 1 - 2 / (e^2|x| + 1): two special functions, no division. */
INLINE float tanh_beyond(float x)
{
    const uint32_t sign = bits_of(x) & 0x80000000;
    const float power = exp2_f32(float_of(bits_of(x) ^ sign) * 0x1.715476p1f); /* e^2a = 2^(2a log2 e) */
    return float_of(bits_of(fma_rn(-2.0f, rcp_f32(power + 1.0f), 1.0f)) | sign);
}

/* tanh(x), off by 2^-22 (1 + |tanh x|) at most, where tanh_f32 may be off by 2^-11. A NaN gives a NaN. */
INLINE float tanh_accurate(float x)
{
    const float near_zero = tanh_near_zero(x), beyond = tanh_beyond(x);
    return float_of(bits_of(x) & 0x7fffffff) < 0.5f ? near_zero : beyond;
}

#endif

/* arith.h - fp32 operations that the language leaves open. +, -, * are rounded to nearest one by one: contraction is
 * off on both machines. */
#ifndef ATTEST_DEVICE_ARITH_H
#define ATTEST_DEVICE_ARITH_H

#include "kernels/device/convert.h"

/* "fma": .rn.f32; sm_80. a b + c, rounded once. */
DEVICE float fma_rn(float a, float b, float c)
{
#if ON_CHIP
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/* "div": .rn.f32; sm_80. a / b, rounded once. */
DEVICE float div_rn(float a, float b)
{
#if ON_CHIP
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

/* "max", "min": .f32; sm_80. A NaN gives way to the other operand, two give 0x7fffffff; -0 < +0. */
DEVICE float max_f32(float a, float b)
{
#if ON_CHIP
    float d;
    asm("max.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
#else
    if (a != a) return b != b ? float_of(0x7fffffff) : b;
    if (a == b) return float_of(bits_of(a) & bits_of(b));
    return a < b ? b : a;
#endif
}

DEVICE float min_f32(float a, float b)
{
#if ON_CHIP
    float d;
    asm("min.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
#else
    if (a != a) return b != b ? float_of(0x7fffffff) : b;
    if (a == b) return float_of(bits_of(a) | bits_of(b));
    return b < a ? b : a;
#endif
}

/* Approximations: the one thing whose last bits differ between the machines. In the .ftz forms subnormal operands
 * count as zero, subnormal results are zero. */

/* "ex2": .approx.ftz.f32; sm_80. 2^x. */
DEVICE float exp2_approx(float x)
{
#if ON_CHIP
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return sim_exp2_approx(x);
#endif
}

/* "lg2": .approx.ftz.f32; sm_80. log2 x. */
DEVICE float log2_approx(float x)
{
#if ON_CHIP
    float y;
    asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return sim_log2_approx(x);
#endif
}

/* "rcp": .approx.ftz.f32; sm_80. 1 / x. */
DEVICE float rcp_approx(float x)
{
#if ON_CHIP
    float y;
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return sim_rcp_approx(x);
#endif
}

/* "tanh": .approx.f32; sm_80. tanh x; subnormals are kept. */
DEVICE float tanh_approx(float x)
{
#if ON_CHIP
    float y;
    asm("tanh.approx.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return sim_tanh_approx(x);
#endif
}

#endif

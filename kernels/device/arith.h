/* arith.h - fp32 operations that the language leaves open. +, -, * are rounded to nearest one by one: contraction is
 * off on both machines. */
#ifndef ATTEST_DEVICE_ARITH_H
#define ATTEST_DEVICE_ARITH_H

#include "kernels/device/convert.h"

/* "fma": .rn.f32; sm_80. a b + c, rounded once. */
INLINE float fma_rn(float a, float b, float c)
{
#if ON_CHIP
    return __fmaf_rn(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
}

/* "div": .rn.f32; sm_80. a / b, rounded once. */
INLINE float div_rn(float a, float b)
{
#if ON_CHIP
    return __fdiv_rn(a, b);
#else
    return a / b;
#endif
}

/* "max", "min": .f32; sm_80. A NaN gives way to the other operand, two give 0x7fffffff; -0 < +0. */
INLINE float max_f32(float a, float b)
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

INLINE float min_f32(float a, float b)
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

/* "max": .NaN.f32; sm_80. As max_f32, but a NaN stays: 0x7fffffff. */
INLINE float max_or_nan_f32(float a, float b)
{
#if ON_CHIP
    float d;
    asm("max.NaN.f32 %0, %1, %2;" : "=f"(d) : "f"(a), "f"(b));
    return d;
#else
    return a != a || b != b ? float_of(0x7fffffff) : max_f32(a, b);
#endif
}

/* Two bf16 in 32 bits each. */

#if !ON_CHIP
/* What `op` makes of the lower halves and of the upper ones. */
template <typename F>
inline uint32_t of_halves(uint32_t a, uint32_t b, F op)
{
    const auto half = [&](unsigned shift) {
        const bf16 x = {static_cast<uint16_t>(a >> shift)}, y = {static_cast<uint16_t>(b >> shift)};
        return static_cast<uint32_t>(op(to_f32(x), to_f32(y)).bits) << shift;
    };
    return half(0) | half(16);
}
#endif

/* "max", "min": .bf16x2; sm_80. As max_f32 and min_f32; two NaN give 0x7fff. */
INLINE uint32_t max_bf16x2(uint32_t a, uint32_t b)
{
#if ON_CHIP
    uint32_t d;
    asm("max.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return of_halves(a, b, [](float x, float y) { return to_bf16(max_f32(x, y)); });
#endif
}

INLINE uint32_t min_bf16x2(uint32_t a, uint32_t b)
{
#if ON_CHIP
    uint32_t d;
    asm("min.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return of_halves(a, b, [](float x, float y) { return to_bf16(min_f32(x, y)); });
#endif
}

/* "max": .xorsign.abs.bf16x2; needs sm_90a. The larger size, a NaN giving way, under whatever sign: callers drop it. */
INLINE uint32_t max_size_bf16x2(uint32_t a, uint32_t b)
{
#if ON_CHIP
    uint32_t d = 0;
    ASM_SM_90("max.xorsign.abs.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return max_bf16x2(a & 0x7fff7fff, b & 0x7fff7fff) | (~(a ^ b) & 0x80008000);
#endif
}

/* "mul": .rn.bf16x2; needs sm_90a. Products rounded once, subnormal ones, too. */
INLINE uint32_t mul_bf16x2(uint32_t a, uint32_t b)
{
#if ON_CHIP
    uint32_t d = 0;
    ASM_SM_90("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
#else
    return of_halves(a, b, [](float x, float y) {
        const double product = static_cast<double>(x) * y; /* exact; then to odd, so that bf16 rounds what was there */
        const float near = static_cast<float>(product);
        if (product == near || product != product) return to_bf16(near);
        const bool is_over = (near < 0 ? -near : near) > (product < 0 ? -product : product);
        return to_bf16(float_of((bits_of(near) - (is_over ? 1 : 0)) | 1));
    });
#endif
}

/* Approximations: the one thing whose last bits differ between the machines. In the .ftz forms subnormal operands
 * count as zero, subnormal results are zero. */

/* "ex2": .approx.ftz.f32; sm_80. 2^x. */
INLINE float exp2_approx(float x)
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
INLINE float log2_approx(float x)
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
INLINE float rcp_approx(float x)
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
INLINE float tanh_approx(float x)
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

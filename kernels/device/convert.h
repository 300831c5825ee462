/* convert.h - number formats. The bits are the same on both machines, NaN included: 0x7fff in 16 bits, 0x7fffffff as
 * fp32, except that bf16 to fp32 keeps whatever NaN there is. */
#ifndef ATTEST_DEVICE_CONVERT_H
#define ATTEST_DEVICE_CONVERT_H

#include "kernels/device/machine.h"

struct f16 {
    uint16_t bits;
};

struct bf16 {
    uint16_t bits;
};

INLINE uint32_t bits_of(float x)
{
    uint32_t bits;
    __builtin_memcpy(&bits, &x, 4);
    return bits;
}

INLINE float float_of(uint32_t bits)
{
    float x;
    __builtin_memcpy(&x, &bits, 4);
    return x;
}

/* "prmt"; sm_80. Four of eight bytes, of which `a` has 0 .. 3, lowest first, and `b` 4 .. 7: the last three bits of hex
 * digit n of `selector` say which is byte n. */
INLINE uint32_t permute_bytes(uint32_t a, uint32_t b, uint32_t selector)
{
#if ON_CHIP
    return __byte_perm(a, b, selector);
#else
    const uint64_t bytes = static_cast<uint64_t>(b) << 32 | a;
    uint32_t out = 0;
    for (int n = 0; n < 4; ++n)
        out |= static_cast<uint32_t>(bytes >> 8 * (selector >> 4 * n & 7) & 0xff) << 8 * n;
    return out;
#endif
}

/* "cvt": .f32.f16; sm_80. Exact. */
INLINE float to_f32(f16 x)
{
#if ON_CHIP
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#else
    const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000) << 16, magnitude = x.bits & 0x7fff;
    if (magnitude > 0x7c00) return float_of(0x7fffffff);
    if (magnitude == 0x7c00) return float_of(sign | 0x7f800000);
    if (magnitude < 0x0400) return float_of(sign | bits_of(static_cast<float>(magnitude) * 0x1p-24f));
    return float_of(sign | ((magnitude << 13) + (112u << 23)));
#endif
}

/* The upper half of an fp32. Exact. */
INLINE float to_f32(bf16 x) { return float_of(static_cast<uint32_t>(x.bits) << 16); }

/* "cvt": .rn.f16.f32; sm_80. To nearest, ties to even; infinity from 65520 on. */
INLINE f16 to_f16(float x)
{
#if ON_CHIP
    uint16_t y;
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return {y};
#else
    const uint32_t bits = bits_of(x), magnitude = bits & 0x7fffffff;
    const uint16_t sign = static_cast<uint16_t>(bits >> 16 & 0x8000);
    uint32_t y;
    if (magnitude > 0x7f800000) return {0x7fff};
    if (magnitude >= 0x477ff000) y = 0x7c00;
    else if (magnitude >= 0x38800000) y = (magnitude - (112u << 23) + 0xfff + (magnitude >> 13 & 1)) >> 13;
    else y = bits_of(float_of(magnitude) + 0.5f) & 0xfff; /* the sum rounds at 2^-24, fp16's least subnormal */
    return {static_cast<uint16_t>(sign | y)};
#endif
}

/* "cvt": .rn.bf16.f32; sm_80. To nearest, ties to even. */
INLINE bf16 to_bf16(float x)
{
#if ON_CHIP
    uint16_t y;
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(y) : "f"(x));
    return {y};
#else
    const uint32_t bits = bits_of(x);
    if ((bits & 0x7fffffff) > 0x7f800000) return {0x7fff};
    return {static_cast<uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16)};
#endif
}

/* "cvt": .rna.tf32.f32; sm_80. fp32 bits with 10 fraction bits, to nearest, ties away from zero, the lower 13 zero. Of
 * a NaN they are cut off, so that one whose payload lies there becomes an infinity. */
INLINE uint32_t to_tf32(float x)
{
#if ON_CHIP
    uint32_t y;
    asm("cvt.rna.tf32.f32 %0, %1;" : "=r"(y) : "f"(x));
    return y;
#else
    const uint32_t bits = bits_of(x);
    return ((bits & 0x7fffffff) < 0x7f800000 ? bits + 0x1000 : bits) & ~0x1fffu;
#endif
}

/* "cvt": .rn.f16x2.f32, .rn.bf16x2.f32; sm_80. Two numbers in 32 bits, `low` in the lower half, rounded as above. */
INLINE uint32_t pack_f16x2(float low, float high)
{
#if ON_CHIP
    uint32_t y;
    asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#else
    return static_cast<uint32_t>(to_f16(high).bits) << 16 | to_f16(low).bits;
#endif
}

INLINE uint32_t pack_bf16x2(float low, float high)
{
#if ON_CHIP
    uint32_t y;
    asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(y) : "f"(high), "f"(low));
    return y;
#else
    return static_cast<uint32_t>(to_bf16(high).bits) << 16 | to_bf16(low).bits;
#endif
}

#endif

/* scaled_fp16.h - turns numbers of bf16 into numbers of fp16, which have more bits and fewer exponents: a tile is
 * multiplied by the power of two that brings its largest number just below fp16's. This is exact but for numbers 2^32
 * times smaller. */
#ifndef ATTEST_KERNELS_SHARED_SCALED_FP16_H
#define ATTEST_KERNELS_SHARED_SCALED_FP16_H

#include "kernels/device/device.h"

/* Holds eight numbers of a row. */
struct alignas(16) chunk {
    uint32_t at[4];
};

/* Returns the sizes of two numbers, with 0 in place of those that are not finite. */
DEVICE uint32_t finite_sizes(uint32_t pair)
{
    const uint32_t sizes = pair & 0x7fff7fff, none = (sizes + 0x00800080) & 0x80008000;
    return sizes & ~((none >> 15) * 0xffff);
}

/* Returns the bits of the largest of a warp's numbers, without a sign. An infinity makes no scale: the others beside it
 * would vanish. */
template <int COUNT>
DEVICE uint32_t largest(const chunk (&rows)[COUNT])
{
    uint32_t two = rows[0].at[0];
    UNROLL for (int n = 1; n < 4 * COUNT; ++n) two = max_size_bf16x2(two, rows[n / 4].at[n % 4]);
    uint32_t size = max_of_warp(max_size_bf16x2(two, two >> 16) & 0x7fff);
    if (size >= 0x7f80) {
        two = 0;
        UNROLL for (int n = 0; n < 4 * COUNT; ++n)
            two = max_size_bf16x2(two, finite_sizes(rows[n / 4].at[n % 4])) & 0x7fff7fff;
        size = max_of_warp(max_size_bf16x2(two, two >> 16) & 0x7fff);
    }
    return size;
}

/* Returns 2^exponent, where -126 <= exponent <= 127. */
DEVICE float power(int exponent) { return float_of(static_cast<uint32_t>(exponent + 127) << 23); }

/* shift_of returns the power of two for a tile whose largest number has this exponent. MOST_SHIFT limits it so that
 * fp32 has room for its inverse over a sum of weights, which may be 2^15. */
constexpr int MOST_SHIFT = 110;
DEVICE int shift_of(int exponent) { return exponent > 15 - MOST_SHIFT ? 15 - exponent : MOST_SHIFT; }

/* These turn the two bf16 of a pair into fp32. */
DEVICE float low_of(uint32_t pair) { return float_of(pair << 16); }
DEVICE float high_of(uint32_t pair) { return float_of(pair & 0xffff0000); }

/* Converts a chunk to fp16, times a power of two. */
INLINE chunk scaled(const chunk &row, int shift)
{
    const uint32_t by = static_cast<uint32_t>(shift + 127) << 7;
    chunk out;
    UNROLL for (int n = 0; n < 4; ++n) {
        const uint32_t pair = mul_bf16x2(row.at[n], by << 16 | by);
        out.at[n] = pack_f16x2(low_of(pair), high_of(pair));
    }
    return out;
}

#endif

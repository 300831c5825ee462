/* wgmma.h - matrices of a warpgroup: all 128 threads together, operands in shared memory. Needs sm_90a.
 *
 *     wgmma_fence();                               // registers are ready
 *     for (...) wgmma_m64nNk16_bf16<N>(d, a, b, true);
 *     wgmma_commit();                              // a group
 *     wgmma_wait<0>();
 *     wgmma_fence_operand(d);                      // d may be read from here on
 *
 * From its issue to the wait that ends its group, a wgmma owns d and the registers of a, and reads the shared memory
 * of a and b; only further wgmmas may use the same d. Ordinary writes to that shared memory come before, each writer
 * doing fence_proxy_async_shared and then a barrier.
 *
 * Fragments, with w = warp % 4, g = lane / 4, t = lane % 4:
 *
 *     d[4 j + e]   row 16 w + g + 8 (e / 2), column 8 j + 2t + e % 2
 *     a[0..3]      rows 16 w + g, + 8, + 0, + 8; columns 2t, 2t + 1, plus 8 in a[2], a[3]
 *
 * The first of two 16-bit numbers is in the lower half. */
#ifndef ATTEST_DEVICE_WGMMA_H
#define ATTEST_DEVICE_WGMMA_H

#include "kernels/device/wgmma_operands.h"

/* "Matrix Descriptor". Where a matrix lies in shared memory: its pointer, a multiple of 16, two distances in bytes,
 * and the swizzle, 0, 32, 64 or 128 bytes: README.md has a table of what lies where. */
INLINE uint64_t wgmma_descriptor(const void *shared, unsigned leading_bytes, unsigned stride_bytes, int swizzle_bytes)
{
    const uint64_t layout = swizzle_bytes == 128 ? 1 : swizzle_bytes == 64 ? 2 : swizzle_bytes == 32 ? 3 : 0;
    return static_cast<uint64_t>(shared_address(shared) >> 4 & 0x3fff) |
           static_cast<uint64_t>(leading_bytes >> 4 & 0x3fff) << 16 |
           static_cast<uint64_t>(stride_bytes >> 4 & 0x3fff) << 32 | layout << 62;
}

/* Of what begins that many bytes, a multiple of 16, later in the same layout. */
INLINE uint64_t wgmma_advance(uint64_t descriptor, unsigned bytes) { return descriptor + (bytes >> 4); }

/* "wgmma.mma_async": .m64nNk16.f32.f16.f16. d = a b, plus d where `accumulate`; N = 8, 16, ..., 256; a is 64 x 16,
 * b 16 x N, both by descriptor. NEGATE: a or b counts as its negative. TRANSPOSE: what lies side by side in shared
 * memory is a column of a or a row of b ("MN-major"), else a row of a or a column of b ("K-major"). */
template <int N, bool NEGATE_A = false, bool NEGATE_B = false, bool TRANSPOSE_A = false, bool TRANSPOSE_B = false>
INLINE void wgmma_m64nNk16_f16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate)
{
    static_assert(N >= 8 && N <= 256 && N % 8 == 0, "8 .. 256, a multiple of 8");
#if ON_CHIP
    DEVICE_WGMMA_EACH_N(DEVICE_WGMMA_SHARED_A, "f16")
#else
    sim_wgmma(SIM_FP16, N, d, nullptr, a, b, accumulate, NEGATE_A ? -1 : 1, NEGATE_B ? -1 : 1, TRANSPOSE_A,
              TRANSPOSE_B);
#endif
}

/* The same with a in registers. */
template <int N, bool NEGATE_A = false, bool NEGATE_B = false, bool TRANSPOSE_B = false>
INLINE void wgmma_m64nNk16_f16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate)
{
    static_assert(N >= 8 && N <= 256 && N % 8 == 0, "8 .. 256, a multiple of 8");
#if ON_CHIP
    DEVICE_WGMMA_EACH_N(DEVICE_WGMMA_REGISTER_A, "f16")
#else
    sim_wgmma(SIM_FP16, N, d, a, 0, b, accumulate, NEGATE_A ? -1 : 1, NEGATE_B ? -1 : 1, false, TRANSPOSE_B);
#endif
}

/* "wgmma.mma_async": .m64nNk16.f32.bf16.bf16. The same of bf16. */
template <int N, bool NEGATE_A = false, bool NEGATE_B = false, bool TRANSPOSE_A = false, bool TRANSPOSE_B = false>
INLINE void wgmma_m64nNk16_bf16(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate)
{
    static_assert(N >= 8 && N <= 256 && N % 8 == 0, "8 .. 256, a multiple of 8");
#if ON_CHIP
    DEVICE_WGMMA_EACH_N(DEVICE_WGMMA_SHARED_A, "bf16")
#else
    sim_wgmma(SIM_BF16, N, d, nullptr, a, b, accumulate, NEGATE_A ? -1 : 1, NEGATE_B ? -1 : 1, TRANSPOSE_A,
              TRANSPOSE_B);
#endif
}

template <int N, bool NEGATE_A = false, bool NEGATE_B = false, bool TRANSPOSE_B = false>
INLINE void wgmma_m64nNk16_bf16(float (&d)[N / 2], const uint32_t (&a)[4], uint64_t b, bool accumulate)
{
    static_assert(N >= 8 && N <= 256 && N % 8 == 0, "8 .. 256, a multiple of 8");
#if ON_CHIP
    DEVICE_WGMMA_EACH_N(DEVICE_WGMMA_REGISTER_A, "bf16")
#else
    sim_wgmma(SIM_BF16, N, d, a, 0, b, accumulate, NEGATE_A ? -1 : 1, NEGATE_B ? -1 : 1, false, TRANSPOSE_B);
#endif
}

/* "wgmma.fence". Before the first wgmma, and whenever ordinary instructions have written d or the registers of a. */
INLINE void wgmma_fence()
{
#if ON_CHIP
    ASM_SM_90("wgmma.fence.sync.aligned;" ::: "memory");
#else
    sim_wgmma_fence();
#endif
}

/* "wgmma.commit_group". The wgmmas since the last one are a group. */
INLINE void wgmma_commit()
{
#if ON_CHIP
    ASM_SM_90("wgmma.commit_group.sync.aligned;" ::: "memory");
#else
    sim_wgmma_commit();
#endif
}

/* "wgmma.wait_group". Until at most PENDING groups are unfinished. */
template <int PENDING>
INLINE void wgmma_wait()
{
    static_assert(PENDING >= 0 && PENDING <= 7, "a number of groups");
#if ON_CHIP
    ASM_SM_90("wgmma.wait_group.sync.aligned %0;" :: "n"(PENDING) : "memory");
#else
    sim_wgmma_wait(PENDING);
#endif
}

/* No instruction: the compiler, which takes a wgmma's d for ready at once, moves no use of these registers across this
 * place. After the wait whose results are read, and before a fence if they were written just now. */
template <typename T, int COUNT>
INLINE void wgmma_fence_operand(T (&registers)[COUNT])
{
    static_assert(sizeof(T) == 4, "a register each");
#if ON_CHIP
    for (int n = 0; n < COUNT; ++n) wgmma_fence_register(registers[n]);
#else
    sim_wgmma_fence_operand(registers, sizeof registers);
#endif
}

#endif

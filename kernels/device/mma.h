/* mma.h - matrices of a warp: all 32 lanes together.
 *
 * Fragments as the manual's "Warp-level matrix fragment" figures number them, with g = lane / 4, t = lane % 4:
 *
 *     m16n8k16, 16 bits   a[0..3]: rows g, g + 8, g, g + 8; columns 2t, 2t + 1, plus 8 in a[2], a[3]
 *                         b[0..1]: rows 2t, 2t + 1, plus 8 in b[1]; column g
 *     m16n8k8, tf32       a[0..3]: rows g, g + 8, g, g + 8; column t, plus 4 in a[2], a[3]
 *                         b[0..1]: row t, plus 4 in b[1]; column g
 *     c, d                [0..3]: rows g, g, g + 8, g + 8; columns 2t, 2t + 1, 2t, 2t + 1
 *
 * The first of two 16-bit numbers is in the lower half. */
#ifndef ATTEST_DEVICE_MMA_H
#define ATTEST_DEVICE_MMA_H

#include "kernels/device/machine.h"

#if ON_CHIP
#define DEVICE_MMA(instruction)                                                                                        \
    asm volatile(instruction " {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %11, %12, %13};"                    \
                 : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])                                                      \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]),                                   \
                   "f"(c[0]), "f"(c[1]), "f"(c[2]), "f"(c[3]))
#endif

/* "mma": m16n8k16, sm_80. d = a b + c, fp16 times fp16 in fp32; d may be c. */
INLINE void mma_m16n8k16_f16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4])
{
#if ON_CHIP
    DEVICE_MMA("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32");
#else
    sim_mma(SIM_FP16, d, a, b, c);
#endif
}

/* "mma": m16n8k16, sm_80. The same of bf16. */
INLINE void mma_m16n8k16_bf16(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4])
{
#if ON_CHIP
    DEVICE_MMA("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32");
#else
    sim_mma(SIM_BF16, d, a, b, c);
#endif
}

/* "mma": m16n8k8, sm_80. The same of tf32; operands as to_tf32 makes them. */
INLINE void mma_m16n8k8_tf32(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2], const float (&c)[4])
{
#if ON_CHIP
    DEVICE_MMA("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32");
#else
    sim_mma(SIM_TF32, d, a, b, c);
#endif
}

#undef DEVICE_MMA

/* "ldmatrix": .m8n8.b16; sm_80. 1, 2 or 4 matrices of 8 x 8 16-bit numbers from shared memory: lane 8 n + i gives the
 * address, a multiple of 16, of row i of matrix n. r[n] of lane 4 g + t: row g, columns 2t and 2t + 1 of matrix n;
 * _trans: rows 2t and 2t + 1, column g. */
INLINE void ldmatrix_x1(uint32_t (&r)[1], const void *row)
{
#if ON_CHIP
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.shared.b16 {%0}, [%1];"
                 : "=r"(r[0]) : "r"(shared_address(row)) : "memory");
#else
    sim_ldmatrix(r, row, 1, false);
#endif
}

INLINE void ldmatrix_x2(uint32_t (&r)[2], const void *row)
{
#if ON_CHIP
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
#else
    sim_ldmatrix(r, row, 2, false);
#endif
}

INLINE void ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
#if ON_CHIP
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
#else
    sim_ldmatrix(r, row, 4, false);
#endif
}

INLINE void ldmatrix_x1_trans(uint32_t (&r)[1], const void *row)
{
#if ON_CHIP
    asm volatile("ldmatrix.sync.aligned.m8n8.x1.trans.shared.b16 {%0}, [%1];"
                 : "=r"(r[0]) : "r"(shared_address(row)) : "memory");
#else
    sim_ldmatrix(r, row, 1, true);
#endif
}

INLINE void ldmatrix_x2_trans(uint32_t (&r)[2], const void *row)
{
#if ON_CHIP
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.trans.shared.b16 {%0, %1}, [%2];"
                 : "=r"(r[0]), "=r"(r[1]) : "r"(shared_address(row)) : "memory");
#else
    sim_ldmatrix(r, row, 2, true);
#endif
}

INLINE void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
#if ON_CHIP
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(shared_address(row)) : "memory");
#else
    sim_ldmatrix(r, row, 4, true);
#endif
}

/* "stmatrix": .m8n8.b16; needs sm_90a. The reverse of ldmatrix. */
INLINE void stmatrix_x1(void *row, const uint32_t (&r)[1])
{
#if ON_CHIP
    ASM_SM_90("stmatrix.sync.aligned.m8n8.x1.shared.b16 [%0], {%1};"
              :: "r"(shared_address(row)), "r"(r[0]) : "memory");
#else
    sim_stmatrix(row, r, 1, false);
#endif
}

INLINE void stmatrix_x2(void *row, const uint32_t (&r)[2])
{
#if ON_CHIP
    ASM_SM_90("stmatrix.sync.aligned.m8n8.x2.shared.b16 [%0], {%1, %2};"
              :: "r"(shared_address(row)), "r"(r[0]), "r"(r[1]) : "memory");
#else
    sim_stmatrix(row, r, 2, false);
#endif
}

INLINE void stmatrix_x4(void *row, const uint32_t (&r)[4])
{
#if ON_CHIP
    ASM_SM_90("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};"
              :: "r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
#else
    sim_stmatrix(row, r, 4, false);
#endif
}

INLINE void stmatrix_x1_trans(void *row, const uint32_t (&r)[1])
{
#if ON_CHIP
    ASM_SM_90("stmatrix.sync.aligned.m8n8.x1.trans.shared.b16 [%0], {%1};"
              :: "r"(shared_address(row)), "r"(r[0]) : "memory");
#else
    sim_stmatrix(row, r, 1, true);
#endif
}

INLINE void stmatrix_x2_trans(void *row, const uint32_t (&r)[2])
{
#if ON_CHIP
    ASM_SM_90("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};"
              :: "r"(shared_address(row)), "r"(r[0]), "r"(r[1]) : "memory");
#else
    sim_stmatrix(row, r, 2, true);
#endif
}

INLINE void stmatrix_x4_trans(void *row, const uint32_t (&r)[4])
{
#if ON_CHIP
    ASM_SM_90("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};"
              :: "r"(shared_address(row)), "r"(r[0]), "r"(r[1]), "r"(r[2]), "r"(r[3]) : "memory");
#else
    sim_stmatrix(row, r, 4, true);
#endif
}

#endif

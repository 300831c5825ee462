/* probe_mma.h - what the probes of mma.h read and write. Matrices are rows in the order of C. */
#ifndef ATTEST_DEVICE_PROBE_MMA_H
#define ATTEST_DEVICE_PROBE_MMA_H

#include <stdint.h>

struct ldmatrix_in {
    uint16_t matrices[4][8][8];
};

/* r[n] of each lane. Row i of matrix n lies at (8 n + i) * 5 % 32 times 16 bytes. */
struct ldmatrix_out {
    uint32_t x1[32][1], x2[32][2], x4[32][4];
    uint32_t x1_trans[32][1], x2_trans[32][2], x4_trans[32][4];
};

/* The same matrices through stmatrix, out of registers that hold r[n] as above; rows that are not stored are zero. */
struct stmatrix_out {
    uint16_t x1[4][8][8], x2[4][8][8], x4[4][8][8];
    uint16_t x1_trans[4][8][8], x2_trans[4][8][8], x4_trans[4][8][8];
};

/* Small integers, so that every order of additions gives the same. */
struct mma_in {
    uint16_t a_f16[16][16], b_f16[16][8], a_bf16[16][16], b_bf16[16][8];
    uint32_t a_tf32[16][8], b_tf32[8][8];
    float c[16][8];
};

struct mma_out {
    float f16[16][8], bf16[16][8], tf32[16][8]; /* a b + c */
    float twice[16][8];                         /* fp16, d = a b + d on top of f16 */
};

#endif

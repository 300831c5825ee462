/* unit.h - the tensor cores' arithmetic as numbers that can be compared with a chip.
 *
 * One step adds `group` products and an accumulator c:
 *     products are exact; a product's exponent is the sum of its operands' (significands in [1, 2), or below 1 where
 *     subnormal, at the format's least exponent), so its significand may reach 4;
 *     top is the largest exponent of the terms that are not zero, and no less than least_exponent;
 *     every term is cut off toward zero to a multiple of 2^(top - fraction_bits); the sum is exact;
 *     the sum is rounded to fp32, toward zero, subnormal results kept, too large ones infinite.
 * An instruction runs its steps in order of k. tf32 operands lose their low 13 bits. NaN, 0 inf and inf - inf make
 * 0x7fffffff; a zero, of whatever origin, is +0.
 *
 * SM_90 is what an H200 does (driver 580.159.04, 2026-11-21): kernels/device/probes/unit_probe found all 2^20 random
 * and 2^18 hard sets of each of 15 instructions the same. SM_80 is from the literature: Fasi et al., PeerJ CS 7:e330
 * (2021); Xie et al., MMA-Sim, arXiv 2511.10909. */
#ifndef ATTEST_SIM_UNIT_H
#define ATTEST_SIM_UNIT_H

#include "kernels/sim/calls.h"
#include "kernels/sim/sim.h"

#ifdef __cplusplus
extern "C" {
#endif

struct sim_unit_model {
    int fraction_bits;  /* 20 .. 30 */
    int group;          /* products of a step: 4, 8, 16 */
    int least_exponent;
    bool to_nearest;    /* the sum is rounded to nearest, ties to even: no chip is known to do this */
};

static inline int sim_operand_bytes(enum sim_format format) { return format == SIM_TF32 ? 4 : 2; }

struct sim_unit_model sim_unit_model(enum sim_generation generation, enum sim_format format);

/* d[m][n] = c[m][n] + sum_k a[m][k] b[k][n] over one instruction's k, as the generation's tensor cores do it.
 * m <= 64, n a multiple of 8, k 16 (tf32: 8). a rows of k, b_t columns of k (b transposed), values as raw 16- or 32-bit
 * formats; c, d of n numbers a row. c may be d; NULL: zeros. */
void sim_unit(enum sim_generation generation, enum sim_format format, int m, int n, int k, const void *a,
              const void *b_t, const float *c, float *d);

/* Number by number, for any model and any operands. Shapes as above. */
void sim_unit_plain(const struct sim_unit_model *model, enum sim_format format, int m, int n, int k, const void *a,
                    const void *b_t, const float *c, float *d);

/* The vector units that this machine has: 0 is the best. sim_unit uses it; all give the same bits. */
int sim_unit_variants(void);
const char *sim_unit_variant_name(int variant);
void sim_unit_variant(int variant, const struct sim_unit_model *model, enum sim_format format, int m, int n, int k,
                      const void *a, const void *b_t, const float *c, float *d);

#ifdef __cplusplus
}
#endif

#endif

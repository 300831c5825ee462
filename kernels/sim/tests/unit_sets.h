/* unit_sets.h - operands for tensor cores, random and hard, for tests of the model and for asking a chip. */
#ifndef ATTEST_SIM_UNIT_SETS_H
#define ATTEST_SIM_UNIT_SETS_H

#include "kernels/sim/calls.h"

#ifdef __cplusplus
extern "C" {
#endif

enum unit_family {
    /* Random: finite and normal. */
    UNIT_NEAR,     /* exponents within 2 of each other */
    UNIT_SPREAD,   /* within 12 */
    UNIT_WIDE,     /* of the whole format */
    UNIT_POSITIVE, /* within 2, all of one sign: sums grow to their most */
    UNIT_RANDOM_FAMILIES,
    /* Hard. */
    UNIT_CANCEL = UNIT_RANDOM_FAMILIES, /* products in pairs that nearly cancel, c nearly the rest */
    UNIT_EDGES,     /* terms about 2^-20 to 2^-29 of the largest: at the cut */
    UNIT_ZEROS,     /* half of the operands zeros of either sign */
    UNIT_SUBNORMAL, /* half of the operands subnormal, c too */
    UNIT_TINY,      /* sums about fp32's least numbers, as far as the format reaches */
    UNIT_HUGE,      /* sums about fp32's largest, as far as the format reaches, c large */
    UNIT_SPECIAL,   /* infinities and NaN among them */
    UNIT_BITS,      /* any bits at all */
    UNIT_FAMILIES
};

const char *unit_family_name(enum unit_family family);

/* a [m][k], b_t [n][k] raw operands, c [m][n]; the same seed, the same sets. */
void unit_sets(enum unit_family family, enum sim_format format, uint64_t seed, int m, int n, int k, void *a, void *b_t,
               float *c);

#ifdef __cplusplus
}
#endif

#endif

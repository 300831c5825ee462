/* families.h - what the numbers of a case look like: the input families of lib/contract.md section 7.
 *
 * A value is a function of family, seed, tensor and place alone, so that a smaller problem keeps the
 * numbers of what is left of it. */
#ifndef ATTEST_PROPTESTS_CASES_FAMILIES_H
#define ATTEST_PROPTESTS_CASES_FAMILIES_H

#include <stdint.h>

#include "lib/attest.h"

enum family {
    FAMILY_NORMAL,    /* N(0, 1) */
    FAMILY_OUTLIER,   /* N(0, 1) + N(0, 100) with probability 0.001 */
    FAMILY_LARGE,     /* 30 N(0, 1) */
    FAMILY_TINY,      /* 1e-3 N(0, 1) */
    FAMILY_MEAN,      /* 4 + N(0, 1) */
    FAMILY_SHIFT,     /* every score moved by a constant between -3e5 and 3e5 */
    FAMILY_DUPLICATE, /* equal keys, so equal row maxima; v >= 0 */
    FAMILY_INTEGER,   /* small integers: sums are exact */
    FAMILY_SUBNORMAL, /* half of the elements below the format's smallest normal number */
    FAMILY_EDGE,      /* exponents at the format's limits */
    FAMILY_RECORDED,  /* activations and gradients of a trained transformer, proptests/data */
    NUM_FAMILIES
};
extern const char *const family_names[NUM_FAMILIES];

enum role { ROLE_Q, ROLE_K, ROLE_V, ROLE_DOUT, ROLE_OTHER };

struct family_data {
    enum family family;
    uint64_t seed;
    int32_t dtype;         /* of the values, all of which it holds exactly */
    int64_t head_dim;      /* of q and k */
    double softmax_scale;  /* `shift` moves scores, not products */
};

/* Element x of row r, head h, sequence b. */
double family_value(const struct family_data *data, enum role role, int64_t b, int64_t r, int64_t h, int64_t x);

/* Bits and N(0, 1) of a place. */
uint64_t family_bits(uint64_t seed, uint64_t role, int64_t b, int64_t r, int64_t h, int64_t x);
double family_normal(uint64_t bits);

#endif

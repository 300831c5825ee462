/* emulate_unit.h - matrix products in fp32, added up as the accumulator of a recipe adds.
 *
 *     fp32, faithful   product by product in order, each product and each sum rounded to nearest
 *     Ampere, Hopper   steps of 8 or 16 products, bit for bit: products exact and not normalised; they and the
 *                      accumulator are aligned to the largest exponent e among them (a product's is the sum of
 *                      its operands'), cut off toward zero at 2^(e-24) or 2^(e-25), summed exactly, and the
 *                      sum is rounded toward zero to 24 bits. Subnormal operands have the exponent of the least
 *                      normal number of their format. */
#ifndef ATTEST_PROPTESTS_EMULATIONS_EMULATE_UNIT_H
#define ATTEST_PROPTESTS_EMULATIONS_EMULATE_UNIT_H

#include <stdbool.h>
#include <stdint.h>

/* Element (i, j) is at[i * row + j * column]. */
struct matrix {
    float *at;
    int64_t row, column;
};

/* Who sees whom: element (i, l) of the left operand takes part if at[i * row + l * column]. NULL: all do. */
struct seen {
    const unsigned char *at;
    int64_t row, column;
};

struct unit {
    int32_t accumulate;  /* enum attest_accumulate */
    int min_exponent[2]; /* of the formats of A and B */
    bool truncates;      /* fp32, faithful: sums are cut off toward zero */
};

enum { UNIT_MAX = 256 }; /* most rows and columns of C */

/* C[i][j] += sum_l A[i][l] B[l][j], i < m, j < n, l < k in order; C's columns lie side by side. A term that is
 * not seen is left out: even 0 * NaN is not computed. (A kernel zeroes such an operand, and redoes a
 * tile in which that was not enough.) */
void unit_multiply(const struct unit *unit, int64_t m, int64_t n, int64_t k, struct matrix a, struct seen seen,
                   struct matrix b, struct matrix c);

#endif

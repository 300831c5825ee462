/* vector.h - the inner loops of the oracle and of the bounds, in double, for the vector unit at hand.
 *
 * The same source is compiled for AVX-512, AVX2 and the baseline of the machine; ref_vector() picks at
 * run time what this CPU has. The order of every sum depends on the arguments' shapes and on the vector unit
 * alone. Matrices that are summed over come as panels of REF_PANEL columns, which ref_pack makes. */
#ifndef ATTEST_REFERENCE_VECTOR_H
#define ATTEST_REFERENCE_VECTOR_H

#include <stdbool.h>
#include <stdint.h>

#define REF_PANEL 16  /* columns of a panel; the length of a row operand is a multiple of it */
#define REF_CHUNK 256 /* products that gemm adds up in registers before it adds to C */

static inline int64_t ref_round_up(int64_t n) { return (n + REF_PANEL - 1) / REF_PANEL * REF_PANEL; }

/* B[l][j] = b[l * b_row + j * b_col], l < k, j < n, to panels[j / REF_PANEL][l][j % REF_PANEL] with
 * k_packed >= k rows a panel. Rows from k on and columns from n on are zero.
 * Size: k_packed * ref_round_up(n) doubles. */
void ref_pack(int64_t k, int64_t n, const double *b, int64_t b_row, int64_t b_col, int64_t k_packed, double *panels);

struct ref_vector {
    const char *name; /* "avx512", "avx2", "baseline" */

    /* C = A B, or C += A B where `add`, with A[i][l] = a[i * a_row + l * a_col], C[i][j] = c[i * c_row + j],
     * i < m, j < n, l < k. B begins at `panels`, whose panels have k_packed rows: pass a pointer to a later
     * row or a later panel to use a part. C[i][j] is the sum over chunks of REF_CHUNK products, each summed
     * in order (fused where the machine can), whatever m and n are. Nothing past n is written. */
    void (*gemm)(int64_t m, int64_t n, int64_t k, const double *a, int64_t a_row, int64_t a_col,
                 const double *panels, int64_t k_packed, bool add, double *c, int64_t c_row);

    /* On rows of n doubles, n a multiple of REF_PANEL. */
    double (*max)(int64_t n, const double *x); /* -inf for none; a NaN is passed over */
    /* x = exp(x - shift), within REF_EXP_ULPS and exactly 0 where the result is below half the smallest
     * double; returns the sum. A NaN stays one and reaches the sum. */
    double (*exp_sum)(int64_t n, double shift, double *x);
    double (*dot)(int64_t n, const double *x, const double *y);
    double (*dot_distance)(int64_t n, const double *x, const double *y, double shift); /* sum x |y - shift| */
    double (*dot_square)(int64_t n, const double *x, const double *y, double shift);   /* sum x (y - shift)^2 */
    void (*scale)(int64_t n, double factor, double *x);            /* x = factor x */
    void (*multiply)(int64_t n, const double *y, double *x);       /* x = y x */
    void (*multiply_shifted)(int64_t n, const double *y, double shift, double *x); /* x = y (x - shift) */
};

/* Every variant of this build, best first, ended by name == NULL; and whether this CPU has the i-th. */
extern const struct ref_vector ref_vectors[];
bool ref_vector_supported(int i);
const struct ref_vector *ref_vector(void); /* the best supported */

#endif

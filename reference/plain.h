/* plain.h - one query row at a time, formula by formula, only over the keys that it sees.
 *
 * What the blocks of forward.c and backward.c are tested against, and what they leave rows to in which
 * NaN or infinity takes part: here what is not visible is not touched at all. */
#ifndef ATTEST_REFERENCE_PLAIN_H
#define ATTEST_REFERENCE_PLAIN_H

#include "reference/oracle.h"

/* o (NULL: not wanted) and lse of a row. scratch: 2 seqlen_k doubles. */
void ref_plain_forward(const struct attest_problem *p, const struct attest_forward_args *a,
                       const struct ref_sequence *s, int64_t b, int64_t h, int64_t r, double *scratch, double *o,
                       double *lse);

/* One backward pass. */
struct ref_gradients {
    const struct attest_problem *p;
    const struct attest_backward_args *a;
    const struct ref_external *external;
    const struct ref_backward *out;
    double *dsink_rows; /* [rows_q][num_heads_q]: what each row gives to dsink; NULL: not wanted */
};

/* lse and delta from outside, and dlse (0 where there is none), of a row. */
struct ref_row_state {
    double lse, delta, dlse;
};
struct ref_row_state ref_given_state(const struct ref_gradients *g, const struct ref_sequence *s, int64_t b, int64_t h,
                                     int64_t r);

/* Element (b, h, r, c) of the canonical dbias; broadcast axes have one element. */
double *ref_dbias_at(const struct ref_gradients *g, int64_t b, int64_t h, int64_t r, int64_t c);

/* Adds what a row gives to dq, dk, dv, dbias, and sets its delta and dsink_rows. scratch: 4 seqlen_k doubles. */
void ref_plain_backward(const struct ref_gradients *g, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r,
                        double *scratch);

#endif

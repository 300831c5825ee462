/* arb_attention.h - attention in ball arithmetic: what lib/contract.md defines, enclosed with proof.
 *
 * Every result is a ball that contains the exact value of the contract's formulas on these inputs; `bits` is the
 * working precision, and a larger one gives a smaller ball. Written against lib/contract.md and lib/attest.h
 * alone: of the oracle it uses only ref_load, which formats_test judges. Inputs that are visible must be finite.
 * A row at a time, nothing shared between rows, no care for speed. */
#ifndef ATTEST_REFERENCE_ARB_ATTENTION_H
#define ATTEST_REFERENCE_ARB_ATTENTION_H

#include <stdbool.h>
#include <stdint.h>

#include <arb.h>

#include "lib/attest.h"

/* Rows of sequence b: `first` in the packed tensors of a ragged problem, `rows` in memory, `used` of them count. */
struct ball_rows {
    int64_t first, rows, used;
};
struct ball_rows ball_rows_q(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b);
struct ball_rows ball_rows_k(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b);

/* All that the contract says about query row r of head h of sequence b. What belongs to a key that the row does not
 * see is zero. */
struct ball_row {
    int64_t b, h, r;
    slong num_keys, num_visible;
    bool *visible;
    arb_ptr x;             /* the exponent */
    arb_ptr slope;         /* dt/ds = 1 - (t / softcap)^2, or 1 */
    arb_ptr m, p;          /* dropout multiplier, exp(x - lse) */
    arb_ptr dp, dx, ds;    /* after ball_backward */
    bool empty;            /* no visible key and no sink: lse is -inf, which no ball holds */
    arb_t lse, delta, dlse;
    arb_t dsink;           /* this row's share, after ball_backward */
};

void ball_forward(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b, int64_t h, int64_t r,
                  slong bits, struct ball_row *row);
/* After ball_forward. Where lse and delta come from outside, they take the place of this row's own, in p too. */
void ball_backward(const struct attest_problem *p, const struct attest_backward_args *a, slong bits,
                   struct ball_row *row);
void ball_row_clear(struct ball_row *row);

/* Feature x of the row's o and dq, and what the row adds to feature x of dk and dv of key row c. */
void ball_o(const struct attest_problem *p, const struct attest_forward_args *a, const struct ball_row *row, int64_t x,
            slong bits, arb_t o);
void ball_dq(const struct attest_problem *p, const struct attest_forward_args *a, const struct ball_row *row,
             int64_t x, slong bits, arb_t dq);
void ball_add_dk(const struct attest_problem *p, const struct attest_forward_args *a, const struct ball_row *row,
                 int64_t c, int64_t x, slong bits, arb_t dk);
void ball_add_dv(const struct attest_problem *p, const struct attest_backward_args *a, const struct ball_row *row,
                 int64_t c, int64_t x, slong bits, arb_t dv);

/* One input number: element (b, r, h, x) of a tensor of rows, r counted inside the sequence, and element
 * (b, h, r, c) of a tensor over scores. */
double ball_element(const struct attest_problem *p, const struct attest_tensor *t, const void *data,
                    struct ball_rows rows, int64_t b, int64_t r, int64_t h, int64_t x);
double ball_score_element(const struct attest_score_tensor *t, const void *data, int64_t b, int64_t h, int64_t r,
                          int64_t c);

/* An upper bound of |value - exact| / error: at most 1 proves |value - exact| <= error. 0 / 0 is 0; what is not
 * finite gives NaN. Right to 0.1 % where the ball is small, its radius below 2^-10 of the error. */
double ball_share(double value, const arb_t exact, double error);
bool ball_is_small(const arb_t exact, double error);

#endif

/* oracle.h - attention in double precision, straight from lib/contract.md.
 *
 * Inputs are the public problem and argument structs, with host pointers; the caller has checked them
 * (lib/check.h does). Results go to packed arrays of double in canonical order, whatever the strides
 * of the problem's own outputs:
 *
 *     o     [rows_q][num_heads_q][head_dim_v]     lse  [rows_q][num_heads_q]
 *     dq    [rows_q][num_heads_q][head_dim]
 *     dk    [rows_k][num_heads_kv][head_dim]      dv   [rows_k][num_heads_kv][head_dim_v]
 *     dbias [batch][heads][seqlen_q][seqlen_k] with 1 for each axis that the problem's dbias broadcasts (stride 0)
 *     dsink [num_heads_q]
 *
 * Rows that belong to no sequence of a ragged problem are NaN: nothing may compare them. Rows past
 * seqused hold what the contract says (0, and -inf for lse).
 *
 * NaN and infinities: the formulas of the contract in IEEE arithmetic, over visible keys alone. A NaN score makes
 * lse and the whole row NaN; a NaN in v reaches o only in its feature. lse is +inf where a score is, and -inf
 * where all of a row's visible scores are: p is then exp(x - lse), NaN where that is inf - inf.
 *
 * Error: the distance to the exact result of the contract's formulas is within the bound that
 * reference/bounds.h gives without a recipe; reference/arb_test.c checks it against ball arithmetic. */
#ifndef ATTEST_REFERENCE_ORACLE_H
#define ATTEST_REFERENCE_ORACLE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/attest.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The exponential is within this many units in the last place of the true value (of the smallest double where
 * the result is subnormal): the documented bound of glibc's libmvec, checked by vector_test.c. */
#define REF_EXP_ULPS 4.0

int64_t ref_rows_q(const struct attest_problem *p); /* rows of q in memory: batch * seqlen_q or total_q */
int64_t ref_rows_k(const struct attest_problem *p);

/* One sequence: where its rows are and how many of them count. */
struct ref_sequence {
    int64_t first_q, rows_q, seqlen_q; /* first row of q in canonical order; rows in memory; rows used (seqused) */
    int64_t first_k, rows_k, seqlen_k;
    int64_t diag;       /* query i sits on key i + diag */
    int64_t alibi_diag;
};
struct ref_sequence ref_sequence(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b);

/* Offset in elements of row r of sequence b, head h, in a tensor of rows (x adds to it). */
int64_t ref_row_offset(const struct attest_problem *p, const struct attest_tensor *t, const struct ref_sequence *s,
                       bool is_k, int64_t b, int64_t r, int64_t h);
int64_t ref_score_offset(const struct attest_score_tensor *t, int64_t b, int64_t h, int64_t r, int64_t c);

/* Whether query row r of sequence b and head h sees key row c: window, mask, block mask, bias of -inf. */
bool ref_visible(const struct attest_problem *p, const struct attest_forward_args *a, const struct ref_sequence *s,
                 int64_t b, int64_t h, int64_t r, int64_t c);

/* The largest finite bias among the keys first .. last - 1 that the row sees, or the sink if that is larger; 0 where
 * there is no such bias. */
double ref_largest_bias(const struct attest_problem *p, const struct attest_forward_args *a,
                        const struct ref_sequence *s, int64_t b, int64_t h, int64_t r, int64_t first, int64_t last);

/* What dropout multiplies p of that score by: 0 or 65536 / (65536 - t); 1 without dropout. */
double ref_dropout(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b, int64_t h,
                   int64_t r, int64_t c);

/* p_sink: exp(sink - lse), and 1 in a row that has nothing but a sink of -inf. */
static inline double ref_sink_weight(double sink, double lse)
{
    return sink == -INFINITY && lse == sink ? 1.0 : exp(sink - lse);
}

/* Philox4x32-10 (Salmon et al. 2011): counter and key, lowest word first. */
void ref_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4]);

/* Everything the definition says about one query row against all keys, plainly computed. Arrays of
 * seqlen_k doubles, any of them NULL where not wanted. What is not visible: x = -inf, the rest 0. Scores lack the
 * largest bias of the row: a mask of -1e9 or -FLT_MAX on all of its keys would leave a double little of the rest. */
struct ref_row {
    double base;   /* ref_largest_bias: x, lse and max are less by it */
    double *x;     /* the score that the exponential sees */
    double *s;     /* softmax_scale * (q . k) */
    double *s_abs; /* |softmax_scale| * sum_x |q_x| |k_x| */
    double *t;     /* after softcap */
    double *drop;  /* ref_dropout */
    double lse;    /* of this row, the sink included */
    double max;    /* the largest x, -inf if none is visible (without the sink) */
    int64_t num_visible;
};
void ref_score_row(const struct attest_problem *p, const struct attest_forward_args *a, const struct ref_sequence *s,
                   int64_t b, int64_t h, int64_t r, struct ref_row *row);

/* NULL arrays are not computed. threads: 0 for all cores; results do not depend on it.
 * Errors   OUT_OF_MEMORY. */
struct ref_forward {
    double *o, *lse;
};
enum attest_status ref_forward(const struct attest_problem *p, const struct attest_forward_args *a,
                               const struct ref_forward *out, int threads);

/* With p->external_lse, lse and delta are read from the arguments (or, where `external` is not NULL,
 * from its canonical arrays of doubles); otherwise both are computed here and a->forward.o and .lse are not read. */
struct ref_external {
    const double *lse, *delta; /* [rows_q][num_heads_q] */
};
struct ref_backward {
    double *dq, *dk, *dv, *dbias, *dsink;
    double *delta; /* [rows_q][num_heads_q] */
};
enum attest_status ref_backward(const struct attest_problem *p, const struct attest_backward_args *a,
                                const struct ref_external *external, const struct ref_backward *out, int threads);

/* Merge of states of disjoint key sets, and its derivative. o [rows][head_dim_v], lse [rows], packed. The weights
 * exp(lse_a - lse) carry the rounding of lse: a relative error of about 2^-52 |lse| beside that of the sums. */
void ref_merge(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
               const double *const *lse_states, double *o, double *lse);
/* do_a = w_a dout, dlse_a = w_a (dlse + dout . (o_a - o)), w_a = exp(lse_a - lse), o and lse being those of the union
 * as given; dlse may be NULL. Of an empty state nothing but its lse is read, nor dout where all are empty. */
void ref_merge_backward(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
                        const double *const *lse_states, const double *o, const double *lse, const double *dout,
                        const double *dlse, double *const *do_states, double *const *dlse_states);

#ifdef __cplusplus
}
#endif

#endif

/* bounds_gradients.h - errors of p, dp, delta and ds in the backward pass, score by score. */
#ifndef ATTEST_REFERENCE_BOUNDS_GRADIENTS_H
#define ATTEST_REFERENCE_BOUNDS_GRADIENTS_H

#include "reference/bounds.h"
#include "reference/bounds_noise.h"
#include "reference/bounds_rows.h"

/* Signed biases of a weight, and beside them the loss of a small ds, by the factors that it may have then. */
enum { BOUND_SIGNED = 3, BOUND_SMALL = 4, BOUND_ALL_SIGNED = BOUND_SIGNED + BOUND_SMALL };

/* Weights of scores, [BOUND_BLOCK][ld], that meet an operand in a product: their value and size, the error
 * of the computed ones, and under independent roundings variance and bias. `known` is the part of the error that is a
 * function of what is at hand, with its sign: the rounding of a p that is nowhere near a tie, what a given o makes
 * delta be off by; `rounded` (NULL: none) that of a rounding of p that ds may have or not, and `stored` (NULL: none)
 * the same whether p is near a tie or not, where `error` has what it may be beside that. `signed_bias`: biases that
 * have a sign, each a factor common to the row away: what sums that are cut off lack of dp, of scores, and half units
 * of p that are tied; from BOUND_SIGNED on, of which a kernel has one, ds that are lost as they are rounded.
 * `shared` (NULL: none) is the square of what all weights of a row are off by alike. of_p: what of the variance is p's
 * (NULL: all). */
struct bound_weights {
    double *value, *absolute, *error, *variance, *of_p, *bias, *known, *rounded, *shared, *stored;
    double *signed_bias[BOUND_ALL_SIGNED];
    double *alike[REF_WAYS]; /* what rounding adds, NULL: none */
};

/* Sums of weights times an operand, by element of a gradient. stored: of dq and dk. variance and what follows: NULL
 * unless asked for. */
struct bound_terms {
    double *value, *absolute, *error, *stored, *signed_bias[BOUND_ALL_SIGNED], *variance, *bias, *known, *rounded;
    double *shared;
    double *alike[REF_WAYS];
    struct bound_path path;
    double *rounding, *rounding_variance; /* of partial results, already in units of the gradient */
    double *count, *overflow;             /* of the terms; used by dbias and dsink */
};
bool bound_take_terms(struct bound_pool *pool, int64_t count, bool statistics, int ways, int small,
                      struct bound_terms *t);
void bound_add_term(struct bound_terms *to, int64_t at, const struct bound_terms *from, int64_t index);

/* dk or dv of one KV head: of the current query head, and of the whole group. */
struct bound_key_terms {
    int64_t features;
    struct bound_terms head, group;
    double *seen, *norm;          /* by key: rows that see it, and the sum of |weight| */
    double *step, *before;        /* by key: rows of this block that see it; by element: sums before the block */
    double *head_seen, *overflow; /* by key */
    double *operand_sum;          /* by feature: sum of |operand| over all rows */
};

/* One query row as the backward pass sees it. */
struct bound_row {
    double base;                          /* what lse and scores lack of those in the kernel */
    double lse, lse_error, lse_bias;      /* the errors: what all p of the row share */
    double sink, sink_error;              /* the sink's p */
    bool may_be_own, is_own;              /* p divided by their own sum: in some kernels, or all */
    double own_least;                     /* then the least that all of them, the sink's too, may sum to */
    double other_sum;                     /* ln of what p of dbias may be off by beside them: bounds.md, 5.4 */
    double delta, delta_error, delta_bias;
    double delta_sigma, delta_known; /* what is random for the row, and what is known with its sign */
    double feels_p, feels_dp;        /* delta is a sum of p (feels_p dp + (1 - feels_p) z), or of none: 0, 0 */
    double dlse;
};

/* A row's arrays: pointers to its part of the block's. */
struct bound_view {
    const double *x, *live, *score_error, *drop, *weight_sigma, *weight_bias, *score_lag, *dp, *dp_abs, *dp_square;
    double *p, *p_error, *dp_error;
};

/* The correction of one row of dq: reference/bounds.md section 7.1. */
struct bound_correction {
    double slope_sum, slope_error;  /* sum c p, and of their errors */
    double factor;                  /* largest |f|, the factor of the sum of c p k in dq */
    double sum, variance, bias;     /* of the error of the sum of dq's weights, which meets the mean of k */
    double norm;                    /* sum of dq.absolute */
};

/* What scaling to fp16 may cost each number of an operand, however small: reference/bounds.md section 11.11. */
struct bound_floors {
    double p, ds, q, k, dout;
    double k_relative; /* beside k's; of q and dout all else is exact */
};

/* ds is rounded times a factor, and made of p as it is or rounded. */
struct bound_way {
    double factor;
    bool rounds_p;
};

struct bound_gradient_head {
    struct bound_head head;
    const struct attest_backward_args *args;
    bool statistics;
    struct bound_panels k_rows;       /* num_keys x head_dim; absolute, square: of the largest that dq may meet */
    struct bound_panels v_transposed; /* head_dim_v x num_keys */
    double *k_sum;                    /* of |k|, or the largest that dq may meet, by feature */
    double *k_columns;                /* [head_dim][ld]; NULL unless delta is corrected */
    struct ref_sum dp_sum;            /* accumulation of dout.v */
    struct bound_way ways[REF_WAYS];  /* to round ds; none unless asked for */
    int num_ways;
    double small[BOUND_SMALL];        /* factors that ds may have where it is rounded */
    int num_small;                    /* 0 where none of it is among a format's subnormals */
    struct bound_floors floors;       /* 0 where nothing is scaled */
    double *same_q;                   /* [heads of the group][rows]: how many rows have its q; NULL: no statistics */
    double *same_row;                 /* and its dout */
    double *same_head;                /* by head of the group: how many have all of its q and dout */
    struct bound_key_terms dk, dv;
};

struct bound_gradient_block {
    struct bound_block rows;
    struct bound_matrix dout;
    struct bound_row_state states[BOUND_BLOCK];
    struct bound_block_output o; /* o and its bound, where delta is taken from o */
    double *dp, *dp_abs;         /* dout . v and sum |dout||v|, without the dropout multiplier */
    double *dp_square;           /* sum (dout v)^2 */
    double *dx_value, *dx_error, *dx_variance, *dx_bias;
    struct bound_weights ds, pd; /* ds; the dropped-out p that meets dout */
    struct bound_weights dq;     /* with a corrected delta: value c p; absolute meets |k|, the rest k - its mean */
    double *k_mean, *k_with_delta; /* [BOUND_BLOCK][head_dim]: sums of c p k, and of through_delta k */
    double *squares;             /* scratch */
    double *lower, *of_ties;     /* of a row's ds */
    double *tied;                /* of a row's p: 0 where it is no tie, 1 where no other is like it, else 2 */
    double *p_slope, *through_delta; /* c p; covariance of ds with delta */
    double *dq_bias, *dq_variance;   /* the bias and variance that ds has in dq */
    struct bound_row row[BOUND_BLOCK];
    struct bound_correction corrections[BOUND_BLOCK];
    double ds_norm[BOUND_BLOCK]; /* sum over keys of |ds| and its error */
    double sink_value[BOUND_BLOCK], sink_error[BOUND_BLOCK];
};

/* Loads the keys and takes all memory. has_alike: asks for ds.alike. False where there is none. */
bool bound_take_gradients(struct bound_pool *pool, struct bound_gradient_head *g, struct bound_gradient_block *block,
                          bool has_alike);
/* The ways to round ds of keys that dropout takes away, and memory. False where there is none. */
bool bound_take_alike(struct bound_pool *pool, struct bound_gradient_head *g, struct bound_gradient_block *block);
/* What they add to row i, and biases of those near ties. */
void bound_round_alike(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i,
                       const struct bound_view *v, const struct bound_row *row);
/* What p may be off by as it is rounded: row_sigmas standard deviations, and what is not random. */
double bound_unsure_of_p(const struct ref_machine *m, const struct bound_view *v, const struct bound_row *row,
                         int64_t j);
/* Fills same_q, same_row and same_head. False where there is no memory. */
bool bound_find_repeated(struct bound_gradient_head *g);
/* The place of a row of the head in hand in same_q and same_row, and of the head in same_head. */
static inline int64_t bound_head_of_group(const struct bound_gradient_head *g)
{
    return g->head.h - g->head.h_kv * (g->head.problem->num_heads_q / g->head.problem->num_heads_kv);
}
static inline int64_t bound_row_of_group(const struct bound_gradient_head *g, int64_t row)
{
    return bound_head_of_group(g) * g->head.sequence.seqlen_q + row;
}
/* Counts, for each query row and head, the rows that dbias adds up with it and that have its q and dout, and a head of
 * its k and v: to repeats, [rows][num_heads_q]. False where there is no memory. */
bool bound_repeat_dbias(const struct attest_problem *p, const struct attest_backward_args *a, double *repeats);
/* Everything score by score of the block whose rows, q and dout are set. False where there is no memory. */
bool bound_gradient_rows(struct bound_gradient_head *g, struct bound_gradient_block *block);
/* Standard deviation of dp under independent roundings, and what sums that are cut off lack of it, on average. */
double bound_sigma_of_dp(const struct bound_gradient_head *g, const struct bound_view *v, int64_t j);
double bound_lag_of_dp(const struct bound_gradient_head *g, const struct bound_view *v, int64_t j);
/* Error of p = exp(x - lse) as the backward pass computes it. */
double bound_error_of_p(const struct ref_machine *m, const struct bound_row *row, double x, double score_error,
                        double p);
/* The derivative of softcap, 1 - tanh^2, of a score of the block, and its error. */
struct bound_slope {
    double value, error, bias, sigma;
};
struct bound_slope bound_slope_of(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                                  int64_t at);
/* Half a unit of p's storage format. p comes normalised, so its binade is known; the dropout multiplier may come
 * before or after. */
double bound_half_unit_of_p(const struct ref_rounding *r, double p, double drop);

/* delta = sum p dp / sum p, of which each p is within p_error, and at least p / (1 + p_error / p) but for underflow;
 * each dp, of size `dp` and `away` from delta, within dp_error. bounds.md section 6.3 has the sums. */
struct bound_mean {
    double delta; /* |delta|, set before the rest */
    double terms, centred, least_p, most_p, products;
    double hull, largest;
};
void bound_add_to_mean(const struct ref_machine *m, struct bound_mean *to, double p, double p_error, double dp,
                       double away, double dp_error);
/* What the computed one is off by; INFINITY where the sum of p may vanish, or its reciprocal. */
double bound_of_mean(const struct ref_machine *m, const struct bound_mean *of);

/* Whether delta is an input: read as it is, and o is not. */
bool bound_has_delta(const struct bound_gradient_head *g);

/* Of one query head that scales: roundings of its machine, its floors, and k with the largest that it may be once a
 * number between its features' is taken off. False where there is no memory. */
bool bound_scale_head(struct bound_pool *pool, struct bound_gradient_head *g, struct bound_matrix *k);

/* What is taken off k stands past the last key of a tile, too: added to k_sum. */
void bound_add_hidden_keys(struct bound_gradient_head *g);

/* ATTEST_DELTA_CORRECTED. row: with the errors of the provisional delta, replaced by those of the corrected one;
 * exact: with those of a sum of p dp in fp32. Writes the row's dq and correction. */
bool bound_take_correction(struct bound_pool *pool, struct bound_gradient_head *g, struct bound_gradient_block *block);
void bound_correct_row(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i,
                       const struct bound_view *v, const struct bound_row *exact, struct bound_row *row);
/* Sums of the block's weights and k: value, absolute, error, variance and bias of `dq`. */
void bound_corrected_dq(const struct bound_gradient_head *g, struct bound_gradient_block *block,
                        struct bound_terms *dq);

/* Adds the block's dx to dbias and its sink terms to dsink, where these have memory. */
void bound_add_sums(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                    const double *repeats, struct bound_terms *dbias, struct bound_terms *dsink);
/* value, and path where there is a variance, of sums over the keys of a block. */
void bound_walk_sums(struct bound_gradient_block *block, const struct bound_weights *w, int64_t rows, int64_t features,
                     int64_t keys, int64_t ld, const struct bound_panels *operand, struct bound_terms *t);
/* Moves dk and dv of this query head to the group's, with the rounding between if the recipe has one. */
void bound_end_head(struct bound_gradient_head *g);

#define BOUND_ORACLE_SHARE 0x1p-26 /* of any bound of section 6 that the oracle's own error may be (section 8) */

#endif

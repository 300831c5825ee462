/* bounds_gradients.h - errors of p, dp, delta and ds in the backward pass, score by score. */
#ifndef ATTEST_REFERENCE_BOUNDS_GRADIENTS_H
#define ATTEST_REFERENCE_BOUNDS_GRADIENTS_H

#include "reference/bounds_rows.h"

/* Weights of scores, [BOUND_BLOCK][ld], that meet an operand in a product: their value and size, the error
 * of the computed ones, and under independent roundings variance and bias. `known` (NULL: none) is the part of the
 * error that is a function of the value: the rounding of a p that is nowhere near a tie. */
struct bound_weights {
    double *value, *absolute, *error, *variance, *bias, *known;
};

/* Sums of weights times an operand, by element of a gradient. variance, bias, known: NULL unless asked for. */
struct bound_terms {
    double *value, *absolute, *error, *variance, *bias, *known;
    double *rounding, *rounding_variance; /* of partial results, already in units of the gradient */
    double *count, *overflow;             /* of the terms; used by dbias and dsink */
};
bool bound_take_terms(struct bound_pool *pool, int64_t count, bool statistics, struct bound_terms *t);
void bound_add_term(struct bound_terms *to, int64_t at, const struct bound_terms *from, int64_t index);

/* dk or dv of one KV head: of the current query head, and of the whole group. */
struct bound_key_terms {
    int64_t features;
    struct bound_terms head, group;
    double *seen, *norm;          /* by key: rows that see it, and the sum of |weight| */
    double *head_seen, *overflow; /* by key */
    double *operand_sum;          /* by feature: sum of |operand| over all rows */
};

struct bound_gradient_head {
    struct bound_head head;
    const struct attest_backward_args *args;
    bool statistics;
    struct bound_panels k_rows;       /* num_keys x head_dim */
    struct bound_panels v_transposed; /* head_dim_v x num_keys */
    double *k_sum;                    /* of |k|, by feature */
    struct ref_sum dp_sum;            /* accumulation of dout.v */
    struct bound_key_terms dk, dv;
};

struct bound_gradient_block {
    struct bound_block rows;
    struct bound_matrix dout;
    struct bound_row_state states[BOUND_BLOCK];
    struct bound_block_output o; /* o and its bound, where delta is taken from o */
    double *dp, *dp_abs;         /* dout . v and sum |dout||v|, without the dropout multiplier */
    double *dx_value, *dx_error, *dx_variance, *dx_bias;
    struct bound_weights ds, pd; /* ds; the dropped-out p that meets dout */
    double ds_norm[BOUND_BLOCK]; /* sum over keys of |ds| and its error */
    double sink_value[BOUND_BLOCK], sink_error[BOUND_BLOCK];
};

/* Loads the keys and takes all memory. False where there is none. */
bool bound_take_gradients(struct bound_pool *pool, struct bound_gradient_head *g, struct bound_gradient_block *block);
/* Everything score by score of the block whose rows, q and dout are set. False where there is no memory. */
bool bound_gradient_rows(struct bound_gradient_head *g, struct bound_gradient_block *block);
/* Adds the block's dx to dbias and its sink terms to dsink, where these have memory. */
void bound_add_sums(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                    struct bound_terms *dbias, struct bound_terms *dsink);
/* Moves dk and dv of this query head to the group's, with the rounding between if the recipe has one. */
void bound_end_head(struct bound_gradient_head *g);

#endif

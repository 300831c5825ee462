/* bounds_rows.h - scores, weights and their errors of blocks of rows: what the bounds of the forward and of
 * the backward pass have in common. Names and formulas: reference/bounds.md. */
#ifndef ATTEST_REFERENCE_BOUNDS_ROWS_H
#define ATTEST_REFERENCE_BOUNDS_ROWS_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/attest.h"
#include "reference/bounds.h"
#include "reference/machine.h"
#include "reference/oracle.h"
#include "reference/vector.h"

enum { BOUND_BLOCK = 32, BOUND_LINES = 5 }; /* rows of a block; see struct bound_block */
enum { BOUND_PHASES = REF_WAYS }; /* of the grid to which weights are rounded: bounds.md section 9.6 */

/* Memory that lives as long as one unit of work. */
struct bound_pool {
    void *blocks[384]; /* a backward pass with everything takes some 260 */
    int count;
    bool failed; /* an allocation failed; its NULL must not be used */
};
double *bound_take(struct bound_pool *pool, int64_t count); /* zeroed */
void bound_release(struct bound_pool *pool);

/* The place of the share that a sequence belongs to. */
int bound_share_of(const struct ref_shares *shares, const struct ref_sequence *s);

/* Runs unit(context, i) for i < count on that many threads (0: all cores). Returns the first status that is not OK. */
enum attest_status bound_for_each(int64_t count, int threads, enum attest_status (*unit)(void *context, int64_t i),
                                  void *context);

/* Rows of a tensor in double; what is not finite is zero and marked. */
struct bound_matrix {
    int64_t rows, features;
    double *value;  /* [rows][features] */
    double *norm;   /* sum of |value| of each row */
    double *finite; /* 1 or 0 */
};

/* The right operand of a product: |b|, b and b^2 as panels, those asked for. */
struct bound_panels {
    int64_t k_packed;
    double *plain, *absolute, *square;
};

/* One query head of one sequence, with the keys it reads. */
struct bound_head {
    const struct attest_problem *problem;
    const struct attest_forward_args *args;
    struct ref_machine machine;
    struct ref_sequence sequence;
    int64_t b, h, h_kv;
    int64_t num_keys, ld; /* ld: num_keys rounded up to whole panels */
    struct bound_matrix k, v;
    uint64_t *key_hashes; /* hash each key's k and v; NULL where no two keys are equal */
    struct bound_panels k_transposed; /* head_dim x num_keys, for scores */
    struct bound_panels v_rows;       /* num_keys x head_dim_v */
    struct bound_panels v_columns;    /* head_dim_v x num_keys; NULL unless along is asked for */
    double *v_max, *v_sum;            /* of |v| over the keys, by feature */
    double v_floor;                   /* what scaling may cost a number of v; 0: nothing is scaled */
    double fmax;                      /* largest dropout multiplier */
    struct ref_sum features;          /* accumulation of q.k */
};
struct bound_matrix bound_decode_rows(struct bound_pool *pool, const struct attest_problem *p,
                                      const struct attest_tensor *t, const void *data, const struct ref_sequence *s,
                                      bool is_k, int64_t b, int64_t h, int64_t first, int64_t rows, int64_t features);
/* which: 1 plain, 2 absolute, 4 square, added. transposed: features x rows, for products along features. */
struct bound_panels bound_make_panels(struct bound_pool *pool, const struct bound_matrix *matrix, bool transposed,
                                      int which);
/* Keys of KV head h_kv; `problem`, `args`, `b` and `h_kv` are set. False where there is no memory. */
bool bound_load_keys(struct bound_pool *pool, struct bound_head *head);
/* Takes key_hashes where some keys are equal. False where there is no memory. */
bool bound_hash_keys(struct bound_pool *pool, struct bound_head *head);

/* Half a step of fp16's subnormal numbers. */
#define SCALED_STEP 0x1p-25
/* For v_floor, where v is scaled. */
double bound_floor_of_values(const struct bound_head *head);
/* Of weights, `norm` in all, and operands, `sum` in all, scaled to fp16: what each operand may be off by, and what the
 * tensor core loses of subnormal ones. */
double bound_lost_to_scaling(double weight_floor, double operand_floor, double norm, double sum, double terms);

/* C = A B of a block: rows x n, A with leading dimension head->ld. */
void bound_product(int64_t rows, int64_t n, int64_t k, const double *a, int64_t a_row, int64_t a_col,
                   const double *panels, int64_t k_packed, bool add, double *c, int64_t c_row);

/* A block of rows against all keys; arrays [BOUND_BLOCK][ld]. What is not seen or has x = -inf is 0 throughout. */
struct bound_block {
    int64_t first, rows;
    struct bound_matrix q;
    double *x;           /* score that the exponential sees, less the row's base; -inf where `live` is 0 */
    double *live;        /* 1: takes part, finite x */
    double *score_error; /* |computed x - x| */
    double *score_sigma, *score_bias;
    double *score_cut;         /* what products that are cut off alike lack of x, in any order: a bias of lse */
    double *score_lag;         /* what sums that are cut off lack of x, on average; never more than twice that */
    double *tanh, *tanh_error; /* of s / softcap; NULL without softcap */
    double *drop;
    double *p;                          /* exp(x - lse) */
    double *centred;                    /* error of the weight that cancels in the mean: times |m v - o| */
    double *plus;                       /* upper bound of the computed weight */
    double *rounding;                   /* error of the weight's rounding before p.v */
    double *rounding_variance;          /* of it, under independent roundings */
    double *weight_sigma, *weight_bias; /* of ln p under independent roundings */
    double *dot_abs, *dot_square;       /* sums of |q||k| and of (q k)^2 */
    double *equal;                      /* counts the row's keys that have this one's k, v and score: they err alike;
                                         * NULL where no two keys are equal */
    double *line[BOUND_LINES];          /* scratch: of a row's keys and its sink */
};
/* Fills `equal` of row i. */
void bound_count_equal(const struct bound_head *head, struct bound_block *block, int64_t i);
static inline double bound_equal(const struct bound_block *block, int64_t at)
{
    return block->equal ? block->equal[at] : 1.0;
}
bool bound_take_block(struct bound_pool *pool, const struct bound_head *head, struct bound_block *block);

/* What is true of a whole row. */
struct bound_row_state {
    bool empty;    /* sees no key and has no sink: results are exact */
    bool broken;   /* sees a NaN or an infinite score: results are NaN or infinite, compared exactly */
    bool overflow; /* an intermediate may overflow */
    int64_t live;  /* keys with a finite score */
    int64_t rescales;
    double base;              /* ref_largest_bias, which x, lse, top and largest lack */
    bool as_given, less_base; /* what a kernel may do with the row's biases: take them as they are, or less base */
    double floor;             /* the largest computed exponent is at least this, less base */
    double lse, top, largest; /* top: largest exponent, sink included; largest: largest score */
    double log_sum;           /* lse - top */
    double sink, sink_error;  /* less base, and of the computed one; -inf where there is none */
    double sink_weight;       /* exp(sink - lse) */
    double shift;             /* sum of the centred errors, sink included */
    double largest_share;     /* normalised weights of 1 before are at most this, and at most 1 */
    double relative;          /* of the sum l and the final scaling of o */
    double relative_sigma;
    double lse_bound, lse_sigma, lse_bias;
    struct ref_sum keys;         /* accumulation of p.v */
    /* For the statistics of o, by bounds.c: */
    double shared[BOUND_PHASES]; /* of each phase, what the weights' roundings do to all of o alike, relative to it */
    double shared_variance;      /* of that, if they are independent */
};
/* Scores of rows first .. first + rows of head->h. */
void bound_block_scores(struct bound_head *head, struct bound_block *block, struct bound_row_state *states);
/* Whether scores are no more than softmax_scale q . k. */
static inline bool bound_is_linear(const struct attest_problem *p)
{
    return !(p->softcap > 0) && p->bias.dtype == ATTEST_ABSENT && !p->has_alibi;
}

/* The size of a number of the row that lacks base, as the kernel has it. */
static inline double bound_size(const struct bound_row_state *s, double x)
{
    return fmax(s->as_given ? fabs(x + s->base) : 0.0, s->less_base ? fabs(x) : 0.0);
}

/* Normalised weights e^x / sum e^x whose exponents may be off: the least and the most that each can be, whatever the
 * others are. log_p: of the true ones, -inf of what takes no part. Returns ln of the largest factor by which their sum
 * may be off. log_p, error, least, most, scratch: [count]. bounds.md section 5.4. */
double bound_intervals(int64_t count, const double *log_p, const double *error, double *scratch, double *least,
                       double *most);
/* ln p of the row's keys and, last, of its sink to line 0. */
void bound_log_weights(const struct bound_head *head, const struct bound_block *block, int64_t i,
                       const struct bound_row_state *s);

/* Weights of row i of the block and their errors in the forward pass. */
void bound_row_weights(const struct bound_head *head, const struct bound_block *block, int64_t i,
                       struct bound_row_state *state);

/* What roundings of weights that are alike do to all of o, relative to it: bounds.md section 9.6. */
struct bound_alike {
    double bias, variance;
};

/* o of the block's rows and its bounds, [rows][head_dim_v] each; sigma and bias may be NULL. */
struct bound_drift;
struct bound_block_output {
    double *o, *bound, *sigma, *bias, *along; /* along: [rows] */
    struct bound_drift *drift;
    struct bound_alike alike;
};
/* False where there is no memory. Rows that are empty or broken get zero bounds. */
bool bound_block_o(const struct bound_head *head, const struct bound_block *block, const struct bound_row_state *states,
                   const struct bound_block_output *out);

/* What underflow may cost feature c of o. */
double bound_lost_of_o(const struct bound_head *head, const struct bound_row_state *s, int64_t c);

/* A bound with the rounding to a tensor's format added, for a result of that magnitude. */
double bound_with_output(const struct ref_machine *m, int32_t dtype, double value, double bound);

/* Zero: exact, whatever the oracle says. */
struct ref_bound;
void bound_clear_bound(const struct ref_bound *bound, int64_t count);

/* Variance of that rounding. Where results are equal and so round alike, the judge knows (bounds.md, 9.11). */
double bound_output_variance(const struct ref_machine *m, int32_t dtype, double value);

#define BOUND_SLACK (1 + 0x1p-20) /* bounds.md section 8: the oracle's own error and the roundings made here */

#endif

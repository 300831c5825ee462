/* bounds.h - how far a kernel of a given recipe may be from the oracle, element by element.
 *
 * Derived line by line in reference/bounds.md. Arrays are in the canonical order of oracle.h. Two kinds:
 *
 *     rigorous     |got - oracle| <= bound for every input inside the no-overflow domain; the oracle's own
 *                  stated error is already added
 *     statistical  what independent roundings give: per element a systematic part (bias) and a
 *                  standard deviation, from which ref_judge derives thresholds for the root mean square and
 *                  the mean signed error at a false-alarm probability of 1e-9 */
#ifndef ATTEST_REFERENCE_BOUNDS_H
#define ATTEST_REFERENCE_BOUNDS_H

#include <stddef.h>
#include <stdint.h>

#include "lib/attest.h"
#include "reference/oracle.h"

#ifdef __cplusplus
extern "C" {
#endif

/* The recipes that come with the project, ended by name == NULL: "fp32" (fp32 everywhere, rounds only at the
 * end), "mixed" (16-bit operands, fp32 accumulation, exact delta), "flash" (16-bit operands, fp32
 * accumulation, delta from the rounded o), "ampere" and "hopper" (flash with those tensor cores'
 * accumulation and ds of p in fp32), "lazy" (the same with any accumulation; o is rescaled only where the maximum has
 * grown by more than 2^8). */
enum ref_recipe_place {
    REF_RECIPE_FP32, REF_RECIPE_MIXED, REF_RECIPE_FLASH, REF_RECIPE_AMPERE, REF_RECIPE_HOPPER, REF_RECIPE_LAZY,
};
extern const struct attest_recipe ref_recipes[];
const struct attest_recipe *ref_recipe(const char *name); /* NULL if there is none of that name */

/* rescale_log2 as it is where v has that dtype: in fp16 weights end below 2^16. */
int ref_rescale_log2(const struct attest_recipe *recipe, int32_t dtype);

/* The recipes of our kernels, ended by name == NULL, by the kernel's name: "forward_sm80", "backward_sm80" (16-bit
 * formats, tensor cores), "forward_sm90", "forward_sm90_any" (the same, Hopper), "short_forward_sm80",
 * "short_forward_sm90", "short_forward_sm90_scaled", "short_forward_sm90_d256", "short_backward_sm80",
 * "short_backward_sm80_any", "short_backward_sm90_any", "short_backward_sm90_n64", "short_backward_sm90_n128",
 * "short_backward_sm90_n128_latency", "short_backward_sm90_n128_scaled", "short_backward_sm90_n128_d256",
 * "short_backward_sm90_n128_d256_latency" (the same, short sequences), "forward_fp32", "backward_fp32",
 * "one_query_forward_sm80", "one_query_backward_sm80" (one query row), "merge", "merge_backward" (of which exp_error
 * says all). */
enum ref_kernel_place {
    REF_FORWARD_SM80, REF_BACKWARD_SM80, REF_FORWARD_FP32, REF_BACKWARD_FP32, REF_MERGE, REF_MERGE_BACKWARD,
    REF_SHORT_FORWARD_SM80, REF_SHORT_BACKWARD_SM80, REF_ONE_QUERY_FORWARD_SM80, REF_ONE_QUERY_BACKWARD_SM80,
    REF_SHORT_FORWARD_SM90, REF_SHORT_FORWARD_SM90_D256, REF_SHORT_BACKWARD_SM90_N64, REF_SHORT_BACKWARD_SM90_N128,
    REF_SHORT_BACKWARD_SM90_N128_LATENCY, REF_SHORT_BACKWARD_SM90_N128_D256, REF_SHORT_BACKWARD_SM90_N128_D256_LATENCY,
    REF_SHORT_BACKWARD_SM90_N128_SCALED, REF_SHORT_FORWARD_SM90_SCALED, REF_FORWARD_SM90, REF_SHORT_BACKWARD_SM80_ANY,
    REF_SHORT_BACKWARD_SM90_ANY, REF_FORWARD_SM90_ANY,
};
extern const struct attest_recipe ref_kernel_recipes[];
const struct attest_recipe *ref_kernel_recipe(const char *kernel); /* NULL if there is none */

enum { REF_MOST_SHARES = 8 };

enum { REF_WAYS = 8 }; /* to round weights that are alike, and phases of the grid to which they are rounded */

struct ref_bound {
    double *bound; /* rigorous; +inf where the recipe may overflow there */
    double *sigma; /* standard deviation under independent roundings */
    double *bias;  /* largest systematic error under them */
    double *along; /* of o and dq, by row and head: variance of the error along the result, each element weighted by
                    * 1 / (sigma^2 + (|bias| + |shift|)^2), but for the last rounding; +inf where it is not known */
    double *phases; /* of o, REF_WAYS of each row and head: by how much of itself roundings of the row's weights move all
                     * of o alike, by the place of their maximum within a step; in sigma and bias all the same */
    double *shift; /* the part of it that is known with its sign: errors lie from 0 to this; NULL: it is in bias */
    double *drift[2]; /* what one chain of sums that are all cut off lacks, terms in the order of memory or in the
                       * reverse one: errors of a row are a mean of these and 0; in bias all the same. NULL: not asked
                       * for */
    double *optional; /* of the bias, a rounding that is known, and that a kernel has in all of a row or in none */
    double *beside;   /* |bias| but for these */
    double *alike[REF_WAYS]; /* of dq and dk: what rounding ds of keys that dropout takes away adds, by the ways of
                              * doing it, of which a kernel has one; noise, in sigma, all the same. NULL: not asked
                              * for */
};

enum ref_tensor { REF_O, REF_LSE, REF_DQ, REF_DK, REF_DV, REF_DBIAS, REF_DSINK, REF_NUM_TENSORS };
extern const char *const ref_tensor_names[REF_NUM_TENSORS]; /* "o", "lse", ... */

/* Whose results are judged: each sequence is of the first share that has room for the rows and keys that it uses, or of
 * the last. */
struct ref_shares {
    int count; /* 1 at least */
    struct ref_share {
        const struct attest_recipe *recipe; /* NULL: the oracle */
        int64_t most_seqlen_q, most_seqlen_k;
    } share[REF_MOST_SHARES];
};
struct ref_shares ref_one_share(const struct attest_recipe *recipe); /* of every sequence */

/* Bounds of a forward and of a backward pass. NULL arrays are not computed; sigma and bias only beside a bound.
 * `recipe` NULL asks for the oracle's own stated error (bound only). threads: 0 for all cores; the result does
 * not depend on it.
 *
 * Backward reads a->forward.lse, a->delta and, where there is no delta, a->forward.o, if they are not NULL, as the
 * kernel does: what these are actually off by, if it is within their own bounds, replaces the most that it could be,
 * and the bounds of a recipe with delta from the rounded o become several times tighter (bounds.md section 6.4). Give
 * it the results that the gradients were computed from. Wrong ones excuse nothing.
 * Errors   OUT_OF_MEMORY. */
enum attest_status ref_bound_forward(const struct attest_problem *p, const struct attest_forward_args *a,
                                     const struct attest_recipe *recipe, const struct ref_bound *o,
                                     const struct ref_bound *lse, int threads);
enum attest_status ref_bound_backward(const struct attest_problem *p, const struct attest_backward_args *a,
                                      const struct attest_recipe *recipe,
                                      const struct ref_bound tensors[REF_NUM_TENSORS], int threads);
/* The same where kernels share the sequences. */
enum attest_status ref_bound_forward_shares(const struct attest_problem *p, const struct attest_forward_args *a,
                                            const struct ref_shares *shares, const struct ref_bound *o,
                                            const struct ref_bound *lse, int threads);
enum attest_status ref_bound_backward_shares(const struct attest_problem *p, const struct attest_backward_args *a,
                                             const struct ref_shares *shares,
                                             const struct ref_bound tensors[REF_NUM_TENSORS], int threads);

/* Bounds of a merge in fp32 by base-2 weights of differences to the largest lse (kernels/merge/merge.cu; bounds.md
 * section 11.2) against ref_merge, whose arguments these are: of o [rows][head_dim_v], stored as o_dtype, and lse
 * [rows]. Where at most one state is not empty, 0, or half an ulp of an o of 16 bits; +inf where an lse is NaN or +inf,
 * an o that is read is not finite, or sums may overflow.
 * Errors   OUT_OF_MEMORY. */
enum attest_status ref_bound_merge(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
                                   const double *const *lse_states, const struct attest_recipe *recipe, int32_t o_dtype,
                                   double *o, double *lse);

/* The same of its backward (kernels/merge/merge_backward.cu; bounds.md section 11.6) against ref_merge_backward, whose
 * arguments these are: of do_a [rows][head_dim_v] and dlse_a [rows] of each state. 0 in an empty state; +inf where an
 * lse is not finite, or something on the way may overflow. */
void ref_bound_merge_backward(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
                              const double *const *lse_states, const double *o, const double *lse, const double *dout,
                              const double *dlse, const struct attest_recipe *recipe, double *const *do_states,
                              double *const *dlse_states);

/* What the merge of states is off by because they are: states [rows][head_dim_v] and [rows] as they were computed, each
 * within its bound of the true one; o and lse receive bounds of |ref_merge of these - ref_merge of the true ones|. With
 * the bound of the merge itself added, attest_merge's or ref_bound_merge of the same states, that of every level's
 * result against the whole key set (bounds.md section 11.5). */
void ref_bound_parts(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
                     const double *const *lse_states, const double *const *o_bounds, const double *const *lse_bounds,
                     double *o, double *lse);

enum ref_verdict { REF_PASS, REF_FAIL, REF_OVERFLOW, REF_VACUOUS };
const char *ref_verdict_name(enum ref_verdict v);

/* Shapes that errors are tested against (bounds.md, 9.14). TILE: of 64 rows of a head. */
enum ref_direction {
    REF_SCALED,       /* the result itself, of the whole tensor */
    REF_TRUNCATED,    /* half a unit of the format, toward zero */
    REF_NEXT_ROW,     /* what the next row of the head has in its place */
    REF_PREVIOUS_ROW,
    REF_NEXT_HEAD,
    REF_SCALED_HEAD,
    REF_SCALED_TILE,
    REF_ONE_TILE, /* from here on ref_judge_tiles: what 64 keys contribute, or to dk and dv 64 query rows */
    REF_EARLIER_TILES, /* what all before a tile contribute */
    REF_SPLIT,         /* what a half, a quarter or an eighth of all tiles contributes */
    REF_STALE_TILE,    /* what a tile contributes with the operand of the tile before less what it does with its own */
    REF_STALE_SCORES,  /* of o: with the scores of the tile before, less its own */
    REF_SCORES_SCALED, /* of o: the derivative by a factor of all scores */
    REF_ALONG_DOUT,    /* of o */
    REF_DELTA_SHIFTED, /* of dq and dk: the derivative by delta, every row's alike, */
    REF_DELTA_SCALED,  /* and by a factor of it */
    REF_NUM_DIRECTIONS
};

/* One tensor of one implementation beside the oracle. */
struct ref_report {
    enum ref_verdict verdict;
    int64_t count;                 /* elements compared */
    double max_error, rmse, relative_error, mean_error; /* relative: Frobenius norms; mean: signed */
    double use;                    /* largest |got - oracle| / bound; NaN if any is */
    int64_t use_index[4];          /* where: b, row, head, feature */
    double use_got, use_want, use_bound;
    int64_t use_terms;             /* keys that this row sees, or query rows, of all heads, that see this key */
    double use_keys;               /* of a row: how many of them as large as each other weigh as much, 1 / sum p^2 */
    double rms_ratio, mean_ratio;  /* rmse and |mean_error| over their thresholds; 0 where not asked for */
    double direction_ratio;        /* largest error along a shape over its threshold; 0 where not asked for */
    enum ref_direction direction;  /* of those above 1 the one that most of the error is; else the one of that ratio */
    double direction_size;         /* how much of the shape there is: 0.001 of a result that is 1.001 times itself */
    double direction_share;        /* of the squares of all errors that it explains */
    int64_t direction_index[3];    /* of a head or 64 rows: b, first row, head; of a tile: its first; of a split: which,
                                    * of how many */
    int64_t nan_count;             /* NaN in got where the oracle has none */
    int64_t overflow_count;        /* elements outside the recipe's domain */
    double rms_bound, rms_oracle;  /* VACUOUS where the first exceeds the second */
};

/* Judges a tensor as the problem lays it out (`got`, dtype and strides from p) against the oracle's
 * canonical array and its bound. Rows of no sequence are left out, rows past seqused must be exact. FAIL comes
 * before OVERFLOW, OVERFLOW before VACUOUS.
 * statistical: nonzero asks for the statistical verdict too (families normal, outlier, mean, recorded data). */
void ref_judge(const struct attest_problem *p, const struct attest_forward_args *a, enum ref_tensor tensor,
               const void *got, const double *oracle, const struct ref_bound *bound, int statistical,
               struct ref_report *report);

/* Tests errors of o, dq, dk or dv, of at most 4096 rows, against what tiles of 64 keys, or of 64 query rows, contribute
 * and against what delta does, and puts the strongest and the verdict into the report of ref_judge, which was
 * statistical. The bound is the recipe's, with sigma and bias. dout is read if it is there. threads: 0 for all cores;
 * the result does not depend on it. Of other tensors it does nothing.
 * Errors   OUT_OF_MEMORY. */
enum attest_status ref_judge_tiles(const struct attest_problem *p, const struct attest_backward_args *a,
                                   const struct attest_recipe *recipe, enum ref_tensor tensor, const void *got,
                                   const double *oracle, const struct ref_bound *bound, int threads,
                                   struct ref_report *report);

/* What the errors look like, in words: "o scaled by 1.001". Of a report with a direction_ratio above 1. Writes at most
 * `size` bytes. */
void ref_describe_direction(const struct ref_report *report, enum ref_tensor tensor, char *text, size_t size);

#ifdef __cplusplus
}
#endif

#endif

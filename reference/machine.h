/* machine.h - what reference/bounds.md calls the machine: a recipe on given formats, as numbers. */
#ifndef ATTEST_REFERENCE_MACHINE_H
#define ATTEST_REFERENCE_MACHINE_H

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "lib/attest.h"

/* y rounded to a storage format, or to a sum of two of its numbers: error <= relative |y| + tiny while |y| <
 * overflow. */
struct ref_rounding {
    int32_t dtype; /* ATTEST_ABSENT: no rounding */
    int32_t parts; /* numbers */
    double relative, tiny, overflow;
    double relative_below_one; /* the same for 1/2 <= |y| < 1, in units of 1 rather than of y */
    double scale;              /* what is rounded is scale y; the rest of this is in units of y */
};

/* Of each threshold of the statistical verdict, and of all deviations of rows that it takes for biases. */
#define REF_FALSE_ALARM 1e-9

struct ref_machine {
    int32_t accumulate;
    double u;             /* unit roundoff of the working precision */
    double tiny;          /* what underflow may cost one operation, flushing to zero allowed */
    double lost;          /* what underflow of an operand may cost a product, per unit of the other operand */
    double least_operand; /* smallest normal number of a product's operands */
    double huge;          /* intermediates up to here do not overflow */
    double exp_error;     /* relative, of one exponential; as a bound of |ln(computed / true)| */
    double tanh_error;    /* relative; beside it tanh_floor, absolute */
    double tanh_floor;
    double log_error; /* |computed - ln l| <= log_error (1 + |ln l|) */
    int64_t tile_k;   /* 0: one rescaling per key */
    double most_weight; /* that exp(x - m) may be, and m below the maximum of the row (bounds.md, 11.9); 1: none */
    bool own_sum;     /* of rows whose scores are large: bounds.md, 5.4 */
    bool less_base;   /* biases of every row are less the largest; else of such rows alone, where own_sum */
    double row_sigmas; /* standard deviations within which what is random for a whole row stays, in all rows */
    bool rescales;    /* a running maximum; false: the maximum of the row is known first */
    bool delta_from_o;
    bool corrects_delta; /* dq begins with a delta from o and corrects it (bounds.md, 7.1) */
    bool normalizes_delta; /* sum p dp / sum p (bounds.md, 6) */
    /* p, ds and what they meet to fp16, by powers of two of the largest (bounds.md, 11.11, 11.12) */
    bool scales;
    bool o_may_be_scaled; /* delta begins with an o that may be of a forward pass that scales (bounds.md, 11.12) */
    int32_t power;       /* p in fp32 is 2^power times itself: its exponent has that added */
    int32_t parts;       /* products a term of the sums over rows */
    double parts_size;   /* of what both parts of a number are in size, in units of it; 1 where there is one */
    int32_t rescale_log2; /* as the recipe has it */
    bool ordered;         /* keys come in order (bounds.md, 3.4) */
    bool ds_may_have_scale; /* softmax_scale ds may be what is rounded */
    int32_t o_dtype;                                     /* of o, or what o would be where only delta is given */
    bool rounds_outputs;                                 /* false: results stay in the working precision */
    struct ref_rounding p, p_dv, p_ds, p_dq, ds, dk_heads, dv_heads; /* zero where the recipe does not round */
};

/* Of a backward pass, and of a forward pass. recipe NULL: the oracle. */
struct ref_machine ref_machine(const struct attest_problem *p, const struct attest_recipe *recipe);
struct ref_machine ref_forward_machine(const struct attest_problem *p, const struct attest_recipe *recipe);
/* A forward pass that scales has sequences of no more rows, keys and features than these. */
enum { REF_SCALED_ROWS = 128, REF_SCALED_FEATURES = 32 };
/* y to fp16 as scale y, once; scale is a power of two. */
struct ref_rounding ref_rounding_to_fp16(double scale);

/* A sum of products: |computed - exact| <= rel sum |a||b|, absolute terms apart. Under independent roundings, in units
 * of what partial sums amount to (bounds.md, 9.2): standard deviation; bias of partial sums that are cut off; bias of
 * products that are, which is felt as far as they have one sign. */
struct ref_sum {
    double rel, sigma, bias, aligned;
    double steps, steps_aligned; /* bias and aligned in the steps of a tensor core, where it may be a chain, too */
};
/* Of keys, after dropout: the inverse of its multiplier. */
double ref_share_kept(const struct attest_problem *p);
/* Over `terms` features, which begin on a step of the matrix unit. */
struct ref_sum ref_sum_features(const struct ref_machine *m, int64_t terms);
/* Over `terms` of `span` rows, `heads` times, some of which may be masked and so leave steps that are not full. */
struct ref_sum ref_sum_rows(const struct ref_machine *m, int64_t terms, int64_t span, int64_t heads);

/* rel of dq by tiles of REF_LEAST_TILE to REF_TILE keys, whose sums are added in any order (bounds.md, 3.4). */
double ref_sum_of_tiles(const struct ref_machine *m, int64_t terms, int64_t span);
enum { REF_LEAST_TILE = 32, REF_TILE = 128 };
/* rel of one chain of all terms in the steps of a tensor core. */
double ref_sum_of_steps(const struct ref_machine *m, int64_t terms, int64_t span);
/* What one step of an accumulator may cost its own terms, beside what it costs the partial sum. */
double ref_step_error(const struct ref_machine *m);

/* Two relative errors, one after the other. */
static inline double ref_both(double a, double b) { return a + b + a * b; }

/* exp(x) - 1 or a little more; x >= 0. */
static inline double ref_growth(double x) { return x <= 0.5 ? x + 0.75 * x * x : expm1(x); }

#endif

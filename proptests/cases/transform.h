/* transform.h - cases made of other cases, of which the contract says what they must give.
 *
 * Each writes a new case, laid out with plain strides, and leaves the old one alone. */
#ifndef ATTEST_PROPTESTS_CASES_TRANSFORM_H
#define ATTEST_PROPTESTS_CASES_TRANSFORM_H

#include "proptests/cases/case.h"

/* Sequence b, its used rows only, as a dense problem of its own. */
void transform_alone(struct prop_case *out, const struct prop_case *c, int64_t b);

/* Query rows q0 .. q1 - 1 and keys k0 .. k1 - 1 of a case that transform_alone made. */
struct part {
    int64_t q0, q1, k0, k1;
    bool sink; /* keeps the sink: it enters once */
};
void transform_part(struct prop_case *out, const struct prop_case *c, const struct part *part);

/* Another way to say the same mask. */
enum mask_form {
    MASK_AS_BOOLEAN,  /* the window becomes part of the boolean mask */
    MASK_AS_BLOCKS,   /* ... of a block mask of single scores */
    MASK_AS_BIAS,     /* ... of a bias of -inf; zero elsewhere if there was no bias */
    NUM_MASK_FORMS
};
void transform_mask(struct prop_case *out, const struct prop_case *c, enum mask_form form);

/* One KV head for each query head, k and v repeated. */
void transform_repeat_heads(struct prop_case *out, const struct prop_case *c);

/* Key row order[j] of each sequence moves to place j. All sequences have seqlen_k rows. */
void transform_permute_keys(struct prop_case *out, const struct prop_case *c, const int64_t *order);

/* One more feature of q and k, at the end: q's is `q`, k's is `k`, so that every score moves by softmax_scale q k. */
void transform_shift(struct prop_case *out, const struct prop_case *c, double q, double k);

/* Elements of a tensor times a factor. */
void transform_scale(struct prop_case *c, enum tensor_id t, double factor);

#endif

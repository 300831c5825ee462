/* kernels_long_cases.h - problems of several tiles on both sides, in every width that kernels are compiled for. */
#ifndef ATTEST_PROPTESTS_KERNELS_KERNELS_LONG_CASES_H
#define ATTEST_PROPTESTS_KERNELS_KERNELS_LONG_CASES_H

#include "proptests/cases/case.h"

/* Ragged sequences, of which each is shorter than another: in which order they come. */
enum long_order { FALLING, LAST_FIRST, RISING };

/* Tensors of very different sizes, in bf16 as far as its exponents go: powers of two that add up to more, or to less,
 * than a factor of fp32 may be. */
enum long_sizes { USUAL_SIZES, LARGE_SIZES, SMALL_SIZES };

/* There are as many sequences as KV heads. What is not set is 0, and then the case has nothing of it. */
struct long_case {
    const char *name;
    int64_t heads_kv;
    int64_t seqlens[2], head_dims[2];  /* of q and k; of k and v */
    int64_t window_left, window_right; /* 0: every key on that side */
    bool causal;
    uint64_t features;

    bool no_group;  /* one query head to a KV head; else two */
    bool negative;  /* k and v are, so that sums of the bits of a tile tell least of its NaNs */
    bool one_value; /* every key's v is the same and dout is positive: every dp is delta, so dq and dk are what delta is
                     * off by */
    bool no_scale;  /* a softmax_scale of 0: all keys weigh the same */
    bool few_keys;  /* all query rows are in use, and all keys but seven, which are NaN */
    bool all_keys;  /* all keys are in use, though few rows are */
    bool narrow_bias; /* biases have the dtype of q; else fp32 */
    bool own_dbias; /* dbias is each sequence's; else all add up */
    bool one_dbias; /* dbias is all heads'; else each has its own */
    bool many_sums; /* short kernels have fewer CTAs than problems for sums; others, and forward, have two heads */

    bool far_values;  /* rows of v are eight numbers further apart than those of k */
    bool odd_results; /* rows of o, or of dq, begin at any address */

    /* Scores, and so lse, are about 640, of negative k -640, by one feature of q and k alone: below 2^10 in base 2,
     * from which on rows have an lse of their own (gradients.h). What rounding lse to fp32 does to all p of a row at
     * once, 2^-15 at most, is felt where it meets delta, and the large numbers of k. */
    bool far_scores;

    /* One score is 2048, or about 60, that of the hundredth row and key, or of many keys the three hundredth, or of
     * thousands the last but 49, behind all keys that a kernel may take for the others. */
    bool late_key, late_rise;

    /* Sinks are 95, about 137 in base 2, and a late rise is one to 41: a weight that counts beside the sink, though
     * those of the first keys are less than fp32 has. */
    bool far_sinks;

    /* All scores are 0 but those of two rows and of the keys 300, 302, 304 and 306, one for each lane of a quad, with
     * weights of 2^126.2 for row 100 and 2^127.2 for row 200: four of them are more than fp32 has, though none is. For
     * row 200 key 301 has another, so that what one lane has of them is more, too. The values of these keys are small,
     * so that o stays finite. */
    bool late_rises;

    /* Biases are as model code makes masks: of rows that they hide whole, by -1e9 or the lowest number of fp32, and of
     * rows whose first keys they hide. Where there is a mask as well, the keys that it hides have 0.7, not NaN: a
     * maximum passes a NaN by. Other rows have an lse that says little of their weights, and one head has a sink as
     * large. */
    bool hiding;

    bool last_block; /* of a block mask, all rows see the last block of keys alone */
    bool aligned;   /* rows are promised to begin at multiples of 16 bytes: kernels of few full problems take them */
    bool elsewhere; /* asked again, of tensors that lie the same way elsewhere, and then of one sequence more */
    int sms;        /* of the simulated GPU, as launchers see it. 0: four at most */
    enum long_order order;
    enum long_sizes sizes;
};

/* Ends with name == NULL. */
extern const struct long_case long_cases[];

#endif

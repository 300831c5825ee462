/* power_kernel.h - attention as a kernel of 16 bits computes it, quick enough for long sequences, and faults that are
 * planted in it: what the judge must let pass, and what it should see. Shares no line with the bounds. */
#ifndef ATTEST_REFERENCE_POWER_KERNEL_H
#define ATTEST_REFERENCE_POWER_KERNEL_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/attest.h"

/* How sums of products round. The chain cuts off each of its sums: the worst of what is `faithful`. */
enum power_sum { POWER_NEAREST, POWER_CHAIN, POWER_AMPERE, POWER_HOPPER };

enum power_family { POWER_NORMAL, POWER_OUTLIER, POWER_MEAN };

enum power_fault {
    POWER_HONEST,
    POWER_O_SCALED, /* by 1 + size; so dq, dk, dv */
    POWER_DQ_SCALED,
    POWER_DK_SCALED,
    POWER_DV_SCALED,
    POWER_HEAD_SCALED, /* the first head of o */
    POWER_O_TRUNCATED, /* toward zero, in place of the nearest number */
    POWER_DQ_TRUNCATED,
    POWER_DK_TRUNCATED,
    POWER_DV_TRUNCATED,
    POWER_P_TRUNCATED, /* the p of o and of dv */
    POWER_P_7_BITS,    /* one bit less than bf16 has, or fp16's 10 */
    POWER_P_TWICE,     /* rounded with one bit more first */
    POWER_DS_TRUNCATED,
    POWER_DS_7_BITS,
    POWER_O_EVERY,     /* o to 16 bits every `size` keys */
    POWER_DQ_EVERY,
    POWER_VALUES_LOST, /* of the last `size` keys */
    POWER_TILE_LOST,   /* 64 keys in the middle, p v times 1 - size */
    POWER_ULP_OFF,     /* of a share of o: to a neighbour */
    POWER_DELTA_SCALED,
    POWER_SCORES_SCALED,
    POWER_NUM_FAULTS
};
extern const char *const power_fault_names[POWER_NUM_FAULTS];

struct power_case {
    int32_t dtype; /* of all tensors, lse in fp32 apart */
    int64_t rows, keys, heads, dim;
    enum power_family family;
    uint64_t seed;
    enum power_sum sum;
    bool exact_delta;    /* from p and dp; else from the rounded o */
    bool rounds_weights; /* p and ds, to the dtype */
    bool folds_scale;    /* ds is multiplied by softmax_scale before it is rounded, as cuDNN's is */
    bool reuses_p;       /* ds is made of the p that was rounded for dv, as the memory-efficient kernel's is */
    enum power_fault fault;
    double size;
    float *q, *k, *v, *dout;                      /* [rows or keys][heads][dim], numbers of the dtype */
    float *o, *lse, *dq, *dk, *dv;                /* results in fp32, rounded to the dtype; lse [heads][rows] */
    void *packed[9];                              /* q k v dout o lse dq dk dv in the dtype */
    struct attest_problem problem;
    struct attest_backward_args args;
};

/* Inputs, memory, problem and arguments; aborts where there is no memory. */
void power_init(struct power_case *c);
void power_run(struct power_case *c);
void power_clear(struct power_case *c);

#endif

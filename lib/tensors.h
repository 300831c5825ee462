/* tensors.h - every tensor of a problem as one row of a table, and where its bytes lie.
 *
 * Checks walk the table, so that a tensor's shape, its formats and who reads or writes it are said once. */
#ifndef ATTEST_LIB_TENSORS_H
#define ATTEST_LIB_TENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/attest.h"

enum attest_shape {
    ATTEST_ROWS,    /* [batch][seqlen][heads][features], struct attest_tensor */
    ATTEST_SCALARS, /* [batch][seqlen][heads], struct attest_tensor */
    ATTEST_SCORES,  /* [batch][heads][seqlen_q][seqlen_k], struct attest_score_tensor */
    ATTEST_BLOCKS   /* the same, of blocks of scores */
};

/* Which dtypes a tensor may have. */
enum attest_formats {
    ATTEST_ANY_FLOAT,  /* fp32, fp16, bf16, fp8 */
    ATTEST_LIKE_Q,     /* the dtype of q */
    ATTEST_WIDE,       /* fp32, fp16, bf16 */
    ATTEST_BIAS,       /* fp32, or the dtype of q if that is wide */
    ATTEST_ONLY_FP32,
    ATTEST_BYTES       /* uint8 */
};

enum attest_features { ATTEST_NO_FEATURES, ATTEST_HEAD_DIM, ATTEST_HEAD_DIM_V };

struct attest_tensor_kind {
    const char *name;
    size_t in_problem; /* offset of its layout in struct attest_problem */
    size_t in_args;    /* offset of its pointer in struct attest_backward_args */
    enum attest_shape shape;
    bool is_k; /* has the rows and heads of k */
    enum attest_features features;
    enum attest_formats formats;
    unsigned read, written; /* the passes that do so */
};

enum { ATTEST_NUM_TENSORS = 15 };
extern const struct attest_tensor_kind attest_tensor_kinds[ATTEST_NUM_TENSORS];

struct attest_axis {
    const char *name;
    int64_t count, stride;
};

/* One tensor of one problem. In elements as attest_layout_of() gives it. */
struct attest_layout {
    int32_t dtype, align;
    int64_t element_bytes; /* 0 for an unknown or absent dtype */
    int64_t inner;         /* elements that lie side by side: head_dim, or 1 */
    int num_axes;
    struct attest_axis axes[4];
};

struct attest_layout attest_layout_of(const struct attest_problem *p, const struct attest_tensor_kind *kind);

bool attest_layout_is_empty(const struct attest_layout *layout);

/* Drops the axes that move nothing (one element, or stride zero) and sorts the rest, widest first. */
void attest_layout_sort(struct attest_layout *layout);

#endif

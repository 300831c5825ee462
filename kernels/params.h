/* params.h - what launchers are given: host values and device pointers, by value in the kernel's parameters.
 *
 * Names are those of lib/attest.h. A launcher returns 0, or a code that launch_error_text (device/launch.h) puts in
 * a sentence. */
#ifndef ATTEST_KERNELS_PARAMS_H
#define ATTEST_KERNELS_PARAMS_H

#include <stdint.h>

#include "lib/attest.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of features: element (b, r, h, x) at b * batch + r * seqlen + h * head + x. */
struct row_tensor {
    void *data;
    int64_t batch, seqlen, head; /* strides in elements; in a ragged problem batch is 0 */
    int32_t dtype;               /* enum attest_dtype: fp32, fp16 or bf16 */
    int32_t by_four;             /* 1: every row begins at a multiple of four elements' bytes */
};

struct forward_params {
    struct row_tensor q, k, v, o;
    struct row_tensor lse; /* no x: one fp32 a row; data NULL: not wanted */
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* NULL: dense */
    const int32_t *seqused_q, *seqused_k;       /* NULL: the lengths */
    const float *sink;                          /* NULL: none */
    int64_t batch, num_heads_q;
    int32_t group;              /* num_heads_q / num_heads_kv */
    int32_t seqlen_q, seqlen_k; /* upper bounds in a ragged problem */
    int32_t head_dim, head_dim_v;
    int32_t diag_is_bottom_right;       /* 1: seqlen_k - seqlen_q of each sequence is added to diag */
    int64_t diag;                       /* query row r sits on key row r + diag: starts are in it */
    int64_t window_left, window_right;  /* negative: unbounded */
    float softmax_scale;
};

/* Of a checked problem that a kernel takes. */
struct forward_params forward_params_of(const struct attest_problem *p, const struct attest_forward_args *a);

/* Most states of one merge: their pointers travel in the kernel's parameters. */
enum { MERGE_MAX_STATES = 128 };

struct merge_params {
    const float *o_states[MERGE_MAX_STATES];   /* [rows][head_dim_v] each */
    const float *lse_states[MERGE_MAX_STATES]; /* [rows] each */
    float *o, *lse;
    int64_t rows, head_dim_v;
    int32_t num_states;
    int32_t by_four; /* 1: head_dim_v and every pointer of an o are multiples of four elements */
};

/* Of checked arguments with at most MERGE_MAX_STATES states. */
struct merge_params merge_params_of(const struct attest_merge_args *a);

#ifdef __cplusplus
}
#endif

#endif

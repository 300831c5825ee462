/* params.h - what launchers are given: host values and device pointers, by value in the kernel's parameters.
 *
 * Names are those of lib/attest.h. A launcher returns 0, or a code that launch_error_text (device/launch.h) puts in a
 * sentence. */
#ifndef ATTEST_KERNELS_SHARED_PARAMS_H
#define ATTEST_KERNELS_SHARED_PARAMS_H

#include <stdint.h>

#include "lib/attest.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Points to rows of features: element (b, r, h, x) is at b * batch + r * seqlen + h * head + x. */
struct row_tensor {
    void *data;
    int64_t batch, seqlen, head; /* strides in elements; in a ragged problem batch is 0 */
    int32_t dtype;               /* enum attest_dtype: fp32, fp16 or bf16 */
    int32_t by_four, by_eight;   /* 1: every row begins at a multiple of four, eight elements' bytes */
};

/* Points to one element for each score: element (b, h, r, c) is at b * batch + h * head + r * seqlen_q + c *
 * seqlen_k. */
struct score_tensor {
    void *data; /* NULL: none */
    int64_t batch, head, seqlen_q, seqlen_k; /* strides in elements */
    int32_t dtype;
};

/* Counts the rows of q and of k that are in use in a sequence. */
struct lengths {
    int32_t q, k;
};

/* Holds a number to divide by: `quotient` in shared/scores.h computes floor(n / by) from it, for any 32-bit n. A GPU
 * has no instruction for that. */
struct divisor {
    uint32_t by, factor, first_shift, second_shift;
};

struct divisor divisor_of(int64_t by); /* 1 <= by < 2^32 */

/* At most this many kernels share a problem: each computes the sequences that fit into its lengths but into none of
 * those before. */
enum { MAX_SHARES = 4 };

struct forward_params {
    struct lengths most;                     /* of the sequences that this launch computes */
    struct lengths of_others[MAX_SHARES - 1]; /* but none that fits into one of these; -1: none fits */
    struct row_tensor q, k, v, o;
    struct row_tensor lse; /* no x: one fp32 a row; data NULL: not wanted */
    struct score_tensor bias, mask, block_mask;
    const int32_t *cu_seqlens_q, *cu_seqlens_k; /* NULL: dense */
    const int32_t *seqused_q, *seqused_k;       /* NULL: the lengths */
    const float *sink, *alibi_slopes;           /* NULL: none */
    const uint64_t *dropout_seed_at, *dropout_offset_at; /* NULL: the numbers below */
    const int64_t *dropout_stream;                       /* NULL: batch * num_heads_q + head */
    uint64_t dropout_seed, dropout_offset;
    int64_t batch, num_heads_q;
    struct divisor by_heads_q, by_heads_kv, by_group;
    int64_t rows_q, rows_k;     /* of the whole tensors: batch * seqlen, or the ragged total */
    int32_t group;              /* num_heads_q / num_heads_kv */
    int32_t seqlen_q, seqlen_k; /* upper bounds in a ragged problem */
    int32_t head_dim, head_dim_v;
    int32_t diag_is_bottom_right, alibi_diag_is_bottom_right; /* 1: seqlen_k - seqlen_q of each sequence is added */
    int64_t diag, alibi_diag;           /* query row r sits on key row r + diag: starts are in it */
    int64_t window_left, window_right;  /* negative: unbounded */
    int64_t q_start, k_start;           /* global indices of the first rows: dropout counts by them */
    int32_t block_q, block_k;           /* scores of a block of block_mask */
    float softmax_scale, softcap;
    float dropout_multiplier;           /* for scores that are kept */
    uint32_t dropout_threshold;         /* a score is dropped when its 16 bits are below; 0: no dropout */
};

/* Describes a checked problem that a kernel takes, with all its sequences. */
struct forward_params forward_params_of(const struct attest_problem *p, const struct attest_forward_args *a);

/* q, k, v, o and lse of `forward` are inputs; o.data may be NULL where delta is given. */
struct backward_params {
    struct forward_params forward;
    struct row_tensor dout, dq, dk, dv;
    struct row_tensor dlse, delta; /* no x, fp32; data NULL: none */
    struct score_tensor dbias;
    float *dsink;         /* [num_heads_q]; NULL: not wanted */
    int32_t external_lse; /* 1: lse and delta are of a larger key set */
    void *workspace;
};

/* Describes a checked problem that a kernel takes. */
struct backward_params backward_params_of(const struct attest_problem *p, const struct attest_backward_args *a,
                                          void *workspace);

/* One merge has at most this many states, since their pointers travel in the kernel's parameters. */
enum { MERGE_MAX_STATES = 128 };

struct merge_params {
    const float *o_states[MERGE_MAX_STATES];   /* [rows][head_dim_v] each */
    const float *lse_states[MERGE_MAX_STATES]; /* [rows] each */
    void *o;
    float *lse;
    int64_t rows, head_dim_v;
    int32_t num_states;
    int32_t o_dtype; /* fp32, fp16 or bf16 */
    int32_t by_four; /* 1: head_dim_v and every pointer to features are multiples of four elements */
};

/* Describes checked arguments with at most MERGE_MAX_STATES states. */
struct merge_params merge_params_of(const struct attest_merge_args *a);

/* It has four kilobytes of pointers; kernels may have more than 4 KB of parameters from sm_70 on. */
struct merge_backward_params {
    const float *o_states[MERGE_MAX_STATES];   /* [rows][head_dim_v] each */
    const float *lse_states[MERGE_MAX_STATES]; /* [rows] each */
    float *do_states[MERGE_MAX_STATES], *dlse_states[MERGE_MAX_STATES];
    const void *o, *dout;
    const float *lse, *dlse; /* dlse NULL: zeros */
    int64_t rows, head_dim_v;
    int32_t num_states;
    int32_t o_dtype, dout_dtype; /* fp32, fp16 or bf16 */
    int32_t by_four;             /* as in merge_params */
};

/* Does the same as merge_params_of for the backward pass. */
struct merge_backward_params merge_backward_params_of(const struct attest_merge_backward_args *a);

#ifdef __cplusplus
}
#endif

#endif

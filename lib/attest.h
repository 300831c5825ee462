/* attest.h - the public interface of attest: attention whose every number is checked.
 *
 * C11, usable from C++. No CUDA header is needed to use it. What is computed, to the letter, is in
 * lib/contract.md; the comments here repeat it beside each field. Names follow the field's
 * papers: i is a query row, j a key row, x a feature, h a head, b a sequence.
 *
 * Three phases, as FFTW and XNNPACK have them:
 *
 *     attest_plan_create(&problem, &plan)           host values only; says in a sentence what is wrong
 *     attest_plan_workspace(plan, &bytes)           what a run needs; the caller owns every buffer
 *     attest_run_forward(plan, &args, ws, n, stream)  queues the work
 *
 * A plan is immutable and may be used by many threads at once. A run allocates nothing,
 * synchronises nothing and reads no device memory on the host. Nothing here throws, prints or
 * exits, but that the simulated GPU aborts where the host's memory ends in the middle of a run; a
 * failed call has written nothing. */
#ifndef ATTEST_H
#define ATTEST_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define ATTEST_VERSION_MAJOR 0
#define ATTEST_VERSION_MINOR 1
#define ATTEST_VERSION_PATCH 0
#define ATTEST_VERSION (ATTEST_VERSION_MAJOR * 10000 + ATTEST_VERSION_MINOR * 100 + ATTEST_VERSION_PATCH)

#if defined(__GNUC__)
#define ATTEST_API __attribute__((visibility("default")))
#else
#define ATTEST_API
#endif

enum attest_status {
    ATTEST_OK = 0,
    ATTEST_INVALID,       /* a field is outside the range written beside it */
    ATTEST_UNSUPPORTED,   /* a valid problem that this build has no kernel for */
    ATTEST_OUT_OF_MEMORY, /* host memory, while a plan was made or by the reference device */
    ATTEST_DEVICE_ERROR   /* the device refused the launch */
};

enum attest_dtype {
    ATTEST_ABSENT = 0, /* this tensor takes no part in the problem */
    ATTEST_FP32,
    ATTEST_FP16,
    ATTEST_BF16,
    ATTEST_FP8_E4M3, /* inputs only; the OCP format: no infinities, largest value 448 */
    ATTEST_FP8_E5M2, /* inputs only */
    ATTEST_UINT8     /* masks: nonzero means visible */
};

enum attest_device {
    ATTEST_CUDA = 0,
    ATTEST_SIM,      /* the simulated GPU: runs kernel sources on the host; host pointers */
    ATTEST_REFERENCE /* the double-precision oracle; host pointers; results rounded once, at the end */
};

/* They are bits: a tensor may take part in both. */
enum attest_pass { ATTEST_FORWARD = 1, ATTEST_BACKWARD = 2 };

/* Where the mask's diagonal lies: query i sits on key i + diag. */
enum attest_diag {
    ATTEST_DIAG_UNSET = 0,
    ATTEST_DIAG_TOP_LEFT,     /* diag = 0 */
    ATTEST_DIAG_BOTTOM_RIGHT, /* diag = seqlen_k - seqlen_q, each sequence's own, after seqused */
    ATTEST_DIAG_GIVEN         /* diag = the field's own value */
};

/* A tensor of rows: element (b, i, h, x) lies at b * batch + i * seqlen + h * head + x, in elements.
 * The innermost stride is one. In a ragged problem the rows of sequence b start at row
 * cu_seqlens[b] and `batch` is not used. lse, delta and dlse have no x: element (b, i, h) lies at
 * b * batch + i * seqlen + h * head, any strides. A stride of zero broadcasts an input. An output's
 * axes nest: each stride is at least what the axes of smaller stride, x included, reach. Elements span
 * less than 2^63 bytes. The fields of an absent tensor are not looked at. */
struct attest_tensor {
    int32_t dtype; /* enum attest_dtype */
    int32_t align; /* bytes, a power of two >= the element's size, which 0 means: the pointer passed to a run and every
                      stride are multiples of it (of lse, delta, dlse and scores: every stride but 1). Where 16 is
                      promised of all rows, few full problems have faster kernels, of the same bits */
    int64_t batch, seqlen, head; /* strides in elements, >= 0 */
};

/* A tensor over scores: element (b, h, r, c) lies at b * batch + h * head + r * seqlen_q +
 * c * seqlen_k, r and c counted inside the sequence. A stride of zero broadcasts that axis. dbias sums
 * over such an axis, which then is one element, and is written whole: zero where no score is.
 * A block mask's r and c count blocks. */
struct attest_score_tensor {
    int32_t dtype;
    int32_t align;
    int64_t batch, head, seqlen_q, seqlen_k; /* strides in elements, >= 0 */
};

/* What marks a problem as one that began as it must. */
#define ATTEST_INITIALIZED 0x41545354

/* One attention problem, host values only. Start from ATTEST_PROBLEM_INIT or attest_problem_init(): one that is only
 * filled with zeros is refused, since its window would be one key and its scale 0. Append-only: a longer struct from
 * the future is accepted if its tail is zero. */
struct attest_problem {
    uint32_t struct_size;   /* sizeof(struct attest_problem) of the caller's header */
    int32_t device;         /* enum attest_device */
    int32_t device_ordinal; /* which of them, >= 0; there is one reference device */
    int32_t ragged;         /* 1: sequences are packed, cu_seqlens_q and cu_seqlens_k say where; 0: dense */

    /* Shapes. In a ragged problem seqlen_q and seqlen_k are upper bounds of the sequences' lengths and
     * total_q, total_k (0 .. 2^31 - 1) the rows of the packed tensors; in a dense one the totals are 0. */
    int64_t batch;        /* sequences, 0 .. 2^31 - 1 */
    int64_t seqlen_q;     /* rows of q, o, dout, dq, 0 .. 2^31 - 1 */
    int64_t seqlen_k;     /* rows of k, v, dk, dv, 0 .. 2^31 - 1; 0 leaves every row of q empty */
    int64_t total_q;      /* ragged only */
    int64_t total_k;      /* ragged only */
    int64_t num_heads_q;  /* 1 .. 2^31 - 1, a multiple of num_heads_kv; batch * num_heads_q too is at most 2^31 - 1 */
    int64_t num_heads_kv; /* >= 1; KV head of query head h: h / (num_heads_q / num_heads_kv) */
    int64_t head_dim;     /* features of q and k, 1 .. 256 */
    int64_t head_dim_v;   /* features of v and o, 1 .. 256 */

    /* The tensors. Forward, if o is present: q, k, v -> o, lse (lse may be absent). Backward, if dq, dk and
     * dv are present: q, k, v, lse, dout and either o or delta -> dq, dk, dv. One of the two is there, and
     * without a backward what only it reads or writes is absent. */
    struct attest_tensor q, k, v;          /* any floating-point format, the same for all three */
    struct attest_tensor o, lse;           /* o, dout, dq, dk, dv: fp32, fp16, bf16; lse: fp32, natural log */
    struct attest_tensor dout, dlse;       /* dlse: fp32, optional */
    struct attest_tensor delta;            /* fp32, optional input of backward: sum_j p_ij dp_ij */
    struct attest_tensor dq, dk, dv;
    struct attest_score_tensor bias;       /* fp32, or the dtype of q if not fp8; optional; -inf hides a key;
                                              bounds hold for every finite value of a row's keys (of a kernel without
                                              own_sum: where one of the row's scores is below 2^124 in size) */
    struct attest_score_tensor dbias;      /* fp32, or the dtype of q if not fp8; optional, needs bias */
    struct attest_score_tensor mask;       /* uint8, optional; nonzero = visible */
    struct attest_score_tensor block_mask; /* uint8, optional, over blocks of block_q x block_k scores */
    int64_t block_q, block_k;              /* rows and columns of a block, 1 .. 2^31 - 1 where block_mask is present */

    /* Scores. s = softmax_scale * (q . k); t = softcap * tanh(s / softcap) if softcap > 0, else s;
     * x = t + bias - alibi_slope_h * |i + alibi_diag - j|. */
    float softmax_scale; /* any finite value; no default */
    float softcap;       /* finite, >= 0; 0: none */
    int32_t has_alibi;   /* 1: args.alibi_slopes is read */
    int32_t has_sink;    /* 1: args.sink is read: lse = ln(sum_j exp(x_j) + exp(sink_h)) */
    int32_t alibi_diag_kind; /* enum attest_diag; UNSET means bottom-right */
    int32_t diag_kind;       /* enum attest_diag; needed where a window is bounded and lengths differ */
    int64_t alibi_diag;      /* -2^60 .. 2^60 where ATTEST_DIAG_GIVEN, else 0 */
    int64_t diag;            /* -2^60 .. 2^60 where ATTEST_DIAG_GIVEN, else 0 */
    int64_t window_left;     /* visible: j >= i + diag - window_left; negative: unbounded; at most 2^60 */
    int64_t window_right;    /* visible: j <= i + diag + window_right; negative: unbounded; causal is 0; at most 2^60 */
    int64_t q_start, k_start; /* global index of the first query and key row, 0 .. 2^60; i = q_start + r */
    int32_t has_seqused_q, has_seqused_k; /* 1: args.seqused_q / args.seqused_k replace the lengths */

    /* Dropout. A score is dropped when its 16 random bits, read as an integer, are below
     * t = round(65536 dropout_p), halves up; kept ones are scaled by 65536 / (65536 - t). The bits of
     * (i, j) are 16-bit lane j mod 8 (lowest first) of Philox4x32-10 with key = seed and the counter
     * whose words, lowest first, are: j / 8 mod 2^32, i mod 2^32, and the two halves of
     * offset + 2^32 * stream mod 2^64. stream is batch * num_heads_q + head unless args gives it. */
    float dropout_p; /* 0 .. 0.99999 */

    /* Backward of a part of the keys: 1: lse and delta (both present) are those of a larger key set, and
     * p_ij = exp(x_ij - lse_i) need not sum to one. 0: they are this problem's own. With 1 an lse in fp32 leaves each
     * p_ij a relative error of up to 2^-24 |lse_i|, whoever reads it; with 0 rows of large scores have no such
     * error. */
    int32_t external_lse;
    uint64_t dropout_seed, dropout_offset; /* used where args has no pointers to them */

    /* Reserved for fields that exist from the start and are refused until they work. */
    struct attest_tensor o_low, lse_low; /* low parts of o and lse */
    int64_t page_size;                   /* rows of a page of paged k and v; 0: not paged */

    uint32_t initialized; /* ATTEST_INITIALIZED, as the initialisers set it */
    uint32_t reserved0;   /* 0 */
};

/* Pointers of one run. Tensors that the problem declares absent are not looked at; those it declares
 * present are there in every pass that takes them, or may be NULL if they have no element. Outputs
 * overlap nothing. Two tensors that step by the same strides may interleave, as the parts of a packed
 * buffer do; of others the ranges that they span lie apart. Inputs are not written. */
struct attest_forward_args {
    uint32_t struct_size;
    uint32_t reserved0; /* 0 */
    const void *q, *k, *v;
    void *o;
    void *lse;
    const void *bias;
    const uint8_t *mask, *block_mask;
    const float *alibi_slopes;                   /* [num_heads_q] */
    const float *sink;                           /* [num_heads_q] */
    const int32_t *cu_seqlens_q, *cu_seqlens_k;  /* [batch + 1], 0 .. total, never falling; ragged problems only */
    const int32_t *seqused_q, *seqused_k;        /* [batch], 0 .. that sequence's length */
    const uint64_t *dropout_seed, *dropout_offset; /* one value each; NULL: the problem's */
    const int64_t *dropout_stream;               /* [batch][num_heads_q]; NULL: batch * num_heads_q + head */
    /* Refused until they work: non-null is UNSUPPORTED. */
    void *o_low, *lse_low;
    const float *q_scale, *k_scale, *v_scale;
    const int32_t *block_table;
};

/* `forward` holds the inputs of the forward pass and its results: o (where the kernel wants it) and
 * lse are read, not written. */
struct attest_backward_args {
    uint32_t struct_size;
    uint32_t reserved0; /* 0 */
    struct attest_forward_args forward;
    const void *dout;
    const void *dlse;
    const void *delta;
    void *dq, *dk, *dv;
    void *dbias;
    float *dsink; /* [num_heads_q], written where the problem has a sink and this is not NULL */
};

/* States that lie on a device: attest_merge_states. o [rows][head_dim_v] and lse [rows] are packed, in every state and
 * in the result. What a forward pass writes is such a state where the strides of its problem pack the rows of o and lse
 * in one order: o.head = head_dim_v, o.seqlen = num_heads_q head_dim_v, o.batch = seqlen_q o.seqlen, and lse.head = 1,
 * lse.seqlen = num_heads_q, lse.batch = seqlen_q lse.seqlen; rows is their number, batch seqlen_q num_heads_q. */
struct attest_merge_args {
    uint32_t struct_size;
    int32_t device;         /* enum attest_device */
    int32_t device_ordinal; /* as in struct attest_problem */
    int32_t o_dtype;        /* of o: fp32 (0 means it, too), fp16 or bf16; states are fp32 */
    int64_t num_states;     /* >= 0; on CUDA and SIM at most 128 */
    int64_t rows;           /* >= 0; at most 2^33 - 4 on CUDA, SIM */
    int64_t head_dim_v;     /* >= 1 */
    const float *const *o_states, *const *lse_states; /* [num_states], on the host: pointers to the states */
    void *o;
    float *lse;
};

/* Gradients of such states: attest_merge_states_backward. */
struct attest_merge_backward_args {
    uint32_t struct_size;
    int32_t device;                       /* this and what follows: as above */
    int32_t device_ordinal;
    int32_t o_dtype, dout_dtype;          /* fp32 (0 means it, too), fp16 or bf16 */
    int32_t reserved0;                    /* 0 */
    int64_t num_states, rows, head_dim_v;
    const float *const *o_states, *const *lse_states; /* [num_states], on the host */
    const void *o;                        /* [rows][head_dim_v], of the union */
    const float *lse;                     /* [rows], of the union */
    const void *dout;                     /* [rows][head_dim_v] */
    const float *dlse;                    /* [rows]; NULL: zeros */
    float *const *do_states, *const *dlse_states; /* [num_states], on the host: where gradients go */
};

/* How a kernel computes: what a proven error bound must know. reference/bounds.md defines each entry
 * and derives the bounds. */
enum attest_accumulate {
    ATTEST_ACC_FP32 = 0, /* fp32, round to nearest, any order */
    ATTEST_ACC_FAITHFUL, /* fp32, any order and grouping, each step may truncate: covers every tensor core here */
    ATTEST_ACC_AMPERE,   /* mma.sync of sm_80: 8 products a step, aligned to 24 fraction bits, truncated */
    ATTEST_ACC_HOPPER    /* sm_90: 16 products a step, aligned to 25 fraction bits, truncated */
};

/* A delta that is given is taken as it is, but corrected by CORRECTED. */
enum attest_delta {
    ATTEST_DELTA_EXACT = 0,      /* sum_j p dp from unrounded p and dp, in fp32 */
    ATTEST_DELTA_FROM_ROUNDED_O, /* dout . o with o already rounded to its output format */
    ATTEST_DELTA_CORRECTED, /* dq's sums begin with dout . o and end with the sum of p dp and a rank-one correction,
                               which dk, dv, dbias and dsink use too; plain where lse is given, too (external_lse) */
    ATTEST_DELTA_NORMALIZED /* sum_j p dp / sum_j p, both as in EXACT; with a sink, EXACT */
};

/* What p and ds are when they meet v, dout, k and q. */
enum attest_weights {
    ATTEST_WEIGHTS_FP32 = 0,
    ATTEST_WEIGHTS_ONE_PART,  /* rounded to the dtype of what they meet: p to that of v, in dv to that of dout; ds to
                                 that of k and q */
    ATTEST_WEIGHTS_TWO_PARTS, /* to a sum of two such numbers */
    ATTEST_WEIGHTS_SCALED_FP16 /* in plain problems of bf16 to fp16, ds and the operands that both meet scaled by powers
                                  of two of the largest numbers of the head (reference/bounds.md, 11.11 and 11.12), of
                                  p and ds at once; elsewhere two parts */
};

struct attest_recipe {
    uint32_t struct_size;
    int32_t accumulate;  /* enum attest_accumulate, of q.k, p.v, dout.v and the sums of dq, dk, dv */
    int32_t weights_p;   /* enum attest_weights */
    int32_t weights_ds;
    int32_t round_dkv_heads; /* 1: the dk, dv of each query head are rounded to 16 bits before the sum over a group */
    int32_t delta;      /* enum attest_delta */
    int32_t tile_k;     /* keys between two rescalings of o by the running maximum; 0: unknown, as bad as 1 */
    int32_t round_p_ds; /* 1: ds too may be made of a p rounded to dout's dtype; 0: of p in fp32 */
    double exp_error;   /* largest relative error of the exponential where its result is normal in fp32 */
    double tanh_error;  /* of softcap's tanh: |computed - tanh| <= tanh_error |tanh| + 2^-22 */
    const char *name;
    int32_t own_sum;    /* 1: where a row's lse, or running maximum, is of size 2^10 or more in base 2, a backward pass
                           divides p by the sum of the row's own weights, found again, and does not use the lse that it
                           is given (unless external_lse); both passes take its biases less the largest that it sees */
    int32_t rescale_log2; /* o and its sum are rescaled only where the running maximum has grown by more than this, in
                             base 2, since they were: weights reach 2^rescale_log2; 0 .. 64, in fp16, whose numbers
                             end below 2^16, at most 15 counts; 0: wherever it grows */
    int32_t ordered_keys; /* 1: what a row of o has added up at any time is of at most two runs of neighbouring keys, as
                             where tiles come in ascending or in descending order, and its running maximum is of such a
                             run; dq is of tiles of 64 to 128 keys, added in any order, rounded to nearest; delta's
                             fp32 sums are in order, or of four or more lanes; 0: any order */
    int32_t round_scaled_ds; /* 1: ds may be rounded as softmax_scale ds, as weights_ds says; 0: softmax_scale meets the
                                sums of dq and dk alone */
};

/* ---- audits: what another implementation returned beside the oracle -------------------------------------------- */

enum attest_audited {
    ATTEST_AUDITED_O = 0,
    ATTEST_AUDITED_LSE,
    ATTEST_AUDITED_DQ,
    ATTEST_AUDITED_DK,
    ATTEST_AUDITED_DV,
    ATTEST_AUDITED_DBIAS,
    ATTEST_AUDITED_DSINK,
    ATTEST_NUM_AUDITED
};

enum attest_verdict {
    ATTEST_NOT_JUDGED = 0, /* there was no such result */
    ATTEST_PASS,
    ATTEST_FAIL,           /* an element is outside its bound, or NaN where the oracle is not, or statistics are off */
    ATTEST_OVERFLOW,       /* the recipe may overflow on these inputs, so nothing is proven of some elements */
    ATTEST_VACUOUS         /* the bound is larger than the result (root mean squares), so it proves nothing */
};

struct attest_audit_options {
    uint32_t struct_size;
    int32_t threads;     /* 0 .. 4096; 0: all cores. No number depends on it */
    int32_t statistical; /* 1: root mean square, mean and shape of the errors are judged, too, at a false-alarm
                            probability of 1e-9: for inputs like normal ones and recorded activations */
    int32_t reserved0;   /* 0 */
    const struct attest_recipe *recipe; /* where the implementation may round; NULL: "flash" */
};

/* One tensor of results beside the oracle. */
struct attest_audit_report {
    int32_t verdict;         /* enum attest_verdict */
    int32_t reserved0;
    int64_t count;           /* elements compared */
    int64_t nan_count;       /* NaN where the oracle has none */
    int64_t overflow_count;  /* elements outside the recipe's domain */
    double max_error, rmse, relative_error, mean_error; /* relative: Frobenius norms; mean: signed */
    double share;            /* the largest |got - exact| / bound; above 1 fails; NaN where any is */
    int64_t index[4];        /* where that is: b, row, head, x; of dbias x is the column */
    double got, exact, bound; /* there */
    double rms_ratio, mean_ratio, shape_ratio; /* statistics over their thresholds; above 1 fails; 0: not asked for */
    double rms_bound, rms_exact;               /* VACUOUS where the first exceeds the second */
    char sentence[240];      /* why it is not PASS; "" where it is */
};

/* The exact results and their bounds, as packed arrays of double; NULL where not wanted. Rows of no sequence are NaN.
 *
 *     o     [rows_q][num_heads_q][head_dim_v]    lse  [rows_q][num_heads_q]    dq  [rows_q][num_heads_q][head_dim]
 *     dk    [rows_k][num_heads_kv][head_dim]     dv   [rows_k][num_heads_kv][head_dim_v]
 *     dbias [batch][num_heads_q][seqlen_q][seqlen_k], with 1 for each axis of stride 0    dsink [num_heads_q]
 *
 * rows_q is batch * seqlen_q or, ragged, total_q; rows_k likewise. */
struct attest_audit_arrays {
    uint32_t struct_size;
    uint32_t reserved0; /* 0 */
    double *exact[ATTEST_NUM_AUDITED];
    double *bound[ATTEST_NUM_AUDITED]; /* |got - exact| <= bound is proven for every implementation of the recipe; +inf
                                          where it may overflow */
};

struct attest_plan;

/* What each struct starts from: sizes set, no window, no softmax_scale, everything else zero. The macros are
 * initialisers; attest_problem_init() and its kin, for languages without macros, fill a struct of `size` bytes, as the
 * caller's header has it, with the same.
 * Errors   INVALID where the struct is NULL or `size` is less than that of this header. */
ATTEST_API enum attest_status attest_problem_init(struct attest_problem *problem, size_t size);
ATTEST_API enum attest_status attest_forward_args_init(struct attest_forward_args *args, size_t size);
ATTEST_API enum attest_status attest_backward_args_init(struct attest_backward_args *args, size_t size);
ATTEST_API enum attest_status attest_merge_args_init(struct attest_merge_args *args, size_t size);
ATTEST_API enum attest_status attest_merge_backward_args_init(struct attest_merge_backward_args *args, size_t size);
ATTEST_API enum attest_status attest_audit_options_init(struct attest_audit_options *options, size_t size);
ATTEST_API enum attest_status attest_audit_arrays_init(struct attest_audit_arrays *arrays, size_t size);

/* clang-format off */
#ifndef __cplusplus
#define ATTEST_PROBLEM_INIT                                                                        \
    { .struct_size = sizeof(struct attest_problem), .softmax_scale = NAN,                          \
      .window_left = -1, .window_right = -1, .initialized = ATTEST_INITIALIZED }
#define ATTEST_FORWARD_ARGS_INIT { .struct_size = sizeof(struct attest_forward_args) }
#define ATTEST_MERGE_ARGS_INIT { .struct_size = sizeof(struct attest_merge_args) }
#define ATTEST_MERGE_BACKWARD_ARGS_INIT { .struct_size = sizeof(struct attest_merge_backward_args) }
#define ATTEST_BACKWARD_ARGS_INIT                                                                  \
    { .struct_size = sizeof(struct attest_backward_args), .forward = ATTEST_FORWARD_ARGS_INIT }
#define ATTEST_AUDIT_OPTIONS_INIT { .struct_size = sizeof(struct attest_audit_options) }
#define ATTEST_AUDIT_ARRAYS_INIT { .struct_size = sizeof(struct attest_audit_arrays) }
#else /* designated initialisers came to C++ in 2020 */
#define ATTEST_PROBLEM_INIT ATTEST_FILLED(attest_problem)
#define ATTEST_FORWARD_ARGS_INIT ATTEST_FILLED(attest_forward_args)
#define ATTEST_BACKWARD_ARGS_INIT ATTEST_FILLED(attest_backward_args)
#define ATTEST_MERGE_ARGS_INIT ATTEST_FILLED(attest_merge_args)
#define ATTEST_MERGE_BACKWARD_ARGS_INIT ATTEST_FILLED(attest_merge_backward_args)
#define ATTEST_AUDIT_OPTIONS_INIT ATTEST_FILLED(attest_audit_options)
#define ATTEST_AUDIT_ARRAYS_INIT ATTEST_FILLED(attest_audit_arrays)
#define ATTEST_FILLED(type) attest_filled<type>(type##_init)
extern "C++" template <typename T> inline T attest_filled(enum attest_status (*init)(T *, size_t))
{
    T filled;
    init(&filled, sizeof filled);
    return filled;
}
#endif
/* clang-format on */

/* Checks `problem` and picks a kernel for each of its passes. Reads host values only.
 * Errors   INVALID with a sentence naming field, value and range; UNSUPPORTED with the failed condition;
 *          *plan is NULL after an error. */
ATTEST_API enum attest_status attest_plan_create(const struct attest_problem *problem, struct attest_plan **plan);
ATTEST_API void attest_plan_destroy(struct attest_plan *plan); /* NULL is allowed */

/* Bytes of workspace that a forward and a backward run of this plan need: device memory that begins at a multiple of
 * 256, overlaps nothing of the run and is the run's own until it ends. What it holds before does not matter. */
ATTEST_API enum attest_status attest_plan_workspace(const struct attest_plan *plan, size_t *forward_bytes,
                                                    size_t *backward_bytes);

/* A kernel, how it computes, and which sequences are its own: each belongs to the first share of its pass that has room
 * for the rows and keys that it uses. */
struct attest_share {
    uint32_t struct_size;
    const char *kernel;
    const struct attest_recipe *recipe;
    int64_t most_seqlen_q, most_seqlen_k; /* of the last share at least those of the problem */
};

/* Share i of what a forward or a backward run of this plan executes. Where sequences differ in length there may be
 * several; else there is one. It lives as long as the plan. NULL where there are i shares or fewer, as of a pass that
 * the problem does not have, and of a plan that is NULL. */
ATTEST_API const struct attest_share *attest_plan_share(const struct attest_plan *plan, enum attest_pass pass, int i);

/* The kernels of its shares, joined by +. The name lives as long as the plan. NULL of NULL, and where the problem does
 * not have the pass. */
ATTEST_API const char *attest_plan_kernel(const struct attest_plan *plan, enum attest_pass pass);

/* o = softmax(x) v row by row, and lse, as lib/contract.md section 1 says.
 * Empty    a query that sees no key gets o = 0 and lse = -inf (with a sink: lse = sink_h).
 * Aliasing o and lse overlap nothing, each other included.
 * Stream   CUDA: a cudaStream_t of the problem's device. SIM: NULL for a simulated GPU of the call's own, or a struct
 *          sim_gpu (kernels/sim/sim.h), whose mappings the call replaces; some kernels want it to be an sm_90.
 *          REFERENCE: ignored. SIM and REFERENCE are done when the call returns.
 * Errors   before anything is queued or written; but a finding of the simulated GPU ends its run half done, and so does
 *          a GPU that refuses one of a pass's launches: DEVICE_ERROR, with the finding as the sentence. Sequence
 *          lengths that are no lengths are INVALID where the host can read them: on SIM and REFERENCE. */
ATTEST_API enum attest_status attest_run_forward(const struct attest_plan *plan, const struct attest_forward_args *args,
                                                 void *workspace, size_t workspace_bytes, void *stream);

/* dq, dk, dv and, where asked for, dbias and dsink, as lib/contract.md section 3 says. Aliasing, stream and errors are
 * those of attest_run_forward. */
ATTEST_API enum attest_status attest_run_backward(const struct attest_plan *plan,
                                                  const struct attest_backward_args *args, void *workspace,
                                                  size_t workspace_bytes, void *stream);

/* lse = logaddexp(lse_a, lse_b), o = exp(lse_a - lse) o_a + exp(lse_b - lse) o_b, over num_states
 * states of disjoint key sets, in argument order. Host memory, fp32, packed: each o [rows][head_dim_v],
 * each lse [rows]. An empty state (lse = -inf) is not read; no state at all gives (0, -inf), and one alone
 * is copied bit by bit. Two states: bitwise commutative.
 * Accuracy |o - exact| <= (num_states + 760) 2^-52 sum_a exp(lse_a - lse) |o_a| + num_states 2^-940 and
 *          |lse - exact| <= (num_states + 760) 2^-52 + 2^-52 |lse|, and then one rounding to fp32.
 *          As everywhere: in the mode that programs start in, round to nearest, denormals kept.
 * Numbers  an lse of +inf or NaN makes its row NaN.
 * Aliasing o may be the o, and lse the lse, of one of the states, whole. */
ATTEST_API enum attest_status attest_merge(int64_t num_states, int64_t rows, int64_t head_dim_v,
                                           const float *const *o_states, const float *const *lse_states, float *o,
                                           float *lse);

/* attest_merge where the states lie on a device. REFERENCE is attest_merge itself; CUDA and SIM keep its laws, but
 * sum in fp32. An o of 16 bits is rounded once: from fp32, on REFERENCE from double; a state alone is rounded, too.
 * Accuracy REFERENCE: attest_merge's. CUDA, SIM: the bound of reference/bounds.md section 11.2, some units of 2^-22 of
 *          sum_a exp(lse_a - lse) |o_a| and of 1 + |lse|, and the rounding to 16 bits.
 * Aliasing attest_merge's; an o of 16 bits overlaps nothing.
 * Stream   as in attest_run_forward.
 * Errors   before anything is queued or written, but for findings of the simulated GPU. */
ATTEST_API enum attest_status attest_merge_states(const struct attest_merge_args *args, void *stream);

/* do_a = w_a dout, dlse_a = w_a (dlse + dout . (o_a - o)), w_a = exp(lse_a - lse): what the gradient of a merge's
 * result comes to in each of its states, o and lse being the result as given. All outputs are fp32.
 * Empty    a state with lse_a = -inf gets zeros, and its o_a is not read; where all are empty, nor are dout and dlse.
 * Accuracy REFERENCE: the oracle's, rounded once. CUDA, SIM: the bound of reference/bounds.md section 11.6, some units
 *          of 2^-22 of w_a |dout| and of w_a (|dlse| + sum_x |dout| |o_a - o|), head_dim_v units of 2^-24 of the sum.
 * Aliasing outputs overlap nothing.
 * Stream   as in attest_run_forward.
 * Errors   before anything is queued or written, but for findings of the simulated GPU. */
ATTEST_API enum attest_status attest_merge_states_backward(const struct attest_merge_backward_args *args,
                                                           void *stream);

/* Recipe i of those that come with the library: "fp32", "mixed", "flash", "ampere", "hopper", "lazy", as
 * reference/audit/README.md explains them; NULL where there are i or fewer. */
ATTEST_API const struct attest_recipe *attest_recipe_at(int i);
/* The recipe of that name, of those or of one of the library's kernels; NULL where there is none. */
ATTEST_API const struct attest_recipe *attest_recipe_named(const char *name);

/* Judges what an implementation returned. problem and args are those of a backward run, or of a forward one inside
 * args->forward, with host pointers; o, lse, dq, dk, dv, dbias and dsink are the results, read and never written. Each
 * may be absent from the problem, or NULL: it is then not judged. Gradients need dout in the problem. The device is
 * not looked at. options may be NULL. Writes all ATTEST_NUM_AUDITED reports.
 * Gradients are judged as those of the o and lse that are returned beside them, so leave none out: what these are off
 * by, within their own bounds, replaces the most that it could be. With external_lse, lse is an input, and not judged.
 * Errors   those of attest_plan_create and attest_run_backward, OUT_OF_MEMORY; nothing is written then. */
ATTEST_API enum attest_status attest_audit(const struct attest_problem *problem,
                                           const struct attest_backward_args *args,
                                           const struct attest_audit_options *options,
                                           struct attest_audit_report reports[ATTEST_NUM_AUDITED]);

/* The oracle's results and the bounds that attest_audit would judge by, of every element of the tensors that the
 * problem has: an absolute tolerance for one's own comparison. o and lse are read as above. */
ATTEST_API enum attest_status attest_audit_bounds(const struct attest_problem *problem,
                                                  const struct attest_backward_args *args,
                                                  const struct attest_audit_options *options,
                                                  const struct attest_audit_arrays *arrays);

ATTEST_API const char *attest_verdict_name(enum attest_verdict verdict); /* "PASS" and so on; never NULL */

/* "ATTEST_INVALID" and so on; never NULL. */
ATTEST_API const char *attest_status_name(enum attest_status status);

/* The sentence of this thread's last failed call; "" before any. Valid until its next failed call. */
ATTEST_API const char *attest_last_error(void);

/* ATTEST_VERSION of the library that runs. It serves programs compiled with a header of its major version that is not
 * newer: attest_version() / 10000 == ATTEST_VERSION_MAJOR && attest_version() >= ATTEST_VERSION. */
ATTEST_API uint32_t attest_version(void);

#ifdef __cplusplus
}
#endif

#endif /* ATTEST_H */

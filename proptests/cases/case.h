/* case.h - a problem with all of its memory, drawn at random.
 *
 * Values are kept in canonical order, as doubles that the tensor's dtype holds exactly, and are laid out
 * by the problem's strides into buffers in which every byte that the contract does not read is poison:
 * gaps, margins on both sides, rows past seqused or of no sequence, keys that nobody sees, queries that
 * see nothing, biases that are hidden. So a changed copy of a case is made by changing problem and values
 * and laying it out again. */
#ifndef ATTEST_PROPTESTS_CASES_CASE_H
#define ATTEST_PROPTESTS_CASES_CASE_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/attest.h"
#include "proptests/engine/check.h"
#include "proptests/cases/families.h"
#include "reference/oracle.h"

/* What a case has beyond a plain dense problem. Each is a bit of prop_case.features. */
enum feature {
    F_FP16, F_BF16, F_FP32, F_FP8, /* dtype of q, k, v */
    F_GQA,           /* num_heads_q > num_heads_kv */
    F_HEAD_DIM_V,    /* head_dim_v != head_dim */
    F_ODD_HEAD_DIM,  /* head_dim or head_dim_v is no multiple of 8 */
    F_LONG_Q,        /* seqlen_q > seqlen_k in some sequence */
    F_EMPTY,         /* a sequence without keys or without queries */
    F_CAUSAL,        /* window_right = 0 */
    F_WINDOW,        /* window_left >= 0 or window_right > 0 */
    F_TOP_LEFT, F_DIAG_GIVEN, /* kinds of the mask's diagonal */
    F_START,         /* q_start or k_start */
    F_MASK, F_BLOCK_MASK, F_BIAS, F_ALIBI, F_SOFTCAP, F_SINK,
    F_SCALE,         /* softmax_scale zero, negative, tiny or large */
    F_RAGGED, F_SEQUSED,
    F_STRIDED,       /* gaps or transposed axes */
    F_PACKED,        /* q, k and v are parts of one buffer's rows */
    F_BROADCAST,     /* an input with a stride of zero */
    F_DROPOUT,
    F_DLSE, F_DBIAS, F_EXTERNAL, F_DELTA, /* backward: dlse; dbias; external lse and delta; own delta, no o */
    NUM_FEATURES
};
#define FEATURE(name) (UINT64_C(1) << F_##name)
extern const char *const feature_names[NUM_FEATURES];
extern const uint64_t backward_features; /* those that only a backward pass has */

/* Pairs that the contract, or what a problem is, does not let meet. */
struct excluded_pair {
    enum feature a, b;
    const char *reason;
};
extern const struct excluded_pair excluded_pairs[];
extern const int num_excluded_pairs;

/* Tensors in the order of struct attest_problem. */
enum tensor_id {
    T_Q, T_K, T_V, T_O, T_LSE, T_DOUT, T_DLSE, T_DELTA, T_DQ, T_DK, T_DV, T_BIAS, T_DBIAS, T_MASK, T_BLOCK_MASK,
    NUM_TENSORS
};

enum tensor_shape {
    SHAPE_ROWS,    /* [rows][heads][features] */
    SHAPE_SCALARS, /* [rows][heads] */
    SHAPE_SCORES,  /* [batch][heads][seqlen_q][seqlen_k], 1 for an axis of stride 0 */
    SHAPE_BLOCKS   /* the same, of blocks */
};
struct tensor_kind {
    const char *name;
    size_t in_problem, in_args; /* offsets in attest_problem and attest_backward_args */
    enum tensor_shape shape;
    bool is_k, has_dim_v; /* rows and heads of k; features of v */
    bool forward_output, backward_output;
};
extern const struct tensor_kind tensor_kinds[NUM_TENSORS];
struct attest_tensor *tensor_rows(struct attest_problem *p, enum tensor_id t); /* SHAPE_ROWS and SHAPE_SCALARS */
struct attest_score_tensor *tensor_scores(struct attest_problem *p, enum tensor_id t); /* the other two */
int32_t tensor_dtype(const struct attest_problem *p, enum tensor_id t);

/* Memory with poisoned margins. */
struct prop_buffer {
    const char *name;
    unsigned char *bytes;    /* size of them, margins included */
    unsigned char *pristine; /* what they were when laid out, or last checked */
    size_t size;
};
enum { MAX_BUFFERS = NUM_TENSORS + 10 };

struct prop_case {
    struct attest_problem p;
    struct attest_backward_args a; /* a.forward too; pointers into the buffers */
    bool backward;                 /* dq, dk, dv are wanted */
    uint64_t features;
    struct family_data data;
    unsigned char poison;          /* 0xff: NaN in every format */

    /* Inputs, canonical: rows as oracle.h has them, [rows][heads][features]; scores [batch][head][row][column]
     * with 1 for an axis of stride 0. NULL where absent. T_LSE and T_DELTA are inputs of external_lse, T_DELTA also
     * of F_DELTA. */
    double *values[NUM_TENSORS];
    double *slopes, *sink;             /* [num_heads_q] */
    int64_t *starts_q, *starts_k;      /* [batch + 1] */
    int64_t *used_q, *used_k;          /* [batch] */
    int64_t *streams;                  /* [batch][num_heads_q] or NULL */
    uint64_t dropout_seed, dropout_offset;
    bool seed_by_pointer;              /* else in the problem */
    bool packed;                       /* q, k, v in one buffer */
    bool promise_align;
    int offset;                        /* elements between a buffer's margin and its tensor */

    struct prop_buffer buffers[MAX_BUFFERS];
    int num_buffers;
    int buffer_of[NUM_TENSORS], dsink_buffer; /* -1: none */
    struct owned *owned;               /* everything to be freed */
};

/* What a property wants drawn. */
struct case_request {
    bool backward;
    uint64_t needs, forbids;   /* features */
    uint64_t families;         /* bit per family; 0: all */
    int64_t max_work;          /* most scores x head_dim; 0: the generator's own mixture, median above 2^16 */
    int64_t head_dim;          /* 1 .. 256; 0: the generator's own mixture */
};

/* Draws, fills with values and lays out. */
void case_draw(struct prop_case *c, struct choices *choices, const struct case_request *request);
void case_free(struct prop_case *c);

/* A copy of problem and values, not laid out: change it, then case_lay_out. */
void case_copy(struct prop_case *c, const struct prop_case *from);
/* Allocates buffers as the strides say and writes what is read, poison elsewhere. Once per case. */
void case_lay_out(struct prop_case *c);
void case_contiguous(struct prop_case *c); /* before laying out: plain strides for every tensor */

/* Memory that lives as long as the case. Never NULL. */
void *case_alloc(struct prop_case *c, size_t bytes);
double *case_doubles(struct prop_case *c, int64_t count);

/* Poisons all outputs again. */
void case_reset_outputs(struct prop_case *c);

/* After a run of one pass: NULL, or the name of a buffer of which a byte changed that is not one of the pass's
 * results. The results are from then on inputs. */
const char *case_check_memory(struct prop_case *c, bool backward);

/* Results of the problem's own layout in canonical order, NaN for rows of no sequence. Lives with the case. */
double *case_read(struct prop_case *c, enum tensor_id t);
double *case_read_dsink(struct prop_case *c);
/* Elements of a tensor in canonical order, and its axes, unused ones 1. */
int64_t case_count(const struct prop_case *c, enum tensor_id t);
void case_extents(const struct prop_case *c, enum tensor_id t, int64_t extents[4]);
/* Whether row `row` of q or k (canonical) belongs to a sequence. */
bool case_row_exists(const struct prop_case *c, bool is_k, int64_t row);
/* Which rows are felt: queries that see a key, [rows_q][num_heads_q], and keys that a query of their group sees,
 * [rows_k][num_heads_kv]. */
void case_find_felt(struct prop_case *c, bool *queries, bool *keys);
void case_find_used(const struct prop_case *c, bool *queries); /* sets those of sequences, inside seqused */

int64_t case_work(const struct prop_case *c); /* scores x larger head_dim */
uint64_t case_features(const struct prop_case *c); /* as problem and values show them */
void case_print(const struct prop_case *c, FILE *out); /* a table of fields, defaults left out */

#endif

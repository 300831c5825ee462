/* sample.h - one problem of any size on a machine, beside its copy on the host. */
#ifndef ATTEST_PROPTESTS_CASES_SAMPLE_H
#define ATTEST_PROPTESTS_CASES_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/attest.h"
#include "lib/tensors.h"
#include "proptests/cases/machine.h"

enum sample_feature {
    WITH_CAUSAL = 1, WITH_WINDOW = 2, WITH_MASK = 4, WITH_BLOCK_MASK = 8, WITH_BIAS = 16, WITH_ALIBI = 32,
    WITH_SOFTCAP = 64, WITH_SINK = 128, WITH_DROPOUT = 256, WITH_DLSE = 512, WITH_SEQUSED = 1024, WITH_RAGGED = 2048,
    WITH_DBIAS = 4096,
    FORWARD_ONLY = 8192,
    WITH_DELTA = 16384,
    WITH_EXTERNAL_LSE = 32768 /* and a delta */
};

enum { SAMPLE_MAX_BATCH = 8 };

struct sample_shape {
    int32_t dtype;
    int64_t batch, seqlen, heads_q, heads_kv, head_dim, head_dim_v;
    unsigned features;
    int64_t queries;                   /* of each sequence; 0: as many as it has keys */
    int64_t lengths[SAMPLE_MAX_BATCH]; /* of a ragged problem's sequences; seqlen is the longest */
    int64_t first_sequence;            /* whose numbers the first one has */
    struct { int64_t batch, seqlen, head; } strides; /* of tensors of rows on the machine; all 0: packed */
    bool unpromised;   /* of alignment nothing is; else rows are promised to keep to 16 bytes, where packed ones do */
    int64_t score_row; /* of bias, mask and dbias: the stride of rows on the machine; 0: packed */
    int32_t device_ordinal;
    int major;         /* of the compute capability that kernels are picked for; 0: the machine's own */
};

/* A tensor or array on both sides. On the host it is packed. */
struct sample_memory {
    const struct attest_tensor_kind *kind; /* NULL: an array */
    size_t in_args;
    char *host, *device;
    size_t bytes;           /* of the host's */
    bool is_output;         /* o and lse are outputs, though backward reads them */
};

enum { SAMPLE_MAX_MEMORY = 32 };

struct sample {
    const struct machine *machine;
    struct sample_shape shape;
    struct attest_problem host_problem, problem; /* packed; as it lies on the machine */
    struct attest_backward_args host, device;
    struct attest_plan *plan;
    struct sample_memory memory[SAMPLE_MAX_MEMORY];
    int num_memory;
    char *shared, *shared_scalars; /* where tensors with strides lie, interleaved; NULL: each by itself */
    char *workspace;
    size_t workspace_bytes[2];     /* forward, backward */
};

/* Host arrays of N(0, 1) numbers, and a plan. `unseen`: what rows that nobody sees are filled with: keys past seqused_k
 * and those that masks hide from all, queries past seqused_q. False, with the sentence printed. */
bool sample_open(struct sample *c, const struct machine *machine, const struct sample_shape *shape, double unseen);
void sample_close(struct sample *c);
/* The problem and its plan alone, which attest_plan_destroy ends. */
bool sample_plan(struct sample *c, const struct machine *machine, const struct sample_shape *shape);

/* Inputs to the machine; poison, 0xff, into outputs, workspace and around them. `untouched`: outputs and workspace stay
 * as they were allocated, for a checker of memory that nobody wrote. */
bool sample_send(struct sample *c, bool untouched);
/* Queue the forward pass; unless the shape says not, the backward pass on its results; both. */
bool sample_forward(struct sample *c, void *stream);
bool sample_backward(struct sample *c, void *stream);
bool sample_queue(struct sample *c, void *stream);
/* Waits; results to the host. */
bool sample_fetch(struct sample *c);

/* A copy of all results, and whether the results are bit by bit those. */
char *sample_results(const struct sample *c);
bool sample_has_results(const struct sample *c, const char *results);

/* Bytes of sequence b's rows in the host's copy of an output of rows or of scalars, in both counted alike. */
const char *sample_rows(const struct sample *c, const struct sample_memory *m, int64_t b, size_t *bytes);

#endif

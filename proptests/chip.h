/* chip.h - one problem of any size on the chip, beside its copy on the host. */
#ifndef ATTEST_PROPTESTS_CHIP_H
#define ATTEST_PROPTESTS_CHIP_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/attest.h"
#include "lib/tensors.h"

enum chip_feature {
    CHIP_CAUSAL = 1, CHIP_WINDOW = 2, CHIP_MASK = 4, CHIP_BLOCK_MASK = 8, CHIP_BIAS = 16, CHIP_ALIBI = 32,
    CHIP_SOFTCAP = 64, CHIP_SINK = 128, CHIP_DROPOUT = 256, CHIP_DLSE = 512, CHIP_SEQUSED = 1024, CHIP_RAGGED = 2048,
    CHIP_DBIAS = 4096,
    CHIP_FORWARD_ONLY = 8192
};

enum { CHIP_MAX_BATCH = 8 };

struct chip_shape {
    int32_t dtype;
    int64_t batch, seqlen, heads_q, heads_kv, head_dim, head_dim_v;
    unsigned features;
    int64_t lengths[CHIP_MAX_BATCH]; /* of a ragged problem's sequences; seqlen is the longest */
    int64_t first_sequence;          /* whose numbers the first one has */
    struct { int64_t batch, seqlen, head; } strides; /* of tensors of rows on the chip; all 0: packed */
    int64_t score_row; /* of bias, mask and dbias: the stride of rows on the chip; 0: packed */
};

/* A tensor or array on both sides. On the host it is packed. */
struct chip_memory {
    const struct attest_tensor_kind *kind; /* NULL: an array */
    size_t in_args;
    char *host, *device;
    size_t bytes;           /* of the host's */
    bool is_input, is_output; /* o and lse are outputs, though backward reads them */
};

enum { CHIP_MAX_MEMORY = 32 };

struct chip {
    struct chip_shape shape;
    struct attest_problem host_problem, problem; /* packed; as it lies on the chip */
    struct attest_backward_args host, device;
    struct attest_plan *plan;
    struct chip_memory memory[CHIP_MAX_MEMORY];
    int num_memory;
    char *shared, *shared_scalars; /* where tensors with strides lie, interleaved; NULL: each by itself */
    char *workspace;
    size_t workspace_bytes[2];     /* forward, backward */
};

/* Host arrays of N(0, 1) numbers, and a plan. `unseen`: what rows that nobody sees are filled with: keys past seqused_k
 * and those that masks hide from all, queries past seqused_q. False, with the sentence printed. */
bool chip_open(struct chip *c, const struct chip_shape *shape, double unseen);
void chip_close(struct chip *c);

/* Inputs to the chip; poison, 0xff, into outputs, workspace and around them. `untouched`: outputs and workspace stay as
 * they were allocated, for a checker of memory that nobody wrote. */
bool chip_send(struct chip *c, bool untouched);
/* Queues the forward pass and, unless the shape says not, the backward pass on its results. */
bool chip_queue(struct chip *c, void *stream);
/* Waits; results to the host. */
bool chip_fetch(struct chip *c);

/* A copy of all results, and whether the results are bit by bit those. */
char *chip_results(const struct chip *c);
bool chip_has_results(const struct chip *c, const char *results);

/* Bytes of sequence b's rows in the host's copy of an output of rows or of scalars, in both counted alike. */
const char *chip_rows(const struct chip *c, const struct chip_memory *m, int64_t b, size_t *bytes);

#endif

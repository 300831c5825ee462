/* published.h - what others published of attention, computed by attest's public calls on one machine.
 *
 * Each check prints our figures beside the published ones and returns how many of its statements did not hold. Results
 * are judged by proven bounds (reference/bounds.md); published errors are limits besides, never in place of them. */
#ifndef ATTEST_PROPTESTS_PUBLISHED_PUBLISHED_H
#define ATTEST_PROPTESTS_PUBLISHED_PUBLISHED_H

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "lib/attest.h"
#include "proptests/cases/machine.h"

/* Outputs, maxima and denominators of blocks of keys, merged two by two: by the published formula, and as states by
 * attest_merge_states. */
int published_merge(const struct machine *machine, FILE *out);

/* Forward and backward of fp16 tensors by blocks of keys: against the whole, and beside published errors. */
struct published_errors {
    double max, mean; /* mean 0: none is published */
};
struct published_chunks {
    int64_t seqlen, head_dim, block;
    struct published_errors forward, backward;
};
extern const struct published_chunks published_head_dim_64, published_head_dim_128;
int published_chunks(const struct machine *machine, const struct published_chunks *size, int64_t heads, FILE *out);

/* Bytes that a caller allocates for forward and backward beside those of seqlen^2. */
int published_memory(const struct machine *machine, FILE *out);

/* 100 sequences of 128 keys, causal with ALiBi: `prefills` of 128 queries each, the rest of one. */
enum { PUBLISHED_BATCH = 100 };
int published_batch(const struct machine *machine, int64_t prefills, int64_t num_heads_q, int64_t num_heads_kv,
                    FILE *out);

#endif

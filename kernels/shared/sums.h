/* sums.h - how a backward pass of whole short sequences makes dbias and dsink: short/backward_sums.h does it. */
#ifndef ATTEST_KERNELS_SHARED_SUMS_H
#define ATTEST_KERNELS_SHARED_SUMS_H

#include <stddef.h>
#include <stdint.h>

#include "kernels/shared/params.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Later, by long/dbias.cu and long/dsink.cu; dbias at once, as each score has an element of its own; or in tiles, which
 * are added up later: of each part of the sequences one for each head or, where heads join, each part of the heads. A
 * part is every so manieth sequence, or KV head: a CTA takes one of each. */
enum sums_way { SUMS_LATER, SUMS_AT_ONCE, SUMS_OF_TILES };

struct short_sums {
    int32_t way;                      /* enum sums_way */
    int32_t joins_batch, joins_heads; /* 1: sequences, heads have elements in common */
    int64_t parts, head_parts;        /* of sequences and KV heads: as many as there are, unless they have */
};

struct short_sums short_sums_of_pass(const struct backward_params *p);

/* Bytes of workspace that this takes. */
size_t short_sums_bytes(const struct attest_problem *p);

#ifdef __cplusplus
}
#endif

#endif

/* blocks_case.h - random problems of several blocks of rows and parts of keys, with every feature. */
#ifndef ATTEST_REFERENCE_BLOCKS_CASE_H
#define ATTEST_REFERENCE_BLOCKS_CASE_H

#include <stdint.h>

#include "lib/attest.h"

enum { BLOCKS_MOST_KEYS = 600 };

struct blocks_case {
    struct attest_problem p;
    struct attest_backward_args a;
    double most_bias, most_alibi; /* no visible score has more of them */
    void *memory[24];
    int num_memory;
};
/* Equal seeds give equal cases. */
void blocks_case_init(struct blocks_case *c, uint64_t seed);
/* Overwrites a few elements of q, k, v and dout by NaN and infinities, seen or not. */
void blocks_case_poison(struct blocks_case *c, uint64_t seed);
void blocks_case_clear(struct blocks_case *c);

#endif

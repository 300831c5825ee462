/* badinput_case.h - small random problems that are valid, with memory of exactly their size, to be broken.
 *
 * Nothing here is shared with lib/: the tables say again, from attest.h, who reads and writes what. */
#ifndef ATTEST_PROPTESTS_CASES_BADINPUT_CASE_H
#define ATTEST_PROPTESTS_CASES_BADINPUT_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/attest.h"

enum shape { ROWS, SCALARS, SCORES, BLOCKS };

struct tensor {
    const char *name;
    size_t in_problem, in_args; /* offsets in attest_problem and attest_backward_args */
    enum shape shape;
    bool is_k, has_dim_v;
    const char *use; /* forward, then backward: r read, w written, - neither */
};

enum { NUM_TENSORS = 15, MAX_BLOCKS = NUM_TENSORS + 10 };
extern const struct tensor tensors[NUM_TENSORS];

struct block {
    const char *name;
    unsigned char *bytes;
    size_t size;
};

struct bad_case {
    uint64_t random;
    struct attest_problem p;
    struct attest_backward_args a;
    struct block blocks[MAX_BLOCKS];
    int num_blocks;
    bool backward;    /* the pass to run */
    char expect[128]; /* what the sentence must hold: field and value */
};

uint64_t draw(struct bad_case *c, uint64_t below); /* 0 .. below - 1 */
int64_t draw_range(struct bad_case *c, int64_t low, int64_t high);

void draw_case(struct bad_case *c, uint64_t seed);
void free_case(struct bad_case *c);

/* Of every byte that a run could reach. */
uint64_t hash_memory(const struct bad_case *c);

bool is_score(const struct tensor *t);
int32_t *dtype_of(struct bad_case *c, const struct tensor *t);
int32_t *align_of(struct bad_case *c, const struct tensor *t);
void *get_pointer(const struct bad_case *c, const struct tensor *t);
void set_pointer(struct bad_case *c, const struct tensor *t, const void *pointer);

/* The axes that a tensor has in this problem: names, strides to change, counts. */
struct axes {
    int count, innermost; /* innermost: elements side by side */
    const char *names[4];
    int64_t *strides[4];
    int64_t counts[4];
};
struct axes axes_of(struct bad_case *c, const struct tensor *t);

size_t bytes_of_dtype(int32_t dtype);

#endif

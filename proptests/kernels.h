/* kernels.h - the kernels of kernels/registry.h as implementations, on both machines. */
#ifndef ATTEST_PROPTESTS_KERNELS_H
#define ATTEST_PROPTESTS_KERNELS_H

#include <stdint.h>
#include <stdio.h>

#include "kernels/registry.h"
#include "proptests/properties.h"

/* A pair of launchers; or, both NULL, the library's public calls. */
struct kernel_implementation {
    struct implementation implementation; /* first: its functions find the rest by it */
    forward_launcher *forward;
    merge_launcher *merge;
};

/* On the simulated GPU: each run with a seed and a policy of its own, made of the case. */
struct kernel_implementation kernels_on_sim(const char *name, forward_launcher *forward, merge_launcher *merge);
/* On the chip: each run on copies of the case's memory, guarded on both sides. */
struct kernel_implementation kernels_on_cuda(const char *name, forward_launcher *forward, merge_launcher *merge);

/* What kernels/merge.cu states: exponents off by 3 roundings of (lse_a - max) log2 e, 2^x by 2^-22, log2 by 2^-22. */
extern const struct merge_accuracy kernels_merge_accuracy;

/* `property` as it is asked of kernels: without the features that none takes, with cases of at most `work`. False:
 * nothing would be left of it. */
bool kernels_property(const struct property *property, int64_t work, struct property *out);

struct kernel_run {
    const struct implementation *self;
    int64_t cases;      /* over all properties, by weight; discarded ones do not count */
    int64_t first_case;
    uint64_t seed;
    int64_t work;       /* most scores x head_dim of a case */
};

/* Prints for each property how many cases ran, and every failure with the line that replays it. Returns whether all
 * passed and none of the properties was left without a case. */
bool kernels_run(const struct kernel_run *run, FILE *out);

#endif

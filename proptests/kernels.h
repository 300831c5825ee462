/* kernels.h - the kernels of kernels/registry.h as implementations, on both machines. */
#ifndef ATTEST_PROPTESTS_KERNELS_H
#define ATTEST_PROPTESTS_KERNELS_H

#include <stdint.h>
#include <stdio.h>

#include "kernels/registry.h"
#include "proptests/properties.h"

/* Launchers; in place of one that is NULL, the library's public call. */
struct kernel_implementation {
    struct implementation implementation; /* first: its functions find the rest by it */
    forward_launcher *forward;
    merge_launcher *merge;
    merge_backward_launcher *merge_backward; /* NULL to begin with */
};

/* On the simulated GPU: each run with a seed and a policy of its own, made of the case. */
struct kernel_implementation kernels_on_sim(const char *name, forward_launcher *forward, merge_launcher *merge);
/* On the chip: each run on copies of the case's memory, guarded on both sides. */
struct kernel_implementation kernels_on_cuda(const char *name, forward_launcher *forward, merge_launcher *merge);

/* `property` as it is asked of kernels: without the features that none takes, with cases of at most `work`. False:
 * nothing would be left of it. */
bool kernels_property(const struct property *property, int64_t work, struct property *out);

/* Checks that no random case makes, of implementations in host memory: strides of 2^31 elements and more, infinite
 * scores and sinks, the diagonal of seqused, merges of one state. */
int kernels_corners(const struct implementation *self, struct prop_context *context);

struct kernel_run {
    const struct implementation *self;
    int64_t cases;      /* over all properties, by weight; discarded ones do not count */
    int64_t first_case;
    uint64_t seed;
    int64_t work;       /* most scores x head_dim of a case */
};

enum { KERNELS_MAX_PROPERTIES = 64 };

/* What runs came to; zero to begin with. */
struct kernel_tally {
    int64_t asked[KERNELS_MAX_PROPERTIES], ran[KERNELS_MAX_PROPERTIES]; /* cases, by place in `properties` */
    int64_t failures;
    double use_o, use_lse; /* largest shares of bounds */
};

/* Asks every property, adds to the tally, prints every failure with the line that replays it. */
void kernels_run(const struct kernel_run *run, struct kernel_tally *tally, FILE *out);
void kernels_add(struct kernel_tally *to, const struct kernel_tally *from);

/* Prints for each property how many cases ran. Returns whether none failed and every property had its cases. */
bool kernels_report(const struct kernel_tally *tally, const struct implementation *self, FILE *out);

/* Replays a line of kernels_run, drawn with the same `work`. Returns whether it is one and passes. */
bool kernels_replay(const char *line, const struct implementation *self, int64_t work, FILE *out);

#endif

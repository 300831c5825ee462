/* campaign.h - many cases of all properties on all honest implementations, and what they covered. */
#ifndef ATTEST_PROPTESTS_ENGINE_CAMPAIGN_H
#define ATTEST_PROPTESTS_ENGINE_CAMPAIGN_H

#include <stdio.h>

#include "proptests/properties/properties.h"

enum { CAMPAIGN_LEAST_PAIRS = 20, CAMPAIGN_LEAST_WORK_BITS = 16 };

struct campaign {
    bool backward;
    int64_t cases;       /* over all properties and implementations, by weight */
    int64_t first_case;  /* of each of them: other halves of a run begin elsewhere */
    uint64_t seed;
    const char *property, *implementation; /* only these; NULL: all */
};

struct campaign_result {
    int64_t cases, discarded, failures, runs;
    int64_t work_bits[64];
    int64_t feature_pairs[NUM_FEATURES][NUM_FEATURES];
    double use[REF_NUM_TENSORS];
    int64_t tensors, overflows;
};

/* Adds to the result; prints every failure with its fields and replay line. Returns whether all passed. */
bool campaign_run(const struct campaign *campaign, struct campaign_result *result, FILE *out);

/* Prints what was covered. Returns whether it was enough: no empty run, every pair of features that may meet at least
 * CAMPAIGN_LEAST_PAIRS times, the median case of at least 2^CAMPAIGN_LEAST_WORK_BITS scores x head_dim. */
bool campaign_report(const struct campaign *campaign, const struct campaign_result *result, FILE *out);

/* oracle, library and the emulations, by index or by name; NULL: there is none. */
const struct implementation *campaign_implementation(int index);
const struct implementation *campaign_implementation_named(const char *name);

/* Replays one line. Returns whether it is well-formed and passes. */
bool campaign_replay(const char *line, FILE *out);
/* Replays the lines of a file that are of this pass; empty lines and those that begin with # say nothing.
 * Returns how many failed, -1 where there is no such file. */
int campaign_corpus(const char *path, bool backward, int *replayed, FILE *out);

#endif

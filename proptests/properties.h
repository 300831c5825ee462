/* properties.h - what must be true of every attention, as one table.
 *
 * The honest emulations and the oracle pass every row of the table, every mutant fails one; tests, soak and
 * the kill table walk the same rows. */
#ifndef ATTEST_PROPTESTS_PROPERTIES_H
#define ATTEST_PROPTESTS_PROPERTIES_H

#include "proptests/case.h"
#include "proptests/check.h"
#include "proptests/emulate.h"

/* Failure classes: a shrink keeps the class. */
enum failure {
    FAILS_STATUS = 1, /* the call was refused */
    FAILS_MEMORY,     /* an input changed, or a byte was written that is no output's */
    FAILS_ORACLE,     /* the oracle or a bound is not a number */
    FAILS_O, FAILS_LSE, FAILS_DQ, FAILS_DK, FAILS_DV, FAILS_DBIAS, FAILS_DSINK, /* a value, in tensor order */
    FAILS_LAW,        /* of the merge, of dropout, of the case's own making */
};

/* Where a check says what it saw. */
struct prop_context {
    char message[512];
    int64_t vacuous, overflows; /* elements or tensors seen so */
};

struct property {
    const char *name;     /* as in replay lines */
    const char *sentence;
    bool backward;
    struct case_request request;
    /* TRIAL_PASSES, TRIAL_DISCARDED or enum failure. The case is laid out; the check may lay out copies. */
    int (*check)(struct prop_case *c, const struct implementation *self, struct prop_context *context);
    int weight; /* share of the cases of a run */
};

/* Ends with name == NULL. */
extern const struct property properties[];
const struct property *property_named(const char *name);

/* The oracle as an implementation: recipe NULL, results compared before they are rounded. */
extern const struct implementation oracle_implementation;

struct check_result {
    int64_t cases, discarded;
    int failure;           /* enum failure; 0: none failed */
    int64_t failing_case;  /* 1 for the first */
    int64_t shrink_runs;
    int64_t batch, seqlen_q, seqlen_k, head_dim; /* of the shrunk case */
    char message[512];     /* what is wrong with the shrunk case */
    char line[CHECK_MAX_LINE]; /* replays it */
    int64_t work_median;
    uint64_t feature_pairs[NUM_FEATURES][NUM_FEATURES]; /* cases with both; the diagonal counts one feature */
};

/* `cases` cases of one property on one implementation; stops at the first that fails and shrinks it. Returns
 * whether all passed. An empty run does not pass. */
bool check_run(const struct property *property, const struct implementation *self, uint64_t seed, int64_t cases,
               struct check_result *result);

/* One case again; prints its fields and what is wrong to `out`. Returns whether it passed. */
bool check_replay(const struct replay_line *line, const struct implementation *self, FILE *out);

#endif

/* properties.h - what must be true of every attention, as one table.
 *
 * The honest emulations and the oracle pass every row of the table, every mutant fails one; tests, soak and
 * the kill table walk the same rows. */
#ifndef ATTEST_PROPTESTS_PROPERTIES_PROPERTIES_H
#define ATTEST_PROPTESTS_PROPERTIES_PROPERTIES_H

#include "proptests/cases/case.h"
#include "proptests/engine/check.h"
#include "proptests/emulations/emulate.h"
#include "reference/bounds.h"

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
    char message[512];            /* what is wrong */
    double use[REF_NUM_TENSORS];  /* largest share of a bound */
    int64_t tensors, overflows;   /* judged; with an element outside of the recipe's domain */
    int64_t judged[REF_NUM_TENSORS], proven[REF_NUM_TENSORS]; /* tensors that are not all zero; proven: PASS */
    int64_t refused;              /* runs answered UNSUPPORTED by an implementation that may */
};

struct property {
    const char *name;     /* as in replay lines */
    const char *sentence;
    /* TRIAL_PASSES, TRIAL_DISCARDED or enum failure. The case is laid out; the check may lay out copies. */
    int (*check)(struct prop_case *c, const struct implementation *self, struct prop_context *context);
    struct case_request request; /* .backward: a property of gradients */
    bool of_recipes;      /* nothing to ask of the oracle, which has no recipe */
    int weight;           /* share of the cases of a run */
};

/* Ends with name == NULL. */
extern const struct property properties[];
const struct property *property_named(const char *name); /* NULL if there is none */

/* The oracle as an implementation: results compared before they are rounded. And the library's
 * reference device, through its public calls. */
extern const struct implementation oracle_implementation, library_implementation;

struct check_result {
    int64_t cases, discarded;
    int failure;           /* enum failure; 0: none failed */
    int64_t failing_case;  /* 1 for the first */
    int64_t shrink_runs;
    int64_t batch, seqlen_q, seqlen_k, head_dim; /* of the shrunk case */
    char message[512];     /* what is wrong with the shrunk case */
    char line[CHECK_MAX_LINE]; /* replays it */
    struct prop_context seen;
    int64_t work_bits[64]; /* cases of 2^n .. 2^(n+1) - 1 scores x head_dim; [0] has those without any */
    int64_t feature_pairs[NUM_FEATURES][NUM_FEATURES]; /* cases with both, [a][b] with a <= b */
};

/* Cases first_case .. first_case + cases - 1 of a seed, for one property and one implementation. Stops at the first
 * that fails and shrinks it. Returns whether all passed. An empty run, or one of discards alone, does not pass. */
bool check_run(const struct property *property, const struct implementation *self, uint64_t seed, int64_t first_case,
               int64_t cases, struct check_result *result);

/* One case again; prints its fields and what is wrong to `out`. Returns the property's verdict. */
int check_replay(const struct property *property, const struct implementation *self, const struct sequence *choices,
                 FILE *out);

#endif

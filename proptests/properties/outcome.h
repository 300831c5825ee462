/* outcome.h - what an implementation made of a case, in canonical doubles beside its bounds, and how two
 * such results are compared.
 *
 * Two results that the contract makes equal may differ by the sum of their bounds and no more: no
 * allowance here is anybody's choice. */
#ifndef ATTEST_PROPTESTS_PROPERTIES_OUTCOME_H
#define ATTEST_PROPTESTS_PROPERTIES_OUTCOME_H

#include "proptests/properties/properties.h"
#include "reference/formats.h"

struct outcome {
    struct prop_case *c;
    double *value[REF_NUM_TENSORS]; /* NULL where the case has none */
    double *bound[REF_NUM_TENSORS];
    struct computed forward, backward; /* of the passes that were run; zero of the oracle */
};

enum { BITS_ONLY = 0, WITH_BOUNDS = 1 };

/* Runs forward and, where the case wants it, backward on its own results. TRIAL_PASSES, or FAILS_STATUS,
 * FAILS_MEMORY or FAILS_ORACLE. Everything lives as long as the case. */
int outcome_run(struct outcome *out, struct prop_case *c, const struct implementation *self, int bounds,
                struct prop_context *context);

/* Elements of a tensor: [0] rows or batch, heads, ... */
void outcome_extents(const struct prop_case *c, enum ref_tensor t, int64_t extents[4]);

/* Element of b that element `index` of a's tensor must equal, -1 for none. */
typedef int64_t element_map(const void *how, enum ref_tensor t, int64_t index);

/* Every tensor that both have, element by element; map NULL: the same place. With bounds, up to the sum of
 * both; without, bit by bit. */
int outcome_equal(const struct outcome *a, const struct outcome *b, element_map *map, const void *how, int bounds,
                  struct prop_context *context);

/* Whether two numbers agree up to `allowed`; `format` is what they were rounded to, NULL for doubles. An infinite
 * allowance is outside of a recipe's domain, where anything goes; overflow of the format is agreed with from nearby. */
bool numbers_agree(const struct ref_format *format, double a, double b, double allowed);
/* More than the rounding of a double sum of results. */
double rounding_of(double sum);
/* What one of several results that are summed may be off by: anything where it has overflown. */
double sum_allowance(double value, double bound);
const struct ref_format *outcome_format(const struct outcome *o, enum ref_tensor t);

/* Records a failure. Returns its class. */
int fails(struct prop_context *context, int failure, const char *format, ...) __attribute__((format(printf, 3, 4)));
int fails_at(struct prop_context *context, enum ref_tensor t, int64_t index, double a, double b, double allowed);

#endif

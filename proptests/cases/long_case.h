/* long_case.h - one problem of many keys, for what small random ones cannot show. */
#ifndef ATTEST_PROPTESTS_CASES_LONG_CASE_H
#define ATTEST_PROPTESTS_CASES_LONG_CASE_H

#include "proptests/cases/case.h"

/* Dense, of one sequence, forward and backward: `length` queries and keys, head_dim 64, softmax_scale 1/8. */
void long_case(struct prop_case *c, enum family family, uint64_t seed, int32_t dtype, int64_t length, int64_t heads);
/* The same of other rows than keys. */
void long_case_of(struct prop_case *c, enum family family, uint64_t seed, int32_t dtype, int64_t rows, int64_t keys,
                  int64_t heads);

#endif

/* repeats.h - rows that are equal number for number: reference/bounds.md section 9.17. */
#ifndef ATTEST_REFERENCE_REPEATS_H
#define ATTEST_REFERENCE_REPEATS_H

#include <stdbool.h>
#include <stdint.h>

#include "reference/bounds.h"

/* Hash of a row: of its numbers so far, and of one more. */
uint64_t ref_hash(uint64_t so_far, double value);
/* repeats[n]: how many of the `count` hashes are equal to the n-th, itself included. False where there is no memory. */
bool ref_count_repeats(const uint64_t *hashes, int64_t count, double *repeats);
/* Of each row of o, lse, dq, dk or dv, how many have its results and what is expected of their errors: rows that are
 * made of the same numbers. Of o under dropout, which differs from row to row: how many have its q, and so its weights.
 * group: of those of the row's own number there alone; NULL: of all. To be freed. NULL where there is no memory. */
double *ref_repeats_of_rows(const struct attest_problem *p, const struct attest_forward_args *a, enum ref_tensor tensor,
                            const double *want, const double *sigma, const double *group);

#endif

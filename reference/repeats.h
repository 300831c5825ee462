/* repeats.h - rows that are equal number for number: reference/bounds.md section 9.17. */
#ifndef ATTEST_REFERENCE_REPEATS_H
#define ATTEST_REFERENCE_REPEATS_H

#include <stdbool.h>
#include <stdint.h>

#include "reference/bounds.h"

/* Returns the hash of what has been hashed so far and one number more. Numbers that are equal count as equal, zeros of
 * either sign among them. */
uint64_t ref_hash(uint64_t so_far, double value);
/* The same of one hash more, and of `features` elements of a tensor from element `from` on. */
uint64_t ref_hash_hash(uint64_t so_far, uint64_t hash);
uint64_t ref_hash_row(uint64_t so_far, const struct attest_tensor *t, const void *data, int64_t from, int64_t features);
/* repeats[n]: how many of the `count` hashes are equal to the n-th, itself included. False where there is no memory. */
bool ref_count_repeats(const uint64_t *hashes, int64_t count, double *repeats);
/* Counts, for each row of o, lse, dq, dk or dv, the rows that have its results and what is expected of their errors, as
 * rows made of the same numbers do. Dropout differs from row to row, so under it rows of o count that have its q, and
 * so its weights. `group` (NULL: all rows are one) has a number for each row: rows of other numbers do not count. The
 * caller frees what is returned; NULL where there is no memory. */
double *ref_repeats_of_rows(const struct attest_problem *p, const struct attest_forward_args *a, enum ref_tensor tensor,
                            const double *want, const double *sigma, const double *group);

#endif

/* judge_directions.h - tests of errors against the shapes that faults have: reference/bounds.md section 9.14. */
#ifndef ATTEST_REFERENCE_JUDGE_DIRECTIONS_H
#define ATTEST_REFERENCE_JUDGE_DIRECTIONS_H

#include <stdbool.h>

#include "reference/bounds.h"
#include "reference/machine.h"

enum { JUDGE_TIES = 20 }; /* distances from ties that are looked at */

/* Where errors are tested against one shape. All sums weigh each element by the inverse of the square that is expected
 * of its error. */
struct judge_direction {
    double projection, norm;       /* of the errors on the shape; of the shape on itself */
    double bias, shift;            /* of what is systematic, and known */
    double rounding, shifted;      /* of the last rounding: of the oracle's own number, and of what shift makes of it */
    double tied[JUDGE_TIES];       /* of half units that near ties, beyond those that fall there by chance */
    double alike[REF_WAYS];        /* of weights that are alike and round alike, by the ways of doing it */
    double phases[REF_WAYS];       /* of the last rounding of what weights that round alike make of the oracle's number,
                                    * and what they make of it, where judge_direction_end_row is told so */
    double before;                 /* norm, up to the current row */
    double variance, together, own; /* together, own: of the current row */
};

/* One element: how far it is off, what is expected of it, the part of its variance that no other element shares, for
 * several distances half a unit where it is so near a tie, less what that comes to by chance, what roundings that are
 * alike add, if `has_alike`, and the last rounding of what they make of it by each phase, if `has_phases`. */
struct judge_error {
    double error, expected, bias, shift, rounding, shifted, sigma, own, tied[JUDGE_TIES];
    bool has_alike, has_phases;
    double alike[REF_WAYS], phases[REF_WAYS];
};

/* Of a tensor: a quarter for the root mean square, the mean, the shapes of elements and those of keys each. */
#define JUDGE_FALSE_ALARM (REF_FALSE_ALARM / 4)

/* Of the element of that canonical index; phases: of its row, of bound->phases, or NULL. */
struct judge_error judge_error_of(int32_t dtype, double got, double want, const struct ref_bound *bound,
                                  int64_t canonical, const double *phases);
void judge_direction_add(struct judge_direction *d, const struct judge_error *e, double shape);
/* along: variance of the row along the shape but for what elements have alone; +inf where it is not known. repeats: how
 * many rows are equal to it, itself included, and err alike. phases: of the row, where the shape is the result and
 * errors of all rows together say nothing of these few; NULL elsewhere. */
void judge_direction_end_row(struct judge_direction *d, double along, double repeats, const double *phases);
/* Adds what other elements, of other rows, sum up to. */
void judge_direction_join(struct judge_direction *to, const struct judge_direction *from);
/* How much of a sum of errors a shift explains: they lie from 0 to it, so nothing of what has the other sign. */
double judge_shift_toward(double error, double shift);
/* Of REF_WAYS sums the largest size. */
double judge_most_alike(const double *alike);
/* What the last roundings cost at most: of the oracle's own numbers, or of what is known to have moved these. */
double judge_most_rounded(double rounding, double shifted, const double *phases);
/* Of JUDGE_TIES sums the largest, or 0. */
double judge_most_tied(const double *tied);
/* The error along the shape, over the most that honest roundings make of it but for a probability of `false_alarm`. */
double judge_direction_ratio(const struct judge_direction *d, double false_alarm);

#endif

/* bounds_noise.h - what independent roundings give: reference/bounds.md section 9. */
#ifndef ATTEST_REFERENCE_BOUNDS_NOISE_H
#define ATTEST_REFERENCE_BOUNDS_NOISE_H

#include "reference/bounds_rows.h"

enum { BOUND_STEP = 64 }; /* terms between which partial sums are looked at */

/* Beside the value of sums, what they amount to on the way: weighted means over their steps of the partial sum and of
 * its square; and the sum of the squares of their terms. */
struct bound_path {
    double *first, *second, *square;
};
bool bound_take_path(struct bound_pool *pool, int64_t count, struct bound_path *path);

/* C = A B of a block, as bound_product, and its path. `live` [rows][ld] counts terms: it weighs the steps. `squares`
 * has A's squares. */
void bound_walk(int64_t rows, int64_t n, int64_t k, const double *a, const double *squares, const double *live,
                int64_t ld, const struct bound_panels *panels, double *c, const struct bound_path *path);

/* Root mean square of the partial sums of such a sum of `terms`, its terms in order or in the reverse order; at most
 * the sum of their sizes. */
double bound_reach(const struct bound_path *path, int64_t at, double value, double absolute, double terms);

/* The same of a sum whose terms are in an order independent of their values, and of which no path is known. */
double bound_reach_of_any(double value, double absolute, double square);

/* Bias of a sum, of that reach, under roundings of `sum`. */
double bound_bias_of_sum(const struct ref_sum *sum, double reach, double value, double absolute);

/* Of that what one chain makes beyond the steps of a tensor core, as it falls in the order of the path and in the
 * reverse order, times `factor`; beside: what is left of all of `bias`. */
struct bound_drift {
    double along[2], optional, beside; /* optional: a rounding that a kernel may have or not */
};
struct bound_drift bound_drift_of(const struct ref_sum *sum, const struct bound_path *path, int64_t at, double value,
                                  double absolute, double reach, double factor, double bias);
/* The larger of it and what is there, where the arrays are. */
struct ref_bound;
void bound_put_drift(const struct ref_bound *to, int64_t index, struct bound_drift drift);

/* How much an error counts along a result of that value, sigma and bias: struct ref_bound, along. */
static inline double bound_weight_along(double value, double sigma, double bias)
{
    const double expected = sigma * sigma + bias * bias;
    return expected > 0.0 ? value / expected : 0.0;
}

/* Variance of rounding y, of whose binade nothing is known. */
double bound_variance_of_rounding(const struct ref_rounding *r, double y);

#endif

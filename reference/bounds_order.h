/* bounds_order.h - sums whose terms come in an order of which something is known: reference/bounds.md section 3.4. */
#ifndef ATTEST_REFERENCE_BOUNDS_ORDER_H
#define ATTEST_REFERENCE_BOUNDS_ORDER_H

#include "reference/bounds_rows.h"

/* Of a row's sums over the keys, by feature: the most that one may be on its way. */
struct bound_order {
    double *run;   /* of neighbouring keys */
    double *tiles; /* of tiles of BOUND_TILE keys in any order, keys in order in them */
    double *room;
};
enum { BOUND_TILE = 64 };
bool bound_take_order(struct bound_pool *pool, int64_t features, struct bound_order *order);

/* rows [count][features] times weights [count]. */
void bound_find_order(int64_t count, int64_t features, const double *weights, const double *rows,
                      const struct bound_order *order);

/* What the sum of dq's feature c may be off by: terms of `size` in all that are off by `error` in all, among them. */
double bound_ordered_sum(const struct ref_machine *m, const struct bound_order *order, int64_t c, int64_t terms,
                         int64_t span, double size, double error);

/* The same of a plain sum in fp32 of [count] terms of `size` in all that are off by `error` in all: one chain, or
 * lanes. */
double bound_sum_of_lanes(const struct ref_machine *m, int64_t count, const double *terms, double live, double size,
                          double error);

#endif

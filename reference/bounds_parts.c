/* bounds_parts.c - what a merge of inexact states inherits from them: reference/bounds.md section 11.5. */
#include <math.h>

#include "reference/bounds.h"
#include "reference/oracle.h"

/* One row: o and lse are what ref_merge gives; o is replaced by its bound, lse's is returned. */
static double inherit(int64_t num_states, int64_t row, int64_t head_dim_v, const double *const *o_states,
                      const double *const *lse_states, const double *const *o_bounds, const double *const *lse_bounds,
                      double lse, double *o)
{
    double spread = 0, largest = 0;
    if (!isfinite(lse)) {
        const double bound = lse == -INFINITY ? 0 : INFINITY;
        for (int64_t x = 0; x < head_dim_v; ++x) o[x] = bound;
        return bound;
    }
    for (int64_t a = 0; a < num_states; ++a) {
        if (lse_states[a][row] == -INFINITY) continue; /* exactly nothing */
        spread += exp(lse_states[a][row] - lse) * expm1(lse_bounds[a][row]);
        largest = fmax(largest, lse_bounds[a][row]);
    }
    const double factor = exp(spread);
    for (int64_t x = 0; x < head_dim_v; ++x) {
        double error = 0;
        for (int64_t a = 0; a < num_states; ++a) {
            if (lse_states[a][row] == -INFINITY) continue;
            const double weight = factor * exp(lse_states[a][row] - lse), off = weight * expm1(lse_bounds[a][row]);
            const int64_t at = row * head_dim_v + x;
            error += off * fabs(o_states[a][at] - o[x]) + (weight + off) * o_bounds[a][at];
        }
        o[x] = error < INFINITY ? error * (1 + 0x1p-20) : INFINITY; /* NaN included */
    }
    const double bound = fmin(spread, largest) * (1 + 0x1p-20);
    return bound < INFINITY ? bound : INFINITY;
}

void ref_bound_parts(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
                     const double *const *lse_states, const double *const *o_bounds, const double *const *lse_bounds,
                     double *o, double *lse)
{
    ref_merge(num_states, rows, head_dim_v, o_states, lse_states, o, lse);
    for (int64_t row = 0; row < rows; ++row)
        lse[row] = inherit(num_states, row, head_dim_v, o_states, lse_states, o_bounds, lse_bounds, lse[row],
                           o + row * head_dim_v);
}

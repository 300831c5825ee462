/* merge.c - states (o, lse) of disjoint key sets merged into that of their union, and its derivative. */
#include <math.h>
#include <stddef.h>

#include "reference/oracle.h"

/* ln(sum_a exp(lse_a)) of one row. Where the largest is not finite, the sum as written gives itself. */
static double merged_lse(int64_t num_states, const double *const *lse_states, int64_t row)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t a = 0; a < num_states; ++a)
        if (lse_states[a][row] > max || isnan(lse_states[a][row])) max = lse_states[a][row];
    if (!isfinite(max)) return max;
    for (int64_t a = 0; a < num_states; ++a) sum += exp(lse_states[a][row] - max);
    return max + log(sum);
}

void ref_merge(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
               const double *const *lse_states, double *o, double *lse)
{
    for (int64_t row = 0; row < rows; ++row, o += head_dim_v) {
        lse[row] = merged_lse(num_states, lse_states, row);
        bool first = true; /* the first product is not added to zero: a lone state is copied, signs of zeros too */
        for (int64_t x = 0; x < head_dim_v; ++x) o[x] = 0.0;
        for (int64_t a = 0; a < num_states; ++a) {
            if (lse_states[a][row] == -INFINITY) continue; /* empty: its o is not read */
            const double weight = exp(lse_states[a][row] - lse[row]);
            for (int64_t x = 0; x < head_dim_v; ++x) {
                const double product = weight * o_states[a][row * head_dim_v + x];
                o[x] = first ? product : o[x] + product;
            }
            first = false;
        }
    }
}

void ref_merge_backward(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
                        const double *const *lse_states, const double *o, const double *lse, const double *dout,
                        const double *dlse, double *const *do_states, double *const *dlse_states)
{
    for (int64_t a = 0; a < num_states; ++a) {
        for (int64_t row = 0; row < rows; ++row) {
            const bool empty = lse_states[a][row] == -INFINITY; /* nothing else is looked at */
            const double weight = empty ? 0.0 : exp(lse_states[a][row] - lse[row]);
            double spread = empty || dlse == NULL ? 0.0 : dlse[row];
            for (int64_t x = row * head_dim_v; x < (row + 1) * head_dim_v; ++x) {
                if (!empty) spread += dout[x] * (o_states[a][x] - o[x]);
                do_states[a][x] = empty ? 0.0 : weight * dout[x];
            }
            dlse_states[a][row] = empty ? 0.0 : weight * spread;
        }
    }
}

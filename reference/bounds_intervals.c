/* bounds_intervals.c - weights that are divided by their own sum: reference/bounds.md section 5.4. */
#include <math.h>

#include "reference/bounds_rows.h"

/* Of numbers e^q: the largest, at `at`, and the sum of the others, in units of it. */
struct log_sum {
    double largest, others;
    int64_t at;
};

static struct log_sum sum_of(int64_t count, const double *q)
{
    struct log_sum sum = {.largest = -INFINITY};
    for (int64_t j = 0; j < count; ++j)
        if (q[j] > sum.largest) sum.largest = q[j], sum.at = j;
    for (int64_t j = 0; j < count; ++j)
        if (j != sum.at && q[j] > -INFINITY) sum.others += exp(q[j] - sum.largest);
    return sum;
}

/* ln of e^own + what the sum is without its number j: nothing cancels, as the largest is not subtracted. */
static double log_with(const struct log_sum *sum, int64_t j, double q, double own)
{
    const double rest = j == sum->at ? sum->others : fmax(1.0, 1.0 + sum->others - exp(q - sum->largest));
    const double log_rest = rest > 0.0 ? sum->largest + log(rest) : -INFINITY;
    const double larger = fmax(own, log_rest), smaller = fmin(own, log_rest);
    return larger + log1p(exp(smaller - larger));
}

/* The least weights of the others for each one's most, or their most for its least; side: 1 or -1. */
static double one_side(int64_t count, const double *log_p, const double *error, double side, double *scratch,
                       double *to)
{
    for (int64_t j = 0; j < count; ++j) scratch[j] = log_p[j] == -INFINITY ? -INFINITY : log_p[j] - side * error[j];
    const struct log_sum sum = sum_of(count, scratch);
    for (int64_t j = 0; j < count; ++j) {
        const double own = log_p[j] + side * error[j];
        to[j] = log_p[j] == -INFINITY ? 0.0 : exp(own - log_with(&sum, j, scratch[j], own));
        /* What is lost here: of the sum, the exponential, the logarithms. */
        const double lost = 0x1p-50 * ((double)count + 16 + fabs(own));
        to[j] = fmin(1.0, to[j] * fmax(0.0, 1 + side * lost));
    }
    return sum.largest + log1p(sum.others);
}

double bound_intervals(int64_t count, const double *log_p, const double *error, double *scratch, double *least,
                       double *most)
{
    const double smallest = one_side(count, log_p, error, 1.0, scratch, most);
    const double largest = one_side(count, log_p, error, -1.0, scratch, least);
    return fmax(largest, -smallest) + 0x1p-50 * ((double)count + 16);
}

void bound_log_weights(const struct bound_head *head, const struct bound_block *block, int64_t i,
                       const struct bound_row_state *s)
{
    const int64_t n = head->num_keys;
    double *const to = block->line[0];
    for (int64_t c = 0; c < n; ++c) to[c] = (block->x[i * head->ld + c] - s->top) - s->log_sum;
    to[n] = (s->sink - s->top) - s->log_sum;
}

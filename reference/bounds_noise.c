/* bounds_noise.c - see bounds_noise.h. */
#include "reference/bounds_noise.h"

#include <math.h>
#include <string.h>

#include "reference/bounds.h"
#include "reference/formats.h"

/* Mean of (half a unit / (u y))^2 over a significand of which the logarithm is uniform: 3 / (8 ln 2). */
#define LOG_UNIFORM 0.5410106403333613
/* Mean of a unit in the last place / 2 u y over the same: 1 / (2 ln 2). */
#define LOG_UNIFORM_UNIT 0.7213475204444817

bool bound_take_path(struct bound_pool *pool, int64_t count, struct bound_path *path)
{
    path->first = bound_take(pool, count);
    path->second = bound_take(pool, count);
    path->square = bound_take(pool, count);
    return !pool->failed;
}

static double sum_of(int64_t n, const double *x)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) sum += x[i];
    return sum;
}

/* Adds to the path a step from the sums `c` had to those that it has, by trapezoids. */
static void add_step(int64_t n, double share, const double *before, const double *c, const struct bound_path *path,
                     int64_t at)
{
    for (int64_t x = 0; x < n; ++x) {
        path->first[at + x] += share * 0.5 * (before[x] + c[x]);
        path->second[at + x] += share * 0.5 * (before[x] * before[x] + c[x] * c[x]);
    }
}

void bound_walk(int64_t rows, int64_t n, int64_t k, const double *a, const double *squares, const double *live,
                int64_t ld, const struct bound_panels *panels, double *c, const struct bound_path *path)
{
    double terms[BOUND_BLOCK], *const before = path->square; /* until the end */
    for (int64_t i = 0; i < rows; ++i) terms[i] = fmax(1.0, sum_of(k, live + i * ld));
    memset(c, 0, (size_t)(rows * n) * sizeof *c);
    memset(path->first, 0, (size_t)(rows * n) * sizeof *c);
    memset(path->second, 0, (size_t)(rows * n) * sizeof *c);
    for (int64_t l = 0; l < k; l += BOUND_STEP) {
        const int64_t count = k - l < BOUND_STEP ? k - l : BOUND_STEP;
        memcpy(before, c, (size_t)(rows * n) * sizeof *c);
        bound_product(rows, n, count, a + l, ld, 1, panels->plain + l * REF_PANEL, panels->k_packed, true, c, n);
        for (int64_t i = 0; i < rows; ++i)
            add_step(n, sum_of(count, live + i * ld + l) / terms[i], before + i * n, c + i * n, path, i * n);
    }
    bound_product(rows, n, k, squares, ld, 1, panels->square, panels->k_packed, false, path->square, n);
}

double bound_reach(const struct bound_path *path, int64_t at, double value, double absolute, double terms)
{
    const double reverse = value * value - 2 * value * path->first[at] + path->second[at];
    const double within = path->square[at] * fmin(1.0, BOUND_STEP / fmax(terms, 1.0));
    return fmin(absolute, sqrt(fmax(path->second[at], reverse)) + 2 * sqrt(within));
}

double bound_reach_of_any(double value, double absolute, double square)
{
    return fmin(absolute, sqrt(value * value / 2 + square));
}

double bound_bias_of_sum(const struct ref_sum *sum, double reach, double value, double absolute)
{
    return LOG_UNIFORM_UNIT * reach *
           (sum->bias + (absolute > 0.0 ? sum->aligned * fmin(1.0, fabs(value) / absolute) : 0.0));
}

struct bound_drift bound_drift_of(const struct ref_sum *sum, const struct bound_path *path, int64_t at, double value,
                                  double absolute, double reach, double factor, double bias)
{
    const double chain = LOG_UNIFORM_UNIT * factor * (sum->bias - sum->steps), mean = path->first[at];
    const double share = absolute > 0.0 ? fmin(1.0, fabs(value) / absolute) : 0.0;
    const double aligned = LOG_UNIFORM_UNIT * fabs(factor) * (sum->steps_aligned - sum->aligned) * share;
    return (struct bound_drift){{-chain * mean, -chain * (value - mean)},
                                0.0, fmin(bias, fmax(0.0, bias - reach * (fabs(chain) - aligned)))};
}

void bound_put_drift(const struct ref_bound *to, int64_t index, struct bound_drift drift)
{
    if (!to->beside) return;
    to->beside[index] = fmax(to->beside[index], drift.beside);
    if (fabs(drift.optional) > fabs(to->optional[index])) to->optional[index] = drift.optional;
    for (int d = 0; d < 2; ++d)
        if (fabs(drift.along[d]) > fabs(to->drift[d][index])) to->drift[d][index] = drift.along[d];
}

double bound_variance_of_rounding(const struct ref_rounding *r, double y)
{
    const double most = r->relative * y;
    if (r->dtype == ATTEST_ABSENT) return 0.0;
    if (r->parts > 1 || r->scale != 1.0) return (most + r->tiny) * (most + r->tiny) / 3;
    const double known = fmin(ref_half_ulp(r->dtype, fmin(y, r->overflow)), most);
    const double half = fmax(fmax(known, sqrt(LOG_UNIFORM) * most), r->tiny);
    return half * half / 3;
}

/* judge_directions.c - see judge_directions.h. */
#include "reference/judge_directions.h"

#include <math.h>

#include "reference/formats.h"

/* In units of half a unit of the format: 2^-8 .. 2^-4, then sixteenths. */
static double distance(int n) { return n < 4 ? ldexp(1.0, n - 8) : (double)(n - 3) / 16; }

/* Results that are alike may all be as near ties of their format, where one error before the rounding moves all by a
 * unit: half of one where that may be, less what it is on average where values are unrelated to the format's. */
static void find_ties(int32_t dtype, double want, double half, double noise, double tied[JUDGE_TIES])
{
    const double off = half - fabs(ref_round(dtype, want) - want); /* from a tie */
    for (int n = 0; n < JUDGE_TIES; ++n) {
        const double near = fmin(distance(n) * half, noise);
        tied[n] = (off <= near ? half : 0.0) - near;
    }
}

double judge_most_tied(const double *tied)
{
    double most = 0.0;
    for (int n = 0; n < JUDGE_TIES; ++n) most = fmax(most, tied[n]);
    return most;
}

struct judge_error judge_error_of(int32_t dtype, double got, double want, double sigma, double bias, double shift)
{
    const double variance = sigma * sigma, systematic = fabs(bias) + fabs(shift), half = ref_half_ulp(dtype, want);
    const bool rounds = variance > 0.0 && fabs(want) < ref_format(dtype)->overflow;
    const double own = rounds ? fmin(half * half / 3, variance) : 0.0;
    const double noise = systematic + sqrt(2 * log(2 / JUDGE_FALSE_ALARM) * (variance - own));
    struct judge_error e = {.error = got - want,
                            .expected = variance + systematic * systematic,
                            .bias = fabs(bias),
                            .shift = shift,
                            .rounding = rounds ? ref_round(dtype, want) - want : 0.0,
                            .shifted = rounds ? ref_round(dtype, want + shift) - (want + shift) : 0.0,
                            .sigma = sigma,
                            .own = own};
    if (rounds) find_ties(dtype, want, half, noise, e.tied);
    return e;
}

void judge_direction_add(struct judge_direction *d, const struct judge_error *e, double shape)
{
    const double weight = shape / e->expected;
    if (!isfinite(weight)) return;
    d->projection += weight * e->error;
    d->norm += weight * shape;
    d->bias += fabs(weight) * e->bias;
    d->shift += weight * e->shift;
    d->rounding += weight * e->rounding;
    d->shifted += weight * e->shifted;
    for (int n = 0; n < JUDGE_TIES; ++n) d->tied[n] += fabs(weight) * e->tied[n];
    d->together += fabs(weight) * sqrt(fmax(0.0, e->sigma * e->sigma - e->own));
    d->own += weight * weight * e->own;
}

void judge_direction_end_row(struct judge_direction *d, double along)
{
    d->variance += fmin(d->together * d->together, along) + d->own;
    d->together = d->own = 0.0;
}

double judge_direction_ratio(const struct judge_direction *d, double false_alarm)
{
    if (d->projection == 0.0) return 0.0;
    const double random = sqrt(2 * log(2 / false_alarm) * d->variance);
    const double known = fabs(d->shift) + fmax(fabs(d->rounding), fabs(d->shifted)) + judge_most_tied(d->tied);
    return fabs(d->projection) / (d->bias + known + random);
}

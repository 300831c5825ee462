/* judge_directions.c - see judge_directions.h. */
#include "reference/judge_directions.h"

#include <math.h>

#include "reference/formats.h"

struct judge_error judge_error_of(int32_t dtype, double got, double want, double sigma, double bias, double shift)
{
    const double variance = sigma * sigma, systematic = fabs(bias) + fabs(shift), half = ref_half_ulp(dtype, want);
    const bool rounds = variance > 0.0 && fabs(want) < ref_format(dtype)->overflow;
    return (struct judge_error){.error = got - want,
                                .expected = variance + systematic * systematic,
                                .bias = fabs(bias),
                                .shift = shift,
                                .rounding = rounds ? ref_round(dtype, want) - want : 0.0,
                                .sigma = sigma,
                                .own = rounds ? fmin(half * half / 3, variance) : 0.0};
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
    return fabs(d->projection) / (d->bias + fabs(d->shift) + fabs(d->rounding) + random);
}

/* judge_directions.c - see judge_directions.h. */
#include "reference/judge_directions.h"

#include <math.h>

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

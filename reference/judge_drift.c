/* judge_drift.c - see judge_drift.h. */
#include "reference/judge_drift.h"

#include <math.h>

void judge_drift_add(struct judge_drift *d, double weight, double error, const double shapes[2], double third)
{
    d->errors += weight * error * error;
    for (int i = 0; i < 2; ++i) {
        d->with[i] += weight * error * shapes[i];
        d->shapes[i] += weight * shapes[i] * shapes[i];
        d->third_with[1 + i] += weight * third * shapes[i];
    }
    d->both += weight * shapes[0] * shapes[1];
    d->third += weight * third * third;
    d->third_with[0] += weight * third * error;
}

/* Of errors and shapes less their parts along the third. */
static struct judge_drift without_third(const struct judge_drift *all)
{
    struct judge_drift d = *all;
    if (!(d.third > 0.0)) return d;
    const double of_errors = d.third_with[0] / d.third;
    d.errors -= of_errors * d.third_with[0];
    for (int i = 0; i < 2; ++i) {
        d.with[i] -= of_errors * d.third_with[1 + i];
        d.shapes[i] = fmax(0.0, d.shapes[i] - d.third_with[1 + i] * d.third_with[1 + i] / d.third);
    }
    d.both -= d.third_with[1] * d.third_with[2] / d.third;
    return d;
}

static double left(const struct judge_drift *d, double a, double b)
{
    return d->errors - 2 * (a * d->with[0] + b * d->with[1]) + a * a * d->shapes[0] + 2 * a * b * d->both +
           b * b * d->shapes[1];
}

/* y / x within 0 and 1. */
static double share(double y, double x) { return x > 0.0 ? fmin(1.0, fmax(0.0, y / x)) : 0.0; }

double judge_drift_left(const struct judge_drift *all)
{
    const struct judge_drift beside = without_third(all), *const d = &beside;
    /* On the edges a, b and a + b = 1 of the triangle, and inside of it. */
    const double a = share(d->with[0], d->shapes[0]), b = share(d->with[1], d->shapes[1]);
    const double edge = d->shapes[0] - 2 * d->both + d->shapes[1];
    const double across = share(d->with[0] - d->with[1] - d->both + d->shapes[1], edge);
    double least = fmin(fmin(left(d, a, 0.0), left(d, 0.0, b)), left(d, across, 1 - across));
    const double determinant = d->shapes[0] * d->shapes[1] - d->both * d->both;
    if (determinant > 1e-12 * d->shapes[0] * d->shapes[1]) {
        const double x = (d->with[0] * d->shapes[1] - d->with[1] * d->both) / determinant;
        const double y = (d->with[1] * d->shapes[0] - d->with[0] * d->both) / determinant;
        if (x >= 0.0 && y >= 0.0 && x + y <= 1.0) least = fmin(least, left(d, x, y));
    }
    return fmax(0.0, least);
}

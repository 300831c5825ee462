/* judge_drift_test.c - least squares of errors beside shapes whose shares are not known. */
#include <math.h>
#include <stdint.h>

#include <criterion/criterion.h>

#include "reference/judge_cases.h"
#include "reference/judge_drift.h"

enum { FEATURES = 12, STEPS = 40 };

static struct row {
    double error[FEATURES], shapes[FEATURES][2], third[FEATURES];
    struct judge_drift drift;
} row;

/* a, b, c: how much of the shapes the errors have beside noise. */
static void draw(struct judge_random *g, double noise, double a, double b, double c)
{
    row.drift = (struct judge_drift){0};
    for (int x = 0; x < FEATURES; ++x) {
        for (int i = 0; i < 2; ++i) row.shapes[x][i] = judge_normal(g);
        row.third[x] = judge_normal(g);
        row.error[x] = noise * judge_normal(g) + a * row.shapes[x][0] + b * row.shapes[x][1] + c * row.third[x];
        judge_drift_add(&row.drift, 1.0, row.error[x], row.shapes[x], row.third[x]);
    }
}

static double left(double a, double b, double c)
{
    double sum = 0.0;
    for (int x = 0; x < FEATURES; ++x) {
        const double e = row.error[x] - a * row.shapes[x][0] - b * row.shapes[x][1] - c * row.third[x];
        sum += e * e;
    }
    return sum;
}

Test(judge_drift, a_share_of_shapes_is_taken_away)
{
    struct judge_random g = {1};
    for (int n = 0; n < 100; ++n) {
        const double a = judge_uniform(&g), b = (1 - a) * judge_uniform(&g), c = 10 * judge_normal(&g);
        draw(&g, 0, a, b, c);
        cr_expect_lt(judge_drift_left(&row.drift), 1e-9);
    }
}

/* What is left is the least on a grid of a and b, c a line's minimum; a and b beyond the triangle are not taken
 * away. */
Test(judge_drift, what_is_left_is_the_least_and_no_less)
{
    struct judge_random g = {2};
    for (int n = 0; n < 200; ++n) {
        double least = INFINITY;
        draw(&g, 0.5, 3 * judge_normal(&g), 3 * judge_normal(&g), judge_normal(&g));
        for (int i = 0; i <= STEPS; ++i)
            for (int j = 0; i + j <= STEPS; ++j) {
                const double a = (double)i / STEPS, b = (double)j / STEPS;
                const double at0 = left(a, b, 0), slope = (left(a, b, 1) - left(a, b, -1)) / 2;
                const double c = -slope / (left(a, b, 1) + left(a, b, -1) - 2 * at0);
                least = fmin(least, left(a, b, c));
            }
        const double got = judge_drift_left(&row.drift);
        cr_expect_leq(got, least * (1 + 1e-9), "%d: %g, %g", n, got, least);
        cr_expect_geq(got, least - 2 * sqrt(least * FEATURES) / STEPS * 2, "%d: %g, %g", n, got, least);
    }
}

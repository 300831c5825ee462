/* bounds_parts_test.c - states as far off as their bounds allow, merged exactly: within what is inherited, near it, and
 * beyond it where the bounds are too small. */
#include <math.h>
#include <stdio.h>

#include <criterion/criterion.h>

#include "reference/bounds.h"
#include "reference/judge_cases.h"
#include "reference/oracle.h"

enum { TRIALS = 20000, MAX_STATES = 8, DIM = 4 };

/* States as computed, and true ones at the edge of their bounds. */
struct trial {
    int64_t count;
    double o[MAX_STATES][DIM], lse[MAX_STATES], o_true[MAX_STATES][DIM], lse_true[MAX_STATES];
    double o_bound[MAX_STATES][DIM], lse_bound[MAX_STATES];
};

static void draw(struct judge_random *g, int kind, struct trial *t)
{
    const double spread = (double[]){0, 1, 10}[kind % 3], size = (double[]){1e-6, 1e-3, 0.3}[kind / 3 % 3];
    const double of_lse = kind / 9 % 2 ? size : 0, of_o = kind / 18 % 2 ? size : 0;
    t->count = judge_range(g, 0, MAX_STATES);
    for (int64_t a = 0; a < t->count; ++a) {
        const double toward = judge_normal(g) < 0 ? -1 : 1;
        t->lse[a] = judge_uniform(g) < 0.1 ? -INFINITY : 100 + spread * judge_normal(g);
        t->lse_bound[a] = of_lse * judge_uniform(g);
        t->lse_true[a] = t->lse[a] + toward * t->lse_bound[a];
        for (int x = 0; x < DIM; ++x) {
            /* x = 0: the value goes with the weight's error, which then counts in full */
            t->o[a][x] = x == 0 ? toward : judge_normal(g);
            t->o_bound[a][x] = of_o * judge_uniform(g);
            t->o_true[a][x] = t->o[a][x] + (x == 0 ? 1 : toward) * t->o_bound[a][x];
        }
    }
}

struct shares {
    double o, lse;
};

static void note(double got, double want, double bound, double *share)
{
    const double error = fmax(0, fabs(got - want) - 1e-13); /* of the merges in double */
    if (got != want && !(error / bound <= *share)) *share = error / bound;
}

/* bounds `shrunk` by that factor */
static struct shares largest(double shrunk)
{
    struct judge_random g = {29};
    struct shares s = {0, 0};
    for (int i = 0; i < TRIALS; ++i) {
        struct trial t;
        double o[2][DIM], lse[2], o_bound[DIM], lse_bound;
        const double *states[6][MAX_STATES];
        draw(&g, i, &t);
        for (int64_t a = 0; a < t.count; ++a) {
            for (int x = 0; x < DIM; ++x) t.o_bound[a][x] *= shrunk;
            t.lse_bound[a] *= shrunk;
            states[0][a] = t.o[a], states[1][a] = &t.lse[a], states[2][a] = t.o_true[a], states[3][a] = &t.lse_true[a];
            states[4][a] = t.o_bound[a], states[5][a] = &t.lse_bound[a];
        }
        ref_merge(t.count, 1, DIM, states[0], states[1], o[0], &lse[0]);
        ref_merge(t.count, 1, DIM, states[2], states[3], o[1], &lse[1]);
        ref_bound_parts(t.count, 1, DIM, states[0], states[1], states[4], states[5], o_bound, &lse_bound);
        for (int x = 0; x < DIM; ++x) note(o[0][x], o[1][x], o_bound[x], &s.o);
        note(lse[0], lse[1], lse_bound, &s.lse);
    }
    return s;
}

Test(bounds_parts, states_at_their_bounds_stay_within)
{
    const struct shares s = largest(1);
    printf("largest share of what a merge inherits: o %.3f, lse %.3f\n", s.o, s.lse);
    fflush(stdout);
    cr_expect(s.o <= 1 && s.o > 0.9);
    cr_expect(s.lse <= 1 && s.lse > 0.9);
}

Test(bounds_parts, states_beyond_them_do_not)
{
    const struct shares s = largest(0.8);
    cr_expect(s.o > 1 && s.lse > 1);
}

Test(bounds_parts, what_is_empty_is_exact_and_what_is_infinite_unknown)
{
    double o[2] = {1, 2}, o_bound[2] = {0.1, 0.1}, merged[2], lse = -INFINITY, lse_bound = 0.1, merged_lse;
    const double *const o_states[] = {o}, *const o_bounds[] = {o_bound};
    const double *const lse_states[] = {&lse}, *const lse_bounds[] = {&lse_bound};
    ref_bound_parts(1, 1, 2, o_states, lse_states, o_bounds, lse_bounds, merged, &merged_lse);
    cr_expect(merged[0] == 0 && merged[1] == 0 && merged_lse == 0);
    lse = INFINITY;
    ref_bound_parts(1, 1, 2, o_states, lse_states, o_bounds, lse_bounds, merged, &merged_lse);
    cr_expect(merged[0] == INFINITY && merged_lse == INFINITY);
    lse = 0, lse_bound = 0;
    ref_bound_parts(1, 1, 2, o_states, lse_states, o_bounds, lse_bounds, merged, &merged_lse);
    cr_expect(merged[0] >= 0.1 && merged[0] < 0.1001 && merged_lse == 0);
}

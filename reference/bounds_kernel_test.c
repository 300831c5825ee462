/* bounds_kernel_test.c - attention in fp32 and base 2 as kernels/long/forward_fp32.cu computes it, with functions as
 * bad as their stated errors allow, stays within the bound of its recipe and comes near it; one that rescales more
 * often, or has worse functions or sums, does not. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/judge_cases.h"

enum { TRIALS = 2000, MAX_KEYS = 520, DIM = 8, DIM_V = 3 };

/* One query row, and how badly the kernel does: shares of what its functions may be off by, 1 and -1 allowed. */
struct trial {
    float q[DIM], k[MAX_KEYS][DIM], v[MAX_KEYS][DIM_V], sink;
    struct attest_problem p;
    struct attest_forward_args a;
    struct attest_recipe recipe;
    double exp_share[2], log_share; /* of weights by the sign of v[0]; rescalings as the latter */
    int tile_k;
    bool bf16_sums;
};

static float exp2_off(const struct trial *t, float x, double share)
{
    return x == 0 ? 1 : (float)(exp2(x) * (1 + share * (t->recipe.exp_error - 0x1p-24)));
}

static float summed(const struct trial *t, float x) { return t->bf16_sums ? (float)ref_round(ATTEST_BF16, x) : x; }

static float score(const struct trial *t, int64_t j)
{
    float dot = 0;
    for (int x = 0; x < DIM; ++x) dot = fmaf(t->q[x], t->k[j][x], dot);
    return dot * (t->p.softmax_scale * 0x1.715476p0f);
}

static void attend(const struct trial *t, float o[DIM_V], float *lse)
{
    float max = t->p.has_sink ? t->sink * 0x1.715476p0f : -INFINITY, sum = t->p.has_sink ? 1 : 0, y[MAX_KEYS];
    memset(o, 0, DIM_V * sizeof *o);
    for (int64_t first = 0; first < t->p.seqlen_k; first += t->tile_k) {
        const int64_t last = first + t->tile_k < t->p.seqlen_k ? first + t->tile_k : t->p.seqlen_k;
        float above = max;
        for (int64_t j = first; j < last; ++j) above = fmaxf(above, y[j] = score(t, j));
        const float rescale = exp2_off(t, max - above, t->exp_share[1]);
        max = above, sum *= rescale;
        for (int x = 0; x < DIM_V; ++x) o[x] *= rescale;
        for (int64_t j = first; j < last; ++j) {
            const float weight = exp2_off(t, y[j] - max, t->exp_share[t->v[j][0] < 0]);
            sum = summed(t, sum + weight);
            for (int x = 0; x < DIM_V; ++x) o[x] = summed(t, fmaf(weight, t->v[j][x], o[x]));
        }
    }
    for (int x = 0; x < DIM_V; ++x) o[x] /= sum;
    const double log2_error = t->log_share * (0x1p-22 - 0x1p-24) * (1 / log(2) + fabs(log2(sum)));
    *lse = (max + (float)(log2(sum) + log2_error)) * 0x1.62e43p-1f;
}

static void describe(struct trial *t)
{
    t->p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    t->p.device = ATTEST_REFERENCE;
    t->p.batch = t->p.seqlen_q = t->p.num_heads_q = t->p.num_heads_kv = 1;
    t->p.head_dim = DIM, t->p.head_dim_v = DIM_V;
    t->p.q = t->p.k = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = DIM, .head = DIM};
    t->p.v = t->p.o = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = DIM_V, .head = DIM_V};
    t->p.lse = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 1, .head = 1};
    t->a = (struct attest_forward_args)ATTEST_FORWARD_ARGS_INIT;
    t->a.q = t->q, t->a.k = t->k, t->a.v = t->v, t->a.sink = &t->sink;
}

/* Scores at random, or rising from key to key, slowly or not, so that every tile has a new maximum. */
static void draw(struct judge_random *g, int kind, struct trial *t)
{
    const double size = (double[]){0.3, 1, 4}[kind % 3], slope = (double[]){0, 1e-4, 0.1}[kind / 3 % 3];
    describe(t);
    t->recipe = *ref_kernel_recipe("forward_fp32");
    t->recipe.exp_error = kind % 2 ? 0x1p-12 : t->recipe.exp_error;
    t->p.seqlen_k = kind % 5 == 0 ? judge_range(g, 1, 20) : judge_range(g, 1, MAX_KEYS);
    t->p.softmax_scale = (float)(kind % 7 == 0 ? -0.3 : 0.05 + judge_uniform(g));
    t->p.has_sink = kind % 11 == 0;
    t->sink = (float)judge_normal(g);
    t->exp_share[0] = kind / 9 % 2 ? 1 : -1, t->exp_share[1] = kind / 18 % 2 ? 1 : -1, t->log_share = t->exp_share[1];
    for (int x = 0; x < DIM; ++x) t->q[x] = x == 0 ? 1 : slope == 0 ? (float)(size * judge_normal(g)) : 0;
    for (int64_t j = 0; j < t->p.seqlen_k; ++j) {
        for (int x = 0; x < DIM; ++x) t->k[j][x] = (float)(size * judge_normal(g));
        if (slope > 0) t->k[j][0] = (float)(slope * (double)j);
        for (int x = 0; x < DIM_V; ++x) t->v[j][x] = (float)(x == 2 ? 1 : judge_normal(g));
    }
}

struct shares {
    double o, lse;
};

static void judge(const struct trial *t, struct shares *s)
{
    float got[DIM_V], got_lse;
    double o[DIM_V], lse, o_bound[DIM_V], lse_bound;
    const struct ref_forward oracle = {o, &lse};
    const struct ref_bound o_bounds = {.bound = o_bound}, lse_bounds = {.bound = &lse_bound};
    cr_assert_eq(ref_forward(&t->p, &t->a, &oracle, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_forward(&t->p, &t->a, &t->recipe, &o_bounds, &lse_bounds, 1), ATTEST_OK);
    attend(t, got, &got_lse);
    for (int x = 0; x < DIM_V; ++x) {
        const double share = fabs(got[x] - o[x]) / o_bound[x];
        if (!(share <= s->o)) s->o = share;
    }
    const double share = fabs(got_lse - lse) / lse_bound;
    if (!(share <= s->lse)) s->lse = share;
}

/* The largest shares, functions `worse` times as bad as stated, tiles of tile_k keys. */
static struct shares largest(double worse, int tile_k, bool bf16_sums)
{
    static struct trial t;
    struct judge_random g = {23};
    struct shares s = {0, 0};
    for (int i = 0; i < TRIALS; ++i) {
        draw(&g, i, &t);
        t.exp_share[0] *= worse, t.exp_share[1] *= worse, t.log_share *= worse;
        t.tile_k = tile_k, t.bf16_sums = bf16_sums;
        judge(&t, &s);
    }
    return s;
}

Test(bounds_kernel, functions_at_their_limits_stay_within)
{
    const struct shares s = largest(1, 64, false);
    printf("largest share of forward_fp32's bound: o %.3f, lse %.3f\n", s.o, s.lse);
    fflush(stdout);
    /* Tiles that start at the first key rescale once less often than the recipe allows: of one or two tiles, half. */
    cr_expect(s.o <= 1 && s.o > 0.4);
    cr_expect(s.lse <= 1 && s.lse > 0.5);
}

Test(bounds_kernel, worse_ones_do_not)
{
    const struct shares functions = largest(3, 64, false), tiles = largest(1, 8, false), sums = largest(1, 64, true);
    cr_expect(functions.o > 1 && functions.lse > 1);
    cr_expect(tiles.lse > 1);
    cr_expect(sums.o > 1 && sums.lse > 1);
}

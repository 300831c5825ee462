/* bounds_order_test.c - sums over keys in the orders that bounds.md section 3.4 names, each as wrong as it may be. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "reference/bounds.h"
#include "reference/bounds_order.h"
#include "reference/judge_cases.h"

enum { KEYS = 8192, TILE = 64 };

/* One row and one feature in fp32, all ds of one sign: dq is a sum of nothing but 1 / KEYS and less. */
static struct fixture {
    struct attest_problem p;
    struct attest_backward_args a;
    float q, dout, dlse, stored_o, stored_lse, k[KEYS], v[KEYS];
    double o, lse, dq, dk[KEYS], dv[KEYS], ds[KEYS], bound, others[2][KEYS];
} f;

static void set_up(void)
{
    const struct attest_tensor one = {.dtype = ATTEST_FP32, .batch = 0, .seqlen = 1, .head = 1};
    struct judge_random g = {7};
    f.p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    f.p.device = ATTEST_REFERENCE;
    f.p.batch = f.p.num_heads_q = f.p.num_heads_kv = f.p.head_dim = f.p.head_dim_v = f.p.seqlen_q = 1;
    f.p.seqlen_k = KEYS, f.p.softmax_scale = 1.0f;
    f.p.q = f.p.k = f.p.v = f.p.dout = f.p.o = f.p.lse = f.p.dq = f.p.dk = f.p.dv = f.p.dlse = one;
    f.q = 0x1p-10f, f.dout = 0x1p-10f, f.dlse = 1.0f;
    for (int j = 0; j < KEYS; ++j) f.k[j] = 1.5f + (float)judge_normal(&g) / 16, f.v[j] = 1;
    f.a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    f.a.forward.q = &f.q, f.a.forward.k = f.k, f.a.forward.v = f.v, f.a.dout = &f.dout, f.a.dlse = &f.dlse;
    const struct ref_forward forward = {&f.o, &f.lse};
    const struct ref_backward backward = {.dq = &f.dq, .dk = f.dk, .dv = f.dv};
    cr_assert_eq(ref_forward(&f.p, &f.a.forward, &forward, 1), ATTEST_OK);
    cr_assert_eq(ref_backward(&f.p, &f.a, NULL, &backward, 1), ATTEST_OK);
    f.stored_o = (float)f.o, f.stored_lse = (float)f.lse; /* what these are off by is known then */
    f.a.forward.o = &f.stored_o, f.a.forward.lse = &f.stored_lse;
    for (int j = 0; j < KEYS; ++j) f.ds[j] = exp((double)f.q * (double)f.k[j] - f.lse);
}

static double bound_of(const char *recipe)
{
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    bounds[REF_DQ].bound = &f.bound, bounds[REF_DK].bound = f.others[0], bounds[REF_DV].bound = f.others[1];
    cr_assert_eq(ref_bound_backward(&f.p, &f.a, ref_recipe(recipe), bounds, 1), ATTEST_OK);
    return f.bound;
}

/* To 24 bits, toward zero. */
static double cut(double x)
{
    float y = (float)x;
    if (fabs((double)y) > fabs(x)) y = nextafterf(y, 0.0f);
    return (double)y;
}

/* An accumulator that goes through memory from tile to tile, as that of PyTorch's memory-efficient kernel does, whose
 * tiles come in any order where keys are split. */
static double chain(uint64_t seed)
{
    int order[KEYS / TILE];
    struct judge_random g = {seed};
    for (int t = 0; t < KEYS / TILE; ++t) order[t] = t;
    for (int t = KEYS / TILE - 1; seed > 0 && t > 0; --t) {
        const int other = (int)(judge_bits(&g) % (uint64_t)(t + 1)), moved = order[t];
        order[t] = order[other], order[other] = moved;
    }
    double sum = 0.0;
    for (int t = 0; t < KEYS / TILE; ++t)
        for (int j = order[t] * TILE; j < (order[t] + 1) * TILE; ++j)
            sum = cut(sum + (double)(float)f.ds[j] * (double)f.k[j]);
    return sum;
}

Test(bounds_order, a_sum_of_dq_that_goes_on_in_memory_is_one_chain)
{
    set_up();
    for (uint64_t seed = 0; seed < 20; ++seed) {
        const double use = fabs(chain(seed) - f.dq) / bound_of("flash");
        cr_expect(use <= 1, "%lu: %g", (unsigned long)seed, use);
        cr_expect_gt(use, 0.1);
    }
}

/* Terms of one size whose signs are those of a walk that any order may climb. */
Test(bounds_order, tiles_in_any_order_reach_the_sum_of_those_of_one_sign)
{
    static double weights[8 * TILE], rows[8 * TILE];
    struct bound_pool pool = {0};
    struct bound_order order;
    cr_assert(bound_take_order(&pool, 1, &order));
    for (int j = 0; j < 8 * TILE; ++j) weights[j] = 1, rows[j] = j / TILE % 2 ? -1 : 1;
    bound_find_order(8 * TILE, 1, weights, rows, &order);
    cr_expect_eq(order.run[0], TILE);
    cr_expect_eq(order.tiles[0], 4 * TILE + 2 * TILE);
    bound_release(&pool);
}

/* Lanes whose sums are far larger than those of neighbours: every fourth term is of the other sign. */
Test(bounds_order, lanes_may_have_larger_sums_than_a_chain)
{
    enum { TERMS = 4096 };
    static double terms[TERMS];
    const struct ref_machine m = {.u = 0x1p-24};
    double lanes[4] = {0}, worst = 0.0;
    for (int j = 0; j < TERMS; ++j) {
        terms[j] = j % 4 ? -1 : 3;
        lanes[j % 4] += terms[j];
        worst += m.u * fabs(lanes[j % 4]); /* each addition errs by a unit */
    }
    const double bound = bound_sum_of_lanes(&m, TERMS, terms, TERMS + 3, 1.5 * TERMS, 0.0);
    cr_expect_geq(bound, worst);
    cr_expect_leq(bound, 10 * worst);
}

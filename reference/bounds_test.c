/* bounds_test.c - the bounds themselves: constants, limits, exact cases, the domain. That honest kernels stay
 * within them is proptests' work. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "reference/bounds.h"
#include "reference/bounds_gradients.h"
#include "reference/formats.h"
#include "reference/machine.h"

static double uniform(uint64_t *state) /* in (-1, 1) */
{
    uint64_t x = *state += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (double)((x ^ (x >> 31)) >> 11) * 0x1p-52 - 1.0;
}

/* --- sums of products: bounds.md section 3 --- */

/* One step of a tensor core: terms and accumulator aligned to the largest exponent, truncated at 2^-bits of it. */
static double tensor_step(double c, const double *products, int n, int bits)
{
    int largest = INT32_MIN, e;
    for (int i = -1; i < n; ++i) {
        const double term = i < 0 ? c : products[i];
        if (term != 0.0 && (frexp(term, &e), e > largest)) largest = e;
    }
    if (largest == INT32_MIN) return 0.0;
    const double quantum = ldexp(1.0, largest - 1 - bits);
    double sum = trunc(c / quantum) * quantum;
    for (int i = 0; i < n; ++i) sum += trunc(products[i] / quantum) * quantum;
    float result = (float)sum;
    if (fabs((double)result) > fabs(sum)) result = nextafterf(result, 0.0f);
    return result;
}

static double tensor_sum(const double *products, int n, int width, int bits)
{
    double c = 0.0;
    for (int i = 0; i < n; i += width) c = tensor_step(c, products + i, n - i < width ? n - i : width, bits);
    return c;
}

/* Largest share of rel * sum |ab| that the unit uses over products of several shapes. */
static double largest_share(int accumulate, int width, int bits)
{
    const struct ref_machine m = {.accumulate = accumulate, .u = 0x1p-24};
    uint64_t state = 1;
    double largest = 0.0;
    for (int trial = 0; trial < 20000; ++trial) {
        double products[128], exact = 0.0, size = 0.0;
        const int n = 1 + trial % 128, shape = trial / 128 % 4;
        for (int i = 0; i < n; ++i) {
            const double r = uniform(&state);
            /* one sign; both signs; far apart; one large term and the rest just below the quantum */
            products[i] = shape == 0   ? fabs(r)
                          : shape == 1 ? r
                          : shape == 2 ? ldexp(r, (int)(20 * uniform(&state)))
                                       : r;
            if (shape == 3) products[i] = i % width == 0 ? 1.0 : 0x1.fffp-1 * ldexp(1.0, -bits) * (i < width);
            products[i] = (float)products[i];
            exact += products[i];
            size += fabs(products[i]);
        }
        const double error = fabs(tensor_sum(products, n, width, bits) - exact);
        largest = fmax(largest, error / (ref_sum_features(&m, n).rel * size));
    }
    return largest;
}

Test(bounds, tensor_core_sums_stay_within_their_factor)
{
    const double hopper = largest_share(ATTEST_ACC_HOPPER, 16, 25), ampere = largest_share(ATTEST_ACC_AMPERE, 8, 24);
    printf("share of the sum's bound: hopper %.3f, ampere %.3f\n", hopper, ampere);
    cr_assert(hopper <= 1 && hopper > 0.4);
    cr_assert(ampere <= 1 && ampere > 0.4);
}

Test(bounds, faithful_covers_every_tensor_core)
{
    cr_assert(largest_share(ATTEST_ACC_FAITHFUL, 16, 25) <= 1);
    cr_assert(largest_share(ATTEST_ACC_FAITHFUL, 8, 24) <= 1);
    const struct ref_machine faithful = {.accumulate = ATTEST_ACC_FAITHFUL, .u = 0x1p-24};
    for (int a = ATTEST_ACC_AMPERE; a <= ATTEST_ACC_HOPPER; ++a) {
        const struct ref_machine m = {.accumulate = a, .u = 0x1p-24};
        for (int64_t n = 1; n < 5000; ++n)
            cr_assert_leq(ref_sum_features(&m, n).rel, ref_sum_features(&faithful, n).rel);
    }
}

Test(bounds, a_unit_with_fewer_bits_is_outside)
{
    cr_assert_gt(largest_share(ATTEST_ACC_HOPPER, 16, 23), 1.0);
    cr_assert_gt(largest_share(ATTEST_ACC_AMPERE, 8, 22), 1.0);
}

/* Of each head a step for each masked row, of one term: as many as there are rows. */
Test(bounds, steps_that_are_not_full_count_head_by_head)
{
    enum { GROUP = 128 };
    const struct ref_machine m = {.accumulate = ATTEST_ACC_HOPPER, .u = 0x1p-24, .parts = 1, .parts_size = 1};
    double c = 1.0, exact = 1.0;
    for (int i = 1; i < GROUP; ++i) {
        const double product = 0x1.fffffep-24;
        c = tensor_step(c, &product, 1, 25), exact += product;
    }
    const double lost = fabs(c - exact), share = lost / (ref_sum_rows(&m, GROUP, 1, GROUP).rel * exact);
    printf("one term a step, of %d heads: share of the bound %.3f\n", GROUP, share);
    cr_expect(share <= 1 && share > 0.5);
    cr_expect_gt(lost, ref_sum_rows(&m, GROUP, GROUP, 1).rel * exact); /* as of one head of so many rows */
}

Test(bounds, growth_is_above_expm1)
{
    for (int i = 0; i <= 1000; ++i) cr_assert_geq(ref_growth(i * 0.001), expm1(i * 0.001));
}

Test(bounds, recipes_are_found_by_name)
{
    int n = 0;
    for (const struct attest_recipe *r = ref_recipes; r->name; ++r, ++n) cr_assert_eq(ref_recipe(r->name), r);
    cr_assert_eq(n, 6);
    cr_assert_null(ref_recipe("none"));
}

/* Of the project and of its kernels; NULL past the last. */
static const struct attest_recipe *recipe_at(int i)
{
    for (const struct attest_recipe *r = ref_recipes; r->name; ++r)
        if (i-- == 0) return r;
    for (const struct attest_recipe *r = ref_kernel_recipes; r->name; ++r)
        if (i-- == 0) return r;
    return NULL;
}
#define FOR_EACH_RECIPE(r) for (int number = 0; (r = recipe_at(number)) != NULL; ++number)

/* --- whole problems --- */

enum { BATCH = 2, LENGTH_Q = 37, LENGTH_K = 45, HEADS = 4, HEADS_KV = 2, DIM = 24, DIM_V = 17 };
enum { ROWS_Q = BATCH * LENGTH_Q * HEADS, ROWS_K = BATCH * LENGTH_K * HEADS_KV, SCORES = HEADS * LENGTH_Q * LENGTH_K };
static const int64_t sizes[REF_NUM_TENSORS] = {ROWS_Q * DIM_V, ROWS_Q, ROWS_Q *DIM, ROWS_K *DIM,
                                               ROWS_K *DIM_V,  SCORES, HEADS};

static struct fixture {
    struct attest_problem p;
    struct attest_backward_args a;
    uint16_t q[ROWS_Q * DIM], k[ROWS_K * DIM], v[ROWS_K * DIM_V], dout[ROWS_Q * DIM_V], o[ROWS_Q * DIM_V];
    float bias[SCORES], slopes[HEADS], sink[HEADS], dlse[ROWS_Q], lse[ROWS_Q];
    double oracle[REF_NUM_TENSORS][ROWS_Q * DIM + SCORES];
    double bound[2][REF_NUM_TENSORS][ROWS_Q * DIM + SCORES];
} * f;

static struct attest_tensor packed(int32_t dtype, int64_t length, int64_t heads, int64_t features)
{
    return (struct attest_tensor){
        .dtype = dtype, .batch = length * heads * features, .seqlen = heads * features, .head = features};
}

static void fill(uint16_t *data, int64_t count, double size, uint64_t seed)
{
    for (int64_t i = 0; i < count; ++i)
        ref_store(f->p.q.dtype, data, i, size * (uniform(&seed) + uniform(&seed) + uniform(&seed)));
}

static void set_up_as(int32_t dtype, double size)
{
    f = f ? f : calloc(1, sizeof *f);
    f->p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    struct attest_problem *p = &f->p;
    p->device = ATTEST_REFERENCE;
    p->batch = BATCH;
    p->seqlen_q = LENGTH_Q;
    p->seqlen_k = LENGTH_K;
    p->num_heads_q = HEADS;
    p->num_heads_kv = HEADS_KV;
    p->head_dim = DIM;
    p->head_dim_v = DIM_V;
    p->softmax_scale = 0.2f;
    p->q = p->dq = packed(dtype, LENGTH_Q, HEADS, DIM);
    p->k = p->dk = packed(dtype, LENGTH_K, HEADS_KV, DIM);
    p->v = p->dv = packed(dtype, LENGTH_K, HEADS_KV, DIM_V);
    p->o = p->dout = packed(dtype, LENGTH_Q, HEADS, DIM_V);
    p->lse = packed(ATTEST_FP32, LENGTH_Q, HEADS, 1);
    fill(f->q, ROWS_Q * DIM, size, 1);
    fill(f->k, ROWS_K * DIM, size, 2);
    fill(f->v, ROWS_K * DIM_V, size, 3);
    fill(f->dout, ROWS_Q * DIM_V, size, 4);
    f->a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    f->a.forward.q = f->q;
    f->a.forward.k = f->k;
    f->a.forward.v = f->v;
    f->a.dout = f->dout;
}

/* Everything at once: softcap, ALiBi, bias, sink, causal, dropout, dlse. */
static void add_features(void)
{
    struct attest_problem *p = &f->p;
    uint64_t seed = 5;
    p->softcap = 3.0f;
    p->has_alibi = p->has_sink = 1;
    p->window_right = 0;
    p->diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    p->dropout_p = 0.25f;
    p->bias = (struct attest_score_tensor){
        .dtype = ATTEST_FP32, .head = LENGTH_Q * LENGTH_K, .seqlen_q = LENGTH_K, .seqlen_k = 1};
    p->dbias = p->bias;
    p->dlse = p->lse;
    for (int i = 0; i < SCORES; ++i) f->bias[i] = (float)uniform(&seed);
    for (int i = 0; i < ROWS_Q; ++i) f->dlse[i] = (float)uniform(&seed);
    for (int h = 0; h < HEADS; ++h) {
        f->slopes[h] = 0.01f * (float)(h + 1);
        f->sink[h] = (float)uniform(&seed);
    }
    f->a.forward.bias = f->bias;
    f->a.forward.alibi_slopes = f->slopes;
    f->a.forward.sink = f->sink;
    f->a.dlse = f->dlse;
}

static void compute_oracle(void)
{
    const struct ref_forward forward = {f->oracle[REF_O], f->oracle[REF_LSE]};
    const struct ref_backward backward = {.dq = f->oracle[REF_DQ],
                                          .dk = f->oracle[REF_DK],
                                          .dv = f->oracle[REF_DV],
                                          .dbias = f->p.dbias.dtype ? f->oracle[REF_DBIAS] : NULL,
                                          .dsink = f->p.has_sink ? f->oracle[REF_DSINK] : NULL};
    cr_assert_eq(ref_forward(&f->p, &f->a.forward, &forward, 1), ATTEST_OK);
    cr_assert_eq(ref_backward(&f->p, &f->a, NULL, &backward, 1), ATTEST_OK);
}

static void compute_bounds(const struct attest_recipe *recipe, int which)
{
    struct ref_bound b[REF_NUM_TENSORS];
    for (int t = 0; t < REF_NUM_TENSORS; ++t) b[t] = (struct ref_bound){.bound = f->bound[which][t]};
    cr_assert_eq(ref_bound_forward(&f->p, &f->a.forward, recipe, &b[REF_O], &b[REF_LSE], 1), ATTEST_OK);
    cr_assert_eq(ref_bound_backward(&f->p, &f->a, recipe, b, 1), ATTEST_OK);
}

static void compute_shares(const struct ref_shares *shares, int which)
{
    struct ref_bound b[REF_NUM_TENSORS];
    for (int t = 0; t < REF_NUM_TENSORS; ++t) b[t] = (struct ref_bound){.bound = f->bound[which][t]};
    cr_assert_eq(ref_bound_forward_shares(&f->p, &f->a.forward, shares, &b[REF_O], &b[REF_LSE], 1), ATTEST_OK);
    cr_assert_eq(ref_bound_backward_shares(&f->p, &f->a, shares, b, 1), ATTEST_OK);
}

static bool is_there(int tensor)
{
    return (tensor != REF_DBIAS || f->p.dbias.dtype) && (tensor != REF_DSINK || f->p.has_sink);
}

/* What two numbers of a format leave of one, and how large the two are. */
Test(bounds, two_parts_leave_half_of_what_two_roundings_may)
{
    uint64_t seed = 17;
    set_up_as(ATTEST_BF16, 1.0);
    for (int dtype = ATTEST_FP16; dtype <= ATTEST_BF16; ++dtype) {
        f->p.q.dtype = f->p.k.dtype = f->p.v.dtype = f->p.o.dtype = f->p.dout.dtype = dtype;
        const struct ref_machine m = ref_machine(&f->p, ref_kernel_recipe("short_backward_sm80"));
        double relative = 0.0, unit = 0.0, size = 0.0;
        for (int i = 0; i < 2000000; ++i) {
            const double x = 1 + (double)(float)fabs(uniform(&seed) * (i % 2 ? 1.0 : 0.01));
            const double h = ref_round(dtype, x), l = ref_round(dtype, x - h), left = fabs(x - h - l);
            relative = fmax(relative, left / (m.p_dv.relative * x));
            unit = fmax(unit, left / bound_half_unit_of_p(&m.p_dv, x, 1.0));
            size = fmax(size, (fabs(h) + fabs(l)) / x / m.parts_size);
        }
        printf("two parts, dtype %d: share of u^2/2 %.3f, of half a unit %.3f, of the size %.4f\n", dtype, relative,
               unit, size);
        cr_expect(relative <= 1 && relative > 0.97 && unit <= 1 && unit > 0.97 && size <= 1 && m.parts_size > 1);
    }
}

/* bounds.md section 8 says so, and the factor on every bound rests on it. */
Test(bounds, the_oracles_own_error_is_below_a_67_millionth)
{
    const struct attest_recipe *r;
    for (int features = 0; features < 2; ++features)
        FOR_EACH_RECIPE(r)
        {
            set_up_as(ATTEST_BF16, 1.0);
            if (features) add_features();
            compute_bounds(NULL, 0);
            compute_bounds(r, 1);
            for (int t = 0; t < REF_NUM_TENSORS; ++t)
                for (int64_t i = 0; is_there(t) && i < sizes[t]; ++i)
                    cr_assert(f->bound[0][t][i] <= 0x1p-26 * f->bound[1][t][i], "%s %s %ld: %g of %g", r->name,
                              ref_tensor_names[t], (long)i, f->bound[0][t][i], f->bound[1][t][i]);
        }
}

/* A result rounded once lies within every recipe; the same result moved beyond the bound does not. */
Test(bounds, once_rounded_results_are_within_and_the_bound_is_finite_and_tight_for_fp32)
{
    set_up_as(ATTEST_BF16, 1.0);
    add_features();
    compute_oracle();
    const struct attest_recipe *r;
    FOR_EACH_RECIPE(r)
    {
        compute_bounds(r, 0);
        for (int t = 0; t < REF_NUM_TENSORS; ++t) {
            const int32_t dtype = t == REF_LSE || t == REF_DBIAS || t == REF_DSINK ? ATTEST_FP32 : ATTEST_BF16;
            for (int64_t i = 0; i < sizes[t]; ++i) {
                const double want = f->oracle[t][i], bound = f->bound[0][t][i];
                cr_assert(isfinite(bound) && bound >= 0);
                cr_assert_leq(fabs(ref_round(dtype, want) - want), bound);
                /* rounding only at the end: the bound is little more than that rounding */
                if (!r->weights_p && t == REF_O)
                    cr_assert_leq(bound, ref_half_ulp(dtype, fabs(want) + 1e-4) + 1e-4);
            }
        }
    }
}

Test(bounds, a_query_that_sees_one_key_is_bounded_by_one_rounding)
{
    set_up_as(ATTEST_BF16, 1.0);
    f->p.seqlen_q = f->p.seqlen_k = 1;
    compute_bounds(ref_recipe("flash"), 0);
    for (int h = 0; h < HEADS; ++h)
        for (int c = 0; c < DIM_V; ++c) {
            const double v = ref_load(ATTEST_BF16, f->v, (h / 2) * DIM_V + c), half = ref_half_ulp(ATTEST_BF16, v);
            const double bound = f->bound[0][REF_O][h * DIM_V + c];
            cr_assert(bound >= half && bound <= half + 1e-4 * fabs(v), "%g beside %g", bound, half);
        }
}

Test(bounds, what_sees_nothing_is_exact)
{
    set_up_as(ATTEST_FP16, 1.0);
    f->p.window_right = -1;
    f->p.window_left = 3; /* the last query of bottom-right sees keys; with the diagonal far left some see none */
    f->p.diag_kind = ATTEST_DIAG_GIVEN;
    f->p.diag = LENGTH_K - 5;
    f->p.window_right = 0;
    compute_oracle();
    compute_bounds(ref_recipe("flash"), 0);
    int empty = 0, unseen = 0;
    for (int64_t i = 0; i < ROWS_Q; ++i) {
        if (f->oracle[REF_LSE][i] != -INFINITY) continue;
        ++empty;
        cr_assert_eq(f->bound[0][REF_LSE][i], 0.0);
        for (int c = 0; c < DIM_V; ++c) cr_assert_eq(f->bound[0][REF_O][i * DIM_V + c], 0.0);
        for (int c = 0; c < DIM; ++c) cr_assert_eq(f->bound[0][REF_DQ][i * DIM + c], 0.0);
    }
    for (int64_t j = 0; j < ROWS_K; ++j) {
        bool is_seen = false;
        for (int c = 0; c < DIM_V; ++c) is_seen |= f->oracle[REF_DV][j * DIM_V + c] != 0.0;
        if (is_seen) continue;
        ++unseen;
        for (int c = 0; c < DIM; ++c) cr_assert_eq(f->bound[0][REF_DK][j * DIM + c], 0.0);
        for (int c = 0; c < DIM_V; ++c) cr_assert_eq(f->bound[0][REF_DV][j * DIM_V + c], 0.0);
    }
    cr_assert(empty > 0 && unseen > 0);
}

Test(bounds, rows_past_seqused_are_exact)
{
    static const int32_t used[BATCH] = {5, 0};
    set_up_as(ATTEST_FP16, 1.0);
    f->p.has_seqused_q = f->p.has_seqused_k = 1;
    f->a.forward.seqused_q = f->a.forward.seqused_k = used;
    compute_bounds(ref_recipe("flash"), 0);
    for (int64_t i = 0; i < ROWS_Q; ++i) cr_assert_eq(f->bound[0][REF_LSE][i] > 0.0, i < 5 * HEADS);
    for (int64_t j = 0; j < ROWS_K * DIM; ++j) cr_assert_eq(f->bound[0][REF_DK][j] > 0.0, j < 5 * HEADS_KV * DIM);
}

static bool all_infinite(int tensor)
{
    for (int64_t i = 0; i < sizes[tensor]; ++i)
        if (f->bound[0][tensor][i] != INFINITY) return false;
    return true;
}

Test(bounds, scores_beyond_fp32_are_outside_the_domain)
{
    set_up_as(ATTEST_BF16, 1e19);
    compute_bounds(ref_recipe("flash"), 0);
    for (int t = REF_O; t <= REF_DV; ++t) cr_assert(all_infinite(t), "%s", ref_tensor_names[t]);
}

/* softmax_scale log2 e, softcap log2 e and softmax_scale / softcap are numbers that kernels hold in fp32, and may
 * flush. */
Test(bounds, constants_that_fp32_has_not_are_outside_the_domain)
{
    static const struct {
        float scale, softcap;
        bool is_inside;
    } cases[] = {{3.2e38f, 0, false},    {2.3e38f, 0, true},    {1e-39f, 0, false}, {0.2f, 1e-39f, false},
                 {0.2f, 3e38f, false},   {1e10f, 1e-29f, false}, {0, 1e-3f, true},   {1e-30f, 1e20f, false},
                 {1e-30f, 1e-20f, true}, {0.2f, 30, true}};
    const struct attest_recipe *r;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        FOR_EACH_RECIPE(r)
        {
            set_up_as(ATTEST_BF16, cases[i].scale > 1e9f ? 1e-20 : 1.0);
            f->p.softmax_scale = cases[i].scale, f->p.softcap = cases[i].softcap;
            compute_bounds(r, 0);
            for (int t = REF_O; t <= (cases[i].is_inside ? REF_LSE : REF_DV); ++t) /* gradients may overflow still */
                cr_expect_eq(all_infinite(t), !cases[i].is_inside, "%s, softmax_scale %g, softcap %g, %s", r->name,
                             (double)cases[i].scale, (double)cases[i].softcap, ref_tensor_names[t]);
        }
}

Test(bounds, ds_beyond_fp16_is_outside_where_it_is_rounded_to_fp16)
{
    set_up_as(ATTEST_FP16, 300.0); /* dp up to 10^6 */
    f->p.softmax_scale = 1e-6f;    /* and p about 1/45 */
    compute_bounds(ref_recipe("fp32"), 0);
    for (int64_t i = 0; i < sizes[REF_DQ]; ++i) cr_assert(isfinite(f->bound[0][REF_DQ][i]));
    set_up_as(ATTEST_FP16, 3000.0);
    f->p.softmax_scale = 1e-8f;
    compute_bounds(ref_recipe("flash"), 0);
    cr_assert(all_infinite(REF_DK));
    for (int64_t i = 0; i < sizes[REF_O]; ++i) cr_assert(isfinite(f->bound[0][REF_O][i])); /* the forward pass is not */
}

/* delta from the o at hand: an o that is right tightens dq, an o that is wrong excuses nothing. */
Test(bounds, the_o_in_memory_tightens_dq_and_never_loosens_it)
{
    set_up_as(ATTEST_BF16, 1.0);
    compute_oracle();
    compute_bounds(ref_recipe("flash"), 0);
    for (int64_t i = 0; i < ROWS_Q * DIM_V; ++i) ref_store(ATTEST_BF16, f->o, i, f->oracle[REF_O][i]);
    for (int64_t i = 0; i < ROWS_Q; ++i) f->lse[i] = (float)f->oracle[REF_LSE][i];
    f->a.forward.o = f->o;
    f->a.forward.lse = f->lse;
    compute_bounds(ref_recipe("flash"), 1);
    double with = 0.0, without = 0.0;
    for (int64_t i = 0; i < sizes[REF_DQ]; ++i) {
        cr_assert_leq(f->bound[1][REF_DQ][i], f->bound[0][REF_DQ][i]);
        with += f->bound[1][REF_DQ][i];
        without += f->bound[0][REF_DQ][i];
    }
    cr_assert_lt(with, 0.9 * without);
    for (int64_t i = 0; i < ROWS_Q * DIM_V; ++i) ref_store(ATTEST_BF16, f->o, i, i % 3 ? 7.0 : NAN);
    for (int64_t i = 0; i < ROWS_Q; ++i) f->lse[i] = i % 2 ? 1e6f : NAN;
    compute_bounds(ref_recipe("flash"), 1);
    for (int t = REF_DQ; t <= REF_DV; ++t) cr_assert_arr_eq(f->bound[0][t], f->bound[1][t], sizes[t] * sizeof(double));
}

/* Largest share of p's error where 2^8 p is one exponential, off as far as it may be, and two fused operations. */
static double largest_share_of_p(const struct ref_machine *m)
{
    uint64_t seed = 13;
    double largest = 0.0;
    for (int i = 0; i < 1000000; ++i) {
        const float log2_e = 0x1.715476p0f, x = (float)(uniform(&seed) * exp(4 * uniform(&seed)));
        const float lse = x + (float)fabs(uniform(&seed) * exp(4 * uniform(&seed)));
        const float y = fmaf(x, log2_e, -fmaf(lse, log2_e, -8.0f));
        const double p = exp((double)x - (double)lse), side = uniform(&seed) < 0 ? -1.0 : 1.0;
        const double off = fabs(exp2((double)y - 8) * (1 + side * 0x1p-22) - p);
        const struct bound_row row = {.lse = (double)lse};
        largest = fmax(largest, off / bound_error_of_p(m, &row, (double)x, 2 * m->u * fabs((double)x), p));
    }
    return largest;
}

Test(bounds, a_power_in_the_exponent_of_p_costs_12u)
{
    set_up_as(ATTEST_BF16, 1.0);
    f->p.num_heads_q = HEADS_KV;
    struct ref_machine m = ref_machine(&f->p, ref_kernel_recipe("short_backward_sm90_n128_scaled"));
    const double share = largest_share_of_p(&m);
    cr_assert_eq(m.power, 8);
    m.power = 0;
    const double without = largest_share_of_p(&m);
    printf("share of p's error with 2^8 in the exponent: %.3f, %.3f of what there is without\n", share, without);
    cr_expect(share <= 1 && share > 0.7 && without > 1.5);
}

static void expect_equal_bounds(enum ref_tensor first)
{
    for (int t = first; t < REF_NUM_TENSORS; ++t)
        if (is_there(t)) cr_expect_arr_eq(f->bound[0][t], f->bound[1][t], sizes[t] * sizeof(double));
}

/* Of problems that no kernel of that recipe takes its bounds are those of two parts. */
Test(bounds, what_is_not_plain_is_not_scaled)
{
    const struct attest_recipe *scaled = ref_kernel_recipe("short_backward_sm90_n128_scaled");
    for (int kind = 0; kind < 3; ++kind) {
        set_up_as(kind == 0 ? ATTEST_FP16 : ATTEST_BF16, 1.0); /* fp16, everything at once, groups */
        if (kind == 1) add_features();
        if (kind != 2) f->p.num_heads_q = f->p.num_heads_kv;
        compute_bounds(scaled, 0);
        compute_bounds(ref_kernel_recipe("short_backward_sm90_n128_d256"), 1);
        expect_equal_bounds(kind == 2 ? REF_DQ : REF_O); /* o sums nothing over a group */
        cr_expect(ref_forward_machine(&f->p, scaled).scales == (kind == 2) && !ref_machine(&f->p, scaled).scales);
    }
    set_up_as(ATTEST_BF16, 1.0);
    f->p.num_heads_q = f->p.num_heads_kv;
    cr_assert(ref_machine(&f->p, scaled).scales);
}

/* p of more than 255 are beyond fp16 as 2^8 p, and scores near 2 10^6 are so uncertain that they may be computed, where
 * p is not divided by the row's own sum. */
Test(bounds, p_beyond_fp16_is_outside_where_it_is_scaled)
{
    set_up_as(ATTEST_BF16, 1.0);
    f->p.num_heads_q = f->p.num_heads_kv;
    for (int64_t i = 0; i < ROWS_Q; ++i) ref_store(ATTEST_BF16, f->q, i * DIM, 2048.0);
    for (int64_t i = 0; i < ROWS_K; ++i) ref_store(ATTEST_BF16, f->k, i * DIM, 4096.0);
    fill(f->v, ROWS_K * DIM_V, 0x1p-20, 3); /* ds are small */
    struct attest_recipe by_lse = *ref_kernel_recipe("short_backward_sm90_n128_scaled");
    compute_bounds(&by_lse, 1);
    for (int64_t i = 0; i < sizes[REF_DV]; ++i) cr_assert(isfinite(f->bound[1][REF_DV][i])); /* no p is more than 1 */
    by_lse.own_sum = 0;
    compute_bounds(&by_lse, 0);
    compute_bounds(ref_kernel_recipe("short_backward_sm90_n128_d256"), 1);
    int64_t outside = 0;
    for (int64_t i = 0; i < sizes[REF_DV]; ++i) {
        outside += isinf(f->bound[0][REF_DV][i]);
        cr_assert(isfinite(f->bound[1][REF_DV][i]));
    }
    cr_assert_gt(outside, 9 * sizes[REF_DV] / 10);
}

enum { MEAN_KEYS = 20 };

/* The mean of dp by p, in fp32, of numbers that err as far as they may, all to one side: p by factors of
 * e^+-exponent and by what flushing costs, dp by a share `off` of itself. Its error, of its bound. */
static double share_of_mean(const struct ref_machine *m, uint64_t *seed, double spread, double exponent, double off)
{
    const int64_t keys = 1 + (int64_t)(fabs(uniform(seed)) * (MEAN_KEYS - 1));
    const double level = uniform(seed), side = uniform(seed) < 0 ? -1.0 : 1.0;
    double p[MEAN_KEYS], dp[MEAN_KEYS], total = 0.0, delta = 0.0;
    for (int64_t j = 0; j < keys; ++j) {
        p[j] = exp(4 * uniform(seed)), total += p[j];
        dp[j] = level + spread * uniform(seed);
    }
    for (int64_t j = 0; j < keys; ++j) p[j] /= total, delta += p[j] * dp[j];
    struct bound_mean mean = {.delta = fabs(delta)};
    float sum = 0.0f, divisor = 0.0f;
    for (int64_t j = 0; j < keys; ++j) {
        const double p_error = p[j] * expm1(exponent) + m->tiny, dp_error = off * fabs(dp[j]) + m->u * fabs(dp[j]);
        const double bad_dp = dp[j] + side * off * fabs(dp[j]), away = dp[j] - delta;
        const float bad_p = (float)(p[j] * exp((away * side > 0 ? 1.0 : -1.0) * fmax(0.0, exponent - m->u)));
        bound_add_to_mean(m, &mean, p[j], p_error, fabs(dp[j]), fabs(away), dp_error);
        sum = fmaf(bad_p, (float)bad_dp, sum);
        divisor += bad_p;
    }
    return fabs((double)(sum / divisor) - delta) / bound_of_mean(m, &mean);
}

static double largest_share_of_mean(double spread, double exponent, double off)
{
    set_up_as(ATTEST_BF16, 1.0);
    const struct ref_machine m = ref_machine(&f->p, ref_kernel_recipe("short_backward_sm80"));
    uint64_t seed = 11;
    double largest = 0.0;
    for (int i = 0; i < 20000; ++i) largest = fmax(largest, share_of_mean(&m, &seed, spread, exponent, off));
    return largest;
}

/* Errors of p, of dp, of both, where dp are alike and where they are not, and where p may be anything. */
Test(bounds, a_normalized_delta_stays_within_its_bound)
{
    static const double spreads[] = {0, 1e-3, 1, 30}, exponents[] = {0, 1e-4, 0.1, 3, 20}, offs[] = {0, 1e-5, 0.1};
    double largest = 0.0, smallest = 1.0;
    for (int i = 0; i < 4; ++i)
        for (int j = 0; j < 5; ++j)
            for (int k = 0; k < 3; ++k) {
                const double share = largest_share_of_mean(spreads[i], exponents[j], offs[k]);
                largest = fmax(largest, share), smallest = fmin(smallest, share);
                cr_expect(share <= 1, "dp spread over %g, exponents off by %g, dp by %g: %g of the bound", spreads[i],
                          exponents[j], offs[k], share);
            }
    printf("share of a normalized delta's bound: %.3f, %.3f where least\n", largest, smallest);
    cr_expect(largest > 0.99 && smallest > 0.15);
}

/* Scores near 3000, and equal values: every dp is delta. */
static void set_up_far_scores(void)
{
    set_up_as(ATTEST_BF16, 1.0);
    for (int64_t i = 0; i < ROWS_Q; ++i) ref_store(ATTEST_BF16, f->q, i * DIM, 64.0);
    for (int64_t i = 0; i < ROWS_K; ++i) ref_store(ATTEST_BF16, f->k, i * DIM, 256.0);
    for (int64_t i = 0; i < ROWS_K * DIM_V; ++i) f->v[i] = f->v[0];
    for (int64_t i = 0; i < ROWS_Q * DIM_V; ++i) f->dout[i] = f->dout[0];
}

static double sum_of_bounds(int which, int tensor)
{
    double sum = 0.0;
    for (int64_t i = 0; i < sizes[tensor]; ++i) sum += f->bound[which][tensor][i];
    return sum;
}

/* It is bounded by what dp differs from it; an exact one by dp itself, of which all p take what lse is off by. */
Test(bounds, a_normalized_delta_is_the_better_the_more_alike_dp_are)
{
    struct attest_recipe exact = *ref_kernel_recipe("short_backward_sm80");
    cr_assert_eq(exact.delta, ATTEST_DELTA_NORMALIZED);
    exact.delta = ATTEST_DELTA_EXACT;
    for (int is_far = 0; is_far < 2; ++is_far) {
        if (is_far) set_up_far_scores();
        else set_up_as(ATTEST_BF16, 1.0);
        compute_bounds(ref_kernel_recipe("short_backward_sm80"), 0);
        compute_bounds(&exact, 1);
        for (int t = REF_DQ; t <= REF_DK; ++t) {
            const double share = sum_of_bounds(0, t) / sum_of_bounds(1, t);
            printf("%s scores: bound of %s with a normalized delta %.4f of that with an exact one\n",
                   is_far ? "far" : "near", ref_tensor_names[t], share);
            cr_expect(share < (is_far ? 0.01 : 1.1));
        }
        cr_expect_arr_eq(f->bound[0][REF_DV], f->bound[1][REF_DV], sizes[REF_DV] * sizeof(double));
    }
}

/* With a sink the keys alone do not weigh one in all: the sum is not divided. */
Test(bounds, a_normalized_delta_is_exact_beside_a_sink)
{
    struct attest_recipe exact = *ref_kernel_recipe("short_backward_sm80");
    exact.delta = ATTEST_DELTA_EXACT;
    set_up_as(ATTEST_BF16, 1.0);
    add_features();
    compute_bounds(ref_kernel_recipe("short_backward_sm80"), 0);
    compute_bounds(&exact, 1);
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        cr_expect_arr_eq(f->bound[0][t], f->bound[1][t], sizes[t] * sizeof(double));
}

Test(bounds, do_not_depend_on_the_number_of_threads)
{
    struct ref_bound b[REF_NUM_TENSORS];
    set_up_as(ATTEST_BF16, 1.0);
    add_features();
    compute_bounds(ref_recipe("hopper"), 0);
    for (int t = 0; t < REF_NUM_TENSORS; ++t) b[t] = (struct ref_bound){.bound = f->bound[1][t]};
    cr_assert_eq(ref_bound_forward(&f->p, &f->a.forward, ref_recipe("hopper"), &b[REF_O], &b[REF_LSE], 3), ATTEST_OK);
    cr_assert_eq(ref_bound_backward(&f->p, &f->a, ref_recipe("hopper"), b, 3), ATTEST_OK);
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        cr_assert_arr_eq(f->bound[0][t], f->bound[1][t], sizes[t] * sizeof(double));
}

/* NaN and infinities in one row of each input: what does not see them keeps a finite bound. */
Test(bounds, what_is_not_finite_stays_where_it_is)
{
    static const double specials[] = {NAN, INFINITY, -INFINITY};
    const struct attest_recipe *r;
    int finite = 0, not_finite = 0;
    for (int which = 0; which < 4; ++which)
        for (int special = 0; special < 3; ++special)
            FOR_EACH_RECIPE(r)
            {
                set_up_as(ATTEST_BF16, 1.0);
                add_features();
                uint16_t *const inputs[] = {f->q, f->k, f->v, f->dout};
                ref_store(ATTEST_BF16, inputs[which], 20 * HEADS_KV * DIM_V, specials[special]);
                compute_oracle();
                compute_bounds(r, 0);
                for (int t = 0; t < REF_NUM_TENSORS; ++t)
                    for (int64_t i = 0; i < sizes[t]; ++i) {
                        const bool is_finite = isfinite(f->oracle[t][i]);
                        finite += is_finite;
                        not_finite += !is_finite;
                        cr_assert(!is_finite || isfinite(f->bound[0][t][i]), "%s %s %ld: %g", r->name,
                                  ref_tensor_names[t], (long)i, f->bound[0][t][i]);
                    }
            }
    cr_assert(finite > 0 && not_finite > 0);
}

/* The statistical part is a part of the bound, and leaves the bound as it is. */
Test(bounds, sigma_and_bias_are_below_the_bound)
{
    static double sigma[REF_NUM_TENSORS][ROWS_Q * DIM + SCORES], bias[REF_NUM_TENSORS][ROWS_Q * DIM + SCORES];
    struct ref_bound b[REF_NUM_TENSORS];
    set_up_as(ATTEST_BF16, 1.0);
    add_features();
    const struct attest_recipe *r;
    FOR_EACH_RECIPE(r)
    {
        compute_bounds(r, 0);
        for (int t = 0; t < REF_NUM_TENSORS; ++t)
            b[t] = (struct ref_bound){.bound = f->bound[1][t], .sigma = sigma[t], .bias = bias[t]};
        cr_assert_eq(ref_bound_forward(&f->p, &f->a.forward, r, &b[REF_O], &b[REF_LSE], 1), ATTEST_OK);
        cr_assert_eq(ref_bound_backward(&f->p, &f->a, r, b, 1), ATTEST_OK);
        for (int t = 0; t < REF_NUM_TENSORS; ++t) {
            cr_assert_arr_eq(f->bound[0][t], f->bound[1][t], sizes[t] * sizeof(double));
            for (int64_t i = 0; i < sizes[t]; ++i) {
                const double bound = f->bound[0][t][i];
                cr_assert(sigma[t][i] <= bound && bias[t][i] <= bound, "%s %s %ld: %g and %g of %g", r->name,
                          ref_tensor_names[t], (long)i, sigma[t][i], bias[t][i], bound);
                cr_assert(bound == 0.0 || sigma[t][i] > 0.0);
            }
        }
    }
}

/* One head, bf16, of two sequences of so many rows in use and 40 keys; five rows and keys more are there. */
static void set_up_used(int32_t used_q[2], int32_t used_k[2], int64_t rows, int64_t dim, int64_t dim_v)
{
    enum { KEYS = 45 };
    set_up_as(ATTEST_BF16, 1.0);
    f->p.seqlen_q = rows, f->p.seqlen_k = KEYS;
    f->p.num_heads_q = f->p.num_heads_kv = 1;
    f->p.head_dim = dim, f->p.head_dim_v = dim_v;
    f->p.q = f->p.dq = packed(ATTEST_BF16, rows, 1, dim);
    f->p.k = f->p.dk = packed(ATTEST_BF16, KEYS, 1, dim);
    f->p.v = f->p.dv = packed(ATTEST_BF16, KEYS, 1, dim_v);
    f->p.o = f->p.dout = packed(ATTEST_BF16, rows, 1, dim_v);
    f->p.lse = packed(ATTEST_FP32, rows, 1, 1);
    f->p.has_seqused_q = f->p.has_seqused_k = 1;
    f->a.forward.seqused_q = used_q, f->a.forward.seqused_k = used_k;
    used_k[0] = used_k[1] = KEYS - 5;
}

/* Two sequences, one to each share: what each has is what its recipe alone gives it, whoever has the other. */
Test(bounds, each_sequence_has_the_bounds_of_its_share)
{
    enum { ROWS = 135 };
    static double own[2][REF_NUM_TENSORS][ROWS_Q * DIM + SCORES];
    const struct attest_recipe *const recipes[] = {ref_kernel_recipe("short_backward_sm90_n128_scaled"),
                                                   ref_kernel_recipe("backward_sm80")};
    const struct ref_shares shares = {2, {{recipes[0], 128, 128}, {recipes[1], INT64_MAX, INT64_MAX}}};
    int32_t used_q[2] = {128, 129}, used_k[2];
    set_up_used(used_q, used_k, ROWS, DIM, DIM_V);
    for (int n = 0; n < 2; ++n) {
        compute_bounds(recipes[n], 0);
        memcpy(own[n], f->bound[0], sizeof own[n]);
    }
    compute_shares(&shares, 0);
    const int64_t rows[REF_NUM_TENSORS] = {ROWS, ROWS, ROWS, 45, 45, 0, 0};
    const int64_t features[REF_NUM_TENSORS] = {DIM_V, 1, DIM, DIM, DIM_V, 0, 0};
    for (int t = REF_O; t <= REF_DV; ++t)
        for (int b = 0; b < 2; ++b) {
            const size_t count = (size_t)(rows[t] * features[t]), bytes = count * sizeof(double);
            const size_t from = (size_t)b * count;
            cr_expect_arr_eq(f->bound[0][t] + from, own[b][t] + from, bytes, "%s of %d", ref_tensor_names[t], b);
            if (t != REF_LSE) /* whose sums are alike in both */
                cr_expect_arr_neq(f->bound[0][t] + from, own[1 - b][t] + from, bytes, "%s of %d", ref_tensor_names[t],
                                  b);
        }
}

/* Exponents are those of the rows in use of a sequence: no others change its bounds. */
Test(bounds, exponents_are_of_the_rows_in_use)
{
    enum { ROWS = 70, KEYS = 45, FEATURES = 32 };
    int32_t used_q[2] = {65, 70}, used_k[2];
    const struct attest_recipe *const r = ref_kernel_recipe("short_backward_sm90_n128_scaled");
    set_up_used(used_q, used_k, ROWS, FEATURES, FEATURES);
    used_k[1] = KEYS;
    compute_bounds(r, 0);
    for (int64_t i = 0; i < 5 * FEATURES; ++i) { /* past the last of the first */
        ref_store(ATTEST_BF16, f->q, (ROWS - 5) * FEATURES + i, 0x1p20);
        ref_store(ATTEST_BF16, f->dout, (ROWS - 5) * FEATURES + i, 0x1p20);
        ref_store(ATTEST_BF16, f->k, (KEYS - 5) * FEATURES + i, 0x1p20);
        ref_store(ATTEST_BF16, f->v, (KEYS - 5) * FEATURES + i, 0x1p20);
    }
    for (int64_t i = 0; i < FEATURES; ++i) { /* and of the second */
        ref_store(ATTEST_BF16, f->dout, ROWS * FEATURES + i, 0x1p20);
        ref_store(ATTEST_BF16, f->k, KEYS * FEATURES + i, 0x1p-20);
    }
    compute_bounds(r, 1);
    for (int t = REF_DQ; t <= REF_DV; ++t) {
        const int64_t rows = t == REF_DQ ? ROWS : KEYS;
        cr_expect_arr_eq(f->bound[0][t], f->bound[1][t], (size_t)(rows * FEATURES) * sizeof(double));
        cr_expect_neq(f->bound[0][t][rows * FEATURES], f->bound[1][t][rows * FEATURES]);
    }
}

/* Both where p, ds and operands are scaled: the oracle's error is that small a share, noise is a part. */
Test(bounds, scaled_bounds_are_bounds_as_others_are)
{
    static double sigma[REF_NUM_TENSORS][ROWS_Q * DIM], bias[REF_NUM_TENSORS][ROWS_Q * DIM];
    const struct attest_recipe *const recipe = ref_kernel_recipe("short_backward_sm90_n128_scaled");
    for (int power = -30; power <= 30; power += 30) {
        struct ref_bound b[REF_NUM_TENSORS] = {{0}};
        set_up_as(ATTEST_BF16, ldexp(1.0, power));
        f->p.num_heads_q = f->p.num_heads_kv;
        f->p.softmax_scale = (float)ldexp(0.2, -2 * power);
        compute_bounds(NULL, 0);
        compute_bounds(recipe, 1);
        for (int t = REF_DQ; t <= REF_DV; ++t) {
            b[t] = (struct ref_bound){.bound = f->oracle[t], .sigma = sigma[t], .bias = bias[t]};
            const int64_t count = t == REF_DQ ? sizes[t] * HEADS_KV / HEADS : sizes[t];
            for (int64_t i = 0; i < count; ++i) cr_assert_leq(f->bound[0][t][i], 0x1p-26 * f->bound[1][t][i]);
        }
        cr_assert_eq(ref_bound_backward(&f->p, &f->a, recipe, b, 1), ATTEST_OK);
        for (int t = REF_DQ; t <= REF_DV; ++t)
            for (int64_t i = 0; i < (t == REF_DQ ? sizes[t] * HEADS_KV / HEADS : sizes[t]); ++i) {
                const double bound = f->bound[1][t][i];
                cr_assert(f->oracle[t][i] == bound && isfinite(bound));
                cr_assert(sigma[t][i] > 0 && sigma[t][i] <= bound && bias[t][i] <= bound, "%s %ld: %g and %g of %g",
                          ref_tensor_names[t], (long)i, sigma[t][i], bias[t][i], bound);
            }
    }
}

/* Gradients summed over a group whose heads are rounded one by one carry that rounding. */
Test(bounds, rounding_each_query_head_costs_dk_and_dv)
{
    struct attest_recipe once = *ref_recipe("flash");
    once.round_dkv_heads = 0;
    set_up_as(ATTEST_BF16, 1.0);
    compute_bounds(&once, 0);
    compute_bounds(ref_recipe("flash"), 1);
    for (int64_t i = 0; i < sizes[REF_DK]; ++i) cr_assert_lt(f->bound[0][REF_DK][i], f->bound[1][REF_DK][i]);
    for (int64_t i = 0; i < sizes[REF_DV]; ++i) cr_assert_lt(f->bound[0][REF_DV][i], f->bound[1][REF_DV][i]);
}

/* --- computed scores out of order, factors in other places: bounds.md sections 5.3, 6 and 10 --- */

/* Sum of products in the order given, each sum cut off toward zero: a faithful accumulator. */
static float cut_off_sum(const float *a, const float *b, int64_t n)
{
    float c = 0.0f;
    for (int64_t i = 0; i < n; ++i) {
        const double exact = (double)c + (double)a[i] * (double)b[i]; /* of these numbers, exact in double */
        c = (float)exact;
        if (fabs((double)c) > fabs(exact)) c = nextafterf(c, 0.0f);
    }
    return c;
}

/* 63 keys of score 0 and one whose score cancels to 0, but which a truncating accumulator takes for 0.002. That
 * one is the running maximum, so the others' weights are rounded though theirs are the largest scores. */
Test(bounds, any_key_may_be_computed_as_the_largest)
{
    enum { KEYS = 64, FEATURES = 256 };
    static float q[FEATURES], k[KEYS][FEATURES], v[KEYS];
    float o, lse, scores[KEYS], largest = 0.0f, sum = 0.0f, product = 0.0f;
    uint16_t q16[FEATURES], k16[KEYS * FEATURES], v16[KEYS];
    for (int x = 0; x < FEATURES; ++x) {
        q[x] = 1.0f;
        k[KEYS - 1][x] = x == 0 ? -65.0f : x == FEATURES - 1 ? 65.0f : 0x1p-40f;
    }
    for (int j = 0; j < KEYS - 1; ++j) v[j] = 1.0f;
    for (int x = 0; x < FEATURES; ++x) ref_store(ATTEST_BF16, q16, x, q[x]);
    for (int i = 0; i < KEYS * FEATURES; ++i) ref_store(ATTEST_BF16, k16, i, k[i / FEATURES][i % FEATURES]);
    for (int j = 0; j < KEYS; ++j) ref_store(ATTEST_BF16, v16, j, v[j]);

    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = ATTEST_REFERENCE;
    p.batch = p.seqlen_q = p.num_heads_q = p.num_heads_kv = p.head_dim_v = 1;
    p.seqlen_k = KEYS;
    p.head_dim = FEATURES;
    p.softmax_scale = 1.0f;
    p.q = packed(ATTEST_BF16, 1, 1, FEATURES);
    p.k = packed(ATTEST_BF16, KEYS, 1, FEATURES);
    p.v = packed(ATTEST_BF16, KEYS, 1, 1);
    p.o = p.lse = packed(ATTEST_FP32, 1, 1, 1);
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    a.q = q16, a.k = k16, a.v = v16, a.o = &o, a.lse = &lse;
    double want, want_lse, bound;
    const struct ref_forward forward = {&want, &want_lse};
    const struct ref_bound of_o = {.bound = &bound}, none = {0};
    cr_assert_eq(ref_forward(&p, &a, &forward, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_forward(&p, &a, ref_recipe("flash"), &of_o, &none, 1), ATTEST_OK);

    for (int j = 0; j < KEYS; ++j) largest = fmaxf(largest, scores[j] = cut_off_sum(q, k[j], FEATURES));
    for (int j = 0; j < KEYS; ++j) {
        const float weight = expf(scores[j] - largest);
        sum += weight;
        product += (float)ref_round(ATTEST_BF16, weight) * v[j];
    }
    const double off = fabs((double)(product / sum) - want);
    cr_assert(largest > 0.0019f && off > 0.0018, "%g %g", largest, off);
    cr_assert(off <= bound && bound <= 1.2 * off, "%g of %g", off, bound);
}

/* Scores of 3 10^5, each a truncated sum of 256 products, are all too small by more than 8: so is lse. */
Test(bounds, what_all_scores_are_off_by_is_felt_by_lse)
{
    enum { KEYS = 3, FEATURES = 256 };
    static float q[FEATURES], k[KEYS][FEATURES];
    static const float v[KEYS];
    uint64_t seed = 19;
    double off = INFINITY;
    for (int x = 0; x < FEATURES; ++x) q[x] = (float)(33 + uniform(&seed));
    for (int j = 0; j < KEYS; ++j) {
        double exact = 0;
        for (int x = 0; x < FEATURES; ++x) {
            k[j][x] = (float)(70 + uniform(&seed));
            exact += (double)q[x] * (double)k[j][x];
        }
        off = fmin(off, exact - (double)cut_off_sum(q, k[j], FEATURES));
    }
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = ATTEST_REFERENCE;
    p.batch = p.seqlen_q = p.num_heads_q = p.num_heads_kv = p.head_dim_v = 1;
    p.seqlen_k = KEYS;
    p.head_dim = FEATURES;
    p.softmax_scale = 1.0f;
    p.q = packed(ATTEST_FP32, 1, 1, FEATURES);
    p.k = packed(ATTEST_FP32, KEYS, 1, FEATURES);
    p.v = packed(ATTEST_FP32, KEYS, 1, 1);
    p.o = p.lse = packed(ATTEST_FP32, 1, 1, 1);
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    a.q = q, a.k = k, a.v = v;
    double bound;
    const struct ref_bound of_lse = {.bound = &bound}, none = {0};
    cr_assert_eq(ref_bound_forward(&p, &a, ref_recipe("flash"), &none, &of_lse, 1), ATTEST_OK);
    printf("all scores too small by %.2f: bound of lse %.2f\n", off, bound);
    cr_expect(off > 3.05 && off <= bound && bound < 10 * off);
}

/* One key: p is 1 and needs no rounding, but 4/3 does where dropout's multiplier comes first. */
Test(bounds, p_may_be_rounded_after_dropouts_multiplier)
{
    set_up_as(ATTEST_BF16, 1.0);
    f->p.seqlen_q = f->p.seqlen_k = 1;
    f->p.dropout_p = 0.25f;
    f->p.o.dtype = ATTEST_FP32;
    compute_oracle();
    compute_bounds(ref_recipe("flash"), 0);
    const double off = fabs(ref_round(ATTEST_BF16, 4.0 / 3.0) - 4.0 / 3.0);
    int kept = 0;
    for (int h = 0; h < HEADS * BATCH; ++h)
        for (int c = 0; c < DIM_V; ++c) {
            const double v = f->oracle[REF_O][h * DIM_V + c] / (4.0 / 3.0);
            kept += v != 0.0;
            cr_assert_leq(off * fabs(v), f->bound[0][REF_O][h * DIM_V + c]);
        }
    cr_assert_gt(kept, DIM_V);
}

/* ds is rounded with softmax_scale folded in, and without dropout's multiplier: what underflows there weighs more. */
Test(bounds, factors_folded_into_ds_move_where_it_underflows)
{
    set_up_as(ATTEST_FP16, 1.0);
    f->p.softmax_scale = 0.125f;
    const struct ref_machine small = ref_machine(&f->p, ref_recipe("flash"));
    cr_assert_eq(small.ds.tiny, 0x1p-25 / 0.125);
    f->p.softmax_scale = -4.0f;
    f->p.dropout_p = 0.5f;
    const struct ref_machine large = ref_machine(&f->p, ref_recipe("flash"));
    cr_assert_eq(large.ds.tiny, 0x1p-25 * 2);
    cr_assert_eq(large.ds.overflow, 65520.0 / 4);
}

/* exp2 of a fused multiply-add is off by the rounding of the maximum: at 10^8 the largest weight may be 10^7. */
Test(bounds, weights_beyond_fp16_are_outside_where_they_are_rounded_to_fp16)
{
    set_up_as(ATTEST_FP16, 100.0);
    f->p.softmax_scale = 1e3f;
    compute_bounds(ref_recipe("flash"), 0);
    compute_bounds(ref_recipe("fp32"), 1);
    int outside = 0;
    for (int64_t i = 0; i < sizes[REF_O]; ++i) {
        outside += isinf(f->bound[0][REF_O][i]);
        cr_assert(isfinite(f->bound[1][REF_O][i]));
    }
    cr_assert_gt(outside, 9 * sizes[REF_O] / 10);
}

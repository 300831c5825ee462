/* properties_merge_backward.c - the gradient of a merge, beside the oracle: states of random numbers, some of them
 * empty; their union, or that of more keys, in any format. What may not be felt is NaN. */
#include <math.h>
#include <string.h>

#include "proptests/properties/outcome.h"
#include "proptests/properties/properties_list.h"

enum { MAX_STATES = 6 };

/* Numbers as a call takes them, and the same as doubles. */
struct numbers {
    void *data;
    double *values;
};

struct gradients {
    struct prop_case *arena;
    uint64_t seed;
    int64_t rows, dim;
    struct attest_merge_backward_args args;
    struct numbers o_states[MAX_STATES], lse_states[MAX_STATES], o, lse, dout, dlse;
    struct numbers do_states[MAX_STATES], dlse_states[MAX_STATES]; /* values: what the oracle has */
    double *do_bound[MAX_STATES], *dlse_bound[MAX_STATES];
};

static struct numbers new_numbers(struct gradients *g, int32_t dtype, int64_t count)
{
    void *data = case_alloc(g->arena, (size_t)count * ref_dtype_bytes(dtype));
    memset(data, 0xff, (size_t)count * ref_dtype_bytes(dtype));
    return (struct numbers){data, case_doubles(g->arena, count)};
}

static void set(struct numbers *n, int32_t dtype, int64_t i, double value)
{
    ref_store(dtype, n->data, i, value);
    n->values[i] = ref_load(dtype, n->data, i);
}

/* About a quarter of the rows are empty; weights of others from 0 to 1. */
static void draw_state(struct gradients *g, int a)
{
    struct numbers o = new_numbers(g, ATTEST_FP32, g->rows * g->dim), lse = new_numbers(g, ATTEST_FP32, g->rows);
    for (int64_t row = 0; row < g->rows; ++row) {
        const uint64_t bits = family_bits(g->seed, 90, a, row, 0, 0);
        const bool empty = bits % 4 == 0;
        set(&lse, ATTEST_FP32, row, empty ? -INFINITY : (bits % 4 == 1 ? 40 : 2) * family_normal(bits));
        for (int64_t x = row * g->dim; x < (row + 1) * g->dim; ++x)
            set(&o, ATTEST_FP32, x, empty ? NAN : family_normal(family_bits(g->seed, 91, a, x, 0, 0)));
    }
    g->o_states[a] = o, g->lse_states[a] = lse;
}

/* The union as the states have it, rounded; in every third case that of more keys. */
static void draw_union(struct gradients *g)
{
    const double *o[MAX_STATES], *lse[MAX_STATES];
    double *const merged = case_doubles(g->arena, g->rows * g->dim);
    double *const merged_lse = case_doubles(g->arena, g->rows);
    for (int64_t a = 0; a < g->args.num_states; ++a) o[a] = g->o_states[a].values, lse[a] = g->lse_states[a].values;
    ref_merge(g->args.num_states, g->rows, g->dim, o, lse, merged, merged_lse);
    for (int64_t row = 0; row < g->rows; ++row)
        set(&g->lse, ATTEST_FP32, row, merged_lse[row] + (g->seed % 3 == 0 ? 0.75 : 0));
    for (int64_t x = 0; x < g->rows * g->dim; ++x) set(&g->o, g->args.o_dtype, x, merged[x]);
}

/* NaN where all states are empty. */
static void draw_gradient(struct gradients *g)
{
    for (int64_t row = 0; row < g->rows; ++row) {
        const bool empty = g->lse.values[row] == -INFINITY;
        set(&g->dlse, ATTEST_FP32, row, empty ? NAN : family_normal(family_bits(g->seed, 92, 0, row, 0, 0)));
        for (int64_t x = row * g->dim; x < (row + 1) * g->dim; ++x)
            set(&g->dout, g->args.dout_dtype, x,
                empty ? NAN : family_normal(family_bits(g->seed, 93, 0, x, 0, 0)));
    }
}

static void draw(struct gradients *g)
{
    static const int32_t dtypes[] = {ATTEST_FP32, ATTEST_FP16, ATTEST_BF16};
    const int64_t elements = g->rows * g->dim;
    g->args = (struct attest_merge_backward_args)ATTEST_MERGE_BACKWARD_ARGS_INIT;
    g->args.device = ATTEST_REFERENCE;
    g->args.num_states = 1 + (int64_t)(g->seed / 3 % MAX_STATES), g->args.rows = g->rows, g->args.head_dim_v = g->dim;
    g->args.o_dtype = dtypes[g->seed / 18 % 3], g->args.dout_dtype = dtypes[g->seed / 54 % 3];
    for (int a = 0; a < g->args.num_states; ++a) {
        draw_state(g, a);
        g->do_states[a] = new_numbers(g, ATTEST_FP32, elements);
        g->dlse_states[a] = new_numbers(g, ATTEST_FP32, g->rows);
        g->do_bound[a] = case_doubles(g->arena, elements), g->dlse_bound[a] = case_doubles(g->arena, g->rows);
    }
    g->o = new_numbers(g, g->args.o_dtype, elements), g->lse = new_numbers(g, ATTEST_FP32, g->rows);
    g->dout = new_numbers(g, g->args.dout_dtype, elements), g->dlse = new_numbers(g, ATTEST_FP32, g->rows);
    draw_union(g);
    draw_gradient(g);
}

static enum attest_status call(struct gradients *g, const struct implementation *self)
{
    const float *o[MAX_STATES], *lse[MAX_STATES];
    float *d_o[MAX_STATES], *d_lse[MAX_STATES];
    for (int64_t a = 0; a < g->args.num_states; ++a) {
        o[a] = g->o_states[a].data, lse[a] = g->lse_states[a].data;
        d_o[a] = g->do_states[a].data, d_lse[a] = g->dlse_states[a].data;
    }
    g->args.o_states = o, g->args.lse_states = lse, g->args.do_states = d_o, g->args.dlse_states = d_lse;
    g->args.o = g->o.data, g->args.lse = g->lse.data, g->args.dout = g->dout.data;
    g->args.dlse = g->seed % 5 == 0 ? NULL : g->dlse.data;
    return self->merge_backward != NULL ? self->merge_backward(self, &g->args)
                                        : attest_merge_states_backward(&g->args, NULL);
}

/* The oracle's gradients and how far an implementation may be from them. */
static void expect(struct gradients *g, const struct attest_recipe *recipe)
{
    const double *o[MAX_STATES], *lse[MAX_STATES], *const dlse = g->args.dlse != NULL ? g->dlse.values : NULL;
    double *d_o[MAX_STATES], *d_lse[MAX_STATES];
    const int64_t count = g->args.num_states;
    for (int64_t a = 0; a < count; ++a) {
        o[a] = g->o_states[a].values, lse[a] = g->lse_states[a].values;
        d_o[a] = g->do_states[a].values, d_lse[a] = g->dlse_states[a].values;
    }
    ref_merge_backward(count, g->rows, g->dim, o, lse, g->o.values, g->lse.values, g->dout.values, dlse, d_o, d_lse);
    if (recipe != NULL) {
        ref_bound_merge_backward(count, g->rows, g->dim, o, lse, g->o.values, g->lse.values, g->dout.values, dlse,
                                 recipe, g->do_bound, g->dlse_bound);
        return;
    }
    for (int64_t a = 0; a < count; ++a) {
        for (int64_t x = 0; x < g->rows * g->dim; ++x) g->do_bound[a][x] = ref_half_ulp(ATTEST_FP32, d_o[a][x]);
        for (int64_t row = 0; row < g->rows; ++row) g->dlse_bound[a][row] = ref_half_ulp(ATTEST_FP32, d_lse[a][row]);
    }
}

/* Of one state. Everything is finite, and so must be results and bounds. */
static int compare(const struct numbers *n, const double *bound, int64_t count, const char *name, int64_t state,
                   struct prop_context *context)
{
    for (int64_t i = 0; i < count; ++i) {
        const double got = (double)((const float *)n->data)[i];
        if (!(bound[i] < INFINITY)) return fails(context, FAILS_ORACLE, "no bound of %s[%d]", name, (int)state);
        if (!(fabs(got - n->values[i]) <= bound[i]))
            return fails(context, FAILS_LAW, "%s[%d][%d] = %.9g, but %.9g within %.3g is right", name, (int)state,
                         (int)i, got, n->values[i], bound[i]);
    }
    return TRIAL_PASSES;
}

int check_merge_backward(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct gradients g = {.arena = c, .seed = c->data.seed, .rows = c->p.seqlen_q + 1, .dim = c->p.head_dim_v};
    draw(&g);
    if (call(&g, self) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "backward of a merge: %s", attest_last_error());
    expect(&g, self->merge_backward_recipe);
    int failure = TRIAL_PASSES;
    for (int64_t a = 0; a < g.args.num_states && failure == TRIAL_PASSES; ++a) {
        failure = compare(&g.do_states[a], g.do_bound[a], g.rows * g.dim, "do", a, context);
        if (failure == TRIAL_PASSES)
            failure = compare(&g.dlse_states[a], g.dlse_bound[a], g.rows, "dlse", a, context);
    }
    return failure;
}

/* merge_states_test.c - merges on devices: of what forward passes write, in every format, and their backward. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include <criterion/criterion.h>

#include "lib/attest.h"
#include "lib/shares.h"
#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/oracle.h"

/* ---- two blocks of keys, merged, are the whole ---- */

enum { BATCH = 2, SEQLEN_Q = 5, SEQLEN_K = 9, CUT = 4, HEADS_Q = 4, HEADS_KV = 2, HEAD_DIM = 8, HEAD_DIM_V = 6 };
enum { ROWS = BATCH * SEQLEN_Q * HEADS_Q, ELEMENTS = ROWS * HEAD_DIM_V };

static float q[ROWS * HEAD_DIM], k[BATCH * SEQLEN_K * HEADS_KV * HEAD_DIM], v[BATCH * SEQLEN_K * HEADS_KV * HEAD_DIM_V];

static void fill_inputs(void)
{
    for (size_t i = 0; i < sizeof q / sizeof *q; ++i) q[i] = 0.25f * (float)((int)(i * 7 % 17) - 8);
    for (size_t i = 0; i < sizeof k / sizeof *k; ++i) k[i] = 0.125f * (float)((int)(i * 5 % 23) - 11);
    for (size_t i = 0; i < sizeof v / sizeof *v; ++i) v[i] = 0.5f * (float)((int)(i * 3 % 13) - 6);
}

/* Keys first .. last - 1. Row r sees keys up to r + 1, so that early rows see nothing of the second block. lse has the
 * order of o's rows, unless `heads_first`. */
static struct attest_problem keys_problem(int32_t device, int64_t first, int64_t last, bool heads_first)
{
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = device;
    p.batch = BATCH, p.seqlen_q = SEQLEN_Q, p.seqlen_k = last - first, p.k_start = first;
    p.num_heads_q = HEADS_Q, p.num_heads_kv = HEADS_KV, p.head_dim = HEAD_DIM, p.head_dim_v = HEAD_DIM_V;
    const int64_t width_k = HEADS_KV * HEAD_DIM, width_v = HEADS_KV * HEAD_DIM_V;
    p.q = (struct attest_tensor){ATTEST_FP32, 0, SEQLEN_Q * HEADS_Q * HEAD_DIM, HEADS_Q * HEAD_DIM, HEAD_DIM};
    p.k = (struct attest_tensor){ATTEST_FP32, 0, SEQLEN_K * width_k, width_k, HEAD_DIM};
    p.v = (struct attest_tensor){ATTEST_FP32, 0, SEQLEN_K * width_v, width_v, HEAD_DIM_V};
    p.o = (struct attest_tensor){ATTEST_FP32, 0, SEQLEN_Q * HEADS_Q * HEAD_DIM_V, HEADS_Q * HEAD_DIM_V, HEAD_DIM_V};
    p.lse = heads_first ? (struct attest_tensor){ATTEST_FP32, 0, SEQLEN_Q * HEADS_Q, 1, SEQLEN_Q}
                        : (struct attest_tensor){ATTEST_FP32, 0, SEQLEN_Q * HEADS_Q, HEADS_Q, 1};
    p.softmax_scale = 0.5f;
    p.window_right = 0, p.diag_kind = ATTEST_DIAG_GIVEN, p.diag = 1;
    return p;
}

static struct attest_forward_args keys_args(int64_t first, void *o, void *lse)
{
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    a.q = q, a.k = k + first * HEADS_KV * HEAD_DIM, a.v = v + first * HEADS_KV * HEAD_DIM_V;
    a.o = o, a.lse = lse;
    return a;
}

/* What a device wrote, the same in double, and how far it may be from the keys' own state. */
struct block {
    float o[ELEMENTS], lse[ROWS];
    double o_values[ELEMENTS], lse_values[ROWS], o_bound[ELEMENTS], lse_bound[ROWS];
};

static void run_block(int32_t device, int64_t first, int64_t last, bool heads_first, struct block *b)
{
    const struct attest_problem p = keys_problem(device, first, last, heads_first);
    const struct attest_forward_args a = keys_args(first, b->o, b->lse);
    const struct ref_bound o = {.bound = b->o_bound}, lse = {.bound = b->lse_bound};
    struct attest_plan *plan;
    memset(b, 0xff, sizeof *b);
    cr_assert_eq(attest_plan_create(&p, &plan), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(attest_run_forward(plan, &a, NULL, 0, NULL), ATTEST_OK, "%s", attest_last_error());
    const struct ref_shares shares = shares_of_plan(plan, ATTEST_FORWARD);
    cr_assert_eq(ref_bound_forward_shares(&p, &a, &shares, &o, &lse, 1), ATTEST_OK);
    attest_plan_destroy(plan);
    for (int i = 0; i < ELEMENTS; ++i) b->o_values[i] = (double)b->o[i];
    for (int i = 0; i < ROWS; ++i) b->lse_values[i] = (double)b->lse[i];
}

/* The oracle's state of all keys, and its own error. */
struct whole {
    double o[ELEMENTS], lse[ROWS], o_error[ELEMENTS], lse_error[ROWS];
};

static void run_whole(struct whole *w)
{
    const struct attest_problem p = keys_problem(ATTEST_REFERENCE, 0, SEQLEN_K, false);
    const struct attest_forward_args a = keys_args(0, NULL, NULL);
    const struct ref_bound o = {.bound = w->o_error}, lse = {.bound = w->lse_error};
    cr_assert_eq(ref_forward(&p, &a, &(struct ref_forward){w->o, w->lse}, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_forward(&p, &a, NULL, &o, &lse, 1), ATTEST_OK);
}

/* Largest share of what the blocks, the merge and the oracle may be off by together. */
static double merged_share(int32_t device, int32_t o_dtype, bool heads_first)
{
    static struct block blocks[2];
    static struct whole whole;
    static float o[ELEMENTS], lse[ROWS]; /* o of 16 bits needs half of it */
    static double o_parts[ELEMENTS], lse_parts[ROWS], o_merge[ELEMENTS], lse_merge[ROWS];
    fill_inputs();
    run_block(device, 0, CUT, heads_first, &blocks[0]);
    run_block(device, CUT, SEQLEN_K, heads_first, &blocks[1]);
    run_whole(&whole);
    const float *const o_states[] = {blocks[0].o, blocks[1].o}, *const lse_states[] = {blocks[0].lse, blocks[1].lse};
    struct attest_merge_args m = ATTEST_MERGE_ARGS_INIT;
    m.device = device, m.o_dtype = o_dtype, m.num_states = 2, m.rows = ROWS, m.head_dim_v = HEAD_DIM_V;
    m.o_states = o_states, m.lse_states = lse_states, m.o = o, m.lse = lse;
    memset(o, 0xff, sizeof o), memset(lse, 0xff, sizeof lse);
    cr_assert_eq(attest_merge_states(&m, NULL), ATTEST_OK, "%s", attest_last_error());

    const double *const o_values[] = {blocks[0].o_values, blocks[1].o_values};
    const double *const lse_values[] = {blocks[0].lse_values, blocks[1].lse_values};
    const double *const o_bounds[] = {blocks[0].o_bound, blocks[1].o_bound};
    const double *const lse_bounds[] = {blocks[0].lse_bound, blocks[1].lse_bound};
    const int32_t stored = o_dtype == 0 ? ATTEST_FP32 : o_dtype;
    ref_bound_parts(2, ROWS, HEAD_DIM_V, o_values, lse_values, o_bounds, lse_bounds, o_parts, lse_parts);
    cr_assert_eq(ref_bound_merge(2, ROWS, HEAD_DIM_V, o_values, lse_values, ref_kernel_recipe("merge"), stored, o_merge,
                                 lse_merge), ATTEST_OK);
    double largest = 0;
    for (int i = 0; i < ELEMENTS; ++i) {
        const double error = fabs(ref_load(stored, o, i) - whole.o[i]);
        const double share = error / (o_parts[i] + o_merge[i] + whole.o_error[i]);
        if (!(share <= largest)) largest = share;
    }
    for (int i = 0; i < ROWS; ++i) {
        const double share = fabs((double)lse[i] - whole.lse[i]) / (lse_parts[i] + lse_merge[i] + whole.lse_error[i]);
        if (!(share <= largest)) largest = share;
    }
    return largest;
}

Test(merge_states, blocks_of_keys_merge_to_the_whole)
{
    static const int32_t devices[] = {ATTEST_SIM, ATTEST_REFERENCE};
    static const int32_t dtypes[] = {0, ATTEST_FP32, ATTEST_FP16, ATTEST_BF16};
    for (int d = 0; d < 2; ++d) {
        for (int t = 0; t < 4; ++t) {
            const double share = merged_share(devices[d], dtypes[t], false);
            cr_expect(share > 0 && share <= 1, "device %d, dtype %d: %g", devices[d], dtypes[t], share);
        }
        cr_expect(!(merged_share(devices[d], ATTEST_BF16, true) <= 1), "rows of lse in another order than those of o");
    }
}

/* ---- results of 16 bits ---- */

/* States whose results are exact in fp32: what is left is one rounding, and where NaN and infinities go. */
Test(merge_states, are_rounded_once_to_16_bits)
{
    static const float first[] = {1, 1 + 0x1p-11f, 1 + 0x1p-10f + 0x1p-11f, -0.0f, 1e5f, NAN, INFINITY, 0x1p-25f};
    static const float second[] = {3, 1 + 0x1p-11f, 1 + 0x1p-10f + 0x1p-11f, -0.0f, 1e5f, 1, 1, 0x1p-25f};
    static const float zero[] = {0}, nothing[] = {-INFINITY};
    static const double want[] = {2, 1, 1 + 0x1p-9, -0.0, INFINITY, NAN, INFINITY, 0};
    for (int32_t device = ATTEST_SIM; device <= ATTEST_REFERENCE; ++device) {
        for (int alone = 0; alone < 2; ++alone) {
            const float *const o_states[] = {first, second}, *const lse_states[] = {zero, alone ? nothing : zero};
            struct attest_merge_args m = ATTEST_MERGE_ARGS_INIT;
            uint16_t o[8 + 1];
            float lse = NAN;
            memset(o, 0xff, sizeof o);
            m.device = device, m.o_dtype = ATTEST_FP16, m.num_states = 2, m.rows = 1, m.head_dim_v = 8;
            m.o_states = o_states, m.lse_states = lse_states, m.lse = &lse;
            m.o = o + 1; /* beside what four at once need */
            cr_assert_eq(attest_merge_states(&m, NULL), ATTEST_OK, "%s", attest_last_error());
            cr_expect_eq(o[0], 0xffff);
            for (int x = alone; x < 8; ++x) {
                const double got = ref_load(ATTEST_FP16, o + 1, x);
                const bool signs = !alone || !signbit(got) == !signbit(want[x]); /* 0 + -0 = 0 */
                cr_expect(isnan(want[x]) ? isnan(got) : got == want[x] && signs,
                          "device %d, alone %d: o[%d] = %g, not %g", device, alone, x, got, want[x]);
            }
        }
    }
}

/* ---- backward ---- */

enum { STATES = 3, SIDE = 5 };

struct gradients {
    float o_states[STATES][SIDE * SIDE], lse_states[STATES][SIDE], do_states[STATES][SIDE * SIDE];
    float dlse_states[STATES][SIDE], o[SIDE * SIDE], lse[SIDE], dout[SIDE * SIDE], dlse[SIDE];
    const float *o_of[STATES], *lse_of[STATES];
    float *do_of[STATES], *dlse_of[STATES];
    struct attest_merge_backward_args args;
};

/* In row 0 the last state is alone, in row 1 all are empty. */
static void fill_gradients(struct gradients *g, int32_t device)
{
    memset(g, 0xff, sizeof *g);
    for (int a = 0; a < STATES; ++a) {
        for (int r = 0; r < SIDE; ++r) {
            const bool empty = r == 1 || (r == 0 && a != STATES - 1);
            g->lse_states[a][r] = empty ? -INFINITY : (float)(r - a);
            for (int x = 0; x < SIDE && !empty; ++x) g->o_states[a][r * SIDE + x] = (float)(x + a - r);
        }
        g->o_of[a] = g->o_states[a], g->lse_of[a] = g->lse_states[a];
        g->do_of[a] = g->do_states[a], g->dlse_of[a] = g->dlse_states[a];
    }
    cr_assert_eq(attest_merge(STATES, SIDE, SIDE, g->o_of, g->lse_of, g->o, g->lse), ATTEST_OK);
    for (int r = 0; r < SIDE; ++r) {
        if (r == 1) continue; /* NaN: not felt */
        g->dlse[r] = 0.5f * (float)(r - 2);
        for (int x = 0; x < SIDE; ++x) g->dout[r * SIDE + x] = 0.25f * (float)(r * x - 3);
    }
    struct attest_merge_backward_args *a = &g->args;
    *a = (struct attest_merge_backward_args)ATTEST_MERGE_BACKWARD_ARGS_INIT;
    a->device = device, a->num_states = STATES, a->rows = a->head_dim_v = SIDE;
    a->o_states = g->o_of, a->lse_states = g->lse_of, a->do_states = g->do_of, a->dlse_states = g->dlse_of;
    a->o = g->o, a->lse = g->lse, a->dout = g->dout, a->dlse = g->dlse;
}

Test(merge_states, backward_of_one_state_is_what_it_was_given)
{
    static struct gradients g;
    for (int32_t device = ATTEST_SIM; device <= ATTEST_REFERENCE; ++device) {
        fill_gradients(&g, device);
        cr_assert_eq(attest_merge_states_backward(&g.args, NULL), ATTEST_OK, "%s", attest_last_error());
        for (int a = 0; a < STATES; ++a) {
            const bool alone = a == STATES - 1;
            cr_expect_eq(g.dlse_states[a][0], alone ? g.dlse[0] : 0.0f);
            cr_expect_eq(g.dlse_states[a][1], 0.0f);
            for (int x = 0; x < SIDE; ++x) {
                cr_expect_eq(g.do_states[a][x], alone ? g.dout[x] : 0.0f);
                cr_expect_eq(g.do_states[a][SIDE + x], 0.0f);
            }
        }
    }
}

/* As many as a GPU takes. Two devices differ by no more than both may be off by. */
Test(merge_states, backward_of_many_states_on_both_devices)
{
    enum { MANY = 128 };
    static float o[MANY][2], lse[MANY], d_o[2][MANY][2], d_lse[2][MANY], merged[2], merged_lse, dout[2] = {1, -2};
    static double values[MANY][2], lse_values[MANY], do_bound[MANY][2], dlse_bound[MANY];
    const float *o_of[MANY], *lse_of[MANY];
    float *do_of[MANY], *dlse_of[MANY];
    double *do_bounds[MANY], *dlse_bounds[MANY];
    const double *o_values[MANY], *lse_doubles[MANY];
    for (int a = 0; a < MANY; ++a) {
        o[a][0] = (float)(a % 7), o[a][1] = (float)(a % 11), lse[a] = 0.01f * (float)a;
        for (int x = 0; x < 2; ++x) values[a][x] = (double)o[a][x];
        lse_values[a] = (double)lse[a];
        o_of[a] = o[a], lse_of[a] = &lse[a], o_values[a] = values[a], lse_doubles[a] = &lse_values[a];
        do_bounds[a] = do_bound[a], dlse_bounds[a] = &dlse_bound[a];
    }
    cr_assert_eq(attest_merge(MANY, 1, 2, o_of, lse_of, merged, &merged_lse), ATTEST_OK);
    for (int d = 0; d < 2; ++d) {
        struct attest_merge_backward_args a = ATTEST_MERGE_BACKWARD_ARGS_INIT;
        for (int s = 0; s < MANY; ++s) do_of[s] = d_o[d][s], dlse_of[s] = &d_lse[d][s];
        a.device = d == 0 ? ATTEST_SIM : ATTEST_REFERENCE, a.num_states = MANY, a.rows = 1, a.head_dim_v = 2;
        a.o_states = o_of, a.lse_states = lse_of, a.do_states = do_of, a.dlse_states = dlse_of;
        a.o = merged, a.lse = &merged_lse, a.dout = dout;
        cr_assert_eq(attest_merge_states_backward(&a, NULL), ATTEST_OK, "%s", attest_last_error());
    }
    const double o_double[] = {(double)merged[0], (double)merged[1]}, lse_double = (double)merged_lse;
    const double dout_double[] = {1, -2};
    ref_bound_merge_backward(MANY, 1, 2, o_values, lse_doubles, o_double, &lse_double, dout_double, NULL,
                             ref_kernel_recipe("merge_backward"), do_bounds, dlse_bounds);
    for (int s = 0; s < MANY; ++s) {
        cr_expect(fabsf(d_lse[0][s] - d_lse[1][s]) <= 2 * dlse_bound[s] && d_lse[0][s] != 0);
        for (int x = 0; x < 2; ++x) cr_expect(fabsf(d_o[0][s][x] - d_o[1][s][x]) <= 2 * do_bound[s][x]);
    }
}

static void refused(const struct attest_merge_backward_args *a, enum attest_status status, const char *text)
{
    cr_assert_eq(attest_merge_states_backward(a, NULL), status, "%s: %s", text, attest_last_error());
    cr_assert(strstr(attest_last_error(), text) != NULL, "\"%s\" is not in \"%s\"", text, attest_last_error());
}

#define REFUSED(status, text, change)                    \
    do {                                                 \
        fill_gradients(&g, ATTEST_SIM);                  \
        struct attest_merge_backward_args *a = &g.args;  \
        change;                                          \
        refused(a, status, text);                        \
    } while (0)

Test(merge_states, a_bad_backward_is_refused)
{
    static struct gradients g;
    REFUSED(ATTEST_INVALID, "args.struct_size = 4", a->struct_size = 4);
    REFUSED(ATTEST_INVALID, "device = 3, but must be 0 .. 2", a->device = 3);
    REFUSED(ATTEST_INVALID, "device_ordinal = 1, but must be 0", a->device_ordinal = 1);
    REFUSED(ATTEST_INVALID, "o_dtype = 4, but must be 0, fp32, fp16 or bf16", a->o_dtype = ATTEST_FP8_E4M3);
    REFUSED(ATTEST_INVALID, "dout_dtype = 6, but must be 0, fp32, fp16 or bf16", a->dout_dtype = ATTEST_UINT8);
    REFUSED(ATTEST_INVALID, "reserved0 = 9, but must be 0", a->reserved0 = 9);
    REFUSED(ATTEST_INVALID, "num_states = -1", a->num_states = -1);
    REFUSED(ATTEST_INVALID, "head_dim_v = 0", a->head_dim_v = 0);
    REFUSED(ATTEST_UNSUPPORTED, "num_states = 129, but must be at most 128", a->num_states = 129);
    REFUSED(ATTEST_UNSUPPORTED, "rows = 8589934592", a->rows = INT64_C(1) << 33);
    REFUSED(ATTEST_INVALID, "o_states = NULL, but must point", a->o_states = NULL);
    REFUSED(ATTEST_INVALID, "dlse_states = NULL, but must point", a->dlse_states = NULL);
    REFUSED(ATTEST_INVALID, "lse_states[2] = (nil), but must point", g.lse_of[2] = NULL);
    REFUSED(ATTEST_INVALID, "do_states[0] = (nil), but must point", g.do_of[0] = NULL);
    REFUSED(ATTEST_INVALID, "dout = (nil), but must point", a->dout = NULL);
    REFUSED(ATTEST_INVALID, "o = 0x", a->o = (const char *)g.o + 2);
    REFUSED(ATTEST_INVALID, "do_states[1] = 0x", g.do_of[1] = g.do_states[2]);
    REFUSED(ATTEST_INVALID, "must not overlap do_states[2]", g.do_of[1] = g.do_states[2]);
    REFUSED(ATTEST_INVALID, "must not overlap dlse_states[0]", g.dlse_of[0] = g.do_states[0] + 7);
    REFUSED(ATTEST_INVALID, "must not overlap dlse_states[2]", g.dlse_of[0] = g.dlse_states[2]);
    REFUSED(ATTEST_INVALID, "must not overlap o_states[1]", g.do_of[0] = g.o_states[1]);
    REFUSED(ATTEST_INVALID, "must not overlap lse_states[1]", g.dlse_of[2] = g.lse_states[1]);
    REFUSED(ATTEST_INVALID, "must not overlap dout", g.do_of[0] = g.dout);
    REFUSED(ATTEST_INVALID, "must not overlap dlse =", g.dlse_of[1] = g.dlse);
    refused(NULL, ATTEST_INVALID, "args = NULL");
    fill_gradients(&g, ATTEST_SIM);
    g.args.rows = 0, g.args.o = NULL, g.args.o_states = g.args.lse_states = NULL;
    g.args.do_states = g.args.dlse_states = NULL;
    cr_assert_eq(attest_merge_states_backward(&g.args, NULL), ATTEST_OK);
    fill_gradients(&g, ATTEST_SIM);
    g.args.rows = SIDE, g.args.num_states = 0;
    cr_assert_eq(attest_merge_states_backward(&g.args, NULL), ATTEST_OK);
}

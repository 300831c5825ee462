/* devices_test.c - kernels through the public calls: which one a plan picks, what it gives, how a fault is said. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "kernels/registry.h"
#include "kernels/sim/sim.h"
#include "lib/plan.h"
#include "lib/testing.h"
#include "reference/bounds.h"

/* Forward alone, without what no kernel takes. */
static struct attest_problem kernel_problem(int32_t device)
{
    struct attest_problem p = whole_problem();
    p.device = device;
    p.dq.dtype = p.dk.dtype = p.dv.dtype = p.dbias.dtype = ATTEST_ABSENT;
    p.dout.dtype = p.dlse.dtype = p.delta.dtype = ATTEST_ABSENT;
    p.bias.dtype = p.mask.dtype = p.block_mask.dtype = ATTEST_ABSENT;
    p.has_alibi = 0, p.softcap = p.dropout_p = 0;
    return p;
}

static struct attest_plan *plan_of(const struct attest_problem *p)
{
    struct attest_plan *plan;
    cr_assert_eq(attest_plan_create(p, &plan), ATTEST_OK, "%s", attest_last_error());
    return plan;
}

Test(devices, a_plan_names_its_kernel)
{
    const struct attest_problem p = kernel_problem(ATTEST_SIM);
    struct attest_plan *plan = plan_of(&p);
    cr_assert_str_eq(attest_plan_kernel(plan), "forward_fp32");
    cr_assert_eq(attest_plan_recipe(plan), ref_kernel_recipe("forward_fp32"));
    cr_assert_not_null(attest_plan_recipe(plan));
    attest_plan_destroy(plan);
}

static void run(int32_t device, struct buffers *b, struct sim_gpu *gpu)
{
    const struct attest_problem p = kernel_problem(device);
    struct attest_plan *plan = plan_of(&p);
    fill_buffers(b);
    cr_assert_eq(attest_run_forward(plan, &b->args.forward, NULL, 0, gpu), ATTEST_OK, "%s", attest_last_error());
    attest_plan_destroy(plan);
}

Test(devices, sim_gives_what_the_reference_gives)
{
    static struct buffers want, got, again;
    const struct sim_options options = {.generation = SIM_SM_80, .async = SIM_ASYNC_RANDOM, .seed = 7, .workers = 2};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    run(ATTEST_REFERENCE, &want, NULL);
    run(ATTEST_SIM, &got, NULL);
    run(ATTEST_SIM, &again, gpu);
    cr_assert_eq(memcmp(got.o, again.o, sizeof got.o), 0);
    cr_assert_eq(memcmp(got.lse, again.lse, sizeof got.lse), 0);
    cr_assert_gt(sim_counts(gpu)->launches, 0);
    for (int i = 0; i < ROWS_Q * HEADS_Q * HEAD_DIM_V; ++i) /* numbers below 3, 5 keys, fp32 */
        cr_assert(fabsf(got.o[i] - want.o[i]) <= 1e-5f, "o[%d] = %g, not %g", i, (double)got.o[i], (double)want.o[i]);
    for (int i = 0; i < ROWS_Q * HEADS_Q; ++i)
        cr_assert(got.lse[i] == want.lse[i] || fabsf(got.lse[i] - want.lse[i]) <= 1e-5f, "lse[%d]", i);
    sim_gpu_destroy(gpu);
}

/* A kernel that forgets to launch. */
static int launch_nothing(const struct forward_params *params, void *stream)
{
    (void)params, (void)stream;
    return 0;
}

Test(devices, a_finding_is_a_device_error)
{
    static struct buffers b;
    const struct forward_kernel lazy = {.name = "lazy", .sim = launch_nothing};
    struct attest_plan plan = {.problem = kernel_problem(ATTEST_SIM), .forward = &lazy, .kernel = "lazy"};
    fill_buffers(&b);
    cr_assert_eq(attest_run_forward(&plan, &b.args.forward, NULL, 0, NULL), ATTEST_DEVICE_ERROR);
    cr_assert(strlen(attest_last_error()) > 20, "%s", attest_last_error());
}

/* Host-readable lengths are checked on the simulated GPU, too. */
Test(devices, lengths_are_checked)
{
    static struct buffers b;
    const struct attest_problem p = kernel_problem(ATTEST_SIM);
    struct attest_plan *plan = plan_of(&p);
    fill_buffers(&b);
    b.seqused_k[1] = SEQLEN_K + 1;
    cr_assert_eq(attest_run_forward(plan, &b.args.forward, NULL, 0, NULL), ATTEST_INVALID);
    attest_plan_destroy(plan);
}

/* ---- merge ---- */

enum { STATES = 3, ROWS = 7, DIM = 6 };

struct states {
    float o[STATES][ROWS * DIM], lse[STATES][ROWS], merged_o[ROWS * DIM], merged_lse[ROWS];
    const float *o_of[STATES], *lse_of[STATES];
    struct attest_merge_args args;
};

static void fill_states(struct states *s, int32_t device)
{
    memset(s, 0xff, sizeof *s);
    for (int a = 0; a < STATES; ++a) {
        for (int i = 0; i < ROWS * DIM; ++i) s->o[a][i] = 0.25f * (float)((i * 7 + a) % 11 - 5);
        for (int i = 0; i < ROWS; ++i) s->lse[a][i] = i % 4 == a ? -INFINITY : 0.5f * (float)(i - 2 * a);
        s->o_of[a] = s->o[a], s->lse_of[a] = s->lse[a];
    }
    s->args = (struct attest_merge_args)ATTEST_MERGE_ARGS_INIT;
    s->args.device = device;
    s->args.num_states = STATES, s->args.rows = ROWS, s->args.head_dim_v = DIM;
    s->args.o_states = s->o_of, s->args.lse_states = s->lse_of;
    s->args.o = s->merged_o, s->args.lse = s->merged_lse;
}

Test(devices, sim_merges_as_the_host_does)
{
    static struct states want, got;
    fill_states(&want, ATTEST_REFERENCE);
    fill_states(&got, ATTEST_SIM);
    cr_assert_eq(attest_merge_states(&want.args, NULL), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(attest_merge_states(&got.args, NULL), ATTEST_OK, "%s", attest_last_error());
    for (int i = 0; i < ROWS * DIM; ++i) cr_assert(fabsf(got.merged_o[i] - want.merged_o[i]) <= 1e-6f, "o[%d]", i);
    for (int i = 0; i < ROWS; ++i) cr_assert(fabsf(got.merged_lse[i] - want.merged_lse[i]) <= 2e-6f, "lse[%d]", i);
}

static void refused(const struct attest_merge_args *args, enum attest_status status, const char *text)
{
    cr_assert_eq(attest_merge_states(args, NULL), status, "%s: %s", text, attest_last_error());
    cr_assert(strstr(attest_last_error(), text) != NULL, "\"%s\" is not in \"%s\"", text, attest_last_error());
}

#define REFUSED(status, text, change)           \
    do {                                        \
        fill_states(&s, ATTEST_SIM);            \
        struct attest_merge_args *a = &s.args;  \
        change;                                 \
        refused(a, status, text);               \
    } while (0)

Test(devices, a_bad_merge_is_refused)
{
    static struct states s;
    REFUSED(ATTEST_INVALID, "args.struct_size = 4", a->struct_size = 4);
    REFUSED(ATTEST_INVALID, "device = 3, but must be 0 .. 2", a->device = 3);
    REFUSED(ATTEST_INVALID, "device_ordinal = 1, but must be 0", a->device_ordinal = 1);
    REFUSED(ATTEST_INVALID, "device_ordinal = -1, but must be >= 0", (a->device = ATTEST_CUDA, a->device_ordinal = -1));
    REFUSED(ATTEST_INVALID, "reserved0 = 9, but must be 0", a->reserved0 = 9);
    REFUSED(ATTEST_INVALID, "rows = -1", a->rows = -1);
    REFUSED(ATTEST_INVALID, "o_states[1] = (nil), but must point", s.o_of[1] = NULL);
    static const float *many[129];
    for (int i = 0; i < 129; ++i) many[i] = s.lse[0];
    REFUSED(ATTEST_UNSUPPORTED, "num_states = 129, but must be at most 128",
            (a->num_states = 129, a->head_dim_v = 1, a->o_states = many, a->lse_states = many));
    REFUSED(ATTEST_UNSUPPORTED, "rows = 8589934592, but must be at most 8589934588",
            (a->num_states = 0, a->rows = INT64_C(1) << 33, a->lse = (float *)(INT64_C(1) << 46)));
    cr_assert_eq(attest_merge_states(NULL, NULL), ATTEST_INVALID);
}

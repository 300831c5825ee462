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

/* Both results lie within the bound of the recipe. */
static void check_forward(const struct buffers *b, const char *kernel)
{
    static double o[ROWS_Q * HEADS_Q * HEAD_DIM_V], lse[ROWS_Q * HEADS_Q], o_bound[sizeof o / sizeof *o],
        lse_bound[sizeof lse / sizeof *lse];
    const struct attest_problem p = kernel_problem(ATTEST_REFERENCE);
    const struct attest_forward_args *a = &b->args.forward;
    const struct attest_recipe *recipe = ref_kernel_recipe(kernel);
    const struct ref_forward oracle = {o, lse};
    const struct ref_bound bounds[] = {[REF_O] = {.bound = o_bound}, [REF_LSE] = {.bound = lse_bound}};
    cr_assert_eq(ref_forward(&p, a, &oracle, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_forward(&p, a, recipe != NULL ? recipe : ref_recipe(kernel), &bounds[REF_O],
                                   &bounds[REF_LSE], 1), ATTEST_OK);
    for (enum ref_tensor t = REF_O; t <= REF_LSE; ++t) {
        struct ref_report r;
        ref_judge(&p, a, t, t == REF_O ? b->o : b->lse, t == REF_O ? o : lse, &bounds[t], 0, &r);
        cr_assert_eq(r.verdict, REF_PASS, "%s of %s is %g, not %g, with a bound of %g", ref_tensor_names[t], kernel,
                     r.use_got, r.use_want, r.use_bound);
    }
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
    sim_gpu_destroy(gpu);
    check_forward(&want, "fp32"); /* the oracle's own, rounded once */
    check_forward(&got, "forward_fp32");
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
    struct attest_plan plan = {.problem = kernel_problem(ATTEST_SIM), .forward = &lazy};
    fill_buffers(&b);
    cr_assert_eq(attest_run_forward(&plan, &b.args.forward, NULL, 0, NULL), ATTEST_DEVICE_ERROR);
    cr_assert(strlen(attest_last_error()) > 20, "%s", attest_last_error());
}

static int launch_nothing_backward(const struct backward_params *params, void *stream)
{
    (void)params, (void)stream;
    return 0;
}

/* Of a plan whose backward pass needs 256 bytes. */
static void run_lazy_backward(struct buffers *b, void *workspace, size_t bytes, enum attest_status status,
                              const char *text)
{
    const struct backward_kernel lazy = {.name = "lazy", .sim = launch_nothing_backward};
    struct attest_plan plan = {.problem = whole_problem(), .backward = &lazy, .backward_pass = {"lazy", NULL, 256}};
    plan.problem.device = ATTEST_SIM;
    cr_assert_eq(attest_run_backward(&plan, &b->args, workspace, bytes, NULL), status, "%s", attest_last_error());
    cr_assert(strstr(attest_last_error(), text) != NULL, "\"%s\" is not in \"%s\"", text, attest_last_error());
}

Test(devices, a_workspace_is_checked)
{
    static struct buffers b;
    static _Alignas(256) char workspace[512];
    fill_buffers(&b);
    run_lazy_backward(&b, workspace, 255, ATTEST_INVALID, "workspace_bytes = 255, but must be at least 256");
    run_lazy_backward(&b, NULL, 256, ATTEST_INVALID, "workspace = NULL, but must point to workspace_bytes = 256 bytes");
    run_lazy_backward(&b, workspace + 16, 496, ATTEST_INVALID, ", but must be a multiple of 256");
    b.args.dq = workspace + 252;
    run_lazy_backward(&b, workspace, 256, ATTEST_INVALID, "but must not overlap");
    b.args.dq = b.dq;
    run_lazy_backward(&b, workspace, 256, ATTEST_DEVICE_ERROR, "dq");
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

/* Within the bound of a merge in fp32, which is zero where a row has one state. */
static void check_merge(const struct states *s)
{
    double o_of[STATES][ROWS * DIM], lse_of[STATES][ROWS], o[ROWS * DIM], lse[ROWS];
    double o_bound[ROWS * DIM], lse_bound[ROWS];
    const struct attest_recipe *recipe = ref_kernel_recipe("merge");
    const double *o_states[STATES], *lse_states[STATES];
    for (int a = 0; a < STATES; ++a) {
        for (int i = 0; i < ROWS * DIM; ++i) o_of[a][i] = s->o[a][i];
        for (int i = 0; i < ROWS; ++i) lse_of[a][i] = s->lse[a][i];
        o_states[a] = o_of[a], lse_states[a] = lse_of[a];
    }
    ref_merge(STATES, ROWS, DIM, o_states, lse_states, o, lse);
    cr_assert_eq(ref_bound_merge(STATES, ROWS, DIM, o_states, lse_states, recipe, o_bound, lse_bound), ATTEST_OK);
    for (int i = 0; i < ROWS * DIM; ++i)
        cr_assert(fabs(s->merged_o[i] - o[i]) <= o_bound[i], "o[%d] = %g, not %g", i, (double)s->merged_o[i], o[i]);
    for (int i = 0; i < ROWS; ++i)
        cr_assert(fabs(s->merged_lse[i] - lse[i]) <= lse_bound[i], "lse[%d] = %g, not %g", i,
                  (double)s->merged_lse[i], lse[i]);
}

Test(devices, sim_merges_within_its_bound)
{
    static struct states got;
    fill_states(&got, ATTEST_SIM);
    cr_assert_eq(attest_merge_states(&got.args, NULL), ATTEST_OK, "%s", attest_last_error());
    check_merge(&got);
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

/* traffic_test.c - bytes of global memory that kernels ask for, counted by the simulated GPU: attention unfused, and
 * attest's, for one head of GPT-2 medium, forward and backward.
 *
 * Published for GPT-2 medium (seqlen 1024, head_dim 64, 16 heads, batch 64), measured at the memory of a chip: 40.3 GB
 * unfused, 4.4 GB fused. The simulated GPU has no cache: what it counts for attest is what a chip's L2 is asked for,
 * each tile's own copy of k and v, or q and dout, included; the unfused kernels here read nothing twice. */
#include <inttypes.h>
#include <stdio.h>

#include <criterion/criterion.h>

#include "kernels/sim/sim.h"
#include "lib/shares.h"
#include "proptests/published/published_tensors.h"
#include "proptests/kernels/unfused.h"
#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/oracle.h"

enum { SEQLEN = UNFUSED_SEQLEN, DIM = UNFUSED_HEAD_DIM, ELEMENTS = SEQLEN * DIM, ALL_HEADS = 16 * 64 };

/* Bytes of one head's q, of its matrix of scores, of one number a row. */
enum { TENSOR = 2 * ELEMENTS, MATRIX = 2 * SEQLEN * SEQLEN, SCALARS = 4 * SEQLEN };

struct traffic {
    uint64_t read, written;
};

/* One head. */
struct head {
    struct memory memory;
    struct sim_gpu *gpu;
    struct attest_problem p;
    struct attest_backward_args a;
};

/* Numbers +1 and -1: scores are eighths, which fp16 holds. */
static struct tensor *new_signs(struct memory *m, enum role role)
{
    struct tensor *t = new_normal(m, ATTEST_FP16, role, SEQLEN, 1, DIM);
    for (int64_t i = 0; i < t->count; ++i)
        ref_store(ATTEST_FP16, t->host, i, ref_load(ATTEST_FP16, t->host, i) < 0 ? -1 : 1);
    to_machine(m, t);
    return t;
}

/* The simulated GPU's memory is the host's: what lies `there` is all that is used. Dropout's factor is a power of two:
 * the unfused steps round nothing by it. */
static void begin(struct head *h, bool causal)
{
    const struct sim_options options = {.generation = SIM_SM_90, .workers = 1};
    struct memory *const m = &h->memory;
    struct attest_problem *const p = &h->p;
    struct attest_backward_args *const a = &h->a;
    m->machine = &machine_of_host;
    h->gpu = sim_gpu_create(&options);
    cr_assert_not_null(h->gpu);
    *p = packed_problem(m->machine, SEQLEN, SEQLEN, 1, DIM);
    p->dout = p->dq = p->dk = p->dv = p->q;
    p->dropout_p = 0.5f, p->dropout_seed = 42;
    if (causal) p->window_right = 0;
    *a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    a->forward.q = new_signs(m, ROLE_Q)->there, a->forward.k = new_signs(m, ROLE_K)->there;
    a->forward.v = new_normal(m, ATTEST_FP16, ROLE_V, SEQLEN, 1, DIM)->there;
    a->dout = new_normal(m, ATTEST_FP16, ROLE_DOUT, SEQLEN, 1, DIM)->there;
    a->forward.o = new_tensor(m, ATTEST_FP16, ELEMENTS)->there;
    a->forward.lse = new_tensor(m, ATTEST_FP32, SEQLEN)->there;
    a->dq = new_tensor(m, ATTEST_FP16, ELEMENTS)->there, a->dk = new_tensor(m, ATTEST_FP16, ELEMENTS)->there;
    a->dv = new_tensor(m, ATTEST_FP16, ELEMENTS)->there;
}

static void end(struct head *h)
{
    sim_gpu_destroy(h->gpu);
    free_memory(&h->memory, 0);
}

/* Since the last time. */
static struct traffic traffic_of(struct sim_gpu *gpu)
{
    const struct traffic t = {sim_counts(gpu)->global_read_bytes, sim_counts(gpu)->global_write_bytes};
    sim_reset_counts(gpu);
    return t;
}

/* What is counted computes attention: within the bounds. */
static void judge(struct head *h, const struct ref_shares *forward, const struct ref_shares *backward)
{
    double *want[REF_NUM_TENSORS] = {0};
    struct ref_bound bounds[REF_NUM_TENSORS] = {0};
    const void *const got[REF_NUM_TENSORS] = {[REF_O] = h->a.forward.o, [REF_DQ] = h->a.dq, [REF_DK] = h->a.dk,
                                              [REF_DV] = h->a.dv};
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        if (got[t] != NULL) {
            want[t] = new_doubles(&h->memory, ELEMENTS);
            bounds[t].bound = new_doubles(&h->memory, ELEMENTS);
        }
    const struct ref_forward of_forward = {.o = want[REF_O]};
    const struct ref_backward of_backward = {.dq = want[REF_DQ], .dk = want[REF_DK], .dv = want[REF_DV]};
    cr_assert_eq(ref_forward(&h->p, &h->a.forward, &of_forward, 0), ATTEST_OK);
    cr_assert_eq(ref_backward(&h->p, &h->a, NULL, &of_backward, 0), ATTEST_OK);
    cr_assert_eq(ref_bound_forward_shares(&h->p, &h->a.forward, forward, &bounds[REF_O], NULL, 0), ATTEST_OK);
    cr_assert_eq(ref_bound_backward_shares(&h->p, &h->a, backward, bounds, 0), ATTEST_OK);
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        struct ref_report report;
        if (got[t] == NULL) continue;
        ref_judge(&h->p, &h->a.forward, t, got[t], want[t], &bounds[t], 0, &report);
        printf("    %-3s %5.3f of the bound\n", ref_tensor_names[t], report.use);
        cr_expect_eq(report.verdict, REF_PASS, "%s: %s", ref_tensor_names[t], ref_verdict_name(report.verdict));
    }
}

static void print(const char *what, const struct traffic *forward, const struct traffic *backward)
{
    const double read = (double)(forward->read + backward->read);
    const double written = (double)(forward->written + backward->written);
    printf("%s: read %" PRIu64 " + %" PRIu64 ", written %" PRIu64 " + %" PRIu64 " bytes a head, forward + backward\n"
           "    GPT-2 medium: %.2f GB read, %.2f GB written, %.2f GB; compulsory %.2f GB\n",
           what, forward->read, backward->read, forward->written, backward->written, read * ALL_HEADS / 1e9,
           written * ALL_HEADS / 1e9, (read + written) * ALL_HEADS / 1e9,
           (12.0 * TENSOR + 2.0 * SCALARS) * ALL_HEADS / 1e9); /* q, k, v, o, lse; these, dout, dq, dk, dv */
    fflush(stdout);
}

static void map(struct head *h, const char *name, const void *data, size_t bytes, int access)
{
    cr_assert(sim_map(h->gpu, name, data, bytes, access));
}

/* 17 passes over matrices: s, mask 2, softmax 2, dropout 2, o; dv, dp, dropout 2, softmax's backward 3, dq, dk. */
Test(traffic, unfused)
{
    static struct head h;
    begin(&h, true);
    struct memory *const m = &h.memory;
    const struct attest_forward_args *const f = &h.a.forward;
    struct unfused_params u = {forward_params_of(&h.p, f), h.a.dout, h.a.dq, h.a.dk, h.a.dv,
                               new_tensor(m, ATTEST_FP16, SEQLEN * SEQLEN)->there,
                               new_tensor(m, ATTEST_FP16, SEQLEN * SEQLEN)->there,
                               new_tensor(m, ATTEST_FP16, SEQLEN * SEQLEN)->there};
    const void *const inputs[] = {f->q, f->k, f->v, u.dout}, *const outputs[] = {f->o, u.dq, u.dk, u.dv};
    const void *const matrices[] = {u.p, u.dropped_p, u.dp};
    for (int i = 0; i < 4; ++i) map(&h, "input", inputs[i], TENSOR, SIM_READ | SIM_INITIALISED);
    for (int i = 0; i < 4; ++i) map(&h, "output", outputs[i], TENSOR, SIM_WRITE);
    for (int i = 0; i < 3; ++i) map(&h, "matrix", matrices[i], MATRIX, SIM_READ | SIM_WRITE);
    cr_assert_eq(unfused_forward_sim(&u, h.gpu), SIM_CLEAN, "%s", sim_last_report(h.gpu)->text);
    const struct traffic forward = traffic_of(h.gpu);
    cr_assert_eq(unfused_backward_sim(&u, h.gpu), SIM_CLEAN, "%s", sim_last_report(h.gpu)->text);
    const struct traffic backward = traffic_of(h.gpu);
    cr_assert_eq(sim_check_written(h.gpu), SIM_CLEAN, "%s", sim_last_report(h.gpu)->text);
    print("unfused (published: 40.3 GB)", &forward, &backward);
    cr_expect_eq(forward.read, 4 * MATRIX + 3 * TENSOR);
    cr_expect_eq(forward.written, 4 * MATRIX + TENSOR);
    cr_expect_eq(backward.read, 6 * MATRIX + 5 * TENSOR);
    cr_expect_eq(backward.written, 3 * MATRIX + 3 * TENSOR);
    h.p.lse = (struct attest_tensor){0}; /* not computed: bounds take the oracle's */
    const struct ref_shares flash = ref_one_share(ref_recipe("flash"));
    judge(&h, &flash, &flash);
    end(&h);
}

/* Of the kernels that the library picks; prints them and asks whether they are `forward` and `backward`. */
static void count_ours(bool causal, struct traffic *forward, struct traffic *backward)
{
    static struct head h;
    struct attest_plan *plan;
    size_t bytes[2];
    begin(&h, causal);
    cr_assert_eq(attest_plan_create(&h.p, &plan), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(attest_plan_workspace(plan, &bytes[0], &bytes[1]), ATTEST_OK);
    void *const workspace = new_tensor(&h.memory, ATTEST_FP32, (int64_t)bytes[1] / 4)->there;
    cr_assert_eq(attest_run_forward(plan, &h.a.forward, NULL, 0, h.gpu), ATTEST_OK, "%s", attest_last_error());
    *forward = traffic_of(h.gpu);
    cr_assert_eq(attest_run_backward(plan, &h.a, workspace, bytes[1], h.gpu), ATTEST_OK, "%s", attest_last_error());
    *backward = traffic_of(h.gpu);
    print(causal ? "attest, causal (published: 4.4 GB)" : "attest, every key", forward, backward);
    cr_expect_str_eq(attest_plan_kernel(plan, ATTEST_FORWARD), "forward_sm90_any");
    cr_expect_str_eq(attest_plan_kernel(plan, ATTEST_BACKWARD), "backward_sm80");
    const struct ref_shares of_forward = shares_of_plan(plan, ATTEST_FORWARD);
    const struct ref_shares of_backward = shares_of_plan(plan, ATTEST_BACKWARD);
    judge(&h, &of_forward, &of_backward);
    attest_plan_destroy(plan);
    end(&h);
}

/* With dropout, tiles are of 128 rows: forward reads q once, k and v once for each tile of queries that sees them: 8
 * times, under the causal mask 4.5. Backward has two such walks, over k and v, and over q, dout and three terms of
 * rows; one reads q, o and, twice, dout, the other k and v besides. */
Test(traffic, causal)
{
    struct traffic forward, backward;
    count_ours(true, &forward, &backward);
    cr_expect_eq(forward.read, 10 * TENSOR);
    cr_expect_eq(forward.written, TENSOR + SCALARS);
    cr_expect_eq(backward.read, 24 * TENSOR + 35 * SCALARS / 2);
    cr_expect_eq(backward.written, 3 * TENSOR + 5 * SCALARS);
}

Test(traffic, every_key)
{
    struct traffic forward, backward;
    count_ours(false, &forward, &backward);
    cr_expect_eq(forward.read, 17 * TENSOR);
    cr_expect_eq(forward.written, TENSOR + SCALARS);
    cr_expect_eq(backward.read, 38 * TENSOR + 28 * SCALARS);
    cr_expect_eq(backward.written, 3 * TENSOR + 5 * SCALARS);
}

/* plan.c - from a problem to a plan. */
#include "lib/plan.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"
#include "lib/run.h"
#include "reference/bounds.h"

/* In the words of the last kernel of the table, which has any lengths. Sentences take longer than all the rest of a
 * plan: there is one only where no kernel is found. */
static bool refuse_pass(const char *pass, const struct attest_problem *p, const struct kernel_reach *last,
                        struct lengths most)
{
    char why[256] = "there is none";
    kernel_takes(last, most, p, 0, why, sizeof why);
    return attest_refuse(ATTEST_UNSUPPORTED, "no kernel takes the problem%s: %s", pass, why);
}

static bool fits(int64_t length, bool varies, int32_t most) { return varies || length <= most; }

/* Whether a kernel has a share of the problem: there may be a sequence of its lengths that none before it has. */
static bool has_share(const struct attest_problem *p, struct lengths most)
{
    return fits(p->seqlen_q, p->ragged || p->has_seqused_q, most.q) &&
           fits(p->seqlen_k, p->ragged || p->has_seqused_k, most.k);
}

static bool has_all(const struct attest_problem *p, struct lengths most)
{
    return p->seqlen_q <= most.q && p->seqlen_k <= most.k;
}

/* Whether one of the kernels before has whatever this one could have. */
static bool is_covered(const struct attest_pass_plan *pass, struct lengths most)
{
    for (const struct attest_share *share = pass->shares; share < pass->shares + pass->num_shares; ++share)
        if (most.q <= share->most_seqlen_q && most.k <= share->most_seqlen_k) return true;
    return false;
}

_Static_assert((int)MAX_SHARES <= (int)REF_MOST_SHARES, "bounds take as many shares as a plan may have");

static void add_share(struct attest_pass_plan *pass, const char *kernel, struct lengths most)
{
    const size_t length = strlen(pass->kernel);
    snprintf(pass->kernel + length, sizeof pass->kernel - length, "%s%s", length > 0 ? "+" : "", kernel);
    pass->shares[pass->num_shares++] = (struct attest_share){.struct_size = sizeof(struct attest_share),
                                                             .kernel = kernel,
                                                             .recipe = ref_kernel_recipe(kernel),
                                                             .most_seqlen_q = most.q,
                                                             .most_seqlen_k = most.k};
}

/* That one is left to a kernel that takes all that is left. */
static bool is_last_share(const struct attest_pass_plan *pass) { return pass->num_shares == MAX_SHARES - 1; }

/* A simulated GPU has what the first of its generation has, and Hopper as much as any kernel needs. */
static int shared_bytes_of(const struct attest_problem *p, int major)
{
    const int simulated = major == 8 ? 163 * 1024 : INT_MAX;
    return p->device == ATTEST_CUDA ? attest_cuda_shared_bytes(p->device_ordinal) : simulated;
}

static int num_sms_of(const struct attest_problem *p)
{
    return p->device == ATTEST_CUDA ? attest_cuda_num_sms(p->device_ordinal) : ATTEST_SIM_NUM_SMS;
}

static int major_of(const struct attest_problem *p)
{
    return p->device == ATTEST_CUDA ? attest_cuda_major(p->device_ordinal) : 9;
}

/* The first of the table that has the whole problem, and those before it that have a share. */
static bool pick_forward(struct attest_plan *plan, int major)
{
    const struct attest_problem *p = &plan->problem;
    struct attest_pass_plan *pass = &plan->forward_pass;
    const struct forward_kernel *k = forward_kernels;
    const int num_sms = num_sms_of(p);
    for (; k->name != NULL; ++k) {
        if ((k->only_major != 0 && k->only_major != major) || is_covered(pass, k->most)) continue;
        if (!has_share(p, k->most) || !kernel_takes(&k->reach, k->most, p, num_sms, NULL, 0)) continue;
        if (is_last_share(pass) && !has_all(p, k->most)) continue;
        plan->forward[pass->num_shares] = k;
        add_share(pass, k->name, k->most);
        if (has_all(p, k->most)) return true;
    }
    return refuse_pass("", p, &k[-1].reach, k[-1].most);
}

static size_t round_up(size_t bytes)
{
    return (bytes + ATTEST_WORKSPACE_ALIGNMENT - 1) / ATTEST_WORKSPACE_ALIGNMENT * ATTEST_WORKSPACE_ALIGNMENT;
}

static bool pick_backward(struct attest_plan *plan, int major)
{
    const struct attest_problem *p = &plan->problem;
    struct attest_pass_plan *pass = &plan->backward_pass;
    const struct backward_kernel *k = backward_kernels;
    const int shared_bytes = shared_bytes_of(p, major), num_sms = num_sms_of(p);
    for (; k->name != NULL; ++k) {
        if ((k->only_major != 0 && k->only_major != major) || k->shared_bytes > shared_bytes) continue;
        if (is_covered(pass, k->most)) continue;
        if (!has_share(p, k->most) || !kernel_takes(&k->reach, k->most, p, num_sms, NULL, 0)) continue;
        if (is_last_share(pass) && !has_all(p, k->most)) continue;
        const size_t bytes = round_up(kernel_workspace_bytes(&k->reach, p));
        if (pass->workspace_bytes < bytes) pass->workspace_bytes = bytes;
        plan->backward[pass->num_shares] = k;
        add_share(pass, k->name, k->most);
        if (has_all(p, k->most)) return true;
    }
    return refuse_pass("'s backward pass", p, &k[-1].reach, k[-1].most);
}

static struct lengths lengths_of(const struct attest_share *share)
{
    return (struct lengths){(int32_t)share->most_seqlen_q, (int32_t)share->most_seqlen_k};
}

void attest_take_share(const struct attest_pass_plan *pass, int share, struct forward_params *params)
{
    if (pass->num_shares == 1) return;
    params->most = lengths_of(&pass->shares[share]);
    for (int n = 0; n < share; ++n) params->of_others[n] = lengths_of(&pass->shares[n]);
}

static bool pick(struct attest_plan *plan, int major)
{
    const bool has_forward = plan->problem.o.dtype != ATTEST_ABSENT;
    const bool has_backward = plan->problem.dq.dtype != ATTEST_ABSENT;
    /* The reference device rounds only at the end: the strictest of the bounds covers it. */
    const struct attest_pass_plan reference = {.num_shares = 1,
                                               .kernel = "reference",
                                               .shares = {{.struct_size = sizeof(struct attest_share),
                                                           .kernel = "reference",
                                                           .recipe = ref_recipe("fp32"),
                                                           .most_seqlen_q = INT64_MAX,
                                                           .most_seqlen_k = INT64_MAX}}};
    if (plan->problem.device == ATTEST_REFERENCE) {
        if (has_forward) plan->forward_pass = reference;
        if (has_backward) plan->backward_pass = reference;
        return true;
    }
    if (plan->problem.device == ATTEST_CUDA && !attest_check_cuda()) return false;
    if (major == 0) major = major_of(&plan->problem);
    return (!has_forward || pick_forward(plan, major)) && (!has_backward || pick_backward(plan, major));
}

static bool make_plan(const struct attest_problem *problem, int major, struct attest_plan *plan)
{
    if (!attest_check_struct("problem", problem, sizeof *problem)) return false;
    *plan = (struct attest_plan){.problem = *problem};
    plan->problem.struct_size = sizeof *problem;
    if (!attest_check_problem(&plan->problem) || !pick(plan, major)) return false;
    if (plan->problem.o.dtype != ATTEST_ABSENT)
        attest_find_reach(&plan->problem, ATTEST_FORWARD, &plan->forward_reach);
    if (plan->problem.dq.dtype != ATTEST_ABSENT)
        attest_find_reach(&plan->problem, ATTEST_BACKWARD, &plan->backward_reach);
    return true;
}

enum attest_status attest_plan_create(const struct attest_problem *problem, struct attest_plan **plan)
{
    return attest_plan_create_for(problem, 0, plan);
}

enum attest_status attest_plan_create_for(const struct attest_problem *problem, int major, struct attest_plan **plan)
{
    if (plan == NULL) {
        attest_refuse(ATTEST_INVALID, "plan = NULL, but must point to where the plan goes");
        return attest_refused_status();
    }
    *plan = NULL;
    struct attest_plan made;
    if (!make_plan(problem, major, &made)) return attest_refused_status();

    struct attest_plan *kept = malloc(sizeof *kept);
    if (kept == NULL) {
        attest_refuse(ATTEST_OUT_OF_MEMORY, "a plan of %zu bytes does not fit in memory", sizeof *kept);
        return attest_refused_status();
    }
    *kept = made;
    *plan = kept;
    return ATTEST_OK;
}

void attest_plan_destroy(struct attest_plan *plan)
{
    free(plan);
}

bool attest_check_plan(const struct attest_plan *plan)
{
    return plan != NULL || attest_refuse(ATTEST_INVALID, "plan = NULL, but must be a plan");
}

enum attest_status attest_plan_workspace(const struct attest_plan *plan, size_t *forward_bytes, size_t *backward_bytes)
{
    if (!attest_check_plan(plan)) return attest_refused_status();
    if (forward_bytes == NULL || backward_bytes == NULL) {
        attest_refuse(ATTEST_INVALID, "%s = NULL, but must point to a size_t",
                      forward_bytes == NULL ? "forward_bytes" : "backward_bytes");
        return attest_refused_status();
    }
    *forward_bytes = plan->forward_pass.workspace_bytes;
    *backward_bytes = plan->backward_pass.workspace_bytes;
    return ATTEST_OK;
}

/* The pass, if the plan and the problem have it. */
static const struct attest_pass_plan *pass_of(const struct attest_plan *plan, enum attest_pass pass)
{
    if (!attest_check_plan(plan)) return NULL;
    if (pass != ATTEST_FORWARD && pass != ATTEST_BACKWARD) {
        attest_refuse(ATTEST_INVALID, "pass = %d, but must be ATTEST_FORWARD or ATTEST_BACKWARD", (int)pass);
        return NULL;
    }
    const struct attest_pass_plan *const found =
        pass == ATTEST_FORWARD ? &plan->forward_pass : &plan->backward_pass;
    return found->num_shares > 0 ? found : NULL;
}

const struct attest_share *attest_plan_share(const struct attest_plan *plan, enum attest_pass pass, int i)
{
    const struct attest_pass_plan *const found = pass_of(plan, pass);
    return found != NULL && i >= 0 && i < found->num_shares ? &found->shares[i] : NULL;
}

const char *attest_plan_kernel(const struct attest_plan *plan, enum attest_pass pass)
{
    const struct attest_pass_plan *const found = pass_of(plan, pass);
    return found != NULL ? found->kernel : NULL;
}

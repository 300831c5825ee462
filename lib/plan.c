/* plan.c - from a problem to a plan. */
#include "lib/plan.h"

#include <stdlib.h>
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"
#include "lib/run.h"
#include "reference/bounds.h"

static bool refuse_pass(const char *pass, const char *why)
{
    return attest_refuse(ATTEST_UNSUPPORTED, "no kernel takes the problem%s: %s", pass, why);
}

/* The first of the table that takes the problem; else why the last does not. */
static bool pick_forward(struct attest_plan *plan)
{
    char why[256] = "there is none";
    for (const struct forward_kernel *k = forward_kernels; k->name != NULL; ++k) {
        if (!k->takes(&plan->problem, why, sizeof why)) continue;
        plan->forward = k;
        plan->forward_pass = (struct attest_pass_plan){k->name, ref_kernel_recipe(k->name), 0};
        return true;
    }
    return refuse_pass("", why);
}

static size_t round_up(size_t bytes)
{
    return (bytes + ATTEST_WORKSPACE_ALIGNMENT - 1) / ATTEST_WORKSPACE_ALIGNMENT * ATTEST_WORKSPACE_ALIGNMENT;
}

static bool pick_backward(struct attest_plan *plan)
{
    char why[256] = "there is none";
    for (const struct backward_kernel *k = backward_kernels; k->name != NULL; ++k) {
        if (!k->takes(&plan->problem, why, sizeof why)) continue;
        const size_t bytes = round_up(k->workspace_bytes(&plan->problem));
        plan->backward = k;
        plan->backward_pass = (struct attest_pass_plan){k->name, ref_kernel_recipe(k->name), bytes};
        return true;
    }
    return refuse_pass("'s backward pass", why);
}

static bool pick(struct attest_plan *plan)
{
    const bool has_forward = plan->problem.o.dtype != ATTEST_ABSENT;
    const bool has_backward = plan->problem.dq.dtype != ATTEST_ABSENT;
    /* The reference device rounds only at the end: the strictest of the bounds covers it. */
    const struct attest_pass_plan reference = {"reference", ref_recipe("fp32"), 0};
    if (plan->problem.device == ATTEST_REFERENCE) {
        if (has_forward) plan->forward_pass = reference;
        if (has_backward) plan->backward_pass = reference;
        return true;
    }
    if (plan->problem.device == ATTEST_CUDA && !attest_check_cuda()) return false;
    return (!has_forward || pick_forward(plan)) && (!has_backward || pick_backward(plan));
}

static bool make_plan(const struct attest_problem *problem, struct attest_plan *plan)
{
    if (!attest_check_struct("problem", problem, sizeof *problem)) return false;
    *plan = (struct attest_plan){.problem = *problem};
    plan->problem.struct_size = sizeof *problem;
    return attest_check_problem(&plan->problem) && pick(plan);
}

enum attest_status attest_plan_create(const struct attest_problem *problem, struct attest_plan **plan)
{
    if (plan == NULL) {
        attest_refuse(ATTEST_INVALID, "plan = NULL, but must point to where the plan goes");
        return attest_refused_status();
    }
    *plan = NULL;
    struct attest_plan made;
    if (!make_plan(problem, &made)) return attest_refused_status();

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

const char *attest_plan_kernel(const struct attest_plan *plan)
{
    return attest_check_plan(plan) ? plan->forward_pass.kernel : NULL;
}

const struct attest_recipe *attest_plan_recipe(const struct attest_plan *plan)
{
    return attest_check_plan(plan) ? plan->forward_pass.recipe : NULL;
}

const char *attest_plan_backward_kernel(const struct attest_plan *plan)
{
    return attest_check_plan(plan) ? plan->backward_pass.kernel : NULL;
}

const struct attest_recipe *attest_plan_backward_recipe(const struct attest_plan *plan)
{
    return attest_check_plan(plan) ? plan->backward_pass.recipe : NULL;
}

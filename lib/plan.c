/* plan.c - from a problem to a plan. */
#include "lib/plan.h"

#include <stdlib.h>
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"
#include "lib/run.h"
#include "reference/bounds.h"

/* The first of the table that takes the problem; else why the last does not. */
static bool pick_kernel(struct attest_plan *plan)
{
    char why[256] = "";
    if (plan->problem.device == ATTEST_CUDA && !attest_check_cuda()) return false;
    for (const struct forward_kernel *k = forward_kernels; k->name != NULL; ++k) {
        if (!k->takes(&plan->problem, why, sizeof why)) continue;
        plan->forward = k;
        plan->kernel = k->name;
        plan->recipe = ref_kernel_recipe(k->name);
        return true;
    }
    return attest_refuse(ATTEST_UNSUPPORTED, "no kernel takes the problem: %s", why);
}

static bool pick(struct attest_plan *plan)
{
    if (plan->problem.device != ATTEST_REFERENCE) return pick_kernel(plan);
    plan->forward = NULL;
    plan->kernel = "reference";
    plan->recipe = ref_recipe("fp32"); /* it rounds only at the end: the strictest of the bounds covers it */
    return true;
}

static bool make_plan(const struct attest_problem *problem, struct attest_plan *plan)
{
    if (!attest_check_struct("problem", problem, sizeof *problem)) return false;
    plan->problem = *problem;
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
    *forward_bytes = *backward_bytes = 0; /* forward_fp32 needs none, the reference device allocates for itself */
    return ATTEST_OK;
}

const char *attest_plan_kernel(const struct attest_plan *plan)
{
    return attest_check_plan(plan) ? plan->kernel : NULL;
}

const struct attest_recipe *attest_plan_recipe(const struct attest_plan *plan)
{
    return attest_check_plan(plan) ? plan->recipe : NULL;
}

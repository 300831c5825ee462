/* plan.c - from a problem to a plan. */
#include "lib/plan.h"

#include <stdlib.h>
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"
#include "reference/bounds.h"

/* Picks what runs the problem: today only the reference device has something. */
static bool pick_kernel(struct attest_plan *plan)
{
    static const char *const devices[] = {[ATTEST_CUDA] = "CUDA", [ATTEST_SIM] = "SIM"};
    const int32_t device = plan->problem.device;
    if (device != ATTEST_REFERENCE) {
        return attest_refuse(ATTEST_UNSUPPORTED, "device = %d, but no kernel for device %s is built yet", device,
                             devices[device]);
    }
    plan->kernel = "reference";
    plan->recipe = ref_recipe("fp32"); /* it rounds only at the end: the strictest of the bounds covers it */
    return true;
}

static bool make_plan(const struct attest_problem *problem, struct attest_plan *plan)
{
    if (!attest_check_struct("problem", problem, sizeof *problem)) return false;
    plan->problem = *problem;
    plan->problem.struct_size = sizeof *problem;
    return attest_check_problem(&plan->problem) && pick_kernel(plan);
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
    *forward_bytes = *backward_bytes = 0; /* the reference device allocates for itself */
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

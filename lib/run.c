/* run.c - a run: checks its arguments, then hands it to the plan's device. */
#include "lib/check.h"
#include "lib/error.h"
#include "lib/plan.h"
#include "lib/run.h"

static bool check_workspace(const void *workspace, size_t bytes, size_t needed)
{
    if (bytes < needed)
        return attest_refuse(ATTEST_INVALID, "workspace_bytes = %zu, but must be at least %zu", bytes, needed);
    if (workspace == NULL && bytes > 0)
        return attest_refuse(ATTEST_INVALID, "workspace = NULL, but must point to workspace_bytes = %zu bytes", bytes);
    if ((uintptr_t)workspace % ATTEST_WORKSPACE_ALIGNMENT != 0 && needed > 0)
        return attest_refuse(ATTEST_INVALID, "workspace = %p, but must be a multiple of %d", workspace,
                             ATTEST_WORKSPACE_ALIGNMENT);
    return true;
}

static bool check_pass(const char *field, int32_t dtype, const char *pass)
{
    if (dtype != ATTEST_ABSENT) return true;
    return attest_refuse(ATTEST_INVALID, "%s.dtype = 0, ATTEST_ABSENT, but must be present: the plan has no %s pass",
                         field, pass);
}

/* Where the host can read them. */
static bool check_lengths(const struct attest_problem *p, const struct attest_forward_args *args)
{
    return p->device == ATTEST_CUDA || attest_check_lengths(p, args);
}

static bool run_forward(const struct attest_plan *plan, const struct attest_forward_args *args, void *stream)
{
    switch (plan->problem.device) {
    case ATTEST_CUDA: return attest_cuda_forward(plan, args, stream);
    case ATTEST_SIM: return attest_sim_forward(plan, args, stream);
    default: return attest_reference_forward(&plan->problem, args);
    }
}

static bool forward(const struct attest_plan *plan, const struct attest_forward_args *args, const void *workspace,
                    size_t workspace_bytes, void *stream)
{
    if (!attest_check_plan(plan) || !check_pass("o", plan->problem.o.dtype, "forward") ||
        !attest_check_struct("args", args, sizeof *args) || !check_workspace(workspace, workspace_bytes, 0)) {
        return false;
    }
    const struct attest_backward_args a = {.forward = *args};
    return attest_check_args(&plan->forward_reach, &a, ATTEST_FORWARD, NULL, 0) && check_lengths(&plan->problem, args) &&
           run_forward(plan, args, stream);
}

static bool run_backward(const struct attest_plan *plan, const struct attest_backward_args *args, void *workspace,
                         void *stream)
{
    switch (plan->problem.device) {
    case ATTEST_CUDA: return attest_cuda_backward(plan, args, workspace, stream);
    case ATTEST_SIM: return attest_sim_backward(plan, args, workspace, stream);
    default: return attest_reference_backward(&plan->problem, args);
    }
}

static bool backward(const struct attest_plan *plan, const struct attest_backward_args *args, void *workspace,
                     size_t workspace_bytes, void *stream)
{
    if (!attest_check_plan(plan) || !check_pass("dq", plan->problem.dq.dtype, "backward") ||
        !attest_check_struct("args", args, sizeof *args) || !attest_check_inner_struct(args)) {
        return false;
    }
    const size_t needed = plan->backward_pass.workspace_bytes;
    return check_workspace(workspace, workspace_bytes, needed) &&
           attest_check_args(&plan->backward_reach, args, ATTEST_BACKWARD, workspace, needed) &&
           check_lengths(&plan->problem, &args->forward) && run_backward(plan, args, workspace, stream);
}

enum attest_status attest_run_forward(const struct attest_plan *plan, const struct attest_forward_args *args,
                                      void *workspace, size_t workspace_bytes, void *stream)
{
    return forward(plan, args, workspace, workspace_bytes, stream) ? ATTEST_OK : attest_refused_status();
}

enum attest_status attest_run_backward(const struct attest_plan *plan, const struct attest_backward_args *args,
                                       void *workspace, size_t workspace_bytes, void *stream)
{
    return backward(plan, args, workspace, workspace_bytes, stream) ? ATTEST_OK : attest_refused_status();
}

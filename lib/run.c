/* run.c - a run: checks its arguments, then hands it to the plan's device. */
#include "lib/check.h"
#include "lib/error.h"
#include "lib/plan.h"
#include "lib/run.h"

static bool check_workspace(const void *workspace, size_t bytes)
{
    if (workspace != NULL || bytes == 0) return true;
    return attest_refuse(ATTEST_INVALID, "workspace = NULL, but must point to workspace_bytes = %zu bytes", bytes);
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
        !attest_check_struct("args", args, sizeof *args) || !check_workspace(workspace, workspace_bytes)) {
        return false;
    }
    const struct attest_backward_args a = {.forward = *args};
    return attest_check_args(&plan->problem, &a, ATTEST_FORWARD) && check_lengths(&plan->problem, args) &&
           run_forward(plan, args, stream);
}

/* The forward arguments lie inside the backward ones, so they cannot be longer than this build's. */
static bool check_inner_struct(const struct attest_backward_args *args)
{
    const size_t size = args->forward.struct_size, known = sizeof args->forward;
    if (size == known) return true;
    return attest_refuse(size < known ? ATTEST_INVALID : ATTEST_UNSUPPORTED,
                         "args.forward.struct_size = %zu, but must be %zu: use its INIT macro", size, known);
}

/* No kernel takes a problem with a backward pass yet, so a plan that has one is the reference device's. */
static bool backward(const struct attest_plan *plan, const struct attest_backward_args *args, const void *workspace,
                     size_t workspace_bytes)
{
    if (!attest_check_plan(plan) || !check_pass("dq", plan->problem.dq.dtype, "backward") ||
        !attest_check_struct("args", args, sizeof *args) || !check_inner_struct(args) ||
        !check_workspace(workspace, workspace_bytes)) {
        return false;
    }
    return attest_check_args(&plan->problem, args, ATTEST_BACKWARD) && check_lengths(&plan->problem, &args->forward) &&
           attest_reference_backward(&plan->problem, args);
}

enum attest_status attest_run_forward(const struct attest_plan *plan, const struct attest_forward_args *args,
                                      void *workspace, size_t workspace_bytes, void *stream)
{
    return forward(plan, args, workspace, workspace_bytes, stream) ? ATTEST_OK : attest_refused_status();
}

enum attest_status attest_run_backward(const struct attest_plan *plan, const struct attest_backward_args *args,
                                       void *workspace, size_t workspace_bytes, void *stream)
{
    (void)stream;
    return backward(plan, args, workspace, workspace_bytes) ? ATTEST_OK : attest_refused_status();
}

/* cuda_device.c - runs on the chip: a launch on the caller's stream. Built without nvcc, there is none. */
#include "kernels/cuda.h"
#include "kernels/registry.h"
#include "lib/error.h"
#include "lib/plan.h"
#include "lib/run.h"

bool attest_check_cuda(void)
{
    return merge_kernel.cuda != NULL ||
           attest_refuse(ATTEST_UNSUPPORTED, "device = 0, ATTEST_CUDA, but this library was built without nvcc");
}

#ifdef ATTEST_WITH_CUDA

int attest_cuda_shared_bytes(int32_t ordinal) { return cuda_shared_bytes(ordinal); }

int attest_cuda_num_sms(int32_t ordinal) { return cuda_num_sms(ordinal); }

int attest_cuda_major(int32_t ordinal) { return cuda_major(ordinal); }

/* Whether a call that returned `code` was accepted. */
static bool is_accepted(int code)
{
    return code == 0 || attest_refuse(ATTEST_DEVICE_ERROR, "%s", cuda_error_text(code));
}

bool attest_cuda_forward(const struct attest_plan *plan, const struct attest_forward_args *a, void *stream)
{
    struct forward_params params = forward_params_of(&plan->problem, a);
    int previous, code = 0;
    if (!is_accepted(cuda_enter(plan->problem.device_ordinal, &previous))) return false;
    for (int n = 0; n < plan->forward_pass.num_shares && code == 0; ++n) {
        attest_take_share(&plan->forward_pass, n, &params);
        code = plan->forward[n]->cuda(&params, stream);
    }
    return is_accepted(cuda_leave(plan->problem.device_ordinal, previous)) && is_accepted(code);
}

bool attest_cuda_backward(const struct attest_plan *plan, const struct attest_backward_args *a, void *workspace,
                          void *stream)
{
    struct backward_params params = backward_params_of(&plan->problem, a, workspace);
    int previous, code = 0;
    if (!is_accepted(cuda_enter(plan->problem.device_ordinal, &previous))) return false;
    for (int n = 0; n < plan->backward_pass.num_shares && code == 0; ++n) {
        attest_take_share(&plan->backward_pass, n, &params.forward);
        code = plan->backward[n]->cuda(&params, stream);
    }
    return is_accepted(cuda_leave(plan->problem.device_ordinal, previous)) && is_accepted(code);
}

bool attest_cuda_merge(const struct attest_merge_args *a, void *stream)
{
    const struct merge_params params = merge_params_of(a);
    int previous;
    if (!is_accepted(cuda_enter(a->device_ordinal, &previous))) return false;
    const int code = merge_kernel.cuda(&params, stream);
    return is_accepted(cuda_leave(a->device_ordinal, previous)) && is_accepted(code);
}

bool attest_cuda_merge_backward(const struct attest_merge_backward_args *a, void *stream)
{
    const struct merge_backward_params params = merge_backward_params_of(a);
    int previous;
    if (!is_accepted(cuda_enter(a->device_ordinal, &previous))) return false;
    const int code = merge_backward_kernel.cuda(&params, stream);
    return is_accepted(cuda_leave(a->device_ordinal, previous)) && is_accepted(code);
}

#else

int attest_cuda_shared_bytes(int32_t ordinal)
{
    (void)ordinal;
    return 0;
}

int attest_cuda_num_sms(int32_t ordinal)
{
    (void)ordinal;
    return 0;
}

int attest_cuda_major(int32_t ordinal)
{
    (void)ordinal;
    return 0;
}

bool attest_cuda_forward(const struct attest_plan *plan, const struct attest_forward_args *a, void *stream)
{
    (void)plan, (void)a, (void)stream;
    return attest_check_cuda();
}

bool attest_cuda_backward(const struct attest_plan *plan, const struct attest_backward_args *a, void *workspace,
                          void *stream)
{
    (void)plan, (void)a, (void)workspace, (void)stream;
    return attest_check_cuda();
}

bool attest_cuda_merge(const struct attest_merge_args *a, void *stream)
{
    (void)a, (void)stream;
    return attest_check_cuda();
}

bool attest_cuda_merge_backward(const struct attest_merge_backward_args *a, void *stream)
{
    (void)a, (void)stream;
    return attest_check_cuda();
}

#endif

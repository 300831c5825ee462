/* kernels_sim.c - kernels on the simulated GPU. */
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/sim.h"
#include "lib/error.h"
#include "lib/run.h"
#include "proptests/kernels.h"

/* One simulated GPU for all runs of this process, on one host thread: tests share the machine. */
static struct sim_gpu *gpu_for(uint64_t bits)
{
    static struct sim_gpu *gpu;
    const struct sim_options options = {.generation = bits & 1 ? SIM_SM_80 : SIM_SM_90,
                                        .async = (enum sim_async_policy)(bits / 2 % 3),
                                        .seed = bits / 8,
                                        .workers = 1};
    if (gpu == NULL) gpu = sim_gpu_create(&options);
    if (gpu == NULL) abort();
    sim_gpu_options(gpu, &options);
    sim_unmap_all(gpu);
    return gpu;
}

static uint64_t hash(const void *bytes, size_t size)
{
    uint64_t h = 0;
    for (size_t i = 0; i < size; ++i) h = check_mix(h ^ ((const unsigned char *)bytes)[i]);
    return h;
}

/* Of a launch made here, past the library. */
static enum attest_status outcome_of(struct sim_gpu *gpu, int code)
{
    if (code == SIM_CLEAN && sim_check_written(gpu) == SIM_CLEAN) return ATTEST_OK;
    attest_refuse(ATTEST_DEVICE_ERROR, "%s", sim_last_report(gpu)->text);
    return ATTEST_DEVICE_ERROR;
}

static enum attest_status through_library(const struct attest_problem *p, const struct attest_forward_args *a,
                                          struct sim_gpu *gpu)
{
    struct attest_problem on_sim = *p;
    struct attest_plan *plan;
    on_sim.device = ATTEST_SIM;
    enum attest_status status = attest_plan_create(&on_sim, &plan);
    if (status == ATTEST_OK) status = attest_run_forward(plan, a, NULL, 0, gpu);
    attest_plan_destroy(plan);
    return status;
}

static enum attest_status forward(const struct implementation *self, const struct attest_problem *p,
                                  const struct attest_forward_args *a)
{
    const struct kernel_implementation *kernels = (const struct kernel_implementation *)self;
    struct sim_gpu *gpu = gpu_for(hash(p, sizeof *p));
    char why[256];
    if (kernels->forward == NULL) return through_library(p, a, gpu);
    if (!forward_kernels[0].takes(p, why, sizeof why)) return ATTEST_UNSUPPORTED;
    const struct forward_params params = forward_params_of(p, a);
    if (!attest_sim_map_forward(gpu, p, a)) return ATTEST_OUT_OF_MEMORY;
    return outcome_of(gpu, kernels->forward(&params, gpu));
}

static enum attest_status merge(const struct implementation *self, const struct attest_merge_args *a)
{
    const struct kernel_implementation *kernels = (const struct kernel_implementation *)self;
    struct attest_merge_args on_sim = *a;
    struct sim_gpu *gpu = gpu_for(check_mix((uint64_t)(a->rows * (MERGE_MAX_STATES + 1) + a->num_states)));
    on_sim.device = ATTEST_SIM;
    if (kernels->merge == NULL) return attest_merge_states(&on_sim, gpu);
    const struct merge_params params = merge_params_of(a);
    if (!attest_sim_map_merge(gpu, a)) return ATTEST_OUT_OF_MEMORY;
    return outcome_of(gpu, kernels->merge(&params, gpu));
}

static enum attest_status merge_backward(const struct implementation *self, const struct attest_merge_backward_args *a)
{
    const struct kernel_implementation *kernels = (const struct kernel_implementation *)self;
    struct attest_merge_backward_args on_sim = *a;
    struct sim_gpu *gpu = gpu_for(check_mix((uint64_t)(a->rows * (MERGE_MAX_STATES + 1) + a->num_states)));
    on_sim.device = ATTEST_SIM;
    if (kernels->merge_backward == NULL) return attest_merge_states_backward(&on_sim, gpu);
    const struct merge_backward_params params = merge_backward_params_of(a);
    if (!attest_sim_map_merge_backward(gpu, a)) return ATTEST_OUT_OF_MEMORY;
    return outcome_of(gpu, kernels->merge_backward(&params, gpu));
}

struct kernel_implementation kernels_on_sim(const char *name, forward_launcher *forward_of, merge_launcher *merge_of)
{
    return (struct kernel_implementation){
        .implementation = {.name = name, .recipe = ref_kernel_recipe(forward_kernels[0].name),
                           .forward = forward, .merge = merge, .merge_backward = merge_backward,
                           .merge_recipe = ref_kernel_recipe(merge_kernel.name),
                           .merge_backward_recipe = ref_kernel_recipe(merge_backward_kernel.name),
                           .is_partial = true},
        .forward = forward_of, .merge = merge_of};
}

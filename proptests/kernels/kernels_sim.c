/* kernels_sim.c - kernels on the simulated GPU. */
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "lib/error.h"
#include "lib/run.h"
#include "proptests/kernels/kernels.h"

enum { ALIGN = 256, POISON = 0xff };

/* One simulated GPU for all runs of this process, on one host thread: tests share the machine. */
static struct sim_gpu *gpu_for(enum sim_generation generation, uint64_t bits)
{
    static struct sim_gpu *gpu;
    const struct sim_options options = {.generation = generation,
                                        .async = (enum sim_async_policy)(bits % 3),
                                        .seed = bits / 3,
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

static enum sim_generation generation_of(const struct implementation *self)
{
    return ((const struct kernel_implementation *)self)->generation;
}

/* Returns what picks the simulated GPU of a problem: what the problem says. How long its struct is, and that it is one,
 * says nothing: a header with another field must not give every case another GPU. */
static uint64_t bits_of(const struct attest_problem *p)
{
    const size_t first = offsetof(struct attest_problem, device), end = offsetof(struct attest_problem, initialized);
    return hash((const unsigned char *)p + first, end - first);
}

unsigned kernels_sim_sms(const struct attest_problem *p) { return sim_num_sms(gpu_for(SIM_SM_90, bits_of(p))); }

/* ---- forward and backward ---- */

/* Poison, with as much as its alignment on both sides that must stay. */
static unsigned char *new_workspace(size_t bytes)
{
    const size_t room = (bytes + 3 * ALIGN - 1) / ALIGN * ALIGN;
    unsigned char *const memory = aligned_alloc(ALIGN, room);
    if (memory == NULL) abort();
    return memset(memory, POISON, room);
}

static bool is_guarded(const unsigned char *memory, size_t bytes)
{
    for (size_t i = 0; i < ALIGN; ++i)
        if (memory[i] != POISON || memory[ALIGN + bytes + i] != POISON) return false;
    return true;
}

static enum attest_status run(const struct implementation *self, const struct attest_problem *p, enum attest_pass pass,
                              const struct attest_backward_args *a, struct computed *how)
{
    struct kernel_run_plan run;
    enum attest_status status = kernels_plan((const struct kernel_implementation *)self, p, ATTEST_SIM, pass, &run);
    if (status != ATTEST_OK) return status;
    const size_t bytes = run.workspace_bytes;
    *how = run.computed;
    unsigned char *const memory = new_workspace(bytes), *const workspace = bytes > 0 ? memory + ALIGN : NULL;
    struct sim_gpu *const gpu = gpu_for(generation_of(self), bits_of(p));
    status = pass == ATTEST_FORWARD ? attest_run_forward(&run.plan, &a->forward, workspace, bytes, gpu)
                                    : attest_run_backward(&run.plan, a, workspace, bytes, gpu);
    if (status == ATTEST_OK && !is_guarded(memory, bytes)) {
        attest_refuse(ATTEST_DEVICE_ERROR, "bytes changed that lie around the workspace");
        status = ATTEST_DEVICE_ERROR;
    }
    free(memory);
    return status;
}

static enum attest_status forward(const struct implementation *self, const struct attest_problem *p,
                                  const struct attest_forward_args *a, struct computed *how)
{
    const struct attest_backward_args all = {.forward = *a};
    return run(self, p, ATTEST_FORWARD, &all, how);
}

static enum attest_status backward(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_backward_args *a, struct computed *how)
{
    return run(self, p, ATTEST_BACKWARD, a, how);
}

/* ---- merge ---- */

/* Of a launch made here, past the library. */
static enum attest_status outcome_of(struct sim_gpu *gpu, int code)
{
    if (code == SIM_CLEAN && sim_check_written(gpu) == SIM_CLEAN) return ATTEST_OK;
    attest_refuse(ATTEST_DEVICE_ERROR, "%s", sim_last_report(gpu)->text);
    return ATTEST_DEVICE_ERROR;
}

static enum attest_status merge(const struct implementation *self, const struct attest_merge_args *a)
{
    merge_launcher *const launcher = ((const struct kernel_implementation *)self)->launchers.merge;
    struct attest_merge_args on_sim = *a;
    const uint64_t bits = check_mix((uint64_t)(a->rows * (MERGE_MAX_STATES + 1) + a->num_states));
    struct sim_gpu *gpu = gpu_for(generation_of(self), bits);
    on_sim.device = ATTEST_SIM;
    if (launcher == NULL) return attest_merge_states(&on_sim, gpu);
    const struct merge_params params = merge_params_of(a);
    if (!attest_sim_map_merge(gpu, a)) return ATTEST_OUT_OF_MEMORY;
    return outcome_of(gpu, launcher(&params, gpu));
}

static enum attest_status merge_backward(const struct implementation *self, const struct attest_merge_backward_args *a)
{
    merge_backward_launcher *const launcher = ((const struct kernel_implementation *)self)->launchers.merge_backward;
    struct attest_merge_backward_args on_sim = *a;
    const uint64_t bits = check_mix((uint64_t)(a->rows * (MERGE_MAX_STATES + 1) + a->num_states));
    struct sim_gpu *gpu = gpu_for(generation_of(self), bits);
    on_sim.device = ATTEST_SIM;
    if (launcher == NULL) return attest_merge_states_backward(&on_sim, gpu);
    const struct merge_backward_params params = merge_backward_params_of(a);
    if (!attest_sim_map_merge_backward(gpu, a)) return ATTEST_OUT_OF_MEMORY;
    return outcome_of(gpu, launcher(&params, gpu));
}

struct kernel_implementation kernels_on_sim(const char *name, enum sim_generation generation,
                                            const struct kernel_launchers *launchers)
{
    return (struct kernel_implementation){
        .implementation = {.name = name, .forward = forward, .backward = backward, .merge = merge,
                           .merge_backward = merge_backward,
                           .merge_recipe = ref_kernel_recipe(merge_kernel.name),
                           .merge_backward_recipe = ref_kernel_recipe(merge_backward_kernel.name),
                           .is_partial = true},
        .launchers = launchers != NULL ? *launchers : (struct kernel_launchers){{NULL}, {NULL}, NULL, NULL},
        .generation = generation};
}

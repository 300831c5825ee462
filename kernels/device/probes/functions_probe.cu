/* functions_probe.cu - functions.h's forms, each on a range of inputs: one thread an input. */
#include <stdio.h>

#include "kernels/device/arith.h"
#include "kernels/device/functions.h"
#include "kernels/device/launch.h"
#include "kernels/device/probes/functions_probe.h"
#include "kernels/device/thread.h"

namespace {

enum { THREADS = 256 };

DEVICE float value_of(int form, float x)
{
    switch (form) {
    case FUNCTION_EX2_APPROX: return exp2_approx(x);
    case FUNCTION_LG2_APPROX: return log2_approx(x);
    case FUNCTION_RCP_APPROX: return rcp_approx(x);
    case FUNCTION_TANH_APPROX: return tanh_approx(x);
    case FUNCTION_EXP2_PORTABLE: return exp2_portable(x);
    case FUNCTION_LOG2_PORTABLE: return log2_portable(x);
    case FUNCTION_RCP_PORTABLE: return rcp_portable(x);
    default: return tanh_portable(x);
    }
}

KERNEL(THREADS, 1) void functions_kernel(int form, uint32_t first, uint32_t count, float *results)
{
    const uint32_t i = block_x() * THREADS + thread_x();
    if (i < count) results[i] = value_of(form, float_of(first + i));
}

int launch(enum function form, uint32_t first, uint32_t count, float *results, void *stream)
{
    const launch_shape shape = {
        {(count + THREADS - 1) / THREADS, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1};
    return LAUNCH(functions_kernel, shape, stream, static_cast<int>(form), first, count, results);
}

} // namespace

#if ON_CHIP

bool functions_probe_cuda(enum function form, uint32_t first, uint32_t count, float *results, char *why,
                          size_t why_bytes)
{
    int code = launch(form, first, count, results, nullptr);
    if (code == cudaSuccess) code = cudaDeviceSynchronize();
    if (code != cudaSuccess) snprintf(why, why_bytes, "%s", launch_error_text(code));
    return code == cudaSuccess;
}

float *functions_memory_cuda(size_t count)
{
    void *memory = nullptr;
    return cudaMallocHost(&memory, count * sizeof(float)) == cudaSuccess ? static_cast<float *>(memory) : nullptr;
}

bool functions_machine_cuda(char *name, size_t bytes)
{
    int devices = 0;
    cudaDeviceProp properties;
    if (cudaGetDeviceCount(&devices) != cudaSuccess || devices == 0) return false;
    if (cudaGetDeviceProperties(&properties, 0) != cudaSuccess) return false;
    snprintf(name, bytes, "%s, sm_%d%d", properties.name, properties.major, properties.minor);
    return true;
}

#else

bool functions_probe_sim(struct sim_gpu *gpu, enum function form, uint32_t first, uint32_t count, float *results,
                         char *why, size_t why_bytes)
{
    sim_unmap_all(gpu);
    if (!sim_map(gpu, "results", results, count * sizeof *results, SIM_WRITE)) {
        snprintf(why, why_bytes, "no memory");
        return false;
    }
    const int code = launch(form, first, count, results, gpu);
    if (code == SIM_CLEAN && sim_check_written(gpu) == SIM_CLEAN) return true;
    snprintf(why, why_bytes, "%s", sim_last_report(gpu)->text);
    return false;
}

#endif

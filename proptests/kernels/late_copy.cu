/* late_copy.cu - a launch that lets the one behind it begin before it has done anything, and one that does. */
#include "proptests/kernels/late_copy.h"

#include <cuda_runtime.h>

__device__ static void copy(char *to, const char *from, size_t bytes)
{
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

__global__ static void late_copy_kernel(char *to, const char *from, size_t bytes)
{
    cudaTriggerProgrammaticLaunchCompletion();
    for (const long long start = clock64(); clock64() - start < 200000;) {} /* 0.1 ms: longer than to launch takes */
    copy(to, from, bytes);
}

__global__ static void early_copy_kernel(char *to, const char *from, size_t bytes) { copy(to, from, bytes); }

int queue_late_copy(void *to, const void *from, size_t bytes, void *stream)
{
    late_copy_kernel<<<1, 1024, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<char *>(to),
                                                                        static_cast<const char *>(from), bytes);
    return cudaGetLastError();
}

int queue_early_copy(void *to, const void *from, size_t bytes, void *stream)
{
    cudaLaunchConfig_t config = {};
    cudaLaunchAttribute attribute = {};
    attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    attribute.val.programmaticStreamSerializationAllowed = 1;
    config.gridDim = 1, config.blockDim = 1024, config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &attribute, config.numAttrs = 1;
    return cudaLaunchKernelEx(&config, early_copy_kernel, static_cast<char *>(to), static_cast<const char *>(from),
                              bytes);
}

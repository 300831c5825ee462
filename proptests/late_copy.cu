/* late_copy.cu - a launch that lets the one behind it begin before it has done anything. */
#include "proptests/late_copy.h"

#include <cuda_runtime.h>

__global__ static void late_copy_kernel(char *to, const char *from, size_t bytes)
{
    cudaTriggerProgrammaticLaunchCompletion();
    for (const long long start = clock64(); clock64() - start < 200000;) {} /* 0.1 ms: longer than to launch takes */
    for (size_t i = threadIdx.x; i < bytes; i += blockDim.x) to[i] = from[i];
}

int queue_late_copy(void *to, const void *from, size_t bytes, void *stream)
{
    late_copy_kernel<<<1, 1024, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<char *>(to),
                                                                        static_cast<const char *>(from), bytes);
    return cudaGetLastError();
}

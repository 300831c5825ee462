/* cuda_memory.cu - memory of the GPU, for tests. */
#include "proptests/cuda_memory.h"

#include <cuda_runtime.h>

int cuda_count_devices(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

void *cuda_allocate(size_t bytes)
{
    void *memory;
    return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}

void cuda_release(void *memory) { cudaFree(memory); }

int cuda_copy_in(void *device, const void *host, size_t bytes)
{
    return cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice);
}

int cuda_copy_out(void *host, const void *device, size_t bytes)
{
    const cudaError_t done = cudaDeviceSynchronize();
    return done != cudaSuccess ? done : cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost);
}

/* cuda_memory.cu - memory, streams and graphs of the GPU, for tests. */
#include "proptests/cases/cuda_memory.h"

#include <cuda_runtime.h>

int cuda_count_devices(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess ? count : 0;
}

int cuda_is_hopper(void)
{
    int major = 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    return major >= 9;
}

void *cuda_allocate(size_t bytes)
{
    void *memory;
    return cudaMalloc(&memory, bytes) == cudaSuccess ? memory : nullptr;
}

void cuda_release(void *memory) { cudaFree(memory); }

int cuda_fill(void *device, int byte, size_t bytes) { return cudaMemset(device, byte, bytes); }

int cuda_copy_in(void *device, const void *host, size_t bytes)
{
    return cudaMemcpy(device, host, bytes, cudaMemcpyHostToDevice);
}

int cuda_copy_out(void *host, const void *device, size_t bytes)
{
    const cudaError_t done = cudaDeviceSynchronize();
    return done != cudaSuccess ? done : cudaMemcpy(host, device, bytes, cudaMemcpyDeviceToHost);
}

void *cuda_new_stream(void)
{
    cudaStream_t stream;
    return cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) == cudaSuccess ? stream : nullptr;
}

int cuda_synchronize(void) { return cudaDeviceSynchronize(); }

__global__ static void load_kernel(unsigned *memory, size_t words, int rounds)
{
    for (int n = 0; n < rounds; ++n)
        for (size_t i = blockIdx.x * size_t{blockDim.x} + threadIdx.x; i < words; i += size_t{gridDim.x} * blockDim.x)
            memory[i] = memory[i] * 1664525u + 1013904223u;
}

int cuda_queue_load(void *memory, size_t bytes, int rounds, void *stream)
{
    load_kernel<<<64, 256, 0, static_cast<cudaStream_t>(stream)>>>(static_cast<unsigned *>(memory), bytes / 4, rounds);
    return cudaGetLastError();
}

int cuda_begin_capture(void *stream)
{
    return cudaStreamBeginCapture(static_cast<cudaStream_t>(stream), cudaStreamCaptureModeGlobal);
}

void *cuda_end_capture(void *stream)
{
    cudaGraph_t graph;
    cudaGraphExec_t runnable;
    if (cudaStreamEndCapture(static_cast<cudaStream_t>(stream), &graph) != cudaSuccess) return nullptr;
    return cudaGraphInstantiate(&runnable, graph, 0) == cudaSuccess ? runnable : nullptr;
}

int cuda_launch_graph(void *graph, void *stream)
{
    return cudaGraphLaunch(static_cast<cudaGraphExec_t>(graph), static_cast<cudaStream_t>(stream));
}

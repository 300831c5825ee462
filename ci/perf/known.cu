/* known.cu - kernels whose registers, stack and shared memory are known by hand, to test what is read of ptxas. */
#include "kernels/device/device.h"

namespace {

/* 1000 floats of shared memory, nothing else. */
__global__ void shared_4000(float *out)
{
    __shared__ float there[1000];
    there[threadIdx.x] = out[threadIdx.x];
    __syncthreads();
    out[threadIdx.x] = there[999 - threadIdx.x];
}

/* 256 floats that are indexed at run time lie in the thread's own memory: a stack of 1024 bytes, no spill. */
__global__ void stack_1024(const int *at, float *out)
{
    float here[256];
    for (int i = 0; i < 256; ++i) here[i] = out[i];
    for (int i = 0; i < 256; ++i) here[at[i]] += here[at[i + 256]];
    for (int i = 0; i < 256; ++i) out[i] = here[at[i]];
}

/* 64 numbers at once, read once each, in the 32 registers that 2048 threads of an SM have each: half lie in memory. */
__global__ void __launch_bounds__(1024, 2) spills(volatile float *out)
{
    float here[64];
#pragma unroll
    for (int i = 0; i < 64; ++i) here[i] = out[i];
#pragma unroll
    for (int i = 0; i < 64; ++i) out[64 * threadIdx.x + i] = here[i];
}

} /* namespace */

int known_launch(float *out)
{
    shared_4000<<<1, 1000>>>(out);
    stack_1024<<<1, 1>>>(reinterpret_cast<const int *>(out), out);
    spills<<<1, 1024>>>(out);
    return cudaGetLastError();
}

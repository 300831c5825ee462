/* known.cu - kernels whose registers, stack, shared memory and instructions are known by hand, to test what is read of
 * ptxas and of the machine code. */
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

/* Seven products behind one another, then a loop of three and an exponential. */
__global__ void products(float *out, const uint32_t *in, int n)
{
    const uint32_t a[4] = {in[0], in[1], in[2], in[3]}, b[2] = {in[4], in[5]};
    float d[4] = {0, 0, 0, 0};
    UNROLL for (int i = 0; i < 7; ++i) mma_m16n8k16_bf16(d, a, b, d);
    ROLLED for (int i = 0; i < n; ++i) {
        UNROLL for (int m = 0; m < 3; ++m) mma_m16n8k16_bf16(d, a, b, d);
        d[0] = exp2_approx(d[0]);
    }
    for (int i = 0; i < 4; ++i) out[i] = d[i];
}

/* A loop of a product, and in it a loop of five fused multiply-adds. */
__global__ void nested(float *out, const uint32_t *in, int n)
{
    const uint32_t a[4] = {in[0], in[1], in[2], in[3]}, b[2] = {in[4], in[5]};
    float d[4] = {0, 0, 0, 0};
    ROLLED for (int i = 0; i < n; ++i) {
        mma_m16n8k16_bf16(d, a, b, d);
        ROLLED for (int m = 0; m < n; ++m) UNROLL for (int x = 0; x < 5; ++x) d[0] = fma_rn(d[0], d[1], d[2]);
    }
    for (int i = 0; i < 4; ++i) out[i] = d[i];
}

/* An exponential of each row, and four of each of its columns. */
__global__ void rows(float *out, int n)
{
    float sum = 0;
    ROLLED for (int row = 0; row < n; ++row) {
        sum = exp2_approx(sum);
        ROLLED for (int column = 0; column < n; ++column) UNROLL for (int x = 0; x < 4; ++x) sum = exp2_approx(sum);
    }
    out[0] = sum;
}

} /* namespace */

int known_launch(float *out)
{
    shared_4000<<<1, 1000>>>(out);
    stack_1024<<<1, 1>>>(reinterpret_cast<const int *>(out), out);
    spills<<<1, 1024>>>(out);
    products<<<1, 32>>>(out, reinterpret_cast<const uint32_t *>(out), 1);
    nested<<<1, 32>>>(out, reinterpret_cast<const uint32_t *>(out), 1);
    rows<<<1, 1>>>(out, 1);
    return cudaGetLastError();
}

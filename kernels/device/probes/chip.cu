/* chip.cu - running a probe on the chip. */
#include <cuda_runtime.h>
#include <stdio.h>

#include "kernels/device/probes/probe_chip.h"

int probe_chip_generation(void)
{
    int major = 0, minor = 0, count = 0;
    if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return 0;
    cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, 0);
    cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, 0);
    return 10 * major + minor;
}

static cudaError_t run(const struct probe *probe, const void *in, void *out, void *chip_in, void *chip_out)
{
    cudaError_t code = cudaMemcpy(chip_in, in, probe->in_bytes, cudaMemcpyHostToDevice);
    if (code != cudaSuccess) return code;
    if ((code = cudaMemcpy(chip_out, out, probe->out_bytes, cudaMemcpyHostToDevice)) != cudaSuccess) return code;
    if ((code = static_cast<cudaError_t>(probe->cuda(chip_in, chip_out, nullptr))) != cudaSuccess) return code;
    if ((code = cudaDeviceSynchronize()) != cudaSuccess) return code;
    return cudaMemcpy(out, chip_out, probe->out_bytes, cudaMemcpyDeviceToHost);
}

bool probe_chip_run(const struct probe *probe, const void *in, void *out, char *why, size_t why_bytes)
{
    void *chip_in = nullptr, *chip_out = nullptr;
    cudaError_t code = cudaMalloc(&chip_in, probe->in_bytes + 1);
    if (code == cudaSuccess) code = cudaMalloc(&chip_out, probe->out_bytes);
    if (code == cudaSuccess) code = run(probe, in, out, chip_in, chip_out);
    cudaFree(chip_in);
    cudaFree(chip_out);
    if (code != cudaSuccess) snprintf(why, why_bytes, "%s", cudaGetErrorString(code));
    return code == cudaSuccess;
}

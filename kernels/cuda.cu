/* cuda.cu - the chip as the library sees it. */
#include "kernels/cuda.h"

#include <cuda_runtime.h>
#include <limits.h>

#include "kernels/device/launch.h"

/* A device that is set gets a context, so the one that is current is not set again; and an error that the caller is
 * told of does not stay behind as the runtime's last. */
static int change_device(int from, int to)
{
    const cudaError_t error = from == to ? cudaSuccess : cudaSetDevice(to);
    if (error != cudaSuccess) cudaGetLastError();
    return error;
}

int cuda_enter(int ordinal, int *previous)
{
    const cudaError_t error = cudaGetDevice(previous);
    if (error != cudaSuccess) cudaGetLastError();
    return error != cudaSuccess ? error : change_device(*previous, ordinal);
}

int cuda_shared_bytes(int ordinal)
{
    int bytes;
    if (cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, ordinal) == cudaSuccess) return bytes;
    cudaGetLastError();
    return INT_MAX;
}

int cuda_num_sms(int ordinal)
{
    int sms;
    if (cudaDeviceGetAttribute(&sms, cudaDevAttrMultiProcessorCount, ordinal) == cudaSuccess) return sms;
    cudaGetLastError();
    return 0;
}

int cuda_major(int ordinal)
{
    int major;
    if (cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, ordinal) == cudaSuccess) return major;
    cudaGetLastError();
    return 0;
}

int cuda_leave(int ordinal, int previous) { return change_device(ordinal, previous); }

const char *cuda_error_text(int code) { return launch_error_text(code); }

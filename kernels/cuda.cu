/* cuda.cu - the chip as the library sees it. */
#include "kernels/cuda.h"

#include <cuda_runtime.h>

#include "kernels/device/launch.h"

int cuda_enter(int ordinal, int *previous)
{
    const cudaError_t error = cudaGetDevice(previous);
    return error != cudaSuccess ? error : cudaSetDevice(ordinal);
}

int cuda_leave(int previous) { return cudaSetDevice(previous); }

const char *cuda_error_text(int code) { return launch_error_text(code); }

/* runtime.c - functions of CUDA's that count their calls. They answer as a Hopper GPU would, of so few SMs that small
 * problems have more CTAs. */
#include "ci/perf/runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What the library calls, and what no launch should: it would allocate, wait, or ask again. */
#define CALLS(CALL)                                                                                                \
    CALL(cudaGetDevice) CALL(cudaSetDevice) CALL(cudaDeviceGetAttribute) CALL(cudaFuncGetAttributes)               \
    CALL(cudaFuncSetAttribute) CALL(cudaLaunchKernelExC) CALL(cudaGetLastError)                                    \
    CALL(cudaGetDriverEntryPointByVersion) CALL(cudaOccupancyMaxActiveBlocksPerMultiprocessor)                     \
    CALL(cudaDeviceSynchronize) CALL(cudaStreamSynchronize) CALL(cudaMalloc) CALL(cudaFree) CALL(cudaMemsetAsync)  \
    CALL(cudaMemcpyAsync)
#define DRIVER_CALLS(CALL) CALL(cuTensorMapEncodeTiled) CALL(cuTensorMapReplaceAddress)

#define NUMBER(name) CALL_##name,
enum call { CALLS(NUMBER) DRIVER_CALLS(NUMBER) NUM_CALLS };
#define NAME(name) #name,
static const char *const names[NUM_CALLS] = {CALLS(NAME) DRIVER_CALLS(NAME)};
#define DECLARE(name) __typeof__(name) __wrap_##name;
CALLS(DECLARE)

static unsigned long calls[NUM_CALLS];

void runtime_reset(void) { memset(calls, 0, sizeof calls); }

void runtime_print(const char *before)
{
    for (int n = 0; n < NUM_CALLS; ++n)
        if (calls[n] != 0) printf("%s %s %lu\n", before, names[n], calls[n]);
}

#define COUNT(name) (++calls[CALL_##name], cudaSuccess)

/* ---- a device ---- */

enum { SMS = 4, SHARED_BYTES = 232448, SHARED_UNASKED = 49152, MAJOR = 9 };

cudaError_t __wrap_cudaGetDevice(int *device)
{
    *device = 0;
    return COUNT(cudaGetDevice);
}

cudaError_t __wrap_cudaSetDevice(int device)
{
    (void)device;
    return COUNT(cudaSetDevice);
}

cudaError_t __wrap_cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    *value = attribute == cudaDevAttrMultiProcessorCount             ? SMS
             : attribute == cudaDevAttrMaxSharedMemoryPerBlockOptin  ? SHARED_BYTES
             : attribute == cudaDevAttrComputeCapabilityMajor        ? MAJOR
                                                                     : 0;
    return COUNT(cudaDeviceGetAttribute);
}

cudaError_t __wrap_cudaGetLastError(void) { return COUNT(cudaGetLastError); }

cudaError_t __wrap_cudaDeviceSynchronize(void) { return COUNT(cudaDeviceSynchronize); }

cudaError_t __wrap_cudaStreamSynchronize(cudaStream_t stream)
{
    (void)stream;
    return COUNT(cudaStreamSynchronize);
}

/* ---- kernels ---- */

/* No kernel has asked for more before. */
cudaError_t __wrap_cudaFuncGetAttributes(struct cudaFuncAttributes *attributes, const void *kernel)
{
    (void)kernel;
    *attributes = (struct cudaFuncAttributes){.maxDynamicSharedSizeBytes = SHARED_UNASKED};
    return COUNT(cudaFuncGetAttributes);
}

cudaError_t __wrap_cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    (void)kernel, (void)attribute, (void)value;
    return COUNT(cudaFuncSetAttribute);
}

cudaError_t __wrap_cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *ctas, const void *kernel, int threads,
                                                                 size_t shared)
{
    (void)kernel, (void)threads, (void)shared;
    *ctas = 1;
    return COUNT(cudaOccupancyMaxActiveBlocksPerMultiprocessor);
}

cudaError_t __wrap_cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel, void **arguments)
{
    (void)config, (void)kernel, (void)arguments;
    return COUNT(cudaLaunchKernelExC);
}

/* ---- memory ---- */

cudaError_t __wrap_cudaMalloc(void **memory, size_t bytes)
{
    (void)bytes;
    *memory = NULL;
    return COUNT(cudaMalloc);
}

cudaError_t __wrap_cudaFree(void *memory)
{
    (void)memory;
    return COUNT(cudaFree);
}

cudaError_t __wrap_cudaMemsetAsync(void *to, int byte, size_t bytes, cudaStream_t stream)
{
    (void)to, (void)byte, (void)bytes, (void)stream;
    return COUNT(cudaMemsetAsync);
}

cudaError_t __wrap_cudaMemcpyAsync(void *to, const void *from, size_t bytes, enum cudaMemcpyKind kind,
                                   cudaStream_t stream)
{
    (void)to, (void)from, (void)bytes, (void)kind, (void)stream;
    return COUNT(cudaMemcpyAsync);
}

/* ---- the driver ---- */

static CUresult encode_tiled(CUtensorMap *map, CUtensorMapDataType type, cuuint32_t ndim, void *data,
                             const cuuint64_t *shape, const cuuint64_t *strides, const cuuint32_t *box,
                             const cuuint32_t *steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                             CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill)
{
    (void)map, (void)type, (void)ndim, (void)data, (void)shape, (void)strides, (void)box, (void)steps;
    (void)interleave, (void)swizzle, (void)promotion, (void)fill;
    ++calls[CALL_cuTensorMapEncodeTiled];
    return CUDA_SUCCESS;
}

static CUresult replace_address(CUtensorMap *map, void *data)
{
    (void)map, (void)data;
    ++calls[CALL_cuTensorMapReplaceAddress];
    return CUDA_SUCCESS;
}

cudaError_t __wrap_cudaGetDriverEntryPointByVersion(const char *name, void **entry, unsigned version,
                                                    unsigned long long flags,
                                                    enum cudaDriverEntryPointQueryResult *found)
{
    (void)version, (void)flags;
    ++calls[CALL_cudaGetDriverEntryPointByVersion];
    __typeof__(cuTensorMapEncodeTiled) *const encode = encode_tiled;
    __typeof__(cuTensorMapReplaceAddress) *const replace = replace_address;
    const bool encodes = strcmp(name, "cuTensorMapEncodeTiled") == 0;
    const bool replaces = strcmp(name, "cuTensorMapReplaceAddress") == 0;
    if (encodes) memcpy(entry, &encode, sizeof encode);
    if (replaces) memcpy(entry, &replace, sizeof replace);
    *found = encodes || replaces ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return encodes || replaces ? cudaSuccess : cudaErrorInvalidValue;
}

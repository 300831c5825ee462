/* launch_chip.h - LAUNCH through the CUDA runtime. Included by launch.h. */
#ifndef ATTEST_DEVICE_LAUNCH_CHIP_H
#define ATTEST_DEVICE_LAUNCH_CHIP_H

#define DEVICE_LAUNCH(kernel, name, ...) launch_on_chip(kernel, __VA_ARGS__)

static inline dim3 launch_axes(const unsigned (&axes)[3])
{
    return dim3(axes[0] ? axes[0] : 1, axes[1] ? axes[1] : 1, axes[2] ? axes[2] : 1);
}

/* More dynamic shared memory than a kernel gets unasked: as much as there can be, once and for all, so that threads
 * which launch the same kernel with different sizes do not disturb one another. */
static inline cudaError_t launch_allow_shared(const void *kernel, size_t bytes)
{
    cudaFuncAttributes attributes;
    int device = 0, most = 0;
    cudaError_t code = cudaFuncGetAttributes(&attributes, kernel);
    if (code != cudaSuccess || bytes <= static_cast<size_t>(attributes.maxDynamicSharedSizeBytes)) return code;
    if ((code = cudaGetDevice(&device)) != cudaSuccess) return code;
    code = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
    if (code != cudaSuccess) return code;
    most -= static_cast<int>(attributes.sharedSizeBytes);
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
}

template <typename... P, typename... A>
static inline int launch_on_chip(void (*kernel)(P...), const launch_shape &shape, void *stream, const A &...args)
{
    cudaLaunchAttribute cluster;
    cluster.id = cudaLaunchAttributeClusterDimension;
    const dim3 ctas = launch_axes(shape.cluster);
    cluster.val.clusterDim = {ctas.x, ctas.y, ctas.z};
    cudaLaunchConfig_t config = {};
    config.gridDim = launch_axes(shape.grid);
    config.blockDim = launch_axes(shape.block);
    config.dynamicSmemBytes = shape.dynamic_shared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = &cluster;
    config.numAttrs = ctas.x * ctas.y * ctas.z > 1;
    cudaError_t code = launch_allow_shared(reinterpret_cast<const void *>(kernel), shape.dynamic_shared);
    if (code == cudaSuccess) code = cudaLaunchKernelEx(&config, kernel, static_cast<P>(args)...);
    if (code != cudaSuccess) cudaGetLastError(); /* said once, here */
    return code;
}

static inline const char *launch_error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

#endif

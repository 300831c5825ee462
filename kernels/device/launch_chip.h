/* launch_chip.h - LAUNCH through the CUDA runtime. Included by launch.h. */
#ifndef ATTEST_DEVICE_LAUNCH_CHIP_H
#define ATTEST_DEVICE_LAUNCH_CHIP_H

#include <atomic>

#define DEVICE_LAUNCH(kernel, name, ...) launch_on_chip<kernel>(kernel, __VA_ARGS__)

static inline dim3 launch_axes(const unsigned (&axes)[3])
{
    return dim3(axes[0] ? axes[0] : 1, axes[1] ? axes[1] : 1, axes[2] ? axes[2] : 1);
}

/* What is asked of the driver once for each kernel and GPU; GPUs past these are asked about at every launch. */
enum { LAUNCH_KNOWN_GPUS = 32 };

/* More dynamic shared memory than a kernel gets unasked: as much as there can be, once and for all, so that threads
 * which launch the same kernel with different sizes do not disturb one another. */
template <auto kernel>
static inline cudaError_t launch_allow_shared(size_t bytes)
{
    static std::atomic<size_t> allowed[LAUNCH_KNOWN_GPUS];
    cudaFuncAttributes attributes;
    int device = 0, most = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code != cudaSuccess || (device < LAUNCH_KNOWN_GPUS && bytes <= allowed[device])) return code;
    if ((code = cudaFuncGetAttributes(&attributes, kernel)) != cudaSuccess) return code;
    if (bytes > static_cast<size_t>(attributes.maxDynamicSharedSizeBytes)) {
        code = cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device);
        if (code != cudaSuccess) return code;
        most -= static_cast<int>(attributes.sharedSizeBytes);
        code = cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, most);
    }
    if (code == cudaSuccess && device < LAUNCH_KNOWN_GPUS) allowed[device] = bytes;
    return code;
}

/* Of arguments of the kernel's own types: nothing is copied but by the runtime. */
template <typename... P>
static inline cudaError_t launch_arguments(const cudaLaunchConfig_t &config, void (*kernel)(P...), const P &...args)
{
    void *places[] = {const_cast<void *>(static_cast<const void *>(&args))...};
    return cudaLaunchKernelExC(&config, reinterpret_cast<const void *>(kernel), places);
}

template <auto kernel, typename... P, typename... A>
static inline int launch_on_chip(void (*)(P...), const launch_shape &shape, void *stream, const A &...args)
{
    cudaLaunchAttribute attributes[2];
    unsigned num_attributes = 0;
    const dim3 ctas = launch_axes(shape.cluster);
    if (ctas.x * ctas.y * ctas.z > 1) {
        cudaLaunchAttribute &cluster = attributes[num_attributes++];
        cluster.id = cudaLaunchAttributeClusterDimension;
        cluster.val.clusterDim = {ctas.x, ctas.y, ctas.z};
    }
    if (shape.begins_early) {
        cudaLaunchAttribute &early = attributes[num_attributes++];
        early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
        early.val.programmaticStreamSerializationAllowed = 1;
    }
    cudaLaunchConfig_t config = {};
    config.gridDim = launch_axes(shape.grid);
    config.blockDim = launch_axes(shape.block);
    config.dynamicSmemBytes = shape.dynamic_shared;
    config.stream = static_cast<cudaStream_t>(stream);
    config.attrs = attributes;
    config.numAttrs = num_attributes;
    cudaError_t code = launch_allow_shared<kernel>(shape.dynamic_shared);
    if (code == cudaSuccess) code = launch_arguments<P...>(config, kernel, args...);
    if (code != cudaSuccess) cudaGetLastError(); /* said once, here */
    return code;
}

/* A number of the current GPU, 0 where it cannot be asked. */
template <cudaDeviceAttr attribute>
static inline unsigned launch_attribute()
{
    static std::atomic<int> known[LAUNCH_KNOWN_GPUS];
    int device = 0, value = 0;
    cudaError_t code = cudaGetDevice(&device);
    if (code == cudaSuccess && device < LAUNCH_KNOWN_GPUS) value = known[device];
    if (code == cudaSuccess && value == 0) {
        code = cudaDeviceGetAttribute(&value, attribute, device);
        if (code == cudaSuccess && device < LAUNCH_KNOWN_GPUS) known[device] = value;
    }
    if (code != cudaSuccess) cudaGetLastError();
    return static_cast<unsigned>(value);
}

static inline unsigned launch_num_sms(void *) { return launch_attribute<cudaDevAttrMultiProcessorCount>(); }

static inline unsigned launch_max_shared(void *)
{
    return launch_attribute<cudaDevAttrMaxSharedMemoryPerBlockOptin>();
}

static inline const char *launch_error_text(int code) { return cudaGetErrorString(static_cast<cudaError_t>(code)); }

#endif

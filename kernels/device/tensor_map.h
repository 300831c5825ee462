/* tensor_map.h - tensor maps, made on the host. */
#ifndef ATTEST_DEVICE_TENSOR_MAP_H
#define ATTEST_DEVICE_TENSOR_MAP_H

#include "kernels/device/machine.h"

#if ON_CHIP
#include <cuda.h>
#include <stdio.h>
#endif

struct alignas(64) tensor_map {
    uint64_t opaque[16];
};

enum tensor_element { TENSOR_FP32, TENSOR_FP16, TENSOR_BF16, TENSOR_UINT8 };

/* Dimension 0 is the fastest. */
struct tensor_map_fields {
    const void *data;           /* global memory, a multiple of 16 */
    tensor_element element;
    int ndim;                   /* 1 .. 5 */
    uint64_t shape[5];          /* elements */
    uint64_t stride_bytes[5];   /* of dimension 1 and up, multiples of 16; [0] is not read */
    uint32_t box[5];            /* elements, 1 .. 256; box[0] a multiple of 16 bytes and within the swizzle */
    int swizzle_bytes;          /* 0, 32, 64, 128 */
    bool nan_fill;              /* outside of the tensor: NaN in place of zero */
};

#if ON_CHIP
/* A function of the driver's, or NULL. */
static inline void *tensor_map_driver(const char *name)
{
    void *entry = nullptr;
    cudaDriverEntryPointQueryResult found;
    const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &entry, 12000, cudaEnableDefault, &found);
    if (error != cudaSuccess) cudaGetLastError(); /* callers do without it: the next error asked for is not this */
    return error == cudaSuccess ? entry : nullptr;
}
#endif

/* False if the machine refuses the fields: `why` says so in a sentence. */
static inline bool tensor_map_encode(tensor_map *map, const tensor_map_fields *fields, char *why, size_t why_bytes)
{
#if ON_CHIP
    typedef CUresult encode_tiled(CUtensorMap *, CUtensorMapDataType, cuuint32_t, void *, const cuuint64_t *,
                                  const cuuint64_t *, const cuuint32_t *, const cuuint32_t *, CUtensorMapInterleave,
                                  CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
    static const CUtensorMapDataType types[] = {CU_TENSOR_MAP_DATA_TYPE_FLOAT32, CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
                                                CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, CU_TENSOR_MAP_DATA_TYPE_UINT8};
    static const cuuint32_t ones[5] = {1, 1, 1, 1, 1};
    const CUtensorMapSwizzle swizzle = fields->swizzle_bytes == 128  ? CU_TENSOR_MAP_SWIZZLE_128B
                                       : fields->swizzle_bytes == 64 ? CU_TENSOR_MAP_SWIZZLE_64B
                                       : fields->swizzle_bytes == 32 ? CU_TENSOR_MAP_SWIZZLE_32B
                                                                     : CU_TENSOR_MAP_SWIZZLE_NONE;
    static void *const entry = tensor_map_driver("cuTensorMapEncodeTiled");
    if (entry == nullptr) {
        snprintf(why, why_bytes, "The driver has no cuTensorMapEncodeTiled.");
        return false;
    }
    const CUresult code = reinterpret_cast<encode_tiled *>(entry)(
        reinterpret_cast<CUtensorMap *>(map), types[fields->element], static_cast<cuuint32_t>(fields->ndim),
        const_cast<void *>(fields->data), fields->shape, fields->stride_bytes + 1, fields->box, ones,
        CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
        fields->nan_fill ? CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA : CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    if (code != CUDA_SUCCESS) snprintf(why, why_bytes, "cuTensorMapEncodeTiled refuses these fields: error %d.", code);
    return code == CUDA_SUCCESS;
#else
    static const sim_tensor_map_fields::sim_element elements[] = {
        sim_tensor_map_fields::SIM_ELEMENT_FP32, sim_tensor_map_fields::SIM_ELEMENT_FP16,
        sim_tensor_map_fields::SIM_ELEMENT_BF16, sim_tensor_map_fields::SIM_ELEMENT_UINT8};
    sim_tensor_map_fields same = {};
    same.data = fields->data;
    same.element = elements[fields->element];
    same.ndim = fields->ndim;
    for (int n = 0; n < 5; ++n) {
        same.shape[n] = fields->shape[n];
        same.stride_bytes[n] = fields->stride_bytes[n];
        same.box[n] = fields->box[n];
    }
    same.swizzle_bytes = fields->swizzle_bytes;
    same.nan_fill = fields->nan_fill;
    return sim_tensor_map_encode(map, &same, why, why_bytes);
#endif
}

/* The same map of a tensor that lies at `data`, a multiple of 16. False if the machine does not do that, and the map is
 * as it was. */
static inline bool tensor_map_move(tensor_map *map, void *data)
{
#if ON_CHIP
    typedef CUresult replace_address(CUtensorMap *, void *);
    static void *const entry = tensor_map_driver("cuTensorMapReplaceAddress");
    return entry != nullptr &&
           reinterpret_cast<replace_address *>(entry)(reinterpret_cast<CUtensorMap *>(map), data) == CUDA_SUCCESS;
#else
    return sim_tensor_map_move(map, data);
#endif
}

#endif

/* tma_tensors.h - tensor maps of tensors of any length, made anew for each launch. All of it runs on the host. */
#ifndef ATTEST_KERNELS_SHARED_TMA_TENSORS_H
#define ATTEST_KERNELS_SHARED_TMA_TENSORS_H

#include "kernels/device/device.h"
#include "kernels/shared/params.h"

template <int COUNT>
struct tma_tensors {
    tensor_map of[COUNT];
};

/* Counts features, rows, heads and sequences. */
struct tma_sizes {
    int64_t of[4];
};

/* Encodes a tensor whose boxes have `box_rows` rows of a head, PANEL features of each, swizzled as wgmma reads them. A
 * stride is looked at where there is more than one of its kind: it must be positive, and fit into 40 bits of bytes. A
 * tensor without elements has no map, and needs none. Returns false if there is no such map. */
template <int PANEL>
static bool encode_tensor(tensor_map &map, const row_tensor &t, const tma_sizes &sizes, int box_rows)
{
    const int64_t strides[] = {1, t.seqlen, t.head, t.batch};
    const int box[] = {PANEL, box_rows, 1, 1};
    tensor_map_fields fields = {};
    fields.data = t.data, fields.element = t.dtype == ATTEST_FP16 ? TENSOR_FP16 : TENSOR_BF16;
    fields.ndim = 4, fields.swizzle_bytes = PANEL * 2;
    map = {};
    for (int d = 0; d < fields.ndim; ++d) {
        if (sizes.of[d] == 0) return true;
        if (sizes.of[d] > 1 && (strides[d] <= 0 || strides[d] >= INT64_C(1) << 39)) return false;
        fields.shape[d] = static_cast<uint64_t>(sizes.of[d]), fields.box[d] = static_cast<uint32_t>(box[d]);
        fields.stride_bytes[d] = sizes.of[d] == 1 ? 16 : static_cast<uint64_t>(strides[d] * 2);
    }
    char why[200];
    return tensor_map_encode(&map, &fields, why, sizeof why);
}

#endif

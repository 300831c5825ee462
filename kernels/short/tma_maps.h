/* tma_maps.h - tensor maps of launches of whole short sequences (are_whole), kept for the next one. All of it runs on
 * the host. */
#ifndef ATTEST_KERNELS_SHORT_TMA_MAPS_H
#define ATTEST_KERNELS_SHORT_TMA_MAPS_H

#include "kernels/shared/wgmma_tiles.h"
#include "kernels/shared/params.h"

/* Keeps the maps of a thread's last launch of a shape. Seven take the host as long to make as all else of a call: where
 * tensors lie as the last ones did, only their addresses are put into the maps, if these differ. */
template <typename maps_type, int COUNT>
struct known_maps {
    row_tensor tensors[COUNT];
    int64_t num_heads, batch;
    maps_type maps;
    bool are_known;
};

static inline bool lies_like(const row_tensor &a, const row_tensor &b)
{
    return a.batch == b.batch && a.seqlen == b.seqlen && a.head == b.head && a.dtype == b.dtype;
}

/* Encodes a map; returns false if the machine refuses it: a tensor may lie as no map can say. */
template <typename shape>
static bool encode_map(tensor_map &map, const row_tensor &t, const forward_params &f, int box_rows)
{
    const int64_t sizes[] = {shape::DIM, shape::KEYS, f.num_heads_q, f.batch};
    const int64_t strides[] = {1, t.seqlen, t.head, t.batch};
    const int box[] = {shape::PANEL, box_rows, 1, 1};
    tensor_map_fields fields = {};
    fields.data = t.data, fields.element = t.dtype == ATTEST_FP16 ? TENSOR_FP16 : TENSOR_BF16;
    fields.ndim = 4, fields.swizzle_bytes = shape::PANEL * 2;
    for (int d = 0; d < fields.ndim; ++d) {
        fields.shape[d] = static_cast<uint64_t>(sizes[d]), fields.box[d] = static_cast<uint32_t>(box[d]);
        fields.stride_bytes[d] = static_cast<uint64_t>(strides[d] * 2);
    }
    char why[200];
    return tensor_map_encode(&map, &fields, why, sizeof why);
}

/* Finds maps_type::of: one map for each of the tensors, which have as many heads as q. A box has some rows of a head,
 * of a panel's features. Returns NULL if there are none. */
template <typename maps_type, typename shape, int BOX_ROWS, int COUNT>
static const maps_type *find_maps(const forward_params &f, const row_tensor *const (&tensors)[COUNT])
{
    static thread_local known_maps<maps_type, COUNT> known;
    bool is_same = known.are_known && known.num_heads == f.num_heads_q && known.batch == f.batch;
    for (int n = 0; n < COUNT; ++n) is_same = is_same && lies_like(known.tensors[n], *tensors[n]);
    known.are_known = true, known.num_heads = f.num_heads_q, known.batch = f.batch;
    for (int n = 0; n < COUNT && known.are_known; ++n) {
        if (is_same && known.tensors[n].data == tensors[n]->data) continue;
        if (!is_same || !tensor_map_move(&known.maps.of[n], tensors[n]->data))
            known.are_known = encode_map<shape>(known.maps.of[n], *tensors[n], f, BOX_ROWS);
        known.tensors[n] = *tensors[n];
    }
    return known.are_known ? &known.maps : nullptr;
}

#endif

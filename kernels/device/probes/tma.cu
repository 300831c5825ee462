/* tma.cu - probes of tma.h and tensor_map.h: each box of probe_tma.h loaded, stored, added. */
#include "kernels/device/device.h"
#include "kernels/device/probes/probe_tma.h"

namespace {

enum { THREADS = 64, MAP_REFUSED = 1 };

struct alignas(1024) box {
    uint32_t words[TMA_BOX_BYTES / 4];
};

struct corner {
    int ndim, at[5];
};

DEVICE void load(box *to, const tensor_map *map, mbarrier *full, const corner &c)
{
    if (c.ndim == 1) tma_load_1d(to, map, full, c.at[0]);
    if (c.ndim == 2) tma_load_2d(to, map, full, c.at[0], c.at[1]);
    if (c.ndim == 3) tma_load_3d(to, map, full, c.at[0], c.at[1], c.at[2]);
    if (c.ndim == 4) tma_load_4d(to, map, full, c.at[0], c.at[1], c.at[2], c.at[3]);
    if (c.ndim == 5) tma_load_5d(to, map, full, c.at[0], c.at[1], c.at[2], c.at[3], c.at[4]);
}

DEVICE void load_multicast(box *to, const tensor_map *map, mbarrier *full, const corner &c)
{
    const uint16_t both = 3;
    if (c.ndim == 1) tma_load_1d_multicast(to, map, full, both, c.at[0]);
    if (c.ndim == 2) tma_load_2d_multicast(to, map, full, both, c.at[0], c.at[1]);
    if (c.ndim == 3) tma_load_3d_multicast(to, map, full, both, c.at[0], c.at[1], c.at[2]);
    if (c.ndim == 4) tma_load_4d_multicast(to, map, full, both, c.at[0], c.at[1], c.at[2], c.at[3]);
    if (c.ndim == 5) tma_load_5d_multicast(to, map, full, both, c.at[0], c.at[1], c.at[2], c.at[3], c.at[4]);
}

DEVICE void store(const tensor_map *map, const box *from, const corner &c)
{
    if (c.ndim == 1) tma_store_1d(map, from, c.at[0]);
    if (c.ndim == 2) tma_store_2d(map, from, c.at[0], c.at[1]);
    if (c.ndim == 3) tma_store_3d(map, from, c.at[0], c.at[1], c.at[2]);
    if (c.ndim == 4) tma_store_4d(map, from, c.at[0], c.at[1], c.at[2], c.at[3]);
    if (c.ndim == 5) tma_store_5d(map, from, c.at[0], c.at[1], c.at[2], c.at[3], c.at[4]);
    bulk_commit();
    bulk_wait<0>();
}

DEVICE void add(const tensor_map *map, const box *from, const corner &c)
{
    if (c.ndim == 1) tma_reduce_add_1d(map, from, c.at[0]);
    if (c.ndim == 2) tma_reduce_add_2d(map, from, c.at[0], c.at[1]);
    if (c.ndim == 3) tma_reduce_add_3d(map, from, c.at[0], c.at[1], c.at[2]);
    if (c.ndim == 4) tma_reduce_add_4d(map, from, c.at[0], c.at[1], c.at[2], c.at[3]);
    if (c.ndim == 5) tma_reduce_add_5d(map, from, c.at[0], c.at[1], c.at[2], c.at[3], c.at[4]);
    bulk_commit();
    bulk_wait<0>();
}

KERNEL(THREADS, 1) void load_kernel(const GRID_CONSTANT tensor_map map, corner c, unsigned bytes, uint32_t *out)
{
    STATIC_SHARED(box, shared);
    STATIC_SHARED(mbarrier, full);
    if (thread_x() == 0) {
        tma_prefetch(&map);
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full, bytes);
        load(&shared, &map, &full, c);
    }
    sync_threads();
    mbarrier_wait(&full, 0);
    for (unsigned n = thread_x(); n < bytes / 4; n += THREADS) out[n] = shared.words[n];
}

KERNEL(THREADS, 1) void multicast_kernel(const GRID_CONSTANT tensor_map map, corner c, unsigned bytes, uint32_t *out)
{
    STATIC_SHARED(box, shared);
    STATIC_SHARED(mbarrier, full);
    if (thread_x() == 0) {
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full, bytes);
    }
    cluster_sync();
    if (cluster_rank() == 1 && thread_x() == 0) load_multicast(&shared, &map, &full, c);
    mbarrier_wait(&full, 0);
    for (unsigned n = thread_x(); n < bytes / 4; n += THREADS)
        out[cluster_rank() * (TMA_BOX_BYTES / 4) + n] = shared.words[n];
    cluster_sync();
}

KERNEL(THREADS, 1) void store_kernel(const GRID_CONSTANT tensor_map map, corner c, unsigned bytes,
                                     const uint32_t *words, bool twice)
{
    STATIC_SHARED(box, shared);
    for (unsigned n = thread_x(); n < bytes / 4; n += THREADS) shared.words[n] = words[n];
    fence_proxy_async_shared();
    sync_threads();
    if (thread_x() == 0) {
        store(&map, &shared, c);
        if (twice) add(&map, &shared, c);
    }
}

corner corner_of(const tma_case &c) { return {c.ndim, {c.at[0], c.at[1], c.at[2], c.at[3], c.at[4]}}; }

bool make_map(tensor_map *map, const tma_case &c, const void *data)
{
    static const tensor_element elements[] = {TENSOR_FP32, TENSOR_FP16, TENSOR_BF16, TENSOR_UINT8};
    char why[256];
    tensor_map_fields fields = {};
    fields.data = data;
    fields.element = elements[c.element];
    fields.ndim = c.ndim;
    for (int n = 0; n < c.ndim; ++n) {
        fields.shape[n] = c.shape[n];
        fields.stride_bytes[n] = tma_stride(&c, n);
        fields.box[n] = c.box[n];
    }
    fields.swizzle_bytes = c.swizzle;
    fields.nan_fill = c.nan_fill;
    return tensor_map_encode(map, &fields, why, sizeof why);
}

const launch_shape SHAPE = {{1, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1};
const launch_shape PAIR = {{2, 1, 1}, {THREADS, 1, 1}, {2, 1, 1}, 0, THREADS, 1};

} // namespace

extern "C" int KERNEL_SYMBOL(probe_tma_load)(const void *in, void *out, void *stream)
{
    tma_load_out *const o = static_cast<tma_load_out *>(out);
    int code = 0;
    for (int n = 0; n < TMA_CASES && code == 0; ++n) {
        const tma_case &c = tma_cases[n];
        tensor_map map;
        if (!make_map(&map, c, in)) return MAP_REFUSED;
        uint32_t *const to = reinterpret_cast<uint32_t *>(o->box[n]);
        uint32_t *const both = reinterpret_cast<uint32_t *>(o->multicast[n]);
        code = LAUNCH(load_kernel, SHAPE, stream, map, corner_of(c), tma_box_bytes(&c), to);
        if (code == 0) code = LAUNCH(multicast_kernel, PAIR, stream, map, corner_of(c), tma_box_bytes(&c), both);
    }
    return code;
}

extern "C" int KERNEL_SYMBOL(probe_tma_store)(const void *in, void *out, void *stream)
{
    const tma_store_in *const w = static_cast<const tma_store_in *>(in);
    tma_store_out *const o = static_cast<tma_store_out *>(out);
    int code = 0;
    for (int n = 0; n < TMA_CASES && code == 0; ++n) {
        const tma_case &c = tma_cases[n];
        const uint32_t *const words = w->words[c.element % 3]; /* any words do as bytes */
        tensor_map map, sums;
        if (!tma_may_store(&c)) continue;
        if (!make_map(&map, c, o->stored[n])) return MAP_REFUSED;
        sums = map;
        if (!tensor_map_move(&sums, o->added[n])) return MAP_REFUSED;
        code = LAUNCH(store_kernel, SHAPE, stream, map, corner_of(c), tma_box_bytes(&c), words, false);
        if (code == 0 && c.element != TMA_UINT8)
            code = LAUNCH(store_kernel, SHAPE, stream, sums, corner_of(c), tma_box_bytes(&c), words, true);
    }
    return code;
}

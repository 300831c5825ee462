// chain.cu - a persistent kernel in a chain of launches, each of which begins before the one ahead has ended.
//
// In each of two passes a first launch writes work = in + pass, a second one out = q k^T of what lies there: CTAs stay
// and take tile after tile, two buffers in turn. The next tile is loaded beside this one's product, and this one's
// result is stored while the next one is computed.
#include "kernels/sim/tests/pipelines/pipelines.h"

namespace {

enum { THREADS = 128, SLOTS = 2, RESULTS = GROUP_ROWS * KEY_ROWS };

// The work of a pass: it may be written when the launches ahead, which read that of the last pass, have ended.
KERNEL(THREADS, 1) void prepare_kernel(struct room r, int pass)
{
    const unsigned first = block_x() * THREADS + thread_x(), step = grid_x() * THREADS;
    if (r.mistake != chain_prepared_early) grid_wait();
    for (unsigned i = first; i < CHAIN_ROWS * COLUMNS; i += step) {
        const bf16 x = {r.in[i]};
        r.work[i] = to_bf16(to_f32(x) + static_cast<float>(pass)).bits;
    }
    if (r.mistake == chain_prepared_early) grid_wait();
}

struct chain_tiles {
    operand<GROUP_ROWS> q[SLOTS];
    operand<KEY_ROWS> k;
    alignas(128) float staging[RESULTS];
    mbarrier q_full[SLOTS], k_full;
};

DEVICE void load_tile(chain_tiles &s, int slot, const tensor_map *group_map, int tile, enum mistake mistake)
{
    if (thread_x() != 0 && !(mistake == chain_loaded_by_all_warps && lane() == 0)) return;
    mbarrier_arrive_expect_tx(&s.q_full[slot], sizeof s.q[0]);
    tma_load_2d(&s.q[slot], group_map, &s.q_full[slot], 0, tile * GROUP_ROWS);
}

// What needs nothing of the launches ahead, and the first loads, which do.
DEVICE void begin(chain_tiles &s, const tensor_map *group_map, const tensor_map *tile_map, enum mistake mistake)
{
    const bool waits = mistake == chain_not_waited_by_loader ? thread_x() != 0
                       : mistake == chain_not_waited_by_warp ? warp() != 3
                                                             : true;
    if (thread_x() == 0) {
        for (int slot = 0; slot < SLOTS; ++slot) mbarrier_init(&s.q_full[slot], 1);
        mbarrier_init(&s.k_full, 1);
        fence_mbarrier_init();
    }
    sync_threads();
    if (waits && mistake != chain_loaded_before_wait) grid_wait();
    load_tile(s, 0, group_map, static_cast<int>(block_x()), mistake);
    if (thread_x() == 0) {
        mbarrier_arrive_expect_tx(&s.k_full, sizeof s.k);
        tma_load_2d(&s.k, tile_map, &s.k_full, 0, CHAIN_KEYS);
    }
    if (mistake == chain_loaded_before_wait) grid_wait();
}

// The parity of a tile's phase: each slot has every other tile.
DEVICE unsigned parity_of(int n, enum mistake mistake)
{
    if (mistake == chain_parity_of_tile) return n % 2;
    return mistake == chain_parity_not_carried ? 0 : n / SLOTS % 2;
}

// Stores a tile of the result, when the last one has left the staging buffer.
DEVICE void store_result(chain_tiles &s, float *out, const float (&sums)[8], enum mistake mistake)
{
    if (mistake != chain_last_store_not_waited && thread_x() == 0) bulk_wait_read<0>();
    if (mistake != chain_store_wait_not_synced) sync_threads();
    write_product(s.staging, KEY_ROWS, sums);
    if (mistake != chain_staging_not_fenced) fence_proxy_async_shared();
    if (mistake != chain_staging_not_synced) sync_threads();
    if (thread_x() == 0) {
        bulk_store(out, s.staging, sizeof s.staging);
        if (mistake != chain_store_not_committed) bulk_commit();
    }
}

KERNEL(THREADS, 1) void chain_kernel(struct room r, int pass, const GRID_CONSTANT tensor_map group_map,
                                     const GRID_CONSTANT tensor_map tile_map)
{
    STATIC_SHARED(chain_tiles, s);
    const int first = static_cast<int>(block_x());
    const int step = r.mistake == chain_tiles_shared ? 1 : static_cast<int>(grid_x());
    const bool is_checked = r.mistake != chain_tile_beyond_end;
    float sums[8];
    begin(s, &group_map, &tile_map, r.mistake);
    mbarrier_wait(&s.k_full, 0);
    for (int n = 0, tile = first; tile < CHAIN_TILES; ++n, tile += step) {
        const int slot = n % SLOTS, next_slot = r.mistake == chain_next_into_same_slot ? slot : slot ^ 1;
        if (r.mistake != chain_full_not_waited) mbarrier_wait(&s.q_full[slot], parity_of(n, r.mistake));
        wgmma_fence();
        wgmma_m64nNk16_bf16<KEY_ROWS>(sums, rows_of(s.q[slot]), rows_of(s.k), r.mistake == chain_sums_kept && n > 0);
        wgmma_commit();
        if (!is_checked || tile + step < CHAIN_TILES) load_tile(s, next_slot, &group_map, tile + step, r.mistake);
        if (r.mistake != chain_product_not_waited) wgmma_wait<0>();
        wgmma_fence_operand(sums);
        store_result(s, r.out + (pass * CHAIN_TILES + tile) * RESULTS, sums, r.mistake);
    }
    if (thread_x() == 0 && r.mistake != chain_store_left) bulk_wait_read<0>();
}

}  // namespace

extern "C" int run_chain(struct sim_gpu *gpu, const struct room *r)
{
    launch_shape shape = {};
    tensor_map group_map, tile_map;
    int status = 0;
    shape.grid[0] = CHAIN_CTAS;
    shape.block[0] = shape.max_threads = THREADS;
    shape.min_blocks = 1;
    shape.begins_early = true;
    if (!map_rows(&group_map, r->work, TENSOR_BF16, CHAIN_ROWS, COLUMNS, GROUP_ROWS)) return -1;
    if (!map_rows(&tile_map, r->work, TENSOR_BF16, CHAIN_ROWS, COLUMNS, KEY_ROWS)) return -1;
    for (int pass = 0; pass < CHAIN_PASSES && status == 0; ++pass) {
        status = LAUNCH(prepare_kernel, shape, gpu, *r, pass);
        if (status == 0) status = LAUNCH(chain_kernel, shape, gpu, *r, pass, group_map, tile_map);
    }
    return status;
}

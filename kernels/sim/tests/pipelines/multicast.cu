// multicast.cu - a cluster of two CTAs: each loads half of a tile of keys and multicasts it to both.
//
// out = q k^T, summed over tiles of columns. A CTA has a ring of 2 to 5 stages, a producing warp and a consuming
// warpgroup, and rows of queries of its own, loaded beside the keys. `full` counts the bytes of the CTA's queries and
// of both halves of the keys; `empty` the consuming warps of both CTAs, since a load writes to both.
#include "kernels/sim/tests/pipelines/pipelines.h"

namespace {

enum { CLUSTER = 2, CONSUMING_WARPS = 4, THREADS = 32 * (CONSUMING_WARPS + 1) };

struct cast_stage {
    operand<GROUP_ROWS> q;
    operand<CLUSTER * KEY_ROWS> k;
};

template <int STAGES>
struct cast_ring {
    cast_stage tiles[STAGES];
    mbarrier full[STAGES], empty[STAGES];
};

// The fence lets a relaxed arrival tell both CTAs of the barriers. The maps are fetched while others come.
template <int STAGES>
DEVICE void make_barriers(cast_ring<STAGES> &s, const tensor_map *group_map, const tensor_map *tile_map,
                          enum mistake mistake)
{
    if (thread_x() == 0) {
        for (int n = 0; n < STAGES; ++n) {
            mbarrier_init(&s.full[n], 1);
            mbarrier_init(&s.empty[n], (mistake == cast_empty_counts_one_cta ? 1 : CLUSTER) * CONSUMING_WARPS);
        }
        if (mistake == cast_init_fenced_as_memory) fence_proxy_async();
        else if (mistake != cast_init_not_fenced) fence_mbarrier_init();
    }
    if (mistake == cast_init_synced_in_cta) {
        sync_threads();
        return;
    }
    cluster_arrive_relaxed();
    if (thread_x() == 0) {
        tma_prefetch(group_map);
        tma_prefetch(tile_map);
    }
    if (mistake != cast_init_not_waited) cluster_wait();
}

// Loads this CTA's queries, and its half of the keys for both.
DEVICE void load_tile(cast_stage &tile, mbarrier *full, const tensor_map *group_map, const tensor_map *tile_map, int n,
                      enum mistake mistake)
{
    const unsigned rank = cluster_rank(), half = mistake == cast_same_half ? 0 : rank;
    const unsigned mask = mistake == cast_mask_of_itself ? 1u << rank : mistake == cast_mask_of_other ? 2u >> rank : 3u;
    const unsigned bytes = mistake == cast_bytes_of_half ? sizeof tile.q + sizeof tile.k / 2
                           : mistake == cast_bytes_of_keys ? sizeof tile.k
                                                           : sizeof tile;
    const int q_row = (static_cast<int>(block_x()) * CAST_TILES + n) * GROUP_ROWS;
    const int k_row = CAST_KEYS + (n * CLUSTER + static_cast<int>(half)) * KEY_ROWS;
    if (mistake != cast_expected_by_one || rank == 0) mbarrier_arrive_expect_tx(full, bytes);
    tma_load_2d(&tile.q, group_map, full, 0, q_row);
    if (mistake == cast_not_multicast) tma_load_2d(&tile.k.at[half * KEY_ROWS * COLUMNS], tile_map, full, 0, k_row);
    else tma_load_2d_multicast(&tile.k.at[half * KEY_ROWS * COLUMNS], tile_map, full, static_cast<uint16_t>(mask), 0,
                               k_row);
}

template <int STAGES>
DEVICE void produce(cast_ring<STAGES> &s, const tensor_map *group_map, const tensor_map *tile_map, enum mistake mistake)
{
    const bool turns = mistake != cast_empty_parity_not_turned;
    const int tail = mistake == cast_tail_missing ? 0 : mistake == cast_tail_too_short ? STAGES - 1 : STAGES;
    place at = {0, 1};
    for (int n = 0; n < CAST_TILES; ++n) {
        if (mistake != cast_empty_not_waited) mbarrier_wait(&s.empty[at.stage], at.parity);
        load_tile(s.tiles[at.stage], &s.full[at.stage], group_map, tile_map, n, mistake);
        advance(at, STAGES, turns);
    }
    // The other CTA has yet to arrive at these barriers: until then they must not go.
    for (int n = 0; n < tail; ++n) {
        mbarrier_wait(&s.empty[at.stage], at.parity);
        advance(at, STAGES, turns);
    }
}

// Says in both CTAs that this warp has no further use of a stage.
DEVICE void release(mbarrier *empty, enum mistake mistake)
{
    const unsigned rank = cluster_rank(), other = mistake == cast_released_to_itself ? rank : rank ^ 1;
    if (lane() != 0) return;
    mbarrier_arrive(empty);
    if (mistake == cast_released_by_cta_instruction) mbarrier_arrive(cluster_map(empty, other));
    else if (mistake != cast_released_in_own_cta) mbarrier_arrive_cluster(cluster_map(empty, other));
}

template <int STAGES>
DEVICE void consume(const struct room &r, cast_ring<STAGES> &s)
{
    float sums[CLUSTER * KEY_ROWS / 2];
    place at = {0, 0};
    for (int n = 0; n < CAST_TILES; ++n) {
        const cast_stage &tile = s.tiles[at.stage];
        if (r.mistake != cast_full_not_waited) mbarrier_wait(&s.full[at.stage], at.parity);
        wgmma_fence();
        wgmma_m64nNk16_bf16<CLUSTER * KEY_ROWS>(sums, rows_of(tile.q), rows_of(tile.k),
                                                n > 0 || r.mistake == cast_sums_not_begun);
        wgmma_commit();
        if (r.mistake == cast_released_early) release(&s.empty[at.stage], r.mistake);
        wgmma_wait<0>();
        wgmma_fence_operand(sums);
        if (r.mistake != cast_released_early) release(&s.empty[at.stage], r.mistake);
        advance(at, STAGES, r.mistake != cast_full_parity_not_turned);
    }
    write_product(r.out + block_x() * GROUP_ROWS * CLUSTER * KEY_ROWS, CLUSTER * KEY_ROWS, sums);
}

template <int STAGES>
KERNEL(THREADS, 1) void multicast_kernel(struct room r, const GRID_CONSTANT tensor_map group_map,
                                         const GRID_CONSTANT tensor_map tile_map)
{
    typedef cast_ring<STAGES> ring;
    STATIC_SHARED(ring, s);
    make_barriers(s, &group_map, &tile_map, r.mistake);
    if (warp() < CONSUMING_WARPS) consume(r, s);
    else if (elect_one()) produce(s, &group_map, &tile_map, r.mistake);
    if (r.mistake == cast_init_not_waited) cluster_wait();
}

template <int STAGES>
int launch(struct sim_gpu *gpu, const struct room *r)
{
    launch_shape shape = {};
    tensor_map group_map, tile_map;
    shape.grid[0] = CAST_CTAS;
    shape.cluster[0] = CLUSTER;
    shape.block[0] = shape.max_threads = THREADS;
    shape.min_blocks = 1;
    if (!map_rows(&group_map, r->in, TENSOR_BF16, CAST_ROWS, COLUMNS, GROUP_ROWS)) return -1;
    if (!map_rows(&tile_map, r->in, TENSOR_BF16, CAST_ROWS, COLUMNS, KEY_ROWS)) return -1;
    return LAUNCH((multicast_kernel<STAGES>), shape, gpu, *r, group_map, tile_map);
}

}  // namespace

extern "C" int run_multicast(struct sim_gpu *gpu, const struct room *r)
{
    return r->stages == 2 ? launch<2>(gpu, r) : r->stages == 3 ? launch<3>(gpu, r)
           : r->stages == 4 ? launch<4>(gpu, r) : launch<5>(gpu, r);
}

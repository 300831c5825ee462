// turns.cu - ping-pong: two warpgroups take tiles of queries in turn, the softmax of one beside the products of the
// other.
//
// out = f(q k^T) v for each tile, f(x) = x + |x| in place of a softmax. Two things belong to one warpgroup at a time:
// the buffer of the queries and the staging buffer of the results. A named barrier for each thing and warpgroup hands
// it on: its next user waits there (bar.sync), the last one arrives (bar.arrive).
#include "kernels/sim/tests/pipelines/pipelines.h"

namespace {

enum {
    GROUPS = 2,
    THREADS = 128 * GROUPS,
    ROUNDS = TURN_TILES / GROUPS, /* of each warpgroup */
    PRODUCT = 1,                  /* named barriers: two for each kind, the warpgroup's number on top */
    STAGING = 3,
    OWN = 5
};

struct turn_tiles {
    operand<GROUP_ROWS> q;
    operand<KEY_ROWS> k, v;
    alignas(128) float staging[GROUP_ROWS * COLUMNS];
    mbarrier q_full, kv_full;
};

DEVICE void begin(turn_tiles &s, const tensor_map *tile_map)
{
    if (thread_x() == 0) {
        mbarrier_init(&s.q_full, 1);
        mbarrier_init(&s.kv_full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&s.kv_full, sizeof s.k + sizeof s.v);
        tma_load_2d(&s.k, tile_map, &s.kv_full, 0, TURN_KEYS);
        tma_load_2d(&s.v, tile_map, &s.kv_full, 0, TURN_VALUES);
    }
    sync_threads();
}

// Waits for this warpgroup's turn; gives the turn to the other one.
DEVICE void take_turn(unsigned what, unsigned group, enum mistake mistake)
{
    named_barrier_sync(mistake == turns_same_barrier ? what : what + group,
                       mistake == turns_count_one_group ? 128 : THREADS);
}

DEVICE void give_turn(unsigned what, unsigned group, enum mistake mistake)
{
    named_barrier_arrive(mistake == turns_same_barrier ? what : what + (group ^ 1),
                         mistake == turns_count_one_group ? 128 : THREADS);
}

// At the start, warpgroup 1 gives warpgroup 0 both turns.
DEVICE void give_first_turns(unsigned group, enum mistake mistake)
{
    if (mistake == turns_not_begun) return;
    if (mistake == turns_begun_by_other ? group == 0 : mistake == turns_begun_by_both || group == 1) {
        give_turn(PRODUCT, group, mistake);
        give_turn(STAGING, group, mistake);
    }
}

// The last turn is not given to anybody.
DEVICE bool is_given(int tile, enum mistake mistake)
{
    return mistake == turns_last_one_given || tile < TURN_TILES - 1;
}

DEVICE void load_queries(turn_tiles &s, const tensor_map *group_map, int tile)
{
    if (thread_x() % 128 != 0) return;
    mbarrier_arrive_expect_tx(&s.q_full, sizeof s.q);
    tma_load_2d(&s.q, group_map, &s.q_full, 0, GROUP_ROWS * tile);
}

// scores = q k^T, while the buffer of the queries is this warpgroup's. Every other phase of its barrier is.
DEVICE void find_scores(float (&scores)[8], turn_tiles &s, const tensor_map *group_map, int tile, enum mistake mistake)
{
    const unsigned group = warp() / 4, parity = (mistake == turns_parity_of_round ? tile / GROUPS : tile) % 2;
    if (mistake == turns_queries_loaded_early) load_queries(s, group_map, tile);
    take_turn(PRODUCT, group, mistake);
    if (mistake != turns_queries_loaded_early) load_queries(s, group_map, tile);
    mbarrier_wait(&s.q_full, parity);
    wgmma_fence();
    wgmma_m64nNk16_bf16<16>(scores, rows_of(s.q), rows_of(s.k), false);
    wgmma_commit();
    if (mistake == turns_given_before_wait && is_given(tile, mistake)) give_turn(PRODUCT, group, mistake);
    if (mistake == turns_one_group_in_flight) wgmma_wait<1>();
    else wgmma_wait<0>();
    wgmma_fence_operand(scores);
    if (mistake == turns_not_given && tile == 2) return;
    if (mistake != turns_given_before_wait && is_given(tile, mistake)) give_turn(PRODUCT, group, mistake);
}

// o = f(scores) v, in registers of this warpgroup's own and v, which nobody writes.
DEVICE void find_result(float (&o)[8], const float (&scores)[8], turn_tiles &s, enum mistake mistake)
{
    uint32_t p[4];
    if (mistake == turns_fenced_early) wgmma_fence();
    for (int j = 0; j < 4; ++j) {
        const float x = scores[2 * j], y = scores[2 * j + 1];
        p[j] = pack_bf16x2(x + (x < 0 ? -x : x), y + (y < 0 ? -y : y));
    }
    if (mistake != turns_fenced_early) wgmma_fence();
    wgmma_m64nNk16_bf16<16, false, false, true>(o, p, columns_of(s.v), false);
    wgmma_commit();
    if (mistake != turns_result_not_waited) wgmma_wait<0>();
    wgmma_fence_operand(o);
}

// Stores what a warpgroup has staged, and waits until the staging buffer has been read.
DEVICE void store_staged(turn_tiles &s, const tensor_map *out_map, int tile, enum mistake mistake)
{
    const bool is_last = tile >= TURN_TILES - GROUPS;
    const unsigned waits = mistake == turns_store_waited_by_other ? 32 : 0;
    if (thread_x() % 128 == 0) {
        tma_store_2d(out_map, s.staging, 0, GROUP_ROWS * (mistake == turns_stores_one_tile ? 0 : tile));
        if (mistake != turns_store_not_committed) bulk_commit();
    }
    if (mistake == turns_store_not_waited && !is_last) return;
    if (mistake == turns_last_store_not_waited && is_last) return;
    if (thread_x() % 128 == waits) bulk_wait_read<0>();
}

// Writes a tile of the result, while the staging buffer is this warpgroup's.
DEVICE void write_result(const float (&o)[8], turn_tiles &s, const tensor_map *out_map, int tile, enum mistake mistake)
{
    const unsigned group = warp() / 4;
    if (mistake != turns_staging_turn_not_taken) take_turn(STAGING, group, mistake);
    write_product(s.staging, COLUMNS, o);
    if (mistake != turns_staging_not_fenced) fence_proxy_async_shared();
    if (mistake == turns_barrier_of_all_threads) sync_threads();
    else if (mistake == turns_barrier_of_turn) named_barrier_sync(PRODUCT + group, 128);
    else if (mistake != turns_staging_not_synced) named_barrier_sync(OWN + group, 128);
    if (mistake == turns_staging_given_early && is_given(tile, mistake)) give_turn(STAGING, group, mistake);
    store_staged(s, out_map, tile, mistake);
    if (mistake != turns_staging_given_early && is_given(tile, mistake)) give_turn(STAGING, group, mistake);
}

KERNEL(THREADS, 1) void turns_kernel(struct room r, const GRID_CONSTANT tensor_map group_map,
                                     const GRID_CONSTANT tensor_map tile_map, const GRID_CONSTANT tensor_map out_map)
{
    STATIC_SHARED(turn_tiles, s);
    const unsigned group = warp() / 4;
    begin(s, &tile_map);
    give_first_turns(group, r.mistake);
    if (r.mistake != turns_keys_not_waited) mbarrier_wait(&s.kv_full, 0);
    for (int round = 0; round < ROUNDS; ++round) {
        const int tile = GROUPS * round + static_cast<int>(group);
        float scores[8], o[8];
        find_scores(scores, s, &group_map, tile, r.mistake);
        find_result(o, scores, s, r.mistake);
        write_result(o, s, &out_map, tile, r.mistake);
    }
}

}  // namespace

extern "C" int run_turns(struct sim_gpu *gpu, const struct room *r)
{
    launch_shape shape = {};
    tensor_map group_map, tile_map, out_map;
    shape.block[0] = shape.max_threads = THREADS;
    shape.min_blocks = 1;
    if (!map_rows(&group_map, r->in, TENSOR_BF16, TURN_ROWS, COLUMNS, GROUP_ROWS)) return -1;
    if (!map_rows(&tile_map, r->in, TENSOR_BF16, TURN_ROWS, COLUMNS, KEY_ROWS)) return -1;
    if (!map_rows(&out_map, r->out, TENSOR_FP32, TURN_TILES * GROUP_ROWS, COLUMNS, GROUP_ROWS)) return -1;
    return LAUNCH(turns_kernel, shape, gpu, *r, group_map, tile_map, out_map);
}

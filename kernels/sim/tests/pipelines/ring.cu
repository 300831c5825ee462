// ring.cu - a producing warp and two consuming warpgroups: rings of keys and of values, 2 to 5 stages.
//
// out = sum over tiles (q k^T) v, as attention without a softmax. The product with the next keys runs beside that with
// these values. A ring has two mbarriers a stage: `full` counts the copy's bytes, `empty` the consuming warps.
#include "kernels/sim/tests/pipelines/pipelines.h"

namespace {

enum { THREADS = 128 * (1 + RING_GROUPS), CONSUMING_WARPS = 4 * RING_GROUPS };

template <int STAGES>
struct ring {
    operand<KEY_ROWS> tiles[STAGES];
    mbarrier full[STAGES], empty[STAGES];
};

template <int STAGES>
struct ring_tiles {
    operand<GROUP_ROWS> q[RING_GROUPS];
    ring<STAGES> k, v;
    mbarrier q_full;
};

template <int STAGES>
DEVICE void make_barriers(ring_tiles<STAGES> &s, enum mistake mistake)
{
    const unsigned releases = mistake == ring_empty_counts_one_group ? CONSUMING_WARPS / 2 : CONSUMING_WARPS;
    if (thread_x() == 0) {
        for (int n = 0; n < STAGES; ++n) {
            mbarrier_init(&s.k.full[n], 1);
            mbarrier_init(&s.v.full[n], mistake == ring_full_counts_two ? 2 : 1);
            mbarrier_init(&s.k.empty[n], releases);
            mbarrier_init(&s.v.empty[n], releases);
        }
        mbarrier_init(&s.q_full, 1);
        if (mistake != ring_init_not_fenced) fence_mbarrier_init();
    }
    if (mistake != ring_init_not_synced) sync_threads();
}

// Loads a tile into a ring, when the stage is free.
template <int STAGES>
DEVICE void load_tile(ring<STAGES> &to, const place &at, const tensor_map *map, int row, enum mistake mistake)
{
    const unsigned bytes = mistake == ring_too_few_bytes    ? sizeof to.tiles[0] / 2
                           : mistake == ring_too_many_bytes ? sizeof to.tiles[0] * 2
                                                            : sizeof to.tiles[0];
    if (mistake != ring_empty_not_waited) mbarrier_wait(&to.empty[at.stage], at.parity);
    if (mistake == ring_bytes_not_expected) mbarrier_arrive(&to.full[at.stage]);
    else mbarrier_arrive_expect_tx(&to.full[at.stage], bytes);
    tma_load_2d(&to.tiles[at.stage], map, &to.full[at.stage], 0, row);
}

// The next keys are asked for before these values: so they are needed.
template <int STAGES>
DEVICE void produce(ring_tiles<STAGES> &s, const tensor_map *group_map, const tensor_map *tile_map,
                    enum mistake mistake)
{
    const int tiles = RING_TILES + (mistake == ring_tile_beyond_end);
    const bool turns = mistake != ring_empty_parity_not_turned;
    place at = {0, mistake == ring_starts_full ? 0u : 1u}, next = at;
    mbarrier_arrive_expect_tx(&s.q_full, sizeof s.q);
    for (int group = 0; group < RING_GROUPS; ++group)
        tma_load_2d(&s.q[group], group_map, &s.q_full, 0, GROUP_ROWS * group);
    load_tile(s.k, next, tile_map, RING_KEYS, mistake);
    for (int n = 0; n < tiles; ++n) {
        advance(next, STAGES, turns);
        if (n + 1 < tiles) load_tile(s.k, next, tile_map, RING_KEYS + KEY_ROWS * (n + 1), mistake);
        load_tile(s.v, at, tile_map, RING_VALUES + KEY_ROWS * n, mistake);
        at = next;
    }
}

// Says that this warp has no further use of a stage.
template <int STAGES>
DEVICE void release(ring<STAGES> &from, const place &at, int n, enum mistake mistake)
{
    if (mistake == ring_released_by_one_group && warp() >= 8) return;
    if (mistake == ring_last_not_released && warp() >= 8 && n == RING_TILES - 1) return;
    if (lane() == 0 || (mistake == ring_released_by_two_lanes && lane() == 1)) mbarrier_arrive(&from.empty[at.stage]);
}

// Scores as the operand of the next product: their layouts are the same.
DEVICE void pack(uint32_t (&p)[4], const float (&scores)[8])
{
    for (int j = 0; j < 4; ++j) p[j] = pack_bf16x2(scores[2 * j], scores[2 * j + 1]);
}

template <int STAGES>
DEVICE void begin_scores(float (&scores)[8], ring_tiles<STAGES> &s, uint64_t q, const place &at, enum mistake mistake)
{
    const int stage = mistake == ring_stage_off_by_one ? (at.stage + 1) % STAGES : at.stage;
    if (mistake != ring_full_not_waited) mbarrier_wait(&s.k.full[at.stage], at.parity);
    if (mistake != ring_scores_not_fenced) wgmma_fence();
    wgmma_m64nNk16_bf16<16>(scores, q, rows_of(s.k.tiles[stage]), false);
    wgmma_commit();
}

// One step: the product of this tile's scores with its values, beside the scores of the next tile.
template <int STAGES>
DEVICE void take_tile(float (&o)[8], uint32_t (&p)[4], float (&scores)[8], ring_tiles<STAGES> &s, uint64_t q, int n,
                      const place &at, const place &next, enum mistake mistake)
{
    const bool is_last = n == RING_TILES - 1;
    if (!is_last) begin_scores(scores, s, q, next, mistake);
    mbarrier_wait(&s.v.full[at.stage], at.parity);
    if (mistake != ring_weights_not_fenced) wgmma_fence();
    wgmma_m64nNk16_bf16<16, false, false, true>(o, p, columns_of(s.v.tiles[at.stage]), n > 0);
    if (mistake != ring_values_not_committed) wgmma_commit();
    if (mistake == ring_values_released_early) release(s.v, at, n, mistake);
    if (mistake == ring_weights_overwritten && !is_last) {
        wgmma_wait<1>();
        wgmma_fence_operand(scores);
        pack(p, scores);
    }
    if (mistake == ring_keys_released_early && !is_last) release(s.k, next, n + 1, mistake);
    if (mistake == ring_scores_read_early && !is_last) pack(p, scores);
    if (mistake == ring_one_group_in_flight) wgmma_wait<1>();
    else wgmma_wait<0>();
    wgmma_fence_operand(scores);
    wgmma_fence_operand(o);
    if (mistake != ring_keys_released_early && !is_last) release(s.k, next, n + 1, mistake);
    if (mistake != ring_values_released_early) release(s.v, at, n, mistake);
    if (!is_last) pack(p, scores);
}

template <int STAGES>
DEVICE void consume(const struct room &r, ring_tiles<STAGES> &s)
{
    const unsigned group = warp() / 4 - 1;
    const uint64_t q = rows_of(s.q[group]);
    const bool turns = r.mistake != ring_full_parity_not_turned;
    place at = {0, 0}, next = {0, 0};
    float scores[8], o[8];
    uint32_t p[4];
    if (r.mistake != ring_queries_not_waited) mbarrier_wait(&s.q_full, 0);
    begin_scores(scores, s, q, next, r.mistake);
    wgmma_wait<0>();
    wgmma_fence_operand(scores);
    release(s.k, next, 0, r.mistake);
    pack(p, scores);
    for (int n = 0; n < RING_TILES; ++n) {
        advance(next, STAGES, turns);
        take_tile(o, p, scores, s, q, n, at, next, r.mistake);
        at = next;
    }
    wgmma_wait<0>();
    wgmma_fence_operand(o);
    write_product(r.out + group * GROUP_ROWS * COLUMNS, COLUMNS, o);
}

// 168 registers a thread: the producer's warpgroup keeps 24, the consumers' get 240 each.
template <int STAGES>
KERNEL(THREADS, 1) void ring_kernel(struct room r, const GRID_CONSTANT tensor_map group_map,
                                    const GRID_CONSTANT tensor_map tile_map)
{
    typedef ring_tiles<STAGES> tiles;
    STATIC_SHARED(tiles, s);
    make_barriers(s, r.mistake);
    if (warp() < 4) {
        if (r.mistake == ring_registers_wrong_way) setmaxnreg_inc<24>();
        else if (r.mistake != ring_registers_not_given) setmaxnreg_dec<24>();
        const bool loads = r.mistake == ring_loaded_by_all_lanes || elect_one();
        if (warp() == 0 && loads) produce(s, &group_map, &tile_map, r.mistake);
    } else {
        if (r.mistake == ring_registers_over_budget) setmaxnreg_inc<248>();
        else setmaxnreg_inc<240>();
        consume(r, s);
    }
}

template <int STAGES>
int launch(struct sim_gpu *gpu, const struct room *r)
{
    launch_shape shape = {};
    tensor_map group_map, tile_map;
    shape.block[0] = shape.max_threads = THREADS;
    shape.min_blocks = 1;
    if (!map_rows(&group_map, r->in, TENSOR_BF16, RING_ROWS, COLUMNS, GROUP_ROWS)) return -1;
    if (!map_rows(&tile_map, r->in, TENSOR_BF16, RING_ROWS, COLUMNS, KEY_ROWS)) return -1;
    return LAUNCH((ring_kernel<STAGES>), shape, gpu, *r, group_map, tile_map);
}

}  // namespace

extern "C" int run_ring(struct sim_gpu *gpu, const struct room *r)
{
    return r->stages == 2 ? launch<2>(gpu, r) : r->stages == 3 ? launch<3>(gpu, r)
           : r->stages == 4 ? launch<4>(gpu, r) : launch<5>(gpu, r);
}

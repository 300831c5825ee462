/* forward_sm90.h - what the forward kernels of long sequences on Hopper share: in which order persistent CTAs take
 * their tiles of query rows, rings of tiles in shared memory, products, turns of consumers, how o is written. */
#ifndef ATTEST_KERNELS_LONG_FORWARD_SM90_H
#define ATTEST_KERNELS_LONG_FORWARD_SM90_H

#include "kernels/shared/params.h"
#include "kernels/shared/score_stage.h"
#include "kernels/shared/tma_tensors.h"
#include "kernels/shared/wgmma_tiles.h"

enum { GROUP = 128 };

/* These are the named barriers: of all consumers; of a producer's warps; of the first consumer's turn to ask for
 * products, and of those of the others. */
enum { ALL_CONSUMERS = 1, OWN_TILE, TURN };

/* Says how COUNT rows lie in shared memory: panels of 64 features, or of 32 where 64 do not divide them. */
template <int DIMENSIONS, int COUNT>
struct panels : short_shape<DIMENSIONS, COUNT> {
    static constexpr int PANEL = DIMENSIONS % 64 == 0 ? 64 : 32;
};

/* ---- tiles of query rows ----------------------------------------------------------------------------------------- */

/* Says in which order the tiles of query rows are taken: `section` heads at a time, whose keys fit into the L2 cache.
 * In every other section, counted from the last, the last rows come first, which see the most keys where a window cuts
 * them; in the ones between they come last: so a CTA's tiles are as heavy as another's. Where there is one section
 * alone, every other round goes backward for that. */
struct tile_order {
    uint32_t total, tiles, heads, section, sections;
};

/* Describes a CTA's tile of query rows. */
struct query_tile {
    sequence s;
    int64_t b, head, head_kv;
    interval keys;  /* that some row of the tile sees */
    int32_t first;  /* row of the tile */
    int32_t rows;   /* in use */
    uint32_t round; /* of the CTA; rounds_of: there are no more tiles */
};

/* Returns which tile is a CTA's in a round. */
DEVICE uint32_t tile_of_round(const tile_order &order, uint32_t round)
{
    const bool turns = order.sections == 1 && round % 2 != 0;
    return round * grid_x() + (turns ? grid_x() - 1 - block_x() : block_x());
}

/* Finds tile n, but for its round. Returns whether there is one that is this launch's. */
template <int TILE_Q>
DEVICE bool find_tile(query_tile &t, const forward_params &p, const tile_order &order, uint32_t n)
{
    if (n >= order.total) return false;
    const uint32_t section = n / (order.section * order.tiles), first_head = section * order.section;
    const uint32_t rest = n - first_head * order.tiles, left = order.heads - first_head;
    const uint32_t heads = left < order.section ? left : order.section;
    const uint32_t index = first_head + rest % heads, place = rest / heads;
    const bool begins_last = (order.sections - section) % 2 != 0;
    t.b = quotient(index, p.by_heads_q), t.head = index - t.b * p.num_heads_q;
    t.head_kv = quotient(static_cast<uint32_t>(t.head), p.by_group);
    t.s = find_sequence(p, t.b);
    const int64_t first = static_cast<int64_t>(begins_last ? order.tiles - 1 - place : place) * TILE_Q;
    if (first >= t.s.seqlen_q || !is_ours(p, t.s)) return false;
    t.first = static_cast<int32_t>(first);
    t.rows = t.s.used_q - t.first < TILE_Q ? t.s.used_q - t.first : TILE_Q;
    t.keys = keys_of_rows(p, t.s, t.first, t.first + t.rows).some;
    return true;
}

DEVICE bool sees_keys(const query_tile &t) { return t.keys.first < t.keys.last; }

DEVICE uint32_t rounds_of(const tile_order &order) { return (order.total + grid_x() - 1) / grid_x(); }

DEVICE float sink_of(const forward_params &p, const query_tile &t)
{
    return p.sink != nullptr ? p.sink[t.head] : -infinity_f32();
}

/* Counts how often the places of a ring have been used: which is next, and the parity of its phase. */
template <int STAGES>
struct ring_place {
    unsigned stage = 0, parity = 0;
};

template <int STAGES>
DEVICE void step(ring_place<STAGES> &place)
{
    if (++place.stage == STAGES) place.stage = 0, place.parity ^= 1;
}

/* Hands a place on, once all lanes of the warp have read or written it. */
DEVICE void give_back(mbarrier *barrier)
{
    sync_warp(FULL_WARP);
    if (lane() == 0) mbarrier_arrive(barrier);
}

/* Says that a producer's copies, all but the PENDING last groups, have filled a place. */
template <int PENDING, typename producer>
DEVICE void end_copies(producer &at)
{
    cp_async_wait<PENDING>();
    fence_proxy_async_shared();
    if (at.filled != nullptr) give_back(at.filled);
    at.filled = nullptr;
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Computes s = q k^T of 64 rows, as a group of wgmmas that is not waited for. */
template <typename T, typename shape>
DEVICE void multiply_q_k(float (&s)[shape::TILE_K / 2], uint64_t q, uint64_t k)
{
    wgmma_fence_operand(s);
    wgmma_fence();
    UNROLL for (unsigned x = 0; x < shape::DIM; x += 16) {
        const uint64_t q_x = wgmma_advance(q, offset<typename shape::rows>(0, x) * 2);
        const uint64_t k_x = wgmma_advance(k, offset<typename shape::keys>(0, x) * 2);
        if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<shape::TILE_K>(s, q_x, k_x, x > 0);
        else wgmma_m64nNk16_bf16<shape::TILE_K>(s, q_x, k_x, x > 0);
    }
    wgmma_commit();
}

/* Computes o += p v, likewise. */
template <typename T, typename shape>
DEVICE void multiply_p_v(float (&o)[shape::DIM_V / 2], uint32_t (&weights)[shape::TILE_K / 16][4], uint64_t v)
{
    UNROLL for (int j = 0; j < shape::TILE_K / 16; ++j) wgmma_fence_operand(weights[j]);
    wgmma_fence_operand(o);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < shape::TILE_K / 16; ++j) {
        const uint64_t v_j = wgmma_advance(v, offset<typename shape::values>(16 * j, 0) * 2);
        if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<shape::DIM_V, false, false, true>(o, weights[j], v_j, true);
        else wgmma_m64nNk16_bf16<shape::DIM_V, false, false, true>(o, weights[j], v_j, true);
    }
    wgmma_commit();
}

/* Gives back what products have read that the warp has waited for, all lanes at once. */
DEVICE void release(mbarrier *free)
{
    if (lane() == 0) mbarrier_arrive(free);
}

/* Says that all lanes have the same value: then it may be in a uniform register. */
DEVICE unsigned same_in_all(unsigned x) { return shfl_idx(FULL_WARP, x, 0); }

/* Consumers ask for products in turns: then one finds weights while another's products run. */
DEVICE void take_turn() { named_barrier_sync(TURN + warp() / 4, 2 * GROUP); }

template <int CONSUMERS>
DEVICE void give_turn()
{
    named_barrier_arrive(TURN + (warp() / 4 + 1) % CONSUMERS, 2 * GROUP);
}

/* ---- keys that lengths and window hide --------------------------------------------------------------------------- */

/* Returns the keys that the lane's rows g and g + 8 see, relative to the lane's first key of the tile at `key`. */
struct lane_keys {
    int32_t first[2], last[2];
};

INLINE lane_keys keys_of_lane(const forward_params &p, const sequence &of, int32_t row, int32_t key)
{
    const int32_t lane_key = key + static_cast<int>(lane()) % 4 * 2;
    lane_keys out;
    UNROLL for (int half = 0; half < 2; ++half) {
        const interval keys = keys_of_row(p, of, row + 8 * half);
        out.first[half] = keys.first - lane_key, out.last[half] = keys.last - lane_key;
    }
    return out;
}

/* Returns a bit for each of a lane's keys of a row, set for those before `end`, relative likewise: of every eight keys
 * it has two. */
DEVICE uint32_t keys_before(int32_t end)
{
    const int32_t rest = end % 8 < 2 ? end % 8 : 2, count = end <= 0 ? 0 : end / 8 * 2 + rest;
    return count < 32 ? (1u << count) - 1 : ~0u;
}

/* Puts -inf in place of the scores of hidden keys. */
template <int KEYS>
DEVICE void hide_keys(float (&s)[KEYS / 2], const lane_keys &seen)
{
    static_assert(KEYS <= 128, "a bit for each of a lane's keys of a row");
    UNROLL for (int half = 0; half < 2; ++half) {
        const uint32_t bits = keys_before(seen.last[half]) & ~keys_before(seen.first[half]);
        UNROLL for (int n = 0; n < KEYS / 4; ++n) {
            float &score = s[n / 2 * 4 + 2 * half + n % 2];
            score = (bits & 1u << n) != 0 ? score : -infinity_f32();
        }
    }
}

/* ---- o ----------------------------------------------------------------------------------------------------------- */

/* Writes 16 rows of o times their factors in 16 bits: lanes of a quad gather eight features of a row each. */
template <typename O, int DIM>
DEVICE void write_o_16(const forward_params &p, const float (&o)[DIM / 2], const float (&factor)[2],
                       const query_tile &t, int64_t first, int rows)
{
    const int row = static_cast<int>(lane()) / 4;
    const bool has_whole = p.o.by_eight && p.head_dim_v % 8 == 0;
    row_pointer to = row_of(p.o, t.b, first + row, t.head, 0);
    UNROLL for (int half = 0; half < 2; ++half, to.data += 16 * p.o.seqlen) {
        to.length = row + 8 * half < rows ? p.head_dim_v : 0;
        UNROLL for (int n = 0; n < DIM / 8; n += 4) {
            uint32_t pairs[4];
            UNROLL for (int i = 0; i < 4; ++i) {
                const float *const two = &o[(n + i) * 4 + 2 * half];
                pairs[i] = pack<O>(two[0] * factor[half], two[1] * factor[half]);
            }
            transpose_in_quad(pairs);
            const int x = n * 8 + static_cast<int>(lane()) % 4 * 8;
            const sixteen_bytes eight = same_16<sixteen_bytes>(pairs);
            if (p.o.by_eight && x + 8 <= to.length) store_global_16(to.data + 2 * x, eight);
            else if (!has_whole) store_eight(to, static_cast<unsigned>(x), reinterpret_cast<const uint16_t *>(&eight));
        }
    }
}

/* Writes 16 rows of o times their factors in fp32. */
template <int DIM>
DEVICE void write_o_32(const forward_params &p, const float (&o)[DIM / 2], const float (&factor)[2],
                       const query_tile &t, int64_t first, int rows)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        const int row = 8 * half + static_cast<int>(lane()) / 4;
        const row_pointer to = row_of(p.o, t.b, first + row, t.head, row < rows ? p.head_dim_v : 0);
        UNROLL for (int n = 0; n < DIM / 4; ++n) {
            const int x = n / 2 * 8 + static_cast<int>(lane()) % 4 * 2 + n % 2;
            if (x < to.length) store_feature(to, x, o[n / 2 * 4 + 2 * half + n % 2] * factor[half]);
        }
    }
}

/* Writes the warp's rows of o. */
template <int DIM>
DEVICE void write_o(const forward_params &p, const float (&o)[DIM / 2], const float (&factor)[2], const query_tile &t)
{
    const int rows = t.s.seqlen_q - t.first - static_cast<int>(warp() * 16);
    const int64_t first = t.s.first_q + t.first + warp() * 16;
    if (p.o.dtype == ATTEST_FP32) write_o_32<DIM>(p, o, factor, t, first, rows);
    else if (p.o.dtype == ATTEST_FP16) write_o_16<f16, DIM>(p, o, factor, t, first, rows);
    else write_o_16<bf16, DIM>(p, o, factor, t, first, rows);
}

/* ---- what the host finds ----------------------------------------------------------------------------------------- */

/* Keys and values of a section's heads have about this many bytes: they stay in the L2 cache while its rows pass. */
constexpr int64_t SECTION_BYTES = 24 << 20;

/* Returns how many heads a section has, at most `most`: where not many less divide the heads into an even number of
 * sections, those, so that sections that go forward weigh what those do that go backward; else sections are as even as
 * they can be. Runs on the host. */
static int64_t section_of(int64_t heads, int64_t most)
{
    if (most >= heads) return heads;
    const int64_t least_heads = most / 2 > most - 64 ? (most + 1) / 2 : most - 64;
    for (int64_t section = most; section >= least_heads; --section)
        if (heads % (2 * section) == 0) return section;
    const int64_t least = (heads + most - 1) / most, even = least + least % 2;
    return (heads + even - 1) / even;
}

/* Returns the order of the tiles of the first `most` rows of each sequence. Runs on the host. */
template <int TILE_Q>
tile_order order_of(const forward_params &p, int64_t most)
{
    const bool is_ragged = p.cu_seqlens_q != nullptr; /* then seqlen_q may be any bound */
    const int64_t bound = is_ragged && p.rows_q < p.seqlen_q ? p.rows_q : p.seqlen_q;
    const int64_t rows = bound < most ? bound : most;
    const int64_t tiles = (rows + TILE_Q - 1) / TILE_Q, heads = p.batch * p.num_heads_q;
    const int64_t head_bytes = 2 * static_cast<int64_t>(p.seqlen_k) * (p.head_dim + p.head_dim_v) / p.group + 1;
    const bool is_cut = p.window_left >= 0 || p.window_right >= 0;
    const int64_t fitting = is_cut ? SECTION_BYTES / head_bytes : 1;
    const int64_t section = section_of(heads, fitting < 1 ? 1 : fitting);
    return {static_cast<uint32_t>(tiles * heads), static_cast<uint32_t>(tiles), static_cast<uint32_t>(heads),
            static_cast<uint32_t>(section), static_cast<uint32_t>((heads + section - 1) / section)};
}

/* Encodes q, k and v. Returns false where no map can say how one of them lies: rows are whole pieces of 16 bytes, no
 * stride is 0. Ragged tensors have none: boxes would read rows behind the last sequence, which nobody may read, and
 * where it ends the device alone knows. */
template <typename shape>
bool encode_tensors(tma_tensors<3> &maps, const forward_params &p)
{
    const int64_t heads_kv = p.num_heads_q / p.group;
    return p.cu_seqlens_q == nullptr && (p.q.by_eight & p.k.by_eight & p.v.by_eight) != 0 && p.head_dim % 8 == 0 &&
           p.head_dim_v % 8 == 0 &&
           encode_tensor<shape::rows::PANEL>(maps.of[0], p.q, {{p.head_dim, p.seqlen_q, p.num_heads_q, p.batch}},
                                             shape::rows::KEYS) &&
           encode_tensor<shape::keys::PANEL>(maps.of[1], p.k, {{p.head_dim, p.seqlen_k, heads_kv, p.batch}},
                                             shape::TILE_K) &&
           encode_tensor<shape::values::PANEL>(maps.of[2], p.v, {{p.head_dim_v, p.seqlen_k, heads_kv, p.batch}},
                                               shape::TILE_K);
}

#endif

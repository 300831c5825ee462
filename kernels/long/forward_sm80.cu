/* forward_sm80.cu - attention forward of 16-bit tensors on tensor cores, for every GPU since 2020.
 *
 *     o = softmax(scores over visible keys) v,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp16 and bf16, and every feature of lib/contract.md: shared/scores.h says what a score is.
 *
 * Grid    x: tiles of TILE_Q query rows, the longest first where a window cuts them; y, z: batch * num_heads_q
 * Block   4 warps; a warp owns 32 neighbouring rows (16 where registers are short), its lanes share them as mma.sync
 *         has it
 * Shared  a tile of q, one of k, one of v: 32 KB at DIM 64, 64 KB at 128, 96 KB at 256; where there are some, two
 *         tiles of masks and one of biases
 * Phases  load q and k; for each tile of keys: load v beside s = q k^T, the next k beside softmax and o += p v; where
 *         biases alone make a row's maximum large, again with the largest of them subtracted, and where a number is not
 *         finite, one score at a time; write o
 *
 * s and o are sums of the tensor cores in fp32. Weights are 2^(y - m), y the score in base 2, m the running maximum of
 * the row; p v takes them rounded to 16 bits, their sum takes them as they are. Where y is no more than c (q . k),
 * weights are 2^(fma(q . k, c, -m)), c = softmax_scale log2 e. Plain scores are that, with no masks but lengths and
 * window and no dropout; they have a kernel of their own. kernels/long/forward.md has the figures, reference/bounds.md
 * section 11 what it may be off by. */
#include "kernels/shared/online_softmax.h"
#include "kernels/shared/exact_rows.h"
#include "kernels/shared/params.h"
#include "kernels/shared/score_stage.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32, TILE_K = 64 };

/* A warp that owns 32 rows reads k and v half as often. At 256 features o of 32 rows would not fit into registers, nor,
 * at 128, would what masks and biases need beside it. */
template <int DIMENSIONS, unsigned HAS>
struct shape {
    static constexpr int DIM = DIMENSIONS;
    static constexpr unsigned FEATURES = HAS;
    static constexpr bool PLAIN = FEATURES == 0;
    static constexpr bool IS_LARGE = DIM > 128 || (DIM > 64 && (FEATURES & (HAS_MASKS | HAS_BIAS)) != 0);
    static constexpr int BLOCKS = IS_LARGE ? 1 : 2; /* of 16 rows to a warp */
    static constexpr int WARP_Q = 16 * BLOCKS, TILE_Q = WARPS * WARP_Q;
    static constexpr int NUMBERS = (TILE_Q + 2 * TILE_K) * DIM; /* of q, k and v in shared memory */
    static constexpr int VOTES = 3 * WARPS;
    static constexpr size_t SHARED_BYTES = NUMBERS * sizeof(uint16_t) + VOTES * sizeof(uint32_t);
};

template <typename shape>
using stages_of = score_stages<shape::TILE_Q, TILE_K, 2>; /* the next tile's masks are looked at before its keys */

/* Holds what a CTA knows of its tile of query rows. */
struct query_tile {
    sequence s;
    int64_t b, head, head_kv;
    interval keys;       /* of the tile: some row sees them */
    tile_keys warp_keys; /* of the warp's rows */
    int32_t first;       /* row of the tile */
    int rows, warp_row;  /* rows in use; the warp's first row in the tile */
    score_rule rule;
    float c, sink;
};

/* Holds the CTA's shared memory. */
struct shared_tiles {
    uint16_t *q, *k, *v;
    uint32_t *votes;
    unsigned char *scores; /* masks and biases of the stages */
};

DEVICE int32_t lane_row_of(const query_tile &t) { return t.first + t.warp_row + static_cast<int>(lane()) / 4; }

/* Returns the lane's place in block m of the warp's rows and the tile of keys at `key`. */
INLINE fragment_place place_of(const query_tile &t, int m, int32_t key)
{
    return place_of_lane(t.first + t.warp_row + 16 * m, key, t.warp_row + 16 * m, 0);
}

/* ---- scores that are plain --------------------------------------------------------------------------------------- */

/* Adds a tile of keys, the first of which is `key`, to what a warp keeps, given its dot products with them. is_cut says
 * that not every row sees every key. */
template <typename T, typename shape>
DEVICE void take_plain_tile(const forward_params &p, const sequence &s, float c, bool is_cut,
                            accumulators<shape::DIM> (&kept)[shape::BLOCKS],
                            score_block<TILE_K> (&scores)[shape::BLOCKS], int32_t row, int32_t key, const uint16_t *v)
{
    constexpr int DIM = shape::DIM;
    if (is_cut) {
        UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
            hide_keys(p, s, scores[m], row + 16 * m, key + static_cast<int>(lane()) % 4 * 2);
        softmax_step<true>(kept, scores, c);
        if (!is_tile_finite<T, TILE_K, DIM>(v)) return multiply_p_v_seen<T, 1, DIM>(kept, scores, v);
    } else {
        softmax_step<false>(kept, scores, c);
    }
    multiply_p_v<T, 1>(kept, scores, v);
}

/* ---- scores with masks, biases, ALiBi, a cap, dropout ------------------------------------------------------------ */

/* Says how a warp takes a tile of keys. */
struct tile_kind {
    bool is_seen; /* lengths, window and block mask let some row see some key */
    fragment_cut cut;
};

/* Adds a tile of keys as take_plain_tile does. Its masks are those of `stage`. */
template <typename T, typename shape>
DEVICE void take_tile(const forward_params &p, const query_tile &t, const stages_of<shape> &stages, int stage,
                      accumulators<shape::DIM> (&kept)[shape::BLOCKS], score_block<TILE_K> (&scores)[shape::BLOCKS],
                      const row_references<shape::BLOCKS> &reference, const tile_kind &kind, int32_t key,
                      const uint16_t *v)
{
    constexpr unsigned FEATURES = shape::FEATURES;
    bool has_references = false;
    if ((FEATURES & HAS_BIAS) != 0) {
        UNROLL for (int m = 0; m < shape::BLOCKS; ++m) has_references |= reference[m][0] != 0 || reference[m][1] != 0;
        has_references = ballot(FULL_WARP, has_references) != 0;
    }
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        find_fragment_scores<FEATURES, TILE_K>(scores[m].s, stages, stage, p, t.rule, t.s, place_of(t, m, key),
                                               kind.cut, reference[m], has_references);
    softmax_step<false>(kept, scores, t.c);
    if ((FEATURES & HAS_DROPOUT) != 0 && p.dropout_threshold != 0)
        UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
            drop_weights<TILE_K>(scores[m].s, t.rule, p.q_start + lane_row_of(t) + 16 * m, (p.k_start + key) / 8,
                                 p.dropout_threshold);
    multiply_p_v<T, 1>(kept, scores, v);
}

/* Joins what the warps of the CTA say, a word each. All call it; there must be a barrier before the words are written
 * anew. */
DEVICE uint32_t join_votes(uint32_t word, uint32_t *votes)
{
    if (lane() == 0) votes[warp()] = word;
    sync_threads();
    uint32_t all = 0;
    for (int w = 0; w < WARPS; ++w) all |= votes[w];
    return all;
}

/* Returns the next tile from `key` on that the block mask does not hide from all rows, or the last key's end. */
DEVICE int32_t next_tile(seen_tiles &seen, const forward_params &p, const query_tile &t, int warp_rows, int32_t key,
                         uint32_t *votes)
{
    if (t.rule.block_mask == nullptr) return key;
    while (key < t.keys.last) {
        const int32_t tile = key / TILE_K;
        if (tile - seen.first >= 32) {
            seen = look_at_blocks<TILE_K>(p, t.rule, t.first + t.warp_row, warp_rows, tile, t.keys.last);
            seen.some_of_cta = join_votes(seen.some, votes);
            sync_threads(); /* the votes are free */
        }
        for (int n = tile - seen.first; n < 32; ++n)
            if ((seen.some_of_cta >> n & 1) != 0) return (seen.first + n) * TILE_K;
        key = seen.first + 32 <= (t.keys.last - 1) / TILE_K ? (seen.first + 32) * TILE_K : t.keys.last;
    }
    return t.keys.last;
}

/* Says how a warp takes the tile at `key`, which `seen` knows. */
INLINE tile_kind kind_of(const query_tile &t, const seen_tiles &seen, int32_t key)
{
    tile_kind out = {touches(t.warp_keys.some, key, TILE_K), {!contains(t.warp_keys.all, key, TILE_K), false}};
    if (t.rule.block_mask == nullptr) return out;
    const int n = key / TILE_K - seen.first;
    out.is_seen &= (seen.some >> n & 1) != 0;
    out.cut.is_blocked = (seen.all >> n & 1) == 0;
    return out;
}

/* Takes all keys that masks do not hide from the whole tile. Returns whether the warp has taken some. */
template <typename T, typename shape>
DEVICE bool walk_features(const forward_params &p, const query_tile &t, const shared_tiles &at,
                          const stages_of<shape> &stages, accumulators<shape::DIM> (&kept)[shape::BLOCKS],
                          const row_references<shape::BLOCKS> &reference)
{
    constexpr int DIM = shape::DIM;
    const sequence &s = t.s;
    const int32_t last = t.keys.last;
    const int warp_rows = t.rows - t.warp_row < shape::WARP_Q ? t.rows - t.warp_row : shape::WARP_Q;
    const auto load_next = [&](int stage, int32_t key) {
        load_tile<TILE_K, DIM, THREADS>(at.k, p.k, t.b, s.first_k + key, last - key, t.head_kv, p.head_dim);
        load_masks<THREADS>(stages, stage, t.first, t.rows, key, last - key);
    };
    seen_tiles seen = {-32, 0, 0, 0};
    uint32_t *const block_votes = at.votes + 2 * WARPS;
    int32_t key = next_tile(seen, p, t, warp_rows, t.keys.first / TILE_K * TILE_K, block_votes);
    if (key < last) {
        load_tile<shape::TILE_Q, DIM, THREADS>(at.q, p.q, t.b, s.first_q + t.first, t.rows, t.head, p.head_dim);
        load_next(0, key);
    }
    bool has_taken = false;
    for (int stage = 0; key < last; stage ^= 1) {
        const tile_kind kind = kind_of(t, seen, key);
        cp_async_wait_all();
        bool is_visible = true; /* as far as the tile's masks say */
        if (!stages.has_mask) {
            sync_threads(); /* q and k are complete, v and biases are free */
        } else {
            const uint32_t own = ballot(FULL_WARP, has_own_visible<THREADS>(stages, stage));
            is_visible = join_votes(own, at.votes + stage * WARPS) != 0; /* the same barrier */
        }
        const int32_t next = next_tile(seen, p, t, warp_rows, key + TILE_K, block_votes);
        score_block<TILE_K> scores[shape::BLOCKS];
        if (is_visible) {
            load_tile<TILE_K, DIM, THREADS>(at.v, p.v, t.b, s.first_k + key, last - key, t.head_kv, p.head_dim_v);
            load_biases<THREADS>(stages, p.bias.dtype, t.first, t.rows, key, last - key);
            if (kind.is_seen) multiply_q_k<T, DIM>(scores, at.q, t.warp_row, at.k);
            cp_async_wait_all();
            sync_threads(); /* v and biases are complete, k is free */
        }
        if (next < last) load_next(stage ^ 1, next);
        if (is_visible && kind.is_seen) {
            has_taken = true;
            take_tile<T, shape>(p, t, stages, stage, kept, scores, reference, kind, key, at.v);
        }
        key = next;
    }
    sync_threads(); /* the votes and the tiles are free */
    return has_taken;
}

/* Writes o in fp32. */
template <int DIM, int BLOCKS>
DEVICE void write_o_32(const forward_params &p, const accumulators<DIM> (&kept)[BLOCKS],
                       const row_factors<BLOCKS> &factor, int64_t b, int64_t first, int rows, int64_t head)
{
    const int g = static_cast<int>(lane()) / 4, t = static_cast<int>(lane()) % 4;
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const int row = 16 * m + 8 * half + g;
            const row_pointer o = row_of(p.o, b, first + row, head, row < rows ? p.head_dim_v : 0);
            UNROLL for (int n = 0; n < DIM / 8; ++n)
                UNROLL for (int e = 0; e < 2; ++e)
                    if (8 * n + 2 * t + e < o.length)
                        store_feature(o, 8 * n + 2 * t + e, kept[m].o[n][2 * half + e] * factor[m][half]);
        }
}

/* Writes o, by way of the warp's rows of q, from row `first` of the tensor on: `left` of them exist. */
template <typename shape>
DEVICE void write_o(const forward_params &p, const accumulators<shape::DIM> (&kept)[shape::BLOCKS],
                    const row_factors<shape::BLOCKS> &factor, int64_t b, int64_t first, int left, int64_t head,
                    uint16_t *q)
{
    if (p.o.dtype == ATTEST_FP32)
        return write_o_32<shape::DIM, shape::BLOCKS>(p, kept, factor, b, first, left, head);
    const row_pointer o = row_of(p.o, b, first, head, p.head_dim_v);
    if (p.o.dtype == ATTEST_FP16) write_o_16<f16>(p.o, kept, factor, q, o, left);
    else write_o_16<bf16>(p.o, kept, factor, q, o, left);
}

/* Finds the CTA's tile. Returns whether it has rows. */
template <typename shape>
DEVICE bool find_tile(query_tile &t, const forward_params &p)
{
    const int64_t row_of_heads = static_cast<int64_t>(block_z()) * grid_y() + block_y();
    if (row_of_heads >= p.batch * p.num_heads_q) return false;
    t.b = row_of_heads / p.num_heads_q, t.head = row_of_heads % p.num_heads_q, t.head_kv = t.head / p.group;
    t.s = find_sequence(p, t.b);
    const int64_t first = static_cast<int64_t>(grid_x() - 1 - block_x()) * shape::TILE_Q;
    if (first >= t.s.seqlen_q || !is_ours(p, t.s)) return false;
    t.first = static_cast<int32_t>(first);
    t.rows = t.s.used_q - t.first < shape::TILE_Q ? t.s.used_q - t.first : shape::TILE_Q;
    t.keys = keys_of_rows(p, t.s, t.first, t.first + t.rows).some;
    t.warp_row = static_cast<int>(warp()) * shape::WARP_Q;
    const int32_t warp_last = t.rows < t.warp_row + shape::WARP_Q ? t.first + t.rows
                                                                  : t.first + t.warp_row + shape::WARP_Q;
    t.warp_keys = keys_of_rows(p, t.s, t.first + t.warp_row, warp_last);
    score_rule rule = find_score_rule(p, t.b, t.head);
    t.c = take_factor(rule, p);
    t.rule = only<shape::FEATURES>(rule);
    t.sink = p.sink != nullptr ? p.sink[t.head] : -infinity_f32();
    return true;
}

/* Writes o, by way of the warp's rows of the tile of q, and lse. */
template <typename shape>
DEVICE void end_tile(accumulators<shape::DIM> (&kept)[shape::BLOCKS], const forward_params &p, const query_tile &t,
                     const row_references<shape::BLOCKS> &reference, uint16_t *q)
{
    row_factors<shape::BLOCKS> factor;
    end_rows<shape::PLAIN>(factor, kept, p, t.s, reference, t.b, t.head, lane_row_of(t), t.sink);
    const int32_t row = t.first + t.warp_row;
    write_o<shape>(p, kept, factor, t.b, t.s.first_q + row, t.s.seqlen_q - row, t.head, q + t.warp_row * shape::DIM);
}

template <typename shape>
INLINE shared_tiles find_shared_tiles(unsigned char *shared)
{
    constexpr int ROW = shape::DIM * sizeof(uint16_t);
    const auto parts = cut_shared(shared, shape::TILE_Q * ROW, TILE_K * ROW, TILE_K * ROW,
                                  shape::VOTES * sizeof(uint32_t), SHARED_REST);
    return {reinterpret_cast<uint16_t *>(parts.at[0]), reinterpret_cast<uint16_t *>(parts.at[1]),
            reinterpret_cast<uint16_t *>(parts.at[2]), reinterpret_cast<uint32_t *>(parts.at[3]), parts.at[4]};
}

/* Computes the whole tile one score at a time; again where biases alone make a row's maximum large, with the largest of
 * them subtracted. */
template <typename T, typename shape>
DEVICE_CALLED void take_exactly(const forward_params &p, unsigned char *shared)
{
    constexpr int DIM = shape::DIM, BLOCKS = shape::BLOCKS;
    const shared_tiles at = find_shared_tiles<shape>(shared);
    query_tile t;
    if (!find_tile<shape>(t, p)) return;
    const int32_t first_key = t.keys.first / TILE_K * TILE_K, last = t.keys.last;
    const int32_t g = static_cast<int>(lane()) / 4, lane_row = lane_row_of(t);
    accumulators<DIM> kept[BLOCKS];
    row_references<BLOCKS> reference = {};
    if (first_key < last)
        load_tile<shape::TILE_Q, DIM, THREADS>(at.q, p.q, t.b, t.s.first_q + t.first, t.rows, t.head, p.head_dim);
    for (bool is_asked = true; is_asked;) {
        begin_rows(kept, reference, t.sink);
        ROLLED for (int32_t key = first_key; key < last; key += TILE_K) {
            load_tile<TILE_K, DIM, THREADS>(at.k, p.k, t.b, t.s.first_k + key, last - key, t.head_kv, p.head_dim);
            load_tile<TILE_K, DIM, THREADS>(at.v, p.v, t.b, t.s.first_k + key, last - key, t.head_kv, p.head_dim_v);
            cp_async_wait_all();
            sync_threads(); /* the tiles are complete */
            ROLLED for (int m = 0; m < BLOCKS; ++m)
                take_keys_exactly<T, 1, TILE_K>(kept[m], p, t.rule, t.s, t.c, reference[m],
                                                at.q + (t.warp_row + 16 * m) * DIM, at.k, at.v, lane_row + 16 * m,
                                                key + static_cast<int>(lane()) % 4 * 2);
            sync_threads(); /* k and v are free */
        }
        join_quads(kept);
        const bool is_new = find_references(reference, kept, p, t.rule, t.s, lane_row, t.sink);
        is_asked = join_votes(is_new, at.votes) != 0;
        sync_threads(); /* the votes are free */
    }
    row_factors<BLOCKS> factor;
    end_rows<shape::PLAIN>(factor, kept, p, t.s, reference, t.b, t.head, lane_row, t.sink);
    const int left = t.s.seqlen_q - t.first - t.warp_row - g;
    ROLLED for (int m = 0; m < BLOCKS; ++m)
        write_features(p, kept[m], factor[m], t.b, t.s.first_q + lane_row + 16 * m, left - 16 * m, t.head);
}

/* Takes plain scores. It finds its tile by itself, and no more than it needs: by find_tile and query_tile nvcc spills
 * 224 bytes at 128 features. */
template <typename T, typename shape>
KERNEL(THREADS, 2) void plain_forward_kernel(const forward_params p)
{
    constexpr int DIM = shape::DIM;
    DYNAMIC_SHARED(shared, 16);
    const shared_tiles at = find_shared_tiles<shape>(shared);
    uint16_t *const q = at.q, *const k = at.k, *const v = at.v;

    const int64_t row_of_heads = static_cast<int64_t>(block_z()) * grid_y() + block_y();
    if (row_of_heads >= p.batch * p.num_heads_q) return;
    const int64_t b = row_of_heads / p.num_heads_q, head = row_of_heads % p.num_heads_q, head_kv = head / p.group;
    const sequence s = find_sequence(p, b);
    const int64_t first = static_cast<int64_t>(grid_x() - 1 - block_x()) * shape::TILE_Q;
    if (first >= s.seqlen_q || !is_ours(p, s)) return;
    const int32_t tile_row = static_cast<int32_t>(first);
    const int rows = s.used_q - tile_row < shape::TILE_Q ? s.used_q - tile_row : shape::TILE_Q;
    const interval keys = keys_of_rows(p, s, tile_row, tile_row + rows).some;

    const int warp_row = static_cast<int>(warp()) * shape::WARP_Q, g = static_cast<int>(lane()) / 4;
    const int32_t warp_last = rows < warp_row + shape::WARP_Q ? tile_row + rows : tile_row + warp_row + shape::WARP_Q;
    const tile_keys warp_keys = keys_of_rows(p, s, tile_row + warp_row, warp_last);
    const int32_t lane_row = tile_row + warp_row + g;

    const float c = p.softmax_scale * LOG2_E;
    const float sink = p.sink != nullptr ? p.sink[head] : -infinity_f32();
    accumulators<DIM> kept[shape::BLOCKS];
    const row_references<shape::BLOCKS> none = {};
    begin_rows(kept, none, sink);
    /* Tiles begin at multiples of TILE_K: then a row's sums do not depend on the rows beside it. */
    int32_t key = keys.first / TILE_K * TILE_K;
    if (key < keys.last) {
        load_tile<shape::TILE_Q, DIM, THREADS>(q, p.q, b, s.first_q + tile_row, rows, head, p.head_dim);
        load_tile<TILE_K, DIM, THREADS>(k, p.k, b, s.first_k + key, keys.last - key, head_kv, p.head_dim);
    }
    while (key < keys.last) {
        const int32_t next = key + TILE_K;
        const bool is_seen = key < warp_keys.some.last && key + TILE_K > warp_keys.some.first;
        const bool is_cut = key < warp_keys.all.first || key + TILE_K > warp_keys.all.last;
        cp_async_wait_all();
        sync_threads(); /* q and k are complete, v is free */
        load_tile<TILE_K, DIM, THREADS>(v, p.v, b, s.first_k + key, keys.last - key, head_kv, p.head_dim_v);
        score_block<TILE_K> scores[shape::BLOCKS];
        if (is_seen) multiply_q_k<T, DIM>(scores, q, warp_row, k);
        cp_async_wait_all();
        sync_threads(); /* v is complete, k is free */
        if (next < keys.last)
            load_tile<TILE_K, DIM, THREADS>(k, p.k, b, s.first_k + next, keys.last - next, head_kv, p.head_dim);
        if (is_seen) take_plain_tile<T, shape>(p, s, c, is_cut, kept, scores, lane_row, key, v);
        key = next;
    }
    row_factors<shape::BLOCKS> factor;
    end_rows<shape::PLAIN>(factor, kept, p, s, none, b, head, lane_row, sink);
    const int32_t row = tile_row + warp_row;
    write_o<shape>(p, kept, factor, b, s.first_q + row, s.seqlen_q - row, head, q + warp_row * DIM);
}

/* Takes fragments first. They are taken again, with the largest bias subtracted, where biases alone make a row's
 * maximum large, and one score at a time where a number is not finite. */
template <typename T, typename shape>
KERNEL(THREADS, 2) void forward_kernel(GRID_CONSTANT const forward_params p, bool has_stages)
{
    DYNAMIC_SHARED(shared, 16);
    const shared_tiles at = find_shared_tiles<shape>(shared);
    query_tile t;
    if (!find_tile<shape>(t, p)) return;
    const auto stages = find_score_stages<stages_of<shape>>(p, t.rule, at.scores, has_stages);
    bool is_exact = !fits_fragments(p, t.s, t.first, t.rows, t.keys, has_stages), is_asked = !is_exact;
    accumulators<shape::DIM> kept[shape::BLOCKS];
    row_references<shape::BLOCKS> reference = {};
    while (is_asked) {
        begin_rows(kept, reference, t.sink);
        const bool has_taken = walk_features<T, shape>(p, t, at, stages, kept, reference);
        join_quads(kept);
        if (has_taken) look_for_keys(kept, p, t.s, t.b, t.head, t.first + t.warp_row);
        const bool is_new = find_references(reference, kept, p, t.rule, t.s, lane_row_of(t), t.sink);
        const doubts found = find_doubts(kept);
        const uint32_t asked = join_votes((is_new ? 1u : 0u) | (found.is_infinite ? 2u : 0u) | (found.is_low ? 4u : 0u),
                                          at.votes);
        sync_threads(); /* the votes are free */
        is_exact = (asked & 2) != 0 || asked == 4;
        is_asked = asked != 0 && !is_exact;
    }
    if (is_exact) take_exactly<T, shape>(p, shared);
    else end_tile<shape>(kept, p, t, reference, at.q);
}

template <typename T, typename shape>
int launch(const forward_params &p, void *stream)
{
    const int64_t tiles = (static_cast<int64_t>(p.seqlen_q) + shape::TILE_Q - 1) / shape::TILE_Q;
    const int64_t heads = p.batch * p.num_heads_q;
    const unsigned y = static_cast<unsigned>(heads < 65535 ? heads : 65535);
    const size_t of_scores = shape::PLAIN ? 0 : bytes_of_stages<stages_of<shape>>(p, shape::SHARED_BYTES, stream);
    const launch_shape grid = {{static_cast<unsigned>(tiles), y, static_cast<unsigned>((heads + y - 1) / y)},
                               {THREADS, 1, 1}, {1, 1, 1}, shape::SHARED_BYTES + of_scores, THREADS, 2};
    if constexpr (shape::PLAIN) return LAUNCH((plain_forward_kernel<T, shape>), grid, stream, p);
    else return LAUNCH((forward_kernel<T, shape>), grid, stream, p, of_scores != 0);
}

/* The kernels for one feature are for heads of up to 128 features. Plain scores, masks and dropout have kernels of
 * their own for a positive softmax_scale: else the maximum of scores is not that of dot products. */
template <typename T, int DIM>
int launch_features(const forward_params &p, void *stream)
{
    const unsigned features = features_of(p);
    const bool is_general = p.softmax_scale <= 0;
    if (features == 0 && p.softmax_scale >= 0) return launch<T, shape<DIM, 0>>(p, stream);
    if constexpr (DIM <= 128) {
        if (!is_general && features == HAS_MASKS) return launch<T, shape<DIM, HAS_MASKS>>(p, stream);
        if (!is_general && (features & ~(HAS_MASKS | HAS_BIAS)) == 0)
            return launch<T, shape<DIM, HAS_MASKS | HAS_BIAS>>(p, stream);
        if (!is_general && features == HAS_ALIBI) return launch<T, shape<DIM, HAS_ALIBI>>(p, stream);
        if (!is_general && features == HAS_CAP) return launch<T, shape<DIM, HAS_CAP>>(p, stream);
        if (!is_general && features == HAS_DROPOUT) return launch<T, shape<DIM, HAS_DROPOUT>>(p, stream);
    }
    return launch<T, shape<DIM, EVERY_FEATURE>>(p, stream);
}

template <typename T>
int launch_width(const forward_params &p, void *stream)
{
    const int widest = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    if (widest <= 64) return launch_features<T, 64>(p, stream);
    if (widest <= 128) return launch_features<T, 128>(p, stream);
    return launch_features<T, 256>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(forward_sm80)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

/* forward_sm90_any.cu - attention forward of long sequences on Hopper's tensor cores (wgmma), of any scores.
 *
 *     o = softmax(scores over visible keys) v,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp16 and bf16, heads of up to 128 features, and every feature of lib/contract.md: shared/scores.h says what a
 * score is. Plain scores, windows and sinks are forward_sm90's.
 *
 * Grid    x: persistent CTAs, as many as SMs; each takes one tile of TILE_Q query rows after the other (tile_order)
 * Block   warpgroups: two consumers of 64 rows each and a producer. It finds the tiles of keys that some row sees, and
 *         loads them, by tensor maps (TMA) where maps can describe the tensors, else by copies of 16 bytes, and their
 *         biases; masks become a bit for each score
 * Shared  tiles of q; rings of tiles of k, with the masks and biases of their scores, and of v; mbarriers
 * Phases  of a consumer: dropout's bits of a tile of keys, while registers of its scores are free; dot products, asked
 *         for beside o += p v of the tile before; scores and weights beside that product; when it has ended, o follows
 *         the maxima, and weights are rounded
 *
 * Weights are 2^(y - m), y the score in base 2, m the running maximum of the row, as in forward_sm80.cu: biases may be
 * anything, and what a row sees may begin anywhere. Each feature has a kernel of its own, as there.
 *
 * What fragments get wrong (numbers that are not finite, biases that alone make a row's maximum large) the CTA takes
 * again after its last tile, one score at a time (shared/exact_rows.h), which gives other rows the bits that they have.
 * kernels/long/forward.md has the figures, reference/bounds.md section 11 what it may be off by. */
#include "kernels/long/forward_sm90.h"
#include "kernels/shared/exact_rows.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"

namespace {

enum { CONSUMERS = 2, CONSUMER_THREADS = CONSUMERS * GROUP, THREADS = CONSUMER_THREADS + GROUP };
enum { WARPS = CONSUMER_THREADS / 32, PRODUCER_WARPS = GROUP / 32, TILE_Q = CONSUMERS * ROWS };

constexpr int32_t NO_KEYS = INT32_MAX; /* in place of a tile's first key: the rows have no more tiles */

/* Tiles are what registers and shared memory have room for: of keys, 128, but 64 where their biases lie beside wide
 * heads, or beside caps, in the kernels of every feature. */
template <int DIMENSIONS, unsigned HAS>
struct shape {
    static constexpr int DIM = DIMENSIONS, DIM_V = DIMENSIONS;
    static constexpr unsigned FEATURES = HAS;
    static constexpr int TILE_K = (HAS & HAS_BIAS) != 0 && (DIM > 64 || (HAS & HAS_CAP) != 0) ? 64 : 128;
    /* A CTA begins with 168 for each thread; a producer that looks at masks needs more, and one that copies biases. */
    static constexpr int REGISTERS_OF_CONSUMERS = (HAS & HAS_MASKS) != 0 ? (DIM * TILE_K > 64 * 128 ? 192 : 184)
                                                  : TILE_K < 128         ? 208
                                                                         : 216;
    static constexpr int REGISTERS_OF_PRODUCER = 3 * 168 - 2 * REGISTERS_OF_CONSUMERS;
    static constexpr int WORDS = TILE_K / 32; /* of a row's bits */
    static constexpr int Q_STAGES = (HAS & (HAS_MASKS | HAS_BIAS)) == HAS_MASKS && DIM <= 64 ? 2 : 1;
    static constexpr int V_STAGES = DIM > 64 ? 2 : (HAS & HAS_BIAS) == 0 ? 4 : TILE_K == 64 ? 3 : 2;
    static constexpr int K_STAGES = (HAS & HAS_BIAS) == 0 && DIM > 64 ? 3 : V_STAGES;
    static constexpr int TILES = Q_STAGES + 1; /* those whose q has a place, and the one before them */
    using rows = panels<DIM, TILE_Q>;
    using keys = panels<DIM, TILE_K>;
    using values = panels<DIM_V, TILE_K>;
    using biases = score_stages<TILE_Q, TILE_K, 0>;
};

/* Says which rows have masks in a stage of k: none, all, or one for all. */
enum tile_masks { NO_MASKS, ONE_ROW, ALL_ROWS };

/* Says what a stage of k holds: its first key, or NO_KEYS. */
struct key_tile {
    int32_t key;
    tile_masks masks;
};

/* Describes a tile's scores: consumers would wait long for what of it lies in global memory. */
struct tile_scores {
    score_rule rule;
    float sink;
};

/* Biases lie behind it, one tile for each stage of k. */
template <typename shape>
struct shared_memory {
    uint16_t q[shape::Q_STAGES][TILE_Q * shape::DIM];
    uint16_t k[shape::K_STAGES][shape::TILE_K * shape::DIM], v[shape::V_STAGES][shape::TILE_K * shape::DIM_V];
    uint32_t seen[(shape::FEATURES & HAS_MASKS) != 0 ? shape::K_STAGES : 1][TILE_Q][shape::WORDS]; /* bits of masks */
    mbarrier q_full[shape::Q_STAGES], q_free[shape::Q_STAGES];
    mbarrier k_full[shape::K_STAGES], k_free[shape::K_STAGES], v_full[shape::V_STAGES], v_free[shape::V_STAGES];
    key_tile keys[shape::K_STAGES];
    query_tile tiles[shape::TILES];
    tile_scores scores[shape::TILES];
    uint32_t votes[2 * WARPS];
    alignas(16) unsigned char biases[16]; /* the first ones of them */
};

template <typename shape>
DEVICE unsigned bias_bytes(const forward_params &p)
{
    return p.bias.dtype == ATTEST_FP32 ? shape::biases::wide_bias::SIZE : shape::biases::narrow_bias::SIZE;
}

/* Joins what COUNT warps say, a word each: the first of them is `first`. They all call it; there must be a barrier
 * before the words are written anew. */
template <int COUNT>
DEVICE uint32_t join_votes(uint32_t word, uint32_t *votes, int barrier, unsigned first)
{
    if (lane() == 0) votes[warp() - first] = word;
    named_barrier_sync(static_cast<unsigned>(barrier), COUNT * 32);
    uint32_t all = 0;
    UNROLL for (int w = 0; w < COUNT; ++w) all |= votes[w];
    return all;
}

/* ---- the producer ------------------------------------------------------------------------------------------------ */

/* Holds where the producer is in the CTA's rings, what its last copies fill, and whether there are maps, and copies. */
template <typename shape>
struct producer {
    ring_place<shape::TILES> tile;
    ring_place<shape::Q_STAGES> q;
    ring_place<shape::K_STAGES> k;
    ring_place<shape::V_STAGES> v;
    mbarrier *filled;
    uint32_t *votes; /* the half that is free */
    bool has_maps, has_copies;
};

DEVICE unsigned producer_thread() { return thread_x() - CONSUMER_THREADS; }

/* Ends the loads of a place, which is full when their bytes have come. */
template <typename shape>
DEVICE void end_loads(producer<shape> &at, mbarrier *full)
{
    if (!at.has_copies) return give_back(full);
    cp_async_commit();
    end_copies<1>(at);
    at.filled = full;
}

/* Loads `count` rows of a head from `row` on, panel by panel: what the tensor does not have becomes zero. By maps one
 * thread asks for it, and rows that the tensor has come, too, beyond those. */
template <typename operand, typename shape>
DEVICE void load(const producer<shape> &at, uint16_t *to, const row_tensor &from, const tensor_map &map, mbarrier *full,
                 int64_t b, int64_t row, int count, int64_t head, int length)
{
    if (!at.has_maps) {
        load_operand<operand, GROUP>(to, from, row_of(from, b, row, head, 0).data, length, count, producer_thread());
    } else if (producer_thread() == 0) {
        mbarrier_arrive_expect_tx(full, operand::TILE * operand::DIM * sizeof(uint16_t));
        UNROLL for (int x = 0; x < operand::DIM; x += operand::PANEL)
            tma_load_4d(to + x * operand::TILE, &map, full, x, static_cast<int>(row), static_cast<int>(head),
                        static_cast<int>(b));
    }
}

/* Returns the next tile from `key` on that the block mask does not hide from all rows, or the last key's end. */
template <int TILE_K>
DEVICE int32_t next_tile(seen_tiles &seen, const forward_params &p, const score_rule &rule, const query_tile &t,
                         int32_t key)
{
    if (rule.block_mask == nullptr) return key;
    while (key < t.keys.last) {
        const int32_t tile = key / TILE_K;
        if (tile - seen.first >= 32) seen = look_at_blocks<TILE_K>(p, rule, t.first, t.rows, tile, t.keys.last);
        for (int n = tile - seen.first; n < 32; ++n)
            if ((seen.some >> n & 1) != 0) return (seen.first + n) * TILE_K;
        key = seen.first + 32 <= (t.keys.last - 1) / TILE_K ? (seen.first + 32) * TILE_K : t.keys.last;
    }
    return t.keys.last;
}

/* Returns a bit for each of 16 bytes, set where it is not 0. Most masks are of zeros and ones. */
DEVICE uint32_t seen_of_bytes(const sixteen_bytes &bytes)
{
    const quad four = same_16<quad>(bytes);
    uint32_t x[4], out = 0;
    UNROLL for (int n = 0; n < 4; ++n) x[n] = bits_of(four.at[n]);
    if (((x[0] | x[1] | x[2] | x[3]) & 0xfefefefe) != 0)
        UNROLL for (int n = 0; n < 4; ++n) x[n] = ((((x[n] & 0x7f7f7f7f) + 0x7f7f7f7f) | x[n]) >> 7) & 0x01010101;
    UNROLL for (int n = 0; n < 4; ++n) out |= x[n] * 0x01020408 >> 24 << 4 * n; /* from bits 8 i to bits 24 + i */
    return out;
}

/* Returns the same of a thread's own chunks, which are STEP rows apart, where masks lie anyhow or blocks cut the tile:
 * 16 bits each. `mask` and `block_mask` are NULL where there is none; `rows` and `keys` exist from `row` and `key`
 * on. */
template <int STEP>
DEVICE_CALLED sixteen_bytes find_seen_anyhow(const forward_params &p, const char *mask, const unsigned char *block_mask,
                                             int32_t row, int rows, int32_t key, int keys)
{
    struct alignas(16) {
        uint16_t of[8];
    } out = {};
    ROLLED for (int n = 0; n < 8 && n * STEP < rows; ++n) {
        const int32_t r = row + n * STEP;
        ROLLED for (int x = 0; x < 16 && x < keys; ++x) {
            bool is_seen = mask == nullptr || mask[r * p.mask.seqlen_q + (key + x) * p.mask.seqlen_k] != 0;
            if (block_mask != nullptr)
                is_seen &= block_mask[r / p.block_q * p.block_mask.seqlen_q +
                                      (key + x) / p.block_k * p.block_mask.seqlen_k] != 0;
            out.of[n] = static_cast<uint16_t>(out.of[n] | (is_seen ? 1 << x : 0));
        }
    }
    return same_16<sixteen_bytes>(out);
}

/* Names the chunks of 16 masks of a tile that are a producer thread's own, and holds them. */
template <typename shape>
using own_masks = own_chunks<score_tile<1, TILE_Q, shape::TILE_K>, GROUP>;
template <typename shape>
using mask_chunks = sixteen_bytes[own_masks<shape>::COUNT];

/* Says where masks of bytes are, and which rows have some. */
struct mask_source {
    score_source at;
    tile_masks rows;
};

INLINE mask_source find_mask_source(const forward_params &p, const score_rule &rule)
{
    if (rule.mask == nullptr) return {{}, NO_MASKS};
    const bool is_shared = p.mask.seqlen_q == 0 && rule.block_mask == nullptr;
    return {find_score_source(p.mask, rule.mask, 1), is_shared ? ONE_ROW : ALL_ROWS};
}

/* Returns whether a thread's chunks, of which `count` keys exist, can be loaded 16 bytes at a time. */
DEVICE bool are_at_once(const mask_source &from, int count)
{
    return from.at.by_sixteen && (count >= 16 || count <= 0);
}

/* Loads a thread's own masks of the tile at `key`, if they can be loaded at once. */
template <typename shape>
DEVICE void load_masks(mask_chunks<shape> &to, const mask_source &from, const query_tile &t, int32_t key)
{
    const auto own = chunks_of<score_tile<1, TILE_Q, shape::TILE_K>, GROUP>(producer_thread());
    constexpr int STEP = own_masks<shape>::STEP;
    const int first = key + 16 * own.x, rows = from.rows == NO_MASKS ? 0 : from.rows == ONE_ROW ? 1 : t.rows;
    if (own.row >= rows || first >= t.keys.last || !are_at_once(from, t.keys.last - first)) return;
    const char *at = from.at.data + (t.first + own.row) * from.at.row + first;
    UNROLL for (int n = 0; n < own_masks<shape>::COUNT; ++n, at += STEP * from.at.row)
        if (own.row + n * STEP < rows) to[n] = load_global_16<sixteen_bytes>(at);
}

/* Turns a thread's own masks into bits, block masks too where is_blocked. Returns whether one is set. */
template <typename shape>
DEVICE bool find_seen(uint32_t (&bits)[own_masks<shape>::COUNT], const mask_chunks<shape> &masks,
                      const mask_source &from, const forward_params &p, const unsigned char *block_mask,
                      const query_tile &t, int32_t key, bool is_blocked)
{
    const auto own = chunks_of<score_tile<1, TILE_Q, shape::TILE_K>, GROUP>(producer_thread());
    constexpr int COUNT = own_masks<shape>::COUNT, STEP = own_masks<shape>::STEP;
    const int first = key + 16 * own.x, keys = t.keys.last - first;
    const int rows = (from.rows == ONE_ROW ? 1 : t.rows) - own.row;
    uint32_t some = 0;
    UNROLL for (int n = 0; n < COUNT; ++n) bits[n] = 0;
    if (rows <= 0 || keys <= 0) return false;
    if (!is_blocked && are_at_once(from, keys)) {
        UNROLL for (int n = 0; n < COUNT; ++n) bits[n] = n * STEP < rows ? seen_of_bytes(masks[n]) : 0;
    } else {
        const quad found = same_16<quad>(find_seen_anyhow<STEP>(p, from.at.data, is_blocked ? block_mask : nullptr,
                                                                t.first + own.row, rows, first, keys));
        UNROLL for (int n = 0; n < COUNT; ++n) bits[n] = bits_of(found.at[n / 2]) >> n % 2 * 16 & 0xffff;
    }
    UNROLL for (int n = 0; n < COUNT; ++n) some |= bits[n];
    return some != 0;
}

template <typename shape>
DEVICE void store_seen(uint32_t (&to)[TILE_Q][shape::WORDS], const uint32_t (&bits)[own_masks<shape>::COUNT],
                       tile_masks rows)
{
    const auto own = chunks_of<score_tile<1, TILE_Q, shape::TILE_K>, GROUP>(producer_thread());
    UNROLL for (int n = 0; n < own_masks<shape>::COUNT; ++n) {
        const int row = own.row + n * own_masks<shape>::STEP;
        if (row < (rows == ONE_ROW ? 1 : TILE_Q))
            reinterpret_cast<uint16_t *>(to[row])[own.x] = static_cast<uint16_t>(bits[n]);
    }
}

/* Waits for the next place of k and says what it holds. */
template <typename shape>
DEVICE void begin_keys(const producer<shape> &at, shared_memory<shape> &m, int32_t key, tile_masks masks)
{
    mbarrier_wait(&m.k_free[at.k.stage], at.k.parity ^ 1);
    if (producer_thread() == 0) m.keys[at.k.stage] = {key, masks};
}

/* Loads a tile of k, with the biases of its scores. */
template <typename shape>
DEVICE void load_k(producer<shape> &at, const forward_params &p, const tma_tensors<3> &maps, const query_tile &t,
                   const typename shape::biases &biases, int32_t key, shared_memory<shape> &m)
{
    const int count = t.keys.last - key;
    load<typename shape::keys>(at, m.k[at.k.stage], p.k, maps.of[1], &m.k_full[at.k.stage], t.b, t.s.first_k + key,
                               count, t.head_kv, p.head_dim);
    if constexpr ((shape::FEATURES & HAS_BIAS) != 0) {
        typename shape::biases to = biases;
        to.bias += at.k.stage * bias_bytes<shape>(p);
        load_biases<GROUP>(to, p.bias.dtype, t.first, t.rows, key, count, producer_thread());
    }
    end_loads(at, &m.k_full[at.k.stage]);
    step(at.k);
}

template <typename shape>
DEVICE void load_v(producer<shape> &at, const forward_params &p, const tma_tensors<3> &maps, const query_tile &t,
                   int32_t key, shared_memory<shape> &m)
{
    mbarrier_wait(&m.v_free[at.v.stage], at.v.parity ^ 1);
    load<typename shape::values>(at, m.v[at.v.stage], p.v, maps.of[2], &m.v_full[at.v.stage], t.b, t.s.first_k + key,
                                 t.keys.last - key, t.head_kv, p.head_dim_v);
    end_loads(at, &m.v_full[at.v.stage]);
    step(at.v);
}

/* Finds the tiles of keys that some row of a tile sees, and loads them. While it waits for places, the masks of the
 * next tile are under way. */
template <typename shape>
DEVICE void load_seen_keys(producer<shape> &at, const forward_params &p, const tma_tensors<3> &maps,
                           const query_tile &t, shared_memory<shape> &m)
{
    constexpr int TILE_K = shape::TILE_K;
    const score_rule rule = only<shape::FEATURES>(find_score_rule(p, t.b, t.head));
    const auto biases = find_score_stages<typename shape::biases>(p, rule, m.biases, true);
    const mask_source source = find_mask_source(p, rule);
    seen_tiles seen = {-32, 0, 0, 0};
    int32_t key = next_tile<TILE_K>(seen, p, rule, t, t.keys.first / TILE_K * TILE_K);
    mask_chunks<shape> masks = {};
    load_masks<shape>(masks, source, t, key);
    while (key < t.keys.last) {
        uint32_t bits[own_masks<shape>::COUNT];
        const bool is_blocked = rule.block_mask != nullptr && (seen.all >> (key / TILE_K - seen.first) & 1) == 0;
        const tile_masks rows = is_blocked ? ALL_ROWS : source.rows;
        const bool has_own =
            rows == NO_MASKS || find_seen<shape>(bits, masks, source, p, rule.block_mask, t, key, is_blocked);
        const int32_t next = next_tile<TILE_K>(seen, p, rule, t, key + TILE_K);
        load_masks<shape>(masks, source, t, next);
        bool is_visible = true;
        if (rows != NO_MASKS) {
            is_visible = join_votes<PRODUCER_WARPS>(ballot(FULL_WARP, has_own), at.votes, OWN_TILE, WARPS) != 0;
            at.votes = at.votes == m.votes ? m.votes + PRODUCER_WARPS : m.votes;
        }
        if (is_visible) {
            begin_keys(at, m, key, rows);
            if constexpr ((shape::FEATURES & HAS_MASKS) != 0)
                if (rows != NO_MASKS) store_seen<shape>(m.seen[at.k.stage], bits, rows);
            load_k(at, p, maps, t, biases, key, m);
            load_v(at, p, maps, t, key, m);
        }
        key = next;
    }
    if (at.has_copies) end_copies<0>(at);
    begin_keys(at, m, NO_KEYS, NO_MASKS);
    if (at.has_maps && producer_thread() == 0) mbarrier_arrive(&m.k_full[at.k.stage]);
    give_back(&m.k_full[at.k.stage]);
    step(at.k);
}

/* Describes the CTA's tiles to the consumers, one after the other, and loads what they need. */
template <typename shape>
DEVICE void load_tiles(const forward_params &p, const tma_tensors<3> &maps, const tile_order &order, bool has_maps,
                       shared_memory<shape> &m)
{
    const uint32_t rounds = rounds_of(order);
    producer<shape> at = {{}, {}, {}, {}, nullptr, m.votes, has_maps, !has_maps || p.bias.data != nullptr};
    ROLLED for (uint32_t round = 0; round <= rounds; ++round) {
        query_tile t = {};
        if (round < rounds && !find_tile<TILE_Q>(t, p, order, tile_of_round(order, round))) continue;
        t.round = round;
        mbarrier_wait(&m.q_free[at.q.stage], at.q.parity ^ 1);
        if (producer_thread() == 0) {
            m.tiles[at.tile.stage] = t;
            if (round < rounds) m.scores[at.tile.stage] = {find_score_rule(p, t.b, t.head), sink_of(p, t)};
        }
        if (round == rounds) {
            if (has_maps && producer_thread() == 0) mbarrier_arrive(&m.q_full[at.q.stage]);
            return give_back(&m.q_full[at.q.stage]);
        }
        load<typename shape::rows>(at, m.q[at.q.stage], p.q, maps.of[0], &m.q_full[at.q.stage], t.b,
                                   t.s.first_q + t.first, t.rows, t.head, p.head_dim);
        end_loads(at, &m.q_full[at.q.stage]);
        step(at.tile), step(at.q);
        load_seen_keys(at, p, maps, t, m);
    }
}

/* ---- consumers --------------------------------------------------------------------------------------------------- */

/* Holds what a consumer has of its 64 rows of a tile: dot products, then scores, then weights, of a tile of keys;
 * weights in 16 bits of the one before. */
template <typename shape>
struct consumer {
    accumulators<shape::DIM_V> kept;
    score_block<shape::TILE_K> scores;
    uint32_t weights[shape::TILE_K / 16][4];
    score_rule rule;
    float c;        /* that all scores have as a factor */
    tile_keys seen; /* as lengths and window have it */
    typename shape::biases biases;
    ring_place<shape::TILES> tile;
    ring_place<shape::Q_STAGES> q;
    ring_place<shape::K_STAGES> k;
    ring_place<shape::V_STAGES> v;
};

/* Returns a fragment as wgmma has it. */
template <int COUNT>
DEVICE float (&flat(float (&fragment)[COUNT][4]))[4 * COUNT]
{
    return reinterpret_cast<float(&)[4 * COUNT]>(fragment);
}

DEVICE int32_t warp_row() { return static_cast<int32_t>(warp()) * 16; }

/* Puts -inf in place of the scores that masks hide. */
template <typename shape>
DEVICE void hide_masked(score_fragment<shape::TILE_K> &s, const uint32_t (&seen)[TILE_Q][shape::WORDS],
                        tile_masks rows)
{
    const int row = rows == ONE_ROW ? 0 : warp_row() + static_cast<int>(lane()) / 4;
    const unsigned first = lane() % 4 * 2; /* of the lane's keys */
    UNROLL for (int half = 0; half < 2; ++half)
        UNROLL for (int w = 0; w < shape::WORDS; ++w) {
            const uint32_t bits = seen[rows == ONE_ROW ? 0 : row + 8 * half][w] >> first;
            UNROLL for (int n = 0; n < 4; ++n)
                UNROLL for (int e = 0; e < 2; ++e) {
                    float &score = s[4 * w + n][2 * half + e];
                    score = (bits & 1u << (8 * n + e)) != 0 ? score : -infinity_f32();
                }
        }
}

/* Makes byte w of a quad's lane t byte t of its lane w. */
DEVICE uint32_t transpose_bytes(uint32_t word)
{
    const uint32_t bytes = lane() % 2 == 0 ? 0x6240 : 0x3715, pairs = lane() / 2 % 2 == 0 ? 0x5410 : 0x3276;
    word = permute_bytes(word, shfl_xor(FULL_WARP, word, 1), bytes);
    return permute_bytes(word, shfl_xor(FULL_WARP, word, 2), pairs);
}

/* Says which of a lane's weights dropout keeps: bit 8 (n % 4) + 2 (n / 4) + e of [half] is that of weight
 * [n][2 half + e]. */
using kept_weights = uint32_t[2];

/* Draws them for a tile. `i` and `eight` are as for draw_dropped, which draws beside the weights: there registers are
 * short. A lane draws the bits of every fourth eight of keys, a byte for each lane of its quad. */
template <int KEYS>
DEVICE void draw_kept(kept_weights &kept, const score_rule &rule, int64_t i, int64_t eight, uint32_t threshold)
{
    constexpr int CALLS = KEYS / 32;
    const uint32_t least = threshold << 16;
    const int64_t first = eight + static_cast<int>(lane()) % 4;
    UNROLL for (int half = 0; half < 2; ++half) {
        philox_counter drawn[CALLS];
        UNROLL for (int call = 0; call < CALLS; ++call)
            drawn[call] = dropout_counter(rule, i + 8 * half, first + 4 * call);
        draw_philox(drawn, rule);
        float sums[2] = {0x1p23f, 0x1p23f}; /* collect bits, 16 each: integers have no pipe that is free */
        UNROLL for (int call = 0; call < CALLS; ++call)
            UNROLL for (int n = 0; n < 4; ++n) {
                const float bit = static_cast<float>(1 << (8 * (n % 2) + 2 * call));
                if (drawn[call].at[n] << 16 >= least) sums[n / 2] += bit;
                if (drawn[call].at[n] >= least) sums[n / 2] += 2 * bit;
            }
        kept[half] = transpose_bytes((bits_of(sums[0]) & 0xffff) | bits_of(sums[1]) << 16);
    }
}

/* Sets to 0 the weights that dropout does not keep. */
template <int KEYS>
DEVICE void drop_others(score_fragment<KEYS> &weights, const kept_weights &kept)
{
    UNROLL for (int half = 0; half < 2; ++half)
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e)
                if ((kept[half] >> (8 * (n % 4) + 2 * (n / 4) + e) & 1) == 0) weights[n][2 * half + e] = 0;
}

/* Turns scores times c into weights; maxima and sums follow them, and o must be multiplied by `rescale`. What is not
 * finite makes sums that are no numbers. */
template <int DIM, int KEYS>
DEVICE void weigh_scores(accumulators<DIM> &kept, score_fragment<KEYS> &s, float c, float (&rescale)[2])
{
    float max[2], m[2];
    UNROLL for (int half = 0; half < 2; ++half) {
        max[half] = -infinity_f32();
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            max[half] = max_f32(max[half], max_f32(s[n][2 * half], s[n][2 * half + 1]));
    }
    UNROLL for (int half = 0; half < 2; ++half) {
        max[half] = max_of_quad(max[half]);
        const float before = kept.max[half], now = max_f32(before, c * max[half]);
        kept.max[half] = now;
        kept.any[half] |= max[half] > -LARGEST;
        m[half] = now == -infinity_f32() ? 0 : now; /* avoids -inf - -inf */
        rescale[half] = exp2_f32(before - m[half]);
    }
    UNROLL for (int half = 0; half < 2; ++half) {
        float sum[2] = {0, 0};
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                float &at = s[n][2 * half + e];
                at = exp2_f32(fma_rn(at, c, -m[half]));
                sum[e] += at;
            }
        kept.sum[half] = fma_rn(kept.sum[half], rescale[half], sum[0] + sum[1]);
    }
}

/* Waits for the next tile of keys. Returns its first key, or NO_KEYS. */
template <typename shape>
DEVICE int32_t await_keys(const consumer<shape> &c, const shared_memory<shape> &m)
{
    mbarrier_wait(&m.k_full[c.k.stage], c.k.parity);
    return m.keys[c.k.stage].key;
}

/* Gives the tile of keys back. */
template <typename shape>
DEVICE void release_keys(consumer<shape> &c, shared_memory<shape> &m)
{
    give_back(&m.k_free[c.k.stage]);
    step(c.k);
}

/* Ends the last product: its v goes back. */
template <typename shape>
DEVICE void end_product(consumer<shape> &c, shared_memory<shape> &m)
{
    wait_for<0>(flat(c.kept.o));
    release(&m.v_free[c.v.stage]);
    step(c.v);
}

/* Asks for the dot products of the consumer's rows and the tile of keys. */
template <typename T, typename shape>
DEVICE void ask_scores(consumer<shape> &c, const shared_memory<shape> &m)
{
    const unsigned first = same_in_all(warp() / 4) * ROWS;
    multiply_q_k<T, shape>(flat(c.scores.s), descriptor<typename shape::rows>(m.q[same_in_all(c.q.stage)], first),
                           descriptor<typename shape::keys>(m.k[same_in_all(c.k.stage)]));
}

/* Asks for o += p v of the weights and the next tile of v. */
template <typename T, typename shape>
DEVICE void ask_product(consumer<shape> &c, shared_memory<shape> &m)
{
    mbarrier_wait(&m.v_full[c.v.stage], c.v.parity);
    multiply_p_v<T, shape>(flat(c.kept.o), c.weights, descriptor<typename shape::values>(m.v[same_in_all(c.v.stage)]));
}

/* Draws dropout's bits of the tile at `key`. */
template <typename shape>
DEVICE void draw_kept(kept_weights &kept, const consumer<shape> &c, const forward_params &p, const query_tile &t,
                      int32_t key)
{
    if ((shape::FEATURES & HAS_DROPOUT) != 0 && p.dropout_threshold != 0)
        draw_kept<shape::TILE_K>(kept, c.rule, p.q_start + t.first + warp_row() + static_cast<int>(lane()) / 4,
                                 (p.k_start + key) / 8, p.dropout_threshold);
}

/* Turns the dot products of the tile at `key` into weights, and gives the tile back. */
template <typename shape>
DEVICE void take_scores(consumer<shape> &c, const forward_params &p, const query_tile &t, shared_memory<shape> &m,
                        int32_t key, const kept_weights &kept, float (&rescale)[2])
{
    constexpr int TILE_K = shape::TILE_K;
    constexpr unsigned FEATURES = shape::FEATURES;
    const float none[2] = {0, 0};
    constexpr bool HAS_TILES = (FEATURES & (HAS_MASKS | HAS_BIAS)) != 0; /* beside k */
    if (!HAS_TILES) release_keys(c, m);
    typename shape::biases biases = c.biases;
    if ((FEATURES & HAS_BIAS) != 0) biases.bias += c.k.stage * bias_bytes<shape>(p);
    find_fragment_scores<FEATURES, TILE_K>(c.scores.s, biases, 0, p, only<FEATURES & ~HAS_MASKS>(c.rule), t.s,
                                           place_of_lane(t.first + warp_row(), key, warp_row(), 0), {false, false},
                                           none, false);
    if constexpr ((FEATURES & HAS_MASKS) != 0) {
        const tile_masks rows = m.keys[c.k.stage].masks;
        if (rows != NO_MASKS) hide_masked<shape>(c.scores.s, m.seen[c.k.stage], rows);
    }
    if (!contains(c.seen.all, key, TILE_K))
        hide_keys<TILE_K>(flat(c.scores.s),
                          keys_of_lane(p, t.s, t.first + warp_row() + static_cast<int>(lane()) / 4, key));
    if (HAS_TILES) release_keys(c, m);
    weigh_scores<shape::DIM_V, TILE_K>(c.kept, c.scores.s, c.c, rescale);
    if ((FEATURES & HAS_DROPOUT) != 0 && p.dropout_threshold != 0)
        drop_others<TILE_K>(c.scores.s, kept);
}

template <typename T, typename shape>
DEVICE void round_weights(consumer<shape> &c)
{
    UNROLL for (int j = 0; j < shape::TILE_K / 16; ++j)
        UNROLL for (int r = 0; r < 4; ++r) {
            const float *const pair = &c.scores.s[2 * j + r / 2][r % 2 * 2];
            c.weights[j][r] = pack<T>(pair[0], pair[1]);
        }
}

/* Computes o += p v of the tile of keys before beside the scores, then the weights, of the tile at `key`. */
template <typename T, typename shape>
DEVICE void take_keys(consumer<shape> &c, const forward_params &p, const query_tile &t, shared_memory<shape> &m,
                      int32_t key)
{
    float rescale[2];
    kept_weights kept;
    draw_kept(kept, c, p, t, key);
    take_turn();
    ask_scores<T>(c, m);
    ask_product<T>(c, m);
    give_turn<CONSUMERS>();
    wait_for<1>(flat(c.scores.s));
    take_scores(c, p, t, m, key, kept, rescale);
    end_product(c, m);
    if (ballot(FULL_WARP, rescale[0] != 1 || rescale[1] != 1) != 0)
        UNROLL for (int n = 0; n < shape::DIM_V / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) c.kept.o[n][e] *= rescale[e / 2];
    round_weights<T>(c);
}

/* Passes a tile of keys that the consumer's rows do not see: it takes its turn, and gives back k and v. */
template <typename shape>
DEVICE void pass_keys(consumer<shape> &c, shared_memory<shape> &m)
{
    take_turn();
    give_turn<CONSUMERS>();
    release_keys(c, m);
    mbarrier_wait(&m.v_full[c.v.stage], c.v.parity);
    release(&m.v_free[c.v.stage]);
    step(c.v);
}

/* Computes sums of p v of the consumer's rows of a tile. Returns whether it has taken keys. */
template <typename T, typename shape>
DEVICE bool take_rows(consumer<shape> &c, const forward_params &p, const query_tile &t, shared_memory<shape> &m)
{
    int32_t key = await_keys(c, m);
    while (key < NO_KEYS && !touches(c.seen.some, key, shape::TILE_K)) {
        pass_keys(c, m);
        key = await_keys(c, m);
    }
    const bool has_keys = key < NO_KEYS;
    if (has_keys) {
        float rescale[2]; /* of o, which is 0 */
        kept_weights kept;
        draw_kept(kept, c, p, t, key);
        take_turn();
        ask_scores<T>(c, m);
        give_turn<CONSUMERS>();
        wait_for<0>(flat(c.scores.s));
        take_scores(c, p, t, m, key, kept, rescale);
        round_weights<T>(c);
        ROLLED for (key = await_keys(c, m); key < c.seen.some.last; key = await_keys(c, m))
            take_keys<T>(c, p, t, m, key);
        ask_product<T>(c, m);
        end_product(c, m);
        ROLLED for (; key < NO_KEYS; key = await_keys(c, m)) pass_keys(c, m);
    }
    release_keys(c, m); /* NO_KEYS */
    return has_keys;
}

/* Returns the same, member by member: behind them lie bytes that nobody writes. */
INLINE score_rule copy_of(const score_rule &rule)
{
    return {rule.mask,  rule.block_mask, rule.bias, rule.scale, rule.cap,
            rule.slope, {rule.key[0], rule.key[1]}, {rule.counter[0], rule.counter[1]}};
}

/* Begins with the consumer's rows of a tile. */
template <typename shape>
DEVICE void begin_tile(consumer<shape> &c, const forward_params &p, const query_tile &t, shared_memory<shape> &m)
{
    const tile_scores &scores = m.scores[c.tile.stage];
    const int32_t first = static_cast<int32_t>(warp() / 4) * ROWS, last = t.rows < first + ROWS ? t.rows : first + ROWS;
    const row_references<1> none = {};
    accumulators<shape::DIM_V> kept[1];
    begin_rows(kept, none, scores.sink);
    c.kept = kept[0];
    c.seen = keys_of_rows(p, t.s, t.first + first, t.first + last);
    score_rule rule = copy_of(scores.rule);
    c.c = take_factor(rule, p);
    c.rule = only<shape::FEATURES>(rule);
    c.biases = find_score_stages<typename shape::biases>(p, c.rule, m.biases, true);
}

/* Writes o and lse of the warp's rows. Returns whether they must be taken again. */
template <typename shape>
DEVICE bool end_tile(consumer<shape> &c, const forward_params &p, const query_tile &t, float sink, bool has_keys)
{
    const int32_t row = t.first + warp_row(), lane_row = row + static_cast<int>(lane()) / 4;
    row_references<1> reference = {};
    accumulators<shape::DIM_V> kept[1] = {c.kept};
    UNROLL for (int half = 0; half < 2; ++half) { /* rows that are not used may be anything */
        const bool is_unused = lane_row + 8 * half >= t.s.used_q;
        clear_empty(kept[0], half, is_unused);
        if (is_unused) kept[0].sum[half] = 0, kept[0].any[half] = 0;
    }
    join_quads(kept);
    if (has_keys) look_for_keys(kept, p, t.s, t.b, t.head, row);
    const bool is_new = find_references(reference, kept, p, c.rule, t.s, lane_row, sink);
    const doubts found = find_doubts(kept);
    const row_references<1> none = {};
    row_factors<1> factor;
    end_rows<false>(factor, kept, p, t.s, none, t.b, t.head, lane_row, sink);
    write_o<shape::DIM_V>(p, flat(kept[0].o), factor[0], t);
    const interval keys = t.keys; /* the simulated GPU does not see what a call copies out of shared memory */
    return is_new || found.is_infinite || found.is_low || !fits_fragments(p, t.s, t.first, t.rows, keys, true);
}

/* Computes the consumer's rows of all tiles of the CTA. Returns which rounds are in doubt, bit round % 32. */
template <typename T, typename shape>
DEVICE uint32_t take_tiles(const forward_params &p, const tile_order &order, shared_memory<shape> &m)
{
    const uint32_t rounds = rounds_of(order);
    consumer<shape> c;
    uint32_t doubts = 0;
    if (warp() / 4 == CONSUMERS - 1) give_turn<CONSUMERS>(); /* the first turn is the first consumer's */
    while (true) {
        mbarrier_wait(&m.q_full[c.q.stage], c.q.parity);
        const query_tile &t = m.tiles[c.tile.stage];
        if (t.round == rounds) break;
        begin_tile(c, p, t, m);
        const bool has_keys = take_rows<T>(c, p, t, m);
        give_back(&m.q_free[c.q.stage]); /* and the description of the tile before */
        if (end_tile(c, p, t, m.scores[c.tile.stage].sink, has_keys)) doubts |= 1u << t.round % 32;
        step(c.tile), step(c.q);
    }
    if (warp() / 4 == 0) take_turn(); /* the last one that was given */
    return doubts;
}

/* ---- tiles that are taken again ---------------------------------------------------------------------------------- */

/* Holds tiles as mma.sync reads them, where those for wgmma were. */
template <typename shape>
struct exact_memory {
    uint16_t q[TILE_Q * shape::DIM], k[shape::TILE_K * shape::DIM], v[shape::TILE_K * shape::DIM_V];
};

/* Computes a whole tile one score at a time, by all consumers; again where biases alone make a row's maximum large,
 * with the largest of them subtracted. */
template <typename T, typename shape>
DEVICE_CALLED void take_exactly(const forward_params &p, const tile_order &order, uint32_t round,
                                exact_memory<shape> &m, uint32_t *votes)
{
    constexpr int DIM = shape::DIM, TILE_K = shape::TILE_K;
    query_tile t;
    if (!find_tile<TILE_Q>(t, p, order, tile_of_round(order, round))) return;
    score_rule rule = find_score_rule(p, t.b, t.head);
    const float c = take_factor(rule, p), sink = sink_of(p, t);
    rule = only<shape::FEATURES>(rule);
    const int32_t lane_row = t.first + warp_row() + static_cast<int>(lane()) / 4;
    accumulators<DIM> kept[1];
    row_references<1> reference = {};
    load_tile<TILE_Q, DIM, CONSUMER_THREADS>(m.q, p.q, t.b, t.s.first_q + t.first, t.rows, t.head, p.head_dim);
    for (bool is_asked = true; is_asked;) {
        begin_rows(kept, reference, sink);
        ROLLED for (int32_t key = t.keys.first / TILE_K * TILE_K; key < t.keys.last; key += TILE_K) {
            const int64_t row = t.s.first_k + key;
            const int left = t.keys.last - key;
            load_tile<TILE_K, DIM, CONSUMER_THREADS>(m.k, p.k, t.b, row, left, t.head_kv, p.head_dim);
            load_tile<TILE_K, DIM, CONSUMER_THREADS>(m.v, p.v, t.b, row, left, t.head_kv, p.head_dim_v);
            cp_async_wait_all();
            named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS); /* the tiles are complete */
            take_keys_exactly<T, 1, TILE_K>(kept[0], p, rule, t.s, c, reference[0], m.q + warp_row() * DIM, m.k, m.v,
                                            lane_row, key + static_cast<int>(lane()) % 4 * 2);
            named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS); /* k and v are free */
        }
        join_quads(kept);
        const bool is_new = find_references(reference, kept, p, rule, t.s, lane_row, sink);
        is_asked = join_votes<WARPS>(is_new, votes, ALL_CONSUMERS, 0) != 0;
        named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS); /* the votes are free */
    }
    cp_async_wait_all(); /* q, where there was no key */
    named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS); /* q is free */
    row_factors<1> factor;
    end_rows<false>(factor, kept, p, t.s, reference, t.b, t.head, lane_row, sink);
    write_features(p, kept[0], factor[0], t.b, t.s.first_q + lane_row, t.s.seqlen_q - lane_row, t.head);
}

/* Takes the tiles again that some warp has doubts about. All consumers call it. */
template <typename T, typename shape>
DEVICE void take_doubtful_tiles(const forward_params &p, const tile_order &order, uint32_t doubts,
                                shared_memory<shape> &m)
{
    const uint32_t of_all = join_votes<WARPS>(doubts, m.votes, ALL_CONSUMERS, 0);
    if (of_all == 0) return;
    static_assert(sizeof(exact_memory<shape>) <= offsetof(shared_memory<shape>, seen), "tiles lie where tiles did");
    named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS); /* the votes are free */
    ROLLED for (uint32_t round = 0; round < rounds_of(order); ++round)
        if ((of_all >> round % 32 & 1) != 0)
            take_exactly<T, shape>(p, order, round, reinterpret_cast<exact_memory<shape> &>(m), m.votes);
}

/* A place is full when its bytes have come and the producer's warps have said that they have brought theirs, and free
 * when all consumer warps have. */
template <int STAGES>
DEVICE void begin_ring(mbarrier (&full)[STAGES], mbarrier (&free)[STAGES], bool has_maps)
{
    UNROLL for (int n = 0; n < STAGES; ++n)
        mbarrier_init(&full[n], PRODUCER_WARPS + (has_maps ? 1 : 0)), mbarrier_init(&free[n], WARPS);
}

template <typename T, typename shape>
KERNEL(THREADS, 1) void forward_sm90_any_kernel(GRID_CONSTANT const forward_params p,
                                                GRID_CONSTANT const tma_tensors<3> maps, const tile_order order,
                                                bool by_boxes)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    auto &m = *reinterpret_cast<shared_memory<shape> *>(shared);
    if (thread_x() == 0) {
        begin_ring(m.q_full, m.q_free, by_boxes);
        begin_ring(m.k_full, m.k_free, by_boxes), begin_ring(m.v_full, m.v_free, by_boxes);
        fence_mbarrier_init();
    }
    sync_threads(); /* the barriers are there */
    if (thread_x() >= CONSUMER_THREADS) {
        setmaxnreg_dec<shape::REGISTERS_OF_PRODUCER>();
        load_tiles(p, maps, order, by_boxes, m);
    } else {
        setmaxnreg_inc<shape::REGISTERS_OF_CONSUMERS>();
        const uint32_t doubts = take_tiles<T>(p, order, m);
        take_doubtful_tiles<T>(p, order, doubts, m);
    }
}

template <typename T, typename shape>
int launch(const forward_params &p, void *stream)
{
    constexpr size_t MOST_BIASES = shape::K_STAGES * shape::biases::wide_bias::SIZE;
    static_assert(sizeof(shared_memory<shape>) + ((shape::FEATURES & HAS_BIAS) != 0 ? MOST_BIASES : 0) <= 227 * 1024,
                  "what Hopper's CTAs may have");
    tma_tensors<3> maps = {};
    const tile_order order = order_of<TILE_Q>(p, p.seqlen_q);
    const unsigned sms = launch_num_sms(stream), ctas = sms < 1 ? 1 : sms;
    const size_t biases = p.bias.data == nullptr ? 0
                          : p.bias.dtype == ATTEST_FP32 ? MOST_BIASES
                                                        : shape::K_STAGES * shape::biases::narrow_bias::SIZE;
    const launch_shape grid = {{ctas < order.total ? ctas : order.total, 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               sizeof(shared_memory<shape>) + biases, THREADS, 1};
    const bool has_maps = encode_tensors<shape>(maps, p);
    return LAUNCH((forward_sm90_any_kernel<T, shape>), grid, stream, p, maps, order, has_maps);
}

/* The kernels for one feature are for a positive softmax_scale: else the maximum of scores is not that of dot
 * products. */
template <typename T, int DIM>
int launch_features(const forward_params &p, void *stream)
{
    const unsigned features = features_of(p);
    if (p.softmax_scale > 0) {
        if (features == HAS_MASKS) return launch<T, shape<DIM, HAS_MASKS>>(p, stream);
        if (features == HAS_BIAS) return launch<T, shape<DIM, HAS_BIAS>>(p, stream);
        if (features == (HAS_MASKS | HAS_BIAS)) return launch<T, shape<DIM, HAS_MASKS | HAS_BIAS>>(p, stream);
        if (features == HAS_ALIBI) return launch<T, shape<DIM, HAS_ALIBI>>(p, stream);
        if (features == HAS_CAP) return launch<T, shape<DIM, HAS_CAP>>(p, stream);
        if (features == HAS_DROPOUT) return launch<T, shape<DIM, HAS_DROPOUT>>(p, stream);
    }
    if (p.dropout_threshold == 0) return launch<T, shape<DIM, EVERY_FEATURE & ~HAS_DROPOUT>>(p, stream);
    return launch<T, shape<DIM, EVERY_FEATURE>>(p, stream);
}

template <typename T>
int launch_width(const forward_params &p, void *stream)
{
    const int widest = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    if (widest <= 64) return launch_features<T, 64>(p, stream);
    return launch_features<T, 128>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(forward_sm90_any)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

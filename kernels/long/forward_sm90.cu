/* forward_sm90.cu - attention forward of long sequences on Hopper's tensor cores (wgmma).
 *
 *     o = softmax(softmax_scale q k^T) v over visible keys,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp16 and bf16, any lengths and strides, windows on any diagonal, groups of heads, ragged batches, sinks; scores
 * are otherwise plain. Tiles come by tensor maps (TMA) where maps can describe the tensors, which are not ragged, else
 * by copies of 16 bytes.
 *
 * Grid    x: persistent CTAs, as many as SMs; each takes one tile of TILE_Q query rows after the other (tile_order)
 * Block   warpgroups: two consumers of 64 rows each, of up to 64 features three, and a producer, one thread of which
 *         asks for all boxes, or all of which for all copies; then it writes the rows of tiles that see no key
 * Shared  two tiles of q, of more than 128 features one; rings of tiles of k and of v; mbarriers
 * Phases  of a consumer: s = q k^T of a tile of keys, asked for beside o += p v of the tile before; exponentials beside
 *         that product, and when it has ended their rounding; after the last tile of keys q is free: ask for the first
 *         s of the next rows, then write o from registers
 *
 * Few rows of a sequence that see many keys leave SMs without work: their tiles are those of a second launch, where a
 * cluster of two CTAs takes a tile, each CTA half of its keys. They leave o and the rows' sums in shared memory, and
 * each joins half of the rows. Which tiles those are, the sequence's own lengths and the window say.
 *
 * Weights are 2^(c (q . k) - m), c = softmax_scale log2 e. m is a row's reference: the maximum of the first tile of
 * keys in which it sees some. It stays, so that o need not be rescaled and no later maximum be found: weights above 1
 * lose nothing in floating point. Where one is above MOST_WEIGHT, m moves up and o is rescaled: in fp16 at once, in
 * bf16 by taking the row again, as below. The numbers of a row depend on its own keys alone.
 *
 * Sums that are not finite, or too large, say that something in them is, and a sink far above m that their factor may
 * be 0: then, after the last tile, the CTA takes the tile again one score at a time (shared/exact_rows.h), which gives
 * finite rows the bits that they have.
 * kernels/long/forward.md has the figures, reference/bounds.md section 11 what it may be off by. */
#include "kernels/long/forward_sm90.h"
#include "kernels/shared/exact_rows.h"
#include "kernels/shared/params.h"
#include "kernels/shared/score_stage.h"

namespace {

enum { WRITERS = 3 };

/* Weights are at most this: fp16 has no number of 2^16, and sums of fp32 stay far from their largest. */
template <typename T>
constexpr float MOST_WEIGHT = IS_F16<T> ? 0x1p15f : 0x1p64f;

/* By as much a row's sink may be above its reference, in base 2, so that 2^(reference - sink) is a normal number. */
constexpr float FARTHEST_SINK = 125;

/* Returns whether a sink, in base 2, is so far above the reference that the factor of o would be 0 beside weights that
 * count. Those of fp16 do not. */
template <typename T>
DEVICE bool is_far(float of_sink, float reference)
{
    return !IS_F16<T> && of_sink < infinity_f32() && of_sink - reference > FARTHEST_SINK;
}

/* q and k have DIM features, v and o DIM_V. Tiles of keys are what registers (o, scores, weights) and shared memory
 * have room for. */
template <int DIMENSIONS, int DIMENSIONS_V>
struct shape {
    static constexpr int DIM = DIMENSIONS, DIM_V = DIMENSIONS_V;
    static constexpr int CONSUMERS = DIM <= 64 ? 3 : 2, CONSUMER_THREADS = CONSUMERS * GROUP;
    static constexpr int WARPS = CONSUMER_THREADS / 32, THREADS = CONSUMER_THREADS + GROUP;
    static constexpr int REGISTERS_OF_CONSUMERS = CONSUMERS == 3 ? 160 : 232;
    static constexpr int REGISTERS_OF_PRODUCER = CONSUMERS == 3 ? 32 : 40;
    static constexpr int TILE_Q = CONSUMERS * ROWS, TILE_K = DIM_V <= 128 ? 128 : DIM_V <= 192 ? 112 : 80;
    static constexpr int Q_STAGES = DIM <= 128 ? 2 : 1, K_STAGES = DIM <= 64 ? 3 : 2;
    static constexpr int V_STAGES = DIM <= 64 ? 4 : DIM <= 128 ? 3 : 2;
    static constexpr int TILES = Q_STAGES + 2; /* those whose q has a place, the one before and the one after them */
    using rows = panels<DIM, TILE_Q>;
    using keys = panels<DIM, TILE_K>;
    using values = panels<DIM_V, TILE_K>;
    static constexpr bool IS_CUT = false;
    using whole = shape;
};

/* Says the same of kernels of clusters, which cut a tile's keys. Others would lose up to 5 % by their code. */
template <typename whole_shape>
struct cut : whole_shape {
    static constexpr bool IS_CUT = true;
    using whole = whole_shape;
};

enum { PARTS = 2 }; /* of the keys of a tile that is cut */

/* Keys are cut where no more rows are in use and a tile sees at least so many keys: a join takes some 2 % of that. */
constexpr int32_t MOST_ROWS_CUT = 4096, LEAST_KEYS_CUT = 1 << 15;

template <typename shape>
struct shared_memory {
    uint16_t q[shape::Q_STAGES][shape::TILE_Q * shape::DIM];
    uint16_t k[shape::K_STAGES][shape::TILE_K * shape::DIM], v[shape::V_STAGES][shape::TILE_K * shape::DIM_V];
    mbarrier q_full[shape::Q_STAGES], q_free[shape::Q_STAGES];
    mbarrier k_full[shape::K_STAGES], k_free[shape::K_STAGES], v_full[shape::V_STAGES], v_free[shape::V_STAGES];
    query_tile tiles[shape::TILES];
    uint32_t doubts[shape::WARPS];
};

/* ---- whose tiles are cut ----------------------------------------------------------------------------------------- */

DEVICE bool is_cut(const query_tile &t)
{
    return t.s.used_q <= MOST_ROWS_CUT && t.keys.last - t.keys.first >= LEAST_KEYS_CUT;
}

/* Returns a part of the keys of a tile: half of its tiles of keys. */
template <int TILE_K>
INLINE interval part_of(const interval &keys, unsigned part)
{
    const int32_t middle = (keys.first / TILE_K + (keys.last + TILE_K - 1) / TILE_K) / 2 * TILE_K;
    if (part == 0) return {keys.first, middle};
    return {middle, keys.last};
}

/* Returns how many rounds a CTA has, or its cluster. */
template <typename shape>
DEVICE uint32_t own_rounds(const tile_order &order)
{
    const uint32_t clusters = grid_x() / PARTS;
    return shape::IS_CUT ? (order.total + clusters - 1) / clusters : rounds_of(order);
}

/* Returns which tile is theirs in a round. */
template <typename shape>
DEVICE uint32_t own_number(const tile_order &order, uint32_t round)
{
    return shape::IS_CUT ? round * (grid_x() / PARTS) + block_x() / PARTS : tile_of_round(order, round);
}

/* Finds it. Returns whether there is one that this kernel takes. */
template <typename shape>
DEVICE bool find_own_tile(query_tile &t, const forward_params &p, const tile_order &order, uint32_t round)
{
    return find_tile<shape::TILE_Q>(t, p, order, own_number<shape>(order, round)) && is_cut(t) == shape::IS_CUT;
}

template <typename shape>
DEVICE bool has_own_tile(const forward_params &p, const tile_order &order, uint32_t round)
{
    query_tile t;
    return find_own_tile<shape>(t, p, order, round);
}

/* ---- the producer ------------------------------------------------------------------------------------------------ */

/* Holds where the producer is in the CTA's rings, and what its last copies fill. */
template <typename shape>
struct producer {
    ring_place<shape::TILES> tile;
    ring_place<shape::Q_STAGES> q;
    ring_place<shape::K_STAGES> k;
    ring_place<shape::V_STAGES> v;
    mbarrier *filled = nullptr;
};

/* Loads `count` rows of a head from `row` on, panel by panel: what the tensor does not have becomes zero. By
 * maps one thread asks for it, and rows that the tensor has come, too, beyond those. */
template <bool BY_MAPS, typename operand, typename shape>
DEVICE void load(producer<shape> &at, uint16_t *to, const row_tensor &from, const tensor_map &map, mbarrier *full,
                 int64_t b, int64_t row, int count, int64_t head, int length)
{
    if constexpr (BY_MAPS) {
        mbarrier_arrive_expect_tx(full, operand::TILE * operand::DIM * sizeof(uint16_t));
        UNROLL for (int x = 0; x < operand::DIM; x += operand::PANEL)
            tma_load_4d(to + x * operand::TILE, &map, full, x, static_cast<int>(row), static_cast<int>(head),
                        static_cast<int>(b));
    } else {
        load_operand<operand, GROUP>(to, from, row_of(from, b, row, head, 0).data, length, count,
                                     thread_x() - shape::CONSUMER_THREADS);
        cp_async_commit();
        end_copies<1>(at);
        at.filled = full;
    }
}

/* Loads the tile of k at `key`. */
template <bool BY_MAPS, typename shape>
DEVICE void load_k(producer<shape> &at, const forward_params &p, const tma_tensors<3> &maps, const query_tile &t,
                   int32_t key, shared_memory<shape> &m)
{
    mbarrier_wait(&m.k_free[at.k.stage], at.k.parity ^ 1);
    load<BY_MAPS, typename shape::keys>(at, m.k[at.k.stage], p.k, maps.of[1], &m.k_full[at.k.stage], t.b,
                                        t.s.first_k + key, t.keys.last - key, t.head_kv, p.head_dim);
    step(at.k);
}

template <bool BY_MAPS, typename shape>
DEVICE void load_v(producer<shape> &at, const forward_params &p, const tma_tensors<3> &maps, const query_tile &t,
                   int32_t key, shared_memory<shape> &m)
{
    mbarrier_wait(&m.v_free[at.v.stage], at.v.parity ^ 1);
    load<BY_MAPS, typename shape::values>(at, m.v[at.v.stage], p.v, maps.of[2], &m.v_full[at.v.stage], t.b,
                                          t.s.first_k + key, t.keys.last - key, t.head_kv, p.head_dim_v);
    step(at.v);
}

/* Describes the CTA's next tile that sees keys, from a round on; where there is none before round `end`, its round is
 * that. */
template <bool BY_MAPS, typename shape>
DEVICE void find_next_tile(query_tile &out, const forward_params &p, const tile_order &order, uint32_t round,
                           uint32_t end)
{
    query_tile t = {};
    while (round < end && !(find_own_tile<shape>(t, p, order, round) && sees_keys(t))) ++round;
    if (shape::IS_CUT) t.keys = part_of<shape::TILE_K>(t.keys, cluster_rank());
    t.round = round;
    if (BY_MAPS || thread_x() == shape::CONSUMER_THREADS) out = t;
    if (!BY_MAPS) named_barrier_sync(OWN_TILE, GROUP);
}

/* Describes the CTA's tiles of rounds that see keys to the consumers, one after the other, and loads what they need. It
 * finds the next tile while the first copies of this one are under way. Consumers give q's place back while they still
 * need the tile's description: that of the next one has the place of one that they have left. By maps one thread does
 * it, else the warpgroup. */
template <bool BY_MAPS, typename shape>
DEVICE void load_tiles(producer<shape> &at, const forward_params &p, const tma_tensors<3> &maps,
                       const tile_order &order, uint32_t begin, uint32_t end, shared_memory<shape> &m)
{
    constexpr int TILE_K = shape::TILE_K;
    find_next_tile<BY_MAPS, shape>(m.tiles[at.tile.stage], p, order, begin, end);
    while (true) {
        const query_tile &t = m.tiles[at.tile.stage];
        const uint32_t round = t.round;
        const int32_t first = t.keys.first / TILE_K * TILE_K, last = t.keys.last;
        mbarrier_wait(&m.q_free[at.q.stage], at.q.parity ^ 1);
        if (round == end) break;
        load<BY_MAPS, typename shape::rows>(at, m.q[at.q.stage], p.q, maps.of[0], &m.q_full[at.q.stage], t.b,
                                            t.s.first_q + t.first, t.rows, t.head, p.head_dim);
        load_k<BY_MAPS>(at, p, maps, t, first, m);
        step(at.tile), step(at.q);
        find_next_tile<BY_MAPS, shape>(m.tiles[at.tile.stage], p, order, round + 1, end);
        ROLLED for (int32_t key = first; key < last; key += TILE_K) {
            if (key + TILE_K < last) load_k<BY_MAPS>(at, p, maps, t, key + TILE_K, m);
            load_v<BY_MAPS>(at, p, maps, t, key, m);
        }
    }
    if (!BY_MAPS) end_copies<0>(at);
    if (BY_MAPS) mbarrier_arrive(&m.q_full[at.q.stage]);
    else give_back(&m.q_full[at.q.stage]);
    step(at.tile), step(at.q);
}

/* Writes (0, -inf or the sink) to the rows of the CTA's tiles that see no key. WRITERS warps share the rounds. */
template <typename shape>
DEVICE void write_empty_tiles(const forward_params &p, const tile_order &order, unsigned writer)
{
    constexpr int TILE_Q = shape::TILE_Q;
    query_tile t;
    ROLLED for (uint32_t round = writer; round < rounds_of(order); round += WRITERS) {
        if (!find_own_tile<shape>(t, p, order, round) || sees_keys(t)) continue;
        const float sink = sink_of(p, t);
        ROLLED for (int32_t row = t.first; row < t.first + TILE_Q && row < t.s.seqlen_q; ++row) {
            const row_pointer o = row_of(p.o, t.b, t.s.first_q + row, t.head, p.head_dim_v);
            ROLLED for (int x = static_cast<int>(lane()); x < o.length; x += 32) store_feature(o, x, 0);
            if (p.lse.data != nullptr && lane() == 0)
                store_feature(row_of(p.lse, t.b, t.s.first_q + row, t.head, 1), 0,
                              row < t.s.used_q ? sink : -infinity_f32());
        }
    }
}

/* ---- consumers --------------------------------------------------------------------------------------------------- */

/* Holds, for rows g and g + 8 of a warp, their references in base 2, -inf where they have none yet, and a lane's own
 * part of the sum of weights. */
struct softmax_rows {
    float reference[2], sum[2];
};

/* Holds what a consumer has in registers. */
template <typename shape>
struct consumer {
    float s[shape::TILE_K / 2], o[shape::DIM_V / 2]; /* scores, then weights; o before normalisation */
    uint32_t weights[shape::TILE_K / 16][4];       /* in 16 bits, of the tile of keys before */
    softmax_rows rows;
    ring_place<shape::TILES> tile;
    ring_place<shape::Q_STAGES> q;
    ring_place<shape::K_STAGES> k;
    ring_place<shape::V_STAGES> v;
};

/* Gives rows that see keys for the first time the maximum of this tile's scores times c as their reference. One that is
 * not a number makes the row's sums NaN. */
template <int KEYS>
DEVICE void find_references(const float (&s)[KEYS / 2], softmax_rows &rows, const lane_keys &seen, float c)
{
    const int first = -(static_cast<int>(lane()) % 4 * 2); /* of the tile, relative to the lane's */
    UNROLL for (int half = 0; half < 2; ++half) {
        float max = -infinity_f32();
        UNROLL for (int n = 2 * half; n < KEYS / 2; n += 4) max = max_f32(max, max_f32(s[n], s[n + 1]));
        const float found = c * max_of_quad(max);
        const interval of_row = {seen.first[half], seen.last[half]};
        const bool sees = touches(of_row, first, KEYS) && of_row.first < of_row.last;
        if (rows.reference[half] == -infinity_f32() && sees)
            rows.reference[half] = found - found == 0 ? found : float_of(0x7fffffff);
    }
}

/* Turns scores times c into weights 2^(c s - m). Returns the lane's sums of the tile. */
template <int KEYS>
DEVICE void find_weights(float (&s)[KEYS / 2], const softmax_rows &rows, float c, float (&sums)[2])
{
    UNROLL for (int half = 0; half < 2; ++half) {
        const float m = rows.reference[half] == -infinity_f32() ? 0 : rows.reference[half]; /* avoids -inf - -inf */
        float sum[2] = {0, 0};
        UNROLL for (int n = 2 * half; n < KEYS / 2; n += 4)
            UNROLL for (int e = 0; e < 2; ++e) {
                s[n + e] = exp2_f32(fma_rn(s[n + e], c, -m));
                sum[e] += s[n + e];
            }
        sums[half] = sum[0] + sum[1];
    }
}

/* Returns a reference such that the largest of a row's weights, which is above MOST_WEIGHT, becomes one of 1 to 2, or
 * of 2 to 4 where it is 2^127 or more: 2^-127, by which the others would be rescaled, is flushed to 0. */
DEVICE float moved_reference(float reference, float largest)
{
    const int by = static_cast<int>(bits_of(largest) >> 23) - 127;
    return reference + static_cast<float>(by < 126 ? by : 126);
}

/* Moves the references of rows of fp16 one of whose weights is above MOST_WEIGHT. */
template <typename shape>
DEVICE void rescale(consumer<shape> &c, float (&sums)[2])
{
    UNROLL for (int half = 0; half < 2; ++half) {
        float largest = 0;
        UNROLL for (int n = 2 * half; n < shape::TILE_K / 2; n += 4)
            largest = max_f32(largest, max_f32(c.s[n], c.s[n + 1]));
        largest = max_of_quad(largest);
        const float before = c.rows.reference[half];
        const float now = largest > MOST_WEIGHT<f16> ? moved_reference(before, largest) : before;
        const float by = largest > MOST_WEIGHT<f16> ? exp2_f32(before - now) : 1;
        c.rows.reference[half] = now;
        c.rows.sum[half] *= by;
        float sum[2] = {0, 0}; /* anew: at the scale before, they may be more than fp32 has */
        UNROLL for (int n = 2 * half; n < shape::TILE_K / 2; n += 4)
            UNROLL for (int e = 0; e < 2; ++e) c.s[n + e] *= by, sum[e] += c.s[n + e];
        sums[half] = sum[0] + sum[1];
        UNROLL for (int n = 2 * half; n < shape::DIM_V / 2; n += 4) c.o[n] *= by, c.o[n + 1] *= by;
    }
}

template <typename T, int KEYS>
DEVICE void round_weights(uint32_t (&weights)[KEYS / 16][4], const float (&s)[KEYS / 2])
{
    UNROLL for (int j = 0; j < KEYS / 16; ++j)
        UNROLL for (int r = 0; r < 4; ++r) weights[j][r] = pack<T>(s[8 * j + 2 * r], s[8 * j + 2 * r + 1]);
}

/* Asks for s = q k^T of the 64 rows from `first` on of a tile. */
template <typename T, typename shape>
DEVICE void ask_scores(consumer<shape> &c, const uint16_t *q, unsigned first, const uint16_t *k)
{
    multiply_q_k<T, shape>(c.s, descriptor<typename shape::rows>(q, first), descriptor<typename shape::keys>(k));
}

/* Asks for the first scores of the next tile of query rows. Where there is none it asks for those of the last tiles
 * again, which nobody writes over any more: ptxas waits for each product that is asked for on one path alone. */
template <typename T, typename shape>
DEVICE void ask_first_scores(consumer<shape> &c, shared_memory<shape> &m, bool is_there)
{
    constexpr unsigned Q_BEFORE = shape::Q_STAGES - 1, K_BEFORE = shape::K_STAGES - 1;
    const unsigned q = same_in_all((c.q.stage + (is_there ? 0 : Q_BEFORE)) % shape::Q_STAGES);
    const unsigned k = same_in_all((c.k.stage + (is_there ? 0 : K_BEFORE)) % shape::K_STAGES);
    if (is_there) mbarrier_wait(&m.k_full[k], c.k.parity);
    take_turn();
    ask_scores<T>(c, m.q[q], same_in_all(warp() / 4) * ROWS, m.k[k]);
    give_turn<shape::CONSUMERS>();
}

/* Says what a tile of keys is to the rows of a consumer. */
enum tile_kind {
    WHOLE,   /* every row sees every key, and has a reference */
    OPENING, /* every row sees every key, the first ones */
    ENDING,  /* every row that sees keys has a reference */
    CUT
};

/* Turns the scores of the tile at `key` into weights. */
template <typename shape, tile_kind KIND>
DEVICE void take_scores(consumer<shape> &c, const forward_params &p, const query_tile &t, int32_t key,
                        float (&sums)[2])
{
    const float factor = p.softmax_scale * LOG2_E;
    if (KIND != WHOLE) {
        const int32_t row = t.first + static_cast<int32_t>(warp() * 16 + lane() / 4);
        const lane_keys seen = keys_of_lane(p, t.s, row, key);
        if (KIND != OPENING) hide_keys<shape::TILE_K>(c.s, seen);
        if (KIND != ENDING) find_references<shape::TILE_K>(c.s, c.rows, seen, factor);
    }
    find_weights<shape::TILE_K>(c.s, c.rows, factor, sums);
}

/* Adds the weights to the rows' sums and rounds them to 16 bits. No product is under way. */
template <typename T, typename shape>
DEVICE void keep_weights(consumer<shape> &c, float (&sums)[2])
{
    if constexpr (IS_F16<T>)
        if (ballot(FULL_WARP, !(sums[0] < MOST_WEIGHT<T> && sums[1] < MOST_WEIGHT<T>)) != 0) rescale(c, sums);
    UNROLL for (int half = 0; half < 2; ++half) c.rows.sum[half] += sums[half];
    round_weights<T, shape::TILE_K>(c.weights, c.s);
}

/* Asks for o += p v of the weights and the next tile of v. */
template <typename T, typename shape>
DEVICE void ask_product(consumer<shape> &c, shared_memory<shape> &m)
{
    mbarrier_wait(&m.v_full[c.v.stage], c.v.parity);
    multiply_p_v<T, shape>(c.o, c.weights, descriptor<typename shape::values>(m.v[same_in_all(c.v.stage)]));
}

/* Ends the last product: its v goes back. */
template <int PENDING, typename shape>
DEVICE void end_product(consumer<shape> &c, shared_memory<shape> &m)
{
    wait_for<PENDING>(c.o);
    release(&m.v_free[c.v.stage]);
    step(c.v);
}

/* Computes o += p v beside the scores, then the weights, of the tile at `key`. */
template <typename T, typename shape, tile_kind KIND>
DEVICE void take_keys(consumer<shape> &c, const forward_params &p, const query_tile &t, shared_memory<shape> &m,
                      int32_t key)
{
    float sums[2];
    mbarrier_wait(&m.k_full[c.k.stage], c.k.parity);
    take_turn();
    ask_scores<T>(c, m.q[same_in_all(c.q.stage)], same_in_all(warp() / 4) * ROWS, m.k[same_in_all(c.k.stage)]);
    ask_product<T>(c, m);
    give_turn<shape::CONSUMERS>();
    wait_for<1>(c.s);
    release(&m.k_free[c.k.stage]);
    step(c.k);
    take_scores<shape, KIND>(c, p, t, key, sums);
    end_product<0>(c, m);
    keep_weights<T>(c, sums);
}

/* Passes a tile of keys that the consumer's rows do not see: it takes its turn, and gives back k, and v of the tile
 * before. */
template <typename shape>
DEVICE void pass_keys(consumer<shape> &c, shared_memory<shape> &m)
{
    mbarrier_wait(&m.k_full[c.k.stage], c.k.parity);
    take_turn();
    give_turn<shape::CONSUMERS>();
    release(&m.k_free[c.k.stage]);
    step(c.k);
    end_product<0>(c, m);
    mbarrier_wait(&m.v_full[c.v.stage], c.v.parity); /* goes back as if a product had read it */
}

/* Computes o of the consumer's 64 rows of a tile, whose first scores are there, up to the last product, which it asks
 * for, and passes the keys behind theirs. Before that product q goes back. */
template <typename T, typename shape>
DEVICE void take_rows(consumer<shape> &c, const forward_params &p, const query_tile &t, shared_memory<shape> &m)
{
    constexpr int TILE_K = shape::TILE_K;
    const int32_t first = static_cast<int32_t>(warp() / 4) * ROWS, last = t.rows < first + ROWS ? t.rows : first + ROWS;
    const tile_keys seen = keys_of_rows(p, t.s, t.first + first, t.first + last);
    const bool ends_before = shape::IS_CUT && t.keys.last < seen.some.last;
    const int32_t last_key = ends_before ? t.keys.last : seen.some.last;
    int32_t key = t.keys.first / TILE_K * TILE_K;
    float sums[2];
    c.rows = {{-infinity_f32(), -infinity_f32()}, {0, 0}};
    UNROLL for (int n = 0; n < shape::DIM_V / 2; ++n) c.o[n] = 0;
    if (contains(seen.all, key, TILE_K)) take_scores<shape, OPENING>(c, p, t, key, sums);
    else take_scores<shape, CUT>(c, p, t, key, sums);
    keep_weights<T>(c, sums);
    ROLLED for (key += TILE_K; key < last_key; key += TILE_K) {
        if (key <= seen.all.first) take_keys<T, shape, CUT>(c, p, t, m, key);
        else if (contains(seen.all, key, TILE_K)) take_keys<T, shape, WHOLE>(c, p, t, m, key);
        else take_keys<T, shape, ENDING>(c, p, t, m, key);
    }
    give_back(&m.q_free[c.q.stage]); /* and the description of the tile before, which any lane may have read last */
    ask_product<T>(c, m);
    ROLLED for (; key < t.keys.last; key += TILE_K) pass_keys(c, m);
}

/* Says what makes a row's sums its results: o = sum p v times factor, lse. */
struct row_results {
    float factor, lse;
};

/* Joins the sink, a key of v = 0: what sums are relative to becomes the larger of the reference and the sink. */
INLINE row_results end_row(float reference, float sum, float sink)
{
    const float of_sink = sink * LOG2_E, largest = max_f32(reference, of_sink);
    const float weight = of_sink == largest ? 1 : exp2_f32(of_sink - largest); /* avoids inf - inf */
    const float by = exp2_f32(reference - largest), total = fma_rn(sum, by, weight);
    return {div_rn(by, total), (largest + log2_f32(total)) * LN_2};
}

/* Says what becomes of o of rows g and g + 8; is_doubtful: one that sees keys must be taken again. */
struct rows_end {
    float factor[2];
    bool is_empty[2], is_doubtful;
};

/* Writes lse of a row of a tile: -inf or the sink where it sees no key. */
DEVICE void write_lse(const forward_params &p, const query_tile &t, int32_t row, bool is_empty, float lse, float sink)
{
    const float empty_lse = row < t.s.used_q ? sink : -infinity_f32();
    if (p.lse.data != nullptr && row < t.s.seqlen_q)
        store_feature(row_of(p.lse, t.b, t.s.first_q + row, t.head, 1), 0, is_empty ? empty_lse : lse);
}

/* Finds the factors of o and, where keys are not cut, writes lse, beside the last product. A sum that is no number, or
 * so large that a weight may have been too large, is doubtful; so is one whose sink is so far above the reference that
 * the factor may be 0, though weights of up to 2^64 count. */
template <typename T, bool IS_CUT>
DEVICE void end_rows(rows_end &out, softmax_rows &rows, const forward_params &p, const query_tile &t)
{
    const float sink = sink_of(p, t);
    out.is_doubtful = false;
    UNROLL for (int half = 0; half < 2; ++half) {
        const int32_t row = t.first + static_cast<int32_t>(warp() * 16 + lane() / 4) + 8 * half;
        const interval seen = keys_of_row(p, t.s, row);
        const bool is_elsewhere = IS_CUT && (seen.first >= t.keys.last || seen.last <= t.keys.first);
        const bool is_empty = seen.first >= seen.last || is_elsewhere;
        const float most = IS_F16<T> ? infinity_f32() : MOST_WEIGHT<T>;
        const float sum = sum_of_quad(rows.sum[half]);
        const row_results found = end_row(rows.reference[half], sum, sink);
        const bool is_below_sink = is_far<T>(sink * LOG2_E, rows.reference[half]);
        out.is_doubtful |= !is_empty && (is_below_sink || !(rows.sum[half] < most));
        out.is_empty[half] = is_empty;
        out.factor[half] = is_empty ? 0 : found.factor;
        if (IS_CUT) rows.sum[half] = sum;
        else if (lane() % 4 == 0) write_lse(p, t, row, is_empty, found.lse, sink);
    }
}

/* Clears o of rows that see no key, and looks whether one that sees some is no number. */
template <int DIM>
DEVICE void look_at_o(float (&o)[DIM / 2], rows_end &end)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        float zero = 0;
        UNROLL for (int n = 2 * half; n < DIM / 2; n += 4)
            UNROLL for (int e = 0; e < 2; ++e) {
                zero = fma_rn(o[n + e], 0.0f, zero);
                o[n + e] = end.is_empty[half] ? 0 : o[n + e];
            }
        end.is_doubtful |= !end.is_empty[half] && zero != 0;
    }
}

/* ---- parts of keys ----------------------------------------------------------------------------------------------- */

/* Holds what a CTA has of its part of the keys, where tiles were: o before normalisation, and its rows' sums. */
template <typename shape>
struct part_results {
    float o[shape::TILE_Q][shape::DIM_V + 8]; /* so that rows begin in other banks */
    float reference[shape::TILE_Q], sum[shape::TILE_Q];
};

/* Says how two parts of a row are joined, relative to the larger reference: each times its root, twice. */
struct joined_parts {
    float reference, roots[PARTS];
};

INLINE joined_parts join(float reference, float other)
{
    const float largest = max_f32(reference, other); /* of equals each counts as it is: -inf - -inf is no number */
    const float root = reference == largest ? 1 : exp2_f32((reference - largest) / 2);
    return {largest, {root, other == largest ? 1 : exp2_f32((other - largest) / 2)}};
}

/* Weights may be 2^64, so a factor that fp32 does not have may count. */
DEVICE float join(float first, float second, const joined_parts &by)
{
    return first * by.roots[0] * by.roots[0] + second * by.roots[1] * by.roots[1];
}

/* Leaves a consumer's rows in shared memory. All consumers call it. */
template <typename shape>
DEVICE void keep_part(shared_memory<shape> &m, const consumer<shape> &c, uint32_t doubts)
{
    static_assert(sizeof(part_results<shape>) <= offsetof(shared_memory<shape>, q_full), "parts lie where tiles did");
    auto &part = reinterpret_cast<part_results<shape> &>(m);
    named_barrier_sync(ALL_CONSUMERS, shape::CONSUMER_THREADS); /* the last tiles have been read */
    UNROLL for (int half = 0; half < 2; ++half) {
        const unsigned row = warp() * 16 + lane() / 4 + 8 * half, x = lane() % 4 * 2;
        UNROLL for (int n = 0; n < shape::DIM_V / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) part.o[row][8 * n + x + e] = c.o[4 * n + 2 * half + e];
        if (lane() % 4 == 0) part.reference[row] = c.rows.reference[half], part.sum[row] = c.rows.sum[half];
    }
    if (lane() == 0) m.doubts[warp()] = doubts;
}

/* Joins the parts of the cluster's tile and writes its rows, of which each CTA takes some, a warp one after the other.
 * Returns whether a part is in doubt; then nothing is written. */
template <typename shape>
DEVICE uint32_t join_parts(const forward_params &p, const tile_order &order, uint32_t round, shared_memory<shape> &m)
{
    constexpr unsigned WARPS = shape::WARPS;
    auto &own = reinterpret_cast<part_results<shape> &>(m);
    const part_results<shape> *const parts[PARTS] = {cluster_map(&own, 0), cluster_map(&own, 1)};
    uint32_t doubts = 0;
    ROLLED for (unsigned part = 0; part < PARTS; ++part)
        UNROLL for (unsigned w = 0; w < WARPS; ++w) doubts |= cluster_map(&m, part)->doubts[w];
    query_tile t; /* found again: it would cost registers all the while */
    if (doubts != 0 || !find_own_tile<shape>(t, p, order, round)) return doubts;
    ROLLED for (unsigned n = cluster_rank() * WARPS + warp(); n < shape::TILE_Q; n += PARTS * WARPS) {
        const joined_parts joined = join(parts[0]->reference[n], parts[1]->reference[n]);
        const float sum = join(parts[0]->sum[n], parts[1]->sum[n], joined);
        const float sink = sink_of(p, t);
        const int32_t row = t.first + static_cast<int32_t>(n);
        const interval seen = keys_of_row(p, t.s, row);
        const bool is_empty = seen.first >= seen.last;
        const row_results found = end_row(joined.reference, sum, sink);
        if (lane() == 0) write_lse(p, t, row, is_empty, found.lse, sink);
        const row_pointer to = row_of(p.o, t.b, t.s.first_q + row, t.head, row < t.s.seqlen_q ? p.head_dim_v : 0);
        UNROLL for (int i = 0; i < shape::DIM_V / 32; ++i) {
            const int x = 32 * i + static_cast<int>(lane());
            const float o = join(parts[0]->o[n][x], parts[1]->o[n][x], joined);
            if (x < to.length) store_feature(to, x, is_empty ? 0 : o * found.factor);
        }
    }
    return doubts;
}

/* ---- a consumer's tiles ------------------------------------------------------------------------------------------ */

/* Waits for the next tile of query rows. Returns whether there is one. */
template <typename shape>
DEVICE bool await_tile(const consumer<shape> &c, uint32_t rounds, const shared_memory<shape> &m)
{
    mbarrier_wait(&m.q_full[c.q.stage], c.q.parity);
    return m.tiles[c.tile.stage].round < rounds;
}

/* Computes the consumer's rows of all tiles of the CTA before round `end`, or its part of the cluster's one. Returns
 * which rounds are in doubt, bit round % 32. */
template <typename T, typename shape>
DEVICE uint32_t take_tiles(consumer<shape> &c, const forward_params &p, uint32_t end_round, shared_memory<shape> &m)
{
    uint32_t doubts = 0;
    bool is_there = await_tile(c, end_round, m);
    if (!is_there) return 0;
    if (warp() / 4 == shape::CONSUMERS - 1) give_turn<shape::CONSUMERS>(); /* the first turn is the first consumer's */
    ask_first_scores<T>(c, m, true);
    ROLLED while (is_there) {
        const query_tile &t = m.tiles[c.tile.stage];
        wait_for<0>(c.s);
        release(&m.k_free[c.k.stage]);
        step(c.k);
        take_rows<T>(c, p, t, m);
        rows_end end;
        end_rows<T, shape::IS_CUT>(end, c.rows, p, t);
        step(c.tile), step(c.q);
        is_there = await_tile(c, end_round, m);
        ask_first_scores<T>(c, m, is_there);
        end_product<1>(c, m);
        look_at_o<shape::DIM_V>(c.o, end);
        if (ballot(FULL_WARP, end.is_doubtful) != 0) doubts |= 1u << t.round % 32;
        if constexpr (shape::IS_CUT) {
            wait_for<0>(c.s); /* which reads tiles */
            keep_part(m, c, doubts);
        } else {
            write_o<shape::DIM_V>(p, c.o, end.factor, t);
        }
    }
    wait_for<0>(c.s);
    if (warp() / 4 == 0) take_turn(); /* the last one that was given */
    if (shape::IS_CUT) {
        give_back(&m.q_free[c.q.stage]); /* that of the description which ends the tiles */
        step(c.tile), step(c.q);
    }
    return doubts;
}

/* ---- tiles in which something is not finite, or a sink far ------------------------------------------------------- */

/* Returns what the weights of a row are relative to from the first tile on in which it sees keys: their maximum, or
 * what is as far below the sink, in base 2, as may be. */
template <typename T>
DEVICE float first_reference(float max, float of_sink)
{
    return max > -infinity_f32() && is_far<T>(of_sink, max) ? of_sink - FARTHEST_SINK : max;
}

/* Turns scores times c into weights, for 16 rows of a warp: as consumers do where all is finite and no sink is far.
 * kept.max is the reference. Where it would not be finite, or a weight not, it becomes the maximum; beside a score of
 * +inf no other counts. A hidden key's weight is -0, which is UNSEEN once it is rounded. */
template <typename T, int DIM, int KEYS>
DEVICE void weigh_exactly(accumulators<DIM> &kept, exact_scores<KEYS> &scores, float c, float of_sink)
{
    ROLLED for (int half = 0; half < 2; ++half) {
        float max = -infinity_f32();
        ROLLED for (int i = 0; i < KEYS / 4; ++i) max = max_f32(max, scores.at[i / 2][2 * half + i % 2]);
        max = max_of_quad(max);
        const float of_tile = max == -infinity_f32() ? max : c * max, before = kept.max[half];
        float reference = before == -infinity_f32() ? first_reference<T>(of_tile, of_sink) : before;
        float next = reference, root = 1, by = 1, after = 1;
        const bool is_number = reference - reference == 0;
        const float largest = is_number ? exp2_f32(fma_rn(max, c, -reference)) : 0;
        if (of_tile == infinity_f32() || largest == infinity_f32()) {
            reference = next = of_tile;
            root = before == reference ? 1 : exp2_f32((before - reference) / 2); /* as in join() */
        } else if (largest > MOST_WEIGHT<T>) {
            next = moved_reference(reference, largest);
            by = after = exp2_f32(reference - next);
        }
        const bool is_infinite = reference == infinity_f32();
        const float m = reference - reference == 0 ? reference : 0; /* avoids inf - inf */
        float sum[2] = {0, 0};
        ROLLED for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                float &at = scores.at[n][2 * half + e];
                if (is_infinite && at < infinity_f32()) at = -infinity_f32();
                const float weight = exp2_f32(fma_rn(at, is_infinite ? 1 : c, -m));
                at = (scores.seen[half] >> (2 * n + e) & 1) != 0 ? weight : -0.0f;
                at *= after;
                sum[e] += at; /* which may be more than fp32 has at the scale before */
            }
        kept.max[half] = next;
        kept.sum[half] = kept.sum[half] * root * root * by + (sum[0] + sum[1]);
        ROLLED for (int n = 0; n < DIM / 8; ++n)
            UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e) kept.o[n][e] = kept.o[n][e] * root * root * by;
    }
}

/* Writes o and lse of 16 rows of a warp, the first of which is `row` of the sequence. */
template <int DIM>
DEVICE void end_exactly(accumulators<DIM> &kept, const forward_params &p, const query_tile &t, int32_t row)
{
    const int32_t lane_row = row + static_cast<int>(lane()) / 4;
    float factor[2];
    UNROLL for (int half = 0; half < 2; ++half) {
        const interval seen = keys_of_row(p, t.s, lane_row + 8 * half);
        const bool is_empty = seen.first >= seen.last, is_number = kept.max[half] - kept.max[half] == 0;
        const row_results found = end_row(is_number ? kept.max[half] : 0, kept.sum[half], sink_of(p, t));
        clear_empty(kept, half, is_empty);
        factor[half] = is_empty ? 0 : found.factor;
        if (lane() % 4 == 0) write_lse(p, t, lane_row + 8 * half, is_empty, found.lse, sink_of(p, t));
    }
    write_features(p, kept, factor, t.b, t.s.first_q + lane_row, t.s.seqlen_q - lane_row, t.head);
}

/* Joins what is kept of a part of the keys with what is kept of the one before, as join_parts does. */
template <int DIM>
DEVICE void join_exactly(accumulators<DIM> &kept, const accumulators<DIM> &part)
{
    ROLLED for (int half = 0; half < 2; ++half) {
        const joined_parts joined = join(kept.max[half], part.max[half]);
        kept.max[half] = joined.reference;
        kept.sum[half] = join(kept.sum[half], part.sum[half], joined);
        ROLLED for (int n = 0; n < DIM / 8; ++n)
            UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e)
                kept.o[n][e] = join(kept.o[n][e], part.o[n][e], joined);
    }
}

/* Tiles as mma.sync reads them have rows as long as a power of two. */
constexpr int power_of_two(int dim) { return dim <= 64 ? 64 : dim <= 128 ? 128 : 256; }

/* Holds such tiles, where those for wgmma were. */
template <typename shape>
struct exact_memory {
    static constexpr int DIM = power_of_two(shape::DIM), DIM_V = power_of_two(shape::DIM_V);
    uint16_t q[shape::TILE_Q * DIM], k[shape::TILE_K * DIM], v[shape::TILE_K * DIM_V];
};

/* Computes tile `number` one score at a time, by all consumers of a CTA, if kernels of this kind take it. */
template <typename T, typename shape>
DEVICE_CALLED void take_exactly(const forward_params &p, const tile_order &order, uint32_t number, bool cuts,
                                exact_memory<shape> &m)
{
    constexpr int DIM = exact_memory<shape>::DIM, DIM_V = exact_memory<shape>::DIM_V, TILE_K = shape::TILE_K;
    constexpr int TILE_Q = shape::TILE_Q, CONSUMER_THREADS = shape::CONSUMER_THREADS;
    constexpr int COPIERS = 256; /* what loads tiles has powers of two */
    query_tile t;
    if (!find_tile<TILE_Q>(t, p, order, number) || !sees_keys(t) || is_cut(t) != cuts) return;
    score_rule rule = find_score_rule(p, t.b, t.head);
    const float c = rule.scale, of_sink = sink_of(p, t) * LOG2_E, none[2] = {0, 0};
    rule.scale = 1;
    const int32_t warp_row = static_cast<int32_t>(warp()) * 16, row = t.first + warp_row;
    accumulators<DIM_V> kept;
    if (thread_x() < COPIERS)
        load_tile<TILE_Q, DIM, COPIERS>(m.q, p.q, t.b, t.s.first_q + t.first, t.rows, t.head, p.head_dim);
    ROLLED for (unsigned n = 0; n < (cuts ? PARTS : 1); ++n) {
        const interval keys = cuts ? part_of<TILE_K>(t.keys, n) : t.keys;
        accumulators<DIM_V> part = {};
        part.max[0] = part.max[1] = -infinity_f32();
        ROLLED for (int32_t key = keys.first / TILE_K * TILE_K; key < keys.last; key += TILE_K) {
            const int left = keys.last - key;
            if (thread_x() < COPIERS) {
                load_tile<TILE_K, DIM, COPIERS>(m.k, p.k, t.b, t.s.first_k + key, left, t.head_kv, p.head_dim);
                load_tile<TILE_K, DIM_V, COPIERS>(m.v, p.v, t.b, t.s.first_k + key, left, t.head_kv, p.head_dim_v);
                cp_async_wait_all();
            }
            named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS); /* the tiles are complete */
            exact_scores<TILE_K> scores;
            multiply_exactly<T, DIM>(scores, m.q + warp_row * DIM, m.k);
            find_scores(scores, p, rule, t.s, row + static_cast<int>(lane()) / 4,
                        key + static_cast<int>(lane()) % 4 * 2, none);
            weigh_exactly<T>(part, scores, c, of_sink);
            multiply_values_exactly<T, 1>(part, scores, m.v);
            named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS); /* k and v are free */
        }
        UNROLL for (int half = 0; half < 2; ++half) part.sum[half] = sum_of_quad(part.sum[half]);
        if (n == 0) kept = part;
        else join_exactly(kept, part);
    }
    end_exactly(kept, p, t, row);
    named_barrier_sync(ALL_CONSUMERS, CONSUMER_THREADS); /* q is free */
}

/* Takes the tiles of rounds again that some warp has doubts about. All consumers call it. */
template <typename T, typename shape>
DEVICE void take_doubtful_tiles(const forward_params &p, const tile_order &order, uint32_t doubts, uint32_t begin,
                                uint32_t end, shared_memory<shape> &m)
{
    if (lane() == 0) m.doubts[warp()] = doubts;
    named_barrier_sync(ALL_CONSUMERS, shape::CONSUMER_THREADS); /* the last tiles have been read, too */
    uint32_t of_all = 0;
    UNROLL for (const uint32_t of_warp : m.doubts) of_all |= of_warp;
    if (of_all == 0) return;
    using whole = typename shape::whole; /* both kinds of kernels call the same code */
    static_assert(sizeof(exact_memory<whole>) <= offsetof(shared_memory<shape>, q_full), "tiles lie where tiles did");
    auto &tiles = reinterpret_cast<exact_memory<whole> &>(m);
    ROLLED for (uint32_t round = begin; round < end; ++round)
        if ((of_all >> round % 32 & 1) != 0)
            take_exactly<T, whole>(p, order, own_number<shape>(order, round), shape::IS_CUT, tiles);
}

/* A place is full when its bytes have come, or all producer warps have said so, and free when all consumer warps
 * have. */
template <bool BY_MAPS, int READERS, int STAGES>
DEVICE void begin_ring(mbarrier (&full)[STAGES], mbarrier (&free)[STAGES])
{
    UNROLL for (int n = 0; n < STAGES; ++n)
        mbarrier_init(&full[n], BY_MAPS ? 1 : GROUP / 32), mbarrier_init(&free[n], READERS);
}

/* ---- a CTA's tiles ----------------------------------------------------------------------------------------------- */

/* Does what a warp of the producer's group does of whole tiles. */
template <bool BY_MAPS, typename shape>
DEVICE void produce(const forward_params &p, const tma_tensors<3> &maps, const tile_order &order,
                    shared_memory<shape> &m)
{
    producer<shape> at;
    if (!BY_MAPS || thread_x() == shape::CONSUMER_THREADS)
        load_tiles<BY_MAPS>(at, p, maps, order, 0, rounds_of(order), m);
    if (warp() > shape::WARPS) write_empty_tiles<shape>(p, order, warp() - shape::WARPS - 1);
}

/* Does what a warp of a consumer does of them. */
template <typename T, typename shape>
DEVICE void consume(const forward_params &p, const tile_order &order, shared_memory<shape> &m)
{
    consumer<shape> c;
    const uint32_t rounds = rounds_of(order), doubts = take_tiles<T>(c, p, rounds, m);
    take_doubtful_tiles<T>(p, order, doubts, 0, rounds, m);
}

/* Waits for the cluster's other threads. What they have written or read may be loaded anew. */
DEVICE void join_cluster()
{
    fence_proxy_async_shared();
    sync_warp(FULL_WARP);
    cluster_sync();
}

/* Does what a warp of the producer's group does of tiles that are cut: parts lie where the next tile will. */
template <bool BY_MAPS, typename shape>
DEVICE void produce_parts(const forward_params &p, const tma_tensors<3> &maps, const tile_order &order,
                          shared_memory<shape> &m)
{
    producer<shape> at;
    ROLLED for (uint32_t round = 0; round < own_rounds<shape>(order); ++round) {
        if (!has_own_tile<shape>(p, order, round)) continue; /* nor does the cluster's other CTA take one */
        if (!BY_MAPS || thread_x() == shape::CONSUMER_THREADS)
            load_tiles<BY_MAPS>(at, p, maps, order, round, round + 1, m);
        UNROLL for (int n = 0; n < 3; ++n) join_cluster();
    }
}

/* Does what a warp of a consumer does of them. The cluster's first CTA takes a tile again that is in doubt. */
template <typename T, typename shape>
DEVICE void consume_parts(const forward_params &p, const tile_order &order, shared_memory<shape> &m)
{
    consumer<shape> c;
    ROLLED for (uint32_t round = 0; round < own_rounds<shape>(order); ++round) {
        if (!has_own_tile<shape>(p, order, round)) continue;
        take_tiles<T>(c, p, round + 1, m);
        join_cluster(); /* both parts are there */
        const uint32_t doubts = join_parts(p, order, round, m);
        join_cluster(); /* they have been read */
        if (cluster_rank() == 0 && doubts != 0) take_doubtful_tiles<T>(p, order, doubts, round, round + 1, m);
        join_cluster(); /* tiles are free */
    }
}

template <typename T, typename shape, bool BY_MAPS>
KERNEL(shape::THREADS, 1) void forward_sm90_kernel(GRID_CONSTANT const forward_params p,
                                                   GRID_CONSTANT const tma_tensors<3> maps, const tile_order order)
{
    constexpr int WARPS = shape::WARPS;
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    auto &m = *reinterpret_cast<shared_memory<shape> *>(shared);
    if (thread_x() == 0) {
        begin_ring<BY_MAPS, WARPS>(m.q_full, m.q_free);
        begin_ring<BY_MAPS, WARPS>(m.k_full, m.k_free), begin_ring<BY_MAPS, WARPS>(m.v_full, m.v_free);
        fence_mbarrier_init();
    }
    sync_threads(); /* the barriers are there */
    if (thread_x() >= shape::CONSUMER_THREADS) {
        setmaxnreg_dec<shape::REGISTERS_OF_PRODUCER>();
        if constexpr (shape::IS_CUT) produce_parts<BY_MAPS>(p, maps, order, m);
        else produce<BY_MAPS>(p, maps, order, m);
    } else {
        setmaxnreg_inc<shape::REGISTERS_OF_CONSUMERS>();
        if constexpr (shape::IS_CUT) consume_parts<T>(p, order, m);
        else consume<T>(p, order, m);
    }
}

template <typename T, typename shape>
int launch_kernel(const forward_params &p, const tile_order &order, const launch_shape &grid, void *stream)
{
    tma_tensors<3> maps = {};
    if (encode_tensors<shape>(maps, p))
        return LAUNCH((forward_sm90_kernel<T, shape, true>), grid, stream, p, maps, order);
    return LAUNCH((forward_sm90_kernel<T, shape, false>), grid, stream, p, maps, order);
}

/* Launches the kernel of whole tiles, and that of tiles that are cut, unless the host knows that one has none. */
template <typename T, typename shape>
int launch(const forward_params &p, void *stream)
{
    const bool is_ragged = p.cu_seqlens_q != nullptr, has_any_rows = is_ragged || p.seqused_q != nullptr;
    const bool has_any_keys = is_ragged || p.seqused_k != nullptr || p.window_left >= 0 || p.window_right >= 0;
    const int64_t keys = is_ragged && p.rows_k < p.seqlen_k ? p.rows_k : p.seqlen_k;
    const bool may_cut = keys >= LEAST_KEYS_CUT && (has_any_rows || p.seqlen_q <= MOST_ROWS_CUT);
    const unsigned sms = launch_num_sms(stream), ctas = sms < 1 ? 1 : sms;
    int error = 0;
    if (!may_cut || has_any_rows || has_any_keys) {
        const tile_order order = order_of<shape::TILE_Q>(p, p.seqlen_q);
        const launch_shape grid = {{ctas < order.total ? ctas : order.total, 1, 1}, {shape::THREADS, 1, 1}, {1, 1, 1},
                                   sizeof(shared_memory<shape>), shape::THREADS, 1};
        error = launch_kernel<T, shape>(p, order, grid, stream);
    }
    if (may_cut && error == 0) {
        const tile_order order = order_of<shape::TILE_Q>(p, MOST_ROWS_CUT);
        const unsigned most = ctas < PARTS ? 1 : ctas / PARTS, clusters = order.total < most ? order.total : most;
        const launch_shape grid = {{clusters * PARTS, 1, 1}, {shape::THREADS, 1, 1}, {PARTS, 1, 1},
                                   sizeof(shared_memory<cut<shape>>), shape::THREADS, 1};
        if (clusters > 0) error = launch_kernel<T, cut<shape>>(p, order, grid, stream);
    }
    return error;
}

template <typename T>
int launch_width(const forward_params &p, void *stream)
{
    const int widest = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    if (widest <= 64) return launch<T, shape<64, 64>>(p, stream);
    if (widest <= 96) return launch<T, shape<96, 96>>(p, stream);
    if (widest <= 128) return launch<T, shape<128, 128>>(p, stream);
    if (widest > 192) return launch<T, shape<256, 256>>(p, stream);
    if (p.head_dim_v <= 128) return launch<T, shape<192, 128>>(p, stream);
    return launch<T, shape<192, 192>>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(forward_sm90)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

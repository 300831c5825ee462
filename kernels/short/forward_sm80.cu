/* forward_sm80.cu - attention forward of whole short sequences on tensor cores, for every GPU since 2020.
 *
 *     o = softmax(scores over visible keys) v,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp16 and bf16, at most 128 rows and keys in use, of heads of more than 128 features 64, and every feature of
 * lib/contract.md: shared/scores.h says what a score is. Memory is what such problems wait for: every byte is read once
 * and written once, and arithmetic has time to keep what 16 bits lose of p, in a second number of 16 bits.
 *
 * Grid    x: problems, one for each sequence and query head
 * Block   a warp for each 16 rows: 4 warps for one problem of at most 64 rows and keys or two of at most 32, else 8
 * Shared  q, k and v of each problem; problem descriptors: where a problem's rows are, found by one lane for all
 * Phases  problem descriptors; load q, k and v; for each 64 keys: s = q k^T, softmax, o += p v; write o
 *
 * Several CTAs share an SM: some wait for their rows while others compute. shared/online_softmax.h has the arithmetic,
 * that of long/forward_sm80.cu in tiles of 64 keys; kernels/short/short.md the figures, reference/bounds.md section 11
 * what it may be off by. */
#include "kernels/shared/online_softmax.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"

namespace {

/* A problem descriptor holds what a problem's threads know of it. */
struct general_problem {
    sequence s;
    row_pointer q, k, v, o, lse; /* their first rows */
    int64_t b;
    int32_t head;
    bool is_ours;
    bool is_whole; /* no row or key of the tiles is missing, and no window hides one */
};

/* A problem has MOST rows and keys. */
template <int DIMENSIONS, int MOST>
struct shape {
    static constexpr int DIM = DIMENSIONS, KEYS = MOST, TILE_K = KEYS < 64 ? KEYS : 64;
    static constexpr int WARPS = KEYS / 16, PROBLEMS = WARPS < 4 ? 4 / WARPS : 1; /* of a problem; of a CTA */
    static constexpr int THREADS = 32 * WARPS * PROBLEMS;
    /* This many CTAs share an SM, as measured: more of them hide latency, even where a few registers are spilled for
     * that. */
    static constexpr int NARROW = KEYS <= 32 ? (DIM <= 32 ? 8 : 6) : KEYS <= 64 ? (DIM <= 32 ? 6 : 5) : 2;
    static constexpr int MIN_BLOCKS = DIM <= 64 ? NARROW : KEYS > 64 ? 1 : DIM <= 128 ? 3 : 2;
    static constexpr int NUMBERS = 3 * KEYS * DIM; /* of q, k and v of a problem in shared memory */
    static constexpr int SHARED_BYTES = PROBLEMS * (NUMBERS * 2 + static_cast<int>(sizeof(general_problem)));
};

DEVICE general_problem find_problem(const forward_params &p, unsigned problem, int most)
{
    general_problem c = {};
    const unsigned b = quotient(problem, p.by_heads_q), head = problem - b * p.by_heads_q.by;
    c.b = b, c.head = static_cast<int32_t>(head);
    if (b >= p.batch) return c;
    c.s = find_sequence(p, b);
    c.is_ours = is_ours(p, c.s);
    c.is_whole = c.s.used_q == most && c.s.used_k == most && p.window_left < 0 && p.window_right < 0;
    const unsigned head_kv = quotient(head, p.by_group);
    c.q = row_of(p.q, b, c.s.first_q, head, p.head_dim);
    c.k = row_of(p.k, b, c.s.first_k, head_kv, p.head_dim);
    c.v = row_of(p.v, b, c.s.first_k, head_kv, p.head_dim_v);
    c.o = row_of(p.o, b, c.s.first_q, head, p.head_dim_v);
    if (p.lse.data != nullptr) c.lse = row_of(p.lse, b, c.s.first_q, head, 1);
    return c;
}

DEVICE row_pointer row_at(row_pointer first, const row_tensor &t, int row)
{
    first.data += row * t.seqlen * (t.dtype == ATTEST_FP32 ? 4 : 2);
    return first;
}

/* Writes (0, -inf) to rows from `first` on that no tile holds, as they are past the last in use. One warp does it. */
DEVICE void write_empty_rows(const forward_params &p, const general_problem &c, int first)
{
    ROLLED for (int row = first; row < c.s.seqlen_q; ++row) {
        const row_pointer o = row_at(c.o, p.o, row);
        ROLLED for (int x = static_cast<int>(lane()); x < p.head_dim_v; x += 32) store_feature(o, x, 0);
        if (p.lse.data != nullptr && lane() == 0) store_feature(row_at(c.lse, p.lse, row), 0, -infinity_f32());
    }
}

/* Loads q, k and v of a problem to its places in shared memory, by its own threads. */
template <typename shape>
DEVICE void load_problem(uint16_t *q, const forward_params &p, const general_problem &c, unsigned thread)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS, THREADS = 32 * shape::WARPS;
    uint16_t *const k = q + KEYS * DIM, *const v = k + KEYS * DIM;
    if (!c.is_ours) return;
    load_rows<KEYS, DIM, THREADS>(q, c.q, p.q.seqlen * 2, p.q.by_eight != 0, c.s.used_q, thread);
    load_rows<KEYS, DIM, THREADS>(k, c.k, p.k.seqlen * 2, p.k.by_eight != 0, c.s.used_k, thread);
    load_rows<KEYS, DIM, THREADS>(v, c.v, p.v.seqlen * 2, p.v.by_eight != 0, c.s.used_k, thread);
}

/* The epilogue finds factors of o, and lse, of a lane's rows: o = sum p v / sum p, lse = ln 2 (m + log2 sum p); (0,
 * -inf or the sink) where no key is seen. */
template <int DIM, bool PLAIN>
DEVICE void end_rows(row_factors<1> &factor, accumulators<DIM> (&kept)[1], const forward_params &p,
                     const general_problem &c, const row_references<1> &reference, int32_t lane_row, float sink,
                     bool is_whole)
{
    const sequence &s = c.s;
    row_pointer lse_of_row = row_at(c.lse, p.lse, lane_row);
    UNROLL for (int half = 0; half < 2; ++half) {
        const int32_t row = lane_row + 8 * half;
        const float sum = sum_of_quad(kept[0].sum[half]);
        bool is_empty = false;
        if (!is_whole) {
            const interval seen = keys_of_row(p, s, row);
            is_empty = seen.first >= seen.last;
            if (!PLAIN) {
                const uint32_t any = kept[0].any[half] | shfl_xor(FULL_WARP, kept[0].any[half], 1);
                is_empty = (any | shfl_xor(FULL_WARP, any, 2)) == 0;
            }
            clear_empty(kept[0], half, is_empty);
        }
        factor[0][half] = is_empty ? 0 : p.dropout_multiplier * rcp_f32(sum);
        const float empty_lse = row < s.used_q ? sink : -infinity_f32();
        float lse = is_empty ? empty_lse : (kept[0].max[half] + log2_f32(sum)) * LN_2;
        if (!PLAIN && !is_empty) lse += reference[0][half];
        if (p.lse.data != nullptr && row < s.seqlen_q && lane() % 4 == 0) store_feature(lse_of_row, 0, lse);
        lse_of_row.data += 8 * p.lse.seqlen * 4;
    }
}

/* Computes a warp's rows warp_row .. warp_row + 15 of a problem whose q, k and v are complete. */
template <typename T, typename shape, bool PLAIN>
DEVICE void take_warp_rows(const forward_params &p, const general_problem &c, uint16_t *q, int warp_row)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS, TILE_K = shape::TILE_K;
    const uint16_t *const k = q + KEYS * DIM, *const v = k + KEYS * DIM;
    const sequence &s = c.s;
    const int32_t lane_row = warp_row + static_cast<int>(lane()) / 4;
    const bool is_whole = PLAIN && c.is_whole;
    tile_keys keys = {{0, KEYS}, {0, KEYS}};
    if (!is_whole) keys = keys_of_rows(p, s, warp_row, s.used_q < warp_row + 16 ? s.used_q : warp_row + 16);
    score_rule rule = {};
    float factor_of_dot = p.softmax_scale * LOG2_E; /* scores are that times q . k, or, not linear in it, in rule */
    if (!PLAIN) {
        rule = find_score_rule(p, c.b, c.head);
        const bool is_linear = p.bias.data == nullptr && p.alibi_slopes == nullptr && p.softcap == 0 && rule.scale >= 0;
        factor_of_dot = is_linear ? rule.scale : 1;
        if (is_linear) rule.scale = 1;
    }
    const float sink = !PLAIN && p.sink != nullptr ? p.sink[c.head] : -infinity_f32();
    accumulators<DIM> kept[1];
    row_references<1> reference = {};
    do {
        begin_rows(kept, reference, sink);
        ROLLED for (int key = 0; key < KEYS; key += TILE_K) {
            if (!touches(keys.some, key, TILE_K)) continue;
            score_block<TILE_K> scores[1];
            multiply_q_k<T, DIM>(scores, q, warp_row, k + key * DIM);
            const int32_t lane_key = key + static_cast<int>(lane()) % 4 * 2;
            bool is_finite = true; /* whether v is; asked where not every row sees all of it */
            if (PLAIN && contains(keys.all, key, TILE_K)) {
                softmax_step<false>(kept, scores, factor_of_dot);
            } else {
                if (PLAIN) {
                    hide_keys(p, s, scores[0], lane_row, lane_key);
                } else {
                    find_scores(p, rule, s, scores[0], lane_row, lane_key, reference[0]);
                    kept[0].any[0] |= scores[0].seen[0], kept[0].any[1] |= scores[0].seen[1];
                }
                softmax_step<true>(kept, scores, factor_of_dot);
                if (!PLAIN && p.dropout_threshold != 0) drop_keys(scores[0]);
                is_finite = is_tile_finite<T, TILE_K, DIM>(v + key * DIM);
            }
            if (is_finite) multiply_p_v<T, 2>(kept, scores, v + key * DIM);
            else multiply_p_v_seen<T, 2, 16>(kept, scores, v + key * DIM);
        }
    } while (!PLAIN && find_references(reference, kept, p, rule, s, lane_row, sink));
    row_factors<1> factor;
    end_rows<DIM, PLAIN>(factor, kept, p, c, reference, lane_row, sink, is_whole);
    sync_warp(FULL_WARP); /* the warp's rows of q have been read */
    write_o_16<T>(p.o, kept, factor, q + warp_row * DIM, row_at(c.o, p.o, warp_row), s.seqlen_q - warp_row);
    if (warp_row + 16 == KEYS) write_empty_rows(p, c, KEYS);
}

template <typename T, typename shape, bool PLAIN>
KERNEL(shape::THREADS, PLAIN ? shape::MIN_BLOCKS : 1) void short_forward_sm80_kernel(const forward_params p)
{
    DYNAMIC_SHARED(shared, 16);
    const unsigned place = warp() / shape::WARPS, thread = thread_x() % (32 * shape::WARPS); /* of and in a problem */
    uint16_t *const q = reinterpret_cast<uint16_t *>(shared) + place * shape::NUMBERS;
    unsigned char *const after_tiles = shared + shape::PROBLEMS * shape::NUMBERS * sizeof(uint16_t);
    general_problem *const problems = reinterpret_cast<general_problem *>(after_tiles);
    if (thread == 0) problems[place] = find_problem(p, block_x() * shape::PROBLEMS + place, shape::KEYS);
    sync_threads();
    const general_problem &c = problems[place];
    load_problem<shape>(q, p, c, thread);
    cp_async_wait_all();
    sync_threads(); /* q, k and v are complete */
    if (c.is_ours) take_warp_rows<T, shape, PLAIN>(p, c, q, static_cast<int>(warp() % shape::WARPS) * 16);
}

template <typename T, int DIM, int KEYS, bool PLAIN>
int launch(const forward_params &p, void *stream)
{
    using shape = shape<DIM, KEYS>;
    const int64_t problems = p.batch * p.num_heads_q;
    const launch_shape grid = {{static_cast<unsigned>((problems + shape::PROBLEMS - 1) / shape::PROBLEMS), 1, 1},
                               {shape::THREADS, 1, 1}, {1, 1, 1}, shape::SHARED_BYTES, shape::THREADS,
                               PLAIN ? shape::MIN_BLOCKS : 1};
    return LAUNCH((short_forward_sm80_kernel<T, shape, PLAIN>), grid, stream, p);
}

template <typename T, bool PLAIN, int KEYS>
int launch_width(const forward_params &p, void *stream)
{
    const int widest = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    if constexpr (PLAIN && KEYS <= 64)
        if (widest <= 32) return launch<T, 32, KEYS, PLAIN>(p, stream);
    if constexpr (PLAIN || KEYS > 64) {
        if (widest <= 64) return launch<T, 64, KEYS, PLAIN>(p, stream);
        if (widest <= 128) return launch<T, 128, KEYS, PLAIN>(p, stream);
    }
    return launch<T, KEYS <= 64 ? 256 : 128, KEYS, PLAIN>(p, stream); /* no problem of more than 64 rows is wider */
}

/* The maximum of plain scores is c times that of the dot products: c may not be negative. */
template <typename T>
int launch_scores(const forward_params &p, void *stream)
{
    const int longest = longest_of(p);
    const bool is_plain = has_plain_scores(p) && p.softmax_scale >= 0 && p.sink == nullptr;
    if (is_plain && longest <= 32) return launch_width<T, true, 32>(p, stream);
    if (is_plain && longest <= 64) return launch_width<T, true, 64>(p, stream);
    if (is_plain) return launch_width<T, true, 128>(p, stream);
    if (p.head_dim > 128 || p.head_dim_v > 128) return launch_width<T, false, 64>(p, stream);
    return launch_width<T, false, 128>(p, stream); /* fewer instances: they take long to compile */
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_forward_sm80)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_scores<f16>(*p, stream);
    return launch_scores<bf16>(*p, stream);
}

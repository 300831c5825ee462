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
 * Phases  problem descriptors; load q, k and v, masks and biases; for each 64 keys: s = q k^T, scores, softmax, o += p
 *         v; write o
 *
 * Several CTAs share an SM: some wait for their rows while others compute. shared/online_softmax.h has the arithmetic,
 * that of long/forward_sm80.cu in tiles of 64 keys; kernels/short/short.md the figures, reference/bounds.md section 11
 * what it may be off by. */
#include "kernels/shared/online_softmax.h"
#include "kernels/shared/exact_rows.h"
#include "kernels/shared/params.h"
#include "kernels/shared/score_stage.h"
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
template <int DIMENSIONS, int MOST, unsigned HAS>
struct shape {
    static constexpr unsigned FEATURES = HAS;
    static constexpr bool PLAIN = FEATURES == 0;
    static constexpr int DIM = DIMENSIONS, KEYS = MOST, TILE_K = KEYS < 64 ? KEYS : 64;
    static constexpr int WARPS = KEYS / 16, PROBLEMS = WARPS < 4 ? 4 / WARPS : 1; /* of a problem; of a CTA */
    static constexpr int THREADS = 32 * WARPS * PROBLEMS;
    /* This many CTAs share an SM, as measured: more of them hide latency, even where a few registers are spilled for
     * that. */
    static constexpr int NARROW = KEYS <= 32 ? (DIM <= 32 ? 8 : 6) : KEYS <= 64 ? (DIM <= 32 ? 6 : 5) : 2;
    static constexpr int PLAIN_BLOCKS = DIM <= 64 ? NARROW : KEYS > 64 ? 1 : DIM <= 128 ? 3 : 2;
    static constexpr int ANY_BLOCKS = DIM <= 64 ? (KEYS <= 64 ? 4 : 2) : DIM <= 128 && KEYS <= 64 ? 3 : 1;
    static constexpr int MIN_BLOCKS = PLAIN ? PLAIN_BLOCKS : ANY_BLOCKS;
    static constexpr int NUMBERS = 3 * KEYS * DIM; /* of q, k and v of a problem in shared memory */
    static constexpr int DESCRIPTORS = (PROBLEMS * static_cast<int>(sizeof(general_problem)) + 15) / 16 * 16;
    static constexpr int SHARED_BYTES = PROBLEMS * NUMBERS * 2 + DESCRIPTORS;
};

INLINE general_problem find_problem(const forward_params &p, unsigned problem, int most)
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

INLINE row_pointer row_at(row_pointer first, const row_tensor &t, int row)
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

template <typename shape>
using stages_of = score_stages<shape::KEYS, shape::KEYS, 1>;

/* Loads q, k and v of a problem, and its masks and biases, to their places in shared memory, by its own threads. */
template <typename shape>
DEVICE void load_problem(uint16_t *q, unsigned char *of_scores, bool has_stages, const forward_params &p,
                         const general_problem &c, unsigned thread)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS, THREADS = 32 * shape::WARPS;
    uint16_t *const k = q + KEYS * DIM, *const v = k + KEYS * DIM;
    if (!c.is_ours) return;
    load_rows<KEYS, DIM, THREADS>(q, c.q, p.q.seqlen * 2, p.q.by_eight != 0, c.s.used_q, thread);
    load_rows<KEYS, DIM, THREADS>(k, c.k, p.k.seqlen * 2, p.k.by_eight != 0, c.s.used_k, thread);
    load_rows<KEYS, DIM, THREADS>(v, c.v, p.v.seqlen * 2, p.v.by_eight != 0, c.s.used_k, thread);
    if (shape::PLAIN || !has_stages) return;
    const auto stages = find_score_stages<stages_of<shape>>(p, find_score_rule(p, c.b, c.head), of_scores, true);
    load_masks<THREADS>(stages, 0, 0, c.s.used_q, 0, c.s.used_k, thread);
    load_biases<THREADS>(stages, p.bias.dtype, 0, c.s.used_q, 0, c.s.used_k, thread);
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
            is_empty = seen.first >= seen.last || (!PLAIN && kept[0].any[half] == 0);
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

/* Says how a warp takes its rows: 16 of them from `row` on. */
struct warp_rows {
    int row;
    tile_keys keys;
    score_rule rule;
    float c, sink; /* scores are c times q . k, or, not linear in it, in rule */
};

template <typename shape>
INLINE warp_rows find_warp_rows(const forward_params &p, const general_problem &c, int row)
{
    warp_rows w = {row, {{0, shape::KEYS}, {0, shape::KEYS}}, {}, p.softmax_scale * LOG2_E, -infinity_f32()};
    const int last = c.s.used_q < row + 16 ? c.s.used_q : row + 16;
    if (!(shape::PLAIN && c.is_whole)) w.keys = keys_of_rows(p, c.s, row, last);
    if (p.sink != nullptr) w.sink = p.sink[c.head];
    if (shape::PLAIN) return w;
    score_rule rule = find_score_rule(p, c.b, c.head);
    w.c = take_factor(rule, p);
    w.rule = only<shape::FEATURES>(rule);
    return w;
}

/* Takes keys key .. key + TILE_K - 1 of plain scores. */
template <typename T, typename shape>
DEVICE void take_plain_keys(const forward_params &p, const general_problem &c, const warp_rows &w,
                            accumulators<shape::DIM> (&kept)[1], score_block<shape::TILE_K> (&scores)[1], int key,
                            const uint16_t *v)
{
    constexpr int DIM = shape::DIM, TILE_K = shape::TILE_K;
    const int lane_row = w.row + static_cast<int>(lane()) / 4, lane_key = key + static_cast<int>(lane()) % 4 * 2;
    bool is_finite = true; /* whether v is; asked where not every row sees all of it */
    if (contains(w.keys.all, key, TILE_K)) {
        softmax_step<false>(kept, scores, w.c);
    } else {
        hide_keys(p, c.s, scores[0], lane_row, lane_key);
        softmax_step<true>(kept, scores, w.c);
        is_finite = is_tile_finite<T, TILE_K, DIM>(v);
    }
    if (is_finite) multiply_p_v<T, 2>(kept, scores, v);
    else multiply_p_v_seen<T, 2, 16>(kept, scores, v);
}

/* Takes them of any scores. */
template <typename T, typename shape>
DEVICE void take_keys(const forward_params &p, const general_problem &c, const warp_rows &w,
                      const stages_of<shape> &stages, accumulators<shape::DIM> (&kept)[1],
                      score_block<shape::TILE_K> (&scores)[1], const row_references<1> &reference, bool is_blocked,
                      int key, const uint16_t *v)
{
    constexpr int TILE_K = shape::TILE_K;
    const fragment_place at = place_of_lane(w.row, key, w.row, key);
    const fragment_cut cut = {!contains(w.keys.all, key, TILE_K), is_blocked};
    constexpr unsigned FEATURES = shape::FEATURES;
    const bool has_references =
        (FEATURES & HAS_BIAS) != 0 && ballot(FULL_WARP, reference[0][0] != 0 || reference[0][1] != 0) != 0;
    find_fragment_scores<FEATURES, TILE_K>(scores[0].s, stages, 0, p, w.rule, c.s, at, cut, reference[0],
                                           has_references);
    softmax_step<false>(kept, scores, w.c);
    if ((FEATURES & HAS_DROPOUT) != 0 && p.dropout_threshold != 0)
        drop_weights<TILE_K>(scores[0].s, w.rule, p.q_start + at.row, (p.k_start + key) / 8, p.dropout_threshold);
    multiply_p_v<T, 2>(kept, scores, v);
}

/* Takes all keys of a warp's rows. Returns whether there were some that lengths, window and block mask do not hide. */
template <typename T, typename shape>
DEVICE bool walk(const forward_params &p, const general_problem &c, const warp_rows &w, const uint16_t *q,
                 const stages_of<shape> &stages, accumulators<shape::DIM> (&kept)[1],
                 const row_references<1> &reference)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS, TILE_K = shape::TILE_K;
    const uint16_t *const k = q + KEYS * DIM, *const v = k + KEYS * DIM;
    seen_tiles seen = {0, ~0u, ~0u, ~0u};
    if (!shape::PLAIN && w.rule.block_mask != nullptr) {
        const int rows = c.s.used_q - w.row < 16 ? c.s.used_q - w.row : 16;
        seen = look_at_blocks<TILE_K>(p, w.rule, w.row, rows, 0, c.s.used_k);
    }
    bool has_taken = false;
    begin_rows(kept, reference, w.sink);
    ROLLED for (int key = 0; key < KEYS; key += TILE_K) {
        if (!touches(w.keys.some, key, TILE_K) || (seen.some >> key / TILE_K & 1) == 0) continue;
        has_taken = true;
        score_block<TILE_K> scores[1];
        multiply_q_k<T, DIM>(scores, q, w.row, k + key * DIM);
        const bool is_blocked = (seen.all >> key / TILE_K & 1) == 0;
        if constexpr (shape::PLAIN) take_plain_keys<T, shape>(p, c, w, kept, scores, key, v + key * DIM);
        else take_keys<T, shape>(p, c, w, stages, kept, scores, reference, is_blocked, key, v + key * DIM);
    }
    return has_taken;
}

/* Writes a warp's rows of o, by way of its rows of q, and lse. */
template <typename T, typename shape>
DEVICE void end_warp_rows(accumulators<shape::DIM> (&kept)[1], const forward_params &p, const general_problem &c,
                          const warp_rows &w, const row_references<1> &reference, uint16_t *q)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS;
    row_factors<1> factor;
    end_rows<DIM, shape::PLAIN>(factor, kept, p, c, reference, w.row + static_cast<int>(lane()) / 4, w.sink,
                                shape::PLAIN && c.is_whole);
    sync_warp(FULL_WARP); /* the warp's rows of q have been read */
    write_o_16<T>(p.o, kept, factor, q + w.row * DIM, row_at(c.o, p.o, w.row), c.s.seqlen_q - w.row);
    if (w.row + 16 == KEYS) write_empty_rows(p, c, KEYS);
}

/* Computes a warp's rows from `row` on one score at a time; again where biases alone make a row's maximum large, with
 * the largest of them subtracted. */
template <typename T, typename shape>
DEVICE_CALLED void take_warp_rows_exactly(const forward_params &p, const general_problem &c, uint16_t *q, int row)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS, TILE_K = shape::TILE_K;
    const uint16_t *const k = q + KEYS * DIM, *const v = k + KEYS * DIM;
    const warp_rows w = find_warp_rows<shape>(p, c, row);
    const int lane_row = row + static_cast<int>(lane()) / 4;
    accumulators<DIM> kept[1];
    row_references<1> reference = {};
    for (bool is_asked = true; is_asked;) {
        begin_rows(kept, reference, w.sink);
        ROLLED for (int key = 0; key < KEYS; key += TILE_K)
            if (touches(w.keys.some, key, TILE_K))
                take_keys_exactly<T, 2, TILE_K>(kept[0], p, w.rule, c.s, w.c, reference[0], q + row * DIM,
                                                k + key * DIM, v + key * DIM, lane_row,
                                                key + static_cast<int>(lane()) % 4 * 2);
        join_quads(kept);
        is_asked = find_references(reference, kept, p, w.rule, c.s, lane_row, w.sink);
    }
    row_factors<1> factor;
    end_rows<DIM, shape::PLAIN>(factor, kept, p, c, reference, lane_row, w.sink, false);
    write_features(p, kept[0], factor[0], c.b, c.s.first_q + lane_row, c.s.seqlen_q - lane_row, c.head);
    if (row + 16 == KEYS) write_empty_rows(p, c, KEYS);
}

/* Computes a warp's rows row .. row + 15 of a problem whose tiles are complete. Fragments are taken again, with the
 * largest bias subtracted, where biases alone make a row's maximum large, and one score at a time where a number is not
 * finite. */
template <typename T, typename shape>
DEVICE void take_warp_rows(const forward_params &p, const general_problem &c, uint16_t *q, unsigned char *of_scores,
                           bool has_stages, int row)
{
    const warp_rows w = find_warp_rows<shape>(p, c, row);
    accumulators<shape::DIM> kept[1];
    row_references<1> reference = {};
    if constexpr (shape::PLAIN) {
        walk<T, shape>(p, c, w, q, {}, kept, reference);
    } else {
        const auto stages = find_score_stages<stages_of<shape>>(p, w.rule, of_scores, has_stages);
        bool is_exact = !fits_fragments(p, c.s, row, 16, {0, shape::KEYS}, has_stages), is_asked = !is_exact;
        while (is_asked) {
            const bool has_taken = walk<T, shape>(p, c, w, q, stages, kept, reference);
            join_quads(kept);
            if (has_taken) look_for_keys(kept, p, c.s, c.b, c.head, row);
            is_asked = find_references(reference, kept, p, w.rule, c.s, row + static_cast<int>(lane()) / 4, w.sink);
            const doubts found = find_doubts(kept);
            is_exact = found.is_infinite || (found.is_low && !is_asked);
            is_asked &= !is_exact;
        }
        if (is_exact) return take_warp_rows_exactly<T, shape>(p, c, q, row);
    }
    end_warp_rows<T, shape>(kept, p, c, w, reference, q);
}

template <typename T, typename shape>
KERNEL(shape::THREADS, shape::MIN_BLOCKS) void short_forward_sm80_kernel(GRID_CONSTANT const forward_params p,
                                                                          bool has_stages)
{
    DYNAMIC_SHARED(shared, 16);
    const unsigned place = warp() / shape::WARPS, thread = thread_x() % (32 * shape::WARPS); /* of and in a problem */
    const auto parts = cut_shared(shared, shape::PROBLEMS * shape::NUMBERS * sizeof(uint16_t), shape::DESCRIPTORS,
                                  SHARED_REST);
    uint16_t *const q = reinterpret_cast<uint16_t *>(parts.at[0]) + place * shape::NUMBERS;
    general_problem *const problems = reinterpret_cast<general_problem *>(parts.at[1]);
    unsigned char *const of_scores = parts.at[2];
    if (thread == 0) problems[place] = find_problem(p, block_x() * shape::PROBLEMS + place, shape::KEYS);
    sync_threads();
    const general_problem &c = problems[place];
    load_problem<shape>(q, of_scores, has_stages, p, c, thread);
    cp_async_wait_all();
    sync_threads(); /* the tiles are complete */
    const int row = static_cast<int>(warp() % shape::WARPS) * 16;
    if (c.is_ours) take_warp_rows<T, shape>(p, c, q, of_scores, has_stages, row);
}

template <typename T, typename shape>
int launch(const forward_params &p, void *stream)
{
    const int64_t problems = p.batch * p.num_heads_q;
    static_assert(shape::PLAIN || shape::PROBLEMS == 1, "there is one problem's stages");
    const size_t of_scores = shape::PLAIN ? 0 : bytes_of_stages<stages_of<shape>>(p, shape::SHARED_BYTES, stream);
    const launch_shape grid = {{static_cast<unsigned>((problems + shape::PROBLEMS - 1) / shape::PROBLEMS), 1, 1},
                               {shape::THREADS, 1, 1}, {1, 1, 1}, shape::SHARED_BYTES + of_scores,
                               shape::THREADS, shape::MIN_BLOCKS};
    return LAUNCH((short_forward_sm80_kernel<T, shape>), grid, stream, p, of_scores != 0);
}

/* KEYS is 64 or 128: fewer instances, as they take long to compile. */
template <typename T, int DIM, int KEYS>
int launch_features(const forward_params &p, void *stream)
{
    const unsigned features = p.softmax_scale > 0 ? features_of(p) : EVERY_FEATURE;
    if constexpr (DIM <= 128) {
        if (features == HAS_MASKS) return launch<T, shape<DIM, KEYS, HAS_MASKS>>(p, stream);
        if ((features & ~(HAS_MASKS | HAS_BIAS)) == 0)
            return launch<T, shape<DIM, KEYS, HAS_MASKS | HAS_BIAS>>(p, stream);
    }
    return launch<T, shape<DIM, KEYS, EVERY_FEATURE>>(p, stream);
}

template <typename T, int DIM, int KEYS>
int launch_plain(const forward_params &p, void *stream)
{
    return launch<T, shape<DIM, KEYS, 0>>(p, stream);
}

/* The maximum of plain scores is c times that of the dot products: c may not be negative. No problem of more than 64
 * rows is wider than 128 features. */
template <typename T, int KEYS>
int by_width(const forward_params &p, void *stream)
{
    const int widest = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    const bool is_plain = has_plain_scores(p) && p.softmax_scale >= 0;
    constexpr int GENERAL = KEYS < 64 ? 64 : KEYS;
    if (!is_plain && widest <= 64) return launch_features<T, 64, GENERAL>(p, stream);
    if (!is_plain && (widest <= 128 || KEYS > 64)) return launch_features<T, 128, GENERAL>(p, stream);
    if constexpr (KEYS <= 64) {
        if (!is_plain) return launch_features<T, 256, GENERAL>(p, stream);
        if (widest <= 32) return launch_plain<T, 32, KEYS>(p, stream);
        if (widest > 128) return launch_plain<T, 256, KEYS>(p, stream);
    }
    return widest <= 64 ? launch_plain<T, 64, KEYS>(p, stream) : launch_plain<T, 128, KEYS>(p, stream);
}

template <typename T>
int by_length(const forward_params &p, void *stream)
{
    const int longest = longest_of(p);
    if (longest <= 32) return by_width<T, 32>(p, stream);
    if (longest <= 64) return by_width<T, 64>(p, stream);
    return by_width<T, 128>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_forward_sm80)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return by_length<f16>(*p, stream);
    return by_length<bf16>(*p, stream);
}

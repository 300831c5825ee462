/* one_query_forward_sm80.cu - attention forward of one query row, at the speed of memory: the CLS token of an encoder.
 *
 *     o = softmax(scores over visible keys) v,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp16 and bf16 with o of the same format, sequences of at most one query row and 512 keys, and every feature of
 * lib/contract.md: shared/scores.h says what a score is.
 *
 * Grid    x: batch * num_heads_q items, one a warp where all sequences are short, else one a CTA
 * Block   4 warps; an item belongs to one warp up to ALONE keys, else to all four: decode/one_query.h
 * Shared  5 to 9 KB: scores, and what warps tell one another
 * Phases  dot products of k; scores, their maximum, weights: each lane takes a key; o += p v; write. Where scores are
 *         plain and no window cuts the row, scores follow as soon as they are summed, and the lanes that
 *         multiply by v
 *         find the weights. Full problems of few keys have a kernel of their own, which stays in registers
 *         throughout
 *
 * k and v go from global memory to registers, and the next block is in flight while one is used: the first block of v
 * is, while scores become weights. All arithmetic is in fp32 with weights 2^(y - m), where m is the maximum of the row.
 * kernels/decode/decode.md has the figures; reference/bounds.md section 11 bounds the error. */
#include "kernels/decode/one_query.h"

namespace {

/* One warp takes this many keys alone: 16 KB of k. */
template <int DIM>
constexpr int ALONE = 8192 / DIM;

/* k and v are read once. Saying so to the cache is faster at 32 features, as fast at 64 and slower beyond:
 * kernels/decode/decode.md. */
template <int DIM>
constexpr bool STREAMS = DIM <= 64;

/* All items of a CTA together have at most this many keys. */
template <int DIM>
constexpr int CTA_KEYS = WARPS * ALONE<DIM> > MOST_KEYS ? WARPS * ALONE<DIM> : MOST_KEYS;

/* Holds, by key, scores and then weights: those of one item, or of one for each warp. Where scores are not plain, dot
 * products lie beside them. Only teams of four warps use the rest. */
template <int DIM, bool PLAIN>
struct shared_numbers {
    float scores[CTA_KEYS<DIM>];
    float dots[PLAIN ? 1 : CTA_KEYS<DIM>];
    row_parts<DIM> o;
    float max[WARPS], sum[WARPS];
    uint32_t any[WARPS]; /* not 0: a key was visible */
};

/* Turns a score into its weight. inf - inf would be NaN and hide that lse is inf; o becomes inf / inf. */
DEVICE float weight_of(float y, float reference)
{
    return y == infinity_f32() ? infinity_f32() : exp2_f32(y - reference);
}

/* Writes o = 0 and lse = -inf to the rows past the one in use. */
template <typename T, int DIM>
DEVICE void clear_rows(const forward_params &p, const sequence &s, const team &t, int64_t b, int64_t head)
{
    if (s.used_q == s.seqlen_q) return;
    const lane_rows o = rows_of<DIM>(p.o, b, s.first_q, head, p.head_dim_v);
    const float zeros[8] = {};
    for (int32_t row = s.used_q + t.rank; row < s.seqlen_q; row += t.warps) {
        if (lane() < LANES<DIM>) store_row<T>(o, row, zeros);
        if (p.lse.data != nullptr && lane() == 0)
            store_feature(row_of(p.lse, b, s.first_q + row, head, 1), 0, -infinity_f32());
    }
}

/* Holds what warps find out about their keys: the largest score, the sum of weights relative to it, whether one is
 * seen, and what is subtracted from the row's biases. */
struct row_terms {
    float max, sum;
    uint32_t any;
    float reference;
};

/* Joins max and any of the row from those of its team. It is a barrier for all threads. */
template <int DIM, bool PLAIN>
DEVICE void join_maxima(shared_numbers<DIM, PLAIN> &shared, const team &t, row_terms &terms)
{
    if (t.warps == 1) return;
    if (lane() == 0) shared.max[t.rank] = terms.max, shared.any[t.rank] = terms.any;
    sync_threads();
    UNROLL for (int w = 0; w < WARPS; ++w)
        terms.max = max_f32(terms.max, shared.max[w]), terms.any |= shared.any[w];
}

DEVICE float reference_of(float max) { return max == -infinity_f32() ? 0 : max; } /* avoids -inf - -inf */

/* Turns the dot products of a warp's keys into scores, with the reference subtracted from biases, and joins the row's
 * maximum, with the sink in it, and any. Returns which keys are visible: bit n stands for key lane + 32 n of the warp's
 * own. It is a barrier for all threads. */
template <int DIM>
DEVICE uint32_t find_scores(shared_numbers<DIM, false> &shared, float *scores, const float *dots, row_terms &terms,
                            const forward_params &p, const sequence &s, const score_rule &rule, const team &t,
                            const team_keys &keys, float sink)
{
    uint32_t seen = 0;
    terms.max = -infinity_f32();
    ROLLED for (int n = 0; own_key<DIM>(keys, static_cast<int>(lane()) + 32 * n) < keys.seen.last; ++n) {
        const int32_t key = own_key<DIM>(keys, static_cast<int>(lane()) + 32 * n);
        if (key < keys.seen.first) continue;
        const score found = find_score(p, rule, s, 0, key, dots[key], terms.reference);
        if (!found.visible) continue;
        seen |= 1u << n;
        scores[key] = found.y;
        terms.max = max_f32(terms.max, found.y); /* passes a NaN by: it reaches the sum */
    }
    terms.max = max_of_warp(terms.max);
    terms.any = ballot(FULL_WARP, seen != 0);
    join_maxima(shared, t, terms);
    terms.max = max_f32(terms.max, (sink - terms.reference) * LOG2_E); /* a key of v = 0 */
    return seen;
}

/* Turns the dot products of a warp's keys into weights. */
template <int DIM>
INLINE row_terms find_row_weights(shared_numbers<DIM, false> &shared, float *scores, const float *dots,
                                  const forward_params &p, const sequence &s, const team &t, const team_keys &keys,
                                  int64_t b, int64_t head, float sink)
{
    const score_rule rule = find_score_rule(p, b, head);
    row_terms terms = {};
    uint32_t seen = 0;
    ROLLED for (bool is_done = false; !is_done;) {
        seen = find_scores<DIM>(shared, scores, dots, terms, p, s, rule, t, keys, sink);
        is_done = true;
        if (rule.bias == nullptr || terms.reference != 0 || !is_large(terms.max)) continue;
        const int thread = static_cast<int>(lane());
        terms.reference = reference_of_row(max_of_warp(largest_bias(p, rule, s, 0, thread, 32)), sink);
        is_done = terms.reference == 0;
        if (t.warps > 1) sync_threads(); /* all have read the maxima */
    }
    const float reference = reference_of(terms.max);
    dropout_bits bits = {-1, {}};
    ROLLED for (int n = 0; own_key<DIM>(keys, static_cast<int>(lane()) + 32 * n) < keys.seen.last; ++n) {
        const int32_t key = own_key<DIM>(keys, static_cast<int>(lane()) + 32 * n);
        float weight = float_of(HIDDEN);
        if ((seen >> n & 1) != 0) {
            weight = weight_of(scores[key], reference);
            terms.sum += weight;
            if (!is_kept(p, rule, 0, key, bits)) weight *= 0; /* a dropped key is seen: NaN if it is infinite */
        }
        scores[key] = weight;
    }
    terms.sum = sum_of_warp(terms.sum);
    sync_warp(FULL_WARP);
    return terms;
}

/* Sums weights times rows of v into o, for the lane's own rows, whose first block is in `next`. */
template <typename T, int DIM, bool PLAIN>
DEVICE void add_values(float (&o)[8], row_terms &terms, chunk (&now)[UNROLLED], chunk (&next)[UNROLLED],
                       const float *scores, const lane_rows &v, const team_keys &keys, int32_t last, float reference)
{
    for (int32_t key = keys.own; key < last; key += keys.step) {
        UNROLL for (int n = 0; n < UNROLLED; ++n) now[n] = next[n];
        if (key + keys.step < last) load_block<DIM, STREAMS<DIM>>(next, v, key + keys.step, last);
        UNROLL for (int n = 0; n < UNROLLED; ++n) {
            const int32_t row = first_row<DIM>(key) + n * ROWS<DIM>;
            if (PLAIN) {
                const float weight = row < last ? weight_of(scores[row], reference) : 0;
                terms.sum += weight;
                add_row<T>(o, weight, false, now[n]);
            } else {
                const float weight = row < last ? scores[row] : float_of(HIDDEN);
                add_row<T>(o, weight, bits_of(weight) == HIDDEN, now[n]);
            }
        }
    }
}

/* Writes o = sum p v / sum p and lse = ln 2 (m + log2 sum p), or (0, the sink) where no key is seen. */
template <typename T, int DIM, bool PLAIN>
DEVICE void write_row(float (&o)[8], row_terms &terms, const forward_params &p, const sequence &s, uint32_t b,
                      uint32_t head, float sink, float reference)
{
    if (!PLAIN) terms.sum += weight_of((sink - terms.reference) * LOG2_E, reference);
    const float factor = div_rn(PLAIN ? 1 : p.dropout_multiplier, terms.sum);
    UNROLL for (int n = 0; n < 8; ++n) o[n] = terms.any == 0 ? 0 : o[n] * factor;
    if (lane() < LANES<DIM>) store_row<T>(rows_of<DIM>(p.o, b, s.first_q, head, p.head_dim_v), 0, o);
    float lse = (terms.max + log2_f32(terms.sum)) * LN_2;
    if (!PLAIN) lse += terms.reference;
    if (terms.any == 0) lse = sink;
    if (p.lse.data != nullptr && lane() == 0) store_feature(row_of(p.lse, b, s.first_q, head, 1), 0, lse);
}

/* This many CTAs fit on an SM. */
template <bool PLAIN>
constexpr int CTAS = PLAIN ? 6 : 5;

/* PLAIN says that every row in use sees every key in use, that the score is scale q . k, and that there is no sink. */
template <typename T, int DIM, bool PLAIN>
KERNEL(THREADS, CTAS<PLAIN>) void one_query_forward_sm80_kernel(const forward_params p)
{
    using numbers = shared_numbers<DIM, PLAIN>;
    STATIC_SHARED(numbers, shared);
    const uint32_t item = find_item(p, ALONE<DIM>), b = quotient(item, p.by_heads_q);
    if (b >= static_cast<uint32_t>(p.batch)) return;
    const uint32_t head = item - b * p.by_heads_q.by, head_kv = quotient(head, p.by_group);
    const sequence s = find_sequence(p, b);
    if (!is_ours(p, s)) return;
    const team t = find_team(p, s, ALONE<DIM>);
    if (t.rank < 0) return;
    clear_rows<T, DIM>(p, s, t, b, head);
    if (s.used_q == 0) return;
    const lane_rows k = rows_of<DIM>(p.k, b, s.first_k, head_kv, p.head_dim);
    const lane_rows v = rows_of<DIM>(p.v, b, s.first_k, head_kv, p.head_dim_v);
    const team_keys keys = PLAIN ? all_keys<DIM>(s, t) : find_keys<DIM>(p, s, t);
    const int32_t last = keys.seen.last;
    const unsigned first = is_packed(p, ALONE<DIM>) ? warp() * ALONE<DIM> : 0;
    float *const scores = shared.scores + first, *const products = PLAIN ? scores : shared.dots + first;

    chunk now[UNROLLED], next[UNROLLED];
    load_block<DIM, STREAMS<DIM>>(next, k, keys.own, last);
    float q[8];
    load_row<T>(q, rows_of<DIM>(p.q, b, s.first_q, head, p.head_dim));

    const float scale = p.softmax_scale * LOG2_E;
    row_terms terms = {-infinity_f32(), 0, last > 0, 0};
    for (int32_t key = keys.own; key < last; key += keys.step) {
        UNROLL for (int n = 0; n < UNROLLED; ++n) now[n] = next[n];
        if (key + keys.step < last) load_block<DIM, STREAMS<DIM>>(next, k, key + keys.step, last);
        else load_block<DIM, STREAMS<DIM>>(next, v, keys.own, last);
        float dots[UNROLLED];
        UNROLL for (int n = 0; n < UNROLLED; ++n) dots[n] = multiply_chunk<T>(q, now[n]);
        sum_of_lanes<DIM>(dots);
        const int32_t row = first_row<DIM>(key) + first_sum<DIM, UNROLLED>() * ROWS<DIM>;
        if (PLAIN) dots[0] *= scale;
        if (row < last) {
            if (lane() % LANES<DIM> < UNROLLED) products[row] = dots[0];
            if (PLAIN) terms.max = max_f32(terms.max, dots[0]); /* ignores a NaN */
        }
    }
    sync_warp(FULL_WARP);

    const float sink = !PLAIN && p.sink != nullptr ? p.sink[head] : -infinity_f32();
    if constexpr (PLAIN) {
        terms.max = max_of_warp(terms.max);
        join_maxima(shared, t, terms);
    } else {
        terms = find_row_weights<DIM>(shared, scores, products, p, s, t, keys, b, head, sink);
    }
    const float reference = reference_of(terms.max);

    float o[8] = {};
    add_values<T, DIM, PLAIN>(o, terms, now, next, scores, v, keys, last, reference);
    if (PLAIN) UNROLL for (unsigned d = LANES<DIM>; d < 32; d *= 2) terms.sum += shfl_xor(FULL_WARP, terms.sum, d);
    sum_of_rows<DIM>(o);
    if (t.warps > 1) {
        give_part<DIM>(shared.o, t, o);
        if (lane() == 0) shared.sum[t.rank] = terms.sum;
        sync_threads();
        if (t.rank != 0) return;
        take_parts<DIM>(o, shared.o);
        terms.sum = shared.sum[0];
        UNROLL for (int w = 1; w < WARPS; ++w) terms.sum += shared.sum[w];
    }

    write_row<T, DIM, PLAIN>(o, terms, p, s, b, head, sink, reference);
}

/* ---- full problems ---------------------------------------------------------------------------------------------- */

/* At least this many CTAs fit on an SM. */
template <int BLOCKS>
constexpr int WHOLE_CTAS = BLOCKS == 1 ? 8 : 5; /* 12 fit with one block, 8 with two */

/* Returns the lane's features of row 0 in a format of 16 bits; none is missing, and all are aligned. */
template <int DIM>
INLINE lane_rows whole_rows(const row_tensor &t, uint32_t b, uint32_t head)
{
    const int64_t offset = b * t.batch + head * t.head + static_cast<int64_t>(lane()) % LANES<DIM> * 8;
    return {static_cast<char *>(t.data) + 2 * offset, 2 * t.seqlen, 8, true};
}

/* Computes, bit by bit, what one_query_forward_sm80_kernel of PLAIN does, where nothing has to be checked: is_whole().
 * k and v are each read in one piece. Scores stay in registers: a lane has one score of each block, makes its weight,
 * and hands that to the lanes of the row. */
template <typename T, int DIM, int BLOCKS>
KERNEL(THREADS, WHOLE_CTAS<BLOCKS>) void one_query_forward_sm80_whole_kernel(const forward_params p)
{
    const uint32_t item = block_x() * WARPS + warp(), b = quotient(item, p.by_heads_q);
    if (b >= static_cast<uint32_t>(p.batch)) return;
    const uint32_t head = item - b * p.by_heads_q.by, head_kv = quotient(head, p.by_group);
    constexpr int32_t KEYS = BLOCKS * BLOCK<DIM>;
    const lane_rows k = whole_rows<DIM>(p.k, b, head_kv), v = whole_rows<DIM>(p.v, b, head_kv);
    chunk of_k[BLOCKS][UNROLLED], of_v[BLOCKS][UNROLLED];
    UNROLL for (int i = 0; i < BLOCKS; ++i) load_block<DIM, STREAMS<DIM>>(of_k[i], k, i * BLOCK<DIM>, KEYS);
    float q[8];
    load_row<T>(q, whole_rows<DIM>(p.q, b, head));
    UNROLL for (int i = 0; i < BLOCKS; ++i) load_block<DIM, STREAMS<DIM>>(of_v[i], v, i * BLOCK<DIM>, KEYS);

    const float scale = p.softmax_scale * LOG2_E;
    float y[BLOCKS], max = -infinity_f32();
    UNROLL for (int i = 0; i < BLOCKS; ++i) {
        float dots[UNROLLED];
        UNROLL for (int n = 0; n < UNROLLED; ++n) dots[n] = multiply_chunk<T>(q, of_k[i][n]);
        sum_of_lanes<DIM>(dots);
        y[i] = dots[0] * scale;
        max = max_f32(max, y[i]);
    }
    max = max_of_warp(max);
    const float reference = reference_of(max);

    float o[8] = {}, sum = 0;
    UNROLL for (int i = 0; i < BLOCKS; ++i) {
        const float own = weight_of(y[i], reference);
        UNROLL for (int n = 0; n < UNROLLED; ++n) {
            const float weight = shfl_idx(FULL_WARP, own, n / 2 + n % 2 * 2, LANES<DIM>); /* its first_sum() is n */
            sum += weight;
            add_row<T>(o, weight, false, of_v[i][n]);
        }
    }
    UNROLL for (unsigned d = LANES<DIM>; d < 32; d *= 2) sum += shfl_xor(FULL_WARP, sum, d);
    sum_shares<LANES<DIM>, 32>(o);

    const float factor = div_rn(1, sum);
    constexpr int SHARE = 8 / ROWS<DIM>;
    char *const to = whole_rows<DIM>(p.o, b, head).data + 2 * first_share<LANES<DIM>, 32, 8>();
    if (SHARE == 1) *reinterpret_cast<uint16_t *>(to) = static_cast<uint16_t>(pack<T>(o[0] * factor, 0));
    UNROLL for (int n = 0; n + 1 < SHARE; n += 2)
        reinterpret_cast<uint32_t *>(to)[n / 2] = pack<T>(o[n] * factor, o[n + 1] * factor);
    if (p.lse.data != nullptr && lane() == 0)
        static_cast<float *>(p.lse.data)[b * p.lse.batch + head * p.lse.head] =
            one_nan_f32((max + log2_f32(sum)) * LN_2);
}

/* Returns whether all sequences are plain, have one query and `keys` keys, all in use, full heads and aligned rows. All
 * of them are this launch's then: sequences of one length have one kernel. Runs on the host. */
template <int DIM>
bool is_whole(const forward_params &p, int keys)
{
    return is_plain(p) && p.seqlen_q == 1 && p.seqlen_k == keys && p.cu_seqlens_q == nullptr &&
           p.seqused_q == nullptr && p.seqused_k == nullptr && p.head_dim == DIM && p.head_dim_v == DIM &&
           (p.q.by_eight & p.k.by_eight & p.v.by_eight & p.o.by_eight) != 0;
}

template <typename T, int DIM, int BLOCKS>
int launch_whole(const forward_params &p, void *stream)
{
    static_assert(BLOCKS * BLOCK<DIM> <= ALONE<DIM>, "an item a warp");
    const launch_shape shape = shape_of(p, p.batch * p.num_heads_q, ALONE<DIM>, 0, WHOLE_CTAS<BLOCKS>);
    return LAUNCH((one_query_forward_sm80_whole_kernel<T, DIM, BLOCKS>), shape, stream, p);
}

template <typename T, int DIM>
int launch(const forward_params &p, void *stream)
{
    if constexpr (DIM <= 128)
        if (is_whole<DIM>(p, 32)) return launch_whole<T, DIM, 32 / BLOCK<DIM>>(p, stream);
    if constexpr (DIM <= 64)
        if (is_whole<DIM>(p, 64)) return launch_whole<T, DIM, 64 / BLOCK<DIM>>(p, stream);
    if constexpr (DIM <= 32)
        if (is_whole<DIM>(p, 128)) return launch_whole<T, DIM, 128 / BLOCK<DIM>>(p, stream);
    const bool plain = is_plain(p);
    const unsigned min_blocks = plain ? CTAS<true> : CTAS<false>;
    const launch_shape shape = shape_of(p, p.batch * p.num_heads_q, ALONE<DIM>, 0, min_blocks);
    if (plain) return LAUNCH((one_query_forward_sm80_kernel<T, DIM, true>), shape, stream, p);
    return LAUNCH((one_query_forward_sm80_kernel<T, DIM, false>), shape, stream, p);
}

template <typename T>
int launch_width(const forward_params &p, void *stream)
{
    const int widest = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    if (widest <= 32) return launch<T, 32>(p, stream);
    if (widest <= 64) return launch<T, 64>(p, stream);
    if (widest <= 128) return launch<T, 128>(p, stream);
    return launch<T, 256>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(one_query_forward_sm80)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

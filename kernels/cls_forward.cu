/* cls_forward.cu - attention forward of one query row, at the speed of memory: the CLS token of an encoder.
 *
 *     o = softmax(scores over visible keys) v,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp16 and bf16 with o of the same format, sequences of at most one query row and 512 keys, and every feature of
 * lib/contract.md: scores.h says what a score is.
 *
 * Grid    x: batch * num_heads_q items, one a warp where all sequences are short, else one a CTA
 * Block   4 warps; an item belongs to one warp up to ALONE keys, else to all four: cls.h
 * Shared  5 to 7 KB: scores, and what warps tell one another
 * Phases  dot products of k; scores, their maximum, weights: a lane a key; o += p v; write
 *
 * k and v go from global memory to registers, the next block on its way while one is used: the first of v is, while
 * scores become weights. All is in fp32, weights 2^(y - m), m the maximum of the row. kernels/cls.md has the figures,
 * reference/bounds.md section 11 what it may be off by. */
#include "kernels/cls.h"

namespace {

/* Keys that one warp takes alone: 16 KB of k. */
template <int DIM>
constexpr int ALONE = 8192 / DIM;

/* Scores by key, then weights: of one item, or of one a warp. The rest is of teams of four. */
template <int DIM>
struct shared_numbers {
    float scores[WARPS * ALONE<DIM> > MOST_KEYS ? WARPS * ALONE<DIM> : MOST_KEYS];
    row_parts<DIM> o;
    float max[WARPS], sum[WARPS];
    uint32_t any[WARPS]; /* not 0: a key was visible */
};

/* A score to its weight. inf - inf would be NaN and hide that lse is inf; o becomes inf / inf. */
DEVICE float weight_of(float y, float reference)
{
    return y == infinity_f32() ? infinity_f32() : exp2_f32(y - reference);
}

/* o = 0 and lse = -inf of rows past the one in use. */
template <typename T, int DIM>
DEVICE void clear_rows(const forward_params &p, const sequence &s, const team &t, int64_t b, int64_t head)
{
    const lane_rows o = rows_of<DIM>(p.o, b, s.first_q, head, p.head_dim_v);
    const float zeros[8] = {};
    for (int32_t row = s.used_q + t.rank; row < s.seqlen_q; row += t.warps) {
        if (lane() < LANES<DIM>) store_row<T>(o, row, zeros);
        if (p.lse.data != nullptr && lane() == 0)
            store_feature(row_of(p.lse, b, s.first_q + row, head, 1), 0, -infinity_f32());
    }
}

template <typename T, int DIM>
KERNEL(THREADS, 5) void cls_forward_kernel(const forward_params p)
{
    STATIC_SHARED(shared_numbers<DIM>, shared);
    const uint32_t item = find_item(p, ALONE<DIM>), heads = static_cast<uint32_t>(p.num_heads_q);
    if (item >= static_cast<uint32_t>(p.batch) * heads) return;
    const uint32_t b = item / heads, head = item % heads, head_kv = head / static_cast<uint32_t>(p.group);
    const sequence s = find_sequence(p, b);
    if (!is_ours(p, s)) return;
    const team t = find_team(p, s, ALONE<DIM>);
    if (t.rank < 0) return;
    clear_rows<T, DIM>(p, s, t, b, head);
    if (s.used_q == 0) return;
    const lane_rows k = rows_of<DIM>(p.k, b, s.first_k, head_kv, p.head_dim);
    const lane_rows v = rows_of<DIM>(p.v, b, s.first_k, head_kv, p.head_dim_v);
    const team_keys keys = find_keys<DIM>(p, s, t);
    const int32_t last = keys.seen.last;
    float *const scores = shared.scores + (is_packed(p, ALONE<DIM>) ? warp() * ALONE<DIM> : 0);

    chunk now[UNROLLED], next[UNROLLED];
    load_block<DIM, true>(next, k, keys.own, last);
    float q[8];
    load_row<T>(q, rows_of<DIM>(p.q, b, s.first_q, head, p.head_dim));

    for (int32_t key = keys.own; key < last; key += keys.step) {
        UNROLL for (int n = 0; n < UNROLLED; ++n) now[n] = next[n];
        if (key + keys.step < last) load_block<DIM, true>(next, k, key + keys.step, last);
        else load_block<DIM, true>(next, v, keys.own, last);
        float dots[UNROLLED];
        UNROLL for (int n = 0; n < UNROLLED; ++n) dots[n] = multiply_chunk<T>(q, now[n]);
        sum_of_lanes<DIM>(dots);
        const int32_t row = first_row<DIM>(key) + first_sum<DIM, UNROLLED>() * ROWS<DIM>;
        if (lane() % LANES<DIM> < UNROLLED && row < last) scores[row] = dots[0];
    }
    sync_warp(FULL_WARP);

    const score_rule rule = find_score_rule(p, b, head);
    const float sink = p.sink != nullptr ? p.sink[head] : -infinity_f32();
    float max = -infinity_f32();
    uint32_t seen = 0; /* bit n: key lane + 32 n of the warp's own is visible */
    ROLLED for (int n = 0; own_key<DIM>(keys, static_cast<int>(lane()) + 32 * n) < last; ++n) {
        const int32_t key = own_key<DIM>(keys, static_cast<int>(lane()) + 32 * n);
        if (key < keys.seen.first) continue;
        const score found = find_score(p, rule, s, 0, key, scores[key]);
        if (!found.visible) continue;
        seen |= 1u << n;
        scores[key] = found.y;
        max = max_f32(max, found.y); /* passes a NaN by: it reaches the sum */
    }
    max = max_of_warp(max);
    uint32_t any = ballot(FULL_WARP, seen != 0);
    if (t.warps > 1) {
        if (lane() == 0) shared.max[t.rank] = max, shared.any[t.rank] = any;
        sync_threads();
        UNROLL for (int w = 0; w < WARPS; ++w) max = max_f32(max, shared.max[w]), any |= shared.any[w];
    }
    max = max_f32(max, sink * LOG2_E); /* a key of v = 0 */
    const float reference = max == -infinity_f32() ? 0 : max; /* against -inf - -inf where no score is finite */

    float sum = 0;
    dropout_bits bits = {-1, {}};
    ROLLED for (int n = 0; own_key<DIM>(keys, static_cast<int>(lane()) + 32 * n) < last; ++n) {
        const int32_t key = own_key<DIM>(keys, static_cast<int>(lane()) + 32 * n);
        float weight = float_of(HIDDEN);
        if ((seen >> n & 1) != 0) {
            weight = weight_of(scores[key], reference);
            sum += weight;
            if (!is_kept(p, rule, 0, key, bits)) weight *= 0; /* a dropped key is seen: NaN if it is infinite */
        }
        scores[key] = weight;
    }
    sum = sum_of_warp(sum);
    sync_warp(FULL_WARP);

    float o[8] = {};
    for (int32_t key = keys.own; key < last; key += keys.step) {
        UNROLL for (int n = 0; n < UNROLLED; ++n) now[n] = next[n];
        if (key + keys.step < last) load_block<DIM, true>(next, v, key + keys.step, last);
        UNROLL for (int n = 0; n < UNROLLED; ++n) {
            const int32_t row = first_row<DIM>(key) + n * ROWS<DIM>;
            const float weight = row < last ? scores[row] : float_of(HIDDEN);
            add_row<T>(o, weight, bits_of(weight) == HIDDEN, now[n]);
        }
    }
    sum_of_rows<DIM>(o);
    if (t.warps > 1) {
        give_part<DIM>(shared.o, t, o);
        if (lane() == 0) shared.sum[t.rank] = sum;
        sync_threads();
        if (t.rank != 0) return;
        take_parts<DIM>(o, shared.o);
        sum = shared.sum[0];
        UNROLL for (int w = 1; w < WARPS; ++w) sum += shared.sum[w];
    }

    /* o = sum p v / sum p, lse = ln 2 (m + log2 sum p); (0, the sink) where no key is seen. */
    sum += weight_of(sink * LOG2_E, reference);
    const float factor = div_rn(p.dropout_multiplier, sum);
    UNROLL for (int n = 0; n < 8; ++n) o[n] = any == 0 ? 0 : o[n] * factor;
    if (lane() < LANES<DIM>) store_row<T>(rows_of<DIM>(p.o, b, s.first_q, head, p.head_dim_v), 0, o);
    if (p.lse.data != nullptr && lane() == 0)
        store_feature(row_of(p.lse, b, s.first_q, head, 1), 0, any == 0 ? sink : (max + log2_f32(sum)) * LN_2);
}

template <typename T, int DIM>
int launch(const forward_params &p, void *stream)
{
    return LAUNCH((cls_forward_kernel<T, DIM>), shape_of(p, p.batch * p.num_heads_q, ALONE<DIM>, 0, 5), stream, p);
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

extern "C" int KERNEL_SYMBOL(cls_forward)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

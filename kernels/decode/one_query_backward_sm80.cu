/* one_query_backward_sm80.cu - attention backward of one query row, at the speed of memory: the CLS token of an
 * encoder.
 *
 *     delta = sum_j p_j dp_j / sum_j p_j,           dq = softmax_scale sum_j ds_j k_j
 *     dk_j = softmax_scale ds_j q,      dv_j = m p_j dout,     summed over the query heads of a group
 *
 * Takes fp16 and bf16, one format for all tensors, sequences of at most one query row and 512 keys, groups of at most 8
 * query heads, and every feature of lib/contract.md but dbias, sinks and an external lse: shared/scores.h says what
 * a score is. o is not read: delta is summed from p and dp, unless it is given.
 *
 * Where scores are plain and one key outweighs all others, delta is found in two steps: ds of that key is what remains
 * of dp - delta after cancellation, and one step would leave mostly its own rounding there.
 *
 * Grid    x: batch * num_heads_kv items, one a warp where all sequences are short, else one a CTA
 * Block   4 warps; an item belongs to one warp up to ALONE keys, else to all four: decode/one_query.h
 * Shared  p and ds of the keys for each head of the group; k, where there is room: 64 KB at most
 * Phases  for each head: dot products of k and v; p, dp and delta, ds: each lane takes a key; dq. For each key: dk and
 *         dv
 *
 * k and v come from global memory once; k waits in shared memory for dq, or is read again where it is too large, as k
 * and v are for further heads of a group. All is in fp32. kernels/decode/decode.md has the figures, reference/bounds.md
 * section 11 what it may be off by. */
#include "kernels/decode/one_query.h"
#include "kernels/shared/gradients.h"

namespace {

/* One warp takes this many keys alone: 8 KB of k. */
template <int DIM>
constexpr int ALONE = 4096 / DIM;

enum { MOST_KEPT = 64 << 10 /* bytes of k that a CTA may keep in shared memory, so that three CTAs fit on an SM */ };

/* Says what an item needs of shared memory: its keys, bytes of k (0 where k is not kept), and bytes of everything. */
struct item_sizes {
    int32_t room, kept, all;
};

/* Holds, for each query head of the group, `room` weights m p and as many ds; for one head at a time p times the slope
 * of the score, unless PLAIN, where that is the weight itself; and the lane's chunks of k, by row. */
struct item_memory {
    float *weights, *ds, *p;
    char *k;
};

template <int DIM>
INLINE item_memory find_memory(unsigned char *shared, const item_sizes &sizes, int group, bool packed)
{
    unsigned char *const first = shared + (packed ? warp() * static_cast<unsigned>(sizes.all) : 0);
    float *const numbers = reinterpret_cast<float *>(first + sizes.kept);
    return {numbers, numbers + group * sizes.room, numbers + 2 * group * sizes.room,
            reinterpret_cast<char *>(first) + lane() % LANES<DIM> * sizeof(chunk)};
}

template <int DIM>
constexpr int KEPT_STEP = LANES<DIM> * static_cast<int>(sizeof(chunk)); /* bytes from row to row */

/* Holds the sums that the warps of a team add up. */
template <int DIM>
struct team_sums {
    row_parts<DIM> dq;
    float p[WARPS], p_dp[WARPS], rest[WARPS];
    uint32_t is_peaked[WARPS];
};

/* Holds what is known of one query head. */
struct head_terms {
    int64_t head;
    float *weights, *ds; /* of the head */
    float *p;            /* times the slope */
    row_lse lse;
    float dlse;
};

/* Writes q . k to ds and dout . v to weights, for the warp's keys, and k to shared memory if it is kept. */
template <typename T, int DIM>
DEVICE void find_dots(const head_terms &h, char *kept, const float (&q)[8], const float (&dout)[8], const lane_rows &k,
                      const lane_rows &v, const team_keys &keys)
{
    constexpr int SUMS = 2 * UNROLLED; /* of a block: one for each of its rows of k, then of v */
    const int32_t last = keys.seen.last;
    const int number = first_sum<DIM, SUMS>(), first = number % UNROLLED * ROWS<DIM>;
    float *const dots = number < UNROLLED ? h.ds : h.weights;
    for (int32_t key = keys.own; key < last; key += keys.step) {
        chunk k_block[UNROLLED], v_block[UNROLLED];
        load_block<DIM, false>(k_block, k, key, last);
        load_block<DIM, false>(v_block, v, key, last);
        float sums[SUMS];
        UNROLL for (int n = 0; n < UNROLLED; ++n) {
            const int32_t row = first_row<DIM>(key) + n * ROWS<DIM>;
            sums[n] = multiply_chunk<T>(q, k_block[n]), sums[UNROLLED + n] = multiply_chunk<T>(dout, v_block[n]);
            if (kept != nullptr && row < last) store_16(kept + row * KEPT_STEP<DIM>, k_block[n]);
        }
        sum_of_lanes<DIM>(sums);
        UNROLL for (int n = 0; n < KEPT_SUMS<DIM, SUMS>; ++n) {
            const int32_t row = first_row<DIM>(key) + first + n * ROWS<DIM>;
            if (lane() % LANES<DIM> < SUMS && row < last) dots[row] = sums[n];
        }
    }
    sync_warp(FULL_WARP);
}

/* Holds what a lane learns from its keys: the sums of their p and p dp, whether one is hidden, and whether one
 * outweighs all others. */
struct key_terms {
    float p, p_dp;
    bool is_hidden, is_peaked;
};

/* Returns the largest of the numbers that the warps of a team have, or their sum. */
DEVICE float join_numbers(float (&parts)[WARPS], const team &t, float number, bool is_sum)
{
    if (t.warps == 1) return number;
    sync_threads(); /* the parts are free */
    if (lane() == 0) parts[t.rank] = number;
    sync_threads();
    float all = parts[0];
    UNROLL for (int w = 1; w < WARPS; ++w) all = is_sum ? all + parts[w] : max_f32(all, parts[w]);
    return all;
}

/* Finds lse of a row that needs its own from q . k of its keys: first m, then the sum of 2^(y - m). All threads of a
 * team call it. */
template <int DIM>
INLINE row_lse find_own_lse(const backward_params &p, const sequence &s, const float *dots, int64_t b, int64_t head,
                            const team_keys &keys, const team &t, float (&parts)[WARPS])
{
    const forward_params &f = p.forward;
    const score_rule rule = find_score_rule(f, b, head);
    const int thread = static_cast<int>(lane());
    row_lse lse = {};
    if (rule.bias != nullptr)
        lse.reference = reference_of_row(max_of_warp(largest_bias(f, rule, s, 0, thread, 32)), -infinity_f32());
    ROLLED for (int pass = 0; pass < 2; ++pass) {
        float number = pass == 1 ? 0 : -infinity_f32();
        ROLLED for (int i = thread; own_key<DIM>(keys, i) < keys.seen.last; i += 32) {
            const int32_t key = own_key<DIM>(keys, i);
            score found = {0, 1, false};
            if (key >= keys.seen.first) found = find_score(f, rule, s, 0, key, dots[key], lse.reference);
            if (found.visible)
                number = pass == 1 ? number + exp2_f32(found.y - lse.high) : max_f32(number, found.y);
        }
        number = join_numbers(parts, t, pass == 1 ? sum_of_warp(number) : max_of_warp(number), pass == 1);
        lse = pass == 1 ? split_lse(lse.high, number, lse.reference) : row_lse{number, 0, lse.reference};
    }
    return lse;
}

/* Does the same where scores are c dot. It subtracts from the dots the one that weighs most and returns lse of what
 * remains. Such differences are off by 2^-24 of themselves, however large scores are. */
template <int DIM>
DEVICE float take_own_lse(float *dots, float c, const team_keys &keys, const team &t, float (&parts)[WARPS])
{
    const float sign = c < 0 ? -1 : 1;
    float most = -infinity_f32(), sum = 0;
    ROLLED for (int i = static_cast<int>(lane()); own_key<DIM>(keys, i) < keys.seen.last; i += 32)
        most = max_f32(most, sign * dots[own_key<DIM>(keys, i)]);
    most = sign * join_numbers(parts, t, max_of_warp(most), false);
    ROLLED for (int i = static_cast<int>(lane()); own_key<DIM>(keys, i) < keys.seen.last; i += 32) {
        float &dot = dots[own_key<DIM>(keys, i)];
        dot -= most;
        sum += exp2_f32(dot * c);
    }
    return log2_f32(join_numbers(parts, t, sum_of_warp(sum), true));
}

/* Turns these into dp, m p and p times its slope, for the keys of a lane. */
template <int DIM, bool PLAIN>
INLINE key_terms recompute_row_weights(const backward_params &p, const sequence &s, const head_terms &h, int64_t b,
                                       const team_keys &keys)
{
    const forward_params &f = p.forward;
    const score_rule rule = PLAIN ? score_rule{} : find_score_rule(f, b, h.head);
    const float scale = f.softmax_scale * LOG2_E;
    dropout_bits bits = {-1, {}};
    key_terms terms = {0, 0, false, false};
    ROLLED for (int i = static_cast<int>(lane()); own_key<DIM>(keys, i) < keys.seen.last; i += 32) {
        const int32_t key = own_key<DIM>(keys, i);
        score found = {PLAIN ? h.ds[key] * scale : 0, 1, PLAIN};
        if (!PLAIN && key >= keys.seen.first) found = find_score(f, rule, s, 0, key, h.ds[key], h.lse.reference);
        if (!found.visible) {
            h.weights[key] = float_of(HIDDEN);
            terms.is_hidden = true;
            continue;
        }
        float y = found.y - h.lse.high;
        if (!PLAIN) y -= h.lse.low;
        const float weight = exp2_f32(y);
        const float kept = PLAIN ? 1 : f.dropout_multiplier;
        const float multiplier = PLAIN || is_kept(f, rule, 0, key, bits) ? kept : 0; /* its NaN is felt */
        const float dp = multiplier * h.weights[key];
        terms.p += weight;
        terms.is_peaked |= weight > 0.5f;
        terms.p_dp = fma_rn(weight, dp, terms.p_dp);
        h.weights[key] = multiplier * weight;
        h.ds[key] = dp;
        if (!PLAIN) h.p[key] = weight * found.slope;
    }
    return terms;
}

/* Refines delta of a plain row in which one key outweighs the rest. That key's dp is almost delta, and what rounding p
 * dp leaves of their difference may exceed ds of all other keys. So the mean of dp - `delta`, where `delta` is a first
 * approximation, is added to it. */
template <int DIM>
DEVICE float refine_delta(const head_terms &h, const team_keys &keys, const team &t, float (&parts)[WARPS], float sum_p,
                          float delta)
{
    float rest = 0;
    ROLLED for (int i = static_cast<int>(lane()); own_key<DIM>(keys, i) < keys.seen.last; i += 32) {
        const int32_t key = own_key<DIM>(keys, i);
        rest = fma_rn(h.weights[key], h.ds[key] - delta, rest);
    }
    rest = sum_of_warp(rest);
    if (t.warps > 1) {
        if (lane() == 0) parts[t.rank] = rest;
        sync_threads();
        rest = parts[0];
        UNROLL for (int w = 1; w < WARPS; ++w) rest += parts[w];
    }
    return delta + mean_dp(sum_p, rest);
}

/* Turns dp into ds, for the keys of a lane. */
template <int DIM>
DEVICE void find_ds(const head_terms &h, float delta, const team_keys &keys)
{
    ROLLED for (int i = static_cast<int>(lane()); own_key<DIM>(keys, i) < keys.seen.last; i += 32) {
        const int32_t key = own_key<DIM>(keys, i);
        if (bits_of(h.weights[key]) != HIDDEN) h.ds[key] = h.p[key] * (h.ds[key] - delta + h.dlse);
    }
    sync_warp(FULL_WARP);
}

/* Sums ds_j k_j over the warp's keys; if none is hidden, all of them are seen. */
template <typename T, int DIM>
DEVICE void sum_dq(float (&dq)[8], const head_terms &h, const char *kept, const lane_rows &k, const team_keys &keys,
                   bool is_hidden)
{
    const int32_t last = keys.seen.last;
    for (int32_t key = keys.own; key < last; key += keys.step) {
        if (kept != nullptr && !is_hidden && key + BLOCK<DIM> <= last) {
            UNROLL for (int n = 0; n < UNROLLED; ++n) {
                const int32_t row = first_row<DIM>(key) + n * ROWS<DIM>;
                add_row<T>(dq, h.ds[row], false, load_16<chunk>(kept + row * KEPT_STEP<DIM>));
            }
            continue;
        }
        chunk block[UNROLLED];
        if (kept == nullptr) load_block<DIM, false>(block, k, key, last);
        UNROLL for (int n = 0; n < UNROLLED; ++n) {
            const int32_t row = first_row<DIM>(key) + n * ROWS<DIM>;
            if (row >= last) continue;
            const bool is_row_hidden = is_hidden && bits_of(h.weights[row]) == HIDDEN;
            if (kept == nullptr) add_row<T>(dq, h.ds[row], is_row_hidden, block[n]);
            else add_row<T>(dq, h.ds[row], is_row_hidden, load_16<chunk>(kept + row * KEPT_STEP<DIM>));
        }
    }
    sum_of_rows<DIM>(dq);
}

/* Writes factor times a sum to a row. Adding 0 avoids a -0 where nothing was summed. */
template <typename T>
DEVICE void store_gradient(const lane_rows &rows, int32_t row, const float (&sum)[8], float factor)
{
    float out[8];
    UNROLL for (int n = 0; n < 8; ++n) out[n] = fma_rn(factor, sum[n], 0);
    store_row<T>(rows, row, out);
}

/* Writes dk and dv of a block of keys that only one head sees, as its group has no other. */
template <typename T, int DIM>
DEVICE void store_block(lane_rows dk, lane_rows dv, int32_t block, const item_memory &memory, const float (&q)[8],
                        const float (&dout)[8], float softmax_scale)
{
    const int32_t first = first_row<DIM>(block);
    dk.data += first * dk.step, dv.data += first * dv.step;
    UNROLL for (int n = 0; n < UNROLLED; ++n) {
        const float ds = memory.ds[first + n * ROWS<DIM>], weight = memory.weights[first + n * ROWS<DIM>];
        float dk_row[8], dv_row[8];
        UNROLL for (int x = 0; x < 8; ++x) dk_row[x] = ds * q[x], dv_row[x] = fma_rn(weight, dout[x], 0);
        store_gradient<T>(dk, 0, dk_row, softmax_scale);
        store_row<T>(dv, 0, dv_row);
        dk.data += ROWS<DIM> * dk.step, dv.data += ROWS<DIM> * dv.step;
    }
}

/* Writes dk and dv of each key of a block that is in memory, with zeros where no head sees it. */
template <typename T, int DIM>
DEVICE void sum_block(const backward_params &p, const sequence &s, const lane_rows &dk_rows, const lane_rows &dv_rows,
                      int32_t block, const item_memory &memory, int32_t room, const interval &seen, int64_t b,
                      uint32_t first_head, const float (&q_alone)[8], const float (&dout_alone)[8])
{
    const forward_params &f = p.forward;
    ROLLED for (int32_t row = first_row<DIM>(block); row < block + BLOCK<DIM> && row < s.seqlen_k; row += ROWS<DIM>) {
        float q[8], dout[8], dk[8] = {}, dv[8] = {};
        UNROLL for (int x = 0; x < 8; ++x) q[x] = q_alone[x], dout[x] = dout_alone[x];
        const bool is_inside = row >= seen.first && row < seen.last;
        ROLLED for (int32_t n = 0; n < f.group && is_inside; ++n) {
            const float weight = memory.weights[n * room + row], ds = memory.ds[n * room + row];
            if (bits_of(weight) == HIDDEN) continue;
            if (f.group > 1) {
                const int64_t head = first_head + static_cast<uint32_t>(n);
                load_row<T>(q, rows_of<DIM>(f.q, b, s.first_q, head, f.head_dim));
                load_row<T>(dout, rows_of<DIM>(p.dout, b, s.first_q, head, f.head_dim_v));
            }
            UNROLL for (int x = 0; x < 8; ++x) {
                dk[x] = fma_rn(ds, q[x], dk[x]);
                dv[x] = fma_rn(weight, dout[x], dv[x]);
            }
        }
        store_gradient<T>(dk_rows, row, dk, f.softmax_scale);
        store_row<T>(dv_rows, row, dv);
    }
}

/* Sums over the row's keys, from the sums of its team's warps. */
template <int DIM>
DEVICE void join_sums(team_sums<DIM> &sums, const team &t, float &sum_p, float &sum_p_dp, uint32_t &is_peaked)
{
    if (t.warps > 1) {
        if (lane() == 0) sums.p[t.rank] = sum_p, sums.p_dp[t.rank] = sum_p_dp, sums.is_peaked[t.rank] = is_peaked;
        sync_threads();
        sum_p = sums.p[0], sum_p_dp = sums.p_dp[0];
        UNROLL for (int w = 1; w < WARPS; ++w)
            sum_p += sums.p[w], sum_p_dp += sums.p_dp[w], is_peaked |= sums.is_peaked[w];
        is_peaked |= sums.is_peaked[0];
    }
}

/* This many CTAs fit on an SM. */
template <int DIM, bool PLAIN>
constexpr int CTAS = !PLAIN ? 3 : DIM <= 32 ? 5 : 4;

/* PLAIN says that every row in use sees every key in use, that the score is scale q . k, and that there is no
 * dropout. */
template <typename T, int DIM, bool PLAIN>
KERNEL(THREADS, (CTAS<DIM, PLAIN>)) void one_query_backward_sm80_kernel(const backward_params p, const item_sizes sizes)
{
    STATIC_SHARED(team_sums<DIM>, sums);
    DYNAMIC_SHARED(shared, 16);
    const forward_params &f = p.forward;
    const uint32_t group = static_cast<uint32_t>(f.group);
    const uint32_t item = find_item(f, ALONE<DIM>), b = quotient(item, f.by_heads_kv);
    if (b >= static_cast<uint32_t>(f.batch)) return;
    const uint32_t head_kv = item - b * f.by_heads_kv.by, first_head = head_kv * group;
    const sequence s = find_sequence(f, b);
    if (!is_ours(f, s)) return;
    const team t = find_team(f, s, ALONE<DIM>);
    if (t.rank < 0) return;
    const item_memory memory = find_memory<DIM>(shared, sizes, f.group, is_packed(f, ALONE<DIM>));
    const team_keys keys = PLAIN ? all_keys<DIM>(s, t) : find_keys<DIM>(f, s, t);
    char *const kept = sizes.kept > 0 ? memory.k : nullptr;
    const lane_rows k = rows_of<DIM>(f.k, b, s.first_k, head_kv, f.head_dim);

    float q[8], dout[8]; /* of the last head that was loaded */
    bool is_hidden = true; /* one of the warp's keys may be hidden from the row */
    ROLLED for (uint32_t n = 0; n < group; ++n) {
        const uint32_t head = first_head + n;
        const lane_rows dq_rows = rows_of<DIM>(p.dq, b, s.first_q, head, f.head_dim);
        const float zeros[8] = {};
        for (int32_t row = s.used_q + t.rank; row < s.seqlen_q; row += t.warps)
            if (lane() < LANES<DIM>) store_row<T>(dq_rows, row, zeros);
        if (s.used_q == 0) continue;

        load_row<T>(q, rows_of<DIM>(f.q, b, s.first_q, head, f.head_dim));
        load_row<T>(dout, rows_of<DIM>(p.dout, b, s.first_q, head, f.head_dim_v));
        float *const weights = memory.weights + n * sizes.room;
        const float lse = load_scalar(f.lse, s, b, 0, head); /* asked for behind the rows, which it need not delay */
        head_terms h = {head, weights, memory.ds + n * sizes.room, PLAIN ? weights : memory.p, {},
                        load_scalar(p.dlse, s, b, 0, head)};
        const lane_rows v = rows_of<DIM>(f.v, b, s.first_k, head_kv, f.head_dim_v);
        find_dots<T, DIM>(h, n == 0 ? kept : nullptr, q, dout, k, v, keys);
        h.lse = {lse_in_base_2(lse), 0, 0};
        if (is_large(h.lse.high)) {
            if (PLAIN) h.lse.high = take_own_lse<DIM>(h.ds, f.softmax_scale * LOG2_E, keys, t, sums.rest);
            else h.lse = find_own_lse<DIM>(p, s, h.ds, b, head, keys, t, sums.rest);
        }
        const key_terms terms = recompute_row_weights<DIM, PLAIN>(p, s, h, b, keys);
        is_hidden = !PLAIN && ballot(FULL_WARP, terms.is_hidden) != 0;
        float sum_p = sum_of_warp(terms.p), sum_p_dp = sum_of_warp(terms.p_dp);
        uint32_t is_peaked = PLAIN ? ballot(FULL_WARP, terms.is_peaked) : 0;
        join_sums(sums, t, sum_p, sum_p_dp, is_peaked);
        float delta = mean_dp(sum_p, sum_p_dp);
        const bool is_finite = delta - delta == 0; /* the same in all warps */
        if (is_peaked != 0 && is_finite) delta = refine_delta<DIM>(h, keys, t, sums.rest, sum_p, delta);
        if (p.delta.data != nullptr) delta = load_scalar(p.delta, s, b, 0, head);
        find_ds<DIM>(h, delta, keys);
        float dq[8] = {};
        sum_dq<T, DIM>(dq, h, kept, k, keys, is_hidden);
        if (t.warps > 1) {
            give_part<DIM>(sums.dq, t, dq);
            sync_threads();
            if (t.rank == 0) take_parts<DIM>(dq, sums.dq);
        }
        if (t.rank == 0 && lane() < LANES<DIM>) store_gradient<T>(dq_rows, 0, dq, f.softmax_scale);
    }

    const lane_rows dk_rows = rows_of<DIM>(p.dk, b, s.first_k, head_kv, f.head_dim);
    const lane_rows dv_rows = rows_of<DIM>(p.dv, b, s.first_k, head_kv, f.head_dim_v);
    const bool is_simple = group == 1 && !is_hidden && dk_rows.at_once && dv_rows.at_once;
    for (int32_t key = t.rank * BLOCK<DIM>; key < s.seqlen_k; key += keys.step) {
        if (is_simple && key >= keys.own && key + BLOCK<DIM> <= keys.seen.last)
            store_block<T, DIM>(dk_rows, dv_rows, key, memory, q, dout, f.softmax_scale);
        else
            sum_block<T, DIM>(p, s, dk_rows, dv_rows, key, memory, sizes.room, keys.seen, b, first_head, q, dout);
    }
}

template <typename T, int DIM>
int launch(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    const bool packed = f.seqlen_k <= ALONE<DIM>;
    const int32_t items = packed ? WARPS : 1, room = (f.seqlen_k < MOST_KEYS ? f.seqlen_k + 3 : MOST_KEYS) / 4 * 4;
    const int32_t kept = room * DIM * 2 * items <= MOST_KEPT ? room * DIM * 2 : 0;
    const bool plain = is_plain(f);
    const int32_t numbers = 2 * f.group + (plain ? 0 : 1);
    const item_sizes sizes = {room, kept, kept + numbers * room * static_cast<int32_t>(sizeof(float))};
    const unsigned min_blocks = plain ? CTAS<DIM, true> : CTAS<DIM, false>;
    const launch_shape shape = shape_of(f, f.batch * f.num_heads_q / f.group, ALONE<DIM>,
                                        static_cast<size_t>(sizes.all) * static_cast<size_t>(items), min_blocks);
    if (plain) return LAUNCH((one_query_backward_sm80_kernel<T, DIM, true>), shape, stream, p, sizes);
    return LAUNCH((one_query_backward_sm80_kernel<T, DIM, false>), shape, stream, p, sizes);
}

template <typename T>
int launch_width(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    const int widest = f.head_dim > f.head_dim_v ? f.head_dim : f.head_dim_v;
    if (widest <= 32) return launch<T, 32>(p, stream);
    if (widest <= 64) return launch<T, 64>(p, stream);
    if (widest <= 128) return launch<T, 128>(p, stream);
    return launch<T, 256>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(one_query_backward_sm80)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0 || (p->forward.seqlen_q == 0 && p->forward.seqlen_k == 0)) return 0;
    if (p->forward.q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

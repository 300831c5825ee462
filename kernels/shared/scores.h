/* scores.h - which scores exist and what they are: sequences, masks, biases, caps and dropout, for every kernel.
 *
 * A score belongs to query row r and key row j of one sequence and head, both counted inside the sequence. In base 2:
 *
 *     y = log2(e) (t + bias - slope |r + alibi_diag - j|),   t = softcap tanh(scale q.k / softcap), or scale q.k
 *
 * lib/contract.md section 1 says what each part means; reference/bounds.md sections 4 and 11 count their roundings. */
#ifndef ATTEST_KERNELS_SHARED_SCORES_H
#define ATTEST_KERNELS_SHARED_SCORES_H

#include "kernels/device/device.h"
#include "kernels/shared/params.h"
#include "lib/attest.h"

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;

DEVICE uint32_t quotient(uint32_t n, const divisor &d)
{
    const uint32_t t = static_cast<uint32_t>(static_cast<uint64_t>(d.factor) * n >> 32);
    return (t + ((n - t) >> d.first_shift)) >> d.second_shift;
}

/* ---- sequences and intervals of keys ------------------------------------------------------------------------- */

/* Describes one sequence: where its rows begin, in tensors of stride `seqlen`, and how many of them there are. */
struct sequence {
    int64_t first_q, first_k, diag, alibi_diag;
    int32_t seqlen_q, seqlen_k; /* rows in memory: those past used_q and used_k take no part */
    int32_t used_q, used_k;
};

INLINE sequence find_sequence(const forward_params &p, int64_t b)
{
    sequence s = {0, 0, p.diag, p.alibi_diag, p.seqlen_q, p.seqlen_k, 0, 0};
    if (p.cu_seqlens_q != nullptr) {
        s.first_q = p.cu_seqlens_q[b], s.first_k = p.cu_seqlens_k[b];
        s.seqlen_q = p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b];
        s.seqlen_k = p.cu_seqlens_k[b + 1] - p.cu_seqlens_k[b];
    }
    s.used_q = p.seqused_q != nullptr ? p.seqused_q[b] : s.seqlen_q;
    s.used_k = p.seqused_k != nullptr ? p.seqused_k[b] : s.seqlen_k;
    if (p.diag_is_bottom_right) s.diag += s.used_k - s.used_q;
    if (p.alibi_diag_is_bottom_right) s.alibi_diag += s.used_k - s.used_q;
    return s;
}

DEVICE bool fits(const sequence &s, const lengths &most) { return s.used_q <= most.q && s.used_k <= most.k; }

/* Returns whether the sequence is this launch's, where several kernels share a problem. */
DEVICE bool is_ours(const forward_params &p, const sequence &s)
{
    bool out = fits(s, p.most);
    UNROLL for (int n = 0; n < MAX_SHARES - 1; ++n) out &= !fits(s, p.of_others[n]);
    return out;
}

/* Returns how many rows or keys are in use at most in a sequence that may be this launch's. Runs on the host. */
static inline int longest_of(const forward_params &p)
{
    const int q = p.seqlen_q < p.most.q ? p.seqlen_q : p.most.q, k = p.seqlen_k < p.most.k ? p.seqlen_k : p.most.k;
    return q > k ? q : k;
}

/* An interval is first .. last - 1; it is empty where first >= last. */
struct interval {
    int32_t first, last;
};

/* These return whether a .. a + count - 1 has a row inside, and whether all are inside. */
DEVICE bool touches(interval i, int32_t a, int count) { return a < i.last && a + count > i.first; }
DEVICE bool contains(interval i, int32_t a, int count) { return a >= i.first && a + count <= i.last; }

DEVICE int32_t clamp(int64_t j, int32_t seqlen) { return j < 0 ? 0 : j > seqlen ? seqlen : static_cast<int32_t>(j); }

/* Returns the keys that lengths and window leave to a query row. */
INLINE interval keys_of_row(const forward_params &p, const sequence &s, int32_t row)
{
    if (row >= s.used_q) return {0, 0};
    const int64_t diagonal = row + s.diag;
    return {p.window_left < 0 ? 0 : clamp(diagonal - p.window_left, s.used_k),
            p.window_right < 0 ? s.used_k : clamp(diagonal + p.window_right + 1, s.used_k)};
}

/* Returns the query rows that lengths and window leave to a key: keys_of_row, turned around. */
INLINE interval rows_of_key(const forward_params &p, const sequence &s, int32_t key)
{
    if (key >= s.used_k) return {0, 0};
    const int64_t diagonal = key - s.diag;
    return {p.window_right < 0 ? 0 : clamp(diagonal - p.window_right, s.used_q),
            p.window_left < 0 ? s.used_q : clamp(diagonal + p.window_left + 1, s.used_q)};
}

/* For rows first .. last - 1, all inside used_q, `some` has the keys that some of them see, and `all` those that all
 * see. Intervals move to the right from row to row. */
struct tile_keys {
    interval some, all;
};

INLINE tile_keys keys_of_rows(const forward_params &p, const sequence &s, int32_t first, int32_t last)
{
    if (first >= last) return {{0, 0}, {0, 0}};
    const interval top = keys_of_row(p, s, first), bottom = keys_of_row(p, s, last - 1);
    return {{top.first, bottom.last}, {bottom.first, top.last}};
}

/* Returns the rows that some of the keys first .. last - 1, all inside used_k, are seen by. */
INLINE interval rows_of_keys(const forward_params &p, const sequence &s, int32_t first, int32_t last)
{
    if (first >= last) return {0, 0};
    return {rows_of_key(p, s, first).first, rows_of_key(p, s, last - 1).last};
}

/* ---- masks of bytes, biases, ALiBi ------------------------------------------------------------------------------ */

/* Says what scores of one sequence and query head are made of. */
struct score_rule {
    const unsigned char *mask, *block_mask; /* of this sequence and head; NULL: none */
    const char *bias;
    float scale;                /* of q . k: with log2 e in it, unless there is a softcap */
    float cap;                  /* softcap log2 e; 0: none */
    float slope;                /* of ALiBi, times log2 e */
    uint32_t key[2], counter[2]; /* of dropout: the seed; words 2 and 3 of the counter */
};

DEVICE const char *scores_of(const score_tensor &t, int64_t b, int64_t head, int element_bytes)
{
    return static_cast<const char *>(t.data) + (b * t.batch + head * t.head) * element_bytes;
}

INLINE score_rule find_score_rule(const forward_params &p, int64_t b, int64_t head)
{
    score_rule rule = {};
    if (p.mask.data != nullptr) rule.mask = reinterpret_cast<const unsigned char *>(scores_of(p.mask, b, head, 1));
    if (p.block_mask.data != nullptr)
        rule.block_mask = reinterpret_cast<const unsigned char *>(scores_of(p.block_mask, b, head, 1));
    if (p.bias.data != nullptr) rule.bias = scores_of(p.bias, b, head, p.bias.dtype == ATTEST_FP32 ? 4 : 2);
    rule.cap = p.softcap * LOG2_E;
    rule.scale = p.softcap > 0 ? div_rn(p.softmax_scale, p.softcap) : p.softmax_scale * LOG2_E;
    rule.slope = p.alibi_slopes != nullptr ? p.alibi_slopes[head] * LOG2_E : 0;
    if (p.dropout_threshold != 0) {
        const uint64_t seed = p.dropout_seed_at != nullptr ? *p.dropout_seed_at : p.dropout_seed;
        const uint64_t offset = p.dropout_offset_at != nullptr ? *p.dropout_offset_at : p.dropout_offset;
        const int64_t index = b * p.num_heads_q + head;
        const int64_t stream = p.dropout_stream != nullptr ? p.dropout_stream[index] : index;
        const uint64_t high = offset + (static_cast<uint64_t>(stream) << 32);
        rule.key[0] = static_cast<uint32_t>(seed), rule.key[1] = static_cast<uint32_t>(seed >> 32);
        rule.counter[0] = static_cast<uint32_t>(high), rule.counter[1] = static_cast<uint32_t>(high >> 32);
    }
    return rule;
}

/* Returns whether the block mask lets row r see key j. */
DEVICE bool passes_block_mask(const forward_params &p, const score_rule &rule, int32_t row, int32_t key)
{
    return rule.block_mask[row / p.block_q * p.block_mask.seqlen_q + key / p.block_k * p.block_mask.seqlen_k] != 0;
}

/* Returns whether masks of bytes let row r see key j, both inside the interval. It reads no more bytes than needed. */
DEVICE bool passes_masks(const forward_params &p, const score_rule &rule, int32_t row, int32_t key)
{
    if (rule.mask != nullptr && rule.mask[row * p.mask.seqlen_q + key * p.mask.seqlen_k] == 0) return false;
    return rule.block_mask == nullptr || passes_block_mask(p, rule, row, key);
}

DEVICE float load_bias(const forward_params &p, const score_rule &rule, int64_t row, int64_t key)
{
    const int64_t at = row * p.bias.seqlen_q + key * p.bias.seqlen_k;
    if (p.bias.dtype == ATTEST_FP32) return reinterpret_cast<const float *>(rule.bias)[at];
    if (p.bias.dtype == ATTEST_FP16) return to_f32(reinterpret_cast<const f16 *>(rule.bias)[at]);
    return to_f32(reinterpret_cast<const bf16 *>(rule.bias)[at]);
}

constexpr float LARGEST = 0x1.fffffep127f;

/* From here on, one fp32 number of a score's size, in base 2, is too coarse for weights: half a unit in its last place
 * is 2^-14 of a weight here, and doubles whenever the score does. Therefore
 *
 *   - a row whose maximum is large, and whose biases may be why, is retried with the largest of them, its reference,
 *     subtracted from biases and sink: what they have in common, as those of a row which a mask of -1e9 hides
 *     whole, is
 *     then in lse alone;
 *   - a backward pass finds the maximum and the sum of such a row's own weights again, and does not use the lse that
 *   it
 *     is given, unless that is of a larger key set (external_lse).
 *
 * Other rows are what they would be without such rows beside them. Infinite scores are left as they are. */
constexpr float LARGE_LSE = 0x1p10f;

DEVICE bool is_large(float y)
{
    const float size = float_of(bits_of(y) & 0x7fffffff);
    return size >= LARGE_LSE && size < infinity_f32();
}

/* Keeps a finite lse finite: the lse of a row whose every bias is the lowest number of fp32 is that number. */
DEVICE float lse_in_base_2(float lse)
{
    const float y = lse * LOG2_E;
    const bool has_overflown = y - y != 0 && lse - lse == 0;
    return !has_overflown ? y : lse < 0 ? -LARGEST : LARGEST;
}

/* Returns the largest bias of the keys first, first + step, ... that a row sees, counted from the first that lengths
 * and window leave to it, or -inf where there is none. */
DEVICE float largest_bias(const forward_params &p, const score_rule &rule, const sequence &s, int32_t row, int first,
                          int step)
{
    const interval keys = keys_of_row(p, s, row);
    float largest = -infinity_f32();
    ROLLED for (int64_t key = keys.first + first; key < keys.last; key += step)
        if (passes_masks(p, rule, row, static_cast<int32_t>(key)))
            largest = max_f32(largest, load_bias(p, rule, row, key)); /* ignores a NaN, which reaches the sum */
    return largest;
}

/* Returns whether a row sees a key, whatever the score. All lanes of a warp call it, with the same row. */
DEVICE_CALLED bool sees_a_key(const forward_params &p, int64_t b, int64_t head, int32_t row)
{
    const sequence s = find_sequence(p, b);
    const score_rule rule = find_score_rule(p, b, head);
    const interval keys = keys_of_row(p, s, row);
    for (int64_t first = keys.first; first < keys.last; first += 32) {
        const int64_t key = first + lane();
        bool is_seen = key < keys.last && passes_masks(p, rule, row, static_cast<int32_t>(key));
        if (is_seen && rule.bias != nullptr) is_seen = load_bias(p, rule, row, key) != -infinity_f32();
        if (ballot(FULL_WARP, is_seen) != 0) return true;
    }
    return false;
}

/* Returns the reference of a row with that largest bias. The sink counts as a score, if there is one. */
DEVICE float reference_of_row(float largest, float sink)
{
    const float reference = max_f32(largest, sink);
    return reference - reference == 0 ? reference : 0;
}

struct score {
    float y;      /* in base 2 */
    float slope;  /* of t by s: 1 - tanh^2 under a softcap, else 1 */
    bool visible; /* else the other two mean nothing */
};

/* Finds the score from q . k = dot, with r and j inside the interval. `reference` is 0, or what is subtracted from the
 * row's biases. */
INLINE score find_score(const forward_params &p, const score_rule &rule, const sequence &s, int32_t row, int32_t key,
                        float dot, float reference)
{
    score out = {dot * rule.scale, 1, passes_masks(p, rule, row, key)};
    if (!out.visible) return out;
    if (rule.cap > 0) {
        const float tanh = tanh_accurate(out.y);
        out.y = rule.cap * tanh;
        out.slope = fma_rn(-tanh, tanh, 1.0f);
    }
    if (rule.bias != nullptr) {
        const float bias = load_bias(p, rule, row, key);
        out.visible = bias != -infinity_f32();
        const float shifted = fma_rn(bias - reference, LOG2_E, out.y);
        const bool has_overflown = shifted == -infinity_f32() && out.visible && out.y > -infinity_f32();
        out.y = has_overflown ? -LARGEST : shifted; /* a mask may be the lowest number of a format */
    }
    if (p.alibi_slopes != nullptr) {
        const int64_t distance = row + s.alibi_diag - key;
        out.y = fma_rn(-rule.slope, static_cast<float>(distance < 0 ? -distance : distance), out.y);
    }
    return out;
}

/* Returns whether scores are no more than scale (q . k), and visible wherever the interval says so. Runs on the
 * host. */
static inline bool has_plain_scores(const forward_params &p)
{
    return p.mask.data == nullptr && p.block_mask.data == nullptr && p.bias.data == nullptr &&
           p.alibi_slopes == nullptr && p.softcap == 0 && p.dropout_threshold == 0;
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* Holds a counter of Philox4x32-10 (Salmon et al. 2011), then the random bits that it becomes: lib/attest.h says which
 * are whose. */
struct philox_counter {
    uint32_t at[4];
};

INLINE philox_counter dropout_counter(const score_rule &rule, int64_t i, int64_t eight)
{
    return {{static_cast<uint32_t>(eight), static_cast<uint32_t>(i), rule.counter[0], rule.counter[1]}};
}

/* Draws the bits of N counters at once: they share the keys of the rounds. */
template <int N>
DEVICE void draw_philox(philox_counter (&of)[N], const score_rule &rule)
{
    uint32_t k[2] = {rule.key[0], rule.key[1]};
    UNROLL for (int round = 0; round < 10; ++round) {
        UNROLL for (int n = 0; n < N; ++n) {
            uint32_t(&c)[4] = of[n].at;
            const uint64_t a = static_cast<uint64_t>(0xD2511F53) * c[0], b = static_cast<uint64_t>(0xCD9E8D57) * c[2];
            c[0] = static_cast<uint32_t>(b >> 32) ^ c[1] ^ k[0];
            c[1] = static_cast<uint32_t>(b);
            c[2] = static_cast<uint32_t>(a >> 32) ^ c[3] ^ k[1];
            c[3] = static_cast<uint32_t>(a);
        }
        k[0] += 0x9E3779B9, k[1] += 0xBB67AE85;
    }
}

/* Holds the random bits of eight neighbouring keys of one row. */
struct dropout_bits {
    int64_t eight; /* j / 8; -1: none yet */
    uint32_t bits[4];
};

DEVICE void draw_dropout_bits(const score_rule &rule, int64_t i, int64_t eight, dropout_bits &out)
{
    philox_counter drawn[1] = {dropout_counter(rule, i, eight)};
    draw_philox(drawn, rule);
    out.eight = eight;
    for (int w = 0; w < 4; ++w) out.bits[w] = drawn[0].at[w];
}

/* Returns whether dropout keeps the score of row r and key j. `last` remembers the row's last eight keys: set `eight`
 * to -1 before another row's first call. */
DEVICE bool is_kept(const forward_params &p, const score_rule &rule, int32_t row, int32_t key, dropout_bits &last)
{
    if (p.dropout_threshold == 0) return true;
    const int64_t i = p.q_start + row, j = p.k_start + key;
    if (j / 8 != last.eight) draw_dropout_bits(rule, i, j / 8, last);
    const unsigned lane = static_cast<unsigned>(j % 8), pair = lane / 2;
    const uint32_t word = pair == 0 ? last.bits[0] : pair == 1 ? last.bits[1] : pair == 2 ? last.bits[2] : last.bits[3];
    return (word >> 16 * (lane % 2) & 0xffff) >= p.dropout_threshold;
}

/* ---- tiles that masks of bytes hide --------------------------------------------------------------------------- */

/* Returns the rows or keys of a block of `size`, as far as they lie in from .. to - 1. */
INLINE interval inside_block(int64_t block, int32_t size, int32_t from, int32_t to)
{
    const int64_t first = block * size, last = first + size;
    return {first > from ? static_cast<int32_t>(first) : from, last < to ? static_cast<int32_t>(last) : to};
}

/* Returns whether masks of bytes hide every score of rows x keys from (row, key) on, as far as a look at each mask by
 * itself can tell; the rows lie inside used_q. Bytes that only scores outside the window have are not read. All THREADS
 * of the CTA call it with the same values; `votes` has room for one word a warp. There must be a barrier between two
 * calls that share `votes`. */
template <int THREADS>
DEVICE bool is_hidden(const forward_params &p, const score_rule &rule, const sequence &s, int32_t row, int rows,
                      int32_t key, int keys, uint32_t *votes)
{
    const int thread = static_cast<int>(thread_x());
    bool seen = rule.mask == nullptr, block_seen = rule.block_mask == nullptr;
    if (rule.mask != nullptr)
        for (int n = thread; n < rows * keys; n += THREADS) {
            const int32_t r = row + n / keys, j = key + n % keys;
            if (contains(keys_of_row(p, s, r), j, 1))
                seen |= rule.mask[r * p.mask.seqlen_q + j * p.mask.seqlen_k] != 0;
        }
    if (rule.block_mask != nullptr) {
        const int32_t first_q = row / p.block_q, first_k = key / p.block_k;
        const int64_t across = (key + keys - 1) / p.block_k - first_k + 1;
        const int64_t blocks = ((row + rows - 1) / p.block_q - first_q + 1) * across;
        for (int64_t n = thread; n < blocks; n += THREADS) {
            const int64_t block_row = first_q + n / across, block = first_k + n % across;
            const interval in_q = inside_block(block_row, p.block_q, row, row + rows);
            const interval in_k = inside_block(block, p.block_k, key, key + keys);
            if (touches(keys_of_rows(p, s, in_q.first, in_q.last).some, in_k.first, in_k.last - in_k.first))
                block_seen |= rule.block_mask[block_row * p.block_mask.seqlen_q + block * p.block_mask.seqlen_k] != 0;
        }
    }
    const uint32_t by_mask = ballot(FULL_WARP, seen), by_block = ballot(FULL_WARP, block_seen);
    if (lane() == 0) votes[warp()] = (by_mask != 0 ? 1u : 0u) | (by_block != 0 ? 2u : 0u);
    sync_threads();
    uint32_t all = 0;
    for (int w = 0; w < THREADS / 32; ++w) all |= votes[w];
    return all != 3;
}

/* ---- rows of features ------------------------------------------------------------------------------------------- */

/* Points to a row of features in global memory. */
struct row_pointer {
    char *data;
    int32_t dtype, by_four, length;
};

INLINE row_pointer row_of(const row_tensor &t, int64_t b, int64_t row, int64_t head, int32_t length)
{
    const int64_t offset = b * t.batch + row * t.seqlen + head * t.head;
    return {static_cast<char *>(t.data) + offset * (t.dtype == ATTEST_FP32 ? 4 : 2), t.dtype, t.by_four, length};
}

DEVICE float load_feature(const row_pointer &row, int x)
{
    if (row.dtype == ATTEST_FP32) return reinterpret_cast<const float *>(row.data)[x];
    if (row.dtype == ATTEST_FP16) return to_f32(reinterpret_cast<const f16 *>(row.data)[x]);
    return to_f32(reinterpret_cast<const bf16 *>(row.data)[x]);
}

DEVICE void store_feature(const row_pointer &row, int x, float value)
{
    if (row.dtype == ATTEST_FP32) reinterpret_cast<float *>(row.data)[x] = one_nan_f32(value);
    else if (row.dtype == ATTEST_FP16) reinterpret_cast<f16 *>(row.data)[x] = to_f16(value);
    else reinterpret_cast<bf16 *>(row.data)[x] = to_bf16(value);
}

/* Loads features x .. x + 3, with zeros past the row's end. */
INLINE quad load_features(const row_pointer &row, int x)
{
    if (row.dtype == ATTEST_FP32 && row.by_four && x + 4 <= row.length)
        return load_global_16<quad>(reinterpret_cast<const float *>(row.data) + x);
    quad out;
    for (int n = 0; n < 4; ++n) out.at[n] = x + n < row.length ? load_feature(row, x + n) : 0.0f;
    return out;
}

DEVICE void store_features(const row_pointer &row, int x, const quad &value)
{
    for (int n = 0; n < 4; ++n)
        if (x + n < row.length) store_feature(row, x + n, value.at[n]);
}

#endif

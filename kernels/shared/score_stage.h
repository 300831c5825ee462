/* score_stage.h - scores of a warp's fragments: dot products of 16 rows and KEYS keys become scores in registers, each
 * feature by a short piece of code over all of a lane's numbers.
 *
 * A lane has s[n][2 half + e], of row g + 8 half and key 8 n + 2 t + e, g = lane / 4, t = lane % 4. Bits are those of
 * find_score and is_kept of shared/scores.h, which take one score at a time, wherever all numbers are finite. Where one
 * is not, a hidden score may be a NaN here; then the row's sums are no numbers, which kernels look for at the end, and
 * take such rows again by the other way. */
#ifndef ATTEST_KERNELS_SHARED_SCORE_STAGE_H
#define ATTEST_KERNELS_SHARED_SCORE_STAGE_H

#include "kernels/device/device.h"
#include "kernels/shared/params.h"
#include "kernels/shared/score_tile.h"
#include "kernels/shared/scores.h"

template <int KEYS>
using score_fragment = float[KEYS / 8][4];

/* What scores may have beside dot products, lengths and windows: a kernel that is compiled for some of it alone is
 * shorter and has more registers. Masks are those of bytes and of blocks. */
enum score_features : unsigned {
    HAS_MASKS = 1,
    HAS_BIAS = 2,
    HAS_ALIBI = 4,
    HAS_CAP = 8,
    HAS_DROPOUT = 16,
    EVERY_FEATURE = 31
};

/* Returns what a problem has. Runs on the host. */
static inline unsigned features_of(const forward_params &p)
{
    const bool has_masks = p.mask.data != nullptr || p.block_mask.data != nullptr;
    return (has_masks ? HAS_MASKS : 0u) | (p.bias.data != nullptr ? HAS_BIAS : 0u) |
           (p.alibi_slopes != nullptr ? HAS_ALIBI : 0u) | (p.softcap > 0 ? HAS_CAP : 0u) |
           (p.dropout_threshold != 0 ? HAS_DROPOUT : 0u);
}

/* Takes a factor that all scores have out of the rule and returns it: the exponent takes it with the maximum. So maxima
 * of dot products are those of scores, and masks of bytes give the bits that a window gives. It is positive: 0 times a
 * hidden score would be no number. */
DEVICE float take_factor(score_rule &rule, const forward_params &p)
{
    if (p.bias.data != nullptr || p.alibi_slopes != nullptr) return 1;
    float &of_rule = p.softcap > 0 ? rule.cap : rule.scale;
    const float factor = of_rule > 0 ? of_rule : 1;
    if (of_rule > 0) of_rule = 1;
    return factor;
}

/* Returns the rule with nothing but FEATURES in it, which is all that a launch of such a kernel has, once the factor
 * has been taken. */
template <unsigned FEATURES>
INLINE score_rule only(const score_rule &rule)
{
    score_rule out = rule;
    if (FEATURES == HAS_MASKS || FEATURES == HAS_DROPOUT) out.scale = 1;
    if (FEATURES == HAS_CAP) out.cap = 1;
    if ((FEATURES & HAS_MASKS) == 0) out.mask = out.block_mask = nullptr;
    if ((FEATURES & HAS_BIAS) == 0) out.bias = nullptr;
    if ((FEATURES & HAS_CAP) == 0) out.cap = 0;
    return out;
}

/* ---- what each feature does to the scores of a fragment -------------------------------------------------------- */

/* Computes s = cap tanh(scale s). */
template <int KEYS>
DEVICE void cap_scores(score_fragment<KEYS> &s, float scale, float cap)
{
    float largest = 0;
    UNROLL for (int n = 0; n < KEYS / 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e) {
            s[n][e] *= scale;
            largest = max_f32(largest, float_of(bits_of(s[n][e]) & 0x7fffffff));
        }
    if (ballot(FULL_WARP, largest >= 0.5f) == 0) {
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) s[n][e] = tanh_near_zero(s[n][e]);
    } else {
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) s[n][e] = tanh_accurate(s[n][e]);
    }
    if (cap != 1)
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) s[n][e] *= cap;
}

/* Loads the biases of a lane's two neighbouring keys from a tile of them. */
template <int BYTES, bool IS_F16>
DEVICE void load_bias_pair(float (&bias)[2], const unsigned char *at)
{
    if constexpr (BYTES == 4) {
        const uint64_t pair = *reinterpret_cast<const uint64_t *>(at);
        UNROLL for (int e = 0; e < 2; ++e) bias[e] = float_of(static_cast<uint32_t>(pair >> 32 * e));
    } else {
        const uint32_t pair = *reinterpret_cast<const uint32_t *>(at);
        UNROLL for (int e = 0; e < 2; ++e) {
            const uint16_t bits = static_cast<uint16_t>(pair >> 16 * e);
            bias[e] = IS_F16 ? to_f32(f16{bits}) : to_f32(bf16{bits});
        }
    }
}

/* Adds biases less their rows' references, in base 2, from a tile of biases; `at` points to that of the lane's first
 * row and key. A hidden score, whose bias is -inf, becomes -LARGEST, as does one whose bias is the lowest number of its
 * format: its weight is 0 either way, unless all of the row are such. */
template <int BYTES, bool IS_F16, int KEYS>
DEVICE void add_biases(score_fragment<KEYS> &s, const unsigned char *at, int pitch, const float (&reference)[2],
                       bool has_references)
{
    UNROLL for (int half = 0; half < 2; ++half, at += 8 * pitch)
        UNROLL for (int n = 0; n < KEYS / 8; ++n) {
            float bias[2];
            load_bias_pair<BYTES, IS_F16>(bias, at + 8 * BYTES * n);
            UNROLL for (int e = 0; e < 2; ++e) {
                if (has_references) bias[e] -= reference[half];
                float &y = s[n][2 * half + e];
                y = max_or_nan_f32(fma_rn(bias[e], LOG2_E, y), -LARGEST);
            }
        }
}

/* Hides what a tile of masks hides; `at` points to the byte of the lane's first row and key. */
template <int KEYS>
DEVICE void hide_masked(score_fragment<KEYS> &s, const unsigned char *at, int pitch)
{
    UNROLL for (int half = 0; half < 2; ++half, at += 8 * pitch)
        UNROLL for (int n = 0; n < KEYS / 8; ++n) {
            const uint32_t pair = *reinterpret_cast<const uint16_t *>(at + 8 * n);
            if ((pair & 0xff) == 0) s[n][2 * half] = -infinity_f32();
            if ((pair & 0xff00) == 0) s[n][2 * half + 1] = -infinity_f32();
        }
}

/* Subtracts ALiBi's slope |distance|, where the lane's first row and key are `distance` apart, less than 2^23: then
 * all distances are exact in fp32. */
template <int KEYS>
DEVICE void take_distances(score_fragment<KEYS> &s, float slope, float distance)
{
    const bool is_before = distance + 8 <= 0, is_after = distance >= KEYS - 7; /* of the second row, the last key */
    if (ballot(FULL_WARP, !is_before && !is_after) == 0) { /* all keys of a row lie on one side of it */
        const float signed_slope = is_after && !is_before ? -slope : slope;
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) {
                const float offset = static_cast<float>(8 * (e / 2) - 8 * n - e % 2);
                s[n][e] = fma_rn(signed_slope, distance + offset, s[n][e]);
            }
    } else {
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) {
                const float d = distance + static_cast<float>(8 * (e / 2) - 8 * n - e % 2);
                s[n][e] = fma_rn(-slope, float_of(bits_of(d) & 0x7fffffff), s[n][e]);
            }
    }
}

/* Hides what lengths and window hide from the lane's rows, `row` and row + 8; its first key is `key`. */
template <int KEYS>
DEVICE void hide_outside(score_fragment<KEYS> &s, const forward_params &p, const sequence &of, int32_t row, int32_t key)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        const interval keys = keys_of_row(p, of, row + 8 * half);
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                const int32_t j = key + 8 * n + e;
                if (j < keys.first || j >= keys.last) s[n][2 * half + e] = -infinity_f32();
            }
    }
}

/* Hides what a block mask hides, of blocks that cut the fragment. Blocks are looked up in turns, each score is hidden
 * by a bit: code for each of them to find its own block would be long. */
template <int KEYS>
DEVICE void hide_blocked(score_fragment<KEYS> &s, const forward_params &p, const score_rule &rule, const sequence &of,
                         int32_t row, int32_t key)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        const interval keys = keys_of_row(p, of, row + 8 * half);
        uint32_t seen = 0;
        ROLLED for (int i = 0; i < KEYS / 4; ++i) {
            const int32_t j = key + i / 2 * 8 + i % 2;
            if (contains(keys, j, 1) && passes_block_mask(p, rule, row + 8 * half, j)) seen |= 1u << i;
        }
        UNROLL for (int i = 0; i < KEYS / 4; ++i)
            if ((seen >> i & 1) == 0) s[i / 2][2 * half + i % 2] = -infinity_f32();
    }
}

/* Turns number w of lane t of each quad into number t of lane w. */
DEVICE void transpose_in_quad(uint32_t (&at)[4])
{
    const bool is_odd = lane() % 2 != 0, is_upper = lane() / 2 % 2 != 0;
    UNROLL for (int n = 0; n < 4; n += 2) {
        const uint32_t got = shfl_xor(FULL_WARP, is_odd ? at[n] : at[n + 1], 1);
        if (is_odd) at[n] = got;
        else at[n + 1] = got;
    }
    UNROLL for (int n = 0; n < 2; ++n) {
        const uint32_t got = shfl_xor(FULL_WARP, is_upper ? at[n] : at[n + 2], 2);
        if (is_upper) at[n] = got;
        else at[n + 2] = got;
    }
}

/* Calls take(n, e, is_dropped) for each of a lane's pairs of a tile whose first key is a multiple of 8 of dropout's
 * counter. `i` is the counter's index of the lane's first row, `eight` that of the tile's first eight keys. Each lane
 * of a quad draws the bits of every fourth eight of a row; then they exchange words, as a word is of a lane's two
 * keys. */
template <int KEYS, typename F>
DEVICE void draw_dropped(const score_rule &rule, int64_t i, int64_t eight, uint32_t threshold, F take)
{
    constexpr int CALLS = KEYS / 32;
    const uint32_t least = threshold << 16;
    UNROLL for (int half = 0; half < 2; ++half) {
        philox_counter drawn[CALLS];
        UNROLL for (int call = 0; call < CALLS; ++call)
            drawn[call] = dropout_counter(rule, i + 8 * half, eight + 4 * call + static_cast<int>(lane()) % 4);
        draw_philox(drawn, rule);
        UNROLL for (int call = 0; call < CALLS; ++call) {
            transpose_in_quad(drawn[call].at);
            UNROLL for (int n = 0; n < 4; ++n) {
                take(4 * call + n, 2 * half, drawn[call].at[n] << 16 < least);
                take(4 * call + n, 2 * half + 1, drawn[call].at[n] < least);
            }
        }
    }
}

/* Sets to 0 the weights that dropout drops, of such a tile. */
template <int KEYS>
DEVICE void drop_weights(score_fragment<KEYS> &weights, const score_rule &rule, int64_t i, int64_t eight,
                         uint32_t threshold)
{
    draw_dropped<KEYS>(rule, i, eight, threshold, [&](int n, int e, bool is_dropped) {
        if (is_dropped) weights[n][e] = 0;
    });
}

/* ---- tiles of masks and biases ---------------------------------------------------------------------------------- */

/* Says where masks and biases of tiles of ROWS x COLUMNS are: in global memory, and in shared memory, where masks have
 * STAGES. The pointers are never NULL: the compiler must see that they point to shared memory. */
template <int ROWS, int COLUMNS, int STAGES>
struct score_stages {
    using mask_tile = score_tile<1, ROWS, COLUMNS>;
    using wide_bias = score_tile<4, ROWS, COLUMNS>;
    using narrow_bias = score_tile<2, ROWS, COLUMNS>;
    static constexpr int MASK_BYTES = STAGES * mask_tile::SIZE;
    score_source mask_source, bias_source;
    unsigned char *mask, *bias;
    bool has_mask, has_bias;
};

template <typename stages>
INLINE stages find_score_stages(const forward_params &p, const score_rule &rule, unsigned char *shared, bool has_stages)
{
    stages out = {};
    out.has_mask = has_stages && rule.mask != nullptr, out.has_bias = has_stages && rule.bias != nullptr;
    out.mask = shared, out.bias = shared + (out.has_mask ? stages::MASK_BYTES : 0);
    if (out.has_mask) out.mask_source = find_score_source(p.mask, rule.mask, 1);
    if (out.has_bias) out.bias_source = find_score_source(p.bias, rule.bias, p.bias.dtype == ATTEST_FP32 ? 4 : 2);
    return out;
}

/* These load a tile, THREADS of the CTA, of which this is `thread`. Copies are asynchronous: wait for them. */
template <int THREADS, typename stages>
DEVICE void load_masks(const stages &to, int stage, int32_t row, int rows, int32_t key, int keys,
                       unsigned thread = thread_x())
{
    using tile = typename stages::mask_tile;
    if (to.has_mask)
        load_score_tile<tile, THREADS>(to.mask + stage * tile::SIZE, to.mask_source, row, rows, key, keys, thread);
}

template <int THREADS, typename stages>
DEVICE void load_biases(const stages &to, int32_t dtype, int32_t row, int rows, int32_t key, int keys,
                        unsigned thread = thread_x())
{
    using wide = typename stages::wide_bias;
    using narrow = typename stages::narrow_bias;
    if (!to.has_bias) return;
    if (dtype == ATTEST_FP32) load_score_tile<wide, THREADS>(to.bias, to.bias_source, row, rows, key, keys, thread);
    else load_score_tile<narrow, THREADS>(to.bias, to.bias_source, row, rows, key, keys, thread);
}

/* Returns whether the masks that this thread has loaded, and waited for, let a row see a key. */
template <int THREADS, typename stages>
DEVICE bool has_own_visible(const stages &from, int stage)
{
    using tile = typename stages::mask_tile;
    return has_own_element<tile, THREADS>(from.mask + stage * tile::SIZE, from.mask_source, thread_x());
}

/* Names a lane's first row and key of a fragment: in the sequence, and in the tile that the stages hold. */
struct fragment_place {
    int32_t row, key;
    int tile_row, tile_key;
};

INLINE fragment_place place_of_lane(int32_t row, int32_t key, int tile_row, int tile_key)
{
    const int g = static_cast<int>(lane()) / 4, x = static_cast<int>(lane()) % 4 * 2;
    return {row + g, key + x, tile_row + g, tile_key + x};
}

/* Says what hides pairs of a fragment beside masks and biases: lengths or window; the block mask. */
struct fragment_cut {
    bool is_cut, is_blocked;
};

template <typename stages>
DEVICE const unsigned char *mask_at(const stages &from, int stage, const fragment_place &at)
{
    using tile = typename stages::mask_tile;
    return from.mask + stage * tile::SIZE + at.tile_row * pitch_of<tile>(from.mask_source) + at.tile_key;
}

/* Calls take(place, pitch, type) with the lane's place in the tile of biases; `type` names how many bytes they have,
 * and whether they are fp16. */
template <int BYTES, bool IS_F16>
struct bias_type {
    static constexpr int bytes = BYTES;
    static constexpr bool is_f16 = IS_F16;
};

template <typename stages, typename F>
DEVICE void with_biases(const stages &from, int32_t dtype, const fragment_place &at, F take)
{
    if (dtype == ATTEST_FP32) {
        const int pitch = pitch_of<typename stages::wide_bias>(from.bias_source);
        take(from.bias + at.tile_row * pitch + at.tile_key * 4, pitch, bias_type<4, false>());
    } else {
        const int pitch = pitch_of<typename stages::narrow_bias>(from.bias_source);
        const unsigned char *const first = from.bias + at.tile_row * pitch + at.tile_key * 2;
        if (dtype == ATTEST_FP16) take(first, pitch, bias_type<2, true>());
        else take(first, pitch, bias_type<2, false>());
    }
}

/* Turns dot products into scores. `reference` is what is subtracted from the biases of the lane's two rows, if one of
 * the warp has that. */
template <unsigned FEATURES, int KEYS, typename stages>
DEVICE void find_fragment_scores(score_fragment<KEYS> &s, const stages &from, int stage, const forward_params &p,
                                 const score_rule &rule, const sequence &of, const fragment_place &at, fragment_cut cut,
                                 const float (&reference)[2], bool has_references)
{
    if (rule.cap > 0) {
        cap_scores<KEYS>(s, rule.scale, rule.cap);
    } else if (rule.scale != 1) {
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) s[n][e] *= rule.scale;
    }
    if (rule.bias != nullptr)
        with_biases(from, p.bias.dtype, at, [&](const unsigned char *first, int pitch, auto type) {
            add_biases<decltype(type)::bytes, decltype(type)::is_f16, KEYS>(s, first, pitch, reference, has_references);
        });
    if ((FEATURES & HAS_ALIBI) != 0 && p.alibi_slopes != nullptr)
        take_distances<KEYS>(s, rule.slope, static_cast<float>(static_cast<int32_t>(at.row + of.alibi_diag - at.key)));
    if (rule.mask != nullptr)
        hide_masked<KEYS>(s, mask_at(from, stage, at), pitch_of<typename stages::mask_tile>(from.mask_source));
    if (cut.is_cut) hide_outside<KEYS>(s, p, of, at.row, at.key);
    if (cut.is_blocked) hide_blocked<KEYS>(s, p, rule, of, at.row, at.key);
}

/* Returns how many bytes of shared memory the stages of a launch get beside `others`: none where a CTA has no room for
 * them. Runs on the host. */
template <typename stages>
static inline size_t bytes_of_stages(const forward_params &p, size_t others, void *stream)
{
    const size_t of_bias = p.bias.dtype == ATTEST_FP32 ? stages::wide_bias::SIZE : stages::narrow_bias::SIZE;
    const size_t bytes = (p.mask.data != nullptr ? stages::MASK_BYTES : 0) + (p.bias.data != nullptr ? of_bias : 0);
    return others + bytes <= launch_max_shared(stream) ? bytes : 0;
}

/* Returns whether fragments may take rows row .. row + rows - 1 and the keys: whether distances are exact in fp32,
 * eights of keys are dropout's, and masks and biases have their stages. */
DEVICE bool fits_fragments(const forward_params &p, const sequence &s, int32_t row, int rows, interval keys,
                           bool has_stages)
{
    const int64_t most = 1 << 22, first = row + s.alibi_diag - keys.last, last = row + rows + s.alibi_diag - keys.first;
    return (p.alibi_slopes == nullptr || (first > -most && last < most)) &&
           (p.dropout_threshold == 0 || p.k_start % 8 == 0) &&
           (has_stages || (p.mask.data == nullptr && p.bias.data == nullptr));
}

/* ---- tiles that a block mask hides ------------------------------------------------------------------------------- */

/* Says of 32 tiles of keys, the first of which is `first`, which ones a warp's rows see some of and all of, as a block
 * mask has it, and which ones the CTA's rows see some of: a bit each. */
struct seen_tiles {
    int32_t first;
    uint32_t some, all, some_of_cta;
};

/* Looks at the block mask of rows row .. row + rows - 1, and of keys before `last`; a lane takes a tile of KEYS. */
template <int KEYS>
INLINE seen_tiles look_at_blocks(const forward_params &p, const score_rule &rule, int32_t row, int rows, int32_t first,
                                 int32_t last)
{
    const int64_t key = (static_cast<int64_t>(first) + lane()) * KEYS;
    bool some = false, all = true;
    if (rows > 0 && key < last) {
        const int64_t last_key = key + KEYS < last ? key + KEYS - 1 : last - 1;
        for (int32_t y = row / p.block_q; y <= (row + rows - 1) / p.block_q; ++y)
            for (int64_t x = key / p.block_k; x <= last_key / p.block_k; ++x) {
                const bool seen = rule.block_mask[y * p.block_mask.seqlen_q + x * p.block_mask.seqlen_k] != 0;
                some |= seen, all &= seen;
            }
    }
    const uint32_t some_of_warp = ballot(FULL_WARP, some);
    return {first, some_of_warp, ballot(FULL_WARP, all), some_of_warp};
}

#endif

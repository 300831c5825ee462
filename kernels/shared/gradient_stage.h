/* gradient_stage.h - gradients of scores that are not plain, by fragments in registers: from dot products and dp to
 * weights and dx, each feature by a short piece of code over all of a lane's numbers.
 *
 * A chunk is 16 rows that a warp owns times 16 of the other side. Lane 4 g + t has eight pairs of it, n = 0, 1 and
 * e = 0 .. 3: of own row g + 8 (e / 2) and row 8 n + 2 t + e % 2 of the other side. Own rows are queries, or keys
 * (BY_KEY).
 *
 * Bits are those of find_pair_gradient wherever all numbers are finite. A hidden pair has the weight 0, which here is
 * multiplied with whatever else the pair has: where that is not finite, no sum that it is in is finite, for which
 * kernels look at the end, to take such rows again pair by pair. */
#ifndef ATTEST_KERNELS_SHARED_GRADIENT_STAGE_H
#define ATTEST_KERNELS_SHARED_GRADIENT_STAGE_H

#include "kernels/shared/backward_scores.h"
#include "kernels/shared/score_stage.h"

/* Holds what a lane has of a chunk. */
struct gradient_chunk {
    float weight[2][4]; /* dot products, then scores, exponents, weights */
    float dx[2][4];     /* dp, then dx */
    float slope[2][4];  /* of ds by dx: under a softcap alone */
    float kept[2][4];   /* weights, without those that dropout drops */
};

/* Names a chunk's first query row and key: in the sequence, and in the tile that the stages hold. */
struct chunk_place {
    int32_t row, key;
    int tile_row, tile_key;
};

/* These say which pair element e of column group n is: counted from the lane's first row and key. */
template <bool BY_KEY>
DEVICE constexpr int row_step(int n, int e)
{
    return BY_KEY ? 8 * n + e % 2 : e / 2 * 8;
}

template <bool BY_KEY>
DEVICE constexpr int key_step(int n, int e)
{
    return BY_KEY ? e / 2 * 8 : 8 * n + e % 2;
}

template <bool BY_KEY>
DEVICE int lane_row()
{
    return static_cast<int>(BY_KEY ? lane() % 4 * 2 : lane() / 4);
}

template <bool BY_KEY>
DEVICE int lane_key()
{
    return static_cast<int>(BY_KEY ? lane() / 4 : lane() % 4 * 2);
}

/* Calls take(n, e) for each of a lane's pairs. */
template <typename F>
DEVICE void for_pairs(F take)
{
    UNROLL for (int n = 0; n < 2; ++n)
        UNROLL for (int e = 0; e < 4; ++e) take(n, e);
}

DEVICE float size_of(float x) { return float_of(bits_of(x) & 0x7fffffff); }

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Computes cap tanh(s), and its slope. */
DEVICE void cap_chunk(gradient_chunk &c, float cap)
{
    bool is_near_zero = true;
    for_pairs([&](int n, int e) { is_near_zero &= size_of(c.weight[n][e]) < 0.5f; });
    if (ballot(FULL_WARP, !is_near_zero) == 0)
        for_pairs([&](int n, int e) { c.weight[n][e] = tanh_near_zero(c.weight[n][e]); });
    else for_pairs([&](int n, int e) { c.weight[n][e] = tanh_accurate(c.weight[n][e]); });
    for_pairs([&](int n, int e) {
        float &tanh = c.weight[n][e];
        c.slope[n][e] = fma_rn(-tanh, tanh, 1.0f);
        tanh *= cap;
    });
}

/* Adds biases of 16 bits, which lie in their tile as the numbers of a matrix: ldmatrix gives each lane its own. */
template <bool BY_KEY, typename T>
DEVICE void add_narrow_biases(gradient_chunk &c, const unsigned char *first, int pitch)
{
    const int l = static_cast<int>(lane()), row = BY_KEY ? l % 8 + l / 16 * 8 : l % 16;
    const int key = BY_KEY ? l / 8 % 2 * 8 : l / 16 * 8;
    uint32_t pairs[4];
    if (BY_KEY) ldmatrix_x4_trans(pairs, first + row * pitch + 2 * key);
    else ldmatrix_x4(pairs, first + row * pitch + 2 * key);
    for_pairs([&](int n, int e) {
        c.weight[n][e] = fma_rn(unpack<T>(pairs[2 * n + e / 2], e % 2 != 0), LOG2_E, c.weight[n][e]);
    });
}

template <bool BY_KEY>
DEVICE void add_wide_biases(gradient_chunk &c, const unsigned char *first, int pitch)
{
    const unsigned char *const at = first + lane_row<BY_KEY>() * pitch + 4 * lane_key<BY_KEY>();
    for_pairs([&](int n, int e) {
        const float bias = *reinterpret_cast<const float *>(at + row_step<BY_KEY>(n, e) * pitch +
                                                            4 * key_step<BY_KEY>(n, e));
        c.weight[n][e] = fma_rn(bias, LOG2_E, c.weight[n][e]);
    });
}

/* Adds biases from the tile of them. Rows of large scores, which have a reference, do not come here. */
template <bool BY_KEY, typename stages>
DEVICE void add_biases(gradient_chunk &c, const stages &from, int32_t dtype, const chunk_place &at)
{
    if (dtype == ATTEST_FP32) {
        const int pitch = pitch_of<typename stages::wide_bias>(from.bias_source);
        add_wide_biases<BY_KEY>(c, from.bias + at.tile_row * pitch + 4 * at.tile_key, pitch);
    } else {
        const int pitch = pitch_of<typename stages::narrow_bias>(from.bias_source);
        const unsigned char *const first = from.bias + at.tile_row * pitch + 2 * at.tile_key;
        if (dtype == ATTEST_FP16) add_narrow_biases<BY_KEY, f16>(c, first, pitch);
        else add_narrow_biases<BY_KEY, bf16>(c, first, pitch);
    }
}

/* Subtracts slope |distance|, where the chunk's first row and key are `distance` apart, so little that fp32 has all
 * distances. */
template <bool BY_KEY>
DEVICE void add_distances(gradient_chunk &c, float slope, int distance)
{
    const float first = static_cast<float>(distance + lane_row<BY_KEY>() - lane_key<BY_KEY>());
    if (distance > -15 && distance < 15) {
        for_pairs([&](int n, int e) {
            const float d = first + static_cast<float>(row_step<BY_KEY>(n, e) - key_step<BY_KEY>(n, e));
            c.weight[n][e] = fma_rn(-slope, size_of(d), c.weight[n][e]);
        });
    } else { /* all keys lie on one side */
        const float factor = distance > 0 ? -slope : slope;
        for_pairs([&](int n, int e) {
            const float d = first + static_cast<float>(row_step<BY_KEY>(n, e) - key_step<BY_KEY>(n, e));
            c.weight[n][e] = fma_rn(factor, d, c.weight[n][e]);
        });
    }
}

/* ---- what is hidden ---------------------------------------------------------------------------------------------- */

/* Hides what the tile of masks hides: exponents become -inf. */
template <bool BY_KEY, typename stages>
DEVICE void hide_masked(gradient_chunk &c, const stages &from, const chunk_place &at)
{
    const int pitch = pitch_of<typename stages::mask_tile>(from.mask_source);
    const unsigned char *const first =
        from.mask + (at.tile_row + lane_row<BY_KEY>()) * pitch + at.tile_key + lane_key<BY_KEY>();
    if (BY_KEY) {
        for_pairs([&](int n, int e) {
            if (first[row_step<BY_KEY>(n, e) * pitch + key_step<BY_KEY>(n, e)] == 0) c.weight[n][e] = -infinity_f32();
        });
    } else {
        UNROLL for (int n = 0; n < 2; ++n)
            UNROLL for (int half = 0; half < 2; ++half) {
                const uint32_t pair = *reinterpret_cast<const uint16_t *>(first + 8 * half * pitch + 8 * n);
                if ((pair & 0xff) == 0) c.weight[n][2 * half] = -infinity_f32();
                if ((pair & 0xff00) == 0) c.weight[n][2 * half + 1] = -infinity_f32();
            }
    }
}

/* Hides what lengths and window hide from the lane's own rows, g and g + 8 of the chunk. */
template <bool BY_KEY>
DEVICE void hide_outside(gradient_chunk &c, const forward_params &p, const sequence &s, const chunk_place &at)
{
    const int g = static_cast<int>(lane()) / 4, x = static_cast<int>(lane()) % 4 * 2;
    UNROLL for (int half = 0; half < 2; ++half) {
        const int32_t own = (BY_KEY ? at.key : at.row) + g + 8 * half, other = (BY_KEY ? at.row : at.key) + x;
        const interval seen = BY_KEY ? rows_of_key(p, s, own) : keys_of_row(p, s, own);
        UNROLL for (int n = 0; n < 2; ++n)
            UNROLL for (int e = 0; e < 2; ++e)
                if (!contains(seen, other + 8 * n + e, 1)) c.weight[n][2 * half + e] = -infinity_f32();
    }
}

/* Hides what blocks hide that cut the chunk. */
template <bool BY_KEY>
DEVICE void hide_blocked(gradient_chunk &c, const forward_params &p, const sequence &s, const score_rule &rule,
                         const chunk_place &at)
{
    uint32_t seen = 0;
    ROLLED for (int i = 0; i < 8; ++i) {
        const int32_t row = at.row + lane_row<BY_KEY>() + row_step<BY_KEY>(i / 4, i % 4);
        const int32_t key = at.key + lane_key<BY_KEY>() + key_step<BY_KEY>(i / 4, i % 4);
        if (row < s.used_q && key < s.used_k && passes_block_mask(p, rule, row, key)) seen |= 1u << i;
    }
    for_pairs([&](int n, int e) {
        if ((seen >> (4 * n + e) & 1) == 0) c.weight[n][e] = -infinity_f32();
    });
}

/* ---- dropout ----------------------------------------------------------------------------------------------------- */

/* Drops weights and dp. A call of Philox has the bits of eight keys of a row, which eight lanes need, or four where
 * rows are a lane's own; each of them makes one of the calls that they need, and ballots tell all lanes of each key.
 * The chunk's first key is a multiple of 8 of dropout's counter. */
template <bool BY_KEY>
DEVICE void drop_chunk(gradient_chunk &c, const forward_params &p, const score_rule &rule, const chunk_place &at)
{
    const int g = static_cast<int>(lane()) / 4, t = static_cast<int>(lane()) % 4;
    const int of_n = BY_KEY ? g / 4 : t % 2, of_e = BY_KEY ? g % 4 : t / 2 * 2; /* the pair whose call is the lane's */
    const int64_t i = p.q_start + at.row + lane_row<BY_KEY>() + row_step<BY_KEY>(of_n, of_e);
    dropout_bits drawn;
    draw_dropout_bits(rule, i, (p.k_start + at.key + key_step<BY_KEY>(of_n, of_e)) / 8, drawn);
    uint32_t kept[2] = {}; /* bit l: the call of lane l keeps the lane's key */
    UNROLL for (int key = 0; key < 8; ++key) {
        const uint32_t number = key % 2 == 0 ? drawn.bits[key / 2] & 0xffff : drawn.bits[key / 2] >> 16;
        const uint32_t by_call = ballot(FULL_WARP, number >= p.dropout_threshold);
        if (BY_KEY ? key == g : key / 2 == t) kept[BY_KEY ? 0 : key % 2] = by_call;
    }
    UNROLL for (int half = 0; half < 2; ++half) kept[half] >>= BY_KEY ? t : 4 * g;
    for_pairs([&](int n, int e) {
        const uint32_t call = kept[BY_KEY ? 0 : e % 2] >> (BY_KEY ? 4 * (4 * n + e) : e / 2 * 2 + n) & 1;
        c.kept[n][e] = call != 0 ? c.weight[n][e] : 0;
        c.dx[n][e] *= call != 0 ? p.dropout_multiplier : 0; /* a NaN of v is felt even if dropped */
    });
}

/* ---- tiles that a block mask hides ------------------------------------------------------------------------------- */

/* Looks at the block mask, as look_at_blocks does, for keys key .. key + keys - 1 and 32 tiles of ROWS query rows
 * before `last`, from tile `first` on. */
template <int ROWS>
INLINE seen_tiles look_at_blocks_of_keys(const forward_params &p, const char *mask, int32_t key, int keys,
                                         int32_t first, int32_t last)
{
    const int64_t row = (static_cast<int64_t>(first) + lane()) * ROWS;
    bool some = false, all = true;
    if (keys > 0 && row < last) {
        const int64_t last_row = row + ROWS < last ? row + ROWS - 1 : last - 1;
        for (int64_t y = row / p.block_q; y <= last_row / p.block_q; ++y)
            for (int32_t x = key / p.block_k; x <= (key + keys - 1) / p.block_k; ++x) {
                const bool seen = mask[y * p.block_mask.seqlen_q + x * p.block_mask.seqlen_k] != 0;
                some |= seen, all &= seen;
            }
    }
    const uint32_t some_of_warp = ballot(FULL_WARP, some);
    return {first, some_of_warp, ballot(FULL_WARP, all), some_of_warp};
}

/* ---- a chunk ----------------------------------------------------------------------------------------------------- */

/* What is the same for all pairs of a head. */
struct gradient_terms {
    score_rule rule; /* with nothing but FEATURES in it */
    float c;         /* of score_terms */
    bool is_linear;  /* y = c dot */
};

/* Finds it with nothing but what SCORES says in it: what a kernel cannot have costs no registers. */
template <unsigned SCORES>
INLINE gradient_terms find_gradient_terms(const forward_params &f, int64_t b, int64_t head)
{
    const score_terms found = find_score_terms<false>(f, b, head);
    constexpr unsigned NOT_LINEAR = HAS_BIAS | HAS_ALIBI | HAS_CAP;
    gradient_terms out = {found.rule, found.c, f.bias.data == nullptr && f.alibi_slopes == nullptr && f.softcap == 0};
    if ((SCORES & NOT_LINEAR) == 0) out.is_linear = true;
    if (SCORES != 0 && (SCORES & ~NOT_LINEAR) == 0) out.is_linear = false;
    if ((SCORES & HAS_MASKS) == 0) out.rule.mask = out.rule.block_mask = nullptr;
    if ((SCORES & HAS_BIAS) == 0) out.rule.bias = nullptr;
    return out;
}

/* Takes chunk j of block m out of products, which are s and dp, and puts it back. */
template <typename shape>
INLINE gradient_chunk chunk_of(const products<shape> &s, const products<shape> &dp, int m, int j)
{
    gradient_chunk out;
    for_pairs([&](int n, int e) {
        out.weight[n][e] = s.at[m][2 * j + n][e], out.dx[n][e] = dp.at[m][2 * j + n][e];
    });
    return out;
}

template <typename shape>
DEVICE void put_chunk(products<shape> &p, products<shape> &ds, int m, int j, const float (&weight)[2][4],
                      const float (&dx)[2][4])
{
    for_pairs([&](int n, int e) { p.at[m][2 * j + n][e] = weight[n][e], ds.at[m][2 * j + n][e] = dx[n][e]; });
}

/* Turns dot products into exponents of weights, given each pair's lse. */
template <bool BY_KEY, unsigned FEATURES, typename stages, typename F>
DEVICE void find_exponents(gradient_chunk &c, const stages &from, const forward_params &p, const sequence &s,
                           const gradient_terms &terms, const chunk_place &at, fragment_cut cut, F lse)
{
    if (terms.is_linear) {
        for_pairs([&](int n, int e) { c.weight[n][e] = fma_rn(c.weight[n][e], terms.c, -lse(n, e)); });
    } else {
        for_pairs([&](int n, int e) { c.weight[n][e] *= terms.rule.scale; });
        if ((FEATURES & HAS_CAP) != 0 && p.softcap > 0) cap_chunk(c, terms.rule.cap);
        if ((FEATURES & HAS_BIAS) != 0 && p.bias.data != nullptr) add_biases<BY_KEY>(c, from, p.bias.dtype, at);
        if ((FEATURES & HAS_ALIBI) != 0 && p.alibi_slopes != nullptr)
            add_distances<BY_KEY>(c, terms.rule.slope, static_cast<int>(at.row + s.alibi_diag - at.key));
        for_pairs([&](int n, int e) { c.weight[n][e] -= lse(n, e); });
    }
    if ((FEATURES & HAS_MASKS) != 0 && p.mask.data != nullptr) hide_masked<BY_KEY>(c, from, at);
    if (cut.is_cut) hide_outside<BY_KEY>(c, p, s, at);
    if ((FEATURES & HAS_MASKS) != 0 && cut.is_blocked) hide_blocked<BY_KEY>(c, p, s, terms.rule, at);
}

/* Turns exponents and dp into weights and dx, given each pair's offset. */
template <bool BY_KEY, unsigned FEATURES, typename F>
DEVICE void find_weights(gradient_chunk &c, const forward_params &p, const gradient_terms &terms,
                         const chunk_place &at, F offset)
{
    for_pairs([&](int n, int e) { c.kept[n][e] = c.weight[n][e] = exp2_f32(c.weight[n][e]); });
    if ((FEATURES & HAS_DROPOUT) != 0 && p.dropout_threshold != 0) drop_chunk<BY_KEY>(c, p, terms.rule, at);
    for_pairs([&](int n, int e) { c.dx[n][e] = c.weight[n][e] * (c.dx[n][e] - offset(n, e)); });
}

#endif

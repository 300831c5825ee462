/* backward_scores.h - what the two kernels of long/backward_sm80.cu share: shapes, the workspace, scores, products.
 * short/backward_sm80.cu uses the scores, too.
 *
 * A warp owns 16 or 32 neighbouring rows of two tensors. It multiplies them with STEP rows of the other side at a time
 * (s and dp), makes weights of the products (p and ds), and adds the weighted rows of the other side to sums. */
#ifndef ATTEST_KERNELS_SHARED_BACKWARD_SCORES_H
#define ATTEST_KERNELS_SHARED_BACKWARD_SCORES_H

#include "kernels/device/device.h"
#include "kernels/shared/gradients.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"

enum { THREADS = 128, WARPS = THREADS / 32 };

/* How a kernel of long/backward_sm80.cu takes scores: plain ones, those that may be anything by fragments in registers
 * (shared/gradient_stage.h), or pair by pair, where fragments may be wrong. */
enum backward_way { PLAIN_SCORES, BY_FRAGMENTS, PAIR_BY_PAIR };

/* KEYS says that a kernel owns keys, SINK that p does not sum to one. A lane of a warp with 16 rows needs 2 FEATURES /
 * 8 x 4 sums, 2 DIM / 16 x 4 pairs of its rows where they are RESIDENT in registers, and 2 STEP / 8 x 4 numbers of s
 * and dp. With 32 rows it needs twice that, and shared memory is read half as often. At 256 features a CTA owns half of
 * each result. */
template <int DIMENSIONS, backward_way HOW, bool IS_BY_KEY, bool HAS_SINK = false, unsigned HAS = 0>
struct backward_shape {
    static constexpr int DIM = DIMENSIONS;
    static constexpr backward_way WAY = HOW;
    static constexpr bool PLAIN = WAY == PLAIN_SCORES, KEYS = IS_BY_KEY, SINK = HAS_SINK;
    static constexpr unsigned SCORES = HAS; /* of score_features, where they come by fragments */
    static constexpr int BLOCKS = WAY != PAIR_BY_PAIR && DIM <= 64 ? 2 : 1; /* of 16 rows to a warp */
    static constexpr int WARP_ROWS = 16 * BLOCKS, OWN = WARPS * WARP_ROWS;
    static constexpr bool RESIDENT = PLAIN && DIM == 128 && KEYS;
    /* Rows of the other side in shared memory: fewer where masks and biases of the tile lie beside them. */
    static constexpr int TILE = DIM > 128 ? 16 : PLAIN ? 64 : 32;
    static constexpr int STEP = WAY == PAIR_BY_PAIR || DIM > 128 || RESIDENT ? 16 : 32; /* and as many at a time */
    static constexpr int FEATURES = DIM <= 128 ? DIM : 128, PARTS = DIM / FEATURES;
    /* Shared memory holds two tiles of the CTA's own rows, two stages of two tiles of the others, fp32 terms of rows,
     * votes, and then masks and biases. */
    static constexpr int STAGE_TERMS = (PLAIN ? 3 : 4) * TILE; /* of rows: lse, offset, lse's low part and reference */
    static constexpr int NUMBERS = (2 * OWN + 4 * TILE) * DIM, TERMS = KEYS ? 2 * STAGE_TERMS : 5 * OWN;
    static constexpr int VOTES = (PLAIN ? 2 : 4) * WARPS; /* words */
    static constexpr size_t SHARED_BYTES =
        NUMBERS * sizeof(uint16_t) + TERMS * sizeof(float) + VOTES * sizeof(uint32_t);
};

/* ---- scores ------------------------------------------------------------------------------------------------------ */

/* Says how dot products become scores: y = c dot where scores are linear in them, else by the rule, with c = 1. */
struct score_terms {
    score_rule rule;
    float c;
};

template <bool PLAIN>
INLINE score_terms find_score_terms(const forward_params &p, int64_t b, int64_t head)
{
    if (PLAIN) return {{}, p.softmax_scale * LOG2_E};
    score_terms out = {find_score_rule(p, b, head), 1};
    if (p.bias.data == nullptr && p.alibi_slopes == nullptr && p.softcap == 0) {
        out.c = out.rule.scale;
        out.rule.scale = 1;
    }
    return out;
}

/* Holds what one pair of a query row and a key contributes. */
struct pair_gradient {
    float p;     /* -0 where the pair takes no part: UNSEEN once it is rounded */
    float kept;  /* p, or 0 where dropout drops it */
    float dx;
    float slope; /* of ds by dx */
};

/* dot is q . k, and dp is dout . v. `last` is as in is_kept. */
INLINE pair_gradient find_pair_gradient(const forward_params &p, const score_terms &terms, const sequence &s,
                                        int32_t row, int32_t key, float dot, float dp, const row_lse &lse, float offset,
                                        dropout_bits &last)
{
    const score found = find_score(p, terms.rule, s, row, key, dot, lse.reference);
    if (!found.visible) return {-0.0f, -0.0f, 0, 0};
    const bool is_dropped = !is_kept(p, terms.rule, row, key, last);
    const float weight = exp2_f32(find_exponent(found.y, terms.c, lse.high) - lse.low);
    const float value = is_dropped ? 0 * dp : p.dropout_multiplier * dp; /* a NaN of v is felt even if dropped */
    return {weight, is_dropped ? 0 * weight : weight, weight * (value - offset), found.slope};
}

/* ---- where a CTA stands ------------------------------------------------------------------------------------------ */

/* Names tile `tile` of the rows of one head of a sequence, and features first_x on of its result. */
struct cta_place {
    int64_t b, head, tile;
    int first_x;
};

template <typename shape>
DEVICE bool find_place(int64_t batch, int64_t heads, cta_place &out)
{
    const int64_t row_of_heads = static_cast<int64_t>(block_z()) * grid_y() + block_y();
    const int part = static_cast<int>(block_x() % shape::PARTS);
    out = {row_of_heads / heads, row_of_heads % heads, block_x() / shape::PARTS, part * shape::FEATURES};
    return out.b < batch;
}

DEVICE int smaller(int64_t a, int b) { return a < b ? static_cast<int>(a) : b; }


/* ---- rows in global memory --------------------------------------------------------------------------------------- */

/* Holds features x .. x + 7 of a row, with zeros past its end. */
struct eight_features {
    float at[8];
};

template <typename T>
INLINE eight_features unpack_eight(const void *numbers)
{
    struct alignas(16) {
        uint32_t at[4];
    } pairs;
    eight_features out;
    const sixteen_bytes bytes = load_global_16<sixteen_bytes>(numbers);
    __builtin_memcpy(&pairs, &bytes, 16);
    UNROLL for (int n = 0; n < 8; ++n) out.at[n] = unpack<T>(pairs.at[n / 2], n % 2 != 0);
    return out;
}

INLINE eight_features load_eight_features(const row_pointer &row, bool by_eight, int x)
{
    const bool at_once = by_eight && x + 8 <= row.length;
    if (at_once && row.dtype == ATTEST_BF16) return unpack_eight<bf16>(row.data + 2 * x);
    if (at_once && row.dtype == ATTEST_FP16) return unpack_eight<f16>(row.data + 2 * x);
    eight_features out;
    UNROLL for (int n = 0; n < 8; ++n) out.at[n] = x + n < row.length ? load_feature(row, x + n) : 0.0f;
    return out;
}

/* Returns a . b for one row of each, in the four lanes of the row. */
DEVICE float multiply_row(const row_tensor &a, const row_tensor &b, int64_t batch, int64_t row, int64_t head,
                         int length)
{
    const row_pointer a_row = row_of(a, batch, row, head, length), b_row = row_of(b, batch, row, head, length);
    float sum = 0;
    ROLLED for (int x = static_cast<int>(lane()) % 4 * 8; x < length; x += 32) {
        const eight_features u = load_eight_features(a_row, a.by_eight != 0, x);
        const eight_features w = load_eight_features(b_row, b.by_eight != 0, x);
        UNROLL for (int n = 0; n < 8; ++n) sum = fma_rn(u.at[n], w.at[n], sum);
    }
    return sum_of_quad(sum);
}

/* ---- fragments --------------------------------------------------------------------------------------------------- */

/* Says where in a tile a lane reads 16 features from 16 x on: at x / 16 % 4, plus x / 64 * 64. `rows` is for fragments
 * whose columns are the tile's rows, `columns` for a and for fragments whose columns are features. */
struct lane_offsets {
    unsigned rows[4], columns[4];
};

template <int DIM>
INLINE lane_offsets find_lane_offsets()
{
    lane_offsets out;
    const unsigned l = lane();
    UNROLL for (unsigned n = 0; n < 4; ++n) {
        out.rows[n] = tile_offset<DIM>(l % 8 + l / 16 * 8, 16 * n + l / 8 % 2 * 8);
        out.columns[n] = tile_offset<DIM>(l % 16, 16 * n + l / 16 * 8);
    }
    return out;
}

DEVICE unsigned offset_of(const unsigned (&at)[4], int x)
{
    return at[x / 16 % 4] + static_cast<unsigned>(x / 64 * 64);
}

DEVICE void split_b(uint32_t (&b)[2][2], const uint32_t (&r)[4])
{
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

/* Holds the rows of one tensor that a warp owns: as fragments if RESIDENT, else by where they lie. */
template <typename shape>
struct own_rows {
    uint32_t a[shape::RESIDENT ? shape::DIM / 16 : 1][shape::BLOCKS][4];
    const uint16_t *rows;
};

template <typename shape>
DEVICE void load_own(own_rows<shape> &own, const lane_offsets &lanes, int place, int x)
{
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        ldmatrix_x4(own.a[place][m], own.rows + 16 * m * shape::DIM + offset_of(lanes.columns, x));
}

template <typename shape>
DEVICE void make_resident(own_rows<shape> &own, const lane_offsets &lanes)
{
    UNROLL for (int x = 0; x < (shape::RESIDENT ? shape::DIM : 0); x += 16) load_own<shape>(own, lanes, x / 16, x);
}

/* ---- products of rows -------------------------------------------------------------------------------------------- */

/* Holds products of a warp's rows and STEP others. */
template <typename shape>
struct products {
    float at[shape::BLOCKS][shape::STEP / 8][4];
};

template <typename shape>
DEVICE void clear(products<shape> &d)
{
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int n = 0; n < shape::STEP / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) d.at[m][n][e] = 0;
}

/* Computes d += own b^T for features x .. x + 15. */
template <typename T, typename shape>
DEVICE void multiply_features(products<shape> &d, own_rows<shape> &own, const uint16_t *b_rows,
                              const lane_offsets &lanes, int x)
{
    const int place = shape::RESIDENT ? x / 16 : 0;
    if (!shape::RESIDENT) load_own<shape>(own, lanes, 0, x);
    UNROLL for (int n = 0; n < shape::STEP / 16; ++n) {
        uint32_t r[4], b[2][2];
        ldmatrix_x4(r, b_rows + 16 * n * shape::DIM + offset_of(lanes.rows, x));
        split_b(b, r);
        UNROLL for (int m = 0; m < shape::BLOCKS; ++m) {
            multiply<T>(d.at[m][2 * n], own.a[place][m], b[0]);
            multiply<T>(d.at[m][2 * n + 1], own.a[place][m], b[1]);
        }
    }
}

/* Computes d0 = own0 b0^T and d1 = own1 b1^T in turns, so that their chains of sums hide one another's latency. */
template <typename T, typename shape>
DEVICE void multiply_rows(products<shape> &d0, products<shape> &d1, own_rows<shape> &own0, own_rows<shape> &own1,
                          const uint16_t *b0_rows, const uint16_t *b1_rows, const lane_offsets &lanes)
{
    clear<shape>(d0);
    clear<shape>(d1);
    UNROLL for (int x = 0; x < shape::DIM; x += 16) {
        multiply_features<T, shape>(d0, own0, b0_rows, lanes, x);
        multiply_features<T, shape>(d1, own1, b1_rows, lanes, x);
    }
}

/* ---- weighted sums of rows --------------------------------------------------------------------------------------- */

/* Holds weights of STEP others for a warp's rows, rounded, as fragments. */
template <typename shape>
struct weights {
    uint32_t a[shape::BLOCKS][shape::STEP / 16][4];
};

template <typename T, typename shape>
DEVICE void round_weights(weights<shape> &out, const products<shape> &d)
{
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int j = 0; j < shape::STEP / 16; ++j)
            UNROLL for (int r = 0; r < 4; ++r) {
                const float *const pair = &d.at[m][2 * j + r / 2][r % 2 * 2];
                out.a[m][j][r] = pack<T>(pair[0], pair[1]);
            }
}

/* Holds FEATURES sums for each row that a warp owns. */
template <typename shape>
struct feature_sums {
    float at[shape::BLOCKS][shape::FEATURES / 8][4];
};

/* Loads rows 16 j .. 16 j + 15 of STEP, features x .. x + 15. */
template <int DIM>
DEVICE void load_columns(uint32_t (&b)[2][2], const uint16_t *b_rows, const lane_offsets &lanes, int j, int x)
{
    uint32_t r[4];
    ldmatrix_x4_trans(r, b_rows + 16 * j * DIM + offset_of(lanes.columns, x));
    split_b(b, r);
}

/* Computes sum0 += w0 b and, where TWO, sum1 += w1 b. The two share the fragments of b, STEP rows of features. */
template <typename T, bool TWO, typename shape>
DEVICE void add_products(feature_sums<shape> &sum0, feature_sums<shape> &sum1, const weights<shape> &w0,
                         const weights<shape> &w1, const uint16_t *b_rows, const lane_offsets &lanes)
{
    UNROLL for (int j = 0; j < shape::STEP / 16; ++j)
        UNROLL for (int x = 0; x < shape::FEATURES; x += 16) {
            uint32_t b[2][2];
            load_columns<shape::DIM>(b, b_rows, lanes, j, x);
            UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
                UNROLL for (int i = 0; i < 2; ++i) multiply<T>(sum0.at[m][x / 8 + i], w0.a[m][j], b[i]);
            if (TWO)
                UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
                    UNROLL for (int i = 0; i < 2; ++i) multiply<T>(sum1.at[m][x / 8 + i], w1.a[m][j], b[i]);
        }
}

/* Computes sum += w b over the rows that `seen` does not mark as UNSEEN, where b is not finite. As this is rare, all
 * features are brought to the code of 64 where scores are not plain; elsewhere the loop would cost registers. */
template <typename T, typename shape>
DEVICE void add_seen(feature_sums<shape> &sum, const weights<shape> &w, const weights<shape> &seen,
                     const uint16_t *b_rows, const lane_offsets &lanes)
{
    constexpr int AT_ONCE = shape::PLAIN ? shape::FEATURES : 64;
    UNROLL for (int j = 0; j < shape::STEP / 16; ++j)
        ROLLED for (int first = 0; first < shape::FEATURES; first += AT_ONCE)
            UNROLL for (int x = 0; x < AT_ONCE; x += 16) {
                uint32_t b[2][2];
                load_columns<shape::DIM>(b, b_rows + first, lanes, j, x);
                UNROLL for (int m = 0; m < shape::BLOCKS; ++m) {
                    float sums[2][4];
                    take_features<shape::FEATURES>(sums, sum.at[m], first + x);
                    multiply_seen<T>(sums, w.a[m][j], seen.a[m][j], b);
                    put_features<shape::FEATURES>(sum.at[m], sums, first + x);
                }
            }
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Rows of fp32 sums in shared memory lie PITCH floats apart: quads of four rows write to different banks. */
template <typename shape>
constexpr int PITCH = shape::FEATURES + 8;

/* Writes sums times `factor` to a warp's rows of `to`. */
template <typename shape>
DEVICE void stage_sums(float *to, const feature_sums<shape> &sums, float factor)
{
    const int g = static_cast<int>(lane()) / 4, t = static_cast<int>(lane()) % 4;
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int n = 0; n < shape::FEATURES / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e)
                to[(16 * m + g + e / 2 * 8) * PITCH<shape> + 8 * n + 2 * t + e % 2] = factor * sums.at[m][n][e];
}

/* Stores four features of a row, from x on, as store_features does; at once where that is possible. */
DEVICE void store_four(const row_pointer &row, int x, const quad &value)
{
    if (!row.by_four || x + 4 > row.length) return store_features(row, x, value);
    if (row.dtype == ATTEST_FP32) {
        quad out;
        UNROLL for (int n = 0; n < 4; ++n) out.at[n] = one_nan_f32(value.at[n]);
        return store_global_16(row.data + 4 * x, out);
    }
    uint32_t pairs[2];
    UNROLL for (int n = 0; n < 2; ++n)
        pairs[n] = row.dtype == ATTEST_FP16 ? pack_f16x2(value.at[2 * n], value.at[2 * n + 1])
                                            : pack_bf16x2(value.at[2 * n], value.at[2 * n + 1]);
    *reinterpret_cast<uint64_t *>(row.data + 2 * x) = static_cast<uint64_t>(pairs[1]) << 32 | pairs[0];
}

/* Copies staged sums of a warp to rows first .. first + count - 1 of one head, from feature first_x on, and writes
 * zeros from row `used` on. */
template <typename shape>
DEVICE void store_sums(const float *from, const row_tensor &t, int64_t b, int64_t first, int count, int used,
                       int64_t head, int first_x, int length)
{
    constexpr int LANES = shape::FEATURES / 4, ROWS = LANES >= 32 ? 1 : 32 / LANES; /* at a time */
    const int x = static_cast<int>(lane()) % LANES * 4;
    ROLLED for (int r = static_cast<int>(lane()) / LANES; r < shape::WARP_ROWS; r += ROWS) {
        if (r >= count || first_x + x >= length) continue;
        const quad sums = load_16<quad>(&from[r * PITCH<shape> + x]);
        store_four(row_of(t, b, first + r, head, length), first_x + x, r < used ? sums : quad{{0, 0, 0, 0}});
    }
}

#endif

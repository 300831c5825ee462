/* online_softmax.h - what forward kernels with a running maximum share, long ones and short/forward_sm80.cu: products
 * of 16 rows of a warp and a number of keys, weights, o.
 *
 * Weights are 2^(y - m), y the score in base 2, m the running maximum of the row. */
#ifndef ATTEST_KERNELS_SHARED_ONLINE_SOFTMAX_H
#define ATTEST_KERNELS_SHARED_ONLINE_SOFTMAX_H

#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"

/* Holds what a lane keeps of 16 rows: of rows g and g + 8 the running maximum in base 2 and its own part of the sum of
 * weights; of their o, before normalisation, features 8 n + 2 t and 8 n + 2 t + 1. */
template <int DIM>
struct accumulators {
    float max[2], sum[2];
    float o[DIM / 8][4];
    uint32_t any[2]; /* not 0: a key was visible; kept where scores are not plain */
};

/* Holds scores, then weights, of 16 rows and KEYS keys. Where some are hidden from plain scores, bit 2 n + e of
 * `seen[half]` says that s[n][2 half + e] is not. */
template <int KEYS>
struct score_block {
    float s[KEYS / 8][4];
    uint32_t seen[2];
};

/* Computes s = q k^T for a warp's rows. */
template <typename T, int DIM, int BLOCKS, int KEYS>
DEVICE void multiply_q_k(score_block<KEYS> (&scores)[BLOCKS], const uint16_t *q, int first_row, const uint16_t *k)
{
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) scores[m].s[n][e] = 0;
    UNROLL for (int x = 0; x < DIM; x += 16) {
        uint32_t a[BLOCKS][4];
        UNROLL for (int m = 0; m < BLOCKS; ++m) load_a<DIM>(a[m], q, first_row + 16 * m, x);
        UNROLL for (int n = 0; n < KEYS / 16; ++n) {
            uint32_t b[2][2];
            load_b<DIM>(b, k, 16 * n, x);
            UNROLL for (int m = 0; m < BLOCKS; ++m) {
                multiply<T>(scores[m].s[2 * n], a[m], b[0]);
                multiply<T>(scores[m].s[2 * n + 1], a[m], b[1]);
            }
        }
    }
}

/* Hides keys of plain scores: a score becomes -inf where lengths and window hide the key. */
template <int KEYS>
DEVICE void hide_keys(const forward_params &p, const sequence &s, score_block<KEYS> &scores, int32_t row, int32_t key)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        const interval keys = keys_of_row(p, s, row + 8 * half);
        scores.seen[half] = 0;
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                const int32_t j = key + 8 * n + e;
                const bool visible = j >= keys.first && j < keys.last;
                if (visible) scores.seen[half] |= 1u << (2 * n + e);
                else scores.s[n][2 * half + e] = -infinity_f32();
            }
    }
}

/* Finds what is subtracted from the biases of rows g and g + 8 of each block: 0 until a row's maximum turns out to be
 * large. Returns true where a row of the warp has a reference only now and must therefore be retried. All lanes call
 * it. */
template <int BLOCKS>
using row_references = float[BLOCKS][2];

template <int DIM, int BLOCKS>
DEVICE bool find_references(row_references<BLOCKS> &reference, const accumulators<DIM> (&kept)[BLOCKS],
                            const forward_params &p, const score_rule &rule, const sequence &s, int32_t row, float sink)
{
    if (rule.bias == nullptr) return false;
    bool is_new = false;
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const bool is_open = reference[m][half] == 0 && is_large(kept[m].max[half]) && kept[m].any[half] != 0;
            float largest = -infinity_f32();
            if (is_open) largest = largest_bias(p, rule, s, row + 16 * m + 8 * half, static_cast<int>(lane()) % 4, 4);
            const float found = reference_of_row(max_of_quad(largest), sink);
            if (is_open) reference[m][half] = found;
            is_new |= is_open && found != 0;
        }
    return ballot(FULL_WARP, is_new) != 0;
}

/* Sets up what is kept of a row before its first key: the sink is a key of weight 2^0 and v = 0, in the sum of one
 * lane. */
template <int DIM, int BLOCKS>
DEVICE void begin_rows(accumulators<DIM> (&kept)[BLOCKS], const row_references<BLOCKS> &reference, float sink)
{
    UNROLL for (int m = 0; m < BLOCKS; ++m) {
        kept[m] = {};
        UNROLL for (int half = 0; half < 2; ++half) {
            kept[m].max[half] = (sink - reference[m][half]) * LOG2_E;
            kept[m].sum[half] = lane() % 4 == 0 && sink != -infinity_f32() ? 1 : 0;
        }
    }
}

/* Changes the scores of a row of which one is +inf, to avoid inf - inf: they become such that their weights are inf, 0
 * or NaN, relative to 0. */
template <int KEYS>
DEVICE void take_infinite(score_block<KEYS> &scores, int half)
{
    UNROLL for (int n = 0; n < KEYS / 8; ++n)
        UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e)
            if (scores.s[n][e] < infinity_f32()) scores.s[n][e] = -infinity_f32();
}

/* Turns scores times c into weights; what is kept of the rows follows their maxima. A hidden key's weight is -0, which
 * is UNSEEN once it is rounded. All rows go through each step together: alone, each would wait for its own shuffles and
 * sums. */
template <bool CUT, int DIM, int BLOCKS, int KEYS>
DEVICE void softmax_step(accumulators<DIM> (&kept)[BLOCKS], score_block<KEYS> (&scores)[BLOCKS], float c)
{
    float max[BLOCKS][2], rescale[BLOCKS][2], reference[BLOCKS][2], factor[BLOCKS][2];
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            max[m][half] = -infinity_f32();
            UNROLL for (int n = 0; n < KEYS / 8; ++n) /* ignores a NaN, which reaches the sum */
                max[m][half] = max_f32(max[m][half], max_f32(scores[m].s[n][2 * half], scores[m].s[n][2 * half + 1]));
        }
    bool is_infinite = false, is_rescaled = false;
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            max[m][half] = max_of_quad(max[m][half]);
            const float before = kept[m].max[half], now = max_f32(before, c * max[m][half]);
            kept[m].max[half] = now;
            kept[m].any[half] |= max[m][half] > -LARGEST;
            reference[m][half] = now == -infinity_f32() ? 0 : now; /* avoids -inf - -inf */
            factor[m][half] = c;
            rescale[m][half] = before == now ? 1 : exp2_f32(before - reference[m][half]);
            is_infinite |= now == infinity_f32();
            is_rescaled |= rescale[m][half] != 1;
        }
    if (is_infinite) {
        UNROLL for (int m = 0; m < BLOCKS; ++m)
            UNROLL for (int half = 0; half < 2; ++half)
                if (kept[m].max[half] == infinity_f32()) {
                    take_infinite(scores[m], half);
                    reference[m][half] = 0, factor[m][half] = 1;
                }
    }
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            float sum[2] = {0, 0};
            UNROLL for (int n = 0; n < KEYS / 8; ++n)
                UNROLL for (int e = 0; e < 2; ++e) {
                    float &score = scores[m].s[n][2 * half + e];
                    const float weight = exp2_f32(fma_rn(score, factor[m][half], -reference[m][half]));
                    const bool is_hidden = CUT && (scores[m].seen[half] >> (2 * n + e) & 1) == 0;
                    score = is_hidden ? -0.0f : weight;
                    sum[e] += score;
                }
            kept[m].sum[half] = fma_rn(kept[m].sum[half], rescale[m][half], sum[0] + sum[1]);
        }
    if (ballot(FULL_WARP, is_rescaled) == 0) return;
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int n = 0; n < DIM / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) kept[m].o[n][e] *= rescale[m][e / 2];
}

/* Lets the four lanes of a row know whether a key of it was visible to one of them. */
template <int DIM, int BLOCKS>
DEVICE void join_quads(accumulators<DIM> (&kept)[BLOCKS])
{
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            uint32_t &any = kept[m].any[half];
            any |= shfl_xor(FULL_WARP, any, 1);
            any |= shfl_xor(FULL_WARP, any, 2);
        }
}

/* Looks at rows of which nothing but scores at the lower end of fp32 was met: if they see a key, the softmax of its
 * scores is no number, or needs a reference, else it is 0. Row g of block m and half h is `row` + 16 m + 8 h + g. */
template <int DIM, int BLOCKS>
DEVICE void look_for_keys(accumulators<DIM> (&kept)[BLOCKS], const forward_params &p, const sequence &s, int64_t b,
                          int64_t head, int32_t row)
{
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const int32_t own = row + 16 * m + 8 * half + static_cast<int>(lane()) / 4;
            const uint32_t open = ballot(FULL_WARP, kept[m].any[half] == 0 && own < s.used_q);
            if (open == 0) continue;
            ROLLED for (int g = 0; g < 8; ++g)
                if ((open >> 4 * g & 1) != 0 && sees_a_key(p, b, head, row + 16 * m + 8 * half + g))
                    kept[m].any[half] |= static_cast<int>(lane()) / 4 == g;
        }
}

/* Says why rows of a warp that fragments took must be taken again: a number of them is not finite; all scores that one
 * of them sees are at the lower end of fp32. All lanes call it. */
struct doubts {
    bool is_infinite, is_low;
};

template <int DIM, int BLOCKS>
INLINE doubts find_doubts(const accumulators<DIM> (&kept)[BLOCKS])
{
    float zero[4] = {}; /* chains that do not wait for one another */
    bool is_low = false;
    UNROLL for (int m = 0; m < BLOCKS; ++m) {
        UNROLL for (int half = 0; half < 2; ++half) {
            is_low |= kept[m].any[half] != 0 && kept[m].max[half] <= -LARGEST;
            zero[half] = fma_rn(kept[m].sum[half], 0.0f, zero[half]);
        }
        UNROLL for (int n = 0; n < DIM / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) zero[e] = fma_rn(kept[m].o[n][e], 0.0f, zero[e]);
    }
    const bool is_infinite = (zero[0] + zero[1]) + (zero[2] + zero[3]) != 0;
    return {ballot(FULL_WARP, is_infinite) != 0, ballot(FULL_WARP, is_low) != 0};
}

/* Holds p as fragments, rounded to 16 bits or to a sum of two numbers of 16 bits. */
template <int PARTS, int BLOCKS>
using rounded_weights = uint32_t[PARTS][BLOCKS][4];

/* Rounds the weights of keys 16 j .. 16 j + 15. */
template <typename T, int PARTS, int BLOCKS, int KEYS>
DEVICE void round_weights(rounded_weights<PARTS, BLOCKS> &out, const score_block<KEYS> (&scores)[BLOCKS], int j)
{
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int r = 0; r < 4; ++r) {
            const float *const pair = &scores[m].s[2 * j + r / 2][r % 2 * 2];
            out[0][m][r] = pack<T>(pair[0], pair[1]);
            if (PARTS == 2) out[PARTS - 1][m][r] = pack_rest<T>(pair[0], pair[1], out[0][m][r]);
        }
}

/* Computes o += p v. */
template <typename T, int PARTS, int DIM, int BLOCKS, int KEYS>
DEVICE void multiply_p_v(accumulators<DIM> (&kept)[BLOCKS], const score_block<KEYS> (&scores)[BLOCKS],
                         const uint16_t *v)
{
    UNROLL for (int j = 0; j < KEYS / 16; ++j) {
        rounded_weights<PARTS, BLOCKS> a;
        round_weights<T, PARTS>(a, scores, j);
        UNROLL for (int x = 0; x < DIM; x += 16) {
            uint32_t b[2][2];
            load_b_transposed<DIM>(b, v, 16 * j, x);
            UNROLL for (int part = 0; part < PARTS; ++part)
                UNROLL for (int m = 0; m < BLOCKS; ++m) {
                    multiply<T>(kept[m].o[x / 8], a[part][m], b[0]);
                    multiply<T>(kept[m].o[x / 8 + 1], a[part][m], b[1]);
                }
        }
    }
}

/* Does the same over the keys that each row sees, where v holds what is not finite: zero times that is not always zero.
 * As it is rare, there is code for AT_ONCE features, to which the others are brought. AT_ONCE is all of them where
 * registers are short, since around such a loop the rest would be spilled: 208 bytes at 128 features, 4 % of the
 * time. */
template <typename T, int PARTS, int AT_ONCE, int DIM, int BLOCKS, int KEYS>
DEVICE void multiply_p_v_seen(accumulators<DIM> (&kept)[BLOCKS], const score_block<KEYS> (&scores)[BLOCKS],
                              const uint16_t *v)
{
    UNROLL for (int j = 0; j < KEYS / 16; ++j) {
        rounded_weights<PARTS, BLOCKS> a;
        round_weights<T, PARTS>(a, scores, j);
        ROLLED for (int first = 0; first < DIM; first += AT_ONCE)
            UNROLL for (int x = first; x < first + AT_ONCE; x += 16) {
                uint32_t b[2][2];
                load_b_transposed<DIM>(b, v, 16 * j, x);
                UNROLL for (int m = 0; m < BLOCKS; ++m) {
                    float sums[2][4];
                    take_features<DIM>(sums, kept[m].o, x);
                    UNROLL for (int part = 0; part < PARTS; ++part) multiply_seen<T>(sums, a[part][m], a[0][m], b);
                    put_features<DIM>(kept[m].o, sums, x);
                }
            }
    }
}

template <int BLOCKS>
using row_factors = float[BLOCKS][2];

/* Clears o of rows that see no key: sums that their tile has added to may be no numbers. All lanes call it. */
template <int DIM>
DEVICE void clear_empty(accumulators<DIM> &kept, int half, bool is_empty)
{
    if (ballot(FULL_WARP, is_empty) == 0) return;
    UNROLL for (int n = 0; n < DIM / 8; ++n)
        UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e)
            if (is_empty) kept.o[n][e] = 0;
}

/* The epilogue finds factors of o, and lse, of a lane's rows from lane_row on: o = sum p v / sum p, lse = ln 2 (m +
 * log2 sum p); (0, -inf or the sink) where no key is seen. */
template <bool PLAIN, int DIM, int BLOCKS>
DEVICE void end_rows(row_factors<BLOCKS> &factor, accumulators<DIM> (&kept)[BLOCKS], const forward_params &p,
                     const sequence &s, const row_references<BLOCKS> &reference, int64_t b, int64_t head,
                     int32_t lane_row, float sink)
{
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const int32_t row = lane_row + 16 * m + 8 * half;
            const float sum = sum_of_quad(kept[m].sum[half]);
            const interval seen = keys_of_row(p, s, row);
            const bool is_empty = seen.first >= seen.last || (!PLAIN && kept[m].any[half] == 0);
            clear_empty(kept[m], half, is_empty);
            factor[m][half] = is_empty ? 0 : div_rn(p.dropout_multiplier, sum);
            const float empty_lse = row < s.used_q ? sink : -infinity_f32();
            float lse = is_empty ? empty_lse : (kept[m].max[half] + log2_f32(sum)) * LN_2;
            if (!PLAIN && !is_empty) lse += reference[m][half];
            if (p.lse.data != nullptr && row < s.seqlen_q && lane() % 4 == 0)
                store_feature(row_of(p.lse, b, s.first_q + row, head, 1), 0, lse);
        }
}

/* Writes o times its rows' factors in 16 bits, of type O, from `row` on. It goes through the warp's own rows of the
 * tile of q, so that lanes store 16 bytes of a row at once. */
template <typename O, int DIM, int BLOCKS>
DEVICE void write_o_16(const row_tensor &o, const accumulators<DIM> (&kept)[BLOCKS], const row_factors<BLOCKS> &factor,
                       uint16_t *tile, row_pointer row, int rows)
{
    constexpr unsigned CHUNKS = DIM / 8, STEP = 32 / CHUNKS; /* rows at a time */
    const unsigned g = lane() / 4, t = lane() % 4, x = lane() % CHUNKS * 8;
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half)
            UNROLL for (unsigned n = 0; n < CHUNKS; ++n) {
                const float *const pair = &kept[m].o[n][2 * half];
                uint16_t *const at = &tile[tile_offset<DIM>(16 * m + 8 * half + g, 8 * n) + 2 * t];
                *reinterpret_cast<uint32_t *>(at) = pack<O>(pair[0] * factor[m][half], pair[1] * factor[m][half]);
            }
    sync_warp(FULL_WARP);
    const unsigned first = lane() / CHUNKS;
    const int64_t step = STEP * o.seqlen * 2;
    row.data += first * o.seqlen * 2;
    if (o.by_eight && static_cast<int>(x) + 8 <= row.length) {
        UNROLL for (unsigned r = 0; r < 16 * BLOCKS; r += STEP, row.data += step)
            if (static_cast<int>(first + r) < rows)
                store_global_16(row.data + 2 * x, load_16<sixteen_bytes>(&tile[tile_offset<DIM>(first + r, x)]));
    } else if (static_cast<int>(x) < row.length) {
        ROLLED for (unsigned r = first; r < 16 * BLOCKS; r += STEP, row.data += step)
            if (static_cast<int>(r) < rows) store_eight(row, x, &tile[tile_offset<DIM>(r, x)]);
    }
}

#endif

/* exact_rows.h - 16 rows of a warp by a forward pass that takes any numbers, one score at a time.
 *
 * It is for rows that shared/score_stage.h got wrong, as something in them is not finite: a score that is hidden is
 * left out by selection, and so is the value of its key. All its loops are rolled, over memory of the thread's own: it
 * is rarely run, and every kernel has a copy. Where all numbers are finite it gives the bits of
 * shared/online_softmax.h, as the rows beside those that need it must not notice. */
#ifndef ATTEST_KERNELS_SHARED_EXACT_ROWS_H
#define ATTEST_KERNELS_SHARED_EXACT_ROWS_H

#include "kernels/shared/online_softmax.h"

/* Holds scores, then weights, of 16 rows and KEYS keys: at[n][2 half + e]. Bit 2 n + e of `seen[half]` and
 * `dropped[half]` says that the key is visible, and that dropout drops it. */
template <int KEYS>
struct exact_scores {
    float at[KEYS / 8][4];
    uint32_t seen[2], dropped[2];
};

/* Computes q k^T of the rows that `q` begins with. */
template <typename T, int DIM, int KEYS>
DEVICE void multiply_exactly(exact_scores<KEYS> &scores, const uint16_t *q, const uint16_t *k)
{
    ROLLED for (int n = 0; n < KEYS / 16; ++n) {
        float sums[2][4] = {};
        ROLLED for (int x = 0; x < DIM; x += 16) {
            uint32_t a[4], b[2][2];
            load_a<DIM>(a, q, 0, x);
            load_b<DIM>(b, k, 16 * n, x);
            multiply<T>(sums[0], a, b[0]);
            multiply<T>(sums[1], a, b[1]);
        }
        UNROLL for (int i = 0; i < 2; ++i)
            UNROLL for (int e = 0; e < 4; ++e) scores.at[2 * n + i][e] = sums[i][e];
    }
}

/* Turns dot products into scores, -inf where the key is hidden. row and key are the lane's first. */
template <int KEYS>
DEVICE void find_scores(exact_scores<KEYS> &scores, const forward_params &p, const score_rule &rule, const sequence &s,
                        int32_t row, int32_t key, const float (&reference)[2])
{
    dropout_bits last;
    ROLLED for (int half = 0; half < 2; ++half) {
        const interval keys = keys_of_row(p, s, row + 8 * half);
        uint32_t seen = 0, dropped = 0;
        last.eight = -1;
        ROLLED for (int i = 0; i < KEYS / 4; ++i) {
            const int32_t r = row + 8 * half, j = key + i / 2 * 8 + i % 2;
            float &at = scores.at[i / 2][2 * half + i % 2];
            score found = {0, 1, false};
            if (contains(keys, j, 1)) found = find_score(p, rule, s, r, j, at, reference[half]);
            at = found.visible ? found.y : -infinity_f32();
            if (found.visible) seen |= 1u << i;
            if (found.visible && !is_kept(p, rule, r, j, last)) dropped |= 1u << i;
        }
        scores.seen[half] = seen, scores.dropped[half] = dropped;
    }
}

/* Turns scores times c into weights, as softmax_step does: a hidden key's is -0, which is UNSEEN once it is rounded. */
template <int DIM, int KEYS>
DEVICE void softmax_exactly(accumulators<DIM> &kept, exact_scores<KEYS> &scores, float c)
{
    ROLLED for (int half = 0; half < 2; ++half) {
        float max = -infinity_f32();
        ROLLED for (int i = 0; i < KEYS / 4; ++i) max = max_f32(max, scores.at[i / 2][2 * half + i % 2]);
        const float before = kept.max[half], now = max_f32(before, c * max_of_quad(max));
        const bool is_infinite = now == infinity_f32();
        const float reference = now == -infinity_f32() || is_infinite ? 0 : now; /* avoids inf - inf */
        const float rescale = before == now ? 1 : exp2_f32(before - (is_infinite ? now : reference));
        float sum[2] = {0, 0};
        ROLLED for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                float &at = scores.at[n][2 * half + e];
                if (is_infinite && at < infinity_f32()) at = -infinity_f32();
                const float weight = exp2_f32(fma_rn(at, is_infinite ? 1 : c, -reference));
                at = (scores.seen[half] >> (2 * n + e) & 1) != 0 ? weight : -0.0f;
                sum[e] += at;
            }
        kept.max[half] = now;
        kept.any[half] |= scores.seen[half] != 0;
        kept.sum[half] = fma_rn(kept.sum[half], rescale, sum[0] + sum[1]);
        ROLLED for (int n = 0; n < DIM / 8; ++n)
            UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e) kept.o[n][e] *= rescale;
    }
}

/* Computes o += p v over the keys that each row sees, p in PARTS numbers. The weights of keys that dropout drops become
 * +0, infinite ones NaN, since the keys are seen, and their values are not. */
template <typename T, int PARTS, int DIM, int KEYS>
DEVICE void multiply_values_exactly(accumulators<DIM> &kept, exact_scores<KEYS> &scores, const uint16_t *v)
{
    ROLLED for (int i = 0; i < KEYS / 2; ++i)
        if ((scores.dropped[i % 4 / 2] >> (i / 4 * 2 + i % 2) & 1) != 0) scores.at[i / 4][i % 4] *= 0;
    ROLLED for (int j = 0; j < KEYS / 16; ++j) {
        uint32_t a[PARTS][4];
        UNROLL for (int r = 0; r < 4; ++r) {
            const float *const pair = &scores.at[2 * j + r / 2][r % 2 * 2];
            a[0][r] = pack<T>(pair[0], pair[1]);
            if (PARTS == 2) a[PARTS - 1][r] = pack_rest<T>(pair[0], pair[1], a[0][r]);
        }
        ROLLED for (int x = 0; x < DIM; x += 16) {
            uint32_t b[2][2];
            float sums[2][4];
            load_b_transposed<DIM>(b, v, 16 * j, x);
            UNROLL for (int i = 0; i < 8; ++i) sums[i / 4][i % 4] = kept.o[x / 8 + i / 4][i % 4];
            UNROLL for (int part = 0; part < PARTS; ++part) multiply_seen<T>(sums, a[part], a[0], b);
            UNROLL for (int i = 0; i < 8; ++i) kept.o[x / 8 + i / 4][i % 4] = sums[i / 4][i % 4];
        }
    }
}

/* Adds a tile of keys to what is kept of 16 rows, the first of which `q` points to. row and key are the lane's
 * first. */
template <typename T, int PARTS, int KEYS, int DIM>
DEVICE void take_keys_exactly(accumulators<DIM> &kept, const forward_params &p, const score_rule &rule,
                              const sequence &s, float c, const float (&reference)[2], const uint16_t *q,
                              const uint16_t *k, const uint16_t *v, int32_t row, int32_t key)
{
    exact_scores<KEYS> scores;
    multiply_exactly<T, DIM>(scores, q, k);
    find_scores(scores, p, rule, s, row, key, reference);
    softmax_exactly(kept, scores, c);
    multiply_values_exactly<T, PARTS>(kept, scores, v);
}

/* Writes o times the factors of the lane's two rows, feature by feature; the first row is `row` of the tensor, and
 * those that exist in the sequence are `left` from there on. */
template <int DIM>
DEVICE void write_features(const forward_params &p, const accumulators<DIM> &kept, const float (&factor)[2], int64_t b,
                           int64_t row, int left, int64_t head)
{
    ROLLED for (int half = 0; half < 2; ++half) {
        const row_pointer o = row_of(p.o, b, row + 8 * half, head, 8 * half < left ? p.head_dim_v : 0);
        ROLLED for (int i = 0; i < DIM / 4; ++i) {
            const int x = i / 2 * 8 + static_cast<int>(lane()) % 4 * 2 + i % 2;
            if (x < o.length) store_feature(o, x, kept.o[i / 2][2 * half + i % 2] * factor[half]);
        }
    }
}

#endif

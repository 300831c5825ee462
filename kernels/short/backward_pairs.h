/* backward_pairs.h - p and ds of a warp's rows and keys pair by pair, for any numbers: where fragments would be wrong.
 *
 * Its loops are rolled, over memory of the thread's own: it is rarely run. Where all numbers are finite, and no lse is
 * large, it gives the bits of short/backward_any.h. */
#ifndef ATTEST_KERNELS_SHORT_BACKWARD_PAIRS_H
#define ATTEST_KERNELS_SHORT_BACKWARD_PAIRS_H

#include "kernels/short/backward_any.h"

/* Joins the numbers of the warps that share a row. All warps wait for each other. */
template <typename shape>
DEVICE float join(float number, bool is_sum, const warp_place &own, int half, row_numbers *numbers)
{
    number = is_sum ? sum_of_quad(number) : max_of_quad(number);
    row_numbers *const of_row = &numbers[(own.first + 8 * half + static_cast<int>(lane()) / 4) * shape::SPLIT];
    if (lane() % 4 == 0) (is_sum ? of_row[own.part].sum_of_weights : of_row[own.part].largest) = number;
    sync_threads();
    const row_numbers &a = of_row[0], &b = of_row[shape::SPLIT - 1];
    if (shape::SPLIT == 1) return is_sum ? a.sum_of_weights : a.largest;
    return is_sum ? a.sum_of_weights + b.sum_of_weights : max_f32(a.largest, b.largest);
}

/* Does what find_weights_of_warp and add_pairs do, for any numbers. Where a row's lse is large, two passes find its own
 * before: m, then the sum of 2^(y - m), the sink in both. */
template <typename shape>
DEVICE void find_weights_exactly(warp_pairs &w, delta_sums &sums, uint32_t (&seen)[2], lane_rows &rows,
                                 const backward_params &p, const sequence &s, const score_terms &terms, int64_t head,
                                 const warp_place &own, row_numbers *numbers)
{
    enum { LARGEST_SCORE, SUM_OF_WEIGHTS, WEIGHTS };
    const forward_params &f = p.forward;
    const int t = static_cast<int>(lane()) % 4, row = own.first + static_cast<int>(lane()) / 4;
    const float sink = f.sink != nullptr ? f.sink[head] : -infinity_f32();
    sums = {};
    w.dropped[0] = w.dropped[1] = seen[0] = seen[1] = 0;
    ROLLED for (int half = 0; half < 2; ++half) {
        const int32_t r = row + 8 * half;
        const interval keys = keys_of_row(f, s, r);
        row_lse &lse = rows.lse[half];
        const bool is_own = needs_own_lse(p, lse);
        if (is_own && f.bias.data != nullptr) {
            const float largest = largest_bias(f, terms.rule, s, r, 0, 1);
            lse.reference = reference_of_row(largest, sink);
        }
        const float of_sink = f.sink != nullptr ? (sink - lse.reference) * LOG2_E : -infinity_f32();
        dropout_bits last;
        last.eight = -1;
        ROLLED for (int pass = LARGEST_SCORE; pass <= WEIGHTS; ++pass) {
            float number = pass == LARGEST_SCORE ? -infinity_f32() : 0;
            ROLLED for (int i = 0; i < shape::WARP_KEYS / 4; ++i) {
                const int32_t j = own.part * shape::WARP_KEYS + i / 2 * 8 + t * 2 + i % 2;
                float &dot = w.p.at[i / 2][2 * half + i % 2], &dp = w.dp.at[i / 2][2 * half + i % 2];
                score found = {0, 1, false};
                if (contains(keys, j, 1)) found = find_score(f, terms.rule, s, r, j, dot, lse.reference);
                const float weight =
                    found.visible ? exp2_f32(find_exponent(found.y, terms.c, lse.high) - lse.low) : -0.0f;
                if (found.visible && pass == LARGEST_SCORE) number = max_f32(number, found.y * terms.c);
                if (found.visible && pass == SUM_OF_WEIGHTS) number += weight;
                if (pass != WEIGHTS) continue;
                dot = weight;
                w.slope.at[i / 2][2 * half + i % 2] = found.slope;
                if (!found.visible) continue;
                seen[half] |= 1u << i;
                const bool is_dropped = !is_kept(f, terms.rule, r, j, last);
                if (is_dropped) w.dropped[half] |= 1u << i;
                dp *= is_dropped ? 0 : f.dropout_multiplier; /* a NaN of v is felt even if dropped */
                sums.p[half][i % 2] += weight;
                sums.p_dp[half][i % 2] = fma_rn(weight, dp, sums.p_dp[half][i % 2]);
            }
            if (pass == WEIGHTS) continue;
            number = join<shape>(number, pass == SUM_OF_WEIGHTS, own, half, numbers);
            if (is_own && pass == LARGEST_SCORE) lse.high = max_f32(number, of_sink);
            if (is_own && pass == SUM_OF_WEIGHTS)
                lse = split_lse(lse.high, number + exp2_f32(of_sink - lse.high), lse.reference);
        }
    }
}

template <typename shape>
DEVICE void find_dx_exactly(warp_pairs &w, const uint32_t (&seen)[2], const float (&offset)[2])
{
    ROLLED for (int i = 0; i < shape::WARP_KEYS / 2; ++i) {
        const int n = i / 4, e = i % 4;
        float &dx = w.dp.at[n][e];
        dx = (seen[e / 2] >> (2 * n + e % 2) & 1) != 0 ? w.p.at[n][e] * (dx - offset[e / 2]) : 0;
    }
}

template <typename shape>
DEVICE void find_ds_exactly(warp_pairs &w, const uint32_t (&seen)[2])
{
    ROLLED for (int i = 0; i < shape::WARP_KEYS / 2; ++i) {
        const int n = i / 4, e = i % 4, bit = 2 * n + e % 2;
        if ((seen[e / 2] >> bit & 1) != 0) w.dp.at[n][e] *= w.slope.at[n][e];
        if ((w.dropped[e / 2] >> bit & 1) != 0) w.p.at[n][e] *= 0; /* an infinite one is a NaN: the pair is seen */
    }
}

/* Makes the high parts of pairs that are not seen UNSEEN, and those of others not: a small ds may round to -0. */
template <int KEYS>
DEVICE void mark_unseen(row_parts<KEYS> &parts, const uint32_t (&seen)[2])
{
    ROLLED for (int i = 0; i < KEYS / 4; ++i) {
        const int j = i / 4, r = i % 4, bit = 2 * (2 * j + r / 2);
        uint32_t &pair = parts.high[j][r];
        UNROLL for (int e = 0; e < 2; ++e) {
            const uint32_t number = pair >> 16 * e & 0xffff, is_seen = seen[r % 2] >> (bit + e) & 1;
            if (is_seen == 0) pair = (pair & ~(0xffffu << 16 * e)) | UNSEEN << 16 * e;
            else if (number == UNSEEN) pair &= ~(0xffffu << 16 * e);
        }
    }
}

#endif

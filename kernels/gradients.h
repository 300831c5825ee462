/* gradients.h - what one score adds to the gradients, in fp32: lib/contract.md section 3. */
#ifndef ATTEST_KERNELS_GRADIENTS_H
#define ATTEST_KERNELS_GRADIENTS_H

#include "kernels/device/device.h"
#include "kernels/params.h"
#include "kernels/scores.h"

/* dbias and dsink of a backward pass, where they are wanted, once `delta` is what delta_at says: dbias.cu, dsink.cu. */
extern "C" int KERNEL_SYMBOL(dbias)(const struct backward_params *p, const float *delta, void *stream);
extern "C" int KERNEL_SYMBOL(dsink)(const struct backward_params *p, const float *delta, void *stream);

/* What a backward pass knows of a query row. */
struct row_state {
    float lse; /* in base 2 */
    float delta, dlse;
};

/* Where the workspace keeps delta of row `row` of the sequence: [num_heads_q][rows_q]. */
DEVICE int64_t delta_at(const forward_params &p, const sequence &s, int64_t b, int32_t row, int64_t head)
{
    const int64_t first = p.cu_seqlens_q != nullptr ? s.first_q : b * p.seqlen_q;
    return head * p.rows_q + first + row;
}

/* One fp32 of a tensor without x; 0 where there is no tensor. */
DEVICE float load_scalar(const row_tensor &t, const sequence &s, int64_t b, int32_t row, int64_t head)
{
    return t.data != nullptr ? load_feature(row_of(t, b, s.first_q + row, head, 1), 0) : 0.0f;
}

/* `delta` NULL: not known yet, 0. Rows past used_q have no state: zeros. */
DEVICE row_state load_row_state(const backward_params &p, const sequence &s, int64_t b, int32_t row, int64_t head,
                                const float *delta)
{
    if (row >= s.used_q) return {0, 0, 0};
    return {load_scalar(p.forward.lse, s, b, row, head) * LOG2_E,
            delta != nullptr ? delta[delta_at(p.forward, s, b, row, head)] : 0.0f,
            load_scalar(p.dlse, s, b, row, head)};
}

/* lse in base 2 of a row whose scores are so large that one fp32 number of their size tells weights too little: half a
 * unit in its last place, 2^-14 of a weight here, doubles whenever lse does. A backward pass finds the maximum and the
 * sum of such a row's own weights again, and does not use the lse that it is given, unless that is of a larger key set
 * (external_lse). Infinite scores are left as they are. */
constexpr float LARGE_LSE = 0x1p10f;

DEVICE bool is_large(float lse)
{
    const float size = float_of(bits_of(lse) & 0x7fffffff);
    return size >= LARGE_LSE && size < infinity_f32();
}

/* m + log2 of the sum of 2^(y - m) in two parts, of which the second is what the first was rounded by. Weights are
 * 2^(fma(dot, c, -high) - low). */
struct split_lse {
    float high, low;
};

DEVICE split_lse split_lse_of(float max, float sum)
{
    const float log_sum = log2_f32(sum), high = max + log_sum;
    return {high, is_large(high) ? max - high + log_sum : 0.0f}; /* exact: |max| is the larger of the two */
}

/* delta of a row: the mean of its dp. Of weights that an lse in fp32 gives, which do not quite sum to one; 0 where all
 * of them are. */
DEVICE float mean_dp(float sum_p, float sum_p_dp) { return sum_p_dp * rcp_f32(sum_p == 0 ? 1.0f : sum_p); }

/* Of one row and key. Where the row does not see the key, the numbers mean nothing. */
struct gradient {
    bool visible;
    float p, dropped_p; /* dropped_p = m p, m of dropout: dv += dropped_p dout */
    float dp, dx, ds;   /* dq += softmax_scale ds k, dk += softmax_scale ds q, dbias = dx */
};

/* Of q . k = dot and dout . v = dout_v. */
DEVICE gradient find_gradient(const forward_params &p, const score_rule &rule, const sequence &s, int32_t row,
                              int32_t key, float dot, float dout_v, const row_state &state)
{
    const interval keys = keys_of_row(p, s, row);
    gradient out = {};
    if (key < keys.first || key >= keys.last) return out;
    const score x = find_score(p, rule, s, row, key, dot);
    dropout_bits bits = {-1, {}};
    const float multiplier = is_kept(p, rule, row, key, bits) ? p.dropout_multiplier : 0;
    out.visible = x.visible;
    out.p = exp2_f32(x.y - state.lse);
    out.dropped_p = multiplier * out.p;
    out.dp = multiplier * dout_v;
    out.dx = out.p * (out.dp - state.delta + state.dlse);
    out.ds = out.dx * x.slope;
    return out;
}

#endif

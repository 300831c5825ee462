/* gradients.h - what one score adds to the gradients, in fp32: lib/contract.md section 3. */
#ifndef ATTEST_KERNELS_SHARED_GRADIENTS_H
#define ATTEST_KERNELS_SHARED_GRADIENTS_H

#include "kernels/device/device.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"

/* These launch dbias and dsink of a backward pass, where they are wanted, once the workspace has the terms of all rows:
 * long/dbias.cu, long/dsink.cu. */
extern "C" int KERNEL_SYMBOL(dbias)(const struct backward_params *p, void *stream);
extern "C" int KERNEL_SYMBOL(dsink)(const struct backward_params *p, void *stream);

/* Loads one fp32 of a tensor without x, or 0 where there is no tensor. */
DEVICE float load_scalar(const row_tensor &t, const sequence &s, int64_t b, int32_t row, int64_t head)
{
    return t.data != nullptr ? load_feature(row_of(t, b, s.first_q + row, head, 1), 0) : 0.0f;
}

/* ---- lse --------------------------------------------------------------------------------------------------------- */

/* Holds lse of a row in base 2, in two parts, for scores whose biases have `reference` subtracted: p = 2^(y - high -
 * low). low is 0 unless high is large. */
struct row_lse {
    float high, low, reference;
};

/* Returns lse of a row whose scores have the maximum m and the sum `sum` of 2^(y - m). */
INLINE row_lse split_lse(float max, float sum, float reference)
{
    const float log_sum = log2_f32(sum);
    if (is_large(max)) return {max, log_sum, reference};
    return {max + log_sum, 0, reference};
}

/* Returns c dot - high, for scores that are c dot. Where high is large they are rounded as it is: a fused operation
 * would leave what high was rounded by in every exponent, and that can be beyond any bound. */
DEVICE float find_exponent(float dot, float c, float high)
{
    return is_large(high) ? dot * c - high : fma_rn(dot, c, -high);
}

/* Loads the lse that a backward pass begins with. Where it is large and belongs to a larger key set, it is the
 * reference of scores with biases, and lse itself is 0. PLAIN says that there are no biases. */
template <bool PLAIN = false>
INLINE row_lse load_row_lse(const backward_params &p, const sequence &s, int64_t b, int32_t row, int64_t head)
{
    const float lse = load_scalar(p.forward.lse, s, b, row, head), y = lse_in_base_2(lse);
    if (!PLAIN && p.external_lse && p.forward.bias.data != nullptr && is_large(y)) return {0, 0, lse};
    return {y, 0, 0};
}

/* Returns whether the given lse is not used, but found again from the row's own scores. */
DEVICE bool needs_own_lse(const backward_params &p, const row_lse &lse)
{
    return !p.external_lse && is_large(lse.high);
}

/* ---- query rows -------------------------------------------------------------------------------------------------- */

/* Points to what a backward pass keeps of its query rows for the kernels that follow: arrays [num_heads_q][rows_q] of
 * the workspace, here from the first row of a sequence and head on. */
struct row_terms {
    float *delta, *lse, *lse_low, *reference;
    float *offset; /* delta - dlse; only long/backward_sm80.cu has it */
};

INLINE row_terms terms_of(const backward_params &p, const sequence &s, int64_t b, int64_t head)
{
    const forward_params &f = p.forward;
    const int64_t all = f.num_heads_q * f.rows_q, first = f.cu_seqlens_q != nullptr ? s.first_q : b * f.seqlen_q;
    float *const at = static_cast<float *>(p.workspace) + head * f.rows_q + first;
    return {at, at + all, at + 2 * all, at + 3 * all, at + 4 * all};
}

DEVICE void write_row_lse(const row_terms &terms, int32_t row, const row_lse &lse)
{
    terms.lse[row] = lse.high, terms.lse_low[row] = lse.low, terms.reference[row] = lse.reference;
}

struct row_state {
    row_lse lse;
    float delta, dlse;
};

/* Loads a row's state from the workspace. Rows past used_q have no state, so it is zero. */
INLINE row_state load_row_state(const backward_params &p, const sequence &s, int64_t b, int32_t row, int64_t head)
{
    if (row >= s.used_q) return {};
    const row_terms terms = terms_of(p, s, b, head);
    return {{terms.lse[row], terms.lse_low[row], terms.reference[row]}, terms.delta[row],
            load_scalar(p.dlse, s, b, row, head)};
}

/* Returns delta of a row: the mean of its dp, over weights that an lse in fp32 gives and that therefore do not quite
 * sum to one. It is 0 where all weights are. */
DEVICE float mean_dp(float sum_p, float sum_p_dp) { return sum_p_dp * rcp_f32(sum_p == 0 ? 1.0f : sum_p); }

/* ---- pairs ------------------------------------------------------------------------------------------------------- */

/* Holds what one row and key contribute. Where the row does not see the key, the numbers mean nothing. */
struct gradient {
    bool visible;
    float y;            /* the score in base 2 */
    float p, dropped_p; /* dropped_p = m p, m of dropout: dv += dropped_p dout */
    float dp, dx, ds;   /* dq += softmax_scale ds k, dk += softmax_scale ds q, dbias = dx */
};

/* Computes it from q . k = dot and dout . v = dout_v. */
INLINE gradient find_gradient(const forward_params &p, const score_rule &rule, const sequence &s, int32_t row,
                              int32_t key, float dot, float dout_v, const row_state &state)
{
    const interval keys = keys_of_row(p, s, row);
    gradient out = {};
    if (key < keys.first || key >= keys.last) return out;
    const score x = find_score(p, rule, s, row, key, dot, state.lse.reference);
    dropout_bits bits = {-1, {}};
    const float multiplier = is_kept(p, rule, row, key, bits) ? p.dropout_multiplier : 0;
    out.visible = x.visible;
    out.y = x.y;
    out.p = exp2_f32(x.y - state.lse.high - state.lse.low);
    out.dropped_p = multiplier * out.p;
    out.dp = multiplier * dout_v;
    out.dx = out.p * (out.dp - state.delta + state.dlse);
    out.ds = out.dx * x.slope;
    return out;
}

#endif

/* short_hopper.h - what the forward kernels of whole short sequences on Hopper share: cards, the softmax of all keys at
 * once, outputs. */
#ifndef ATTEST_KERNELS_SHORT_HOPPER_H
#define ATTEST_KERNELS_SHORT_HOPPER_H

#include "kernels/hopper.h"
#include "kernels/params.h"

/* What a problem's threads know of it. */
struct card {
    char *rows[5]; /* the first ones, in the order of their tensors in forward_params */
    int32_t seqlen_q, used_q, used_k;
    bool is_ours;
    bool is_whole; /* no row, key or feature of the tiles is missing, and all rows are aligned */
};
enum { Q, K, V, O, LSE };
static_assert(offsetof(forward_params, lse) == offsetof(forward_params, q) + LSE * sizeof(row_tensor), "in order");

/* By a lane for each tensor, of which this is one. */
template <typename shape>
DEVICE void find_card(const forward_params &p, unsigned problem, card &c, unsigned tensor = lane())
{
    const unsigned b = quotient(problem, p.by_heads_q), head = problem - b * p.by_heads_q.by;
    if (b >= p.batch) { /* past the last */
        if (tensor == 0) c = {};
        return;
    }
    const sequence s = find_sequence(p, b);
    if (!is_ours(p, s)) {
        if (tensor == 0) c = {};
        return;
    }
    if (tensor <= LSE) {
        const row_tensor &t = (&p.q)[tensor];
        const bool is_k = tensor == K || tensor == V;
        const unsigned of = is_k ? quotient(head, p.by_group) : head;
        c.rows[tensor] = row_of(t, b, is_k ? s.first_k : s.first_q, of, 0).data;
    }
    if (tensor == 0) {
        c.seqlen_q = s.seqlen_q, c.used_q = s.used_q, c.used_k = s.used_k, c.is_ours = true;
        c.is_whole = s.seqlen_q == shape::KEYS && s.used_q == shape::KEYS && s.used_k == shape::KEYS &&
                     p.head_dim == shape::DIM && p.head_dim_v == shape::DIM &&
                     (p.q.by_eight & p.k.by_eight & p.v.by_eight & p.o.by_eight) != 0;
    }
}

/* -inf in place of the scores of keys from `used` on, which are of no key. */
template <int KEYS>
DEVICE void hide_keys(float (&s)[KEYS / 2], int used)
{
    const int left = used - static_cast<int>(lane() % 4 * 2);
    UNROLL for (int n = 0; n < KEYS / 2; ++n)
        if (n / 4 * 8 + n % 2 >= left) s[n] = -infinity_f32();
}

/* Of rows g and g + 8: the maximum in base 2 of their scores, and a lane's part of the sum of their weights. */
struct row_sums {
    float max[2], sum[2];
};

/* Scores times c to weights 2^(c s - m), m the row's maximum: of `used` keys, 0 of the others. */
template <int KEYS>
DEVICE row_sums find_weights(float (&s)[KEYS / 2], float c, int used)
{
    row_sums out;
    float factor[2], reference[2];
    if (c == 0) { /* against 0 times -inf of what is hidden: it is 0 times the others here, NaN of an infinity */
        UNROLL for (int n = 0; n < KEYS / 2; ++n) s[n] *= 0;
        c = 1;
    }
    if (used < KEYS) hide_keys<KEYS>(s, used);
    UNROLL for (int half = 0; half < 2; ++half) {
        float max = -infinity_f32();
        UNROLL for (int n = 2 * half; n < KEYS / 2; n += 4) /* passes a NaN by: it reaches the sum */
            max = max_f32(max, max_f32(s[n], s[n + 1]));
        out.max[half] = c * max_of_quad(max);
        factor[half] = c;
        reference[half] = out.max[half] == -infinity_f32() ? 0 : out.max[half]; /* against -inf - -inf */
    }
    if (out.max[0] == infinity_f32() || out.max[1] == infinity_f32()) /* inf - inf: weights are inf, 0 or NaN */
        UNROLL for (int half = 0; half < 2; ++half) {
            if (out.max[half] != infinity_f32()) continue;
            UNROLL for (int n = 2 * half; n < KEYS / 2; n += 4)
                UNROLL for (int e = 0; e < 2; ++e)
                    if (s[n + e] < infinity_f32()) s[n + e] = -infinity_f32();
            factor[half] = 1, reference[half] = 0;
        }
    UNROLL for (int half = 0; half < 2; ++half) {
        float sum[2] = {0, 0};
        UNROLL for (int n = 2 * half; n < KEYS / 2; n += 4)
            UNROLL for (int e = 0; e < 2; ++e) {
                s[n + e] = exp2_f32(fma_rn(s[n + e], factor[half], -reference[half]));
                sum[e] += s[n + e];
            }
        out.sum[half] = sum[0] + sum[1];
    }
    return out;
}

/* What a lane stores of a warp's 16 rows: o of rows lane / CHUNKS, + STEP ..., eight features each; if it is one of the
 * first two of four, lse of row lane / 4 or of the eighth after it. */
struct outputs {
    row_pointer o; /* its first row */
    char *lse;     /* NULL: not wanted, or another lane's */
};

template <int DIM>
DEVICE outputs find_outputs(const forward_params &p, const card &c, unsigned warp_row)
{
    const int64_t row = warp_row + lane() / CHUNKS<DIM>, lse_row = warp_row + lane() / 4 + lane() % 4 * 8;
    outputs out = {{c.rows[O] + row * p.o.seqlen * 2, p.o.dtype, p.o.by_four, p.head_dim_v}, nullptr};
    if (p.lse.data != nullptr && lane() % 4 < 2) out.lse = c.rows[LSE] + lse_row * p.lse.seqlen * 4;
    return out;
}

/* lse = ln 2 (m + log2 sum p) of the row that a lane stores. Of a warp's, `rows` are in memory, and those from `seen`
 * on see no key. */
DEVICE void write_lse(char *to, const row_sums &sums, const float (&sum)[2], int rows, int seen)
{
    const int half = lane() % 4 == 0 ? 0 : 1, row = static_cast<int>(lane() / 4) + 8 * half;
    if (to == nullptr || row >= rows) return;
    const float lse = ((half == 0 ? sums.max[0] : sums.max[1]) + log2_f32(half == 0 ? sum[0] : sum[1])) * LN_2;
    *reinterpret_cast<float *>(to) = row < seen ? one_nan_f32(lse) : -infinity_f32();
}

/* Rows from `first` on that no product has: past the last in use, they are (0, -inf). By WARPS neighbouring ones. */
template <unsigned WARPS>
DEVICE void write_empty_rows(const forward_params &p, const card &c, int first)
{
    ROLLED for (int row = first + static_cast<int>(warp() % WARPS); row < c.seqlen_q; row += WARPS) {
        uint16_t *const o = reinterpret_cast<uint16_t *>(c.rows[O] + row * p.o.seqlen * 2);
        ROLLED for (int x = static_cast<int>(lane()); x < p.head_dim_v; x += 32) o[x] = 0;
        if (p.lse.data != nullptr && lane() == 0)
            *reinterpret_cast<float *>(c.rows[LSE] + row * p.lse.seqlen * 4) = -infinity_f32();
    }
}

#endif

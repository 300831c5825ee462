/* backward_sm90.h - what the backward kernels of whole short sequences on Hopper share: problem descriptors, the
 * weights of a warpgroup's query rows, and the clearing of rows that no product has. */
#ifndef ATTEST_KERNELS_SHORT_BACKWARD_SM90_H
#define ATTEST_KERNELS_SHORT_BACKWARD_SM90_H

#include "kernels/shared/gradients.h"
#include "kernels/shared/wgmma_tiles.h"
#include "kernels/shared/params.h"

/* A problem descriptor holds what a problem's threads know of it; only is_ours is set if the problem is not this
 * launch's. */
struct backward_problem {
    char *rows[9]; /* the first ones, in the order of their tensors in backward_params */
    int32_t seqlen_q, seqlen_k, used_q, used_k;
    float scale; /* softmax_scale, which from here is one load for many uses */
    bool is_ours;
    bool is_whole; /* no row, key or feature of the tiles is missing, and all rows are aligned */
};
enum { Q, K, V, O, LSE, DOUT, DQ, DK, DV };
static_assert(offsetof(forward_params, lse) == offsetof(forward_params, q) + LSE * sizeof(row_tensor), "in order");
static_assert(offsetof(backward_params, dv) == offsetof(backward_params, dout) + (DV - DOUT) * sizeof(row_tensor),
              "in order");

/* Names the sequence and the head of a launch's problem. */
struct batch_head {
    unsigned b, head;
};

INLINE batch_head batch_head_of(const backward_params &p, unsigned problem)
{
    const unsigned b = quotient(problem, p.forward.by_heads_q);
    return {b, problem - b * p.forward.by_heads_q.by};
}

/* Finds a problem descriptor, by a lane for each tensor: this is the lane of tensor n. */
template <typename shape>
DEVICE void find_problem(const backward_params &p, unsigned problem, backward_problem &c, unsigned n = lane())
{
    const auto [b, head] = batch_head_of(p, problem);
    if (b >= p.forward.batch) { /* the second of a pair */
        if (n == 0) c = {};
        return;
    }
    const sequence s = find_sequence(p.forward, b);
    if (!is_ours(p.forward, s)) {
        if (n == 0) c = {};
        return;
    }
    if (n <= DV) {
        const row_tensor &t = n < DOUT ? (&p.forward.q)[n] : (&p.dout)[n - DOUT];
        const bool is_k = n == K || n == V || n == DK || n == DV;
        c.rows[n] = row_of(t, b, is_k ? s.first_k : s.first_q, head, 0).data;
    }
    if (n == 0) {
        c.seqlen_q = s.seqlen_q, c.seqlen_k = s.seqlen_k, c.used_q = s.used_q, c.used_k = s.used_k;
        c.scale = p.forward.softmax_scale, c.is_ours = true;
        const int by_eight = p.forward.q.by_eight & p.forward.k.by_eight & p.forward.v.by_eight & p.dout.by_eight &
                             p.dq.by_eight & p.dk.by_eight & p.dv.by_eight;
        c.is_whole = s.seqlen_q == shape::KEYS && s.seqlen_k == shape::KEYS && s.used_q == shape::KEYS &&
                     s.used_k == shape::KEYS && p.forward.head_dim == shape::DIM &&
                     p.forward.head_dim_v == shape::DIM && by_eight != 0;
    }
}

/* Returns whether all of a launch's problems are full. All of them are this launch's then: sequences of one length have
 * one kernel. */
template <typename shape>
static inline bool are_whole(const backward_params &p)
{
    const forward_params &f = p.forward;
    const int by_eight = f.q.by_eight & f.k.by_eight & f.v.by_eight & p.dout.by_eight & p.dq.by_eight & p.dk.by_eight &
                         p.dv.by_eight;
    const bool may_vary = f.cu_seqlens_q != nullptr || f.seqused_q != nullptr || f.seqused_k != nullptr;
    return !may_vary && by_eight != 0 && f.seqlen_q == shape::KEYS && f.seqlen_k == shape::KEYS &&
           f.head_dim == shape::DIM && f.head_dim_v == shape::DIM;
}

/* Returns where a problem's rows begin, in a launch of full ones. */
template <typename T>
DEVICE T *whole_rows(const row_tensor &t, const backward_params &p, unsigned problem)
{
    const auto [b, head] = batch_head_of(p, problem);
    return static_cast<T *>(t.data) + (b * t.batch + head * t.head);
}

/* Returns the descriptor of a problem that is full and this launch's, as all are. It must not be put in shared memory:
 * as long as it is in registers, addresses of rows that nobody asks for are never computed. */
INLINE backward_problem full_problem(const backward_params &p, unsigned problem)
{
    const forward_params &f = p.forward;
    const auto [b, head] = batch_head_of(p, problem);
    backward_problem c = {{}, f.seqlen_q, f.seqlen_k, f.seqlen_q, f.seqlen_k, f.softmax_scale, true, true};
    UNROLL for (int n = 0; n <= DV; ++n) {
        const row_tensor &t = n < DOUT ? (&f.q)[n] : (&p.dout)[n - DOUT];
        c.rows[n] = static_cast<char *>(t.data) + (b * t.batch + head * t.head) * (n == LSE ? 4 : 2);
    }
    return c;
}

/* ---- p and ds: 64 query rows of a warpgroup, two of a lane, g and g + 8 ------------------------------------------ */

/* These return the first row, and key, of a warpgroup, and of a warp. Lanes have it from one of them, so that the
 * compiler knows it to be uniform; it is found again wherever it is used, so that no register keeps what is derived
 * from it. */
DEVICE unsigned own_first() { return shfl_idx(FULL_WARP, warp() / 4, 0) * 64; }
DEVICE unsigned warp_first() { return shfl_idx(FULL_WARP, warp() * 16, 0); }

/* Returns the first of a lane's two rows of the tiles. */
DEVICE int lane_row() { return static_cast<int>(thread_x() / 32 * 16 + thread_x() % 32 / 4); }

/* Loads lse of a lane's rows, of which `row` is the first, in base 2; it is 0 where they are not in use. */
DEVICE void load_lse(float (&lse)[2], const row_tensor &t, const char *rows, int row, int used)
{
    UNROLL for (int n = 0; n < 2; ++n) {
        const float *const from = reinterpret_cast<const float *>(rows + (row + 8 * n) * t.seqlen * 4);
        lse[n] = row + 8 * n < used ? *from * LOG2_E : 0;
    }
}

/* Returns whether lse of a row of the warp is_large(): for plain problems that is all there is to ask. */
DEVICE bool is_any_large(const float (&lse)[2])
{
    return ballot(FULL_WARP, is_large(lse[0]) || is_large(lse[1])) != 0;
}

/* Returns how many of `keys` from first_key on are in use, counted from a lane's first one. If all are in use, no lane
 * asks. */
DEVICE int used_from(int used_k, int first_key, int keys)
{
    const int used = used_k - first_key;
    return used >= keys ? keys : used - static_cast<int>(lane() % 4 * 2);
}

/* Returns the sign of c, by which scores are multiplied: -1 or 1. It comes from a shuffle, so that no register keeps it
 * from problem to problem. */
DEVICE float sign_of(float c) { return shfl_idx(FULL_WARP, c, 0) < 0 ? -1.0f : 1.0f; }

/* Finds, for each row, the score of the key that weighs most, times the sign of c, or keeps `heaviest` of earlier ones.
 * Scores of keys that are not in use become those of no weight, 2^-inf. */
template <int PARTS, int COUNT>
DEVICE void find_heaviest(float (&heaviest)[2], float (&s)[PARTS][COUNT], float sign, int used)
{
    UNROLL for (int n = 0; n < PARTS * COUNT; ++n) {
        float &of_key = s[n / COUNT][n % COUNT];
        if (n / 4 * 8 + n % 2 >= used) of_key = -sign * infinity_f32();
        heaviest[n / 2 % 2] = max_f32(heaviest[n / 2 % 2], sign * of_key);
    }
    UNROLL for (int r = 0; r < 2; ++r) heaviest[r] = max_of_quad(heaviest[r]);
}

/* Finds lse of rows whose lse is large, from all of their scores: it subtracts the score of the heaviest key from s,
 * and lse becomes that of what remains. Such a difference is off by 2^-24 of itself, however large scores are, whereas
 * c s of the two and an lse of their size are off by 2^-24 of that. Other rows keep their bits, but for what hide()
 * hides. */
template <int PARTS, int COUNT>
DEVICE void take_own_lse(float (&s)[PARTS][COUNT], float c, int used_k, float (&lse)[2])
{
    const float sign = sign_of(c);
    float heaviest[2] = {-infinity_f32(), -infinity_f32()}, sum[2] = {0, 0};
    find_heaviest(heaviest, s, sign, used_from(used_k, 0, 2 * PARTS * COUNT));
    UNROLL for (int r = 0; r < 2; ++r) heaviest[r] = is_large(lse[r]) ? sign * heaviest[r] : 0;
    UNROLL for (int n = 0; n < PARTS * COUNT; ++n) {
        float &of_key = s[n / COUNT][n % COUNT];
        of_key -= heaviest[n / 2 % 2];
        sum[n / 2 % 2] += exp2_f32(of_key * c);
    }
    UNROLL for (int r = 0; r < 2; ++r) {
        const float of_row = log2_f32(sum_of_quad(sum[r]));
        lse[r] = is_large(lse[r]) ? of_row : lse[r];
    }
}

/* Does the same for all keys at once. */
template <int COUNT>
DEVICE void take_own_lse(float (&s)[COUNT], float c, int used_k, float (&lse)[2])
{
    take_own_lse(reinterpret_cast<float(&)[1][COUNT]>(s), c, used_k, lse);
}

/* Turns s into p. lse is in base 2. */
template <int COUNT>
DEVICE void recompute_weights(float (&s)[COUNT], float c, const float (&lse)[2])
{
    UNROLL for (int n = 0; n < COUNT; ++n) s[n] = exp2_f32(fma_rn(s[n], c, -lse[n / 2 % 2]));
}

/* Puts zero in place of weights that belong to no row or no key, for keys from first_key on. */
template <int COUNT>
DEVICE void hide(float (&weights)[COUNT], const backward_problem &c, int row, int first_key)
{
    const int keys = c.used_k - (first_key + static_cast<int>(lane() % 4 * 2));
    const int left[2] = {row < c.used_q ? keys : 0, row + 8 < c.used_q ? keys : 0}; /* from a lane's first one on */
    UNROLL for (int n = 0; n < COUNT; ++n)
        if (n / 4 * 8 + n % 2 >= left[n / 2 % 2]) weights[n] = 0;
}

/* Holds sums over a lane's keys. */
struct row_sums {
    float p[2], p_dp[2];
};

template <int COUNT>
DEVICE void add_weights(row_sums &sums, const float (&p)[COUNT], const float (&dp)[COUNT])
{
    UNROLL for (int n = 0; n < COUNT; ++n) {
        sums.p[n / 2 % 2] += p[n];
        sums.p_dp[n / 2 % 2] = fma_rn(p[n], dp[n], sums.p_dp[n / 2 % 2]);
    }
}

/* Turns dp into ds. */
template <int COUNT>
DEVICE void find_ds(float (&dp)[COUNT], const float (&p)[COUNT], const float (&delta)[2])
{
    UNROLL for (int n = 0; n < COUNT; ++n) dp[n] = p[n] * (dp[n] - delta[n / 2 % 2]);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Clears rows that no product has: past the last in use, they are zero. WARPS share the work, each from a `row` of its
 * own on. */
template <int WARPS>
DEVICE void clear_rows(const row_tensor &t, char *rows, int length, int row, int seqlen)
{
    ROLLED for (; row < seqlen; row += WARPS) {
        uint16_t *const to = reinterpret_cast<uint16_t *>(rows + row * t.seqlen * 2);
        ROLLED for (int x = static_cast<int>(lane()); x < length; x += 32) to[x] = 0;
    }
}

/* Clears the rows of all results that no tile holds, as clear_rows does. */
template <int WARPS>
DEVICE void clear_result_rows(const backward_params &p, const backward_problem &c, int row)
{
    clear_rows<WARPS>(p.dq, c.rows[DQ], p.forward.head_dim, row, c.seqlen_q);
    clear_rows<WARPS>(p.dk, c.rows[DK], p.forward.head_dim, row, c.seqlen_k);
    clear_rows<WARPS>(p.dv, c.rows[DV], p.forward.head_dim_v, row, c.seqlen_k);
}

#endif

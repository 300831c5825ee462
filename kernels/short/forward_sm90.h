/* forward_sm90.h - what the forward kernels of whole short sequences on Hopper share: problem descriptors, loads, the
 * softmax of all keys at once, outputs. */
#ifndef ATTEST_KERNELS_SHORT_FORWARD_SM90_H
#define ATTEST_KERNELS_SHORT_FORWARD_SM90_H

#include "kernels/shared/wgmma_tiles.h"
#include "kernels/shared/params.h"

/* A problem descriptor holds what a problem's threads know of it. */
struct forward_problem {
    char *rows[5]; /* the first ones, in the order of their tensors in forward_params */
    int32_t seqlen_q, used_q, used_k;
    bool is_ours;
    bool is_whole; /* no row, key or feature of the tiles is missing, and all rows are aligned */
};
enum { Q, K, V, O, LSE };
static_assert(offsetof(forward_params, lse) == offsetof(forward_params, q) + LSE * sizeof(row_tensor), "in order");

/* Finds a problem descriptor, by a lane for each tensor: this is the lane of `tensor`. */
template <typename shape>
DEVICE void find_problem(const forward_params &p, unsigned problem, forward_problem &c, unsigned tensor = lane())
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

/* Returns the descriptor of a problem that is full and this launch's. It must not be put in shared memory: as long as
 * it is in registers, addresses of rows that nobody asks for are never computed. */
template <typename shape>
INLINE forward_problem full_problem(const forward_params &p, unsigned problem)
{
    const unsigned b = quotient(problem, p.by_heads_q), head = problem - b * p.by_heads_q.by;
    forward_problem c = {{}, shape::KEYS, shape::KEYS, shape::KEYS, true, true};
    UNROLL for (int n = 0; n <= LSE; ++n) {
        const row_tensor &t = (&p.q)[n];
        const unsigned of = n == K || n == V ? quotient(head, p.by_group) : head;
        c.rows[n] = static_cast<char *>(t.data) + (b * t.batch + of * t.head) * (n == LSE ? 4 : 2);
    }
    return c;
}

/* Returns whether all problems are full, and are in full pairs where they come in pairs. All of them are this launch's
 * then: sequences of one length have one kernel. Runs on the host. */
template <typename shape>
static inline bool are_whole(const forward_params &p)
{
    return p.cu_seqlens_q == nullptr && p.seqused_q == nullptr && p.seqused_k == nullptr &&
           p.seqlen_q == shape::KEYS && p.seqlen_k == shape::KEYS && p.head_dim == shape::DIM &&
           p.head_dim_v == shape::DIM && (p.q.by_eight & p.k.by_eight & p.v.by_eight & p.o.by_eight) != 0 &&
           p.batch * p.num_heads_q % shape::PROBLEMS == 0;
}

/* Loads q, k and v of a CTA's problems, one after the other, each thread its part of one, which c describes. is_ours
 * says that one of them is this launch's. */
template <typename shape, int THREADS>
DEVICE void load_tiles(uint16_t *q, const forward_params &p, const forward_problem &c, bool is_ours)
{
    uint16_t *const k = q + shape::TILE * shape::DIM, *const v = k + shape::TILE * shape::DIM;
    if (c.is_whole) {
        const char *const rows_k = c.rows[K], *const rows_v = c.rows[V]; /* read here, as no read may pass a copy */
        load_whole_operand<shape, THREADS>(q, p.q, c.rows[Q], thread_x());
        load_whole_operand<shape, THREADS>(k, p.k, rows_k, thread_x());
        load_whole_operand<shape, THREADS>(v, p.v, rows_v, thread_x());
    } else if (is_ours) {
        load_operand<shape, THREADS>(q, p.q, c.rows[Q], p.head_dim, c.used_q, thread_x());
        load_operand<shape, THREADS>(k, p.k, c.rows[K], p.head_dim, c.used_k, thread_x());
        load_operand<shape, THREADS>(v, p.v, c.rows[V], p.head_dim_v, c.used_k, thread_x());
    }
    cp_async_commit();
}

/* Puts -inf in place of the scores from `used` on, which belong to no key. */
template <int KEYS>
DEVICE void hide_keys(float (&s)[KEYS / 2], int used)
{
    const int left = used - static_cast<int>(lane() % 4 * 2);
    UNROLL for (int n = 0; n < KEYS / 2; ++n)
        if (n / 4 * 8 + n % 2 >= left) s[n] = -infinity_f32();
}

/* Holds, for rows g and g + 8, m in base 2 and a lane's part of the sum of their weights. */
struct row_sums {
    float max[2], sum[2];
};

/* A row of 128 keys need not know its maximum: that of the first 16 keys is as good, as long as the sum of all weights
 * is at most MOST_WEIGHT. Where it is more, or NaN, as with infinite scores, a problem is retried. */
enum { NEAR_KEYS = 16, MOST_KEYS = 128 };
constexpr float MOST_WEIGHT = 0x1p15f;

/* Turns scores times c into weights 2^(c s - m), where m is the row's maximum, of `used` keys; the others' weights are
 * 0. is_near says that m is the maximum of the first NEAR_KEYS keys; none is missing then. */
template <int KEYS>
INLINE row_sums find_softmax_weights(float (&s)[KEYS / 2], float c, int used, bool is_near)
{
    row_sums out;
    if (used < KEYS) {
        if (c == 0) { /* avoids 0 times -inf of hidden scores: the others give 0, an infinity NaN */
            UNROLL for (int n = 0; n < KEYS / 2; ++n) s[n] *= 0;
            c = 1;
        }
        hide_keys<KEYS>(s, used);
    }
    float max[2] = {max_f32(s[0], s[1]), max_f32(s[2], s[3])}; /* ignores a NaN, which reaches the sum */
    UNROLL for (int n = 4; n < NEAR_KEYS / 2; n += 2)
        max[n / 2 % 2] = max_f32(max[n / 2 % 2], max_f32(s[n], s[n + 1]));
    if (!is_near)
        UNROLL for (int n = NEAR_KEYS / 2; n < KEYS / 2; n += 2)
            max[n / 2 % 2] = max_f32(max[n / 2 % 2], max_f32(s[n], s[n + 1]));
    UNROLL for (int half = 0; half < 2; ++half) {
        const float m = c * max_of_quad(max[half]);
        /* This avoids -inf - -inf; and the weight of +inf is inf, beside which no other counts. */
        out.max[half] = !is_near && (m == -infinity_f32() || m == infinity_f32()) ? 0 : m;
    }
    UNROLL for (int half = 0; half < 2; ++half) {
        float sum[2] = {0, 0};
        UNROLL for (int n = 2 * half; n < KEYS / 2; n += 4)
            UNROLL for (int e = 0; e < 2; ++e) {
                s[n + e] = exp2_f32(fma_rn(s[n + e], c, -out.max[half]));
                sum[e] += s[n + e];
            }
        out.sum[half] = sum[0] + sum[1];
    }
    return out;
}

template <int COUNT>
DEVICE bool are_all(const bool (&facts)[COUNT])
{
    bool out = true;
    UNROLL for (bool fact : facts) out &= fact;
    return out;
}

/* Returns a lane's first of a warp's 16 rows of o: the lane stores rows lane / CHUNKS, + STEP ..., eight features
 * each. */
template <int DIM>
INLINE row_pointer first_row_of_o(const forward_params &p, const forward_problem &c, unsigned warp_row)
{
    const int64_t row = warp_row + lane() / CHUNKS<DIM>;
    return {c.rows[O] + row * p.o.seqlen * 2, p.o.dtype, p.o.by_four, p.head_dim_v};
}

/* Writes lse = ln 2 (m + log2 sum p) of a warp's rows, from warp_row on, of which `rows` are in memory, while those
 * from `seen` on see no key. The first of four lanes writes row lane / 4, the second the eighth row after it. */
DEVICE void write_lse(const forward_params &p, const forward_problem &c, unsigned warp_row, const row_sums &sums,
                      const float (&sum)[2], int rows, int seen)
{
    const int half = lane() % 4 == 0 ? 0 : 1, row = static_cast<int>(lane() / 4) + 8 * half;
    const float lse = ((half == 0 ? sums.max[0] : sums.max[1]) + log2_f32(half == 0 ? sum[0] : sum[1])) * LN_2;
    if (p.lse.data == nullptr || lane() % 4 >= 2 || row >= rows) return;
    *reinterpret_cast<float *>(c.rows[LSE] + (static_cast<int64_t>(warp_row) + row) * p.lse.seqlen * 4) =
        row < seen ? one_nan_f32(lse) : -infinity_f32();
}

/* Writes (0, -inf) to rows from `first` on that no product has, as they are past the last in use. WARPS neighbouring
 * warps share the work. */
template <unsigned WARPS>
DEVICE void write_empty_rows(const forward_params &p, const forward_problem &c, int first)
{
    ROLLED for (int row = first + static_cast<int>(warp() % WARPS); row < c.seqlen_q; row += WARPS) {
        uint16_t *const o = reinterpret_cast<uint16_t *>(c.rows[O] + row * p.o.seqlen * 2);
        ROLLED for (int x = static_cast<int>(lane()); x < p.head_dim_v; x += 32) o[x] = 0;
        if (p.lse.data != nullptr && lane() == 0)
            *reinterpret_cast<float *>(c.rows[LSE] + row * p.lse.seqlen * 4) = -infinity_f32();
    }
}

#endif

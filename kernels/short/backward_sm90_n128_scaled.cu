/* backward_sm90_n128_scaled.cu - attention backward of whole short sequences on Hopper's tensor cores (wgmma), weights
 * in one number of 16 bits.
 *
 *     ds = p (dp - delta),  delta = sum of p dp over that of p
 *     dq = scale ds (k - c),  dk = scale ds^T q,  dv = p^T dout
 *
 * Takes, in bf16, what short/backward_sm90_n128.cu does for heads of at most 32 features: 65 .. 128 rows or keys. There
 * p and ds have two parts, as one bf16 has 8 bits. Here they are one fp16, of 11 bits, which halves the products and
 * the traffic of shared memory. What they are multiplied with must be fp16, too, which has fewer exponents: each tile
 * of q, k and dout is multiplied by the power of two that brings its largest number just below fp16's, which is exact
 * but for numbers 2^32 times smaller; p by 2^8; ds by a power that follows from the largest numbers of dout and v.
 * Results are multiplied by the inverse powers.
 *
 * Rounding errors of ds, small as they are, do not add up to zero over the keys as ds does, and dq would contain their
 * sum times what the rows of k have in common. So dq is computed from k - c, which gives the same with exact ds: c is,
 * feature by feature, the median of three rows, close to what most rows have in common, and no single outlier; it is 0
 * for fewer than 49 keys.
 *
 * Grid    x: persistent CTAs; each takes one problem, a sequence and head, after the other (own_share). They may come
 *         before the previous launch has ended (grid_wait)
 * Block   two warpgroups: query rows 0 .. 63 and 64 .. 127, for s, p, dp, ds and dq; the same of keys, for dk and dv
 * Shared  q, k, dout and v, as wgmma reads them; q, k - c and dout scaled; ds and p of all rows and keys; dq on its way
 *         out: 112 KB; what warps tell each other of the next problem, and problem descriptors: where problems' rows
 *         are
 * Phases  of a problem: s, dp, p and ds; dq, dk and dv. The next problem's rows come meanwhile, into registers: a copy
 *         to shared memory that is under way would be waited for by every fence before a product
 *
 * A launch of nothing but full problems, of 128 aligned rows and keys of 32 features, finds rows by arithmetic; else a
 * problem descriptor says where they are, and which are in use.
 *
 * wgmma keeps shared memory busy: a read issued beside its products waits until they are done. So what is needed after
 * the products is read before the barrier in front of them.
 *
 * p stays in registers, in fp32, until ds is found, beside dp of half of the keys: dp of the other half is computed
 * twice, for delta and for ds. kernels/short/short.md has the figures, reference/bounds.md section 11.11 what it may be
 * off by. */
#include "kernels/shared/scaled_fp16.h"
#include "kernels/short/backward_sm90.h"

namespace {

enum { THREADS = 256, WARPS = THREADS / 32, KEYS = 128, HALF = KEYS / 2, DIM = 32, LOG2_DIM = 5 };
typedef short_shape<DIM, KEYS> operand;
typedef short_shape<HALF, KEYS> weights; /* of half of the keys */
constexpr int TILE = KEYS * DIM, PART = KEYS * HALF; /* numbers */
enum { SLOTS = 3 }; /* for the problem before, whose results are being written, this one and the next one */

/* p times 2^8 fits fp16 up to p = 2^7: by a row's own lse p is 1 at most, but for what its exponent is off by. */
enum { P_SHIFT = 8 };

enum tiles { OF_Q, OF_K, OF_DOUT, OF_V, TENSORS };
enum results { FOR_DQ, FOR_DK, FOR_DV, RESULTS };
enum { SAMPLES = 3 };

/* Holds what sums are multiplied by: a number, and then a power of two for which fp32 may have no room beside it. */
struct factor {
    float by;
    int32_t exponent;
};

struct shared_memory {
    uint16_t ds[2 * PART], p[2 * PART]; /* p of keys 64 .. 127 is in the place of q and k, which s alone reads */
    uint16_t dout[TILE], v[TILE];
    uint16_t scaled[OF_V][TILE]; /* q, k - c, dout */
    uint16_t dq[TILE]; /* on its way to memory */
    uint16_t sample[SAMPLES][DIM]; /* rows of k */
    alignas(16) uint32_t sizes[WARPS][TENSORS / 2]; /* of a warp's rows, the largest of each tensor: bits of bf16 */
    factor factors[RESULTS];
    share left; /* of full problems: from this one on; else those after the next one */
    backward_problem problems[SLOTS]; /* of problems that are not all full */
};
static_assert(sizeof(shared_memory) <= 113 * 1024, "what the registry says; an SM has room for two");

static_assert(PART == 2 * TILE, "q and k have the place of half of p");

DEVICE uint16_t *q_of(shared_memory &m) { return &m.p[PART]; }
DEVICE uint16_t *k_of(shared_memory &m) { return &m.p[PART + TILE]; }

/* Holds what a lane has of the next problem: rows lane / 4 and + 8 of the warp's, features from lane % 4 * 8 on; and
 * lse of row lane % 16. */
struct lane_rows {
    chunk of[TENSORS][2];
    float lse;
};

/* Returns the thread's number, found again wherever it is used, like warp_first(). */
DEVICE unsigned own_thread() { return shfl_idx(FULL_WARP, thread_x(), thread_x() % 32); }

DEVICE unsigned first_row(unsigned thread) { return thread / 32 * 16 + thread % 32 / 4; }
DEVICE unsigned first_feature(unsigned thread) { return thread % 4 * 8; }

/* ---- the next problem's rows ------------------------------------------------------------------------------------- */

/* Loads a lane's two chunks of a tensor, of which `length` features of `used` rows are in use; the rest is zero. */
DEVICE void ask(chunk (&to)[2], const row_tensor &t, char *rows, int length, int used, unsigned thread)
{
    const int x = static_cast<int>(first_feature(thread)), first = static_cast<int>(first_row(thread));
    row_pointer row = {rows + first * t.seqlen * 2, t.dtype, t.by_four, length};
    UNROLL for (int n = 0; n < 2; ++n, row.data += 8 * t.seqlen * 2) {
        if (first + 8 * n >= used || x >= length) to[n] = {};
        else if (t.by_eight && x + 8 <= length) to[n] = load_16<chunk>(row.data + 2 * x);
        else to[n] = same_16<chunk>(load_eight(row, x));
    }
}

DEVICE void ask_whole(chunk (&to)[2], const row_tensor &t, const backward_params &p, unsigned problem, unsigned thread)
{
    const uint16_t *const row = whole_rows<uint16_t>(t, p, problem) + first_row(thread) * t.seqlen;
    UNROLL for (int n = 0; n < 2; ++n) to[n] = load_16<chunk>(row + 8 * n * t.seqlen + first_feature(thread));
}

DEVICE void ask_whole_rows(lane_rows &rows, const backward_params &p, unsigned problem)
{
    const unsigned thread = own_thread();
    ask_whole(rows.of[OF_Q], p.forward.q, p, problem, thread);
    ask_whole(rows.of[OF_K], p.forward.k, p, problem, thread);
    ask_whole(rows.of[OF_DOUT], p.dout, p, problem, thread);
    ask_whole(rows.of[OF_V], p.forward.v, p, problem, thread);
    const row_tensor &t = p.forward.lse;
    rows.lse = whole_rows<const float>(t, p, problem)[(thread / 32 * 16 + thread % 16) * t.seqlen];
}

DEVICE void ask_rows(lane_rows &rows, const backward_params &p, const backward_problem &c)
{
    const unsigned thread = own_thread();
    ask(rows.of[OF_Q], p.forward.q, c.rows[Q], p.forward.head_dim, c.used_q, thread);
    ask(rows.of[OF_K], p.forward.k, c.rows[K], p.forward.head_dim, c.used_k, thread);
    ask(rows.of[OF_DOUT], p.dout, c.rows[DOUT], p.forward.head_dim_v, c.used_q, thread);
    ask(rows.of[OF_V], p.forward.v, c.rows[V], p.forward.head_dim_v, c.used_k, thread);
    const int row = static_cast<int>(thread / 32 * 16 + thread % 16);
    const float *const lse = reinterpret_cast<const float *>(c.rows[LSE]);
    rows.lse = row < c.used_q ? lse[row * p.forward.lse.seqlen] : 0;
}

/* Finds the problem descriptor of this launch's first problem among those left, and then leaves only those after it.
 * One warp does it. */
DEVICE void find_next(const backward_params &p, share &left, backward_problem &c)
{
    const share all = left;
    unsigned problem = all.end;
    ROLLED for (unsigned first = all.first; problem == all.end && first < all.end; first += 32 * all.step) {
        const unsigned asked = first + lane() * all.step;
        const bool is_one = asked < all.end &&
                            is_ours(p.forward, find_sequence(p.forward, quotient(asked, p.forward.by_heads_q)));
        const uint32_t ours = ballot(FULL_WARP, is_one);
        const bool is_next = is_one && (ours & ((1u << lane()) - 1)) == 0; /* the first of those */
        if (ours != 0) problem = max_of_warp(is_next ? asked : 0);
    }
    if (problem < all.end) find_problem<operand>(p, problem, c);
    else if (lane() == 0) c.is_ours = false;
    sync_warp(FULL_WARP); /* `left` has been read */
    if (lane() == 0) left.first = problem < all.end ? problem + all.step : all.end;
}

/* Publishes what all threads must know of these rows before they can be scaled. */
DEVICE void publish(shared_memory &m, const lane_rows &rows)
{
    uint32_t sizes[TENSORS / 2];
    UNROLL for (int n = 0; n < TENSORS / 2; ++n)
        sizes[n] = largest(rows.of[2 * n]) | largest(rows.of[2 * n + 1]) << 16;
    if (lane() < TENSORS / 2) m.sizes[warp()][lane()] = lane() == 0 ? sizes[0] : sizes[1];
    if (warp() % 2 == 1 && warp() < 2 * SAMPLES && lane() < 4)
        store_16(&m.sample[warp() / 2][first_feature(lane())], rows.of[OF_K][0]);
}

/* ---- powers of two ----------------------------------------------------------------------------------------------- */

DEVICE int limit(int n, int least, int most) { return n < least ? least : n > most ? most : n; }

/* Holds the powers of two of q, k - c and dout; and that of dp, which ds has, too, beside p's. */
struct shifts {
    int of[OF_V], ds;
};

/* |dp - delta| <= 2 DIM max |dout| max |v|, and each maximum is below 2^(its exponent + 1). So dp times its power is
 * within 1, and ds times both within p times its own. */
INLINE shifts find_shifts(const shared_memory &m)
{
    uint32_t sizes[TENSORS / 2] = {};
    UNROLL for (int w = 0; w < WARPS; w += 2) {
        const chunk two = load_16<chunk>(m.sizes[w]); /* of two warps */
        UNROLL for (int n = 0; n < TENSORS; ++n) sizes[n % 2] = max_bf16x2(sizes[n % 2], two.at[n]);
    }
    int exponents[TENSORS];
    UNROLL for (int t = 0; t < TENSORS; ++t)
        exponents[t] = static_cast<int>(sizes[t / 2] >> (t % 2 * 16 + 7) & 0xff) - 127;
    shifts s;
    UNROLL for (int t = 0; t < OF_V; ++t) s.of[t] = shift_of(exponents[t]);
    s.of[OF_K] -= 1; /* a difference of two */
    s.ds = limit(-(LOG2_DIM + 3) - exponents[OF_DOUT] - exponents[OF_V], -126, 126);
    return s;
}

/* Splits the factor such that no product of fp32 leaves its range where the result does not. */
INLINE factor factor_of(float scale, int exponent)
{
    const int own = static_cast<int>(bits_of(scale) >> 23 & 0xff) - 127;
    const int first = limit(limit(exponent, -100 - own, 100 - own), -126, 127);
    return {scale * power(first), limit(exponent - first, -252, 254)}; /* beyond, results are 0 or infinite by far */
}

DEVICE void find_factors(shared_memory &m, const shifts &s, float softmax_scale)
{
    const unsigned result = thread_x();
    if (result >= RESULTS) return;
    const int of_weights = P_SHIFT + (result == FOR_DV ? 0 : s.ds);
    const int of_operand = result == FOR_DQ ? s.of[OF_K] : result == FOR_DK ? s.of[OF_Q] : s.of[OF_DOUT];
    m.factors[result] = factor_of(result == FOR_DV ? 1 : softmax_scale, -of_weights - of_operand);
}

/* ---- operands ---------------------------------------------------------------------------------------------------- */

DEVICE void put(uint16_t *tile, unsigned at, const chunk &row, const chunk &row_8)
{
    store_16(&tile[at], row);
    store_16(&tile[at ^ offset<operand>(8, 0)], row_8);
}

/* Returns the median of three numbers, twice. */
DEVICE uint32_t median(uint32_t a, uint32_t b, uint32_t c)
{
    return max_bf16x2(min_bf16x2(a, b), min_bf16x2(max_bf16x2(a, b), c));
}

/* Computes k - c for both rows. */
DEVICE void centre(chunk (&out)[2], const chunk (&rows)[2], const shared_memory &m, unsigned x, float by)
{
    const chunk a = load_16<chunk>(&m.sample[0][x]), b = load_16<chunk>(&m.sample[1][x]);
    const chunk c = load_16<chunk>(&m.sample[2][x]);
    UNROLL for (int n = 0; n < 4; ++n) {
        const uint32_t middle = median(a.at[n], b.at[n], c.at[n]);
        const float low = low_of(middle) * by, high = high_of(middle) * by;
        UNROLL for (int r = 0; r < 2; ++r) {
            const uint32_t pair = rows[r].at[n];
            out[r].at[n] = pack_f16x2(fma_rn(low_of(pair), by, -low), fma_rn(high_of(pair), by, -high));
        }
    }
}

DEVICE void put_rows(shared_memory &m, const lane_rows &rows, const shifts &s)
{
    const unsigned thread = own_thread(), x = first_feature(thread), at = offset<operand>(first_row(thread), x);
    put(q_of(m), at, rows.of[OF_Q][0], rows.of[OF_Q][1]);
    put(k_of(m), at, rows.of[OF_K][0], rows.of[OF_K][1]);
    put(m.dout, at, rows.of[OF_DOUT][0], rows.of[OF_DOUT][1]);
    put(m.v, at, rows.of[OF_V][0], rows.of[OF_V][1]);
    const int by_q = s.of[OF_Q], by_dout = s.of[OF_DOUT];
    put(m.scaled[OF_Q], at, scaled(rows.of[OF_Q][0], by_q), scaled(rows.of[OF_Q][1], by_q));
    put(m.scaled[OF_DOUT], at, scaled(rows.of[OF_DOUT][0], by_dout), scaled(rows.of[OF_DOUT][1], by_dout));
    chunk centred[2];
    centre(centred, rows.of[OF_K], m, x, power(s.of[OF_K]));
    put(m.scaled[OF_K], at, centred[0], centred[1]);
}

/* ---- p and ds ---------------------------------------------------------------------------------------------------- */

/* Holds s or p, dp or ds for half of the keys. */
typedef float half_row[HALF / 2];

/* Stores a warp's 16 rows, in fp16. */
DEVICE void store_half(uint16_t *to, const half_row &from)
{
    const unsigned at = offset<weights>(warp_first() + lane() % 16, lane() / 16 * 8);
    UNROLL for (unsigned j = 0; j < HALF / 16; ++j) {
        uint32_t four[4];
        UNROLL for (int r = 0; r < 4; ++r) four[r] = pack_f16x2(from[8 * j + 2 * r], from[8 * j + 2 * r + 1]);
        stmatrix_x4(&to[at ^ 16 * j], four);
    }
}

/* Computes d = w b for a warpgroup's rows and all keys, or w^T b for its keys and all rows. */
template <bool TRANSPOSE>
DEVICE void multiply_scaled_weights(float (&d)[DIM / 2], const uint16_t *w, const uint16_t *scaled_operand)
{
    const uint64_t a = TRANSPOSE ? wgmma_advance(descriptor<weights>(w), own_first() / HALF * PART * 2)
                                 : descriptor<weights>(w, own_first());
    const uint64_t b = descriptor<operand>(scaled_operand);
    wgmma_fence_operand(d);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j) {
        const unsigned from = TRANSPOSE ? 16 * j * HALF : 16 * j / HALF * PART + 16 * j % HALF;
        const uint64_t a_j = wgmma_advance(a, from * 2), b_j = wgmma_advance(b, offset<operand>(16 * j, 0) * 2);
        wgmma_m64nNk16_f16<DIM, false, false, TRANSPOSE, true>(d, a_j, b_j, j > 0);
    }
    wgmma_commit();
}

/* Finds the first weights of rows whose lse is large. One half of the keys comes after the other, as dp of both has one
 * place: weights of the first half are relative to its own heaviest key, whose score takes the place of lse until that
 * is known. s has half of a row's scores, of which `used` are of keys in use. */
DEVICE void find_first_weights(half_row &s, float c, const bool (&large)[2], int used, float (&lse)[2])
{
    const float sign = sign_of(c);
    float heaviest[2] = {-infinity_f32(), -infinity_f32()}, of_half[2];
    find_heaviest(heaviest, reinterpret_cast<float(&)[1][HALF / 2]>(s), sign, used);
    UNROLL for (int r = 0; r < 2; ++r) {
        heaviest[r] = large[r] ? sign * heaviest[r] : 0;
        of_half[r] = large[r] ? -P_SHIFT : lse[r];
        lse[r] = large[r] ? heaviest[r] : lse[r];
    }
    UNROLL for (int n = 0; n < HALF / 2; ++n) s[n] -= heaviest[n / 2 % 2];
    recompute_weights(s, c, of_half);
}

/* Does what remains once the scores of the other half, `s`, are known: it corrects the weights and sums of the first
 * half and finds lse. Then s has the score of the heaviest of all keys subtracted. */
DEVICE void take_own_lse(half_row &s, half_row &first, row_sums &sums, float c, const bool (&large)[2], int used,
                         float (&lse)[2])
{
    const float sign = sign_of(c);
    float heaviest[2] = {sign * lse[0], sign * lse[1]}, sum[2] = {0, 0}, by[2];
    find_heaviest(heaviest, reinterpret_cast<float(&)[1][HALF / 2]>(s), sign, used);
    UNROLL for (int r = 0; r < 2; ++r) heaviest[r] = large[r] ? sign * heaviest[r] : 0;
    UNROLL for (int n = 0; n < HALF / 2; ++n) {
        s[n] -= heaviest[n / 2 % 2];
        sum[n / 2 % 2] += exp2_f32(s[n] * c);
    }
    UNROLL for (int r = 0; r < 2; ++r) {
        const float less = lse[r] - heaviest[r]; /* of the heaviest of the first half */
        const float of_first = exp2_f32(fma_rn(less, c, -P_SHIFT)) * sum_of_quad(sums.p[r]);
        const float log_sum = log2_f32(sum_of_quad(sum[r]) + of_first);
        by[r] = large[r] ? exp2_f32(fma_rn(less, c, -log_sum)) : 1;
        lse[r] = large[r] ? log_sum - P_SHIFT : lse[r];
        sums.p[r] *= by[r], sums.p_dp[r] *= by[r];
    }
    UNROLL for (int n = 0; n < HALF / 2; ++n) first[n] *= by[n / 2 % 2];
}

/* Turns dp into ds for half of the keys, both times their powers of two, and stores it; delta is multiplied by that of
 * dp. */
DEVICE void store_ds(shared_memory &m, int half, half_row &dp, const half_row &p, float by, const float (&delta)[2],
                     const backward_problem &own, bool is_full)
{
    UNROLL for (int n = 0; n < HALF / 2; ++n) dp[n] = p[n] * fma_rn(dp[n], by, -delta[n / 2 % 2]);
    if (!is_full) hide(dp, own, lane_row(), half * HALF);
    store_half(&m.ds[half * PART], dp);
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

DEVICE void round_result(uint32_t (&pairs)[DIM / 4], const float (&sums)[DIM / 2], const factor &f)
{
    round_sums<bf16, DIM>(pairs, sums, f.by, f.by);
    if (f.exponent == 0) return;
    const int halves[2] = {f.exponent / 2, f.exponent - f.exponent / 2}; /* each within bf16's */
    UNROLL for (int half = 0; half < 2; ++half) {
        const uint32_t by = static_cast<uint32_t>(halves[half] + 127) << 7;
        UNROLL for (int n = 0; n < DIM / 4; ++n) pairs[n] = mul_bf16x2(pairs[n], by << 16 | by);
    }
}

/* Returns where a warp's results lie on their way to memory: in a place of their own, or where its own rows of ds and p
 * did. */
DEVICE uint16_t *staged(shared_memory &m, unsigned result, unsigned warp_row)
{
    return result == FOR_DQ ? &m.dq[warp_row * DIM] : (result == FOR_DK ? m.ds : m.p) + warp_row * HALF;
}

DEVICE void stage(uint16_t *tile, const uint32_t (&pairs)[DIM / 4])
{
    const unsigned from = tile_offset<DIM>(lane() % 16, lane() / 16 * 8);
    UNROLL for (unsigned n = 0; n < DIM / 16; ++n) {
        const uint32_t four[4] = {pairs[4 * n], pairs[4 * n + 1], pairs[4 * n + 2], pairs[4 * n + 3]};
        stmatrix_x4(&tile[from ^ tile_offset<DIM>(0, 16 * n)], four);
    }
}

DEVICE void write_whole(const row_tensor &t, const backward_params &p, unsigned problem, const uint16_t *tile,
                        unsigned thread)
{
    const unsigned x = first_feature(thread), from = tile_offset<DIM>(thread % 32 / 4, x);
    uint16_t *const row = whole_rows<uint16_t>(t, p, problem) + first_row(thread) * t.seqlen + x;
    UNROLL for (unsigned n = 0; n < 2; ++n)
        store_global_16(row + 8 * n * t.seqlen, load_16<sixteen_bytes>(&tile[from ^ tile_offset<DIM>(8 * n, 0)]));
}

DEVICE void write_whole_dq(const backward_params &p, shared_memory &m, unsigned problem)
{
    const unsigned thread = own_thread();
    write_whole(p.dq, p, problem, staged(m, FOR_DQ, thread / 32 * 16), thread);
}

DEVICE void write_whole_dk_dv(const backward_params &p, shared_memory &m, unsigned problem)
{
    const unsigned thread = own_thread(), warp_row = thread / 32 * 16;
    write_whole(p.dk, p, problem, staged(m, FOR_DK, warp_row), thread);
    write_whole(p.dv, p, problem, staged(m, FOR_DV, warp_row), thread);
}

/* Writes those of `seqlen` rows that are in the tile; from `used` on they are zero, whatever was staged. */
DEVICE void write_result(const row_tensor &t, char *rows, int length, uint16_t *tile, int seqlen, int used,
                         unsigned thread)
{
    const unsigned x = first_feature(thread), from = tile_offset<DIM>(thread % 32 / 4, x);
    const int first = static_cast<int>(first_row(thread));
    row_pointer row = {rows + first * t.seqlen * 2, t.dtype, t.by_four, length};
    UNROLL for (int n = 0; n < 2; ++n, row.data += 8 * t.seqlen * 2) {
        uint16_t *const numbers = &tile[from ^ tile_offset<DIM>(8 * static_cast<unsigned>(n), 0)];
        if (first + 8 * n >= seqlen) continue;
        if (first + 8 * n >= used) store_16(numbers, chunk{});
        if (t.by_eight && static_cast<int>(x) + 8 <= length)
            store_global_16(row.data + 2 * x, load_16<sixteen_bytes>(numbers));
        else store_eight(row, x, numbers);
    }
    clear_rows<WARPS>(t, rows, length, KEYS + static_cast<int>(warp()), seqlen);
}

/* Writes dq. Where no key is in use, or no row, all of it is zero. */
DEVICE void write_dq(const backward_params &p, shared_memory &m, const backward_problem &c)
{
    const unsigned thread = own_thread();
    uint16_t *const tile = staged(m, FOR_DQ, thread / 32 * 16);
    write_result(p.dq, c.rows[DQ], p.forward.head_dim, tile, c.seqlen_q, c.used_k > 0 ? c.used_q : 0, thread);
}

DEVICE void write_dk_dv(const backward_params &p, shared_memory &m, const backward_problem &c)
{
    const unsigned thread = own_thread(), warp_row = thread / 32 * 16;
    const int keys = c.used_q > 0 ? c.used_k : 0;
    write_result(p.dk, c.rows[DK], p.forward.head_dim, staged(m, FOR_DK, warp_row), c.seqlen_k, keys, thread);
    write_result(p.dv, c.rows[DV], p.forward.head_dim_v, staged(m, FOR_DV, warp_row), c.seqlen_k, keys, thread);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Asks for the first rows. A problem's rows are asked for early, and lie in registers until the operands of the one
 * before are free. */
template <bool ALL_WHOLE>
DEVICE bool ask_first_rows(lane_rows &rows, const backward_params &p, shared_memory &m, const work &by_ctas)
{
    if (ALL_WHOLE) {
        const share all = own_share(by_ctas);
        if (all.first >= all.end) return false;
        ask_whole_rows(rows, p, all.first);
        if (thread_x() == 0) m.left = all;
    } else {
        if (warp() == 0) {
            if (lane() == 0) m.left = own_share(by_ctas);
            sync_warp(FULL_WARP);
            find_next(p, m.left, m.problems[0]);
        }
        sync_threads(); /* the first problem descriptor is there */
        if (!m.problems[0].is_ours) return false;
        ask_rows(rows, p, m.problems[0]);
    }
    return true;
}

/* Returns whether there is a next problem, and if so asks for its rows. `next` is its number where all are full. */
template <bool ALL_WHOLE>
DEVICE bool ask_next_rows(lane_rows &rows, const backward_params &p, shared_memory &m, unsigned problem, unsigned next,
                          bool is_last, unsigned turn)
{
    if (ALL_WHOLE) {
        ask_whole_rows(rows, p, is_last ? problem : next);
        return !is_last;
    }
    const unsigned next_turn = (turn + 1) % SLOTS;
    const bool has_next = m.problems[next_turn].is_ours;
    if (has_next) ask_rows(rows, p, m.problems[next_turn]);
    else rows = {};
    return has_next;
}

/* Finds lse of one of a lane's rows in base 2, less p's power. */
DEVICE float find_lse(float given, bool &large)
{
    large = is_large(given * LOG2_E);
    return fma_rn(given, LOG2_E, -P_SHIFT);
}

/* Writes dk and dv of the problem before this one. */
template <bool ALL_WHOLE>
DEVICE void write_last_dk_dv(const backward_params &p, shared_memory &m, unsigned problem, unsigned turn)
{
    if (ALL_WHOLE) write_whole_dk_dv(p, m, problem);
    else write_dk_dv(p, m, m.problems[(turn + 2) % SLOTS]);
}

/* Turns s into p, while its second half and that of dp are being computed; finds delta, times ds's power. */
template <bool ALL_WHOLE>
DEVICE void find_p_and_delta(half_row (&s)[2], half_row &dp, float (&delta)[2], const backward_params &p,
                             shared_memory &m, const backward_problem &own, uint64_t own_q, uint64_t own_dout,
                             float (&lse)[2], const bool (&large)[2], const bool (&is_full)[2], float by_ds)
{
    row_sums sums = {};
    const float c = p.forward.softmax_scale * LOG2_E;
    const bool has_large = ballot(FULL_WARP, large[0] || large[1]) != 0;
    wait_for<1>(s[1]);
    multiply_rows<bf16, operand, HALF>(s[0], own_q, descriptor<operand>(k_of(m)));
    if (has_large) find_first_weights(s[1], c, large, used_from(ALL_WHOLE ? KEYS : own.used_k, HALF, HALF), lse);
    else recompute_weights(s[1], c, lse);
    if (!is_full[1]) hide(s[1], own, lane_row(), HALF);
    wait_for<1>(dp);
    add_weights(sums, s[1], dp);
    multiply_rows<bf16, operand, HALF>(dp, own_dout, descriptor<operand>(m.v));
    wait_for<1>(s[0]);
    if (has_large) take_own_lse(s[0], s[1], sums, c, large, used_from(ALL_WHOLE ? KEYS : own.used_k, 0, HALF), lse);
    recompute_weights(s[0], c, lse);
    if (!is_full[0]) hide(s[0], own, lane_row(), 0);
    wait_for<0>(dp);
    add_weights(sums, s[0], dp);
    UNROLL for (int n = 0; n < 2; ++n)
        delta[n] = by_ds * mean_dp(sum_of_quad(sums.p[n]), sum_of_quad(sums.p_dp[n]));
}

/* Computes the results from p and ds. dq is written; dk and dv, rounded, wait for their tiles. */
template <bool ALL_WHOLE>
DEVICE void find_results(uint32_t (&pairs)[RESULTS][DIM / 4], const backward_params &p, shared_memory &m,
                         const backward_problem &own, unsigned problem, const factor &of_dq, const factor &of_dk,
                         const factor &of_dv)
{
    float dq[DIM / 2], dk[DIM / 2], dv[DIM / 2];
    multiply_scaled_weights<false>(dq, m.ds, m.scaled[OF_K]);
    multiply_scaled_weights<true>(dk, m.ds, m.scaled[OF_Q]);
    multiply_scaled_weights<true>(dv, m.p, m.scaled[OF_DOUT]);
    wait_for<2>(dq);
    round_result(pairs[FOR_DQ], dq, of_dq);
    stage(staged(m, FOR_DQ, warp_first()), pairs[FOR_DQ]);
    wait_for<1>(dk);
    round_result(pairs[FOR_DK], dk, of_dk);
    sync_warp(FULL_WARP); /* dq is staged */
    if (ALL_WHOLE) write_whole_dq(p, m, problem);
    else write_dq(p, m, own);
    wait_for<0>(dv);
    round_result(pairs[FOR_DV], dv, of_dv);
}

template <bool ALL_WHOLE>
KERNEL(THREADS, 2)
void short_backward_sm90_n128_scaled_kernel(const GRID_CONSTANT backward_params p, const work by_ctas)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    shared_memory &m = *reinterpret_cast<shared_memory *>(shared);
    grid_wait();
    lane_rows rows;
    if (!ask_first_rows<ALL_WHOLE>(rows, p, m, by_ctas)) return;
    publish(m, rows);
    sync_threads();
    unsigned turn = 0; /* of the problem descriptors */
    bool is_first = true, has_next;
    do {
        const shifts s_of = find_shifts(m);
        const float by_ds = power(s_of.ds);
        put_rows(m, rows, s_of);
        find_factors(m, s_of, p.forward.softmax_scale);
        const int lse_row = static_cast<int>(lane() / 4);
        float lse[2];
        bool large[2];
        UNROLL for (int r = 0; r < 2; ++r)
            lse[r] = find_lse(shfl_idx(FULL_WARP, rows.lse, lse_row + 8 * r), large[r]);
        fence_proxy_async_shared();
        const uint64_t own_q = descriptor<operand>(q_of(m), own_first());
        const uint64_t own_dout = descriptor<operand>(m.dout, own_first());
        const unsigned before = ALL_WHOLE ? m.left.first - m.left.step : 0;
        sync_threads(); /* wgmma may read the tiles; sizes and samples are read */

        half_row s[2], dp; /* s, and then p */
        multiply_rows<bf16, operand, HALF>(s[1], own_q, descriptor<operand>(k_of(m), HALF));
        multiply_rows<bf16, operand, HALF>(dp, own_dout, descriptor<operand>(m.v, HALF));
        if (!is_first) write_last_dk_dv<ALL_WHOLE>(p, m, before, turn);
        sync_warp(FULL_WARP); /* they are read */
        is_first = false;
        if (!ALL_WHOLE && warp() == 0) find_next(p, m.left, m.problems[(turn + 1) % SLOTS]);
        const backward_problem &own = m.problems[turn];
        const bool has_rows = ALL_WHOLE || static_cast<int>(warp_first()) + 16 <= own.used_q; /* all; keys: */
        const bool is_full[2] = {ALL_WHOLE || (has_rows && own.used_k >= HALF),
                                 ALL_WHOLE || (has_rows && own.used_k == KEYS)};
        float delta[2];
        find_p_and_delta<ALL_WHOLE>(s, dp, delta, p, m, own, own_q, own_dout, lse, large, is_full, by_ds);

        store_ds(m, 0, dp, s[0], by_ds, delta, own, is_full[0]);
        multiply_rows<bf16, operand, HALF>(dp, own_dout, descriptor<operand>(m.v, HALF));
        store_half(m.p, s[0]);
        const unsigned problem = ALL_WHOLE ? m.left.first : 0, next = ALL_WHOLE ? problem + m.left.step : 0;
        const bool is_last = ALL_WHOLE && next >= m.left.end;
        sync_threads(); /* q and k are free; the next problem descriptor is there */
        has_next = ask_next_rows<ALL_WHOLE>(rows, p, m, problem, next, is_last, turn);
        wait_for<0>(dp);
        store_half(&m.p[PART], s[1]);
        store_ds(m, 1, dp, s[1], by_ds, delta, own, is_full[1]);
        const factor of_dq = m.factors[FOR_DQ], of_dk = m.factors[FOR_DK], of_dv = m.factors[FOR_DV];
        fence_proxy_async_shared();
        sync_threads(); /* p and ds are complete */

        uint32_t pairs[RESULTS][DIM / 4];
        find_results<ALL_WHOLE>(pairs, p, m, own, problem, of_dq, of_dk, of_dv);
        if (has_next) publish(m, rows); /* if always, the compiler waits for rows between products */
        if (ALL_WHOLE && thread_x() == 0) m.left.first = next;
        const unsigned warp_row = warp() * 16;
        sync_threads(); /* nobody reads these tiles any more; the next problem's sizes are there */
        stage(staged(m, FOR_DK, warp_row), pairs[FOR_DK]);
        stage(staged(m, FOR_DV, warp_row), pairs[FOR_DV]);
        sync_warp(FULL_WARP);
        if (!ALL_WHOLE) turn = (turn + 1) % SLOTS;
    } while (has_next);
    write_last_dk_dv<ALL_WHOLE>(p, m, ALL_WHOLE ? m.left.first - m.left.step : 0, turn);
}

template <bool ALL_WHOLE>
int launch(const backward_params &p, void *stream)
{
    const int64_t problems = p.forward.batch * p.forward.num_heads_q;
    const work by_ctas = divide_work(problems, launch_num_sms(stream) * 2, ALL_ROUNDS);
    const launch_shape grid = {{ctas_of(by_ctas), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               sizeof(shared_memory), THREADS, 2, true};
    return LAUNCH(short_backward_sm90_n128_scaled_kernel<ALL_WHOLE>, grid, stream, p, by_ctas);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm90_n128_scaled)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) return 0;
    return are_whole<operand>(*p) ? launch<true>(*p, stream) : launch<false>(*p, stream);
}

/* backward_sm80.cu - attention backward of short sequences: dq, dk and dv in one launch, 16-bit tensors.
 *
 *     ds = p (dp - delta),  delta = sum of p dp over that of p, unless it is given
 *     dq = scale ds k,  dk = scale ds^T q,  dv = (m p)^T dout
 *
 * Takes fp16 and bf16, sequences of at most 64 query rows and 64 keys in use, and scores softmax_scale q . k in a
 * window, with groups of heads: short/backward_sm80_any.cu has the others.
 *
 * Grid    x: KV heads, times parts of the features where a group's sums would not fit; y, z: sequences
 * Block   a warp for each 16 of KEYS: it owns 16 query rows, then 16 keys, its lanes share them as mma.sync has it
 * Shared  tiles of q, dout, k and v; p and ds take the place of k and v: 16 KB at DIM 64 and 32 keys, 48, 64 and 128 KB
 *         at DIM 64, 128 and 256 and 64 keys; and fp32 sums where there is a group
 * Phases  for each query head of the group: load; s and dp, p and ds, dq of a warp's rows; p and ds to shared memory;
 *         dk and dv of a warp's keys
 *
 * Everything is read and written once. p and ds enter products as sums of two 16-bit numbers, so that rounding them
 * counts for nothing beside rounding the results; delta is the mean of dp by p, in fp32. reference/bounds.md section
 * 11.8 says what this may be off by, kernels/short/short.md what it costs.
 *
 * A pair that takes no part has the weight UNSEEN: where the other side holds a NaN, products leave it out. */
#include "kernels/shared/gradients.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"
#include "kernels/short/backward_sm80.h"

namespace {

/* A problem has at most MOST query rows and MOST keys. */
template <int DIMENSIONS, int MOST>
struct mma_shape {
    static constexpr int DIM = DIMENSIONS, KEYS = MOST;
    static constexpr int WARPS = KEYS / 16, THREADS = 32 * WARPS;
    /* This many CTAs fit on an SM: as many as shared memory has room for, with 128, 168 or 255 registers to a
     * thread. */
    static constexpr int CTAS = (DIM > 128 ? 256 : DIM > 64 ? 384 : 512) / THREADS;
    static constexpr int SLICE = DIM < 64 ? DIM : 64, SLICE_Q = 32; /* features of dk and dv, of dq at a time */
    static constexpr int TILE = KEYS * DIM, PART = KEYS * 16;
    /* Shared memory holds four tiles; high and low parts of p and ds take the place of the last two. */
    static constexpr int NUMBERS = 2 * TILE + 2 * (TILE > 2 * KEYS * KEYS ? TILE : 2 * KEYS * KEYS);
    static constexpr int GROUP_FEATURES = DIM <= 128 ? DIM : 64, GROUP_PARTS = DIM / GROUP_FEATURES;
    static constexpr int GROUP_SUMS = 2 * KEYS * GROUP_FEATURES;
};

/* ---- p and ds ---------------------------------------------------------------------------------------------------- */

/* Finds lse of rows of the warp whose lse is large, from their scores c s. It subtracts the heaviest one from s, and
 * lse becomes that of what remains. Such differences are off by 2^-24 of themselves, however large scores are. Other
 * rows stay. */
template <int KEYS>
DEVICE void take_own_lse(float (&lse)[2], row_pairs<KEYS> &s, const interval (&keys)[2], float c)
{
    const int32_t key = static_cast<int>(lane()) % 4 * 2;
    const float sign = c < 0 ? -1 : 1;
    UNROLL for (int half = 0; half < 2; ++half) {
        float most = -infinity_f32(), sum = 0;
        UNROLL for (int i = 0; i < KEYS / 4; ++i)
            if (contains(keys[half], key + i / 2 * 8 + i % 2, 1))
                most = max_f32(most, sign * s.at[i / 2][2 * half + i % 2]);
        most = max_of_quad(most);
        most = is_large(lse[half]) ? sign * most : 0;
        UNROLL for (int i = 0; i < KEYS / 4; ++i) {
            float &score = s.at[i / 2][2 * half + i % 2];
            score -= most;
            if (contains(keys[half], key + i / 2 * 8 + i % 2, 1)) sum += exp2_f32(score * c);
        }
        const float own = log2_f32(sum_of_quad(sum));
        lse[half] = is_large(lse[half]) ? own : lse[half];
    }
}

/* Turns s into p. FULL says that every row sees every key; else `keys` says which rows g and g + 8 see. lse is in base
 * 2. */
template <bool FULL, int KEYS>
DEVICE void find_plain_weights(row_pairs<KEYS> &s, const interval (&keys)[2], float c, const float (&lse)[2])
{
    const int32_t key = static_cast<int>(lane()) % 4 * 2;
    UNROLL for (int n = 0; n < KEYS / 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e) {
            const bool visible = FULL || contains(keys[e / 2], key + 8 * n + e % 2, 1);
            float &weight = s.at[n][e];
            weight = visible ? exp2_f32(fma_rn(weight, c, -lse[e / 2])) : -0.0f;
        }
}

/* Finds delta of rows g and g + 8, from the unrounded p and dp. */
template <bool FULL, int KEYS>
DEVICE void find_delta(float (&delta)[2], const row_pairs<KEYS> &p, const row_pairs<KEYS> &dp)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        float sum[2] = {0, 0}, sum_p[2] = {0, 0};
        UNROLL for (int n = 0; n < KEYS / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                const float weight = p.at[n][2 * half + e];
                sum_p[e] += weight; /* -0 changes nothing */
                if (FULL || is_seen(weight)) sum[e] = fma_rn(weight, dp.at[n][2 * half + e], sum[e]);
            }
        delta[half] = mean_dp(sum_of_quad(sum_p[0] + sum_p[1]), sum_of_quad(sum[0] + sum[1]));
    }
}

/* Turns dp into ds. */
template <bool FULL, int KEYS>
DEVICE void find_ds(row_pairs<KEYS> &dp, const row_pairs<KEYS> &p, const float (&delta)[2])
{
    UNROLL for (int n = 0; n < KEYS / 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e) {
            const float weight = p.at[n][e];
            dp.at[n][e] = FULL || is_seen(weight) ? weight * (dp.at[n][e] - delta[e / 2]) : 0;
        }
}

/* ---- products of two parts --------------------------------------------------------------------------------------- */

/* Loads them transposed: 16 keys, all rows. */
template <typename shape>
DEVICE void load_fragments(row_parts<shape::KEYS> &to, const uint16_t *from)
{
    const unsigned l = lane();
    UNROLL for (int j = 0; j < shape::KEYS / 16; ++j) {
        const uint16_t *const at = &from[tile_offset<16>(16 * j + l % 8 + l / 16 * 8, l / 8 % 2 * 8)];
        ldmatrix_x4_trans(to.high[j], at);
        ldmatrix_x4_trans(to.low[j], at + shape::PART);
    }
}

/* Says where a thread keeps sums of dk and dv from head to head of a group. */
struct group_sums {
    quad *sums;
    bool is_first, is_last; /* head */
};

/* Computes features of a result: sums of w times `rows`. SELECT leaves out those that `seen` marks as UNSEEN; then it
 * takes a few features at a time. */
template <typename T, typename shape, bool SELECT, int FEATURES>
DEVICE void find_result(const result_rows &to, const group_sums &group, const row_parts<shape::KEYS> &w,
                        const uint32_t (&seen)[shape::KEYS / 16][4], const uint16_t *rows, interval features)
{
    /* It takes whole slices, so that what one head of a group keeps is what the next one takes. */
    const int length = (to.first.length + shape::SLICE - 1) / shape::SLICE * shape::SLICE;
    const int last = features.last < length ? features.last : length;
    ROLLED for (int x = features.first; x < last; x += FEATURES) {
        quad *const kept = group.sums + (x - features.first) / 8 * shape::THREADS + thread_x();
        float sum[FEATURES / 8][4] = {};
        if (!group.is_first)
            UNROLL for (int n = 0; n < FEATURES / 8; ++n) {
                const quad before = load_16<quad>(kept + n * shape::THREADS);
                UNROLL for (int e = 0; e < 4; ++e) sum[n][e] = before.at[e];
            }
        UNROLL for (int j = 0; j < shape::KEYS / 16; ++j)
            UNROLL for (int n = 0; n < FEATURES / 8; n += 2) {
                uint32_t b[2][2];
                load_b_transposed<shape::DIM>(b, rows, 16 * j, x + 8 * n);
                if constexpr (SELECT) {
                    static_assert(FEATURES == 16, "the two sums of a product");
                    multiply_seen<T>(sum, w.high[j], seen[j], b);
                    multiply_seen<T>(sum, w.low[j], seen[j], b);
                } else {
                    UNROLL for (int i = 0; i < 2; ++i) multiply<T>(sum[n + i], w.high[j], b[i]);
                    UNROLL for (int i = 0; i < 2; ++i) multiply<T>(sum[n + i], w.low[j], b[i]);
                }
            }
        if (group.is_last) store_sums<T, FEATURES>(to, sum, x);
        else
            UNROLL for (int n = 0; n < FEATURES / 8; ++n)
                store_16(kept + n * shape::THREADS, quad{{sum[n][0], sum[n][1], sum[n][2], sum[n][3]}});
    }
}

/* CUT says that not every row sees every key, so that a NaN among `rows` may not be felt by all. */
template <typename T, typename shape, int FEATURES>
DEVICE void find_result(const result_rows &to, const group_sums &group, const row_parts<shape::KEYS> &w,
                        const uint32_t (&seen)[shape::KEYS / 16][4], const uint16_t *rows, interval features, bool cut)
{
    if (cut && !is_tile_finite<T, shape::KEYS, shape::DIM>(rows))
        find_result<T, shape, true, 16>(to, group, w, seen, rows, features);
    else find_result<T, shape, false, FEATURES>(to, group, w, seen, rows, features);
}

/* Describes a sequence and a KV head: one thread finds it out for all, in shared memory. */
struct alignas(16) group_problem {
    int64_t b, head_kv;
    sequence s;
    interval features; /* of dq, dk and dv that this CTA computes */
    bool is_ours;
    bool is_cut; /* not every row sees every key */
};

template <typename shape>
INLINE group_problem find_problem(const forward_params &f)
{
    const int parts = f.group > 1 ? shape::GROUP_PARTS : 1, part = static_cast<int>(block_x()) % parts;
    group_problem out = {};
    out.b = static_cast<int64_t>(block_z()) * grid_y() + block_y(), out.head_kv = block_x() / parts;
    if (out.b >= f.batch) return out;
    out.s = find_sequence(f, out.b);
    out.features = {part * shape::DIM / parts, (part + 1) * shape::DIM / parts};
    out.is_ours = is_ours(f, out.s);
    out.is_cut = !contains(keys_of_rows(f, out.s, 0, out.s.used_q).all, 0, out.s.used_k);
    return out;
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Holds the CTA's tiles, in shared memory. */
struct shared_tiles {
    uint16_t *q, *dout, *k, *v;
};

/* Asks for the tiles of a query head, each by a warp of its own where there are four. */
template <typename shape>
DEVICE void load_tiles(const shared_tiles &to, const backward_params &p, const group_problem &c, int64_t head,
                       unsigned own)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS;
    const forward_params &f = p.forward;
    const sequence &s = c.s;
    if (own == 0) load_tile<KEYS, DIM, 32>(to.q, f.q, c.b, s.first_q, s.used_q, head, f.head_dim, lane());
    if (own == 1) load_tile<KEYS, DIM, 32>(to.dout, p.dout, c.b, s.first_q, s.used_q, head, f.head_dim_v, lane());
    if (own == 2 % shape::WARPS)
        load_tile<KEYS, DIM, 32>(to.k, f.k, c.b, s.first_k, s.used_k, c.head_kv, f.head_dim, lane());
    if (own == 3 % shape::WARPS)
        load_tile<KEYS, DIM, 32>(to.v, f.v, c.b, s.first_k, s.used_k, c.head_kv, f.head_dim_v, lane());
}

/* Loads lse of rows lane_row and lane_row + 8 in base 2; those that are not in use stay as they are. */
DEVICE void load_lse(float (&lse)[2], const row_tensor &t, const group_problem &c, int64_t head, int32_t lane_row)
{
    const row_pointer first = row_of(t, c.b, c.s.first_q + lane_row, head, 1);
    UNROLL for (int half = 0; half < 2; ++half)
        if (lane_row + 8 * half < c.s.used_q) {
            const float of_row = reinterpret_cast<const float *>(first.data)[8 * half * t.seqlen];
            lse[half] = of_row * LOG2_E;
        }
}

/* Loads delta of rows lane_row and lane_row + 8; that of rows that are not in use stays as it is. */
DEVICE void load_delta(float (&delta)[2], const row_tensor &t, const group_problem &c, int64_t head, int32_t lane_row)
{
    UNROLL for (int half = 0; half < 2; ++half)
        if (lane_row + 8 * half < c.s.used_q) delta[half] = load_scalar(t, c.s, c.b, lane_row + 8 * half, head);
}

/* Clears rows of dk and dv that no tile holds: past the last key in use, they are zero. */
template <typename shape>
DEVICE void clear_key_rows(const backward_params &p, const group_problem &c)
{
    const sequence &s = c.s;
    if (c.features.first != 0 || s.used_k == s.seqlen_k) return;
    clear_rows<shape::DIM, shape::THREADS>(p.dk, c.b, s.first_k, s.used_k, s.seqlen_k, c.head_kv, p.forward.head_dim);
    clear_rows<shape::DIM, shape::THREADS>(p.dv, c.b, s.first_k, s.used_k, s.seqlen_k, c.head_kv, p.forward.head_dim_v);
}

/* Makes p of s, and ds of dp, for a lane's two rows of a head. */
template <typename shape>
DEVICE void find_pairs(row_pairs<shape::KEYS> &weights, row_pairs<shape::KEYS> &ds, float (&lse)[2],
                       const backward_params &p, const group_problem &problem, int64_t head, int32_t lane_row)
{
    constexpr int KEYS = shape::KEYS;
    const forward_params &f = p.forward;
    const sequence &s = problem.s;
    const float c = f.softmax_scale * LOG2_E;
    const bool has_large = ballot(FULL_WARP, is_large(lse[0]) || is_large(lse[1])) != 0;
    const bool is_full = !has_large && !problem.is_cut && s.used_q == KEYS && s.used_k == KEYS;
    float delta[2];
    if (is_full) {
        find_plain_weights<true, KEYS>(weights, {}, c, lse);
        find_delta<true, KEYS>(delta, weights, ds);
    } else {
        const interval keys[2] = {keys_of_row(f, s, lane_row), keys_of_row(f, s, lane_row + 8)};
        if (has_large) take_own_lse<KEYS>(lse, weights, keys, c);
        find_plain_weights<false, KEYS>(weights, keys, c, lse);
        find_delta<false, KEYS>(delta, weights, ds);
    }
    if (p.delta.data != nullptr) load_delta(delta, p.delta, problem, head, lane_row);
    if (is_full) find_ds<true, KEYS>(ds, weights, delta);
    else find_ds<false, KEYS>(ds, weights, delta);
}

template <typename T, typename shape>
KERNEL(shape::THREADS, shape::CTAS) void short_backward_sm80_kernel(const backward_params p)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS, TILE = shape::TILE;
    const forward_params &f = p.forward;
    DYNAMIC_SHARED(shared, 16);
    const auto of_cta = cut_shared(shared, TILE * sizeof(uint16_t), TILE * sizeof(uint16_t),
                                   (shape::NUMBERS - 2 * TILE) * sizeof(uint16_t), sizeof(group_problem), SHARED_REST);
    uint16_t *const q = reinterpret_cast<uint16_t *>(of_cta.at[0]);
    uint16_t *const dout = reinterpret_cast<uint16_t *>(of_cta.at[1]);
    uint16_t *const k = reinterpret_cast<uint16_t *>(of_cta.at[2]), *const v = k + TILE;
    uint16_t *const parts_p = k, *const parts_ds = k + 2 * KEYS * KEYS; /* once k and v are free */
    group_problem *const problem = reinterpret_cast<group_problem *>(of_cta.at[3]);
    quad *const sums = reinterpret_cast<quad *>(of_cta.at[4]);

    if (thread_x() == 0) *problem = find_problem<shape>(f);
    sync_threads();
    if (!problem->is_ours) return;
    const sequence &s = problem->s;
    const int64_t &b = problem->b, &head_kv = problem->head_kv;
    const bool is_cut = problem->is_cut;

    const unsigned own = warp(), row = 16 * own, g = lane() / 4; /* its first row, and its first key */
    const int32_t lane_row = static_cast<int32_t>(row + g);
    uint16_t *const part_tile = parts_p + own * 2 * shape::PART; /* p of its keys */

    for (int n = 0; n < f.group; ++n) {
        const int64_t head = head_kv * f.group + n;
        load_tiles<shape>({q, dout, k, v}, p, *problem, head, own);
        float lse[2] = {0, 0};
        load_lse(lse, f.lse, *problem, head, lane_row);
        cp_async_wait_all();
        sync_threads(); /* the tiles are complete */

        row_pairs<KEYS> weights, ds; /* hold s and dp at first */
        multiply_rows<T, DIM, KEYS>(weights, ds, q, dout, k, v, row);
        sync_threads(); /* v is free */
        uint16_t *const row_tile = v + row * (DIM > 2 * KEYS ? DIM : 2 * KEYS); /* 16 rows of dq */
        find_pairs<shape>(weights, ds, lse, p, *problem, head, lane_row);
        row_parts<KEYS> of_p, of_ds;
        split<T, KEYS>(of_p, weights);
        split<T, KEYS>(of_ds, ds);

        const int rows = s.used_q - static_cast<int>(row), keys = s.used_k - static_cast<int>(row);
        const result_rows dq = {p.dq, row_of(p.dq, b, s.first_q + row, head, f.head_dim), rows, f.softmax_scale,
                                row_tile};
        find_result<T, shape, shape::SLICE_Q>(dq, {sums, true, true}, of_ds, of_p.high, k, problem->features, is_cut);
        sync_threads(); /* k and the rows' tiles are free */
        store_fragments<KEYS>(parts_p, of_p, row);
        store_fragments<KEYS>(parts_ds, of_ds, row);
        sync_threads(); /* p and ds are complete */

        const group_sums of_dv = {sums, n == 0, n == f.group - 1};
        const group_sums of_dk = {sums + shape::GROUP_SUMS / 8, n == 0, n == f.group - 1};
        load_fragments<shape>(of_p, part_tile);
        const result_rows dv = {p.dv, row_of(p.dv, b, s.first_k + row, head_kv, f.head_dim_v), keys,
                                f.dropout_multiplier, part_tile};
        find_result<T, shape, shape::SLICE>(dv, of_dv, of_p, of_p.high, dout, problem->features, is_cut);
        load_fragments<shape>(of_ds, part_tile + (parts_ds - parts_p));
        const result_rows dk = {p.dk, row_of(p.dk, b, s.first_k + row, head_kv, f.head_dim), keys, f.softmax_scale,
                                part_tile};
        find_result<T, shape, shape::SLICE>(dk, of_dk, of_ds, of_p.high, q, problem->features, is_cut);
        if (problem->features.first == 0 && s.used_q < s.seqlen_q)
            clear_rows<shape::DIM, shape::THREADS>(p.dq, b, s.first_q, s.used_q, s.seqlen_q, head, f.head_dim);
        if (n < f.group - 1) sync_threads(); /* all tiles are free */
    }
    clear_key_rows<shape>(p, *problem);
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

template <typename T, int DIM, int KEYS>
int launch(const backward_params &p, void *stream)
{
    using shape = mma_shape<DIM, KEYS>;
    const forward_params &f = p.forward;
    const int64_t heads_kv = f.num_heads_q / f.group * (f.group > 1 ? shape::GROUP_PARTS : 1);
    const unsigned y = static_cast<unsigned>(f.batch < 65535 ? f.batch : 65535);
    const size_t sums = f.group > 1 ? shape::GROUP_SUMS * sizeof(float) : 0;
    const size_t bytes = shape::NUMBERS * sizeof(uint16_t) + sizeof(group_problem) + sums;
    const launch_shape grid = {{static_cast<unsigned>(heads_kv), y, static_cast<unsigned>((f.batch + y - 1) / y)},
                               {shape::THREADS, 1, 1}, {1, 1, 1}, bytes, shape::THREADS, shape::CTAS};
    return LAUNCH((short_backward_sm80_kernel<T, shape>), grid, stream, p);
}

template <typename T, int KEYS>
int launch_width(const backward_params &p, void *stream)
{
    const int widest = p.forward.head_dim > p.forward.head_dim_v ? p.forward.head_dim : p.forward.head_dim_v;
    if (widest <= 32) return launch<T, 32, KEYS>(p, stream);
    if (widest <= 64) return launch<T, 64, KEYS>(p, stream);
    if (widest <= 128) return launch<T, 128, KEYS>(p, stream);
    return launch<T, 256, KEYS>(p, stream);
}

template <typename T>
int launch_length(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    if (f.seqlen_q <= 32 && f.seqlen_k <= 32) return launch_width<T, 32>(p, stream);
    return launch_width<T, 64>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm80)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) return 0;
    if (p->forward.q.dtype == ATTEST_FP16) return launch_length<f16>(*p, stream);
    return launch_length<bf16>(*p, stream);
}

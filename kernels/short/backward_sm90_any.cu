/* backward_sm90_any.cu - attention backward of short sequences with any scores, on Hopper's tensor cores (wgmma).
 *
 *     dx = p (dp - delta + dlse),  ds = dx (1 - (t / softcap)^2)
 *     dq = scale ds k,  dk = scale ds^T q,  dv = (m p)^T dout
 *
 * Takes fp16 and bf16, at most 128 query rows and keys in use, heads of at most 128 features, and every feature of
 * lib/contract.md.
 *
 * Grid    x: KV heads; y, z: sequences; or parts of them, where they add to the same elements of dbias
 * Block   of 64 rows and keys a warpgroup; of 128 four, each of which has 64 rows and 64 keys of p and ds. Then two of
 *         the four have 64 keys each, for dv and dk, the other two 64 rows, for dq
 * Shared  tiles of q, dout, k and v, as wgmma reads them; masks and biases, whose place p and then ds take; what warps
 *         tell of rows
 * Phases  for each problem, for each query head of the group: load; s and dp, scores, p; delta of a row from the warps
 *         that share it; dbias; p to shared memory; dv; ds to the place of p; dq and dk. What tiles of dbias and the
 *         rows' dsink add up to comes with a second launch
 *
 * p and ds enter products as sums of two 16-bit numbers. Scores, weights and ds are those of short/backward_any.h;
 * where something is not finite, or a row's lse is large, the CTA takes its problem again pair by pair, as
 * short/backward_sm80_any.cu does. reference/bounds.md section 11.17 says what this may be off by. */
#include "kernels/shared/wgmma_tiles.h"
#include "kernels/short/backward_any_problem.h"

namespace {

/* A problem has at most MOST query rows and MOST keys; of score_features it HAS some. */
template <int DIMENSIONS, int MOST, unsigned HAS>
struct wgmma_shape : any_shape<DIMENSIONS, MOST, HAS> {
    using base = any_shape<DIMENSIONS, MOST, HAS>;
    static constexpr int DIM = base::DIM, KEYS = base::KEYS;
    using operand = short_shape<DIM, KEYS>;
    using weights = short_shape<64, KEYS>; /* a part of p or ds: all rows, half of the keys or all */
    using slice = short_shape<64, KEYS>;   /* features of a result that are summed at once */
    static constexpr int PART = KEYS * 64, SLICE = slice::DIM;
    static constexpr int ALIGNMENT = 1024; /* swizzled operands begin at multiples of eight of their rows */
    static constexpr int CTAS = KEYS > 64 ? 1 : DIM > 64 ? 2 : 4; /* on an SM, by registers */
};

/* Returns a warp's 16 rows, and its 64 keys, for p and ds. It is found again wherever it is used, by a shuffle, so that
 * no register keeps what is derived from it. */
template <typename shape>
INLINE warp_place place_of_pairs()
{
    const int own = static_cast<int>(shfl_idx(FULL_WARP, warp(), 0));
    if (shape::SPLIT == 1) return {own * 16, 0};
    return {own / 8 * 64 + own % 4 * 16, own / 4 % 2};
}

/* Says of which 64 rows or keys a warpgroup makes results. */
struct result_place {
    bool has_rows, has_keys;
    int block; /* which 64 */
    int first; /* the warp's first row or key */
};

template <typename shape>
INLINE result_place place_of_results()
{
    const int own = static_cast<int>(shfl_idx(FULL_WARP, warp(), 0));
    if (shape::SPLIT == 1) return {true, true, 0, own * 16};
    return {own >= 8, own < 8, own / 4 % 2, own % 8 * 16};
}

/* ---- loads ------------------------------------------------------------------------------------------------------- */

/* Says which tile and which tensor copy i is of, of a query head's. */
struct copy_of {
    uint16_t *tile;
    const row_tensor &t;
    char *rows;
    int length, count;
};

INLINE copy_of find_copy(const any_places &at, const backward_params &p, int i, int n)
{
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    if (i == 0) return {at.q, f.q, c.rows[Q_ROWS] + n * f.q.head * 2, f.head_dim, c.s.used_q};
    if (i == 1) return {at.dout, p.dout, c.rows[DOUT_ROWS] + n * p.dout.head * 2, f.head_dim_v, c.s.used_q};
    if (i == 2) return {at.k, f.k, c.rows[K_ROWS], f.head_dim, c.s.used_k};
    return {at.v, f.v, c.rows[V_ROWS], f.head_dim_v, c.s.used_k};
}

/* Asks for rows of any length and alignment. */
template <typename shape>
DEVICE_CALLED void load_any_operands(const any_places &at, const backward_params &p, int n)
{
    ROLLED for (int i = 0; i < (n == 0 ? 4 : 2); ++i) {
        const copy_of c = find_copy(at, p, i, n);
        load_operand<typename shape::operand, shape::THREADS_OF_CTA>(c.tile, c.t, c.rows, c.length, c.count,
                                                                     thread_x());
    }
}

/* Asks for the tiles of query head n of the group, q and dout, with the first those of k and v: what is past the rows
 * in use, or their length, is zero. */
template <typename shape>
DEVICE void load_operands(const any_places &at, const backward_params &p, int n)
{
    using operand = typename shape::operand;
    constexpr int CHUNKS = operand::PANEL / 8, STEP = shape::THREADS_OF_CTA / CHUNKS;
    const forward_params &f = p.forward;
    const bool are_aligned = (f.q.by_eight & f.k.by_eight & f.v.by_eight & p.dout.by_eight) != 0;
    if (!are_aligned || (f.head_dim | f.head_dim_v) % 8 != 0) {
        const any_places in_memory = at; /* which others need not be */
        return load_any_operands<shape>(in_memory, p, n);
    }
    const int own = static_cast<int>(shfl_idx(FULL_WARP, thread_x(), lane())), row = own / CHUNKS, x = own % CHUNKS * 8;
    const unsigned to = offset<operand>(static_cast<unsigned>(row), static_cast<unsigned>(x));
    UNROLL for (int i = 0; i < 4; ++i) {
        if (i >= 2 && n != 0) break;
        const copy_of c = find_copy(at, p, i, n);
        const int64_t step = c.t.seqlen * 2;
        const char *rows = c.rows + row * step + 2 * x;
        UNROLL for (int r = 0; r < shape::KEYS; r += STEP, rows += STEP * step) /* rows a multiple of eight apart */
            UNROLL for (int panel = 0; panel < shape::DIM; panel += operand::PANEL)
                cp_async_16(c.tile + to + panel * operand::TILE + r * operand::PANEL, rows + 2 * panel,
                            row + r < c.count && x + panel < c.length);
    }
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

/* Sees the sums of a warp's fragments, eight columns each, as one row of registers. */
template <int COUNT>
DEVICE float (&registers_of(float (&fragments)[COUNT][4]))[4 * COUNT]
{
    return reinterpret_cast<float(&)[4 * COUNT]>(fragments);
}

/* Computes s, or dp, of a warpgroup's rows and keys. */
template <typename T, typename shape>
DEVICE void multiply_pairs(row_pairs<64> &out, const uint16_t *rows, const uint16_t *keys, const warp_place &own)
{
    using operand = typename shape::operand;
    multiply_rows<T, operand, 64>(registers_of(out.at),
                                  descriptor<operand>(rows, static_cast<unsigned>(own.first / 64 * 64)),
                                  descriptor<operand>(keys, static_cast<unsigned>(own.part * 64)));
    wait_for<0>(registers_of(out.at));
}

/* Parts of p or ds lie as operands of 64 keys, all rows: high parts and low parts of keys 0 .. 63, then of others. */
template <typename shape>
DEVICE constexpr unsigned part_of(unsigned half, unsigned part)
{
    return (2 * half + part) * shape::PART;
}

/* Stores the parts of a warp's rows and keys in shared memory, for wgmma. */
template <typename shape>
DEVICE void store_parts(uint16_t *parts, const row_parts<64> &of, const warp_place &own)
{
    const unsigned row = static_cast<unsigned>(own.first), half = static_cast<unsigned>(own.part);
    const unsigned own_lane = shfl_idx(FULL_WARP, lane(), lane());
    const unsigned to = offset<typename shape::weights>(row + own_lane % 16, own_lane / 16 * 8);
    UNROLL for (unsigned j = 0; j < 4; ++j) {
        stmatrix_x4(&parts[part_of<shape>(half, 0)] + (to ^ 16 * j), of.high[j]);
        stmatrix_x4(&parts[part_of<shape>(half, 1)] + (to ^ 16 * j), of.low[j]);
    }
    fence_proxy_async_shared();
}

/* Adds w b for 64 rows, from 64 `block` on, and all keys; or, BY_KEY, w^T b for 64 keys and all rows: of a slice of
 * features, from x on. */
template <typename T, typename shape, bool BY_KEY>
DEVICE void add_products(float (&d)[shape::SLICE / 2], const uint16_t *parts, const uint16_t *tile, int block, int x)
{
    constexpr int N = shape::SLICE;
    using operand = typename shape::operand;
    using weights = typename shape::weights;
    const unsigned own = static_cast<unsigned>(block);
    const uint64_t a = BY_KEY ? wgmma_advance(descriptor<weights>(parts), own * part_of<shape>(1, 0) * 2)
                              : descriptor<weights>(parts, own * 64);
    const uint64_t b = descriptor<operand>(tile, 0, static_cast<unsigned>(x));
    wgmma_fence_operand(d);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < shape::KEYS / 16; ++j)
        UNROLL for (unsigned part = 0; part < 2; ++part) {
            const unsigned from = BY_KEY ? part_of<shape>(0, part) + 16 * j * 64
                                         : part_of<shape>(j / 4, part) + 16 * (j % 4);
            const uint64_t a_j = wgmma_advance(a, from * 2);
            const uint64_t b_j = wgmma_advance(b, offset<operand>(16 * j, 0) * 2);
            if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<N, false, false, BY_KEY, true>(d, a_j, b_j, true);
            else wgmma_m64nNk16_bf16<N, false, false, BY_KEY, true>(d, a_j, b_j, true);
        }
    wgmma_commit();
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Keeps a thread's sums of dk, or of dv, from head to head of a group: in memory, as kept_sums does. */
template <typename shape>
struct group_sums {
    volatile float at[shape::DIM / shape::SLICE][shape::SLICE / 2];
};

/* Names a result in global memory, from a problem's first row on, and the tile that it goes through. */
struct result_tensor {
    const row_tensor &t;
    row_pointer rows;
    int used;     /* how many rows are written */
    float factor; /* what sums are multiplied by */
    uint16_t *tile;
};

/* Finds a result of a warpgroup's rows, or keys, from weights and a tile, and writes it; or keeps it, where a group has
 * more heads. Returns whether a sum of a row that is in use is no finite number. */
template <typename T, typename shape, bool BY_KEY>
DEVICE bool find_rows(const result_tensor &to, group_sums<shape> &kept, const head_place &head, const uint16_t *parts,
                      const uint16_t *tile, const result_place &own)
{
    using slice = typename shape::slice;
    constexpr int SLICE = shape::SLICE;
    const int left = to.used - own.first, row = static_cast<int>(lane()) / 4;
    bool has_infinite = false;
    ROLLED for (int x = 0; x < shape::DIM; x += SLICE) {
        float sum[SLICE / 2];
        UNROLL for (int n = 0; n < SLICE / 2; ++n) sum[n] = head.is_first ? 0 : kept.at[x / SLICE][n];
        add_products<T, shape, BY_KEY>(sum, parts, tile, own.block, x);
        wait_for<0>(sum);
        if (!head.is_last) {
            UNROLL for (int n = 0; n < SLICE / 2; ++n) kept.at[x / SLICE][n] = sum[n];
            continue;
        }
        float zero[2] = {0, 0};
        UNROLL for (int n = 0; n < SLICE / 2; ++n) zero[n / 2 % 2] = fma_rn(sum[n], 0.0f, zero[n / 2 % 2]);
        has_infinite |= (zero[0] != 0 && row < left) || (zero[1] != 0 && row + 8 < left);
        uint32_t pairs[SLICE / 4];
        round_sums<T, SLICE>(pairs, sum, to.factor, to.factor);
        const unsigned first = static_cast<unsigned>(own.first);
        const int64_t lane_row = own.first + static_cast<int>(lane() / CHUNKS<SLICE>);
        stage_rows<slice>(to.tile, first, pairs);
        write_rows<slice>(to.t, to.tile, first,
                          {to.rows.data + (lane_row * to.t.seqlen + x) * 2, to.rows.dtype, to.rows.by_four,
                           to.rows.length - x}, left, 16, false);
        sync_warp(FULL_WARP); /* its rows of the tile are read */
    }
    return has_infinite;
}

/* ---- a problem --------------------------------------------------------------------------------------------------- */

/* Computes the CTA's problem. Returns whether fragments are right; if not, what was written means nothing. */
template <typename T, typename shape>
DEVICE bool take_problem(const any_places &at, const backward_params &p, const short_sums &sums, bool has_stages)
{
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    const sequence &s = c.s;
    group_sums<shape> of_dk, of_dv;
    bool has_infinite = false;
    for (int n = 0; n < f.group; ++n) {
        const int64_t head = c.head_kv * f.group + n;
        const head_place place = {n == 0, n == f.group - 1};
        const warp_place own = place_of_pairs<shape>();
        load_operands<shape>(at, p, n);
        load_scores<shape>(at, p, head, has_stages);
        lane_rows rows = load_rows_of_lane(p, c, n, own.first + static_cast<int>(lane()) / 4);
        vote_of_warp(at.votes, is_special(rows, p));
        cp_async_wait_all();
        fence_proxy_async_shared();
        sync_threads(); /* the tiles are complete */
        if (join_warps<shape::WARPS>(at.votes)) return false;
        row_parts<64> of_p, of_ds;
        warp_pairs w;
        multiply_pairs<T, shape>(w.p, at.q, at.k, own);
        has_infinite |=
            find_parts<T, shape, false>(of_p, of_ds, w, at, p, head, rows, own, {sums, n}, has_stages,
                                        [&] { multiply_pairs<T, shape>(w.dp, at.dout, at.v, own); });
        store_parts<shape>(at.parts, of_p, place_of_pairs<shape>());
        sync_threads(); /* p is complete */
        if (sums.way != SUMS_LATER) sum_sinks<shape>(at, p, head);

        const result_tensor dv = {p.dv, rows_of(c, p.dv, DV_ROWS, 0, 0, f.head_dim_v), s.used_k, f.dropout_multiplier,
                                  at.v};
        const result_place of_keys = place_of_results<shape>();
        if (of_keys.has_keys)
            has_infinite |= find_rows<T, shape, true>(dv, of_dv, place, at.parts, at.dout, of_keys);
        sync_threads(); /* p and dout are free */
        store_parts<shape>(at.parts, of_ds, place_of_pairs<shape>());
        sync_threads(); /* ds is complete */

        const result_tensor dq = {p.dq, rows_of(c, p.dq, DQ_ROWS, n, 0, f.head_dim), s.used_q, f.softmax_scale,
                                  at.dout};
        const result_tensor dk = {p.dk, rows_of(c, p.dk, DK_ROWS, 0, 0, f.head_dim), s.used_k, f.softmax_scale, at.v};
        const result_place of_results = place_of_results<shape>();
        if (of_results.has_rows)
            has_infinite |= find_rows<T, shape, false>(dq, of_dk, {true, true}, at.parts, at.k, of_results);
        if (of_results.has_keys)
            has_infinite |= find_rows<T, shape, true>(dk, of_dk, place, at.parts, at.q, of_results);
        if (s.used_q < s.seqlen_q)
            clear_rows<shape::DIM, shape::THREADS_OF_CTA>(p.dq, c.b, s.first_q, s.used_q, s.seqlen_q, head,
                                                          f.head_dim);
        if (!place.is_last) sync_threads(); /* all tiles are free */
    }
    vote_of_warp(at.votes + shape::WARPS, has_infinite);
    sync_threads(); /* all votes are there */
    return !join_warps<shape::WARPS>(at.votes + shape::WARPS);
}

template <typename T, typename shape>
KERNEL(shape::THREADS_OF_CTA, shape::CTAS) void short_backward_sm90_any_kernel(GRID_CONSTANT const backward_params p,
                                                                               const short_sums sums,
                                                                               bool has_stages)
{
    DYNAMIC_SHARED(shared, 1024);
    take_own_problems<T, shape>(shared, p, sums, has_stages, [&](const any_places &at) {
        return take_problem<T, shape>(at, p, sums, has_stages);
    });
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

template <typename T, typename shape>
int launch(const backward_params &p, void *stream)
{
    return launch_any<shape>(p, stream, [&](const launch_shape &grid, const short_sums &sums, bool has_stages) {
        return LAUNCH((short_backward_sm90_any_kernel<T, shape>), grid, stream, p, sums, has_stages);
    });
}

/* Slopes of a softcap cost registers, so that what has none has kernels of its own: what is no more than lengths,
 * windows, sinks, groups and gradients of lse; and all else. */
template <typename T, int DIM, int KEYS>
int launch_features(const backward_params &p, void *stream)
{
    const unsigned features = features_of(p.forward);
    if (features == 0) return launch<T, wgmma_shape<DIM, KEYS, 0>>(p, stream);
    if ((features & HAS_CAP) == 0) return launch<T, wgmma_shape<DIM, KEYS, EVERY_FEATURE & ~HAS_CAP>>(p, stream);
    return launch<T, wgmma_shape<DIM, KEYS, EVERY_FEATURE>>(p, stream);
}

template <typename T>
int launch_width(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    const bool is_wide = f.head_dim > 64 || f.head_dim_v > 64;
    if (longest_of(f) > 64)
        return is_wide ? launch_features<T, 128, 128>(p, stream) : launch_features<T, 64, 128>(p, stream);
    return is_wide ? launch_features<T, 128, 64>(p, stream) : launch_features<T, 64, 64>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm90_any)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) { /* sums of nothing */
        const int code = KERNEL_SYMBOL(dbias)(p, stream);
        return code != 0 ? code : KERNEL_SYMBOL(dsink)(p, stream);
    }
    if (p->forward.q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

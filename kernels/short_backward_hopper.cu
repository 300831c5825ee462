/* short_backward_hopper.cu - attention backward of whole short sequences on Hopper's tensor cores (wgmma).
 *
 *     ds = p (dp - delta),  delta = sum of p dp over that of p
 *     dq = scale ds k,  dk = scale ds^T q,  dv = p^T dout
 *
 * Takes what short_backward.cu does at 65 .. 128 rows or keys, of heads of at most 128 features, one query head to a KV
 * head, and scores that are no more than softmax_scale q . k: every row sees every key. A problem
 * that gives delta is another kernel's.
 *
 * Grid    x: problems, one for each sequence and head
 * Block   two warpgroups: query rows 0 .. 63 and 64 .. 127, for s, p, dp, ds and dq; the same of keys, for dk and dv
 * Shared  q, k, dout and v, as wgmma reads them; ds, then p, of all rows and keys in two parts of 16 bits: 64 KB, of
 *         which the last 16 take the place of v where two CTAs would not fit; a card: where the problem's rows are
 * Phases  card; load, dout and v while p is found; dp; ds to shared memory; dq and dk; p to shared memory; dv, while dq
 *         and dk are written
 *
 * p stays in registers, in fp32, until ds has been read. Where two CTAs share an SM, there is no room beside it for dp
 * of more than half of the keys, and dp of the other half is computed twice: for delta, then for ds.
 *
 * Results lie, on their way to memory, in tiles that nobody reads any more: dq and dv in that of k or v, dk in q's. p
 * and ds have two parts of 16 bits, as in short_backward.cu. kernels/short.md has the figures, reference/bounds.md
 * section 11 what it may be off by. */
#include "kernels/short_backward_hopper.h"

namespace {

enum { THREADS = 256, KEYS = 128 };

/* A tile of DIM features; of HALF keys, of weights. */
template <int DIM>
using operand = short_shape<DIM, KEYS>;
constexpr int HALF = KEYS / 2; /* of the keys, or of the rows */

template <int DIM>
struct layout {
    static constexpr int TILE = KEYS * DIM, PART = KEYS * HALF; /* numbers */
    static constexpr int CTAS = DIM <= 64 ? 2 : 1; /* of an SM: as many as shared memory allows */
    static constexpr bool SHARES_V = DIM == 64;    /* with a part of ds, and then of p */
    static constexpr int V = 3 * TILE + (SHARES_V ? 3 : 4) * PART, NUMBERS = V + TILE;
    static_assert(!SHARES_V || TILE == PART, "v has the place of a part");
    static_assert(CTAS * (NUMBERS * 2 + 2048) <= 228 * 1024, "1 KB of a CTA is the chip's");
    static constexpr bool HAS_ROOM = CTAS == 1; /* in registers */
};

/* p and ds lie as operands of 64 keys, all query rows: high parts and low parts of keys 0 .. 63, then of 64 .. 127. */
DEVICE constexpr unsigned part_of(unsigned half, unsigned part) { return (2 * half + part) * KEYS * HALF; }

/* An operand's rows in use, by all threads. */
template <int DIM>
DEVICE void load(uint16_t *to, const row_tensor &t, char *rows, int length, int count, bool is_whole)
{
    if (is_whole) load_whole_operand<operand<DIM>, THREADS>(to, t, rows, thread_x());
    else load_operand<operand<DIM>, THREADS>(to, t, rows, length, count, thread_x());
}

/* ---- p and ds: 64 query rows of a warpgroup, two of a lane, g and g + 8 ------------------------------------------ */

/* Of half of the keys: s or p, dp or ds. */
typedef float half_row[HALF / 2];

/* Two parts of half of the keys of a warp's 16 rows, to shared memory. */
template <typename T>
DEVICE void store_parts(uint16_t *w, unsigned half, const half_row &weights, unsigned warp_row)
{
    const unsigned to = offset<operand<HALF>>(warp_row + lane() % 16, lane() / 16 * 8);
    UNROLL for (unsigned j = 0; j < HALF / 16; ++j) {
        weight_parts<16> parts;
        split<T>(parts, 0, &weights[8 * j]);
        UNROLL for (unsigned part = 0; part < 2; ++part)
            stmatrix_x4(&w[part_of(half, part)] + (to ^ 16 * j), parts.at[part][0]);
    }
}

/* A warpgroup's first row, and key. All its lanes have it from one place, so that the compiler knows it for one. */
DEVICE unsigned own_first() { return shfl_idx(FULL_WARP, warp() / 4, 0) * HALF; }

/* A warp's. Found anew in every phase, so that no register keeps what is made of it. */
DEVICE unsigned warp_first() { return shfl_idx(FULL_WARP, warp() * 16, 0); }

/* d = w b of a warpgroup's rows and all keys, or w^T b of its keys and all rows: w's parts in shared memory. */
template <typename T, int DIM, bool TRANSPOSE>
DEVICE void multiply_weights(float (&d)[DIM / 2], const uint16_t *w, uint64_t b)
{
    const uint64_t a = TRANSPOSE ? wgmma_advance(descriptor<operand<HALF>>(w), own_first() / HALF * part_of(1, 0) * 2)
                                 : descriptor<operand<HALF>>(w, own_first());
    wgmma_fence_operand(d);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j)
        UNROLL for (unsigned part = 0; part < 2; ++part) {
            const unsigned from =
                TRANSPOSE ? part_of(0, part) + 16 * j * HALF : part_of(16 * j / HALF, part) + 16 * j % HALF;
            const uint64_t a_j = wgmma_advance(a, from * 2), b_j = wgmma_advance(b, offset<operand<DIM>>(16 * j, 0) * 2);
            const bool is_first = j == 0 && part == 0;
            if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<DIM, false, false, TRANSPOSE, true>(d, a_j, b_j, !is_first);
            else wgmma_m64nNk16_bf16<DIM, false, false, TRANSPOSE, true>(d, a_j, b_j, !is_first);
        }
    wgmma_commit();
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* A warp's 16 rows, staged in `tile`; those from `used` on are zero, or all if nothing is in use on the other side. */
template <int DIM>
DEVICE void write_result(const row_tensor &t, char *rows, int length, uint16_t *tile, int seqlen, int used,
                         int used_there, bool is_whole)
{
    const int warp_row = static_cast<int>(warp_first());
    const int64_t row = warp_row + static_cast<int>(lane() / CHUNKS<DIM>);
    write_rows<operand<DIM>>(t, tile, static_cast<unsigned>(warp_row),
                             {rows + row * t.seqlen * 2, t.dtype, t.by_four, length}, seqlen - warp_row,
                             (used_there > 0 ? used : 0) - warp_row, is_whole);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

template <typename T, int DIM>
KERNEL(THREADS, layout<DIM>::CTAS) void short_backward_hopper_kernel(const GRID_CONSTANT backward_params p)
{
    constexpr int TILE = layout<DIM>::TILE;
    const forward_params &f = p.forward;
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    uint16_t *const q = reinterpret_cast<uint16_t *>(shared), *const k = q + TILE, *const dout = k + TILE;
    uint16_t *const w = dout + TILE, *const v = q + layout<DIM>::V;
    card &c = *reinterpret_cast<card *>(q + layout<DIM>::NUMBERS);
    if (warp() == 0) find_card<operand<DIM>>(p, block_x(), c);
    sync_threads(); /* the card is there */
    if (!c.is_ours) return;
    load<DIM>(q, f.q, c.rows[Q], f.head_dim, c.used_q, c.is_whole);
    load<DIM>(k, f.k, c.rows[K], f.head_dim, c.used_k, c.is_whole);
    cp_async_commit();
    load<DIM>(dout, p.dout, c.rows[DOUT], f.head_dim_v, c.used_q, c.is_whole);
    load<DIM>(v, f.v, c.rows[V], f.head_dim_v, c.used_k, c.is_whole);
    cp_async_commit();
    float lse[2], delta[2];
    load_lse(lse, f.lse, c.rows[LSE], lane_row(), c.used_q);
    cp_async_wait<1>();
    fence_proxy_async_shared();
    sync_threads(); /* q and k are complete, and wgmma may read them */

    const uint64_t own_q = descriptor<operand<DIM>>(q, own_first());
    const uint64_t own_dout = descriptor<operand<DIM>>(dout, own_first());
    half_row s[2], dp[2];
    UNROLL for (unsigned half = 0; half < 2; ++half)
        multiply_rows<T, operand<DIM>, HALF>(s[half], own_q, descriptor<operand<DIM>>(k, half * HALF));
    wait_for<1>(s[0]);
    find_weights(s[0], f.softmax_scale * LOG2_E, lse); /* p from here on */
    wait_for<0>(s[1]);
    find_weights(s[1], f.softmax_scale * LOG2_E, lse);
    const bool is_full = c.used_q == KEYS && c.used_k == KEYS;
    if (!is_full) hide(s[0], c, lane_row(), 0), hide(s[1], c, lane_row(), HALF);
    cp_async_wait<0>();
    fence_proxy_async_shared();
    sync_threads(); /* dout and v, too */
    row_sums sums = {};
    half_row &second = dp[layout<DIM>::HAS_ROOM ? 1 : 0];
    multiply_rows<T, operand<DIM>, HALF>(second, own_dout, descriptor<operand<DIM>>(v, HALF));
    if (layout<DIM>::HAS_ROOM) multiply_rows<T, operand<DIM>, HALF>(dp[0], own_dout, descriptor<operand<DIM>>(v));
    wait_for<layout<DIM>::HAS_ROOM ? 1 : 0>(second);
    add_weights(sums, s[1], second);
    if (!layout<DIM>::HAS_ROOM) multiply_rows<T, operand<DIM>, HALF>(dp[0], own_dout, descriptor<operand<DIM>>(v));
    wait_for<0>(dp[0]);
    add_weights(sums, s[0], dp[0]);
    UNROLL for (int n = 0; n < 2; ++n) delta[n] = mean_dp(sum_of_quad(sums.p[n]), sum_of_quad(sums.p_dp[n]));

    UNROLL for (unsigned half = 0; half < 2; ++half) {
        half_row &of_half = dp[layout<DIM>::HAS_ROOM ? half : 0];
        if (!layout<DIM>::HAS_ROOM && half == 1) {
            multiply_rows<T, operand<DIM>, HALF>(of_half, own_dout, descriptor<operand<DIM>>(v, half * HALF));
            wait_for<0>(of_half);
        }
        find_ds(of_half, s[half], delta);
        if (!is_full) hide(of_half, c, lane_row(), static_cast<int>(half * HALF));
        if (layout<DIM>::SHARES_V && half == 1) sync_threads(); /* v is free */
        store_parts<T>(w, half, of_half, warp_first());
    }
    fence_proxy_async_shared();
    sync_threads(); /* ds is complete */

    uint32_t pairs[DIM / 4];
    uint16_t *const staged = layout<DIM>::SHARES_V ? k : v;
    {
        float dq[DIM / 2], dk[DIM / 2];
        multiply_weights<T, DIM, false>(dq, w, descriptor<operand<DIM>>(k));
        if (layout<DIM>::HAS_ROOM) multiply_weights<T, DIM, true>(dk, w, descriptor<operand<DIM>>(q));
        wait_for<layout<DIM>::HAS_ROOM ? 1 : 0>(dq);
        round_sums<T, DIM>(pairs, dq, c.scale, c.scale);
        if (layout<DIM>::SHARES_V) sync_threads(); /* k is free */
        stage_rows<operand<DIM>>(staged, warp_first(), pairs);
        if (!layout<DIM>::HAS_ROOM) multiply_weights<T, DIM, true>(dk, w, descriptor<operand<DIM>>(q));
        wait_for<0>(dk);
        round_sums<T, DIM>(pairs, dk, c.scale, c.scale);
    }
    sync_threads(); /* ds and q are free */
    stage_rows<operand<DIM>>(q, warp_first(), pairs);
    UNROLL for (unsigned half = 0; half < 2; ++half) store_parts<T>(w, half, s[half], warp_first());
    fence_proxy_async_shared();
    sync_threads(); /* p is complete */

    float dv[DIM / 2];
    multiply_weights<T, DIM, true>(dv, w, descriptor<operand<DIM>>(dout));
    write_result<DIM>(p.dq, c.rows[DQ], f.head_dim, staged, c.seqlen_q, c.used_q, c.used_k, c.is_whole);
    write_result<DIM>(p.dk, c.rows[DK], f.head_dim, q, c.seqlen_k, c.used_k, c.used_q, c.is_whole);
    wait_for<0>(dv);
    round_sums<T, DIM>(pairs, dv, 1, 1);
    sync_warp(FULL_WARP); /* its rows of dq are read */
    stage_rows<operand<DIM>>(staged, warp_first(), pairs);
    write_result<DIM>(p.dv, c.rows[DV], f.head_dim_v, staged, c.seqlen_k, c.used_k, c.used_q, c.is_whole);
    const int first = KEYS + static_cast<int>(warp());
    clear_rows<THREADS / 32>(p.dq, c.rows[DQ], f.head_dim, first, c.seqlen_q);
    clear_rows<THREADS / 32>(p.dk, c.rows[DK], f.head_dim, first, c.seqlen_k);
    clear_rows<THREADS / 32>(p.dv, c.rows[DV], f.head_dim_v, first, c.seqlen_k);
}

template <typename T, int DIM>
int launch(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    const launch_shape grid = {{static_cast<unsigned>(f.batch * f.num_heads_q), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               layout<DIM>::NUMBERS * sizeof(uint16_t) + sizeof(card), THREADS, layout<DIM>::CTAS};
    return LAUNCH((short_backward_hopper_kernel<T, DIM>), grid, stream, p);
}

template <typename T>
int launch_width(const backward_params &p, void *stream)
{
    const int widest = p.forward.head_dim > p.forward.head_dim_v ? p.forward.head_dim : p.forward.head_dim_v;
    if (widest <= 32) return launch<T, 32>(p, stream);
    if (widest <= 64) return launch<T, 64>(p, stream);
    return launch<T, 128>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_hopper)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) return 0;
    if (p->forward.q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

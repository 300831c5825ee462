/* short_backward_wide.cu - attention backward of whole short sequences of wide heads on Hopper's tensor cores (wgmma).
 *
 *     ds = p (dp - delta),  delta = sum of p dp over that of p
 *     dq = scale ds k,  dk = scale ds^T q,  dv = p^T dout
 *
 * Takes what short_backward_hopper.cu does, of heads of 129 .. 256 features: the numbers are computed as there.
 *
 * Grid    x: problems, one for each sequence and head. They may come before the launch ahead has ended (grid_wait)
 * Block   two warpgroups: query rows 0 .. 63 and 64 .. 127, for s, p, dp, ds and dq; the same of keys, for dk and dv
 * Shared  q, k and dout, as wgmma reads them; v, half of its features at once, then results on their way out; a card:
 *         where the problem's rows are
 * Phases  card; load; half of dp; s, while the rest of v comes; p, while dp gets the other half; dq; dk; dv. A result's
 *         last slice is written during the next one's products
 *
 * There is no room for p and ds beside the operands. ds, in two parts of 16 bits, is in registers, where dp was, and an
 * operand of dq's products from there; when dq is done, ds takes the place of k, and, when dk is, p that of ds. Until
 * then p stays in registers, in fp32. kernels/short.md has the figures, reference/bounds.md section 11 what results may
 * be off by. */
#include "kernels/short_backward_hopper.h"

namespace {

enum { THREADS = 256, KEYS = 128, DIM = 256 };
using operand = short_shape<DIM, KEYS>;

/* Features of v that are in shared memory at once. */
enum { HALF_DIM = DIM / 2 };
using half_operand = short_shape<HALF_DIM, KEYS>;

/* Features of dq that are summed at once; of dk and dv it is half of them. Heads of at most DIM - SLICE features lack
 * the last slice: s and dp are products without it. */
enum { SLICE = 64 };
using slice = short_shape<SLICE, KEYS>;
using narrow_operand = short_shape<DIM - SLICE, KEYS>;

struct shared_memory {
    uint16_t q[KEYS * DIM], k[KEYS * DIM], dout[KEYS * DIM];
    uint16_t v[KEYS * HALF_DIM]; /* later, results on their way out */
    card of_problem;
};

/* From feature x on. */
DEVICE uint64_t advance(uint64_t operand_descriptor, unsigned x)
{
    return wgmma_advance(operand_descriptor, offset<operand>(0, x) * 2);
}

/* An operand's features, of which the first is the x-th of rows of `length`, and `count` rows. By all threads. */
template <typename shape>
DEVICE void load(uint16_t *to, const row_tensor &t, char *rows, int x, int length, int count, bool is_whole)
{
    if (is_whole) {
        load_whole_operand<shape, THREADS>(to, t, rows + 2 * x, thread_x());
        return;
    }
    row_pointer row = {rows + 2 * x, t.dtype, t.by_four, length - x};
    UNROLL for (int n = 0; n < shape::DIM; n += shape::PANEL, to += KEYS * shape::PANEL) {
        load_rows<KEYS, shape::PANEL, THREADS>(to, row, t.seqlen * 2, t.by_eight != 0, count, thread_x());
        row.data += 2 * shape::PANEL, row.length -= shape::PANEL;
    }
}

/* Of the second half of the features. */
DEVICE uint64_t descriptor_of_half(const uint16_t *tile) { return advance(descriptor<operand>(tile), HALF_DIM); }

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* They lie as operands of 64 keys, all query rows: high parts and low parts of keys 0 .. 63, then of 64 .. 127. */
using of_weights = short_shape<64, KEYS>;
DEVICE constexpr unsigned part_of(unsigned half, unsigned part) { return (2 * half + part) * KEYS * 64; }
static_assert(part_of(2, 0) == KEYS * DIM, "the place of k");

/* Of a warp's 16 rows. */
DEVICE void store_parts(uint16_t *w, const weight_parts<KEYS> &parts)
{
    const unsigned to = offset<of_weights>(warp_first() + lane() % 16, lane() / 16 * 8);
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j)
        UNROLL for (unsigned part = 0; part < 2; ++part)
            stmatrix_x4(&w[part_of(16 * j / 64, part)] + (to ^ 16 * j % 64), parts.at[part][j]);
}

/* d = w^T b of a warpgroup's keys and all query rows, half of the features. */
template <typename T>
DEVICE void multiply_weights(float (&d)[HALF_DIM / 2], const uint16_t *w, uint64_t b)
{
    const uint64_t a = wgmma_advance(descriptor<of_weights>(w), own_first() / 64 * part_of(1, 0) * 2);
    wgmma_fence_operand(d);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j)
        UNROLL for (unsigned part = 0; part < 2; ++part) {
            const uint64_t a_j = wgmma_advance(a, (part_of(0, part) + 16 * j * 64) * 2);
            const uint64_t b_j = wgmma_advance(b, offset<operand>(16 * j, 0) * 2);
            const bool is_first = j == 0 && part == 0;
            if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<HALF_DIM, false, false, true, true>(d, a_j, b_j, !is_first);
            else wgmma_m64nNk16_bf16<HALF_DIM, false, false, true, true>(d, a_j, b_j, !is_first);
        }
    wgmma_commit();
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Features x and up of dq, dk or dv, of a warp's 16 rows, through its rows of `tile`. */
template <unsigned OF, typename shape>
DEVICE void write_slice(const backward_params &p, const card &c, int x, uint16_t *tile,
                        const uint32_t (&pairs)[shape::DIM / 4])
{
    const row_tensor &t = OF == DQ ? p.dq : OF == DK ? p.dk : p.dv;
    const int length = (OF == DV ? p.forward.head_dim_v : p.forward.head_dim) - x;
    if (length <= 0) return;
    const int warp_row = static_cast<int>(warp_first()), rows = (OF == DQ ? c.seqlen_q : c.seqlen_k) - warp_row;
    const int there = OF == DQ ? c.used_k : c.used_q;
    const int used = (there == 0 ? 0 : OF == DQ ? c.used_q : c.used_k) - warp_row;
    const int64_t row = warp_row + static_cast<int>(lane() / CHUNKS<shape::DIM>);
    sync_warp(FULL_WARP); /* what was staged there is read */
    stage_rows<shape>(tile, warp_first(), pairs);
    write_rows<shape>(t, tile, static_cast<unsigned>(warp_row),
                      {c.rows[OF] + row * t.seqlen * 2 + 2 * x, t.dtype, t.by_four, length}, rows,
                      used < rows ? used : 16, c.is_whole);
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

template <typename T>
KERNEL(THREADS, 1) void short_backward_wide_kernel(const GRID_CONSTANT backward_params p)
{
    const forward_params &f = p.forward;
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    shared_memory &m = *reinterpret_cast<shared_memory *>(shared);
    card &c = m.of_problem;
    grid_wait();
    if (warp() == 0) find_card<operand>(p, block_x(), c);
    sync_threads(); /* the card is there */
    if (!c.is_ours) return;
    load<operand>(m.dout, p.dout, c.rows[DOUT], 0, f.head_dim_v, c.used_q, c.is_whole);
    load<half_operand>(m.v, f.v, c.rows[V], 0, f.head_dim_v, c.used_k, c.is_whole);
    cp_async_commit();
    load<operand>(m.q, f.q, c.rows[Q], 0, f.head_dim, c.used_q, c.is_whole);
    load<operand>(m.k, f.k, c.rows[K], 0, f.head_dim, c.used_k, c.is_whole);
    cp_async_commit();
    float lse[2], delta[2];
    load_lse(lse, f.lse, c.rows[LSE], lane_row(), c.used_q);
    const uint64_t own_dout = descriptor<operand>(m.dout, own_first());
    float s[KEYS / 2], dp[KEYS / 2];
    cp_async_wait<1>();
    fence_proxy_async_shared();
    sync_threads(); /* dout and half of v are complete, and wgmma may read them */
    multiply_rows<T, half_operand, KEYS>(dp, own_dout, descriptor<half_operand>(m.v));
    wait_for<0>(dp);
    sync_threads(); /* the place of v is free */
    load<half_operand>(m.v, f.v, c.rows[V], HALF_DIM, f.head_dim_v, c.used_k, c.is_whole);
    cp_async_commit();
    cp_async_wait<1>();
    fence_proxy_async_shared();
    sync_threads(); /* q and k, too */
    const uint64_t own_q = descriptor<operand>(m.q, own_first());
    const uint64_t keys = descriptor<operand>(m.k);
    if (f.head_dim > DIM - SLICE) multiply_rows<T, operand, KEYS>(s, own_q, keys);
    else multiply_rows<T, narrow_operand, KEYS>(s, own_q, keys);
    cp_async_wait<0>();
    fence_proxy_async_shared();
    sync_threads(); /* the other half of v, too */
    const uint64_t half_dout = advance(own_dout, HALF_DIM), half_v = descriptor<half_operand>(m.v);
    if (f.head_dim_v > DIM - SLICE) multiply_rows<T, half_operand, KEYS>(dp, half_dout, half_v, true);
    else multiply_rows<T, slice, KEYS>(dp, half_dout, half_v, true);
    wait_for<1>(s);
    find_weights(s, f.softmax_scale * LOG2_E, lse); /* p from here on */
    const bool is_full = c.used_q == KEYS && c.used_k == KEYS;
    if (!is_full) hide(s, c, lane_row(), 0);
    wait_for<0>(dp);
    row_sums sums = {};
    add_weights(sums, s, dp);
    UNROLL for (int n = 0; n < 2; ++n) delta[n] = mean_dp(sum_of_quad(sums.p[n]), sum_of_quad(sums.p_dp[n]));
    find_ds(dp, s, delta);
    if (!is_full) hide(dp, c, lane_row(), 0);

    weight_parts<KEYS> parts;
    split_weights<T>(parts, dp);
    uint32_t sixteen[SLICE / 4], pairs[HALF_DIM / 4];
    {
        float dq[2][SLICE / 2];
        multiply_parts<T, slice>(dq[0], parts, keys);
        multiply_parts<T, slice>(dq[1], parts, advance(keys, SLICE));
        sync_threads(); /* the place of v is free again */
        UNROLL for (int x = 0; x < DIM; x += SLICE) {
            float(&sum)[SLICE / 2] = dq[x / SLICE % 2];
            uint16_t *const tile = &m.v[x / SLICE % 2 * KEYS * SLICE];
            if (x + SLICE < DIM) wait_for<1>(sum);
            else wait_for<0>(sum);
            round_sums<T, SLICE>(sixteen, sum, c.scale, c.scale);
            if (x + 2 * SLICE < DIM) multiply_parts<T, slice>(sum, parts, advance(keys, x + 2 * SLICE));
            if (x + SLICE < DIM) write_slice<DQ, slice>(p, c, x, tile, sixteen);
        }
    }
    sync_threads(); /* k is free */
    store_parts(m.k, parts);
    fence_proxy_async_shared();
    sync_threads(); /* ds is complete */

    {
        float dk[HALF_DIM / 2];
        multiply_weights<T>(dk, m.k, descriptor<operand>(m.q));
        write_slice<DQ, slice>(p, c, DIM - SLICE, &m.v[KEYS * SLICE], sixteen);
        wait_for<0>(dk);
        round_sums<T, HALF_DIM>(pairs, dk, c.scale, c.scale);
        multiply_weights<T>(dk, m.k, descriptor_of_half(m.q));
        write_slice<DK, half_operand>(p, c, 0, m.v, pairs);
        wait_for<0>(dk);
        round_sums<T, HALF_DIM>(pairs, dk, c.scale, c.scale);
    }
    split_weights<T>(parts, s);
    sync_threads(); /* ds is free */
    store_parts(m.k, parts);
    fence_proxy_async_shared();
    sync_threads(); /* p is complete */

    {
        float dv[HALF_DIM / 2];
        multiply_weights<T>(dv, m.k, descriptor<operand>(m.dout));
        write_slice<DK, half_operand>(p, c, HALF_DIM, m.v, pairs);
        wait_for<0>(dv);
        round_sums<T, HALF_DIM>(pairs, dv, 1, 1);
        multiply_weights<T>(dv, m.k, descriptor_of_half(m.dout));
        write_slice<DV, half_operand>(p, c, 0, m.v, pairs);
        wait_for<0>(dv);
        round_sums<T, HALF_DIM>(pairs, dv, 1, 1);
        write_slice<DV, half_operand>(p, c, HALF_DIM, m.v, pairs);
    }
    const int row = KEYS + static_cast<int>(warp());
    clear_rows<THREADS / 32>(p.dq, c.rows[DQ], f.head_dim, row, c.seqlen_q);
    clear_rows<THREADS / 32>(p.dk, c.rows[DK], f.head_dim, row, c.seqlen_k);
    clear_rows<THREADS / 32>(p.dv, c.rows[DV], f.head_dim_v, row, c.seqlen_k);
}

template <typename T>
int launch(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    const launch_shape grid = {{static_cast<unsigned>(f.batch * f.num_heads_q), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               sizeof(shared_memory), THREADS, 1, true};
    return LAUNCH(short_backward_wide_kernel<T>, grid, stream, p);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_wide)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) return 0;
    if (p->forward.q.dtype == ATTEST_FP16) return launch<f16>(*p, stream);
    return launch<bf16>(*p, stream);
}

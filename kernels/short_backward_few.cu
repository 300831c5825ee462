/* short_backward_few.cu - attention backward of few whole short sequences on Hopper's tensor cores (wgmma).
 *
 * What short_backward_hopper.cu computes, to the bit: its launcher calls this one where there are no more problems than
 * SMs, and all are whole: 128 rows and keys, all features of a tile, all rows aligned. How long one problem takes is
 * what counts then. It has an SM to itself: p and ds have places of their own, and dp of all keys stays in registers.
 *
 * Grid    x: a CTA for each problem, a sequence and head
 * Block   two warpgroups: query rows 0 .. 63 and 64 .. 127, for s, p, dp, ds and dq; the same of keys, for dk and dv
 * Shared  q, k, dout and v, as wgmma reads them; p and ds of all rows and keys in two parts of 16 bits, of which half
 *         of ds takes the place of v at 128 features
 * Phases  s and p, to shared memory; dp; ds, to shared memory, and dq; dv; dk
 *
 * The second warpgroup asks for its scores when the first has, so that p of one is found while the other multiplies.
 * Results lie in k's place on their way to memory, a warp's in 16 rows that no other touches. kernels/short.md has the
 * figures, reference/bounds.md section 11 what it may be off by. */
#include "kernels/short_backward_parts.h"

namespace {

enum { FIRST_HAS_ASKED = 1 }; /* a named barrier */

template <int DIM>
struct few_memory {
    static constexpr bool SHARES_V = DIM == 128; /* with ds of the last 64 keys */
    static constexpr int TILE = KEYS * DIM;      /* numbers */
    uint16_t q[TILE], k[TILE], dout[TILE];
    uint16_t p[4 * KEYS * HALF];
    uint16_t ds[4 * KEYS * HALF - (SHARES_V ? TILE : 0)], v[TILE];
};
static_assert(sizeof(few_memory<128>) <= 227 * 1024, "an SM has no more for a CTA");
static_assert(offsetof(few_memory<128>, v) == offsetof(few_memory<128>, ds) + part_of(1, 0) * sizeof(uint16_t),
              "the last 64 keys' ds is v's place");

/* A warp's 16 rows. */
template <int DIM>
DEVICE void load_whole(uint16_t *to, const row_tensor &t, const backward_params &p)
{
    load<DIM>(to, t, reinterpret_cast<char *>(whole_rows<uint16_t>(t, p, block_x())), DIM, KEYS, true);
}

/* Sums of a warp's 16 rows times a factor, by way of its rows of `tile`. */
template <typename T, int DIM>
DEVICE void write_sums(const row_tensor &t, const backward_params &p, uint16_t *tile, const float (&sums)[DIM / 2],
                       float factor)
{
    uint32_t pairs[DIM / 4];
    round_sums<T, DIM>(pairs, sums, factor, factor);
    stage_rows<operand<DIM>>(tile, warp_first(), pairs);
    const unsigned row = warp_first() + lane() / CHUNKS<DIM>;
    char *const to = reinterpret_cast<char *>(whole_rows<uint16_t>(t, p, block_x()) + row * t.seqlen);
    write_rows<operand<DIM>>(t, tile, warp_first(), {to, t.dtype, t.by_four, DIM}, 16, 16, true);
    sync_warp(FULL_WARP); /* what was staged is read */
}

template <typename T, int DIM>
KERNEL(THREADS, 1) void short_backward_few_kernel(const GRID_CONSTANT backward_params p)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    few_memory<DIM> &m = *reinterpret_cast<few_memory<DIM> *>(shared);
    const forward_params &f = p.forward;
    load_whole<DIM>(m.q, f.q, p);
    load_whole<DIM>(m.k, f.k, p);
    cp_async_commit();
    const int row = static_cast<int>(warp_first() + lane() / 4);
    const float *const lse = whole_rows<const float>(f.lse, p, block_x()) + row * f.lse.seqlen;
    float lse_2[2] = {lse[0], lse[8 * f.lse.seqlen]};
    UNROLL for (int r = 0; r < 2; ++r) lse_2[r] *= LOG2_E;
    cp_async_wait<0>();
    fence_proxy_async_shared();
    sync_threads(); /* q and k are complete, and wgmma may read them */
    load_whole<DIM>(m.dout, p.dout, p);
    load_whole<DIM>(m.v, f.v, p);
    cp_async_commit();

    const uint64_t own_q = descriptor<operand<DIM>>(m.q, own_first());
    const uint64_t own_dout = descriptor<operand<DIM>>(m.dout, own_first());
    const uint64_t k[2] = {descriptor<operand<DIM>>(m.k), descriptor<operand<DIM>>(m.k, HALF)};
    const uint64_t v[2] = {descriptor<operand<DIM>>(m.v), descriptor<operand<DIM>>(m.v, HALF)};
    half_row s[2], dp[2];
    if (own_first() > 0) named_barrier_sync(FIRST_HAS_ASKED, THREADS);
    multiply_rows<T, operand<DIM>, HALF>(s[1], own_q, k[1]);
    multiply_rows<T, operand<DIM>, HALF>(s[0], own_q, k[0]);
    if (own_first() == 0) named_barrier_arrive(FIRST_HAS_ASKED, THREADS);
    wait_for<1>(s[1]);
    find_weights(s[1], f.softmax_scale * LOG2_E, lse_2); /* p from here on */
    store_half<T>(m.p, 1, s[1], warp_first());
    wait_for<0>(s[0]);
    find_weights(s[0], f.softmax_scale * LOG2_E, lse_2);
    store_half<T>(m.p, 0, s[0], warp_first());
    cp_async_wait<0>();
    fence_proxy_async_shared();
    sync_threads(); /* dout, v and p are complete */

    row_sums sums = {};
    multiply_rows<T, operand<DIM>, HALF>(dp[1], own_dout, v[1]);
    multiply_rows<T, operand<DIM>, HALF>(dp[0], own_dout, v[0]);
    wait_for<1>(dp[1]);
    add_weights(sums, s[1], dp[1]);
    wait_for<0>(dp[0]);
    add_weights(sums, s[0], dp[0]);
    float delta[2];
    UNROLL for (int r = 0; r < 2; ++r) delta[r] = mean_dp(sum_of_quad(sums.p[r]), sum_of_quad(sums.p_dp[r]));
    if (m.SHARES_V) sync_threads(); /* v is free */

    float dq[DIM / 2], dk[DIM / 2], dv[DIM / 2];
    weight_parts<HALF> ds[2];
    UNROLL for (unsigned half = 0; half < 2; ++half) {
        find_ds(dp[half], s[half], delta);
        UNROLL for (int j = 0; j < HALF / 16; ++j) split<T>(ds[half], j, &dp[half][8 * j]);
        UNROLL for (unsigned j = 0; j < HALF / 16; ++j)
            store_parts(m.ds, half, j, ds[half].at[0][j], ds[half].at[1][j], warp_first());
        multiply_half<T, DIM>(dq, ds[half], k[half], half == 1);
    }
    multiply_weights<T, DIM, true>(dv, m.p, descriptor<operand<DIM>>(m.dout));
    fence_proxy_async_shared();
    wait_for<1>(dq);
    sync_threads(); /* ds is complete; k is free */
    write_sums<T, DIM>(p.dq, p, m.k, dq, f.softmax_scale);
    multiply_weights<T, DIM, true>(dk, m.ds, descriptor<operand<DIM>>(m.q));
    wait_for<1>(dv);
    write_sums<T, DIM>(p.dv, p, m.k, dv, 1);
    wait_for<0>(dk);
    write_sums<T, DIM>(p.dk, p, m.k, dk, f.softmax_scale);
}

template <typename T, int DIM>
int launch_few_of(const backward_params &p, void *stream)
{
    const launch_shape grid = {{static_cast<unsigned>(p.forward.batch * p.forward.num_heads_q), 1, 1},
                               {THREADS, 1, 1}, {1, 1, 1}, sizeof(few_memory<DIM>), THREADS, 1};
    return LAUNCH((short_backward_few_kernel<T, DIM>), grid, stream, p);
}

template <typename T>
int launch_few(const backward_params &p, void *stream)
{
    if constexpr (IS_F16<T>) /* of bf16 they are short_backward_scaled's */
        if (p.forward.head_dim <= 32) return launch_few_of<T, 32>(p, stream);
    if (p.forward.head_dim <= 64) return launch_few_of<T, 64>(p, stream);
    return launch_few_of<T, 128>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_few)(const struct backward_params *p, void *stream)
{
    if (p->forward.q.dtype == ATTEST_FP16) return launch_few<f16>(*p, stream);
    return launch_few<bf16>(*p, stream);
}

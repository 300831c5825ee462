/* backward_sm90_n128_latency.cu - attention backward of few whole short sequences on Hopper's tensor cores (wgmma).
 *
 * Computes what short/backward_sm90_n128.cu does, to the bit. It takes no more problems than there are SMs, and full
 * ones alone: 128 rows and keys, all features of a tile, all rows aligned. How long one problem takes is what counts
 * then. It has an SM to itself: p and ds have places of their own, and dp of all keys stays in registers.
 *
 * Grid    x: a CTA for each problem, a sequence and head. It may come before the previous launch has ended (grid_wait)
 * Block   four warpgroups. Two have query rows 0 .. 63 and 64 .. 127: s, p, dp, ds and dq. Two have the same of keys:
 *         they load all tiles but q, and make dv and dk. A warp that asks for wgmmas waits until nearly all have begun:
 *         so one pair computes and stores what the tensor cores do not wait for while the other pair keeps them busy
 * Shared  q, k, dout and v, as wgmma reads them; p and ds of all rows and keys in two parts of 16 bits, of which half
 *         of ds takes the place of v at 128 features
 * Phases  rows: q; s and p, to shared memory; dp; ds, to shared memory, and dq. Keys: k; dout and v; dv; dk
 *
 * For s and dk the second warpgroup asks for its products after the first has asked, so that what the first does with
 * its sums overlaps the second's products. Results leave from registers, as products keep shared memory busy.
 * kernels/short/short.md has the figures; reference/bounds.md section 11 bounds the error. */
#include "kernels/short/backward_sm90_parts.h"

namespace {

enum { THREADS = 512, PAIR = THREADS / 2, GROUP = PAIR / 2 };
enum { REGISTERS_OF_ROWS = 160, REGISTERS_OF_KEYS = 96 };
static_assert(PAIR * (REGISTERS_OF_ROWS + REGISTERS_OF_KEYS) == THREADS * 128, "what threads begin with");

/* These are the named barriers. */
enum {
    Q_K_LOADED = 1, /* for all threads, as the next two are */
    DP_ASKED,       /* p is stored, too */
    DS_STORED,
    TURN_OF_ROWS, /* within a pair: the first warpgroup has asked for products */
    TURN_OF_KEYS,
    DP_DONE,         /* both warpgroups of rows have dp */
    DOUT_V_LOADED_0, /* from those of keys to the first of rows, which does not wait for the second */
    DOUT_V_LOADED_1  /* from those of keys to the second of rows */
};

template <int DIM>
struct few_memory {
    static constexpr bool SHARES_V = DIM == 128;      /* with ds of the last 64 keys */
    static constexpr bool STORES_P_LATE = DIM == 128; /* p of the last 64 keys: when s is done, beside no product */
    static constexpr int TILE = KEYS * DIM;           /* numbers */
    uint16_t q[TILE], k[TILE], dout[TILE];
    uint16_t p[4 * KEYS * HALF];
    uint16_t ds[4 * KEYS * HALF - (SHARES_V ? TILE : 0)], v[TILE];
};
static_assert(sizeof(few_memory<128>) <= 227 * 1024, "an SM has no more for a CTA");
static_assert(offsetof(few_memory<128>, v) == offsetof(few_memory<128>, ds) + part_of(1, 0) * sizeof(uint16_t),
              "the last 64 keys' ds is v's place");

/* Waits until what was asked for so far is there; wgmma may read it once others know. */
DEVICE void complete_loads()
{
    cp_async_commit();
    cp_async_wait<0>();
    fence_proxy_async_shared();
}

/* ---- query rows -------------------------------------------------------------------------------------------------- */

template <typename T, int DIM>
DEVICE void take_query_rows(const backward_params &p, few_memory<DIM> &m)
{
    const forward_params &f = p.forward;
    const int row = static_cast<int>(row_first() + lane() / 4);
    const float *const lse = whole_rows<const float>(f.lse, p, block_x()) + row * f.lse.seqlen;
    load_whole<DIM>(m.q, f.q, p);
    float lse_2[2] = {lse[0], lse[8 * f.lse.seqlen]};
    UNROLL for (int r = 0; r < 2; ++r) lse_2[r] *= LOG2_E;
    const uint64_t own_q = descriptor<operand<DIM>>(m.q, group_first());
    const uint64_t own_dout = descriptor<operand<DIM>>(m.dout, group_first());
    const uint64_t k[2] = {descriptor<operand<DIM>>(m.k), descriptor<operand<DIM>>(m.k, HALF)};
    const uint64_t v[2] = {descriptor<operand<DIM>>(m.v), descriptor<operand<DIM>>(m.v, HALF)};
    half_row s[2], dp[2];
    complete_loads();
    named_barrier_sync(Q_K_LOADED, THREADS);
    if (group_first() > 0) named_barrier_sync(TURN_OF_ROWS, PAIR);
    multiply_rows<T, operand<DIM>, HALF>(s[1], own_q, k[1]);
    multiply_rows<T, operand<DIM>, HALF>(s[0], own_q, k[0]);
    if (group_first() == 0) named_barrier_arrive(TURN_OF_ROWS, PAIR);
    const float c = f.softmax_scale * LOG2_E;
    const bool has_large = is_any_large(lse_2); /* then weights wait for all scores */
    if (!m.STORES_P_LATE) {
        wait_for<1>(s[1]);
        if (!has_large) {
            recompute_weights(s[1], c, lse_2); /* p from here on */
            store_half<T>(m.p, 1, s[1], row_first());
        }
    }
    wait_for<0>(s[1]);
    wait_for<0>(s[0]);
    if (has_large) take_own_lse(s, c, KEYS, lse_2);
    if (m.STORES_P_LATE || has_large) {
        recompute_weights(s[1], c, lse_2);
        store_half<T>(m.p, 1, s[1], row_first());
    }
    recompute_weights(s[0], c, lse_2);
    store_half<T>(m.p, 0, s[0], row_first());
    fence_proxy_async_shared();
    named_barrier_sync(group_first() == 0 ? DOUT_V_LOADED_0 : DOUT_V_LOADED_1, PAIR + GROUP);

    row_sums sums = {};
    multiply_rows<T, operand<DIM>, HALF>(dp[1], own_dout, v[1]);
    multiply_rows<T, operand<DIM>, HALF>(dp[0], own_dout, v[0]);
    named_barrier_arrive(DP_ASKED, THREADS); /* dv, which nobody waits for, comes after it */
    wait_for<1>(dp[1]);
    add_weights(sums, s[1], dp[1]);
    wait_for<0>(dp[0]);
    add_weights(sums, s[0], dp[0]);
    float delta[2];
    UNROLL for (int r = 0; r < 2; ++r) delta[r] = mean_dp(sum_of_quad(sums.p[r]), sum_of_quad(sums.p_dp[r]));
    if (m.SHARES_V) named_barrier_sync(DP_DONE, PAIR); /* v is free */

    float dq[DIM / 2];
    weight_parts<HALF> ds[2];
    UNROLL for (unsigned half = 0; half < 2; ++half) {
        find_ds(dp[half], s[half], delta);
        UNROLL for (int j = 0; j < HALF / 16; ++j) split<T>(ds[half], j, &dp[half][8 * j]);
        UNROLL for (unsigned j = 0; j < HALF / 16; ++j)
            store_parts(m.ds, half, j, ds[half].at[0][j], ds[half].at[1][j], row_first());
        multiply_half<T, DIM>(dq, ds[half], k[half], half == 1);
    }
    fence_proxy_async_shared();
    named_barrier_arrive(DS_STORED, THREADS);
    wait_for<0>(dq);
    write_sums<T, DIM>(p.dq, p, dq, f.softmax_scale);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

template <typename T, int DIM>
DEVICE void take_keys(const backward_params &p, few_memory<DIM> &m)
{
    const forward_params &f = p.forward;
    load_whole<DIM>(m.k, f.k, p);
    complete_loads();
    named_barrier_arrive(Q_K_LOADED, THREADS);
    load_whole<DIM>(m.dout, p.dout, p);
    load_whole<DIM>(m.v, f.v, p);
    complete_loads();
    named_barrier_arrive(DOUT_V_LOADED_0, PAIR + GROUP);
    named_barrier_arrive(DOUT_V_LOADED_1, PAIR + GROUP);

    float sums[DIM / 2]; /* dv, then dk */
    named_barrier_sync(DP_ASKED, THREADS);
    multiply_weights<T, DIM, true>(sums, m.p, descriptor<operand<DIM>>(m.dout), group_first());
    wait_for<0>(sums);
    write_sums<T, DIM>(p.dv, p, sums, 1);
    named_barrier_sync(DS_STORED, THREADS);
    if (group_first() > 0) named_barrier_sync(TURN_OF_KEYS, PAIR);
    multiply_weights<T, DIM, true>(sums, m.ds, descriptor<operand<DIM>>(m.q), group_first());
    if (group_first() == 0) named_barrier_arrive(TURN_OF_KEYS, PAIR);
    wait_for<0>(sums);
    write_sums<T, DIM>(p.dk, p, sums, f.softmax_scale);
}

template <typename T, int DIM>
KERNEL(THREADS, 1) void short_backward_sm90_n128_latency_kernel(const GRID_CONSTANT backward_params p)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    few_memory<DIM> &m = *reinterpret_cast<few_memory<DIM> *>(shared);
    if (warp() < PAIR / 32) { /* registers change hands while the previous launch ends */
        setmaxnreg_inc<REGISTERS_OF_ROWS>();
        grid_wait();
        take_query_rows<T, DIM>(p, m);
    } else {
        setmaxnreg_dec<REGISTERS_OF_KEYS>();
        grid_wait();
        take_keys<T, DIM>(p, m);
    }
}

template <typename T, int DIM>
int launch_few_of(const backward_params &p, void *stream)
{
    const launch_shape grid = {{static_cast<unsigned>(p.forward.batch * p.forward.num_heads_q), 1, 1},
                               {THREADS, 1, 1}, {1, 1, 1}, sizeof(few_memory<DIM>), THREADS, 1, true};
    return LAUNCH((short_backward_sm90_n128_latency_kernel<T, DIM>), grid, stream, p);
}

template <typename T>
int launch_few(const backward_params &p, void *stream)
{
    if constexpr (IS_F16<T>) /* of bf16 they are short_backward_sm90_n128_scaled's */
        if (p.forward.head_dim <= 32) return launch_few_of<T, 32>(p, stream);
    if (p.forward.head_dim <= 64) return launch_few_of<T, 64>(p, stream);
    return launch_few_of<T, 128>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm90_n128_latency)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) return 0;
    if (p->forward.q.dtype == ATTEST_FP16) return launch_few<f16>(*p, stream);
    return launch_few<bf16>(*p, stream);
}

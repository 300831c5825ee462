/* backward_sm90_n128_d256_latency.cu - attention backward of few whole short sequences of wide heads on Hopper's tensor
 * cores (wgmma).
 *
 * Computes what short/backward_sm90_n128_d256.cu does, to the bit. It takes full problems alone, with 128 rows and
 * keys, 256 features and all rows aligned, and no more of them than can have four SMs each. How long one problem takes
 * is what counts then: four CTAs each find all of its p and ds, and compute a slice of 64 features of dq, dk and dv.
 *
 * Grid    x: problems, one for each sequence and head; y: slices of results. They may come before the previous launch
 *         has ended (grid_wait)
 * Block   four warpgroups. Two have query rows 0 .. 63 and 64 .. 127: s, p, dp, ds and dq. Two have the same of keys:
 *         they load all tiles, and compute dv and dk
 * Shared  seven slots for slices of two tensors, as wgmma reads them: q and k of all slices, dout and v of three. What
 *         is used up makes room: for dout and v of the last slice, then p, then ds, in two parts of 16 bits
 * Phases  rows: s, slice by slice as they come; p, to shared memory; dp; ds, to shared memory, and dq. Keys: q and k;
 *         dout and v; dv; dk
 *
 * The second warpgroup of rows asks for the products of s after the first has asked, so that the first finds its p
 * while the second's products run. Results leave from registers. kernels/short/short.md has the figures;
 * reference/bounds.md section 11 bounds the error. */
#include "kernels/short/backward_sm90_parts.h"

namespace {

enum { THREADS = 512, PAIR = THREADS / 2, GROUP = PAIR / 2 };
enum { REGISTERS_OF_ROWS = 168, REGISTERS_OF_KEYS = 88 };
static_assert(PAIR * (REGISTERS_OF_ROWS + REGISTERS_OF_KEYS) == THREADS * 128, "what threads begin with");

/* A CTA has a slice: the registry's row of this kernel says how many CTAs a problem has. */
enum { SLICES = 4, SLICE_DIM = 64, LAST = SLICES - 1 };
using tile = operand<SLICE_DIM>;

/* These are the named barriers. */
enum {
    Q_K_LOADED = 1,                      /* one for each slice, for the first warpgroup of rows */
    DOUT_V_LOADED = Q_K_LOADED + SLICES, /* for all threads, as the next four are */
    LAST_LOADED,
    S_DONE,
    DP_ASKED, /* p is stored, too */
    DS_STORED,
    S_DONE_0, /* one for each warpgroup of rows, on which the other one waits */
    S_DONE_1,
    TURN_OF_ROWS, /* within a pair: the first warpgroup has asked for products */
    DP_DONE       /* both warpgroups of rows have dp */
};

/* Holds a slice of two tensors: q and k, or dout and v. */
struct slot {
    uint16_t rows[KEYS * SLICE_DIM], keys[KEYS * SLICE_DIM];
};

struct sliced_memory {
    slot q_k[SLICES], dout_v[SLICES - 1];
};
static_assert(sizeof(sliced_memory) <= 227 * 1024, "an SM has no more for a CTA");
static_assert(2 * sizeof(slot) == part_of(2, 0) * sizeof(uint16_t), "two slots have room for p, or for ds");

/* This says what lies where, by a CTA's own slice: q and k of slice n are in q_k[n] until s is done, dout and v of
 * slice n, here d n, until dp is. q and k of its own slice stay, and dout, which is in dout_v[0] or, for the last
 * slice, in q_k[2].
 *
 *     own     q_k[0]       [1]          [2]          [3]          dout_v[0]    [1]          [2]
 *      0      q k 0        q k 1, d 3   q k 2, p     q k 3, p     d 0          d 1, ds      d 2, ds
 *      1      q k 0, d 3   q k 1        q k 2, p     q k 3, p     d 1          d 0, ds      d 2, ds
 *      2      q k 0, p     q k 1, p     q k 2        q k 3, d 3   d 2          d 0, ds      d 1, ds
 *      3      q k 0, p     q k 1, p     q k 2, d 3   q k 3        d 0          d 1, ds      d 2, ds
 */
DEVICE slot &dout_v_of(sliced_memory &m, unsigned x)
{
    const unsigned own = block_y();
    if (x == LAST) return m.q_k[own ^ 1];
    return m.dout_v[own == LAST || x > own ? x : x == own ? 0 : x + 1];
}
DEVICE uint16_t *place_of_p(sliced_memory &m) { return m.q_k[block_y() < 2 ? 2 : 0].rows; }
DEVICE uint16_t *place_of_ds(sliced_memory &m) { return m.dout_v[1].rows; }

/* ---- query rows -------------------------------------------------------------------------------------------------- */

/* Computes d = rows keys^T for a warpgroup's rows, plus d except for the first slice. */
template <typename T>
DEVICE void multiply_slot(float (&d)[KEYS / 2], const slot &of, bool is_first)
{
    multiply_rows<T, tile, KEYS>(d, descriptor<tile>(of.rows, group_first()), descriptor<tile>(of.keys), !is_first);
}

/* Stores the weights of a warp's 16 rows in shared memory, and keeps them in registers. */
template <typename T>
DEVICE void store_weights(uint16_t *w, weight_parts<KEYS> &parts, const float (&weights)[KEYS / 2])
{
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j) {
        split<T>(parts, static_cast<int>(j), &weights[8 * j]);
        store_parts(w, 16 * j / HALF, j % (HALF / 16), parts.at[0][j], parts.at[1][j], row_first());
    }
    fence_proxy_async_shared();
}

/* Writes a CTA's slice of a result, for a warp's 16 rows. */
template <typename T>
DEVICE void write_slice(const row_tensor &t, const backward_params &p, const float (&sums)[SLICE_DIM / 2], float factor)
{
    write_sums<T, SLICE_DIM>(t, p, sums, factor, block_y() * SLICE_DIM);
}

template <typename T>
DEVICE void take_rows_of_slices(const backward_params &p, sliced_memory &m)
{
    const forward_params &f = p.forward;
    const bool is_first = group_first() == 0;
    const int row = static_cast<int>(row_first() + lane() / 4);
    const float *const lse = whole_rows<const float>(f.lse, p, block_x()) + row * f.lse.seqlen;
    float lse_2[2] = {lse[0], lse[8 * f.lse.seqlen]};
    UNROLL for (int r = 0; r < 2; ++r) lse_2[r] *= LOG2_E;

    float s[KEYS / 2], dp[KEYS / 2];
    UNROLL for (unsigned x = 0; x < SLICES; ++x) {
        if (is_first) named_barrier_sync(Q_K_LOADED + x, PAIR + GROUP);
        else if (x == 0) named_barrier_sync(TURN_OF_ROWS, PAIR); /* the first has waited for all slices then */
        multiply_slot<T>(s, m.q_k[x], x == 0);
    }
    if (is_first) named_barrier_arrive(TURN_OF_ROWS, PAIR);
    wait_for<0>(s);
    named_barrier_arrive(S_DONE, THREADS);
    named_barrier_arrive(is_first ? S_DONE_0 : S_DONE_1, PAIR);
    if (is_any_large(lse_2)) take_own_lse(s, f.softmax_scale * LOG2_E, KEYS, lse_2);
    recompute_weights(s, f.softmax_scale * LOG2_E, lse_2); /* p from here on */
    named_barrier_sync(is_first ? S_DONE_1 : S_DONE_0, PAIR); /* the place of p is free */
    weight_parts<KEYS> parts;
    store_weights<T>(place_of_p(m), parts, s);

    named_barrier_sync(DOUT_V_LOADED, THREADS);
    UNROLL for (unsigned x = 0; x < SLICES; ++x) {
        if (x == LAST) named_barrier_sync(LAST_LOADED, THREADS);
        multiply_slot<T>(dp, dout_v_of(m, x), x == 0);
    }
    named_barrier_arrive(DP_ASKED, THREADS); /* dv, which nobody waits for, comes after it */
    wait_for<0>(dp);
    row_sums sums = {};
    add_weights(sums, s, dp);
    float delta[2];
    UNROLL for (int r = 0; r < 2; ++r) delta[r] = mean_dp(sum_of_quad(sums.p[r]), sum_of_quad(sums.p_dp[r]));
    find_ds(dp, s, delta);
    named_barrier_sync(DP_DONE, PAIR); /* the place of ds is free */
    store_weights<T>(place_of_ds(m), parts, dp);
    float dq[SLICE_DIM / 2];
    multiply_parts<T, tile>(dq, parts, descriptor<tile>(m.q_k[block_y()].keys));
    named_barrier_arrive(DS_STORED, THREADS);
    wait_for<0>(dq);
    write_slice<T>(p.dq, p, dq, f.softmax_scale);
}

/* ---- keys -------------------------------------------------------------------------------------------------------- */

DEVICE void load_q_k(sliced_memory &m, const backward_params &p, unsigned x)
{
    load_whole<SLICE_DIM>(m.q_k[x].rows, p.forward.q, p, x * SLICE_DIM);
    load_whole<SLICE_DIM>(m.q_k[x].keys, p.forward.k, p, x * SLICE_DIM);
    cp_async_commit();
}

DEVICE void load_dout_v(sliced_memory &m, const backward_params &p, unsigned x)
{
    load_whole<SLICE_DIM>(dout_v_of(m, x).rows, p.dout, p, x * SLICE_DIM);
    load_whole<SLICE_DIM>(dout_v_of(m, x).keys, p.forward.v, p, x * SLICE_DIM);
    cp_async_commit();
}

/* Waits until all slices but PENDING, which were asked for later, are there; wgmma may read them once others know. */
template <int PENDING>
DEVICE void complete_slices()
{
    cp_async_wait<PENDING>();
    fence_proxy_async_shared();
}

template <typename T>
DEVICE void take_keys(const backward_params &p, sliced_memory &m)
{
    load_q_k(m, p, 0);
    UNROLL for (unsigned x = 0; x < SLICES; ++x) {
        if (x < LAST) load_q_k(m, p, x + 1);
        else load_dout_v(m, p, 0);
        complete_slices<1>();
        named_barrier_arrive(Q_K_LOADED + x, PAIR + GROUP);
    }
    UNROLL for (unsigned x = 1; x < LAST; ++x) load_dout_v(m, p, x);
    complete_slices<0>();
    named_barrier_arrive(DOUT_V_LOADED, THREADS);
    named_barrier_sync(S_DONE, THREADS);
    load_dout_v(m, p, LAST);
    complete_slices<0>();
    named_barrier_arrive(LAST_LOADED, THREADS);

    float sums[SLICE_DIM / 2]; /* dv, then dk */
    named_barrier_sync(DP_ASKED, THREADS);
    const slot &own_q_k = m.q_k[block_y()], &own_dout_v = dout_v_of(m, block_y());
    multiply_weights<T, SLICE_DIM, true>(sums, place_of_p(m), descriptor<tile>(own_dout_v.rows), group_first());
    wait_for<0>(sums);
    write_slice<T>(p.dv, p, sums, 1);
    named_barrier_sync(DS_STORED, THREADS);
    multiply_weights<T, SLICE_DIM, true>(sums, place_of_ds(m), descriptor<tile>(own_q_k.rows), group_first());
    wait_for<0>(sums);
    write_slice<T>(p.dk, p, sums, p.forward.softmax_scale);
}

template <typename T>
KERNEL(THREADS, 1) void short_backward_sm90_n128_d256_latency_kernel(const GRID_CONSTANT backward_params p)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    sliced_memory &m = *reinterpret_cast<sliced_memory *>(shared);
    if (warp() < PAIR / 32) { /* registers change hands while the previous launch ends */
        setmaxnreg_inc<REGISTERS_OF_ROWS>();
        grid_wait();
        take_rows_of_slices<T>(p, m);
    } else {
        setmaxnreg_dec<REGISTERS_OF_KEYS>();
        grid_wait();
        take_keys<T>(p, m);
    }
}

template <typename T>
int launch_few(const backward_params &p, void *stream)
{
    const launch_shape grid = {{static_cast<unsigned>(p.forward.batch * p.forward.num_heads_q), SLICES, 1},
                               {THREADS, 1, 1}, {1, 1, 1}, sizeof(sliced_memory), THREADS, 1, true};
    return LAUNCH((short_backward_sm90_n128_d256_latency_kernel<T>), grid, stream, p);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm90_n128_d256_latency)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) return 0;
    if (p->forward.q.dtype == ATTEST_FP16) return launch_few<f16>(*p, stream);
    return launch_few<bf16>(*p, stream);
}

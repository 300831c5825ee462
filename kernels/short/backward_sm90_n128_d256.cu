/* backward_sm90_n128_d256.cu - attention backward of whole short sequences of wide heads on Hopper's tensor cores
 * (wgmma).
 *
 *     ds = p (dp - delta),  delta = sum of p dp over that of p
 *     dq = scale ds k,  dk = scale ds^T q,  dv = p^T dout
 *
 * Takes what short/backward_sm90_n128.cu does, of heads of 129 .. 256 features: the numbers are computed as there.
 *
 * Grid    x: problems, one for each sequence and head. They may come before the previous launch has ended (grid_wait)
 * Block   two warpgroups: query rows 0 .. 63 and 64 .. 127, for s, p, dp, ds and dq; the same of keys, for dk and dv
 * Shared  q, k and dout, as wgmma reads them; v, half of its features at once, then results on their way out; a problem
 *         descriptor: where the problem's rows are; or barriers, of launches of many full problems, whose rows come by
 *         tensor maps
 * Phases  load; half of dp; s, while the rest of v comes; p, while dp gets the other half; dq; dk; dv. A result's
 *         last slice is written during the next one's products
 *
 * There is no room for p and ds beside the operands. ds, in two parts of 16 bits, is in registers, where dp was, and an
 * operand of dq's products from there; when dq is done, ds takes the place of k, and, when dk is, p that of ds. Until
 * then p stays in registers, in fp32. kernels/short/short.md has the figures, reference/bounds.md section 11 what
 * results may be off by. */
#include "kernels/short/backward_sm90.h"
#include "kernels/short/tma_maps.h"

namespace {

enum { THREADS = 256, KEYS = 128, DIM = 256 };
using operand = short_shape<DIM, KEYS>;

/* This many features of v are in shared memory at once. */
enum { HALF_DIM = DIM / 2 };
using half_operand = short_shape<HALF_DIM, KEYS>;

/* This many features of dq are summed at once, and half as many of dk and dv. Heads of at most DIM - SLICE features
 * lack the last slice: s and dp are products without it. */
enum { SLICE = 64 };
using slice = short_shape<SLICE, KEYS>;
using narrow_operand = short_shape<DIM - SLICE, KEYS>;

/* These loads are waited for together: dout and half of v; q and k; the rest of v. */
enum loads { DOUT_V, Q_K, REST_OF_V, LOADS };

/* A box has rows of q, k, v or dout. */
enum { MAPS = 4 };
template <bool BY_BOXES>
struct tile_maps {};
template <>
struct tile_maps<true> {
    tensor_map of[MAPS];
};
DEVICE constexpr int map_of(int tensor) { return tensor < O ? tensor : MAPS - 1; } /* q, k, v, dout */

struct shared_memory {
    uint16_t q[KEYS * DIM], k[KEYS * DIM], dout[KEYS * DIM];
    uint16_t v[KEYS * HALF_DIM]; /* later, results on their way out */
    union {
        backward_problem of_problem;
        mbarrier loaded[LOADS]; /* of boxes */
    };
};

/* Advances a descriptor to feature x. */
DEVICE uint64_t advance(uint64_t operand_descriptor, unsigned x)
{
    return wgmma_advance(operand_descriptor, offset<operand>(0, x) * 2);
}

/* Holds what all of a CTA's threads share. */
template <bool BY_BOXES>
struct kernel_state {
    const backward_params &p;
    const tile_maps<BY_BOXES> &maps;
    shared_memory &m;
    const backward_problem &c;
};

/* Loads an operand's features, from the x-th of a tensor's on. All threads copy; boxes are asked for by one. */
template <int TENSOR, loads WITH, typename shape, bool BY_BOXES>
DEVICE void load(uint16_t *to, const kernel_state<BY_BOXES> &state, int x)
{
    const backward_params &p = state.p;
    if constexpr (BY_BOXES) {
        const auto [b, head] = batch_head_of(p, block_x());
        if (thread_x() == 0)
            UNROLL for (int n = 0; n < shape::DIM; n += shape::PANEL)
                tma_load_4d(to + n * KEYS, &state.maps.of[map_of(TENSOR)], &state.m.loaded[WITH], x + n, 0,
                            static_cast<int>(head), static_cast<int>(b));
        sync_warp(FULL_WARP); /* all of it asks for wgmmas next */
        return;
    }
    const row_tensor &t = TENSOR == DOUT ? p.dout : (&p.forward.q)[TENSOR];
    const backward_problem &c = state.c;
    char *const rows = c.rows[TENSOR] + 2 * x;
    if (c.is_whole) {
        load_whole_operand<shape, THREADS>(to, t, rows, thread_x());
        return;
    }
    const int length = TENSOR == Q || TENSOR == K ? p.forward.head_dim : p.forward.head_dim_v;
    row_pointer row = {rows, t.dtype, t.by_four, length - x};
    ROLLED for (int n = 0; n < shape::DIM; n += shape::PANEL, to += KEYS * shape::PANEL) {
        load_rows<KEYS, shape::PANEL, THREADS>(to, row, t.seqlen * 2, t.by_eight != 0,
                                               TENSOR == K || TENSOR == V ? c.used_k : c.used_q, thread_x());
        row.data += 2 * shape::PANEL, row.length -= shape::PANEL;
    }
}

/* Waits until loads are complete, and wgmma may read them; PENDING groups of them were asked for later. */
template <loads WHICH, int PENDING, bool BY_BOXES>
DEVICE void wait_for_loads(const kernel_state<BY_BOXES> &state)
{
    if constexpr (BY_BOXES) {
        mbarrier_wait(&state.m.loaded[WHICH], 0);
    } else {
        cp_async_wait<PENDING>();
        fence_proxy_async_shared();
        sync_threads();
    }
}

/* Returns the descriptor of the second half of the features. */
DEVICE uint64_t descriptor_of_half(const uint16_t *tile) { return advance(descriptor<operand>(tile), HALF_DIM); }

/* ---- weights ----------------------------------------------------------------------------------------------------- */

/* Weights lie as operands of 64 keys, all query rows: high parts and low parts of keys 0 .. 63, then of 64 .. 127. */
using of_weights = short_shape<64, KEYS>;
DEVICE constexpr unsigned part_of(unsigned half, unsigned part) { return (2 * half + part) * KEYS * 64; }
static_assert(part_of(2, 0) == KEYS * DIM, "the place of k");

/* Stores the parts of a warp's 16 rows. */
DEVICE void store_row_parts(uint16_t *w, const weight_parts<KEYS> &parts)
{
    const unsigned to = offset<of_weights>(warp_first() + lane() % 16, lane() / 16 * 8);
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j)
        UNROLL for (unsigned part = 0; part < 2; ++part)
            stmatrix_x4(&w[part_of(16 * j / 64, part)] + (to ^ 16 * j % 64), parts.at[part][j]);
}

/* Computes d = w^T b for a warpgroup's keys and all query rows, and half of the features. */
template <typename T>
DEVICE void multiply_key_weights(float (&d)[HALF_DIM / 2], const uint16_t *w, uint64_t b)
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

/* Writes features x and up of dq, dk or dv, of a warp's 16 rows, through its rows of `tile`. */
template <unsigned OF, typename shape>
DEVICE void write_slice(const backward_params &p, const backward_problem &c, int x, uint16_t *tile,
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

/* Puts p in place of s, and ds in place of dp, while tiles are being loaded. */
template <typename T, bool BY_BOXES>
DEVICE void find_p_and_ds(float (&s)[KEYS / 2], float (&dp)[KEYS / 2], const kernel_state<BY_BOXES> &state,
                          uint64_t &keys)
{
    const forward_params &f = state.p.forward;
    shared_memory &m = state.m;
    const backward_problem &c = state.c;
    float lse[2], delta[2];
    load_lse(lse, f.lse, c.rows[LSE], lane_row(), c.used_q);
    const uint64_t own_dout = descriptor<operand>(m.dout, own_first());
    wait_for_loads<DOUT_V, 1>(state);
    multiply_rows<T, half_operand, KEYS>(dp, own_dout, descriptor<half_operand>(m.v));
    wait_for<0>(dp);
    sync_threads(); /* the place of v is free */
    load<V, REST_OF_V, half_operand>(m.v, state, HALF_DIM);
    if (!BY_BOXES) cp_async_commit();
    wait_for_loads<Q_K, 1>(state);
    const uint64_t own_q = descriptor<operand>(m.q, own_first());
    keys = descriptor<operand>(m.k);
    if (f.head_dim > DIM - SLICE) multiply_rows<T, operand, KEYS>(s, own_q, keys);
    else multiply_rows<T, narrow_operand, KEYS>(s, own_q, keys);
    wait_for_loads<REST_OF_V, 0>(state);
    const uint64_t half_dout = advance(own_dout, HALF_DIM), half_v = descriptor<half_operand>(m.v);
    if (f.head_dim_v > DIM - SLICE) multiply_rows<T, half_operand, KEYS>(dp, half_dout, half_v, true);
    else multiply_rows<T, slice, KEYS>(dp, half_dout, half_v, true);
    wait_for<1>(s);
    if (is_any_large(lse)) take_own_lse(s, f.softmax_scale * LOG2_E, BY_BOXES ? KEYS : c.used_k, lse);
    recompute_weights(s, f.softmax_scale * LOG2_E, lse); /* p from here on */
    const bool is_full = c.used_q == KEYS && c.used_k == KEYS;
    if (!is_full) hide(s, c, lane_row(), 0);
    wait_for<0>(dp);
    row_sums sums = {};
    add_weights(sums, s, dp);
    UNROLL for (int n = 0; n < 2; ++n) delta[n] = mean_dp(sum_of_quad(sums.p[n]), sum_of_quad(sums.p_dp[n]));
    find_ds(dp, s, delta);
    if (!is_full) hide(dp, c, lane_row(), 0);
}

/* Computes and writes dv from p, and writes the second half of dk, `pairs`, while the products run. */
template <typename T>
DEVICE void find_dv(const backward_params &p, const backward_problem &c, shared_memory &m,
                    uint32_t (&pairs)[HALF_DIM / 4])
{
    float dv[HALF_DIM / 2];
    multiply_key_weights<T>(dv, m.k, descriptor<operand>(m.dout));
    write_slice<DK, half_operand>(p, c, HALF_DIM, m.v, pairs);
    wait_for<0>(dv);
    round_sums<T, HALF_DIM>(pairs, dv, 1, 1);
    multiply_key_weights<T>(dv, m.k, descriptor_of_half(m.dout));
    write_slice<DV, half_operand>(p, c, 0, m.v, pairs);
    wait_for<0>(dv);
    round_sums<T, HALF_DIM>(pairs, dv, 1, 1);
    write_slice<DV, half_operand>(p, c, HALF_DIM, m.v, pairs);
}

template <typename T, bool BY_BOXES>
DEVICE void take_problem(const kernel_state<BY_BOXES> &state)
{
    const backward_params &p = state.p;
    shared_memory &m = state.m;
    const backward_problem &c = state.c;
    load<DOUT, DOUT_V, operand>(m.dout, state, 0);
    load<V, DOUT_V, half_operand>(m.v, state, 0);
    if (!BY_BOXES) cp_async_commit();
    load<Q, Q_K, operand>(m.q, state, 0);
    load<K, Q_K, operand>(m.k, state, 0);
    if (!BY_BOXES) cp_async_commit();
    float s[KEYS / 2], dp[KEYS / 2];
    uint64_t keys;
    find_p_and_ds<T>(s, dp, state, keys);

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
    store_row_parts(m.k, parts);
    fence_proxy_async_shared();
    sync_threads(); /* ds is complete */

    {
        float dk[HALF_DIM / 2];
        multiply_key_weights<T>(dk, m.k, descriptor<operand>(m.q));
        write_slice<DQ, slice>(p, c, DIM - SLICE, &m.v[KEYS * SLICE], sixteen);
        wait_for<0>(dk);
        round_sums<T, HALF_DIM>(pairs, dk, c.scale, c.scale);
        multiply_key_weights<T>(dk, m.k, descriptor_of_half(m.q));
        write_slice<DK, half_operand>(p, c, 0, m.v, pairs);
        wait_for<0>(dk);
        round_sums<T, HALF_DIM>(pairs, dk, c.scale, c.scale);
    }
    split_weights<T>(parts, s);
    sync_threads(); /* ds is free */
    store_row_parts(m.k, parts);
    fence_proxy_async_shared();
    sync_threads(); /* p is complete */
    find_dv<T>(p, c, m, pairs);
    if (BY_BOXES) return;
    clear_result_rows<THREADS / 32>(p, c, KEYS + static_cast<int>(warp()));
}

template <typename T, bool BY_BOXES>
KERNEL(THREADS, 1)
void short_backward_sm90_n128_d256_kernel(const GRID_CONSTANT backward_params p,
                                          const GRID_CONSTANT tile_maps<BY_BOXES> maps)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    shared_memory &m = *reinterpret_cast<shared_memory *>(shared);
    if (BY_BOXES && thread_x() == 0) {
        UNROLL for (int n = 0; n < LOADS; ++n) mbarrier_init(&m.loaded[n], 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&m.loaded[DOUT_V], sizeof m.dout + sizeof m.v);
        mbarrier_arrive_expect_tx(&m.loaded[Q_K], sizeof m.q + sizeof m.k);
        mbarrier_arrive_expect_tx(&m.loaded[REST_OF_V], sizeof m.v);
    }
    grid_wait();
    if constexpr (BY_BOXES) {
        const backward_problem c = full_problem(p, block_x());
        sync_threads(); /* the barriers are there */
        take_problem<T, true>({p, maps, m, c});
    } else {
        if (warp() == 0) find_problem<operand>(p, block_x(), m.of_problem);
        sync_threads(); /* the problem descriptor is there */
        if (m.of_problem.is_ours) take_problem<T, false>({p, maps, m, m.of_problem});
    }
}

template <typename T, bool BY_BOXES>
int launch_kind(const backward_params &p, const tile_maps<BY_BOXES> &maps, void *stream)
{
    const forward_params &f = p.forward;
    const launch_shape grid = {{static_cast<unsigned>(f.batch * f.num_heads_q), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               sizeof(shared_memory), THREADS, 1, true};
    return LAUNCH((short_backward_sm90_n128_d256_kernel<T, BY_BOXES>), grid, stream, p, maps);
}

/* Maps cost the host time, which a launch of more problems than SMs makes up for. */
template <typename T>
int launch(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    if (are_whole<operand>(p)) {
        const int64_t problems = f.batch * f.num_heads_q, sms = launch_num_sms(stream);
        const row_tensor *const tensors[MAPS] = {&f.q, &f.k, &f.v, &p.dout};
        const tile_maps<true> *const maps =
            problems > sms ? find_maps<tile_maps<true>, operand, KEYS>(f, tensors) : nullptr;
        if (maps != nullptr) return launch_kind<T, true>(p, *maps, stream);
    }
    return launch_kind<T, false>(p, {}, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm90_n128_d256)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) return 0;
    if (p->forward.q.dtype == ATTEST_FP16) return launch<f16>(*p, stream);
    return launch<bf16>(*p, stream);
}

/* backward_sm90_n64.cu - attention backward of whole short sequences of at most 64 rows, on Hopper's tensor cores.
 *
 *     ds = p (dp - delta),  delta = sum of p dp over that of p
 *     dq = scale ds k,  dk = scale ds^T q,  dv = p^T dout
 *
 * Takes what short/backward_sm90_n128.cu does, of at most 64 query rows and keys and heads of at most 256 features.
 *
 * Grid    x: problems, one for each sequence and head, or pairs of them; y: of full ones without tensor maps, if
 *         results come in two slices of features, a CTA for each, which both find p and ds. They may come before the
 *         previous launch has ended (grid_wait)
 * Block   a warpgroup: two problems of at most 32 rows and keys, or one. Its 64 query rows make s, p, dp, ds and dq;
 *         its 64 keys dk and dv
 * Shared  q, k, dout and v, as wgmma reads them; p and ds in two parts of 16 bits, both at once or one after the
 *         other; problem descriptors: where the problems' rows are, or what counts boxes of them
 * Phases  load, dout and v while p is found; p to shared memory; dp; ds, in registers for dq, to shared memory
 *         for dk; results, each written while the next is multiplied
 *
 * No phase of a CTA hides another's latency: several CTAs share an SM. Where p and ds have one place, dv is done before
 * ds is stored there. Results lie, on their way to memory, in a tile that nobody reads any more. p and ds have two
 * parts of 16 bits, as in short/backward_sm80.cu. A launch of nothing but full problems has an instance of its own,
 * without problem descriptors; where they are many, another, whose rows come by tensor maps. kernels/short/short.md has
 * the figures, reference/bounds.md section 11 what it may be off by. */
#include "kernels/short/backward_sm90.h"
#include "kernels/short/tma_maps.h"

namespace {

enum { THREADS = 128 };

template <int DIMENSIONS, int MOST>
struct layout {
    static constexpr int DIM = DIMENSIONS, KEYS = MOST;
    using operand = short_shape<DIM, KEYS>;
    using slice = short_shape<(DIM < 128 ? DIM : 128), KEYS>; /* features of a result that are summed at once */
    using weights = short_shape<KEYS, KEYS>;                  /* a part of p or ds: rows of a problem's keys */
    static constexpr int PROBLEMS = operand::PROBLEMS, SLICES = DIM / slice::DIM;
    static constexpr int NUMBERS = ROWS * DIM, PART = ROWS * KEYS;   /* of a tile, of a part */
    static constexpr bool TOGETHER = KEYS == 32 || DIM > 128;        /* p and ds have places of their own */
    static constexpr bool OVER_V = KEYS == 64 && DIM == 128;         /* p and then ds take the place of v */
    static constexpr int ALL_NUMBERS = 4 * NUMBERS + (OVER_V ? 0 : TOGETHER ? 4 : 2) * PART;
    static_assert(!OVER_V || NUMBERS == 2 * PART, "two parts take the place of v");
    /* This many CTAs fit on an SM: as many as registers or shared memory allow. */
    static constexpr int CTAS = DIM > 128 ? 1 : DIM > 64 ? (KEYS > 32 ? 3 : 2) : DIM > 32 ? 4 : 6;
    static constexpr bool HAS_ROOM = DIM > 32; /* in registers, for two products at once */
    /* Many full problems come by boxes; elsewhere copies by thread are as fast or faster. */
    static constexpr bool MAY_HAVE_MAPS = DIM > 128 || (KEYS == 64 && DIM <= 64);
};

/* There are three kinds of problems: those that problem descriptors describe; full ones, which come by the copies of
 * all threads; those of a launch of full ones only, which come by boxes that one thread asks for. */
enum kind { ANY, WHOLE, BY_BOXES };

/* A box has a problem's rows of one of these tiles, which lie in this order. */
enum tile { Q_TILE, K_TILE, DOUT_TILE, V_TILE, TILES };
template <bool ARE_THERE>
struct tile_maps {};
template <>
struct tile_maps<true> {
    tensor_map of[TILES];
};

/* These count the boxes of q and k, and those of dout and v. */
struct load_barriers {
    mbarrier q_k, dout_v;
};

/* Holds what all of a CTA's threads share. */
template <kind KIND>
struct kernel_state {
    const backward_params &p;
    const tile_maps<KIND == BY_BOXES> &maps;
    uint16_t *q;           /* where shared memory begins */
    load_barriers *loaded; /* of boxes */
};

/* Loads all of a CTA's rows, by one thread. */
template <typename shape>
DEVICE void load_boxes(const kernel_state<BY_BOXES> &state)
{
    using operand = typename shape::operand;
    constexpr unsigned PROBLEMS = shape::PROBLEMS;
    UNROLL for (int t = 0; t < TILES; ++t) {
        mbarrier *const loaded = t < DOUT_TILE ? &state.loaded->q_k : &state.loaded->dout_v;
        if (t % 2 == 0) mbarrier_arrive_expect_tx(loaded, 2 * shape::NUMBERS * 2); /* two tiles */
        UNROLL for (unsigned n = 0; n < PROBLEMS; ++n) {
            const auto [b, head] = batch_head_of(state.p, block_x() * PROBLEMS + n);
            UNROLL for (int x = 0; x < shape::DIM; x += operand::PANEL)
                tma_load_4d(state.q + t * shape::NUMBERS + offset<operand>(shape::KEYS * n, static_cast<unsigned>(x)),
                            &state.maps.of[t], loaded, x, 0, static_cast<int>(head), static_cast<int>(b));
        }
    }
}

/* Loads an operand's rows in use, by all threads. */
template <typename shape, bool WHOLE>
DEVICE void load(uint16_t *to, const row_tensor &t, char *rows, int length, int count)
{
    if constexpr (WHOLE) load_whole_operand<shape, THREADS>(to, t, rows, thread_x());
    else load_operand<shape, THREADS>(to, t, rows, length, count, thread_x());
}

/* Returns the first of a lane's two rows of its problem. */
template <typename shape>
DEVICE int own_row()
{
    return static_cast<int>(warp_first() % shape::KEYS + lane() / 4);
}

/* Takes, from what a lane has of a product of all rows and both problems, its own problem's part. */
template <typename shape>
DEVICE void take_own(float (&own)[shape::KEYS / 2], const float (&all)[ROWS / 2])
{
    UNROLL for (int n = 0; n < shape::KEYS / 2; ++n)
        if constexpr (shape::PROBLEMS == 1) own[n] = all[n];
        else own[n] = warp() < THREADS / 64 ? all[n] : all[n + shape::KEYS / 2];
}

/* Splits the weights of a warp's 16 rows, stores them in shared memory, and keeps them in registers. */
template <typename T, typename shape>
DEVICE void split_and_store(uint16_t *w, weight_parts<shape::KEYS> &parts, const float (&weights)[shape::KEYS / 2])
{
    const unsigned to = offset<typename shape::weights>(warp_first() + lane() % 16, lane() / 16 * 8);
    UNROLL for (int j = 0; j < shape::KEYS / 16; ++j) {
        split<T>(parts, j, &weights[8 * j]);
        UNROLL for (int part = 0; part < 2; ++part)
            stmatrix_x4(&w[part * shape::PART] + (to ^ 16 * static_cast<unsigned>(j)), parts.at[part][j]);
    }
}

/* Computes d = w^T b for all keys, with w's parts in shared memory and the rows of b that problem `problem` has: sums
 * of its keys. */
template <typename T, typename shape>
DEVICE void multiply_transposed(float (&d)[shape::slice::DIM / 2], const uint16_t *w, const uint16_t *b,
                                unsigned problem)
{
    using slice = typename shape::slice;
    constexpr int DIM = slice::DIM, KEYS = shape::KEYS;
    /* Each 32 keys' weights are those of their own problem's rows: they are as far apart as its rows are. */
    const uint64_t a = wgmma_descriptor(w, KEYS * KEYS * 2, 8 * KEYS * 2, KEYS * 2);
    const uint64_t of_problem = descriptor<slice>(b, KEYS * problem);
    wgmma_fence_operand(d);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j)
        UNROLL for (unsigned part = 0; part < 2; ++part) {
            const uint64_t a_j = wgmma_advance(a, (part * shape::PART + 16 * j * KEYS) * 2);
            const uint64_t b_j = wgmma_advance(of_problem, offset<slice>(16 * j, 0) * 2);
            const bool is_first = j == 0 && part == 0;
            if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<DIM, false, false, true, true>(d, a_j, b_j, !is_first);
            else wgmma_m64nNk16_bf16<DIM, false, false, true, true>(d, a_j, b_j, !is_first);
        }
    wgmma_commit();
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Holds the sums of a slice for rows of both problems, each with what the other one has as well. */
template <typename shape>
struct slice_sums {
    float at[shape::PROBLEMS][shape::slice::DIM / 2];
};

/* Takes the sums of a lane's problem when they are there, times a factor, rounded. */
template <typename T, typename shape>
DEVICE void take_sums(uint32_t (&pairs)[shape::slice::DIM / 4], slice_sums<shape> &sums, float factor)
{
    UNROLL for (int n = 0; n < shape::PROBLEMS; ++n) wait_for<0>(sums.at[n]);
    float(&own)[shape::slice::DIM / 2] = sums.at[0];
    if constexpr (shape::PROBLEMS == 2)
        UNROLL for (int n = 0; n < shape::slice::DIM / 2; ++n)
            own[n] = warp() < THREADS / 64 ? own[n] : sums.at[1][n];
    round_sums<T, shape::slice::DIM>(pairs, own, factor, factor);
}

/* Writes a warp's 16 rows of a slice, from feature x on, through `tile`; those from `used` on are zero, or all of them
 * if nothing is in use on the other side. */
template <typename shape, bool WHOLE>
DEVICE void write_slice(const row_tensor &t, char *rows, int length, int x, uint16_t *tile,
                        const uint32_t (&pairs)[shape::slice::DIM / 4], int seqlen, int used, int used_there)
{
    using slice = typename shape::slice;
    const unsigned tile_row = warp_first();
    const int warp_row = static_cast<int>(tile_row) % shape::KEYS;
    const int in_memory = seqlen - warp_row, seen = (used_there > 0 ? used : 0) - warp_row;
    const int64_t row = warp_row + static_cast<int>(lane() / CHUNKS<slice::DIM>);
    stage_rows<slice>(tile, tile_row, pairs);
    write_rows<slice>(t, tile, tile_row, {rows + row * t.seqlen * 2 + 2 * x, t.dtype, t.by_four, length - x}, in_memory,
                      seen < in_memory ? seen : 16, WHOLE); /* rows that are not written need no zeros */
    sync_warp(FULL_WARP); /* its rows of the tile are read */
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Waits until q and k are complete, or the others, and wgmma may read them. */
template <tile FIRST, kind KIND>
DEVICE void wait_for_loads(const kernel_state<KIND> &state)
{
    if constexpr (KIND == BY_BOXES) {
        mbarrier_wait(FIRST == Q_TILE ? &state.loaded->q_k : &state.loaded->dout_v, 0);
    } else {
        cp_async_wait<FIRST == Q_TILE ? 1 : 0>();
        fence_proxy_async_shared();
        sync_threads();
    }
}

enum { OF_DQ, OF_DK, OF_DV };

/* Writes features x and up of a result. */
template <typename shape, bool WHOLE>
DEVICE void write_result(const backward_params &p, const backward_problem &c, int of, int x, uint16_t *tile,
                         const uint32_t (&pairs)[shape::slice::DIM / 4])
{
    const forward_params &f = p.forward;
    if (of == OF_DQ)
        write_slice<shape, WHOLE>(p.dq, c.rows[DQ], f.head_dim, x, tile, pairs, c.seqlen_q, c.used_q, c.used_k);
    else if (of == OF_DK)
        write_slice<shape, WHOLE>(p.dk, c.rows[DK], f.head_dim, x, tile, pairs, c.seqlen_k, c.used_k, c.used_q);
    else
        write_slice<shape, WHOLE>(p.dv, c.rows[DV], f.head_dim_v, x, tile, pairs, c.seqlen_k, c.used_k, c.used_q);
}

/* Asks for all tiles; copies of dout and v are a group that is still open. */
template <typename shape, kind KIND>
DEVICE void load_problem(const kernel_state<KIND> &state, const backward_problem &c)
{
    if constexpr (KIND == BY_BOXES) {
        if (thread_x() == 0) load_boxes<shape>(state);
        sync_threads(); /* the barriers are there */
    } else {
        using operand = typename shape::operand;
        constexpr bool IS_WHOLE = KIND != ANY;
        const forward_params &f = state.p.forward;
        uint16_t *const k = state.q + shape::NUMBERS, *const dout = k + shape::NUMBERS;
        char *const rows_k = c.rows[K], *const rows_dout = c.rows[DOUT]; /* read here, as no read may pass a copy */
        char *const rows_v = c.rows[V];
        load<operand, IS_WHOLE>(state.q, f.q, c.rows[Q], f.head_dim, c.used_q);
        load<operand, IS_WHOLE>(k, f.k, rows_k, f.head_dim, c.used_k);
        cp_async_commit();
        load<operand, IS_WHOLE>(dout, state.p.dout, rows_dout, f.head_dim_v, c.used_q);
        load<operand, IS_WHOLE>(dout + shape::NUMBERS, f.v, rows_v, f.head_dim_v, c.used_k);
    }
}

/* Writes results slice by slice, each while the next one's products run; those of the first are in `sums`. parts has
 * ds, w_p and w_ds have p and ds in shared memory. */
template <typename T, typename shape, int SLICES, kind KIND>
DEVICE void find_results(const kernel_state<KIND> &state, const backward_problem &c, slice_sums<shape> &sums,
                         weight_parts<shape::KEYS> &parts, const uint16_t *w_p, const uint16_t *w_ds, uint16_t *staged,
                         int first_x, uint32_t (&pairs)[shape::slice::DIM / 4])
{
    using slice = typename shape::slice;
    uint16_t *const q = state.q, *const k = q + shape::NUMBERS, *const dout = k + shape::NUMBERS;
    constexpr int STEPS = (shape::TOGETHER ? 3 : 2) * SLICES;
    UNROLL for (int step = 0; step < STEPS; ++step) {
        const int x = first_x + step % SLICES * slice::DIM, of = step / SLICES;
        take_sums<T, shape>(pairs, sums, of == OF_DV ? 1 : c.scale);
        if (step + 1 < STEPS) {
            const int next_x = first_x + (step + 1) % SLICES * slice::DIM, next = (step + 1) / SLICES;
            UNROLL for (unsigned n = 0; n < shape::PROBLEMS; ++n)
                if (next == OF_DQ)
                    multiply_parts<T, slice>(sums.at[n], parts, descriptor<slice>(k + next_x * ROWS, shape::KEYS * n));
                else
                    multiply_transposed<T, shape>(sums.at[n], next == OF_DK ? w_ds : w_p,
                                                  (next == OF_DK ? q : dout) + next_x * ROWS, n);
        }
        write_result<shape, KIND != ANY>(state.p, c, of, x, staged, pairs);
    }
}

/* Makes p of s, for a lane's two rows. */
template <typename shape, bool IS_WHOLE>
DEVICE void find_weights(float (&s)[shape::KEYS / 2], const forward_params &f, const backward_problem &c, bool is_full,
                         float (&lse)[2])
{
    if (is_any_large(lse)) take_own_lse(s, f.softmax_scale * LOG2_E, IS_WHOLE ? shape::KEYS : c.used_k, lse);
    recompute_weights(s, f.softmax_scale * LOG2_E, lse);
    if (!is_full) hide(s, c, own_row<shape>(), 0);
}

/* Makes ds of dp, for the same rows. */
template <typename shape>
DEVICE void find_own_ds(float (&dp)[shape::KEYS / 2], const float (&weights)[shape::KEYS / 2],
                        const backward_problem &c, bool is_full)
{
    row_sums row_sums = {};
    float delta[2];
    add_weights(row_sums, weights, dp);
    UNROLL for (int n = 0; n < 2; ++n) delta[n] = mean_dp(sum_of_quad(row_sums.p[n]), sum_of_quad(row_sums.p_dp[n]));
    find_ds(dp, weights, delta);
    if (!is_full) hide(dp, c, own_row<shape>(), 0);
}

/* Computes the warp's problem, with results of SLICES slices: all, or the CTA's own. */
template <typename T, typename shape, int SLICES, kind KIND>
DEVICE void take_problems(const kernel_state<KIND> &state, const backward_problem &c)
{
    constexpr bool IS_WHOLE = KIND != ANY;
    const int first_x = SLICES < shape::SLICES ? static_cast<int>(block_y()) * shape::slice::DIM : 0;
    const backward_params &p = state.p;
    uint16_t *const q = state.q;
    constexpr int KEYS = shape::KEYS, PROBLEMS = shape::PROBLEMS;
    using operand = typename shape::operand;
    using slice = typename shape::slice;
    const forward_params &f = p.forward;
    uint16_t *const k = q + shape::NUMBERS, *const dout = k + shape::NUMBERS, *const v = dout + shape::NUMBERS;
    uint16_t *const w_p = shape::OVER_V ? v : v + shape::NUMBERS;
    uint16_t *const w_ds = shape::TOGETHER ? w_p + 2 * shape::PART : w_p;
    uint16_t *const staged = shape::TOGETHER ? v : dout;
    load_problem<shape>(state, c);
    /* This is tested even where it is known: without a branch here some 30 bytes would spill. */
    const bool is_full = c.used_q == KEYS && c.used_k == KEYS;
    float lse[2];
    load_lse(lse, f.lse, c.rows[LSE], own_row<shape>(), IS_WHOLE ? KEYS : c.used_q);
    if (KIND != BY_BOXES) cp_async_commit();
    if (shape::HAS_ROOM || KIND == BY_BOXES) wait_for_loads<Q_TILE>(state);
    if (!shape::HAS_ROOM) wait_for_loads<DOUT_TILE>(state); /* one barrier for all copies */

    float s_of_all[ROWS / 2], dp_of_all[ROWS / 2], weights[KEYS / 2], dp[KEYS / 2];
    multiply_rows<T, operand, ROWS>(s_of_all, descriptor<operand>(q), descriptor<operand>(k));
    if (shape::HAS_ROOM) {
        wait_for_loads<DOUT_TILE>(state);
        multiply_rows<T, operand, ROWS>(dp_of_all, descriptor<operand>(dout), descriptor<operand>(v));
    }
    wait_for<shape::HAS_ROOM ? 1 : 0>(s_of_all);
    take_own<shape>(weights, s_of_all);
    find_weights<shape, IS_WHOLE>(weights, f, c, is_full, lse);
    if (shape::OVER_V) {
        wait_for<0>(dp_of_all);
        sync_threads(); /* v is free */
    }
    weight_parts<KEYS> parts;
    split_and_store<T, shape>(w_p, parts, weights);
    if (!shape::HAS_ROOM)
        multiply_rows<T, operand, ROWS>(dp_of_all, descriptor<operand>(dout), descriptor<operand>(v));
    slice_sums<shape> sums;
    uint32_t pairs[slice::DIM / 4];
    if (!shape::TOGETHER) {
        fence_proxy_async_shared();
        if (shape::HAS_ROOM) {
            sync_threads(); /* p is complete */
            multiply_transposed<T, shape>(sums.at[0], w_p, dout, 0);
        }
    }
    wait_for<!shape::TOGETHER && shape::HAS_ROOM ? 1 : 0>(dp_of_all);
    take_own<shape>(dp, dp_of_all);
    find_own_ds<shape>(dp, weights, c, is_full);
    if (!shape::TOGETHER) {
        if (!shape::HAS_ROOM) {
            sync_threads(); /* p is complete; so late, as warps wait for each other */
            multiply_transposed<T, shape>(sums.at[0], w_p, dout, 0);
        }
        take_sums<T, shape>(pairs, sums, 1);
        sync_threads(); /* p and dout are free */
    }
    split_and_store<T, shape>(w_ds, parts, dp);
    fence_proxy_async_shared();
    UNROLL for (unsigned n = 0; n < PROBLEMS; ++n)
        multiply_parts<T, slice>(sums.at[n], parts, descriptor<slice>(k + first_x * ROWS, KEYS * n));
    if (!shape::TOGETHER)
        write_slice<shape, IS_WHOLE>(p.dv, c.rows[DV], f.head_dim_v, 0, staged, pairs, c.seqlen_k, c.used_k, c.used_q);
    sync_threads(); /* p and ds are complete */

    find_results<T, shape, SLICES>(state, c, sums, parts, w_p, w_ds, staged, first_x, pairs);
    if (!IS_WHOLE) clear_result_rows<KEYS / 16>(p, c, KEYS + static_cast<int>(warp_first() % KEYS / 16));
}

/* In a launch of full problems only, each thread finds by itself where their rows are: until it knows, a CTA has
 * nothing to do but wait. */
template <typename T, typename shape, bool ARE_WHOLE, bool HAS_MAPS>
KERNEL(THREADS, shape::CTAS)
void short_backward_sm90_n64_kernel(const GRID_CONSTANT backward_params p, const GRID_CONSTANT tile_maps<HAS_MAPS> maps)
{
    constexpr kind KIND = HAS_MAPS ? BY_BOXES : ARE_WHOLE ? WHOLE : ANY;
    constexpr unsigned PROBLEMS = shape::PROBLEMS, WARPS = shape::KEYS / 16; /* of a problem */
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    uint16_t *const q = reinterpret_cast<uint16_t *>(shared);
    backward_problem *const problems = reinterpret_cast<backward_problem *>(q + shape::ALL_NUMBERS);
    load_barriers *const loaded = reinterpret_cast<load_barriers *>(problems); /* in their place */
    const kernel_state<KIND> state = {p, maps, q, loaded};
    if (KIND == BY_BOXES && thread_x() == 0) {
        mbarrier_init(&loaded->q_k, 1);
        mbarrier_init(&loaded->dout_v, 1);
        fence_mbarrier_init();
    }
    grid_wait();
    const unsigned place = PROBLEMS == 1 ? 0 : warp() / WARPS, problem = block_x() * PROBLEMS + place;
    if constexpr (KIND != ANY) {
        take_problems<T, shape, KIND == WHOLE ? 1 : shape::SLICES>(state, full_problem(p, problem));
    } else {
        if (warp() % WARPS == 0) find_problem<typename shape::operand>(p, problem, problems[place]);
        sync_threads(); /* the problem descriptors are there */
        const backward_problem &first = problems[0], &last = problems[PROBLEMS - 1];
        const kernel_state<WHOLE> whole = {p, maps, q, loaded};
        if (!first.is_ours && !last.is_ours) return;
        if (first.is_whole && last.is_whole) take_problems<T, shape, shape::SLICES>(whole, problems[place]);
        else take_problems<T, shape, shape::SLICES>(state, problems[place]);
    }
}

template <typename T, typename shape, bool ARE_WHOLE, bool HAS_MAPS>
int launch_kind(const backward_params &p, const tile_maps<HAS_MAPS> &maps, void *stream)
{
    const int64_t problems = p.forward.batch * p.forward.num_heads_q;
    const unsigned of_each = ARE_WHOLE && !HAS_MAPS ? shape::SLICES : 1;
    const launch_shape grid = {{static_cast<unsigned>((problems + shape::PROBLEMS - 1) / shape::PROBLEMS), of_each, 1},
                               {THREADS, 1, 1}, {1, 1, 1},
                               shape::ALL_NUMBERS * sizeof(uint16_t) + shape::PROBLEMS * sizeof(backward_problem),
                               THREADS, shape::CTAS, true};
    return LAUNCH((short_backward_sm90_n64_kernel<T, shape, ARE_WHOLE, HAS_MAPS>), grid, stream, p, maps);
}

/* Maps cost the host time, which a launch of more CTAs than SMs makes up for. */
template <typename T, int DIM, int KEYS>
int launch(const backward_params &p, void *stream)
{
    using shape = layout<DIM, KEYS>;
    const forward_params &f = p.forward;
    const int64_t problems = f.batch * f.num_heads_q;
    if (!are_whole<shape>(p) || problems % shape::PROBLEMS != 0) /* pairs, where they come in pairs, are full */
        return launch_kind<T, shape, false, false>(p, {}, stream);
    if constexpr (shape::MAY_HAVE_MAPS) {
        const row_tensor *const tensors[TILES] = {&f.q, &f.k, &p.dout, &f.v};
        const int64_t ctas = problems / shape::PROBLEMS * shape::SLICES;
        const tile_maps<true> *const maps =
            ctas > launch_num_sms(stream) ? find_maps<tile_maps<true>, typename shape::operand, KEYS>(f, tensors)
                                          : nullptr;
        if (maps != nullptr) return launch_kind<T, shape, true, true>(p, *maps, stream);
    }
    return launch_kind<T, shape, true, false>(p, {}, stream);
}

template <typename T, int DIM>
int launch_length(const backward_params &p, void *stream)
{
    if (longest_of(p.forward) <= 32) return launch<T, DIM, 32>(p, stream);
    return launch<T, DIM, 64>(p, stream);
}

template <typename T>
int launch_width(const backward_params &p, void *stream)
{
    const int widest = p.forward.head_dim > p.forward.head_dim_v ? p.forward.head_dim : p.forward.head_dim_v;
    if (widest <= 32) return launch_length<T, 32>(p, stream);
    if (widest <= 64) return launch_length<T, 64>(p, stream);
    if (widest <= 128) return launch_length<T, 128>(p, stream);
    return launch_length<T, 256>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm90_n64)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) return 0;
    if (p->forward.q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

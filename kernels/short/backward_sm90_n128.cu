/* backward_sm90_n128.cu - attention backward of whole short sequences on Hopper's tensor cores (wgmma).
 *
 *     ds = p (dp - delta),  delta = sum of p dp over that of p
 *     dq = scale ds k,  dk = scale ds^T q,  dv = p^T dout
 *
 * Takes what short/backward_sm80.cu does at 65 .. 128 rows or keys, of heads of at most 128 features, one query head to
 * a KV head, and scores that are no more than softmax_scale q . k: every row sees every key. A problem that gives delta
 * is another kernel's, and so are heads of at most 32 features in bf16: short/backward_sm90_n128_scaled.cu's.
 *
 * Grid    x: persistent CTAs; each takes one problem, a sequence and head, after the other (own_share). They may come
 *         before the previous launch has ended (grid_wait)
 * Block   two warpgroups: query rows 0 .. 63 and 64 .. 127, for s, p, dp, ds and dq; the same of keys, for dk and dv
 * Shared  q, k, dout and v, as wgmma reads them; ds, then p, of all rows and keys in two parts of 16 bits: 64 KB, of
 *         which the last 16 take the place of v where two CTAs would not fit; problem descriptors: where problems' rows
 *         are; barriers
 * Phases  of a problem: s and p; dp; ds to shared memory; dq and dk; p to shared memory; dv
 *
 * p stays in registers, in fp32, until ds has been read. Where two CTAs share an SM, there is no room beside it for dp
 * of more than half of the keys, and dp of the other half is computed twice: for delta, then for ds. Where one has it
 * alone, dq is made of ds in registers, and all of the next problem is loaded early.
 *
 * Results lie, on their way to memory, in tiles that nobody reads any more: dq in that of k, dk in q's, dv in p's. Then
 * the next problem's rows are loaded there: a warp loads just the rows that it has staged, and waits for no other.
 * Launches of many full problems and nothing else move all rows but lse by tensor maps, a warp's 16 rows at once.
 * p and ds have two parts of 16 bits, as in short/backward_sm80.cu. kernels/short/short.md has the figures,
 * reference/bounds.md section 11 what it may be off by. */
#include "kernels/short/backward_sm90_parts.h"
#include "kernels/short/tma_maps.h"

namespace {

constexpr int THREADS = 256;

/* Problem n of a CTA has problem descriptor n % SLOTS. A warp finds AT_ONCE of them together, while dv of the first of
 * the AT_ONCE problems before them is computed: nobody needs the descriptors before that one any more. */
enum { TENSORS = DV + 1, AT_ONCE = 32 / TENSORS, SLOTS = 2 * AT_ONCE };

template <int DIM>
struct layout {
    static constexpr int TILE = KEYS * DIM, PART = KEYS * HALF; /* numbers */
    static constexpr int CTAS = DIM <= 64 ? 2 : 1; /* on an SM, as many as shared memory allows */
    static constexpr int64_t ROUNDS = DIM <= 64 ? ALL_ROUNDS : 8; /* for many full problems, where there are maps */
    static constexpr bool HAS_ROOM = CTAS == 1;    /* for a fifth tile; in registers */
    static constexpr bool SHARES_V = DIM == 64;    /* v's place is also that of a part of ds, and then of p */
    static constexpr bool STAGES_IN_DS = DIM == HALF; /* a warp stages dv where its own ds comes to lie */
    static constexpr int TILES = HAS_ROOM ? 5 : SHARES_V ? 3 : 4;
    static_assert(!SHARES_V || TILE == PART, "v has the place of a part");
};

/* There are three kinds of problems: those that problem descriptors describe; such a one that is full; and those of a
 * launch of full ones only, which are known by their number, where the others are known by that of their descriptor. */
enum kind { ANY, WHOLE, ALL_WHOLE };

template <int DIM>
struct shared_memory {
    uint16_t tiles[layout<DIM>::TILES][layout<DIM>::TILE];
    uint16_t w[4 * layout<DIM>::PART];
    backward_problem problems[SLOTS];
    share left; /* problems that are to be asked about */
    mbarrier loaded[2]; /* for launches of full ones: q and k, dout and v; all four in the first where there is room */
};
static_assert(sizeof(shared_memory<32>) <= 113 * 1024 && sizeof(shared_memory<64>) <= 113 * 1024 &&
                  sizeof(shared_memory<128>) <= 227 * 1024,
              "of an SM's 228 KB, 1 KB for each CTA is the chip's");

/* Says what a tile is used for. Where there is a spare one, the next problem's q is loaded into it, and then each
 * tensor into the tile that this problem needs no more: the next v into this q, k into v, dout into k. So with every
 * problem a tile goes on to the next use, and `turn` goes from 4 down to 0. */
enum use { SPARE, OF_Q, OF_V, OF_K, OF_DOUT, USES };

template <int DIM>
DEVICE uint16_t *tile_of(shared_memory<DIM> &m, unsigned use, unsigned turn)
{
    if constexpr (layout<DIM>::HAS_ROOM) return m.tiles[use + turn < USES ? use + turn : use + turn - USES];
    if (layout<DIM>::SHARES_V && use == OF_V) return &m.w[3 * layout<DIM>::PART];
    return m.tiles[use == OF_DOUT && layout<DIM>::SHARES_V ? 1 : use - 1];
}

/* A box has 16 rows, those of a warp, of q, k, v, dout, dq, dk or dv. */
enum { BOX_ROWS = 16, MAPS = 7 };
template <bool ARE_WHOLE>
struct tile_maps {};
template <>
struct tile_maps<true> {
    tensor_map of[MAPS];
};
DEVICE constexpr int map_of(int tensor) { return tensor < O ? tensor : tensor - DOUT + 3; }

/* Holds what all of a kernel's functions share. */
template <int DIM, kind KIND>
struct kernel_state {
    const backward_params &p;
    const tile_maps<KIND == ALL_WHOLE> &maps;
    shared_memory<DIM> &m;
};

/* Finds the problem descriptors of this launch's first problems among those left to the CTA, and then leaves it only
 * those after them. One warp does it: it asks 32 problems whose they are, and has a lane for each tensor of those that
 * it takes. */
template <int DIM>
DEVICE void find_problems(const backward_params &p, share &left, backward_problem *problems)
{
    const share all = left;
    const unsigned own = lane() / TENSORS; /* which of those found is this lane's */
    unsigned next = all.first, found = 0, problem = 0;
    ROLLED for (unsigned first = next; found < AT_ONCE && first < all.end; first += 32 * all.step) {
        const unsigned asked = first + lane() * all.step;
        const bool is_one = asked < all.end &&
                            is_ours(p.forward, find_sequence(p.forward, quotient(asked, p.forward.by_heads_q)));
        uint32_t ours = ballot(FULL_WARP, is_one); /* bit n: problem first + n step is */
        next = first;
        ROLLED for (; found < AT_ONCE && ours != 0; ours >>= 1, next += all.step) {
            if ((ours & 1) == 0) continue;
            if (found == own) problem = next;
            ++found;
        }
    }
    if (own < found) find_problem<operand<DIM>>(p, problem, problems[own], lane() % TENSORS);
    else if (own < AT_ONCE && lane() % TENSORS == 0) problems[own].is_ours = false;
    sync_warp(FULL_WARP); /* `left` has been read */
    if (lane() == 0) left.first = next;
}

/* Loads a warp's rows of a full problem by tensor maps. */
template <int TENSOR, int DIM>
DEVICE void load_box(uint16_t *to, const kernel_state<DIM, ALL_WHOLE> &k, unsigned problem)
{
    constexpr bool IS_SECOND = !layout<DIM>::HAS_ROOM && (TENSOR == DOUT || TENSOR == V);
    const auto [b, head] = batch_head_of(k.p, problem);
    const unsigned warp_row = warp_first();
    if (lane() == 0) {
        mbarrier *const loaded = &k.m.loaded[IS_SECOND];
        mbarrier_arrive_expect_tx(loaded, BOX_ROWS * DIM * 2);
        UNROLL for (int x = 0; x < DIM; x += operand<DIM>::PANEL)
            tma_load_4d(to + offset<operand<DIM>>(warp_row, static_cast<unsigned>(x)), &k.maps.of[map_of(TENSOR)],
                        loaded, x, static_cast<int>(warp_row), static_cast<int>(head), static_cast<int>(b));
    }
    sync_warp(FULL_WARP);
}

/* Returns whether there is a problem n; problems without a problem descriptor end before `end`. */
template <int DIM, kind KIND>
DEVICE bool is_there(const kernel_state<DIM, KIND> &k, unsigned n, unsigned end)
{
    return KIND == ALL_WHOLE ? n < end : k.m.problems[n].is_ours;
}

template <kind KIND>
DEVICE unsigned next_of(unsigned n, const share &all)
{
    return KIND == ALL_WHOLE ? n + all.step : (n + 1) % SLOTS;
}

/* Loads a warp's 16 rows of problem n. */
template <int TENSOR, int DIM, kind KIND>
DEVICE void load_tile(uint16_t *to, const kernel_state<DIM, KIND> &k, unsigned n)
{
    if constexpr (KIND == ALL_WHOLE) {
        load_box<TENSOR>(to, k, n);
    } else {
        const backward_problem &c = k.m.problems[n];
        const row_tensor &t = TENSOR == DOUT ? k.p.dout : (&k.p.forward.q)[TENSOR];
        const int length = TENSOR == Q || TENSOR == K ? k.p.forward.head_dim : k.p.forward.head_dim_v;
        load<DIM>(to, t, c.rows[TENSOR], length, TENSOR == K || TENSOR == V ? c.used_k : c.used_q, c.is_whole,
                  warp_first());
    }
}

/* Makes the loads since the last call a group; boxes are counted by their barriers. */
template <kind KIND>
DEVICE void commit_loads()
{
    if (KIND != ALL_WHOLE) cp_async_commit();
}

/* Asks for lse of a lane's rows, 0 where they are not in use. It is not converted yet, so that nothing waits for it. */
template <int DIM, kind KIND>
DEVICE void ask_lse(float (&lse)[2], const kernel_state<DIM, KIND> &k, unsigned n)
{
    const row_tensor &t = k.p.forward.lse;
    const int row = static_cast<int>(warp_first() + lane() / 4);
    if (KIND == ALL_WHOLE) {
        const float *const from = whole_rows<const float>(t, k.p, n) + row * t.seqlen;
        UNROLL for (int half = 0; half < 2; ++half) lse[half] = from[8 * half * t.seqlen];
        return;
    }
    const backward_problem &c = k.m.problems[n];
    UNROLL for (int half = 0; half < 2; ++half) {
        const float *const from = reinterpret_cast<const float *>(c.rows[LSE] + (row + 8 * half) * t.seqlen * 4);
        lse[half] = row + 8 * half < c.used_q ? *from : 0;
    }
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Stores a warp's rows of a full problem by tensor maps. Lane 0 waits until what was staged has been read, except for
 * dv, which is last. */
template <int TENSOR, int DIM>
DEVICE void store_box(const kernel_state<DIM, ALL_WHOLE> &k, unsigned problem, const uint16_t *tile)
{
    const auto [b, head] = batch_head_of(k.p, problem);
    const unsigned warp_row = warp_first();
    fence_proxy_async_shared();
    sync_warp(FULL_WARP);
    if (lane() != 0) return;
    UNROLL for (int x = 0; x < DIM; x += operand<DIM>::PANEL)
        tma_store_4d(&k.maps.of[map_of(TENSOR)], tile + offset<operand<DIM>>(warp_row, static_cast<unsigned>(x)), x,
                     static_cast<int>(warp_row), static_cast<int>(head), static_cast<int>(b));
    bulk_commit();
    if (TENSOR != DV) bulk_wait_read<0>();
}

/* Writes a warp's 16 rows, staged in `tile`; those past the last in use are zero, or all of them if nothing is on the
 * other side. */
template <int TENSOR, int DIM, kind KIND>
DEVICE void write_result(const kernel_state<DIM, KIND> &k, unsigned n, uint16_t *tile)
{
    if constexpr (KIND == ALL_WHOLE) {
        store_box<TENSOR>(k, n, tile);
    } else {
        const row_tensor &t = (&k.p.dout)[TENSOR - DOUT];
        const backward_problem &c = k.m.problems[n];
        const int length = TENSOR == DV ? k.p.forward.head_dim_v : k.p.forward.head_dim;
        const int seqlen = TENSOR == DQ ? c.seqlen_q : c.seqlen_k, used = TENSOR == DQ ? c.used_q : c.used_k;
        const int used_there = TENSOR == DQ ? c.used_k : c.used_q;
        const int warp_row = static_cast<int>(warp_first());
        const int in_memory = seqlen - warp_row, seen = (used_there > 0 ? used : 0) - warp_row;
        const int64_t row = warp_row + static_cast<int>(lane() / CHUNKS<DIM>);
        write_rows<operand<DIM>>(t, tile, static_cast<unsigned>(warp_row),
                                 {c.rows[TENSOR] + row * t.seqlen * 2, t.dtype, t.by_four, length}, in_memory,
                                 seen < in_memory ? seen : 16, KIND == WHOLE); /* rows that are not written need no 0 */
    }
    sync_warp(FULL_WARP); /* what was staged is read, except for boxes of dv */
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Names problem n of the CTA, where its tiles are (`turn`), and the problem after it, if is_there(state, next, end). */
struct step {
    unsigned n, turn, parity, next, end;
};

template <int DIM, kind KIND>
DEVICE const backward_problem &problem_of(const kernel_state<DIM, KIND> &state, unsigned n)
{
    return state.m.problems[KIND == ALL_WHOLE ? 0 : n]; /* boxes do not read it */
}

/* Returns softmax_scale, which is loaded when it is needed. */
template <int DIM, kind KIND>
DEVICE const float &scale_of(const kernel_state<DIM, KIND> &state, unsigned n)
{
    return KIND == ALL_WHOLE ? state.p.forward.softmax_scale : problem_of(state, n).scale;
}

/* Waits until q and k are complete and wgmma may read them, and dout and v, too, where there is room. */
template <int DIM, kind KIND>
DEVICE void wait_for_tiles(shared_memory<DIM> &m, unsigned parity)
{
    if (KIND == ALL_WHOLE) {
        if (!layout<DIM>::STAGES_IN_DS && lane() == 0) bulk_wait_read<0>();
        mbarrier_wait(&m.loaded[0], parity);
        if (!layout<DIM>::STAGES_IN_DS) sync_threads(); /* p, where dv was staged, and the spare tile are free */
    } else {
        cp_async_wait<layout<DIM>::HAS_ROOM ? 0 : 1>();
        fence_proxy_async_shared();
        sync_threads(); /* q and k are complete; where there is room, dout and v, too */
    }
}

/* Says whether all rows of the warp and all keys of a half are in use, so that hide() has nothing to do there. */
typedef bool full_halves[2];

template <kind KIND>
DEVICE void find_full_halves(full_halves &is_full, const backward_problem &c)
{
    constexpr bool IS_WHOLE = KIND != ANY;
    const bool has_rows = IS_WHOLE || static_cast<int>(warp_first()) + 16 <= c.used_q;
    is_full[0] = IS_WHOLE || (has_rows && c.used_k >= HALF);
    is_full[1] = IS_WHOLE || (has_rows && c.used_k == KEYS);
}

/* Turns s into p in one half of the keys. */
DEVICE void find_half(half_row (&s)[2], unsigned half, float factor, const float (&lse)[2], const full_halves &is_full,
                      const backward_problem &c)
{
    recompute_weights(s[half], factor, lse);
    if (!is_full[half]) hide(s[half], c, lane_row(), static_cast<int>(half * HALF));
}

DEVICE void find_delta(float (&delta)[2], const row_sums &sums)
{
    UNROLL for (int n = 0; n < 2; ++n) delta[n] = mean_dp(sum_of_quad(sums.p[n]), sum_of_quad(sums.p_dp[n]));
}

/* Holds the operands of the products of a warpgroup's rows with either half of the keys. */
template <int DIM>
struct row_operands {
    uint64_t q, dout, k[2], v[2];
};

template <int DIM>
INLINE row_operands<DIM> find_operands(shared_memory<DIM> &m, unsigned turn)
{
    const uint64_t own_q = descriptor<operand<DIM>>(tile_of(m, OF_Q, turn), own_first());
    const uint64_t own_dout = descriptor<operand<DIM>>(tile_of(m, OF_DOUT, turn), own_first());
    return {own_q, own_dout,
            {descriptor<operand<DIM>>(tile_of(m, OF_K, turn)), descriptor<operand<DIM>>(tile_of(m, OF_K, turn), HALF)},
            {descriptor<operand<DIM>>(tile_of(m, OF_V, turn)), descriptor<operand<DIM>>(tile_of(m, OF_V, turn), HALF)}};
}

/* This is the epilogue of dk; ds is free then, and p takes its place. */
template <typename T, int DIM, kind KIND>
DEVICE void stage_dk_and_p(const kernel_state<DIM, KIND> &state, const step &at, float (&dk)[DIM / 2],
                           const half_row (&p)[2])
{
    uint32_t pairs[DIM / 4];
    const float &scale = scale_of(state, at.n);
    wait_for<0>(dk);
    round_sums<T, DIM>(pairs, dk, scale, scale);
    sync_threads(); /* ds and q are free */
    stage_rows<operand<DIM>>(tile_of(state.m, OF_Q, at.turn), warp_first(), pairs);
    UNROLL for (unsigned half = 0; half < 2; ++half) store_half<T>(state.m.w, half, p[half], warp_first());
    fence_proxy_async_shared();
    sync_threads(); /* p is complete */
}

/* Computes dv, rounded. In the meantime dk is written, and the next problem's tensor NEXT is loaded in its place. */
template <typename T, int NEXT, int DIM, kind KIND>
DEVICE void find_dv(uint32_t (&pairs)[DIM / 4], const kernel_state<DIM, KIND> &state, const step &at, float (&lse)[2])
{
    shared_memory<DIM> &m = state.m;
    float dv[DIM / 2];
    multiply_weights<T, DIM, true>(dv, m.w, descriptor<operand<DIM>>(tile_of(m, OF_DOUT, at.turn)), own_first());
    write_result<DK>(state, at.n, tile_of(m, OF_Q, at.turn));
    lse[0] = lse[1] = 0; /* frees registers: this problem's lse is not needed any more */
    if (is_there(state, at.next, at.end)) {
        load_tile<NEXT>(tile_of(m, OF_Q, at.turn), state, at.next);
        commit_loads<KIND>();
        ask_lse(lse, state, at.next);
    }
    if (KIND != ALL_WHOLE && at.n % AT_ONCE == 0 && warp() == 0) /* after the others of its own */
        find_problems<DIM>(state.p, m.left, &m.problems[at.n == 0 ? AT_ONCE : 0]);
    wait_for<0>(dv);
    round_sums<T, DIM>(pairs, dv, 1, 1);
}

/* This is the epilogue of dv, and clears rows of all results that no product has. */
template <int DIM, kind KIND>
DEVICE void finish_problem(const kernel_state<DIM, KIND> &state, unsigned n, const uint32_t (&dv)[DIM / 4])
{
    uint16_t *const staged = &state.m.w[own_first() / HALF * part_of(1, 0)];
    stage_rows<operand<DIM>>(staged, warp_first(), dv);
    write_result<DV>(state, n, staged);
    if (KIND != ANY) return;
    clear_result_rows<THREADS / 32>(state.p, problem_of(state, n), KEYS + static_cast<int>(warp()));
}

/* ---- two CTAs share an SM: dp of half of the keys at once, twice; dq from ds in shared memory -------------------  */

/* Puts p in place of s, and finds delta. */
template <typename T, int DIM, kind KIND>
DEVICE void find_p_and_delta(half_row (&s)[2], float (&delta)[2], half_row &dp, const row_operands<DIM> &of,
                             const kernel_state<DIM, KIND> &state, const step &at, float (&lse)[2],
                             full_halves &is_full)
{
    const backward_problem &c = problem_of(state, at.n);
    multiply_rows<T, operand<DIM>, HALF>(s[1], of.q, of.k[1]);
    multiply_rows<T, operand<DIM>, HALF>(s[0], of.q, of.k[0]);
    find_full_halves<KIND>(is_full, c);
    UNROLL for (int n = 0; n < 2; ++n) lse[n] *= LOG2_E; /* in base 2 */
    const float factor = state.p.forward.softmax_scale * LOG2_E;
    row_sums sums = {};
    wait_for<0>(s[1]);
    wait_for<0>(s[0]);
    if (is_any_large(lse)) take_own_lse(s, factor, KIND != ANY ? KEYS : c.used_k, lse);
    find_half(s, 1, factor, lse, is_full, c);
    find_half(s, 0, factor, lse, is_full, c);
    if (KIND == ALL_WHOLE) {
        mbarrier_wait(&state.m.loaded[1], at.parity);
    } else {
        cp_async_wait<0>();
        fence_proxy_async_shared();
        sync_threads(); /* dout and v are complete, too */
    }
    multiply_rows<T, operand<DIM>, HALF>(dp, of.dout, of.v[1]);
    wait_for<0>(dp);
    add_weights(sums, s[1], dp);
    multiply_rows<T, operand<DIM>, HALF>(dp, of.dout, of.v[0]);
    wait_for<0>(dp);
    add_weights(sums, s[0], dp);
    find_delta(delta, sums);
}

/* Stores ds in shared memory; dp is that of the first half of the keys. */
template <typename T, int DIM, kind KIND>
DEVICE void store_ds(half_row &dp, const half_row (&p)[2], const float (&delta)[2], const row_operands<DIM> &of,
                     const kernel_state<DIM, KIND> &state, const step &at, const full_halves &is_full)
{
    if (KIND == ALL_WHOLE && layout<DIM>::STAGES_IN_DS) {
        if (lane() == 0) bulk_wait_read<0>();
        sync_warp(FULL_WARP); /* what was staged of the last dv has left */
    }
    UNROLL for (unsigned half = 0; half < 2; ++half) {
        if (half == 1) {
            multiply_rows<T, operand<DIM>, HALF>(dp, of.dout, of.v[half]);
            wait_for<0>(dp);
        }
        find_ds(dp, p[half], delta);
        if (!is_full[half]) hide(dp, problem_of(state, at.n), lane_row(), static_cast<int>(half * HALF));
        if (layout<DIM>::SHARES_V && half == 1) sync_threads(); /* v is free */
        store_half<T>(state.m.w, half, dp, warp_first());
    }
    fence_proxy_async_shared();
    sync_threads(); /* ds is complete; v is free */
}

template <typename T, int DIM, kind KIND>
DEVICE void take_problem_of_two_ctas(const kernel_state<DIM, KIND> &state, const step &at, float (&lse)[2])
{
    shared_memory<DIM> &m = state.m;
    const unsigned turn = at.turn;
    wait_for_tiles<DIM, KIND>(m, at.parity);
    const row_operands<DIM> of = find_operands(m, turn);
    half_row s[2], dp;
    float delta[2];
    full_halves is_full;
    find_p_and_delta<T>(s, delta, dp, of, state, at, lse, is_full);
    store_ds<T>(dp, s, delta, of, state, at, is_full);
    if (!layout<DIM>::SHARES_V && is_there(state, at.next, at.end)) {
        load_tile<V>(tile_of(m, OF_V, turn), state, at.next);
        commit_loads<KIND>();
    }

    float dq[DIM / 2], dk[DIM / 2];
    uint32_t pairs[DIM / 4];
    const float &scale = scale_of(state, at.n);
    multiply_weights<T, DIM, false>(dq, m.w, descriptor<operand<DIM>>(tile_of(m, OF_K, turn)), own_first());
    wait_for<0>(dq);
    round_sums<T, DIM>(pairs, dq, scale, scale);
    sync_threads(); /* k is free */
    stage_rows<operand<DIM>>(tile_of(m, OF_K, turn), warp_first(), pairs);
    multiply_weights<T, DIM, true>(dk, m.w, descriptor<operand<DIM>>(tile_of(m, OF_Q, turn)), own_first());
    write_result<DQ>(state, at.n, tile_of(m, OF_K, turn));
    if (is_there(state, at.next, at.end)) {
        load_tile<K>(tile_of(m, OF_K, turn), state, at.next);
        commit_loads<KIND>();
    }
    stage_dk_and_p<T>(state, at, dk, s);
    find_dv<T, Q>(pairs, state, at, lse);
    sync_threads(); /* p, dout and v's place are free */
    if (is_there(state, at.next, at.end)) {
        load_tile<DOUT>(tile_of(m, OF_DOUT, turn), state, at.next);
        if (layout<DIM>::SHARES_V) load_tile<V>(tile_of(m, OF_V, turn), state, at.next);
        commit_loads<KIND>();
    }
    finish_problem(state, at.n, pairs);
}

/* ---- a CTA has an SM alone: all of dp at once; dq from ds in registers; the next problem is loaded early --------- */

/* Puts p in place of s, and finds dp and delta. */
template <typename T, int DIM, kind KIND>
DEVICE void find_p_dp_and_delta(half_row (&s)[2], half_row (&dp)[2], float (&delta)[2], const row_operands<DIM> &of,
                                const kernel_state<DIM, KIND> &state, const step &at, float (&lse)[2],
                                full_halves &is_full)
{
    const backward_problem &c = problem_of(state, at.n);
    multiply_rows<T, operand<DIM>, HALF>(s[1], of.q, of.k[1]);
    multiply_rows<T, operand<DIM>, HALF>(dp[1], of.dout, of.v[1]);
    multiply_rows<T, operand<DIM>, HALF>(s[0], of.q, of.k[0]);
    multiply_rows<T, operand<DIM>, HALF>(dp[0], of.dout, of.v[0]);
    if (is_there(state, at.next, at.end)) {
        load_tile<Q>(tile_of(state.m, SPARE, at.turn), state, at.next);
        commit_loads<KIND>();
    }
    find_full_halves<KIND>(is_full, c);
    UNROLL for (int n = 0; n < 2; ++n) lse[n] *= LOG2_E; /* in base 2, too */
    const float factor = state.p.forward.softmax_scale * LOG2_E;
    row_sums sums = {};
    wait_for<1>(s[1]);
    wait_for<1>(s[0]);
    if (is_any_large(lse)) take_own_lse(s, factor, KIND != ANY ? KEYS : c.used_k, lse);
    find_half(s, 1, factor, lse, is_full, c);
    wait_for<1>(dp[1]);
    add_weights(sums, s[1], dp[1]);
    find_half(s, 0, factor, lse, is_full, c);
    wait_for<0>(dp[0]);
    add_weights(sums, s[0], dp[0]);
    find_delta(delta, sums);
}

/* Stores ds in shared memory, and computes dq. */
template <typename T, int DIM, kind KIND>
DEVICE void find_dq(float (&dq)[DIM / 2], half_row (&dp)[2], const half_row (&p)[2], const float (&delta)[2],
                    const row_operands<DIM> &of, const kernel_state<DIM, KIND> &state, const step &at,
                    const full_halves &is_full)
{
    weight_parts<HALF> ds[2];
    UNROLL for (unsigned half = 0; half < 2; ++half) {
        find_ds(dp[half], p[half], delta);
        if (!is_full[half]) hide(dp[half], problem_of(state, at.n), lane_row(), static_cast<int>(half * HALF));
        UNROLL for (int j = 0; j < HALF / 16; ++j) split<T>(ds[half], j, &dp[half][8 * j]);
        UNROLL for (unsigned j = 0; j < HALF / 16; ++j)
            store_parts(state.m.w, half, j, ds[half].at[0][j], ds[half].at[1][j], warp_first());
        multiply_half<T, DIM>(dq, ds[half], of.k[half], half == 1);
    }
    wait_for<0>(dq);
    fence_proxy_async_shared();
    sync_threads(); /* ds is complete; k and v are free */
}

template <typename T, int DIM, kind KIND>
DEVICE void take_problem_of_one_cta(const kernel_state<DIM, KIND> &state, const step &at, float (&lse)[2])
{
    shared_memory<DIM> &m = state.m;
    const unsigned turn = at.turn;
    wait_for_tiles<DIM, KIND>(m, at.parity);
    const row_operands<DIM> of = find_operands(m, turn);
    half_row s[2], dp[2];
    float delta[2], dq[DIM / 2], dk[DIM / 2];
    full_halves is_full;
    find_p_dp_and_delta<T>(s, dp, delta, of, state, at, lse, is_full);
    find_dq<T>(dq, dp, s, delta, of, state, at, is_full);
    if (is_there(state, at.next, at.end)) {
        load_tile<K>(tile_of(m, OF_V, turn), state, at.next);
        commit_loads<KIND>();
    }

    uint32_t pairs[DIM / 4];
    const float &scale = scale_of(state, at.n);
    multiply_weights<T, DIM, true>(dk, m.w, descriptor<operand<DIM>>(tile_of(m, OF_Q, turn)), own_first());
    round_sums<T, DIM>(pairs, dq, scale, scale);
    stage_rows<operand<DIM>>(tile_of(m, OF_K, turn), warp_first(), pairs);
    write_result<DQ>(state, at.n, tile_of(m, OF_K, turn));
    if (is_there(state, at.next, at.end)) {
        load_tile<DOUT>(tile_of(m, OF_K, turn), state, at.next);
        commit_loads<KIND>();
    }
    stage_dk_and_p<T>(state, at, dk, s);
    find_dv<T, V>(pairs, state, at, lse);
    named_barrier_sync(1 + own_first() / HALF, THREADS / 2); /* p of the warpgroup's keys is free */
    finish_problem(state, at.n, pairs);
}

/* Computes a problem whose tiles are being loaded, and loads the next one's. lse is that of this problem at first, and
 * of the next one at last. */
template <typename T, int DIM, kind KIND>
DEVICE void take_problem(const kernel_state<DIM, KIND> &state, unsigned n, const share &all, unsigned turn,
                         unsigned parity, float (&lse)[2])
{
    const step at = {n, turn, parity, next_of<KIND>(n, all), all.end};
    if constexpr (layout<DIM>::HAS_ROOM) take_problem_of_one_cta<T>(state, at, lse);
    else take_problem_of_two_ctas<T>(state, at, lse);
}

template <typename T, int DIM, bool ARE_WHOLE>
KERNEL(THREADS, layout<DIM>::CTAS)
void short_backward_sm90_n128_kernel(const GRID_CONSTANT backward_params p,
                                     const GRID_CONSTANT tile_maps<ARE_WHOLE> maps, const work by_ctas)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    shared_memory<DIM> &m = *reinterpret_cast<shared_memory<DIM> *>(shared);
    grid_wait();
    constexpr kind KIND = ARE_WHOLE ? ALL_WHOLE : ANY;
    constexpr bool HAS_ROOM = layout<DIM>::HAS_ROOM;
    const kernel_state<DIM, KIND> state = {p, maps, m};
    const share all = own_share(by_ctas);
    if (ARE_WHOLE) {
        if (thread_x() == 0) { /* each warp arrives once for a tensor */
            UNROLL for (int of = 0; of < 2; ++of) mbarrier_init(&m.loaded[of], THREADS / 32 * (HAS_ROOM ? 4 : 2));
            fence_mbarrier_init();
        }
    } else if (warp() == 0) {
        if (lane() == 0) m.left = all;
        sync_warp(FULL_WARP);
        find_problems<DIM>(p, m.left, m.problems);
    }
    sync_threads(); /* the first problem descriptors, or the barriers, are there */
    unsigned n = ARE_WHOLE ? all.first : 0;
    if (!is_there(state, n, all.end)) return;
    load_tile<Q>(tile_of(m, OF_Q, 0), state, n);
    load_tile<K>(tile_of(m, OF_K, 0), state, n);
    commit_loads<KIND>();
    load_tile<DOUT>(tile_of(m, OF_DOUT, 0), state, n);
    load_tile<V>(tile_of(m, OF_V, 0), state, n);
    commit_loads<KIND>();
    float lse[2];
    ask_lse(lse, state, n);
    unsigned turn = 0, parity = 0;
    ROLLED while (is_there(state, n, all.end)) {
        if constexpr (ARE_WHOLE) {
            take_problem<T>(state, n, all, turn, parity, lse);
        } else if (m.problems[n].is_whole) {
            const kernel_state<DIM, WHOLE> whole = {p, maps, m};
            take_problem<T>(whole, n, all, turn, parity, lse);
        } else {
            take_problem<T>(state, n, all, turn, parity, lse);
        }
        n = next_of<KIND>(n, all), turn = turn == 0 ? USES - 1 : turn - 1, parity ^= 1;
    }
    if (ARE_WHOLE && lane() == 0) bulk_wait_read<0>(); /* shared memory stays until then */
}

template <typename T, int DIM, bool ARE_WHOLE>
int launch(const backward_params &p, const work &by_ctas, const tile_maps<ARE_WHOLE> &maps, void *stream)
{
    const launch_shape grid = {{ctas_of(by_ctas), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               sizeof(shared_memory<DIM>), THREADS, layout<DIM>::CTAS, true};
    return LAUNCH((short_backward_sm90_n128_kernel<T, DIM, ARE_WHOLE>), grid, stream, p, maps, by_ctas);
}

/* Maps cost the host time, which a launch of more problems than CTAs makes up for. Full problems have the same bits
 * either way. */
template <typename T, int DIM>
int launch_tile(const backward_params &p, void *stream)
{
    const int64_t problems = p.forward.batch * p.forward.num_heads_q;
    const int64_t places = static_cast<int64_t>(launch_num_sms(stream)) * layout<DIM>::CTAS;
    if (are_whole<operand<DIM>>(p)) {
        const forward_params &f = p.forward;
        const row_tensor *const tensors[] = {&f.q, &f.k, &f.v, &p.dout, &p.dq, &p.dk, &p.dv};
        const tile_maps<true> *const maps =
            problems > places ? find_maps<tile_maps<true>, operand<DIM>, BOX_ROWS>(f, tensors) : nullptr;
        const work by_ctas = divide_work(problems, places, layout<DIM>::ROUNDS);
        if (maps != nullptr) return launch<T, DIM, true>(p, by_ctas, *maps, stream);
    }
    return launch<T, DIM, false>(p, divide_work(problems, places, ALL_ROUNDS), {}, stream);
}

template <typename T>
int launch_width(const backward_params &p, void *stream)
{
    const int widest = p.forward.head_dim > p.forward.head_dim_v ? p.forward.head_dim : p.forward.head_dim_v;
    if constexpr (IS_F16<T>) /* those of bf16 are short_backward_sm90_n128_scaled's */
        if (widest <= 32) return launch_tile<T, 32>(p, stream);
    if (widest <= 64) return launch_tile<T, 64>(p, stream);
    return launch_tile<T, 128>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm90_n128)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) return 0;
    if (p->forward.q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

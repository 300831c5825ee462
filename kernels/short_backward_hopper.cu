/* short_backward_hopper.cu - attention backward of whole short sequences on Hopper's tensor cores (wgmma).
 *
 *     ds = p (dp - delta),  delta = sum of p dp over that of p
 *     dq = scale ds k,  dk = scale ds^T q,  dv = p^T dout
 *
 * Takes what short_backward.cu does at 65 .. 128 rows or keys, of heads of at most 128 features, one query head to a KV
 * head, and scores that are no more than softmax_scale q . k: every row sees every key. A problem that gives delta is
 * another kernel's, and so are heads of at most 32 features in bf16: short_backward_scaled.cu's.
 *
 * Grid    x: CTAs that stay; each takes one problem, a sequence and head, after the other (own_share)
 * Block   two warpgroups: query rows 0 .. 63 and 64 .. 127, for s, p, dp, ds and dq; the same of keys, for dk and dv
 * Shared  q, k, dout and v, as wgmma reads them; ds, then p, of all rows and keys in two parts of 16 bits: 64 KB, of
 *         which the last 16 take the place of v where two CTAs would not fit; cards: where problems' rows are
 * Phases  of a problem: s and p; dp; ds to shared memory; dq and dk; p to shared memory; dv
 *
 * p stays in registers, in fp32, until ds has been read. Where two CTAs share an SM, there is no room beside it for dp
 * of more than half of the keys, and dp of the other half is computed twice: for delta, then for ds. Where one has it
 * alone, dq is made of ds in registers, and all of the next problem is loaded early.
 *
 * Results lie, on their way to memory, in tiles that nobody reads any more: dq in that of k, dk in q's, dv in p's. Then
 * the next problem's rows are loaded there: a warp loads just the rows that it has staged, and waits for no other.
 * p and ds have two parts of 16 bits, as in short_backward.cu. kernels/short.md has the figures,
 * reference/bounds.md section 11 what it may be off by. */
#include "kernels/short_backward_hopper.h"

namespace {

enum { THREADS = 256, KEYS = 128 };

/* A tile of DIM features; of HALF keys, of weights. */
template <int DIM>
using operand = short_shape<DIM, KEYS>;
constexpr int HALF = KEYS / 2; /* of the keys, or of the rows */

/* Problem n of a CTA has card n % CARDS. AT_ONCE are found at once, by a warp: while dv of the first of those before
 * them is computed, when nobody needs the cards before that one any more. */
enum { TENSORS = DV + 1, AT_ONCE = 32 / TENSORS, CARDS = 2 * AT_ONCE };

template <int DIM>
struct layout {
    static constexpr int TILE = KEYS * DIM, PART = KEYS * HALF; /* numbers */
    static constexpr int CTAS = DIM <= 64 ? 2 : 1; /* of an SM: as many as shared memory allows */
    static constexpr bool HAS_ROOM = CTAS == 1;    /* for a fifth tile; in registers */
    static constexpr bool SHARES_V = DIM == 64;    /* with a part of ds, and then of p */
    static constexpr int TILES = HAS_ROOM ? 5 : SHARES_V ? 3 : 4;
    static_assert(!SHARES_V || TILE == PART, "v has the place of a part");
};

template <int DIM>
struct shared_memory {
    uint16_t tiles[layout<DIM>::TILES][layout<DIM>::TILE];
    uint16_t w[4 * layout<DIM>::PART];
    card cards[CARDS];
    share left; /* problems that are to be asked about */
};
static_assert(sizeof(shared_memory<32>) <= 113 * 1024 && sizeof(shared_memory<64>) <= 113 * 1024 &&
                  sizeof(shared_memory<128>) <= 227 * 1024,
              "of an SM's 228 KB, 1 KB for each CTA is the chip's");

/* What a tile is used for. Where there is a spare one, the next problem's q is loaded into it, and then each tensor's
 * into what this problem needs no more: its v into this one's q, k into v, dout into k. So with every problem a tile
 * goes on to the next use, and `turn` goes from 4 down to 0. */
enum use { SPARE, OF_Q, OF_V, OF_K, OF_DOUT, USES };

template <int DIM>
DEVICE uint16_t *tile_of(shared_memory<DIM> &m, unsigned use, unsigned turn)
{
    if constexpr (layout<DIM>::HAS_ROOM) return m.tiles[use + turn < USES ? use + turn : use + turn - USES];
    if (layout<DIM>::SHARES_V && use == OF_V) return &m.w[3 * layout<DIM>::PART];
    return m.tiles[use == OF_DOUT && layout<DIM>::SHARES_V ? 1 : use - 1];
}

/* The cards of this launch's first problems among those left to the CTA, to which only those after them are left then.
 * By one warp: it asks 32 problems whose they are, and has a lane for each tensor of those that it takes. */
template <int DIM>
DEVICE void find_cards(const backward_params &p, share &left, card *cards)
{
    const share all = left;
    const unsigned own = lane() / TENSORS; /* which of those found */
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
    if (own < found) find_card<operand<DIM>>(p, problem, cards[own], lane() % TENSORS);
    else if (own < AT_ONCE && lane() % TENSORS == 0) cards[own].is_ours = false;
    sync_warp(FULL_WARP); /* `left` has been read */
    if (lane() == 0) left.first = next;
}

/* p and ds lie as operands of 64 keys, all query rows: high parts and low parts of keys 0 .. 63, then of 64 .. 127. */
DEVICE constexpr unsigned part_of(unsigned half, unsigned part) { return (2 * half + part) * KEYS * HALF; }

/* A lane, found anew like warp_first(). */
DEVICE unsigned own_lane() { return shfl_idx(FULL_WARP, lane(), lane()); }

/* A warp's 16 rows of a tile, of all of which the first `count` are in use. */
template <int DIM>
DEVICE void load(uint16_t *to, const row_tensor &t, char *rows, int length, int count, bool is_whole)
{
    constexpr int PANEL = operand<DIM>::PANEL;
    const unsigned own = own_lane(), warp_row = warp_first();
    const int64_t step = t.seqlen * 2;
    rows += warp_row * step;
    if (is_whole) {
        const unsigned x = own % CHUNKS<DIM> * 8, first = own / CHUNKS<DIM>;
        const unsigned at = offset<operand<DIM>>(warp_row + first, x);
        rows += first * step + 2 * x;
        UNROLL for (unsigned r = 0; r < 16; r += STEP<DIM>, rows += STEP<DIM> * step)
            cp_async_16(&to[at ^ offset<operand<DIM>>(r, 0)], rows);
        return;
    }
    row_pointer row = {rows, t.dtype, t.by_four, length};
    UNROLL for (int x = 0; x < DIM; x += PANEL) {
        load_rows<16, PANEL, 32>(to + x * KEYS + warp_row * PANEL, row, step, t.by_eight != 0,
                                 count - static_cast<int>(warp_row), own);
        row.data += 2 * PANEL, row.length -= PANEL;
    }
}

template <int DIM>
DEVICE void load_q(uint16_t *to, const backward_params &p, const card &c)
{
    load<DIM>(to, p.forward.q, c.rows[Q], p.forward.head_dim, c.used_q, c.is_whole);
}

template <int DIM>
DEVICE void load_k(uint16_t *to, const backward_params &p, const card &c)
{
    load<DIM>(to, p.forward.k, c.rows[K], p.forward.head_dim, c.used_k, c.is_whole);
}

template <int DIM>
DEVICE void load_v(uint16_t *to, const backward_params &p, const card &c)
{
    load<DIM>(to, p.forward.v, c.rows[V], p.forward.head_dim_v, c.used_k, c.is_whole);
}

template <int DIM>
DEVICE void load_dout(uint16_t *to, const backward_params &p, const card &c)
{
    load<DIM>(to, p.dout, c.rows[DOUT], p.forward.head_dim_v, c.used_q, c.is_whole);
}

/* lse of a lane's rows, 0 where they are not in use: as it is, so that nothing waits for it yet. */
DEVICE void ask_lse(float (&lse)[2], const row_tensor &t, const card &c)
{
    const int row = static_cast<int>(warp_first() + lane() / 4);
    UNROLL for (int n = 0; n < 2; ++n) {
        const float *const from = reinterpret_cast<const float *>(c.rows[LSE] + (row + 8 * n) * t.seqlen * 4);
        lse[n] = row + 8 * n < c.used_q ? *from : 0;
    }
}

/* ---- p and ds: 64 query rows of a warpgroup, two of a lane, g and g + 8 ------------------------------------------ */

/* Of half of the keys: s or p, dp or ds. */
typedef float half_row[HALF / 2];

/* Two parts of 16 keys, from 16 j on, of half of them, of a warp's 16 rows, to shared memory. */
DEVICE void store_parts(uint16_t *w, unsigned half, unsigned j, const uint32_t (&high)[4], const uint32_t (&low)[4],
                        unsigned warp_row)
{
    const unsigned to = offset<operand<HALF>>(warp_row + lane() % 16, lane() / 16 * 8) ^ 16 * j;
    stmatrix_x4(&w[part_of(half, 0)] + to, high);
    stmatrix_x4(&w[part_of(half, 1)] + to, low);
}

template <typename T>
DEVICE void store_half(uint16_t *w, unsigned half, const half_row &weights, unsigned warp_row)
{
    UNROLL for (unsigned j = 0; j < HALF / 16; ++j) {
        weight_parts<16> parts;
        split<T>(parts, 0, &weights[8 * j]);
        store_parts(w, half, j, parts.at[0][0], parts.at[1][0], warp_row);
    }
}

/* d = w b, or d += w b, of a warpgroup's rows and half of the keys: w's parts in registers, b from the first key on. */
template <typename T, int DIM>
DEVICE void multiply_half(float (&d)[DIM / 2], weight_parts<HALF> &w, uint64_t b, bool adds)
{
    UNROLL for (int j = 0; j < HALF / 16; ++j) wgmma_fence_operand(w.at[0][j]), wgmma_fence_operand(w.at[1][j]);
    wgmma_fence_operand(d);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < HALF / 16; ++j)
        UNROLL for (int part = 0; part < 2; ++part) {
            const uint64_t b_j = wgmma_advance(b, offset<operand<DIM>>(16 * j, 0) * 2);
            const bool accumulates = adds || j > 0 || part > 0;
            if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<DIM, false, false, true>(d, w.at[part][j], b_j, accumulates);
            else wgmma_m64nNk16_bf16<DIM, false, false, true>(d, w.at[part][j], b_j, accumulates);
        }
    wgmma_commit();
}

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
            const uint64_t a_j = wgmma_advance(a, from * 2);
            const uint64_t b_j = wgmma_advance(b, offset<operand<DIM>>(16 * j, 0) * 2);
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
    const int in_memory = seqlen - warp_row, seen = (used_there > 0 ? used : 0) - warp_row;
    const int64_t row = warp_row + static_cast<int>(lane() / CHUNKS<DIM>);
    write_rows<operand<DIM>>(t, tile, static_cast<unsigned>(warp_row),
                             {rows + row * t.seqlen * 2, t.dtype, t.by_four, length}, in_memory,
                             seen < in_memory ? seen : 16, is_whole); /* rows that are not written need no zeros */
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* A problem, whose tiles are being loaded; it loads the next one's. lse is its own, and then the next one's. */
template <typename T, int DIM, bool IS_WHOLE>
DEVICE void take_problem(const backward_params &p, shared_memory<DIM> &m, unsigned n, unsigned turn, float (&lse)[2])
{
    const card &c = m.cards[n], &next = m.cards[(n + 1) % CARDS];
    constexpr bool HAS_ROOM = layout<DIM>::HAS_ROOM;
    const forward_params &f = p.forward;
    uint16_t *const w = m.w;
    cp_async_wait<HAS_ROOM ? 0 : 1>();
    fence_proxy_async_shared();
    sync_threads(); /* q and k are complete, and wgmma may read them; where there is room, dout and v, too */

    const uint64_t own_q = descriptor<operand<DIM>>(tile_of(m, OF_Q, turn), own_first());
    const uint64_t own_dout = descriptor<operand<DIM>>(tile_of(m, OF_DOUT, turn), own_first());
    const uint64_t k[2] = {descriptor<operand<DIM>>(tile_of(m, OF_K, turn)),
                           descriptor<operand<DIM>>(tile_of(m, OF_K, turn), HALF)};
    const uint64_t v[2] = {descriptor<operand<DIM>>(tile_of(m, OF_V, turn)),
                           descriptor<operand<DIM>>(tile_of(m, OF_V, turn), HALF)};
    half_row s[2], dp[HAS_ROOM ? 2 : 1];
    half_row &second = dp[HAS_ROOM ? 1 : 0];
    multiply_rows<T, operand<DIM>, HALF>(s[1], own_q, k[1]);
    if (HAS_ROOM) multiply_rows<T, operand<DIM>, HALF>(second, own_dout, v[1]);
    multiply_rows<T, operand<DIM>, HALF>(s[0], own_q, k[0]);
    if (HAS_ROOM) multiply_rows<T, operand<DIM>, HALF>(dp[0], own_dout, v[0]);
    if (HAS_ROOM && next.is_ours) {
        load_q<DIM>(tile_of(m, SPARE, turn), p, next);
        cp_async_commit();
    }
    const bool has_rows = IS_WHOLE || static_cast<int>(warp_first()) + 16 <= c.used_q; /* all of the warp's; keys: */
    const bool is_full[2] = {IS_WHOLE || (has_rows && c.used_k >= HALF), IS_WHOLE || (has_rows && c.used_k == KEYS)};
    const float lse_2[2] = {lse[0] * LOG2_E, lse[1] * LOG2_E}; /* in base 2 */
    row_sums sums = {};
    wait_for<HAS_ROOM ? 3 : 1>(s[1]);
    find_weights(s[1], f.softmax_scale * LOG2_E, lse_2); /* p from here on */
    if (!is_full[1]) hide(s[1], c, lane_row(), HALF);
    if (HAS_ROOM) {
        wait_for<2>(second);
        add_weights(sums, s[1], second);
    }
    wait_for<HAS_ROOM ? 1 : 0>(s[0]);
    find_weights(s[0], f.softmax_scale * LOG2_E, lse_2);
    if (!is_full[0]) hide(s[0], c, lane_row(), 0);
    if (!HAS_ROOM) {
        cp_async_wait<0>();
        fence_proxy_async_shared();
        sync_threads(); /* dout and v, too */
        multiply_rows<T, operand<DIM>, HALF>(second, own_dout, v[1]);
        wait_for<0>(second);
        add_weights(sums, s[1], second);
        multiply_rows<T, operand<DIM>, HALF>(dp[0], own_dout, v[0]);
    }
    wait_for<0>(dp[0]);
    add_weights(sums, s[0], dp[0]);
    float delta[2];
    UNROLL for (int n = 0; n < 2; ++n) delta[n] = mean_dp(sum_of_quad(sums.p[n]), sum_of_quad(sums.p_dp[n]));

    float dq[DIM / 2], dk[DIM / 2];
    weight_parts<HALF> ds[HAS_ROOM ? 2 : 1];
    UNROLL for (unsigned half = 0; half < 2; ++half) {
        half_row &of_half = dp[HAS_ROOM ? half : 0];
        if (!HAS_ROOM && half == 1) {
            multiply_rows<T, operand<DIM>, HALF>(of_half, own_dout, v[half]);
            wait_for<0>(of_half);
        }
        find_ds(of_half, s[half], delta);
        if (!is_full[half]) hide(of_half, c, lane_row(), static_cast<int>(half * HALF));
        if (layout<DIM>::SHARES_V && half == 1) sync_threads(); /* v is free */
        if constexpr (HAS_ROOM) {
            UNROLL for (int j = 0; j < HALF / 16; ++j) split<T>(ds[half], j, &of_half[8 * j]);
            UNROLL for (unsigned j = 0; j < HALF / 16; ++j)
                store_parts(w, half, j, ds[half].at[0][j], ds[half].at[1][j], warp_first());
            multiply_half<T, DIM>(dq, ds[half], k[half], half == 1);
        } else {
            store_half<T>(w, half, of_half, warp_first());
        }
    }
    if (HAS_ROOM) wait_for<0>(dq);
    fence_proxy_async_shared();
    sync_threads(); /* ds is complete; v is free, and k, where dq is done */
    if (!layout<DIM>::SHARES_V && next.is_ours) {
        if (HAS_ROOM) load_k<DIM>(tile_of(m, OF_V, turn), p, next);
        else load_v<DIM>(tile_of(m, OF_V, turn), p, next);
        cp_async_commit();
    }

    uint32_t pairs[DIM / 4];
    if (HAS_ROOM) multiply_weights<T, DIM, true>(dk, w, descriptor<operand<DIM>>(tile_of(m, OF_Q, turn)));
    else multiply_weights<T, DIM, false>(dq, w, descriptor<operand<DIM>>(tile_of(m, OF_K, turn)));
    if (!HAS_ROOM) wait_for<0>(dq);
    round_sums<T, DIM>(pairs, dq, c.scale, c.scale);
    if (!HAS_ROOM) sync_threads(); /* k is free */
    stage_rows<operand<DIM>>(tile_of(m, OF_K, turn), warp_first(), pairs);
    if (!HAS_ROOM) multiply_weights<T, DIM, true>(dk, w, descriptor<operand<DIM>>(tile_of(m, OF_Q, turn)));
    write_result<DIM>(p.dq, c.rows[DQ], f.head_dim, tile_of(m, OF_K, turn), c.seqlen_q, c.used_q, c.used_k, IS_WHOLE);
    sync_warp(FULL_WARP); /* its rows of dq are read */
    if (next.is_ours) {
        if (HAS_ROOM) load_dout<DIM>(tile_of(m, OF_K, turn), p, next);
        else load_k<DIM>(tile_of(m, OF_K, turn), p, next);
        cp_async_commit();
    }
    wait_for<0>(dk);
    round_sums<T, DIM>(pairs, dk, c.scale, c.scale);
    sync_threads(); /* ds and q are free */
    stage_rows<operand<DIM>>(tile_of(m, OF_Q, turn), warp_first(), pairs);
    UNROLL for (unsigned half = 0; half < 2; ++half) store_half<T>(w, half, s[half], warp_first());
    fence_proxy_async_shared();
    sync_threads(); /* p is complete */

    float dv[DIM / 2];
    multiply_weights<T, DIM, true>(dv, w, descriptor<operand<DIM>>(tile_of(m, OF_DOUT, turn)));
    write_result<DIM>(p.dk, c.rows[DK], f.head_dim, tile_of(m, OF_Q, turn), c.seqlen_k, c.used_k, c.used_q, IS_WHOLE);
    sync_warp(FULL_WARP); /* its rows of dk are read */
    lse[0] = lse[1] = 0; /* this problem's are not needed any more: registers */
    if (next.is_ours) {
        if (HAS_ROOM) load_v<DIM>(tile_of(m, OF_Q, turn), p, next);
        else load_q<DIM>(tile_of(m, OF_Q, turn), p, next);
        cp_async_commit();
        ask_lse(lse, f.lse, next);
    }
    if (n % AT_ONCE == 0 && warp() == 0) /* cards of those after the others of its own */
        find_cards<DIM>(p, m.left, &m.cards[n == 0 ? AT_ONCE : 0]);
    wait_for<0>(dv);
    round_sums<T, DIM>(pairs, dv, 1, 1);
    if (HAS_ROOM) {
        named_barrier_sync(1 + own_first() / HALF, THREADS / 2); /* p of the warpgroup's keys is free */
    } else {
        sync_threads(); /* p, dout and v's place are free */
        if (next.is_ours) {
            load_dout<DIM>(tile_of(m, OF_DOUT, turn), p, next);
            if (layout<DIM>::SHARES_V) load_v<DIM>(tile_of(m, OF_V, turn), p, next);
            cp_async_commit();
        }
    }
    uint16_t *const staged = &w[own_first() / HALF * part_of(1, 0)];
    stage_rows<operand<DIM>>(staged, warp_first(), pairs);
    write_result<DIM>(p.dv, c.rows[DV], f.head_dim_v, staged, c.seqlen_k, c.used_k, c.used_q, IS_WHOLE);
    if (IS_WHOLE) return;
    const int first = KEYS + static_cast<int>(warp());
    clear_rows<THREADS / 32>(p.dq, c.rows[DQ], f.head_dim, first, c.seqlen_q);
    clear_rows<THREADS / 32>(p.dk, c.rows[DK], f.head_dim, first, c.seqlen_k);
    clear_rows<THREADS / 32>(p.dv, c.rows[DV], f.head_dim_v, first, c.seqlen_k);
}

template <typename T, int DIM>
KERNEL(THREADS, layout<DIM>::CTAS)
void short_backward_hopper_kernel(const GRID_CONSTANT backward_params p, const work by_ctas)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    shared_memory<DIM> &m = *reinterpret_cast<shared_memory<DIM> *>(shared);
    if (warp() == 0) {
        if (lane() == 0) m.left = own_share(by_ctas);
        sync_warp(FULL_WARP);
        find_cards<DIM>(p, m.left, m.cards);
    }
    sync_threads(); /* the first cards are there */
    if (!m.cards[0].is_ours) return;
    load_q<DIM>(tile_of(m, OF_Q, 0), p, m.cards[0]);
    load_k<DIM>(tile_of(m, OF_K, 0), p, m.cards[0]);
    cp_async_commit();
    load_dout<DIM>(tile_of(m, OF_DOUT, 0), p, m.cards[0]);
    load_v<DIM>(tile_of(m, OF_V, 0), p, m.cards[0]);
    cp_async_commit();
    float lse[2];
    ask_lse(lse, p.forward.lse, m.cards[0]);
    unsigned turn = 0;
    ROLLED for (unsigned n = 0; m.cards[n].is_ours; n = (n + 1) % CARDS, turn = turn == 0 ? USES - 1 : turn - 1) {
        if (m.cards[n].is_whole) take_problem<T, DIM, true>(p, m, n, turn, lse);
        else take_problem<T, DIM, false>(p, m, n, turn, lse);
    }
}

template <typename T, int DIM>
int launch(const backward_params &p, void *stream)
{
    const work by_ctas =
        divide_work(p.forward.batch * p.forward.num_heads_q, launch_num_sms(stream) * layout<DIM>::CTAS);
    const launch_shape grid = {{ctas_of(by_ctas), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               sizeof(shared_memory<DIM>), THREADS, layout<DIM>::CTAS};
    return LAUNCH((short_backward_hopper_kernel<T, DIM>), grid, stream, p, by_ctas);
}

template <typename T>
int launch_width(const backward_params &p, void *stream)
{
    const int widest = p.forward.head_dim > p.forward.head_dim_v ? p.forward.head_dim : p.forward.head_dim_v;
    if constexpr (IS_F16<T>) /* of bf16 they are short_backward_scaled's */
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

/* forward_sm90_scaled.cu - attention forward of whole short sequences on Hopper's tensor cores (wgmma), weights in one
 * number of 16 bits.
 *
 *     o = softmax(softmax_scale q k^T) v,   lse = ln(sum of exp)
 *
 * Takes, in bf16, what short/forward_sm90.cu does of heads of at most 32 features: 65 .. 128 rows or keys. There p has
 * two parts, as one bf16 has 8 bits. Here it is one fp16, of 11 bits: this takes half of the products, and a sixth of
 * the instructions that make 16 bits of a weight. What p is multiplied with must be fp16, too: v, multiplied by a power
 * of two as shared/scaled_fp16.h has it, and o by the inverse one.
 *
 * Grid    x: persistent CTAs; each takes one problem, a sequence and head, after the other (own_share). They may come
 *         before the previous launch has ended (grid_wait)
 * Block   a warpgroup: rows 0 .. 63, then, if there are any, the others
 * Shared  q, k and v, as wgmma reads them, of two problems; o in the place of q; problem descriptors: where the
 *         problems' rows are, which launches of nothing but full problems do without; what warps tell each other of v
 *         and of the weights
 * Phases  problem descriptors; load q, k and v; scale v; for each 64 rows: s = q k^T, softmax over all keys, o = p v,
 *         write o; retry a problem where the maximum of a row is far above that of the first keys
 *
 * The next problem's rows are loaded while this one's are used. They are asked for behind the last fence, which would
 * wait for them. A thread scales what it has loaded itself, and so needs no barrier before it looks for the largest
 * number. kernels/short/short.md has the figures, reference/bounds.md section 11.12 what it may be off by. */
#include "kernels/shared/scaled_fp16.h"
#include "kernels/short/forward_sm90.h"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32, MIN_BLOCKS = 4, KEYS = MOST_KEYS, DIM = 32 };
enum { PLACES = 2, SLOTS = 2 * PLACES }; /* pipeline stages of tiles; problem descriptors of a round and the next */
typedef short_shape<DIM, KEYS> operand;
constexpr int TILE = KEYS * DIM; /* numbers */

struct shared_memory {
    uint16_t tiles[PLACES][3 * TILE]; /* q, k and v of a problem, and of the next */
    forward_problem problems[SLOTS];
    uint32_t exponents[WARPS]; /* for each warp, that of its largest number of v */
    bool is_right[2][WARPS];   /* of a problem, and of the next */
};

/* ---- v ----------------------------------------------------------------------------------------------------------- */

/* Holds what a thread has loaded of v: eight features of every 32nd row. */
typedef chunk own_values[TILE / 8 / THREADS];

DEVICE uint16_t *own_value(uint16_t *v, unsigned n)
{
    constexpr unsigned CHUNKS_OF_ROW = DIM / 8, ROWS_AT_ONCE = THREADS / CHUNKS_OF_ROW;
    static_assert(ROWS_AT_ONCE % 8 == 0, "chunks of rows so far apart lie in the same order");
    return &v[offset<operand>(thread_x() / CHUNKS_OF_ROW, thread_x() % CHUNKS_OF_ROW * 8) + n * ROWS_AT_ONCE * DIM];
}

/* Waits until all tiles are there, and all threads know of the largest number of v. are_asked says that there are
 * any. */
DEVICE void wait_for_tiles(shared_memory &m, own_values &values, uint16_t *q, bool are_asked)
{
    cp_async_wait_all();
    if (are_asked) {
        UNROLL for (unsigned n = 0; n < TILE / 8 / THREADS; ++n) values[n] = load_16<chunk>(own_value(q + 2 * TILE, n));
        const uint32_t size = largest(values);
        if (lane() == 0) m.exponents[warp()] = size >> 7;
    }
    sync_threads();
}

/* Scales v in its place, and returns the power of two. All threads, and wgmma, may read it then. */
DEVICE int scale_values(shared_memory &m, uint16_t *q, const own_values &values)
{
    const int shift = shift_of(static_cast<int>(max_of_warp(m.exponents[lane() % WARPS])) - 127);
    UNROLL for (unsigned n = 0; n < TILE / 8 / THREADS; ++n)
        store_16(own_value(q + 2 * TILE, n), scaled(values[n], shift));
    fence_proxy_async_shared();
    sync_threads();
    return shift;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Computes o = p v for 64 rows of weights. */
DEVICE void multiply_scaled_values(float (&o)[DIM / 2], const float (&p)[KEYS / 2], uint64_t v)
{
    uint32_t w[KEYS / 16][4];
    UNROLL for (int n = 0; n < KEYS / 4; ++n) w[n / 4][n % 4] = pack_f16x2(p[2 * n], p[2 * n + 1]);
    UNROLL for (int j = 0; j < KEYS / 16; ++j) wgmma_fence_operand(w[j]);
    wgmma_fence_operand(o);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j)
        wgmma_m64nNk16_f16<DIM, false, false, true>(o, w[j], wgmma_advance(v, offset<operand>(16 * j, 0) * 2), j > 0);
    wgmma_commit();
    wait_for<0>(o);
}

/* Computes rows first .. first + 63. WHOLE says that none is missing, nor a key. is_near is as in find_softmax_weights;
 * false comes back if that was wrong. o is multiplied by `by`. */
template <bool WHOLE>
DEVICE bool take_scaled_rows(const forward_params &p, const forward_problem &c, uint16_t *q, int first, bool is_near,
                             float by)
{
    const uint16_t *const k = q + TILE, *const v = k + TILE;
    const int warp_row = first + static_cast<int>(warp()) * 16;
    const int used_k = WHOLE ? KEYS : c.used_k, rows = WHOLE ? 16 : c.seqlen_q - warp_row; /* of the warp's */
    const int seen = WHOLE ? 16 : used_k > 0 ? c.used_q - warp_row : 0;
    float s[KEYS / 2] = {}, o[DIM / 2] = {}; /* without these zeros, 48 bytes of earlier values are kept */
    const row_pointer o_row = first_row_of_o<DIM>(p, c, static_cast<unsigned>(warp_row));
    multiply_rows<bf16, operand, KEYS>(s, descriptor<operand>(q, static_cast<unsigned>(first)), descriptor<operand>(k));
    wait_for<0>(s);
    const row_sums sums = find_softmax_weights<KEYS>(s, p.softmax_scale * LOG2_E, used_k, is_near);
    multiply_scaled_values(o, s, descriptor<operand>(v));
    if (rows <= 0) return true;
    /* o is sum p v / sum p: this is sum p of both rows. */
    const float sum[2] = {sum_of_quad(sums.sum[0]), sum_of_quad(sums.sum[1])};
    write_lse(p, c, static_cast<unsigned>(warp_row), sums, sum, rows, seen);
    uint32_t pairs[DIM / 4];
    round_sums<bf16, DIM>(pairs, o, rcp_f32(sum[0]) * by, rcp_f32(sum[1]) * by);
    stage_rows<operand>(q, static_cast<unsigned>(warp_row), pairs);
    write_rows<operand>(p.o, q, static_cast<unsigned>(warp_row), o_row, rows, seen < rows ? seen : 16, WHOLE);
    return !is_near || (sum[0] <= MOST_WEIGHT && sum[1] <= MOST_WEIGHT);
}

/* Returns whether the weights of the warp's rows are right: they always are, unless is_near. */
template <bool WHOLE>
DEVICE bool take_problem(const forward_params &p, const forward_problem &c, uint16_t *q, bool is_near, float by)
{
    const int used_q = WHOLE ? KEYS : c.used_q;
    bool is_right = true;
    int row = 0;
    ROLLED for (; row < used_q; row += ROWS) is_right &= take_scaled_rows<WHOLE>(p, c, q, row, is_near, by);
    if (!WHOLE) write_empty_rows<WARPS>(p, c, row);
    return is_right;
}

/* ---- the kernel -------------------------------------------------------------------------------------------------- */

/* Finds the problem descriptors of a round: one for each pipeline stage. One warp does it. */
DEVICE void find_problems(forward_problem *problems, const forward_params &p, unsigned first, unsigned step)
{
    constexpr unsigned LANES = 8; /* of a problem descriptor: at least one for each tensor */
    const unsigned n = lane() / LANES;
    if (n < PLACES) find_problem<operand>(p, first + n * step, problems[n], lane() % LANES);
}

/* ALL_WHOLE says that there are only full problems, so that every thread finds by itself where their rows are. */
template <bool ALL_WHOLE>
KERNEL(THREADS, MIN_BLOCKS)
void short_forward_sm90_scaled_kernel(const GRID_CONSTANT forward_params p, const work by_ctas)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    shared_memory &m = *reinterpret_cast<shared_memory *>(shared);
    grid_wait();
    const share own = own_share(by_ctas);
    unsigned first = own.first;
    if (ALL_WHOLE) {
        load_tiles<operand, THREADS>(m.tiles[0], p, full_problem<operand>(p, first), true);
    } else {
        if (warp() == 0) find_problems(m.problems, p, first, own.step);
        sync_threads(); /* the first problem descriptors are there */
        load_tiles<operand, THREADS>(m.tiles[0], p, m.problems[0], m.problems[0].is_ours);
    }
    ROLLED for (unsigned n = 0;;) {
        uint16_t *const other_tiles = m.tiles[(n + 1) % PLACES];
        own_values values = {};
        const bool are_asked = first < own.end && (ALL_WHOLE || m.problems[n % SLOTS].is_ours);
        wait_for_tiles(m, values, m.tiles[n % PLACES], are_asked);
        /* The next descriptors are there, too. The last problem is done, or is retried with the maxima of all keys: o
         * took the place of its q, and its v is scaled, so all is loaded once more. */
        const bool is_again = n > 0 && !are_all(m.is_right[(n - 1) % 2]);
        const unsigned item = is_again ? n - 1 : n, problem = is_again ? first - own.step : first;
        const forward_problem &c = m.problems[item % SLOTS];
        if (is_again) {
            if (ALL_WHOLE) load_tiles<operand, THREADS>(other_tiles, p, full_problem<operand>(p, problem), true);
            else load_tiles<operand, THREADS>(other_tiles, p, c, true);
            wait_for_tiles(m, values, other_tiles, true);
        } else if (first >= own.end) {
            return;
        }
        uint16_t *const tiles = m.tiles[item % PLACES];
        const bool is_ours = ALL_WHOLE || c.is_ours;
        const float by = is_ours ? power(-scale_values(m, tiles, values)) : 1;
        const bool loads = !is_again && first + own.step < own.end;
        bool is_right = true;
        if (ALL_WHOLE) {
            const forward_problem whole = full_problem<operand>(p, problem);
            if (loads) load_tiles<operand, THREADS>(other_tiles, p, full_problem<operand>(p, first + own.step), true);
            is_right = take_problem<true>(p, whole, tiles, !is_again, by);
        } else {
            const forward_problem &next = m.problems[(n + 1) % SLOTS];
            if (loads) load_tiles<operand, THREADS>(other_tiles, p, next, next.is_ours);
            if (loads && n % PLACES == 0 && warp() == 0)
                find_problems(&m.problems[(n + PLACES) % SLOTS], p, first + PLACES * own.step, own.step);
            const bool is_near = !is_again && c.used_k == KEYS;
            if (c.is_whole) is_right = take_problem<true>(p, c, tiles, is_near, by);
            else if (is_ours) is_right = take_problem<false>(p, c, tiles, is_near, by);
        }
        const uint32_t wrong = ballot(FULL_WARP, !is_right);
        if (lane() == 0) m.is_right[item % 2][warp()] = wrong == 0;
        if (!is_again) ++n, first += own.step;
    }
}

template <bool ALL_WHOLE>
int launch(const forward_params &p, void *stream)
{
    const work by_ctas = divide_work(p.batch * p.num_heads_q, launch_num_sms(stream) * MIN_BLOCKS, ALL_ROUNDS);
    const launch_shape grid = {{ctas_of(by_ctas), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               sizeof(shared_memory), THREADS, MIN_BLOCKS, true};
    return LAUNCH(short_forward_sm90_scaled_kernel<ALL_WHOLE>, grid, stream, p, by_ctas);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_forward_sm90_scaled)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0) return 0;
    return are_whole<operand>(*p) ? launch<true>(*p, stream) : launch<false>(*p, stream);
}

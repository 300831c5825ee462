/* forward_sm90.cu - attention forward of whole short sequences on Hopper's tensor cores (wgmma).
 *
 *     o = softmax(softmax_scale q k^T) v,   lse = ln(sum of exp)
 *
 * Takes what short/forward_sm80.cu does of at most 128 rows and keys, of heads of more than 128 features 64, and of
 * scores that are no more than softmax_scale q . k, softmax_scale >= 0: every row sees every key in use. Of 65 rows or
 * keys and more, heads of bf16 and at most 32 features are short/forward_sm90_scaled.cu's.
 *
 * Grid    x: problems, one for each sequence and query head, or pairs of them; at 32 features persistent CTAs take one
 *         after the other (own_share). They may come before the previous launch has ended (grid_wait)
 * Block   a warpgroup: two problems of at most 32 rows and keys; or one, its rows 0 .. 63, then, if there are any, the
 *         others
 * Shared  q, k and v, as wgmma reads them, twice for persistent CTAs; o in the place of q; problem descriptors: where
 *         the problems' rows are, which launches of nothing but full problems do without
 * Phases  problem descriptors; load q, k and v; for each 64 rows: s = q k^T, softmax over all keys, o = p v, write o;
 *         retry a problem of 128 keys where the maximum of a row is far above that of the first keys
 *
 * Persistent CTAs load the next problems' rows while they use these. No phase of the others hides another's latency, so
 * several CTAs share an SM. p has two parts of 16 bits, as in short/forward_sm80.cu. kernels/short/short.md has the
 * figures, reference/bounds.md section 11 what it may be off by. */
#include "kernels/short/forward_sm90.h"

namespace {

enum { THREADS = 128 };

/* This many CTAs fit on an SM: as many as registers or shared memory allow. */
template <typename shape>
constexpr int MIN_BLOCKS = shape::DIM > 128 ? 2
                           : shape::DIM > 64 ? (shape::KEYS > 64 ? 2 : shape::KEYS > 32 ? 3 : 4)
                           : shape::KEYS > 64 ? 4
                           : shape::KEYS > 32 ? (shape::DIM <= 32 ? 6 : 5)
                                              : (shape::DIM <= 32 ? 6 : 4);

/* There are this many pipeline stages for q, k and v: with two, the next problems' rows are loaded into the second. */
template <typename shape>
constexpr unsigned STAGES = shape::DIM <= 32 ? 2 : 1;

/* A persistent CTA takes this many of many full items: where memory is what it waits for, as few as hide loads. */
template <typename shape>
constexpr int64_t ROUNDS = shape::KEYS > 64 ? ALL_ROUNDS : 2;

/* A product with p takes this many features: if it has two problems at once, registers are short for all of many. */
template <typename shape>
constexpr int FEATURES = shape::PROBLEMS == 2 && shape::DIM > 64 ? shape::DIM / 2 : shape::DIM;

/* Takes, from what a lane has of a product of all rows and both problems, its own problem's part. */
template <typename shape, int COUNT>
DEVICE void take_own(float (&own)[COUNT / shape::PROBLEMS], const float (&all)[COUNT])
{
    if constexpr (shape::PROBLEMS == 1) {
        UNROLL for (int n = 0; n < COUNT; ++n) own[n] = all[n];
    } else {
        UNROLL for (int n = 0; n < COUNT / 2; ++n) own[n] = warp() < THREADS / 64 ? all[n] : all[n + COUNT / 2];
    }
}

/* Computes rows first .. first + 63 of the tile of q, which is complete, as k and v are. c describes the warp's
 * problem. WHOLE says that all of the CTA's problems are full. is_near is as in find_softmax_weights; false comes back
 * if that was wrong. */
template <typename T, typename shape, bool WHOLE>
DEVICE bool take_warpgroup_rows(const forward_params &p, const forward_problem &c, uint16_t *q, int first, bool is_near)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS, PROBLEMS = shape::PROBLEMS, N = FEATURES<shape>;
    const uint16_t *const k = q + shape::TILE * DIM, *const v = k + shape::TILE * DIM;
    const int tile_row = first + static_cast<int>(warp()) * 16, warp_row = tile_row % KEYS;
    const int used_k = WHOLE ? KEYS : c.used_k, rows = WHOLE ? 16 : c.seqlen_q - warp_row; /* of the warp's */
    const int seen = WHOLE ? 16 : used_k > 0 ? c.used_q - warp_row : 0;
    float s_of_all[shape::TILE / 2] = {}, s[KEYS / 2];
    weight_parts<KEYS> parts;
    const row_pointer o_row = first_row_of_o<DIM>(p, c, static_cast<unsigned>(warp_row));
    multiply_rows<T, shape, shape::TILE>(s_of_all, descriptor<shape>(q, static_cast<unsigned>(first)),
                                         descriptor<shape>(k));
    wait_for<0>(s_of_all);
    take_own<shape>(s, s_of_all);
    const row_sums sums = find_softmax_weights<KEYS>(s, p.softmax_scale * LOG2_E, used_k, is_near);
    split_weights<T>(parts, s);
    /* o is sum p v / sum p: this is sum p of both rows. */
    float sum[2];
    ROLLED for (unsigned x = 0; x < DIM; x += N) {
        float o_of_all[PROBLEMS][N / 2] = {};
        UNROLL for (unsigned n = 0; n < PROBLEMS; ++n)
            multiply_parts<T, shape, N>(o_of_all[n], parts, descriptor<shape>(v, KEYS * n, x));
        UNROLL for (int n = 0; n < PROBLEMS; ++n) wait_for<0>(o_of_all[n]);
        if (rows <= 0) continue;
        float(&o)[N / 2] = o_of_all[0];
        if constexpr (PROBLEMS == 2)
            UNROLL for (int n = 0; n < N / 2; ++n) o[n] = tile_row < KEYS ? o[n] : o_of_all[1][n];
        sum[0] = sum_of_quad(sums.sum[0]), sum[1] = sum_of_quad(sums.sum[1]);
        const float factor[2] = {rcp_f32(sum[0]), rcp_f32(sum[1])};
        if (x == 0) write_lse(p, c, static_cast<unsigned>(warp_row), sums, sum, rows, seen);
        uint32_t pairs[N / 4];
        round_sums<T, N>(pairs, o, factor[0], factor[1]);
        stage_rows<shape, N>(q, static_cast<unsigned>(tile_row), pairs, x);
    }
    if (rows <= 0) return true;
    write_rows<shape>(p.o, q, static_cast<unsigned>(tile_row), o_row, rows, seen < rows ? seen : 16, WHOLE);
    return !is_near || (sum[0] <= MOST_WEIGHT && sum[1] <= MOST_WEIGHT);
}

/* Waits until what this thread loads is there; after the next barrier all tiles are, and wgmma may read them. */
DEVICE void wait_for_tiles()
{
    cp_async_wait_all();
    fence_proxy_async_shared();
}

/* Computes the warp's problem, among those whose tiles are complete. Returns whether its weights are right: they always
 * are, unless is_near. */
template <typename T, typename shape, bool WHOLE>
DEVICE bool take_problem(const forward_params &p, const forward_problem &c, uint16_t *q, bool is_near)
{
    constexpr int WARPS = THREADS / 32 / shape::PROBLEMS; /* of a problem */
    const int used_q = WHOLE ? shape::KEYS : c.used_q;
    bool is_right = true;
    int row = 0;
    ROLLED for (; row < shape::KEYS && (shape::PROBLEMS > 1 || row < used_q); row += ROWS)
        is_right &= take_warpgroup_rows<T, shape, WHOLE>(p, c, q, row, is_near);
    if (!WHOLE) write_empty_rows<WARPS>(p, c, row < shape::KEYS ? row : shape::KEYS);
    return is_right;
}

/* Returns whether one of an item's problems is this launch's. */
template <unsigned PROBLEMS>
DEVICE bool are_ours(const forward_problem (&problems)[PROBLEMS])
{
    return problems[0].is_ours || problems[PROBLEMS - 1].is_ours;
}

/* Finds the problem descriptors of a round: for each stage PROBLEMS neighbouring ones, `step` after those of the stage
 * before. One warp does it. */
template <typename shape>
DEVICE void find_problems(forward_problem (*problems)[shape::PROBLEMS], const forward_params &p, unsigned first,
                          unsigned step)
{
    constexpr unsigned LANES = 8, PROBLEMS = shape::PROBLEMS; /* of a descriptor: at least one for each tensor */
    const unsigned item = lane() / LANES / PROBLEMS, n = lane() / LANES % PROBLEMS;
    if (item < STAGES<shape>) find_problem<shape>(p, first + item * step + n, problems[item][n], lane() % LANES);
}

template <typename shape>
struct shared_memory {
    uint16_t tiles[STAGES<shape>][3 * shape::TILE * shape::DIM]; /* q, k and v of an item, and of the next */
    forward_problem problems[2 * STAGES<shape>][shape::PROBLEMS];              /* of a round, and of the next */
    bool is_right[2][THREADS / 32];                              /* of an item, and of the next, by warp */
};

/* Takes item after item: a problem, or a pair of them. ALL_WHOLE says that there are only full problems, in full pairs,
 * so that every thread finds by itself where their rows are. */
template <typename T, typename shape, bool ALL_WHOLE>
KERNEL(THREADS, MIN_BLOCKS<shape>)
void short_forward_sm90_kernel(const GRID_CONSTANT forward_params p, const work by_ctas)
{
    constexpr unsigned PROBLEMS = shape::PROBLEMS, PLACES = STAGES<shape>, SLOTS = 2 * PLACES;
    constexpr bool MAY_BE_NEAR = shape::KEYS == MOST_KEYS;
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    shared_memory<shape> &m = *reinterpret_cast<shared_memory<shape> *>(shared);
    grid_wait();
    const share own = own_share(by_ctas);
    const unsigned place = PROBLEMS == 1 ? 0 : warp() / (THREADS / 32 / PROBLEMS); /* of the warp's problem */
    const unsigned step = own.step * PROBLEMS, end = own.end * PROBLEMS;
    unsigned first = own.first * PROBLEMS;
    if (ALL_WHOLE) {
        load_tiles<shape, THREADS>(m.tiles[0], p, full_problem<shape>(p, first + place), true);
    } else {
        if (warp() == 0) find_problems<shape>(m.problems, p, first, step);
        sync_threads(); /* the first problem descriptors are there */
        load_tiles<shape, THREADS>(m.tiles[0], p, m.problems[0][place], are_ours(m.problems[0]));
    }
    ROLLED for (unsigned n = 0;;) {
        uint16_t *const other_tiles = m.tiles[(n + 1) % PLACES];
        wait_for_tiles();
        sync_threads(); /* the tiles are complete; the next problem descriptors, too; the last item is done with */
        /* A retry goes by the maxima of all keys. o took the place of q, so all is loaded again. */
        const bool is_again = MAY_BE_NEAR && n > 0 && !are_all(m.is_right[(n - 1) % 2]);
        const unsigned item = is_again ? n - 1 : n, problem = is_again ? first - step : first;
        const forward_problem (&problems)[PROBLEMS] = m.problems[item % SLOTS];
        if (is_again) {
            if (ALL_WHOLE) load_tiles<shape, THREADS>(other_tiles, p, full_problem<shape>(p, problem), true);
            else load_tiles<shape, THREADS>(other_tiles, p, problems[0], true);
            wait_for_tiles();
            sync_threads();
        } else if (first >= end) {
            return;
        }
        const bool goes_on = PLACES > 1 && first + step < end;
        const bool loads = goes_on && !is_again;
        uint16_t *const tiles = m.tiles[item % PLACES];
        bool is_right = true;
        if (ALL_WHOLE) {
            if (loads) load_tiles<shape, THREADS>(other_tiles, p, full_problem<shape>(p, first + step + place), true);
            is_right = take_problem<T, shape, true>(p, full_problem<shape>(p, problem + place), tiles,
                                                    MAY_BE_NEAR && !is_again);
        } else {
            const forward_problem (&next)[PROBLEMS] = m.problems[(n + 1) % SLOTS];
            if (loads) load_tiles<shape, THREADS>(other_tiles, p, next[place], are_ours(next));
            if (loads && n % PLACES == 0 && warp() == 0)
                find_problems<shape>(&m.problems[(n + PLACES) % SLOTS], p, first + PLACES * step, step);
            const forward_problem &c = problems[place];
            const bool is_near = MAY_BE_NEAR && !is_again && c.used_k == shape::KEYS;
            if (problems[0].is_whole && problems[PROBLEMS - 1].is_whole)
                is_right = take_problem<T, shape, true>(p, c, tiles, is_near);
            else if (are_ours(problems))
                is_right = take_problem<T, shape, false>(p, c, tiles, is_near);
        }
        if (MAY_BE_NEAR) {
            const uint32_t wrong = ballot(FULL_WARP, !is_right);
            if (lane() == 0) m.is_right[item % 2][warp()] = wrong == 0;
        } else if (!goes_on) {
            return;
        }
        if (!is_again) ++n, first += step;
    }
}

template <typename T, int DIM, int KEYS>
int launch(const forward_params &p, void *stream)
{
    using shape = short_shape<DIM, KEYS>;
    const int64_t problems = p.batch * p.num_heads_q;
    const int64_t items = (problems + shape::PROBLEMS - 1) / shape::PROBLEMS;
    const bool is_whole = are_whole<shape>(p);
    const int64_t places = STAGES<shape> == 1 ? items : launch_num_sms(stream) * MIN_BLOCKS<shape>;
    const work by_ctas = divide_work(items, places, is_whole ? ROUNDS<shape> : ALL_ROUNDS);
    const launch_shape grid = {{ctas_of(by_ctas), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               sizeof(shared_memory<shape>), THREADS, MIN_BLOCKS<shape>, true};
    if (is_whole) return LAUNCH((short_forward_sm90_kernel<T, shape, true>), grid, stream, p, by_ctas);
    return LAUNCH((short_forward_sm90_kernel<T, shape, false>), grid, stream, p, by_ctas);
}

template <typename T, int DIM>
int launch_length(const forward_params &p, void *stream)
{
    const int longest = longest_of(p);
    if (longest <= 32) return launch<T, DIM, 32>(p, stream);
    if constexpr (DIM > 32 || IS_F16<T>) /* the others are short_forward_sm90_scaled's */
        if (longest > 64) return launch<T, DIM, 128>(p, stream);
    return launch<T, DIM, 64>(p, stream);
}

template <typename T>
int launch_width(const forward_params &p, void *stream)
{
    const int widest = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    if (widest <= 32) return launch_length<T, 32>(p, stream);
    if (widest <= 64) return launch_length<T, 64>(p, stream);
    if (widest <= 128) return launch_length<T, 128>(p, stream);
    if (longest_of(p) <= 32) return launch<T, 256, 32>(p, stream);
    return launch<T, 256, 64>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_forward_sm90)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

/* wgmma_tiles.h - what kernels of whole short sequences on Hopper's tensor cores (wgmma) share: how CTAs divide
 * problems, operands in shared memory, products, how results are written.
 *
 * An operand is a tile of rows of features, in panels of 64 of them, or the 32 that there are: a row of a panel is as
 * long as wgmma's swizzle, and lies as shared/tiles.h has it. A warpgroup multiplies 64 rows of one at once, 16 for
 * each warp; fragments are those of device/wgmma.h. */
#ifndef ATTEST_KERNELS_SHARED_WGMMA_TILES_H
#define ATTEST_KERNELS_SHARED_WGMMA_TILES_H

#include "kernels/device/device.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"

enum { ROWS = 64 }; /* of a product */

/* A problem has MOST keys, and as many rows. Two problems of 32 lie side by side in each tile, and are multiplied with
 * each other as well: nobody looks at those products. */
template <int DIMENSIONS, int MOST>
struct short_shape {
    static constexpr int DIM = DIMENSIONS, KEYS = MOST, PROBLEMS = KEYS < ROWS ? ROWS / KEYS : 1;
    static constexpr int TILE = KEYS * PROBLEMS; /* rows of q, k and v in shared memory */
    /* They lie in panels of 64 features, or the 32 that there are: a panel's row is as long as wgmma's swizzle. */
    static constexpr int PANEL = DIM < 64 ? DIM : 64;
};

/* ---- persistent CTAs --------------------------------------------------------------------------------------------- */

/* Says how CTAs share items 0 .. items - 1. As many CTAs as the GPU has places for are persistent and take `rounds`
 * items each, or all items if those are few. SMs do not keep pace with each other: of many equal shares the first ends
 * after 0.8 of the last one's time. So the last eighth is left to other CTAs, each of which takes a piece of
 * neighbouring items in the first place that becomes free.
 *
 * CTAs that drift apart ask for memory that lies far apart, which is slower. So a kernel that waits for memory has each
 * CTA take few rounds, in waves of as many CTAs as there are places: the next wave's CTAs, too, take what becomes free,
 * and items are begun in their order. */
struct work {
    uint32_t items, staying, rounds, waves;
    uint32_t piece; /* items of a CTA that comes after the waves */
    struct divisor by_staying;
};
constexpr unsigned FEW_ROUNDS = 64, MOST_PIECE = 4;
constexpr int64_t ALL_ROUNDS = UINT32_MAX;

/* Runs on the host. places is how many CTAs the GPU has room for; 0 is taken for 1. No more `items` than that get a CTA
 * each. most_rounds limits the rounds where there are many items. */
static inline work divide_work(int64_t items, int64_t places, int64_t most_rounds)
{
    const int64_t staying = places < 1 ? 1 : places < items ? places : items;
    int64_t rounds = (items + staying - 1) / staying, waves = 1;
    if (rounds >= FEW_ROUNDS) {
        rounds = items * 7 / (8 * staying);
        rounds = rounds < most_rounds ? rounds : most_rounds;
        waves = items / (staying * rounds);
    }
    return {static_cast<uint32_t>(items), static_cast<uint32_t>(staying), static_cast<uint32_t>(rounds),
            static_cast<uint32_t>(waves), static_cast<uint32_t>(rounds < MOST_PIECE ? rounds : MOST_PIECE),
            divisor_of(staying)};
}

static inline unsigned ctas_of(const work &w)
{
    const uint32_t staying = w.staying * w.waves, taken = staying * w.rounds;
    return staying + (taken < w.items ? (w.items - taken + w.piece - 1) / w.piece : 0);
}

/* A share is items first, first + step, ... below end. */
struct share {
    unsigned first, step, end;
};

INLINE share share_of(const work &w, unsigned cta)
{
    const unsigned wave = quotient(cta, w.by_staying), of_waves = w.staying * w.waves;
    const bool stays = wave < w.waves;
    const unsigned step = stays ? w.staying : 1, count = stays ? w.rounds : w.piece;
    const unsigned first =
        stays ? cta + wave * w.staying * (count - 1) : of_waves * w.rounds + (cta - of_waves) * count;
    const unsigned end = first + count * step;
    return {first, step, end < w.items ? end : w.items};
}

INLINE share own_share(const work &w) { return share_of(w, block_x()); }

/* ---- operands ---------------------------------------------------------------------------------------------------- */

/* Returns how many numbers lie before feature x of a row. */
template <typename shape>
DEVICE unsigned offset(unsigned row, unsigned x)
{
    return x / shape::PANEL * shape::TILE * shape::PANEL + tile_offset<shape::PANEL>(row, x % shape::PANEL);
}

/* Loads the first `count` rows, of `length` numbers, of a problem; all else is zero. THREADS share the work, a part of
 * them for each problem, and this is number `thread`. Copies are asynchronous. */
template <typename shape, int THREADS>
DEVICE void load_operand(uint16_t *to, const row_tensor &t, char *rows, int length, int count, unsigned thread)
{
    constexpr int OF_ONE = THREADS / shape::PROBLEMS;
    row_pointer row = {rows, t.dtype, t.by_four, length};
    to += thread / OF_ONE * (shape::KEYS * shape::PANEL);
    ROLLED for (int x = 0; x < shape::DIM; x += shape::PANEL) { /* copies of rows of any length are much code */
        load_rows<shape::KEYS, shape::PANEL, OF_ONE>(to + x * shape::TILE, row, t.seqlen * 2, t.by_eight != 0, count,
                                                     thread % OF_ONE);
        row.data += 2 * shape::PANEL, row.length -= shape::PANEL;
    }
}

/* Does the same for as many rows and features as the operand has, all aligned. */
template <typename shape, int THREADS>
DEVICE void load_whole_operand(uint16_t *to, const row_tensor &t, const char *rows, unsigned thread)
{
    constexpr unsigned OF_ONE = THREADS / shape::PROBLEMS, CHUNKS = shape::DIM / 8, STEP = OF_ONE / CHUNKS;
    const unsigned x = thread % OF_ONE % CHUNKS * 8, row = thread % OF_ONE / CHUNKS;
    const int64_t step = t.seqlen * 2;
    const unsigned at = offset<shape>(row, x); /* of rows a multiple of eight apart, chunks lie in the same order */
    to += thread / OF_ONE * (shape::KEYS * shape::PANEL);
    rows += row * step + 2 * x;
    UNROLL for (unsigned r = 0; r < shape::KEYS; r += STEP, rows += STEP * step)
        cp_async_16(&to[STEP % 8 == 0 ? at + offset<shape>(r, 0) : at ^ offset<shape>(r, 0)], rows);
}

template <typename shape>
DEVICE uint64_t descriptor(const uint16_t *operand)
{
    return wgmma_descriptor(operand, shape::TILE * shape::PANEL * 2, 8 * shape::PANEL * 2, shape::PANEL * 2);
}

/* Does the same from row `row` and feature `x` on. */
template <typename shape>
DEVICE uint64_t descriptor(const uint16_t *operand, unsigned row, unsigned x = 0)
{
    return wgmma_advance(descriptor<shape>(operand), offset<shape>(row, x) * 2);
}

/* ---- products: a group of wgmmas each, which is not waited for --------------------------------------------------- */

/* Computes d = a b^T for 64 rows of a and N of b, plus d if `accumulate`. */
template <typename T, typename shape, int N>
DEVICE void multiply_rows(float (&d)[N / 2], uint64_t a, uint64_t b, bool accumulate = false)
{
    wgmma_fence_operand(d);
    wgmma_fence();
    UNROLL for (unsigned x = 0; x < shape::DIM; x += 16) {
        const uint64_t a_x = wgmma_advance(a, offset<shape>(0, x) * 2), b_x = wgmma_advance(b, offset<shape>(0, x) * 2);
        if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<N>(d, a_x, b_x, accumulate || x > 0);
        else wgmma_m64nNk16_bf16<N>(d, a_x, b_x, accumulate || x > 0);
    }
    wgmma_commit();
}

/* Holds each weight of 64 rows as a sum of two numbers of 16 bits: fragments of a product's a. */
template <int KEYS>
struct weight_parts {
    uint32_t at[2][KEYS / 16][4]; /* high, low */
};

/* Splits a lane's eight weights of 16 keys, from 16 j on. */
template <typename T, int KEYS>
DEVICE void split(weight_parts<KEYS> &out, int j, const float *weights)
{
    UNROLL for (int r = 0; r < 4; ++r) {
        const float *const pair = &weights[2 * r];
        out.at[0][j][r] = pack<T>(pair[0], pair[1]);
        out.at[1][j][r] = pack_rest<T>(pair[0], pair[1], out.at[0][j][r]);
    }
}

/* Splits the weights of 64 rows, as products take them. */
template <typename T, int KEYS>
DEVICE void split_weights(weight_parts<KEYS> &out, const float (&p)[KEYS / 2])
{
    UNROLL for (int j = 0; j < KEYS / 16; ++j) split<T>(out, j, &p[8 * j]);
}

/* Computes d = w b for 64 rows of weights, in two parts, and N features of a problem's rows of b. */
template <typename T, typename shape, int N = shape::DIM>
DEVICE void multiply_parts(float (&d)[N / 2], weight_parts<shape::KEYS> &w, uint64_t b)
{
    constexpr int KEYS = shape::KEYS;
    UNROLL for (int j = 0; j < KEYS / 16; ++j) wgmma_fence_operand(w.at[0][j]), wgmma_fence_operand(w.at[1][j]);
    wgmma_fence_operand(d);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j)
        UNROLL for (int part = 0; part < 2; ++part) {
            const uint64_t b_j = wgmma_advance(b, offset<shape>(16 * j, 0) * 2);
            const bool is_first = j == 0 && part == 0;
            if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<N, false, false, true>(d, w.at[part][j], b_j, !is_first);
            else wgmma_m64nNk16_bf16<N, false, false, true>(d, w.at[part][j], b_j, !is_first);
        }
    wgmma_commit();
}

/* Waits until at most PENDING groups are unfinished, none of which is d's. */
template <int PENDING, int COUNT>
DEVICE void wait_for(float (&d)[COUNT])
{
    wgmma_wait<PENDING>();
    wgmma_fence_operand(d);
}

/* ---- results: 16 rows of a warp, by way of shared memory, so that lanes store 16 bytes of a row at once ---------- */

/* Rounds sums times a factor for rows g and another for rows g + 8: two features lie in 32 bits. */
template <typename T, int DIM>
DEVICE void round_sums(uint32_t (&pairs)[DIM / 4], const float (&sums)[DIM / 2], float factor, float factor_8)
{
    UNROLL for (int n = 0; n < DIM / 4; ++n) {
        const float by = n % 2 == 0 ? factor : factor_8;
        pairs[n] = pack<T>(sums[2 * n] * by, sums[2 * n + 1] * by);
    }
}

/* Writes rows first_row .. first_row + 15 of a tile that lies as an operand does, N features from x on. */
template <typename shape, int N = shape::DIM>
DEVICE void stage_rows(uint16_t *tile, unsigned first_row, const uint32_t (&pairs)[N / 4], unsigned x = 0)
{
    const unsigned from = offset<shape>(first_row + lane() % 16, x + lane() / 16 * 8);
    UNROLL for (unsigned n = 0; n < N / 16; ++n) {
        const uint32_t four[4] = {pairs[4 * n], pairs[4 * n + 1], pairs[4 * n + 2], pairs[4 * n + 3]};
        stmatrix_x4(&tile[from ^ offset<shape>(0, 16 * n)], four);
    }
    sync_warp(FULL_WARP);
}

/* A lane stores those of the 16 rows from lane / CHUNKS on that are STEP apart, eight features each. */
template <int DIM>
constexpr unsigned CHUNKS = DIM / 8;
template <int DIM>
constexpr unsigned STEP = 32 / CHUNKS<DIM>;

/* Copies 16 rows from shared memory; `row` is a lane's first one. `rows` of them are in memory; those from `seen` on
 * are zero, whatever was staged. is_whole says that none of the 16 is missing, nor a feature, and that they are
 * aligned. */
template <typename shape>
DEVICE void write_rows(const row_tensor &t, uint16_t *tile, unsigned first_row, row_pointer row, int rows, int seen,
                       bool is_whole)
{
    constexpr unsigned DIM = shape::DIM, STRIDE = STEP<DIM>;
    const unsigned x = lane() % CHUNKS<DIM> * 8, first = lane() / CHUNKS<DIM>;
    const unsigned from = offset<shape>(first_row + first, x);
    const int64_t step = STRIDE * t.seqlen * 2;
    if (is_whole) {
        row.data += 2 * x;
        UNROLL for (unsigned r = 0; r < 16; r += STRIDE, row.data += step)
            store_global_16(row.data, load_16<sixteen_bytes>(&tile[from ^ offset<shape>(r, 0)]));
        return;
    }
    if (seen < 16) {
        ROLLED for (unsigned r = seen > 0 ? static_cast<unsigned>(seen) : 0; r < 16; ++r)
            ROLLED for (unsigned n = lane(); n < DIM; n += 32) tile[offset<shape>(first_row + r, n)] = 0;
        sync_warp(FULL_WARP);
    }
    if (t.by_eight && static_cast<int>(x) + 8 <= row.length) {
        row.data += 2 * x;
        UNROLL for (unsigned r = 0; r < 16; r += STRIDE, row.data += step)
            if (static_cast<int>(first + r) < rows)
                store_global_16(row.data, load_16<sixteen_bytes>(&tile[from ^ offset<shape>(r, 0)]));
    } else if (static_cast<int>(x) < row.length) {
        ROLLED for (unsigned r = 0; r < 16; r += STRIDE, row.data += step)
            if (static_cast<int>(first + r) < rows) store_eight(row, x, &tile[from ^ offset<shape>(r, 0)]);
    }
}

#endif

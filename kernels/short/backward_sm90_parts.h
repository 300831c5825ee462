/* backward_sm90_parts.h - what short/backward_sm90_n128.cu, short/backward_sm90_n128_latency.cu and
 * short/backward_sm90_n128_d256_latency.cu share: problems of 128 query rows and keys, whose weights have two parts of
 * 16 bits. */
#ifndef ATTEST_KERNELS_SHORT_BACKWARD_SM90_PARTS_H
#define ATTEST_KERNELS_SHORT_BACKWARD_SM90_PARTS_H

#include "kernels/short/backward_sm90.h"

constexpr int KEYS = 128;

/* A tile has DIM features, or HALF keys if it is of weights. */
template <int DIM>
using operand = short_shape<DIM, KEYS>;
constexpr int HALF = KEYS / 2; /* of the keys, or of the rows */

/* p and ds lie as operands of 64 keys, all query rows: high parts and low parts of keys 0 .. 63, then of 64 .. 127. */
DEVICE constexpr unsigned part_of(unsigned half, unsigned part) { return (2 * half + part) * KEYS * HALF; }

/* Returns the lane's number, found again wherever it is used, like warp_first(). */
DEVICE unsigned own_lane() { return shfl_idx(FULL_WARP, lane(), lane()); }

/* Loads a warp's 16 rows of a tile, from warp_row on; the first `count` of all rows are in use. */
template <int DIM>
DEVICE void load(uint16_t *to, const row_tensor &t, char *rows, int length, int count, bool is_whole, unsigned warp_row)
{
    constexpr int PANEL = operand<DIM>::PANEL;
    const unsigned own = own_lane();
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
    ROLLED for (int x = 0; x < DIM; x += PANEL) {
        load_rows<16, PANEL, 32>(to + x * KEYS + warp_row * PANEL, row, step, t.by_eight != 0,
                                 count - static_cast<int>(warp_row), own);
        row.data += 2 * PANEL, row.length -= PANEL;
    }
}

/* ---- p and ds: 64 query rows of a warpgroup, two of a lane, g and g + 8 ------------------------------------------ */

/* Holds s or p, dp or ds for half of the keys. */
typedef float half_row[HALF / 2];

/* Stores two parts of 16 keys, from 16 j on, of half of them, of a warp's 16 rows, in shared memory. */
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

/* Computes d = w b, or d += w b, for a warpgroup's rows and half of the keys, with w's parts in registers and b from
 * the first key on. */
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

/* Computes d = w b for a warpgroup's rows and all keys, or w^T b for its keys and all rows, from `first` on, with w's
 * parts in shared memory. */
template <typename T, int DIM, bool TRANSPOSE>
DEVICE void multiply_weights(float (&d)[DIM / 2], const uint16_t *w, uint64_t b, unsigned first)
{
    const uint64_t a = TRANSPOSE ? wgmma_advance(descriptor<operand<HALF>>(w), first / HALF * part_of(1, 0) * 2)
                                 : descriptor<operand<HALF>>(w, first);
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

/* ---- two pairs of warpgroups: one for query rows, one for keys --------------------------------------------------- */

/* These return the first row, or key, of a warpgroup and of a warp, as own_first() and warp_first() do, but within
 * either pair. */
DEVICE unsigned group_first() { return shfl_idx(FULL_WARP, warp() / 4 % 2, 0) * 64; }
DEVICE unsigned row_first() { return shfl_idx(FULL_WARP, warp() % 8 * 16, 0); }

/* Loads a warp's 16 rows of the CTA's problem, a full one, DIM features from x on. */
template <int DIM>
DEVICE void load_whole(uint16_t *to, const row_tensor &t, const backward_params &p, unsigned x = 0)
{
    uint16_t *const rows = whole_rows<uint16_t>(t, p, block_x()) + x;
    load<DIM>(to, t, reinterpret_cast<char *>(rows), DIM, KEYS, true, row_first());
}

/* Transposes numbers of four lanes: lane i's number j and lane j's number i change places. */
DEVICE void transpose_quad(uint32_t (&numbers)[4], unsigned lane)
{
    UNROLL for (unsigned by = 1; by < 4; by *= 2)
        UNROLL for (unsigned n = 0; n < 4; ++n) {
            if ((n & by) != 0) continue;
            const bool gives_first = (lane & by) != 0;
            const uint32_t given = shfl_xor(FULL_WARP, gives_first ? numbers[n] : numbers[n + by], by);
            if (gives_first) numbers[n] = given;
            else numbers[n + by] = given;
        }
}

/* Writes sums of a warp's 16 rows times a factor, for features from x on of the CTA's problem, a full one. A lane has
 * two features of every eight. The four lanes of a row exchange those of 32, so that each stores eight side by side,
 * and a quad 64 bytes of the row. */
template <typename T, int DIM>
DEVICE void write_sums(const row_tensor &t, const backward_params &p, const float (&sums)[DIM / 2], float factor,
                       unsigned x = 0)
{
    uint32_t pairs[DIM / 4]; /* of rows g and g + 8 in turns */
    round_sums<T, DIM>(pairs, sums, factor, factor);
    const unsigned own = own_lane();
    uint16_t *const problem = whole_rows<uint16_t>(t, p, block_x()) + x;
    uint16_t *const to = problem + (row_first() + own / 4) * t.seqlen + own % 4 * 8;
    UNROLL for (int n = 0; n < DIM / 4; n += 8)
        UNROLL for (int r = 0; r < 2; ++r) {
            uint32_t four[4] = {pairs[n + r], pairs[n + 2 + r], pairs[n + 4 + r], pairs[n + 6 + r]};
            transpose_quad(four, own);
            store_16(to + 8 * r * t.seqlen + 4 * n, four);
        }
}

#endif

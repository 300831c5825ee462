/* backward_sm80.h - what short/backward_sm80.cu and short/backward_sm80_any.cu share: products of 16 query rows and
 * their keys, weights in two parts of 16 bits, rows of results. Kernels of Hopper that take short/backward_any.h, too,
 * have the weights and the results of it. */
#ifndef ATTEST_KERNELS_SHORT_BACKWARD_SM80_H
#define ATTEST_KERNELS_SHORT_BACKWARD_SM80_H

#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"

/* Holds s, then p, or dp, then ds, of 16 query rows and all keys. A lane has keys 8 n + 2 t and 8 n + 2 t + 1 of row g
 * as at[n][0] and at[n][1], of row g + 8 as at[n][2] and at[n][3]. */
template <int KEYS>
struct row_pairs {
    float at[KEYS / 8][4];
};

/* Holds two 16-bit parts of weights, as fragments. */
template <int KEYS>
struct row_parts {
    uint32_t high[KEYS / 16][4], low[KEYS / 16][4];
};

DEVICE bool is_seen(float weight) { return bits_of(weight) != bits_of(-0.0f); }

/* Computes s = q k^T and dp = dout v^T for rows `row` .. row + 15, in turns: their chains of sums hide one another's
 * latency. */
template <typename T, int DIM, int KEYS>
DEVICE void multiply_rows(row_pairs<KEYS> &s, row_pairs<KEYS> &dp, const uint16_t *q, const uint16_t *dout,
                          const uint16_t *k, const uint16_t *v, unsigned row)
{
    s = {}, dp = {};
    UNROLL for (int x = 0; x < DIM; x += 16) {
        uint32_t a_q[4], a_dout[4];
        load_a<DIM>(a_q, q, row, x);
        load_a<DIM>(a_dout, dout, row, x);
        UNROLL for (int n = 0; n < KEYS / 16; ++n) {
            uint32_t b_k[2][2], b_v[2][2];
            load_b<DIM>(b_k, k, 16 * n, x);
            load_b<DIM>(b_v, v, 16 * n, x);
            UNROLL for (int i = 0; i < 2; ++i) {
                multiply<T>(s.at[2 * n + i], a_q, b_k[i]);
                multiply<T>(dp.at[2 * n + i], a_dout, b_v[i]);
            }
        }
    }
}

/* Splits weights: the high part is the rounded number, UNSEEN where that is -0; the low part is what rounding left,
 * rounded. */
template <typename T, int KEYS>
DEVICE void split(row_parts<KEYS> &out, const row_pairs<KEYS> &weights)
{
    UNROLL for (int j = 0; j < KEYS / 16; ++j)
        UNROLL for (int r = 0; r < 4; ++r) {
            const float *const pair = &weights.at[2 * j + r / 2][r % 2 * 2];
            const uint32_t high = pack<T>(pair[0], pair[1]);
            out.high[j][r] = high;
            out.low[j][r] = pack<T>(pair[0] - unpack<T>(high, false), pair[1] - unpack<T>(high, true));
        }
}

/* Stores the parts of rows `row` .. row + 15 in shared memory: for each 16 keys a tile of the high and one of the low
 * numbers, of ROWS rows each, so that the tiles of 16 keys lie together. */
template <int ROWS, int KEYS>
DEVICE void store_fragments(uint16_t *to, const row_parts<KEYS> &from, unsigned row)
{
    constexpr int PART = ROWS * 16;
    const unsigned g = lane() / 4, t = lane() % 4;
    UNROLL for (int j = 0; j < KEYS / 16; ++j)
        UNROLL for (unsigned r = 0; r < 4; ++r) {
            uint16_t *const at = &to[2 * j * PART + tile_offset<16>(row + r % 2 * 8 + g, r / 2 * 8) + 2 * t];
            *reinterpret_cast<uint32_t *>(at) = from.high[j][r];
            *reinterpret_cast<uint32_t *>(at + PART) = from.low[j][r];
        }
}

/* Names a warp's 16 rows of a result in global memory. */
struct result_rows {
    const row_tensor &t;
    row_pointer first;
    int count;      /* how many of them there are */
    float factor;   /* what their sums are multiplied by */
    uint16_t *tile; /* 16 rows of as many features as are summed at a time, in shared memory */
};

/* Stores sums of features x .. x + FEATURES - 1. They go through shared memory, so that lanes store 16 bytes of a row
 * at once. */
template <typename T, int FEATURES>
DEVICE void store_sums(const result_rows &to, const float (&sum)[FEATURES / 8][4], int x)
{
    constexpr unsigned CHUNKS = FEATURES / 8, ROWS = 32 / CHUNKS; /* rows at a time */
    const unsigned g = lane() / 4, t = lane() % 4, chunk = lane() % CHUNKS * 8, begin = lane() / CHUNKS;
    sync_warp(FULL_WARP); /* the tile is free */
    UNROLL for (unsigned n = 0; n < CHUNKS; ++n)
        UNROLL for (unsigned half = 0; half < 2; ++half) {
            const float *const pair = &sum[n][2 * half];
            *reinterpret_cast<uint32_t *>(&to.tile[tile_offset<FEATURES>(g + 8 * half, 8 * n) + 2 * t]) =
                pack<T>(to.factor * pair[0], to.factor * pair[1]);
        }
    sync_warp(FULL_WARP);
    const int64_t step = to.t.seqlen * 2;
    row_pointer row = to.first;
    row.data += begin * step;
    const int left = to.count - static_cast<int>(begin);
    if (to.t.by_eight && x + static_cast<int>(chunk) + 8 <= row.length) {
        row.data += 2 * (x + static_cast<int>(chunk));
        UNROLL for (unsigned r = 0; r < 16; r += ROWS, row.data += ROWS * step)
            if (static_cast<int>(r) < left)
                store_global_16(row.data, load_16<sixteen_bytes>(&to.tile[tile_offset<FEATURES>(begin + r, chunk)]));
    } else if (x + static_cast<int>(chunk) < row.length) {
        ROLLED for (unsigned r = 0; r < 16; r += ROWS, row.data += ROWS * step)
            if (static_cast<int>(r) < left)
                store_eight(row, x + chunk, &to.tile[tile_offset<FEATURES>(begin + r, chunk)]);
    }
}

/* Writes zeros to rows first .. last - 1 of a sequence, of one head, by the whole CTA. */
template <int DIM, int THREADS_OF_CTA>
DEVICE void clear_rows(const row_tensor &t, int64_t b, int64_t sequence_first, int32_t first, int32_t last,
                       int64_t head, int length)
{
    constexpr int CHUNKS = DIM / 8;
    alignas(16) const uint16_t zeros[8] = {};
    const int thread = static_cast<int>(thread_x()), x = thread % CHUNKS * 8;
    ROLLED for (int32_t r = first + thread / CHUNKS; r < last; r += THREADS_OF_CTA / CHUNKS)
        store_eight(row_of(t, b, sequence_first + r, head, length), x, zeros);
}

#endif

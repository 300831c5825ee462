/* fp32.h - matrix products on CUDA cores, for the kernels without tensor cores: fp32 sums, one fused multiply-add each.
 *
 * A CTA owns TILE_A rows and walks over rows of the other side, TILE_B at a time: queries over keys, or keys over
 * queries. 8 groups of 16 threads; a group owns 4 rows a, a thread 4 rows b of each tile and 4 features of every SPAN.
 * Features pass through shared memory SPAN at a time, so that its size does not depend on how many there are. */
#ifndef ATTEST_KERNELS_SHARED_FP32_H
#define ATTEST_KERNELS_SHARED_FP32_H

#include "kernels/device/device.h"
#include "kernels/shared/gradients.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"

enum {
    THREADS = 128,
    TILE_A = 32,
    TILE_B = 64,
    ROWS = 4,     /* a, to a thread: neighbours */
    KEYS = 4,     /* b, to a thread: column, column + 16, ... */
    COLUMNS = 16, /* threads that share rows a: one half of a warp */
    SPAN = 4 * COLUMNS,
    PITCH = SPAN + 4 /* floats from row to row: one quad more spreads them over the banks */
};

DEVICE int column_of_thread() { return static_cast<int>(thread_x()) % COLUMNS; }
DEVICE int row_of_thread() { return static_cast<int>(thread_x()) / COLUMNS * ROWS; } /* the first of ROWS */

/* Holds a number for each row a and row b of a tile. */
struct alignas(16) weight_tile {
    float at[TILE_A * PITCH];
};

/* Returns the place of a thread's pair (i, c): rows row_of_thread() + i of a and column_of_thread() + 16 c of b. */
DEVICE int pair_of_thread(int i, int c) { return (row_of_thread() + i) * PITCH + column_of_thread() + c * COLUMNS; }

/* This stands in place of the weight of a pair that takes no part: a NaN that no operation returns. */
constexpr uint32_t INVISIBLE = 0xffffffff;

DEVICE float weight_of(bool visible, float weight)
{
    return visible ? one_nan_f32(weight) : float_of(INVISIBLE);
}

struct alignas(16) row_tiles {
    float a[TILE_A * PITCH], b[TILE_B * PITCH];
};

/* Points to `count` neighbouring rows of one head of a tensor. */
struct head_rows {
    const row_tensor *tensor;
    int64_t b, first, head;
    int32_t length, count; /* features; rows */
};

/* Names one query head of one sequence. */
struct query_head {
    int64_t b, head;
    sequence s;
    score_rule rule;
};

INLINE query_head find_query_head(const forward_params &p, int64_t b, int64_t head)
{
    return {b, head, find_sequence(p, b), find_score_rule(p, b, head)};
}

/* Returns rows of queries, of q, dout or what has their shape; and rows of the keys that the head sees, of k or v. */
INLINE head_rows query_rows(const row_tensor &t, const query_head &h, int32_t row, int32_t count, int32_t length)
{
    return {&t, h.b, h.s.first_q + row, h.head, length, count};
}

INLINE head_rows key_rows(const forward_params &p, const row_tensor &t, const query_head &h, int32_t key, int32_t count,
                          int32_t length)
{
    return {&t, h.b, h.s.first_k + key, h.head / p.group, length, count};
}

/* Loads features x .. x + SPAN - 1 of rows, as far as there are any, into TILE rows of shared memory. The last quad and
 * rows past the last are filled with zeros: what nobody sees is not read, and stale shared memory could hold a NaN. */
template <int TILE>
DEVICE void load_span(float *tile, const head_rows &rows, int x)
{
    const int column = 4 * column_of_thread();
    if (x + column >= rows.length) return;
    for (int r = static_cast<int>(thread_x()) / COLUMNS; r < TILE; r += THREADS / COLUMNS) {
        const bool exists = r < rows.count;
        const row_pointer row = row_of(*rows.tensor, rows.b, rows.first + (exists ? r : 0), rows.head, rows.length);
        store_16(&tile[r * PITCH + column], exists ? load_features(row, x + column) : quad{{0, 0, 0, 0}});
    }
}

/* Computes out[a][b] = row a . row b, as a chain over the features. A thread writes its own pairs, so it needs no
 * barrier to read them. */
DEVICE void dot_products(weight_tile &out, row_tiles &tiles, const head_rows &a, const head_rows &b)
{
    const float *const rows_a = &tiles.a[row_of_thread() * PITCH], *const rows_b = &tiles.b[column_of_thread() * PITCH];
    float dot[ROWS][KEYS] = {};
    for (int x = 0; x < a.length; x += SPAN) {
        sync_threads(); /* the tiles are free, and so is `out` */
        load_span<TILE_A>(tiles.a, a, x);
        load_span<TILE_B>(tiles.b, b, x);
        sync_threads(); /* the tiles are complete */
        const int span = a.length - x < SPAN ? a.length - x : SPAN;
        for (int f = 0; f < span; f += 4) {
            quad u[ROWS], v[KEYS];
            for (int i = 0; i < ROWS; ++i) u[i] = load_16<quad>(&rows_a[i * PITCH + f]);
            for (int c = 0; c < KEYS; ++c) v[c] = load_16<quad>(&rows_b[c * COLUMNS * PITCH + f]);
            for (int i = 0; i < ROWS; ++i)
                for (int c = 0; c < KEYS; ++c)
                    for (int n = 0; n < 4; ++n) dot[i][c] = fma_rn(u[i].at[n], v[c].at[n], dot[i][c]);
        }
    }
    for (int i = 0; i < ROWS; ++i)
        for (int c = 0; c < KEYS; ++c) out.at[pair_of_thread(i, c)] = dot[i][c];
}

/* Computes sum[i][n] += weights b for features 4 column_of_thread() + SPAN n and the next three, over the rows b that
 * take part: a hidden one may hold a NaN, and zero times that is a NaN, too. The weights need no barrier before or
 * after. */
template <int DIM>
DEVICE void accumulate(quad (&sum)[ROWS][DIM / SPAN], row_tiles &tiles, const weight_tile &weights, const head_rows &b)
{
    const float *const row = &weights.at[row_of_thread() * PITCH];
    UNROLL for (int n = 0; n < DIM / SPAN; ++n) {
        if (SPAN * n >= b.length) break;
        sync_threads(); /* the weights are complete, the tile is free */
        load_span<TILE_B>(tiles.b, b, SPAN * n);
        sync_threads(); /* the tile is complete */
        if (SPAN * n + 4 * column_of_thread() >= b.length) continue;
        for (int j = 0; j < b.count; j += 4) {
            quad w[ROWS];
            for (int i = 0; i < ROWS; ++i) w[i] = load_16<quad>(&row[i * PITCH + j]);
            for (int e = 0; e < 4; ++e) {
                const quad value = load_16<quad>(&tiles.b[(j + e) * PITCH + 4 * column_of_thread()]);
                for (int i = 0; i < ROWS; ++i)
                    for (int f = 0; f < 4; ++f)
                        if (bits_of(w[i].at[e]) != INVISIBLE)
                            sum[i][n].at[f] = fma_rn(w[i].at[e], value.at[f], sum[i][n].at[f]);
            }
        }
    }
}

struct vote_words {
    uint32_t at[THREADS / 32];
};

/* Returns whether masks of bytes hide every pair of rows x keys from (row, key) on: then a tile can be left out. */
DEVICE bool is_tile_hidden(const forward_params &p, const query_head &h, int32_t row, int rows, int32_t key, int keys,
                           vote_words &votes)
{
    if (h.rule.mask == nullptr && h.rule.block_mask == nullptr) return false;
    sync_threads(); /* the votes are free */
    return is_hidden<THREADS>(p, h.rule, h.s, row, rows, key, keys, votes.at);
}

/* Returns whether a thread of the CTA votes so. All threads call it. */
DEVICE bool vote_any(vote_words &votes, bool vote)
{
    sync_threads(); /* the votes are free */
    const uint32_t of_warp = ballot(FULL_WARP, vote);
    if (lane() == 0) votes.at[warp()] = of_warp;
    sync_threads();
    uint32_t all = 0;
    for (int w = 0; w < THREADS / 32; ++w) all |= votes.at[w];
    return all != 0;
}

/* Holds a number for each row a. */
struct row_numbers {
    float at[TILE_A];
};

/* Returns the largest x of the 16 threads that share rows a, the same in all of them. */
DEVICE float max_of_row(float x)
{
    for (unsigned step = COLUMNS / 2; step > 0; step /= 2) x = max_f32(x, shfl_xor(FULL_WARP, x, step));
    return x;
}

DEVICE float sum_of_row(float x)
{
    for (unsigned step = COLUMNS / 2; step > 0; step /= 2) x += shfl_xor(FULL_WARP, x, step);
    return x;
}

/* Computes q . k and dout . v for `rows` queries from `row` on, the CTA's own, and `keys` keys from `key` on. */
DEVICE void find_dots(weight_tile &q_k, weight_tile &dout_v, row_tiles &tiles, const backward_params &p,
                      const query_head &h, int32_t row, int rows, int32_t key, int keys)
{
    const forward_params &f = p.forward;
    dot_products(dout_v, tiles, query_rows(p.dout, h, row, rows, f.head_dim_v),
                 key_rows(f, f.v, h, key, keys, f.head_dim_v));
    dot_products(q_k, tiles, query_rows(f.q, h, row, rows, f.head_dim), key_rows(f, f.k, h, key, keys, f.head_dim));
}

/* Gives a CTA to every TILE_A of `rows` rows of each of `heads` heads: x is the head, first_row_of_block the row. */
inline launch_shape shape_of(int64_t heads, int64_t rows)
{
    const int64_t tiles = (rows + TILE_A - 1) / TILE_A, y = tiles < 65535 ? tiles : 65535;
    return {{static_cast<unsigned>(heads), static_cast<unsigned>(y), static_cast<unsigned>((tiles + y - 1) / y)},
            {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1};
}

DEVICE int64_t first_row_of_block() { return (static_cast<int64_t>(block_z()) * grid_y() + block_y()) * TILE_A; }

#endif

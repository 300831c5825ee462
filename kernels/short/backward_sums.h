/* backward_sums.h - dbias and dsink of short sequences, in the pass that makes their terms, with no atomics and in an
 * order that nothing but the problem says.
 *
 * A CTA has all of a head's dx at once. Where each score has an element of dbias of its own, it writes them. Where
 * sequences or heads share elements, as the stride of the axis is 0, CTAs take one problem after the other that adds to
 * the same elements, part of the sequences each, and add them up in tiles of their own in the workspace, each thread
 * its own numbers; then a second launch adds up the tiles. A dsink is a sum of one number for each problem. */
#ifndef ATTEST_KERNELS_SHORT_BACKWARD_SUMS_H
#define ATTEST_KERNELS_SHORT_BACKWARD_SUMS_H

#include "kernels/shared/gradients.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/sums.h"
#include "kernels/short/backward_sm80.h"

/* The workspace holds a dsink for each sequence and head, then tiles of dbias. */
struct sum_places {
    float *sinks, *tiles;
};

INLINE sum_places find_sum_places(const backward_params &p)
{
    float *const sinks = static_cast<float *>(p.workspace);
    return {sinks, sinks + (p.forward.batch * p.forward.num_heads_q + 3) / 4 * 4};
}

/* Stores two neighbouring elements of dbias, those of key `key` and of the next, as far as there are any. Hidden pairs
 * are zeros of either sign in fragments, of one in problems that are taken pair by pair: here all are +0. */
DEVICE void store_two(const score_tensor &t, char *row, int32_t key, int32_t keys, float a, float b)
{
    const int bytes = t.dtype == ATTEST_FP32 ? 4 : 2;
    char *const data = row + key * t.seqlen_k * bytes;
    if (key < keys) store_feature({data, t.dtype, 0, 1}, 0, a + 0.0f);
    if (key + 1 < keys) store_feature({data + t.seqlen_k * bytes, t.dtype, 0, 1}, 0, b + 0.0f);
}

/* Writes dx of a lane's rows, `row` and row + 8, and keys, of which the first is `key`, as dbias. */
DEVICE void write_dx(const backward_params &p, const row_pairs<64> &dx, int64_t b, int64_t head, int32_t row,
                     int32_t key)
{
    const score_tensor &t = p.dbias;
    const forward_params &f = p.forward;
    UNROLL for (int half = 0; half < 2; ++half) {
        const int32_t r = row + 8 * half;
        if (r >= f.seqlen_q) continue;
        char *const data = static_cast<char *>(t.data) +
                           (b * t.batch + head * t.head + r * t.seqlen_q) * (t.dtype == ATTEST_FP32 ? 4 : 2);
        UNROLL for (int n = 0; n < 8; ++n)
            store_two(t, data, key + 8 * n, f.seqlen_k, dx.at[n][2 * half], dx.at[n][2 * half + 1]);
    }
}

/* A tile lies as threads hold it, if warps that share rows are neighbours: quad 4 h + i of a thread has row g + 8 h,
 * and of column groups 2 i and 2 i + 1 the keys 2 t and 2 t + 1. It begins with zeros. */
template <int THREADS_OF_CTA>
DEVICE float *quad_of_tile(float *tile, int i, int thread)
{
    return tile + (i * THREADS_OF_CTA + thread) * 4;
}

template <int THREADS_OF_CTA>
DEVICE void clear_tile(float *tile)
{
    UNROLL for (int i = 0; i < 8; ++i)
        store_global_16(quad_of_tile<THREADS_OF_CTA>(tile, i, static_cast<int>(thread_x())), quad{{0, 0, 0, 0}});
}

/* Adds dx of those of a lane's rows that `adds` names, by `thread` of the tile. */
template <int THREADS_OF_CTA>
DEVICE void add_dx(float *tile, const row_pairs<64> &dx, const bool (&adds)[2], int thread)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        if (!adds[half]) continue;
        UNROLL for (int i = 0; i < 4; ++i) {
            float *const at = quad_of_tile<THREADS_OF_CTA>(tile, 4 * half + i, thread);
            quad sum = load_global_16<quad>(at);
            UNROLL for (int e = 0; e < 4; ++e) sum.at[e] += dx.at[2 * i + e / 2][2 * half + e % 2];
            store_global_16(at, sum);
        }
    }
}

DEVICE void add_quad(quad &sum, const quad &more)
{
    UNROLL for (int e = 0; e < 4; ++e) sum.at[e] += more.at[e];
}

/* Says what tiles add up to each part of dbias that is a sequence's, and a head's of it, as far as they have elements
 * of their own: `count` of them, `step` tiles apart; sequences begin `of_sequence` tiles apart. */
struct tile_sums {
    int64_t heads, of_sequence, count, step;
};

/* Returns what a row gives dsink: p_sink (dlse - delta). An empty row has lse = sink and delta = 0. */
DEVICE float sink_gradient(float sink, const row_lse &lse, float delta, float dlse)
{
    const bool is_alone = sink == -infinity_f32() && lse.high == sink;
    const float y = (sink - lse.reference) * LOG2_E;
    return (is_alone ? 1 : exp2_f32(y - lse.high - lse.low)) * (dlse - delta);
}

namespace { /* what has two builds of a kernel, or two kernels that launch these, has two of them, too */

/* Adds them up, of KEYS rows and keys, and writes dbias. SUM_SHARES threads have a quad, each every so manieth tile.
 *
 * Grid    x: sequences, times heads, times CTAs of a tile */
enum { SUM_THREADS = 128, SUM_SHARES = 8, SUM_QUADS = SUM_THREADS / SUM_SHARES };

struct quad_sums {
    quad at[SUM_SHARES][SUM_QUADS];
};

template <int KEYS>
KERNEL(SUM_THREADS, 1) void sum_tiles_kernel(const backward_params p, const tile_sums from)
{
    STATIC_SHARED(quad_sums, sums);
    constexpr int SPLIT = KEYS / 64, THREADS_OF_CTA = KEYS / 16 * SPLIT * 32, TILE = KEYS * KEYS;
    constexpr unsigned CTAS = TILE / 4 / SUM_QUADS; /* of a tile */
    const int own = static_cast<int>(thread_x()) % SUM_QUADS, share = static_cast<int>(thread_x()) / SUM_QUADS;
    const int place = static_cast<int>(block_x() % CTAS) * SUM_QUADS + own;
    const int64_t b = block_x() / CTAS / from.heads, head = block_x() / CTAS % from.heads;
    const float *const first = find_sum_places(p).tiles + (b * from.of_sequence + head) * TILE + place * 4;
    quad sum = {{0, 0, 0, 0}};
    for (int64_t n = share; n < from.count; n += SUM_SHARES)
        add_quad(sum, load_global_16<quad>(first + n * from.step * TILE));
    sums.at[share][own] = sum;
    sync_threads();
    const int i = place / THREADS_OF_CTA, thread = place % THREADS_OF_CTA, lane_of = thread % 32;
    const int row = thread / 32 / SPLIT * 16 + i / 4 * 8 + lane_of / 4;
    const int key = thread / 32 % SPLIT * 64 + i % 4 * 16 + lane_of % 4 * 2;
    if (share != 0 || row >= p.forward.seqlen_q) return;
    UNROLL for (int n = 1; n < SUM_SHARES; ++n) add_quad(sum, sums.at[n][own]);
    const score_tensor &t = p.dbias;
    char *const data = static_cast<char *>(t.data) +
                       (b * t.batch + head * t.head + row * t.seqlen_q) * (t.dtype == ATTEST_FP32 ? 4 : 2);
    store_two(t, data, key, p.forward.seqlen_k, sum.at[0], sum.at[1]);
    store_two(t, data, key + 8, p.forward.seqlen_k, sum.at[2], sum.at[3]);
}

/* Adds up dsink over sequences. Grid x: heads. */
struct sink_sums {
    float at[SUM_THREADS];
};

KERNEL(SUM_THREADS, 1) void sum_sinks_kernel(const backward_params p)
{
    STATIC_SHARED(sink_sums, sums);
    const int64_t head = block_x();
    const int thread = static_cast<int>(thread_x());
    const float *const of_head = find_sum_places(p).sinks + head;
    float sum = 0;
    for (int64_t b = thread; b < p.forward.batch; b += SUM_THREADS) sum += of_head[b * p.forward.num_heads_q];
    sums.at[thread] = sum;
    for (int half = SUM_THREADS / 2; half > 0; half /= 2) {
        sync_threads();
        if (thread < half) sums.at[thread] += sums.at[thread + half];
    }
    if (thread == 0) p.dsink[head] = one_nan_f32(sums.at[0]);
}

} // namespace

/* Launches what adds up the tiles and the sinks of a pass whose sums are made in it. */
template <int KEYS>
static inline int launch_sums(const backward_params &p, const short_sums &sums, void *stream)
{
    const forward_params &f = p.forward;
    int code = 0;
    if (sums.way == SUMS_OF_TILES) {
        const int64_t heads = sums.joins_heads ? 1 : f.num_heads_q, sequences = sums.joins_batch ? 1 : f.batch;
        const int64_t of_heads = sums.joins_heads ? sums.head_parts : 1;
        const tile_sums from = {heads, heads * of_heads, (sums.joins_batch ? sums.parts : 1) * of_heads, heads};
        const launch_shape shape = {
            {static_cast<unsigned>(sequences * heads) * (KEYS * KEYS / 4 / SUM_QUADS), 1, 1}, {SUM_THREADS, 1, 1},
            {1, 1, 1}, 0, SUM_THREADS, 1};
        code = LAUNCH((sum_tiles_kernel<KEYS>), shape, stream, p, from);
    }
    const launch_shape shape = {{static_cast<unsigned>(f.num_heads_q), 1, 1}, {SUM_THREADS, 1, 1}, {1, 1, 1}, 0,
                                SUM_THREADS, 1};
    if (code == 0 && p.dsink != nullptr) code = LAUNCH(sum_sinks_kernel, shape, stream, p);
    return code;
}

#endif

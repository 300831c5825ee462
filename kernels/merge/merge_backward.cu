/* merge_backward.cu - gradients of a merge's states, from those of their union.
 *
 *     do_a = w_a dout,   dlse_a = w_a (dlse + dout . (o_a - o)),   w_a = exp(lse_a - lse)
 *
 * under the o and lse that are given. Differences are taken first: o_a and o are often close, and this way nothing
 * cancels but what the formula lets cancel. Features are summed by fused multiply-adds, four at a time by each thread
 * of a row, then threads by a tree, so that the order depends on head_dim_v alone. An empty state (lse_a = -inf) gets
 * zeros, and its o_a is not read; a row whose states are all empty does not read dout and dlse.
 *
 * Grid    x: blocks of rows
 * Block   128 threads; 1 .. 32 neighbours of a warp share a row, each has four features at a time */
#include "kernels/merge/states.h"

namespace {

enum { THREADS = 128 };

/* Writes four features of do_a; returns `dot` and their part of dout . (o_a - o). */
DEVICE float differentiate_features(const merge_backward_params &p, int a, float w, const four_features &f, float dot)
{
    const quad dout = load_features(p.dout, p.dout_dtype, f), o = load_features(p.o, p.o_dtype, f);
    const quad part = load_features(p.o_states[a], f);
    quad gradient;
    for (int n = 0; n < 4; ++n) {
        dot = fma_rn(dout.at[n], part.at[n] - o.at[n], dot);
        gradient.at[n] = one_nan_f32(w * dout.at[n]);
    }
    store_features(p.do_states[a], f, gradient);
    return dot;
}

/* Sums over the neighbours that share a row; each of them gets the sum. */
DEVICE float sum_of_row(float x, int threads)
{
    for (int distance = threads / 2; distance > 0; distance /= 2) x += shfl_xor(FULL_WARP, x, distance);
    return x;
}

KERNEL(THREADS, 1) void merge_backward_kernel(const merge_backward_params p, const int threads)
{
    const int column = static_cast<int>(thread_x()) % threads;
    const int64_t row = (static_cast<int64_t>(block_x()) * THREADS + thread_x()) / threads;
    const bool exists = row < p.rows; /* without a row, too, threads meet in sum_of_row */
    for (int a = 0; a < p.num_states; ++a) {
        const float lse_a = exists ? p.lse_states[a][row] : -infinity_f32();
        const bool empty = is_empty(lse_a);
        const float w = empty ? 0 : weight(lse_a, p.lse[row]);
        float dot = 0;
        for (int64_t x = 4 * column; exists && x < p.head_dim_v; x += 4 * threads) {
            const four_features f = features_at(row, p.head_dim_v, x, p.by_four);
            if (empty) store_features(p.do_states[a], f, {{0, 0, 0, 0}});
            else dot = differentiate_features(p, a, w, f, dot);
        }
        dot = sum_of_row(dot, threads);
        if (!exists || column != 0) continue;
        const float dlse = empty || p.dlse == nullptr ? 0 : p.dlse[row];
        p.dlse_states[a][row] = empty ? 0 : one_nan_f32(w * (dlse + dot));
    }
}

} // namespace

extern "C" int KERNEL_SYMBOL(merge_backward)(const struct merge_backward_params *p, void *stream)
{
    if (p->rows == 0 || p->num_states == 0) return 0;
    const int threads = threads_of_row(p->head_dim_v);
    const launch_shape shape = {{static_cast<unsigned>((p->rows * threads + THREADS - 1) / THREADS), 1, 1},
                                {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1};
    return LAUNCH(merge_backward_kernel, shape, stream, *p, threads);
}

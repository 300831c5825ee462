/* merge.cu - the state of the union of disjoint key sets, from the states of those, in one pass.
 *
 *     lse = ln sum_a exp(lse_a),   o = sum_a exp(lse_a - lse) o_a
 *
 * It is computed as w_a = 2^((lse_a - max) log2 e), o = (sum_a w_a o_a) / sum_a w_a, lse = max + ln 2 log2(sum_a w_a).
 * Sums go in argument order, and each product is rounded before it is added, so that two states commute bit for bit. An
 * empty state (lse = -inf) is not read, one that is alone is copied bit by bit, and none at all gives (0, -inf). An o
 * of 16 bits is the fp32 result, rounded.
 *
 * Grid    x: blocks of rows
 * Block   128 threads; 1 .. 32 neighbours of a warp share a row, each has four features at a time */
#include "kernels/merge/states.h"

namespace {

enum { THREADS = 128 };

constexpr float LN_2 = 0.693147181f;

/* Summarises the states of one row. */
struct total {
    int parts, part; /* states that are not empty, and the last of them */
    float max, sum;  /* of lse; of weights */
};

INLINE total total_of(const merge_params &p, int64_t row)
{
    total t = {0, 0, -infinity_f32(), 0};
    for (int a = 0; a < p.num_states; ++a) {
        const float lse = p.lse_states[a][row];
        if (is_empty(lse)) continue;
        t.parts += 1;
        t.part = a;
        t.max = max_f32(t.max, lse); /* ignores a NaN, which reaches the sum */
    }
    for (int a = 0; a < p.num_states; ++a) {
        const float lse = p.lse_states[a][row];
        if (!is_empty(lse)) t.sum += weight(lse, t.max);
    }
    return t;
}

INLINE quad merge_features(const merge_params &p, const total &t, int64_t row, const four_features &f)
{
    if (t.parts == 1) return load_features(p.o_states[t.part], f);
    quad sum = {{0, 0, 0, 0}};
    for (int a = 0; a < p.num_states; ++a) {
        const float lse = p.lse_states[a][row];
        if (is_empty(lse)) continue;
        const float w = weight(lse, t.max);
        const quad o = load_features(p.o_states[a], f);
        for (int n = 0; n < 4; ++n) sum.at[n] += w * o.at[n];
    }
    for (int n = 0; n < 4 && t.parts > 0; ++n) sum.at[n] = one_nan_f32(div_rn(sum.at[n], t.sum));
    return sum;
}

DEVICE float merge_lse(const merge_params &p, const total &t, int64_t row)
{
    if (t.parts == 0) return -infinity_f32();
    if (t.parts == 1) return p.lse_states[t.part][row];
    return one_nan_f32(fma_rn(log2_f32(t.sum), LN_2, t.max));
}

KERNEL(THREADS, 1) void merge_kernel(const merge_params p, const int threads)
{
    const int column = static_cast<int>(thread_x()) % threads;
    const int64_t row = (static_cast<int64_t>(block_x()) * THREADS + thread_x()) / threads;
    const bool exists = row < p.rows;
    float lse = 0;
    if (exists) {
        const total t = total_of(p, row);
        for (int64_t x = 4 * column; x < p.head_dim_v; x += 4 * threads) {
            const four_features f = features_at(row, p.head_dim_v, x, p.by_four);
            store_features(p.o, p.o_dtype, f, merge_features(p, t, row, f));
        }
        lse = merge_lse(p, t, row);
    }
    sync_warp(FULL_WARP); /* all have read the row's lse: the result may be one of the states */
    if (exists && column == 0) p.lse[row] = lse;
}

} // namespace

extern "C" int KERNEL_SYMBOL(merge)(const struct merge_params *p, void *stream)
{
    if (p->rows == 0) return 0;
    const int threads = threads_of_row(p->head_dim_v);
    const launch_shape shape = {{static_cast<unsigned>((p->rows * threads + THREADS - 1) / THREADS), 1, 1},
                                {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1};
    return LAUNCH(merge_kernel, shape, stream, *p, threads);
}

/* dsink.cu - the gradient of the sinks, of every backward pass:
 *
 *     dsink_h = sum over sequences and their rows i of p_sink,i (dlse_i - delta_i),   p_sink = exp(sink_h - lse)
 *
 * An empty row has lse = sink and delta = 0: it gives its dlse, whatever the sink.
 *
 * Grid    x: num_heads_q
 * Block   256 threads: thread t takes rows t, t + 256, ... of each sequence in turn; then a tree */
#include "kernels/device/device.h"
#include "kernels/shared/gradients.h"
#include "kernels/shared/params.h"

namespace {

enum { THREADS = 256 };

struct thread_sums {
    float at[THREADS];
};

KERNEL(THREADS, 1) void dsink_kernel(const backward_params p)
{
    STATIC_SHARED(thread_sums, sums);
    const int64_t head = block_x();
    const int32_t thread = static_cast<int32_t>(thread_x());
    const float sink = p.forward.sink[head];
    float sum = 0;
    for (int64_t b = 0; b < p.forward.batch; ++b) {
        const sequence s = find_sequence(p.forward, b);
        for (int64_t row = thread; row < s.used_q; row += THREADS) {
            const row_state state = load_row_state(p, s, b, static_cast<int32_t>(row), head);
            const bool is_alone = sink == -infinity_f32() && state.lse.high == sink;
            const float y = (sink - state.lse.reference) * LOG2_E;
            const float weight = is_alone ? 1 : exp2_f32(y - state.lse.high - state.lse.low);
            sum = fma_rn(weight, state.dlse - state.delta, sum);
        }
    }
    sums.at[thread] = sum;
    for (int32_t half = THREADS / 2; half > 0; half /= 2) {
        sync_threads();
        if (thread < half) sums.at[thread] += sums.at[thread + half];
    }
    if (thread == 0) p.dsink[head] = one_nan_f32(sums.at[0]);
}

} // namespace

extern "C" int KERNEL_SYMBOL(dsink)(const struct backward_params *p, void *stream)
{
    if (p->dsink == nullptr) return 0;
    const launch_shape shape = {{static_cast<unsigned>(p->forward.num_heads_q), 1, 1},
                                {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1};
    return LAUNCH(dsink_kernel, shape, stream, *p);
}

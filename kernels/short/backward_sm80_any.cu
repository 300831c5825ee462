/* backward_sm80_any.cu - attention backward of short sequences with any scores: dq, dk and dv in one launch.
 *
 *     dx = p (dp - delta + dlse),  ds = dx (1 - (t / softcap)^2)
 *     dq = scale ds k,  dk = scale ds^T q,  dv = (m p)^T dout
 *
 * Takes fp16 and bf16, at most 128 query rows and keys in use, of heads of more than 64 features 64, and every feature
 * of lib/contract.md: shared/scores.h says what a score is. delta is the sum of p dp over that of p; where there is a
 * sink, which is a key of p, too, the sum alone; and it may be given.
 *
 * Grid    x: KV heads; y, z: sequences; or parts of them, where they add to the same elements of dbias
 * Block   a warp for each 16 query rows and 64 keys: 4 warps for 64 rows and keys, 16 for 128. Then it owns 16 keys,
 *         and 16 rows again, of all features or, where two warps share them, of a half
 * Shared  tiles of q, dout, k and v; masks and biases, whose place p and then ds take; what warps tell of rows
 * Phases  for each problem, for each query head of the group: load; s and dp, scores, p; delta of a row from the warps
 *         that share it; dbias; p to shared memory; dv of a warp's keys; ds to the place of p; dq of a warp's rows, dk
 *         of its keys. What tiles of dbias and the rows' dsink add up to comes with a second launch
 *
 * Everything is read once, and written once. p and ds enter products as sums of two 16-bit numbers, as in
 * short/backward_sm80.cu; sums of dk and dv go on from head to head in memory of the thread's own. Scores come by
 * fragments in registers (shared/gradient_stage.h). Where something is not finite, or a row's lse is large, the CTA
 * takes its problem again pair by pair: then a pair that takes no part has the weight UNSEEN, and where the other side
 * holds a NaN, products leave it out. reference/bounds.md section 11.17 says what this may be off by. */
#include "kernels/short/backward_any_problem.h"

namespace {

template <typename T, typename shape>
KERNEL(shape::THREADS_OF_CTA, shape::CTAS) void short_backward_sm80_any_kernel(GRID_CONSTANT const backward_params p,
                                                                               const short_sums sums,
                                                                               bool has_stages)
{
    DYNAMIC_SHARED(shared, 16);
    take_own_problems<T, shape>(shared, p, sums, has_stages, [&](const any_places &at) {
        return take_problem<T, shape, false>(at, p, sums, has_stages);
    });
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

template <typename T, typename shape>
int launch(const backward_params &p, void *stream)
{
    return launch_any<shape>(p, stream, [&](const launch_shape &grid, const short_sums &sums, bool has_stages) {
        return LAUNCH((short_backward_sm80_any_kernel<T, shape>), grid, stream, p, sums, has_stages);
    });
}

/* What is no more than lengths, windows, sinks, groups and gradients of lse has a kernel of its own. */
template <typename T, int DIM, int KEYS>
int launch_features(const backward_params &p, void *stream)
{
    if (features_of(p.forward) == 0) return launch<T, any_shape<DIM, KEYS, 0>>(p, stream);
    return launch<T, any_shape<DIM, KEYS, EVERY_FEATURE>>(p, stream);
}

/* No problem of more than 64 rows is wider than 64 features. */
template <typename T>
int launch_width(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    const int widest = f.head_dim > f.head_dim_v ? f.head_dim : f.head_dim_v;
    if (longest_of(f) > 64) return launch_features<T, 64, 128>(p, stream);
    if (widest <= 64) return launch_features<T, 64, 64>(p, stream);
    if (widest <= 128) return launch_features<T, 128, 64>(p, stream);
    return launch<T, any_shape<256, 64, EVERY_FEATURE>>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm80_any)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) { /* sums of nothing */
        const int code = KERNEL_SYMBOL(dbias)(p, stream);
        return code != 0 ? code : KERNEL_SYMBOL(dsink)(p, stream);
    }
    if (p->forward.q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

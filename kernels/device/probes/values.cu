/* values.cu - probes of convert.h and arith.h: a number a thread. */
#include "kernels/device/device.h"
#include "kernels/device/probes/probe_values.h"

namespace {

enum { THREADS = 256 };

/* fma and division do not say which NaN they give. */
DEVICE uint32_t bits_or_nan(float x) { return x == x ? bits_of(x) : 0x7fffffff; }

KERNEL(THREADS, 1) void widen_kernel(widen_out *out)
{
    const uint32_t n = block_x() * THREADS + thread_x();
    const f16 half = {static_cast<uint16_t>(n)};
    const bf16 brain = {static_cast<uint16_t>(n)};
    out->from_f16[n] = bits_of(to_f32(half));
    out->from_bf16[n] = bits_of(to_f32(brain));
}

KERNEL(THREADS, 1) void narrow_kernel(const narrow_in *in, narrow_out *out)
{
    const uint32_t n = block_x() * THREADS + thread_x();
    const float x = float_of(in->x[n]), next = float_of(in->x[(n + 1) % NARROW_COUNT]);
    out->f16_bf16[n] = to_f16(x).bits | static_cast<uint32_t>(to_bf16(x).bits) << 16;
    out->tf32[n] = to_tf32(x);
    out->f16x2[n] = pack_f16x2(x, next);
    out->bf16x2[n] = pack_bf16x2(x, next);
}

KERNEL(THREADS, 1) void arith_kernel(const arith_in *in, arith_out *out)
{
    const uint32_t n = block_x() * THREADS + thread_x();
    const float a = float_of(in->a[n]), b = float_of(in->b[n]), c = float_of(in->c[n]);
    out->fma[n] = bits_or_nan(fma_rn(a, b, c));
    out->div[n] = bits_or_nan(div_rn(a, b));
    out->max[n] = bits_of(max_f32(a, b));
    out->min[n] = bits_of(min_f32(a, b));
    out->max_or_nan[n] = bits_of(max_or_nan_f32(a, b));
    out->permuted[n] = permute_bytes(in->a[n], in->b[n], in->c[n]);
}

/* A product does not say which NaN it gives. */
DEVICE uint32_t half_or_nan(uint32_t half) { return (half & 0x7fff) > 0x7f80 ? 0x7fff : half; }

KERNEL(THREADS, 1) void pairs_kernel(const arith_in *in, pairs_out *out)
{
    const uint32_t n = block_x() * THREADS + thread_x(), a = in->a[n], b = in->b[n];
    const uint32_t product = mul_bf16x2(a, b);
    out->max[n] = max_bf16x2(a, b);
    out->min[n] = min_bf16x2(a, b);
    out->size[n] = max_size_bf16x2(a, b) & 0x7fff7fff;
    out->product[n] = half_or_nan(product & 0xffff) | half_or_nan(product >> 16) << 16;
}

KERNEL(SPECIAL_COUNT, 1) void special_kernel(const special_in *in, special_out *out)
{
    const uint32_t n = thread_x();
    const float x = float_of(in->x[n]);
    out->exp2[n] = bits_of(exp2_approx(x));
    out->log2[n] = bits_of(log2_approx(x));
    out->rcp[n] = bits_of(rcp_approx(x));
    out->tanh[n] = bits_of(tanh_approx(x));
}

launch_shape shape_of(unsigned count) { return {{count / THREADS, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1}; }

} // namespace

extern "C" int KERNEL_SYMBOL(probe_widen)(const void *, void *out, void *stream)
{
    return LAUNCH(widen_kernel, shape_of(WIDEN_COUNT), stream, static_cast<widen_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_narrow)(const void *in, void *out, void *stream)
{
    return LAUNCH(narrow_kernel, shape_of(NARROW_COUNT), stream, static_cast<const narrow_in *>(in),
                  static_cast<narrow_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_arith)(const void *in, void *out, void *stream)
{
    return LAUNCH(arith_kernel, shape_of(ARITH_COUNT), stream, static_cast<const arith_in *>(in),
                  static_cast<arith_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_pairs)(const void *in, void *out, void *stream)
{
    return LAUNCH(pairs_kernel, shape_of(ARITH_COUNT), stream, static_cast<const arith_in *>(in),
                  static_cast<pairs_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_special)(const void *in, void *out, void *stream)
{
    const launch_shape shape = {{1, 1, 1}, {SPECIAL_COUNT, 1, 1}, {1, 1, 1}, 0, SPECIAL_COUNT, 1};
    return LAUNCH(special_kernel, shape, stream, static_cast<const special_in *>(in), static_cast<special_out *>(out));
}

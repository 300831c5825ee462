/* wgmma.cu - probes of wgmma.h: every N, every layout, signs, groups. */
#include "kernels/device/device.h"
#include "kernels/device/probes/probe_wgmma.h"

namespace {

enum { THREADS = 128 };

template <int N>
DEVICE void clear(float (&d)[N])
{
    for (int n = 0; n < N; ++n) d[n] = 0;
}

/* d as wgmma.h numbers it; rows of `pitch` numbers. */
template <int HALF_N>
DEVICE void store_sums(float *to, int pitch, const float (&d)[HALF_N])
{
    const unsigned g = thread_x() % 32 / 4, t = thread_x() % 4;
    for (unsigned n = 0; n < HALF_N; ++n)
        to[(16 * warp() + g + n % 4 / 2 * 8) * pitch + n / 4 * 8 + 2 * t + n % 2] = d[n];
}

/* A fragment of a, columns k0 .. k0 + 15 of rows of `pitch` numbers. */
DEVICE void load_a(uint32_t (&a)[4], const uint16_t *from, int pitch, int k0)
{
    const unsigned g = thread_x() % 32 / 4, t = thread_x() % 4;
    for (unsigned n = 0; n < 4; ++n) {
        const uint16_t *pair = from + (16 * warp() + g + n % 2 * 8) * pitch + k0 + 2 * t + n / 2 * 8;
        a[n] = pair[0] | static_cast<uint32_t>(pair[1]) << 16;
    }
}

/* Where number k of row mn (of a; column of b) lies, in bytes, by the table of README.md: MN-major or K-major, `extent`
 * rows, `depth` numbers each; the bits of the swizzle come on top. */
DEVICE unsigned place(bool mn_major, int swizzle, unsigned extent, unsigned depth, unsigned mn, unsigned k)
{
    const unsigned span = swizzle / 2; /* numbers of a row of the pattern */
    if (swizzle == 0)
        return mn / 8 * 16 * depth + k / 8 * 128 + (mn_major ? k % 8 * 16 + mn % 8 * 2 : mn % 8 * 16 + k % 8 * 2);
    unsigned at;
    if (mn_major) at = mn / span * swizzle * depth + k * swizzle + mn % span * 2;
    else at = k / span * swizzle * extent + mn * swizzle + k % span * 2;
    return at ^ (at >> 7 & (swizzle / 16 - 1)) << 4;
}

/* The matrix of 16 numbers of k from k0 on. */
DEVICE uint64_t describe(const unsigned char *matrix, bool mn_major, int swizzle, unsigned extent, unsigned depth,
                         unsigned k0)
{
    const unsigned span = swizzle / 2;
    if (swizzle == 0) {
        const unsigned along_k = 128, along_mn = 16 * depth;
        return wgmma_descriptor(matrix + k0 / 8 * along_k, along_k, along_mn, 0);
    }
    if (mn_major) return wgmma_advance(wgmma_descriptor(matrix, swizzle * depth, 8 * swizzle, swizzle), k0 * swizzle);
    return wgmma_advance(wgmma_descriptor(matrix, 16, 8 * swizzle, swizzle),
                         k0 / span * swizzle * extent + k0 % span * 2);
}

DEVICE void store_matrix(unsigned char *matrix, bool mn_major, int swizzle, unsigned extent, unsigned depth,
                         const uint16_t *from)
{
    for (unsigned n = thread_x(); n < extent * depth; n += THREADS) {
        const unsigned at = place(mn_major, swizzle, extent, depth, n / depth, n % depth);
        *reinterpret_cast<uint16_t *>(matrix + at) = from[n];
    }
}

struct alignas(1024) operands {
    unsigned char a[WGMMA_M * LAYOUT_K * 2], b[LAYOUT_N * LAYOUT_K * 2];
};

DEVICE void ready()
{
    fence_proxy_async_shared();
    sync_threads();
}

/* ---- every N ---- */

struct small_operands {
    alignas(1024) unsigned char a[2][WGMMA_M * WGMMA_K * 2], b[2][WGMMA_MAX_N * WGMMA_K * 2];
};

template <int N>
DEVICE void finish(float *to, float (&d)[N / 2])
{
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(d);
    store_sums(to, WGMMA_MAX_N, d);
    clear(d);
    wgmma_fence_operand(d);
    wgmma_fence();
}

template <int N>
KERNEL(THREADS, 1) void sizes_kernel(const wgmma_in *in, wgmma_product *out)
{
    STATIC_SHARED(small_operands, shared);
    store_matrix(shared.a[0], false, 0, WGMMA_M, WGMMA_K, &in->a_f16[0][0]);
    store_matrix(shared.b[0], false, 0, N, WGMMA_K, &in->b_f16[0][0]);
    store_matrix(shared.a[1], false, 0, WGMMA_M, WGMMA_K, &in->a_bf16[0][0]);
    store_matrix(shared.b[1], false, 0, N, WGMMA_K, &in->b_bf16[0][0]);
    ready();
    uint64_t a[2], b[2];
    for (int n = 0; n < 2; ++n) {
        a[n] = describe(shared.a[n], false, 0, WGMMA_M, WGMMA_K, 0);
        b[n] = describe(shared.b[n], false, 0, N, WGMMA_K, 0);
    }
    uint32_t a_f16[4], a_bf16[4];
    load_a(a_f16, &in->a_f16[0][0], WGMMA_K, 0);
    load_a(a_bf16, &in->a_bf16[0][0], WGMMA_K, 0);
    float d[N / 2];
    clear(d);
    wgmma_fence_operand(d);
    wgmma_fence();
    wgmma_m64nNk16_f16<N>(d, a[0], b[0], true);
    finish<N>(&out->f16[0][0], d);
    wgmma_m64nNk16_bf16<N>(d, a[1], b[1], true);
    finish<N>(&out->bf16[0][0], d);
    wgmma_m64nNk16_f16<N>(d, a_f16, b[0], true);
    finish<N>(&out->f16_registers[0][0], d);
    wgmma_m64nNk16_bf16<N>(d, a_bf16, b[1], true);
    finish<N>(&out->bf16_registers[0][0], d);
}

const launch_shape SHAPE = {{1, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1};

template <int N>
int launch_sizes(const wgmma_in *in, wgmma_sizes_out *out, void *stream)
{
    const int code = LAUNCH(sizes_kernel<N>, SHAPE, stream, in, &out->of_n[N / 8 - 1]);
    if constexpr (N < WGMMA_MAX_N) return code != 0 ? code : launch_sizes<N + 8>(in, out, stream);
    return code;
}

/* ---- every layout ---- */

template <bool MN_MAJOR_A, bool MN_MAJOR_B>
KERNEL(THREADS, 1) void layout_kernel(const layout_in *in, float *out, int swizzle_a, int swizzle_b)
{
    STATIC_SHARED(operands, shared);
    store_matrix(shared.a, MN_MAJOR_A, swizzle_a, WGMMA_M, LAYOUT_K, &in->a[0][0]);
    store_matrix(shared.b, MN_MAJOR_B, swizzle_b, LAYOUT_N, LAYOUT_K, &in->b[0][0]);
    ready();
    float d[LAYOUT_N / 2];
    clear(d);
    wgmma_fence_operand(d);
    wgmma_fence();
    for (unsigned k = 0; k < LAYOUT_K; k += WGMMA_K)
        wgmma_m64nNk16_bf16<LAYOUT_N, false, false, MN_MAJOR_A, MN_MAJOR_B>(
            d, describe(shared.a, MN_MAJOR_A, swizzle_a, WGMMA_M, LAYOUT_K, k),
            describe(shared.b, MN_MAJOR_B, swizzle_b, LAYOUT_N, LAYOUT_K, k), true);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(d);
    store_sums(out, LAYOUT_N, d);
}

template <bool MN_MAJOR_B>
KERNEL(THREADS, 1) void register_kernel(const layout_in *in, float *out, int swizzle_b)
{
    STATIC_SHARED(operands, shared);
    store_matrix(shared.b, MN_MAJOR_B, swizzle_b, LAYOUT_N, LAYOUT_K, &in->b[0][0]);
    ready();
    float d[LAYOUT_N / 2];
    clear(d);
    wgmma_fence_operand(d);
    for (unsigned k = 0; k < LAYOUT_K; k += WGMMA_K) {
        uint32_t a[4];
        load_a(a, &in->a[0][0], LAYOUT_K, k);
        wgmma_fence_operand(a);
        wgmma_fence();
        wgmma_m64nNk16_bf16<LAYOUT_N, false, false, MN_MAJOR_B>(
            d, a, describe(shared.b, MN_MAJOR_B, swizzle_b, LAYOUT_N, LAYOUT_K, k), true);
        wgmma_commit();
        wgmma_wait<0>();
        wgmma_fence_operand(d);
    }
    store_sums(out, LAYOUT_N, d);
}

template <bool MN_MAJOR_A, bool MN_MAJOR_B>
int launch_layouts(const layout_in *in, layout_out *out, void *stream)
{
    int code = 0;
    for (int a = 0; a < LAYOUT_SWIZZLES; ++a)
        for (int b = 0; b < LAYOUT_SWIZZLES && code == 0; ++b)
            code = LAUNCH((layout_kernel<MN_MAJOR_A, MN_MAJOR_B>), SHAPE, stream, in,
                          &out->d[MN_MAJOR_A][MN_MAJOR_B][a][b][0][0], layout_swizzles[a], layout_swizzles[b]);
    return code;
}

template <bool MN_MAJOR_B>
int launch_registers(const layout_in *in, layout_out *out, void *stream)
{
    int code = 0;
    for (int b = 0; b < LAYOUT_SWIZZLES && code == 0; ++b)
        code = LAUNCH(register_kernel<MN_MAJOR_B>, SHAPE, stream, in, &out->from_registers[MN_MAJOR_B][b][0][0],
                      layout_swizzles[b]);
    return code;
}

/* ---- signs and groups ---- */

KERNEL(THREADS, 1) void signs_kernel(const wgmma_in *in, signs_out *out)
{
    STATIC_SHARED(small_operands, shared);
    store_matrix(shared.a[0], false, 0, WGMMA_M, WGMMA_K, &in->a_f16[0][0]);
    store_matrix(shared.b[0], false, 0, SIGNS_N, WGMMA_K, &in->b_f16[0][0]);
    store_matrix(shared.a[1], false, 0, WGMMA_M, WGMMA_K, &in->a_bf16[0][0]);
    store_matrix(shared.b[1], false, 0, SIGNS_N, WGMMA_K, &in->b_bf16[0][0]);
    ready();
    const uint64_t a = describe(shared.a[1], false, 0, WGMMA_M, WGMMA_K, 0);
    const uint64_t b = describe(shared.b[1], false, 0, SIGNS_N, WGMMA_K, 0);
    const uint64_t a_f16 = describe(shared.a[0], false, 0, WGMMA_M, WGMMA_K, 0);
    const uint64_t b_f16 = describe(shared.b[0], false, 0, SIGNS_N, WGMMA_K, 0);
    uint32_t registers[4];
    load_a(registers, &in->a_bf16[0][0], WGMMA_K, 0);
    float negated_a[SIGNS_N / 2], negated_b[SIGNS_N / 2], negated_both[SIGNS_N / 2], negated_registers[SIGNS_N / 2];
    float sum[SIGNS_N / 2], first[SIGNS_N / 2];
    for (int n = 0; n < SIGNS_N / 2; ++n) /* not accumulated: not felt, but for `sum` */
        negated_a[n] = negated_b[n] = negated_both[n] = negated_registers[n] = sum[n] = first[n] = 1;
    wgmma_fence_operand(negated_a), wgmma_fence_operand(negated_b), wgmma_fence_operand(negated_both);
    wgmma_fence_operand(negated_registers), wgmma_fence_operand(sum), wgmma_fence_operand(first);
    wgmma_fence_operand(registers);
    wgmma_fence();
    wgmma_m64nNk16_bf16<SIGNS_N>(first, a, b, false);
    wgmma_m64nNk16_bf16<SIGNS_N, true, false>(negated_a, a, b, false);
    wgmma_m64nNk16_bf16<SIGNS_N, false, true>(negated_b, a, b, false);
    wgmma_m64nNk16_f16<SIGNS_N, true, true>(negated_both, a_f16, b_f16, false);
    wgmma_m64nNk16_bf16<SIGNS_N, true, false>(negated_registers, registers, b, false);
    wgmma_m64nNk16_bf16<SIGNS_N>(sum, a, b, true);
    wgmma_commit();
    wgmma_m64nNk16_bf16<SIGNS_N>(sum, a, b, true);
    wgmma_m64nNk16_bf16<SIGNS_N>(sum, a, b, true);
    wgmma_commit();
    wgmma_wait<1>();
    wgmma_fence_operand(first);
    store_sums(&out->first[0][0], SIGNS_N, first);
    wgmma_wait<0>();
    wgmma_fence_operand(negated_a), wgmma_fence_operand(negated_b), wgmma_fence_operand(negated_both);
    wgmma_fence_operand(negated_registers), wgmma_fence_operand(sum);
    store_sums(&out->negated_a[0][0], SIGNS_N, negated_a);
    store_sums(&out->negated_b[0][0], SIGNS_N, negated_b);
    store_sums(&out->negated_both_f16[0][0], SIGNS_N, negated_both);
    store_sums(&out->negated_registers[0][0], SIGNS_N, negated_registers);
    store_sums(&out->accumulated[0][0], SIGNS_N, sum);
}

} // namespace

extern "C" int KERNEL_SYMBOL(probe_wgmma_sizes)(const void *in, void *out, void *stream)
{
    return launch_sizes<8>(static_cast<const wgmma_in *>(in), static_cast<wgmma_sizes_out *>(out), stream);
}

extern "C" int KERNEL_SYMBOL(probe_wgmma_layouts)(const void *in, void *out, void *stream)
{
    const layout_in *const w = static_cast<const layout_in *>(in);
    layout_out *const o = static_cast<layout_out *>(out);
    int code = launch_layouts<false, false>(w, o, stream);
    if (code == 0) code = launch_layouts<false, true>(w, o, stream);
    if (code == 0) code = launch_layouts<true, false>(w, o, stream);
    if (code == 0) code = launch_layouts<true, true>(w, o, stream);
    if (code == 0) code = launch_registers<false>(w, o, stream);
    if (code == 0) code = launch_registers<true>(w, o, stream);
    return code;
}

extern "C" int KERNEL_SYMBOL(probe_wgmma_signs)(const void *in, void *out, void *stream)
{
    return LAUNCH(signs_kernel, SHAPE, stream, static_cast<const wgmma_in *>(in), static_cast<signs_out *>(out));
}

// wgmma.cu - exhibits: wgmma and setmaxnreg. out = x b^T, x the 64 x 16 numbers of `in`, b the first 16 rows of x.
#include "kernels/sim/tests/wrong/exhibit.h"

// x in fp16 as wgmma reads it without swizzle: cores of 8 rows x 8 columns, 128 bytes each; the core below follows, the
// core to the right is 8 cores on.
struct alignas(128) operand {
    f16 at[1024];
};

DEVICE void write_operand(operand &x, const float *in)
{
    for (int i = thread_x(); i < 1024; i += 128) {
        const int row = i / 16, column = i % 16;
        x.at[(column / 8 * 8 + row / 8) * 64 + row % 8 * 8 + column % 8] =
            to_f16(in[i]);  // HERE wgmma_operand_overwritten: missing wait, store
    }
}

DEVICE uint64_t descriptor(const operand &x)
{
    return wgmma_descriptor(&x, 1024, 128, 0);
}

DEVICE void write_result(float *out, float (&d)[8])
{
    wgmma_fence_operand(d);
    for (int j = 0; j < 8; ++j) {
        const int row = 16 * warp() + lane() / 4 + j / 2 % 2 * 8, column = j / 4 * 8 + lane() % 4 * 2 + j % 2;
        out[16 * row + column] = d[j];  // HERE wgmma_read_early: registers in flight, load
    }
}

// The operands were written by ordinary stores and are read through the async proxy.
KERNEL(128, 1) void wgmma_without_proxy_fence(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    write_operand(x, r.in);
    if (!r.wrong) fence_proxy_async_shared();
    sync_threads();
    wgmma_fence();
    wgmma_m64nNk16_f16<16>(d, x_at, x_at, false);  // HERE wgmma_without_proxy_fence: missing proxy fence, wgmma
    wgmma_commit();
    wgmma_wait<0>();
    write_result(r.out, d);
}
EXHIBIT(wgmma_without_proxy_fence, shape.block[0] = shape.max_threads = 128)

// The accumulators are cleared by ordinary code, after the fence.
KERNEL(128, 1) void wgmma_fence_too_early(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    if (r.wrong) wgmma_fence();
    for (int j = 0; j < 8; ++j) d[j] = 0.0f;
    if (!r.wrong) wgmma_fence();
    wgmma_m64nNk16_f16<16>(d, x_at, x_at, true);  // HERE wgmma_fence_too_early: missing wgmma fence, wgmma
    wgmma_commit();
    wgmma_wait<0>();
    write_result(r.out, d);
}
EXHIBIT(wgmma_fence_too_early, shape.block[0] = shape.max_threads = 128)

// The first product is added to what nobody has written.
KERNEL(128, 1) void wgmma_added_to_nothing(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    wgmma_fence();
    wgmma_m64nNk16_f16<16>(d, x_at, x_at, r.wrong);  // HERE wgmma_added_to_nothing: uninitialised, wgmma
    wgmma_commit();
    wgmma_wait<0>();
    write_result(r.out, d);
}
EXHIBIT(wgmma_added_to_nothing, shape.block[0] = shape.max_threads = 128)

// The accumulators are read while the tensor cores still write them.
KERNEL(128, 1) void wgmma_read_early(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    wgmma_fence();
    wgmma_m64nNk16_f16<16>(d, x_at, x_at, false);
    wgmma_commit();
    if (!r.wrong) wgmma_wait<0>();
    write_result(r.out, d);
}
EXHIBIT(wgmma_read_early, shape.block[0] = shape.max_threads = 128)

// Two products are added; x lies in registers, and is loaded again while the first product still reads it.
KERNEL(128, 1) void wgmma_registers_overwritten(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    uint32_t a[4];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    for (int n = 0; n < 2; ++n) {
        for (int j = 0; j < 4; ++j) {
            const float *at = r.in + (16 * warp() + lane() / 4 + j % 2 * 8) * 16 + lane() % 4 * 2 + j / 2 * 8;
            a[j] = pack_f16x2(at[0], at[1]);  // HERE wgmma_registers_overwritten: registers in flight, store
        }
        wgmma_fence();
        wgmma_m64nNk16_f16<16>(d, a, x_at, n > 0);
        wgmma_commit();
        if (!r.wrong || n == 1) wgmma_wait<0>();
    }
    write_result(r.out, d);
}
EXHIBIT(wgmma_registers_overwritten, shape.block[0] = shape.max_threads = 128)

// Two products are added; x is written again while the first product still reads it.
KERNEL(128, 1) void wgmma_operand_overwritten(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    for (int n = 0; n < 2; ++n) {
        write_operand(x, r.in);
        fence_proxy_async_shared();
        sync_threads();
        wgmma_fence();
        wgmma_m64nNk16_f16<16>(d, x_at, x_at, n > 0);
        wgmma_commit();
        if (!r.wrong || n == 1) wgmma_wait<0>();
        sync_threads();
    }
    write_result(r.out, d);
}
EXHIBIT(wgmma_operand_overwritten, shape.block[0] = shape.max_threads = 128)

// One of the four warps does not take part.
KERNEL(128, 1) void wgmma_by_three_warps(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    if (r.wrong && warp() == 3) return;
    wgmma_fence();
    wgmma_m64nNk16_f16<16>(d, x_at, x_at, false);  // HERE wgmma_by_three_warps: diverged, wgmma
    wgmma_commit();
    wgmma_wait<0>();
    write_result(r.out, d);
}
EXHIBIT(wgmma_by_three_warps, shape.block[0] = shape.max_threads = 128)

// The right half of the operand is looked for past its end.
KERNEL(128, 1) void wgmma_past_operand(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    wgmma_fence();
    const uint64_t a = wgmma_descriptor(&x, r.wrong ? 2048 : 1024, 128, 0);
    wgmma_m64nNk16_f16<16>(d, a, x_at, false);  // HERE wgmma_past_operand: out of bounds, wgmma
    wgmma_commit();
    wgmma_wait<0>();
    write_result(r.out, d);
}
EXHIBIT(wgmma_past_operand, shape.block[0] = shape.max_threads = 128)

// Warps end while their product is still being made.
KERNEL(128, 1) void wgmma_left(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    wgmma_fence();
    wgmma_m64nNk16_f16<16>(d, x_at, x_at, false);  // HERE wgmma_left: left pending, wgmma
    wgmma_commit();
    if (r.wrong) return;
    wgmma_wait<0>();
    write_result(r.out, d);
}
EXHIBIT(wgmma_left, shape.block[0] = shape.max_threads = 128)

// 3 x 168 registers a thread: two warpgroups ask for 240, and the third does not give any away.
KERNEL(384, 1) void registers_not_given(struct room r)
{
    const int i = thread_x();
    if (warp() / 4 != 2) setmaxnreg_inc<240>();  // HERE registers_not_given: deadlock, setmaxnreg.inc
    else if (!r.wrong) setmaxnreg_dec<24>();
    r.out[i] = r.in[i];
}
EXHIBIT(registers_not_given, shape.block[0] = shape.max_threads = 384)

// 512 registers a thread start with 128 each: an increase to 120 is none.
KERNEL(512, 1) void registers_wrong_way(struct room r)
{
    const int i = thread_x();
    if (r.wrong) setmaxnreg_inc<120>();  // HERE registers_wrong_way: bad operand, setmaxnreg.inc
    else setmaxnreg_dec<120>();
    r.out[i] = r.in[i];
}
EXHIBIT(registers_wrong_way, shape.block[0] = shape.max_threads = 512)

// The product is over, but nothing keeps the compiler from reading the accumulators before the wait.
KERNEL(128, 1) void wgmma_operand_not_fenced(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    wgmma_fence();
    wgmma_m64nNk16_f16<16>(d, x_at, x_at, false);
    wgmma_commit();
    wgmma_wait<0>();
    if (!r.wrong) wgmma_fence_operand(d);
    for (int j = 0; j < 8; ++j) d[j] *= 2.0f;  // HERE wgmma_operand_not_fenced: registers in flight, load
    write_result(r.out, d);
}
EXHIBIT(wgmma_operand_not_fenced, shape.block[0] = shape.max_threads = 128)

// The fence stands in front of the wait.
KERNEL(128, 1) void wgmma_operand_fenced_early(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    wgmma_fence();
    wgmma_m64nNk16_f16<16>(d, x_at, x_at, false);
    wgmma_commit();
    if (r.wrong) wgmma_fence_operand(d);
    wgmma_wait<0>();
    if (!r.wrong) wgmma_fence_operand(d);
    for (int j = 0; j < 8; ++j) d[j] += d[j];  // HERE wgmma_operand_fenced_early: registers in flight, load
    write_result(r.out, d);
}
EXHIBIT(wgmma_operand_fenced_early, shape.block[0] = shape.max_threads = 128)

// Accumulators are cleared for the next product between the wait for this one and the fence.
KERNEL(128, 1) void wgmma_cleared_early(struct room r)
{
    STATIC_SHARED(operand, x);
    const uint64_t x_at = descriptor(x);
    float d[8], sum[8];
    write_operand(x, r.in);
    fence_proxy_async_shared();
    sync_threads();
    for (int n = 0; n < 2; ++n) {
        for (int j = 0; j < 8; ++j) d[j] = 0.0f;  // HERE wgmma_cleared_early: registers in flight, store
        wgmma_fence();
        wgmma_m64nNk16_f16<16>(d, x_at, x_at, true);
        wgmma_commit();
        wgmma_wait<0>();
        if (!r.wrong || n == 1) wgmma_fence_operand(d);
    }
    for (int j = 0; j < 8; ++j) sum[j] = d[j];
    write_result(r.out, sum);
}
EXHIBIT(wgmma_cleared_early, shape.block[0] = shape.max_threads = 128)

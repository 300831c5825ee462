// counts.cu - small kernels whose counts are known by hand. The counts stand in counts_test.c.
#include "kernels/device/device.h"
#include "kernels/sim/tests/counts.h"

// The launcher of a kernel of `blocks` CTAs of `threads` threads.
#define COUNTED(name, blocks, threads)                                                       \
    extern "C" int counted_##name(struct sim_gpu *gpu, const struct counted_args *arguments) \
    {                                                                                        \
        const struct counted_args a = *arguments;                                            \
        struct launch_shape shape = {};                                                      \
        shape.grid[0] = blocks;                                                              \
        shape.block[0] = shape.max_threads = threads;                                        \
        return LAUNCH(name, shape, gpu, a);                                                  \
    }

// 1024 numbers, `stride` apart, the first at `shift`: 32 warps load and store each once.
KERNEL(256, 1) void copy(struct counted_args a)
{
    const int i = (256 * block_x() + thread_x()) * a.stride + a.shift;
    a.out[i] = a.in[i];
}
COUNTED(copy, 4, 256)

struct alignas(16) four {
    float at[4];
};

// 1024 numbers, 16 bytes a thread: 8 warps.
KERNEL(256, 1) void copy_16(struct counted_args a)
{
    const int i = 4 * thread_x();
    store_global_16(a.out + i, load_global_16<four>(a.in + i));
}
COUNTED(copy_16, 1, 256)

// One lane of 32 copies one number.
KERNEL(32, 1) void copy_one(struct counted_args a)
{
    if (lane() == 7) a.out[0] = a.in[0];
}
COUNTED(copy_one, 1, 32)

typedef float padded_tile[32 * 33];

// 32 x 32 numbers through shared memory, written by rows and read by columns; rows lie `stride` apart.
KERNEL(32, 1) void transpose(struct counted_args a)
{
    STATIC_SHARED(padded_tile, t);
    for (int row = 0; row < 32; ++row) t[row * a.stride + lane()] = a.in[32 * row + lane()];
    sync_warp(FULL_WARP);
    for (int row = 0; row < 32; ++row) a.out[32 * row + lane()] = t[lane() * a.stride + row];
}
COUNTED(transpose, 1, 32)

typedef uint64_t words_64[128];

// Every lane writes 8 bytes at `stride` x 8 bytes a lane, and reads them.
KERNEL(32, 1) void by_8_bytes(struct counted_args a)
{
    STATIC_SHARED(words_64, t);
    t[lane() * a.stride] = lane();
    sync_warp(FULL_WARP);
    if (t[lane() * a.stride] != lane()) a.out[0] = 0.0f;
}
COUNTED(by_8_bytes, 1, 32)

struct alignas(16) fours {
    four at[64];
};

// Every lane writes 16 bytes at `stride` x 16 bytes a lane, and reads them.
KERNEL(32, 1) void by_16_bytes(struct counted_args a)
{
    STATIC_SHARED(fours, t);
    const four zeros = {};
    store_16(&t.at[lane() * a.stride], zeros);
    sync_warp(FULL_WARP);
    if (load_16<four>(&t.at[lane() * a.stride]).at[0] != 0.0f) a.out[0] = 0.0f;
}
COUNTED(by_16_bytes, 1, 32)

typedef float words_32[64];

// Lane 0 writes two numbers; then all lanes read one of them: even lanes the first, odd lanes that at `stride`.
KERNEL(32, 1) void broadcast(struct counted_args a)
{
    STATIC_SHARED(words_32, t);
    if (lane() == 0) t[0] = 1.0f;
    if (lane() == 0) t[a.stride] = 1.0f;
    sync_warp(FULL_WARP);
    if (t[lane() % 2 * a.stride] != 1.0f) a.out[0] = 0.0f;
}
COUNTED(broadcast, 1, 32)

// Two CTAs of two warps: each warp three products of fp16, two of bf16, one of tf32.
KERNEL(64, 1) void products(struct counted_args a)
{
    const uint32_t x[4] = {}, y[2] = {};
    float d[4] = {};
    for (int n = 0; n < 3; ++n) mma_m16n8k16_f16(d, x, y, d);
    for (int n = 0; n < 2; ++n) mma_m16n8k16_bf16(d, x, y, d);
    mma_m16n8k8_tf32(d, x, y, d);
    if (d[0] != 0.0f) a.out[0] = d[0];
}
COUNTED(products, 2, 64)

// Two warpgroups: each one product with N = 8 and two with N = 64. Their operands lie in zeros, one row of all.
KERNEL(256, 1) void warpgroup_products(struct counted_args a)
{
    DYNAMIC_SHARED(zeros, 128);
    float d[4], e[32];
    for (unsigned i = thread_x(); i < 64; i += 256) reinterpret_cast<uint32_t *>(zeros)[i] = 0;
    fence_proxy_async_shared();
    sync_threads();
    const uint64_t x = wgmma_descriptor(zeros, 128, 0, 0); // every core of 8 rows is the same
    wgmma_fence();
    wgmma_m64nNk16_f16<8>(d, x, x, false);
    for (int n = 0; n < 2; ++n) wgmma_m64nNk16_bf16<64>(e, x, x, n > 0);
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(d), wgmma_fence_operand(e);
    if (d[0] != 0.0f || e[0] != 0.0f) a.out[0] = d[0];
}
extern "C" int counted_warpgroup_products(struct sim_gpu *gpu, const struct counted_args *arguments)
{
    struct launch_shape shape = {};
    shape.block[0] = shape.max_threads = 256;
    shape.dynamic_shared = 256;
    return LAUNCH(warpgroup_products, shape, gpu, *arguments);
}

// 64 threads: three exponentials, a logarithm, a reciprocal and a tanh each.
KERNEL(64, 1) void functions(struct counted_args a)
{
    float x = 0.25f;
    for (int n = 0; n < 3; ++n) x = exp2_approx(x);
    x = tanh_approx(rcp_approx(log2_approx(x)));
    if (x == 2.0f) a.out[0] = x;
}
COUNTED(functions, 1, 64)

// Two warps: five shuffles, a ballot, a meeting and an election each.
KERNEL(64, 1) void collectives(struct counted_args a)
{
    float x = 1.0f;
    for (int distance = 16; distance > 0; distance /= 2) x += shfl_xor(FULL_WARP, x, distance);
    const uint32_t all = ballot(FULL_WARP, x == 32.0f);
    sync_warp(FULL_WARP);
    if (elect_one() && all != FULL_WARP) a.out[0] = x;
}
COUNTED(collectives, 1, 64)

// Four warps meet three times, and two of them once more.
KERNEL(128, 1) void meetings(struct counted_args)
{
    for (int n = 0; n < 3; ++n) sync_threads();
    if (warp() < 2) named_barrier_sync(1, 64);
}
COUNTED(meetings, 1, 128)

// 64 threads arrive at an mbarrier and wait for it, twice.
KERNEL(64, 1) void mbarrier_meetings(struct counted_args)
{
    STATIC_SHARED(mbarrier, all);
    if (thread_x() == 0) mbarrier_init(&all, 64);
    sync_threads();
    for (int n = 0; n < 2; ++n) {
        mbarrier_arrive(&all);
        mbarrier_wait(&all, n);
    }
}
COUNTED(mbarrier_meetings, 1, 64)

// 64 threads copy 16 bytes each; the last 8 of them get zeros.
KERNEL(64, 1) void async_copies(struct counted_args a)
{
    STATIC_SHARED(fours, t);
    cp_async_16(&t.at[thread_x()], a.in + 4 * thread_x(), thread_x() < 56);
    cp_async_wait_all();
}
COUNTED(async_copies, 1, 64)

// 1024 bytes into shared memory and out again, in one bulk copy each.
KERNEL(32, 1) void bulk_copies(struct counted_args a)
{
    STATIC_SHARED(fours, t);
    STATIC_SHARED(mbarrier, full);
    if (lane() == 0) {
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full, sizeof t);
        bulk_load(&t, a.in, sizeof t, &full);
        mbarrier_wait(&full, 0);
        bulk_store(a.out, &t, sizeof t);
        bulk_commit();
        bulk_wait_read<0>();
    }
}
COUNTED(bulk_copies, 1, 32)

// A product of one warp, and a copy of 512 bytes: waited for behind the product, or (`stride`) before it.
KERNEL(32, 1) void product_beside_copy(struct counted_args a)
{
    STATIC_SHARED(fours, t);
    const uint32_t x[4] = {}, y[2] = {};
    float d[4] = {};
    cp_async_16(&t.at[lane()], a.in + 4 * lane(), true);
    if (a.stride) cp_async_wait_all();
    mma_m16n8k16_bf16(d, x, y, d);
    if (!a.stride) cp_async_wait_all();
    if (d[0] != 0.0f) a.out[0] = d[0];
}
COUNTED(product_beside_copy, 1, 32)

// Two products of a warpgroup and two bulk copies: the second is waited for between the products, or (`stride`) before
// both. The first product is waited for before the second is issued, or behind it, first alone (`shift` 1) or with it.
KERNEL(128, 1) void products_and_bytes(struct counted_args a)
{
    STATIC_SHARED(fours, t);
    STATIC_SHARED(mbarrier, first);
    STATIC_SHARED(mbarrier, second);
    float d[4], e[4];
    if (thread_x() == 0) {
        mbarrier_init(&first, 1), mbarrier_init(&second, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&first, 256), mbarrier_arrive_expect_tx(&second, 256);
        bulk_load(&t, a.in, 256, &first), bulk_load(&t.at[16], a.in, 256, &second);
    }
    sync_threads();
    mbarrier_wait(&first, 0);
    if (a.stride) mbarrier_wait(&second, 0);
    const uint64_t x = wgmma_descriptor(&t, 128, 0, 0);
    wgmma_fence();
    wgmma_m64nNk16_bf16<8>(d, x, x, false);
    wgmma_commit();
    if (!a.shift) wgmma_wait<0>();
    if (!a.stride) mbarrier_wait(&second, 0);
    const uint64_t y = wgmma_descriptor(&t.at[16], 128, 0, 0);
    wgmma_m64nNk16_bf16<8>(e, y, y, false);
    wgmma_commit();
    if (a.shift == 1) wgmma_wait<1>();
    wgmma_wait<0>();
    wgmma_fence_operand(d), wgmma_fence_operand(e);
    if (d[0] == 1.0f && e[0] == 1.0f) a.out[0] = d[0];
}
COUNTED(products_and_bytes, 1, 128)

// Three CTAs read 4, 8 and 12 bytes, or (`stride`) 12, 8 and 4, in clusters of one, before the launch ahead has ended.
KERNEL(64, 1) void uneven(struct counted_args a)
{
    float sum = 0;
    grid_wait();
    const int n = a.stride ? 3 - block_x() : 1 + block_x();
    if (thread_x() == 0)
        for (int i = 0; i < n; ++i) sum += a.in[i];
    if (sum == 12345.0f) a.out[0] = sum;
}
extern "C" int counted_uneven(struct sim_gpu *gpu, const struct counted_args *arguments)
{
    struct launch_shape shape = {};
    shape.grid[0] = 3;
    shape.block[0] = shape.max_threads = 64;
    shape.begins_early = true;
    return LAUNCH(uneven, shape, gpu, *arguments);
}

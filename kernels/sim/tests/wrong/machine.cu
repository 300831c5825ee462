// machine.cu - exhibits: clusters, limits, generations.
#include "kernels/sim/tests/wrong/exhibit.h"

// Reads the other CTA's shared memory without waiting for the other CTA.
KERNEL(64, 1) void cluster_read_early(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = 0.0f;
    cluster_sync();
    t.at[i] = r.in[64 * block_x() + i];  // HERE cluster_read_early: race, store
    if (!r.wrong) cluster_sync();
    r.out[64 * block_x() + i] = cluster_map(&t, cluster_rank() ^ 1)->at[i];  // HERE cluster_read_early: race, load
    cluster_sync();
}
EXHIBIT(cluster_read_early, shape.grid[0] = 4; shape.cluster[0] = 2; shape.block[0] = shape.max_threads = 64)

// Writes to the other CTA, which may not have begun.
KERNEL(64, 1) void cluster_written_early(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    const float x = r.in[64 * block_x() + i];
    if (!r.wrong) {
        cluster_arrive_relaxed();
        cluster_wait();
    }
    cluster_map(&t, cluster_rank() ^ 1)->at[i] = x;  // HERE cluster_written_early: race, store
    cluster_sync();
    r.out[64 * block_x() + i] = t.at[i];
}
EXHIBIT(cluster_written_early, shape.grid[0] = 4; shape.cluster[0] = 2; shape.block[0] = shape.max_threads = 64)

// Reads the other CTA's shared memory, which goes with the other CTA.
KERNEL(64, 1) void cluster_left_early(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[64 * block_x() + i];
    cluster_sync();
    r.out[64 * block_x() + i] = cluster_map(&t, cluster_rank() ^ 1)->at[i];  // HERE cluster_left_early: race, load
    if (!r.wrong) cluster_sync();
}
EXHIBIT(cluster_left_early, shape.grid[0] = 4; shape.cluster[0] = 2; shape.block[0] = shape.max_threads = 64)

// Arrives at a barrier of the other CTA, which may have ended.
KERNEL(64, 1) void cluster_barrier_left(struct room r)
{
    STATIC_SHARED(mbarrier, empty);
    const int i = thread_x();
    if (i == 0) {
        mbarrier_init(&empty, 1);
        fence_mbarrier_init();
    }
    cluster_sync();
    r.out[64 * block_x() + i] = r.in[64 * block_x() + i];
    mbarrier *const other = cluster_map(&empty, cluster_rank() ^ 1);
    if (i == 0) mbarrier_arrive_cluster(other);  // HERE cluster_barrier_left: race, mbarrier.arrive
    if (!r.wrong) mbarrier_wait(&empty, 0);
}
EXHIBIT(cluster_barrier_left, shape.grid[0] = 4; shape.cluster[0] = 2; shape.block[0] = shape.max_threads = 64)

// Reads what the launch ahead may still write.
KERNEL(64, 1) void launch_read_early(struct room r)
{
    const int i = thread_x();
    if (!r.wrong) grid_wait();
    const float x = r.in[i];  // HERE launch_read_early: missing wait, load
    grid_wait();
    r.out[i] = x;
}
EXHIBIT(launch_read_early, shape.block[0] = shape.max_threads = 64; shape.begins_early = true)

// A copy is asked for by a thread that has not waited; another one has.
KERNEL(64, 1) void launch_copied_early(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    if (!r.wrong || i > 0) grid_wait();
    cp_async_16(&t.at[4 * i], &r.in[4 * i]);  // HERE launch_copied_early: missing wait, cp.async
    cp_async_commit();
    cp_async_wait<0>();
    if (r.wrong && i == 0) grid_wait();
    for (int n = 0; n < 4; ++n) r.out[4 * i + n] = t.at[4 * i + n];
}
EXHIBIT(launch_copied_early, shape.block[0] = shape.max_threads = 64; shape.begins_early = true)

// Ends without a word of the launch ahead, which the next one will take for ended.
KERNEL(64, 1) void launch_not_waited_for(struct room r)
{
    const int i = thread_x();
    if (r.wrong && i >= 32) return;
    grid_wait();
    if (i < 32) r.out[i] = r.in[i];
}
EXHIBIT(launch_not_waited_for, shape.block[0] = shape.max_threads = 64;
        shape.begins_early = true)  // HERE launch_not_waited_for: left pending, -

// Clusters of two CTAs, and three CTAs.
KERNEL(64, 1) void cluster_of_odd_grid(struct room r)
{
    const int i = 64 * block_x() + thread_x();
    r.out[i] = r.in[i];
}
EXHIBIT(cluster_of_odd_grid, shape.grid[0] = r.wrong ? 3 : 2;  // HERE cluster_of_odd_grid: limit, -
        shape.cluster[0] = 2; shape.block[0] = shape.max_threads = 64)

// More shared memory than there is.
KERNEL(64, 1) void dynamic_shared_too_large(struct room r)
{
    DYNAMIC_SHARED(bytes, 16);
    float *t = reinterpret_cast<float *>(bytes);
    const int i = thread_x();
    t[i] = r.in[i];
    r.out[i] = t[i];
}
EXHIBIT(dynamic_shared_too_large,
        shape.dynamic_shared = r.wrong ? 232448 + 4 : 232448;  // HERE dynamic_shared_too_large: limit, -
        shape.block[0] = shape.max_threads = 64)

struct large {
    float at[12 * 1024 + 1];
};

// Static shared memory ends at 48 KB.
KERNEL(64, 1) void static_shared_too_large(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[i];
    if (r.wrong) {
        STATIC_SHARED(large, l);  // HERE static_shared_too_large: limit, static shared memory
        l.at[i] = r.in[i];
    }
    r.out[i] = t.at[i];
}
EXHIBIT(static_shared_too_large, shape.block[0] = shape.max_threads = 64)

// More threads than the launch bounds promise.
KERNEL(64, 1) void block_too_large(struct room r)
{
    const int i = block_x() * (r.wrong ? 128 : 64) + thread_x();
    r.out[i] = r.in[i];
}
EXHIBIT(block_too_large, shape.grid[0] = r.wrong ? 1 : 2; shape.max_threads = 64;
        shape.block[0] = r.wrong ? 128 : 64)  // HERE block_too_large: limit, -

// The launch promises other bounds than the kernel has: it would be refused on the chip.
KERNEL(64, 1) void bounds_differ(struct room r)
{
    const int i = 64 * block_x() + thread_x();
    if (thread_x() < 64) r.out[i] = r.in[i];
}
EXHIBIT(bounds_differ, shape.grid[0] = 2;
        shape.block[0] = shape.max_threads = r.wrong ? 128 : 64)  // HERE bounds_differ: limit, -

// And other CTAs to an SM: a thread has half of the registers that the launch counts with.
KERNEL(64, 2) void blocks_differ(struct room r)
{
    const int i = 64 * block_x() + thread_x();
    r.out[i] = r.in[i];
}
EXHIBIT(blocks_differ, shape.grid[0] = 2; shape.block[0] = shape.max_threads = 64;
        shape.min_blocks = r.wrong ? 1 : 2)  // HERE blocks_differ: limit, -

// Copies to the other CTA's shared memory, which may not have begun.
KERNEL(64, 1) void copied_early(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(tile, own);
    STATIC_SHARED(mbarrier, full);
    const int i = thread_x();
    if (i == 0) {
        mbarrier_init(&full, 1);
        fence_mbarrier_init();
        mbarrier_arrive_expect_tx(&full, 256);
    }
    own.at[i] = r.in[64 * block_x() + i];
    fence_proxy_async_shared();
    if (r.wrong) sync_threads();
    else cluster_sync();
    tile *const to = cluster_map(&t, cluster_rank() ^ 1);
    mbarrier *const b = cluster_map(&full, cluster_rank() ^ 1);
    if (i == 0)
        bulk_copy_cluster(to, &own, 256, b);  // HERE copied_early: race, cp.async.bulk; uninitialised, cp.async.bulk
    mbarrier_wait(&full, 0);
    r.out[64 * block_x() + i] = t.at[i];
    cluster_sync();
}
EXHIBIT(copied_early, shape.grid[0] = 4; shape.cluster[0] = 2; shape.block[0] = shape.max_threads = 64)

// A bulk copy, on a GPU that has none: wrong_test.c runs the wrong one on sm_80.
KERNEL(64, 1) void bulk_copy_on_sm_80(struct room r)
{
    STATIC_SHARED(tile, t);
    for (int x = thread_x(); x < 256; x += 64) t.at[x] = r.in[x];
    fence_proxy_async_shared();  // HERE bulk_copy_on_sm_80: wrong generation, fence.proxy.async
    sync_threads();
    if (thread_x() == 0) {
        bulk_store(r.out, &t, sizeof t);
        bulk_commit();
        bulk_wait_read<0>();
    }
}
EXHIBIT(bulk_copy_on_sm_80, shape.block[0] = shape.max_threads = 64)

// An assertion of the kernel itself.
KERNEL(64, 1) void assertion_fails(struct room r)
{
    const int i = thread_x();
    if (r.wrong && i >= 32) trap();  // HERE assertion_fails: trap, trap
    r.out[i] = r.in[i];
}
EXHIBIT(assertion_fails, shape.block[0] = shape.max_threads = 64)

// bulk.cu - exhibits: mbarriers, bulk and tensor copies, the async proxy.
#include "kernels/sim/tests/wrong/exhibit.h"

// Makes a barrier of `count` arrivals known to the CTA.
DEVICE void make(struct mbarrier &barrier, unsigned count)
{
    if (thread_x() == 0) {
        mbarrier_init(&barrier, count);
        fence_mbarrier_init();
    }
    sync_threads();
}

// A barrier of the CTA does not wait for a copy.
KERNEL(64, 1) void load_read_early(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    make(full, 1);
    if (thread_x() == 0) {
        mbarrier_arrive_expect_tx(&full, sizeof t);
        bulk_load(&t, r.in, sizeof t, &full);
    }
    if (r.wrong) sync_threads();
    else mbarrier_wait(&full, 0);
    for (int x = thread_x(); x < 256; x += 64) r.out[x] = t.at[x];  // HERE load_read_early: missing wait, load
}
EXHIBIT(load_read_early, shape.block[0] = shape.max_threads = 64)

// An mbarrier as a barrier of the CTA; the second round waits for the phase of the first.
KERNEL(64, 1) void parity_not_turned(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, all);
    make(all, 64);
    for (int round = 0; round < 2; ++round) {
        const int first = 64 * round, i = thread_x();
        t.at[first + i] = r.in[first + i];
        mbarrier_arrive(&all);
        if (!r.wrong && mbarrier_test_wait(&all, round)) mbarrier_wait(&all, round); /* what is over may be asked */
        mbarrier_wait(&all, r.wrong ? 0 : round);  // HERE parity_not_turned: wrong parity, mbarrier.try_wait
        r.out[first + i] = t.at[first + 63 - i];
    }
}
EXHIBIT(parity_not_turned, shape.block[0] = shape.max_threads = 64)

// The barrier opens when one thread is still missing.
KERNEL(64, 1) void barrier_opens_early(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, all);
    const int i = thread_x();
    t.at[i] = 0.0f;
    make(all, r.wrong ? 63 : 64);
    t.at[i] = r.in[i];  // HERE barrier_opens_early: race, store
    mbarrier_arrive(&all);
    mbarrier_wait(&all, 0);
    r.out[i] = t.at[63 - i];  // HERE barrier_opens_early: race, load
}
EXHIBIT(barrier_opens_early, shape.block[0] = shape.max_threads = 64)

// More arrivals than the phase waits for.
KERNEL(64, 1) void arrivals_too_many(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, all);
    const int i = thread_x();
    make(all, 64);
    t.at[i] = r.in[i];
    mbarrier_arrive(&all, r.wrong ? 3 : 1);  // HERE arrivals_too_many: barrier count, mbarrier.arrive
    mbarrier_wait(&all, 0);
    r.out[i] = r.wrong ? 0.0f : t.at[63 - i];
}
EXHIBIT(arrivals_too_many, shape.block[0] = shape.max_threads = 64)

// The barrier is told of fewer bytes than the copy brings.
KERNEL(64, 1) void too_few_bytes_expected(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    make(full, 1);
    if (thread_x() == 0) {
        mbarrier_arrive_expect_tx(&full, r.wrong ? sizeof t / 2 : sizeof t);
        bulk_load(&t, r.in, sizeof t, &full);
    }
    mbarrier_wait(&full, 0);  // HERE too_few_bytes_expected: deadlock, mbarrier.try_wait
    for (int x = thread_x(); x < 256; x += 64) r.out[x] = t.at[x];
}
EXHIBIT(too_few_bytes_expected, shape.block[0] = shape.max_threads = 64)

// The barrier is told of the second half when the first may have come, and with it the end of the phase.
KERNEL(64, 1) void expected_too_late(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    const unsigned half = sizeof t / 2;
    make(full, 1);
    if (thread_x() == 0) {
        if (!r.wrong) mbarrier_expect_tx(&full, half);
        mbarrier_arrive_expect_tx(&full, half);
        bulk_load(&t, r.in, half, &full);
        if (r.wrong) mbarrier_expect_tx(&full, half);  // HERE expected_too_late: barrier count, mbarrier.expect_tx
        bulk_load(t.at + 128, r.in + 128, half, &full);
    }
    mbarrier_wait(&full, 0);
    for (int x = thread_x(); x < 256; x += 64) r.out[x] = t.at[x];  // HERE expected_too_late: missing wait, load
}
EXHIBIT(expected_too_late, shape.block[0] = shape.max_threads = 64)

// The barrier is told of more bytes than the copy brings.
KERNEL(64, 1) void too_many_bytes_expected(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    make(full, 1);
    if (thread_x() == 0) {
        mbarrier_arrive_expect_tx(&full, r.wrong ? 2 * sizeof t : sizeof t);
        bulk_load(&t, r.in, sizeof t, &full);
    }
    mbarrier_wait(&full, 0);  // HERE too_many_bytes_expected: deadlock, mbarrier.try_wait
    for (int x = thread_x(); x < 256; x += 64) r.out[x] = t.at[x];
}
EXHIBIT(too_many_bytes_expected, shape.block[0] = shape.max_threads = 64)

// A ring of one tile: a producing warp, a consuming warp. At first the tile is empty, and the barrier `empty` in its
// phase 0: the producer has to ask for the phase before. The wrong one waits for a release of what it never filled.
KERNEL(64, 1) void ring_starts_full(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    STATIC_SHARED(mbarrier, empty);
    const unsigned phase_before = r.wrong ? 0 : 1, i = lane();
    make(full, 32);
    make(empty, 32);
    for (unsigned n = 0; n < 4; ++n) {
        if (warp() == 0) {
            mbarrier_wait(&empty, (n + phase_before) % 2);  // HERE ring_starts_full: deadlock, mbarrier.try_wait
            t.at[i] = r.in[32 * n + i];
            mbarrier_arrive(&full);
        } else {
            mbarrier_wait(&full, n % 2);  // HERE ring_starts_full: deadlock, mbarrier.try_wait
            r.out[32 * n + i] = t.at[31 - i];
            mbarrier_arrive(&empty);
        }
    }
}
EXHIBIT(ring_starts_full, shape.block[0] = shape.max_threads = 64)

// The same ring; the consumer releases the tile before it has read it.
KERNEL(64, 1) void released_too_soon(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    STATIC_SHARED(mbarrier, empty);
    const unsigned i = lane();
    make(full, 32);
    make(empty, 32);
    for (unsigned n = 0; n < 4; ++n) {
        if (warp() == 0) {
            mbarrier_wait(&empty, (n + 1) % 2);
            t.at[i] = r.in[32 * n + i];  // HERE released_too_soon: race, store
            mbarrier_arrive(&full);
        } else {
            mbarrier_wait(&full, n % 2);
            if (r.wrong) mbarrier_arrive(&empty);
            r.out[32 * n + i] = t.at[31 - i];  // HERE released_too_soon: race, load
            if (!r.wrong) mbarrier_arrive(&empty);
        }
    }
}
EXHIBIT(released_too_soon, shape.block[0] = shape.max_threads = 64)

// The store reads shared memory through the async proxy, which has not heard of the threads' own writes.
KERNEL(64, 1) void store_without_proxy_fence(struct room r)
{
    STATIC_SHARED(tile, t);
    for (int x = thread_x(); x < 256; x += 64) t.at[x] = r.in[x];
    if (!r.wrong) fence_proxy_async_shared();
    sync_threads();
    if (thread_x() == 0) {
        bulk_store(r.out, &t, sizeof t);  // HERE store_without_proxy_fence: missing proxy fence, cp.async.bulk
        bulk_commit();
        bulk_wait_read<0>();
    }
}
EXHIBIT(store_without_proxy_fence, shape.block[0] = shape.max_threads = 64)

// A load over what threads wrote: nothing but the fence orders writes of the two proxies.
KERNEL(64, 1) void load_without_proxy_fence(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    for (int x = thread_x(); x < 256; x += 64) t.at[x] = 0.0f;
    if (!r.wrong) fence_proxy_async_shared();
    make(full, 1);
    if (thread_x() == 0) {
        mbarrier_arrive_expect_tx(&full, sizeof t);
        bulk_load(&t, r.in, sizeof t, &full);  // HERE load_without_proxy_fence: missing proxy fence, cp.async.bulk
    }
    mbarrier_wait(&full, 0);
    for (int x = thread_x(); x < 256; x += 64) r.out[x] = t.at[x];
}
EXHIBIT(load_without_proxy_fence, shape.block[0] = shape.max_threads = 64)

// The tile is filled again while the store still reads it.
KERNEL(64, 1) void store_overtaken(struct room r)
{
    STATIC_SHARED(tile, t);
    for (int n = 0; n < 2; ++n) {
        for (int x = thread_x(); x < 256; x += 64)
            t.at[x] = r.in[256 * n + x];  // HERE store_overtaken: missing wait, store
        fence_proxy_async_shared();
        sync_threads();
        if (thread_x() == 0) {
            bulk_store(r.out + 256 * n, &t, sizeof t);
            bulk_commit();
            if (!r.wrong || n == 1) bulk_wait_read<0>();
        }
        sync_threads();
    }
}
EXHIBIT(store_overtaken, shape.block[0] = shape.max_threads = 64)

// The thread ends, and perhaps its CTA, while the store still reads shared memory.
KERNEL(64, 1) void store_left(struct room r)
{
    STATIC_SHARED(tile, t);
    for (int x = thread_x(); x < 256; x += 64) t.at[x] = r.in[x];
    fence_proxy_async_shared();
    sync_threads();
    if (thread_x() == 0) {
        bulk_store(r.out, &t, sizeof t);  // HERE store_left: left pending, cp.async.bulk
        bulk_commit();
        if (!r.wrong) bulk_wait_read<0>();
    }
}
EXHIBIT(store_left, shape.block[0] = shape.max_threads = 64)

// Bulk copies are made of 16 bytes each.
KERNEL(64, 1) void copy_of_odd_bytes(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    const unsigned bytes = r.wrong ? 1000 : 1024;
    make(full, 1);
    if (thread_x() == 0) {
        mbarrier_arrive_expect_tx(&full, bytes);
        bulk_load(&t, r.in, bytes, &full);  // HERE copy_of_odd_bytes: bad operand, cp.async.bulk
    }
    mbarrier_wait(&full, 0);
    for (int x = thread_x(); x < 256; x += 64) r.out[x] = t.at[x];
}
EXHIBIT(copy_of_odd_bytes, shape.block[0] = shape.max_threads = 64)

// The barrier is asked, until it says yes, for the phase before the load's.
KERNEL(64, 1) void phase_before_asked(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    make(full, 1);
    if (thread_x() == 0) {
        mbarrier_arrive_expect_tx(&full, sizeof t);
        bulk_load(&t, r.in, sizeof t, &full);
    }
    sync_threads();
    while (!mbarrier_test_wait(&full, r.wrong ? 1 : 0)) {}  // HERE phase_before_asked: deadlock, mbarrier.test_wait
    for (int x = thread_x(); x < 256; x += 64) r.out[x] = t.at[x];  // HERE phase_before_asked: missing wait, load
    mbarrier_wait(&full, 0);
}
EXHIBIT(phase_before_asked, shape.block[0] = shape.max_threads = 64)

// Nobody has made the barrier.
KERNEL(64, 1) void barrier_not_made(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, all);
    const int i = thread_x();
    if (!r.wrong) make(all, 64);
    t.at[i] = r.in[i];
    mbarrier_arrive(&all);  // HERE barrier_not_made: uninitialised, mbarrier.arrive
    mbarrier_wait(&all, 0);
    r.out[i] = t.at[63 - i];
}
EXHIBIT(barrier_not_made, shape.block[0] = shape.max_threads = 64)

// The barrier is made, and the others do not wait until it is.
KERNEL(64, 1) void barrier_made_late(struct room r)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, all);
    const int i = thread_x();
    if (i == 0) {
        mbarrier_init(&all, 64);
        fence_mbarrier_init();
    }
    if (!r.wrong) sync_threads();
    t.at[i] = r.in[i];
    mbarrier_arrive(&all);  // HERE barrier_made_late: uninitialised, mbarrier.arrive; race, mbarrier.arrive
    mbarrier_wait(&all, 0);
    r.out[i] = t.at[63 - i];
}
EXHIBIT(barrier_made_late, shape.block[0] = shape.max_threads = 64)

// A barrier's bytes are set as if they were a number.
KERNEL(64, 1) void barrier_overwritten(struct room r)
{
    STATIC_SHARED(mbarrier, all);
    const int i = thread_x();
    make(all, 64);
    if (r.wrong && i == 9) memset(&all, 0, sizeof all);  // HERE barrier_overwritten: race, memset
    mbarrier_arrive(&all);
    mbarrier_wait(&all, 0);
    r.out[i] = r.in[i];
}
EXHIBIT(barrier_overwritten, shape.block[0] = shape.max_threads = 64)

// The launcher of a kernel that copies boxes of 12 rows; `in` as a tensor of rows of 16 numbers.
#define TENSOR_EXHIBIT(name, rows)                                                                      \
    extern "C" int exhibit_##name(struct sim_gpu *gpu, const struct room *r)                            \
    {                                                                                                   \
        const tensor_map_fields fields = {r->in, TENSOR_FP32, 2, {16, rows}, {4, 64}, {16, 12}, 0, false}; \
        struct launch_shape shape = {};                                                                 \
        tensor_map map;                                                                                 \
        char why[256];                                                                                  \
        shape.block[0] = shape.max_threads = 64;                                                        \
        if (!tensor_map_encode(&map, &fields, why, sizeof why)) return -1;                              \
        return LAUNCH(name, shape, gpu, *r, map);                                                       \
    }

// A box goes to a multiple of 16 bytes that is none of 128.
KERNEL(64, 1) void box_misaligned(struct room r, const GRID_CONSTANT tensor_map map)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    float *box = t.at + (r.wrong ? 4 : 0);
    make(full, 1);
    if (thread_x() == 0) {
        mbarrier_arrive_expect_tx(&full, 12 * 64);
        tma_load_2d(box, &map, &full, 0, 0);  // HERE box_misaligned: misaligned, cp.async.bulk.tensor
    }
    mbarrier_wait(&full, 0);
    for (int x = thread_x(); x < 12 * 16; x += 64) r.out[x] = box[x];
}
TENSOR_EXHIBIT(box_misaligned, 12)

// The tensor has 10 rows, the box 12: the two that hang over are filled with zeros, and their bytes count.
KERNEL(64, 1) void overhang_not_expected(struct room r, const GRID_CONSTANT tensor_map map)
{
    STATIC_SHARED(tile, t);
    STATIC_SHARED(mbarrier, full);
    make(full, 1);
    if (thread_x() == 0) {
        mbarrier_arrive_expect_tx(&full, (r.wrong ? 10 : 12) * 64);
        tma_load_2d(&t, &map, &full, 0, 0);
    }
    mbarrier_wait(&full, 0);  // HERE overhang_not_expected: deadlock, mbarrier.try_wait
    for (int x = thread_x(); x < 10 * 16; x += 64) r.out[x] = t.at[x];
}
TENSOR_EXHIBIT(overhang_not_expected, 10)

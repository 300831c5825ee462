// copy.cu - exhibits: cp.async. Every thread copies 16 bytes of each tile.
#include "kernels/sim/tests/wrong/exhibit.h"

// Reads its own copy without waiting for it.
KERNEL(64, 1) void copy_no_wait(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = 4 * thread_x();
    cp_async_16(t.at + i, r.in + i);
    cp_async_commit();
    if (!r.wrong) cp_async_wait<0>();
    for (int x = i; x < i + 4; ++x) r.out[x] = t.at[x];  // HERE copy_no_wait: missing wait, load
}
EXHIBIT(copy_no_wait, shape.block[0] = shape.max_threads = 64)

// Waits for its own copy and reads another thread's.
KERNEL(64, 1) void copy_no_barrier(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = 4 * thread_x();
    cp_async_16(t.at + i, r.in + i);
    cp_async_commit();
    if (r.wrong) sync_threads();
    cp_async_wait<0>();
    if (!r.wrong) sync_threads();
    for (int x = i; x < i + 4; ++x) r.out[x] = t.at[255 - x];  // HERE copy_no_barrier: missing wait, load; race, load
}
EXHIBIT(copy_no_barrier, shape.block[0] = shape.max_threads = 64)

struct alignas(16) two_tiles {
    float at[2][256];
};

// The next tile is on its way while this one is read; one group of copies a round. The wait leaves one group too many.
KERNEL(64, 1) void copy_wrong_group(struct room r)
{
    STATIC_SHARED(two_tiles, t);
    const int i = 4 * thread_x();
    cp_async_16(t.at[0] + i, r.in + i);
    cp_async_commit();
    for (int n = 0; n < 4; ++n) {
        if (n < 3) cp_async_16(t.at[(n + 1) % 2] + i, r.in + 256 * (n + 1) + i);
        cp_async_commit();
        if (r.wrong) cp_async_wait<2>();
        else cp_async_wait<1>();
        sync_threads();
        for (int x = i; x < i + 4; ++x)
            r.out[256 * n + x] = t.at[n % 2][255 - x];  // HERE copy_wrong_group: missing wait, load
        sync_threads();
    }
}
EXHIBIT(copy_wrong_group, shape.block[0] = shape.max_threads = 64)

// No barrier at the end of the loop: a copy lands in the tile that others still read.
KERNEL(64, 1) void copy_over_tile(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = 4 * thread_x();
    for (int n = 0; n < 4; ++n) {
        cp_async_16(t.at + i, r.in + 256 * n + i);  // HERE copy_over_tile: race, cp.async
        cp_async_wait_all();
        sync_threads();
        for (int x = i; x < i + 4; ++x)
            r.out[256 * n + x] = t.at[255 - x];  // HERE copy_over_tile: missing wait, load; race, load
        if (!r.wrong) sync_threads();
    }
}
EXHIBIT(copy_over_tile, shape.block[0] = shape.max_threads = 64)

// Thread 5 copies from an odd float.
KERNEL(64, 1) void copy_misaligned(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = 4 * thread_x(), shift = r.wrong && thread_x() == 5;
    cp_async_16(t.at + i, r.in + i + shift);  // HERE copy_misaligned: misaligned, cp.async
    cp_async_wait_all();
    for (int x = i; x < i + 4; ++x) r.out[x] = t.at[x];
}
EXHIBIT(copy_misaligned, shape.block[0] = shape.max_threads = 64)

// 200 numbers lie in `in`; the rest of the tile is to be filled with zeros.
KERNEL(64, 1) void copy_past_end(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = 4 * thread_x();
    cp_async_16(t.at + i, r.in + i, i < 200 || r.wrong);  // HERE copy_past_end: out of bounds, cp.async
    cp_async_wait_all();
    for (int x = i; x < i + 4 && x < 200; ++x) r.out[x] = t.at[x];
}
EXHIBIT(copy_past_end, shape.block[0] = shape.max_threads = 64)

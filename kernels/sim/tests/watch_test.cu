// watch_test.cu - kernels of watch_test.c. A comment HERE(name) marks the line that a report must name.
#include <string.h>

#include "kernels/device/device.h"
#include "kernels/sim/tests/watch_test.h"

// The launcher of a kernel of `blocks` CTAs of `threads` threads.
#define WATCHED(name, blocks, threads)                                                      \
    extern "C" int watched_##name(struct sim_gpu *gpu, const struct watched_args *arguments) \
    {                                                                                       \
        const struct watched_args a = *arguments;                                           \
        struct launch_shape shape = {};                                                     \
        shape.grid[0] = blocks;                                                             \
        shape.block[0] = shape.max_threads = threads;                                       \
        shape.dynamic_shared = a.dynamic_shared;                                            \
        return LAUNCH(name, shape, gpu, a);                                                 \
    }

// Reads and writes one number where the arguments say.
KERNEL(1, 1) void load_and_store(struct watched_args a)
{
    const float value = *a.from; // HERE(load)
    *a.to = value;               // HERE(store)
}
WATCHED(load_and_store, 1, 1)

struct six {
    float at[6];
};

// A struct of 24 bytes.
KERNEL(1, 1) void copy_struct(struct watched_args a)
{
    *reinterpret_cast<six *>(a.to) = *reinterpret_cast<const six *>(a.from); // HERE(struct)
}
WATCHED(copy_struct, 1, 1)

KERNEL(1, 1) void copy_by_name(struct watched_args a)
{
    memcpy(a.to, a.from, 64); // HERE(memcpy)
}
WATCHED(copy_by_name, 1, 1)

KERNEL(1, 1) void clear_by_name(struct watched_args a)
{
    memset(a.to, 0, 64); // HERE(memset)
}
WATCHED(clear_by_name, 1, 1)

struct alignas(16) four {
    float at[4];
};

// The device function is inlined: the report names the line that calls it.
KERNEL(1, 1) void copy_16(struct watched_args a)
{
    const four value = load_global_16<four>(a.from); // HERE(load_16)
    store_global_16(a.to, value);                    // HERE(store_16)
}
WATCHED(copy_16, 1, 1)

DEVICE float inner(const float *p)
{
    return *p; // HERE(inner)
}

KERNEL(1, 1) void load_in_function(struct watched_args a) { *a.to = inner(a.from); }
WATCHED(load_in_function, 1, 1)

KERNEL(1, 1) void add_atomically(struct watched_args a)
{
    __atomic_fetch_add(reinterpret_cast<int *>(a.to), 1, __ATOMIC_RELAXED); // HERE(atomic)
}
WATCHED(add_atomically, 1, 1)

static const float table[] = {1, 2, 3, 5};
float variable[4];

KERNEL(1, 1) void read_constants(struct watched_args a)
{
    *a.to = table[a.n] + static_cast<float>(a.values[a.n]);
}
WATCHED(read_constants, 1, 1)

KERNEL(1, 1) void read_variable(struct watched_args a)
{
    *a.to = variable[a.n]; // HERE(variable)
}
WATCHED(read_variable, 1, 1)

KERNEL(1, 1) void write_constant(struct watched_args a)
{
    const_cast<volatile float *>(table)[a.n] = 0; // HERE(constant)
}
WATCHED(write_constant, 1, 1)

typedef unsigned char bytes_64[64];

// 64 threads write neighbouring bytes and read their own: no race. With n, each reads its neighbour's.
KERNEL(64, 1) void own_bytes(struct watched_args a)
{
    STATIC_SHARED(bytes_64, t);
    t[thread_x()] = static_cast<unsigned char>(thread_x()); // HERE(bytes)
    if (a.n == 2) sync_threads();
    a.to[thread_x()] = t[(thread_x() + (a.n > 0)) % 64]; // HERE(bytes)
}
WATCHED(own_bytes, 1, 64)

// Everybody reads one word, n times with a barrier after each; thread 0 writes it before and, in the end, after the
// last barrier, or with `early` before it.
KERNEL(256, 1) void many_readers(struct watched_args a)
{
    STATIC_SHARED(float, word);
    float sum = 0;
    if (thread_x() == 0) word = 1;
    sync_threads();
    for (int i = 0; i < a.n; ++i) {
        sum += word;
        if (i + 1 < a.n || !a.early) sync_threads();
    }
    if (thread_x() == 0) word = 2; // HERE(many)
    a.to[thread_x()] = sum;
}
WATCHED(many_readers, 1, 256)

// Where shared memory lies: two static objects and the dynamic bytes.
KERNEL(1, 1) void place(struct watched_args a)
{
    STATIC_SHARED(four, first);
    STATIC_SHARED(bytes_64, second);
    DYNAMIC_SHARED(third, 128);
    a.to[0] = static_cast<float>(shared_address(&first));
    a.to[1] = static_cast<float>(shared_address(second));
    a.to[2] = static_cast<float>(shared_address(third));
}
WATCHED(place, 1, 1)

// Block 1 reads what block 0 writes.
KERNEL(1, 1) void of_two_blocks(struct watched_args a)
{
    if (block_x() == 0) a.to[5] = 1;      // HERE(block)
    else a.to[6] = a.to[a.n];             // HERE(block)
}
WATCHED(of_two_blocks, 2, 1)

// Each CTA of clusters writes a number of its own.
KERNEL(1, 1) void of_clusters(struct watched_args a)
{
    a.to[block_x()] = 1;
}

extern "C" int watched_of_clusters(struct sim_gpu *gpu, const struct watched_args *arguments)
{
    const launch_shape shape = {{8, 1, 1}, {1, 1, 1}, {4, 1, 1}, 0, 1, 1};
    return LAUNCH(of_clusters, shape, gpu, *arguments);
}

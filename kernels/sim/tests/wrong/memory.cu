// memory.cu - exhibits: addresses and bytes.
#include "kernels/sim/tests/wrong/exhibit.h"

// The right neighbour of the last number lies past the end.
KERNEL(64, 1) void past_end(struct room r)
{
    const int i = thread_x();
    float sum = r.in[i];
    if (i < 63 || r.wrong) sum += r.in[i + 1];  // HERE past_end: out of bounds, load
    r.out[i] = sum;
}
EXHIBIT(past_end, shape.block[0] = shape.max_threads = 64)

// `out` has rows of 24 numbers, 32 apart: what lies between them is not its own.
KERNEL(64, 1) void gap(struct room r)
{
    const int i = 64 * block_x() + thread_x();
    if (i % 32 < 24 || r.wrong) r.out[i] = r.in[i];  // HERE gap: out of bounds, store
}
EXHIBIT(gap, shape.grid[0] = 4; shape.block[0] = shape.max_threads = 64)

// The result is written over an input.
KERNEL(64, 1) void input_written(struct room r)
{
    const int i = thread_x();
    float *result = r.wrong ? const_cast<float *>(r.in) : r.out;
    result[i] = r.in[i];  // HERE input_written: outside outputs, store
}
EXHIBIT(input_written, shape.block[0] = shape.max_threads = 64)

struct alignas(16) four {
    float at[4];
};

// Thread 5 loads 16 bytes from an odd float.
KERNEL(64, 1) void misaligned_load(struct room r)
{
    const int i = 4 * thread_x(), shift = r.wrong && thread_x() == 5;
    const four v = load_global_16<four>(r.in + i + shift);  // HERE misaligned_load: misaligned, ld.global.v4
    for (int x = 0; x < 4; ++x) r.out[i + x] = v.at[x];
}
EXHIBIT(misaligned_load, shape.block[0] = shape.max_threads = 64)

// Nobody writes the neighbour of the tile's last number.
KERNEL(64, 1) void halo_not_cleared(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[i];
    if (i == 0 && !r.wrong) t.at[64] = 0.0f;
    sync_threads();
    r.out[i] = t.at[i] + t.at[i + 1];  // HERE halo_not_cleared: uninitialised, load
}
EXHIBIT(halo_not_cleared, shape.block[0] = shape.max_threads = 64)

// Sums into a workspace that nobody cleared.
KERNEL(64, 1) void workspace_not_cleared(struct room r)
{
    const int i = thread_x();
    if (!r.wrong) r.work[i] = 0.0f;
    for (int n = 0; n < 2; ++n) r.work[i] += r.in[i];  // HERE workspace_not_cleared: uninitialised, load
    r.out[i] = r.work[i];
}
EXHIBIT(workspace_not_cleared, shape.block[0] = shape.max_threads = 64)

typedef float row_of_64[64];

// The right neighbour of the tile's last number lies past the tile.
KERNEL(64, 1) void past_tile(struct room r)
{
    STATIC_SHARED(row_of_64, row);
    const int i = thread_x();
    row[i] = r.in[i];
    sync_threads();
    float sum = row[i];
    if (i < 63 || r.wrong) sum += row[i + 1];  // HERE past_tile: out of bounds, load
    r.out[i] = sum;
}
EXHIBIT(past_tile, shape.block[0] = shape.max_threads = 64)

typedef const float *pointer;

// Thread 0 shows everybody where its own variable lies.
KERNEL(64, 1) void foreign_register(struct room r)
{
    STATIC_SHARED(pointer, first);
    const float own = r.in[0];
    if (thread_x() == 0) first = r.wrong ? &own : r.in;
    sync_threads();
    r.out[thread_x()] = *first;  // HERE foreign_register: out of bounds, load
}
EXHIBIT(foreign_register, shape.block[0] = shape.max_threads = 64)

// The grid ends before the outputs do.
KERNEL(64, 1) void tail_not_written(struct room r)
{
    const int i = 64 * block_x() + thread_x();
    r.out[i] = r.in[i];
}
EXHIBIT(tail_not_written, shape.grid[0] = r.wrong ? 3 : 4;  // HERE tail_not_written: not written, -
        shape.block[0] = shape.max_threads = 64)

// Thread 5 stores 16 bytes of a tile in shared memory two floats too far.
KERNEL(64, 1) void misaligned_store(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = 4 * thread_x(), shift = r.wrong && thread_x() == 5 ? 2 : 0;
    store_16(t.at + i + shift, load_global_16<four>(r.in + i));  // HERE misaligned_store: misaligned, st.v4
    sync_threads();
    for (int x = 0; x < 4; ++x) r.out[i + x] = t.at[i + x];
}
EXHIBIT(misaligned_store, shape.block[0] = shape.max_threads = 64)

// Thread 5 loads 16 bytes of a tile two floats too early.
KERNEL(64, 1) void misaligned_tile(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = 4 * thread_x(), shift = r.wrong && thread_x() == 5 ? 2 : 0;
    for (int x = 0; x < 4; ++x) t.at[i + x] = r.in[i + x];
    sync_threads();
    const four v = load_16<four>(t.at + i - shift);  // HERE misaligned_tile: misaligned, ld.v4
    for (int x = 0; x < 4; ++x) r.out[i + x] = v.at[x];
}
EXHIBIT(misaligned_tile, shape.block[0] = shape.max_threads = 64)

// A vector of 16 bytes is stored where no multiple of 16 lies, by no function of the device layer.
KERNEL(64, 1) void misaligned_vector(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = 4 * thread_x(), shift = r.wrong && thread_x() == 5 ? 2 : 0;
    const sixteen_bytes v = load_global_16<sixteen_bytes>(r.in + i);
    if (!r.wrong || shift != 0)
        *reinterpret_cast<sixteen_bytes *>(t.at + i + shift) = v;  // HERE misaligned_vector: misaligned, access
    sync_threads();
    for (int x = 0; x < 4; ++x) r.out[i + x] = t.at[i + x];
}
EXHIBIT(misaligned_vector, shape.block[0] = shape.max_threads = 64)

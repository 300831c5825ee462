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
    if (i < 63 || r.wrong) sum += row[i + 1];  // HERE past_tile: out of bounds, index
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

// Two tiles in dynamic shared memory, q and k; the right neighbour of q's last number is k's first.
KERNEL(64, 1) void past_part(struct room r)
{
    DYNAMIC_SHARED(shared, 16);
    const auto parts = cut_shared(shared, 64 * sizeof(float), SHARED_REST);
    float *const q = reinterpret_cast<float *>(parts.at[0]), *const k = reinterpret_cast<float *>(parts.at[1]);
    const int i = thread_x();
    q[i] = r.in[i], k[i] = r.in[i];
    sync_threads();
    float sum = q[i];
    if (i < 63 || r.wrong) sum += q[i + 1];  // HERE past_part: out of bounds, load
    r.out[i] = sum;
}
EXHIBIT(past_part, shape.dynamic_shared = 512; shape.block[0] = shape.max_threads = 64)

// Results take the place of both tiles: shared memory is whole again only where the kernel says so.
KERNEL(64, 1) void parts_not_joined(struct room r)
{
    DYNAMIC_SHARED(shared, 16);
    const auto parts = cut_shared(shared, 64 * sizeof(float), SHARED_REST);
    const int i = thread_x();
    for (int x = 0; x < 2; ++x) reinterpret_cast<float *>(parts.at[x])[i] = r.in[64 * x + i];
    sync_threads();
    float own[2];
    for (int x = 0; x < 2; ++x) own[x] = reinterpret_cast<float *>(parts.at[x])[i];
    sync_threads();
    float *const staged = reinterpret_cast<float *>(r.wrong ? shared : join_shared(shared));
    for (int x = 0; x < 2; ++x) staged[64 * x + i] = own[x];  // HERE parts_not_joined: out of bounds, store
    for (int x = 0; x < 2; ++x) r.out[64 * x + i] = staged[64 * x + i];
}
EXHIBIT(parts_not_joined, shape.dynamic_shared = 512; shape.block[0] = shape.max_threads = 64)

// The launch asked for fewer bytes than the parts have.
KERNEL(64, 1) void parts_too_large(struct room r)
{
    DYNAMIC_SHARED(shared, 16);
    const auto parts = cut_shared(shared, 256, 256);  // HERE parts_too_large: out of bounds, cut of shared memory
    float *const t = reinterpret_cast<float *>(parts.at[1]);
    const int i = thread_x();
    t[i] = r.in[i];
    r.out[i] = t[i];
}
EXHIBIT(parts_too_large, shape.dynamic_shared = r.wrong ? 496 : 512; shape.block[0] = shape.max_threads = 64)

struct two_rows {
    float q[64], k[64];
};

// The same of two members of a struct, which nothing keeps apart but the compiler's knowledge of their lengths.
KERNEL(64, 1) void past_member(struct room r)
{
    STATIC_SHARED(two_rows, rows);
    const int i = thread_x();
    rows.q[i] = r.in[i], rows.k[i] = r.in[i];
    sync_threads();
    float sum = rows.q[i];
    if (i < 63 || r.wrong) sum += rows.q[i + 1];  // HERE past_member: out of bounds, index
    r.out[i] = sum;
}
EXHIBIT(past_member, shape.block[0] = shape.max_threads = 64)

// An array of the thread's own has four numbers.
KERNEL(64, 1) void past_own_array(struct room r)
{
    const int i = thread_x();
    float own[4], others[4];
    for (int x = 0; x < (r.wrong ? 5 : 4); ++x)
        own[x] = others[x % 4] = r.in[i];  // HERE past_own_array: out of bounds, index
    r.out[i] = 2 * own[i % 4] - others[i % 4];
}
EXHIBIT(past_own_array, shape.block[0] = shape.max_threads = 64)

// The second tile has 32 numbers; behind them lie those of the first.
KERNEL(64, 1) void stale_tail(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[i];
    sync_threads();
    r.out[i] = t.at[63 - i];
    sync_threads();
    if (i == 0) expire_shared(&t, 64 * sizeof(float));
    sync_threads();
    if (i < 32) t.at[i] = r.in[64 + i];
    sync_threads();
    const float other = i >= 32 || r.wrong ? t.at[63 - i] : r.in[127 - i];  // HERE stale_tail: uninitialised, load
    r.out[64 + i] = i < 32 ? r.in[127 - i] + 0 * other : other;
}
EXHIBIT(stale_tail, shape.block[0] = shape.max_threads = 64)

// A tile whose readers have said that they are done with it is read once more, and holds what it held.
KERNEL(64, 1) void stage_released(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    float other = 0.0f;
    t.at[i] = r.in[i];
    sync_threads();
    if (!r.wrong) other = t.at[63 - i];
    sync_threads();
    if (i == 0) expire_shared(&t, 64 * sizeof(float));
    sync_threads();
    if (r.wrong) other = t.at[63 - i];  // HERE stage_released: uninitialised, load
    r.out[i] = other;
}
EXHIBIT(stage_released, shape.block[0] = shape.max_threads = 64)

// Who ends a tile's contents does so before the others have read them.
KERNEL(64, 1) void released_unread(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[i];
    sync_threads();
    r.out[i] = t.at[63 - i];  // HERE released_unread: race, load; uninitialised, load
    if (!r.wrong) sync_threads();
    if (i == 0) expire_shared(&t, 64 * sizeof(float));  // HERE released_unread: race, end of shared memory's contents
}
EXHIBIT(released_unread, shape.block[0] = shape.max_threads = 64)

// A pointer that nobody has set.
KERNEL(64, 1) void null_pointer(struct room r)
{
    const int i = thread_x();
    const float *from = r.wrong && i == 7 ? nullptr : r.in;
    r.out[i] = from[i];  // HERE null_pointer: out of bounds, load
}
EXHIBIT(null_pointer, shape.block[0] = shape.max_threads = 64)

// Thread 5 stores 16 bytes of the output two floats too far.
KERNEL(64, 1) void misaligned_output(struct room r)
{
    const int i = 4 * thread_x(), shift = r.wrong && thread_x() == 5 ? 2 : 0;
    const four v = load_global_16<four>(r.in + i);
    store_global_16(r.out + i + shift, v);  // HERE misaligned_output: misaligned, st.global.v4
}
EXHIBIT(misaligned_output, shape.block[0] = shape.max_threads = 64)

// A copy by name is watched as any other.
KERNEL(64, 1) void block_past_end(struct room r)
{
    const int i = 4 * thread_x();
    memcpy(r.out + i, r.in + i, r.wrong && thread_x() == 63 ? 32 : 16);  // HERE block_past_end: out of bounds, memcpy
}
EXHIBIT(block_past_end, shape.block[0] = shape.max_threads = 64)

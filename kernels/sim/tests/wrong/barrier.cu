// barrier.cu - exhibits: races, barriers and warps.
#include "kernels/sim/tests/wrong/exhibit.h"

// Reads what another thread writes, with no barrier between.
KERNEL(64, 1) void read_after_write(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = 0.0f;
    sync_threads();
    t.at[i] = r.in[i];  // HERE read_after_write: race, store
    if (!r.wrong) sync_threads();
    r.out[i] = t.at[63 - i];  // HERE read_after_write: race, load
}
EXHIBIT(read_after_write, shape.block[0] = shape.max_threads = 64)

// No barrier at the end of the loop: the next tile is written while this one is still read.
KERNEL(64, 1) void write_after_read(struct room r)
{
    STATIC_SHARED(tile, t);
    for (int i = thread_x(); i < 256; i += 64) {
        t.at[i % 64] = r.in[i];  // HERE write_after_read: race, store
        sync_threads();
        r.out[i] = t.at[63 - i % 64];  // HERE write_after_read: race, load
        if (!r.wrong) sync_threads();
    }
}
EXHIBIT(write_after_read, shape.block[0] = shape.max_threads = 64)

// Two threads write one number.
KERNEL(64, 1) void write_after_write(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    if (i % 2 == 0 || r.wrong) t.at[i / 2] = r.in[i];  // HERE write_after_write: race, store
    sync_threads();
    r.out[i] = t.at[i / 2];
}
EXHIBIT(write_after_write, shape.block[0] = shape.max_threads = 64)

// Two CTAs use one place of the workspace.
KERNEL(64, 1) void race_of_ctas(struct room r)
{
    const int i = 64 * block_x() + thread_x();
    float &place = r.work[r.wrong ? thread_x() : i];
    place = r.in[i];   // HERE race_of_ctas: race, store
    r.out[i] = place;  // HERE race_of_ctas: race, load
}
EXHIBIT(race_of_ctas, shape.grid[0] = 4; shape.block[0] = shape.max_threads = 64)

// A race through global memory, inside one CTA.
KERNEL(64, 1) void race_in_global(struct room r)
{
    const int i = thread_x();
    r.work[i] = 0.0f;
    sync_threads();
    r.work[i] = r.in[i];  // HERE race_in_global: race, store
    if (!r.wrong) sync_threads();
    r.out[i] = r.work[63 - i];  // HERE race_in_global: race, load
}
EXHIBIT(race_in_global, shape.block[0] = shape.max_threads = 64)

// Lanes of a warp do not run in step.
KERNEL(32, 1) void race_in_warp(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = 0.0f;
    sync_warp(FULL_WARP);
    t.at[i] = r.in[i];  // HERE race_in_warp: race, store
    if (!r.wrong) sync_warp(FULL_WARP);
    r.out[i] = t.at[31 - i];  // HERE race_in_warp: race, load
}
EXHIBIT(race_in_warp, shape.block[0] = shape.max_threads = 32)

// Half of the warp is not there.
KERNEL(64, 1) void shuffle_by_half(struct room r)
{
    const int i = thread_x();
    float other = r.in[i];
    if (lane() < 16 || !r.wrong) other = shfl_xor(FULL_WARP, other, 31);  // HERE shuffle_by_half: diverged, shfl
    r.out[i] = other;
}
EXHIBIT(shuffle_by_half, shape.block[0] = shape.max_threads = 64)

// Both halves shuffle, each at a place of its own.
KERNEL(64, 1) void shuffle_in_branches(struct room r)
{
    const int i = thread_x();
    float other = r.in[i];
    if (lane() < 16 && r.wrong)
        other = shfl_idx(FULL_WARP, other, 31 - lane());  // HERE shuffle_in_branches: diverged, shfl
    else
        other = shfl_xor(FULL_WARP, other, 31);  // HERE shuffle_in_branches: diverged, shfl
    r.out[i] = other;
}
EXHIBIT(shuffle_in_branches, shape.block[0] = shape.max_threads = 64)

DEVICE float mirrored(float x)
{
    return shfl_xor(FULL_WARP, x, 31);  // HERE function_in_branches: diverged, shfl
}

// Both halves shuffle by a function that stands at two places: the innermost line of both is the same.
KERNEL(64, 1) void function_in_branches(struct room r)
{
    const int i = thread_x();
    float other = r.in[i];
    if (lane() < 16 && r.wrong)
        other = mirrored(other + 1) - 1;
    else
        other = mirrored(other);
    r.out[i] = other;
}
EXHIBIT(function_in_branches, shape.block[0] = shape.max_threads = 64)

DEVICE void meet()
{
    sync_threads();  // HERE barrier_in_branches: diverged, bar.sync
}

// The same of a barrier.
KERNEL(64, 1) void barrier_in_branches(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[i];
    if (warp() == 0 && r.wrong)
        meet();
    else
        meet();
    r.out[i] = t.at[63 - i];
}
EXHIBIT(barrier_in_branches, shape.block[0] = shape.max_threads = 64)

// Reads what nobody has written before the barrier that is missing: whoever comes first, it is a race.
KERNEL(64, 1) void barrier_missing(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[i];  // HERE barrier_missing: race, store
    if (!r.wrong) sync_threads();
    r.out[i] = t.at[63 - i];  // HERE barrier_missing: race, load
}
EXHIBIT(barrier_missing, shape.block[0] = shape.max_threads = 64)

// A barrier stands between, on the wrong side of the writes: what is read there is nobody's.
KERNEL(64, 1) void barrier_too_early(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    float other = 0.0f;
    if (r.wrong) other = t.at[63 - i];  // HERE barrier_too_early: uninitialised, load
    sync_threads();
    t.at[i] = r.in[i];
    sync_threads();
    if (!r.wrong) other = t.at[63 - i];
    r.out[i] = other;
}
EXHIBIT(barrier_too_early, shape.block[0] = shape.max_threads = 64)

// Half of each warp passes one barrier more than the other half.
KERNEL(64, 1) void barrier_by_half(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[i];
    if (lane() < 16 || !r.wrong) sync_threads();  // HERE barrier_by_half: diverged, bar.sync
    r.out[i] = r.wrong ? 0.0f : t.at[63 - i];
    sync_threads();  // HERE barrier_by_half: diverged, bar.sync
}
EXHIBIT(barrier_by_half, shape.block[0] = shape.max_threads = 64)

// The two warps do not agree how many threads meet.
KERNEL(96, 1) void named_barrier_count(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    if (warp() == 2) return;
    t.at[i] = r.in[i];
    named_barrier_sync(1, r.wrong && warp() == 1 ? 96 : 64);  // HERE named_barrier_count: barrier count, bar.sync
    r.out[i] = t.at[63 - i];
}
EXHIBIT(named_barrier_count, shape.block[0] = shape.max_threads = 96)

// A barrier for whole warps is asked for 48 threads.
KERNEL(64, 1) void named_barrier_odd(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[i];
    named_barrier_sync(1, r.wrong ? 48 : 64);  // HERE named_barrier_odd: bad operand, bar.sync
    r.out[i] = t.at[63 - i];
}
EXHIBIT(named_barrier_odd, shape.block[0] = shape.max_threads = 64)

// The consumer waits for a producer that never arrives.
KERNEL(64, 1) void producer_never_arrives(struct room r)
{
    STATIC_SHARED(tile, t);
    if (warp() == 0) {
        t.at[lane()] = r.in[lane()];
        if (!r.wrong) named_barrier_arrive(1, 64);
    } else {
        named_barrier_sync(1, 64);  // HERE producer_never_arrives: deadlock, bar.sync
        r.out[lane()] = t.at[31 - lane()];
    }
}
EXHIBIT(producer_never_arrives, shape.block[0] = shape.max_threads = 64)

// Two warps take two barriers in opposite order.
KERNEL(64, 1) void crossed_barriers(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x(), first = r.wrong && warp() == 1 ? 2 : 1;
    t.at[i] = r.in[i];
    named_barrier_sync(first, 64);  // HERE crossed_barriers: deadlock, bar.sync
    r.out[i] = t.at[63 - i];
    named_barrier_sync(3 - first, 64);
}
EXHIBIT(crossed_barriers, shape.block[0] = shape.max_threads = 64)

// A warp arrives where nobody will ever wait.
KERNEL(64, 1) void arrival_left(struct room r)
{
    const int i = thread_x();
    if (warp() == 0 && r.wrong) named_barrier_arrive(3, 64);  // HERE arrival_left: left pending, bar.arrive
    r.out[i] = r.in[i];
}
EXHIBIT(arrival_left, shape.block[0] = shape.max_threads = 64)

DEVICE bool any_of_warp(bool x)
{
    return ballot(FULL_WARP, x) != 0;  // HERE vote_in_branches: diverged, vote.ballot
}

// Both halves vote, by a function that stands at two places.
KERNEL(64, 1) void vote_in_branches(struct room r)
{
    const int i = thread_x();
    bool some;
    if (lane() < 16 && r.wrong)
        some = any_of_warp(r.in[i] > 100.0f);
    else
        some = any_of_warp(r.in[i] > 99.0f);
    r.out[i] = some ? 0.0f : r.in[i];
}
EXHIBIT(vote_in_branches, shape.block[0] = shape.max_threads = 64)

// Lanes of a warp come to a named barrier at two places.
KERNEL(64, 1) void named_barrier_in_branches(struct room r)
{
    STATIC_SHARED(tile, t);
    const int i = thread_x();
    t.at[i] = r.in[i];
    if (lane() < 16 && r.wrong)
        named_barrier_sync(2, 64);  // HERE named_barrier_in_branches: diverged, bar.sync
    else
        named_barrier_sync(2, 64);  // HERE named_barrier_in_branches: diverged, bar.sync
    r.out[i] = t.at[63 - i];
}
EXHIBIT(named_barrier_in_branches, shape.block[0] = shape.max_threads = 64)

// A lane that is not named shuffles with those that are.
KERNEL(64, 1) void shuffle_not_named(struct room r)
{
    const int i = thread_x();
    const uint32_t members = r.wrong ? 0x7fffffff : FULL_WARP;
    r.out[i] = shfl_xor(members, r.in[i], 31);  // HERE shuffle_not_named: bad operand, shfl; diverged, shfl
}
EXHIBIT(shuffle_not_named, shape.block[0] = shape.max_threads = 64)

// Sums of a product begin with what nobody has written.
KERNEL(32, 1) void mma_added_to_nothing(struct room r)
{
    float d[4];
    const uint32_t a[4] = {}, b[2] = {};
    if (!r.wrong)
        for (int n = 0; n < 4; ++n) d[n] = r.in[4 * thread_x() + n];
    mma_m16n8k16_f16(d, a, b, d);  // HERE mma_added_to_nothing: uninitialised, mma.sync
    for (int n = 0; n < 4; ++n) r.out[4 * thread_x() + n] = d[n];
}
EXHIBIT(mma_added_to_nothing, shape.block[0] = shape.max_threads = 32)

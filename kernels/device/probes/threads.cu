/* threads.cu - probes of thread.h. */
#include "kernels/device/device.h"
#include "kernels/device/probes/probe_threads.h"

namespace {

KERNEL(PLACE_THREADS, 1) void place_kernel(place_out *out)
{
    place *p = &out->at[block_x() + grid_x() * (block_y() + grid_y() * block_z())][linear_thread()];
    p->thread[0] = thread_x(), p->thread[1] = thread_y(), p->thread[2] = thread_z();
    p->block[0] = block_x(), p->block[1] = block_y(), p->block[2] = block_z();
    p->block_size[0] = block_size_x(), p->block_size[1] = block_size_y(), p->block_size[2] = block_size_z();
    p->grid[0] = grid_x(), p->grid[1] = grid_y(), p->grid[2] = grid_z();
    p->linear = linear_thread();
    p->lane = lane();
    p->warp = warp();
}

template <typename T>
INLINE T shuffle(int kind, T value, unsigned operand, unsigned width)
{
    if (kind == 0) return shfl_idx(FULL_WARP, value, operand, width);
    if (kind == 1) return shfl_up(FULL_WARP, value, operand, width);
    if (kind == 2) return shfl_down(FULL_WARP, value, operand, width);
    return shfl_xor(FULL_WARP, value, operand, width);
}

KERNEL(32, 1) void shuffle_kernel(shuffle_out *out)
{
    const unsigned me = lane();
    for (int kind = 0; kind < SHUFFLE_KINDS; ++kind) {
        for (unsigned w = 0; w < SHUFFLE_WIDTHS; ++w)
            for (unsigned operand = 0; operand < 32; ++operand)
                out->words[kind][w][operand][me] = shuffle<uint32_t>(kind, 1000 + me, operand, 32 >> w);
        out->floats[kind][me] = bits_of(shuffle<float>(kind, 0.5f + static_cast<float>(me), 3, 32));
        out->ints[kind][me] = static_cast<uint32_t>(shuffle<int>(kind, -static_cast<int>(me), 3, 32));
    }
    if (me < 16) out->halves[me] = shfl_xor(0x0000ffff, me, 5);
    else out->halves[me] = shfl_xor(0xffff0000, me, 5);
}

typedef uint32_t warp_words[32];

KERNEL(32, 1) void vote_kernel(vote_out *out)
{
    STATIC_SHARED(warp_words, words);
    const unsigned me = lane();
    out->all[me] = ballot(FULL_WARP, me % 3 == 0);
    if (me % 2 == 0) out->alike[me] = ballot(0x55555555, me % 3 == 0);
    else out->alike[me] = ballot(0xaaaaaaaa, me % 3 == 0);
    words[me] = 7 * me;
    sync_warp(FULL_WARP);
    out->exchanged[me] = words[31 - me];
    for (unsigned round = 0; round < 32; ++round)
        out->most[round][me] = max_of_warp(me == round ? 0x80000000 + me : 0x7fffffff - me);
}

typedef uint32_t block_words[BARRIER_THREADS];

KERNEL(BARRIER_THREADS, 1) void barrier_kernel(barrier_out *out)
{
    STATIC_SHARED(block_words, words);
    const unsigned me = thread_x(), half = BARRIER_THREADS / 2;
    for (unsigned round = 0; round < BARRIER_ROUNDS; ++round) {
        words[me] = 1000 * round + me;
        sync_threads();
        out->reversed[round][me] = words[BARRIER_THREADS - 1 - me];
        sync_threads();
    }
    /* Barrier 1: full, barrier 2: empty. */
    for (unsigned round = 0; round < BARRIER_ROUNDS; ++round) {
        if (me < half) {
            if (round > 0) named_barrier_sync(2, BARRIER_THREADS);
            words[me] = 100000 * round + me;
            named_barrier_arrive(1, BARRIER_THREADS);
        } else {
            named_barrier_sync(1, BARRIER_THREADS);
            out->consumed[round][me - half] = words[BARRIER_THREADS - 1 - me];
            if (round + 1 < BARRIER_ROUNDS) named_barrier_arrive(2, BARRIER_THREADS);
        }
    }
}

KERNEL(32, 1) void elect_kernel(elect_out *out)
{
    const uint32_t elected = ballot(FULL_WARP, elect_one());
    uint32_t again = 0;
    if ((elected >> lane() & 1) == 0) {
        again = ballot(~elected, elect_one(~elected));
        if ((again >> lane() & 1) != 0) out->again = again & (again - 1);
    } else {
        out->elected = elected & (elected - 1); /* zero if it was one lane alone */
    }
}

} // namespace

extern "C" int KERNEL_SYMBOL(probe_place)(const void *, void *out, void *stream)
{
    const launch_shape shape = {{PLACE_GRID_X, PLACE_GRID_Y, PLACE_GRID_Z},
                                {PLACE_BLOCK_X, PLACE_BLOCK_Y, PLACE_BLOCK_Z}, {1, 1, 1}, 0, PLACE_THREADS, 1};
    return LAUNCH(place_kernel, shape, stream, static_cast<place_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_shuffle)(const void *, void *out, void *stream)
{
    const launch_shape shape = {{1, 1, 1}, {32, 1, 1}, {1, 1, 1}, 0, 32, 1};
    return LAUNCH(shuffle_kernel, shape, stream, static_cast<shuffle_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_vote)(const void *, void *out, void *stream)
{
    const launch_shape shape = {{1, 1, 1}, {32, 1, 1}, {1, 1, 1}, 0, 32, 1};
    return LAUNCH(vote_kernel, shape, stream, static_cast<vote_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_barrier)(const void *, void *out, void *stream)
{
    const launch_shape shape = {{1, 1, 1}, {BARRIER_THREADS, 1, 1}, {1, 1, 1}, 0, BARRIER_THREADS, 1};
    return LAUNCH(barrier_kernel, shape, stream, static_cast<barrier_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_elect)(const void *, void *out, void *stream)
{
    const launch_shape shape = {{1, 1, 1}, {32, 1, 1}, {1, 1, 1}, 0, 32, 1};
    return LAUNCH(elect_kernel, shape, stream, static_cast<elect_out *>(out));
}

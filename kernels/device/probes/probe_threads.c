/* probe_threads.c - what thread.h must give, by definition. */
#include "kernels/device/probes/probe_threads.h"

#include <string.h>

#include "kernels/device/probes/probe.h"

static void expect_place(const void *in, void *out)
{
    (void)in;
    struct place_out *o = out;
    for (uint32_t block = 0; block < PLACE_BLOCKS; ++block)
        for (uint32_t n = 0; n < PLACE_THREADS; ++n)
            o->at[block][n] = (struct place){
                {n % PLACE_BLOCK_X, n / PLACE_BLOCK_X % PLACE_BLOCK_Y, n / (PLACE_BLOCK_X * PLACE_BLOCK_Y)},
                {block % PLACE_GRID_X, block / PLACE_GRID_X % PLACE_GRID_Y, block / (PLACE_GRID_X * PLACE_GRID_Y)},
                {PLACE_BLOCK_X, PLACE_BLOCK_Y, PLACE_BLOCK_Z},
                {PLACE_GRID_X, PLACE_GRID_Y, PLACE_GRID_Z}, n, n % 32, n / 32};
}

/* The lane that is read, as thread.h says. */
static uint32_t source_of(int kind, uint32_t lane, uint32_t operand, uint32_t width)
{
    const uint32_t first = lane / width * width, last = first + width - 1;
    if (kind == 0) return first + operand % width;
    if (kind == 1) return lane >= first + operand ? lane - operand : lane;
    if (kind == 2) return lane + operand <= last ? lane + operand : lane;
    return (lane ^ operand) <= last ? lane ^ operand : lane;
}

static void expect_shuffle(const void *in, void *out)
{
    (void)in;
    struct shuffle_out *o = out;
    for (int kind = 0; kind < SHUFFLE_KINDS; ++kind)
        for (uint32_t lane = 0; lane < 32; ++lane) {
            for (uint32_t w = 0; w < SHUFFLE_WIDTHS; ++w)
                for (uint32_t operand = 0; operand < 32; ++operand)
                    o->words[kind][w][operand][lane] = 1000 + source_of(kind, lane, operand, 32 >> w);
            const uint32_t source = source_of(kind, lane, 3, 32);
            const float x = 0.5f + (float)source;
            memcpy(&o->floats[kind][lane], &x, 4);
            o->ints[kind][lane] = 0 - source;
            o->halves[lane] = lane ^ 5;
        }
}

static void expect_vote(const void *in, void *out)
{
    (void)in;
    struct vote_out *o = out;
    uint32_t thirds = 0;
    for (uint32_t lane = 0; lane < 32; lane += 3) thirds |= 1u << lane;
    for (uint32_t lane = 0; lane < 32; ++lane) {
        o->all[lane] = thirds;
        o->alike[lane] = thirds & (lane % 2 == 0 ? 0x55555555 : 0xaaaaaaaa);
        o->exchanged[lane] = 7 * (31 - lane);
        for (uint32_t round = 0; round < 32; ++round) o->most[round][lane] = 0x80000000 + round;
    }
}

static void expect_barrier(const void *in, void *out)
{
    (void)in;
    struct barrier_out *o = out;
    for (uint32_t round = 0; round < BARRIER_ROUNDS; ++round) {
        for (uint32_t n = 0; n < BARRIER_THREADS; ++n)
            o->reversed[round][n] = 1000 * round + BARRIER_THREADS - 1 - n;
        for (uint32_t n = 0; n < BARRIER_THREADS / 2; ++n)
            o->consumed[round][n] = 100000 * round + BARRIER_THREADS / 2 - 1 - n;
    }
}

static void expect_elect(const void *in, void *out)
{
    (void)in;
    memset(out, 0, sizeof(struct elect_out));
}

PROBE_LAUNCHERS(probe_place);
PROBE_LAUNCHERS(probe_shuffle);
PROBE_LAUNCHERS(probe_vote);
PROBE_LAUNCHERS(probe_barrier);
PROBE_LAUNCHERS(probe_elect);

const struct probe probes_of_threads[] = {
    {"places in block and grid", 80, false, 0, sizeof(struct place_out), NULL, expect_place, PROBE_ON(probe_place)},
    {"shfl", 80, false, 0, sizeof(struct shuffle_out), NULL, expect_shuffle, PROBE_ON(probe_shuffle)},
    {"ballot, sync_warp, max_of_warp", 80, false, 0, sizeof(struct vote_out), NULL, expect_vote, PROBE_ON(probe_vote)},
    {"barriers of a CTA", 80, false, 0, sizeof(struct barrier_out), NULL, expect_barrier, PROBE_ON(probe_barrier)},
    {"elect_one", 90, false, 0, sizeof(struct elect_out), NULL, expect_elect, PROBE_ON(probe_elect)},
    {0},
};

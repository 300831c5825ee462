/* probe_threads.h - what the probes of thread.h write. */
#ifndef ATTEST_DEVICE_PROBE_THREADS_H
#define ATTEST_DEVICE_PROBE_THREADS_H

#include <stdint.h>

enum { PLACE_BLOCK_X = 5, PLACE_BLOCK_Y = 4, PLACE_BLOCK_Z = 3, PLACE_GRID_X = 3, PLACE_GRID_Y = 2, PLACE_GRID_Z = 2 };
enum { PLACE_THREADS = PLACE_BLOCK_X * PLACE_BLOCK_Y * PLACE_BLOCK_Z,
       PLACE_BLOCKS = PLACE_GRID_X * PLACE_GRID_Y * PLACE_GRID_Z };

struct place {
    uint32_t thread[3], block[3], block_size[3], grid[3], linear, lane, warp;
};

struct place_out {
    struct place at[PLACE_BLOCKS][PLACE_THREADS];
};

/* Kinds idx, up, down, xor; widths 32, 16, 8, 4, 2, 1; every operand; every lane. */
enum { SHUFFLE_KINDS = 4, SHUFFLE_WIDTHS = 6 };

struct shuffle_out {
    uint32_t words[SHUFFLE_KINDS][SHUFFLE_WIDTHS][32][32];
    uint32_t floats[SHUFFLE_KINDS][32], ints[SHUFFLE_KINDS][32]; /* operand 3, width 32 */
    uint32_t halves[32];                                        /* xor 5 in either half of the warp alone */
};

struct vote_out {
    uint32_t all[32], alike[32]; /* lanes divisible by 3; the same among even or among odd lanes alone */
    uint32_t exchanged[32];      /* through shared memory and sync_warp */
    uint32_t most[32][32];       /* of all lanes' values; round n: lane n's is the largest */
};

enum { BARRIER_THREADS = 256, BARRIER_ROUNDS = 8 };

struct barrier_out {
    uint32_t reversed[BARRIER_ROUNDS][BARRIER_THREADS];   /* sync_threads */
    uint32_t consumed[BARRIER_ROUNDS][BARRIER_THREADS / 2]; /* named barriers: warps 0 .. 3 to warps 4 .. 7 */
};

struct elect_out {
    uint32_t elected, again; /* lanes that elect_one picks: of all, and of all but one of those */
};

#endif

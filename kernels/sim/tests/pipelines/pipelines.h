/* pipelines.h - the common form of the pipelines: small, built as attention kernels on Hopper are, and right.
 *
 * A kernel gets a room and reads `mistake` from it: the same source is the right pipeline and each of its mutants,
 * which differ from it in one thing. The right one fills `out` with numbers that pipelines_test.c knows. */
#ifndef ATTEST_SIM_PIPELINES_H
#define ATTEST_SIM_PIPELINES_H

#include <stdint.h>

#include "kernels/sim/sim.h"

#define MISTAKE(family, name, ...) family##_##name,
enum mistake {
    NO_MISTAKE,
#include "kernels/sim/tests/pipelines/mistakes.h"
};
#undef MISTAKE

enum {
    COLUMNS = 16,    /* of `in`, whose rows have 32 bytes */
    GROUP_ROWS = 64, /* of an operand of a warpgroup */
    KEY_ROWS = 16,   /* of an operand of all warpgroups */

    RING_TILES = 7,  /* of keys, and of values */
    RING_GROUPS = 2,
    RING_KEYS = RING_GROUPS * GROUP_ROWS,            /* the first row of keys; those of queries come before */
    RING_VALUES = RING_KEYS + RING_TILES * KEY_ROWS, /* of values */
    RING_ROWS = RING_VALUES + RING_TILES * KEY_ROWS,

    TURN_TILES = 4, /* of queries: the two warpgroups take them in turn */
    TURN_KEYS = TURN_TILES * GROUP_ROWS,
    TURN_VALUES = TURN_KEYS + KEY_ROWS,
    TURN_ROWS = TURN_VALUES + KEY_ROWS,

    CAST_TILES = 6, /* of columns: rows of `in` hold tile after tile */
    CAST_CTAS = 4,
    CAST_KEYS = CAST_CTAS * CAST_TILES * GROUP_ROWS,
    CAST_ROWS = CAST_KEYS + CAST_TILES * 2 * KEY_ROWS,

    SWAP_ROUNDS = 5,
    SWAP_CTAS = 4,
    SWAP_NUMBERS = 64, /* of a CTA in a round */
    SWAP_ROWS = SWAP_ROUNDS * SWAP_CTAS * SWAP_NUMBERS / COLUMNS,

    CHAIN_TILES = 5,
    CHAIN_CTAS = 2,
    CHAIN_PASSES = 2,
    CHAIN_KEYS = CHAIN_TILES * GROUP_ROWS,
    CHAIN_ROWS = CHAIN_KEYS + KEY_ROWS,

    MAX_ROWS = CAST_ROWS,
    MAX_FLOATS = CHAIN_PASSES * CHAIN_TILES * GROUP_ROWS * KEY_ROWS
};

struct room {
    const uint16_t *in; /* bf16, -2 .. 2 */
    float *out;         /* may be written, not read */
    uint16_t *work;     /* as large as `in`: may be written, then read */
    int stages;         /* of a ring, 2 to 5 */
    enum mistake mistake;
};

#ifdef __cplusplus

#include "kernels/device/device.h"

/* Rows of 16 numbers, as a tensor copy with a swizzle of 32 bytes leaves them. */
template <int ROWS>
struct alignas(256) operand {
    uint16_t at[ROWS * COLUMNS];
};

/* Of an operand whose rows are a's rows or b's columns; and of one whose rows are those of b. */
template <int ROWS>
DEVICE uint64_t rows_of(const operand<ROWS> &x)
{
    return wgmma_descriptor(&x, 16, 256, 32);
}

template <int ROWS>
DEVICE uint64_t columns_of(const operand<ROWS> &x)
{
    return wgmma_descriptor(&x, 32 * ROWS, 256, 32);
}

/* A tensor map of rows of `columns` numbers, and boxes of so many of them: of bf16 with the swizzle of an operand, of
 * fp32 without. */
static inline bool map_rows(tensor_map *map, const void *data, tensor_element element, uint64_t rows, uint32_t columns,
                            uint32_t box_rows)
{
    const uint64_t row_bytes = columns * (element == TENSOR_FP32 ? 4u : 2u);
    const tensor_map_fields fields = {data, element, 2, {columns, rows}, {0, row_bytes}, {columns, box_rows},
                                      element == TENSOR_FP32 ? 0 : 32, false};
    char why[256];
    return tensor_map_encode(map, &fields, why, sizeof why);
}

/* A stage of a ring, and the parity of the phase to wait for there: a producer begins with 1, a consumer with 0. */
struct place {
    int stage;
    unsigned parity;
};

DEVICE void advance(place &at, int stages, bool turns)
{
    if (++at.stage < stages) return;
    at.stage = 0;
    if (turns) at.parity ^= 1;
}

/* Writes a warpgroup's product of 64 rows and COUNT / 32 columns, in rows of `pitch` numbers. */
template <int HALF_N>
DEVICE void write_product(float *to, int pitch, const float (&d)[HALF_N])
{
    const unsigned row = 16 * (warp() % 4) + lane() / 4, column = lane() % 4 * 2;
    for (unsigned j = 0; j < HALF_N; ++j)
        to[(row + j / 2 % 2 * 8) * static_cast<unsigned>(pitch) + column + j / 4 * 8 + j % 2] = d[j];
}

#endif

#endif

/* score_tile.h - the masks and biases of a tile of rows x keys, in shared memory: where lanes find those of their
 * fragments without waiting for global memory.
 *
 * A tile has ROWS rows of KEYS elements, PITCH bytes apart: lanes that read the same columns of eight neighbouring rows
 * meet different banks. Elements that the tensor lacks, past `rows` and `keys`, are zero, and are not read. Of a tensor
 * that all rows share, as its stride is 0, the tile has one row. */
#ifndef ATTEST_KERNELS_SHARED_SCORE_TILE_H
#define ATTEST_KERNELS_SHARED_SCORE_TILE_H

#include "kernels/device/device.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"

/* Says where the elements of one sequence and head are: that of row r and key j is at data + r * row + j * key. */
struct score_source {
    const char *data;
    int64_t row, key; /* strides in bytes */
    bool by_sixteen;  /* 16 bytes of a row, from a multiple of 16 on, are neighbours and aligned */
};

INLINE score_source find_score_source(const score_tensor &t, const void *of_head, int element_bytes)
{
    const char *const data = static_cast<const char *>(of_head);
    const int64_t row = t.seqlen_q * element_bytes, key = t.seqlen_k * element_bytes;
    const uint64_t bits = reinterpret_cast<uint64_t>(data) | static_cast<uint64_t>(row);
    return {data, row, key, key == element_bytes && bits % 16 == 0};
}

template <int ELEMENT_BYTES, int ROWS_OF_TILE, int KEYS_OF_TILE>
struct score_tile {
    static constexpr int BYTES = ELEMENT_BYTES, ROWS = ROWS_OF_TILE, KEYS = KEYS_OF_TILE;
    static constexpr int PITCH = KEYS * BYTES + (BYTES == 4 ? 32 : 16); /* bytes */
    static constexpr int SIZE = ROWS * PITCH;
    static constexpr int AT_ONCE = 16 / BYTES, CHUNKS = KEYS / AT_ONCE; /* of 16 bytes to a row */
};

/* Returns how many bytes lie between the rows of a tile as lanes read it: none where all rows share one. */
template <typename tile>
DEVICE int pitch_of(const score_source &from)
{
    return from.row == 0 ? 0 : tile::PITCH;
}

/* Gathers AT_ONCE elements of a row, zero where `count` ends before them. */
template <typename tile>
INLINE sixteen_bytes gather_chunk(const char *at, int64_t step, int count)
{
    struct alignas(16) {
        unsigned char at[16];
    } out;
    for (int n = 0; n < tile::AT_ONCE; ++n) {
        const char *const element = at + n * step;
        if constexpr (tile::BYTES == 1) {
            out.at[n] = n < count ? static_cast<unsigned char>(*element) : static_cast<unsigned char>(0);
        } else if constexpr (tile::BYTES == 2) {
            const uint16_t bits = n < count ? *reinterpret_cast<const uint16_t *>(element) : uint16_t{0};
            __builtin_memcpy(&out.at[2 * n], &bits, 2);
        } else {
            const uint32_t bits = n < count ? *reinterpret_cast<const uint32_t *>(element) : 0;
            __builtin_memcpy(&out.at[4 * n], &bits, 4);
        }
    }
    return same_16<sixteen_bytes>(out);
}

/* Names the chunks of a tile that are one thread's own: chunk `x` of rows `row`, row + STEP, ... */
template <typename tile, int THREADS>
struct own_chunks {
    static constexpr int STEP = THREADS / tile::CHUNKS, COUNT = (tile::ROWS + STEP - 1) / STEP;
    static_assert(THREADS % tile::CHUNKS == 0, "a thread's chunks lie below one another");
    int row, x;
};

template <typename tile, int THREADS>
INLINE own_chunks<tile, THREADS> chunks_of(unsigned thread)
{
    return {static_cast<int>(thread) / tile::CHUNKS, static_cast<int>(thread) % tile::CHUNKS};
}

/* Loads rows row .. row + rows - 1 and keys key .. key + keys - 1; THREADS share the work. Copies are asynchronous:
 * wait for them. */
template <typename tile, int THREADS>
DEVICE void load_score_tile(unsigned char *to, const score_source &from, int32_t row, int rows, int32_t key, int keys,
                            unsigned thread)
{
    const auto own = chunks_of<tile, THREADS>(thread);
    constexpr int STEP = own_chunks<tile, THREADS>::STEP, COUNT = own_chunks<tile, THREADS>::COUNT;
    const int count = keys - own.x * tile::AT_ONCE, in_tile = from.row == 0 ? 1 : tile::ROWS;
    const char *at = from.data + (row + own.row) * from.row + (key + own.x * tile::AT_ONCE) * from.key;
    const int64_t step = STEP * from.row;
    unsigned char *const first = to + own.row * tile::PITCH + own.x * 16;
    if (from.by_sixteen && (count >= tile::AT_ONCE || count <= 0)) {
        UNROLL for (int n = 0; n < COUNT; ++n, at += step)
            if (own.row + n * STEP < in_tile)
                cp_async_16(first + n * STEP * tile::PITCH, at, count > 0 && own.row + n * STEP < rows);
    } else {
        ROLLED for (int n = 0; n < COUNT; ++n, at += step)
            if (own.row + n * STEP < in_tile)
                store_16(first + n * STEP * tile::PITCH,
                         gather_chunk<tile>(at, from.key, own.row + n * STEP < rows ? count : 0));
    }
}

/* Returns whether one of the chunks that this thread has loaded, and waited for, has an element that is not 0. */
template <typename tile, int THREADS>
DEVICE bool has_own_element(const unsigned char *tile_bytes, const score_source &from, unsigned thread)
{
    const auto own = chunks_of<tile, THREADS>(thread);
    constexpr int STEP = own_chunks<tile, THREADS>::STEP, COUNT = own_chunks<tile, THREADS>::COUNT;
    const int in_tile = from.row == 0 ? 1 : tile::ROWS;
    uint32_t any = 0;
    UNROLL for (int n = 0; n < COUNT; ++n)
        if (own.row + n * STEP < in_tile) {
            const quad bytes = load_16<quad>(tile_bytes + (own.row + n * STEP) * tile::PITCH + own.x * 16);
            UNROLL for (int e = 0; e < 4; ++e) any |= bits_of(bytes.at[e]);
        }
    return any != 0;
}

#endif

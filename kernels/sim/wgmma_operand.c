/* wgmma_operand.c - where matrix descriptors say that operands lie.
 *
 * The PTX manual, "Shared Memory Matrix Layout" and "Matrix Descriptor Format". Chunks of 16 bytes lie, with L and S
 * the leading and the stride dimension's byte offset, W the swizzle's bytes:
 *
 *     K-major, no swizzle     row i, chunk c of k    (i % 8) 16 + (i / 8) S + c L
 *     K-major, swizzle                               (i % 8) W  + (i / 8) S + 16 c
 *     MN-major, no swizzle    rows 8 j .., column k  j S + (k % 8) 16 + (k / 8) L
 *     MN-major, swizzle                              (j % (W/16)) 16 + (j / (W/16)) L + (k % 8) W + (k / 8) S
 *
 * from the start address. The swizzle then works on the bits of the address, in lines counted from the pattern's start,
 * which the base offset names if it is no multiple of the pattern's size. */
#include <string.h>

#include "kernels/sim/async.h"

enum { ROW_BYTES = 32, NUM_BITS = SIM_WINDOW / WGMMA_CHUNK };

struct layout {
    uint32_t start, leading, stride, base;
    int swizzle_bytes;
};

static struct layout decode(uint64_t descriptor, char name, const struct issue *issue)
{
    static const int swizzles[] = {0, 128, 64, 32};
    static const uint64_t used = 0xC00E3FFF3FFF3FFF;
    const struct layout layout = {.start = (uint32_t)(descriptor & 0x3FFF) << 4,
                                  .leading = (uint32_t)(descriptor >> 16 & 0x3FFF) << 4,
                                  .stride = (uint32_t)(descriptor >> 32 & 0x3FFF) << 4,
                                  .base = (uint32_t)(descriptor >> 49 & 7),
                                  .swizzle_bytes = swizzles[descriptor >> 62]};
    if (descriptor & ~used || (layout.base && !layout.swizzle_bytes))
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, NULL,
                 "The descriptor of %c is 0x%016llx, which has bits where there is no field.", name,
                 (unsigned long long)descriptor);
    return layout;
}

/* Before the swizzle: chunk n as struct wgmma_operand numbers them. */
static uint32_t distance(const struct layout *l, bool transposed, uint32_t n)
{
    const uint32_t width = (uint32_t)l->swizzle_bytes;
    if (!transposed) {
        const uint32_t i = n / 2, c = n % 2;
        return i / 8 * l->stride + (width ? i % 8 * width + c * WGMMA_CHUNK : i % 8 * WGMMA_CHUNK + c * l->leading);
    }
    const uint32_t j = n / 16, k = n % 16, chunks = width / WGMMA_CHUNK;
    if (!width) return j * l->stride + k % 8 * WGMMA_CHUNK + k / 8 * l->leading;
    return j % chunks * WGMMA_CHUNK + j / chunks * l->leading + k % 8 * width + k / 8 * l->stride;
}

void sim_wgmma_locate(struct wgmma_operand *operand, uint64_t descriptor, int rows, bool transposed, char name,
                      const struct issue *issue)
{
    const struct layout layout = decode(descriptor, name, issue);
    operand->rows = rows;
    operand->transposed = transposed;
    for (uint32_t n = 0; n < 2 * (uint32_t)rows; ++n) {
        const uint32_t address = layout.start + distance(&layout, transposed, n);
        if (address >= SIM_WINDOW)
            sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, NULL,
                     "By its descriptor, 0x%016llx, %c reaches to 0x%x, beyond all shared memory.",
                     (unsigned long long)descriptor, name, address);
        const uint32_t lines = layout.base << 7; /* from a multiple of the pattern to where it starts */
        operand->chunks[n] = address ^ (sim_swizzle(address - lines, layout.swizzle_bytes) ^ (address - lines));
    }
}

/* The first bit from i on that is set (flip ~0: is not); beyond `last`: last + 1. */
static uint32_t next_bit(const uint64_t *bits, uint32_t i, uint32_t last, uint64_t flip)
{
    while (i <= last) {
        const uint64_t word = (bits[i / 64] ^ flip) >> i % 64;
        if (word) {
            i += (uint32_t)__builtin_ctzll(word);
            break;
        }
        i += 64 - i % 64;
    }
    return i <= last ? i : last + 1;
}

/* Runs of neighbouring chunks are watched as one. */
void sim_wgmma_watch(const struct wgmma_operand *operand, int first, int n, const struct sim_deed *deeds, int num_deeds)
{
    uint64_t bits[NUM_BITS / 64] = {0};
    uint32_t low = NUM_BITS, high = 0;
    for (int i = 2 * first; i < 2 * (first + n); ++i) {
        const uint32_t chunk = operand->chunks[i] / WGMMA_CHUNK;
        bits[chunk / 64] |= (uint64_t)1 << chunk % 64;
        if (chunk < low) low = chunk;
        if (chunk > high) high = chunk;
    }
    struct sim_piece pieces[2 * WGMMA_MAX_ROWS];
    int num_pieces = 0;
    for (uint32_t begin = low, end; begin <= high; begin = next_bit(bits, end, high, 0)) {
        end = next_bit(bits, begin, high, ~(uint64_t)0);
        pieces[num_pieces++] = (struct sim_piece){begin * WGMMA_CHUNK, (end - begin) * WGMMA_CHUNK};
    }
    sim_watch_async_reads(deeds, num_deeds, pieces, num_pieces);
}

void sim_wgmma_gather(const struct wgmma_operand *operand, const char *window, char *rows)
{
    if (!operand->transposed) {
        for (int n = 0; n < 2 * operand->rows; ++n)
            memcpy(rows + n * WGMMA_CHUNK, window + operand->chunks[n], WGMMA_CHUNK);
        return;
    }
    for (int n = 0; n < 2 * operand->rows; ++n) {
        uint16_t column[8];
        memcpy(column, window + operand->chunks[n], sizeof column);
        char *to = rows + n / 16 * 8 * ROW_BYTES + n % 16 * sizeof *column;
        for (int i = 0; i < 8; ++i) memcpy(to + i * ROW_BYTES, &column[i], sizeof *column);
    }
}

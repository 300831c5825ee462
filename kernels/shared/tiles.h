/* tiles.h - tiles of 16-bit numbers in shared memory, as matrices of a warp read them.
 *
 * A tile has rows of DIM numbers, 16 bytes of a row are a chunk, and chunk c of row r lies at place c ^ (r % 8) of its
 * row: then eight rows of one chunk lie in different banks, which is what ldmatrix reads at once. Of rows of 32 or 16
 * numbers two or four share the banks' 128 bytes: c ^ (r / 2 % 4), c ^ (r / 4 % 2).
 *
 * Fragments are those of device/mma.h, g = lane / 4, t = lane % 4. */
#ifndef ATTEST_KERNELS_SHARED_TILES_H
#define ATTEST_KERNELS_SHARED_TILES_H

#include "kernels/device/device.h"
#include "kernels/shared/scores.h"

/* Returns how many numbers lie before chunk x / 8 of a row; x is a multiple of 8. */
template <int DIM>
DEVICE unsigned tile_offset(unsigned row, unsigned x)
{
    const unsigned swizzle = DIM >= 64 ? row % 8 : row / (DIM < 64 ? 64 / DIM : 1) % (DIM / 8);
    return row * DIM + (x ^ swizzle * 8);
}

/* Loads eight numbers of a row that may end before them or be misaligned. */
INLINE sixteen_bytes load_eight(const row_pointer &row, int x)
{
    struct alignas(16) {
        uint16_t at[8];
    } out;
    for (int n = 0; n < 8; ++n)
        out.at[n] = x + n < row.length ? reinterpret_cast<const uint16_t *>(row.data)[x + n] : uint16_t{0};
    return same_16<sixteen_bytes>(out);
}

/* Stores eight numbers of a row, but for those past its end. */
DEVICE void store_eight(const row_pointer &row, unsigned x, const uint16_t *from)
{
    uint16_t *const to = reinterpret_cast<uint16_t *>(row.data) + x;
    for (int n = 0; n < 8; ++n)
        if (static_cast<int>(x) + n < row.length) to[n] = from[n];
}

/* Copies `count` rows from `row` on, `step` bytes apart, into a tile of ROWS. THREADS of the CTA share the work, and
 * this is one of them. What is past `count` rows or the row's length becomes zero, and is not read. Copies are
 * asynchronous: wait for them. */
template <int ROWS, int DIM, int THREADS>
DEVICE void load_rows(uint16_t *tile, row_pointer row, int64_t step, bool by_eight, int count, unsigned thread)
{
    constexpr unsigned CHUNKS = DIM / 8, STEP = THREADS / CHUNKS;
    const unsigned x = thread % CHUNKS * 8, begin = thread / CHUNKS;
    const int left = count - static_cast<int>(begin);
    const bool has_some = static_cast<int>(x) < row.length, has_all = static_cast<int>(x) + 8 <= row.length;
    row.data += begin * step;
    if (by_eight && has_some == has_all) {
        row.data += 2 * x;
        UNROLL for (unsigned r = 0; r < ROWS; r += STEP, row.data += STEP * step)
            cp_async_16(&tile[tile_offset<DIM>(begin + r, x)], row.data, has_all && static_cast<int>(r) < left);
    } else {
        ROLLED for (unsigned r = 0; r < ROWS; r += STEP, row.data += STEP * step)
            store_16(&tile[tile_offset<DIM>(begin + r, x)],
                     static_cast<int>(r) < left ? load_eight(row, static_cast<int>(x)) : sixteen_bytes{});
    }
}

/* Loads rows first .. first + count - 1 of t. */
template <int ROWS, int DIM, int THREADS>
DEVICE void load_tile(uint16_t *tile, const row_tensor &t, int64_t b, int64_t first, int count, int64_t head,
                      int length, unsigned thread = thread_x())
{
    load_rows<ROWS, DIM, THREADS>(tile, row_of(t, b, first, head, length), t.seqlen * 2, t.by_eight != 0, count,
                                  thread);
}

/* ---- fragments ------------------------------------------------------------------------------------------------- */

/* Loads fragment a of rows row .. row + 15, columns x .. x + 15. */
template <int DIM>
DEVICE void load_a(uint32_t (&a)[4], const uint16_t *tile, unsigned row, unsigned x)
{
    const unsigned l = lane();
    ldmatrix_x4(a, &tile[tile_offset<DIM>(row + l % 16, x + l / 16 * 8)]);
}

/* Loads fragment b of two products that share a, for q k^T from a tile of k: the columns are the tile's rows row .. row
 * + 7 and row + 8 .. row + 15, the depth is its features x .. x + 15. */
template <int DIM>
DEVICE void load_b(uint32_t (&b)[2][2], const uint16_t *tile, unsigned row, unsigned x)
{
    const unsigned l = lane();
    uint32_t r[4];
    ldmatrix_x4(r, &tile[tile_offset<DIM>(row + l % 8 + l / 16 * 8, x + l / 8 % 2 * 8)]);
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

/* Does the same for p v from a tile of v: the columns are features x .. x + 7 and x + 8 .. x + 15, the depth is the
 * tile's rows row .. row + 15. */
template <int DIM>
DEVICE void load_b_transposed(uint32_t (&b)[2][2], const uint16_t *tile, unsigned row, unsigned x)
{
    const unsigned l = lane();
    uint32_t r[4];
    ldmatrix_x4_trans(r, &tile[tile_offset<DIM>(row + l % 16, x + l / 16 * 8)]);
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

/* These give the two 16-bit formats one name. */
template <typename T>
constexpr bool IS_F16 = false;
template <>
constexpr bool IS_F16<f16> = true;

template <typename T>
DEVICE uint32_t pack(float low, float high)
{
    return IS_F16<T> ? pack_f16x2(low, high) : pack_bf16x2(low, high);
}

template <typename T>
DEVICE float unpack(uint32_t pair, bool high)
{
    return to_f32(T{static_cast<uint16_t>(high ? pair >> 16 : pair & 0xffff)});
}

/* Rounds what `pair`, the two numbers rounded, leaves of them: together the parts are off by the roundoff's square. */
template <typename T>
DEVICE uint32_t pack_rest(float low, float high, uint32_t pair)
{
    return pack<T>(low - unpack<T>(pair, false), high - unpack<T>(pair, true));
}

/* Computes d += a b. */
template <typename T>
DEVICE void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    if (IS_F16<T>) mma_m16n8k16_f16(d, a, b, d);
    else mma_m16n8k16_bf16(d, a, b, d);
}

/* ---- products in which not every row sees every key -------------------------------------------------------------- */

/* This stands in place of the weight of a hidden key: no weight is -0. As a factor it is zero. */
constexpr uint32_t UNSEEN = 0x8000;

/* Returns whether no NaN and no infinity is among the numbers of a tile; one warp asks. */
template <typename T, int ROWS, int DIM>
DEVICE bool is_tile_finite(const uint16_t *tile)
{
    constexpr uint32_t EXPONENT = IS_F16<T> ? 0x7c00 : 0x7f80;
    constexpr uint32_t ALL = EXPONENT * 0x10001, CARRY = (0x8000 - EXPONENT) * 0x10001;
    struct alignas(16) {
        uint32_t at[4];
    } pairs;
    uint32_t carried = 0; /* bit 15 of a number whose exponent is all ones */
    constexpr unsigned STEP = 32 * 8, AT_ONCE = ROWS * DIM < 4 * STEP ? ROWS * DIM : 4 * STEP;
    static_assert(AT_ONCE % STEP == 0 && ROWS * DIM % AT_ONCE == 0, "nothing past the tile is read");
    ROLLED for (unsigned first = 0; first < ROWS * DIM; first += AT_ONCE)
        UNROLL for (unsigned n = first; n < first + AT_ONCE; n += STEP) {
            const sixteen_bytes bytes = load_16<sixteen_bytes>(&tile[n + lane() * 8]);
            __builtin_memcpy(&pairs, &bytes, 16);
            UNROLL for (int r = 0; r < 4; ++r) carried |= (pairs.at[r] & ALL) + CARRY;
        }
    return ballot(FULL_WARP, (carried & 0x80008000) != 0) == 0;
}

/* Turns a pair of weights into bits that keep or clear the pair of numbers that they would multiply. */
DEVICE uint32_t bits_of_seen(uint32_t seen)
{
    return ((seen & 0xffff) == UNSEEN ? 0 : 0xffff) | (seen >> 16 == UNSEEN ? 0 : 0xffff0000);
}

/* Computes d[i] += a b[i] with zeros in place of what a row does not see: where `seen`, a fragment like a, is UNSEEN.
 * It is for b that is not finite: zero times a NaN would be one. It takes a row at a time, so that its sums have the
 * bits that finite numbers would give. */
template <typename T>
DEVICE void multiply_seen(float (&d)[2][4], const uint32_t (&a)[4], const uint32_t (&seen)[4],
                          const uint32_t (&b)[2][2])
{
    const unsigned g = lane() / 4, t = lane() % 4;
    ROLLED for (unsigned row = 0; row < 16; ++row) {
        const unsigned owner = row % 8 * 4 + t;
        const uint32_t low = bits_of_seen(shfl_idx(FULL_WARP, row < 8 ? seen[0] : seen[1], owner));
        const uint32_t high = bits_of_seen(shfl_idx(FULL_WARP, row < 8 ? seen[2] : seen[3], owner));
        UNROLL for (int i = 0; i < 2; ++i) {
            const uint32_t b_seen[2] = {b[i][0] & low, b[i][1] & high};
            float sums[4];
            UNROLL for (int n = 0; n < 4; ++n) sums[n] = d[i][n];
            multiply<T>(sums, a, b_seen);
            UNROLL for (int n = 0; n < 4; ++n)
                if (row == g + static_cast<unsigned>(n) / 2 * 8) d[i][n] = sums[n];
        }
    }
}

/* Takes the sums of features x .. x + 15 out of those of DIM, and puts them back: by selects, as registers have no
 * addresses. */
template <int DIM>
DEVICE void take_features(float (&out)[2][4], const float (&sums)[DIM / 8][4], int x)
{
    UNROLL for (int n = 0; n < DIM / 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e)
            if (n / 2 == x / 16) out[n % 2][e] = sums[n][e];
}

template <int DIM>
DEVICE void put_features(float (&sums)[DIM / 8][4], const float (&from)[2][4], int x)
{
    UNROLL for (int n = 0; n < DIM / 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e)
            if (n / 2 == x / 16) sums[n][e] = from[n % 2][e];
}

/* ---- rows of a warp --------------------------------------------------------------------------------------------- */

/* These join the four lanes that share the rows of a fragment. */
DEVICE float max_of_quad(float x)
{
    x = max_f32(x, shfl_xor(FULL_WARP, x, 1));
    return max_f32(x, shfl_xor(FULL_WARP, x, 2));
}

DEVICE float sum_of_quad(float x)
{
    x += shfl_xor(FULL_WARP, x, 1);
    return x + shfl_xor(FULL_WARP, x, 2);
}

#endif

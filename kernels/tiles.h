/* tiles.h - tiles of 16-bit numbers in shared memory, as matrices of a warp read them.
 *
 * A tile has rows of DIM numbers, 16 bytes of a row are a chunk, and chunk c of row r lies at place c ^ (r % 8) of its
 * row: then eight rows of one chunk lie in different banks, which is what ldmatrix reads at once.
 *
 * Fragments are those of device/mma.h, g = lane / 4, t = lane % 4. */
#ifndef ATTEST_KERNELS_TILES_H
#define ATTEST_KERNELS_TILES_H

#include "kernels/device/device.h"
#include "kernels/scores.h"

/* Numbers before chunk x / 8 of a row; x a multiple of 8. */
template <int DIM>
DEVICE int tile_offset(int row, int x)
{
    return row * DIM + (x ^ row % 8 * 8);
}

/* Eight numbers of a row that may end before them or be misaligned. */
DEVICE sixteen_bytes load_eight(const row_pointer &row, int x)
{
    struct alignas(16) {
        uint16_t at[8];
    } out;
    for (int n = 0; n < 8; ++n)
        out.at[n] = x + n < row.length ? reinterpret_cast<const uint16_t *>(row.data)[x + n] : uint16_t{0};
    return same_16<sixteen_bytes>(out);
}

/* Rows first .. first + count - 1 of t into a tile of ROWS, by all THREADS of the CTA; what is past `count` or past
 * `length` features, up to `width` of them, becomes zero, and is not read. Copies are asynchronous: commit them. */
template <int ROWS, int DIM, int THREADS>
DEVICE void load_tile(uint16_t *tile, const row_tensor &t, int64_t b, int64_t first, int count, int64_t head, int length,
                      int width)
{
    constexpr int CHUNKS = DIM / 8, STEP = THREADS / CHUNKS;
    const int x = static_cast<int>(thread_x()) % CHUNKS * 8, begin = static_cast<int>(thread_x()) / CHUNKS;
    if (x >= width) return;
    const bool at_once = t.by_eight && x + 8 <= length;
    row_pointer row = row_of(t, b, first, head, length);
    row.data += begin * t.seqlen * 2;
    UNROLL for (int r = begin; r < ROWS; r += STEP, row.data += STEP * t.seqlen * 2) {
        uint16_t *const to = &tile[tile_offset<DIM>(r, x)];
        if (at_once) cp_async_16(to, r < count ? row.data + 2 * x : t.data, r < count);
        else store_16(to, r < count ? load_eight(row, x) : sixteen_bytes{});
    }
}

/* ---- fragments ---------------------------------------------------------------------------------------------------- */

/* a of rows row .. row + 15, columns x .. x + 15. */
template <int DIM>
DEVICE void load_a(uint32_t (&a)[4], const uint16_t *tile, int row, int x)
{
    const int l = static_cast<int>(lane());
    ldmatrix_x4(a, &tile[tile_offset<DIM>(row + l % 16, x + l / 16 * 8)]);
}

/* The same of the tile's transpose: rows are features x .. x + 15, columns are the tile's rows row .. row + 15. */
template <int DIM>
DEVICE void load_a_transposed(uint32_t (&a)[4], const uint16_t *tile, int row, int x)
{
    const int l = static_cast<int>(lane());
    ldmatrix_x4_trans(a, &tile[tile_offset<DIM>(row + l % 8 + l / 16 * 8, x + l / 8 % 2 * 8)]);
}

/* b of two products that share a: columns are the tile's rows row .. row + 7 and row + 8 .. row + 15, depth its
 * features x .. x + 15. For q k^T of a tile of k. */
template <int DIM>
DEVICE void load_b(uint32_t (&b)[2][2], const uint16_t *tile, int row, int x)
{
    const int l = static_cast<int>(lane());
    uint32_t r[4];
    ldmatrix_x4(r, &tile[tile_offset<DIM>(row + l % 8 + l / 16 * 8, x + l / 8 % 2 * 8)]);
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

/* The same where columns are features x .. x + 7 and x + 8 .. x + 15, depth the tile's rows row .. row + 15. For p v of
 * a tile of v. */
template <int DIM>
DEVICE void load_b_transposed(uint32_t (&b)[2][2], const uint16_t *tile, int row, int x)
{
    const int l = static_cast<int>(lane());
    uint32_t r[4];
    ldmatrix_x4_trans(r, &tile[tile_offset<DIM>(row + l % 16, x + l / 16 * 8)]);
    b[0][0] = r[0], b[0][1] = r[1], b[1][0] = r[2], b[1][1] = r[3];
}

/* The two 16-bit formats under one name. */
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

/* d += a b. */
template <typename T>
DEVICE void multiply(float (&d)[4], const uint32_t (&a)[4], const uint32_t (&b)[2])
{
    if (IS_F16<T>) mma_m16n8k16_f16(d, a, b, d);
    else mma_m16n8k16_bf16(d, a, b, d);
}

/* ---- products in which not every row sees every key -------------------------------------------------------------- */

/* In place of a weight that no key has: none is -0. As a factor it is zero. */
constexpr uint32_t UNSEEN = 0x8000;

/* Whether a NaN or an infinity is among the numbers of b, in any lane of the warp. */
template <typename T>
DEVICE bool is_any_not_finite(const uint32_t (&b)[2][2])
{
    constexpr uint32_t EXPONENT = IS_F16<T> ? 0x7c00 : 0x7f80;
    constexpr uint32_t ALL = EXPONENT * 0x10001, CARRY = (0x8000 - EXPONENT) * 0x10001;
    uint32_t carried = 0; /* bit 15 of a number whose exponent is all ones */
    for (int n = 0; n < 2; ++n)
        for (int r = 0; r < 2; ++r) carried |= (b[n][r] & ALL) + CARRY;
    return ballot(FULL_WARP, (carried & 0x80008000) != 0) != 0;
}

/* d += a b as fused multiply-adds, over those of the 16 columns of a that the row sees: where `seen`, a fragment like a,
 * is not UNSEEN. b is rows row .. row + 15 of a tile, features x .. x + 15, as load_b_transposed has it; d its two
 * products. For what a matrix unit would turn into NaN: zero times a NaN that the row does not see. */
template <typename T, int DIM>
DEVICE void multiply_seen(float (&d0)[4], float (&d1)[4], const uint32_t (&a)[4], const uint32_t (&seen)[4],
                          const uint16_t *tile, int row, int x)
{
    const unsigned l = lane(), t = l % 4;
    ROLLED for (int k = 0; k < 16; ++k) {
        const unsigned owner = l - t + static_cast<unsigned>(k % 8 / 2);
        const bool high = k % 2 != 0;
        const uint32_t *const numbers =
            reinterpret_cast<const uint32_t *>(&tile[tile_offset<DIM>(row + k, x)]) + t;
        const uint32_t *const next =
            reinterpret_cast<const uint32_t *>(&tile[tile_offset<DIM>(row + k, x + 8)]) + t;
        for (int half = 0; half < 2; ++half) { /* rows g and g + 8 */
            const uint32_t weights = shfl_idx(FULL_WARP, k < 8 ? a[half] : a[half + 2], owner);
            const uint32_t flags = shfl_idx(FULL_WARP, k < 8 ? seen[half] : seen[half + 2], owner);
            if ((high ? flags >> 16 : flags & 0xffff) == UNSEEN) continue;
            const float weight = unpack<T>(weights, high);
            for (int n = 0; n < 2; ++n) {
                d0[2 * half + n] = fma_rn(weight, unpack<T>(*numbers, n != 0), d0[2 * half + n]);
                d1[2 * half + n] = fma_rn(weight, unpack<T>(*next, n != 0), d1[2 * half + n]);
            }
        }
    }
}

/* ---- rows of a warp ------------------------------------------------------------------------------------------------ */

/* Over the four lanes that share the rows of a fragment. */
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

/* Two neighbouring features of a row, x even. */
DEVICE void store_pair(const row_pointer &row, int x, float low, float high)
{
    if (row.dtype != ATTEST_FP32 && row.by_four && x + 2 <= row.length) {
        uint32_t *const to = reinterpret_cast<uint32_t *>(row.data) + x / 2;
        *to = row.dtype == ATTEST_FP16 ? pack_f16x2(low, high) : pack_bf16x2(low, high);
        return;
    }
    if (x < row.length) store_feature(row, x, low);
    if (x + 1 < row.length) store_feature(row, x + 1, high);
}

#endif

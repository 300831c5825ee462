/* one_query.h - what decode/one_query_forward_sm80.cu and decode/one_query_backward_sm80.cu share: one query row over
 * at most MOST_KEYS keys.
 *
 * A row is read once and used once, straight from global memory to registers: DIM / 8 lanes share it, eight features
 * each, so that a warp reads ROWS rows at once. A warp has the loads of a whole BLOCK of rows in flight before it uses
 * the first. An item, that is a query row or the keys of a KV head, belongs to a team: one warp where there are few
 * keys, else all warps of the CTA, which take blocks of keys in turn. */
#ifndef ATTEST_KERNELS_DECODE_ONE_QUERY_H
#define ATTEST_KERNELS_DECODE_ONE_QUERY_H

#include "kernels/device/device.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"

enum { THREADS = 128, WARPS = THREADS / 32, MOST_KEYS = 512, UNROLLED = 4 };

template <int DIM>
constexpr int LANES = DIM / 8;
template <int DIM>
constexpr int ROWS = 32 / LANES<DIM>;
template <int DIM>
constexpr int BLOCK = UNROLLED * ROWS<DIM>;

/* This stands in place of the weight of a hidden key: no weight is -0. */
constexpr uint32_t HIDDEN = 0x80000000;

/* ---- teams ------------------------------------------------------------------------------------------------------- */

/* A team is the warps that share an item; rank says which of them this one is. */
struct team {
    int warps, rank;
};

/* Returns whether each warp of a CTA has an item of its own, as no sequence is too long for one warp. Else a CTA has
 * one item. */
DEVICE bool is_packed(const forward_params &p, int alone) { return p.seqlen_k <= alone; }

DEVICE uint32_t find_item(const forward_params &p, int alone)
{
    return is_packed(p, alone) ? block_x() * WARPS + warp() : block_x();
}

/* The team depends on the sequence's own length and not on the batch, since the bits of its sums depend on the team.
 * Warps of rank < 0 have no work. */
INLINE team find_team(const forward_params &p, const sequence &s, int alone)
{
    const int rank = is_packed(p, alone) ? 0 : static_cast<int>(warp());
    if (s.used_k > alone) return {WARPS, rank};
    return {1, -rank};
}

/* Runs on the host. */
static inline launch_shape shape_of(const forward_params &p, int64_t items, int alone, size_t shared,
                                    unsigned min_blocks)
{
    const int64_t ctas = p.seqlen_k <= alone ? (items + WARPS - 1) / WARPS : items;
    return {{static_cast<unsigned>(ctas), 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, shared, THREADS, min_blocks};
}

/* Says which keys of a row belong to its team. Blocks begin at multiples of 32 keys a warp, so that a window gives the
 * bits that a mask gives. */
struct team_keys {
    interval seen;
    int32_t own, step; /* the first block of this warp, and keys from block to block */
};

template <int DIM>
INLINE team_keys find_keys(const forward_params &p, const sequence &s, const team &t)
{
    const interval seen = keys_of_row(p, s, 0);
    const int32_t start = seen.first / (32 * t.warps) * (32 * t.warps);
    return {seen, start + t.rank * BLOCK<DIM>, t.warps * BLOCK<DIM>};
}

/* Does the same where nothing is hidden. */
template <int DIM>
INLINE team_keys all_keys(const sequence &s, const team &t)
{
    return {{0, s.used_q > 0 ? s.used_k : 0}, t.rank * BLOCK<DIM>, t.warps * BLOCK<DIM>};
}

/* Returns whether nothing is hidden and scores are no more than scale (q . k). Runs on the host. */
static inline bool is_plain(const forward_params &p)
{
    return has_plain_scores(p) && p.sink == nullptr && p.window_left < 0 && p.window_right < 0;
}

/* Returns key number i of the warp's own, which ascend. */
template <int DIM>
DEVICE int32_t own_key(const team_keys &keys, int i)
{
    return keys.own + i / BLOCK<DIM> * keys.step + i % BLOCK<DIM>;
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Holds eight features of 16 bits. */
struct alignas(16) chunk {
    uint32_t pair[4];
};

template <typename T>
DEVICE float feature(const chunk &c, int n)
{
    return unpack<T>(c.pair[n / 2], n % 2 != 0);
}

/* Says what a lane reads of the rows of one head: its features of row 0, of which there are `count`, and the bytes from
 * row to row. */
struct lane_rows {
    char *data;
    int64_t step;
    int count;
    bool at_once; /* eight features are there, and aligned */
};

template <int DIM>
INLINE lane_rows rows_of(const row_tensor &t, int64_t b, int64_t first, int64_t head, int32_t length)
{
    const int x = static_cast<int>(lane()) % LANES<DIM> * 8;
    const int count = length < x ? 0 : length < x + 8 ? length - x : 8;
    return {row_of(t, b, first, head, length).data + 2 * x, t.seqlen * 2, count, count == 8 && t.by_eight != 0};
}

INLINE chunk load_some(const char *data, int count)
{
    struct alignas(16) {
        uint16_t at[8];
    } out;
    UNROLL for (int n = 0; n < 8; ++n)
        out.at[n] = n < count ? reinterpret_cast<const uint16_t *>(data)[n] : uint16_t{0};
    return same_16<chunk>(out);
}

/* STREAMING says that nobody reads these bytes again. */
template <bool STREAMING>
INLINE chunk load_chunk(const char *data)
{
    return STREAMING ? load_global_16_streaming<chunk>(data) : load_global_16<chunk>(data);
}

/* Returns the first of the lane's rows of the block that begins with row `key`; the others are ROWS apart. */
template <int DIM>
DEVICE int32_t first_row(int32_t key)
{
    return key + static_cast<int32_t>(lane()) / LANES<DIM>;
}

/* Loads the lane's rows of the block that begins with row `block`, with zeros from row `last` on and past the
 * features. */
template <int DIM, bool STREAMING>
DEVICE void load_block(chunk (&out)[UNROLLED], const lane_rows &rows, int32_t block, int32_t last)
{
    const int32_t key = first_row<DIM>(block);
    const char *const data = rows.data + key * rows.step;
    const int64_t step = ROWS<DIM> * rows.step;
    if (rows.at_once && block + BLOCK<DIM> <= last) {
        UNROLL for (int n = 0; n < UNROLLED; ++n) out[n] = load_chunk<STREAMING>(data + n * step);
        return;
    }
    UNROLL for (int n = 0; n < UNROLLED; ++n) out[n] = {};
    if (rows.at_once) {
        UNROLL for (int n = 0; n < UNROLLED; ++n)
            if (key + n * ROWS<DIM> < last) out[n] = load_chunk<STREAMING>(data + n * step);
    } else if (rows.count > 0) {
        UNROLL for (int n = 0; n < UNROLLED; ++n)
            if (key + n * ROWS<DIM> < last) out[n] = load_some(data + n * step, rows.count);
    }
}

/* Loads one row in every lane of its column. */
template <typename T>
DEVICE void load_row(float (&out)[8], const lane_rows &row)
{
    const chunk c = row.at_once ? load_chunk<false>(row.data) : load_some(row.data, row.count);
    UNROLL for (int n = 0; n < 8; ++n) out[n] = feature<T>(c, n);
}

template <typename T>
DEVICE void store_row(const lane_rows &rows, int32_t row, const float (&value)[8])
{
    char *const data = rows.data + row * rows.step;
    struct alignas(16) {
        uint32_t pair[4];
    } out;
    UNROLL for (int n = 0; n < 4; ++n) out.pair[n] = pack<T>(value[2 * n], value[2 * n + 1]);
    if (rows.at_once) return store_global_16_streaming(data, out);
    UNROLL for (int n = 0; n < 8; ++n)
        if (n < rows.count)
            reinterpret_cast<uint16_t *>(data)[n] = static_cast<uint16_t>(out.pair[n / 2] >> n % 2 * 16);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

/* Returns the lane's part of a dot product of rows. */
template <typename T>
DEVICE float multiply_chunk(const float (&a)[8], const chunk &b)
{
    float sum = a[0] * feature<T>(b, 0);
    UNROLL for (int n = 1; n < 8; ++n) sum = fma_rn(a[n], feature<T>(b, n), sum);
    return sum;
}

/* Takes COUNT sums together, each over lanes whose numbers differ by FIRST, 2 FIRST .. below END. At each step a lane
 * gives half of what it has to its neighbour for the other half, so that it ends with complete sums for a share of
 * them, or for one, in sum[0] and on: numbers first_share() .. of the COUNT. All three parameters are powers of two.
 * The bits are those that lanes would get if each kept everything. */
template <unsigned FIRST, unsigned END, int COUNT>
DEVICE int first_share()
{
    int first = 0;
    UNROLL for (unsigned d = FIRST, half = COUNT / 2; d < END && half > 0; d *= 2, half /= 2)
        if ((lane() & d) != 0) first += static_cast<int>(half);
    return first;
}

template <unsigned FIRST, unsigned END, int COUNT>
DEVICE void sum_shares(float (&sum)[COUNT])
{
    UNROLL for (unsigned d = FIRST, half = COUNT / 2; d < END; d *= 2, half /= 2) {
        const uint32_t upper = (lane() & d) != 0 ? 0xffffffff : 0; /* ?: would index the array at run time */
        UNROLL for (unsigned n = 0; n < half; ++n) {
            const uint32_t a = bits_of(sum[n]), b = bits_of(sum[n + half]);
            const float own = float_of((a & ~upper) | (b & upper)), other = float_of((a & upper) | (b & ~upper));
            sum[n] = own + shfl_xor(FULL_WARP, other, d);
        }
        if (half == 0) sum[0] += shfl_xor(FULL_WARP, sum[0], d);
    }
}

/* These sums go over the lanes that share a row. */
template <int DIM, int COUNT>
constexpr int KEPT_SUMS = COUNT > LANES<DIM> ? COUNT / LANES<DIM> : 1;

template <int DIM, int COUNT>
DEVICE int first_sum()
{
    return first_share<1, LANES<DIM>, COUNT>();
}

template <int DIM, int COUNT>
DEVICE void sum_of_lanes(float (&sum)[COUNT])
{
    sum_shares<1, LANES<DIM>>(sum);
}

/* Adds weight times the row to the sums unless the key is hidden: zero times what it holds may be no number. */
template <typename T>
DEVICE void add_row(float (&sum)[8], float weight, bool is_hidden, const chunk &row)
{
    if (is_hidden) return;
    UNROLL for (int n = 0; n < 8; ++n) sum[n] = fma_rn(weight, feature<T>(row, n), sum[n]);
}

/* Sums over the rows that a warp reads at once. */
template <int DIM>
DEVICE void sum_of_rows(float (&sum)[8])
{
    UNROLL for (unsigned d = LANES<DIM>; d < 32; d *= 2)
        UNROLL for (int n = 0; n < 8; ++n) sum[n] += shfl_xor(FULL_WARP, sum[n], d);
}

DEVICE float sum_of_warp(float x)
{
    UNROLL for (unsigned d = 1; d < 32; d *= 2) x += shfl_xor(FULL_WARP, x, d);
    return x;
}

DEVICE float max_of_warp(float x)
{
    UNROLL for (unsigned d = 1; d < 32; d *= 2) x = max_f32(x, shfl_xor(FULL_WARP, x, d));
    return x;
}

/* Holds sums of the features of a row, one part for each warp. */
template <int DIM>
struct alignas(16) row_parts {
    float at[WARPS][DIM];
};

template <int DIM>
DEVICE void give_part(row_parts<DIM> &parts, const team &t, const float (&sum)[8])
{
    if (lane() >= LANES<DIM>) return;
    UNROLL for (unsigned n = 0; n < 8; n += 4)
        store_16(&parts.at[t.rank][8 * lane() + n], quad{{sum[n], sum[n + 1], sum[n + 2], sum[n + 3]}});
}

template <int DIM>
DEVICE void take_parts(float (&sum)[8], const row_parts<DIM> &parts)
{
    const unsigned x = lane() % LANES<DIM> * 8;
    UNROLL for (int n = 0; n < 8; ++n) sum[n] = parts.at[0][x + n];
    UNROLL for (int w = 1; w < WARPS; ++w)
        UNROLL for (int n = 0; n < 8; ++n) sum[n] += parts.at[w][x + n];
}

#endif

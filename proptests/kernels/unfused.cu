/* unfused.cu - see unfused.h. A product holds the operand of seqlen x head_dim numbers whole in the shared memory of
 * its one CTA, so that no kernel reads or writes a number twice: no unfused computation has less traffic. sm_90. */
#include "proptests/kernels/unfused.h"

#include "kernels/device/device.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"

namespace {

/* A fragment of a of the tile's transpose: rows are features x .. x + 15, columns the tile's rows row .. row + 15. */
template <int DIM>
DEVICE void load_a_transposed(uint32_t (&a)[4], const uint16_t *tile, unsigned row, unsigned x)
{
    const unsigned l = lane();
    ldmatrix_x4_trans(a, &tile[tile_offset<DIM>(row + l % 8 + l / 16 * 8, x + l / 8 % 2 * 8)]);
}

enum { THREADS = 128, N = UNFUSED_SEQLEN, D = UNFUSED_HEAD_DIM, TILE = 64, EIGHTS = N / 8 };

struct eight {
    float at[8];
};

INLINE eight load_numbers(const uint16_t *from)
{
    struct alignas(16) {
        uint16_t at[8];
    } bits;
    eight out;
    const sixteen_bytes bytes = load_16<sixteen_bytes>(from);
    __builtin_memcpy(&bits, &bytes, 16);
    for (int n = 0; n < 8; ++n) out.at[n] = to_f32(f16{bits.at[n]});
    return out;
}

DEVICE void store_numbers(uint16_t *to, const eight &x)
{
    struct alignas(16) {
        uint32_t at[4];
    } pairs;
    for (int n = 0; n < 4; ++n) pairs.at[n] = pack_f16x2(x.at[2 * n], x.at[2 * n + 1]);
    store_16(to, same_16<sixteen_bytes>(pairs));
}

/* ---- products -------------------------------------------------------------------------------------------------- */

/* `rows` x 64 numbers from a matrix of `pitch` columns, as tiles.h has a tile. */
DEVICE void load_block(uint16_t *tile, const uint16_t *from, unsigned rows, unsigned pitch)
{
    for (unsigned n = thread_x(); n < rows * (D / 8); n += THREADS) {
        const unsigned r = n / (D / 8), x = n % (D / 8) * 8;
        cp_async_16(&tile[tile_offset<D>(r, x)], from + r * pitch + x);
    }
}

/* The two numbers of a row that a lane has of an m16n8 product, twice. */
DEVICE void store_product(uint16_t *to, unsigned pitch, const float (&d)[4], float factor)
{
    const unsigned g = lane() / 4, t = lane() % 4;
    for (unsigned half = 0; half < 2; ++half)
        *reinterpret_cast<uint32_t *>(to + (g + 8 * half) * pitch + 2 * t) =
            pack_f16x2(factor * d[2 * half], factor * d[2 * half + 1]);
}

/* out [N][N] = factor a b^T. */
KERNEL(THREADS, 1) void rows_by_rows_kernel(uint16_t *out, const uint16_t *a, const uint16_t *b, float factor)
{
    DYNAMIC_SHARED(shared, 16);
    uint16_t *const all_b = reinterpret_cast<uint16_t *>(shared), *const tile = all_b + N * D;
    load_block(all_b, b, N, D);
    for (unsigned row = 0; row < N; row += TILE) {
        load_block(tile, a + row * D, TILE, D);
        cp_async_wait_all();
        sync_threads(); /* the tile is complete, and b */
        for (unsigned j = 0; j < N; j += 16) {
            float d[2][4] = {};
            for (unsigned x = 0; x < D; x += 16) {
                uint32_t of_a[4], of_b[2][2];
                load_a<D>(of_a, tile, 16 * warp(), x);
                load_b<D>(of_b, all_b, j, x);
                multiply<f16>(d[0], of_a, of_b[0]);
                multiply<f16>(d[1], of_a, of_b[1]);
            }
            for (unsigned n = 0; n < 2; ++n) store_product(out + (row + 16 * warp()) * N + j + 8 * n, N, d[n], factor);
        }
        sync_threads(); /* the tile is free */
    }
}

/* out [N][D] = factor w b, or factor w^T b. */
template <bool TRANSPOSED>
KERNEL(THREADS, 1) void matrix_by_rows_kernel(uint16_t *out, const uint16_t *w, const uint16_t *b, float factor)
{
    DYNAMIC_SHARED(shared, 16);
    uint16_t *const all_b = reinterpret_cast<uint16_t *>(shared), *const tile = all_b + N * D;
    load_block(all_b, b, N, D);
    for (unsigned row = 0; row < N; row += TILE) { /* of out */
        float d[D / 8][4] = {};
        for (unsigned j = 0; j < N; j += TILE) { /* of b */
            load_block(tile, w + (TRANSPOSED ? j * N + row : row * N + j), TILE, N);
            cp_async_wait_all();
            sync_threads(); /* the tile is complete, and b */
            for (unsigned depth = 0; depth < TILE; depth += 16) {
                uint32_t of_w[4], of_b[2][2];
                if (TRANSPOSED) load_a_transposed<D>(of_w, tile, depth, 16 * warp());
                else load_a<D>(of_w, tile, 16 * warp(), depth);
                for (unsigned x = 0; x < D; x += 16) {
                    load_b_transposed<D>(of_b, all_b, j + depth, x);
                    multiply<f16>(d[x / 8], of_w, of_b[0]);
                    multiply<f16>(d[x / 8 + 1], of_w, of_b[1]);
                }
            }
            sync_threads(); /* the tile is free */
        }
        for (unsigned n = 0; n < D / 8; ++n) store_product(out + (row + 16 * warp()) * D + 8 * n, D, d[n], factor);
    }
}

/* ---- steps on matrices ------------------------------------------------------------------------------------------ */

/* Eight neighbours at a time, a row to a CTA of EIGHTS threads. */
KERNEL(EIGHTS, 1) void mask_kernel(uint16_t *s)
{
    const unsigned row = block_x(), column = 8 * thread_x();
    eight x = load_numbers(s + row * N + column);
    for (unsigned n = 0; n < 8; ++n)
        if (column + n > row) x.at[n] = -infinity_f32();
    store_numbers(s + row * N + column, x);
}

/* out = m x; out may be x. */
KERNEL(EIGHTS, 1) void dropout_kernel(const forward_params p, uint16_t *out, const uint16_t *x)
{
    const unsigned row = block_x(), column = 8 * thread_x();
    const score_rule rule = find_score_rule(p, 0, 0);
    dropout_bits last;
    last.eight = -1;
    eight of_row = load_numbers(x + row * N + column);
    for (unsigned n = 0; n < 8; ++n) {
        const bool kept = is_kept(p, rule, static_cast<int32_t>(row), static_cast<int32_t>(column + n), last);
        of_row.at[n] *= kept ? p.dropout_multiplier : 0;
    }
    store_numbers(out + row * N + column, of_row);
}

enum { PARTS = EIGHTS / 32 }; /* eights of a row to a lane: a warp has a row */

DEVICE float max_of_warp(float x)
{
    for (unsigned distance = 16; distance > 0; distance /= 2) x = max_f32(x, shfl_xor(FULL_WARP, x, distance));
    return x;
}

DEVICE float sum_of_warp(float x)
{
    for (unsigned distance = 16; distance > 0; distance /= 2) x += shfl_xor(FULL_WARP, x, distance);
    return x;
}

/* Row by row s = softmax(s). */
KERNEL(THREADS, 1) void softmax_kernel(uint16_t *s)
{
    uint16_t *const row = s + (block_x() * (THREADS / 32) + warp()) * N;
    eight x[PARTS];
    float max = -infinity_f32(), sum = 0;
    for (unsigned i = 0; i < PARTS; ++i) {
        x[i] = load_numbers(row + (32 * i + lane()) * 8);
        for (int n = 0; n < 8; ++n) max = max_f32(max, x[i].at[n]);
    }
    max = max_of_warp(max);
    for (unsigned i = 0; i < PARTS; ++i)
        for (int n = 0; n < 8; ++n) sum += x[i].at[n] = exp2_f32((x[i].at[n] - max) * LOG2_E);
    sum = sum_of_warp(sum);
    for (unsigned i = 0; i < PARTS; ++i) {
        for (int n = 0; n < 8; ++n) x[i].at[n] = div_rn(x[i].at[n], sum);
        store_numbers(row + (32 * i + lane()) * 8, x[i]);
    }
}

/* Row by row dp = p (dp - sum p dp). */
KERNEL(THREADS, 1) void softmax_backward_kernel(uint16_t *dp, const uint16_t *p)
{
    const unsigned first = (block_x() * (THREADS / 32) + warp()) * N;
    eight x[PARTS], y[PARTS];
    float delta = 0;
    for (unsigned i = 0; i < PARTS; ++i) {
        x[i] = load_numbers(p + first + (32 * i + lane()) * 8), y[i] = load_numbers(dp + first + (32 * i + lane()) * 8);
        for (int n = 0; n < 8; ++n) delta = fma_rn(x[i].at[n], y[i].at[n], delta);
    }
    delta = sum_of_warp(delta);
    for (unsigned i = 0; i < PARTS; ++i) {
        for (int n = 0; n < 8; ++n) y[i].at[n] = x[i].at[n] * (y[i].at[n] - delta);
        store_numbers(dp + first + (32 * i + lane()) * 8, y[i]);
    }
}

/* ---- launches --------------------------------------------------------------------------------------------------- */

constexpr size_t SHARED_BYTES = (N + TILE) * D * sizeof(uint16_t);
constexpr launch_shape OF_PRODUCT = {{1, 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, SHARED_BYTES, THREADS, 1};
constexpr launch_shape OF_EIGHTS = {{N, 1, 1}, {EIGHTS, 1, 1}, {1, 1, 1}, 0, EIGHTS, 1};
constexpr launch_shape OF_ROWS = {{N / (THREADS / 32), 1, 1}, {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1};

uint16_t *numbers_of(const row_tensor &t) { return static_cast<uint16_t *>(t.data); }

} // namespace

extern "C" int KERNEL_SYMBOL(unfused_forward)(const struct unfused_params *u, void *stream)
{
    const forward_params &f = u->forward;
    int code = LAUNCH(rows_by_rows_kernel, OF_PRODUCT, stream, u->p, numbers_of(f.q), numbers_of(f.k), f.softmax_scale);
    if (code == 0) code = LAUNCH(mask_kernel, OF_EIGHTS, stream, u->p);
    if (code == 0) code = LAUNCH(softmax_kernel, OF_ROWS, stream, u->p);
    if (code == 0) code = LAUNCH(dropout_kernel, OF_EIGHTS, stream, f, u->dropped_p, u->p);
    if (code == 0)
        code = LAUNCH(matrix_by_rows_kernel<false>, OF_PRODUCT, stream, numbers_of(f.o), u->dropped_p, numbers_of(f.v),
                      1);
    return code;
}

extern "C" int KERNEL_SYMBOL(unfused_backward)(const struct unfused_params *u, void *stream)
{
    const forward_params &f = u->forward;
    const float scale = f.softmax_scale;
    int code = LAUNCH(matrix_by_rows_kernel<true>, OF_PRODUCT, stream, u->dv, u->dropped_p, u->dout, 1);
    if (code == 0) code = LAUNCH(rows_by_rows_kernel, OF_PRODUCT, stream, u->dp, u->dout, numbers_of(f.v), 1);
    if (code == 0) code = LAUNCH(dropout_kernel, OF_EIGHTS, stream, f, u->dp, u->dp);
    if (code == 0) code = LAUNCH(softmax_backward_kernel, OF_ROWS, stream, u->dp, u->p);
    if (code == 0)
        code = LAUNCH(matrix_by_rows_kernel<false>, OF_PRODUCT, stream, u->dq, u->dp, numbers_of(f.k), scale);
    if (code == 0)
        code = LAUNCH(matrix_by_rows_kernel<true>, OF_PRODUCT, stream, u->dk, u->dp, numbers_of(f.q), scale);
    return code;
}

/* mma.cu - probes of mma.h. */
#include "kernels/device/device.h"
#include "kernels/device/probes/probe_mma.h"

namespace {

struct alignas(16) matrix_row {
    uint16_t at[8];
};

typedef matrix_row matrix_rows[32];

/* Where lane n's row lies. */
DEVICE unsigned place_of(unsigned n) { return n * 5 % 32; }

KERNEL(32, 1) void ldmatrix_kernel(const ldmatrix_in *in, ldmatrix_out *out)
{
    STATIC_SHARED(matrix_rows, rows);
    const unsigned me = lane();
    for (int x = 0; x < 8; ++x) rows[place_of(me)].at[x] = in->matrices[me / 8][me % 8][x];
    sync_warp(FULL_WARP);
    const matrix_row *const row = &rows[place_of(me)];
    uint32_t r1[1], r2[2], r4[4];
    ldmatrix_x1(r1, row);
    ldmatrix_x2(r2, row);
    ldmatrix_x4(r4, row);
    out->x1[me][0] = r1[0];
    for (int n = 0; n < 2; ++n) out->x2[me][n] = r2[n];
    for (int n = 0; n < 4; ++n) out->x4[me][n] = r4[n];
    ldmatrix_x1_trans(r1, row);
    ldmatrix_x2_trans(r2, row);
    ldmatrix_x4_trans(r4, row);
    out->x1_trans[me][0] = r1[0];
    for (int n = 0; n < 2; ++n) out->x2_trans[me][n] = r2[n];
    for (int n = 0; n < 4; ++n) out->x4_trans[me][n] = r4[n];
}

DEVICE void clear(matrix_row &row)
{
    for (int x = 0; x < 8; ++x) row.at[x] = 0;
    sync_warp(FULL_WARP);
}

DEVICE void copy(uint16_t (&to)[4][8][8], const matrix_row &row)
{
    sync_warp(FULL_WARP);
    for (int x = 0; x < 8; ++x) to[lane() / 8][lane() % 8][x] = row.at[x];
    sync_warp(FULL_WARP);
}

KERNEL(32, 1) void stmatrix_kernel(const ldmatrix_in *in, stmatrix_out *out)
{
    STATIC_SHARED(matrix_rows, rows);
    const unsigned me = lane(), g = me / 4, t = me % 4;
    matrix_row &row = rows[place_of(me)];
    uint32_t r[4];
    for (int n = 0; n < 4; ++n)
        r[n] = in->matrices[n][g][2 * t] | static_cast<uint32_t>(in->matrices[n][g][2 * t + 1]) << 16;
    const uint32_t r1[1] = {r[0]}, r2[2] = {r[0], r[1]};
    clear(row);
    stmatrix_x1(&row, r1);
    copy(out->x1, row);
    clear(row);
    stmatrix_x2(&row, r2);
    copy(out->x2, row);
    clear(row);
    stmatrix_x4(&row, r);
    copy(out->x4, row);
    clear(row);
    stmatrix_x1_trans(&row, r1);
    copy(out->x1_trans, row);
    clear(row);
    stmatrix_x2_trans(&row, r2);
    copy(out->x2_trans, row);
    clear(row);
    stmatrix_x4_trans(&row, r);
    copy(out->x4_trans, row);
}

DEVICE uint32_t pair(uint16_t low, uint16_t high) { return low | static_cast<uint32_t>(high) << 16; }

/* The operands of one lane, as mma.h numbers them. */
DEVICE void operands_16(uint32_t (&a)[4], uint32_t (&b)[2], const uint16_t (&from_a)[16][16],
                        const uint16_t (&from_b)[16][8])
{
    const unsigned g = lane() / 4, t = lane() % 4;
    for (unsigned n = 0; n < 4; ++n) {
        const unsigned row = g + 8 * (n % 2), column = 2 * t + 8 * (n / 2);
        a[n] = pair(from_a[row][column], from_a[row][column + 1]);
    }
    for (unsigned n = 0; n < 2; ++n) b[n] = pair(from_b[2 * t + 8 * n][g], from_b[2 * t + 8 * n + 1][g]);
}

DEVICE void operands_tf32(uint32_t (&a)[4], uint32_t (&b)[2], const uint32_t (&from_a)[16][8],
                          const uint32_t (&from_b)[8][8])
{
    const unsigned g = lane() / 4, t = lane() % 4;
    for (unsigned n = 0; n < 4; ++n) a[n] = from_a[g + 8 * (n % 2)][t + 4 * (n / 2)];
    for (unsigned n = 0; n < 2; ++n) b[n] = from_b[t + 4 * n][g];
}

DEVICE void load_sums(float (&c)[4], const float (&from)[16][8])
{
    for (unsigned n = 0; n < 4; ++n) c[n] = from[lane() / 4 + 8 * (n / 2)][2 * (lane() % 4) + n % 2];
}

DEVICE void store_sums(float (&to)[16][8], const float (&d)[4])
{
    for (unsigned n = 0; n < 4; ++n) to[lane() / 4 + 8 * (n / 2)][2 * (lane() % 4) + n % 2] = d[n];
}

KERNEL(32, 1) void mma_kernel(const mma_in *in, mma_out *out)
{
    uint32_t a[4], b[2];
    float c[4], d[4];
    load_sums(c, in->c);
    operands_16(a, b, in->a_f16, in->b_f16);
    mma_m16n8k16_f16(d, a, b, c);
    store_sums(out->f16, d);
    mma_m16n8k16_f16(d, a, b, d);
    store_sums(out->twice, d);
    operands_16(a, b, in->a_bf16, in->b_bf16);
    mma_m16n8k16_bf16(d, a, b, c);
    store_sums(out->bf16, d);
    operands_tf32(a, b, in->a_tf32, in->b_tf32);
    mma_m16n8k8_tf32(d, a, b, c);
    store_sums(out->tf32, d);
}

const launch_shape SHAPE = {{1, 1, 1}, {32, 1, 1}, {1, 1, 1}, 0, 32, 1};

} // namespace

extern "C" int KERNEL_SYMBOL(probe_ldmatrix)(const void *in, void *out, void *stream)
{
    return LAUNCH(ldmatrix_kernel, SHAPE, stream, static_cast<const ldmatrix_in *>(in),
                  static_cast<ldmatrix_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_stmatrix)(const void *in, void *out, void *stream)
{
    return LAUNCH(stmatrix_kernel, SHAPE, stream, static_cast<const ldmatrix_in *>(in),
                  static_cast<stmatrix_out *>(out));
}

extern "C" int KERNEL_SYMBOL(probe_mma)(const void *in, void *out, void *stream)
{
    return LAUNCH(mma_kernel, SHAPE, stream, static_cast<const mma_in *>(in), static_cast<mma_out *>(out));
}

/* probe_mma.c - what mma.h must give, by definition: products of matrices of small integers. */
#include "kernels/device/probes/probe_mma.h"

#include "kernels/device/probes/probe.h"
#include "kernels/device/probes/probe_integers.h"

static void fill_matrices(void *in)
{
    struct ldmatrix_in *w = in;
    for (uint32_t n = 0; n < 256; ++n) w->matrices[n / 64][n / 8 % 8][n % 8] = (uint16_t)(0x8001 + 257 * n);
}

/* r[n] of a lane. */
static uint32_t fragment(const struct ldmatrix_in *w, int n, int lane, bool transposed)
{
    const int g = lane / 4, t = lane % 4;
    const uint32_t low = transposed ? w->matrices[n][2 * t][g] : w->matrices[n][g][2 * t];
    const uint32_t high = transposed ? w->matrices[n][2 * t + 1][g] : w->matrices[n][g][2 * t + 1];
    return low | high << 16;
}

static void expect_ldmatrix(const void *in, void *out)
{
    struct ldmatrix_out *o = out;
    for (int lane = 0; lane < 32; ++lane) {
        o->x1[lane][0] = fragment(in, 0, lane, false);
        o->x1_trans[lane][0] = fragment(in, 0, lane, true);
        for (int n = 0; n < 2; ++n) o->x2[lane][n] = fragment(in, n, lane, false);
        for (int n = 0; n < 2; ++n) o->x2_trans[lane][n] = fragment(in, n, lane, true);
        for (int n = 0; n < 4; ++n) o->x4[lane][n] = fragment(in, n, lane, false);
        for (int n = 0; n < 4; ++n) o->x4_trans[lane][n] = fragment(in, n, lane, true);
    }
}

static void store(uint16_t (*to)[8][8], const struct ldmatrix_in *w, int count, bool transposed)
{
    memset(to, 0, sizeof w->matrices);
    for (int n = 0; n < count; ++n)
        for (int row = 0; row < 8; ++row)
            for (int column = 0; column < 8; ++column)
                to[n][row][column] = transposed ? w->matrices[n][column][row] : w->matrices[n][row][column];
}

static void expect_stmatrix(const void *in, void *out)
{
    struct stmatrix_out *o = out;
    store(o->x1, in, 1, false);
    store(o->x2, in, 2, false);
    store(o->x4, in, 4, false);
    store(o->x1_trans, in, 1, true);
    store(o->x2_trans, in, 2, true);
    store(o->x4_trans, in, 4, true);
}

/* Numbers of a[row][k], b[k][column], c[row][column]. */
static int a_of(int row, int k) { return probe_integer((uint32_t)(100 * row + k)); }
static int b_of(int k, int column) { return probe_integer((uint32_t)(10000 + 100 * k + column)); }
static int c_of(int row, int column) { return probe_integer((uint32_t)(20000 + 100 * row + column)); }

static void fill_mma(void *in)
{
    struct mma_in *w = in;
    for (int row = 0; row < 16; ++row) {
        for (int k = 0; k < 16; ++k) {
            w->a_f16[row][k] = fp16_of_integer(a_of(row, k));
            w->a_bf16[row][k] = bf16_of_integer(a_of(row, k));
        }
        for (int k = 0; k < 8; ++k) w->a_tf32[row][k] = fp32_of_integer(a_of(row, k));
        for (int column = 0; column < 8; ++column) w->c[row][column] = (float)c_of(row, column);
    }
    for (int column = 0; column < 8; ++column) {
        for (int k = 0; k < 16; ++k) {
            w->b_f16[k][column] = fp16_of_integer(b_of(k, column));
            w->b_bf16[k][column] = bf16_of_integer(b_of(k, column));
        }
        for (int k = 0; k < 8; ++k) w->b_tf32[k][column] = fp32_of_integer(b_of(k, column));
    }
}

static float dot(int row, int column, int depth)
{
    int sum = 0;
    for (int k = 0; k < depth; ++k) sum += a_of(row, k) * b_of(k, column);
    return (float)sum;
}

static void expect_mma(const void *in, void *out)
{
    (void)in;
    struct mma_out *o = out;
    for (int row = 0; row < 16; ++row)
        for (int column = 0; column < 8; ++column) {
            const float c = (float)c_of(row, column), product = dot(row, column, 16);
            o->f16[row][column] = o->bf16[row][column] = product + c;
            o->twice[row][column] = 2 * product + c;
            o->tf32[row][column] = dot(row, column, 8) + c;
        }
}

PROBE_LAUNCHERS(probe_ldmatrix);
PROBE_LAUNCHERS(probe_stmatrix);
PROBE_LAUNCHERS(probe_mma);

const struct probe probes_of_mma[] = {
    {"ldmatrix", 80, false, sizeof(struct ldmatrix_in), sizeof(struct ldmatrix_out), fill_matrices, expect_ldmatrix,
     PROBE_ON(probe_ldmatrix)},
    {"stmatrix", 90, false, sizeof(struct ldmatrix_in), sizeof(struct stmatrix_out), fill_matrices, expect_stmatrix,
     PROBE_ON(probe_stmatrix)},
    {"mma fp16, bf16, tf32", 80, false, sizeof(struct mma_in), sizeof(struct mma_out), fill_mma, expect_mma,
     PROBE_ON(probe_mma)},
    {0},
};

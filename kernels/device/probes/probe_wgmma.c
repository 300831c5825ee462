/* probe_wgmma.c - what wgmma.h must give, by definition: products of matrices of small integers. */
#include "kernels/device/probes/probe_wgmma.h"

#include "kernels/device/probes/probe.h"
#include "kernels/device/probes/probe_integers.h"

static int a_of(int row, int k) { return probe_integer((uint32_t)(100 * row + k)); }
static int b_of(int k, int column) { return probe_integer((uint32_t)(10000 + 100 * column + k)); }

static int dot(int row, int column, int depth)
{
    int sum = 0;
    for (int k = 0; k < depth; ++k) sum += a_of(row, k) * b_of(k, column);
    return sum;
}

static void fill(void *in)
{
    struct wgmma_in *w = in;
    for (int k = 0; k < WGMMA_K; ++k) {
        for (int row = 0; row < WGMMA_M; ++row) {
            w->a_f16[row][k] = fp16_of_integer(a_of(row, k));
            w->a_bf16[row][k] = bf16_of_integer(a_of(row, k));
        }
        for (int column = 0; column < WGMMA_MAX_N; ++column) {
            w->b_f16[column][k] = fp16_of_integer(b_of(k, column));
            w->b_bf16[column][k] = bf16_of_integer(b_of(k, column));
        }
    }
}

static void expect_sizes(const void *in, void *out)
{
    (void)in;
    struct wgmma_sizes_out *o = out;
    for (int n = 8; n <= WGMMA_MAX_N; n += 8) {
        struct wgmma_product *p = &o->of_n[n / 8 - 1];
        for (int row = 0; row < WGMMA_M; ++row)
            for (int column = 0; column < n; ++column)
                p->f16[row][column] = p->bf16[row][column] = p->f16_registers[row][column] =
                    p->bf16_registers[row][column] = (float)dot(row, column, WGMMA_K);
    }
}

static void fill_layouts(void *in)
{
    struct layout_in *w = in;
    for (int k = 0; k < LAYOUT_K; ++k) {
        for (int row = 0; row < WGMMA_M; ++row) w->a[row][k] = bf16_of_integer(a_of(row, k));
        for (int column = 0; column < LAYOUT_N; ++column) w->b[column][k] = bf16_of_integer(b_of(k, column));
    }
}

static void expect_layouts(const void *in, void *out)
{
    (void)in;
    enum { COPIES = sizeof(struct layout_out) / sizeof(float[WGMMA_M][LAYOUT_N]) };
    float(*o)[WGMMA_M][LAYOUT_N] = out; /* each is the same product */
    for (int row = 0; row < WGMMA_M; ++row)
        for (int column = 0; column < LAYOUT_N; ++column)
            for (int n = 0; n < COPIES; ++n)
                o[n][row][column] = n > 0 ? o[0][row][column] : (float)dot(row, column, LAYOUT_K);
}

static void expect_signs(const void *in, void *out)
{
    (void)in;
    struct signs_out *o = out;
    for (int row = 0; row < WGMMA_M; ++row)
        for (int column = 0; column < SIGNS_N; ++column) {
            const int product = dot(row, column, WGMMA_K);
            o->negated_a[row][column] = o->negated_b[row][column] = o->negated_registers[row][column] =
                (float)-product; /* zero is +0: -product is an integer */
            o->negated_both_f16[row][column] = o->first[row][column] = (float)product;
            o->accumulated[row][column] = (float)(1 + 3 * product);
        }
}

PROBE_LAUNCHERS(probe_wgmma_sizes);
PROBE_LAUNCHERS(probe_wgmma_layouts);
PROBE_LAUNCHERS(probe_wgmma_signs);

const struct probe probes_of_wgmma[] = {
    {"wgmma, every N", 90, true, sizeof(struct wgmma_in), sizeof(struct wgmma_sizes_out), fill, expect_sizes,
     PROBE_ON(probe_wgmma_sizes)},
    {"wgmma, every layout", 90, true, sizeof(struct layout_in), sizeof(struct layout_out), fill_layouts,
     expect_layouts, PROBE_ON(probe_wgmma_layouts)},
    {"wgmma, signs and groups", 90, false, sizeof(struct wgmma_in), sizeof(struct signs_out), fill, expect_signs,
     PROBE_ON(probe_wgmma_signs)},
    {0},
};

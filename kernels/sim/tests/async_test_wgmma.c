/* async_test_wgmma.c - wgmma: operands in every layout against the PTX manual's canonical layouts, number by number;
 * the rules of groups and registers. */
#include "kernels/sim/tests/async_test.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

enum { M = 64, MAX_N = 256, MAX_K = 16, TRIALS = 400, SEEDS = 8 };

static uint64_t random_state;

static uint32_t draw(uint32_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((random_state >> 32) * n >> 32);
}

/* ---- a random product ------------------------------------------------------------------------------------------ */

struct operand {
    bool transposed;  /* MN-major */
    int swizzle;      /* bytes */
    uint32_t leading, stride; /* bytes */
    uint32_t pattern; /* where the swizzle's pattern begins: bytes from a multiple of 1024 */
    uint32_t advance; /* K-major: bytes of k before it, in the same rows */
    uint32_t start;   /* in async_shared() */
    int rows;
    int value[MAX_N][MAX_K];
};

static struct product {
    enum sim_format format;
    int n, k, element_bytes, sign_a, sign_b;
    bool registers, scale_d;
    struct operand a, b;
    int c[M][MAX_N];
    float d[M][MAX_N];
} product;

/* Element (i, k) in bytes from the pattern's start: table "Canonical Layouts" of the manual, m and k as large as need
 * be. Shapes and strides there are in elements, T of which are 16 bytes. */
static uint32_t canonical(const struct operand *o, uint32_t i, uint32_t k)
{
    const uint32_t e = (uint32_t)product.element_bytes, T = 16 / e, LBO = o->leading / e, SBO = o->stride / e;
    const uint32_t w = (uint32_t)o->swizzle / 16;
    if (o->transposed && !w) return e * (i % T * 1 + i / T * SBO + k % 8 * T + k / 8 * LBO);
    if (o->transposed) return e * (i % T * 1 + i / T % w * T + i / T / w * LBO + k % 8 * w * T + k / 8 * SBO);
    if (!w) return e * (i % 8 * T + i / 8 * SBO + k % T * 1 + k / T * LBO);
    return e * (i % 8 * w * T + i / 8 * SBO + k % T * 1 + k / T * T) + o->advance;
}

/* CuTe's Swizzle<bits, 4, 3>. */
static uint32_t cute_swizzle(uint32_t offset, int bits)
{
    const uint32_t from = ((1u << bits) - 1) << (4 + 3);
    return offset ^ (offset & from) >> 3;
}

static uint32_t place(const struct operand *o, uint32_t i, uint32_t k)
{
    const int bits = o->swizzle == 128 ? 3 : o->swizzle == 64 ? 2 : o->swizzle == 32 ? 1 : 0;
    return o->start + o->pattern + cute_swizzle(canonical(o, i, k), bits);
}

static uint64_t descriptor(const struct operand *o, uint32_t shared)
{
    const uint64_t mode = o->swizzle == 128 ? 1 : o->swizzle == 64 ? 2 : o->swizzle == 32 ? 3 : 0;
    const uint64_t start = shared + o->start + o->pattern + o->advance;
    const uint64_t base = o->swizzle ? o->pattern >> 7 & 7 : 0;
    return (start & 0x3ffff) >> 4 | (uint64_t)(o->leading >> 4) << 16 | (uint64_t)(o->stride >> 4) << 32 | base << 49 |
           mode << 62;
}

static void draw_operand(struct operand *o, int rows, uint32_t start)
{
    static const int swizzles[] = {0, 32, 64, 128};
    *o = (struct operand){.rows = rows, .start = start, .swizzle = swizzles[draw(4)]};
    o->transposed = product.element_bytes == 2 && draw(2);
    const uint32_t gap = 16 * draw(3), w = (uint32_t)o->swizzle;
    const uint32_t groups = (uint32_t)rows / 8, wide = w ? ((uint32_t)rows * 2 + w - 1) / w : 0;
    if (!w && draw(2)) { /* rows first, or k first */
        o->leading = 128 + gap;
        o->stride = 2 * o->leading + 16 * draw(3);
    } else if (!w) {
        o->stride = 128 + gap;
        o->leading = groups * o->stride + 16 * draw(3);
    } else if (!o->transposed) {
        o->stride = 8 * w + 8 * w * draw(2);
        o->advance = 32 * draw(w / 32);
        o->leading = 16 * draw(4); /* not used */
    } else if (draw(2)) {
        o->leading = 8 * w;
        o->stride = wide * o->leading;
    } else {
        o->stride = 8 * w;
        o->leading = 2 * o->stride;
    }
    if (w && draw(4) == 0) o->pattern = 128 * draw(8);
    for (int i = 0; i < rows; ++i)
        for (int k = 0; k < product.k; ++k) o->value[i][k] = (int)draw(15) - 7;
}

static void draw_product(unsigned trial)
{
    random_state = trial;
    product.format = (enum sim_format)draw(3);
    product.element_bytes = product.format == SIM_TF32 ? 4 : 2;
    product.k = 32 / product.element_bytes;
    product.n = 8 * (1 + (int)draw(draw(3) ? 12 : 32));
    product.sign_a = draw(4) ? 1 : -1;
    product.sign_b = draw(4) ? 1 : -1;
    product.registers = draw(3) == 0;
    product.scale_d = draw(3) != 0;
    draw_operand(&product.a, M, 0);
    draw_operand(&product.b, product.n, 20 * 1024);
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < product.n; ++j) product.c[i][j] = (int)draw(1000) - 500;
}

static uint32_t bits_of(int value)
{
    const float x = (float)value;
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (product.format == SIM_TF32) return bits;
    if (product.format == SIM_BF16) return bits >> 16;
    _Float16 half = (_Float16)x;
    uint16_t half_bits;
    memcpy(&half_bits, &half, sizeof half_bits);
    return half_bits;
}

/* ---- the kernel ------------------------------------------------------------------------------------------------- */

static void write_operand(const struct operand *o, char *shared)
{
    for (int i = 0; i < o->rows; ++i)
        for (int k = 0; k < product.k; ++k) {
            char *to = shared + place(o, (uint32_t)i, (uint32_t)k);
            const uint32_t bits = bits_of(o->value[i][k]);
            sim_watch_write(to, (size_t)product.element_bytes, 1, "store", SIM_SITE);
            memcpy(to, &bits, (size_t)product.element_bytes);
        }
}

/* Who holds an element of D, figure "WGMMA .m64nNk16 register fragment layout for accumulator matrix D"; and of A. */
static int thread_of(int row, int column) { return row / 16 * 32 + row % 8 * 4 + column % 8 / 2; }
static int register_of(int row, int column) { return column / 8 * 4 + row % 16 / 8 * 2 + column % 2; }

static void load_a(int thread, uint32_t a[4])
{
    const int per_word = 4 / product.element_bytes;
    for (int row = 0; row < M; ++row)
        for (int k = 0; k < product.k; ++k) {
            const int word = k / per_word;
            if (row / 16 * 32 + row % 8 * 4 + word % 4 != thread) continue;
            const int r = word / 4 * 2 + row % 16 / 8, shift = k % per_word * 16;
            a[r] = (shift ? a[r] : 0) | bits_of(product.a.value[row][k]) << shift;
        }
}

static void multiply(const void *args)
{
    (void)args;
    const int t = (int)sim_thread_index(0);
    char *shared = async_shared();
    const uint32_t at = sim_shared_address(shared);
    float d[MAX_N / 2];
    uint32_t a[4];
    if (t == 0) {
        if (!product.registers) write_operand(&product.a, shared);
        write_operand(&product.b, shared);
        sim_fence_proxy_async_shared();
    }
    for (int row = 0; row < M; ++row)
        for (int j = 0; j < product.n && thread_of(row, 0) / 4 == t / 4; ++j)
            if (thread_of(row, j) == t) d[register_of(row, j)] = (float)product.c[row][j];
    if (product.registers) load_a(t, a);
    sim_sync_threads();
    sim_wgmma_fence();
    sim_wgmma(product.format, product.n, d, product.registers ? a : NULL,
              product.registers ? 0 : descriptor(&product.a, at), descriptor(&product.b, at), product.scale_d,
              product.sign_a, product.sign_b, !product.registers && product.a.transposed, product.b.transposed);
    sim_wgmma_commit();
    sim_wgmma_wait(0);
    for (int row = 0; row < M; ++row)
        for (int j = 0; j < product.n && thread_of(row, 0) / 4 == t / 4; ++j)
            if (thread_of(row, j) == t) product.d[row][j] = d[register_of(row, j)];
}

static void check_product(unsigned trial)
{
    for (int i = 0; i < M; ++i)
        for (int j = 0; j < product.n; ++j) {
            int sum = 0;
            for (int k = 0; k < product.k; ++k) sum += product.a.value[i][k] * product.b.value[j][k];
            const int c = product.scale_d ? product.c[i][j] : 0;
            const float right = (float)(product.sign_a * product.sign_b * sum + c);
            cr_assert_eq(product.d[i][j], right,
                         "trial %u, n %d: d[%d][%d] is %g, not %g; a %s-major, swizzle %d; b %s-major, swizzle %d",
                         trial, product.n, i, j, product.d[i][j], right, product.a.transposed ? "M" : "K",
                         product.a.swizzle, product.b.transposed ? "N" : "K", product.b.swizzle);
        }
}

Test(wgmma, operands_lie_as_the_manual_says)
{
    for (unsigned trial = 0; trial < TRIALS; ++trial) {
        const struct sim_options options = {.generation = SIM_SM_90, .async = trial % 3, .seed = trial};
        const struct async_case c = {"multiply", multiply, 128, 1, 0, SIM_CLEAN, "", ""};
        struct sim_gpu *gpu = sim_gpu_create(&options);
        draw_product(trial);
        const enum sim_rule found = async_run(gpu, &c);
        cr_assert_eq(found, SIM_CLEAN, "trial %u: %s", trial, sim_last_report(gpu)->text);
        check_product(trial);
        sim_gpu_destroy(gpu);
    }
}

/* ---- rules ------------------------------------------------------------------------------------------------------ */

/* One tile of fp16 ones serves as A and B, K-major without swizzle; numbers are 4 bytes so that get and put do. */
static const float two_ones = 0x1.0078p-7f; /* 0x3c003c00 */
enum { TILE = 2048 };

static uint64_t ones(const char *tile)
{
    return sim_shared_address(tile) >> 4 | (uint64_t)(1024 >> 4) << 16 | (uint64_t)(128 >> 4) << 32;
}

static void fill(char *tile, int bytes)
{
    for (int i = (int)sim_thread_index(0); i < bytes / 4; i += 128) put(tile + 4 * i, two_ones);
    sim_fence_proxy_async_shared();
}

static void product_of(float *d, const uint32_t *a, uint64_t x, bool scale_d)
{
    sim_wgmma(SIM_FP16, 8, d, a, x, x, scale_d, 1, 1, false, false);
}

static void store_sum(const float *d)
{
    sim_wgmma_fence_operand(d, 4 * sizeof *d);
    float sum = 0;
    for (int i = 0; i < 4; ++i) sum += get(d + i);
    put(async_out + sim_thread_index(0), sum);
}

/* Two groups of two products on the same accumulators, others beside them. */
static void groups(const void *args)
{
    const int variant = *(const int *)args, t = (int)sim_thread_index(0);
    char *shared = async_shared();
    float d[4], e[8];
    uint32_t a[4];
    fill(shared, TILE);
    for (int i = 0; i < 4; ++i) memcpy(&a[i], &two_ones, sizeof a[i]);
    sim_sync_threads();
    const uint64_t x = ones(shared);
    if (variant != 1) sim_wgmma_fence();
    product_of(d, NULL, x, false);
    if (variant == 2) sim_wgmma_fence(), sim_registers_fence(sim_self), put(d + 3, 1.0f);
    product_of(d, NULL, x, true);
    if (variant != 3 || t / 32 != 2) sim_wgmma_commit();
    product_of(d, a, x, true);
    if (variant == 4) product_of(d + 2, NULL, x, true);
    if (variant == 5) sim_wgmma(SIM_FP16, 16, e, NULL, x, x, false, 1, 1, false, false), product_of(e, NULL, x, false);
    if (variant == 6) product_of(e, (const uint32_t *)d, x, false);
    if (variant == 7) product_of((float *)a, NULL, x, false);
    sim_wgmma_commit();
    if (variant == 8) put(a + 1, 0.0f);
    sim_wgmma_wait(variant == 9 ? 2 : 1);
    if (variant == 9) put(shared, two_ones);
    if (variant == 10) get(d);
    if (variant == 11) put(shared, two_ones);
    sim_wgmma_wait(0);
    if (variant == 12) get(a), put(a, 0.0f), product_of(e, a, x, false);
    if (variant == 13) product_of(e, NULL, x, false), sim_wgmma_wait(0);
    if (variant == 13) return;
    put(shared + 4 * t, two_ones); /* its own again, but for the others */
    store_sum(d);
}

static void check_groups(const struct async_case *c)
{
    for (int i = 0; i < 128; ++i) cr_assert_eq(async_out[i], 4 * 3 * 16.0f, "%s", c->name);
}

/* Two chains of products in turn. All threads wait for a load meanwhile: then nothing goes on but asynchronous work. */
static void chains(const void *args)
{
    (void)args;
    char *shared = async_shared(), *barrier = shared + 2 * TILE;
    float d[4], e[4];
    fill(shared, TILE);
    make_barrier(barrier, 1);
    if (is_first()) sim_mbarrier_arrive_expect_tx(barrier, TILE);
    sim_wgmma_fence();
    for (int n = 0; n < 3; ++n) {
        product_of(d, NULL, ones(shared), n > 0);
        if (n < 2) product_of(e, NULL, ones(shared), n > 0);
    }
    sim_wgmma_commit();
    if (is_first()) sim_bulk_load(shared + TILE, async_in, TILE, barrier, 0);
    wait_for(barrier, 0);
    sim_wgmma_wait(0);
    store_sum(d);
    sim_wgmma_fence_operand(e, sizeof e);
    put(async_out + 128 + sim_thread_index(0), get(e));
}

static void check_chains(const struct async_case *c)
{
    check_groups(c);
    for (int i = 128; i < 256; ++i) cr_assert_eq(async_out[i], 2 * 16.0f, "%s", c->name);
}

/* Operands that are none. */
static void operands(const void *args)
{
    const int variant = *(const int *)args, t = (int)sim_thread_index(0);
    char *shared = async_shared();
    float d[128];
    uint32_t a[4] = {0};
    fill(shared, variant == 13 ? TILE - 16 : TILE);
    sim_sync_threads();
    const uint64_t x = ones(shared), far = x | 0x3fffull << 32;
    sim_wgmma_fence();
    if (variant == 0 || variant == 13) product_of(d, NULL, x, false);
    if (variant == 1) product_of(d, NULL, x | 1ull << 14, false);
    if (variant == 2) product_of(d, NULL, x | 1ull << 49, false);
    if (variant == 3) product_of(d, NULL, far, false);
    if (variant == 4) sim_wgmma(SIM_FP16, 12, d, NULL, x, x, false, 1, 1, false, false);
    if (variant == 5) sim_wgmma(SIM_FP16, 264, d, NULL, x, x, false, 1, 1, false, false);
    if (variant == 6) sim_wgmma(SIM_FP16, 8, d, NULL, x, x, false, 2, 1, false, false);
    if (variant == 7) sim_wgmma(SIM_TF32, 8, d, NULL, x, x, false, 1, 1, false, true);
    if (variant == 8) sim_wgmma(SIM_FP16, 8, d, a, x, x, false, 1, 1, true, false);
    if (variant == 9) product_of(d, NULL, t == 77 ? x + 64 : x, false);
    if (variant == 10) product_of(d, t == 77 ? a : NULL, x, false);
    if (variant == 11) sim_wgmma(SIM_FP16, 256, d, NULL, x, x, false, 1, 1, false, false);
    if (variant == 12) product_of(d, NULL, x + (TILE >> 4), false);
    sim_wgmma_commit();
    sim_wgmma_wait(0);
}

/* Each warp writes the 16 rows of A that it alone reads: a barrier of the warp is enough. Not for B. */
static void own_rows(const void *args)
{
    const int variant = *(const int *)args, t = (int)sim_thread_index(0);
    char *shared = async_shared(), *b = shared + TILE;
    float d[4];
    fill(b, TILE);
    sim_sync_threads();
    for (int i = 0; i < 4; ++i) { /* rows 16 w .. 16 w + 15: two cores of 128 bytes for each half of k */
        const int core = t / 32 * 2 + (variant == 1 ? 2 : 0) + i % 2;
        put(shared + (core % 8 * 128 + i / 2 * 1024) + 4 * (t % 32), two_ones);
    }
    if (variant != 2) sim_fence_proxy_async_shared();
    if (variant != 3) sim_sync_warp(~0u);
    sim_wgmma_fence();
    sim_wgmma(SIM_FP16, 8, d, NULL, ones(shared), variant == 4 ? ones(shared) : ones(b), false, 1, 1, false, false);
    sim_wgmma_commit();
    sim_wgmma_wait(0);
}

Test(wgmma, groups_chains_and_own_rows_are_clean)
{
    async_expect(&(struct async_case){"groups", groups, 128, 1, 0, SIM_CLEAN, "", ""}, 40, check_groups);
    async_expect(&(struct async_case){"chains", chains, 128, 1, 0, SIM_CLEAN, "", ""}, 20, check_chains);
    async_expect(&(struct async_case){"operands", operands, 128, 1, 0, SIM_CLEAN, "", ""}, SEEDS, NULL);
    async_expect(&(struct async_case){"own_rows", own_rows, 128, 1, 0, SIM_CLEAN, "", ""}, 40, NULL);
}

Test(wgmma, each_misuse_is_found)
{
    static const char wgmma[] = "wgmma";
    static const struct async_case cases[] = {
        {"groups", groups, 128, 1, 1, SIM_MISSING_WGMMA_FENCE, wgmma, "wgmma.fence"},
        {"groups", groups, 128, 1, 2, SIM_REGISTERS_IN_FLIGHT, "store", "register"},
        {"groups", groups, 128, 1, 3, SIM_DIVERGED, wgmma, "commit_group"},
        {"groups", groups, 128, 1, 4, SIM_REGISTERS_IN_FLIGHT, wgmma, "same shape"},
        {"groups", groups, 128, 1, 5, SIM_REGISTERS_IN_FLIGHT, wgmma, "same shape"},
        {"groups", groups, 128, 1, 6, SIM_REGISTERS_IN_FLIGHT, wgmma, "still writes"},
        {"groups", groups, 128, 1, 7, SIM_REGISTERS_IN_FLIGHT, wgmma, "still reads"},
        {"groups", groups, 128, 1, 8, SIM_REGISTERS_IN_FLIGHT, "store", "still reads"},
        {"groups", groups, 128, 1, 9, SIM_MISSING_WAIT, "store", wgmma},
        {"groups", groups, 128, 1, 10, SIM_REGISTERS_IN_FLIGHT, "load", "still writes"},
        {"groups", groups, 128, 1, 11, SIM_MISSING_WAIT, "store", wgmma},
        {"groups", groups, 128, 1, 12, SIM_MISSING_WGMMA_FENCE, wgmma, "Registers of A"},
        {"groups", groups, 128, 1, 13, SIM_LEFT_PENDING, wgmma, "wait_group"},
        {"operands", operands, 128, 1, 1, SIM_BAD_OPERAND, wgmma, "descriptor of A"},
        {"operands", operands, 128, 1, 2, SIM_BAD_OPERAND, wgmma, "descriptor of A"},
        {"operands", operands, 128, 1, 3, SIM_BAD_OPERAND, wgmma, "beyond all shared memory"},
        {"operands", operands, 128, 1, 4, SIM_BAD_OPERAND, wgmma, "multiple of 8"},
        {"operands", operands, 128, 1, 5, SIM_BAD_OPERAND, wgmma, "8 to 256"},
        {"operands", operands, 128, 1, 6, SIM_BAD_OPERAND, wgmma, "1 or -1"},
        {"operands", operands, 128, 1, 7, SIM_BAD_OPERAND, wgmma, "16 bits"},
        {"operands", operands, 128, 1, 8, SIM_BAD_OPERAND, wgmma, "transposed"},
        {"operands", operands, 128, 1, 9, SIM_DIVERGED, wgmma, "descriptors"},
        {"operands", operands, 128, 1, 10, SIM_DIVERGED, wgmma, "descriptors"},
        {"operands", operands, 128, 1, 11, SIM_UNINITIALISED, wgmma, "Nobody has written"},
        {"operands", operands, 128, 1, 12, SIM_UNINITIALISED, wgmma, "Nobody has written"},
        {"operands", operands, 128, 1, 13, SIM_UNINITIALISED, wgmma, "(byte 2032 "},
        {"own_rows", own_rows, 128, 1, 1, SIM_RACE, wgmma, "no synchronisation"},
        {"own_rows", own_rows, 128, 1, 2, SIM_MISSING_PROXY_FENCE, wgmma, "fence.proxy.async"},
        {"own_rows", own_rows, 128, 1, 3, SIM_RACE, wgmma, "no synchronisation"},
        {"own_rows", own_rows, 128, 1, 4, SIM_RACE, wgmma, "no synchronisation"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) async_expect(&cases[i], SEEDS, NULL);
}

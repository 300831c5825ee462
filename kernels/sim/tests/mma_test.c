/* mma_test.c - matrices by warp: every fragment's element where the PTX manual says, its formulas written out. */
#include <stdio.h>
#include <criterion/criterion.h>
#include <string.h>

#include "kernels/sim/machine.h"
#include "kernels/sim/tests/unit_sets.h"

static struct sim_gpu *new_gpu(enum sim_generation generation)
{
    const struct sim_options options = {.generation = generation, .seed = 1, .workers = 1};
    return sim_gpu_create(&options);
}

static enum sim_rule launch(struct sim_gpu *gpu, unsigned threads, void (*body)(const void *), const void *args,
                            size_t args_bytes)
{
    const struct sim_launch warp = {.kernel = "warp", .grid = {1, 1, 1}, .block = {threads, 1, 1}, .cluster = {1, 1, 1},
                                    .max_threads = 32, .body = body, .args = args, .args_bytes = args_bytes};
    return sim_launch(gpu, &warp);
}

/* ---- mma.sync ----------------------------------------------------------------------------------------------- */

struct matrices {
    enum sim_format format;
    uint32_t a[16 * 8], b_t[8 * 8]; /* rows of 16 16-bit numbers or 8 tf32 */
    float c[16 * 8], d[16 * 8];
};

static uint32_t half_at(const void *array, int index)
{
    uint16_t half;
    memcpy(&half, (const char *)array + 2 * index, 2);
    return half;
}

/* "Matrix Fragments for mma.m16n8k16 with floating point type": fragment element i of the lane, where it lies. */
static void load_fragments_16(const struct matrices *x, int lane, uint32_t *a, uint32_t *b)
{
    const int group = lane >> 2, thread_in_group = lane % 4;
    for (int i = 0; i < 8; ++i) {
        const int row = i < 2 || (i >= 4 && i < 6) ? group : group + 8;
        const int column = thread_in_group * 2 + (i & 1) + (i >= 4 ? 8 : 0);
        a[i / 2] = i % 2 ? a[i / 2] | half_at(x->a, row * 16 + column) << 16 : half_at(x->a, row * 16 + column);
    }
    for (int i = 0; i < 4; ++i) {
        const int row = thread_in_group * 2 + (i & 1) + (i >= 2 ? 8 : 0), column = group;
        b[i / 2] = i % 2 ? b[i / 2] | half_at(x->b_t, column * 16 + row) << 16 : half_at(x->b_t, column * 16 + row);
    }
}

/* "Matrix Fragments for mma.m16n8k8", .tf32. */
static void load_fragments_tf32(const struct matrices *x, int lane, uint32_t *a, uint32_t *b)
{
    const int group = lane >> 2, thread_in_group = lane % 4;
    for (int i = 0; i < 4; ++i)
        a[i] = x->a[(i == 0 || i == 2 ? group : group + 8) * 8 + thread_in_group + (i >= 2 ? 4 : 0)];
    for (int i = 0; i < 2; ++i) b[i] = x->b_t[group * 8 + thread_in_group + 4 * i];
}

static void mma_body(const void *args)
{
    struct matrices *x = *(struct matrices *const *)args;
    const int lane = (int)sim_thread_index(0), group = lane >> 2, thread_in_group = lane % 4;
    uint32_t a[4], b[2];
    float c[4], d[4];
    (x->format == SIM_TF32 ? load_fragments_tf32 : load_fragments_16)(x, lane, a, b);
    for (int i = 0; i < 4; ++i) c[i] = x->c[(group + (i < 2 ? 0 : 8)) * 8 + thread_in_group * 2 + (i & 1)];
    sim_mma(x->format, d, a, b, c);
    for (int i = 0; i < 4; ++i) x->d[(group + (i < 2 ? 0 : 8)) * 8 + thread_in_group * 2 + (i & 1)] = d[i];
}

Test(mma, multiplies_the_matrices_that_its_fragments_hold)
{
    for (int generation = SIM_SM_80; generation <= SIM_SM_90; ++generation)
        for (int format = SIM_FP16; format <= SIM_TF32; ++format) {
            const int k = format == SIM_TF32 ? 8 : 16;
            struct matrices x = {.format = format}, *pointer = &x;
            float want[16 * 8];
            struct sim_gpu *gpu = new_gpu(generation);
            unit_sets(UNIT_SPREAD, format, 5, 16, 8, k, x.a, x.b_t, x.c);
            memset(x.d, 0x5a, sizeof x.d);
            cr_assert_eq(launch(gpu, 32, mma_body, &pointer, sizeof pointer), SIM_CLEAN, "%s",
                         sim_last_report(gpu)->text);
            sim_unit(generation, format, 16, 8, k, x.a, x.b_t, x.c, want);
            cr_assert_arr_eq(x.d, want, sizeof want);
            cr_assert_eq(sim_counts(gpu)->mma_instructions, 1);
            cr_assert_eq(sim_counts(gpu)->tensor_core_flops, (uint64_t)2 * 16 * 8 * k);
            sim_gpu_destroy(gpu);
        }
}

static void lane_missing_body(const void *args)
{
    (void)args;
    uint32_t a[4] = {0}, b[2] = {0};
    float d[4] = {0};
    if (sim_thread_index(0) != 7) sim_mma(SIM_FP16, d, a, b, d);
}

Test(mma, needs_every_lane)
{
    struct sim_gpu *gpu = new_gpu(SIM_SM_80);
    cr_assert_eq(launch(gpu, 32, lane_missing_body, NULL, 0), SIM_DIVERGED);
    cr_assert_eq(launch(gpu, 24, lane_missing_body, NULL, 0), SIM_DIVERGED, "8 lanes that do not exist");
    sim_gpu_destroy(gpu);
}

/* ---- ldmatrix, stmatrix ------------------------------------------------------------------------------------- */

struct moves {
    int count, misplaced; /* misplaced: bytes off its place for the row of lane 3 */
    bool transpose, store, elsewhere, unwritten;
    uint16_t seen[4][8][8]; /* matrix, row, column: what the fragments hold, or what memory holds after a store */
};

enum { PITCH = 24 }; /* numbers from a row to the next */

/* "ldmatrix": thread T's register j holds, of matrix j, row T / 4, columns 2 (T % 4) and + 1; transposed: column and
 * rows. Matrix j's row r is where thread 8 j + r says. */
static void store_body(struct moves *x, uint16_t *memory, int lane, void *row)
{
    uint32_t fragment[4];
    for (int j = 0; j < x->count; ++j) {
        const uint32_t low = (uint32_t)(64 * j + lane / 4 * 8 + lane % 4 * 2), high = low + 1;
        fragment[j] = low | high << 16;
    }
    sim_stmatrix(row, fragment, x->count, x->transpose);
    sim_sync_warp(~0u);
    for (int r = lane; r < 8 * x->count; r += 32)
        for (int i = 0; i < 8; ++i)
            x->seen[r / 8][x->transpose ? i : r % 8][x->transpose ? r % 8 : i] = memory[r * PITCH + i];
}

static void load_body(struct moves *x, int lane, const void *row)
{
    uint32_t fragment[4] = {0};
    sim_ldmatrix(fragment, row, x->count, x->transpose);
    for (int j = 0; j < x->count; ++j)
        for (int half = 0; half < 2; ++half) {
            const int i = lane / 4, k = lane % 4 * 2 + half;
            x->seen[j][x->transpose ? k : i][x->transpose ? i : k] = (uint16_t)(fragment[j] >> 16 * half);
        }
}

static void move_body(const void *args)
{
    static const char tag;
    struct moves *x = *(struct moves *const *)args;
    const int lane = (int)sim_thread_index(0);
    uint16_t *memory = sim_shared_static(&tag, 32 * PITCH * sizeof *memory, 16), own[8] __attribute__((aligned(16)));
    for (int i = 0; i < 8; ++i) {
        if (!x->unwritten) sim_watch_write(memory + lane * PITCH + i, 2, 2, "store", NULL);
        memory[lane * PITCH + i] = x->store ? 0xffff : (uint16_t)(64 * (lane / 8) + lane % 8 * 8 + i);
    }
    sim_sync_warp(~0u);
    char *row = (char *)(x->elsewhere ? own : memory + lane * PITCH) + (lane == 3 ? x->misplaced : 0);
    if (lane >= 8 * x->count) row = NULL; /* nobody looks at it */
    if (x->store)
        store_body(x, memory, lane, row);
    else
        load_body(x, lane, row);
}

static enum sim_rule run_moves(enum sim_generation generation, struct moves *x)
{
    struct sim_gpu *gpu = new_gpu(generation);
    const enum sim_rule rule = launch(gpu, 32, move_body, &x, sizeof x);
    sim_gpu_destroy(gpu);
    return rule;
}

static void check_moves(bool store)
{
    for (int count = 1; count <= 4; count *= 2)
        for (int transpose = 0; transpose < 2; ++transpose) {
            struct moves x = {.count = count, .transpose = transpose, .store = store};
            memset(x.seen, 0xee, sizeof x.seen);
            cr_assert_eq(run_moves(SIM_SM_90, &x), SIM_CLEAN);
            for (int j = 0; j < 4; ++j)
                for (int r = 0; r < 8; ++r)
                    for (int i = 0; i < 8; ++i)
                        cr_assert_eq(x.seen[j][r][i], j < count ? 64 * j + 8 * r + i : 0xeeee, "x%d%s (%d, %d, %d): %d",
                                     count, transpose ? " transposed" : "", j, r, i, x.seen[j][r][i]);
        }
}

Test(ldmatrix, gives_every_lane_its_elements) { check_moves(false); }
Test(stmatrix, puts_every_element_into_its_place) { check_moves(true); }

Test(ldmatrix, finds_wrong_rows)
{
    for (int store = 0; store < 2; ++store) {
        struct moves misaligned = {.count = 4, .misplaced = 8, .store = store};
        struct moves elsewhere = {.count = 4, .elsewhere = true, .store = store};
        struct moves beyond = {.count = 1, .misplaced = 32 * PITCH * 2, .store = store};
        cr_assert_eq(run_moves(SIM_SM_90, &misaligned), SIM_MISALIGNED);
        cr_assert_eq(run_moves(SIM_SM_90, &elsewhere), SIM_BAD_OPERAND);
        cr_assert_eq(run_moves(SIM_SM_90, &beyond), SIM_OUT_OF_BOUNDS);
    }
    struct moves unwritten = {.count = 2, .unwritten = true};
    cr_assert_eq(run_moves(SIM_SM_90, &unwritten), SIM_UNINITIALISED);
}

Test(stmatrix, needs_sm_90)
{
    struct moves x = {.count = 1, .store = true};
    cr_assert_eq(run_moves(SIM_SM_80, &x), SIM_WRONG_GENERATION);
}

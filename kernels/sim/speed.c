/* speed.c - what the simulator takes, on one core with all checks on: bazel run //kernels/sim:speed */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/shared/params.h"
#include "kernels/registry.h"
#include "kernels/sim/calls.h"
#include "kernels/sim/machine.h"
#include "kernels/sim/unit.h"

enum { RUNS = 5 };

static double cpu_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void must_be_clean(struct sim_gpu *gpu, int rule)
{
    if (rule == SIM_CLEAN) return;
    fprintf(stderr, "%s\n", sim_last_report(gpu)->text);
    exit(1);
}

static void launch(struct sim_gpu *gpu, const char *kernel, void (*body)(const void *args), size_t dynamic_shared)
{
    const struct sim_launch l = {.kernel = kernel,
                                 .grid = {1, 1, 1},
                                 .block = {128, 1, 1},
                                 .cluster = {1, 1, 1},
                                 .dynamic_shared = dynamic_shared,
                                 .max_threads = 128,
                                 .min_blocks = 1,
                                 .body = body};
    must_be_clean(gpu, sim_launch(gpu, &l));
}

/* ---- kernels ------------------------------------------------------------------------------------------------ */

enum { LAUNCHES = 1000, BARRIERS = 10000, SHUFFLES = 10000, UNITS = 1000, WGMMAS = 400 };

static void nothing(const void *args)
{
    (void)args;
}

static void many_barriers(const void *args)
{
    (void)args;
    for (int i = 0; i < BARRIERS; ++i) sim_sync_threads();
}

static void many_shuffles(const void *args)
{
    (void)args;
    for (int i = 0; i < SHUFFLES; ++i) sim_shfl(SIM_SHFL_XOR, ~0u, sim_self->lane, 1, 32);
}

/* Tiles of 64 and 128 rows of 64 bf16, k fastest, 128-byte swizzle; a chain of k16 steps on one accumulator. */
enum { ROW_BYTES = 128, A_BYTES = 64 * ROW_BYTES, B_BYTES = 128 * ROW_BYTES };

static uint64_t descriptor(const char *shared)
{
    const uint64_t rows_of_8 = 8 * ROW_BYTES, swizzle_128 = 1;
    return (sim_shared_address(shared) & 0x3ffff) >> 4 | 1ull << 16 | rows_of_8 >> 4 << 32 | swizzle_128 << 62;
}

static void many_wgmmas(const void *args)
{
    (void)args;
    char *shared = sim_shared_dynamic(1024);
    const unsigned share = (A_BYTES + B_BYTES) / SIM_WARPGROUP, at = share * sim_self->linear;
    sim_watch_write(shared + at, share, 1, "store", SIM_SITE);
    for (unsigned i = at; i < at + share; i += 2)
        memcpy(shared + i, &(uint16_t){(uint16_t)(0x3f00 + i * 37 % 512)}, 2); /* 0.5 .. 2 */
    sim_fence_proxy_async();
    sim_sync_threads();
    float d[64] = {0};
    sim_wgmma_fence();
    for (unsigned i = 0; i < WGMMAS; ++i) {
        const unsigned step = i % 4 * 32;
        sim_wgmma(SIM_BF16, 128, d, NULL, descriptor(shared + step), descriptor(shared + A_BYTES + step), true, 1, 1,
                  false, false);
        sim_wgmma_commit();
    }
    sim_wgmma_wait(0);
}

/* ---- rows --------------------------------------------------------------------------------------------------- */

static double time_launch(struct sim_gpu *gpu)
{
    const double start = cpu_seconds();
    for (int i = 0; i < LAUNCHES; ++i) launch(gpu, "nothing", nothing, 0);
    return (cpu_seconds() - start) / LAUNCHES;
}

static double time_switches(struct sim_gpu *gpu, const char *kernel, void (*body)(const void *args))
{
    sim_reset_counts(gpu);
    const double start = cpu_seconds();
    launch(gpu, kernel, body, 0);
    return (cpu_seconds() - start) / (double)sim_counts(gpu)->fiber_switches;
}

static double time_barrier(struct sim_gpu *gpu)
{
    return time_switches(gpu, "many_barriers", many_barriers);
}

static double time_shuffle(struct sim_gpu *gpu)
{
    return time_switches(gpu, "many_shuffles", many_shuffles);
}

static double time_unit(struct sim_gpu *gpu)
{
    (void)gpu;
    static uint16_t a[64 * 16], b[128 * 16];
    static float d[64 * 128];
    for (int i = 0; i < 64 * 16; ++i) a[i] = (uint16_t)(0x3f00 + i * 37 % 512);
    for (int i = 0; i < 128 * 16; ++i) b[i] = (uint16_t)(0xbf00 + i * 41 % 512);
    memset(d, 0, sizeof d);
    const double start = cpu_seconds();
    for (int i = 0; i < UNITS; ++i) sim_unit(SIM_SM_90, SIM_BF16, 64, 128, 16, a, b, d, d);
    return (cpu_seconds() - start) / UNITS;
}

static double time_wgmma(struct sim_gpu *gpu)
{
    const double start = cpu_seconds();
    launch(gpu, "many_wgmmas", many_wgmmas, A_BYTES + B_BYTES + 1024);
    return (cpu_seconds() - start) / WGMMAS;
}

static double time_forward(struct sim_gpu *gpu)
{
    enum { SEQLEN = 256, HEAD_DIM = 64, SIZE = SEQLEN * HEAD_DIM };
    static float q[SIZE], k[SIZE], v[SIZE], o[SIZE], lse[SEQLEN];
    for (int i = 0; i < SIZE; ++i) {
        q[i] = (float)(i * 37 % 101) / 50 - 1;
        k[i] = (float)(i * 41 % 103) / 50 - 1;
        v[i] = (float)(i * 43 % 107) / 50 - 1;
    }
    const struct row_tensor row = {
        .batch = SIZE, .seqlen = HEAD_DIM, .head = HEAD_DIM, .dtype = ATTEST_FP32, .by_four = 1};
    struct forward_params p = {.q = row,
                               .k = row,
                               .v = row,
                               .o = row,
                               .lse = {.data = lse, .batch = SEQLEN, .seqlen = 1, .head = SEQLEN},
                               .batch = 1,
                               .num_heads_q = 1,
                               .group = 1,
                               .seqlen_q = SEQLEN,
                               .seqlen_k = SEQLEN,
                               .head_dim = HEAD_DIM,
                               .head_dim_v = HEAD_DIM,
                               .window_left = -1,
                               .window_right = -1,
                               .softmax_scale = 0.125f};
    p.q.data = q;
    p.k.data = k;
    p.v.data = v;
    p.o.data = o;
    if (!sim_map(gpu, "q", q, sizeof q, SIM_READ | SIM_INITIALISED) ||
        !sim_map(gpu, "k", k, sizeof k, SIM_READ | SIM_INITIALISED) ||
        !sim_map(gpu, "v", v, sizeof v, SIM_READ | SIM_INITIALISED) || !sim_map(gpu, "o", o, sizeof o, SIM_WRITE) ||
        !sim_map(gpu, "lse", lse, sizeof lse, SIM_WRITE))
        exit(1);
    const double start = cpu_seconds();
    must_be_clean(gpu, forward_fp32_sim(&p, gpu));
    const double seconds = cpu_seconds() - start;
    sim_unmap_all(gpu);
    return seconds;
}

static const struct row {
    const char *what, *unit;
    double units_in_second;
    bool rate;   /* units a second, not seconds in units */
    double goal; /* 0: none */
    double (*seconds)(struct sim_gpu *gpu);
} rows[] = {
    {"switches between fibers, __syncthreads", "million a second", 1e-6, true, 10, time_barrier},
    {"switches between fibers, shfl", "million a second", 1e-6, true, 10, time_shuffle},
    {"launch of 128 threads that do nothing", "us", 1e6, false, 100, time_launch},
    {"m64n128k16 bf16, its arithmetic alone", "us", 1e6, false, 0, time_unit},
    {"wgmma m64n128k16 bf16", "us", 1e6, false, 50, time_wgmma},
    {"forward_fp32, 256 x 256, head_dim 64, one head", "s", 1, false, 0.25, time_forward},
};

int main(void)
{
    const struct sim_options options = {.generation = SIM_SM_90, .seed = 1, .workers = 1};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    if (!gpu) return 1;
    printf("%-48s %10s %10s\n", "seconds of one core, best of 5", "measured", "goal");
    for (size_t r = 0; r < sizeof rows / sizeof *rows; ++r) {
        double best = rows[r].seconds(gpu);
        for (int i = 1; i < RUNS; ++i) {
            const double seconds = rows[r].seconds(gpu);
            if (seconds < best) best = seconds;
        }
        const double value = rows[r].rate ? rows[r].units_in_second / best : rows[r].units_in_second * best;
        char goal[16] = "";
        if (rows[r].goal) snprintf(goal, sizeof goal, "%g", rows[r].goal);
        printf("%-48s %10.3g %10s %s\n", rows[r].what, value, goal, rows[r].unit);
    }
    sim_gpu_destroy(gpu);
    return 0;
}

/* counts_test.c - kernels whose counts are known by hand, counted. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "kernels/sim/tests/counts.h"

struct counted {
    const char *name;
    int (*launch)(struct sim_gpu *gpu, const struct counted_args *args);
    int stride, shift;
    struct sim_counts expected; /* fiber_switches left out */
};

#define COPY(blocks_, bytes, sectors, requests)                                                     \
    .blocks = blocks_, .global_read_bytes = bytes, .global_write_bytes = bytes,                     \
    .global_read_sectors = sectors, .global_write_sectors = sectors, .global_read_requests = requests, \
    .global_write_requests = requests
/* Each warp instruction on shared memory: `wavefronts` in all, `conflicts` of them more than the bytes need. */
#define SHARED(read, written, reads, writes, wavefronts, conflicts)                                         \
    .shared_read_bytes = read, .shared_write_bytes = written, .shared_read_requests = reads,                \
    .shared_write_requests = writes, .shared_wavefronts = wavefronts, .shared_bank_conflicts = conflicts

#define ONE_MEETING .warp_collectives = 1 /* bar.warp.sync */
#define ONE_PRODUCT                                                                                             \
    .blocks = 1, .global_read_bytes = 512, .global_read_sectors = 16, .global_read_requests = 1,                \
    SHARED(0, 512, 0, 1, 4, 0), .mma_instructions = 1, .tensor_core_flops = 4096, .warp_collectives = 1,        \
    .async_copies = 32, .async_copy_bytes = 512
/* 64 x 8 x 16; 4 warps meet. */
#define TWO_PRODUCTS                                                                                            \
    .blocks = 1, .global_read_bytes = 512, .global_read_sectors = 16, .global_read_requests = 2,                \
    .wgmma_instructions = 2, .tensor_core_flops = 2 * 16384, .barrier_waits = 4, .mbarrier_waits = 256,         \
    .async_copies = 2, .async_copy_bytes = 512

#define KERNELS(X)                                                                                                    \
    /* 128 bytes a warp: 4 sectors of 32. */                                                                          \
    X(copy, 1, 0, COPY(4, 4096, 128, 32))                                                                             \
    /* 256 bytes from the first to the last: 8 sectors. */                                                            \
    X(copy, 2, 0, COPY(4, 4096, 256, 32))                                                                             \
    /* A sector a thread. */                                                                                          \
    X(copy, 32, 0, COPY(4, 4096, 1024, 32))                                                                           \
    /* 4 bytes into a sector: the last reach into a fifth. */                                                         \
    X(copy, 1, 1, COPY(4, 4096, 160, 32))                                                                             \
    /* 512 bytes a warp. */                                                                                           \
    X(copy_16, 0, 0, COPY(1, 4096, 128, 8))                                                                           \
    X(copy_one, 0, 0, COPY(1, 4, 1, 1))                                                                               \
    /* Rows: 32 requests of one wavefront. Columns: 32 lanes in one bank, 32 wavefronts; padded, in 32 banks. */      \
    X(transpose, 32, 0, COPY(1, 4096, 128, 32), SHARED(4096, 4096, 32, 32, 32 + 1024, 32 * 31), ONE_MEETING)          \
    X(transpose, 33, 0, COPY(1, 4096, 128, 32), SHARED(4096, 4096, 32, 32, 32 + 32, 0), ONE_MEETING)                  \
    /* 256 bytes: two wavefronts, each of half a warp. 16 bytes apart, 16 lanes meet in 8 pairs of banks: four. */    \
    X(by_8_bytes, 1, 0, .blocks = 1, SHARED(256, 256, 1, 1, 2 + 2, 0), ONE_MEETING)                                   \
    X(by_8_bytes, 2, 0, .blocks = 1, SHARED(256, 256, 1, 1, 4 + 4, 2 + 2), ONE_MEETING)                               \
    /* 512 bytes: four wavefronts, each of 8 lanes. 32 bytes apart, 8 lanes meet in 4 groups of banks: eight. */      \
    X(by_16_bytes, 1, 0, .blocks = 1, SHARED(512, 512, 1, 1, 4 + 4, 0), ONE_MEETING)                                  \
    X(by_16_bytes, 2, 0, .blocks = 1, SHARED(512, 512, 1, 1, 8 + 8, 4 + 4), ONE_MEETING)                              \
    /* One word for all; two words in two banks; two words in one bank. */                                            \
    X(broadcast, 0, 0, .blocks = 1, SHARED(128, 8, 1, 2, 2 + 1, 0), ONE_MEETING)                                      \
    X(broadcast, 1, 0, .blocks = 1, SHARED(128, 8, 1, 2, 2 + 1, 0), ONE_MEETING)                                      \
    X(broadcast, 32, 0, .blocks = 1, SHARED(128, 8, 1, 2, 2 + 2, 1), ONE_MEETING)                                     \
    /* 4 warps: 5 products of 2 x 16 x 8 x 16, one of 2 x 16 x 8 x 8. */                                              \
    X(products, 0, 0, .blocks = 2, .mma_instructions = 4 * 6, .tensor_core_flops = 4 * (5 * 4096 + 2048),             \
      .warp_collectives = 4 * 6)                                                                                      \
    /* 2 warpgroups: 2 x 64 x 8 x 16 and twice 2 x 64 x 64 x 16. 64 words written by 2 warps; 8 warps meet once. */   \
    X(warpgroup_products, 0, 0, .blocks = 1, .dynamic_shared_bytes = 256, .wgmma_instructions = 2 * 3,                \
      .tensor_core_flops = 2 * (16384 + 2 * 131072), SHARED(0, 256, 0, 2, 2, 0), .barrier_waits = 8)                  \
    X(functions, 0, 0, .blocks = 1, .special_function_operations = 64 * 6)                                            \
    /* Five shuffles, a ballot, a meeting and an election. */                                                         \
    X(collectives, 0, 0, .blocks = 1, .warp_collectives = 2 * (5 + 1 + 1 + 1))                                        \
    X(meetings, 0, 0, .blocks = 1, .barrier_waits = 4 * 3 + 2)                                                        \
    X(mbarrier_meetings, 0, 0, .blocks = 1, .barrier_waits = 2, .mbarrier_waits = 64 * 2)                             \
    /* 56 copies read 16 bytes: 28 sectors, by 2 warps. All 64 write 16 bytes, zeros too: 8 wavefronts. */            \
    X(async_copies, 0, 0, .blocks = 1, .global_read_bytes = 896, .global_read_sectors = 28,                           \
      .global_read_requests = 2, SHARED(0, 1024, 0, 2, 8, 0), .async_copies = 64, .async_copy_bytes = 1024,           \
      .copy_bytes_waited_at_once = 1024)                                                                              \
    /* Not by a warp: bulk copies do not count as accesses of shared memory. */                                       \
    X(bulk_copies, 0, 0, COPY(1, 1024, 32, 1), .async_copies = 2, .async_copy_bytes = 2048, .mbarrier_waits = 1)      \
    /* One product; the copy is beside it, or waited for with nothing beside it. */                                   \
    X(product_beside_copy, 0, 0, ONE_PRODUCT, .products_beside_copies = 1)                                            \
    X(product_beside_copy, 1, 0, ONE_PRODUCT, .copy_bytes_waited_at_once = 512)                                       \
    /* The first product is beside the second copy; or 128 threads wait twice in a row. Only what is waited for       \
     * before another product is issued has drained. */                                                               \
    X(products_and_bytes, 0, 0, TWO_PRODUCTS, .products_beside_copies = 1, .wgmma_drains = 1)                         \
    X(products_and_bytes, 1, 0, TWO_PRODUCTS, .copy_waits_at_once = 128, .wgmma_drains = 1)                           \
    X(products_and_bytes, 0, 1, TWO_PRODUCTS, .products_beside_copies = 1)                                            \
    X(products_and_bytes, 0, 2, TWO_PRODUCTS, .products_beside_copies = 1, .wgmma_drains = 1)

#define DECLARE(name, stride, shift, ...) int counted_##name(struct sim_gpu *gpu, const struct counted_args *args);
#define ROW(name, stride, shift, ...) {#name, counted_##name, stride, shift, {.launches = 1, __VA_ARGS__}},
KERNELS(DECLARE)
static const struct counted kernels[] = {KERNELS(ROW)};

/* The counts by name, to say which differs. */
#define COUNTS(X)                                                                                                      \
    X(launches) X(blocks) X(dynamic_shared_bytes)                                                                      \
    X(global_read_bytes) X(global_write_bytes) X(global_read_sectors) X(global_write_sectors)                          \
    X(global_read_requests) X(global_write_requests) X(shared_read_bytes) X(shared_write_bytes)                        \
    X(shared_read_requests) X(shared_write_requests) X(shared_wavefronts) X(shared_bank_conflicts) X(mma_instructions) \
    X(wgmma_instructions) X(tensor_core_flops) X(special_function_operations) X(warp_collectives) X(barrier_waits)     \
    X(mbarrier_waits) X(async_copies) X(async_copy_bytes) X(products_beside_copies) X(copy_bytes_waited_at_once)       \
    X(copy_waits_at_once) X(wgmma_drains)

static void expect_counts(const struct counted *k, const struct sim_counts *counts, const char *schedule)
{
#define EXPECT_COUNT(count)                                                                              \
    cr_expect_eq(counts->count, k->expected.count, "%s, stride %d, shift %d, %s: " #count " %llu, not %llu", k->name, \
                 k->stride, k->shift, schedule, (unsigned long long)counts->count,                       \
                 (unsigned long long)k->expected.count);
    COUNTS(EXPECT_COUNT)
}

enum { FLOATS = 1024 * 32 + 1 };
static _Alignas(128) float in[FLOATS], out[FLOATS];

static void run(const struct counted *k, const struct sim_options *options)
{
    const struct counted_args args = {in, out, k->stride, k->shift};
    char schedule[64];
    struct sim_gpu *gpu = sim_gpu_create(options);
    cr_assert_not_null(gpu);
    cr_assert(sim_map(gpu, "in", in, sizeof in, SIM_READ));
    cr_assert(sim_map(gpu, "out", out, sizeof out, SIM_WRITE));
    cr_assert_eq(k->launch(gpu, &args), 0, "%s: %s", k->name, sim_last_report(gpu)->text);
    snprintf(schedule, sizeof schedule, "seed %u, policy %d, %u workers%s", (unsigned)options->seed, options->async,
             options->workers, options->unwatched ? ", unwatched" : "");
    expect_counts(k, sim_counts(gpu), schedule);
    sim_reset_counts(gpu);
    cr_expect_eq(sim_counts(gpu)->launches, 0);
    sim_gpu_destroy(gpu);
}

int counted_uneven(struct sim_gpu *gpu, const struct counted_args *args);

/* Work is bytes here. On two SMs: 4 and 8, then 12 behind the 4; or 12 and 8, then 4 behind the 8. */
Test(counts, of_launches_do_not_depend_on_the_order_in_which_they_run)
{
    for (unsigned trial = 0; trial < 60; ++trial) {
        const struct sim_options options = {.generation = SIM_SM_90, .async = trial % 3, .seed = trial / 3,
                                            .workers = 1 + trial % 4, .counting = true};
        struct sim_gpu *gpu = sim_gpu_create(&options);
        cr_assert_not_null(gpu);
        cr_assert(sim_map(gpu, "in", in, sizeof in, SIM_READ));
        for (int descends = 0; descends < 2; ++descends) {
            const struct counted_args args = {in, out, descends, 0};
            cr_assert_eq(counted_uneven(gpu, &args), 0, "%s", sim_last_report(gpu)->text);
            const struct sim_counts *c = sim_counts(gpu);
            cr_expect_eq(c->makespan, descends ? 12 : 16, "makespan %llu", (unsigned long long)c->makespan);
            cr_expect(c->threads == 64 && c->cluster_ctas == 1 && c->early_launches == 1);
            sim_reset_counts(gpu);
        }
        sim_gpu_destroy(gpu);
    }
}

Test(counts, are_as_known_by_hand_for_every_seed_policy_and_number_of_workers)
{
    for (size_t x = 0; x < sizeof kernels / sizeof kernels[0]; ++x) {
        for (unsigned trial = 0; trial < 60; ++trial) {
            const struct sim_options options = {.generation = SIM_SM_90, .async = trial % 3, .seed = trial / 3,
                                                .workers = 1 + trial % 4, .unwatched = trial % 5 == 4,
                                                .counting = true};
            run(&kernels[x], &options);
        }
    }
}

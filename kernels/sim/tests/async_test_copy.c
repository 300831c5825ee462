/* async_test_copy.c - cp.async and bulk copies: what each wait covers, what is found. */
#include "kernels/sim/tests/async_test.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

enum { SEEDS = 10, MANY_SEEDS = 60, BYTES = 1024 };

/* ---- cp.async ----------------------------------------------------------------------------------------------- */

/* 64 threads, 16 bytes each of 8 tiles; two groups are on their way while a third is read. */
static void pipeline(const void *args)
{
    const int variant = *(const int *)args, t = (int)sim_thread_index(0);
    char *shared = async_shared();
    for (int n = 0; n < 8 + 2; ++n) {
        if (n < 8) sim_cp_async(shared + n % 3 * BYTES + 16 * t, async_in + 256 * n + 4 * t, 16, 16);
        sim_cp_async_commit();
        if (n < 2) continue;
        if (variant == 2) sim_sync_threads();
        sim_cp_async_wait(variant == 1 ? 3 : 2);
        if (variant != 2) sim_sync_threads();
        for (int i = 0; i < 4; ++i)
            put(async_out + 256 * (n - 2) + 4 * t + i, get(shared + (n - 2) % 3 * BYTES + 4 * (255 - 4 * t - i)));
        if (variant != 3) sim_sync_threads();
    }
}

/* The first four tiles, each mirrored. */
static void check_mirrored(const struct async_case *c)
{
    for (int i = 0; i < 1024; ++i) cr_assert_eq(async_out[i], async_in[i / 256 * 256 + 255 - i % 256], "%s", c->name);
}

/* Zero fill: 7 of 16, 5 of 8 bytes, none of 4. */
static void partial(const void *args)
{
    const int variant = *(const int *)args;
    char *shared = async_shared();
    char *bytes = (char *)async_in;
    sim_cp_async(shared, bytes + 32, 16, 7);
    sim_cp_async(shared + 16, bytes + 8, 8, 5);
    sim_cp_async(shared + 24, variant == 1 ? (char *)async_in + sizeof async_in : bytes, 4, variant == 1 ? 4 : 0);
    if (variant == 2) sim_cp_async(shared, bytes, 12, 12);
    if (variant == 3) sim_cp_async(shared, bytes, 8, 9);
    if (variant == 4) sim_cp_async(async_out, bytes, 16, 16);
    if (variant == 5) sim_cp_async(shared + 64, shared, 16, 16);
    if (variant == 6) sim_cp_async(shared + 72, bytes, 16, 16);
    if (variant == 7) sim_cp_async(shared + 64, bytes + 4, 8, 8);
    if (variant == 8) sim_cp_async(shared + 20, bytes, 4, 4);
    if (variant == 9) sim_cp_async_commit();
    if (variant == 9) return;
    if (variant == 10) sim_cp_async_wait(0);
    else sim_cp_async_wait_all();
    for (int i = 0; i < 7; ++i) put(async_out + i, get(shared + 4 * i));
    if (variant == 11) sim_cp_async(shared, bytes, 4, 4);
    if (variant == 11) put(shared, 1.0f);
}

static void check_partial(const struct async_case *c)
{
    char expected[28] = {0};
    memcpy(expected, (char *)async_in + 32, 7);
    memcpy(expected + 16, (char *)async_in + 8, 5);
    cr_assert_eq(memcmp(async_out, expected, sizeof expected), 0, "%s", c->name);
}

/* One warp copies, another one waits for the mbarrier; the copies after the arrival are not covered. */
static void by_mbarrier(const void *args)
{
    const int variant = *(const int *)args, t = (int)sim_thread_index(0);
    char *shared = async_shared(), *barrier = shared + 8192;
    make_barrier(barrier, 32);
    for (int n = 0; n < 4; ++n) {
        char *tile = shared + n % 2 * BYTES;
        if (t < 32) {
            for (int i = 0; i < 2; ++i)
                sim_cp_async(tile + 32 * t + 16 * i, async_in + 256 * n + 8 * t + 4 * i, 16, 16);
            if (variant == 1) sim_cp_async(shared + 4096 + 4 * t, async_in, 4, 4);
            sim_cp_async_mbarrier_arrive(barrier);
            if (variant == 2) sim_cp_async(shared + 4096 + 4 * t, async_in, 4, 4);
            if (variant == 3) get(tile + 32 * t);
        } else {
            wait_for(barrier, n % 2);
            const int u = t - 32;
            for (int i = 0; i < 8; ++i) put(async_out + 256 * n + 8 * u + i, get(tile + 1020 - 32 * u - 4 * i));
            if (variant == 2) get(shared + 4096 + 4 * u);
        }
        sim_sync_threads();
    }
}

Test(cp_async, waits_cover_the_groups_that_they_name)
{
    async_expect(&(struct async_case){"pipeline", pipeline, 64, 1, 0, SIM_CLEAN, "", ""}, MANY_SEEDS, check_mirrored);
    async_expect(&(struct async_case){"by_mbarrier", by_mbarrier, 64, 1, 0, SIM_CLEAN, "", ""}, MANY_SEEDS,
                 check_mirrored);
    async_expect(&(struct async_case){"partial", partial, 1, 1, 0, SIM_CLEAN, "", ""}, SEEDS, check_partial);
}

Test(cp_async, each_misuse_is_found)
{
    static const char copy[] = "cp.async";
    static const struct async_case cases[] = {
        {"pipeline", pipeline, 64, 1, 1, SIM_MISSING_WAIT, "load", copy},
        {"pipeline", pipeline, 64, 1, 2, SIM_MISSING_WAIT, "load", copy},
        {"partial", partial, 1, 1, 1, SIM_OUT_OF_BOUNDS, copy, "past the end of in"},
        {"partial", partial, 1, 1, 2, SIM_BAD_OPERAND, copy, "12 bytes"},
        {"partial", partial, 1, 1, 3, SIM_BAD_OPERAND, copy, "9 are read"},
        {"partial", partial, 1, 1, 4, SIM_OUT_OF_BOUNDS, copy, "shared memory of this CTA"},
        {"partial", partial, 1, 1, 5, SIM_OUT_OF_BOUNDS, copy, "global memory"},
        {"partial", partial, 1, 1, 6, SIM_MISALIGNED, copy, "16"},
        {"partial", partial, 1, 1, 7, SIM_MISALIGNED, copy, "8"},
        {"partial", partial, 1, 1, 8, SIM_MISSING_WAIT, copy, copy},
        {"partial", partial, 1, 1, 9, SIM_LEFT_PENDING, copy, "ends without a wait"},
        {"partial", partial, 1, 1, 10, SIM_MISSING_WAIT, "load", copy},
        {"partial", partial, 1, 1, 11, SIM_MISSING_WAIT, "store", copy},
        {"by_mbarrier", by_mbarrier, 64, 1, 2, SIM_MISSING_WAIT, "load", copy},
        {"by_mbarrier", by_mbarrier, 64, 1, 3, SIM_MISSING_WAIT, "load", copy},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) async_expect(&cases[i], SEEDS, NULL);
    async_expect(&(struct async_case){"by_mbarrier", by_mbarrier, 64, 1, 1, SIM_CLEAN, "", ""}, SEEDS, NULL);
}

/* Three groups of two copies and one that is not committed; a wait for all but `pending` groups, then number `read` of
 * the copies is read. */
enum { PAIRS = 3, NUM_COPIES = 2 * PAIRS + 1 };
static void read_after_wait(const void *args)
{
    const int variant = *(const int *)args, pending = variant / NUM_COPIES, read = variant % NUM_COPIES;
    char *shared = async_shared();
    for (int n = 0; n < NUM_COPIES; ++n) {
        sim_cp_async(shared + 16 * n, async_in, 16, 16);
        if (n % 2) sim_cp_async_commit();
    }
    sim_cp_async_wait((unsigned)pending);
    get(shared + 16 * read);
    sim_cp_async_wait_all();
}

Test(cp_async, a_wait_covers_all_groups_but_the_last_ones)
{
    for (int pending = 0; pending < 5; ++pending)
        for (int read = 0; read < NUM_COPIES; ++read) {
            const bool covered = read / 2 < PAIRS - pending;
            async_expect(&(struct async_case){"read_after_wait", read_after_wait, 1, 1, NUM_COPIES * pending + read,
                                              covered ? SIM_CLEAN : SIM_MISSING_WAIT, "load", "cp.async"}, 2, NULL);
        }
}

/* What has been carried out when, as the policy says: seen past the simulated GPU's back. */
static bool done[3];
static void watch_the_clock(const void *args)
{
    (void)args;
    char *shared = async_shared();
    for (int n = 0; n < 3; ++n) {
        sim_cp_async(shared + 16 * n, async_in + 4, 16, 16);
        sim_cp_async_commit();
    }
    sim_yield("others", NULL, NULL);
    sim_yield("others", NULL, NULL);
    sim_cp_async_wait(2);
    for (int n = 0; n < 3; ++n) done[n] = memcmp(shared + 16 * n, async_in + 4, 16) == 0;
    sim_cp_async_wait(0);
}

Test(cp_async, copies_are_carried_out_when_the_policy_says)
{
    bool differs = false;
    for (unsigned i = 0; i < 90; ++i) {
        const struct sim_options options = {.generation = SIM_SM_90, .async = i % 3, .seed = i / 3};
        struct sim_gpu *gpu = sim_gpu_create(&options);
        const struct async_case c = {"watch_the_clock", watch_the_clock, 1, 1, 0, SIM_CLEAN, "", ""};
        cr_assert_eq(async_run(gpu, &c), SIM_CLEAN);
        cr_assert(done[0]);
        if (options.async == SIM_ASYNC_EARLY) cr_assert(done[1] && done[2]);
        if (options.async == SIM_ASYNC_RANDOM) differs |= done[1] != done[2];
        sim_gpu_destroy(gpu);
    }
    cr_assert(differs);
}

/* ---- bulk stores and reductions ------------------------------------------------------------------------------ */

static void fill_tile(char *tile, float first)
{
    for (int i = (int)sim_thread_index(0); i < BYTES / 4; i += 32) put(tile + 4 * i, first + (float)i);
}

/* One thread stores what 32 wrote, from two tiles in turn. */
static void stores(const void *args)
{
    const int variant = *(const int *)args;
    char *shared = async_shared();
    for (int n = 0; n < 4; ++n) {
        char *tile = shared + n % 2 * BYTES;
        if (is_first()) sim_bulk_wait_read(variant == 1 ? 2 : 1);
        sim_sync_warp(~0u);
        fill_tile(tile, 1000.0f * (float)n);
        if (variant != 2) sim_fence_proxy_async_shared();
        sim_sync_warp(~0u);
        if (!is_first()) continue;
        sim_bulk_store(async_out + n * BYTES / 4, tile, BYTES);
        sim_bulk_commit();
    }
    if (variant == 3 && is_first()) sim_bulk_wait_read(0), get(async_out);
    if (variant == 4 && is_first()) sim_bulk_store(async_out + 8192, shared, 16), sim_bulk_wait(0);
    if (variant == 4) return;
    if (variant == 5) return;
    if (is_first()) sim_bulk_wait(0);
    if (variant != 6) sim_sync_warp(~0u);
    if (sim_thread_index(0) == 1) get(async_out + 5);
    if (variant == 7) sim_bulk_store(async_out + 8192, shared + 8, 16);
    if (variant == 8) sim_bulk_store(async_out + 8194, shared, 16);
    if (variant == 9) sim_bulk_store(async_out + 8192, shared, 1000);
    if (variant == 10) sim_bulk_store((float *)async_in, shared, 16);
    if (variant == 11) sim_bulk_store(async_out + 8192, async_out, 16);
    if (variant == 12) sim_bulk_store(shared + 4096, shared, 16);
    if (variant == 13) sim_bulk_store(async_out + 8192, shared + 4096, 16);
}

static void check_stores(const struct async_case *c)
{
    for (int i = 0; i < BYTES; ++i)
        cr_assert_eq(async_out[i], 1000.0f * (float)(i / 256) + (float)(i % 256), "%s", c->name);
}

static float from_half(uint16_t bits)
{
    const int exponent = bits >> 10 & 31;
    const float x = ldexpf((float)(bits & 1023) + (exponent ? 1024.0f : 0.0f), (exponent ? exponent : 1) - 25);
    return bits & 0x8000 ? -x : x;
}

static float from_bf16(uint16_t bits)
{
    const uint32_t wide = (uint32_t)bits << 16;
    float x;
    memcpy(&x, &wide, sizeof x);
    return x;
}

/* Two CTAs of 32 threads add the same 16-bit, or 32-bit, numbers of `in` to zeros. */
static void reductions(const void *args)
{
    static const enum sim_reduce ops[] = {SIM_ADD_FP32, SIM_ADD_FP16, SIM_ADD_BF16};
    const int variant = *(const int *)args;
    char *shared = async_shared();
    fill_tile(shared, 0.0f);
    sim_fence_proxy_async_shared();
    sim_sync_warp(~0u);
    if (is_first() && sim_cluster_rank() == 0) {
        for (int n = 0; n < 3; ++n) {
            for (int i = 0; i < BYTES / 4; i++) put(async_out + 256 * n + i, get(async_in + i));
            for (int i = 0; i < BYTES / 4; i++) put(async_out + 1024 + 256 * n + i, get(async_in + i));
        }
        sim_fence_proxy_async();
    }
    sim_cluster_arrive(false);
    sim_cluster_wait();
    if (is_first()) {
        for (int n = 0; n < 3; ++n) sim_bulk_reduce(async_out + 256 * n, shared, BYTES, ops[n]);
        if (variant == 1) sim_bulk_store(async_out, shared, 16);
        sim_bulk_commit();
        sim_bulk_wait(0);
    }
}

static float half_of(const float *array, int i, int op)
{
    const uint16_t *halves = (const uint16_t *)array;
    return op == 0 ? array[i] : op == 1 ? from_half(halves[i]) : from_bf16(halves[i]);
}

/* a + b in the format: what it holds is one of the two numbers of the format nearest to the sum. */
static bool is_sum(float result, float a, float b, int op)
{
    const double exact = (double)a + b;
    const double unit = op == 0 ? 0x1p-24 : op == 1 ? 0x1p-11 : 0x1p-8;
    return fabs(result - exact) <= unit * fabs(exact) + (op == 1 ? 0x1p-25 : 0x1p-134);
}

static void check_reductions(const struct async_case *c)
{
    float tile[256];
    for (int i = 0; i < 256; ++i) tile[i] = (float)i;
    for (int op = 0; op < 3; ++op) {
        const float *before = async_out + 1024 + 256 * op, *after = async_out + 256 * op;
        for (int i = 0; i < (op ? 512 : 256); ++i) {
            const float a = half_of(before, i, op), b = half_of(tile, i, op), x = half_of(after, i, op);
            if (!(fabsf(a) < 32768 && fabsf(b) < 16384)) continue; /* infinities, and what overflows */
            cr_assert(is_sum(x, a, b, op), "%s, %d, op %d: %a + %a gave %a", c->name, i, op, a, b, x);
        }
    }
}

/* Sums half-way between two numbers of the format. */
static const struct tie {
    uint16_t fp16[3], bf16[3]; /* a, b, their sum */
} ties[] = {
    {{0x3c00, 0x1000, 0x3c00}, {0x3f80, 0x3b80, 0x3f80}}, /* 1 + half an ulp */
    {{0x3c01, 0x1000, 0x3c02}, {0x3f81, 0x3b80, 0x3f82}}, /* 1 + ulp + half an ulp */
    {{0xbc01, 0x9000, 0xbc02}, {0xbf81, 0xbb80, 0xbf82}}, /* and below 0 */
    {{0x7bff, 0x7bff, 0x7c00}, {0x7f7f, 0x7f7f, 0x7f80}}, /* too large */
    {{0x0001, 0x0002, 0x0003}, {0x0001, 0x0002, 0x0003}}, /* subnormal */
};
enum { NUM_TIES = sizeof ties / sizeof ties[0] };

static void add_ties(const void *args)
{
    (void)args;
    char *shared = async_shared();
    for (int f = 0; f < 2; ++f) {
        uint16_t *a = (uint16_t *)async_out + 8 * f, *b = (uint16_t *)shared + 8 * f;
        for (int i = 0; i < 8; ++i) {
            const struct tie *tie = &ties[i % NUM_TIES];
            sim_watch_write(&a[i], 2, 2, "store", SIM_SITE);
            sim_watch_write(&b[i], 2, 2, "store", SIM_SITE);
            a[i] = f ? tie->bf16[0] : tie->fp16[0];
            b[i] = f ? tie->bf16[1] : tie->fp16[1];
        }
    }
    sim_fence_proxy_async();
    sim_bulk_reduce(async_out, shared, 16, SIM_ADD_FP16);
    sim_bulk_reduce((char *)async_out + 16, shared + 16, 16, SIM_ADD_BF16);
    sim_bulk_commit();
    sim_bulk_wait(0);
}

static void check_ties(const struct async_case *c)
{
    const uint16_t *sums = (const uint16_t *)async_out;
    for (int i = 0; i < 8; ++i) {
        cr_assert_eq(sums[i], ties[i % NUM_TIES].fp16[2], "%s, fp16 %d: %04x", c->name, i, sums[i]);
        cr_assert_eq(sums[8 + i], ties[i % NUM_TIES].bf16[2], "%s, bf16 %d: %04x", c->name, i, sums[8 + i]);
    }
}

Test(bulk, sums_are_rounded_to_nearest_even)
{
    async_expect(&(struct async_case){"add_ties", add_ties, 1, 1, 0, SIM_CLEAN, "", ""}, SEEDS, check_ties);
}

/* ---- bulk loads to other CTAs --------------------------------------------------------------------------------- */

/* CTA 1 loads for all three; then each sends its tile to the next. */
static void multicast(const void *args)
{
    const int variant = *(const int *)args;
    char *shared = async_shared(), *first = shared + 8192, *second = first + 8;
    const unsigned rank = sim_cluster_rank(), next = (rank + 1) % 3;
    if (is_first()) sim_mbarrier_init(first, 1);
    make_barrier(second, 1);
    if (is_first()) {
        sim_mbarrier_arrive_expect_tx(first, BYTES);
        sim_mbarrier_arrive_expect_tx(second, BYTES);
        if (rank == 1) sim_bulk_load(shared, async_in, BYTES, first, variant == 1 ? 9 : 7);
        wait_for(first, 0);
        void *to = sim_cluster_map(shared + BYTES, next), *barrier = sim_cluster_map(second, next);
        if (variant == 2) barrier = second;
        sim_bulk_copy_cluster(to, shared, BYTES, barrier);
    }
    sim_sync_warp(~0u);
    if (variant == 3) sim_cluster_arrive(false), sim_cluster_wait(); /* the copies have been issued */
    else wait_for(second, 0);
    for (int i = (int)sim_thread_index(0); i < BYTES / 4; i += 32)
        put(async_out + rank * BYTES / 4 + i, get(shared + BYTES + 4 * i));
}

static void check_multicast(const struct async_case *c)
{
    for (int i = 0; i < 3 * BYTES / 4; ++i) cr_assert_eq(async_out[i], async_in[i % (BYTES / 4)], "%s", c->name);
}

Test(bulk, what_is_copied_arrives)
{
    async_expect(&(struct async_case){"stores", stores, 32, 1, 0, SIM_CLEAN, "", ""}, MANY_SEEDS, check_stores);
    async_expect(&(struct async_case){"reductions", reductions, 32, 1, 0, SIM_CLEAN, "", ""}, SEEDS, check_reductions);
    async_expect(&(struct async_case){"reductions", reductions, 32, 2, 0, SIM_CLEAN, "", ""}, SEEDS, NULL);
    async_expect(&(struct async_case){"multicast", multicast, 32, 3, 0, SIM_CLEAN, "", ""}, MANY_SEEDS,
                 check_multicast);
}

Test(bulk, each_misuse_is_found)
{
    static const char copy[] = "cp.async.bulk";
    static const struct async_case cases[] = {
        {"stores", stores, 32, 1, 1, SIM_MISSING_WAIT, "store", "reads"},
        {"stores", stores, 32, 1, 2, SIM_MISSING_PROXY_FENCE, copy, "fence.proxy.async"},
        {"stores", stores, 32, 1, 3, SIM_MISSING_WAIT, "load", "writes"},
        {"stores", stores, 32, 1, 4, SIM_LEFT_PENDING, copy, "wait_group.read"},
        {"stores", stores, 32, 1, 5, SIM_LEFT_PENDING, copy, "wait_group.read"},
        {"stores", stores, 32, 1, 7, SIM_MISALIGNED, copy, "16"},
        {"stores", stores, 32, 1, 8, SIM_MISALIGNED, copy, "16"},
        {"stores", stores, 32, 1, 9, SIM_BAD_OPERAND, copy, "1000 bytes"},
        {"stores", stores, 32, 1, 10, SIM_OUTSIDE_OUTPUTS, copy, "in + 0"},
        {"stores", stores, 32, 1, 11, SIM_OUT_OF_BOUNDS, copy, "shared memory"},
        {"stores", stores, 32, 1, 12, SIM_OUT_OF_BOUNDS, copy, "global memory"},
        {"stores", stores, 32, 1, 13, SIM_UNINITIALISED, copy, "Nobody has written"},
        {"reductions", reductions, 32, 1, 1, SIM_MISSING_WAIT, copy, "cp.reduce.async.bulk"},
        {"multicast", multicast, 32, 3, 1, SIM_BAD_OPERAND, copy, "mask 0x9"},
        {"multicast", multicast, 32, 3, 2, SIM_BAD_OPERAND, copy, "CTA that the bytes go to"},
        {"multicast", multicast, 32, 3, 3, SIM_MISSING_WAIT, "load", copy},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) async_expect(&cases[i], SEEDS, NULL);
}

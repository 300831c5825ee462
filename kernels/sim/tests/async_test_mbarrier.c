/* async_test_mbarrier.c - mbarriers: phases, counts of threads and bytes, who may use them when. */
#include "kernels/sim/tests/async_test.h"

#include <criterion/criterion.h>
#include <string.h>

enum { SEEDS = 10, MANY_SEEDS = 60, BYTES = 1024, TURNS = 5 };

/* ---- kernels that are right as variant 0 -------------------------------------------------------------------- */

/* 64 threads hand numbers on to their mirror image, a phase each time. */
static void exchange(const void *args)
{
    const int variant = *(const int *)args, t = (int)sim_thread_index(0);
    char *shared = async_shared(), *barrier = shared + 2048;
    make_barrier(barrier, 64);
    for (int n = 0; n < TURNS; ++n) {
        float *at = (float *)shared + n % 2 * 64;
        put(at + t, get(async_in + 64 * n + t));
        sim_mbarrier_arrive(barrier, variant == 1 && n == 3 && t == 7 ? 70 : 1);
        wait_for(barrier, variant == 2 && n == 1 ? 0 : n % 2);
        put(async_out + 64 * n + t, get(at + 63 - t));
    }
    if (variant == 3 && t == 1) sim_mbarrier_arrive(barrier, 1);
    if (variant == 4 && t == 1) sim_mbarrier_expect_tx(barrier, 16);
    if (variant == 5 && t == 1) sim_mbarrier_expect_tx(barrier, 1 << 20);
    if (variant == 6 && t == 1) put(barrier + 4, 0.0f);
    if (variant == 7) sim_mbarrier_try_wait(barrier, 2);
    if (variant == 8 && t == 1) sim_mbarrier_arrive(barrier, 0);
    if (variant == 9 && t == 1) sim_mbarrier_arrive(barrier + 8, 1);
    if (variant == 10 && t == 1) sim_mbarrier_arrive(barrier + 4, 1);
    if (variant == 11 && t == 1) sim_mbarrier_arrive(async_out, 1);
    if (variant == 12 && t == 1) sim_mbarrier_init(barrier, 1);
    if (variant == 13 && t == 1) sim_mbarrier_init(barrier + 8, 0);
    if (variant == 14 && t == 1) sim_mbarrier_init(barrier + 8, 1 << 20);
    if (variant == 15 && t == 0) sim_mbarrier_arrive(barrier, 1), sim_mbarrier_inval(barrier);
    if (variant == 16) wait_for(barrier, TURNS % 2);
    if (variant == 17 && t == 1) sim_mbarrier_init(shared + ASYNC_SHARED, 1);
    if (variant == 18 && t == 0) put(shared + 2064, 1.0f);
    if (variant == 18 && t == 1) sim_mbarrier_init(shared + 2064, 1);
    sim_sync_threads();
    if (is_first()) sim_mbarrier_inval(barrier);
    sim_sync_threads();
    if (variant == 19 && t == 1) sim_mbarrier_arrive(barrier, 1);
    if (t == 1) put(barrier, 0.0f); /* ordinary memory again */
}

static void check_exchange(const struct async_case *c)
{
    for (int i = 0; i < 64 * TURNS; ++i)
        cr_assert_eq(async_out[i], async_in[i / 64 * 64 + 63 - i % 64], "%s, %d", c->name, i);
}

/* Whoever comes second learns of the barrier by an order of events that no synchronisation makes. */
static void unordered(const void *args)
{
    const int variant = *(const int *)args;
    char *barrier = async_shared();
    if (is_first()) {
        sim_mbarrier_init(barrier, 2);
        async_flag = 1;
    }
    if (!variant) sim_sync_threads();
    while (!async_flag) sim_yield("a flag", NULL, NULL);
    sim_mbarrier_arrive(barrier, 1);
    wait_for(barrier, 0);
}

/* Each of three threads in turn lets one phase pass; the last one waits for its own and sees what came before it. */
static void relay(const void *args)
{
    const int variant = *(const int *)args, t = (int)sim_thread_index(0);
    char *shared = async_shared(), *barrier = shared + 64;
    make_barrier(barrier, 1);
    while (async_flag < t) sim_yield("a flag", NULL, NULL);
    if (variant != t + 1) put(shared + 4 * t, 5.0f);
    sim_mbarrier_arrive(barrier, 1);
    if (variant == t + 1) put(shared + 4 * t, 5.0f); /* too late */
    async_flag = t + 1;
    if (t < 2) return;
    wait_for(barrier, 0);
    put(async_out, get(shared) + get(shared + 4) + get(shared + 8));
}

/* Thread 0 has arrived at the next phase when thread 1 waits for this one: what came between is not seen. */
static void early_bird(const void *args)
{
    const int variant = *(const int *)args;
    char *shared = async_shared(), *barrier = shared + 64;
    make_barrier(barrier, 2);
    sim_mbarrier_arrive(barrier, 1);
    if (is_first()) {
        wait_for(barrier, 0);
        put(shared, 5.0f);
        sim_mbarrier_arrive(barrier, 1);
        async_flag = 1;
    } else {
        while (!async_flag) sim_yield("a flag", NULL, NULL);
        wait_for(barrier, 0);
        if (variant) get(shared);
        sim_mbarrier_arrive(barrier, 1);
        wait_for(barrier, 1);
        put(async_out, get(shared));
    }
}

/* CTA 0 waits for arrivals from both. */
static void arrive_far(const void *args)
{
    const int variant = *(const int *)args;
    char *shared = async_shared(), *barrier = shared + 64;
    if (is_first()) sim_mbarrier_init(barrier, 2);
    if (is_first() && variant != 1) sim_fence_mbarrier_init();
    sim_cluster_arrive(false);
    sim_cluster_wait();
    if (is_first()) {
        char *far = sim_cluster_map(barrier, 0);
        put(sim_cluster_map(shared + 4 * sim_cluster_rank(), 0), 3.0f + (float)sim_cluster_rank());
        if (variant == 3) sim_mbarrier_arrive(far, 1);
        else if (variant == 4) sim_mbarrier_expect_tx(far, 16);
        else if (variant == 5) sim_mbarrier_arrive_expect_tx(far, 16);
        else sim_mbarrier_arrive_cluster(far, 1);
        if (sim_cluster_rank() == 0) {
            wait_for(barrier, 0);
            put(async_out, get(shared) * get(shared + 4));
        } else if (variant == 2) {
            wait_for(far, 0);
        }
    }
}

static void check_far(const struct async_case *c) { cr_assert_eq(async_out[0], 12.0f, "%s", c->name); }

/* Bytes and arrivals in every order; two loads a phase. */
static void two_loads(const void *args)
{
    const int variant = *(const int *)args;
    char *shared = async_shared(), *barrier = shared + 8192;
    if (is_first()) sim_mbarrier_init(barrier, 2);
    if (is_first() && variant != 1) sim_fence_mbarrier_init();
    sim_sync_threads();
    for (int n = 0; n < 4; ++n) {
        char *tile = shared + n * 2 * BYTES;
        const float *in = async_in + n * 2 * BYTES / 4;
        if (sim_thread_index(0) == 0) {
            if (n % 2) sim_mbarrier_expect_tx(barrier, BYTES);
            if (n % 2) sim_mbarrier_arrive(barrier, 1);
            sim_bulk_load(tile, in, BYTES, barrier, 0);
            if (n % 2 == 0) sim_mbarrier_arrive_expect_tx(barrier, BYTES);
        } else if (sim_thread_index(0) == 1) {
            sim_bulk_load(tile + BYTES, in + BYTES / 4, BYTES, barrier, 0);
            sim_mbarrier_arrive_expect_tx(barrier, variant == 3 && n == 3 ? BYTES - 16 : BYTES);
        }
        if (variant == 2 && n == 3) return;
        wait_for(barrier, n % 2);
        for (int i = (int)sim_thread_index(0); i < 2 * BYTES / 4; i += 32)
            put(async_out + n * 2 * BYTES / 4 + i, get(tile + 4 * i));
        sim_sync_warp(~0u); /* else two threads could go on by two phases */
    }
}

static void check_two_loads(const struct async_case *c)
{
    for (int i = 0; i < 8 * BYTES / 4; ++i) cr_assert_eq(async_out[i], async_in[i], "%s, %d", c->name, i);
}

/* A thread loads to each of many barriers, waits for them from the last to the first, and reads what the first brought;
 * or, wrongly, before it has waited for the first. */
enum { MANY_BARRIERS = 200 };
static void many_barriers(const void *args)
{
    const int variant = *(const int *)args;
    char *shared = async_shared(), *barriers = shared + 16 * MANY_BARRIERS;
    for (int n = 0; n < MANY_BARRIERS; ++n) make_barrier(barriers + 8 * n, 1);
    for (int n = 0; n < MANY_BARRIERS; ++n) {
        sim_mbarrier_arrive_expect_tx(barriers + 8 * n, 16);
        sim_bulk_load(shared + 16 * n, async_in + 4 * n, 16, barriers + 8 * n, 0);
    }
    for (int n = MANY_BARRIERS; n-- > 0;) {
        if (n == 0 && variant == 1) get(shared);
        wait_for(barriers + 8 * n, 0);
    }
    get(shared);
}

/* One phase opens when only one of two loads of one size has come: the other's bytes are not to be read. */
static void one_of_two(const void *args)
{
    const int which = *(const int *)args - 1;
    char *shared = async_shared(), *barrier = shared + 8192;
    make_barrier(barrier, 1);
    if (is_first()) {
        sim_mbarrier_arrive_expect_tx(barrier, BYTES);
        sim_bulk_load(shared, async_in, BYTES, barrier, 0);
        sim_bulk_load(shared + BYTES, async_in, BYTES, barrier, 0);
        wait_for(barrier, 0);
        if (which < 0) {
            sim_mbarrier_arrive_expect_tx(barrier, BYTES);
            wait_for(barrier, 1);
        }
        get(shared);
        get(shared + BYTES);
    }
}

/* ---- tests -------------------------------------------------------------------------------------------------- */

Test(mbarrier, phases_hand_over_what_was_written_before_them)
{
    async_expect(&(struct async_case){"exchange", exchange, 64, 1, 0, SIM_CLEAN, "", ""}, MANY_SEEDS, check_exchange);
    async_expect(&(struct async_case){"two_loads", two_loads, 32, 1, 0, SIM_CLEAN, "", ""}, MANY_SEEDS,
                 check_two_loads);
    async_expect(&(struct async_case){"relay", relay, 3, 1, 0, SIM_CLEAN, "", ""}, SEEDS, NULL);
    async_expect(&(struct async_case){"early_bird", early_bird, 2, 1, 0, SIM_CLEAN, "", ""}, SEEDS, NULL);
    async_expect(&(struct async_case){"arrive_far", arrive_far, 32, 2, 0, SIM_CLEAN, "", ""}, MANY_SEEDS, check_far);
    async_expect(&(struct async_case){"one_of_two", one_of_two, 32, 1, 0, SIM_CLEAN, "", ""}, SEEDS, NULL);
}

Test(mbarrier, each_misuse_is_found)
{
    static const char arrive[] = "mbarrier.arrive", init[] = "mbarrier.init", wait[] = "mbarrier.try_wait",
                      load[] = "cp.async.bulk";
    static const struct async_case cases[] = {
        {"exchange", exchange, 64, 1, 1, SIM_BARRIER_COUNT, arrive, "70 arrivals"},
        {"exchange", exchange, 64, 1, 2, SIM_WRONG_PARITY, wait, "parity 0"},
        {"exchange", exchange, 64, 1, 3, SIM_BAD_OPERAND, "mbarrier.inval", "in use"},
        {"exchange", exchange, 64, 1, 4, SIM_BAD_OPERAND, "mbarrier.inval", "in use"},
        {"exchange", exchange, 64, 1, 5, SIM_BAD_OPERAND, "mbarrier.expect_tx", "1048576"},
        {"exchange", exchange, 64, 1, 6, SIM_RACE, "store", "mbarrier object"},
        {"exchange", exchange, 64, 1, 7, SIM_BAD_OPERAND, wait, "parity is 2"},
        {"exchange", exchange, 64, 1, 8, SIM_BAD_OPERAND, arrive, "0 arrivals"},
        {"exchange", exchange, 64, 1, 9, SIM_UNINITIALISED, arrive, "mbarrier.init makes one"},
        {"exchange", exchange, 64, 1, 10, SIM_MISALIGNED, arrive, "multiple of 8"},
        {"exchange", exchange, 64, 1, 11, SIM_BAD_OPERAND, arrive, "shared memory"},
        {"exchange", exchange, 64, 1, 12, SIM_BAD_OPERAND, init, "already"},
        {"exchange", exchange, 64, 1, 13, SIM_BAD_OPERAND, init, "0 arrivals"},
        {"exchange", exchange, 64, 1, 14, SIM_BAD_OPERAND, init, "1048576 arrivals"},
        {"exchange", exchange, 64, 1, 15, SIM_BAD_OPERAND, "mbarrier.inval", "in use"},
        {"exchange", exchange, 64, 1, 16, SIM_DEADLOCK, wait, "parity 1"},
        {"exchange", exchange, 64, 1, 17, SIM_OUT_OF_BOUNDS, "mbarrier", "allocation"},
        {"exchange", exchange, 64, 1, 19, SIM_UNINITIALISED, arrive, "mbarrier.inval"},
        {"unordered", unordered, 2, 1, 1, SIM_RACE, arrive, "initialised"},
        {"relay", relay, 3, 1, 1, SIM_RACE, "load", "no synchronisation"},
        {"relay", relay, 3, 1, 2, SIM_RACE, "load", "no synchronisation"},
        {"early_bird", early_bird, 2, 1, 1, SIM_RACE, "load", "no synchronisation"},
        {"arrive_far", arrive_far, 32, 2, 1, SIM_MISSING_PROXY_FENCE, arrive, "fence.mbarrier_init"},
        {"arrive_far", arrive_far, 32, 2, 2, SIM_BAD_OPERAND, wait, "own CTA"},
        {"arrive_far", arrive_far, 32, 2, 3, SIM_BAD_OPERAND, arrive, "own CTA"},
        {"arrive_far", arrive_far, 32, 2, 4, SIM_BAD_OPERAND, "mbarrier.expect_tx", "own CTA"},
        {"arrive_far", arrive_far, 32, 2, 5, SIM_BAD_OPERAND, "mbarrier.arrive.expect_tx", "own CTA"},
        {"many_barriers", many_barriers, 1, 1, 1, SIM_MISSING_WAIT, "load", "has not been waited for"},
        {"two_loads", two_loads, 32, 1, 1, SIM_MISSING_PROXY_FENCE, load, "async proxy"},
        {"two_loads", two_loads, 32, 1, 2, SIM_LEFT_PENDING, load, "no thread has waited"},
        {"two_loads", two_loads, 32, 1, 3, SIM_DEADLOCK, wait, "parity 1"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) async_expect(&cases[i], SEEDS, NULL);
    async_expect(&(struct async_case){"unordered", unordered, 2, 1, 0, SIM_CLEAN, "", ""}, SEEDS, NULL);
    async_expect(&(struct async_case){"many_barriers", many_barriers, 1, 1, 0, SIM_CLEAN, "", ""}, SEEDS, NULL);
}

/* Both come first on some schedule: either way the bytes of the later one are not ready. */
Test(mbarrier, a_load_that_a_phase_did_not_count_is_not_to_be_read)
{
    bool found[2] = {false, false};
    for (unsigned seed = 0; seed < 40; ++seed) {
        const struct sim_options options = {.generation = SIM_SM_90, .async = SIM_ASYNC_LATE, .seed = seed};
        const struct async_case c = {"one_of_two", one_of_two, 32, 1, 1, SIM_MISSING_WAIT, "load", ""};
        struct sim_gpu *gpu = sim_gpu_create(&options);
        const enum sim_rule rule = async_run(gpu, &c);
        if (rule == SIM_MISSING_WAIT) found[strstr(sim_last_report(gpu)->address, "byte 0 ") == NULL] = true;
        cr_assert_eq(rule, SIM_MISSING_WAIT, "seed %u: %s", seed, sim_last_report(gpu)->text);
        sim_gpu_destroy(gpu);
    }
    cr_assert(found[0] && found[1]);
}

/* The kernel's one wait, without a loop, is told "not yet" under some seeds. */
static int gave_up;
static void impatient(const void *args)
{
    (void)args;
    char *barrier = async_shared();
    make_barrier(barrier, 1);
    if (is_first()) gave_up = !sim_mbarrier_try_wait(barrier, 0);
    sim_sync_threads();
    if (!is_first()) sim_mbarrier_arrive(barrier, 1);
}

Test(mbarrier, try_wait_may_give_up)
{
    int times = 0;
    for (unsigned seed = 0; seed < 100; ++seed) {
        const struct sim_options options = {.generation = SIM_SM_90, .seed = seed};
        const struct async_case c = {"impatient", impatient, 2, 1, 0, SIM_CLEAN, "", ""};
        struct sim_gpu *gpu = sim_gpu_create(&options);
        gave_up = 0;
        const enum sim_rule rule = async_run(gpu, &c);
        cr_assert_eq(rule, gave_up ? SIM_CLEAN : SIM_DEADLOCK, "seed %u: %s", seed, sim_last_report(gpu)->text);
        times += gave_up;
        sim_gpu_destroy(gpu);
    }
    cr_assert(times > 2 && times < 50, "%d of 100", times);
}

/* What a thread polls with test_wait, another one makes true. */
static void poll(const void *args)
{
    (void)args;
    char *shared = async_shared(), *barrier = shared + 64;
    make_barrier(barrier, 1);
    if (is_first()) {
        while (!sim_mbarrier_test_wait(barrier, 0)) {
        }
        put(async_out, get(shared));
    } else {
        put(shared, 7.0f);
        sim_mbarrier_arrive(barrier, 1);
    }
}

static void check_poll(const struct async_case *c) { cr_assert_eq(async_out[0], 7.0f, "%s", c->name); }

Test(mbarrier, test_wait_lets_others_go_on)
{
    async_expect(&(struct async_case){"poll", poll, 2, 1, 0, SIM_CLEAN, "", ""}, MANY_SEEDS, check_poll);
}

/* What the parity of a phase means: fresh, after one, after two. */
static void parities(const void *args)
{
    (void)args;
    char *barrier = async_shared();
    make_barrier(barrier, 1);
    for (unsigned phases = 0; phases < 4; ++phases) {
        if (sim_mbarrier_test_wait(barrier, phases % 2)) put(async_out, -1.0f);
        if (!sim_mbarrier_test_wait(barrier, 1 - phases % 2)) put(async_out, -2.0f);
        sim_mbarrier_arrive(barrier, 1);
    }
    put(async_out, get(async_in));
}

static void check_parities(const struct async_case *c) { cr_assert_eq(async_out[0], async_in[0], "%s", c->name); }

Test(mbarrier, a_fresh_one_passes_parity_1_and_not_0)
{
    async_expect(&(struct async_case){"parities", parities, 1, 1, 0, SIM_CLEAN, "", ""}, SEEDS, check_parities);
}

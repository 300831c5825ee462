/* core_test_barrier.c - barriers of CTAs and clusters, registers of warpgroups. */
#include "kernels/sim/tests/core_test.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* ---- order ------------------------------------------------------------------------------------------------- */

enum { ROUNDS = 4 };

/* Who is how far: a barrier lets nobody see another less far than itself. */
struct progress {
    unsigned round[512];
    unsigned wrong;
};

static void advance(struct progress *p, unsigned agent, unsigned first, unsigned n, void (*meet)(void))
{
    for (unsigned round = 1; round <= ROUNDS; ++round) {
        p->round[agent] = round;
        meet();
        for (unsigned i = first; i < first + n; ++i) p->wrong += p->round[i] < round || p->round[i] > round + 1;
    }
}

static void advance_block(const void *args)
{
    advance(*(struct progress *const *)args, sim_self->linear, 0, sim_self->cta->num_threads, sim_sync_threads);
}

static void sync_name_3(void)
{
    sim_named_barrier_sync(3, 64);
}

static void sync_name_15(void)
{
    sim_named_barrier_sync(15, 96);
}

static void advance_named(const void *args)
{
    struct progress *p = *(struct progress *const *)args;
    if (sim_self->linear < 64) advance(p, sim_self->linear, 0, 64, sync_name_3);
    else advance(p, sim_self->linear, 64, 70, sync_name_15);
}

static void arrive_and_wait(void)
{
    sim_cluster_arrive(false);
    sim_pass();
    sim_cluster_wait();
}

static void advance_cluster(const void *args)
{
    struct progress *p = *(struct progress *const *)args;
    advance(p, sim_self->agent, 0, sim_self->cta->cluster->num_threads, arrive_and_wait);
}

static void expect_order(const char *name, void (*body)(const void *args), unsigned threads, unsigned cluster,
                         uint64_t waits)
{
    for (unsigned seed = 0; seed < NUM_SEEDS / 2; ++seed) {
        struct progress progress = {{0}, 0}, *pointer = &progress;
        struct sim_launch launch = core_launch(name, body, threads, &pointer, sizeof pointer);
        launch.grid[1] = launch.cluster[1] = cluster;
        const struct sim_options options = core_options(seed);
        struct sim_gpu *gpu = sim_gpu_create(&options);
        cr_assert_eq(sim_launch(gpu, &launch), SIM_CLEAN, "%s", sim_last_report(gpu)->text);
        cr_assert_eq(progress.wrong, 0, "%s, seed %u", name, seed);
        cr_assert_eq(sim_counts(gpu)->barrier_waits, waits, "%s: %u waits", name,
                     (unsigned)sim_counts(gpu)->barrier_waits);
        sim_gpu_destroy(gpu);
    }
}

Test(barriers, nobody_goes_on_before_all_have_come)
{
    expect_order("advance_block", advance_block, 70, 1, 3 * ROUNDS);
    expect_order("advance_named", advance_named, 134, 1, 5 * ROUNDS);
    expect_order("advance_cluster", advance_cluster, 48, 4, 4 * 2 * ROUNDS);
}

/* ---- what they order: the watch sees no race -------------------------------------------------------------------- */

static char room[SIM_MAX_THREADS];

enum order_case { BY_BLOCK, BY_NAME, BY_ARRIVAL, BY_CLUSTER, BY_RELAXED_CLUSTER, BY_WARP, BY_BALLOT, BY_WRONG_NAME };

/* The first half of the threads writes, in a cluster the first CTA; the second half reads. */
static void hand_over(const void *args)
{
    const enum order_case which = *(const enum order_case *)args;
    const unsigned size = sim_self->cta->cluster->num_threads, half = size / 2, agent = sim_self->agent;
    const bool writes = agent < half;
    const ptrdiff_t offset = (char *)sim_shared_dynamic(16) - sim_self->cta->window;
    char *const cell = sim_self->cta->cluster->windows + offset + agent % half;
    if (writes) sim_watch_write(cell, 1, 1, "store", SIM_SITE);
    switch (which) {
    case BY_BLOCK: sim_sync_threads(); break;
    case BY_NAME: sim_named_barrier_sync(1, 64); break;
    case BY_WRONG_NAME: sim_named_barrier_sync(1 + sim_self->warp->index, 32); break;
    case BY_ARRIVAL:
        if (writes) sim_named_barrier_arrive(1, 64);
        else sim_named_barrier_sync(1, 64);
        break;
    case BY_CLUSTER:
    case BY_RELAXED_CLUSTER:
        sim_cluster_arrive(which == BY_RELAXED_CLUSTER);
        sim_cluster_wait();
        break;
    case BY_WARP: sim_sync_warp(~0u); break;
    case BY_BALLOT: sim_ballot(~0u, true); break;
    }
    if (!writes) sim_watch_read(cell, 1, 1, "load", SIM_SITE);
    if (which == BY_CLUSTER) { /* nobody leaves while others read its memory */
        sim_cluster_arrive(false);
        sim_cluster_wait();
    }
}

static void expect_ordered(enum order_case which, unsigned threads, unsigned cluster, enum sim_rule rule)
{
    struct sim_launch launch = core_launch("hand_over", hand_over, threads, &which, sizeof which);
    launch.grid[0] = launch.cluster[0] = cluster;
    launch.dynamic_shared = sizeof room;
    for (unsigned seed = 0; seed < 200; ++seed) {
        const struct sim_options options = core_options(seed);
        struct sim_gpu *gpu = sim_gpu_create(&options);
        const enum sim_rule found = sim_launch(gpu, &launch);
        cr_assert(found == rule || (rule == SIM_RACE && found == SIM_UNINITIALISED), "case %d, seed %u: %s", which,
                  seed, sim_last_report(gpu)->text);
        sim_gpu_destroy(gpu);
    }
}

Test(barriers, order_what_was_done_before_them)
{
    expect_ordered(BY_BLOCK, 64, 1, SIM_CLEAN);
    expect_ordered(BY_NAME, 64, 1, SIM_CLEAN);
    expect_ordered(BY_ARRIVAL, 64, 1, SIM_CLEAN);
    expect_ordered(BY_CLUSTER, 64, 2, SIM_CLEAN);
    expect_ordered(BY_WARP, 32, 1, SIM_CLEAN);
    expect_ordered(BY_WRONG_NAME, 64, 1, SIM_RACE);
    expect_ordered(BY_RELAXED_CLUSTER, 64, 2, SIM_RACE);
    expect_ordered(BY_BALLOT, 32, 1, SIM_RACE);
}

/* ---- what is wrong ------------------------------------------------------------------------------------------- */

enum mistake {
    NO_SUCH_NUMBER,
    ODD_COUNT,
    TOO_MANY,
    TWO_COUNTS,
    TWICE,
    TWO_PLACES,
    TWO_PLACES_OF_BLOCK,
    HALF_WARP_ELSEWHERE,
    LEFT_OVER,
    NEVER_COMPLETE,
    CLUSTER_TWICE,
    CLUSTER_WAIT_FIRST,
    CLUSTER_NO_WAIT,
    CLUSTER_ON_SM_80,
    MAP_BEYOND,
    MAP_ELSEWHERE
};

/* Two places that no compiler makes one. */
static volatile int place;

static void sync_here(void)
{
    sim_named_barrier_sync(1, 96);
    place = 0;
}

static void sync_there(void)
{
    place = 1;
    sim_named_barrier_sync(1, 96);
}

static void mistake(const void *args)
{
    const unsigned i = sim_self->linear;
    switch (*(const enum mistake *)args) {
    case NO_SUCH_NUMBER: sim_named_barrier_sync(16, 64); break;
    case ODD_COUNT: sim_named_barrier_sync(1, 40); break;
    case TOO_MANY: sim_named_barrier_arrive(1, 128); break;
    case TWO_COUNTS: sim_named_barrier_sync(1, i < 32 ? 64 : 96); break;
    case TWICE:
        sim_named_barrier_arrive(1, 96);
        sim_named_barrier_arrive(1, 96);
        break;
    case TWO_PLACES:
        if (i % 32 < 16) sync_here();
        else sync_there();
        break;
    case TWO_PLACES_OF_BLOCK:
        if (i < 64) sim_sync_threads(), place = 0;
        else place = 1, sim_sync_threads();
        break;
    case HALF_WARP_ELSEWHERE:
        if (i % 32 < 16) sim_named_barrier_sync(1, 96);
        else sim_named_barrier_sync(2, 96);
        break;
    case LEFT_OVER:
        if (i < 32) sim_named_barrier_arrive(7, 64);
        break;
    case NEVER_COMPLETE: sim_named_barrier_sync(1 + (i < 32), 96); break;
    case CLUSTER_TWICE:
        sim_cluster_arrive(true);
        sim_cluster_arrive(true);
        break;
    case CLUSTER_WAIT_FIRST: sim_cluster_wait(); break;
    case CLUSTER_NO_WAIT: sim_cluster_arrive(false); break;
    case CLUSTER_ON_SM_80: sim_cluster_arrive(false); break;
    case MAP_BEYOND: sim_cluster_map(sim_self->cta->window + SIM_WINDOW_RESERVED, 1); break;
    case MAP_ELSEWHERE: sim_cluster_map(&room, 0); break;
    }
}

static void expect_mistake(enum mistake which, enum sim_rule rule, const char *instruction, const char *words)
{
    const struct sim_launch launch = core_launch("mistake", mistake, 96, &which, sizeof which);
    expect_finding(&launch, rule, instruction, words);
}

Test(barriers, mistakes_are_found)
{
    expect_mistake(NO_SUCH_NUMBER, SIM_BAD_OPERAND, "bar.sync", "barriers 0 to 15");
    expect_mistake(ODD_COUNT, SIM_BAD_OPERAND, "bar.sync", "multiple of 32");
    expect_mistake(TOO_MANY, SIM_BARRIER_COUNT, "bar.arrive", "the CTA has 96");
    expect_mistake(TWO_COUNTS, SIM_BARRIER_COUNT, "bar.sync", " threads at barrier 1, where bar.sync of thread (");
    expect_mistake(TWICE, SIM_BARRIER_COUNT, "bar.arrive", "again before");
    expect_mistake(TWO_PLACES, SIM_DIVERGED, "bar.sync", "Other threads of the warp came");
    expect_mistake(TWO_PLACES_OF_BLOCK, SIM_DIVERGED, "bar.sync", "Other threads of the CTA came");
    expect_mistake(HALF_WARP_ELSEWHERE, SIM_DIVERGED, "bar.sync", "waits in bar.sync ");
    expect_mistake(LEFT_OVER, SIM_LEFT_PENDING, "bar.arrive", "32 of 64 threads at barrier 7");
    expect_mistake(NEVER_COMPLETE, SIM_DEADLOCK, "bar.sync", "threads 0-31 wait at ");
    expect_mistake(CLUSTER_TWICE, SIM_BARRIER_COUNT, "barrier.cluster.arrive", "has not waited");
    expect_mistake(CLUSTER_WAIT_FIRST, SIM_BARRIER_COUNT, "barrier.cluster.wait", "has not arrived");
    expect_mistake(CLUSTER_NO_WAIT, SIM_LEFT_PENDING, "barrier.cluster.arrive", "without a wait");
    expect_mistake(MAP_BEYOND, SIM_BAD_OPERAND, "mapa", "Rank 1 of a cluster of 1");
    expect_mistake(MAP_ELSEWHERE, SIM_BAD_OPERAND, "mapa", "not in this CTA's shared memory");
}

/* From one CTA of a cluster to the next; from there on to nowhere. */
static void map_twice(const void *args)
{
    const bool again = *(const bool *)args;
    char *own = sim_self->cta->window + SIM_WINDOW_RESERVED + sim_self->linear;
    char *other = sim_cluster_map(own, 1 - sim_cluster_rank());
    cr_assert_eq(other - own, sim_cluster_rank() ? -SIM_WINDOW : SIM_WINDOW);
    cr_assert_eq(sim_cluster_map(own, sim_cluster_rank()), own);
    if (again) sim_cluster_map(other, sim_cluster_rank());
}

Test(clusters, map_addresses_of_their_own)
{
    bool again = false;
    struct sim_launch launch = core_launch("map_twice", map_twice, 32, &again, sizeof again);
    launch.grid[2] = launch.cluster[2] = 2;
    const struct sim_options options = core_options(0);
    expect_clean(&launch, &options);
    again = true;
    expect_finding(&launch, SIM_BAD_OPERAND, "mapa", "not in this CTA's shared memory");
}

Test(clusters, need_sm_90)
{
    const enum mistake which = CLUSTER_ON_SM_80;
    const struct sim_launch launch = core_launch("mistake", mistake, 32, &which, sizeof which);
    const struct sim_options options = {.generation = SIM_SM_80};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    cr_assert_eq(sim_launch(gpu, &launch), SIM_WRONG_GENERATION);
    sim_gpu_destroy(gpu);
}

/* ---- lanes ahead of others ------------------------------------------------------------------------------------ */

static void run_no_group(struct sim_warp *first, void *const args[SIM_WARPGROUP])
{
    (void)first, (void)args;
}

/* Who has arrived goes on, to a collective or another barrier, while lanes of its warp have not arrived. */
static void run_ahead(const void *args)
{
    (void)args;
    uint64_t none = 0;
    sim_named_barrier_arrive(1, 128);
    sim_ballot(~0u, true);
    sim_named_barrier_arrive(2, 128);
    sim_collect_warpgroup("wgmma", __builtin_return_address(0), &none, run_no_group);
    sim_named_barrier_arrive(3, 128);
    sim_sync_threads();
}

Test(barriers, let_lanes_that_arrive_run_ahead)
{
    const struct sim_launch launch = core_launch("run_ahead", run_ahead, 128, NULL, 0);
    for (unsigned seed = 0; seed < NUM_SEEDS; ++seed) {
        const struct sim_options options = core_options(seed);
        expect_clean(&launch, &options);
    }
}

/* ---- exits --------------------------------------------------------------------------------------------------- */

/* Threads that have exited are not waited for, whatever the order; one CTA of a cluster goes as a whole. */
static void exit_early(const void *args)
{
    unsigned *const left = *(unsigned *const *)args;
    const unsigned i = sim_self->linear;
    for (unsigned n = 0; sim_self->cta->rank == 1 && n < 10; ++n) sim_pass();
    if (sim_self->cta->rank == 1 || i % 32 == 5 || i >= 96) return;
    sim_sync_threads();
    if (i % 32 == 6) return;
    if (i < 64) sim_named_barrier_sync(4, 64);
    if (i == 64) return;
    sim_sync_threads();
    sim_cluster_arrive(true);
    sim_cluster_wait();
    ++*left;
}

Test(barriers, do_not_wait_for_threads_that_have_exited)
{
    for (unsigned seed = 0; seed < NUM_SEEDS; ++seed) {
        unsigned left = 0, *pointer = &left;
        struct sim_launch launch = core_launch("exit_early", exit_early, 128, &pointer, sizeof pointer);
        launch.grid[0] = launch.cluster[0] = 2;
        const struct sim_options options = core_options(seed);
        expect_clean(&launch, &options);
        cr_assert_eq(left, 96 - 3 - 3 - 1);
    }
}

/* ---- registers ----------------------------------------------------------------------------------------------- */

enum budget { HAND_OVER, ALL_ASK, UP_IS_DOWN, DOWN_IS_UP, ODD, TOO_FEW, TOO_LARGE, TWO_NUMBERS, TWICE_MORE };

/* 384 threads begin with 168 registers each: 64512 in all. */
static void budget(const void *args)
{
    const unsigned group = sim_self->linear / SIM_WARPGROUP;
    cr_assert_eq(sim_self->registers, 168);
    switch (*(const enum budget *)args) {
    case HAND_OVER:
        if (group == 0) sim_setmaxnreg(false, 24);
        else sim_setmaxnreg(true, 240);
        cr_assert_eq(sim_self->registers, group ? 240 : 24);
        break;
    case ALL_ASK: sim_setmaxnreg(true, 176); break;
    case UP_IS_DOWN: sim_setmaxnreg(true, 160); break;
    case DOWN_IS_UP: sim_setmaxnreg(false, 176); break;
    case ODD: sim_setmaxnreg(false, 100); break;
    case TOO_FEW: sim_setmaxnreg(false, 16); break;
    case TOO_LARGE: sim_setmaxnreg(true, 264); break;
    case TWO_NUMBERS: sim_setmaxnreg(false, sim_self->lane == 9 ? 32 : 40); break;
    case TWICE_MORE:
        if (group == 0) sim_setmaxnreg(false, 32);
        else sim_setmaxnreg(true, 240);
        break;
    }
}

Test(registers, go_from_warpgroup_to_warpgroup_in_every_order)
{
    const enum budget which = HAND_OVER;
    const struct sim_launch launch = core_launch("budget", budget, 384, &which, sizeof which);
    for (unsigned seed = 0; seed < 300; ++seed) {
        const struct sim_options options = core_options(seed);
        expect_clean(&launch, &options);
    }
}

static void expect_budget(enum budget which, enum sim_rule rule, const char *instruction, const char *words)
{
    const struct sim_launch launch = core_launch("budget", budget, 384, &which, sizeof which);
    expect_finding(&launch, rule, instruction, words);
}

static void ask_for_all(const void *args)
{
    (void)args;
    sim_setmaxnreg(true, 208);
}

Test(registers, mistakes_are_found)
{
    expect_budget(ALL_ASK, SIM_DEADLOCK, "setmaxnreg.inc", "wait at ");
    expect_budget(TWICE_MORE, SIM_DEADLOCK, "setmaxnreg.inc", "for setmaxnreg.inc of 9216 registers");
    expect_budget(UP_IS_DOWN, SIM_BAD_OPERAND, "setmaxnreg.inc", "has 168 registers");
    expect_budget(DOWN_IS_UP, SIM_BAD_OPERAND, "setmaxnreg.dec", "has 168 registers");
    expect_budget(ODD, SIM_BAD_OPERAND, "setmaxnreg.dec", "multiples of 8");
    expect_budget(TOO_FEW, SIM_BAD_OPERAND, "setmaxnreg.dec", "from 24 to 256");
    expect_budget(TOO_LARGE, SIM_BAD_OPERAND, "setmaxnreg.inc", "from 24 to 256");
    expect_budget(TWO_NUMBERS, SIM_DIVERGED, "setmaxnreg.dec", "for 32");
    struct sim_launch launch = core_launch("ask_for_all", ask_for_all, 256, NULL, 0);
    launch.min_blocks = 2; /* 128 registers: 32768 */
    expect_finding(&launch, SIM_DEADLOCK, "setmaxnreg.inc", "wait at ");
    launch = core_launch("ask_for_all", ask_for_all, 256, NULL, 0);
    launch.max_threads = 512; /* as above */
    expect_finding(&launch, SIM_DEADLOCK, "setmaxnreg.inc", "wait at ");
    launch.min_blocks = 0;
    expect_finding(&launch, SIM_LIMIT, "setmaxnreg.inc", "min_blocks");
    launch = core_launch("ask_for_all", ask_for_all, 128, NULL, 0);
    launch.min_blocks = 4; /* 128 registers, and no other threads to take any from */
    expect_finding(&launch, SIM_LIMIT, "setmaxnreg.inc", "the CTA has 16384 in all");
}

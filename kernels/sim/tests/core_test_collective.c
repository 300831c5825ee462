/* core_test_collective.c - instructions of warps and warpgroups. */
#include "kernels/sim/tests/core_test.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

/* ---- shfl --------------------------------------------------------------------------------------------------- */

/* As the PTX manual writes it, "shfl.sync": c holds clamp and segment mask; j is the source lane. */
static unsigned source_by_manual(enum sim_shuffle kind, unsigned lane, unsigned b, unsigned width)
{
    const unsigned c = (32 - width) << 8 | (kind == SIM_SHFL_UP ? 0 : 31);
    const unsigned bval = b & 0x1f, cval = c & 0x1f, mask = c >> 8 & 0x1f;
    const unsigned max_lane = (lane & mask) | (cval & ~mask), min_lane = lane & mask;
    unsigned j = 0;
    bool p = false;
    switch (kind) {
    case SIM_SHFL_UP: j = lane - bval; p = (int)j >= (int)max_lane; break;
    case SIM_SHFL_DOWN: j = lane + bval; p = j <= max_lane; break;
    case SIM_SHFL_XOR: j = lane ^ bval; p = j <= max_lane; break;
    case SIM_SHFL_IDX: j = min_lane | (bval & ~mask); p = j <= max_lane; break;
    }
    return p ? j : lane;
}

static void shuffle_all(const void *args)
{
    unsigned *const wrong = *(unsigned *const *)args;
    const unsigned lane = sim_self->lane, base = 1000 * sim_self->warp->index;
    for (int kind = SIM_SHFL_IDX; kind <= SIM_SHFL_XOR; ++kind)
        for (unsigned width = 1; width <= 32; width *= 2)
            for (unsigned operand = 0; operand < 34; ++operand) {
                const unsigned own = operand + (operand % 3 == 0 ? lane % 5 : 0); /* uniform and not */
                const uint32_t got = sim_shfl((enum sim_shuffle)kind, ~0u, base + lane, own, width);
                *wrong += got != base + source_by_manual((enum sim_shuffle)kind, lane, own, width);
            }
}

Test(shfl, every_kind_width_and_operand_is_the_manuals)
{
    unsigned wrong = 0, *pointer = &wrong;
    const struct sim_launch launch = core_launch("shuffle_all", shuffle_all, 64, &pointer, sizeof pointer);
    for (unsigned i = 0; i < 6; ++i) {
        struct sim_options options = core_options(i);
        options.workers = 1;
        expect_clean(&launch, &options);
    }
    cr_assert_eq(wrong, 0, "%u wrong values", wrong);
}

/* Lanes 3k, 3k + 1, 3k + 2 meet apart from each other, some more often; each group has its own mask. */
static void shuffle_in_groups(const void *args)
{
    unsigned *const sums = *(unsigned *const *)args;
    const unsigned lane = sim_self->lane, group = lane % 3, last = group == 2 ? 29 : 30 + group;
    const uint32_t members = (group == 0 ? 0x49249249u : group == 1 ? 0x92492492u : 0x24924924u);
    unsigned sum = 0;
    for (unsigned i = 0; i < 5 + 3 * group; ++i) {
        if (i % 2) sim_sync_warp(members);
        sum += sim_shfl(SIM_SHFL_IDX, members, lane + i, last, 32);
        sum += (unsigned)__builtin_popcount(sim_ballot(members, lane >= 16));
    }
    sums[sim_self->linear] = sum;
}

Test(collectives, groups_of_lanes_meet_apart_in_every_order)
{
    unsigned sums[64], *pointer = sums;
    const struct sim_launch launch = core_launch("shuffle_in_groups", shuffle_in_groups, 64, &pointer, sizeof pointer);
    for (unsigned seed = 0; seed < NUM_SEEDS; ++seed) {
        const struct sim_options options = core_options(seed);
        memset(sums, 0xff, sizeof sums);
        expect_clean(&launch, &options);
        for (unsigned i = 0; i < 64; ++i) {
            const unsigned group = i % 32 % 3, last = group == 2 ? 29 : 30 + group, times = 5 + 3 * group;
            const unsigned upper = group == 0 ? 5 : group == 1 ? 6 : 5; /* 18 21 24 27 30, 16 19 .. 31, 17 20 .. 29 */
            cr_assert_eq(sums[i], times * last + times * (times - 1) / 2 + times * upper, "thread %u", i);
        }
    }
}

/* Lanes that have exited need not be named or waited for; the last warp has 8 lanes. */
static void leave_early(const void *args)
{
    unsigned *const ballots = *(unsigned *const *)args;
    if (sim_self->lane % 4 == 3) return;
    ballots[sim_self->linear] = sim_ballot(~0u, true);
    sim_sync_warp(~0u);
}

Test(collectives, go_on_without_lanes_that_have_exited)
{
    unsigned ballots[40], *pointer = ballots;
    const struct sim_launch launch = core_launch("leave_early", leave_early, 40, &pointer, sizeof pointer);
    for (unsigned seed = 0; seed < NUM_SEEDS; ++seed) {
        const struct sim_options options = core_options(seed);
        memset(ballots, 0, sizeof ballots);
        expect_clean(&launch, &options);
        for (unsigned i = 0; i < 40; ++i)
            cr_assert_eq(ballots[i], i % 4 == 3 ? 0 : i < 32 ? 0x77777777u : 0x77u, "%u: %08x", i, ballots[i]);
    }
}

/* ---- elections ---------------------------------------------------------------------------------------------- */

static void elect_twice(const void *args)
{
    unsigned *const elected = *(unsigned *const *)args;
    const uint32_t members = sim_self->lane < 20 ? 0xfffffu : 0xfff00000u;
    for (int i = 0; i < 2; ++i)
        if (sim_elect_one(members)) elected[2 * (sim_self->lane / 20) + (unsigned)i] |= 1u << sim_self->lane;
}

Test(collectives, one_lane_of_the_members_is_elected_and_always_the_same)
{
    uint32_t leaders = 0;
    for (unsigned seed = 0; seed < NUM_SEEDS; ++seed) {
        unsigned elected[4] = {0}, *pointer = elected;
        const struct sim_launch launch = core_launch("elect_twice", elect_twice, 32, &pointer, sizeof pointer);
        const struct sim_options options = core_options(seed);
        expect_clean(&launch, &options);
        for (int i = 0; i < 4; i += 2) {
            cr_assert_eq(__builtin_popcount(elected[i]), 1);
            cr_assert_eq(elected[i], elected[i + 1]);
        }
        cr_assert(elected[0] & 0xfffffu && elected[2] & 0xfff00000u);
        leaders |= elected[0] | elected[2];
    }
    cr_assert_eq(leaders, ~0u);
}

/* ---- what is diverged --------------------------------------------------------------------------------------- */

enum divergence {
    READS_ABSENT,
    READS_EXITED,
    LACKS_ITSELF,
    TWO_PLACES,
    TWO_INSTRUCTIONS,
    TWO_MASKS,
    BARRIER_AND_SHUFFLE,
    SHUFFLE_AND_BARRIER,
    PARTIAL_WARP,
    EXITED_MEMBER,
    WIDTH
};

static void run_nothing(struct sim_warp *warp, void *const args[SIM_WARP])
{
    (void)warp, (void)args;
}

static void diverge(const void *args)
{
    const unsigned lane = sim_self->lane;
    const bool half = lane < 16;
    int arg = 0;
    switch (*(const enum divergence *)args) {
    case READS_ABSENT:
        if (half) sim_shfl(SIM_SHFL_DOWN, 0xffff, 0, 1, 32);
        break;
    case READS_EXITED:
        if (half) sim_shfl(SIM_SHFL_XOR, ~0u, 0, 31, 32);
        break;
    case LACKS_ITSELF: sim_ballot(0xffff, true); break;
    case TWO_PLACES:
        if (half) sim_shfl(SIM_SHFL_IDX, ~0u, 0, 0, 32);
        else sim_shfl(SIM_SHFL_IDX, ~0u, 1, 0, 32);
        break;
    case TWO_INSTRUCTIONS:
        if (half) sim_ballot(~0u, true);
        else sim_sync_warp(~0u);
        break;
    case TWO_MASKS: sim_ballot(half ? ~0u : 0xfffffffeu, true); break;
    case BARRIER_AND_SHUFFLE:
    case SHUFFLE_AND_BARRIER:
        if (half == (*(const enum divergence *)args == BARRIER_AND_SHUFFLE)) sim_sync_threads();
        sim_sync_warp(~0u);
        break;
    case PARTIAL_WARP: sim_collect_warp("mma.sync", SIM_SITE, ~0u, &arg, run_nothing); break;
    case EXITED_MEMBER:
        if (half) sim_collect_warp("mma.sync", SIM_SITE, ~0u, &arg, run_nothing);
        break;
    case WIDTH: sim_shfl(SIM_SHFL_IDX, ~0u, 0, 0, 12); break;
    }
}

static void expect_diverged(enum divergence which, unsigned threads, enum sim_rule rule, const char *instruction,
                            const char *words)
{
    const struct sim_launch launch = core_launch("diverge", diverge, threads, &which, sizeof which);
    expect_finding(&launch, rule, instruction, words);
}

Test(collectives, lanes_that_do_not_meet_are_found)
{
    expect_diverged(READS_ABSENT, 32, SIM_DIVERGED, "shfl", "lane 16, which does not take part");
    expect_diverged(READS_EXITED, 32, SIM_DIVERGED, "shfl", "which does not take part");
    expect_diverged(LACKS_ITSELF, 32, SIM_DIVERGED, "vote.ballot", "lacks lane");
    expect_diverged(TWO_PLACES, 32, SIM_DIVERGED, "shfl", "waits in shfl at kernels/sim/tests/core_test_collective.c:");
    expect_diverged(TWO_MASKS, 32, SIM_DIVERGED, "vote.ballot", "");
    expect_diverged(PARTIAL_WARP, 40, SIM_DIVERGED, "mma.sync", "0xffffff00");
    expect_diverged(EXITED_MEMBER, 32, SIM_DIVERGED, "mma.sync", "exited");
    expect_diverged(WIDTH, 32, SIM_BAD_OPERAND, "shfl", "width is 12");
}

/* Either of the two may come second. */
static void expect_either(enum divergence which, const char *one, const char *other)
{
    const struct sim_launch launch = core_launch("diverge", diverge, 32, &which, sizeof which);
    unsigned ones = 0, others = 0;
    for (unsigned seed = 0; seed < 30; ++seed) {
        const struct sim_options options = core_options(seed);
        struct sim_gpu *gpu = sim_gpu_create(&options);
        cr_assert_eq(sim_launch(gpu, &launch), SIM_DIVERGED, "%s", sim_last_report(gpu)->text);
        ones += strcmp(sim_last_report(gpu)->instruction, one) == 0;
        others += strcmp(sim_last_report(gpu)->instruction, other) == 0;
        sim_gpu_destroy(gpu);
    }
    cr_assert_eq(ones + others, 30);
    cr_assert(ones && others, "%u, %u", ones, others);
}

Test(collectives, two_instructions_never_meet)
{
    expect_either(TWO_INSTRUCTIONS, "vote.ballot", "bar.warp.sync");
    expect_either(BARRIER_AND_SHUFFLE, "bar.sync", "bar.warp.sync");
    expect_either(SHUFFLE_AND_BARRIER, "bar.sync", "bar.warp.sync");
}

static volatile int place; /* keeps two calls apart that a compiler would make one */

static void sync_in_branches(const void *args)
{
    (void)args;
    if (sim_self->lane < 16) sim_sync_warp(~0u), place = 0;
    else place = 1, sim_sync_warp(~0u);
}

Test(collectives, bar_warp_sync_meets_from_every_place)
{
    const struct sim_launch launch = core_launch("sync_in_branches", sync_in_branches, 64, NULL, 0);
    for (unsigned seed = 0; seed < 30; ++seed) {
        const struct sim_options options = core_options(seed);
        expect_clean(&launch, &options);
    }
}

/* ---- warpgroups --------------------------------------------------------------------------------------------- */

enum group_case { GROUP_MEETS, GROUP_EXITS, GROUP_TWO_PLACES, GROUP_BARRIER };

struct group_args {
    enum group_case which;
    unsigned *sum;
};

static void run_group(struct sim_warp *first, void *const args[SIM_WARPGROUP])
{
    cr_assert_eq(first->index % 4, 0);
    unsigned sum = 0;
    for (unsigned i = 0; i < SIM_WARPGROUP; ++i) sum += *(unsigned *)args[i] * (i + 1);
    for (unsigned i = 0; i < SIM_WARPGROUP; ++i) *(unsigned *)args[i] = sum;
}

static void meet_as_group(const void *args)
{
    const struct group_args *a = args;
    unsigned value = sim_self->linear, same_value = value;
    const bool other_way = sim_self->linear % 128 == 77;
    if (a->which == GROUP_EXITS && other_way) return;
    if (a->which == GROUP_BARRIER && other_way) sim_sync_threads();
    if (a->which == GROUP_TWO_PLACES && other_way) sim_collect_warpgroup("wgmma", (void *)run_group, &value, run_group);
    else sim_collect_warpgroup("wgmma", __builtin_return_address(0), &value, run_group);
    sim_collect_warpgroup("wgmma", __builtin_return_address(0), &same_value, run_group);
    if (value == same_value) a->sum[sim_self->linear] = value;
}

Test(collectives, warpgroups_meet_in_every_order)
{
    unsigned sums[256];
    const struct group_args args = {GROUP_MEETS, sums};
    const struct sim_launch launch = core_launch("meet_as_group", meet_as_group, 256, &args, sizeof args);
    for (unsigned seed = 0; seed < NUM_SEEDS; ++seed) {
        const struct sim_options options = core_options(seed);
        memset(sums, 0, sizeof sums);
        expect_clean(&launch, &options);
        for (unsigned i = 0; i < 256; ++i) { /* sum of (i + 128 g) (i + 1) over i < 128 */
            const unsigned triangle = 128 * 129 / 2, squares = 127 * 128 * 255 / 6 + 127 * 128 / 2;
            cr_assert_eq(sums[i], squares + i / 128 * 128 * triangle, "thread %u: %u", i, sums[i]);
        }
    }
}

static void expect_group(enum group_case which, unsigned threads, const char *instruction, const char *words)
{
    unsigned sums[256];
    const struct group_args args = {which, sums};
    const struct sim_launch launch = core_launch("meet_as_group", meet_as_group, threads, &args, sizeof args);
    expect_finding(&launch, SIM_DIVERGED, instruction, words);
}

Test(collectives, warpgroups_that_do_not_meet_are_found)
{
    expect_group(GROUP_EXITS, 256, "wgmma", "exited");
    expect_group(GROUP_TWO_PLACES, 128, "wgmma", "waits in wgmma");
    expect_group(GROUP_MEETS, 96, "wgmma", "Four whole warps");
}

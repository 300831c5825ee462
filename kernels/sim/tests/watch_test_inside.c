/* watch_test_inside.c - what instructions ask of the watch: registers, protected objects, reductions, many agents.
 * Kernels are C functions that call the inside of the simulated GPU. */
#include <criterion/criterion.h>
#include <string.h>

#include "kernels/sim/machine.h"

static float in[64], out[64];
static int choice;

static enum sim_rule run(void (*body)(const void *), unsigned blocks, unsigned threads, int which, const char *words)
{
    const struct sim_options options = {.generation = SIM_SM_90, .seed = 1, .workers = 1};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    const struct sim_launch launch = {.kernel = "inside", .grid = {blocks, 1, 1}, .block = {threads, 1, 1},
                                      .cluster = {1, 1, 1}, .dynamic_shared = 256, .max_threads = threads,
                                      .min_blocks = 1, .body = body};
    sim_map(gpu, "in", in, sizeof in, SIM_READ);
    sim_map(gpu, "sum", out, 32, SIM_READ | SIM_WRITE | SIM_INITIALISED | SIM_REDUCE);
    sim_map(gpu, "out", out + 8, sizeof out - 32, SIM_READ | SIM_WRITE | SIM_INITIALISED);
    choice = which;
    const enum sim_rule rule = sim_launch(gpu, &launch);
    const struct sim_report *r = sim_last_report(gpu);
    cr_assert(!words || strstr(r->text, words), "no '%s': %s", words, r->text);
    sim_gpu_destroy(gpu);
    return rule;
}

static void use_registers(const void *args)
{
    (void)args;
    float d[8] = {0}, a[4] = {0};
    const void *site = __builtin_return_address(0);
    cr_assert(sim_registers_dirty(sim_self, d, sizeof d)); /* never fenced */
    sim_registers_fence(sim_self);
    cr_assert(!sim_registers_dirty(sim_self, d, sizeof d));
    sim_watch_write(&d[3], 4, 4, "store", site);
    cr_assert(sim_registers_dirty(sim_self, d, sizeof d) && !sim_registers_dirty(sim_self, d, 12));
    cr_assert(!sim_registers_dirty(sim_self, &d[4], 16));
    sim_registers_fence(sim_self);
    sim_registers_begin(sim_self, d, sizeof d, true, site);
    sim_registers_begin(sim_self, a, sizeof a, false, site);
    sim_watch_read(a, sizeof a, 4, "load", site);
    if (choice == 1) sim_watch_read(&d[7], 4, 4, "load", site);
    if (choice == 2) sim_watch_write(&d[0], 4, 4, "store", site);
    if (choice == 3) sim_watch_write(&a[1], 4, 4, "store", site);
    sim_registers_end(sim_self, a);
    sim_watch_write(&a[1], 4, 4, "store", site);
    if (choice == 4) sim_watch_read(&d[1], 4, 4, "load", site);
    sim_registers_end(sim_self, d);
    if (choice == 5) sim_watch_read(&d[6], 4, 4, "load", site);
    sim_registers_fence_operand(sim_self, &d[2], 16); /* of registers 2 to 5 alone */
    sim_watch_read(&d[2], 16, 4, "load", site);
    if (choice == 6) sim_watch_read(&d[1], 4, 4, "load", site);
    if (choice == 7) sim_watch_write(&d[6], 4, 4, "store", site);
    sim_registers_fence_operand(sim_self, d, sizeof d);
    sim_watch_read(d, sizeof d, 4, "load", site);
}

Test(watch_inside, registers_of_a_wgmma)
{
    cr_assert(run(use_registers, 1, 1, 0, NULL) == SIM_CLEAN);
    cr_assert(run(use_registers, 1, 1, 1, "still writes this register") == SIM_REGISTERS_IN_FLIGHT);
    cr_assert(run(use_registers, 1, 1, 2, "a register of thread (0, 0, 0)") == SIM_REGISTERS_IN_FLIGHT);
    cr_assert(run(use_registers, 1, 1, 3, "still reads this register") == SIM_REGISTERS_IN_FLIGHT);
    cr_assert(run(use_registers, 1, 1, 4, "still writes") == SIM_REGISTERS_IN_FLIGHT);
    for (int which = 5; which <= 7; ++which)
        cr_assert(run(use_registers, 1, 1, which, "has been waited for") == SIM_REGISTERS_IN_FLIGHT);
}

static void use_object(const void *args)
{
    (void)args;
    char *shared = sim_shared_dynamic(16);
    const void *site = __builtin_return_address(0);
    sim_watch_write(shared, 16, 8, "store", site);
    sim_shared_protect(sim_self->cta, shared + 8, 8, "mbarrier", site);
    sim_watch_read(shared, 8, 8, "load", site);
    if (choice == 1) sim_watch_read(shared + 12, 4, 4, "load", site);
    if (choice == 2) sim_watch_write(shared, 16, 8, "store", site);
    if (choice == 3) sim_shared_protect(sim_self->cta, shared + 252, 8, "mbarrier", site);
    sim_shared_protect(sim_self->cta, shared + 8, 8, NULL, site);
    if (choice == 4) sim_watch_read(shared + 8, 8, 8, "load", site);
    sim_watch_write(shared + 8, 8, 8, "store", site);
    sim_watch_read(shared, 16, 8, "load", site);
}

Test(watch_inside, protected_objects)
{
    cr_assert(run(use_object, 1, 1, 0, NULL) == SIM_CLEAN);
    cr_assert(run(use_object, 1, 1, 1, "An mbarrier object lies there") == SIM_RACE);
    cr_assert(run(use_object, 1, 1, 2, "An mbarrier object lies there") == SIM_RACE);
    cr_assert(run(use_object, 1, 1, 3, "must lie in a shared memory allocation") == SIM_OUT_OF_BOUNDS);
    cr_assert(run(use_object, 1, 1, 4, "Nobody has written") == SIM_UNINITIALISED);
}

/* Both CTAs add to the same numbers: allowed where the mapping says so, not elsewhere, and no reads among them. */
static void reduce(const void *args)
{
    (void)args;
    struct sim_cluster *cluster = sim_self->cta->cluster;
    const unsigned agent = sim_agent_new(cluster);
    for (int i = 0; i < 2; i++) {
        const struct sim_deed deed = {sim_self, sim_epoch_next(cluster, agent), true, "cp.reduce.async.bulk", NULL};
        sim_watch_async_reduce(&deed, choice == 1 ? out + 8 : out, 16, 16);
        if (choice != 3) sim_acquire_epoch(sim_self, deed.epoch, true);
    }
    if (choice == 2 && sim_self->cta->linear == 1) sim_watch_read(out, 4, 4, "load", NULL);
    if (choice == 3) sim_watch_read(out, 4, 4, "load", NULL);
}

Test(watch_inside, reductions)
{
    cr_assert(run(reduce, 2, 1, 0, NULL) == SIM_CLEAN);
    cr_assert(run(reduce, 2, 1, 1, "blocks of one launch are not ordered") == SIM_RACE);
    cr_assert(run(reduce, 2, 1, 2, "wrote it at") == SIM_RACE);
    cr_assert(run(reduce, 1, 1, 3, "its end has not been waited for") == SIM_MISSING_WAIT);
}

/* More agents than clocks have room for at first. */
static void use_agents(const void *args)
{
    (void)args;
    struct sim_cluster *cluster = sim_self->cta->cluster;
    char *shared = sim_shared_dynamic(16);
    if (sim_self->linear == 0) {
        for (int i = 0; i < 256; i++) {
            const sim_epoch epoch = sim_epoch_next(cluster, sim_agent_new(cluster));
            const struct sim_deed deed = {sim_self, epoch, true, "copy", NULL};
            sim_watch_async_write(&deed, shared + i, 1, 1);
            if (i != choice) sim_acquire_epoch(sim_self, deed.epoch, true);
        }
    }
    sim_sync_threads();
    if (sim_self->linear == 31) sim_watch_read(shared, 256, 4, "load", NULL);
}

Test(watch_inside, agents_without_end)
{
    cr_assert(run(use_agents, 1, 32, -1, NULL) == SIM_CLEAN);
    cr_assert(run(use_agents, 1, 32, 0, "its end has not been waited for") == SIM_MISSING_WAIT);
    cr_assert(run(use_agents, 1, 32, 200, "its end has not been waited for") == SIM_MISSING_WAIT);
}

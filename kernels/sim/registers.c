/* registers.c - setmaxnreg: registers of a CTA that warpgroups hand back and ask for.
 *
 * Threads begin with as many registers as the launch bounds leave them. What `dec` frees goes to a pool of the CTA;
 * `inc` waits until the pool has enough. */
#include <stdio.h>
#include <stdlib.h>

#include "kernels/sim/machine.h"

enum {
    FILE_REGISTERS = 65536, /* of a multiprocessor */
    MOST_REGISTERS = 255,   /* of a thread, by its launch bounds */
    LEAST_SET = 24,
    MOST_SET = 256,
    STEP = 8,
    MAX_GROUPS = SIM_MAX_THREADS / SIM_WARPGROUP
};

struct sim_register_pool {
    unsigned free;
    unsigned wanted[MAX_GROUPS]; /* a thread, by the warpgroup that waits; 0: it does not */
    char what[MAX_GROUPS][48];   /* it waits for */
};

unsigned sim_registers_of_bounds(unsigned max_threads, unsigned min_blocks)
{
    const unsigned warps = (max_threads + SIM_WARP - 1) / SIM_WARP * (min_blocks ? min_blocks : 1);
    const unsigned registers = FILE_REGISTERS / (warps * SIM_WARP) / STEP * STEP;
    return registers < MOST_REGISTERS ? registers : MOST_REGISTERS;
}

struct sim_register_pool *sim_registers_create(struct sim_cta *cta)
{
    const struct sim_launch *launch = cta->cluster->launch;
    struct sim_register_pool *pool = calloc(1, sizeof *pool);
    if (!pool) abort();
    for (unsigned i = 0; i < cta->num_threads; ++i)
        cta->threads[i].registers = sim_registers_of_bounds(launch->max_threads, launch->min_blocks);
    return pool;
}

void sim_registers_destroy(struct sim_register_pool *pool)
{
    free(pool);
}

static void set_group(struct sim_thread *threads, unsigned registers)
{
    for (unsigned i = 0; i < SIM_WARPGROUP; ++i) threads[i].registers = registers;
}

/* Gives warpgroups that wait what they want, where the pool has it. */
static void hand_out(struct sim_cta *cta)
{
    struct sim_register_pool *pool = cta->pool;
    for (unsigned g = 0; g < cta->num_threads / SIM_WARPGROUP; ++g) {
        struct sim_thread *threads = &cta->threads[g * SIM_WARPGROUP];
        const unsigned wanted = pool->wanted[g];
        if (!wanted || (wanted - threads->registers) * SIM_WARPGROUP > pool->free) continue;
        pool->free -= (wanted - threads->registers) * SIM_WARPGROUP;
        pool->wanted[g] = 0;
        set_group(threads, wanted);
        for (unsigned i = 0; i < SIM_WARPGROUP; ++i) sim_wake(&threads[i]);
    }
}

struct request {
    bool increase;
    unsigned registers;
    const char *instruction;
    const void *site;
};

static void check_request(struct sim_thread *thread, const struct request *r)
{
    if (r->registers < LEAST_SET || r->registers > MOST_SET || r->registers % STEP)
        sim_fail(thread, SIM_BAD_OPERAND, r->instruction, r->site, NULL,
                 "%u registers; setmaxnreg takes multiples of 8 from 24 to 256", r->registers);
    if (r->increase ? r->registers < thread->registers : r->registers > thread->registers)
        sim_fail(thread, SIM_BAD_OPERAND, r->instruction, r->site, NULL,
                 "the thread has %u registers; %s cannot make %u of them", thread->registers, r->instruction,
                 r->registers);
    const unsigned num_threads = thread->cta->num_threads, others = num_threads - SIM_WARPGROUP;
    const struct sim_launch *launch = thread->cta->cluster->launch;
    const unsigned all = num_threads * sim_registers_of_bounds(launch->max_threads, launch->min_blocks);
    if (r->registers * SIM_WARPGROUP + others * LEAST_SET > all)
        sim_fail(thread, SIM_LIMIT, r->instruction, r->site, NULL,
                 "%u registers for each thread of the warpgroup: the CTA has %u in all and the other threads keep at "
                 "least 24 each", r->registers, all);
}

static void run_request(struct sim_warp *first, void *const args[SIM_WARPGROUP])
{
    struct sim_cta *cta = first->cta;
    struct sim_register_pool *pool = cta->pool;
    const unsigned group = first->index * SIM_WARP / SIM_WARPGROUP;
    const struct request *request = args[0];
    for (unsigned i = 0; i < SIM_WARPGROUP; ++i) {
        const struct request *r = args[i];
        if (r->registers != request->registers)
            sim_fail(&first->lanes[i], SIM_DIVERGED, r->instruction, r->site, NULL,
                     "it asks for %u registers, another thread of its warpgroup for %u", r->registers,
                     request->registers);
    }
    check_request(first->lanes, request);
    if (request->increase) {
        pool->wanted[group] = request->registers;
        snprintf(pool->what[group], sizeof pool->what[group], "%s of %u registers", request->instruction,
                 (request->registers - first->lanes->registers) * SIM_WARPGROUP);
    } else {
        pool->free += (first->lanes->registers - request->registers) * SIM_WARPGROUP;
        set_group(first->lanes, request->registers);
    }
    hand_out(cta);
}

void sim_setmaxnreg(bool increase, unsigned registers)
{
    struct sim_thread *self = sim_self;
    struct request request = {increase, registers, increase ? "setmaxnreg.inc" : "setmaxnreg.dec", SIM_SITE};
    sim_require_sm_90(request.instruction, request.site);
    if (!self->cta->cluster->launch->min_blocks)
        sim_fail(self, SIM_LIMIT, request.instruction, request.site, NULL,
                 "the kernel's launch bounds do not say how many registers its threads begin with: KERNEL(max_threads, "
                 "min_blocks) must give min_blocks");
    sim_collect_warpgroup(request.instruction, request.site, &request, run_request);
    while (self->registers < registers)
        sim_wait(self->cta->pool->what[self->linear / SIM_WARPGROUP], NULL, request.site);
}

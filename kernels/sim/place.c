/* place.c - where a thread is, and the few instructions that are nobody else's. */
#include "kernels/sim/machine.h"

unsigned sim_thread_index(int axis)
{
    return sim_self->index[axis];
}

unsigned sim_block_index(int axis)
{
    return sim_self->cta->index[axis];
}

unsigned sim_block_size(int axis)
{
    return sim_self->cta->cluster->launch->block[axis];
}

unsigned sim_grid_size(int axis)
{
    return sim_self->cta->cluster->launch->grid[axis];
}

unsigned sim_cluster_rank(void)
{
    return sim_self->cta->rank;
}

unsigned sim_cluster_size(void)
{
    return sim_self->cta->cluster->num_ctas;
}

void sim_require_sm_90(const char *instruction, const void *site)
{
    if (sim_options_of(sim_self->cta->cluster)->generation < SIM_SM_90)
        sim_fail(sim_self, SIM_WRONG_GENERATION, instruction, site, NULL, "%s needs sm_90; this GPU is sm_80",
                 instruction);
}

void *sim_cluster_map(const void *pointer, unsigned rank)
{
    static const char name[] = "mapa";
    struct sim_cluster *cluster = sim_self->cta->cluster;
    unsigned own_rank;
    uint32_t offset;
    sim_require_sm_90(name, SIM_SITE);
    if (rank >= cluster->num_ctas)
        sim_fail(sim_self, SIM_BAD_OPERAND, name, SIM_SITE, NULL, "rank %u of a cluster of %u CTAs", rank,
                 cluster->num_ctas);
    if (!sim_in_window(cluster, pointer, &own_rank, &offset) || own_rank != sim_self->cta->rank)
        sim_fail(sim_self, SIM_BAD_OPERAND, name, SIM_SITE, pointer,
                 "the address to map is not in this CTA's shared memory");
    return cluster->ctas[rank].window + offset;
}

void sim_trap(void)
{
    sim_fail(sim_self, SIM_TRAP, "trap", SIM_SITE, NULL, "the kernel stopped itself");
}

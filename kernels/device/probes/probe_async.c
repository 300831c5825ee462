/* probe_async.c - what mbarrier.h, bulk.h, cluster.h, grid.h and registers.h must give, by definition. */
#include "kernels/device/probes/probe_async.h"

#include "kernels/device/probes/probe.h"
#include "kernels/device/probes/probe_integers.h"

static void expect_phases(const void *in, void *out)
{
    (void)in;
    struct phases_out *o = out;
    o->fresh[0] = 0, o->fresh[1] = 1;
    o->half = 0;
    o->whole[0] = 1, o->whole[1] = 0;
    o->again[0] = 0, o->again[1] = 1;
    for (uint32_t round = 0; round < PHASES_ROUNDS; ++round)
        for (uint32_t n = 0; n < 32; ++n) o->consumed[round][n] = 100 * round + 31 - n;
}

static uint32_t two(uint16_t low, uint16_t high) { return low | (uint32_t)high << 16; }

static void fill_bulk(void *in)
{
    struct bulk_in *w = in;
    for (uint32_t n = 0; n < BULK_WORDS; ++n) {
        w->x[0][n] = probe_random(n);
        w->x[1][n] = probe_random(BULK_WORDS + n);
        w->f32[n] = fp32_of_integer(probe_integer(n));
        w->f16x2[n] = two(fp16_of_integer(probe_integer(n)), fp16_of_integer(probe_integer(7 * n)));
        w->bf16x2[n] = two(bf16_of_integer(probe_integer(n)), bf16_of_integer(probe_integer(7 * n)));
    }
}

static void expect_bulk(const void *in, void *out)
{
    const struct bulk_in *w = in;
    struct bulk_out *o = out;
    for (uint32_t n = 0; n < BULK_WORDS; ++n) {
        o->copied[n] = w->x[0][n];
        o->sum[n] = w->x[0][n] + w->x[1][n];
        o->f32[n] = fp32_of_integer(2 * probe_integer(n));
        o->f16x2[n] = two(fp16_of_integer(2 * probe_integer(n)), fp16_of_integer(2 * probe_integer(7 * n)));
        o->bf16x2[n] = two(bf16_of_integer(2 * probe_integer(n)), bf16_of_integer(2 * probe_integer(7 * n)));
    }
}

static void fill_cluster(void *in)
{
    struct cluster_in *w = in;
    for (uint32_t n = 0; n < CLUSTER_THREADS; ++n) w->x[n] = probe_random(n);
}

static void expect_cluster(const void *in, void *out)
{
    const struct cluster_in *w = in;
    struct cluster_out *o = out;
    for (uint32_t block = 0; block < CLUSTERS * CLUSTER_CTAS; ++block) {
        struct cluster_cta *cta = &o->at[block];
        const uint32_t rank = block % CLUSTER_CTAS;
        const uint32_t before = (rank + CLUSTER_CTAS - 1) % CLUSTER_CTAS, next = (rank + 1) % CLUSTER_CTAS;
        cta->rank = rank;
        cta->size = CLUSTER_CTAS;
        for (uint32_t n = 0; n < CLUSTER_THREADS; ++n) {
            cta->written[n] = 1000 * before + n;
            cta->read[n] = 100 * next + n;
            cta->multicast[n] = w->x[n];
            cta->copied[n] = 100 * before + n;
        }
    }
}

static void expect_registers(const void *in, void *out)
{
    (void)in;
    struct registers_out *o = out;
    for (uint32_t n = 0; n < REGISTER_THREADS; ++n) o->x[n] = 3 * n;
}

static void expect_row(const void *in, void *out)
{
    (void)in;
    struct row_out *o = out;
    const uint32_t numbers = ROW_CTAS * ROW_THREADS;
    for (uint32_t n = 0; n < numbers; ++n) o->at[0][n] = n;
    for (uint32_t launch = 1; launch < ROW_LAUNCHES; ++launch)
        for (uint32_t n = 0; n < numbers; ++n) o->at[launch][n] = 3 * o->at[launch - 1][numbers - 1 - n] + 1;
}

PROBE_LAUNCHERS(probe_phases);
PROBE_LAUNCHERS(probe_bulk);
PROBE_LAUNCHERS(probe_cluster);
PROBE_LAUNCHERS(probe_registers);
PROBE_LAUNCHERS(probe_row);

const struct probe probes_of_async[] = {
    {"phases of mbarriers", 90, false, 0, sizeof(struct phases_out), NULL, expect_phases, PROBE_ON(probe_phases)},
    {"bulk copies and reductions", 90, false, sizeof(struct bulk_in), sizeof(struct bulk_out), fill_bulk, expect_bulk,
     PROBE_ON(probe_bulk)},
    {"clusters", 90, false, sizeof(struct cluster_in), sizeof(struct cluster_out), fill_cluster, expect_cluster,
     PROBE_ON(probe_cluster)},
    {"setmaxnreg", 90, false, 0, sizeof(struct registers_out), NULL, expect_registers, PROBE_ON(probe_registers)},
    {"launches in a row", 90, false, 0, sizeof(struct row_out), NULL, expect_row, PROBE_ON(probe_row)},
    {0},
};

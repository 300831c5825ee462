/* probe_memory.c - what memory.h and cp_async.h must give, by definition. */
#include "kernels/device/probes/probe_memory.h"

#include "kernels/device/probes/probe.h"

static void fill(void *in)
{
    struct memory_in *w = in;
    for (uint32_t n = 0; n < 4 * MEMORY_THREADS; ++n) w->x[n / 4].at[n % 4] = probe_random(n);
}

static void expect_memory(const void *in, void *out)
{
    const struct memory_in *w = in;
    struct memory_out *o = out;
    for (int n = 0; n < MEMORY_THREADS; ++n) {
        o->plain[n] = o->dynamic[n] = o->joined[n] = w->x[MEMORY_THREADS - 1 - n];
        o->global[n] = o->streaming[n] = w->x[n];
    }
    o->distance = 20;
    o->alignment = 0;
}

static void expect_cp_async(const void *in, void *out)
{
    const struct memory_in *w = in;
    struct cp_async_out *o = out;
    for (int n = 0; n < MEMORY_THREADS; ++n) {
        const int other = MEMORY_THREADS - 1 - n;
        o->first[n] = w->x[n];
        o->second[n] = w->x[n];
        if (n % 2 == 1) o->second[n].at[2] = o->second[n].at[3] = 0;
        o->third[n] = w->x[other];
        for (int word = 0; word < 4; ++word)
            if ((other >> word & 1) != 0) o->third[n].at[word] = 0;
        o->none[n] = (struct sixteen){{0}};
    }
}

static void expect_cp_async_mbarrier(const void *in, void *out)
{
    const struct memory_in *w = in;
    struct cp_async_mbarrier_out *o = out;
    for (int n = 0; n < MEMORY_THREADS; ++n) o->x[n] = w->x[MEMORY_THREADS - 1 - n];
}

PROBE_LAUNCHERS(probe_memory);
PROBE_LAUNCHERS(probe_cp_async);
PROBE_LAUNCHERS(probe_cp_async_mbarrier);

const struct probe probes_of_memory[] = {
    {"shared memory, 16 bytes at once", 80, false, sizeof(struct memory_in), sizeof(struct memory_out), fill,
     expect_memory, PROBE_ON(probe_memory)},
    {"cp.async", 80, false, sizeof(struct memory_in), sizeof(struct cp_async_out), fill, expect_cp_async,
     PROBE_ON(probe_cp_async)},
    {"cp.async.mbarrier.arrive", 90, false, sizeof(struct memory_in), sizeof(struct cp_async_mbarrier_out), fill,
     expect_cp_async_mbarrier, PROBE_ON(probe_cp_async_mbarrier)},
    {0},
};

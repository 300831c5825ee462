/* overlap.c - how much work stands beside copies and products, by the order in which each thread issues it: no schedule
 * changes that.
 *
 * A product (mma, wgmma) is beside a copy if a thread that takes part has issued a cp.async that it has not waited for,
 * or if the first of these threads later waits for the bytes of an mbarrier: whoever asked for them, there was work to
 * do before they were needed. Who waits with no product and no special function since the issue of its cp.async, or
 * since its last wait for bytes, waits at once. A warpgroup drains where it waits for more than one group of wgmma at
 * once, and where it has waited for all and then issues more. */
#include "kernels/sim/machine.h"

void sim_overlap_product(struct sim_thread *threads, unsigned n, bool is_wgmma)
{
    struct sim_counts *counts = sim_tally(threads->cta->cluster);
    struct sim_overlap *first = &threads->overlap;
    uint64_t copies = 0;
    for (unsigned i = 0; i < n; ++i) {
        ++threads[i].overlap.work;
        copies += threads[i].overlap.copies;
    }
    if (copies > 0) ++counts->products_beside_copies;
    else ++first->products;
    if (is_wgmma && first->drained) {
        ++counts->wgmma_drains;
        first->drained = false;
    }
}

void sim_overlap_copy_waited(struct sim_thread *thread, uint64_t work_at_issue, unsigned bytes)
{
    if (thread->overlap.copies > 0) --thread->overlap.copies;
    if (thread->overlap.work == work_at_issue) sim_tally(thread->cta->cluster)->copy_bytes_waited_at_once += bytes;
}

void sim_overlap_wgmma_waited(struct sim_thread *thread, unsigned groups, bool is_all)
{
    if (thread->linear % SIM_WARPGROUP == 0 && groups > 1) sim_tally(thread->cta->cluster)->wgmma_drains += groups - 1;
    thread->overlap.drained |= is_all;
}

void sim_overlap_bytes_waited(struct sim_thread *thread)
{
    struct sim_counts *counts = sim_tally(thread->cta->cluster);
    struct sim_overlap *overlap = &thread->overlap;
    if (overlap->waited == overlap->work + 1) ++counts->copy_waits_at_once;
    counts->products_beside_copies += overlap->products;
    overlap->waited = overlap->work + 1;
    overlap->products = 0;
}

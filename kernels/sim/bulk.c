/* bulk.c - bulk copies: loads that end on an mbarrier, stores and reductions in groups of their thread.
 *
 * Plain ones and those by tensor map differ in the box alone. A load is one deed of an agent that the mbarrier's phase
 * tells of. A store is two: its reads of shared memory, which wait_group.read waits for, and its writes. */
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/async.h"

enum { MAX_RANKS = 16 };

unsigned sim_async_shared(const void *shared, size_t align, bool remote, const struct issue *issue)
{
    unsigned rank;
    uint32_t offset;
    if (!sim_in_window(issue->thread->cta->cluster, shared, &rank, &offset) ||
        (rank != issue->thread->cta->rank && !remote))
        sim_fail(issue->thread, SIM_OUT_OF_BOUNDS, issue->instruction, issue->site, shared,
                 "This is no address in the shared memory of this %s.", remote ? "cluster" : "CTA");
    if (offset % align)
        sim_fail(issue->thread, SIM_MISALIGNED, issue->instruction, issue->site, shared,
                 "The address is no multiple of %zu.", align);
    return rank;
}

static void count_copy(const struct issue *issue, const struct box *box)
{
    struct sim_counts *counts = sim_tally(issue->thread->cta->cluster);
    counts->async_copies += 1;
    counts->async_copy_bytes += sim_box_bytes(box);
}

/* ---- loads -------------------------------------------------------------------------------------------------- */

struct load {
    struct sim_async async;
    struct issue issue;
    struct box box;
    sim_epoch epoch;
    struct load_agent *agent;
    unsigned n; /* CTAs */
    char *shared[MAX_RANKS];
    struct mbarrier *barriers[MAX_RANKS];
};

static void run_load(struct sim_async *async)
{
    struct load *load = (struct load *)async;
    const uint32_t bytes = sim_box_bytes(&load->box);
    char *staged = malloc(bytes);
    if (!staged) abort();
    sim_box_read(&load->box, staged);
    for (unsigned i = 0; i < load->n; ++i) sim_box_place(&load->box, staged, load->shared[i]);
    free(staged);
    load->agent->busy = false;
    for (unsigned i = 0; i < load->n; ++i) sim_mbarrier_bytes(load->barriers[i], bytes, load->epoch, &load->issue);
    sim_async_give(load);
}

/* Into each CTA whose bit is set, at the same place; its mbarrier lies at the same place, too. */
static void aim(struct load *load, char *shared, char *mbarrier, uint16_t ranks)
{
    const struct issue *issue = &load->issue;
    const struct sim_cluster *cluster = issue->thread->cta->cluster;
    const unsigned rank = sim_async_shared(shared, 16, true, issue);
    const char *window = cluster->ctas[rank].window;
    const ptrdiff_t barrier_at = mbarrier - window;
    if (ranks >> cluster->num_ctas)
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, shared,
                 "The mask 0x%x names a CTA that the cluster, of %u, does not have.", ranks, cluster->num_ctas);
    if (barrier_at < 0 || barrier_at >= SIM_WINDOW)
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, mbarrier,
                 "The mbarrier must lie in the shared memory of the CTA that the bytes go to.");
    if (!ranks) ranks = (uint16_t)(1 << rank);
    for (unsigned r = 0; r < cluster->num_ctas; ++r) {
        if (!(ranks >> r & 1)) continue;
        load->shared[load->n] = cluster->ctas[r].window + (shared - window);
        load->barriers[load->n++] =
            sim_mbarrier_at(cluster->ctas[r].window + barrier_at, issue, USER_ASYNC_PROXY);
    }
}

void sim_box_load(const struct box *box, void *shared, void *mbarrier, uint16_t multicast, const struct issue *issue)
{
    struct sim_cluster *cluster = issue->thread->cta->cluster;
    struct load *load = sim_async_take(issue->thread->cta, sizeof *load);
    *load = (struct load){.async = {.run = run_load}, .issue = *issue, .box = *box};
    aim(load, shared, mbarrier, multicast);
    load->agent = sim_load_agent(load->barriers[0]);
    load->epoch = sim_epoch_next(cluster, load->agent->agent);
    const struct sim_deed deed = {issue->thread, load->epoch, true, issue->instruction, issue->site};
    sim_box_watch_global(box, &deed, BOX_READ);
    for (unsigned i = 0; i < load->n; ++i) {
        sim_box_watch_load(box, &deed, load->shared[i]);
        sim_mbarrier_expect_end(load->barriers[i], sim_box_bytes(box));
    }
    count_copy(issue, box);
    sim_async_submit(cluster, &load->async);
}

/* ---- stores ------------------------------------------------------------------------------------------------- */

struct bulk_store {
    struct sim_async read, write;
    struct bulk_store *next;
    struct issue issue;
    struct box box;
    unsigned group;
    sim_epoch epochs[2]; /* of reads and writes */
    bool read_waited, left; /* left: the thread has ended, nobody waits for the writes */
    bool adds;
    enum sim_reduce op;
    char *shared, *staged;
};

static void run_read(struct sim_async *async)
{
    struct bulk_store *store = (struct bulk_store *)async;
    sim_box_collect(&store->box, store->staged, store->shared);
}

static void give_store(struct bulk_store *store)
{
    sim_async_give(store->staged);
    sim_async_give(store);
}

static void run_write(struct sim_async *async)
{
    struct bulk_store *store = (struct bulk_store *)((char *)async - offsetof(struct bulk_store, write));
    sim_async_finish(store->issue.thread->cta->cluster, &store->read);
    if (store->adds) sim_box_add(&store->box, store->staged, store->op);
    else sim_box_write(&store->box, store->staged);
    if (store->left) give_store(store);
}

static void watch_store(struct bulk_store *store)
{
    const struct issue *issue = &store->issue;
    struct sim_cluster *cluster = issue->thread->cta->cluster;
    struct sim_copy_groups *groups = issue->thread->copies;
    for (int i = 0; i < 2; ++i) {
        if (!groups->bulk.agents[i]) groups->bulk.agents[i] = sim_agent_new(cluster);
        store->epochs[i] = sim_epoch_next(cluster, groups->bulk.agents[i]);
    }
    struct sim_deed deed = {issue->thread, store->epochs[0], true, issue->instruction, issue->site};
    sim_box_watch_store(&store->box, &deed, store->shared);
    deed.epoch = store->epochs[1];
    sim_box_watch_global(&store->box, &deed, store->adds ? BOX_REDUCE : BOX_WRITE);
    count_copy(issue, &store->box);
}

void sim_box_store(const struct box *box, const void *shared, const enum sim_reduce *op, const struct issue *issue)
{
    struct sim_thread *self = issue->thread;
    struct sim_cluster *cluster = self->cta->cluster;
    struct sim_copy_groups *groups = sim_copy_groups_of(self);
    struct bulk_store *store = sim_async_take(self->cta, sizeof *store);
    *store = (struct bulk_store){.read = {.run = run_read},
                                 .write = {.run = run_write},
                                 .issue = *issue,
                                 .box = *box,
                                 .group = groups->bulk.groups,
                                 .adds = op != NULL,
                                 .op = op ? *op : SIM_ADD_FP32,
                                 .shared = (char *)shared,
                                 .staged = sim_async_take(self->cta, sim_box_bytes(box))};
    watch_store(store);
    if (groups->bulk.last) groups->bulk.last->next = store;
    else groups->bulk.first = store;
    groups->bulk.last = store;
    sim_async_submit(cluster, &store->read);
    sim_async_submit(cluster, &store->write);
}

void sim_bulk_commit(void)
{
    sim_require_sm_90("cp.async.bulk.commit_group", SIM_SITE);
    ++sim_copy_groups_of(sim_self)->bulk.groups;
}

/* All groups but the last `pending` have read what they copy. */
void sim_bulk_wait_read(unsigned pending)
{
    sim_require_sm_90("cp.async.bulk.wait_group.read", SIM_SITE);
    const struct sim_copy_groups *groups = sim_copy_groups_of(sim_self);
    sim_epoch epoch = 0;
    for (struct bulk_store *s = groups->bulk.first; s && s->group + pending < groups->bulk.groups; s = s->next) {
        if (s->read_waited) continue;
        s->read_waited = true;
        sim_async_finish(sim_self->cta->cluster, &s->read);
        epoch = s->epochs[0];
    }
    if (epoch) sim_acquire_epoch(sim_self, epoch, true);
}

/* And have written it. */
void sim_bulk_wait(unsigned pending)
{
    sim_require_sm_90("cp.async.bulk.wait_group", SIM_SITE);
    struct sim_copy_groups *groups = sim_copy_groups_of(sim_self);
    struct bulk_store *s = groups->bulk.first;
    sim_epoch epochs[2] = {0, 0};
    while (s && s->group + pending < groups->bulk.groups) {
        struct bulk_store *next = s->next;
        sim_async_finish(sim_self->cta->cluster, &s->write);
        memcpy(epochs, s->epochs, sizeof epochs);
        give_store(s);
        s = next;
    }
    groups->bulk.first = s;
    if (!s) groups->bulk.last = NULL;
    for (int i = 0; i < 2; ++i)
        if (epochs[i]) sim_acquire_epoch(sim_self, epochs[i], true);
}

void sim_bulk_exit(struct sim_thread *thread)
{
    struct bulk_store *next;
    for (struct bulk_store *s = thread->copies->bulk.first; s; s = next) {
        next = s->next;
        if (!s->read_waited)
            sim_fail(thread, SIM_LEFT_PENDING, s->issue.instruction, s->issue.site, s->shared,
                     "The thread ends without a wait for this copy's reads of shared memory: "
                     "cp.async.bulk.wait_group.read.");
        if (s->write.done) give_store(s);
        else s->left = true;
    }
    thread->copies->bulk.first = thread->copies->bulk.last = NULL;
}

/* ---- plain copies ------------------------------------------------------------------------------------------- */

static const char copy_name[] = "cp.async.bulk", reduce_name[] = "cp.reduce.async.bulk";

/* Multiples of 16. */
static struct box plain_box(const void *data, const void *shared, unsigned bytes, const struct issue *issue)
{
    sim_require_sm_90(issue->instruction, issue->site);
    sim_async_shared(shared, 16, true, issue);
    if (bytes % 16 || bytes > MAX_TX)
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, shared,
                 "%u bytes; bulk copies are of multiples of 16 below 2^20.", bytes);
    if ((uintptr_t)data % 16)
        sim_fail(issue->thread, SIM_MISALIGNED, issue->instruction, issue->site, data,
                 "The address is no multiple of 16.");
    return sim_box_of_bytes(data, bytes);
}

static void check_global(const void *global, const struct issue *issue)
{
    unsigned rank;
    uint32_t offset;
    if (sim_in_window(issue->thread->cta->cluster, global, &rank, &offset))
        sim_fail(issue->thread, SIM_OUT_OF_BOUNDS, issue->instruction, issue->site, global,
                 "This is no address of global memory.");
}

void sim_bulk_load(void *shared, const void *global, unsigned bytes, void *mbarrier, uint16_t multicast)
{
    const struct issue issue = {sim_self, copy_name, SIM_SITE};
    const struct box box = plain_box(global, shared, bytes, &issue);
    check_global(global, &issue);
    sim_box_load(&box, shared, mbarrier, multicast, &issue);
    sim_tally(sim_self->cta->cluster)->global_read_requests += 1;
}

void sim_bulk_copy_cluster(void *shared_of_other, const void *shared, unsigned bytes, void *mbarrier_of_other)
{
    const struct issue issue = {sim_self, copy_name, SIM_SITE};
    const struct box box = plain_box(shared, shared_of_other, bytes, &issue);
    sim_async_shared(shared, 16, false, &issue);
    sim_box_load(&box, shared_of_other, mbarrier_of_other, 0, &issue);
}

static void store_bytes(void *global, const void *shared, unsigned bytes, const enum sim_reduce *op,
                        const struct issue *issue)
{
    const struct box box = plain_box(global, shared, bytes, issue);
    sim_async_shared(shared, 16, false, issue);
    check_global(global, issue);
    sim_box_store(&box, shared, op, issue);
    sim_tally(issue->thread->cta->cluster)->global_write_requests += 1;
}

void sim_bulk_store(void *global, const void *shared, unsigned bytes)
{
    store_bytes(global, shared, bytes, NULL, &(struct issue){sim_self, copy_name, SIM_SITE});
}

void sim_bulk_reduce(void *global, const void *shared, unsigned bytes, enum sim_reduce op)
{
    store_bytes(global, shared, bytes, &op, &(struct issue){sim_self, reduce_name, SIM_SITE});
}

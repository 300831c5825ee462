/* copy.c - cp.async: copies by thread, from global to shared memory, in groups.
 *
 * One agent a thread does them. Copies between two commits share an epoch, but that cp.async.mbarrier.arrive begins a
 * new one: who waits for it has not seen the copies after it. */
#include <string.h>

#include "kernels/sim/async.h"

static const char name[] = "cp.async";

struct cp_async {
    struct sim_async async;
    struct cp_async *next;
    struct issue issue;
    unsigned group;
    uint64_t number; /* of the thread's copies, from 0 */
    sim_epoch epoch;
    char *shared;
    const char *global;
    unsigned bytes, source_bytes;
    uint64_t work; /* of the thread, at the issue */
};

struct sim_copy_groups *sim_copy_groups_of(struct sim_thread *thread)
{
    if (!thread->copies) thread->copies = sim_async_take(thread->cta, sizeof *thread->copies);
    return thread->copies;
}

/* ---- copies ------------------------------------------------------------------------------------------------- */

static void run_copy(struct sim_async *async)
{
    const struct cp_async *copy = (struct cp_async *)async;
    memcpy(copy->shared, copy->global, copy->source_bytes);
    memset(copy->shared + copy->source_bytes, 0, copy->bytes - copy->source_bytes);
}

static void check_copy(const struct cp_async *copy)
{
    const struct issue *issue = &copy->issue;
    unsigned rank;
    uint32_t offset;
    if ((copy->bytes != 4 && copy->bytes != 8 && copy->bytes != 16) || copy->source_bytes > copy->bytes)
        sim_fail(issue->thread, SIM_BAD_OPERAND, name, issue->site, copy->shared,
                 "%u bytes of which %u are read; it copies 4, 8 or 16 bytes.", copy->bytes, copy->source_bytes);
    sim_async_shared(copy->shared, 1, false, issue);
    if (sim_in_window(issue->thread->cta->cluster, copy->global, &rank, &offset))
        sim_fail(issue->thread, SIM_OUT_OF_BOUNDS, name, issue->site, copy->global,
                 "The source is no address of global memory.");
}

static void watch_copy(const struct cp_async *copy)
{
    const struct issue *issue = &copy->issue;
    const struct sim_deed deed = {issue->thread, copy->epoch, false, name, issue->site};
    sim_watch_async_read(&deed, copy->global, copy->source_bytes, copy->bytes);
    sim_watch_async_write(&deed, copy->shared, copy->bytes, copy->bytes);
    struct sim_counts *counts = sim_tally(issue->thread->cta->cluster);
    counts->async_copies += 1;
    counts->async_copy_bytes += copy->bytes;
}

/* Copies that are done and that an mbarrier has told of: no wait need find them. */
static void drop_covered(struct sim_copy_groups *groups)
{
    struct cp_async *first = groups->cp_async.first;
    while (first && first->async.done && first->number < groups->cp_async.covered) {
        struct cp_async *next = first->next;
        sim_async_give(first);
        first = next;
    }
    groups->cp_async.first = first;
    if (!first) groups->cp_async.last = NULL;
}

static sim_epoch epoch_of_next(struct sim_thread *thread)
{
    struct sim_copy_groups *groups = sim_copy_groups_of(thread);
    struct sim_cluster *cluster = thread->cta->cluster;
    if (!groups->cp_async.agent) groups->cp_async.agent = sim_agent_new(cluster);
    if (!groups->cp_async.epoch) groups->cp_async.epoch = sim_epoch_next(cluster, groups->cp_async.agent);
    return groups->cp_async.epoch;
}

void sim_cp_async(void *shared, const void *global, unsigned bytes, unsigned source_bytes)
{
    struct sim_thread *self = sim_self;
    struct sim_copy_groups *groups = sim_copy_groups_of(self);
    drop_covered(groups);
    struct cp_async *copy = sim_async_take(self->cta, sizeof *copy);
    *copy = (struct cp_async){.async = {.run = run_copy},
                              .issue = {self, name, SIM_SITE},
                              .group = groups->cp_async.groups,
                              .number = groups->cp_async.issued++,
                              .epoch = epoch_of_next(self),
                              .shared = shared,
                              .global = global,
                              .bytes = bytes,
                              .source_bytes = source_bytes,
                              .work = self->overlap.work};
    ++self->overlap.copies;
    check_copy(copy);
    watch_copy(copy);
    if (groups->cp_async.last) groups->cp_async.last->next = copy;
    else groups->cp_async.first = copy;
    groups->cp_async.last = copy;
    sim_async_submit(self->cta->cluster, &copy->async);
}

/* ---- groups ------------------------------------------------------------------------------------------------- */

void sim_cp_async_commit(void)
{
    struct sim_copy_groups *groups = sim_copy_groups_of(sim_self);
    ++groups->cp_async.groups;
    groups->cp_async.epoch = 0;
}

/* The groups before this one are done, and the thread has seen them. */
static void wait_before(unsigned group)
{
    struct sim_copy_groups *groups = sim_copy_groups_of(sim_self);
    struct sim_cluster *cluster = sim_self->cta->cluster;
    struct cp_async *copy = groups->cp_async.first;
    sim_epoch epoch = 0;
    while (copy && copy->group < group) {
        struct cp_async *next = copy->next;
        sim_async_finish(cluster, &copy->async);
        epoch = copy->epoch;
        sim_overlap_copy_waited(sim_self, copy->work, copy->bytes);
        sim_async_give(copy);
        copy = next;
    }
    groups->cp_async.first = copy;
    if (!copy) groups->cp_async.last = NULL;
    if (epoch) sim_acquire_epoch(sim_self, epoch, false);
}

void sim_cp_async_wait(unsigned pending_groups)
{
    const unsigned committed = sim_copy_groups_of(sim_self)->cp_async.groups;
    if (committed > pending_groups) wait_before(committed - pending_groups);
}

void sim_cp_async_wait_all(void)
{
    struct sim_copy_groups *groups = sim_copy_groups_of(sim_self);
    groups->cp_async.epoch = 0;
    wait_before(groups->cp_async.groups + 1);
}

/* ---- cp.async.mbarrier.arrive ------------------------------------------------------------------------------- */

struct arrival {
    struct sim_async async;
    struct issue issue;
    struct mbarrier *barrier;
    uint64_t number; /* of copies before it */
    sim_epoch epoch; /* of the last of them; 0: there is none */
};

static void run_arrival(struct sim_async *async)
{
    struct arrival *arrival = (struct arrival *)async;
    struct sim_thread *thread = arrival->issue.thread;
    for (struct cp_async *copy = thread->copies->cp_async.first; copy && copy->number < arrival->number;
         copy = copy->next)
        sim_async_finish(thread->cta->cluster, &copy->async);
    sim_mbarrier_async_arrive(arrival->barrier, arrival->epoch, &arrival->issue);
    sim_async_give(arrival);
}

void sim_cp_async_mbarrier_arrive(void *mbarrier)
{
    struct sim_thread *self = sim_self;
    const struct issue issue = {self, "cp.async.mbarrier.arrive", SIM_SITE};
    sim_require_sm_90(issue.instruction, issue.site);
    struct sim_copy_groups *groups = sim_copy_groups_of(self);
    struct arrival *arrival = sim_async_take(self->cta, sizeof *arrival);
    *arrival = (struct arrival){.async = {.run = run_arrival},
                                .issue = issue,
                                .barrier = sim_mbarrier_at(mbarrier, &issue, USER_THREAD),
                                .number = groups->cp_async.issued,
                                .epoch = groups->cp_async.last ? groups->cp_async.last->epoch : 0};
    groups->cp_async.covered = groups->cp_async.issued;
    groups->cp_async.epoch = 0;
    self->overlap.copies = 0; /* the mbarrier's wait counts them */
    sim_mbarrier_expect_end(arrival->barrier, 0);
    sim_async_submit(self->cta->cluster, &arrival->async);
}

/* ---- ends --------------------------------------------------------------------------------------------------- */

void sim_copies_exit(struct sim_thread *thread)
{
    if (!thread->copies) return;
    for (const struct cp_async *copy = thread->copies->cp_async.first; copy; copy = copy->next)
        if (copy->number >= thread->copies->cp_async.covered)
            sim_fail(thread, SIM_LEFT_PENDING, name, copy->issue.site, copy->shared,
                     "The thread ends without a wait for this copy.");
    sim_bulk_exit(thread);
}

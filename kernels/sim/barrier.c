/* barrier.c - barriers of a CTA, 16 of them, and the barrier of a cluster.
 *
 * A barrier of a CTA counts whole warps: a warp has come when all of its lanes have, save those that have exited. The
 * barrier of __syncthreads is number 0 and counts the threads that have not exited. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/machine.h"
#include "kernels/sim/schedule.h"

enum { MAX_WARPS = SIM_MAX_THREADS / SIM_WARP, EVERYBODY = 0 };

/* One of the waits that a barrier let pass when it was last complete: who has not seen it may come before that. */
struct last_wait {
    sim_epoch epoch; /* 0: none yet */
    const struct sim_thread *thread;
    const void *site;
};

struct barrier {
    bool open;         /* somebody has come since it was last complete */
    unsigned expected; /* threads, or EVERYBODY */
    unsigned arrived;  /* threads that count: single ones of EVERYBODY, else whole warps */
    const char *instruction;        /* of the first that came; so are the others */
    const void *site;
    struct sim_thread *thread;
    bool arrivals;                  /* some came that do not wait: */
    struct sim_clock clock;         /* what they have seen */
    uint32_t lanes[MAX_WARPS], waiting[MAX_WARPS];
    const void *sites[MAX_WARPS];
    bool ordered[MAX_WARPS];        /* a lane that came has seen `last` */
    struct last_wait last;
};

struct sim_barriers {
    struct barrier numbers[SIM_NAMED_BARRIERS];
    struct sim_thread *threads[SIM_MAX_THREADS]; /* of `complete`: too many for a fiber's stack */
};

static const char *const sync_names[SIM_NAMED_BARRIERS] = {
    "bar.sync 0", "bar.sync 1", "bar.sync 2", "bar.sync 3", "bar.sync 4", "bar.sync 5", "bar.sync 6", "bar.sync 7",
    "bar.sync 8", "bar.sync 9", "bar.sync 10", "bar.sync 11", "bar.sync 12", "bar.sync 13", "bar.sync 14",
    "bar.sync 15"};

struct sim_barriers *sim_barriers_create(struct sim_cta *cta)
{
    struct sim_barriers *barriers = calloc(1, sizeof *barriers);
    if (!barriers) abort();
    for (unsigned i = 0; i < SIM_NAMED_BARRIERS; ++i) barriers->numbers[i].clock = sim_clock_new(cta->cluster);
    return barriers;
}

void sim_barriers_destroy(struct sim_barriers *barriers)
{
    free(barriers);
}

static uint32_t all_lanes(const struct barrier *b, const struct sim_warp *warp)
{
    return b->lanes[warp->index] | warp->exited;
}

static bool is_complete(const struct barrier *b, const struct sim_cta *cta)
{
    return b->open && b->arrived == (b->expected == EVERYBODY ? cta->num_threads - cta->num_exited : b->expected);
}

static void note_wait(struct barrier *b, const struct sim_thread *thread)
{
    const sim_epoch epoch = thread->agent << SIM_INTERVAL_BITS | thread->interval;
    b->last = (struct last_wait){epoch, thread, b->sites[thread->warp->index]};
}

/* Everybody that waits sees what everybody did. */
static void complete(struct barrier *b, struct sim_cta *cta)
{
    struct sim_thread **threads = cta->barriers->threads;
    unsigned n = 0;
    for (unsigned w = 0; w < cta->num_warps; ++w) {
        struct sim_warp *warp = &cta->warps[w];
        if (!b->waiting[w]) continue;
        ++sim_tally(cta->cluster)->barrier_waits;
        if (cta->cluster->counting) sim_log_flush(warp);
        for (uint32_t left = b->waiting[w]; left; left &= left - 1) threads[n++] = &warp->lanes[__builtin_ctz(left)];
        warp->at_barrier &= ~b->waiting[w];
        sim_wake_lanes(warp, b->waiting[w]);
    }
    if (b->arrivals && n) sim_acquire(threads[0], &b->clock);
    if (b->arrivals) sim_clock_reset(cta->cluster, &b->clock);
    if (n) note_wait(b, threads[0]);
    if (n) sim_clock_barrier(threads, n);
    const struct sim_clock clock = b->clock;
    const struct last_wait last = b->last;
    memset(b, 0, sizeof *b);
    b->clock = clock;
    b->last = last;
}

static _Noreturn void fail_place(const struct barrier *b, const char *instruction, const void *site,
                                 const void *other_site)
{
    char file[128];
    int line;
    sim_locate(other_site, file, sizeof file, &line);
    sim_fail(sim_self, SIM_DIVERGED, instruction, site, NULL,
             "other threads of the %s came to this barrier at %s:%d; all must execute the same instruction",
             b->expected == EVERYBODY ? "CTA" : "warp", file, line);
}

/* The running thread may come to barrier `id`, for `expected` threads. */
static void check_arrival(const struct barrier *b, unsigned id, unsigned expected, const char *instruction,
                          const void *site)
{
    struct sim_thread *self = sim_self;
    const unsigned w = self->warp->index;
    const uint32_t elsewhere = self->warp->at_barrier & ~b->lanes[w];
    sim_check_converged(self, b->lanes[w], instruction, site);
    if (elsewhere) sim_fail_elsewhere(self, instruction, site, &self->warp->lanes[__builtin_ctz(elsewhere)]);
    if (!b->open) return;
    if (b->expected != expected)
        sim_fail(self, SIM_BARRIER_COUNT, instruction, site, NULL,
                 "it expects %u threads at barrier %u, where %s of thread (%u, %u, %u) expects %u",
                 expected ? expected : self->cta->num_threads, id, b->instruction, b->thread->index[0],
                 b->thread->index[1], b->thread->index[2], b->expected ? b->expected : self->cta->num_threads);
    if (b->lanes[w] >> self->lane & 1)
        sim_fail(self, SIM_BARRIER_COUNT, instruction, site, NULL,
                 "the thread comes to barrier %u again before the barrier is complete: %u of %u threads have come",
                 id, b->arrived, expected);
    if (b->lanes[w] && !sim_same_place(b->sites[w], site)) fail_place(b, instruction, site, b->sites[w]);
    if (expected == EVERYBODY && !sim_same_place(b->site, site)) fail_place(b, instruction, site, b->site);
}

/* A warp has come to barrier `id`; could it have come before the barrier was last complete? */
static void check_order(const struct barrier *b, unsigned id, const char *instruction, const void *site)
{
    if (b->ordered[sim_self->warp->index]) return;
    char file[128];
    int line;
    sim_locate(b->last.site, file, sizeof file, &line);
    const unsigned *last = b->last.thread->index;
    sim_fail(sim_self, SIM_BARRIER_COUNT, instruction, site, NULL,
             "barrier %u was complete before, for thread (%u, %u, %u) at %s:%d; nothing orders this one after that: "
             "it may count there", id, last[0], last[1], last[2], file, line);
}

static void arrive(unsigned id, unsigned expected, bool wait, const void *site)
{
    struct sim_thread *self = sim_self;
    struct sim_warp *warp = self->warp;
    struct barrier *b = &self->cta->barriers->numbers[id];
    const char *instruction = wait ? "bar.sync" : "bar.arrive";
    const uint32_t bit = 1u << self->lane;
    check_arrival(b, id, expected, instruction, site);
    if (!b->open) {
        b->open = true;
        b->expected = expected;
        b->instruction = instruction;
        b->site = site;
        b->thread = self;
    }
    b->lanes[warp->index] |= bit;
    b->sites[warp->index] = site;
    b->ordered[warp->index] |= !b->last.epoch || sim_has_seen(self, b->last.epoch);
    if (expected == EVERYBODY) {
        ++b->arrived;
    } else if (all_lanes(b, warp) == ~0u) {
        check_order(b, id, instruction, site);
        b->arrived += SIM_WARP;
    }
    if (wait) {
        b->waiting[warp->index] |= bit;
    } else {
        b->arrivals = true;
        sim_release(self, &b->clock);
    }
    if (is_complete(b, self->cta)) {
        complete(b, self->cta);
        if (sim_draw(self->cta->cluster, 4) == 0) sim_pass();
    } else if (wait) {
        warp->at_barrier |= bit;
        sim_wait(sync_names[id], NULL, site);
    }
}

static void check_name(unsigned id, unsigned threads, const char *instruction, const void *site)
{
    if (id >= SIM_NAMED_BARRIERS)
        sim_fail(sim_self, SIM_BAD_OPERAND, instruction, site, NULL, "barrier %u: a CTA has barriers 0 to 15", id);
    if (!threads || threads % SIM_WARP)
        sim_fail(sim_self, SIM_BAD_OPERAND, instruction, site, NULL,
                 "barrier %u is to expect %u threads; it counts whole warps, a multiple of 32", id, threads);
    if (threads > sim_self->cta->num_warps * SIM_WARP)
        sim_fail(sim_self, SIM_BARRIER_COUNT, instruction, site, NULL,
                 "barrier %u is to expect %u threads; the CTA has %u", id, threads, sim_self->cta->num_threads);
}

void sim_sync_threads(void)
{
    arrive(0, EVERYBODY, true, SIM_SITE);
}

void sim_named_barrier_sync(unsigned id, unsigned threads)
{
    check_name(id, threads, "bar.sync", SIM_SITE);
    arrive(id, threads, true, SIM_SITE);
}

void sim_named_barrier_arrive(unsigned id, unsigned threads)
{
    check_name(id, threads, "bar.arrive", SIM_SITE);
    arrive(id, threads, false, SIM_SITE);
}

void sim_describe_barrier(const struct sim_thread *thread, char *text, size_t bytes)
{
    const struct sim_cta *cta = thread->cta;
    sim_describe_mbarrier(thread, text, bytes);
    for (unsigned i = 0; i < SIM_NAMED_BARRIERS; ++i) {
        const struct barrier *b = &cta->barriers->numbers[i];
        if (b->waiting[thread->warp->index] >> thread->lane & 1)
            snprintf(text, bytes, " (%u of %u threads have come)", b->arrived,
                     b->expected == EVERYBODY ? cta->num_threads - cta->num_exited : b->expected);
    }
}

/* ---- the barrier of a cluster ------------------------------------------------------------------------------- */

struct sim_cluster_barrier {
    unsigned phase, arrived; /* phases that are complete; threads that have come to the next one */
    struct sim_clock clocks[2]; /* of this phase and the last, by parity: threads may still have to wait for the last */
};

struct sim_cluster_barrier *sim_cluster_barrier_create(struct sim_cluster *cluster)
{
    struct sim_cluster_barrier *barrier = calloc(1, sizeof *barrier);
    if (!barrier) abort();
    for (unsigned i = 0; i < 2; ++i) barrier->clocks[i] = sim_clock_new(cluster);
    return barrier;
}

void sim_cluster_barrier_destroy(struct sim_cluster_barrier *barrier)
{
    free(barrier);
}

static unsigned num_live(const struct sim_cluster *cluster)
{
    unsigned live = cluster->num_threads;
    for (unsigned i = 0; i < cluster->num_ctas; ++i) live -= cluster->ctas[i].num_exited;
    return live;
}

static const char cluster_wait[] = "barrier.cluster.wait";

static void complete_cluster_phase(struct sim_cluster *cluster)
{
    struct sim_cluster_barrier *barrier = cluster->barrier;
    if (!barrier->arrived || barrier->arrived < num_live(cluster)) return;
    ++barrier->phase;
    barrier->arrived = 0;
    sim_clock_reset(cluster, &barrier->clocks[barrier->phase % 2]);
    for (unsigned i = 0; i < cluster->num_threads; ++i)
        if (cluster->threads[i].wait_what == cluster_wait) sim_wake(&cluster->threads[i]);
}

void sim_cluster_arrive(bool relaxed)
{
    static const char name[] = "barrier.cluster.arrive";
    struct sim_thread *self = sim_self;
    struct sim_cluster *cluster = self->cta->cluster;
    sim_require_sm_90(name, SIM_SITE);
    if (self->cluster_arrivals != self->cluster_waits)
        sim_fail(self, SIM_BARRIER_COUNT, name, SIM_SITE, NULL,
                 "the thread has not waited since it last arrived at the cluster's barrier");
    ++self->cluster_arrivals;
    ++cluster->barrier->arrived;
    struct sim_clock *clock = &cluster->barrier->clocks[cluster->barrier->phase % 2];
    if (relaxed) sim_mbarriers_hand_on(self, clock);
    else sim_release(self, clock);
    complete_cluster_phase(cluster);
}

void sim_cluster_wait(void)
{
    struct sim_thread *self = sim_self;
    struct sim_cluster_barrier *barrier = self->cta->cluster->barrier;
    sim_require_sm_90(cluster_wait, SIM_SITE);
    if (self->cluster_arrivals == self->cluster_waits)
        sim_fail(self, SIM_BARRIER_COUNT, cluster_wait, SIM_SITE, NULL,
                 "the thread has not arrived at the cluster's barrier");
    while (barrier->phase < self->cluster_arrivals) sim_wait(cluster_wait, NULL, SIM_SITE);
    self->wait_what = NULL;
    sim_acquire(self, &barrier->clocks[self->cluster_waits++ % 2]);
    if (self->warp->cluster_waits == self->cluster_waits) return;
    self->warp->cluster_waits = self->cluster_waits; /* the first of its warp */
    ++sim_tally(self->cta->cluster)->barrier_waits;
}

/* ---- ends --------------------------------------------------------------------------------------------------- */

void sim_barriers_exit(struct sim_thread *thread)
{
    struct sim_cta *cta = thread->cta;
    const unsigned w = thread->warp->index;
    if (thread->cluster_arrivals != thread->cluster_waits)
        sim_fail(thread, SIM_LEFT_PENDING, "barrier.cluster.arrive", NULL, NULL,
                 "the thread ends without a wait for the cluster's barrier, at which it has arrived");
    for (unsigned i = 0; i < SIM_NAMED_BARRIERS; ++i) {
        struct barrier *b = &cta->barriers->numbers[i];
        if (!b->open) continue;
        const bool had_come = b->lanes[w] >> thread->lane & 1;
        if (b->expected != EVERYBODY && b->lanes[w] && !had_come && all_lanes(b, thread->warp) == ~0u)
            b->arrived += SIM_WARP;
        if (is_complete(b, cta)) complete(b, cta);
    }
    complete_cluster_phase(cta->cluster);
}

void sim_barriers_finish(struct sim_cta *cta)
{
    for (unsigned i = 0; i < SIM_NAMED_BARRIERS; ++i) {
        const struct barrier *b = &cta->barriers->numbers[i];
        if (b->open)
            sim_fail(b->thread, SIM_LEFT_PENDING, b->instruction, b->site, NULL,
                     "the CTA ends with %u of %u threads at barrier %u", b->arrived, b->expected, i);
    }
}

/* mbarrier.c - barriers in shared memory that count threads and bytes.
 *
 * The state lies here, beside the 8 bytes of the object, which nothing else may touch. A barrier's phases are numbered
 * from 0; `phase` is the one that runs. A phase has a clock, which arrivals and the ends of asynchronous work fill and
 * a wait that it satisfies reads. It begins with what the last one held: who sees a phase sees those before it. No wait
 * is satisfied by a phase older than the last, so two clocks do. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/async.h"

enum { OBJECT_BYTES = 8, MAX_COUNT = (1 << 20) - 1, MAX_LOAD_AGENTS = 256, GIVE_UP = 8 };

/* Phases that had passed, plus 1, when a thread last waited, waited for the same phase again, and arrived; 0: never. */
struct waiter {
    uint32_t waited, again, arrived;
    struct issue issue; /* of the wait again */
};

struct mbarrier {
    struct sim_cta *cta;
    void *object;
    bool valid, released;    /* released: its maker has executed fence.mbarrier_init */
    struct sim_thread *maker;
    sim_epoch made, fenced;  /* fenced: who has seen it may hand the barrier to the async proxy and to other CTAs */
    sim_epoch handed_on;     /* by a relaxed arrival: who has seen it knows both; 0: never */
    unsigned count, pending; /* arrivals: of a phase, and still to come in this one */
    int64_t tx;              /* bytes to come in this phase */
    uint32_t phase;
    struct sim_clock clocks[2]; /* of phase % 2 */
    unsigned in_flight;      /* asynchronous work that will end here */
    int64_t bytes_in_flight; /* that it will bring */
    uint32_t phases_of_bytes, phases_seen; /* phases up to the last that counted bytes; up to the last waited for */
    struct issue last;       /* arrival, expectation or bytes */
    struct issue last_bytes;
    struct waiter *waiters;  /* by thread of the CTA */
    uint32_t waiting[SIM_MAX_THREADS / SIM_WARP];
};

struct memory {
    struct memory *next, *previous;
    _Alignas(max_align_t) char bytes[];
};

struct sim_mbarriers {
    struct sim_cta *cta;
    struct memory all;         /* a ring */
    struct mbarrier **at;
    unsigned num, capacity;
    struct load_agent agents[MAX_LOAD_AGENTS]; /* of the first CTA: for its cluster */
    unsigned num_agents;
    unsigned herald;           /* the agent of `handed_on`; 0: none yet */
};

/* ---- memory ------------------------------------------------------------------------------------------------- */

void *sim_async_take(struct sim_cta *cta, size_t bytes)
{
    struct memory *memory = calloc(1, sizeof *memory + bytes), *ring = &cta->mbarriers->all;
    if (!memory) abort();
    memory->next = ring;
    memory->previous = ring->previous;
    memory->previous->next = ring->previous = memory;
    return memory->bytes;
}

void sim_async_give(void *bytes)
{
    struct memory *memory = (struct memory *)((char *)bytes - offsetof(struct memory, bytes));
    memory->previous->next = memory->next;
    memory->next->previous = memory->previous;
    free(memory);
}

struct sim_mbarriers *sim_mbarriers_create(struct sim_cta *cta)
{
    struct sim_mbarriers *barriers = calloc(1, sizeof *barriers);
    if (!barriers) abort();
    barriers->cta = cta;
    barriers->all.next = barriers->all.previous = &barriers->all;
    return barriers;
}

void sim_mbarriers_destroy(struct sim_mbarriers *barriers)
{
    if (!barriers) return;
    while (barriers->all.next != &barriers->all) sim_async_give(barriers->all.next->bytes);
    free(barriers->at);
    free(barriers);
}

struct load_agent *sim_load_agent(const struct mbarrier *barrier)
{
    struct sim_cluster *cluster = barrier->cta->cluster;
    struct sim_mbarriers *pool = cluster->ctas[0].mbarriers;
    struct load_agent *found = NULL;
    for (unsigned i = 0; i < pool->num_agents; ++i) {
        struct load_agent *agent = &pool->agents[i];
        if (!agent->busy && (!found || agent->last == barrier)) found = agent;
    }
    if ((!found || found->last != barrier) && pool->num_agents < MAX_LOAD_AGENTS) {
        found = &pool->agents[pool->num_agents++];
        found->agent = sim_agent_new(cluster);
    }
    if (!found) found = &pool->agents[0]; /* more loads at once than that: their ends are not told apart */
    found->busy = true;
    found->last = barrier;
    return found;
}

/* ---- finding a barrier -------------------------------------------------------------------------------------- */

static struct mbarrier *find(const struct sim_mbarriers *barriers, const void *object)
{
    for (unsigned i = 0; i < barriers->num; ++i)
        if (barriers->at[i]->object == object) return barriers->at[i];
    return NULL;
}

const void *sim_mbarrier_object(const struct mbarrier *barrier) { return barrier->object; }

static struct sim_cta *cta_of(const void *object, const struct issue *issue)
{
    struct sim_cluster *cluster = issue->thread->cta->cluster;
    unsigned rank;
    uint32_t offset;
    if (!sim_in_window(cluster, object, &rank, &offset))
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, object,
                 "An mbarrier lies in shared memory.");
    if (offset % OBJECT_BYTES)
        sim_fail(issue->thread, SIM_MISALIGNED, issue->instruction, issue->site, object,
                 "An mbarrier lies at a multiple of %d.", OBJECT_BYTES);
    return &cluster->ctas[rank];
}

struct mbarrier *sim_mbarrier_at(const void *object, const struct issue *issue, enum mbarrier_user user)
{
    struct sim_cta *cta = cta_of(object, issue);
    struct mbarrier *b = find(cta->mbarriers, object);
    if (!b || !b->valid)
        sim_fail(issue->thread, SIM_UNINITIALISED, issue->instruction, issue->site, object,
                 "No mbarrier lies there: %s.", b ? "mbarrier.inval has ended it" : "mbarrier.init makes one");
    const unsigned *maker = b->maker->index;
    const bool is_told = b->handed_on && sim_has_seen(issue->thread, b->handed_on);
    const bool is_fenced = is_told || (b->fenced && sim_has_seen(issue->thread, b->fenced));
    if (!is_told && !sim_has_seen(issue->thread, b->made))
        sim_fail(issue->thread, SIM_RACE, issue->instruction, issue->site, object,
                 "Thread (%u, %u, %u) initialised the mbarrier, and no synchronisation lies between the two.", maker[0],
                 maker[1], maker[2]);
    if (!is_fenced && (user == USER_ASYNC_PROXY || cta != issue->thread->cta))
        sim_fail(issue->thread, SIM_MISSING_PROXY_FENCE, issue->instruction, issue->site, object,
                 "Thread (%u, %u, %u) initialised the mbarrier and did not execute fence.mbarrier_init before it "
                 "handed it over; %s may not know of it.", maker[0], maker[1], maker[2],
                 cta != issue->thread->cta ? "another CTA" : "the async proxy");
    return b;
}

/* ---- phases ------------------------------------------------------------------------------------------------- */

static struct sim_clock *clock_of(struct mbarrier *b) { return &b->clocks[b->phase % 2]; }

static void wake_all(struct mbarrier *b)
{
    for (unsigned w = 0; w < b->cta->num_warps; ++w) {
        for (uint32_t left = b->waiting[w]; left; left &= left - 1)
            sim_wake(&b->cta->warps[w].lanes[__builtin_ctz(left)]);
        b->waiting[w] = 0;
    }
}

/* After each arrival and each change of the bytes: is the phase complete? */
static void settle(struct mbarrier *b, const struct issue *issue)
{
    b->last = *issue;
    if (b->pending > 0 || b->tx != 0) return;
    ++b->phase;
    b->pending = b->count;
    sim_clock_copy(b->cta->cluster, clock_of(b), &b->clocks[(b->phase - 1) % 2]);
    wake_all(b);
}

static void arrive(struct mbarrier *b, unsigned count, const struct issue *issue)
{
    if (issue->thread->cta == b->cta) b->waiters[issue->thread->linear].arrived = b->phase + 1;
    if (count == 0 || count > MAX_COUNT)
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, b->object,
                 "%u arrivals at once; 1 to %d are possible.", count, MAX_COUNT);
    if (count > b->pending)
        sim_fail(issue->thread, SIM_BARRIER_COUNT, issue->instruction, issue->site, b->object,
                 "%u arrivals, but of the %u that phase %u waits for %u are still to come.", count, b->count, b->phase,
                 b->pending);
    b->pending -= count;
    settle(b, issue);
}

static void expect(struct mbarrier *b, unsigned bytes, const struct issue *issue)
{
    if (bytes > MAX_TX || b->tx + bytes > MAX_TX)
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, b->object,
                 "%u more bytes are expected; a phase may expect %d in all.", bytes, MAX_TX);
    if (b->pending == 0 && b->tx <= b->bytes_in_flight)
        sim_fail(issue->thread, SIM_BARRIER_COUNT, issue->instruction, issue->site, b->object,
                 "All arrivals of phase %u have come, and the %lld bytes that it waits for are on their way: it may be "
                 "complete before %u more bytes are expected.", b->phase, (long long)b->tx, bytes);
    b->tx += bytes;
}

void sim_mbarrier_expect_end(struct mbarrier *b, unsigned bytes)
{
    ++b->in_flight;
    b->bytes_in_flight += bytes;
}

static void end_of_async(struct mbarrier *b, sim_epoch epoch, bool async_proxy, const struct issue *issue)
{
    if (!b->valid)
        sim_fail(issue->thread, SIM_UNINITIALISED, issue->instruction, issue->site, b->object,
                 "The mbarrier on which this was to end is no more.");
    --b->in_flight;
    if (epoch) sim_clock_see(b->cta->cluster, clock_of(b), epoch, async_proxy);
}

void sim_mbarrier_bytes(struct mbarrier *b, unsigned bytes, sim_epoch epoch, const struct issue *issue)
{
    end_of_async(b, epoch, true, issue);
    b->bytes_in_flight -= bytes;
    b->phases_of_bytes = b->phase + 1;
    b->last_bytes = *issue;
    b->tx -= bytes;
    if (b->tx < -MAX_TX)
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, b->object,
                 "More than %d bytes have come that the mbarrier was not told to expect.", MAX_TX);
    settle(b, issue);
}

void sim_mbarrier_async_arrive(struct mbarrier *b, sim_epoch epoch, const struct issue *issue)
{
    end_of_async(b, epoch, false, issue);
    arrive(b, 1, issue);
}

/* ---- instructions ------------------------------------------------------------------------------------------- */

static struct mbarrier *make_room(struct sim_mbarriers *barriers, void *object)
{
    struct mbarrier *b = find(barriers, object);
    if (b) return b;
    if (barriers->num == barriers->capacity) {
        barriers->capacity = 2 * barriers->capacity + 8;
        barriers->at = realloc(barriers->at, barriers->capacity * sizeof *barriers->at);
        if (!barriers->at) abort();
    }
    b = sim_async_take(barriers->cta, sizeof *b);
    b->cta = barriers->cta;
    b->object = object;
    b->waiters = sim_async_take(b->cta, b->cta->num_threads * sizeof *b->waiters);
    return barriers->at[barriers->num++] = b;
}

void sim_mbarrier_init(void *object, unsigned count)
{
    const struct issue issue = {sim_self, "mbarrier.init", SIM_SITE};
    struct sim_thread *self = sim_self;
    sim_require_sm_90(issue.instruction, issue.site);
    if (cta_of(object, &issue) != self->cta)
        sim_fail(self, SIM_BAD_OPERAND, issue.instruction, issue.site, object,
                 "It lies in the shared memory of another CTA, which must initialise it itself.");
    if (count == 0 || count > MAX_COUNT)
        sim_fail(self, SIM_BAD_OPERAND, issue.instruction, issue.site, object,
                 "A phase of %u arrivals; 1 to %d are possible.", count, MAX_COUNT);
    struct mbarrier *b = make_room(self->cta->mbarriers, object);
    if (b->valid)
        sim_fail(self, SIM_BAD_OPERAND, issue.instruction, issue.site, object,
                 "An mbarrier lies there already; mbarrier.inval must end it first.");
    sim_shared_protect(self->cta, object, OBJECT_BYTES, "mbarrier", issue.site);
    for (int i = 0; i < 2; ++i) sim_clock_reset(self->cta->cluster, &b->clocks[i]);
    memset(b->waiters, 0, self->cta->num_threads * sizeof *b->waiters);
    b->valid = true;
    b->maker = self;
    b->made = self->agent << SIM_INTERVAL_BITS | self->interval;
    b->fenced = b->handed_on = 0;
    b->released = false;
    b->count = b->pending = count;
    b->tx = 0;
    b->phase = b->phases_of_bytes = b->phases_seen = 0;
    b->last = issue;
}

void sim_mbarrier_inval(void *object)
{
    const struct issue issue = {sim_self, "mbarrier.inval", SIM_SITE};
    sim_require_sm_90(issue.instruction, issue.site);
    struct mbarrier *b = sim_mbarrier_at(object, &issue, USER_THREAD);
    bool in_use = b->in_flight > 0 || b->pending != b->count || b->tx != 0;
    for (unsigned w = 0; w < b->cta->num_warps; ++w) in_use |= b->waiting[w] != 0;
    if (in_use || b->cta != sim_self->cta)
        sim_fail(sim_self, SIM_BAD_OPERAND, issue.instruction, issue.site, object, "%s",
                 in_use ? "The mbarrier is in use." : "The mbarrier is another CTA's.");
    b->valid = false;
    sim_shared_protect(b->cta, object, OBJECT_BYTES, NULL, issue.site);
}

/* Instructions that name shared::cta. */
static struct mbarrier *own_barrier(const void *object, const struct issue *issue)
{
    sim_require_sm_90(issue->instruction, issue->site);
    struct mbarrier *b = sim_mbarrier_at(object, issue, USER_THREAD);
    if (b->cta != issue->thread->cta)
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, object,
                 "The mbarrier is another CTA's; this instruction reaches those of its own CTA only.");
    return b;
}

void sim_mbarrier_arrive(void *object, unsigned count)
{
    const struct issue issue = {sim_self, "mbarrier.arrive", SIM_SITE};
    struct mbarrier *b = own_barrier(object, &issue);
    sim_release(sim_self, clock_of(b));
    arrive(b, count, &issue);
}

void sim_mbarrier_arrive_cluster(void *object, unsigned count)
{
    const struct issue issue = {sim_self, "mbarrier.arrive", SIM_SITE};
    sim_require_sm_90(issue.instruction, issue.site);
    struct mbarrier *b = sim_mbarrier_at(object, &issue, USER_THREAD);
    sim_shared_note_remote(b->cta, object, issue.instruction, issue.site);
    sim_release(sim_self, clock_of(b));
    arrive(b, count, &issue);
}

void sim_mbarrier_arrive_expect_tx(void *object, unsigned bytes)
{
    const struct issue issue = {sim_self, "mbarrier.arrive.expect_tx", SIM_SITE};
    struct mbarrier *b = own_barrier(object, &issue);
    expect(b, bytes, &issue);
    sim_release(sim_self, clock_of(b));
    arrive(b, 1, &issue);
}

void sim_mbarrier_expect_tx(void *object, unsigned bytes)
{
    const struct issue issue = {sim_self, "mbarrier.expect_tx", SIM_SITE};
    struct mbarrier *b = own_barrier(object, &issue);
    expect(b, bytes, &issue);
    settle(b, &issue);
}

/* ---- waits -------------------------------------------------------------------------------------------------- */

static bool has_passed(const struct mbarrier *b, unsigned parity) { return b->phase % 2 != parity; }

static _Noreturn void fail_parity(const struct mbarrier *b, uint32_t phases, const struct issue *issue)
{
    sim_fail(issue->thread, SIM_WRONG_PARITY, issue->instruction, issue->site, b->object,
             "The wait for parity %u is satisfied by a phase that this thread has already waited for (%u passed, none "
             "since), and another follows that it does not wait for; the parity to wait for turns with each phase.",
             (phases - 1) % 2, phases);
}

/* The phase before the running one satisfies the wait. A thread may wait for it again, but not where it has arrived in
 * the next one, nor where it then leaves that out. */
static void note_wait(struct mbarrier *b, const struct issue *issue)
{
    struct waiter *waiter = &b->waiters[issue->thread->linear];
    if (waiter->waited == b->phase + 1) {
        if (waiter->arrived == b->phase + 1) fail_parity(b, b->phase, issue);
        waiter->again = b->phase + 1;
        waiter->issue = *issue;
    } else if (waiter->again != 0 && waiter->again == waiter->waited && b->phase > waiter->again) {
        fail_parity(b, waiter->again - 1, &waiter->issue);
    }
    waiter->waited = b->phase + 1;
}

static bool pass(struct mbarrier *b, const struct issue *issue)
{
    struct sim_thread *self = issue->thread;
    if (b->phase > b->phases_seen) b->phases_seen = b->phase;
    if (b->phase > 0) sim_acquire(self, &b->clocks[(b->phase - 1) % 2]);
    ++sim_tally(b->cta->cluster)->mbarrier_waits;
    if (b->phase > 0 && b->phases_of_bytes >= b->phase) sim_overlap_bytes_waited(self);
    return true;
}

static struct mbarrier *begin_wait(const void *object, unsigned parity, const struct issue *issue)
{
    struct mbarrier *b = own_barrier(object, issue);
    if (parity > 1)
        sim_fail(sim_self, SIM_BAD_OPERAND, issue->instruction, issue->site, object,
                 "The parity is %u; it is 0 or 1.", parity);
    return b;
}

bool sim_mbarrier_try_wait(const void *object, unsigned parity)
{
    const struct issue issue = {sim_self, "mbarrier.try_wait", SIM_SITE};
    const char *what = parity ? "mbarrier.try_wait parity 1" : "mbarrier.try_wait parity 0";
    struct sim_thread *self = sim_self;
    struct mbarrier *b = begin_wait(object, parity, &issue);
    if (!has_passed(b, parity) && sim_draw(self->cta->cluster, GIVE_UP) == 0) {
        sim_yield(what, object, issue.site);
        if (!b->valid || !has_passed(b, parity)) return false;
        note_wait(b, &issue);
        return pass(b, &issue);
    }
    while (!has_passed(b, parity)) {
        b->waiting[self->warp->index] |= 1u << self->lane;
        sim_wait(what, object, issue.site);
    }
    note_wait(b, &issue);
    return pass(b, &issue);
}

/* It may be a look ahead: the thread need not have waited. */
bool sim_mbarrier_test_wait(const void *object, unsigned parity)
{
    const struct issue issue = {sim_self, "mbarrier.test_wait", SIM_SITE};
    struct mbarrier *b = begin_wait(object, parity, &issue);
    if (has_passed(b, parity)) return pass(b, &issue);
    sim_yield(parity ? "mbarrier.test_wait parity 1" : "mbarrier.test_wait parity 0", object, issue.site);
    return false;
}

/* ---- fences ------------------------------------------------------------------------------------------------- */

static void fence_barriers(struct sim_thread *thread, bool releases)
{
    const struct sim_mbarriers *barriers = thread->cta->mbarriers;
    for (unsigned i = 0; i < barriers->num; ++i) {
        struct mbarrier *b = barriers->at[i];
        if (b->maker != thread) continue;
        if (!b->fenced) b->fenced = thread->agent << SIM_INTERVAL_BITS | thread->interval;
        b->released |= releases;
    }
}

void sim_fence_mbarrier_init(void)
{
    sim_require_sm_90("fence.mbarrier_init", SIM_SITE);
    fence_barriers(sim_self, true);
}

void sim_mbarriers_hand_on(struct sim_thread *thread, struct sim_clock *clock)
{
    struct sim_mbarriers *barriers = thread->cta->mbarriers;
    struct sim_cluster *cluster = thread->cta->cluster;
    sim_epoch epoch = 0;
    for (unsigned i = 0; i < barriers->num; ++i) {
        struct mbarrier *b = barriers->at[i];
        if (b->maker != thread || !b->released || b->handed_on) continue;
        if (!barriers->herald) barriers->herald = sim_agent_new(cluster);
        if (!epoch) epoch = sim_epoch_next(cluster, barriers->herald);
        b->handed_on = epoch;
    }
    if (epoch) sim_clock_see(cluster, clock, epoch, false);
}

void sim_fence_proxy_async(void)
{
    sim_require_sm_90("fence.proxy.async", SIM_SITE);
    fence_barriers(sim_self, false);
    sim_clock_fence_proxy(sim_self);
}

void sim_fence_proxy_async_shared(void)
{
    sim_require_sm_90("fence.proxy.async", SIM_SITE);
    fence_barriers(sim_self, false);
    sim_clock_fence_proxy(sim_self);
}

void sim_describe_mbarrier(const struct sim_thread *thread, char *text, size_t bytes)
{
    unsigned rank;
    uint32_t offset;
    text[0] = '\0';
    if (!thread->wait_object || !sim_in_window(thread->cta->cluster, thread->wait_object, &rank, &offset)) return;
    const struct mbarrier *b = find(thread->cta->cluster->ctas[rank].mbarriers, thread->wait_object);
    if (b)
        snprintf(text, bytes, " (in phase %u: %u of %u arrivals have come; %lld bytes %s)", b->phase,
                 b->count - b->pending, b->count, (long long)(b->tx < 0 ? -b->tx : b->tx),
                 b->tx < 0 ? "more than expected have come" : "are still to come");
}

/* ---- ends --------------------------------------------------------------------------------------------------- */

void sim_mbarriers_finish(struct sim_cta *cta)
{
    for (unsigned i = 0; i < cta->mbarriers->num; ++i) {
        const struct mbarrier *b = cta->mbarriers->at[i];
        const struct issue *last = &b->last, *load = &b->last_bytes;
        if (!b->valid) continue;
        if (b->pending != b->count || b->tx != 0)
            sim_fail(last->thread, SIM_LEFT_PENDING, last->instruction, last->site, b->object,
                     "The CTA ends within phase %u of the mbarrier: %u of %u arrivals have come, and %lld bytes %s.",
                     b->phase, b->count - b->pending, b->count, (long long)(b->tx < 0 ? -b->tx : b->tx),
                     b->tx < 0 ? "that it was not told to expect" : "are still expected");
        if (b->phases_of_bytes > b->phases_seen)
            sim_fail(load->thread, SIM_LEFT_PENDING, load->instruction, load->site, b->object,
                     "Bytes came in phase %u of the mbarrier, and no thread has waited for it: they may come when the "
                     "CTA is gone.", b->phases_of_bytes - 1);
    }
}

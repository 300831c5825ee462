/* clock.c - who has seen what.
 *
 * A vector holds, for every agent, up to which of its intervals the owner has seen its deeds, and up to which they
 * may be read through the async proxy. Vectors that are equal are shared and copied before they change, so that a
 * barrier costs one vector and not one a thread. A thread's own entry may lag: its interval and `fenced` are in the
 * thread. */
#include "kernels/sim/watch.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_INTERVAL = (1 << SIM_INTERVAL_BITS) - 1, SPARE_AGENTS = 32 };

struct sim_clock_store {
    struct sim_vector *free;
    struct block *blocks;
    char *next;     /* unused bytes of the first block */
    size_t left;
    uint32_t size;  /* of new vectors */
    uint32_t last_id;
};

struct block {
    struct block *next;
    char bytes[];
};

/* Vectors are cut from blocks, which live as long as the cluster's run. */
static void *take(struct sim_clock_store *store, size_t bytes)
{
    enum { BLOCK = 256 * 1024 };
    bytes = (bytes + 7) & ~(size_t)7;
    if (store->left < bytes) {
        const size_t size = bytes > BLOCK ? bytes : BLOCK;
        struct block *block = malloc(sizeof *block + size);
        if (!block) abort();
        block->next = store->blocks;
        store->blocks = block;
        store->next = block->bytes;
        store->left = size;
    }
    void *p = store->next;
    store->next += bytes;
    store->left -= bytes;
    return p;
}

static struct sim_vector *vector_new(struct sim_clock_store *store)
{
    struct sim_vector *v = store->free;
    if (v) {
        store->free = v->free;
    } else {
        v = take(store, sizeof *v + 2 * store->size * sizeof *v->at);
        v->size = store->size;
    }
    v->references = 1;
    v->id = ++store->last_id;
    return v;
}

static void vector_drop(struct sim_clock_store *store, struct sim_vector *v)
{
    if (!v || --v->references > 0 || v->size != store->size) return;
    v->free = store->free;
    store->free = v;
}

static void copy_into(struct sim_vector *to, const struct sim_vector *from)
{
    const uint32_t n = from ? from->size : 0;
    for (int half = 0; half < 2; half++) {
        uint32_t *at = to->at + half * to->size;
        if (n > 0) memcpy(at, from->at + half * n, n * sizeof *at);
        memset(at + n, 0, (to->size - n) * sizeof *at);
    }
}

/* The clock's vector, its own alone and of the size that all agents need. */
static struct sim_vector *writable(struct sim_clock_store *store, struct sim_clock *clock)
{
    struct sim_vector *old = clock->vector;
    if (old && old->references == 1 && old->size == store->size) return old;
    struct sim_vector *v = vector_new(store);
    copy_into(v, old);
    vector_drop(store, old);
    return clock->vector = v;
}

static inline void raise(uint32_t *at, uint32_t value)
{
    if (*at < value) *at = value;
}

static void join(struct sim_vector *to, const struct sim_vector *from)
{
    if (!from || from == to) return;
    for (int half = 0; half < 2; half++) {
        uint32_t *restrict a = to->at + half * to->size;
        const uint32_t *restrict b = from->at + half * from->size;
        for (uint32_t i = 0; i < from->size; i++) a[i] = a[i] > b[i] ? a[i] : b[i];
    }
}

static void join_thread(struct sim_vector *to, const struct sim_thread *thread)
{
    raise(&to->at[thread->agent], thread->interval);
    raise(&to->at[to->size + thread->agent], thread->fenced);
}

void sim_clocks_begin(struct sim_cluster *cluster)
{
    struct sim_clock_store *store = calloc(1, sizeof *store);
    if (!store) abort();
    store->size = cluster->num_threads + SPARE_AGENTS;
    cluster->clocks = store;
    cluster->num_agents = cluster->num_threads;
    cluster->last_interval = 0;
    for (unsigned i = 0; i < cluster->num_threads; i++) {
        struct sim_thread *thread = &cluster->threads[i];
        thread->clock.vector = NULL;
        thread->interval = 1;
        thread->fenced = 0;
    }
}

void sim_clocks_end(struct sim_cluster *cluster)
{
    struct sim_clock_store *store = cluster->clocks;
    if (!store) return;
    for (struct block *block = store->blocks, *next; block; block = next) {
        next = block->next;
        free(block);
    }
    free(store);
    cluster->clocks = NULL;
}

struct sim_clock sim_clock_new(struct sim_cluster *cluster)
{
    (void)cluster;
    return (struct sim_clock){NULL};
}

void sim_clock_reset(struct sim_cluster *cluster, struct sim_clock *clock)
{
    vector_drop(cluster->clocks, clock->vector);
    clock->vector = NULL;
}

void sim_clock_copy(struct sim_cluster *cluster, struct sim_clock *to, const struct sim_clock *from)
{
    if (from->vector) from->vector->references++;
    vector_drop(cluster->clocks, to->vector);
    to->vector = from->vector;
}

unsigned sim_agent_new(struct sim_cluster *cluster)
{
    struct sim_clock_store *store = cluster->clocks;
    if (cluster->num_agents == SIM_MAX_AGENTS)
        sim_fail(sim_self ? sim_self : cluster->threads, SIM_LIMIT, "asynchronous copy", NULL, NULL,
                 "More than %d threads and asynchronous operations in one cluster.", SIM_MAX_AGENTS);
    if (cluster->num_agents == store->size) { /* vectors grow when they are next written */
        store->size += store->size / 2;
        if (store->size > SIM_MAX_AGENTS) store->size = SIM_MAX_AGENTS;
        store->free = NULL;
    }
    return cluster->num_agents++;
}

static uint32_t next_interval(struct sim_cluster *cluster, uint32_t *interval)
{
    if (*interval == MAX_INTERVAL)
        sim_fail(sim_self ? sim_self : cluster->threads, SIM_LIMIT, "synchronisation", NULL, NULL,
                 "A thread synchronises more than %d times; the simulated GPU cannot tell them apart.",
                 MAX_INTERVAL);
    return ++*interval;
}

sim_epoch sim_epoch_next(struct sim_cluster *cluster, unsigned agent)
{
    uint32_t *interval = agent < cluster->num_threads ? &cluster->threads[agent].interval : &cluster->last_interval;
    return agent << SIM_INTERVAL_BITS | next_interval(cluster, interval);
}

void sim_release(struct sim_thread *thread, struct sim_clock *clock)
{
    struct sim_cluster *cluster = thread->cta->cluster;
    if (!clock->vector && thread->clock.vector) {
        clock->vector = thread->clock.vector;
        clock->vector->references++;
    }
    struct sim_vector *v = writable(cluster->clocks, clock);
    join(v, thread->clock.vector);
    join_thread(v, thread);
    next_interval(cluster, &thread->interval);
}

void sim_acquire(struct sim_thread *thread, const struct sim_clock *clock)
{
    if (!clock->vector || clock->vector == thread->clock.vector) return;
    join(writable(thread->cta->cluster->clocks, &thread->clock), clock->vector);
}

void sim_clock_see(struct sim_cluster *cluster, struct sim_clock *clock, sim_epoch epoch, bool through_async_proxy)
{
    struct sim_vector *v = writable(cluster->clocks, clock);
    raise(&v->at[agent_of(epoch)], interval_of(epoch));
    if (through_async_proxy) raise(&v->at[v->size + agent_of(epoch)], interval_of(epoch));
}

void sim_acquire_epoch(struct sim_thread *thread, sim_epoch epoch, bool through_async_proxy)
{
    sim_clock_see(thread->cta->cluster, &thread->clock, epoch, through_async_proxy);
}

void sim_clock_barrier(struct sim_thread *const *threads, unsigned n)
{
    if (n == 0) return;
    struct sim_cluster *cluster = threads[0]->cta->cluster;
    struct sim_clock all = {NULL};
    struct sim_vector *v = writable(cluster->clocks, &all);
    const struct sim_vector *last = NULL;
    for (unsigned i = 0; i < n; i++) {
        if (threads[i]->clock.vector != last) join(v, threads[i]->clock.vector);
        last = threads[i]->clock.vector;
        join_thread(v, threads[i]);
    }
    v->references = n;
    for (unsigned i = 0; i < n; i++) {
        vector_drop(cluster->clocks, threads[i]->clock.vector);
        threads[i]->clock = all;
        next_interval(cluster, &threads[i]->interval);
    }
}

void sim_clock_fence_proxy(struct sim_thread *thread)
{
    struct sim_cluster *cluster = thread->cta->cluster;
    thread->fenced = thread->interval;
    next_interval(cluster, &thread->interval);
    if (cluster->num_agents == cluster->num_threads || !thread->clock.vector) return;
    struct sim_vector *v = writable(cluster->clocks, &thread->clock);
    for (unsigned a = cluster->num_threads; a < v->size; a++) raise(&v->at[v->size + a], v->at[a]);
}

bool sim_has_seen(const struct sim_thread *thread, sim_epoch epoch) { return has_seen(thread, epoch); }

bool sim_has_seen_fenced(const struct sim_thread *thread, sim_epoch epoch)
{
    const unsigned agent = agent_of(epoch);
    const struct sim_vector *v = thread->clock.vector;
    if (agent == thread->agent) return thread->fenced >= interval_of(epoch);
    return v && agent < v->size && v->at[v->size + agent] >= interval_of(epoch);
}

/* watch_test_histories.c - random histories of accesses, against happens-before by its definition.
 *
 * A history is a list of events of a few threads and asynchronous operations: accesses, releases and acquires,
 * barriers, fences, asynchronous copies and their ends. The simulated GPU is given the events one by one, until it
 * fails; the model here keeps for each event the set of all events that happen before it, and compares every pair of
 * accesses. Both must stop at the same event, for the same rule. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "kernels/sim/machine.h"

enum {
    NUM_HISTORIES = 10000,
    THREADS = 40,
    ACTORS = 6, /* threads that take part */
    ASYNC_AGENTS = 3,
    CLOCKS = 3,
    EVENTS = 128,
    BYTES = 48
};

enum kind {
    READ, WRITE, RELEASE, ACQUIRE, BARRIER, FENCE, ISSUE_READ, ISSUE_WRITE, FINISH_FOR_CLOCK, FINISH_FOR_THREAD
};

struct event {
    enum kind kind;
    unsigned thread; /* index of the actor */
    unsigned clock, agent, offset, bytes;
    unsigned members;  /* of a barrier: mask of actors */
    unsigned finished; /* FINISH: the event that issued it */
    bool proxy;
};

struct history {
    int length;
    bool global; /* the bytes lie in global memory */
    struct event events[EVENTS];
};

/* ---- drawing a history -------------------------------------------------------------------------------------- */

static uint64_t state;

static unsigned draw(unsigned n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (unsigned)(state >> 33) % n;
}

static bool is_issue(enum kind kind) { return kind == ISSUE_READ || kind == ISSUE_WRITE; }
static bool is_access(enum kind kind) { return kind == READ || kind == WRITE || is_issue(kind); }
static bool is_write(enum kind kind) { return kind == WRITE || kind == ISSUE_WRITE; }

static enum kind draw_kind(unsigned accesses, unsigned issues)
{
    static const enum kind others[] = {RELEASE, ACQUIRE, BARRIER, FENCE, FINISH_FOR_CLOCK, FINISH_FOR_THREAD};
    if (draw(16) < issues) return draw(3) ? ISSUE_READ : ISSUE_WRITE;
    if (draw(16) < accesses) return draw(3) ? READ : WRITE;
    return others[draw(sizeof others / sizeof *others)];
}

/* Some histories are mostly accesses, some mostly synchronisation. */
static void draw_history(struct history *h, uint64_t seed)
{
    state = seed * 0x9E3779B97F4A7C15u + 12345;
    h->length = 8 + (int)draw(EVENTS - 8);
    h->global = draw(2);
    const bool full_barriers = draw(2);
    const unsigned accesses = 1 + draw(7), issues = draw(4);
    for (int i = 0; i < h->length; i++) {
        struct event *e = &h->events[i];
        *e = (struct event){.kind = draw_kind(accesses, issues), .thread = draw(ACTORS),
                            .clock = draw(CLOCKS), .agent = draw(ASYNC_AGENTS), .proxy = draw(2)};
        e->bytes = 1u << draw(4);
        e->offset = draw(BYTES / e->bytes) * e->bytes;
        e->members = full_barriers ? (1u << ACTORS) - 1 : draw(1u << ACTORS);
        if (e->kind != FINISH_FOR_CLOCK && e->kind != FINISH_FOR_THREAD) continue;
        unsigned issued[EVENTS], n = 0;
        for (int k = 0; k < i; k++)
            if (is_issue(h->events[k].kind)) issued[n++] = (unsigned)k;
        if (n > 0) e->finished = issued[draw(n)];
        else e->kind = FENCE;
    }
}

/* ---- the model ---------------------------------------------------------------------------------------------- */

typedef struct { uint64_t bits[2]; } set; /* of events; event -1, the first write of all bytes, is before everything */

static bool has(const set *s, int i) { return s->bits[i / 64] >> i % 64 & 1; }
static void put(set *s, int i) { s->bits[i / 64] |= (uint64_t)1 << i % 64; }
static void unite(set *s, const set *t) { s->bits[0] |= t->bits[0], s->bits[1] |= t->bits[1]; }

struct model {
    set before[ACTORS];      /* what each actor has done and seen */
    set handed[CLOCKS];
    set fenced[ACTORS], handed_fenced[CLOCKS]; /* of these, what may be read through the async proxy */
};

/* The deeds of one agent end in order: who has seen one has seen the earlier ones. */
static void see_deed(const struct history *h, unsigned issue, set *seen, set *fenced)
{
    const struct event *e = &h->events[issue];
    for (unsigned k = 0; k <= issue; k++) {
        if (!is_issue(h->events[k].kind) || h->events[k].agent != e->agent) continue;
        put(seen, (int)k);
        if (e->proxy) put(fenced, (int)k);
    }
}

static unsigned conflict(const struct history *h, const struct model *m, int other)
{
    const struct event *e = &h->events[other];
    return 1u << (!is_issue(e->kind) || has(&m->before[e->thread], other) ? SIM_RACE : SIM_MISSING_WAIT);
}

/* Byte by byte: the last write, and the reads since. Gives the rules that the access may be said to break (1 <<
 * rule), more than one where several things are wrong with a byte; 0: none. */
static unsigned check_access(const struct history *h, const struct model *m, int i)
{
    const struct event *e = &h->events[i];
    for (unsigned b = e->offset; b < e->offset + e->bytes; b++) {
        int last_write = -1;
        for (int k = 0; k < i; k++) {
            const struct event *f = &h->events[k];
            if (is_access(f->kind) && is_write(f->kind) && b >= f->offset && b < f->offset + f->bytes) last_write = k;
        }
        if (last_write >= 0 && !has(&m->before[e->thread], last_write)) return conflict(h, m, last_write);
        unsigned broken = 0;
        if (is_issue(e->kind) && e->proxy && last_write >= 0 && !has(&m->fenced[e->thread], last_write))
            broken |= 1u << SIM_MISSING_PROXY_FENCE;
        for (int k = last_write + 1; k < i && is_write(e->kind); k++) {
            const struct event *f = &h->events[k];
            if (is_access(f->kind) && b >= f->offset && b < f->offset + f->bytes && !has(&m->before[e->thread], k))
                broken |= conflict(h, m, k);
        }
        if (broken) return broken;
    }
    return 0;
}

static void fence(const struct history *h, struct model *m, unsigned thread, int now)
{
    for (int k = 0; k < now; k++) {
        const struct event *f = &h->events[k];
        if (is_access(f->kind) && (is_issue(f->kind) || f->thread == thread) && has(&m->before[thread], k))
            put(&m->fenced[thread], k);
    }
}

static void model_barrier(struct model *m, unsigned members)
{
    set all = {{0, 0}}, fenced = all;
    for (unsigned t = 0; t < ACTORS; t++)
        if (members >> t & 1) unite(&all, &m->before[t]), unite(&fenced, &m->fenced[t]);
    for (unsigned t = 0; t < ACTORS; t++)
        if (members >> t & 1) m->before[t] = all, m->fenced[t] = fenced;
}

/* Where and why (1 << rule) the history is found guilty; its length and 1 << SIM_CLEAN: nowhere. */
static int run_model(const struct history *h, unsigned *rules)
{
    struct model m;
    memset(&m, 0, sizeof m);
    for (int i = 0; i < h->length; i++) {
        const struct event *e = &h->events[i];
        set *before = &m.before[e->thread], *fenced = &m.fenced[e->thread];
        *rules = is_access(e->kind) ? check_access(h, &m, i) : 0;
        if (*rules) return i;
        if (e->kind == READ || e->kind == WRITE) put(before, i);
        if (e->kind == RELEASE) unite(&m.handed[e->clock], before), unite(&m.handed_fenced[e->clock], fenced);
        if (e->kind == ACQUIRE) unite(before, &m.handed[e->clock]), unite(fenced, &m.handed_fenced[e->clock]);
        if (e->kind == FENCE) fence(h, &m, e->thread, i);
        if (e->kind == BARRIER) model_barrier(&m, e->members);
        if (e->kind == FINISH_FOR_THREAD) see_deed(h, e->finished, before, fenced);
        if (e->kind == FINISH_FOR_CLOCK) see_deed(h, e->finished, &m.handed[e->clock], &m.handed_fenced[e->clock]);
    }
    *rules = 1u << SIM_CLEAN;
    return h->length;
}

/* ---- the simulated GPU -------------------------------------------------------------------------------------- */

static int reached;
static char memory[BYTES] __attribute__((aligned(64)));

static void play(const struct history *h, char *bytes)
{
    struct sim_thread *first = sim_self;
    struct sim_cluster *cluster = first->cta->cluster;
    struct sim_clock clocks[CLOCKS];
    unsigned agents[ASYNC_AGENTS];
    sim_epoch issued[EVENTS] = {0};
    for (int c = 0; c < CLOCKS; c++) clocks[c] = sim_clock_new(cluster);
    for (int a = 0; a < ASYNC_AGENTS; a++) agents[a] = sim_agent_new(cluster);
    for (int i = 0; i < h->length; i++) {
        const struct event *e = &h->events[i], *f = &h->events[e->finished];
        struct sim_thread *self = sim_self = &cluster->threads[e->thread * 7 % THREADS], *members[ACTORS];
        struct sim_deed deed = {self, 0, e->proxy, "copy", NULL};
        unsigned n = 0;
        reached = i;
        if (is_issue(e->kind)) deed.epoch = issued[i] = sim_epoch_next(cluster, agents[e->agent]);
        for (unsigned t = 0; t < ACTORS; t++)
            if (e->members >> t & 1) members[n++] = &cluster->threads[t * 7 % THREADS];
        switch (e->kind) {
        case READ: sim_watch_read(bytes + e->offset, e->bytes, e->bytes, "load", NULL); break;
        case WRITE: sim_watch_write(bytes + e->offset, e->bytes, e->bytes, "store", NULL); break;
        case RELEASE: sim_release(self, &clocks[e->clock]); break;
        case ACQUIRE: sim_acquire(self, &clocks[e->clock]); break;
        case BARRIER: sim_clock_barrier(members, n); break;
        case FENCE: sim_clock_fence_proxy(self); break;
        case ISSUE_READ: sim_watch_async_read(&deed, bytes + e->offset, e->bytes, 1); break;
        case ISSUE_WRITE: sim_watch_async_write(&deed, bytes + e->offset, e->bytes, 1); break;
        case FINISH_FOR_THREAD: sim_acquire_epoch(self, issued[e->finished], f->proxy); break;
        case FINISH_FOR_CLOCK: sim_clock_see(cluster, &clocks[e->clock], issued[e->finished], f->proxy); break;
        }
    }
    reached = h->length;
    sim_self = first;
}

static const struct history *played;

/* Thread 0 plays the parts of all, after a barrier that orders the first writes before everything. */
static void body(const void *args)
{
    (void)args;
    char *bytes = played->global ? memory : sim_shared_dynamic(16);
    if (sim_self->linear == 0) {
        sim_watch_write(bytes, BYTES, 1, "store", NULL);
        sim_clock_fence_proxy(sim_self);
    }
    sim_sync_threads();
    if (sim_self->linear == 0) play(played, bytes);
}

static enum sim_rule run_on_sim(struct sim_gpu *gpu, const struct history *h)
{
    const struct sim_launch launch = {.kernel = "history", .grid = {1, 1, 1}, .block = {THREADS, 1, 1},
                                      .cluster = {1, 1, 1}, .dynamic_shared = BYTES, .max_threads = THREADS,
                                      .min_blocks = 1, .body = body};
    played = h;
    reached = -1;
    return sim_launch(gpu, &launch);
}

Test(watch, agrees_with_happens_before_on_random_histories)
{
    const struct sim_options options = {.generation = SIM_SM_90, .seed = 3, .workers = 1};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    int found[SIM_NOT_WRITTEN + 2] = {0};
    sim_map(gpu, "memory", memory, sizeof memory, SIM_READ | SIM_WRITE);
    for (int i = 0; i < NUM_HISTORIES; i++) {
        static struct history h;
        unsigned expected;
        draw_history(&h, (uint64_t)i);
        const int at = run_model(&h, &expected);
        const enum sim_rule rule = run_on_sim(gpu, &h);
        cr_assert(expected >> rule & 1 && reached == at, "history %d: %s at event %d, not rules %x at %d\n%s", i,
                  sim_rule_name(rule), reached, expected, at, sim_last_report(gpu)->text);
        found[rule]++;
    }
    printf("%d histories: %d clean, %d races, %d missing waits, %d missing fences\n", NUM_HISTORIES, found[SIM_CLEAN],
           found[SIM_RACE], found[SIM_MISSING_WAIT], found[SIM_MISSING_PROXY_FENCE]);
    cr_assert(found[SIM_CLEAN] > NUM_HISTORIES / 10 && found[SIM_RACE] > NUM_HISTORIES / 10 &&
              found[SIM_MISSING_WAIT] > NUM_HISTORIES / 20 && found[SIM_MISSING_PROXY_FENCE] > NUM_HISTORIES / 50);
    sim_gpu_destroy(gpu);
}

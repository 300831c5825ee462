/* schedule.c - who runs next: a seeded game in which any order that the machine allows may come up. */
#include "kernels/sim/schedule.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/fiber.h"

enum {
    MAX_WARPS = 256, /* of a cluster: 8 CTAs of 32 */
    STAY = 8,        /* the next thread is of the same warp, but for one time in STAY */
    ASYNC = 8,       /* SIM_ASYNC_RANDOM: one time in ASYNC, pending work comes first */
    /* Rounds in which threads do nothing but ask again, until they are taken to ask for ever. */
    MAX_IDLE_ROUNDS = 100000
};

struct sim_schedule {
    uint64_t ready[MAX_WARPS / 64]; /* warps that have ready lanes */
    struct sim_warp *warp;          /* whose turn it is */
    unsigned lane;                  /* where to look for its next ready lane */
    unsigned num_live, num_yielded, idle_rounds;
    bool async_due, none_ready;     /* what a thread found when it gave its turn: the host goes on from there */
    bool abandoned;
    jmp_buf leave;
    struct sim_async **pending;
    size_t num_pending, pending_capacity;
};

struct sim_schedule *sim_schedule_create(void)
{
    return calloc(1, sizeof(struct sim_schedule));
}

void sim_schedule_destroy(struct sim_schedule *schedule)
{
    if (!schedule) return;
    free(schedule->pending);
    free(schedule);
}

uint32_t sim_draw(struct sim_cluster *cluster, uint32_t n)
{
    cluster->random = cluster->random * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((cluster->random >> 32) * n >> 32);
}

/* ---- ready and waiting -------------------------------------------------------------------------------------- */

static struct sim_schedule *schedule_of(const struct sim_thread *thread)
{
    return thread->cta->cluster->schedule;
}

static void set_ready(struct sim_warp *warp, uint32_t lanes)
{
    const size_t number = (size_t)(warp - warp->cta->cluster->warps);
    warp->ready |= lanes;
    warp->cta->cluster->schedule->ready[number / 64] |= 1ull << number % 64;
}

static void clear_ready(struct sim_warp *warp, uint32_t lane)
{
    const size_t number = (size_t)(warp - warp->cta->cluster->warps);
    warp->ready &= ~lane;
    if (!warp->ready) warp->cta->cluster->schedule->ready[number / 64] &= ~(1ull << number % 64);
}

/* ---- the game ----------------------------------------------------------------------------------------------- */

static struct sim_warp *draw_warp(struct sim_cluster *cluster)
{
    const uint64_t *ready = cluster->schedule->ready;
    const unsigned start = sim_draw(cluster, cluster->num_warps), words = (cluster->num_warps + 63) / 64;
    uint64_t word = ready[start / 64] >> start % 64 << start % 64;
    for (unsigned i = 0; i <= words; ++i) {
        if (word) return &cluster->warps[(start / 64 + i) % words * 64 + (unsigned)__builtin_ctzll(word)];
        word = ready[(start / 64 + i + 1) % words];
    }
    return NULL;
}

/* The thread whose turn it is: NULL, where none is ready. */
static struct sim_thread *choose(struct sim_cluster *cluster)
{
    struct sim_schedule *schedule = cluster->schedule;
    if (!schedule->warp || !schedule->warp->ready || sim_draw(cluster, STAY) == 0) {
        schedule->warp = draw_warp(cluster);
        if (!schedule->warp) return NULL;
        schedule->lane = sim_draw(cluster, schedule->warp->num_lanes);
    }
    const uint32_t ready = schedule->warp->ready, above = ready >> schedule->lane << schedule->lane;
    const unsigned lane = (unsigned)__builtin_ctz(above ? above : ready);
    schedule->lane = (lane + 1) % SIM_WARP;
    return &schedule->warp->lanes[lane];
}

/* Pending work comes first. */
static bool draw_async(struct sim_cluster *cluster)
{
    return cluster->schedule->num_pending && sim_options_of(cluster)->async == SIM_ASYNC_RANDOM &&
           sim_draw(cluster, ASYNC) == 0;
}

/* The running thread's turn is over. The next one's begins at once, where the next step of the game is a thread's. */
static void give_turn(void)
{
    struct sim_cluster *cluster = sim_self->cta->cluster;
    struct sim_schedule *schedule = cluster->schedule;
    struct sim_thread *next = NULL;
    if (schedule->num_live) {
        schedule->async_due = draw_async(cluster);
        if (!schedule->async_due) next = choose(cluster);
        schedule->none_ready = !schedule->async_due && !next;
    }
    if (!next) {
        sim_fiber_suspend();
        return;
    }
    ++sim_tally(cluster)->fiber_switches;
    if (next != sim_self) sim_fiber_switch(next);
}

/* ---- waits -------------------------------------------------------------------------------------------------- */

static void note_wait(struct sim_thread *thread, const char *what, const void *object, const void *site)
{
    thread->wait_what = what;
    thread->wait_object = object;
    thread->wait_site = site;
    clear_ready(thread->warp, 1u << thread->lane);
}

void sim_wait(const char *what, const void *object, const void *site)
{
    sim_self->state = SIM_WAITING;
    note_wait(sim_self, what, object, site);
    give_turn();
}

void sim_wake(struct sim_thread *thread)
{
    if (thread->state != SIM_WAITING) return;
    thread->state = SIM_READY;
    set_ready(thread->warp, 1u << thread->lane);
    schedule_of(thread)->idle_rounds = 0;
}

void sim_wake_lanes(struct sim_warp *warp, uint32_t lanes)
{
    for (uint32_t left = lanes; left; left &= left - 1) warp->lanes[__builtin_ctz(left)].state = SIM_READY;
    set_ready(warp, lanes);
}

void sim_yield(const char *what, const void *object, const void *site)
{
    note_wait(sim_self, what, object, site);
    sim_self->warp->yielded |= 1u << sim_self->lane;
    ++schedule_of(sim_self)->num_yielded;
    give_turn();
}

void sim_pass(void)
{
    schedule_of(sim_self)->warp = NULL;
    give_turn();
}

static void revive_yielded(struct sim_cluster *cluster)
{
    for (unsigned w = 0; w < cluster->num_warps; ++w) {
        struct sim_warp *warp = &cluster->warps[w];
        if (warp->yielded) set_ready(warp, warp->yielded);
        warp->yielded = 0;
    }
    cluster->schedule->num_yielded = 0;
}

/* ---- asynchronous work -------------------------------------------------------------------------------------- */

static void run_async(struct sim_schedule *schedule, struct sim_async *op)
{
    struct sim_async *last = schedule->pending[--schedule->num_pending];
    schedule->pending[op->place] = last;
    last->place = op->place;
    op->done = true;
    schedule->idle_rounds = 0;
    op->run(op);
}

static void run_any_async(struct sim_cluster *cluster)
{
    struct sim_schedule *schedule = cluster->schedule;
    run_async(schedule, schedule->pending[sim_draw(cluster, (uint32_t)schedule->num_pending)]);
}

void sim_async_submit(struct sim_cluster *cluster, struct sim_async *op)
{
    struct sim_schedule *schedule = cluster->schedule;
    if (schedule->num_pending == schedule->pending_capacity) {
        const size_t capacity = 2 * schedule->pending_capacity + 64;
        struct sim_async **pending = realloc(schedule->pending, capacity * sizeof *pending);
        if (!pending) abort();
        schedule->pending = pending;
        schedule->pending_capacity = capacity;
    }
    op->done = false;
    op->place = schedule->num_pending;
    schedule->pending[schedule->num_pending++] = op;
    if (sim_options_of(cluster)->async == SIM_ASYNC_EARLY) run_async(schedule, op);
}

void sim_async_finish(struct sim_cluster *cluster, struct sim_async *op)
{
    if (!op->done) run_async(cluster->schedule, op);
}

/* ---- deadlock ----------------------------------------------------------------------------------------------- */

struct text {
    char *at;
    size_t left;
};

__attribute__((format(printf, 2, 3))) static void append(struct text *text, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    const int n = vsnprintf(text->at, text->left, format, arguments);
    va_end(arguments);
    const size_t used = n < 0 ? 0 : (size_t)n < text->left ? (size_t)n : text->left - 1;
    text->at += used;
    text->left -= used;
}

static bool is_waiting(const struct sim_thread *thread)
{
    return thread->state == SIM_WAITING || (thread->warp->yielded >> thread->lane & 1);
}

static bool same_wait(const struct sim_thread *a, const struct sim_thread *b)
{
    return a->cta == b->cta && is_waiting(a) && is_waiting(b) && a->wait_object == b->wait_object &&
           a->wait_site == b->wait_site && strcmp(a->wait_what, b->wait_what) == 0;
}

/* "threads 0-31, 64-95 wait at long/forward_sm80.cu:120 for mbarrier.try_wait parity 1 of shared + 0x400" */
static void append_group(struct text *text, const struct sim_thread *first)
{
    const struct sim_cta *cta = first->cta;
    const struct sim_cluster *cluster = cta->cluster;
    const char *separator = "thread ";
    for (unsigned i = first->linear + 1; i < cta->num_threads; ++i)
        if (same_wait(first, &cta->threads[i])) separator = "threads ";
    for (unsigned i = first->linear; i < cta->num_threads; ++i) {
        if (!same_wait(first, &cta->threads[i])) continue;
        unsigned last = i;
        while (last + 1 < cta->num_threads && same_wait(first, &cta->threads[last + 1])) ++last;
        append(text, last > i ? "%s%u-%u" : "%s%u", separator, i, last);
        separator = ", ";
        i = last;
    }
    if (cluster->num_ctas > 1) append(text, " of CTA %u", cta->rank);
    char file[128];
    int line;
    sim_locate(first->wait_site, file, sizeof file, &line);
    append(text, " wait");
    if (line > 0) append(text, " at %s:%d", file, line);
    append(text, " for %s", first->wait_what);
    if (first->wait_object) {
        char place[128];
        sim_describe_address(cluster, first->wait_object, place, sizeof place);
        append(text, " of %s", place);
    }
    char who[128];
    sim_describe_meeting(first, who, sizeof who);
    append(text, "%s", who);
    sim_describe_barrier(first, who, sizeof who);
    append(text, "%s", who);
}

static _Noreturn void report_deadlock(struct sim_cluster *cluster)
{
    char list[700];
    struct text text = {list, sizeof list};
    struct sim_thread *culprit = NULL;
    list[0] = '\0';
    for (unsigned i = 0; i < cluster->num_threads; ++i) {
        struct sim_thread *thread = &cluster->threads[i];
        if (!is_waiting(thread)) continue;
        bool listed = false;
        for (unsigned j = 0; j < i && !listed; ++j) listed = same_wait(&cluster->threads[j], thread);
        if (listed) continue;
        if (culprit) append(&text, "; ");
        else culprit = thread;
        append_group(&text, thread);
    }
    char instruction[48]; /* the first word */
    snprintf(instruction, sizeof instruction, "%.*s", (int)strcspn(culprit->wait_what, " "), culprit->wait_what);
    sim_fail(culprit, SIM_DEADLOCK, instruction, culprit->wait_site, culprit->wait_object,
             "nobody can go on: %s", list);
}

/* ---- the host's part ------------------------------------------------------------------------------------------ */

static void resume(struct sim_thread *thread)
{
    struct sim_cluster *cluster = thread->cta->cluster;
    ++sim_tally(cluster)->fiber_switches;
    sim_fiber_resume(thread);
    if (cluster->schedule->abandoned) longjmp(cluster->schedule->leave, 1);
}

/* Nobody is ready: asynchronous work goes on, then those who ask again may. */
static void stir(struct sim_cluster *cluster)
{
    struct sim_schedule *schedule = cluster->schedule;
    if (schedule->num_pending) run_any_async(cluster);
    else if (!schedule->num_yielded || ++schedule->idle_rounds > MAX_IDLE_ROUNDS) report_deadlock(cluster);
    revive_yielded(cluster);
}

void sim_schedule_begin(struct sim_cluster *cluster)
{
    struct sim_schedule *schedule = cluster->schedule;
    memset(schedule->ready, 0, sizeof schedule->ready);
    schedule->warp = NULL;
    schedule->num_live = cluster->num_threads;
    schedule->num_yielded = schedule->idle_rounds = 0;
    schedule->async_due = schedule->none_ready = schedule->abandoned = false;
    schedule->num_pending = 0;
    for (unsigned w = 0; w < cluster->num_warps; ++w) set_ready(&cluster->warps[w], ~cluster->warps[w].exited);
}

void sim_schedule_run(struct sim_cluster *cluster)
{
    struct sim_schedule *schedule = cluster->schedule;
    while (schedule->num_live) {
        if (schedule->async_due || (!schedule->none_ready && draw_async(cluster))) run_any_async(cluster);
        struct sim_thread *thread = schedule->none_ready ? NULL : choose(cluster);
        schedule->async_due = schedule->none_ready = false;
        if (thread) resume(thread);
        else stir(cluster);
    }
    while (schedule->num_pending) run_any_async(cluster);
}

void sim_schedule_exit(void)
{
    struct sim_thread *self = sim_self;
    self->state = SIM_EXITED;
    clear_ready(self->warp, 1u << self->lane);
    --schedule_of(self)->num_live;
    schedule_of(self)->idle_rounds = 0;
    give_turn();
    abort();
}

void sim_schedule_guard(struct sim_cluster *cluster, void (*deeds)(struct sim_cluster *cluster))
{
    if (setjmp(cluster->schedule->leave) == 0) deeds(cluster);
    sim_self = NULL;
}

void sim_abandon(struct sim_cluster *cluster)
{
    if (!sim_self) longjmp(cluster->schedule->leave, 1);
    cluster->schedule->abandoned = true;
    sim_fiber_suspend();
    abort();
}

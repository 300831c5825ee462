/* collective.c - instructions that the lanes of a warp, or the warps of a warpgroup, execute together.
 *
 * The first to come opens a meeting, on its own stack, where it stays until the meeting is held; the last to come holds
 * it for all. Lanes with other member masks may have meetings of their own at the same time. */
#include <stdio.h>
#include <string.h>

#include "kernels/sim/machine.h"
#include "kernels/sim/schedule.h"

/* Members that have exited: instructions that name their members go on without them (PTX: "all non-exited threads"). */
enum exits { EXITS_FAIL, EXITS_PASS };
/* bar.warp.sync of any place meets any other. */
enum places { ONE_PLACE, ANY_PLACE };

struct sim_meeting {
    const char *instruction;
    const void *site;
    uint32_t members;  /* as all of them name them; of a warpgroup: ~0 */
    uint32_t arrived;
    unsigned num_arrived; /* of a warpgroup */
    enum exits exits;
    enum places places;
    void (*run)(struct sim_warp *warp, void *const *args);
};

bool sim_same_place(const void *site, const void *other_site)
{
    if (site == other_site || !sim_has_lines(site)) return true; /* a compiler may have doubled what is one place */
    const uint64_t chain = sim_chain(site);
    return chain != 0 && chain == sim_chain(other_site);
}

void sim_fail_elsewhere(struct sim_thread *thread, const char *instruction, const void *site,
                        const struct sim_thread *other)
{
    char place[160] = "", file[128];
    int line;
    sim_locate(other->wait_site, file, sizeof file, &line);
    if (line > 0) snprintf(place, sizeof place, " at %s:%d", file, line);
    sim_fail(thread, SIM_DIVERGED, instruction, site, NULL,
             "thread (%u, %u, %u) waits in %s%s for this one to come there; all must execute the same instruction",
             other->index[0], other->index[1], other->index[2], other->wait_what, place);
}

static bool is_same(const struct sim_meeting *meeting, const struct sim_meeting *wanted)
{
    return meeting->members == wanted->members &&
           (meeting->instruction == wanted->instruction || strcmp(meeting->instruction, wanted->instruction) == 0) &&
           (wanted->places == ANY_PLACE || sim_same_place(meeting->site, wanted->site));
}

/* Lanes of the warp, save those in `come`, that wait for this thread in a collective, though it is at another. */
static void check_warp(struct sim_thread *thread, uint32_t come, const char *instruction, const void *site)
{
    struct sim_warp *warp = thread->warp;
    for (uint32_t left = warp->meeting & ~come; left; left &= left - 1) {
        const struct sim_thread *other = &warp->lanes[__builtin_ctz(left)];
        if (other->meeting->members >> thread->lane & 1)
            sim_fail_elsewhere(thread, instruction, site, other);
    }
}

static struct sim_warp *first_of_group(struct sim_warp *warp)
{
    return warp - warp->index % (SIM_WARPGROUP / SIM_WARP);
}

static struct sim_thread *in_meeting(struct sim_thread *threads, unsigned n, const struct sim_meeting *meeting)
{
    for (unsigned i = 0; i < n; ++i)
        if (threads[i].meeting == meeting) return &threads[i];
    return NULL;
}

/* The same of the collectives of warpgroups. */
static void check_warp_in_group(struct sim_thread *thread, uint32_t come, const char *instruction, const void *site)
{
    const struct sim_meeting *group = first_of_group(thread->warp)->group_meeting;
    for (unsigned i = 0; group && i < thread->warp->num_lanes; ++i)
        if (thread->warp->lanes[i].meeting == group && !(come >> i & 1))
            sim_fail_elsewhere(thread, instruction, site, &thread->warp->lanes[i]);
}

void sim_check_converged(struct sim_thread *thread, uint32_t come, const char *instruction, const void *site)
{
    check_warp(thread, come, instruction, site);
    check_warp_in_group(thread, come, instruction, site);
}

/* Members that wait at a barrier of the CTA, which opens for whole warps. */
static void check_barriers(struct sim_thread *self, const struct sim_meeting *wanted)
{
    const uint32_t at_barrier = self->warp->at_barrier & wanted->members;
    if (!at_barrier) return;
    sim_fail_elsewhere(self, wanted->instruction, wanted->site, &self->warp->lanes[__builtin_ctz(at_barrier)]);
}

/* The meeting of these members that is already open: NULL, if there is none. */
static struct sim_meeting *find(struct sim_thread *self, const struct sim_meeting *wanted)
{
    struct sim_warp *warp = self->warp;
    struct sim_meeting *found = NULL;
    uint32_t left = warp->meeting & wanted->members;
    for (; left && !found; left &= left - 1) {
        struct sim_meeting *meeting = warp->lanes[__builtin_ctz(left)].meeting;
        if (is_same(meeting, wanted)) found = meeting;
    }
    if (!found) sim_check_converged(self, 0, wanted->instruction, wanted->site);
    else if (left & ~found->arrived) check_warp(self, found->arrived, wanted->instruction, wanted->site);
    return found;
}

/* Lanes that the meeting still waits for. */
static uint32_t absent(const struct sim_meeting *meeting, const struct sim_warp *warp)
{
    return meeting->members & ~(meeting->arrived | warp->exited);
}

/* All are there. The caller, perhaps one of them, does not wait. */
static void hold(struct sim_warp *warp, const struct sim_meeting *meeting)
{
    void *args[SIM_WARP] = {NULL};
    const uint32_t arrived = meeting->arrived;
    for (uint32_t left = arrived; left; left &= left - 1) {
        struct sim_thread *thread = &warp->lanes[__builtin_ctz(left)];
        args[thread->lane] = thread->collective_args;
        thread->meeting = NULL;
    }
    warp->meeting &= ~arrived;
    ++sim_tally(warp->cta->cluster)->warp_collectives;
    if (warp->cta->cluster->counting && (arrived | warp->exited) == ~0u) sim_log_flush(warp);
    meeting->run(warp, args);
    sim_wake_lanes(warp, arrived & ~(1u << sim_self->lane));
}

static void pass_sometimes(void)
{
    if (sim_draw(sim_self->cta->cluster, 4) == 0) sim_pass();
}

static void meet(struct sim_meeting *wanted, void *args)
{
    struct sim_thread *self = sim_self;
    struct sim_warp *warp = self->warp;
    if (!(wanted->members >> self->lane & 1))
        sim_fail(self, SIM_DIVERGED, wanted->instruction, wanted->site, NULL,
                 "the member mask 0x%08x lacks lane %u, which executes it", wanted->members, self->lane);
    if (wanted->exits == EXITS_FAIL && (wanted->members & warp->exited))
        sim_fail(self, SIM_DIVERGED, wanted->instruction, wanted->site, NULL,
                 "the whole warp must execute it; lanes 0x%08x have exited or are not there",
                 wanted->members & warp->exited);
    check_barriers(self, wanted);
    struct sim_meeting *meeting = find(self, wanted);
    if (!meeting) meeting = wanted;
    self->collective_args = args;
    meeting->arrived |= 1u << self->lane;
    if (!absent(meeting, warp)) {
        hold(warp, meeting);
        pass_sometimes();
    } else {
        self->meeting = meeting;
        warp->meeting |= 1u << self->lane;
        sim_wait(wanted->instruction, NULL, wanted->site);
    }
}

void sim_collect_warp(const char *instruction, const void *site, uint32_t members, void *args,
                      void (*run)(struct sim_warp *warp, void *const args[SIM_WARP]))
{
    struct sim_meeting wanted = {instruction, site, members, 0, 0, EXITS_FAIL, ONE_PLACE, run};
    meet(&wanted, args);
}

/* ---- warpgroups --------------------------------------------------------------------------------------------- */

static void hold_group(struct sim_warp *first, const struct sim_meeting *meeting)
{
    void *args[SIM_WARPGROUP];
    struct sim_thread *threads = first->lanes;
    for (unsigned i = 0; i < SIM_WARPGROUP; ++i) {
        args[i] = threads[i].collective_args;
        threads[i].meeting = NULL;
    }
    first->group_meeting = NULL;
    for (unsigned w = 0; first->cta->cluster->counting && w < SIM_WARPGROUP / SIM_WARP; ++w) sim_log_flush(first + w);
    meeting->run(first, args);
    for (unsigned w = 0; w < SIM_WARPGROUP / SIM_WARP; ++w)
        sim_wake_lanes(first + w, first + w == sim_self->warp ? ~(1u << sim_self->lane) : ~0u);
}

/* Everybody can come: four whole warps, none of them elsewhere. */
static void check_group(struct sim_thread *self, struct sim_warp *first, const struct sim_meeting *wanted)
{
    const char *instruction = wanted->instruction;
    if (first->index * SIM_WARP + SIM_WARPGROUP > self->cta->num_threads)
        sim_fail(self, SIM_DIVERGED, instruction, wanted->site, NULL,
                 "four whole warps must execute it; the last warpgroup of this CTA has fewer");
    for (unsigned w = 0; w < SIM_WARPGROUP / SIM_WARP; ++w)
        if (first[w].exited)
            sim_fail(self, SIM_DIVERGED, instruction, wanted->site, NULL,
                     "four whole warps must execute it; lanes 0x%08x of warp %u have exited", first[w].exited,
                     first[w].index);
    check_barriers(self, wanted);
    check_warp(self, 0, instruction, wanted->site);
    const struct sim_meeting *meeting = first->group_meeting;
    if (meeting && !is_same(meeting, wanted))
        sim_fail_elsewhere(self, instruction, wanted->site, in_meeting(first->lanes, SIM_WARPGROUP, meeting));
}

void sim_collect_warpgroup(const char *instruction, const void *site, void *args,
                           void (*run)(struct sim_warp *first, void *const args[SIM_WARPGROUP]))
{
    struct sim_thread *self = sim_self;
    struct sim_warp *first = first_of_group(self->warp);
    struct sim_meeting wanted = {instruction, site, ~0u, 0, 0, EXITS_FAIL, ONE_PLACE, run};
    check_group(self, first, &wanted);
    struct sim_meeting *meeting = first->group_meeting;
    if (!meeting) meeting = first->group_meeting = &wanted;
    self->collective_args = args;
    if (++meeting->num_arrived == SIM_WARPGROUP) {
        hold_group(first, meeting);
        pass_sometimes();
    } else {
        self->meeting = meeting;
        sim_wait(instruction, NULL, site);
    }
}

/* ---- ends --------------------------------------------------------------------------------------------------- */

static _Noreturn void fail_absent(struct sim_thread *waiting, const struct sim_thread *exited)
{
    sim_fail(waiting, SIM_DIVERGED, waiting->meeting->instruction, waiting->meeting->site, NULL,
             "thread (%u, %u, %u), which must execute it too, has exited", exited->index[0], exited->index[1],
             exited->index[2]);
}

void sim_collective_exit(struct sim_thread *thread)
{
    struct sim_warp *warp = thread->warp, *first = first_of_group(warp);
    warp->exited |= 1u << thread->lane;
    if (first->group_meeting) fail_absent(in_meeting(first->lanes, SIM_WARPGROUP, first->group_meeting), thread);
    for (uint32_t left = warp->meeting; left; left &= warp->meeting & (left - 1)) {
        struct sim_thread *other = &warp->lanes[__builtin_ctz(left)];
        if (!(other->meeting->members >> thread->lane & 1)) continue;
        if (other->meeting->exits == EXITS_FAIL) fail_absent(other, thread);
        if (!absent(other->meeting, warp)) hold(warp, other->meeting);
    }
    if (warp->exited == ~0u && warp->cta->cluster->counting) sim_log_flush(warp);
}

/* "3, 8-15" */
static void append_lanes(char *text, size_t bytes, uint32_t lanes)
{
    size_t used = 0;
    text[0] = '\0';
    for (unsigned i = 0; i < SIM_WARP; ++i) {
        if (!(lanes >> i & 1)) continue;
        unsigned last = i;
        while (last + 1 < SIM_WARP && (lanes >> (last + 1) & 1)) ++last;
        const int n = snprintf(text + used, bytes - used, i == last ? "%s%u" : "%s%u-%u", used ? ", " : "", i, last);
        used += (size_t)n < bytes - used ? (size_t)n : bytes - used - 1;
        i = last;
    }
}

void sim_describe_meeting(const struct sim_thread *thread, char *text, size_t bytes)
{
    const struct sim_meeting *meeting = thread->meeting;
    text[0] = '\0';
    if (!meeting) return;
    if (meeting->num_arrived) {
        snprintf(text, bytes, " (%u of 128 threads have come)", meeting->num_arrived);
        return;
    }
    char lanes[100];
    append_lanes(lanes, sizeof lanes, absent(meeting, thread->warp));
    snprintf(text, bytes, " (lanes %s absent)", lanes);
}

/* ---- shfl, ballot, syncwarp, elect -------------------------------------------------------------------------- */

struct shuffle {
    enum sim_shuffle kind;
    uint32_t value;
    unsigned operand, width;
    const void *site;
};

/* "shfl.sync": the source lane of `lane`; the lane itself where the source would lie outside of its segment. */
static unsigned source_lane(const struct shuffle *s, unsigned lane)
{
    const unsigned inside = s->width - 1; /* it is a power of two */
    const unsigned operand = s->operand % SIM_WARP, first = lane & ~inside, last = lane | inside;
    if (s->kind == SIM_SHFL_IDX) return first + (operand & inside);
    if (s->kind == SIM_SHFL_UP) return lane >= first + operand ? lane - operand : lane;
    const unsigned source = s->kind == SIM_SHFL_DOWN ? lane + operand : lane ^ operand;
    return source <= last ? source : lane;
}

static void run_shfl(struct sim_warp *warp, void *const args[SIM_WARP])
{
    uint32_t values[SIM_WARP];
    for (unsigned lane = 0; lane < SIM_WARP; ++lane)
        if (args[lane]) values[lane] = ((struct shuffle *)args[lane])->value;
    for (unsigned lane = 0; lane < SIM_WARP; ++lane) {
        struct shuffle *s = args[lane];
        if (!s) continue;
        const unsigned source = source_lane(s, lane);
        if (!args[source])
            sim_fail(&warp->lanes[lane], SIM_DIVERGED, "shfl", s->site, NULL,
                     "it reads the value of lane %u, which does not take part", source);
        s->value = values[source];
    }
}

uint32_t sim_shfl(enum sim_shuffle kind, uint32_t members, uint32_t value, unsigned operand, unsigned width)
{
    struct shuffle shuffle = {kind, value, operand, width, SIM_SITE};
    struct sim_meeting wanted = {"shfl", shuffle.site, members, 0, 0, EXITS_PASS, ONE_PLACE, run_shfl};
    if (!width || width > SIM_WARP || (width & (width - 1)))
        sim_fail(sim_self, SIM_BAD_OPERAND, "shfl", shuffle.site, NULL,
                 "its width is %u; it must be a power of two, at most 32", width);
    meet(&wanted, &shuffle);
    return shuffle.value;
}

struct vote {
    bool predicate;
    uint32_t ballot;
};

static void run_ballot(struct sim_warp *warp, void *const args[SIM_WARP])
{
    (void)warp;
    uint32_t ballot = 0;
    for (unsigned lane = 0; lane < SIM_WARP; ++lane)
        if (args[lane] && ((struct vote *)args[lane])->predicate) ballot |= 1u << lane;
    for (unsigned lane = 0; lane < SIM_WARP; ++lane)
        if (args[lane]) ((struct vote *)args[lane])->ballot = ballot;
}

uint32_t sim_ballot(uint32_t members, bool predicate)
{
    struct vote vote = {predicate, 0};
    struct sim_meeting wanted = {"vote.ballot", SIM_SITE, members, 0, 0, EXITS_PASS, ONE_PLACE, run_ballot};
    meet(&wanted, &vote);
    return vote.ballot;
}

static void run_sync(struct sim_warp *warp, void *const args[SIM_WARP])
{
    struct sim_thread *threads[SIM_WARP];
    unsigned n = 0;
    for (unsigned lane = 0; lane < SIM_WARP; ++lane)
        if (args[lane]) threads[n++] = &warp->lanes[lane];
    sim_clock_barrier(threads, n);
}

void sim_sync_warp(uint32_t members)
{
    struct sim_meeting wanted = {"bar.warp.sync", SIM_SITE, members, 0, 0, EXITS_PASS, ANY_PLACE, run_sync};
    meet(&wanted, &wanted);
}

struct election {
    bool elected;
};

/* The PTX manual: deterministic, the same leader for the same members; which one is not said. */
static void run_elect(struct sim_warp *warp, void *const args[SIM_WARP])
{
    struct sim_thread *lanes[SIM_WARP];
    uint32_t members = 0;
    unsigned n = 0;
    for (unsigned lane = 0; lane < SIM_WARP; ++lane) {
        if (!args[lane]) continue;
        members |= 1u << lane;
        lanes[n++] = &warp->lanes[lane];
    }
    const uint64_t hash = (sim_options_of(warp->cta->cluster)->seed + members) * 0x9e3779b97f4a7c15u;
    ((struct election *)lanes[(hash >> 40) % n]->collective_args)->elected = true;
}

bool sim_elect_one(uint32_t members)
{
    struct election election = {false};
    struct sim_meeting wanted = {"elect", SIM_SITE, members, 0, 0, EXITS_PASS, ONE_PLACE, run_elect};
    sim_require_sm_90("elect", wanted.site);
    meet(&wanted, &election);
    return election.elected;
}

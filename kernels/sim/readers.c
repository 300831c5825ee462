/* readers.c - sets of epochs that have read a cell. */
#include "kernels/sim/watch.h"

#include <stdlib.h>
#include <string.h>

enum { FIRST_CAPACITY = 1024, FULL = 1 << 20 };

static void forget(struct readers *r)
{
    memset(r->added, 0, sizeof r->added);
    memset(r->passed, 0, sizeof r->passed);
}

static uint32_t node_new(struct readers *r, sim_epoch epoch, uint32_t site, uint32_t rest)
{
    if (r->count == r->capacity) {
        r->capacity *= 2;
        r->nodes = realloc(r->nodes, r->capacity * sizeof *r->nodes);
        if (!r->nodes) abort();
    }
    r->nodes[r->count] = (struct reader){epoch, site, rest, 0};
    return r->count++;
}

struct readers *sim_readers_create(void)
{
    struct readers *r = calloc(1, sizeof *r);
    if (!r) abort();
    r->capacity = FIRST_CAPACITY;
    r->full = FULL;
    r->nodes = malloc(r->capacity * sizeof *r->nodes);
    if (!r->nodes) abort();
    node_new(r, 0, 0, 0);
    return r;
}

void sim_readers_destroy(struct readers *r)
{
    if (!r) return;
    free(r->nodes);
    free(r);
}

/* Who is ordered after this access is ordered after the member too. What a thread hands over holds all that it has
 * seen; the end of an asynchronous deed says nothing of what its issuer had seen. */
static bool stands_for(const struct access *a, sim_epoch member)
{
    const bool async = agent_of(a->epoch) != a->thread->agent;
    return async ? agent_of(member) == agent_of(a->epoch) : has_seen(a->thread, member);
}

/* The members that the new one does not stand for, then the new one. */
static uint32_t add(struct readers *r, uint32_t set, const struct access *a)
{
    uint32_t kept = 0, members = 0;
    for (uint32_t s = set; s; s = r->nodes[s].rest, members++) {
        if (r->nodes[s].epoch == a->epoch) return set;
        kept += !stands_for(a, r->nodes[s].epoch);
    }
    uint32_t rest = kept == members ? set : 0;
    for (uint32_t s = set; s && kept > 0 && kept < members; s = r->nodes[s].rest) {
        const struct reader member = r->nodes[s];
        if (!stands_for(a, member.epoch)) rest = node_new(r, member.epoch, member.site, rest);
    }
    return node_new(r, a->epoch, a->site, rest);
}

uint32_t sim_readers_add_new(struct readers *r, uint32_t set, const struct access *a, struct added *memo)
{
    *memo = (struct added){set, a->epoch, a->site, add(r, set, a)};
    return memo->result;
}

bool sim_readers_all_seen(struct readers *r, uint32_t set, const struct access *a, struct passed *memo,
                          struct party *other)
{
    const struct sim_vector *v = a->thread->clock.vector;
    bool by_vector = v != NULL; /* then whoever has this vector has seen them as well */
    for (uint32_t s = set; s; s = r->nodes[s].rest) {
        if (vector_has_seen(v, r->nodes[s].epoch)) continue;
        by_vector = false;
        if (agent_of(r->nodes[s].epoch) == a->thread->agent) continue;
        *other = (struct party){r->nodes[s].epoch, r->nodes[s].site, false};
        return false;
    }
    if (by_vector) *memo = (struct passed){set, v->id};
    return true;
}

void sim_readers_sweep_begin(struct readers *r)
{
    r->old = r->nodes;
    r->count = 0;
    r->nodes = malloc(r->capacity * sizeof *r->nodes);
    if (!r->nodes) abort();
    node_new(r, 0, 0, 0);
}

uint32_t sim_readers_keep(struct readers *r, uint32_t set)
{
    uint32_t n = 0, kept = 0;
    for (; set && !r->old[set].moved; set = r->old[set].rest) r->path[n++] = set;
    for (kept = r->old[set].moved; n > 0; kept = r->old[r->path[n]].moved) {
        struct reader *node = &r->old[r->path[--n]];
        node->moved = node_new(r, node->epoch, node->site, kept);
    }
    return kept;
}

void sim_readers_sweep_end(struct readers *r)
{
    free(r->old);
    r->old = NULL;
    forget(r);
    r->full = r->count > FULL / 2 ? 2 * r->count : FULL;
}

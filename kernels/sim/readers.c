/* readers.c - sets of epochs that have read a cell. */
#include "kernels/sim/watch.h"

#include <stdlib.h>
#include <string.h>

enum { MEMO = 4096, FIRST_CAPACITY = 1024, FULL = 1 << 20 };

struct node {
    sim_epoch epoch;
    uint32_t site, rest;
    uint32_t moved; /* during a sweep: where to */
};

struct readers {
    struct node *nodes; /* [0] is the empty set */
    uint32_t count, capacity, full;
    struct node *old;   /* during a sweep */
    uint32_t path[SIM_MAX_AGENTS];
    /* What recent additions gave, and which sets a thread has been found to have seen. */
    struct added { uint32_t set; sim_epoch epoch; uint32_t site, result; } added[MEMO];
    struct passed { uint32_t set, agent; } passed[MEMO];
};

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
    r->nodes[r->count] = (struct node){epoch, site, rest, 0};
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

/* The members that the thread has not seen, then the new one. */
static uint32_t add(struct readers *r, uint32_t set, const struct access *a)
{
    uint32_t unseen = 0, members = 0;
    for (uint32_t s = set; s; s = r->nodes[s].rest, members++) {
        if (r->nodes[s].epoch == a->epoch) return set;
        unseen += !has_seen(a->thread, r->nodes[s].epoch);
    }
    uint32_t rest = unseen == members ? set : 0;
    if (unseen != members && unseen > 0) {
        for (uint32_t s = set; s; s = r->nodes[s].rest) {
            const struct node member = r->nodes[s];
            if (!has_seen(a->thread, member.epoch)) rest = node_new(r, member.epoch, member.site, rest);
        }
    }
    return node_new(r, a->epoch, a->site, rest);
}

uint32_t sim_readers_add(struct readers *r, uint32_t set, const struct access *a)
{
    if (r->nodes[set].epoch == a->epoch) return set;
    const uint32_t hash = (set * 0x9E3779B1u) ^ (a->epoch * 0x85EBCA6Bu) ^ (a->site * 0xC2B2AE35u);
    struct added *memo = &r->added[hash >> 16 & (MEMO - 1)];
    if (memo->set == set && memo->epoch == a->epoch && memo->site == a->site) return memo->result;
    *memo = (struct added){set, a->epoch, a->site, add(r, set, a)};
    return memo->result;
}

bool sim_readers_seen(struct readers *r, uint32_t set, const struct access *a, struct party *other)
{
    if (set == 0) return true;
    struct passed *memo = &r->passed[(set * 0x9E3779B1u ^ a->thread->agent * 0x85EBCA6Bu) >> 16 & (MEMO - 1)];
    if (memo->set == set && memo->agent == a->thread->agent) return true;
    for (uint32_t s = set; s; s = r->nodes[s].rest) {
        if (has_seen(a->thread, r->nodes[s].epoch)) continue;
        *other = (struct party){r->nodes[s].epoch, r->nodes[s].site, false};
        return false;
    }
    *memo = (struct passed){set, a->thread->agent};
    return true;
}

bool sim_readers_full(const struct readers *r) { return r->count >= r->full; }

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
        struct node *node = &r->old[r->path[--n]];
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

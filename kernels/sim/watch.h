/* watch.h - what the files that watch memory share: clock.c, readers.c, shared.c, global.c, access.c, report.c. */
#ifndef ATTEST_SIM_WATCH_H
#define ATTEST_SIM_WATCH_H

#include "kernels/sim/machine.h"

/* ---- clock.c ---------------------------------------------------------------------------------------------- */

struct sim_vector {
    struct sim_vector *free;   /* next in the store's list */
    uint32_t references, size;
    uint32_t id;               /* of this content or less: unlike that of any other vector, before or after */
    uint32_t at[];             /* seen [size], then fenced [size]; beyond them nothing is seen */
};

static inline unsigned agent_of(sim_epoch epoch) { return epoch >> SIM_INTERVAL_BITS; }
static inline uint32_t interval_of(sim_epoch epoch) { return epoch & ((1u << SIM_INTERVAL_BITS) - 1); }

static inline bool vector_has_seen(const struct sim_vector *v, sim_epoch epoch)
{
    return v && agent_of(epoch) < v->size && v->at[agent_of(epoch)] >= interval_of(epoch);
}

/* sim_has_seen, for the paths that every access takes. */
static inline bool has_seen(const struct sim_thread *thread, sim_epoch epoch)
{
    return agent_of(epoch) == thread->agent || vector_has_seen(thread->clock.vector, epoch);
}

/* ---- shared.c: sim_in_window, for the paths that every access takes ----------------------------------------- */

static inline bool in_window(const struct sim_cluster *cluster, const void *address, unsigned *rank, uint32_t *offset)
{
    const uintptr_t at = (uintptr_t)address - (uintptr_t)cluster->windows;
    *rank = (unsigned)(at / SIM_WINDOW);
    *offset = (uint32_t)(at % SIM_WINDOW);
    return at / SIM_WINDOW < cluster->num_ctas;
}

/* ---- access.c --------------------------------------------------------------------------------------------- */

/* One access as the shadows see it. Of an asynchronous deed: `thread` issued it, `epoch` is the deed's. */
struct access {
    struct sim_thread *thread;
    sim_epoch epoch;
    uint32_t site;           /* pc, packed */
    const void *pc;
    const char *instruction;
    enum { ACCESS_READ, ACCESS_WRITE, ACCESS_REDUCE } kind;
    bool async_proxy;
};

/* Call sites in 32 bits: their distance from a place in the program; 0 is "not known" (another library far away). */
uint32_t sim_pack_site(const void *site);
const void *sim_unpack_site(uint32_t site);

/* The other party of a conflict: found in a shadow. */
struct party {
    sim_epoch epoch;  /* 0: none, or in another cluster */
    uint32_t site;
    bool wrote;
};

/* SIM_RACE or SIM_MISSING_WAIT: `other` is not ordered before `access`. Does not return. */
_Noreturn void sim_fail_conflict(const struct access *access, const void *address, const struct party *other);
/* SIM_MISSING_PROXY_FENCE: `other` wrote through the generic proxy what `access` touches through the async proxy. */
_Noreturn void sim_fail_fence(const struct access *access, const void *address, const struct party *other);

/* ---- readers.c -------------------------------------------------------------------------------------------- */

/* Sets of epochs, as numbers: who has read a cell since it was written. 0 is the empty set. Sets are lists that share
 * their tails; adding the same epoch to the same set gives the same set, so that a tile read by everybody has few. */
enum { READERS_MEMO = 4096 };

struct readers {
    struct reader { sim_epoch epoch; uint32_t site, rest, moved; } *nodes; /* [0] is the empty set */
    uint32_t count, capacity;
    uint32_t full; /* count from which on it is time for a sweep */
    /* What recent additions gave, and which sets a vector has been found to have seen. */
    struct added { uint32_t set; sim_epoch epoch; uint32_t site, result; } added[READERS_MEMO];
    struct passed { uint32_t set, vector; } passed[READERS_MEMO];
    struct reader *old; /* during a sweep */
    uint32_t path[SIM_MAX_AGENTS];
};

struct readers *sim_readers_create(void);
void sim_readers_destroy(struct readers *readers);
uint32_t sim_readers_add_new(struct readers *readers, uint32_t set, const struct access *access, struct added *memo);
bool sim_readers_all_seen(struct readers *readers, uint32_t set, const struct access *access, struct passed *memo,
                          struct party *other);

/* `set` and this access; without the members that it stands for: who is ordered after it is ordered after them. */
static inline uint32_t readers_add(struct readers *readers, uint32_t set, const struct access *a)
{
    if (readers->nodes[set].epoch == a->epoch) return set;
    const uint32_t hash = set * 0x9E3779B1u ^ a->epoch * 0x85EBCA6Bu ^ a->site * 0xC2B2AE35u;
    struct added *memo = &readers->added[hash >> 16 & (READERS_MEMO - 1)];
    if (memo->set == set && memo->epoch == a->epoch && memo->site == a->site) return memo->result;
    return sim_readers_add_new(readers, set, a, memo);
}

/* Has the access' thread seen all members? Else `other` is one that it has not. */
static inline bool readers_seen(struct readers *readers, uint32_t set, const struct access *a, struct party *other)
{
    if (set == 0) return true;
    const uint32_t vector = a->thread->clock.vector ? a->thread->clock.vector->id : 0;
    struct passed *memo = &readers->passed[(set * 0x9E3779B1u ^ vector * 0x85EBCA6Bu) >> 16 & (READERS_MEMO - 1)];
    if (memo->set == set && memo->vector == vector) return true;
    return sim_readers_all_seen(readers, set, a, memo, other);
}

/* Sets that nobody holds any more go: between these two the owner replaces all that it holds by what _keep gives. */
void sim_readers_sweep_begin(struct readers *readers);
uint32_t sim_readers_keep(struct readers *readers, uint32_t set);
void sim_readers_sweep_end(struct readers *readers);

/* Instruction and issuer of asynchronous deeds, by interval. */
struct async_name {
    const char *instruction;
    struct sim_thread *issuer;
};

/* A read of shared memory that nobody had written. If a write comes that nothing orders behind it, that is a race, and
 * the barrier between them is what is missing; else nobody writes it in time. So the cluster goes on for a while. */
struct suspicion {
    struct sim_thread *thread; /* NULL: none */
    const char *instruction, *address;
    const void *pc;
    uint32_t patience;         /* accesses until it is reported */
    uint32_t expired;          /* the site that ended what lay there; 0: nothing did */
};

struct sim_watch {
    struct suspicion suspicion;
    struct readers *shared, *global; /* of shared and of global memory */
    struct async_name *async;
    uint32_t num_async;              /* allocated */
};

void sim_name_async(struct sim_cluster *cluster, const struct sim_deed *deed);

/* ---- count.c ---------------------------------------------------------------------------------------------- */

void sim_log_free(struct sim_thread *thread);

/* ---- shared.c and global.c -------------------------------------------------------------------------------- */

void sim_shared_access(const struct access *access, unsigned rank, uint32_t offset, size_t bytes);
/* Reads of shared memory of their threads' CTA, multiples of 4 bytes, by n threads in the name of one epoch. `last` is
 * what a cell was found to be, and who its readers have become: cells that are alike need no second look. */
struct read_together {
    uint64_t before; /* SIM_NO_CELL: none yet */
    uint32_t readers;
};
#define SIM_NO_CELL UINT64_MAX
void sim_shared_read_together(const struct access *accesses, int n, uint32_t offset, size_t bytes,
                              struct read_together *last);
/* False: not mapped memory of the GPU at all, nothing done. */
bool sim_global_access(const struct access *access, const void *address, size_t bytes);
bool sim_is_mapped(const struct sim_memory *memory, const void *address);
void sim_shared_describe(const struct sim_cta *cta, uint32_t offset, char *text, size_t bytes);
bool sim_global_describe(struct sim_memory *memory, const void *address, char *text, size_t bytes);

#endif

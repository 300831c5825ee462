/* watch.h - what the files that watch memory share: clock.c, readers.c, shared.c, global.c, access.c, report.c. */
#ifndef ATTEST_SIM_WATCH_H
#define ATTEST_SIM_WATCH_H

#include "kernels/sim/machine.h"

/* ---- clock.c ---------------------------------------------------------------------------------------------- */

struct sim_vector {
    struct sim_vector *free;   /* next in the store's list */
    uint32_t references, size;
    uint32_t at[];             /* seen [size], then fenced [size]; beyond them nothing is seen */
};

static inline unsigned agent_of(sim_epoch epoch) { return epoch >> SIM_INTERVAL_BITS; }
static inline uint32_t interval_of(sim_epoch epoch) { return epoch & ((1u << SIM_INTERVAL_BITS) - 1); }

/* sim_has_seen, for the paths that every access takes. */
static inline bool has_seen(const struct sim_thread *thread, sim_epoch epoch)
{
    const unsigned agent = agent_of(epoch);
    const struct sim_vector *v = thread->clock.vector;
    return agent == thread->agent || (v && agent < v->size && v->at[agent] >= interval_of(epoch));
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

/* ---- readers.c -------------------------------------------------------------------------------------------- */

/* Sets of epochs, as numbers: who has read a cell since it was written. 0 is the empty set. Sets are lists that share their
 * tails; adding the same epoch to the same set gives the same set, so that a tile read by everybody has few. */
struct readers;
struct readers *sim_readers_create(void);
void sim_readers_destroy(struct readers *readers);
/* `set` and this access; without the members that its thread has seen: who is ordered after it is ordered after them. */
uint32_t sim_readers_add(struct readers *readers, uint32_t set, const struct access *access);
/* Has the access' thread seen all members? Else `other` is one that it has not. */
bool sim_readers_seen(struct readers *readers, uint32_t set, const struct access *access, struct party *other);
/* More sets than it is good to keep: the owner goes through all that it holds with _keep between these two. */
bool sim_readers_full(const struct readers *readers);
void sim_readers_sweep_begin(struct readers *readers);
uint32_t sim_readers_keep(struct readers *readers, uint32_t set);
void sim_readers_sweep_end(struct readers *readers);

/* Instruction and issuer of asynchronous deeds, by interval. */
struct async_name {
    const char *instruction;
    struct sim_thread *issuer;
};

struct sim_watch {
    struct readers *shared, *global; /* of shared and of global memory */
    struct async_name *async;
    uint32_t num_async;              /* allocated */
};

void sim_name_async(struct sim_cluster *cluster, const struct sim_deed *deed);

/* ---- count.c ---------------------------------------------------------------------------------------------- */

void sim_log_free(struct sim_thread *thread);

/* ---- shared.c and global.c -------------------------------------------------------------------------------- */

void sim_shared_access(const struct access *access, unsigned rank, uint32_t offset, size_t bytes);
/* False: not mapped memory of the GPU at all, nothing done. */
bool sim_global_access(const struct access *access, const void *address, size_t bytes);
void sim_shared_describe(const struct sim_cta *cta, uint32_t offset, char *text, size_t bytes);
bool sim_global_describe(struct sim_memory *memory, const void *address, char *text, size_t bytes);

#endif

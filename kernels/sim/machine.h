/* machine.h - the inside of the simulated GPU: what its files share. Nothing outside kernels/sim/ includes it.
 *
 * A cluster (of one CTA, mostly) runs on one host thread from start to end, every GPU thread of it a fiber, so that
 * nothing inside a cluster needs a lock. Clusters are independent: only the global memory's shadow and the queue of
 * clusters are shared between host threads.
 *
 *   fiber.c       stacks and switches                  clock.c     who has seen what: vector clocks
 *   schedule.c    who runs next; deadlock              shared.c    shadow of shared memory
 *   launch.c      grids, limits, host threads          global.c    mapped memory and its shadow
 *   collective.c  instructions of a warp or warpgroup  access.c    ordinary loads and stores
 *   barrier.c     barriers of CTAs and clusters        report.c    findings, source lines
 *   registers.c   register budgets                     count.c     counters
 *   fault.c       faults of the processor
 *   place.c       indices, mapa, trap                  overlap.c   work beside copies
 *   mbarrier.c copy.c bulk.c tensor_map.c tensor_copy.c wgmma.c wgmma_operand.c   asynchronous work
 *   unit.c mma.c  tensor cores                         approx.c    special functions */
#ifndef ATTEST_SIM_MACHINE_H
#define ATTEST_SIM_MACHINE_H

#include "kernels/sim/calls.h"
#include "kernels/sim/sim.h"
#include "kernels/sim/unit.h" /* the arithmetic of tensor cores */

enum {
    SIM_WARP = 32,
    SIM_WARPGROUP = 128,
    SIM_MAX_THREADS = 1024,
    SIM_NAMED_BARRIERS = 16,
    SIM_WINDOW = 256 * 1024,     /* of addresses, for the shared memory of a CTA: its allocations start at 1024, */
    SIM_WINDOW_RESERVED = 1024,  /* as on the chip, where the first 1024 bytes are the system's */
    SIM_STACK = 128 * 1024       /* of a fiber */
};

/* The call site of the device function that called us: what reports name. */
#define SIM_SITE __builtin_extract_return_addr(__builtin_return_address(0))

/* Clocks. Agents of a cluster are its threads (agent = index in the cluster) and whatever works beside them:
 * asynchronous copies, wgmma. Every synchronising act of an agent opens a new interval; (agent, interval) is an
 * epoch, and the vector clock of a thread says up to which interval it has seen the deeds of each agent, and the same
 * for what may be read through the async proxy. A thread counts its own intervals; all other agents draw theirs from
 * one counter of the cluster, so that an interval names an asynchronous deed. The last agent number is not used. */
enum { SIM_AGENT_BITS = 12, SIM_INTERVAL_BITS = 20, SIM_MAX_AGENTS = (1 << SIM_AGENT_BITS) - 1 };
typedef uint32_t sim_epoch; /* agent << SIM_INTERVAL_BITS | interval; 0: never */

struct sim_clock {
    struct sim_vector *vector; /* clock.c; shared by the clocks that are equal; NULL: has seen nothing */
};

/* overlap.c: what a thread has issued so far. */
struct sim_overlap {
    uint64_t work;     /* products that it takes part in, special functions */
    uint64_t waited;   /* `work` at its last wait for an mbarrier's bytes, plus 1; 0: none yet */
    uint64_t copies;   /* cp.async not waited for */
    uint64_t products; /* since that wait, of the warp or warpgroup that it is the first of, beside no copy yet */
    bool drained;      /* its wgmma have all been waited for, and no other has come since */
};

enum sim_thread_state { SIM_READY, SIM_WAITING, SIM_EXITED };

struct sim_thread {
    void *stack_pointer; /* while not running; fiber.c */
    char *stack_low, *stack_high;
    struct sim_cta *cta;
    struct sim_warp *warp;
    unsigned index[3];   /* threadIdx */
    unsigned linear;     /* in the CTA */
    unsigned lane;
    unsigned agent;      /* in the cluster */
    enum sim_thread_state state;
    /* While WAITING, for the deadlock report: "mbarrier.try_wait parity 1", the object's place, the call site. */
    const char *wait_what;
    const void *wait_object, *wait_site;
    struct sim_clock clock;
    uint32_t interval;              /* this thread's own, now; from 1 */
    uint32_t fenced;                /* its intervals up to this one may be read through the async proxy */
    /* Belongs to the file named. */
    struct sim_meeting *meeting;    /* collective.c: where the thread waits; NULL: nowhere */
    void *collective_args;          /* collective.c */
    unsigned cluster_arrivals, cluster_waits; /* barrier.c: of the cluster's barrier, so far */
    struct sim_copy_groups *copies; /* copy.c: cp.async and bulk groups; NULL until the first */
    struct sim_wgmma_groups *wgmma; /* wgmma.c; NULL until the first */
    struct sim_register_watch *register_watch; /* access.c; NULL until the first wgmma.fence */
    struct sim_access_log *log;     /* count.c */
    unsigned registers;             /* registers.c: as setmaxnreg left it */
    bool grid_waited;               /* launch.c: the launches ahead have ended */
    struct sim_overlap overlap;
};

struct sim_warp {
    struct sim_cta *cta;
    unsigned index;           /* in the CTA */
    unsigned num_lanes;       /* 32, less in the last warp of an odd block */
    struct sim_thread *lanes; /* [num_lanes] */
    uint32_t exited;          /* by lane; lanes that the warp does not have count as exited */
    uint32_t ready, yielded;  /* by lane; schedule.c */
    uint32_t meeting;         /* lanes that wait in a warp's collective; collective.c */
    struct sim_meeting *group_meeting; /* of the warpgroup that begins with this warp; collective.c */
    uint32_t at_barrier;      /* lanes that wait at a barrier of the CTA; barrier.c */
    unsigned cluster_waits;   /* the most of a lane; barrier.c */
};

struct sim_cta {
    struct sim_cluster *cluster;
    unsigned rank;            /* in the cluster */
    unsigned index[3];        /* blockIdx */
    uint64_t linear;          /* in the grid */
    unsigned num_threads, num_warps;
    struct sim_thread *threads;
    struct sim_warp *warps;
    unsigned num_exited;
    char *window;             /* SIM_WINDOW bytes; shared address = pointer - window */
    struct sim_shared *shared;       /* shared.c: allocations and shadow */
    struct sim_barriers *barriers;   /* barrier.c */
    struct sim_mbarriers *mbarriers; /* mbarrier.c */
    struct sim_register_pool *pool;  /* registers.c */
};

struct sim_cluster {
    struct sim_gpu *gpu;
    const struct sim_launch *launch;
    unsigned num_ctas, num_threads, num_warps;
    struct sim_cta *ctas;
    struct sim_warp *warps;     /* of all CTAs */
    struct sim_thread *threads; /* of all CTAs, by agent */
    char *windows;              /* num_ctas x SIM_WINDOW, contiguous, aligned to SIM_WINDOW */
    unsigned num_agents;
    uint32_t last_interval;     /* of the agents that are no threads */
    bool watched, counting;     /* as the options say */
    struct sim_clock_store *clocks; /* clock.c */
    struct sim_watch *watch;    /* access.c */
    struct sim_counts *counts;  /* this host thread's own; launch.c adds them up */
    struct sim_report report;   /* sim_fail's; rule SIM_CLEAN: none */
    uint64_t random;            /* state of the schedule's generator: gpu seed and cluster index */
    struct sim_schedule *schedule; /* schedule.c */
    struct sim_cluster_barrier *barrier; /* barrier.c */
};

/* launch.c makes it; the fields of others are named. */
struct sim_gpu {
    struct sim_options options;
    struct sim_memory *memory;  /* global.c: sim_memory_create, sim_memory_destroy */
    struct sim_report report;   /* of the last finding */
    struct sim_counts counts;
};

/* The thread that runs on this host thread; NULL outside of a launch. Read at every access of a kernel. */
extern _Thread_local struct sim_thread *sim_self;

/* ---- schedule.c ------------------------------------------------------------------------------------------- */

/* Gives up the host thread until sim_wake. `what` is a string literal or lives as long as the wait. */
void sim_wait(const char *what, const void *object, const void *site);
void sim_wake(struct sim_thread *thread);
/* Stays ready; others may run. A cluster in which threads only yield and no asynchronous work is left is deadlocked;
 * `what`, `object`, `site` as above. */
void sim_yield(const char *what, const void *object, const void *site);
/* Stays ready; others may run first: for use where a thread has just let others go on. */
void sim_pass(void);
/* A number below n from the schedule's generator. */
uint32_t sim_draw(struct sim_cluster *cluster, uint32_t n);

/* Work that is done at a time of the scheduler's choice between submission and sim_async_finish: at once (EARLY), when
 * nobody else can run (LATE), at any time (RANDOM). `run` is called exactly once, on the host thread of the cluster,
 * perhaps outside of any fiber (sim_self is then NULL); it wakes whom it satisfies. The owner frees it afterwards. */
struct sim_async {
    void (*run)(struct sim_async *self);
    bool done;
    size_t place; /* schedule.c: among the pending */
};
void sim_async_submit(struct sim_cluster *cluster, struct sim_async *op);
void sim_async_finish(struct sim_cluster *cluster, struct sim_async *op); /* runs it now unless done */

/* ---- overlap.c -------------------------------------------------------------------------------------------- */

void sim_overlap_product(struct sim_thread *threads, unsigned n, bool is_wgmma); /* of a warp or warpgroup */
void sim_overlap_copy_waited(struct sim_thread *thread, uint64_t work_at_issue, unsigned bytes); /* cp.async */
void sim_overlap_wgmma_waited(struct sim_thread *thread, unsigned groups, bool is_all);
void sim_overlap_bytes_waited(struct sim_thread *thread); /* an mbarrier's */

/* ---- report.c --------------------------------------------------------------------------------------------- */

/* The finding, and the end of this cluster's run: does not return. `address` NULL: none. Outside of a fiber,
 * `thread` says whose deed it was. The format's sentences, with their full stops, say what is wrong and what would be
 * right. */
_Noreturn void sim_fail(struct sim_thread *thread, enum sim_rule rule, const char *instruction, const void *site,
                        const void *address, const char *format, ...) __attribute__((format(printf, 6, 7)));
/* Leaves the cluster's run, from a fiber or from the scheduler: schedule.c. */
_Noreturn void sim_abandon(struct sim_cluster *cluster);
/* "shared + 0x430 of CTA 2", "global q + 260 bytes", "a register of thread (3, 0, 0)". */
void sim_describe_address(const struct sim_cluster *cluster, const void *address, char *text, size_t bytes);
/* "file.cu:120", and for the report's fields; innermost inlined place outside kernels/device/. */
void sim_locate(const void *site, char *file, size_t bytes, int *line);
bool sim_has_lines(const void *site); /* whether its program or library holds any: stripped ones do not */
/* A hash of the source lines of a site and of the calls that were inlined around it; 0: they are not known. */
uint64_t sim_chain(const void *site);

/* ---- collective.c ----------------------------------------------------------------------------------------- */

/* Every lane in `members` (a mask of lanes that have not exited; the caller's own bit is set) calls this at the same
 * site with its own `args`; the last to arrive calls run(lanes' args by lane, NULL for non-members) once, for all,
 * then all go on. Else SIM_DIVERGED: another instruction or source line, an absent or exited member. Orders no memory
 * accesses. */
void sim_collect_warp(const char *instruction, const void *site, uint32_t members, void *args,
                      void (*run)(struct sim_warp *warp, void *const args[SIM_WARP]));
/* The same over the four warps of the caller's warpgroup, all 128 threads; args by thread of the warpgroup. */
void sim_collect_warpgroup(const char *instruction, const void *site, void *args,
                           void (*run)(struct sim_warp *first, void *const args[SIM_WARPGROUP]));

/* For a report of who waits for what: " (lanes 16-31 absent)", " (64 of 96 threads have come)"; "" elsewhere. */
void sim_describe_meeting(const struct sim_thread *thread, char *text, size_t bytes);
void sim_describe_barrier(const struct sim_thread *thread, char *text, size_t bytes); /* barrier.c */
void sim_describe_mbarrier(const struct sim_thread *thread, char *text, size_t bytes); /* mbarrier.c */
/* A relaxed arrival at the cluster's barrier, whose clock this is, hands on nothing of what the thread did but
 * mbarriers that it has made before its fence.mbarrier_init. */
void sim_mbarriers_hand_on(struct sim_thread *thread, struct sim_clock *clock);
/* The thread comes to an instruction that all of its warp must execute and that the lanes in `come` have come to:
 * SIM_DIVERGED if others wait for it in a collective. */
void sim_check_converged(struct sim_thread *thread, uint32_t come, const char *instruction, const void *site);
/* SIM_DIVERGED: `other` waits for the thread, which is at another instruction. */
_Noreturn void sim_fail_elsewhere(struct sim_thread *thread, const char *instruction, const void *site,
                                  const struct sim_thread *other);
/* The same instruction of the source, reached by the same calls that were inlined: compilers may have copied it. */
bool sim_same_place(const void *site, const void *other_site);

/* ---- clock.c ---------------------------------------------------------------------------------------------- */

struct sim_clock sim_clock_new(struct sim_cluster *cluster); /* has seen nothing; freed with the cluster */
unsigned sim_agent_new(struct sim_cluster *cluster);         /* one beside the threads; too many: SIM_LIMIT */
/* Opens a new interval of the agent and returns its epoch. */
sim_epoch sim_epoch_next(struct sim_cluster *cluster, unsigned agent);
/* release: what the thread has done and seen is handed to `clock`; then a new interval of the thread begins.
 * acquire: the thread has seen all that `clock` was handed. */
void sim_release(struct sim_thread *thread, struct sim_clock *clock);
void sim_acquire(struct sim_thread *thread, const struct sim_clock *clock);
void sim_clock_reset(struct sim_cluster *cluster, struct sim_clock *clock); /* has seen nothing again */
void sim_clock_copy(struct sim_cluster *cluster, struct sim_clock *to, const struct sim_clock *from);
/* Adds one epoch, as finished asynchronous work does. */
void sim_clock_see(struct sim_cluster *cluster, struct sim_clock *clock, sim_epoch epoch, bool through_async_proxy);
void sim_acquire_epoch(struct sim_thread *thread, sim_epoch epoch, bool through_async_proxy);
/* All of them hand everything to all of them: a barrier. */
void sim_clock_barrier(struct sim_thread *const *threads, unsigned n);
/* The thread's own deeds so far, and the asynchronous ones that it has seen, may be read through the async proxy by
 * whoever is ordered after it. */
void sim_clock_fence_proxy(struct sim_thread *thread);
bool sim_has_seen(const struct sim_thread *thread, sim_epoch epoch);
bool sim_has_seen_fenced(const struct sim_thread *thread, sim_epoch epoch);
/* The clocks of a cluster's threads, which have seen nothing of each other; num_threads < SIM_MAX_AGENTS. */
void sim_clocks_begin(struct sim_cluster *cluster);
void sim_clocks_end(struct sim_cluster *cluster);

/* ---- watching memory: access.c, shared.c, global.c ---------------------------------------------------------- */

/* What a cluster's run is watched with: its clocks, the shadow of its accesses. launch.c calls begin when cluster,
 * CTAs and threads are filled in (`gpu`, `launch`, `windows`, `counts` too), then sim_shared_create for each CTA; end
 * after the last sim_shared_destroy, whether the run ended well or not. */
void sim_watch_begin(struct sim_cluster *cluster);
void sim_watch_end(struct sim_cluster *cluster);
/* A read of bytes that nobody has written is a finding now, if there was one. */
void sim_end_suspicion(struct sim_cluster *cluster);

/* An access by the running thread, through the generic proxy, to shared, global or constant memory or its own
 * registers: bounds, alignment (`align` 1: none asked), initialised, races, in-flight bytes; counts. Any address: the
 * file finds out what it is. */
void sim_watch_read(const void *address, size_t bytes, size_t align, const char *instruction, const void *site);
void sim_watch_write(void *address, size_t bytes, size_t align, const char *instruction, const void *site);

/* An asynchronous operation of `issuer`: checked as an access of the issuer now (through the async proxy: also that
 * generic writes to be read were fenced), and recorded as a deed of `epoch`: whoever touches these bytes against it
 * before having seen `epoch` is found guilty of SIM_MISSING_WAIT. `instruction` and `site` name the operation in that
 * report; sim_self may be NULL. Bytes are moved by the caller, at the time the scheduler chooses. */
struct sim_deed {
    struct sim_thread *issuer;
    sim_epoch epoch;
    bool async_proxy;
    const char *instruction;
    const void *site;
};
void sim_watch_async_read(const struct sim_deed *deed, const void *address, size_t bytes, size_t align);
/* Reads of the same pieces of the issuers' shared memory by several deeds of one epoch; multiples of 16 bytes, and
 * nothing of them is counted. */
struct sim_piece {
    uint32_t offset, bytes;
};
enum { SIM_MOST_DEEDS = 4 };
void sim_watch_async_reads(const struct sim_deed *deeds, int num_deeds, const struct sim_piece *pieces, int num_pieces);
void sim_watch_async_write(const struct sim_deed *deed, void *address, size_t bytes, size_t align);
void sim_watch_async_reduce(const struct sim_deed *deed, void *global, size_t bytes, size_t align);

/* Registers given to a wgmma, from its issue to the wait that ends it; access.c reports who touches them.
 * write: wgmma writes them, so reads are wrong as well as writes, until wgmma_fence_operand. Ranges on the thread's own
 * stack. */
void sim_registers_begin(struct sim_thread *thread, const void *registers, size_t bytes, bool write, const void *site);
void sim_registers_end(struct sim_thread *thread, const void *registers);
/* wgmma_fence_operand: what wgmmas that have been waited for wrote there may be used. */
void sim_registers_fence_operand(struct sim_thread *thread, const void *registers, size_t bytes);
/* Registers written by ordinary code since the thread's last wgmma.fence? */
bool sim_registers_dirty(const struct sim_thread *thread, const void *registers, size_t bytes);
void sim_registers_fence(struct sim_thread *thread);
/* The first of n numbers of a fragment that nobody has written since the thread began; NULL: none. */
const float *sim_unwritten_register(const float *fragment, int n);

/* Shared memory, by CTA. */
bool sim_in_window(const struct sim_cluster *cluster, const void *address, unsigned *rank, uint32_t *offset);
/* "mbarrier": ordinary accesses are findings from now on; NULL ends it, and the bytes hold nothing. Checks the
 * bounds. */
void sim_shared_protect(struct sim_cta *cta, void *object, size_t bytes, const char *what, const void *site);
/* This thread reaches an object of that CTA by an instruction that touches none of its bytes: the CTA must have begun,
 * and must not end before it has seen that. Of its own CTA there is nothing to note. */
void sim_shared_note_remote(struct sim_cta *cta, const void *object, const char *instruction, const void *site);
struct sim_shared *sim_shared_create(struct sim_cta *cta, size_t dynamic_bytes);
void sim_shared_destroy(struct sim_shared *shared);
/* The CTA's threads have all exited: accesses to its memory from other CTAs that it did not wait for. */
void sim_shared_finish(struct sim_cta *cta);

/* Global memory, by GPU. */
struct sim_memory *sim_memory_create(void); /* NULL: no memory */
void sim_memory_destroy(struct sim_memory *memory);
/* Before the clusters of a launch run: its accesses are ordered after all that came before. */
void sim_memory_launch(struct sim_memory *memory, uint64_t num_ctas);

/* ---- count.c ---------------------------------------------------------------------------------------------- */

struct sim_counts *sim_tally(struct sim_cluster *cluster); /* cluster->counts */
/* One lane's access, for sectors and conflicts; only while counting. */
void sim_log_access(struct sim_thread *thread, bool write, const void *address, unsigned bytes, const void *site);
void sim_log_flush(struct sim_warp *warp); /* the warp has met or ended: group what its lanes logged */

/* ---- launch.c --------------------------------------------------------------------------------------------- */

const struct sim_options *sim_options_of(const struct sim_cluster *cluster);
/* The running thread's instruction needs sm_90: SIM_WRONG_GENERATION on another. */
void sim_require_sm_90(const char *instruction, const void *site);

/* ---- fault.c ---------------------------------------------------------------------------------------------- */

/* Between these two, a fault of a kernel that runs on this host thread is a finding. `stack` has SIM_FAULT_STACK bytes,
 * where the finding is made: the kernel's own may be what is at fault. */
enum { SIM_FAULT_STACK = 64 * 1024 };
struct sim_fault_watch {
    void *before[3]; /* a stack_t */
};
void sim_faults_begin(struct sim_fault_watch *watch, void *stack);
void sim_faults_end(const struct sim_fault_watch *watch);

/* ---- life of a CTA: called by launch.c ---------------------------------------------------------------------- */

struct sim_barriers *sim_barriers_create(struct sim_cta *cta);
struct sim_mbarriers *sim_mbarriers_create(struct sim_cta *cta);
struct sim_register_pool *sim_registers_create(struct sim_cta *cta);
struct sim_cluster_barrier *sim_cluster_barrier_create(struct sim_cluster *cluster);
/* Registers of each thread that a kernel with these launch bounds begins with; max_threads >= 1. */
unsigned sim_registers_of_bounds(unsigned max_threads, unsigned min_blocks);
void sim_barriers_destroy(struct sim_barriers *barriers);
void sim_mbarriers_destroy(struct sim_mbarriers *mbarriers);
void sim_registers_destroy(struct sim_register_pool *pool);
void sim_cluster_barrier_destroy(struct sim_cluster_barrier *barrier);
/* A thread ends: what it left half done is SIM_LEFT_PENDING; barriers that waited for it may open. */
void sim_copies_exit(struct sim_thread *thread);
void sim_wgmma_exit(struct sim_thread *thread);
void sim_collective_exit(struct sim_thread *thread);
void sim_barriers_exit(struct sim_thread *thread);
/* A CTA ends, all of its threads exited, nothing pending: barriers with arrivals short of their count. */
void sim_barriers_finish(struct sim_cta *cta);
void sim_mbarriers_finish(struct sim_cta *cta);

#endif

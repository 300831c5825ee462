/* sim.h - the simulated GPU as its host sees it: what it is, what memory it may touch, launches, findings, counts.
 *
 * Kernels see kernels/device/; this header is for launchers (through device/launch.h), the library and tests.
 * A simulated GPU is a value: two of them may run at once on different host threads; one runs one launch
 * at a time. Device pointers are host pointers that were mapped first. */
#ifndef ATTEST_SIM_H
#define ATTEST_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sim_generation { SIM_SM_80, SIM_SM_90 };

/* When asynchronous work (copies, wgmma) is carried out between its issue and the last moment that the rules allow. */
enum sim_async_policy { SIM_ASYNC_LATE, SIM_ASYNC_EARLY, SIM_ASYNC_RANDOM };

struct sim_options {
    enum sim_generation generation;
    enum sim_async_policy async;
    uint64_t seed;      /* of the order in which warps and CTAs run; the same seed, the same run */
    unsigned workers;   /* host threads that share the CTAs; 0: one per core */
    bool unwatched;     /* leave out the checks of ordinary accesses: for counting and speed alone */
    bool counting;      /* group the accesses of a warp: sectors and bank conflicts */
};

/* What a run can be found guilty of. */
enum sim_rule {
    SIM_CLEAN = 0,
    SIM_OUT_OF_BOUNDS,        /* an address in no mapped byte, shared allocation or own register */
    SIM_OUTSIDE_OUTPUTS,      /* a write to mapped bytes that are not outputs */
    SIM_MISALIGNED,           /* an address that is no multiple of the access, or of what an instruction asks for */
    SIM_UNINITIALISED,        /* a read of bytes that nobody wrote */
    SIM_RACE,                 /* two accesses, one a write, with no synchronisation between them */
    SIM_MISSING_WAIT,         /* bytes touched that an asynchronous operation still reads or writes */
    SIM_MISSING_PROXY_FENCE,  /* generic writes read or overwritten through the async proxy, no fence.proxy.async */
    SIM_WRONG_PARITY,         /* a wait satisfied by a phase that this thread has already waited for */
    SIM_REGISTERS_IN_FLIGHT,  /* registers of an unfinished wgmma touched */
    SIM_MISSING_WGMMA_FENCE,  /* registers written since the last wgmma.fence given to a wgmma */
    SIM_DIVERGED,             /* lanes of a collective at different instructions, or absent */
    SIM_BARRIER_COUNT,        /* arrivals that do not fit the barrier's count */
    SIM_DEADLOCK,             /* nobody can go on; the report says who waits for what */
    SIM_LEFT_PENDING,         /* a thread ended with asynchronous work or a barrier half done */
    SIM_BAD_OPERAND,          /* an operand outside the instruction's range: descriptor, count, box */
    SIM_LIMIT,                /* threads, shared memory, registers or clusters beyond the machine's */
    SIM_WRONG_GENERATION,     /* an instruction that this GPU does not have */
    SIM_NOT_WRITTEN,          /* sim_check_written: an output byte that nobody wrote */
    SIM_TRAP                  /* the kernel stopped itself */
};

/* One finding. Of several CTAs that fail, that of the lowest index is kept. */
struct sim_report {
    enum sim_rule rule;
    char kernel[64];
    unsigned block[3], thread[3];
    char file[128]; /* of the kernel's source; "" where there is none */
    int line;
    char instruction[48]; /* "load", "store", "cp.async", "mbarrier.try_wait", ... */
    char address[128];    /* "shared + 0x430", "global q[130], 2 bytes past its end", "" */
    char text[1024];      /* the whole finding in sentences, seed included */
};

/* Exact and repeatable: the same for every seed and number of workers, unless a kernel's own work depends on it.
 * Sectors, requests, wavefronts and conflicts need `counting`: they group what the lanes of a warp do between two
 * meetings of the warp, the n-th access of each at one place in the program. */
struct sim_counts {
    uint64_t launches, blocks;
    uint64_t dynamic_shared_bytes;   /* that a CTA of each launch asks for, added up */
    uint64_t threads, cluster_ctas;  /* of a CTA, of a cluster of each launch, added up */
    uint64_t early_launches;         /* that begin before the one ahead has ended */
    uint64_t makespan;               /* launch.c: of each launch's work on two SMs, in the order of its clusters */
    uint64_t global_read_bytes, global_write_bytes;   /* asked for by instructions, copies of every kind included */
    uint64_t global_read_sectors, global_write_sectors; /* of 32 bytes, each once a warp instruction or bulk copy */
    uint64_t global_read_requests, global_write_requests; /* warp instructions and bulk copies */
    uint64_t shared_read_bytes, shared_write_bytes;   /* by threads and warps; not bulk copies, not wgmma */
    uint64_t shared_read_requests, shared_write_requests; /* warp instructions */
    uint64_t shared_wavefronts;  /* of 128 bytes in 32 banks, that those requests take */
    uint64_t shared_bank_conflicts; /* wavefronts beyond the fewest that the bytes allow */
    uint64_t mma_instructions, wgmma_instructions;
    uint64_t tensor_core_flops;  /* 2 m n k of each */
    uint64_t special_function_operations; /* ex2, lg2, rcp, tanh: one a thread */
    uint64_t warp_collectives;   /* shfl, vote, bar.warp.sync, elect, ldmatrix, stmatrix, mma: one a warp */
    uint64_t barrier_waits;      /* __syncthreads, named and cluster barriers: one a warp */
    uint64_t mbarrier_waits;     /* successful ones, one a thread */
    uint64_t async_copies, async_copy_bytes; /* cp.async by thread; bulk and tensor copies by instruction */
    uint64_t products_beside_copies;    /* overlap.c: mma and wgmma that copies are under way beside */
    uint64_t copy_bytes_waited_at_once; /* of cp.async, with no work between issue and wait */
    uint64_t copy_waits_at_once;        /* mbarrier waits for bytes, with no work since the thread's last one */
    uint64_t wgmma_drains;              /* waits of a warpgroup for all of its wgmma, where more follow */
    uint64_t fiber_switches;     /* the simulator's own; may depend on the seed */
};

struct sim_gpu;

struct sim_gpu *sim_gpu_create(const struct sim_options *options); /* NULL: no memory */
void sim_gpu_destroy(struct sim_gpu *gpu);
void sim_gpu_options(struct sim_gpu *gpu, const struct sim_options *options); /* between launches */

/* Global memory: nothing is accessible until mapped. A later map adds rights and never takes any away. */
enum sim_access {
    SIM_READ = 1,         /* kernels may read these bytes */
    SIM_WRITE = 2,        /* and write these: outputs, workspace */
    SIM_INITIALISED = 4,  /* they hold something already; inputs that nobody writes always do */
    SIM_REDUCE = 8        /* several CTAs may add to these through bulk reductions */
};

/* A range of bytes. `name` appears in reports and must outlive the mapping. */
bool sim_map(struct sim_gpu *gpu, const char *name, const void *data, size_t bytes, int access);

/* The elements of a strided tensor and no byte between them. Shape and strides in elements, strides >= 0. */
bool sim_map_tensor(struct sim_gpu *gpu, const char *name, const void *data, size_t element_bytes, int ndim,
                    const int64_t *shape, const int64_t *stride, int access);
void sim_unmap_all(struct sim_gpu *gpu);

/* Finds bytes mapped SIM_WRITE but neither SIM_READ nor SIM_INITIALISED that no launch has written: SIM_NOT_WRITTEN,
 * with a report. */
enum sim_rule sim_check_written(struct sim_gpu *gpu);

/* As many as a grid whose CTAs stay asks for: one to four, or, of a seed in 16, sixteen. Any number of CTAs runs. */
unsigned sim_num_sms(const struct sim_gpu *gpu);

/* Bytes of shared memory that a CTA may have. */
size_t sim_max_shared(const struct sim_gpu *gpu);

/* A launch, as device/launch.h makes it. */
struct sim_launch {
    const char *kernel;
    unsigned grid[3], block[3], cluster[3]; /* cluster {1, 1, 1}: none */
    size_t dynamic_shared;
    unsigned max_threads, min_blocks;       /* the kernel's launch bounds, as the launch says; min_blocks 0: not said */
    struct { unsigned max_threads, min_blocks; } bounds; /* as the kernel says; zeros: it is no KERNEL */
    bool begins_early;                      /* the launch ahead of it may not have ended */
    void (*body)(const void *args);         /* runs the kernel as one thread */
    const void *args;
    size_t args_bytes;
};

/* Runs to the end or the first finding. */
enum sim_rule sim_launch(struct sim_gpu *gpu, const struct sim_launch *launch);

const struct sim_report *sim_last_report(const struct sim_gpu *gpu); /* of the last finding; rule SIM_CLEAN: none yet */
const struct sim_counts *sim_counts(const struct sim_gpu *gpu);      /* since creation or the last reset */
void sim_reset_counts(struct sim_gpu *gpu);
const char *sim_rule_name(enum sim_rule rule); /* "race", "missing wait", ... */

#ifdef __cplusplus
}
#endif

#endif

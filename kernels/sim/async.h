/* async.h - what the files of asynchronous work share: mbarrier.c, copy.c, bulk.c, tensor_map.c, tensor_copy.c,
 * wgmma.c, wgmma_operand.c. */
#ifndef ATTEST_SIM_ASYNC_H
#define ATTEST_SIM_ASYNC_H

#include "kernels/sim/machine.h"

enum { MAX_TX = (1 << 20) - 1 }; /* bytes that an mbarrier may expect, or have too many of */

/* Memory of asynchronous work: freed by _give, or when the CTA is no more. Zeroed. */
void *sim_async_take(struct sim_cta *cta, size_t bytes);
void sim_async_give(void *memory);

/* Whose deed it is, and what reports call it. */
struct issue {
    struct sim_thread *thread;
    const char *instruction;
    const void *site;
};

/* ---- mbarrier.c ------------------------------------------------------------------------------------------- */

struct mbarrier;

/* The barrier at this place, which the running thread is about to use: SIM_UNINITIALISED where there is none, SIM_RACE
 * where nothing orders this after its mbarrier.init, and for the async proxy SIM_MISSING_PROXY_FENCE. */
enum mbarrier_user { USER_THREAD, USER_ASYNC_PROXY };
struct mbarrier *sim_mbarrier_at(const void *object, const struct issue *issue, enum mbarrier_user user);
const void *sim_mbarrier_object(const struct mbarrier *barrier);

/* Asynchronous work that will end on the barrier: begun, and ended. Bytes: "complete_tx"; none: an arrival. */
void sim_mbarrier_expect_end(struct mbarrier *barrier, unsigned bytes);
void sim_mbarrier_bytes(struct mbarrier *barrier, unsigned bytes, sim_epoch epoch, const struct issue *issue);
void sim_mbarrier_async_arrive(struct mbarrier *barrier, sim_epoch epoch, const struct issue *issue);

/* An agent for a deed that ends on the barrier. No two deeds that are under way at once share one: then whoever has
 * seen the later has seen the earlier, too. */
struct load_agent {
    unsigned agent;
    const struct mbarrier *last; /* whose deeds it did */
    bool busy;
};
struct load_agent *sim_load_agent(const struct mbarrier *barrier);

/* ---- copy.c, bulk.c --------------------------------------------------------------------------------------- */

/* A thread's own asynchronous copies in the order of their issue, both kinds apart; groups count from 0. */
struct sim_copy_groups {
    struct {
        struct cp_async *first, *last;
        unsigned groups;       /* committed */
        unsigned agent;
        sim_epoch epoch;       /* of copies to come; 0: to be drawn */
        uint64_t issued;       /* copies */
        uint64_t covered;      /* so many of them are followed by cp.async.mbarrier.arrive */
    } cp_async;
    struct {
        struct bulk_store *first, *last;
        unsigned groups;
        unsigned agents[2]; /* of reads and writes */
    } bulk;
};

struct sim_copy_groups *sim_copy_groups_of(struct sim_thread *thread); /* made when first asked for */
void sim_bulk_exit(struct sim_thread *thread);

/* ---- tensor_copy.c ---------------------------------------------------------------------------------------- */

/* A box of a tensor: what a tensor copy moves. Plain bulk copies are boxes of one dimension whose elements have 16
 * bytes. In shared memory the elements lie side by side, fastest dimension first, before the swizzle. */
struct box {
    char *data;                   /* of the tensor */
    unsigned element_bytes;
    int ndim;
    uint64_t shape[5], stride[5]; /* elements; bytes */
    uint32_t size[5];             /* of the box, in elements */
    int32_t at[5];                /* of its first element */
    int swizzle_bytes;
    uint32_t fill;                /* elements outside of the tensor hold this */
    bool stored;                  /* rows that end in the tensor are written to the end of its last 16 bytes */
};

/* Bytes of the box that lie in the tensor and side by side in both memories; `at` from the beginning of the box. */
struct segment {
    char *global;
    uint32_t at, bytes;
};

struct box sim_box_of_bytes(const void *data, unsigned bytes);
uint32_t sim_box_bytes(const struct box *box);
/* Calls visit for each segment, in order. */
void sim_box_segments(const struct box *box, void (*visit)(void *context, const struct segment *segment),
                      void *context);

enum box_deed { BOX_READ, BOX_WRITE, BOX_REDUCE };
void sim_box_watch_global(const struct box *box, const struct sim_deed *deed, enum box_deed kind);
void sim_box_watch_load(const struct box *box, const struct sim_deed *deed, char *shared); /* shared is written */
void sim_box_watch_store(const struct box *box, const struct sim_deed *deed, char *shared); /* what is stored is read */

/* Bytes of the box in order of its elements, from the tensor and, swizzled, from and to shared memory. */
void sim_box_read(const struct box *box, char *bytes);
void sim_box_place(const struct box *box, const char *bytes, char *shared);
void sim_box_collect(const struct box *box, char *bytes, const char *shared);
void sim_box_write(const struct box *box, const char *bytes);
void sim_box_add(const struct box *box, const char *bytes, enum sim_reduce op);

/* A 16-byte chunk's place, by the bits of its address. swizzle_bytes 0, 32, 64, 128. */
static inline uint32_t sim_swizzle(uint32_t address, int swizzle_bytes)
{
    const uint32_t chunks = swizzle_bytes ? (uint32_t)swizzle_bytes / 16 - 1 : 0;
    return address ^ (address >> 7 & chunks) << 4;
}

/* ---- bulk.c ----------------------------------------------------------------------------------------------- */

void sim_box_load(const struct box *box, void *shared, void *mbarrier, uint16_t multicast, const struct issue *issue);
/* op NULL: overwrites. */
void sim_box_store(const struct box *box, const void *shared, const enum sim_reduce *op, const struct issue *issue);
/* Shared memory of this CTA, or (`remote`) any of the cluster, at a multiple of `align`: its rank; else a finding. */
unsigned sim_async_shared(const void *shared, size_t align, bool remote, const struct issue *issue);

/* ---- tensor_map.c ----------------------------------------------------------------------------------------- */

/* False: no tensor map lies there. */
bool sim_tensor_map_decode(const void *map, struct sim_tensor_map_fields *fields);
unsigned sim_element_bytes(enum sim_element element);

/* ---- wgmma_operand.c -------------------------------------------------------------------------------------- */

enum { WGMMA_M = 64, WGMMA_CHUNK = 16, WGMMA_MAX_ROWS = 256 };

/* A matrix in shared memory: `rows` rows of A or columns of B, 32 bytes of k each; cut into 2 `rows` chunks of 16
 * bytes. K-major: chunk 2 i + c holds bytes 16 c .. of row i. MN-major, 16-bit: chunk 16 j + k holds rows 8 j ..
 * 8 j + 7 at k. */
struct wgmma_operand {
    int rows;
    bool transposed;                     /* MN-major */
    uint32_t chunks[2 * WGMMA_MAX_ROWS]; /* offsets in the CTA's window */
};

/* SIM_BAD_OPERAND where the descriptor is not one, or leads out of the window. */
void sim_wgmma_locate(struct wgmma_operand *operand, uint64_t descriptor, int rows, bool transposed, char name,
                      const struct issue *issue);
/* The deeds, of one epoch, read rows first .. first + n - 1, multiples of 8. */
void sim_wgmma_watch(const struct wgmma_operand *operand, int first, int n, const struct sim_deed *deeds,
                     int num_deeds);
/* Rows of 32 bytes; sign -1: the negatives of 16-bit, or else 32-bit, numbers. */
void sim_wgmma_gather(const struct wgmma_operand *operand, const char *window, char *rows);

#endif

/* probe_async.h - what the probes of mbarrier.h, bulk.h, cluster.h, grid.h and registers.h read and write. */
#ifndef ATTEST_DEVICE_PROBE_ASYNC_H
#define ATTEST_DEVICE_PROBE_ASYNC_H

#include <stdint.h>

enum { PHASES_ROUNDS = 10, PHASES_STAGES = 2 };

struct phases_out {
    uint32_t fresh[2];       /* test_wait for parity 0 and 1 on a fresh barrier */
    uint32_t half, whole[2]; /* parity 0 after 2 of 5 arrivals; parities 0 and 1 after 5 */
    uint32_t again[2];       /* parities 0 and 1 after inval, init */
    uint32_t consumed[PHASES_ROUNDS][32]; /* from warp 0 to warp 1 through a ring of stages */
};

enum { BULK_THREADS = 128, BULK_WORDS = 1024 };

struct bulk_in {
    uint32_t x[2][BULK_WORDS];
    uint32_t f32[BULK_WORDS], f16x2[BULK_WORDS], bf16x2[BULK_WORDS]; /* small integers */
};

struct bulk_out {
    uint32_t copied[BULK_WORDS], sum[BULK_WORDS]; /* x[0], x[0] + x[1] */
    uint32_t f32[BULK_WORDS], f16x2[BULK_WORDS], bf16x2[BULK_WORDS]; /* twice the input, by store and reduction */
};

enum { CLUSTER_CTAS = 4, CLUSTERS = 2, CLUSTER_THREADS = 64 };

struct cluster_in {
    uint32_t x[CLUSTER_THREADS];
};

/* Before and after: by rank, cyclically. */
struct cluster_cta {
    uint32_t rank, size;
    uint32_t written[CLUSTER_THREADS];   /* by the CTA before, into this one's shared memory */
    uint32_t read[CLUSTER_THREADS];      /* out of the next one's */
    uint32_t multicast[CLUSTER_THREADS]; /* of `in`, each quarter loaded by another CTA for all */
    uint32_t copied[CLUSTER_THREADS];    /* by a bulk copy from the CTA before */
};

struct cluster_out {
    struct cluster_cta at[CLUSTERS * CLUSTER_CTAS];
};

enum { REGISTER_THREADS = 384 };

struct registers_out {
    uint32_t x[REGISTER_THREADS];
};

/* Launches in a row, each of which begins before the one ahead has ended: numbers go from one to the next. */
enum { ROW_LAUNCHES = 16, ROW_CTAS = 64, ROW_THREADS = 256 };

struct row_out {
    uint32_t at[ROW_LAUNCHES][ROW_CTAS * ROW_THREADS];
};

#endif

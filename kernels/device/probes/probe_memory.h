/* probe_memory.h - what the probes of memory.h and cp_async.h read and write. */
#ifndef ATTEST_DEVICE_PROBE_MEMORY_H
#define ATTEST_DEVICE_PROBE_MEMORY_H

#include <stdint.h>

enum { MEMORY_THREADS = 64, MEMORY_DYNAMIC = 100 * 1024 }; /* more than a kernel gets unasked */

struct sixteen { /* bytes */
    uint32_t at[4];
};

struct memory_in {
    struct sixteen x[MEMORY_THREADS];
};

struct memory_out {
    struct sixteen plain[MEMORY_THREADS];     /* through load_16, shared memory reversed, store_16 */
    struct sixteen global[MEMORY_THREADS];    /* load_global_16, store_global_16 */
    struct sixteen streaming[MEMORY_THREADS]; /* the same, streaming */
    struct sixteen dynamic[MEMORY_THREADS];   /* through the last part of dynamic shared memory, reversed */
    struct sixteen joined[MEMORY_THREADS];    /* and through its first bytes, once it is whole again */
    uint32_t distance, alignment;             /* of shared_address: two words 20 bytes apart; dynamic memory mod 1024 */
};

struct cp_async_out {
    struct sixteen first[MEMORY_THREADS];  /* cp_async_16, waited for while others are in flight */
    struct sixteen second[MEMORY_THREADS]; /* cp_async_8; the upper half not valid in odd threads */
    struct sixteen third[MEMORY_THREADS];  /* cp_async_4, reversed; word w of thread n valid where bit w of n is 0 */
    struct sixteen none[MEMORY_THREADS];   /* cp_async_16, not valid */
};

struct cp_async_mbarrier_out {
    struct sixteen x[MEMORY_THREADS]; /* reversed */
};

#endif

/* probe.h - probes: small kernels that run on both machines, and the bits that they must give.
 *
 * Each function of kernels/device/ is called by at least one. What is expected is computed from the manual's
 * definitions in plain C that shares nothing with the simulator. */
#ifndef ATTEST_DEVICE_PROBE_H
#define ATTEST_DEVICE_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { PROBE_POISON = 0xa5 }; /* every byte of `out` before the launch */

/* Reads `in`, writes `out`, both in the machine's memory, 256-byte aligned; 0 or a launch error. */
typedef int probe_launcher(const void *in, void *out, void *stream);

struct probe {
    const char *name;
    int sm;     /* 80, or 90 */
    bool once;  /* large, and nothing asynchronous in it: one schedule is enough */
    size_t in_bytes, out_bytes;
    void (*fill)(void *in);                    /* in host memory; NULL: no input */
    void (*expect)(const void *in, void *out); /* `out` is poisoned, as the kernel finds it */
    probe_launcher *sim, *cuda;                /* cuda NULL: built without nvcc */
};

/* Tables of the files probe_*.c; each ends with name == NULL. */
extern const struct probe probes_of_values[], probes_of_threads[], probes_of_memory[], probes_of_mma[],
    probes_of_async[], probes_of_tma[], probes_of_wgmma[];

/* The same numbers everywhere: a generator of 32 bits from a counter. */
static inline uint32_t probe_random(uint32_t n)
{
    n = (n ^ n >> 16) * 0x7feb352du;
    n = (n ^ n >> 15) * 0x846ca68bu;
    return n ^ n >> 16;
}

/* The launchers of one probe, and the row's last two columns. */
#define PROBE_LAUNCHERS(name) probe_launcher name##_sim, name##_cuda
#ifdef ATTEST_WITH_CUDA
#define PROBE_ON(name) name##_sim, name##_cuda
#else
#define PROBE_ON(name) name##_sim, NULL
#endif

#ifdef __cplusplus
}
#endif

#endif

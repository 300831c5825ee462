/* functions_probe.h - functions.h's eight forms on either machine. */
#ifndef ATTEST_DEVICE_FUNCTIONS_PROBE_H
#define ATTEST_DEVICE_FUNCTIONS_PROBE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/device/functions_check.h"

struct sim_gpu;

#ifdef __cplusplus
extern "C" {
#endif

/* results[i] = form of the fp32 with bits first + i (modulo 2^32). False with a sentence in `why`. */
bool functions_probe_sim(struct sim_gpu *gpu, enum function form, uint32_t first, uint32_t count, float *results,
                         char *why, size_t why_bytes);

/* The same on the current GPU, which writes to the host's memory: `results` lies in what functions_memory_cuda gave.
 * NULL: built without nvcc. */
bool functions_probe_cuda(enum function form, uint32_t first, uint32_t count, float *results, char *why,
                          size_t why_bytes) __attribute__((weak));
float *functions_memory_cuda(size_t count) __attribute__((weak)); /* NULL: none; for the life of the process */

/* The GPU's name; false: there is none. */
bool functions_machine_cuda(char *name, size_t bytes) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif

/* probe_chip.h - running a probe on the chip. */
#ifndef ATTEST_DEVICE_PROBE_CHIP_H
#define ATTEST_DEVICE_PROBE_CHIP_H

#include "kernels/device/probes/probe.h"

#ifdef __cplusplus
extern "C" {
#endif

/* 80, 90, ... of the first GPU; 0: there is none. */
int probe_chip_generation(void);

/* Copies `in` and the poisoned `out` to the GPU, launches, waits, copies `out` back. False: `why` has a sentence. */
bool probe_chip_run(const struct probe *probe, const void *in, void *out, char *why, size_t why_bytes);

#ifdef __cplusplus
}
#endif

#endif

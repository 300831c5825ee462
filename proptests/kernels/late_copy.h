/* late_copy.h - a launch that lets the one behind it begin before it has done anything, and one that does. */
#ifndef ATTEST_PROPTESTS_KERNELS_LATE_COPY_H
#define ATTEST_PROPTESTS_KERNELS_LATE_COPY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Queues a copy on the GPU, which writes 0.1 ms after it has let the next launch of the stream begin. Needs sm_90a.
 * The code is one of kernels/cuda.h. */
int queue_late_copy(void *to, const void *from, size_t bytes, void *stream);

/* A copy that may begin before the launch ahead has ended, and does not wait for it. */
int queue_early_copy(void *to, const void *from, size_t bytes, void *stream);

#ifdef __cplusplus
}
#endif

#endif

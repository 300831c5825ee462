/* cuda_memory.h - memory, streams and graphs of the GPU, for tests. Codes are those of kernels/cuda.h. */
#ifndef ATTEST_PROPTESTS_CASES_CUDA_MEMORY_H
#define ATTEST_PROPTESTS_CASES_CUDA_MEMORY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

int cuda_count_devices(void);          /* 0 where there is no driver */
int cuda_is_hopper(void);              /* 1: tensor cores of sm_90 */
void *cuda_allocate(size_t bytes);     /* NULL: none left */
void cuda_release(void *memory);       /* NULL is allowed */
int cuda_fill(void *device, int byte, size_t bytes);
int cuda_copy_in(void *device, const void *host, size_t bytes);
int cuda_copy_out(void *host, const void *device, size_t bytes); /* after all work: also tells how that went */

void *cuda_new_stream(void); /* waits for no other; NULL: none */
int cuda_synchronize(void);

/* Queues work that keeps a part of the GPU busy: `rounds` times over `bytes` of memory. */
int cuda_queue_load(void *memory, size_t bytes, int rounds, void *stream);

/* What is queued on a stream between the two is a graph, not run. NULL: it cannot be one. */
int cuda_begin_capture(void *stream);
void *cuda_end_capture(void *stream);
int cuda_launch_graph(void *graph, void *stream);

#ifdef __cplusplus
}
#endif

#endif

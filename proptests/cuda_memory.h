/* cuda_memory.h - memory of the GPU, for tests. Codes are those of kernels/cuda.h. */
#ifndef ATTEST_PROPTESTS_CUDA_MEMORY_H
#define ATTEST_PROPTESTS_CUDA_MEMORY_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

int cuda_count_devices(void);          /* 0 where there is no driver */
void *cuda_allocate(size_t bytes);     /* NULL: none left */
void cuda_release(void *memory);       /* NULL is allowed */
int cuda_copy_in(void *device, const void *host, size_t bytes);
int cuda_copy_out(void *host, const void *device, size_t bytes); /* after all work: also tells how that went */

#ifdef __cplusplus
}
#endif

#endif

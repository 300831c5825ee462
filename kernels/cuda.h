/* cuda.h - the chip as the library sees it: which device is current, and what an error code means. */
#ifndef ATTEST_KERNELS_CUDA_H
#define ATTEST_KERNELS_CUDA_H

#ifdef __cplusplus
extern "C" {
#endif

/* Makes a device the calling thread's current one, and the former one again, if it was another: in between nothing sets
 * one. Return 0 or an error code. */
int cuda_enter(int ordinal, int *previous);
int cuda_leave(int ordinal, int previous);

/* Bytes of shared memory that a CTA can have there; INT_MAX where it cannot be asked: the launch will say why. */
int cuda_shared_bytes(int ordinal);

/* Its SMs; 0 where they cannot be asked. */
int cuda_num_sms(int ordinal);

/* The major number of its compute capability; 0 where it cannot be asked. */
int cuda_major(int ordinal);

/* One sentence. */
const char *cuda_error_text(int code);

#ifdef __cplusplus
}
#endif

#endif

/* empty.h - what a launch costs on its own: times of small problems are counted from there. */
#ifndef ATTEST_CI_BENCH_EMPTY_H
#define ATTEST_CI_BENCH_EMPTY_H

#ifdef __cplusplus
extern "C"
#endif
int empty_cuda(void) __attribute__((weak)); /* of one warp, on the default stream; 0 or an error. NULL: no nvcc */

#endif

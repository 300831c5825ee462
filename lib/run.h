/* run.h - what each device does with checked arguments.
 *
 * Every function returns true, or false after attest_refuse() was told the status and the sentence. */
#ifndef ATTEST_LIB_RUN_H
#define ATTEST_LIB_RUN_H

#include <stdbool.h>

#include "lib/attest.h"

struct sim_gpu;

/* reference_device.c: the oracle. */
bool attest_reference_forward(const struct attest_problem *p, const struct attest_forward_args *a);
bool attest_reference_backward(const struct attest_problem *p, const struct attest_backward_args *a);
bool attest_reference_merge_backward(const struct attest_merge_backward_args *a);

/* sim_device.c: kernel sources on the simulated GPU. */
bool attest_sim_forward(const struct attest_plan *plan, const struct attest_forward_args *a, struct sim_gpu *gpu);
bool attest_sim_backward(const struct attest_plan *plan, const struct attest_backward_args *a, void *workspace,
                         struct sim_gpu *gpu);
bool attest_sim_merge(const struct attest_merge_args *a, struct sim_gpu *gpu);
bool attest_sim_merge_backward(const struct attest_merge_backward_args *a, struct sim_gpu *gpu);

/* cuda_device.c: kernels on the chip. */
bool attest_check_cuda(void); /* is it built in? */
int attest_cuda_shared_bytes(int32_t ordinal); /* as cuda_shared_bytes; 0 where it is not built in */
int attest_cuda_num_sms(int32_t ordinal); /* as cuda_num_sms, as above */
int attest_cuda_major(int32_t ordinal); /* as cuda_major, as above */
bool attest_cuda_forward(const struct attest_plan *plan, const struct attest_forward_args *a, void *stream);
bool attest_cuda_backward(const struct attest_plan *plan, const struct attest_backward_args *a, void *workspace,
                          void *stream);
bool attest_cuda_merge(const struct attest_merge_args *a, void *stream);
bool attest_cuda_merge_backward(const struct attest_merge_backward_args *a, void *stream);

/* Maps the memory of a run, to the byte: inputs to be read, outputs to be written, no gap between, and the workspace to
 * be read where it was written. False: no memory. */
bool attest_sim_map_forward(struct sim_gpu *gpu, const struct attest_problem *p, const struct attest_forward_args *a);
bool attest_sim_map_backward(struct sim_gpu *gpu, const struct attest_problem *p, const struct attest_backward_args *a,
                             void *workspace, size_t workspace_bytes);
bool attest_sim_map_merge(struct sim_gpu *gpu, const struct attest_merge_args *a);
bool attest_sim_map_merge_backward(struct sim_gpu *gpu, const struct attest_merge_backward_args *a);

#endif

/* plugin_cuda.h - the memory of one run on the GPU. Only where there is nvcc: else these are NULL. */
#ifndef ATTEST_PROPTESTS_PLUGIN_PLUGIN_CUDA_H
#define ATTEST_PROPTESTS_PLUGIN_PLUGIN_CUDA_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/attest.h"

#define MAYBE __attribute__((weak))

MAYBE int plugin_cuda_devices(void);

/* Copies what a pass takes to the GPU, as aligned as it lies here, with poison around it and in a workspace, and gives
 * the arguments that point there. NULL, or one sentence. */
MAYBE const char *plugin_cuda_send(const struct attest_problem *p, const struct attest_backward_args *a, bool backward,
                                   size_t workspace_bytes, struct attest_backward_args *on_device, void **workspace);
MAYBE const char *plugin_cuda_send_merge(const struct attest_merge_args *a, struct attest_merge_args *on_device);
MAYBE const char *plugin_cuda_send_merge_backward(const struct attest_merge_backward_args *a,
                                                  struct attest_merge_backward_args *on_device);

/* Waits for the GPU and copies the outputs back. NULL, or one sentence: an error, or bytes changed that are no
 * output's. */
MAYBE const char *plugin_cuda_fetch(void);

#endif

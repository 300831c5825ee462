/* registry.h - the one table of kernels: dispatch, tests and benchmarks all read it.
 *
 * A kernel is a file, a line here and a line in BUILD. Its launcher exists once for each machine, by the name that
 * KERNEL_SYMBOL makes of it: forward_fp32_sim, forward_fp32_cuda, and both with _poly where functions.h has polynomials
 * in place of approximate instructions. `stream` of a simulated launch is its struct sim_gpu. */
#ifndef ATTEST_KERNELS_REGISTRY_H
#define ATTEST_KERNELS_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/params.h"
#include "lib/attest.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef int forward_launcher(const struct forward_params *params, void *stream);
typedef int backward_launcher(const struct backward_params *params, void *stream);
typedef int merge_launcher(const struct merge_params *params, void *stream);
typedef int merge_backward_launcher(const struct merge_backward_params *params, void *stream);

/* `takes` asks for formats and features, `most` for lengths. Where a problem's sequences differ in length, several
 * kernels share it: each computes those that fit into its lengths and into none of the kernels' before it, so that the
 * kernel of a sequence, and the bits of its results, do not depend on the sequences around it. */
struct forward_kernel {
    const char *name; /* ref_kernel_recipe of it says where it rounds */
    /* Whether it takes sequences of a checked problem; else why not, as a sentence. */
    bool (*takes)(const struct attest_problem *p, char *why, size_t why_bytes);
    forward_launcher *sim, *cuda; /* cuda NULL: built without nvcc */
    struct lengths most;
    const char *shared_recipe; /* covers the kernels before it, too */
    int only_major; /* of the compute capability of GPUs that have its instructions: left out on others. 0: any */
};

struct backward_kernel {
    const char *name; /* as above */
    bool (*takes)(const struct attest_problem *p, char *why, size_t why_bytes);
    size_t (*workspace_bytes)(const struct attest_problem *p);
    backward_launcher *sim, *cuda;
    struct lengths most;
    const char *shared_recipe;
    int shared_bytes; /* that a CTA must be able to have: left out on GPUs that have less. What any has: 0 */
    int only_major; /* as above */
};

struct merge_kernel {
    const char *name; /* as above */
    merge_launcher *sim, *cuda;
};

struct merge_backward_kernel {
    const char *name; /* as above */
    merge_backward_launcher *sim, *cuda;
};

/* Each ends with name == NULL, after kernels that take any lengths. */
extern const struct forward_kernel forward_kernels[];
extern const struct backward_kernel backward_kernels[];
extern const struct merge_kernel merge_kernel;
extern const struct merge_backward_kernel merge_backward_kernel;

/* The launchers, for tests that compare machines. */
forward_launcher cls_forward_sim, cls_forward_cuda, cls_forward_sim_poly, cls_forward_cuda_poly;
forward_launcher forward_sim, forward_cuda, forward_sim_poly, forward_cuda_poly;
forward_launcher short_forward_sim, short_forward_cuda, short_forward_sim_poly, short_forward_cuda_poly;
forward_launcher short_forward_hopper_sim, short_forward_hopper_cuda;
forward_launcher short_forward_hopper_sim_poly, short_forward_hopper_cuda_poly;
forward_launcher short_forward_scaled_sim, short_forward_scaled_cuda;
forward_launcher short_forward_scaled_sim_poly, short_forward_scaled_cuda_poly;
forward_launcher short_forward_wide_sim, short_forward_wide_cuda;
forward_launcher short_forward_wide_sim_poly, short_forward_wide_cuda_poly;
forward_launcher forward_fp32_sim, forward_fp32_cuda, forward_fp32_sim_poly, forward_fp32_cuda_poly;
backward_launcher cls_backward_sim, cls_backward_cuda, cls_backward_sim_poly, cls_backward_cuda_poly;
backward_launcher backward_sim, backward_cuda, backward_sim_poly, backward_cuda_poly;
backward_launcher short_backward_sim, short_backward_cuda, short_backward_sim_poly, short_backward_cuda_poly;
backward_launcher short_backward_64_sim, short_backward_64_cuda;
backward_launcher short_backward_64_sim_poly, short_backward_64_cuda_poly;
backward_launcher short_backward_hopper_sim, short_backward_hopper_cuda;
backward_launcher short_backward_hopper_sim_poly, short_backward_hopper_cuda_poly;
backward_launcher short_backward_scaled_sim, short_backward_scaled_cuda;
backward_launcher short_backward_scaled_sim_poly, short_backward_scaled_cuda_poly;
backward_launcher short_backward_wide_sim, short_backward_wide_cuda;
backward_launcher short_backward_wide_sim_poly, short_backward_wide_cuda_poly;
backward_launcher backward_fp32_sim, backward_fp32_cuda, backward_fp32_sim_poly, backward_fp32_cuda_poly;
merge_launcher merge_sim, merge_cuda, merge_sim_poly, merge_cuda_poly;
merge_backward_launcher merge_backward_sim, merge_backward_cuda, merge_backward_sim_poly, merge_backward_cuda_poly;

#ifdef __cplusplus
}
#endif

#endif

/* registry.h - the one table of kernels: dispatch, tests and benchmarks all read it.
 *
 * A kernel is a file, a row of kernels.inc and one or more here. Its launcher exists once for each machine, by the name
 * that KERNEL_SYMBOL makes of it: forward_fp32_sim, forward_fp32_cuda, and both with _poly where functions.h has
 * polynomials in place of approximate instructions. `stream` of a simulated launch is its struct sim_gpu. */
#ifndef ATTEST_KERNELS_REGISTRY_H
#define ATTEST_KERNELS_REGISTRY_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/shared/params.h"
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
#define KERNEL(name, pass, folder, code) \
    pass##_launcher name##_sim, name##_cuda, name##_sim_poly, name##_cuda_poly;
#include "kernels/kernels.inc"
#undef KERNEL

#ifdef __cplusplus
}
#endif

#endif

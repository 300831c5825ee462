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

/* What a problem may have that a kernel does not compute, one bit each. */
enum kernel_feature {
    KERNEL_BIAS = 1 << 0,
    KERNEL_MASK = 1 << 1,
    KERNEL_BLOCK_MASK = 1 << 2,
    KERNEL_ALIBI = 1 << 3,
    KERNEL_SINK = 1 << 4,
    KERNEL_SOFTCAP = 1 << 5,
    KERNEL_DROPOUT = 1 << 6,
    KERNEL_WINDOW = 1 << 7,
    KERNEL_NEGATIVE_SCALE = 1 << 8,
    KERNEL_GROUP = 1 << 9,        /* several query heads to a KV head */
    KERNEL_LARGE_GROUP = 1 << 10, /* more than KERNEL_MOST_GROUP of them */
    KERNEL_DELTA = 1 << 11,
    KERNEL_EXTERNAL_LSE = 1 << 12,
    KERNEL_DLSE = 1 << 13,
    KERNEL_DBIAS = 1 << 14
};
enum { KERNEL_MOST_GROUP = 8 };

/* Tensors whose format must be that of q, one bit each. */
enum kernel_tensor {
    KERNEL_K = 1 << 0,
    KERNEL_V = 1 << 1,
    KERNEL_O = 1 << 2,
    KERNEL_DOUT = 1 << 3,
    KERNEL_DQ = 1 << 4,
    KERNEL_DK = 1 << 5,
    KERNEL_DV = 1 << 6
};

/* The alignment in bytes that kernels of full problems ask callers to promise. */
enum { KERNEL_ALIGN = 16 };

/* The problems that a row is picked for. Of head_dim and head_dim_v the larger one counts. */
struct kernel_reach {
    uint32_t formats; /* of q: 1 << ATTEST_FP32 and so on */
    uint32_t alike;   /* enum kernel_tensor */
    uint32_t lacks;   /* enum kernel_feature */
    int32_t least_dim, most_dim; /* most_dim 0: any */
    int32_t workspace_terms;     /* fp32 numbers a row and query head */
    bool only_for_sums;          /* dbias and dsink alone take them, or what shared/sums.h says in their place */

    /* Where it is not 0, the row takes full problems alone: dense ones without seqused, of as many rows and keys as its
     * lengths, `most`, whose q and tensors of `alike` are promised to be aligned to KERNEL_ALIGN bytes. head_dim and
     * head_dim_v are alike, and one of these powers of two, which are added up here. */
    int32_t full_dims;
    int32_t ctas; /* of a problem, where the CTAs of all problems must have an SM each. 0: any number of problems */
};

/* Whether a checked problem is among those of a row with the lengths `most`, on a GPU of num_sms SMs; else why not, as
 * a sentence. why NULL: no sentence. Whether sequences are too long is not asked: the plan leaves those to others. */
bool kernel_takes(const struct kernel_reach *reach, struct lengths most, const struct attest_problem *p, int num_sms,
                  char *why, size_t why_bytes);

/* Where a problem's sequences differ in length, several kernels share it: each computes those that fit into its
 * lengths, `most`, and into none of the rows' before it, so that the kernel of a sequence, and the bits of its results,
 * do not depend on the sequences around it. A kernel with a launch of its own for some problems has a row for each. */
struct forward_kernel {
    const char *name; /* ref_kernel_recipe of it says where it rounds */
    struct kernel_reach reach;
    struct lengths most;
    forward_launcher *sim, *cuda; /* cuda NULL: built without nvcc */
    int only_major; /* of the compute capability of GPUs that have its instructions: left out on others. 0: any */
};

struct backward_kernel {
    const char *name; /* as above */
    struct kernel_reach reach;
    struct lengths most;
    backward_launcher *sim, *cuda;
    int only_major;   /* as above */
    int shared_bytes; /* that a CTA must be able to have: left out on GPUs that have less. What any has: 0 */
};

struct merge_kernel {
    const char *name; /* as above */
    merge_launcher *sim, *cuda;
};

struct merge_backward_kernel {
    const char *name; /* as above */
    merge_backward_launcher *sim, *cuda;
};

/* Bytes of workspace that such a problem needs. */
size_t kernel_workspace_bytes(const struct kernel_reach *reach, const struct attest_problem *p);

/* So many rows, and no more, may a table have: some keep something for each. */
enum { KERNEL_MOST_ROWS = 32 };

/* Each ends with name == NULL, after kernels that take any lengths. */
extern const struct forward_kernel forward_kernels[];
extern const struct backward_kernel backward_kernels[];
extern const struct merge_kernel merge_kernel;
extern const struct merge_backward_kernel merge_backward_kernel;

/* The launchers, for tests that compare machines. */
#define KERNEL(name, pass, file, code) \
    pass##_launcher name##_sim, name##_cuda, name##_sim_poly, name##_cuda_poly;
#include "kernels/kernels.inc"
#undef KERNEL

#ifdef __cplusplus
}
#endif

#endif

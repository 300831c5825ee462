/* launch.h - kernels, their launch, and the names of their launchers.
 *
 *     KERNEL(128, 1) void scale_kernel(float *x, float by) { ... }
 *
 *     extern "C" int KERNEL_SYMBOL(scale)(float *x, float by, void *stream)
 *     {
 *         const launch_shape shape = {{8, 1, 1}, {128, 1, 1}, {1, 1, 1}, 0, 128, 1};
 *         return LAUNCH(scale_kernel, shape, stream, x, by);
 *     }
 */
#ifndef ATTEST_DEVICE_LAUNCH_H
#define ATTEST_DEVICE_LAUNCH_H

#include "kernels/device/machine.h"

/* A function that a grid runs: at most max_threads in a block, registers such that min_blocks fit on one SM. In the
 * simulator as many NOPs behind its entry, and two for each block in front of it, say so: no type of a function holds
 * numbers, and launch_sim.h compares these with the launch's. */
#if ON_CHIP
#define KERNEL(max_threads, min_blocks) __global__ __launch_bounds__(max_threads, min_blocks)
#else
#define KERNEL(max_threads, min_blocks) \
    __attribute__((noinline, patchable_function_entry((max_threads) + 2 * (min_blocks), 2 * (min_blocks)))) static
#endif

/* On a kernel's const parameter: its address may be taken, as tensor maps need. */
#if ON_CHIP
#define GRID_CONSTANT __grid_constant__
#else
#define GRID_CONSTANT
#endif

/* name_cuda, name_sim, name_cuda_poly, name_sim_poly: the launcher's symbol. ATTEST_POLYNOMIAL selects the build with
 * polynomials in place of approximate instructions. */
#define DEVICE_JOIN(name, suffix) name##suffix
#define DEVICE_SUFFIXED(name, suffix) DEVICE_JOIN(name, suffix)
#if ON_CHIP && defined(ATTEST_POLYNOMIAL)
#define KERNEL_SYMBOL(name) DEVICE_SUFFIXED(name, _cuda_poly)
#elif ON_CHIP
#define KERNEL_SYMBOL(name) DEVICE_SUFFIXED(name, _cuda)
#elif defined(ATTEST_POLYNOMIAL)
#define KERNEL_SYMBOL(name) DEVICE_SUFFIXED(name, _sim_poly)
#else
#define KERNEL_SYMBOL(name) DEVICE_SUFFIXED(name, _sim)
#endif

/* Axes are x, y, z; a zero counts as one. */
struct launch_shape {
    unsigned grid[3];                 /* CTAs */
    unsigned block[3];                /* threads of a CTA */
    unsigned cluster[3];              /* CTAs of a cluster; sm_90 */
    size_t dynamic_shared;            /* bytes */
    unsigned max_threads, min_blocks; /* as in KERNEL */
    bool begins_early = false;        /* before the launch ahead has ended: its threads call grid_wait; sm_90a */
};

/* LAUNCH(kernel, shape, stream, args...): starts a grid. Arguments are copied, as the kernel declares them; a kernel
 * named with a comma goes in parentheses. `stream` is a cudaStream_t, in the simulator a struct sim_gpu *. On the chip
 * it allocates nothing and waits for nothing, so it can be captured in a graph; the simulator returns when the grid has
 * ended. Returns 0 or a code that launch_error_text knows. */
#define LAUNCH(kernel, shape, stream, ...) DEVICE_LAUNCH(kernel, #kernel, shape, stream, __VA_ARGS__)

/* unsigned launch_num_sms(void *stream): SMs of the GPU, for a grid whose CTAs stay and take one piece of work after
 * the other; 0 where it cannot be asked: the launch will say why. Results must not depend on it: in the simulator it
 * is one to four, or 16, by the seed. */

/* unsigned launch_max_shared(void *stream): bytes of shared memory that a CTA may have, static and dynamic; 0 as above.
 * Results must not depend on it, either. */

#if ON_CHIP
#include "kernels/device/launch_chip.h"
#else
#include "kernels/device/launch_sim.h"
#endif

#endif

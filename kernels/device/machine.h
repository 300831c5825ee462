/* machine.h - which of the two machines a kernel is compiled for.
 *
 * nvcc compiles a kernel for the chip, g++ for the simulated GPU. Every function of kernels/device/ has both bodies
 * side by side: on the chip one instruction (its comment begins with the heading in the PTX manual and the least
 * architecture), in the simulator a call into kernels/sim/. "Needs sm_90a" stands for sm_90 as well: a kernel built
 * for less traps there. */
#ifndef ATTEST_DEVICE_MACHINE_H
#define ATTEST_DEVICE_MACHINE_H

#include <stddef.h>
#include <stdint.h>

/* DEVICE is for functions of kernels: on the chip they become part of their callers; for the simulated GPU they do not,
 * which makes a kernel three times as quick to compile. INLINE is for those that become part of their callers on both:
 * this layer's, whose callers the simulated GPU names, and what returns a struct, since g++ builds it in the place that
 * it is assigned to and does not show the simulated GPU those stores. DEVICE_CALLED is for what is rarely run: it has
 * registers and a stack of its own, so that callers do not pay for it. */
#ifdef __CUDACC__
#define ON_CHIP 1
#include <cuda_runtime.h>
#define DEVICE __device__ __forceinline__
#define INLINE DEVICE
#define DEVICE_CALLED [[maybe_unused]] static __device__ __noinline__
#else
#define ON_CHIP 0
#include "kernels/sim/calls.h"
#define DEVICE [[maybe_unused]] static
#define INLINE static inline __attribute__((always_inline))
#define DEVICE_CALLED [[maybe_unused]] static __attribute__((noinline))
/* What a kernel copies by name is watched like its other accesses (with -fno-builtin-memcpy and so on). */
extern "C" void *memcpy(void *to, const void *from, size_t bytes) noexcept __asm__("sim_memcpy");
extern "C" void *memmove(void *to, const void *from, size_t bytes) noexcept __asm__("sim_memmove");
extern "C" void *memset(void *to, int value, size_t bytes) noexcept __asm__("sim_memset");
#endif

/* Before a loop over a thread's own arrays: on the chip, unrolled, so that they can be registers. And before a loop
 * that is better left rolled: it is rarely run, or written in many places. */
#if ON_CHIP
#define UNROLL _Pragma("unroll")
#define ROLLED _Pragma("unroll 1")
#else
#define UNROLL
#define ROLLED
#endif

/* An instruction that needs sm_90a, in a file that is compiled for sm_80 as well. */
#if defined(__CUDA_ARCH__) && !defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ASM_SM_90(...) asm volatile("trap;")
#else
#define ASM_SM_90(...) asm volatile(__VA_ARGS__)
#endif

/* "trap", sm_80. Ends the launch with an error. */
INLINE void trap()
{
#if ON_CHIP
    asm volatile("trap;");
#else
    sim_trap();
#endif
}

/* "cvta", sm_80. A generic pointer to shared memory of this CTA or, mapped, of another in its cluster, as
 * instructions on shared memory want it. */
INLINE uint32_t shared_address(const void *pointer)
{
#if ON_CHIP
    return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
#else
    return sim_shared_address(pointer);
#endif
}

#endif

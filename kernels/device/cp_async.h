/* cp_async.h - asynchronous copies from global to shared memory by thread; sm_80.
 *
 * A thread's copies since its last commit are a group. Bytes may be read by the thread that copied them after its wait,
 * by others after that wait and a barrier. */
#ifndef ATTEST_DEVICE_CP_ASYNC_H
#define ATTEST_DEVICE_CP_ASYNC_H

#include "kernels/device/mbarrier.h"

/* "cp.async": .cg, past the first-level cache; sm_80. 16 bytes; where not `valid` 16 zeros, and `global` is not read.
 * Both addresses are multiples of 16. */
INLINE void cp_async_16(void *shared, const void *global, bool valid = true)
{
#if ON_CHIP
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :: "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(valid ? 16 : 0) : "memory");
#else
    sim_cp_async(shared, global, 16, valid ? 16 : 0);
#endif
}

/* "cp.async": .ca; sm_80. The same for 8 and 4 bytes. */
INLINE void cp_async_8(void *shared, const void *global, bool valid = true)
{
#if ON_CHIP
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;"
                 :: "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(valid ? 8 : 0) : "memory");
#else
    sim_cp_async(shared, global, 8, valid ? 8 : 0);
#endif
}

INLINE void cp_async_4(void *shared, const void *global, bool valid = true)
{
#if ON_CHIP
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :: "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(valid ? 4 : 0) : "memory");
#else
    sim_cp_async(shared, global, 4, valid ? 4 : 0);
#endif
}

/* "cp.async.commit_group", sm_80. */
INLINE void cp_async_commit()
{
#if ON_CHIP
    asm volatile("cp.async.commit_group;" ::: "memory");
#else
    sim_cp_async_commit();
#endif
}

/* "cp.async.wait_group", sm_80. Until at most PENDING of this thread's groups are unfinished. */
template <int PENDING>
INLINE void cp_async_wait()
{
    static_assert(PENDING >= 0, "a number of groups");
#if ON_CHIP
    asm volatile("cp.async.wait_group %0;" :: "n"(PENDING) : "memory");
#else
    sim_cp_async_wait(PENDING);
#endif
}

/* "cp.async.wait_all", sm_80. Until all of this thread's copies are done, committed or not. */
INLINE void cp_async_wait_all()
{
#if ON_CHIP
    asm volatile("cp.async.wait_all;" ::: "memory");
#else
    sim_cp_async_wait_all();
#endif
}

/* "cp.async.mbarrier.arrive": .noinc; sm_80. Arrives at the barrier when all copies that this thread has started are
 * done: one of the arrivals that its count names. */
INLINE void cp_async_mbarrier_arrive(mbarrier *b)
{
#if ON_CHIP
    asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];" :: "r"(shared_address(b)) : "memory");
#else
    sim_cp_async_mbarrier_arrive(b);
#endif
}

#endif

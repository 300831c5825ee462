/* bulk.h - bulk copies and reductions by one thread. Needs sm_90a.
 *
 * Addresses and sizes are multiples of 16. Loads end on an mbarrier that was told to expect their bytes. Stores and
 * reductions of a thread since its last bulk_commit are a group. They read shared memory through the async proxy:
 * whoever wrote it does fence_proxy_async_shared before the barrier that comes before the copy. */
#ifndef ATTEST_DEVICE_BULK_H
#define ATTEST_DEVICE_BULK_H

#include "kernels/device/mbarrier.h"

/* "cp.async.bulk": global to shared. */
INLINE void bulk_load(void *shared, const void *global, unsigned bytes, mbarrier *b)
{
#if ON_CHIP
    ASM_SM_90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
              :: "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(bytes),
                 "r"(shared_address(b)) : "memory");
#else
    sim_bulk_load(shared, global, bytes, b, 0);
#endif
}

/* "cp.async.bulk": .multicast::cluster. To the same place in each CTA of the cluster whose bit is set in `mask`, not 0;
 * each one's barrier at the same place gets the bytes. */
INLINE void bulk_load_multicast(void *shared, const void *global, unsigned bytes, mbarrier *b, uint16_t mask)
{
#if ON_CHIP
    ASM_SM_90("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
              " [%0], [%1], %2, [%3], %4;"
              :: "r"(shared_address(shared)), "l"(__cvta_generic_to_global(global)), "r"(bytes),
                 "r"(shared_address(b)), "h"(mask) : "memory");
#else
    sim_bulk_load(shared, global, bytes, b, mask);
#endif
}

/* "cp.async.bulk": shared to global. */
INLINE void bulk_store(void *global, const void *shared, unsigned bytes)
{
#if ON_CHIP
    ASM_SM_90("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;"
              :: "l"(__cvta_generic_to_global(global)), "r"(shared_address(shared)), "r"(bytes) : "memory");
#else
    sim_bulk_store(global, shared, bytes);
#endif
}

/* "cp.reduce.async.bulk": .add. global += shared, each element at once but in no order among copies. */
INLINE void bulk_reduce_add_f32(void *global, const void *shared, unsigned bytes)
{
#if ON_CHIP
    ASM_SM_90("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.f32 [%0], [%1], %2;"
              :: "l"(__cvta_generic_to_global(global)), "r"(shared_address(shared)), "r"(bytes) : "memory");
#else
    sim_bulk_reduce(global, shared, bytes, SIM_ADD_FP32);
#endif
}

INLINE void bulk_reduce_add_f16(void *global, const void *shared, unsigned bytes)
{
#if ON_CHIP
    ASM_SM_90("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.f16 [%0], [%1], %2;"
              :: "l"(__cvta_generic_to_global(global)), "r"(shared_address(shared)), "r"(bytes) : "memory");
#else
    sim_bulk_reduce(global, shared, bytes, SIM_ADD_FP16);
#endif
}

INLINE void bulk_reduce_add_bf16(void *global, const void *shared, unsigned bytes)
{
#if ON_CHIP
    ASM_SM_90("cp.reduce.async.bulk.global.shared::cta.bulk_group.add.noftz.bf16 [%0], [%1], %2;"
              :: "l"(__cvta_generic_to_global(global)), "r"(shared_address(shared)), "r"(bytes) : "memory");
#else
    sim_bulk_reduce(global, shared, bytes, SIM_ADD_BF16);
#endif
}

/* "cp.async.bulk": shared to another CTA's shared. Destination and barrier are pointers from cluster_map, both of one
 * CTA. */
INLINE void bulk_copy_cluster(void *shared_of_other, const void *shared, unsigned bytes, mbarrier *b_of_other)
{
#if ON_CHIP
    ASM_SM_90("cp.async.bulk.shared::cluster.shared::cta.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
              :: "r"(shared_address(shared_of_other)), "r"(shared_address(shared)), "r"(bytes),
                 "r"(shared_address(b_of_other)) : "memory");
#else
    sim_bulk_copy_cluster(shared_of_other, shared, bytes, b_of_other);
#endif
}

/* "cp.async.bulk.commit_group". */
INLINE void bulk_commit()
{
#if ON_CHIP
    ASM_SM_90("cp.async.bulk.commit_group;" ::: "memory");
#else
    sim_bulk_commit();
#endif
}

/* "cp.async.bulk.wait_group". Until at most PENDING of this thread's groups have writes to do. */
template <int PENDING>
INLINE void bulk_wait()
{
    static_assert(PENDING >= 0, "a number of groups");
#if ON_CHIP
    ASM_SM_90("cp.async.bulk.wait_group %0;" :: "n"(PENDING) : "memory");
#else
    sim_bulk_wait(PENDING);
#endif
}

/* "cp.async.bulk.wait_group": .read. Until at most PENDING have shared memory to read: it may then be written again. */
template <int PENDING>
INLINE void bulk_wait_read()
{
    static_assert(PENDING >= 0, "a number of groups");
#if ON_CHIP
    ASM_SM_90("cp.async.bulk.wait_group.read %0;" :: "n"(PENDING) : "memory");
#else
    sim_bulk_wait_read(PENDING);
#endif
}

#endif

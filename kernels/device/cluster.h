/* cluster.h - CTAs of a cluster: their barrier, and each other's shared memory. Needs sm_90a. */
#ifndef ATTEST_DEVICE_CLUSTER_H
#define ATTEST_DEVICE_CLUSTER_H

#include "kernels/device/machine.h"

/* "barrier.cluster": arrive, wait. Every thread of every CTA of the cluster, warps whole, once each in turn. What came
 * before an arrival is seen after the wait; if the arrival was relaxed, mbarriers before a fence_mbarrier_init alone. */
INLINE void cluster_arrive()
{
#if ON_CHIP
    ASM_SM_90("barrier.cluster.arrive.release.aligned;" ::: "memory");
#else
    sim_cluster_arrive(false);
#endif
}

INLINE void cluster_arrive_relaxed()
{
#if ON_CHIP
    ASM_SM_90("barrier.cluster.arrive.relaxed.aligned;" ::: "memory");
#else
    sim_cluster_arrive(true);
#endif
}

INLINE void cluster_wait()
{
#if ON_CHIP
    ASM_SM_90("barrier.cluster.wait.acquire.aligned;" ::: "memory");
#else
    sim_cluster_wait();
#endif
}

INLINE void cluster_sync()
{
    cluster_arrive();
    cluster_wait();
}

/* "mapa". The same place in the shared memory of CTA `rank` of the cluster, for ordinary accesses and for what takes
 * another CTA's pointer. That CTA has begun and does not end meanwhile: a cluster barrier before and after. */
template <typename T>
INLINE T *cluster_map(T *pointer, unsigned rank)
{
#if ON_CHIP
    uint64_t mapped = 0;
    ASM_SM_90("mapa.u64 %0, %1, %2;" : "=l"(mapped) : "l"(pointer), "r"(rank));
    return reinterpret_cast<T *>(mapped);
#else
    return static_cast<T *>(sim_cluster_map(pointer, rank));
#endif
}

#endif

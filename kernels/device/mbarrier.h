/* mbarrier.h - barriers in shared memory that count threads and bytes. Needs sm_90a.
 *
 * A phase completes when `count` arrivals have come and as many bytes as were expected; then the next begins. Phases
 * have parity 0, 1, 0, ...; a wait for parity p passes once the running phase has the other parity. So a wait for
 * parity 1 passes at once on a fresh barrier. What came before an arrival is seen after the wait that it let pass. */
#ifndef ATTEST_DEVICE_MBARRIER_H
#define ATTEST_DEVICE_MBARRIER_H

#include "kernels/device/machine.h"

struct alignas(8) mbarrier {
    uint64_t state; /* the machine's own: not to be read or written */
};

/* "mbarrier.init". By one thread, 1 <= count < 2^20. Others use the barrier after a barrier of the CTA, the async proxy
 * and other CTAs only after fence_mbarrier_init as well. */
INLINE void mbarrier_init(mbarrier *b, unsigned count)
{
#if ON_CHIP
    ASM_SM_90("mbarrier.init.shared::cta.b64 [%0], %1;" :: "r"(shared_address(b)), "r"(count) : "memory");
#else
    sim_mbarrier_init(b, count);
#endif
}

/* "mbarrier.inval". By one thread, when nobody uses it any more: its bytes are ordinary memory again. */
INLINE void mbarrier_inval(mbarrier *b)
{
#if ON_CHIP
    ASM_SM_90("mbarrier.inval.shared::cta.b64 [%0];" :: "r"(shared_address(b)) : "memory");
#else
    sim_mbarrier_inval(b);
#endif
}

/* "mbarrier.arrive". `count` arrivals at a barrier of this CTA. */
INLINE void mbarrier_arrive(mbarrier *b, unsigned count = 1)
{
#if ON_CHIP
    ASM_SM_90("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" :: "r"(shared_address(b)), "r"(count) : "memory");
#else
    sim_mbarrier_arrive(b, count);
#endif
}

/* "mbarrier.arrive": .release.cluster. The same at a barrier of any CTA of the cluster, a pointer from cluster_map. */
INLINE void mbarrier_arrive_cluster(mbarrier *b, unsigned count = 1)
{
#if ON_CHIP
    ASM_SM_90("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], %1;"
              :: "r"(shared_address(b)), "r"(count) : "memory");
#else
    sim_mbarrier_arrive_cluster(b, count);
#endif
}

/* "mbarrier.arrive": .expect_tx. One arrival, and `bytes` more to come before the phase completes. */
INLINE void mbarrier_arrive_expect_tx(mbarrier *b, unsigned bytes)
{
#if ON_CHIP
    ASM_SM_90("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;"
              :: "r"(shared_address(b)), "r"(bytes) : "memory");
#else
    sim_mbarrier_arrive_expect_tx(b, bytes);
#endif
}

/* "mbarrier.expect_tx". The bytes without the arrival. */
INLINE void mbarrier_expect_tx(mbarrier *b, unsigned bytes)
{
#if ON_CHIP
    ASM_SM_90("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;"
              :: "r"(shared_address(b)), "r"(bytes) : "memory");
#else
    sim_mbarrier_expect_tx(b, bytes);
#endif
}

/* "mbarrier.test_wait, mbarrier.try_wait": .parity. Whether the phase of this parity has completed; try_wait sleeps
 * a while first. */
INLINE bool mbarrier_try_wait(const mbarrier *b, unsigned parity)
{
#if ON_CHIP
    uint32_t done = 0;
    ASM_SM_90("{\n\t"
              ".reg .pred p;\n\t"
              "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
              "selp.u32 %0, 1, 0, p;\n\t"
              "}" : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    return done;
#else
    return sim_mbarrier_try_wait(b, parity);
#endif
}

INLINE bool mbarrier_test_wait(const mbarrier *b, unsigned parity)
{
#if ON_CHIP
    uint32_t done = 0;
    ASM_SM_90("{\n\t"
              ".reg .pred p;\n\t"
              "mbarrier.test_wait.parity.shared::cta.b64 p, [%1], %2;\n\t"
              "selp.u32 %0, 1, 0, p;\n\t"
              "}" : "=r"(done) : "r"(shared_address(b)), "r"(parity) : "memory");
    return done;
#else
    return sim_mbarrier_test_wait(b, parity);
#endif
}

/* try_wait until it is done. */
INLINE void mbarrier_wait(const mbarrier *b, unsigned parity)
{
    while (!mbarrier_try_wait(b, parity)) {
    }
}

/* "membar/fence": fence.mbarrier_init. After mbarrier_init, before the barrier by which others learn of it. */
INLINE void fence_mbarrier_init()
{
#if ON_CHIP
    ASM_SM_90("fence.mbarrier_init.release.cluster;" ::: "memory");
#else
    sim_fence_mbarrier_init();
#endif
}

/* "membar/fence": fence.proxy.async. What this thread wrote with ordinary stores may be read by bulk and tensor
 * copies and by wgmma: by its own ones, and by those of threads that a barrier after this fence orders. */
INLINE void fence_proxy_async()
{
#if ON_CHIP
    ASM_SM_90("fence.proxy.async;" ::: "memory");
#else
    sim_fence_proxy_async();
#endif
}

/* The same of this CTA's shared memory alone. */
INLINE void fence_proxy_async_shared()
{
#if ON_CHIP
    ASM_SM_90("fence.proxy.async.shared::cta;" ::: "memory");
#else
    sim_fence_proxy_async_shared();
#endif
}

#endif

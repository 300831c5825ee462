/* thread.h - where a thread is, warps, barriers of a CTA. */
#ifndef ATTEST_DEVICE_THREAD_H
#define ATTEST_DEVICE_THREAD_H

#include "kernels/device/convert.h"

/* ---- "Special Registers": %tid, %ctaid, %ntid, %nctaid, %laneid; sm_80 -------------------------------------- */

#if ON_CHIP
INLINE unsigned thread_x() { return threadIdx.x; }
INLINE unsigned thread_y() { return threadIdx.y; }
INLINE unsigned thread_z() { return threadIdx.z; }
INLINE unsigned block_x() { return blockIdx.x; }
INLINE unsigned block_y() { return blockIdx.y; }
INLINE unsigned block_z() { return blockIdx.z; }
INLINE unsigned block_size_x() { return blockDim.x; }
INLINE unsigned block_size_y() { return blockDim.y; }
INLINE unsigned block_size_z() { return blockDim.z; }
INLINE unsigned grid_x() { return gridDim.x; }
INLINE unsigned grid_y() { return gridDim.y; }
INLINE unsigned grid_z() { return gridDim.z; }
#else
INLINE unsigned thread_x() { return sim_thread_index(0); }
INLINE unsigned thread_y() { return sim_thread_index(1); }
INLINE unsigned thread_z() { return sim_thread_index(2); }
INLINE unsigned block_x() { return sim_block_index(0); }
INLINE unsigned block_y() { return sim_block_index(1); }
INLINE unsigned block_z() { return sim_block_index(2); }
INLINE unsigned block_size_x() { return sim_block_size(0); }
INLINE unsigned block_size_y() { return sim_block_size(1); }
INLINE unsigned block_size_z() { return sim_block_size(2); }
INLINE unsigned grid_x() { return sim_grid_size(0); }
INLINE unsigned grid_y() { return sim_grid_size(1); }
INLINE unsigned grid_z() { return sim_grid_size(2); }
#endif

/* thread_x + block_size_x (thread_y + block_size_y thread_z): 32 neighbours are a warp, 128 a warpgroup. */
INLINE unsigned linear_thread()
{
    return thread_x() + block_size_x() * (thread_y() + block_size_y() * thread_z());
}

INLINE unsigned lane() { return linear_thread() % 32; }
INLINE unsigned warp() { return linear_thread() / 32; }

/* "%cluster_ctarank", "%cluster_nctarank". Needs sm_90a. This CTA's number in its cluster, and how many there are. */
INLINE unsigned cluster_rank()
{
#if ON_CHIP
    unsigned rank = 0;
    ASM_SM_90("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
#else
    return sim_cluster_rank();
#endif
}

INLINE unsigned cluster_size()
{
#if ON_CHIP
    unsigned size = 0;
    ASM_SM_90("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
    return size;
#else
    return sim_cluster_size();
#endif
}

/* ---- Barriers of a CTA ---------------------------------------------------------------------------------------- */

/* "bar, barrier", sm_80. All threads of the CTA that have not ended; warps whole. */
INLINE void sync_threads()
{
#if ON_CHIP
    __syncthreads();
#else
    sim_sync_threads();
#endif
}

/* "bar, barrier": bar.sync id, threads; sm_80. Waits until `threads` of the CTA, a multiple of 32, have come to
 * barrier `id`, 1 .. 15 (0 is sync_threads): all name the same number, warps come whole. */
INLINE void named_barrier_sync(unsigned id, unsigned threads)
{
#if ON_CHIP
    asm volatile("bar.sync %0, %1;" :: "r"(id), "r"(threads) : "memory");
#else
    sim_named_barrier_sync(id, threads);
#endif
}

/* "bar, barrier": bar.arrive id, threads; sm_80. Counts as come and goes on. */
INLINE void named_barrier_arrive(unsigned id, unsigned threads)
{
#if ON_CHIP
    asm volatile("bar.arrive %0, %1;" :: "r"(id), "r"(threads) : "memory");
#else
    sim_named_barrier_arrive(id, threads);
#endif
}

/* ---- Warps: every lane of `members` comes to the same call ------------------------------------------------------ */

constexpr uint32_t FULL_WARP = 0xffffffff;

/* "bar.warp.sync", sm_80. What the members wrote before is seen by all of them after. */
INLINE void sync_warp(uint32_t members)
{
#if ON_CHIP
    __syncwarp(members);
#else
    sim_sync_warp(members);
#endif
}

/* "shfl.sync", sm_80. The value of another lane: of lane `operand` (idx), of the lane `operand` below (up) or above
 * (down), of lane ^ operand (xor), within segments of `width` lanes, a power of two. A lane outside of the segment: the
 * own value; but idx takes it modulo width, and xor may reach into a lower segment. Lanes read from are members. */
INLINE uint32_t shfl_idx(uint32_t members, uint32_t value, unsigned operand, unsigned width = 32)
{
#if ON_CHIP
    return __shfl_sync(members, value, static_cast<int>(operand), static_cast<int>(width));
#else
    return sim_shfl(SIM_SHFL_IDX, members, value, operand, width);
#endif
}

INLINE uint32_t shfl_up(uint32_t members, uint32_t value, unsigned operand, unsigned width = 32)
{
#if ON_CHIP
    return __shfl_up_sync(members, value, operand, static_cast<int>(width));
#else
    return sim_shfl(SIM_SHFL_UP, members, value, operand, width);
#endif
}

INLINE uint32_t shfl_down(uint32_t members, uint32_t value, unsigned operand, unsigned width = 32)
{
#if ON_CHIP
    return __shfl_down_sync(members, value, operand, static_cast<int>(width));
#else
    return sim_shfl(SIM_SHFL_DOWN, members, value, operand, width);
#endif
}

INLINE uint32_t shfl_xor(uint32_t members, uint32_t value, unsigned operand, unsigned width = 32)
{
#if ON_CHIP
    return __shfl_xor_sync(members, value, static_cast<int>(operand), static_cast<int>(width));
#else
    return sim_shfl(SIM_SHFL_XOR, members, value, operand, width);
#endif
}

/* The same for float and int. */
#define DEVICE_SHUFFLE(name)                                                                                     \
    INLINE float name(uint32_t members, float value, unsigned operand, unsigned width = 32)                      \
    {                                                                                                            \
        return float_of(name(members, bits_of(value), operand, width));                                          \
    }                                                                                                            \
    INLINE int name(uint32_t members, int value, unsigned operand, unsigned width = 32)                          \
    {                                                                                                            \
        return static_cast<int>(name(members, static_cast<uint32_t>(value), operand, width));                    \
    }
DEVICE_SHUFFLE(shfl_idx)
DEVICE_SHUFFLE(shfl_up)
DEVICE_SHUFFLE(shfl_down)
DEVICE_SHUFFLE(shfl_xor)
#undef DEVICE_SHUFFLE

/* "vote.sync": ballot; sm_80. Bit n: the predicate of lane n, 0 for lanes that are no members. */
INLINE uint32_t ballot(uint32_t members, bool predicate)
{
#if ON_CHIP
    return __ballot_sync(members, predicate);
#else
    return sim_ballot(members, predicate);
#endif
}

/* "redux.sync": .max.u32; sm_80. The largest value of all lanes of the warp, in each of them. */
INLINE uint32_t max_of_warp(uint32_t value)
{
#if ON_CHIP
    return __reduce_max_sync(FULL_WARP, value);
#else
    for (unsigned other = 1; other < 32; other *= 2) {
        const uint32_t there = shfl_xor(FULL_WARP, value, other);
        value = there > value ? there : value;
    }
    return value;
#endif
}

/* "elect.sync". Needs sm_90a. True in one of the members, the same one every time. */
INLINE bool elect_one(uint32_t members = FULL_WARP)
{
#if ON_CHIP
    uint32_t elected = 0;
    ASM_SM_90("{\n\t"
              ".reg .pred p;\n\t"
              "elect.sync _|p, %1;\n\t"
              "selp.u32 %0, 1, 0, p;\n\t"
              "}" : "=r"(elected) : "r"(members) : "memory");
    return elected;
#else
    return sim_elect_one(members);
#endif
}

#endif

/* tma.h - copies and reductions of boxes of tensors, by one thread. Needs sm_90a.
 *
 * A tensor map names a tensor of 1 to 5 dimensions in global memory, a box, and how the box lies in shared memory.
 * Coordinates, in elements and fastest first, are those of the box's first element. The first is a multiple of 16
 * bytes; those of loads may be negative, those of stores and reductions not: else it is an illegal instruction.
 * Elements outside of the tensor are loaded as zero (or the NaN 7ff77ff7, 7ff7) and not stored, but that a row whose
 * length is no multiple of 16 bytes is overrun to the next: so an H200 does. The map is a const GRID_CONSTANT parameter
 * of the kernel. Loads end on an mbarrier, which counts what lies outside, too; stores and reductions belong
 * to the groups of bulk.h. Shared memory: multiples of 128 bytes; with swizzle, of 8 times its bytes for the pattern to
 * begin with the box. */
#ifndef ATTEST_DEVICE_TMA_H
#define ATTEST_DEVICE_TMA_H

#include "kernels/device/bulk.h"
#include "kernels/device/tensor_map.h"

/* The functions of one number of dimensions:
 *
 *   tma_load_2d(shared, map, b, c0, c1)                  "cp.async.bulk.tensor": global to shared
 *   tma_load_2d_multicast(shared, map, b, mask, c0, c1)  to each CTA whose bit is set, as bulk_load_multicast
 *   tma_store_2d(map, shared, c0, c1)                    "cp.async.bulk.tensor": shared to global
 *   tma_reduce_add_2d(map, shared, c0, c1)               "cp.reduce.async.bulk.tensor": .add, global += shared
 *
 * In the text of the instruction the coordinates are operands 0 to 4; those that are not there are constants. */
#if ON_CHIP
#define DEVICE_TMA(dims, at, C0, C1, C2, C3, C4, ...)                                                                 \
    INLINE void tma_load_##dims(void *shared, const tensor_map *map, mbarrier *b, __VA_ARGS__)                        \
    {                                                                                                                 \
        ASM_SM_90("cp.async.bulk.tensor." #dims ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"           \
                  " [%5], [%6, " at "], [%7];"                                                                        \
                  :: C0, C1, C2, C3, C4, "r"(shared_address(shared)), "l"(map), "r"(shared_address(b)) : "memory");   \
    }                                                                                                                 \
    INLINE void tma_load_##dims##_multicast(void *shared, const tensor_map *map, mbarrier *b, uint16_t mask,          \
                                            __VA_ARGS__)                                                              \
    {                                                                                                                 \
        ASM_SM_90("cp.async.bulk.tensor." #dims ".shared::cluster.global.tile.mbarrier::complete_tx::bytes"           \
                  ".multicast::cluster [%5], [%6, " at "], [%7], %8;"                                                 \
                  :: C0, C1, C2, C3, C4, "r"(shared_address(shared)), "l"(map), "r"(shared_address(b)), "h"(mask)     \
                  : "memory");                                                                                        \
    }                                                                                                                 \
    INLINE void tma_store_##dims(const tensor_map *map, const void *shared, __VA_ARGS__)                              \
    {                                                                                                                 \
        ASM_SM_90("cp.async.bulk.tensor." #dims ".global.shared::cta.tile.bulk_group [%6, " at "], [%5];"             \
                  :: C0, C1, C2, C3, C4, "r"(shared_address(shared)), "l"(map) : "memory");                           \
    }                                                                                                                 \
    INLINE void tma_reduce_add_##dims(const tensor_map *map, const void *shared, __VA_ARGS__)                         \
    {                                                                                                                 \
        ASM_SM_90("cp.reduce.async.bulk.tensor." #dims ".global.shared::cta.add.tile.bulk_group [%6, " at "], [%5];"  \
                  :: C0, C1, C2, C3, C4, "r"(shared_address(shared)), "l"(map) : "memory");                           \
    }
#define DEVICE_TMA_NONE "n"(0)
DEVICE_TMA(1d, "{%0}", "r"(c0), DEVICE_TMA_NONE, DEVICE_TMA_NONE, DEVICE_TMA_NONE, DEVICE_TMA_NONE, int c0)
DEVICE_TMA(2d, "{%0, %1}", "r"(c0), "r"(c1), DEVICE_TMA_NONE, DEVICE_TMA_NONE, DEVICE_TMA_NONE, int c0, int c1)
DEVICE_TMA(3d, "{%0, %1, %2}", "r"(c0), "r"(c1), "r"(c2), DEVICE_TMA_NONE, DEVICE_TMA_NONE, int c0, int c1, int c2)
DEVICE_TMA(4d, "{%0, %1, %2, %3}", "r"(c0), "r"(c1), "r"(c2), "r"(c3), DEVICE_TMA_NONE, int c0, int c1, int c2, int c3)
DEVICE_TMA(5d, "{%0, %1, %2, %3, %4}", "r"(c0), "r"(c1), "r"(c2), "r"(c3), "r"(c4),
           int c0, int c1, int c2, int c3, int c4)
#undef DEVICE_TMA_NONE
#else
#define DEVICE_COORDINATES(...) {__VA_ARGS__}
#define DEVICE_TMA(dims, ndim, coordinates, ...)                                                                      \
    INLINE void tma_load_##dims(void *shared, const tensor_map *map, mbarrier *b, __VA_ARGS__)                        \
    {                                                                                                                 \
        const int32_t at[] = DEVICE_COORDINATES coordinates;                                                          \
        sim_tensor_load(shared, map, at, ndim, b, 0);                                                                 \
    }                                                                                                                 \
    INLINE void tma_load_##dims##_multicast(void *shared, const tensor_map *map, mbarrier *b, uint16_t mask,          \
                                            __VA_ARGS__)                                                              \
    {                                                                                                                 \
        const int32_t at[] = DEVICE_COORDINATES coordinates;                                                          \
        sim_tensor_load(shared, map, at, ndim, b, mask);                                                              \
    }                                                                                                                 \
    INLINE void tma_store_##dims(const tensor_map *map, const void *shared, __VA_ARGS__)                              \
    {                                                                                                                 \
        const int32_t at[] = DEVICE_COORDINATES coordinates;                                                          \
        sim_tensor_store(map, at, ndim, shared);                                                                      \
    }                                                                                                                 \
    INLINE void tma_reduce_add_##dims(const tensor_map *map, const void *shared, __VA_ARGS__)                         \
    {                                                                                                                 \
        const int32_t at[] = DEVICE_COORDINATES coordinates;                                                          \
        sim_tensor_reduce_add(map, at, ndim, shared);                                                                 \
    }
DEVICE_TMA(1d, 1, (c0), int c0)
DEVICE_TMA(2d, 2, (c0, c1), int c0, int c1)
DEVICE_TMA(3d, 3, (c0, c1, c2), int c0, int c1, int c2)
DEVICE_TMA(4d, 4, (c0, c1, c2, c3), int c0, int c1, int c2, int c3)
DEVICE_TMA(5d, 5, (c0, c1, c2, c3, c4), int c0, int c1, int c2, int c3, int c4)
#undef DEVICE_COORDINATES
#endif
#undef DEVICE_TMA

/* "prefetch": .tensormap. The map itself is brought near. */
INLINE void tma_prefetch(const tensor_map *map)
{
#if ON_CHIP
    ASM_SM_90("prefetch.tensormap [%0];" :: "l"(map) : "memory");
#else
    sim_tensor_prefetch(map);
#endif
}

#endif

/* calls.h - what kernels/device/ calls when a kernel is compiled for the simulated GPU.
 *
 * One function an instruction (or a family that differs in an operand). Each acts for the thread that is running
 * (sim_self of machine.h); its return address is the place that reports name. A member mask names lanes of the warp. */
#ifndef ATTEST_SIM_CALLS_H
#define ATTEST_SIM_CALLS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum sim_format { SIM_FP16, SIM_BF16, SIM_TF32 };

/* Where this thread is. Axes 0, 1, 2 are x, y, z. */
unsigned sim_thread_index(int axis);
unsigned sim_block_index(int axis);
unsigned sim_block_size(int axis);
unsigned sim_grid_size(int axis);
unsigned sim_cluster_rank(void); /* of this CTA in its cluster */
unsigned sim_cluster_size(void);

/* Shared memory. A static allocation is known by its tag: the same block gets the same place every time. */
void *sim_shared_static(const void *tag, size_t bytes, size_t align);
void *sim_shared_dynamic(size_t align);
/* Cuts it, from its first byte on, into parts with red zones between them, where `parts` point to; none: whole. */
void sim_shared_cut(void *base, const unsigned *bytes, int num_parts, unsigned char **parts);
/* What lies there ends: nobody has written these bytes. */
void sim_shared_expire(void *pointer, size_t bytes);
uint32_t sim_shared_address(const void *pointer);          /* cvta.to.shared: the offset in the CTA's window */
void *sim_cluster_map(const void *pointer, unsigned rank); /* mapa: the same place in another CTA of the cluster */

/* Warps. Values travel as 32 bits. */
enum sim_shuffle { SIM_SHFL_IDX, SIM_SHFL_UP, SIM_SHFL_DOWN, SIM_SHFL_XOR };
uint32_t sim_shfl(enum sim_shuffle kind, uint32_t members, uint32_t value, unsigned operand, unsigned width);
uint32_t sim_ballot(uint32_t members, bool predicate);
void sim_sync_warp(uint32_t members);
bool sim_elect_one(uint32_t members);

/* Barriers of a CTA and of a cluster. */
void sim_sync_threads(void);
void sim_named_barrier_sync(unsigned id, unsigned threads);
void sim_named_barrier_arrive(unsigned id, unsigned threads);
void sim_cluster_arrive(bool relaxed);
void sim_cluster_wait(void);

/* Waits for the launches ahead. */
void sim_grid_wait(void);

/* Approximations; the chip's results differ in the last bits. */
float sim_exp2_approx(float x);
float sim_log2_approx(float x);
float sim_rcp_approx(float x);
float sim_tanh_approx(float x);

/* Ordinary accesses with a name: 16 bytes, at a multiple of 16; of global memory, cache hints without effect here. */
void sim_load_16(void *value, const void *address);
void sim_store_16(void *address, const void *value);
void sim_load_global_16(void *value, const void *address);
void sim_store_global_16(void *address, const void *value);

/* Copies by name, of any memory. */
void *sim_memcpy(void *to, const void *from, size_t bytes);
void *sim_memmove(void *to, const void *from, size_t bytes);
void *sim_memset(void *to, int value, size_t bytes);

/* cp.async: `bytes` 4, 8 or 16, the first `source_bytes` from global memory, zeros after them. */
void sim_cp_async(void *shared, const void *global, unsigned bytes, unsigned source_bytes);
void sim_cp_async_commit(void);
void sim_cp_async_wait(unsigned pending_groups); /* wait_group N; wait_all is 0 and takes uncommitted copies too */
void sim_cp_async_wait_all(void);
void sim_cp_async_mbarrier_arrive(void *mbarrier); /* cp.async.mbarrier.arrive.noinc */

/* Matrices by warp. Fragments as the PTX manual numbers them; 16-bit pairs low half first. */
void sim_ldmatrix(uint32_t *fragment, const void *row, int count, bool transpose); /* count 1, 2, 4 */
void sim_stmatrix(void *row, const uint32_t *fragment, int count, bool transpose);
/* m16n8k16 (fp16, bf16) or m16n8k8 (tf32): d = a b + c, a[4], b[2], c[4], d[4]. d may be c. */
void sim_mma(enum sim_format format, float *d, const uint32_t *a, const uint32_t *b, const float *c);

/* mbarrier. */
void sim_mbarrier_init(void *mbarrier, unsigned count);
void sim_mbarrier_inval(void *mbarrier);
void sim_mbarrier_arrive(void *mbarrier, unsigned count);           /* own CTA's, as all but the next */
void sim_mbarrier_arrive_cluster(void *mbarrier, unsigned count);   /* own CTA's or, mapped, another's */
void sim_mbarrier_arrive_expect_tx(void *mbarrier, unsigned bytes); /* one arrival */
void sim_mbarrier_expect_tx(void *mbarrier, unsigned bytes);        /* none */
bool sim_mbarrier_try_wait(const void *mbarrier, unsigned parity);  /* may give up: callers loop */
bool sim_mbarrier_test_wait(const void *mbarrier, unsigned parity);
void sim_fence_mbarrier_init(void);
void sim_fence_proxy_async(void);      /* fence.proxy.async */
void sim_fence_proxy_async_shared(void); /* fence.proxy.async.shared::cta */

/* Bulk copies: multiples of 16 bytes, 16-byte aligned. `multicast` a mask of cluster ranks, 0: this CTA alone. */
void sim_bulk_load(void *shared, const void *global, unsigned bytes, void *mbarrier, uint16_t multicast);
void sim_bulk_store(void *global, const void *shared, unsigned bytes);
enum sim_reduce { SIM_ADD_FP32, SIM_ADD_FP16, SIM_ADD_BF16 };
void sim_bulk_reduce(void *global, const void *shared, unsigned bytes, enum sim_reduce op);
void sim_bulk_copy_cluster(void *shared_of_other, const void *shared, unsigned bytes, void *mbarrier_of_other);

/* Tensor copies by map: coordinates fastest first, as many as the map has dimensions. */
struct sim_tensor_map_fields { /* what cuTensorMapEncodeTiled takes, element type by size and kind */
    const void *data;
    enum sim_element { SIM_ELEMENT_FP32, SIM_ELEMENT_FP16, SIM_ELEMENT_BF16, SIM_ELEMENT_UINT8 } element;
    int ndim;                   /* 1 .. 5 */
    uint64_t shape[5];          /* elements, fastest first */
    uint64_t stride_bytes[5];   /* of dimension 1 and up; [0] is the element's size */
    uint32_t box[5];
    int swizzle_bytes;          /* 0, 32, 64, 128 */
    bool nan_fill;              /* out of bounds: NaN in place of zero */
};
/* Checks as the driver does; false with a sentence in `why`. `map` has 128 bytes, 64-byte aligned. */
bool sim_tensor_map_encode(void *map, const struct sim_tensor_map_fields *fields, char *why, size_t why_bytes);
/* As cuTensorMapReplaceAddress: the tensor lies at `data`. False, and nothing done, if that is no multiple of 16. */
bool sim_tensor_map_move(void *map, const void *data);
void sim_tensor_load(void *shared, const void *map, const int32_t *coordinates, int ndim, void *mbarrier,
                     uint16_t multicast);
void sim_tensor_store(const void *map, const int32_t *coordinates, int ndim, const void *shared);
void sim_tensor_reduce_add(const void *map, const int32_t *coordinates, int ndim, const void *shared);
void sim_tensor_prefetch(const void *map);
void sim_bulk_commit(void);
void sim_bulk_wait(unsigned pending_groups);      /* until the writes are done */
void sim_bulk_wait_read(unsigned pending_groups); /* until the sources have been read */

/* wgmma m64nNk16: the four warps of a warpgroup. d has n / 2 numbers a thread; `a` a register fragment of 4, or NULL
 * for the descriptor. scale_d false: d = a b. Negations: +1 or -1. Transposes only of 16-bit operands in shared
 * memory. */
void sim_wgmma(enum sim_format format, int n, float *d, const uint32_t *a, uint64_t descriptor_a, uint64_t descriptor_b,
               bool scale_d, int scale_a, int scale_b, bool transpose_a, bool transpose_b);
void sim_wgmma_fence(void);
void sim_wgmma_commit(void);
void sim_wgmma_wait(unsigned pending_groups);
void sim_wgmma_fence_operand(const void *registers, size_t bytes); /* no instruction, but an order of the compiler */
void sim_setmaxnreg(bool increase, unsigned registers);

void sim_trap(void);

#ifdef __cplusplus
}
#endif

#endif

/* unit_probe.h - tensor-core instructions on tiles of numbers, on either machine. */
#ifndef ATTEST_DEVICE_UNIT_PROBE_H
#define ATTEST_DEVICE_UNIT_PROBE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

/* What is asked, in the order of the cases of unit_probe.cu. */
#define UNIT_INSTRUCTIONS(X)                                 \
    X(mma_f16, SIM_FP16, 16, 8, "mma.sync m16n8k16 fp16")    \
    X(mma_bf16, SIM_BF16, 16, 8, "mma.sync m16n8k16 bf16")   \
    X(mma_tf32, SIM_TF32, 16, 8, "mma.sync m16n8k8 tf32")    \
    X(wgmma_f16_8_registers, SIM_FP16, 64, 8, "wgmma m64n8k16 fp16, A in registers")       \
    X(wgmma_f16_8_shared, SIM_FP16, 64, 8, "wgmma m64n8k16 fp16, A in shared memory")      \
    X(wgmma_f16_64_registers, SIM_FP16, 64, 64, "wgmma m64n64k16 fp16, A in registers")    \
    X(wgmma_f16_64_shared, SIM_FP16, 64, 64, "wgmma m64n64k16 fp16, A in shared memory")   \
    X(wgmma_f16_256_registers, SIM_FP16, 64, 256, "wgmma m64n256k16 fp16, A in registers") \
    X(wgmma_f16_256_shared, SIM_FP16, 64, 256, "wgmma m64n256k16 fp16, A in shared memory") \
    X(wgmma_bf16_8_registers, SIM_BF16, 64, 8, "wgmma m64n8k16 bf16, A in registers")       \
    X(wgmma_bf16_8_shared, SIM_BF16, 64, 8, "wgmma m64n8k16 bf16, A in shared memory")      \
    X(wgmma_bf16_64_registers, SIM_BF16, 64, 64, "wgmma m64n64k16 bf16, A in registers")    \
    X(wgmma_bf16_64_shared, SIM_BF16, 64, 64, "wgmma m64n64k16 bf16, A in shared memory")   \
    X(wgmma_bf16_256_registers, SIM_BF16, 64, 256, "wgmma m64n256k16 bf16, A in registers") \
    X(wgmma_bf16_256_shared, SIM_BF16, 64, 256, "wgmma m64n256k16 bf16, A in shared memory")

enum unit_instruction {
#define X(id, format, m, n, name) UNIT_##id,
    UNIT_INSTRUCTIONS(X)
#undef X
    UNIT_NUM_INSTRUCTIONS
};

/* d = a b + c of each tile: a [tiles][m][k], b_t [tiles][n][k], c and d [tiles][m][n], all in host memory. c NULL: no
 * accumulator (wgmma; mma.sync takes zeros). False with a sentence in `why`. */
typedef bool unit_probe(enum unit_instruction instruction, int tiles, const void *a, const void *b_t, const float *c,
                        float *d, char *why, size_t why_bytes);
unit_probe unit_probe_sim;
unit_probe unit_probe_cuda __attribute__((weak)); /* NULL: built without nvcc */

/* The GPU's name and its driver; false: there is none. */
bool unit_probe_machine_cuda(char *text, size_t bytes) __attribute__((weak));

#ifdef __cplusplus
}
#endif

#endif

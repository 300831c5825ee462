/* recipes.c - the recipes that come with the project; reference/bounds.md section 2 reads them. */
#include <string.h>

#include "reference/bounds.h"

/* ex2.approx.ftz.f32 is within 2^-22 relative, tanh.approx.f32 within 2^-11 relative (PTX ISA, "ex2" and "tanh");
 * CUDA's and glibc's expf and tanhf are within the former. No tensor core takes fewer than 16 keys a tile. */
#define EXP_ERROR 0x1p-22
#define TANH_ACCURATE 0x1p-22
#define TANH_APPROX 0x1p-11
#define TILE_K 16

/* FlashAttention-4 rescales lazily, where the maximum has grown by a factor of more than 256. */
#define LAZY_LOG2 8

/* What p and ds are when they meet their operands. */
#define ONE_PART .weights_p = ATTEST_WEIGHTS_ONE_PART, .weights_ds = ATTEST_WEIGHTS_ONE_PART
#define TWO_PARTS .weights_p = ATTEST_WEIGHTS_TWO_PARTS, .weights_ds = ATTEST_WEIGHTS_TWO_PARTS
#define SCALED_FP16 .weights_p = ATTEST_WEIGHTS_SCALED_FP16, .weights_ds = ATTEST_WEIGHTS_SCALED_FP16

/* What kernels on tensor cores have in common: p and ds in 16 bits, approximate instructions. */
#define TENSOR_CORE                                                                                          \
    .struct_size = sizeof(struct attest_recipe), ONE_PART, .tile_k = TILE_K,                                  \
    .exp_error = EXP_ERROR, .tanh_error = TANH_APPROX, .ordered_keys = 1
/* What FlashAttention's way adds to the backward pass. */
#define FLASH .round_dkv_heads = 1, .delta = ATTEST_DELTA_FROM_ROUNDED_O

const struct attest_recipe ref_recipes[] = {
    [REF_RECIPE_FP32] = {.name = "fp32",
                         .struct_size = sizeof(struct attest_recipe),
                         .accumulate = ATTEST_ACC_FP32,
                         .delta = ATTEST_DELTA_EXACT,
                         .exp_error = EXP_ERROR,
                         .tanh_error = TANH_ACCURATE,
                         .ordered_keys = 1},
    [REF_RECIPE_MIXED] = {.name = "mixed", TENSOR_CORE, .accumulate = ATTEST_ACC_FAITHFUL, .delta = ATTEST_DELTA_EXACT},
    /* Every fused backend of PyTorch: the memory-efficient one makes ds of a p that it rounded, and it and cuDNN round
     * softmax_scale ds. FlashAttention 2, 3 and 4 multiply the sums of dq and dk, and so do all of ours. */
    [REF_RECIPE_FLASH] = {.name = "flash", TENSOR_CORE, FLASH, .accumulate = ATTEST_ACC_FAITHFUL, .round_p_ds = 1,
                          .round_scaled_ds = 1},
    [REF_RECIPE_AMPERE] = {.name = "ampere", TENSOR_CORE, FLASH, .accumulate = ATTEST_ACC_AMPERE},
    [REF_RECIPE_HOPPER] = {.name = "hopper", TENSOR_CORE, FLASH, .accumulate = ATTEST_ACC_HOPPER},
    [REF_RECIPE_LAZY] = {.name = "lazy", TENSOR_CORE, FLASH, .accumulate = ATTEST_ACC_FAITHFUL,
                         .rescale_log2 = LAZY_LOG2},
    {0},
};

/* Ours: the approximate or the portable functions of kernels/device/functions.h, tiles of 64 keys. Those without tensor
 * cores keep p and ds in fp32. */
#define PORTABLE_OF(keys) \
    .struct_size = sizeof(struct attest_recipe), .tile_k = keys, .exp_error = EXP_ERROR, .tanh_error = TANH_ACCURATE, \
    .own_sum = 1
#define PORTABLE PORTABLE_OF(64)
#define PORTABLE_FP32 PORTABLE, .accumulate = ATTEST_ACC_FP32, .delta = ATTEST_DELTA_EXACT
#define PORTABLE_MMA \
    PORTABLE, .accumulate = ATTEST_ACC_FAITHFUL, ONE_PART, .delta = ATTEST_DELTA_CORRECTED

/* Whole sequences on tensor cores: p and ds in two parts, delta the mean of dp by p. */
#define PORTABLE_SHORT(keys) \
    PORTABLE_OF(keys), .accumulate = ATTEST_ACC_FAITHFUL, TWO_PARTS, .delta = ATTEST_DELTA_NORMALIZED
/* The same, but in fp16, once, with powers of two of each head (bounds.md sections 11.11 and 11.12). */
#define PORTABLE_SCALED(keys) \
    PORTABLE_OF(keys), .accumulate = ATTEST_ACC_FAITHFUL, SCALED_FP16, .delta = ATTEST_DELTA_NORMALIZED
#define PORTABLE_CLS PORTABLE, .accumulate = ATTEST_ACC_FP32, .delta = ATTEST_DELTA_NORMALIZED

const struct attest_recipe ref_kernel_recipes[] = {
    [REF_FORWARD_SM80] = {.name = "forward_sm80", PORTABLE_MMA},
    [REF_BACKWARD_SM80] = {.name = "backward_sm80", PORTABLE_MMA},
    [REF_FORWARD_FP32] = {.name = "forward_fp32", PORTABLE_FP32},
    [REF_BACKWARD_FP32] = {.name = "backward_fp32", PORTABLE_FP32},
    [REF_MERGE] = {.name = "merge",
                   .struct_size = sizeof(struct attest_recipe),
                   .accumulate = ATTEST_ACC_FP32,
                   .delta = ATTEST_DELTA_EXACT,
                   .exp_error = EXP_ERROR,
                   .tanh_error = TANH_ACCURATE},
    [REF_MERGE_BACKWARD] = {.name = "merge_backward",
                            .struct_size = sizeof(struct attest_recipe),
                            .accumulate = ATTEST_ACC_FP32,
                            .delta = ATTEST_DELTA_EXACT,
                            .exp_error = EXP_ERROR,
                            .tanh_error = TANH_ACCURATE},
    [REF_SHORT_FORWARD_SM80] = {.name = "short_forward_sm80", PORTABLE_SHORT(64)},
    [REF_SHORT_BACKWARD_SM80] = {.name = "short_backward_sm80", PORTABLE_SHORT(64)},
    [REF_ONE_QUERY_FORWARD_SM80] = {.name = "one_query_forward_sm80", PORTABLE_CLS},
    [REF_ONE_QUERY_BACKWARD_SM80] = {.name = "one_query_backward_sm80", PORTABLE_CLS},
    /* Those for Hopper rescale nothing, the scaled one neither: bounds.md section 11.9. */
    [REF_SHORT_FORWARD_SM90] = {.name = "short_forward_sm90", PORTABLE_SHORT(TILE_K)},
    [REF_SHORT_FORWARD_SM90_D256] = {.name = "short_forward_sm90_d256", PORTABLE_SHORT(128)},
    [REF_SHORT_BACKWARD_SM90_N64] = {.name = "short_backward_sm90_n64", PORTABLE_SHORT(64)},
    [REF_SHORT_BACKWARD_SM90_N128] = {.name = "short_backward_sm90_n128", PORTABLE_SHORT(128)},
    [REF_SHORT_BACKWARD_SM90_N128_LATENCY] = {.name = "short_backward_sm90_n128_latency", PORTABLE_SHORT(128)},
    [REF_SHORT_BACKWARD_SM90_N128_D256] = {.name = "short_backward_sm90_n128_d256", PORTABLE_SHORT(128)},
    [REF_SHORT_BACKWARD_SM90_N128_D256_LATENCY] = {.name = "short_backward_sm90_n128_d256_latency",
                                                   PORTABLE_SHORT(128)},
    [REF_SHORT_BACKWARD_SM90_N128_SCALED] = {.name = "short_backward_sm90_n128_scaled", PORTABLE_SCALED(128)},
    [REF_SHORT_FORWARD_SM90_SCALED] = {.name = "short_forward_sm90_scaled", PORTABLE_SCALED(TILE_K)},
    [REF_FORWARD_SM90] = {.name = "forward_sm90", PORTABLE_MMA, .rescale_log2 = 64},
    [REF_SHORT_BACKWARD_SM80_ANY] = {.name = "short_backward_sm80_any", PORTABLE_SHORT(64)},
    [REF_SHORT_BACKWARD_SM90_ANY] = {.name = "short_backward_sm90_any", PORTABLE_SHORT(64)},
    [REF_FORWARD_SM90_ANY] = {.name = "forward_sm90_any", PORTABLE_MMA},
    {0},
};

static const struct attest_recipe *find(const struct attest_recipe *recipes, const char *name)
{
    for (const struct attest_recipe *r = recipes; r->name; ++r)
        if (strcmp(r->name, name) == 0) return r;
    return NULL;
}

int ref_rescale_log2(const struct attest_recipe *recipe, int32_t dtype)
{
    enum { MOST_FP16 = 15 };
    return dtype == ATTEST_FP16 && recipe->rescale_log2 > MOST_FP16 ? MOST_FP16 : recipe->rescale_log2;
}

const struct attest_recipe *ref_recipe(const char *name) { return find(ref_recipes, name); }

const struct attest_recipe *ref_kernel_recipe(const char *kernel) { return find(ref_kernel_recipes, kernel); }

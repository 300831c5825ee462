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

/* What kernels on tensor cores have in common: p and ds in 16 bits, approximate instructions. */
#define TENSOR_CORE                                                                                          \
    .struct_size = sizeof(struct attest_recipe), .round_p = 1, .round_ds = 1, .tile_k = TILE_K,              \
    .exp_error = EXP_ERROR, .tanh_error = TANH_APPROX, .ordered_keys = 1
/* What FlashAttention's way adds to the backward pass. */
#define FLASH .round_dkv_heads = 1, .delta = ATTEST_DELTA_FROM_ROUNDED_O

const struct attest_recipe ref_recipes[] = {
    {.name = "fp32",
     .struct_size = sizeof(struct attest_recipe),
     .accumulate = ATTEST_ACC_FP32,
     .delta = ATTEST_DELTA_EXACT,
     .exp_error = EXP_ERROR,
     .tanh_error = TANH_ACCURATE,
     .ordered_keys = 1},
    {.name = "mixed", TENSOR_CORE, .accumulate = ATTEST_ACC_FAITHFUL, .delta = ATTEST_DELTA_EXACT},
    {.name = "flash", TENSOR_CORE, FLASH, .accumulate = ATTEST_ACC_FAITHFUL, .round_p_ds = 1},
    {.name = "ampere", TENSOR_CORE, FLASH, .accumulate = ATTEST_ACC_AMPERE},
    {.name = "hopper", TENSOR_CORE, FLASH, .accumulate = ATTEST_ACC_HOPPER},
    {.name = "lazy", TENSOR_CORE, FLASH, .accumulate = ATTEST_ACC_FAITHFUL, .rescale_log2 = LAZY_LOG2},
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
    PORTABLE, .accumulate = ATTEST_ACC_FAITHFUL, .round_p = 1, .round_ds = 1, .delta = ATTEST_DELTA_CORRECTED
#define PORTABLE_MMA_SHARED \
    PORTABLE_OF(TILE_K), .accumulate = ATTEST_ACC_FAITHFUL, .round_p = 4, .round_ds = 4, .delta = ATTEST_DELTA_BY_LENGTH

/* Whole sequences on tensor cores: p and ds in two parts, delta the mean of dp by p. */
#define PORTABLE_SHORT(keys) \
    PORTABLE_OF(keys), .accumulate = ATTEST_ACC_FAITHFUL, .round_p = 2, .round_ds = 2, .delta = ATTEST_DELTA_NORMALIZED
/* The same, but in fp16, once, with powers of two of each head (bounds.md sections 11.11 and 11.12). */
#define PORTABLE_SCALED(keys) \
    PORTABLE_OF(keys), .accumulate = ATTEST_ACC_FAITHFUL, .round_p = 3, .round_ds = 3, .delta = ATTEST_DELTA_NORMALIZED
/* By the sequence, what short kernels do: two parts, or one that is scaled. */
#define PORTABLE_SHORT_SHARED(keys) \
    PORTABLE_OF(keys), .accumulate = ATTEST_ACC_FAITHFUL, .round_p = 4, .round_ds = 4, .delta = ATTEST_DELTA_NORMALIZED
#define PORTABLE_CLS PORTABLE, .accumulate = ATTEST_ACC_FP32, .delta = ATTEST_DELTA_NORMALIZED

const struct attest_recipe ref_kernel_recipes[] = {
    {.name = "forward_sm80", PORTABLE_MMA},
    {.name = "backward_sm80", PORTABLE_MMA},
    {.name = "forward_fp32", PORTABLE_FP32},
    {.name = "backward_fp32", PORTABLE_FP32},
    {.name = "merge",
     .struct_size = sizeof(struct attest_recipe),
     .accumulate = ATTEST_ACC_FP32,
     .delta = ATTEST_DELTA_EXACT,
     .exp_error = EXP_ERROR,
     .tanh_error = TANH_ACCURATE},
    {.name = "merge_backward",
     .struct_size = sizeof(struct attest_recipe),
     .accumulate = ATTEST_ACC_FP32,
     .delta = ATTEST_DELTA_EXACT,
     .exp_error = EXP_ERROR,
     .tanh_error = TANH_ACCURATE},
    {.name = "short_forward_sm80", PORTABLE_SHORT(64)},
    {.name = "short_backward_sm80", PORTABLE_SHORT(64)},
    {.name = "one_query_forward_sm80", PORTABLE_CLS},
    {.name = "one_query_backward_sm80", PORTABLE_CLS},
    {.name = "short_forward_sm90", PORTABLE_SHORT(TILE_K)}, /* rescales nothing: bounds.md section 11.9 */
    {.name = "short_forward_sm90_d256", PORTABLE_SHORT(128)},
    {.name = "short_backward_sm90_n64", PORTABLE_SHORT(64)},
    {.name = "short_backward_sm90_n128", PORTABLE_SHORT(128)},
    {.name = "short_backward_sm90_n128_d256", PORTABLE_SHORT(128)},
    {.name = "short_backward_sm90_n128_scaled", PORTABLE_SCALED(128)},
    {.name = "short_forward_sm90_scaled", PORTABLE_SCALED(TILE_K)}, /* rescales nothing, as short_forward_sm90 */
    {.name = "forward_shared", PORTABLE_MMA_SHARED}, /* forward, backward beside those of short sequences */
    {.name = "backward_shared", PORTABLE_MMA_SHARED},
    {.name = "short_forward_shared", PORTABLE_SHORT_SHARED(TILE_K)}, /* those beside short_forward_sm90_scaled */
    {.name = "short_backward_shared", PORTABLE_SHORT_SHARED(64)},    /* those beside short_backward_sm90_n128_scaled */
    {0},
};

static const struct attest_recipe *find(const struct attest_recipe *recipes, const char *name)
{
    for (const struct attest_recipe *r = recipes; r->name; ++r)
        if (strcmp(r->name, name) == 0) return r;
    return NULL;
}

const struct attest_recipe *ref_recipe(const char *name) { return find(ref_recipes, name); }

const struct attest_recipe *ref_kernel_recipe(const char *kernel) { return find(ref_kernel_recipes, kernel); }

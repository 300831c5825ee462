/* recipes.c - the recipes that come with the project; reference/bounds.md section 2 reads them. */
#include <string.h>

#include "reference/bounds.h"

/* ex2.approx.ftz.f32 is within 2^-22 relative, tanh.approx.f32 within 2^-11 relative (PTX ISA, "ex2" and "tanh");
 * CUDA's and glibc's expf and tanhf are within the former. No tensor core takes fewer than 16 keys a tile. */
#define EXP_ERROR 0x1p-22
#define TANH_ACCURATE 0x1p-22
#define TANH_APPROX 0x1p-11
#define TILE_K 16

const struct attest_recipe ref_recipes[] = {
    {.struct_size = sizeof(struct attest_recipe),
     .accumulate = ATTEST_ACC_FP32,
     .delta = ATTEST_DELTA_EXACT,
     .exp_error = EXP_ERROR,
     .tanh_error = TANH_ACCURATE,
     .name = "fp32"},
    {.struct_size = sizeof(struct attest_recipe),
     .accumulate = ATTEST_ACC_FAITHFUL,
     .round_p = 1,
     .round_ds = 1,
     .delta = ATTEST_DELTA_EXACT,
     .tile_k = TILE_K,
     .exp_error = EXP_ERROR,
     .tanh_error = TANH_APPROX,
     .name = "mixed"},
    {.struct_size = sizeof(struct attest_recipe),
     .accumulate = ATTEST_ACC_FAITHFUL,
     .round_p = 1,
     .round_p_ds = 1,
     .round_ds = 1,
     .round_dkv_heads = 1,
     .delta = ATTEST_DELTA_FROM_ROUNDED_O,
     .tile_k = TILE_K,
     .exp_error = EXP_ERROR,
     .tanh_error = TANH_APPROX,
     .name = "flash"},
    {.struct_size = sizeof(struct attest_recipe),
     .accumulate = ATTEST_ACC_AMPERE,
     .round_p = 1,
     .round_ds = 1,
     .round_dkv_heads = 1,
     .delta = ATTEST_DELTA_FROM_ROUNDED_O,
     .tile_k = TILE_K,
     .exp_error = EXP_ERROR,
     .tanh_error = TANH_APPROX,
     .name = "ampere"},
    {.struct_size = sizeof(struct attest_recipe),
     .accumulate = ATTEST_ACC_HOPPER,
     .round_p = 1,
     .round_ds = 1,
     .round_dkv_heads = 1,
     .delta = ATTEST_DELTA_FROM_ROUNDED_O,
     .tile_k = TILE_K,
     .exp_error = EXP_ERROR,
     .tanh_error = TANH_APPROX,
     .name = "hopper"},
    {0},
};

const struct attest_recipe *ref_recipe(const char *name)
{
    for (const struct attest_recipe *r = ref_recipes; r->name; ++r)
        if (strcmp(r->name, name) == 0) return r;
    return NULL;
}

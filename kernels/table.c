/* table.c - the table of kernels as kernels/README.md has it: bazel run //kernels:table */
#include <stdio.h>
#include <string.h>

#include "kernels/registry.h"

/* The words of the bits that are set, with commas between. */
static void print_bits(uint32_t bits, const char *const *words, size_t count, const char *none)
{
    const char *before = "";
    for (size_t i = 0; i < count; ++i) {
        if (!(bits >> i & 1)) continue;
        printf("%s%s", before, words[i]);
        before = ", ";
    }
    printf("%s", bits == 0 ? none : "");
}

/* Or how many features both have, where the kernel is for full problems alone. */
static void print_dims(const struct kernel_reach *r)
{
    const char *before = "both ";
    for (int dim = 1; dim <= r->full_dims; dim *= 2) {
        if (!(r->full_dims & dim)) continue;
        printf("%s%d", before, dim);
        before = " or ";
    }
    if (r->full_dims != 0) return;
    if (r->least_dim > 0 && r->most_dim > 0) printf("%d to %d", r->least_dim, r->most_dim);
    else if (r->least_dim > 0) printf("%d or more", r->least_dim);
    else if (r->most_dim > 0) printf("up to %d", r->most_dim);
    else printf("any");
}

static void print_problems(const struct kernel_reach *r)
{
    if (r->full_dims == 0) printf("any");
    else printf("full, aligned to %d bytes", KERNEL_ALIGN);
    if (r->ctas != 0) printf(", as many as have %d SM%s each", r->ctas, r->ctas == 1 ? "" : "s");
}

static void print_reach(const struct kernel_reach *r, struct lengths most, int only_major)
{
    static const char *const formats[] = {[ATTEST_FP32] = "fp32", [ATTEST_FP16] = "fp16", [ATTEST_BF16] = "bf16"};
    static const char *const features[] = {"bias",    "mask",           "block_mask",  "alibi", "sink",
                                           "softcap", "dropout",        "window",      "negative softmax_scale",
                                           "groups",  "groups of over 8", "delta",     "external_lse", "dlse", "dbias"};
    printf(" | ");
    print_bits(r->formats, formats, sizeof formats / sizeof *formats, "");
    printf(" | ");
    print_dims(r);
    if (most.q == INT32_MAX) printf(" | any | ");
    else printf(" | %d, %d | ", most.q, most.k);
    print_bits(r->lacks, features, sizeof features / sizeof *features, "nothing");
    printf(" | ");
    print_problems(r);
    printf(" | %s |\n", only_major == 9 ? "Hopper" : "sm_80 and later");
}

int main(void)
{
    printf("| kernel | formats of q | larger of head_dim, head_dim_v | rows, keys at most | does not take | problems "
           "| GPU |\n|---|---|---|---|---|---|---|\n");
    for (const struct forward_kernel *k = forward_kernels; k->name != NULL; ++k) {
        printf("| `%s`", k->name);
        print_reach(&k->reach, k->most, k->only_major);
    }
    for (const struct backward_kernel *k = backward_kernels; k->name != NULL; ++k) {
        printf("| `%s`", k->name);
        print_reach(&k->reach, k->most, k->only_major);
    }
    return 0;
}

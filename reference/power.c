/* power.c - the smallest planted faults that the judge sees.
 *
 *     bazel run //reference:power                   the table of reference/audit/README.md: an hour
 *     bazel run //reference:power -- hopper 8192    of that recipe's bounds, and of so many keys alone
 *
 * The kernel adds up as Hopper's tensor cores do. 2 heads: 512 rows of 512 keys, 64 of 8192, 16 of
 * 65536. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "reference/formats.h"
#include "reference/power_judge.h"

/* From the smallest on; a fault without a size has none. */
static const struct planted {
    enum power_fault fault;
    enum ref_tensor tensor;
    double sizes[6];
} planted[] = {
    {POWER_HONEST, REF_O, {0}},
    {POWER_HONEST, REF_DQ, {0}},
    {POWER_HONEST, REF_DK, {0}},
    {POWER_HONEST, REF_DV, {0}},
    {POWER_O_SCALED, REF_O, {1e-4, 2e-4, 5e-4, 1e-3, 2e-3}},
    {POWER_DQ_SCALED, REF_DQ, {1e-4, 2e-4, 5e-4, 1e-3, 2e-3}},
    {POWER_DK_SCALED, REF_DK, {1e-4, 2e-4, 5e-4, 1e-3, 2e-3}},
    {POWER_DV_SCALED, REF_DV, {1e-4, 2e-4, 5e-4, 1e-3, 2e-3}},
    {POWER_HEAD_SCALED, REF_O, {1e-4, 2e-4, 5e-4, 1e-3, 2e-3}},
    {POWER_O_TRUNCATED, REF_O, {0}},
    {POWER_DQ_TRUNCATED, REF_DQ, {0}},
    {POWER_DK_TRUNCATED, REF_DK, {0}},
    {POWER_DV_TRUNCATED, REF_DV, {0}},
    {POWER_P_TRUNCATED, REF_O, {0}},
    {POWER_P_TRUNCATED, REF_DV, {0}},
    {POWER_P_7_BITS, REF_O, {0}},
    {POWER_P_7_BITS, REF_DV, {0}},
    {POWER_P_TWICE, REF_O, {0}},
    {POWER_P_TWICE, REF_DV, {0}},
    {POWER_DS_TRUNCATED, REF_DQ, {0}},
    {POWER_DS_TRUNCATED, REF_DK, {0}},
    {POWER_DS_7_BITS, REF_DQ, {0}},
    {POWER_DS_7_BITS, REF_DK, {0}},
    {POWER_O_EVERY, REF_O, {128}},
    {POWER_DQ_EVERY, REF_DQ, {32}},
    {POWER_VALUES_LOST, REF_O, {1, 8, 64, 512}},
    {POWER_TILE_LOST, REF_O, {1e-3, 1e-2, 1e-1, 1}},
    {POWER_ULP_OFF, REF_O, {0.01, 0.1, 0.3}},
    {POWER_DELTA_SCALED, REF_DQ, {1e-3, 1e-2, 1e-1, 1}},
    {POWER_SCORES_SCALED, REF_O, {1e-4, 2e-4, 5e-4, 1e-3, 2e-3}},
    {POWER_SCORES_SCALED, REF_LSE, {1e-6, 1e-5, 3e-5, 1e-4, 1e-3}},
};

static void print_fault(struct power_judge *j, const struct planted *f)
{
    struct ref_report r;
    double ratio = 0.0, size = 0.0;
    int count = 1;
    while (count < 6 && f->sizes[count] > 0.0) ++count;
    for (int i = 0; i < count && !(ratio > 1); ++i)
        ratio = power_judge_fault(j, f->fault, size = f->sizes[i], f->tensor, &r);
    char text[256] = "";
    if (r.direction_ratio > 1) ref_describe_direction(&r, f->tensor, text, sizeof text);
    printf("| %-18s | %-3s | %-6s ", power_fault_names[f->fault], ref_tensor_names[f->tensor],
           ratio > 1 ? "seen" : "no");
    if (size > 0.0)
        printf("| %8g ", size);
    else
        printf("|          ");
    printf("| %8.2f | %5.2f | %5.2f | %5.2f | %8.2f | %s |\n", ratio, r.use, r.rms_ratio, r.mean_ratio,
           r.direction_ratio, text);
    fflush(stdout);
}

static void print_table(const struct attest_recipe *recipe, int32_t dtype, int64_t keys, int64_t dim)
{
    static struct power_judge j;
    const struct power_case kernel = {.dtype = dtype, .rows = keys <= 512 ? keys : keys <= 8192 ? 64 : 16, .keys = keys,
                                      .heads = 2, .dim = dim, .seed = 3, .sum = POWER_HOPPER, .rounds_weights = true};
    power_judge_init(&j, &kernel, recipe);
    printf("\n%s, %s, %ld keys, head_dim %ld, %ld rows, 2 heads, normal\n\n", recipe->name, ref_dtype_name(dtype),
           (long)keys, (long)dim, (long)kernel.rows);
    printf("| fault | of | | size | ratio | bound | rms | mean | direction | looks like |\n"
           "|---|---|---|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < sizeof planted / sizeof *planted; ++i) print_fault(&j, &planted[i]);
    power_judge_clear(&j);
}

int main(int argc, char **argv)
{
    static const int64_t lengths[] = {512, 8192, 65536}, dims[] = {64, 128};
    static const int32_t dtypes[] = {ATTEST_BF16, ATTEST_FP16};
    const struct attest_recipe *recipe = ref_recipe(argc > 1 ? argv[1] : "hopper");
    const int64_t only = argc > 2 ? atol(argv[2]) : 0;
    if (!recipe || only < 0 || (argc > 2 && only == 0)) {
        fprintf(stderr, "power: usage: power [RECIPE [KEYS]], a recipe of reference/bounds.h and a number of keys\n");
        return 2;
    }
    for (int l = 0; l < 3; ++l)
        for (int d = 0; d < 2; ++d)
            for (int t = 0; t < 2; ++t)
                if (only == 0 || lengths[l] == only) print_table(recipe, dtypes[t], lengths[l], dims[d]);
    return 0;
}

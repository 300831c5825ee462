/* mutants_merge.c - wrong merges: one plain merge in double, with a fault each. */
#include <math.h>
#include <stdlib.h>

#include "proptests/emulate_formats.h"
#include "proptests/mutants.h"

enum fault { EMPTY_NAN, BASE_2, BF16, WRONG_STRIDE };

static double exponential(enum fault fault, double x) { return fault == BASE_2 ? exp2(x) : exp(x); }
static double logarithm(enum fault fault, double x) { return fault == BASE_2 ? log2(x) : log(x); }

static void merge_row(enum fault fault, const struct attest_merge_args *a, int64_t row, double *o, float *lse)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t s = 0; s < a->num_states; ++s) max = fmax(max, (double)a->lse_states[s][row]);
    for (int64_t x = 0; x < a->head_dim_v; ++x) o[x] = 0.0;
    *lse = -INFINITY;
    if (max == -INFINITY && fault != EMPTY_NAN) return;
    for (int64_t s = 0; s < a->num_states; ++s) {
        const double weight = exponential(fault, (double)a->lse_states[s][row] - max);
        const int64_t from = fault == WRONG_STRIDE && s > 0 ? (row + 1) % a->rows : row;
        sum += weight;
        for (int64_t x = 0; x < a->head_dim_v && weight != 0.0; ++x) {
            const float part = a->o_states[s][from * a->head_dim_v + x];
            o[x] += weight * (double)(fault == BF16 ? emulate_round(ATTEST_BF16, part) : part);
        }
    }
    for (int64_t x = 0; x < a->head_dim_v; ++x) o[x] /= sum;
    *lse = (float)(max + logarithm(fault, sum));
}

static enum attest_status merge(enum fault fault, const struct attest_merge_args *a)
{
    const int64_t dim = a->head_dim_v;
    double *const merged = malloc((size_t)(a->rows * dim + 1) * sizeof *merged);
    float *const merged_lse = malloc((size_t)(a->rows + 1) * sizeof *merged_lse);
    if (!merged || !merged_lse) abort();
    for (int64_t r = 0; r < a->rows; ++r) merge_row(fault, a, r, merged + r * dim, merged_lse + r);
    for (int64_t i = 0; i < a->rows * dim; ++i) a->o[i] = (float)merged[i]; /* o may be one of the states */
    for (int64_t r = 0; r < a->rows; ++r) a->lse[r] = merged_lse[r];
    free(merged);
    free(merged_lse);
    return ATTEST_OK;
}

enum attest_status merge_empty_nan(const struct implementation *self, const struct attest_merge_args *a)
{
    (void)self;
    return merge(EMPTY_NAN, a);
}

enum attest_status merge_base_2(const struct implementation *self, const struct attest_merge_args *a)
{
    (void)self;
    return merge(BASE_2, a);
}

enum attest_status merge_bf16(const struct implementation *self, const struct attest_merge_args *a)
{
    (void)self;
    return merge(BF16, a);
}

enum attest_status merge_wrong_stride(const struct implementation *self, const struct attest_merge_args *a)
{
    (void)self;
    return merge(WRONG_STRIDE, a);
}

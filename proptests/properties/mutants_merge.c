/* mutants_merge.c - wrong merges: one plain merge in double, with a fault each. */
#include <math.h>
#include <stdlib.h>

#include "proptests/emulations/emulate_formats.h"
#include "proptests/properties/mutants.h"

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
    for (int64_t i = 0; i < a->rows * dim; ++i) /* o may be one of the states */
        emulate_store(a->o_dtype, a->o, i, (float)merged[i]);
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

enum attest_status merge_o_detached(const struct implementation *self, const struct attest_merge_backward_args *a)
{
    const enum attest_status status = attest_merge_states_backward(a, NULL);
    (void)self;
    for (int64_t s = 0; s < a->num_states; ++s)
        for (int64_t row = 0; row < a->rows; ++row) {
            const double weight = exp((double)a->lse_states[s][row] - (double)a->lse[row]);
            const bool empty = a->lse_states[s][row] == -INFINITY;
            a->dlse_states[s][row] = empty || a->dlse == NULL ? 0 : (float)(weight * (double)a->dlse[row]);
        }
    return status;
}

/* mutants_merge.c - wrong merges: one plain merge in double, with a fault each. */
#include <math.h>
#include <stdlib.h>

#include "proptests/emulate_formats.h"
#include "proptests/mutants.h"

enum fault { EMPTY_NAN, BASE_2, BF16, WRONG_STRIDE };

static double exponential(enum fault fault, double x) { return fault == BASE_2 ? exp2(x) : exp(x); }
static double logarithm(enum fault fault, double x) { return fault == BASE_2 ? log2(x) : log(x); }

static void merge_row(enum fault fault, int64_t num_states, int64_t row, int64_t num_rows, int64_t head_dim_v,
                      const float *const *o_states, const float *const *lse_states, double *o, float *lse)
{
    double max = -INFINITY, sum = 0.0;
    for (int64_t a = 0; a < num_states; ++a) max = fmax(max, (double)lse_states[a][row]);
    for (int64_t x = 0; x < head_dim_v; ++x) o[x] = 0.0;
    *lse = -INFINITY;
    if (max == -INFINITY && fault != EMPTY_NAN) return;
    for (int64_t a = 0; a < num_states; ++a) {
        const double weight = exponential(fault, (double)lse_states[a][row] - max);
        const int64_t from = fault == WRONG_STRIDE && a > 0 ? (row + 1) % num_rows : row;
        sum += weight;
        for (int64_t x = 0; x < head_dim_v && weight != 0.0; ++x) {
            const float part = o_states[a][from * head_dim_v + x];
            o[x] += weight * (double)(fault == BF16 ? emulate_round(ATTEST_BF16, part) : part);
        }
    }
    for (int64_t x = 0; x < head_dim_v; ++x) o[x] /= sum;
    *lse = (float)(max + logarithm(fault, sum));
}

static enum attest_status merge(enum fault fault, int64_t num_states, int64_t rows, int64_t head_dim_v,
                                const float *const *o_states, const float *const *lse_states, float *o, float *lse)
{
    double *const merged = malloc((size_t)(rows * head_dim_v + 1) * sizeof *merged);
    float *const merged_lse = malloc((size_t)(rows + 1) * sizeof *merged_lse);
    if (!merged || !merged_lse) abort();
    for (int64_t r = 0; r < rows; ++r)
        merge_row(fault, num_states, r, rows, head_dim_v, o_states, lse_states, merged + r * head_dim_v,
                  merged_lse + r);
    for (int64_t i = 0; i < rows * head_dim_v; ++i) o[i] = (float)merged[i]; /* o may be one of the states */
    for (int64_t r = 0; r < rows; ++r) lse[r] = merged_lse[r];
    free(merged);
    free(merged_lse);
    return ATTEST_OK;
}

enum attest_status merge_empty_nan(int64_t num_states, int64_t rows, int64_t head_dim_v, const float *const *o_states,
                                   const float *const *lse_states, float *o, float *lse)
{
    return merge(EMPTY_NAN, num_states, rows, head_dim_v, o_states, lse_states, o, lse);
}

enum attest_status merge_base_2(int64_t num_states, int64_t rows, int64_t head_dim_v, const float *const *o_states,
                                const float *const *lse_states, float *o, float *lse)
{
    return merge(BASE_2, num_states, rows, head_dim_v, o_states, lse_states, o, lse);
}

enum attest_status merge_bf16(int64_t num_states, int64_t rows, int64_t head_dim_v, const float *const *o_states,
                              const float *const *lse_states, float *o, float *lse)
{
    return merge(BF16, num_states, rows, head_dim_v, o_states, lse_states, o, lse);
}

enum attest_status merge_wrong_stride(int64_t num_states, int64_t rows, int64_t head_dim_v,
                                      const float *const *o_states, const float *const *lse_states, float *o,
                                      float *lse)
{
    return merge(WRONG_STRIDE, num_states, rows, head_dim_v, o_states, lse_states, o, lse);
}

/* bounds_merge.c - how far a merge in fp32 may be from the exact one: reference/bounds.md section 11.2. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/machine.h"

/* One row of states; what may be wrong about its weights. */
struct merged_row {
    int64_t count, parts;          /* states; those that are not empty */
    double max, sum, sum_error;    /* of lse; of the weights exp(lse - max), and what it may be off by */
    double oracle;                 /* relative error of the oracle's own weights */
    double *weight, *weight_error; /* [count] */
};

static const double u = 0x1p-24, tiny = FLT_MIN;

/* Largest share by which n roundings enlarge a number. */
static double roundings(double n) { return expm1(n * u); }

/* A weight exp(-distance) whose exponent is off by theta, and which may be flushed; 2^0 is exact. */
static void bound_weight(double distance, double exp_error, double *weight, double *error)
{
    const double theta = 3 * u * (1 + 2 * u) * distance + 2 * tiny - log1p(-exp_error);
    *weight = exp(-distance);
    *error = distance == 0 ? 0 : exp(theta - distance) - *weight + tiny;
}

static void bound_weights(const double *const *lse_states, int64_t row, double exp_error, struct merged_row *r)
{
    r->max = -INFINITY, r->sum = r->sum_error = 0, r->parts = 0;
    for (int64_t a = 0; a < r->count; ++a) {
        const double lse = lse_states[a][row];
        r->parts += lse != -INFINITY;
        if (lse > r->max || isnan(lse)) r->max = lse;
    }
    for (int64_t a = 0; a < r->count; ++a) {
        r->weight[a] = r->weight_error[a] = 0;
        if (lse_states[a][row] == -INFINITY) continue;
        bound_weight(r->max - lse_states[a][row], exp_error, &r->weight[a], &r->weight_error[a]);
        r->sum += r->weight[a];
        r->sum_error += r->weight_error[a];
    }
    const double rounded = roundings((double)r->parts - 1);
    r->sum_error += rounded * (r->sum + r->sum_error) + (double)r->parts * tiny;
    r->oracle = ((double)r->count + 760 + fabs(r->max) + log(r->sum)) * 0x1p-52;
}

static double bound_lse(const struct merged_row *r)
{
    const double of_sum = -log1p(-r->sum_error / r->sum), log_sum = log(r->sum) + of_sum;
    const double error = of_sum + (1 + 2 * u) * (0x1p-22 * (1 + log_sum) + u * log_sum);
    return error + ref_half_ulp(ATTEST_FP32, fabs(r->max + log(r->sum)) + error) + tiny + r->oracle;
}

static double bound_feature(const struct merged_row *r, const double *const *o_states, int64_t x)
{
    const double rounded = roundings((double)r->parts);
    double sum = 0, size = 0, error = 2 * (double)r->parts * tiny;
    for (int64_t a = 0; a < r->count; ++a) {
        if (r->weight[a] == 0 && r->weight_error[a] == 0) continue; /* empty: not read */
        const double o = o_states[a][x], largest = r->weight[a] + r->weight_error[a];
        sum += r->weight[a] * o;
        size += largest * fabs(o) * (1 + rounded);
        error += (r->weight_error[a] + largest * rounded) * fabs(o);
    }
    const double o = fabs(sum / r->sum);
    const double quotient = (error + o * r->sum_error) / (r->sum - r->sum_error);
    const double bound = quotient + ref_half_ulp(ATTEST_FP32, o + quotient) + tiny + r->oracle * size / r->sum;
    return size + error < FLT_MAX ? bound : INFINITY; /* NaN included */
}

enum attest_status ref_bound_merge(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
                                   const double *const *lse_states, const struct attest_recipe *recipe, double *o,
                                   double *lse)
{
    struct merged_row r = {.count = num_states};
    r.weight = malloc((size_t)(2 * num_states + 1) * sizeof *r.weight);
    if (!r.weight) return ATTEST_OUT_OF_MEMORY;
    r.weight_error = r.weight + num_states;
    for (int64_t row = 0; row < rows; ++row) {
        bound_weights(lse_states, row, recipe->exp_error, &r);
        const bool exact = r.parts <= 1, known = isfinite(r.max);
        lse[row] = exact ? 0 : known ? bound_lse(&r) : INFINITY;
        for (int64_t x = row * head_dim_v; x < (row + 1) * head_dim_v; ++x)
            o[x] = exact ? 0 : known ? bound_feature(&r, o_states, x) : INFINITY;
    }
    free(r.weight);
    return ATTEST_OK;
}

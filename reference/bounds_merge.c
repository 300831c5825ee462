/* bounds_merge.c - how far a merge in fp32 and its backward may be from the exact ones: reference/bounds.md sections
 * 11.2 and 11.6. */
#include <float.h>
#include <math.h>
#include <stdlib.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/machine.h"

/* One row of states; what may be wrong about its weights. */
struct merged_row {
    int64_t count, parts, part;    /* states; those that are not empty, and the last of them */
    double max, sum, sum_error;    /* of lse; of the weights exp(lse - max), and what it may be off by */
    double oracle;                 /* relative error of the oracle's own weights */
    double *weight, *weight_error; /* [count] */
};

static const double u = 0x1p-24, tiny = FLT_MIN;

/* Largest share by which n roundings enlarge a number. */
static double roundings(double n) { return expm1(n * u); }

/* A weight exp(difference) whose exponent is off by theta, and which may be flushed; 2^0 is exact. */
static void bound_weight(double difference, double exp_error, double *weight, double *error)
{
    const double theta = 3 * u * (1 + 2 * u) * fabs(difference) + 2 * tiny - log1p(-exp_error);
    *weight = exp(difference);
    *error = difference == 0 ? 0 : exp(difference + theta) - *weight + tiny;
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
        r->part = a;
        bound_weight(lse_states[a][row] - r->max, exp_error, &r->weight[a], &r->weight_error[a]);
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

/* Of a number near `value` that is off by `error` and then rounded from fp32. */
static double bound_stored(int32_t dtype, double value, double error)
{
    return dtype == ATTEST_FP32 ? error : error + ref_half_ulp(dtype, fabs(value) + error);
}

/* Of o in fp32. */
static double bound_feature(const struct merged_row *r, const double *const *o_states, int64_t x, double *merged)
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
    *merged = o;
    const double quotient = (error + o * r->sum_error) / (r->sum - r->sum_error);
    const double bound = quotient + ref_half_ulp(ATTEST_FP32, o + quotient) + tiny + r->oracle * size / r->sum;
    return size + error < FLT_MAX ? bound : INFINITY; /* NaN included */
}

/* One row. A state alone is copied. */
static void bound_row(const struct merged_row *r, const double *const *o_states, int64_t row, int64_t head_dim_v,
                      int32_t o_dtype, double *o, double *lse)
{
    const bool known = isfinite(r->max);
    lse[row] = r->parts <= 1 ? 0 : known ? bound_lse(r) : INFINITY;
    for (int64_t x = row * head_dim_v; x < (row + 1) * head_dim_v; ++x) {
        double merged = r->parts == 1 ? fabs(o_states[r->part][x]) : 0;
        const double error = r->parts <= 1 ? 0 : known ? bound_feature(r, o_states, x, &merged) : INFINITY;
        o[x] = bound_stored(o_dtype, merged, error);
    }
}

enum attest_status ref_bound_merge(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
                                   const double *const *lse_states, const struct attest_recipe *recipe, int32_t o_dtype,
                                   double *o, double *lse)
{
    struct merged_row r = {.count = num_states};
    r.weight = malloc((size_t)(2 * num_states + 1) * sizeof *r.weight);
    if (!r.weight) return ATTEST_OUT_OF_MEMORY;
    r.weight_error = r.weight + num_states;
    for (int64_t row = 0; row < rows; ++row) {
        bound_weights(lse_states, row, recipe->exp_error, &r);
        bound_row(&r, o_states, row, head_dim_v, o_dtype, o, lse);
    }
    free(r.weight);
    return ATTEST_OK;
}

/* ---- backward ---- */

/* One row of one state. */
struct state_row {
    const double *o_state, *o, *dout; /* [head_dim_v] */
    double lse_state, lse, dlse;
    double weight, weight_error, oracle; /* oracle: relative error of its own weight */
};

static double bound_do(const struct state_row *r, double dout)
{
    const double value = r->weight * fabs(dout), error = r->weight_error * fabs(dout);
    const double bound = error + ref_half_ulp(ATTEST_FP32, value + error) + r->oracle * value;
    return value + error < FLT_MAX ? bound : INFINITY; /* NaN included */
}

static double bound_dlse(const struct state_row *r, int64_t head_dim_v)
{
    double sum = r->dlse, size = 0, furthest = 0;
    for (int64_t x = 0; x < head_dim_v; ++x) {
        const double difference = r->o_state[x] - r->o[x];
        sum += r->dout[x] * difference;
        size += fabs(r->dout[x] * difference);
        if (!(fabs(difference) <= furthest)) furthest = fabs(difference); /* NaN stays */
    }
    const double rounded = roundings((double)head_dim_v + 1), of_dot = rounded * size + (double)head_dim_v * tiny;
    const double of_sum = of_dot + ref_half_ulp(ATTEST_FP32, fabs(sum) + of_dot), largest = r->weight + r->weight_error;
    const double error = r->weight_error * fabs(sum) + largest * of_sum;
    const double terms = size + fabs(r->dlse), oracle = r->oracle + (double)(head_dim_v + 2) * 0x1p-52;
    const double rounding = ref_half_ulp(ATTEST_FP32, r->weight * fabs(sum) + error);
    const double bound = error + rounding + oracle * r->weight * terms;
    const bool known = furthest < FLT_MAX && terms * (1 + rounded) < FLT_MAX && largest * (terms + of_sum) < FLT_MAX;
    return known ? bound : INFINITY;
}

void ref_bound_merge_backward(int64_t num_states, int64_t rows, int64_t head_dim_v, const double *const *o_states,
                              const double *const *lse_states, const double *o, const double *lse, const double *dout,
                              const double *dlse, const struct attest_recipe *recipe, double *const *do_states,
                              double *const *dlse_states)
{
    for (int64_t a = 0; a < num_states; ++a) {
        for (int64_t row = 0; row < rows; ++row) {
            const int64_t at = row * head_dim_v;
            struct state_row r = {o_states[a] + at, o + at, dout + at, lse_states[a][row], lse[row], 0, 0, 0, 0};
            const bool empty = r.lse_state == -INFINITY, known = isfinite(r.lse_state) && isfinite(r.lse);
            const double difference = r.lse_state - r.lse;
            if (dlse != NULL) r.dlse = dlse[row];
            if (known) bound_weight(difference, recipe->exp_error, &r.weight, &r.weight_error);
            const bool fits = known && r.weight + r.weight_error < FLT_MAX;
            r.oracle = (fabs(difference) + 8) * 0x1p-52;
            for (int64_t x = 0; x < head_dim_v; ++x)
                do_states[a][at + x] = empty ? 0 : fits ? bound_do(&r, r.dout[x]) : INFINITY;
            dlse_states[a][row] = empty ? 0 : fits ? bound_dlse(&r, head_dim_v) : INFINITY;
        }
    }
}

/* properties_slope.c - gradients against differences of the oracle's forward pass.
 *
 * f = sum dout . o + sum dlse lse. The slope of f along a direction of signs is taken from central
 * differences at h and h / 2. Their error is C h^2 + O(h^4), so what the two differ by, 3/4 C h^2, is three
 * times what the second is off by: it is the allowance, beside the bounds of gradients and of f. */
#include <math.h>

#include "proptests/properties/outcome.h"
#include "proptests/properties/properties_list.h"

/* An input and the gradient of f by it. */
struct direction {
    enum tensor_id input;
    enum ref_tensor gradient;
};

static double sign_of(const struct prop_case *c, enum tensor_id t, int64_t i)
{
    return family_bits(c->data.seed, 60 + (uint64_t)t, 0, i, 0, 0) & 1 ? 1 : -1;
}

/* f and what the oracle's own error may add to it. */
static int value_of(struct prop_case *c, double *f, double *error, struct prop_context *context)
{
    struct outcome o;
    c->backward = false;
    const int failure = outcome_run(&o, c, &oracle_implementation, WITH_BOUNDS, context);
    c->backward = true;
    if (failure != TRIAL_PASSES) return failure;
    bool *felt = case_alloc(c, (size_t)case_count(c, T_LSE)), *keys = case_alloc(c, (size_t)case_count(c, T_K));
    case_find_felt(c, felt, keys);
    *f = *error = 0;
    const int64_t dim = c->p.head_dim_v, rows = case_count(c, T_LSE);
    double absolute = 0;
    for (int64_t row = 0; row < rows; ++row) {
        if (!felt[row]) continue;
        for (int64_t i = row * dim; i < (row + 1) * dim; ++i) {
            const double term = c->values[T_DOUT][i] * o.value[REF_O][i];
            *f += term, absolute += fabs(term);
            *error += fabs(c->values[T_DOUT][i]) * o.bound[REF_O][i];
        }
        if (c->values[T_DLSE] == NULL) continue;
        const double term = c->values[T_DLSE][row] * o.value[REF_LSE][row];
        *f += term, absolute += fabs(term);
        *error += fabs(c->values[T_DLSE][row]) * o.bound[REF_LSE][row];
    }
    *error += (double)(rows * (dim + 1)) * 0x1p-52 * absolute; /* of these sums */
    return TRIAL_PASSES;
}

/* (f(x + h) - f(x - h)) / 2h. fp32 holds x +- h exactly: 16-bit values and a power of two near them. */
static int difference(const struct prop_case *c, enum tensor_id t, double h, double *slope, double *error,
                      struct prop_context *context)
{
    double f[2], errors[2];
    for (int side = 0; side < 2; ++side) {
        struct prop_case moved;
        case_copy(&moved, c);
        const int64_t count = case_count(c, t);
        for (int64_t i = 0; i < count; ++i) {
            moved.values[t][i] += (side ? -h : h) * sign_of(c, t, i);
            if (isfinite(moved.values[t][i]) && moved.values[t][i] != (double)(float)moved.values[t][i]) {
                case_free(&moved);
                return TRIAL_DISCARDED;
            }
        }
        case_lay_out(&moved);
        const int failure = value_of(&moved, &f[side], &errors[side], context);
        case_free(&moved);
        if (failure != TRIAL_PASSES) return failure;
    }
    *slope = (f[0] - f[1]) / (2 * h);
    *error = (errors[0] + errors[1]) / (2 * h);
    return TRIAL_PASSES;
}

static int slope_agrees(const struct outcome *got, const struct direction *d, struct prop_context *context)
{
    static const double h = 0x1p-8;
    const struct prop_case *c = got->c;
    const int64_t count = c->values[d->input] != NULL ? case_count(c, d->input) : 0;
    double along = 0, absolute = 0, allowed = 0, coarse, fine, coarse_error, fine_error;
    if (count == 0 || got->value[d->gradient] == NULL) return TRIAL_PASSES;
    for (int64_t i = 0; i < count; ++i) {
        if (d->input == T_BIAS && c->values[T_BIAS][i] == -INFINITY) continue;
        along += sign_of(c, d->input, i) * got->value[d->gradient][i];
        absolute += fabs(got->value[d->gradient][i]);
        allowed += got->bound[d->gradient][i];
    }
    int failure = difference(c, d->input, h, &coarse, &coarse_error, context);
    if (failure == TRIAL_PASSES) failure = difference(c, d->input, h / 2, &fine, &fine_error, context);
    if (failure != TRIAL_PASSES) return failure == TRIAL_DISCARDED ? TRIAL_PASSES : failure;
    allowed += fabs(coarse - fine) + coarse_error + fine_error + (double)count * 0x1p-52 * absolute;
    if (numbers_agree(NULL, along, fine, allowed)) return TRIAL_PASSES;
    return fails(context, FAILS_O + (int)d->gradient,
                 "%s along signs is %.9g, the slope of f is %.9g, give or take %.3g", ref_tensor_names[d->gradient],
                 along, fine, allowed);
}

int check_finite_differences(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    static const struct direction directions[] = {
        {T_Q, REF_DQ}, {T_K, REF_DK}, {T_V, REF_DV}, {T_BIAS, REF_DBIAS}};
    struct prop_case fine; /* the same numbers where steps can be taken */
    struct outcome got;
    case_copy(&fine, c);
    fine.p.q.dtype = fine.p.k.dtype = fine.p.v.dtype = ATTEST_FP32;
    if (fine.p.bias.dtype) fine.p.bias.dtype = ATTEST_FP32, fine.p.dbias.dtype = fine.p.dbias.dtype ? ATTEST_FP32 : 0;
    case_contiguous(&fine);
    if (fine.p.dbias.dtype) fine.p.dbias = fine.p.bias; /* an element of one for each of the other */
    case_lay_out(&fine);
    int failure = outcome_run(&got, &fine, self, WITH_BOUNDS, context);
    for (int i = 0; i < 4 && failure == TRIAL_PASSES; ++i) failure = slope_agrees(&got, &directions[i], context);
    case_free(&fine);
    return failure;
}

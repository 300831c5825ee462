/* properties_value.c - results beside the oracle, and beside what the contract says outright. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "proptests/properties/outcome.h"
#include "proptests/properties/properties_list.h"
#include "proptests/cases/transform.h"

static const void *result_of(const struct prop_case *c, enum ref_tensor t)
{
    const void *const results[] = {c->a.forward.o, c->a.forward.lse, c->a.dq, c->a.dk, c->a.dv, c->a.dbias, c->a.dsink};
    return results[t];
}

/* The statistical thresholds suppose roundings that are independent from row to row: scores that do not repeat. */
static bool has_independent_roundings(const struct prop_case *c)
{
    static const uint64_t families = 1 << FAMILY_NORMAL | 1 << FAMILY_OUTLIER | 1 << FAMILY_MEAN;
    static const uint64_t repeating = FEATURE(FP8) | FEATURE(SCALE) | FEATURE(BROADCAST);
    return (families >> c->data.family & 1) && !(c->features & repeating) && c->p.head_dim >= 16;
}

/* Bounds of the statistical verdict beside the rigorous ones. */
static int add_statistics(struct outcome *got, struct ref_bound bounds[REF_NUM_TENSORS], struct prop_context *context)
{
    struct prop_case *c = got->c;
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        int64_t e[4];
        if (got->value[t] == NULL) continue;
        outcome_extents(c, (enum ref_tensor)t, e);
        bounds[t].sigma = case_doubles(c, e[0] * e[1] * e[2] * e[3]);
        bounds[t].bias = case_doubles(c, e[0] * e[1] * e[2] * e[3]);
        if (t == REF_O) bounds[t].phases = case_doubles(c, REF_WAYS * e[0] * e[1] * e[2]);
        for (int n = 0; n < REF_WAYS && c->p.dropout_p > 0 && (t == REF_DQ || t == REF_DK); ++n)
            bounds[t].alike[n] = case_doubles(c, e[0] * e[1] * e[2] * e[3]);
    }
    const struct attest_forward_args *f = &c->a.forward;
    const struct ref_shares forward = computed_shares(&got->forward), backward = computed_shares(&got->backward);
    if (got->value[REF_O] && ref_bound_forward_shares(&c->p, f, &forward, &bounds[REF_O], &bounds[REF_LSE], 1))
        return fails(context, FAILS_ORACLE, "no bound of forward");
    if (c->backward && ref_bound_backward_shares(&c->p, &c->a, &backward, bounds, 1))
        return fails(context, FAILS_ORACLE, "no bound of backward");
    return TRIAL_PASSES;
}

static bool no_nan(const struct prop_case *c, enum ref_tensor t, const double *values)
{
    int64_t e[4];
    outcome_extents(c, t, e);
    for (int64_t i = 0; i < e[0] * e[1] * e[2] * e[3]; ++i) {
        const bool of_rows = t != REF_DBIAS && t != REF_DSINK;
        if (of_rows && !case_row_exists(c, t == REF_DK || t == REF_DV, i / (e[1] * e[2]))) continue;
        if (isnan(values[i])) return false;
    }
    return true;
}

/* Whether a delta of other keys is beyond fp32: what is made of an infinity and a softmax_scale of 0 is NaN. */
static bool has_infinite_delta(const struct prop_case *c)
{
    if (!c->p.external_lse) return false;
    const int64_t rows = case_count(c, T_DELTA);
    for (int64_t i = 0; i < rows; ++i)
        if (isinf(c->values[T_DELTA][i])) return true;
    return false;
}

static int judge(const struct outcome *got, const struct outcome *want, enum ref_tensor t,
                 const struct ref_bound *bound, struct prop_context *context)
{
    struct prop_case *c = got->c;
    struct ref_report r;
    if (!no_nan(c, t, want->value[t])) {
        if (has_infinite_delta(c)) return TRIAL_DISCARDED;
        return fails(context, FAILS_ORACLE, "the oracle has a NaN in %s", ref_tensor_names[t]);
    }
    ref_judge(&c->p, &c->a.forward, t, result_of(c, t), want->value[t], bound, bound->sigma != NULL, &r);
    context->tensors += 1;
    context->overflows += r.overflow_count > 0;
    const bool is_trivial = r.rms_oracle == 0 && r.overflow_count == 0; /* no element, or all of them zero */
    context->judged[t] += !is_trivial;
    context->proven[t] += !is_trivial && r.verdict == REF_PASS;
    if (!(r.use <= context->use[t])) context->use[t] = r.use;
    if (r.verdict != REF_FAIL) return TRIAL_PASSES;
    const int64_t *at = r.use_index;
    if (r.use <= 1)
        return fails(context, FAILS_O + (int)t, "%s: root mean square error, mean error and error along a shape are %.3g, %.3g and %.3g "
                     "times what independent roundings make possible", ref_tensor_names[t], r.rms_ratio, r.mean_ratio,
                     r.direction_ratio);
    return fails(context, FAILS_O + (int)t, "%s[%" PRId64 ", %" PRId64 ", %" PRId64 ", %" PRId64 "] is %.9g, "
                 "the oracle says %.9g, the bound is %.3g", ref_tensor_names[t], at[0], at[1], at[2], at[3], r.use_got,
                 r.use_want, r.use_bound);
}

int check_within_bounds(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct outcome got, want;
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    int failure = outcome_run(&got, c, self, WITH_BOUNDS, context);
    for (int t = 0; t < REF_NUM_TENSORS; ++t) bounds[t].bound = got.bound[t];
    if (failure == TRIAL_PASSES && has_independent_roundings(c)) failure = add_statistics(&got, bounds, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&want, c, &oracle_implementation, BITS_ONLY, context);
    for (int t = 0; t < REF_NUM_TENSORS && failure == TRIAL_PASSES; ++t)
        if (got.value[t] != NULL) failure = judge(&got, &want, (enum ref_tensor)t, &bounds[t], context);
    return failure;
}

/* Rows of a tensor of which `seen` is false hold exactly `value`, or the sink of their head for lse. */
static int unseen_rows_hold(const struct outcome *got, enum ref_tensor t, const bool *seen, const bool *used,
                            double value, struct prop_context *context)
{
    struct prop_case *c = got->c;
    int64_t e[4];
    if (got->value[t] == NULL) return TRIAL_PASSES;
    outcome_extents(c, t, e);
    for (int64_t i = 0; i < e[0] * e[1]; ++i) {
        if (seen[i] || !case_row_exists(c, t == REF_DK || t == REF_DV, i / e[1])) continue;
        const double want = t == REF_LSE && c->sink != NULL && used[i] ? c->sink[i % e[1]] : value;
        for (int64_t x = 0; x < e[2]; ++x)
            if (got->value[t][i * e[2] + x] != want)
                return fails_at(context, t, i * e[2] + x, got->value[t][i * e[2] + x], want, 0);
    }
    return TRIAL_PASSES;
}

int check_empty_rows(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct outcome got;
    const size_t queries = (size_t)case_count(c, T_LSE), keys = (size_t)(ref_rows_k(&c->p) * c->p.num_heads_kv);
    bool *query_sees = case_alloc(c, queries), *used = case_alloc(c, queries), *key_seen = case_alloc(c, keys);
    case_find_felt(c, query_sees, key_seen);
    memset(used, 0, queries);
    case_find_used(c, used);
    int failure = outcome_run(&got, c, self, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = unseen_rows_hold(&got, REF_O, query_sees, used, 0, context);
    if (failure == TRIAL_PASSES) failure = unseen_rows_hold(&got, REF_LSE, query_sees, used, -INFINITY, context);
    if (failure == TRIAL_PASSES) failure = unseen_rows_hold(&got, REF_DQ, query_sees, used, 0, context);
    if (failure == TRIAL_PASSES) failure = unseen_rows_hold(&got, REF_DK, key_seen, used, 0, context);
    return failure == TRIAL_PASSES ? unseen_rows_hold(&got, REF_DV, key_seen, used, 0, context) : failure;
}

static void scale_doubles(double *values, int64_t count, double factor)
{
    for (int64_t i = 0; i < count; ++i) values[i] *= factor;
}

/* Swaps what is seen and what is not. */
static void invert_mask(struct prop_case *c, enum tensor_id t)
{
    const int64_t count = case_count(c, t);
    for (int64_t i = 0; i < count; ++i) c->values[t][i] = c->values[t][i] == 0;
}

static void change_bias(struct prop_case *c)
{
    const int64_t count = case_count(c, T_BIAS);
    for (int64_t i = 0; i < count; ++i) c->values[T_BIAS][i] = i % 2 ? 1 : -1;
}

enum { NUM_PARAMETERS = 14 };

/* Changes parameter `which`; false where the case does not have it. */
static bool change_parameter(struct prop_case *c, int which)
{
    struct attest_problem *p = &c->p;
    switch (which) {
    case 0: return p->softmax_scale = p->softmax_scale != 0 ? p->softmax_scale * -1.5f : 0.5f, true;
    case 1: return p->softcap > 0 && (p->softcap *= 0.5f, true);
    case 2: return p->window_left >= 0 && (p->window_left += 1, true);
    case 3: return p->window_right >= 0 && (p->window_right += 1, true);
    case 4: return p->has_alibi && (scale_doubles(c->slopes, p->num_heads_q, 2), true);
    case 5: return p->has_sink && (scale_doubles(c->sink, p->num_heads_q, -1), true);
    case 6: return p->mask.dtype && (invert_mask(c, T_MASK), true);
    case 7: return p->block_mask.dtype && (invert_mask(c, T_BLOCK_MASK), true);
    case 8: return p->bias.dtype && (change_bias(c), true);
    case 9: return p->diag_kind == ATTEST_DIAG_GIVEN && (p->diag += 1, true);
    case 10: return p->alibi_diag_kind == ATTEST_DIAG_GIVEN && (p->alibi_diag += 3, true);
    case 11: return c->used_k && p->batch > 0 && c->used_k[0] > 0 && (c->used_k[0] -= 1, true);
    case 12: return p->dlse.dtype && (transform_scale(c, T_DLSE, -2), true);
    case 13: return p->q_start += 1, true;
    default: return false;
    }
}

/* Where the oracle moves by more than the bounds of both, the implementation must have moved. */
static int moved_alike(const struct outcome want[2], const struct outcome got[2], struct prop_context *context)
{
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        int64_t e[4];
        if (got[0].value[t] == NULL) continue;
        outcome_extents(got[0].c, (enum ref_tensor)t, e);
        for (int64_t i = 0; i < e[0] * e[1] * e[2] * e[3]; ++i) {
            const double before = got[0].value[t][i], after = got[1].value[t][i];
            const double move = want[1].value[t][i] - want[0].value[t][i];
            const double allowed = got[0].bound[t][i] + got[1].bound[t][i];
            if (before == after && isfinite(before) && fabs(move) > allowed)
                return fails_at(context, (enum ref_tensor)t, i, after, before + move, allowed);
        }
    }
    return TRIAL_PASSES;
}

int check_parameters_matter(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct outcome want[2], got[2];
    struct prop_case changed;
    int which = (int)(c->data.seed % NUM_PARAMETERS);
    case_copy(&changed, c);
    while (!change_parameter(&changed, which)) which = (which + 1) % NUM_PARAMETERS;
    case_lay_out(&changed);
    int failure = outcome_run(&got[0], c, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&got[1], &changed, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&want[0], c, &oracle_implementation, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&want[1], &changed, &oracle_implementation, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = moved_alike(want, got, context);
    case_free(&changed);
    return failure;
}

/* ---- NaN ---- */

/* One element of q, k or v. */
static void put_nan(struct prop_case *c)
{
    const enum tensor_id t = (enum tensor_id)(T_Q + c->data.seed % 3);
    const int64_t count = case_count(c, t);
    if (count > 0) c->values[t][check_mix(c->data.seed) % (uint64_t)count] = NAN;
}

/* NaN where the oracle of the spoilt case has one; all else may differ by as much as two results of the case. */
static int nan_where(const struct outcome *before, const struct outcome *after, const struct outcome *want,
                     enum ref_tensor t, struct prop_context *context)
{
    int64_t e[4];
    if (after->value[t] == NULL) return TRIAL_PASSES;
    outcome_extents(after->c, t, e);
    for (int64_t i = 0; i < e[0] * e[1] * e[2]; ++i) {
        if (!case_row_exists(after->c, false, i / (e[1] * e[2]))) continue;
        const bool sees = isnan(want->value[t][i]);
        const double x = after->value[t][i], y = sees ? NAN : before->value[t][i], allowed = 2 * before->bound[t][i];
        if (sees ? !isnan(x) : !numbers_agree(outcome_format(after, t), x, y, allowed))
            return fails_at(context, t, i, x, y, allowed);
    }
    return TRIAL_PASSES;
}

int check_nan_is_felt(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct prop_case spoilt;
    struct outcome before, after, want;
    case_copy(&spoilt, c);
    put_nan(&spoilt);
    case_lay_out(&spoilt);
    int failure = outcome_run(&before, c, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&after, &spoilt, self, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&want, &spoilt, &oracle_implementation, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = nan_where(&before, &after, &want, REF_O, context);
    if (failure == TRIAL_PASSES) failure = nan_where(&before, &after, &want, REF_LSE, context);
    case_free(&spoilt);
    return failure;
}

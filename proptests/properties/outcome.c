/* outcome.c - runs, and comparisons of their results. */
#include "proptests/properties/outcome.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>

static const enum tensor_id ids[] = {T_O, T_LSE, T_DQ, T_DK, T_DV, T_DBIAS};

int fails(struct prop_context *context, int failure, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(context->message, sizeof context->message, format, arguments);
    va_end(arguments);
    return failure;
}

int fails_at(struct prop_context *context, enum ref_tensor t, int64_t index, double a, double b, double allowed)
{
    return fails(context, FAILS_O + (int)t, "%s[%" PRId64 "] is %.17g and must be %.17g, give or take %.3g",
                 ref_tensor_names[t], index, a, b, allowed);
}

/* A state that is given makes forward's results inputs. */
static bool has_forward(const struct prop_case *c) { return c->values[T_LSE] == NULL; }

static bool has_tensor(const struct prop_case *c, enum ref_tensor t)
{
    if (t == REF_O || t == REF_LSE) return has_forward(c) && tensor_dtype(&c->p, ids[t]) != ATTEST_ABSENT;
    if (t == REF_DSINK) return c->backward && c->p.has_sink;
    return c->backward && tensor_dtype(&c->p, ids[t]) != ATTEST_ABSENT;
}

void outcome_extents(const struct prop_case *c, enum ref_tensor t, int64_t extents[4])
{
    if (t != REF_DSINK) {
        case_extents(c, ids[t], extents);
        return;
    }
    extents[0] = c->p.num_heads_q;
    extents[1] = extents[2] = extents[3] = 1;
}

static int64_t count_of(const struct prop_case *c, enum ref_tensor t)
{
    int64_t e[4];
    outcome_extents(c, t, e);
    return e[0] * e[1] * e[2] * e[3];
}

const struct ref_format *outcome_format(const struct outcome *o, enum ref_tensor t)
{
    return ref_format(t == REF_DSINK ? ATTEST_FP32 : tensor_dtype(&o->c->p, ids[t]));
}

static int run_oracle(struct outcome *out)
{
    struct prop_case *c = out->c;
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        if (has_tensor(c, (enum ref_tensor)t)) out->value[t] = case_doubles(c, count_of(c, (enum ref_tensor)t));
    const struct ref_forward f = {out->value[REF_O], out->value[REF_LSE]};
    const struct ref_backward b = {.dq = out->value[REF_DQ], .dk = out->value[REF_DK], .dv = out->value[REF_DV],
                                   .dbias = out->value[REF_DBIAS], .dsink = out->value[REF_DSINK]};
    if (has_forward(c) && ref_forward(&c->p, &c->a.forward, &f, 1) != ATTEST_OK) return FAILS_STATUS;
    return c->backward && ref_backward(&c->p, &c->a, NULL, &b, 1) != ATTEST_OK ? FAILS_STATUS : TRIAL_PASSES;
}

static int run_pass(struct outcome *out, const struct implementation *self, bool backward, struct prop_context *context)
{
    struct prop_case *c = out->c;
    const enum attest_status status =
        backward ? self->backward(self, &c->p, &c->a, &out->backward)
                 : self->forward(self, &c->p, &c->a.forward, &out->forward);
    if (status == ATTEST_UNSUPPORTED && self->is_partial) return ++context->refused, TRIAL_DISCARDED;
    if (status != ATTEST_OK)
        return fails(context, FAILS_STATUS, "%s: %s %s", backward ? "backward" : "forward", attest_status_name(status),
                     attest_last_error());
    const char *const changed = case_check_memory(c, backward);
    if (changed != NULL)
        return fails(context, FAILS_MEMORY, "%s changed bytes of %s that are no result of it",
                     backward ? "backward" : "forward", changed);
    for (int t = backward ? REF_DQ : REF_O; t <= (backward ? REF_DSINK : REF_LSE); ++t)
        if (has_tensor(c, (enum ref_tensor)t))
            out->value[t] = t == REF_DSINK ? case_read_dsink(c) : case_read(c, ids[t]);
    return TRIAL_PASSES;
}

static int run_implementation(struct outcome *out, const struct implementation *self, struct prop_context *context)
{
    case_reset_outputs(out->c);
    const int failure = has_forward(out->c) ? run_pass(out, self, false, context) : TRIAL_PASSES;
    return failure == TRIAL_PASSES && out->c->backward ? run_pass(out, self, true, context) : failure;
}

/* Whether element `index` belongs to no row of a sequence: nothing may be said of it. */
static bool is_nothing(const struct prop_case *c, enum ref_tensor t, int64_t index)
{
    int64_t e[4];
    if (!c->p.ragged || t == REF_DBIAS || t == REF_DSINK) return false;
    outcome_extents(c, t, e);
    return !case_row_exists(c, t == REF_DK || t == REF_DV, index / (e[1] * e[2]));
}

static struct ref_shares shares_of(const struct implementation *self, const struct computed *how)
{
    return is_oracle(self) ? ref_one_share(NULL) : computed_shares(how);
}

static int run_bounds(struct outcome *out, const struct implementation *self, struct prop_context *context)
{
    struct prop_case *c = out->c;
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        if (out->value[t] != NULL) bounds[t].bound = out->bound[t] = case_doubles(c, count_of(c, (enum ref_tensor)t));
    const struct ref_shares forward = shares_of(self, &out->forward), backward = shares_of(self, &out->backward);
    if (has_forward(c) &&
        ref_bound_forward_shares(&c->p, &c->a.forward, &forward, &bounds[REF_O], &bounds[REF_LSE], 1) != ATTEST_OK)
        return fails(context, FAILS_ORACLE, "no bound of forward");
    if (c->backward && ref_bound_backward_shares(&c->p, &c->a, &backward, bounds, 1) != ATTEST_OK)
        return fails(context, FAILS_ORACLE, "no bound of backward");
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        for (int64_t i = 0; out->bound[t] != NULL && i < count_of(c, (enum ref_tensor)t); ++i)
            if (!(out->bound[t][i] >= 0) && !is_nothing(c, (enum ref_tensor)t, i))
                return fails(context, FAILS_ORACLE, "the bound of %s[%" PRId64 "] is %g", ref_tensor_names[t], i,
                             out->bound[t][i]);
    return TRIAL_PASSES;
}

int outcome_run(struct outcome *out, struct prop_case *c, const struct implementation *self, int bounds,
                struct prop_context *context)
{
    *out = (struct outcome){.c = c};
    int failure = is_oracle(self) ? run_oracle(out) : run_implementation(out, self, context);
    if (failure == TRIAL_PASSES && bounds) failure = run_bounds(out, self, context);
    return failure;
}

/* An infinity stands for any number from the largest of the format on: the one nearest to `other`. */
static double overflown_near(const struct ref_format *format, double infinite, double other)
{
    return infinite > 0 ? fmax(other, format->max_finite) : fmin(other, -format->max_finite);
}

bool numbers_agree(const struct ref_format *format, double a, double b, double allowed)
{
    if (allowed == INFINITY) return true;
    if (isnan(a) || isnan(b)) return false;
    if (a == b) return true;
    if (format == NULL && (isinf(a) || isinf(b))) return false;
    if (isinf(a)) a = overflown_near(format, a, b);
    if (isinf(b)) b = overflown_near(format, b, a);
    return fabs(a - b) <= allowed;
}

double rounding_of(double sum) { return isfinite(sum) ? 0x1p-52 * fabs(sum) : 0; }

double sum_allowance(double value, double bound) { return isinf(value) ? INFINITY : bound; }

static bool same_bits(double a, double b) { return (a == b && signbit(a) == signbit(b)) || (isnan(a) && isnan(b)); }

int outcome_equal(const struct outcome *a, const struct outcome *b, element_map *map, const void *how, int bounds,
                  struct prop_context *context)
{
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        if (a->value[t] == NULL || b->value[t] == NULL) continue;
        const enum ref_tensor tensor = (enum ref_tensor)t;
        const struct ref_format *format = outcome_format(a, tensor);
        for (int64_t i = 0; i < count_of(a->c, tensor); ++i) {
            const int64_t j = is_nothing(a->c, tensor, i) ? -1 : map != NULL ? map(how, tensor, i) : i;
            if (j < 0) continue;
            const double x = a->value[t][i], y = b->value[t][j], allowed = bounds ? a->bound[t][i] + b->bound[t][j] : 0;
            if (bounds ? !numbers_agree(format, x, y, allowed) : !same_bits(x, y))
                return fails_at(context, tensor, i, x, y, allowed);
        }
    }
    return TRIAL_PASSES;
}

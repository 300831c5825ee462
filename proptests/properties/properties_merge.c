/* properties_merge.c - the merge of states, and problems cut along their keys.
 *
 * A state carries how far it may be from the exact state of its keys: o by `error`, lse by `lse_error`.
 * Merging states whose lse are off by at most e multiplies each weight by a factor between exp(-2e) and
 * exp(2e), and logaddexp itself never enlarges an error; the rest is the merge's own stated accuracy. */
#include <math.h>
#include <string.h>

#include "proptests/properties/outcome.h"
#include "proptests/properties/properties_list.h"
#include "proptests/cases/transform.h"

enum { MAX_STATES = 6 };

struct state {
    double *o, *error;       /* [rows][dim] */
    double *lse, *lse_error; /* [rows] */
};

/* Merges, where states live, and their shape. */
struct merging {
    struct prop_case *arena;
    const struct implementation *self; /* the oracle: in doubles, by ref_merge */
    int64_t rows, dim;
    int32_t o_dtype;                   /* of what merges give */
    int *failure;                      /* of a merge that did not return ATTEST_OK */
    struct prop_context *context;
};

static struct state new_state(const struct merging *m)
{
    return (struct state){case_doubles(m->arena, m->rows * m->dim), case_doubles(m->arena, m->rows * m->dim),
                          case_doubles(m->arena, m->rows), case_doubles(m->arena, m->rows)};
}

/* As a merge gives it; doubles are not rounded. */
static double rounded(const struct merging *m, double o)
{
    return is_oracle(m->self) ? o : ref_round(m->o_dtype, o);
}

static float *floats_of(const struct merging *m, const double *values, int64_t count)
{
    float *out = case_alloc(m->arena, (size_t)count * sizeof *out);
    for (int64_t i = 0; i < count; ++i) out[i] = (float)values[i];
    return out;
}

/* `place`: the state whose memory the result goes to, or NOWHERE. */
enum { NOWHERE = -1 };
static void call_merge(const struct merging *m, const struct state *states, int count, int place, struct state *out)
{
    if (is_oracle(m->self)) {
        const double *o[MAX_STATES], *lse[MAX_STATES];
        for (int a = 0; a < count; ++a) o[a] = states[a].o, lse[a] = states[a].lse;
        ref_merge(count, m->rows, m->dim, o, lse, out->o, out->lse);
        return;
    }
    const float *o[MAX_STATES], *lse[MAX_STATES];
    void *o_out = case_alloc(m->arena, (size_t)(m->rows * m->dim) * ref_dtype_bytes(m->o_dtype));
    float *lse_out = case_alloc(m->arena, (size_t)m->rows * sizeof *lse_out);
    memset(o_out, 0xff, (size_t)(m->rows * m->dim) * ref_dtype_bytes(m->o_dtype));
    memset(lse_out, 0xff, (size_t)m->rows * sizeof *lse_out);
    for (int a = 0; a < count; ++a) {
        float *const o_a = floats_of(m, states[a].o, m->rows * m->dim);
        float *const lse_a = floats_of(m, states[a].lse, m->rows);
        o[a] = o_a, lse[a] = lse_a;
        if (a == place) o_out = o_a, lse_out = lse_a;
    }
    struct attest_merge_args args = ATTEST_MERGE_ARGS_INIT;
    args.device = ATTEST_REFERENCE, args.o_dtype = m->o_dtype;
    args.num_states = count, args.rows = m->rows, args.head_dim_v = m->dim;
    args.o_states = o, args.lse_states = lse, args.o = o_out, args.lse = lse_out;
    const enum attest_status status = m->self->merge(m->self, &args);
    if (status != ATTEST_OK)
        *m->failure = fails(m->context, FAILS_STATUS, "merge: %s %s", attest_status_name(status), attest_last_error());
    for (int64_t i = 0; i < m->rows * m->dim; ++i) out->o[i] = ref_load(m->o_dtype, o_out, i);
    for (int64_t i = 0; i < m->rows; ++i) out->lse[i] = (double)lse_out[i];
}

/* exp(lse_a - lse) of one row, rounded up. */
static void weights_of(const struct state *states, int count, int64_t row, double weights[MAX_STATES])
{
    double max = -INFINITY, sum = 0;
    for (int a = 0; a < count; ++a) max = fmax(max, states[a].lse[row]);
    for (int a = 0; a < count; ++a) sum += states[a].lse[row] == -INFINITY ? 0 : exp(states[a].lse[row] - max);
    for (int a = 0; a < count; ++a)
        weights[a] = states[a].lse[row] == -INFINITY ? 0 : exp(states[a].lse[row] - max) / sum * (1 + 0x1p-40);
}

/* attest_merge's stated accuracy; the oracle's weights are exponentials of differences to an lse that is rounded. */
static void error_of_doubles(const struct merging *m, const struct state *states, int count, struct state *out)
{
    const bool rounds = !is_oracle(m->self);
    for (int64_t row = 0; row < m->rows; ++row) {
        const double lse = isfinite(out->lse[row]) ? fabs(out->lse[row]) : 0;
        const double own = (count + 760 + (rounds ? 0 : lse)) * 0x1p-52;
        double weights[MAX_STATES];
        weights_of(states, count, row, weights);
        out->lse_error[row] = own + 0x1p-52 * lse + (rounds ? ref_half_ulp(ATTEST_FP32, lse) : 0);
        for (int64_t x = row * m->dim; x < (row + 1) * m->dim; ++x) {
            out->error[x] = count * 0x1p-940 + (rounds ? ref_half_ulp(m->o_dtype, out->o[x]) : 0);
            for (int a = 0; a < count; ++a)
                if (states[a].lse[row] > -INFINITY) out->error[x] += weights[a] * own * fabs(states[a].o[x]);
        }
    }
}

/* What the merge itself may be off by, for states that are exact. */
static void own_errors(const struct merging *m, const struct state *states, int count, struct state *out)
{
    const double *o[MAX_STATES], *lse[MAX_STATES];
    if (m->self->merge_recipe == NULL) {
        error_of_doubles(m, states, count, out);
        return;
    }
    for (int a = 0; a < count; ++a) o[a] = states[a].o, lse[a] = states[a].lse;
    if (ref_bound_merge(count, m->rows, m->dim, o, lse, m->self->merge_recipe, m->o_dtype, out->error,
                        out->lse_error) != ATTEST_OK)
        *m->failure = fails(m->context, FAILS_ORACLE, "no bound of merge");
}

/* Errors of a merged state, from the merge's own and those of its parts. */
static void bound_merge(const struct merging *m, const struct state *states, int count, struct state *out)
{
    own_errors(m, states, count, out);
    for (int64_t row = 0; row < m->rows; ++row) {
        double weights[MAX_STATES], lse_error = 0;
        weights_of(states, count, row, weights);
        for (int a = 0; a < count; ++a)
            if (states[a].lse[row] > -INFINITY) lse_error = fmax(lse_error, states[a].lse_error[row]);
        out->lse_error[row] += lse_error;
        const double factor = expm1(2 * lse_error);
        for (int64_t x = row * m->dim; x < (row + 1) * m->dim; ++x) {
            bool known = factor < INFINITY; /* an o outside of its recipe's domain, or overflown, says nothing */
            for (int a = 0; a < count; ++a) {
                if (states[a].lse[row] == -INFINITY) continue; /* empty: not read */
                const double e = states[a].error[x], o = fabs(states[a].o[x]);
                out->error[x] += weights[a] * (e + factor * (o + e));
                known = known && e < INFINITY && o < INFINITY;
            }
            if (!known) out->error[x] = INFINITY;
        }
    }
}

static struct state merge(const struct merging *m, const struct state *states, int count)
{
    struct state out = new_state(m);
    call_merge(m, states, count, NOWHERE, &out);
    bound_merge(m, states, count, &out);
    return out;
}

/* Pairs at random until one is left; or all at once, in a random order. */
static struct state merge_tree(const struct merging *m, struct state *states, int count, uint64_t seed)
{
    for (int i = count - 1; i > 0; --i) {
        const int j = (int)(check_mix(seed + (uint64_t)i) % (uint64_t)(i + 1));
        const struct state kept = states[i];
        states[i] = states[j], states[j] = kept;
    }
    if (seed % 3 == 0) return merge(m, states, count);
    for (; count > 1; --count) {
        const int at = (int)(check_mix(seed ^ (uint64_t)count) % (uint64_t)(count - 1));
        states[at] = merge(m, &states[at], 2);
        memmove(&states[at + 1], &states[at + 2], (size_t)(count - at - 2) * sizeof *states);
    }
    return states[0];
}

static int states_agree(const struct merging *m, const struct state *a, const struct state *b,
                        struct prop_context *context)
{
    const struct ref_format *format = ref_format(m->o_dtype);
    for (int64_t row = 0; row < m->rows; ++row) {
        const double allowed = a->lse_error[row] + b->lse_error[row];
        if (!numbers_agree(ref_format(ATTEST_FP32), a->lse[row], b->lse[row], allowed))
            return fails_at(context, REF_LSE, row, a->lse[row], b->lse[row], allowed);
        for (int64_t x = row * m->dim; x < (row + 1) * m->dim; ++x)
            if (!numbers_agree(format, a->o[x], b->o[x], a->error[x] + b->error[x]))
                return fails_at(context, REF_O, x, a->o[x], b->o[x], a->error[x] + b->error[x]);
    }
    return TRIAL_PASSES;
}

/* ---- keys cut in parts ---- */

static void take_state(const struct merging *m, const struct outcome *o, struct state *out)
{
    *out = new_state(m);
    memcpy(out->o, o->value[REF_O], (size_t)(m->rows * m->dim) * sizeof(double));
    memcpy(out->error, o->bound[REF_O], (size_t)(m->rows * m->dim) * sizeof(double));
    memcpy(out->lse, o->value[REF_LSE], (size_t)m->rows * sizeof(double));
    memcpy(out->lse_error, o->bound[REF_LSE], (size_t)m->rows * sizeof(double));
}

/* 1 .. MAX_STATES parts, some of them perhaps empty: cuts[0] = 0 .. cuts[count] = keys. */
static int cut_keys(uint64_t seed, int64_t keys, int64_t cuts[MAX_STATES + 1])
{
    const int count = 2 + (int)(seed % (MAX_STATES - 1));
    for (int i = 0; i <= count; ++i)
        cuts[i] = i == 0 ? 0 : i == count ? keys : (int64_t)(check_mix(seed + 77 * (uint64_t)i) % (uint64_t)(keys + 1));
    for (int i = 1; i < count; ++i) /* insertion sort */
        for (int j = i; cuts[j] < cuts[j - 1]; --j) {
            const int64_t kept = cuts[j];
            cuts[j] = cuts[j - 1], cuts[j - 1] = kept;
        }
    return count;
}

/* The last sequence of c alone, o in fp32 as states are. */
static bool sequence_alone(struct prop_case *out, const struct prop_case *c)
{
    struct prop_case wide;
    if (c->p.batch == 0) return false;
    case_copy(&wide, c);
    if (wide.p.o.dtype) wide.p.o.dtype = ATTEST_FP32;
    case_lay_out(&wide);
    transform_alone(out, &wide, c->p.batch - 1);
    case_free(&wide);
    return true;
}

int check_keys_merge(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct prop_case whole;
    struct outcome all;
    int64_t cuts[MAX_STATES + 1];
    if (!sequence_alone(&whole, c)) return TRIAL_DISCARDED;
    int failure = outcome_run(&all, &whole, self, WITH_BOUNDS, context), merge_failure = TRIAL_PASSES;
    const struct merging m = {&whole, self, whole.p.seqlen_q * whole.p.num_heads_q, whole.p.head_dim_v, ATTEST_FP32,
                              &merge_failure, context};
    const int count = cut_keys(c->data.seed, whole.p.seqlen_k, cuts);
    struct state states[MAX_STATES], want;
    for (int i = 0; i < count && failure == TRIAL_PASSES; ++i) {
        struct prop_case part;
        struct outcome some;
        const bool sink = i == (int)(c->data.seed / 5 % (uint64_t)count);
        transform_part(&part, &whole, &(struct part){0, whole.p.seqlen_q, cuts[i], cuts[i + 1], sink});
        failure = outcome_run(&some, &part, self, WITH_BOUNDS, context);
        if (failure == TRIAL_PASSES) take_state(&m, &some, &states[i]);
        case_free(&part);
    }
    if (failure == TRIAL_PASSES) {
        take_state(&m, &all, &want);
        const struct state got = merge_tree(&m, states, count, c->data.seed);
        failure = merge_failure != TRIAL_PASSES ? merge_failure : states_agree(&m, &got, &want, context);
    }
    case_free(&whole);
    return failure;
}

/* ---- gradients of parts ---- */

struct cut {
    const struct prop_case *part, *whole;
    int64_t first; /* key */
};

static int64_t place_of_key(const void *how, enum ref_tensor t, int64_t index)
{
    const struct cut *cut = how;
    int64_t e[4], all[4];
    outcome_extents(cut->part, t, e);
    outcome_extents(cut->whole, t, all);
    if (t == REF_DK || t == REF_DV) return index + cut->first * e[1] * e[2];
    if (t != REF_DBIAS || cut->whole->p.dbias.seqlen_k == 0) return -1;
    return index / e[3] * all[3] + cut->first + index % e[3];
}

/* Adds a part's dq and its bound to the sums. */
static void add_dq(const struct outcome *part, double *sum, double *allowed, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) {
        sum[i] += part->value[REF_DQ][i];
        allowed[i] += sum_allowance(part->value[REF_DQ][i], part->bound[REF_DQ][i]) + rounding_of(sum[i]);
    }
}

int check_keys_backward(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct prop_case whole;
    struct outcome all;
    int64_t cuts[MAX_STATES + 1];
    if (!sequence_alone(&whole, c)) return TRIAL_DISCARDED;
    const int count = cut_keys(c->data.seed, whole.p.seqlen_k, cuts);
    int failure = outcome_run(&all, &whole, self, WITH_BOUNDS, context);
    const int64_t elements = case_count(&whole, T_DQ);
    double *sum = case_doubles(&whole, elements), *allowed = case_doubles(&whole, elements);
    for (int64_t i = 0; i < elements && failure == TRIAL_PASSES; ++i) sum[i] = 0, allowed[i] = all.bound[REF_DQ][i];
    for (int i = 0; i < count && failure == TRIAL_PASSES; ++i) {
        struct prop_case part;
        struct outcome some;
        transform_part(&part, &whole, &(struct part){0, whole.p.seqlen_q, cuts[i], cuts[i + 1], i == 0});
        const struct cut cut = {&part, &whole, cuts[i]};
        failure = outcome_run(&some, &part, self, WITH_BOUNDS, context);
        if (failure == TRIAL_PASSES) failure = outcome_equal(&some, &all, place_of_key, &cut, WITH_BOUNDS, context);
        if (failure == TRIAL_PASSES) add_dq(&some, sum, allowed, elements);
        case_free(&part);
    }
    for (int64_t i = 0; i < elements && failure == TRIAL_PASSES; ++i)
        if (!numbers_agree(outcome_format(&all, REF_DQ), sum[i], all.value[REF_DQ][i], allowed[i]))
            failure = fails_at(context, REF_DQ, i, sum[i], all.value[REF_DQ][i], allowed[i]);
    case_free(&whole);
    return failure;
}

/* ---- laws ---- */

/* A state of random numbers that are exact; about a quarter of its rows are empty, with a NaN that may not be read. */
static struct state random_state(const struct merging *m, uint64_t seed)
{
    struct state s = new_state(m);
    for (int64_t row = 0; row < m->rows; ++row) {
        const uint64_t bits = family_bits(seed, 70, 0, row, 0, 0);
        const double far = bits & 64 ? 3e5 : -3e5;
        const bool empty = bits % 4 == 0;
        s.lse[row] = empty ? -INFINITY : (float)(bits % 4 == 1 ? far : 10 * family_normal(bits));
        s.lse_error[row] = 0;
        for (int64_t x = row * m->dim; x < (row + 1) * m->dim; ++x) {
            s.o[x] = empty ? NAN : (float)family_normal(family_bits(seed, 71, 0, x, 0, 0));
            s.error[x] = 0;
        }
    }
    return s;
}

static struct state empty_state(const struct merging *m)
{
    struct state s = new_state(m);
    for (int64_t i = 0; i < m->rows; ++i) s.lse[i] = -INFINITY, s.lse_error[i] = 0;
    for (int64_t i = 0; i < m->rows * m->dim; ++i) s.o[i] = NAN, s.error[i] = 0;
    return s;
}

/* a is b, as a merge gives it; where b is empty, a is the identity (0, -inf). */
static bool same_state(const struct merging *m, const struct state *a, const struct state *b)
{
    for (int64_t row = 0; row < m->rows; ++row) {
        if (a->lse[row] != b->lse[row]) return false;
        for (int64_t x = row * m->dim; x < (row + 1) * m->dim; ++x) {
            const double want = b->lse[row] == -INFINITY ? 0 : rounded(m, b->o[x]);
            if (a->o[x] != want) return false;
        }
    }
    return true;
}

static int bitwise_laws(const struct merging *m, const struct state s[3], struct prop_context *context)
{
    const struct state none = empty_state(m), nothing = merge(m, NULL, 0), one = merge(m, s, 1);
    const struct state ab = merge(m, s, 2), ba = merge(m, (struct state[]){s[1], s[0]}, 2);
    const struct state right = merge(m, (struct state[]){s[0], none}, 2);
    const struct state left = merge(m, (struct state[]){none, s[0]}, 2);
    const struct state both = merge(m, (struct state[]){none, none}, 2);
    if (!same_state(m, &nothing, &none)) return fails(context, FAILS_LAW, "no state does not merge to (0, -inf)");
    if (!same_state(m, &one, &s[0])) return fails(context, FAILS_LAW, "a state alone is not copied");
    if (!same_state(m, &right, &s[0])) return fails(context, FAILS_LAW, "merge(a, empty) is not a");
    if (!same_state(m, &left, &s[0])) return fails(context, FAILS_LAW, "merge(empty, a) is not a");
    if (!same_state(m, &both, &none)) return fails(context, FAILS_LAW, "merge(empty, empty) is not (0, -inf)");
    if (!same_state(m, &ab, &ba)) return fails(context, FAILS_LAW, "merge(a, b) is not merge(b, a)");
    for (int place = 0; place < 2 && m->o_dtype == ATTEST_FP32; ++place) {
        struct state in_place = new_state(m);
        call_merge(m, s, 2, place, &in_place);
        if (!same_state(m, &in_place, &ab)) return fails(context, FAILS_LAW, "a merge in place is not the merge");
    }
    return TRIAL_PASSES;
}

/* sum exp(lse_a - lse) o_a as the formula has it, in long double. */
static struct state exact_merge(const struct merging *m, const struct state *states, int count)
{
    struct state out = new_state(m);
    for (int64_t row = 0; row < m->rows; ++row) {
        long double max = -INFINITY, sum = 0;
        for (int a = 0; a < count; ++a) max = fmaxl(max, (long double)states[a].lse[row]);
        for (int a = 0; a < count; ++a) sum += max == -INFINITY ? 0 : expl((long double)states[a].lse[row] - max);
        out.lse[row] = max == -INFINITY ? -INFINITY : (double)(max + logl(sum));
        out.lse_error[row] = max == -INFINITY ? 0 : 0x1p-53 * fabs(out.lse[row]) + 0x1p-60;
        for (int64_t x = row * m->dim; x < (row + 1) * m->dim; ++x) {
            long double o = 0, absolute = 0;
            for (int a = 0; a < count; ++a) {
                if (states[a].lse[row] == -INFINITY) continue;
                const long double weight = expl((long double)states[a].lse[row] - max) / sum;
                o += weight * (long double)states[a].o[x], absolute += weight * fabsl((long double)states[a].o[x]);
            }
            out.o[x] = (double)o;
            out.error[x] = 0x1p-53 * fabs(out.o[x]) + 0x1p-58 * (double)absolute;
        }
    }
    return out;
}

/* Merges of states that are exact, one inside another, in fp32. */
static int trees_agree(const struct merging *m, const struct state s[3], const struct state *exact,
                       struct prop_context *context)
{
    const struct state ab = merge(m, s, 2), bc = merge(m, s + 1, 2);
    const struct state ab_c = merge(m, (struct state[]){ab, s[2]}, 2);
    const struct state a_bc = merge(m, (struct state[]){s[0], bc}, 2);
    const int failure = states_agree(m, &ab_c, exact, context);
    return failure != TRIAL_PASSES ? failure : states_agree(m, &a_bc, exact, context);
}

/* All laws for results of one format; states are fp32. */
static int laws_in_format(const struct merging *m, const struct state s[3], struct prop_context *context)
{
    const struct state exact = exact_merge(m, s, 3), all = merge(m, s, 3);
    const struct state turned = merge(m, (struct state[]){s[2], s[0], s[1]}, 3);
    int failure = bitwise_laws(m, s, context);
    if (*m->failure != TRIAL_PASSES) failure = *m->failure;
    if (failure == TRIAL_PASSES) failure = states_agree(m, &all, &exact, context);
    if (failure == TRIAL_PASSES) failure = states_agree(m, &turned, &exact, context);
    if (failure == TRIAL_PASSES && m->o_dtype == ATTEST_FP32) failure = trees_agree(m, s, &exact, context);
    return failure;
}

int check_merge_laws(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    static const int32_t dtypes[] = {ATTEST_FP32, ATTEST_FP16, ATTEST_BF16};
    int merge_failure = TRIAL_PASSES, failure = TRIAL_PASSES;
    struct merging m = {c, self, c->p.seqlen_q + 1, c->p.head_dim_v, ATTEST_FP32, &merge_failure, context};
    struct state s[3];
    for (int i = 0; i < 3; ++i) s[i] = random_state(&m, c->data.seed * 3 + (uint64_t)i);
    for (int i = 0; i < 3 && failure == TRIAL_PASSES; ++i) {
        m.o_dtype = dtypes[i];
        failure = laws_in_format(&m, s, context);
    }
    return failure;
}

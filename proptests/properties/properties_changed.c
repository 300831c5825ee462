/* properties_changed.c - problems changed so that the answer changes in a known way. */
#include <math.h>
#include <string.h>

#include "proptests/properties/outcome.h"
#include "proptests/properties/properties_list.h"
#include "proptests/cases/transform.h"

/* Below this, products that underflow in fp32 could reach the last place of a sum of them. */
#define FAR_FROM_UNDERFLOW 0x1p-100

static int64_t count_of(const struct prop_case *c, enum ref_tensor t)
{
    int64_t e[4];
    outcome_extents(c, t, e);
    return e[0] * e[1] * e[2] * e[3];
}

/* ---- every score moved ---- */

/* The features of dq and dk that both problems have. */
static int64_t feature_of_shifted(const void *how, enum ref_tensor t, int64_t index)
{
    const int64_t dim = *(const int64_t *)how;
    if (t == REF_LSE) return -1;
    return t == REF_DQ || t == REF_DK ? index / dim * (dim + 1) + index % dim : index;
}

static int lse_moved_by(const struct outcome *a, const struct outcome *b, double shift, struct prop_context *context)
{
    const int64_t count = a->value[REF_LSE] != NULL ? count_of(a->c, REF_LSE) : 0;
    for (int64_t i = 0; i < count; ++i) {
        if (!case_row_exists(a->c, false, i / a->c->p.num_heads_q)) continue;
        const double want = a->value[REF_LSE][i] + shift, got = b->value[REF_LSE][i];
        const double allowed = a->bound[REF_LSE][i] + b->bound[REF_LSE][i] + rounding_of(want);
        if (!numbers_agree(ref_format(ATTEST_FP32), got, want, allowed))
            return fails_at(context, REF_LSE, i, got, want, allowed);
    }
    return TRIAL_PASSES;
}

int check_shift(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    static const double sizes[] = {1, 30, 120, 2e3, 5e4, 3e5};
    const struct ref_format *format = ref_format(c->p.q.dtype);
    const double scale = (double)c->p.softmax_scale, size = sizes[c->data.seed % 6];
    if (c->p.head_dim == 256 || scale == 0) return TRIAL_DISCARDED;
    /* Powers of two that the dtype holds, the product as near to the size as they come. */
    const int most = (int)log2(format->max_finite), power = (int)round(log2(size / fabs(scale)));
    const int in_q = power / 2 < most ? power / 2 : most, in_k = power - in_q < most ? power - in_q : most;
    const double q = ldexp(1, in_q), k = ldexp(c->data.seed / 6 % 2 ? -1 : 1, in_k);

    struct prop_case shifted;
    struct outcome before, after;
    transform_shift(&shifted, c, q, k);
    int failure = outcome_run(&before, c, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&after, &shifted, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES)
        failure = outcome_equal(&before, &after, feature_of_shifted, &c->p.head_dim, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = lse_moved_by(&before, &after, scale * q * k, context);
    case_free(&shifted);
    return failure;
}

/* ---- keys in another order ---- */

struct permutation {
    const struct prop_case *c;
    int64_t *place; /* where key row j goes */
};

static int64_t place_of_key(const void *how, enum ref_tensor t, int64_t index)
{
    const struct permutation *permutation = how;
    const int64_t keys = permutation->c->p.seqlen_k;
    int64_t e[4];
    outcome_extents(permutation->c, t, e);
    if (t == REF_DBIAS) return e[3] == 1 ? index : index / keys * keys + permutation->place[index % keys];
    if (t != REF_DK && t != REF_DV) return index;
    const int64_t inner = e[1] * e[2], row = index / inner;
    return (row / keys * keys + permutation->place[row % keys]) * inner + index % inner;
}

int check_permuted_keys(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    const int64_t keys = c->p.seqlen_k;
    int64_t *order = case_alloc(c, (size_t)keys * sizeof *order), *place = case_alloc(c, (size_t)keys * sizeof *place);
    for (int64_t j = 0; j < keys; ++j) order[j] = j;
    for (int64_t j = keys - 1; j > 0; --j) {
        const int64_t other = (int64_t)(check_mix(c->data.seed ^ (uint64_t)j << 32) % (uint64_t)(j + 1));
        const int64_t kept = order[j];
        order[j] = order[other], order[other] = kept;
    }
    for (int64_t j = 0; j < keys; ++j) place[order[j]] = j;

    struct prop_case permuted;
    struct outcome before, after;
    transform_permute_keys(&permuted, c, order);
    const struct permutation permutation = {c, place};
    int failure = outcome_run(&before, c, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&after, &permuted, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES)
        failure = outcome_equal(&before, &after, place_of_key, &permutation, WITH_BOUNDS, context);
    case_free(&permuted);
    return failure;
}

/* ---- a power of two goes through ---- */

/* Twice `before` exactly, unless it is where rounding does not scale. */
static int is_doubled(const struct outcome *before, const struct outcome *after, enum ref_tensor t,
                      struct prop_context *context)
{
    if (before->value[t] == NULL) return TRIAL_PASSES;
    const struct ref_format *format = outcome_format(before, t);
    const double least = fmax(FAR_FROM_UNDERFLOW, 4 * format->min_normal);
    const int64_t count = count_of(before->c, t);
    for (int64_t i = 0; i < count; ++i) {
        const double x = before->value[t][i], y = after->value[t][i];
        if (isnan(x) ? isnan(y) : fabs(x) < least || fabs(2 * x) > format->max_finite) continue;
        if (!(y == 2 * x)) return fails_at(context, t, i, y, 2 * x, 0);
    }
    return TRIAL_PASSES;
}

static bool can_double(const struct prop_case *c, enum tensor_id t)
{
    const int64_t count = c->values[t] != NULL ? case_count(c, t) : 0;
    const double most = c->values[t] != NULL ? ref_format(tensor_dtype(&c->p, t))->max_finite / 2 : 0;
    for (int64_t i = 0; i < count; ++i)
        if (fabs(c->values[t][i]) > most) return false;
    return true;
}

int check_scaled_values(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct prop_case doubled;
    struct outcome before, after;
    if (!can_double(c, T_V)) return TRIAL_DISCARDED;
    case_copy(&doubled, c);
    transform_scale(&doubled, T_V, 2);
    case_lay_out(&doubled);
    int failure = outcome_run(&before, c, self, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&after, &doubled, self, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = is_doubled(&before, &after, REF_O, context);
    before.value[REF_O] = NULL; /* lse: the same bits */
    if (failure == TRIAL_PASSES) failure = outcome_equal(&before, &after, NULL, NULL, BITS_ONLY, context);
    case_free(&doubled);
    return failure;
}

int check_scaled_gradient(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    static const enum tensor_id gradients[] = {T_DQ, T_DK, T_DV, T_DBIAS};
    struct prop_case doubled;
    struct outcome before, after;
    for (int i = 0; i < 4; ++i) /* its subnormal numbers are in reach */
        if (tensor_dtype(&c->p, gradients[i]) == ATTEST_FP16) return TRIAL_DISCARDED;
    if (!can_double(c, T_DOUT)) return TRIAL_DISCARDED;
    case_copy(&doubled, c);
    transform_scale(&doubled, T_DOUT, 2);
    transform_scale(&doubled, T_DLSE, 2);
    case_lay_out(&doubled);
    int failure = outcome_run(&before, c, self, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&after, &doubled, self, BITS_ONLY, context);
    for (int t = REF_DQ; t < REF_NUM_TENSORS && failure == TRIAL_PASSES; ++t)
        failure = is_doubled(&before, &after, (enum ref_tensor)t, context);
    case_free(&doubled);
    return failure;
}

/* ---- a cap beyond all scores ---- */

/* How far a cap moves the scores of one row: |cap tanh(s / cap) - s| <= min(|s|, |s|^3 / (3 cap^2)). */
static double moved_by_cap(struct prop_case *c, int64_t b, int64_t h, int64_t r, double cap)
{
    const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
    struct ref_row row = {.s = case_doubles(c, s.seqlen_k)};
    double most = 0;
    ref_score_row(&c->p, &c->a.forward, &s, b, h, r, &row);
    for (int64_t col = 0; col < s.seqlen_k; ++col) most = fmax(most, fabs(row.s[col]));
    return fmin(most, most * most * most / (3 * cap * cap));
}

static int rows_near(const struct outcome *plain, const struct outcome *capped, struct prop_context *context)
{
    struct prop_case *c = plain->c;
    const int64_t heads = c->p.num_heads_q, dim = c->p.head_dim_v, values = case_count(c, T_V);
    const double cap = (double)capped->c->p.softcap;
    double v_max = 0;
    for (int64_t i = 0; i < values; ++i) v_max = fmax(v_max, fabs(c->values[T_V][i]));
    /* Dropout's factor is in v's place. */
    if (c->p.dropout_p > 0) v_max *= 65536 / (65536 - floor(65536 * (double)c->p.dropout_p + 0.5));
    for (int64_t b = 0; b < c->p.batch; ++b) {
        const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
        for (int64_t i = 0; i < s.seqlen_q * heads; ++i) {
            const int64_t row = s.first_q * heads + i;
            const double moved = moved_by_cap(c, b, i % heads, i / heads, cap);
            const double x = plain->value[REF_LSE][row], y = capped->value[REF_LSE][row];
            const double allowed = plain->bound[REF_LSE][row] + capped->bound[REF_LSE][row] + moved;
            if (!numbers_agree(ref_format(ATTEST_FP32), y, x, allowed))
                return fails_at(context, REF_LSE, row, y, x, allowed);
            for (int64_t k = row * dim; k < (row + 1) * dim; ++k) {
                const double o = plain->value[REF_O][k], o_capped = capped->value[REF_O][k];
                const double near = plain->bound[REF_O][k] + capped->bound[REF_O][k] + expm1(2 * moved) * v_max;
                if (!numbers_agree(outcome_format(plain, REF_O), o_capped, o, near))
                    return fails_at(context, REF_O, k, o_capped, o, near);
            }
        }
    }
    return TRIAL_PASSES;
}

int check_infinite_softcap(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    static const float caps[] = {1e3f, 1e4f, 1e6f, 1e30f};
    struct prop_case cap;
    struct outcome plain, capped;
    case_copy(&cap, c);
    cap.p.softcap = caps[c->data.seed % 4];
    case_lay_out(&cap);
    int failure = outcome_run(&plain, c, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&capped, &cap, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = rows_near(&plain, &capped, context);
    case_free(&cap);
    return failure;
}

#include "reference/audit/conventions.h"

#include <math.h>
#include <stdlib.h>

#include "reference/formats.h"
#include "reference/oracle.h"

static const int64_t max_bias_bytes = (int64_t)1 << 31;

static const struct {
    const char *name, *formula;
} alibi_forms[ALIBI_NUM] = {
    [ALIBI_CONTRACT] = {"contract", "t - slope |i + diag - j|"},
    [ALIBI_TOP_LEFT] = {"top-left", "t - slope |i - j|"},
    [ALIBI_COLUMN] = {"column", "t + slope j"},
    [ALIBI_SIGNED] = {"signed", "t + slope (j - i)"},
    [ALIBI_INSIDE] = {"inside-cap", "softcap tanh((s - slope |i + diag - j|) / softcap)"},
    [ALIBI_INSIDE_SIGNED] = {"inside-cap-signed", "softcap tanh((s + slope (j - i)) / softcap)"},
};

const char *alibi_form_name(enum alibi_form form)
{
    return alibi_forms[form].name;
}

bool alibi_is_forward_only(enum alibi_form form)
{
    return form == ALIBI_INSIDE || form == ALIBI_INSIDE_SIGNED;
}

int convention_deviations(const struct convention *c)
{
    return (c->diag_kind != ATTEST_DIAG_UNSET) + (c->alibi != ALIBI_CONTRACT) + c->lse_base2 + c->lse_plus_inf;
}

bool convention_number(const struct attest_problem *p, int number, struct convention *c)
{
    const bool other_diag = number / (4 * ALIBI_NUM) == 1;
    *c = (struct convention){.alibi = (enum alibi_form)(number / 4 % ALIBI_NUM), .lse_base2 = number / 2 % 2 == 1,
                             .lse_plus_inf = number % 2 == 1};
    const bool lengths_differ = p->seqlen_q != p->seqlen_k;
    if (other_diag) {
        if (!lengths_differ || (p->window_left < 0 && p->window_right < 0)) return false;
        if (p->diag_kind == ATTEST_DIAG_GIVEN) return false;
        c->diag_kind = p->diag_kind == ATTEST_DIAG_TOP_LEFT ? ATTEST_DIAG_BOTTOM_RIGHT : ATTEST_DIAG_TOP_LEFT;
    }
    if (c->alibi != ALIBI_CONTRACT && !p->has_alibi) return false;
    if (c->alibi == ALIBI_TOP_LEFT && !lengths_differ) return false;
    return !alibi_is_forward_only(c->alibi) || p->softcap > 0;
}

/* What takes the place of the contract's x, before the bias. */
static double form_score(enum alibi_form form, const struct attest_problem *p, const struct ref_sequence *q,
                         double slope, double s, double t, int64_t r, int64_t col)
{
    const double i = (double)(p->q_start + r), j = (double)(p->k_start + col), diag = (double)q->alibi_diag;
    switch (form) {
    case ALIBI_COLUMN: return t + slope * j;
    case ALIBI_SIGNED: return t + slope * (j - i);
    case ALIBI_INSIDE: return p->softcap * tanh((s - slope * fabs(i + diag - j)) / p->softcap);
    case ALIBI_INSIDE_SIGNED: return p->softcap * tanh((s + slope * (j - i)) / p->softcap);
    default: return t - slope * fabs(i + diag - j);
    }
}

/* One row of the bias that turns the contract's t into the form's score. */
static void fill_bias_row(enum alibi_form form, const struct attest_problem *p, const struct attest_forward_args *a,
                          int64_t b, int64_t h, int64_t r, double *s, double *t, float *bias)
{
    const struct ref_sequence sequence = ref_sequence(p, a, b);
    struct ref_row row = {.s = s, .t = t};
    ref_score_row(p, a, &sequence, b, h, r, &row);
    for (int64_t col = 0; col < p->seqlen_k; ++col) {
        bias[col] = -INFINITY;
        if (!ref_visible(p, a, &sequence, b, h, r, col)) continue;
        double sum = form_score(form, p, &sequence, a->alibi_slopes[h], s[col], t[col], r, col) - t[col];
        if (p->bias.dtype != ATTEST_ABSENT)
            sum += ref_load(p->bias.dtype, a->bias, ref_score_offset(&p->bias, b, h, r, col));
        bias[col] = (float)sum;
    }
}

bool alibi_rewrite(enum alibi_form form, struct attest_problem *p, struct attest_forward_args *a, void **owned)
{
    *owned = NULL;
    if (form == ALIBI_CONTRACT) return true;
    if (form == ALIBI_TOP_LEFT) {
        p->alibi_diag_kind = ATTEST_DIAG_TOP_LEFT;
        return true;
    }
    int64_t bytes;
    if (__builtin_mul_overflow(p->batch * p->num_heads_q, p->seqlen_q * p->seqlen_k, &bytes)) return false;
    if (bytes > max_bias_bytes / (int64_t)sizeof(float)) return false;
    float *bias = allocate((size_t)bytes, sizeof *bias), *next = bias;
    double *s = allocate((size_t)p->seqlen_k, sizeof *s), *t = allocate((size_t)p->seqlen_k, sizeof *t);
    for (int64_t b = 0; b < p->batch; ++b) {
        for (int64_t h = 0; h < p->num_heads_q; ++h) {
            for (int64_t r = 0; r < p->seqlen_q; ++r, next += p->seqlen_k)
                fill_bias_row(form, p, a, b, h, r, s, t, next);
        }
    }
    free(s);
    free(t);
    p->has_alibi = 0;
    p->bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .batch = p->num_heads_q * p->seqlen_q * p->seqlen_k,
                                           .head = p->seqlen_q * p->seqlen_k, .seqlen_q = p->seqlen_k, .seqlen_k = 1};
    a->bias = *owned = bias;
    return true;
}

int64_t convention_convert_lse(const struct convention *c, const struct attest_problem *p,
                               const struct attest_forward_args *a, const double *oracle, float *lse)
{
    int64_t plus_inf_count = 0;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence sequence = ref_sequence(p, a, b);
        for (int64_t r = 0; r < sequence.rows_q; ++r) {
            for (int64_t h = 0; h < p->num_heads_q; ++h) {
                float *x = &lse[ref_row_offset(p, &p->lse, &sequence, false, b, r, h)];
                if (c->lse_base2) *x = (float)(*x * M_LN2);
                if (!c->lse_plus_inf || *x != INFINITY) continue;
                if (oracle[(sequence.first_q + r) * p->num_heads_q + h] != -INFINITY) continue;
                *x = -INFINITY;
                ++plus_inf_count;
            }
        }
    }
    return plus_inf_count;
}

void convention_explain(const struct convention *c, const struct attest_problem *p, const char *name,
                        int64_t plus_inf_count, struct notes *notes)
{
    static const char *const diag_names[] = {"", "top-left", "bottom-right"};
    if (c->diag_kind != ATTEST_DIAG_UNSET)
        note(notes, "'%s' has the mask's diagonal at %s, not at %s: judged so", name, diag_names[c->diag_kind],
             diag_names[p->diag_kind]);
    if (c->alibi != ALIBI_CONTRACT)
        note(notes, "'%s' has ALiBi scores %s instead of %s: judged so", name, alibi_forms[c->alibi].formula,
             alibi_forms[ALIBI_CONTRACT].formula);
    if (c->lse_base2) note(notes, "lse of '%s' is in base 2: divided by log2(e) before judging", name);
    if (c->lse_plus_inf)
        note(notes, "lse of '%s' is +inf in %lld rows that see no key: read as -inf before judging", name,
             (long long)plus_inf_count);
}

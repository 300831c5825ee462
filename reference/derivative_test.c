/* derivative_test.c - the oracle's gradients against the derivative of the definition, by another route.
 *
 * The forward formulas of lib/contract.md, sections 1 and 4, are evaluated in dual numbers over balls: every
 * quantity carries its derivative along one input number. No formula of section 3 is used, nothing is truncated
 * and nothing is chosen: the derivative of
 *
 *     loss = sum dout . o + sum dlse lse
 *
 * comes out as a ball that contains it, and the oracle must be within its own stated error of it. The
 * value that comes along must be what the oracle's forward pass gives: so it is its derivative. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "reference/arb_attention.h"
#include "reference/judge_oracle.h"
#include "reference/oracle.h"

enum { FIRST_BITS = 256, LAST_BITS = 16384 };

/* value + derivative epsilon, epsilon^2 = 0. */
struct dual {
    arb_t value, derivative;
};

static void dual_init(struct dual *a)
{
    arb_init(a->value);
    arb_init(a->derivative);
}

static void dual_clear(struct dual *a)
{
    arb_clear(a->value);
    arb_clear(a->derivative);
}

static void dual_set(struct dual *a, double value, bool moves)
{
    arb_set_d(a->value, value);
    arb_set_ui(a->derivative, moves);
}

static void dual_zero(struct dual *a) { dual_set(a, 0, false); }

static void dual_add(struct dual *a, const struct dual *b, slong bits)
{
    arb_add(a->value, a->value, b->value, bits);
    arb_add(a->derivative, a->derivative, b->derivative, bits);
}

static void dual_sub(struct dual *a, const struct dual *b, slong bits)
{
    arb_sub(a->value, a->value, b->value, bits);
    arb_sub(a->derivative, a->derivative, b->derivative, bits);
}

static void dual_scale(struct dual *a, const arb_t factor, slong bits)
{
    arb_mul(a->value, a->value, factor, bits);
    arb_mul(a->derivative, a->derivative, factor, bits);
}

/* sum += a b */
static void dual_addmul(struct dual *sum, const struct dual *a, const struct dual *b, slong bits)
{
    arb_addmul(sum->value, a->value, b->value, bits);
    arb_addmul(sum->derivative, a->value, b->derivative, bits);
    arb_addmul(sum->derivative, a->derivative, b->value, bits);
}

static void dual_exp(struct dual *a, slong bits)
{
    arb_exp(a->value, a->value, bits);
    arb_mul(a->derivative, a->derivative, a->value, bits);
}

static void dual_log(struct dual *a, slong bits)
{
    arb_div(a->derivative, a->derivative, a->value, bits);
    arb_log(a->value, a->value, bits);
}

/* tanh' = 1 / cosh^2 */
static void dual_tanh(struct dual *a, slong bits)
{
    arb_t cosh;
    arb_init(cosh);
    arb_cosh(cosh, a->value, bits);
    arb_div(a->derivative, a->derivative, cosh, bits);
    arb_div(a->derivative, a->derivative, cosh, bits);
    arb_tanh(a->value, a->value, bits);
    arb_clear(cosh);
}

/* The input number that moves, named by the gradient that it has: element (b, row, h, x) of q, k or v, h counting
 * the tensor's own heads; all scores that share element `index` of dbias; the sink of head h. */
struct direction {
    enum ref_tensor tensor;
    int64_t b, row, h, x;
    int64_t index; /* in the oracle's array */
};

struct derivation {
    const struct attest_problem *p;
    const struct attest_backward_args *a;
    struct direction along;
    slong bits;
};

static bool moves(const struct derivation *d, enum ref_tensor tensor, int64_t b, int64_t row, int64_t h, int64_t x)
{
    const struct direction *t = &d->along;
    return t->tensor == tensor && t->b == b && t->row == row && t->h == h && t->x == x;
}

/* |i + diag - j|, which nothing moves: ALiBi takes slope times this off a score. */
static int64_t alibi_distance(const struct attest_problem *p, struct ball_rows q, struct ball_rows k, int64_t r,
                              int64_t c)
{
    const int64_t diag = p->alibi_diag_kind == ATTEST_DIAG_GIVEN      ? p->alibi_diag
                         : p->alibi_diag_kind == ATTEST_DIAG_TOP_LEFT ? 0
                                                                      : k.used - q.used;
    return llabs((p->q_start - p->k_start) + diag + (r - c));
}

/* x of one visible score, as section 1 defines it. */
static void score(const struct derivation *d, struct ball_rows q, struct ball_rows k, int64_t b, int64_t h, int64_t r,
                  int64_t c, struct dual *x)
{
    const struct attest_problem *p = d->p;
    const struct attest_forward_args *f = &d->a->forward;
    const int64_t h_kv = h / (p->num_heads_q / p->num_heads_kv);
    struct dual left, right;
    arb_t factor;
    dual_init(&left);
    dual_init(&right);
    arb_init(factor);
    dual_zero(x);
    for (int64_t i = 0; i < p->head_dim; ++i) {
        dual_set(&left, ball_element(p, &p->q, f->q, q, b, r, h, i), moves(d, REF_DQ, b, r, h, i));
        dual_set(&right, ball_element(p, &p->k, f->k, k, b, c, h_kv, i), moves(d, REF_DK, b, c, h_kv, i));
        dual_addmul(x, &left, &right, d->bits);
    }
    arb_set_d(factor, p->softmax_scale);
    dual_scale(x, factor, d->bits);
    if (p->softcap > 0) {
        arb_set_d(factor, p->softcap);
        arb_inv(factor, factor, d->bits);
        dual_scale(x, factor, d->bits);
        dual_tanh(x, d->bits);
        arb_set_d(factor, p->softcap);
        dual_scale(x, factor, d->bits);
    }
    if (p->bias.dtype != ATTEST_ABSENT) {
        const bool moved = d->along.tensor == REF_DBIAS && judge_dbias_index(p, b, h, r, c) == d->along.index;
        dual_set(&left, ball_score_element(&p->bias, f->bias, b, h, r, c), moved);
        dual_add(x, &left, d->bits);
    }
    if (p->has_alibi) {
        arb_set_d(factor, f->alibi_slopes[h]);
        arb_mul_si(factor, factor, -alibi_distance(p, q, k, r, c), d->bits);
        arb_add(x->value, x->value, factor, d->bits);
    }
    dual_clear(&left);
    dual_clear(&right);
    arb_clear(factor);
}

/* m dout . v of one visible key. */
static void weighted_value(const struct derivation *d, const struct ball_row *row, int64_t c, struct dual *sum)
{
    const struct attest_problem *p = d->p;
    const struct ball_rows q = ball_rows_q(p, &d->a->forward, row->b), k = ball_rows_k(p, &d->a->forward, row->b);
    const int64_t h_kv = row->h / (p->num_heads_q / p->num_heads_kv);
    struct dual dout, v;
    dual_init(&dout);
    dual_init(&v);
    dual_zero(sum);
    for (int64_t x = 0; x < p->head_dim_v; ++x) {
        dual_set(&dout, ball_element(p, &p->dout, d->a->dout, q, row->b, row->r, row->h, x), false);
        dual_set(&v, ball_element(p, &p->v, d->a->forward.v, k, row->b, c, h_kv, x),
                 moves(d, REF_DV, row->b, c, h_kv, x));
        dual_addmul(sum, &dout, &v, d->bits);
    }
    dual_scale(sum, row->m + c, d->bits);
    dual_clear(&dout);
    dual_clear(&v);
}

static double per_row(const struct derivation *d, const struct attest_tensor *t, const void *data,
                      const struct ball_row *row)
{
    const struct ball_rows q = ball_rows_q(d->p, &d->a->forward, row->b);
    return t->dtype == ATTEST_ABSENT ? 0 : ball_element(d->p, t, data, q, row->b, row->r, row->h, 0);
}

/* The sums over the keys of a row that both kinds of loss are made of, every exponent relative to `shift`:
 * total = sum_j exp(x_j - shift) + exp(sink - shift), weighted = sum_j exp(x_j - shift) m_j dout . v_j. */
static void row_sums(const struct derivation *d, const struct ball_row *row, const struct dual *shift,
                     struct dual *total, struct dual *weighted)
{
    const struct ball_rows q = ball_rows_q(d->p, &d->a->forward, row->b), k = ball_rows_k(d->p, &d->a->forward, row->b);
    struct dual e, value;
    dual_init(&e);
    dual_init(&value);
    dual_zero(total);
    dual_zero(weighted);
    for (slong c = 0; c < row->num_keys; ++c) {
        if (!row->visible[c]) continue;
        score(d, q, k, row->b, row->h, row->r, c, &e);
        dual_sub(&e, shift, d->bits);
        dual_exp(&e, d->bits);
        dual_add(total, &e, d->bits);
        weighted_value(d, row, c, &value);
        dual_addmul(weighted, &e, &value, d->bits);
    }
    if (d->p->has_sink) {
        dual_set(&e, d->a->forward.sink[row->h], d->along.tensor == REF_DSINK && d->along.h == row->h);
        dual_sub(&e, shift, d->bits);
        dual_exp(&e, d->bits);
        dual_add(total, &e, d->bits);
    }
    dual_clear(&e);
    dual_clear(&value);
}

/* Loss and lse of one row: lse = shift + ln total, dout . o = weighted / total. */
static void row_loss(const struct derivation *d, const struct ball_row *row, struct dual *loss, struct dual *lse)
{
    struct dual shift, total, weighted, inverse, factor;
    dual_init(&shift);
    dual_init(&total);
    dual_init(&weighted);
    dual_init(&inverse);
    dual_init(&factor);
    arb_get_mid_arb(shift.value, row->lse); /* any number near the exponents serves */
    row_sums(d, row, &shift, &total, &weighted);
    arb_set(lse->value, total.value);
    arb_set(lse->derivative, total.derivative);
    dual_log(lse, d->bits);
    arb_neg(inverse.value, lse->value); /* 1 / total = exp(-ln total) */
    arb_neg(inverse.derivative, lse->derivative);
    dual_exp(&inverse, d->bits);
    dual_add(lse, &shift, d->bits);
    dual_zero(loss);
    dual_addmul(loss, &weighted, &inverse, d->bits);
    dual_set(&factor, per_row(d, &d->p->dlse, d->a->dlse, row), false);
    dual_addmul(loss, lse, &factor, d->bits);
    dual_clear(&shift);
    dual_clear(&total);
    dual_clear(&weighted);
    dual_clear(&inverse);
    dual_clear(&factor);
}

/* The same where lse and delta are those of a larger key set. Let E be its lse and W its dout . o = weighted / exp(E)
 * summed over all parts. What this part moves: dE = sum_j p_j dx_j, and dW = d(this part's weighted at fixed
 * E) - W dE. With delta = W held fixed, the loss W + dlse E thus has the derivative of
 *     sum_j exp(x_j - E) m_j dout . v_j + (dlse - delta) (sum_j exp(x_j - E) + exp(sink - E)). */
static void row_loss_of_part(const struct derivation *d, const struct ball_row *row, struct dual *loss)
{
    struct dual shift, total, weighted, factor;
    dual_init(&shift);
    dual_init(&total);
    dual_init(&weighted);
    dual_init(&factor);
    dual_set(&shift, per_row(d, &d->p->lse, d->a->forward.lse, row), false);
    row_sums(d, row, &shift, &total, &weighted);
    arb_set_d(factor.value, per_row(d, &d->p->dlse, d->a->dlse, row));
    arb_t delta;
    arb_init(delta);
    arb_set_d(delta, per_row(d, &d->p->delta, d->a->delta, row));
    arb_sub(factor.value, factor.value, delta, d->bits);
    dual_zero(loss);
    dual_add(loss, &weighted, d->bits);
    dual_addmul(loss, &factor, &total, d->bits);
    arb_clear(delta);
    dual_clear(&shift);
    dual_clear(&total);
    dual_clear(&weighted);
    dual_clear(&factor);
}

/* Can this row feel the direction? Rows of other sequences and heads cannot; of them the derivative is zero. */
static bool feels(const struct derivation *d, int64_t b, int64_t h, int64_t r)
{
    const struct direction *t = &d->along;
    switch (t->tensor) {
    case REF_DQ: return b == t->b && h == t->h && r == t->row;
    case REF_DK:
    case REF_DV: return b == t->b && h / (d->p->num_heads_q / d->p->num_heads_kv) == t->h;
    case REF_DSINK: return h == t->h;
    default: return true;
    }
}

/* d loss / d direction into `derivative`; checks on the way that the value of lse is the oracle's. */
static bool differentiate(const struct derivation *d, const struct judge_oracle *oracle, arb_t derivative)
{
    const struct attest_problem *p = d->p;
    bool same_value = true;
    struct dual loss, lse;
    dual_init(&loss);
    dual_init(&lse);
    arb_zero(derivative);
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ball_rows q = ball_rows_q(p, &d->a->forward, b);
        for (int64_t i = 0; i < p->num_heads_q * q.used; ++i) {
            const int64_t h = i / q.used, r = i % q.used;
            if (!feels(d, b, h, r)) continue;
            struct ball_row row; /* who sees whom, and the dropout multipliers */
            ball_forward(p, &d->a->forward, b, h, r, d->bits, &row);
            if (!row.empty && p->external_lse) row_loss_of_part(d, &row, &loss);
            if (!row.empty && !p->external_lse) {
                const int64_t index = ((p->ragged ? q.first : b * p->seqlen_q) + r) * p->num_heads_q + h;
                row_loss(d, &row, &loss, &lse);
                const double value = oracle->value[REF_LSE][index], error = oracle->error[REF_LSE][index];
                if (!(ball_share(value, lse.value, error) <= 1)) same_value = false;
            }
            if (!row.empty) arb_add(derivative, derivative, loss.derivative, d->bits);
            ball_row_clear(&row);
        }
    }
    dual_clear(&loss);
    dual_clear(&lse);
    return same_value;
}

/* The direction whose gradient is element `index` of the oracle's array; false for rows of no sequence. */
static bool direction_of(const struct attest_problem *p, const struct attest_forward_args *f, enum ref_tensor tensor,
                         int64_t index, struct direction *t)
{
    const bool is_q = tensor == REF_DQ;
    const int64_t width = tensor == REF_DV ? p->head_dim_v : p->head_dim;
    const int64_t heads = is_q ? p->num_heads_q : p->num_heads_kv, row = index / width / heads;
    *t = (struct direction){.tensor = tensor, .index = index, .h = index};
    if (tensor == REF_DBIAS || tensor == REF_DSINK) return true;
    t->h = index / width % heads;
    t->x = index % width;
    for (t->b = 0; t->b < p->batch; ++t->b) {
        const struct ball_rows rows = is_q ? ball_rows_q(p, f, t->b) : ball_rows_k(p, f, t->b);
        t->row = row - (p->ragged ? rows.first : t->b * rows.rows);
        if (t->row >= 0 && t->row < rows.rows) return true;
    }
    return false;
}

struct tally {
    int64_t count, nonzero, wrong, wrong_value, accepted_mutants, too_wide;
    double share;
};

static void check_element(const struct judge_case *c, const struct judge_oracle *o, enum ref_tensor tensor,
                          int64_t index, struct tally *tally)
{
    struct derivation d = {.p = &c->problem, .a = &c->args, .bits = FIRST_BITS};
    if (!direction_of(d.p, &c->args.forward, tensor, index, &d.along)) return;
    const double got = o->value[tensor][index], error = o->error[tensor][index];
    arb_t derivative;
    arb_init(derivative);
    bool same_value = differentiate(&d, o, derivative);
    while (!ball_is_small(derivative, error) && d.bits < LAST_BITS) {
        d.bits *= 2;
        same_value = differentiate(&d, o, derivative);
    }
    const double share = ball_share(got, derivative, error);
    ++tally->count;
    tally->nonzero += !arb_contains_zero(derivative);
    tally->wrong += !(share <= 1);
    tally->wrong_value += !same_value;
    tally->too_wide += !ball_is_small(derivative, error);
    for (int sign = -1; sign <= 1; sign += 2)
        tally->accepted_mutants += ball_share(judge_mutant(got, error, sign), derivative, error) <= 1;
    if (!(share <= tally->share)) tally->share = share;
    arb_clear(derivative);
}

enum { CASES = 600, ELEMENTS = 6 };

ParameterizedTestParameters(derivative, gradients_are_within_the_stated_error)
{
    static int families[JUDGE_NUM_FAMILIES];
    for (int i = 0; i < JUDGE_NUM_FAMILIES; ++i) families[i] = i;
    return cr_make_param_array(int, families, JUDGE_NUM_FAMILIES);
}

ParameterizedTest(int *family, derivative, gradients_are_within_the_stated_error)
{
    const char *const name = judge_family_names[*family];
    struct tally tally[REF_NUM_TENSORS] = {{0}};
    for (uint64_t seed = 0; seed < CASES; ++seed) {
        struct judge_case c;
        struct judge_oracle oracle;
        struct judge_random g = {seed};
        judge_random_case(&c, &oracle, *family, JUDGE_SMALL, seed);
        for (int t = REF_DQ; t < REF_NUM_TENSORS; ++t) {
            const int64_t size = judge_tensor_size(&c.problem, t);
            for (int i = 0; i < ELEMENTS && size > 0; ++i)
                check_element(&c, &oracle, t, judge_range(&g, 0, size - 1), &tally[t]);
        }
        judge_oracle_clear(&oracle);
        judge_case_clear(&c);
    }
    printf("%-10s", name);
    for (int t = REF_DQ; t < REF_NUM_TENSORS; ++t)
        printf("  %s %.2g of %lld", ref_tensor_names[t], tally[t].share, (long long)tally[t].nonzero);
    printf("\n");
    fflush(stdout);
    for (int t = REF_DQ; t < REF_NUM_TENSORS; ++t) {
        cr_expect_gt(tally[t].nonzero, 0, "%s %s: only zeros", name, ref_tensor_names[t]);
        cr_expect_eq(tally[t].wrong, 0, "%s %s: %lld wrong of %lld", name, ref_tensor_names[t],
                     (long long)tally[t].wrong, (long long)tally[t].count);
        cr_expect_eq(tally[t].wrong_value, 0, "%s %s: another lse", name, ref_tensor_names[t]);
        cr_expect_eq(tally[t].too_wide, 0, "%s %s: balls stay too wide", name, ref_tensor_names[t]);
        cr_expect_eq(tally[t].accepted_mutants, 0, "%s %s: mutants pass", name, ref_tensor_names[t]);
    }
}

/* States of disjoint key sets, one row, and what their merge is differentiated against. */
enum { MAX_STATES = 5, MAX_DIM = 6 };
struct merge_case {
    int64_t num_states, head_dim_v;
    double o[MAX_STATES][MAX_DIM], lse[MAX_STATES], dout[MAX_DIM], dlse;
};

static void draw_merge(struct judge_random *g, struct merge_case *m)
{
    static const double spreads[] = {0, 1, 30, 400, 1e5};
    m->num_states = judge_range(g, 1, MAX_STATES);
    m->head_dim_v = judge_range(g, 1, MAX_DIM);
    const double spread = spreads[judge_range(g, 0, 4)], level = spreads[judge_range(g, 0, 4)] * judge_normal(g);
    for (int64_t a = 0; a < m->num_states; ++a) {
        m->lse[a] = judge_range(g, 0, 4) == 0 ? -INFINITY : level + spread * judge_normal(g);
        for (int64_t x = 0; x < m->head_dim_v; ++x) m->o[a][x] = m->lse[a] == -INFINITY ? NAN : judge_normal(g);
    }
    for (int64_t x = 0; x < m->head_dim_v; ++x) m->dout[x] = judge_normal(g);
    m->dlse = judge_range(g, 0, 1) ? judge_normal(g) : 0;
}

/* Section 4: lse, o (where not NULL) and the loss dout . o + dlse lse, along feature x of o_a or, x = -1, lse_a. */
static void merge_loss(const struct merge_case *m, int64_t along_a, int64_t along_x, struct dual *lse, struct dual *o,
                       struct dual *loss)
{
    const slong bits = 512;
    struct dual shift, e, v;
    dual_init(&shift);
    dual_init(&e);
    dual_init(&v);
    double largest = -INFINITY;
    for (int64_t a = 0; a < m->num_states; ++a) largest = fmax(largest, m->lse[a]);
    dual_set(&shift, largest, false);
    dual_zero(lse);
    for (int64_t a = 0; a < m->num_states; ++a) {
        if (m->lse[a] == -INFINITY) continue;
        dual_set(&e, m->lse[a], a == along_a && along_x < 0);
        dual_sub(&e, &shift, bits);
        dual_exp(&e, bits);
        dual_add(lse, &e, bits);
    }
    dual_log(lse, bits);
    dual_add(lse, &shift, bits);
    dual_zero(loss);
    for (int64_t x = 0; x < m->head_dim_v; ++x) {
        dual_zero(&o[x]);
        for (int64_t a = 0; a < m->num_states; ++a) {
            if (m->lse[a] == -INFINITY) continue;
            dual_set(&e, m->lse[a], a == along_a && along_x < 0);
            dual_sub(&e, lse, bits);
            dual_exp(&e, bits);
            dual_set(&v, m->o[a][x], a == along_a && along_x == x);
            dual_addmul(&o[x], &e, &v, bits);
        }
        dual_set(&v, m->dout[x], false);
        dual_addmul(loss, &o[x], &v, bits);
    }
    dual_set(&v, m->dlse, false);
    dual_addmul(loss, lse, &v, bits);
    dual_clear(&shift);
    dual_clear(&e);
    dual_clear(&v);
}

/* How far ref_merge and ref_merge_backward may be off, n states, d features, u = 2^-53, log and exp of libm within
 * 2 u. A term exp(lse_a - max) of lse is off by the factor exp(747 u): the rounding of the difference, at most 745
 * where the term is not lost to underflow, and the exponential. n - 1 additions, the logarithm, which is at most
 * ln n, and the last addition make it
 *     l = expm1((747 + n) u) + 2 u ln n + u |lse|.
 * A weight exp(lse_a - lse) is off by the factor exp(l + 747 u) for the same reasons; a term of o besides by its
 * product and n - 1 additions. Every term of dlse_a = w_a (dlse + sum_x dout_x (o_a,x - sum_b w_b o_b,x)) holds at
 * most two weights and passes through at most n + d + 6 roundings. What underflow takes is at most 2^-1073 a
 * factor, far below n 2^-940 in all: the numbers drawn are below 2^100. */
struct merge_allowance {
    double lse, weight, underflow;
    double sum_o[MAX_DIM]; /* sum_b w_b |o_b| */
};

static struct merge_allowance allow(const struct merge_case *m, double lse)
{
    const double n = (double)m->num_states, u = 0x1p-53;
    struct merge_allowance w = {.underflow = n * 0x1p-940};
    w.lse = expm1((747 + n) * u) + 2 * u * log(n) + u * fabs(lse);
    w.weight = (w.lse + 747 * u) * (1 + 0x1p-20); /* the last factor for the roundings of these bounds */
    for (int64_t x = 0; x < m->head_dim_v; ++x)
        for (int64_t a = 0; a < m->num_states; ++a)
            if (m->lse[a] != -INFINITY) w.sum_o[x] += exp(m->lse[a] - lse) * fabs(m->o[a][x]);
    return w;
}

static double allow_dlse(const struct merge_case *m, const struct merge_allowance *w, double lse, int64_t a)
{
    double terms = fabs(m->dlse);
    for (int64_t x = 0; x < m->head_dim_v; ++x) terms += fabs(m->dout[x]) * (fabs(m->o[a][x]) + w->sum_o[x]);
    const double roundings = (double)(m->num_states + m->head_dim_v + 6) * 0x1p-53;
    return expm1(2 * w->weight + roundings) * exp(m->lse[a] - lse) * terms + w->underflow * (1 + terms);
}

static void note(double share, double *largest)
{
    cr_expect(share <= 1, "%g of what is allowed", share);
    if (!(share <= *largest)) *largest = share;
}

/* Runs the oracle on one merge and judges all that it returns. shares: lse, o, dout of a state, dlse of a state. */
static void check_merge(const struct merge_case *m, double shares[4])
{
    const double *o_states[MAX_STATES], *lse_states[MAX_STATES];
    double o[MAX_DIM], lse, do_out[MAX_STATES][MAX_DIM], dlse_out[MAX_STATES];
    double *do_states[MAX_STATES], *dlse_states[MAX_STATES];
    struct dual exact_lse, exact_o[MAX_DIM], loss;
    dual_init(&exact_lse);
    dual_init(&loss);
    for (int x = 0; x < MAX_DIM; ++x) dual_init(&exact_o[x]);
    for (int a = 0; a < MAX_STATES; ++a) {
        o_states[a] = m->o[a], lse_states[a] = &m->lse[a];
        do_states[a] = do_out[a], dlse_states[a] = &dlse_out[a];
    }
    ref_merge(m->num_states, 1, m->head_dim_v, o_states, lse_states, o, &lse);
    ref_merge_backward(m->num_states, 1, m->head_dim_v, o_states, lse_states, o, &lse, m->dout, &m->dlse, do_states,
                       dlse_states);
    const struct merge_allowance w = allow(m, lse);
    for (int64_t a = 0; a < m->num_states; ++a) {
        for (int64_t x = -1; x < m->head_dim_v; ++x) {
            const double got = x < 0 ? dlse_out[a] : do_out[a][x];
            if (m->lse[a] == -INFINITY) {
                cr_expect_eq(got, 0, "an empty state gets no gradient");
                continue;
            }
            merge_loss(m, a, x, &exact_lse, exact_o, &loss);
            const double dout = x < 0 ? 0 : fabs(m->dout[x]);
            const double allowed = x < 0 ? allow_dlse(m, &w, lse, a)
                                         : expm1(w.weight + 0x1p-53) * exp(m->lse[a] - lse) * dout + w.underflow;
            note(ball_share(got, loss.derivative, allowed), &shares[x < 0 ? 3 : 2]);
            note(ball_share(lse, exact_lse.value, w.lse), &shares[0]);
            for (int64_t f = 0; f < m->head_dim_v; ++f) {
                const double error = expm1(w.weight + (double)m->num_states * 0x1p-53) * w.sum_o[f] + w.underflow;
                note(ball_share(o[f], exact_o[f].value, error), &shares[1]);
            }
        }
    }
    dual_clear(&exact_lse);
    dual_clear(&loss);
    for (int x = 0; x < MAX_DIM; ++x) dual_clear(&exact_o[x]);
}

Test(derivative, merge_and_its_backward_are_the_definition_and_its_derivative)
{
    struct judge_random g = {7};
    double shares[4] = {0};
    for (int i = 0; i < 4000; ++i) {
        struct merge_case m;
        draw_merge(&g, &m);
        check_merge(&m, shares);
    }
    printf("merge       lse %.2g  o %.2g  do_a %.2g  dlse_a %.2g\n", shares[0], shares[1], shares[2], shares[3]);
}

/* judge.c - verdicts: what an implementation returned beside the oracle and the bounds.
 * The thresholds of the statistical verdict are derived in reference/bounds.md section 9. */
#include <math.h>
#include <stdbool.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/machine.h"

const char *ref_verdict_name(enum ref_verdict v)
{
    static const char *const names[] = {"PASS", "FAIL", "OVERFLOW", "VACUOUS"};
    return names[v];
}

/* Sums over the elements of one tensor. */
struct tally {
    int64_t compared; /* finite in the oracle and in the answer, inside the domain */
    double error, error_squares, want_squares, all_want_squares, bound_squares;
    int64_t bounded;                                   /* elements of bound_squares and all_want_squares */
    double bias, bias_squares;                         /* |bias| and its square */
    double rounding;                                   /* what rounding the oracle itself to the format costs, signed */
    double variance, row_squares, row_max, row_sigmas; /* of rows: sum mu, sum mu^2, max mu, sum (sum sigma)^2 */
    double mu, sigma;                                  /* of the current row */
};

static void end_row(struct tally *t)
{
    t->variance += t->mu;
    t->row_squares += t->mu * t->mu;
    t->row_max = fmax(t->row_max, t->mu);
    t->row_sigmas += t->sigma * t->sigma;
    t->mu = t->sigma = 0.0;
}

/* One element: where it is, what it should be and is. */
struct element {
    int64_t index[4];
    double got, want, bound, sigma, bias;
};

/* Share of the bound that the element uses; above 1, or NaN, where it must not pass. */
static double use_of(const struct ref_format *format, const struct element *e)
{
    if (isnan(e->want)) return isnan(e->got) ? 0.0 : INFINITY;
    if (isnan(e->got) || isnan(e->bound)) return NAN;
    if (e->got == e->want) return 0.0;
    if (isinf(e->want)) return INFINITY;
    if (e->got == INFINITY && e->want + e->bound >= format->overflow) return 0.0;
    if (e->got == -INFINITY && e->want - e->bound <= -format->overflow) return 0.0;
    return fabs(e->got - e->want) / e->bound; /* a bound of zero gives infinity */
}

static void note_use(struct ref_report *r, const struct element *e, double use)
{
    if (isnan(r->use) || use <= r->use) return;
    r->use = use;
    for (int i = 0; i < 4; ++i) r->use_index[i] = e->index[i];
    r->use_got = e->got;
    r->use_want = e->want;
    r->use_bound = e->bound;
}

static void judge_element(int32_t dtype, const struct element *e, struct ref_report *r, struct tally *t)
{
    const struct ref_format *format = ref_format(dtype);
    ++r->count;
    r->nan_count += isnan(e->got) && !isnan(e->want);
    const bool outside = e->bound == INFINITY;
    if (outside)
        ++r->overflow_count;
    else
        note_use(r, e, use_of(format, e));
    if (!isfinite(e->want)) return;
    if (!outside) {
        t->all_want_squares += e->want * e->want;
        t->bound_squares += e->bound * e->bound;
        ++t->bounded;
    }
    const double error = e->got - e->want;
    if (!isnan(error)) r->max_error = fmax(r->max_error, fabs(error));
    if (!isfinite(e->got) || outside) return;
    ++t->compared;
    t->error += error;
    t->error_squares += error * error;
    t->want_squares += e->want * e->want;
    if (e->sigma > 0.0 && fabs(e->want) < format->overflow) t->rounding += ref_round(dtype, e->want) - e->want;
    t->bias += fabs(e->bias);
    t->bias_squares += e->bias * e->bias;
    t->mu += e->sigma * e->sigma;
    t->sigma += e->sigma;
}

static double ratio(double value, double threshold) { return value == 0.0 ? 0.0 : value / threshold; }

static void judge_statistics(const struct tally *t, struct ref_report *r)
{
    const double n = (double)t->compared, l = -log(REF_FALSE_ALARM);
    if (t->compared == 0) return;
    const double squares = t->variance + 2 * sqrt(l * t->row_squares) + 2 * l * t->row_max;
    r->rms_ratio = ratio(r->rmse, sqrt(t->bias_squares / n) + sqrt(squares / n));
    r->mean_ratio =
        ratio(fabs(r->mean_error), fabs(t->rounding) / n + t->bias / n + sqrt(2 * (l + log(2.0)) * t->row_sigmas) / n);
}

static void conclude(const struct tally *t, int statistical, struct ref_report *r)
{
    const double n = t->compared > 0 ? (double)t->compared : 1.0, all = t->bounded > 0 ? (double)t->bounded : 1.0;
    r->rmse = sqrt(t->error_squares / n);
    r->mean_error = t->error / n;
    r->relative_error = ratio(sqrt(t->error_squares), sqrt(t->want_squares));
    r->rms_bound = sqrt(t->bound_squares / all);
    r->rms_oracle = sqrt(t->all_want_squares / all);
    if (statistical) judge_statistics(t, r);
    if (!(r->use <= 1) || !(r->rms_ratio <= 1) || !(r->mean_ratio <= 1))
        r->verdict = REF_FAIL;
    else if (r->overflow_count > 0)
        r->verdict = REF_OVERFLOW;
    else if (r->rms_bound > r->rms_oracle)
        r->verdict = REF_VACUOUS;
    else
        r->verdict = REF_PASS;
}

/* A tensor as the judge walks it. */
struct subject {
    const void *got;
    int32_t dtype;
    const double *oracle;
    const struct ref_bound *bound;
    struct ref_report *report;
    struct tally tally;
};

static void judge_at(struct subject *s, int64_t canonical, int64_t offset, const int64_t index[4])
{
    const struct ref_bound *b = s->bound;
    struct element e = {.index = {index[0], index[1], index[2], index[3]},
                        .got = ref_load(s->dtype, s->got, offset),
                        .want = s->oracle[canonical],
                        .bound = b->bound[canonical],
                        .sigma = b->sigma ? b->sigma[canonical] : 0.0,
                        .bias = b->bias ? b->bias[canonical] : 0.0};
    judge_element(s->dtype, &e, s->report, &s->tally);
}

static void judge_rows(const struct attest_problem *p, const struct attest_forward_args *a,
                       const struct attest_tensor *t, bool is_k, int64_t heads, int64_t features,
                       struct subject *subject)
{
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, a, b);
        const int64_t first = is_k ? s.first_k : s.first_q, rows = is_k ? s.rows_k : s.rows_q;
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t from = ((first + r) * heads + h) * features;
                const int64_t offset = ref_row_offset(p, t, &s, is_k, b, r, h);
                for (int64_t x = 0; x < features; ++x)
                    judge_at(subject, from + x, offset + x, (const int64_t[]){b, r, h, x});
                end_row(&subject->tally);
            }
    }
}

static void judge_dbias(const struct attest_problem *p, struct subject *subject)
{
    const struct attest_score_tensor *t = &p->dbias;
    const int64_t batch = t->batch ? p->batch : 1, heads = t->head ? p->num_heads_q : 1;
    const int64_t rows = t->seqlen_q ? p->seqlen_q : 1, columns = t->seqlen_k ? p->seqlen_k : 1;
    int64_t canonical = 0;
    for (int64_t b = 0; b < batch; ++b)
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t r = 0; r < rows; ++r) {
                for (int64_t c = 0; c < columns; ++c)
                    judge_at(subject, canonical++, ref_score_offset(t, b, h, r, c), (const int64_t[]){b, r, h, c});
                end_row(&subject->tally);
            }
}

static void judge_dsink(const struct attest_problem *p, struct subject *subject)
{
    for (int64_t h = 0; h < p->num_heads_q; ++h) {
        judge_at(subject, h, h, (const int64_t[]){0, 0, h, 0});
        end_row(&subject->tally);
    }
}

void ref_judge(const struct attest_problem *p, const struct attest_forward_args *a, enum ref_tensor tensor,
               const void *got, const double *oracle, const struct ref_bound *bound, int statistical,
               struct ref_report *report)
{
    const struct attest_tensor *const row_tensors[] = {&p->o, &p->lse, &p->dq, &p->dk, &p->dv};
    const int32_t dtype = tensor == REF_DBIAS   ? p->dbias.dtype
                          : tensor == REF_DSINK ? ATTEST_FP32
                                                : row_tensors[tensor]->dtype;
    *report = (struct ref_report){.use = 0.0};
    struct subject s = {got, dtype, oracle, bound, report, {0}};
    switch (tensor) {
    case REF_O: judge_rows(p, a, &p->o, false, p->num_heads_q, p->head_dim_v, &s); break;
    case REF_LSE: judge_rows(p, a, &p->lse, false, p->num_heads_q, 1, &s); break;
    case REF_DQ: judge_rows(p, a, &p->dq, false, p->num_heads_q, p->head_dim, &s); break;
    case REF_DK: judge_rows(p, a, &p->dk, true, p->num_heads_kv, p->head_dim, &s); break;
    case REF_DV: judge_rows(p, a, &p->dv, true, p->num_heads_kv, p->head_dim_v, &s); break;
    case REF_DBIAS: judge_dbias(p, &s); break;
    default: judge_dsink(p, &s);
    }
    conclude(&s.tally, statistical, report);
}

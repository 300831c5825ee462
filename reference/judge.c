/* judge.c - verdicts: what an implementation returned beside the oracle and the bounds.
 * The thresholds of the statistical verdict are derived in reference/bounds.md section 9.12. */
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/judge_directions.h"
#include "reference/judge_drift.h"
#include "reference/repeats.h"

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
    double bias, shift, row_sigmas;  /* sums of |bias|, of the shift, and over rows of (sum sigma)^2 */
    double rounding, shifted;        /* signed: what rounding the oracle to the format costs, and the oracle shifted */
    double tied[JUDGE_TIES];         /* half units that near ties, beyond those that fall there by chance */
    double alike[REF_WAYS];          /* signed: what roundings that are alike add, by the ways of doing it, */
    double phases[REF_WAYS];         /* signed: the last rounding of what weights that round alike make of each */
    double alike_squares[REF_WAYS];  /* and their squares, in units of what is expected beside drift */
    double squares; /* of errors, in units of what is expected of each element */
    /* In units of what is expected of each element beside drift: squares of errors less that, and of biases; of rows
     * the sum of mu, of squares of Frobenius norms, the largest operator norm; by how much the oracle's own roundings
     * exceed independent ones. */
    double left, bias_squares, variance, frobenius, most, excess;
    struct judge_drift drift; /* of the current row */
    double mu, own, own_squares, own_most, sigma; /* of the current row: mu, its part that each element has alone */
    struct judge_direction directions[REF_ONE_TILE]; /* of the tensor, head or tile in hand */
    double number;                                         /* of directions in all */
    double share;                                          /* of the error that the one in the report explains */
};

/* A row's covariance: nothing is known of it but what each element's own rounding adds to its diagonal. Of rows that
 * are equal all entries are this one; repeats: how many there are, in all and in the row's head. */
static void end_row(struct tally *t, double along, const double repeats[2], const double *phases)
{
    const double together = t->mu - t->own, norm = together + sqrt(t->own_squares);
    t->left += judge_drift_left(&t->drift);
    t->drift = (struct judge_drift){0};
    t->variance += t->mu;
    t->frobenius += repeats[0] * norm * norm;
    t->most = fmax(t->most, repeats[0] * (together + t->own_most));
    t->row_sigmas += repeats[0] * t->sigma * t->sigma;
    t->mu = t->own = t->own_squares = t->own_most = t->sigma = 0.0;
    for (int d = 0; d < REF_ONE_TILE; ++d) {
        const bool is_result = d == REF_SCALED || d == REF_SCALED_HEAD || d == REF_SCALED_TILE;
        const bool is_part = d == REF_SCALED_HEAD || d == REF_SCALED_TILE;
        judge_direction_end_row(&t->directions[d], is_result ? along : INFINITY, repeats[is_part],
                                is_part ? phases : NULL);
    }
}

/* Of tensors whose rows are not compared. */
static const double once[2] = {1.0, 1.0};

/* One element: where it is, what it should be and is. */
struct element {
    int64_t index[4], canonical;
    const struct ref_bound *of;
    double got, want, bound, sigma, bias, shift, beside, optional, drift[2];
    const double *phases; /* of its row, or NULL */
    double near[3]; /* what the next row, the row before and the next head have here; itself where there is none */
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

/* Variance of the mean loss of sums that are cut off, over a significand of which the logarithm is uniform, in units of
 * its square: (3 / (8 ln 2)) / (1 / (2 ln 2))^2 - 1. */
#define LOSS_VARIANCE 0.03972077083991796

/* For the root mean square. */
static void weigh_beside_drift(const struct element *e, const struct judge_error *off, struct tally *t)
{
    const double drifts = fmax(0.0, off->bias - e->beside);
    const double variance = off->sigma * off->sigma + LOSS_VARIANCE * drifts * drifts;
    const double bias = e->beside + fabs(off->shift), expected = variance + bias * bias, own = off->own / expected;
    if (!(expected > 0.0)) return;
    judge_drift_add(&t->drift, 1 / expected, off->error, e->drift, e->optional);
    t->bias_squares += bias * bias / expected;
    t->mu += variance / expected;
    t->own += own;
    t->own_squares += own * own;
    t->own_most = fmax(t->own_most, own);
    t->excess += off->rounding * off->rounding / expected - own;
    for (int n = 0; off->has_alike && n < REF_WAYS; ++n)
        t->alike_squares[n] += off->alike[n] * off->alike[n] / expected;
}

/* In units of the square of what is expected of it. */
static void weigh_element(int32_t dtype, const struct element *e, struct tally *t)
{
    const struct judge_error off = judge_error_of(dtype, e->got, e->want, e->of, e->canonical, e->phases);
    const double half = ref_half_ulp(dtype, e->want);
    if (!(off.expected > 0.0)) return; /* exact: the bound has it */
    t->squares += off.error * off.error / off.expected;
    weigh_beside_drift(e, &off, t);
    t->rounding += off.rounding;
    t->shifted += off.shifted;
    for (int n = 0; n < JUDGE_TIES; ++n) t->tied[n] += off.tied[n];
    for (int n = 0; off.has_alike && n < REF_WAYS; ++n) t->alike[n] += off.alike[n];
    for (int n = 0; off.has_phases && n < REF_WAYS; ++n) t->phases[n] += off.phases[n];
    struct judge_direction *const d = t->directions;
    judge_direction_add(&d[REF_SCALED], &off, e->want);
    judge_direction_add(&d[REF_SCALED_HEAD], &off, e->want);
    judge_direction_add(&d[REF_SCALED_TILE], &off, e->want);
    for (int n = 0; n < 3; ++n) judge_direction_add(&d[REF_NEXT_ROW + n], &off, e->near[n] - e->want);
    if (dtype != ATTEST_FP32) judge_direction_add(&d[REF_TRUNCATED], &off, e->want > 0 ? -half : half);
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
    t->bias += fabs(e->bias);
    t->shift += e->shift;
    t->sigma += e->sigma;
    weigh_element(dtype, e, t);
}

static double ratio(double value, double threshold) { return value == 0.0 ? 0.0 : value / threshold; }

static void judge_statistics(const struct tally *t, struct ref_report *r)
{
    const double n = (double)t->compared, l = -log(JUDGE_FALSE_ALARM);
    if (t->compared == 0) return;
    const double alike = sqrt(judge_most_alike(t->alike_squares)), of_squares = alike > 0.0 ? l + log(2.0) : l;
    const double most = alike + sqrt(2 * of_squares * t->most);
    const double squares = t->variance + fmax(0.0, t->excess) + 2 * sqrt(of_squares * t->frobenius) + most * most;
    r->rms_ratio = ratio(sqrt(t->left), sqrt(t->bias_squares) + sqrt(squares));
    r->direction_share = ratio(t->share, t->squares);
    const double rounding = judge_most_rounded(t->rounding, t->shifted, t->phases) + judge_most_tied(t->tied) +
                            judge_most_alike(t->alike);
    const double systematic = rounding + judge_shift_toward(t->error, t->shift) + t->bias;
    r->mean_ratio = ratio(fabs(r->mean_error), (systematic + sqrt(2 * (l + log(2.0)) * t->row_sigmas)) / n);
}

/* A direction that ends here; place: where its head or tile begins. Of equals the last counts, which has
 * most elements. */
static void end_direction(struct tally *t, enum ref_direction which, const int64_t place[3], struct ref_report *r)
{
    const struct judge_direction d = t->directions[which];
    const double ratio = judge_direction_ratio(&d, JUDGE_FALSE_ALARM / t->number);
    const double share = d.norm > 0.0 ? d.projection * d.projection / d.norm : 0.0;
    t->directions[which] = (struct judge_direction){0};
    const bool explains =
        ratio > 1 ? !(r->direction_ratio > 1) || share > t->share * (1 - 1e-6) : ratio > r->direction_ratio;
    if (!(ratio <= r->direction_ratio)) r->direction_ratio = ratio;
    if (!explains) return;
    t->share = share;
    r->direction = which;
    r->direction_size = d.projection / d.norm;
    for (int i = 0; i < 3; ++i) r->direction_index[i] = place[i];
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
    else r->direction_ratio = 0.0;
    if (!(r->use <= 1) || !(r->rms_ratio <= 1) || !(r->mean_ratio <= 1) || !(r->direction_ratio <= 1))
        r->verdict = REF_FAIL;
    else if (r->overflow_count > 0)
        r->verdict = REF_OVERFLOW;
    else if (r->rms_bound > r->rms_oracle)
        r->verdict = REF_VACUOUS;
    else
        r->verdict = REF_PASS;
}

/* A tensor as the judge walks it. next, last: of this row and head, where the next ones are, 0 where there are none. */
struct subject {
    int64_t near[3];
    const double *phases; /* of the row, or NULL */
    bool is_statistical;
    double *repeats[2];   /* of every row, in all and in its head: see repeats.h; NULL: not asked for, or no memory */
    enum ref_tensor tensor;
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
                        .canonical = canonical,
                        .of = b,
                        .got = ref_load(s->dtype, s->got, offset),
                        .want = s->oracle[canonical],
                        .bound = b->bound[canonical],
                        .sigma = b->sigma ? b->sigma[canonical] : 0.0,
                        .bias = b->bias ? b->bias[canonical] : 0.0,
                        .phases = s->phases,
                        .shift = b->shift ? b->shift[canonical] : 0.0};
    e.beside = b->beside ? b->beside[canonical] : fabs(e.bias);
    e.optional = b->beside ? b->optional[canonical] : 0.0;
    for (int d = 0; d < 2; ++d) e.drift[d] = b->beside ? b->drift[d][canonical] : 0.0;
    for (int n = 0; n < 3; ++n) e.near[n] = s->oracle[canonical + s->near[n]];
    judge_element(s->dtype, &e, s->report, &s->tally);
}

enum { TILE_ROWS = 64 };

static void judge_head(const struct attest_problem *p, const struct attest_forward_args *a,
                       const struct attest_tensor *t, bool is_k, int64_t heads, int64_t features, int64_t b, int64_t h,
                       struct subject *subject)
{
    const struct ref_sequence s = ref_sequence(p, a, b);
    const int64_t first = is_k ? s.first_k : s.first_q, rows = is_k ? s.rows_k : s.rows_q;
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t from = ((first + r) * heads + h) * features, row = heads * features;
        const int64_t offset = ref_row_offset(p, t, &s, is_k, b, r, h);
        const double *const along = subject->bound->along, *const phases = subject->bound->phases;
        const int64_t near[3] = {r + 1 < rows ? row : 0, r > 0 ? -row : 0, h + 1 < heads ? features : 0};
        for (int n = 0; n < 3; ++n) subject->near[n] = near[n];
        subject->phases = phases ? phases + ((first + r) * heads + h) * REF_WAYS : NULL;
        for (int64_t x = 0; x < features; ++x)
            judge_at(subject, from + x, offset + x, (const int64_t[]){b, r, h, x});
        double repeats[2];
        for (int n = 0; n < 2; ++n)
            repeats[n] = subject->repeats[n] ? subject->repeats[n][(first + r) * heads + h] : 1.0;
        end_row(&subject->tally, along ? along[(first + r) * heads + h] : INFINITY, repeats, subject->phases);
        if ((r + 1) % TILE_ROWS == 0 || r + 1 == rows)
            end_direction(&subject->tally, REF_SCALED_TILE, (const int64_t[]){b, r / TILE_ROWS * TILE_ROWS, h},
                          subject->report);
    }
    end_direction(&subject->tally, REF_SCALED_HEAD, (const int64_t[]){b, 0, h}, subject->report);
}

static void find_repeats(const struct attest_problem *p, const struct attest_forward_args *a, bool is_k, int64_t heads,
                         struct subject *subject)
{
    const int64_t count = (is_k ? ref_rows_k(p) : ref_rows_q(p)) * heads;
    const double *const want = subject->oracle, *const sigma = subject->bound->sigma;
    double *const head = calloc((size_t)count + 1, sizeof *head);
    for (int64_t b = 0; head && b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, a, b);
        const int64_t first = is_k ? s.first_k : s.first_q, rows = is_k ? s.rows_k : s.rows_q;
        for (int64_t n = 0; n < rows * heads; ++n) head[first * heads + n] = (double)(b * heads + n % heads);
    }
    subject->repeats[0] = ref_repeats_of_rows(p, a, subject->tensor, want, sigma, NULL);
    if (head) subject->repeats[1] = ref_repeats_of_rows(p, a, subject->tensor, want, sigma, head);
    free(head);
}

static void judge_rows(const struct attest_problem *p, const struct attest_forward_args *a,
                       const struct attest_tensor *t, bool is_k, int64_t heads, int64_t features,
                       struct subject *subject)
{
    int64_t most = 0;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, a, b);
        most += heads * (1 + ((is_k ? s.rows_k : s.rows_q) + TILE_ROWS - 1) / TILE_ROWS);
    }
    subject->tally.number = REF_SCALED_HEAD + (double)most;
    if (subject->is_statistical) find_repeats(p, a, is_k, heads, subject);
    for (int64_t b = 0; b < p->batch; ++b)
        for (int64_t h = 0; h < heads; ++h) judge_head(p, a, t, is_k, heads, features, b, h, subject);
    for (int d = 0; d < REF_SCALED_HEAD; ++d)
        end_direction(&subject->tally, (enum ref_direction)d, (const int64_t[]){0, 0, 0}, subject->report);
    for (int n = 0; n < 2; ++n) free(subject->repeats[n]);
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
                end_row(&subject->tally, INFINITY, once, NULL);
            }
}

static void judge_dsink(const struct attest_problem *p, struct subject *subject)
{
    for (int64_t h = 0; h < p->num_heads_q; ++h) {
        judge_at(subject, h, h, (const int64_t[]){0, 0, h, 0});
        end_row(&subject->tally, INFINITY, once, NULL);
    }
}

/* How many products the element of the largest share sums up. */
static int64_t count_terms(const struct attest_problem *p, const struct attest_forward_args *a, enum ref_tensor tensor,
                           const int64_t index[4])
{
    const struct ref_sequence s = ref_sequence(p, a, index[0]);
    const int64_t group = p->num_heads_q / p->num_heads_kv;
    int64_t terms = 0;
    if (tensor < REF_DK)
        for (int64_t c = 0; c < s.seqlen_k; ++c) terms += ref_visible(p, a, &s, index[0], index[2], index[1], c);
    else
        for (int64_t r = 0; r < s.seqlen_q * group; ++r)
            terms += ref_visible(p, a, &s, index[0], index[2] * group + r % group, r / group, index[1]);
    return terms;
}

/* 1 / sum p^2 of a row; NaN where there is no memory. */
static double count_heavy_keys(const struct attest_problem *p, const struct attest_forward_args *a,
                               const int64_t index[4])
{
    const struct ref_sequence s = ref_sequence(p, a, index[0]);
    double *const x = malloc((size_t)(s.seqlen_k + 1) * sizeof *x);
    struct ref_row row = {.x = x};
    double sum = 0.0, squares = 0.0;
    if (!x) return NAN;
    ref_score_row(p, a, &s, index[0], index[2], index[1], &row);
    for (int64_t c = 0; c < s.seqlen_k; ++c) {
        const double e = exp(x[c] - row.max);
        sum += e;
        squares += e * e;
    }
    free(x);
    return squares > 0.0 ? sum * sum / squares : 0.0;
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
    struct subject s = {
        .tensor = tensor, .is_statistical = statistical && bound->sigma,
        .got = got, .dtype = dtype, .oracle = oracle, .bound = bound, .report = report, .tally = {.number = 1}};
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
    if (tensor > REF_DV || report->count == 0) return;
    report->use_terms = count_terms(p, a, tensor, report->use_index);
    if (tensor < REF_DK) report->use_keys = count_heavy_keys(p, a, report->use_index);
}

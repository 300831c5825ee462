/* bounds_gradients.c - errors in the backward pass, score by score: reference/bounds.md section 6. */
#include "reference/bounds_gradients.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/bounds_order.h"
#include "reference/formats.h"

#define LARGE_EXPONENT_ERROR 8.0

static const struct attest_problem *problem_of(const struct bound_gradient_head *g) { return g->head.problem; }

/* A value of lse, delta or dlse in memory; NaN where it is not given. */
static double given(const struct bound_gradient_head *g, const struct attest_tensor *t, const void *data, int64_t r)
{
    const struct bound_head *h = &g->head;
    if (t->dtype == ATTEST_ABSENT || !data) return NAN;
    return ref_load(t->dtype, data, ref_row_offset(problem_of(g), t, &h->sequence, false, h->b, r, h->h));
}

bool bound_has_delta(const struct bound_gradient_head *g)
{
    return problem_of(g)->delta.dtype != ATTEST_ABSENT && g->args->delta != NULL;
}

double bound_error_of_p(const struct ref_machine *m, const struct bound_row *row, double x, double score_error,
                        double p)
{
    const double size = fabs(x + row->base), lse = fabs(row->lse + row->base);
    const double rounded = size + 2 * fmax(size, lse) + 4 * fabs(x - row->lse);
    const double error = score_error + m->u * (rounded + 1.5 * m->power) + m->exp_error + row->lse_error;
    const double growth =
        error <= LARGE_EXPONENT_ERROR ? p * ref_growth(error) : exp(fmin(x - row->lse + error, 700.0));
    return growth + m->tiny;
}

static double dp_error(const struct bound_gradient_head *g, const struct bound_gradient_block *block, int64_t i,
                       int64_t j)
{
    const struct ref_machine *m = &g->head.machine;
    const double d_v = (double)problem_of(g)->head_dim_v;
    const int64_t at = i * g->head.ld + j;
    const double drop = block->rows.drop[at];
    const double lost =
        m->lost * (block->dout.norm[i] + g->head.v.norm[j] + d_v * m->least_operand) + 2 * d_v * m->tiny;
    return drop * (g->dp_sum.rel * block->dp_abs[at] + lost) + 3 * m->u * drop * fabs(block->dp[at]) + m->tiny;
}

static bool p_is_own(const struct bound_gradient_head *g) { return !problem_of(g)->external_lse; }

/* Sum over features of |dout| times what is given of o: its size, its bound, its final roundings. */
struct dout_sums {
    double size, bound, final, o; /* o: sum |o| itself */
    double exact;                 /* sum |dout o| */
    bool overflow;                /* an o may round to infinity */
};

/* Whether o may be of a forward pass that scales, within bounds of its own (bounds.md, 11.12). */
static bool o_may_be_scaled(const struct bound_gradient_head *g)
{
    const struct bound_head *h = &g->head;
    return h->machine.o_may_be_scaled && h->sequence.seqlen_q <= REF_SCALED_ROWS && h->num_keys <= REF_SCALED_ROWS;
}

/* What that costs o beside roundings of its weights. */
static double lost_to_scaled_values(const struct bound_head *h, double v_floor, double live, int64_t c)
{
    const double lost = bound_lost_to_scaling(SCALED_STEP, v_floor, 1 + 0x1p-9, h->v_sum[c], live);
    return (1 + 0x1p-9) * (lost + live * SCALED_STEP * h->v_max[c]);
}

static struct dout_sums sum_dout(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                                 int64_t i)
{
    const struct ref_machine *m = &g->head.machine;
    const struct attest_problem *p = problem_of(g);
    const struct bound_row_state *s = &block->states[i];
    const double relative = ref_growth(s->relative + 10 * m->u);
    const bool may_be_scaled = o_may_be_scaled(g);
    const double v_floor = may_be_scaled ? bound_floor_of_values(&g->head) : 0.0;
    struct dout_sums sums = {0};
    for (int64_t c = 0; c < p->head_dim_v; ++c) {
        const int64_t at = i * p->head_dim_v + c;
        const double scaled = may_be_scaled ? lost_to_scaled_values(&g->head, v_floor, (double)s->live, c) : 0.0;
        const double dout = fabs(block->dout.value[at]), o = fabs(block->o.o[at]);
        const double bound = block->o.bound[at] + scaled, lost = bound_lost_of_o(&g->head, s, c) + scaled;
        sums.overflow |= m->rounds_outputs && o + bound >= ref_format(m->o_dtype)->overflow;
        sums.o += o + bound;
        sums.size += dout * (o + bound);
        sums.exact += dout * o;
        sums.bound += dout * bound;
        sums.final += dout * (bound_with_output(m, m->o_dtype, o, bound) - bound + relative * (o + bound) + lost);
    }
    return sums;
}

/* delta = dout . o of the o that the forward pass rounded: what that o may be off by, seen along dout. */
static double worst_delta_from_o(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                                 int64_t i, double delta, const struct dout_sums *sums)
{
    const struct ref_machine *m = &g->head.machine;
    const struct bound_block *rows = &block->rows;
    const struct bound_row_state *s = &block->states[i];
    const double sum = ref_both(s->keys.rel, ref_growth((double)s->rescales * m->u));
    const bool may_be_scaled = o_may_be_scaled(g);
    const double u16 = may_be_scaled ? ref_format(ATTEST_FP16)->unit_roundoff : 0.0;
    double centred = 0.0, error = 0.0;
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        const int64_t at = i * g->head.ld + j;
        const double dp = rows->drop[at] * block->dp[at], size = rows->drop[at] * block->dp_abs[at];
        const double rounding = fmax(rows->rounding[at], u16 * rows->plus[at]); /* half steps are in `final` */
        centred += rows->centred[at];
        error += rows->centred[at] * fabs(dp - delta) + rounding * fabs(dp);
        error += sum * (rows->plus[at] + rounding) * size;
    }
    error += fmax(0.0, s->shift - centred) * fabs(delta) + sums->final;
    return may_be_scaled ? error : fmin(error, sums->bound); /* the bound of o is of other roundings */
}

/* What the o that is in memory makes delta be off by, with its sign; NaN where there is none, or where a delta is
 * given, which is read in its place. */
static double signed_delta_from_o(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                                  int64_t i)
{
    const struct attest_problem *p = problem_of(g);
    const struct bound_head *h = &g->head;
    if (p->o.dtype == ATTEST_ABSENT || !g->args->forward.o || bound_has_delta(g)) return NAN;
    const int64_t from = ref_row_offset(p, &p->o, &h->sequence, false, h->b, block->rows.first + i, h->h);
    double sum = 0.0;
    for (int64_t c = 0; c < p->head_dim_v; ++c) {
        const int64_t at = i * p->head_dim_v + c;
        sum += block->dout.value[at] * (ref_load(p->o.dtype, g->args->forward.o, from + c) - block->o.o[at]);
    }
    return sum;
}

static void delta_from_o(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i,
                         struct bound_row *row)
{
    const struct ref_machine *m = &g->head.machine;
    const struct dout_sums sums = sum_dout(g, block, i);
    const double worst = worst_delta_from_o(g, block, i, row->delta, &sums);
    const double actual = fabs(signed_delta_from_o(g, block, i));
    /* An o that is itself out of bounds excuses nothing. */
    const double off = actual <= worst ? actual + BOUND_ORACLE_SHARE * worst : worst;
    if ((sums.overflow && !(actual <= worst)) || !(sums.size < m->huge)) block->states[i].overflow = true;
    const double d_v = (double)problem_of(g)->head_dim_v;
    const double lost = m->lost * (block->dout.norm[i] + sums.o + d_v * m->least_operand) + 2 * d_v * m->tiny;
    row->delta_error = off + g->dp_sum.rel * sums.size + 2 * m->u * (fabs(row->delta) + off) + lost;
    row->delta_bias = (g->dp_sum.bias + g->dp_sum.aligned) * fabs(row->delta) + 2 * m->u * fabs(row->delta) + lost;
    row->delta_sigma = (g->dp_sum.sigma + g->dp_sum.bias + g->dp_sum.aligned) * sums.exact;
    if (actual <= worst)
        row->delta_known = signed_delta_from_o(g, block, i);
    else
        row->delta_bias += off;
}

double bound_sigma_of_dp(const struct bound_gradient_head *g, const struct bound_view *v, int64_t j)
{
    const struct ref_sum *const sum = &g->dp_sum;
    const double square = v->dp_square[j], reach = bound_reach_of_any(v->dp[j], v->dp_abs[j], square);
    const double drift = sum->bias + sum->aligned;
    return v->drop[j] * sqrt(sum->sigma * reach * sum->sigma * reach + drift * drift * square);
}

double bound_lag_of_dp(const struct bound_gradient_head *g, const struct bound_view *v, int64_t j)
{
    return v->drop[j] * (g->dp_sum.bias + g->dp_sum.aligned) / 2 * fabs(v->dp[j]);
}

/* delta = sum_j p_ij dp_ij from the p and dp at hand, in fp32. */
static void delta_exact(const struct bound_gradient_head *g, const struct bound_gradient_block *block, int64_t i,
                        const struct bound_view *v, struct bound_row *row)
{
    const struct ref_machine *m = &g->head.machine;
    const double terms = (double)block->states[i].live + 3;
    double *const products = block->rows.line[0];
    double error = 0.0, size = 0.0, variance = 0.0, bias = 0.0, absolute = 0.0;
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        products[j] = v->live[j] != 0.0 ? v->p[j] * v->drop[j] * v->dp[j] : 0.0;
        if (v->live[j] == 0.0) continue;
        const double dp = v->drop[j] * fabs(v->dp[j]), p = v->p[j];
        const double sigma_dp = bound_sigma_of_dp(g, v, j), skew = v->weight_sigma[j] * dp;
        error += v->p_error[j] * dp + (p + v->p_error[j]) * v->dp_error[j];
        size += (p + v->p_error[j]) * (dp + v->dp_error[j]);
        absolute += p * dp;
        variance += bound_equal(&block->rows, i * g->head.ld + j) * p * p * (sigma_dp * sigma_dp + skew * skew);
        bias += p * (bound_lag_of_dp(g, v, j) + (v->weight_bias[j] + fabs(v->score_lag[j])) * dp);
    }
    const double of_lse = block->states[i].lse_sigma * row->delta;
    variance += terms / 3 * m->u * m->u * absolute * absolute + (p_is_own(g) ? of_lse * of_lse : 0.0);
    bias += row->lse_bias * fabs(row->delta);
    const double summed = m->ordered ? bound_sum_of_lanes(m, g->head.num_keys, products, terms, size, error)
                                     : ref_growth(terms * m->u) * size;
    row->delta_error = error + summed + 3 * m->u * fabs(row->delta) + terms * m->tiny;
    row->delta_bias = bias + m->u * fabs(row->delta) + terms * m->tiny;
    row->delta_sigma = sqrt(variance);
    row->feels_p = row->feels_dp = 1.0;
}

void bound_add_to_mean(const struct ref_machine *m, struct bound_mean *to, double p, double p_error, double dp,
                       double away, double dp_error)
{
    const double most = p + p_error;
    to->terms += 1;
    to->centred += p_error * away + most * dp_error;
    to->least_p += fmax(0.0, p * p / most - m->tiny);
    to->most_p += most;
    to->products += most * (dp + dp_error);
    to->hull = fmax(to->hull, away + dp_error);
    to->largest = fmax(to->largest, dp + dp_error);
}

double bound_of_mean(const struct ref_machine *m, const struct bound_mean *of)
{
    const double terms = of->terms + 3, lost = terms * m->tiny / of->least_p;
    const double summed = ref_growth(terms * m->u) + lost; /* of a sum */
    const double huge = ldexp(m->huge, -m->power);
    if (!(summed < 0.5) || !(of->most_p < huge / 2) || !(of->products < huge)) return INFINITY;
    const double mean = fmin(of->centred / of->least_p, of->hull);
    const double size = fmin(of->products / of->least_p, of->largest); /* of the dividend, in units of the divisor */
    const double rounded = (summed * (size + of->delta + mean) + lost) / (1 - summed);
    return (mean + rounded) * (1 + 4 * m->u) + 4 * m->u * of->delta + m->tiny;
}

/* delta = sum p dp / sum p of the p and dp at hand: what all p of a row are off by alike is not felt. `row` is that of
 * the sum alone, which the oracle has: of its error, too. */
static void delta_normalized(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i,
                             const struct bound_view *v, struct bound_row *row)
{
    const struct ref_machine *m = &g->head.machine;
    const double terms = (double)block->states[i].live + 3, size = fabs(row->delta);
    const double oracle = BOUND_ORACLE_SHARE * row->delta_error;
    struct bound_mean mean = {.delta = size};
    double variance = 0.0, bias = 0.0, absolute = 0.0, least_p = 0.0;
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        if (v->live[j] == 0.0) continue;
        const double dp = v->drop[j] * v->dp[j], p = v->p[j], away = fabs(dp - row->delta);
        const double sigma_dp = bound_sigma_of_dp(g, v, j), skew = v->weight_sigma[j] * away;
        bound_add_to_mean(m, &mean, p, v->p_error[j], fabs(dp), away + oracle, v->dp_error[j]);
        least_p += fmax(0.0, p - v->p_error[j]);
        absolute += p * fabs(dp);
        variance += bound_equal(&block->rows, i * g->head.ld + j) * p * p * (sigma_dp * sigma_dp + skew * skew);
        bias += p * (bound_lag_of_dp(g, v, j) + (v->weight_bias[j] + fabs(v->score_lag[j])) * away);
    }
    if (row->may_be_own) mean.least_p = row->is_own ? fmax(least_p, row->own_least) : least_p;
    const double error = bound_of_mean(m, &mean);
    if (!isfinite(error)) {
        block->states[i].overflow = true;
        return;
    }
    row->delta_error = error + oracle;
    variance += terms / 3 * m->u * m->u * (absolute * absolute + size * size);
    row->delta_bias = bias + 3 * m->u * size + terms * m->tiny;
    row->delta_sigma = sqrt(variance);
    row->feels_p = 0.0, row->feels_dp = 1.0;
}

/* e^(ln p + common), of which the exponent is off by that much of itself, and by a constant. */
static double moved(double p, double common, double slope, double each)
{
    if (p == 0.0) return 0.0;
    const double exponent = log(p) + common;
    return exp(exponent + copysign(slope * fabs(exponent), each) + each);
}

/* p of a row that may be large, divided by the sum of its own weights: section 5.4. */
static void own_p(const struct bound_gradient_head *g, const struct bound_gradient_block *block, int64_t i,
                  const struct bound_view *v, struct bound_row *row)
{
    const struct ref_machine *m = &g->head.machine;
    const struct bound_block *const rows = &block->rows;
    const struct bound_row_state *s = &block->states[i];
    const int64_t n = g->head.num_keys;
    double *const log_p = rows->line[0], *const error = rows->line[1], *const most = rows->line[2];
    double *const least = rows->line[3];
    bound_log_weights(&g->head, rows, i, s);
    double reach = bound_size(s, s->top);
    for (int64_t j = 0; j < n; ++j) {
        error[j] = v->live[j] != 0.0 ? v->score_error[j] + m->u * bound_size(s, v->x[j]) : 0.0;
        if (v->live[j] != 0.0 && v->x[j] + error[j] > s->top) reach = fmax(reach, bound_size(s, v->x[j]) + error[j]);
    }
    error[n] = log_p[n] > -INFINITY ? s->sink_error + 2 * m->u * bound_size(s, s->sink) : 0.0;
    const double sum_error = bound_intervals(n + 1, log_p, error, rows->line[4], least, most);

    const double u = m->u, terms = (double)(s->live + 2 * s->rescales + 2), log_terms = log((double)s->live + 1);
    /* The exponent of the largest weight is 0, or nearly that of one fused operation; beyond 80 section 10.1 has it. */
    const double unfused = bound_is_linear(problem_of(g)) ? fmin(3 * u * reach, 80.0) : 0.0;
    const double sum = terms * u * (1 + terms * u) + 2 * terms * m->tiny * exp(unfused);
    const double logarithm = m->log_error * (1 + log_terms + unfused);
    const double second = 4 * u * u * (reach + bound_size(s, s->lse));
    const double common =
        sum + logarithm + (double)(1 + s->rescales) * m->exp_error + 5 * u * log_terms + second;
    /* Of half of the keys, and a factor. */
    const double exponentials = m->power > 0 ? 2 * m->exp_error + u : m->exp_error;
    const double each = exponentials + second + 1.5 * m->power * u;
    row->own_least = exp(-(common + each + 3 * u * (log_terms + common)));
    row->other_sum = m->accumulate == ATTEST_ACC_FP32 ? 0.0 : 2 * sum_error; /* dbias has dot products of its own */
    for (int64_t j = 0; j <= n; ++j) {
        const double p = j < n ? v->p[j] : row->sink;
        const double high = moved(most[j], common, 3 * u, each), low = moved(least[j], -common, 3 * u, -each);
        const double off = fmax(high - p, p - low) + m->tiny;
        if (log_p[j] == -INFINITY) continue;
        double *const to = j < n ? &v->p_error[j] : &row->sink_error;
        *to = fmax(*to, off);
    }
    row->lse_error = s->as_given ? fmax(row->lse_error, common) : common; /* what all p of the row share */
}

/* All p of a row have the rounding of the one lse that a kernel multiplies by log2 e. */
static double lse_rounding(const struct ref_machine *m, const struct bound_row *row)
{
    return 1.25 * m->u * fabs(row->lse + row->base);
}

/* lse and p of the row: its own, or those of a larger key set. */
static void row_p(const struct bound_gradient_head *g, const struct bound_gradient_block *block, int64_t i,
                  const struct bound_view *v, struct bound_row *row)
{
    const struct attest_problem *p = problem_of(g);
    const struct ref_machine *m = &g->head.machine;
    const struct bound_row_state *s = &block->states[i];
    const double in_memory = given(g, &p->lse, g->args->forward.lse, block->rows.first + i);
    row->base = s->as_given ? s->base : 0.0;
    row->lse = s->lse;
    row->lse_error = s->lse_bound * BOUND_SLACK;
    const double off = fabs(in_memory - (s->base + s->lse));
    if (m->rescales && off <= row->lse_error) row->lse_error = off + BOUND_ORACLE_SHARE * row->lse_error;
    if (p->external_lse) {
        row->lse = isfinite(in_memory) ? in_memory - s->base : -s->base;
        row->lse_error = 0.0;
        for (int64_t j = 0; j < g->head.num_keys; ++j) v->p[j] = v->live[j] != 0.0 ? exp(v->x[j] - row->lse) : 0.0;
    }
    row->may_be_own = m->own_sum && s->less_base;
    row->is_own = row->may_be_own && !s->as_given;
    for (int64_t j = 0; j < g->head.num_keys; ++j)
        v->p_error[j] = v->live[j] == 0.0 || row->is_own
                            ? 0.0
                            : bound_error_of_p(m, row, v->x[j], v->score_error[j], v->p[j]);
    row->sink = s->sink == -INFINITY ? ref_sink_weight(s->sink, row->lse) : exp(s->sink - row->lse);
    row->sink_error = s->sink == -INFINITY || row->is_own ? 0.0 : bound_error_of_p(m, row, s->sink, 0.0, row->sink);
    if (row->may_be_own) own_p(g, block, i, v, row);
    row->lse_bias = row->lse_error + 1.5 * m->power * m->u;
    if (p->external_lse) row->lse_bias += lse_rounding(m, row); /* beside an error of its own it is little */
}

static struct bound_row as_bias(const struct bound_row *row, double row_sigmas)
{
    struct bound_row r = *row;
    r.delta_bias += fabs(r.delta_known) + row_sigmas * r.delta_sigma;
    r.delta_known = r.delta_sigma = r.feels_p = r.feels_dp = 0.0;
    return r;
}

static void row_delta(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i,
                      const struct bound_view *v, struct bound_row *row)
{
    const struct attest_problem *p = problem_of(g);
    const double in_memory = given(g, &p->delta, g->args->delta, block->rows.first + i);
    if (p->external_lse) {
        row->delta = isfinite(in_memory) ? in_memory : 0.0; /* else the results are not finite either */
        return;
    }
    for (int64_t j = 0; j < g->head.num_keys; ++j) row->delta += v->p[j] * v->drop[j] * v->dp[j];
    const struct ref_machine *m = &g->head.machine;
    if (m->corrects_delta || !m->delta_from_o) delta_exact(g, block, i, v, row);
    const struct bound_row exact = *row;
    if (m->normalizes_delta) delta_normalized(g, block, i, v, row);
    if (m->delta_from_o) {
        row->delta_sigma = row->feels_p = row->feels_dp = 0.0;
        delta_from_o(g, block, i, row);
    }
    const double off = fabs(in_memory - row->delta);
    if (off <= row->delta_error) {
        row->delta_error = off + BOUND_ORACLE_SHARE * row->delta_error;
        row->delta_bias =
            fmin(row->delta_bias + fabs(row->delta_known) + m->row_sigmas * row->delta_sigma, row->delta_error);
        row->delta_known = row->delta_sigma = row->feels_p = row->feels_dp = 0.0;
    }
    if (!m->corrects_delta) return;
    /* There all of it is a bias: row_sigmas standard deviations of what is random for a whole row. */
    const struct bound_row of_exact = as_bias(&exact, m->row_sigmas);
    *row = as_bias(row, m->row_sigmas);
    bound_correct_row(g, block, i, v, &of_exact, row);
}

struct bound_slope bound_slope_of(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                                  int64_t at)
{
    const struct ref_machine *m = &g->head.machine;
    const double cap = (double)problem_of(g)->softcap;
    if (!(cap > 0)) return (struct bound_slope){.value = 1.0};
    const double t = fabs(block->rows.tanh[at]), off = block->rows.tanh_error[at];
    return (struct bound_slope){.value = 1 - t * t,
                                .error = 2 * t * off + off * off + 4 * m->u,
                                .bias = 2 * t *
                                            (m->tanh_error * t + m->tanh_floor +
                                             (block->rows.score_bias[at] + fabs(block->rows.score_lag[at])) / cap) +
                                        4 * m->u,
                                .sigma = 2 * t * block->rows.score_sigma[at] / cap};
}

/* What is left of y by its parts. */
static double half_unit(const struct ref_rounding *r, double y)
{
    if (r->parts == 0) return 0.0;
    const double half = ref_half_ulp(r->dtype, r->scale * y) / r->scale;
    if (r->parts == 1) return half;
    return fmax(half * ref_format(r->dtype)->unit_roundoff / 2, ref_half_ulp(r->dtype, 0.0));
}

double bound_half_unit_of_p(const struct ref_rounding *r, double p, double drop)
{
    if (r->dtype == ATTEST_ABSENT) return 0.0;
    return fmax(drop * fmax(half_unit(r, p), r->tiny), half_unit(r, drop * p));
}

/* What delta is off by meets all keys of the row: in dq the sum of c p k. It is off with p and dp itself, by
 * p (feels_p dp + (1 - feels_p) z) and p, which meets ds's own. */
static void note_delta(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t at,
                       const struct bound_view *v, const struct bound_row *row, int64_t j, double slope, double z,
                       double bias)
{
    const double p = v->p[j], skew = p * v->weight_sigma[j], of_dp = p * bound_sigma_of_dp(g, v, j);
    const double dp = v->drop[j] * v->dp[j], equal = bound_equal(&block->rows, at);
    const double felt = row->feels_dp == 0.0 ? 0.0 : row->feels_p > 0.0 ? dp : dp - row->delta;
    const double off = p * slope * row->delta_sigma * g->head.machine.row_sigmas;
    block->p_slope[at] = p * slope;
    block->through_delta[at] = equal * slope * (skew * skew * z * felt + of_dp * of_dp * row->feels_dp);
    block->dq_bias[at] = bias;
    block->dq_variance[at] = equal * block->ds.variance[at];
    block->ds.known[at] = -p * slope * row->delta_known;
    block->ds.shared[at] = off * off * g->same_row[bound_row_of_group(g, block->rows.first + at / g->head.ld)];
}

/* y as it is stored, in parts. */
static double stored(const struct ref_rounding *r, double y)
{
    double sum = 0.0;
    for (int n = 0; n < r->parts; ++n) sum += ref_round(r->dtype, r->scale * y - sum);
    return sum / r->scale;
}

double bound_unsure_of_p(const struct ref_machine *m, const struct bound_view *v, const struct bound_row *row,
                         int64_t j)
{
    const double error = m->row_sigmas * v->weight_sigma[j] + v->weight_bias[j] + fabs(v->score_lag[j]) + row->lse_bias;
    return fmin(v->p[j] * error + m->tiny, v->p_error[j]);
}

/* The rounding of a p in the statistics: a number, as many p may be equal and then round alike. Within `unsure` of a
 * tie it is half a unit this way or that, for all of them. */
struct rounding_of_p {
    double known, tied; /* one of them is 0 */
};

static struct rounding_of_p rounding_of_p(const struct ref_rounding *r, double p, double unsure)
{
    const double rounding = stored(r, p) - p;
    if (stored(r, p - unsure) == stored(r, p + unsure)) return (struct rounding_of_p){.known = rounding};
    return (struct rounding_of_p){.tied = rounding};
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Those p that are tied, to block->tied. Of one that no other is like the sign is chance. */
static void find_ties(const struct bound_gradient_head *g, struct bound_gradient_block *block,
                      const struct bound_view *v, const struct bound_row *row)
{
    const struct ref_machine *m = &g->head.machine;
    double *const values = block->rows.line[0];
    int64_t count = 0;
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        const bool tied =
            v->live[j] != 0.0 && rounding_of_p(&m->p_dv, v->p[j], bound_unsure_of_p(m, v, row, j)).tied != 0.0;
        block->tied[j] = tied ? 1 : 0;
        if (tied) values[count++] = v->p[j];
    }
    qsort(values, (size_t)count, sizeof *values, by_size);
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        if (block->tied[j] == 0.0) continue;
        const double *const at = bsearch(&v->p[j], values, (size_t)count, sizeof *values, by_size);
        const double apart = 0x1p-40 * v->p[j];
        const int64_t n = at - values;
        if ((n > 0 && at[0] - at[-1] <= apart) || (n + 1 < count && at[1] - at[0] <= apart)) block->tied[j] = 2;
    }
}

/* A p, which is off by `error` at most, as ds is made of it: rounded, to a number that is known, but for what `error`
 * makes of it; or not. */
struct stored_p {
    double rounding, error;
};

static struct stored_p store_p(const struct ref_rounding *r, double p, double error, double flushed)
{
    if (r->dtype == ATTEST_ABSENT) return (struct stored_p){0.0, error};
    const double rounded = stored(r, p);
    const double least = stored(r, fmax(0.0, p - error)), most = stored(r, p + error);
    return (struct stored_p){rounded - p, fmax(error, fmax(most - rounded, rounded - least) + flushed)};
}

/* Rounding of ds, which is `most` at most and within `unsure` of ds, by each factor that it may have then: what is lost
 * where it is sure to go to zero. Returns the variance of others. */
static double round_ds(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t at, double ds,
                       double unsure, double most)
{
    struct ref_rounding r = g->head.machine.ds;
    if (g->num_small == 0) return bound_variance_of_rounding(&r, most);
    r.tiny = 0.0;
    for (int n = 0; n < g->num_small; ++n) {
        const double half = ref_format(r.dtype)->min_subnormal / 2 / (r.scale * g->small[n]);
        const bool is_lost = fabs(ds) + unsure < half;
        block->ds.signed_bias[BOUND_SIGNED + n][at] = is_lost ? -ds : 0.0;
        if (!is_lost) r.tiny = fmax(r.tiny, half);
    }
    return r.tiny == 0.0 ? 0.0 : bound_variance_of_rounding(&r, most);
}

/* dx and ds of score j of row i. */
static void one_ds(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i, int64_t j,
                   const struct bound_view *v, const struct bound_row *row)
{
    const struct ref_machine *m = &g->head.machine;
    const int64_t at = i * g->head.ld + j;
    const double u = m->u, tiny = m->tiny * g->head.fmax, p = v->p[j], dp = v->drop[j] * v->dp[j];
    const struct stored_p stored_p = store_p(&m->p_ds, p, v->p_error[j], m->tiny);
    const double p_error = stored_p.error, most_p = p + fabs(stored_p.rounding) + p_error;
    const double z = dp - row->delta + row->dlse, z_at_hand = z - row->delta_known, dx = p * z;
    const double sizes = fabs(dp) + fabs(row->delta) + fabs(row->dlse);
    const double z_error = (v->dp_error[j] + row->delta_error) * (1 + 4 * u) + 3 * u * sizes + tiny;
    const double of_storage = stored_p.rounding * z, most_dx = fabs(dx) + fabs(of_storage);
    double error = p_error * fabs(z) + most_p * z_error;
    error += 2 * u * (most_dx + error) + tiny;
    /* What p is off by meets the z at hand, which differs from z by what delta is off by. */
    const double of_sigma = m->row_sigmas * row->delta_sigma, beside = row->delta_bias + of_sigma;
    const double reach = fmax(fabs(z), fabs(z_at_hand)) + beside;
    const double skew = p * reach * v->weight_sigma[j], sigma_z = bound_sigma_of_dp(g, v, j) + u * sizes;
    double variance = p * p * sigma_z * sigma_z + u * u * dx * dx, of_p = skew * skew;
    const struct rounding_of_p rounding = g->statistics && m->p_ds.dtype != ATTEST_ABSENT
                                              ? rounding_of_p(&m->p_ds, p, bound_unsure_of_p(m, v, row, j))
                                              : (struct rounding_of_p){0};
    of_p += rounding.tied * rounding.tied * reach * reach;
    variance += of_p;
    const double lag_of_dp = bound_lag_of_dp(g, v, j), of_lags = p * (lag_of_dp + reach * fabs(v->score_lag[j]));
    const double of_tie = fabs(rounding.tied) * reach, alike = block->tied && block->tied[j] > 1 ? of_tie : 0.0;
    const double own = p * reach * (v->weight_bias[j] + row->lse_bias) + fabs(rounding.known) * beside + tiny;
    const double of_delta = p * row->delta_bias, p_rounding = rounding.known * z_at_hand;
    block->dx_value[at] = dx;
    block->dx_error[at] = error + fabs(of_storage);
    if (row->other_sum > 0.0)
        block->dx_error[at] += expm1(fmin(row->other_sum, 700.0)) * (most_dx + error);
    block->dx_variance[at] = variance + p_rounding * p_rounding;
    const double of_row = fabs(row->delta_known) + of_sigma;
    /* A slope that all but vanishes may be off by more than itself, and meets all of dx. */
    const double dx_at_hand = p * (reach + lag_of_dp + sigma_z);
    block->dx_bias[at] = fmin(own + of_tie + of_lags + of_delta + p * of_row, error + fabs(of_storage));
    const struct bound_slope c = bound_slope_of(g, block, at);
    const double ds = dx * c.value, capped = error * (c.value + c.error) + most_dx * c.error;
    const double most_ds = most_dx * c.value, ds_error = capped + 3 * u * (most_ds + capped) + tiny;
    /* Rounding is relative or by a step of the subnormals, and moves nothing by more than itself. */
    const double size = most_ds + ds_error, rounded = fmin(size, fmax(m->ds.relative * size, m->ds.tiny));
    if (!(size < fmin(m->ds.overflow, m->huge)) || !(most_p < fmin(m->p_ds.overflow, m->huge)) ||
        !(sizes < m->huge))
        block->states[i].overflow = true;
    const double of_slope = dx_at_hand * c.bias, slope_skew = dx_at_hand * c.sigma;
    const double ds_bias = c.value * block->dx_bias[at] + of_slope + tiny; /* ds may be little more */
    block->ds.value[at] = ds;
    block->ds.absolute[at] = most_ds;
    block->ds.error[at] = ds_error + rounded;
    block->ds.variance[at] = c.value * c.value * variance + slope_skew * slope_skew;
    block->ds.of_p[at] = c.value * c.value * of_p + slope_skew * slope_skew;
    if (g->statistics) {
        const double unsure = ds_bias + m->row_sigmas * sqrt(block->ds.variance[at]);
        block->ds.variance[at] += round_ds(g, block, at, c.value * p * z_at_hand, unsure, fabs(ds) + ds_bias);
    }
    block->ds.bias[at] = c.value * (own + of_tie + of_delta) + of_slope + tiny;
    if (g->statistics) {
        block->ds.signed_bias[0][at] = c.value * p * copysign(lag_of_dp, -v->dp[j]);
        block->ds.signed_bias[1][at] = -c.value * p * copysign(reach, z_at_hand) * v->score_lag[j];
        if (block->ds.signed_bias[2])
            block->ds.signed_bias[2][at] = c.value * (of_tie - alike) * (z_at_hand < 0 ? -1 : 1);
    }
    if (block->ds.stored) block->ds.stored[at] = c.value * of_storage;
    if (block->ds.rounded) block->ds.rounded[at] = c.value * p_rounding;
    if (g->statistics)
        note_delta(g, block, at, v, row, j, c.value, z, c.value * (own + alike) + of_slope + tiny);
    block->ds_norm[i] += most_ds + block->ds.error[at];
}

/* The dropped-out p that meets dout. */
static void one_pd(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i, int64_t j,
                   const struct bound_view *v, const struct bound_row *row)
{
    const struct ref_machine *m = &g->head.machine;
    const int64_t at = i * g->head.ld + j;
    const double drop = v->drop[j], pd = drop * v->p[j], error = drop * v->p_error[j] + 3 * m->u * pd * (drop != 1.0);
    const double skew = pd * v->weight_sigma[j];
    const double of_lse = row->lse_bias + (problem_of(g)->external_lse ? 0.0 : lse_rounding(m, row));
    block->pd.value[at] = block->pd.absolute[at] = pd;
    block->pd.bias[at] = pd * (v->weight_bias[j] + fabs(v->score_lag[j]) + of_lse) + m->tiny;
    if (!(pd + error < fmin(m->p_dv.overflow, m->huge))) {
        block->states[i].overflow = true;
        return;
    }
    const double half = bound_half_unit_of_p(&m->p_dv, v->p[j] + v->p_error[j], drop);
    block->pd.error[at] = error + half;
    block->pd.variance[at] = skew * skew;
    if (!g->statistics || !(half > 0.0)) return;
    if (drop != 1.0) { /* p may be rounded before or after the multiplier */
        block->pd.bias[at] += half;
        return;
    }
    const struct rounding_of_p rounding = rounding_of_p(&m->p_dv, v->p[j], bound_unsure_of_p(m, v, row, j));
    block->pd.known[at] = rounding.known;
    if (block->tied && block->tied[j] < 2 && g->same_q[bound_row_of_group(g, block->rows.first + i)] == 1.0) {
        block->pd.signed_bias[2][at] = fabs(rounding.tied);
        block->pd.variance[at] += rounding.tied * rounding.tied;
    } else {
        block->pd.bias[at] += fabs(rounding.tied);
    }
}

/* p_sink (dlse - delta), summed into dsink. */
static void row_sink(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i,
                     const struct bound_row *row)
{
    const struct ref_machine *m = &g->head.machine;
    const double p = row->sink, p_error = row->sink_error, z = row->dlse - row->delta;
    const double z_error = row->delta_error + 2 * m->u * (fabs(row->delta) + fabs(row->dlse));
    const double error = p_error * fabs(z) + (p + p_error) * z_error;
    block->sink_value[i] = p * z;
    block->sink_error[i] = error + 2 * m->u * (p * fabs(z) + error) + m->tiny;
    if (!(p * fabs(z) + error < m->huge)) block->states[i].overflow = true;
}

static void clear_row(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i)
{
    double *const arrays[] = {
        block->dx_value,    block->dx_error, block->dx_variance, block->dx_bias, block->ds.value,  block->ds.absolute,
        block->ds.error,    block->ds.variance, block->ds.bias,  block->ds.known, block->ds.rounded, block->ds.stored,
        block->ds.signed_bias[0], block->ds.signed_bias[1], block->ds.signed_bias[2], block->ds.signed_bias[3],
        block->ds.signed_bias[4], block->ds.signed_bias[5], block->ds.signed_bias[6],
        block->pd.signed_bias[2],
        block->ds.shared,   block->ds.of_p,  block->p_slope,  block->through_delta, block->dq_bias, block->dq_variance,
        block->pd.value,    block->pd.absolute,
        block->pd.error,    block->pd.variance, block->pd.bias,  block->pd.known,  block->dq.value,
        block->dq.absolute, block->dq.error, block->dq.variance, block->dq.bias,
    };
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; ++a)
        if (arrays[a]) memset(arrays[a] + i * g->head.ld, 0, (size_t)g->head.ld * sizeof(double));
    for (int n = 0; n < g->num_ways; ++n)
        memset(block->ds.alike[n] + i * g->head.ld, 0, (size_t)g->head.ld * sizeof(double));
    block->ds_norm[i] = 0.0;
    block->corrections[i] = (struct bound_correction){0};
    block->sink_value[i] = block->sink_error[i] = 0.0;
}

static void gradient_row(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i,
                         double *errors)
{
    const struct attest_problem *p = problem_of(g);
    const int64_t at = i * g->head.ld;
    const struct bound_block *rows = &block->rows;
    const struct bound_view v = {rows->x + at,    rows->live + at,         rows->score_error + at,
                           rows->drop + at, rows->weight_sigma + at, rows->weight_bias + at, rows->score_lag + at,
                           block->dp + at,  block->dp_abs + at,      block->dp_square + at,  rows->p + at,
                           errors,          errors + g->head.ld};
    struct bound_row row = {0};
    const double dlse = given(g, &p->dlse, g->args->dlse, rows->first + i);
    row.dlse = isfinite(dlse) ? dlse : 0.0;
    row_p(g, block, i, &v, &row);
    for (int64_t j = 0; j < g->head.num_keys; ++j) v.dp_error[j] = v.live[j] != 0.0 ? dp_error(g, block, i, j) : 0.0;
    row_delta(g, block, i, &v, &row);
    if (block->tied) find_ties(g, block, &v, &row);
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        if (v.live[j] == 0.0) continue;
        if (!(v.dp_abs[j] < g->head.machine.huge)) block->states[i].overflow = true;
        one_ds(g, block, i, j, &v, &row);
        one_pd(g, block, i, j, &v, &row);
    }
    if (g->num_ways > 0) bound_round_alike(g, block, i, &v, &row);
    block->row[i] = row;
    if (p->has_sink) row_sink(g, block, i, &row);
}

/* How many rows saw each key, and which of them may have overflowed. */
static void note_keys(struct bound_gradient_head *g, const struct bound_gradient_block *block, int64_t i)
{
    const struct bound_row_state *s = &block->states[i];
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        const int64_t at = i * g->head.ld + j;
        if (block->rows.live[at] == 0.0) continue;
        for (int t = 0; t < 2; ++t) {
            struct bound_key_terms *terms = t == 0 ? &g->dk : &g->dv;
            const struct bound_weights *w = t == 0 ? &block->ds : &block->pd;
            terms->seen[j] += 1.0;
            terms->step[j] += 1.0;
            terms->head_seen[j] += 1.0;
            terms->norm[j] += w->absolute[at] + w->error[at];
            if (s->overflow) terms->overflow[j] = 1.0;
        }
    }
}

static void note_operand(struct bound_key_terms *terms, const struct bound_matrix *operand)
{
    for (int64_t i = 0; i < operand->rows; ++i)
        for (int64_t c = 0; c < operand->features; ++c)
            terms->operand_sum[c] += fabs(operand->value[i * operand->features + c]);
}

bool bound_gradient_rows(struct bound_gradient_head *g, struct bound_gradient_block *block)
{
    struct bound_head *head = &g->head;
    const struct attest_problem *p = problem_of(g);
    const int64_t rows = block->rows.rows, n = head->num_keys, d_v = p->head_dim_v;
    struct bound_pool pool = {0};
    double *errors = bound_take(&pool, 2 * head->ld), *absolute = bound_take(&pool, rows * d_v);
    bool ok = !pool.failed;
    if (ok) {
        for (int64_t i = 0; i < rows * d_v; ++i) absolute[i] = fabs(block->dout.value[i]);
        bound_product(rows, n, d_v, block->dout.value, d_v, 1, g->v_transposed.plain, d_v, false, block->dp, head->ld);
        bound_product(rows, n, d_v, absolute, d_v, 1, g->v_transposed.absolute, d_v, false, block->dp_abs, head->ld);
        for (int64_t i = 0; i < rows * d_v; ++i) absolute[i] *= absolute[i];
        bound_product(rows, n, d_v, absolute, d_v, 1, g->v_transposed.square, d_v, false, block->dp_square, head->ld);
        bound_block_scores(head, &block->rows, block->states);
        for (int64_t i = 0; i < rows; ++i) {
            struct bound_row_state *s = &block->states[i];
            clear_row(g, block, i);
            if (!s->empty && !s->broken) bound_row_weights(head, &block->rows, i, s);
        }
        if (head->machine.delta_from_o && !p->external_lse)
            ok = bound_block_o(head, &block->rows, block->states, &block->o);
    }
    for (int64_t i = 0; ok && i < rows; ++i) {
        const struct bound_row_state *s = &block->states[i];
        if (s->empty || s->broken) continue;
        gradient_row(g, block, i, errors);
        note_keys(g, block, i);
    }
    note_operand(&g->dk, &block->rows.q);
    note_operand(&g->dv, &block->dout);
    bound_release(&pool);
    return ok;
}

static int64_t dbias_index(const struct attest_problem *p, int64_t b, int64_t h, int64_t r, int64_t c)
{
    const struct attest_score_tensor *t = &p->dbias;
    int64_t at = t->batch ? b : 0;
    at = at * (t->head ? p->num_heads_q : 1) + (t->head ? h : 0);
    at = at * (t->seqlen_q ? p->seqlen_q : 1) + (t->seqlen_q ? r : 0);
    return at * (t->seqlen_k ? p->seqlen_k : 1) + (t->seqlen_k ? c : 0);
}

void bound_add_term(struct bound_terms *to, int64_t at, const struct bound_terms *from, int64_t index)
{
    to->value[at] += from->value[index];
    to->absolute[at] += from->absolute[index];
    to->error[at] += from->error[index];
    to->count[at] += from->count[index];
    if (to->stored && from->stored) to->stored[at] += from->stored[index];
    to->overflow[at] += from->overflow[index];
    if (!to->variance) return;
    to->variance[at] += from->variance[index];
    to->bias[at] += from->bias[index];
    if (from->known) to->known[at] += from->known[index];
    if (from->rounded) to->rounded[at] += from->rounded[index];
    if (from->shared) to->shared[at] += from->shared[index];
    for (int n = 0; n < BOUND_ALL_SIGNED; ++n)
        if (to->signed_bias[n] && from->signed_bias[n]) to->signed_bias[n][at] += from->signed_bias[n][index];
    for (int n = 0; n < REF_WAYS; ++n)
        if (from->alike[n]) to->alike[n][at] += from->alike[n][index];
}

void bound_add_sums(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                    const double *repeats, struct bound_terms *dbias, struct bound_terms *dsink)
{
    const struct bound_head *head = &g->head;
    const int64_t sink = head->b * problem_of(g)->num_heads_q + head->h;
    for (int64_t i = 0; i < block->rows.rows; ++i) {
        double one = 1.0, overflow = block->states[i].overflow;
        const int64_t row = head->sequence.first_q + block->rows.first + i;
        const double alike = repeats ? repeats[row * problem_of(g)->num_heads_q + head->h] : 1.0;
        if (block->states[i].broken) continue;
        for (int64_t j = 0; dbias->value && j < head->num_keys; ++j) {
            const int64_t at = i * head->ld + j;
            if (block->rows.live[at] == 0.0) continue;
            double size = fabs(block->dx_value[at]);
            double variance = alike * block->dx_variance[at];
            if (!problem_of(g)->dbias.seqlen_k) variance *= bound_equal(&block->rows, at);
            const struct bound_terms term = {.value = &block->dx_value[at],
                                             .absolute = &size,
                                             .error = &block->dx_error[at],
                                             .variance = &variance,
                                             .bias = &block->dx_bias[at],
                                             .count = &one,
                                             .overflow = &overflow};
            bound_add_term(dbias, dbias_index(problem_of(g), head->b, head->h, block->rows.first + i, j), &term, 0);
        }
        if (!dsink->value || block->states[i].empty) continue;
        double value = block->sink_value[i], size = fabs(value), error = block->sink_error[i], variance = 0.0;
        const struct bound_terms term = {.value = &value,
                                         .absolute = &size,
                                         .error = &error,
                                         .variance = &variance,
                                         .bias = &error,
                                         .count = &one,
                                         .overflow = &overflow};
        bound_add_term(dsink, sink, &term, 0);
    }
}

bool bound_take_terms(struct bound_pool *pool, int64_t count, bool statistics, int ways, int small,
                      struct bound_terms *t)
{
    *t = (struct bound_terms){.value = bound_take(pool, count),
                              .absolute = bound_take(pool, count),
                              .error = bound_take(pool, count),
                              .stored = bound_take(pool, count),
                              .rounding = bound_take(pool, count),
                              .rounding_variance = bound_take(pool, count),
                              .count = bound_take(pool, count),
                              .overflow = bound_take(pool, count)};
    if (statistics) {
        t->variance = bound_take(pool, count);
        t->bias = bound_take(pool, count);
        t->known = bound_take(pool, count);
        t->rounded = bound_take(pool, count);
        t->shared = bound_take(pool, count);
        for (int n = 0; n < BOUND_SIGNED + small; ++n) t->signed_bias[n] = bound_take(pool, count);
        for (int n = 0; n < ways; ++n) t->alike[n] = bound_take(pool, count);
        bound_take_path(pool, count, &t->path);
    }
    return !pool->failed;
}

static bool take_key_terms(struct bound_pool *pool, int64_t keys, int64_t features, bool statistics, int ways,
                           int small, struct bound_key_terms *t)
{
    *t = (struct bound_key_terms){.features = features,
                                  .seen = bound_take(pool, keys),
                                  .norm = bound_take(pool, keys),
                                  .step = bound_take(pool, keys),
                                  .before = bound_take(pool, keys * features),
                                  .head_seen = bound_take(pool, keys),
                                  .overflow = bound_take(pool, keys),
                                  .operand_sum = bound_take(pool, features)};
    return bound_take_terms(pool, keys * features, statistics, ways, small, &t->head) &&
           bound_take_terms(pool, keys * features, statistics, ways, small, &t->group);
}

/* The factors that ds may have where it is rounded once, to a format of which it may be a subnormal. */
static void find_factors(struct bound_gradient_head *g)
{
    const struct ref_machine *const m = &g->head.machine;
    const double scale = fabs((double)problem_of(g)->softmax_scale), kept = ref_share_kept(problem_of(g));
    const double factors[BOUND_SMALL] = {1.0, kept, scale, scale * kept};
    g->num_small = 0;
    if (!g->statistics || m->ds.dtype != ATTEST_FP16 || m->ds.parts != 1) return;
    for (int n = 0; n < (m->ds_may_have_scale ? 4 : 2); ++n) {
        bool is_new = factors[n] > 0.0;
        for (int i = 0; i < g->num_small; ++i) is_new &= g->small[i] != factors[n];
        if (is_new) g->small[g->num_small++] = factors[n];
    }
}

bool bound_take_gradients(struct bound_pool *pool, struct bound_gradient_head *g, struct bound_gradient_block *block,
                          bool has_alike)
{
    struct bound_head *head = &g->head;
    const struct attest_problem *p = problem_of(g);
    if (!bound_load_keys(pool, head)) return false;
    struct bound_matrix k = head->k;
    if (head->machine.scales && !bound_scale_head(pool, g, &k)) return false;
    g->k_rows = bound_make_panels(pool, &k, false, g->statistics ? 6 : 2);
    g->k_rows.plain = bound_make_panels(pool, &head->k, false, 1).plain;
    g->v_transposed = bound_make_panels(pool, &head->v, true, 7);
    g->k_sum = bound_take(pool, p->head_dim);
    g->dp_sum = ref_sum_features(&head->machine, p->head_dim_v);
    const int64_t n = head->num_keys, size = BOUND_BLOCK * head->ld, outputs = BOUND_BLOCK * p->head_dim_v;
    double **const arrays[] = {&block->dp,          &block->dp_abs,      &block->dx_value,    &block->dx_error,
                               &block->dx_variance, &block->dx_bias,     &block->ds.value,    &block->ds.absolute,
                               &block->ds.error,    &block->ds.variance, &block->ds.bias,     &block->pd.value,
                               &block->pd.absolute, &block->pd.error,    &block->pd.variance, &block->pd.bias,
                               &block->pd.known,    &block->dp_square,   &block->ds.known,
                               &block->ds.shared,   &block->ds.of_p,     &block->p_slope,     &block->through_delta,
                               &block->dq_bias,     &block->dq_variance, &block->squares};
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; ++a) *arrays[a] = bound_take(pool, size);
    block->o = (struct bound_block_output){.o = bound_take(pool, outputs), .bound = bound_take(pool, outputs)};
    block->k_mean = bound_take(pool, BOUND_BLOCK * p->head_dim);
    block->k_with_delta = bound_take(pool, BOUND_BLOCK * p->head_dim);
    if (head->machine.p_ds.dtype != ATTEST_ABSENT) {
        block->ds.stored = bound_take(pool, size);
        if (g->statistics)
            block->ds.rounded = bound_take(pool, size), block->ds.signed_bias[2] = bound_take(pool, size);
    }
    for (int n = 0; g->statistics && n < 2; ++n) block->ds.signed_bias[n] = bound_take(pool, size);
    find_factors(g);
    for (int n = 0; n < g->num_small; ++n) block->ds.signed_bias[BOUND_SIGNED + n] = bound_take(pool, size);
    if (g->statistics && head->machine.p_dv.parts == 1) {
        block->pd.signed_bias[2] = bound_take(pool, size);
        block->tied = bound_take(pool, head->ld);
    }
    if (g->statistics) {
        const int64_t group = p->num_heads_q / p->num_heads_kv, of_group = head->sequence.seqlen_q * group;
        g->same_q = bound_take(pool, of_group), g->same_row = bound_take(pool, of_group);
        g->same_head = bound_take(pool, group);
    }
    if (has_alike && g->statistics && !bound_take_alike(pool, g, block)) return false;
    if (head->machine.corrects_delta && !bound_take_correction(pool, g, block)) return false;
    if (pool->failed || !bound_take_block(pool, head, &block->rows)) return false;
    for (int64_t j = 0; j < n; ++j)
        for (int64_t c = 0; c < p->head_dim; ++c) g->k_sum[c] += fabs(k.value[j * p->head_dim + c]);
    if (head->machine.scales) bound_add_hidden_keys(g);
    return take_key_terms(pool, n, p->head_dim, g->statistics, g->num_ways, g->num_small, &g->dk) &&
           take_key_terms(pool, n, p->head_dim_v, g->statistics, 0, 0, &g->dv);
}

static void end_head_of(const struct bound_gradient_head *g, const struct ref_rounding *rounding, double scale,
                        struct bound_key_terms *t)
{
    const struct ref_machine *m = &g->head.machine;
    const double same = g->same_head ? g->same_head[bound_head_of_group(g)] : 1.0; /* they round alike */
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        const struct ref_sum sum = ref_sum_rows(m, (int64_t)t->head_seen[j], g->head.sequence.seqlen_q, 1);
        for (int64_t at = j * t->features; at < (j + 1) * t->features; ++at) {
            if (rounding->dtype != ATTEST_ABSENT && t->head_seen[j] > 0.0) {
                const double off = t->head.error[at] + fabs(t->head.stored[at]);
                const double error = off + sum.rel * (t->head.absolute[at] + t->head.error[at]);
                const double size = scale * (fabs(t->head.value[at]) + error) * (1 + 4 * m->u);
                const double half = rounding->relative * size + rounding->tiny;
                t->group.rounding[at] += half;
                t->group.rounding_variance[at] +=
                    same * bound_variance_of_rounding(rounding, scale * fabs(t->head.value[at]));
                if (!(size < rounding->overflow)) t->overflow[j] = 1.0;
            }
            bound_add_term(&t->group, at, &t->head, at);
            t->head.value[at] = t->head.absolute[at] = t->head.error[at] = t->head.stored[at] = 0.0;
            if (t->head.variance)
                t->head.variance[at] = t->head.bias[at] = t->head.known[at] = t->head.rounded[at] =
                    t->head.shared[at] = 0.0;
            for (int n = 0; n < BOUND_ALL_SIGNED; ++n)
                if (t->head.signed_bias[n]) t->head.signed_bias[n][at] = 0.0;
            for (int n = 0; n < REF_WAYS; ++n)
                if (t->head.alike[n]) t->head.alike[n][at] = 0.0;
        }
        t->head_seen[j] = 0.0;
    }
}

void bound_end_head(struct bound_gradient_head *g)
{
    const struct ref_machine *m = &g->head.machine;
    end_head_of(g, &m->dk_heads, fabs((double)problem_of(g)->softmax_scale), &g->dk);
    end_head_of(g, &m->dv_heads, 1.0, &g->dv);
}

/* bounds_corrected.c - dq with a corrected delta: reference/bounds.md section 7.1. */
#include <math.h>

#include "reference/bounds_gradients.h"
#include "reference/formats.h"

/* One score of dq's sums, which begin with the provisional delta. Sizes and errors are the largest possible. */
struct score {
    double p, p_error, dp, dp_error;
    double z, reach;              /* |dp - delta + dlse|, and of the computed one, with the provisional delta */
    double slope, slope_error;    /* c p and its error */
    double slope_rounding;        /* of c p to the format of k */
    double dx, dx_rounding;       /* the computed one; what fp32 rounds on the way to it */
    double ds, ds_rounding, half; /* the same of ds; its rounding to the format of k */
};

static struct score score_of(const struct bound_gradient_head *g, const struct bound_gradient_block *block, int64_t at,
                             const struct bound_view *v, const struct bound_row *row, int64_t j)
{
    const struct ref_machine *m = &g->head.machine;
    const struct bound_slope c = bound_slope_of(g, block, at);
    const double u = m->u, tiny = m->tiny * g->head.fmax;
    struct score s = {.p = v->p[j], .p_error = v->p_error[j], .dp_error = v->dp_error[j]};
    s.dp = v->drop[j] * v->dp[j];
    s.z = fabs(s.dp - row->delta + row->dlse);
    const double most_p = s.p + s.p_error, sizes = fabs(s.dp) + fabs(row->delta) + fabs(row->dlse);
    const double rounded = 3 * u * (sizes + s.dp_error + row->delta_error) + tiny;
    s.reach = s.z + s.dp_error + row->delta_error + rounded;
    s.dx = most_p * s.reach * (1 + 2 * u) + tiny;
    s.dx_rounding = most_p * rounded + 2 * u * s.dx + tiny;
    s.slope = c.value * s.p;
    s.slope_error = s.p_error * (c.value + c.error) + s.p * c.error;
    const double most = s.slope + s.slope_error;
    s.slope_rounding = fmin(bound_half_unit_of_p(&m->p_dq, most, 1.0), most) + 2 * u * most + tiny;
    s.ds = most * s.reach * (1 + 5 * u) + tiny;
    s.ds_rounding = s.dx_rounding * (c.value + c.error) + 3 * u * s.ds + tiny;
    s.half = fmin(m->ds.relative * s.ds + m->ds.tiny, s.ds);
    return s;
}

/* Sums of a row's scores. */
struct sums {
    double terms, p, p_error, slope, slope_error, slope_rounding;
    double dx, dx_rounding, ds, ds_error, half;
    double centred, plain; /* errors of delta: of sum p (dp - d' + dlse), and of sum p dp */
    double largest;        /* reach */
};

static void add_score(const struct bound_row *row, const struct score *s, struct sums *sums)
{
    const double of_dp = (s->p + s->p_error) * s->dp_error + s->dx_rounding;
    sums->terms += 1;
    sums->p += s->p;
    sums->p_error += s->p_error;
    sums->slope += s->slope;
    sums->slope_error += s->slope_error;
    sums->slope_rounding += s->slope_rounding;
    sums->dx += s->dx;
    sums->ds += s->ds;
    sums->ds_error += s->slope_error * s->z + (s->slope + s->slope_error) * s->dp_error + s->ds_rounding;
    sums->half += s->half;
    sums->centred += s->p_error * (s->z + row->delta_error) + of_dp;
    sums->plain += s->p_error * fabs(s->dp) + of_dp;
    sums->largest = fmax(sums->largest, s->reach);
}

/* What the sums of a row make of its delta, and of f, the factor by which the sum of c p k enters dq. */
struct correction {
    double delta_error;
    double factor, factor_error; /* |f|; |f - (d' - delta)| */
    double sum;                  /* |sum of the weights of dq - sum ds| */
    double absolute;             /* of a weight, where c p all but vanish */
};

/* P = C = 1: delta = D + d' - dlse, f = dlse - R. */
static struct correction correct_plain(const struct ref_machine *m, const struct bound_row *row, const struct sums *s)
{
    const double u = m->u, lost = s->terms * m->tiny, summed = ref_growth((s->terms + 4) * u);
    const double sizes = fabs(row->delta) + row->delta_error + fabs(row->dlse);
    const double of_r = summed * (s->ds + s->half) + lost;
    struct correction c = {.delta_error = s->centred + summed * s->dx + 3 * u * (s->dx + sizes) + lost};
    c.factor_error = (s->centred + s->half + of_r + 2 * u * row->delta_error) * (1 + 4 * u) + m->tiny;
    c.factor = row->delta_error + c.factor_error;
    c.sum = of_r + c.factor * (2 * u + s->p_error + s->slope_rounding) + m->tiny;
    return c;
}

/* delta = D + (d' - dlse) P, f = d' - delta - (R - R') / C. The quotient is within twice the largest reach, but for
 * underflow: below 2^-100 C may be off by a factor of the number of keys. */
static struct correction correct_general(const struct ref_machine *m, const struct bound_row *row, const struct sums *s)
{
    const double u = m->u, lost = s->terms * m->tiny, summed = ref_growth((s->terms + 4) * u);
    const double sizes = fabs(row->delta) + row->delta_error + fabs(row->dlse), most_c = s->slope + s->slope_error;
    const double products = s->dx + sizes * (s->p + s->p_error);
    struct correction c = {.delta_error = s->plain + (summed + 4 * u) * products + 2 * u * sizes + lost};
    const double of_r = summed * (2 * s->ds + s->half) + 2 * lost, rounding = s->half + of_r; /* R - R' */
    const double least_c = (s->slope - s->slope_error) * (1 - summed) - lost;
    double quotient = 2 * s->largest, off = rounding + quotient * most_c; /* |q C - (R - R')| */
    if (least_c > 0.0) {
        quotient = fmin(quotient, rounding / least_c * (1 + 4 * u));
        off = fmin(off, rounding * (summed + 4 * u) + 2 * quotient * lost);
    }
    const double rounded = 3 * u * (row->delta_error + c.delta_error + quotient);
    c.factor_error = c.delta_error + quotient + rounded + m->tiny;
    c.factor = row->delta_error + c.factor_error;
    c.absolute = (s->terms + 1) * s->largest * 0x1p-96;
    c.sum = s->ds_error + most_c * (c.delta_error + rounded) + of_r + off + c.factor * s->slope_rounding;
    c.sum += s->terms * c.absolute + m->tiny;
    return c;
}

/* The weight of a score in dq: its error meets |k - mean of k|, its size |k|. */
static void weigh(const struct bound_gradient_block *block, int64_t at, const struct score *s,
                  const struct correction *c, const struct bound_row *exact)
{
    const double most = s->slope + s->slope_error;
    const double as_exact = s->slope_error * s->z + most * (s->dp_error + exact->delta_error) + s->ds_rounding;
    block->dq.value[at] = s->slope;
    block->dq.error[at] = s->slope_error * (s->z + c->factor_error) + most * s->dp_error + s->ds_rounding + s->half +
                          c->factor * s->slope_rounding + c->absolute;
    /* A 16th of the error with an exact delta: times the sum's error, it exceeds the oracle's own. */
    block->dq.absolute[at] = s->ds + s->half + c->factor * (most + s->slope_rounding) + as_exact / 16;
}

/* What independent roundings give, summed over the row. */
struct noise {
    double delta_variance, delta_bias, rounding; /* rounding: variance of the sum of rounded ds */
    double weights, weights_bias;                /* of the sum of ds without its rounding */
    double p, p_bias, known, tied;               /* of the sum of rounded c p; what is known of it, or near a tie */
};

static void add_noise(const struct bound_gradient_head *g, const struct bound_gradient_block *block, int64_t at,
                      const struct bound_view *v, const struct bound_row *row, int64_t j, const struct score *s,
                      struct noise *noise)
{
    const struct ref_machine *m = &g->head.machine;
    const struct bound_slope c = bound_slope_of(g, block, at);
    const double u = m->u, sigma_dp = bound_sigma_of_dp(g, v, j), lag_of_dp = bound_lag_of_dp(g, v, j);
    const double z = s->z + row->delta_bias + lag_of_dp + sigma_dp, lag = v->weight_bias[j] + fabs(v->score_lag[j]);
    const double sizes = fabs(s->dp) + fabs(row->delta) + fabs(row->dlse), dx = s->p * z;
    const double sigma_z = sigma_dp + u * sizes, skew = dx * v->weight_sigma[j];
    const double of_dx = s->p * s->p * sigma_z * sigma_z + skew * skew + u * u * dx * dx;
    const double bias = s->p * lag_of_dp + dx * (lag + row->lse_bias), slope_skew = dx * c.sigma;
    const double equal = bound_equal(&block->rows, at);
    const double rounding = equal * bound_variance_of_rounding(&m->ds, s->slope * z);
    const double variance = equal * (c.value * c.value * of_dx + slope_skew * slope_skew);
    noise->delta_variance += equal * of_dx;
    noise->delta_bias += bias;
    noise->rounding += rounding;
    noise->weights += variance;
    noise->weights_bias += c.value * bias + dx * c.bias;
    noise->p_bias += s->p * (lag + row->lse_bias);
    const double p_skew = s->p * v->weight_sigma[j];
    noise->p += equal * p_skew * p_skew;
    if (m->p_dq.dtype != ATTEST_ABSENT) {
        const double lower = ref_round(m->p_dq.dtype, s->slope - s->slope_error);
        const double rounding = ref_round(m->p_dq.dtype, s->slope) - s->slope;
        *(lower == ref_round(m->p_dq.dtype, s->slope + s->slope_error) ? &noise->known : &noise->tied) += rounding;
    }
    block->dq.variance[at] = variance + rounding;
    block->dq.bias[at] = c.value * bias + dx * c.bias + m->tiny;
}

/* delta's bias, f's share of each weight's variance, and the error of the sum of the weights. What is random for a
 * whole row is a bias there: row_sigmas standard deviations. */
static void spread_noise(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i, bool plain,
                         const struct sums *s, const struct noise *n, const struct bound_row *exact,
                         struct bound_row *row, struct bound_correction *to)
{
    const struct ref_machine *m = &g->head.machine;
    const double summed = m->u * sqrt((s->terms + 4) / 3);
    const double sizes = s->dx + fabs(row->delta) + row->delta_bias + fabs(row->dlse);
    const double of_sums = m->row_sigmas * (summed + 2 * m->u) * sizes + s->terms * m->tiny;
    const double summed_delta = n->delta_bias + m->row_sigmas * sqrt(n->delta_variance);
    const double delta_bias = of_sums + (plain ? summed_delta : exact->delta_bias);
    double of_quotient = m->row_sigmas * (sqrt(n->rounding) + 2 * summed * s->ds);
    if (!plain) of_quotient = fmin(of_quotient / s->slope, 2 * s->largest); /* of c p that all but vanish the latter */
    const double factor = row->delta_bias + delta_bias + of_quotient;
    row->delta_bias = delta_bias;
    to->variance = factor * factor * n->p + 2 * summed * summed * s->ds * s->ds;
    to->bias = factor * (n->p_bias + fabs(n->known) + fabs(n->tied)) + s->terms * m->tiny;
    if (!plain) {
        to->variance += n->weights;
        to->bias += n->weights_bias + s->slope * row->delta_bias;
    }
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        const int64_t at = i * g->head.ld + j;
        const double c_p = block->dq.value[at];
        const double rounding = factor * fmax(m->p_dq.relative * c_p, fmin(m->p_dq.tiny, c_p));
        block->dq.variance[at] += bound_equal(&block->rows, at) * rounding * rounding / 3;
    }
}

void bound_correct_row(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i,
                       const struct bound_view *v, const struct bound_row *exact, struct bound_row *row)
{
    const struct ref_machine *m = &g->head.machine;
    const struct attest_problem *p = g->head.problem;
    const int64_t from = i * g->head.ld;
    const bool plain = !(p->softcap > 0) && !p->has_sink;
    struct bound_correction *to = &block->corrections[i];
    struct sums sums = {0};
    struct noise noise = {0};
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        if (v->live[j] == 0.0) continue;
        const struct score s = score_of(g, block, from + j, v, row, j);
        add_score(row, &s, &sums);
        if (g->statistics) add_noise(g, block, from + j, v, row, j, &s, &noise);
        if (!(s.ds < fmin(m->ds.overflow, m->huge)) || !(s.slope + s.slope_error < fmin(m->p_dq.overflow, m->huge)))
            block->states[i].overflow = true;
    }
    const struct correction c = plain ? correct_plain(m, row, &sums) : correct_general(m, row, &sums);
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        if (v->live[j] == 0.0) continue;
        const struct score s = score_of(g, block, from + j, v, row, j);
        weigh(block, from + j, &s, &c, exact);
        to->norm += block->dq.absolute[from + j];
    }
    to->slope_sum = sums.slope;
    to->slope_error = sums.slope_error + sums.slope_rounding;
    to->factor = c.factor;
    to->sum = c.sum;
    if (g->statistics) spread_noise(g, block, i, plain, &sums, &noise, exact, row, to);
    row->delta_error = c.delta_error + BOUND_ORACLE_SHARE * exact->delta_error;
    if (!g->statistics) row->delta_bias = row->delta_error;
    row->delta_bias = fmin(row->delta_bias, row->delta_error);
}

void bound_corrected_dq(const struct bound_gradient_head *g, struct bound_gradient_block *block,
                        struct bound_terms *dq)
{
    const struct ref_vector *vector = ref_vector();
    const int64_t rows = block->rows.rows, d = g->head.problem->head_dim, n = g->head.num_keys, ld = g->head.ld;
    bound_walk_sums(block, &block->ds, rows, d, n, ld, &g->k_rows, dq);
    bound_product(rows, d, n, block->dq.absolute, ld, 1, g->k_rows.absolute, n, false, dq->absolute, d);
    bound_product(rows, d, n, block->dq.value, ld, 1, g->k_rows.plain, n, false, block->k_mean, d);
    bound_product(rows, d, n, block->dq.value, ld, 1, g->k_rows.absolute, n, false, dq->error, d);
    for (int64_t at = 0; at < rows * d; ++at) {
        const int64_t i = at / d;
        const struct bound_correction *c = &block->corrections[i];
        const double mean = c->slope_sum > 0.0 ? block->k_mean[at] / c->slope_sum : 0.0;
        const double *const k = g->k_columns + at % d * ld;
        const bool overflow = dq->error[at] + c->slope_error * g->k_sum[at % d] > g->head.machine.huge;
        /* 3 u: f times its sum, and that added; 2^-52: the mean as it was computed here */
        const double rounded = 3 * g->head.machine.u + (double)block->states[i].live * 0x1p-52;
        dq->error[at] = vector->dot_distance(ld, block->dq.error + i * ld, k, mean) + fabs(mean) * c->sum +
                        rounded * dq->absolute[at];
        if (overflow) dq->error[at] = INFINITY; /* the sum of c p k */
        if (!dq->variance) continue;
        dq->variance[at] =
            vector->dot_square(ld, block->dq.variance + i * ld, k, mean) + mean * mean * c->variance;
        dq->bias[at] = vector->dot_distance(ld, block->dq.bias + i * ld, k, mean) + fabs(mean) * c->bias;
    }
}

bool bound_take_correction(struct bound_pool *pool, struct bound_gradient_head *g, struct bound_gradient_block *block)
{
    const struct bound_head *head = &g->head;
    const int64_t d = head->problem->head_dim, size = BOUND_BLOCK * head->ld;
    double **const arrays[] = {&block->dq.value, &block->dq.absolute, &block->dq.error, &block->dq.variance,
                               &block->dq.bias};
    for (size_t a = 0; a < sizeof arrays / sizeof *arrays; ++a) *arrays[a] = bound_take(pool, size);
    g->k_columns = bound_take(pool, d * head->ld);
    if (pool->failed) return false;
    for (int64_t j = 0; j < head->num_keys; ++j)
        for (int64_t x = 0; x < d; ++x) g->k_columns[x * head->ld + j] = head->k.value[j * d + x];
    return true;
}

/* bounds_rows.c - errors of scores and of softmax weights: reference/bounds.md sections 4 and 5. */
#include "reference/bounds_rows.h"

#include <math.h>
#include <string.h>

#include "reference/bounds_noise.h"
#include "reference/formats.h"

/* Beyond this an error of an exponent is no longer worth a first-order formula. */
#define LARGE_EXPONENT_ERROR 8.0

double bound_with_output(const struct ref_machine *m, int32_t dtype, double value, double bound)
{
    if (!m->rounds_outputs || !isfinite(bound)) return bound;
    const double largest = ref_format(dtype)->max_finite;
    return bound + ref_half_ulp(dtype, fmin(fabs(value) + bound, largest));
}

double bound_output_variance(const struct ref_machine *m, int32_t dtype, double value)
{
    if (!m->rounds_outputs || !(fabs(value) < ref_format(dtype)->overflow)) return 0.0;
    const double half = ref_half_ulp(dtype, value);
    return half * half / 3;
}

bool bound_take_block(struct bound_pool *pool, const struct bound_head *head, struct bound_block *block)
{
    const int64_t size = BOUND_BLOCK * head->ld;
    double **const arrays[] = {&block->x,           &block->live,         &block->score_error,
                               &block->score_sigma, &block->score_bias,   &block->drop,
                               &block->p,           &block->centred,      &block->plus,
                               &block->rounding,    &block->weight_sigma, &block->weight_bias,
                               &block->dot_abs,     &block->dot_square,   &block->score_lag,
                               &block->rounding_variance};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) *arrays[i] = bound_take(pool, size);
    const bool capped = head->problem->softcap > 0;
    block->tanh = capped ? bound_take(pool, size) : NULL;
    block->tanh_error = capped ? bound_take(pool, size) : NULL;
    return !pool->failed;
}

/* One score with its error so far: what follows the dot product adds to it. */
struct score {
    double x, error, sigma, bias, lag;
};

static double sum_of_squares(double a, double b) { return sqrt(a * a + b * b); }

/* t = softcap tanh(s / softcap): |tanh'| <= 1, and falls away from zero. */
static void cap_score(const struct ref_machine *m, double cap, struct score *s, double *tanh_value, double *tanh_error)
{
    const double argument = s->x / cap, value = tanh(argument);
    const double error = s->error / cap + 2 * m->u * fabs(argument);
    const double nearest = tanh(fmax(0.0, fabs(argument) - error)), slope = 1 - nearest * nearest;
    *tanh_value = value;
    *tanh_error = fmin(slope * error, 2.0) + m->tanh_error * fabs(value) + m->tanh_floor;
    s->x = cap * value;
    s->error = cap * *tanh_error + 2 * m->u * fabs(s->x) + m->tiny;
    s->sigma = sum_of_squares(slope * s->sigma, 2 * m->u * fabs(s->x));
    s->lag *= slope;
    s->bias = slope * s->bias + m->tanh_error * fabs(s->x) + cap * m->tanh_floor;
}

/* x = t + bias - alibi: each addend is scaled by log2(e) or rounded, and two sums round. */
static void shift_score(const struct bound_head *head, int64_t r, int64_t c, struct score *s)
{
    const struct attest_problem *p = head->problem;
    const bool has_bias = p->bias.dtype != ATTEST_ABSENT;
    if (!has_bias && !p->has_alibi) return;
    double bias = 0.0, alibi = 0.0;
    if (has_bias) bias = ref_load(p->bias.dtype, head->args->bias, ref_score_offset(&p->bias, head->b, head->h, r, c));
    if (p->has_alibi) {
        const int64_t distance = p->k_start + c - (p->q_start + r + head->sequence.alibi_diag);
        alibi = (double)head->args->alibi_slopes[head->h] * fabs((double)distance);
    }
    const double rounded = head->machine.u * (4 * (fabs(s->x) + fabs(bias) + fabs(alibi)) + 2 * fabs(alibi));
    s->x += bias - alibi;
    s->error += rounded + 3 * head->machine.tiny;
    s->sigma = sum_of_squares(s->sigma, rounded / 3);
}

/* What the oracle itself says of a score that an infinity or a NaN enters. */
static void true_scores(const struct bound_head *head, int64_t r, double *x)
{
    struct ref_row row = {.x = x};
    ref_score_row(head->problem, head->args, &head->sequence, head->b, head->h, r, &row);
}

static bool has_special_operand(const struct bound_head *head, const struct bound_block *block, int64_t i, int64_t c)
{
    return block->q.finite[i] == 0.0 || head->k.finite[c] == 0.0;
}

/* Score (i, c) of the block; block->x holds q.k and block->dot_abs sum |q||k|. */
static void one_score(struct bound_head *head, struct bound_block *block, int64_t i, int64_t c,
                      struct bound_row_state *state)
{
    const struct attest_problem *p = head->problem;
    const struct ref_machine *m = &head->machine;
    const int64_t at = i * head->ld + c, r = block->first + i;
    const double scale = fabs((double)p->softmax_scale), dot_abs = block->dot_abs[at];
    const double lost = m->lost * (block->q.norm[i] + head->k.norm[c] + (double)p->head_dim * m->least_operand);
    struct score s = {.x = (double)p->softmax_scale * block->x[at]};
    s.error = scale * (head->features.rel * dot_abs + lost + 2 * (double)p->head_dim * m->tiny);
    s.error += 2 * m->u * fabs(s.x) + m->tiny;
    const double square = block->dot_square[at], reach = bound_reach_of_any(block->x[at], dot_abs, square);
    const struct ref_sum *const sum = &head->features;
    const double drift = sum->bias + sum->aligned; /* its part that differs from score to score is noise */
    s.sigma = sum_of_squares(scale * sum_of_squares(sum->sigma * reach, drift * sqrt(square)), m->u * fabs(s.x));
    s.lag = drift / 2 * s.x;
    double largest = fmax(dot_abs, scale * dot_abs);
    if (p->softcap > 0) cap_score(m, (double)p->softcap, &s, &block->tanh[at], &block->tanh_error[at]);
    shift_score(head, r, c, &s);
    if (isnan(s.x) || s.x == INFINITY) state->broken = true;
    if (!isfinite(s.x)) {
        block->x[at] = -INFINITY;
        return;
    }
    largest = fmax(largest, 4 * fabs(s.x));
    if (p->has_alibi) largest = fmax(largest, 4 * fabs((double)head->args->alibi_slopes[head->h]));
    if (largest > m->huge) state->overflow = true;
    if (m->rescales && scale > 0 && scale < m->tiny) state->overflow = true; /* it may be flushed to zero */
    block->x[at] = s.x;
    block->score_error[at] = s.error;
    block->score_sigma[at] = s.sigma;
    block->score_bias[at] = s.bias;
    block->score_lag[at] = s.lag;
    block->drop[at] = ref_dropout(p, head->args, head->b, head->h, r, c);
    block->live[at] = 1.0;
    ++state->live;
    state->largest = fmax(state->largest, s.x);
}

static void block_row_scores(struct bound_head *head, struct bound_block *block, int64_t i, double *special,
                             struct bound_row_state *state)
{
    const struct attest_problem *p = head->problem;
    const int64_t r = block->first + i;
    int64_t visible = 0;
    bool special_known = false;
    for (int64_t c = 0; c < head->ld; ++c) {
        const int64_t at = i * head->ld + c;
        block->live[at] = block->score_error[at] = block->score_sigma[at] = block->score_bias[at] = block->drop[at] =
            block->score_lag[at] = 0.0;
        if (c >= head->num_keys || !ref_visible(p, head->args, &head->sequence, head->b, head->h, r, c)) {
            block->x[at] = -INFINITY;
            continue;
        }
        ++visible;
        if (has_special_operand(head, block, i, c)) {
            if (!special_known) true_scores(head, r, special);
            special_known = true;
            block->x[at] = -INFINITY;
            if (special[c] != -INFINITY) state->broken = true;
            continue;
        }
        one_score(head, block, i, c, state);
    }
    const double sink = p->has_sink ? (double)head->args->sink[head->h] : -INFINITY;
    state->top = fmax(state->largest, sink);
    state->empty = visible == 0 && !p->has_sink;
    if (!state->empty && !isfinite(state->top)) state->broken = true;
    if (isnan(sink)) state->broken = true;
    if (4 * fabs(state->top) > head->machine.huge) state->overflow = true;
}

void bound_block_scores(struct bound_head *head, struct bound_block *block, struct bound_row_state *states)
{
    const struct attest_problem *p = head->problem;
    const int64_t n = head->num_keys, d = p->head_dim;
    double absolute[BOUND_BLOCK * 256];
    for (int64_t i = 0; i < block->rows * d; ++i) absolute[i] = fabs(block->q.value[i]);
    bound_product(block->rows, n, d, block->q.value, d, 1, head->k_transposed.plain, d, false, block->x, head->ld);
    bound_product(block->rows, n, d, absolute, d, 1, head->k_transposed.absolute, d, false, block->dot_abs, head->ld);
    for (int64_t i = 0; i < block->rows * d; ++i) absolute[i] *= absolute[i];
    bound_product(block->rows, n, d, absolute, d, 1, head->k_transposed.square, d, false, block->dot_square, head->ld);
    for (int64_t i = 0; i < block->rows; ++i) {
        states[i] = (struct bound_row_state){.largest = -INFINITY};
        /* plus serves as scratch: it is written after the scores. */
        block_row_scores(head, block, i, block->plus + i * head->ld, &states[i]);
    }
}

/* How often the running maximum may change after a key was added. */
static int64_t count_rescales(const struct bound_head *head, int64_t live)
{
    const struct ref_machine *m = &head->machine;
    if (!m->rescales || live == 0) return 0;
    const int64_t tiles = m->tile_k > 0 ? head->num_keys / m->tile_k + 2 : live;
    return (tiles < live ? tiles : live) - 1 + (head->problem->has_sink ? 1 : 0);
}

/* Error of the exponent of a score: of x itself, of x - max in whatever order and base, of the exponentials. */
static double exponent_error(const struct ref_machine *m, const struct bound_row_state *s, double x, double score_error)
{
    const double rounded = fabs(x) + 2 * fmax(fabs(x), fabs(s->top)) + 4 * (s->top - x);
    return score_error + m->u * rounded + (double)(1 + s->rescales) * m->exp_error;
}

/* p times the growth by that error; where the error is large, the largest weight it allows. */
static double grown(double p, double x, double error, double top, double top_error)
{
    if (error <= LARGE_EXPONENT_ERROR) return p * ref_growth(error);
    return exp(fmin(0.0, x + error - top + top_error));
}

/* Half the spacing of the storage format at the unnormalised weight exp(x - m_t), relative to it: m_t, the running
 * maximum at that key as it was computed, lies between x and the ceiling of the row, so the weight lies between `least`
 * and 1. Not so where weights may be more than 1: of them two parts are made, or one that is scaled. */
static double rounding_of_weight(const struct ref_machine *m, double least, double error)
{
    const struct ref_rounding *const r = &m->p;
    if (least <= 0.5 || r->relative == 0.0 || r->parts > 1 || m->scales) return r->relative;
    const double above = ref_growth(2 * error); /* the weight exceeds 1 by no more */
    const double moved = fmin(r->relative, fmin(fmax(r->relative_below_one, above), fmax(1 - least, above)) / least);
    return m->most_weight > 1 ? fmax(moved, r->relative * r->relative) : moved;
}

/* Variance of that rounding: of weights relative to the largest, or to a maximum before it, of which only a weight above
 * 1/2 has a binade that is known. */
static double variance_of_weight(const struct ref_machine *m, double p, double exponent, double rounding)
{
    const struct ref_rounding *const r = &m->p;
    const double y = exp(exponent);
    if (r->dtype == ATTEST_ABSENT || r->parts > 1 || r->scale != 1.0 || m->most_weight > 1 || y == 0.0)
        return rounding * rounding / 3;
    if (y > 0.5) return fmin(rounding * rounding, pow(p * r->relative_below_one / y, 2.0)) / 3;
    return p / y * (p / y) * bound_variance_of_rounding(r, y);
}

static void row_lse(const struct bound_head *head, const struct bound_block *block, int64_t i,
                    struct bound_row_state *s)
{
    const double *x = block->x + i * head->ld;
    const double sink = head->problem->has_sink ? (double)head->args->sink[head->h] : -INFINITY;
    s->sink_weight = head->problem->has_sink ? exp(sink - s->top) : 0.0;
    double sum = s->sink_weight;
    for (int64_t c = 0; c < head->num_keys; ++c) {
        const double e = x[c] == -INFINITY ? 0.0 : exp(x[c] - s->top);
        block->p[i * head->ld + c] = e;
        sum += e;
    }
    s->lse = s->top + log(sum);
    s->sink_weight /= sum;
    for (int64_t c = 0; c < head->num_keys; ++c) block->p[i * head->ld + c] /= sum;
    for (int64_t c = head->num_keys; c < head->ld; ++c) block->p[i * head->ld + c] = 0.0;
}

/* lse: section 5.2. largest_error: of any exponent that counts; the others' weights are below 2^-60 each. */
static void bound_lse(const struct ref_machine *m, double largest_error, double variance, struct bound_row_state *s)
{
    const double log_sum = s->lse - s->top, terms = (double)(s->live + 2 * s->rescales + 2);
    const double sum_error = terms * m->u * (1 + terms * m->u) + 2 * terms * m->tiny;
    const double log_error = m->log_error * (1 + log_sum) + 2 * m->u * log_sum;
    s->relative = sum_error;
    const double spread = largest_error + 0x1p-60 * terms;
    s->lse_bound = (s->blurred ? spread : fmin(s->shift, spread)) + sum_error + log_error + 2 * m->tiny;
    s->lse_bound += 3 * m->u * (fabs(s->top) + fabs(s->lse));
    const double rounded = m->u * m->u * (terms + 3 * (s->top * s->top + s->lse * s->lse)) + log_error * log_error;
    s->relative_sigma = m->u * sqrt(terms / 3);
    s->lse_sigma = sqrt(variance + rounded / 3);
    s->lse_bias += (1 + (double)s->rescales) * m->exp_error + log_error; /* an approximation may err to one side */
}

/* What a row's computed scores can be at most, and the size of them. */
struct reach {
    double ceiling, size;
};

static struct reach reach_of(const struct bound_row_state *s, int64_t n, const double *x, const double *error)
{
    struct reach r = {s->top, fabs(s->top)};
    for (int64_t c = 0; c < n; ++c) {
        if (x[c] == -INFINITY) continue; /* not seen */
        r.ceiling = fmax(r.ceiling, x[c] + error[c]);
        r.size = fmax(r.size, fabs(x[c]) + error[c]);
    }
    return r;
}

void bound_row_weights(const struct bound_head *head, const struct bound_block *block, int64_t i,
                       struct bound_row_state *s)
{
    const struct ref_machine *m = &head->machine;
    const int64_t n = head->num_keys, at = i * head->ld;
    const double *const x = block->x + at, *const live = block->live + at;
    double *const p = block->p + at, *const centred = block->centred + at, *const plus = block->plus + at;
    double *const rounding = block->rounding + at, *const error = block->weight_bias + at; /* until the last loop */
    memset(centred, 0, (size_t)head->ld * sizeof *centred);
    memset(plus, 0, (size_t)head->ld * sizeof *plus);
    memset(rounding, 0, (size_t)head->ld * sizeof *rounding);
    memset(block->rounding_variance + at, 0, (size_t)head->ld * sizeof *rounding);
    row_lse(head, block, i, s);
    s->rescales = count_rescales(head, s->live);
    s->keys = ref_sum_rows(m, s->live, n);

    double top_error = 0.0, largest_error = 0.0, variance = 0.0;
    for (int64_t c = 0; c < n; ++c) {
        error[c] = live[c] != 0.0 ? exponent_error(m, s, x[c], block->score_error[at + c]) : 0.0;
        if (live[c] != 0.0 && x[c] == s->top) top_error = fmax(top_error, error[c]);
    }
    const double sink = head->problem->has_sink ? (double)head->args->sink[head->h] : s->top;
    const double sink_error = exponent_error(m, s, sink, 0.0);
    s->shift = s->sink_weight > 0.0 ? s->sink_weight * ref_growth(fmin(sink_error, LARGE_EXPONENT_ERROR)) : 0.0;
    for (int64_t c = 0; c < n; ++c) {
        if (live[c] == 0.0) continue;
        centred[c] = grown(p[c], x[c], error[c], s->top, top_error);
        s->shift += centred[c];
        if (centred[c] > 0x1p-60) largest_error = fmax(largest_error, error[c]);
    }
    if (s->sink_weight > 0x1p-60) largest_error = fmax(largest_error, sink_error);
    const struct reach reach = reach_of(s, n, x, error);
    const double largest_weight = head->fmax * exp(3 * m->u * reach.size + m->exp_error); /* section 10 */
    if (s->live > 0 && !(largest_weight < fmin(m->p.overflow, m->huge))) s->overflow = true;

    const double factor = exp(fmin(s->shift, LARGE_EXPONENT_ERROR)), scaled_top = exp(reach.ceiling - s->lse);
    const double exponentials = m->exp_error * m->exp_error / 3, scale = fabs((double)head->problem->softmax_scale);
    s->lse_bias = 0.0;
    for (int64_t c = 0; c < n; ++c) {
        double sigma = 0.0, bias = 0.0;
        if (live[c] != 0.0) {
            const double least = x[c] > s->top - 0.7 ? exp(x[c] - error[c] - reach.ceiling) : 0.0;
            centred[c] *= factor;
            plus[c] = p[c] * factor + centred[c];
            const bool scaled = block->drop[at + c] > 1.0; /* by dropout, which may come before the rounding */
            rounding[c] = plus[c] * (scaled ? m->p.relative : rounding_of_weight(m, least, error[c]));
            rounding[c] += (m->p.tiny + m->tiny) * fmin(1.0, scaled_top * factor);
            const double rounded = fabs(x[c]) + 2 * fmax(fabs(x[c]), fabs(s->top)) + 4 * (s->top - x[c]);
            sigma = sqrt(block->score_sigma[at + c] * block->score_sigma[at + c] + exponentials +
                         m->u * m->u * rounded * rounded / 9);
            bias = block->score_bias[at + c];
            block->rounding_variance[at + c] =
                scaled ? rounding[c] * rounding[c] / 3 : variance_of_weight(m, p[c], x[c] - s->top, rounding[c]);
            variance += p[c] * p[c] * sigma * sigma;
            /* Of sums that are cut off alike, whatever their order. */
            s->lse_bias += p[c] * (bias + scale * (head->features.bias + head->features.aligned) * block->dot_abs[at + c]);
        }
        block->weight_sigma[at + c] = sigma;
        block->weight_bias[at + c] = bias;
    }
    variance += (double)s->rescales * exponentials;
    s->blurred = s->shift > 1.0 || largest_error > LARGE_EXPONENT_ERROR;
    bound_lse(m, largest_error, variance, s);
    s->shift *= factor;
}

/* bounds_rows.c - errors of scores and of softmax weights: reference/bounds.md sections 4 and 5. */
#include "reference/bounds_rows.h"

#include <float.h>
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
                               &block->rounding_variance, &block->score_cut};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) *arrays[i] = bound_take(pool, size);
    const bool capped = head->problem->softcap > 0;
    for (int l = 0; l < BOUND_LINES; ++l) block->line[l] = bound_take(pool, head->ld + 1);
    block->equal = head->key_hashes ? bound_take(pool, size) : NULL;
    block->tanh = capped ? bound_take(pool, size) : NULL;
    block->tanh_error = capped ? bound_take(pool, size) : NULL;
    return !pool->failed;
}

/* One score with its error so far: what follows the dot product adds to it. */
struct score {
    double x, error, sigma, bias, lag;
    double as_given, less_base; /* what bias and ALiBi add to the error, as they are and less the row's base */
    double above;               /* the largest of the addends, which any partial sum is within but for its sign */
};

static double sum_of_squares(double a, double b) { return sqrt(a * a + b * b); }

/* t = softcap tanh(s / softcap): |tanh'| <= 1, and falls away from zero. */
static void cap_score(const struct ref_machine *m, double cap, struct score *s, double *tanh_value, double *tanh_error)
{
    const double argument = s->x / cap, value = tanh(argument);
    const double error = s->error / cap + 2 * m->u * fabs(argument);
    const double nearest = tanh(fmax(0.0, fabs(argument) - error)), slope = 1 - nearest * nearest;
    *tanh_value = value;
    *tanh_error = fmin(slope * error, 2.0) + m->tanh_error * fmin(fabs(value) + slope * error, 1.0) + m->tanh_floor;
    s->x = cap * value;
    s->error = cap * *tanh_error + 2 * m->u * fabs(s->x) + m->tiny;
    s->sigma = sum_of_squares(slope * s->sigma, 2 * m->u * fabs(s->x));
    s->lag *= slope;
    s->bias = slope * s->bias + m->tanh_error * fabs(s->x) + cap * m->tanh_floor;
}

/* x = t + bias - alibi, less base: each addend is scaled by log2(e) or rounded, and two sums round. */
static void shift_score(const struct bound_head *head, int64_t r, int64_t c, double base, struct score *s)
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
    const double u = head->machine.u, others = u * (4 * fabs(s->x) + 6 * fabs(alibi)) + 3 * head->machine.tiny;
    s->as_given = others + 4 * u * fabs(bias);
    s->less_base = others + 5 * u * fabs(bias - base);
    s->above = fmax(fabs(s->x), fmax(bias, -alibi));
    s->x += (bias - base) - alibi;
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

/* Whether softmax_scale, softcap and what a kernel may make of them are normal numbers of fp32, or zero. */
static bool has_usable_constants(const struct attest_problem *p, const struct ref_machine *m)
{
    const double log2_e = 0x1.71547652b82fep0, scale = fabs((double)p->softmax_scale), cap = (double)p->softcap;
    if (!m->rescales) return true; /* the oracle has more room */
    if ((scale > 0 && scale < m->tiny) || scale * log2_e > FLT_MAX) return false;
    if (!(cap > 0)) return true;
    return cap >= m->tiny && cap * log2_e <= FLT_MAX && scale / cap <= FLT_MAX && !(scale > 0 && scale / cap < m->tiny);
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
    block->score_cut[at] = scale * bound_bias_of_sum(sum, reach, block->x[at], dot_abs);
    double largest = fmax(dot_abs, scale * dot_abs);
    if (p->softcap > 0) cap_score(m, (double)p->softcap, &s, &block->tanh[at], &block->tanh_error[at]);
    shift_score(head, r, c, state->base, &s);
    if (isnan(s.x) || s.x == INFINITY) state->broken = true;
    if (!isfinite(s.x)) {
        block->x[at] = -INFINITY;
        return;
    }
    if (p->has_alibi) largest = fmax(largest, 4 * fabs((double)head->args->alibi_slopes[head->h]));
    if (fmax(largest, 4 * s.above) > m->huge || !has_usable_constants(p, m)) state->overflow = true;
    block->x[at] = s.x;
    block->score_error[at] = s.error;
    block->score_sigma[at] = s.sigma;
    block->score_bias[at] = s.bias;
    block->score_lag[at] = s.lag;
    block->centred[at] = s.as_given, block->plus[at] = s.less_base; /* until it is known which of them */
    block->drop[at] = ref_dropout(p, head->args, head->b, head->h, r, c);
    block->live[at] = 1.0;
    ++state->live;
    state->largest = fmax(state->largest, s.x);
}

/* Rows of this size in base 2 are large, in kernels that ask. */
#define LARGE_ROW (0x1p10 * 0.693147180559945)

/* Whether the row is large: it is where lse or the computed maximum is, which differ by ln of the number of keys. What
 * is within a factor of 2 of the limit may be either. */
static void choose_biases(const struct bound_head *head, const struct bound_block *block, int64_t i,
                          struct bound_row_state *s)
{
    const struct ref_machine *m = &head->machine;
    double ceiling = s->top, floor = s->sink;
    for (int64_t c = 0; c < head->num_keys; ++c) {
        const int64_t at = i * head->ld + c;
        if (block->live[at] == 0.0) continue;
        const double error = block->score_error[at] + fmax(block->centred[at], block->plus[at]);
        ceiling = fmax(ceiling, block->x[at] + error);
        floor = fmax(floor, block->x[at] - error);
    }
    s->floor = floor;
    ceiling += log((double)s->live + 1);
    const double low = floor + s->base, high = ceiling + s->base;
    const double least = low > 0 ? low : high < 0 ? -high : 0.0, most = fmax(fabs(low), fabs(high));
    s->less_base = m->less_base || (m->own_sum && !(most < LARGE_ROW / 2));
    s->as_given = !m->less_base && !(m->own_sum && least > 2 * LARGE_ROW);
}

/* The errors that biases and ALiBi add to scores. */
static void add_roundings(const struct bound_head *head, const struct bound_block *block, int64_t i,
                          struct bound_row_state *s)
{
    for (int64_t c = 0; c < head->num_keys; ++c) {
        const int64_t at = i * head->ld + c;
        if (block->live[at] == 0.0) continue;
        const double rounded =
            fmax(s->as_given ? block->centred[at] : 0.0, s->less_base ? block->plus[at] : 0.0);
        block->score_error[at] += rounded;
        block->score_sigma[at] = sum_of_squares(block->score_sigma[at], rounded / 3);
        /* A key so far below the top has weight 0, whether its score is a number or -inf: section 10.2. */
        const double size = bound_size(s, block->x[at]), gap = s->floor - block->x[at] - block->score_error[at];
        if (4 * size > head->machine.huge && !(gap > size / 4)) s->overflow = true;
    }
    if (s->sink > -INFINITY && s->less_base) s->sink_error = head->machine.u * fabs(s->sink); /* sink - base */
    if (4 * bound_size(s, s->top) > head->machine.huge) s->overflow = true;
}

static void block_row_scores(struct bound_head *head, struct bound_block *block, int64_t i, double *special,
                             struct bound_row_state *state)
{
    const struct attest_problem *p = head->problem;
    const int64_t r = block->first + i;
    int64_t visible = 0;
    bool special_known = false;
    state->base = ref_largest_bias(p, head->args, &head->sequence, head->b, head->h, r, 0, head->num_keys);
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
    const double sink = p->has_sink ? (double)head->args->sink[head->h] - state->base : -INFINITY;
    state->sink = sink;
    state->top = fmax(state->largest, sink);
    state->empty = visible == 0 && !p->has_sink;
    if (!state->empty && !isfinite(state->top)) state->broken = true;
    if (isnan(sink)) state->broken = true;
    if (state->empty || state->broken) return;
    choose_biases(head, block, i, state);
    add_roundings(head, block, i, state);
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
        /* rounding serves as scratch: it is written after the scores. */
        block_row_scores(head, block, i, block->rounding + i * head->ld, &states[i]);
        if (block->equal) bound_count_equal(head, block, i);
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

/* How often a running maximum of a run of neighbouring keys may change after one of them was added, whatever the run
 * is: the most keys i behind a key j that may be computed as larger than every key from j on before i. Keys come as
 * `from` and `step` say; j with scores below `least` do not count. to: [num_keys + 1], as is stack. */
static int64_t most_records(const struct bound_head *head, const struct bound_block *block, int64_t at, int64_t from,
                            int64_t step, double least, double *stack, double *to)
{
    const int64_t n = head->num_keys;
    int64_t depth = 0, most = 0;
    memset(to, 0, (size_t)(n + 1) * sizeof *to);
    for (int64_t i = 0; i < n; ++i) { /* i, j: in the order in which keys come */
        const int64_t c = at + from + step * i;
        if (block->live[c] == 0.0) continue;
        const double high = block->x[c] + block->score_error[c], low = block->x[c] - block->score_error[c];
        /* Of the stack, whose least scores fall: the last that is sure to be larger. */
        int64_t below = 0, above = depth;
        while (below < above) {
            const int64_t middle = (below + above) / 2, at_middle = at + from + step * (int64_t)stack[middle];
            if (block->x[at_middle] - block->score_error[at_middle] >= high) below = middle + 1;
            else above = middle;
        }
        to[below > 0 ? (int64_t)stack[below - 1] + 1 : 0] += 1;
        to[i] -= 1;
        while (depth > 0) {
            const int64_t last = at + from + step * (int64_t)stack[depth - 1];
            if (block->x[last] - block->score_error[last] > low) break;
            --depth;
        }
        stack[depth++] = (double)i;
    }
    double records = 0;
    for (int64_t j = 0; j < n; ++j) {
        records += to[j];
        const int64_t c = at + from + step * j;
        if (block->live[c] == 0.0 || block->x[c] + block->score_error[c] < least) continue;
        if ((int64_t)records > most) most = (int64_t)records;
    }
    return most;
}

/* In ascending and in descending order, the sink's score before all or after. */
static int64_t count_ordered_rescales(const struct bound_head *head, const struct bound_block *block, int64_t i,
                                      const struct bound_row_state *s)
{
    const int64_t n = head->num_keys, at = i * head->ld;
    if (s->rescales == 0) return 0;
    const double least = s->floor - 100; /* what weighs less than e^-100 may be off by as much: eta is more */
    const int64_t up = most_records(head, block, at, 0, 1, least, block->line[0], block->line[1]);
    const int64_t down = most_records(head, block, at, n - 1, -1, least, block->line[0], block->line[1]);
    const int64_t most = (up > down ? up : down) + 1; /* of a run that joins another, or of the sink */
    return most < s->rescales ? most : s->rescales;
}

/* By how much what weights are relative to may be less than the maximum of the scores seen so far (section 5.5). */
static double behind(const struct ref_machine *m) { return 0.693147180559945309 * m->rescale_log2; }

/* Error of the exponent of a score: of x itself, of x - max in whatever order and base, of the exponentials. */
static double exponent_error(const struct ref_machine *m, const struct bound_row_state *s, double x, double score_error)
{
    const double size = bound_size(s, x), rounded = size + 2 * fmax(size, bound_size(s, s->top)) + 4 * (s->top - x) +
                                                    10 * behind(m);
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
    if (least <= 0.5 || r->relative == 0.0 || m->rescale_log2 > 0 || r->parts > 1 || m->scales) return r->relative;
    const double above = ref_growth(2 * error); /* the weight exceeds 1 by no more */
    const double moved = fmin(r->relative, fmin(fmax(r->relative_below_one, above), fmax(1 - least, above)) / least);
    return m->most_weight > 1 ? fmax(moved, r->relative * r->relative) : moved;
}

/* Variance of that rounding: of weights relative to the largest, or to a maximum before it, of which only a weight
 * above 1/2 has a binade that is known. */
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
    s->sink_weight = head->problem->has_sink ? exp(s->sink - s->top) : 0.0;
    double sum = s->sink_weight;
    for (int64_t c = 0; c < head->num_keys; ++c) {
        const double e = x[c] == -INFINITY ? 0.0 : exp(x[c] - s->top);
        block->p[i * head->ld + c] = e;
        sum += e;
    }
    s->log_sum = log(sum);
    s->lse = s->top + s->log_sum;
    s->sink_weight /= sum;
    for (int64_t c = 0; c < head->num_keys; ++c) block->p[i * head->ld + c] /= sum;
    for (int64_t c = head->num_keys; c < head->ld; ++c) block->p[i * head->ld + c] = 0.0;
}

/* lse: section 5.2. spread: |ln of the computed sum - ln of the true one|, but for roundings of sum and logarithm. */
static void bound_lse(const struct ref_machine *m, double spread, double variance, struct bound_row_state *s)
{
    const double log_sum = s->log_sum, terms = (double)(s->live + 2 * s->rescales + 2);
    const double top = bound_size(s, s->top), lse = bound_size(s, s->lse);
    const double sum_error = terms * m->u * (1 + terms * m->u) + 2 * terms * m->tiny;
    const double logarithm = log_sum + behind(m), log_error = m->log_error * (1 + logarithm) + 2 * m->u * logarithm;
    s->relative = sum_error;
    s->lse_bound = spread + sum_error + log_error + 2 * m->tiny + 3 * m->u * (top + lse + behind(m));
    if (s->less_base) s->lse_bound += m->u * fabs(s->lse + s->base); /* base comes last */
    const double rounded = m->u * m->u * (terms + 3 * (top * top + lse * lse)) + log_error * log_error;
    s->relative_sigma = m->u * sqrt(terms / 3);
    s->lse_sigma = sqrt(variance + rounded / 3);
    if (s->less_base && s->base != 0.0) /* what base and it add up to, rounded, may be all there is */
        s->lse_sigma = sqrt(s->lse_sigma * s->lse_sigma + bound_output_variance(m, ATTEST_FP32, s->base + s->lse));
    s->lse_bias += (1 + (double)s->rescales) * m->exp_error + log_error; /* an approximation may err to one side */
    s->lse_bias += 1.25 * m->u * fmax(top, lse); /* all scores have the rounding of one softmax_scale log2 e */
}

/* What a row's computed scores can be at most, and the size of them. */
struct reach {
    double ceiling, size;
};

static struct reach reach_of(const struct bound_row_state *s, int64_t n, const double *x, const double *error)
{
    struct reach r = {s->top, bound_size(s, s->top)};
    for (int64_t c = 0; c < n; ++c) {
        if (x[c] == -INFINITY) continue; /* not seen */
        r.ceiling = fmax(r.ceiling, x[c] + error[c]);
        r.size = fmax(r.size, bound_size(s, x[c]) + error[c]);
    }
    return r;
}

/* What each normalised weight may be off by, of exponents with the errors in line 1: to line 2. Returns the sum.
 * spread: |ln of the computed sum - ln of the true one|, where that is less. */
static double take_intervals(const struct bound_head *head, const struct bound_block *block, int64_t i, double *spread,
                             const struct bound_row_state *s)
{
    const int64_t n = head->num_keys;
    double *const off = block->line[2];
    double sum = 0.0;
    bound_log_weights(head, block, i, s);
    const double most = bound_intervals(n + 1, block->line[0], block->line[1], block->line[4], block->line[3], off);
    *spread = fmin(*spread, most);
    for (int64_t c = 0; c <= n; ++c) {
        const double p = c < n ? block->p[i * head->ld + c] : s->sink_weight;
        off[c] = fmax(off[c] - p, p - block->line[3][c]);
        sum += off[c];
    }
    return sum;
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
    if (m->ordered) s->rescales = count_ordered_rescales(head, block, i, s);
    s->keys = ref_sum_rows(m, s->live, n, 1);

    double top_error = 0.0, largest_error = 0.0, variance = 0.0;
    for (int64_t c = 0; c < n; ++c) {
        error[c] = live[c] != 0.0 ? exponent_error(m, s, x[c], block->score_error[at + c]) : 0.0;
        if (live[c] != 0.0 && x[c] == s->top) top_error = fmax(top_error, error[c]);
    }
    const double sink_error = exponent_error(m, s, head->problem->has_sink ? s->sink : s->top, s->sink_error);
    s->shift = s->sink_weight > 0.0 ? s->sink_weight * ref_growth(fmin(sink_error, LARGE_EXPONENT_ERROR)) : 0.0;
    for (int64_t c = 0; c < n; ++c) {
        if (live[c] == 0.0) continue;
        centred[c] = grown(p[c], x[c], error[c], s->top, top_error);
        s->shift += centred[c];
        if (centred[c] > 0x1p-60) largest_error = fmax(largest_error, error[c]);
    }
    if (s->sink_weight > 0x1p-60) largest_error = fmax(largest_error, sink_error);
    const struct reach reach = reach_of(s, n, x, error);
    const double unfused = bound_is_linear(head->problem) ? 3 * m->u * reach.size : 0.0; /* section 10.1 */
    const double largest_weight = head->fmax * exp(unfused + m->exp_error + behind(m));
    if (s->live > 0 && !(largest_weight < fmin(m->p.overflow, m->huge))) s->overflow = true;

    const bool is_small = s->shift <= LARGE_EXPONENT_ERROR && largest_error <= LARGE_EXPONENT_ERROR;
    double factor = exp(fmin(s->shift, LARGE_EXPONENT_ERROR)), inverse = factor; /* inverse: of the sum */
    double spread = largest_error + 0x1p-60 * (double)(n + 1);
    if (is_small) spread = fmin(spread, s->shift); /* else that is no sum of p E(eps) */
    if (s->shift > 0x1p-10 || !is_small) { /* else intervals are no narrower, or what they save is little */
        memcpy(block->line[1], error, (size_t)n * sizeof *error);
        block->line[1][n] = sink_error;
        const double by_interval = take_intervals(head, block, i, &spread, s);
        if (!is_small || by_interval < s->shift * factor) {
            for (int64_t c = 0; c < n; ++c) centred[c] = block->line[2][c];
            s->shift = by_interval, factor = 1.0;
        }
        inverse = exp(spread);
    }
    s->largest_share = fmin(1.0, exp(reach.ceiling - s->lse) * inverse);
    const double exponentials = m->exp_error * m->exp_error / 3;
    s->lse_bias = 0.0;
    for (int64_t c = 0; c < n; ++c) {
        double sigma = 0.0, bias = 0.0;
        if (live[c] != 0.0) {
            const double least = x[c] > s->top - 0.7 ? exp(x[c] - error[c] - reach.ceiling) : 0.0;
            centred[c] *= factor;
            plus[c] = p[c] * factor + centred[c];
            const bool scaled = block->drop[at + c] > 1.0; /* by dropout, which may come before the rounding */
            rounding[c] = plus[c] * (scaled ? m->p.relative : rounding_of_weight(m, least, error[c]));
            rounding[c] += (m->p.tiny + m->tiny) * s->largest_share;
            const double size = bound_size(s, x[c]);
            const double rounded = size + 2 * fmax(size, bound_size(s, s->top)) + 4 * (s->top - x[c]);
            sigma = sqrt(block->score_sigma[at + c] * block->score_sigma[at + c] + exponentials +
                         m->u * m->u * rounded * rounded / 9);
            bias = block->score_bias[at + c];
            block->rounding_variance[at + c] =
                scaled ? rounding[c] * rounding[c] / 3 : variance_of_weight(m, p[c], x[c] - s->top, rounding[c]);
            variance += bound_equal(block, at + c) * p[c] * p[c] * sigma * sigma;
            s->lse_bias += p[c] * (bias + block->score_cut[at + c]);
        }
        block->weight_sigma[at + c] = sigma;
        block->weight_bias[at + c] = bias;
    }
    variance += (double)s->rescales * exponentials;
    bound_lse(m, spread, variance, s);
    s->shift *= factor;
}

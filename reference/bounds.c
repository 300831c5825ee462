/* bounds.c - bounds of o and lse: reference/bounds.md section 5. */
#include "reference/bounds.h"

#include <math.h>
#include <string.h>

#include "reference/bounds_noise.h"
#include "reference/bounds_rows.h"
#include "reference/formats.h"

const char *const ref_tensor_names[REF_NUM_TENSORS] = {"o", "lse", "dq", "dk", "dv", "dbias", "dsink"};

/* What rounding y leaves, y of fewer than 53 - r's digits: to as many digits at any size, in each of its parts (Dekker
 * 1971). */
static inline double what_rounding_adds(double split, int parts, double y)
{
    double left = y;
    for (int n = 0; n < parts; ++n) {
        const double product = split * left;
        left -= product - (product - left);
    }
    return -left;
}

/* What the roundings of a row's weights do to all of o alike, for each phase: bounds.md section 9.6. */
static void find_shared_rounding(const struct bound_head *head, const struct bound_block *block, int64_t i,
                                 struct bound_row_state *s)
{
    const struct ref_machine *m = &head->machine;
    const double split = 0x1p53 * ref_format(m->p.dtype)->unit_roundoff + 1, of_top = exp(s->lse - s->top);
    double factors[BOUND_PHASES], sum = 0.0, variance = 0.0;
    for (int k = 0; k < BOUND_PHASES; ++k) factors[k] = 1 + 2 * m->p.relative_below_one * k / BOUND_PHASES;
    for (int64_t at = i * head->ld; at < i * head->ld + head->num_keys; ++at) {
        const double drop = block->drop[at], last = block->p[at] * of_top;
        if (!(drop * last > 0.0)) continue;
        const double first = what_rounding_adds(split, m->p.parts, last);
        for (int k = 0; k < BOUND_PHASES; ++k) {
            const double y = last * factors[k]; /* where it is above the maximum, that maximum was not yet the key's */
            s->shared[k] += drop * (y <= m->most_weight ? what_rounding_adds(split, m->p.parts, y) : first);
        }
        sum += drop * last;
        variance += bound_equal(block, at) * drop * drop * block->rounding_variance[at];
    }
    if (!(sum > 0.0)) return;
    s->shared_variance = variance * of_top * of_top / (sum * sum);
    for (int k = 0; k < BOUND_PHASES; ++k) s->shared[k] /= sum;
}

/* The weights of one row that meet |v|, v and v^2 in the four products below. */
struct weights {
    double *all;      /* everything that multiplies |v| in the rigorous bound; where keys are ordered, but for sums */
    double *size;     /* the largest computed m p, which the sums' errors multiply; NULL where they are in `all` */
    double *p;        /* m p */
    double *variance; /* of the rounded weight, and of the exponent: these meet v^2 */
    double *exponent; /* the latter alone, as it meets (m v - o)^2 */
    double *bias;
    double *lag;    /* of exponents: what sums that are cut off make of p, and meets v with its sign */
    double *square; /* (m p)^2 */
};

static void weigh_row(const struct bound_head *head, const struct bound_block *block, int64_t i,
                      const struct bound_row_state *s, const struct weights *w)
{
    const struct ref_machine *m = &head->machine;
    const double sum = ref_both(s->keys.rel, ref_growth((double)s->rescales * m->u));
    for (int64_t j = 0; j < head->num_keys; ++j) {
        const int64_t at = i * head->ld + j;
        const double drop = block->drop[at], p = drop * block->p[at], rounding = block->rounding[at];
        const double skew = p * block->weight_sigma[at], equal = bound_equal(block, at);
        w->p[at] = p;
        w->all[at] = drop * (block->centred[at] + rounding + (w->size ? 0.0 : sum * (block->plus[at] + rounding)));
        if (w->size) w->size[at] = drop * (block->plus[at] + rounding);
        w->variance[at] = equal * (drop * drop * block->rounding_variance[at] + skew * skew);
        w->exponent[at] = drop > 0 ? equal * skew * skew / drop : 0.0;
        w->bias[at] = p * block->weight_bias[at];
        w->lag[at] = p * block->score_lag[at];
        w->square[at] = p * p;
    }
}

/* The multiplier of dropout may come last and enlarge what underflow took before. */
double bound_lost_of_o(const struct bound_head *head, const struct bound_row_state *s, int64_t c)
{
    const struct ref_machine *m = &head->machine;
    const double live = (double)s->live, steps = (double)(3 * s->live + 3 * s->rescales + 8);
    /* Weights are subnormal beside 1, the values' norm as they are. */
    const double values = head->v_sum[c] + live * m->least_operand;
    const double operands = m->lost * (1 + s->largest_share * values);
    const double once = head->fmax * (operands + steps * m->tiny);
    if (head->v_floor == 0.0) return once;
    return once + (1 + s->keys.rel) * bound_lost_to_scaling(m->p.tiny, head->v_floor, 1 + 0x1p-9, head->v_sum[c], live);
}

/* What any weighted mean of the rows of v can be away from another, rounding included. */
static double hull(const struct bound_head *head, const struct bound_row_state *s, int64_t c)
{
    const struct ref_machine *m = &head->machine;
    const double n = (double)s->live, reach = head->fmax * head->v_max[c];
    return 2 * reach * (1 + 2 * (m->p.relative + s->keys.rel + s->relative + 10 * m->u) + n * (m->p.tiny + m->tiny));
}

/* Sums of the statistics: p |v|, variance v^2, exponent v, bias |v|, lag v; what o amounts to on its way; weights of
 * errors along o. */
enum { SIZE, VARIANCE, EXPONENT, BIAS, LAG, REACH, ALONG, NUM_SUMS };
struct noise {
    double *sums[NUM_SUMS];
    struct bound_path path;
};

/* Variance of row i along o: the same roundings of weights reach all of its features. */
static double along_o(const struct bound_head *head, const struct bound_block *block, int64_t i,
                      const struct bound_row_state *s, const struct weights *w, const struct noise *noise,
                      const double *reaches, const struct bound_block_output *out)
{
    const struct ref_machine *m = &head->machine;
    const int64_t d_v = head->problem->head_dim_v;
    const double exponentials = (double)s->rescales * m->exp_error * m->exp_error / 3;
    const double *const o = out->o + i * d_v;
    double mean = 0.0, spread = 0.0, variance = 0.0;
    for (int64_t c = 0; c < d_v; ++c) {
        const double weight = bound_weight_along(o[c], out->sigma[i * d_v + c], out->bias[i * d_v + c]);
        const double reach = noise->sums[REACH][i * d_v + c], summed = s->keys.sigma * reach;
        mean += weight * o[c];
        spread += fabs(weight) * (reach + fabs(o[c]));
        variance += weight * weight * (summed * summed + 3 * m->u * m->u * o[c] * o[c]);
    }
    variance += exponentials * spread * spread;
    variance += (s->relative_sigma * s->relative_sigma + out->alike.variance) * mean * mean;
    for (int64_t j = 0; j < head->num_keys; ++j) {
        const int64_t at = i * head->ld + j;
        const double p = block->p[at] * block->weight_sigma[at], exponent = w->exponent[at];
        variance += w->variance[at] * reaches[at] * reaches[at] - 2 * exponent * reaches[at] * mean +
                    bound_equal(block, at) * p * p * mean * mean;
    }
    return variance;
}

/* The largest difference of two partial sums of m p v over the row's keys in order, of each feature. */
static void find_ranges(const struct bound_head *head, const double *p, double *low, double *high, double *sum)
{
    const int64_t d_v = head->problem->head_dim_v;
    for (int64_t c = 0; c < d_v; ++c) low[c] = high[c] = sum[c] = 0.0;
    for (int64_t j = 0; j < head->num_keys; ++j) {
        const double weight = p[j], *const v = head->v.value + j * d_v;
        if (weight == 0.0) continue;
        for (int64_t c = 0; c < d_v; ++c) {
            sum[c] += weight * v[c];
            low[c] = sum[c] < low[c] ? sum[c] : low[c];
            high[c] = sum[c] > high[c] ? sum[c] : high[c];
        }
    }
    for (int64_t c = 0; c < d_v; ++c) high[c] -= low[c];
}

/* The errors of the sums of a row whose keys come in order, to its bounds: section 3.4. */
static void add_ordered_sums(const struct bound_head *head, const struct bound_row_state *s, const double *p,
                             const double *size, double *lines, double *bound)
{
    const int64_t d_v = head->problem->head_dim_v;
    const double kappa = ref_both(s->keys.rel, ref_growth((double)s->rescales * head->machine.u));
    const double step = ref_step_error(&head->machine);
    double *const range = lines;
    find_ranges(head, p, lines + d_v, range, lines + 2 * d_v);
    for (int64_t c = 0; c < d_v; ++c) {
        const double ordered = (1 + kappa) * (kappa * (2 * range[c] + bound[c]) + step * size[c]);
        bound[c] += fmin(kappa * size[c], ordered);
    }
}

/* Row i from the products, which come in `out`: o, all |v| in bound. */
static void finish_row(const struct bound_head *head, const struct bound_block *block, int64_t i,
                       const struct bound_row_state *s, const struct noise *noise, const struct bound_block_output *out)
{
    const struct ref_machine *m = &head->machine;
    const int64_t d_v = head->problem->head_dim_v;
    const double relative = ref_growth(s->relative + 10 * m->u);
    const double exponentials = (double)s->rescales * m->exp_error * m->exp_error / 3;
    double exponent = 0.0, bias = 0.0, lag = 0.0;
    for (int64_t j = 0; j < head->num_keys; ++j) {
        const int64_t at = i * head->ld + j;
        const double p = block->p[at];
        exponent += bound_equal(block, at) * p * p * block->weight_sigma[at] * block->weight_sigma[at];
        bias += p * block->weight_bias[at];
        lag += p * block->score_lag[at];
    }
    for (int64_t c = 0; c < d_v; ++c) {
        const int64_t at = i * d_v + c;
        const double o = out->o[at], size = fabs(o);
        const double lost = bound_lost_of_o(head, s, c);
        double bound = out->bound[at] + size * s->shift + lost;
        bound += relative * (size + bound);
        bound = fmin(bound, hull(head, s, c) + lost);
        if (!m->rescales) bound += size * ref_growth(s->lse_bound); /* the oracle may take exp(x - lse) */
        if (s->overflow || head->fmax * head->v_sum[c] * m->most_weight > m->huge) bound = INFINITY;
        const double total = bound_with_output(m, m->o_dtype, o, bound);
        out->bound[at] = total * BOUND_SLACK;
        if (!out->sigma) continue;
        const double sum_v = noise->sums[SIZE][at], reach = bound_reach(&noise->path, at, o, sum_v, (double)s->live);
        double variance = noise->sums[VARIANCE][at] - 2 * o * noise->sums[EXPONENT][at] + o * o * exponent;
        variance = fmax(variance, 0.0) + exponentials * (reach + size) * (reach + size);
        variance += s->keys.sigma * s->keys.sigma * reach * reach;
        variance += (s->relative_sigma * s->relative_sigma + out->alike.variance + 3 * m->u * m->u) * o * o;
        noise->sums[REACH][at] = reach;
        out->sigma[at] = sqrt(variance + bound_output_variance(m, m->o_dtype, o));
        out->bias[at] = noise->sums[BIAS][at] + size * bias + fabs(noise->sums[LAG][at] - o * lag) + lost +
                        size * out->alike.bias + bound_bias_of_sum(&s->keys, reach, o, sum_v);
        if (out->drift)
            out->drift[at] = bound_drift_of(&s->keys, &noise->path, at, o, sum_v, reach, 1.0, out->bias[at]);
    }
}

/* reaches: room for sums of what o's weights meet in each row of v. */
static void find_along(const struct bound_head *head, const struct bound_block *block,
                       const struct bound_row_state *states, const struct weights *w, const struct noise *noise,
                       double *reaches, const struct bound_block_output *out)
{
    const int64_t d_v = head->problem->head_dim_v;
    double *const weights = noise->sums[ALONG];
    for (int64_t at = 0; at < block->rows * d_v; ++at)
        weights[at] = bound_weight_along(out->o[at], out->sigma[at], out->bias[at]);
    bound_product(block->rows, head->num_keys, d_v, weights, d_v, 1, head->v_columns.plain, d_v, false, reaches,
                  head->ld);
    for (int64_t i = 0; i < block->rows; ++i)
        out->along[i] = states[i].live == 0 || states[i].broken
                            ? 0.0
                            : along_o(head, block, i, &states[i], w, noise, reaches, out);
}

static void clear_row(const struct bound_block_output *out, int64_t d_v, int64_t i)
{
    const size_t bytes = (size_t)d_v * sizeof(double);
    memset(out->bound + i * d_v, 0, bytes);
    memset(out->o + i * d_v, 0, bytes);
    if (out->sigma) memset(out->sigma + i * d_v, 0, bytes);
    if (out->bias) memset(out->bias + i * d_v, 0, bytes);
    if (out->drift) memset(out->drift + i * d_v, 0, (size_t)d_v * sizeof *out->drift);
}

bool bound_block_o(const struct bound_head *head, const struct bound_block *block, const struct bound_row_state *states,
                   const struct bound_block_output *out)
{
    struct bound_pool pool = {0};
    const int64_t n = head->num_keys, d_v = head->problem->head_dim_v, rows = block->rows,
                  size = BOUND_BLOCK * head->ld;
    const bool ordered = head->machine.ordered;
    const struct weights w = {.all = bound_take(&pool, size),
                              .size = ordered ? bound_take(&pool, size) : NULL,
                              .p = bound_take(&pool, size),
                              .variance = bound_take(&pool, size),
                              .exponent = bound_take(&pool, size),
                              .bias = bound_take(&pool, size),
                              .lag = bound_take(&pool, size),
                              .square = bound_take(&pool, size)};
    double *const sizes = bound_take(&pool, BOUND_BLOCK * d_v), *const lines = bound_take(&pool, 3 * d_v);
    struct noise noise = {0};
    for (int e = 0; out->sigma && e < NUM_SUMS; ++e) noise.sums[e] = bound_take(&pool, BOUND_BLOCK * d_v);
    if (out->sigma) bound_take_path(&pool, BOUND_BLOCK * d_v, &noise.path);
    if (!pool.failed) {
        for (int64_t i = 0; i < rows; ++i)
            if (states[i].live > 0 && !states[i].broken) weigh_row(head, block, i, &states[i], &w);
        const struct bound_panels *v = &head->v_rows;
        if (out->sigma)
            bound_walk(rows, d_v, n, w.p, w.square, block->live, head->ld, v, out->o, &noise.path);
        else
            bound_product(rows, d_v, n, w.p, head->ld, 1, v->plain, n, false, out->o, d_v);
        bound_product(rows, d_v, n, w.all, head->ld, 1, v->absolute, n, false, out->bound, d_v);
        if (ordered) {
            bound_product(rows, d_v, n, w.size, head->ld, 1, v->absolute, n, false, sizes, d_v);
            for (int64_t i = 0; i < rows; ++i) {
                if (states[i].live == 0 || states[i].broken) continue;
                add_ordered_sums(head, &states[i], w.p + i * head->ld, sizes + i * d_v, lines, out->bound + i * d_v);
            }
        }
        if (out->sigma) {
            double *const *const sums = noise.sums;
            bound_product(rows, d_v, n, w.p, head->ld, 1, v->absolute, n, false, sums[SIZE], d_v);
            bound_product(rows, d_v, n, w.variance, head->ld, 1, v->square, n, false, sums[VARIANCE], d_v);
            bound_product(rows, d_v, n, w.exponent, head->ld, 1, v->plain, n, false, sums[EXPONENT], d_v);
            bound_product(rows, d_v, n, w.bias, head->ld, 1, v->absolute, n, false, sums[BIAS], d_v);
            bound_product(rows, d_v, n, w.lag, head->ld, 1, v->plain, n, false, sums[LAG], d_v);
        }
        for (int64_t i = 0; i < rows; ++i) {
            if (states[i].live == 0 || states[i].broken)
                clear_row(out, d_v, i);
            else
                finish_row(head, block, i, &states[i], &noise, out);
        }
        if (out->along) find_along(head, block, states, &w, &noise, w.all, out);
    }
    bound_release(&pool);
    return !pool.failed;
}

/* A row of o: sums of its elements, of their sizes and squares, and what its weights' roundings do to all of them. */
struct shared_row {
    double sum, size, squares, variance, shared[BOUND_PHASES];
};

struct forward {
    const struct attest_problem *problem;
    const struct attest_forward_args *args;
    struct ref_machine machine[REF_MOST_SHARES];
    const struct ref_shares *shares;
    const struct ref_bound *o, *lse;
    struct shared_row *rows; /* of the first pass, which finds what they share; NULL in the second, or without it */
    struct bound_alike alike; /* its result */
};

static void put(double *array, int64_t index, double value)
{
    if (array) array[index] = value;
}

static void put_shared(const struct forward *f, const struct bound_row_state *s, const double *o, int64_t row)
{
    struct shared_row *to = &f->rows[row];
    to->sum = to->size = to->squares = 0.0;
    for (int64_t c = 0; c < f->problem->head_dim_v; ++c)
        to->sum += o[c], to->size += fabs(o[c]), to->squares += o[c] * o[c];
    to->variance = s->shared_variance;
    for (int k = 0; k < BOUND_PHASES; ++k) to->shared[k] = s->shared[k];
}

/* What the rows of a block share, and their o. */
static bool put_shared_rows(const struct forward *f, const struct bound_head *head, struct bound_block *block,
                            struct bound_row_state *states)
{
    const int64_t d_v = f->problem->head_dim_v, ld = head->ld;
    struct bound_pool pool = {0};
    double *const o = bound_take(&pool, BOUND_BLOCK * d_v), *const weights = bound_take(&pool, BOUND_BLOCK * ld);
    for (int64_t i = 0; !pool.failed && i < block->rows; ++i) {
        if (states[i].live == 0 || states[i].broken) continue;
        find_shared_rounding(head, block, i, &states[i]);
        for (int64_t at = i * ld; at < (i + 1) * ld; ++at) weights[at] = block->drop[at] * block->p[at];
    }
    if (!pool.failed) {
        const int64_t n = head->num_keys;
        bound_product(block->rows, d_v, n, weights, ld, 1, head->v_rows.plain, n, false, o, d_v);
        for (int64_t i = 0; i < block->rows; ++i) {
            const int64_t row = head->sequence.first_q + block->first + i;
            put_shared(f, &states[i], o + i * d_v, row * f->problem->num_heads_q + head->h);
        }
    }
    bound_release(&pool);
    return !pool.failed;
}

/* Rows may share what their weights' roundings add up to: the largest of any phase is a bias, and what its squares have
 * beyond those of independent roundings a variance. In the order of rows, whatever threads there were. */
static struct bound_alike find_alike(const struct shared_row *shared, int64_t rows)
{
    double size = 0.0, squares = 0.0, bias = 0.0, excess = 0.0;
    for (int64_t r = 0; r < rows; ++r) size += shared[r].size, squares += shared[r].squares;
    if (!(squares > 0.0)) return (struct bound_alike){0};
    for (int k = 0; k < BOUND_PHASES; ++k) {
        double sum = 0.0, along = 0.0, beyond = 0.0;
        for (int64_t r = 0; r < rows; ++r) {
            const struct shared_row *row = &shared[r];
            sum += row->sum * row->shared[k];
            along += row->squares * row->shared[k];
            beyond += row->squares * (row->shared[k] * row->shared[k] - row->variance);
        }
        bias = fmax(bias, fmax(fabs(sum) / size, fabs(along) / squares));
        excess = fmax(excess, beyond / squares);
    }
    return (struct bound_alike){.bias = bias, .variance = fmax(0.0, excess - bias * bias)};
}

static void put_o(const struct forward *f, const struct bound_head *head, const struct bound_block *block,
                  const struct bound_block_output *out)
{
    const int64_t d_v = f->problem->head_dim_v;
    for (int64_t i = 0; i < block->rows; ++i) {
        const int64_t to = ((head->sequence.first_q + block->first + i) * f->problem->num_heads_q + head->h) * d_v;
        for (int64_t c = 0; c < d_v; ++c) {
            put(f->o->bound, to + c, out->bound[i * d_v + c]);
            put(f->o->sigma, to + c, out->sigma ? out->sigma[i * d_v + c] : 0.0);
            put(f->o->bias, to + c, out->bias ? out->bias[i * d_v + c] : 0.0);
            if (out->drift) bound_put_drift(f->o, to + c, out->drift[i * d_v + c]);
        }
        put(f->o->along, to / d_v, out->along ? out->along[i] : INFINITY);
    }
}

static void put_lse(const struct forward *f, const struct bound_head *head, const struct bound_block *block,
                    const struct bound_row_state *states)
{
    for (int64_t i = 0; i < block->rows; ++i) {
        const struct bound_row_state *s = &states[i];
        const int64_t to = (head->sequence.first_q + block->first + i) * f->problem->num_heads_q + head->h;
        const bool exact = s->empty || s->broken;
        put(f->lse->bound, to, exact ? 0.0 : s->overflow ? INFINITY : s->lse_bound * BOUND_SLACK);
        put(f->lse->sigma, to, exact ? 0.0 : s->lse_sigma);
        put(f->lse->bias, to, exact ? 0.0 : s->lse_bias);
        bound_put_drift(f->lse, to, (struct bound_drift){.beside = exact ? 0.0 : s->lse_bias});
    }
}

/* All rows of one query head. */
static bool bound_head(const struct forward *f, struct bound_head *head, struct bound_block *block)
{
    struct bound_row_state states[BOUND_BLOCK];
    const int64_t size = BOUND_BLOCK * f->problem->head_dim_v;
    const bool statistics = f->o && (f->o->sigma || f->o->bias);
    struct bound_pool pool = {0};
    const int64_t drifts = size * (int64_t)(sizeof(struct bound_drift) / sizeof(double));
    const struct bound_block_output out = {
        .o = bound_take(&pool, size),
        .bound = bound_take(&pool, size),
        .sigma = statistics ? bound_take(&pool, size) : NULL,
        .bias = statistics ? bound_take(&pool, size) : NULL,
        .along = head->v_columns.plain ? bound_take(&pool, BOUND_BLOCK) : NULL,
        .drift = statistics && f->o->beside ? (struct bound_drift *)bound_take(&pool, drifts) : NULL,
        .alike = f->alike};
    bool ok = !pool.failed;
    for (int64_t r = 0; ok && r < head->sequence.seqlen_q; r += BOUND_BLOCK) {
        struct bound_pool rows = {0};
        block->first = r;
        block->rows = head->sequence.seqlen_q - r < BOUND_BLOCK ? head->sequence.seqlen_q - r : BOUND_BLOCK;
        block->q = bound_decode_rows(&rows, f->problem, &f->problem->q, f->args->q, &head->sequence, false, head->b,
                                     head->h, r, block->rows, f->problem->head_dim);
        ok = !rows.failed;
        if (ok) {
            bound_block_scores(head, block, states);
            for (int64_t i = 0; i < block->rows; ++i)
                if (!states[i].empty && !states[i].broken) bound_row_weights(head, block, i, &states[i]);
            if (f->rows) {
                ok = put_shared_rows(f, head, block, states);
            } else {
                if (f->o) ok = bound_block_o(head, block, states, &out);
                if (ok && f->o) put_o(f, head, block, &out);
                if (ok && f->lse) put_lse(f, head, block, states);
            }
        }
        bound_release(&rows);
    }
    bound_release(&pool);
    return ok;
}

/* One KV head of one sequence, and the query heads that read it. */
static enum attest_status forward_unit(void *context, int64_t unit)
{
    const struct forward *f = context;
    const struct ref_sequence sequence = ref_sequence(f->problem, f->args, unit / f->problem->num_heads_kv);
    const struct ref_machine *const machine = &f->machine[bound_share_of(f->shares, &sequence)];
    if (f->rows && machine->p.relative == 0.0) return ATTEST_OK; /* no weight is rounded */
    const int64_t group = f->problem->num_heads_q / f->problem->num_heads_kv;
    struct bound_pool pool = {0};
    struct bound_head head = {.problem = f->problem,
                              .args = f->args,
                              .machine = *machine,
                              .b = unit / f->problem->num_heads_kv,
                              .h_kv = unit % f->problem->num_heads_kv};
    struct bound_block block = {0};
    bool ok = bound_load_keys(&pool, &head) && bound_take_block(&pool, &head, &block);
    if (ok && !f->rows && f->o && f->o->along) head.v_columns = bound_make_panels(&pool, &head.v, true, 1);
    ok = ok && !pool.failed;
    if (ok && machine->scales) head.v_floor = bound_floor_of_values(&head);
    for (int64_t g = 0; ok && g < group; ++g) {
        head.h = head.h_kv * group + g;
        ok = bound_head(f, &head, &block);
    }
    bound_release(&pool);
    return ok ? ATTEST_OK : ATTEST_OUT_OF_MEMORY;
}

static void clear(double *array, int64_t count)
{
    if (array) memset(array, 0, (size_t)count * sizeof *array);
}

/* Rows of no sequence and rows past seqused are exact: whatever the oracle says. */
void bound_clear_bound(const struct ref_bound *bound, int64_t count)
{
    if (!bound) return;
    clear(bound->bound, count);
    clear(bound->sigma, count);
    clear(bound->bias, count);
    clear(bound->shift, count);
    clear(bound->beside, count);
    clear(bound->optional, count);
    for (int d = 0; d < 2; ++d) clear(bound->drift[d], count);
    for (int n = 0; n < REF_WAYS; ++n) clear(bound->alike[n], count);
}

int bound_share_of(const struct ref_shares *shares, const struct ref_sequence *s)
{
    int i = 0;
    while (i < shares->count - 1 && (s->seqlen_q > shares->share[i].most_seqlen_q ||
                                     s->seqlen_k > shares->share[i].most_seqlen_k))
        ++i;
    return i;
}

struct ref_shares ref_one_share(const struct attest_recipe *recipe)
{
    return (struct ref_shares){1, {{recipe, INT64_MAX, INT64_MAX}}};
}

static enum attest_status bound_all(struct forward *f, int threads)
{
    return bound_for_each(f->problem->batch * f->problem->num_heads_kv, threads, forward_unit, f);
}

enum attest_status ref_bound_forward_shares(const struct attest_problem *p, const struct attest_forward_args *a,
                                            const struct ref_shares *shares, const struct ref_bound *o,
                                            const struct ref_bound *lse, int threads)
{
    struct forward f = {.problem = p, .args = a, .shares = shares, .o = o, .lse = lse};
    const int64_t rows = ref_rows_q(p) * p->num_heads_q;
    for (int i = 0; i < shares->count; ++i) f.machine[i] = ref_forward_machine(p, shares->share[i].recipe);
    bound_clear_bound(o, rows * p->head_dim_v);
    if (o) clear(o->along, rows), clear(o->phases, rows * BOUND_PHASES);
    bound_clear_bound(lse, rows);
    if (o && (o->sigma || o->bias)) {
        struct bound_pool pool = {0};
        f.rows = (struct shared_row *)bound_take(&pool, rows * (int64_t)(sizeof *f.rows / sizeof(double)));
        const enum attest_status status = pool.failed ? ATTEST_OUT_OF_MEMORY : bound_all(&f, threads);
        if (status == ATTEST_OK) f.alike = find_alike(f.rows, rows);
        for (int64_t at = 0; status == ATTEST_OK && o->phases && at < rows * BOUND_PHASES; ++at)
            o->phases[at] = f.rows[at / BOUND_PHASES].shared[at % BOUND_PHASES];
        f.rows = NULL;
        bound_release(&pool);
        if (status != ATTEST_OK) return status;
    }
    return bound_all(&f, threads);
}

enum attest_status ref_bound_forward(const struct attest_problem *p, const struct attest_forward_args *a,
                                     const struct attest_recipe *recipe, const struct ref_bound *o,
                                     const struct ref_bound *lse, int threads)
{
    const struct ref_shares one = ref_one_share(recipe);
    return ref_bound_forward_shares(p, a, &one, o, lse, threads);
}

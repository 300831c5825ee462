/* bounds_backward.c - bounds of dq, dk, dv, dbias and dsink: reference/bounds.md sections 6 and 7. */
#include <math.h>
#include <string.h>

#include "reference/bounds.h"
#include "reference/bounds_gradients.h"
#include "reference/bounds_order.h"
#include "reference/formats.h"

struct backward {
    const struct attest_problem *problem;
    const struct attest_backward_args *args;
    struct ref_machine machine[REF_MOST_SHARES];
    const struct ref_shares *shares;
    const struct ref_bound *tensors; /* [REF_NUM_TENSORS] */
    bool statistics;
    struct bound_terms dbias, dsink; /* of all sequences and heads; dsink [batch][num_heads_q] */
    double *dbias_repeats;           /* see bound_repeat_dbias; NULL: no statistics of dbias */
};

static void put(double *array, int64_t index, double value)
{
    if (array) array[index] = value;
}

/* A gradient element from its terms: scale * sum (weight x operand), summed by `sum`, rounded at the end. */
struct finish {
    const struct ref_machine *machine;
    int32_t dtype;
    double scale, operand;    /* operand: what each may be off by, relative to itself */
    double summed;            /* the most that the sum itself may be off by */
};

static void finish_element(const struct finish *f, const struct bound_terms *t, int64_t from, struct ref_sum sum,
                           double terms, double lost, bool overflow, const struct ref_bound *to, int64_t index)
{
    const struct ref_machine *m = f->machine;
    const double scale = fabs(f->scale), value = scale * fabs(t->value[from]);
    const double size = t->absolute[from] + t->error[from], off = f->operand * size;
    const double of_storage = fabs(t->stored[from]);
    const double summed = fmin(sum.rel * (size + off), f->summed);
    double bound = scale * (t->error[from] + of_storage + off + summed + lost) * (1 + 4 * m->u) + t->rounding[from];
    bound += 3 * m->u * value + 2 * m->tiny;
    if (overflow || size > m->huge || scale * size > m->huge) bound = INFINITY;
    bound = bound_with_output(m, f->dtype, value, bound);
    put(to->bound, index, bound * BOUND_SLACK);
    if (!to->sigma) return;
    const double absolute = t->absolute[from], reach = bound_reach(&t->path, from, t->value[from], absolute, terms);
    const double noise = sum.sigma * reach;
    const double variance = scale * scale * (t->variance[from] + noise * noise) + t->rounding_variance[from];
    const double operands = fmin(f->operand * absolute, m->row_sigmas * sqrt(t->variance[from])); /* of all rows */
    const double of_sum = bound_bias_of_sum(&sum, reach, t->value[from], absolute), known = fabs(t->known[from]);
    double own_bias = t->bias[from] + sqrt(t->shared[from]);
    for (int i = 0; i < BOUND_SIGNED; ++i) own_bias += fabs(t->signed_bias[i][from]);
    double small = 0.0;
    for (int i = BOUND_SIGNED; i < BOUND_ALL_SIGNED; ++i)
        if (t->signed_bias[i]) small = fmax(small, fabs(t->signed_bias[i][from]));
    own_bias += small;
    own_bias += fabs(t->rounded[from]) + operands;
    const double bias = scale * (own_bias + of_sum + (to->shift ? 0.0 : known) + lost) + 2 * m->tiny;
    /* What is rounded may be little more than its bias. */
    const double systematic = bias + (to->shift ? scale * known : 0.0);
    const double rounded =
        fmax(bound_output_variance(m, f->dtype, value), bound_output_variance(m, f->dtype, systematic));
    put(to->sigma, index, sqrt(variance + m->u * m->u * value * value + rounded));
    put(to->bias, index, bias);
    struct bound_drift drift = bound_drift_of(&sum, &t->path, from, t->value[from], absolute, reach, f->scale, bias);
    drift.beside = fmax(0.0, drift.beside - scale * fabs(t->rounded[from]));
    drift.optional = f->scale * t->rounded[from];
    bound_put_drift(to, index, drift);
    put(to->shift, index, f->scale * t->known[from]);
    for (int n = 0; n < REF_WAYS; ++n)
        if (to->alike[n] && t->alike[n]) to->alike[n][index] = f->scale * t->alike[n][from];
}

/* dq of a block: rows of the block against all keys. */
static void finish_dq(const struct backward *b, const struct bound_gradient_head *g,
                      const struct bound_gradient_block *block, const struct bound_order *order,
                      const struct bound_terms *terms)
{
    const struct attest_problem *p = b->problem;
    const struct bound_head *head = &g->head;
    const struct ref_machine *m = &head->machine;
    struct finish f = {m, p->dq.dtype, (double)p->softmax_scale, g->floors.k_relative, INFINITY};
    for (int64_t i = 0; i < block->rows.rows; ++i) {
        const struct bound_row_state *s = &block->states[i];
        if (s->live == 0 || s->broken) continue;
        const struct ref_sum sum = ref_sum_rows(m, s->live, head->num_keys, 1);
        if (order->room)
            bound_find_order(head->num_keys, p->head_dim, block->ds.value + i * head->ld, head->k.value, order);
        const int64_t row = (head->sequence.first_q + block->rows.first + i) * p->num_heads_q + head->h;
        for (int64_t c = 0; c < p->head_dim; ++c) {
            const double live = (double)s->live, norm = block->ds_norm[i] + block->corrections[i].norm;
            const double once = 3 * live * m->tiny + m->lost * (norm + g->k_sum[c] + live * m->least_operand);
            const double scaled = bound_lost_to_scaling(g->floors.ds, g->floors.k, norm, g->k_sum[c], live);
            const double lost = head->fmax * once * (1 + block->corrections[i].factor) + (1 + sum.rel) * scaled;
            const int64_t at = i * p->head_dim + c;
            const double size = terms->absolute[at] + terms->error[at];
            const double error = terms->error[at] + fabs(terms->stored[at]);
            if (order->room) f.summed = bound_ordered_sum(m, order, c, s->live, head->num_keys, size, error);
            finish_element(&f, terms, at, sum, live, lost, s->overflow, &b->tensors[REF_DQ],
                           row * p->head_dim + c);
        }
    }
}

/* Variance of dq's rows along dq: a rounding of ds reaches all features, what delta is off by all keys. */
static void find_along_dq(const struct backward *b, const struct bound_gradient_head *g,
                          const struct bound_gradient_block *block, const struct bound_terms *terms)
{
    const struct attest_problem *p = b->problem;
    const struct bound_head *head = &g->head;
    const struct ref_machine *m = &head->machine;
    const struct ref_bound *to = &b->tensors[REF_DQ];
    const int64_t d = p->head_dim, n = head->num_keys, rows = block->rows.rows;
    const double scale = (double)p->softmax_scale;
    double *const weights = block->k_with_delta, *const reaches = block->squares;
    for (int64_t at = 0; at < rows * d; ++at) {
        const int64_t row = (head->sequence.first_q + block->rows.first + at / d) * p->num_heads_q + head->h;
        const int64_t from = row * d + at % d;
        const double bias = to->bias[from] + (to->shift ? fabs(to->shift[from]) : 0.0);
        weights[at] = scale * bound_weight_along(scale * terms->value[at], to->sigma[from], bias);
    }
    bound_product(rows, n, d, weights, d, 1, head->k_transposed.plain, d, false, reaches, head->ld);
    for (int64_t i = 0; i < rows; ++i) {
        const struct ref_sum sum = ref_sum_rows(m, block->states[i].live, n, 1);
        const double *const reach = reaches + i * head->ld, *const of_ds = block->dq_variance + i * head->ld;
        double mean = 0.0, variance = 0.0;
        for (int64_t at = i * d; at < (i + 1) * d; ++at) {
            const double terms_of = (double)block->states[i].live, value = terms->value[at];
            const double summed = sum.sigma * bound_reach(&terms->path, at, value, terms->absolute[at], terms_of);
            mean += weights[at] * block->k_mean[at];
            variance += weights[at] * weights[at] * (summed * summed + m->u * m->u * value * value);
        }
        for (int64_t j = 0; j < n; ++j)
            variance += of_ds[j] * reach[j] * reach[j] - 2 * mean * block->through_delta[i * head->ld + j] * reach[j];
        variance += mean * mean * block->row[i].delta_sigma * block->row[i].delta_sigma;
        const int64_t row = (head->sequence.first_q + block->rows.first + i) * p->num_heads_q + head->h;
        const bool exact = block->states[i].live == 0 || block->states[i].broken;
        const bool known = !m->corrects_delta && !m->scales;
        put(to->along, row, exact ? 0.0 : known ? fmax(0.0, variance) : INFINITY);
    }
}

/* dk or dv: sums over the rows of all query heads of the group. */
static void finish_keys(const struct backward *b, const struct bound_gradient_head *g,
                        const struct bound_key_terms *terms, enum ref_tensor tensor)
{
    const struct attest_problem *p = b->problem;
    const bool is_dk = tensor == REF_DK;
    const int64_t features = is_dk ? p->head_dim : p->head_dim_v;
    const struct ref_machine *m = &g->head.machine;
    const double scale = is_dk ? (double)p->softmax_scale : 1.0;
    const struct finish f = {m, is_dk ? p->dk.dtype : p->dv.dtype, scale, 0.0, INFINITY};
    const double weight_floor = is_dk ? g->floors.ds : g->floors.p, floor = is_dk ? g->floors.q : g->floors.dout;
    const int64_t group = p->num_heads_q / p->num_heads_kv, span = g->head.sequence.seqlen_q;
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        if (terms->seen[j] == 0.0) continue;
        struct ref_sum sum = ref_sum_rows(m, (int64_t)terms->seen[j], span, group);
        sum.rel = ref_both(sum.rel, ref_growth((double)group * m->u));
        const int64_t row = (g->head.sequence.first_k + j) * p->num_heads_kv + g->head.h_kv;
        for (int64_t c = 0; c < features; ++c) {
            const double seen = terms->seen[j];
            const double operands = terms->norm[j] + terms->operand_sum[c] + seen * m->least_operand;
            const double once = g->head.fmax * (m->lost * operands + (3 * seen + (double)group) * m->tiny);
            const double scaled =
                bound_lost_to_scaling(weight_floor, floor, terms->norm[j], terms->operand_sum[c], seen);
            const double lost = once + (1 + sum.rel) * scaled;
            finish_element(&f, &terms->group, j * features + c, sum, seen, lost, terms->overflow[j] != 0.0,
                           &b->tensors[tensor], row * features + c);
        }
    }
}

void bound_walk_sums(struct bound_gradient_block *block, const struct bound_weights *w, int64_t rows, int64_t features,
                     int64_t keys, int64_t ld, const struct bound_panels *operand, struct bound_terms *t)
{
    if (!t->variance) {
        bound_product(rows, features, keys, w->value, ld, 1, operand->plain, operand->k_packed, false, t->value,
                      features);
        return;
    }
    for (int64_t i = 0; i < rows * ld; ++i) block->squares[i] = w->value[i] * w->value[i];
    bound_walk(rows, features, keys, w->value, block->squares, block->rows.live, ld, operand, t->value, &t->path);
}

/* The sums of a product but value: weights [rows][ld] times the operand's panels, to terms [..][features]. */
static void add_products(const struct bound_weights *w, int64_t m, int64_t n, int64_t k, int64_t a_row, int64_t a_col,
                         const struct bound_panels *operand, bool add, struct bound_terms *t)
{
    const int64_t packed = operand->k_packed;
    bound_product(m, n, k, w->absolute, a_row, a_col, operand->absolute, packed, add, t->absolute, n);
    bound_product(m, n, k, w->error, a_row, a_col, operand->absolute, packed, add, t->error, n);
    if (w->stored) bound_product(m, n, k, w->stored, a_row, a_col, operand->plain, packed, add, t->stored, n);
    if (!t->variance) return;
    bound_product(m, n, k, w->variance, a_row, a_col, operand->square, packed, add, t->variance, n);
    bound_product(m, n, k, w->bias, a_row, a_col, operand->absolute, packed, add, t->bias, n);
    bound_product(m, n, k, w->known, a_row, a_col, operand->plain, packed, add, t->known, n);
    if (w->rounded) bound_product(m, n, k, w->rounded, a_row, a_col, operand->plain, packed, add, t->rounded, n);
    for (int i = 0; i < BOUND_ALL_SIGNED; ++i)
        if (w->signed_bias[i])
            bound_product(m, n, k, w->signed_bias[i], a_row, a_col, operand->plain, packed, add, t->signed_bias[i], n);
    for (int i = 0; i < REF_WAYS; ++i)
        if (w->alike[i]) bound_product(m, n, k, w->alike[i], a_row, a_col, operand->plain, packed, add, t->alike[i], n);
    if (w->shared) bound_product(m, n, k, w->shared, a_row, a_col, operand->square, packed, add, t->shared, n);
}

/* Rows of one q have one error of p, and those of one dout, too, of all: the variance of their sum, in equal parts. */
static void repeat_rows(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                        const struct bound_weights *w, double *out)
{
    for (int64_t i = 0; i < block->rows.rows; ++i) {
        const int64_t row = bound_row_of_group(g, block->rows.first + i);
        const double of_q = g->same_q[row], of_row = g->same_row[row];
        for (int64_t at = i * g->head.ld; at < (i + 1) * g->head.ld; ++at) {
            const double of_p = w->of_p ? w->of_p[at] : w->variance[at];
            out[at] = of_q * of_p + of_row * (w->variance[at] - of_p);
        }
    }
}

/* dk and dv of the keys on their way through the rows: a step for each block, weighted by the rows that see the key. */
static void add_key_products(const struct bound_gradient_head *g, struct bound_gradient_block *block,
                             const struct bound_weights *w, const struct bound_panels *operand, int64_t features,
                             struct bound_key_terms *terms)
{
    const int64_t keys = g->head.num_keys, rows = block->rows.rows, ld = g->head.ld;
    struct bound_terms *const t = &terms->head, *const all = &terms->group;
    struct bound_weights with_repeats = *w;
    if (t->variance) {
        repeat_rows(g, block, w, block->squares);
        with_repeats.variance = block->squares;
    }
    add_products(&with_repeats, keys, features, rows, 1, ld, operand, true, t);
    bound_product(keys, features, rows, w->value, 1, ld, operand->plain, operand->k_packed, true, t->value, features);
    if (t->variance) {
        for (int64_t i = 0; i < rows * ld; ++i) block->squares[i] = w->value[i] * w->value[i];
        bound_product(keys, features, rows, block->squares, 1, ld, operand->square, operand->k_packed, true,
                      all->path.square, features);
        for (int64_t at = 0; at < keys * features; ++at) {
            const double step = terms->step[at / features];
            const double from = terms->before[at], to = all->value[at] + t->value[at];
            all->path.first[at] += step * 0.5 * (from + to);
            all->path.second[at] += step * 0.5 * (from * from + to * to);
            terms->before[at] = to;
        }
    }
    for (int64_t j = 0; j < keys; ++j) terms->step[j] = 0.0;
}

/* Means of what add_key_products added up. */
static void end_path(const struct bound_key_terms *terms, int64_t keys)
{
    for (int64_t at = 0; terms->group.variance && at < keys * terms->features; ++at) {
        const double seen = fmax(1.0, terms->seen[at / terms->features]);
        terms->group.path.first[at] /= seen;
        terms->group.path.second[at] /= seen;
    }
}

/* What delta and lse are off by is the whole row's: it meets the sum of c p k, and dq itself. */
static void add_row_noise(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                          const struct bound_terms *dq)
{
    const int64_t rows = block->rows.rows, d = g->head.problem->head_dim, n = g->head.num_keys, ld = g->head.ld;
    double *const with = block->k_with_delta;
    bound_product(rows, d, n, block->p_slope, ld, 1, g->k_rows.plain, n, false, block->k_mean, d);
    bound_product(rows, d, n, block->through_delta, ld, 1, g->k_rows.plain, n, false, with, d);
    for (int64_t at = 0; at < rows * d; ++at) {
        const struct bound_row *row = &block->row[at / d];
        const double k = block->k_mean[at];
        if (block->states[at / d].live == 0 || block->states[at / d].broken) continue;
        dq->variance[at] = fmax(0.0, dq->variance[at] - 2 * k * with[at] + k * k * row->delta_sigma * row->delta_sigma);
        dq->bias[at] += fabs(k) * row->delta_bias;
    }
}

static void sum_dq(const struct backward *b, struct bound_gradient_head *g, struct bound_gradient_block *block,
                   struct bound_terms *dq)
{
    const int64_t rows = block->rows.rows, d = b->problem->head_dim, n = g->head.num_keys, ld = g->head.ld;
    struct bound_weights w = block->ds;
    w.bias = block->dq_bias, w.variance = block->dq_variance, w.shared = NULL;
    bound_walk_sums(block, &w, rows, d, n, ld, &g->k_rows, dq);
    add_products(&w, rows, d, n, ld, 1, &g->k_rows, false, dq);
    if (dq->variance) add_row_noise(g, block, dq);
}

static bool one_block(struct backward *b, struct bound_gradient_head *g, struct bound_gradient_block *block,
                      const struct bound_order *order, struct bound_terms *dq, int64_t first)
{
    const struct attest_problem *p = b->problem;
    struct bound_head *head = &g->head;
    const int64_t rows = head->sequence.seqlen_q - first < BOUND_BLOCK ? head->sequence.seqlen_q - first : BOUND_BLOCK;
    struct bound_pool pool = {0};
    block->rows.first = first;
    block->rows.rows = rows;
    const int which = b->statistics ? 7 : 3;
    block->rows.q = bound_decode_rows(&pool, p, &p->q, head->args->q, &head->sequence, false, head->b, head->h, first,
                                      rows, p->head_dim);
    block->dout = bound_decode_rows(&pool, p, &p->dout, b->args->dout, &head->sequence, false, head->b, head->h, first,
                                    rows, p->head_dim_v);
    bool ok = !pool.failed;
    const struct bound_panels q =
        ok ? bound_make_panels(&pool, &block->rows.q, false, which) : (struct bound_panels){0};
    const struct bound_panels dout =
        ok ? bound_make_panels(&pool, &block->dout, false, which) : (struct bound_panels){0};
    ok = !pool.failed && bound_gradient_rows(g, block);
    if (ok) {
        bound_add_sums(g, block, b->dbias_repeats, &b->dbias, &b->dsink);
        if (b->tensors[REF_DQ].bound) {
            if (head->machine.corrects_delta)
                bound_corrected_dq(g, block, dq);
            else
                sum_dq(b, g, block, dq);
            finish_dq(b, g, block, order, dq);
            if (b->tensors[REF_DQ].along) find_along_dq(b, g, block, dq);
        }
        if (b->tensors[REF_DK].bound) add_key_products(g, block, &block->ds, &q, p->head_dim, &g->dk);
        if (b->tensors[REF_DV].bound) add_key_products(g, block, &block->pd, &dout, p->head_dim_v, &g->dv);
    }
    bound_release(&pool);
    return ok;
}

static enum attest_status backward_unit(void *context, int64_t unit)
{
    struct backward *b = context;
    const struct attest_problem *p = b->problem;
    const int64_t group = p->num_heads_q / p->num_heads_kv;
    const struct ref_sequence sequence = ref_sequence(p, &b->args->forward, unit / p->num_heads_kv);
    struct bound_pool pool = {0};
    struct bound_gradient_head g = {.args = b->args, .statistics = b->statistics};
    g.head = (struct bound_head){.problem = p,
                                 .args = &b->args->forward,
                                 .machine = b->machine[bound_share_of(b->shares, &sequence)],
                                 .b = unit / p->num_heads_kv,
                                 .h_kv = unit % p->num_heads_kv};
    struct bound_gradient_block block = {0};
    struct bound_terms dq = {0};
    struct bound_order order = {0};
    const bool has_alike = b->tensors[REF_DQ].alike[0] || b->tensors[REF_DK].alike[0];
    bool ok = bound_take_gradients(&pool, &g, &block, has_alike) &&
              bound_take_terms(&pool, BOUND_BLOCK * p->head_dim, b->statistics, g.num_ways, g.num_small, &dq);
    if (ok && g.head.machine.ordered && !g.head.machine.corrects_delta)
        ok = bound_take_order(&pool, p->head_dim, &order);
    if (ok && g.statistics) ok = bound_find_repeated(&g);
    for (int64_t i = 0; ok && i < group; ++i) {
        g.head.h = g.head.h_kv * group + i;
        for (int64_t r = 0; ok && r < g.head.sequence.seqlen_q; r += BOUND_BLOCK)
            ok = one_block(b, &g, &block, &order, &dq, r);
        if (ok && (b->tensors[REF_DK].bound || b->tensors[REF_DV].bound)) bound_end_head(&g);
    }
    end_path(&g.dk, ok ? g.head.num_keys : 0);
    end_path(&g.dv, ok ? g.head.num_keys : 0);
    if (ok && b->tensors[REF_DK].bound) finish_keys(b, &g, &g.dk, REF_DK);
    if (ok && b->tensors[REF_DV].bound) finish_keys(b, &g, &g.dv, REF_DV);
    bound_release(&pool);
    return ok ? ATTEST_OK : ATTEST_OUT_OF_MEMORY;
}

/* dbias and dsink add up what all shares made: they are bounded by the machine with the coarsest sums. */
static const struct ref_machine *machine_of_all(const struct backward *b)
{
    const struct ref_machine *found = &b->machine[0];
    for (int i = 1; i < b->shares->count; ++i)
        if (b->machine[i].u > found->u) found = &b->machine[i];
    return found;
}

/* Plain sums in fp32, any order: dbias over the axes it broadcasts, dsink over rows and sequences. */
static struct ref_sum plain_sum(const struct ref_machine *m, double terms)
{
    return (struct ref_sum){.rel = ref_growth((terms + 3) * m->u), .sigma = sqrt((terms + 3) / 3) * m->u};
}

static void finish_dbias(struct backward *b, int64_t size)
{
    const struct ref_machine *const m = machine_of_all(b);
    const struct finish f = {m, b->problem->dbias.dtype, 1.0, 0.0, INFINITY};
    for (int64_t i = 0; i < size; ++i) {
        const double count = b->dbias.count[i];
        if (count == 0.0) continue;
        finish_element(&f, &b->dbias, i, plain_sum(m, count), count, count * m->tiny,
                       b->dbias.overflow[i] != 0.0, &b->tensors[REF_DBIAS], i);
    }
}

static void finish_dsink(struct backward *b)
{
    const struct attest_problem *p = b->problem;
    const struct ref_machine *const m = machine_of_all(b);
    const struct finish f = {m, ATTEST_FP32, 1.0, 0.0, INFINITY};
    struct bound_terms *t = &b->dsink;
    for (int64_t h = 0; h < p->num_heads_q; ++h) {
        for (int64_t s = 1; s < p->batch; ++s) bound_add_term(t, h, t, s * p->num_heads_q + h);
        if (t->count[h] == 0.0) continue;
        finish_element(&f, t, h, plain_sum(m, t->count[h]), t->count[h], t->count[h] * m->tiny,
                       t->overflow[h] != 0.0, &b->tensors[REF_DSINK], h);
    }
}

static int64_t dbias_size(const struct attest_problem *p)
{
    const struct attest_score_tensor *t = &p->dbias;
    return (t->batch ? p->batch : 1) * (t->head ? p->num_heads_q : 1) * (t->seqlen_q ? p->seqlen_q : 1) *
           (t->seqlen_k ? p->seqlen_k : 1);
}

/* Of a run over all units; the next one begins with sums of 0. */
enum attest_status ref_bound_backward_shares(const struct attest_problem *p, const struct attest_backward_args *a,
                                             const struct ref_shares *shares,
                                             const struct ref_bound tensors[REF_NUM_TENSORS], int threads)
{
    struct backward b = {.problem = p, .args = a, .shares = shares, .tensors = tensors};
    for (int i = 0; i < shares->count; ++i) b.machine[i] = ref_machine(p, shares->share[i].recipe);
    const int64_t rows_q = ref_rows_q(p) * p->num_heads_q, rows_k = ref_rows_k(p) * p->num_heads_kv;
    const bool has_dbias = tensors[REF_DBIAS].bound && p->dbias.dtype != ATTEST_ABSENT;
    const bool has_dsink = tensors[REF_DSINK].bound && p->has_sink;
    const int64_t biases = has_dbias ? dbias_size(p) : 0;
    for (int t = REF_DQ; t < REF_NUM_TENSORS; ++t) b.statistics |= tensors[t].sigma != NULL;
    bound_clear_bound(&tensors[REF_DQ], rows_q * p->head_dim);
    if (tensors[REF_DQ].along) memset(tensors[REF_DQ].along, 0, (size_t)rows_q * sizeof(double));
    bound_clear_bound(&tensors[REF_DK], rows_k * p->head_dim);
    bound_clear_bound(&tensors[REF_DV], rows_k * p->head_dim_v);
    bound_clear_bound(&tensors[REF_DBIAS], biases);
    bound_clear_bound(&tensors[REF_DSINK], p->has_sink ? p->num_heads_q : 0);
    struct bound_pool pool = {0};
    enum attest_status status = ATTEST_OUT_OF_MEMORY;
    if ((!has_dbias || bound_take_terms(&pool, biases, b.statistics, 0, 0, &b.dbias)) &&
        (!has_dsink || bound_take_terms(&pool, p->batch * p->num_heads_q, b.statistics, 0, 0, &b.dsink))) {
        if (has_dbias && b.statistics) b.dbias_repeats = bound_take(&pool, rows_q);
        const bool ok = !pool.failed && (!b.dbias_repeats || bound_repeat_dbias(p, a, b.dbias_repeats));
        /* Sums over heads and sequences are one thread's, in order. */
        if (ok) status = bound_for_each(p->batch * p->num_heads_kv, has_dbias ? 1 : threads, backward_unit, &b);
        if (ok && has_dbias) finish_dbias(&b, biases);
        if (ok && has_dsink && p->batch > 0) finish_dsink(&b);
    }
    bound_release(&pool);
    return status;
}

enum attest_status ref_bound_backward(const struct attest_problem *p, const struct attest_backward_args *a,
                                      const struct attest_recipe *recipe,
                                      const struct ref_bound tensors[REF_NUM_TENSORS], int threads)
{
    const struct ref_shares one = ref_one_share(recipe);
    return ref_bound_backward_shares(p, a, &one, tensors, threads);
}

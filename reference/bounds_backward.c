/* bounds_backward.c - bounds of dq, dk, dv, dbias and dsink: reference/bounds.md sections 6 and 7. */
#include <math.h>
#include <string.h>

#include "reference/bounds.h"
#include "reference/bounds_gradients.h"
#include "reference/formats.h"

struct backward {
    const struct attest_problem *problem;
    const struct attest_backward_args *args;
    struct ref_machine machine;
    const struct ref_bound *tensors; /* [REF_NUM_TENSORS] */
    bool statistics;
    int64_t longest;                 /* sequences of more rows or keys are left as they are */
    struct bound_terms dbias, dsink; /* of all sequences and heads; dsink [batch][num_heads_q] */
    struct known_sums *known;        /* of dq, dk, dv of each KV head of each sequence; NULL without statistics */
};

/* Over elements of a gradient: what is known of their error, and of what is tied, as bound_terms have them; the same
 * times the elements, and what their sigmas come to that way. */
struct known_sums {
    double sum[2], along[2], sigmas, along_sigmas;
};

/* The largest of what any machine makes of it; a NaN stays. */
static void put(double *array, int64_t index, double value)
{
    if (array && !(array[index] >= value) && !isnan(array[index])) array[index] = value;
}

/* A gradient element from its terms: scale * sum (weight x operand), summed by `sum`, rounded at the end. */
struct finish {
    const struct ref_machine *machine;
    int32_t dtype;
    double scale, operand;    /* operand: what each may be off by, relative to itself */
    bool biases;              /* what is known is all the noise there is, and so each element's own bias */
    struct known_sums *known; /* NULL: nothing is; else what is known and no bias, and what is tied, is added */
};

static void finish_element(const struct finish *f, const struct bound_terms *t, int64_t from, struct ref_sum sum,
                           double lost, bool overflow, const struct ref_bound *to, int64_t index)
{
    const struct ref_machine *m = f->machine;
    const double scale = fabs(f->scale), value = scale * fabs(t->value[from]);
    const double size = t->absolute[from] + t->error[from], off = f->operand * size;
    double bound = scale * (t->error[from] + off + sum.rel * (size + off) + lost) * (1 + 4 * m->u) + t->rounding[from];
    bound += 3 * m->u * value + 2 * m->tiny;
    if (overflow || size > m->huge || scale * size > m->huge) bound = INFINITY;
    bound = bound_with_output(m, f->dtype, value, bound);
    put(to->bound, index, bound * BOUND_SLACK);
    if (!to->sigma) return;
    const double summed = sum.sigma * t->absolute[from];
    const double known[] = {f->biases ? 0.0 : t->known[from], t->tied[from]};
    const double own = t->variance[from] + summed * summed + known[0] * known[0] + known[1] * known[1];
    const double variance = scale * scale * own + t->rounding_variance[from];
    const double shared = fmin(f->operand * t->absolute[from], m->row_sigmas * sqrt(t->variance[from])); /* by rows */
    const double own_bias = t->bias[from] + shared + (f->biases ? fabs(t->known[from]) : 0.0);
    const double bias = scale * (own_bias + sum.bias * t->absolute[from] + lost) + 2 * m->tiny;
    /* What is rounded may be little more than its bias. */
    const double rounded = fmax(bound_output_variance(m, f->dtype, value), bound_output_variance(m, f->dtype, bias));
    const double sigma = sqrt(variance + m->u * m->u * value * value + rounded);
    put(to->sigma, index, sigma);
    put(to->bias, index, bias);
    if (!f->known || !isfinite(bound)) return;
    for (int n = 0; n < 2; ++n) f->known->sum[n] += known[n], f->known->along[n] += t->value[from] * known[n];
    f->known->sigmas += sigma / scale;
    f->known->along_sigmas += fabs(t->value[from]) * sigma / scale;
}

enum { KNOWN_TENSORS = 3 }; /* dq, dk, dv */

static struct known_sums *known_sums_of(const struct backward *b, const struct bound_head *head, enum ref_tensor tensor)
{
    const int64_t unit = head->b * b->problem->num_heads_kv + head->h_kv;
    return b->known ? &b->known[KNOWN_TENSORS * unit + (tensor - REF_DQ)] : NULL;
}

/* What is known of all elements together, of either sign, is a bias of theirs, as is what it does to all of them alike:
 * each has its part, by its sigma. In the order of units, whatever threads there were. */
static void share_known(const struct backward *b, enum ref_tensor tensor, int64_t elements)
{
    const struct ref_bound *const to = &b->tensors[tensor];
    struct known_sums all = {0};
    if (!to->sigma || !to->bias) return;
    for (int64_t unit = 0; unit < b->problem->batch * b->problem->num_heads_kv; ++unit) {
        const struct known_sums *of = &b->known[KNOWN_TENSORS * unit + (tensor - REF_DQ)];
        for (int n = 0; n < 2; ++n) all.sum[n] += of->sum[n], all.along[n] += of->along[n];
        all.sigmas += of->sigmas, all.along_sigmas += of->along_sigmas;
    }
    double part = 0.0;
    if (all.sigmas > 0.0) part = (fabs(all.sum[0]) + fabs(all.sum[1])) / all.sigmas;
    if (all.along_sigmas > 0.0) part = fmax(part, (fabs(all.along[0]) + fabs(all.along[1])) / all.along_sigmas);
    for (int64_t i = 0; i < elements; ++i) to->bias[i] += part * to->sigma[i];
}

/* dq of a block: rows of the block against all keys. */
static void finish_dq(const struct backward *b, const struct bound_gradient_head *g,
                      const struct bound_gradient_block *block, const struct bound_terms *terms)
{
    const struct attest_problem *p = b->problem;
    const struct bound_head *head = &g->head;
    const struct ref_machine *m = &head->machine;
    const struct finish f = {m, p->dq.dtype, (double)p->softmax_scale, g->floors.k_relative,
                             false, known_sums_of(b, head, REF_DQ)};
    for (int64_t i = 0; i < block->rows.rows; ++i) {
        const struct bound_row_state *s = &block->states[i];
        if (s->live == 0 || s->broken) continue;
        const struct ref_sum sum = ref_sum_rows(m, s->live, head->num_keys, 1);
        const int64_t row = (head->sequence.first_q + block->rows.first + i) * p->num_heads_q + head->h;
        for (int64_t c = 0; c < p->head_dim; ++c) {
            const double live = (double)s->live, norm = block->ds_norm[i] + block->corrections[i].norm;
            const double once = 3 * live * m->tiny + m->lost * (norm + g->k_sum[c] + live * m->least_operand);
            const double scaled = bound_lost_to_scaling(g->floors.ds, g->floors.k, norm, g->k_sum[c], live);
            const double lost = head->fmax * once * (1 + block->corrections[i].factor) + (1 + sum.rel) * scaled;
            finish_element(&f, terms, i * p->head_dim + c, sum, lost, s->overflow, &b->tensors[REF_DQ],
                           row * p->head_dim + c);
        }
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
    const struct finish f = {m, is_dk ? p->dk.dtype : p->dv.dtype, is_dk ? (double)p->softmax_scale : 1.0, 0.0,
                             !is_dk, known_sums_of(b, &g->head, tensor)};
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
            finish_element(&f, &terms->group, j * features + c, sum, lost, terms->overflow[j] != 0.0,
                           &b->tensors[tensor], row * features + c);
        }
    }
}

/* The three, five or seven sums of a product: weights [rows][ld] times the operand's panels, to terms [..][features].
 */
static void add_products(const struct bound_weights *w, int64_t m, int64_t n, int64_t k, int64_t a_row, int64_t a_col,
                         const struct bound_panels *operand, bool add, struct bound_terms *t)
{
    const int64_t packed = operand->k_packed;
    bound_product(m, n, k, w->value, a_row, a_col, operand->plain, packed, add, t->value, n);
    bound_product(m, n, k, w->absolute, a_row, a_col, operand->absolute, packed, add, t->absolute, n);
    bound_product(m, n, k, w->error, a_row, a_col, operand->absolute, packed, add, t->error, n);
    if (!t->variance) return;
    bound_product(m, n, k, w->variance, a_row, a_col, operand->square, packed, add, t->variance, n);
    bound_product(m, n, k, w->bias, a_row, a_col, operand->absolute, packed, add, t->bias, n);
    if (!w->known) return;
    bound_product(m, n, k, w->known, a_row, a_col, operand->plain, packed, add, t->known, n);
    bound_product(m, n, k, w->tied, a_row, a_col, operand->plain, packed, add, t->tied, n);
}

static void add_key_products(const struct bound_gradient_head *g, const struct bound_gradient_block *block,
                             const struct bound_weights *w, const struct bound_panels *operand, int64_t features,
                             struct bound_key_terms *terms)
{
    add_products(w, g->head.num_keys, features, block->rows.rows, 1, g->head.ld, operand, true, &terms->head);
}

static bool one_block(struct backward *b, struct bound_gradient_head *g, struct bound_gradient_block *block,
                      struct bound_terms *dq, int64_t first)
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
        bound_add_sums(g, block, &b->dbias, &b->dsink);
        if (b->tensors[REF_DQ].bound) {
            if (b->machine.corrects_delta)
                bound_corrected_dq(g, block, dq);
            else
                add_products(&block->ds, rows, p->head_dim, head->num_keys, head->ld, 1, &g->k_rows, false, dq);
            finish_dq(b, g, block, dq);
        }
        add_key_products(g, block, &block->ds, &q, p->head_dim, &g->dk);
        add_key_products(g, block, &block->pd, &dout, p->head_dim_v, &g->dv);
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
    if (sequence.seqlen_q > b->longest || sequence.seqlen_k > b->longest) return ATTEST_OK;
    struct bound_pool pool = {0};
    struct bound_gradient_head g = {.args = b->args, .statistics = b->statistics};
    g.head = (struct bound_head){.problem = p,
                                 .args = &b->args->forward,
                                 .machine = b->machine,
                                 .b = unit / p->num_heads_kv,
                                 .h_kv = unit % p->num_heads_kv};
    struct bound_gradient_block block = {0};
    struct bound_terms dq = {0};
    bool ok = bound_take_gradients(&pool, &g, &block) &&
              bound_take_terms(&pool, BOUND_BLOCK * p->head_dim, b->statistics, &dq);
    for (int64_t i = 0; ok && i < group; ++i) {
        g.head.h = g.head.h_kv * group + i;
        for (int64_t r = 0; ok && r < g.head.sequence.seqlen_q; r += BOUND_BLOCK) ok = one_block(b, &g, &block, &dq, r);
        if (ok) bound_end_head(&g);
    }
    if (ok && b->tensors[REF_DK].bound) finish_keys(b, &g, &g.dk, REF_DK);
    if (ok && b->tensors[REF_DV].bound) finish_keys(b, &g, &g.dv, REF_DV);
    bound_release(&pool);
    return ok ? ATTEST_OK : ATTEST_OUT_OF_MEMORY;
}

/* Plain sums in fp32, any order: dbias over the axes it broadcasts, dsink over rows and sequences. */
static struct ref_sum plain_sum(const struct ref_machine *m, double terms)
{
    return (struct ref_sum){ref_growth((terms + 3) * m->u), sqrt((terms + 3) / 3) * m->u, 0.0};
}

static void finish_dbias(struct backward *b, int64_t size)
{
    const struct finish f = {&b->machine, b->problem->dbias.dtype, 1.0, 0.0, false, NULL};
    for (int64_t i = 0; i < size; ++i) {
        const double count = b->dbias.count[i];
        if (count == 0.0) continue;
        finish_element(&f, &b->dbias, i, plain_sum(&b->machine, count), count * b->machine.tiny,
                       b->dbias.overflow[i] != 0.0, &b->tensors[REF_DBIAS], i);
    }
}

static void finish_dsink(struct backward *b)
{
    const struct attest_problem *p = b->problem;
    const struct finish f = {&b->machine, ATTEST_FP32, 1.0, 0.0, false, NULL};
    struct bound_terms *t = &b->dsink;
    for (int64_t h = 0; h < p->num_heads_q; ++h) {
        for (int64_t s = 1; s < p->batch; ++s) bound_add_term(t, h, t, s * p->num_heads_q + h);
        if (t->count[h] == 0.0) continue;
        finish_element(&f, t, h, plain_sum(&b->machine, t->count[h]), t->count[h] * b->machine.tiny,
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
static void share_all_known(const struct backward *b)
{
    const struct attest_problem *p = b->problem;
    if (!b->known) return;
    share_known(b, REF_DQ, ref_rows_q(p) * p->num_heads_q * p->head_dim);
    share_known(b, REF_DK, ref_rows_k(p) * p->num_heads_kv * p->head_dim);
    share_known(b, REF_DV, ref_rows_k(p) * p->num_heads_kv * p->head_dim_v);
    memset(b->known, 0, (size_t)(p->batch * p->num_heads_kv * KNOWN_TENSORS) * sizeof *b->known);
}

enum attest_status ref_bound_backward(const struct attest_problem *p, const struct attest_backward_args *a,
                                      const struct attest_recipe *recipe,
                                      const struct ref_bound tensors[REF_NUM_TENSORS], int threads)
{
    struct backward b = {
        .problem = p, .args = a, .machine = ref_machine(p, recipe), .tensors = tensors, .longest = INT64_MAX};
    const int64_t rows_q = ref_rows_q(p) * p->num_heads_q, rows_k = ref_rows_k(p) * p->num_heads_kv;
    const bool has_dbias = tensors[REF_DBIAS].bound && p->dbias.dtype != ATTEST_ABSENT;
    const bool has_dsink = tensors[REF_DSINK].bound && p->has_sink;
    const int64_t biases = has_dbias ? dbias_size(p) : 0;
    for (int t = REF_DQ; t < REF_NUM_TENSORS; ++t) b.statistics |= tensors[t].sigma != NULL;
    bound_clear_bound(&tensors[REF_DQ], rows_q * p->head_dim);
    bound_clear_bound(&tensors[REF_DK], rows_k * p->head_dim);
    bound_clear_bound(&tensors[REF_DV], rows_k * p->head_dim_v);
    bound_clear_bound(&tensors[REF_DBIAS], biases);
    bound_clear_bound(&tensors[REF_DSINK], p->has_sink ? p->num_heads_q : 0);
    struct bound_pool pool = {0};
    enum attest_status status = ATTEST_OUT_OF_MEMORY;
    const int64_t sums = p->batch * p->num_heads_kv * KNOWN_TENSORS;
    if (b.statistics)
        b.known = (struct known_sums *)bound_take(&pool, sums * (int64_t)(sizeof *b.known / sizeof(double)));
    if (!pool.failed && (!has_dbias || bound_take_terms(&pool, biases, b.statistics, &b.dbias)) &&
        (!has_dsink || bound_take_terms(&pool, p->batch * p->num_heads_q, b.statistics, &b.dsink))) {
        /* Sums over heads and sequences are one thread's, in order. */
        status = bound_for_each(p->batch * p->num_heads_kv, has_dbias ? 1 : threads, backward_unit, &b);
        if (has_dbias) finish_dbias(&b, biases);
        if (has_dsink && p->batch > 0) finish_dsink(&b);
        if (status == ATTEST_OK) share_all_known(&b);
    }
    if (status == ATTEST_OK && b.machine.may_scale) {
        const struct attest_recipe scaled = ref_scaling_recipe(recipe);
        b.machine = ref_machine(p, &scaled);
        b.longest = REF_SCALED_ROWS;
        status = bound_for_each(p->batch * p->num_heads_kv, threads, backward_unit, &b);
        if (status == ATTEST_OK) share_all_known(&b);
    }
    bound_release(&pool);
    return status;
}

/* sequence.c - where rows lie, who sees whom, and the scores of one row, as lib/contract.md says. */
#include <math.h>

#include "reference/formats.h"
#include "reference/oracle.h"

int64_t ref_rows_q(const struct attest_problem *p) { return p->ragged ? p->total_q : p->batch * p->seqlen_q; }
int64_t ref_rows_k(const struct attest_problem *p) { return p->ragged ? p->total_k : p->batch * p->seqlen_k; }

struct ref_sequence ref_sequence(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b)
{
    struct ref_sequence s;
    s.first_q = p->ragged ? a->cu_seqlens_q[b] : b * p->seqlen_q;
    s.first_k = p->ragged ? a->cu_seqlens_k[b] : b * p->seqlen_k;
    s.rows_q = p->ragged ? a->cu_seqlens_q[b + 1] - s.first_q : p->seqlen_q;
    s.rows_k = p->ragged ? a->cu_seqlens_k[b + 1] - s.first_k : p->seqlen_k;
    s.seqlen_q = p->has_seqused_q ? a->seqused_q[b] : s.rows_q;
    s.seqlen_k = p->has_seqused_k ? a->seqused_k[b] : s.rows_k;
    const int64_t bottom_right = s.seqlen_k - s.seqlen_q;
    s.diag = p->diag_kind == ATTEST_DIAG_GIVEN ? p->diag : p->diag_kind == ATTEST_DIAG_TOP_LEFT ? 0 : bottom_right;
    s.alibi_diag = p->alibi_diag_kind == ATTEST_DIAG_GIVEN      ? p->alibi_diag
                   : p->alibi_diag_kind == ATTEST_DIAG_TOP_LEFT ? 0
                                                                : bottom_right;
    return s;
}

int64_t ref_row_offset(const struct attest_problem *p, const struct attest_tensor *t, const struct ref_sequence *s,
                       bool is_k, int64_t b, int64_t r, int64_t h)
{
    const int64_t row = p->ragged ? (is_k ? s->first_k : s->first_q) + r : r;
    return (p->ragged ? 0 : b * t->batch) + row * t->seqlen + h * t->head;
}

int64_t ref_score_offset(const struct attest_score_tensor *t, int64_t b, int64_t h, int64_t r, int64_t c)
{
    return b * t->batch + h * t->head + r * t->seqlen_q + c * t->seqlen_k;
}

/* j - (i + diag): 0 on the diagonal, negative to the left of it. */
static int64_t distance(const struct attest_problem *p, int64_t r, int64_t c, int64_t diag)
{
    return p->k_start + c - (p->q_start + r + diag);
}

static double bias_of(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b, int64_t h,
                      int64_t r, int64_t c)
{
    return ref_load(p->bias.dtype, a->bias, ref_score_offset(&p->bias, b, h, r, c));
}

bool ref_visible(const struct attest_problem *p, const struct attest_forward_args *a, const struct ref_sequence *s,
                 int64_t b, int64_t h, int64_t r, int64_t c)
{
    if (r >= s->seqlen_q || c >= s->seqlen_k) return false;
    const int64_t d = distance(p, r, c, s->diag);
    if (p->window_left >= 0 && d < -p->window_left) return false;
    if (p->window_right >= 0 && d > p->window_right) return false;
    if (p->mask.dtype != ATTEST_ABSENT && !a->mask[ref_score_offset(&p->mask, b, h, r, c)]) return false;
    if (p->block_mask.dtype != ATTEST_ABSENT &&
        !a->block_mask[ref_score_offset(&p->block_mask, b, h, r / p->block_q, c / p->block_k)])
        return false;
    return p->bias.dtype == ATTEST_ABSENT || bias_of(p, a, b, h, r, c) != -INFINITY;
}

double ref_largest_bias(const struct attest_problem *p, const struct attest_forward_args *a,
                        const struct ref_sequence *s, int64_t b, int64_t h, int64_t r, int64_t first, int64_t last)
{
    double largest = -INFINITY;
    for (int64_t c = first; c < last && p->bias.dtype != ATTEST_ABSENT; ++c) {
        if (!ref_visible(p, a, s, b, h, r, c)) continue;
        const double bias = bias_of(p, a, b, h, r, c);
        if (isfinite(bias) && bias > largest) largest = bias;
    }
    if (isfinite(largest) && p->has_sink && isfinite(a->sink[h])) largest = fmax(largest, a->sink[h]);
    return isfinite(largest) ? largest : 0.0;
}

/* s, s_abs, t and x of one visible score. */
struct score {
    double s, s_abs, t, x;
};

static struct score score_of(const struct attest_problem *p, const struct attest_forward_args *a,
                             const struct ref_sequence *s, int64_t b, int64_t h, int64_t r, int64_t c, double base)
{
    const int64_t h_kv = h / (p->num_heads_q / p->num_heads_kv);
    const int64_t q = ref_row_offset(p, &p->q, s, false, b, r, h), k = ref_row_offset(p, &p->k, s, true, b, c, h_kv);
    double dot = 0.0, dot_abs = 0.0;
    for (int64_t x = 0; x < p->head_dim; ++x) {
        const double product = ref_load(p->q.dtype, a->q, q + x) * ref_load(p->k.dtype, a->k, k + x);
        dot += product;
        dot_abs += fabs(product);
    }
    struct score result = {.s = (double)p->softmax_scale * dot, .s_abs = fabs((double)p->softmax_scale) * dot_abs};
    const double cap = p->softcap;
    result.t = cap > 0 ? cap * tanh(result.s / cap) : result.s;
    result.x = result.t;
    if (p->bias.dtype != ATTEST_ABSENT) result.x += bias_of(p, a, b, h, r, c) - base;
    if (p->has_alibi) result.x -= (double)a->alibi_slopes[h] * fabs((double)distance(p, r, c, s->alibi_diag));
    return result;
}

static void put(double *array, int64_t index, double value)
{
    if (array) array[index] = value;
}

/* max(a, b) that a NaN on either side survives. */
static double max_or_nan(double a, double b) { return a > b || isnan(a) ? a : b; }

/* ln(sum_c exp(x_c) + exp(sink)) over the visible keys of a row. Where the largest exponent m is not
 * finite the formula as written gives m itself, in IEEE arithmetic. */
static double lse_of_row(const struct attest_problem *p, const struct attest_forward_args *a,
                         const struct ref_sequence *s, int64_t b, int64_t h, int64_t r, const struct ref_row *row)
{
    const double sink = p->has_sink ? (double)a->sink[h] - row->base : -INFINITY;
    const double m = p->has_sink ? max_or_nan(sink, row->max) : row->max;
    if (!isfinite(m)) return m;
    double sum = p->has_sink ? exp(sink - m) : 0.0;
    for (int64_t c = 0; c < s->seqlen_k; ++c) {
        if (row->x)
            sum += exp(row->x[c] - m);
        else if (ref_visible(p, a, s, b, h, r, c))
            sum += exp(score_of(p, a, s, b, h, r, c, row->base).x - m);
    }
    return m + log(sum);
}

void ref_score_row(const struct attest_problem *p, const struct attest_forward_args *a, const struct ref_sequence *s,
                   int64_t b, int64_t h, int64_t r, struct ref_row *row)
{
    row->base = ref_largest_bias(p, a, s, b, h, r, 0, s->seqlen_k);
    row->max = -INFINITY;
    row->num_visible = 0;
    for (int64_t c = 0; c < s->seqlen_k; ++c) {
        const bool visible = ref_visible(p, a, s, b, h, r, c);
        const struct score v = visible ? score_of(p, a, s, b, h, r, c, row->base) : (struct score){.x = -INFINITY};
        put(row->x, c, v.x);
        put(row->s, c, v.s);
        put(row->s_abs, c, v.s_abs);
        put(row->t, c, v.t);
        put(row->drop, c, visible ? ref_dropout(p, a, b, h, r, c) : 0.0);
        if (visible) row->max = max_or_nan(v.x, row->max);
        row->num_visible += visible;
    }
    row->lse = lse_of_row(p, a, s, b, h, r, row);
}

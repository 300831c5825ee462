/* backward.c - dq, dk, dv, dbias, dsink and delta, from the definition. */
#include <math.h>
#include <stdlib.h>

#include "reference/formats.h"
#include "reference/oracle.h"

/* What all rows share. */
struct call {
    const struct attest_problem *p;
    const struct attest_backward_args *a;
    const struct attest_forward_args *f;
    const struct ref_external *external;
    const struct ref_backward *out;
    double *x, *t, *drop, *dp;
};

static void fill(double *array, int64_t count, double value)
{
    for (int64_t i = 0; array && i < count; ++i) array[i] = value;
}

static double *dbias_at(const struct call *c, int64_t b, int64_t h, int64_t r, int64_t key)
{
    const struct attest_score_tensor *t = &c->p->dbias;
    const int64_t heads = t->head ? c->p->num_heads_q : 1, rows = t->seqlen_q ? c->p->seqlen_q : 1;
    const int64_t keys = t->seqlen_k ? c->p->seqlen_k : 1;
    b = t->batch ? b : 0, h = t->head ? h : 0, r = t->seqlen_q ? r : 0, key = t->seqlen_k ? key : 0;
    return c->out->dbias + ((b * heads + h) * rows + r) * keys + key;
}

static void row_backward(const struct call *c, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r)
{
    const struct attest_problem *p = c->p;
    const struct attest_forward_args *f = c->f;
    const int64_t h_kv = h / (p->num_heads_q / p->num_heads_kv), row_index = (s->first_q + r) * p->num_heads_q + h;
    struct ref_row row = {.x = c->x, .t = c->t, .drop = c->drop};
    ref_score_row(p, f, s, b, h, r, &row);
    double lse = row.lse, delta = 0.0, dlse = 0.0;
    if (row.num_visible == 0 && !p->has_sink) return;
    if (p->external_lse) {
        const int64_t at = ref_row_offset(p, &p->lse, s, false, b, r, h);
        const int64_t at_delta = ref_row_offset(p, &p->delta, s, false, b, r, h);
        lse = c->external ? c->external->lse[row_index] : ref_load(ATTEST_FP32, f->lse, at);
        delta = c->external ? c->external->delta[row_index] : ref_load(ATTEST_FP32, c->a->delta, at_delta);
    }
    if (p->dlse.dtype != ATTEST_ABSENT)
        dlse = ref_load(p->dlse.dtype, c->a->dlse, ref_row_offset(p, &p->dlse, s, false, b, r, h));
    const int64_t dout = ref_row_offset(p, &p->dout, s, false, b, r, h);
    for (int64_t j = 0; j < s->seqlen_k; ++j) {
        if (!ref_visible(p, f, s, b, h, r, j)) continue;
        const int64_t v = ref_row_offset(p, &p->v, s, true, b, j, h_kv);
        const double pj = exp(c->x[j] - lse);
        double dot = 0.0;
        for (int64_t x = 0; x < p->head_dim_v; ++x) {
            const double g = ref_load(p->dout.dtype, c->a->dout, dout + x);
            dot += g * ref_load(p->v.dtype, f->v, v + x);
            if (c->out->dv)
                c->out->dv[((s->first_k + j) * p->num_heads_kv + h_kv) * p->head_dim_v + x] += c->drop[j] * pj * g;
        }
        c->dp[j] = c->drop[j] * dot;
        if (!p->external_lse) delta += pj * c->dp[j];
    }
    if (c->out->delta) c->out->delta[row_index] = delta;
    if (c->out->dsink && p->has_sink) c->out->dsink[h] += exp(f->sink[h] - lse) * (dlse - delta);
    const int64_t q = ref_row_offset(p, &p->q, s, false, b, r, h);
    for (int64_t j = 0; j < s->seqlen_k; ++j) {
        if (!ref_visible(p, f, s, b, h, r, j)) continue;
        const double dx = exp(c->x[j] - lse) * (c->dp[j] - delta + dlse), u = c->t[j] / p->softcap;
        const double ds = (double)p->softmax_scale * (p->softcap > 0 ? dx * (1 - u * u) : dx);
        const int64_t k = ref_row_offset(p, &p->k, s, true, b, j, h_kv);
        if (c->out->dbias) *dbias_at(c, b, h, r, j) += dx;
        for (int64_t x = 0; x < p->head_dim; ++x) {
            if (c->out->dq) c->out->dq[row_index * p->head_dim + x] += ds * ref_load(p->k.dtype, f->k, k + x);
            if (c->out->dk)
                c->out->dk[((s->first_k + j) * p->num_heads_kv + h_kv) * p->head_dim + x] +=
                    ds * ref_load(p->q.dtype, f->q, q + x);
        }
    }
}

enum attest_status ref_backward(const struct attest_problem *p, const struct attest_backward_args *a,
                                const struct ref_external *external, const struct ref_backward *out, int threads)
{
    (void)threads;
    double *scratch = malloc(4 * (size_t)(p->seqlen_k + 1) * sizeof *scratch);
    if (!scratch) return ATTEST_OUT_OF_MEMORY;
    const struct call c = {p, a, &a->forward, external, out, scratch, scratch + p->seqlen_k,
                           scratch + 2 * p->seqlen_k, scratch + 3 * p->seqlen_k};
    const int64_t hq = p->num_heads_q, hk = p->num_heads_kv, d = p->head_dim, dv = p->head_dim_v;
    fill(out->dq, ref_rows_q(p) * hq * d, NAN);
    fill(out->delta, ref_rows_q(p) * hq, NAN);
    fill(out->dk, ref_rows_k(p) * hk * d, NAN);
    fill(out->dv, ref_rows_k(p) * hk * dv, NAN);
    fill(out->dsink, hq, 0.0);
    if (out->dbias)
        fill(out->dbias, (p->dbias.batch ? p->batch : 1) * (p->dbias.head ? hq : 1) *
                 (p->dbias.seqlen_q ? p->seqlen_q : 1) * (p->dbias.seqlen_k ? p->seqlen_k : 1), 0.0);
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &a->forward, b);
        if (out->dq) fill(out->dq + s.first_q * hq * d, s.rows_q * hq * d, 0.0);
        if (out->delta) fill(out->delta + s.first_q * hq, s.rows_q * hq, 0.0);
        if (out->dk) fill(out->dk + s.first_k * hk * d, s.rows_k * hk * d, 0.0);
        if (out->dv) fill(out->dv + s.first_k * hk * dv, s.rows_k * hk * dv, 0.0);
        for (int64_t h = 0; h < hq; ++h)
            for (int64_t r = 0; r < s.seqlen_q; ++r) row_backward(&c, &s, b, h, r);
    }
    free(scratch);
    return ATTEST_OK;
}

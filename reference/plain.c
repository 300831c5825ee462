/* plain.c - see plain.h. */
#include "reference/plain.h"

#include <math.h>

#include "reference/formats.h"

static int64_t kv_head(const struct attest_problem *p, int64_t h) { return h / (p->num_heads_q / p->num_heads_kv); }

void ref_plain_forward(const struct attest_problem *p, const struct attest_forward_args *a,
                       const struct ref_sequence *s, int64_t b, int64_t h, int64_t r, double *scratch, double *o,
                       double *lse)
{
    struct ref_row row = {.x = scratch, .drop = scratch + s->seqlen_k};
    ref_score_row(p, a, s, b, h, r, &row);
    *lse = row.base + row.lse;
    for (int64_t f = 0; o && f < p->head_dim_v; ++f) o[f] = 0.0;
    for (int64_t c = 0; o && c < s->seqlen_k; ++c) {
        if (!ref_visible(p, a, s, b, h, r, c)) continue;
        const double weight = row.drop[c] * exp(row.x[c] - row.lse);
        const int64_t v = ref_row_offset(p, &p->v, s, true, b, c, kv_head(p, h));
        for (int64_t f = 0; f < p->head_dim_v; ++f) o[f] += weight * ref_load(p->v.dtype, a->v, v + f);
    }
}

struct ref_row_state ref_given_state(const struct ref_gradients *g, const struct ref_sequence *s, int64_t b, int64_t h,
                                     int64_t r)
{
    const struct attest_problem *p = g->p;
    const int64_t row = (s->first_q + r) * p->num_heads_q + h;
    struct ref_row_state state = {0};
    if (p->external_lse && g->external) {
        state.lse = g->external->lse[row];
        state.delta = g->external->delta[row];
    } else if (p->external_lse) {
        state.lse = ref_load(p->lse.dtype, g->a->forward.lse, ref_row_offset(p, &p->lse, s, false, b, r, h));
        state.delta = ref_load(p->delta.dtype, g->a->delta, ref_row_offset(p, &p->delta, s, false, b, r, h));
    }
    if (p->dlse.dtype)
        state.dlse = ref_load(p->dlse.dtype, g->a->dlse, ref_row_offset(p, &p->dlse, s, false, b, r, h));
    return state;
}

double *ref_dbias_at(const struct ref_gradients *g, int64_t b, int64_t h, int64_t r, int64_t c)
{
    const struct attest_score_tensor *t = &g->p->dbias;
    const int64_t heads = t->head ? g->p->num_heads_q : 1, rows = t->seqlen_q ? g->p->seqlen_q : 1;
    const int64_t keys = t->seqlen_k ? g->p->seqlen_k : 1;
    b = t->batch ? b : 0, h = t->head ? h : 0, r = t->seqlen_q ? r : 0, c = t->seqlen_k ? c : 0;
    return g->out->dbias + ((b * heads + h) * rows + r) * keys + c;
}

/* dp of every visible key to dp[], what the row adds to dv, and sum_j p_j dp_j. */
static double row_dp(const struct ref_gradients *g, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r,
                     const struct ref_row *row, double lse, double *dp)
{
    const struct attest_problem *p = g->p;
    const int64_t dout = ref_row_offset(p, &p->dout, s, false, b, r, h), h_kv = kv_head(p, h);
    double delta = 0.0;
    for (int64_t c = 0; c < s->seqlen_k; ++c) {
        if (!ref_visible(p, &g->a->forward, s, b, h, r, c)) continue;
        const int64_t v = ref_row_offset(p, &p->v, s, true, b, c, h_kv);
        const int64_t dv = ((s->first_k + c) * p->num_heads_kv + h_kv) * p->head_dim_v;
        const double p_rc = exp(row->x[c] - lse);
        double dot = 0.0;
        for (int64_t f = 0; f < p->head_dim_v; ++f) {
            const double dout_f = ref_load(p->dout.dtype, g->a->dout, dout + f);
            dot += dout_f * ref_load(p->v.dtype, g->a->forward.v, v + f);
            if (g->out->dv) g->out->dv[dv + f] += row->drop[c] * p_rc * dout_f;
        }
        dp[c] = row->drop[c] * dot;
        delta += p_rc * dp[c];
    }
    return delta;
}

/* What the row adds to dq and dk through one score, softmax_scale already in ds. */
static void add_ds(const struct ref_gradients *g, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r,
                   int64_t c, double ds)
{
    const struct attest_problem *p = g->p;
    const int64_t h_kv = kv_head(p, h);
    const int64_t q = ref_row_offset(p, &p->q, s, false, b, r, h), k = ref_row_offset(p, &p->k, s, true, b, c, h_kv);
    const int64_t dq = ((s->first_q + r) * p->num_heads_q + h) * p->head_dim;
    const int64_t dk = ((s->first_k + c) * p->num_heads_kv + h_kv) * p->head_dim;
    for (int64_t x = 0; x < p->head_dim; ++x) {
        if (g->out->dq) g->out->dq[dq + x] += ds * ref_load(p->k.dtype, g->a->forward.k, k + x);
        if (g->out->dk) g->out->dk[dk + x] += ds * ref_load(p->q.dtype, g->a->forward.q, q + x);
    }
}

void ref_plain_backward(const struct ref_gradients *g, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r,
                        double *scratch)
{
    const struct attest_problem *p = g->p;
    const int64_t keys = s->seqlen_k, index = (s->first_q + r) * p->num_heads_q + h;
    struct ref_row row = {.x = scratch, .t = scratch + keys, .drop = scratch + 2 * keys};
    double *dp = scratch + 3 * keys;
    ref_score_row(p, &g->a->forward, s, b, h, r, &row);
    if (row.num_visible == 0 && !p->has_sink) return; /* its dout and dlse are not read */
    struct ref_row_state state = ref_given_state(g, s, b, h, r);
    state.lse = p->external_lse ? state.lse - row.base : row.lse;
    const double delta = row_dp(g, s, b, h, r, &row, state.lse, dp);
    if (!p->external_lse) state.delta = delta;
    if (g->out->delta) g->out->delta[index] = state.delta;
    if (g->dsink_rows)
        g->dsink_rows[index] =
            ref_sink_weight((double)g->a->forward.sink[h] - row.base, state.lse) * (state.dlse - state.delta);
    for (int64_t c = 0; c < keys; ++c) {
        if (!ref_visible(p, &g->a->forward, s, b, h, r, c)) continue;
        const double dx = exp(row.x[c] - state.lse) * (dp[c] - state.delta + state.dlse), u = row.t[c] / p->softcap;
        if (g->out->dbias) *ref_dbias_at(g, b, h, r, c) += dx;
        add_ds(g, s, b, h, r, c, p->softmax_scale * (p->softcap > 0 ? dx * (1 - u * u) : dx));
    }
}

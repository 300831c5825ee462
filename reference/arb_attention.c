/* arb_attention.c - see arb_attention.h. The section numbers are those of lib/contract.md. */
#include "reference/arb_attention.h"

#include <math.h>
#include <stdlib.h>

#include "reference/formats.h"

struct ball_rows ball_rows_q(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b)
{
    struct ball_rows rows = {0, p->seqlen_q, 0};
    if (p->ragged) rows.first = a->cu_seqlens_q[b], rows.rows = a->cu_seqlens_q[b + 1] - rows.first;
    rows.used = p->has_seqused_q ? a->seqused_q[b] : rows.rows;
    return rows;
}

struct ball_rows ball_rows_k(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b)
{
    struct ball_rows rows = {0, p->seqlen_k, 0};
    if (p->ragged) rows.first = a->cu_seqlens_k[b], rows.rows = a->cu_seqlens_k[b + 1] - rows.first;
    rows.used = p->has_seqused_k ? a->seqused_k[b] : rows.rows;
    return rows;
}

double ball_element(const struct attest_problem *p, const struct attest_tensor *t, const void *data,
                    struct ball_rows rows, int64_t b, int64_t r, int64_t h, int64_t x)
{
    const int64_t sequence = p->ragged ? rows.first * t->seqlen : b * t->batch;
    return ref_load(t->dtype, data, sequence + r * t->seqlen + h * t->head + x);
}

double ball_score_element(const struct attest_score_tensor *t, const void *data, int64_t b, int64_t h, int64_t r,
                          int64_t c)
{
    return ref_load(t->dtype, data, b * t->batch + h * t->head + r * t->seqlen_q + c * t->seqlen_k);
}

/* Query head h reads this KV head: groups of consecutive query heads share one. */
static int64_t kv_head(const struct attest_problem *p, int64_t h) { return h * p->num_heads_kv / p->num_heads_q; }

static int64_t diagonal(int32_t kind, int64_t given, struct ball_rows q, struct ball_rows k)
{
    switch (kind) {
    case ATTEST_DIAG_GIVEN: return given;
    case ATTEST_DIAG_TOP_LEFT: return 0;
    default: return k.used - q.used; /* bottom-right: the last query sits on the last key */
    }
}

/* Section 1, visible keys. Global indices and diagonals are at most 2^61 in magnitude: no sum here overflows. */
static bool visible(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b, int64_t h,
                    int64_t r, int64_t c, int64_t diag)
{
    const int64_t on_diagonal = p->q_start + r + diag, j = p->k_start + c;
    if (p->window_left >= 0 && on_diagonal - p->window_left > j) return false;
    if (p->window_right >= 0 && j > on_diagonal + p->window_right) return false;
    if (p->mask.dtype != ATTEST_ABSENT && ball_score_element(&p->mask, a->mask, b, h, r, c) == 0) return false;
    if (p->block_mask.dtype != ATTEST_ABSENT &&
        ball_score_element(&p->block_mask, a->block_mask, b, h, r / p->block_q, c / p->block_k) == 0)
        return false;
    return p->bias.dtype == ATTEST_ABSENT || ball_score_element(&p->bias, a->bias, b, h, r, c) != -INFINITY;
}

/* x and dt/ds of a visible score. */
static void score(const struct attest_problem *p, const struct attest_forward_args *a, const struct ball_row *row,
                  struct ball_rows q, struct ball_rows k, int64_t c, slong bits, arb_t x, arb_t slope)
{
    arb_t product, factor;
    arb_init(product);
    arb_init(factor);
    arb_zero(x);
    for (int64_t f = 0; f < p->head_dim; ++f) {
        arb_set_d(product, ball_element(p, &p->q, a->q, q, row->b, row->r, row->h, f));
        arb_set_d(factor, ball_element(p, &p->k, a->k, k, row->b, c, kv_head(p, row->h), f));
        arb_addmul(x, product, factor, bits);
    }
    arb_set_d(factor, p->softmax_scale);
    arb_mul(x, x, factor, bits);
    arb_one(slope);
    if (p->softcap > 0) { /* t = softcap tanh(s / softcap); dt/ds = 1 - tanh^2 */
        arb_set_d(factor, p->softcap);
        arb_div(x, x, factor, bits);
        arb_tanh(x, x, bits);
        arb_submul(slope, x, x, bits);
        arb_mul(x, x, factor, bits);
    }
    if (p->bias.dtype != ATTEST_ABSENT) {
        arb_set_d(factor, ball_score_element(&p->bias, a->bias, row->b, row->h, row->r, c));
        arb_add(x, x, factor, bits);
    }
    if (p->has_alibi) { /* - slope_h |i + diag - j| */
        const int64_t diag = diagonal(p->alibi_diag_kind, p->alibi_diag, q, k);
        const int64_t distance = p->q_start + row->r + diag - (p->k_start + c);
        arb_set_d(factor, a->alibi_slopes[row->h]);
        arb_set_si(product, distance < 0 ? -distance : distance);
        arb_submul(x, factor, product, bits);
    }
    arb_clear(product);
    arb_clear(factor);
}

/* Philox4x32-10, as its authors define it, on a counter and key of 64-bit halves; result: word w of the block. */
static uint32_t philox(uint64_t low, uint64_t high, uint64_t key, int w)
{
    uint32_t c0 = (uint32_t)low, c1 = low >> 32, c2 = (uint32_t)high, c3 = high >> 32;
    for (int round = 0; round < 10; ++round) {
        const uint32_t key0 = (uint32_t)key + 0x9E3779B9u * (uint32_t)round;
        const uint32_t key1 = (uint32_t)(key >> 32) + 0xBB67AE85u * (uint32_t)round;
        const uint64_t product0 = UINT64_C(0xD2511F53) * c0, product1 = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ key0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ key1;
        c3 = (uint32_t)product0;
    }
    return w == 0 ? c0 : w == 1 ? c1 : w == 2 ? c2 : c3;
}

/* m: 0 where the score's 16 bits are below t = round(65536 dropout_p), else 65536 / (65536 - t). */
static void dropout(const struct attest_problem *p, const struct attest_forward_args *a, const struct ball_row *row,
                    int64_t c, slong bits, arb_t m)
{
    arb_one(m);
    if (p->dropout_p == 0) return;
    const uint64_t seed = a->dropout_seed != NULL ? *a->dropout_seed : p->dropout_seed;
    const uint64_t offset = a->dropout_offset != NULL ? *a->dropout_offset : p->dropout_offset;
    const int64_t head = row->b * p->num_heads_q + row->h;
    const uint64_t stream = (uint64_t)(a->dropout_stream != NULL ? a->dropout_stream[head] : head);
    const uint64_t i = (uint64_t)(p->q_start + row->r), j = (uint64_t)(p->k_start + c);
    const uint64_t low = (i & 0xffffffffu) << 32 | (j >> 3 & 0xffffffffu);
    const uint32_t word = philox(low, offset + (stream << 32), seed, (j & 7) >> 1);
    const uint32_t u16 = j & 1 ? word >> 16 : word & 0xffff;
    const uint32_t t = (uint32_t)floor(65536.0 * (double)p->dropout_p + 0.5);
    arb_set_ui(m, u16 < t ? 0 : 65536);
    arb_div_ui(m, m, 65536 - t, bits);
}

/* lse = ln(sum_j exp(x_j) + exp(sink)), every exponent taken relative to one of the largest, a midpoint and so an
 * exact number: an identity, and no exponential overflows. */
static void log_sum_exp(const struct attest_problem *p, const struct attest_forward_args *a, struct ball_row *row,
                        slong bits)
{
    arb_t shift, sum, e;
    arb_init(shift);
    arb_init(sum);
    arb_init(e);
    bool found = p->has_sink;
    if (p->has_sink) arb_set_d(shift, a->sink[row->h]);
    for (slong c = 0; c < row->num_keys; ++c) {
        if (!row->visible[c]) continue;
        if (!found || arf_cmp(arb_midref(row->x + c), arb_midref(shift)) > 0) arb_get_mid_arb(shift, row->x + c);
        found = true;
    }
    row->empty = !found;
    for (slong c = -1; c < row->num_keys; ++c) { /* -1 is the sink */
        if (c < 0 ? !p->has_sink : !row->visible[c]) continue;
        if (c < 0) arb_set_d(e, a->sink[row->h]);
        arb_sub(e, c < 0 ? e : row->x + c, shift, bits);
        arb_exp(e, e, bits);
        arb_add(sum, sum, e, bits);
    }
    if (found) {
        arb_log(row->lse, sum, bits);
        arb_add(row->lse, row->lse, shift, bits);
    }
    arb_clear(shift);
    arb_clear(sum);
    arb_clear(e);
}

/* p_c = exp(x_c - lse). */
static void probabilities(struct ball_row *row, slong bits)
{
    for (slong c = 0; c < row->num_keys; ++c) {
        if (!row->visible[c]) continue;
        arb_sub(row->p + c, row->x + c, row->lse, bits);
        arb_exp(row->p + c, row->p + c, bits);
    }
}

static void row_init(struct ball_row *row, int64_t b, int64_t h, int64_t r, slong num_keys)
{
    *row = (struct ball_row){.b = b, .h = h, .r = r, .num_keys = num_keys};
    row->visible = calloc((size_t)num_keys + 1, sizeof *row->visible);
    if (row->visible == NULL) abort();
    arb_ptr *const arrays[] = {&row->x, &row->slope, &row->m, &row->p, &row->dp, &row->dx, &row->ds};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) *arrays[i] = _arb_vec_init(num_keys);
    arb_init(row->lse);
    arb_init(row->delta);
    arb_init(row->dlse);
    arb_init(row->dsink);
}

void ball_row_clear(struct ball_row *row)
{
    arb_ptr const arrays[] = {row->x, row->slope, row->m, row->p, row->dp, row->dx, row->ds};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) _arb_vec_clear(arrays[i], row->num_keys);
    free(row->visible);
    arb_clear(row->lse);
    arb_clear(row->delta);
    arb_clear(row->dlse);
    arb_clear(row->dsink);
}

void ball_forward(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b, int64_t h, int64_t r,
                  slong bits, struct ball_row *row)
{
    const struct ball_rows q = ball_rows_q(p, a, b), k = ball_rows_k(p, a, b);
    const int64_t diag = diagonal(p->diag_kind, p->diag, q, k);
    row_init(row, b, h, r, k.used);
    for (slong c = 0; c < row->num_keys; ++c) {
        row->visible[c] = visible(p, a, b, h, r, c, diag);
        if (!row->visible[c]) continue;
        ++row->num_visible;
        score(p, a, row, q, k, c, bits, row->x + c, row->slope + c);
        dropout(p, a, row, c, bits, row->m + c);
    }
    log_sum_exp(p, a, row, bits);
    probabilities(row, bits);
}

/* Section 3 of one row: dp, delta, dx, ds without softmax_scale, and p_sink (dlse - delta). */
void ball_backward(const struct attest_problem *p, const struct attest_backward_args *a, slong bits,
                   struct ball_row *row)
{
    const struct attest_forward_args *f = &a->forward;
    const struct ball_rows q = ball_rows_q(p, f, row->b), k = ball_rows_k(p, f, row->b);
    if (row->empty) return; /* gives nothing, and its dout, dlse and delta are not read */
    if (p->external_lse) {
        arb_set_d(row->lse, ball_element(p, &p->lse, f->lse, q, row->b, row->r, row->h, 0));
        arb_set_d(row->delta, ball_element(p, &p->delta, a->delta, q, row->b, row->r, row->h, 0));
        probabilities(row, bits);
    }
    if (p->dlse.dtype != ATTEST_ABSENT)
        arb_set_d(row->dlse, ball_element(p, &p->dlse, a->dlse, q, row->b, row->r, row->h, 0));
    arb_t u, v;
    arb_init(u);
    arb_init(v);
    for (slong c = 0; c < row->num_keys; ++c) {
        for (int64_t x = 0; x < p->head_dim_v && row->visible[c]; ++x) {
            arb_set_d(u, ball_element(p, &p->dout, a->dout, q, row->b, row->r, row->h, x));
            arb_set_d(v, ball_element(p, &p->v, f->v, k, row->b, c, kv_head(p, row->h), x));
            arb_addmul(row->dp + c, u, v, bits);
        }
        arb_mul(row->dp + c, row->dp + c, row->m + c, bits);
        if (!p->external_lse) arb_addmul(row->delta, row->p + c, row->dp + c, bits);
    }
    for (slong c = 0; c < row->num_keys; ++c) {
        arb_sub(row->dx + c, row->dp + c, row->delta, bits);
        arb_add(row->dx + c, row->dx + c, row->dlse, bits);
        arb_mul(row->dx + c, row->dx + c, row->p + c, bits);
        arb_mul(row->ds + c, row->dx + c, row->slope + c, bits);
    }
    if (p->has_sink) {
        arb_set_d(u, f->sink[row->h]);
        arb_sub(u, u, row->lse, bits);
        arb_exp(u, u, bits);
        arb_sub(v, row->dlse, row->delta, bits);
        arb_mul(row->dsink, u, v, bits);
    }
    arb_clear(u);
    arb_clear(v);
}

void ball_o(const struct attest_problem *p, const struct attest_forward_args *a, const struct ball_row *row, int64_t x,
            slong bits, arb_t o)
{
    const struct ball_rows k = ball_rows_k(p, a, row->b);
    arb_t v;
    arb_init(v);
    arb_zero(o);
    for (slong c = 0; c < row->num_keys; ++c) {
        if (!row->visible[c]) continue;
        arb_set_d(v, ball_element(p, &p->v, a->v, k, row->b, c, kv_head(p, row->h), x));
        arb_mul(v, v, row->m + c, bits);
        arb_addmul(o, row->p + c, v, bits);
    }
    arb_clear(v);
}

void ball_dq(const struct attest_problem *p, const struct attest_forward_args *a, const struct ball_row *row,
             int64_t x, slong bits, arb_t dq)
{
    const struct ball_rows k = ball_rows_k(p, a, row->b);
    arb_t factor;
    arb_init(factor);
    arb_zero(dq);
    for (slong c = 0; c < row->num_keys; ++c) {
        if (!row->visible[c]) continue;
        arb_set_d(factor, ball_element(p, &p->k, a->k, k, row->b, c, kv_head(p, row->h), x));
        arb_addmul(dq, row->ds + c, factor, bits);
    }
    arb_set_d(factor, p->softmax_scale);
    arb_mul(dq, dq, factor, bits);
    arb_clear(factor);
}

void ball_add_dk(const struct attest_problem *p, const struct attest_forward_args *a, const struct ball_row *row,
                 int64_t c, int64_t x, slong bits, arb_t dk)
{
    if (!row->visible[c]) return;
    arb_t q, scale;
    arb_init(q);
    arb_init(scale);
    arb_set_d(scale, p->softmax_scale);
    arb_set_d(q, ball_element(p, &p->q, a->q, ball_rows_q(p, a, row->b), row->b, row->r, row->h, x));
    arb_mul(q, q, scale, bits);
    arb_addmul(dk, row->ds + c, q, bits);
    arb_clear(q);
    arb_clear(scale);
}

void ball_add_dv(const struct attest_problem *p, const struct attest_backward_args *a, const struct ball_row *row,
                 int64_t c, int64_t x, slong bits, arb_t dv)
{
    if (!row->visible[c]) return;
    const struct ball_rows q = ball_rows_q(p, &a->forward, row->b);
    arb_t dout;
    arb_init(dout);
    arb_set_d(dout, ball_element(p, &p->dout, a->dout, q, row->b, row->r, row->h, x));
    arb_mul(dout, dout, row->m + c, bits);
    arb_addmul(dv, row->p + c, dout, bits);
    arb_clear(dout);
}

double ball_share(double value, const arb_t exact, double error)
{
    arb_t distance, limit;
    arf_t upper;
    arb_init(distance);
    arb_init(limit);
    arf_init(upper);
    arb_set_d(distance, value);
    arb_sub(distance, distance, exact, ARF_PREC_EXACT);
    arb_abs(distance, distance);
    arb_set_d(limit, error);
    double share = 0;
    if (!arb_is_zero(distance)) {
        arb_div(distance, distance, limit, 64);
        arb_get_ubound_arf(upper, distance, 53);
        share = isfinite(value) ? arf_get_d(upper, ARF_RND_UP) : NAN;
    }
    arb_clear(distance);
    arb_clear(limit);
    arf_clear(upper);
    return share;
}

bool ball_is_small(const arb_t exact, double error)
{
    arf_t radius;
    arf_init(radius);
    arf_set_mag(radius, arb_radref(exact));
    arf_mul_2exp_si(radius, radius, 10);
    const bool small = arf_cmp_d(radius, error) <= 0;
    arf_clear(radius);
    return small;
}

/* emulate_backward.c - the recipes' backward pass (Dao 2023, algorithm 2): p is computed again as exp(x - lse),
 * a tile of keys at a time against all query rows. */
#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proptests/emulations/emulate_formats.h"
#include "proptests/emulations/emulate_head.h"

/* Of two, by which a recipe that scales multiplies before it rounds to fp16; else 0. */
struct powers {
    bool are_used;
    int p, dp, q, k, dout;
};

/* One query head. Its rows are in memory as fp32; rows that see no key are zero. */
struct gradients {
    struct head head;
    const struct attest_backward_args *a;
    float *q, *dout;                    /* [seqlen_q][head_dim], [seqlen_q][head_dim_v] */
    float *lse, *delta, *dlse, *p_sum;  /* [seqlen_q] */
    float *is_own, *base, *high, *low;  /* [seqlen_q]: rows that are divided by their own sum; the latter in base 2 */
    float *dq;                          /* [seqlen_q][head_dim], sums of ds k */
    float *dq_p;                        /* [seqlen_q][head_dim], sums of (1 - tanh^2) p k: a corrected delta's */
    float *dk, *dv;                     /* [seqlen_k][...], sums over the query heads of a group */
    float *dbias;                       /* packed, 1 for an axis that is summed over */
    float *dsink;                       /* [num_heads_q] */
    float *q16, *dout16;                /* q and dout as dk and dv meet them where they are scaled */
    struct powers powers;
};

/* One tile of keys. dk and dv: sums of ds q and p dout over the rows of this query head. */
struct keys {
    int64_t c0;
    float k[MAX_TILE_K * MAX_FEATURES], v[MAX_TILE_K * MAX_FEATURES];
    float k16[MAX_TILE_K * MAX_FEATURES]; /* k as dq meets it */
    float centre[MAX_FEATURES];           /* what k16 lacks of it */
    float dk[MAX_TILE_K][MAX_FEATURES], dv[MAX_TILE_K][MAX_FEATURES];
};

/* A tile of scores on its way back. p_dv: p as dv sees it, dropped ones 0, not yet scaled by drop_scale. */
struct gradient_tile {
    struct score_tile scores;
    float p[TILE_Q][MAX_TILE_K], p_dv[TILE_Q][MAX_TILE_K], dp[TILE_Q][MAX_TILE_K], ds[TILE_Q][MAX_TILE_K];
    float p_dq[TILE_Q][MAX_TILE_K]; /* (1 - tanh^2) p, rounded */
};

static bool sees_a_key(const struct head *head, int64_t r)
{
    for (int64_t c = 0; c < head->seqlen_k; ++c)
        if (head_visible(head, r, c)) return true;
    return false;
}

/* 2^power p of a score, the sink's too. */
static float weight_of(const struct gradients *g, int64_t r, int64_t c, float x, int power)
{
    const float y = x * 0x1.715476p0f;
    if (!g->is_own[r]) return head_exp(&g->head, c, x, g->lse[r], power);
    return head_exp2(&g->head, c, y - g->high[r] - (g->low[r] - (float)power));
}

/* x, p and dp = m (dout . v) of a tile. */
static void compute_p_dp(const struct gradients *g, struct keys *keys, int64_t r0, struct gradient_tile *t)
{
    const struct head *head = &g->head;
    const struct attest_problem *p = head->p;
    t->scores = (struct score_tile){.r0 = r0, .rows = least(TILE_Q, head->seqlen_q - r0), .c0 = keys->c0};
    t->scores.padding_counts = MUTANT(head, MUTANT_TAIL_UNMASKED);
    memcpy(t->scores.base, g->base + r0, (size_t)t->scores.rows * sizeof *g->base);
    score_tile_compute(head, g->q + r0 * p->head_dim, keys->k, &t->scores);
    memset(t->dp, 0, sizeof t->dp);
    const struct unit unit = unit_of(head, p->dout.dtype, p->v.dtype);
    unit_multiply(&unit, t->scores.rows, t->scores.keys, p->head_dim_v,
                  (struct matrix){g->dout + r0 * p->head_dim_v, p->head_dim_v, 1}, (struct seen){0},
                  (struct matrix){keys->v, 1, p->head_dim_v}, (struct matrix){t->dp[0], MAX_TILE_K, 1});
    for (int64_t i = 0; i < t->scores.rows; ++i) {
        for (int64_t j = 0; j < t->scores.keys; ++j) {
            if (!t->scores.seen[i][j]) continue;
            t->p[i][j] = weight_of(g, r0 + i, keys->c0 + j, t->scores.x[i][j], g->powers.p);
            t->dp[i][j] = t->scores.dropped[i][j] ? 0.0f * t->dp[i][j] : head->drop_scale * t->dp[i][j];
        }
    }
}

/* delta from the p and dp at hand, and the sum of p: one more pass over the keys. */
static void sum_delta(const struct gradients *g, struct keys *keys)
{
    const struct head *head = &g->head;
    struct gradient_tile t;
    for (keys->c0 = 0; keys->c0 < head->seqlen_k; keys->c0 += head->self->tile_k) {
        head_load_k(head, &head->p->k, head->a->k, keys->c0, head->p->head_dim, keys->k);
        head_load_k(head, &head->p->v, head->a->v, keys->c0, head->p->head_dim_v, keys->v);
        for (int64_t r0 = 0; r0 < head->seqlen_q; r0 += TILE_Q) {
            compute_p_dp(g, keys, r0, &t);
            for (int64_t i = 0; i < t.scores.rows; ++i)
                for (int64_t j = 0; j < t.scores.keys; ++j) {
                    if (!t.scores.seen[i][j]) continue;
                    g->delta[r0 + i] += t.p[i][j] * t.dp[i][j];
                    g->p_sum[r0 + i] += t.p[i][j];
                }
        }
    }
    if (head->self->recipe->delta != ATTEST_DELTA_NORMALIZED || head->p->has_sink) return;
    for (int64_t r = 0; r < head->seqlen_q; ++r)
        if (g->p_sum[r] != 0.0f) g->delta[r] /= g->p_sum[r];
}

static float delta_from_o(const struct gradients *g, int64_t r)
{
    const struct attest_problem *p = g->head.p;
    const int64_t o = head_offset_q(&g->head, &p->o, r);
    float delta = 0.0f;
    for (int64_t x = 0; x < p->head_dim_v; ++x)
        delta += g->dout[r * p->head_dim_v + x] * emulate_load(p->o.dtype, g->head.a->o, o + x);
    return delta;
}

static float scalar(const struct gradients *g, const struct attest_tensor *t, const void *data, int64_t r)
{
    return emulate_load(t->dtype, data, head_offset_q(&g->head, t, r));
}

/* Every sum of ds is over one head, and lse and delta are the pass's own. */
static bool scales(const struct head *head)
{
    const struct attest_problem *p = head->p;
    const bool is_own = !p->external_lse && !p->dlse.dtype && !p->delta.dtype && !p->dbias.dtype;
    return head_scales(head) && p->dout.dtype == ATTEST_BF16 && p->num_heads_q == p->num_heads_kv && is_own;
}

static void to_fp16(int64_t count, const float *values, int power, float *out)
{
    for (int64_t i = 0; i < count; ++i) out[i] = emulate_round(ATTEST_FP16, values[i] * ldexpf(1.0f, power));
}

static float median(float a, float b, float c) { return fmaxf(fminf(a, b), fminf(fmaxf(a, b), c)); }

/* What is taken off a feature of k: the median of rows 16, 48 and 80, of which those past the last are 0. Unkind: the
 * least or the largest number that this may be. */
struct centre {
    float row[3][MAX_FEATURES], least[MAX_FEATURES], largest[MAX_FEATURES];
};

static void see_keys(const struct head *head, int64_t c0, const float *k, struct centre *centre)
{
    const int64_t d = head->p->head_dim;
    for (int64_t j = 0; j < least(head->self->tile_k, head->seqlen_k - c0); ++j)
        for (int64_t x = 0; x < d; ++x) {
            const float value = k[j * d + x];
            if (c0 + j == 16 || c0 + j == 48 || c0 + j == 80) centre->row[(c0 + j) / 32][x] = value;
            centre->least[x] = fminf(centre->least[x], value);
            centre->largest[x] = fmaxf(centre->largest[x], value);
        }
}

static float centre_of(const struct head *head, const struct centre *centre, int64_t x)
{
    if (head->self->is_unkind) return x % 2 ? centre->least[x] : centre->largest[x];
    return median(centre->row[0][x], centre->row[1][x], centre->row[2][x]);
}

/* Powers of two of the head's largest numbers, what is taken off k, q16 and dout16. */
static void take_powers(struct gradients *g, struct keys *keys)
{
    const struct head *head = &g->head;
    const struct attest_problem *p = head->p;
    const int64_t d = p->head_dim, n = head->seqlen_k, tile = head->self->tile_k;
    const int64_t of_q = head->seqlen_q * d, of_dout = head->seqlen_q * p->head_dim_v;
    const float q = head_largest(g->q, of_q, 0.0f), dout = head_largest(g->dout, of_dout, 0.0f);
    struct centre centre = {0};
    float k = 0.0f, v = 0.0f;
    for (int64_t c0 = 0; c0 < n; c0 += tile) {
        head_load_k(head, &p->k, head->a->k, c0, d, keys->k);
        head_load_k(head, &p->v, head->a->v, c0, p->head_dim_v, keys->v);
        k = head_largest(keys->k, tile * d, k);
        v = head_largest(keys->v, tile * p->head_dim_v, v);
        see_keys(head, c0, keys->k, &centre);
    }
    for (int64_t x = 0; x < d; ++x) keys->centre[x] = centre_of(head, &centre, x);
    const int shift = -8 - head_exponent(dout) - head_exponent(v);
    const int of_dp = shift < -126 ? -126 : (int)least(shift, 126);
    g->powers = (struct powers){true, 8, of_dp, head_power(q), head_power(k) - 1, head_power(dout)};
    to_fp16(of_q, g->q, g->powers.q, g->q16);
    to_fp16(of_dout, g->dout, g->powers.dout, g->dout16);
}

/* A tile of k and v, and k as dq meets it. */
static void load_keys(const struct gradients *g, struct keys *keys)
{
    const struct head *head = &g->head;
    const int64_t d = head->p->head_dim;
    const float power = ldexpf(1.0f, g->powers.k);
    head_load_k(head, &head->p->k, head->a->k, keys->c0, d, keys->k);
    head_load_k(head, &head->p->v, head->a->v, keys->c0, head->p->head_dim_v, keys->v);
    for (int64_t i = 0; i < head->self->tile_k * d; ++i)
        keys->k16[i] = g->powers.are_used
                           ? emulate_round(ATTEST_FP16, fmaf(keys->k[i], power, -(keys->centre[i % d] * power)))
                           : keys->k[i];
}

/* The largest scores of the rows, in base 2, to high, or sums of weights relative to them to low. */
static void see_weights(const struct gradients *g, struct keys *keys, bool sums)
{
    const struct head *head = &g->head;
    for (int64_t r0 = 0; r0 < head->seqlen_q; r0 += TILE_Q) {
        struct score_tile t = {.r0 = r0, .rows = least(TILE_Q, head->seqlen_q - r0), .c0 = keys->c0};
        memcpy(t.base, g->base + r0, (size_t)t.rows * sizeof *g->base);
        score_tile_compute(head, g->q + r0 * head->p->head_dim, keys->k, &t);
        for (int64_t i = 0; i < t.rows; ++i)
            for (int64_t j = 0; j < t.keys; ++j) {
                const int64_t r = r0 + i;
                const float y = t.x[i][j] * 0x1.715476p0f;
                if (!t.seen[i][j] || !g->is_own[r]) continue;
                if (sums) g->low[r] += head_exp2(head, keys->c0 + j, y - g->high[r]);
                else g->high[r] = fmaxf(g->high[r], y);
            }
    }
}

/* m + log2 of the sum of 2^(y - m), in two parts. */
static void take_own_sums(const struct gradients *g, struct keys *keys)
{
    const struct head *head = &g->head;
    bool any = false;
    for (int64_t r = 0; r < head->seqlen_q; ++r) {
        any |= g->is_own[r] != 0.0f;
        g->high[r] = head->p->has_sink ? (head->a->sink[head->h] - g->base[r]) * 0x1.715476p0f : -INFINITY;
    }
    for (int sums = 0; any && sums < 2; ++sums) {
        for (int64_t r = 0; sums && r < head->seqlen_q; ++r) {
            const float y = head->p->has_sink ? (head->a->sink[head->h] - g->base[r]) * 0x1.715476p0f : -INFINITY;
            g->low[r] = y == -INFINITY ? 0.0f : head_exp2(head, 0, y - g->high[r]);
        }
        for (keys->c0 = 0; keys->c0 < head->seqlen_k; keys->c0 += head->self->tile_k) {
            head_load_k(head, &head->p->k, head->a->k, keys->c0, head->p->head_dim, keys->k);
            see_weights(g, keys, sums);
        }
    }
    for (int64_t r = 0; any && r < head->seqlen_q; ++r) {
        const float max = g->high[r], log_sum = log2f(g->low[r]);
        g->high[r] = max + log_sum;
        g->low[r] = max - g->high[r] + log_sum;
    }
}

/* Everything that belongs to the query rows. A row that sees no key is not read; with a sink, its dlse is. */
static void load_rows(struct gradients *g, struct keys *keys)
{
    const struct head *head = &g->head;
    const struct attest_problem *p = head->p;
    const int32_t delta = head->self->recipe->delta;
    const bool sums = !p->delta.dtype && (delta == ATTEST_DELTA_EXACT || delta == ATTEST_DELTA_NORMALIZED);
    for (int64_t r = 0; r < head->seqlen_q; ++r) {
        const bool sees = sees_a_key(head, r);
        memset(g->q + r * p->head_dim, 0, (size_t)p->head_dim * sizeof *g->q);
        memset(g->dout + r * p->head_dim_v, 0, (size_t)p->head_dim_v * sizeof *g->dout);
        g->lse[r] = g->delta[r] = g->dlse[r] = g->p_sum[r] = g->base[r] = g->is_own[r] = 0.0f;
        if (!sees && !p->has_sink) continue;
        g->lse[r] = scalar(g, &p->lse, head->a->lse, r);
        g->is_own[r] = sees && !p->external_lse && head_is_large(head, g->lse[r]);
        if (g->is_own[r]) g->base[r] = head_base(head, r);
        if (p->dlse.dtype) g->dlse[r] = scalar(g, &p->dlse, g->a->dlse, r);
        if (p->delta.dtype && (sees || p->external_lse)) g->delta[r] = scalar(g, &p->delta, g->a->delta, r);
        if (!sees) continue;
        head_load_q(head, &p->q, head->a->q, r, 1, p->head_dim, g->q + r * p->head_dim);
        head_load_q(head, &p->dout, g->a->dout, r, 1, p->head_dim_v, g->dout + r * p->head_dim_v);
        if (!p->delta.dtype && !sums) g->delta[r] = delta_from_o(g, r);
    }
    g->powers = (struct powers){0};
    if (scales(head)) take_powers(g, keys);
    take_own_sums(g, keys);
    if (sums) sum_delta(g, keys);
}

/* dbias = dx, summed over the axes of stride zero. */
static void add_dbias(const struct gradients *g, int64_t r, int64_t c, float dx)
{
    const struct attest_problem *p = g->head.p;
    const struct attest_score_tensor *t = &p->dbias;
    int64_t at = t->batch ? g->head.b : 0;
    at = at * (t->head ? p->num_heads_q : 1) + (t->head ? g->head.h : 0);
    at = at * (t->seqlen_q ? p->seqlen_q : 1) + (t->seqlen_q ? r : 0);
    at = at * (t->seqlen_k ? p->seqlen_k : 1) + (t->seqlen_k ? c : 0);
    g->dbias[at] += dx;
}

/* Whether softmax_scale is in ds as it is rounded, or else meets the sums of ds k and ds q. */
static bool rounds_scaled_ds(const struct head *head)
{
    return head->self->recipe->round_scaled_ds && !head->self->rounds_late;
}

static float scale_of_ds(const struct head *head) { return rounds_scaled_ds(head) ? head->p->softmax_scale : 1.0f; }
static float scale_of_sums(const struct head *head) { return rounds_scaled_ds(head) ? 1.0f : head->p->softmax_scale; }

/* p to p_dv, dx and ds as the matrix units get them. */
static void compute_ds(const struct gradients *g, struct gradient_tile *t)
{
    const struct head *head = &g->head;
    const struct attest_recipe *recipe = head->self->recipe;
    for (int64_t i = 0; i < t->scores.rows; ++i) {
        const int64_t r = t->scores.r0 + i;
        for (int64_t j = 0; j < t->scores.keys; ++j) {
            t->p_dv[i][j] = t->ds[i][j] = 0.0f;
            if (!t->scores.seen[i][j]) continue;
            const float p = t->p[i][j], th = t->scores.tanh[i][j];
            const bool late = head->self->rounds_late;
            const float p_ds = recipe->round_p_ds && !late ? emulate_round(head->p->dout.dtype, p) : p;
            if (g->powers.are_used) {
                const float power = ldexpf(1.0f, g->powers.dp), z = fmaf(t->dp[i][j], power, -(power * g->delta[r]));
                t->p_dv[i][j] = emulate_round(ATTEST_FP16, p);
                t->ds[i][j] = emulate_round(ATTEST_FP16, p * z);
                continue;
            }
            const float dx = p_ds * (t->dp[i][j] - g->delta[r] + g->dlse[r]);
            const float ds = head->p->softcap > 0 ? dx * (1.0f - th * th) : dx;
            const float kept = t->scores.dropped[i][j] ? 0.0f * p : p;
            t->p_dv[i][j] = emulate_round_weight(head->p->dout.dtype, recipe->weights_p, kept);
            t->ds[i][j] = emulate_round_weight(head->p->q.dtype, recipe->weights_ds, ds * scale_of_ds(head));
            if (g->dbias && t->scores.c0 + j < head->seqlen_k) add_dbias(g, r, t->scores.c0 + j, dx);
        }
    }
}

/* One tile: dv += p^T dout, dk += ds^T q, and dq += ds k unless that is done. */
static void absorb_tile(const struct gradients *g, struct keys *keys, int64_t r0, bool has_dq)
{
    const struct attest_problem *p = g->head.p;
    struct gradient_tile t;
    compute_p_dp(g, keys, r0, &t);
    compute_ds(g, &t);
    const int64_t rows = t.scores.rows, count = t.scores.keys, d = p->head_dim, d_v = p->head_dim_v;
    const struct seen seen = {t.scores.seen[0], MAX_TILE_K, 1}, seen_t = {t.scores.seen[0], 1, MAX_TILE_K};
    const struct matrix p_t = {t.p_dv[0], 1, MAX_TILE_K};
    const struct matrix ds = {t.ds[0], MAX_TILE_K, 1}, ds_t = {t.ds[0], 1, MAX_TILE_K};
    const bool scaled = g->powers.are_used;
    const int32_t of_dv = scaled ? ATTEST_FP16 : p->dout.dtype, of_ds = scaled ? ATTEST_FP16 : p->q.dtype;
    float *const q = scaled ? g->q16 : g->q, *const dout = scaled ? g->dout16 : g->dout;
    const struct unit for_dv = unit_of(&g->head, of_dv, of_dv), for_ds = unit_of(&g->head, of_ds, of_ds);
    unit_multiply(&for_dv, count, d_v, rows, p_t, seen_t, (struct matrix){dout + r0 * d_v, d_v, 1},
                  (struct matrix){keys->dv[0], MAX_FEATURES, 1});
    unit_multiply(&for_ds, count, d, rows, ds_t, seen_t, (struct matrix){q + r0 * d, d, 1},
                  (struct matrix){keys->dk[0], MAX_FEATURES, 1});
    if (has_dq) return;
    unit_multiply(&for_ds, rows, d, count, ds, seen, (struct matrix){keys->k16, d, 1},
                  (struct matrix){g->dq + r0 * d, d, 1});
}

/* Sums of a row's dx, ds before and after rounding, p and (1 - tanh^2) p. */
struct row_sums {
    float dx, ds, ds_rounded, p, slope;
};

/* ds of a provisional delta and (1 - tanh^2) p, as the matrix unit gets them, and the sums of row i. */
static void provisional_row(const struct gradients *g, struct gradient_tile *t, int64_t i, struct row_sums *sums)
{
    const struct head *head = &g->head;
    const struct attest_recipe *recipe = head->self->recipe;
    const int32_t dtype = head->p->q.dtype;
    for (int64_t j = 0; j < t->scores.keys; ++j) {
        const int64_t r = t->scores.r0 + i;
        t->ds[i][j] = t->p_dq[i][j] = 0.0f;
        if (!t->scores.seen[i][j]) continue;
        const float th = t->scores.tanh[i][j], slope = head->p->softcap > 0 ? 1.0f - th * th : 1.0f;
        const float dx = t->p[i][j] * (t->dp[i][j] - g->delta[r] + g->dlse[r]), ds = dx * slope;
        const float p = slope * t->p[i][j];
        t->ds[i][j] = recipe->weights_ds ? emulate_round(dtype, ds) : ds;
        t->p_dq[i][j] = recipe->weights_p ? emulate_round(dtype, p) : p;
        sums->dx += dx;
        sums->ds += ds;
        sums->ds_rounded += t->ds[i][j];
        sums->p += t->p[i][j];
        sums->slope += p;
    }
}

/* dq and delta of row r from sums that began with a provisional delta. */
static void correct_row(const struct gradients *g, int64_t r, const struct row_sums *s)
{
    const struct attest_problem *p = g->head.p;
    const float given = g->delta[r], dlse = g->dlse[r];
    float factor = dlse - s->ds_rounded; /* sum p = 1 */
    g->delta[r] = s->dx + (given - dlse);
    if (p->softcap > 0 || p->has_sink) {
        g->delta[r] = s->dx + (given - dlse) * s->p;
        factor = given - g->delta[r];
        if (s->slope > 0) factor -= (s->ds_rounded - s->ds) / s->slope;
    }
    for (int64_t x = r * p->head_dim; x < (r + 1) * p->head_dim; ++x) g->dq[x] += factor * g->dq_p[x];
}

/* dq and the corrected delta, a block of rows against all keys. */
static void correct_dq(const struct gradients *g, struct keys *keys)
{
    const struct head *head = &g->head;
    const int64_t d = head->p->head_dim;
    const struct unit unit = unit_of(head, head->p->q.dtype, head->p->q.dtype);
    struct gradient_tile t;
    for (int64_t r0 = 0; r0 < head->seqlen_q; r0 += TILE_Q) {
        struct row_sums sums[TILE_Q] = {{0}};
        for (keys->c0 = 0; keys->c0 < head->seqlen_k; keys->c0 += head->self->tile_k) {
            head_load_k(head, &head->p->k, head->a->k, keys->c0, d, keys->k);
            head_load_k(head, &head->p->v, head->a->v, keys->c0, head->p->head_dim_v, keys->v);
            compute_p_dp(g, keys, r0, &t);
            for (int64_t i = 0; i < t.scores.rows; ++i) provisional_row(g, &t, i, &sums[i]);
            const struct seen seen = {t.scores.seen[0], MAX_TILE_K, 1};
            const struct matrix k = {keys->k, d, 1};
            unit_multiply(&unit, t.scores.rows, d, t.scores.keys, (struct matrix){t.ds[0], MAX_TILE_K, 1}, seen, k,
                          (struct matrix){g->dq + r0 * d, d, 1});
            unit_multiply(&unit, t.scores.rows, d, t.scores.keys, (struct matrix){t.p_dq[0], MAX_TILE_K, 1}, seen, k,
                          (struct matrix){g->dq_p + r0 * d, d, 1});
        }
        for (int64_t i = 0; i < least(TILE_Q, head->seqlen_q - r0); ++i)
            if (sees_a_key(head, r0 + i)) correct_row(g, r0 + i, &sums[i]);
    }
}

/* scale sum 2^power, rounded once. */
static float scaled_once(float scale, float sum, int power)
{
    return (float)ldexp((double)scale * (double)sum, power);
}

/* The finished dk or dv of one query head joins those of its group. */
static void add_to_group(const struct head *head, int64_t c0, int64_t features, float scale, int power, int32_t dtype,
                         float (*sum)[MAX_FEATURES], float *group)
{
    const int64_t group_size = head->p->num_heads_q / head->p->num_heads_kv;
    const bool rounds = head->self->recipe->round_dkv_heads && group_size > 1;
    for (int64_t j = 0; j < least(head->self->tile_k, head->seqlen_k - c0); ++j) {
        for (int64_t x = 0; x < features; ++x) {
            const float value = scaled_once(scale, sum[j][x], power);
            float *total = &group[(c0 + j) * features + x];
            if (MUTANT(head, MUTANT_GROUP_NOT_SUMMED)) *total = 0.0f;
            *total += rounds ? emulate_round(dtype, value) : value;
        }
    }
}

static void store_dq(const struct gradients *g)
{
    const struct head *head = &g->head;
    const struct attest_problem *p = head->p;
    const int power = -g->powers.p - g->powers.dp - g->powers.k;
    for (int64_t r = 0; r < head->rows_q; ++r) {
        const int64_t at = head_offset_q(head, &p->dq, r);
        for (int64_t x = 0; x < p->head_dim; ++x) {
            const float sum = r < head->seqlen_q ? g->dq[r * p->head_dim + x] : 0.0f;
            emulate_store(p->dq.dtype, g->a->dq, at + x, scaled_once(scale_of_sums(head), sum, power));
        }
    }
}

static void store_group(const struct head *head, const struct attest_tensor *t, int64_t features, const float *group,
                        void *data)
{
    const int64_t end = MUTANT(head, MUTANT_PAST_USED_UNWRITTEN) ? head->seqlen_k : head->rows_k;
    for (int64_t c = 0; c < end; ++c) {
        const int64_t at = head_offset_k(head, t, c);
        for (int64_t x = 0; x < features; ++x)
            emulate_store(t->dtype, data, at + x, c < head->seqlen_k ? group[c * features + x] : 0.0f);
    }
}

/* The sink's score has the derivative p_sink (dlse - delta): it has no value, so its dp is 0. */
static void add_dsink(const struct gradients *g)
{
    const float sink = g->head.a->sink[g->head.h];
    for (int64_t r = 0; r < g->head.seqlen_q; ++r)
        g->dsink[g->head.h] += weight_of(g, r, 1, sink - g->base[r], 0) * (g->dlse[r] - g->delta[r]);
}

static void backward_head(struct gradients *g, struct keys *keys)
{
    const struct head *head = &g->head;
    const struct attest_problem *p = head->p;
    const bool corrects = head->self->recipe->delta == ATTEST_DELTA_CORRECTED && !p->external_lse;
    memset(g->dq, 0, (size_t)(head->seqlen_q * p->head_dim) * sizeof *g->dq);
    memset(g->dq_p, 0, (size_t)(head->seqlen_q * p->head_dim) * sizeof *g->dq_p);
    load_rows(g, keys);
    if (corrects) correct_dq(g, keys);
    for (keys->c0 = 0; keys->c0 < head->seqlen_k; keys->c0 += head->self->tile_k) {
        load_keys(g, keys);
        memset(keys->dk, 0, sizeof keys->dk);
        memset(keys->dv, 0, sizeof keys->dv);
        for (int64_t r0 = 0; r0 < head->seqlen_q; r0 += TILE_Q) absorb_tile(g, keys, r0, corrects);
        add_to_group(head, keys->c0, p->head_dim, scale_of_sums(head), -g->powers.p - g->powers.dp - g->powers.q,
                     p->dk.dtype, keys->dk, g->dk);
        add_to_group(head, keys->c0, p->head_dim_v, head->drop_scale, -g->powers.p - g->powers.dout, p->dv.dtype,
                     keys->dv, g->dv);
    }
    store_dq(g);
    if (p->has_sink) add_dsink(g);
}

static int64_t dbias_count(const struct attest_problem *p)
{
    const struct attest_score_tensor *t = &p->dbias;
    return (t->batch ? p->batch : 1) * (t->head ? p->num_heads_q : 1) * (t->seqlen_q ? p->seqlen_q : 1) *
           (t->seqlen_k ? p->seqlen_k : 1);
}

static void store_dbias(const struct gradients *g)
{
    const struct attest_problem *p = g->head.p;
    const struct attest_score_tensor *t = &p->dbias;
    const float *value = g->dbias;
    for (int64_t b = 0; b < (t->batch ? p->batch : 1); ++b)
        for (int64_t h = 0; h < (t->head ? p->num_heads_q : 1); ++h)
            for (int64_t r = 0; r < (t->seqlen_q ? p->seqlen_q : 1); ++r)
                for (int64_t c = 0; c < (t->seqlen_k ? p->seqlen_k : 1); ++c)
                    emulate_store(t->dtype, g->a->dbias, score_offset(t, b, h, r, c), *value++);
}

static void run(struct gradients *g, struct keys *keys, const struct implementation *self,
                const struct attest_problem *p)
{
    const int64_t group = p->num_heads_q / p->num_heads_kv;
    for (int64_t b = 0; b < p->batch; ++b) {
        for (int64_t h_kv = 0; h_kv < p->num_heads_kv; ++h_kv) {
            memset(g->dk, 0, (size_t)(p->seqlen_k * p->head_dim) * sizeof *g->dk);
            memset(g->dv, 0, (size_t)(p->seqlen_k * p->head_dim_v) * sizeof *g->dv);
            for (int64_t h = h_kv * group; h < (h_kv + 1) * group; ++h) {
                g->head = head_of(self, p, &g->a->forward, b, h);
                backward_head(g, keys);
            }
            g->head.h_kv = h_kv;
            store_group(&g->head, &p->dk, p->head_dim, g->dk, g->a->dk);
            store_group(&g->head, &p->dv, p->head_dim_v, g->dv, g->a->dv);
        }
    }
    if (p->dbias.dtype) store_dbias(g);
    if (p->has_sink && g->a->dsink) memcpy(g->a->dsink, g->dsink, (size_t)p->num_heads_q * sizeof *g->dsink);
}

enum attest_status emulate_backward(const struct implementation *self, const struct attest_problem *p,
                                    const struct attest_backward_args *a, struct computed *how)
{
    computed_by(how, self->recipe);
    struct gradients g = {.a = a, .head = {.self = self, .p = p, .a = &a->forward}};
    const int64_t counts[] = {p->seqlen_q * p->head_dim, p->seqlen_q * p->head_dim_v, p->seqlen_q, p->seqlen_q,
                              p->seqlen_q, p->seqlen_q, p->seqlen_q * p->head_dim, p->seqlen_q * p->head_dim,
                              p->seqlen_k * p->head_dim, p->seqlen_k * p->head_dim_v,
                              p->dbias.dtype ? dbias_count(p) : 0, p->num_heads_q, p->seqlen_q * p->head_dim,
                              p->seqlen_q * p->head_dim_v, p->seqlen_q, p->seqlen_q, p->seqlen_q, p->seqlen_q};
    float **const arrays[] = {&g.q,  &g.dout, &g.lse, &g.delta, &g.dlse,  &g.p_sum,
                              &g.dq, &g.dq_p, &g.dk,  &g.dv,    &g.dbias, &g.dsink, &g.q16, &g.dout16,
                              &g.base, &g.high, &g.low, &g.is_own};
    const int num_arrays = sizeof arrays / sizeof *arrays;
    int64_t total = 0;
    for (int i = 0; i < num_arrays; ++i) total += counts[i];
    float *const memory = calloc((size_t)total + 1, sizeof *memory);
    struct keys *const keys = malloc(sizeof *keys);
    if (memory && keys) {
        float *next = memory;
        for (int i = 0; i < num_arrays; next += counts[i++]) *arrays[i] = next;
        if (!p->dbias.dtype) g.dbias = NULL;
        run(&g, keys, self, p);
    }
    free(memory);
    free(keys);
    return memory && keys ? ATTEST_OK : ATTEST_OUT_OF_MEMORY;
}

/* judge_keys.c - tests of o's errors against what single tiles of keys contribute: reference/bounds.md section 9. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/judge_directions.h"

enum { TILE = 64, MOST_ROWS = 4096 }; /* keys of a tile; rows that are looked at, evenly spaced */

/* The shapes: o along dout and with its scores scaled, then each tile, then all that came before each. */
enum { ALONG_DOUT, OF_SCORES, FIRST_TILE };

enum { PHASES = 8 }; /* of the grid to which weights are rounded */

struct shapes {
    int64_t tiles, count;
    struct judge_direction *sums; /* [count] */
    double *shape;                /* [count][head_dim_v] of the row in hand */
    double *x, *s, *drop, *v;     /* [seqlen_k]; v [seqlen_k][head_dim_v] */
    struct judge_error *errors;   /* [head_dim_v] */
    double *alike;                /* [PHASES][head_dim_v]: what rounding the weights does to the row's o */
    double *of_alike;             /* [count][PHASES]: sums of that along the shapes */
    double squares;               /* of errors, in units of what is expected of them */
};

static void take(struct shapes *z, int64_t keys, int64_t d_v)
{
    z->tiles = (keys + TILE - 1) / TILE;
    z->count = FIRST_TILE + 2 * z->tiles;
    z->sums = calloc((size_t)z->count, sizeof *z->sums);
    z->shape = calloc((size_t)(z->count * d_v), sizeof *z->shape);
    z->x = calloc((size_t)(3 * keys + 1), sizeof *z->x);
    z->v = calloc((size_t)(keys * d_v + 1), sizeof *z->v);
    z->errors = calloc((size_t)d_v, sizeof *z->errors);
    z->alike = calloc((size_t)(PHASES * d_v), sizeof *z->alike);
    z->of_alike = calloc((size_t)(PHASES * z->count), sizeof *z->of_alike);
    if (!z->x) return;
    z->s = z->x + keys;
    z->drop = z->s + keys;
}

static void release(struct shapes *z)
{
    free(z->sums), free(z->shape), free(z->x), free(z->v), free(z->errors), free(z->alike), free(z->of_alike);
}

/* What the row's tiles add to o, what all before each had added, and o's derivative by a factor of all scores. */
static void find_shapes(struct shapes *z, const struct ref_row *row, int64_t keys, int64_t d_v, const double *o)
{
    double *const of_scores = z->shape + OF_SCORES * d_v;
    double *const tiles = z->shape + FIRST_TILE * d_v, *const earlier = tiles + z->tiles * d_v;
    memset(of_scores, 0, (size_t)d_v * sizeof *of_scores);
    memset(tiles, 0, (size_t)(2 * z->tiles * d_v) * sizeof *tiles);
    for (int64_t j = 0; j < keys; ++j) {
        const double p = row->x[j] == -INFINITY ? 0.0 : exp(row->x[j] - row->lse), kept = p * row->drop[j];
        const double *const v = z->v + j * d_v;
        double *const tile = tiles + j / TILE * d_v;
        if (p == 0.0) continue;
        for (int64_t c = 0; c < d_v; ++c) {
            tile[c] += kept * v[c];
            of_scores[c] += row->s[j] * (kept * v[c] - p * o[c]);
        }
    }
    for (int64_t t = 1; t < z->tiles; ++t)
        for (int64_t c = 0; c < d_v; ++c)
            earlier[t * d_v + c] = earlier[(t - 1) * d_v + c] + tiles[(t - 1) * d_v + c];
}

/* Weights that are alike round alike, or by a function of their scores: of weights relative to the row's maximum, and to
 * maxima before it, of which the place within a step of the format has 8 phases. */
static void find_alike(struct shapes *z, int32_t dtype, const struct ref_row *row, int64_t keys, int64_t d_v)
{
    const double step = ref_format(dtype)->unit_roundoff, of_top = exp(row->max - row->lse);
    memset(z->alike, 0, (size_t)(PHASES * d_v) * sizeof *z->alike);
    if (dtype != ATTEST_BF16 && dtype != ATTEST_FP16) return;
    for (int64_t j = 0; j < keys; ++j) {
        const double last = row->x[j] == -INFINITY ? 0.0 : exp(row->x[j] - row->max);
        const double first = ref_round(dtype, last) - last;
        const double *const v = z->v + j * d_v;
        for (int k = 0; k < PHASES && row->drop[j] * last > 0.0; ++k) {
            const double y = last * (1 + step * k / PHASES); /* above the maximum: that was not yet the key's */
            const double off = row->drop[j] * of_top * (y <= 1 ? ref_round(dtype, y) - y : first);
            for (int64_t c = 0; c < d_v; ++c) z->alike[k * d_v + c] += off * v[c];
        }
    }
}

/* What is known so of the row's error along shape n. */
static void add_alike(struct shapes *z, int64_t n, int64_t d_v)
{
    for (int64_t c = 0; c < d_v; ++c) {
        const double weight = z->shape[n * d_v + c] / z->errors[c].expected;
        if (!(z->errors[c].expected > 0.0) || !isfinite(weight)) continue;
        for (int k = 0; k < PHASES; ++k) z->of_alike[n * PHASES + k] += weight * z->alike[k * d_v + c];
    }
}

static void judge_row(struct shapes *z, const struct attest_problem *p, const struct attest_backward_args *a,
                      const struct ref_sequence *s, int64_t b, int64_t h, int64_t r, const void *got,
                      const double *oracle, const struct ref_bound *bound)
{
    const int64_t d_v = p->head_dim_v, from = ((s->first_q + r) * p->num_heads_q + h) * d_v;
    const int64_t offset = ref_row_offset(p, &p->o, s, false, b, r, h);
    struct ref_row row = {.x = z->x, .s = z->s, .drop = z->drop};
    for (int64_t c = 0; c < d_v; ++c) {
        const double want = oracle[from + c], have = ref_load(p->o.dtype, got, offset + c);
        if (!isfinite(want) || !isfinite(have) || !isfinite(bound->bound[from + c])) return;
        const double shift = bound->shift ? bound->shift[from + c] : 0.0;
        struct judge_error *const e = &z->errors[c];
        *e = judge_error_of(p->o.dtype, have, want, bound->sigma[from + c], bound->bias[from + c], shift);
    }
    ref_score_row(p, &a->forward, s, b, h, r, &row);
    for (int64_t c = 0; c < d_v; ++c)
        if (z->errors[c].expected > 0.0) z->squares += z->errors[c].error * z->errors[c].error / z->errors[c].expected;
    if (!isfinite(row.lse)) return;
    find_shapes(z, &row, s->seqlen_k, d_v, oracle + from);
    find_alike(z, p->v.dtype, &row, s->seqlen_k, d_v);
    const bool has_dout = p->dout.dtype != ATTEST_ABSENT && a->dout;
    const int64_t at = has_dout ? ref_row_offset(p, &p->dout, s, false, b, r, h) : 0;
    for (int64_t c = 0; c < d_v; ++c)
        z->shape[ALONG_DOUT * d_v + c] = has_dout ? ref_load(p->dout.dtype, a->dout, at + c) : 0.0;
    for (int64_t n = 0; n < z->count; ++n) {
        for (int64_t c = 0; c < d_v; ++c)
            if (z->errors[c].expected > 0.0) judge_direction_add(&z->sums[n], &z->errors[c], z->shape[n * d_v + c]);
        add_alike(z, n, d_v);
        judge_direction_end_row(&z->sums[n], INFINITY);
    }
}

static void load_values(const struct shapes *z, const struct attest_problem *p, const struct attest_backward_args *a,
                        const struct ref_sequence *s, int64_t b, int64_t h_kv)
{
    for (int64_t j = 0; j < s->seqlen_k; ++j)
        ref_load_row(p->v.dtype, a->forward.v, ref_row_offset(p, &p->v, s, true, b, j, h_kv), p->head_dim_v,
                     z->v + j * p->head_dim_v);
    for (int64_t i = 0; i < s->seqlen_k * p->head_dim_v; ++i)
        if (!isfinite(z->v[i])) z->v[i] = 0.0;
}

static void conclude(const struct shapes *z, struct ref_report *r)
{
    static const enum ref_direction names[] = {REF_ALONG_DOUT, REF_SCORES_SCALED};
    for (int64_t n = 0; n < z->count; ++n) {
        struct judge_direction *const d = &z->sums[n];
        double alike = 0.0;
        for (int k = 0; k < PHASES; ++k) alike = fmax(alike, fabs(z->of_alike[n * PHASES + k]));
        d->bias += alike;
        const double ratio = judge_direction_ratio(d, JUDGE_FALSE_ALARM / (double)z->count);
        const double share = d->norm > 0.0 ? d->projection * d->projection / d->norm / z->squares : 0.0;
        const bool explains = ratio > 1 ? !(r->direction_ratio > 1) || share > r->direction_share : ratio > r->direction_ratio;
        if (!(ratio <= r->direction_ratio)) r->direction_ratio = ratio;
        if (!explains) continue;
        r->direction_share = share;
        r->direction = n < FIRST_TILE ? names[n] : n < FIRST_TILE + z->tiles ? REF_TILE_OF_KEYS : REF_EARLIER_TILES;
        r->direction_size = d->projection / d->norm;
        r->direction_index[0] = n < FIRST_TILE ? 0 : (n - FIRST_TILE) % z->tiles * TILE;
    }
    if (!(r->direction_ratio <= 1)) r->verdict = REF_FAIL;
}

enum attest_status ref_judge_keys(const struct attest_problem *p, const struct attest_backward_args *a, const void *got,
                                  const double *oracle, const struct ref_bound *bound, struct ref_report *report)
{
    int64_t keys = 0, rows = 0;
    struct shapes z = {0};
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &a->forward, b);
        keys = s.seqlen_k > keys ? s.seqlen_k : keys;
        rows += s.seqlen_q * p->num_heads_q;
    }
    if (keys == 0 || rows == 0) return ATTEST_OK;
    take(&z, keys, p->head_dim_v);
    const bool ok = z.sums && z.shape && z.x && z.v && z.errors && z.alike && z.of_alike;
    const int64_t every = (rows + MOST_ROWS - 1) / MOST_ROWS, group = p->num_heads_q / p->num_heads_kv;
    for (int64_t b = 0, row = 0; ok && b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &a->forward, b);
        for (int64_t h = 0; h < p->num_heads_q; ++h) {
            if (h % group == 0) load_values(&z, p, a, &s, b, h / group);
            for (int64_t r = 0; r < s.seqlen_q; ++r, ++row)
                if (row % every == 0) judge_row(&z, p, a, &s, b, h, r, got, oracle, bound);
        }
    }
    if (ok) conclude(&z, report);
    release(&z);
    return ok ? ATTEST_OK : ATTEST_OUT_OF_MEMORY;
}

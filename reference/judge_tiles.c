/* judge_tiles.c - tests of errors against what tiles of 64 keys give to o and dq, and tiles of 64 query rows to dk and
 * dv: reference/bounds.md section 9.15.
 *
 * A unit is 64 rows of the tensor, of one head. It walks the tiles of the other side in order and adds up its errors
 * along each shape as it goes. */
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"
#include "reference/judge_directions.h"
#include "reference/judge_scores.h"
#include "reference/repeats.h"

enum { MOST_UNITS = 64 }; /* that are looked at */

enum { PHASES = REF_WAYS }; /* of the grid to which weights are rounded */

/* Shapes of a tensor: two that all tiles make together; of splits in 2, 4 and 8; then, of each tile, these. */
enum { FIRST, SECOND, SPLITS, TILES = SPLITS + 2 + 4 + 8 };
enum { OF_TILE, OF_EARLIER, OF_STALE, OF_STALE_SCORES, PER_TILE };

struct context {
    struct judge_pass pass;
    enum ref_tensor tensor;
    const void *got;
    const double *oracle;
    const struct ref_bound *bound;
    bool is_k;                      /* rows of the tensor are keys */
    bool lags;                      /* weights may be more than 1 */
    bool has_alike;                 /* weights of o that are alike may round alike */
    int64_t heads, features;
    int64_t count, every;           /* shapes; of so many units one is looked at */
    struct worker *workers;
    double *repeats;                /* of each row: see repeats.h */
    /* Sums of all units so far, added in order. */
    struct judge_direction *sums;   /* [count] */
    double squares;                 /* of errors, in units of what is expected of them */
    struct ref_lock lock;
    int64_t turn;
};

/* A unit in hand. Shapes are [rows][features]. */
struct worker {
    int64_t b, h, first, rows;
    int64_t others, tiles;          /* rows of the other side, and their tiles */
    struct judge_direction *sums;
    double squares;
    struct judge_error errors[JUDGE_OPERAND];
    double want[JUDGE_OPERAND], repeats[JUDGE_TILE];
    double now[JUDGE_OPERAND], stale[JUDGE_OPERAND], scores[JUDGE_OPERAND], earlier[JUDGE_OPERAND];
    double split[3][JUDGE_OPERAND], together[2][JUDGE_OPERAND];
    double right[JUDGE_OPERAND], panels[JUDGE_OPERAND];
    double matrix[JUDGE_SCORES], before[JUDGE_SCORES], most[JUDGE_TILE];
    struct judge_tile tile;
};

static int64_t tiles_of(int64_t rows) { return (rows + JUDGE_TILE - 1) / JUDGE_TILE; }

/* ---- shapes ---- */

static void add_shape(const struct context *z, struct worker *w, int64_t n, const double *shape)
{
    struct judge_direction *const d = &w->sums[n];
    for (int64_t r = 0; r < w->rows; ++r) {
        for (int64_t at = r * z->features; at < (r + 1) * z->features; ++at) {
            if (!(w->errors[at].expected > 0.0) || shape[at] == 0.0) continue;
            judge_direction_add(d, &w->errors[at], shape[at]);
        }
        judge_direction_end_row(d, INFINITY, w->repeats[r], NULL);
    }
}

static void clear(const struct context *z, const struct worker *w, double *shape)
{
    memset(shape, 0, (size_t)(w->rows * z->features) * sizeof *shape);
}

static void add(const struct context *z, const struct worker *w, const double *shape, double *out)
{
    for (int64_t i = 0; i < w->rows * z->features; ++i) out[i] += shape[i];
}

/* out += matrix times rows of the other side, `matrix` [query rows][keys]. */
static void add_product(const struct context *z, struct worker *w, const double *matrix, const double *others,
                        int64_t count, double *out)
{
    ref_pack(count, z->features, others, z->features, 1, count, w->panels);
    ref_vector()->gemm(w->rows, z->features, count, matrix, z->is_k ? 1 : JUDGE_TILE, z->is_k ? JUDGE_TILE : 1,
                       w->panels, count, true, out, z->features);
}

/* out -= o times what the weights of each row come to. */
static void center(const struct context *z, struct worker *w, const double *weights, double *out)
{
    for (int64_t r = 0; r < w->rows; ++r) {
        double sum = 0.0;
        for (int64_t j = 0; j < JUDGE_TILE; ++j) sum += weights[r * JUDGE_TILE + j];
        for (int64_t at = r * z->features; at < (r + 1) * z->features; ++at) out[at] -= sum * w->want[at];
    }
}

/* What scores do to o: a factor of all, and those of the tile before in the place of this one's. */
static void add_of_scores(const struct context *z, struct worker *w, int64_t t, int64_t count)
{
    const struct judge_tile *const tile = &w->tile;
    for (int64_t i = 0; i < JUDGE_SCORES; ++i) w->matrix[i] = tile->s[i] * tile->kept[i];
    add_product(z, w, w->matrix, w->right, count, w->together[SECOND]);
    for (int64_t i = 0; i < JUDGE_SCORES; ++i) w->matrix[i] = tile->s[i] * tile->p[i];
    center(z, w, w->matrix, w->together[SECOND]);
    clear(z, w, w->scores);
    if (t > 0) {
        for (int64_t i = 0; i < JUDGE_SCORES; ++i)
            w->matrix[i] = tile->p[i] > 0.0 ? (w->before[i] - tile->p[i]) * (tile->kept[i] / tile->p[i]) : 0.0;
        add_product(z, w, w->matrix, w->right, count, w->scores);
        for (int64_t i = 0; i < JUDGE_SCORES; ++i) w->matrix[i] = tile->p[i] > 0.0 ? w->before[i] - tile->p[i] : 0.0;
        center(z, w, w->matrix, w->scores);
    }
    memcpy(w->before, tile->p, sizeof w->before);
}

/* What delta does to dq or dk. */
static void add_of_delta(const struct context *z, struct worker *w, int64_t count)
{
    const struct judge_tile *const tile = &w->tile;
    for (int64_t i = 0; i < JUDGE_SCORES; ++i) w->matrix[i] = -tile->less[i];
    add_product(z, w, w->matrix, w->right, count, w->together[FIRST]);
    for (int64_t i = 0; i < JUDGE_SCORES; ++i) w->matrix[i] = -tile->less[i] * tile->delta[i / JUDGE_TILE];
    add_product(z, w, w->matrix, w->right, count, w->together[SECOND]);
}

/* The scores of the unit and tile t, of one query head. */
static int64_t compute_tile(const struct context *z, struct worker *w, int64_t t, int64_t h)
{
    const int64_t first = t * JUDGE_TILE, count = w->others - first < JUDGE_TILE ? w->others - first : JUDGE_TILE;
    struct judge_tile *const tile = &w->tile;
    tile->b = w->b, tile->h = h;
    tile->first_row = z->is_k ? first : w->first, tile->rows = z->is_k ? count : w->rows;
    tile->first_key = z->is_k ? w->first : first, tile->keys = z->is_k ? w->rows : count;
    judge_tile_compute(&z->pass, tile);
    return count;
}

static void add_tile(const struct context *z, struct worker *w, int64_t t, int64_t h, int64_t h_other)
{
    const int64_t count = compute_tile(z, w, t, h);
    const double *const matrix = z->tensor == REF_O || z->tensor == REF_DV ? w->tile.kept : w->tile.ds;
    if (t > 0) {
        judge_load(&z->pass, z->tensor, w->b, h_other, (t - 1) * JUDGE_TILE, count, w->right);
        add_product(z, w, matrix, w->right, count, w->stale);
    }
    judge_load(&z->pass, z->tensor, w->b, h_other, t * JUDGE_TILE, count, w->right);
    add_product(z, w, matrix, w->right, count, w->now);
    if (z->tensor == REF_O) add_of_scores(z, w, t, count);
    else if (z->tensor != REF_DV) add_of_delta(z, w, count);
}

/* Splits of tiles in 2, 4 and 8, which go on or end with this one. */
static void add_to_splits(const struct context *z, struct worker *w, int64_t t)
{
    int64_t at = SPLITS;
    for (int n = 0; n < 3; ++n) {
        const int64_t of = 2 << n, which = ((t + 1) * of - 1) / w->tiles, next = ((t + 2) * of - 1) / w->tiles;
        add(z, w, w->now, w->split[n]);
        if (w->tiles >= of && next > which) {
            add_shape(z, w, at + which, w->split[n]);
            clear(z, w, w->split[n]);
        }
        at += of;
    }
}

static void walk(const struct context *z, struct worker *w)
{
    const int64_t group = z->pass.p->num_heads_q / z->pass.p->num_heads_kv;
    clear(z, w, w->earlier);
    for (int n = 0; n < 3; ++n) clear(z, w, w->split[n]);
    for (int n = 0; n < 2; ++n) clear(z, w, w->together[n]);
    for (int64_t t = 0; t < w->tiles; ++t) {
        const int64_t at = TILES + t * PER_TILE;
        clear(z, w, w->now);
        clear(z, w, w->stale);
        for (int64_t g = 0; g < (z->is_k ? group : 1); ++g) {
            const int64_t h = z->is_k ? w->h * group + g : w->h;
            add_tile(z, w, t, h, z->is_k ? h : w->h / group);
        }
        add_shape(z, w, at + OF_TILE, w->now);
        add_to_splits(z, w, t);
        if (t > 0) {
            add_shape(z, w, at + OF_EARLIER, w->earlier);
            for (int64_t i = 0; i < w->rows * z->features; ++i) w->stale[i] -= w->now[i];
            add_shape(z, w, at + OF_STALE, w->stale);
            if (z->tensor == REF_O) add_shape(z, w, at + OF_STALE_SCORES, w->scores);
        }
        add(z, w, w->now, w->earlier);
    }
    if (z->tensor == REF_O && z->pass.p->dout.dtype && z->pass.a->dout)
        judge_load(&z->pass, REF_DV, w->b, w->h, w->first, w->rows, w->together[FIRST]);
    add_shape(z, w, FIRST, w->together[FIRST]);
    add_shape(z, w, SECOND, w->together[SECOND]);
}

/* ---- weights that round alike ---- */

/* What rounding to `f` adds to y > 0; split is 2^(53 - its digits) + 1 (Dekker). */
static double rounding_of(const struct ref_format *f, int32_t dtype, double split, double y)
{
    const double product = split * y;
    return (y < f->min_normal ? ref_round(dtype, y) : product - (product - y)) - y;
}

/* Weights that are alike round alike, or by a function of their scores: of weights relative to the row's maximum, and
 * to maxima before it, of which the place within a step of the format has 8 phases. What is above such a maximum had a
 * later one, unless maxima lag. */
static void add_alike(const struct context *z, struct worker *w, int64_t count)
{
    const int32_t dtype = z->pass.p->v.dtype;
    const struct ref_format *const format = ref_format(dtype);
    const double step = format->unit_roundoff, split = ldexp(1, 52 - format->fraction_bits) + 1;
    for (int k = 0; k < PHASES; ++k) {
        for (int64_t i = 0; i < JUDGE_SCORES; ++i) {
            w->matrix[i] = 0.0;
            if (!(w->tile.kept[i] > 0.0)) continue;
            const double top = w->most[i / JUDGE_TILE], last = w->tile.p[i] / top;
            double y = last * (1 + step * k / PHASES);
            if (y > 1 && !z->lags) y = last;
            w->matrix[i] = w->tile.kept[i] / last * rounding_of(format, dtype, split, y);
        }
        clear(z, w, w->now);
        add_product(z, w, w->matrix, w->right, count, w->now);
        for (int64_t at = 0; at < w->rows * z->features; ++at) w->errors[at].alike[k] += w->now[at];
    }
}

/* Of weights first the largest of each row, then what rounding does to all. */
static void find_alike(const struct context *z, struct worker *w)
{
    const int64_t group = z->pass.p->num_heads_q / z->pass.p->num_heads_kv;
    if (!z->has_alike) return;
    memset(w->most, 0, sizeof w->most);
    for (int64_t at = 0; at < w->rows * z->features; ++at) w->errors[at].has_alike = true;
    for (int64_t t = 0; t < w->tiles; ++t) {
        compute_tile(z, w, t, w->h);
        for (int64_t i = 0; i < JUDGE_SCORES; ++i)
            w->most[i / JUDGE_TILE] = fmax(w->most[i / JUDGE_TILE], w->tile.p[i]);
    }
    for (int64_t t = 0; t < w->tiles; ++t) {
        const int64_t count = compute_tile(z, w, t, w->h);
        judge_load(&z->pass, z->tensor, w->b, w->h / group, t * JUDGE_TILE, count, w->right);
        add_alike(z, w, count);
    }
}

/* ---- units ---- */

/* Rows of which something is not finite, or outside of the domain, are left out. */
static void load_errors(const struct context *z, struct worker *w)
{
    const struct attest_problem *p = z->pass.p;
    const struct attest_tensor *const tensors[] = {
        [REF_O] = &p->o, [REF_DQ] = &p->dq, [REF_DK] = &p->dk, [REF_DV] = &p->dv};
    const struct attest_tensor *const t = tensors[z->tensor];
    const struct ref_sequence s = ref_sequence(p, &z->pass.a->forward, w->b);
    for (int64_t r = 0; r < w->rows; ++r) {
        const int64_t row = (z->is_k ? s.first_k : s.first_q) + w->first + r;
        const int64_t from = (row * z->heads + w->h) * z->features, at = r * z->features;
        const int64_t offset = ref_row_offset(p, t, &s, z->is_k, w->b, w->first + r, w->h);
        const double *const phases = z->bound->phases ? z->bound->phases + (row * z->heads + w->h) * REF_WAYS : NULL;
        bool finite = true;
        double squares = 0.0;
        w->repeats[r] = z->repeats[row * z->heads + w->h];
        for (int64_t x = 0; x < z->features; ++x) {
            const double want = z->oracle[from + x], got = ref_load(t->dtype, z->got, offset + x);
            struct judge_error *const e = &w->errors[at + x];
            finite = finite && isfinite(want) && isfinite(got) && isfinite(z->bound->bound[from + x]);
            w->want[at + x] = isfinite(want) ? want : 0.0;
            *e = (struct judge_error){.expected = 0.0};
            if (finite) *e = judge_error_of(t->dtype, got, want, z->bound, from + x, phases);
            if (e->expected > 0.0) squares += e->error * e->error / e->expected;
        }
        for (int64_t x = 0; x < z->features && !finite; ++x) w->errors[at + x].expected = 0.0;
        if (finite) w->squares += squares;
    }
}

/* Where unit `index` is. */
static void find_unit(const struct context *z, int64_t index, struct worker *w)
{
    const struct attest_problem *p = z->pass.p;
    for (w->b = 0; w->b < p->batch; ++w->b) {
        const struct ref_sequence s = ref_sequence(p, &z->pass.a->forward, w->b);
        const int64_t rows = z->is_k ? s.seqlen_k : s.seqlen_q, units = tiles_of(rows);
        w->others = z->is_k ? s.seqlen_q : s.seqlen_k;
        w->tiles = tiles_of(w->others);
        if (index < units * z->heads) {
            w->h = index / units;
            w->first = index % units * JUDGE_TILE;
            w->rows = rows - w->first < JUDGE_TILE ? rows - w->first : JUDGE_TILE;
            return;
        }
        index -= units * z->heads;
    }
}

static void judge_unit(void *context, int64_t index, int worker)
{
    struct context *const z = context;
    struct worker *const w = &z->workers[worker];
    memset(w->sums, 0, (size_t)z->count * sizeof *w->sums);
    w->squares = 0.0;
    find_unit(z, index * z->every + index % z->every, w); /* of heads of so many units not always the same one */
    load_errors(z, w);
    find_alike(z, w);
    walk(z, w);
    ref_await_turn(&z->lock, &z->turn, index);
    for (int64_t n = 0; n < z->count; ++n) judge_direction_join(&z->sums[n], &w->sums[n]);
    z->squares += w->squares;
    ref_end_turn(&z->lock, &z->turn);
}

/* ---- the verdict ---- */

static enum ref_direction name_of(const struct context *z, int64_t n, int64_t index[3])
{
    static const enum ref_direction of_tile[] = {REF_ONE_TILE, REF_EARLIER_TILES, REF_STALE_TILE, REF_STALE_SCORES};
    index[0] = index[1] = index[2] = 0;
    if (n == FIRST) return z->tensor == REF_O ? REF_ALONG_DOUT : REF_DELTA_SHIFTED;
    if (n == SECOND) return z->tensor == REF_O ? REF_SCORES_SCALED : REF_DELTA_SCALED;
    if (n < TILES) {
        n -= SPLITS, index[1] = 2;
        while (n >= index[1]) n -= index[1], index[1] *= 2;
        index[0] = n;
        return REF_SPLIT;
    }
    index[0] = (n - TILES) / PER_TILE * JUDGE_TILE;
    return of_tile[(n - TILES) % PER_TILE];
}

static void conclude(const struct context *z, struct ref_report *r)
{
    for (int64_t n = 0; n < z->count; ++n) {
        const struct judge_direction *const d = &z->sums[n];
        const double ratio = judge_direction_ratio(d, JUDGE_FALSE_ALARM / (double)z->count);
        const double share = d->norm > 0.0 ? d->projection * d->projection / d->norm / z->squares : 0.0;
        const bool explains = ratio > 1 ? !(r->direction_ratio > 1) || share > r->direction_share * (1 + 1e-6)
                                        : ratio > r->direction_ratio;
        if (!(ratio <= r->direction_ratio)) r->direction_ratio = ratio;
        if (!explains) continue;
        r->direction_share = share;
        r->direction = name_of(z, n, r->direction_index);
        r->direction_size = d->projection / d->norm;
    }
    if (!(r->direction_ratio <= 1)) r->verdict = REF_FAIL;
}

static bool take(struct context *z, int threads)
{
    const struct attest_problem *p = z->pass.p;
    z->sums = calloc((size_t)z->count, sizeof *z->sums);
    z->workers = malloc((size_t)threads * sizeof *z->workers);
    z->repeats = ref_repeats_of_rows(p, &z->pass.a->forward, z->tensor, z->oracle, z->bound->sigma, NULL);
    bool ok = z->sums && z->workers && z->repeats;
    for (int i = 0; z->workers && i < threads; ++i) z->workers[i].sums = NULL;
    for (int i = 0; ok && i < threads; ++i) {
        z->workers[i].sums = malloc((size_t)z->count * sizeof *z->sums);
        ok = z->workers[i].sums;
    }
    return ok;
}

static void release(struct context *z, int threads)
{
    for (int i = 0; z->workers && i < threads; ++i) free(z->workers[i].sums);
    free(z->workers), free(z->sums), free(z->repeats);
    judge_pass_clear(&z->pass);
}

enum attest_status ref_judge_tiles(const struct attest_problem *p, const struct attest_backward_args *a,
                                   const struct attest_recipe *recipe, enum ref_tensor tensor, const void *got,
                                   const double *oracle, const struct ref_bound *bound, int threads,
                                   struct ref_report *report)
{
    struct context z = {.tensor = tensor, .got = got, .oracle = oracle, .bound = bound, .is_k = tensor >= REF_DK,
                        .lags = recipe->rescale_log2 > 0,
                        .has_alike = tensor == REF_O && (p->v.dtype == ATTEST_BF16 || p->v.dtype == ATTEST_FP16),
                        .lock = REF_LOCK_INIT};
    int64_t units = 0, most = 0;
    if (tensor == REF_LSE || tensor > REF_DV) return ATTEST_OK;
    z.heads = z.is_k ? p->num_heads_kv : p->num_heads_q;
    z.features = tensor == REF_O || tensor == REF_DV ? p->head_dim_v : p->head_dim;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &a->forward, b);
        const int64_t tiles = tiles_of(z.is_k ? s.seqlen_q : s.seqlen_k);
        units += z.heads * tiles_of(z.is_k ? s.seqlen_k : s.seqlen_q);
        most = tiles > most ? tiles : most;
    }
    if (units == 0 || most == 0) return ATTEST_OK;
    z.every = (units + MOST_UNITS - 1) / MOST_UNITS;
    z.count = TILES + most * PER_TILE;
    const int64_t looked_at = units / z.every; /* whole ones: a place is found in each */
    const int workers = (int)fmin((double)ref_thread_count(threads), (double)looked_at);
    const bool gradients = tensor == REF_DQ || tensor == REF_DK;
    bool ok = judge_pass_init(&z.pass, p, a, gradients, threads) == ATTEST_OK && take(&z, workers);
    if (ok) {
        ref_parallel(workers, looked_at, judge_unit, &z);
        conclude(&z, report);
    }
    release(&z, workers);
    return ok ? ATTEST_OK : ATTEST_OUT_OF_MEMORY;
}

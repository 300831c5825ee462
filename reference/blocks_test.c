/* blocks_test.c - the blocks of forward.c and backward.c against the plain rows of plain.h.
 *
 * Both compute the contract's formulas in another order. Whatever the order, the distance of each to the exact
 * result has a bound to first order in u = 2^-53, written out in `allow_row` below with these names for
 * a row: M the largest |q| |k| softmax_scale + |bias| + |alibi| of a visible key, n its keys,
 *
 *     error of an exponent x          e = (head_dim + 16) u M
 *     relative error of a weight p    kappa = 2 e + (8 M + ln n + n + 64) u
 *
 * from: dot product and scale (head_dim + 2), tanh and its scaling 6, three additions 3; the exponential's
 * argument 2 M + ln n, itself 4 ulp, the sum n, lse's own rounding. The two orders may differ by twice
 * that; three times is allowed, which leaves room for what is of second order. */
#include <stdio.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/block.h"
#include "reference/blocks_case.h"
#include "reference/formats.h"
#include "reference/plain.h"

static const double u = 0x1p-53;

enum tensor { O, LSE, DQ, DK, DV, DBIAS, DSINK, DELTA, NUM_TENSORS };
static const char *const names[NUM_TENSORS] = {"o", "lse", "dq", "dk", "dv", "dbias", "dsink", "delta"};

/* All results of one problem. */
struct results {
    double *at[NUM_TENSORS];
    int64_t count[NUM_TENSORS];
};

static struct results make_results(const struct attest_problem *p)
{
    const int64_t rows_q = ref_rows_q(p) * p->num_heads_q, rows_k = ref_rows_k(p) * p->num_heads_kv;
    struct results r = {.count = {rows_q * p->head_dim_v, rows_q, rows_q * p->head_dim, rows_k * p->head_dim,
                                  rows_k * p->head_dim_v, 0, p->num_heads_q, rows_q}};
    if (p->dbias.dtype)
        r.count[DBIAS] = (p->dbias.batch ? p->batch : 1) * (p->dbias.head ? p->num_heads_q : 1) *
                         (p->dbias.seqlen_q ? p->seqlen_q : 1) * (p->dbias.seqlen_k ? p->seqlen_k : 1);
    for (int t = 0; t < NUM_TENSORS; ++t) {
        r.at[t] = calloc((size_t)r.count[t] + 1, sizeof(double));
        cr_assert(r.at[t]);
    }
    return r;
}

static void free_results(struct results *r)
{
    for (int t = 0; t < NUM_TENSORS; ++t) free(r->at[t]);
}

static struct ref_backward gradients_of(const struct results *r)
{
    return (struct ref_backward){r->at[DQ], r->at[DK],    r->at[DV], r->count[DBIAS] ? r->at[DBIAS] : NULL,
                                 r->at[DSINK], r->at[DELTA]};
}

static void run_blocks(const struct blocks_case *c, struct results *r, int threads)
{
    for (int t = 0; t < NUM_TENSORS; ++t) memset(r->at[t], 0xff, (size_t)r->count[t] * sizeof(double));
    const struct ref_forward forward = {r->at[O], r->at[LSE]};
    const struct ref_backward backward = gradients_of(r);
    cr_assert(ref_forward(&c->p, &c->a.forward, &forward, threads) == ATTEST_OK);
    cr_assert(ref_backward(&c->p, &c->a, NULL, &backward, threads) == ATTEST_OK);
}

static void run_plain(const struct blocks_case *c, struct results *r)
{
    const struct attest_problem *p = &c->p;
    double *dsink_rows = calloc((size_t)r->count[LSE] + 1, sizeof *dsink_rows);
    double *scratch = malloc(4 * (size_t)(p->seqlen_k + 1) * sizeof *scratch);
    const struct ref_backward out = gradients_of(r);
    const struct ref_gradients g = {p, &c->a, NULL, &out, p->has_sink ? dsink_rows : NULL};
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &c->a.forward, b);
        for (int64_t i = 0; i < s.seqlen_q * p->num_heads_q; ++i) {
            const int64_t row = s.first_q * p->num_heads_q + i, h = i % p->num_heads_q, q = i / p->num_heads_q;
            ref_plain_forward(p, &c->a.forward, &s, b, h, q, scratch, r->at[O] + row * p->head_dim_v,
                              r->at[LSE] + row);
            ref_plain_backward(&g, &s, b, h, q, scratch);
            r->at[DSINK][h] += dsink_rows[row];
        }
    }
    free(dsink_rows);
    free(scratch);
}

/* What one score of a row gives to the allowances of both passes. */
struct score {
    double p_dropped, p_forward, kappa, ds_abs, ds_error, dx_error;
};

static void allow_score(const struct blocks_case *c, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r,
                        int64_t key, const struct score *score, struct results *allow)
{
    const struct attest_problem *p = &c->p;
    const struct attest_forward_args *f = &c->a.forward;
    const int64_t row = (s->first_q + r) * p->num_heads_q + h, h_kv = h / (p->num_heads_q / p->num_heads_kv);
    const int64_t row_k = (s->first_k + key) * p->num_heads_kv + h_kv;
    const double n = (double)p->seqlen_k + 4, m = (double)(p->seqlen_q * (p->num_heads_q / p->num_heads_kv)) + 4;
    const double scale = fabs((double)p->softmax_scale), all = (double)(p->batch * p->num_heads_q * p->seqlen_q) * n;
    for (int64_t x = 0; x < p->head_dim_v; ++x) {
        const double v = ref_load(p->v.dtype, f->v, ref_row_offset(p, &p->v, s, true, b, key, h_kv) + x);
        const double dout = ref_load(p->dout.dtype, c->a.dout, ref_row_offset(p, &p->dout, s, false, b, r, h) + x);
        allow->at[O][row * p->head_dim_v + x] += score->p_forward * fabs(v) * (score->kappa + n * u);
        allow->at[DV][row_k * p->head_dim_v + x] += score->p_dropped * fabs(dout) * (score->kappa + m * u);
    }
    for (int64_t x = 0; x < p->head_dim; ++x) {
        const double q = ref_load(p->q.dtype, f->q, ref_row_offset(p, &p->q, s, false, b, r, h) + x);
        const double k = ref_load(p->k.dtype, f->k, ref_row_offset(p, &p->k, s, true, b, key, h_kv) + x);
        allow->at[DQ][row * p->head_dim + x] += scale * fabs(k) * (score->ds_error + n * u * score->ds_abs);
        allow->at[DK][row_k * p->head_dim + x] += scale * fabs(q) * (score->ds_error + m * u * score->ds_abs);
    }
    const struct ref_gradients g = {p, &c->a, NULL, &(struct ref_backward){.dbias = allow->at[DBIAS]}, NULL};
    if (allow->count[DBIAS]) *ref_dbias_at(&g, b, h, r, key) += score->dx_error + all * u * score->ds_abs;
}

static double abs_dot(const struct blocks_case *c, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r,
                      int64_t key)
{
    const struct attest_problem *p = &c->p;
    const int64_t h_kv = h / (p->num_heads_q / p->num_heads_kv);
    double sum = 0.0;
    for (int64_t x = 0; x < p->head_dim_v; ++x)
        sum += fabs(ref_load(p->dout.dtype, c->a.dout, ref_row_offset(p, &p->dout, s, false, b, r, h) + x) *
                    ref_load(p->v.dtype, c->a.forward.v, ref_row_offset(p, &p->v, s, true, b, key, h_kv) + x));
    return sum;
}

static void allow_row(const struct blocks_case *c, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r,
                      struct results *allow)
{
    enum { MOST_KEYS = BLOCKS_MOST_KEYS };
    const struct attest_problem *p = &c->p;
    static double x[MOST_KEYS], s_abs[MOST_KEYS], drop[MOST_KEYS];
    struct ref_row row = {.x = x, .s_abs = s_abs, .drop = drop};
    ref_score_row(p, &c->a.forward, s, b, h, r, &row);
    const int64_t index = (s->first_q + r) * p->num_heads_q + h;
    const struct ref_gradients g = {p, &c->a, NULL, &(struct ref_backward){0}, NULL};
    const struct ref_row_state given = ref_given_state(&g, s, b, h, r);
    const double lse = p->external_lse ? given.lse - row.base : row.lse;
    if (row.num_visible == 0 && !p->has_sink) return;

    double largest = 0.0, delta_abs = fabs(given.delta);
    for (int64_t k = 0; k < s->seqlen_k; ++k) largest = fmax(largest, s_abs[k]);
    const double n = (double)p->seqlen_k + 1, d = (double)p->head_dim, dv = (double)p->head_dim_v;
    const double magnitude = largest + c->most_bias + c->most_alibi + (p->has_sink ? 10 : 0);
    const bool finite = isfinite(magnitude) && isfinite(lse); /* else the row is computed the same way on both sides */
    const double e = finite ? (d + 16) * u * magnitude : 0.0;
    const double kappa = finite ? 2 * e + (8 * magnitude + fabs(lse) + log(n) + n + 64) * u : 0.0;
    for (int64_t k = 0; k < s->seqlen_k; ++k)
        if (!p->external_lse && x[k] != -INFINITY) delta_abs += exp(x[k] - lse) * drop[k] * abs_dot(c, s, b, h, r, k);
    const double delta_error = p->external_lse ? 0.0 : (kappa + (dv + n + 4) * u) * delta_abs;
    allow->at[LSE][index] += kappa;
    allow->at[DELTA][index] += delta_error;
    if (p->has_sink)
        allow->at[DSINK][h] += exp(c->a.forward.sink[h] - row.base - lse) *
                                   (kappa + u * (double)(p->batch * p->seqlen_q + 8)) * (delta_abs + fabs(given.dlse)) +
                               exp(c->a.forward.sink[h] - row.base - lse) * delta_error;
    for (int64_t k = 0; k < s->seqlen_k; ++k) {
        if (!ref_visible(p, &c->a.forward, s, b, h, r, k)) continue;
        const double p_rk = exp(x[k] - lse) + 0x1p-1000, dp_abs = drop[k] * abs_dot(c, s, b, h, r, k);
        struct score score = {.p_dropped = drop[k] * p_rk, .kappa = kappa};
        score.p_forward = drop[k] * (exp(x[k] - row.lse) + 0x1p-1000);
        score.ds_abs = p_rk * (dp_abs + delta_abs + fabs(given.dlse));
        score.dx_error = (kappa + (dv + 8) * u) * score.ds_abs + p_rk * delta_error;
        score.ds_error = score.dx_error;
        if (p->softcap > 0) score.ds_error += score.ds_abs * (2 * e / p->softcap + 16 * u);
        allow_score(c, s, b, h, r, k, &score, allow);
    }
}

/* Largest difference in units of what is allowed. */
static double largest_use(const struct results *got, const struct results *want, const struct results *allow, int t)
{
    double largest = 0.0;
    for (int64_t i = 0; i < want->count[t]; ++i) {
        const double a = got->at[t][i], b = want->at[t][i];
        if (a == b || (isnan(a) && isnan(b))) continue;
        const double use = fabs(a - b) / (3 * allow->at[t][i]);
        if (!(use <= largest)) largest = use;
        if (isnan(use)) return NAN;
    }
    return largest;
}

/* Rows of no sequence are NaN and rows past seqused empty: what plain rows leave as they were. */
static void prepare_plain(const struct blocks_case *c, struct results *r)
{
    const struct attest_problem *p = &c->p;
    const int per_row[] = {O, LSE, DQ, DELTA}, per_key[] = {DK, DV};
    const bool ragged = p->ragged;
    for (int i = 0; i < 4; ++i) {
        const int t = per_row[i];
        for (int64_t k = 0; k < r->count[t]; ++k) r->at[t][k] = ragged ? NAN : t == LSE ? -INFINITY : 0.0;
        for (int64_t b = 0; b < p->batch; ++b) {
            const struct ref_sequence s = ref_sequence(p, &c->a.forward, b);
            const int64_t width = r->count[t] / (ref_rows_q(p) > 0 ? ref_rows_q(p) : 1);
            for (int64_t k = s.first_q * width; k < (s.first_q + s.rows_q) * width; ++k)
                r->at[t][k] = t == LSE ? -INFINITY : 0.0;
        }
    }
    for (int i = 0; i < 2; ++i) {
        const int t = per_key[i];
        for (int64_t k = 0; k < r->count[t]; ++k) r->at[t][k] = ragged ? NAN : 0.0;
        for (int64_t b = 0; b < p->batch; ++b) {
            const struct ref_sequence s = ref_sequence(p, &c->a.forward, b);
            const int64_t width = r->count[t] / (ref_rows_k(p) > 0 ? ref_rows_k(p) : 1);
            for (int64_t k = s.first_k * width; k < (s.first_k + s.rows_k) * width; ++k) r->at[t][k] = 0.0;
        }
    }
}

static void compare(const struct blocks_case *c, uint64_t seed, double worst[NUM_TENSORS])
{
    struct results got = make_results(&c->p), want = make_results(&c->p), allow = make_results(&c->p);
    run_blocks(c, &got, 1);
    prepare_plain(c, &want);
    run_plain(c, &want);
    for (int64_t b = 0; b < c->p.batch; ++b) {
        const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
        for (int64_t i = 0; i < s.seqlen_q * c->p.num_heads_q; ++i)
            allow_row(c, &s, b, i % c->p.num_heads_q, i / c->p.num_heads_q, &allow);
    }
    for (int t = 0; t < NUM_TENSORS; ++t) {
        const double use = largest_use(&got, &want, &allow, t);
        cr_assert(use <= 1, "%s of case %d: %g of what rounding allows", names[t], (int)seed, use);
        if (use > worst[t]) worst[t] = use;
    }
    struct results again = make_results(&c->p);
    run_blocks(c, &again, 3);
    for (int t = 0; t < NUM_TENSORS; ++t)
        cr_assert(memcmp(got.at[t], again.at[t], (size_t)got.count[t] * sizeof(double)) == 0,
                  "%s of case %d depends on the threads", names[t], (int)seed);
    free_results(&got), free_results(&want), free_results(&allow), free_results(&again);
}

static void compare_cases(int cases, uint64_t first_seed, bool poisoned)
{
    double worst[NUM_TENSORS] = {0};
    for (uint64_t seed = first_seed; seed < first_seed + (uint64_t)cases; ++seed) {
        struct blocks_case c;
        blocks_case_init(&c, seed);
        if (poisoned) blocks_case_poison(&c, seed);
        compare(&c, seed, worst);
        blocks_case_clear(&c);
    }
    printf("blocks against plain rows%s, largest share of what rounding allows in %d cases:",
           poisoned ? " with NaN and infinities" : "", cases);
    for (int t = 0; t < NUM_TENSORS; ++t) printf(" %s %.3f", names[t], worst[t]);
    printf("\n");
}

Test(blocks, agree_with_plain_rows_on_any_number_of_threads, .timeout = 120) { compare_cases(250, 0, false); }

Test(blocks, feel_nan_and_infinities_where_plain_rows_do, .timeout = 120) { compare_cases(100, 1000, true); }

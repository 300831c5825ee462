/* judge_tiles_test.c - errors of every shape that ref_judge_tiles looks for, planted in right results: too small for
 * the bound, the root mean square and the mean, they fail by that shape and are named by it. The shapes are computed
 * here once more, score by score. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/judge_cases.h"

enum { ROWS = 640, KEYS = 620, DIM = 32, HEADS = 2, TILE = 64, WINDOW = 280 }; /* one KV head */
static const double scale = 0.25, cap = 4;

/* A problem with a softcap and a window, what its results should be, and weights and score gradients of all. */
static struct fixture {
    struct attest_problem p;
    struct attest_backward_args a;
    double q[HEADS][ROWS][DIM], k[KEYS][DIM], v[KEYS][DIM], dout[HEADS][ROWS][DIM];
    double x[HEADS][ROWS][KEYS], s[HEADS][ROWS][KEYS], p_of[HEADS][ROWS][KEYS];
    double less[HEADS][ROWS][KEYS], ds[HEADS][ROWS][KEYS], delta[HEADS][ROWS], lse_of[HEADS][ROWS];
    uint16_t bf16[5][ROWS * HEADS * DIM];
    float lse_given[ROWS * HEADS];
    double oracle[REF_NUM_TENSORS][ROWS * HEADS * DIM];
    double arrays[REF_NUM_TENSORS][5][ROWS * HEADS * DIM];
    struct ref_bound bounds[REF_NUM_TENSORS];
    double shape[ROWS * HEADS * DIM];
    uint16_t got[ROWS * HEADS * DIM];
} *f;

static struct attest_tensor tensor_of(int64_t heads)
{
    return (struct attest_tensor){.dtype = ATTEST_BF16, .seqlen = heads * DIM, .head = DIM};
}

/* As [rows][heads][DIM], of numbers of bf16. */
static void *fill(int at, int64_t heads, int64_t rows, double mean, double (*values)[DIM])
{
    struct judge_random g = {(uint64_t)at + 1};
    for (int64_t h = 0; h < heads; ++h)
        for (int64_t r = 0; r < rows; ++r)
            for (int64_t c = 0; c < DIM; ++c) {
                double *const value = &values[h * rows + r][c];
                *value = ref_round(ATTEST_BF16, (c % 2 ? mean : -mean) + judge_normal(&g));
                ref_store(ATTEST_BF16, f->bf16[at], (r * heads + h) * DIM + c, *value);
            }
    return f->bf16[at];
}

static double dot(const double *a, const double *b)
{
    double sum = 0.0;
    for (int64_t c = 0; c < DIM; ++c) sum += a[c] * b[c];
    return sum;
}

static bool is_hidden(int64_t i, int64_t j) { return j > i + WINDOW || j < i - WINDOW; }

static void find_scores(int64_t h, int64_t i)
{
    double sum = 0.0, slope[KEYS];
    f->delta[h][i] = 0.0;
    for (int64_t j = 0; j < KEYS; ++j) {
        f->s[h][i][j] = scale * dot(f->q[h][i], f->k[j]);
        const double t = tanh(f->s[h][i][j] / cap);
        f->x[h][i][j] = is_hidden(i, j) ? -INFINITY : cap * t;
        slope[j] = 1 - t * t;
        sum += exp(f->x[h][i][j]);
    }
    f->lse_of[h][i] = log(sum);
    for (int64_t j = 0; j < KEYS; ++j) {
        f->p_of[h][i][j] = exp(f->x[h][i][j]) / sum;
        f->delta[h][i] += f->p_of[h][i][j] * dot(f->dout[h][i], f->v[j]);
    }
    for (int64_t j = 0; j < KEYS; ++j) {
        f->less[h][i][j] = scale * slope[j] * f->p_of[h][i][j];
        f->ds[h][i][j] = f->less[h][i][j] * (dot(f->dout[h][i], f->v[j]) - f->delta[h][i]);
    }
}

static void set_up(void)
{
    f = calloc(1, sizeof *f);
    f->p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    f->p.device = ATTEST_REFERENCE;
    f->p.batch = 1, f->p.seqlen_q = ROWS, f->p.seqlen_k = KEYS;
    f->p.num_heads_q = HEADS, f->p.num_heads_kv = 1;
    f->p.head_dim = f->p.head_dim_v = DIM;
    f->p.softmax_scale = (float)scale, f->p.softcap = (float)cap;
    f->p.window_left = f->p.window_right = WINDOW, f->p.diag_kind = ATTEST_DIAG_TOP_LEFT;
    f->p.q = f->p.o = f->p.dq = f->p.dout = tensor_of(HEADS);
    f->p.k = f->p.v = f->p.dk = f->p.dv = tensor_of(1);
    f->p.lse = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = HEADS, .head = 1};
    f->a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    f->a.forward.q = fill(0, HEADS, ROWS, 0, f->q[0]);
    f->a.forward.k = fill(1, 1, KEYS, 0.5, f->k);
    f->a.forward.v = fill(2, 1, KEYS, 0, f->v);
    f->a.dout = fill(3, HEADS, ROWS, 0, f->dout[0]);
    for (int64_t h = 0; h < HEADS; ++h)
        for (int64_t i = 0; i < ROWS; ++i) find_scores(h, i);
    for (int t = 0; t <= REF_DV; ++t) {
        double(*const arrays)[ROWS * HEADS * DIM] = f->arrays[t];
        f->bounds[t] =
            (struct ref_bound){.bound = arrays[0], .sigma = arrays[1], .bias = arrays[2], .shift = arrays[3]};
        if (t == REF_O || t == REF_DQ) f->bounds[t].along = arrays[4];
    }
    const struct ref_forward forward = {f->oracle[REF_O], f->oracle[REF_LSE]};
    const struct ref_backward backward = {.dq = f->oracle[REF_DQ], .dk = f->oracle[REF_DK], .dv = f->oracle[REF_DV]};
    struct attest_recipe recipe = *ref_recipe("hopper");
    recipe.tanh_error = 0x1p-22; /* else that is a bias, beside which nothing small is seen */
    cr_assert_eq(ref_forward(&f->p, &f->a.forward, &forward, 1), ATTEST_OK);
    cr_assert_eq(ref_backward(&f->p, &f->a, NULL, &backward, 1), ATTEST_OK);
    for (int64_t i = 0; i < ROWS * HEADS; ++i) f->lse_given[i] = (float)f->oracle[REF_LSE][i];
    for (int64_t i = 0; i < ROWS * HEADS * DIM; ++i) ref_store(ATTEST_BF16, f->bf16[4], i, f->oracle[REF_O][i]);
    f->a.forward.lse = f->lse_given, f->a.forward.o = f->bf16[4];
    cr_assert_eq(ref_bound_forward(&f->p, &f->a.forward, &recipe, &f->bounds[REF_O], &f->bounds[REF_LSE], 1),
                 ATTEST_OK);
    cr_assert_eq(ref_bound_backward(&f->p, &f->a, &recipe, f->bounds, 1), ATTEST_OK);
}

static void tear_down(void) { free(f); }

TestSuite(judge_tiles, .init = set_up, .fini = tear_down);

/* What score (h, i, j) gives to the tensor is weight times operand, added at row `at` of the canonical array. */
static void add(enum ref_tensor t, int64_t h, int64_t i, int64_t j, double weight, int64_t operand_row)
{
    const double *const operands[] = {
        [REF_O] = f->v[0], [REF_DQ] = f->k[0], [REF_DK] = f->q[h][0], [REF_DV] = f->dout[h][0]};
    const int64_t at = t >= REF_DK ? j : i * HEADS + h;
    for (int64_t c = 0; c < DIM; ++c) f->shape[at * DIM + c] += weight * operands[t][operand_row * DIM + c];
}

struct planted {
    enum ref_tensor tensor;
    enum ref_direction direction;
    int64_t index[2];
    double size; /* of the shape */
    const char *text;
};

/* o less what weights come to times o. */
static void add_centered(int64_t h, int64_t i, int64_t j, double weight)
{
    add(REF_O, h, i, j, weight, j);
    for (int64_t c = 0; c < DIM; ++c) {
        const int64_t at = (i * HEADS + h) * DIM + c;
        f->shape[at] -= weight * f->oracle[REF_O][at];
    }
}

static void add_score(const struct planted *e, int64_t h, int64_t i, int64_t j)
{
    const bool is_k = e->tensor >= REF_DK, weights = e->tensor == REF_O || e->tensor == REF_DV;
    const int64_t other = is_k ? i : j, first = e->index[0], tiles = ((is_k ? ROWS : KEYS) + TILE - 1) / TILE;
    const double p = f->p_of[h][i][j], w = weights ? p : f->ds[h][i][j];
    const bool inside = other >= first && other < first + TILE;
    switch (e->direction) {
    case REF_ONE_TILE:
        if (inside) add(e->tensor, h, i, j, w, other);
        break;
    case REF_EARLIER_TILES:
        if (other < first) add(e->tensor, h, i, j, w, other);
        break;
    case REF_SPLIT:
        if (other / TILE >= tiles * first / e->index[1] && other / TILE < tiles * (first + 1) / e->index[1])
            add(e->tensor, h, i, j, w, other);
        break;
    case REF_STALE_TILE:
        if (inside) add(e->tensor, h, i, j, w, other - TILE), add(e->tensor, h, i, j, -w, other);
        break;
    case REF_STALE_SCORES:
        if (inside && p > 0) add_centered(h, i, j, f->p_of[h][i][j - TILE] - p);
        break;
    case REF_SCORES_SCALED: add_centered(h, i, j, f->s[h][i][j] * p); break;
    case REF_DELTA_SHIFTED: add(e->tensor, h, i, j, -f->less[h][i][j], other); break;
    case REF_DELTA_SCALED: add(e->tensor, h, i, j, -f->less[h][i][j] * f->delta[h][i], other); break;
    default: cr_assert(0);
    }
}

static void find_shape(const struct planted *e)
{
    memset(f->shape, 0, sizeof f->shape);
    for (int64_t h = 0; h < HEADS; ++h)
        for (int64_t i = 0; i < ROWS; ++i) {
            for (int64_t j = 0; j < KEYS && e->direction != REF_ALONG_DOUT; ++j) add_score(e, h, i, j);
            for (int64_t c = 0; c < DIM && e->direction == REF_ALONG_DOUT; ++c)
                f->shape[(i * HEADS + h) * DIM + c] = f->dout[h][i][c];
        }
}

static struct ref_report judge(enum ref_tensor t, double size, int threads)
{
    struct ref_report r;
    const int64_t count = (t >= REF_DK ? KEYS : ROWS * HEADS) * DIM;
    for (int64_t i = 0; i < count; ++i) ref_store(ATTEST_BF16, f->got, i, f->oracle[t][i] + size * f->shape[i]);
    ref_judge(&f->p, &f->a.forward, t, f->got, f->oracle[t], &f->bounds[t], 1, &r);
    cr_assert_eq(
        ref_judge_tiles(&f->p, &f->a, ref_recipe("hopper"), t, f->got, f->oracle[t], &f->bounds[t], threads, &r),
        ATTEST_OK);
    return r;
}

static const struct planted errors[] = {
    {REF_O, REF_ONE_TILE, {256}, -0.003, "o with the part of 64 keys from key 256 times"},
    {REF_O, REF_EARLIER_TILES, {384}, 0.001, "o with the part of all keys before key 384 times"},
    {REF_O, REF_SPLIT, {1, 4}, -0.002, "o with split 1 of 4 of its keys times"},
    {REF_O, REF_STALE_TILE, {256}, 0.002, "o with v of the 64 keys before at those from key 256,"},
    {REF_O, REF_STALE_SCORES, {256}, 0.002, "o with scores of the 64 keys before at those from key 256,"},
    {REF_O, REF_SCORES_SCALED, {0}, 0.0005, "o of scores times"},
    {REF_O, REF_ALONG_DOUT, {0}, 0.00005, "o with"},
    {REF_DQ, REF_ONE_TILE, {256}, -0.002, "dq with the part of 64 keys from key 256 times"},
    {REF_DQ, REF_EARLIER_TILES, {384}, 0.001, "dq with the part of all keys before key 384 times"},
    {REF_DQ, REF_SPLIT, {1, 2}, -0.001, "dq with split 1 of 2 of its keys times"},
    {REF_DQ, REF_STALE_TILE, {256}, 0.002, "dq with k of the 64 keys before at those from key 256,"},
    {REF_DQ, REF_DELTA_SHIFTED, {0}, 0.0005, "dq of delta with"},
    {REF_DQ, REF_DELTA_SCALED, {0}, 0.001, "dq of delta times"},
    {REF_DK, REF_ONE_TILE, {256}, -0.005, "dk with the part of 64 query rows from query row 256 times"},
    {REF_DK, REF_EARLIER_TILES, {384}, 0.002, "dk with the part of all query rows before query row 384 times"},
    {REF_DK, REF_SPLIT, {3, 4}, -0.003, "dk with split 3 of 4 of its query rows times"},
    {REF_DK, REF_STALE_TILE, {256}, 0.003, "dk with q of the 64 query rows before at those from query row 256,"},
    {REF_DK, REF_DELTA_SHIFTED, {0}, 0.002, "dk of delta with"},
    {REF_DK, REF_DELTA_SCALED, {0}, 0.01, "dk of delta times"},
    {REF_DV, REF_ONE_TILE, {256}, -0.003, "dv with the part of 64 query rows from query row 256 times"},
    {REF_DV, REF_EARLIER_TILES, {384}, 0.002, "dv with the part of all query rows before query row 384 times"},
    {REF_DV, REF_SPLIT, {3, 4}, -0.002, "dv with split 3 of 4 of its query rows times"},
    {REF_DV, REF_STALE_TILE, {256}, 0.002, "dv with dout of the 64 query rows before at those from query row 256,"},
};
enum { ERRORS = sizeof errors / sizeof *errors };

Test(judge_tiles, planted_shapes_are_seen_by_no_other_check_and_named)
{
    for (int n = 0; n < ERRORS; ++n) {
        const struct planted *const e = &errors[n];
        char text[160];
        find_shape(e);
        const struct ref_report r = judge(e->tensor, e->size, 1);
        ref_describe_direction(&r, e->tensor, text, sizeof text);
        printf("%-85s %.2f; bound %.2f, rms %.2f, mean %.2f\n", text, r.direction_ratio, r.use, r.rms_ratio,
               r.mean_ratio);
        fflush(stdout);
        cr_expect_eq(r.verdict, REF_FAIL);
        cr_expect(r.use <= 1 && r.rms_ratio <= 1 && r.mean_ratio <= 1, "%s: use %g, rms %g, mean %g", e->text,
                  r.use, r.rms_ratio, r.mean_ratio);
        cr_expect_gt(r.direction_ratio, 1, "%s: %g", e->text, r.direction_ratio);
        cr_expect_eq(r.direction, e->direction);
        cr_expect_float_eq(r.direction_size / e->size, 1, 0.1, "%s: %g", e->text, r.direction_size);
        cr_expect_eq(strncmp(text, e->text, strlen(e->text)), 0, "%s: %s", e->text, text);
    }
}

Test(judge_tiles, right_results_rounded_once_pass)
{
    static const enum ref_tensor tensors[] = {REF_O, REF_DQ, REF_DK, REF_DV};
    for (int t = 0; t < 4; ++t) {
        const struct ref_report r = judge(tensors[t], 0, 1);
        cr_expect_eq(r.verdict, REF_PASS, "%s: rms %g, mean %g, direction %g", ref_tensor_names[tensors[t]],
                     r.rms_ratio, r.mean_ratio, r.direction_ratio);
    }
}

/* Rows of two heads that have the same results and deviations count as one row twice: V is twice as large. */
Test(judge_tiles, rows_that_are_equal_err_alike)
{
    double ratios[2];
    find_shape(&errors[0]);
    for (int64_t at = 0; at < ROWS * HEADS * DIM; ++at) {
        const int64_t from = at / (HEADS * DIM) * HEADS * DIM + at % DIM;
        f->oracle[REF_O][at] = f->oracle[REF_O][from];
        for (int n = 0; n < 4; ++n) f->arrays[REF_O][n][at] = f->arrays[REF_O][n][from];
    }
    for (int apart = 0; apart < 2; ++apart) {
        for (int64_t row = 0; row < ROWS * HEADS; ++row) f->arrays[REF_O][1][row * DIM] *= 1 + apart * row * 0x1p-45;
        ratios[apart] = judge(REF_O, errors[0].size, 1).direction_ratio;
    }
    cr_expect(ratios[1] > 1.1 * ratios[0] && ratios[1] < sqrt(HEADS) * ratios[0], "%g, %g", ratios[0], ratios[1]);
}

Test(judge_tiles, the_result_does_not_depend_on_threads)
{
    find_shape(&errors[0]);
    const struct ref_report one = judge(REF_O, errors[0].size, 1), three = judge(REF_O, errors[0].size, 3);
    cr_expect_eq(one.direction_ratio, three.direction_ratio);
    cr_expect_eq(one.direction_size, three.direction_size);
}

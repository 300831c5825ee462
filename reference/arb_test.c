/* arb_test.c - the oracle judged by ball arithmetic: |oracle - exact| <= its stated error, proven for every number
 * of random problems of every input family and of a recorded layer.
 *
 * A case is evaluated in balls of growing precision until every ball is small beside the stated error of the number
 * that it encloses; then the inequality is decided by balls too, so a pass is a proof for that number. Each number
 * is judged again off by twice its stated error, and must then be rejected. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <criterion/criterion.h>
#include <criterion/parameterized.h>

#include "reference/arb_attention.h"
#include "reference/audit/tensor_file.h"
#include "reference/judge_oracle.h"

enum { FIRST_BITS = 256, LAST_BITS = 16384 };

struct tally {
    int64_t count, wrong, unbounded, accepted_mutants;
    double share;
};

/* What has been found of a case at one precision. */
struct judgement {
    struct tally tally[REF_NUM_TENSORS];
    bool all_small; /* every ball is small enough to decide and to tell the share */
};

static void judge(struct judgement *j, enum ref_tensor tensor, double value, const arb_t exact, double error)
{
    struct tally *t = &j->tally[tensor];
    ++t->count;
    if (error == INFINITY && !isnan(value)) {
        ++t->unbounded;
        return;
    }
    if (!isfinite(value) || !(error >= 0)) {
        ++t->wrong;
        return;
    }
    if (!ball_is_small(exact, error)) j->all_small = false;
    const double share = ball_share(value, exact, error);
    if (!(share <= 1)) ++t->wrong;
    if (!(share <= t->share)) t->share = share;
    for (int sign = -1; sign <= 1; sign += 2)
        if (ball_share(judge_mutant(value, error, sign), exact, error) <= 1) ++t->accepted_mutants;
}


/* One evaluation of a case: `definition` is what the balls compute, the problem itself but for the tests that must
 * see a wrong one rejected. Sums over rows are collected in arrays laid out as the oracle's. */
struct evaluation {
    const struct attest_problem *p, *definition;
    const struct attest_backward_args *a;
    const struct judge_oracle *oracle;
    slong bits;
    arb_ptr sums[REF_NUM_TENSORS]; /* of dk, dv, dbias, dsink */
    struct judgement *judgement;
};

static void add_row(const struct evaluation *e, const struct ball_row *row, int64_t first_k)
{
    const struct attest_problem *p = e->definition;
    const int64_t h_kv = row->h / (p->num_heads_q / p->num_heads_kv);
    for (int64_t c = 0; c < row->num_keys; ++c) {
        const int64_t key = (first_k + c) * p->num_heads_kv + h_kv;
        for (int64_t x = 0; x < p->head_dim; ++x)
            ball_add_dk(p, &e->a->forward, row, c, x, e->bits, e->sums[REF_DK] + key * p->head_dim + x);
        for (int64_t x = 0; x < p->head_dim_v; ++x)
            ball_add_dv(p, e->a, row, c, x, e->bits, e->sums[REF_DV] + key * p->head_dim_v + x);
        if (e->p->dbias.dtype != ATTEST_ABSENT && row->visible[c]) {
            arb_ptr sum = e->sums[REF_DBIAS] + judge_dbias_index(e->p, row->b, row->h, row->r, c);
            arb_add(sum, sum, row->dx + c, e->bits);
        }
    }
    if (e->p->has_sink) arb_add(e->sums[REF_DSINK] + row->h, e->sums[REF_DSINK] + row->h, row->dsink, e->bits);
}

static void judge_one(const struct evaluation *e, enum ref_tensor tensor, int64_t index, const arb_t exact)
{
    judge(e->judgement, tensor, e->oracle->value[tensor][index], exact, e->oracle->error[tensor][index]);
}

/* An empty row: lse = -inf and exact zeros. */
static void judge_empty(const struct evaluation *e, int64_t row_index)
{
    const struct attest_problem *p = e->p;
    double *const *value = e->oracle->value;
    struct tally *const tally = e->judgement->tally;
    tally[REF_LSE].wrong += value[REF_LSE][row_index] != -INFINITY;
    for (int64_t x = 0; x < p->head_dim_v; ++x) tally[REF_O].wrong += value[REF_O][row_index * p->head_dim_v + x] != 0;
    for (int64_t x = 0; x < p->head_dim; ++x) tally[REF_DQ].wrong += value[REF_DQ][row_index * p->head_dim + x] != 0;
}

static void judge_row(const struct evaluation *e, int64_t b, int64_t h, int64_t r, int64_t first_q, int64_t first_k)
{
    const struct attest_problem *p = e->definition;
    const int64_t index = (first_q + r) * p->num_heads_q + h;
    struct ball_row row;
    arb_t exact;
    arb_init(exact);
    ball_forward(p, &e->a->forward, b, h, r, e->bits, &row);
    if (row.empty) judge_empty(e, index);
    else {
        judge_one(e, REF_LSE, index, row.lse);
        for (int64_t x = 0; x < p->head_dim_v; ++x) {
            ball_o(p, &e->a->forward, &row, x, e->bits, exact);
            judge_one(e, REF_O, index * p->head_dim_v + x, exact);
        }
        ball_backward(p, e->a, e->bits, &row);
        for (int64_t x = 0; x < p->head_dim; ++x) {
            ball_dq(p, &e->a->forward, &row, x, e->bits, exact);
            judge_one(e, REF_DQ, index * p->head_dim + x, exact);
        }
        add_row(e, &row, first_k);
    }
    arb_clear(exact);
    ball_row_clear(&row);
}

/* Rows in canonical order that belong to no sequence are NaN, all `width` numbers of them. */
static int64_t count_not_nan(const double *row, int64_t width)
{
    int64_t count = 0;
    for (int64_t x = 0; x < width; ++x) count += !isnan(row[x]);
    return count;
}

static void judge_no_sequence(const struct evaluation *e)
{
    const struct attest_problem *p = e->p;
    const struct attest_forward_args *f = &e->a->forward;
    const int64_t width_q[] = {[REF_O] = p->num_heads_q * p->head_dim_v, [REF_LSE] = p->num_heads_q,
                               [REF_DQ] = p->num_heads_q * p->head_dim};
    const int64_t width_k[] = {[REF_DK] = p->num_heads_kv * p->head_dim, [REF_DV] = p->num_heads_kv * p->head_dim_v};
    for (int64_t i = 0; p->ragged && i < p->total_q; ++i)
        for (int t = REF_O; t <= REF_DQ && (i < f->cu_seqlens_q[0] || i >= f->cu_seqlens_q[p->batch]); ++t)
            e->judgement->tally[t].wrong += count_not_nan(e->oracle->value[t] + i * width_q[t], width_q[t]);
    for (int64_t i = 0; p->ragged && i < p->total_k; ++i)
        for (int t = REF_DK; t <= REF_DV && (i < f->cu_seqlens_k[0] || i >= f->cu_seqlens_k[p->batch]); ++t)
            e->judgement->tally[t].wrong += count_not_nan(e->oracle->value[t] + i * width_k[t], width_k[t]);
}

static void judge_sequence(const struct evaluation *e, int64_t b)
{
    const struct attest_problem *p = e->p;
    const struct ball_rows q = ball_rows_q(p, &e->a->forward, b), k = ball_rows_k(p, &e->a->forward, b);
    const int64_t first_q = p->ragged ? q.first : b * p->seqlen_q, first_k = p->ragged ? k.first : b * p->seqlen_k;
    for (int64_t h = 0; h < p->num_heads_q; ++h) {
        for (int64_t r = 0; r < q.used; ++r) judge_row(e, b, h, r, first_q, first_k);
        for (int64_t r = q.used; r < q.rows; ++r) judge_empty(e, (first_q + r) * p->num_heads_q + h);
    }
    const int64_t width[] = {[REF_DK] = p->num_heads_kv * p->head_dim, [REF_DV] = p->num_heads_kv * p->head_dim_v};
    for (int t = REF_DK; t <= REF_DV; ++t)
        for (int64_t i = first_k * width[t]; i < (first_k + k.rows) * width[t]; ++i)
            judge_one(e, t, i, e->sums[t] + i);
}

static void evaluate(struct evaluation *e)
{
    *e->judgement = (struct judgement){.all_small = true};
    for (int t = REF_DK; t < REF_NUM_TENSORS; ++t) e->sums[t] = _arb_vec_init(judge_tensor_size(e->p, t));
    for (int64_t b = 0; b < e->p->batch; ++b) judge_sequence(e, b);
    for (int t = REF_DBIAS; t <= REF_DSINK; ++t)
        for (int64_t i = 0; i < judge_tensor_size(e->p, t); ++i) judge_one(e, t, i, e->sums[t] + i);
    judge_no_sequence(e);
    for (int t = REF_DK; t < REF_NUM_TENSORS; ++t) _arb_vec_clear(e->sums[t], judge_tensor_size(e->p, t));
}

static void judge_whole(const struct attest_problem *p, const struct attest_problem *definition,
                        const struct attest_backward_args *a, const struct judge_oracle *oracle,
                        struct judgement *judgement)
{
    struct evaluation e = {p, definition, a, oracle, FIRST_BITS, {0}, judgement};
    for (evaluate(&e); !judgement->all_small && e.bits < LAST_BITS; evaluate(&e)) e.bits *= 2;
}

static void add_tallies(struct tally *total, const struct judgement *judgement)
{
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        const struct tally *one = &judgement->tally[t];
        total[t].count += one->count;
        total[t].wrong += one->wrong;
        total[t].unbounded += one->unbounded;
        total[t].accepted_mutants += one->accepted_mutants;
        if (!(one->share <= total[t].share)) total[t].share = one->share;
    }
}

/* The largest share of the stated error, by tensor; the numbers judged; those whose error is not bounded. */
static void report(const char *name, const struct tally *total)
{
    int64_t count = 0, unbounded = 0, wrong = 0, accepted = 0;
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        count += total[t].count, unbounded += total[t].unbounded;
        wrong += total[t].wrong, accepted += total[t].accepted_mutants;
    }
    printf("%-10s %9lld numbers, %lld unbounded; largest shares:", name, (long long)count, (long long)unbounded);
    for (int t = 0; t < REF_NUM_TENSORS; ++t) printf("  %s %.2g", ref_tensor_names[t], total[t].share);
    printf("\n");
    fflush(stdout);
    cr_assert_gt(count, 0);
    cr_expect_eq(wrong, 0, "%s: %lld numbers of the oracle are not within its stated error", name, (long long)wrong);
    cr_expect_eq(accepted, 0, "%s: %lld perturbed numbers were accepted", name, (long long)accepted);
}

enum { SMALL_CASES = 2000, LONG_CASES = 20 };

static void judge_one_case(enum judge_family family, enum judge_size size, uint64_t seed, struct tally *total)
{
    struct judge_case c;
    struct judge_oracle oracle;
    struct judgement judgement;
    judge_random_case(&c, &oracle, family, size, seed);
    judge_whole(&c.problem, &c.problem, &c.args, &oracle, &judgement);
    cr_expect(judgement.all_small, "%s, seed %llu: balls stay too wide", judge_family_names[family],
              (unsigned long long)seed);
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        cr_expect_eq(judgement.tally[t].wrong, 0, "%s %s, seed %llu: %lld wrong of %lld", judge_family_names[family],
                     ref_tensor_names[t], (unsigned long long)seed, (long long)judgement.tally[t].wrong,
                     (long long)judgement.tally[t].count);
    add_tallies(total, &judgement);
    judge_oracle_clear(&oracle);
    judge_case_clear(&c);
}

ParameterizedTestParameters(arb, every_number_is_within_the_stated_error)
{
    static int families[JUDGE_NUM_FAMILIES];
    for (int i = 0; i < JUDGE_NUM_FAMILIES; ++i) families[i] = i;
    return cr_make_param_array(int, families, JUDGE_NUM_FAMILIES);
}

ParameterizedTest(int *family, arb, every_number_is_within_the_stated_error)
{
    struct tally total[REF_NUM_TENSORS] = {{0}};
    for (uint64_t seed = 0; seed < SMALL_CASES; ++seed) judge_one_case(*family, JUDGE_SMALL, seed, total);
    for (uint64_t seed = 1; seed <= LONG_CASES; ++seed) judge_one_case(*family, JUDGE_LONG, seed, total);
    report(judge_family_names[*family], total);
}

/* `rows` queries from `first` on against all keys up to the last of them, one head of the recorded layer. */
static void judge_recorded(const struct tensor_file *file, int64_t h, int64_t first, int64_t rows, struct tally *total)
{
    const struct tensor *q = tensor_file_find(file, "q"), *k = tensor_file_find(file, "k");
    const struct tensor *v = tensor_file_find(file, "v"), *dout = tensor_file_find(file, "do");
    cr_assert(q && k && v && dout && q->ndim >= 3 && q->dtype == ATTEST_BF16);
    const int64_t heads = q->shape[q->ndim - 2], head_dim = q->shape[q->ndim - 1], row = heads * head_dim;
    const struct attest_tensor strided = {.dtype = ATTEST_BF16, .seqlen = row};
    const struct attest_tensor packed = {.dtype = ATTEST_FP32, .seqlen = head_dim};
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    struct judge_oracle oracle;
    struct judgement judgement;
    p.device = ATTEST_REFERENCE;
    p.batch = p.num_heads_q = p.num_heads_kv = 1;
    p.seqlen_q = rows, p.seqlen_k = first + rows;
    p.head_dim = p.head_dim_v = head_dim;
    p.q = p.k = p.v = p.dout = strided;
    p.o = p.dq = p.dk = p.dv = packed;
    p.lse = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 1};
    p.softmax_scale = 0.125F, p.window_right = 0;
    p.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    const uint16_t *const at_q = q->data, *const at_k = k->data, *const at_v = v->data, *const at_dout = dout->data;
    a.forward.q = at_q + first * row + h * head_dim;
    a.forward.k = at_k + h * head_dim;
    a.forward.v = at_v + h * head_dim;
    a.dout = at_dout + first * row + h * head_dim;
    judge_oracle_init(&oracle, &p, &a);
    judge_whole(&p, &p, &a, &oracle, &judgement);
    cr_expect(judgement.all_small, "head %lld: balls stay too wide", (long long)h);
    add_tallies(total, &judgement);
    judge_oracle_clear(&oracle);
}

Test(arb, every_number_of_a_recorded_layer_is_within_the_stated_error)
{
    struct tally total[REF_NUM_TENSORS] = {{0}};
    struct tensor_file *file;
    char sentence[200];
    const char *const path = "reference/audit/demo/gpt-layer01.safetensors";
    cr_assert_eq(tensor_file_open(path, &file, sentence, sizeof sentence), 0, "%s", sentence);
    judge_recorded(file, 0, 0, 64, total);
    judge_recorded(file, 3, 480, 32, total);
    judge_recorded(file, 7, 255, 8, total);
    report("recorded", total);
    tensor_file_close(file);
}

/* A definition that is wrong by the least it can be, in one respect. False where the problem has no such feature. */
static bool change(struct attest_problem *p, const struct attest_backward_args *a, int what)
{
    switch (what) {
    case 0: return p->softmax_scale = nextafterf(p->softmax_scale, 4), true;
    case 1: return p->softcap > 0 ? (p->softcap = nextafterf(p->softcap, 0), true) : false;
    case 2: return p->window_left >= 0 ? (++p->window_left, true) : false;
    case 3: return p->window_right >= 0 ? (++p->window_right, true) : false;
    case 4: return p->diag_kind == ATTEST_DIAG_GIVEN ? (++p->diag, true) : false;
    case 5: return p->has_alibi && p->alibi_diag_kind == ATTEST_DIAG_GIVEN ? (++p->alibi_diag, true) : false;
    case 6: return p->has_alibi ? (p->has_alibi = 0, true) : false;
    case 7: return p->has_sink ? (p->has_sink = 0, true) : false;
    case 8: return p->mask.dtype ? (p->mask.dtype = ATTEST_ABSENT, true) : false;
    case 9: return p->block_mask.dtype ? (p->block_mask.dtype = ATTEST_ABSENT, true) : false;
    case 10: return p->dlse.dtype ? (p->dlse.dtype = ATTEST_ABSENT, true) : false;
    case 11: return p->dropout_p > 0 && !a->forward.dropout_seed ? (++p->dropout_seed, true) : false;
    case 12: return p->dropout_p > 0 && !a->forward.dropout_offset ? (++p->dropout_offset, true) : false;
    case 13: return p->dropout_p > 0 ? (++p->k_start, true) : false;
    case 14: return p->external_lse ? (p->external_lse = 0, true) : false;
    default: return false;
    }
}
enum { NUM_CHANGES = 15 };
static const char *const change_names[NUM_CHANGES] = {
    "scale one ulp up", "softcap one ulp down", "window_left + 1", "window_right + 1", "diag + 1",
    "alibi_diag + 1",   "no ALiBi",             "no sink",         "no mask",          "no block mask",
    "no dlse",          "seed + 1",             "offset + 1",      "k_start + 1",      "own lse and delta",
};

Test(arb, a_wrong_definition_is_rejected)
{
    int tried[NUM_CHANGES] = {0}, rejected[NUM_CHANGES] = {0};
    for (uint64_t seed = 0; seed < 100; ++seed) {
        struct judge_case c;
        struct judge_oracle oracle;
        struct judgement judgement;
        judge_random_case(&c, &oracle, JUDGE_NORMAL, JUDGE_SMALL, seed);
        for (int what = 0; what < NUM_CHANGES; ++what) {
            struct attest_problem definition = c.problem;
            if (!change(&definition, &c.args, what)) continue;
            judge_whole(&c.problem, &definition, &c.args, &oracle, &judgement);
            int64_t wrong = 0;
            for (int t = 0; t < REF_NUM_TENSORS; ++t) wrong += judgement.tally[t].wrong;
            ++tried[what];
            rejected[what] += wrong > 0;
        }
        judge_oracle_clear(&oracle);
        judge_case_clear(&c);
    }
    for (int what = 0; what < NUM_CHANGES; ++what) {
        printf("%-20s  seen in %d of %d cases\n", change_names[what], rejected[what], tried[what]);
        cr_expect_gt(rejected[what], 0, "%s is never seen", change_names[what]);
    }
}

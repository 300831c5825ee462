/* sample.c - some rows of every head, drawn from a seed, each judged by the bounds that it has among all rows.
 *
 * A run of rows is a problem of its own: its rows keep their indices by q_start, the diagonal and dropout's streams are
 * the whole's. dk, dv, dbias and dsink sum over all rows and are left out. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/judgement.h"
#include "reference/formats.h"

enum { RUN = 32 }; /* rows of a run: the bounds' blocks */

static const void *moved(const void *data, int32_t dtype, int64_t elements)
{
    return data != NULL ? (const char *)data + elements * (int64_t)tensor_dtype_bytes(dtype) : NULL;
}

static int64_t start_of(const struct attest_tensor *t, const struct run *r)
{
    return r->b * t->batch + r->first * t->seqlen;
}

static void move_scores(const struct attest_score_tensor *t, const struct run *r, int64_t rows, const void **data)
{
    if (t->dtype != ATTEST_ABSENT) *data = moved(*data, t->dtype, r->b * t->batch + rows * t->seqlen_q);
}

struct attest_problem problem_of_run(const struct attest_problem *whole, struct run *r,
                                     struct attest_backward_args *args)
{
    struct attest_problem p = *whole;
    struct attest_forward_args *a = &args->forward;
    const struct ref_sequence s = ref_sequence(whole, a, r->b);
    p.batch = 1;
    p.seqlen_q = r->rows;
    p.q_start += r->first;
    p.diag_kind = p.alibi_diag_kind = ATTEST_DIAG_GIVEN;
    p.diag = s.diag;
    p.alibi_diag = s.alibi_diag;
    p.dbias = (struct attest_score_tensor){.dtype = ATTEST_ABSENT};
    a->q = moved(a->q, p.q.dtype, start_of(&p.q, r));
    a->k = moved(a->k, p.k.dtype, r->b * p.k.batch);
    a->v = moved(a->v, p.v.dtype, r->b * p.v.batch);
    args->dout = moved(args->dout, p.dout.dtype, start_of(&p.dout, r));
    args->dlse = moved(args->dlse, p.dlse.dtype, start_of(&p.dlse, r));
    move_scores(&p.bias, r, r->first, &a->bias);
    move_scores(&p.mask, r, r->first, (const void **)&a->mask);
    if (p.block_mask.dtype != ATTEST_ABSENT)
        move_scores(&p.block_mask, r, r->first / p.block_q, (const void **)&a->block_mask);
    const int64_t used = s.seqlen_q - r->first;
    r->used_q = (int32_t)(used < 0 ? 0 : used < r->rows ? used : r->rows);
    r->used_k = (int32_t)s.seqlen_k;
    if (p.has_seqused_q) a->seqused_q = &r->used_q;
    if (p.has_seqused_k) a->seqused_k = &r->used_k;
    if (p.dropout_p > 0) {
        r->streams = allocate((size_t)p.num_heads_q, sizeof *r->streams);
        for (int64_t h = 0; h < p.num_heads_q; ++h) r->streams[h] = r->b * p.num_heads_q + h;
        a->dropout_stream = r->streams;
    }
    return p;
}

struct answer answer_of_run(const struct answer *whole, const struct attest_problem *p, const struct run *r)
{
    struct answer a = *whole;
    const struct attest_tensor *const tensors[] = {&whole->problem.o, &whole->problem.lse, &whole->problem.dq};
    a.problem = *p;
    for (int t = 0; t < CASE_NUM_TENSORS; ++t)
        a.got[t] = t <= REF_DQ ? moved(whole->got[t], tensors[t]->dtype, start_of(tensors[t], r)) : NULL;
    return a;
}

/* ---- what runs say together ---- */

static double joined(double a, int64_t count_a, double b, int64_t count_b)
{
    return count_a + count_b == 0
               ? 0
               : sqrt((a * a * (double)count_a + b * b * (double)count_b) / (double)(count_a + count_b));
}

static void join(struct ref_report *to, const struct ref_report *from, const struct run *r)
{
    const struct ref_report before = *to;
    const double size = fmax(1, (double)(before.count + from->count));
    if (before.count == 0 || !(from->use <= before.use)) {
        *to = *from;
        to->use_index[0] = r->b;
        to->use_index[1] += r->first;
    }
    const double own = from->relative_error > 0 ? from->rmse / from->relative_error : from->rms_oracle;
    const double others = before.relative_error > 0 ? before.rmse / before.relative_error : before.rms_oracle;
    to->count = before.count + from->count;
    to->max_error = fmax(before.max_error, from->max_error);
    to->rmse = joined(before.rmse, before.count, from->rmse, from->count);
    to->mean_error = (before.mean_error * (double)before.count + from->mean_error * (double)from->count) / size;
    const double norm = joined(others, before.count, own, from->count);
    to->relative_error = norm > 0 ? to->rmse / norm : 0;
    to->nan_count = before.nan_count + from->nan_count;
    to->overflow_count = before.overflow_count + from->overflow_count;
    to->rms_bound = joined(before.rms_bound, before.count, from->rms_bound, from->count);
    to->rms_oracle = joined(before.rms_oracle, before.count, from->rms_oracle, from->count);
    const bool fails = (before.count > 0 && before.verdict == REF_FAIL) || from->verdict == REF_FAIL;
    to->verdict = fails                            ? REF_FAIL
                  : to->overflow_count > 0         ? REF_OVERFLOW
                  : to->rms_bound > to->rms_oracle ? REF_VACUOUS
                                                   : REF_PASS;
}

/* Whether the runs so far have shown that no tensor is of the recipe. */
static bool is_refuted(const struct judgement *j, int recipe)
{
    for (int t = 0; t <= REF_DQ; ++t)
        if (j->tensors[t].present && j->tensors[t].reason == NULL && j->tensors[t].reports[recipe].use <= 1)
            return false;
    return true;
}

static void judge_run(const struct audit *audit, struct judgement *j, struct run *r, bool is_first,
                      struct convention *c)
{
    struct evaluations all = {.args = audit->problem->args, .threads = audit->options->threads, .rows_only = true};
    const struct attest_problem p = problem_of_run(&j->answer->problem, r, &all.args);
    const struct answer a = answer_of_run(j->answer, &p, r);
    struct judgement of_run = {.answer = &a};
    judging_assume(&all, c, &of_run);
    judging_present(&of_run);
    judging_compare(&all, audit, audit->recipe, false, REF_O, REF_DQ, &of_run);
    if (is_first && judging_exceeds_bounds(audit, &of_run) && !audit->options->strict) {
        judging_take_verdicts(audit, &of_run);
        *c = judging_infer(&all, audit, &of_run);
        judging_assume(&all, c, &of_run);
        judging_present(&of_run);
        judging_compare(&all, audit, audit->recipe, false, REF_O, REF_DQ, &of_run);
    }
    for (int recipe = 0; recipe <= REF_RECIPE_MIXED; ++recipe)
        if (judging_is_stricter(recipe, audit->recipe) && (is_first || !is_refuted(j, recipe)))
            judging_compare(&all, audit, recipe, false, REF_O, REF_DQ, &of_run);
    for (int t = 0; t <= REF_DQ; ++t) {
        struct judged_tensor *to = &j->tensors[t];
        to->present = of_run.tensors[t].present;
        to->reason = of_run.tensors[t].reason;
        to->verdict = of_run.tensors[t].verdict;
        for (int recipe = 0; recipe < MAX_RECIPES && to->present && to->reason == NULL; ++recipe)
            if (of_run.recipes[recipe]) join(&to->reports[recipe], &of_run.tensors[t].reports[recipe], r);
    }
    if (is_first) memcpy(j->recipes, of_run.recipes, sizeof j->recipes);
    j->plus_inf_count += of_run.plus_inf_count;
    judgement_free(&of_run);
    evaluations_free(&all);
    free(r->streams);
}

/* ---- the draw ---- */

static uint64_t draw(uint64_t *state)
{
    uint64_t x = *state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

int64_t sample_run_rows(const struct attest_problem *p)
{
    return p->block_q > 0 ? (RUN + p->block_q - 1) / p->block_q * p->block_q : RUN;
}

/* Runs of which no two overlap: the first of a shuffle. Blocks of a mask begin where runs do. */
static struct run *draw_runs(const struct attest_problem *p, int64_t rows, int64_t seed, int64_t *count)
{
    const int64_t length = sample_run_rows(p);
    const int64_t of_sequence = (p->seqlen_q + length - 1) / length, all = of_sequence * p->batch;
    struct run *runs = allocate((size_t)all, sizeof *runs);
    uint64_t state = (uint64_t)seed;
    for (int64_t i = 0; i < all; ++i) {
        runs[i] = (struct run){.b = i / of_sequence, .first = i % of_sequence * length, .rows = length};
        if (runs[i].first + length > p->seqlen_q) runs[i].rows = p->seqlen_q - runs[i].first;
    }
    *count = (rows + length - 1) / length < all ? (rows + length - 1) / length : all;
    for (int64_t i = 0; i < *count; ++i) {
        const int64_t other = i + (int64_t)(draw(&state) % (uint64_t)(all - i));
        const struct run held = runs[i];
        runs[i] = runs[other];
        runs[other] = held;
    }
    return runs;
}

static void leave_out_sums(struct judgement *j)
{
    char names[64] = "";
    for (int t = REF_DK; t < CASE_NUM_TENSORS; ++t)
        if (j->answer->got[t] != NULL)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", names[0] != '\0' ? ", " : "",
                     ref_tensor_names[t]);
    if (names[0] != '\0')
        note(&j->notes, "'%s': %s sum over all rows and are not judged by a sample", j->answer->name, names);
}

struct convention judge_sample(const struct audit *audit, const struct answer *a, struct judgement *j)
{
    struct convention c = {.alibi = ALIBI_CONTRACT};
    const struct attest_problem *p = &a->problem;
    int64_t count, rows = 0;
    if (p->ragged) {
        j->tensors[REF_O] = (struct judged_tensor){.present = true, .verdict = VERDICT_UNSUPPORTED,
                                                   .reason = "--sample is for batches that are not ragged"};
        return c;
    }
    struct run *runs = draw_runs(p, audit->options->sample, audit->options->sample_seed, &count);
    for (int64_t i = 0; i < count; ++i) {
        rows += runs[i].rows;
        judge_run(audit, j, &runs[i], i == 0, &c);
    }
    free(runs);
    j->convention = c;
    judging_take_verdicts(audit, j);
    note(&j->notes, "'%s': a sample of %lld rows of every head, in runs of %d, drawn from seed %lld", a->name,
         (long long)rows, RUN, (long long)audit->options->sample_seed);
    leave_out_sums(j);
    return c;
}

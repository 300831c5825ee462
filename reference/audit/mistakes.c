/* mistakes.c - see mistakes.h. The table of mistakes is at the end of the alternatives. */
#include "reference/audit/mistakes.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"

enum { NUM_OWNED = 2 };
static const double small_problem = 0x1p16, large_problem = 0x1p22; /* scores */

/* A part of the problem, and what was returned of it. An alternative changes problem and arguments. */
struct trial {
    struct attest_problem p;
    struct attest_backward_args args;
    struct answer answer;
    int64_t corners[2]; /* the diagonals at top-left and bottom-right */
    void *owned[NUM_OWNED];
};

/* ---- alternatives: false where they change nothing, or cannot be known ---- */

static int64_t broadcast(int64_t stride, int64_t count)
{
    return stride != 0 ? count : 1;
}

/* The opposite of every number, packed where it was broadcast too. */
static bool reverse_mask(struct trial *t, double unused)
{
    (void)unused;
    struct attest_problem *p = &t->p;
    struct attest_score_tensor *m = &p->mask;
    if (m->dtype == ATTEST_ABSENT) return false;
    const int64_t b = broadcast(m->batch, p->batch), h = broadcast(m->head, p->num_heads_q),
                  r = broadcast(m->seqlen_q, p->seqlen_q), c = broadcast(m->seqlen_k, p->seqlen_k);
    uint8_t *mask = t->owned[0] = allocate((size_t)(b * h * r * c), 1);
    for (int64_t i = 0; i < b * h * r * c; ++i) {
        const int64_t at = ref_score_offset(m, i / (h * r * c), i / (r * c) % h, i / c % r, i % c);
        mask[i] = ((const uint8_t *)t->args.forward.mask)[at] == 0;
    }
    *m = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .batch = b > 1 ? h * r * c : 0, .head = h > 1 ? r * c : 0,
                                      .seqlen_q = r > 1 ? c : 0, .seqlen_k = c > 1 ? 1 : 0};
    t->args.forward.mask = mask;
    return true;
}

/* States the diagonal as a number, where all sequences have the same. */
static bool give_diagonal(struct trial *t, int64_t *diag)
{
    struct attest_problem *p = &t->p;
    if (p->batch < 1 || (p->batch > 1 && (p->ragged || p->has_seqused_q || p->has_seqused_k))) return false;
    const struct ref_sequence s = ref_sequence(p, &t->args.forward, 0);
    p->diag_kind = p->alibi_diag_kind = ATTEST_DIAG_GIVEN;
    *diag = p->diag = s.diag;
    p->alibi_diag = s.alibi_diag;
    return true;
}

static bool move_left(struct trial *t, double step)
{
    struct attest_problem *p = &t->p;
    if (p->window_left < 0 || p->window_left + (int64_t)step < 0) return false;
    p->window_left += (int64_t)step;
    return true;
}

/* Without its own key a causal row sees what the row before it does. */
static bool move_right(struct trial *t, double step)
{
    struct attest_problem *p = &t->p;
    int64_t diag;
    if (p->window_right < 0) return false;
    p->window_right += (int64_t)step;
    if (p->window_right >= 0) return true;
    if (p->window_left == 0 || !give_diagonal(t, &diag)) return false;
    p->window_right = 0;
    p->window_left -= p->window_left > 0;
    p->diag = diag - 1;
    return true;
}

static bool other_corner(struct trial *t, double corner)
{
    struct attest_problem *p = &t->p;
    int64_t diag;
    if ((p->window_left < 0 && p->window_right < 0) || !give_diagonal(t, &diag)) return false;
    p->diag = t->corners[(int)corner];
    return p->diag != diag;
}

static bool set_scale(struct trial *t, double scale)
{
    const float other = (float)scale;
    if (other == t->p.softmax_scale) return false;
    t->p.softmax_scale = other;
    return true;
}

static bool leave_out_scale(struct trial *t, double unused)
{
    (void)unused;
    return set_scale(t, 1);
}

static bool square_scale(struct trial *t, double unused)
{
    (void)unused;
    return set_scale(t, (double)t->p.softmax_scale * (double)t->p.softmax_scale);
}

static bool default_scale(struct trial *t, double unused)
{
    (void)unused;
    return set_scale(t, 1 / sqrt((double)t->p.head_dim));
}

static bool leave_out_cap(struct trial *t, double unused)
{
    (void)unused;
    const bool capped = t->p.softcap > 0;
    t->p.softcap = 0;
    return capped;
}

/* One row of the bias that makes cap tanh((s + bias) / cap) of the contract's t. */
static void cap_row(const struct trial *t, const struct ref_sequence *sequence, const int64_t at[3], double *scores,
                    float *bias)
{
    const struct attest_problem *p = &t->p;
    const struct attest_forward_args *a = &t->args.forward;
    double *s = scores, *capped = scores + p->seqlen_k;
    ref_score_row(p, a, sequence, at[0], at[1], at[2], &(struct ref_row){.s = s, .t = capped});
    for (int64_t c = 0; c < p->seqlen_k; ++c) {
        bias[c] = -INFINITY;
        if (!ref_visible(p, a, sequence, at[0], at[1], at[2], c)) continue;
        const double added = ref_load(p->bias.dtype, a->bias, ref_score_offset(&p->bias, at[0], at[1], at[2], c));
        bias[c] = (float)(p->softcap * tanh((s[c] + added) / p->softcap) - capped[c]);
    }
}

static bool cap_after_bias(struct trial *t, double unused)
{
    (void)unused;
    struct attest_problem *p = &t->p;
    if (!(p->softcap > 0) || p->bias.dtype == ATTEST_ABSENT || p->has_alibi || p->ragged) return false;
    const int64_t row = p->seqlen_k, head = p->seqlen_q * row, batch = p->num_heads_q * head;
    float *bias = t->owned[0] = allocate((size_t)(p->batch * batch), sizeof *bias);
    double *scores = t->owned[1] = allocate((size_t)(2 * row), sizeof *scores);
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &t->args.forward, b);
        for (int64_t i = 0; i < p->num_heads_q * p->seqlen_q; ++i)
            cap_row(t, &s, (const int64_t[]){b, i / p->seqlen_q, i % p->seqlen_q}, scores, bias + b * batch + i * row);
    }
    p->bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .batch = batch, .head = head, .seqlen_q = row,
                                           .seqlen_k = 1};
    t->args.forward.bias = bias;
    return true;
}

/* A head of its own for each query head, which is the one that tiling gives it. */
static void *tiled(const struct trial *t, const void *from, struct attest_tensor *layout, int64_t dim)
{
    const struct attest_problem *p = &t->p;
    const size_t bytes = ref_dtype_bytes(layout->dtype);
    const struct attest_tensor old = *layout;
    const int64_t rows = ref_rows_k(p);
    char *to = allocate((size_t)(rows * p->num_heads_q * dim), bytes);
    *layout = (struct attest_tensor){.dtype = old.dtype, .batch = p->seqlen_k * p->num_heads_q * dim,
                                     .seqlen = p->num_heads_q * dim, .head = dim};
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &t->args.forward, b);
        for (int64_t i = 0; i < s.rows_k * p->num_heads_q; ++i) {
            const int64_t r = i / p->num_heads_q, h = i % p->num_heads_q;
            memcpy(to + (size_t)ref_row_offset(p, layout, &s, true, b, r, h) * bytes,
                   (const char *)from + (size_t)ref_row_offset(p, &old, &s, true, b, r, h % p->num_heads_kv) * bytes,
                   (size_t)dim * bytes);
        }
    }
    return to;
}

static bool tile_heads(struct trial *t, double unused)
{
    (void)unused;
    struct attest_problem *p = &t->p;
    if (p->num_heads_kv == 1 || p->num_heads_kv == p->num_heads_q) return false;
    t->args.forward.k = t->owned[0] = tiled(t, t->args.forward.k, &p->k, p->head_dim);
    t->args.forward.v = t->owned[1] = tiled(t, t->args.forward.v, &p->v, p->head_dim_v);
    p->num_heads_kv = p->num_heads_q;
    t->answer.got[REF_DK] = t->answer.got[REF_DV] = NULL; /* sums over other heads than the oracle's */
    return true;
}

static const struct mistake {
    bool (*apply)(struct trial *t, double argument);
    double argument;
    bool forward_only;
    const char *what, *change; /* "o, lse are what ... gives": and what to change */
} mistakes[] = {
    {other_corner, 0, false, "a mask whose diagonal is at top-left", "begin it where stated, or state --diag top-left"},
    {other_corner, 1, false, "a mask whose diagonal is at bottom-right",
     "begin it where stated, or state --diag bottom-right"},
    {reverse_mask, 0, false, "a mask read the other way round", "nonzero is visible: hand over its opposite"},
    {move_left, -1, false, "a window of one key less at the left", "make its left side one larger"},
    {move_left, 1, false, "a window of one key more at the left", "make its left side one smaller"},
    {move_right, -1, false, "a window of one key less at the right", "let a row see that key, as its own if causal"},
    {move_right, 1, false, "a window of one key more at the right", "hide that key, the next one if causal"},
    {leave_out_scale, 0, false, "a softmax_scale that is left out", "multiply q k^T by it"},
    {square_scale, 0, false, "softmax_scale squared", "multiply by it once, q or the scores"},
    {default_scale, 0, false, "a softmax_scale of 1/sqrt(head_dim)", "multiply by the one that is stated"},
    {leave_out_cap, 0, false, "a softcap that is left out", "cap them, and in the backward pass its derivative"},
    {cap_after_bias, 0, true, "a softcap after the bias", "cap scores first, then add the bias"},
    {tile_heads, 0, false, "tiling KV heads instead of repeating them",
     "query head h reads KV head h / (heads / KV heads), as repeat_interleave has it, not h modulo KV heads"},
};

/* ---- trials ---- */

static bool is_wrong(const struct audit *audit, const struct judgement *j, int t)
{
    const struct judged_tensor *judged = &j->tensors[t];
    return judged->present && judged->verdict == VERDICT_FAIL && !(judged->reports[audit->recipe].use <= 1);
}

static bool any_wrong(const struct audit *audit, const struct judgement *j, int first, int last)
{
    for (int t = first; t <= last; ++t)
        if (is_wrong(audit, j, t)) return true;
    return false;
}

static double num_scores(const struct attest_problem *p)
{
    const double q = (double)(p->ragged ? p->total_q : p->batch * p->seqlen_q);
    return q * (double)p->seqlen_k * (double)p->num_heads_q;
}

/* What is tried: the run of 32 rows with the worst number, or the whole. */
struct scene {
    const struct audit *audit;
    const struct judgement *j;
    struct trial whole;
    struct run run;
    bool is_whole;
};

static void find_corners(struct trial *t, int64_t b)
{
    struct attest_problem p = t->p;
    for (int corner = 0; corner < 2; ++corner) {
        p.diag_kind = corner == 0 ? ATTEST_DIAG_TOP_LEFT : ATTEST_DIAG_BOTTOM_RIGHT;
        t->corners[corner] = ref_sequence(&p, &t->args.forward, b).diag;
    }
}

static struct scene set_scene(const struct audit *audit, const struct judgement *j)
{
    const struct evaluation *e = j->evaluation;
    struct scene s = {.audit = audit, .j = j};
    s.whole = (struct trial){.p = e != NULL ? e->problem : j->answer->problem,
                             .args = e != NULL ? e->args : audit->problem->args, .answer = *j->answer};
    const struct attest_problem *p = &s.whole.p;
    s.whole.answer.problem = *p;
    if (j->lse != NULL) s.whole.answer.got[REF_LSE] = j->lse;
    const int64_t length = sample_run_rows(p);
    for (int t = REF_DQ; t >= REF_O; --t) { /* o goes before lse, and that before dq */
        if (!is_wrong(audit, j, t)) continue;
        const int64_t *at = j->tensors[t].reports[audit->recipe].use_index;
        s.run = (struct run){.b = at[0], .first = at[1] / length * length, .rows = length};
    }
    if (s.run.rows == 0) s.run.rows = length;
    if (s.run.first + s.run.rows > p->seqlen_q) s.run.rows = p->seqlen_q - s.run.first;
    s.is_whole = p->ragged || num_scores(p) <= small_problem;
    find_corners(&s.whole, s.run.b);
    return s;
}

static struct trial trial_of(struct scene *s, bool whole)
{
    struct trial t = s->whole;
    if (whole) return t;
    t.p = problem_of_run(&s->whole.p, &s->run, &t.args);
    t.answer = answer_of_run(&s->whole.answer, &t.p, &s->run);
    return t;
}

static void end_trial(struct scene *s, struct trial *t)
{
    for (int i = 0; i < NUM_OWNED; ++i) free(t->owned[i]);
    free(s->run.streams);
    s->run.streams = NULL;
}

/* Judges first .. last by bounds alone; the bits of the tensors that fail as stated and pass so. 0 where one of the
 * others does not. */
static unsigned explained(struct scene *s, struct trial *t, int first, int last)
{
    struct evaluations all = {.args = t->args, .threads = s->audit->options->threads};
    struct judgement tried = {.answer = &t->answer};
    const struct convention as_stated = {.alibi = ALIBI_CONTRACT};
    unsigned found = 0;
    bool fits = true;
    if (last <= REF_LSE) t->p.dq.dtype = ATTEST_ABSENT; /* no gradients */
    t->answer.problem = t->p;
    judging_assume(&all, &as_stated, &tried);
    judging_present(&tried);
    judging_compare(&all, s->audit, s->audit->recipe, false, first, last, &tried);
    for (int i = first; i <= last; ++i) {
        const struct judged_tensor *judged = &tried.tensors[i];
        const struct ref_report *r = &judged->reports[s->audit->recipe];
        if (!judged->present || judged->reason != NULL || t->answer.got[i] == NULL) continue;
        const bool wrong = is_wrong(s->audit, s->j, i);
        fits = fits && (wrong ? r->verdict == REF_PASS : r->use <= 1);
        if (wrong) found |= 1u << i;
    }
    judgement_free(&tried);
    evaluations_free(&all);
    return fits ? found : 0;
}

static unsigned try_mistake(struct scene *s, const struct mistake *m, bool whole, int first, int last)
{
    struct trial t = trial_of(s, whole);
    const unsigned found = m->apply(&t, m->argument) ? explained(s, &t, first, last) : 0;
    end_trial(s, &t);
    return found;
}

/* dq's rows are tried alone, before all gradients are, or where these would take too long. */
static unsigned try_gradients(struct scene *s, const struct mistake *m)
{
    const bool small = num_scores(&s->whole.p) <= large_problem, by_rows = is_wrong(s->audit, s->j, REF_DQ);
    if (s->is_whole) return small ? try_mistake(s, m, true, REF_DQ, CASE_NUM_TENSORS - 1) : 0;
    const unsigned dq = by_rows ? try_mistake(s, m, false, REF_DQ, REF_DQ) : 0;
    if (!small || (by_rows && dq == 0)) return dq;
    return try_mistake(s, m, true, REF_DQ, CASE_NUM_TENSORS - 1);
}

/* ---- lse of another kind, and results that are cut off ---- */

/* What an lse would be if it were of that kind; NaN where that cannot be known. */
static double reread(const struct trial *t, int kind, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r,
                     double lse)
{
    if (kind == 0) return lse / M_LN2;
    if (kind == 1) return lse * M_LN2;
    struct ref_row row = {0};
    ref_score_row(&t->p, &t->args.forward, s, b, h, r, &row);
    return lse + row.base + row.max;
}

static bool lse_is_of_kind(const struct trial *t, const struct evaluation *e, int recipe, int kind)
{
    const struct attest_problem *p = &t->p;
    int64_t compared = 0;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &t->args.forward, b);
        for (int64_t i = 0; i < s.seqlen_q * p->num_heads_q; ++i) {
            const int64_t r = i / p->num_heads_q, h = i % p->num_heads_q, at = s.first_q * p->num_heads_q + i;
            const double want = e->oracle[REF_LSE][at];
            const double got = ref_load(ATTEST_FP32, t->answer.got[REF_LSE],
                                        ref_row_offset(p, &p->lse, &s, false, b, r, h));
            if (!isfinite(want)) continue;
            const double read = reread(t, kind, &s, b, h, r, got);
            const double unit = ref_half_ulp(ATTEST_FP32, fmax(fabs(want), fmax(fabs(got), fabs(read - got))));
            if (!(fabs(read - want) <= e->bounds[recipe][REF_LSE].bound[at] + 2 * unit)) return false;
            ++compared;
        }
    }
    return compared >= 4;
}

/* Numbers that are cut off lack half a unit in the last place on average, and never more than a whole one beside what
 * the recipe may lose. */
static bool o_is_cut_off(const struct trial *t, const struct evaluation *e, int recipe)
{
    const struct attest_problem *p = &t->p;
    double lack = 0;
    int64_t compared = 0;
    if (ref_dtype_bytes(p->o.dtype) != 2) return false;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &t->args.forward, b);
        for (int64_t i = 0; i < s.seqlen_q * p->num_heads_q * p->head_dim_v; ++i) {
            const int64_t x = i % p->head_dim_v, h = i / p->head_dim_v % p->num_heads_q;
            const int64_t r = i / p->head_dim_v / p->num_heads_q, at = s.first_q * p->num_heads_q * p->head_dim_v + i;
            const double want = e->oracle[REF_O][at], half = ref_half_ulp(p->o.dtype, fabs(want));
            const double got = ref_load(p->o.dtype, t->answer.got[REF_O],
                                        ref_row_offset(p, &p->o, &s, false, b, r, h) + x);
            if (!(fabs(got - want) <= e->bounds[recipe][REF_O].bound[at] + half)) return false;
            if (want == 0) continue;
            lack += (fabs(want) - fabs(got)) / (2 * half);
            ++compared;
        }
    }
    return compared >= 64 && fabs(lack / (double)compared - 0.5) < 0.1;
}

static bool explain_readings(struct scene *s, struct notes *notes)
{
    static const char *const kinds[][2] = {
        {"times ln 2", "leave out that factor"},
        {"over ln 2, that is in base 2", "multiply it by ln 2"},
        {"without the row's maximum", "add the maximum that was taken off the scores"}};
    struct trial t = trial_of(s, s->is_whole);
    t.p.dq.dtype = ATTEST_ABSENT;
    t.answer.problem = t.p;
    struct evaluations all = {.args = t.args, .threads = s->audit->options->threads};
    struct evaluation *e = evaluate(&all, &t.p, ALIBI_CONTRACT);
    const int recipe = s->audit->recipe;
    const char *name = s->j->answer->name;
    bool found = false;
    evaluate_bounds(&all, e, recipe, false);
    for (int kind = 0; kind < 3 && !found && is_wrong(s->audit, s->j, REF_LSE); ++kind) {
        found = lse_is_of_kind(&t, e, recipe, kind);
        if (found) note(notes, "'%s': lse is %s: %s", name, kinds[kind][0], kinds[kind][1]);
    }
    if (is_wrong(s->audit, s->j, REF_O) && o_is_cut_off(&t, e, recipe)) {
        note(notes, "'%s': o is cut off toward zero: round it to nearest, ties to even", name);
        found = true;
    }
    evaluations_free(&all);
    end_trial(s, &t);
    return found;
}

static void say(struct scene *s, const struct mistake *m, unsigned tensors, struct notes *notes)
{
    char names[64] = "", rows[96] = "";
    int count = 0;
    for (int t = 0; t < CASE_NUM_TENSORS; ++t)
        if ((tensors >> t & 1) != 0)
            snprintf(names + strlen(names), sizeof names - strlen(names), "%s%s", count++ > 0 ? ", " : "",
                     ref_tensor_names[t]);
    if (!s->is_whole)
        snprintf(rows, sizeof rows, " (rows %lld to %lld of sequence %lld were tried)", (long long)s->run.first,
                 (long long)(s->run.first + s->run.rows - 1), (long long)s->run.b);
    note(notes, "'%s': %s %s what %s gives%s: %s", s->j->answer->name, names, count > 1 ? "are" : "is", m->what, rows,
         m->change);
}

void mistakes_explain(const struct audit *audit, struct judgement *j)
{
    bool forward = any_wrong(audit, j, REF_O, REF_LSE), backward = any_wrong(audit, j, REF_DQ, CASE_NUM_TENSORS - 1);
    if (!forward && !backward) return;
    if (j->evaluation == NULL && convention_deviations(&j->convention) > 0) return; /* of a sample */
    struct scene s = set_scene(audit, j);
    if (s.run.rows <= 0 || (s.is_whole && num_scores(&s.whole.p) > large_problem)) return;
    for (size_t i = 0; i < sizeof mistakes / sizeof *mistakes && (forward || backward); ++i) {
        const struct mistake *m = &mistakes[i];
        unsigned found = forward ? try_mistake(&s, m, s.is_whole, REF_O, REF_LSE) : 0;
        if (found != 0) forward = false;
        const unsigned of_gradients = backward && !m->forward_only ? try_gradients(&s, m) : 0;
        if (of_gradients != 0) backward = false;
        if ((found | of_gradients) != 0) say(&s, m, found | of_gradients, &j->notes);
    }
    if (forward) explain_readings(&s, &j->notes);
}

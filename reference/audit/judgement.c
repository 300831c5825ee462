#include "reference/audit/judgement.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"

const char *const verdict_names[VERDICT_NUM] = {"PASS", "FAIL", "OVERFLOW", "VACUOUS", "UNSUPPORTED", "ERROR"};

enum verdict verdict_of(enum ref_verdict v)
{
    switch (v) {
    case REF_PASS: return VERDICT_PASS;
    case REF_OVERFLOW: return VERDICT_OVERFLOW;
    case REF_VACUOUS: return VERDICT_VACUOUS;
    default: return VERDICT_FAIL;
    }
}

/* A converted lse carries the rounding of the conversion beside its own: half a unit of fp32 more. */
static struct ref_bound widened(const struct ref_bound *b, const double *oracle, int64_t size)
{
    struct ref_bound wide = *b;
    wide.bound = allocate((size_t)size, sizeof(double));
    for (int64_t i = 0; i < size; ++i) {
        const double magnitude = fabs(oracle[i]) + b->bound[i];
        wide.bound[i] = b->bound[i] + (isfinite(magnitude) ? ref_half_ulp(ATTEST_FP32, magnitude) : 0);
    }
    return wide;
}

const struct ref_bound *judgement_bound(const struct judgement *j, int recipe, enum ref_tensor which)
{
    return which <= REF_LSE ? &j->evaluation->bounds[recipe][which] : &j->gradients[recipe][which];
}

/* Of fp8 values with a scale: o, and all that is known of its errors, is so many times as large. Multiplying may cost
 * it another rounding. */
static struct ref_bound scaled(const struct ref_bound *b, double scale, int32_t dtype, double *oracle, int64_t size)
{
    struct ref_bound s = *b;
    double **const arrays[] = {&s.bound, &s.sigma, &s.bias, &s.shift, &s.drift[0], &s.drift[1], &s.optional, &s.beside};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; ++n) {
        const double *from = *arrays[n];
        if (from == NULL) continue;
        *arrays[n] = allocate((size_t)size, sizeof(double));
        for (int64_t i = 0; i < size; ++i) (*arrays[n])[i] = from[i] * scale;
    }
    for (int64_t i = 0; i < size; ++i) {
        oracle[i] *= scale;
        const double half = ref_half_ulp(dtype, fabs(oracle[i]) + s.bound[i]);
        if (!isfinite(s.bound[i]) || !isfinite(half)) continue;
        s.bound[i] += half;
        if (s.sigma != NULL) s.sigma[i] = sqrt(s.sigma[i] * s.sigma[i] + half * half / 3);
    }
    return s;
}

static void free_scaled(struct ref_bound *s)
{
    double *const arrays[] = {s->bound, s->sigma, s->bias, s->shift, s->drift[0], s->drift[1], s->optional, s->beside};
    for (size_t n = 0; n < sizeof arrays / sizeof *arrays; ++n) free(arrays[n]);
}

static void judge_scaled(const struct judgement *j, const void *got, int recipe, const struct audit *audit,
                         struct ref_report *report)
{
    const struct evaluation *e = j->evaluation;
    const int64_t size = canonical_size(&e->problem, REF_O);
    double *oracle = allocate((size_t)size, sizeof *oracle);
    memcpy(oracle, e->oracle[REF_O], (size_t)size * sizeof *oracle);
    struct ref_bound bound =
        scaled(judgement_bound(j, recipe, REF_O), audit->problem->v_scale, e->problem.o.dtype, oracle, size);
    ref_judge(&e->problem, &e->args.forward, REF_O, got, oracle, &bound, 0, report);
    free_scaled(&bound);
    free(oracle);
}

/* The rewritten problem of an ALiBi form has the outputs' layout of the answer: only the scores differ. */
static void judge_tensor(const struct judgement *j, enum ref_tensor which, const void *got, int recipe,
                         const struct audit *audit, struct ref_report *report)
{
    const struct evaluation *e = j->evaluation;
    const struct attest_forward_args *a = &e->args.forward;
    if (which == REF_O && audit->problem->v_scale != 1) {
        judge_scaled(j, got, recipe, audit, report);
        return;
    }
    struct ref_bound bound = *judgement_bound(j, recipe, which);
    const bool is_converted = which == REF_LSE && j->convention.lse_base2;
    if (is_converted) bound = widened(&bound, e->oracle[which], canonical_size(&e->problem, which));
    const bool statistical = audit->problem->statistical && bound.sigma != NULL;
    ref_judge(&e->problem, a, which, got, e->oracle[which], &bound, statistical, report);
    if (statistical && ref_judge_tiles(&e->problem, &e->args, &ref_recipes[recipe], which, got, e->oracle[which],
                                       &bound, audit->options->threads, report) != ATTEST_OK) {
        fputs("audit: the judge ran out of memory\n", stderr);
        exit(AUDIT_EXIT_UNUSABLE);
    }
    if (is_converted) free(bound.bound);
}

static const char *reason_unsupported(const struct answer *a, enum ref_tensor which, const struct convention *c)
{
    if (a->wrong[which] != NULL) return a->wrong[which];
    if (a->unsupported[which] != NULL) return a->unsupported[which];
    if (alibi_is_forward_only(c->alibi) && (which == REF_DQ || which == REF_DK))
        return "gradients of q and k are not known for ALiBi inside the cap";
    return NULL;
}

/* Judges every tensor of the answer by one recipe, assuming a convention. False where it cannot be assumed. */
static bool judge_by(struct evaluations *all, const struct audit *audit, const struct convention *c, int recipe,
                     struct judgement *j)
{
    const bool statistical = recipe == audit->recipe || audit->options->all_recipes;
    const struct answer *a = j->answer;
    struct attest_problem p = a->problem;
    if (c->diag_kind != ATTEST_DIAG_UNSET) p.diag_kind = c->diag_kind;
    struct evaluation *e = evaluate(all, &p, c->alibi);
    if (e == NULL) return false;
    evaluate_bounds(all, e, recipe, statistical);
    j->recipes[recipe] = true;
    j->evaluation = e;
    j->convention = *c;
    free(j->lse);
    j->lse = NULL;
    if (a->got[REF_LSE] != NULL && (c->lse_base2 || c->lse_plus_inf)) {
        const size_t size = (size_t)canonical_size(&p, REF_LSE);
        j->lse = allocate(size, sizeof *j->lse);
        memcpy(j->lse, a->got[REF_LSE], size * sizeof *j->lse);
        j->plus_inf_count = convention_convert_lse(c, &p, &e->args.forward, e->oracle[REF_LSE], j->lse);
        if (c->lse_plus_inf && j->plus_inf_count == 0) return false;
    }
    bounds_free(j->gradients[recipe]);
    evaluate_gradient_bounds(all, e, recipe, statistical, (void *)a->got[REF_O],
                             j->lse != NULL ? j->lse : (void *)a->got[REF_LSE], j->gradients[recipe]);
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        struct judged_tensor *judged = &j->tensors[t];
        judged->present = a->got[t] != NULL || a->unsupported[t] != NULL || a->wrong[t] != NULL;
        if (!judged->present) continue;
        judged->reason = reason_unsupported(a, (enum ref_tensor)t, c);
        judged->got = t == REF_LSE && j->lse != NULL ? j->lse : a->got[t];
        judged->verdict = a->wrong[t] != NULL ? VERDICT_ERROR : VERDICT_UNSUPPORTED;
        if (judged->reason != NULL) continue;
        judge_tensor(j, (enum ref_tensor)t, judged->got, recipe, audit, &judged->reports[recipe]);
        judged->verdict = verdict_of(judged->reports[recipe].verdict);
    }
    return true;
}

/* How much is wrong. o and lse go first: where they are right as stated, gradients of another problem are wrong ones.
 */
static int not_passing(const struct judgement *j)
{
    int n = 0;
    for (int t = 0; t < CASE_NUM_TENSORS; ++t)
        if (j->tensors[t].present && j->tensors[t].verdict != VERDICT_PASS) n += t <= REF_LSE ? CASE_NUM_TENSORS : 1;
    return n;
}

/* The convention under which fewest tensors do not pass; of those the one that deviates least. */
static struct convention infer(struct evaluations *all, const struct audit *audit, struct judgement *j)
{
    struct convention best = {.alibi = ALIBI_CONTRACT}, c;
    int fewest = not_passing(j);
    for (int deviations = 1; deviations <= 4 && fewest > 0; ++deviations) {
        for (int number = 0; number < CONVENTION_COUNT && fewest > 0; ++number) {
            if (!convention_number(&j->answer->problem, number, &c) || convention_deviations(&c) != deviations)
                continue;
            if (c.diag_kind != ATTEST_DIAG_UNSET && !audit->problem->diag_is_assumed) continue;
            if ((c.lse_base2 || c.lse_plus_inf) && j->answer->got[REF_LSE] == NULL) continue;
            if (!judge_by(all, audit, &c, audit->recipe, j) || not_passing(j) >= fewest) continue;
            fewest = not_passing(j);
            best = c;
        }
    }
    return best;
}

static void judge_nothing(const struct answer *a, struct judgement *j)
{
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        j->tensors[t].present = tensor_set_find(&a->set, (enum part)(PART_O + t)) != NULL;
        j->tensors[t].verdict = a->problem_unsupported ? VERDICT_UNSUPPORTED : VERDICT_ERROR;
        j->tensors[t].reason = a->error;
    }
}

/* An implementation is not accused for an input that was not read. */
static void withdraw_accusations(const struct audit *audit, struct judgement *j)
{
    for (int t = 0; t < CASE_NUM_TENSORS && audit->problem->unread != NULL; ++t) {
        struct judged_tensor *judged = &j->tensors[t];
        if (!judged->present || judged->verdict == VERDICT_PASS || judged->verdict >= VERDICT_UNSUPPORTED) continue;
        judged->reason = judged->accusation = sentence(
            "%s would be %s (largest share %.3g), but of the inputs %s was not read and may be why; --ignore NAMES "
            "says what does not matter",
            ref_tensor_names[t], verdict_names[judged->verdict], judged->reports[audit->recipe].use,
            audit->problem->unread);
        judged->verdict = VERDICT_UNSUPPORTED;
    }
}

/* Of the recipes that round less than the one asked for, which are none of that. */
static bool is_stricter(int recipe, int asked)
{
    return recipe <= REF_RECIPE_MIXED && recipe < asked;
}

static void find_explanations(const struct audit *audit, struct judgement *j)
{
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        struct judged_tensor *judged = &j->tensors[t];
        judged->explained_by = audit->recipe;
        for (int r = REF_RECIPE_MIXED; r >= REF_RECIPE_FP32; --r)
            if (is_stricter(r, audit->recipe) && j->recipes[r] && judged->reports[r].verdict == REF_PASS)
                judged->explained_by = r;
    }
}

void judge_answer(struct evaluations *all, const struct audit *audit, const struct answer *a, struct judgement *j)
{
    struct convention c = {.alibi = ALIBI_CONTRACT};
    *j = (struct judgement){.answer = a};
    if (a->error != NULL) {
        judge_nothing(a, j);
        return;
    }
    judge_by(all, audit, &c, audit->recipe, j);
    if (not_passing(j) > 0 && !audit->options->strict) c = infer(all, audit, j);
    for (int recipe = 0; recipe < recipe_count(); ++recipe)
        if (recipe != audit->recipe && (audit->options->all_recipes || is_stricter(recipe, audit->recipe)))
            judge_by(all, audit, &c, recipe, j);
    judge_by(all, audit, &c, audit->recipe, j); /* last: its verdicts count */
    find_explanations(audit, j);
    withdraw_accusations(audit, j);
    convention_explain(&c, &a->problem, a->name, j->plus_inf_count, &j->notes);
}

void judgement_free(struct judgement *j)
{
    free(j->lse);
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) free(j->tensors[t].accusation);
    for (int recipe = 0; recipe < MAX_RECIPES; ++recipe) bounds_free(j->gradients[recipe]);
    notes_free(&j->notes);
}

int audit_not_passing(const struct audit *audit)
{
    int n = 0;
    for (int i = 0; i < audit->num_answers; ++i) n += not_passing(&audit->judgements[i]);
    return n;
}

int audit_exit_status(const struct audit *audit)
{
    int status = AUDIT_EXIT_PASS;
    for (int i = 0; i < audit->num_answers; ++i) {
        if (audit->answers[i].error != NULL) status = AUDIT_EXIT_UNUSABLE;
        for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
            const struct judged_tensor *judged = &audit->judgements[i].tensors[t];
            if (!judged->present || judged->verdict == VERDICT_PASS) continue;
            if (judged->verdict >= VERDICT_UNSUPPORTED) status = AUDIT_EXIT_UNUSABLE;
            else if (status == AUDIT_EXIT_PASS) status = AUDIT_EXIT_FAIL;
        }
    }
    return status;
}

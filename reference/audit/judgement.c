#include "reference/audit/judgement.h"

#include <limits.h>
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

/* Takes a convention for granted. False where it cannot be. */
bool judging_assume(struct evaluations *all, const struct convention *c, struct judgement *j)
{
    const struct answer *a = j->answer;
    struct attest_problem p = a->problem;
    if (c->diag_kind != ATTEST_DIAG_UNSET) p.diag_kind = c->diag_kind;
    struct evaluation *e = evaluate(all, &p, c->alibi);
    if (e == NULL) return false;
    j->evaluation = e;
    j->convention = *c;
    free(j->lse);
    j->lse = NULL;
    if (a->got[REF_LSE] == NULL || (!c->lse_base2 && !c->lse_plus_inf)) return true;
    const int64_t rows = p.ragged ? p.total_q : p.seqlen_q, batches = p.ragged ? 1 : p.batch;
    if (batches * rows == 0) return true;
    const size_t size =
        (size_t)((batches - 1) * p.lse.batch + (p.num_heads_q - 1) * p.lse.head + (rows - 1) * p.lse.seqlen + 1);
    j->lse = allocate(size, sizeof *j->lse);
    memcpy(j->lse, a->got[REF_LSE], size * sizeof *j->lse);
    j->plus_inf_count = convention_convert_lse(c, &p, &e->args.forward, e->oracle[REF_LSE], j->lse);
    return !c->lse_plus_inf || j->plus_inf_count > 0;
}

/* What there is to judge of the answer by the convention that is assumed; what cannot be has its verdict. */
void judging_present(struct judgement *j)
{
    const struct answer *a = j->answer;
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        struct judged_tensor *judged = &j->tensors[t];
        judged->present = a->got[t] != NULL || a->unsupported[t] != NULL || a->wrong[t] != NULL;
        judged->reason = judged->present ? reason_unsupported(a, (enum ref_tensor)t, &j->convention) : NULL;
        judged->got = t == REF_LSE && j->lse != NULL ? j->lse : a->got[t];
        judged->verdict = a->wrong[t] != NULL ? VERDICT_ERROR : VERDICT_UNSUPPORTED;
    }
}

/* Judges the tensors first .. last by one recipe, with the statistics or by the bounds alone. */
void judging_compare(struct evaluations *all, const struct audit *audit, int recipe, bool statistical, int first,
                    int last, struct judgement *j)
{
    evaluate_bounds(all, j->evaluation, recipe, statistical);
    bounds_free(j->gradients[recipe]);
    if (last >= REF_DQ)
        evaluate_gradient_bounds(all, j->evaluation, recipe, statistical, (void *)j->answer->got[REF_O],
                                 j->lse != NULL ? j->lse : (void *)j->answer->got[REF_LSE], j->gradients[recipe]);
    for (int t = first; t <= last; ++t) {
        struct judged_tensor *judged = &j->tensors[t];
        if (!judged->present || judged->reason != NULL) continue;
        progress(all, "judging", ref_tensor_names[t]);
        judge_tensor(j, (enum ref_tensor)t, judged->got, recipe, audit, &judged->reports[recipe]);
    }
    j->recipes[recipe] = true;
}

void judging_take_verdicts(const struct audit *audit, struct judgement *j)
{
    for (int t = 0; t < CASE_NUM_TENSORS; ++t)
        if (j->tensors[t].present && j->tensors[t].reason == NULL)
            j->tensors[t].verdict = verdict_of(j->tensors[t].reports[audit->recipe].verdict);
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

/* How much is wrong when a convention is assumed, by bounds alone. Gradients are looked at where o and lse are as
 * right as they have been; INT_MAX: no better. */
static int try_convention(struct evaluations *all, const struct audit *audit, const struct convention *c, int fewest,
                          struct judgement *j)
{
    struct judgement tried = {.answer = j->answer};
    int wrong = INT_MAX;
    if (judging_assume(all, c, &tried)) {
        judging_present(&tried);
        judging_compare(all, audit, audit->recipe, false, REF_O, REF_LSE, &tried);
        judging_take_verdicts(audit, &tried);
        for (int t = REF_DQ; t < CASE_NUM_TENSORS; ++t) tried.tensors[t].present = false;
        if (not_passing(&tried) < fewest) {
            judging_present(&tried);
            judging_compare(all, audit, audit->recipe, false, REF_O, CASE_NUM_TENSORS - 1, &tried);
            judging_take_verdicts(audit, &tried);
            wrong = not_passing(&tried);
        }
    }
    judgement_free(&tried);
    return wrong;
}

/* The convention under which least is wrong; of those the one that deviates least. */
struct convention judging_infer(struct evaluations *all, const struct audit *audit, struct judgement *j)
{
    struct convention best = {.alibi = ALIBI_CONTRACT}, c;
    int fewest = not_passing(j);
    for (int deviations = 1; deviations <= 4 && fewest > 0; ++deviations) {
        for (int number = 0; number < CONVENTION_COUNT && fewest > 0; ++number) {
            if (!convention_number(&j->answer->problem, number, &c) || convention_deviations(&c) != deviations)
                continue;
            if (c.diag_kind != ATTEST_DIAG_UNSET && !audit->problem->diag_is_assumed) continue;
            if ((c.lse_base2 || c.lse_plus_inf) && j->answer->got[REF_LSE] == NULL) continue;
            const int wrong = try_convention(all, audit, &c, fewest, j);
            if (wrong >= fewest) continue;
            fewest = wrong;
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

/* Whether some tensor is off by more than a bound: statistics are about how it is computed, not what. */
bool judging_exceeds_bounds(const struct audit *audit, const struct judgement *j)
{
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        const struct judged_tensor *judged = &j->tensors[t];
        if (judged->present && judged->reason == NULL && !(judged->reports[audit->recipe].use <= 1)) return true;
    }
    return false;
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
bool judging_is_stricter(int recipe, int asked)
{
    return recipe <= REF_RECIPE_MIXED && recipe < asked;
}

/* ---- a section of the problem: the query heads of the first KV head, in the first sequence ---- */

/* Of smaller problems all is compared with stricter recipes, of larger ones a section has the statistics. */
static const double small_problem = 0x1p20, large_problem = 0x1p27; /* scores */

static double num_scores(const struct attest_problem *p)
{
    return (double)p->batch * (double)p->num_heads_q * (double)p->seqlen_q * (double)p->seqlen_k;
}

static bool is_whole(const struct attest_problem *p)
{
    return p->batch == 1 && p->num_heads_kv == 1;
}

static struct attest_problem first_heads(const struct attest_problem *p)
{
    struct attest_problem part = *p;
    part.batch = 1;
    part.num_heads_q /= p->num_heads_kv;
    part.num_heads_kv = 1;
    part.dbias = (struct attest_score_tensor){.dtype = ATTEST_ABSENT}; /* may sum over heads */
    return part;
}

/* The section as a judgement of its own, of what was returned and assumed; compared by a recipe. To be given to
 * end_section.
 */
struct section {
    struct evaluations evaluations;
    struct answer answer;
    struct judgement judgement;
};

static void compare_section(const struct audit *audit, const struct judgement *j, int recipe, bool statistical,
                         struct section *section)
{
    const struct evaluation *e = j->evaluation;
    *section =
        (struct section){.evaluations = {.args = e->args, .threads = audit->options->threads}, .answer = *j->answer};
    section->answer.problem = first_heads(&e->problem);
    section->judgement = (struct judgement){.answer = &section->answer, .convention = j->convention, .lse = j->lse};
    section->judgement.evaluation = evaluate(&section->evaluations, &section->answer.problem, ALIBI_CONTRACT);
    judging_present(&section->judgement);
    section->judgement.tensors[REF_DBIAS].present = false;
    judging_compare(&section->evaluations, audit, recipe, statistical, REF_O, CASE_NUM_TENSORS - 1,
                    &section->judgement);
}

static void end_section(struct section *section)
{
    section->judgement.lse = NULL; /* the whole's */
    judgement_free(&section->judgement);
    evaluations_free(&section->evaluations);
}

/* Compares with a recipe that rounds less, by bounds alone. What a section shows to be none of that recipe is not
 * compared as a whole. */
static void compare_stricter(struct evaluations *all, const struct audit *audit, int recipe, struct judgement *j)
{
    struct section section;
    int last = -1;
    if (is_whole(&j->evaluation->problem) || num_scores(&j->evaluation->problem) <= small_problem) {
        judging_compare(all, audit, recipe, false, REF_O, CASE_NUM_TENSORS - 1, j);
        return;
    }
    compare_section(audit, j, recipe, false, &section);
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        const struct judged_tensor *judged = &section.judgement.tensors[t];
        if (judged->present && judged->reason == NULL) j->tensors[t].reports[recipe] = judged->reports[recipe];
        if (j->tensors[t].present && (!judged->present || judged->reports[recipe].verdict == REF_PASS)) last = t;
    }
    end_section(&section);
    if (last >= 0)
        judging_compare(all, audit, recipe, false, REF_O, last <= REF_LSE ? REF_LSE : CASE_NUM_TENSORS - 1, j);
    j->recipes[recipe] = true;
}

/* The statistics of the section become the whole's. */
static void add_statistics(const struct audit *audit, struct judgement *j)
{
    struct section section;
    compare_section(audit, j, audit->recipe, true, &section);
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        struct ref_report *to = &j->tensors[t].reports[audit->recipe];
        const struct ref_report *from = &section.judgement.tensors[t].reports[audit->recipe];
        if (!j->tensors[t].present || j->tensors[t].reason != NULL || !section.judgement.tensors[t].present) continue;
        to->rms_ratio = from->rms_ratio;
        to->mean_ratio = from->mean_ratio;
        to->direction_ratio = from->direction_ratio;
        to->direction = from->direction;
        to->direction_size = from->direction_size;
        to->direction_share = from->direction_share;
        memcpy(to->direction_index, from->direction_index, sizeof to->direction_index);
        if (to->verdict == REF_PASS && from->verdict == REF_FAIL) to->verdict = REF_FAIL;
    }
    end_section(&section);
    note(&j->notes, "'%s': statistics are of the first sequence's heads that read KV head 0; bounds are of all",
         j->answer->name);
}

/* All tensors by the recipe that was asked for, by the convention that is assumed. */
static void judge_all_tensors(struct evaluations *all, const struct audit *audit, struct judgement *j)
{
    const struct attest_problem *p = &j->evaluation->problem;
    const bool by_section = audit->problem->statistical && !audit->options->all_recipes && !is_whole(p) &&
                         num_scores(p) > large_problem;
    judging_present(j);
    judging_compare(all, audit, audit->recipe, !by_section, REF_O, CASE_NUM_TENSORS - 1, j);
    if (by_section) add_statistics(audit, j);
    judging_take_verdicts(audit, j);
}

static void find_explanations(const struct audit *audit, struct judgement *j)
{
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        struct judged_tensor *judged = &j->tensors[t];
        judged->explained_by = audit->recipe;
        for (int r = REF_RECIPE_MIXED; r >= REF_RECIPE_FP32; --r)
            if (judging_is_stricter(r, audit->recipe) && j->recipes[r] && judged->reports[r].verdict == REF_PASS)
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
    if (audit->options->sample > 0) {
        c = judge_sample(audit, a, j);
        find_explanations(audit, j);
        withdraw_accusations(audit, j);
        convention_explain(&c, &a->problem, a->name, j->plus_inf_count, &j->notes);
        return;
    }
    judging_assume(all, &c, j);
    judge_all_tensors(all, audit, j);
    if (judging_exceeds_bounds(audit, j) && !audit->options->strict) {
        c = judging_infer(all, audit, j);
        if (convention_deviations(&c) > 0) {
            judging_assume(all, &c, j);
            judge_all_tensors(all, audit, j);
        }
    }
    for (int recipe = 0; recipe < recipe_count(); ++recipe) {
        if (recipe == audit->recipe) continue;
        if (audit->options->all_recipes) judging_compare(all, audit, recipe, true, REF_O, CASE_NUM_TENSORS - 1, j);
        else if (judging_is_stricter(recipe, audit->recipe)) compare_stricter(all, audit, recipe, j);
    }
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

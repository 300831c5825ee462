/* evaluate.c - calls of the oracle and of the bounds. */
#include "reference/audit/evaluate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int recipe_count(void)
{
    int n = 0;
    while (ref_recipes[n].name != NULL && n < MAX_RECIPES) ++n;
    return n;
}

void progress(const struct evaluations *all, const char *what, const char *detail)
{
    if (all->progress) fprintf(stderr, "\r\033[Kaudit: %s%s%s ...", what, detail[0] != '\0' ? " " : "", detail);
}

void progress_end(const struct evaluations *all)
{
    if (all->progress) fputs("\r\033[K", stderr);
}

static int num_tensors(const struct attest_problem *p)
{
    return p->dq.dtype != ATTEST_ABSENT ? CASE_NUM_TENSORS : REF_LSE + 1;
}

int64_t canonical_size(const struct attest_problem *p, enum ref_tensor which)
{
    const struct attest_score_tensor *t = &p->dbias;
    switch (which) {
    case REF_O: return ref_rows_q(p) * p->num_heads_q * p->head_dim_v;
    case REF_LSE: return ref_rows_q(p) * p->num_heads_q;
    case REF_DQ: return ref_rows_q(p) * p->num_heads_q * p->head_dim;
    case REF_DK: return ref_rows_k(p) * p->num_heads_kv * p->head_dim;
    case REF_DV: return ref_rows_k(p) * p->num_heads_kv * p->head_dim_v;
    case REF_DSINK: return p->has_sink ? p->num_heads_q : 0;
    default:
        if (t->dtype == ATTEST_ABSENT) return 0;
        return (t->batch > 0 ? p->batch : 1) * (t->head > 0 ? p->num_heads_q : 1) *
               (t->seqlen_q > 0 ? p->seqlen_q : 1) * (t->seqlen_k > 0 ? p->seqlen_k : 1);
    }
}

static double *allocate_doubles(const struct attest_problem *p, enum ref_tensor which)
{
    return allocate((size_t)canonical_size(p, which), sizeof(double));
}

static void require_memory(enum attest_status status)
{
    if (status == ATTEST_OK) return;
    fputs("audit: the oracle ran out of memory\n", stderr);
    exit(AUDIT_EXIT_UNUSABLE);
}

static void run_oracle(struct evaluations *all, struct evaluation *e)
{
    for (int t = 0; t < num_tensors(&e->problem); ++t) e->oracle[t] = allocate_doubles(&e->problem, (enum ref_tensor)t);
    progress(all, "oracle, forward", "");
    const struct ref_forward forward = {e->oracle[REF_O], e->oracle[REF_LSE]};
    require_memory(ref_forward(&e->problem, &e->args.forward, &forward, all->threads));
    if (e->oracle[REF_DQ] == NULL) return;
    progress(all, "oracle, backward", "");
    const bool has_dbias = e->problem.dbias.dtype != ATTEST_ABSENT;
    const struct ref_backward backward = {.dq = e->oracle[REF_DQ], .dk = e->oracle[REF_DK], .dv = e->oracle[REF_DV],
                                          .dbias = has_dbias ? e->oracle[REF_DBIAS] : NULL,
                                          .dsink = e->problem.has_sink ? e->oracle[REF_DSINK] : NULL};
    require_memory(ref_backward(&e->problem, &e->args, NULL, &backward, all->threads));
}

struct evaluation *evaluate(struct evaluations *all, const struct attest_problem *p, enum alibi_form alibi)
{
    for (struct evaluation *e = all->first; e != NULL; e = e->next)
        if (e->alibi == alibi && memcmp(&e->asked, p, sizeof *p) == 0) return e;
    struct evaluation *e = allocate(1, sizeof *e);
    e->asked = e->problem = *p;
    e->alibi = alibi;
    e->args = all->args;
    if (!alibi_rewrite(alibi, &e->problem, &e->args.forward, &e->owned)) {
        free(e);
        return NULL;
    }
    run_oracle(all, e);
    e->next = all->first;
    all->first = e;
    return e;
}

static struct ref_bound allocate_bound(const struct attest_problem *p, enum ref_tensor which, bool statistical)
{
    const size_t rows = (size_t)canonical_size(p, REF_LSE);
    if (!statistical) return (struct ref_bound){.bound = allocate_doubles(p, which)};
    return (struct ref_bound){.bound = allocate_doubles(p, which),
                              .sigma = allocate_doubles(p, which),
                              .bias = allocate_doubles(p, which),
                              .shift = allocate_doubles(p, which),
                              .drift = {allocate_doubles(p, which), allocate_doubles(p, which)},
                              .optional = allocate_doubles(p, which),
                              .beside = allocate_doubles(p, which),
                              .phases = which == REF_O ? allocate(rows * REF_WAYS, sizeof(double)) : NULL,
                              .along = which == REF_O || which == REF_DQ ? allocate_doubles(p, REF_LSE) : NULL};
}

void evaluate_bounds(struct evaluations *all, struct evaluation *e, int recipe, bool statistical)
{
    const struct attest_recipe *r = &ref_recipes[recipe];
    struct ref_bound *bounds = e->bounds[recipe];
    if (bounds[REF_O].bound != NULL && (!statistical || bounds[REF_O].sigma != NULL)) return;
    bounds_free(bounds);
    for (int t = REF_O; t <= REF_LSE; ++t) bounds[t] = allocate_bound(&e->problem, (enum ref_tensor)t, statistical);
    progress(all, "bounds of recipe", r->name);
    require_memory(ref_bound_forward(&e->problem, &e->args.forward, r, &bounds[REF_O], &bounds[REF_LSE], all->threads));
}

void evaluate_gradient_bounds(const struct evaluations *all, const struct evaluation *e, int recipe, bool statistical,
                              void *o, void *lse, struct ref_bound bounds[REF_NUM_TENSORS])
{
    if (e->oracle[REF_DQ] == NULL) return;
    struct attest_backward_args args = e->args;
    args.forward.o = o;
    args.forward.lse = lse;
    for (int t = REF_DQ; t < num_tensors(&e->problem) && (t == REF_DQ || !all->rows_only); ++t)
        bounds[t] = allocate_bound(&e->problem, (enum ref_tensor)t, statistical);
    progress(all, "bounds of gradients, recipe", ref_recipes[recipe].name);
    require_memory(ref_bound_backward(&e->problem, &args, &ref_recipes[recipe], bounds, all->threads));
}

void bounds_free(struct ref_bound bounds[REF_NUM_TENSORS])
{
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        free(bounds[t].bound);
        free(bounds[t].sigma);
        free(bounds[t].bias);
        free(bounds[t].shift);
        free(bounds[t].drift[0]);
        free(bounds[t].drift[1]);
        free(bounds[t].optional);
        free(bounds[t].beside);
        free(bounds[t].along);
        free(bounds[t].phases);
        bounds[t] = (struct ref_bound){0};
    }
}

static void evaluation_free(struct evaluation *e)
{
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) free(e->oracle[t]);
    for (int r = 0; r < MAX_RECIPES; ++r) bounds_free(e->bounds[r]);
    free(e->owned);
    free(e);
}

void evaluations_free(struct evaluations *all)
{
    while (all->first != NULL) {
        struct evaluation *e = all->first;
        all->first = e->next;
        evaluation_free(e);
    }
}

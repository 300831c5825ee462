/* evaluate.h - the oracle's results and the bounds of a problem, computed once and kept.
 *
 * Running out of memory ends the program with one sentence. */
#ifndef ATTEST_AUDIT_EVALUATE_H
#define ATTEST_AUDIT_EVALUATE_H

#include "reference/audit/case.h"
#include "reference/audit/conventions.h"
#include "reference/bounds.h"

enum { MAX_RECIPES = 8 };

struct evaluation {
    struct attest_problem asked; /* what evaluate() was called with, and `alibi`: the key */
    enum alibi_form alibi;
    struct attest_problem problem; /* the same in the contract's terms */
    struct attest_backward_args args;
    void *owned;                                           /* a bias made for this evaluation, or NULL */
    double *oracle[CASE_NUM_TENSORS];                      /* gradients are NULL where there is no dout */
    struct ref_bound bounds[MAX_RECIPES][REF_NUM_TENSORS]; /* of o and lse; NULL arrays until asked for */
    struct evaluation *next;
};

/* All that was evaluated so far, for one set of arguments. */
struct evaluations {
    struct attest_backward_args args;
    struct evaluation *first;
    int threads;
    bool progress; /* a line on stderr says what is being computed */
    bool rows_only; /* no gradients but dq */
};

int recipe_count(void);

/* Elements of a tensor in canonical order. */
int64_t canonical_size(const struct attest_problem *p, enum ref_tensor which);

/* The evaluation of this problem with ALiBi in this form; NULL where the form cannot be evaluated. */
struct evaluation *evaluate(struct evaluations *all, const struct attest_problem *p, enum alibi_form alibi);

/* Computes the bounds of o and lse for ref_recipes[recipe] if they are not there yet, with what the statistics need or
 * without. */
void evaluate_bounds(struct evaluations *all, struct evaluation *e, int recipe, bool statistical);

/* Those of the gradients, which depend on the o and lse that the gradients were computed from: what an
 * implementation returned, NULL where it did not. Into `bounds`, for bounds_free; nothing without dout. */
void evaluate_gradient_bounds(const struct evaluations *all, const struct evaluation *e, int recipe, bool statistical,
                              void *o, void *lse, struct ref_bound bounds[REF_NUM_TENSORS]);
void bounds_free(struct ref_bound bounds[REF_NUM_TENSORS]);

void progress(const struct evaluations *all, const char *what, const char *detail);
void progress_end(const struct evaluations *all);
void evaluations_free(struct evaluations *all);

#endif

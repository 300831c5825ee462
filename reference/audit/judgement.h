/* judgement.h - the verdict on one implementation: which convention explains it, and each tensor's report. */
#ifndef ATTEST_AUDIT_JUDGEMENT_H
#define ATTEST_AUDIT_JUDGEMENT_H

#include "reference/audit/evaluate.h"

/* The first four are those of enum ref_verdict. */
enum verdict { VERDICT_PASS, VERDICT_FAIL, VERDICT_OVERFLOW, VERDICT_VACUOUS, VERDICT_UNSUPPORTED, VERDICT_ERROR,
               VERDICT_NUM };
extern const char *const verdict_names[VERDICT_NUM];
enum verdict verdict_of(enum ref_verdict v);

struct judged_tensor {
    bool present;                           /* returned, or part of what ERROR and UNSUPPORTED are about */
    enum verdict verdict;                   /* by the recipe that was asked for */
    const char *reason;                     /* of UNSUPPORTED and ERROR, else NULL */
    char *accusation; /* of UNSUPPORTED: what it would be but for inputs that were not read; its reason, to be freed */
    int explained_by; /* of PASS: the strictest recipe, of fp32, mixed and the one asked for, that explains it */
    const void *got; /* as judged: converted where the convention says so; NULL without a report */
    struct ref_report reports[MAX_RECIPES]; /* of the recipes of the judgement */
};

struct judgement {
    const struct answer *answer;
    struct convention convention;
    struct evaluation *evaluation; /* NULL where nothing could be judged */
    bool recipes[MAX_RECIPES];     /* by which it was judged */
    float *lse;                    /* converted, or NULL */
    int64_t plus_inf_count;        /* +inf in it that were read as -inf */
    struct judged_tensor tensors[CASE_NUM_TENSORS];
    struct ref_bound gradients[MAX_RECIPES][REF_NUM_TENSORS]; /* bounds given this implementation's o and lse */
    struct notes notes; /* conventions that were inferred */
};

/* Everything that the reports show. */
struct audit {
    const struct options *options;
    struct audit_case *problem;
    struct answer *answers;
    struct judgement *judgements;
    int num_answers;
    int recipe; /* whose verdict counts, an index of ref_recipes */
    struct evaluations evaluations;
};

void judge_answer(struct evaluations *all, const struct audit *audit, const struct answer *a, struct judgement *j);
void judgement_free(struct judgement *j);

/* How much is wrong in all answers; 0: every tensor passes. */
int audit_not_passing(const struct audit *audit);

/* ---- shared by judgement.c and sample.c: the steps of a judgement ---- */

/* Takes a convention for granted. False where it cannot be. */
bool judging_assume(struct evaluations *all, const struct convention *c, struct judgement *j);
/* What there is to judge by the convention that is assumed; what cannot be has its verdict. */
void judging_present(struct judgement *j);
/* Judges the tensors first .. last by one recipe, with the statistics or by the bounds alone. */
void judging_compare(struct evaluations *all, const struct audit *audit, int recipe, bool statistical, int first,
                     int last, struct judgement *j);
void judging_take_verdicts(const struct audit *audit, struct judgement *j);
/* Whether some tensor is off by more than a bound: statistics are about how it is computed, not what. */
bool judging_exceeds_bounds(const struct audit *audit, const struct judgement *j);
/* The convention under which least is wrong; of those the one that deviates least. */
struct convention judging_infer(struct evaluations *all, const struct audit *audit, struct judgement *j);
/* Of the recipes that round less than the one asked for, which are none of that. */
bool judging_is_stricter(int recipe, int asked);

/* Judges o, lse and dq of options->sample rows alone, by bounds; returns the convention that was assumed. */
struct convention judge_sample(const struct audit *audit, const struct answer *a, struct judgement *j);

/* One run: rows first .. first + rows - 1 of sequence b. */
struct run {
    int64_t b, first, rows;
    int32_t used_q, used_k;
    int64_t *streams; /* of dropout, to be freed */
};
int64_t sample_run_rows(const struct attest_problem *p); /* of a run that begins at a multiple of so many */
/* A run of a batch that is not ragged as a problem of its own, with its arguments, and what was returned of it. */
struct attest_problem problem_of_run(const struct attest_problem *whole, struct run *r,
                                     struct attest_backward_args *args);
struct answer answer_of_run(const struct answer *whole, const struct attest_problem *p, const struct run *r);

/* The bound that a tensor was judged by. */
const struct ref_bound *judgement_bound(const struct judgement *j, int recipe, enum ref_tensor which);

/* The worst of all verdicts, as an exit status. */
int audit_exit_status(const struct audit *audit);

#endif

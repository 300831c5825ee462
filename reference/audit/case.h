/* case.h - which tensors of which files are the problem, and which are an implementation's answer.
 *
 * The inputs and the settings become one attest_problem with its arguments, checked by
 * attest_plan_create, so that a refusal reads the same here as in the library. */
#ifndef ATTEST_AUDIT_CASE_H
#define ATTEST_AUDIT_CASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "lib/attest.h"
#include "reference/audit/notes.h"
#include "reference/audit/options.h"
#include "reference/audit/tensor_set.h"
#include "reference/audit/view.h"

/* The tensors that are judged: o, lse, dq, dk, dv, dbias, dsink, numbered as enum ref_tensor. */
enum { CASE_NUM_TENSORS = 7 };

enum { LAYOUTS_TRIED = 4 };

/* Layouts that fit q, k and v, the likeliest first. */
struct layouts {
    struct {
        enum layout q, kv;
    } of[LAYOUTS_TRIED];
    int count;
    const char *why; /* the first is the first */
};

struct audit_case {
    const struct options *options;
    struct tensor_set set;
    struct view q, k, v;           /* as they lie in their files */
    struct view rows_k, rows_v;    /* as four axes; of pages, the first counts them */
    struct layouts layouts;
    int chosen;                    /* of the layouts */
    enum layout layout;            /* of q, and of what states none */
    int64_t heads, heads_kv;       /* as stated; 0: not stated */
    const char *family;
    bool diag_is_assumed;          /* nobody named the mask's diagonal: another may be inferred */
    bool statistical;              /* the family's errors are judged statistically too */
    struct attest_problem problem; /* outputs are packed, of q's dtype, until an implementation says otherwise */
    struct attest_backward_args args;
    bool has_scales;               /* of fp8 inputs: gradients then are of nobody knows which */
    double v_scale;                /* of them: what o is multiplied by at the end; 1: nothing */
    char *unread;                  /* inputs that are not understood and may matter, or NULL */
    struct notes notes;            /* where each setting came from, and what is odd about the inputs */
    int kept_notes;                /* of them those of case_open */
    void **owned;                  /* arrays that were made of the files' */
    int num_owned;
};

/* What one implementation returned. */
struct answer {
    const char *name;
    struct tensor_set set;
    char *error;                         /* why nothing of it can be judged, or NULL */
    struct attest_problem problem;       /* the case's, with the outputs as this implementation laid them out */
    const void *got[CASE_NUM_TENSORS];   /* NULL: not returned, or not to be judged */
    char *unsupported[CASE_NUM_TENSORS]; /* why a returned tensor cannot be judged, or NULL */
    char *wrong[CASE_NUM_TENSORS];       /* what is wrong with its shape, or NULL; of o that is an error of all */
    float *lse;                          /* packed, as the problem says */
    bool problem_unsupported;            /* `error` is the library's UNSUPPORTED */
    struct notes notes;                  /* how its tensors were read */
    bool borrowed;                       /* name and set are another's */
};

/* Paths to inputs and results: those after the first that have no NAME=, hold inputs and hold no results are inputs,
 * too; a file of both that stands alone is both. NULL, or one sentence. */
char *case_sort_paths(struct options *options);

/* Opens the files of results[first] and of those that continue it under the same name. */
void answer_open(const struct options *options, int first, struct answer *a);
bool answer_is_continuation(const struct options *options, int i);

/* Reads the inputs and finds the layouts that fit; an answer's lse may decide which is likeliest. NULL, or one
 * sentence. */
char *case_open(const struct options *options, const struct answer *answers, int num_answers, struct audit_case *c);
/* Makes the problem of settings and inputs, read in one of the layouts. NULL, or one sentence. */
char *case_place(struct audit_case *c, int layout);

/* Places the tensors of an answer in its problem. What is wrong with it stays in its fields. */
void answer_place(const struct audit_case *c, struct answer *a);
struct answer answer_copy(const struct answer *a); /* of the same files, not placed */

/* Says what is odd about an answer's files. */
void answer_note(const struct answer *a, struct notes *notes);

void case_unplace(struct audit_case *c); /* back to where case_open left it */
void case_close(struct audit_case *c);
void answer_close(struct answer *a);

/* ---- shared by case.c, case_scores.c, case_sequences.c and answer.c ---- */

/* Says what was guessed; with --strict a sentence instead. */
char *case_guess(struct audit_case *c, struct notes *notes, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
void *case_own(struct audit_case *c, void *memory); /* returns it */
char *case_wrong_shape(const struct view *v, const char *expected);
/* The layout stated for this tensor, or for all. */
enum stated { STATED_NOT, STATED_FOR_ALL, STATED_FOR_THIS };
enum stated case_stated_layout(const struct audit_case *c, enum part part, enum layout *layout);
/* Reads rows of that extent in the layout stated for this tensor, or else in the case's or whichever fits. NULL, or one
 * sentence. */
char *case_read_rows(const struct audit_case *c, struct view v, enum part part, struct extent want,
                     struct notes *notes, struct view *rows);
/* lse or dlse, packed as the problem has lse; NULL where the shape fits none of the orders in use. */
float *case_read_lse(const struct audit_case *c, const struct tensor *t);
/* The parts of a packed tensor: `count` of them, 3 or 2. */
char *case_unpack(const struct audit_case *c, const struct tensor *t, int count, struct notes *notes,
                  struct view parts[3]);
char *case_read_sequences(struct audit_case *c); /* cu_seqlens, seqused and pages, before q, k, v are placed */
char *case_read_scores(struct audit_case *c);    /* what is added to scores and hides keys, after them */
char *case_hide_keys(struct audit_case *c);      /* finite biases that leave a key no weight */
bool case_score_strides(const struct attest_problem *p, const struct view *v, bool blocks,
                        struct attest_score_tensor *out);
void case_note_widened(const struct tensor_set *set, enum part part, struct notes *notes);
char *case_check(const struct attest_problem *p, enum attest_status *status); /* NULL, or the library's sentence */

#endif

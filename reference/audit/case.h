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
#include "reference/audit/tensor_file.h"

/* The tensors that are judged: o, lse, dq, dk, dv, numbered as enum ref_tensor. */
enum { CASE_NUM_TENSORS = 5 };

/* Files that are looked into as if they were one. */
struct tensor_set {
    const char **paths;
    struct tensor_file **files;
    int count;
};
const struct tensor *tensor_set_find(const struct tensor_set *set, const char *name);    /* NULL if absent */
const char *tensor_set_metadata(const struct tensor_set *set, const char *key);          /* NULL if absent */
char *tensor_set_twice(const struct tensor_set *set, const char *name); /* a sentence if two files hold it, or NULL */
char *tensor_set_unread(const struct tensor_set *set); /* names of tensors that nothing looks for, or NULL */

/* The order of the axes of q, k, v and of what goes with them. */
enum case_layout { LAYOUT_SHD, LAYOUT_HSD, LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_NUM };
extern const char *const case_layout_names[LAYOUT_NUM];

struct audit_case {
    struct tensor_set set;
    enum case_layout layout;
    const char *family;
    bool diag_is_assumed;          /* nobody named the mask's diagonal: another may be inferred */
    bool statistical;              /* the family's errors are judged statistically too */
    struct attest_problem problem; /* outputs are packed, of q's dtype, until an implementation says otherwise */
    struct attest_backward_args args;
    float *slopes;                 /* of the setting alibi */
    struct notes notes;            /* where each setting came from, and what is odd about the inputs */
};

/* What one implementation returned. */
struct answer {
    const char *name;
    struct tensor_set set;
    struct attest_problem problem;       /* the case's, with the outputs as this implementation laid them out */
    const void *got[CASE_NUM_TENSORS];   /* NULL: not returned, or not to be judged */
    char *unsupported[CASE_NUM_TENSORS]; /* why a returned tensor cannot be judged, or NULL */
    char *error;                         /* why nothing of it can be judged, or NULL */
    bool problem_unsupported;            /* `error` is the library's UNSUPPORTED */
};

bool case_is_input_name(const char *name, size_t length);

/* Opens the files of results[first] and of those that continue it under the same name. */
void answer_open(const struct options *options, int first, struct answer *a);
bool answer_is_continuation(const struct options *options, int i);

/* Reads inputs and settings; an answer's lse may decide the layout. NULL, or one sentence. */
char *case_open(const struct options *options, const struct answer *answers, int num_answers, struct audit_case *c);

/* Places the tensors of an answer in its problem. What is wrong with it stays in its fields. */
void answer_place(const struct audit_case *c, struct answer *a);

/* Says what is odd about an answer's files. */
void answer_note(const struct answer *a, struct notes *notes);

void case_close(struct audit_case *c);
void answer_close(struct answer *a);

/* Shared by case.c and answer.c. */
struct extent {
    int64_t batch, seqlen, heads, dim;
};
bool case_extent(const struct tensor *t, enum case_layout layout, struct extent *e);
struct attest_tensor case_packed(int32_t dtype, struct extent e, enum case_layout layout);
bool case_lse_strides(const struct tensor *t, int64_t batch, int64_t heads, int64_t seqlen, struct attest_tensor *lse);
char *case_shape_text(const struct tensor *t);
void case_note_widened(const struct tensor_set *set, const char *name, struct notes *notes);
char *tensor_set_open(struct tensor_set *set);
char *case_check(const struct attest_problem *p, enum attest_status *status); /* NULL, or the library's sentence */

#endif

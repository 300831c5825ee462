/* audit.c - the audit of files: files in, verdicts out. */
#include "reference/audit/audit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "reference/audit/mistakes.h"
#include "reference/audit/report.h"

static void open_answers(const struct options *options, struct audit *audit)
{
    audit->answers = allocate((size_t)options->num_results, sizeof *audit->answers);
    for (int i = 0; i < options->num_results; ++i)
        if (!answer_is_continuation(options, i)) answer_open(options, i, &audit->answers[audit->num_answers++]);
}

static void judge_all(const struct options *options, struct audit *audit)
{
    struct evaluations *all = &audit->evaluations;
    *all = (struct evaluations){.args = audit->problem->args, .threads = options->threads,
                                .progress = isatty(STDERR_FILENO) == 1};
    audit->judgements = allocate((size_t)audit->num_answers, sizeof *audit->judgements);
    for (int i = 0; i < audit->num_answers; ++i) {
        answer_place(audit->problem, &audit->answers[i]);
        judge_answer(all, audit, &audit->answers[i], &audit->judgements[i]);
        progress_end(all);
        answer_note(&audit->answers[i], &audit->judgements[i].notes);
    }
}

static int write_reports(const struct options *options, const struct audit *audit)
{
    const struct {
        const char *path;
        bool (*write)(const struct audit *, const char *);
    } reports[] = {{options->json, report_write_json}, {options->junit, report_write_junit},
                   {options->html, report_write_html}};
    int failed = 0;
    if (fflush(stdout) != 0) {
        fprintf(stderr, "audit: standard output cannot be written: %s\n", strerror(errno));
        failed = AUDIT_EXIT_UNUSABLE;
    }
    for (size_t i = 0; i < sizeof reports / sizeof *reports; ++i) {
        if (reports[i].path == NULL || reports[i].write(audit, reports[i].path)) continue;
        fprintf(stderr, "audit: %s cannot be written: %s\n", reports[i].path, strerror(errno));
        failed = AUDIT_EXIT_UNUSABLE;
    }
    return failed;
}

static void free_audit(struct audit *audit)
{
    for (int i = 0; i < audit->num_answers; ++i) {
        if (audit->judgements != NULL) judgement_free(&audit->judgements[i]);
        answer_close(&audit->answers[i]);
    }
    evaluations_free(&audit->evaluations);
    case_close(audit->problem);
    free(audit->judgements);
    free(audit->answers);
}

/* Judges the answers, the inputs being read in one of the layouts that fit. NULL, or one sentence. */
static char *judge_in_layout(const struct options *options, int layout, struct audit *audit)
{
    char *wrong = case_place(audit->problem, layout);
    if (wrong == NULL) judge_all(options, audit);
    return wrong;
}

/* The files stay with the audit that is kept. */
static void exchange(struct audit *a, struct audit *b)
{
    const struct audit kept = *a;
    for (int i = 0; i < a->num_answers; ++i) {
        a->answers[i].borrowed = true;
        b->answers[i].borrowed = false;
    }
    *a = *b;
    *b = kept;
}

/* Where several layouts fit and results do not pass in the likeliest, the one in which most pass is the one that was
 * meant. A problem that is tried has files of its own: the first keeps what was judged in it. */
static char *judge_in_best_layout(const struct options *options, struct audit *audit, struct audit_case *others)
{
    char *wrong = judge_in_layout(options, 0, audit);
    for (int layout = 1; layout < audit->problem->layouts.count && wrong == NULL; ++layout) {
        struct audit tried = {.options = options, .problem = &others[layout], .recipe = audit->recipe,
                              .num_answers = audit->num_answers};
        if (audit_not_passing(audit) == 0) return NULL;
        tried.answers = allocate((size_t)audit->num_answers, sizeof *tried.answers);
        for (int i = 0; i < audit->num_answers; ++i) tried.answers[i] = answer_copy(&audit->answers[i]);
        char *unfit = case_open(options, audit->answers, audit->num_answers, &others[layout]);
        if (unfit == NULL) unfit = judge_in_layout(options, layout, &tried);
        if (unfit == NULL && audit_not_passing(&tried) < audit_not_passing(audit)) exchange(audit, &tried);
        free(unfit);
        free_audit(&tried);
    }
    return wrong;
}

static void print_errors(const struct audit *audit)
{
    for (int i = 0; i < audit->num_answers; ++i) {
        const struct answer *a = &audit->answers[i];
        if (a->error != NULL) fprintf(stderr, "audit: %s\n", a->error);
        for (int t = 0; t < CASE_NUM_TENSORS && a->error == NULL; ++t)
            if (a->wrong[t] != NULL) fprintf(stderr, "audit: %s\n", a->wrong[t]);
    }
}

int audit_files(struct options *options)
{
    struct audit_case cases[LAYOUTS_TRIED] = {{.set = {.count = 0}}};
    struct audit audit = {.options = options, .problem = cases, .recipe = (int)(options->recipe - ref_recipes)};
    int status = AUDIT_EXIT_UNUSABLE;
    char *wrong = case_sort_paths(options);
    if (wrong == NULL) {
        open_answers(options, &audit);
        wrong = case_open(options, audit.answers, audit.num_answers, cases);
    }
    if (wrong == NULL) wrong = judge_in_best_layout(options, &audit, cases);
    if (wrong != NULL) {
        fprintf(stderr, "audit: %s\n", wrong);
        free(wrong);
    } else {
        for (int i = 0; i < audit.num_answers; ++i) mistakes_explain(&audit, &audit.judgements[i]);
        progress_end(&audit.evaluations);
        print_errors(&audit);
        report_table(&audit, stdout);
        status = write_reports(options, &audit);
        if (status == AUDIT_EXIT_PASS) status = audit_exit_status(&audit);
    }
    free_audit(&audit);
    return status;
}

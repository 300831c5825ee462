/* audit.c - the audit of files: files in, verdicts out. */
#include "reference/audit/audit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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
        if (audit->answers[i].error != NULL) fprintf(stderr, "audit: %s\n", audit->answers[i].error);
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

int audit_files(const struct options *options)
{
    struct audit_case problem;
    struct audit audit = {.options = options, .problem = &problem, .recipe = (int)(options->recipe - ref_recipes)};
    open_answers(options, &audit);
    int status = AUDIT_EXIT_UNUSABLE;
    char *wrong = case_open(options, audit.answers, audit.num_answers, &problem);
    if (wrong != NULL) {
        fprintf(stderr, "audit: %s\n", wrong);
        free(wrong);
    } else {
        judge_all(options, &audit);
        report_table(&audit, stdout);
        status = write_reports(options, &audit);
        if (status == AUDIT_EXIT_PASS) status = audit_exit_status(&audit);
    }
    free_audit(&audit);
    return status;
}

/* audit_fixture.h - for tests: small problems, answers in any convention, and runs of the audit command. */
#ifndef ATTEST_AUDIT_FIXTURE_H
#define ATTEST_AUDIT_FIXTURE_H

#include <jansson.h>
#include <stdbool.h>

#include "lib/attest.h"
#include "reference/audit/conventions.h"
#include "reference/audit/write_safetensors.h"

/* One batch, rows before heads. Every array is packed and in `dtype`, lse in fp32 as [heads, seqlen_q]. */
struct fixture {
    struct attest_problem problem; /* to be changed before fixture_make */
    struct attest_backward_args args;
    void *q, *k, *v, *dout;
    void *o, *lse, *dq, *dk, *dv;
    float *slopes;
};

/* A problem of these shapes with head_dim 16, bf16, scale 0.25. */
struct fixture fixture_new(int64_t seqlen_q, int64_t seqlen_k, int64_t heads_q, int64_t heads_kv);

/* Draws inputs uniform in -2 .. 2 and computes what an implementation returns that rounds once, at the end. */
void fixture_make(struct fixture *f);
void fixture_answer(struct fixture *f);     /* the same for inputs that a test changed */
void fixture_free(struct fixture *f);

/* Overwrites o and lse with those of another convention, by plain loops that share no code with the audit. */
void fixture_deviate(struct fixture *f, enum alibi_form form, int64_t diag);

/* Writes f's inputs, or those of its results that `names` lists ("o,lse"), to a file of the test's own folder. */
void fixture_write_inputs(const struct fixture *f, const char *path);
void fixture_write_results(const struct fixture *f, const char *path, const char *names);

void fixture_write_tensors(const char *path, const struct tensor *tensors, int count);

/* Runs the command in the test's folder; `arguments` is shell text. Returns its exit status; what it printed stays
 * there until the next run. */
int run_audit(const char *arguments);
const char *audit_binary(void);
int run_in_folder(const char *command); /* any shell command there; its exit status */
const char *path_in_folder(const char *name);
const char *audit_stdout(void);
const char *audit_stderr(void);

/* Path of something in the project, from any folder. */
const char *project_path(const char *relative);

/* The JSON report of the last run with `--json a.json`, to be released with json_decref. */
json_t *audit_json(void);
/* audit_json() -> implementations[i].tensors.NAME.recipes.RECIPE */
json_t *json_of_tensor(json_t *root, int i, const char *name);
const char *verdict_in(json_t *root, int i, const char *name);

#endif

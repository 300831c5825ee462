/* answer.c - what one implementation returned: its files, its name, where its tensors lie. */
#include <stdlib.h>
#include <string.h>

#include "reference/audit/case.h"
#include "reference/bounds.h"
#include "reference/formats.h"

static bool same_name(const struct results_path *a, const struct results_path *b)
{
    return a->name != NULL && b->name != NULL && strcmp(a->name, b->name) == 0;
}

bool answer_is_continuation(const struct options *options, int i)
{
    for (int j = 0; j < i; ++j)
        if (same_name(&options->results[i], &options->results[j])) return true;
    return false;
}

/* Metadata are a stranger's: no control characters reach the terminal. */
static char *printable(const char *text)
{
    char *copy = sentence("%s", text);
    for (char *c = copy; *c != '\0'; ++c)
        if ((*c >= 0 && *c < ' ') || *c == 0x7f) *c = '?';
    return copy;
}

/* The name given, else the one in the metadata, else the file's without folder and ending. */
static char *name_of(const struct results_path *r, const struct tensor_set *set)
{
    const char *name = r->name != NULL ? r->name : tensor_set_metadata(set, "implementation");
    if (name != NULL) return printable(name);
    size_t end = strlen(r->path);
    while (end > 1 && r->path[end - 1] == '/') --end;
    size_t begin = end;
    while (begin > 0 && r->path[begin - 1] != '/') --begin;
    char *stem = sentence("%.*s", (int)(end - begin), r->path + begin);
    char *dot = strrchr(stem, '.');
    if (dot != NULL && dot != stem) *dot = '\0';
    return stem;
}

void answer_open(const struct options *options, int first, struct answer *a)
{
    *a = (struct answer){.name = NULL};
    a->set.paths = allocate((size_t)(options->num_results - first), sizeof *a->set.paths);
    for (int i = first; i < options->num_results; ++i)
        if (i == first || same_name(&options->results[i], &options->results[first]))
            a->set.paths[a->set.count++] = options->results[i].path;
    a->error = tensor_set_open(&a->set);
    a->name = name_of(&options->results[first], &a->set);
}

static struct attest_tensor *output_of(struct attest_problem *p, enum ref_tensor which)
{
    struct attest_tensor *const outputs[CASE_NUM_TENSORS] = {&p->o, &p->lse, &p->dq, &p->dk, &p->dv};
    return outputs[which];
}

/* What the inputs ask of an output: the packed shape of the case. */
static struct extent expected_extent(const struct attest_problem *p, enum ref_tensor which)
{
    const bool of_keys = which == REF_DK || which == REF_DV;
    return (struct extent){p->batch, of_keys ? p->seqlen_k : p->seqlen_q, of_keys ? p->num_heads_kv : p->num_heads_q,
                           which == REF_O || which == REF_DV ? p->head_dim_v : p->head_dim};
}

static char *shape_error(const struct answer *a, const struct tensor *t, const struct audit_case *c, struct extent e)
{
    char *shape = case_shape_text(t);
    char *wrong = sentence("%s of '%s' has shape %s; the inputs ask for batch %lld, seqlen %lld, heads %lld, head_dim "
                           "%lld in layout %s", t->name, a->name, shape, (long long)e.batch, (long long)e.seqlen,
                           (long long)e.heads, (long long)e.dim, case_layout_names[c->layout]);
    free(shape);
    return wrong;
}

static char *lse_shape_error(const struct answer *a, const struct tensor *t, struct extent e)
{
    char *shape = case_shape_text(t);
    char *wrong = sentence("lse of '%s' has shape %s; the inputs ask for [batch, heads, seqlen_q] = [%lld, %lld, %lld]",
                           a->name, shape, (long long)e.batch, (long long)e.heads, (long long)e.seqlen);
    free(shape);
    return wrong;
}

static char *place_tensor(const struct audit_case *c, enum ref_tensor which, const struct tensor *t, struct answer *a)
{
    const struct extent want = expected_extent(&c->problem, which);
    struct attest_tensor placed;
    struct extent e;
    if (which == REF_LSE) {
        if (!case_lse_strides(t, want.batch, want.heads, want.seqlen, &placed))
            return lse_shape_error(a, t, want);
    } else {
        if (!case_extent(t, c->layout, &e) || memcmp(&e, &want, sizeof e) != 0) return shape_error(a, t, c, want);
        placed = case_packed(t->dtype, e, c->layout);
    }
    if (which == REF_LSE && t->dtype != ATTEST_FP32) {
        a->unsupported[which] = sentence("lse is %s; only fp32 can be judged", tensor_dtype_name(t->dtype));
    } else if (ref_format(t->dtype) == NULL || ref_dtype_bytes(t->dtype) == 1) {
        a->unsupported[which] = sentence("%s is %s; only fp32, fp16 and bf16 can be judged", t->name,
                                         tensor_dtype_name(t->dtype));
    } else if (which >= REF_DQ && c->problem.dout.dtype == ATTEST_ABSENT) {
        a->unsupported[which] = sentence("%s needs dout, which the inputs do not hold", t->name);
    } else {
        *output_of(&a->problem, which) = placed;
        a->got[which] = t->data;
    }
    return NULL;
}

void answer_place(const struct audit_case *c, struct answer *a)
{
    bool any = false;
    a->problem = c->problem;
    for (int which = 0; which < CASE_NUM_TENSORS && a->error == NULL; ++which) {
        const struct tensor *t = tensor_set_find(&a->set, ref_tensor_names[which]);
        if (t == NULL) continue;
        any = true;
        a->error = tensor_set_twice(&a->set, t->name);
        if (a->error == NULL) a->error = place_tensor(c, (enum ref_tensor)which, t, a);
    }
    if (a->error != NULL) return;
    if (!any) {
        a->error = sentence("'%s' holds none of o, lse, dq, dk, dv", a->name);
        return;
    }
    enum attest_status status;
    a->error = case_check(&a->problem, &status);
    a->problem_unsupported = status == ATTEST_UNSUPPORTED;
}

void answer_note(const struct answer *a, struct notes *notes)
{
    char *unread = tensor_set_unread(&a->set);
    if (unread != NULL) note(notes, "'%s' also holds %s: not judged", a->name, unread);
    free(unread);
    for (int which = 0; which < CASE_NUM_TENSORS; ++which)
        if (which != REF_LSE) case_note_widened(&a->set, ref_tensor_names[which], notes);
}

void answer_close(struct answer *a)
{
    for (int i = 0; i < a->set.count; ++i) tensor_file_close(a->set.files[i]);
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) free(a->unsupported[t]);
    free(a->set.files);
    free((void *)a->set.paths);
    free((char *)a->name);
    free(a->error);
}

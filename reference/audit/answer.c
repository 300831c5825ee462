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

struct answer answer_copy(const struct answer *a)
{
    struct answer copy = {.name = a->name, .set = a->set, .borrowed = true};
    if (a->error != NULL) copy.error = sentence("%s", a->error);
    return copy;
}

static struct attest_tensor *output_of(struct attest_problem *p, enum ref_tensor which)
{
    struct attest_tensor *const outputs[] = {&p->o, &p->lse, &p->dq, &p->dk, &p->dv};
    return outputs[which];
}

/* What the inputs ask of a tensor of rows; all rows of a ragged batch are one. */
static struct extent expected_extent(const struct attest_problem *p, enum ref_tensor which)
{
    const bool of_keys = which == REF_DK || which == REF_DV;
    const int64_t total = of_keys ? p->total_k : p->total_q, seqlen = of_keys ? p->seqlen_k : p->seqlen_q;
    return (struct extent){p->ragged ? 1 : p->batch, p->ragged ? total : seqlen,
                           of_keys ? p->num_heads_kv : p->num_heads_q,
                           which == REF_O || which == REF_DV ? p->head_dim_v : p->head_dim};
}

static char *shape_error(const struct answer *a, const struct view *v, const struct audit_case *c, struct extent e)
{
    char *shape = view_shape_text(v);
    char *wrong = sentence("%s of '%s' has shape %s; the inputs ask for batch %lld, seqlen %lld, heads %lld, head_dim "
                           "%lld in layout %s", v->name, a->name, shape, (long long)e.batch, (long long)e.seqlen,
                           (long long)e.heads, (long long)e.dim, layout_names[c->layout]);
    free(shape);
    return wrong;
}

static char *lse_shape_error(const struct answer *a, const struct view *v, struct extent e)
{
    char *shape = view_shape_text(v);
    char *wrong = sentence("%s of '%s' has shape %s; the inputs ask for [batch, heads, seqlen_q] = [%lld, %lld, %lld]",
                           v->name, a->name, shape, (long long)e.batch, (long long)e.heads, (long long)e.seqlen);
    free(shape);
    return wrong;
}

/* Why a tensor of this dtype cannot be judged, or NULL. */
static char *unsupported(const struct audit_case *c, enum ref_tensor which, const struct view *v)
{
    if (which >= REF_DQ && c->problem.dout.dtype == ATTEST_ABSENT)
        return sentence("%s needs dout, which the inputs do not hold", v->name);
    if (which >= REF_DQ && c->has_scales)
        return sentence("%s is a gradient beside scales of fp8: whether it is of the scaled tensors is not known",
                        v->name);
    if ((which == REF_LSE || which == REF_DSINK) && v->dtype != ATTEST_FP32)
        return sentence("%s is %s; only fp32 can be judged", v->name, tensor_dtype_name(v->dtype));
    if (ref_format(v->dtype) == NULL || ref_dtype_bytes(v->dtype) == 1)
        return sentence("%s is %s; only fp32, fp16 and bf16 can be judged", v->name, tensor_dtype_name(v->dtype));
    if (which == REF_DBIAS && c->problem.bias.dtype == ATTEST_ABSENT)
        return sentence("%s needs a bias, which the inputs do not hold", v->name);
    if (which == REF_DSINK && !c->problem.has_sink)
        return sentence("%s needs a sink, which the inputs do not hold", v->name);
    return NULL;
}

static char *place_rows(const struct audit_case *c, enum ref_tensor which, struct view v, struct answer *a)
{
    const struct extent want = expected_extent(&c->problem, which);
    struct view rows;
    char *wrong = case_read_rows(c, v, (enum part)(PART_O + which), want, &a->notes, &rows);
    if (wrong != NULL && strstr(wrong, "in any layout") != NULL) {
        free(wrong);
        return shape_error(a, &v, c, want);
    }
    if (wrong != NULL) return wrong;
    a->unsupported[which] = unsupported(c, which, &v);
    if (a->unsupported[which] != NULL) return NULL;
    *output_of(&a->problem, which) = view_strides(&rows);
    a->got[which] = rows.data;
    return NULL;
}

/* An lse is copied into the order of the problem. */
static char *place_lse(const struct audit_case *c, const struct tensor *t, struct answer *a)
{
    const struct view v = view_of(t);
    const struct extent want = expected_extent(&c->problem, REF_O);
    struct tensor shape_only = *t;
    static const float none[1];
    struct view lse;
    if (t->dtype != ATTEST_FP32) { /* the shape is looked at all the same */
        shape_only.data = none;
        if (!lse_read(view_of(&shape_only), want.batch, want.heads, want.seqlen, &lse))
            return lse_shape_error(a, &v, want);
        a->unsupported[REF_LSE] = unsupported(c, REF_LSE, &v);
        return NULL;
    }
    a->lse = case_read_lse(c, t);
    if (a->lse == NULL) return lse_shape_error(a, &v, want);
    a->got[REF_LSE] = a->lse;
    return NULL;
}

static char *place_dbias(const struct audit_case *c, const struct tensor *t, struct answer *a)
{
    const struct view v = view_of(t);
    a->unsupported[REF_DBIAS] = unsupported(c, REF_DBIAS, &v);
    if (a->unsupported[REF_DBIAS] != NULL) return NULL;
    if (!case_score_strides(&c->problem, &v, false, &a->problem.dbias))
        return case_wrong_shape(&v, "[batch, heads, seqlen_q, seqlen_k] with 1 for axes that are summed");
    a->got[REF_DBIAS] = t->data;
    return NULL;
}

static char *place_dsink(const struct audit_case *c, const struct tensor *t, struct answer *a)
{
    const struct view v = view_of(t);
    a->unsupported[REF_DSINK] = unsupported(c, REF_DSINK, &v);
    if (a->unsupported[REF_DSINK] != NULL) return NULL;
    if (t->elements != c->problem.num_heads_q) return case_wrong_shape(&v, "one number for each head of q");
    a->got[REF_DSINK] = t->data;
    return NULL;
}

/* dqkv and dkv. */
static char *place_packed(const struct audit_case *c, struct answer *a, bool *any)
{
    char *wrong = NULL;
    for (int packed = PART_DQKV; packed <= PART_DKV && wrong == NULL; ++packed) {
        const struct tensor *t = tensor_set_find(&a->set, (enum part)packed);
        struct view parts[3] = {{.name = NULL}};
        if (t == NULL) continue;
        *any = true;
        wrong = case_unpack(c, t, packed == PART_DQKV ? 3 : 2, &a->notes, parts);
        for (int i = 0; i < 3 && wrong == NULL; ++i) {
            if (parts[i].name == NULL) continue;
            parts[i].name = ref_tensor_names[REF_DQ + i];
            if (a->got[REF_DQ + i] != NULL)
                wrong = sentence("'%s' holds both %s and %s", a->name, t->name, parts[i].name);
            else wrong = place_rows(c, (enum ref_tensor)(REF_DQ + i), parts[i], a);
        }
    }
    return wrong;
}

void answer_place(const struct audit_case *c, struct answer *a)
{
    bool any = false;
    a->problem = c->problem;
    if (a->error == NULL) a->error = tensor_set_twice(&a->set);
    for (int which = 0; which < CASE_NUM_TENSORS && a->error == NULL; ++which) {
        const struct tensor *t = tensor_set_find(&a->set, (enum part)(PART_O + which));
        if (t == NULL) continue;
        any = true;
        char **wrong = which == REF_O ? &a->error : &a->wrong[which];
        if (which == REF_LSE) *wrong = place_lse(c, t, a);
        else if (which == REF_DBIAS) *wrong = place_dbias(c, t, a);
        else if (which == REF_DSINK) *wrong = place_dsink(c, t, a);
        else *wrong = place_rows(c, (enum ref_tensor)which, view_of(t), a);
    }
    if (a->error == NULL) a->error = place_packed(c, a, &any);
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
    char *unread = tensor_set_unread(&a->set, false, NULL);
    if (unread != NULL) note(notes, "'%s' also holds %s: not judged", a->name, unread);
    free(unread);
    for (int i = 0; i < a->notes.count; ++i) note(notes, "'%s': %s", a->name, a->notes.text[i]);
    for (int which = 0; which < CASE_NUM_TENSORS; ++which)
        if (which != REF_LSE) case_note_widened(&a->set, (enum part)(PART_O + which), notes);
}

void answer_close(struct answer *a)
{
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        free(a->unsupported[t]);
        free(a->wrong[t]);
    }
    notes_free(&a->notes);
    free(a->lse);
    free(a->error);
    if (a->borrowed) return;
    tensor_set_close(&a->set);
    free((void *)a->set.paths);
    free((char *)a->name);
}

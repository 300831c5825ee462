/* case.c - from the tensors of the inputs to an attest_problem. */
#include "reference/audit/case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/settings.h"
#include "reference/bounds.h"
#include "reference/formats.h"

const char *const case_layout_names[LAYOUT_NUM] = {"shd", "hsd", "bshd", "bhsd"};

static const char *const input_names[] = {"q",    "k",    "v",    "dout",         "do",
                                          "bias", "mask", "sink", "alibi_slopes", "dlse"};

bool case_is_input_name(const char *name, size_t length)
{
    for (size_t i = 0; i < sizeof input_names / sizeof *input_names; ++i)
        if (strlen(input_names[i]) == length && memcmp(name, input_names[i], length) == 0) return true;
    return false;
}

/* ---- sets of files ---- */

char *tensor_set_open(struct tensor_set *set)
{
    char text[512];
    set->files = allocate((size_t)set->count, sizeof *set->files);
    for (int i = 0; i < set->count; ++i)
        if (tensor_file_open(set->paths[i], &set->files[i], text, sizeof text) != 0) return sentence("%s", text);
    return NULL;
}

const struct tensor *tensor_set_find(const struct tensor_set *set, const char *name)
{
    const struct tensor *t = NULL;
    for (int i = 0; i < set->count && t == NULL; ++i)
        if (set->files[i] != NULL) t = tensor_file_find(set->files[i], name);
    return t;
}

const char *tensor_set_metadata(const struct tensor_set *set, const char *key)
{
    const char *value = NULL;
    for (int i = 0; i < set->count && value == NULL; ++i)
        if (set->files[i] != NULL) value = tensor_file_metadata(set->files[i], key);
    return value;
}

char *tensor_set_twice(const struct tensor_set *set, const char *name)
{
    int first = -1;
    for (int i = 0; i < set->count; ++i) {
        if (set->files[i] == NULL || tensor_file_find(set->files[i], name) == NULL) continue;
        if (first >= 0) return sentence("tensor %s is in both %s and %s", name, set->paths[first], set->paths[i]);
        first = i;
    }
    return NULL;
}

static bool is_read(const char *name)
{
    for (int i = 0; i < CASE_NUM_TENSORS; ++i)
        if (strcmp(name, ref_tensor_names[i]) == 0) return true;
    return case_is_input_name(name, strlen(name));
}

/* A misspelt name must not go unnoticed. Checkpoints may hold thousands: the first few say enough. */
char *tensor_set_unread(const struct tensor_set *set)
{
    enum { SHOWN = 8 };
    char text[SHOWN * 64 + 32] = "";
    int count = 0;
    for (int i = 0; i < set->count; ++i) {
        for (int t = 0; set->files[i] != NULL && t < set->files[i]->count; ++t) {
            const char *name = set->files[i]->tensors[t].name;
            if (is_read(name) || count++ >= SHOWN) continue;
            snprintf(text + strlen(text), sizeof text - strlen(text), "%s'%.50s'", count > 1 ? ", " : "", name);
        }
    }
    if (count > SHOWN) snprintf(text + strlen(text), sizeof text - strlen(text), " and %d more", count - SHOWN);
    for (char *c = text; *c != '\0'; ++c)
        if (*c >= 0 && *c < ' ') *c = '?';
    return count > 0 ? sentence("%s", text) : NULL;
}

/* ---- layouts ---- */

bool case_extent(const struct tensor *t, enum case_layout layout, struct extent *e)
{
    const bool has_batch = layout == LAYOUT_BSHD || layout == LAYOUT_BHSD;
    if (t->ndim != (has_batch ? 4 : 3)) return false;
    const int64_t *n = t->shape + (has_batch ? 1 : 0);
    const bool heads_first = layout == LAYOUT_HSD || layout == LAYOUT_BHSD;
    *e = (struct extent){.batch = has_batch ? t->shape[0] : 1, .seqlen = n[heads_first ? 1 : 0],
                         .heads = n[heads_first ? 0 : 1], .dim = n[2]};
    return true;
}

struct attest_tensor case_packed(int32_t dtype, struct extent e, enum case_layout layout)
{
    const bool heads_first = layout == LAYOUT_HSD || layout == LAYOUT_BHSD;
    return (struct attest_tensor){.dtype = dtype, .batch = e.seqlen * e.heads * e.dim,
                                  .seqlen = heads_first ? e.dim : e.heads * e.dim,
                                  .head = heads_first ? e.seqlen * e.dim : e.dim};
}

/* lse and dlse: [batch, heads, seqlen_q] as the contract has it, or [batch, seqlen_q, heads]; an
 * only sequence may go without its axis. */
bool case_lse_strides(const struct tensor *t, int64_t batch, int64_t heads, int64_t seqlen, struct attest_tensor *lse)
{
    if (t->ndim != 3 && !(t->ndim == 2 && batch == 1)) return false;
    const int64_t *n = t->shape + t->ndim - 2;
    if (t->ndim == 3 && t->shape[0] != batch) return false;
    *lse = (struct attest_tensor){.dtype = t->dtype, .batch = heads * seqlen};
    if (n[0] == heads && n[1] == seqlen) lse->head = seqlen, lse->seqlen = 1;
    else if (n[0] == seqlen && n[1] == heads) lse->head = 1, lse->seqlen = heads;
    else return false;
    return true;
}

char *case_shape_text(const struct tensor *t)
{
    char text[256] = "";
    for (int i = 0; i < t->ndim; ++i)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", i > 0 ? ", " : "", (long long)t->shape[i]);
    return sentence("[%s]", text);
}

static bool is_of_format(const struct tensor *t, int32_t dtype)
{
    for (int64_t i = 0; i < t->elements; ++i) {
        const double x = ref_load(t->dtype, t->data, i);
        if (!isnan(x) && ref_round(dtype, x) != x) return false;
    }
    return true;
}

/* .npy has no bf16, so 16-bit tensors get widened, and then their last rounding is held against them. */
void case_note_widened(const struct tensor_set *set, const char *name, struct notes *notes)
{
    enum { FEWEST = 64 }; /* fewer can be of a 16-bit format by chance */
    const struct tensor *t = tensor_set_find(set, name);
    if (t == NULL || t->dtype != ATTEST_FP32 || t->elements < FEWEST) return;
    const int32_t narrow = is_of_format(t, ATTEST_BF16) ? ATTEST_BF16 : ATTEST_FP16;
    if (narrow == ATTEST_BF16 || is_of_format(t, narrow))
        note(notes,
             "%s: %s is fp32, but every number of it fits %s; if it was widened, hand over the %s tensor: the "
             "bounds follow the dtype", set->paths[0], name, ref_dtype_name(narrow), ref_dtype_name(narrow));
}

/* Whether q, k, v fit together when read in this layout. */
static bool layout_fits(const struct audit_case *c, enum case_layout layout)
{
    struct extent q, k, v;
    if (!case_extent(tensor_set_find(&c->set, "q"), layout, &q)) return false;
    if (!case_extent(tensor_set_find(&c->set, "k"), layout, &k)) return false;
    if (!case_extent(tensor_set_find(&c->set, "v"), layout, &v)) return false;
    return q.batch == k.batch && k.batch == v.batch && k.seqlen == v.seqlen && k.heads == v.heads &&
           k.heads > 0 && q.heads % k.heads == 0 && q.dim == k.dim;
}

/* "seqlen, heads, head_dim" and "shd" name the same layout. */
static bool layout_by_name(const char *text, enum case_layout *layout)
{
    static const char *const words[LAYOUT_NUM] = {"seqlen, heads, head_dim", "heads, seqlen, head_dim",
                                                  "batch, seqlen, heads, head_dim", "batch, heads, seqlen, head_dim"};
    for (int i = 0; i < LAYOUT_NUM; ++i) {
        if (strcmp(text, words[i]) != 0 && strcmp(text, case_layout_names[i]) != 0) continue;
        *layout = (enum case_layout)i;
        return true;
    }
    return false;
}

/* Whether some returned lse is [.., heads, seqlen] when q is read in this layout. */
static bool lse_agrees(const struct audit_case *c, enum case_layout layout, const struct answer *answers, int count)
{
    struct extent q;
    case_extent(tensor_set_find(&c->set, "q"), layout, &q);
    for (int i = 0; i < count; ++i) {
        const struct tensor *lse = tensor_set_find(&answers[i].set, "lse");
        if (lse == NULL || lse->ndim < 2) continue;
        if (lse->shape[lse->ndim - 2] == q.heads && lse->shape[lse->ndim - 1] == q.seqlen) return true;
    }
    return false;
}

/* Heads before or after rows: the one that fits; else the one that a returned lse agrees with; else
 * the one with fewer heads than rows. */
static char *guess_layout(struct audit_case *c, const struct answer *answers, int count)
{
    const struct tensor *q = tensor_set_find(&c->set, "q");
    const enum case_layout rows_first = q->ndim == 3 ? LAYOUT_SHD : LAYOUT_BSHD;
    const enum case_layout heads_first = q->ndim == 3 ? LAYOUT_HSD : LAYOUT_BHSD;
    const bool a = layout_fits(c, rows_first), b = layout_fits(c, heads_first);
    const char *why = "the only layout that fits the shapes";
    if (!a && !b) return sentence("the shapes of q, k and v fit together in no layout of %s",
                                  q->ndim == 3 ? "shd, hsd" : "bshd, bhsd");
    c->layout = a ? rows_first : heads_first;
    if (a && b) {
        const bool lse_a = lse_agrees(c, rows_first, answers, count),
                   lse_b = lse_agrees(c, heads_first, answers, count);
        struct extent e;
        case_extent(q, rows_first, &e);
        if (lse_a != lse_b) c->layout = lse_a ? rows_first : heads_first;
        else c->layout = e.heads <= e.seqlen ? rows_first : heads_first;
        why = lse_a != lse_b ? "a returned lse has that order" : "guessed: fewer heads than rows; --layout states it";
    }
    note(&c->notes, "layout %s (%s)", case_layout_names[c->layout], why);
    return NULL;
}

static char *read_layout(const struct options *options, const struct answer *answers, int count, struct audit_case *c)
{
    const char *origin, *text = setting_text(options, c, SETTING_LAYOUT, &origin);
    if (text == NULL) return guess_layout(c, answers, count);
    if (!layout_by_name(text, &c->layout))
        return sentence("layout is '%s', which is none of shd, hsd, bshd, bhsd", text);
    if (!layout_fits(c, c->layout))
        return sentence("the shapes of q, k and v do not fit together in layout %s", case_layout_names[c->layout]);
    note(&c->notes, "layout %s (%s)", case_layout_names[c->layout], origin);
    return NULL;
}

/* ---- tensors ---- */

static char *wrong_shape(const struct tensor *t, const char *expected)
{
    char *shape = case_shape_text(t);
    char *wrong = sentence("%s has shape %s, which is not %s", t->name, shape, expected);
    free(shape);
    return wrong;
}

static char *wrong_dtype(const struct tensor *t)
{
    if (ref_format(t->dtype) != NULL) return NULL;
    return sentence("%s is %s; inputs are fp32, fp16, bf16, fp8_e4m3 or fp8_e5m2", t->name,
                    tensor_dtype_name(t->dtype));
}

static char *find_qkv(const struct audit_case *c)
{
    static const char *const names[] = {"q", "k", "v"};
    char *wrong = NULL;
    int32_t ndim = 0;
    for (int i = 0; i < 3 && wrong == NULL; ++i) {
        const struct tensor *t = tensor_set_find(&c->set, names[i]);
        if (t == NULL) return sentence("%s: there is no tensor %s", c->set.paths[0], names[i]);
        if (i == 0) ndim = t->ndim;
        if (t->ndim != ndim || (ndim != 3 && ndim != 4)) return wrong_shape(t, "of 3 axes or 4, as many as q");
        wrong = wrong_dtype(t);
    }
    return wrong;
}

static void place_qkv(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const struct tensor *q = tensor_set_find(&c->set, "q"), *k = tensor_set_find(&c->set, "k"),
                        *v = tensor_set_find(&c->set, "v");
    struct extent eq, ek, ev;
    case_extent(q, c->layout, &eq);
    case_extent(k, c->layout, &ek);
    case_extent(v, c->layout, &ev);
    p->batch = eq.batch, p->seqlen_q = eq.seqlen, p->num_heads_q = eq.heads, p->head_dim = eq.dim;
    p->seqlen_k = ek.seqlen, p->num_heads_kv = ek.heads, p->head_dim_v = ev.dim;
    p->q = case_packed(q->dtype, eq, c->layout);
    p->k = case_packed(k->dtype, ek, c->layout);
    p->v = case_packed(v->dtype, ev, c->layout);
    c->args.forward.q = q->data, c->args.forward.k = k->data, c->args.forward.v = v->data;
}

/* Outputs as if an implementation had returned all of them, packed. */
static void place_outputs(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const bool is_fp8 = ref_dtype_bytes(p->q.dtype) == 1;
    const int32_t dtype = is_fp8 ? ATTEST_BF16 : p->q.dtype;
    const struct extent rows_q = {p->batch, p->seqlen_q, p->num_heads_q, p->head_dim};
    const struct extent rows_k = {p->batch, p->seqlen_k, p->num_heads_kv, p->head_dim};
    struct extent o = rows_q, dv = rows_k;
    o.dim = dv.dim = p->head_dim_v;
    p->o = case_packed(dtype, o, c->layout);
    p->lse = (struct attest_tensor){.dtype = ATTEST_FP32, .batch = p->num_heads_q * p->seqlen_q, .seqlen = 1,
                                    .head = p->seqlen_q};
    if (p->dout.dtype == ATTEST_ABSENT) return;
    p->dq = case_packed(dtype, rows_q, c->layout);
    p->dk = case_packed(dtype, rows_k, c->layout);
    p->dv = case_packed(dtype, dv, c->layout);
}

static char *place_dout(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const struct tensor *dout = tensor_set_find(&c->set, "dout"), *dlse = tensor_set_find(&c->set, "dlse");
    if (dout != NULL && tensor_set_find(&c->set, "do") != NULL)
        return sentence("dout and do name the same tensor, and the inputs hold both");
    if (dout == NULL) dout = tensor_set_find(&c->set, "do");
    if (dout != NULL) {
        struct extent e;
        if (!case_extent(dout, c->layout, &e) || e.batch != p->batch || e.seqlen != p->seqlen_q ||
            e.heads != p->num_heads_q || e.dim != p->head_dim_v)
            return wrong_shape(dout, "that of o: q's with head_dim of v");
        p->dout = case_packed(dout->dtype, e, c->layout);
        c->args.dout = dout->data;
        char *wrong = wrong_dtype(dout);
        if (wrong != NULL) return wrong;
    }
    if (dlse != NULL) {
        if (!case_lse_strides(dlse, p->batch, p->num_heads_q, p->seqlen_q, &p->dlse))
            return wrong_shape(dlse, "[batch, heads, seqlen_q]");
        c->args.dlse = dlse->data;
    }
    return NULL;
}

/* A tensor over scores: the last axes of [batch, heads, seqlen_q, seqlen_k], each whole or 1. */
static char *place_scores(const struct audit_case *c, const char *name, struct attest_score_tensor *out,
                          const void **data)
{
    const struct attest_problem *p = &c->problem;
    const struct tensor *t = tensor_set_find(&c->set, name);
    if (t == NULL) return NULL;
    const int64_t whole[4] = {p->batch, p->num_heads_q, p->seqlen_q, p->seqlen_k};
    int64_t stride[4] = {0, 0, 0, 0}, next = 1;
    for (int i = t->ndim - 1; i >= 0; --i) {
        const int axis = i + 4 - t->ndim;
        if (axis < 0 || (t->shape[i] != whole[axis] && t->shape[i] != 1))
            return wrong_shape(t, "[batch, heads, seqlen_q, seqlen_k] with 1 for axes that are broadcast");
        if (t->shape[i] > 1) stride[axis] = next;
        next *= t->shape[i];
    }
    *out = (struct attest_score_tensor){.dtype = t->dtype, .batch = stride[0], .head = stride[1],
                                        .seqlen_q = stride[2], .seqlen_k = stride[3]};
    *data = t->data;
    return NULL;
}

static char *place_per_head(const struct audit_case *c, const char *name, int32_t *flag, const float **data)
{
    const struct tensor *t = tensor_set_find(&c->set, name);
    if (t == NULL) return NULL;
    if (t->dtype != ATTEST_FP32 || t->ndim != 1 || t->shape[0] != c->problem.num_heads_q)
        return wrong_shape(t, "one fp32 number for each head of q");
    *flag = 1;
    *data = t->data;
    return NULL;
}

static char *place_extras(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    struct attest_forward_args *a = &c->args.forward;
    char *wrong = place_scores(c, "bias", &p->bias, &a->bias);
    if (wrong == NULL) wrong = place_scores(c, "mask", &p->mask, (const void **)&a->mask);
    if (wrong == NULL) wrong = place_per_head(c, "sink", &p->has_sink, &a->sink);
    if (wrong == NULL) wrong = place_per_head(c, "alibi_slopes", &p->has_alibi, &a->alibi_slopes);
    return wrong;
}

static void note_not_finite(struct audit_case *c, const char *name)
{
    const struct tensor *t = tensor_set_find(&c->set, name);
    if (t == NULL || ref_format(t->dtype) == NULL) return;
    int64_t nan = 0, infinite = 0;
    for (int64_t i = 0; i < t->elements; ++i) {
        const double x = ref_load(t->dtype, t->data, i);
        nan += isnan(x) != 0;
        infinite += isinf(x) != 0;
    }
    if (nan + infinite > 0)
        note(&c->notes,
             "%s holds %lld NaN and %lld infinities: results that see them must be what IEEE arithmetic gives", name,
             (long long)nan, (long long)infinite);
}

char *case_check(const struct attest_problem *p, enum attest_status *status)
{
    struct attest_plan *plan;
    *status = attest_plan_create(p, &plan);
    attest_plan_destroy(plan);
    return *status == ATTEST_OK ? NULL : sentence("%s", attest_last_error());
}

char *case_open(const struct options *options, const struct answer *answers, int num_answers, struct audit_case *c)
{
    *c = (struct audit_case){.set = {.paths = options->inputs, .count = options->num_inputs},
                             .problem = ATTEST_PROBLEM_INIT, .args = ATTEST_BACKWARD_ARGS_INIT};
    c->problem.device = ATTEST_REFERENCE;
    char *wrong = tensor_set_open(&c->set);
    for (size_t i = 0; i < sizeof input_names / sizeof *input_names && wrong == NULL; ++i)
        wrong = tensor_set_twice(&c->set, input_names[i]);
    if (wrong == NULL) wrong = find_qkv(c);
    if (wrong == NULL) wrong = read_layout(options, answers, num_answers, c);
    if (wrong != NULL) return wrong;
    place_qkv(c);
    wrong = place_dout(c);
    if (wrong == NULL) wrong = place_extras(c);
    if (wrong == NULL) wrong = settings_read(options, c);
    if (wrong != NULL) return wrong;
    place_outputs(c);
    enum attest_status status;
    wrong = case_check(&c->problem, &status);
    for (size_t i = 0; i < sizeof input_names / sizeof *input_names && wrong == NULL; ++i)
        note_not_finite(c, input_names[i]);
    static const char *const rounded[] = {"q", "k", "v", "dout", "do"};
    for (size_t i = 0; i < sizeof rounded / sizeof *rounded; ++i) case_note_widened(&c->set, rounded[i], &c->notes);
    char *unread = tensor_set_unread(&c->set);
    if (unread != NULL) note(&c->notes, "not read: %s", unread);
    free(unread);
    return wrong;
}

void case_close(struct audit_case *c)
{
    for (int i = 0; i < c->set.count; ++i) tensor_file_close(c->set.files[i]);
    free(c->set.files);
    free(c->slopes);
    notes_free(&c->notes);
}

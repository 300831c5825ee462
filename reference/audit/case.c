/* case.c - from the tensors of the inputs to an attest_problem. */
#include "reference/audit/case.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "reference/audit/settings.h"
#include "reference/bounds.h"
#include "reference/formats.h"

char *case_guess(struct audit_case *c, struct notes *notes, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (c->options->strict) return sentence("%s: a guess, which --strict refuses", text);
    note(notes, "%s", text);
    return NULL;
}

void *case_own(struct audit_case *c, void *memory)
{
    c->owned = reallocate(c->owned, (size_t)(c->num_owned + 1) * sizeof *c->owned);
    return c->owned[c->num_owned++] = memory;
}

/* ---- paths ---- */

static bool is_same_file(const char *a, const char *b)
{
    struct stat x, y;
    return stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev && x.st_ino == y.st_ino;
}

/* What a file holds; one that cannot be read holds nothing, and says so where it is opened for good. */
static void look_into(const char *path, bool *inputs, bool *results)
{
    struct tensor_set set = {.paths = &path, .count = 1};
    char *wrong = tensor_set_open(&set);
    *inputs = wrong == NULL && tensor_set_holds(&set, part_is_input);
    *results = wrong == NULL && tensor_set_holds(&set, part_is_result);
    free(wrong);
    tensor_set_close(&set);
}

static bool is_further_input(const struct options *o)
{
    bool inputs, results;
    const struct results_path *next = &o->results[0];
    if (next->name != NULL || is_same_file(next->path, o->inputs[0])) return false;
    look_into(next->path, &inputs, &results);
    return inputs && !results;
}

char *case_sort_paths(struct options *o)
{
    bool inputs, results;
    while (o->num_results > 0 && is_further_input(o)) {
        o->inputs[o->num_inputs++] = o->results[0].path;
        memmove(o->results, o->results + 1, (size_t)--o->num_results * sizeof *o->results);
    }
    if (o->num_results > 0) return NULL;
    look_into(o->inputs[0], &inputs, &results);
    if (!results) return sentence("no RESULTS to judge");
    o->results[o->num_results++] = (struct results_path){.path = o->inputs[0]};
    return NULL;
}

/* ---- shapes ---- */

char *case_wrong_shape(const struct view *v, const char *expected)
{
    char *shape = view_shape_text(v);
    char *wrong = sentence("%s has shape %s, which is not %s", v->name, shape, expected);
    free(shape);
    return wrong;
}

static char *wrong_dtype(const struct view *v)
{
    if (ref_format(v->dtype) != NULL) return NULL;
    return sentence("%s is %s; inputs are fp32, fp16, bf16, fp8_e4m3 or fp8_e5m2", v->name,
                    tensor_dtype_name(v->dtype));
}

/* "bshd" and "bshd,o=bhsd": of all tensors, and of one by its name. */
enum stated case_stated_layout(const struct audit_case *c, enum part part, enum layout *layout)
{
    const char *origin, *text = setting_text(c, SETTING_LAYOUT, &origin);
    if (text == NULL) return STATED_NOT;
    if (layout_parse(text, strlen(text), layout)) return STATED_FOR_ALL;
    enum stated found = STATED_NOT;
    for (const char *at = text; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        const size_t length = strcspn(at, ",");
        const char *equals = memchr(at, '=', length), *value = equals != NULL ? equals + 1 : at;
        char name[32] = "";
        if (equals != NULL) snprintf(name, sizeof name, "%.*s", (int)(equals - at), at);
        if (equals != NULL ? part_of(name) != part : found != STATED_NOT) continue;
        enum layout one;
        if (!layout_parse(value, length - (size_t)(value - at), &one)) continue;
        *layout = one;
        found = equals != NULL ? STATED_FOR_THIS : STATED_FOR_ALL;
    }
    return found;
}

static char *check_layout_text(const struct audit_case *c)
{
    enum layout layout;
    const char *origin, *text = setting_text(c, SETTING_LAYOUT, &origin);
    if (text == NULL || layout_parse(text, strlen(text), &layout)) return NULL;
    for (const char *at = text; *at != '\0'; at += strcspn(at, ","), at += *at == ',') {
        const size_t length = strcspn(at, ",");
        const char *equals = memchr(at, '=', length), *value = equals != NULL ? equals + 1 : at;
        char name[32] = "";
        if (equals != NULL) snprintf(name, sizeof name, "%.*s", (int)(equals - at), at);
        if (layout_parse(value, length - (size_t)(value - at), &layout) && (equals == NULL || part_of(name) < PART_NUM))
            continue;
        return sentence("layout is '%.60s', which is none of bshd, bhsd, sbhd, bs(hd), sb(hd), shd, hsd, s(hd), "
                        "with NAME=LAYOUT after a comma for one tensor", text);
    }
    return NULL;
}

char *case_read_rows(const struct audit_case *c, struct view v, enum part part, struct extent want,
                     struct notes *notes, struct view *rows)
{
    enum layout layout = c->layout;
    const bool is_stated = case_stated_layout(c, part, &layout) == STATED_FOR_THIS;
    int fitting = 0;
    for (int i = -1; i < LAYOUT_NUM && (!is_stated || i < 0); ++i) {
        const enum layout one = i < 0 ? layout : (enum layout)i;
        struct view r;
        if (!layout_read(v, one, want.heads, &r)) continue;
        const struct extent e = view_extent(&r);
        if (memcmp(&e, &want, sizeof e) != 0) continue;
        if (i < 0 || fitting == 0) *rows = r, layout = one;
        if (i < 0) return NULL;
        ++fitting;
    }
    if (fitting == 0) return case_wrong_shape(&v, "that of the problem in any layout"); /* callers say more */
    if (fitting > 1)
        return case_guess((struct audit_case *)c, notes, "%s is read as %s; --layout %s=... states another", v.name,
                          layout_names[layout], part_names[part]);
    note(notes, "%s is %s, the only layout that fits its shape", v.name, layout_names[layout]);
    return NULL;
}

/* ---- packed tensors ---- */

/* (q k v) of heads along one axis, as fused projections write them: so many of q's and twice those of k. */
static bool unpack_heads(const struct audit_case *c, struct view v, int count, struct view parts[3])
{
    const int64_t kv = c->heads_kv > 0 ? c->heads_kv : c->heads, all = (count == 3 ? c->heads : 0) + 2 * kv;
    if (c->heads <= 0 || kv <= 0) return false;
    int axis = v.ndim - 2;
    if (v.ndim < 3 || v.shape[axis] != all) {
        axis = v.ndim - 1;
        if (v.shape[axis] % all != 0 || !view_split(&v, axis, v.shape[axis] / all)) return false;
    }
    if (v.ndim != 3 && v.ndim != 4) return false;
    int64_t first = 0;
    for (int i = 3 - count; i < 3; ++i) {
        const int64_t heads = i == 0 ? c->heads : kv;
        parts[i] = view_narrow(v, axis, first, heads);
        first += heads;
    }
    return true;
}

char *case_unpack(const struct audit_case *c, const struct tensor *t, int count, struct notes *notes,
                  struct view parts[3])
{
    const struct view v = view_of(t);
    /* bs3hd and t3hd, bsh3d and th3d, 3bshd and 3thd */
    const int axes[3] = {v.ndim - 3, v.ndim - 2, 0};
    int axis = -1, fitting = 0;
    for (int i = 0; i < 3; ++i) {
        if ((v.ndim != 4 && v.ndim != 5) || (i == 2 && axes[0] == 0) || v.shape[axes[i]] != count) continue;
        if (fitting++ == 0) axis = axes[i];
    }
    if (axis < 0) {
        if (unpack_heads(c, v, count, parts)) return NULL;
        return case_wrong_shape(&v, count == 3 ? "[.., 3, heads, head_dim] or, with --heads stated, [.., all heads x "
                                                 "head_dim]" : "[.., 2, heads, head_dim]");
    }
    for (int i = 0; i < count; ++i) parts[3 - count + i] = view_index(v, axis, i);
    if (fitting == 1) return NULL;
    return case_guess((struct audit_case *)c, notes, "%s is read as packed along axis %d", v.name, axis);
}

/* ---- q, k, v ---- */

static char *find_qkv(struct audit_case *c)
{
    const struct tensor *qkv = tensor_set_find(&c->set, PART_QKV), *kv = tensor_set_find(&c->set, PART_KV);
    struct view parts[3] = {{.name = NULL}};
    char *wrong = NULL;
    if (qkv != NULL) wrong = case_unpack(c, qkv, 3, &c->notes, parts);
    else if (kv != NULL) wrong = case_unpack(c, kv, 2, &c->notes, parts);
    struct view *const views[3] = {&c->q, &c->k, &c->v};
    for (int i = 0; i < 3 && wrong == NULL; ++i) {
        const struct tensor *t = tensor_set_find(&c->set, (enum part)(PART_Q + i));
        if (t != NULL && parts[i].name != NULL)
            return sentence("%s and %s are both there, and hold the same", t->name, parts[i].name);
        if (t == NULL && parts[i].name == NULL)
            return sentence("%s: there is no tensor %s", c->set.paths[0], part_names[PART_Q + i]);
        *views[i] = t != NULL ? view_of(t) : parts[i];
        views[i]->name = part_names[PART_Q + i];
        if (views[i]->ndim < 2 || views[i]->ndim > 4)
            return case_wrong_shape(views[i], "of 3 axes or 4, or of 2 with --heads");
        wrong = wrong_dtype(views[i]);
    }
    return wrong;
}

static int64_t total_of(const struct audit_case *c, enum part part)
{
    const struct tensor *t = tensor_set_find(&c->set, part);
    return t != NULL && t->elements > 0 ? (int64_t)tensor_number(t, t->elements - 1) : -1;
}

/* Whether q, k, v fit together when read so. Pages have lengths of their own. */
static bool layouts_fit(const struct audit_case *c, enum layout of_q, enum layout of_kv)
{
    struct view rq, rk, rv;
    const int64_t heads_kv = c->heads_kv > 0 ? c->heads_kv : c->heads;
    if (!layout_read(c->q, of_q, c->heads, &rq)) return false;
    if (!layout_read(c->k, of_kv, heads_kv, &rk) || !layout_read(c->v, of_kv, heads_kv, &rv)) return false;
    const struct extent q = view_extent(&rq), k = view_extent(&rk), v = view_extent(&rv);
    const bool paged = tensor_set_find(&c->set, PART_BLOCK_TABLE) != NULL;
    const bool ragged = tensor_set_find(&c->set, PART_CU_Q) != NULL;
    if ((c->heads > 0 && q.heads != c->heads) || (c->heads_kv > 0 && k.heads != c->heads_kv)) return false;
    if (k.heads == 0 || q.heads % k.heads != 0 || q.dim != k.dim || k.heads != v.heads) return false;
    if (k.seqlen != v.seqlen || k.batch != v.batch) return false;
    if (ragged && (q.batch != 1 || q.seqlen < total_of(c, PART_CU_Q))) return false;
    if (ragged && !paged && k.batch != 1) return false;
    return paged || q.batch == k.batch;
}

static void try_layouts(struct audit_case *c, const enum layout *tried, int count, bool mixed)
{
    struct layouts *l = &c->layouts;
    for (int a = 0; a < count; ++a) {
        for (int b = 0; b < count; ++b) {
            if ((a != b) != mixed || l->count == LAYOUTS_TRIED || !layouts_fit(c, tried[a], tried[b])) continue;
            l->of[l->count].q = tried[a];
            l->of[l->count++].kv = tried[b];
        }
    }
}

/* Whether some returned lse is [.., heads, seqlen] when q is read in this layout. */
static bool lse_agrees(const struct audit_case *c, enum layout layout, const struct answer *answers, int count)
{
    struct view rows;
    if (!layout_read(c->q, layout, c->heads, &rows)) return false;
    for (int i = 0; i < count; ++i) {
        const struct tensor *lse = tensor_set_find(&answers[i].set, PART_LSE);
        if (lse == NULL || lse->ndim < 2) continue;
        if (lse->shape[lse->ndim - 2] == rows.shape[2] && lse->shape[lse->ndim - 1] == rows.shape[1]) return true;
    }
    return false;
}

/* Of two layouts: the one that a returned lse agrees with; else the one with fewer heads than rows. */
static void sort_layouts(struct audit_case *c, const struct answer *answers, int count)
{
    struct layouts *l = &c->layouts;
    l->why = "the only layout that fits the shapes";
    if (l->count != 2) return;
    const bool a = lse_agrees(c, l->of[0].q, answers, count), b = lse_agrees(c, l->of[1].q, answers, count);
    struct view rows;
    if (!layout_read(c->q, l->of[0].q, c->heads, &rows)) return;
    const bool swap = a != b ? b : rows.shape[2] > rows.shape[1];
    if (swap) {
        const struct layouts from = *l;
        l->of[0] = from.of[1], l->of[1] = from.of[0];
    }
    l->why = a != b ? "a returned lse has that order" : "guessed: fewer heads than rows; --layout states it";
}

/* Orders that are tried where none is stated: rows before heads or after; of q, and where that fits none, of k and v by
 * themselves. Rows before batch have to be stated: they fit wherever batch before rows does. */
static char *guess_layouts(struct audit_case *c, const struct answer *answers, int count)
{
    static const enum layout usual[] = {LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_SHD, LAYOUT_HSD};
    static const enum layout flat[] = {LAYOUT_BSF, LAYOUT_SF};
    try_layouts(c, usual, 4, false);
    if (c->layouts.count == 0) try_layouts(c, flat, 2, false);
    if (c->layouts.count == 0) try_layouts(c, usual, 4, true);
    if (c->layouts.count == 0)
        return sentence("the shapes of q, k and v fit together in no layout of %s%s",
                        c->q.ndim == 3 ? "shd, hsd" : c->q.ndim == 4 ? "bshd, bhsd" : "s(hd)",
                        c->heads == 0 && c->q.ndim < 4 ? "; --heads says how many there are in (hd)" : "");
    sort_layouts(c, answers, count);
    if (c->layouts.count > 1 && c->options->strict)
        return sentence("the shapes of q, k and v fit layouts %s and %s, and --strict refuses to guess: --layout "
                        "states it", layout_names[c->layouts.of[0].q], layout_names[c->layouts.of[1].q]);
    return NULL;
}

static char *find_layouts(struct audit_case *c, const struct answer *answers, int count)
{
    char *wrong = check_layout_text(c);
    if (wrong != NULL) return wrong;
    enum layout q, k, v;
    if (case_stated_layout(c, PART_Q, &q) == STATED_NOT || case_stated_layout(c, PART_K, &k) == STATED_NOT ||
        case_stated_layout(c, PART_V, &v) == STATED_NOT)
        return guess_layouts(c, answers, count);
    if (k != v) return sentence("k is stated to be %s and v %s; they must be alike", layout_names[k], layout_names[v]);
    if (!layouts_fit(c, q, k))
        return sentence("the shapes of q, k and v do not fit together in layout %s%s%s", layout_names[q],
                        q != k ? " of q and of k and v " : "", q != k ? layout_names[k] : "");
    const char *origin;
    setting_text(c, SETTING_LAYOUT, &origin);
    c->layouts = (struct layouts){.of = {{q, k}}, .count = 1, .why = origin};
    return NULL;
}

/* Rows in another format that holds all of their numbers, packed. */
static void convert_rows(struct audit_case *c, struct view *rows, int32_t dtype)
{
    const struct extent e = view_extent(rows);
    const int64_t *s = rows->stride;
    void *out = case_own(c, allocate((size_t)(e.batch * e.seqlen * e.heads * e.dim), ref_dtype_bytes(dtype)));
    int64_t next = 0;
    for (int64_t b = 0; b < e.batch; ++b)
        for (int64_t r = 0; r < e.seqlen; ++r)
            for (int64_t h = 0; h < e.heads; ++h)
                for (int64_t x = 0; x < e.dim; ++x)
                    ref_store(dtype, out, next++,
                              ref_load(rows->dtype, rows->data, b * s[0] + r * s[1] + h * s[2] + x));
    note(&c->notes, "%s is %s beside a q of %s: read as that, exactly", rows->name, ref_dtype_name(rows->dtype),
         ref_dtype_name(dtype));
    *rows = (struct view){.name = rows->name, .dtype = dtype, .ndim = 4, .data = out,
                          .shape = {e.batch, e.seqlen, e.heads, e.dim},
                          .stride = {e.seqlen * e.heads * e.dim, e.heads * e.dim, e.dim, 1}};
}

static void place_qkv(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    struct view q, k, v;
    const int64_t heads_kv = c->heads_kv > 0 ? c->heads_kv : c->heads;
    const enum layout of_kv = c->layouts.of[c->chosen].kv;
    layout_read(c->q, c->layout, c->heads, &q);
    layout_read(c->k, of_kv, heads_kv, &k);
    layout_read(c->v, of_kv, heads_kv, &v);
    if (ref_dtype_bytes(q.dtype) > 1 && ref_dtype_bytes(k.dtype) == 1) convert_rows(c, &k, q.dtype);
    if (ref_dtype_bytes(q.dtype) > 1 && ref_dtype_bytes(v.dtype) == 1) convert_rows(c, &v, q.dtype);
    c->rows_k = k, c->rows_v = v;
    const struct extent eq = view_extent(&q), ek = view_extent(&k), ev = view_extent(&v);
    p->batch = eq.batch, p->seqlen_q = eq.seqlen, p->num_heads_q = eq.heads, p->head_dim = eq.dim;
    p->seqlen_k = ek.seqlen, p->num_heads_kv = ek.heads, p->head_dim_v = ev.dim;
    p->q = view_strides(&q), p->k = view_strides(&k), p->v = view_strides(&v);
    c->args.forward.q = q.data, c->args.forward.k = k.data, c->args.forward.v = v.data;
}

/* ---- outputs and gradients ---- */

static struct attest_tensor packed(int32_t dtype, int64_t seqlen, int64_t heads, int64_t dim)
{
    return (struct attest_tensor){.dtype = dtype, .batch = seqlen * heads * dim, .seqlen = heads * dim, .head = dim};
}

static struct attest_tensor packed_lse(const struct attest_problem *p)
{
    const int64_t rows = p->ragged ? p->total_q : p->seqlen_q;
    return (struct attest_tensor){.dtype = ATTEST_FP32, .batch = p->num_heads_q * rows, .seqlen = 1, .head = rows};
}

/* Outputs as if an implementation had returned all of them, packed. */
static void place_outputs(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const bool is_fp8 = ref_dtype_bytes(p->q.dtype) == 1;
    const int32_t dtype = is_fp8 ? ATTEST_BF16 : p->q.dtype;
    p->o = packed(dtype, p->seqlen_q, p->num_heads_q, p->head_dim_v);
    p->lse = packed_lse(p);
    if (p->dout.dtype == ATTEST_ABSENT) return;
    p->dq = packed(dtype, p->seqlen_q, p->num_heads_q, p->head_dim);
    p->dk = packed(dtype, p->seqlen_k, p->num_heads_kv, p->head_dim);
    p->dv = packed(dtype, p->seqlen_k, p->num_heads_kv, p->head_dim_v);
}

float *case_read_lse(const struct audit_case *c, const struct tensor *t)
{
    const struct attest_problem *p = &c->problem;
    const int64_t heads = p->num_heads_q, rows = p->ragged ? p->total_q : p->seqlen_q, batch = p->ragged ? 1 : p->batch;
    struct view lse;
    const bool padded = p->ragged && !lse_read(view_of(t), 1, heads, rows, &lse); /* [b, h, s], as of a dense batch */
    if (padded && !lse_read(view_of(t), p->batch, heads, p->seqlen_q, &lse)) return NULL;
    if (!p->ragged && !lse_read(view_of(t), batch, heads, rows, &lse)) return NULL;
    float *out = allocate((size_t)(batch * heads * rows), sizeof *out);
    const float *from = lse.data;
    const int64_t *s = lse.stride;
    for (int64_t b = 0; b < (padded ? p->batch : batch); ++b) {
        const int32_t *cu = c->args.forward.cu_seqlens_q;
        const int64_t first = padded ? cu[b] : 0, count = padded ? cu[b + 1] - first : rows;
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t r = 0; r < count; ++r)
                out[((padded ? 0 : b) * heads + h) * rows + first + r] = from[b * s[0] + h * s[1] + r * s[2]];
    }
    return out;
}

static char *place_dout(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const struct tensor *dout = tensor_set_find(&c->set, PART_DOUT), *dlse = tensor_set_find(&c->set, PART_DLSE);
    if (dout != NULL) {
        const struct extent want = {p->ragged ? 1 : p->batch, p->ragged ? p->total_q : p->seqlen_q, p->num_heads_q,
                                    p->head_dim_v};
        struct view rows = view_of(dout);
        char *wrong = wrong_dtype(&rows);
        if (wrong == NULL) wrong = case_read_rows(c, rows, PART_DOUT, want, &c->notes, &rows);
        if (wrong != NULL) return wrong;
        p->dout = view_strides(&rows);
        c->args.dout = rows.data;
    }
    if (dlse != NULL) {
        const struct view v = view_of(dlse);
        if (dlse->dtype != ATTEST_FP32)
            return sentence("%s is %s; it must be fp32", v.name, tensor_dtype_name(v.dtype));
        c->args.dlse = case_read_lse(c, dlse);
        if (c->args.dlse == NULL) return case_wrong_shape(&v, "[batch, heads, seqlen_q]");
        case_own(c, (void *)c->args.dlse);
        p->dlse = packed_lse(p);
    }
    return NULL;
}

/* ---- what is odd about the inputs ---- */

static bool is_of_format(const struct tensor *t, int32_t dtype)
{
    for (int64_t i = 0; i < t->elements; ++i) {
        const double x = ref_load(t->dtype, t->data, i);
        if (!isnan(x) && ref_round(dtype, x) != x) return false;
    }
    return true;
}

/* .npy has no bf16, so 16-bit tensors get widened, and then their last rounding is held against them. */
void case_note_widened(const struct tensor_set *set, enum part part, struct notes *notes)
{
    enum { FEWEST = 64 }; /* fewer can be of a 16-bit format by chance */
    const struct tensor *t = tensor_set_find(set, part);
    if (t == NULL || t->dtype != ATTEST_FP32 || t->elements < FEWEST) return;
    const int32_t narrow = is_of_format(t, ATTEST_BF16) ? ATTEST_BF16 : ATTEST_FP16;
    if (narrow == ATTEST_BF16 || is_of_format(t, narrow))
        note(notes,
             "%s: %s is fp32, but every number of it fits %s; if it was widened, hand over the %s tensor: the "
             "bounds follow the dtype", tensor_set_path(set, part), t->name, ref_dtype_name(narrow),
             ref_dtype_name(narrow));
}

static void note_not_finite(struct audit_case *c, enum part part)
{
    const struct tensor *t = tensor_set_find(&c->set, part);
    if (t == NULL || ref_format(t->dtype) == NULL) return;
    int64_t nan = 0, infinite = 0;
    for (int64_t i = 0; i < t->elements; ++i) {
        const double x = ref_load(t->dtype, t->data, i);
        nan += isnan(x) != 0;
        infinite += isinf(x) != 0;
    }
    if (nan + infinite > 0)
        note(&c->notes,
             "%s holds %lld NaN and %lld infinities: results that see them must be what IEEE arithmetic gives", t->name,
             (long long)nan, (long long)infinite);
}

static void note_inputs(struct audit_case *c)
{
    static const enum part rounded[] = {PART_Q, PART_K, PART_V, PART_DOUT};
    for (int r = 0; r < PART_O; ++r) note_not_finite(c, (enum part)r);
    for (size_t i = 0; i < sizeof rounded / sizeof *rounded; ++i) case_note_widened(&c->set, rounded[i], &c->notes);
    char *all = tensor_set_unread(&c->set, true, NULL), *idle = tensor_set_idle(&c->set);
    c->unread = tensor_set_unread(&c->set, true, c->options->ignore);
    if (all != NULL) note(&c->notes, "not read: %s", all);
    if (idle != NULL) note(&c->notes, "not read: %s, which says nothing about the problem", idle);
    free(all);
    free(idle);
}

char *case_check(const struct attest_problem *p, enum attest_status *status)
{
    struct attest_plan *plan;
    *status = attest_plan_create(p, &plan);
    attest_plan_destroy(plan);
    return *status == ATTEST_OK ? NULL : sentence("%s", attest_last_error());
}

/* ---- the whole ---- */

char *case_open(const struct options *options, const struct answer *answers, int num_answers, struct audit_case *c)
{
    *c = (struct audit_case){.options = options, .set = {.paths = options->inputs, .count = options->num_inputs}};
    char *wrong = tensor_set_open(&c->set);
    if (wrong == NULL) wrong = tensor_set_twice(&c->set);
    if (wrong == NULL) wrong = settings_read_heads(c);
    if (wrong == NULL) wrong = find_qkv(c);
    if (wrong == NULL) wrong = find_layouts(c, answers, num_answers);
    c->kept_notes = c->notes.count;
    return wrong;
}

char *case_place(struct audit_case *c, int layout)
{
    case_unplace(c);
    c->problem = (struct attest_problem)ATTEST_PROBLEM_INIT;
    c->args = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    c->problem.device = ATTEST_REFERENCE;
    c->chosen = layout;
    c->v_scale = 1;
    c->layout = c->layouts.of[layout].q;
    if (layout == 0) note(&c->notes, "layout %s (%s)", layout_names[c->layout], c->layouts.why);
    else note(&c->notes, "layout %s (guessed: more passes than in %s; --layout states it)", layout_names[c->layout],
              layout_names[c->layouts.of[0].q]);
    if (c->layouts.of[layout].kv != c->layout)
        note(&c->notes, "k and v are %s, the only layout that fits their shapes",
             layout_names[c->layouts.of[layout].kv]);
    place_qkv(c);
    char *wrong = case_read_sequences(c);
    if (wrong == NULL) wrong = place_dout(c);
    if (wrong == NULL) wrong = settings_read(c);
    if (wrong == NULL) wrong = case_read_scores(c);
    if (wrong != NULL) return wrong;
    place_outputs(c);
    enum attest_status status;
    wrong = case_check(&c->problem, &status);
    if (wrong == NULL) wrong = case_hide_keys(c);
    if (wrong == NULL) note_inputs(c);
    return wrong;
}

void case_unplace(struct audit_case *c)
{
    for (int i = 0; i < c->num_owned; ++i) free(c->owned[i]);
    free(c->owned);
    free(c->unread);
    c->owned = NULL;
    c->num_owned = 0;
    c->unread = NULL;
    c->diag_is_assumed = false;
    notes_truncate(&c->notes, c->kept_notes);
}

void case_close(struct audit_case *c)
{
    case_unplace(c);
    notes_free(&c->notes);
    tensor_set_close(&c->set);
}

/* view.c - see view.h. */
#include "reference/audit/view.h"

#include <stdio.h>
#include <string.h>

#include "reference/audit/notes.h"

struct view view_of(const struct tensor *t)
{
    struct view v = {.name = t->name, .dtype = t->dtype, .ndim = t->ndim, .data = t->data};
    int64_t next = 1;
    for (int i = t->ndim - 1; i >= 0; --i) {
        v.shape[i] = t->shape[i];
        v.stride[i] = next;
        next *= t->shape[i];
    }
    return v;
}

struct view view_narrow(struct view v, int axis, int64_t first, int64_t count)
{
    v.data = (const char *)v.data + first * v.stride[axis] * (int64_t)tensor_dtype_bytes(v.dtype);
    v.shape[axis] = count;
    return v;
}

struct view view_index(struct view v, int axis, int64_t index)
{
    v = view_narrow(v, axis, index, 1);
    --v.ndim;
    for (int i = axis; i < v.ndim; ++i) v.shape[i] = v.shape[i + 1], v.stride[i] = v.stride[i + 1];
    return v;
}

bool view_split(struct view *v, int axis, int64_t inner)
{
    if (inner <= 0 || v->shape[axis] % inner != 0 || v->ndim == TENSOR_MAX_NDIM + 2) return false;
    for (int i = v->ndim++; i > axis; --i) v->shape[i] = v->shape[i - 1], v->stride[i] = v->stride[i - 1];
    v->shape[axis] /= inner;
    v->stride[axis] *= inner;
    v->shape[axis + 1] = inner;
    return true;
}

struct view view_permuted(struct view v, const int *order)
{
    const struct view from = v;
    for (int i = 0; i < v.ndim; ++i) v.shape[i] = from.shape[order[i]], v.stride[i] = from.stride[order[i]];
    return v;
}

/* ---- rows ---- */

const char *const layout_names[LAYOUT_NUM] = {"bshd", "bhsd", "sbhd", "bs(hd)", "sb(hd)", "shd", "hsd", "s(hd)"};

/* What the layouts are called beside their names. */
static const struct {
    const char *name;
    enum layout layout;
} other_names[] = {
    {"batch, seqlen, heads, head_dim", LAYOUT_BSHD}, {"batch, heads, seqlen, head_dim", LAYOUT_BHSD},
    {"seqlen, batch, heads, head_dim", LAYOUT_SBHD}, {"seqlen, heads, head_dim", LAYOUT_SHD},
    {"heads, seqlen, head_dim", LAYOUT_HSD},         {"b s (h d)", LAYOUT_BSF},
    {"s b (h d)", LAYOUT_SBF},                       {"s (h d)", LAYOUT_SF},
    {"thd", LAYOUT_SHD},                             {"htd", LAYOUT_HSD},
    {"t(hd)", LAYOUT_SF},                            {"NHD", LAYOUT_SHD},
    {"HND", LAYOUT_HSD},                             {"bshd_bshd_bshd", LAYOUT_BSHD},
    {"sbhd_sbhd_sbhd", LAYOUT_SBHD},                 {"thd_thd_thd", LAYOUT_SHD},
};

static bool is_text(const char *name, const char *text, size_t length)
{
    return strlen(name) == length && memcmp(name, text, length) == 0;
}

bool layout_parse(const char *text, size_t length, enum layout *layout)
{
    for (int i = 0; i < LAYOUT_NUM; ++i) {
        *layout = (enum layout)i;
        if (is_text(layout_names[i], text, length)) return true;
    }
    for (size_t i = 0; i < sizeof other_names / sizeof *other_names; ++i) {
        *layout = other_names[i].layout;
        if (is_text(other_names[i].name, text, length)) return true;
    }
    return false;
}

/* Where each of batch, seqlen, heads, head_dim is among the axes, after (hd) became two. -1: there is none. */
static const int places[LAYOUT_NUM][4] = {
    [LAYOUT_BSHD] = {0, 1, 2, 3}, [LAYOUT_BHSD] = {0, 2, 1, 3}, [LAYOUT_SBHD] = {1, 0, 2, 3},
    [LAYOUT_BSF] = {0, 1, 2, 3},  [LAYOUT_SBF] = {1, 0, 2, 3},  [LAYOUT_SHD] = {-1, 0, 1, 2},
    [LAYOUT_HSD] = {-1, 1, 0, 2}, [LAYOUT_SF] = {-1, 0, 1, 2},
};

bool layout_read(struct view v, enum layout layout, int64_t heads, struct view *rows)
{
    const bool flat = layout == LAYOUT_BSF || layout == LAYOUT_SBF || layout == LAYOUT_SF;
    const int *place = places[layout];
    const int ndim = place[0] < 0 ? 3 : 4;
    if (v.ndim != ndim - flat || (ndim == 0)) return false;
    if (flat && (heads <= 0 || v.shape[v.ndim - 1] % heads != 0)) return false;
    if (flat && !view_split(&v, v.ndim - 1, v.shape[v.ndim - 1] / heads)) return false;
    *rows = v;
    rows->ndim = 4;
    for (int i = 0; i < 4; ++i) {
        rows->shape[i] = place[i] < 0 ? 1 : v.shape[place[i]];
        rows->stride[i] = place[i] < 0 ? 0 : v.stride[place[i]];
    }
    return rows->stride[3] == 1;
}

struct extent view_extent(const struct view *rows)
{
    return (struct extent){rows->shape[0], rows->shape[1], rows->shape[2], rows->shape[3]};
}

struct attest_tensor view_strides(const struct view *rows)
{
    return (struct attest_tensor){.dtype = rows->dtype, .batch = rows->stride[0], .seqlen = rows->stride[1],
                                  .head = rows->stride[2]};
}

/* ---- lse ---- */

/* Operators for tiles of rows return them whole. */
static bool is_padded(int64_t got, int64_t rows)
{
    return got == rows || (got > rows && (got == (rows + 31) / 32 * 32 || got == (rows + 127) / 128 * 128));
}

bool lse_read(struct view v, int64_t batch, int64_t heads, int64_t rows, struct view *lse)
{
    static const int turned[3] = {0, 2, 1};
    if (v.ndim == 4 && v.shape[3] == 1) v = view_index(v, 3, 0);
    if (v.ndim == 2 && batch == 1) {
        for (int i = 2; i > 0; --i) v.shape[i] = v.shape[i - 1], v.stride[i] = v.stride[i - 1];
        v.shape[0] = 1, v.stride[0] = 0, v.ndim = 3;
    }
    if (v.ndim != 3 || v.shape[0] != batch) return false;
    const bool as_contract = v.shape[1] == heads && is_padded(v.shape[2], rows);
    const bool exact_turned = v.shape[2] == heads && v.shape[1] == rows;
    if (!as_contract && !exact_turned) return false;
    if (!as_contract || (v.shape[2] != rows && exact_turned)) v = view_permuted(v, turned);
    *lse = view_narrow(v, 2, 0, rows);
    return true;
}

char *view_shape_text(const struct view *v)
{
    char text[256] = "";
    for (int i = 0; i < v->ndim; ++i)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%lld", i > 0 ? ", " : "", (long long)v->shape[i]);
    return sentence("[%s]", text);
}

/* torch.c - the tensors, numbers and texts of a .pt file.
 *
 * The pickle in it names storages, members of the archive, and says how tensors lie in them. Of what it would call,
 * the few functions that make tensors are known by name, and what they do is done here; anything else is an object
 * that is not read, and named as such. */
#define _POSIX_C_SOURCE 200809L
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/pickle.h"

enum { MOST_DEPTH = 8, MOST_VALUES = 100000 };

struct torch {
    struct reader *r;
    struct archive *archive;
    const char *prefix;
    int64_t visited; /* values, so that one that is shared over and over ends */
    uint64_t bytes;  /* of all tensors so far: strides of 0 enlarge storages */
};

static const struct {
    const char *storage, *dtype;
    int32_t is;
} dtypes[] = {
    {"torch FloatStorage", "torch float32", ATTEST_FP32},     {"torch HalfStorage", "torch float16", ATTEST_FP16},
    {"torch BFloat16Storage", "torch bfloat16", ATTEST_BF16}, {"torch DoubleStorage", "torch float64", TENSOR_FP64},
    {"torch LongStorage", "torch int64", TENSOR_INT64},       {"torch IntStorage", "torch int32", TENSOR_INT32},
    {"torch ShortStorage", "torch int16", TENSOR_INT16},      {"torch CharStorage", "torch int8", TENSOR_INT8},
    {"torch ByteStorage", "torch uint8", ATTEST_UINT8},       {"torch BoolStorage", "torch bool", ATTEST_UINT8},
    {"", "torch float8_e4m3fn", ATTEST_FP8_E4M3},             {"", "torch float8_e5m2", ATTEST_FP8_E5M2},
    {"", "torch uint16", TENSOR_UINT16},                      {"", "torch uint32", TENSOR_UINT32},
    {"", "torch uint64", TENSOR_UINT64}};

static bool is_text(const struct pickle_value *v, enum pickle_kind kind, const char *text)
{
    return v->kind == kind && v->text != NULL && strcmp(v->text, text) == 0;
}

/* ATTEST_ABSENT for what is not known. */
static int32_t dtype_of(const struct pickle_value *global)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i)
        if (is_text(global, PICKLE_GLOBAL, dtypes[i].storage) || is_text(global, PICKLE_GLOBAL, dtypes[i].dtype))
            return dtypes[i].is;
    return ATTEST_ABSENT;
}

static const struct pickle_value *item(const struct pickle_value *list, int64_t i, enum pickle_kind kind)
{
    return list->kind == PICKLE_LIST && i < list->count && list->items[i]->kind == kind ? list->items[i] : NULL;
}

/* ---- one tensor ---- */

/* How a tensor lies in its storage. */
struct placed {
    struct tensor tensor;
    int64_t offset, stride[TENSOR_MAX_NDIM];
    const char *key; /* of the storage */
};

static int read_extents(struct torch *t, const char *name, const struct pickle_value *arguments, struct placed *p)
{
    const struct pickle_value *offset = item(arguments, 1, PICKLE_INTEGER), *size = item(arguments, 2, PICKLE_LIST),
                              *stride = item(arguments, 3, PICKLE_LIST);
    if (offset == NULL || size == NULL || stride == NULL || size->count != stride->count)
        return refuse(t->r, "tensor '%.60s': offset, size and stride are not what torch.save writes", name);
    if (size->count > TENSOR_MAX_NDIM)
        return refuse(t->r, "tensor '%.60s' has %lld axes; at most %d are allowed", name, (long long)size->count,
                      TENSOR_MAX_NDIM);
    p->offset = offset->integer;
    p->tensor.ndim = (int32_t)size->count;
    for (int i = 0; i < p->tensor.ndim; ++i) {
        const struct pickle_value *n = item(size, i, PICKLE_INTEGER), *s = item(stride, i, PICKLE_INTEGER);
        if (n == NULL || s == NULL || n->integer < 0 || s->integer < 0)
            return refuse(t->r, "tensor '%.60s': sizes and strides must be 0 .. 2^63 - 1", name);
        p->tensor.shape[i] = n->integer;
        p->stride[i] = s->integer;
    }
    return 0;
}

/* The last element must lie in the storage. */
static int check_reach(struct torch *t, const struct placed *p, size_t storage_bytes)
{
    const int64_t count = (int64_t)(storage_bytes / tensor_dtype_bytes(p->tensor.dtype));
    int64_t last = p->offset, step;
    for (int i = 0; i < p->tensor.ndim; ++i) {
        if (p->tensor.shape[i] == 0) return 0;
        if (__builtin_mul_overflow(p->tensor.shape[i] - 1, p->stride[i], &step) ||
            __builtin_add_overflow(last, step, &last))
            last = INT64_MAX;
    }
    if (p->offset >= 0 && last < count) return 0;
    return refuse(t->r, "tensor '%.60s' reaches from element %lld to %lld of a storage of %lld", p->tensor.name,
                  (long long)p->offset, (long long)last, (long long)count);
}

static void copy_elements(const struct placed *p, const uint8_t *storage, uint8_t *to)
{
    const size_t bytes = tensor_dtype_bytes(p->tensor.dtype);
    int64_t index[TENSOR_MAX_NDIM] = {0};
    for (int64_t n = 0; n < p->tensor.elements; ++n) {
        int64_t from = p->offset;
        for (int i = 0; i < p->tensor.ndim; ++i) from += index[i] * p->stride[i];
        memcpy(to + (size_t)n * bytes, storage + (size_t)from * bytes, bytes);
        for (int i = p->tensor.ndim - 1; i >= 0 && ++index[i] == p->tensor.shape[i]; --i) index[i] = 0;
    }
}

static int read_storage(struct torch *t, struct placed *p)
{
    char *member = malloc(strlen(t->prefix) + strlen(p->key) + 16);
    size_t size = 0;
    bool is_missing = false;
    void *room = NULL;
    if (member == NULL) return refuse(t->r, "no memory");
    sprintf(member, "%s/data/%s", t->prefix, p->key);
    uint8_t *storage = archive_read(t->r, t->archive, member, &size, &is_missing);
    free(member);
    if (is_missing) return refuse(t->r, "tensor '%.60s': there is no storage '%.60s'", p->tensor.name, p->key);
    int result = storage != NULL ? check_reach(t, p, size) : -1;
    const int64_t need = tensor_measure(&p->tensor);
    if (result == 0 && (need < 0 || (uint64_t)need > MOST_EXPANSION * (uint64_t)archive_size(t->archive) - t->bytes))
        result = refuse(t->r, "tensor '%.60s' expands a storage of %zu bytes beyond measure", p->tensor.name, size);
    if (result == 0) result = reader_append_room(t->r, &p->tensor, (size_t)need, &room);
    if (result == 0) copy_elements(p, storage, room), t->bytes += (uint64_t)need;
    free(storage);
    return result;
}

/* _rebuild_tensor_v2(storage, offset, size, stride, ...), and _v3 with the dtype as its seventh. */
static int read_tensor(struct torch *t, const char *name, const struct pickle_value *arguments, bool has_dtype)
{
    struct placed p = {.tensor = {.name = name}};
    const struct pickle_value *saved = item(arguments, 0, PICKLE_SAVED);
    const struct pickle_value *id = saved != NULL && saved->items[0]->kind == PICKLE_LIST ? saved->items[0] : NULL;
    const struct pickle_value *kind = id != NULL ? item(id, 1, PICKLE_GLOBAL) : NULL,
                              *key = id != NULL ? item(id, 2, PICKLE_TEXT) : NULL;
    const struct pickle_value *dtype = has_dtype ? item(arguments, 6, PICKLE_GLOBAL) : kind;
    if (kind == NULL || key == NULL || dtype == NULL || !is_text(id->items[0], PICKLE_TEXT, "storage"))
        return refuse(t->r, "tensor '%.60s': its storage is not what torch.save writes", name);
    p.key = key->text;
    if (read_extents(t, name, arguments, &p) != 0) return -1;
    p.tensor.dtype = dtype_of(dtype);
    if (p.tensor.dtype != ATTEST_ABSENT) return read_storage(t, &p);
    const struct tensor unread = {.name = name, .dtype = TENSOR_BYTES, .ndim = 1};
    return reader_append(t->r, &unread, NULL, 0); /* of a format that nobody reads: its name alone */
}

/* ---- the tree ---- */

static int walk(struct torch *t, const char *path, const struct pickle_value *v, int depth);

static bool is_taken(const struct torch *t, const char *name)
{
    const struct tensor_file *f = t->r->file;
    return tensor_file_find(f, name) != NULL || tensor_file_metadata(f, name) != NULL;
}

/* (128, 0) is "128,0". */
static bool numbers_of(const struct pickle_value *list, char *text, size_t size)
{
    text[0] = '\0';
    if (list->count == 0 || list->count > 8) return false;
    for (int64_t i = 0; i < list->count; ++i) {
        const struct pickle_value *n = list->items[i];
        if (n->kind != PICKLE_INTEGER && n->kind != PICKLE_REAL) return false;
        const size_t used = strlen(text);
        if (n->kind == PICKLE_INTEGER)
            snprintf(text + used, size - used, "%s%lld", i > 0 ? "," : "", (long long)n->integer);
        else snprintf(text + used, size - used, "%s%.17g", i > 0 ? "," : "", n->real);
    }
    return true;
}

/* What is inside has its own name; where that is taken, the names on the way to it are put before. */
static int walk_item(struct torch *t, const char *path, const char *name, const struct pickle_value *v, int depth)
{
    char text[256];
    const bool holds = v->kind == PICKLE_DICT || (v->kind == PICKLE_LIST && !numbers_of(v, text, sizeof text));
    const bool is_inner = path[0] != '\0' && (is_taken(t, name) || holds);
    char *whole = malloc(strlen(path) + strlen(name) + 2);
    if (whole == NULL) return refuse(t->r, "no memory");
    sprintf(whole, "%s%s%s", is_inner ? path : "", is_inner ? "." : "", name);
    const int result = walk(t, whole, v, depth);
    free(whole);
    return result;
}

static int walk_container(struct torch *t, const char *path, const struct pickle_value *v, int depth)
{
    const bool is_dict = v->kind == PICKLE_DICT;
    for (int64_t i = 0; i < v->count; i += is_dict ? 2 : 1) {
        char number[32];
        const struct pickle_value *key = is_dict ? v->items[i] : NULL;
        snprintf(number, sizeof number, "%lld", (long long)(key != NULL ? key->integer : i));
        const bool is_named = key != NULL && key->kind == PICKLE_TEXT;
        const struct pickle_value *inner = is_dict ? v->items[i + 1] : v->items[i];
        if (walk_item(t, path, is_named ? key->text : number, inner, depth + 1) != 0) return -1;
    }
    return 0;
}

static int walk_call(struct torch *t, const char *path, const struct pickle_value *v, int depth)
{
    const struct pickle_value *called = v->items[0], *arguments = v->items[1];
    if (is_text(called, PICKLE_GLOBAL, "torch._utils _rebuild_tensor_v2"))
        return read_tensor(t, path, arguments, false);
    if (is_text(called, PICKLE_GLOBAL, "torch._utils _rebuild_tensor_v3")) return read_tensor(t, path, arguments, true);
    const bool is_parameter = is_text(called, PICKLE_GLOBAL, "torch._utils _rebuild_parameter");
    if (is_parameter && arguments->kind == PICKLE_LIST && arguments->count > 0)
        return walk(t, path, arguments->items[0], depth + 1);
    if (is_text(called, PICKLE_GLOBAL, "torch Size") && arguments->kind == PICKLE_LIST && arguments->count == 1)
        return walk(t, path, arguments->items[0], depth + 1);
    return reader_append_metadata(t->r, path, "an object, which is not read");
}

static int walk(struct torch *t, const char *path, const struct pickle_value *v, int depth)
{
    char text[256];
    if (depth > MOST_DEPTH || ++t->visited > MOST_VALUES)
        return refuse(t->r, "'%.60s' lies in more than %d containers, or there are too many values", path, MOST_DEPTH);
    if (is_taken(t, path)) return refuse(t->r, "'%.60s' is there twice", path);
    switch (v->kind) {
    case PICKLE_NONE: return reader_append_metadata(t->r, path, "None");
    case PICKLE_BOOL: return reader_append_metadata(t->r, path, v->integer != 0 ? "true" : "false");
    case PICKLE_INTEGER: snprintf(text, sizeof text, "%lld", (long long)v->integer); break;
    case PICKLE_REAL: snprintf(text, sizeof text, "%.17g", v->real); break;
    case PICKLE_TEXT: return reader_append_metadata(t->r, path, v->text);
    case PICKLE_LIST:
        if (depth > 0 && numbers_of(v, text, sizeof text)) break;
        return walk_container(t, path, v, depth);
    case PICKLE_DICT: return walk_container(t, path, v, depth);
    case PICKLE_CALL: return walk_call(t, path, v, depth);
    default: return reader_append_metadata(t->r, path, "an object, which is not read");
    }
    return reader_append_metadata(t->r, path, text);
}

/* ---- the file ---- */

static int check_byte_order(struct torch *t)
{
    char *name = malloc(strlen(t->prefix) + 16);
    size_t size = 0;
    bool is_missing;
    if (name == NULL) return refuse(t->r, "no memory");
    sprintf(name, "%s/byteorder", t->prefix);
    uint8_t *order = archive_read(t->r, t->archive, name, &size, &is_missing);
    free(name);
    if (is_missing) return 0; /* before PyTorch 2.1: little */
    if (order == NULL) return -1;
    const bool is_little = size == 6 && memcmp(order, "little", 6) == 0;
    free(order);
    return is_little ? 0 : refuse(t->r, "its byte order is not little");
}

/* "some/folder/q.pt" names what has no name of its own. */
static char *stem_of(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path, *dot = strrchr(base, '.');
    return strndup(base, dot != NULL && dot != base ? (size_t)(dot - base) : strlen(base));
}

int read_torch(struct reader *r, struct archive *a, const char *prefix)
{
    struct torch t = {.r = r, .archive = a, .prefix = prefix};
    struct pickle_value *all = NULL;
    size_t size = 0;
    bool is_missing;
    char *name = malloc(strlen(prefix) + 16);
    if (name == NULL) return refuse(r, "no memory");
    if (check_byte_order(&t) != 0) {
        free(name);
        return -1;
    }
    sprintf(name, "%s/data.pkl", prefix);
    uint8_t *bytes = archive_read(r, a, name, &size, &is_missing);
    free(name);
    if (bytes == NULL) return is_missing ? refuse(r, "there is no data.pkl") : -1;
    const struct pickle_value *root = pickle_read(r, bytes, size, &all);
    const bool is_container = root != NULL && (root->kind == PICKLE_DICT || root->kind == PICKLE_LIST);
    char *stem = is_container ? strdup("") : stem_of(r->path);
    int result = root != NULL && stem != NULL ? walk(&t, stem, root, 0) : -1;
    if (root != NULL && stem == NULL) refuse(r, "no memory");
    free(stem);
    free(bytes);
    pickle_free(all);
    return result;
}

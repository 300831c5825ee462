/* npy.c - one array as numpy.save writes it: magic, version, header length, a Python dictionary, data.
 *
 * The format: numpy.org/doc/stable/reference/generated/numpy.lib.format.html, versions 1.0, 2.0 and 3.0.
 * The dictionary is read by a parser for just its three entries; nothing is evaluated. */
#define _POSIX_C_SOURCE 200809L /* strndup */
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/reader.h"

/* Magic, two bytes of version, then 2 (version 1) or 4 bytes of header length. */
enum { MAGIC_BYTES = 6, PREFIX_BYTES = 8, MAX_DESCR = 32 };
static const uint8_t magic[MAGIC_BYTES] = {0x93, 'N', 'U', 'M', 'P', 'Y'};

static const struct {
    const char *descr;
    int32_t dtype;
} dtypes[] = {{"<f8", TENSOR_FP64},  {"<f4", ATTEST_FP32},  {"<f2", ATTEST_FP16}, {"<i8", TENSOR_INT64},
              {"<i4", TENSOR_INT32}, {"|u1", ATTEST_UINT8}, {"|b1", ATTEST_UINT8}, {"|i1", TENSOR_INT8},
              {"<i2", TENSOR_INT16}, {"<u2", TENSOR_UINT16}, {"<u4", TENSOR_UINT32}, {"<u8", TENSOR_UINT64}};

struct header {
    char descr[MAX_DESCR]; /* "": not read yet */
    int fortran_order;     /* -1: not read yet */
    int32_t ndim;          /* -1: not read yet */
    int64_t shape[TENSOR_MAX_NDIM];
};

/* ---- the dictionary ---- */

struct cursor {
    const struct reader *reader;
    const char *begin, *at, *end;
};

static void skip_space(struct cursor *c)
{
    while (c->at < c->end && (*c->at == ' ' || *c->at == '\t' || *c->at == '\n')) ++c->at;
}

/* Steps over `token`, if it is next. */
static bool accept(struct cursor *c, const char *token)
{
    const size_t length = strlen(token);
    skip_space(c);
    if ((size_t)(c->end - c->at) < length || memcmp(c->at, token, length) != 0) return false;
    c->at += length;
    return true;
}

static int expect(struct cursor *c, const char *token)
{
    if (accept(c, token)) return 0;
    return refuse(c->reader, "header: '%s' is expected at byte %td of %td", token, c->at - c->begin, c->end - c->begin);
}

/* A string in single or double quotes, without escapes. */
static int read_string(struct cursor *c, const char *what, char *out, size_t out_size)
{
    skip_space(c);
    const char *const start = c->at;
    size_t length = 0;
    if (c->at == c->end || (*c->at != '\'' && *c->at != '"'))
        return refuse(c->reader, "header: %s at byte %td of %td is not a string", what, start - c->begin,
                      c->end - c->begin);
    const char quote = *c->at++;
    while (c->at < c->end && *c->at != quote && *c->at != '\\' && *c->at != '\0' && length + 1 < out_size)
        out[length++] = *c->at++;
    out[length] = '\0';
    if (length > 0 && c->at < c->end && *c->at++ == quote) return 0;
    return refuse(c->reader, "header: %s at byte %td is not a string of 1 .. %zu plain characters", what,
                  start - c->begin, out_size - 1);
}

static int read_extent(struct cursor *c, int axis, int64_t *extent)
{
    skip_space(c);
    if (c->at == c->end || *c->at < '0' || *c->at > '9')
        return refuse(c->reader, "header: shape[%d] at byte %td is not an integer 0 .. 2^63 - 1", axis,
                      c->at - c->begin);
    *extent = 0;
    for (; c->at < c->end && *c->at >= '0' && *c->at <= '9'; ++c->at)
        if (__builtin_mul_overflow(*extent, 10, extent) || __builtin_add_overflow(*extent, *c->at - '0', extent))
            return refuse(c->reader, "header: shape[%d] is more than 2^63 - 1", axis);
    return 0;
}

/* (), (3,), (2, 3) or (2, 3,): Python wants the comma in a tuple of one. */
static int read_shape(struct cursor *c, struct header *h)
{
    bool comma = true;
    if (expect(c, "(") != 0) return -1;
    for (h->ndim = 0; !accept(c, ")"); ++h->ndim) {
        if (!comma) return expect(c, ",");
        if (h->ndim == TENSOR_MAX_NDIM)
            return refuse(c->reader, "header: shape has more than %d entries", TENSOR_MAX_NDIM);
        if (read_extent(c, h->ndim, &h->shape[h->ndim]) != 0) return -1;
        comma = accept(c, ",");
    }
    if (h->ndim == 1 && !comma) return refuse(c->reader, "header: shape is not a tuple: (n,) has a comma");
    return 0;
}

static int read_value(struct cursor *c, const char *key, struct header *h)
{
    if (strcmp(key, "descr") == 0 && h->descr[0] == '\0') return read_string(c, "descr", h->descr, sizeof h->descr);
    if (strcmp(key, "shape") == 0 && h->ndim < 0) return read_shape(c, h);
    if (strcmp(key, "fortran_order") == 0 && h->fortran_order < 0) {
        h->fortran_order = accept(c, "True") ? 1 : accept(c, "False") ? 0 : -1;
        if (h->fortran_order >= 0) return 0;
        return refuse(c->reader, "header: fortran_order at byte %td is neither True nor False", c->at - c->begin);
    }
    return refuse(c->reader, "header: key '%s' is unknown or there twice; descr, fortran_order and shape are expected",
                  key);
}

static int read_dictionary(struct cursor *c, struct header *h)
{
    char key[MAX_DESCR];
    bool comma = true;
    *h = (struct header){.fortran_order = -1, .ndim = -1};
    if (expect(c, "{") != 0) return -1;
    while (!accept(c, "}")) {
        if (!comma) return expect(c, ",");
        if (read_string(c, "key", key, sizeof key) != 0 || expect(c, ":") != 0 || read_value(c, key, h) != 0) return -1;
        comma = accept(c, ",");
    }
    skip_space(c);
    if (c->at != c->end)
        return refuse(c->reader, "header: byte %td of %td follows the dictionary", c->at - c->begin, c->end - c->begin);
    if (h->descr[0] == '\0') return refuse(c->reader, "header: descr is missing");
    if (h->fortran_order < 0) return refuse(c->reader, "header: fortran_order is missing");
    if (h->ndim < 0) return refuse(c->reader, "header: shape is missing");
    return 0;
}

/* ---- the array ---- */

static int read_dtype(const struct reader *r, const char *descr, int32_t *dtype)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i) {
        if (strcmp(descr, dtypes[i].descr) != 0) continue;
        *dtype = dtypes[i].dtype;
        return 0;
    }
    return refuse(r,
                  "descr is '%s'%s; <f8, <f4, <f2, integers and |b1 can be read (bf16 from safetensors and .pt only)",
                  descr, descr[0] == '>' ? ", big-endian" : "");
}

static bool is_known(const char *descr)
{
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i)
        if (strcmp(descr, dtypes[i].descr) == 0) return true;
    return false;
}

/* A text of an archive is metadata. Four bytes a character, of which those of ASCII stay. */
static int read_text(struct reader *r, const char *name, const uint8_t *data, size_t size)
{
    char text[256] = "";
    for (size_t i = 0; i + 4 <= size && i / 4 + 1 < sizeof text; i += 4) {
        const bool is_ascii = data[i] < 0x80 && data[i + 1] == 0 && data[i + 2] == 0 && data[i + 3] == 0;
        text[i / 4] = (char)(is_ascii ? data[i] : '?');
    }
    return reader_append_metadata(r, name, text);
}

/* Column-major to row-major. */
static void reorder(const struct tensor *t, const uint8_t *from, uint8_t *to)
{
    const size_t bytes = tensor_dtype_bytes(t->dtype);
    int64_t index[TENSOR_MAX_NDIM] = {0};
    for (int64_t n = 0; n < t->elements; ++n) {
        int64_t source = 0;
        for (int axis = t->ndim - 1; axis >= 0; --axis) source = source * t->shape[axis] + index[axis];
        memcpy(to + (size_t)n * bytes, from + (size_t)source * bytes, bytes);
        for (int axis = t->ndim - 1; axis >= 0 && ++index[axis] == t->shape[axis]; --axis) index[axis] = 0;
    }
}

static int read_array(struct reader *r, const struct header *h, char *name, const uint8_t *data, size_t size)
{
    struct tensor t = {.name = name, .ndim = h->ndim};
    memcpy(t.shape, h->shape, sizeof t.shape);
    if (r->member != NULL && h->descr[0] == '<' && h->descr[1] == 'U' && h->ndim == 0)
        return read_text(r, name, data, size);
    if (r->member != NULL && !is_known(h->descr)) { /* of an archive, the other arrays are read all the same */
        t = (struct tensor){.name = name, .dtype = TENSOR_BYTES, .ndim = 1, .shape = {(int64_t)size}};
        tensor_measure(&t);
        return reader_append(r, &t, data, size);
    }
    if (read_dtype(r, h->descr, &t.dtype) != 0) return -1;
    const int64_t need = tensor_measure(&t);
    if (need < 0) return refuse(r, "shape has a product of more than 2^63 - 1 bytes");
    if ((uint64_t)need != size)
        return refuse(r, "descr and shape need %lld bytes of data, but %zu follow the header", (long long)need, size);
    if (reader_append(r, &t, data, size) != 0) return -1;
    if (h->fortran_order) reorder(&t, data, (uint8_t *)r->file->tensors[r->file->count - 1].data);
    return 0;
}

/* "some/folder/q.npy" names its tensor q. */
static char *tensor_name(const char *path)
{
    const char *slash = strrchr(path, '/'), *base = slash != NULL ? slash + 1 : path;
    const size_t length = strlen(base);
    return strndup(base, length >= 4 && strcmp(base + length - 4, ".npy") == 0 ? length - 4 : length);
}

/* Bytes of header length, 2 or 4; 0 and the sentence where the file does not begin as .npy files do. */
static size_t read_prefix(const struct reader *r, const uint8_t *bytes, size_t size)
{
    if (size < PREFIX_BYTES || memcmp(bytes, magic, MAGIC_BYTES) != 0) {
        refuse(r, "is not a .npy file: its first bytes are not \\x93NUMPY and a version");
    } else if (bytes[MAGIC_BYTES] < 1 || bytes[MAGIC_BYTES] > 3 || bytes[MAGIC_BYTES + 1] != 0) {
        refuse(r, "version is %d.%d; 1.0, 2.0 and 3.0 can be read", bytes[MAGIC_BYTES], bytes[MAGIC_BYTES + 1]);
    } else {
        const size_t length_bytes = bytes[MAGIC_BYTES] == 1 ? 2 : 4;
        if (size >= PREFIX_BYTES + length_bytes) return length_bytes;
        refuse(r, "is cut off: it has %zu bytes, its header length ends at %zu", size, PREFIX_BYTES + length_bytes);
    }
    return 0;
}

int read_npy(struct reader *r, const uint8_t *bytes, size_t size)
{
    uint32_t length = 0;
    struct header header;
    const size_t length_bytes = read_prefix(r, bytes, size);
    if (length_bytes == 0) return -1;
    memcpy(&length, bytes + PREFIX_BYTES, length_bytes);
    bytes += PREFIX_BYTES + length_bytes;
    size -= PREFIX_BYTES + length_bytes;
    if (length > size) return refuse(r, "is cut off: header length is %u; it must be 0 .. %zu", length, size);
    const char *const text = (const char *)bytes;
    struct cursor cursor = {.reader = r, .begin = text, .at = text, .end = text + length};
    if (read_dictionary(&cursor, &header) != 0) return -1;
    char *name = tensor_name(r->member != NULL ? r->member : r->path);
    if (name == NULL) return refuse(r, "no memory for its name");
    const int result = read_array(r, &header, name, bytes + length, size - length);
    free(name);
    return result;
}

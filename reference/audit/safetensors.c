/* safetensors.c - 8 bytes of header length, a JSON header, then the data.
 *
 * The format: github.com/huggingface/safetensors. As there: the header begins with '{' and may end in
 * spaces, keys are unique, the tensors' data cover the rest of the file without overlap, gap or
 * remainder. Stricter than there: a tensor has no fields but dtype, shape and data_offsets. */
#define _POSIX_C_SOURCE 200809L /* strdup */
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/reader.h"

enum { LENGTH_BYTES = 8, MIN_HEADER_BYTES = 2, MAX_HEADER_BYTES = 100000000 };

/* A tensor as the header describes it; its data are bytes begin .. end - 1 of the rest of the file. */
struct entry {
    struct tensor tensor;
    int64_t begin, end;
};

static const struct {
    const char *name;
    int32_t dtype;
} dtypes[] = {{"F64", TENSOR_FP64},        {"F32", ATTEST_FP32},         {"F16", ATTEST_FP16},  {"BF16", ATTEST_BF16},
              {"F8_E4M3", ATTEST_FP8_E4M3}, {"F8_E5M2", ATTEST_FP8_E5M2}, {"I64", TENSOR_INT64}, {"I32", TENSOR_INT32},
              {"U8", ATTEST_UINT8},         {"BOOL", ATTEST_UINT8},       {"I8", TENSOR_INT8},   {"I16", TENSOR_INT16},
              {"U16", TENSOR_UINT16},       {"U32", TENSOR_UINT32},       {"U64", TENSOR_UINT64}, {"C64", TENSOR_BYTES},
              {"F8_E8M0", TENSOR_BYTES},    {"F8_E4M3FNUZ", TENSOR_BYTES}, {"F8_E5M2FNUZ", TENSOR_BYTES},
              {"F4", TENSOR_BYTES},         {"F6_E2M3", TENSOR_BYTES},    {"F6_E3M2", TENSOR_BYTES}};

static const char *type_name(const json_t *value)
{
    switch (json_typeof(value)) {
    case JSON_OBJECT: return "an object";
    case JSON_ARRAY: return "an array";
    case JSON_STRING: return "a string";
    case JSON_INTEGER: return "an integer";
    case JSON_REAL: return "a number with a fraction or exponent";
    case JSON_NULL: return "null";
    default: return "true or false";
    }
}

static int read_dtype(const struct reader *r, const json_t *value, struct tensor *t)
{
    if (!json_is_string(value))
        return refuse(r, "tensor '%.60s': dtype is %s, not a string", t->name, type_name(value));
    for (size_t i = 0; i < sizeof dtypes / sizeof *dtypes; ++i) {
        if (strcmp(json_string_value(value), dtypes[i].name) != 0) continue;
        t->dtype = dtypes[i].dtype;
        return 0;
    }
    return refuse(r, "tensor '%.60s': dtype is '%.20s', which is none of safetensors'", t->name,
                  json_string_value(value));
}

/* Array `field` of integers >= 0, at most `max` of them; their number goes to *count. */
static int read_integers(const struct reader *r, const char *name, const char *field, const json_t *array, int max,
                         int64_t *out, int32_t *count)
{
    if (!json_is_array(array))
        return refuse(r, "tensor '%.60s': %s is %s, not an array", name, field, type_name(array));
    if (json_array_size(array) > (size_t)max)
        return refuse(r, "tensor '%.60s': %s has %zu entries; at most %d are allowed", name, field,
                      json_array_size(array), max);
    *count = (int32_t)json_array_size(array);
    for (int i = 0; i < *count; ++i) {
        const json_t *value = json_array_get(array, (size_t)i);
        if (!json_is_integer(value))
            return refuse(r, "tensor '%.60s': %s[%d] is %s, not an integer", name, field, i, type_name(value));
        out[i] = json_integer_value(value);
        if (out[i] < 0)
            return refuse(r, "tensor '%.60s': %s[%d] is %lld; it must be 0 .. 2^63 - 1", name, field, i,
                          (long long)out[i]);
    }
    return 0;
}

/* Offsets that lie in the data and agree with dtype and shape. */
static int check_range(const struct reader *r, struct entry *e, int64_t data_size)
{
    const char *name = e->tensor.name;
    const int64_t size = tensor_measure(&e->tensor);
    if (size < 0) return refuse(r, "tensor '%.60s': shape has a product of more than 2^63 - 1 bytes", name);
    if (e->begin > e->end || e->end > data_size)
        return refuse(r, "tensor '%.60s': data_offsets is [%lld, %lld]; 0 <= begin <= end <= %lld is required", name,
                      (long long)e->begin, (long long)e->end, (long long)data_size);
    if (e->end - e->begin != size)
        return refuse(r, "tensor '%.60s': data_offsets is [%lld, %lld], %lld bytes, but dtype and shape need %lld",
                      name, (long long)e->begin, (long long)e->end, (long long)(e->end - e->begin), (long long)size);
    return 0;
}

static int read_entry(const struct reader *r, const char *name, json_t *object, int64_t data_size, struct entry *e)
{
    static const char *const fields[] = {"dtype", "shape", "data_offsets"};
    const char *key;
    json_t *value;
    int64_t offsets[2];
    int32_t num_offsets;
    *e = (struct entry){.tensor.name = name};
    if (!json_is_object(object)) return refuse(r, "tensor '%.60s' is %s, not an object", name, type_name(object));
    for (int i = 0; i < 3; ++i)
        if (json_object_get(object, fields[i]) == NULL)
            return refuse(r, "tensor '%.60s': %s is missing", name, fields[i]);
    json_object_foreach(object, key, value) {
        if (strcmp(key, fields[0]) != 0 && strcmp(key, fields[1]) != 0 && strcmp(key, fields[2]) != 0)
            return refuse(r, "tensor '%.60s': unknown field '%.60s'", name, key);
    }
    if (read_dtype(r, json_object_get(object, "dtype"), &e->tensor) != 0 ||
        read_integers(r, name, "shape", json_object_get(object, "shape"), TENSOR_MAX_NDIM, e->tensor.shape,
                      &e->tensor.ndim) != 0 ||
        read_integers(r, name, "data_offsets", json_object_get(object, "data_offsets"), 2, offsets, &num_offsets) != 0)
        return -1;
    if (num_offsets != 2) return refuse(r, "tensor '%.60s': data_offsets has %d entries, not 2", name, num_offsets);
    e->begin = offsets[0];
    e->end = offsets[1];
    if (e->tensor.dtype == TENSOR_BYTES && e->begin <= e->end) {
        e->tensor.ndim = 1;
        e->tensor.shape[0] = e->end - e->begin;
    }
    return check_range(r, e, data_size);
}

static int read_metadata(struct reader *r, const json_t *object)
{
    struct tensor_file *file = r->file;
    const char *key;
    json_t *value;
    if (object == NULL) return 0;
    if (!json_is_object(object)) return refuse(r, "__metadata__ is %s, not an object", type_name(object));
    file->metadata = calloc(json_object_size(object) + 1, sizeof *file->metadata);
    if (file->metadata == NULL) return refuse(r, "no memory for __metadata__");
    json_object_foreach((json_t *)object, key, value) {
        if (!json_is_string(value))
            return refuse(r, "__metadata__: '%.60s' is %s, not a string", key, type_name(value));
        struct tensor_metadata *m = &file->metadata[file->num_metadata++];
        *m = (struct tensor_metadata){strdup(key), strdup(json_string_value(value))};
        if (m->key == NULL || m->value == NULL) return refuse(r, "no memory for __metadata__");
    }
    return 0;
}

/* In the order of the data; empty tensors, which share their place with the next one, by name. */
static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->begin != y->begin) return x->begin < y->begin ? -1 : 1;
    if (x->end != y->end) return x->end < y->end ? -1 : 1;
    return strcmp(x->tensor.name, y->tensor.name);
}

/* Sorted entries follow one another from 0 to the end of the data. */
static int check_cover(const struct reader *r, const struct entry *entries, int count, int64_t data_size)
{
    int64_t covered = 0;
    for (int i = 0; i < count; ++i) {
        if (entries[i].begin < covered)
            return refuse(r, "tensor '%.60s': data_offsets is [%lld, %lld], which overlaps tensor '%.60s'",
                          entries[i].tensor.name, (long long)entries[i].begin, (long long)entries[i].end,
                          entries[i - 1].tensor.name);
        if (entries[i].begin > covered)
            return refuse(r, "tensor '%.60s': data_offsets is [%lld, %lld], which leaves bytes %lld .. %lld to no "
                          "tensor", entries[i].tensor.name, (long long)entries[i].begin, (long long)entries[i].end,
                          (long long)covered, (long long)entries[i].begin - 1);
        covered = entries[i].end;
    }
    if (covered != data_size)
        return refuse(r, "the tensors' data_offsets end at %lld, but %lld bytes of data follow the header",
                      (long long)covered, (long long)data_size);
    return 0;
}

static int read_entries(struct reader *r, json_t *header, const uint8_t *data, int64_t data_size, struct entry *entries)
{
    const char *name;
    json_t *value;
    int count = 0;
    json_object_foreach(header, name, value) {
        if (strcmp(name, "__metadata__") == 0) continue;
        if (read_entry(r, name, value, data_size, &entries[count++]) != 0) return -1;
    }
    qsort(entries, (size_t)count, sizeof *entries, compare_entries);
    if (check_cover(r, entries, count, data_size) != 0) return -1;
    for (int i = 0; i < count; ++i)
        if (reader_append(r, &entries[i].tensor, data + entries[i].begin, (size_t)(entries[i].end - entries[i].begin)))
            return -1;
    return 0;
}

static int read_header(struct reader *r, json_t *header, const uint8_t *data, size_t data_size)
{
    struct entry *entries = calloc(json_object_size(header) + 1, sizeof *entries);
    if (entries == NULL) return refuse(r, "no memory for %zu tensors", json_object_size(header));
    int result = read_metadata(r, json_object_get(header, "__metadata__"));
    if (result == 0) result = read_entries(r, header, data, (int64_t)data_size, entries);
    free(entries);
    return result;
}

int read_safetensors(struct reader *r, const uint8_t *bytes, size_t size)
{
    uint64_t length = 0;
    json_error_t error;
    if (size < LENGTH_BYTES + MIN_HEADER_BYTES)
        return refuse(r, "has %zu bytes; the shortest safetensors file has %d", size, LENGTH_BYTES + MIN_HEADER_BYTES);
    memcpy(&length, bytes, LENGTH_BYTES);
    size -= LENGTH_BYTES;
    bytes += LENGTH_BYTES;
    const size_t max_length = size < MAX_HEADER_BYTES ? size : MAX_HEADER_BYTES;
    if (length < MIN_HEADER_BYTES || length > max_length)
        return refuse(r, "is no safetensors file or is cut off: header length is %llu; it must be %d .. %zu",
                      (unsigned long long)length, MIN_HEADER_BYTES, max_length);
    if (bytes[0] != '{') return refuse(r, "header begins with byte 0x%02x, not with '{'", bytes[0]);
    json_t *header = json_loadb((const char *)bytes, (size_t)length, JSON_REJECT_DUPLICATES, &error);
    if (header == NULL)
        return refuse(r, "header is not valid JSON at byte %d of %llu: %s", error.position, (unsigned long long)length,
                      error.text);
    const int result = read_header(r, header, bytes + length, size - (size_t)length);
    json_decref(header);
    return result;
}

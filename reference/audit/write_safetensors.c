/* write_safetensors.c - see write_safetensors.h. */
#include "reference/audit/write_safetensors.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What safetensors calls a dtype; NULL where it has no name for it. */
static const char *dtype_name(int32_t dtype)
{
    switch (dtype) {
    case TENSOR_FP64: return "F64";
    case ATTEST_FP32: return "F32";
    case ATTEST_FP16: return "F16";
    case ATTEST_BF16: return "BF16";
    case ATTEST_FP8_E4M3: return "F8_E4M3";
    case ATTEST_FP8_E5M2: return "F8_E5M2";
    case TENSOR_INT64: return "I64";
    case TENSOR_INT32: return "I32";
    case TENSOR_UINT64: return "U64";
    case ATTEST_UINT8: return "U8";
    default: return NULL;
    }
}

static int64_t byte_size(const struct tensor *t)
{
    int64_t bytes = (int64_t)tensor_dtype_bytes(t->dtype);
    for (int i = 0; i < t->ndim; ++i) bytes *= t->shape[i];
    return bytes;
}

/* The header, padded with spaces so that the data begin at a multiple of 8 bytes; NULL: invalid. */
static char *make_header(const struct tensor *tensors, int count, const struct tensor_metadata *metadata,
                         int num_metadata)
{
    json_t *header = json_object(), *strings = json_object();
    int64_t end = 0;
    int failed = 0;
    for (int i = 0; i < num_metadata; ++i)
        failed |= json_object_set_new(strings, metadata[i].key, json_string(metadata[i].value));
    failed |= json_object_set_new(header, "__metadata__", strings);
    for (int i = 0; i < count; ++i) {
        const json_int_t begin = end;
        json_t *shape = json_array();
        for (int x = 0; x < tensors[i].ndim; ++x)
            failed |= json_array_append_new(shape, json_integer(tensors[i].shape[x]));
        end += byte_size(&tensors[i]);
        failed |= json_object_set_new(header, tensors[i].name,
                                      json_pack("{ss so s[II]}", "dtype", dtype_name(tensors[i].dtype), "shape", shape,
                                                "data_offsets", begin, (json_int_t)end));
    }
    char *text = failed ? NULL : json_dumps(header, JSON_COMPACT);
    json_decref(header);
    const size_t length = text != NULL ? strlen(text) : 0, padded = (length + 7) / 8 * 8;
    char *grown = text != NULL ? realloc(text, padded + 1) : NULL;
    if (grown == NULL) free(text);
    else sprintf(grown + length, "%*s", (int)(padded - length), "");
    return grown;
}

int write_safetensors(const char *path, const struct tensor *tensors, int count,
                      const struct tensor_metadata *metadata, int num_metadata)
{
    char *header = make_header(tensors, count, metadata, num_metadata);
    if (header == NULL) return EINVAL;
    const uint64_t length = strlen(header);
    FILE *f = fopen(path, "wb");
    if (f == NULL) {
        const int error = errno;
        free(header);
        return error;
    }
    fwrite(&length, sizeof length, 1, f);
    fwrite(header, 1, length, f);
    for (int i = 0; i < count; ++i) fwrite(tensors[i].data, 1, (size_t)byte_size(&tensors[i]), f);
    free(header);
    const int failed = ferror(f);
    return fclose(f) != 0 || failed ? EIO : 0;
}

/* tensor_file.h - the tensors of a safetensors, .npz or .pt file, of one .npy file or of a folder of .npy files.
 *
 * Files are not trusted: every length, offset and extent is checked against the bytes that are there
 * before it is used or allocated, and a file that is not exactly well-formed is refused as a whole
 * with one sentence that names file, field, value and range. */
#ifndef ATTEST_AUDIT_TENSOR_FILE_H
#define ATTEST_AUDIT_TENSOR_FILE_H

#include <stddef.h>
#include <stdint.h>

#include "lib/attest.h"

enum { TENSOR_MAX_NDIM = 8 };

/* What files hold beside enum attest_dtype. Booleans are read as ATTEST_UINT8. TENSOR_BYTES: of formats whose numbers
 * nobody here reads; the tensor's one axis then counts bytes. */
enum tensor_dtype { TENSOR_FP64 = 100, TENSOR_INT32, TENSOR_INT64, TENSOR_INT8, TENSOR_INT16, TENSOR_UINT16,
                    TENSOR_UINT32, TENSOR_UINT64, TENSOR_BYTES };

size_t tensor_dtype_bytes(int32_t dtype);     /* 0 for unknown or absent */
const char *tensor_dtype_name(int32_t dtype); /* "fp64"; as ref_dtype_name for enum attest_dtype */

/* Row-major: the last axis is contiguous. */
struct tensor {
    const char *name;               /* any characters but NUL, in UTF-8 from safetensors */
    int32_t dtype;                  /* enum attest_dtype or enum tensor_dtype */
    int32_t ndim;                   /* 0 .. TENSOR_MAX_NDIM; 0 is one number */
    int64_t shape[TENSOR_MAX_NDIM]; /* >= 0; the nonzero extents' product in bytes fits int64_t */
    int64_t elements;               /* product of the extents */
    const void *data;               /* aligned as malloc aligns, not NULL */
};

struct tensor_metadata {
    const char *key, *value;
};

/* Names are unique; so are keys. The file owns everything that it points to. */
struct tensor_file {
    struct tensor *tensors; /* in the order of the data, or of the file names; NULL if none */
    int count;
    struct tensor_metadata *metadata; /* of safetensors, and what .npz and .pt say in text and numbers */
    int num_metadata;
};

/* Opens a folder (its *.npy files, each one tensor), a file whose name ends in .npy (one tensor, named
 * as the file without that ending), an archive as numpy.savez or torch.save write it, or else a safetensors file.
 * Returns  0 and the file, to be closed; or -1, *file NULL and a sentence cut to sentence_size bytes. */
int tensor_file_open(const char *path, struct tensor_file **file, char *sentence, size_t sentence_size);

/* The same on bytes in memory, which are copied; `path` names the tensor of a .npy file and stands in
 * the sentence. */
enum tensor_file_format { TENSOR_FILE_SAFETENSORS, TENSOR_FILE_NPY, TENSOR_FILE_ZIP }; /* ZIP: .npz and .pt */
int tensor_file_parse(enum tensor_file_format format, const char *path, const void *bytes, size_t size,
                      struct tensor_file **file, char *sentence, size_t sentence_size);

void tensor_file_close(struct tensor_file *file); /* NULL is allowed */

int tensor_file_add_metadata(struct tensor_file *file, const char *key, const char *value); /* 0; -1: no memory */

const struct tensor *tensor_file_find(const struct tensor_file *file, const char *name); /* NULL if absent */
const char *tensor_file_metadata(const struct tensor_file *file, const char *key);       /* NULL if absent */

#endif

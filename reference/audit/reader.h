/* reader.h - what the readers of the single formats share. */
#ifndef ATTEST_AUDIT_READER_H
#define ATTEST_AUDIT_READER_H

#include "reference/audit/tensor_file.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "both formats hold little-endian numbers, which are handed out as they are"
#endif

/* A file on its way in: the tensors read so far, and where the sentence goes. */
struct reader {
    const char *path;
    struct tensor_file *file;
    char *sentence;
    size_t sentence_size;
};

/* Writes "path: ..." as printable ASCII, whatever the file put into it. Returns -1. */
int refuse(const struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The size in bytes; sets `elements`. -1 where the product of the nonzero extents overflows. */
int64_t tensor_measure(struct tensor *t);

/* Appends `t` to the file, with copies of its name and of `size` bytes of data. */
int reader_append(struct reader *r, const struct tensor *t, const void *data, size_t size);

/* Each reads a whole file in memory and appends its tensors. 0, or -1 and the sentence. */
int read_safetensors(struct reader *r, const uint8_t *bytes, size_t size);
int read_npy(struct reader *r, const uint8_t *bytes, size_t size);

#endif

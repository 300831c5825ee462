/* reader.h - what the readers of the single formats share. */
#ifndef ATTEST_AUDIT_READER_H
#define ATTEST_AUDIT_READER_H

#include <stdbool.h>

#include "reference/audit/tensor_file.h"

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "both formats hold little-endian numbers, which are handed out as they are"
#endif

/* A file on its way in: the tensors read so far, and where the sentence goes. */
struct reader {
    const char *path;
    const char *member; /* of an archive, or NULL */
    struct tensor_file *file;
    char *sentence;
    size_t sentence_size;
};

/* Writes "path: ..." or "path: member: ..." as printable ASCII, whatever the file put into it. Returns -1. */
int refuse(const struct reader *r, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* The size in bytes; sets `elements`. -1 where the product of the nonzero extents overflows. */
int64_t tensor_measure(struct tensor *t);

/* Appends `t` to the file, with copies of its name and of `size` bytes of data. */
int reader_append(struct reader *r, const struct tensor *t, const void *data, size_t size);
/* The same with room for the data, which is zero until the caller fills it. */
int reader_append_room(struct reader *r, const struct tensor *t, size_t size, void **room);
int reader_append_metadata(struct reader *r, const char *key, const char *value);

/* Each reads a whole file in memory and appends its tensors. 0, or -1 and the sentence. */
int read_safetensors(struct reader *r, const uint8_t *bytes, size_t size);
int read_npy(struct reader *r, const uint8_t *bytes, size_t size);
int read_zip(struct reader *r, const uint8_t *bytes, size_t size); /* .npz and .pt */
bool is_zip(const uint8_t *bytes, size_t size);

/* ---- archives ---- */

/* Expanded, an archive is at most so many times its size: more than deflate makes of zeros. */
enum { MOST_EXPANSION = 1100 };

struct archive; /* of zip.c */
/* The bytes of the member of that name, to be freed; NULL and, unless *is_missing, the sentence. */
uint8_t *archive_read(struct reader *r, struct archive *a, const char *name, size_t *size, bool *is_missing);
size_t archive_size(const struct archive *a); /* of the file */

/* The tensors of a .pt file, whose members are called prefix/data.pkl, prefix/data/0 and so on. */
int read_torch(struct reader *r, struct archive *a, const char *prefix);

#endif

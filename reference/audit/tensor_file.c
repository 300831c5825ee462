/* tensor_file.c - opening, memory and sentences; see tensor_file.h. */
#define _POSIX_C_SOURCE 200809L /* scandir, strdup */
#include "reference/audit/tensor_file.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "reference/audit/reader.h"
#include "reference/formats.h"

/* ---- dtypes ---- */

static const struct {
    int32_t dtype;
    size_t bytes;
    const char *name;
} other_dtypes[] = {
    {TENSOR_FP64, 8, "fp64"},     {TENSOR_INT32, 4, "int32"},   {TENSOR_INT64, 8, "int64"},
    {TENSOR_INT8, 1, "int8"},     {TENSOR_INT16, 2, "int16"},   {TENSOR_UINT16, 2, "uint16"},
    {TENSOR_UINT32, 4, "uint32"}, {TENSOR_UINT64, 8, "uint64"}, {TENSOR_BYTES, 1, "of a format that is not read"}};
enum { NUM_OTHER = sizeof other_dtypes / sizeof *other_dtypes };

size_t tensor_dtype_bytes(int32_t dtype)
{
    for (int i = 0; i < NUM_OTHER; ++i)
        if (other_dtypes[i].dtype == dtype) return other_dtypes[i].bytes;
    return ref_dtype_bytes(dtype);
}

const char *tensor_dtype_name(int32_t dtype)
{
    for (int i = 0; i < NUM_OTHER; ++i)
        if (other_dtypes[i].dtype == dtype) return other_dtypes[i].name;
    return ref_dtype_name(dtype);
}

int64_t tensor_measure(struct tensor *t)
{
    int64_t bytes = (int64_t)tensor_dtype_bytes(t->dtype);
    bool is_empty = false;
    for (int i = 0; i < t->ndim; ++i) {
        if (t->shape[i] == 0) is_empty = true;
        else if (__builtin_mul_overflow(bytes, t->shape[i], &bytes)) return -1;
    }
    if (is_empty) bytes = 0;
    t->elements = bytes / (int64_t)tensor_dtype_bytes(t->dtype);
    return bytes;
}

/* ---- sentences ---- */

/* The end of a long path says more than its beginning, and the sentence must have room for the rest. */
enum { SHOWN_PATH = 160 };

int refuse(const struct reader *r, const char *format, ...)
{
    const size_t length = strlen(r->path), size = r->sentence_size;
    const bool is_long = length > SHOWN_PATH;
    if (size == 0) return -1;
    const int used = snprintf(r->sentence, size, "%s%s: %.60s%s", is_long ? "..." : "",
                              is_long ? r->path + length - SHOWN_PATH : r->path, r->member != NULL ? r->member : "",
                              r->member != NULL ? ": " : "");
    if ((size_t)used < size) {
        va_list args;
        va_start(args, format);
        vsnprintf(r->sentence + used, size - (size_t)used, format, args);
        va_end(args);
    }
    for (char *c = r->sentence; *c != '\0'; ++c)
        if (*c < ' ' || *c > '~') *c = '?';
    return -1;
}

static int refuse_errno(const struct reader *r, const char *what)
{
    return refuse(r, "%s: %s", what, strerror(errno));
}

/* ---- memory ---- */

int reader_append_room(struct reader *r, const struct tensor *t, size_t size, void **room)
{
    struct tensor_file *file = r->file;
    struct tensor *grown = realloc(file->tensors, ((size_t)file->count + 1) * sizeof *grown);
    char *name = strdup(t->name);
    *room = calloc(size > 0 ? size : 1, 1);
    if (grown != NULL) file->tensors = grown;
    if (grown == NULL || name == NULL || *room == NULL) {
        free(name);
        free(*room);
        return refuse(r, "tensor '%.60s': no memory for its %zu bytes", t->name, size);
    }
    grown[file->count] = *t;
    grown[file->count].name = name;
    grown[file->count].data = *room;
    ++file->count;
    return 0;
}

int reader_append(struct reader *r, const struct tensor *t, const void *data, size_t size)
{
    void *room;
    if (reader_append_room(r, t, size, &room) != 0) return -1;
    if (size > 0) memcpy(room, data, size);
    return 0;
}

int tensor_file_add_metadata(struct tensor_file *file, const char *key, const char *value)
{
    struct tensor_metadata *grown = realloc(file->metadata, ((size_t)file->num_metadata + 1) * sizeof *grown);
    if (grown != NULL) file->metadata = grown;
    char *const copies[2] = {strdup(key), strdup(value)};
    if (grown == NULL || copies[0] == NULL || copies[1] == NULL) {
        free(copies[0]);
        free(copies[1]);
        return -1;
    }
    grown[file->num_metadata++] = (struct tensor_metadata){copies[0], copies[1]};
    return 0;
}

int reader_append_metadata(struct reader *r, const char *key, const char *value)
{
    if (tensor_file_metadata(r->file, key) != NULL) return refuse(r, "'%.60s' is there twice", key);
    return tensor_file_add_metadata(r->file, key, value) == 0 ? 0 : refuse(r, "no memory for '%.60s'", key);
}

void tensor_file_close(struct tensor_file *file)
{
    if (file == NULL) return;
    for (int i = 0; i < file->count; ++i) {
        free((char *)file->tensors[i].name);
        free((void *)file->tensors[i].data);
    }
    for (int i = 0; i < file->num_metadata; ++i) {
        free((char *)file->metadata[i].key);
        free((char *)file->metadata[i].value);
    }
    free(file->tensors);
    free(file->metadata);
    free(file);
}

/* ---- files ---- */

/* Reads all of a regular file. O_NONBLOCK: opening a pipe must not wait for its writer. */
static int read_bytes(const struct reader *r, uint8_t **bytes, size_t *size)
{
    struct stat status;
    int result = -1;
    size_t got = 0;
    const int fd = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    *bytes = NULL;
    if (fd < 0) return refuse_errno(r, "cannot be opened");
    if (fstat(fd, &status) != 0) {
        refuse_errno(r, "cannot be read");
    } else if (!S_ISREG(status.st_mode)) {
        refuse(r, "is neither a file nor a folder");
    } else if ((*bytes = malloc((size_t)status.st_size + 1)) == NULL) {
        refuse(r, "no memory for its %lld bytes", (long long)status.st_size);
    } else {
        ssize_t n = 1;
        *size = (size_t)status.st_size;
        while (got < *size && (n = read(fd, *bytes + got, *size - got)) > 0) got += (size_t)n;
        if (n < 0) refuse_errno(r, "cannot be read");
        else if (got < *size) refuse(r, "ends after %zu of %zu bytes", got, *size);
        else result = 0;
    }
    close(fd);
    return result;
}

static bool is_npy(const char *name)
{
    const size_t length = strlen(name);
    return length >= 4 && strcmp(name + length - 4, ".npy") == 0;
}

/* A pickle that is no archive: torch.save of before PyTorch 1.6. Nothing of it is read. */
static bool is_bare_pickle(const uint8_t *bytes, size_t size)
{
    return size >= 2 && bytes[0] == 0x80 && bytes[1] >= 2 && bytes[1] <= 5 && (size < 8 || bytes[7] != 0);
}

/* Archives are known by their first bytes, .npy files by their name. */
static int read_by_kind(struct reader *r, const uint8_t *bytes, size_t size)
{
    if (is_npy(r->path)) return read_npy(r, bytes, size);
    if (is_zip(bytes, size)) return read_zip(r, bytes, size);
    if (is_bare_pickle(bytes, size))
        return refuse(r, "is a pickle that is no archive, as torch.save wrote it before PyTorch 1.6; save it again");
    return read_safetensors(r, bytes, size);
}

static int read_one(struct reader *r)
{
    uint8_t *bytes;
    size_t size = 0;
    int result = read_bytes(r, &bytes, &size);
    if (result == 0) result = read_by_kind(r, bytes, size);
    free(bytes);
    return result;
}

/* Hidden files are not meant: some systems leave "._q.npy" beside q.npy. */
static int is_member(const struct dirent *entry)
{
    return entry->d_name[0] != '.' && is_npy(entry->d_name);
}

static int read_member(const struct reader *r, const char *name)
{
    char *path = malloc(strlen(r->path) + strlen(name) + 2);
    struct reader member = *r;
    if (path == NULL) return refuse(r, "no memory for the name of '%.60s'", name);
    sprintf(path, "%s/%s", r->path, name);
    member.path = path;
    const int result = read_one(&member);
    free(path);
    return result;
}

static int read_folder(struct reader *r)
{
    struct dirent **members;
    const int count = scandir(r->path, &members, is_member, alphasort);
    int result = 0;
    if (count < 0) return refuse_errno(r, "cannot be read");
    if (count == 0) result = refuse(r, "holds no .npy file");
    for (int i = 0; i < count; ++i) {
        if (result == 0) result = read_member(r, members[i]->d_name);
        free(members[i]);
    }
    free(members);
    return result;
}

/* Hands out the file that was read, or frees what there is of it. */
static int finish(struct reader *r, int result, struct tensor_file **file)
{
    if (result == 0) *file = r->file;
    else tensor_file_close(r->file);
    return result;
}

static int begin(struct reader *r, struct tensor_file **file)
{
    *file = NULL;
    r->file = calloc(1, sizeof *r->file);
    return r->file != NULL ? 0 : refuse(r, "no memory");
}

int tensor_file_open(const char *path, struct tensor_file **file, char *sentence, size_t sentence_size)
{
    struct reader r = {.path = path, .sentence = sentence, .sentence_size = sentence_size};
    struct stat status;
    if (begin(&r, file) != 0) return -1;
    if (stat(path, &status) != 0) return finish(&r, refuse_errno(&r, "cannot be opened"), file);
    return finish(&r, S_ISDIR(status.st_mode) ? read_folder(&r) : read_one(&r), file);
}

int tensor_file_parse(enum tensor_file_format format, const char *path, const void *bytes, size_t size,
                      struct tensor_file **file, char *sentence, size_t sentence_size)
{
    struct reader r = {.path = path, .sentence = sentence, .sentence_size = sentence_size};
    if (begin(&r, file) != 0) return -1;
    switch (format) {
    case TENSOR_FILE_NPY: return finish(&r, read_npy(&r, bytes, size), file);
    case TENSOR_FILE_ZIP: return finish(&r, read_zip(&r, bytes, size), file);
    default: return finish(&r, read_safetensors(&r, bytes, size), file);
    }
}

/* ---- looking up ---- */

const struct tensor *tensor_file_find(const struct tensor_file *file, const char *name)
{
    for (int i = 0; i < file->count; ++i)
        if (strcmp(file->tensors[i].name, name) == 0) return &file->tensors[i];
    return NULL;
}

const char *tensor_file_metadata(const struct tensor_file *file, const char *key)
{
    for (int i = 0; i < file->num_metadata; ++i)
        if (strcmp(file->metadata[i].key, key) == 0) return file->metadata[i].value;
    return NULL;
}

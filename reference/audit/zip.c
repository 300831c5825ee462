/* zip.c - archives of arrays: .npz as numpy.savez writes it, and the container of .pt; by libzip.
 *
 * Members are read whole, their checksums by libzip. What an archive says of sizes is not believed: more than
 * MOST_EXPANSION times the file's own size is refused before memory is taken. */
#define _POSIX_C_SOURCE 200809L
#include <stdlib.h>
#include <string.h>
#include <zip.h>

#include "reference/audit/reader.h"

struct archive {
    zip_t *zip;
    size_t file_size;
    uint64_t taken; /* bytes of members read so far */
};

bool is_zip(const uint8_t *bytes, size_t size)
{
    return size >= 4 && memcmp(bytes, "PK\3\4", 4) == 0;
}

size_t archive_size(const struct archive *a)
{
    return a->file_size;
}

/* Reads all of an opened member; one byte more is asked for, so that libzip sees the end and the checksum. */
static int read_member(struct reader *r, zip_file_t *member, uint8_t *bytes, uint64_t size)
{
    uint64_t got = 0;
    zip_int64_t n = 1;
    uint8_t beyond;
    while (got < size && (n = zip_fread(member, bytes + got, size - got)) > 0) got += (uint64_t)n;
    if (n >= 0 && got == size) n = zip_fread(member, &beyond, 1);
    if (n < 0) return refuse(r, "cannot be unpacked: %s", zip_file_strerror(member));
    if (got < size)
        return refuse(r, "ends after %llu of %llu bytes", (unsigned long long)got, (unsigned long long)size);
    return n == 0 ? 0 : refuse(r, "goes on after its %llu bytes", (unsigned long long)size);
}

static uint8_t *read_index(struct reader *r, struct archive *a, zip_uint64_t index, size_t *size)
{
    zip_stat_t s;
    if (zip_stat_index(a->zip, index, 0, &s) != 0 || (s.valid & ZIP_STAT_SIZE) == 0) {
        refuse(r, "its size is not known");
        return NULL;
    }
    if (s.size > (uint64_t)a->file_size * MOST_EXPANSION - a->taken) {
        refuse(r, "has %llu bytes by what the archive says, which has %zu in all", (unsigned long long)s.size,
               a->file_size);
        return NULL;
    }
    uint8_t *bytes = malloc((size_t)s.size + 1);
    zip_file_t *member = bytes != NULL ? zip_fopen_index(a->zip, index, 0) : NULL;
    int result = -1;
    if (bytes == NULL) refuse(r, "no memory for its %llu bytes", (unsigned long long)s.size);
    else if (member == NULL) refuse(r, "cannot be unpacked: %s", zip_strerror(a->zip));
    else result = read_member(r, member, bytes, s.size);
    if (member != NULL) zip_fclose(member);
    a->taken += s.size;
    *size = (size_t)s.size;
    if (result == 0) return bytes;
    free(bytes);
    return NULL;
}

uint8_t *archive_read(struct reader *r, struct archive *a, const char *name, size_t *size, bool *is_missing)
{
    const zip_int64_t index = zip_name_locate(a->zip, name, 0);
    *is_missing = index < 0;
    return index < 0 ? NULL : read_index(r, a, (zip_uint64_t)index, size);
}

static bool has_ending(const char *name, const char *ending)
{
    const size_t length = strlen(name), n = strlen(ending);
    return length >= n && strcmp(name + length - n, ending) == 0;
}

static int read_arrays(struct reader *r, struct archive *a)
{
    const zip_int64_t count = zip_get_num_entries(a->zip, 0);
    for (zip_int64_t i = 0; i < count; ++i) {
        const char *name = zip_get_name(a->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);
        if (name == NULL || !has_ending(name, ".npy")) continue;
        struct reader member = *r;
        size_t size = 0;
        member.member = name;
        const int before = r->file->count;
        uint8_t *bytes = read_index(&member, a, (zip_uint64_t)i, &size);
        const int result = bytes != NULL ? read_npy(&member, bytes, size) : -1;
        free(bytes);
        if (result != 0) return -1;
        for (int t = 0; t < before && r->file->count > before; ++t)
            if (strcmp(r->file->tensors[t].name, r->file->tensors[before].name) == 0)
                return refuse(&member, "is there twice");
    }
    return 0;
}

/* The part of "some/name/data.pkl" before "/data.pkl"; NULL where there is no such member. */
static int find_torch(struct reader *r, const struct archive *a, char **prefix)
{
    *prefix = NULL;
    const zip_int64_t count = zip_get_num_entries(a->zip, 0);
    for (zip_int64_t i = 0; i < count; ++i) {
        const char *name = zip_get_name(a->zip, (zip_uint64_t)i, ZIP_FL_ENC_RAW);
        if (name == NULL || !has_ending(name, "/data.pkl")) continue;
        *prefix = strndup(name, strlen(name) - strlen("/data.pkl"));
        return *prefix != NULL ? 0 : refuse(r, "no memory");
    }
    return 0;
}

static int read_opened(struct reader *r, struct archive *a)
{
    char *prefix;
    if (find_torch(r, a, &prefix) != 0) return -1;
    const int result = prefix != NULL ? read_torch(r, a, prefix) : read_arrays(r, a);
    free(prefix);
    if (result == 0 && r->file->count == 0 && r->file->num_metadata == 0)
        return refuse(r, "is an archive without .npy files and without data.pkl");
    return result;
}

int read_zip(struct reader *r, const uint8_t *bytes, size_t size)
{
    zip_error_t error;
    struct archive a = {.file_size = size};
    zip_error_init(&error);
    zip_source_t *source = zip_source_buffer_create(bytes, size, 0, &error);
    if (source != NULL) a.zip = zip_open_from_source(source, ZIP_RDONLY, &error);
    if (a.zip == NULL) {
        refuse(r, "is no archive that can be read: %s", zip_error_strerror(&error));
        zip_source_free(source);
        zip_error_fini(&error);
        return -1;
    }
    const int result = read_opened(r, &a);
    zip_discard(a.zip);
    zip_error_fini(&error);
    return result;
}

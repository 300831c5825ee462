/* check_file.c - see check_file.h. */
#include "reference/audit/fuzz/check_file.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/fuzz/zip_bytes.h"

/* reader.h has it, too: more than deflate makes of zeros. */
enum { MOST_EXPANSION = 1100 };

static void require(bool holds, const char *what)
{
    if (holds) return;
    fprintf(stderr, "check_file: broken promise: %s\n", what);
    abort();
}

/* One line of printable ASCII that begins with the name of the file and says something about it. */
static void check_sentence(const char *sentence, size_t size)
{
    require(memchr(sentence, '\0', size) != NULL, "the sentence ends inside its buffer");
    require(strncmp(sentence, "fuzz: ", 6) == 0 && strlen(sentence) > 10, "the sentence names the file and a fault");
    for (const char *c = sentence; *c != '\0'; ++c) require(*c >= ' ' && *c <= '~', "the sentence is printable");
}

static volatile unsigned char sink; /* what is read must be used, or the compiler drops the reading */

/* Touches every byte of a tensor; returns their number. */
static uint64_t read_tensor(const struct tensor *t)
{
    const size_t element = tensor_dtype_bytes(t->dtype);
    int64_t elements = 1;
    unsigned char sum = 0;
    require(element > 0, "the dtype is known");
    require(t->ndim >= 0 && t->ndim <= TENSOR_MAX_NDIM, "ndim is in range");
    for (int i = 0; i < t->ndim; ++i) {
        require(t->shape[i] >= 0, "extents are not negative");
        if (t->shape[i] == 0) elements = 0;
        else require(!__builtin_mul_overflow(elements, t->shape[i], &elements), "elements fit int64_t");
    }
    require(t->elements == elements, "elements is the product of the extents");
    require(t->data != NULL && (uintptr_t)t->data % element == 0, "the data are aligned");
    const unsigned char *data = t->data;
    for (size_t i = 0; i < (size_t)elements * element; ++i) sum = (unsigned char)(sum + data[i]);
    sink = sum;
    return (uint64_t)elements * element;
}

/* How much data there may be: no more than bytes, but of archives, which deflate. */
static uint64_t most_data(enum tensor_file_format format, size_t size)
{
    return format == TENSOR_FILE_ZIP ? 2 * MOST_EXPANSION * (uint64_t)size : size;
}

bool check_file(enum tensor_file_format format, const uint8_t *bytes, size_t size)
{
    char sentence[256];
    struct tensor_file *file;
    uint64_t data = 0;
    memset(sentence, 'x', sizeof sentence);
    if (tensor_file_parse(format, "fuzz", bytes, size, &file, sentence, sizeof sentence) != 0) {
        require(file == NULL, "no file after an error");
        check_sentence(sentence, sizeof sentence);
        return false;
    }
    for (int i = 0; i < file->count; ++i) {
        data += read_tensor(&file->tensors[i]);
        require(tensor_file_find(file, file->tensors[i].name) == &file->tensors[i], "names are unique");
    }
    for (int i = 0; i < file->num_metadata; ++i)
        require(tensor_file_metadata(file, file->metadata[i].key) == file->metadata[i].value, "keys are unique");
    require(data < most_data(format, size), "no more data than the file can hold");
    tensor_file_close(file);
    return true;
}

bool check_pickle(const uint8_t *bytes, size_t size)
{
    static const uint8_t storage[256] = {1, 2, 3};
    const struct zip_member members[] = {{"x/data.pkl", bytes, size}, {"x/data/0", storage, sizeof storage},
                                         {"x/data/1", storage, sizeof storage},  {"x/data/2", storage, sizeof storage},
                                         {"x/data/3", storage, sizeof storage},  {"x/data/4", storage, sizeof storage}};
    size_t whole = 0;
    uint8_t *archive = zip_bytes(members, sizeof members / sizeof *members, &whole);
    const bool is_file = check_file(TENSOR_FILE_ZIP, archive, whole);
    free(archive);
    return is_file;
}

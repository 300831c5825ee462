/* readers_memory_test.c - the readers when memory runs out: at each of their allocations in turn.
 *
 * Linked with --wrap, so that the allocations of the readers come here first. Leaks on the way out are
 * LeakSanitizer's to find. */
#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "reference/audit/tensor_file.h"

static bool armed;
static int allocations_left; /* of those that succeed while armed */

static bool refused(void)
{
    return armed && allocations_left-- == 0;
}

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
char *__real_strdup(const char *text);
char *__real_strndup(const char *text, size_t size);
void *__wrap_malloc(size_t size) { return refused() ? NULL : __real_malloc(size); }
void *__wrap_calloc(size_t count, size_t size) { return refused() ? NULL : __real_calloc(count, size); }
void *__wrap_realloc(void *old, size_t size) { return refused() ? NULL : __real_realloc(old, size); }
char *__wrap_strdup(const char *text) { return refused() ? NULL : __real_strdup(text); }
char *__wrap_strndup(const char *text, size_t size) { return refused() ? NULL : __real_strndup(text, size); }

/* Opens the path with ever more memory until that succeeds: before, each time a sentence. */
static void expect_sentences_until_it_opens(const char *path, int least_allocations)
{
    for (int allocations = 0; allocations < 1000; ++allocations) {
        char sentence[512] = "";
        struct tensor_file *file;
        allocations_left = allocations;
        armed = true;
        const int result = tensor_file_open(path, &file, sentence, sizeof sentence);
        armed = false;
        if (result == 0) {
            tensor_file_close(file);
            cr_assert(allocations >= least_allocations, "%d allocations", allocations);
            return;
        }
        cr_assert(file == NULL && strstr(sentence, "no memory") != NULL, "after %d: '%s'", allocations, sentence);
    }
    cr_assert(false, "opens with enough memory");
}

static void write_file(const char *path, const void *a, size_t a_size, const char *b, size_t b_size)
{
    FILE *f = fopen(path, "wb");
    cr_assert(f != NULL && fwrite(a, 1, a_size, f) == a_size && fwrite(b, 1, b_size, f) == b_size && fclose(f) == 0);
}

Test(readers_memory, every_allocation_that_fails_is_a_sentence)
{
    static const char header[] = "{\"__metadata__\":{\"a\":\"b\"},\"q\":{\"dtype\":\"U8\",\"shape\":[1],"
                                 "\"data_offsets\":[0,1]},\"k\":{\"dtype\":\"U8\",\"shape\":[2],"
                                 "\"data_offsets\":[1,3]}}123";
    static const char array[] = "\x93NUMPY\x01\0\x3b\0{'descr': '|u1', 'fortran_order': False, 'shape': (2,), } \n12";
    const uint64_t length = sizeof header - 4;
    char folder[4000], path[4096];
    const char *parent = getenv("TEST_TMPDIR");
    snprintf(folder, sizeof folder, "%s/readers_memory", parent != NULL ? parent : "/tmp");
    mkdir(folder, 0700);

    snprintf(path, sizeof path, "%s/x.safetensors", folder);
    write_file(path, &length, sizeof length, header, sizeof header - 1);
    expect_sentences_until_it_opens(path, 12);
    snprintf(path, sizeof path, "%s/q.npy", folder);
    write_file(path, "", 0, array, sizeof array - 1);
    expect_sentences_until_it_opens(path, 6);
    expect_sentences_until_it_opens(folder, 7);
    expect_sentences_until_it_opens("reference/audit/fuzz/corpus/zip/numpy.npz", 20);
    expect_sentences_until_it_opens("reference/audit/fuzz/corpus/zip/inputs.pt", 100);
}

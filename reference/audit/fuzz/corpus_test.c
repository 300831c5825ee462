/* corpus_test.c - replays the fuzzers' corpus: each file is read whole or refused with a sentence. */
#define _POSIX_C_SOURCE 200809L /* scandir */
#include <criterion/criterion.h>
#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/fuzz/check_file.h"

static int is_visible(const struct dirent *entry)
{
    return entry->d_name[0] != '.';
}

/* No tensor_file_format: of a pickle. */
enum { PICKLE = -1 };

static bool replay(int format, const char *folder, const char *name)
{
    char path[1024];
    uint8_t bytes[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *f = fopen(path, "rb");
    cr_assert(f != NULL, "%s", path);
    const size_t size = fread(bytes, 1, sizeof bytes, f);
    cr_assert(feof(f) && !ferror(f), "%s is small enough to be replayed", path);
    fclose(f);
    uint8_t *exact = malloc(size > 0 ? size : 1); /* so that a sanitizer sees its end */
    memcpy(exact, bytes, size);
    const bool is_file = format == PICKLE ? check_pickle(exact, size)
                                          : check_file((enum tensor_file_format)format, exact, size);
    free(exact);
    return is_file;
}

/* Files with an ending were written by numpy and by safetensors themselves and must be read. The rest is the
 * fuzzers' and must hold both sorts, or it has been lost on the way. */
static void replay_all(int format, const char *folder)
{
    struct dirent **entries;
    const int count = scandir(folder, &entries, is_visible, alphasort);
    int files = 0;
    cr_assert(count > 0, "%s is there", folder);
    for (int i = 0; i < count; ++i) {
        const bool is_file = replay(format, folder, entries[i]->d_name);
        cr_assert(is_file || strchr(entries[i]->d_name, '.') == NULL, "%s is read", entries[i]->d_name);
        files += is_file;
        free(entries[i]);
    }
    free(entries);
    fprintf(stderr, "%s: %d files read, %d refused\n", folder, files, count - files);
    cr_assert(files > 0 && files < count);
}

Test(corpus, safetensors)
{
    replay_all(TENSOR_FILE_SAFETENSORS, "reference/audit/fuzz/corpus/safetensors");
}

Test(corpus, npy)
{
    replay_all(TENSOR_FILE_NPY, "reference/audit/fuzz/corpus/npy");
}

Test(corpus, zip)
{
    replay_all(TENSOR_FILE_ZIP, "reference/audit/fuzz/corpus/zip");
}

Test(corpus, pickle)
{
    replay_all(PICKLE, "reference/audit/fuzz/corpus/pickle");
}

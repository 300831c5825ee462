/* notes.h - sentences, made by printf formats. Out of memory ends the program. */
#ifndef ATTEST_AUDIT_NOTES_H
#define ATTEST_AUDIT_NOTES_H

#include <stddef.h>

struct notes {
    char **text;
    int count;
};

char *sentence(const char *format, ...) __attribute__((format(printf, 1, 2)));
void note(struct notes *notes, const char *format, ...) __attribute__((format(printf, 2, 3)));
void notes_truncate(struct notes *notes, int count); /* to the first so many */
void notes_free(struct notes *notes);

void *allocate(size_t count, size_t size); /* zeroed; never NULL */
void *reallocate(void *p, size_t size);    /* never NULL */

#endif

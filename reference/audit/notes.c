#include "reference/audit/notes.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "reference/audit/options.h"

static void out_of_memory(void)
{
    fputs("audit: out of memory\n", stderr);
    exit(AUDIT_EXIT_UNUSABLE);
}

void *allocate(size_t count, size_t size)
{
    void *p = calloc(count > 0 ? count : 1, size > 0 ? size : 1);
    if (p == NULL) out_of_memory();
    return p;
}

void *reallocate(void *p, size_t size)
{
    p = realloc(p, size);
    if (p == NULL) out_of_memory();
    return p;
}

static char *format_sentence(const char *format, va_list args)
{
    char *text;
    if (vasprintf(&text, format, args) < 0) out_of_memory();
    return text;
}

char *sentence(const char *format, ...)
{
    va_list args;
    va_start(args, format);
    char *text = format_sentence(format, args);
    va_end(args);
    return text;
}

void note(struct notes *notes, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    notes->text = reallocate(notes->text, (size_t)(notes->count + 1) * sizeof *notes->text);
    notes->text[notes->count++] = format_sentence(format, args);
    va_end(args);
}

void notes_truncate(struct notes *notes, int count)
{
    while (notes->count > count) free(notes->text[--notes->count]);
}

void notes_free(struct notes *notes)
{
    notes_truncate(notes, 0);
    free(notes->text);
    *notes = (struct notes){NULL, 0};
}

/* pickle.h - a pickle as a tree of values. Nothing in it is called or imported: what it would call becomes a value that
 * says what was to be called, with what.
 *
 * Of the format, docs.python.org/3/library/pickletools.html, those codes are understood that torch.save writes of
 * tensors, numbers, texts and containers of them, and what other objects need to be stepped over. */
#ifndef ATTEST_AUDIT_PICKLE_H
#define ATTEST_AUDIT_PICKLE_H

#include <stdint.h>

#include "reference/audit/reader.h"

enum pickle_kind {
    PICKLE_NONE,
    PICKLE_BOOL,    /* integer is 0 or 1 */
    PICKLE_INTEGER,
    PICKLE_REAL,
    PICKLE_TEXT,
    PICKLE_LIST,    /* tuples, too */
    PICKLE_DICT,    /* items are key, value, key, value ... */
    PICKLE_GLOBAL,  /* text is "module name" */
    PICKLE_CALL,    /* items are what was to be called and its arguments, a list */
    PICKLE_SAVED,   /* a persistent id: items has it */
    PICKLE_OTHER,   /* something else, such as bytes */
};

/* Values are shared and may hold themselves. */
struct pickle_value {
    enum pickle_kind kind;
    int64_t integer;
    double real;
    const char *text; /* ends in NUL */
    struct pickle_value **items;
    int64_t count, capacity;
    struct pickle_value *next; /* of all values of the pickle */
};

/* NULL and the reader's sentence where the bytes are none; else the value, to be freed by pickle_free(*all). */
const struct pickle_value *pickle_read(const struct reader *r, const uint8_t *bytes, size_t size,
                                       struct pickle_value **all);
void pickle_free(struct pickle_value *all);

#endif

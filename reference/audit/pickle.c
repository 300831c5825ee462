/* pickle.c - see pickle.h. A stack machine whose only instructions make values. */
#define _POSIX_C_SOURCE 200809L
#include "reference/audit/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct machine {
    const struct reader *reader;
    const uint8_t *bytes;
    size_t size, at;
    struct pickle_value *all;
    struct pickle_value **stack, **memo;
    int64_t *marks; /* heights of the stack */
    int64_t height, num_marks;
    uint64_t memoized; /* places of the memo in use */
    int failed; /* a sentence was written */
};

/* ---- values ---- */

static void fail(struct machine *m, const char *what)
{
    if (!m->failed) refuse(m->reader, "pickle: %s at byte %zu of %zu", what, m->at, m->size);
    m->failed = 1;
}

static struct pickle_value *new_value(struct machine *m, enum pickle_kind kind)
{
    struct pickle_value *v = calloc(1, sizeof *v);
    if (v == NULL) {
        fail(m, "no memory");
        return NULL;
    }
    v->kind = kind;
    v->next = m->all;
    m->all = v;
    return v;
}

void pickle_free(struct pickle_value *all)
{
    while (all != NULL) {
        struct pickle_value *v = all;
        all = v->next;
        free((char *)v->text);
        free(v->items);
        free(v);
    }
}

static void append(struct machine *m, struct pickle_value *list, struct pickle_value *item)
{
    if (list->count == list->capacity) {
        const int64_t capacity = list->capacity > 0 ? 2 * list->capacity : 4;
        struct pickle_value **grown = realloc(list->items, (size_t)capacity * sizeof *grown);
        if (grown == NULL) {
            fail(m, "no memory");
            return;
        }
        list->items = grown;
        list->capacity = capacity;
    }
    list->items[list->count++] = item;
}

/* ---- the stack: every instruction pushes at most one value, so it is never higher than there are bytes ---- */

static void push(struct machine *m, struct pickle_value *v)
{
    if (v != NULL) m->stack[m->height++] = v;
}

static struct pickle_value *pop(struct machine *m)
{
    const int64_t floor = m->num_marks > 0 ? m->marks[m->num_marks - 1] : 0;
    if (m->height <= floor) {
        fail(m, "a value is missing");
        return NULL;
    }
    return m->stack[--m->height];
}

static struct pickle_value *top(struct machine *m)
{
    struct pickle_value *v = pop(m);
    if (v != NULL) ++m->height;
    return v;
}

/* The last n values become a list. */
static void collect(struct machine *m, int64_t n)
{
    struct pickle_value *list = new_value(m, PICKLE_LIST);
    const int64_t floor = m->num_marks > 0 ? m->marks[m->num_marks - 1] : 0;
    if (list == NULL) return;
    if (m->height - n < floor) {
        fail(m, "a value is missing");
        return;
    }
    m->height -= n;
    for (int64_t i = 0; i < n && !m->failed; ++i) append(m, list, m->stack[m->height + i]);
    push(m, list);
}

/* How many values there are above the last mark, which goes. */
static int64_t unmark(struct machine *m)
{
    if (m->num_marks == 0) {
        fail(m, "a mark is missing");
        return 0;
    }
    return m->height - m->marks[--m->num_marks];
}

/* The values above the mark to the list or dictionary below it. */
static void add_above_mark(struct machine *m)
{
    const int64_t n = unmark(m), first = m->height - n;
    if (m->failed) return;
    m->height = first;
    struct pickle_value *to = top(m);
    for (int64_t i = 0; to != NULL && i < n && !m->failed; ++i) append(m, to, m->stack[first + i]);
    if (to != NULL && to->kind == PICKLE_DICT && to->count % 2 != 0) fail(m, "a key has no value");
}

/* ---- operands ---- */

static const uint8_t *take(struct machine *m, size_t count)
{
    if (count > m->size - m->at) {
        fail(m, "the pickle ends");
        return NULL;
    }
    m->at += count;
    return m->bytes + m->at - count;
}

static uint64_t take_unsigned(struct machine *m, size_t count)
{
    uint64_t x = 0;
    const uint8_t *bytes = take(m, count);
    if (bytes != NULL) memcpy(&x, bytes, count);
    return x;
}

static void push_text(struct machine *m, enum pickle_kind kind, uint64_t length)
{
    const uint8_t *bytes = take(m, length <= m->size ? (size_t)length : SIZE_MAX);
    struct pickle_value *v = bytes != NULL ? new_value(m, kind) : NULL;
    if (v == NULL) return;
    v->text = strndup((const char *)bytes, (size_t)length);
    if (v->text == NULL) fail(m, "no memory");
    push(m, v);
}

static void push_integer(struct machine *m, enum pickle_kind kind, int64_t x)
{
    struct pickle_value *v = new_value(m, kind);
    if (v != NULL) v->integer = x;
    push(m, v);
}

/* Two's complement of that many bytes. */
static void push_long(struct machine *m, uint64_t count)
{
    const uint8_t *bytes = take(m, count <= m->size ? (size_t)count : SIZE_MAX);
    if (bytes == NULL) return;
    if (count > 8) { /* no length or offset is so large */
        push(m, new_value(m, PICKLE_OTHER));
        return;
    }
    uint64_t x = count > 0 && bytes[count - 1] >= 0x80 ? UINT64_MAX : 0;
    for (uint64_t i = count; i > 0; --i) x = x << 8 | bytes[i - 1];
    push_integer(m, PICKLE_INTEGER, (int64_t)x);
}

static void push_real(struct machine *m)
{
    const uint8_t *bytes = take(m, 8);
    struct pickle_value *v = bytes != NULL ? new_value(m, PICKLE_REAL) : NULL;
    if (v == NULL) return;
    uint64_t bits = 0;
    for (int i = 0; i < 8; ++i) bits = bits << 8 | bytes[i]; /* most significant byte first */
    memcpy(&v->real, &bits, sizeof bits);
    push(m, v);
}

/* A line of text, without its end. */
static char *take_line(struct machine *m)
{
    const uint8_t *begin = m->bytes + m->at, *end = memchr(begin, '\n', m->size - m->at);
    if (end == NULL) {
        fail(m, "a line does not end");
        return NULL;
    }
    m->at += (size_t)(end - begin) + 1;
    char *line = strndup((const char *)begin, (size_t)(end - begin));
    if (line == NULL) fail(m, "no memory");
    return line;
}

static void push_global(struct machine *m, const char *module, const char *name)
{
    struct pickle_value *v = module != NULL && name != NULL ? new_value(m, PICKLE_GLOBAL) : NULL;
    if (v == NULL) return;
    char *text = malloc(strlen(module) + strlen(name) + 2);
    if (text == NULL) fail(m, "no memory");
    else sprintf(text, "%s %s", module, name);
    v->text = text;
    push(m, v);
}

static void take_global(struct machine *m)
{
    char *module = take_line(m), *name = module != NULL ? take_line(m) : NULL;
    push_global(m, module, name);
    free(module);
    free(name);
}

static void stack_global(struct machine *m)
{
    struct pickle_value *name = pop(m), *module = pop(m);
    if (m->failed) return;
    if (name->kind != PICKLE_TEXT || module->kind != PICKLE_TEXT) fail(m, "a name is no text");
    else push_global(m, module->text, name->text);
}

/* ---- the memo ---- */

static void remember(struct machine *m, uint64_t place)
{
    struct pickle_value *v = top(m);
    if (v == NULL) return;
    if (place > m->size) fail(m, "a place of the memo is too large"); /* each takes two bytes or more to name */
    else m->memoized += m->memo[place] == NULL, m->memo[place] = v;
}

static void recall(struct machine *m, uint64_t place)
{
    if (place > m->size || m->memo[place] == NULL) fail(m, "the memo has no such place");
    else push(m, m->memo[place]);
}

/* ---- calls that do not happen ---- */

static void make_call(struct machine *m)
{
    struct pickle_value *arguments = pop(m), *called = pop(m);
    struct pickle_value *v = m->failed ? NULL : new_value(m, PICKLE_CALL);
    if (v == NULL) return;
    append(m, v, called);
    append(m, v, arguments);
    if (called->kind == PICKLE_GLOBAL && strcmp(called->text, "collections OrderedDict") == 0)
        v->kind = PICKLE_DICT, v->count = 0;
    push(m, v);
}

static void make_saved(struct machine *m)
{
    struct pickle_value *id = pop(m), *v = m->failed ? NULL : new_value(m, PICKLE_SAVED);
    if (v == NULL) return;
    append(m, v, id);
    push(m, v);
}

static void add_item(struct machine *m)
{
    struct pickle_value *value = pop(m), *key = pop(m), *dict = top(m);
    if (m->failed) return;
    if (dict->kind == PICKLE_DICT && dict->count % 2 != 0) fail(m, "a key has no value");
    append(m, dict, key);
    append(m, dict, value);
}

static void add_element(struct machine *m)
{
    struct pickle_value *element = pop(m), *list = top(m);
    if (m->failed) return;
    if (list->kind == PICKLE_DICT) fail(m, "a key has no value");
    else append(m, list, element);
}

/* ---- the instructions ---- */

static void push_simple(struct machine *m, uint8_t code)
{
    switch (code) {
    case 'N': push(m, new_value(m, PICKLE_NONE)); break;
    case 0x88: push_integer(m, PICKLE_BOOL, 1); break;
    case 0x89: push_integer(m, PICKLE_BOOL, 0); break;
    case 'K': push_integer(m, PICKLE_INTEGER, (int64_t)take_unsigned(m, 1)); break;
    case 'M': push_integer(m, PICKLE_INTEGER, (int64_t)take_unsigned(m, 2)); break;
    case 'J': push_integer(m, PICKLE_INTEGER, (int32_t)take_unsigned(m, 4)); break;
    case 0x8a: push_long(m, take_unsigned(m, 1)); break;
    case 'G': push_real(m); break;
    case 'X': push_text(m, PICKLE_TEXT, take_unsigned(m, 4)); break;
    case 0x8c: push_text(m, PICKLE_TEXT, take_unsigned(m, 1)); break;
    case 'U': push_text(m, PICKLE_TEXT, take_unsigned(m, 1)); break;
    case 'C': push_text(m, PICKLE_OTHER, take_unsigned(m, 1)); break;
    case 'B': push_text(m, PICKLE_OTHER, take_unsigned(m, 4)); break;
    case 'c': take_global(m); break;
    default: refuse(m->reader, "pickle: code 0x%02x at byte %zu is not understood", code, m->at - 1), m->failed = 1;
    }
}

static void push_container(struct machine *m, uint8_t code)
{
    switch (code) {
    case ')': case ']': case 0x8f: push(m, new_value(m, PICKLE_LIST)); break;
    case '}': push(m, new_value(m, PICKLE_DICT)); break;
    case 't': case 'l': collect(m, unmark(m)); break;
    case 0x85: collect(m, 1); break;
    case 0x86: collect(m, 2); break;
    case 0x87: collect(m, 3); break;
    default: push_simple(m, code);
    }
}

static void step(struct machine *m, uint8_t code)
{
    switch (code) {
    case 0x80: take(m, 1); break;             /* PROTO */
    case 0x95: take(m, 8); break;             /* FRAME */
    case '(': m->marks[m->num_marks++] = m->height; break;
    case '0': pop(m); break;
    case '2': push(m, top(m)); break;
    case 'q': remember(m, take_unsigned(m, 1)); break;
    case 'r': remember(m, take_unsigned(m, 4)); break;
    case 0x94: remember(m, m->memoized); break;
    case 'h': recall(m, take_unsigned(m, 1)); break;
    case 'j': recall(m, take_unsigned(m, 4)); break;
    case 'a': add_element(m); break;
    case 's': add_item(m); break;
    case 'e': case 'u': case 0x90: add_above_mark(m); break;
    case 'R': case 0x81: make_call(m); break; /* REDUCE, NEWOBJ */
    case 'b': pop(m); break;                  /* BUILD: the state of an object goes */
    case 'Q': make_saved(m); break;
    case 0x93: stack_global(m); break;
    default: push_container(m, code);
    }
}

const struct pickle_value *pickle_read(const struct reader *r, const uint8_t *bytes, size_t size,
                                       struct pickle_value **all)
{
    struct machine m = {.reader = r, .bytes = bytes, .size = size};
    const struct pickle_value *result = NULL;
    m.stack = calloc(size + 1, sizeof(struct pickle_value *));
    m.memo = calloc(size + 1, sizeof(struct pickle_value *));
    m.marks = calloc(size + 1, sizeof *m.marks);
    if (m.stack == NULL || m.memo == NULL || m.marks == NULL) fail(&m, "no memory");
    while (!m.failed && m.at < size) {
        const uint8_t code = bytes[m.at++];
        if (code == '.') {
            result = pop(&m);
            break;
        }
        step(&m, code);
    }
    if (result == NULL) fail(&m, "there is no end");
    free(m.stack);
    free(m.memo);
    free(m.marks);
    *all = m.all;
    return m.failed ? NULL : result;
}

/* tensor_set.c - see tensor_set.h. */
#include "reference/audit/tensor_set.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "reference/formats.h"

double tensor_number(const struct tensor *t, int64_t i)
{
    switch (t->dtype) {
    case TENSOR_FP64: return ((const double *)t->data)[i];
    case TENSOR_INT64: return (double)((const int64_t *)t->data)[i];
    case TENSOR_UINT64: return (double)((const uint64_t *)t->data)[i];
    case TENSOR_INT32: return ((const int32_t *)t->data)[i];
    case TENSOR_UINT32: return ((const uint32_t *)t->data)[i];
    case TENSOR_INT16: return ((const int16_t *)t->data)[i];
    case TENSOR_UINT16: return ((const uint16_t *)t->data)[i];
    case TENSOR_INT8: return ((const int8_t *)t->data)[i];
    case ATTEST_UINT8: return ((const uint8_t *)t->data)[i];
    default: return ref_format(t->dtype) != NULL ? ref_load(t->dtype, t->data, i) : NAN;
    }
}

/* Single numbers that are called as a setting say what it is, as in numpy.savez(path, q=q, causal=True). */
static bool is_setting(const struct tensor *t)
{
    return t->elements == 1 && t->dtype != TENSOR_BYTES && setting_of(t->name) < SETTING_NUM;
}

static void add_settings(struct tensor_file *f)
{
    for (int i = 0; i < f->count; ++i) {
        if (!is_setting(&f->tensors[i])) continue;
        char text[64];
        snprintf(text, sizeof text, "%.17g", tensor_number(&f->tensors[i], 0));
        if (tensor_file_add_metadata(f, f->tensors[i].name, text) != 0) {
            fputs("audit: out of memory\n", stderr);
            exit(AUDIT_EXIT_UNUSABLE);
        }
    }
}

char *tensor_set_open(struct tensor_set *set)
{
    char text[512];
    set->files = allocate((size_t)set->count, sizeof *set->files);
    for (int i = 0; i < set->count; ++i) {
        if (tensor_file_open(set->paths[i], &set->files[i], text, sizeof text) != 0) return sentence("%s", text);
        add_settings(set->files[i]);
    }
    return NULL;
}

void tensor_set_close(struct tensor_set *set)
{
    for (int i = 0; set->files != NULL && i < set->count; ++i) tensor_file_close(set->files[i]);
    free(set->files);
    set->files = NULL;
}

/* ---- looking up ---- */

/* The place of the n-th tensor of this part, counted from 0; false where there are not so many. */
static bool find_nth(const struct tensor_set *set, enum part part, int n, int *file, const struct tensor **t)
{
    for (int i = 0; i < set->count; ++i) {
        for (int k = 0; set->files[i] != NULL && k < set->files[i]->count; ++k) {
            if (part_of(set->files[i]->tensors[k].name) != part || n-- > 0) continue;
            *file = i;
            *t = &set->files[i]->tensors[k];
            return true;
        }
    }
    return false;
}

const struct tensor *tensor_set_find(const struct tensor_set *set, enum part part)
{
    int file;
    const struct tensor *t;
    return find_nth(set, part, 0, &file, &t) ? t : NULL;
}

const char *tensor_set_path(const struct tensor_set *set, enum part part)
{
    int file;
    const struct tensor *t;
    return set->paths[find_nth(set, part, 0, &file, &t) ? file : 0];
}

const char *tensor_set_metadata(const struct tensor_set *set, const char *key)
{
    const char *value = NULL;
    for (int i = 0; i < set->count && value == NULL; ++i)
        if (set->files[i] != NULL) value = tensor_file_metadata(set->files[i], key);
    return value;
}

/* "None", or nothing, states nothing. */
static bool is_none(const char *value)
{
    return value[0] == '\0' || strcasecmp(value, "none") == 0 || strcasecmp(value, "null") == 0;
}

static const struct tensor_metadata *find_setting(const struct tensor_set *set, enum setting which, int n)
{
    for (int i = 0; i < set->count; ++i) {
        for (int k = 0; set->files[i] != NULL && k < set->files[i]->num_metadata; ++k) {
            const struct tensor_metadata *m = &set->files[i]->metadata[k];
            if (setting_of(m->key) == which && !is_none(m->value) && n-- == 0) return m;
        }
    }
    return NULL;
}

const char *tensor_set_setting(const struct tensor_set *set, enum setting which)
{
    const struct tensor_metadata *m = find_setting(set, which, 0);
    return m != NULL ? m->value : NULL;
}

char *tensor_set_twice(const struct tensor_set *set)
{
    for (int r = 0; r < PART_NUM; ++r) {
        int file[2];
        const struct tensor *t[2];
        if (!find_nth(set, (enum part)r, 0, &file[0], &t[0]) || !find_nth(set, (enum part)r, 1, &file[1], &t[1]))
            continue;
        if (file[0] != file[1])
            return sentence("tensor %s is in both %s and %s", t[0]->name, set->paths[file[0]], set->paths[file[1]]);
        return sentence("%s and %s name the same tensor, and %s holds both", t[0]->name, t[1]->name,
                        set->paths[file[0]]);
    }
    for (int s = 0; s < SETTING_NUM; ++s) {
        const struct tensor_metadata *first = find_setting(set, (enum setting)s, 0), *other;
        for (int n = 1; (other = find_setting(set, (enum setting)s, n)) != NULL; ++n)
            if (strcmp(first->value, other->value) != 0)
                return sentence("the metadata say both %s = '%.60s' and %s = '%.60s'", first->key, first->value,
                                other->key, other->value);
    }
    return NULL;
}

bool tensor_set_holds(const struct tensor_set *set, bool (*is_kind)(enum part))
{
    for (int i = 0; i < set->count; ++i)
        for (int k = 0; set->files[i] != NULL && k < set->files[i]->count; ++k)
            if (is_kind(part_of(set->files[i]->tensors[k].name))) return true;
    return false;
}

/* ---- what is not read ---- */

/* Checkpoints may hold thousands of names: the first few say enough. */
enum { SHOWN = 8 };
struct list {
    char text[SHOWN * 64 + 32];
    int count;
};

static void add_name(struct list *list, const char *kind, const char *name)
{
    if (list->count++ >= SHOWN) return;
    const size_t used = strlen(list->text);
    snprintf(list->text + used, sizeof list->text - used, "%s%s'%.50s'", used > 0 ? ", " : "", kind, name);
}

static char *finish_list(struct list *list)
{
    if (list->count == 0) return NULL;
    if (list->count > SHOWN)
        snprintf(list->text + strlen(list->text), sizeof list->text - strlen(list->text), " and %d more",
                 list->count - SHOWN);
    for (char *c = list->text; *c != '\0'; ++c)
        if (*c >= 0 && *c < ' ') *c = '?';
    return sentence("%s", list->text);
}

static bool is_ignored(const char *name, const char *ignored)
{
    const size_t length = strlen(name);
    for (const char *at = ignored; at != NULL && *at != '\0'; at += strcspn(at, ","), at += *at == ',')
        if (strcspn(at, ",") == length && memcmp(at, name, length) == 0) return true;
    return false;
}

char *tensor_set_unread(const struct tensor_set *set, bool with_metadata, const char *ignored)
{
    struct list list = {.count = 0};
    for (int i = 0; i < set->count; ++i) {
        const struct tensor_file *f = set->files[i];
        for (int t = 0; f != NULL && t < f->count; ++t)
            if (part_of(f->tensors[t].name) == PART_NUM && !is_setting(&f->tensors[t]) &&
                !is_ignored(f->tensors[t].name, ignored))
                add_name(&list, "", f->tensors[t].name);
        for (int m = 0; with_metadata && f != NULL && m < f->num_metadata; ++m) {
            const struct tensor_metadata *item = &f->metadata[m];
            if (setting_of(item->key) == SETTING_NUM && !key_is_idle(item->key) && !is_ignored(item->key, ignored))
                add_name(&list, "metadata ", item->key);
        }
    }
    return finish_list(&list);
}

char *tensor_set_idle(const struct tensor_set *set)
{
    struct list list = {.count = 0};
    for (int i = 0; i < set->count; ++i)
        for (int t = 0; set->files[i] != NULL && t < set->files[i]->count; ++t)
            if (part_of(set->files[i]->tensors[t].name) == PART_IDLE)
                add_name(&list, "", set->files[i]->tensors[t].name);
    return finish_list(&list);
}

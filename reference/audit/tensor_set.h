/* tensor_set.h - files that are looked into as if they were one. */
#ifndef ATTEST_AUDIT_TENSOR_SET_H
#define ATTEST_AUDIT_TENSOR_SET_H

#include <stdbool.h>

#include "reference/audit/notes.h"
#include "reference/audit/spelling.h"
#include "reference/audit/tensor_file.h"

struct tensor_set {
    const char **paths;
    struct tensor_file **files;
    int count;
};

char *tensor_set_open(struct tensor_set *set); /* NULL, or a sentence on a file that cannot be read */
void tensor_set_close(struct tensor_set *set);

double tensor_number(const struct tensor *t, int64_t i); /* NaN of what is no number */

const struct tensor *tensor_set_find(const struct tensor_set *set, enum part part); /* NULL if absent */
const char *tensor_set_path(const struct tensor_set *set, enum part part);          /* of its file */
/* The value of a setting, in whose words it is. "None" and nothing are NULL. */
const char *tensor_set_setting(const struct tensor_set *set, enum setting which);
const char *tensor_set_metadata(const struct tensor_set *set, const char *key); /* NULL if absent */

/* A sentence if a file holds two tensors of one part, or two files do, or two metadata that are one setting; or NULL.
 */
char *tensor_set_twice(const struct tensor_set *set);

bool tensor_set_holds(const struct tensor_set *set, bool (*is_kind)(enum part));

/* Names of tensors, and of metadata where asked for, that nothing looks for, or NULL; `ignored` (names with commas
 * between, or NULL) are left out. A misspelt name must not go unnoticed. */
char *tensor_set_unread(const struct tensor_set *set, bool with_metadata, const char *ignored);
/* Names of tensors that say nothing about the problem, or NULL. */
char *tensor_set_idle(const struct tensor_set *set);

#endif

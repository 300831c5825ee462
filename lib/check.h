/* check.h - is this problem, are these arguments what attest.h says they must be?
 *
 * Every function returns true, or false after attest_refuse() was told the status and the sentence.
 * Nothing here writes to the caller's memory. */
#ifndef ATTEST_LIB_CHECK_H
#define ATTEST_LIB_CHECK_H

#include <stdbool.h>
#include <stddef.h>

#include "lib/attest.h"
#include "lib/tensors.h"

/* A struct of the caller whose first field is its uint32_t struct_size. A longer one is accepted if what
 * this build does not know of it is zero. */
bool attest_check_struct(const char *name, const void *caller, size_t known_bytes);

bool attest_check_plan(const struct attest_plan *plan);

/* Host values only. Shapes are a part of it. */
bool attest_check_problem(const struct attest_problem *p);
bool attest_check_shapes(const struct attest_problem *p);

/* What one pointer of a pass reaches. Axes in bytes, widest stride first, none of stride zero. */
struct attest_region {
    const char *name;
    size_t in_args; /* offset of the pointer in struct attest_backward_args */
    bool written, may_be_null;
    int64_t align, span; /* bytes; span: from the first to past the last */
    int64_t inner;       /* bytes that lie side by side */
    int num_axes;
    struct attest_axis axes[4];
};

enum { ATTEST_MAX_REGIONS = ATTEST_NUM_TENSORS + 10 };

/* All of a pass. */
struct attest_reach {
    int count;
    struct attest_region at[ATTEST_MAX_REGIONS];
};

/* Of a checked problem: what is the same in every run. */
void attest_find_reach(const struct attest_problem *p, enum attest_pass pass, struct attest_reach *out);

/* Pointers of one pass: there, aligned, outputs and workspace apart from all else. For a forward pass only a->forward
 * is looked at. */
bool attest_check_args(const struct attest_reach *reach, const struct attest_backward_args *a, enum attest_pass pass,
                       const void *workspace, size_t workspace_bytes);

/* A merge's arguments, and those of its backward: host values, pointers, outputs apart, what the device can do. */
bool attest_check_merge(const struct attest_merge_args *a);
bool attest_check_merge_backward(const struct attest_merge_backward_args *a);

/* How an implementation is said to compute, and an audit's options with what they name. */
bool attest_check_recipe(const struct attest_recipe *r);
bool attest_check_audit_options(const struct attest_audit_options *o);

/* The size of the struct inside. */
bool attest_check_inner_struct(const struct attest_backward_args *args);

/* cu_seqlens and seqused, where the host can read them (devices SIM and REFERENCE). */
bool attest_check_lengths(const struct attest_problem *p, const struct attest_forward_args *a);

#endif

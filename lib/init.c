/* init.c - what each public struct starts from, as functions. */
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"

/* `initial` is the known part of the struct; what a newer header has beyond it is zero. */
static enum attest_status start(const char *name, void *caller, size_t size, const void *initial, size_t known_bytes)
{
    const uint32_t struct_size = (uint32_t)size;
    if (caller == NULL) {
        attest_refuse(ATTEST_INVALID, "%s = NULL, but must point to a struct", name);
        return attest_refused_status();
    }
    if (size < known_bytes || size > INT32_MAX) {
        attest_refuse(ATTEST_INVALID, "size = %zu, but must be that of the caller's %s, at least %zu", size, name,
                      known_bytes);
        return attest_refused_status();
    }
    memset(caller, 0, size);
    memcpy(caller, initial, known_bytes);
    memcpy(caller, &struct_size, sizeof struct_size); /* every struct's first field */
    return ATTEST_OK;
}

enum attest_status attest_problem_init(struct attest_problem *problem, size_t size)
{
    const struct attest_problem initial = ATTEST_PROBLEM_INIT;
    return start("problem", problem, size, &initial, sizeof initial);
}

enum attest_status attest_forward_args_init(struct attest_forward_args *args, size_t size)
{
    const struct attest_forward_args initial = ATTEST_FORWARD_ARGS_INIT;
    return start("args", args, size, &initial, sizeof initial);
}

enum attest_status attest_backward_args_init(struct attest_backward_args *args, size_t size)
{
    const struct attest_backward_args initial = ATTEST_BACKWARD_ARGS_INIT;
    return start("args", args, size, &initial, sizeof initial);
}

enum attest_status attest_merge_args_init(struct attest_merge_args *args, size_t size)
{
    const struct attest_merge_args initial = ATTEST_MERGE_ARGS_INIT;
    return start("args", args, size, &initial, sizeof initial);
}

enum attest_status attest_merge_backward_args_init(struct attest_merge_backward_args *args, size_t size)
{
    const struct attest_merge_backward_args initial = ATTEST_MERGE_BACKWARD_ARGS_INIT;
    return start("args", args, size, &initial, sizeof initial);
}

enum attest_status attest_audit_options_init(struct attest_audit_options *options, size_t size)
{
    const struct attest_audit_options initial = ATTEST_AUDIT_OPTIONS_INIT;
    return start("options", options, size, &initial, sizeof initial);
}

enum attest_status attest_audit_arrays_init(struct attest_audit_arrays *arrays, size_t size)
{
    const struct attest_audit_arrays initial = ATTEST_AUDIT_ARRAYS_INIT;
    return start("arrays", arrays, size, &initial, sizeof initial);
}

/* plan.h - what a plan keeps: a checked copy of the problem and, for each pass, the kernel that was picked. */
#ifndef ATTEST_LIB_PLAN_H
#define ATTEST_LIB_PLAN_H

#include <stddef.h>

#include "kernels/registry.h"
#include "lib/attest.h"

enum { ATTEST_WORKSPACE_ALIGNMENT = 256 }; /* its bytes are a multiple of it, too */

struct attest_plan {
    struct attest_problem problem;
    const struct forward_kernel *forward;   /* NULL: no such pass, or the reference device */
    const struct backward_kernel *backward; /* as above */
    struct attest_pass_plan {
        const char *kernel; /* NULL: no such pass */
        const struct attest_recipe *recipe;
        size_t workspace_bytes;
    } forward_pass, backward_pass;
};

#endif

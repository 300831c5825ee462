/* plan.h - what a plan keeps: a checked copy of the problem and the kernel that was picked. */
#ifndef ATTEST_LIB_PLAN_H
#define ATTEST_LIB_PLAN_H

#include "kernels/registry.h"
#include "lib/attest.h"

struct attest_plan {
    struct attest_problem problem;
    const struct forward_kernel *forward; /* NULL: the reference device */
    const char *kernel;
    const struct attest_recipe *recipe;
};

#endif

/* problems.h - the fixed problems that are counted. */
#ifndef ATTEST_CI_PERF_PROBLEMS_H
#define ATTEST_CI_PERF_PROBLEMS_H

#include <stdbool.h>
#include <stddef.h>

#include "kernels/registry.h"
#include "lib/attest.h"
#include "proptests/cases/sample.h"

/* A row of the registry. */
struct problem_row {
    enum attest_pass pass;
    const void *row; /* struct forward_kernel or backward_kernel */
    const char *name;
    const struct kernel_reach *reach;
    struct lengths most;
};

/* What a problem may have: that a row takes it, unless it lacks `lacks`. */
struct problem_feature {
    const char *name;
    uint32_t lacks;    /* enum kernel_feature; 0: every row takes it */
    unsigned with;     /* enum sample_feature */
    bool is_backward;  /* of gradients alone */
};

struct counted_problem {
    char name[64];
    struct sample_shape shape;
    const struct problem_row *of; /* only its pass is counted; NULL: both passes */
};

enum { PROBLEM_MOST_ROWS = 64, PROBLEM_FEATURES = 15, PROBLEM_WIDTHS = 4 };
extern const struct problem_feature problem_features[PROBLEM_FEATURES];

/* Of heads: those that kernels are compiled for. */
extern const int64_t problem_widths[PROBLEM_WIDTHS];

/* Every row, both passes; the same ones at every call. */
const struct problem_row *problem_rows(size_t *count);
/* Whether the planner gives the row (a share of) such a problem. */
bool problem_is_of(const struct sample_shape *shape, const struct problem_row *row);
/* The list, the same one at every call. */
const struct counted_problem *counted_problems(size_t *count);

#endif

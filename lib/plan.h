/* plan.h - what a plan keeps: a checked copy of the problem and, for each pass, the kernels that were picked. */
#ifndef ATTEST_LIB_PLAN_H
#define ATTEST_LIB_PLAN_H

#include <stddef.h>

#include "kernels/registry.h"
#include "lib/attest.h"
#include "lib/check.h"

enum { ATTEST_WORKSPACE_ALIGNMENT = 256 }; /* its bytes are a multiple of it, too */
enum { ATTEST_SIM_NUM_SMS = 132 };         /* those of an H100: plans for the simulated GPU count on them */

struct attest_plan {
    struct attest_problem problem;
    const struct forward_kernel *forward[MAX_SHARES];
    const struct backward_kernel *backward[MAX_SHARES];
    struct attest_reach forward_reach, backward_reach; /* of the passes that there are */
    struct attest_pass_plan {
        int num_shares;  /* of the kernels above, one launch each; 0: no such pass */
        char kernel[MAX_SHARES * 40]; /* their names, joined by + */
        size_t workspace_bytes;
        struct attest_share shares[MAX_SHARES];
    } forward_pass, backward_pass;
};

/* As attest_plan_create, for GPUs whose compute capability has this major number. 0: the problem's device, which is
 * asked; the simulated GPU, asked when it runs, is taken for one of 9. */
enum attest_status attest_plan_create_for(const struct attest_problem *problem, int major, struct attest_plan **plan);

/* Leaves to a launch of kernel `share` the sequences that are its own. */
void attest_take_share(const struct attest_pass_plan *pass, int share, struct forward_params *params);

#endif

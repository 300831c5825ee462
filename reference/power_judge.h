/* power_judge.h - what the judge says of planted faults, one problem after the other. */
#ifndef ATTEST_REFERENCE_POWER_JUDGE_H
#define ATTEST_REFERENCE_POWER_JUDGE_H

#include "reference/bounds.h"
#include "reference/power_kernel.h"

/* The oracle and the bounds of a problem, those of gradients given the o and lse of the honest kernel. */
struct power_judge {
    const struct attest_recipe *recipe;
    struct power_case kernel;
    double *oracle[REF_DV + 1];
    struct ref_bound bounds[REF_NUM_TENSORS];
};

/* `kernel` says what the problem is; aborts where there is no memory. */
void power_judge_init(struct power_judge *j, const struct power_case *kernel, const struct attest_recipe *recipe);
void power_judge_clear(struct power_judge *j);

/* Runs the kernel with the fault and judges all tensors. Returns the largest share or ratio of `tensor`. */
double power_judge_fault(struct power_judge *j, enum power_fault fault, double size, enum ref_tensor tensor,
                         struct ref_report *report);

#endif

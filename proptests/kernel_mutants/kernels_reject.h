/* kernels_reject.h - whether the properties see that a kernel is wrong, on the simulated GPU. */
#ifndef ATTEST_PROPTESTS_KERNEL_MUTANTS_KERNELS_REJECT_H
#define ATTEST_PROPTESTS_KERNEL_MUTANTS_KERNELS_REJECT_H

#include "proptests/kernels/kernels.h"

#define KERNELS_LARGE "large rows"

/* What a wrong kernel was rejected by. */
struct kernels_rejection {
    const char *property; /* or "corners", "several_tiles" or KERNELS_LARGE */
    int64_t number;       /* of the case */
    char message[512];
};

/* Asks cases first_case .. first_case + cases - 1 of each property that can reach one of the launchers, without the
 * features `forbids`, and with the first case the corners, what has several tiles and large rows; one of them fails:
 * true. `likely`: what is asked before all else, the name of what has several tiles or KERNELS_LARGE; NULL: nothing. */
bool kernels_reject(const char *name, const struct kernel_launchers *launchers, uint64_t forbids, int64_t first_case,
                    int64_t cases, const char *likely, struct kernels_rejection *out);

#endif

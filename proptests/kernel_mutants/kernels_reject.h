/* kernels_reject.h - whether the properties see that a kernel is wrong, on the simulated GPU. */
#ifndef ATTEST_PROPTESTS_KERNEL_MUTANTS_KERNELS_REJECT_H
#define ATTEST_PROPTESTS_KERNEL_MUTANTS_KERNELS_REJECT_H

#include "proptests/kernels/kernels.h"

#define KERNELS_LARGE "large rows"

/* What a wrong kernel was rejected by. */
struct kernels_rejection {
    const char *property; /* or "corners", "several_tiles" or KERNELS_LARGE */
    int64_t number;       /* of the case */
    bool likely;
    char message[512];
};

struct kernels_asked {
    uint64_t forbids; /* features */
    int64_t first_case, cases;
    /* Asked before all else, up to NULL: what has several tiles, by name, KERNELS_LARGE, or a property and a case of
     * it, "NAME NUMBER". NULL: nothing. */
    const char *const *likely;
    bool likely_alone; /* of what has several tiles, and of large rows, nothing else is asked */
};

/* Asks cases first_case .. first_case + cases - 1 of each property that can reach one of the launchers, and with the
 * first case what is likely, the corners, what has several tiles and large rows; one of them fails: true. */
bool kernels_reject(const char *name, const struct kernel_launchers *launchers, const struct kernels_asked *asked,
                    struct kernels_rejection *out);

/* Cases that passed so far, but for corners, in which other kernels answer, too. None: no case reaches the kernel. */
int64_t kernels_answered(void);

/* Whether there is what `likely` names: else it would be passed over. */
bool kernels_likely_exists(const char *likely);

#endif

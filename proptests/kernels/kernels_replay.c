/* kernels_replay.c - one case of the kernels on the simulated GPU again.
 *
 *     bazel run //proptests:kernels_replay -- 'v1;property=...;implementation=sm_90;choices=...' WORK
 *
 * WORK as the failure's line says. Prints the case and what is wrong; exit status 1 if something is. */
#include <stdlib.h>
#include <string.h>

#include "proptests/kernels/kernels.h"

int main(int argc, char **argv)
{
    if (argc != 3) {
        fprintf(stderr, "usage: kernels_replay LINE WORK\n");
        return 2;
    }
    const enum sim_generation generation = strstr(argv[1], "implementation=sm_80") != NULL ? SIM_SM_80 : SIM_SM_90;
    const struct kernel_launchers polynomials = kernels_sim_poly();
    struct kernel_implementation kernels =
        kernels_on_sim("replay", generation, strstr(argv[1], "_poly;") != NULL ? &polynomials : NULL);
    return !kernels_replay(argv[1], &kernels.implementation, atoll(argv[2]), stdout);
}

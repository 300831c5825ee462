/* kernels_replay.c - one case of the kernels on the simulated GPU again.
 *
 *     bazel run //proptests:kernels_replay -- 'v1;property=...;implementation=sim;choices=...' WORK
 *
 * WORK as the failure's line says. Prints the case and what is wrong; exit status 1 if something is. */
#include <stdlib.h>

#include "proptests/kernels.h"

int main(int argc, char **argv)
{
    const struct kernel_implementation library = kernels_on_sim("sim", NULL, NULL);
    if (argc != 3) {
        fprintf(stderr, "usage: kernels_replay LINE WORK\n");
        return 2;
    }
    return !kernels_replay(argv[1], &library.implementation, atoll(argv[2]), stdout);
}

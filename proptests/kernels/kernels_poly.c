/* kernels_poly.c - the kernels with polynomials in place of approximate instructions, on the simulated GPU. */
#include "proptests/kernels/kernels.h"

struct kernel_launchers kernels_sim_poly(void)
{
    struct kernel_launchers out = {{NULL}, {NULL}, NULL, NULL};
#define KERNEL(name, pass, file, code) kernels_replace(&out, #name, (kernel_launcher *)name##_sim_poly);
#include "kernels/kernels.inc"
#undef KERNEL
    return out;
}

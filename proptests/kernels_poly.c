/* kernels_poly.c - the kernels with polynomials in place of approximate instructions, on the simulated GPU. */
#include "proptests/kernels.h"

struct kernel_launchers kernels_sim_poly(void)
{
    struct kernel_launchers out = {{NULL}, {NULL}, NULL, NULL};
#define POLYNOMIAL(kernel) kernels_replace(&out, #kernel, (kernel_launcher *)kernel##_sim_poly)
    POLYNOMIAL(cls_forward), POLYNOMIAL(cls_backward);
    POLYNOMIAL(forward), POLYNOMIAL(forward_fp32), POLYNOMIAL(backward), POLYNOMIAL(backward_fp32);
    POLYNOMIAL(short_forward), POLYNOMIAL(short_forward_hopper);
    POLYNOMIAL(short_forward_scaled), POLYNOMIAL(short_forward_wide);
    POLYNOMIAL(short_backward), POLYNOMIAL(short_backward_64), POLYNOMIAL(short_backward_hopper);
    POLYNOMIAL(short_backward_scaled), POLYNOMIAL(short_backward_wide);
    POLYNOMIAL(merge), POLYNOMIAL(merge_backward);
#undef POLYNOMIAL
    return out;
}

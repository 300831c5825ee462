/* approx.c - the approximate instructions: here the exact result rounded to fp32, but for one case in some 10^8, where
 * rounding to double first moves it to the neighbour. The chip's results differ from these in their last bits. */
#include <math.h>
#include <string.h>

#include "kernels/sim/machine.h"

static float counted(double result)
{
    const uint32_t one_nan = 0x7fffffff; /* the chip's, whatever came in */
    float rounded = (float)result;
    if (isnan(result)) memcpy(&rounded, &one_nan, sizeof rounded);
    sim_tally(sim_self->cta->cluster)->special_function_operations += 1;
    return rounded;
}

float sim_exp2_approx(float x)
{
    return counted(exp2(x));
}

float sim_log2_approx(float x)
{
    return counted(log2(x));
}

float sim_rcp_approx(float x)
{
    return counted(1 / (double)x);
}

float sim_tanh_approx(float x)
{
    return counted(tanh(x));
}

/* approx.c - the approximate instructions: here the exact result rounded to fp32, but for one case in some 10^8, where
 * rounding to double first moves it to the neighbour. The chip's results differ from these in their last bits.
 * ex2, lg2 and rcp are the .ftz forms: subnormal operands count as zero, subnormal results are zero. */
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/sim/machine.h"

static float flushed(float x)
{
    return fabsf(x) < FLT_MIN ? copysignf(0, x) : x;
}

static float counted(float result)
{
    const uint32_t one_nan = 0x7fffffff; /* the chip's, whatever came in */
    if (isnan(result)) memcpy(&result, &one_nan, sizeof result);
    sim_tally(sim_self->cta->cluster)->special_function_operations += 1;
    ++sim_self->overlap.work;
    return result;
}

float sim_exp2_approx(float x)
{
    return counted(flushed((float)exp2(flushed(x))));
}

float sim_log2_approx(float x)
{
    return counted((float)log2(flushed(x)));
}

float sim_rcp_approx(float x)
{
    return counted(flushed(1 / flushed(x)));
}

float sim_tanh_approx(float x)
{
    return counted((float)tanh(x));
}

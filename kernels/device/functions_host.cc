/* functions_host.cc - the portable functions on this machine's processor. */
#include "kernels/device/functions.h"
#include "kernels/device/functions_check.h"

/* The bits are the same with and without the processor's own fused multiply-add; the speed is not. */
#ifdef __x86_64__
#define FOR_EVERY_PROCESSOR __attribute__((target_clones("default", "arch=haswell")))
#else
#define FOR_EVERY_PROCESSOR
#endif

FOR_EVERY_PROCESSOR static void exp2_values(uint32_t first, uint32_t count, float *result)
{
    for (uint32_t i = 0; i < count; ++i) result[i] = exp2_portable(float_of(first + i));
}

FOR_EVERY_PROCESSOR static void log2_values(uint32_t first, uint32_t count, float *result)
{
    for (uint32_t i = 0; i < count; ++i) result[i] = log2_portable(float_of(first + i));
}

FOR_EVERY_PROCESSOR static void rcp_values(uint32_t first, uint32_t count, float *result)
{
    for (uint32_t i = 0; i < count; ++i) result[i] = rcp_portable(float_of(first + i));
}

FOR_EVERY_PROCESSOR static void tanh_values(uint32_t first, uint32_t count, float *result)
{
    for (uint32_t i = 0; i < count; ++i) result[i] = tanh_portable(float_of(first + i));
}

extern "C" void function_values(enum function form, uint32_t first, uint32_t count, float *result)
{
    switch (form) {
    case FUNCTION_EXP2_PORTABLE: return exp2_values(first, count, result);
    case FUNCTION_LOG2_PORTABLE: return log2_values(first, count, result);
    case FUNCTION_RCP_PORTABLE: return rcp_values(first, count, result);
    case FUNCTION_TANH_PORTABLE: return tanh_values(first, count, result);
    default: __builtin_trap();
    }
}

/* registers.h - moving registers between warpgroups. Needs sm_90a. */
#ifndef ATTEST_DEVICE_REGISTERS_H
#define ATTEST_DEVICE_REGISTERS_H

#include "kernels/device/machine.h"

/* "setmaxnreg": .inc, .dec. From now on each thread of the warpgroup, all 128 together, has REGISTERS registers, more
 * or fewer than before: a multiple of 8, 24 .. 256. An increase waits until others have given enough away. The kernel
 * has launch bounds. */
template <int REGISTERS>
INLINE void setmaxnreg_inc()
{
    static_assert(REGISTERS >= 24 && REGISTERS <= 256 && REGISTERS % 8 == 0, "24 .. 256, a multiple of 8");
#if ON_CHIP
    ASM_SM_90("setmaxnreg.inc.sync.aligned.u32 %0;" :: "n"(REGISTERS));
#else
    sim_setmaxnreg(true, REGISTERS);
#endif
}

template <int REGISTERS>
INLINE void setmaxnreg_dec()
{
    static_assert(REGISTERS >= 24 && REGISTERS <= 256 && REGISTERS % 8 == 0, "24 .. 256, a multiple of 8");
#if ON_CHIP
    ASM_SM_90("setmaxnreg.dec.sync.aligned.u32 %0;" :: "n"(REGISTERS));
#else
    sim_setmaxnreg(false, REGISTERS);
#endif
}

#endif

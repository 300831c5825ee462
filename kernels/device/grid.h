/* grid.h - launches that begin before the one ahead of them in the stream has ended. Needs sm_90a.
 *
 * With launch_shape's begins_early the CTAs of a launch may come when those of the launch ahead have all exited, or
 * said that the next may come. Its writes may still be under way: what would pass between the two is saved. */
#ifndef ATTEST_DEVICE_GRID_H
#define ATTEST_DEVICE_GRID_H

#include "kernels/device/machine.h"

/* "griddepcontrol": .wait. Until the launches ahead have ended and all that they wrote is seen. Every thread calls it:
 * before its first access to global memory, copies that it asks for included, and before it ends, so that a launch that
 * has ended vouches for those ahead of it. In a launch that does not begin early it returns at once. */
INLINE void grid_wait()
{
#if ON_CHIP
    ASM_SM_90("griddepcontrol.wait;" ::: "memory");
#else
    sim_grid_wait();
#endif
}

#endif

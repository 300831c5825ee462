/* counts.h - the common form of the kernels of counts.cu: what they work on. */
#ifndef ATTEST_SIM_COUNTS_H
#define ATTEST_SIM_COUNTS_H

#include "kernels/sim/sim.h"

struct counted_args {
    const float *in; /* aligned to 128 bytes */
    float *out;
    int stride, shift; /* in floats; what they are to the kernel, it says itself */
};

#endif

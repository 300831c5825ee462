/* exhibit.h - the common form of the museum's kernels: small, each wrong in one way, each with its mended twin.
 *
 * A kernel gets a room and reads `wrong` from it: the same source is the wrong kernel and the mended one. The mended
 * one fills `out` with numbers that wrong_test.c knows. A label in the source, `// HERE name: rule, instruction`,
 * stands on each line that the finding may name: a race, for one, is seen at whichever of the two accesses comes
 * second. `; rule, instruction` may follow, where the schedule decides. A finding that belongs to no line of the kernel
 * has its label at the EXHIBIT, with the instruction `-`. */
#ifndef ATTEST_SIM_EXHIBIT_H
#define ATTEST_SIM_EXHIBIT_H

#include <stdbool.h>

#include "kernels/sim/sim.h"

struct room {
    const float *in; /* integers, -30 .. 30 */
    float *out;      /* may be written, not read */
    float *work;     /* workspace: may be written, then read */
    bool wrong;
};

#ifdef __cplusplus

#include "kernels/device/device.h"

/* The launcher of a kernel; further arguments are fields of its launch_shape and may look at `r`. */
#define EXHIBIT(name, ...)                                                      \
    extern "C" int exhibit_##name(struct sim_gpu *gpu, const struct room *room) \
    {                                                                           \
        const struct room r = *room;                                            \
        struct launch_shape shape = {};                                         \
        shape.min_blocks = 1;                                                   \
        __VA_ARGS__;                                                            \
        return LAUNCH(name, shape, gpu, r);                                     \
    }

/* A tile in shared memory. */
struct alignas(128) tile {
    float at[256];
};

#endif

#endif

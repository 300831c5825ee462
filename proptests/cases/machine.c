/* machine.c - the host's memory, where simulated kernels find their tensors. */
#include "proptests/cases/machine.h"

#include <stdlib.h>
#include <string.h>

enum { ALIGN = 256 };

static void *allocate(size_t bytes) { return aligned_alloc(ALIGN, (bytes + ALIGN - 1) / ALIGN * ALIGN); }

static int fill(void *there, int byte, size_t bytes)
{
    memset(there, byte, bytes);
    return 0;
}

static int copy(void *to, const void *from, size_t bytes)
{
    memcpy(to, from, bytes);
    return 0;
}

static const char *error_text(int code) { return code == 0 ? "done" : "impossible"; }

const struct machine machine_of_host = {ATTEST_SIM, allocate, free, fill, copy, copy, error_text};

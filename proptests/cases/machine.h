/* machine.h - where kernels run and their tensors lie, for tests that run on more than one machine. */
#ifndef ATTEST_PROPTESTS_CASES_MACHINE_H
#define ATTEST_PROPTESTS_CASES_MACHINE_H

#include <stddef.h>

#include "lib/attest.h"

struct machine {
    enum attest_device device;
    void *(*allocate)(size_t bytes); /* at a multiple of 256; NULL: none left */
    void (*release)(void *memory);   /* NULL is allowed */
    int (*fill)(void *there, int byte, size_t bytes); /* 0: done; so do the next two */
    int (*copy_in)(void *there, const void *host, size_t bytes);
    int (*copy_out)(void *host, const void *there, size_t bytes); /* after all work */
    const char *(*error_text)(int code);
};
extern const struct machine machine_of_host; /* the simulated GPU's */
extern const struct machine machine_of_cuda; /* machine_cuda.c, where there is CUDA */

#endif

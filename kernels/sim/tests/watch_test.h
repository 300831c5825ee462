/* watch_test.h - what kernels of watch_test.cu are given. */
#ifndef ATTEST_SIM_WATCH_TEST_H
#define ATTEST_SIM_WATCH_TEST_H

#include <stddef.h>

struct watched_args {
    const float *from;
    float *to;
    int n, early;
    int values[4];
    size_t dynamic_shared;
};

#endif

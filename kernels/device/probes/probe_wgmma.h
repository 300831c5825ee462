/* probe_wgmma.h - what the probes of wgmma.h read and write: small integers, whose sums are exact in any order. */
#ifndef ATTEST_DEVICE_PROBE_WGMMA_H
#define ATTEST_DEVICE_PROBE_WGMMA_H

#include <stdint.h>

enum { WGMMA_M = 64, WGMMA_MAX_N = 256, WGMMA_K = 16 };

struct wgmma_in { /* b by columns */
    uint16_t a_f16[WGMMA_M][WGMMA_K], b_f16[WGMMA_MAX_N][WGMMA_K];
    uint16_t a_bf16[WGMMA_M][WGMMA_K], b_bf16[WGMMA_MAX_N][WGMMA_K];
};

/* a b for every N = 8, 16, ...; columns from N on stay as they are. */
struct wgmma_product {
    float f16[WGMMA_M][WGMMA_MAX_N], bf16[WGMMA_M][WGMMA_MAX_N]; /* a from shared memory */
    float f16_registers[WGMMA_M][WGMMA_MAX_N], bf16_registers[WGMMA_M][WGMMA_MAX_N];
};

struct wgmma_sizes_out {
    struct wgmma_product of_n[WGMMA_MAX_N / 8];
};

enum { LAYOUT_N = 128, LAYOUT_K = 64, LAYOUT_SWIZZLES = 4 };

static const int layout_swizzles[LAYOUT_SWIZZLES] = {0, 32, 64, 128};

struct layout_in {
    uint16_t a[WGMMA_M][LAYOUT_K], b[LAYOUT_N][LAYOUT_K]; /* bf16, b by columns */
};

/* a b, with a and b K-major (0) or MN-major (1) in shared memory, under every pair of swizzles. */
struct layout_out {
    float d[2][2][LAYOUT_SWIZZLES][LAYOUT_SWIZZLES][WGMMA_M][LAYOUT_N];
    float from_registers[2][LAYOUT_SWIZZLES][WGMMA_M][LAYOUT_N]; /* a in registers */
};

enum { SIGNS_N = 16 };

struct signs_out { /* bf16 where the name does not say */
    float negated_a[WGMMA_M][SIGNS_N], negated_b[WGMMA_M][SIGNS_N], negated_both_f16[WGMMA_M][SIGNS_N];
    float negated_registers[WGMMA_M][SIGNS_N];
    float accumulated[WGMMA_M][SIGNS_N]; /* 1 + 3 a b: wgmmas one after another, the last two in a second group */
    float first[WGMMA_M][SIGNS_N];       /* a b, read while that group is in flight */
};

#endif

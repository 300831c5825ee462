/* probe_values.h - what the probes of convert.h and arith.h read and write. */
#ifndef ATTEST_DEVICE_PROBE_VALUES_H
#define ATTEST_DEVICE_PROBE_VALUES_H

#include <stdint.h>

enum { WIDEN_COUNT = 65536, NARROW_COUNT = 1 << 19, ARITH_COUNT = 1 << 16, SPECIAL_COUNT = 14 };

struct widen_out { /* of every 16-bit pattern */
    uint32_t from_f16[WIDEN_COUNT], from_bf16[WIDEN_COUNT];
};

struct narrow_in {
    uint32_t x[NARROW_COUNT]; /* fp32 bits */
};

struct narrow_out { /* packs: this number in the lower half, the next one (cyclically) in the upper */
    uint32_t f16_bf16[NARROW_COUNT]; /* to_f16 below, to_bf16 above */
    uint32_t tf32[NARROW_COUNT], f16x2[NARROW_COUNT], bf16x2[NARROW_COUNT];
};

struct arith_in {
    uint32_t a[ARITH_COUNT], b[ARITH_COUNT], c[ARITH_COUNT];
};

struct arith_out { /* NaN as 0x7fffffff */
    uint32_t fma[ARITH_COUNT], div[ARITH_COUNT], max[ARITH_COUNT], min[ARITH_COUNT], max_or_nan[ARITH_COUNT];
    uint32_t permuted[ARITH_COUNT]; /* bytes of a and b, c the selector */
};

struct pairs_out { /* of a and b of arith_in, two bf16 each; NaN of products as 0x7fff */
    uint32_t max[ARITH_COUNT], min[ARITH_COUNT], size[ARITH_COUNT], product[ARITH_COUNT];
};

struct special_in {
    uint32_t x[SPECIAL_COUNT];
};

struct special_out {
    uint32_t exp2[SPECIAL_COUNT], log2[SPECIAL_COUNT], rcp[SPECIAL_COUNT], tanh[SPECIAL_COUNT];
};

#endif

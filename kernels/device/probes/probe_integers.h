/* probe_integers.h - small integers in the formats of tensor cores. */
#ifndef ATTEST_DEVICE_PROBE_INTEGERS_H
#define ATTEST_DEVICE_PROBE_INTEGERS_H

#include <stdint.h>
#include <string.h>

#include "kernels/device/probes/probe.h"

/* -4 .. 4, the same for the same n. */
static inline int probe_integer(uint32_t n) { return (int)(probe_random(n) % 9) - 4; }

static inline uint32_t fp32_of_integer(int n)
{
    const float x = (float)n;
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return bits;
}

static inline uint16_t bf16_of_integer(int n) { return (uint16_t)(fp32_of_integer(n) >> 16); }

/* |n| <= 2048: sign, exponent rebiased from 127 to 15, ten fraction bits. */
static inline uint16_t fp16_of_integer(int n)
{
    const uint32_t bits = fp32_of_integer(n);
    return n == 0 ? 0 : (uint16_t)((bits >> 31) << 15 | (((bits >> 23 & 0xff) - 112) << 10 | (bits >> 13 & 0x3ff)));
}

#endif

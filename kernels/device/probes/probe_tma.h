/* probe_tma.h - the boxes that the probes of tma.h copy. */
#ifndef ATTEST_DEVICE_PROBE_TMA_H
#define ATTEST_DEVICE_PROBE_TMA_H

#include <stdbool.h>
#include <stdint.h>

enum { TMA_FP32, TMA_FP16, TMA_BF16, TMA_UINT8 };
enum { TMA_CASES = 21, TMA_BOX_BYTES = 8192, TMA_TENSOR_BYTES = 32768 };

/* Dense but for rows padded to 16 bytes; dimension 0 is the fastest. */
struct tma_case {
    int ndim, element;
    int swizzle;
    bool nan_fill;
    uint64_t shape[5];
    uint32_t box[5];
    int32_t at[5];
};

static const struct tma_case tma_cases[TMA_CASES] = {
    /* every number of dimensions, inside and across every edge */
    {1, TMA_FP32, 0, false, {1000}, {256}, {300}},
    {1, TMA_FP32, 0, false, {1000}, {256}, {-100}},
    {1, TMA_FP16, 0, false, {1000}, {128}, {952}},
    {2, TMA_FP32, 0, false, {40, 30}, {16, 8}, {8, 4}},
    {2, TMA_BF16, 0, false, {37, 30}, {16, 8}, {-8, 26}},
    {3, TMA_FP16, 0, false, {20, 7, 9}, {8, 4, 3}, {16, -2, 7}},
    {4, TMA_FP32, 0, false, {12, 5, 6, 4}, {8, 3, 2, 2}, {-4, 3, 5, -1}},
    {5, TMA_FP16, 0, false, {12, 3, 4, 3, 3}, {8, 2, 2, 2, 2}, {8, 2, -1, 2, -1}},
    {2, TMA_UINT8, 0, false, {100, 20}, {48, 10}, {64, 15}},
    /* nothing of the box is inside */
    {2, TMA_FP32, 0, false, {40, 30}, {16, 8}, {-16, 40}},
    /* swizzles, rows as wide as they are */
    {2, TMA_FP16, 32, false, {64, 40}, {16, 32}, {16, 3}},
    {2, TMA_FP16, 64, false, {64, 40}, {32, 32}, {32, 10}},
    {2, TMA_BF16, 128, false, {128, 40}, {64, 32}, {64, 20}},
    {3, TMA_FP32, 128, false, {64, 10, 5}, {32, 8, 4}, {40, -3, 2}},
    /* NaN outside */
    {2, TMA_FP32, 0, true, {40, 30}, {16, 8}, {-8, 26}},
    {2, TMA_FP16, 0, true, {40, 30}, {16, 8}, {32, -3}},
    {2, TMA_BF16, 64, true, {40, 30}, {32, 8}, {16, -3}},
    /* across the far edges alone, as stores may be */
    {3, TMA_FP16, 0, false, {20, 7, 9}, {8, 4, 3}, {16, 5, 7}},
    {4, TMA_FP32, 0, false, {12, 5, 6, 4}, {8, 3, 2, 2}, {8, 3, 5, 3}},
    {5, TMA_FP16, 0, false, {12, 3, 4, 3, 3}, {8, 2, 2, 2, 2}, {8, 2, 3, 2, 2}},
    {3, TMA_FP32, 128, false, {64, 10, 5}, {32, 8, 4}, {40, 5, 3}},
};

static inline uint32_t tma_element_bytes(const struct tma_case *c)
{
    return c->element == TMA_FP32 ? 4 : c->element == TMA_UINT8 ? 1 : 2;
}

/* Of dimension n: the distance of neighbours in bytes. */
static inline uint64_t tma_stride(const struct tma_case *c, int n)
{
    if (n == 0) return tma_element_bytes(c);
    uint64_t stride = (c->shape[0] * tma_element_bytes(c) + 15) / 16 * 16;
    for (int m = 1; m < n; ++m) stride *= c->shape[m];
    return stride;
}

/* A box that is stored begins at no coordinate below 0. */
static inline bool tma_may_store(const struct tma_case *c)
{
    for (int n = 0; n < c->ndim; ++n)
        if (c->at[n] < 0) return false;
    return true;
}

static inline uint32_t tma_box_bytes(const struct tma_case *c)
{
    uint32_t bytes = tma_element_bytes(c);
    for (int n = 0; n < c->ndim; ++n) bytes *= c->box[n];
    return bytes;
}

struct tma_in {
    uint8_t tensor[TMA_TENSOR_BYTES]; /* the tensor of every case begins here */
};

struct tma_load_out { /* boxes as they lie in shared memory; the second CTA's by multicast */
    uint8_t box[TMA_CASES][TMA_BOX_BYTES], multicast[TMA_CASES][2][TMA_BOX_BYTES];
};

struct tma_store_in {
    uint32_t words[3][TMA_BOX_BYTES / 4]; /* small integers in fp32, in pairs of fp16, of bf16: contents of boxes */
};

struct tma_store_out {
    uint8_t stored[TMA_CASES][TMA_TENSOR_BYTES];
    uint8_t added[TMA_CASES][TMA_TENSOR_BYTES]; /* the same box stored, then added; not of bytes */
};

#endif

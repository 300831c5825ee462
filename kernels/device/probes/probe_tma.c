/* probe_tma.c - what tma.h must give, by definition: element by element. */
#include "kernels/device/probes/probe_tma.h"

#include <string.h>

#include "kernels/device/probes/probe.h"
#include "kernels/device/probes/probe_integers.h"

/* "Swizzling Modes": 16-byte chunks of the shared address, bits 4 and up, are xored with the bits from 7 on. */
static uint32_t swizzle(uint32_t address, int bytes)
{
    const uint32_t mask = bytes == 128 ? 7 : bytes == 64 ? 3 : bytes == 32 ? 1 : 0;
    return address ^ (address >> 7 & mask) << 4;
}

/* Element number n of the box: where it lies in shared memory and in the tensor; false: outside of the tensor. What is
 * stored of a row goes to the end of its last 16 bytes. */
static bool place(const struct tma_case *c, uint32_t n, bool stored, uint32_t *shared, uint64_t *global)
{
    const uint32_t in_chunk = stored ? 16 / tma_element_bytes(c) : 1;
    bool inside = true;
    *shared = swizzle(n * tma_element_bytes(c), c->swizzle);
    *global = 0;
    for (int d = 0; d < c->ndim; n /= c->box[d], ++d) {
        const int64_t at = c->at[d] + (int64_t)(n % c->box[d]);
        const uint64_t shape = d ? c->shape[d] : (c->shape[0] + in_chunk - 1) / in_chunk * in_chunk;
        inside = inside && at >= 0 && at < (int64_t)shape;
        *global += (uint64_t)at * tma_stride(c, d);
    }
    return inside;
}

static uint32_t elements_of(const struct tma_case *c) { return tma_box_bytes(c) / tma_element_bytes(c); }

static void fill_load(void *in)
{
    struct tma_in *w = in;
    for (uint32_t n = 0; n < TMA_TENSOR_BYTES; ++n) w->tensor[n] = (uint8_t)probe_random(n);
}

static void expect_load(const void *in, void *out)
{
    const struct tma_in *w = in;
    struct tma_load_out *o = out;
    for (int i = 0; i < TMA_CASES; ++i) {
        const struct tma_case *c = &tma_cases[i];
        const uint32_t bytes = tma_element_bytes(c), none = !c->nan_fill ? 0 : bytes == 4 ? 0x7ff77ff7 : 0x7ff7;
        for (uint32_t n = 0; n < elements_of(c); ++n) {
            uint32_t shared;
            uint64_t global;
            const bool inside = place(c, n, false, &shared, &global);
            const void *from = inside ? (const void *)(w->tensor + global) : &none; /* little-endian */
            memcpy(&o->box[i][shared], from, bytes);
            memcpy(&o->multicast[i][0][shared], from, bytes);
            memcpy(&o->multicast[i][1][shared], from, bytes);
        }
    }
}

/* Number n of the box, as it lies there, times `factor`. */
static void number(const struct tma_case *c, uint32_t n, int factor, void *to)
{
    const int value = factor * probe_integer(n);
    const uint32_t fp32 = fp32_of_integer(value);
    const uint16_t fp16 = fp16_of_integer(value), bf16 = bf16_of_integer(value);
    memcpy(to, c->element == TMA_FP32 ? (const void *)&fp32 : c->element == TMA_FP16 ? &fp16 : &bf16,
           c->element == TMA_FP32 ? 4 : 2);
}

static void fill_store(void *in)
{
    struct tma_store_in *w = in;
    for (uint32_t n = 0; n < TMA_BOX_BYTES / 4; ++n) {
        w->words[TMA_FP32][n] = fp32_of_integer(probe_integer(n));
        w->words[TMA_FP16][n] =
            fp16_of_integer(probe_integer(2 * n)) | (uint32_t)fp16_of_integer(probe_integer(2 * n + 1)) << 16;
        w->words[TMA_BF16][n] =
            bf16_of_integer(probe_integer(2 * n)) | (uint32_t)bf16_of_integer(probe_integer(2 * n + 1)) << 16;
    }
}

static void expect_store(const void *in, void *out)
{
    const struct tma_store_in *w = in;
    struct tma_store_out *o = out;
    for (int i = 0; i < TMA_CASES; ++i) {
        const struct tma_case *c = &tma_cases[i];
        const uint32_t bytes = tma_element_bytes(c);
        for (uint32_t n = 0; n < elements_of(c) && tma_may_store(c); ++n) {
            uint32_t shared;
            uint64_t global;
            if (!place(c, n, true, &shared, &global)) continue;
            memcpy(&o->stored[i][global], (const uint8_t *)w->words[c->element % 3] + shared, bytes);
            if (c->element != TMA_UINT8) number(c, shared / bytes, 2, &o->added[i][global]);
        }
    }
}

PROBE_LAUNCHERS(probe_tma_load);
PROBE_LAUNCHERS(probe_tma_store);

const struct probe probes_of_tma[] = {
    {"tensor copies: loads, multicast", 90, false, sizeof(struct tma_in), sizeof(struct tma_load_out), fill_load,
     expect_load, PROBE_ON(probe_tma_load)},
    {"tensor copies: stores, reductions", 90, false, sizeof(struct tma_store_in), sizeof(struct tma_store_out),
     fill_store, expect_store, PROBE_ON(probe_tma_store)},
    {0},
};

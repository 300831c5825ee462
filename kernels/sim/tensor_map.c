/* tensor_map.c - tensor maps: what a kernel's tensor copies know of a tensor, in 128 opaque bytes. */
#include <stdio.h>
#include <string.h>

#include "kernels/sim/async.h"

enum { MAX_BOX = 256, GRANULE = 16 };

static const uint64_t MAGIC = 0x70616d2d6d697373;

struct tensor_map {
    uint64_t magic;
    uint64_t data;
    uint64_t stride_bytes[4]; /* of dimensions 1 and up */
    uint32_t last[5];         /* shape - 1 */
    uint16_t box[5];
    uint8_t element, ndim, swizzle_bytes, nan_fill;
};
_Static_assert(sizeof(struct tensor_map) <= 128, "it fits");

unsigned sim_element_bytes(enum sim_element element)
{
    return element == SIM_ELEMENT_FP32 ? 4 : element == SIM_ELEMENT_UINT8 ? 1 : 2;
}

/* What is wrong with a dimension: NULL, if nothing is. */
static const char *check_dimension(const struct sim_tensor_map_fields *f, int i)
{
    if (f->shape[i] == 0 || f->shape[i] > (uint64_t)1 << 32) return "The shape's dimensions are of 1 to 2^32 elements";
    if (f->box[i] == 0 || f->box[i] > MAX_BOX) return "The box's dimensions are of 1 to 256 elements";
    if (i == 0) return NULL;
    if (f->stride_bytes[i] % GRANULE) return "Strides are multiples of 16 bytes";
    if (f->stride_bytes[i] >= (uint64_t)1 << 40) return "Strides are less than 2^40 bytes";
    return NULL;
}

/* As the driver's cuTensorMapEncodeTiled, without interleave and element strides. */
static const char *check(const struct sim_tensor_map_fields *f, int *dimension)
{
    *dimension = -1;
    if (f->ndim < 1 || f->ndim > 5) return "A tensor has 1 to 5 dimensions";
    if ((uintptr_t)f->data % GRANULE) return "The tensor begins at a multiple of 16 bytes";
    if (f->swizzle_bytes != 0 && f->swizzle_bytes != 32 && f->swizzle_bytes != 64 && f->swizzle_bytes != 128)
        return "The swizzle is of 0, 32, 64 or 128 bytes";
    for (*dimension = 0; *dimension < f->ndim; ++*dimension) {
        const char *wrong = check_dimension(f, *dimension);
        if (wrong) return wrong;
    }
    *dimension = 0;
    const unsigned inner = f->box[0] * sim_element_bytes(f->element);
    if (inner % GRANULE) return "The box's rows are of multiples of 16 bytes";
    if (f->swizzle_bytes && inner > (unsigned)f->swizzle_bytes) return "The box's rows do not fit into the swizzle";
    *dimension = -1;
    if (f->nan_fill && f->element == SIM_ELEMENT_UINT8) return "Integers cannot be filled with NaN";
    return NULL;
}

bool sim_tensor_map_encode(void *map, const struct sim_tensor_map_fields *f, char *why, size_t why_bytes)
{
    int dimension;
    const char *wrong = check(f, &dimension);
    if (wrong && dimension >= 0)
        snprintf(why, why_bytes, "%s: dimension %d has shape %llu, stride %llu bytes, box %u.", wrong, dimension,
                 (unsigned long long)f->shape[dimension],
                 (unsigned long long)(dimension ? f->stride_bytes[dimension] : sim_element_bytes(f->element)),
                 f->box[dimension]);
    else if (wrong)
        snprintf(why, why_bytes, "%s.", wrong);
    if (wrong) return false;
    struct tensor_map m = {.magic = MAGIC,
                           .data = (uintptr_t)f->data,
                           .element = (uint8_t)f->element,
                           .ndim = (uint8_t)f->ndim,
                           .swizzle_bytes = (uint8_t)f->swizzle_bytes,
                           .nan_fill = f->nan_fill};
    for (int i = 0; i < f->ndim; ++i) {
        m.last[i] = (uint32_t)(f->shape[i] - 1);
        m.box[i] = (uint16_t)f->box[i];
        if (i > 0) m.stride_bytes[i - 1] = f->stride_bytes[i];
    }
    memset(map, 0, 128);
    memcpy(map, &m, sizeof m);
    return true;
}

bool sim_tensor_map_move(void *map, const void *data)
{
    struct tensor_map m;
    memcpy(&m, map, sizeof m);
    if (m.magic != MAGIC || (uintptr_t)data % GRANULE != 0) return false;
    m.data = (uintptr_t)data;
    memcpy(map, &m, sizeof m);
    return true;
}

bool sim_tensor_map_decode(const void *map, struct sim_tensor_map_fields *f)
{
    struct tensor_map m;
    memcpy(&m, map, sizeof m);
    if (m.magic != MAGIC) return false;
    *f = (struct sim_tensor_map_fields){.data = (const void *)(uintptr_t)m.data,
                                        .element = m.element,
                                        .ndim = m.ndim,
                                        .swizzle_bytes = m.swizzle_bytes,
                                        .nan_fill = m.nan_fill};
    f->stride_bytes[0] = sim_element_bytes(f->element);
    for (int i = 0; i < f->ndim; ++i) {
        f->shape[i] = (uint64_t)m.last[i] + 1;
        f->box[i] = m.box[i];
        if (i > 0) f->stride_bytes[i] = m.stride_bytes[i - 1];
    }
    return true;
}

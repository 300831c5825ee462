/* tensor_copy.c - boxes of tensors, and the tensor copies that move them. */
#include <string.h>

#include "kernels/sim/async.h"

enum { CHUNK = 16, TENSOR_ALIGN = 128, MAP_ALIGN = 64 };

/* ---- boxes -------------------------------------------------------------------------------------------------- */

struct box sim_box_of_bytes(const void *data, unsigned bytes)
{
    return (struct box){.data = (char *)data,
                        .element_bytes = CHUNK,
                        .ndim = 1,
                        .shape = {bytes / CHUNK},
                        .stride = {CHUNK},
                        .size = {bytes / CHUNK}};
}

uint32_t sim_box_bytes(const struct box *box)
{
    uint32_t bytes = box->element_bytes;
    for (int i = 0; i < box->ndim; ++i) bytes *= box->size[i];
    return bytes;
}

/* The part of a row that lies in the tensor. False: none of it does. */
static bool row_segment(const struct box *box, uint32_t row, struct segment *segment)
{
    const int64_t in_chunk = box->stored && box->element_bytes < CHUNK ? CHUNK / box->element_bytes : 1;
    const int64_t first = box->at[0] < 0 ? 0 : box->at[0];
    const int64_t shape = ((int64_t)box->shape[0] + in_chunk - 1) / in_chunk * in_chunk;
    const int64_t end = (int64_t)box->at[0] + box->size[0] < shape ? (int64_t)box->at[0] + box->size[0] : shape;
    char *global = box->data + first * box->element_bytes;
    uint32_t rest = row;
    if (first >= end) return false;
    for (int i = 1; i < box->ndim; ++i) {
        const int64_t at = (int64_t)box->at[i] + rest % box->size[i];
        rest /= box->size[i];
        if (at < 0 || at >= (int64_t)box->shape[i]) return false;
        global += at * (int64_t)box->stride[i];
    }
    segment->global = global;
    segment->at = (uint32_t)(row * box->size[0] + (first - box->at[0])) * box->element_bytes;
    segment->bytes = (uint32_t)(end - first) * box->element_bytes;
    return true;
}

void sim_box_segments(const struct box *box, void (*visit)(void *context, const struct segment *segment),
                      void *context)
{
    const uint32_t row_bytes = box->size[0] * box->element_bytes;
    const uint32_t rows = row_bytes ? sim_box_bytes(box) / row_bytes : 0;
    struct segment run = {NULL, 0, 0}, next;
    for (uint32_t row = 0; row < rows; ++row) {
        if (!row_segment(box, row, &next)) continue;
        if (run.bytes && next.global == run.global + run.bytes && next.at == run.at + run.bytes) {
            run.bytes += next.bytes;
            continue;
        }
        if (run.bytes) visit(context, &run);
        run = next;
    }
    if (run.bytes) visit(context, &run);
}

/* ---- watching ----------------------------------------------------------------------------------------------- */

struct watch {
    const struct box *box;
    const struct sim_deed *deed;
    enum box_deed kind;
    char *shared;
};

static void watch_global(void *context, const struct segment *s)
{
    const struct watch *w = context;
    const unsigned align = w->box->element_bytes;
    if (w->kind == BOX_READ) sim_watch_async_read(w->deed, s->global, s->bytes, align);
    else if (w->kind == BOX_WRITE) sim_watch_async_write(w->deed, s->global, s->bytes, align);
    else sim_watch_async_reduce(w->deed, s->global, s->bytes, align);
}

void sim_box_watch_global(const struct box *box, const struct sim_deed *deed, enum box_deed kind)
{
    sim_box_segments(box, watch_global, &(struct watch){box, deed, kind, NULL});
}

/* A swizzle moves chunks within lines of its own width: whole lines stay where they are. */
static char *place_of(const struct box *box, char *shared, uint32_t at)
{
    const uint32_t low = (uint32_t)((uintptr_t)shared % SIM_WINDOW);
    return shared - low + sim_swizzle(low + at, box->swizzle_bytes);
}

static void touch(const struct watch *w, char *shared, uint32_t bytes)
{
    if (w->kind == BOX_READ) sim_watch_async_read(w->deed, shared, bytes, 1);
    else sim_watch_async_write(w->deed, shared, bytes, 1);
}

static void watch_shared(const struct watch *w, uint32_t at, uint32_t bytes)
{
    const uint32_t line = (uint32_t)w->box->swizzle_bytes, end = at + bytes;
    if (!line || (at % line == 0 && bytes % line == 0)) {
        touch(w, w->shared + at, bytes);
        return;
    }
    for (uint32_t here; at < end; at += here) {
        here = CHUNK - at % CHUNK < end - at ? CHUNK - at % CHUNK : end - at;
        touch(w, place_of(w->box, w->shared, at), here);
    }
}

void sim_box_watch_load(const struct box *box, const struct sim_deed *deed, char *shared)
{
    watch_shared(&(struct watch){box, deed, BOX_WRITE, shared}, 0, sim_box_bytes(box));
}

static void watch_stored(void *context, const struct segment *s) { watch_shared(context, s->at, s->bytes); }

void sim_box_watch_store(const struct box *box, const struct sim_deed *deed, char *shared)
{
    sim_box_segments(box, watch_stored, &(struct watch){box, deed, BOX_READ, shared});
}

/* ---- moving ------------------------------------------------------------------------------------------------- */

static void read_segment(void *bytes, const struct segment *s) { memcpy((char *)bytes + s->at, s->global, s->bytes); }

void sim_box_read(const struct box *box, char *bytes)
{
    const uint32_t n = sim_box_bytes(box);
    if (!box->fill) memset(bytes, 0, n);
    for (uint32_t i = 0; box->fill && i < n; i += box->element_bytes) memcpy(bytes + i, &box->fill, box->element_bytes);
    sim_box_segments(box, read_segment, bytes);
}

void sim_box_place(const struct box *box, const char *bytes, char *shared)
{
    const uint32_t n = sim_box_bytes(box);
    if (!box->swizzle_bytes) memcpy(shared, bytes, n);
    else
        for (uint32_t i = 0; i < n; i += CHUNK) memcpy(place_of(box, shared, i), bytes + i, CHUNK);
}

void sim_box_collect(const struct box *box, char *bytes, const char *shared)
{
    const uint32_t n = sim_box_bytes(box);
    if (!box->swizzle_bytes) memcpy(bytes, shared, n);
    else
        for (uint32_t i = 0; i < n; i += CHUNK) memcpy(bytes + i, place_of(box, (char *)shared, i), CHUNK);
}

static void write_segment(void *bytes, const struct segment *s) { memcpy(s->global, (char *)bytes + s->at, s->bytes); }

void sim_box_write(const struct box *box, const char *bytes) { sim_box_segments(box, write_segment, (void *)bytes); }

/* ---- reductions --------------------------------------------------------------------------------------------- */

static float float_of(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static uint32_t bits_of(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* To nearest, ties to even. fp32 holds the sum of two 16-bit numbers exactly or with enough bits to round again. */
static uint16_t add_bf16(uint16_t a, uint16_t b)
{
    const float sum = float_of((uint32_t)a << 16) + float_of((uint32_t)b << 16);
    if (sum != sum) return 0x7fff;
    const uint32_t bits = bits_of(sum);
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

static uint16_t add_fp16(uint16_t a, uint16_t b)
{
    _Float16 x, y, sum;
    uint16_t bits;
    memcpy(&x, &a, sizeof x);
    memcpy(&y, &b, sizeof y);
    sum = (_Float16)((float)x + (float)y);
    memcpy(&bits, &sum, sizeof bits);
    return (float)sum != (float)sum ? 0x7fff : bits;
}

static uint32_t add_fp32(uint32_t a, uint32_t b)
{
    const float sum = float_of(a) + float_of(b);
    return sum != sum ? 0x7fffffff : bits_of(sum);
}

typedef uint32_t __attribute__((may_alias)) word;
typedef uint16_t __attribute__((may_alias)) half;

/* CTAs on several host threads add to the same numbers. */
static void add_word(word *to, uint32_t value)
{
    uint32_t old = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(to, &old, add_fp32(old, value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

static void add_half(half *to, uint16_t value, uint16_t (*add)(uint16_t, uint16_t))
{
    uint16_t old = __atomic_load_n(to, __ATOMIC_RELAXED);
    while (!__atomic_compare_exchange_n(to, &old, add(old, value), false, __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {}
}

struct addition {
    const char *bytes;
    enum sim_reduce op;
};

static void add_segment(void *context, const struct segment *s)
{
    const struct addition *a = context;
    const unsigned step = a->op == SIM_ADD_FP32 ? 4 : 2;
    for (uint32_t i = 0; i < s->bytes; i += step) {
        uint32_t value = 0;
        memcpy(&value, a->bytes + s->at + i, step);
        if (a->op == SIM_ADD_FP32) add_word((word *)(s->global + i), value);
        else add_half((half *)(s->global + i), (uint16_t)value, a->op == SIM_ADD_FP16 ? add_fp16 : add_bf16);
    }
}

void sim_box_add(const struct box *box, const char *bytes, enum sim_reduce op)
{
    sim_box_segments(box, add_segment, &(struct addition){bytes, op});
}

/* ---- instructions ------------------------------------------------------------------------------------------- */

static const char copy_name[] = "cp.async.bulk.tensor", reduce_name[] = "cp.reduce.async.bulk.tensor";

static struct sim_tensor_map_fields decode(const void *map, const struct issue *issue)
{
    struct sim_tensor_map_fields fields;
    sim_require_sm_90(issue->instruction, issue->site);
    if ((uintptr_t)map % MAP_ALIGN)
        sim_fail(issue->thread, SIM_MISALIGNED, issue->instruction, issue->site, map,
                 "A tensor map lies at a multiple of %d.", MAP_ALIGN);
    if (!sim_tensor_map_decode(map, &fields))
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, map, "No tensor map lies there.");
    return fields;
}

/* The NaN is the one that an H200 fills with. */
static uint32_t fill_of(const struct sim_tensor_map_fields *fields)
{
    if (!fields->nan_fill) return 0;
    return sim_element_bytes(fields->element) == 4 ? 0x7ff77ff7 : 0x7ff7;
}

static struct box box_of(const struct sim_tensor_map_fields *fields, const int32_t *coordinates, int ndim,
                         const void *shared, const struct issue *issue)
{
    if (ndim != fields->ndim)
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, NULL,
                 "%d coordinates; the tensor map has %d dimensions.", ndim, fields->ndim);
    sim_async_shared(shared, TENSOR_ALIGN, true, issue);
    const int64_t from_start = (int64_t)coordinates[0] * sim_element_bytes(fields->element);
    if (from_start % CHUNK) /* an illegal instruction on the chip */
        sim_fail(issue->thread, SIM_MISALIGNED, issue->instruction, issue->site, shared,
                 "The first coordinate, %d, is %lld bytes; it must be a multiple of %d bytes.", coordinates[0],
                 (long long)from_start, CHUNK);
    struct box box = {.data = (char *)fields->data,
                      .element_bytes = sim_element_bytes(fields->element),
                      .ndim = ndim,
                      .swizzle_bytes = fields->swizzle_bytes,
                      .fill = fill_of(fields)};
    for (int i = 0; i < ndim; ++i) {
        box.shape[i] = fields->shape[i];
        box.stride[i] = fields->stride_bytes[i];
        box.size[i] = fields->box[i];
        box.at[i] = coordinates[i];
    }
    return box;
}

void sim_tensor_load(void *shared, const void *map, const int32_t *coordinates, int ndim, void *mbarrier,
                     uint16_t multicast)
{
    const struct issue issue = {sim_self, copy_name, SIM_SITE};
    const struct sim_tensor_map_fields fields = decode(map, &issue);
    const struct box box = box_of(&fields, coordinates, ndim, shared, &issue);
    sim_box_load(&box, shared, mbarrier, multicast, &issue);
    sim_tally(sim_self->cta->cluster)->global_read_requests += 1;
}

static void store(const void *map, const int32_t *coordinates, int ndim, const void *shared, bool adds,
                  const struct issue *issue)
{
    static const enum sim_reduce ops[] = {
        [SIM_ELEMENT_FP32] = SIM_ADD_FP32, [SIM_ELEMENT_FP16] = SIM_ADD_FP16, [SIM_ELEMENT_BF16] = SIM_ADD_BF16};
    const struct sim_tensor_map_fields fields = decode(map, issue);
    struct box box = box_of(&fields, coordinates, ndim, shared, issue);
    box.stored = true; /* as the chip does: a row of the tensor that is no multiple of 16 bytes is overrun */
    sim_async_shared(shared, TENSOR_ALIGN, false, issue);
    for (int i = 0; i < ndim; ++i)
        if (coordinates[i] < 0) /* an illegal instruction on the chip, where loads may */
            sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, shared,
                     "Coordinate %d is %d; a box that is stored begins at none below 0.", i, coordinates[i]);
    if (adds && fields.element == SIM_ELEMENT_UINT8)
        sim_fail(issue->thread, SIM_BAD_OPERAND, issue->instruction, issue->site, NULL, "Bytes cannot be added.");
    sim_box_store(&box, shared, adds ? &ops[fields.element] : NULL, issue);
    sim_tally(issue->thread->cta->cluster)->global_write_requests += 1;
}

void sim_tensor_store(const void *map, const int32_t *coordinates, int ndim, const void *shared)
{
    store(map, coordinates, ndim, shared, false, &(struct issue){sim_self, copy_name, SIM_SITE});
}

void sim_tensor_reduce_add(const void *map, const int32_t *coordinates, int ndim, const void *shared)
{
    store(map, coordinates, ndim, shared, true, &(struct issue){sim_self, reduce_name, SIM_SITE});
}

void sim_tensor_prefetch(const void *map)
{
    decode(map, &(struct issue){sim_self, "prefetch.tensormap", SIM_SITE});
}

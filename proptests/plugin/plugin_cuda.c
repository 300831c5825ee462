/* plugin_cuda.c - a case's memory on the GPU: one arena, poison all around each region, and all of it compared
 * afterwards. */
#include "proptests/plugin/plugin_cuda.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cuda.h"
#include "proptests/cases/case.h"
#include "proptests/cases/cuda_memory.h"

enum { ARENA = 1 << 28, GUARD = 1024, ALIGN = 256, POISON = 0xff, MAX_STATES = 16, MAX_REGIONS = 64 };

struct region {
    char *host; /* NULL: a workspace */
    size_t bytes, offset;
    bool is_output;
};

static struct {
    char *device;
    unsigned char *before, *now; /* what the GPU was given, and what it holds after the run */
    size_t used;
    struct region regions[MAX_REGIONS];
    int num_regions;
    bool is_full;
} arena;

static const char no_memory[] = "there is no memory for the audit on the GPU";

int plugin_cuda_devices(void) { return cuda_count_devices(); }

static bool clear_arena(void)
{
    if (arena.device == NULL) {
        arena.device = cuda_allocate(ARENA);
        arena.before = malloc(ARENA), arena.now = malloc(ARENA);
    }
    arena.used = 0, arena.num_regions = 0, arena.is_full = false;
    return arena.device != NULL && arena.before != NULL && arena.now != NULL;
}

static void *add_region(void *host, size_t bytes, size_t misaligned, bool is_output)
{
    const size_t offset = arena.used + GUARD + misaligned;
    if (arena.num_regions == MAX_REGIONS || bytes > ARENA || offset + bytes + GUARD + ALIGN > ARENA) {
        arena.is_full = true;
        return NULL;
    }
    arena.used = (offset + bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
    arena.regions[arena.num_regions++] = (struct region){host, bytes, offset, is_output};
    return arena.device + offset;
}

/* Where a range of the host will be on the GPU. The same range twice is one. */
static void *place(const void *host, size_t bytes, bool is_output)
{
    if (host == NULL) return NULL;
    for (int i = 0; i < arena.num_regions; ++i) {
        struct region *r = &arena.regions[i];
        if (r->host != host || r->bytes != bytes) continue;
        r->is_output |= is_output;
        return arena.device + r->offset;
    }
    return add_region((void *)(uintptr_t)host, bytes, (uintptr_t)host % ALIGN, is_output);
}

static const char *copy_in(void)
{
    if (arena.is_full) return "the case does not fit in the audit's memory on the GPU";
    memset(arena.before, POISON, arena.used);
    for (int i = 0; i < arena.num_regions; ++i) {
        const struct region *r = &arena.regions[i];
        if (r->host != NULL) memcpy(arena.before + r->offset, r->host, r->bytes);
    }
    const int code = cuda_copy_in(arena.device, arena.before, arena.used);
    return code != 0 ? cuda_error_text(code) : NULL;
}

const char *plugin_cuda_fetch(void)
{
    const int code = cuda_copy_out(arena.now, arena.device, arena.used);
    if (code != 0) return cuda_error_text(code);
    for (int i = 0; i < arena.num_regions; ++i) {
        const struct region *r = &arena.regions[i];
        if (!r->is_output) continue;
        if (r->host != NULL) memcpy(r->host, arena.now + r->offset, r->bytes);
        memcpy(arena.before + r->offset, arena.now + r->offset, r->bytes);
    }
    return memcmp(arena.before, arena.now, arena.used) != 0 ? "it changed bytes that are no output's" : NULL;
}

/* ---- passes ---- */

/* 0 means fp32, where a merge may say so. */
static size_t element_bytes(int32_t dtype)
{
    return dtype <= ATTEST_FP32 ? 4 : dtype == ATTEST_FP16 || dtype == ATTEST_BF16 ? 2 : 1;
}

/* Bytes from a tensor's first element to past its last. */
static size_t span_of(const struct attest_problem *p, enum tensor_id t)
{
    struct prop_case c = {.p = *p};
    int64_t e[4];
    case_extents(&c, t, e);
    if (e[0] * e[1] * e[2] * e[3] == 0) return 0;
    const size_t element = element_bytes(tensor_dtype(p, t));
    if (tensor_kinds[t].shape == SHAPE_SCORES || tensor_kinds[t].shape == SHAPE_BLOCKS) {
        const struct attest_score_tensor *s = tensor_scores(&c.p, t);
        return element * (size_t)(1 + (e[0] - 1) * s->batch + (e[1] - 1) * s->head + (e[2] - 1) * s->seqlen_q +
                                  (e[3] - 1) * s->seqlen_k);
    }
    const struct attest_tensor *s = tensor_rows(&c.p, t);
    const int64_t sequences = p->ragged ? 1 : p->batch, rows = e[0] / sequences;
    return element *
           (size_t)(e[2] + (sequences - 1) * s->batch + (rows - 1) * s->seqlen + (e[1] - 1) * s->head);
}

static void place_tensor(const struct attest_problem *p, enum tensor_id t, bool backward,
                         struct attest_backward_args *on_device)
{
    const struct tensor_kind *kind = &tensor_kinds[t];
    char *const field = (char *)on_device + kind->in_args;
    void *pointer;
    memcpy(&pointer, field, sizeof pointer);
    pointer = place(pointer, span_of(p, t), backward ? kind->backward_output : kind->forward_output);
    memcpy(field, &pointer, sizeof pointer);
}

const char *plugin_cuda_send(const struct attest_problem *p, const struct attest_backward_args *a, bool backward,
                             size_t workspace_bytes, struct attest_backward_args *on_device, void **workspace)
{
    if (!clear_arena()) return no_memory;
    *on_device = *a;
    for (enum tensor_id t = 0; t < NUM_TENSORS; ++t)
        if (tensor_dtype(p, t) != ATTEST_ABSENT) place_tensor(p, t, backward, on_device);
    const size_t batch = (size_t)p->batch, heads = (size_t)p->num_heads_q;
    struct attest_forward_args *f = &on_device->forward;
    f->alibi_slopes = place(f->alibi_slopes, heads * sizeof(float), false);
    f->sink = place(f->sink, heads * sizeof(float), false);
    f->cu_seqlens_q = place(f->cu_seqlens_q, (batch + 1) * sizeof(int32_t), false);
    f->cu_seqlens_k = place(f->cu_seqlens_k, (batch + 1) * sizeof(int32_t), false);
    f->seqused_q = place(f->seqused_q, batch * sizeof(int32_t), false);
    f->seqused_k = place(f->seqused_k, batch * sizeof(int32_t), false);
    f->dropout_seed = place(f->dropout_seed, sizeof(uint64_t), false);
    f->dropout_offset = place(f->dropout_offset, sizeof(uint64_t), false);
    f->dropout_stream = place(f->dropout_stream, batch * heads * sizeof(int64_t), false);
    on_device->dsink = place(on_device->dsink, heads * sizeof(float), backward);
    *workspace = workspace_bytes != 0 ? add_region(NULL, workspace_bytes, 0, true) : NULL;
    return copy_in();
}

/* ---- merges ---- */

/* Host arrays of pointers to states, each of `bytes`. */
static void place_states(int64_t num_states, const float *const *states, size_t bytes, bool is_output,
                         float *on_device[MAX_STATES])
{
    for (int64_t s = 0; s < num_states; ++s) on_device[s] = place(states[s], bytes, is_output);
}

const char *plugin_cuda_send_merge(const struct attest_merge_args *a, struct attest_merge_args *on_device)
{
    static float *o[MAX_STATES], *lse[MAX_STATES];
    const size_t elements = (size_t)(a->rows * a->head_dim_v), lse_bytes = (size_t)a->rows * sizeof(float);
    if (!clear_arena() || a->num_states > MAX_STATES) return no_memory;
    *on_device = *a;
    place_states(a->num_states, a->o_states, elements * sizeof(float), false, o);
    place_states(a->num_states, a->lse_states, lse_bytes, false, lse);
    on_device->o_states = (const float *const *)o, on_device->lse_states = (const float *const *)lse;
    on_device->o = place(a->o, elements * element_bytes(a->o_dtype), true);
    on_device->lse = place(a->lse, lse_bytes, true);
    return copy_in();
}

const char *plugin_cuda_send_merge_backward(const struct attest_merge_backward_args *a,
                                            struct attest_merge_backward_args *on_device)
{
    static float *o[MAX_STATES], *lse[MAX_STATES], *do_states[MAX_STATES], *dlse_states[MAX_STATES];
    const size_t elements = (size_t)(a->rows * a->head_dim_v), lse_bytes = (size_t)a->rows * sizeof(float);
    if (!clear_arena() || a->num_states > MAX_STATES) return no_memory;
    *on_device = *a;
    place_states(a->num_states, a->o_states, elements * sizeof(float), false, o);
    place_states(a->num_states, a->lse_states, lse_bytes, false, lse);
    place_states(a->num_states, (const float *const *)a->do_states, elements * sizeof(float), true, do_states);
    place_states(a->num_states, (const float *const *)a->dlse_states, lse_bytes, true, dlse_states);
    on_device->o_states = (const float *const *)o, on_device->lse_states = (const float *const *)lse;
    on_device->do_states = do_states, on_device->dlse_states = dlse_states;
    on_device->o = place(a->o, elements * element_bytes(a->o_dtype), false);
    on_device->lse = place(a->lse, lse_bytes, false);
    on_device->dout = place(a->dout, elements * element_bytes(a->dout_dtype), false);
    on_device->dlse = place(a->dlse, lse_bytes, false);
    return copy_in();
}

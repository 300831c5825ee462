/* kernels_cuda.c - kernels on the chip: the case's memory is copied there, all around it is poison, and all that comes
 * back is compared. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda.h"
#include "lib/error.h"
#include "lib/tensors.h"
#include "proptests/cuda_memory.h"
#include "proptests/kernels.h"
#include "reference/formats.h"

enum { ARENA = 1 << 28, GUARD = 1024, ALIGN = 256, MAX_REGIONS = 4 * MERGE_MAX_STATES + 4 };

/* A range of the case's memory and its place in the arena, where it lies as aligned as on the host. */
struct region {
    char *host;
    size_t bytes, offset;
    bool is_output;
};

static struct arena {
    char *device;       /* ARENA bytes */
    char *before, *now; /* what the device was given, and what it holds after the run */
    size_t used;
    struct region regions[MAX_REGIONS];
    int num_regions;
} arena;

static void clear_arena(void)
{
    if (arena.device == NULL) {
        arena.device = cuda_allocate(ARENA);
        arena.before = malloc(ARENA), arena.now = malloc(ARENA);
        if (arena.device == NULL || arena.before == NULL || arena.now == NULL) abort();
    }
    arena.used = arena.num_regions = 0;
}

/* Where a range of the host will be on the device. The same range twice is one. */
static void *place(const void *host, size_t bytes, bool is_output)
{
    if (host == NULL) return NULL;
    for (int i = 0; i < arena.num_regions; ++i) {
        struct region *r = &arena.regions[i];
        if (r->host != host || r->bytes != bytes) continue;
        r->is_output |= is_output;
        return arena.device + r->offset;
    }
    const size_t offset = arena.used + GUARD + (uintptr_t)host % ALIGN;
    arena.used = (offset + bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
    if (arena.num_regions == MAX_REGIONS || arena.used > ARENA) abort();
    arena.regions[arena.num_regions++] = (struct region){(char *)(uintptr_t)host, bytes, offset, is_output};
    return arena.device + offset;
}

static bool failed(int code)
{
    if (code != 0) attest_refuse(ATTEST_DEVICE_ERROR, "%s", cuda_error_text(code));
    return code != 0;
}

/* Poison, and the regions in it. */
static enum attest_status copy_in(void)
{
    memset(arena.before, 0xff, arena.used);
    for (int i = 0; i < arena.num_regions; ++i)
        memcpy(arena.before + arena.regions[i].offset, arena.regions[i].host, arena.regions[i].bytes);
    return failed(cuda_copy_in(arena.device, arena.before, arena.used)) ? ATTEST_DEVICE_ERROR : ATTEST_OK;
}

/* Outputs go back to the case, which knows their gaps; anything else may not have changed. */
static enum attest_status copy_out(void)
{
    if (failed(cuda_copy_out(arena.now, arena.device, arena.used))) return ATTEST_DEVICE_ERROR;
    for (int i = 0; i < arena.num_regions; ++i) {
        const struct region *r = &arena.regions[i];
        if (!r->is_output) continue;
        memcpy(r->host, arena.now + r->offset, r->bytes);
        memcpy(arena.before + r->offset, arena.now + r->offset, r->bytes);
    }
    if (memcmp(arena.before, arena.now, arena.used) == 0) return ATTEST_OK;
    attest_refuse(ATTEST_DEVICE_ERROR, "bytes changed that are no output's");
    return ATTEST_DEVICE_ERROR;
}

/* ---- forward ---- */

/* Bytes from a tensor's first element to past its last. */
static size_t span_of(const struct attest_problem *p, const struct attest_tensor_kind *kind)
{
    const struct attest_layout layout = attest_layout_of(p, kind);
    int64_t elements = layout.inner;
    if (attest_layout_is_empty(&layout)) return 0;
    for (int i = 0; i < layout.num_axes; ++i) elements += (layout.axes[i].count - 1) * layout.axes[i].stride;
    return (size_t)(elements * layout.element_bytes);
}

static struct attest_forward_args place_forward(const struct attest_problem *p, const struct attest_forward_args *a)
{
    struct attest_forward_args out = *a;
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) {
        const struct attest_tensor_kind *kind = &attest_tensor_kinds[t];
        const bool takes_part = (kind->read | kind->written) & ATTEST_FORWARD;
        if (!takes_part || attest_layout_of(p, kind).dtype == ATTEST_ABSENT) continue;
        char *const field = (char *)&out + (kind->in_args - offsetof(struct attest_backward_args, forward));
        void *pointer;
        memcpy(&pointer, field, sizeof pointer);
        pointer = place(pointer, span_of(p, kind), kind->written & ATTEST_FORWARD);
        memcpy(field, &pointer, sizeof pointer);
    }
    const size_t batch = (size_t)p->batch, word = sizeof(int32_t);
    out.cu_seqlens_q = place(a->cu_seqlens_q, (batch + 1) * word, false);
    out.cu_seqlens_k = place(a->cu_seqlens_k, (batch + 1) * word, false);
    out.seqused_q = place(a->seqused_q, batch * word, false);
    out.seqused_k = place(a->seqused_k, batch * word, false);
    out.sink = place(a->sink, (size_t)p->num_heads_q * word, false);
    return out;
}

static enum attest_status through_library(const struct attest_problem *p, const struct attest_forward_args *a)
{
    struct attest_problem on_cuda = *p;
    struct attest_plan *plan;
    on_cuda.device = ATTEST_CUDA;
    enum attest_status status = attest_plan_create(&on_cuda, &plan);
    if (status == ATTEST_OK) status = attest_run_forward(plan, a, NULL, 0, NULL);
    attest_plan_destroy(plan);
    return status;
}

static enum attest_status launch(forward_launcher *launcher, const struct attest_problem *p,
                                 const struct attest_forward_args *a)
{
    const struct forward_params params = forward_params_of(p, a);
    return failed(launcher(&params, NULL)) ? ATTEST_DEVICE_ERROR : ATTEST_OK;
}

static enum attest_status forward(const struct implementation *self, const struct attest_problem *p,
                                  const struct attest_forward_args *a)
{
    const struct kernel_implementation *kernels = (const struct kernel_implementation *)self;
    char why[256];
    if (!forward_kernels[0].takes(p, why, sizeof why)) return ATTEST_UNSUPPORTED;
    clear_arena();
    const struct attest_forward_args on_device = place_forward(p, a);
    enum attest_status status = copy_in();
    if (status == ATTEST_OK)
        status = kernels->forward != NULL ? launch(kernels->forward, p, &on_device) : through_library(p, &on_device);
    return status == ATTEST_OK ? copy_out() : status;
}

/* ---- merge ---- */

static enum attest_status merge(const struct implementation *self, const struct attest_merge_args *a)
{
    const struct kernel_implementation *kernels = (const struct kernel_implementation *)self;
    const size_t lse_bytes = (size_t)a->rows * sizeof(float), o_bytes = lse_bytes * (size_t)a->head_dim_v;
    const size_t merged_bytes = o_bytes / sizeof(float) * ref_dtype_bytes(a->o_dtype);
    const float *o[MERGE_MAX_STATES], *lse[MERGE_MAX_STATES];
    struct attest_merge_args on_device = *a;
    clear_arena();
    for (int64_t s = 0; s < a->num_states; ++s)
        o[s] = place(a->o_states[s], o_bytes, false), lse[s] = place(a->lse_states[s], lse_bytes, false);
    on_device.device = ATTEST_CUDA;
    on_device.o_states = o, on_device.lse_states = lse;
    on_device.o = place(a->o, merged_bytes, true), on_device.lse = place(a->lse, lse_bytes, true);
    enum attest_status status = copy_in();
    if (status != ATTEST_OK) return status;
    if (kernels->merge == NULL) {
        status = attest_merge_states(&on_device, NULL);
    } else {
        const struct merge_params params = merge_params_of(&on_device);
        status = failed(kernels->merge(&params, NULL)) ? ATTEST_DEVICE_ERROR : ATTEST_OK;
    }
    return status == ATTEST_OK ? copy_out() : status;
}

/* What a state reads and writes. */
struct device_states {
    const float *o[MERGE_MAX_STATES], *lse[MERGE_MAX_STATES];
    float *d_o[MERGE_MAX_STATES], *d_lse[MERGE_MAX_STATES];
};

static struct attest_merge_backward_args place_backward(const struct attest_merge_backward_args *a,
                                                        struct device_states *states)
{
    const size_t elements = (size_t)(a->rows * a->head_dim_v), rows = (size_t)a->rows;
    struct attest_merge_backward_args out = *a;
    for (int64_t s = 0; s < a->num_states; ++s) {
        states->o[s] = place(a->o_states[s], elements * sizeof(float), false);
        states->lse[s] = place(a->lse_states[s], rows * sizeof(float), false);
        states->d_o[s] = place(a->do_states[s], elements * sizeof(float), true);
        states->d_lse[s] = place(a->dlse_states[s], rows * sizeof(float), true);
    }
    out.device = ATTEST_CUDA;
    out.o_states = states->o, out.lse_states = states->lse, out.do_states = states->d_o, out.dlse_states = states->d_lse;
    out.o = place(a->o, elements * ref_dtype_bytes(a->o_dtype), false);
    out.dout = place(a->dout, elements * ref_dtype_bytes(a->dout_dtype), false);
    out.lse = place(a->lse, rows * sizeof(float), false), out.dlse = place(a->dlse, rows * sizeof(float), false);
    return out;
}

static enum attest_status merge_backward(const struct implementation *self, const struct attest_merge_backward_args *a)
{
    const struct kernel_implementation *kernels = (const struct kernel_implementation *)self;
    struct device_states states;
    clear_arena();
    const struct attest_merge_backward_args on_device = place_backward(a, &states);
    enum attest_status status = copy_in();
    if (status != ATTEST_OK) return status;
    if (kernels->merge_backward == NULL) {
        status = attest_merge_states_backward(&on_device, NULL);
    } else {
        const struct merge_backward_params params = merge_backward_params_of(&on_device);
        status = failed(kernels->merge_backward(&params, NULL)) ? ATTEST_DEVICE_ERROR : ATTEST_OK;
    }
    return status == ATTEST_OK ? copy_out() : status;
}

struct kernel_implementation kernels_on_cuda(const char *name, forward_launcher *forward_of, merge_launcher *merge_of)
{
    return (struct kernel_implementation){
        .implementation = {.name = name, .recipe = ref_kernel_recipe(forward_kernels[0].name),
                           .forward = forward, .merge = merge, .merge_backward = merge_backward,
                           .merge_recipe = ref_kernel_recipe(merge_kernel.name),
                           .merge_backward_recipe = ref_kernel_recipe(merge_backward_kernel.name),
                           .is_partial = true},
        .forward = forward_of, .merge = merge_of};
}

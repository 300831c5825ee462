/* kernels_cuda.c - kernels on the chip: the case's memory is copied there, all around it is poison, and all that comes
 * back is compared. */
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda.h"
#include "lib/error.h"
#include "lib/tensors.h"
#include "proptests/cases/cuda_memory.h"
#include "proptests/kernels/kernels.h"
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

/* Poison that a run may write, and the host never sees: a region without a host. */
static void *place_scratch(size_t bytes)
{
    const size_t offset = (arena.used + GUARD + ALIGN - 1) / ALIGN * ALIGN;
    arena.used = (offset + bytes + GUARD + ALIGN - 1) / ALIGN * ALIGN;
    if (arena.num_regions == MAX_REGIONS || arena.used > ARENA) abort();
    arena.regions[arena.num_regions++] = (struct region){NULL, bytes, offset, true};
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
    for (int i = 0; i < arena.num_regions; ++i) {
        const struct region *r = &arena.regions[i];
        if (r->host != NULL) memcpy(arena.before + r->offset, r->host, r->bytes);
    }
    return failed(cuda_copy_in(arena.device, arena.before, arena.used)) ? ATTEST_DEVICE_ERROR : ATTEST_OK;
}

/* Outputs go back to the case, which knows their gaps; anything else may not have changed. */
static enum attest_status copy_out(void)
{
    if (failed(cuda_copy_out(arena.now, arena.device, arena.used))) return ATTEST_DEVICE_ERROR;
    for (int i = 0; i < arena.num_regions; ++i) {
        const struct region *r = &arena.regions[i];
        if (!r->is_output) continue;
        if (r->host != NULL) memcpy(r->host, arena.now + r->offset, r->bytes);
        memcpy(arena.before + r->offset, arena.now + r->offset, r->bytes);
    }
    if (memcmp(arena.before, arena.now, arena.used) == 0) return ATTEST_OK;
    attest_refuse(ATTEST_DEVICE_ERROR, "bytes changed that are no output's");
    return ATTEST_DEVICE_ERROR;
}

/* ---- forward and backward ---- */

/* Bytes from a tensor's first element to past its last. */
static size_t span_of(const struct attest_problem *p, const struct attest_tensor_kind *kind)
{
    const struct attest_layout layout = attest_layout_of(p, kind);
    int64_t elements = layout.inner;
    if (attest_layout_is_empty(&layout)) return 0;
    for (int i = 0; i < layout.num_axes; ++i) elements += (layout.axes[i].count - 1) * layout.axes[i].stride;
    return (size_t)(elements * layout.element_bytes);
}

/* The arguments of a pass with every pointer to its place on the device. */
static struct attest_backward_args place_args(const struct attest_problem *p, const struct attest_backward_args *a,
                                              enum attest_pass pass)
{
    const struct attest_forward_args *const f = &a->forward;
    const size_t batch = (size_t)p->batch, heads = (size_t)p->num_heads_q;
    struct attest_backward_args out = *a;
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) {
        const struct attest_tensor_kind *kind = &attest_tensor_kinds[t];
        if (!((kind->read | kind->written) & pass) || attest_layout_of(p, kind).dtype == ATTEST_ABSENT) continue;
        void *pointer;
        memcpy(&pointer, (const char *)a + kind->in_args, sizeof pointer);
        pointer = place(pointer, span_of(p, kind), kind->written & pass);
        memcpy((char *)&out + kind->in_args, &pointer, sizeof pointer);
    }
    out.forward.cu_seqlens_q = place(f->cu_seqlens_q, (batch + 1) * sizeof(int32_t), false);
    out.forward.cu_seqlens_k = place(f->cu_seqlens_k, (batch + 1) * sizeof(int32_t), false);
    out.forward.seqused_q = place(f->seqused_q, batch * sizeof(int32_t), false);
    out.forward.seqused_k = place(f->seqused_k, batch * sizeof(int32_t), false);
    out.forward.alibi_slopes = place(f->alibi_slopes, heads * sizeof(float), false);
    out.forward.sink = place(f->sink, heads * sizeof(float), false);
    out.forward.dropout_seed = place(f->dropout_seed, sizeof(uint64_t), false);
    out.forward.dropout_offset = place(f->dropout_offset, sizeof(uint64_t), false);
    out.forward.dropout_stream = place(f->dropout_stream, batch * heads * sizeof(int64_t), false);
    if (pass == ATTEST_BACKWARD) out.dsink = place(a->dsink, heads * sizeof(float), true);
    return out;
}

static enum attest_status run(const struct implementation *self, const struct attest_problem *p, enum attest_pass pass,
                              const struct attest_backward_args *a, struct computed *how)
{
    struct kernel_run_plan run;
    enum attest_status status = kernels_plan((const struct kernel_implementation *)self, p, ATTEST_CUDA, pass, &run);
    if (status != ATTEST_OK) return status;
    const size_t bytes = run.workspace_bytes;
    *how = run.computed;
    clear_arena();
    const struct attest_backward_args on_device = place_args(p, a, pass);
    void *const workspace = bytes > 0 ? place_scratch(bytes) : NULL;
    status = copy_in();
    if (status != ATTEST_OK) return status;
    status = pass == ATTEST_FORWARD ? attest_run_forward(&run.plan, &on_device.forward, workspace, bytes, NULL)
                                    : attest_run_backward(&run.plan, &on_device, workspace, bytes, NULL);
    return status == ATTEST_OK ? copy_out() : status;
}

static enum attest_status forward(const struct implementation *self, const struct attest_problem *p,
                                  const struct attest_forward_args *a, struct computed *how)
{
    const struct attest_backward_args all = {.forward = *a};
    return run(self, p, ATTEST_FORWARD, &all, how);
}

static enum attest_status backward(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_backward_args *a, struct computed *how)
{
    return run(self, p, ATTEST_BACKWARD, a, how);
}

/* ---- merge ---- */

/* Of an element; 0 means fp32, too. */
static size_t bytes_of(int32_t dtype) { return ref_dtype_bytes(dtype == 0 ? ATTEST_FP32 : dtype); }

static enum attest_status merge(const struct implementation *self, const struct attest_merge_args *a)
{
    const struct kernel_implementation *kernels = (const struct kernel_implementation *)self;
    const size_t lse_bytes = (size_t)a->rows * sizeof(float), o_bytes = lse_bytes * (size_t)a->head_dim_v;
    const size_t merged_bytes = o_bytes / sizeof(float) * bytes_of(a->o_dtype);
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
    if (kernels->launchers.merge == NULL) {
        status = attest_merge_states(&on_device, NULL);
    } else {
        const struct merge_params params = merge_params_of(&on_device);
        status = failed(kernels->launchers.merge(&params, NULL)) ? ATTEST_DEVICE_ERROR : ATTEST_OK;
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
    out.o_states = states->o, out.lse_states = states->lse;
    out.do_states = states->d_o, out.dlse_states = states->d_lse;
    out.o = place(a->o, elements * bytes_of(a->o_dtype), false);
    out.dout = place(a->dout, elements * bytes_of(a->dout_dtype), false);
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
    if (kernels->launchers.merge_backward == NULL) {
        status = attest_merge_states_backward(&on_device, NULL);
    } else {
        const struct merge_backward_params params = merge_backward_params_of(&on_device);
        status = failed(kernels->launchers.merge_backward(&params, NULL)) ? ATTEST_DEVICE_ERROR : ATTEST_OK;
    }
    return status == ATTEST_OK ? copy_out() : status;
}

struct kernel_implementation kernels_on_cuda(const char *name, const struct kernel_launchers *launchers)
{
    return (struct kernel_implementation){
        .implementation = {.name = name, .forward = forward, .backward = backward, .merge = merge,
                           .merge_backward = merge_backward,
                           .merge_recipe = ref_kernel_recipe(merge_kernel.name),
                           .merge_backward_recipe = ref_kernel_recipe(merge_backward_kernel.name),
                           .is_partial = true},
        .generation = SIM_SM_90,
        .launchers = launchers != NULL ? *launchers : (struct kernel_launchers){{NULL}, {NULL}, NULL, NULL}};
}

/* ---- polynomials ---- */

struct kernel_launchers kernels_cuda_poly(void)
{
    struct kernel_launchers out = {{NULL}, {NULL}, NULL, NULL};
#define KERNEL(name, pass, file, code) kernels_replace(&out, #name, (kernel_launcher *)name##_cuda_poly);
#include "kernels/kernels.inc"
#undef KERNEL
    return out;
}

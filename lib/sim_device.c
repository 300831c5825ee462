/* sim_device.c - runs on the simulated GPU: what a kernel may touch is mapped to the byte, and nothing else. */
#include <stdlib.h>
#include <string.h>

#include "kernels/registry.h"
#include "kernels/sim/sim.h"
#include "lib/error.h"
#include "lib/plan.h"
#include "lib/run.h"
#include "lib/tensors.h"

enum { INPUT = SIM_READ | SIM_INITIALISED, OUTPUT = SIM_WRITE };

/* ---- memory ---- */

/* Rows of no sequence are neither read nor written. */
static void cut_to_sequences(const struct attest_problem *p, const struct attest_forward_args *a, bool is_k,
                             struct attest_axis *rows, int64_t *first)
{
    const int32_t *starts = is_k ? a->cu_seqlens_k : a->cu_seqlens_q;
    rows->count = p->batch > 0 ? starts[p->batch] - starts[0] : 0;
    *first = p->batch > 0 ? starts[0] * rows->stride : 0;
}

/* A tensor of a run: what its sequences have, from its first element on. */
struct placed {
    struct attest_layout layout;
    const char *data;
};

/* False where there is no element of it in the pass. */
static bool place(const struct attest_problem *p, const struct attest_backward_args *a,
                  const struct attest_tensor_kind *kind, enum attest_pass pass, struct placed *out)
{
    int64_t first = 0;
    out->layout = attest_layout_of(p, kind);
    if (!((kind->read | kind->written) & pass) || out->layout.dtype == ATTEST_ABSENT) return false;
    memcpy(&out->data, (const char *)a + kind->in_args, sizeof out->data);
    if (p->ragged && (kind->shape == ATTEST_ROWS || kind->shape == ATTEST_SCALARS))
        cut_to_sequences(p, &a->forward, kind->is_k, &out->layout.axes[0], &first);
    if (attest_layout_is_empty(&out->layout)) return false;
    out->data += first * out->layout.element_bytes;
    return true;
}

static bool map_tensor(struct sim_gpu *gpu, const char *name, const struct placed *t, int access)
{
    const struct attest_layout *layout = &t->layout;
    int64_t shape[5], stride[5];
    for (int i = 0; i < layout->num_axes; ++i) shape[i] = layout->axes[i].count, stride[i] = layout->axes[i].stride;
    shape[layout->num_axes] = layout->inner, stride[layout->num_axes] = 1;
    return sim_map_tensor(gpu, name, t->data, (size_t)layout->element_bytes, layout->num_axes + 1, shape, stride,
                          access);
}

static bool map_tensors(struct sim_gpu *gpu, const struct attest_problem *p, const struct attest_backward_args *a,
                        enum attest_pass pass)
{
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) {
        const struct attest_tensor_kind *kind = &attest_tensor_kinds[t];
        struct placed placed;
        if (place(p, a, kind, pass, &placed) &&
            !map_tensor(gpu, kind->name, &placed, kind->written & pass ? OUTPUT : INPUT))
            return false;
    }
    return true;
}

/* ---- inputs that interleave ---- */

enum { KEPT = 1024 }; /* a copy's address is the original's modulo this */

/* Copies of inputs. */
struct copies {
    void *of[ATTEST_NUM_TENSORS]; /* NULL: none */
};

static size_t span_of(const struct placed *t)
{
    int64_t elements = t->layout.inner;
    for (int i = 0; i < t->layout.num_axes; ++i) elements += (t->layout.axes[i].count - 1) * t->layout.axes[i].stride;
    return (size_t)(elements * t->layout.element_bytes);
}

static bool shares_bytes(const struct attest_problem *p, const struct attest_backward_args *a, enum attest_pass pass,
                         int tensor, const struct placed *t)
{
    for (int u = 0; u < ATTEST_NUM_TENSORS; ++u) {
        struct placed other;
        if (u == tensor || !place(p, a, &attest_tensor_kinds[u], pass, &other)) continue;
        if (t->data < other.data + span_of(&other) && other.data < t->data + span_of(t)) return true;
    }
    return false;
}

/* The bytes of one row after the other: what lies between them need not be there. */
static void copy_rows(char *to, const char *from, const struct attest_layout *layout, int axis)
{
    if (axis == layout->num_axes) {
        memcpy(to, from, (size_t)(layout->inner * layout->element_bytes));
        return;
    }
    const int64_t step = layout->axes[axis].stride * layout->element_bytes;
    for (int64_t i = 0; i < layout->axes[axis].count; ++i) copy_rows(to + i * step, from + i * step, layout, axis + 1);
}

/* Inputs whose bytes lie among another tensor's, as q, k and v in one buffer do, are copied to places of their own,
 * with the same strides: what a kernel reads past a row of q is then no row of k, but out of bounds. */
static bool set_apart(struct copies *copies, const struct attest_problem *p, struct attest_backward_args *a,
                      enum attest_pass pass)
{
    const struct attest_backward_args given = *a;
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) {
        const struct attest_tensor_kind *kind = &attest_tensor_kinds[t];
        struct placed placed;
        copies->of[t] = NULL;
        if (kind->written & pass || !place(p, &given, kind, pass, &placed) ||
            !shares_bytes(p, &given, pass, t, &placed))
            continue;
        const size_t shift = (uintptr_t)placed.data % KEPT, bytes = (shift + span_of(&placed) + KEPT - 1) / KEPT * KEPT;
        char *const copy = copies->of[t] = aligned_alloc(KEPT, bytes);
        if (copy == NULL) return false;
        copy_rows(copy + shift, placed.data, &placed.layout, 0);
        const char *data;
        memcpy(&data, (const char *)&given + kind->in_args, sizeof data);
        data = copy + shift + (data - placed.data);
        memcpy((char *)a + kind->in_args, &data, sizeof data);
    }
    return true;
}

static void free_copies(const struct copies *copies)
{
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) free(copies->of[t]);
}

static bool map_array(struct sim_gpu *gpu, const char *name, bool present, const void *data, int64_t count,
                      size_t element_bytes)
{
    return !present || sim_map(gpu, name, data, (size_t)count * element_bytes, INPUT);
}

static bool map_arrays(struct sim_gpu *gpu, const struct attest_problem *p, const struct attest_forward_args *a)
{
    const bool drops = p->dropout_p > 0;
    return map_array(gpu, "cu_seqlens_q", p->ragged, a->cu_seqlens_q, p->batch + 1, 4) &&
           map_array(gpu, "cu_seqlens_k", p->ragged, a->cu_seqlens_k, p->batch + 1, 4) &&
           map_array(gpu, "seqused_q", p->has_seqused_q, a->seqused_q, p->batch, 4) &&
           map_array(gpu, "seqused_k", p->has_seqused_k, a->seqused_k, p->batch, 4) &&
           map_array(gpu, "alibi_slopes", p->has_alibi, a->alibi_slopes, p->num_heads_q, 4) &&
           map_array(gpu, "sink", p->has_sink, a->sink, p->num_heads_q, 4) &&
           map_array(gpu, "dropout_seed", drops && a->dropout_seed != NULL, a->dropout_seed, 1, 8) &&
           map_array(gpu, "dropout_offset", drops && a->dropout_offset != NULL, a->dropout_offset, 1, 8) &&
           map_array(gpu, "dropout_stream", drops && a->dropout_stream != NULL, a->dropout_stream,
                     p->batch * p->num_heads_q, 8);
}

bool attest_sim_map_forward(struct sim_gpu *gpu, const struct attest_problem *p, const struct attest_forward_args *a)
{
    const struct attest_backward_args all = {.forward = *a};
    return map_arrays(gpu, p, a) && map_tensors(gpu, p, &all, ATTEST_FORWARD);
}

bool attest_sim_map_backward(struct sim_gpu *gpu, const struct attest_problem *p, const struct attest_backward_args *a,
                             void *workspace, size_t workspace_bytes)
{
    const bool has_dsink = p->has_sink && a->dsink != NULL;
    return map_arrays(gpu, p, &a->forward) && map_tensors(gpu, p, a, ATTEST_BACKWARD) &&
           (!has_dsink || sim_map(gpu, "dsink", a->dsink, (size_t)p->num_heads_q * sizeof(float), OUTPUT)) &&
           (workspace_bytes == 0 || sim_map(gpu, "workspace", workspace, workspace_bytes, SIM_READ | SIM_WRITE));
}

/* Of an element of a merge's o or dout. */
static size_t bytes_of(int32_t dtype) { return dtype == 0 || dtype == ATTEST_FP32 ? 4 : 2; }

bool attest_sim_map_merge(struct sim_gpu *gpu, const struct attest_merge_args *a)
{
    const size_t rows = (size_t)a->rows, elements = rows * (size_t)a->head_dim_v;
    if (a->rows == 0) return true;
    bool mapped = sim_map(gpu, "o", a->o, elements * bytes_of(a->o_dtype), OUTPUT) &&
                  sim_map(gpu, "lse", a->lse, rows * sizeof(float), OUTPUT);
    for (int64_t s = 0; s < a->num_states && mapped; ++s)
        mapped = sim_map(gpu, "o_states", a->o_states[s], elements * sizeof(float), INPUT) &&
                 sim_map(gpu, "lse_states", a->lse_states[s], rows * sizeof(float), INPUT);
    return mapped;
}

bool attest_sim_map_merge_backward(struct sim_gpu *gpu, const struct attest_merge_backward_args *a)
{
    const size_t rows = (size_t)a->rows, elements = rows * (size_t)a->head_dim_v;
    if (a->rows == 0 || a->num_states == 0) return true;
    bool mapped = sim_map(gpu, "o", a->o, elements * bytes_of(a->o_dtype), INPUT) &&
                  sim_map(gpu, "dout", a->dout, elements * bytes_of(a->dout_dtype), INPUT) &&
                  sim_map(gpu, "lse", a->lse, rows * sizeof(float), INPUT) &&
                  map_array(gpu, "dlse", a->dlse != NULL, a->dlse, a->rows, sizeof(float));
    for (int64_t s = 0; s < a->num_states && mapped; ++s)
        mapped = sim_map(gpu, "o_states", a->o_states[s], elements * sizeof(float), INPUT) &&
                 sim_map(gpu, "lse_states", a->lse_states[s], rows * sizeof(float), INPUT) &&
                 sim_map(gpu, "do_states", a->do_states[s], elements * sizeof(float), OUTPUT) &&
                 sim_map(gpu, "dlse_states", a->dlse_states[s], rows * sizeof(float), OUTPUT);
    return mapped;
}

/* ---- runs ---- */

static bool no_memory(void)
{
    return attest_refuse(ATTEST_OUT_OF_MEMORY, "the simulated GPU has no memory for the shadow of the problem's");
}

/* The caller's GPU, or one of our own. */
static struct sim_gpu *take_gpu(struct sim_gpu *callers)
{
    static const struct sim_options options = {.generation = SIM_SM_90, .async = SIM_ASYNC_LATE};
    if (callers == NULL) return sim_gpu_create(&options);
    sim_unmap_all(callers);
    return callers;
}

static void leave_gpu(struct sim_gpu *gpu, const struct sim_gpu *callers)
{
    if (gpu == NULL) return;
    sim_unmap_all(gpu);
    if (gpu != callers) sim_gpu_destroy(gpu);
}

/* After a launch: its code, and whether every byte of the outputs was written. */
static bool is_clean(struct sim_gpu *gpu, int code)
{
    if (code == SIM_CLEAN && sim_check_written(gpu) == SIM_CLEAN) return true;
    return attest_refuse(ATTEST_DEVICE_ERROR, "%s", sim_last_report(gpu)->text);
}

bool attest_sim_forward(const struct attest_plan *plan, const struct attest_forward_args *a, struct sim_gpu *callers)
{
    struct attest_backward_args all = {.forward = *a};
    struct copies copies = {{NULL}};
    const bool apart = set_apart(&copies, &plan->problem, &all, ATTEST_FORWARD);
    struct forward_params params = forward_params_of(&plan->problem, &all.forward);
    struct sim_gpu *gpu = apart ? take_gpu(callers) : NULL;
    int code = SIM_CLEAN;
    const bool mapped = gpu != NULL && attest_sim_map_forward(gpu, &plan->problem, &all.forward);
    for (int n = 0; mapped && n < plan->forward_pass.num_shares && code == SIM_CLEAN; ++n) {
        attest_take_share(&plan->forward_pass, n, &params);
        code = plan->forward[n]->sim(&params, gpu);
    }
    const bool ok = mapped ? is_clean(gpu, code) : no_memory();
    leave_gpu(gpu, callers);
    free_copies(&copies);
    return ok;
}

bool attest_sim_backward(const struct attest_plan *plan, const struct attest_backward_args *a, void *workspace,
                         struct sim_gpu *callers)
{
    struct attest_backward_args all = *a;
    struct copies copies = {{NULL}};
    const bool apart = set_apart(&copies, &plan->problem, &all, ATTEST_BACKWARD);
    struct backward_params params = backward_params_of(&plan->problem, &all, workspace);
    const size_t bytes = plan->backward_pass.workspace_bytes;
    struct sim_gpu *gpu = apart ? take_gpu(callers) : NULL;
    int code = SIM_CLEAN;
    const bool mapped = gpu != NULL && attest_sim_map_backward(gpu, &plan->problem, &all, workspace, bytes);
    for (int n = 0; mapped && n < plan->backward_pass.num_shares && code == SIM_CLEAN; ++n) {
        attest_take_share(&plan->backward_pass, n, &params.forward);
        code = plan->backward[n]->sim(&params, gpu);
    }
    const bool ok = mapped ? is_clean(gpu, code) : no_memory();
    leave_gpu(gpu, callers);
    free_copies(&copies);
    return ok;
}

bool attest_sim_merge(const struct attest_merge_args *a, struct sim_gpu *callers)
{
    const struct merge_params params = merge_params_of(a);
    struct sim_gpu *gpu = take_gpu(callers);
    const bool ok = gpu != NULL && attest_sim_map_merge(gpu, a) ? is_clean(gpu, merge_kernel.sim(&params, gpu))
                                                                : no_memory();
    leave_gpu(gpu, callers);
    return ok;
}

bool attest_sim_merge_backward(const struct attest_merge_backward_args *a, struct sim_gpu *callers)
{
    const struct merge_backward_params params = merge_backward_params_of(a);
    struct sim_gpu *gpu = take_gpu(callers);
    const bool ok = gpu != NULL && attest_sim_map_merge_backward(gpu, a)
                        ? is_clean(gpu, merge_backward_kernel.sim(&params, gpu))
                        : no_memory();
    leave_gpu(gpu, callers);
    return ok;
}

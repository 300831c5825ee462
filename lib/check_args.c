/* check_args.c - the pointers of a run, and the sequence lengths where the host can read them. */
#include <inttypes.h>
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"

/* Bytes from the first to past the last that the axes from `level` on reach. */
static int64_t span_from(const struct attest_region *r, int level)
{
    int64_t span = r->inner;
    for (int a = level; a < r->num_axes; ++a) span += (r->axes[a].count - 1) * r->axes[a].stride;
    return span;
}

/* ---- what a pass's pointers reach -------------------------------------------------------------------------------- */

static void add_tensors(struct attest_reach *reach, const struct attest_problem *p, enum attest_pass pass)
{
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) {
        const struct attest_tensor_kind *kind = &attest_tensor_kinds[t];
        struct attest_layout layout = attest_layout_of(p, kind);
        if (layout.dtype == ATTEST_ABSENT || !((kind->read | kind->written) & pass)) continue;
        if (attest_layout_is_empty(&layout)) continue;
        attest_layout_sort(&layout);
        struct attest_region *r = &reach->at[reach->count++];
        *r = (struct attest_region){.name = kind->name,
                                    .in_args = kind->in_args,
                                    .written = kind->written & pass,
                                    .align = layout.align ? layout.align : layout.element_bytes,
                                    .inner = layout.inner * layout.element_bytes,
                                    .num_axes = layout.num_axes};
        memcpy(r->axes, layout.axes, sizeof r->axes);
        for (int a = 0; a < r->num_axes; ++a) r->axes[a].stride *= layout.element_bytes;
        r->span = span_from(r, 0);
    }
}

static struct attest_region *add_array(struct attest_reach *reach, const char *name, size_t in_args, int64_t count,
                                       int64_t element_bytes)
{
    struct attest_region *r = &reach->at[reach->count];
    const int64_t bytes = count * element_bytes;
    *r = (struct attest_region){.name = name, .in_args = in_args, .align = element_bytes, .span = bytes,
                                .inner = bytes};
    reach->count += count > 0;
    return r;
}

#define ARRAY(field) #field, offsetof(struct attest_backward_args, forward.field)

void attest_find_reach(const struct attest_problem *p, enum attest_pass pass, struct attest_reach *out)
{
    const bool drops = p->dropout_p > 0;
    const int64_t bounds = p->ragged ? p->batch + 1 : 0;
    out->count = 0;
    add_tensors(out, p, pass);
    add_array(out, ARRAY(alibi_slopes), p->has_alibi ? p->num_heads_q : 0, 4);
    add_array(out, ARRAY(sink), p->has_sink ? p->num_heads_q : 0, 4);
    add_array(out, ARRAY(cu_seqlens_q), bounds, 4);
    add_array(out, ARRAY(cu_seqlens_k), bounds, 4);
    add_array(out, ARRAY(seqused_q), p->has_seqused_q ? p->batch : 0, 4);
    add_array(out, ARRAY(seqused_k), p->has_seqused_k ? p->batch : 0, 4);
    add_array(out, ARRAY(dropout_seed), drops, 8)->may_be_null = true;
    add_array(out, ARRAY(dropout_offset), drops, 8)->may_be_null = true;
    add_array(out, ARRAY(dropout_stream), drops ? p->batch * p->num_heads_q : 0, 8)->may_be_null = true;
    if (pass == ATTEST_BACKWARD && p->has_sink) {
        const size_t in_args = offsetof(struct attest_backward_args, dsink);
        struct attest_region *const dsink = add_array(out, "dsink", in_args, p->num_heads_q, 4);
        dsink->written = dsink->may_be_null = true;
    }
}

/* ---- the pointers of a run --------------------------------------------------------------------------------------- */

/* Those that are not left out, and the workspace. */
struct pointers {
    int count;
    struct pointer {
        const struct attest_region *region;
        uintptr_t address;
    } at[ATTEST_MAX_REGIONS + 1];
};

static bool add_pointer(struct pointers *all, const struct attest_region *r, const void *pointer)
{
    const uintptr_t address = (uintptr_t)pointer;
    if (pointer == NULL) return attest_refuse(ATTEST_INVALID, "%s = NULL, but must point to its elements", r->name);
    if ((address & ((uintptr_t)r->align - 1)) != 0) { /* a power of two */
        return attest_refuse(ATTEST_INVALID, "%s = %p, but must be a multiple of %" PRId64, r->name, pointer, r->align);
    }
    if (address > (uintptr_t)INT64_MAX - (uintptr_t)r->span) {
        return attest_refuse(ATTEST_INVALID, "%s = %p, but %" PRId64 " bytes from there must be addresses", r->name,
                             pointer, r->span);
    }
    all->at[all->count++] = (struct pointer){r, address};
    return true;
}

static bool add_pointers(struct pointers *all, const struct attest_reach *reach, const struct attest_backward_args *a)
{
    for (int i = 0; i < reach->count; ++i) {
        const struct attest_region *r = &reach->at[i];
        const void *pointer;
        memcpy(&pointer, (const char *)a + r->in_args, sizeof pointer);
        if (!(r->may_be_null && pointer == NULL) && !add_pointer(all, r, pointer)) return false;
    }
    return true;
}

/* Whether two regions share a byte, b starting `offset` bytes after a. Exact where both step by the same
 * strides, as the parts of a packed buffer do; otherwise reaching into each other's range is enough. */
static bool regions_meet(const struct attest_region *a, const struct attest_region *b, int level, int64_t offset)
{
    if (offset >= span_from(a, level) || -offset >= span_from(b, level)) return false;
    if (level == a->num_axes || level == b->num_axes) return true;
    const int64_t stride = a->axes[level].stride;
    if (b->axes[level].stride != stride) return true;
    if (span_from(a, level + 1) > stride || span_from(b, level + 1) > stride) return true;

    /* Both lie in periods of `stride` bytes: a part of b can only meet the part of a in the period where
     * it begins, or in the one where it ends. */
    const int64_t remainder = offset % stride, into = remainder < 0 ? remainder + stride : remainder;
    return regions_meet(a, b, level + 1, into) || regions_meet(a, b, level + 1, into - stride);
}

static bool check_apart(const struct pointers *all)
{
    for (int i = 0; i < all->count; ++i) {
        const struct attest_region *a = all->at[i].region;
        if (!a->written) continue;
        for (int j = 0; j < all->count; ++j) {
            const struct attest_region *b = all->at[j].region;
            const int64_t offset = (int64_t)(all->at[j].address - all->at[i].address);
            if (i == j || offset >= a->span || -offset >= b->span || !regions_meet(a, b, 0, offset)) continue;
            return attest_refuse(ATTEST_INVALID,
                                 "%s = %p and its %" PRId64 " bytes, but must not overlap %s = %p and its %" PRId64
                                 " bytes: an output overlaps nothing",
                                 a->name, (void *)all->at[i].address, a->span, b->name, (void *)all->at[j].address,
                                 b->span);
        }
    }
    return true;
}

static bool must_be_null(const char *name, const void *pointer)
{
    if (pointer == NULL) return true;
    return attest_refuse(ATTEST_UNSUPPORTED, "%s = %p, but this build only knows NULL", name, pointer);
}

static bool must_be_zero(uint32_t reserved0)
{
    return reserved0 == 0 || attest_refuse(ATTEST_INVALID, "reserved0 = %" PRIu32 ", but must be 0", reserved0);
}

static bool check_reserved(const struct attest_forward_args *f)
{
    return must_be_zero(f->reserved0) && must_be_null("o_low", f->o_low) &&
           must_be_null("lse_low", f->lse_low) && must_be_null("q_scale", f->q_scale) &&
           must_be_null("k_scale", f->k_scale) && must_be_null("v_scale", f->v_scale) &&
           must_be_null("block_table", f->block_table);
}

/* The forward arguments lie inside the backward ones, so they cannot be longer than this build's. */
bool attest_check_inner_struct(const struct attest_backward_args *args)
{
    const size_t size = args->forward.struct_size, known = sizeof args->forward;
    if (size == known) return true;
    return attest_refuse(size < known ? ATTEST_INVALID : ATTEST_UNSUPPORTED,
                         "args.forward.struct_size = %zu, but must be %zu: use its INIT macro", size, known);
}

bool attest_check_args(const struct attest_reach *reach, const struct attest_backward_args *a, enum attest_pass pass,
                       const void *workspace, size_t workspace_bytes)
{
    const int64_t bytes = (int64_t)workspace_bytes;
    const struct attest_region scratch = {.name = "workspace", .written = true, .align = 1, .span = bytes,
                                          .inner = bytes};
    struct pointers all;
    all.count = 0;
    if ((pass == ATTEST_BACKWARD && !must_be_zero(a->reserved0)) || !check_reserved(&a->forward) ||
        !add_pointers(&all, reach, a)) {
        return false;
    }
    return (bytes == 0 || add_pointer(&all, &scratch, workspace)) && check_apart(&all);
}

static bool check_element(const char *array, int64_t b, int64_t value, int64_t low, int64_t high)
{
    if (low <= value && value <= high) return true;
    return attest_refuse(ATTEST_INVALID, "%s[%" PRId64 "] = %" PRId64 ", but must be %" PRId64 " .. %" PRId64, array, b,
                         value, low, high);
}

/* One side's bounds and used lengths; `starts` and `used` name the arrays, which are NULL where absent. */
static bool check_side(const struct attest_problem *p, const char *starts, const int32_t *cu_seqlens, const char *used,
                       const int32_t *seqused, int64_t seqlen, int64_t total)
{
    if (cu_seqlens != NULL && !check_element(starts, 0, cu_seqlens[0], 0, total)) return false;
    for (int64_t b = 0; b < p->batch; ++b) {
        int64_t length = seqlen;
        if (cu_seqlens != NULL) {
            const int64_t first = cu_seqlens[b], most = first + seqlen;
            if (!check_element(starts, b + 1, cu_seqlens[b + 1], first, most < total ? most : total)) return false;
            length = cu_seqlens[b + 1] - first;
        }
        if (seqused != NULL && !check_element(used, b, seqused[b], 0, length)) return false;
    }
    return true;
}

bool attest_check_lengths(const struct attest_problem *p, const struct attest_forward_args *a)
{
    return check_side(p, "cu_seqlens_q", p->ragged ? a->cu_seqlens_q : NULL, "seqused_q",
                      p->has_seqused_q ? a->seqused_q : NULL, p->seqlen_q, p->total_q) &&
           check_side(p, "cu_seqlens_k", p->ragged ? a->cu_seqlens_k : NULL, "seqused_k",
                      p->has_seqused_k ? a->seqused_k : NULL, p->seqlen_k, p->total_k);
}

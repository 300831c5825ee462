/* check_args.c - the pointers of a run, and the sequence lengths where the host can read them. */
#include <inttypes.h>
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"

/* What one pointer of a run reaches. Axes in bytes, widest stride first, none of stride zero. */
struct region {
    const char *name;
    bool written;
    uintptr_t base;
    int64_t inner; /* bytes that lie side by side */
    int num_axes;
    struct attest_axis axes[4];
};

enum { MAX_REGIONS = ATTEST_NUM_TENSORS + 11 };

struct regions {
    int count;
    struct region at[MAX_REGIONS];
};

/* Bytes from the first to past the last that the axes from `level` on reach. */
static int64_t span_from(const struct region *r, int level)
{
    int64_t span = r->inner;
    for (int a = level; a < r->num_axes; ++a) span += (r->axes[a].count - 1) * r->axes[a].stride;
    return span;
}

static bool check_pointer(const char *name, const void *pointer, int64_t align, int64_t span)
{
    const uintptr_t address = (uintptr_t)pointer;
    if (pointer == NULL) return attest_refuse(ATTEST_INVALID, "%s = NULL, but must point to its elements", name);
    if (address % (uintptr_t)align != 0) {
        return attest_refuse(ATTEST_INVALID, "%s = %p, but must be a multiple of %" PRId64, name, pointer, align);
    }
    if (address > (uintptr_t)INT64_MAX - (uintptr_t)span) {
        return attest_refuse(ATTEST_INVALID, "%s = %p, but %" PRId64 " bytes from there must be addresses", name,
                             pointer, span);
    }
    return true;
}

static bool add_tensor(struct regions *all, const struct attest_tensor_kind *kind, struct attest_layout layout,
                       const void *pointer, bool written)
{
    if (attest_layout_is_empty(&layout)) return true;
    attest_layout_sort(&layout);
    struct region *r = &all->at[all->count++];
    *r = (struct region){kind->name, written, (uintptr_t)pointer, layout.inner * layout.element_bytes, layout.num_axes,
                         {{0}}};
    memcpy(r->axes, layout.axes, sizeof r->axes);
    for (int a = 0; a < r->num_axes; ++a) r->axes[a].stride *= layout.element_bytes;
    return check_pointer(kind->name, pointer, layout.align ? layout.align : layout.element_bytes, span_from(r, 0));
}

static bool add_array(struct regions *all, const char *name, const void *pointer, bool written, int64_t count,
                      int64_t element_bytes)
{
    if (count == 0) return true;
    all->at[all->count++] = (struct region){name, written, (uintptr_t)pointer, count * element_bytes, 0, {{0}}};
    return check_pointer(name, pointer, element_bytes, count * element_bytes);
}

/* Whether two regions share a byte, b starting `offset` bytes after a. Exact where both step by the same
 * strides, as the parts of a packed buffer do; otherwise reaching into each other's range is enough. */
static bool regions_meet(const struct region *a, const struct region *b, int level, int64_t offset)
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

static bool check_apart(const struct regions *all)
{
    for (int i = 0; i < all->count; ++i) {
        for (int j = 0; j < all->count; ++j) {
            const struct region *a = &all->at[i], *b = &all->at[j];
            if (i == j || !a->written || !regions_meet(a, b, 0, (int64_t)(b->base - a->base))) continue;
            return attest_refuse(ATTEST_INVALID,
                                 "%s = %p and its %" PRId64 " bytes, but must not overlap %s = %p and its %" PRId64
                                 " bytes: an output overlaps nothing",
                                 a->name, (void *)a->base, span_from(a, 0), b->name, (void *)b->base, span_from(b, 0));
        }
    }
    return true;
}

static bool add_tensors(struct regions *all, const struct attest_problem *p, const struct attest_backward_args *a,
                        enum attest_pass pass)
{
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) {
        const struct attest_tensor_kind *kind = &attest_tensor_kinds[t];
        const struct attest_layout layout = attest_layout_of(p, kind);
        if (layout.dtype == ATTEST_ABSENT || !((kind->read | kind->written) & pass)) continue;
        const void *pointer;
        memcpy(&pointer, (const char *)a + kind->in_args, sizeof pointer);
        if (!add_tensor(all, kind, layout, pointer, kind->written & pass)) return false;
    }
    return true;
}

/* An array that may be left out. */
static bool add_optional(struct regions *all, const char *name, const void *pointer, bool written, int64_t count,
                         int64_t element_bytes)
{
    return pointer == NULL || add_array(all, name, pointer, written, count, element_bytes);
}

static bool add_arrays(struct regions *all, const struct attest_problem *p, const struct attest_forward_args *f)
{
    const bool drops = p->dropout_p > 0;
    const int64_t bounds = p->ragged ? p->batch + 1 : 0;
    return add_array(all, "alibi_slopes", f->alibi_slopes, false, p->has_alibi ? p->num_heads_q : 0, 4) &&
           add_array(all, "sink", f->sink, false, p->has_sink ? p->num_heads_q : 0, 4) &&
           add_array(all, "cu_seqlens_q", f->cu_seqlens_q, false, bounds, 4) &&
           add_array(all, "cu_seqlens_k", f->cu_seqlens_k, false, bounds, 4) &&
           add_array(all, "seqused_q", f->seqused_q, false, p->has_seqused_q ? p->batch : 0, 4) &&
           add_array(all, "seqused_k", f->seqused_k, false, p->has_seqused_k ? p->batch : 0, 4) &&
           add_optional(all, "dropout_seed", f->dropout_seed, false, drops, 8) &&
           add_optional(all, "dropout_offset", f->dropout_offset, false, drops, 8) &&
           add_optional(all, "dropout_stream", f->dropout_stream, false, drops ? p->batch * p->num_heads_q : 0, 8);
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

bool attest_check_args(const struct attest_problem *p, const struct attest_backward_args *a, enum attest_pass pass,
                       const void *workspace, size_t workspace_bytes)
{
    struct regions all = {0};
    if ((pass == ATTEST_BACKWARD && !must_be_zero(a->reserved0)) || !check_reserved(&a->forward) ||
        !add_tensors(&all, p, a, pass) || !add_arrays(&all, p, &a->forward)) {
        return false;
    }
    if (pass == ATTEST_BACKWARD && p->has_sink &&
        !add_optional(&all, "dsink", a->dsink, true, p->num_heads_q, sizeof(float))) {
        return false;
    }
    return add_array(&all, "workspace", workspace, true, (int64_t)workspace_bytes, 1) && check_apart(&all);
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

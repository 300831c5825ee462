/* check_problem.c - the host values of a problem, field by field, in the order of attest.h. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"

/* Far beyond any sequence, and small enough that no sum of four of them leaves int64. */
static const int64_t INDEX_LIMIT = INT64_C(1) << 60;

bool attest_check_struct(const char *name, const void *caller, size_t known_bytes)
{
    if (caller == NULL) return attest_refuse(ATTEST_INVALID, "%s = NULL, but must point to a struct", name);
    uint32_t size;
    memcpy(&size, caller, sizeof size);
    if (size < known_bytes) {
        return attest_refuse(ATTEST_INVALID, "%s.struct_size = %" PRIu32 ", but must be >= %zu: use its INIT macro",
                             name, size, known_bytes);
    }
    for (size_t at = known_bytes; at < size; ++at) {
        if (((const unsigned char *)caller)[at] == 0) continue;
        return attest_refuse(ATTEST_UNSUPPORTED,
                             "%s.struct_size = %" PRIu32 ": byte %zu is set, beyond the %zu that this build knows",
                             name, size, at, known_bytes);
    }
    return true;
}

static bool in_range(const char *field, int64_t value, int64_t low, int64_t high)
{
    if (low <= value && value <= high) return true;
    return attest_refuse(ATTEST_INVALID, "%s = %" PRId64 ", but must be %" PRId64 " .. %" PRId64, field, value, low,
                         high);
}

/* Zeros that nobody meant would pass every other check: a window of one key, a scale of 0. */
static bool check_initialized(const struct attest_problem *p)
{
    if (p->initialized != ATTEST_INITIALIZED) {
        return attest_refuse(ATTEST_INVALID,
                             "initialized = %" PRIu32 ", but must be what ATTEST_PROBLEM_INIT or attest_problem_init() "
                             "sets: a problem of zeros has a window of one key and a scale of 0",
                             p->initialized);
    }
    return p->reserved0 == 0 || attest_refuse(ATTEST_INVALID, "reserved0 = %" PRIu32 ", but must be 0", p->reserved0);
}

static bool check_device(const struct attest_problem *p)
{
    return in_range("device", p->device, ATTEST_CUDA, ATTEST_REFERENCE) &&
           in_range("device_ordinal", p->device_ordinal, 0, p->device == ATTEST_CUDA ? INT32_MAX : 0);
}

static bool check_flags(const struct attest_problem *p)
{
    return in_range("ragged", p->ragged, 0, 1) && in_range("has_alibi", p->has_alibi, 0, 1) &&
           in_range("has_sink", p->has_sink, 0, 1) && in_range("has_seqused_q", p->has_seqused_q, 0, 1) &&
           in_range("has_seqused_k", p->has_seqused_k, 0, 1) && in_range("external_lse", p->external_lse, 0, 1);
}

static bool check_heads(const struct attest_problem *p)
{
    if (!in_range("num_heads_q", p->num_heads_q, 1, INT32_MAX) ||
        !in_range("num_heads_kv", p->num_heads_kv, 1, p->num_heads_q)) {
        return false;
    }
    if (p->num_heads_q % p->num_heads_kv != 0) {
        return attest_refuse(ATTEST_INVALID,
                             "num_heads_q = %" PRId64 ", but must be a multiple of num_heads_kv, %" PRId64,
                             p->num_heads_q, p->num_heads_kv);
    }
    if (p->batch * p->num_heads_q > INT32_MAX) {
        return attest_refuse(ATTEST_INVALID,
                             "num_heads_q = %" PRId64 ", but batch * num_heads_q, %" PRId64 ", must be 0 .. %" PRId32,
                             p->num_heads_q, p->batch * p->num_heads_q, INT32_MAX);
    }
    return true;
}

bool attest_check_shapes(const struct attest_problem *p)
{
    const int64_t most_rows = p->ragged ? INT32_MAX : 0; /* cu_seqlens is int32; a dense problem has no totals */
    return in_range("batch", p->batch, 0, INT32_MAX) && in_range("seqlen_q", p->seqlen_q, 0, INT32_MAX) &&
           in_range("seqlen_k", p->seqlen_k, 0, INT32_MAX) && in_range("total_q", p->total_q, 0, most_rows) &&
           in_range("total_k", p->total_k, 0, most_rows) && check_heads(p) &&
           in_range("head_dim", p->head_dim, 1, 256) && in_range("head_dim_v", p->head_dim_v, 1, 256) &&
           (p->block_mask.dtype == ATTEST_ABSENT || (in_range("block_q", p->block_q, 1, INT32_MAX) &&
                                                     in_range("block_k", p->block_k, 1, INT32_MAX)));
}

/* What exists from the start and is refused until it works. */
static bool check_reserved(const struct attest_problem *p)
{
    const char *field = p->o_low.dtype != ATTEST_ABSENT ? "o_low.dtype" : "lse_low.dtype";
    const int32_t dtype = p->o_low.dtype != ATTEST_ABSENT ? p->o_low.dtype : p->lse_low.dtype;
    if (dtype != ATTEST_ABSENT) {
        return attest_refuse(ATTEST_UNSUPPORTED, "%s = %" PRId32 ", but this build only knows 0, ATTEST_ABSENT", field,
                             dtype);
    }
    if (p->page_size > 0) {
        return attest_refuse(ATTEST_UNSUPPORTED, "page_size = %" PRId64 ", but this build only knows 0, not paged",
                             p->page_size);
    }
    return in_range("page_size", p->page_size, 0, INT32_MAX);
}

static bool present(const char *field, int32_t dtype, const char *why)
{
    if (dtype != ATTEST_ABSENT) return true;
    return attest_refuse(ATTEST_INVALID, "%s.dtype = 0, ATTEST_ABSENT, but must be present: %s", field, why);
}

static bool absent(const char *field, int32_t dtype, const char *why)
{
    if (dtype == ATTEST_ABSENT) return true;
    return attest_refuse(ATTEST_INVALID, "%s.dtype = %" PRId32 ", but must be 0, ATTEST_ABSENT: %s", field, dtype, why);
}

static bool check_backward_tensors(const struct attest_problem *p)
{
    static const char *const all = "dq, dk and dv come together";
    static const char *const own = "backward reads it";
    return present("dq", p->dq.dtype, all) && present("dk", p->dk.dtype, all) && present("dv", p->dv.dtype, all) &&
           present("lse", p->lse.dtype, own) && present("dout", p->dout.dtype, own) &&
           (p->delta.dtype != ATTEST_ABSENT || present("o", p->o.dtype, "backward reads it, or delta")) &&
           (!p->external_lse || present("delta", p->delta.dtype, "external_lse = 1 says that delta is given too")) &&
           (p->dbias.dtype == ATTEST_ABSENT || present("bias", p->bias.dtype, "dbias is its gradient"));
}

static bool check_presence(const struct attest_problem *p)
{
    static const char *const input = "q, k and v always are";
    static const char *const backward_only = "dq, dk and dv are";
    if (!present("q", p->q.dtype, input) || !present("k", p->k.dtype, input) || !present("v", p->v.dtype, input)) {
        return false;
    }
    if (p->dq.dtype != ATTEST_ABSENT || p->dk.dtype != ATTEST_ABSENT || p->dv.dtype != ATTEST_ABSENT) {
        return check_backward_tensors(p);
    }
    return present("o", p->o.dtype, "a problem without dq, dk and dv has a forward pass only") &&
           absent("dout", p->dout.dtype, backward_only) && absent("dlse", p->dlse.dtype, backward_only) &&
           absent("delta", p->delta.dtype, backward_only) && absent("dbias", p->dbias.dtype, backward_only) &&
           in_range("external_lse", p->external_lse, 0, 0);
}

/* The set of dtypes that a tensor may have here, a bit each. */
static unsigned allowed_dtypes(const struct attest_problem *p, const struct attest_tensor_kind *kind)
{
    const unsigned fp32 = 1u << ATTEST_FP32, wide = fp32 | 1u << ATTEST_FP16 | 1u << ATTEST_BF16;
    switch (kind->formats) {
    case ATTEST_ANY_FLOAT: return wide | 1u << ATTEST_FP8_E4M3 | 1u << ATTEST_FP8_E5M2;
    case ATTEST_LIKE_Q: return 1u << p->q.dtype; /* q comes first in the table: its dtype is known to be good */
    case ATTEST_WIDE: return wide;
    case ATTEST_BIAS: return fp32 | (1u << p->q.dtype & wide);
    case ATTEST_ONLY_FP32: return fp32;
    case ATTEST_BYTES: return 1u << ATTEST_UINT8;
    }
    return 0;
}

static bool check_dtype(const struct attest_problem *p, const struct attest_tensor_kind *kind, int32_t dtype)
{
    static const char *const names[] = {
        [ATTEST_FP32] = "FP32", [ATTEST_FP16] = "FP16",         [ATTEST_BF16] = "BF16", [ATTEST_FP8_E4M3] = "FP8_E4M3",
        [ATTEST_FP8_E5M2] = "FP8_E5M2", [ATTEST_UINT8] = "UINT8",
    };
    const unsigned allowed = allowed_dtypes(p, kind);
    if (dtype >= 0 && dtype <= ATTEST_UINT8 && (allowed >> dtype & 1)) return true;

    char list[128] = "";
    for (int t = ATTEST_FP32; t <= ATTEST_UINT8; ++t) {
        const size_t used = strlen(list);
        if (allowed >> t & 1) snprintf(list + used, sizeof list - used, " ATTEST_%s (%d)", names[t], t);
    }
    return attest_refuse(ATTEST_INVALID, "%s.dtype = %" PRId32 ", but must be one of%s", kind->name, dtype, list);
}

static bool check_align(const struct attest_tensor_kind *kind, const struct attest_layout *layout)
{
    const int64_t align = layout->align;
    if (align == 0 || (align >= layout->element_bytes && (align & (align - 1)) == 0)) return true;
    return attest_refuse(ATTEST_INVALID, "%s.align = %" PRId64 ", but must be 0 or a power of two >= %" PRId64,
                         kind->name, align, layout->element_bytes);
}

/* A promised alignment is that of every row, so strides keep to it. Where no axis is known to be the
 * innermost, one of stride 1 is taken for it. */
static bool check_strides(const struct attest_tensor_kind *kind, const struct attest_layout *layout)
{
    for (int a = 0; a < layout->num_axes; ++a) {
        const struct attest_axis axis = layout->axes[a];
        if (axis.stride < 0) {
            return attest_refuse(ATTEST_INVALID, "%s.%s = %" PRId64 ", but must be >= 0", kind->name, axis.name,
                                 axis.stride);
        }
        const bool innermost = kind->shape != ATTEST_ROWS && axis.stride == 1;
        if (layout->align == 0 || axis.count <= 1 || innermost) continue;
        const int64_t step = layout->align / layout->element_bytes; /* both are powers of two */
        if (axis.stride % step != 0) {
            return attest_refuse(ATTEST_INVALID,
                                 "%s.%s = %" PRId64 ", but must be a multiple of %" PRId64 ", for %s.align = %" PRId32,
                                 kind->name, axis.name, axis.stride, step, kind->name, layout->align);
        }
    }
    return true;
}

static int passes_of(const struct attest_problem *p)
{
    return (p->o.dtype != ATTEST_ABSENT ? ATTEST_FORWARD : 0) | (p->dq.dtype != ATTEST_ABSENT ? ATTEST_BACKWARD : 0);
}

/* Every offset in bytes fits in int64, and an output's axes nest: each steps over all that the narrower
 * ones reach, so no two elements share a byte. */
static bool check_extent(const struct attest_problem *p, const struct attest_tensor_kind *kind,
                         struct attest_layout layout)
{
    const bool is_output = kind->written & passes_of(p);
    if (attest_layout_is_empty(&layout)) return true;
    for (int a = 0; a < layout.num_axes && is_output; ++a) {
        if (layout.axes[a].count > 1 && layout.axes[a].stride == 0) {
            return attest_refuse(ATTEST_INVALID, "%s.%s = 0, but must be >= 1: elements of an output are apart",
                                 kind->name, layout.axes[a].name);
        }
    }
    attest_layout_sort(&layout);
    int64_t span = layout.inner;
    for (int a = layout.num_axes - 1; a >= 0; --a) {
        const struct attest_axis axis = layout.axes[a];
        if (is_output && axis.stride < span) {
            return attest_refuse(ATTEST_INVALID,
                                 "%s.%s = %" PRId64 ", but must be >= %" PRId64 ": elements of an output are apart",
                                 kind->name, axis.name, axis.stride, span);
        }
        int64_t reach, bytes;
        if (__builtin_mul_overflow(axis.count - 1, axis.stride, &reach) || __builtin_add_overflow(span, reach, &span) ||
            __builtin_mul_overflow(span, layout.element_bytes, &bytes)) {
            return attest_refuse(ATTEST_INVALID,
                                 "%s.%s = %" PRId64 ", but over %" PRId64 " of them the tensor must span < 2^63 bytes",
                                 kind->name, axis.name, axis.stride, axis.count);
        }
    }
    return true;
}

static bool check_tensors(const struct attest_problem *p)
{
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) {
        const struct attest_tensor_kind *kind = &attest_tensor_kinds[t];
        const struct attest_layout layout = attest_layout_of(p, kind);
        if (layout.dtype == ATTEST_ABSENT) continue;
        if (!check_dtype(p, kind, layout.dtype) || !check_align(kind, &layout) || !check_strides(kind, &layout) ||
            !check_extent(p, kind, layout)) {
            return false;
        }
    }
    return true;
}

static bool check_scores(const struct attest_problem *p)
{
    if (!isfinite(p->softmax_scale)) {
        return attest_refuse(ATTEST_INVALID, "softmax_scale = %g, but must be finite; it has no default",
                             (double)p->softmax_scale);
    }
    if (!isfinite(p->softcap) || p->softcap < 0) {
        return attest_refuse(ATTEST_INVALID, "softcap = %g, but must be finite and >= 0", (double)p->softcap);
    }
    if (!(p->dropout_p >= 0 && p->dropout_p <= 0.99999f)) {
        return attest_refuse(ATTEST_INVALID, "dropout_p = %g, but must be 0 .. 0.99999", (double)p->dropout_p);
    }
    return true;
}

/* A diagonal's kind and its value; the value belongs to ATTEST_DIAG_GIVEN alone. */
static bool check_diag(const char *kind_field, int32_t kind, const char *field, int64_t diag)
{
    const int64_t limit = kind == ATTEST_DIAG_GIVEN ? INDEX_LIMIT : 0;
    return in_range(kind_field, kind, ATTEST_DIAG_UNSET, ATTEST_DIAG_GIVEN) && in_range(field, diag, -limit, limit);
}

static bool check_window(const struct attest_problem *p)
{
    const bool bounded = p->window_left >= 0 || p->window_right >= 0;
    const bool lengths_differ = p->seqlen_q != p->seqlen_k || p->ragged || p->has_seqused_q || p->has_seqused_k;
    if (bounded && lengths_differ && p->diag_kind == ATTEST_DIAG_UNSET) {
        return attest_refuse(ATTEST_INVALID,
                             "diag_kind = 0, ATTEST_DIAG_UNSET, but must be 1 .. 3: a window is bounded and seqlen_q "
                             "and seqlen_k may differ");
    }
    return in_range("window_left", p->window_left, INT64_MIN, INDEX_LIMIT) &&
           in_range("window_right", p->window_right, INT64_MIN, INDEX_LIMIT) &&
           in_range("q_start", p->q_start, 0, INDEX_LIMIT) && in_range("k_start", p->k_start, 0, INDEX_LIMIT);
}

static bool check_mask_geometry(const struct attest_problem *p)
{
    return check_diag("diag_kind", p->diag_kind, "diag", p->diag) &&
           check_diag("alibi_diag_kind", p->alibi_diag_kind, "alibi_diag", p->alibi_diag) && check_window(p);
}

bool attest_check_problem(const struct attest_problem *p)
{
    return check_initialized(p) && check_device(p) && check_flags(p) && attest_check_shapes(p) && check_reserved(p) &&
           check_presence(p) && check_tensors(p) && check_scores(p) && check_mask_geometry(p);
}

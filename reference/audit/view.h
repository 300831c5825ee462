/* view.h - tensors as they lie in memory, with strides, and the orders that their axes have in use. */
#ifndef ATTEST_AUDIT_VIEW_H
#define ATTEST_AUDIT_VIEW_H

#include <stdbool.h>

#include "reference/audit/tensor_file.h"

/* A part of a tensor of a file; strides in elements. */
struct view {
    const char *name;
    int32_t dtype, ndim;
    int64_t shape[TENSOR_MAX_NDIM + 2], stride[TENSOR_MAX_NDIM + 2]; /* splitting may add two axes */
    const void *data;
};
struct view view_of(const struct tensor *t);
struct view view_narrow(struct view v, int axis, int64_t first, int64_t count);
struct view view_index(struct view v, int axis, int64_t index); /* without that axis */
/* Axis into two, the second of `inner` entries; false where that does not divide it. */
bool view_split(struct view *v, int axis, int64_t inner);
struct view view_permuted(struct view v, const int *order);

/* The order of the axes of q, k, v and of what goes with them; (hd) is one axis of all heads. */
enum layout {
    LAYOUT_BSHD, LAYOUT_BHSD, LAYOUT_SBHD, LAYOUT_BSF, LAYOUT_SBF, /* batch, seqlen, heads, head_dim */
    LAYOUT_SHD, LAYOUT_HSD, LAYOUT_SF,                             /* one sequence, or a ragged batch */
    LAYOUT_NUM
};
extern const char *const layout_names[LAYOUT_NUM]; /* "bshd", ... */
bool layout_parse(const char *text, size_t length, enum layout *layout);

/* Axes batch (1 where there is none), seqlen, heads, head_dim. */
struct extent {
    int64_t batch, seqlen, heads, dim;
};

/* A view of rows in this order, as four axes batch, seqlen, heads, head_dim, the last of stride one. `heads` is needed
 * for (hd) alone. False where v has other axes than the layout. */
bool layout_read(struct view v, enum layout layout, int64_t heads, struct view *rows);
struct extent view_extent(const struct view *rows);
struct attest_tensor view_strides(const struct view *rows);

/* lse and dlse, of batch, heads and rows, in any order in use, as three axes batch, heads, rows: [b, h, s], [b, s, h],
 * [b, h, s, 1], [h, s] and [s, h] of one batch; rows may be padded to a multiple of 32. False where v is none. */
bool lse_read(struct view v, int64_t batch, int64_t heads, int64_t rows, struct view *lse);

char *view_shape_text(const struct view *v); /* "[1, 2, 3]", to be freed */

#endif

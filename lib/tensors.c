/* tensors.c - the table of tensors. */
#include "lib/tensors.h"

#include "reference/formats.h"

#define LAYOUT(field) offsetof(struct attest_problem, field)
#define ARGUMENT(field) offsetof(struct attest_backward_args, field)
#define BOTH (ATTEST_FORWARD | ATTEST_BACKWARD)

/* clang-format off */
const struct attest_tensor_kind attest_tensor_kinds[ATTEST_NUM_TENSORS] = {
    {"q", LAYOUT(q), ARGUMENT(forward.q), ATTEST_ROWS, false, ATTEST_HEAD_DIM, ATTEST_ANY_FLOAT,
     BOTH, 0},
    {"k", LAYOUT(k), ARGUMENT(forward.k), ATTEST_ROWS, true, ATTEST_HEAD_DIM, ATTEST_LIKE_Q,
     BOTH, 0},
    {"v", LAYOUT(v), ARGUMENT(forward.v), ATTEST_ROWS, true, ATTEST_HEAD_DIM_V, ATTEST_LIKE_Q,
     BOTH, 0},
    {"o", LAYOUT(o), ARGUMENT(forward.o), ATTEST_ROWS, false, ATTEST_HEAD_DIM_V, ATTEST_WIDE,
     ATTEST_BACKWARD, ATTEST_FORWARD},
    {"lse", LAYOUT(lse), ARGUMENT(forward.lse), ATTEST_SCALARS, false, ATTEST_NO_FEATURES, ATTEST_ONLY_FP32,
     ATTEST_BACKWARD, ATTEST_FORWARD},
    {"dout", LAYOUT(dout), ARGUMENT(dout), ATTEST_ROWS, false, ATTEST_HEAD_DIM_V, ATTEST_WIDE,
     ATTEST_BACKWARD, 0},
    {"dlse", LAYOUT(dlse), ARGUMENT(dlse), ATTEST_SCALARS, false, ATTEST_NO_FEATURES, ATTEST_ONLY_FP32,
     ATTEST_BACKWARD, 0},
    {"delta", LAYOUT(delta), ARGUMENT(delta), ATTEST_SCALARS, false, ATTEST_NO_FEATURES, ATTEST_ONLY_FP32,
     ATTEST_BACKWARD, 0},
    {"dq", LAYOUT(dq), ARGUMENT(dq), ATTEST_ROWS, false, ATTEST_HEAD_DIM, ATTEST_WIDE,
     0, ATTEST_BACKWARD},
    {"dk", LAYOUT(dk), ARGUMENT(dk), ATTEST_ROWS, true, ATTEST_HEAD_DIM, ATTEST_WIDE,
     0, ATTEST_BACKWARD},
    {"dv", LAYOUT(dv), ARGUMENT(dv), ATTEST_ROWS, true, ATTEST_HEAD_DIM_V, ATTEST_WIDE,
     0, ATTEST_BACKWARD},
    {"bias", LAYOUT(bias), ARGUMENT(forward.bias), ATTEST_SCORES, false, ATTEST_NO_FEATURES, ATTEST_BIAS,
     BOTH, 0},
    {"dbias", LAYOUT(dbias), ARGUMENT(dbias), ATTEST_SCORES, false, ATTEST_NO_FEATURES, ATTEST_BIAS,
     0, ATTEST_BACKWARD},
    {"mask", LAYOUT(mask), ARGUMENT(forward.mask), ATTEST_SCORES, false, ATTEST_NO_FEATURES,
     ATTEST_BYTES, BOTH, 0},
    {"block_mask", LAYOUT(block_mask), ARGUMENT(forward.block_mask), ATTEST_BLOCKS, false, ATTEST_NO_FEATURES,
     ATTEST_BYTES, BOTH, 0},
};
/* clang-format on */

static void add_axis(struct attest_layout *layout, const char *name, int64_t count, int64_t stride)
{
    layout->axes[layout->num_axes++] = (struct attest_axis){name, count, stride};
}

static struct attest_layout layout_of_rows(const struct attest_problem *p, const struct attest_tensor_kind *kind,
                                           const struct attest_tensor *t)
{
    struct attest_layout layout = {.dtype = t->dtype, .align = t->align, .inner = 1};
    if (kind->features == ATTEST_HEAD_DIM) layout.inner = p->head_dim;
    if (kind->features == ATTEST_HEAD_DIM_V) layout.inner = p->head_dim_v;

    const int64_t seqlen = kind->is_k ? p->seqlen_k : p->seqlen_q;
    const int64_t total = kind->is_k ? p->total_k : p->total_q;
    if (!p->ragged) add_axis(&layout, "batch", p->batch, t->batch);
    add_axis(&layout, "seqlen", p->ragged ? total : seqlen, t->seqlen);
    add_axis(&layout, "head", kind->is_k ? p->num_heads_kv : p->num_heads_q, t->head);
    return layout;
}

static int64_t blocks(int64_t length, int64_t block)
{
    return length / block + (length % block != 0);
}

static struct attest_layout layout_of_scores(const struct attest_problem *p, const struct attest_tensor_kind *kind,
                                             const struct attest_score_tensor *t)
{
    struct attest_layout layout = {.dtype = t->dtype, .align = t->align, .inner = 1};
    const bool in_blocks = kind->shape == ATTEST_BLOCKS && t->dtype != ATTEST_ABSENT;
    const int64_t rows = in_blocks ? blocks(p->seqlen_q, p->block_q) : p->seqlen_q;
    const int64_t columns = in_blocks ? blocks(p->seqlen_k, p->block_k) : p->seqlen_k;
    const bool sums = kind->written; /* dbias: an axis of stride zero is one element, the sum over it */
    add_axis(&layout, "batch", sums && t->batch == 0 ? 1 : p->batch, t->batch);
    add_axis(&layout, "head", sums && t->head == 0 ? 1 : p->num_heads_q, t->head);
    add_axis(&layout, "seqlen_q", sums && t->seqlen_q == 0 ? 1 : rows, t->seqlen_q);
    add_axis(&layout, "seqlen_k", sums && t->seqlen_k == 0 ? 1 : columns, t->seqlen_k);
    return layout;
}

struct attest_layout attest_layout_of(const struct attest_problem *p, const struct attest_tensor_kind *kind)
{
    const void *field = (const char *)p + kind->in_problem;
    const bool scores = kind->shape == ATTEST_SCORES || kind->shape == ATTEST_BLOCKS;
    struct attest_layout layout = scores ? layout_of_scores(p, kind, field) : layout_of_rows(p, kind, field);
    layout.element_bytes = (int64_t)ref_dtype_bytes(layout.dtype);
    return layout;
}

bool attest_layout_is_empty(const struct attest_layout *layout)
{
    for (int a = 0; a < layout->num_axes; ++a) {
        if (layout->axes[a].count == 0) return true;
    }
    return false;
}

void attest_layout_sort(struct attest_layout *layout)
{
    int kept = 0;
    for (int a = 0; a < layout->num_axes; ++a) {
        const struct attest_axis axis = layout->axes[a];
        if (axis.count <= 1 || axis.stride == 0) continue;
        int at = kept++;
        for (; at > 0 && layout->axes[at - 1].stride < axis.stride; --at) layout->axes[at] = layout->axes[at - 1];
        layout->axes[at] = axis;
    }
    layout->num_axes = kept;
}

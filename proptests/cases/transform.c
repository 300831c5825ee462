/* transform.c - changed copies of cases. */
#include "proptests/cases/transform.h"

#include <math.h>
#include <string.h>

static bool is_rows(enum tensor_id t)
{
    return tensor_kinds[t].shape == SHAPE_ROWS || tensor_kinds[t].shape == SHAPE_SCALARS;
}

/* Canonical index in extents e, where an axis of 1 is broadcast. */
static int64_t index_of(const int64_t e[4], int64_t b, int64_t h, int64_t r, int64_t col)
{
    return (((e[0] > 1 ? b : 0) * e[1] + (e[1] > 1 ? h : 0)) * e[2] + (e[2] > 1 ? r : 0)) * e[3] + (e[3] > 1 ? col : 0);
}

/* Rows first .. of a row tensor, as many as `out` has. */
static void take_rows(struct prop_case *out, const struct prop_case *c, enum tensor_id t, int64_t first)
{
    int64_t e[4];
    if (c->values[t] == NULL) return;
    case_extents(out, t, e);
    const int64_t row = e[1] * e[2];
    out->values[t] = case_doubles(out, e[0] * row);
    memcpy(out->values[t], c->values[t] + first * row, (size_t)(e[0] * row) * sizeof(double));
}

/* Scores from (b, r0, c0) on, as many as `out` has. */
static void take_scores(struct prop_case *out, const struct prop_case *c, enum tensor_id t, int64_t b, int64_t r0,
                        int64_t c0)
{
    int64_t e[4], from[4];
    if (c->values[t] == NULL) return;
    case_extents(out, t, e);
    case_extents(c, t, from);
    double *to = out->values[t] = case_doubles(out, e[0] * e[1] * e[2] * e[3]);
    for (int64_t h = 0; h < e[1]; ++h)
        for (int64_t r = 0; r < e[2]; ++r)
            for (int64_t col = 0; col < e[3]; ++col) *to++ = c->values[t][index_of(from, b, h, r0 + r, c0 + col)];
}

/* A stride of zero broadcasts over an axis of any length, so it stays zero; one of another length is set anew by
 * case_contiguous(). An axis that was 1 long without being broadcast may now be longer: never here. */
static void take_all(struct prop_case *out, const struct prop_case *c, int64_t first_q, int64_t first_k, int64_t b,
                     int64_t r0, int64_t c0)
{
    for (int t = 0; t < NUM_TENSORS; ++t) {
        const enum tensor_id id = (enum tensor_id)t;
        if (is_rows(id)) take_rows(out, c, id, tensor_kinds[t].is_k ? first_k : first_q);
        else take_scores(out, c, id, b, r0, c0);
    }
}

void transform_alone(struct prop_case *out, const struct prop_case *c, int64_t b)
{
    const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
    const int64_t heads = c->p.num_heads_q;
    case_copy(out, c);
    struct attest_problem *p = &out->p;
    p->batch = 1;
    p->ragged = 0;
    p->total_q = p->total_k = 0;
    p->has_seqused_q = p->has_seqused_k = 0;
    p->seqlen_q = s.seqlen_q, p->seqlen_k = s.seqlen_k;
    out->starts_q = out->starts_k = out->used_q = out->used_k = NULL;
    out->streams = case_alloc(out, (size_t)heads * sizeof(int64_t));
    for (int64_t h = 0; h < heads; ++h) out->streams[h] = c->streams ? c->streams[b * heads + h] : b * heads + h;
    case_contiguous(out);
    take_all(out, c, s.first_q, s.first_k, b, 0, 0);
    case_lay_out(out);
}

/* Full strides, to be set by case_contiguous(). */
static struct attest_score_tensor full_scores(int32_t dtype)
{
    return (struct attest_score_tensor){.dtype = dtype, .batch = 1, .head = 1, .seqlen_q = 1, .seqlen_k = 1};
}

/* What `view`, c's problem with some of its masks, shows, as value for seen ones, `hidden` for the others. */
typedef double seen_value(const struct prop_case *c, int64_t b, int64_t h, int64_t r, int64_t col);
static double one(const struct prop_case *c, int64_t b, int64_t h, int64_t r, int64_t col)
{
    (void)c, (void)b, (void)h, (void)r, (void)col;
    return 1;
}

static double bias_or_zero(const struct prop_case *c, int64_t b, int64_t h, int64_t r, int64_t col)
{
    int64_t e[4];
    if (c->values[T_BIAS] == NULL) return 0;
    case_extents(c, T_BIAS, e);
    return c->values[T_BIAS][index_of(e, b, h, r, col)];
}

static double *spell_out(struct prop_case *out, const struct prop_case *c, const struct attest_problem *view,
                         seen_value *seen, double hidden)
{
    const struct attest_problem *p = &c->p;
    double *mask = case_doubles(out, p->batch * p->num_heads_q * p->seqlen_q * p->seqlen_k), *to = mask;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &c->a.forward, b);
        for (int64_t h = 0; h < p->num_heads_q; ++h)
            for (int64_t r = 0; r < p->seqlen_q; ++r)
                for (int64_t col = 0; col < p->seqlen_k; ++col)
                    *to++ = ref_visible(view, &c->a.forward, &s, b, h, r, col) ? seen(c, b, h, r, col) : hidden;
    }
    return mask;
}

/* The block mask cannot be cut anywhere, a boolean mask can. */
static void fold_block_mask(struct prop_case *out, const struct prop_case *c)
{
    struct attest_problem view = c->p;
    if (c->p.block_mask.dtype == ATTEST_ABSENT) return;
    view.window_left = view.window_right = -1;
    view.bias.dtype = ATTEST_ABSENT;
    out->values[T_MASK] = spell_out(out, c, &view, one, 0);
    out->values[T_BLOCK_MASK] = NULL;
    out->p.mask = full_scores(ATTEST_UINT8);
    out->p.block_mask = (struct attest_score_tensor){0};
    case_contiguous(out);
    case_lay_out(out);
}

void transform_part(struct prop_case *out, const struct prop_case *c, const struct part *part)
{
    struct prop_case whole;
    const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, 0);
    case_copy(&whole, c);
    case_lay_out(&whole);
    fold_block_mask(&whole, c);
    case_copy(out, &whole);
    struct attest_problem *p = &out->p;
    p->seqlen_q = part->q1 - part->q0, p->seqlen_k = part->k1 - part->k0;
    p->q_start += part->q0, p->k_start += part->k0;
    p->diag_kind = p->alibi_diag_kind = ATTEST_DIAG_GIVEN;
    p->diag = s.diag, p->alibi_diag = s.alibi_diag;
    if (!part->sink) p->has_sink = 0, out->sink = NULL;
    case_contiguous(out);
    take_all(out, &whole, part->q0, part->k0, 0, part->q0, part->k0);
    case_lay_out(out);
    case_free(&whole);
}

void transform_mask(struct prop_case *out, const struct prop_case *c, enum mask_form form)
{
    struct attest_problem view = c->p;
    case_copy(out, c);
    case_contiguous(out);
    out->p.window_left = out->p.window_right = -1;
    if (form != MASK_AS_BOOLEAN) view.mask.dtype = ATTEST_ABSENT;
    if (form != MASK_AS_BLOCKS) view.block_mask.dtype = ATTEST_ABSENT;
    if (form != MASK_AS_BIAS) view.bias.dtype = ATTEST_ABSENT;
    if (form == MASK_AS_BOOLEAN) {
        out->values[T_MASK] = spell_out(out, c, &view, one, 0);
        out->p.mask = full_scores(ATTEST_UINT8);
    } else if (form == MASK_AS_BLOCKS) {
        out->values[T_BLOCK_MASK] = spell_out(out, c, &view, one, 0);
        out->p.block_mask = full_scores(ATTEST_UINT8);
        out->p.block_q = out->p.block_k = 1;
    } else {
        out->values[T_BIAS] = spell_out(out, c, &view, bias_or_zero, -INFINITY);
        out->p.bias = full_scores(c->p.bias.dtype ? c->p.bias.dtype : ATTEST_FP32);
    }
    case_contiguous(out);
    case_lay_out(out);
}

void transform_repeat_heads(struct prop_case *out, const struct prop_case *c)
{
    static const enum tensor_id repeated[] = {T_K, T_V};
    const int64_t heads = c->p.num_heads_q, group = heads / c->p.num_heads_kv;
    case_copy(out, c);
    out->p.num_heads_kv = heads;
    case_contiguous(out);
    for (int i = 0; i < 2; ++i) {
        int64_t e[4];
        case_extents(out, repeated[i], e);
        double *to = out->values[repeated[i]] = case_doubles(out, e[0] * heads * e[2]);
        for (int64_t row = 0; row < e[0]; ++row)
            for (int64_t h = 0; h < heads; ++h, to += e[2])
                memcpy(to, c->values[repeated[i]] + (row * (heads / group) + h / group) * e[2],
                       (size_t)e[2] * sizeof(double));
    }
    case_lay_out(out);
}

void transform_permute_keys(struct prop_case *out, const struct prop_case *c, const int64_t *order)
{
    case_copy(out, c);
    case_contiguous(out);
    for (int t = 0; t < NUM_TENSORS; ++t) {
        const enum tensor_id id = (enum tensor_id)t;
        if (c->values[t] == NULL || (is_rows(id) && !tensor_kinds[t].is_k)) continue;
        int64_t e[4];
        case_extents(c, id, e);
        const int64_t inner = is_rows(id) ? e[1] * e[2] : 1, keys = is_rows(id) ? c->p.seqlen_k : e[3];
        if (!is_rows(id) && keys == 1) continue; /* the same for all keys */
        for (int64_t i = 0; i < e[0] * e[1] * e[2] * e[3] / inner; ++i)
            memcpy(out->values[t] + i * inner, c->values[t] + (i / keys * keys + order[i % keys]) * inner,
                   (size_t)inner * sizeof(double));
    }
    case_lay_out(out);
}

void transform_shift(struct prop_case *out, const struct prop_case *c, double q, double k)
{
    static const enum tensor_id longer[] = {T_Q, T_K};
    const int64_t dim = c->p.head_dim;
    case_copy(out, c);
    out->p.head_dim = dim + 1;
    case_contiguous(out);
    for (int i = 0; i < 2; ++i) {
        const int64_t rows = case_count(c, longer[i]) / dim;
        double *to = out->values[longer[i]] = case_doubles(out, rows * (dim + 1));
        for (int64_t row = 0; row < rows; ++row, to += dim + 1) {
            memcpy(to, c->values[longer[i]] + row * dim, (size_t)dim * sizeof(double));
            to[dim] = i == 0 ? q : k;
        }
    }
    case_lay_out(out);
}

void transform_scale(struct prop_case *c, enum tensor_id t, double factor)
{
    const int64_t count = c->values[t] != NULL ? case_count(c, t) : 0;
    for (int64_t i = 0; i < count; ++i) c->values[t][i] *= factor;
}

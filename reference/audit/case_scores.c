/* case_scores.c - what is added to scores and what hides keys: biases, masks, sinks, slopes, blocks, scales. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/case.h"
#include "reference/formats.h"
#include "reference/oracle.h"

/* ---- the axes of tensors over scores ---- */

/* The last axes of [batch, heads, seqlen_q, seqlen_k], each whole or 1. */
static bool fits_right(const int64_t *whole, const struct view *v, int64_t *stride)
{
    for (int i = 0; i < v->ndim; ++i) {
        const int axis = i + 4 - v->ndim;
        if (axis < 0 || (v->shape[i] != whole[axis] && v->shape[i] != 1)) return false;
        stride[axis] = v->shape[i] > 1 ? v->stride[i] : 0;
    }
    return true;
}

bool case_score_strides(const struct attest_problem *p, const struct view *v, bool blocks,
                        struct attest_score_tensor *out)
{
    int64_t whole[4] = {p->batch, p->num_heads_q, p->seqlen_q, p->seqlen_k}, stride[4] = {0, 0, 0, 0};
    if (blocks) {
        whole[2] = (p->seqlen_q + p->block_q - 1) / p->block_q;
        whole[3] = (p->seqlen_k + p->block_k - 1) / p->block_k;
    }
    if (!fits_right(whole, v, stride)) return false;
    *out = (struct attest_score_tensor){.dtype = v->dtype, .batch = stride[0], .head = stride[1], .seqlen_q = stride[2],
                                        .seqlen_k = stride[3]};
    return true;
}

/* Masks are also [batch, seqlen_k] and [batch, seqlen_q, seqlen_k]. The first goes before [seqlen_q, seqlen_k] for
 * tensors that are called attention_mask or key_padding_mask, as model code has them. */
static char *place_mask_axes(struct audit_case *c, struct view v, struct attest_score_tensor *out)
{
    const struct attest_problem *p = &c->problem;
    struct view padding = v;
    const bool of_batch = v.ndim >= 2 && v.ndim <= 3 && v.shape[0] == p->batch;
    if (of_batch) { /* an axis of 1 for heads, and of [batch, seqlen_k] one for rows */
        padding.ndim = 4;
        padding.shape[1] = 1, padding.stride[1] = 0;
        padding.shape[2] = v.ndim == 3 ? v.shape[1] : 1, padding.stride[2] = v.ndim == 3 ? v.stride[1] : 0;
        padding.shape[3] = v.shape[v.ndim - 1], padding.stride[3] = v.stride[v.ndim - 1];
    }
    struct attest_score_tensor as_padding, as_scores;
    const bool fits_padding = of_batch && case_score_strides(p, &padding, false, &as_padding);
    const bool fits_scores = case_score_strides(p, &v, false, &as_scores);
    const bool is_padding = strstr(v.name, "ttention_mask") != NULL || strstr(v.name, "padding") != NULL;
    if (!fits_padding && !fits_scores)
        return case_wrong_shape(&v, "[batch, heads, seqlen_q, seqlen_k] with 1 for axes that are broadcast, and not "
                                    "[batch, seqlen_k]");
    const bool padding_wins = fits_padding && (!fits_scores || (is_padding && v.ndim == 2));
    *out = padding_wins ? as_padding : as_scores;
    if (fits_padding && fits_scores && memcmp(&as_padding, &as_scores, sizeof as_scores) != 0)
        return case_guess(c, &c->notes, "%s is read as [%s]", v.name,
                          padding_wins  ? "batch, seqlen_k"
                          : v.ndim == 2 ? "seqlen_q, seqlen_k"
                                        : "heads, seqlen_q, seqlen_k");
    if (padding_wins) note(&c->notes, "%s is [batch, %sseqlen_k]", v.name, v.ndim == 3 ? "seqlen_q, " : "");
    return NULL;
}

/* ---- numbers of other types ---- */

/* All numbers of t as fp32, or NULL where one does not fit. */
static float *to_fp32(struct audit_case *c, const struct tensor *t)
{
    float *out = case_own(c, allocate((size_t)t->elements, sizeof *out));
    for (int64_t i = 0; i < t->elements; ++i) {
        const double x = tensor_number(t, i);
        out[i] = (float)x;
        if (out[i] != x && !isnan(x)) return NULL;
    }
    return out;
}

static bool is_float(const struct tensor *t)
{
    return t->dtype == TENSOR_FP64 || ref_format(t->dtype) != NULL;
}

/* The bias as the contract takes it: of q's dtype, or else fp32. */
static char *place_bias_of(struct audit_case *c, const struct tensor *t, struct attest_score_tensor at)
{
    struct attest_problem *p = &c->problem;
    if (p->bias.dtype != ATTEST_ABSENT)
        return sentence("%s is added to scores, and so is another bias; hand over their sum", t->name);
    p->bias = at;
    c->args.forward.bias = t->data;
    if (t->dtype == ATTEST_FP32 || (t->dtype == p->q.dtype && ref_dtype_bytes(t->dtype) == 2)) return NULL;
    c->args.forward.bias = to_fp32(c, t);
    if (c->args.forward.bias == NULL) return sentence("%s is %s with numbers that are none of fp32", t->name,
                                                      tensor_dtype_name(t->dtype));
    p->bias.dtype = ATTEST_FP32;
    note(&c->notes, "%s is %s: read as fp32, exactly", t->name, tensor_dtype_name(t->dtype));
    return NULL;
}

static char *place_bias(struct audit_case *c)
{
    const struct tensor *t = tensor_set_find(&c->set, PART_BIAS);
    struct attest_score_tensor at;
    if (t == NULL) return NULL;
    const struct view v = view_of(t);
    if (!is_float(t))
        return sentence("%s is %s; it must be numbers with fractions", t->name, tensor_dtype_name(t->dtype));
    if (!case_score_strides(&c->problem, &v, false, &at))
        return case_wrong_shape(&v, "[batch, heads, seqlen_q, seqlen_k] with 1 for axes that are broadcast");
    return place_bias_of(c, t, at);
}

/* ---- masks ---- */

static char *place_visible(struct audit_case *c, const struct tensor *t, struct attest_score_tensor at, bool hides)
{
    struct attest_problem *p = &c->problem;
    if (p->mask.dtype != ATTEST_ABSENT) return sentence("%s is a mask, and so is another tensor", t->name);
    uint8_t *mask = case_own(c, allocate((size_t)t->elements, 1));
    for (int64_t i = 0; i < t->elements; ++i) mask[i] = (tensor_number(t, i) != 0) != hides;
    at.dtype = ATTEST_UINT8;
    p->mask = at;
    c->args.forward.mask = mask;
    if (hides) note(&c->notes, "%s: nonzero hides a key", t->name);
    else if (t->dtype != ATTEST_UINT8)
        note(&c->notes, "%s is %s: nonzero is visible", t->name, tensor_dtype_name(t->dtype));
    return NULL;
}

/* A mask of fractions is added to scores; but one of 0 and 1 alone says what is visible. */
static bool says_visible(const struct tensor *t)
{
    bool any = false;
    for (int64_t i = 0; i < t->elements; ++i) {
        const double x = tensor_number(t, i);
        if (x != 0 && x != 1) return false;
        any |= x == 1;
    }
    return any;
}

static char *place_mask(struct audit_case *c, enum part part)
{
    const struct tensor *t = tensor_set_find(&c->set, part);
    struct attest_score_tensor at;
    if (t == NULL) return NULL;
    if (tensor_dtype_bytes(t->dtype) == 0 || isnan(t->elements > 0 ? tensor_number(t, 0) : 0))
        return sentence("%s is %s with numbers that say neither visible nor hidden", t->name,
                        tensor_dtype_name(t->dtype));
    char *wrong = place_mask_axes(c, view_of(t), &at);
    if (wrong != NULL) return wrong;
    if (!is_float(t) || part == PART_HIDDEN) return place_visible(c, t, at, part == PART_HIDDEN);
    if (!says_visible(t)) {
        note(&c->notes, "%s is %s: it is added to scores", t->name, tensor_dtype_name(t->dtype));
        return place_bias_of(c, t, at);
    }
    wrong = case_guess(c, &c->notes, "%s is %s of 0 and 1 alone: read as 1 = visible", t->name,
                       tensor_dtype_name(t->dtype));
    return wrong != NULL ? wrong : place_visible(c, t, at, false);
}

static char *place_block_mask(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const struct tensor *t = tensor_set_find(&c->set, PART_BLOCK_MASK);
    if (t == NULL) return NULL;
    struct view v = view_of(t);
    if (p->block_q == 0) return sentence("%s needs --block ROWS,COLUMNS: how many scores a block has", t->name);
    if (!case_score_strides(p, &v, true, &p->block_mask))
        return case_wrong_shape(&v, "[batch, heads, ceil(seqlen_q / rows), ceil(seqlen_k / columns)] with 1 for axes "
                                    "that are broadcast");
    if (is_float(t)) return sentence("%s is %s; it must be booleans or integers", t->name, tensor_dtype_name(t->dtype));
    uint8_t *mask = case_own(c, allocate((size_t)t->elements, 1));
    for (int64_t i = 0; i < t->elements; ++i) mask[i] = tensor_number(t, i) != 0;
    p->block_mask.dtype = ATTEST_UINT8;
    c->args.forward.block_mask = mask;
    return NULL;
}

/* ---- one number for each head ---- */

static char *place_per_head(struct audit_case *c, enum part part, int32_t *flag, const float **data)
{
    const struct tensor *t = tensor_set_find(&c->set, part);
    if (t == NULL) return NULL;
    const int64_t heads = c->problem.num_heads_q, batch = c->problem.batch;
    const struct view v = view_of(t);
    const bool by_sequence = part == PART_SLOPES && t->ndim == 2 && t->shape[0] == batch && t->shape[1] == heads;
    if (!is_float(t) || (t->elements != heads && !by_sequence))
        return case_wrong_shape(&v, "one number for each head of q");
    const float *numbers = to_fp32(c, t);
    if (numbers == NULL) return sentence("%s is %s with numbers that are none of fp32", t->name,
                                         tensor_dtype_name(t->dtype));
    for (int64_t i = heads; i < t->elements; ++i)
        if (numbers[i] != numbers[i % heads])
            return sentence("%s differs from sequence to sequence, which cannot be judged; audit them one by one",
                            t->name);
    if (t->dtype != ATTEST_FP32)
        note(&c->notes, "%s is %s: read as fp32, exactly", t->name, tensor_dtype_name(t->dtype));
    *flag = 1;
    *data = numbers;
    return NULL;
}

/* ---- scales of fp8 ---- */

static char *read_scale_of(struct audit_case *c, enum part part, double *scale)
{
    const struct tensor *t = tensor_set_find(&c->set, part);
    *scale = 1;
    if (t == NULL || t->elements == 0) return NULL;
    if (!is_float(t)) return sentence("%s is %s; it must be fp32", t->name, tensor_dtype_name(t->dtype));
    *scale = tensor_number(t, 0);
    for (int64_t i = 1; i < t->elements; ++i)
        if (tensor_number(t, i) != *scale)
            return sentence("%s differs from head to head, which cannot be judged; audit them one by one", t->name);
    if (!isfinite(*scale) || !(*scale > 0)) return sentence("%s is %g; it must be finite and above 0", t->name, *scale);
    return NULL;
}

static char *place_scales(struct audit_case *c)
{
    double q, k;
    char *wrong = read_scale_of(c, PART_Q_SCALE, &q);
    if (wrong == NULL) wrong = read_scale_of(c, PART_K_SCALE, &k);
    if (wrong == NULL) wrong = read_scale_of(c, PART_V_SCALE, &c->v_scale);
    if (wrong != NULL) return wrong;
    c->has_scales = q != 1 || k != 1 || c->v_scale != 1;
    if (q * k != 1) {
        const float before = c->problem.softmax_scale;
        c->problem.softmax_scale = (float)(before * q * k);
        note(&c->notes, "q and k are to be multiplied by %g and %g: softmax_scale %.9g becomes %.9g", q, k, before,
             c->problem.softmax_scale);
    }
    if (c->v_scale != 1) note(&c->notes, "v is to be multiplied by %g, and so is o", c->v_scale);
    return NULL;
}

char *case_read_scores(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    struct attest_forward_args *a = &c->args.forward;
    char *wrong = place_bias(c);
    if (wrong == NULL) wrong = place_mask(c, PART_MASK);
    if (wrong == NULL) wrong = place_mask(c, PART_HIDDEN);
    if (wrong == NULL) wrong = place_block_mask(c);
    if (wrong == NULL) wrong = place_per_head(c, PART_SINK, &p->has_sink, &a->sink);
    if (wrong == NULL) wrong = place_per_head(c, PART_SLOPES, &p->has_alibi, &a->alibi_slopes);
    if (wrong == NULL) wrong = place_scales(c);
    return wrong;
}

/* ---- keys that a finite bias hides ---- */

static const int64_t MOST_MASK = (int64_t)1 << 32;

static double largest_norm(const struct attest_problem *p, const struct attest_forward_args *a, bool is_k)
{
    const struct attest_tensor *t = is_k ? &p->k : &p->q;
    const int64_t heads = is_k ? p->num_heads_kv : p->num_heads_q;
    double largest = 0;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, a, b);
        for (int64_t r = 0; r < (is_k ? s.seqlen_k : s.seqlen_q); ++r) {
            for (int64_t h = 0; h < heads; ++h) {
                const int64_t at = ref_row_offset(p, t, &s, is_k, b, r, h);
                double sum = 0;
                for (int64_t x = 0; x < p->head_dim; ++x) {
                    const double value = ref_load(t->dtype, is_k ? a->k : a->q, at + x);
                    sum += value * value;
                }
                largest = fmax(largest, sum);
            }
        }
    }
    return sqrt(largest);
}

/* By how much a bias must be less than another of its row for the key to have a weight of 0 in double, whatever the
 * scores: twice the largest score, by Cauchy and Schwarz, and 745, beyond which exp is 0. */
static double hiding_distance(const struct audit_case *c)
{
    const struct attest_problem *p = &c->problem;
    const struct attest_forward_args *a = &c->args.forward;
    double score = fabs((double)p->softmax_scale) * largest_norm(p, a, false) * largest_norm(p, a, true);
    if (p->softcap > 0) score = fmin(score, p->softcap);
    double slope = 0;
    for (int64_t h = 0; p->has_alibi && h < p->num_heads_q; ++h) slope = fmax(slope, fabs((double)a->alibi_slopes[h]));
    return 2 * score + slope * (double)(2 * p->seqlen_q + 2 * p->seqlen_k) + 750;
}

/* Hides what has no weight in one row. Returns how many keys that are. */
static int64_t hide_in_row(const struct audit_case *c, const struct ref_sequence *s, int64_t b, int64_t h, int64_t r,
                           double distance, uint8_t *mask)
{
    const struct attest_problem *p = &c->problem;
    const struct attest_forward_args *a = &c->args.forward;
    double most = -INFINITY;
    int64_t hidden = 0;
    for (int pass = 0; pass < 2; ++pass) {
        for (int64_t col = 0; col < s->seqlen_k; ++col) {
            if (!ref_visible(p, a, s, b, h, r, col)) continue;
            const double bias = ref_load(p->bias.dtype, a->bias, ref_score_offset(&p->bias, b, h, r, col));
            if (pass == 0) most = fmax(most, bias);
            else if (!(bias + distance < most)) mask[col] = 1; /* a NaN stays */
            else hidden += isfinite(bias);
        }
    }
    return hidden;
}

static double least_bias(const struct tensor *t)
{
    double least = 0;
    for (int64_t i = 0; i < t->elements; ++i) {
        const double x = tensor_number(t, i);
        if (isfinite(x)) least = fmin(least, x);
    }
    return least;
}

/* A mask of every row takes the place of the one that was given. */
char *case_hide_keys(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const struct tensor *t = tensor_set_find(&c->set, PART_BIAS);
    if (t == NULL) t = tensor_set_find(&c->set, PART_MASK);
    if (p->bias.dtype == ATTEST_ABSENT || t == NULL) return NULL;
    const double distance = hiding_distance(c), least = least_bias(t);
    const bool alike = p->bias.head == 0 && p->mask.head == 0 && p->block_mask.head == 0;
    const int64_t heads = alike ? 1 : p->num_heads_q;
    int64_t size, hidden = 0;
    if (!(least + distance < 0)) return NULL;
    if (__builtin_mul_overflow(p->batch * heads, p->seqlen_q * p->seqlen_k, &size) || size > MOST_MASK) return NULL;
    uint8_t *mask = case_own(c, allocate((size_t)size, 1));
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &c->args.forward, b);
        for (int64_t h = 0; h < heads; ++h)
            for (int64_t r = 0; r < s.seqlen_q; ++r)
                hidden +=
                    hide_in_row(c, &s, b, h, r, distance, mask + ((b * heads + h) * p->seqlen_q + r) * p->seqlen_k);
    }
    if (hidden == 0) return NULL;
    p->mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .batch = heads * p->seqlen_q * p->seqlen_k,
                                           .head = alike ? 0 : p->seqlen_q * p->seqlen_k, .seqlen_q = p->seqlen_k,
                                           .seqlen_k = 1};
    c->args.forward.mask = mask;
    note(&c->notes,
         "%s: %lld keys of rows have biases, down to %g, that leave them a weight of exactly 0: read as hidden",
         t->name, (long long)hidden, least);
    return NULL;
}

/* judge_cases.c - see judge_cases.h. */
#include "reference/judge_cases.h"

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"

const char *const judge_family_names[JUDGE_NUM_FAMILIES] = {
    "normal", "outlier", "large", "tiny", "mean", "shift", "duplicate", "integer", "subnormal", "edge",
};

uint64_t judge_bits(struct judge_random *g)
{
    uint64_t z = g->state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}

int64_t judge_range(struct judge_random *g, int64_t low, int64_t high)
{
    return low + (int64_t)(judge_bits(g) % (uint64_t)(high - low + 1));
}

double judge_uniform(struct judge_random *g) { return (double)(judge_bits(g) >> 11) * 0x1p-53; }

double judge_normal(struct judge_random *g)
{
    const double radius = sqrt(-2 * log(1 - judge_uniform(g)));
    return radius * cos(6.283185307179586 * judge_uniform(g));
}

static bool chance(struct judge_random *g, int percent) { return judge_range(g, 0, 99) < percent; }

static void *allocate(struct judge_case *c, int64_t bytes)
{
    void *memory = malloc((size_t)bytes + 16);
    if (memory == NULL || c->num_memory == (int)(sizeof c->memory / sizeof *c->memory)) abort();
    memset(memory, 0xff, (size_t)bytes + 16);
    return c->memory[c->num_memory++] = memory;
}

/* A number near the largest finite one, or near the smallest normal one. */
static double edge_value(struct judge_random *g, const struct ref_format *f, bool high)
{
    const double sign = chance(g, 50) ? -1 : 1, factor = exp2(3 * judge_uniform(g));
    return sign * (high ? f->max_finite / factor : f->min_normal * factor);
}

enum role { ROLE_Q, ROLE_K, ROLE_V, ROLE_DOUT }; /* what a tensor is for decides what its family means */

static double draw(struct judge_random *g, enum judge_family family, int32_t dtype, enum role role)
{
    const struct ref_format *f = ref_format(dtype);
    const int64_t subnormals = INT64_C(1) << f->fraction_bits;
    switch (family) {
    case JUDGE_OUTLIER: /* one in fifty, not in a thousand: most cases here hold only hundreds of numbers */
        return judge_normal(g) + (chance(g, 2) ? 10 * judge_normal(g) : 0);
    case JUDGE_LARGE: return 30 * judge_normal(g);
    case JUDGE_TINY: return 1e-3 * judge_normal(g);
    case JUDGE_MEAN: return 4 + judge_normal(g);
    case JUDGE_DUPLICATE: return role == ROLE_V ? fabs(judge_normal(g)) : judge_normal(g);
    case JUDGE_INTEGER: return (double)judge_range(g, -2, 2);
    case JUDGE_SUBNORMAL: return f->min_subnormal * (double)judge_range(g, -subnormals, subnormals);
    case JUDGE_EDGE: /* high q against low k leaves scores of a common size */
        return edge_value(g, f, role == ROLE_Q || (role != ROLE_K && chance(g, 50)));
    default: return judge_normal(g);
    }
}

struct sequence {
    int64_t first, used;
};

static struct sequence sequence_of(const struct judge_case *c, bool is_k, int64_t b)
{
    const struct attest_forward_args *a = &c->args.forward;
    const int32_t *cu = is_k ? a->cu_seqlens_k : a->cu_seqlens_q, *used = is_k ? a->seqused_k : a->seqused_q;
    const int64_t seqlen = is_k ? c->problem.seqlen_k : c->problem.seqlen_q;
    const struct sequence s = {cu ? cu[b] : 0, used ? used[b] : cu ? cu[b + 1] - cu[b] : seqlen};
    return s;
}

static int64_t row_offset(const struct judge_case *c, const struct attest_tensor *t, bool is_k, int64_t b, int64_t r,
                          int64_t h)
{
    return (c->problem.ragged ? 0 : b * t->batch) + (sequence_of(c, is_k, b).first + r) * t->seqlen + h * t->head;
}

/* Describes a tensor [batch][row][head][width], or [row][head][width] in a ragged problem: a random nesting of the
 * axes with random gaps. Returns how many elements it spans. */
static int64_t lay_out(struct judge_random *g, const struct attest_problem *p, struct attest_tensor *t, int32_t dtype,
                       bool is_k, int64_t heads, int64_t width)
{
    int64_t *const strides[3] = {&t->head, &t->seqlen, &t->batch};
    const int64_t rows = p->ragged ? (is_k ? p->total_k : p->total_q) : (is_k ? p->seqlen_k : p->seqlen_q);
    const int64_t extents[3] = {heads, rows, p->ragged ? 1 : p->batch};
    int order[3] = {0, 1, 2};
    for (int i = 2; i > 0; --i) {
        const int j = (int)judge_range(g, 0, i), swap = order[i];
        order[i] = order[j], order[j] = swap;
    }
    *t = (struct attest_tensor){.dtype = dtype};
    int64_t span = width;
    for (int i = 0; i < 3; ++i) {
        span += chance(g, 30) ? judge_range(g, 1, 9) : 0;
        *strides[order[i]] = span;
        span *= extents[order[i]] > 0 ? extents[order[i]] : 1;
    }
    return span;
}

/* An input of rows, drawn. Of the family `shift` feature 0 of q and k is a constant: it moves every score. */
static void *input(struct judge_case *c, struct judge_random *g, struct attest_tensor *t, int32_t dtype,
                   enum judge_family family, enum role role, double constant)
{
    const struct attest_problem *p = &c->problem;
    const bool is_k = role == ROLE_K || role == ROLE_V;
    const int64_t heads = is_k ? p->num_heads_kv : p->num_heads_q;
    const int64_t width = role == ROLE_Q || role == ROLE_K ? p->head_dim : p->head_dim_v;
    void *data = allocate(c, lay_out(g, p, t, dtype, is_k, heads, width) * (int64_t)ref_dtype_bytes(dtype));
    if (!p->ragged && chance(g, 10)) t->batch = 0;
    const uint64_t rows_seed[2] = {judge_bits(g), judge_bits(g)};
    for (int64_t b = 0; b < p->batch; ++b) {
        const int64_t rows = sequence_of(c, is_k, b).used;
        for (int64_t i = 0; i < rows * heads; ++i) {
            const int64_t r = i / heads, h = i % heads, at = row_offset(c, t, is_k, b, r, h);
            /* Of `duplicate` all keys of a head are one of two. */
            struct judge_random row = {family == JUDGE_DUPLICATE && role == ROLE_K ? rows_seed[r % 2] : judge_bits(g)};
            for (int64_t x = 0; x < width; ++x) {
                const double value = x == 0 && constant != 0 ? constant : draw(&row, family, dtype, role);
                ref_store(dtype, data, at + x, value);
            }
        }
    }
    return data;
}

/* A tensor over scores of `rows` x `keys`, axes broadcast at random. Returns how many elements it spans. */
static int64_t lay_out_scores(struct judge_random *g, const struct attest_problem *p, struct attest_score_tensor *t,
                              int32_t dtype, int64_t rows, int64_t keys)
{
    *t = (struct attest_score_tensor){.dtype = dtype};
    int64_t *const strides[4] = {&t->seqlen_k, &t->seqlen_q, &t->head, &t->batch};
    const int64_t extents[4] = {keys, rows, p->num_heads_q, p->batch};
    int64_t span = 1;
    for (int i = 0; i < 4; ++i) {
        if (chance(g, 20)) continue;
        *strides[i] = span;
        span *= extents[i] > 0 ? extents[i] : 1;
        span += chance(g, 20) ? judge_range(g, 1, 3) : 0;
    }
    return span;
}

/* Visible with this probability in percent. */
static uint8_t *draw_mask(struct judge_case *c, struct judge_random *g, int64_t span, int percent)
{
    uint8_t *mask = allocate(c, span);
    for (int64_t i = 0; i < span; ++i) mask[i] = chance(g, percent) ? (uint8_t)judge_range(g, 1, 255) : 0;
    return mask;
}

static float *draw_floats(struct judge_case *c, struct judge_random *g, int64_t count, double scale)
{
    float *values = allocate(c, count * (int64_t)sizeof *values);
    for (int64_t i = 0; i < count; ++i) values[i] = (float)(scale * judge_normal(g));
    return values;
}

/* cu_seqlens with lengths up to `longest`; rows before the first and after the last sequence. */
static int32_t *draw_cu_seqlens(struct judge_case *c, struct judge_random *g, int64_t longest, int64_t *total)
{
    int32_t *cu = allocate(c, (c->problem.batch + 1) * (int64_t)sizeof *cu);
    cu[0] = (int32_t)judge_range(g, 0, 2);
    for (int64_t b = 0; b < c->problem.batch; ++b) cu[b + 1] = cu[b] + (int32_t)judge_range(g, 0, longest);
    *total = cu[c->problem.batch] + judge_range(g, 0, 2);
    return cu;
}

static int32_t *draw_seqused(struct judge_case *c, struct judge_random *g, bool is_k)
{
    int32_t *used = allocate(c, c->problem.batch * (int64_t)sizeof *used);
    for (int64_t b = 0; b < c->problem.batch; ++b)
        used[b] = (int32_t)judge_range(g, 0, sequence_of(c, is_k, b).used);
    return used;
}

static void draw_shape(struct judge_case *c, struct judge_random *g, enum judge_size size)
{
    struct attest_problem *p = &c->problem;
    struct attest_forward_args *a = &c->args.forward;
    const bool is_long = size == JUDGE_LONG;
    p->batch = is_long ? 1 : judge_range(g, 1, 3);
    p->num_heads_kv = is_long ? 1 : judge_range(g, 1, 2);
    p->num_heads_q = p->num_heads_kv * (is_long ? 1 : judge_range(g, 1, 3));
    p->seqlen_q = is_long ? judge_range(g, 1, 3) : judge_range(g, 0, 8);
    p->seqlen_k = is_long ? judge_range(g, 200, 700) : judge_range(g, chance(g, 5) ? 0 : 1, 10);
    p->head_dim = is_long ? judge_range(g, 16, 128) : judge_range(g, 1, 12);
    p->head_dim_v = is_long ? judge_range(g, 1, 32) : judge_range(g, 1, 12);
    p->ragged = !is_long && chance(g, 30);
    if (p->ragged) {
        a->cu_seqlens_q = draw_cu_seqlens(c, g, p->seqlen_q, &p->total_q);
        a->cu_seqlens_k = draw_cu_seqlens(c, g, p->seqlen_k, &p->total_k);
    }
    p->has_seqused_q = !is_long && chance(g, 20);
    p->has_seqused_k = !is_long && chance(g, 20);
    if (p->has_seqused_q) a->seqused_q = draw_seqused(c, g, false);
    if (p->has_seqused_k) a->seqused_k = draw_seqused(c, g, true);
}

/* A kind of diagonal; where the parts of a sequence lie far apart, one that crosses them. */
static int32_t draw_diag(const struct attest_problem *p, struct judge_random *g, int64_t *diag)
{
    const int64_t apart = p->k_start - p->q_start;
    const int32_t kind = llabs(apart) > 8 ? ATTEST_DIAG_GIVEN
                                          : (int32_t)judge_range(g, ATTEST_DIAG_TOP_LEFT, ATTEST_DIAG_GIVEN);
    *diag = kind == ATTEST_DIAG_GIVEN ? apart + judge_range(g, -3, 3) : 0;
    return kind;
}

static void draw_position(struct attest_problem *p, struct judge_random *g)
{
    if (chance(g, 30)) {
        const int64_t limit = INT64_C(1) << (chance(g, 50) ? 3 : chance(g, 50) ? 35 : 59);
        p->q_start = judge_range(g, 0, limit);
        p->k_start = chance(g, 50) ? p->q_start : judge_range(g, 0, limit);
    }
    if (chance(g, 50)) {
        p->window_left = chance(g, 50) ? judge_range(g, 0, p->seqlen_k) : -1;
        p->window_right = chance(g, 70) ? (chance(g, 60) ? 0 : judge_range(g, 0, 4)) : -1;
    }
    if (p->window_left >= 0 || p->window_right >= 0) p->diag_kind = draw_diag(p, g, &p->diag);
    p->has_alibi = chance(g, 30);
    if (p->has_alibi) p->alibi_diag_kind = draw_diag(p, g, &p->alibi_diag);
}

/* softmax_scale: where the family's scores would vanish, sometimes one that brings them back. */
static double draw_scale(const struct attest_problem *p, struct judge_random *g, enum judge_family family)
{
    static const double odd[] = {0, -0.3, 1, 0.01, 3};
    const double typical = 1 / sqrt((double)p->head_dim), min_normal = ref_format(p->q.dtype)->min_normal;
    if (family == JUDGE_INTEGER) return chance(g, 50) ? 1 : 0.5;
    if (family == JUDGE_SUBNORMAL && chance(g, 70)) return fmin(typical / (min_normal * min_normal), 0x1p127);
    return chance(g, 80) ? typical : odd[judge_range(g, 0, 4)];
}

static void draw_scores(struct judge_case *c, struct judge_random *g, enum judge_family family)
{
    static const float caps[] = {0.5F, 15, 50, 1e6F};
    struct attest_problem *p = &c->problem;
    struct attest_forward_args *a = &c->args.forward;
    p->softmax_scale = (float)draw_scale(p, g, family);
    if (chance(g, 30)) p->softcap = caps[judge_range(g, 0, 3)];
    if (p->has_alibi) a->alibi_slopes = draw_floats(c, g, p->num_heads_q, 0.3);
    p->has_sink = chance(g, 30);
    if (p->has_sink) a->sink = draw_floats(c, g, p->num_heads_q, 3);
    if (chance(g, 30)) {
        const int64_t span = lay_out_scores(g, p, &p->mask, ATTEST_UINT8, p->seqlen_q, p->seqlen_k);
        a->mask = draw_mask(c, g, span, 75);
    }
    if (chance(g, 20)) {
        p->block_q = judge_range(g, 1, 5), p->block_k = judge_range(g, 1, 1 + p->seqlen_k / 2);
        const int64_t rows = (p->seqlen_q + p->block_q - 1) / p->block_q;
        const int64_t keys = (p->seqlen_k + p->block_k - 1) / p->block_k;
        a->block_mask = draw_mask(c, g, lay_out_scores(g, p, &p->block_mask, ATTEST_UINT8, rows, keys), 75);
    }
    if (chance(g, 30)) {
        const bool is_fp8 = p->q.dtype == ATTEST_FP8_E4M3 || p->q.dtype == ATTEST_FP8_E5M2;
        const int32_t dtype = is_fp8 || chance(g, 50) ? ATTEST_FP32 : p->q.dtype;
        const int64_t span = lay_out_scores(g, p, &p->bias, dtype, p->seqlen_q, p->seqlen_k);
        void *bias = allocate(c, span * (int64_t)ref_dtype_bytes(dtype));
        for (int64_t i = 0; i < span; ++i) ref_store(dtype, bias, i, chance(g, 10) ? -INFINITY : judge_normal(g));
        a->bias = bias;
        lay_out_scores(g, p, &p->dbias, ATTEST_FP32, p->seqlen_q, p->seqlen_k);
    }
}

static void draw_dropout(struct judge_case *c, struct judge_random *g)
{
    static const float rates[] = {0.1F, 0.5F, 0.99F, 1e-5F};
    struct attest_problem *p = &c->problem;
    struct attest_forward_args *a = &c->args.forward;
    p->dropout_p = rates[judge_range(g, 0, 3)];
    p->dropout_seed = judge_bits(g);
    p->dropout_offset = judge_bits(g);
    if (chance(g, 50)) {
        uint64_t *given = allocate(c, 2 * (int64_t)sizeof *given);
        given[0] = judge_bits(g), given[1] = judge_bits(g);
        a->dropout_seed = &given[0], a->dropout_offset = &given[1];
    }
    if (chance(g, 50)) {
        int64_t *streams = allocate(c, p->batch * p->num_heads_q * (int64_t)sizeof *streams);
        for (int64_t i = 0; i < p->batch * p->num_heads_q; ++i) streams[i] = (int64_t)judge_bits(g);
        a->dropout_stream = streams;
    }
}

/* The constants in feature 0 whose product moves every score of the family `shift` by up to 3e5. */
static double shift_constant(const struct attest_problem *p, struct judge_random *g)
{
    const double shift = 3e5 * judge_uniform(g), scale = fabs((double)p->softmax_scale);
    return scale > 0 ? fmin(sqrt(shift / scale), ref_format(p->q.dtype)->max_finite) : 0;
}

static void draw_rows(struct judge_case *c, struct judge_random *g, enum judge_family family)
{
    static const int32_t wide[] = {ATTEST_FP32, ATTEST_FP16, ATTEST_BF16};
    struct attest_problem *p = &c->problem;
    struct attest_backward_args *a = &c->args;
    const double constant = family == JUDGE_SHIFT ? shift_constant(p, g) : 0;
    a->forward.q = input(c, g, &p->q, p->q.dtype, family, ROLE_Q, chance(g, 50) ? constant : -constant);
    a->forward.k = input(c, g, &p->k, p->q.dtype, family, ROLE_K, constant);
    a->forward.v = input(c, g, &p->v, p->q.dtype, family, ROLE_V, 0);
    a->dout = input(c, g, &p->dout, wide[judge_range(g, 0, 2)], chance(g, 50) ? family : JUDGE_NORMAL, ROLE_DOUT, 0);
    lay_out(g, p, &p->o, ATTEST_FP32, false, p->num_heads_q, p->head_dim_v);
    lay_out(g, p, &p->lse, ATTEST_FP32, false, p->num_heads_q, 1);
    lay_out(g, p, &p->dq, ATTEST_FP32, false, p->num_heads_q, p->head_dim);
    lay_out(g, p, &p->dk, ATTEST_FP32, true, p->num_heads_kv, p->head_dim);
    lay_out(g, p, &p->dv, ATTEST_FP32, true, p->num_heads_kv, p->head_dim_v);
    if (chance(g, 40))
        a->dlse = draw_floats(c, g, lay_out(g, p, &p->dlse, ATTEST_FP32, false, p->num_heads_q, 1), 1);
}

void judge_case_init(struct judge_case *c, enum judge_family family, enum judge_size size, uint64_t seed)
{
    static const int32_t dtypes[] = {ATTEST_BF16, ATTEST_FP16, ATTEST_FP32, ATTEST_FP8_E4M3, ATTEST_FP8_E5M2};
    struct judge_random g = {seed * JUDGE_NUM_FAMILIES + (uint64_t)family};
    *c = (struct judge_case){.problem = ATTEST_PROBLEM_INIT, .args = ATTEST_BACKWARD_ARGS_INIT};
    c->problem.device = ATTEST_REFERENCE;
    c->problem.q.dtype = dtypes[chance(&g, 80) ? judge_range(&g, 0, 2) : judge_range(&g, 3, 4)];
    draw_shape(c, &g, size);
    draw_position(&c->problem, &g);
    draw_scores(c, &g, family);
    if (chance(&g, 25)) draw_dropout(c, &g);
    draw_rows(c, &g, family);
}

void judge_case_externalise(struct judge_case *c, const double *lse, const double *delta, uint64_t seed)
{
    struct attest_problem *p = &c->problem;
    struct judge_random g = {seed};
    float *const given_lse = allocate(c, lay_out(&g, p, &p->lse, ATTEST_FP32, false, p->num_heads_q, 1) * 4);
    float *const given_delta = allocate(c, lay_out(&g, p, &p->delta, ATTEST_FP32, false, p->num_heads_q, 1) * 4);
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct sequence s = sequence_of(c, false, b);
        const int64_t first = p->ragged ? s.first : b * p->seqlen_q;
        for (int64_t i = 0; i < s.used * p->num_heads_q; ++i) {
            const int64_t r = i / p->num_heads_q, h = i % p->num_heads_q, at = first * p->num_heads_q + i;
            /* Mostly more keys; a little less than its own lse, too, is a number that the formulas take. */
            given_lse[row_offset(c, &p->lse, false, b, r, h)] = (float)(lse[at] + 3 * judge_uniform(&g) - 0.5);
            const double moved = delta[at] * (1 + judge_normal(&g)) + 0.1 * judge_normal(&g);
            given_delta[row_offset(c, &p->delta, false, b, r, h)] = (float)fmax(-FLT_MAX, fmin(moved, FLT_MAX));
        }
    }
    p->external_lse = 1;
    c->args.forward.lse = given_lse;
    c->args.delta = given_delta;
}

void judge_case_clear(struct judge_case *c)
{
    for (int i = 0; i < c->num_memory; ++i) free(c->memory[i]);
}

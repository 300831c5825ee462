/* unfused.c - a plug-in for the audit: unfused attention in fp32, forward and backward.
 *
 *     gcc -O2 -shared -fPIC -I. proptests/plugin/unfused.c -o unfused.so -lm
 *     ci/run audit --plugin ./unfused.so
 *
 * It exports the functions of lib/attest.h, so that anything that speaks that interface can call it. It takes dense
 * fp32 problems of any strides with causal masks, windows and grouped heads, and refuses the rest in a sentence. The
 * workspace has one row of scores. */
#include <stdlib.h>
#include <string.h>

#include "lib/attest.h"

/* 1 makes a wrong attention, for tests: a query sees one key too far to the right. */
#ifndef UNFUSED_SLIP
#define UNFUSED_SLIP 0
#endif

struct attest_plan {
    struct attest_problem problem;
};

static const struct attest_recipe recipe = {
    .struct_size = sizeof recipe, .accumulate = ATTEST_ACC_FP32, .delta = ATTEST_DELTA_EXACT,
    .exp_error = 0x1p-22, /* expf of any libm in use is better */
    .name = "unfused"};

static _Thread_local const char *last_error = "";

uint32_t attest_version(void) { return ATTEST_VERSION; }

const char *attest_last_error(void) { return last_error; }

static enum attest_status refuse(enum attest_status status, const char *sentence)
{
    last_error = sentence;
    return status;
}

/* ---- plans ---- */

static int is_fp32(const struct attest_tensor *t) { return t->dtype == ATTEST_FP32 || t->dtype == ATTEST_ABSENT; }

/* NULL, or what is not taken. */
static const char *not_taken(const struct attest_problem *p)
{
    const struct attest_tensor *const tensors[] = {&p->q, &p->k, &p->v, &p->o, &p->dout, &p->dq, &p->dk, &p->dv};
    for (int t = 0; t < 8; ++t)
        if (!is_fp32(tensors[t])) return "a tensor is not fp32";
    if (p->ragged || p->has_seqused_q || p->has_seqused_k) return "sequences have lengths of their own";
    if (p->mask.dtype || p->block_mask.dtype || p->bias.dtype) return "there is a mask or a bias in memory";
    if (p->has_alibi || p->softcap > 0) return "scores are changed by ALiBi or a softcap";
    if (p->has_sink || p->dropout_p > 0) return "there is a sink or dropout";
    if (p->delta.dtype || p->external_lse) return "delta or lse are those of other keys";
    if (p->page_size || p->o_low.dtype || p->lse_low.dtype) return "a reserved field is set";
    return NULL;
}

enum attest_status attest_plan_create(const struct attest_problem *problem, struct attest_plan **plan)
{
    *plan = NULL;
    if (problem->struct_size != sizeof *problem) return refuse(ATTEST_INVALID, "struct_size is another header's");
    const char *const why = not_taken(problem);
    if (why != NULL) return refuse(ATTEST_UNSUPPORTED, why);
    *plan = malloc(sizeof **plan);
    if (*plan == NULL) return refuse(ATTEST_OUT_OF_MEMORY, "no memory for a plan");
    (*plan)->problem = *problem;
    return ATTEST_OK;
}

void attest_plan_destroy(struct attest_plan *plan) { free(plan); }

/* A row of p; backward, one of p dp beside it. */
enum attest_status attest_plan_workspace(const struct attest_plan *plan, size_t *forward_bytes, size_t *backward_bytes)
{
    *forward_bytes = (size_t)plan->problem.seqlen_k * sizeof(float);
    *backward_bytes = 2 * *forward_bytes;
    return ATTEST_OK;
}

/* One kernel has all sequences. */
const struct attest_share *attest_plan_share(const struct attest_plan *plan, enum attest_pass pass, int i)
{
    static const struct attest_share whole = {sizeof whole, "unfused", &recipe, INT64_MAX, INT64_MAX};
    (void)plan, (void)pass;
    return i == 0 ? &whole : NULL;
}

/* ---- what both passes share ---- */

static float *at(const struct attest_tensor *t, const void *tensor, int64_t b, int64_t row, int64_t h)
{
    return (float *)(uintptr_t)tensor + b * t->batch + row * t->seqlen + h * t->head;
}

static int64_t clamp(int64_t x, int64_t lo, int64_t hi) { return x < lo ? lo : x > hi ? hi : x; }

/* Row r sees the keys begin .. end - 1. */
static void find_visible(const struct attest_problem *p, int64_t r, int64_t *begin, int64_t *end)
{
    const int64_t diag = p->diag_kind == ATTEST_DIAG_GIVEN      ? p->diag
                         : p->diag_kind == ATTEST_DIAG_TOP_LEFT ? 0
                                                                : p->seqlen_k - p->seqlen_q;
    const int64_t centre = p->q_start + r + diag - p->k_start;
    *begin = p->window_left < 0 ? 0 : clamp(centre - p->window_left, 0, p->seqlen_k);
    *end = p->window_right < 0 ? p->seqlen_k : clamp(centre + p->window_right + 1 + UNFUSED_SLIP, 0, p->seqlen_k);
    if (*end < *begin) *end = *begin;
}

static float dot(const float *a, const float *b, int64_t count)
{
    float sum = 0;
    for (int64_t x = 0; x < count; ++x) sum += a[x] * b[x];
    return sum;
}

static float score(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b, int64_t r, int64_t h,
                   int64_t j)
{
    const int64_t h_kv = h / (p->num_heads_q / p->num_heads_kv);
    return p->softmax_scale * dot(at(&p->q, a->q, b, r, h), at(&p->k, a->k, b, j, h_kv), p->head_dim);
}

/* ---- forward ---- */

/* NaN if any score is. */
static float largest(const float *x, int64_t begin, int64_t end)
{
    float max = -INFINITY;
    for (int64_t j = begin; j < end; ++j) max = x[j] <= max || max != max ? max : x[j];
    return max;
}

static void forward_row(const struct attest_problem *p, const struct attest_forward_args *a, float *row, int64_t b,
                        int64_t r, int64_t h)
{
    const int64_t h_kv = h / (p->num_heads_q / p->num_heads_kv);
    float *const o = at(&p->o, a->o, b, r, h);
    int64_t begin, end;
    find_visible(p, r, &begin, &end);
    for (int64_t j = begin; j < end; ++j) row[j] = score(p, a, b, r, h, j);
    const float max = largest(row, begin, end);
    float sum = 0;
    for (int64_t j = begin; j < end; ++j) sum += row[j] = expf(row[j] - max);
    for (int64_t x = 0; x < p->head_dim_v; ++x) {
        float o_x = 0;
        for (int64_t j = begin; j < end; ++j) o_x += row[j] * at(&p->v, a->v, b, j, h_kv)[x];
        o[x] = begin < end ? o_x / sum : 0;
    }
    if (p->lse.dtype) *at(&p->lse, a->lse, b, r, h) = begin < end ? max + logf(sum) : -INFINITY;
}

enum attest_status attest_run_forward(const struct attest_plan *plan, const struct attest_forward_args *args,
                                      void *workspace, size_t workspace_bytes, void *stream)
{
    const struct attest_problem *p = &plan->problem;
    (void)workspace_bytes, (void)stream;
    for (int64_t b = 0; b < p->batch; ++b)
        for (int64_t h = 0; h < p->num_heads_q; ++h)
            for (int64_t r = 0; r < p->seqlen_q; ++r) forward_row(p, args, workspace, b, r, h);
    return ATTEST_OK;
}

/* ---- backward ---- */

static void add_scaled(float *to, float factor, const float *from, int64_t count)
{
    for (int64_t x = 0; x < count; ++x) to[x] += factor * from[x];
}

static void scale_row(float *row, float factor, int64_t count)
{
    for (int64_t x = 0; x < count; ++x) row[x] *= factor;
}

/* Adds the row's part to dk and dv, before softmax_scale; writes its dq. */
static void backward_row(const struct attest_problem *p, const struct attest_backward_args *a, float *row, int64_t b,
                         int64_t r, int64_t h)
{
    const int64_t h_kv = h / (p->num_heads_q / p->num_heads_kv);
    const float *const q = at(&p->q, a->forward.q, b, r, h), *const dout = at(&p->dout, a->dout, b, r, h);
    float *const dq = at(&p->dq, a->dq, b, r, h), *const dp = row + p->seqlen_k;
    int64_t begin, end;
    memset(dq, 0, (size_t)p->head_dim * sizeof *dq);
    find_visible(p, r, &begin, &end);
    if (begin == end) return;
    const float lse = *at(&p->lse, a->forward.lse, b, r, h), dlse = p->dlse.dtype ? *at(&p->dlse, a->dlse, b, r, h) : 0;
    float delta = 0;
    for (int64_t j = begin; j < end; ++j) {
        row[j] = expf(score(p, &a->forward, b, r, h, j) - lse);
        dp[j] = dot(dout, at(&p->v, a->forward.v, b, j, h_kv), p->head_dim_v);
        delta += row[j] * dp[j];
    }
    for (int64_t j = begin; j < end; ++j) {
        const float ds = row[j] * (dp[j] - delta + dlse);
        add_scaled(at(&p->dv, a->dv, b, j, h_kv), row[j], dout, p->head_dim_v);
        add_scaled(at(&p->dk, a->dk, b, j, h_kv), ds, q, p->head_dim);
        add_scaled(dq, ds, at(&p->k, a->forward.k, b, j, h_kv), p->head_dim);
    }
    scale_row(dq, p->softmax_scale, p->head_dim);
}

static void backward_head(const struct attest_problem *p, const struct attest_backward_args *a, float *row, int64_t b,
                          int64_t h_kv)
{
    const int64_t group = p->num_heads_q / p->num_heads_kv;
    for (int64_t j = 0; j < p->seqlen_k; ++j) {
        memset(at(&p->dk, a->dk, b, j, h_kv), 0, (size_t)p->head_dim * sizeof(float));
        memset(at(&p->dv, a->dv, b, j, h_kv), 0, (size_t)p->head_dim_v * sizeof(float));
    }
    for (int64_t h = h_kv * group; h < (h_kv + 1) * group; ++h)
        for (int64_t r = 0; r < p->seqlen_q; ++r) backward_row(p, a, row, b, r, h);
    for (int64_t j = 0; j < p->seqlen_k; ++j) scale_row(at(&p->dk, a->dk, b, j, h_kv), p->softmax_scale, p->head_dim);
}

enum attest_status attest_run_backward(const struct attest_plan *plan, const struct attest_backward_args *args,
                                       void *workspace, size_t workspace_bytes, void *stream)
{
    const struct attest_problem *p = &plan->problem;
    (void)workspace_bytes, (void)stream;
    for (int64_t b = 0; b < p->batch; ++b)
        for (int64_t h_kv = 0; h_kv < p->num_heads_kv; ++h_kv) backward_head(p, args, workspace, b, h_kv);
    return ATTEST_OK;
}

/* kernels_long.c - cases of several tiles on both sides, in every width that kernels are compiled for: random cases as
 * small as a simulated GPU asks for seldom have them. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proptests/kernels/kernels.h"
#include "proptests/kernels/kernels_long_cases.h"
#include "proptests/properties/outcome.h"
#include "reference/formats.h"

enum { FAR_BIAS = 3000, BLOCK_Q = 48, BLOCK_K = 32, MANY_KEYS = 5000 };

static bool has(const struct long_case *from, uint64_t feature) { return (from->features & feature) != 0; }

/* As its seed is made of the problem, the simulated GPU has other SMs for another scale. */
static bool has_sms(const struct long_case *from, unsigned sms)
{
    return from->sms != 0 ? sms == (unsigned)from->sms : sms <= 4;
}

static struct attest_score_tensor scores_of(int32_t dtype)
{
    return (struct attest_score_tensor){.dtype = dtype, .seqlen_q = 1, .seqlen_k = 1}; /* one for all heads */
}

/* Of few rows one or none, and half of the keys; of many 20 and 30, then 110 and 130 if there are, or 120 without a
 * group. */
static void use_few_rows(struct prop_case *c, bool all_keys)
{
    struct attest_problem *p = &c->p;
    p->has_seqused_q = p->has_seqused_k = 1;
    c->used_q = case_alloc(c, (size_t)p->batch * sizeof *c->used_q);
    c->used_k = case_alloc(c, (size_t)p->batch * sizeof *c->used_k);
    const bool is_one = p->seqlen_q < 16;
    const int32_t more = p->num_heads_q == p->num_heads_kv ? 90 : 100;
    for (int64_t b = 0; b < p->batch; ++b) {
        c->used_q[b] = is_one ? (b + 1) % 2 : 20 + 90 * b;
        c->used_k[b] = is_one ? p->seqlen_k / 2 : 30 + more * b;
        if (all_keys || c->used_k[b] > p->seqlen_k) c->used_k[b] = p->seqlen_k;
    }
}

static void use_few_keys(struct prop_case *c)
{
    c->p.has_seqused_k = 1;
    c->used_k = case_alloc(c, (size_t)c->p.batch * sizeof *c->used_k);
    for (int64_t b = 0; b < c->p.batch; ++b) c->used_k[b] = c->p.seqlen_k - 7;
}

static int32_t at_least_0(int64_t length) { return length > 0 ? (int32_t)length : 0; }

/* Sequences of which each has 20 queries and 55 keys less than the one before; in an order of their own. */
static void make_ragged(struct prop_case *c, const struct long_case *from)
{
    struct attest_problem *p = &c->p;
    p->ragged = 1;
    c->starts_q = case_alloc(c, (size_t)(p->batch + 1) * sizeof *c->starts_q);
    c->starts_k = case_alloc(c, (size_t)(p->batch + 1) * sizeof *c->starts_k);
    c->starts_q[0] = c->starts_k[0] = 0;
    for (int64_t b = 0; b < p->batch; ++b) {
        const int64_t last = p->batch - 1;
        const int64_t place = from->order == RISING ? last - b : from->order == LAST_FIRST ? (b + last) % p->batch : b;
        c->starts_q[b + 1] = c->starts_q[b] + at_least_0(p->seqlen_q - 20 * place);
        c->starts_k[b + 1] = c->starts_k[b] + at_least_0(p->seqlen_k - 55 * place);
    }
    p->total_q = c->starts_q[p->batch], p->total_k = c->starts_k[p->batch];
}

static void set_features(struct prop_case *c, const struct long_case *from)
{
    struct attest_problem *p = &c->p;
    if (has(from, FEATURE(MASK))) p->mask = scores_of(ATTEST_UINT8);
    if (has(from, FEATURE(BLOCK_MASK)))
        p->block_mask = scores_of(ATTEST_UINT8), p->block_q = BLOCK_Q, p->block_k = BLOCK_K;
    if (has(from, FEATURE(BIAS))) p->bias = scores_of(from->narrow_bias ? p->q.dtype : ATTEST_FP32);
    if (has(from, FEATURE(DBIAS)) && c->backward) {
        p->dbias = scores_of(ATTEST_FP32);
        p->dbias.head = !from->one_dbias, p->dbias.batch = from->own_dbias;
    }
    if (has(from, FEATURE(DROPOUT))) p->dropout_p = 0.3f, c->dropout_seed = UINT64_C(0x123456789abcdef);
    if (has(from, FEATURE(SOFTCAP))) p->softcap = 2;
    if (has(from, FEATURE(SEQUSED))) use_few_rows(c, from->all_keys);
    if (from->few_keys) use_few_keys(c);
    if (has(from, FEATURE(RAGGED))) make_ragged(c, from);
    p->has_sink = has(from, FEATURE(SINK));
    p->has_alibi = has(from, FEATURE(ALIBI));
    if (has(from, FEATURE(DLSE)) && c->backward) p->dlse.dtype = ATTEST_FP32;
    if (has(from, FEATURE(DELTA)) && c->backward) p->delta.dtype = ATTEST_FP32;
    if (p->has_sink) c->sink = case_doubles(c, p->num_heads_q);
    if (p->has_alibi) c->slopes = case_doubles(c, p->num_heads_q);
    for (int64_t h = 0; h < p->num_heads_q; ++h) {
        if (p->has_sink)
            c->sink[h] = from->far_sinks ? 95 : from->hiding && h == p->num_heads_q - 1 ? FAR_BIAS : (double)h - 1;
        if (p->has_alibi) c->slopes[h] = 0.0625 * (double)(1 + h);
    }
}

/* Rows of a multiple of eight elements, of which the last are no features. */
static void pad_rows(struct attest_problem *p)
{
    static const enum tensor_id rows[] = {T_Q, T_K, T_V, T_O, T_DOUT, T_DQ, T_DK, T_DV};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        struct attest_tensor *const t = tensor_rows(p, rows[i]);
        if (t->dtype == ATTEST_ABSENT) continue;
        const int64_t width = (t->head + 7) / 8 * 8;
        t->batch = t->batch / t->head * width, t->seqlen = t->seqlen / t->head * width, t->head = width;
    }
}

static void promise_alignment(struct attest_problem *p)
{
    static const enum tensor_id rows[] = {T_Q, T_K, T_V, T_O, T_DOUT, T_DQ, T_DK, T_DV};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) tensor_rows(p, rows[i])->align = 16;
}

/* Rows of a tensor of `rows` a sequence, `by` numbers further apart. */
static void spread_rows(struct attest_tensor *t, int64_t rows, int64_t by)
{
    t->seqlen += by, t->batch += rows * by;
}

/* Squares as large as tiles: seen but for some scores, not seen, and seen in one column. */
static bool is_seen(int64_t row, int64_t key)
{
    if ((row / 64 + key / 64) % 2 == 0) return (row + key) % 5 != 0;
    return row >= 64 && key % 64 == 40;
}

/* Rows from the 96th on see no key before the 96th, which hides whole tiles; of other blocks every third is hidden. */
static bool is_block_seen(int64_t block_row, int64_t block)
{
    if (block_row >= 2 && block < 3) return false;
    return (block_row + block) % 3 != 1;
}

/* q . k keeps its size. */
static double size_of(const struct prop_case *c, const struct long_case *from, enum tensor_id t)
{
    static const int exponents[NUM_TENSORS] = {[T_Q] = -35, [T_K] = 35, [T_V] = 40, [T_DOUT] = 45};
    const int sign = from->sizes == LARGE_SIZES ? 1 : from->sizes == SMALL_SIZES ? -1 : 0;
    return ldexp(1, sign * (c->p.q.dtype == ATTEST_BF16 ? exponents[t] : exponents[t] / 16));
}

static double value_of(const struct prop_case *c, const struct long_case *from, enum tensor_id t, const int64_t at[4])
{
    static const enum role roles[NUM_TENSORS] = {[T_Q] = ROLE_Q, [T_K] = ROLE_K, [T_V] = ROLE_V, [T_DOUT] = ROLE_DOUT};
    if (t == T_MASK) return is_seen(at[2], at[3]);
    if (t == T_BLOCK_MASK)
        return from->last_block ? (at[3] + 1) * BLOCK_K >= c->p.seqlen_k : is_block_seen(at[2], at[3]);
    if (t == T_BIAS && from->hiding && at[2] % 4 < 2) return at[2] % 4 == 0 ? -1e9f : -FLT_MAX;
    if (t == T_BIAS && from->hiding && at[2] % 4 == 2 && at[3] < c->p.seqlen_k / 2) return -3e6f;
    if (t == T_BIAS)
        return ref_round(c->p.bias.dtype, family_normal(family_bits(1, ROLE_OTHER, 0, at[2], 0, at[3]))) +
               (from->hiding && at[2] % 4 == 3 ? FAR_BIAS : 0);
    if (t == T_DLSE) return (float)family_normal(family_bits(2, ROLE_OTHER, 0, at[0], at[1], 0));
    if (from->far_scores && at[2] == 0 && t == T_Q) return 64;
    if (from->far_scores && at[2] == 0 && t == T_K) return from->negative ? -80 : 80;
    const bool is_late = from->late_key || from->late_rise;
    if (is_late && at[2] == 0 && t == T_Q) return at[0] % c->p.seqlen_q == 100 ? 64 : 0;
    const int64_t row = at[0] % c->p.seqlen_q, key = at[0] % c->p.seqlen_k;
    const int64_t late = c->p.seqlen_k > 1000 ? c->p.seqlen_k - 50 : c->p.seqlen_k > 300 ? 300 : 100;
    const double rise = from->late_key ? 256 : from->far_sinks ? 5.125 : 7.5;
    if (is_late && at[2] == 0 && t == T_K) return key != late ? 0 : rise;
    const bool is_rise = from->late_rises && key >= 300 && key < 308 && (key % 2 == 0 || key == 301);
    if (from->late_rises && t == T_Q)
        return at[2] > 1 ? 0 : row == 200 ? 64.5f : row == 100 && at[2] == 0 ? 64 : 0;
    if (from->late_rises && t == T_K && at[2] < 2) return is_rise && (key == 301) == (at[2] == 1) ? 10.9375f : 0;
    if (from->few_keys && tensor_kinds[t].is_k && at[0] % c->p.seqlen_k >= c->p.seqlen_k - 7)
        return NAN;
    const bool is_one = from->one_value && (t == T_V || t == T_DOUT);
    const double value = family_value(&c->data, roles[t], 0, is_one && t == T_V ? 0 : at[0], at[1], at[2]);
    if (is_one) return fabs(value);
    if (is_rise && t == T_V) return ldexp(value, -6);
    return size_of(c, from, t) * (from->negative && tensor_kinds[t].is_k ? -fabs(value) : value);
}

/* That of the inputs, but only as good as a delta made of a rounded o: in the dtype of the tensors. */
static void add_delta(struct prop_case *c)
{
    const int64_t count = case_count(c, T_DELTA);
    double *const delta = case_doubles(c, count);
    const struct ref_backward backward = {.delta = delta};
    if (ref_backward(&c->p, &c->a, NULL, &backward, 1) != ATTEST_OK) abort();
    for (int64_t i = 0; i < count; ++i) delta[i] = ref_round(c->p.q.dtype, delta[i]);
    c->values[T_DELTA] = delta;
    case_lay_out(c);
}

/* `more`: sequences more than KV heads. */
static void set_problem(struct prop_case *c, const struct long_case *from, int64_t more, int32_t dtype, bool backward)
{
    struct attest_problem *p = &c->p;
    memset(c, 0, sizeof *c);
    *p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    p->device = ATTEST_REFERENCE;
    p->seqlen_q = from->seqlens[0], p->seqlen_k = from->seqlens[1];
    p->num_heads_kv = from->heads_kv, p->batch = from->heads_kv + more;
    p->num_heads_q = (from->no_group ? 1 : 2) * from->heads_kv;
    p->head_dim = from->head_dims[0], p->head_dim_v = from->head_dims[1];
    p->softmax_scale = from->no_scale ? 0 : 0.125f;
    p->window_left = from->window_left > 0 ? from->window_left : -1;
    p->window_right = from->causal ? 0 : from->window_right > 0 ? from->window_right : -1;
    p->diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    p->q.dtype = p->k.dtype = p->v.dtype = p->o.dtype = dtype;
    p->lse.dtype = ATTEST_FP32;
    if (backward) p->dout.dtype = p->dq.dtype = p->dk.dtype = p->dv.dtype = dtype;
    c->backward = backward;
    c->poison = from->hiding && has(from, FEATURE(MASK)) ? 0x3f : 0xff;
    set_features(c, from);
    case_contiguous(c);
    if (has(from, FEATURE(STRIDED))) pad_rows(p);
    if (from->far_values) spread_rows(&p->v, p->seqlen_k, 8);
    if (from->odd_results) spread_rows(backward ? &p->dq : &p->o, p->seqlen_q, 1);
    if (from->aligned) promise_alignment(p);
    while (!from->no_scale && !has_sms(from, kernels_sim_sms(p))) p->softmax_scale += 0x1p-10f;
}

static void set_values(struct prop_case *c, const struct long_case *from)
{
    static const enum tensor_id inputs[] = {T_Q, T_K, T_V, T_DOUT, T_DLSE, T_MASK, T_BLOCK_MASK, T_BIAS};
    const struct attest_problem *const p = &c->p;
    c->data = (struct family_data){FAMILY_NORMAL, 1, p->q.dtype, p->head_dim, p->softmax_scale};
    for (size_t n = 0; n < sizeof inputs / sizeof *inputs; ++n) {
        if (tensor_dtype(p, inputs[n]) == ATTEST_ABSENT) continue;
        int64_t e[4];
        case_extents(c, inputs[n], e);
        double *const out = c->values[inputs[n]] = case_doubles(c, e[0] * e[1] * e[2] * e[3]);
        for (int64_t i = 0; i < e[0] * e[1] * e[2] * e[3]; ++i) {
            const int64_t at[] = {i / (e[1] * e[2] * e[3]), i / (e[2] * e[3]) % e[1], i / e[3] % e[2], i % e[3]};
            out[i] = value_of(c, from, inputs[n], at);
        }
    }
    case_lay_out(c);
    if (p->delta.dtype != ATTEST_ABSENT) add_delta(c);
    c->features = case_features(c);
}

static void name_failure(struct prop_context *context, const char *name)
{
    char said[sizeof context->message];
    memcpy(said, context->message, sizeof said);
    snprintf(context->message, sizeof context->message, "%s: %.*s", name, (int)(sizeof said - 64), said);
}

/* Wrong kernels are asked what they have a part in alone. */
static bool is_asked(const struct implementation *self, const struct prop_case *c)
{
    const struct kernel_implementation *const kernels = (const struct kernel_implementation *)self;
    struct kernel_run_plan run;
    const enum attest_pass pass = c->backward ? ATTEST_BACKWARD : ATTEST_FORWARD;
    return !kernels->only_replaced || kernels_plan(kernels, &c->p, ATTEST_SIM, pass, &run) == ATTEST_OK;
}

/* A problem behind one that is like it: see set_problem(). */
static int ask_another(const struct implementation *self, const struct long_case *from, int64_t more, int32_t dtype,
                       const struct property *property, struct prop_context *context)
{
    struct prop_case other;
    set_problem(&other, from, more, dtype, property->request.backward);
    set_values(&other, from);
    const int verdict = property->check(&other, self, context);
    case_free(&other);
    return verdict;
}

bool kernels_long_has(const char *name)
{
    for (const struct long_case *from = long_cases; from->name != NULL; ++from)
        if (strcmp(name, from->name) == 0) return true;
    return false;
}

/* Of a case asked in several ways. One that a kernel has answered is not discarded because it has not another. */
static int worse(int verdict, int next) { return next == TRIAL_DISCARDED ? verdict : next; }

/* Many problems are slow to ask, and many keys: only whom they are for is asked all, and of many keys in bf16 alone,
 * since what cuts them has nothing of a format. */
static struct long_case case_for(const struct implementation *self, const struct long_case *from, bool backward,
                                 int32_t dtype)
{
    const struct kernel_implementation *const kernels = (const struct kernel_implementation *)self;
    struct long_case out = *from;
    if (from->many_sums && (!backward || kernels->is_general)) out.heads_kv = 2;
    const bool may_cut = !backward && dtype == ATTEST_BF16 && kernels->generation == SIM_SM_90;
    if (from->seqlens[1] > MANY_KEYS && !may_cut) out.seqlens[1] = 420;
    return out;
}

static int ask_case(const struct implementation *self, const struct long_case *of_all, bool backward, int32_t dtype,
                    struct prop_context *context)
{
    const struct long_case own = case_for(self, of_all, backward, dtype), *const from = &own;
    const struct property *const property =
        property_named(backward ? "backward_within_bound" : "forward_within_bound");
    const struct property *const same_bits =
        property_named(backward ? "strides_are_layout_backward" : "strides_are_layout");
    int verdict = TRIAL_DISCARDED;
    struct prop_case c;
    set_problem(&c, from, 0, dtype, backward);
    if (is_asked(self, &c)) {
        set_values(&c, from);
        verdict = property->check(&c, self, context);
        if (verdict == TRIAL_PASSES && (from->odd_results || (from->aligned && backward))) /* without the promise */
            verdict = worse(verdict, same_bits->check(&c, self, context));
        for (int64_t more = 0; more < 2 && verdict == TRIAL_PASSES && from->elsewhere; ++more)
            verdict = worse(verdict, ask_another(self, from, more, dtype, property, context));
        struct long_case near = *from; /* what a launch keeps of the tensors' strides is not for the next one */
        near.far_values = false;
        if (verdict == TRIAL_PASSES && from->far_values)
            verdict = worse(verdict, ask_another(self, &near, 0, dtype, property, context));
    }
    case_free(&c);
    if (verdict > TRIAL_PASSES) name_failure(context, from->name);
    return verdict;
}

/* Whether case n is asked. */
static bool is_turn(const struct long_case *from, int n, const struct kernels_long_asked *asked)
{
    const bool is_about_range = from->late_key || from->late_rise || from->late_rises || from->far_sinks ||
                                from->far_scores || from->sizes != USUAL_SIZES || from->narrow_bias;
    if (asked->every == 1) return true;
    if (from->seqlens[1] > MANY_KEYS) return asked->dtype == ATTEST_BF16;
    return is_about_range || n % asked->every == asked->from;
}

int kernels_long(const struct implementation *self, bool backward, const struct kernels_long_asked *asked,
                 struct kernels_verdicts *verdicts, struct prop_context *context)
{
    int failure = TRIAL_PASSES;
    for (int n = 0; failure == TRIAL_PASSES && long_cases[n].name != NULL; ++n) {
        const struct long_case *const from = &long_cases[n];
        if (!is_turn(from, n, asked)) continue;
        if (asked->only == NULL || strcmp(asked->only, from->name) == 0)
            failure = kernels_note(verdicts, from->name, ask_case(self, from, backward, asked->dtype, context));
    }
    return failure;
}

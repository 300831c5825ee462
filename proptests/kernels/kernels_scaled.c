/* kernels_scaled.c - heads that the scaled kernels multiply by powers of two: what an infinity must not take from the
 * numbers beside it, values of any size, and what subtracting a row of k makes exact. */
#include <math.h>
#include <string.h>

#include "proptests/kernels/kernels.h"
#include "proptests/properties/outcome.h"
#include "reference/formats.h"

/* One head of packed rows. */
enum { ROWS = 128, DIM = 32, NUMBERS = ROWS * DIM };

/* Tensors; results from R_O on. */
enum { R_Q, R_K, R_V, R_DOUT, R_O, R_DQ, R_DK, R_DV, NUM_ROWS };

struct head {
    _Alignas(16) float rows[NUM_ROWS][NUMBERS]; /* of any format */
    float lse[ROWS];
    struct attest_problem p;
    struct attest_backward_args a;
    struct computed how; /* of the pass that ran last */
};

/* Inputs are N(0, 1), results NaN. */
static void prepare(struct head *h, int32_t dtype, int rows)
{
    const struct attest_tensor packed = {dtype, 16, NUMBERS, DIM, DIM};
    h->p = (struct attest_problem)ATTEST_PROBLEM_INIT, h->a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    h->p.device = ATTEST_REFERENCE;
    h->p.batch = h->p.num_heads_q = h->p.num_heads_kv = 1, h->p.seqlen_q = h->p.seqlen_k = rows;
    h->p.head_dim = h->p.head_dim_v = DIM, h->p.softmax_scale = 0.125f;
    h->p.q = h->p.k = h->p.v = h->p.o = h->p.dout = h->p.dq = h->p.dk = h->p.dv = packed;
    h->p.lse = (struct attest_tensor){ATTEST_FP32, 0, ROWS, 1, ROWS};
    for (int t = 0; t < NUM_ROWS; ++t)
        for (int64_t i = 0; i < NUMBERS; ++i)
            ref_store(dtype, h->rows[t], i, t >= R_O ? NAN : family_normal(family_bits(5, (uint64_t)t, 0, i, 0, 0)));
    h->a.forward.q = h->rows[R_Q], h->a.forward.k = h->rows[R_K], h->a.forward.v = h->rows[R_V];
    h->a.forward.o = h->rows[R_O], h->a.forward.lse = h->lse, h->a.dout = h->rows[R_DOUT];
    h->a.dq = h->rows[R_DQ], h->a.dk = h->rows[R_DK], h->a.dv = h->rows[R_DV];
}

static bool runs(const struct implementation *self, struct head *h)
{
    return self->forward(self, &h->p, &h->a.forward, &h->how) == ATTEST_OK &&
           self->backward(self, &h->p, &h->a, &h->how) == ATTEST_OK;
}

/* An infinity in feature 3 of v or of dout, where else there is a 1: v has no part in dv and in o's other features,
 * dout in none of dv's other features; their bits stay. */
static int infinity_beside_values(const struct implementation *self, int32_t dtype, int rows,
                                  struct prop_context *context)
{
    static struct head with, without;
    for (int t = R_V; t <= R_DOUT; ++t) {
        const int64_t at = 70 * DIM + 3;
        prepare(&with, dtype, rows), prepare(&without, dtype, rows);
        ref_store(dtype, with.rows[t], at, INFINITY), ref_store(dtype, without.rows[t], at, 1);
        if (!runs(self, &with) || !runs(self, &without))
            return fails(context, FAILS_STATUS, "an infinity beside values: %s", attest_last_error());
        for (int n = 0; n < 2 * rows * DIM; ++n) {
            const int i = n / 2, of = n % 2 ? R_DV : R_O;
            const double got = ref_load(dtype, with.rows[of], i), want = ref_load(dtype, without.rows[of], i);
            const bool is_felt = of == (t == R_DOUT ? R_DV : R_O) && i % DIM == 3;
            if (is_felt ? isfinite(got) : got != want)
                return fails(context, FAILS_LAW, "an infinity in %s[70][3]: %s[%d][%d] = %g, without it %g",
                             t == R_V ? "v" : "dout", of == R_O ? "o" : "dv", i / DIM, i % DIM, got, want);
        }
    }
    return TRIAL_PASSES;
}

/* All values 1.5 times a power of two, which is what o is then: but for their weights' roundings, next to nothing of
 * one number of bf16, and what is lost of subnormal ones. */
static int equal_values(const struct implementation *self, int32_t dtype, int rows, struct prop_context *context)
{
    static struct head h;
    static const int exponents[] = {-133, -126, -110, -95, -94, 0, 100, 127};
    for (size_t n = 0; n < sizeof exponents / sizeof *exponents; ++n) {
        const double value = ldexp(exponents[n] == -133 ? 1 : 1.5, exponents[n]);
        prepare(&h, dtype, rows);
        for (int i = 0; i < rows * DIM; ++i) ref_store(dtype, h.rows[R_V], i, value);
        if (self->forward(self, &h.p, &h.a.forward, &h.how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "equal values: %s", attest_last_error());
        if (strcmp(h.how.by, "short_forward_sm90_scaled") != 0) return TRIAL_DISCARDED;
        for (int i = 0; i < rows * DIM; ++i) {
            const double got = ref_load(dtype, h.rows[R_O], i);
            const bool is_lost = exponents[n] == -133 && got == 0; /* subnormal ones may be flushed */
            if (!(got == value || is_lost))
                return fails(context, FAILS_LAW, "values of %g: o[%d][%d] = %g", value, i / DIM, i % DIM, got);
        }
    }
    return TRIAL_PASSES;
}

/* A key of inf in feature 3, of which all rows of q have -1: it weighs nothing, and dq's other features are what they
 * are where the key has but 2^14 there, which weighs nothing, either: both within the bound of that. */
static int infinity_beside_keys(const struct implementation *self, int32_t dtype, int rows,
                                struct prop_context *context)
{
    static struct head with, without;
    static double bound[NUMBERS];
    const struct ref_bound of_dq[REF_NUM_TENSORS] = {[REF_DQ] = {.bound = bound}};
    struct head *const heads[] = {&with, &without};
    for (int n = 0; n < 2; ++n) {
        prepare(heads[n], dtype, rows);
        for (int i = 0; i < rows; ++i) ref_store(dtype, heads[n]->rows[R_Q], i * DIM + 3, -1);
        ref_store(dtype, heads[n]->rows[R_K], 90 * DIM + 3, n == 0 ? INFINITY : 0x1p14);
        if (!runs(self, heads[n]))
            return fails(context, FAILS_STATUS, "an infinity beside keys: %s", attest_last_error());
    }
    const struct ref_shares shares = computed_shares(&without.how);
    if (ref_bound_backward_shares(&without.p, &without.a, &shares, of_dq, 1) != ATTEST_OK)
        return fails(context, FAILS_ORACLE, "an infinity beside keys: no bound");
    for (int i = 0; i < rows * DIM; ++i) {
        const double got = ref_load(dtype, with.rows[R_DQ], i), want = ref_load(dtype, without.rows[R_DQ], i);
        if (i % DIM != 3 && !(fabs(got - want) <= 2 * bound[i]))
            return fails(context, FAILS_LAW, "an infinity in k[90][3]: dq[%d][%d] = %g, without it %g", i / DIM,
                         i % DIM, got, want);
    }
    return TRIAL_PASSES;
}

/* All keys the same: what is subtracted from them is what they are, and dq is exactly 0. */
static int equal_keys(const struct implementation *self, int32_t dtype, int rows, struct prop_context *context)
{
    static struct head h;
    prepare(&h, dtype, rows);
    for (int i = DIM; i < rows * DIM; ++i) ref_store(dtype, h.rows[R_K], i, ref_load(dtype, h.rows[R_K], i - DIM));
    if (!runs(self, &h)) return fails(context, FAILS_STATUS, "equal keys: %s", attest_last_error());
    if (strcmp(h.how.by, "short_backward_sm90_n128_scaled") != 0) return TRIAL_DISCARDED;
    for (int i = 0; i < rows * DIM; ++i)
        if (!(ref_load(dtype, h.rows[R_DQ], i) == 0))
            return fails(context, FAILS_LAW, "equal keys: dq[%d][%d] = %g", i / DIM, i % DIM,
                         ref_load(dtype, h.rows[R_DQ], i));
    return TRIAL_PASSES;
}

/* One of q, k and dout all zero, and a scale of 0 or next to it: of what is exactly 0 nothing may be made by the powers
 * of two of zeros. */
static int zeros(const struct implementation *self, int32_t dtype, int rows, struct prop_context *context)
{
    static struct head h;
    static const int tensors[] = {R_Q, R_K, R_DOUT}, nothing[] = {R_DK, R_DQ, R_DV};
    for (int n = 0; n < 6; ++n) {
        prepare(&h, dtype, rows);
        h.p.softmax_scale = n < 3 ? 0 : 0x1p-110f;
        for (int i = 0; i < rows * DIM; ++i) ref_store(dtype, h.rows[tensors[n % 3]], i, 0);
        if (n % 3 < 2) /* with dout as small, sums that are 0 meet the largest powers */
            for (int i = 0; i < rows * DIM; ++i) ref_store(dtype, h.rows[R_DOUT], i, 0);
        if (!runs(self, &h)) return fails(context, FAILS_STATUS, "zeros: %s", attest_last_error());
        for (int i = 0; i < rows * DIM; ++i)
            if (!(ref_load(dtype, h.rows[nothing[n % 3]], i) == 0))
                return fails(context, FAILS_LAW, "zeros, case %d: a gradient of %g at %d", n,
                             ref_load(dtype, h.rows[nothing[n % 3]], i), i);
    }
    return TRIAL_PASSES;
}

int kernels_scaled(const struct implementation *self, int32_t dtype, struct kernels_verdicts *verdicts,
                   struct prop_context *context)
{
    static const struct {
        const char *name;
        int (*check)(const struct implementation *, int32_t, int, struct prop_context *);
        int rows;
    } corners[] = {{"an infinity beside values", infinity_beside_values, ROWS},
                   {"an infinity beside values, 100 rows", infinity_beside_values, 100},
                   {"equal values", equal_values, ROWS},
                   {"equal values, 100 rows", equal_values, 100},
                   {"an infinity beside keys", infinity_beside_keys, ROWS},
                   {"an infinity beside keys, 100 rows", infinity_beside_keys, 100},
                   {"equal keys", equal_keys, ROWS},
                   {"equal keys, 100 rows", equal_keys, 100},
                   {"zeros", zeros, ROWS},
                   {"zeros, 100 rows", zeros, 100}};
    int failure = TRIAL_PASSES;
    for (size_t n = 0; n < sizeof corners / sizeof *corners && failure == TRIAL_PASSES; ++n)
        failure = kernels_note(verdicts, corners[n].name, corners[n].check(self, dtype, corners[n].rows, context));
    return failure;
}

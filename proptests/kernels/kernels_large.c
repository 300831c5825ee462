/* kernels_large.c - rows whose scores are so large that an lse in fp32 says nothing of their weights: gradients that
 * are known to the bit. */
#include <math.h>

#include "proptests/kernels/kernels.h"
#include "proptests/properties/outcome.h"
#include "reference/formats.h"

enum { MOST_BATCH = 5, MOST_ROWS = 128, MOST_DIM = 256, NUMBERS = MOST_BATCH * MOST_ROWS * MOST_DIM };
enum { R_Q, R_K, R_V, R_DOUT, R_O, R_DQ, R_DK, R_DV, NUM_ROWS };

struct problem {
    _Alignas(16) float rows[NUM_ROWS][NUMBERS]; /* of any format, packed */
    float lse[MOST_BATCH * MOST_ROWS];
    int32_t used_k[MOST_BATCH];
    struct attest_problem p;
    struct attest_backward_args a;
    struct computed how; /* of the pass that ran last */
};

/* Problems that are whole and others, for each kernel, and, as there are few or many, for each of its ways. used_k: a
 * power of two, so that weights of keys that are all alike are one, too. align: of rows, as it is promised. */
static const struct shape {
    int batch, rows, keys, used_k, dim, align;
} shapes[] = {{2, 32, 32, 32, 32, 0}, {3, 20, 30, 16, 40, 0}, {1, 64, 64, 64, 64, 0},
              {1, 40, 60, 32, 24, 0}, {1, 128, 128, 128, 64, 0}, {5, 128, 128, 128, 64, 0},
              {1, 100, 90, 64, 64, 0}, {2, 70, 120, 64, 32, 0}, {1, 128, 128, 128, 32, 0},
              {1, 128, 40, 32, 32, 0}, {1, 64, 64, 64, 256, 0}, {1, 128, 128, 128, 128, 0},
              {5, 128, 128, 128, 32, 0}, {1, 128, 128, 128, 256, 0}, {3, 128, 128, 128, 256, 0},
              {1, 70, 80, 64, 200, 0}, {1, 128, 128, 128, 32, 16}, {1, 128, 128, 128, 64, 16},
              {1, 128, 128, 128, 128, 16}, {1, 128, 128, 128, 256, 16}, {3, 1, 32, 32, 64, 0},
              {2, 1, 128, 128, 128, 0}, {2, 1, 100, 64, 32, 0}};

static void prepare(struct problem *h, const struct shape *s, int32_t dtype, float scale)
{
    const struct attest_tensor of_q = {dtype, s->align, s->rows * s->dim, s->dim, s->dim};
    const struct attest_tensor of_k = {dtype, s->align, s->keys * s->dim, s->dim, s->dim};
    const int64_t most = s->rows > s->keys ? s->rows : s->keys;
    h->p = (struct attest_problem)ATTEST_PROBLEM_INIT, h->a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    h->p.device = ATTEST_REFERENCE;
    h->p.batch = s->batch, h->p.num_heads_q = h->p.num_heads_kv = 1;
    h->p.seqlen_q = s->rows, h->p.seqlen_k = s->keys, h->p.head_dim = h->p.head_dim_v = s->dim;
    h->p.softmax_scale = scale;
    h->p.q = h->p.o = h->p.dout = h->p.dq = of_q, h->p.k = h->p.v = h->p.dk = h->p.dv = of_k;
    h->p.lse = (struct attest_tensor){ATTEST_FP32, 0, s->rows, 1, s->rows};
    h->p.has_seqused_k = s->used_k < s->keys;
    for (int b = 0; b < s->batch; ++b) h->used_k[b] = s->used_k;
    h->a.forward.q = h->rows[R_Q], h->a.forward.k = h->rows[R_K], h->a.forward.v = h->rows[R_V];
    h->a.forward.o = h->rows[R_O], h->a.forward.lse = h->lse, h->a.dout = h->rows[R_DOUT];
    h->a.dq = h->rows[R_DQ], h->a.dk = h->rows[R_DK], h->a.dv = h->rows[R_DV];
    if (h->p.has_seqused_k) h->a.forward.seqused_k = h->used_k;
    for (int t = 0; t < NUM_ROWS; ++t)
        for (int64_t i = 0; i < s->batch * most * s->dim; ++i) ref_store(dtype, h->rows[t], i, t >= R_O ? NAN : 0);
}

/* Number x of a row of a problem's tensor. */
static int64_t place(const struct shape *s, int t, int b, int row, int x)
{
    const int rows = t == R_K || t == R_V || t >= R_DK ? s->keys : s->rows;
    return ((int64_t)b * rows + row) * s->dim + x;
}

static void set(struct problem *h, const struct shape *s, int t, int b, int row, int x, double value)
{
    ref_store(h->p.q.dtype, h->rows[t], place(s, t, b, row, x), value);
}

static double get(const struct problem *h, const struct shape *s, int t, int b, int row, int x)
{
    return ref_load(h->p.q.dtype, h->rows[t], place(s, t, b, row, x));
}

static double dout_of(int b, int row, int x) { return (row * 7 + x + b) % 3 - 1; }

static void set_dout(struct problem *h, const struct shape *s)
{
    for (int b = 0; b < s->batch; ++b)
        for (int i = 0; i < s->rows; ++i)
            for (int x = 0; x < s->dim; ++x) set(h, s, R_DOUT, b, i, x, dout_of(b, i, x));
}

/* Whether it is a problem of the wrong kernel, where one is. only_major: 9 of kernels for Hopper, 0 of all. */
static bool is_asked(const struct implementation *self, const struct attest_problem *p, int only_major)
{
    struct kernel_implementation kernels = *(const struct kernel_implementation *)self;
    struct kernel_run_plan run;
    for (int n = 0; n < KERNEL_MOST_ROWS; ++n)
        if (kernels.launchers.forward[n] != NULL || kernels.launchers.backward[n] != NULL) kernels.only_replaced = true;
    return kernels_plan(&kernels, p, ATTEST_SIM, ATTEST_BACKWARD, &run) == ATTEST_OK &&
           (only_major == 0 || run.plan.backward[0]->only_major == only_major);
}

/* Every key has that score, whatever the other features of k are, where q is 0; v and o are 0. False: it is not asked. */
static bool prepare_equal_scores(struct problem *h, const struct implementation *self, const struct shape *s,
                                 int32_t dtype, double score)
{
    const double q = 0x1p6, k = 0x1p7;
    prepare(h, s, dtype, (float)(score / (q * k)));
    if (!is_asked(self, &h->p, 0)) return false;
    set_dout(h, s);
    for (int b = 0; b < s->batch; ++b) {
        for (int i = 0; i < s->rows; ++i) {
            set(h, s, R_Q, b, i, 1, q);
            for (int x = 0; x < s->dim; ++x) set(h, s, R_O, b, i, x, 0);
            h->lse[b * s->rows + i] = (float)(score + log(s->used_k));
        }
        for (int j = 0; j < s->keys; ++j) set(h, s, R_K, b, j, 1, j < s->used_k ? k : NAN);
    }
    return true;
}

/* All keys the same: each weighs 1 / used_k, however large scores are, and all dp are 0. */
static int equal_keys(const struct implementation *self, const struct shape *s, int32_t dtype, double score,
                      struct prop_context *context)
{
    static struct problem h;
    if (!prepare_equal_scores(&h, self, s, dtype, score)) return TRIAL_DISCARDED;
    if (self->backward(self, &h.p, &h.a, &h.how) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "equal keys of large scores: %s", attest_last_error());
    for (int b = 0; b < s->batch; ++b)
        for (int j = 0; j < s->used_k; ++j)
            for (int x = 0; x < s->dim; ++x) {
                double sum = 0;
                for (int i = 0; i < s->rows; ++i) sum += dout_of(b, i, x);
                const double got = get(&h, s, R_DV, b, j, x), want = sum / s->used_k;
                const double dk = get(&h, s, R_DK, b, j, x);
                if (!(got == want) || !(dk == 0))
                    return fails(context, FAILS_LAW, "%d keys of %d, %d wide, of %g: dv[%d][%d] = %g, not %g; dk %g",
                                 s->used_k, s->keys, s->dim, score, j, x, got, want, dk);
            }
    return TRIAL_PASSES;
}

/* Keys of one score, whose values and another feature, where q is 0, differ between odd and even ones: all weigh
 * 1 / used_k, ds is +- dout / 2 of that, and so is dq there. */
static int two_kinds_of_keys(const struct implementation *self, const struct shape *s, int32_t dtype, double score,
                             struct prop_context *context)
{
    static struct problem h;
    if (!prepare_equal_scores(&h, self, s, dtype, score)) return TRIAL_DISCARDED;
    for (int b = 0; b < s->batch; ++b) {
        for (int i = 0; i < s->rows; ++i) set(&h, s, R_O, b, i, 2, 0.5);
        for (int j = 0; j < s->used_k; ++j)
            set(&h, s, R_K, b, j, 0, j % 2 == 1 ? 1 : -1), set(&h, s, R_V, b, j, 2, j % 2);
    }
    if (self->backward(self, &h.p, &h.a, &h.how) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "two kinds of keys of large scores: %s", attest_last_error());
    for (int b = 0; b < s->batch; ++b)
        for (int i = 0; i < s->rows; ++i) {
            const double got = get(&h, s, R_DQ, b, i, 0), want = (double)h.p.softmax_scale * dout_of(b, i, 2) / 2;
            if (!(got == want))
                return fails(context, FAILS_DQ, "%d keys of %d, %d wide, two kinds of %g: dq[%d][0] = %g, not %g",
                             s->used_k, s->keys, s->dim, score, i, got, want);
        }
    return TRIAL_PASSES;
}

/* Of each row one key outweighs all others, of the first keys or of the last ones in turns: that weighs 1, and ds is 0
 * everywhere. Scores of the others are twice as low where they are negative, else 0. `negative`: softmax_scale is. */
static int one_key(const struct implementation *self, const struct shape *s, int32_t dtype, double score, bool negative,
                   struct prop_context *context)
{
    static struct problem h;
    const double q = 0x1p6, k = negative ? -0x1p7 : 0x1p7, scale = fabs(score) / (0x1p6 * k);
    const int keys[2] = {3, s->used_k - 5}; /* of even rows, and of odd ones */
    prepare(&h, s, dtype, (float)scale);
    if (!is_asked(self, &h.p, 0)) return TRIAL_DISCARDED;
    set_dout(&h, s);
    for (int b = 0; b < s->batch; ++b) {
        for (int i = 0; i < s->rows; ++i) {
            set(&h, s, R_Q, b, i, i % 2, q);
            for (int x = 0; x < s->dim; ++x) set(&h, s, R_O, b, i, x, x < 2 ? keys[i % 2] % 3 - 1 : 0);
            h.lse[b * s->rows + i] = (float)score;
        }
        for (int j = 0; j < s->used_k; ++j)
            for (int x = 0; x < 2; ++x) {
                const bool is_it = j == keys[x];
                set(&h, s, R_K, b, j, x, score > 0 ? (is_it ? k : 0) : is_it ? -k : -2 * k);
                set(&h, s, R_V, b, j, x, j % 3 - 1);
            }
    }
    if (self->backward(self, &h.p, &h.a, &h.how) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "one key of a large score: %s", attest_last_error());
    for (int b = 0; b < s->batch; ++b)
        for (int j = 0; j < s->used_k; ++j)
            for (int x = 0; x < s->dim; ++x) {
                double want = 0;
                for (int i = 0; i < s->rows; ++i)
                    if (j == keys[i % 2]) want += dout_of(b, i, x);
                const double got = get(&h, s, R_DV, b, j, x), dk = get(&h, s, R_DK, b, j, x);
                if (!(got == want) || !(dk == 0))
                    return fails(context, FAILS_LAW, "%d keys of %d, %d wide, one %g: dv[%d][%d] = %g, not %g; dk %g",
                                 s->used_k, s->keys, s->dim, score, j, x, got, want, dk);
            }
    for (int b = 0; b < s->batch; ++b)
        for (int i = 0; i < s->rows; ++i)
            for (int x = 0; x < s->dim; ++x)
                if (!(get(&h, s, R_DQ, b, i, x) == 0))
                    return fails(context, FAILS_LAW, "%d keys of %d, %d wide, one %g: dq[%d][%d] = %g, not 0",
                                 s->used_k, s->keys, s->dim, score, i, x, get(&h, s, R_DQ, b, i, x));
    return TRIAL_PASSES;
}

/* Rows of moderate scores have the same bits, whatever rows are beside them; and weights of large ones those of scores
 * that are all less by the same, exactly: dv of rows that are all large. */
static int same_bits(const struct implementation *self, const struct shape *s, int32_t dtype,
                     struct prop_context *context)
{
    static struct problem with[2];
    for (int of_rows = 0; of_rows < 2; ++of_rows) {
        for (int n = 0; n < 2; ++n) {
            struct problem *const h = &with[n];
            prepare(h, s, dtype, 1);
            if (!is_asked(self, &h->p, 9)) return TRIAL_DISCARDED;
            set_dout(h, s);
            for (int b = 0; b < s->batch; ++b) {
                for (int j = 0; j < s->used_k; ++j) {
                    set(h, s, R_K, b, j, 0, of_rows ? 0x1p10 : n == 0 ? 0x1p6 : 0x1p7);
                    set(h, s, R_K, b, j, 1, (j * 5 % 7 - 3) / 2.0);
                    set(h, s, R_V, b, j, 2, j % 5 - 2);
                }
                for (int i = 0; i < s->rows; ++i) {
                    const double q = of_rows ? (n == 1 && i % 3 == 1 ? 0x1p5 : 0) : n == 0 ? 0x1p5 : 0x1p14;
                    double sum = 0, score = q * (of_rows ? 0x1p10 : n == 0 ? 0x1p6 : 0x1p7);
                    set(h, s, R_Q, b, i, 0, q), set(h, s, R_Q, b, i, 1, 1 + i % 2);
                    for (int j = 0; j < s->used_k; ++j) sum += exp((1 + i % 2) * (j * 5 % 7 - 3) / 2.0);
                    h->lse[b * s->rows + i] = (float)(score + log(sum));
                }
            }
            if (self->backward(self, &h->p, &h->a, &h->how) != ATTEST_OK)
                return fails(context, FAILS_STATUS, "rows beside large ones: %s", attest_last_error());
        }
        for (int b = 0; b < s->batch; ++b)
            for (int i = 0; i < (of_rows ? s->rows : s->used_k); ++i)
                for (int x = 0; x < s->dim; ++x) {
                    if (of_rows && i % 3 == 1) continue;
                    const int t = of_rows ? R_DQ : R_DV;
                    const double one = get(&with[0], s, t, b, i, x), other = get(&with[1], s, t, b, i, x);
                    if (!(one == other))
                        return fails(context, FAILS_LAW, "%d keys of %d, %d wide: %s[%d][%d] = %g, and %g", s->used_k,
                                     s->keys, s->dim, of_rows ? "beside large rows dq" : "of shifted scores dv", i, x,
                                     other, one);
                }
    }
    return TRIAL_PASSES;
}

/* Of each shape two of the sizes: a wrong kernel is asked all of it. */
int kernels_large(const struct implementation *self, int32_t dtype, struct kernels_verdicts *verdicts,
                  struct prop_context *context)
{
    static const double sizes[] = {0x1p11, 0x1p36, 0x1p23, 0x1p66, 0x1p19}; /* 2e3, 7e10, 8e6, 7e19, 5e5 */
    enum { SIZES = sizeof sizes / sizeof *sizes, SHAPES = sizeof shapes / sizeof *shapes };
    int failure = TRIAL_PASSES;
    for (int n = 0; n < 2 * SHAPES && failure == TRIAL_PASSES; ++n) {
        const struct shape *const s = &shapes[n / 2];
        const double size = sizes[n % SIZES], of_equal_keys = n % 4 < 2 ? size : -size;
        const bool negative = n % 2 == 0; /* of the first one_key() */
        if (n % 2 == 0) failure = kernels_note(verdicts, "the same bits", same_bits(self, s, dtype, context));
        if (failure == TRIAL_PASSES)
            failure = kernels_note(verdicts, "equal keys", equal_keys(self, s, dtype, of_equal_keys, context));
        if (failure == TRIAL_PASSES)
            failure = kernels_note(verdicts, "one key", one_key(self, s, dtype, size, negative, context));
        if (failure == TRIAL_PASSES && n % 2 == 0)
            failure = kernels_note(verdicts, "two kinds of keys",
                                   two_kinds_of_keys(self, s, dtype, fmin(size, 0x1p23), context)); /* dq fits fp16 */
        if (failure == TRIAL_PASSES)
            failure = kernels_note(verdicts, "one low key", one_key(self, s, dtype, -size, !negative, context));
    }
    return failure;
}

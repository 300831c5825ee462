/* audit_test.c - attest_audit and attest_audit_bounds: every tensor and feature passes as computed and fails where one
 * number is off, and bad calls are refused. What the judge itself can see, reference/judge_test.c asks. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include <criterion/criterion.h>

#include "lib/testing.h"
#include "reference/formats.h"

/* A problem, its memory, and what the reference device makes of it. */
struct judged {
    struct attest_problem p;
    struct buffers b;
    struct attest_audit_report reports[ATTEST_NUM_AUDITED];
};

static void run(struct judged *j)
{
    struct attest_plan *plan;
    cr_assert_eq(attest_plan_create(&j->p, &plan), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(attest_run_forward(plan, &j->b.args.forward, NULL, 0, NULL), ATTEST_OK, "%s", attest_last_error());
    if (j->p.dq.dtype != ATTEST_ABSENT)
        cr_assert_eq(attest_run_backward(plan, &j->b.args, NULL, 0, NULL), ATTEST_OK, "%s", attest_last_error());
    attest_plan_destroy(plan);
}

/* Everything but a delta, which would have to be the right one. */
static void begin(struct judged *j, struct attest_problem p)
{
    j->p = p;
    fill_buffers(&j->b);
    j->p.delta.dtype = ATTEST_ABSENT;
}

static enum attest_status judge(struct judged *j)
{
    struct attest_audit_options o = ATTEST_AUDIT_OPTIONS_INIT;
    o.recipe = attest_recipe_named("fp32");
    memset(j->reports, 0xff, sizeof j->reports);
    return attest_audit(&j->p, &j->b.args, &o, j->reports);
}

static const char *const names[ATTEST_NUM_AUDITED] = {"o", "lse", "dq", "dk", "dv", "dbias", "dsink"};

static float *result(struct judged *j, int t)
{
    float *const results[] = {j->b.o, j->b.lse, j->b.dq, j->b.dk, j->b.dv, j->b.dbias, j->b.dsink};
    return results[t];
}

static void expect_pass(struct judged *j, unsigned tensors)
{
    cr_assert_eq(judge(j), ATTEST_OK, "%s", attest_last_error());
    for (int t = 0; t < ATTEST_NUM_AUDITED; ++t) {
        const struct attest_audit_report *r = &j->reports[t];
        cr_expect_eq(r->verdict, tensors >> t & 1 ? ATTEST_PASS : ATTEST_NOT_JUDGED, "%s: %s: %s", names[t],
                     attest_verdict_name(r->verdict), r->sentence);
        cr_expect_eq(r->count > 0, tensors >> t & 1, "%s", names[t]);
        cr_expect_str_eq(r->sentence, "");
    }
}

enum { ALL = 0x7f, FORWARD = 0x03 };

/* Row 1, head 2 (of keys head 1) of sequence 1 of each tensor, and of dsink head 2. It is visible to somebody. */
static int64_t one_place(int t)
{
    switch (t) {
    case ATTEST_AUDITED_O: return ((SEQLEN_Q + 1) * HEADS_Q + 2) * HEAD_DIM_V + 1;
    case ATTEST_AUDITED_LSE: return (SEQLEN_Q + 1) * HEADS_Q + 2;
    case ATTEST_AUDITED_DQ: return ((SEQLEN_Q + 1) * HEADS_Q + 2) * HEAD_DIM + 1;
    case ATTEST_AUDITED_DK: return ((SEQLEN_K + 1) * HEADS_KV + 1) * HEAD_DIM + 1;
    case ATTEST_AUDITED_DV: return ((SEQLEN_K + 1) * HEADS_KV + 1) * HEAD_DIM_V + 1;
    case ATTEST_AUDITED_DBIAS: return ((HEADS_Q + 2) * SEQLEN_Q + 1) * SEQLEN_K + 1;
    default: return 2;
    }
}

static void expect_fail_at(struct judged *j, int t)
{
    static const char *const places[] = {"o[1, 1, 2, 1] (b, row, head, x) is", "lse[1, 1, 2, 0]", "dq[1, 1, 2, 1]",
                                         "dk[1, 1, 1, 1]", "dv[1, 1, 1, 1]",
                                         "dbias[1, 1, 2, 1] (b, row, head, column)", "dsink[0, 0, 2, 0]"};
    cr_assert_eq(judge(j), ATTEST_OK, "%s", attest_last_error());
    const struct attest_audit_report *r = &j->reports[t];
    cr_expect_eq(r->verdict, ATTEST_FAIL, "%s: %s", names[t], attest_verdict_name(r->verdict));
    cr_expect(strncmp(r->sentence, places[t], strlen(places[t])) == 0, "%s: '%s'", places[t], r->sentence);
    cr_expect(!(r->share <= 1) && r->got == (double)result(j, t)[one_place(t)] && r->exact != r->got, "%s", names[t]);
}

/* The reference device's results, and the same with one number off by 2^-8 and then NaN. */
static void every_tensor(struct attest_problem p)
{
    struct judged j;
    begin(&j, p);
    run(&j);
    expect_pass(&j, ALL);
    for (int t = 0; t < ATTEST_NUM_AUDITED; ++t) {
        float *const number = &result(&j, t)[one_place(t)], kept = *number;
        *number += 0x1p-8f;
        expect_fail_at(&j, t);
        *number = NAN;
        cr_assert_eq(judge(&j), ATTEST_OK);
        cr_expect(j.reports[t].verdict == ATTEST_FAIL && j.reports[t].nan_count == 1, "NaN in %s", names[t]);
        cr_expect(strstr(j.reports[t].sentence, "NaN") != NULL, "%s", j.reports[t].sentence);
        *number = kept;
    }
}

Test(audit, dense_with_every_feature) { every_tensor(whole_problem()); }

Test(audit, ragged_with_every_feature) { every_tensor(ragged_problem()); }

Test(audit, results_may_be_absent_or_null)
{
    struct judged j;
    begin(&j, whole_problem());
    run(&j);
    for (int t = 0; t < ATTEST_NUM_AUDITED; ++t) {
        struct judged one;
        begin(&one, whole_problem());
        void **const pointers[] = {&one.b.args.forward.o, &one.b.args.forward.lse, &one.b.args.dq, &one.b.args.dk,
                                   &one.b.args.dv, &one.b.args.dbias, (void **)&one.b.args.dsink};
        for (int n = 0; n < ATTEST_NUM_AUDITED; ++n) *pointers[n] = n == t ? result(&j, t) : NULL;
        expect_pass(&one, 1u << t);
    }
    struct judged some;
    begin(&some, whole_problem());
    some.b.args.forward.o = j.b.o;
    some.b.args.dk = j.b.dk;
    some.p.lse.dtype = some.p.dq.dtype = some.p.dv.dtype = some.p.dbias.dtype = ATTEST_ABSENT;
    some.b.args.dsink = NULL;
    expect_pass(&some, 1u << ATTEST_AUDITED_O | 1u << ATTEST_AUDITED_DK);
    some.p.o.dtype = ATTEST_ABSENT;
    expect_pass(&some, 1u << ATTEST_AUDITED_DK);
}

Test(audit, a_forward_pass_alone_of_any_device)
{
    struct judged j;
    begin(&j, whole_problem());
    run(&j);
    j.p.device = ATTEST_CUDA, j.p.device_ordinal = 5;
    j.p.dout.dtype = j.p.dlse.dtype = j.p.dq.dtype = j.p.dk.dtype = j.p.dv.dtype = j.p.dbias.dtype = ATTEST_ABSENT;
    expect_pass(&j, FORWARD);
    j.p.o.dtype = ATTEST_ABSENT;
    expect_pass(&j, 1u << ATTEST_AUDITED_LSE);
}

/* Gradients of an lse and a delta of a larger key set: here twice as many weights, so half of everything. */
Test(audit, an_external_lse_is_an_input)
{
    struct judged j;
    begin(&j, whole_problem());
    j.p.has_sink = 0;
    run(&j);
    j.p.o.dtype = ATTEST_ABSENT, j.p.external_lse = 1;
    j.p.delta = packed(ATTEST_FP32, SEQLEN_Q, HEADS_Q, 1);
    for (int i = 0; i < ROWS_Q * HEADS_Q; ++i) j.b.lse[i] += 0.693147181f, j.b.delta[i] = 0;
    struct attest_plan *plan;
    cr_assert_eq(attest_plan_create(&j.p, &plan), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(attest_run_backward(plan, &j.b.args, NULL, 0, NULL), ATTEST_OK, "%s", attest_last_error());
    attest_plan_destroy(plan);
    j.b.args.forward.o = NULL;
    expect_pass(&j, 0x3c);
    j.b.lse[one_place(ATTEST_AUDITED_LSE)] += 0.5f;
    cr_assert_eq(judge(&j), ATTEST_OK);
    cr_expect_eq(j.reports[ATTEST_AUDITED_LSE].verdict, ATTEST_NOT_JUDGED);
    cr_expect_eq(j.reports[ATTEST_AUDITED_DQ].verdict, ATTEST_FAIL, "gradients are those of the lse that is given");
    j.b.args.forward.lse = NULL;
    cr_assert_eq(judge(&j), ATTEST_INVALID);
    cr_expect_str_eq(attest_last_error(), "lse = NULL, but must point to its elements");
}

/* ---- the statistical verdict ---- */

enum { ROWS = 256, DIM = 64 };

/* o scaled by 1.001 is inside what roundings to bf16 may do to one element, and far outside what they do to all. */
Test(audit, statistics_see_what_bounds_do_not)
{
    static float q[ROWS * DIM], k[ROWS * DIM], v[ROWS * DIM], o[ROWS * DIM];
    static uint16_t q16[ROWS * DIM], k16[ROWS * DIM], v16[ROWS * DIM], o16[ROWS * DIM];
    uint32_t state = 1;
    for (int i = 0; i < ROWS * DIM; ++i) {
        float *const each[] = {&q[i], &k[i], &v[i]};
        uint16_t *const rounded[] = {q16, k16, v16};
        for (int n = 0; n < 3; ++n) {
            double sum = 0; /* of twelve uniform numbers: nearly normal */
            for (int m = 0; m < 12; ++m) sum += (double)((state = state * 1664525 + 1013904223) >> 8) / 0x1p24 - 0.5;
            *each[n] = (float)sum;
            ref_store(ATTEST_BF16, rounded[n], i, sum);
        }
    }
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = ATTEST_REFERENCE;
    p.batch = p.num_heads_q = p.num_heads_kv = 1, p.seqlen_q = p.seqlen_k = ROWS, p.head_dim = p.head_dim_v = DIM;
    p.q = p.k = p.v = packed(ATTEST_BF16, ROWS, 1, DIM);
    p.o = packed(ATTEST_FP32, ROWS, 1, DIM);
    p.softmax_scale = 0.125f;
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    a.forward.q = q16, a.forward.k = k16, a.forward.v = v16, a.forward.o = o;
    struct attest_plan *plan;
    cr_assert_eq(attest_plan_create(&p, &plan), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(attest_run_forward(plan, &a.forward, NULL, 0, NULL), ATTEST_OK);
    attest_plan_destroy(plan);

    p.o.dtype = ATTEST_BF16;
    a.forward.o = o16;
    struct attest_audit_options options = ATTEST_AUDIT_OPTIONS_INIT;
    struct attest_audit_report reports[ATTEST_NUM_AUDITED];
    const double scales[] = {1, 1.001};
    const enum attest_verdict wants[2][2] = {{ATTEST_PASS, ATTEST_PASS}, {ATTEST_PASS, ATTEST_FAIL}};
    for (int s = 0; s < 2; ++s) {
        for (int i = 0; i < ROWS * DIM; ++i) ref_store(ATTEST_BF16, o16, i, scales[s] * (double)o[i]);
        for (options.statistical = 0; options.statistical < 2; ++options.statistical) {
            cr_assert_eq(attest_audit(&p, &a, &options, reports), ATTEST_OK, "%s", attest_last_error());
            cr_expect_eq(reports[0].verdict, wants[s][options.statistical], "%g: %s", scales[s], reports[0].sentence);
            cr_expect_eq(reports[0].shape_ratio > 0, options.statistical);
        }
    }
    cr_expect(strncmp(reports[0].sentence, "errors of o look like o scaled by 1.00", 38) == 0, "%s",
              reports[0].sentence);
}

/* ---- bounds as arrays ---- */

Test(bounds, results_are_within_them)
{
    struct judged j;
    begin(&j, whole_problem());
    run(&j);
    const int64_t sizes[] = {sizeof j.b.o, sizeof j.b.lse, sizeof j.b.dq, sizeof j.b.dk, sizeof j.b.dv,
                             sizeof j.b.dbias, sizeof j.b.dsink};
    struct attest_audit_arrays arrays = ATTEST_AUDIT_ARRAYS_INIT;
    for (int t = 0; t < ATTEST_NUM_AUDITED; ++t) {
        arrays.exact[t] = malloc((size_t)sizes[t] * 2);
        arrays.bound[t] = malloc((size_t)sizes[t] * 2);
        memset(arrays.exact[t], 0xff, (size_t)sizes[t] * 2);
        memset(arrays.bound[t], 0xff, (size_t)sizes[t] * 2);
    }
    cr_assert_eq(attest_audit_bounds(&j.p, &j.b.args, NULL, &arrays), ATTEST_OK, "%s", attest_last_error());
    for (int t = 0; t < ATTEST_NUM_AUDITED; ++t) {
        double largest = 0;
        for (int64_t i = 0; i < sizes[t] / (int64_t)sizeof(float); ++i) {
            const double got = (double)result(&j, t)[i], want = arrays.exact[t][i], bound = arrays.bound[t][i];
            cr_expect(got == want || fabs(got - want) <= bound, "%s[%d]: %g, %g, %g", names[t], (int)i, got, want,
                      bound);
            largest = fmax(largest, bound);
        }
        cr_expect(largest > 0 && largest < 0.1, "%s: %g", names[t], largest);
        free(arrays.exact[t]);
        free(arrays.bound[t]);
    }
}

/* ---- what is refused ---- */

static void expect_refused(enum attest_status got, enum attest_status want, const char *text)
{
    cr_expect_eq(got, want, "%s", text);
    cr_expect(strncmp(attest_last_error(), text, strlen(text)) == 0, "'%s', not '%s'", attest_last_error(), text);
}

#define REFUSED(status, text, change)                                                                 \
    do {                                                                                              \
        struct judged j;                                                                              \
        begin(&j, whole_problem());                                                                   \
        struct attest_audit_options o = ATTEST_AUDIT_OPTIONS_INIT;                                    \
        struct attest_recipe recipe = *attest_recipe_named("flash");                                  \
        o.recipe = &recipe;                                                                           \
        change;                                                                                       \
        memset(j.reports, 0xff, sizeof j.reports);                                                    \
        expect_refused(attest_audit(&j.p, &j.b.args, &o, j.reports), status, text);                   \
        cr_expect_eq(j.reports[0].verdict, -1, "a failed call has written nothing: %s", text);        \
    } while (0)

Test(audit, bad_calls_are_refused)
{
    REFUSED(ATTEST_INVALID, "options.threads = -1, but must be 0 .. 4096", o.threads = -1);
    REFUSED(ATTEST_INVALID, "options.statistical = 2, but must be 0 .. 1", o.statistical = 2);
    REFUSED(ATTEST_INVALID, "options.reserved0 = 1", o.reserved0 = 1);
    REFUSED(ATTEST_INVALID, "options.struct_size = 0", o.struct_size = 0);
    REFUSED(ATTEST_INVALID, "recipe.struct_size = 0", recipe.struct_size = 0);
    REFUSED(ATTEST_INVALID, "recipe.accumulate = 4, but must be 0 .. 3", recipe.accumulate = 4);
    REFUSED(ATTEST_INVALID, "recipe.weights_p = -1", recipe.weights_p = -1);
    REFUSED(ATTEST_INVALID, "recipe.weights_ds = 4, but", recipe.weights_ds = 4);
    REFUSED(ATTEST_INVALID, "recipe.weights_ds = 3, but must be ATTEST_WEIGHTS_SCALED_FP16", recipe.weights_ds = 3);
    REFUSED(ATTEST_INVALID, "recipe.round_dkv_heads = 2", recipe.round_dkv_heads = 2);
    REFUSED(ATTEST_INVALID, "recipe.delta = 4", recipe.delta = 4);
    REFUSED(ATTEST_INVALID, "recipe.tile_k = -1", recipe.tile_k = -1);
    REFUSED(ATTEST_INVALID, "recipe.round_p_ds = 2", recipe.round_p_ds = 2);
    REFUSED(ATTEST_INVALID, "recipe.exp_error = nan, but must be 0 .. 1", recipe.exp_error = NAN);
    REFUSED(ATTEST_INVALID, "recipe.tanh_error = -1", recipe.tanh_error = -1);
    REFUSED(ATTEST_INVALID, "recipe.own_sum = 2", recipe.own_sum = 2);
    REFUSED(ATTEST_INVALID, "recipe.rescale_log2 = 16", recipe.rescale_log2 = 16);
    REFUSED(ATTEST_INVALID, "recipe.ordered_keys = 2", recipe.ordered_keys = 2);
    REFUSED(ATTEST_INVALID, "recipe.round_scaled_ds = 2", recipe.round_scaled_ds = 2);
    REFUSED(ATTEST_INVALID, "args.struct_size = 8", j.b.args.struct_size = 8);
    REFUSED(ATTEST_INVALID, "args.forward.struct_size = 8", j.b.args.forward.struct_size = 8);
    REFUSED(ATTEST_INVALID, "problem.struct_size = 8", j.p.struct_size = 8);
    REFUSED(ATTEST_INVALID, "num_heads_q = -1", j.p.num_heads_q = -1);
    REFUSED(ATTEST_INVALID, "softmax_scale = nan", j.p.softmax_scale = NAN);
    REFUSED(ATTEST_INVALID, "k = NULL, but must point to its elements", j.b.args.forward.k = NULL);
    REFUSED(ATTEST_INVALID, "dout = NULL, but must point to its elements", j.b.args.dout = NULL);
    REFUSED(ATTEST_INVALID, "seqused_k[1] = 77", j.b.seqused_k[1] = 77);
    REFUSED(ATTEST_UNSUPPORTED, "q_scale = ", j.b.args.forward.q_scale = j.b.sink);
    REFUSED(ATTEST_INVALID, "dout.dtype = 0, ATTEST_ABSENT, but must be present: dv cannot be judged without it",
            j.p.dout.dtype = j.p.dq.dtype = j.p.dk.dtype = ATTEST_ABSENT);
    struct judged j;
    begin(&j, whole_problem());
    expect_refused(attest_audit(NULL, &j.b.args, NULL, j.reports), ATTEST_INVALID, "problem = NULL");
    expect_refused(attest_audit(&j.p, NULL, NULL, j.reports), ATTEST_INVALID, "args = NULL");
    expect_refused(attest_audit(&j.p, &j.b.args, NULL, NULL), ATTEST_INVALID, "reports = NULL");
}

Test(bounds, bad_calls_are_refused)
{
    struct judged j;
    begin(&j, whole_problem());
    struct attest_audit_arrays arrays = ATTEST_AUDIT_ARRAYS_INIT;
    double number = 7;
    expect_refused(attest_audit_bounds(&j.p, &j.b.args, NULL, NULL), ATTEST_INVALID, "arrays = NULL");
    arrays.reserved0 = 3;
    expect_refused(attest_audit_bounds(&j.p, &j.b.args, NULL, &arrays), ATTEST_INVALID, "arrays.reserved0 = 3");
    arrays.reserved0 = 0;
    j.p.has_sink = 0;
    arrays.bound[ATTEST_AUDITED_DSINK] = &number;
    expect_refused(attest_audit_bounds(&j.p, &j.b.args, NULL, &arrays), ATTEST_INVALID,
                   "arrays.bound[6] is set, but must be NULL: the problem has no dsink");
    cr_expect_eq(number, 7);
}

/* More than fits: a problem of 2^31 rows whose inputs are all broadcast. */
Test(audit, what_does_not_fit_in_memory_is_said)
{
    static float row[256];
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.batch = INT32_MAX, p.num_heads_q = p.num_heads_kv = 1, p.head_dim = p.head_dim_v = 256;
    p.seqlen_q = p.seqlen_k = INT32_MAX, p.softmax_scale = 1;
    p.q.dtype = p.k.dtype = p.v.dtype = ATTEST_FP32;
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    a.forward.q = a.forward.k = a.forward.v = row;
    struct attest_audit_report reports[ATTEST_NUM_AUDITED];
    cr_expect_neq(attest_audit(&p, &a, NULL, reports), ATTEST_OK);
    cr_expect(strlen(attest_last_error()) > 0);
}

/* ---- names and initialisers ---- */

Test(names, recipes_and_verdicts)
{
    cr_expect_str_eq(attest_recipe_at(0)->name, "fp32");
    cr_expect_str_eq(attest_recipe_at(2)->name, "flash");
    cr_expect_null(attest_recipe_at(-1));
    cr_expect_null(attest_recipe_at(6));
    cr_expect_eq(attest_recipe_named("flash"), attest_recipe_at(2));
    cr_expect_str_eq(attest_recipe_named("forward_sm80")->name, "forward_sm80");
    cr_expect_null(attest_recipe_named("flush"));
    cr_expect_null(attest_recipe_named(NULL));
    for (int v = ATTEST_NOT_JUDGED; v <= ATTEST_VACUOUS; ++v) cr_expect(strlen(attest_verdict_name(v)) >= 4);
    cr_expect_str_eq(attest_verdict_name(9), "an unknown verdict");
}

#define SAME_START(type, INIT)                                                                     \
    do {                                                                                           \
        const struct type want = INIT;                                                             \
        struct {                                                                                   \
            struct type s;                                                                         \
            char tail[8];                                                                          \
        } got;                                                                                     \
        memset(&got, 0x55, sizeof got);                                                            \
        cr_expect_eq(type##_init(&got.s, sizeof got.s), ATTEST_OK);                                \
        cr_expect(memcmp(&got.s, &want, sizeof want) == 0 && got.tail[0] == 0x55, #type);          \
        cr_expect_eq(type##_init(&got.s, sizeof got), ATTEST_OK);                                  \
        cr_expect(got.s.struct_size == sizeof got && got.tail[7] == 0, #type);                     \
        expect_refused(type##_init(&got.s, sizeof got.s - 1), ATTEST_INVALID, "size = ");          \
        expect_refused(type##_init(NULL, sizeof got.s), ATTEST_INVALID, "");                       \
        cr_expect(strstr(attest_last_error(), " = NULL, but must point to a struct") != NULL);     \
    } while (0)

Test(init, functions_do_what_the_macros_do)
{
    SAME_START(attest_problem, ATTEST_PROBLEM_INIT);
    SAME_START(attest_forward_args, ATTEST_FORWARD_ARGS_INIT);
    SAME_START(attest_backward_args, ATTEST_BACKWARD_ARGS_INIT);
    SAME_START(attest_merge_args, ATTEST_MERGE_ARGS_INIT);
    SAME_START(attest_merge_backward_args, ATTEST_MERGE_BACKWARD_ARGS_INIT);
    SAME_START(attest_audit_options, ATTEST_AUDIT_OPTIONS_INIT);
    SAME_START(attest_audit_arrays, ATTEST_AUDIT_ARRAYS_INIT);
}

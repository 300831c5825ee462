/* audit_test.c - the command from end to end: exit status, verdicts, conventions, reports. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/audit_fixture.h"
#include "reference/audit/notes.h"
#include "reference/formats.h"

static const char *const all_names = "o,lse,dq,dk,dv";

static void expect_text(const char *text, const char *part)
{
    cr_expect_not_null(strstr(text, part), "'%s' is not in: %s", part, text);
}

/* Runs on in.st and x.st, and compares the exit status. */
static void expect_exit(int want, const char *options)
{
    char *arguments = sentence("%s --json a.json in.st x.st", options);
    const int got = run_audit(arguments);
    cr_assert_eq(got, want, "exit status %d, expected %d: %s%s", got, want, audit_stdout(), audit_stderr());
    free(arguments);
}

static void expect_verdicts(const char *want)
{
    static const char *const names[] = {"o", "lse", "dq", "dk", "dv"};
    json_t *root = audit_json();
    char got[128] = "";
    for (int i = 0; i < 5; ++i)
        snprintf(got + strlen(got), sizeof got - strlen(got), "%s ", verdict_in(root, 0, names[i]));
    cr_expect_str_eq(got, want, "%s", audit_stdout());
    json_decref(root);
}

static struct fixture written(struct fixture f, const char *names)
{
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", names);
    return f;
}

/* ---- usage ---- */

Test(usage, no_arguments_or_wrong_ones_are_status_2)
{
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    written(f, all_names);
    static const char *const wrong[] = {"", "in.st", "--nonsense in.st x.st", "--recipe=exact in.st x.st",
                                        "--threads=0 in.st x.st", "--threads=many in.st x.st"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        cr_expect_eq(run_audit(wrong[i]), 2, "%s", wrong[i]);
        cr_expect_str_neq(audit_stderr(), "", "%s", wrong[i]);
    }
    cr_expect_eq(run_audit("--help"), 0);
    expect_text(audit_stdout(), "Usage: ");
    cr_expect_eq(run_audit("--version"), 0);
    expect_text(audit_stdout(), "attest audit 0.1.0");
    fixture_free(&f);
}

Test(usage, a_setting_that_makes_no_sense_is_one_sentence_and_status_2)
{
    static const struct {
        const char *option, *sentence;
    } wrong[] = {
        {"--scale=abc", "softmax_scale is 'abc'"},
        {"--scale=inf", "softmax_scale"},
        {"--scale=nan", "softmax_scale"},
        {"--scale=1e39", "softmax_scale"},
        {"--softcap=-1", "softcap"},
        {"--softcap=x", "softcap is 'x'"},
        {"--causal=middle", "causal is 'middle'"},
        {"--window=3", "window is '3'"},
        {"--window=3,4,5", "window is '3,4,5'"},
        {"--window='3;4'", "window is '3;4'"},
        {"--window=1,99999999999999999999", "window is"},
        {"--causal --window=1,2", "causal asks for RIGHT = 0"},
        {"--diag=left", "diag is 'left'"},
        {"--alibi=1,2,3", "alibi is '1,2,3'"},
        {"--alibi=1,b", "alibi is '1,b'"},
        {"--alibi=1,nan", "alibi is '1,nan', which is not auto and not 2 finite numbers"},
        {"--causal=top-left --diag=bottom-right", "causal names another diagonal"},
        {"--causal=bottom-right --diag=0", "causal names another diagonal"},
        {"--layout=sh", "layout is 'sh'"},
        {"--layout=bshd", "do not fit together in layout bshd"},
        {"--family=odd", "family is 'odd'"},
    };
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    written(f, all_names);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        expect_exit(2, wrong[i].option);
        expect_text(audit_stderr(), wrong[i].sentence);
        cr_expect_eq(strchr(audit_stderr(), '\n')[1], '\0', "more than one line: %s", audit_stderr());
    }
    fixture_free(&f);
}

/* ---- verdicts ---- */

Test(verdict, an_honest_answer_passes)
{
    struct fixture f = fixture_new(24, 24, 4, 2);
    f.problem.window_right = 0;
    fixture_make(&f);
    written(f, all_names);
    expect_exit(0, "--causal");
    expect_verdicts("PASS PASS PASS PASS PASS ");
    expect_text(audit_stdout(), "causal (option)");
    expect_text(audit_stdout(), "5 tensors of 1 implementations: 5 PASS");
    cr_expect_str_eq(audit_stderr(), "");
    fixture_free(&f);
}

Test(verdict, one_wrong_number_is_found_where_it_is)
{
    struct fixture f = fixture_new(24, 24, 4, 2);
    fixture_make(&f);
    const int64_t index = (17 * 4 + 3) * 16 + 5;
    ref_store(ATTEST_BF16, f.o, index, ref_load(ATTEST_BF16, f.o, index) + 0.25);
    written(f, all_names);
    expect_exit(1, "");
    expect_verdicts("FAIL PASS PASS PASS PASS ");
    json_t *root = audit_json(), *report = json_of_tensor(root, 0, "o"), *at = json_object_get(report, "index");
    static const json_int_t want[4] = {0, 17, 3, 5};
    for (size_t i = 0; i < 4; ++i) cr_expect_eq(json_integer_value(json_array_get(at, i)), want[i]);
    cr_expect(json_real_value(json_object_get(report, "share")) > 1);
    const double got = json_real_value(json_object_get(report, "got")),
                 oracle = json_real_value(json_object_get(report, "want"));
    cr_expect(fabs(got - oracle - 0.25) < 0.02, "%g %g", got, oracle);
    expect_text(audit_stdout(), "0,17,3,5");
    json_decref(root);
    ((float *)f.lse)[9] += 1; /* explained by no convention, so none is named */
    written(f, all_names);
    expect_exit(1, "");
    expect_verdicts("FAIL FAIL PASS PASS PASS ");
    cr_expect_null(strstr(audit_stdout(), "of 'x' is"), "%s", audit_stdout());
    fixture_free(&f);
}

/* Two keys with scores 0 and 3.5: relative to the first the other's weight is 33.1, and 33 in bf16. A kernel whose
 * maximum lags is off by that, which is more than one whose largest weight is 1 may be; but not by three times that. */
Test(verdict, a_lagging_maximum_is_within_lazy_alone)
{
    struct fixture f = fixture_new(8, 2, 1, 1);
    fixture_make(&f);
    for (int i = 0; i < 16; ++i) {
        for (int r = 0; r < 8; ++r) ref_store(ATTEST_BF16, f.q, r * 16 + i, i == 0);
        for (int j = 0; j < 2; ++j) {
            ref_store(ATTEST_BF16, f.k, j * 16 + i, i == 0 && j == 1 ? 14 : 0);
            ref_store(ATTEST_BF16, f.v, j * 16 + i, j == 1 ? 1 + i / 128.0 : 0);
        }
    }
    fixture_answer(&f);
    const double weight = exp(3.5), rounded = ref_round(ATTEST_BF16, weight);
    for (int times = 0; times < 4; ++times) {
        for (int i = 0; i < 8 * 16; ++i)
            ref_store(ATTEST_BF16, f.o, i, (weight + times * (rounded - weight)) / (weight + 1) * (1 + i % 16 / 128.0));
        written(f, "o,lse");
        if (times < 2) expect_exit(0, "--recipe lazy --family tiny");
        if (times < 2) expect_exit(times, "--recipe hopper --family tiny");
        if (times == 3) expect_exit(1, "--recipe lazy --family tiny");
    }
    fixture_free(&f);
}

/* One number of a tensor is off by that share of its bound, by which the report says why. */
static void expect_remark(struct fixture *f, const char *tensor, void *data, int64_t at, double share,
                          const char *remark)
{
    float *const number = (float *)data + at;
    const float right = *number;
    *number = right + 1;
    written(*f, all_names);
    expect_exit(1, "--causal --family tiny");
    json_t *root = audit_json();
    const double bound = json_real_value(json_object_get(json_of_tensor(root, 0, tensor), "bound"));
    const double want = json_real_value(json_object_get(json_of_tensor(root, 0, tensor), "want"));
    json_decref(root);
    *number = (float)(want + share * bound);
    written(*f, all_names);
    expect_exit(0, "--causal --family tiny");
    if (remark != NULL) expect_text(audit_stdout(), remark);
    else cr_expect_null(strstr(audit_stdout(), "the share "), "%s", audit_stdout());
    *number = right;
}

Test(verdict, a_share_near_1_has_its_row_explained)
{
    struct fixture f = fixture_new(64, 64, 2, 1);
    f.problem.window_right = 0;
    f.problem.q.dtype = ATTEST_FP32;
    fixture_make(&f);
    memset((float *)f.q + 127 * 16, 0, 16 * sizeof(float)); /* row 63 of head 1 weighs all keys alike */
    memset((float *)f.q + 3 * 16, 0, 16 * sizeof(float));   /* and so does row 1 */
    fixture_answer(&f);
    expect_remark(&f, "o", f.o, 3 * 16 + 5, 0.9,
                  "of o is that of a row of 2 keys, with weights as of 2 equal ones: of so few, one rounding "
                  "may be all of the bound");
    expect_remark(&f, "o", f.o, 127 * 16 + 5, 0.9,
                  "of o is that of a row of 64 keys, with weights as of 64 equal ones: roundings of so many "
                  "seldom have one sign");
    expect_remark(&f, "dk", f.dk, 61 * 16 + 2, 0.9, "of dk is that of a key that 6 query rows see");
    expect_remark(&f, "o", f.o, 3 * 16 + 5, 0.5, NULL);
    fixture_free(&f);
}

Test(verdict, a_nan_fails_and_is_counted)
{
    struct fixture f = fixture_new(24, 24, 4, 2);
    fixture_make(&f);
    ref_store(ATTEST_BF16, f.dq, 100, NAN);
    written(f, all_names);
    expect_exit(1, "");
    expect_verdicts("PASS PASS FAIL PASS PASS ");
    json_t *root = audit_json(), *report = json_of_tensor(root, 0, "dq");
    cr_expect_eq(json_integer_value(json_object_get(report, "nan_count")), 1);
    cr_expect_str_eq(json_string_value(json_object_get(report, "share")), "nan");
    json_decref(root);
    fixture_free(&f);
}

Test(verdict, a_nan_that_the_inputs_ask_for_passes)
{
    struct fixture f = fixture_new(8, 8, 1, 1);
    fixture_make(&f);
    ref_store(ATTEST_BF16, f.q, 3, NAN);
    fixture_answer(&f);
    written(f, "o,lse");
    expect_exit(0, "");
    expect_text(audit_stdout(), "q holds 1 NaN and 0 infinities");
    fixture_free(&f);
}

Test(verdict, scores_beyond_fp32_are_overflow)
{
    struct fixture f = fixture_new(8, 8, 1, 1);
    f.problem.q.dtype = ATTEST_FP32;
    fixture_make(&f);
    for (int i = 0; i < 8 * 16; ++i) ((float *)f.q)[i] = ((float *)f.k)[i] = 1e30f;
    fixture_answer(&f);
    written(f, "o,lse");
    expect_exit(1, "");
    json_t *root = audit_json();
    cr_expect_str_eq(verdict_in(root, 0, "o"), "OVERFLOW");
    json_decref(root);
    fixture_free(&f);
}

Test(verdict, results_smaller_than_their_bound_are_vacuous)
{
    struct fixture f = fixture_new(8, 8, 1, 1);
    fixture_make(&f);
    for (int i = 0; i < 8 * 16; ++i) { /* equal weights of values that cancel: o is zero, its bound is not */
        ref_store(ATTEST_BF16, f.q, i, 0);
        ref_store(ATTEST_BF16, f.v, i, i / 16 % 2 == 0 ? 3 : -3);
    }
    fixture_answer(&f);
    written(f, "o,lse");
    expect_exit(1, "");
    json_t *root = audit_json();
    cr_expect_str_eq(verdict_in(root, 0, "o"), "VACUOUS");
    cr_expect_str_eq(verdict_in(root, 0, "lse"), "PASS");
    json_decref(root);
    fixture_free(&f);
}

Test(verdict, gradients_without_dout_are_unsupported)
{
    struct fixture f = fixture_new(8, 8, 1, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "with.st");
    fixture_write_results(&f, "in.st", "o"); /* replaced below by q, k, v alone */
    struct tensor tensors[3];
    const char *const names[] = {"q", "k", "v"};
    void *const data[] = {f.q, f.k, f.v};
    for (int i = 0; i < 3; ++i)
        tensors[i] =
            (struct tensor){.name = names[i], .dtype = ATTEST_BF16, .ndim = 3, .shape = {8, 1, 16}, .data = data[i]};
    fixture_write_tensors("in.st", tensors, 3);
    fixture_write_results(&f, "x.st", all_names);
    expect_exit(2, "--scale 0.25");
    expect_verdicts("PASS PASS UNSUPPORTED UNSUPPORTED UNSUPPORTED ");
    expect_text(audit_stdout(), "dq needs dout");
    fixture_free(&f);
}

Test(verdict, results_of_a_dtype_without_bounds_are_unsupported)
{
    struct fixture f = fixture_new(8, 8, 1, 1);
    fixture_make(&f);
    written(f, all_names);
    static const int32_t zeros[8 * 16];
    const struct tensor tensors[] = {
        {.name = "o", .dtype = ATTEST_BF16, .ndim = 3, .shape = {8, 1, 16}, .data = f.o},
        {.name = "lse", .dtype = ATTEST_BF16, .ndim = 2, .shape = {1, 8}, .data = f.lse},
        {.name = "dq", .dtype = TENSOR_INT32, .ndim = 3, .shape = {8, 1, 16}, .data = zeros},
    };
    fixture_write_tensors("x.st", tensors, 3);
    expect_exit(2, "");
    expect_text(audit_stdout(), "lse is bf16; only fp32 can be judged");
    expect_text(audit_stdout(), "dq is int32; only fp32, fp16 and bf16 can be judged");
    fixture_free(&f);
}

Test(verdict, a_wrong_shape_is_an_error_of_that_implementation_alone)
{
    struct fixture f = fixture_new(8, 8, 2, 1), g = fixture_new(9, 8, 2, 1);
    fixture_make(&f);
    fixture_make(&g);
    written(f, all_names);
    fixture_write_results(&g, "y.st", all_names);
    cr_expect_eq(run_audit("--json a.json in.st x.st other=y.st none=missing.st"), 2);
    json_t *root = audit_json();
    cr_expect_str_eq(verdict_in(root, 0, "dv"), "PASS");
    cr_expect_str_eq(verdict_in(root, 1, "dv"), "ERROR");
    json_decref(root);
    expect_text(audit_stderr(), "o of 'other' has shape [9, 2, 16]; the inputs ask for batch 1, seqlen 8");
    expect_text(audit_stderr(), "missing.st");
    expect_text(audit_stdout(), "ERROR");
    fixture_free(&f);
    fixture_free(&g);
}

Test(verdict, both_recipes_are_seen_on_inputs_of_mean_4)
{
    char *arguments =
        sentence("--json a.json --recipe=fp32 %1$s.safetensors %1$s.fa2.safetensors %1$s.math.safetensors",
                 project_path("reference/audit/demo/mean"));
    cr_expect_eq(run_audit(arguments), 1);
    json_t *root = audit_json();
    cr_expect_str_eq(verdict_in(root, 0, "dq"), "FAIL");
    cr_expect_str_eq(verdict_in(root, 1, "dq"), "PASS");
    cr_expect(json_real_value(json_object_get(json_of_tensor(root, 0, "dq"), "relative_error")) > 0.2);
    json_decref(root);
    free(arguments);
    arguments =
        sentence("--json a.json %1$s.safetensors %1$s.fa2.safetensors", project_path("reference/audit/demo/mean"));
    cr_expect_eq(run_audit(arguments), 0);
    root = audit_json();
    cr_expect_str_eq(verdict_in(root, 0, "dq"), "PASS");
    json_decref(root);
    free(arguments);
}

Test(verdict, recorded_activations_of_three_backends_pass)
{
    char *arguments = sentence("--json a.json %1$s.safetensors %1$s.fa2.safetensors %1$s.memeff.safetensors "
                               "%1$s.cudnn.safetensors", project_path("reference/audit/demo/gpt-layer01"));
    cr_expect_eq(run_audit(arguments), 0, "%s", audit_stdout());
    expect_text(audit_stdout(), "15 tensors of 3 implementations: 15 PASS");
    free(arguments);
}

/* ---- conventions ---- */

static void expect_inferred(const char *options, const char *note, const char *verdicts)
{
    expect_exit(strstr(verdicts, "UNSUPPORTED") != NULL ? 2 : 0, options);
    expect_text(audit_stdout(), note);
    expect_verdicts(verdicts);
    json_t *root = audit_json();
    json_t *implementation = json_array_get(json_object_get(root, "implementations"), 0);
    json_t *convention = json_object_get(implementation, "convention");
    cr_expect(json_is_true(json_object_get(convention, "inferred")));
    expect_text(audit_stdout(), "1 judged by a convention that was inferred");
    expect_text(json_string_value(json_array_get(json_object_get(convention, "notes"), 0)), note);
    json_decref(root);
    char *strict = sentence("--strict --layout=shd %s", options);
    expect_exit(strcmp(options, "--causal") == 0 ? 2 : 1, strict); /* a diagonal that is not stated is refused */
    free(strict);
}

static const char *const all_pass = "PASS PASS PASS PASS PASS ";

Test(convention, lse_in_base_2)
{
    struct fixture f = fixture_new(24, 24, 2, 2);
    fixture_make(&f);
    for (int i = 0; i < 48; ++i) ((float *)f.lse)[i] *= (float)M_LOG2E;
    written(f, all_names);
    expect_inferred("", "lse of 'x' is in base 2: divided by log2(e) before judging", all_pass);
    expect_exit(0, "--junit a.xml");
    cr_expect_eq(run_in_folder("xmllint --xpath '//testsuite/system-out' a.xml | grep -q 'is in base 2'"), 0);
    fixture_free(&f);
}

Test(convention, plus_infinity_of_empty_rows)
{
    struct fixture f = fixture_new(24, 10, 2, 1);
    f.problem.window_right = 0;
    f.problem.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    fixture_make(&f);
    for (int i = 0; i < 48; ++i)
        if (((float *)f.lse)[i] == -INFINITY) ((float *)f.lse)[i] = INFINITY;
    written(f, all_names);
    expect_inferred("--causal=bottom-right", "lse of 'x' is +inf in 28 rows that see no key", all_pass);
    for (int i = 0; i < 48; ++i)
        if (isfinite(((float *)f.lse)[i])) ((float *)f.lse)[i] *= (float)M_LOG2E;
    written(f, all_names);
    expect_inferred("--causal=bottom-right", "lse of 'x' is in base 2", all_pass);
    expect_exit(0, "--causal=bottom-right");
    expect_text(audit_stdout(), "lse of 'x' is +inf in 28 rows that see no key");
    fixture_free(&f);
}

Test(convention, a_diagonal_at_the_other_corner)
{
    struct fixture f = fixture_new(12, 20, 2, 1);
    f.problem.window_right = 0;
    f.problem.diag_kind = ATTEST_DIAG_TOP_LEFT;
    fixture_make(&f);
    written(f, all_names);
    expect_inferred("--causal", "'x' has the mask's diagonal at top-left, not at bottom-right", all_pass);
    expect_text(audit_stderr(), "diag is not given: bottom-right is assumed: a guess, which --strict refuses");
    f.problem.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    fixture_answer(&f);
    written(f, all_names);
    expect_exit(0, "--causal=bottom-right");
    expect_exit(1, "--causal=top-left"); /* a diagonal that was named is not made good by another */
    f.problem.diag_kind = ATTEST_DIAG_GIVEN;
    f.problem.diag = 3;
    fixture_answer(&f);
    written(f, all_names);
    expect_exit(0, "--causal --diag=3");
    expect_exit(1, "--causal --diag=4");
    fixture_free(&f);
}

/* Every form of ALiBi, forward, against the plain loops of the fixture. */
Test(convention, alibi_otherwise)
{
    static const struct {
        enum alibi_form form;
        int64_t seqlen_q;
        const char *options, *note;
    } cases[] = {
        {ALIBI_TOP_LEFT, 12, "--alibi=.5,.25", "t - slope |i - j| instead"},
        {ALIBI_COLUMN, 20, "--causal --alibi=.5,.25", "t + slope j instead"},
        {ALIBI_SIGNED, 20, "--alibi=.5,.25", "t + slope (j - i) instead"},
        {ALIBI_INSIDE, 12, "--causal --alibi=.5,.25 --softcap=2", "tanh((s - slope |i + diag - j|) / softcap) instead"},
        {ALIBI_INSIDE_SIGNED, 20, "--alibi=.5,.25 --softcap=2", "tanh((s + slope (j - i)) / softcap) instead"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        struct fixture f = fixture_new(cases[i].seqlen_q, 20, 2, 1);
        const bool causal = strstr(cases[i].options, "causal") != NULL;
        f.problem.has_alibi = 1;
        f.problem.window_right = causal ? 0 : -1;
        f.problem.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
        f.problem.softcap = strstr(cases[i].options, "softcap") != NULL ? 2 : 0;
        fixture_make(&f);
        written(f, "o,lse");
        expect_exit(0, cases[i].options); /* the contract's own form needs no inference */
        cr_expect_null(strstr(audit_stdout(), "judged so"), "%s", audit_stdout());
        fixture_deviate(&f, cases[i].form, f.problem.seqlen_k - f.problem.seqlen_q);
        written(f, "o,lse");
        expect_exit(0, cases[i].options);
        expect_text(audit_stdout(), cases[i].note);
        char *strict = sentence("--strict --layout=shd --diag=bottom-right %s", cases[i].options);
        expect_exit(1, strict);
        free(strict);
        fixture_free(&f);
    }
}

Test(convention, alibi_otherwise_beside_a_bias)
{
    struct fixture f = fixture_new(6, 6, 2, 1);
    fixture_make(&f);
    float bias[36], both[2 * 36];
    for (int i = 0; i < 36; ++i) bias[i] = i % 5 == 0 ? -INFINITY : (float)(i % 4) - 1;
    for (int i = 0; i < 72; ++i) both[i] = bias[i % 36] + f.slopes[i / 36] * (float)(i % 6); /* slope * j */
    f.problem.bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .head = 36, .seqlen_q = 6, .seqlen_k = 1};
    f.args.forward.bias = both;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", "o,lse,dq");
    const struct tensor tensors[] = {
        {.name = "q", .dtype = ATTEST_BF16, .ndim = 3, .shape = {6, 2, 16}, .data = f.q},
        {.name = "k", .dtype = ATTEST_BF16, .ndim = 3, .shape = {6, 1, 16}, .data = f.k},
        {.name = "v", .dtype = ATTEST_BF16, .ndim = 3, .shape = {6, 1, 16}, .data = f.v},
        {.name = "do", .dtype = ATTEST_BF16, .ndim = 3, .shape = {6, 2, 16}, .data = f.dout},
        {.name = "bias", .dtype = ATTEST_FP32, .ndim = 2, .shape = {6, 6}, .data = bias},
    };
    fixture_write_tensors("in.st", tensors, 5);
    expect_exit(0, "--scale=.25 --alibi=.5,.25");
    expect_text(audit_stdout(), "t + slope j instead");
    fixture_free(&f);
}

Test(convention, alibi_by_columns_leaves_gradients_judged)
{
    struct fixture f = fixture_new(20, 20, 2, 1);
    f.problem.has_alibi = 1;
    f.problem.window_right = 0;
    fixture_make(&f); /* causal rows: the column form moves lse and nothing else */
    fixture_deviate(&f, ALIBI_COLUMN, 0);
    written(f, all_names);
    expect_inferred("--causal --alibi=.5,.25", "t + slope j instead", all_pass);
    fixture_free(&f);
}

Test(convention, a_wrong_number_stays_wrong_beside_an_inferred_convention)
{
    struct fixture f = fixture_new(24, 24, 2, 2);
    fixture_make(&f);
    for (int i = 0; i < 48; ++i) ((float *)f.lse)[i] *= (float)M_LOG2E;
    ref_store(ATTEST_BF16, f.dk, 40, 9);
    written(f, all_names);
    expect_exit(1, "");
    expect_text(audit_stdout(), "lse of 'x' is in base 2");
    expect_verdicts("PASS PASS PASS FAIL PASS ");
    ((float *)f.lse)[7] += 1;
    written(f, all_names);
    expect_exit(1, "");
    expect_verdicts("PASS FAIL PASS FAIL PASS ");
    fixture_free(&f);
}

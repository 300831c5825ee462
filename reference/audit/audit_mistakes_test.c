/* audit_mistakes_test.c - results made by a known mistake stay FAIL, and a sentence names the mistake. */
#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reference/audit/audit_fixture.h"
#include "reference/audit/notes.h"
#include "reference/formats.h"
#include "reference/oracle.h"

static const char *const all_names = "o,lse,dq,dk,dv";

/* The inputs with a mask or a bias, which may be NULL. */
static void write_inputs(const struct fixture *f, int32_t dtype, const char *name, const void *scores)
{
    const struct attest_problem *p = &f->problem;
    const int64_t n = p->seqlen_q, m = p->seqlen_k, h = p->num_heads_q, g = p->num_heads_kv;
    const struct tensor tensors[] = {
        {.name = "q", .dtype = ATTEST_BF16, .ndim = 3, .shape = {n, h, 16}, .data = f->q},
        {.name = "k", .dtype = ATTEST_BF16, .ndim = 3, .shape = {m, g, 16}, .data = f->k},
        {.name = "v", .dtype = ATTEST_BF16, .ndim = 3, .shape = {m, g, 16}, .data = f->v},
        {.name = "dout", .dtype = ATTEST_BF16, .ndim = 3, .shape = {n, h, 16}, .data = f->dout},
        {.name = name, .dtype = dtype, .ndim = 2, .shape = {n, m}, .data = (void *)scores},
    };
    fixture_write_tensors("in.st", tensors, scores != NULL ? 5 : 4);
}

/* Runs on in.st and the results of x: the exit status, and whether a sentence is there (NULL: none of a mistake). */
static void expect(int status, const char *options, const char *text)
{
    char *arguments = sentence("--layout=shd --json a.json %s in.st x=x.st", options);
    const int got = run_audit(arguments);
    cr_assert_eq(got, status, "%s: exit status %d: %s%s", arguments, got, audit_stdout(), audit_stderr());
    if (text != NULL) cr_expect_not_null(strstr(audit_stdout(), text), "'%s' is not in: %s", text, audit_stdout());
    for (const char *const *part = (const char *const[]){" what a ", " gives", "': lse is ", "': o is cut", NULL};
         text == NULL && *part != NULL; ++part)
        cr_expect_null(strstr(audit_stdout(), *part), "%s", audit_stdout());
    free(arguments);
}

static void expect_json_note(const char *text)
{
    json_t *root = audit_json(), *notes;
    notes = json_object_get(json_object_get(json_array_get(json_object_get(root, "implementations"), 0), "convention"),
                            "notes");
    bool found = false;
    for (size_t i = 0; i < json_array_size(notes); ++i)
        found = found || strstr(json_string_value(json_array_get(notes, i)), text) != NULL;
    cr_expect(found, "'%s' is not among the notes", text);
    json_decref(root);
}

/* Another problem whose results are handed over as those of the one that is stated. */
struct of_scores {
    int64_t left, right, diag;
    float cap, scale;
};
static const struct {
    int64_t seqlen_q; /* of 24 keys: 16 rows have their diagonal at 8 from the bottom right */
    const char *options;
    struct of_scores right, wrong;
    const char *sentence;
} problems[] = {
    {24, "--window 5,0 --diag 0 --scale .25", {5, 0, 0, 0, .25f}, {6, 0, 0, 0, .25f},
     "a window of one key more at the left gives: make its left side one smaller"},
    {24, "--window 5,0 --diag 0 --scale .25", {5, 0, 0, 0, .25f}, {4, 0, 0, 0, .25f},
     "a window of one key less at the left gives: make"},
    {24, "--window 5,3 --diag 0 --scale .25", {5, 3, 0, 0, .25f}, {5, 2, 0, 0, .25f},
     "a window of one key less at the right gives: let"},
    {24, "--window=-1,0 --diag 0 --scale .25", {-1, 0, 0, 0, .25f}, {-1, 1, 0, 0, .25f},
     "a window of one key more at the right gives: hide"},
    {24, "--causal=top-left --scale .25", {-1, 0, 0, 0, .25f}, {-1, 0, -1, 0, .25f},
     "a window of one key less at the right gives: let a row see that key"},
    {16, "--causal=top-left --scale .25", {-1, 0, 0, 0, .25f}, {-1, 0, 8, 0, .25f},
     "a mask whose diagonal is at bottom-right gives: begin"},
    {16, "--causal=bottom-right --scale .25", {-1, 0, 8, 0, .25f}, {-1, 0, 0, 0, .25f},
     "a mask whose diagonal is at top-left gives: begin"},
    {24, "--scale .25", {-1, -1, 0, 0, .25f}, {-1, -1, 0, 0, 1},
     "a softmax_scale that is left out gives: multiply"},
    {24, "--scale .5", {-1, -1, 0, 0, .5f}, {-1, -1, 0, 0, .25f}, "softmax_scale squared gives: multiply"},
    {24, "--scale .3", {-1, -1, 0, 0, .3f}, {-1, -1, 0, 0, .25f},
     "a softmax_scale of 1/sqrt(head_dim) gives: multiply"},
    {24, "--scale .25 --softcap 2", {-1, -1, 0, 2, .25f}, {-1, -1, 0, 0, .25f},
     "a softcap that is left out gives: cap"},
};

static void state(struct fixture *f, const struct of_scores *s)
{
    struct attest_problem *p = &f->problem;
    p->window_left = s->left;
    p->window_right = s->right;
    p->diag_kind = ATTEST_DIAG_GIVEN;
    p->diag = s->diag;
    p->softcap = s->cap;
    p->softmax_scale = s->scale;
}

Test(mistakes, another_problem_forward_and_backward_and_backward_alone)
{
    for (size_t i = 0; i < sizeof problems / sizeof *problems; ++i) {
        struct fixture f = fixture_new(problems[i].seqlen_q, 24, 2, 1);
        state(&f, &problems[i].right);
        fixture_make(&f);
        write_inputs(&f, 0, NULL, NULL);
        fixture_write_results(&f, "x.st", all_names);
        expect(0, problems[i].options, NULL);
        fixture_write_results(&f, "forward.st", "o,lse");
        state(&f, &problems[i].wrong);
        fixture_answer(&f);
        fixture_write_results(&f, "x.st", all_names);
        char *text = sentence("'x': o, lse, dq, dk, dv are what %s", problems[i].sentence);
        expect(1, problems[i].options, text);
        expect_json_note(text);
        free(text);
        fixture_write_results(&f, "x.st", "dq,dk,dv");
        text = sentence("'x': dq, dk, dv are what %s", problems[i].sentence);
        char *arguments = sentence("--layout=shd %s in.st x=x.st x=forward.st", problems[i].options);
        cr_expect_eq(run_audit(arguments), 1);
        cr_expect_not_null(strstr(audit_stdout(), text), "'%s' is not in: %s", text, audit_stdout());
        free(text), free(arguments);
        fixture_free(&f);
    }
}

Test(mistakes, a_reversed_mask)
{
    struct fixture f = fixture_new(24, 24, 2, 1);
    uint8_t mask[24 * 24], opposite[24 * 24];
    for (int i = 0; i < 24 * 24; ++i) opposite[i] = (mask[i] = i % 7 % 3 == 0 || i % 24 == 0) == 0;
    f.problem.mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_q = 24, .seqlen_k = 1};
    f.args.forward.mask = opposite;
    fixture_make(&f);
    write_inputs(&f, ATTEST_UINT8, "mask", mask);
    fixture_write_results(&f, "x.st", all_names);
    expect(1, "--scale .25",
           "'x': o, lse, dq, dk, dv are what a mask read the other way round gives: nonzero is visible");
    f.args.forward.mask = mask;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    expect(0, "--scale .25", NULL);
    fixture_free(&f);
}

/* Scores of the fixture by plain loops. */
static double score(const struct fixture *f, int64_t h, int64_t i, int64_t j)
{
    const int64_t heads = f->problem.num_heads_q, kv = f->problem.num_heads_kv;
    double s = 0;
    for (int64_t x = 0; x < 16; ++x)
        s += ref_load(ATTEST_BF16, f->q, (i * heads + h) * 16 + x) *
             ref_load(ATTEST_BF16, f->k, (j * kv + h / (heads / kv)) * 16 + x);
    return s * (double)f->problem.softmax_scale;
}

Test(mistakes, a_cap_after_the_bias)
{
    struct fixture f = fixture_new(24, 24, 2, 1);
    float bias[24 * 24], moved[2 * 24 * 24];
    f.problem.softcap = 2;
    fixture_make(&f);
    for (int i = 0; i < 24 * 24; ++i) bias[i] = (float)(i % 11 - 5) / 2;
    for (int i = 0; i < 2 * 24 * 24; ++i) {
        const double s = score(&f, i / 576, i / 24 % 24, i % 24);
        moved[i] = (float)(2 * tanh((s + bias[i % 576]) / 2) - 2 * tanh(s / 2));
    }
    f.problem.bias =
        (struct attest_score_tensor){.dtype = ATTEST_FP32, .head = 576, .seqlen_q = 24, .seqlen_k = 1};
    f.args.forward.bias = moved;
    fixture_answer(&f);
    write_inputs(&f, ATTEST_FP32, "bias", bias);
    fixture_write_results(&f, "x.st", "o,lse");
    expect(1, "--scale .25 --softcap 2", "'x': o, lse are what a softcap after the bias gives: cap scores first");
    fixture_free(&f);
}

Test(mistakes, tiled_heads)
{
    struct fixture f = fixture_new(24, 24, 4, 2), g = fixture_new(24, 24, 4, 4);
    fixture_make(&f);
    fixture_make(&g);
    memcpy(g.q, f.q, 24 * 4 * 16 * 2);
    memcpy(g.dout, f.dout, 24 * 4 * 16 * 2);
    for (int i = 0; i < 24 * 4; ++i) {
        memcpy((uint16_t *)g.k + i * 16, (uint16_t *)f.k + (i / 4 * 2 + i % 2) * 16, 32);
        memcpy((uint16_t *)g.v + i * 16, (uint16_t *)f.v + (i / 4 * 2 + i % 2) * 16, 32);
    }
    fixture_answer(&g);
    write_inputs(&f, 0, NULL, NULL);
    fixture_write_results(&g, "x.st", "o,lse,dq");
    expect(1, "--scale .25",
           "'x': o, lse, dq are what tiling KV heads instead of repeating them gives: query head h reads");
    fixture_free(&f);
    fixture_free(&g);
}

Test(mistakes, an_lse_of_another_kind)
{
    struct fixture f = fixture_new(24, 24, 2, 1);
    fixture_make(&f);
    write_inputs(&f, 0, NULL, NULL);
    float *lse = f.lse;
    for (int i = 0; i < 48; ++i) lse[i] *= (float)M_LN2;
    fixture_write_results(&f, "x.st", all_names);
    expect(1, "--scale .25", "'x': lse is times ln 2: leave out that factor");
    for (int i = 0; i < 48; ++i) lse[i] = (float)((double)lse[i] / M_LN2 / M_LN2);
    fixture_write_results(&f, "x.st", all_names);
    expect(1, "--scale .25 --strict", "'x': lse is over ln 2, that is in base 2: multiply it by ln 2");
    for (int i = 0; i < 48; ++i) {
        double most = -INFINITY;
        for (int j = 0; j < 24; ++j) most = fmax(most, score(&f, i / 24, i % 24, j));
        lse[i] = (float)((double)lse[i] * M_LN2 - most);
    }
    fixture_write_results(&f, "x.st", all_names);
    expect(1, "--scale .25", "'x': lse is without the row's maximum: add the maximum");
    lse[5] += 1; /* one number is of no kind */
    fixture_write_results(&f, "x.st", all_names);
    expect(1, "--scale .25", NULL);
    fixture_free(&f);
}

Test(mistakes, o_that_is_cut_off)
{
    struct fixture f = fixture_new(24, 24, 2, 1);
    fixture_make(&f);
    double o[24 * 2 * 16];
    ref_forward(&f.problem, &f.args.forward, &(struct ref_forward){.o = o}, 1);
    for (int i = 0; i < 24 * 2 * 16; ++i) {
        const float exact = (float)o[i];
        uint32_t bits;
        memcpy(&bits, &exact, 4);
        ((uint16_t *)f.o)[i] = (uint16_t)(bits >> 16);
    }
    write_inputs(&f, 0, NULL, NULL);
    fixture_write_results(&f, "x.st", "o");
    expect(1, "--scale .25 --recipe fp32", "'x': o is cut off toward zero: round it to nearest");
    for (int i = 0; i < 24 * 2 * 16; i += 2) ((uint16_t *)f.o)[i] += 1; /* half of them away from zero */
    fixture_write_results(&f, "x.st", "o");
    expect(1, "--scale .25 --recipe fp32", NULL);
    fixture_free(&f);
}

/* Larger problems are tried by 32 rows, and the sentence says so. */
Test(mistakes, large_problems_are_tried_by_rows)
{
    struct fixture f = fixture_new(300, 256, 2, 1);
    f.problem.window_left = 40, f.problem.window_right = 0, f.problem.diag_kind = ATTEST_DIAG_TOP_LEFT;
    fixture_make(&f);
    write_inputs(&f, 0, NULL, NULL);
    f.problem.window_left = 41;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    expect(1, "--scale .25 --window 40,0 --diag top-left",
           "what a window of one key more at the left gives (rows ");
    expect(1, "--scale .25 --window 40,0 --diag top-left --sample 300",
           "what a window of one key more at the left gives (rows ");
    fixture_free(&f);
}

Test(mistakes, nothing_explains_a_wrong_number)
{
    struct fixture f = fixture_new(24, 24, 4, 2);
    f.problem.window_right = 0, f.problem.window_left = 9;
    fixture_make(&f);
    ref_store(ATTEST_BF16, f.o, 100, 2);
    ref_store(ATTEST_BF16, f.dk, 100, 9);
    write_inputs(&f, 0, NULL, NULL);
    fixture_write_results(&f, "x.st", all_names);
    expect(1, "--scale .25 --window 9,0 --diag 0", NULL);
    fixture_free(&f);
}

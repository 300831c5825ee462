/* audit_batches_test.c - what else the contract has: ragged batches, lengths in use, pages, blocks, dropout, gradients
 * of biases and sinks, fp8. Each right answer passes, and fails where the thing is left out or changed. */
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

static void expect_text(const char *text, const char *part)
{
    cr_expect_not_null(strstr(text, part), "'%s' is not in: %s", part, text);
}

static void expect_run(int want, const char *arguments)
{
    const int got = run_audit(arguments);
    cr_expect_eq(got, want, "%s: exit status %d, expected %d: %s%s", arguments, got, want, audit_stdout(),
                 audit_stderr());
}

static struct tensor tensor_of(const char *name, int32_t dtype, int ndim, const int64_t *shape, const void *data)
{
    struct tensor t = {.name = name, .dtype = dtype, .ndim = ndim, .data = data};
    memcpy(t.shape, shape, (size_t)ndim * sizeof *shape);
    return t;
}

static struct tensor rows_of(const char *name, int64_t rows, int64_t heads, const void *data)
{
    return tensor_of(name, ATTEST_BF16, 3, (int64_t[]){rows, heads, 16}, data);
}

/* Inputs of 12 x 10 rows, 4 and 2 heads, and up to three tensors more. */
static void write_inputs(const struct fixture *f, const struct tensor *more, int count)
{
    struct tensor all[8] = {rows_of("q", 12, 4, f->q), rows_of("k", 10, 2, f->k), rows_of("v", 10, 2, f->v),
                            rows_of("dout", 12, 4, f->dout)};
    memcpy(all + 4, more, (size_t)count * sizeof *more);
    fixture_write_tensors("in.st", all, 4 + count);
}

static const int32_t cu_q[] = {0, 5, 12}, cu_k[] = {0, 4, 10};

/* Two sequences, of 5 x 4 and 7 x 6 rows. */
static struct fixture ragged(bool causal)
{
    struct fixture f = fixture_new(12, 10, 4, 2);
    fixture_make(&f);
    struct attest_problem *p = &f.problem;
    p->ragged = 1;
    p->batch = 2;
    p->total_q = 12, p->total_k = 10;
    f.args.forward.cu_seqlens_q = cu_q, f.args.forward.cu_seqlens_k = cu_k;
    if (causal) p->window_right = 0, p->diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    fixture_answer(&f);
    return f;
}

Test(ragged, packed_sequences)
{
    struct fixture f = ragged(true);
    int64_t wide_q[3] = {0, 5, 12};
    const struct tensor cu[] = {tensor_of("cu_seqlens_q", TENSOR_INT64, 1, (int64_t[]){3}, wide_q),
                                tensor_of("cu_seqlens_k", TENSOR_INT32, 1, (int64_t[]){3}, cu_k)};
    fixture_write_results(&f, "x.st", all_names);
    write_inputs(&f, cu, 2);
    expect_run(0, "in.st x.st --scale=.25 --causal=bottom-right --html a.html");
    expect_text(audit_stdout(), "ragged: 2 sequences of up to 7 rows (cu_seqlens_q)");
    expect_text(audit_stdout(), "5 PASS");
    float turned[48], padded[2 * 4 * 7] = {0};
    const float *lse = f.lse;
    for (int i = 0; i < 48; ++i) turned[i] = lse[i % 4 * 12 + i / 4];
    for (int h = 0; h < 4; ++h)
        for (int r = 0; r < 12; ++r) padded[((r >= 5) * 4 + h) * 7 + (r >= 5 ? r - 5 : r)] = lse[h * 12 + r];
    const struct tensor orders[] = {tensor_of("lse", ATTEST_FP32, 2, (int64_t[]){12, 4}, turned),
                                    tensor_of("lse", ATTEST_FP32, 3, (int64_t[]){2, 4, 7}, padded)};
    for (int i = 0; i < 2; ++i) {
        fixture_write_tensors("x.st", &orders[i], 1);
        expect_run(0, "in.st x.st --scale=.25 --causal=bottom-right");
    }
    write_inputs(&f, NULL, 0); /* one sequence of all: another problem */
    fixture_write_results(&f, "x.st", all_names);
    expect_run(1, "in.st x.st --scale=.25 --causal=bottom-right");
    fixture_free(&f);
}

Test(ragged, offsets_that_are_none_are_refused)
{
    static const struct {
        int32_t q[3];
        int64_t count_q;
        int32_t k[3];
        int64_t count_k;
        const char *says;
    } cases[] = {
        {{0, 5, 13}, 3, {0, 4, 10}, 3, "fit together in no layout"},
        {{0, 7, 5}, 3, {0, 4, 10}, 3, "cu_seqlens_q[2] is 5, less than the entry before, 7"},
        {{0, 5, 12}, 3, {0, 4, 11}, 3, "cu_seqlens_k[2] is 11; it must be 0 .. 10"},
        {{0, 5, 12}, 3, {0, -1, 10}, 3, "cu_seqlens_k[1] is -1; it must be 0 .. 10"},
        {{0, 5, 12}, 3, {0, 10}, 2, "cu_seqlens_k has 2 entries, cu_seqlens_q 3"},
        {{12}, 1, {10}, 1, "cu_seqlens_q has 1 entries; it must have one more than there are sequences"},
    };
    struct fixture f = ragged(false);
    fixture_write_results(&f, "x.st", all_names);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const struct tensor cu[] = {tensor_of("cu_seqlens_q", TENSOR_INT32, 1, &cases[i].count_q, cases[i].q),
                                    tensor_of("cu_seqlens_k", TENSOR_INT32, 1, &cases[i].count_k, cases[i].k)};
        write_inputs(&f, cu, 2);
        expect_run(2, "in.st x.st --scale=.25");
        expect_text(audit_stderr(), cases[i].says);
    }
    fixture_free(&f);
}

Test(lengths, keys_in_use)
{
    struct fixture f = fixture_new(12, 10, 4, 2);
    fixture_make(&f);
    static const int32_t used[] = {7}, too_many[] = {11};
    f.problem.has_seqused_k = 1;
    f.args.forward.seqused_k = used;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    const struct tensor lengths = tensor_of("cache_seqlens", TENSOR_INT32, 1, (int64_t[]){1}, used);
    write_inputs(&f, &lengths, 1);
    expect_run(0, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "lengths in use by cache_seqlens");
    write_inputs(&f, NULL, 0);
    expect_run(1, "in.st x.st --scale=.25");
    const struct tensor beyond = tensor_of("seqused_k", TENSOR_INT32, 1, (int64_t[]){1}, too_many);
    write_inputs(&f, &beyond, 1);
    expect_run(2, "in.st x.st --scale=.25");
    expect_text(audit_stderr(), "seqused_k[0] is 11; it must be 0 .. 10");
    fixture_free(&f);
}

/* Pages of 4 rows: the first sequence on page 2, the second on pages 0 and 3. */
Test(pages, are_gathered)
{
    struct fixture f = ragged(false);
    uint16_t k[4 * 4 * 32], v[4 * 4 * 32];
    static const int page_of[10] = {2, 2, 2, 2, 0, 0, 0, 0, 3, 3}, row_of[10] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1};
    memset(k, 0xff, sizeof k), memset(v, 0xff, sizeof v); /* NaN where nobody may read */
    for (int j = 0; j < 10; ++j) {
        memcpy(k + (page_of[j] * 4 + row_of[j]) * 32, (const uint16_t *)f.k + j * 32, 64);
        memcpy(v + (page_of[j] * 4 + row_of[j]) * 32, (const uint16_t *)f.v + j * 32, 64);
    }
    int32_t table[] = {2, -1, 0, 3};
    static const int32_t lengths[] = {4, 6};
    const struct tensor in[] = {rows_of("q", 12, 4, f.q),
                                tensor_of("k_cache", ATTEST_BF16, 4, (int64_t[]){4, 4, 2, 16}, k),
                                tensor_of("v_cache", ATTEST_BF16, 4, (int64_t[]){4, 4, 2, 16}, v),
                                tensor_of("cu_seqlens_q", TENSOR_INT32, 1, (int64_t[]){3}, cu_q),
                                tensor_of("block_table", TENSOR_INT32, 2, (int64_t[]){2, 2}, table),
                                tensor_of("cache_seqlens", TENSOR_INT32, 1, (int64_t[]){2}, lengths)};
    fixture_write_results(&f, "x.st", "o,lse");
    fixture_write_tensors("in.st", in, 6);
    expect_run(0, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "k and v are gathered from pages of 4 rows (block_table)");
    table[3] = 1;
    fixture_write_tensors("in.st", in, 6);
    expect_run(1, "in.st x.st --scale=.25");
    table[3] = 4;
    fixture_write_tensors("in.st", in, 6);
    expect_run(2, "in.st x.st --scale=.25");
    expect_text(audit_stderr(), "block_table[1][1] is 4, and that page is in use; it must be 0 .. 3");
    fixture_write_tensors("in.st", in, 5);
    expect_run(2, "in.st x.st --scale=.25");
    expect_text(audit_stderr(), "block_table needs seqused_k");
    fixture_free(&f);
}

Test(scores, block_masks)
{
    struct fixture f = fixture_new(12, 10, 4, 2);
    fixture_make(&f);
    static const uint8_t blocks[] = {1, 0, 0, 1, 1, 0};
    struct attest_problem *p = &f.problem;
    p->block_q = 4, p->block_k = 5;
    p->block_mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_q = 2, .seqlen_k = 1};
    f.args.forward.block_mask = blocks;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    const struct tensor mask = tensor_of("block_mask", ATTEST_UINT8, 2, (int64_t[]){3, 2}, blocks);
    write_inputs(&f, &mask, 1);
    expect_run(0, "in.st x.st --scale=.25 --block=4,5");
    expect_run(2, "in.st x.st --scale=.25");
    expect_text(audit_stderr(), "block_mask needs --block ROWS,COLUMNS");
    expect_run(2, "in.st x.st --scale=.25 --block=5,4");
    expect_run(2, "in.st x.st --scale=.25 --block=5,");
    write_inputs(&f, NULL, 0);
    expect_run(1, "in.st x.st --scale=.25");
    fixture_free(&f);
}

Test(scores, dropout_by_the_counter)
{
    struct fixture f = fixture_new(12, 10, 4, 2);
    fixture_make(&f);
    f.problem.dropout_p = .25f;
    f.problem.dropout_seed = 7, f.problem.dropout_offset = 3;
    fixture_answer(&f);
    write_inputs(&f, NULL, 0);
    fixture_write_results(&f, "x.st", all_names);
    expect_run(0, "in.st x.st --scale=.25 --dropout=.25 --dropout-seed=7 --dropout-offset=3");
    expect_text(audit_stdout(), "dropout 0.25 by attest's counter, seed 7, offset 3 (option)");
    expect_run(1, "in.st x.st --scale=.25 --dropout=.25 --dropout-seed=8 --dropout-offset=3");
    expect_run(2, "in.st x.st --scale=.25 --dropout=.25 --dropout-seed=-1");
    expect_text(audit_stderr(), "dropout_seed is '-1', which is not an integer in 0 .. 2^64 - 1");
    expect_run(2, "in.st x.st --scale=.25 --dropout=1");
    expect_text(audit_stderr(), "dropout_p");
    fixture_free(&f);
}

Test(gradients, of_a_bias_and_of_sinks)
{
    struct fixture f = fixture_new(12, 10, 4, 2);
    fixture_make(&f);
    float bias[4 * 10], dbias[4 * 10], dsink[4];
    static const float sink[4] = {.5f, -1, 2, 0};
    double exact_dbias[4 * 10], exact_dsink[4];
    for (int i = 0; i < 40; ++i) bias[i] = (float)(i % 7) * .25f - 1;
    struct attest_problem *p = &f.problem;
    p->bias = p->dbias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .head = 10, .seqlen_k = 1};
    p->has_sink = 1;
    f.args.forward.bias = bias, f.args.forward.sink = sink;
    fixture_answer(&f);
    cr_assert_eq(ref_backward(p, &f.args, NULL, &(struct ref_backward){.dbias = exact_dbias, .dsink = exact_dsink}, 1),
                 ATTEST_OK);
    for (int i = 0; i < 40; ++i) dbias[i] = (float)exact_dbias[i];
    for (int h = 0; h < 4; ++h) dsink[h] = (float)exact_dsink[h];
    const struct tensor more[] = {tensor_of("attn_bias", ATTEST_FP32, 4, (int64_t[]){1, 4, 1, 10}, bias),
                                  tensor_of("sinks", ATTEST_FP32, 1, (int64_t[]){4}, sink)};
    const struct tensor out[] = {rows_of("o", 12, 4, f.o),
                                 tensor_of("grad_bias", ATTEST_FP32, 4, (int64_t[]){1, 4, 1, 10}, dbias),
                                 tensor_of("dsink", ATTEST_FP32, 1, (int64_t[]){4}, dsink)};
    write_inputs(&f, more, 2);
    fixture_write_tensors("x.st", out, 3);
    expect_run(0, "in.st x.st --scale=.25 --json a.json --html a.html");
    json_t *root = audit_json();
    cr_expect_str_eq(verdict_in(root, 0, "dbias"), "PASS");
    cr_expect_str_eq(verdict_in(root, 0, "dsink"), "PASS");
    json_decref(root);
    dbias[13] += .5f, dsink[2] *= 1.5f;
    fixture_write_tensors("x.st", out, 3);
    expect_run(1, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "3 tensors of 1 implementations: 1 PASS, 2 FAIL");
    write_inputs(&f, more, 1);
    fixture_write_tensors("x.st", out + 2, 1);
    expect_run(2, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "dsink needs a sink, which the inputs do not hold");
    fixture_free(&f);
}

/* k and v of 8 bits with scales, q of 16. */
Test(fp8, keys_and_values_with_scales)
{
    struct fixture f = fixture_new(12, 10, 4, 2);
    fixture_make(&f);
    uint8_t k8[320], v8[320], q8[768];
    for (int i = 0; i < 320; ++i) {
        ref_store(ATTEST_FP8_E4M3, k8, i, ref_load(ATTEST_BF16, f.k, i));
        ref_store(ATTEST_FP8_E4M3, v8, i, ref_load(ATTEST_BF16, f.v, i));
        ref_store(ATTEST_BF16, f.k, i, ref_load(ATTEST_FP8_E4M3, k8, i));
        ref_store(ATTEST_BF16, f.v, i, ref_load(ATTEST_FP8_E4M3, v8, i));
    }
    fixture_answer(&f);
    for (int i = 0; i < 768; ++i) ref_store(ATTEST_BF16, f.o, i, 3 * ref_load(ATTEST_BF16, f.o, i));
    static const float k_scale[] = {.5f}, v_scale[] = {3};
    const struct tensor in[] = {rows_of("q", 12, 4, f.q),
                                tensor_of("k", ATTEST_FP8_E4M3, 3, (int64_t[]){10, 2, 16}, k8),
                                tensor_of("v", ATTEST_FP8_E4M3, 3, (int64_t[]){10, 2, 16}, v8),
                                tensor_of("k_descale", ATTEST_FP32, 1, (int64_t[]){1}, k_scale),
                                tensor_of("v_descale", ATTEST_FP32, 1, (int64_t[]){1}, v_scale)};
    fixture_write_tensors("in.st", in, 5);
    fixture_write_results(&f, "x.st", "o,lse");
    expect_run(0, "in.st x.st --scale=.5");
    expect_text(audit_stdout(), "k is fp8_e4m3 beside a q of bf16: read as that, exactly");
    expect_text(audit_stdout(), "v is to be multiplied by 3, and so is o");
    fixture_write_tensors("in.st", in, 4); /* without the scale of v */
    expect_run(1, "in.st x.st --scale=.5");
    for (int i = 0; i < 768; ++i) {
        ref_store(ATTEST_FP8_E4M3, q8, i, ref_load(ATTEST_BF16, f.q, i));
        ref_store(ATTEST_BF16, f.q, i, ref_load(ATTEST_FP8_E4M3, q8, i));
    }
    fixture_answer(&f);
    const struct tensor all8[] = {tensor_of("q", ATTEST_FP8_E4M3, 3, (int64_t[]){12, 4, 16}, q8), in[1], in[2]};
    fixture_write_tensors("in.st", all8, 3);
    fixture_write_results(&f, "x.st", "o,lse");
    expect_run(0, "in.st x.st --scale=.25");
    fixture_free(&f);
}

/* ---- samples ---- */

static double share_of(json_t *root, const char *tensor)
{
    return json_real_value(json_object_get(json_of_tensor(root, 0, tensor), "share"));
}

/* Two sequences of 80 x 96 rows with everything that has an index: a window, ALiBi, a bias, a mask, dropout. */
Test(sample, rows_have_the_bounds_that_they_have_among_all)
{
    struct fixture f = fixture_new(80, 96, 4, 2);
    struct attest_problem *p = &f.problem;
    p->window_left = 50, p->window_right = 3;
    p->diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    p->has_alibi = 1;
    p->dropout_p = .125f;
    fixture_make(&f);
    float *bias = allocate(80 * 96, sizeof *bias);
    for (int i = 0; i < 80 * 96; ++i) bias[i] = i % 11 == 0 ? -INFINITY : (float)(i % 7) * .25f - 1;
    p->bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_q = 96, .seqlen_k = 1};
    f.args.forward.bias = bias;
    fixture_answer(&f);
    const struct tensor in[] = {rows_of("q", 80, 4, f.q), rows_of("k", 96, 2, f.k), rows_of("v", 96, 2, f.v),
                                rows_of("dout", 80, 4, f.dout),
                                tensor_of("bias", ATTEST_FP32, 2, (int64_t[]){80, 96}, bias),
                                tensor_of("alibi_slopes", ATTEST_FP32, 1, (int64_t[]){4}, f.slopes)};
    static const char *const options =
        "in.st x.st --scale=.25 --window=50,3 --diag=bottom-right --dropout=.125 --family=tiny --json a.json";
    fixture_write_tensors("in.st", in, 6);
    fixture_write_results(&f, "x.st", all_names);
    expect_run(0, options);
    json_t *root = audit_json();
    const double shares[] = {share_of(root, "o"), share_of(root, "lse"), share_of(root, "dq")};
    json_decref(root);
    char *sampled = sentence("%s --sample=80", options);
    expect_run(0, sampled);
    expect_text(audit_stdout(), "a sample of 80 rows of every head, in runs of 32, drawn from seed 1");
    expect_text(audit_stdout(), "dk, dv sum over all rows and are not judged by a sample");
    root = audit_json();
    cr_expect_eq(share_of(root, "o"), shares[0]);
    cr_expect_eq(share_of(root, "lse"), shares[1]);
    cr_expect_eq(share_of(root, "dq"), shares[2]);
    json_decref(root);
    free(sampled);
    ref_store(ATTEST_BF16, f.o, (5 * 4 + 3) * 16 + 2, 9); /* in rows 0 to 31, which not every seed draws */
    fixture_write_results(&f, "x.st", "o");
    bool seen[2] = {false, false};
    for (int seed = 1; seed < 12; ++seed) {
        sampled = sentence("%s --sample=20 --seed=%d", options, seed);
        seen[run_audit(sampled)] = true;
        if (strstr(audit_stdout(), "FAIL") != NULL) expect_text(audit_stdout(), "0,5,3,2");
        free(sampled);
    }
    cr_expect(seen[0] && seen[1]);
    free(bias);
    fixture_free(&f);
}

Test(sample, conventions_are_inferred_from_it_and_ragged_batches_refused)
{
    struct fixture f = fixture_new(12, 10, 4, 2);
    fixture_make(&f);
    for (int i = 0; i < 48; ++i) ((float *)f.lse)[i] *= (float)M_LOG2E;
    write_inputs(&f, NULL, 0);
    fixture_write_results(&f, "x.st", "o,lse");
    expect_run(0, "in.st x.st --scale=.25 --sample=12");
    expect_text(audit_stdout(), "lse of 'x' is in base 2");
    const struct tensor cu = tensor_of("cu_seqlens", TENSOR_INT32, 1, (int64_t[]){2}, (int32_t[]){0, 12});
    const struct tensor cu_keys = tensor_of("cu_seqlens_k", TENSOR_INT32, 1, (int64_t[]){2}, (int32_t[]){0, 10});
    write_inputs(&f, (struct tensor[]){cu, cu_keys}, 2);
    expect_run(2, "in.st x.st --scale=.25 --sample=12");
    expect_text(audit_stdout(), "--sample is for batches that are not ragged");
    expect_run(2, "in.st x.st --scale=.25 --sample=0");
    fixture_free(&f);
}

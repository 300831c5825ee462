/* audit_names_test.c - tensors as they are in use: names, orders of axes, masks, batches; and what is said of them. */
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

static struct tensor bf16_rows(const char *name, int64_t rows, int64_t heads, const void *data)
{
    return tensor_of(name, ATTEST_BF16, 3, (int64_t[]){rows, heads, 16}, data);
}

/* Inputs of a fixture and one tensor more. */
static void write_with(const struct fixture *f, const struct tensor *more)
{
    const struct attest_problem *p = &f->problem;
    const struct tensor tensors[] = {bf16_rows("q", p->seqlen_q, p->num_heads_q, f->q),
                                     bf16_rows("k", p->seqlen_k, p->num_heads_kv, f->k),
                                     bf16_rows("v", p->seqlen_k, p->num_heads_kv, f->v),
                                     bf16_rows("dout", p->seqlen_q, p->num_heads_q, f->dout), *more};
    fixture_write_tensors("in.st", tensors, more->name != NULL ? 5 : 4);
}

static void write_metadata(const struct fixture *f, const char *key, const char *value)
{
    const struct attest_problem *p = &f->problem;
    const struct tensor tensors[] = {bf16_rows("q", p->seqlen_q, p->num_heads_q, f->q),
                                     bf16_rows("k", p->seqlen_k, p->num_heads_kv, f->k),
                                     bf16_rows("v", p->seqlen_k, p->num_heads_kv, f->v),
                                     bf16_rows("dout", p->seqlen_q, p->num_heads_q, f->dout)};
    const struct tensor_metadata metadata[] = {{"scaling", "0.25"}, {key, value}};
    cr_assert_eq(write_safetensors(path_in_folder("in.st"), tensors, 4, metadata, 2), 0);
}

static struct fixture made(int64_t seqlen_q, int64_t seqlen_k, int64_t heads_q, int64_t heads_kv)
{
    struct fixture f = fixture_new(seqlen_q, seqlen_k, heads_q, heads_kv);
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", all_names);
    return f;
}

/* ---- names ---- */

Test(names, those_of_frameworks_are_read)
{
    static const char *const names[][9] = {
        {"query", "key", "value", "grad_output", "attn_output", "logsumexp", "grad_query", "grad_key", "grad_value"},
        {"query_states", "key_states", "value_states", "d_out", "out", "softmax_lse", "q.grad", "k.grad", "v.grad"},
        {"Q", "K", "V", "dO", "output", "stats", "dQ", "dK", "dV"},
    };
    struct fixture f = made(12, 10, 4, 2);
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        const struct tensor t[] = {
            bf16_rows(names[i][0], 12, 4, f.q),  bf16_rows(names[i][1], 10, 2, f.k),
            bf16_rows(names[i][2], 10, 2, f.v),  bf16_rows(names[i][3], 12, 4, f.dout),
            bf16_rows(names[i][4], 12, 4, f.o),  tensor_of(names[i][5], ATTEST_FP32, 2, (int64_t[]){4, 12}, f.lse),
            bf16_rows(names[i][6], 12, 4, f.dq), bf16_rows(names[i][7], 10, 2, f.dk),
            bf16_rows(names[i][8], 10, 2, f.dv)};
        fixture_write_tensors("in.st", t, 4);
        fixture_write_tensors("x.st", t + 4, 5);
        expect_run(0, "in.st x.st --scale=.25");
        expect_text(audit_stdout(), "5 PASS");
        fixture_write_tensors("all.st", t, 9);
        expect_run(0, "all.st --scale=.25"); /* one file of everything */
        expect_text(audit_stdout(), "5 PASS");
    }
    fixture_free(&f);
}

Test(names, inputs_may_be_in_several_files)
{
    struct fixture f = made(12, 10, 4, 2);
    const struct tensor t[] = {bf16_rows("q", 12, 4, f.q), bf16_rows("k", 10, 2, f.k), bf16_rows("v", 10, 2, f.v),
                               bf16_rows("dout", 12, 4, f.dout)};
    fixture_write_tensors("q.st", t, 1);
    fixture_write_tensors("kv.st", t + 1, 2);
    fixture_write_tensors("dout.st", t + 3, 1);
    expect_run(0, "q.st kv.st dout.st x.st --scale=.25");
    expect_text(audit_stdout(), "5 tensors of 1 implementations: 5 PASS");
    expect_run(2, "q.st x.st --scale=.25");
    expect_text(audit_stderr(), "q.st: there is no tensor k");
    fixture_free(&f);
}

Test(names, archives_of_torch_and_numpy)
{
    char *folder = sentence("%s", project_path("reference/audit/fuzz/corpus/zip"));
    char *arguments = sentence("%1$s/inputs.pt torch=%1$s/results.pt", folder);
    expect_run(0, arguments);
    expect_text(audit_stdout(), "5 tensors of 1 implementations: 5 PASS");
    expect_text(audit_stdout(), "softmax_scale 0.353553385 (metadata)");
    free(arguments);
    arguments = sentence("%1$s/inputs.pt torch=%1$s/results.pt --scale=.3", folder);
    expect_run(1, arguments);
    free(arguments);
    arguments = sentence("%1$s/numpy.npz %1$s/compressed.npz", folder);
    expect_run(2, arguments);
    expect_text(audit_stderr(), "numpy.npz: there is no tensor v");
    free(arguments);
    free(folder);
}

Test(names, a_tensor_that_is_not_read_accuses_nobody)
{
    struct fixture f = made(12, 12, 4, 2);
    const struct tensor unknown = tensor_of("rotary_cos", ATTEST_FP32, 1, (int64_t[]){4}, f.lse);
    write_with(&f, &unknown);
    expect_run(0, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "not read: 'rotary_cos'");
    ref_store(ATTEST_BF16, f.o, 5, 9);
    fixture_write_results(&f, "x.st", all_names);
    expect_run(2, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "UNSUPPORTED: o would be FAIL (largest share");
    expect_text(audit_stdout(), "'rotary_cos' was not read and may be why");
    expect_run(1, "in.st x.st --scale=.25 --ignore=other,rotary_cos");
    const struct tensor state = tensor_of("philox_seed", TENSOR_UINT64, 1, (int64_t[]){1}, f.q);
    write_with(&f, &state); /* what says nothing about the problem excuses nothing */
    expect_run(1, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "not read: 'philox_seed'");
    write_metadata(&f, "chunk", "3");
    expect_run(2, "in.st x.st");
    expect_text(audit_stdout(), "metadata 'chunk' was not read");
    fixture_free(&f);
}

Test(names, metadata_of_other_words_are_read)
{
    static const char *const words[][2] = {{"is_causal", "True"}, {"window_size", "(-1, 0)"}, {"causal", "1"}};
    struct fixture f = fixture_new(12, 12, 4, 2);
    f.problem.window_right = 0;
    fixture_make(&f);
    fixture_write_results(&f, "x.st", all_names);
    for (size_t i = 0; i < sizeof words / sizeof *words; ++i) {
        write_metadata(&f, words[i][0], words[i][1]);
        expect_run(0, "in.st x.st");
    }
    write_metadata(&f, "is_causal", "None");
    expect_run(1, "in.st x.st");
    f.problem.window_left = 3;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    write_metadata(&f, "sliding_window", "4");
    expect_run(0, "in.st x.st --causal");
    write_metadata(&f, "scale", "0.3");
    expect_run(2, "in.st x.st");
    expect_text(audit_stderr(), "the metadata say both scaling = '0.25' and scale = '0.3'");
    fixture_free(&f);
}

/* ---- orders of axes ---- */

/* [rows][heads][16] to the order that strides of rows and heads say. */
static uint16_t *reordered(const void *data, int64_t rows, int64_t heads, int64_t row_stride, int64_t head_stride)
{
    uint16_t *out = allocate((size_t)(rows * heads * 16), sizeof *out);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h)
            memcpy(out + r * row_stride + h * head_stride, (const uint16_t *)data + (r * heads + h) * 16, 32);
    return out;
}

Test(axes, each_tensor_may_have_its_own_order)
{
    struct fixture f = made(12, 10, 4, 2);
    uint16_t *q = reordered(f.q, 12, 4, 16, 12 * 16), *k = reordered(f.k, 10, 2, 16, 10 * 16),
             *v = reordered(f.v, 10, 2, 16, 10 * 16);
    const struct tensor in[] = {tensor_of("q", ATTEST_BF16, 4, (int64_t[]){1, 4, 12, 16}, q),
                                tensor_of("k", ATTEST_BF16, 4, (int64_t[]){1, 2, 10, 16}, k),
                                tensor_of("v", ATTEST_BF16, 4, (int64_t[]){1, 2, 10, 16}, v),
                                tensor_of("dout", ATTEST_BF16, 3, (int64_t[]){1, 12, 64}, f.dout)};
    const struct tensor out[] = {tensor_of("o", ATTEST_BF16, 4, (int64_t[]){1, 12, 4, 16}, f.o),
                                 tensor_of("dq", ATTEST_BF16, 4, (int64_t[]){12, 1, 4, 16}, f.dq),
                                 tensor_of("dk", ATTEST_BF16, 2, (int64_t[]){10, 32}, f.dk),
                                 tensor_of("lse", ATTEST_FP32, 4, (int64_t[]){1, 4, 12, 1}, f.lse)};
    fixture_write_tensors("in.st", in, 4);
    fixture_write_tensors("x.st", out, 4);
    expect_run(0, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "layout bhsd (");
    expect_text(audit_stdout(), "'x': o is bshd, the only layout that fits its shape");
    expect_text(audit_stdout(), "'x': dk is s(hd), the only layout that fits its shape");
    expect_run(0, "in.st x.st --scale=.25 --layout=bhsd,o=bshd,dq=sbhd,dout='bs(hd)' --strict");
    expect_run(2, "in.st x.st --scale=.25 --layout=bhsd,o=bhsd");
    expect_text(audit_stderr(), "o of 'x' has shape [1, 12, 4, 16]");
    expect_run(2, "in.st x.st --scale=.25 --layout=bhsd,oo=bhsd");
    expect_text(audit_stderr(), "layout is 'bhsd,oo=bhsd', which is none of");
    free(q), free(k), free(v);
    fixture_free(&f);
}

Test(axes, heads_in_one_axis_with_head_dim)
{
    struct fixture f = made(12, 10, 4, 2);
    const struct tensor in[] = {tensor_of("q", ATTEST_BF16, 3, (int64_t[]){1, 12, 64}, f.q),
                                tensor_of("k", ATTEST_BF16, 3, (int64_t[]){1, 10, 32}, f.k),
                                tensor_of("v", ATTEST_BF16, 3, (int64_t[]){1, 10, 32}, f.v),
                                tensor_of("dout", ATTEST_BF16, 3, (int64_t[]){1, 12, 64}, f.dout)};
    fixture_write_tensors("in.st", in, 4);
    expect_run(0, "in.st x.st --scale=.25 --heads=4 --heads-kv=2");
    expect_text(audit_stdout(), "layout bs(hd) (the only layout that fits the shapes)");
    expect_run(2, "in.st x.st --scale=.25 --heads=x");
    expect_text(audit_stderr(), "num_heads is 'x', which is not an integer above 0");
    fixture_free(&f);
}

Test(axes, packed_qkv_and_kv_are_parted)
{
    struct fixture f = made(12, 12, 2, 2);
    uint16_t qkv[12 * 3 * 32], kv[12 * 2 * 32], dqkv[12 * 3 * 32];
    const void *const parts[] = {f.q, f.k, f.v}, *const gradients[] = {f.dq, f.dk, f.dv};
    for (int r = 0; r < 12; ++r) {
        for (int i = 0; i < 3; ++i) {
            memcpy(qkv + (r * 3 + i) * 32, (const uint16_t *)parts[i] + r * 32, 64);
            memcpy(dqkv + (r * 3 + i) * 32, (const uint16_t *)gradients[i] + r * 32, 64);
            if (i > 0) memcpy(kv + (r * 2 + i - 1) * 32, (const uint16_t *)parts[i] + r * 32, 64);
        }
    }
    const struct tensor dout = bf16_rows("dout", 12, 2, f.dout);
    const struct tensor with_qkv[] = {tensor_of("qkv", ATTEST_BF16, 4, (int64_t[]){12, 3, 2, 16}, qkv), dout};
    const struct tensor with_kv[] = {bf16_rows("q", 12, 2, f.q),
                                     tensor_of("kv", ATTEST_BF16, 4, (int64_t[]){12, 2, 2, 16}, kv), dout};
    const struct tensor flat[] = {tensor_of("qkv", ATTEST_BF16, 3, (int64_t[]){1, 12, 96}, qkv), dout};
    const struct tensor out[] = {bf16_rows("o", 12, 2, f.o),
                                 tensor_of("dqkv", ATTEST_BF16, 4, (int64_t[]){12, 3, 2, 16}, dqkv)};
    fixture_write_tensors("x.st", out, 2);
    fixture_write_tensors("in.st", with_qkv, 2);
    expect_run(0, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "4 tensors of 1 implementations: 4 PASS");
    fixture_write_tensors("in.st", flat, 2);
    expect_run(0, "in.st x.st --scale=.25 --heads=2");
    fixture_write_tensors("in.st", with_kv, 3);
    expect_run(0, "in.st x.st --scale=.25"); /* two heads: 2 of k and v, or of heads? */
    expect_text(audit_stdout(), "kv is read as packed along axis 1");
    expect_run(2, "in.st x.st --scale=.25 --layout=shd --strict");
    expect_text(audit_stderr(), "kv is read as packed along axis 1: a guess, which --strict refuses");
    fixture_free(&f);
}

Test(axes, lse_in_every_order)
{
    struct fixture f = made(12, 10, 4, 2);
    float padded[4 * 32], turned[48];
    for (int i = 0; i < 4 * 32; ++i) padded[i] = i % 32 < 12 ? ((float *)f.lse)[i / 32 * 12 + i % 32] : INFINITY;
    for (int i = 0; i < 48; ++i) turned[i] = ((float *)f.lse)[i % 4 * 12 + i / 4];
    const struct tensor all[] = {tensor_of("lse", ATTEST_FP32, 3, (int64_t[]){1, 4, 12}, f.lse),
                                 tensor_of("lse", ATTEST_FP32, 4, (int64_t[]){1, 4, 12, 1}, f.lse),
                                 tensor_of("lse", ATTEST_FP32, 3, (int64_t[]){1, 12, 4}, turned),
                                 tensor_of("lse", ATTEST_FP32, 4, (int64_t[]){1, 12, 4, 1}, turned),
                                 tensor_of("lse", ATTEST_FP32, 2, (int64_t[]){12, 4}, turned),
                                 tensor_of("lse", ATTEST_FP32, 3, (int64_t[]){1, 4, 32}, padded)};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) {
        fixture_write_tensors("x.st", &all[i], 1);
        expect_run(0, "in.st x.st --layout=shd");
    }
    const struct tensor wrong = tensor_of("lse", ATTEST_FP32, 2, (int64_t[]){4, 13}, padded);
    fixture_write_tensors("x.st", &wrong, 1);
    expect_run(2, "in.st x.st --layout=shd");
    fixture_free(&f);
}

/* ---- masks ---- */

/* Every second key but the first is hidden. */
Test(masks, of_every_type_and_shape)
{
    struct fixture f = fixture_new(8, 6, 2, 1);
    fixture_make(&f);
    uint8_t visible[8 * 6];
    int64_t integers[6];
    float zero_one[6], infinite[8 * 6], large[8 * 6];
    uint16_t least[6];
    for (int i = 0; i < 48; ++i) {
        visible[i] = i % 6 == 0 || i % 2 == 1;
        infinite[i] = visible[i] ? 0 : -INFINITY;
        large[i] = visible[i] ? .5f : -1e9f;
    }
    for (int j = 0; j < 6; ++j) {
        integers[j] = zero_one[j] = visible[j];
        least[j] = visible[j] ? 0 : 0xff7f; /* the least bf16 */
    }
    f.problem.mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_q = 6, .seqlen_k = 1};
    f.args.forward.mask = visible;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    const struct {
        struct tensor tensor;
        const char *note;
    } cases[] = {
        {tensor_of("attn_mask", ATTEST_UINT8, 2, (int64_t[]){8, 6}, visible), ""},
        {tensor_of("attention_mask", TENSOR_INT64, 2, (int64_t[]){1, 6}, integers),
         "attention_mask is int64: nonzero is visible"},
        {tensor_of("attention_mask", TENSOR_INT64, 4, (int64_t[]){1, 1, 1, 6}, integers), "nonzero is visible"},
        {tensor_of("attention_mask", ATTEST_FP32, 2, (int64_t[]){1, 6}, zero_one), "read as 1 = visible"},
        {tensor_of("attn_mask", ATTEST_FP32, 3, (int64_t[]){1, 8, 6}, infinite),
         "attn_mask is fp32: it is added to scores"},
        {tensor_of("attention_mask", ATTEST_BF16, 4, (int64_t[]){1, 1, 1, 6}, least),
         "down to -3.38953e+38, that leave them a weight of exactly 0"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        write_with(&f, &cases[i].tensor);
        expect_run(0, "in.st x.st --scale=.25");
        expect_text(audit_stdout(), cases[i].note);
    }
    uint8_t hides[6];
    for (int j = 0; j < 6; ++j) hides[j] = !visible[j];
    const struct tensor hidden = tensor_of("key_padding_mask", ATTEST_UINT8, 2, (int64_t[]){1, 6}, hides);
    write_with(&f, &hidden);
    expect_run(0, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "key_padding_mask: nonzero hides a key");
    f.problem.bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_q = 6, .seqlen_k = 1};
    f.args.forward.bias = large; /* .5 beside -1e9: lse moves */
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    const struct tensor bias = tensor_of("attn_bias", ATTEST_FP32, 2, (int64_t[]){8, 6}, large);
    write_with(&f, &bias);
    expect_run(0, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "attn_bias: 16 keys of rows have biases, down to -1e+09");
    fixture_free(&f);
}

Test(masks, sinks_and_slopes_of_16_bits_are_read_exactly)
{
    struct fixture f = fixture_new(8, 6, 2, 1);
    fixture_make(&f);
    float sink[2] = {.5f, -1};
    uint16_t sink16[2], slopes16[2];
    for (int h = 0; h < 2; ++h) {
        ref_store(ATTEST_BF16, sink16, h, sink[h]);
        ref_store(ATTEST_FP16, slopes16, h, f.slopes[h]);
    }
    f.problem.has_sink = 1;
    f.args.forward.sink = sink;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    const struct tensor sinks = tensor_of("s_aux", ATTEST_BF16, 1, (int64_t[]){2}, sink16);
    write_with(&f, &sinks);
    expect_run(0, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "s_aux is bf16: read as fp32, exactly");
    f.problem.has_sink = 0;
    f.problem.has_alibi = 1;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    const struct tensor slopes = tensor_of("alibi_slopes", ATTEST_FP16, 2, (int64_t[]){1, 2}, slopes16);
    write_with(&f, &slopes);
    expect_run(0, "in.st x.st --scale=.25");
    fixture_free(&f);
}

/* ---- verdicts ---- */

Test(verdicts, a_pass_names_the_strictest_recipe)
{
    struct fixture f = made(12, 12, 4, 2);
    expect_run(0, "in.st x.st --json a.json");
    expect_text(audit_stdout(), "PASS fp32\n");
    char *arguments =
        sentence("--json a.json %1$s.safetensors %1$s.fa2.safetensors", project_path("reference/audit/demo/mean"));
    expect_run(0, arguments);
    expect_text(audit_stdout(), "PASS flash, not fp32\n");
    free(arguments);
    fixture_free(&f);
}

Test(verdicts, overflow_and_vacuous_name_the_input)
{
    struct fixture f = fixture_new(8, 8, 1, 1);
    f.problem.q.dtype = ATTEST_FP32;
    fixture_make(&f);
    for (int i = 0; i < 8 * 16; ++i) ((float *)f.k)[i] = 1e36f;
    fixture_answer(&f);
    const struct tensor in[] = {tensor_of("q", ATTEST_FP32, 3, (int64_t[]){8, 1, 16}, f.q),
                                tensor_of("k", ATTEST_FP32, 3, (int64_t[]){8, 1, 16}, f.k),
                                tensor_of("v", ATTEST_FP32, 3, (int64_t[]){8, 1, 16}, f.v)};
    fixture_write_tensors("in.st", in, 3);
    fixture_write_results(&f, "x.st", "o,lse");
    expect_run(1, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "o is OVERFLOW: k is to blame: its numbers reach 1e+36");
    fixture_free(&f);
    f = fixture_new(8, 8, 1, 1);
    fixture_make(&f);
    float bias[64];
    for (int i = 0; i < 64; ++i) bias[i] = -1e9f; /* on all keys: nothing is hidden, and fp32 keeps nothing of scores */
    const struct tensor large = tensor_of("bias", ATTEST_FP32, 2, (int64_t[]){8, 8}, bias);
    write_with(&f, &large);
    f.problem.bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_q = 8, .seqlen_k = 1};
    f.args.forward.bias = bias;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", "o");
    expect_run(1, "in.st x.st --scale=.25");
    expect_text(audit_stdout(), "bias is to blame: numbers that rows see reach 1e+09 in size");
    fixture_free(&f);
    f = fixture_new(8, 8, 1, 1);
    fixture_make(&f);
    for (int i = 0; i < 8 * 16; ++i) { /* equal weights of values that cancel */
        ref_store(ATTEST_BF16, f.q, i, 0);
        ref_store(ATTEST_BF16, f.v, i, i / 16 % 2 == 0 ? 3 : -3);
    }
    fixture_answer(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", "o");
    expect_run(1, "in.st x.st");
    expect_text(audit_stdout(), "o is VACUOUS: v is to blame: its numbers reach 3");
    fixture_free(&f);
}

/* o and lse as stated, gradients of the other diagonal: they are what is wrong. */
Test(verdicts, a_guess_never_outweighs_the_forward_pass)
{
    struct fixture f = fixture_new(12, 20, 2, 1), g;
    f.problem.window_right = 0;
    f.problem.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    g = f;
    g.problem.diag_kind = ATTEST_DIAG_TOP_LEFT;
    fixture_make(&f);
    fixture_make(&g);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "o.st", "o,lse");
    fixture_write_results(&g, "d.st", "dq,dk,dv");
    expect_run(1, "in.st x=o.st x=d.st --causal --json a.json");
    json_t *root = audit_json();
    cr_expect_str_eq(verdict_in(root, 0, "o"), "PASS");
    cr_expect_str_eq(verdict_in(root, 0, "lse"), "PASS");
    cr_expect_str_eq(verdict_in(root, 0, "dk"), "FAIL");
    json_decref(root);
    fixture_free(&f);
    fixture_free(&g);
}

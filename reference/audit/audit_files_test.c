/* audit_files_test.c - what the command reads and writes: layouts, formats, malformed files, the three reports. */
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

/* ---- malformed input ---- */

Test(malformed, inputs_are_refused_in_one_sentence)
{
    static const struct {
        int64_t q[5], k[5], v[5];
        int ndim;
        int32_t dtype;
        const char *sentence;
    } cases[] = {
        {{8, 2}, {8, 2}, {8, 2}, 2, ATTEST_BF16, "fit together in no layout of s(hd); --heads says how many"},
        {{1, 1, 8, 2, 16}, {1, 1, 8, 2, 16}, {1, 1, 8, 2, 16}, 5, ATTEST_BF16, "q has shape [1, 1, 8, 2, 16]"},
        {{9, 3, 16}, {8, 2, 16}, {8, 2, 16}, 3, ATTEST_BF16, "fit together in no layout of shd, hsd"},
        {{8, 2, 16}, {8, 2, 8}, {8, 2, 16}, 3, ATTEST_BF16, "fit together in no layout"},
        {{8, 2, 16}, {8, 2, 16}, {9, 2, 16}, 3, ATTEST_BF16, "fit together in no layout"},
        {{2, 8, 2, 16}, {1, 8, 2, 16}, {1, 8, 2, 16}, 4, ATTEST_BF16, "fit together in no layout of bshd, bhsd"},
        {{0, 0, 16}, {0, 0, 16}, {0, 0, 16}, 3, ATTEST_BF16, "fit together in no layout"},
        {{8, 2, 0}, {8, 2, 0}, {8, 2, 16}, 3, ATTEST_BF16, "head_dim"},
        {{8, 2, 257}, {8, 2, 257}, {8, 2, 16}, 3, ATTEST_BF16, "head_dim"},
        {{8, 2, 16}, {8, 2, 16}, {8, 2, 16}, 3, TENSOR_FP64, "q is fp64"},
        {{8, 2, 16}, {8, 2, 16}, {8, 2, 16}, 3, ATTEST_UINT8, "q is uint8"},
    };
    static const double zeros[1 << 16];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const struct tensor tensors[] = {tensor_of("q", cases[i].dtype, cases[i].ndim, cases[i].q, zeros),
                                         tensor_of("k", cases[i].dtype, cases[i].ndim, cases[i].k, zeros),
                                         tensor_of("v", cases[i].dtype, cases[i].ndim, cases[i].v, zeros)};
        fixture_write_tensors("in.st", tensors, 3);
        expect_run(2, "in.st in.st");
        expect_text(audit_stderr(), cases[i].sentence);
        cr_expect_eq(strchr(audit_stderr(), '\n')[1], '\0', "more than one line: %s", audit_stderr());
    }
}

Test(malformed, extra_inputs_of_wrong_shape_are_refused)
{
    static const struct {
        const char *name;
        int64_t shape[3];
        int ndim;
        int32_t dtype;
    } cases[] = {
        {"dout", {8, 2, 15}, 3, ATTEST_BF16},
        {"do", {7, 2, 16}, 3, ATTEST_BF16},
        {"dout", {8, 2, 16}, 3, TENSOR_INT32},
        {"dlse", {3, 8}, 2, ATTEST_FP32},
        {"bias", {2, 3, 8}, 3, ATTEST_FP32},
        {"mask", {9}, 1, ATTEST_UINT8},
        {"sink", {3}, 1, ATTEST_FP32},
        {"sink", {2}, 1, TENSOR_INT32},
        {"alibi_slopes", {3, 1}, 2, ATTEST_FP32},
        {"mask", {8, 9}, 2, ATTEST_FP32},
    };
    static const double zeros[1 << 12];
    const int64_t shape[] = {8, 2, 16};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        const struct tensor tensors[] = {
            tensor_of("q", ATTEST_BF16, 3, shape, zeros), tensor_of("k", ATTEST_BF16, 3, shape, zeros),
            tensor_of("v", ATTEST_BF16, 3, shape, zeros),
            tensor_of(cases[i].name, cases[i].dtype, cases[i].ndim, cases[i].shape, zeros)};
        fixture_write_tensors("in.st", tensors, 4);
        expect_run(2, "in.st in.st");
        expect_text(audit_stderr(), cases[i].name);
    }
}

Test(malformed, damaged_files_are_refused)
{
    static const char *const damage[] = {
        "head -c 0 good.st >bad.st", "head -c 7 good.st >bad.st", "head -c 100 good.st >bad.st",
        "head -c -1 good.st >bad.st", "sed 's/data_offsets/data_offsetz/' good.st >bad.st",
        "sed 's/\\[0,/[7,/' good.st >bad.st", "sed 's/BF16/BF17/' good.st >bad.st",
        "(printf '\\377\\377\\377\\377\\377\\377\\377\\177'; tail -c +9 good.st) >bad.st",
        "rm -f bad.st", "rm -f bad.st; mkdir bad.st",
    };
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "good.st");
    fixture_write_results(&f, "x.st", all_names);
    expect_run(0, "good.st x.st");
    for (size_t i = 0; i < sizeof damage / sizeof *damage; ++i) {
        run_in_folder(damage[i]);
        expect_run(2, "bad.st x.st");
        expect_text(audit_stderr(), "bad.st");
        cr_expect_str_eq(audit_stdout(), "");
        expect_run(2, "good.st bad.st x.st"); /* one answer cannot be read: the other is judged all the same */
        expect_text(audit_stderr(), "bad.st");
        expect_text(audit_stdout(), "5 PASS");
    }
    fixture_free(&f);
}

Test(malformed, a_results_file_without_results_is_an_error)
{
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    expect_run(2, "in.st in.st --json a.json --junit a.xml --html a.html");
    expect_text(audit_stderr(), "'in' holds none of o, lse, dq, dk, dv");
    fixture_free(&f);
}

/* ---- layouts and formats ---- */

/* [rows][heads][dim] to [heads][rows][dim]. */
static void *transposed(const void *data, int64_t rows, int64_t heads, int64_t dim)
{
    uint16_t *out = allocate((size_t)(rows * heads * dim), sizeof *out);
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t h = 0; h < heads; ++h)
            memcpy(out + (h * rows + r) * dim, (const uint16_t *)data + (r * heads + h) * dim,
                   (size_t)dim * sizeof *out);
    return out;
}

Test(layout, every_order_of_axes_is_guessed_from_shapes_and_lse)
{
    struct fixture f = fixture_new(8, 8, 2, 2);
    fixture_make(&f);
    const void *const rows_first[] = {f.q, f.k, f.v, f.dout, f.o, f.dq, f.dk, f.dv};
    static const char *const names[] = {"q", "k", "v", "dout", "o", "dq", "dk", "dv"};
    static const struct {
        const char *layout;
        int ndim;
        bool heads_first;
        int64_t shape[4];
    } cases[] = {{"shd", 3, false, {8, 2, 16}}, {"hsd", 3, true, {2, 8, 16}}, {"bshd", 4, false, {1, 8, 2, 16}},
                 {"bhsd", 4, true, {1, 2, 8, 16}}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        struct tensor tensors[9];
        for (int t = 0; t < 8; ++t) {
            const void *data = cases[i].heads_first ? transposed(rows_first[t], 8, 2, 16) : rows_first[t];
            tensors[t] = tensor_of(names[t], ATTEST_BF16, cases[i].ndim, cases[i].shape, data);
        }
        tensors[8] = tensor_of("lse", ATTEST_FP32, 2, (int64_t[]){2, 8}, f.lse);
        fixture_write_tensors("in.st", tensors, 4);
        fixture_write_tensors("x.st", tensors + 4, 5);
        expect_run(0, "in.st x.st --scale=.25");
        char *note = sentence("layout %s (a returned lse has that order)", cases[i].layout);
        expect_text(audit_stdout(), note);
        free(note);
        char *arguments = sentence("in.st x.st --scale=.25 --layout=%s", cases[i].layout);
        expect_run(0, arguments);
        free(arguments);
        fixture_write_tensors("x.st", tensors + 4, 4);
        expect_run(0, "in.st x.st --scale=.25");
        expect_text(audit_stdout(), "guessed: fewer heads than rows");
        for (int t = 0; t < 8; ++t)
            if (cases[i].heads_first) free((void *)tensors[t].data);
    }
    fixture_free(&f);
}

Test(layout, lse_decides_before_the_smaller_number)
{
    struct fixture f = fixture_new(2, 2, 8, 8); /* fewer rows than heads */
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", all_names);
    expect_run(0, "in.st x.st");
    expect_text(audit_stdout(), "layout shd (a returned lse has that order)");
    fixture_write_results(&f, "x.st", "o,dq"); /* without it the likelier guess is wrong, and the other is tried */
    expect_run(0, "in.st x.st");
    expect_text(audit_stdout(), "layout shd (guessed: more passes than in hsd; --layout states it)");
    expect_run(2, "in.st x.st --strict");
    expect_text(audit_stderr(), "fit layouts hsd and shd, and --strict refuses to guess");
    ref_store(ATTEST_BF16, f.o, 77, 9);
    fixture_write_results(&f, "x.st", "o"); /* wrong in both: the likelier one has the say */
    expect_run(1, "in.st x.st");
    expect_text(audit_stdout(), "layout hsd (guessed: fewer heads than rows; --layout states it)");
    fixture_free(&f);
}

Test(layout, lse_of_rows_before_heads_is_read_too)
{
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    float turned[16];
    for (int r = 0; r < 8; ++r)
        for (int h = 0; h < 2; ++h) turned[r * 2 + h] = ((float *)f.lse)[h * 8 + r];
    const struct tensor lse = tensor_of("lse", ATTEST_FP32, 2, (int64_t[]){8, 2}, turned);
    fixture_write_tensors("x.st", &lse, 1);
    expect_run(0, "in.st x.st --layout=shd");
    const struct tensor wrong = tensor_of("lse", ATTEST_FP32, 2, (int64_t[]){4, 4}, turned);
    fixture_write_tensors("x.st", &wrong, 1);
    expect_run(2, "in.st x.st --layout=shd");
    expect_text(audit_stderr(), "lse of 'x' has shape [4, 4]; the inputs ask for [batch, heads, seqlen_q] = [1, 2, 8]");
    fixture_free(&f);
}

/* numpy's format, version 1.0. */
static void write_npy(const char *path, const char *shape, const void *data, size_t bytes)
{
    FILE *out = fopen(path_in_folder(path), "wb");
    cr_assert_not_null(out);
    char header[118];
    memset(header, ' ', sizeof header);
    const int length =
        snprintf(header, sizeof header, "{'descr': '<f4', 'fortran_order': False, 'shape': %s, }", shape);
    header[length] = ' ';
    header[sizeof header - 1] = '\n';
    fwrite("\x93NUMPY\x01\x00\x76\x00", 1, 10, out);
    fwrite(header, 1, sizeof header, out);
    fwrite(data, 1, bytes, out);
    cr_assert_eq(fclose(out), 0);
}

Test(format, npy_files_and_folders_of_them)
{
    struct fixture f = fixture_new(8, 8, 2, 2);
    f.problem.q.dtype = ATTEST_FP32;
    fixture_make(&f);
    run_in_folder("mkdir inputs results");
    const void *const data[] = {f.q, f.k, f.v, f.dout, f.o, f.dq};
    static const char *const names[] = {"q", "k", "v", "do", "o", "dq"};
    for (int i = 0; i < 6; ++i) {
        char *path = sentence("%s.npy", names[i]);
        write_npy(path, "(8, 2, 16)", data[i], 8 * 2 * 16 * sizeof(float));
        free(path);
    }
    write_npy("lse.npy", "(2, 8)", f.lse, 16 * sizeof(float));
    run_in_folder("cp q.npy k.npy v.npy do.npy inputs; cp o.npy lse.npy dq.npy results");
    expect_run(0,
               "--scale=.25 --recipe=fp32 --json a.json q.npy k.npy v.npy do.npy mine=o.npy mine=lse.npy mine=dq.npy");
    expect_text(audit_stdout(), "3 tensors of 1 implementations: 3 PASS");
    expect_run(2, "--scale=.25 q.npy k.npy v.npy o.npy v.npy"); /* after a result, v.npy is one too */
    expect_text(audit_stderr(), "'v' holds none of o, lse, dq, dk, dv");
    expect_run(0, "--scale=.25 --recipe=fp32 inputs/ results/");
    expect_text(audit_stdout(), "results        dq");
    expect_run(0, "--scale=.25 --recipe=fp32 inputs ./o.npy");
    expect_text(audit_stdout(), "o              o");
    fixture_free(&f);
}

Test(format, bias_mask_sink_slopes_and_dlse_are_part_of_the_problem)
{
    struct fixture f = fixture_new(8, 6, 2, 1);
    fixture_make(&f);
    float bias[2 * 8 * 6], sink[2] = {.5f, -1}, dlse[16];
    uint8_t mask[6] = {1, 1, 0, 1, 1, 1};
    for (int i = 0; i < 96; ++i) bias[i] = (float)(i % 7) * .25f - 1;
    for (int i = 0; i < 16; ++i) dlse[i] = (float)(i % 5) - 2;
    struct attest_problem *p = &f.problem;
    p->bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .head = 48, .seqlen_q = 6, .seqlen_k = 1};
    p->mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_k = 1};
    p->dlse = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 1, .head = 8};
    p->has_sink = p->has_alibi = 1;
    f.args.forward.bias = bias, f.args.forward.mask = mask, f.args.forward.sink = sink, f.args.dlse = dlse;
    fixture_answer(&f);
    fixture_write_results(&f, "x.st", all_names);
    const struct tensor tensors[] = {tensor_of("q", ATTEST_BF16, 3, (int64_t[]){8, 2, 16}, f.q),
                                     tensor_of("k", ATTEST_BF16, 3, (int64_t[]){6, 1, 16}, f.k),
                                     tensor_of("v", ATTEST_BF16, 3, (int64_t[]){6, 1, 16}, f.v),
                                     tensor_of("do", ATTEST_BF16, 3, (int64_t[]){8, 2, 16}, f.dout),
                                     tensor_of("bias", ATTEST_FP32, 3, (int64_t[]){2, 8, 6}, bias),
                                     tensor_of("mask", ATTEST_UINT8, 2, (int64_t[]){1, 6}, mask),
                                     tensor_of("sink", ATTEST_FP32, 1, (int64_t[]){2}, sink),
                                     tensor_of("dlse", ATTEST_FP32, 2, (int64_t[]){2, 8}, dlse),
                                     tensor_of("alibi_slopes", ATTEST_FP32, 1, (int64_t[]){2}, f.slopes)};
    fixture_write_tensors("in.st", tensors, 9);
    expect_run(0, "in.st x.st --scale=.25");
    fixture_write_tensors("in.st", tensors, 8); /* without slopes the same answer is wrong */
    expect_run(1, "in.st x.st --scale=.25");
    fixture_free(&f);
}

Test(format, settings_come_from_metadata_and_options_go_first)
{
    struct fixture f = fixture_new(8, 8, 8, 8);
    f.problem.has_alibi = 1;
    f.problem.window_left = 2;
    f.problem.window_right = 1;
    fixture_make(&f);
    for (int h = 0; h < 8; ++h) f.slopes[h] = exp2f(-(float)(h + 1));
    fixture_answer(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", all_names);
    expect_run(0, "in.st x.st --window=2,1 --alibi=auto --family=tiny");
    expect_text(audit_stdout(), "softmax_scale 0.25 (metadata)");
    expect_text(audit_stdout(), "window 2,1 (option)");
    cr_expect_null(strstr(audit_stdout(), "statistics of family"));
    expect_run(1, "in.st x.st --window=2,1 --alibi=auto --scale=0.3");
    expect_text(audit_stdout(), "softmax_scale 0.3");
    fixture_free(&f);
}

/* ---- reports ---- */

/* ---- what must not go unnoticed ---- */

static void small_problem(struct fixture *f)
{
    *f = fixture_new(8, 8, 2, 1);
    fixture_make(f);
    fixture_write_inputs(f, "in.st");
    fixture_write_results(f, "x.st", all_names);
}

Test(files, a_tensor_that_two_files_hold_is_refused)
{
    struct fixture f;
    small_problem(&f);
    fixture_write_results(&f, "o.st", "o,lse");
    fixture_write_results(&f, "dq.st", "dq");
    expect_run(0, "in.st x=o.st x=dq.st --scale=.25");
    expect_run(2, "in.st x=x.st x=dq.st --scale=.25");
    expect_text(audit_stderr(), "tensor dq is in both x.st and dq.st");
    const struct tensor twice[] = {tensor_of("dout", ATTEST_BF16, 3, (int64_t[]){8, 2, 16}, f.dout),
                                   tensor_of("do", ATTEST_BF16, 3, (int64_t[]){8, 2, 16}, f.dout),
                                   tensor_of("q", ATTEST_BF16, 3, (int64_t[]){8, 2, 16}, f.q),
                                   tensor_of("k", ATTEST_BF16, 3, (int64_t[]){8, 1, 16}, f.k),
                                   tensor_of("v", ATTEST_BF16, 3, (int64_t[]){8, 1, 16}, f.v)};
    fixture_write_tensors("in.st", twice, 5);
    expect_run(2, "in.st x.st --scale=.25");
    expect_text(audit_stderr(), "dout and do name the same tensor, and in.st holds both");
    write_npy("q.npy", "(1, 1, 1)", "1234", 4);
    run_in_folder("mkdir other; cp q.npy other");
    expect_run(2, "q.npy other/q.npy x.st");
    expect_text(audit_stderr(), "tensor q is in both q.npy and other/q.npy");
    fixture_free(&f);
}

Test(files, tensors_that_nothing_looks_for_are_named)
{
    struct fixture f;
    small_problem(&f);
    struct tensor tensors[12] = {tensor_of("o", ATTEST_BF16, 3, (int64_t[]){8, 2, 16}, f.o),
                                 tensor_of("k", ATTEST_BF16, 3, (int64_t[]){8, 1, 16}, f.k),
                                 tensor_of("LSE\n", ATTEST_FP32, 2, (int64_t[]){2, 8}, f.lse)};
    expect_run(0, "in.st x.st --scale=.25");
    cr_expect_null(strstr(audit_stdout(), "not judged"), "%s", audit_stdout());
    cr_expect_null(strstr(audit_stdout(), "not read"), "%s", audit_stdout());
    fixture_write_tensors("y.st", tensors, 3);
    expect_run(0, "in.st y.st --scale=.25");
    expect_text(audit_stdout(), "'y' also holds 'LSE?': not judged");
    for (int i = 3; i < 12; ++i)
        tensors[i] = tensor_of((const char *[]){"a", "b", "c", "d", "e", "f", "g", "h", "i"}[i - 3], ATTEST_FP32, 1,
                               (int64_t[]){8}, f.lse);
    fixture_write_tensors("y.st", tensors, 12);
    expect_run(0, "in.st y.st --scale=.25");
    expect_text(audit_stdout(), " and 2 more: not judged");
    tensors[1] = tensor_of("rotary_cos", ATTEST_FP32, 1, (int64_t[]){8}, f.lse);
    tensors[2] = tensor_of("q", ATTEST_BF16, 3, (int64_t[]){8, 2, 16}, f.q);
    tensors[3] = tensor_of("k", ATTEST_BF16, 3, (int64_t[]){8, 1, 16}, f.k);
    tensors[4] = tensor_of("v", ATTEST_BF16, 3, (int64_t[]){8, 1, 16}, f.v);
    fixture_write_tensors("y.st", tensors, 5);
    expect_run(0, "y.st y.st --scale=.25"); /* one file for both */
    expect_text(audit_stdout(), "not read: 'rotary_cos'");
    fixture_free(&f);
}

Test(files, widened_16_bit_numbers_are_pointed_at)
{
    struct fixture f;
    small_problem(&f);
    float wide[8 * 2 * 16];
    struct tensor tensors[] = {tensor_of("o", ATTEST_FP32, 3, (int64_t[]){8, 2, 16}, wide),
                               tensor_of("lse", ATTEST_FP32, 2, (int64_t[]){2, 8}, f.lse)};
    for (int64_t i = 0; i < 8 * 2 * 16; ++i) wide[i] = (float)ref_load(ATTEST_BF16, f.o, i);
    fixture_write_tensors("y.st", tensors, 2);
    expect_run(1, "in.st y.st --scale=.25"); /* as an fp32 result it is wrong, and here is why */
    expect_text(audit_stdout(), "y.st: o is fp32, but every number of it fits bf16; if it was widened");
    cr_expect_null(strstr(audit_stdout(), "lse is fp32, but"), "%s", audit_stdout());
    for (int64_t i = 0; i < 8 * 2 * 16; ++i) wide[i] = (float)ref_round(ATTEST_FP16, wide[i] * 1.01);
    fixture_write_tensors("y.st", tensors, 2);
    expect_run(1, "in.st y.st --scale=.25");
    expect_text(audit_stdout(), "every number of it fits fp16");
    wide[100] = 0x1.000002p0f;
    fixture_write_tensors("y.st", tensors, 2);
    expect_run(1, "in.st y.st --scale=.25");
    cr_expect_null(strstr(audit_stdout(), "widened"), "%s", audit_stdout());
    fixture_free(&f);
}

Test(files, names_bring_no_control_characters)
{
    struct fixture f;
    small_problem(&f);
    expect_run(0, "in.st \"$(printf 'a\\033[31mb\\177')=x.st\" --scale=.25");
    expect_text(audit_stdout(), "a?[31mb?");
    fixture_free(&f);
}

Test(files, a_report_never_overwrites_data)
{
    struct fixture f;
    small_problem(&f);
    run_in_folder("cp x.st y.safetensors; cp x.st z.npy; ln -s x.st link; cat in.st x.st y.safetensors z.npy >before");
    static const char *const arguments[] = {"in.st x.st --json x.st",          "in.st x.st --junit ./in.st",
                                            "in.st x.st --html link",          "in.st x.st --json y.safetensors",
                                            "in.st x.st --json new.npy",       "in.st x.st --html=z.npy",
                                            "in.st a=y.safetensors --junit y.safetensors"};
    for (size_t i = 0; i < sizeof arguments / sizeof *arguments; ++i) {
        expect_run(2, arguments[i]);
        expect_text(audit_stderr(), "is data, not a place for a report");
    }
    cr_expect_eq(run_in_folder("cat in.st x.st y.safetensors z.npy | cmp - before"), 0);
    fixture_free(&f);
}

Test(report, a_table_that_cannot_be_printed_is_no_success)
{
    struct fixture f;
    small_problem(&f);
    char *command = sentence("'%s' in.st x.st --scale=.25 2>stderr >/dev/full", audit_binary());
    cr_expect_eq(run_in_folder(command), 2);
    expect_text(audit_stderr(), "standard output cannot be written");
    free(command);
    fixture_free(&f);
}

Test(report, json_says_everything)
{
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", all_names);
    expect_run(0, "in.st x.st 'odd \"<&> name=x.st' --json a.json --threads 1 --recipes all");
    json_t *root = audit_json();
    cr_expect_str_eq(json_string_value(json_object_get(root, "schema")), "attest-audit");
    cr_expect_eq(json_integer_value(json_object_get(root, "version")), 1);
    cr_expect_eq(json_integer_value(json_object_get(root, "exit_status")), 0);
    static const char *const top[] = {"environment", "options", "inputs", "problem", "statistical", "implementations"};
    for (size_t i = 0; i < sizeof top / sizeof *top; ++i)
        cr_expect_not_null(json_object_get(root, top[i]), "%s", top[i]);
    static const char *const numbers[] = {"count",      "max_error",  "rmse",      "relative_error", "mean_error",
                                          "share",      "index",      "got",       "want",           "bound",
                                          "rms_ratio",  "mean_ratio", "nan_count", "overflow_count", "rms_bound",
                                          "rms_oracle", "verdict",    "direction_ratio", "looks_like",   "terms"};
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; ++i)
        cr_expect_not_null(json_object_get(json_of_tensor(root, 1, "dk"), numbers[i]), "%s", numbers[i]);
    cr_expect_eq(json_integer_value(json_object_get(json_of_tensor(root, 0, "dk"), "count")), 8 * 16);
    json_t *odd = json_array_get(json_object_get(root, "implementations"), 1);
    cr_expect_str_eq(json_string_value(json_object_get(odd, "name")), "odd \"<&> name");
    cr_expect_eq(json_object_size(json_object_get(json_object_get(json_object_get(odd, "tensors"), "o"), "recipes")),
                 6);
    json_decref(root);
    fixture_free(&f);
}

Test(report, junit_is_well_formed_and_counts)
{
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", all_names);
    ref_store(ATTEST_BF16, f.o, 5, NAN);
    fixture_write_results(&f, "y.st", "o,lse");
    run_in_folder("printf '\\377\\1bad' >z");
    expect_run(2, "in.st x.st 'a<b>\"&c=y.st' \"$(printf 'nul\\377\\001')=z\" --junit a.xml");
    cr_expect_eq(run_in_folder("xmllint --noout a.xml"), 0);
    static const char *const counts[][2] = {
        {"count(//testsuite)", "3"},       {"count(//testcase)", "8"},
        {"count(//failure)", "1"},         {"count(//error)", "1"},
        {"sum(//testsuite/@tests)", "8"},  {"sum(//testsuite/@failures)", "1"},
        {"sum(//testsuite/@errors)", "1"}, {"count(//testcase[@name=\"dv\"])", "1"}};
    for (size_t i = 0; i < sizeof counts / sizeof *counts; ++i) {
        char *command = sentence("test \"$(xmllint --xpath '%s' a.xml)\" = %s", counts[i][0], counts[i][1]);
        cr_expect_eq(run_in_folder(command), 0, "%s", command);
        free(command);
    }
    fixture_free(&f);
}

Test(report, the_page_holds_the_data_and_nothing_from_elsewhere)
{
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", all_names);
    expect_run(0, "in.st '<!--<script>=x.st' --html a.html");
    cr_expect_eq(run_in_folder("grep -q '\"schema\":\"attest-audit\"' a.html"), 0);
    cr_expect_eq(run_in_folder("test $(grep -c '</script>' a.html) = 2"), 0); /* the data's and the script's own */
    cr_expect_neq(run_in_folder("grep -q -e '<!--' a.html"), 0);
    cr_expect_neq(run_in_folder("grep -E 'src=|href=|@import|url\\(' a.html"), 0);
    fixture_free(&f);
}

Test(report, files_that_cannot_be_written_are_status_2)
{
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", all_names);
    static const char *const options[] = {"json", "junit", "html"};
    for (int i = 0; i < 3; ++i) {
        char *arguments = sentence("in.st x.st --%s no/such/folder", options[i]);
        expect_run(2, arguments);
        expect_text(audit_stderr(), "no/such/folder cannot be written");
        free(arguments);
        arguments = sentence("in.st x.st --%s /dev/full", options[i]);
        expect_run(2, arguments);
        free(arguments);
    }
    fixture_free(&f);
}

Test(report, threads_and_company_change_nothing)
{
    struct fixture f = fixture_new(40, 40, 2, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", all_names);
    fixture_write_results(&f, "y.st", "o");
    expect_run(0, "in.st x.st --threads 1");
    char *alone = sentence("%s", audit_stdout());
    expect_run(0, "in.st x.st --threads 3");
    cr_expect_str_eq(audit_stdout(), alone);
    expect_run(0, "in.st x.st y.st");
    char *row = strstr(alone, "dv ");
    row = sentence("%.*s", (int)strcspn(row, "\n"), row);
    expect_text(audit_stdout(), row);
    free(row);
    free(alone);
    fixture_free(&f);
}

Test(report, progress_is_shown_on_a_terminal_only)
{
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    fixture_write_inputs(&f, "in.st");
    fixture_write_results(&f, "x.st", all_names);
    expect_run(0, "in.st x.st");
    cr_expect_str_eq(audit_stderr(), "");
    char *command = sentence("script -qec \"'%s' in.st x.st\" /dev/null >terminal", audit_binary());
    cr_expect_eq(run_in_folder(command), 0);
    cr_expect_eq(run_in_folder("grep -q 'audit: bounds of recipe mixed' terminal"), 0);
    free(command);
    fixture_free(&f);
}

Test(report, paths_are_meant_from_where_bazel_was_called)
{
    struct fixture f = fixture_new(8, 8, 2, 1);
    fixture_make(&f);
    run_in_folder("mkdir sub");
    fixture_write_inputs(&f, "sub/in.st");
    fixture_write_results(&f, "sub/x.st", all_names);
    setenv("BUILD_WORKING_DIRECTORY", path_in_folder("sub"), 1);
    expect_run(0, "in.st x.st");
    setenv("BUILD_WORKING_DIRECTORY", path_in_folder("gone"), 1);
    expect_run(2, "in.st x.st");
    unsetenv("BUILD_WORKING_DIRECTORY");
    fixture_free(&f);
}

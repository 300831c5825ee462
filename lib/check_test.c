/* check_test.c - every sentence of lib/check_problem.c and lib/check_args.c: each breaks one field of a
 * valid problem and asks for the status, the field and its value. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include <criterion/criterion.h>

#include "lib/testing.h"

static void says(const char *text)
{
    cr_assert(strstr(attest_last_error(), text) != NULL, "\"%s\" is not in \"%s\"", text, attest_last_error());
    cr_assert(strstr(attest_last_error(), "must") != NULL || strstr(attest_last_error(), "buil") != NULL, "no rule: %s",
              attest_last_error());
}

static void refused(const struct attest_problem *p, enum attest_status status, const char *text)
{
    struct attest_plan *plan = (struct attest_plan *)p; /* anything but NULL */
    cr_assert_eq(attest_plan_create(p, &plan), status, "%s: %s", text, attest_last_error());
    cr_assert_null(plan);
    says(text);
}

static void accepted(const struct attest_problem *p)
{
    struct attest_plan *plan = NULL;
    cr_assert_eq(attest_plan_create(p, &plan), ATTEST_OK, "%s", attest_last_error());
    attest_plan_destroy(plan);
}

/* The whole problem after `change`, refused as INVALID with a sentence that holds `text`. */
#define INVALID(text, change)                      \
    do {                                           \
        struct attest_problem p = whole_problem(); \
        change;                                    \
        refused(&p, ATTEST_INVALID, text);         \
    } while (0)
#define UNSUPPORTED(text, change)                  \
    do {                                           \
        struct attest_problem p = whole_problem(); \
        change;                                    \
        refused(&p, ATTEST_UNSUPPORTED, text);     \
    } while (0)
#define VALID(change)                              \
    do {                                           \
        struct attest_problem p = whole_problem(); \
        change;                                    \
        accepted(&p);                              \
    } while (0)

Test(problem, a_struct_of_another_size)
{
    struct {
        struct attest_problem p;
        char tail[8];
    } longer = {whole_problem(), {0}};
    longer.p.struct_size = sizeof longer;
    accepted(&longer.p);
    longer.tail[7] = 1;
    char text[64];
    snprintf(text, sizeof text, "problem.struct_size = %zu", sizeof longer);
    refused(&longer.p, ATTEST_UNSUPPORTED, text);
    refused(NULL, ATTEST_INVALID, "problem = NULL");
    INVALID("problem.struct_size = 0", p.struct_size = 0);
    INVALID("problem.struct_size = 8", p.struct_size = 8);
    struct attest_problem p = whole_problem();
    cr_assert_eq(attest_plan_create(&p, NULL), ATTEST_INVALID);
    says("plan = NULL");
}

/* All that a problem of zeros with shapes and tensors lacks is a scale and a window, both of which zeros seem to be. */
Test(problem, one_that_did_not_begin_as_it_must)
{
    INVALID("initialized = 0, but must be what ATTEST_PROBLEM_INIT or attest_problem_init() sets", p.initialized = 0);
    INVALID("initialized = 1", p.initialized = 1);
    INVALID("reserved0 = 5", p.reserved0 = 5);
}

Test(problem, device_and_flags)
{
    INVALID("device = 3", p.device = 3);
    INVALID("device = -1", p.device = -1);
    INVALID("device_ordinal = -2", p.device_ordinal = -2);
    INVALID("device_ordinal = 1", p.device_ordinal = 1);
    INVALID("device_ordinal = 1", (p.device = ATTEST_SIM, p.device_ordinal = 1));
    UNSUPPORTED("", (p.device = ATTEST_CUDA, p.q.dtype = p.k.dtype = p.v.dtype = ATTEST_FP8_E5M2)); /* or not built */
    INVALID("ragged = 2", p.ragged = 2);
    INVALID("has_alibi = -1", p.has_alibi = -1);
    INVALID("has_sink = 9", p.has_sink = 9);
    INVALID("has_seqused_q = 2", p.has_seqused_q = 2);
    INVALID("has_seqused_k = 2", p.has_seqused_k = 2);
    INVALID("external_lse = 2", p.external_lse = 2);
}

Test(problem, shapes)
{
    VALID((void)0);
    VALID(p.batch = 0);
    VALID((p.seqlen_q = 0, p.seqlen_k = 0));
    INVALID("batch = -1", p.batch = -1);
    INVALID("batch = 2147483648", p.batch = INT64_C(1) << 31);
    INVALID("seqlen_q = -3", p.seqlen_q = -3);
    INVALID("seqlen_k = 9223372036854775807", p.seqlen_k = INT64_MAX);
    INVALID("total_q = 6", p.total_q = 6);
    INVALID("total_k = 1", p.total_k = 1);
    INVALID("total_q = -1", (p.ragged = 1, p.total_q = -1));
    INVALID("total_k = 4294967296", (p.ragged = 1, p.total_k = INT64_C(1) << 32));
    INVALID("num_heads_q = 0", p.num_heads_q = 0);
    INVALID("num_heads_kv = 0", p.num_heads_kv = 0);
    INVALID("num_heads_kv = 8", p.num_heads_kv = 8);
    INVALID("num_heads_q = 4, but must be a multiple of num_heads_kv, 3", p.num_heads_kv = 3);
    INVALID("batch * num_heads_q, 4294967294", (p.num_heads_q = INT32_MAX, p.num_heads_kv = 1));
    INVALID("head_dim = 0", p.head_dim = 0);
    INVALID("head_dim = 257", p.head_dim = 257);
    INVALID("head_dim_v = 257", p.head_dim_v = 257);
    INVALID("block_q = 0", p.block_q = 0);
    INVALID("block_k = -4", p.block_k = -4);
    VALID((p.block_q = 0, p.block_mask.dtype = ATTEST_ABSENT));
}

/* A forward problem that a kernel takes. */
static struct attest_problem kernel_problem(void)
{
    struct attest_problem p = whole_problem();
    p.device = ATTEST_SIM;
    p.dq.dtype = p.dk.dtype = p.dv.dtype = p.dbias.dtype = ATTEST_ABSENT;
    p.dout.dtype = p.dlse.dtype = p.delta.dtype = ATTEST_ABSENT;
    return p;
}

#define NOT_TAKEN(text, change)                                                   \
    do {                                                                          \
        struct attest_problem p = kernel_problem();                               \
        change;                                                                   \
        refused(&p, ATTEST_UNSUPPORTED, "no kernel takes the problem: " text);    \
    } while (0)

Test(problem, that_no_kernel_takes)
{
    const struct attest_problem taken = kernel_problem();
    accepted(&taken);
    NOT_TAKEN("q.dtype = 4, but must be fp32, fp16 or bf16", p.q.dtype = p.k.dtype = p.v.dtype = ATTEST_FP8_E4M3);
    NOT_TAKEN("seqlen_q = 2147483520, but must be at most 2147483519",
              (p.batch = 1, p.seqlen_q = INT64_C(2147483520)));
    NOT_TAKEN("seqlen_k = 2147483647, but must be at most 2147483519", p.seqlen_k = INT32_MAX);
    NOT_TAKEN("softmax_scale = -1.70141e+38, but must be below 2^127 in size", p.softmax_scale = -0x1p127f);
    NOT_TAKEN("softcap = 1.70141e+38, but must be below 2^127 and above", p.softcap = 0x1p127f);
    NOT_TAKEN("softcap = 7.34684e-40, but must be below 2^127 and above", p.softcap = 0x1p-130f);

    struct attest_problem backward = whole_problem();
    backward.device = ATTEST_SIM, backward.o.dtype = ATTEST_ABSENT;
    accepted(&backward);
    backward.softmax_scale = 0x1p127f;
    refused(&backward, ATTEST_UNSUPPORTED, "no kernel takes the problem's backward pass: softmax_scale = 1.70141e+38");

    /* Its workspace would be no size: 12 bytes a row and head. */
    struct attest_problem wide = ATTEST_PROBLEM_INIT;
    wide.device = ATTEST_SIM, wide.softmax_scale = 1;
    wide.batch = wide.num_heads_kv = wide.head_dim = wide.head_dim_v = wide.seqlen_k = 1;
    wide.seqlen_q = 715838000, wide.num_heads_q = INT32_MAX;
    wide.q = wide.dout = wide.dq = (struct attest_tensor){ATTEST_BF16, 0, 0, 1, INT64_C(715838000)};
    wide.k = wide.v = wide.dk = wide.dv = (struct attest_tensor){ATTEST_BF16, 0, 0, 1, 1};
    wide.lse = wide.delta = (struct attest_tensor){ATTEST_FP32, 0, 0, 1, INT64_C(715838000)};
    refused(&wide, ATTEST_UNSUPPORTED, "backward pass: 715838000 rows of q, but must be at most 134217728 with");
}

Test(problem, fields_that_do_not_work_yet)
{
    UNSUPPORTED("o_low.dtype = 1", p.o_low.dtype = ATTEST_FP32);
    UNSUPPORTED("lse_low.dtype = 77", p.lse_low.dtype = 77);
    UNSUPPORTED("page_size = 64", p.page_size = 64);
    INVALID("page_size = -64", p.page_size = -64);
}

static struct attest_problem forward_only(void)
{
    struct attest_problem p = whole_problem();
    p.dq.dtype = p.dk.dtype = p.dv.dtype = p.dbias.dtype = ATTEST_ABSENT;
    p.dout.dtype = p.dlse.dtype = p.delta.dtype = ATTEST_ABSENT;
    return p;
}

Test(problem, tensors_that_must_be_there_or_must_not)
{
    INVALID("q.dtype = 0", p.q.dtype = 0);
    INVALID("k.dtype = 0", p.k.dtype = 0);
    INVALID("v.dtype = 0", p.v.dtype = 0);
    INVALID("dq.dtype = 0", p.dq.dtype = 0);
    INVALID("dk.dtype = 0", p.dk.dtype = 0);
    INVALID("dv.dtype = 0", p.dv.dtype = 0);
    INVALID("lse.dtype = 0", p.lse.dtype = 0);
    INVALID("dout.dtype = 0", p.dout.dtype = 0);
    INVALID("o.dtype = 0", (p.o.dtype = 0, p.delta.dtype = 0));
    INVALID("delta.dtype = 0", (p.external_lse = 1, p.delta.dtype = 0));
    INVALID("bias.dtype = 0", p.bias.dtype = 0);
    VALID(p.o.dtype = 0);
    VALID(p.delta.dtype = 0);
    VALID(p = forward_only());
    VALID((p = forward_only(), p.lse.dtype = 0));
    INVALID("o.dtype = 0", (p = forward_only(), p.o.dtype = 0));
    INVALID("dout.dtype = 1", (p = forward_only(), p.dout.dtype = 1));
    INVALID("dlse.dtype = 1", (p = forward_only(), p.dlse.dtype = 1));
    INVALID("delta.dtype = 1", (p = forward_only(), p.delta.dtype = 1));
    INVALID("dbias.dtype = 1", (p = forward_only(), p.dbias.dtype = 1));
    INVALID("external_lse = 1", (p = forward_only(), p.external_lse = 1));
}

Test(problem, dtypes)
{
    INVALID("q.dtype = 99", p.q.dtype = 99);
    INVALID("q.dtype = -1", p.q.dtype = -1);
    INVALID("q.dtype = 6", p.q.dtype = ATTEST_UINT8);
    INVALID("k.dtype = 2", p.k.dtype = ATTEST_FP16);
    INVALID("v.dtype = 3, but must be one of ATTEST_FP32 (1)", p.v.dtype = ATTEST_BF16);
    INVALID("o.dtype = 4, but must be one of ATTEST_FP32 (1) ATTEST_FP16 (2) ATTEST_BF16 (3)",
            p.o.dtype = ATTEST_FP8_E4M3);
    INVALID("lse.dtype = 2", p.lse.dtype = ATTEST_FP16);
    INVALID("dlse.dtype = 3", p.dlse.dtype = ATTEST_BF16);
    INVALID("delta.dtype = 2147483647", p.delta.dtype = INT32_MAX);
    INVALID("dout.dtype = 5", p.dout.dtype = ATTEST_FP8_E5M2);
    INVALID("dk.dtype = 5", p.dk.dtype = ATTEST_FP8_E5M2);
    INVALID("bias.dtype = 2", p.bias.dtype = ATTEST_FP16);
    INVALID("dbias.dtype = 3", p.dbias.dtype = ATTEST_BF16);
    INVALID("mask.dtype = 1", p.mask.dtype = ATTEST_FP32);
    INVALID("block_mask.dtype = 2", p.block_mask.dtype = ATTEST_FP16);
    VALID((p.q.dtype = p.k.dtype = p.v.dtype = ATTEST_FP8_E4M3, p.o.dtype = ATTEST_FP16));
    INVALID("bias.dtype = 4", p.q.dtype = p.k.dtype = p.v.dtype = p.bias.dtype = ATTEST_FP8_E4M3);
    VALID((p.q.dtype = p.k.dtype = p.v.dtype = p.bias.dtype = ATTEST_BF16, p.dbias.dtype = ATTEST_BF16));
}

Test(problem, alignments_and_strides)
{
    INVALID("q.align = 12", p.q.align = 12);
    INVALID("q.align = 2", p.q.align = 2);
    INVALID("dv.align = -16", p.dv.align = -16);
    INVALID("q.head = 8, but must be a multiple of 16, for q.align = 64", p.q.align = 64);
    VALID(p.q.align = 32);
    INVALID("q.head = 1, but must be a multiple of 2", (p.head_dim = 1, p.q.head = 1, p.q.align = 8));
    VALID(p.lse.align = 4);
    VALID(p.mask.align = 1);
    VALID((p.mask.align = 8, p.mask.batch = 192, p.mask.head = 48, p.mask.seqlen_q = 8));
    INVALID("mask.seqlen_q = 5, but must be a multiple of 8", (p.mask.align = 8, p.mask.batch = 192, p.mask.head = 48));
    INVALID("k.seqlen = -16", p.k.seqlen = -16);
    INVALID("bias.seqlen_k = -1", p.bias.seqlen_k = -1);
    INVALID("v.batch = 4611686018427387904", p.v.batch = INT64_C(1) << 62);
    INVALID("q.batch = 9223372036854775807", p.q.batch = INT64_MAX);
    INVALID("bias.head = 3074457345618258602", p.bias.head = INT64_MAX / 3);
    VALID((p.k.batch = 0, p.k.seqlen = 0, p.k.head = 0));
    VALID((p.ragged = 1, p.total_q = ROWS_Q, p.total_k = ROWS_K, p.q.batch = -1)); /* not used, not looked at */
    VALID((p.mask.batch = 0, p.mask.head = 0));
}

Test(problem, elements_of_an_output_are_apart)
{
    INVALID("o.seqlen = 0", p.o.seqlen = 0);
    INVALID("o.head = 3", p.o.head = 3);
    INVALID("o.seqlen = 15, but must be >= 16", p.o.seqlen = 15);
    INVALID("dq.batch = 95, but must be >= 96", p.dq.batch = 95);
    INVALID("lse.seqlen = 1, but must be >= 4", (p.lse.head = 1, p.lse.seqlen = 1));
    INVALID("dbias.seqlen_q = 4, but must be >= 5", p.dbias.seqlen_q = 4);
    VALID((p.dbias.batch = 0, p.dbias.seqlen_q = 0));
    VALID((p.lse.head = SEQLEN_Q, p.lse.seqlen = 1)); /* [batch][heads][seqlen_q] */
    VALID((p.o.seqlen = 0, p.seqlen_q = 1));
    VALID((p.o.seqlen = 0, p.batch = 0)); /* no element at all */
    VALID((p.o.dtype = ATTEST_ABSENT, p.lse.head = p.lse.seqlen = p.lse.batch = 0)); /* an input of backward alone */
}

Test(problem, scores)
{
    INVALID("softmax_scale = nan", p.softmax_scale = NAN);
    INVALID("softmax_scale = inf", p.softmax_scale = INFINITY);
    VALID(p.softmax_scale = 0);
    VALID(p.softmax_scale = -2);
    INVALID("softcap = -1", p.softcap = -1);
    INVALID("softcap = inf", p.softcap = INFINITY);
    INVALID("softcap = nan", p.softcap = NAN);
    INVALID("dropout_p = 1", p.dropout_p = 1);
    INVALID("dropout_p = -0.5", p.dropout_p = -0.5f);
    INVALID("dropout_p = nan", p.dropout_p = NAN);
    VALID(p.dropout_p = 0.99999f);
}

Test(problem, diagonals_and_windows)
{
    INVALID("diag_kind = 0", p.diag_kind = ATTEST_DIAG_UNSET);
    INVALID("diag_kind = 4", p.diag_kind = 4);
    INVALID("diag_kind = 0", (p.diag_kind = 0, p.window_left = -1));
    VALID((p.diag_kind = 0, p.window_left = p.window_right = -1));
    INVALID("diag_kind = 0", (p.diag_kind = 0, p.seqlen_k = p.seqlen_q)); /* seqused may make them differ */
    VALID((p.diag_kind = 0, p.seqlen_k = p.seqlen_q, p.has_seqused_q = p.has_seqused_k = 0));
    INVALID("diag_kind = 0",
            (p = ragged_problem(), p.seqlen_k = p.seqlen_q, p.has_seqused_q = p.has_seqused_k = p.diag_kind = 0));
    INVALID("diag = 5", p.diag = 5);
    INVALID("alibi_diag = -1", p.alibi_diag = -1);
    INVALID("alibi_diag_kind = -7", p.alibi_diag_kind = -7);
    VALID((p.diag_kind = ATTEST_DIAG_GIVEN, p.diag = -5));
    INVALID("diag = 9223372036854775807", (p.diag_kind = ATTEST_DIAG_GIVEN, p.diag = INT64_MAX));
    INVALID("alibi_diag = -9223372036854775808", (p.alibi_diag_kind = ATTEST_DIAG_GIVEN, p.alibi_diag = INT64_MIN));
    INVALID("window_left = 9223372036854775807", p.window_left = INT64_MAX);
    INVALID("window_right = 2305843009213693952", p.window_right = INT64_C(1) << 61);
    VALID((p.window_left = INT64_MIN, p.window_right = INT64_C(1) << 60));
    INVALID("q_start = -1", p.q_start = -1);
    INVALID("k_start = 9223372036854775807", p.k_start = INT64_MAX);
    VALID((p.q_start = INT64_C(1) << 60, p.k_start = INT64_C(1) << 40));
}

/* Runs of the whole problem with one argument changed. */
static struct buffers buffers, before;

static void run_refused(const struct attest_problem *p, int forward, enum attest_status status, const char *text)
{
    struct attest_plan *plan = NULL;
    cr_assert_eq(attest_plan_create(p, &plan), ATTEST_OK, "%s", attest_last_error());
    memcpy(&before, &buffers, sizeof before);
    const enum attest_status got = forward ? attest_run_forward(plan, &buffers.args.forward, NULL, 0, NULL)
                                           : attest_run_backward(plan, &buffers.args, NULL, 0, NULL);
    cr_assert_eq(got, status, "%s: %s", text, attest_last_error());
    says(text);
    cr_assert(memcmp(&before, &buffers, sizeof before) == 0, "%s: something was written", text);
    attest_plan_destroy(plan);
}

#define RUN(problem, forward_pass, status, text, change)             \
    do {                                                             \
        const struct attest_problem p = problem;                     \
        fill_buffers(&buffers);                                      \
        struct attest_forward_args *f = &buffers.args.forward;       \
        struct attest_backward_args *a = &buffers.args;              \
        (void)f, (void)a;                                            \
        change;                                                      \
        run_refused(&p, forward_pass, status, text);                 \
    } while (0)
#define FORWARD(text, change) RUN(whole_problem(), 1, ATTEST_INVALID, text, change)
#define BACKWARD(text, change) RUN(whole_problem(), 0, ATTEST_INVALID, text, change)
#define RAGGED(text, change) RUN(ragged_problem(), 1, ATTEST_INVALID, text, change)

Test(args, structs_plans_and_workspace)
{
    fill_buffers(&buffers);
    size_t bytes;
    cr_assert_eq(attest_run_forward(NULL, &buffers.args.forward, NULL, 0, NULL), ATTEST_INVALID);
    says("plan = NULL");
    cr_assert_eq(attest_run_backward(NULL, &buffers.args, NULL, 0, NULL), ATTEST_INVALID);
    says("plan = NULL");
    cr_assert_eq(attest_plan_workspace(NULL, &bytes, &bytes), ATTEST_INVALID);
    cr_assert_null(attest_plan_kernel(NULL, ATTEST_FORWARD));
    says("plan = NULL");
    cr_assert_null(attest_plan_share(NULL, ATTEST_BACKWARD, 0));
    says("plan = NULL");

    struct attest_problem p = forward_only();
    struct attest_plan *plan = NULL;
    cr_assert_eq(attest_plan_create(&p, &plan), ATTEST_OK);
    cr_assert_eq(attest_run_forward(plan, NULL, NULL, 0, NULL), ATTEST_INVALID);
    says("args = NULL");
    cr_assert_eq(attest_run_forward(plan, &buffers.args.forward, NULL, 16, NULL), ATTEST_INVALID);
    says("workspace = NULL");
    cr_assert_eq(attest_run_backward(plan, &buffers.args, NULL, 0, NULL), ATTEST_INVALID);
    says("dq.dtype = 0");
    cr_assert_null(attest_plan_share(plan, ATTEST_BACKWARD, 0));
    cr_assert_null(attest_plan_kernel(plan, ATTEST_BACKWARD));
    cr_assert_null(attest_plan_kernel(plan, (enum attest_pass)3));
    says("pass = 3");
    cr_assert_eq(attest_plan_workspace(plan, NULL, &bytes), ATTEST_INVALID);
    says("forward_bytes = NULL");
    cr_assert_eq(attest_plan_workspace(plan, &bytes, NULL), ATTEST_INVALID);
    says("backward_bytes = NULL");
    attest_plan_destroy(plan);

    p = whole_problem();
    p.o.dtype = ATTEST_ABSENT;
    cr_assert_eq(attest_plan_create(&p, &plan), ATTEST_OK);
    cr_assert_eq(attest_run_forward(plan, &buffers.args.forward, NULL, 0, NULL), ATTEST_INVALID);
    says("o.dtype = 0");
    attest_plan_destroy(plan);

    FORWARD("args.struct_size = 3", f->struct_size = 3);
    BACKWARD("args.struct_size = 0", a->struct_size = 0);
    BACKWARD("args.forward.struct_size = 0", f->struct_size = 0);
    RUN(whole_problem(), 0, ATTEST_UNSUPPORTED, "args.forward.struct_size = 4096", f->struct_size = 4096);
    FORWARD("reserved0 = 1", f->reserved0 = 1);
    BACKWARD("reserved0 = 8", f->reserved0 = 8);
    BACKWARD("reserved0 = 4", a->reserved0 = 4);
}

Test(args, pointers_that_must_be_there)
{
    FORWARD("q = NULL", f->q = NULL);
    FORWARD("k = NULL", f->k = NULL);
    FORWARD("v = NULL", f->v = NULL);
    FORWARD("o = NULL", f->o = NULL);
    FORWARD("lse = NULL", f->lse = NULL);
    FORWARD("bias = NULL", f->bias = NULL);
    FORWARD("mask = NULL", f->mask = NULL);
    FORWARD("block_mask = NULL", f->block_mask = NULL);
    FORWARD("alibi_slopes = NULL", f->alibi_slopes = NULL);
    FORWARD("sink = NULL", f->sink = NULL);
    FORWARD("seqused_q = NULL", f->seqused_q = NULL);
    FORWARD("seqused_k = NULL", f->seqused_k = NULL);
    RAGGED("cu_seqlens_q = NULL", f->cu_seqlens_q = NULL);
    RAGGED("cu_seqlens_k = NULL", f->cu_seqlens_k = NULL);
    BACKWARD("o = NULL", f->o = NULL);
    BACKWARD("lse = NULL", f->lse = NULL);
    BACKWARD("dout = NULL", a->dout = NULL);
    BACKWARD("dlse = NULL", a->dlse = NULL);
    BACKWARD("delta = NULL", a->delta = NULL);
    BACKWARD("dq = NULL", a->dq = NULL);
    BACKWARD("dk = NULL", a->dk = NULL);
    BACKWARD("dv = NULL", a->dv = NULL);
    BACKWARD("dbias = NULL", a->dbias = NULL);
}

Test(args, pointers_that_are_no_addresses_of_their_elements)
{
    FORWARD("must be a multiple of 4", f->q = (const char *)buffers.q + 2);
    FORWARD("must be a multiple of 4", f->lse = (char *)buffers.lse + 1);
    FORWARD("must be a multiple of 8", f->dropout_seed = (const uint64_t *)((const char *)&buffers.dropout_seed + 4));
    BACKWARD("dsink = ", a->dsink = (float *)((char *)buffers.dsink + 3));
    struct attest_problem aligned = whole_problem();
    aligned.k.align = 32;
    RUN(aligned, 1, ATTEST_INVALID, "must be a multiple of 32",
        f->k = (const void *)(((uintptr_t)buffers.k & ~(uintptr_t)31) + 16));
    FORWARD("v = 0xfffffffffffffff0", f->v = (const void *)(UINTPTR_MAX - 15));
}

Test(args, fields_that_do_not_work_yet)
{
#define NOT_YET(field)                                                                                    \
    RUN(whole_problem(), 1, ATTEST_UNSUPPORTED, #field " = 0x", f->field = (void *)buffers.q);            \
    RUN(whole_problem(), 0, ATTEST_UNSUPPORTED, #field " = 0x", f->field = (void *)buffers.q)
    NOT_YET(o_low);
    NOT_YET(lse_low);
    NOT_YET(q_scale);
    NOT_YET(k_scale);
    NOT_YET(v_scale);
    NOT_YET(block_table);
}

Test(args, outputs_overlap_nothing)
{
    FORWARD("must not overlap v = 0x", f->o = buffers.v + 3);
    FORWARD("must not overlap lse = 0x", f->lse = buffers.o);
    FORWARD("must not overlap mask = 0x", f->o = (void *)(((uintptr_t)buffers.mask + 3) & ~(uintptr_t)3));
    FORWARD("must not overlap sink = 0x", f->sink = buffers.lse + ROWS_Q * HEADS_Q - 1);
    FORWARD("must not overlap seqused_k = 0x", f->lse = buffers.seqused_k);
    BACKWARD("must not overlap dk = 0x", a->dq = buffers.dk);
    BACKWARD("must not overlap q = 0x", a->dq = (void *)f->q);
    BACKWARD("must not overlap dout = 0x", a->dv = (void *)a->dout);
    BACKWARD("must not overlap o = 0x", a->dbias = f->o);
    BACKWARD("dsink = 0x", a->dsink = (float *)f->lse);
}

/* A backward run of one sequence whose dv, [3][2][head_dim_v], steps as the input `t` does, at another place. */
static enum attest_status run_dv_beside(struct attest_tensor steps, int64_t head_dim_v, int is_q, int64_t dv_at,
                                        int64_t input_at)
{
    static float memory[1024];
    struct attest_problem p = whole_problem();
    p.batch = 1, p.seqlen_q = p.seqlen_k = 3, p.head_dim = p.head_dim_v = head_dim_v;
    p.has_seqused_q = p.has_seqused_k = 0;
    p.block_mask.dtype = p.mask.dtype = p.bias.dtype = p.dbias.dtype = p.o.dtype = ATTEST_ABSENT;
    *(is_q ? &p.q : &p.k) = p.dv = steps;
    struct attest_plan *plan = NULL;
    cr_assert_eq(attest_plan_create(&p, &plan), ATTEST_OK, "%s", attest_last_error());
    fill_buffers(&buffers);
    buffers.args.dv = memory + dv_at;
    if (is_q) buffers.args.forward.q = memory + input_at;
    if (!is_q) buffers.args.forward.k = memory + input_at;
    const enum attest_status status = attest_run_backward(plan, &buffers.args, NULL, 0, NULL);
    attest_plan_destroy(plan);
    return status;
}

Test(args, an_output_may_interleave_with_an_input)
{
    const struct attest_tensor rows = {ATTEST_FP32, 0, 0, 32, 8};
    cr_assert_eq(run_dv_beside(rows, 8, 0, 16, 0), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(run_dv_beside(rows, 8, 0, 0, 16), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(run_dv_beside(rows, 8, 0, 12, 0), ATTEST_INVALID); /* k reaches into dv from before */
    says("must not overlap k");
    cr_assert_eq(run_dv_beside(rows, 8, 0, 0, 12), ATTEST_INVALID);
    says("must not overlap k");

    /* The heads of q step over more than a row of it: its row 0, head 3 is row 2, head 0 of dv. */
    const struct attest_tensor crossing = {ATTEST_FP32, 0, 0, 19, 8};
    cr_assert_eq(run_dv_beside(crossing, 2, 1, 0, 14), ATTEST_INVALID);
    says("must not overlap q");
}

/* dq, dk and dv of equal lengths in one buffer [batch][seqlen][parts][head_dim], a gap after each batch. */
static enum attest_status run_packed(int64_t dk_at, int64_t dv_at)
{
    enum { LENGTH = 3, PARTS = 4, ROW = PARTS * HEAD_DIM, GAP = 5, SIZE = BATCH * (LENGTH * ROW + GAP) };
    static float packed_gradients[SIZE];
    struct attest_problem p = whole_problem();
    p.seqlen_k = LENGTH, p.num_heads_kv = HEADS_KV;
    p.num_heads_q = HEADS_KV, p.head_dim_v = HEAD_DIM / 2, p.num_heads_kv = 1;
    p.has_seqused_q = p.has_seqused_k = 0;
    p.dq = p.dk = p.dv = (struct attest_tensor){ATTEST_FP32, 0, LENGTH * ROW + GAP, ROW, HEAD_DIM};
    struct attest_plan *plan = NULL;
    cr_assert_eq(attest_plan_create(&p, &plan), ATTEST_OK, "%s", attest_last_error());
    fill_buffers(&buffers);
    buffers.args.dq = packed_gradients, buffers.args.dk = packed_gradients + dk_at;
    buffers.args.dv = packed_gradients + dv_at;
    const enum attest_status status = attest_run_backward(plan, &buffers.args, NULL, 0, NULL);
    attest_plan_destroy(plan);
    return status;
}

Test(args, outputs_may_interleave)
{
    cr_assert_eq(run_packed(2 * HEAD_DIM, 3 * HEAD_DIM), ATTEST_OK, "%s", attest_last_error());
    cr_assert_eq(run_packed(2 * HEAD_DIM, 2 * HEAD_DIM + HEAD_DIM / 2), ATTEST_INVALID);
    says("must not overlap");
    cr_assert_eq(run_packed(2 * HEAD_DIM - 1, 3 * HEAD_DIM), ATTEST_INVALID);
    says("must not overlap");
}

Test(args, lengths_that_are_none)
{
    RAGGED("cu_seqlens_q[0] = -1", buffers.cu_seqlens_q[0] = -1);
    RAGGED("cu_seqlens_q[2] = 2, but must be 3 ..", buffers.cu_seqlens_q[2] = 2);
    RAGGED("cu_seqlens_q[2] = 7, but must be 3 .. 6", buffers.cu_seqlens_q[2] = 7);
    struct attest_problem shorter = ragged_problem();
    shorter.total_q = 5;
    RUN(shorter, 1, ATTEST_INVALID, "cu_seqlens_q[2] = 6, but must be 3 .. 5", (void)0);
    RAGGED("cu_seqlens_k[1] = 6, but must be 0 .. 5", buffers.cu_seqlens_k[1] = 6);
    RAGGED("cu_seqlens_k[0] = 11", buffers.cu_seqlens_k[0] = 11);
    RAGGED("seqused_q[1] = 2, but must be 0 .. 1", buffers.cu_seqlens_q[2] = 4);
    FORWARD("seqused_k[0] = 6, but must be 0 .. 5", buffers.seqused_k[0] = 6);
    BACKWARD("seqused_q[1] = -1", buffers.seqused_q[1] = -1);
}

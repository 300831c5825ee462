/* badinput_test.c - whatever is wrong with a call is refused in a sentence, and nothing is written.
 *
 * Every kind of mistake is made in thousands of random valid problems: the status must be the one that
 * attest.h promises, the sentence must hold the field and its value, and no byte may change. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/cases/badinput_case.h"

enum { TRIALS = 2000, MAX_REDRAWS = 200 };

/* Breaks the case and says in c->expect what the sentence must hold; false where it does not apply. */
typedef bool mistake(struct bad_case *c);

__attribute__((format(printf, 2, 3))) static bool expect(struct bad_case *c, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(c->expect, sizeof c->expect, format, arguments);
    va_end(arguments);
    return true;
}

struct field {
    const char *name;
    size_t offset;
};
#define FIELD(name) {#name, offsetof(struct attest_problem, name)}

static bool set64(struct bad_case *c, const struct field *field, int64_t value)
{
    memcpy((char *)&c->p + field->offset, &value, sizeof value);
    return expect(c, "%s = %" PRId64, field->name, value);
}

static bool set32(struct bad_case *c, const struct field *field, int32_t value)
{
    memcpy((char *)&c->p + field->offset, &value, sizeof value);
    return expect(c, "%s = %" PRId32, field->name, value);
}

/* A number above `low`, near it or anywhere up to the largest. */
static int64_t above(struct bad_case *c, int64_t low)
{
    const int64_t room = INT64_MAX - low - 1, near = room < 100 ? room : 100;
    switch (draw(c, 4)) {
    case 0: return low + 1 + draw_range(c, 0, near);
    case 1: return INT64_MAX - draw_range(c, 0, near);
    case 2: return INT64_MAX;
    default: return draw_range(c, low + 1, INT64_MAX);
    }
}

static int64_t negative(struct bad_case *c)
{
    return -above(c, 0) - (int64_t)draw(c, 2);
}

/* Any int32 but low .. high. */
static int32_t outside(struct bad_case *c, int32_t low, int32_t high)
{
    for (;;) {
        const int64_t spread = draw(c, 2) ? 10 : INT32_MAX;
        const int64_t value = draw_range(c, -spread, spread);
        if (value < low || value > high) return (int32_t)value;
    }
}

static const struct field shapes[] = {FIELD(batch),       FIELD(seqlen_q),     FIELD(seqlen_k), FIELD(total_q),
                                      FIELD(total_k),     FIELD(num_heads_q),  FIELD(head_dim), FIELD(head_dim_v),
                                      FIELD(num_heads_kv)};

static bool negative_shape(struct bad_case *c)
{
    return set64(c, &shapes[draw(c, 9)], negative(c));
}

static bool overflowing_shape(struct bad_case *c)
{
    const uint64_t pick = draw(c, 9);
    return set64(c, &shapes[pick], above(c, shapes[pick].name[0] == 'h' ? 256 : INT32_MAX));
}

static bool no_heads(struct bad_case *c)
{
    return set64(c, &shapes[5 + draw(c, 4)], 0); /* heads and head dims */
}

static bool total_of_a_dense_problem(struct bad_case *c)
{
    return !c->p.ragged && set64(c, &shapes[3 + draw(c, 2)], above(c, 0));
}

static bool heads_that_do_not_divide(struct bad_case *c)
{
    c->p.num_heads_kv = draw_range(c, 2, 100);
    return set64(c, &shapes[5], c->p.num_heads_kv * draw_range(c, 1, 9) + draw_range(c, 1, c->p.num_heads_kv - 1));
}

static const struct tensor *draw_tensor_of(struct bad_case *c, bool (*fits)(struct bad_case *, const struct tensor *))
{
    const uint64_t first = draw(c, NUM_TENSORS);
    for (uint64_t i = 0; i < NUM_TENSORS; ++i) {
        const struct tensor *t = &tensors[(first + i) % NUM_TENSORS];
        if (*dtype_of(c, t) != ATTEST_ABSENT && (fits == NULL || fits(c, t))) return t;
    }
    return NULL;
}

static bool expect_dtype(struct bad_case *c, const struct tensor *t, int32_t dtype)
{
    *dtype_of(c, t) = dtype;
    return expect(c, "%s.dtype = %" PRId32, t->name, dtype);
}

static bool unknown_dtype(struct bad_case *c)
{
    return expect_dtype(c, draw_tensor_of(c, NULL), outside(c, ATTEST_ABSENT, ATTEST_UINT8));
}

static bool writes(struct bad_case *c, const struct tensor *t)
{
    (void)c;
    return t->use[0] == 'w' || t->use[1] == 'w';
}

static bool narrow_output(struct bad_case *c)
{
    return expect_dtype(c, draw_tensor_of(c, writes), (int32_t)draw_range(c, ATTEST_FP8_E4M3, ATTEST_UINT8));
}

static bool not_floats(struct bad_case *c, const struct tensor *t)
{
    (void)c;
    return t->shape == SCALARS || strstr(t->name, "mask") != NULL;
}

static bool dtype_of_another_tensor(struct bad_case *c)
{
    const struct tensor *t = draw_tensor_of(c, not_floats);
    return t != NULL && expect_dtype(c, t, t->shape == SCALARS ? ATTEST_BF16 : ATTEST_FP32);
}

static bool k_or_v_unlike_q(struct bad_case *c)
{
    const int32_t dtype = (int32_t)draw_range(c, ATTEST_FP32, ATTEST_FP8_E5M2);
    return dtype != c->p.q.dtype && expect_dtype(c, &tensors[1 + draw(c, 2)], dtype);
}

static bool missing_tensor(struct bad_case *c)
{
    static const char *const needed[] = {"q", "k", "v", "lse", "dout", "dq", "dk", "dv"};
    const char *name = needed[draw(c, c->p.dq.dtype != ATTEST_ABSENT ? 8 : 3)];
    for (int i = 0; i < NUM_TENSORS; ++i) {
        if (strcmp(tensors[i].name, name) == 0) return expect_dtype(c, &tensors[i], ATTEST_ABSENT);
    }
    return false;
}

static bool backward_tensor_of_a_forward_problem(struct bad_case *c)
{
    static const int only_backward[] = {5, 6, 7, 12}; /* dout, dlse, delta, dbias */
    return c->p.dq.dtype == ATTEST_ABSENT && expect_dtype(c, &tensors[only_backward[draw(c, 4)]], ATTEST_FP32);
}

static bool crooked_align(struct bad_case *c)
{
    const struct tensor *t = draw_tensor_of(c, NULL);
    int32_t align = outside(c, 0, 0);
    while (align > 0 && (align & (align - 1)) == 0) align = outside(c, 0, 0);
    *align_of(c, t) = align;
    return expect(c, "%s.align = %" PRId32, t->name, align);
}

static bool expect_stride(struct bad_case *c, const struct tensor *t, int64_t stride, bool moves)
{
    const struct axes axes = axes_of(c, t);
    const uint64_t a = draw(c, (uint64_t)axes.count);
    if (moves && axes.counts[a] < 2) return false;
    *axes.strides[a] = stride;
    return expect(c, "%s.%s = %" PRId64, t->name, axes.names[a], stride);
}

static bool negative_stride(struct bad_case *c)
{
    return expect_stride(c, draw_tensor_of(c, NULL), negative(c), false);
}

static bool overflowing_stride(struct bad_case *c)
{
    const struct tensor *t = draw_tensor_of(c, NULL);
    const int64_t fits = INT64_MAX / (int64_t)bytes_of_dtype(*dtype_of(c, t)); /* alone, not with an element after it */
    return expect_stride(c, t, above(c, fits - 1), true);
}

static bool stride_off_its_align(struct bad_case *c)
{
    const struct tensor *t = draw_tensor_of(c, NULL);
    const int32_t step = 1 << draw_range(c, 2, 6); /* elements */
    *align_of(c, t) = step * (int32_t)bytes_of_dtype(*dtype_of(c, t));
    const struct axes axes = axes_of(c, t);
    for (int a = 0; a < axes.count; ++a) *axes.strides[a] = INT64_C(1) << (10 + 8 * a); /* fine, all but one */
    return expect_stride(c, t, 2 * step + draw_range(c, 1, step - 1), true);
}

static bool output_on_itself(struct bad_case *c)
{
    const struct tensor *t = draw_tensor_of(c, writes);
    const bool is_input = strcmp(t->name, "lse") == 0 && c->p.o.dtype == ATTEST_ABSENT; /* of a backward pass alone */
    const bool sums = strcmp(t->name, "dbias") == 0; /* a stride of zero is its right */
    const int64_t innermost = axes_of(c, t).innermost;
    if (is_input || sums || *align_of(c, t) > (int32_t)bytes_of_dtype(*dtype_of(c, t))) return false;
    return expect_stride(c, t, draw_range(c, 0, innermost - 1), true);
}

static bool scale_that_is_not_finite(struct bad_case *c)
{
    static const float values[] = {NAN, INFINITY, -INFINITY};
    c->p.softmax_scale = values[draw(c, 3)];
    return expect(c, "softmax_scale = %g", (double)c->p.softmax_scale);
}

static bool softcap_below_zero(struct bad_case *c)
{
    static const float values[] = {NAN, INFINITY, -INFINITY, -1, -1e-45f};
    c->p.softcap = values[draw(c, 5)];
    return expect(c, "softcap = %g", (double)c->p.softcap);
}

static bool dropout_outside_its_range(struct bad_case *c)
{
    static const float values[] = {NAN, INFINITY, -1e-45f, 1, 0.999995f, -7};
    c->p.dropout_p = values[draw(c, 6)];
    return expect(c, "dropout_p = %g", (double)c->p.dropout_p);
}

static bool window_without_a_diagonal(struct bad_case *c)
{
    const struct attest_problem *p = &c->p;
    const bool may_differ = p->seqlen_q != p->seqlen_k || p->ragged || p->has_seqused_q || p->has_seqused_k;
    c->p.diag_kind = ATTEST_DIAG_UNSET, c->p.diag = 0;
    return may_differ && (p->window_left >= 0 || p->window_right >= 0) && expect(c, "diag_kind = 0");
}

static bool index_that_overflows(struct bad_case *c)
{
    static const struct field fields[] = {FIELD(window_left), FIELD(window_right), FIELD(q_start),
                                          FIELD(k_start),     FIELD(diag),         FIELD(alibi_diag)};
    c->p.diag_kind = c->p.alibi_diag_kind = ATTEST_DIAG_GIVEN;
    return set64(c, &fields[draw(c, 6)], above(c, INT64_C(1) << 60));
}

static bool index_below_its_range(struct bad_case *c)
{
    static const struct field fields[] = {FIELD(q_start), FIELD(k_start), FIELD(diag), FIELD(alibi_diag)};
    const uint64_t pick = draw(c, 4);
    c->p.diag_kind = c->p.alibi_diag_kind = ATTEST_DIAG_GIVEN;
    return set64(c, &fields[pick], pick < 2 ? negative(c) : -above(c, INT64_C(1) << 60));
}

static bool diagonal_nobody_asked_for(struct bad_case *c)
{
    static const struct field fields[] = {FIELD(diag), FIELD(alibi_diag)};
    c->p.diag_kind = ATTEST_DIAG_TOP_LEFT, c->p.alibi_diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    c->p.diag = c->p.alibi_diag = 0;
    return set64(c, &fields[draw(c, 2)], draw(c, 2) ? above(c, 0) : negative(c));
}

static bool unknown_choice(struct bad_case *c)
{
    static const struct field fields[] = {FIELD(device), FIELD(diag_kind), FIELD(alibi_diag_kind)};
    const uint64_t pick = draw(c, 3);
    return set32(c, &fields[pick], outside(c, 0, pick == 0 ? ATTEST_REFERENCE : ATTEST_DIAG_GIVEN));
}

static bool flag_that_is_no_flag(struct bad_case *c)
{
    static const struct field flags[] = {FIELD(ragged),        FIELD(has_alibi),     FIELD(has_sink),
                                         FIELD(has_seqused_q), FIELD(has_seqused_k), FIELD(external_lse)};
    return set32(c, &flags[draw(c, 6)], outside(c, 0, 1));
}

static bool unknown_ordinal(struct bad_case *c)
{
    static const struct field ordinal = FIELD(device_ordinal);
    return set32(c, &ordinal, outside(c, 0, 0));
}

static bool block_without_size(struct bad_case *c)
{
    static const struct field sizes[] = {FIELD(block_q), FIELD(block_k)};
    if (c->p.block_mask.dtype == ATTEST_ABSENT) return false;
    return set64(c, &sizes[draw(c, 2)], draw(c, 2) ? 0 : negative(c));
}

static bool struct_from_the_past(struct bad_case *c)
{
    c->p.struct_size = (uint32_t)draw(c, sizeof c->p);
    return expect(c, "problem.struct_size = %" PRIu32, c->p.struct_size);
}

static bool not_initialized(struct bad_case *c)
{
    c->p.initialized = draw(c, 2) ? 0 : (uint32_t)draw(c, ATTEST_INITIALIZED);
    return expect(c, "initialized = %" PRIu32, c->p.initialized);
}

/* The kinds below are UNSUPPORTED: valid one day, or on another machine. */
static bool more_than_a_kernel_takes(struct bad_case *c)
{
    c->p.device = ATTEST_SIM;
    if (c->p.q.dtype > ATTEST_BF16) return expect(c, "q.dtype = %" PRId32, c->p.q.dtype);
    if (draw(c, 2)) {
        c->p.softcap = 3e38f;
        return expect(c, "softcap = %g", (double)c->p.softcap);
    }
    c->p.softmax_scale = draw(c, 2) ? 3e38f : -3e38f;
    return expect(c, "softmax_scale = %g", (double)c->p.softmax_scale);
}

static bool low_parts(struct bad_case *c)
{
    static const struct field fields[] = {{"o_low.dtype", offsetof(struct attest_problem, o_low.dtype)},
                                          {"lse_low.dtype", offsetof(struct attest_problem, lse_low.dtype)}};
    return set32(c, &fields[draw(c, 2)], outside(c, 0, 0));
}

static bool paged(struct bad_case *c)
{
    static const struct field page_size = FIELD(page_size);
    return set64(c, &page_size, above(c, 0));
}

/* Mistakes in the arguments of a run. */
static char use_of(const struct bad_case *c, const struct tensor *t)
{
    return t->use[c->backward];
}

static bool takes_part(struct bad_case *c, const struct tensor *t)
{
    return use_of(c, t) != '-';
}

static bool written_here(struct bad_case *c, const struct tensor *t)
{
    return use_of(c, t) == 'w';
}

static bool null_tensor(struct bad_case *c)
{
    const struct tensor *t = draw_tensor_of(c, takes_part);
    set_pointer(c, t, NULL);
    return expect(c, "%s = NULL", t->name);
}

static bool misaligned_tensor(struct bad_case *c)
{
    const struct tensor *t = draw_tensor_of(c, takes_part);
    const int64_t align = (int64_t)bytes_of_dtype(*dtype_of(c, t));
    if (align == 1) return false;
    const void *pointer = (char *)get_pointer(c, t) + draw_range(c, 1, align - 1);
    set_pointer(c, t, pointer);
    return expect(c, "%s = %p", t->name, pointer);
}

/* An output moved to where another block of the same pass is, one byte of it at least. */
static bool output_on_another(struct bad_case *c)
{
    const struct tensor *t = draw_tensor_of(c, written_here), *other = draw_tensor_of(c, takes_part);
    if (t == NULL || other == t) return false;
    const uintptr_t align = bytes_of_dtype(*dtype_of(c, t));
    const void *pointer = (const void *)((uintptr_t)get_pointer(c, other) / align * align);
    set_pointer(c, t, pointer);
    return expect(c, "%s = %p", t->name, pointer);
}

static bool output_on_an_array(struct bad_case *c)
{
    const struct tensor *t = draw_tensor_of(c, written_here);
    const struct attest_forward_args *f = &c->a.forward;
    const void *const arrays[] = {f->alibi_slopes, f->sink,         f->cu_seqlens_q,  f->cu_seqlens_k,  f->seqused_q,
                                  f->seqused_k,    f->dropout_seed, f->dropout_offset, f->dropout_stream};
    const void *pointer = arrays[draw(c, 9)];
    if (pointer == NULL) return false;
    set_pointer(c, t, pointer);
    return expect(c, "%s = %p", t->name, pointer);
}

static bool null_array(struct bad_case *c)
{
    struct attest_forward_args *f = &c->a.forward;
    switch (draw(c, 6)) {
    case 0: f->alibi_slopes = NULL; return c->p.has_alibi && expect(c, "alibi_slopes = NULL");
    case 1: f->sink = NULL; return c->p.has_sink && expect(c, "sink = NULL");
    case 2: f->cu_seqlens_q = NULL; return c->p.ragged && expect(c, "cu_seqlens_q = NULL");
    case 3: f->cu_seqlens_k = NULL; return c->p.ragged && expect(c, "cu_seqlens_k = NULL");
    case 4: f->seqused_q = NULL; return c->p.has_seqused_q && expect(c, "seqused_q = NULL");
    default: f->seqused_k = NULL; return c->p.has_seqused_k && expect(c, "seqused_k = NULL");
    }
}

static bool lengths_that_are_none(struct bad_case *c)
{
    const bool q = draw(c, 2);
    int32_t *starts = (int32_t *)(q ? c->a.forward.cu_seqlens_q : c->a.forward.cu_seqlens_k);
    const int32_t seqlen = (int32_t)(q ? c->p.seqlen_q : c->p.seqlen_k);
    if (starts == NULL) return false;
    const int64_t b = draw_range(c, 0, c->p.batch);
    const int32_t total = (int32_t)(q ? c->p.total_q : c->p.total_k);
    const int32_t low = b == 0 ? 0 : starts[b - 1], high = b == 0 ? total : low + seqlen;
    starts[b] = outside(c, low, high);
    return expect(c, "%s[%" PRId64 "] = %" PRId32, q ? "cu_seqlens_q" : "cu_seqlens_k", b, starts[b]);
}

static bool used_beyond_the_length(struct bad_case *c)
{
    const bool q = draw(c, 2);
    int32_t *used = (int32_t *)(q ? c->a.forward.seqused_q : c->a.forward.seqused_k);
    if (used == NULL) return false;
    const int64_t b = draw_range(c, 0, c->p.batch - 1);
    used[b] = outside(c, 0, (int32_t)(q ? c->p.seqlen_q : c->p.seqlen_k));
    return expect(c, "%s[%" PRId64 "] = %" PRId32, q ? "seqused_q" : "seqused_k", b, used[b]);
}

static bool args_of_another_size(struct bad_case *c)
{
    c->a.forward.struct_size = (uint32_t)draw(c, sizeof c->a.forward);
    return expect(c, "struct_size = %" PRIu32, c->a.forward.struct_size);
}

static bool reserved_number(struct bad_case *c)
{
    c->a.forward.reserved0 = 1 + (uint32_t)draw(c, UINT32_MAX);
    return expect(c, "reserved0 = %" PRIu32, c->a.forward.reserved0);
}

static bool reserved_pointer(struct bad_case *c) /* UNSUPPORTED */
{
    struct attest_forward_args *f = &c->a.forward;
    static const char *const names[] = {"o_low", "lse_low", "q_scale", "k_scale", "v_scale", "block_table"};
    void *pointer = c->blocks[0].bytes;
    const uint64_t pick = draw(c, 6);
    if (pick == 0) f->o_low = pointer;
    if (pick == 1) f->lse_low = pointer;
    if (pick == 2) f->q_scale = pointer;
    if (pick == 3) f->k_scale = pointer;
    if (pick == 4) f->v_scale = pointer;
    if (pick == 5) f->block_table = pointer;
    return expect(c, "%s = %p", names[pick], pointer);
}

static bool pass_the_plan_lacks(struct bad_case *c)
{
    const bool lacks_backward = c->p.dq.dtype == ATTEST_ABSENT, lacks_forward = c->p.o.dtype == ATTEST_ABSENT;
    c->backward = lacks_backward;
    return (lacks_backward || lacks_forward) && expect(c, "%s.dtype = 0", lacks_backward ? "dq" : "o");
}

enum where { IN_PROBLEM, IN_ARGS };

static const struct kind {
    const char *name;
    mistake *make;
    enum where where;
    enum attest_status status;
} kinds[] = {
#define PROBLEM(name) {#name, name, IN_PROBLEM, ATTEST_INVALID}
#define ARGS(name) {#name, name, IN_ARGS, ATTEST_INVALID}
    PROBLEM(negative_shape), PROBLEM(overflowing_shape), PROBLEM(no_heads), PROBLEM(total_of_a_dense_problem),
    PROBLEM(heads_that_do_not_divide), PROBLEM(unknown_dtype), PROBLEM(narrow_output), PROBLEM(dtype_of_another_tensor),
    PROBLEM(k_or_v_unlike_q), PROBLEM(missing_tensor), PROBLEM(backward_tensor_of_a_forward_problem),
    PROBLEM(crooked_align), PROBLEM(negative_stride), PROBLEM(overflowing_stride), PROBLEM(stride_off_its_align),
    PROBLEM(output_on_itself), PROBLEM(scale_that_is_not_finite), PROBLEM(softcap_below_zero),
    PROBLEM(dropout_outside_its_range), PROBLEM(window_without_a_diagonal), PROBLEM(index_that_overflows),
    PROBLEM(index_below_its_range), PROBLEM(diagonal_nobody_asked_for), PROBLEM(unknown_choice),
    PROBLEM(flag_that_is_no_flag), PROBLEM(unknown_ordinal), PROBLEM(block_without_size), PROBLEM(struct_from_the_past),
    PROBLEM(not_initialized),
    {"more_than_a_kernel_takes", more_than_a_kernel_takes, IN_PROBLEM, ATTEST_UNSUPPORTED},
    {"low_parts", low_parts, IN_PROBLEM, ATTEST_UNSUPPORTED},
    {"paged", paged, IN_PROBLEM, ATTEST_UNSUPPORTED},
    ARGS(null_tensor), ARGS(misaligned_tensor), ARGS(output_on_another), ARGS(output_on_an_array), ARGS(null_array),
    ARGS(lengths_that_are_none), ARGS(used_beyond_the_length), ARGS(args_of_another_size), ARGS(reserved_number),
    {"reserved_pointer", reserved_pointer, IN_ARGS, ATTEST_UNSUPPORTED},
    ARGS(pass_the_plan_lacks),
};
enum { NUM_KINDS = sizeof kinds / sizeof *kinds };

static enum attest_status run(const struct bad_case *c, const struct attest_plan *plan)
{
    return c->backward ? attest_run_backward(plan, &c->a, NULL, 0, NULL)
                       : attest_run_forward(plan, &c->a.forward, NULL, 0, NULL);
}

static void check_refusal(const struct kind *kind, const struct bad_case *c, enum attest_status status, uint64_t seed)
{
    cr_assert_eq(status, kind->status, "%s, seed %" PRIu64 ": %s where %s was asked for: %s", kind->name, seed,
                 attest_status_name(status), c->expect, attest_last_error());
    cr_assert(strstr(attest_last_error(), c->expect) != NULL, "%s, seed %" PRIu64 ": \"%s\" is not in \"%s\"",
              kind->name, seed, c->expect, attest_last_error());
}

/* One mistake in one problem. False where the kind does not apply. */
static bool check_mistake(const struct kind *kind, uint64_t seed)
{
    struct bad_case c;
    draw_case(&c, seed);
    const bool applies = kind->make(&c);
    const uint64_t hash = hash_memory(&c);
    struct attest_plan *plan = (struct attest_plan *)&c;
    if (applies) {
        enum attest_status status = attest_plan_create(&c.p, &plan);
        if (kind->where == IN_ARGS) {
            cr_assert_eq(status, ATTEST_OK, "%s, seed %" PRIu64 ": %s", kind->name, seed, attest_last_error());
            status = run(&c, plan);
        }
        check_refusal(kind, &c, status, seed);
        cr_assert_eq(plan != NULL, kind->where == IN_ARGS);
        cr_assert_eq(hash, hash_memory(&c), "%s, seed %" PRIu64 ": something was written", kind->name, seed);
        attest_plan_destroy(plan);
    }
    free_case(&c);
    return applies;
}

Test(badinput, every_mistake_is_refused_in_a_sentence_and_nothing_is_written)
{
    for (int k = 0; k < NUM_KINDS; ++k) {
        uint64_t seed = (uint64_t)k << 32;
        for (int done = 0, redrawn = 0; done < TRIALS; ++seed) {
            const bool applied = check_mistake(&kinds[k], seed);
            done += applied, redrawn = applied ? 0 : redrawn + 1;
            cr_assert(redrawn < MAX_REDRAWS, "%s never applies", kinds[k].name);
        }
    }
    printf("%d kinds of mistakes, %d each: refused\n", NUM_KINDS, TRIALS);
}

/* Without a mistake the same problems run: what is refused above is refused for its mistake. */
Test(badinput, the_unbroken_problems_are_accepted_and_run)
{
    for (uint64_t seed = 0; seed < 2 * TRIALS; ++seed) {
        struct bad_case c;
        draw_case(&c, seed << 20);
        struct attest_plan *plan = NULL;
        cr_assert_eq(attest_plan_create(&c.p, &plan), ATTEST_OK, "seed %" PRIu64 ": %s", seed, attest_last_error());
        cr_assert_eq(run(&c, plan), ATTEST_OK, "seed %" PRIu64 ": %s", seed, attest_last_error());
        attest_plan_destroy(plan);
        free_case(&c);
    }
}

/* Bytes at random: whatever comes out, a refusal has a sentence and a plan is a plan. */
Test(badinput, random_bytes_in_a_problem_do_no_harm)
{
    int refused = 0;
    for (uint64_t seed = 0; seed < 10 * TRIALS; ++seed) {
        struct bad_case c;
        draw_case(&c, ~seed);
        struct {
            struct attest_problem p;
            unsigned char tail[64];
        } longer = {c.p, {0}};
        for (uint64_t flips = 1 + draw(&c, 3); flips > 0; --flips) {
            /* past the first four bytes: a struct_size beyond this memory would be a lie about it */
            ((unsigned char *)&longer)[4 + draw(&c, sizeof longer - 4)] ^= (unsigned char)(1 + draw(&c, 255));
        }
        longer.p.struct_size = draw(&c, 2) ? sizeof longer : sizeof longer.p;
        struct attest_plan *plan = NULL;
        const enum attest_status status = attest_plan_create(&longer.p, &plan);
        cr_assert_eq(status == ATTEST_OK, plan != NULL);
        cr_assert(status == ATTEST_OK || strlen(attest_last_error()) > 0);
        refused += status != ATTEST_OK;
        attest_plan_destroy(plan);
        free_case(&c);
    }
    cr_assert(refused > TRIALS, "only %d were refused", refused);
}

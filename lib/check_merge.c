/* check_merge.c - arguments of merges and of their backward: ranges, pointers, outputs apart. */
#include <inttypes.h>
#include <stdio.h>

#include "kernels/shared/params.h"
#include "lib/check.h"
#include "lib/error.h"
#include "lib/run.h"

/* Packed numbers that a call reads or writes. */
struct span {
    const char *name;
    int64_t state; /* which of the states; NO_STATE: the result */
    const void *data;
    int64_t count, element_bytes;
};
enum { NO_STATE = -1 };

struct span_text {
    char text[40];
};

static struct span_text text_of(const struct span *s)
{
    struct span_text out;
    if (s->state == NO_STATE) snprintf(out.text, sizeof out.text, "%s", s->name);
    else snprintf(out.text, sizeof out.text, "%s[%" PRId64 "]", s->name, s->state);
    return out;
}

static bool is_there(const struct span *s)
{
    if (s->data != NULL && (uintptr_t)s->data % (uintptr_t)s->element_bytes == 0) return true;
    return attest_refuse(ATTEST_INVALID, "%s = %p, but must point to its numbers, at a multiple of %" PRId64,
                         text_of(s).text, s->data, (int64_t)s->element_bytes);
}

static bool are_apart(const struct span *output, const struct span *other)
{
    const uintptr_t a = (uintptr_t)output->data, b = (uintptr_t)other->data;
    const uintptr_t bytes_a = (uintptr_t)(output->count * output->element_bytes);
    const uintptr_t bytes_b = (uintptr_t)(other->count * other->element_bytes);
    if (a >= b + bytes_b || b >= a + bytes_a) return true;
    return attest_refuse(ATTEST_INVALID, "%s = %p, but must not overlap %s = %p", text_of(output).text, output->data,
                         text_of(other).text, other->data);
}

/* ---- host values ---- */

static bool check_at_least(const char *field, int64_t value, int64_t low)
{
    if (value >= low) return true;
    return attest_refuse(ATTEST_INVALID, "%s = %" PRId64 ", but must be >= %" PRId64, field, value, low);
}

static bool check_at_most(const char *field, int64_t value, int64_t high)
{
    if (value <= high) return true;
    return attest_refuse(ATTEST_UNSUPPORTED, "%s = %" PRId64 ", but must be at most %" PRId64 " on this device", field,
                         value, high);
}

static bool check_device(int32_t device, int32_t ordinal)
{
    if (device < ATTEST_CUDA || device > ATTEST_REFERENCE)
        return attest_refuse(ATTEST_INVALID, "device = %d, but must be 0 .. 2", device);
    if (ordinal < 0 || (ordinal > 0 && device != ATTEST_CUDA))
        return attest_refuse(ATTEST_INVALID, "device_ordinal = %d, but must be %s", ordinal,
                             device == ATTEST_CUDA ? ">= 0" : "0");
    return true;
}

static bool check_dtype(const char *field, int32_t dtype)
{
    if (dtype == 0 || dtype == ATTEST_FP32 || dtype == ATTEST_FP16 || dtype == ATTEST_BF16) return true;
    return attest_refuse(ATTEST_INVALID, "%s = %d, but must be 0, fp32, fp16 or bf16", field, dtype);
}

static bool check_extents(int64_t num_states, int64_t rows, int64_t head_dim_v)
{
    int64_t bytes;
    if (!check_at_least("num_states", num_states, 0) || !check_at_least("rows", rows, 0) ||
        !check_at_least("head_dim_v", head_dim_v, 1)) {
        return false;
    }
    if (!__builtin_mul_overflow(rows, head_dim_v, &bytes) && !__builtin_mul_overflow(bytes, 4, &bytes)) return true;
    return attest_refuse(ATTEST_INVALID, "rows = %" PRId64 ", but rows * head_dim_v floats must be < 2^63 bytes", rows);
}

static bool check_pointers(const char *field, const void *pointers)
{
    return pointers != NULL ||
           attest_refuse(ATTEST_INVALID, "%s = NULL, but must point to num_states pointers", field);
}

/* What the device itself cannot do. */
static bool check_limits(int32_t device, int64_t num_states, int64_t rows)
{
    if (device == ATTEST_REFERENCE) return true;
    return (device != ATTEST_CUDA || attest_check_cuda()) &&
           check_at_most("num_states", num_states, MERGE_MAX_STATES) &&
           check_at_most("rows", rows, (INT64_C(1) << 33) - 4);
}

static int64_t bytes_of(int32_t dtype) { return dtype == 0 || dtype == ATTEST_FP32 ? 4 : 2; }

/* ---- merge ---- */

/* An output in fp32 may be that of a state, whole. */
static bool check_state(const struct attest_merge_args *a, int64_t s, const struct span *o, const struct span *lse)
{
    const struct span o_state = {"o_states", s, a->o_states[s], o->count, 4};
    const struct span lse_state = {"lse_states", s, a->lse_states[s], lse->count, 4};
    const bool is_o = o->data == o_state.data && o->element_bytes == 4, is_lse = lse->data == lse_state.data;
    return is_there(&o_state) && is_there(&lse_state) && (is_o || are_apart(o, &o_state)) &&
           (is_lse || are_apart(lse, &lse_state)) && are_apart(o, &lse_state) && are_apart(lse, &o_state);
}

static bool check_merge_memory(const struct attest_merge_args *a)
{
    const struct span o = {"o", NO_STATE, a->o, a->rows * a->head_dim_v, bytes_of(a->o_dtype)};
    const struct span lse = {"lse", NO_STATE, a->lse, a->rows, 4};
    if (a->num_states > 0 && (!check_pointers("o_states", a->o_states) || !check_pointers("lse_states", a->lse_states)))
        return false;
    if (!is_there(&o) || !is_there(&lse) || !are_apart(&o, &lse)) return false;
    for (int64_t s = 0; s < a->num_states; ++s)
        if (!check_state(a, s, &o, &lse)) return false;
    return true;
}

bool attest_check_merge(const struct attest_merge_args *a)
{
    return attest_check_struct("args", a, sizeof *a) && check_device(a->device, a->device_ordinal) &&
           check_dtype("o_dtype", a->o_dtype) && check_extents(a->num_states, a->rows, a->head_dim_v) &&
           check_limits(a->device, a->num_states, a->rows) && (a->rows == 0 || check_merge_memory(a));
}

/* ---- backward ---- */

enum { SPANS_OF_STATE = 4, SPANS_OF_RESULT = 4 };

/* What a state reads, then what it writes. */
static void spans_of_state(const struct attest_merge_backward_args *a, int64_t s, struct span out[SPANS_OF_STATE])
{
    const int64_t elements = a->rows * a->head_dim_v;
    out[0] = (struct span){"o_states", s, a->o_states[s], elements, 4};
    out[1] = (struct span){"lse_states", s, a->lse_states[s], a->rows, 4};
    out[2] = (struct span){"do_states", s, a->do_states[s], elements, 4};
    out[3] = (struct span){"dlse_states", s, a->dlse_states[s], a->rows, 4};
}

/* What all states read. */
static int spans_of_result(const struct attest_merge_backward_args *a, struct span out[SPANS_OF_RESULT])
{
    const int64_t elements = a->rows * a->head_dim_v;
    out[0] = (struct span){"o", NO_STATE, a->o, elements, bytes_of(a->o_dtype)};
    out[1] = (struct span){"lse", NO_STATE, a->lse, a->rows, 4};
    out[2] = (struct span){"dout", NO_STATE, a->dout, elements, bytes_of(a->dout_dtype)};
    out[3] = (struct span){"dlse", NO_STATE, a->dlse, a->rows, 4};
    return a->dlse != NULL ? 4 : 3;
}

/* An output beside all inputs, the outputs of later states, and those after it of its own. */
static bool check_output(const struct attest_merge_backward_args *a, const struct span *output, bool is_first)
{
    struct span others[SPANS_OF_STATE], results[SPANS_OF_RESULT];
    const int num_results = spans_of_result(a, results);
    for (int i = 0; i < num_results; ++i)
        if (!are_apart(output, &results[i])) return false;
    for (int64_t s = 0; s < a->num_states; ++s) {
        spans_of_state(a, s, others);
        if (!are_apart(output, &others[0]) || !are_apart(output, &others[1])) return false;
        const bool is_later = s > output->state, is_own = s == output->state;
        if (is_later && !are_apart(output, &others[2])) return false;
        if ((is_later || (is_own && is_first)) && !are_apart(output, &others[3])) return false;
    }
    return true;
}

static bool check_backward_memory(const struct attest_merge_backward_args *a)
{
    struct span spans[SPANS_OF_STATE], results[SPANS_OF_RESULT];
    if (!check_pointers("o_states", a->o_states) || !check_pointers("lse_states", a->lse_states) ||
        !check_pointers("do_states", a->do_states) || !check_pointers("dlse_states", a->dlse_states)) {
        return false;
    }
    const int num_results = spans_of_result(a, results);
    for (int i = 0; i < num_results; ++i)
        if (!is_there(&results[i])) return false;
    for (int64_t s = 0; s < a->num_states; ++s) {
        spans_of_state(a, s, spans);
        for (int i = 0; i < SPANS_OF_STATE; ++i)
            if (!is_there(&spans[i])) return false;
    }
    for (int64_t s = 0; s < a->num_states; ++s) {
        spans_of_state(a, s, spans);
        if (!check_output(a, &spans[2], true) || !check_output(a, &spans[3], false)) return false;
    }
    return true;
}

static bool check_reserved(int32_t reserved0)
{
    return reserved0 == 0 || attest_refuse(ATTEST_INVALID, "reserved0 = %d, but must be 0", reserved0);
}

bool attest_check_merge_backward(const struct attest_merge_backward_args *a)
{
    return attest_check_struct("args", a, sizeof *a) && check_device(a->device, a->device_ordinal) &&
           check_dtype("o_dtype", a->o_dtype) && check_dtype("dout_dtype", a->dout_dtype) &&
           check_reserved(a->reserved0) && check_extents(a->num_states, a->rows, a->head_dim_v) &&
           check_limits(a->device, a->num_states, a->rows) &&
           (a->rows == 0 || a->num_states == 0 || check_backward_memory(a));
}

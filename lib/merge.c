/* merge.c - states of disjoint key sets to the state of their union. On the host: sums in double, one rounding. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "kernels/params.h"
#include "lib/check.h"
#include "lib/error.h"
#include "lib/run.h"

enum { BLOCK = 64 }; /* features summed at a time, so that no memory is needed */

struct states {
    int64_t count, rows, features;
    const float *const *o, *const *lse;
};

static bool overlap(const float *a, int64_t count_a, const float *b, int64_t count_b)
{
    const uintptr_t first_a = (uintptr_t)a, first_b = (uintptr_t)b;
    return first_a < first_b + (uintptr_t)count_b * sizeof *b && first_b < first_a + (uintptr_t)count_a * sizeof *a;
}

static bool is_floats(const float *pointer)
{
    return pointer != NULL && (uintptr_t)pointer % sizeof *pointer == 0;
}

static bool check_output(const char *name, const float *pointer)
{
    return is_floats(pointer) || attest_refuse(ATTEST_INVALID, "%s = %p, but must point to its floats", name,
                                               (const void *)pointer);
}

static bool check_input(const char *name, int64_t state, const float *pointer)
{
    return is_floats(pointer) || attest_refuse(ATTEST_INVALID, "%s[%" PRId64 "] = %p, but must point to its floats",
                                               name, state, (const void *)pointer);
}

static bool check_apart(const char *output, const float *a, int64_t count_a, const char *input, int64_t state,
                        const float *b, int64_t count_b)
{
    if (!overlap(a, count_a, b, count_b)) return true;
    return attest_refuse(ATTEST_INVALID, "%s = %p, but must not overlap %s[%" PRId64 "] = %p in part", output,
                         (const void *)a, input, state, (const void *)b);
}

static bool check_state(const struct states *s, int64_t a, const float *o, const float *lse)
{
    const int64_t elements = s->rows * s->features;
    return check_input("o_states", a, s->o[a]) && check_input("lse_states", a, s->lse[a]) &&
           (o == s->o[a] || check_apart("o", o, elements, "o_states", a, s->o[a], elements)) &&
           (lse == s->lse[a] || check_apart("lse", lse, s->rows, "lse_states", a, s->lse[a], s->rows)) &&
           check_apart("o", o, elements, "lse_states", a, s->lse[a], s->rows) &&
           check_apart("lse", lse, s->rows, "o_states", a, s->o[a], elements);
}

static bool check_count(const char *field, int64_t value, int64_t low)
{
    if (value >= low) return true;
    return attest_refuse(ATTEST_INVALID, "%s = %" PRId64 ", but must be >= %" PRId64, field, value, low);
}

static bool check_merge(const struct states *s, const float *o, const float *lse)
{
    int64_t bytes;
    if (!check_count("num_states", s->count, 0) || !check_count("rows", s->rows, 0) ||
        !check_count("head_dim_v", s->features, 1)) {
        return false;
    }
    if (__builtin_mul_overflow(s->rows, s->features, &bytes) || __builtin_mul_overflow(bytes, 4, &bytes)) {
        return attest_refuse(ATTEST_INVALID, "rows = %" PRId64 ", but rows * head_dim_v floats must be < 2^63 bytes",
                             s->rows);
    }
    if (s->rows == 0) return true;
    if (s->count > 0 && (s->o == NULL || s->lse == NULL)) {
        return attest_refuse(ATTEST_INVALID, "%s = NULL, but must point to num_states pointers",
                             s->o == NULL ? "o_states" : "lse_states");
    }
    if (!check_output("o", o) || !check_output("lse", lse)) return false;
    if (overlap(o, s->rows * s->features, lse, s->rows)) {
        return attest_refuse(ATTEST_INVALID, "o = %p, but must not overlap lse = %p", (const void *)o,
                             (const void *)lse);
    }
    for (int64_t a = 0; a < s->count; ++a) {
        if (!check_state(s, a, o, lse)) return false;
    }
    return true;
}

/* What one row's states come to. */
struct total {
    int64_t parts, part; /* states that are not empty, and the last of them */
    double max, sum;     /* of lse; of exp(lse - max) */
};

static bool is_empty(float lse)
{
    return lse == -INFINITY; /* false for NaN, which must be felt */
}

/* exp(lse - max): one for a state at the maximum. Infinite lse give NaN, as IEEE has it. */
static double weight(const struct total *t, float lse)
{
    return exp((double)lse - t->max);
}

/* One NaN for all: which of two comes out of a sum depends on their order. */
static float rounded(double value)
{
    return isnan(value) ? NAN : (float)value;
}

static struct total total_of(const struct states *s, int64_t row)
{
    struct total t = {0, 0, -INFINITY, 0.0};
    for (int64_t a = 0; a < s->count; ++a) {
        const float lse = s->lse[a][row];
        if (is_empty(lse)) continue;
        t.parts += 1;
        t.part = a;
        if (lse > t.max) t.max = lse; /* a NaN is never the maximum, and makes the sum NaN */
    }
    for (int64_t a = 0; a < s->count; ++a) {
        if (!is_empty(s->lse[a][row])) t.sum += weight(&t, s->lse[a][row]);
    }
    return t;
}

static void merge_features(const struct states *s, const struct total *t, int64_t row, int64_t first, float *o)
{
    const int64_t count = s->features - first < BLOCK ? s->features - first : BLOCK;
    double sum[BLOCK] = {0.0};
    for (int64_t a = 0; a < s->count; ++a) {
        if (is_empty(s->lse[a][row])) continue;
        const double w = weight(t, s->lse[a][row]);
        const float *o_a = s->o[a] + row * s->features + first;
        for (int64_t x = 0; x < count; ++x) sum[x] += w * o_a[x];
    }
    for (int64_t x = 0; x < count; ++x) o[row * s->features + first + x] = rounded(sum[x] / t->sum);
}

/* Every state's part of the row is read before it is written, so the result may be one of them. */
static void merge_row(const struct states *s, int64_t row, float *o, float *lse)
{
    const struct total t = total_of(s, row);
    float *const o_row = o + row * s->features;
    if (t.parts == 0) {
        for (int64_t x = 0; x < s->features; ++x) o_row[x] = 0.0f;
        lse[row] = -INFINITY;
    } else if (t.parts == 1) { /* bitwise */
        memmove(o_row, s->o[t.part] + row * s->features, (size_t)s->features * sizeof *o);
        memmove(&lse[row], &s->lse[t.part][row], sizeof *lse);
    } else {
        for (int64_t first = 0; first < s->features; first += BLOCK) merge_features(s, &t, row, first, o);
        lse[row] = rounded(t.max + log(t.sum));
    }
}

enum attest_status attest_merge(int64_t num_states, int64_t rows, int64_t head_dim_v, const float *const *o_states,
                                const float *const *lse_states, float *o, float *lse)
{
    const struct states s = {num_states, rows, head_dim_v, o_states, lse_states};
    if (!check_merge(&s, o, lse)) return attest_refused_status();
    for (int64_t row = 0; row < rows; ++row) merge_row(&s, row, o, lse);
    return ATTEST_OK;
}

static bool check_at_most(const char *field, int64_t value, int64_t high)
{
    if (value <= high) return true;
    return attest_refuse(ATTEST_UNSUPPORTED, "%s = %" PRId64 ", but must be at most %" PRId64 " on this device", field,
                         value, high);
}

static bool check_merge_args(const struct attest_merge_args *a)
{
    if (!attest_check_struct("args", a, sizeof *a)) return false;
    if (a->device < ATTEST_CUDA || a->device > ATTEST_REFERENCE)
        return attest_refuse(ATTEST_INVALID, "device = %d, but must be 0 .. 2", a->device);
    if (a->device_ordinal < 0 || (a->device_ordinal > 0 && a->device != ATTEST_CUDA))
        return attest_refuse(ATTEST_INVALID, "device_ordinal = %d, but must be %s", a->device_ordinal,
                             a->device == ATTEST_CUDA ? ">= 0" : "0");
    if (a->reserved0 != 0) return attest_refuse(ATTEST_INVALID, "reserved0 = %d, but must be 0", a->reserved0);
    const struct states s = {a->num_states, a->rows, a->head_dim_v, a->o_states, a->lse_states};
    if (!check_merge(&s, a->o, a->lse)) return false;
    if (a->device == ATTEST_CUDA && !attest_check_cuda()) return false;
    return a->device == ATTEST_REFERENCE || (check_at_most("num_states", a->num_states, MERGE_MAX_STATES) &&
                                             check_at_most("rows", a->rows, (INT64_C(1) << 33) - 4));
}

static bool merge_states(const struct attest_merge_args *a, void *stream)
{
    if (!check_merge_args(a)) return false;
    switch (a->device) {
    case ATTEST_CUDA: return attest_cuda_merge(a, stream);
    case ATTEST_SIM: return attest_sim_merge(a, stream);
    default:
        return attest_merge(a->num_states, a->rows, a->head_dim_v, a->o_states, a->lse_states, a->o, a->lse) ==
               ATTEST_OK;
    }
}

enum attest_status attest_merge_states(const struct attest_merge_args *args, void *stream)
{
    return merge_states(args, stream) ? ATTEST_OK : attest_refused_status();
}

/* merge.c - states of disjoint key sets to the state of their union. On the host: sums in double, one rounding. */
#include <math.h>
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"
#include "lib/run.h"
#include "reference/formats.h"

enum { BLOCK = 64 }; /* features summed at a time, so that no memory is needed */

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
static double one_nan(double value)
{
    return isnan(value) ? NAN : value;
}

static bool is_fp32(const struct attest_merge_args *a) { return a->o_dtype == 0 || a->o_dtype == ATTEST_FP32; }

static void store(const struct attest_merge_args *a, int64_t at, double value)
{
    if (is_fp32(a)) ((float *)a->o)[at] = (float)one_nan(value);
    else ref_store(a->o_dtype, a->o, at, one_nan(value));
}

static struct total total_of(const struct attest_merge_args *a, int64_t row)
{
    struct total t = {0, 0, -INFINITY, 0.0};
    for (int64_t s = 0; s < a->num_states; ++s) {
        const float lse = a->lse_states[s][row];
        if (is_empty(lse)) continue;
        t.parts += 1;
        t.part = s;
        if (lse > t.max) t.max = lse; /* a NaN is never the maximum, and makes the sum NaN */
    }
    for (int64_t s = 0; s < a->num_states; ++s) {
        if (!is_empty(a->lse_states[s][row])) t.sum += weight(&t, a->lse_states[s][row]);
    }
    return t;
}

static void merge_features(const struct attest_merge_args *a, const struct total *t, int64_t row, int64_t first)
{
    const int64_t left = a->head_dim_v - first, count = left < BLOCK ? left : BLOCK;
    const int64_t at = row * a->head_dim_v + first;
    double sum[BLOCK] = {0.0};
    for (int64_t s = 0; s < a->num_states; ++s) {
        if (is_empty(a->lse_states[s][row])) continue;
        const double w = weight(t, a->lse_states[s][row]);
        for (int64_t x = 0; x < count; ++x) sum[x] += w * a->o_states[s][at + x];
    }
    for (int64_t x = 0; x < count; ++x) store(a, at + x, sum[x] / t->sum);
}

/* One state: in fp32 bit by bit. */
static void copy_state(const struct attest_merge_args *a, int64_t s, int64_t row)
{
    const float *o = a->o_states[s] + row * a->head_dim_v;
    if (is_fp32(a)) memmove((float *)a->o + row * a->head_dim_v, o, (size_t)a->head_dim_v * sizeof *o);
    else for (int64_t x = 0; x < a->head_dim_v; ++x) store(a, row * a->head_dim_v + x, o[x]);
    memmove(&a->lse[row], &a->lse_states[s][row], sizeof *a->lse);
}

/* Every state's part of the row is read before it is written, so the result may be one of them. */
static void merge_row(const struct attest_merge_args *a, int64_t row)
{
    const struct total t = total_of(a, row);
    if (t.parts == 0) {
        for (int64_t x = 0; x < a->head_dim_v; ++x) store(a, row * a->head_dim_v + x, 0.0);
        a->lse[row] = -INFINITY;
    } else if (t.parts == 1) {
        copy_state(a, t.part, row);
    } else {
        for (int64_t first = 0; first < a->head_dim_v; first += BLOCK) merge_features(a, &t, row, first);
        a->lse[row] = (float)one_nan(t.max + log(t.sum));
    }
}

static bool merge_on_host(const struct attest_merge_args *a)
{
    for (int64_t row = 0; row < a->rows; ++row) merge_row(a, row);
    return true;
}

enum attest_status attest_merge(int64_t num_states, int64_t rows, int64_t head_dim_v, const float *const *o_states,
                                const float *const *lse_states, float *o, float *lse)
{
    struct attest_merge_args a = ATTEST_MERGE_ARGS_INIT;
    a.device = ATTEST_REFERENCE;
    a.num_states = num_states, a.rows = rows, a.head_dim_v = head_dim_v;
    a.o_states = o_states, a.lse_states = lse_states, a.o = o, a.lse = lse;
    return attest_merge_states(&a, NULL);
}

static bool merge_states(const struct attest_merge_args *a, void *stream)
{
    if (!attest_check_merge(a)) return false;
    switch (a->device) {
    case ATTEST_CUDA: return attest_cuda_merge(a, stream);
    case ATTEST_SIM: return attest_sim_merge(a, stream);
    default: return merge_on_host(a);
    }
}

enum attest_status attest_merge_states(const struct attest_merge_args *args, void *stream)
{
    return merge_states(args, stream) ? ATTEST_OK : attest_refused_status();
}

static bool merge_states_backward(const struct attest_merge_backward_args *a, void *stream)
{
    if (!attest_check_merge_backward(a)) return false;
    switch (a->device) {
    case ATTEST_CUDA: return attest_cuda_merge_backward(a, stream);
    case ATTEST_SIM: return attest_sim_merge_backward(a, stream);
    default: return attest_reference_merge_backward(a);
    }
}

enum attest_status attest_merge_states_backward(const struct attest_merge_backward_args *args, void *stream)
{
    return merge_states_backward(args, stream) ? ATTEST_OK : attest_refused_status();
}

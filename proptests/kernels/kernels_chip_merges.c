/* kernels_chip_merges.c - merges of many rows, and their gradients. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "proptests/cases/cuda_memory.h"
#include "proptests/cases/families.h"
#include "proptests/kernels/kernels_chip.h"
#include "reference/bounds.h"
#include "reference/oracle.h"

enum { STATES = 3 };

/* N(0, 1) numbers, on both sides. */
static float *new_numbers(int64_t count, uint64_t seed, float **host)
{
    float *const numbers = malloc((size_t)count * sizeof *numbers);
    float *const there = cuda_allocate((size_t)count * sizeof *numbers);
    if (numbers == NULL || there == NULL) abort();
    for (int64_t i = 0; i < count; ++i) numbers[i] = (float)family_normal(family_bits(seed, 1, 0, i, 0, 0));
    if (cuda_copy_in(there, numbers, (size_t)count * sizeof *numbers) != 0) abort();
    *host = numbers;
    return there;
}

static bool are_near(const float *got, const double *want, const double *bound, int64_t count, const char *what)
{
    double use = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double error = fabs((double)got[i] - want[i]), share = error == 0 ? 0 : error / bound[i];
        if (!(share <= use)) use = share;
    }
    printf("  %s %.3f of its bound\n", what, use);
    return use <= 1;
}

static double *doubles_of(const float *values, int64_t count)
{
    double *const out = malloc((size_t)count * sizeof *out);
    if (out == NULL) abort();
    for (int64_t i = 0; i < count; ++i) out[i] = values != NULL ? (double)values[i] : 0;
    return out;
}

/* The same numbers on both machines: of several states one after the other, and of each the start. */
struct numbers {
    float *chip, *host;
    double *exact;
    float *chip_at[STATES];
    double *exact_at[STATES];
};

static struct numbers new_states(int64_t step, uint64_t seed)
{
    struct numbers n;
    n.chip = new_numbers(STATES * step, seed, &n.host);
    n.exact = doubles_of(n.host, STATES * step);
    for (int s = 0; s < STATES; ++s) n.chip_at[s] = n.chip + s * step, n.exact_at[s] = n.exact + s * step;
    return n;
}

static bool fetch(struct numbers *n, int64_t count)
{
    return cuda_copy_out(n->host, n->chip, (size_t)count * sizeof *n->host) == 0;
}

static void free_numbers(struct numbers *n) { cuda_release(n->chip), free(n->host), free(n->exact); }

/* Three states of many rows, and the gradients of their union. Result and dout are "states" of which there is one. */
bool chip_merges(void)
{
    const struct attest_recipe *const recipe = ref_kernel_recipe("merge_backward");
    const int64_t rows = chip_settings.quick ? 333 : 100000, dim = 72, elements = rows * dim;
    struct numbers o = new_states(elements, 1), lse = new_states(rows, 2), out = new_states(elements, 3);
    struct numbers out_lse = new_states(rows, 4), dout = new_states(elements, 5), dlse = new_states(rows, 6);
    struct numbers d_o = new_states(elements, 7), d_lse = new_states(rows, 8), bound = new_states(elements, 9);
    struct numbers bound_lse = new_states(rows, 10);
    const double *const *const o_exact = (const double *const *)o.exact_at;
    const double *const *const lse_exact = (const double *const *)lse.exact_at;
    struct attest_merge_args a = ATTEST_MERGE_ARGS_INIT;
    a.device = ATTEST_CUDA, a.num_states = STATES, a.rows = rows, a.head_dim_v = dim;
    a.o_states = (const float *const *)o.chip_at, a.lse_states = (const float *const *)lse.chip_at;
    a.o = out.chip, a.lse = out_lse.chip;
    struct attest_merge_backward_args b = ATTEST_MERGE_BACKWARD_ARGS_INIT;
    b.device = ATTEST_CUDA, b.num_states = STATES, b.rows = rows, b.head_dim_v = dim;
    b.o_states = a.o_states, b.lse_states = a.lse_states, b.o = a.o, b.lse = a.lse;
    b.dout = dout.chip, b.dlse = dlse.chip;
    b.do_states = (float *const *)d_o.chip_at, b.dlse_states = (float *const *)d_lse.chip_at;
    bool ok = attest_merge_states(&a, NULL) == ATTEST_OK && attest_merge_states_backward(&b, NULL) == ATTEST_OK &&
              fetch(&out, elements) && fetch(&out_lse, rows) && fetch(&d_o, STATES * elements) &&
              fetch(&d_lse, STATES * rows);
    ref_merge(STATES, rows, dim, o_exact, lse_exact, out.exact, out_lse.exact);
    ok = ok && ref_bound_merge(STATES, rows, dim, o_exact, lse_exact, ref_kernel_recipe("merge"), ATTEST_FP32,
                               bound.exact, bound_lse.exact) == ATTEST_OK;
    ok = ok && are_near(out.host, out.exact, bound.exact, elements, "o of the union is");
    ok = ok && are_near(out_lse.host, out_lse.exact, bound_lse.exact, rows, "lse of the union is");
    /* Gradients are those of the result as it was computed. */
    for (int64_t i = 0; i < elements; ++i) out.exact[i] = (double)out.host[i];
    for (int64_t i = 0; i < rows; ++i) out_lse.exact[i] = (double)out_lse.host[i];
    ref_merge_backward(STATES, rows, dim, o_exact, lse_exact, out.exact, out_lse.exact, dout.exact, dlse.exact,
                       d_o.exact_at, d_lse.exact_at);
    ref_bound_merge_backward(STATES, rows, dim, o_exact, lse_exact, out.exact, out_lse.exact, dout.exact, dlse.exact,
                             recipe, bound.exact_at, bound_lse.exact_at);
    ok = ok && are_near(d_o.host, d_o.exact, bound.exact, STATES * elements, "do of the states is");
    ok = ok && are_near(d_lse.host, d_lse.exact, bound_lse.exact, STATES * rows, "dlse of the states is");
    struct numbers *const all[] = {&o, &lse, &out, &out_lse, &dout, &dlse, &d_o, &d_lse, &bound, &bound_lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free_numbers(all[i]);
    return ok;
}

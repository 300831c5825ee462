/* vector_test.c - every variant of vector.h that this CPU has: products against sums written out, the
 * exponential against MPFR. */
#include <stdio.h>
#include <criterion/criterion.h>
#include <math.h>
#include <mpfr.h>
#include <stdlib.h>

#include "reference/oracle.h"
#include "reference/vector.h"

static uint64_t state = 1;
static uint64_t bits(void)
{
    uint64_t z = state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}
static double uniform(double low, double high) { return low + (high - low) * (double)(bits() >> 11) * 0x1p-53; }
static int64_t range(int64_t low, int64_t high) { return low + (int64_t)(bits() % (uint64_t)(high - low + 1)); }

#define FOR_EACH_VARIANT(v) \
    for (const struct ref_vector *v = ref_vectors; v->name; ++v) \
        if (ref_vector_supported((int)(v - ref_vectors)))

enum { MOST_M = 20, MOST_N = 40, MOST_K = 600, GAP = 3 };

/* One random product of each variant: values within gamma_k of the sum written out, bytes beside C untouched. */
static void check_product(int64_t m, int64_t n, int64_t k)
{
    static double a[MOST_M * MOST_K], b[MOST_K * MOST_N], packed[(MOST_K + 8) * (MOST_N + REF_PANEL)];
    double c[MOST_M * (MOST_N + GAP)];
    const bool transposed = bits() % 2, b_transposed = bits() % 2, add = bits() % 2;
    const int64_t a_row = transposed ? 1 : k, a_col = transposed ? m : 1, skip = range(0, k), spare = range(0, 8);
    const int64_t b_row = b_transposed ? 1 : n, b_col = b_transposed ? k : 1, c_row = n + GAP;
    for (int64_t i = 0; i < m * k; ++i) a[i] = uniform(-1, 1);
    for (int64_t i = 0; i < k * n; ++i) b[i] = uniform(-1, 1);
    ref_pack(k, n, b, b_row, b_col, k + spare, packed);
    FOR_EACH_VARIANT(v)
    {
        for (int64_t i = 0; i < m * c_row; ++i) c[i] = add || i % c_row >= n ? 0.5 : NAN;
        v->gemm(m, n, k - skip, a + skip * a_col, a_row, a_col, packed + skip * REF_PANEL, k + spare, add, c, c_row);
        for (int64_t i = 0; i < m; ++i) {
            for (int64_t j = 0; j < n; ++j) {
                double sum = add ? 0.5 : 0.0, sum_abs = sum;
                for (int64_t l = skip; l < k; ++l) {
                    const double product = a[i * a_row + l * a_col] * b[l * b_row + j * b_col];
                    sum += product, sum_abs += fabs(product);
                }
                const double allowed = 2 * (double)(k + 4) * 0x1p-53 * sum_abs;
                cr_assert(fabs(c[i * c_row + j] - sum) <= allowed, "%s %dx%dx%d", v->name, (int)m, (int)n, (int)k);
            }
            for (int64_t j = n; j < c_row; ++j) cr_assert(c[i * c_row + j] == 0.5, "%s writes past n", v->name);
        }
    }
}

Test(vector, products_are_sums_of_products)
{
    for (int i = 0; i < 300; ++i) check_product(range(1, MOST_M), range(1, MOST_N), range(1, i % 10 ? 40 : MOST_K));
}

Test(vector, an_element_of_a_product_does_not_depend_on_what_stands_around_it)
{
    enum { M = 19, N = 16, K = 300 };
    static double a[M * K], b[K * N], packed[K * N];
    for (int i = 0; i < M * K; ++i) a[i] = uniform(-1, 1);
    for (int i = 0; i < K * N; ++i) b[i] = uniform(-1, 1);
    ref_pack(K, N, b, N, 1, K, packed);
    FOR_EACH_VARIANT(v)
    {
        double whole[M * N], one[N];
        v->gemm(M, N, K, a, K, 1, packed, K, false, whole, N);
        for (int i = 0; i < M; ++i) {
            v->gemm(1, 7, K, a + i * K, K, 1, packed, K, false, one, N);
            for (int j = 0; j < 7; ++j) cr_assert(one[j] == whole[i * N + j], "%s row %d", v->name, i);
        }
    }
}

Test(vector, rows_are_scaled_multiplied_shifted_and_summed)
{
    enum { N = 3 * REF_PANEL };
    FOR_EACH_VARIANT(v)
    {
        double x[N], y[N], z[N], largest = -INFINITY, dot = 0, dot_abs = 0, distance = 0, square = 0, size = 0;
        for (int i = 0; i < N; ++i) {
            x[i] = uniform(-5, 5), y[i] = uniform(-5, 5);
            if (x[i] > largest) largest = x[i];
            dot += x[i] * y[i], dot_abs += fabs(x[i] * y[i]);
            distance += x[i] * fabs(y[i] - 0.25), square += x[i] * (y[i] - 0.25) * (y[i] - 0.25);
            size += fabs(x[i]) * (1 + fabs(y[i])) * (1 + fabs(y[i]));
        }
        cr_assert(v->max(N, x) == largest);
        cr_assert(v->max(0, x) == -INFINITY);
        cr_assert(fabs(v->dot(N, x, y) - dot) <= 2 * N * 0x1p-53 * dot_abs);
        cr_assert(fabs(v->dot_distance(N, x, y, 0.25) - distance) <= 2 * N * 0x1p-53 * size);
        cr_assert(fabs(v->dot_square(N, x, y, 0.25) - square) <= 2 * N * 0x1p-53 * size);
        for (int i = 0; i < N; ++i) z[i] = x[i];
        v->scale(N, 1.5, z);
        for (int i = 0; i < N; ++i) cr_assert(z[i] == 1.5 * x[i]);
        v->multiply(N, y, z);
        for (int i = 0; i < N; ++i) cr_assert(z[i] == y[i] * (1.5 * x[i]));
        for (int i = 0; i < N; ++i) z[i] = x[i];
        v->multiply_shifted(N, y, 0.25, z);
        for (int i = 0; i < N; ++i) cr_assert(z[i] == y[i] * (x[i] - 0.25));
        x[20] = NAN;
        cr_assert(isnan(v->exp_sum(N, 0, x)), "a NaN reaches the sum");
        cr_assert(isnan(x[20]) && !isnan(x[21]), "and stays one, alone");
    }
}

/* Error of `got` as exp(x), in units in the last place of the true value. */
static double ulps(mpfr_t exact, double x, double got)
{
    mpfr_set_d(exact, x, MPFR_RNDN);
    mpfr_exp(exact, exact, MPFR_RNDN);
    const long exponent = mpfr_get_exp(exact) - 53;
    mpfr_sub_d(exact, exact, got, MPFR_RNDN);
    mpfr_mul_2si(exact, exact, exponent < -1074 ? 1074 : -exponent, MPFR_RNDN);
    return fabs(mpfr_get_d(exact, MPFR_RNDU));
}

/* The i-th argument: all of the range, its dark corners, and numbers of every magnitude. */
static double argument(int i)
{
    switch (i % 8) {
    case 0: return uniform(-745.2, -707);                     /* subnormal results, and what is near them */
    case 1: return uniform(-746, -744.5);                     /* where the result rounds to 0 */
    case 2: return -ldexp(uniform(1, 2), (int)range(-80, 8)); /* every magnitude */
    case 3: return (double)range(-68000, 0) * 0x1.62e42fefa39efp-8 + uniform(-1e-9, 1e-9); /* edges of reduction */
    case 4: return uniform(0, 709);                           /* lse given from outside, below the row's scores */
    case 5: return uniform(-30, 0);
    default: return uniform(-745.2, 0);
    }
}

Test(vector, the_exponential_keeps_its_bound, .timeout = 120)
{
    enum { SAMPLES = 1 << 19 };
    double *x = malloc(SAMPLES * sizeof *x), *e = malloc(SAMPLES * sizeof *e);
    cr_assert(x && e);
    mpfr_t exact;
    mpfr_init2(exact, 120);
    for (int i = 0; i < SAMPLES; ++i) x[i] = argument(i);
    FOR_EACH_VARIANT(v)
    {
        double worst = 0.0, at = 0.0;
        for (int i = 0; i < SAMPLES; ++i) e[i] = x[i];
        v->exp_sum(SAMPLES, 0.0, e);
        for (int i = 0; i < SAMPLES; ++i) {
            const double error = ulps(exact, x[i], e[i]);
            if (!(error <= worst)) worst = error, at = x[i];
        }
        printf("exp, %-8s at most %.3f ulp (at %.17g) of %g allowed, %d arguments\n", v->name, worst, at, REF_EXP_ULPS,
               SAMPLES);
        cr_assert(worst <= REF_EXP_ULPS, "%s: %g ulp at %.17g", v->name, worst, at);
    }
    mpfr_clear(exact);
    free(x);
    free(e);
}

Test(vector, special_exponents_are_exact)
{
    const double x[REF_PANEL] = {0.0, -0.0, -INFINITY, -1e300, -745.3, 710, INFINITY, -745.14, -1e-320, 1e-320, -745.1};
    const double want[REF_PANEL] = {1, 1, 0, 0, 0, INFINITY, INFINITY, 0, 1, 1, 0x1p-1074};
    FOR_EACH_VARIANT(v)
    {
        double e[REF_PANEL];
        for (int i = 0; i < REF_PANEL; ++i) e[i] = x[i];
        v->exp_sum(REF_PANEL, 0.0, e);
        for (int i = 0; i < 11; ++i) cr_assert(e[i] == want[i], "%s: exp(%g) is %g", v->name, x[i], e[i]);
    }
}

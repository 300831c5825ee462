/* vector.c - vector_body.h compiled for each vector unit, and the choice between them. */
#include "reference/vector.h"

#include <math.h>
#include <stddef.h>

void ref_pack(int64_t k, int64_t n, const double *b, int64_t b_row, int64_t b_col, int64_t k_packed, double *panels)
{
    for (int64_t j = 0; j < n; j += REF_PANEL) {
        const int64_t columns = n - j < REF_PANEL ? n - j : REF_PANEL;
        for (int64_t l = 0; l < k_packed; ++l, panels += REF_PANEL) {
            for (int64_t x = 0; x < REF_PANEL; ++x)
                panels[x] = l < k && x < columns ? b[l * b_row + (j + x) * b_col] : 0.0;
        }
    }
}

#define TABLE_OF(suffix, label)                                                                                    \
    {                                                                                                              \
        label, gemm_##suffix, max_##suffix, exp_sum_##suffix, dot_##suffix, dot_distance_##suffix,                 \
            dot_square_##suffix, scale_##suffix, multiply_##suffix, multiply_shifted_##suffix                      \
    }

/* The exponentials are those of glibc's libmvec, by their names in the vector ABI. */
#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,fma")
__m512d _ZGVeN8v_exp(__m512d);
#define NAME(x) x##_avx512
#define VECTOR_BYTES 64
#define TILE_ROWS 8
#define VECTOR_EXP _ZGVeN8v_exp
#define VECTOR_FMA _mm512_fmadd_pd
#include "reference/vector_body.h"
#undef NAME
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef VECTOR_EXP
#undef VECTOR_FMA
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2,fma")
__m256d _ZGVdN4v_exp(__m256d);
#define NAME(x) x##_avx2
#define VECTOR_BYTES 32
#define TILE_ROWS 2
#define VECTOR_EXP _ZGVdN4v_exp
#define VECTOR_FMA _mm256_fmadd_pd
#include "reference/vector_body.h"
#undef NAME
#undef VECTOR_BYTES
#undef TILE_ROWS
#undef VECTOR_EXP
#undef VECTOR_FMA
#pragma GCC pop_options

__m128d _ZGVbN2v_exp(__m128d);
#define VECTOR_EXP _ZGVbN2v_exp
#else
static inline double __attribute__((vector_size(16))) exp_each(double __attribute__((vector_size(16))) x)
{
    return (double __attribute__((vector_size(16)))){exp(x[0]), exp(x[1])};
}
#define VECTOR_EXP exp_each
#endif

#define NAME(x) x##_baseline
#define VECTOR_BYTES 16
#define TILE_ROWS 1
#define VECTOR_FMA(a, b, c) ((a) * (b) + (c))
#include "reference/vector_body.h"

const struct ref_vector ref_vectors[] = {
#if defined(__x86_64__)
    TABLE_OF(avx512, "avx512"),
    TABLE_OF(avx2, "avx2"),
#endif
    TABLE_OF(baseline, "baseline"),
    {0},
};

bool ref_vector_supported(int i)
{
#if defined(__x86_64__)
    if (i == 0) return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
    if (i == 1) return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#endif
    return ref_vectors[i].name != NULL;
}

const struct ref_vector *ref_vector(void)
{
    int i = 0;
    while (!ref_vector_supported(i)) ++i;
    return &ref_vectors[i];
}

/* unit_fast.c - sim_unit: the model of unit.h in vectors, compiled for each vector unit, and the choice among them. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/unit.h"

enum {
    MAX_M = 64,
    MAX_K = 16,
    ROW_WORDS = 8,     /* of 4 bytes: a row of a, a column of b */
    ZERO = -10000,     /* added to exponents, mark what has none, apart even as sums with another operand's, */
    SPECIAL = 16000,   /* which 16 bits hold */
    ALL_ZERO = -5000,  /* no sum with a finite operand that is not zero is as small, */
    LEAST_TOP = -100,  /* and none of finite operands as large as SPECIAL + ZERO > LARGEST_TOP */
    LARGEST_TOP = 120,
    MOST_FRACTION_BITS = 25
};

struct problem {
    const struct sim_unit_model *model;
    enum sim_format format;
    int m, n, k; /* n a multiple of 8 */
    const void *a, *b_t;
    const float *c;
    float *d;
};

/* A row of a. Within each group operands are in an order that suits the vectors, the same for a and b. */
struct operands {
    float value[MAX_K];
    int32_t exponents[MAX_K]; /* twice in 16 bits */
};

/* Operands of 16 bits lie two in a word: of every 8 the low ones come first. */
static inline int word_of(enum sim_format format, int l) { return format == SIM_TF32 ? l : l / 8 * 4 + l % 4; }
static inline bool is_high(int l) { return l % 8 >= 4; }

static void do_plainly(const struct problem *p, int i, int j, float c)
{
    const size_t row = (size_t)p->k * sim_operand_bytes(p->format);
    sim_unit_plain(p->model, p->format, 1, 1, p->k, (const char *)p->a + i * row, (const char *)p->b_t + j * row, &c,
                   &p->d[i * p->n + j]);
}

#if defined(__x86_64__)
#include <immintrin.h>

#pragma GCC push_options
#pragma GCC target("avx512bw")
#define NAME(x) x##_avx512
#define VECTOR_BYTES 64
#define VECTOR_MAX(x, y) _mm512_max_epi16((__m512i)(x), (__m512i)(y))
#define VECTOR_NEGATIVE(x) (_mm512_cmplt_epi32_mask((__m512i)(x), _mm512_setzero_si512()) != 0)
#define VECTOR_TRUNCATE(x)                                                                                            \
    ((floats_avx512)_mm512_cvt_roundepi32_ps((__m512i)(x), _MM_FROUND_TO_ZERO | _MM_FROUND_NO_EXC))
#include "kernels/sim/unit_fast.h"
#undef NAME
#undef VECTOR_BYTES
#undef VECTOR_MAX
#undef VECTOR_NEGATIVE
#undef VECTOR_TRUNCATE
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("avx2")
#define NAME(x) x##_avx2
#define VECTOR_BYTES 32
#define VECTOR_MAX(x, y) _mm256_max_epi16((__m256i)(x), (__m256i)(y))
#define VECTOR_NEGATIVE(x) (_mm256_movemask_ps((__m256)(x)) != 0)
#define VECTOR_TRUNCATE(x) truncate_avx2(x)
#include "kernels/sim/unit_fast.h"
#undef NAME
#undef VECTOR_BYTES
#undef VECTOR_MAX
#undef VECTOR_NEGATIVE
#undef VECTOR_TRUNCATE
#pragma GCC pop_options
#endif

#define NAME(x) x##_baseline
#define VECTOR_BYTES 16
#define VECTOR_MAX(x, y) larger_baseline(x, y)
#define VECTOR_NEGATIVE(x) any_negative_baseline(x)
#define VECTOR_TRUNCATE(x) truncate_baseline(x)
#include "kernels/sim/unit_fast.h"

struct variant {
    const char *name;
    int lanes; /* columns at once */
    void (*unit)(const struct problem *p, const struct operands *a);
};

/* Best first; the machine has the last ones. */
static const struct variant all_variants[] = {
#if defined(__x86_64__)
    {"AVX-512", 16, unit_avx512},
    {"AVX2", 8, unit_avx2},
#endif
    {"baseline", 4, unit_baseline},
};

enum { NUM_VARIANTS = sizeof all_variants / sizeof *all_variants };

int sim_unit_variants(void)
{
#if defined(__x86_64__)
    return __builtin_cpu_supports("avx512bw") ? 3 : __builtin_cpu_supports("avx2") ? 2 : 1;
#else
    return 1;
#endif
}

static const struct variant *variant_of(int index) { return &all_variants[NUM_VARIANTS - sim_unit_variants() + index]; }

const char *sim_unit_variant_name(int variant) { return variant_of(variant)->name; }

static void check_shape(const struct problem *p)
{
    const bool tf32 = p->format == SIM_TF32;
    if (p->m >= 1 && p->m <= MAX_M && p->n >= 8 && p->n % 8 == 0 && p->k == (tf32 ? 8 : 16)) return;
    fprintf(stderr, "sim_unit: no instruction is m%dn%dk%d\n", p->m, p->n, p->k);
    abort();
}

static void decode_rows(const struct problem *p, struct operands *rows)
{
    enum { LANES = VECTOR_BYTES / 4 };
    for (int i = 0; i < p->m; ++i)
        for (int l = 0; l < p->k; l += LANES) {
            ints_baseline words, exponent;
            floats_baseline value;
            memcpy(&words, (const char *)p->a + (i * ROW_WORDS + word_of(p->format, l)) * 4, sizeof words);
            decode_baseline(operands_baseline(p->format, words, l), p->format == SIM_FP16, &value, &exponent);
            const shorts_baseline exponents = pack_baseline(exponent, exponent);
            memcpy(rows[i].value + l, &value, sizeof value);
            memcpy(rows[i].exponents + l, &exponents, sizeof exponents);
        }
}

void sim_unit_variant(int variant, const struct sim_unit_model *model, enum sim_format format, int m, int n, int k,
                      const void *a, const void *b_t, const float *c, float *d)
{
    const struct problem p = {model, format, m, n, k, a, b_t, c, d};
    check_shape(&p);
    if (model->to_nearest || model->fraction_bits > MOST_FRACTION_BITS || model->least_exponent > LEAST_TOP) {
        sim_unit_plain(model, format, m, n, k, a, b_t, c, d);
        return;
    }
    struct operands rows[MAX_M];
    decode_rows(&p, rows);
    variant_of(variant)->unit(&p, rows);
}

void sim_unit(enum sim_generation generation, enum sim_format format, int m, int n, int k, const void *a,
              const void *b_t, const float *c, float *d)
{
    const struct sim_unit_model model = sim_unit_model(generation, format);
    int variant = 0;
    while (variant_of(variant)->lanes > n) ++variant; /* n is 8 at least, the last one's 4 */
    sim_unit_variant(variant, &model, format, m, n, k, a, b_t, c, d);
}

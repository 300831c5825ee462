/* unit.c - see unit.h: the model number by number; unit_fast.c has the same in vectors. */
#include "kernels/sim/unit.h"

#include <math.h>
#include <string.h>

struct sim_unit_model sim_unit_model(enum sim_generation generation, enum sim_format format)
{
    const bool tf32 = format == SIM_TF32;
    if (generation == SIM_SM_80) return (struct sim_unit_model){24, tf32 ? 4 : 8, -132, false};
    return (struct sim_unit_model){25, tf32 ? 8 : 16, -133, false};
}

/* A number as significand * 2^(exponent - fraction bits of its format). */
enum { MAX_GROUP = 16, ZERO_EXPONENT = -10000 };

struct number {
    enum { FINITE, INFINITE, NOT_A_NUMBER } kind;
    bool negative;
    int64_t significand; /* magnitude */
    int exponent;        /* ZERO_EXPONENT: the number is zero */
};

struct layout {
    int fraction_bits, exponent_bits;
};

static const struct layout fp32_layout = {23, 8};

static struct layout layout_of(enum sim_format format)
{
    return format == SIM_FP16 ? (struct layout){10, 5} : format == SIM_BF16 ? (struct layout){7, 8}
                                                                            : (struct layout){10, 8};
}

static struct number split(uint32_t bits, struct layout layout)
{
    const uint32_t fraction = bits & ((1u << layout.fraction_bits) - 1);
    const uint32_t top = (1u << layout.exponent_bits) - 1, field = bits >> layout.fraction_bits & top;
    const int bias = (int)(top >> 1);
    const bool negative = bits >> (layout.fraction_bits + layout.exponent_bits) & 1;
    if (field == top) return (struct number){fraction ? NOT_A_NUMBER : INFINITE, negative, 1, 0};
    const uint32_t significand = field ? fraction | 1u << layout.fraction_bits : fraction;
    const int exponent = significand == 0 ? ZERO_EXPONENT : field ? (int)field - bias : 1 - bias;
    return (struct number){FINITE, negative, significand, exponent};
}

static struct number operand(enum sim_format format, const void *array, int index)
{
    const int bytes = sim_operand_bytes(format);
    uint32_t bits = 0;
    memcpy(&bits, (const char *)array + (size_t)index * bytes, bytes);
    return split(format == SIM_TF32 ? bits >> 13 : bits, layout_of(format));
}

static struct number multiply(struct number a, struct number b)
{
    const bool negative = a.negative != b.negative;
    const bool zero = a.significand == 0 || b.significand == 0;
    const bool infinite = a.kind == INFINITE || b.kind == INFINITE;
    if (a.kind == NOT_A_NUMBER || b.kind == NOT_A_NUMBER || (infinite && zero))
        return (struct number){NOT_A_NUMBER, false, 1, 0};
    if (infinite) return (struct number){INFINITE, negative, 1, 0};
    const int exponent = zero ? ZERO_EXPONENT : a.exponent + b.exponent;
    return (struct number){FINITE, negative, a.significand * b.significand, exponent};
}

static float not_a_number(void)
{
    const uint32_t bits = 0x7fffffff;
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

/* sum * 2^exponent rounded to fp32. */
static float round_sum(int64_t sum, int exponent, bool to_nearest)
{
    if (sum == 0) return 0.0f;
    const uint64_t magnitude = sum < 0 ? -(uint64_t)sum : (uint64_t)sum;
    int drop = 40 - __builtin_clzll(magnitude); /* to 24 bits */
    if (drop < -149 - exponent) drop = -149 - exponent;
    if (drop < 0) drop = 0;
    uint64_t kept = drop < 64 ? magnitude >> drop : 0;
    if (to_nearest && drop > 0 && drop < 64) {
        const uint64_t rest = magnitude - (kept << drop), half = 1ull << (drop - 1);
        kept += rest > half || (rest == half && (kept & 1));
    }
    if (kept == 0) return 0.0f; /* of a negative sum as well: no result is -0 */
    const float result = ldexpf((float)kept, exponent + drop);
    return sum < 0 ? -result : result;
}

/* Infinities and NaN among the terms: the result is theirs. */
static bool special_sum(const struct number *terms, int count, float *result)
{
    bool positive = false, negative = false;
    for (int i = 0; i < count; ++i) {
        if (terms[i].kind == NOT_A_NUMBER) positive = negative = true;
        if (terms[i].kind == INFINITE) *(terms[i].negative ? &negative : &positive) = true;
    }
    if (!positive && !negative) return false;
    *result = positive && negative ? not_a_number() : negative ? -INFINITY : INFINITY;
    return true;
}

/* One step. terms[0] is the accumulator, the others are products. */
static float add_terms(const struct sim_unit_model *model, int product_bits, const struct number *terms, int count)
{
    float result;
    if (special_sum(terms, count, &result)) return result;
    int top = model->least_exponent;
    for (int i = 0; i < count; ++i) top = terms[i].exponent > top ? terms[i].exponent : top;
    int64_t sum = 0;
    for (int i = 0; i < count; ++i) {
        if (terms[i].significand == 0) continue;
        const int bits = i == 0 ? fp32_layout.fraction_bits : product_bits;
        const int up = model->fraction_bits - bits - (top - terms[i].exponent);
        const int64_t cut = up >= 0 ? terms[i].significand << up : up > -63 ? terms[i].significand >> -up : 0;
        sum += terms[i].negative ? -cut : cut;
    }
    return round_sum(sum, top - model->fraction_bits, model->to_nearest);
}

static float element(const struct sim_unit_model *model, enum sim_format format, int k, const void *a, const void *b,
                     float c)
{
    const int product_bits = 2 * layout_of(format).fraction_bits;
    for (int first = 0; first < k; first += model->group) {
        struct number terms[1 + MAX_GROUP];
        uint32_t bits;
        memcpy(&bits, &c, sizeof bits);
        terms[0] = split(bits, fp32_layout);
        int count = 1;
        for (int l = first; l < k && l < first + model->group; ++l)
            terms[count++] = multiply(operand(format, a, l), operand(format, b, l));
        c = add_terms(model, product_bits, terms, count);
    }
    return c;
}

void sim_unit_plain(const struct sim_unit_model *model, enum sim_format format, int m, int n, int k, const void *a,
                    const void *b_t, const float *c, float *d)
{
    const size_t row = (size_t)k * sim_operand_bytes(format);
    for (int i = 0; i < m; ++i)
        for (int j = 0; j < n; ++j)
            d[i * n + j] = element(model, format, k, (const char *)a + i * row, (const char *)b_t + j * row,
                                   c ? c[i * n + j] : 0.0f);
}

/* unit_questions.c - see unit_questions.h. */
#include "kernels/device/probes/unit_questions.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct list {
    enum sim_format format;
    int k, count;
    struct unit_question *questions;
};

static float float_of(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static uint32_t encode_fp16(uint32_t bits)
{
    const uint32_t sign = bits >> 16 & 0x8000, magnitude = bits & 0x7fffffff;
    if (magnitude >= 0x7f800000) return sign | 0x7c00 | (magnitude >> 13 & 0x3ff);
    const float value = float_of(magnitude);
    const int exponent = value < 0x1p-14f ? -14 : ilogbf(value);
    const float significand = ldexpf(value, 10 - exponent);
    if (significand != truncf(significand) || exponent > 15) {
        fprintf(stderr, "unit_questions: %a is not an fp16 number\n", value);
        abort();
    }
    const uint32_t field = significand < 1024 ? 0 : (uint32_t)(exponent + 15);
    return sign | field << 10 | ((uint32_t)significand & 0x3ff);
}

uint32_t unit_encode(enum sim_format format, float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    if (format == SIM_TF32) return bits;
    if (format == SIM_FP16) return encode_fp16(bits);
    if (bits & 0xffff && !isnan(value)) {
        fprintf(stderr, "unit_questions: %a is not a bf16 number\n", value);
        abort();
    }
    return bits >> 16;
}

static struct unit_question *ask(struct list *list, float c, const char *format, ...)
    __attribute__((format(printf, 3, 4)));
static struct unit_question *ask(struct list *list, float c, const char *format, ...)
{
    if (list->count == UNIT_MAX_QUESTIONS) abort();
    struct unit_question *q = &list->questions[list->count++];
    *q = (struct unit_question){.c = c};
    va_list args;
    va_start(args, format);
    vsnprintf(q->text, sizeof q->text, format, args);
    va_end(args);
    return q;
}

static void product(struct unit_question *q, int l, float a, float b)
{
    q->a[l] = a;
    q->b[l] = b;
}

/* 2^e as a product of two numbers of any of the formats. */
static void power(struct unit_question *q, int l, int e, float sign)
{
    product(q, l, sign * ldexpf(1, e / 2), ldexpf(1, e - e / 2));
}

static void ask_cut(struct list *list)
{
    for (int s = 23; s <= 28; ++s) {
        struct unit_question *q = ask(list, 0, "1 + %d x 2^-%d: more than 3f800000 if bit %d is kept", list->k - 1, s,
                                      s);
        product(q, 0, 1, 1);
        for (int l = 1; l < list->k; ++l) power(q, l, -s, 1);
    }
    for (int s = 23; s <= 28; ++s) {
        struct unit_question *q = ask(list, 1, "c = 1, 8 x 2^-%d: the same beside the accumulator", s);
        for (int l = 0; l < 8; ++l) power(q, l, -s, 1);
    }
    struct unit_question *q = ask(list, 0x1p-25f, "1 - 1 + c = 2^-25: is c's bit 25 kept (33000000)?");
    product(q, 0, 1, 1), product(q, 1, 1, -1);
    q = ask(list, 0x1p-26f, "1 - 1 + c = 2^-26: is c's bit 26 kept (32800000)?");
    product(q, 0, 1, 1), product(q, 1, 1, -1);
    q = ask(list, 0, "1 - 2^-26: 3f800000 cut toward zero, 3f7fffff cut down");
    product(q, 0, 1, 1), power(q, 1, -26, -1);
    q = ask(list, 0, "1.5 x 1.5 - 1.5 x 1.5 + 2^-25: 33000000 if 2.25 counts as 2^0, 0 if it is normalised");
    product(q, 0, 1.5f, 1.5f), product(q, 1, 1.5f, -1.5f), power(q, 2, -25, 1);
}

static void ask_rounding(struct list *list)
{
    for (int sign = 1; sign >= -1; sign -= 2) {
        struct unit_question *q = ask(list, 0, "%s(1 + 2^-24 + 2^-25): ...00000 toward zero, ...00001 to nearest",
                                      sign < 0 ? "-" : "");
        product(q, 0, (float)sign, 1), power(q, 1, -24, (float)sign), power(q, 2, -25, (float)sign);
    }
    struct unit_question *q = ask(list, 0x1p23f, "c = 2^23, 0.5 + 0.25: 4b000000 toward zero, 4b000001 to nearest");
    product(q, 0, 0.5f, 1), product(q, 1, 0.25f, 1);
}

/* 1 - 1 at (first, first + 1) and 2^-28 at l: nothing is left of it exactly if all three are added at once, or if it
 * was added before. */
static void ask_groups(struct list *list)
{
    for (int first = 0; first < list->k; first += list->k - 2)
        for (int l = 0; l < list->k; ++l) {
            if (l == first || l == first + 1) continue;
            struct unit_question *q = ask(list, 0, "1 - 1 at %d and %d, 2^-28 at %d: 0 if added at once or after it",
                                          first, first + 1, l);
            product(q, first, 1, 1), product(q, first + 1, 1, -1), power(q, l, -28, 1);
        }
}

static void ask_zeros(struct list *list)
{
    const float large = list->format == SIM_FP16 ? 0x1p15f : 0x1p120f;
    struct unit_question *q = ask(list, 0, "2^-28 + 0 x large: 31800000 if a zero has no exponent of its operands");
    power(q, 0, -28, 1), product(q, 1, 0, large), product(q, 2, large, -0.0f);
    q = ask(list, 0, "1 - 1: 80000000 or 0");
    product(q, 0, 1, 1), product(q, 1, 1, -1);
    q = ask(list, -0.0f, "c = -0, all products +0");
    q = ask(list, -0.0f, "c = -0, all products -0");
    for (int l = 0; l < list->k; ++l) product(q, l, -0.0f, 1);
    q = ask(list, 0, "c = 0, all products -0");
    for (int l = 0; l < list->k; ++l) product(q, l, -0.0f, 1);
    q = ask(list, 0, "no accumulator, all products -0");
    q->no_accumulator = true;
    for (int l = 0; l < list->k; ++l) product(q, l, -0.0f, 1);
}

static void ask_subnormal(struct list *list)
{
    struct unit_question *q = ask(list, 0x1p-149f, "c = 2^-149, all products 0: 00000001 if subnormals are kept");
    q = ask(list, -0x1p-149f, "c = -2^-149, all products 0");
    if (list->format == SIM_FP16) {
        q = ask(list, 0, "2^-24 x 1, subnormal: 33800000 if it is not flushed");
        product(q, 0, 0x1p-24f, 1);
        q = ask(list, 0, "2^-24 x 1 + 2^-24 x 2^-16: 33800000 if subnormals have exponent -14, 33800080 if normalised");
        product(q, 0, 0x1p-24f, 1), product(q, 1, 0x1p-24f, 0x1p-16f);
        q = ask(list, 0, "2^-24 x 2^-24: 27800000, the least product");
        product(q, 0, 0x1p-24f, 0x1p-24f);
        return;
    }
    q = ask(list, 0, "2^-130 x 1, subnormal: 00080000 if neither operand nor result is flushed");
    product(q, 0, 0x1p-130f, 1);
    q = ask(list, 0, "2^-130 x 2^100 + 2^-52: 30800000 if subnormals have exponent -126, 30800002 if normalised");
    product(q, 0, 0x1p-130f, 0x1p100f), power(q, 1, -52, 1);
    q = ask(list, 0, "-2^-150: 0 or 80000000");
    power(q, 0, -150, -1);
    q = ask(list, 0, "2^-148 + 2^-149 + 2^-150: 00000003 toward zero, 00000004 to nearest");
    power(q, 0, -148, 1), power(q, 1, -149, 1), power(q, 2, -150, 1);
    for (int s = 150; s <= 164; ++s) {
        q = ask(list, 0, "2^-149 - 2^-%d: 0 if it is felt, 00000001 if it is below every unit", s);
        power(q, 0, -149, 1), power(q, 1, -s, -1);
    }
    for (int s = 154; s <= 160; ++s) {
        q = ask(list, 0, "2^-149 - %d x 2^-%d, no zero among the products: as before", list->k - 1, s);
        power(q, 0, -149, 1);
        for (int l = 1; l < list->k; ++l) power(q, l, -s, -1);
    }
}

static void ask_overflow(struct list *list)
{
    const float most = 0x1.fffffep127f;
    if (list->format == SIM_FP16) {
        struct unit_question *q = ask(list, most, "c the largest, + 65504^2: lost");
        product(q, 0, 65504, 65504);
        return;
    }
    struct unit_question *q = ask(list, 0, "2^127 + 2^127: 7f800000, or the largest 7f7fffff");
    power(q, 0, 127, 1), power(q, 1, 127, 1);
    q = ask(list, most, "c the largest, + 2^104");
    power(q, 0, 104, 1);
    q = ask(list, most, "c the largest, + 2^103: 7f7fffff toward zero, 7f800000 to nearest");
    power(q, 0, 103, 1);
    q = ask(list, -most, "c = -largest, - 2^104");
    power(q, 0, 104, -1);
    q = ask(list, 1, "2^254 - 2^254 + c = 1: 0 if products do not overflow");
    product(q, 0, 0x1p127f, 0x1p127f), product(q, 1, 0x1p127f, -0x1p127f);
    q = ask(list, 0, "2^254: 7f800000");
    product(q, 0, 0x1p127f, 0x1p127f);
    q = ask(list, -INFINITY, "2^254 + c = -inf: ff800000, or NaN if the product is infinite");
    product(q, 0, 0x1p127f, 0x1p127f);
}

static void ask_special(struct list *list)
{
    struct unit_question *q = ask(list, 0, "inf x 1");
    product(q, 0, INFINITY, 1);
    q = ask(list, 0, "inf x -1");
    product(q, 0, INFINITY, -1);
    q = ask(list, 0, "inf x 0: which NaN?");
    product(q, 0, INFINITY, 0);
    q = ask(list, 0, "inf - inf, products");
    product(q, 0, INFINITY, 1), product(q, list->k - 1, INFINITY, -1);
    q = ask(list, -INFINITY, "inf + c = -inf");
    product(q, 0, 1, INFINITY);
    q = ask(list, INFINITY, "c = inf, products finite");
    product(q, 0, 1, -1);
    q = ask(list, float_of(0x7fc12345), "c = 7fc12345");
    q = ask(list, float_of(0xffc00000), "c = ffc00000");
    q = ask(list, float_of(0x7f800001), "c = 7f800001, signalling");
    q = ask(list, 0, "NaN 7fc20000 x 1");
    product(q, 0, float_of(0x7fc20000), 1);
    q = ask(list, 0, "NaN ffa00000, signalling, x 0");
    product(q, 0, float_of(0xffa00000), 0);
}

static void ask_tf32(struct list *list)
{
    if (list->format != SIM_TF32) return;
    struct unit_question *q = ask(list, 0, "(1 + 2^-11) x 1: 3f800000 if low bits are cut, 3f802000 if rounded away");
    product(q, 0, 0x1.002p0f, 1);
    q = ask(list, 0, "(1 + 2^-10 + 2^-11) x 1: 3f802000 if cut, 3f804000 if rounded");
    product(q, 0, 0x1.006p0f, 1);
    q = ask(list, 0, "(1 + 2^-10 - 2^-23) x 1: 3f800000 if cut");
    product(q, 0, 0x1.003ffep0f, 1);
    q = ask(list, 0, "7f800001 x 1, NaN by its low bits alone: 7f800000 if they are cut first");
    product(q, 0, float_of(0x7f800001), 1);
    q = ask(list, 0, "2^-149 x 2^127: 0 if its low bits are cut");
    product(q, 0, 0x1p-149f, 0x1p127f);
    q = ask(list, 0, "inf x 2^-149: NaN if its low bits are cut");
    product(q, 0, INFINITY, 0x1p-149f);
}

int unit_questions(enum sim_format format, struct unit_question questions[UNIT_MAX_QUESTIONS])
{
    struct list list = {format, format == SIM_TF32 ? 8 : 16, 0, questions};
    ask_cut(&list);
    ask_rounding(&list);
    ask_groups(&list);
    ask_zeros(&list);
    ask_subnormal(&list);
    ask_overflow(&list);
    ask_special(&list);
    ask_tf32(&list);
    return list.count;
}

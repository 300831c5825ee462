/* unit_fast.h - the model of unit.h on a block of up to 2 LANES columns, for one vector unit; unit_fast.c includes it
 * once for each.
 *
 * Expects  NAME(x)               x with the unit's suffix
 *          VECTOR_BYTES          of a register
 *          VECTOR_MAX(x, y)      the larger of each two integers of 16 bits
 *          VECTOR_NEGATIVE(x)    whether any integer of 32 bits is negative
 *          VECTOR_TRUNCATE(x)    integers of 32 bits cut off toward zero to fp32
 *
 * A product is exact in fp32; scaled by 2^(fraction_bits - top) and converted to an integer it is cut off toward zero.
 * Sixteen of them fit in 32 bits: 16 (2047 / 1024)^2 2^25 < 2^31. Where the accumulator makes that too much, or top is
 * outside of [LEAST_TOP, LARGEST_TOP] and is no sum of zeros alone (specials among them, by their exponent), the
 * element is left to the plain model.
 *
 * Exponents take 16 bits: of an integer of 32 the low half is column x's and the high half column LANES + x's, so that
 * one instruction finds tops for both. */

#define LANES (VECTOR_BYTES / 4)

typedef float NAME(floats) __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t NAME(ints) __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t NAME(words) __attribute__((vector_size(VECTOR_BYTES)));
typedef int16_t NAME(shorts) __attribute__((vector_size(VECTOR_BYTES)));

/* A block of b. */
struct NAME(columns) {
    NAME(floats) value[2][MAX_K];
    NAME(shorts) exponent[MAX_K];
};

/* Operands from words, with their bits in fp32's places: the exponent field ends at bit 23, the sign is bit 31. */
static inline NAME(ints) NAME(operands)(enum sim_format format, NAME(ints) words, int l)
{
    if (format == SIM_TF32) return words & (int32_t)0xffffe000;
    const NAME(ints) bits = is_high(l) ? words & (int32_t)0xffff0000 : words << 16;
    return format == SIM_BF16 ? bits : (bits & INT32_MIN) | (bits >> 3 & 0x0fffe000);
}

/* Values and exponents; of zeros, infinities and NaN such as mark them. */
static inline void NAME(decode)(NAME(ints) bits, bool fp16, NAME(floats) *value, NAME(ints) *exponent)
{
    const int bias = fp16 ? 15 : 127, special = fp16 ? 31 : 255;
    const NAME(ints) magnitude = bits & 0x7fffffff, field = magnitude >> 23;
    *exponent = field - bias - (field == 0) + ((magnitude == 0) & ZERO) + ((field == special) & SPECIAL);
    *value = fp16 ? (NAME(floats))bits * 0x1p112f : (NAME(floats))bits;
}

/* Of accumulators. Subnormal ones may count as 2^-127: the plain model has the sums in which they matter. */
static inline NAME(ints) NAME(exponent)(NAME(floats) c)
{
    const NAME(ints) magnitude = (NAME(ints))c & 0x7fffffff;
    return (magnitude >> 23) - 127 + ((magnitude == 0) & ZERO);
}

static inline NAME(shorts) NAME(pack)(NAME(ints) low, NAME(ints) high)
{
    return (NAME(shorts))((low & 0xffff) | high << 16);
}

static inline NAME(shorts) NAME(larger)(NAME(shorts) x, NAME(shorts) y)
{
    const NAME(shorts) mask = x > y;
    return (mask & x) | (~mask & y);
}

static inline bool NAME(any_negative)(NAME(ints) x)
{
    uint64_t words[VECTOR_BYTES / 8], any = 0;
    memcpy(words, &x, sizeof words);
    for (int i = 0; i < VECTOR_BYTES / 8; ++i) any |= words[i];
    return (any & 0x8000000080000000) != 0;
}

/* Rounded to nearest, less where that is more; 2^31 is no integer of 32 bits. */
static inline NAME(floats) NAME(truncate)(NAME(ints) x)
{
    NAME(ints) bits = (NAME(ints))__builtin_convertvector(x, NAME(floats));
    bits += bits == 0x4f000000;
    const NAME(ints) rounded = __builtin_convertvector((NAME(floats))bits, NAME(ints)), sign = x >> 31;
    return (NAME(floats))(bits + ((rounded ^ sign) > (x ^ sign)));
}

static inline void NAME(copy)(void *to, const void *from, int columns)
{
    if (columns == LANES)
        memcpy(to, from, VECTOR_BYTES);
    else
        memcpy(to, from, columns * sizeof(float));
}

/* Of LANES columns: the terms cut off, their sum cut off. `over` is negative where the sum takes more than 32 bits. */
static inline __attribute__((always_inline)) NAME(floats) NAME(add)(const int group, const float *a_value,
                                                                    const NAME(floats) *b_value, NAME(floats) c,
                                                                    NAME(floats) up, NAME(floats) down,
                                                                    NAME(ints) *over)
{
    NAME(words) sum = {0};
#pragma GCC unroll 16
    for (int l = 0; l < group; ++l)
        sum += (NAME(words))__builtin_convertvector(b_value[l] * a_value[l] * up, NAME(ints));
    const NAME(ints) c_cut = __builtin_convertvector(c * up, NAME(ints)), products = (NAME(ints))sum;
    const NAME(ints) total = (NAME(ints))(sum + (NAME(words))c_cut);
    *over |= (products ^ total) & (c_cut ^ total);
    return VECTOR_TRUNCATE(total) * down;
}

/* A step: group products from l on, added to c. What the plain model must do is negative in `hard`. */
static inline __attribute__((always_inline)) void NAME(step)(const int halves, const int fraction_bits, const int group,
                                                             const struct operands *a, const struct NAME(columns) *b,
                                                             int l, NAME(floats) *c, NAME(ints) *hard)
{
    NAME(shorts) top = NAME(pack)(NAME(exponent)(c[0]), halves > 1 ? NAME(exponent)(c[1]) : (NAME(ints)){0});
#pragma GCC unroll 16
    for (int i = l; i < l + group; ++i)
        top = (NAME(shorts))VECTOR_MAX(top, b->exponent[i] + (NAME(shorts))((NAME(ints)){0} + a->exponents[i]));
    const NAME(ints) outside = (NAME(ints))((top > LARGEST_TOP) | ((top < LEAST_TOP) & (top > ALL_ZERO)));
    top = (NAME(shorts))VECTOR_MAX(top, (NAME(shorts)){0} + LEAST_TOP);
    const int16_t up_bias = (int16_t)(127 + fraction_bits), down_bias = (int16_t)(127 - fraction_bits);
    const NAME(ints) up = (NAME(ints))(up_bias - top), down = (NAME(ints))(down_bias + top);
    hard[0] |= outside << 16;
    c[0] = NAME(add)(group, a->value + l, b->value[0] + l, c[0], (NAME(floats))(up << 23), (NAME(floats))(down << 23),
                     &hard[0]);
    if (halves == 1) return;
    hard[1] |= outside;
    c[1] = NAME(add)(group, a->value + l, b->value[1] + l, c[1], (NAME(floats))(up >> 16 << 23),
                     (NAME(floats))(down >> 16 << 23), &hard[1]);
}

/* Columns of b from `column` on, of which `columns` exist; zeros beyond. */
static inline __attribute__((always_inline)) void NAME(take_columns)(const int halves, const struct problem *p,
                                                                     int column, int columns, struct NAME(columns) *b)
{
    int32_t words[2][ROW_WORDS][LANES];
    if (columns < halves * LANES) memset(words, 0, sizeof words);
    for (int j = 0; j < columns; ++j)
        for (int w = 0; w < ROW_WORDS; ++w)
            memcpy(&words[j / LANES][w][j % LANES], (const char *)p->b_t + ((column + j) * ROW_WORDS + w) * 4, 4);
    for (int l = 0; l < p->k; ++l) {
        NAME(ints) exponents[2] = {{0}};
        for (int half = 0; half < halves; ++half) {
            NAME(ints) row;
            memcpy(&row, words[half][word_of(p->format, l)], sizeof row);
            NAME(decode)(NAME(operands)(p->format, row, l), p->format == SIM_FP16, &b->value[half][l],
                         &exponents[half]);
        }
        b->exponent[l] = NAME(pack)(exponents[0], exponents[1]);
    }
}

/* Columns of d from `column` on, of which `columns` exist: of one half or of two. */
static inline __attribute__((always_inline)) void NAME(block)(const int halves, const int group,
                                                              const struct problem *p, const struct operands *a,
                                                              int column, int columns)
{
    const int here[2] = {columns < LANES ? columns : LANES, columns - LANES};
    struct NAME(columns) b;
    NAME(take_columns)(halves, p, column, columns, &b);
    for (int i = 0; i < p->m; ++i) {
        const int at = i * p->n + column;
        NAME(floats) before[2] = {{0}}, c[2];
        NAME(ints) hard[2] = {{0}};
        for (int half = 0; p->c && half < halves; ++half)
            NAME(copy)(&before[half], p->c + at + half * LANES, here[half]);
        memcpy(c, before, sizeof c);
        for (int l = 0; l < p->k; l += group) NAME(step)(halves, p->model->fraction_bits, group, &a[i], &b, l, c, hard);
        for (int half = 0; half < halves; ++half) NAME(copy)(p->d + at + half * LANES, &c[half], here[half]);
        if (!VECTOR_NEGATIVE(hard[0] | hard[1])) continue;
        for (int j = 0; j < columns; ++j)
            if (hard[j / LANES][j % LANES] < 0) do_plainly(p, i, column + j, before[j / LANES][j % LANES]);
    }
}

static void NAME(unit)(const struct problem *p, const struct operands *a)
{
    for (int j = 0; j < p->n; j += 2 * LANES) {
        const int columns = p->n - j < 2 * LANES ? p->n - j : 2 * LANES, halves = columns > LANES ? 2 : 1;
        if (p->model->group == 4 && halves == 1) NAME(block)(1, 4, p, a, j, columns);
        if (p->model->group == 4 && halves == 2) NAME(block)(2, 4, p, a, j, columns);
        if (p->model->group == 8 && halves == 1) NAME(block)(1, 8, p, a, j, columns);
        if (p->model->group == 8 && halves == 2) NAME(block)(2, 8, p, a, j, columns);
        if (p->model->group == 16 && halves == 1) NAME(block)(1, 16, p, a, j, columns);
        if (p->model->group == 16 && halves == 2) NAME(block)(2, 16, p, a, j, columns);
    }
}

#undef LANES

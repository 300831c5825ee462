/* unit_fast.h - the model of unit.h on a block of LANES columns, for one vector unit; unit_fast.c includes it once for
 * each.
 *
 * Expects  NAME(x)       x with the unit's suffix
 *          VECTOR_BYTES  of a register
 *          VECTOR_MAX(x, y)  the larger integer of each lane
 *
 * A product is exact in fp32; scaled by 2^(fraction_bits - top) and converted to an integer it is cut off toward zero.
 * Sixteen of them fit in 32 bits: 16 (2047 / 1024)^2 2^25 < 2^31; the sum with the accumulator is exact in double.
 * Elements whose top is outside of [LEAST_TOP, LARGEST_TOP] and is no sum of zeros alone (specials among them, by their
 * exponent) are left to the plain model. */

#define LANES (VECTOR_BYTES / 4)

typedef float NAME(floats) __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t NAME(ints) __attribute__((vector_size(VECTOR_BYTES)));
typedef uint32_t NAME(words) __attribute__((vector_size(VECTOR_BYTES)));
typedef int32_t NAME(half_ints) __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef float NAME(half_floats) __attribute__((vector_size(VECTOR_BYTES / 2)));
typedef double NAME(doubles) __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t NAME(longs) __attribute__((vector_size(VECTOR_BYTES)));

static inline NAME(ints) NAME(choose)(NAME(ints) mask, NAME(ints) yes, NAME(ints) no)
{
    return (mask & yes) | (~mask & no);
}

/* Operands as fp32 values and exponents, from bits in fp32's places: sign, exponent field, fraction. */
static inline void NAME(decode)(NAME(ints) bits, bool fp16, NAME(floats) *value, NAME(ints) *exponent)
{
    const int bias = fp16 ? 15 : 127, top = fp16 ? 31 : 255;
    const NAME(ints) magnitude = bits & 0x7fffffff, field = magnitude >> 23;
    NAME(ints) e = NAME(choose)(field == 0, (NAME(ints)){0} + (1 - bias), field - bias);
    e = NAME(choose)(magnitude == 0, (NAME(ints)){0} + ZERO, e);
    *exponent = NAME(choose)(field == top, (NAME(ints)){0} + SPECIAL, e);
    *value = fp16 ? (NAME(floats))bits * 0x1p112f : (NAME(floats))bits;
}

static inline void NAME(copy)(void *to, const void *from, int columns)
{
    if (columns == LANES)
        memcpy(to, from, VECTOR_BYTES);
    else
        memcpy(to, from, columns * sizeof(float));
}

static inline bool NAME(any)(NAME(ints) mask)
{
    uint64_t words[VECTOR_BYTES / 8], any = 0;
    memcpy(words, &mask, sizeof words);
    for (int x = 0; x < VECTOR_BYTES / 8; ++x) any |= words[x];
    return any != 0;
}

/* Half of the lanes: (sum + c) cut off to 24 bits, times scale. */
static inline NAME(half_floats) NAME(finish)(const int32_t *sum, const int32_t *c, const float *scale)
{
    const NAME(longs) kept = {0};
    NAME(half_ints) half_sum, half_c;
    NAME(half_floats) half_scale;
    memcpy(&half_sum, sum, sizeof half_sum);
    memcpy(&half_c, c, sizeof half_c);
    memcpy(&half_scale, scale, sizeof half_scale);
    const NAME(doubles) total = __builtin_convertvector(half_sum, NAME(doubles)) +
                                __builtin_convertvector(half_c, NAME(doubles));
    const NAME(doubles) cut = (NAME(doubles))((NAME(longs))total & (kept - (1ll << 29)));
    return __builtin_convertvector(cut * __builtin_convertvector(half_scale, NAME(doubles)), NAME(half_floats));
}

/* A step: group products from l on, added to c. `hard` collects the lanes that the plain model must do. */
static inline __attribute__((always_inline)) void NAME(step)(const int fraction_bits, const int group,
                                                             const float *a_value, const int32_t *a_exponent,
                                                             const NAME(floats) *b_value, const NAME(ints) *b_exponent,
                                                             NAME(floats) *c, NAME(ints) *hard)
{
    NAME(floats) c_value;
    NAME(ints) top;
    NAME(decode)((NAME(ints))*c, false, &c_value, &top);
#pragma GCC unroll 16
    for (int l = 0; l < group; ++l) top = (NAME(ints))VECTOR_MAX(top, b_exponent[l] + a_exponent[l]);
    *hard |= (top > LARGEST_TOP) | ((top < LEAST_TOP) & (top > ALL_ZERO));
    top = (NAME(ints))VECTOR_MAX(top, (NAME(ints)){0} + LEAST_TOP);
    const NAME(floats) up = (NAME(floats))((fraction_bits + 127 - top) << 23);
    const NAME(floats) down = (NAME(floats))((top - fraction_bits + 127) << 23);
    NAME(words) sum = {0};
#pragma GCC unroll 16
    for (int l = 0; l < group; ++l)
        sum += (NAME(words))__builtin_convertvector(b_value[l] * a_value[l] * up, NAME(ints));
    const NAME(ints) c_cut = __builtin_convertvector(c_value * up, NAME(ints));
    int32_t sums[LANES], c_cuts[LANES];
    float downs[LANES], result[LANES];
    memcpy(sums, &sum, sizeof sums);
    memcpy(c_cuts, &c_cut, sizeof c_cuts);
    memcpy(downs, &down, sizeof downs);
    for (int x = 0; x < LANES; x += LANES / 2) {
        const NAME(half_floats) half = NAME(finish)(sums + x, c_cuts + x, downs + x);
        memcpy(result + x, &half, sizeof half);
    }
    memcpy(c, result, sizeof result);
}

/* LANES columns of d, from `column` on, of which `columns` exist. */
static inline __attribute__((always_inline)) void NAME(block)(const int group, const struct problem *p,
                                                              const struct operands *a, int column, int columns)
{
    int32_t bits[MAX_K][LANES] = {{0}};
    NAME(floats) b_value[MAX_K];
    NAME(ints) b_exponent[MAX_K];
    for (int j = 0; j < columns; ++j)
        for (int l = 0; l < p->k; ++l) bits[l][j] = raw_operand(p->format, p->b_t, (column + j) * p->k + l);
    for (int l = 0; l < p->k; ++l) {
        NAME(ints) row;
        memcpy(&row, bits[l], sizeof row);
        NAME(decode)(row, p->format == SIM_FP16, &b_value[l], &b_exponent[l]);
    }
    for (int i = 0; i < p->m; ++i) {
        const int at = i * p->n + column;
        NAME(floats) before = {0};
        NAME(ints) hard = {0};
        if (p->c) NAME(copy)(&before, p->c + at, columns);
        NAME(floats) c = before;
        for (int l = 0; l < p->k; l += group)
            NAME(step)(p->model->fraction_bits, group, a[i].value + l, a[i].exponent + l, b_value + l, b_exponent + l,
                       &c, &hard);
        NAME(copy)(p->d + at, &c, columns);
        if (NAME(any)(hard))
            for (int j = 0; j < columns; ++j)
                if (hard[j]) do_plainly(p, i, column + j, before[j]);
    }
}

static void NAME(unit)(const struct problem *p, const struct operands *a)
{
    for (int j = 0; j < p->n; j += LANES) {
        const int columns = p->n - j < LANES ? p->n - j : LANES;
        if (p->model->group == 4) NAME(block)(4, p, a, j, columns);
        if (p->model->group == 8) NAME(block)(8, p, a, j, columns);
        if (p->model->group == 16) NAME(block)(16, p, a, j, columns);
    }
}

#undef LANES

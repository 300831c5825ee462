/* emulate_unit.c - see emulate_unit.h. */
#include "proptests/emulations/emulate_unit.h"

#include <math.h>
#include <string.h>

#include "lib/attest.h"

static int is_seen(const struct seen *seen, int64_t i, int64_t l)
{
    return !seen->at || seen->at[i * seen->row + l * seen->column];
}

static float add_cut_off(float a, float b)
{
    const double exact = (double)a + (double)b;
    const float nearest = (float)exact;
    return fabs((double)nearest) > fabs(exact) ? nextafterf(nearest, 0.0f) : nearest;
}

static void multiply_fp32(bool truncates, int64_t m, int64_t n, int64_t k, struct matrix a, struct seen seen,
                          struct matrix b, struct matrix c)
{
    float b_row[UNIT_MAX];
    for (int64_t l = 0; l < k; ++l) {
        for (int64_t j = 0; j < n; ++j) b_row[j] = b.at[l * b.row + j * b.column];
        for (int64_t i = 0; i < m; ++i) {
            const float a_il = a.at[i * a.row + l * a.column];
            float *restrict c_row = c.at + i * c.row;
            if (!is_seen(&seen, i, l)) continue;
            if (truncates)
                for (int64_t j = 0; j < n; ++j) c_row[j] = add_cut_off(c_row[j], a_il * b_row[j]);
            else
                for (int64_t j = 0; j < n; ++j) c_row[j] += a_il * b_row[j];
        }
    }
}

/* A number as significand * 2^(exponent - 23). The three exponents below mark what has no own. */
struct part {
    int32_t significand, exponent;
};
enum { ZERO = -10000, SPECIAL = 20000, UNSEEN = -40000, ANY_SPECIAL = 1000 };
enum { MAX_STEP = 16 };

static struct part split(float value, int min_exponent)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    const int field = (int)(bits >> 23 & 0xff), exponent = field ? field - 127 : -126;
    const int32_t fraction = (int32_t)(bits & 0x7fffff), significand = field ? fraction | 0x800000 : fraction;
    if (field == 0xff) return (struct part){0, SPECIAL};
    if (significand == 0) return (struct part){0, ZERO};
    const int below = exponent < min_exponent ? min_exponent - exponent : 0; /* what shifts out is zero */
    return (struct part){(bits >> 31 ? -significand : significand) / (1 << below), exponent + below};
}

/* sum * 2^exponent, cut off to 24 bits and to fp32's least subnormal number. */
static float cut_off(int64_t sum, int exponent)
{
    if (sum == 0) return 0.0f;
    const uint64_t magnitude = sum < 0 ? -(uint64_t)sum : (uint64_t)sum;
    int drop = 40 - __builtin_clzll(magnitude);
    if (drop < -149 - exponent) drop = -149 - exponent;
    if (drop < 0) drop = 0;
    const uint64_t kept = drop < 64 ? magnitude >> drop << drop : 0;
    const float result = ldexpf((float)kept, exponent);
    return sum < 0 ? -result : result;
}

/* One step for one element of C; the operands' parts lie side by side. Returns 0 where one is not finite. */
static int step_exact(const struct part *a, const struct part *b, int count, int fraction_bits, float *c)
{
    const struct part c_part = split(*c, -126);
    int top = c_part.exponent;
    for (int l = 0; l < count; ++l) {
        const int exponent = a[l].exponent + b[l].exponent;
        top = exponent > top ? exponent : top;
    }
    if (top > ANY_SPECIAL) return 0;
    int64_t sum = 0;
    for (int l = -1; l < count; ++l) { /* -1: the accumulator */
        const struct part left = l < 0 ? c_part : a[l], right = l < 0 ? (struct part){1 << 23, 0} : b[l];
        const int64_t term = (int64_t)left.significand * right.significand;
        int shift = 46 - fraction_bits + top - (left.exponent + right.exponent);
        shift = shift > 63 ? 63 : shift;
        const int64_t sign = term >> 63;
        sum += ((((term ^ sign) - sign) >> shift) ^ sign) - sign;
    }
    *c = cut_off(sum, top - fraction_bits);
    return 1;
}

/* Steps l0 .. l0 + count - 1 of all elements of C. */
static void multiply_step(const struct unit *unit, int64_t m, int64_t n, int64_t l0, int count, struct matrix a,
                          struct seen seen, struct matrix b, struct matrix c)
{
    const int fraction_bits = unit->accumulate == ATTEST_ACC_HOPPER ? 25 : 24;
    struct part a_parts[MAX_STEP], b_parts[UNIT_MAX][MAX_STEP];
    for (int64_t j = 0; j < n; ++j)
        for (int l = 0; l < count; ++l)
            b_parts[j][l] = split(b.at[(l0 + l) * b.row + j * b.column], unit->min_exponent[1]);
    for (int64_t i = 0; i < m; ++i) {
        for (int l = 0; l < count; ++l)
            a_parts[l] = is_seen(&seen, i, l0 + l) ? split(a.at[i * a.row + (l0 + l) * a.column], unit->min_exponent[0])
                                                   : (struct part){0, UNSEEN};
        for (int64_t j = 0; j < n; ++j) {
            float *c_ij = c.at + i * c.row + j;
            if (step_exact(a_parts, b_parts[j], count, fraction_bits, c_ij)) continue;
            for (int l = 0; l < count; ++l) /* infinities and NaN as IEEE has them */
                if (a_parts[l].exponent != UNSEEN)
                    *c_ij += a.at[i * a.row + (l0 + l) * a.column] * b.at[(l0 + l) * b.row + j * b.column];
        }
    }
}

void unit_multiply(const struct unit *unit, int64_t m, int64_t n, int64_t k, struct matrix a, struct seen seen,
                   struct matrix b, struct matrix c)
{
    const int width = unit->accumulate == ATTEST_ACC_HOPPER ? 16 : unit->accumulate == ATTEST_ACC_AMPERE ? 8 : 0;
    if (width == 0) {
        multiply_fp32(unit->truncates, m, n, k, a, seen, b, c);
        return;
    }
    for (int64_t l = 0; l < k; l += width)
        multiply_step(unit, m, n, l, k - l < width ? (int)(k - l) : width, a, seen, b, c);
}

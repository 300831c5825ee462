/* families.c - the input families. */
#include "proptests/cases/families.h"

#include <math.h>

#include "proptests/engine/check.h"
#include "reference/formats.h"

const char *const family_names[NUM_FAMILIES] = {
    "normal", "outlier", "large", "tiny", "mean", "shift", "duplicate", "integer", "subnormal", "edge", "recorded",
};

uint64_t family_bits(uint64_t seed, uint64_t role, int64_t b, int64_t r, int64_t h, int64_t x)
{
    const uint64_t row = check_mix(seed ^ check_mix(role << 56 ^ (uint64_t)b << 40 ^ (uint64_t)h << 32 ^ (uint64_t)r));
    return check_mix(row ^ (uint64_t)x);
}

static double uniform(uint64_t bits) { return ((double)(bits >> 11) + 0.5) * 0x1p-53; } /* in (0, 1) */

double family_normal(uint64_t bits) /* Box and Muller 1958 */
{
    return sqrt(-2 * log(uniform(bits))) * cos(6.283185307179586 * uniform(check_mix(bits)));
}

enum { RECORDED_ROWS = 64, RECORDED_HEADS = 2, RECORDED_DIM = 64 };
static const uint16_t recorded[] = {
#include "proptests/data/recorded.inc"
};

static double recorded_value(enum role role, int64_t b, int64_t r, int64_t h, int64_t x)
{
    const int64_t row = role * RECORDED_ROWS + (r + 17 * b + 29 * (x / RECORDED_DIM)) % RECORDED_ROWS;
    const int64_t head = row * RECORDED_HEADS + h % RECORDED_HEADS;
    return ref_decode(ATTEST_BF16, recorded[head * RECORDED_DIM + x % RECORDED_DIM]);
}

/* Feature 0 of q and k carries the whole shift: scale q_0 k_0 is the constant, half of it in each. */
static double shift_value(const struct family_data *d, enum role role, int64_t x, double normal)
{
    static const double sizes[] = {30, 120, 1e3, 5e4, 2.45e5, 3e5};
    const uint64_t bits = check_mix(d->seed);
    if (x != 0 || (role != ROLE_Q && role != ROLE_K)) return normal;
    const double size = sizes[bits % 6] * (0.5 + 0.5 * uniform(check_mix(bits))), scale = d->softmax_scale;
    if (scale == 0) return normal;
    const double part = sqrt(size / fabs(scale)), sign = (bits & 64) != 0 ? -1 : 1;
    return role == ROLE_Q ? part : scale > 0 ? sign * part : -sign * part;
}

static double subnormal_value(const struct ref_format *f, uint64_t bits, double normal)
{
    if (bits % 2) return normal;
    const uint64_t steps = (bits >> 8) % (UINT64_C(1) << f->fraction_bits);
    return (bits & 2 ? -1.0 : 1.0) * (double)steps * f->min_subnormal;
}

/* Within two binades of the largest or of the smallest normal number, both limits included. q and k sit at opposite
 * ends, so that their products are about one; v and dout not both at the top, so that delta is an fp32 number. */
static double edge_value(const struct family_data *d, const struct ref_format *f, enum role role, uint64_t bits)
{
    const uint64_t choice = check_mix(d->seed ^ 1);
    const int q = (int)(choice & 1), v = (int)(choice >> 1 & 1), top[] = {q, !q, v, !v && (choice & 4), 0};
    const double sign = bits & 1 ? -1 : 1, fraction = uniform(check_mix(bits));
    if (bits % 16 < 2) return sign * (top[role] ? f->max_finite : f->min_normal);
    return sign * (top[role] ? f->max_finite * ldexp(0.5 + 0.5 * fraction, -(int)(bits >> 8 & 1))
                             : f->min_normal * ldexp(1 + fraction, (int)(bits >> 8 & 1)));
}

static double integer_value(enum role role, uint64_t bits)
{
    const int64_t most = role == ROLE_V ? 8 : role == ROLE_DOUT ? 4 : 2;
    return (double)((int64_t)((bits >> 8) % (uint64_t)(2 * most + 1)) - most);
}

static double raw_value(const struct family_data *d, enum role role, int64_t b, int64_t r, int64_t h, int64_t x)
{
    if (d->family == FAMILY_DUPLICATE && role == ROLE_K)
        r = (int64_t)(family_bits(d->seed, 9, b, r, h, 0) % 3); /* three different keys in all */
    const uint64_t bits = family_bits(d->seed, role, b, r, h, x);
    switch (d->family) {
    case FAMILY_INTEGER: return integer_value(role, bits);
    case FAMILY_EDGE: return edge_value(d, ref_format(d->dtype), role, bits);
    case FAMILY_RECORDED: return role == ROLE_OTHER ? family_normal(bits) : recorded_value(role, b, r, h, x);
    default: break;
    }
    const double normal = family_normal(bits);
    switch (d->family) {
    case FAMILY_OUTLIER: return normal + (check_mix(bits ^ 1) % 1000 == 0 ? 10 * family_normal(bits ^ 2) : 0);
    case FAMILY_LARGE: return 30 * normal;
    case FAMILY_TINY: return 1e-3 * normal;
    case FAMILY_MEAN: return 4 + normal;
    case FAMILY_SHIFT: return shift_value(d, role, x, normal);
    case FAMILY_DUPLICATE: return role == ROLE_V ? fabs(normal) : normal;
    case FAMILY_SUBNORMAL: return subnormal_value(ref_format(d->dtype), check_mix(bits ^ 3), normal);
    default: return normal;
    }
}

double family_value(const struct family_data *d, enum role role, int64_t b, int64_t r, int64_t h, int64_t x)
{
    const double limit = ref_format(d->dtype)->max_finite, value = raw_value(d, role, b, r, h, x);
    return ref_round(d->dtype, fmax(-limit, fmin(limit, value)));
}

/* power_kernel.c - see power_kernel.h. */
#include "reference/power_kernel.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"

const char *const power_fault_names[POWER_NUM_FAULTS] = {
    "honest",        "o scaled",     "dq scaled",     "dk scaled",       "dv scaled",
    "o of a head scaled", "o truncated",  "dq truncated",  "dk truncated",    "dv truncated",
    "p truncated",   "p of a bit less", "p rounded twice", "ds truncated", "ds of a bit less",
    "o rounded every", "dq rounded every", "values lost", "tile lost",    "o off by an ulp",
    "delta scaled",  "scores scaled",
};

enum { TILE = 32, MOST_DIM = 128 };

/* splitmix64 (Steele, Lea, Flood 2014). */
static uint64_t mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

static double uniform(uint64_t bits) { return ((double)(bits >> 11) + 0.5) * 0x1p-53; }

static double normal(uint64_t bits) /* Box and Muller 1958 */
{
    return sqrt(-2 * log(uniform(bits))) * cos(6.283185307179586 * uniform(mix(bits)));
}

static double value_of(enum power_family family, uint64_t bits)
{
    const double x = normal(bits);
    if (family == POWER_MEAN) return 4 + x;
    if (family == POWER_OUTLIER && mix(bits ^ 1) % 1000 == 0) return x + 10 * normal(mix(bits ^ 2));
    return x;
}

/* To `bits` of significand, to nearest (ties to even) or toward zero; fp16's least exponent kept. */
static float round_to(float x, int bits, bool truncates, int32_t dtype)
{
    uint32_t u;
    int drop = 24 - bits;
    if (dtype == ATTEST_FP16 && fabsf(x) < 0x1p-14f) {
        const float unit = ldexpf(0x1p-24f, 11 - bits);
        return (truncates ? truncf(x / unit) : rintf(x / unit)) * unit;
    }
    memcpy(&u, &x, sizeof u);
    if (!truncates) u += (UINT32_C(1) << (drop - 1)) - 1 + (u >> drop & 1);
    u &= ~((UINT32_C(1) << drop) - 1);
    memcpy(&x, &u, sizeof u);
    return x;
}

static int bits_of(const struct power_case *c) { return c->dtype == ATTEST_BF16 ? 8 : 11; }

/* Toward zero to 24 bits. */
static inline float cut(double x)
{
    float f = (float)x;
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    u -= fabs((double)f) > fabs(x);
    memcpy(&f, &u, sizeof u);
    return f;
}

/* 2^exponent of |x|; 2^-1000 of zero. */
static inline double power_of(double x)
{
    uint64_t u;
    memcpy(&u, &x, sizeof u);
    u &= UINT64_C(0x7ff0000000000000);
    memcpy(&x, &u, sizeof u);
    return x;
}

/* C[i][j] += sum over l < k of A[i][l] B[l][j], j < n; A[i][l] at a[i * a_row + l * a_col]; rows of B and C lie n
 * apart. */
__attribute__((optimize("O3"), target_clones("avx512f", "avx2", "default"))) static void
multiply(enum power_sum sum, int64_t m, int64_t n, int64_t k, const float *a, int64_t a_row, int64_t a_col,
         const float *restrict b, float *restrict c)
{
    const int64_t width = sum == POWER_HOPPER ? 16 : 8;
    const double quantum = sum == POWER_HOPPER ? 0x1p-25 : 0x1p-24;
    for (int64_t i = 0; i < m; ++i) {
        float *restrict to = c + i * n;
        if (sum <= POWER_CHAIN) {
            for (int64_t l = 0; l < k; ++l) {
                const float x = a[i * a_row + l * a_col];
                const float *restrict row = b + l * n;
                if (sum == POWER_NEAREST)
                    for (int64_t j = 0; j < n; ++j) to[j] += x * row[j];
                else
                    for (int64_t j = 0; j < n; ++j) to[j] = cut((double)to[j] + (double)x * (double)row[j]);
            }
            continue;
        }
        for (int64_t l0 = 0; l0 < k; l0 += width) {
            const int64_t end = l0 + width < k ? l0 + width : k;
            double top[MOST_DIM], total[MOST_DIM];
            for (int64_t j = 0; j < n; ++j) top[j] = fabs((double)to[j]), total[j] = (double)to[j];
            for (int64_t l = l0; l < end; ++l) {
                const double x = (double)a[i * a_row + l * a_col];
                const float *restrict row = b + l * n;
                for (int64_t j = 0; j < n; ++j) {
                    const double y = fabs(x * (double)row[j]);
                    top[j] = y > top[j] ? y : top[j];
                }
            }
            for (int64_t j = 0; j < n; ++j) top[j] = power_of(top[j]) * quantum;
            for (int64_t l = l0; l < end; ++l) {
                const double x = (double)a[i * a_row + l * a_col];
                const float *restrict row = b + l * n;
                for (int64_t j = 0; j < n; ++j) { /* cut off at a multiple of top */
                    const double y = x * (double)row[j], size = fabs(y), grid = top[j] * 0x1p52;
                    double kept = (size + grid) - grid;
                    kept = kept > size ? kept - top[j] : kept;
                    total[j] += y < 0 ? -kept : kept;
                }
            }
            for (int64_t j = 0; j < n; ++j) to[j] = cut(total[j]);
        }
    }
}

static float *floats(int64_t count)
{
    float *array = calloc((size_t)count + 1, sizeof *array);
    if (!array) abort();
    return array;
}

static float *input(const struct power_case *c, int64_t rows, uint64_t role)
{
    const int64_t count = rows * c->heads * c->dim;
    float *array = floats(count);
    for (int64_t i = 0; i < count; ++i)
        array[i] = round_to((float)value_of(c->family, mix(c->seed ^ mix(role << 56 ^ (uint64_t)i))), bits_of(c), false,
                            c->dtype);
    return array;
}

static void pack(const struct power_case *c, int index, const float *values, int64_t count)
{
    for (int64_t i = 0; i < count; ++i) ref_store(c->dtype, c->packed[index], i, (double)values[i]);
}

static int64_t of_rows(const struct power_case *c) { return c->rows * c->heads * c->dim; }
static int64_t of_keys(const struct power_case *c) { return c->keys * c->heads * c->dim; }

void power_init(struct power_case *c)
{
    struct attest_problem *p = &c->problem;
    c->q = input(c, c->rows, 1), c->k = input(c, c->keys, 2), c->v = input(c, c->keys, 3),
    c->dout = input(c, c->rows, 4);
    c->o = floats(of_rows(c)), c->dq = floats(of_rows(c)), c->lse = floats(c->rows * c->heads);
    c->dk = floats(of_keys(c)), c->dv = floats(of_keys(c));
    *p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    p->device = ATTEST_REFERENCE;
    p->batch = 1, p->seqlen_q = c->rows, p->seqlen_k = c->keys, p->num_heads_q = p->num_heads_kv = c->heads;
    p->head_dim = p->head_dim_v = c->dim;
    p->softmax_scale = 1.0f / sqrtf((float)c->dim);
    struct attest_tensor *const tensors[] = {&p->q, &p->k, &p->v, &p->dout, &p->o, &p->lse, &p->dq, &p->dk, &p->dv};
    for (int t = 0; t < 9; ++t) {
        const int64_t rows = t == 1 || t == 2 || t >= 7 ? c->keys : c->rows;
        *tensors[t] = (struct attest_tensor){.dtype = c->dtype, .batch = rows * c->heads * c->dim,
                                             .seqlen = c->heads * c->dim, .head = c->dim};
        if (t == 5)
            p->lse = (struct attest_tensor){.dtype = ATTEST_FP32, .batch = rows * c->heads, .seqlen = 1, .head = rows};
        c->packed[t] = t == 5 ? (void *)c->lse : calloc((size_t)(rows * c->heads * c->dim) + 1, sizeof(uint16_t));
        if (!c->packed[t]) abort();
    }
    pack(c, 0, c->q, of_rows(c)), pack(c, 1, c->k, of_keys(c)), pack(c, 2, c->v, of_keys(c));
    pack(c, 3, c->dout, of_rows(c));
    c->args = (struct attest_backward_args){.forward = {.q = c->packed[0], .k = c->packed[1], .v = c->packed[2],
                                                        .o = c->packed[4], .lse = c->packed[5]},
                                            .dout = c->packed[3], .dq = c->packed[6], .dk = c->packed[7],
                                            .dv = c->packed[8]};
}

void power_clear(struct power_case *c)
{
    float *const arrays[] = {c->q, c->k, c->v, c->dout, c->o, c->dq, c->dk, c->dv, c->lse};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) free(arrays[i]);
    for (int t = 0; t < 9; ++t)
        if (t != 5) free(c->packed[t]);
}

/* p or ds as products take it. */
static float round_weight(const struct power_case *c, float x, enum power_fault truncated, enum power_fault short_of)
{
    if (!c->rounds_weights) return x;
    const int bits = bits_of(c);
    if (c->fault == truncated) return round_to(x, bits, true, c->dtype);
    if (c->fault == short_of) return round_to(x, bits - 1, false, c->dtype);
    if (c->fault == POWER_P_TWICE && truncated == POWER_P_TRUNCATED) x = round_to(x, bits + 1, false, ATTEST_FP32);
    return round_to(x, bits, false, c->dtype);
}

/* Rows [rows][dim] of one head, or columns of it, [dim][rows]. */
static void gather(const struct power_case *c, const float *from, int64_t first, int64_t rows, int64_t h, float *to)
{
    for (int64_t r = 0; r < rows; ++r)
        memcpy(to + r * c->dim, from + ((first + r) * c->heads + h) * c->dim, (size_t)c->dim * sizeof *to);
}

static void transpose(int64_t rows, int64_t columns, const float *from, float *to)
{
    for (int64_t r = 0; r < rows; ++r)
        for (int64_t x = 0; x < columns; ++x) to[x * rows + r] = from[r * columns + x];
}

static void scatter(const struct power_case *c, const float *from, int64_t first, int64_t rows, int64_t h, float *to)
{
    for (int64_t r = 0; r < rows; ++r)
        memcpy(to + ((first + r) * c->heads + h) * c->dim, from + r * c->dim, (size_t)c->dim * sizeof *to);
}

/* One head: its rows, and a tile of its keys. */
struct work {
    float *q, *dout, *o, *dq, *s, *dp, *m, *l, *delta;
    float k[TILE * MOST_DIM], v[TILE * MOST_DIM], columns[TILE * MOST_DIM];
    float dk[TILE * MOST_DIM], dv[TILE * MOST_DIM];
};

/* rows x keys of the tile: q k^T or dout v^T. */
static void products_of_tile(const struct power_case *c, struct work *w, const float *rows, const float *keys,
                             int64_t count, float *to)
{
    transpose(count, c->dim, keys, w->columns);
    memset(to, 0, (size_t)(c->rows * count) * sizeof *to);
    multiply(c->sum, c->rows, count, c->dim, rows, c->dim, 1, w->columns, to);
}

static float scale_of(const struct power_case *c)
{
    const float scale = c->problem.softmax_scale * 1.44269504f;
    return c->fault == POWER_SCORES_SCALED ? scale * (1 + (float)c->size) : scale;
}

static void spoil_weights(const struct power_case *c, int64_t first, int64_t count, float *p)
{
    for (int64_t j = 0; j < count; ++j) {
        if (c->fault == POWER_VALUES_LOST && first + j >= c->keys - (int64_t)c->size) p[j] = 0.0f;
        if (c->fault == POWER_TILE_LOST && first / 64 == c->keys / 128) p[j] *= 1 - (float)c->size;
    }
}

static void forward_tile(const struct power_case *c, struct work *w, int64_t h, int64_t first, int64_t count)
{
    gather(c, c->k, first, count, h, w->k);
    gather(c, c->v, first, count, h, w->v);
    products_of_tile(c, w, w->q, w->k, count, w->s);
    const float scale = scale_of(c);
    for (int64_t i = 0; i < c->rows; ++i) {
        float *const s = w->s + i * count;
        float max = w->m[i];
        for (int64_t j = 0; j < count; ++j) max = fmaxf(max, s[j] *= scale);
        const float alpha = w->m[i] == max ? 1.0f : exp2f(w->m[i] - max);
        w->m[i] = max, w->l[i] *= alpha;
        for (int64_t x = 0; x < c->dim; ++x) w->o[i * c->dim + x] *= alpha;
        for (int64_t j = 0; j < count; ++j) {
            const float p = exp2f(s[j] - max);
            w->l[i] += p;
            s[j] = round_weight(c, p, POWER_P_TRUNCATED, POWER_P_7_BITS);
        }
        spoil_weights(c, first, count, s);
    }
    multiply(c->sum, c->rows, c->dim, count, w->s, count, 1, w->v, w->o);
    if (c->fault == POWER_O_EVERY && (first + count) % (int64_t)c->size == 0)
        for (int64_t i = 0; i < c->rows * c->dim; ++i) w->o[i] = round_to(w->o[i], bits_of(c), false, c->dtype);
}

/* To the dtype, as the fault has it. */
static void finish(const struct power_case *c, enum power_fault truncated, enum power_fault scaled, float factor,
                   int64_t rows, int64_t h, int64_t first, float *from, float *to)
{
    if (c->fault == scaled) factor *= 1 + (float)c->size;
    if (c->fault == POWER_HEAD_SCALED && scaled == POWER_O_SCALED && h == 0) factor *= 1 + (float)c->size;
    for (int64_t i = 0; i < rows * c->dim; ++i)
        from[i] = round_to(from[i] * factor, bits_of(c), c->fault == truncated, c->dtype);
    scatter(c, from, first, rows, h, to);
}

static void forward_head(struct power_case *c, struct work *w, int64_t h)
{
    gather(c, c->q, 0, c->rows, h, w->q);
    memset(w->o, 0, (size_t)(c->rows * c->dim) * sizeof *w->o);
    for (int64_t i = 0; i < c->rows; ++i) w->m[i] = -INFINITY, w->l[i] = 0.0f;
    for (int64_t j = 0; j < c->keys; j += TILE) forward_tile(c, w, h, j, c->keys - j < TILE ? c->keys - j : TILE);
    for (int64_t i = 0; i < c->rows; ++i) {
        for (int64_t x = 0; x < c->dim; ++x) w->o[i * c->dim + x] /= w->l[i];
        c->lse[h * c->rows + i] = (w->m[i] + log2f(w->l[i])) * 0.693147181f;
    }
    finish(c, POWER_O_TRUNCATED, POWER_O_SCALED, 1.0f, c->rows, h, 0, w->o, c->o);
    if (c->fault != POWER_ULP_OFF) return;
    for (int64_t i = 0; i < c->rows; ++i)
        for (int64_t x = 0; x < c->dim; ++x) {
            float *const o = c->o + (i * c->heads + h) * c->dim + x;
            const uint64_t bits = mix((uint64_t)((i * c->heads + h) * c->dim + x) ^ UINT64_C(0x5555));
            if (uniform(bits) < c->size)
                *o = round_to(*o * (1 + ldexpf(bits & 1 ? 1.2f : -1.2f, -bits_of(c))), bits_of(c), false, c->dtype);
        }
}

/* p and dp of a tile to s and dp. */
static void weights_of_tile(const struct power_case *c, struct work *w, int64_t h, int64_t first, int64_t count)
{
    gather(c, c->k, first, count, h, w->k);
    gather(c, c->v, first, count, h, w->v);
    products_of_tile(c, w, w->q, w->k, count, w->s);
    products_of_tile(c, w, w->dout, w->v, count, w->dp);
    const float scale = scale_of(c);
    for (int64_t i = 0; i < c->rows; ++i) {
        const float lse = c->lse[h * c->rows + i] * 1.44269504f;
        for (int64_t j = 0; j < count; ++j) w->s[i * count + j] = exp2f(fmaf(w->s[i * count + j], scale, -lse));
    }
}

static void backward_tile(struct power_case *c, struct work *w, int64_t h, int64_t first, int64_t count)
{
    weights_of_tile(c, w, h, first, count);
    for (int64_t i = 0; i < c->rows; ++i)
        for (int64_t j = 0; j < count; ++j) {
            const int64_t at = i * count + j;
            const float exact = w->s[at], folded = c->folds_scale ? c->problem.softmax_scale : 1.0f;
            w->s[at] = round_weight(c, exact, POWER_P_TRUNCATED, POWER_P_7_BITS);
            const float ds = (c->reuses_p ? w->s[at] : exact) * (w->dp[at] - w->delta[i]);
            w->dp[at] = round_weight(c, folded * ds, POWER_DS_TRUNCATED, POWER_DS_7_BITS);
        }
    multiply(c->sum, c->rows, c->dim, count, w->dp, count, 1, w->k, w->dq);
    if (c->fault == POWER_DQ_EVERY && (first + count) % (int64_t)c->size == 0)
        for (int64_t i = 0; i < c->rows * c->dim; ++i) w->dq[i] = round_to(w->dq[i], bits_of(c), false, c->dtype);
    memset(w->dk, 0, sizeof w->dk);
    memset(w->dv, 0, sizeof w->dv);
    multiply(c->sum, count, c->dim, c->rows, w->dp, 1, count, w->q, w->dk);
    multiply(c->sum, count, c->dim, c->rows, w->s, 1, count, w->dout, w->dv);
    finish(c, POWER_DK_TRUNCATED, POWER_DK_SCALED, c->folds_scale ? 1.0f : c->problem.softmax_scale, count, h, first,
           w->dk, c->dk);
    finish(c, POWER_DV_TRUNCATED, POWER_DV_SCALED, 1.0f, count, h, first, w->dv, c->dv);
}

static void find_delta(struct power_case *c, struct work *w, int64_t h)
{
    memset(w->delta, 0, (size_t)c->rows * sizeof *w->delta);
    if (!c->exact_delta) {
        gather(c, c->o, 0, c->rows, h, w->o);
        for (int64_t i = 0; i < c->rows; ++i)
            for (int64_t x = 0; x < c->dim; ++x) w->delta[i] += w->dout[i * c->dim + x] * w->o[i * c->dim + x];
    }
    for (int64_t first = 0; c->exact_delta && first < c->keys; first += TILE) {
        const int64_t count = c->keys - first < TILE ? c->keys - first : TILE;
        weights_of_tile(c, w, h, first, count);
        for (int64_t i = 0; i < c->rows; ++i)
            for (int64_t j = 0; j < count; ++j) w->delta[i] += w->s[i * count + j] * w->dp[i * count + j];
    }
    if (c->fault == POWER_DELTA_SCALED)
        for (int64_t i = 0; i < c->rows; ++i) w->delta[i] *= 1 + (float)c->size;
}

static void backward_head(struct power_case *c, struct work *w, int64_t h)
{
    gather(c, c->dout, 0, c->rows, h, w->dout);
    memset(w->dq, 0, (size_t)(c->rows * c->dim) * sizeof *w->dq);
    find_delta(c, w, h);
    for (int64_t j = 0; j < c->keys; j += TILE) backward_tile(c, w, h, j, c->keys - j < TILE ? c->keys - j : TILE);
    finish(c, POWER_DQ_TRUNCATED, POWER_DQ_SCALED, c->folds_scale ? 1.0f : c->problem.softmax_scale, c->rows, h, 0,
           w->dq, c->dq);
}

void power_run(struct power_case *c)
{
    struct work w = {.q = floats(c->rows * c->dim), .dout = floats(c->rows * c->dim), .o = floats(c->rows * c->dim),
                     .dq = floats(c->rows * c->dim), .s = floats(c->rows * TILE), .dp = floats(c->rows * TILE),
                     .m = floats(c->rows), .l = floats(c->rows), .delta = floats(c->rows)};
    for (int64_t h = 0; h < c->heads; ++h) {
        forward_head(c, &w, h);
        backward_head(c, &w, h);
    }
    pack(c, 4, c->o, of_rows(c)), pack(c, 6, c->dq, of_rows(c));
    pack(c, 7, c->dk, of_keys(c)), pack(c, 8, c->dv, of_keys(c));
    float *const arrays[] = {w.q, w.dout, w.o, w.dq, w.s, w.dp, w.m, w.l, w.delta};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; ++i) free(arrays[i]);
}

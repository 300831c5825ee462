/* vector_body.h - the loops of vector.h for one vector unit; vector.c includes it once for each.
 *
 * Expects  NAME(x)            x with the unit's suffix
 *          VECTOR_BYTES       of a register
 *          TILE_ROWS          rows of C held in registers beside REF_PANEL columns
 *          VECTOR_EXP(x)      exponential of each lane
 *          VECTOR_FMA(a,b,c)  a * b + c */

#define LANES (VECTOR_BYTES / 8)
#define VECTORS (REF_PANEL / LANES) /* registers that hold one row of a panel */

typedef double NAME(vector) __attribute__((vector_size(VECTOR_BYTES)));
typedef int64_t NAME(lanes) __attribute__((vector_size(VECTOR_BYTES)));
typedef double NAME(unaligned) __attribute__((vector_size(VECTOR_BYTES), aligned(8), may_alias));

static inline NAME(vector) NAME(load)(const double *x) { return *(const NAME(unaligned) *)x; }
static inline void NAME(store)(double *x, NAME(vector) v) { *(NAME(unaligned) *)x = v; }
static inline NAME(vector) NAME(broadcast)(double x) { return x - (NAME(vector)){0}; }
static inline NAME(vector) NAME(select)(NAME(lanes) mask, NAME(vector) yes, NAME(vector) no)
{
    return (NAME(vector))(((NAME(lanes))yes & mask) | ((NAME(lanes))no & ~mask));
}
static inline double NAME(sum)(NAME(vector) v)
{
    double sum = 0.0;
    for (int i = 0; i < LANES; ++i) sum += v[i];
    return sum;
}

/* `rows` rows of C, one panel wide, of which n columns are written. */
static inline __attribute__((always_inline)) void NAME(tile)(const int rows, int64_t n, int64_t k, const double *a,
                                                             int64_t a_row, int64_t a_col, const double *b, bool add,
                                                             double *c, int64_t c_row)
{
    NAME(vector) sum[TILE_ROWS][VECTORS];
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i)
#pragma GCC unroll 8
        for (int v = 0; v < VECTORS; ++v) sum[i][v] = (NAME(vector)){0};
    for (int64_t l = 0; l < k; ++l, a += a_col, b += REF_PANEL) {
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
            const NAME(vector) a_il = NAME(broadcast)(a[i * a_row]);
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v)
                sum[i][v] = VECTOR_FMA(a_il, NAME(load)(b + v * LANES), sum[i][v]);
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i, c += c_row) {
        if (n == REF_PANEL) {
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v)
                NAME(store)(c + v * LANES, add ? NAME(load)(c + v * LANES) + sum[i][v] : sum[i][v]);
        } else {
            double row[REF_PANEL];
#pragma GCC unroll 8
            for (int v = 0; v < VECTORS; ++v) NAME(store)(row + v * LANES, sum[i][v]);
            for (int64_t j = 0; j < n; ++j) c[j] = add ? c[j] + row[j] : row[j];
        }
    }
}

static void NAME(gemm)(int64_t m, int64_t n, int64_t k, const double *a, int64_t a_row, int64_t a_col,
                       const double *panels, int64_t k_packed, bool add, double *c, int64_t c_row)
{
    for (int64_t l = 0; l == 0 || l < k; l += REF_CHUNK) { /* once even for k = 0: then C = 0 */
        const int64_t length = k - l < REF_CHUNK ? k - l : REF_CHUNK;
        for (int64_t j = 0; j < n; j += REF_PANEL) {
            const int64_t columns = n - j < REF_PANEL ? n - j : REF_PANEL;
            const double *b = panels + j * k_packed + l * REF_PANEL;
            int64_t i = 0;
            for (; i + TILE_ROWS <= m; i += TILE_ROWS)
                NAME(tile)(TILE_ROWS, columns, length, a + i * a_row + l * a_col, a_row, a_col, b, add || l > 0,
                           c + i * c_row + j, c_row);
            for (; i < m; ++i)
                NAME(tile)(1, columns, length, a + i * a_row + l * a_col, a_row, a_col, b, add || l > 0,
                           c + i * c_row + j, c_row);
        }
    }
}

static double NAME(max)(int64_t n, const double *x)
{
    NAME(vector) max = NAME(broadcast)(-INFINITY);
    for (int64_t i = 0; i < n; i += LANES) {
        const NAME(vector) v = NAME(load)(x + i);
        max = NAME(select)(v > max, v, max);
    }
    double result = -INFINITY;
    for (int i = 0; i < LANES; ++i) result = max[i] > result ? max[i] : result;
    return result;
}

/* Below this the exponential rounds to zero: half the smallest double is exp(-745.133...). */
static double NAME(exp_sum)(int64_t n, double shift, double *x)
{
    NAME(vector) sum = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        const NAME(vector) argument = NAME(load)(x + i) - shift, zero = {0};
        const NAME(lanes) vanishes = argument < -745.2;
        const NAME(vector) e = NAME(select)(vanishes, zero, VECTOR_EXP(NAME(select)(vanishes, zero, argument)));
        NAME(store)(x + i, e);
        sum += e;
    }
    return NAME(sum)(sum);
}

static double NAME(dot)(int64_t n, const double *x, const double *y)
{
    NAME(vector) sum = {0};
    for (int64_t i = 0; i < n; i += LANES) sum = VECTOR_FMA(NAME(load)(x + i), NAME(load)(y + i), sum);
    return NAME(sum)(sum);
}

static double NAME(dot_distance)(int64_t n, const double *x, const double *y, double shift)
{
    NAME(vector) sum = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        const NAME(vector) d = NAME(load)(y + i) - shift;
        sum = VECTOR_FMA(NAME(load)(x + i), NAME(select)(d < 0.0, -d, d), sum);
    }
    return NAME(sum)(sum);
}

static double NAME(dot_square)(int64_t n, const double *x, const double *y, double shift)
{
    NAME(vector) sum = {0};
    for (int64_t i = 0; i < n; i += LANES) {
        const NAME(vector) d = NAME(load)(y + i) - shift;
        sum = VECTOR_FMA(NAME(load)(x + i) * d, d, sum);
    }
    return NAME(sum)(sum);
}

static void NAME(scale)(int64_t n, double factor, double *x)
{
    for (int64_t i = 0; i < n; i += LANES) NAME(store)(x + i, factor * NAME(load)(x + i));
}

static void NAME(multiply)(int64_t n, const double *y, double *x)
{
    for (int64_t i = 0; i < n; i += LANES) NAME(store)(x + i, NAME(load)(y + i) * NAME(load)(x + i));
}

static void NAME(multiply_shifted)(int64_t n, const double *y, double shift, double *x)
{
    for (int64_t i = 0; i < n; i += LANES) NAME(store)(x + i, NAME(load)(y + i) * (NAME(load)(x + i) - shift));
}

#undef LANES
#undef VECTORS

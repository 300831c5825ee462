/* bounds_order.c - see bounds_order.h. */
#include "reference/bounds_order.h"

#include <math.h>
#include <string.h>

enum { LINES = 9 };

bool bound_take_order(struct bound_pool *pool, int64_t features, struct bound_order *order)
{
    order->room = bound_take(pool, LINES * features);
    order->run = order->room;
    order->tiles = pool->failed ? NULL : order->room + features;
    return !pool->failed;
}

/* From a tile's sum, its least and largest partial sums, to what tiles in any order sum to. */
static void end_tile(int64_t features, double *tile, double *low, double *high, double *up, double *down,
                     double *inside)
{
    for (int64_t c = 0; c < features; ++c) {
        up[c] += fmax(tile[c], 0.0);
        down[c] -= fmin(tile[c], 0.0);
        inside[c] = fmax(inside[c], high[c] - low[c]);
        tile[c] = low[c] = high[c] = 0.0;
    }
}

void bound_find_order(int64_t count, int64_t features, const double *weights, const double *rows,
                      const struct bound_order *order)
{
    double *const run = order->run, *const tiles = order->tiles, *const sum = tiles + features;
    double *const lowest = sum + features, *const tile = lowest + features, *const low = tile + features;
    double *const high = low + features, *const down = high + features, *const inside = down + features;
    memset(order->room, 0, (size_t)(LINES * features) * sizeof *order->room);
    for (int64_t j = 0; j < count; ++j) {
        const double weight = weights[j], *const row = rows + j * features;
        for (int64_t c = 0; weight != 0.0 && c < features; ++c) {
            const double term = weight * row[c];
            tile[c] += term, sum[c] += term;
            low[c] = tile[c] < low[c] ? tile[c] : low[c];
            high[c] = tile[c] > high[c] ? tile[c] : high[c];
            lowest[c] = sum[c] < lowest[c] ? sum[c] : lowest[c];
            run[c] = sum[c] > run[c] ? sum[c] : run[c];
        }
        if ((j + 1) % BOUND_TILE == 0 || j + 1 == count) end_tile(features, tile, low, high, tiles, down, inside);
    }
    for (int64_t c = 0; c < features; ++c) {
        run[c] -= lowest[c];
        tiles[c] = fmax(tiles[c], down[c]) + 2 * inside[c];
    }
}

/* Each step costs so much of the partial sum and of its own terms. */
static double chain(double kappa, double step, double partial, double size, double error)
{
    return (1 + kappa) * (kappa * (partial + error) + step * size);
}

double bound_ordered_sum(const struct ref_machine *m, const struct bound_order *order, int64_t c, int64_t terms,
                         int64_t span, double size, double error)
{
    const double kappa = ref_sum_rows(m, terms, span, 1).rel, step = ref_step_error(m);
    const double run = chain(kappa, step, 2 * order->run[c], size, error);
    const double tiles = chain(ref_sum_of_steps(m, terms, span), step, order->tiles[c], size, error);
    const double alone = ref_sum_of_tiles(m, terms, span) * size;
    return fmin(kappa * size, fmax(alone, fmax(run, tiles)));
}

double bound_sum_of_lanes(const struct ref_machine *m, int64_t count, const double *terms, double live, double size,
                          double error)
{
    static const int64_t lanes[] = {1, 2, 4, 8, 16, 4}, widths[] = {1, 1, 1, 1, 1, 2};
    enum { SHAPES = sizeof lanes / sizeof *lanes, MOST = 16, WARP = 32, LEVELS = 12 };
    double worst = ref_growth((live / WARP + LEVELS) * m->u) * size;
    for (int s = 0; s < SHAPES; ++s) {
        double sum[MOST] = {0}, low[MOST] = {0}, high[MOST] = {0}, reach = 0.0;
        for (int64_t j = 0; j < count; ++j) {
            const int64_t lane = j / widths[s] % lanes[s];
            sum[lane] += terms[j];
            low[lane] = fmin(low[lane], sum[lane]), high[lane] = fmax(high[lane], sum[lane]);
        }
        for (int64_t lane = 0; lane < lanes[s]; ++lane) reach += 2 * (high[lane] - low[lane]);
        const double kappa = ref_growth((live / (double)lanes[s] + (double)lanes[s] + 3) * m->u);
        worst = fmax(worst, chain(kappa, 4 * m->u, reach, size, error));
    }
    return fmin(worst, ref_growth(live * m->u) * size);
}

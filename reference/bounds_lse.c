/* bounds_lse.c - what errors of one sign may make of lse: reference/bounds.md section 9. */
#include <math.h>
#include <string.h>

#include "reference/bounds_rows.h"

enum { MOST_SPLITS = 128 };

/* What sums q . k that are cut off lack on average, of all weights together: of keys that sum features in one order,
 * whatever it is, it is that of q and the mean of k. */
static double lag_of_scores(const struct bound_head *head, const struct bound_block *block, int64_t i)
{
    const int64_t d = head->problem->head_dim, at = i * head->ld;
    double mean[256] = {0}, sum = 0.0;
    for (int64_t j = 0; j < head->num_keys; ++j) {
        const double tanh = block->tanh ? block->tanh[at + j] : 0.0, weight = block->p[at + j] * (1 - tanh * tanh);
        const double *const k = head->k.value + j * d;
        if (weight == 0.0) continue;
        for (int64_t x = 0; x < d; ++x) mean[x] += weight * k[x];
    }
    for (int64_t x = 0; x < d; ++x) sum += fabs(block->q.value[i * d + x] * mean[x]);
    return (head->features.bias + head->features.aligned) * fabs((double)head->problem->softmax_scale) * sum;
}

/* Weighted mean of how often a running maximum grows after a key's tile, over tiles from `first` on in steps of `step`,
 * `count` of them. */
static double mean_growths(int64_t count, int64_t first, int64_t step, const double *top, const double *weight)
{
    double most = -INFINITY, before = 0.0, sum = 0.0;
    for (int64_t t = 0; t < count; ++t) {
        const int64_t at = first + step * t;
        if (top[at] > most) sum += before, most = top[at];
        before += weight[at];
    }
    return sum;
}

/* The largest of any direction and number of splits; each joins the others by one factor more, as a sink does. */
static double mean_rescales(const struct bound_head *head, const struct bound_block *block, int64_t i,
                            const struct bound_row_state *s)
{
    const int64_t tile = head->machine.tile_k > 0 ? head->machine.tile_k : 1, at = i * head->ld;
    const int64_t tiles = (head->num_keys + tile - 1) / tile;
    double *const top = block->line[0], *const weight = block->line[1];
    double most = 0.0;
    if (!head->machine.ordered || s->rescales == 0) return (double)s->rescales;
    for (int64_t t = 0; t < tiles; ++t) top[t] = -INFINITY, weight[t] = 0.0;
    for (int64_t j = 0; j < head->num_keys; ++j) {
        if (block->live[at + j] == 0.0) continue;
        top[j / tile] = fmax(top[j / tile], block->x[at + j]);
        weight[j / tile] += block->p[at + j];
    }
    for (int64_t splits = 1; splits <= MOST_SPLITS && splits <= tiles; splits *= 2) {
        double up = 0.0, down = 0.0;
        for (int64_t n = 0; n < splits; ++n) {
            const int64_t first = n * tiles / splits, end = (n + 1) * tiles / splits;
            up += mean_growths(end - first, first, 1, top, weight);
            down += mean_growths(end - first, end - 1, -1, top, weight);
        }
        most = fmax(most, fmax(up, down));
    }
    return fmin(most + 1, (double)s->rescales);
}

double bound_bias_of_lse(const struct bound_head *head, const struct bound_block *block, int64_t i,
                         const struct bound_row_state *s)
{
    const struct ref_machine *m = &head->machine;
    const double logarithm = s->log_sum + bound_behind(m);
    const double size = fmax(bound_size(s, s->top), bound_size(s, s->lse));
    double bias = lag_of_scores(head, block, i) + s->lost_weights;
    for (int64_t j = 0; j < head->num_keys; ++j)
        bias += block->p[i * head->ld + j] * block->score_bias[i * head->ld + j];
    /* Approximations may err to one side. */
    bias += (1 + mean_rescales(head, block, i, s)) * m->exp_error + m->log_error * (1 + logarithm);
    /* All scores have the rounding of one softmax_scale log2 e, and ln l that of one ln 2. */
    return bias + 1.25 * m->u * size + 0.05 * m->u * logarithm;
}

/* bounds_alike.c - ds of keys that dropout takes away, -p delta: alike where p are, and so are their roundings.
 * reference/bounds.md section 9.9. */
#include <math.h>
#include <stdlib.h>

#include "reference/bounds_gradients.h"
#include "reference/formats.h"

bool bound_take_alike(struct bound_pool *pool, struct bound_gradient_head *g, struct bound_gradient_block *block)
{
    const struct bound_head *const h = &g->head;
    const struct ref_machine *const m = &h->machine;
    const double scale = fabs((double)h->problem->softmax_scale), kept = ref_share_kept(h->problem);
    const double factors[] = {1.0, kept, scale, scale * kept};
    const int count = m->ds_may_have_scale ? 4 : 2;
    const bool is_coarse = m->ds.dtype == ATTEST_BF16 || m->ds.dtype == ATTEST_FP16;
    if (!(h->problem->dropout_p > 0) || !is_coarse || m->ds.parts != 1) return true;
    for (int i = 0; i < (m->p_ds.dtype != ATTEST_ABSENT ? 2 * count : count); ++i)
        if (factors[i % count] > 0.0) g->ways[g->num_ways++] = (struct bound_way){factors[i % count], i >= count};
    for (int n = 0; n < g->num_ways; ++n) block->ds.alike[n] = bound_take(pool, BOUND_BLOCK * h->ld);
    block->lower = bound_take(pool, h->ld);
    block->of_ties = bound_take(pool, h->ld);
    return !pool->failed;
}

/* A ds, and the least and the largest that it may be stored as: row_sigmas standard deviations away, and what is not
 * random. */
struct span {
    double value, low, high;
};

static struct span span_of(const struct bound_gradient_head *g, const struct bound_gradient_block *block, int64_t at,
                           const struct bound_view *v, const struct bound_row *row, int64_t j,
                           const struct bound_way *way)
{
    const struct ref_machine *const m = &g->head.machine;
    const struct bound_slope c = bound_slope_of(g, block, at);
    const double z = row->dlse - row->delta - row->delta_known, sizes = fabs(row->delta) + fabs(row->dlse);
    const double of_z = row->delta_bias + m->row_sigmas * row->delta_sigma + m->u * sizes;
    double p = v->p[j], of_p = bound_unsure_of_p(m, v, row, j);
    if (way->rounds_p) {
        const double low = ref_round(m->p_ds.dtype, p - of_p), high = ref_round(m->p_ds.dtype, p + of_p);
        p = ref_round(m->p_ds.dtype, p);
        of_p = high - low;
    }
    const double dx = p * fabs(z), of_dx = of_p * fabs(z) + (p + of_p) * of_z;
    const double unsure = c.value * of_dx + dx * (c.bias + m->row_sigmas * c.sigma) + 4 * m->u * dx + m->tiny;
    const double ds = p * z * c.value;
    return (struct span){ds, ref_round(m->ds.dtype, way->factor * (ds - unsure)) / way->factor,
                         ref_round(m->ds.dtype, way->factor * (ds + unsure)) / way->factor};
}

static int by_size(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Half units of those ds that may round to either side of a tie where others of the row do: of a common sign. */
static void add_ties(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t from,
                     const struct bound_view *v, const struct bound_row *row, const struct bound_way *way,
                     int64_t count)
{
    const struct ref_rounding *const r = &g->head.machine.ds;
    double *const lower = block->lower;
    qsort(lower, (size_t)count, sizeof *lower, by_size);
    for (int64_t j = 0; j < g->head.num_keys; ++j) {
        if (v->live[j] == 0.0 || v->drop[j] != 0.0) continue;
        const struct span s = span_of(g, block, from + j, v, row, j, way);
        if (s.low == s.high) continue;
        const double *const at = bsearch(&s.low, lower, (size_t)count, sizeof *lower, by_size);
        if (!at || !((at > lower && at[-1] == s.low) || (at + 1 < lower + count && at[1] == s.low))) continue;
        const double half = fmin(fmax(s.high - s.value, s.value - s.low), r->relative * fabs(s.value) + r->tiny);
        block->of_ties[j] = fmax(block->of_ties[j], half);
    }
}

void bound_round_alike(const struct bound_gradient_head *g, struct bound_gradient_block *block, int64_t i,
                       const struct bound_view *v, const struct bound_row *row)
{
    const int64_t from = i * g->head.ld, n = g->head.num_keys;
    for (int64_t j = 0; j < n; ++j) block->of_ties[j] = 0.0;
    for (int w = 0; w < g->num_ways; ++w) {
        int64_t tied = 0;
        for (int64_t j = 0; j < n; ++j) {
            block->ds.alike[w][from + j] = 0.0;
            if (v->live[j] == 0.0 || v->drop[j] != 0.0) continue;
            const struct span s = span_of(g, block, from + j, v, row, j, &g->ways[w]);
            if (s.low != s.high) block->lower[tied++] = s.low;
            else if (isfinite(s.low)) block->ds.alike[w][from + j] = s.low - s.value;
        }
        if (tied > 1) add_ties(g, block, from, v, row, &g->ways[w], tied);
    }
    for (int64_t j = 0; j < n; ++j) {
        block->ds.bias[from + j] += block->of_ties[j];
        block->dq_bias[from + j] += block->of_ties[j];
    }
}

/* forward.c - o and lse: all scores of a row, their maximum, the sum, the average of v. */
#include <math.h>
#include <stdlib.h>

#include "reference/formats.h"
#include "reference/oracle.h"

static void row_forward(const struct attest_problem *p, const struct attest_forward_args *a,
                        const struct ref_sequence *s, int64_t b, int64_t h, int64_t r, double *x, double *drop,
                        const struct ref_forward *out)
{
    const int64_t h_kv = h / (p->num_heads_q / p->num_heads_kv), row_index = (s->first_q + r) * p->num_heads_q + h;
    struct ref_row row = {.x = x, .drop = drop};
    ref_score_row(p, a, s, b, h, r, &row);
    if (out->lse) out->lse[row_index] = row.lse;
    if (!out->o) return;
    double *o = out->o + row_index * p->head_dim_v;
    for (int64_t f = 0; f < p->head_dim_v; ++f) o[f] = 0.0;
    for (int64_t c = 0; c < s->seqlen_k; ++c) {
        if (!ref_visible(p, a, s, b, h, r, c)) continue;
        const double pm = drop[c] * exp(x[c] - row.lse);
        const int64_t v = ref_row_offset(p, &p->v, s, true, b, c, h_kv);
        for (int64_t f = 0; f < p->head_dim_v; ++f) o[f] += pm * ref_load(p->v.dtype, a->v, v + f);
    }
}

enum attest_status ref_forward(const struct attest_problem *p, const struct attest_forward_args *a,
                               const struct ref_forward *out, int threads)
{
    (void)threads;
    double *scratch = malloc(2 * (size_t)(p->seqlen_k + 1) * sizeof *scratch);
    if (!scratch) return ATTEST_OUT_OF_MEMORY;
    const int64_t rows = ref_rows_q(p) * p->num_heads_q;
    for (int64_t i = 0; out->lse && i < rows; ++i) out->lse[i] = NAN;
    for (int64_t i = 0; out->o && i < rows * p->head_dim_v; ++i) out->o[i] = NAN;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, a, b);
        for (int64_t h = 0; h < p->num_heads_q; ++h) {
            for (int64_t r = 0; r < s.seqlen_q; ++r)
                row_forward(p, a, &s, b, h, r, scratch, scratch + p->seqlen_k, out);
            for (int64_t r = s.seqlen_q; r < s.rows_q; ++r) {
                const int64_t row_index = (s.first_q + r) * p->num_heads_q + h;
                if (out->lse) out->lse[row_index] = -INFINITY;
                for (int64_t f = 0; out->o && f < p->head_dim_v; ++f) out->o[row_index * p->head_dim_v + f] = 0.0;
            }
        }
    }
    free(scratch);
    return ATTEST_OK;
}

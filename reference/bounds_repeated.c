/* bounds_repeated.c - query rows of a group that are equal, whose weights round alike: reference/bounds.md
 * sections 9.7 and 9.17. */
#include <stdlib.h>

#include "reference/bounds_gradients.h"
#include "reference/formats.h"
#include "reference/repeats.h"

bool bound_find_repeated(struct bound_gradient_head *g)
{
    const struct bound_head *h = &g->head;
    const struct attest_problem *p = h->problem;
    const int64_t rows = h->sequence.seqlen_q, group = p->num_heads_q / p->num_heads_kv, d = p->head_dim;
    uint64_t *const hashes = malloc((size_t)(rows * group + 1) * sizeof *hashes);
    if (!hashes) return false;
    for (int64_t n = 0; n < rows * group; ++n) {
        const int64_t from = ref_row_offset(p, &p->q, &h->sequence, false, h->b, n % rows, h->h_kv * group + n / rows);
        hashes[n] = 0;
        for (int64_t c = 0; c < d; ++c) hashes[n] = ref_hash(hashes[n], ref_load(p->q.dtype, h->args->q, from + c));
    }
    const bool ok = ref_count_repeats(hashes, rows * group, g->repeated);
    free(hashes);
    return ok;
}

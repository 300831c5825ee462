/* bounds_repeated.c - rows of a query head that are equal, whose weights round alike: reference/bounds.md
 * section 9.7. */
#include <stdlib.h>
#include <string.h>

#include "reference/bounds_gradients.h"
#include "reference/formats.h"

struct row_key {
    uint64_t hash;
    int64_t row;
};

static int by_hash(const void *a, const void *b)
{
    const struct row_key *x = a, *y = b;
    return (x->hash > y->hash) - (x->hash < y->hash);
}

bool bound_find_repeated(struct bound_gradient_head *g)
{
    const struct bound_head *h = &g->head;
    const struct attest_problem *p = h->problem;
    const int64_t rows = h->sequence.seqlen_q, d = p->head_dim;
    struct row_key *const keys = malloc((size_t)(rows + 1) * sizeof *keys);
    if (!keys) return false;
    memset(g->repeated, 0, (size_t)rows * sizeof *g->repeated);
    for (int64_t r = 0; r < rows; ++r) {
        const int64_t from = ref_row_offset(p, &p->q, &h->sequence, false, h->b, r, h->h);
        keys[r] = (struct row_key){0, r};
        for (int64_t c = 0; c < d; ++c) {
            const double value = ref_load(p->q.dtype, h->args->q, from + c);
            uint64_t bits;
            memcpy(&bits, &value, sizeof bits);
            keys[r].hash = (keys[r].hash ^ bits) * UINT64_C(0x9e3779b97f4a7c15);
            keys[r].hash ^= keys[r].hash >> 29;
        }
    }
    qsort(keys, (size_t)rows, sizeof *keys, by_hash);
    for (int64_t r = 1; r < rows; ++r)
        if (keys[r].hash == keys[r - 1].hash) g->repeated[keys[r].row] = g->repeated[keys[r - 1].row] = 1.0;
    free(keys);
    return true;
}

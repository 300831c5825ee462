/* bounds_repeated.c - operands that are equal, number for number: what is made of them errs alike. reference/bounds.md
 * section 9.17. */
#include <stdlib.h>

#include "reference/bounds_gradients.h"
#include "reference/repeats.h"

bool bound_hash_keys(struct bound_pool *pool, struct bound_head *head)
{
    const struct bound_matrix *const parts[] = {&head->k, &head->v}; /* v is asked where some k are equal */
    const int64_t n = head->num_keys;
    uint64_t *const hashes = (uint64_t *)bound_take(pool, n);
    double *const repeats = malloc((size_t)(n + 1) * sizeof *repeats);
    bool ok = !pool->failed && repeats, is_repeated = true;
    for (int part = 0; ok && is_repeated && part < 2; ++part) {
        const int64_t features = parts[part]->features;
        for (int64_t at = 0; at < n * features; ++at)
            hashes[at / features] = ref_hash(hashes[at / features], parts[part]->value[at]);
        ok = ref_count_repeats(hashes, n, repeats);
        is_repeated = false;
        for (int64_t j = 0; ok && j < n; ++j) is_repeated |= repeats[j] > 1.0;
    }
    head->key_hashes = is_repeated ? hashes : NULL;
    free(repeats);
    return ok;
}

void bound_count_equal(const struct bound_head *head, struct bound_block *block, int64_t i)
{
    const int64_t n = head->num_keys, at = i * head->ld;
    uint64_t *const hashes = malloc((size_t)(n + 1) * sizeof *hashes);
    for (int64_t j = 0; hashes && j < n; ++j) hashes[j] = ref_hash(head->key_hashes[j], block->x[at + j]);
    const bool ok = hashes && ref_count_repeats(hashes, n, block->equal + at);
    for (int64_t j = 0; !ok && j < n; ++j) block->equal[at + j] = (double)n; /* it may be all */
    free(hashes);
}

bool bound_find_repeated(struct bound_gradient_head *g)
{
    const struct bound_head *h = &g->head;
    const struct attest_problem *p = h->problem;
    const int64_t rows = h->sequence.seqlen_q, group = p->num_heads_q / p->num_heads_kv, count = rows * group;
    uint64_t *const of_q = malloc((size_t)(2 * count + group + 1) * sizeof *of_q);
    if (!of_q) return false;
    uint64_t *const of_row = of_q + count, *const of_head = of_row + count;
    for (int64_t n = 0; n < group; ++n) of_head[n] = 0;
    for (int64_t n = 0; n < count; ++n) {
        const int64_t head = h->h_kv * group + n / rows, row = n % rows;
        const int64_t q = ref_row_offset(p, &p->q, &h->sequence, false, h->b, row, head);
        const int64_t dout = ref_row_offset(p, &p->dout, &h->sequence, false, h->b, row, head);
        of_q[n] = ref_hash_row(0, &p->q, h->args->q, q, p->head_dim);
        of_row[n] = ref_hash_row(of_q[n], &p->dout, g->args->dout, dout, p->head_dim_v);
        of_head[n / rows] = ref_hash_hash(of_head[n / rows], of_row[n]);
    }
    const bool ok = ref_count_repeats(of_q, count, g->same_q) && ref_count_repeats(of_row, count, g->same_row) &&
                    ref_count_repeats(of_head, group, g->same_head);
    free(of_q);
    return ok;
}

/* Hashes all k and v of a KV head. */
static uint64_t hash_keys(const struct attest_problem *p, const struct attest_forward_args *a,
                          const struct ref_sequence *s, int64_t b, int64_t h_kv)
{
    uint64_t hash = 0;
    for (int64_t j = 0; j < s->seqlen_k; ++j) {
        hash = ref_hash_row(hash, &p->k, a->k, ref_row_offset(p, &p->k, s, true, b, j, h_kv), p->head_dim);
        hash = ref_hash_row(hash, &p->v, a->v, ref_row_offset(p, &p->v, s, true, b, j, h_kv), p->head_dim_v);
    }
    return hash;
}

bool bound_repeat_dbias(const struct attest_problem *p, const struct attest_backward_args *a, double *repeats)
{
    const int64_t heads = p->num_heads_q, group = heads / p->num_heads_kv, count = ref_rows_q(p) * heads;
    const struct attest_score_tensor *const t = &p->dbias;
    for (int64_t n = 0; n < count; ++n) repeats[n] = 1.0;
    if (t->seqlen_q && (t->head || heads == 1) && (t->batch || p->batch == 1)) return true; /* each is of one row */
    uint64_t *const hashes = calloc((size_t)(count + 1), sizeof *hashes);
    if (!hashes) return false;
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &a->forward, b);
        uint64_t of_keys = 0;
        for (int64_t h = 0; h < heads; ++h) {
            if (h % group == 0) of_keys = hash_keys(p, &a->forward, &s, b, h / group);
            uint64_t of_head = ref_hash(of_keys, t->batch ? (double)b : 0.0);
            of_head = ref_hash(of_head, t->head ? (double)h : 0.0);
            for (int64_t r = 0; r < s.seqlen_q; ++r) {
                uint64_t *const hash = &hashes[(s.first_q + r) * heads + h];
                const int64_t q = ref_row_offset(p, &p->q, &s, false, b, r, h);
                const int64_t dout = ref_row_offset(p, &p->dout, &s, false, b, r, h);
                *hash = ref_hash(of_head, t->seqlen_q ? (double)r : 0.0);
                *hash = ref_hash_row(*hash, &p->q, a->forward.q, q, p->head_dim);
                *hash = ref_hash_row(*hash, &p->dout, a->dout, dout, p->head_dim_v);
            }
        }
    }
    const bool ok = ref_count_repeats(hashes, count, repeats);
    free(hashes);
    return ok;
}

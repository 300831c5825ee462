/* sums.c - where sums of short sequences are made, and what room they take. */
#include "kernels/shared/sums.h"

/* As many CTAs as add up tiles at once; a group's heads have a bit each there. */
enum { SUM_CTAS = 512, MOST_SUM_GROUP = 32 };

/* Returns in how many parts `all` come where each is taken by `others` CTAs. */
static int64_t parts_of(int64_t all, int64_t others)
{
    const int64_t most = others > 0 && others < SUM_CTAS ? SUM_CTAS / others : 1;
    return all < most ? all : most;
}

/* Rows, or keys, that share an element are added up later, even if there are none, as are large groups. */
static struct short_sums sums_of(const struct score_tensor *dbias, int64_t batch, int64_t heads, int64_t group,
                                 int64_t seqlen_q, int64_t seqlen_k)
{
    const int64_t heads_kv = heads / group;
    struct short_sums out = {SUMS_AT_ONCE, 0, 0, batch, heads_kv};
    if (dbias == NULL) return out;
    if ((dbias->seqlen_q == 0 && seqlen_q != 1) || (dbias->seqlen_k == 0 && seqlen_k != 1) || group > MOST_SUM_GROUP)
        out.way = SUMS_LATER;
    if (out.way == SUMS_LATER) return out;
    out.joins_batch = dbias->batch == 0 && batch > 1, out.joins_heads = dbias->head == 0 && heads > 1;
    if (out.joins_batch || out.joins_heads) out.way = SUMS_OF_TILES;
    if (out.joins_batch) out.parts = parts_of(batch, out.joins_heads ? 1 : heads_kv);
    if (out.joins_heads) out.head_parts = parts_of(heads_kv, out.parts);
    return out;
}

struct short_sums short_sums_of_pass(const struct backward_params *p)
{
    const struct forward_params *f = &p->forward;
    return sums_of(p->dbias.data != NULL ? &p->dbias : NULL, f->batch, f->num_heads_q, f->group, f->seqlen_q,
                   f->seqlen_k);
}

size_t short_sums_bytes(const struct attest_problem *p)
{
    const struct attest_score_tensor *const t = &p->dbias;
    const struct score_tensor dbias = {NULL, t->batch, t->head, t->seqlen_q, t->seqlen_k, t->dtype};
    const struct short_sums sums =
        sums_of(t->dtype != ATTEST_ABSENT ? &dbias : NULL, p->batch, p->num_heads_q,
                p->num_heads_q / p->num_heads_kv, p->seqlen_q, p->seqlen_k);
    const int64_t keys = p->seqlen_q <= 64 && p->seqlen_k <= 64 ? 64 : 128;
    const int64_t heads = sums.joins_heads ? sums.head_parts : p->num_heads_q;
    const int64_t sinks = (p->batch * p->num_heads_q + 3) / 4 * 4;
    const int64_t tiles = sums.way == SUMS_OF_TILES ? sums.parts * heads * keys * keys : 0;
    return (size_t)(sinks + tiles) * sizeof(float);
}

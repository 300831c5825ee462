/* case_sequences.c - ragged batches, lengths in use, and pages of k and v, which are gathered. */
#include <stdlib.h>
#include <string.h>

#include "reference/audit/case.h"

/* An array of integers of any type, as int32. */
static char *read_integers(struct audit_case *c, enum part part, int64_t most, int32_t **out, int64_t *count)
{
    const struct tensor *t = tensor_set_find(&c->set, part);
    *out = NULL;
    if (t == NULL) return NULL;
    const bool is_integer = t->dtype == TENSOR_INT32 || t->dtype == TENSOR_INT64 || t->dtype == TENSOR_UINT32 ||
                            t->dtype == TENSOR_UINT64 || t->dtype == TENSOR_INT16 || t->dtype == TENSOR_INT8;
    if (!is_integer) return sentence("%s is %s; it must be integers", t->name, tensor_dtype_name(t->dtype));
    *out = case_own(c, allocate((size_t)t->elements, sizeof **out));
    *count = t->elements;
    for (int64_t i = 0; i < t->elements; ++i) {
        const double x = tensor_number(t, i);
        if (!(x >= -1 && x <= (double)most) || (x < 0 && part != PART_BLOCK_TABLE))
            return sentence("%s[%lld] is %.0f; it must be 0 .. %lld", t->name, (long long)i, x, (long long)most);
        (*out)[i] = (int32_t)x;
    }
    return NULL;
}

/* ---- ragged batches ---- */

static char *check_offsets(const char *name, const int32_t *cu, int64_t count, int64_t *longest)
{
    *longest = 0;
    if (count < 2) return sentence("%s has %lld entries; it must have one more than there are sequences", name,
                                   (long long)count);
    for (int64_t i = 1; i < count; ++i) {
        const int64_t length = (int64_t)cu[i] - cu[i - 1];
        if (length < 0) return sentence("%s[%lld] is %d, less than the entry before, %d", name, (long long)i, cu[i],
                                        cu[i - 1]);
        if (length > *longest) *longest = length;
    }
    return NULL;
}

static char *read_ragged(struct audit_case *c, bool is_paged)
{
    struct attest_problem *p = &c->problem;
    int32_t *q, *k;
    int64_t count_q = 0, count_k = 0;
    const int64_t total_q = p->seqlen_q, total_k = p->seqlen_k;
    char *wrong = read_integers(c, PART_CU_Q, total_q, &q, &count_q);
    if (wrong == NULL && q != NULL) wrong = read_integers(c, PART_CU_K, total_k, &k, &count_k);
    if (wrong != NULL) return wrong;
    if (q == NULL) {
        const struct tensor *t = tensor_set_find(&c->set, PART_CU_K);
        return t != NULL ? sentence("%s is there, but cu_seqlens_q is not", t->name) : NULL;
    }
    const char *name_q = tensor_set_find(&c->set, PART_CU_Q)->name;
    wrong = check_offsets(name_q, q, count_q, &p->seqlen_q);
    if (wrong != NULL) return wrong;
    p->ragged = 1;
    p->batch = count_q - 1;
    p->total_q = total_q;
    c->args.forward.cu_seqlens_q = q;
    note(&c->notes, "ragged: %lld sequences of up to %lld rows (%s)", (long long)p->batch, (long long)p->seqlen_q,
         name_q);
    if (is_paged) return NULL;
    if (k == NULL) {
        if (total_k != total_q) return sentence("cu_seqlens_k is not there, and k has %lld rows, q %lld",
                                                (long long)total_k, (long long)total_q);
        k = q, count_k = count_q;
    }
    if (count_k != count_q) return sentence("cu_seqlens_k has %lld entries, %s %lld", (long long)count_k, name_q,
                                            (long long)count_q);
    p->total_k = total_k;
    c->args.forward.cu_seqlens_k = k;
    return check_offsets("cu_seqlens_k", k, count_k, &p->seqlen_k);
}

/* ---- lengths in use ---- */

static char *read_used(struct audit_case *c, enum part part, const int32_t *cu, int64_t seqlen, int32_t *flag,
                       const int32_t **used)
{
    int32_t *lengths;
    int64_t count = 0;
    char *wrong = read_integers(c, part, seqlen, &lengths, &count);
    if (wrong != NULL || lengths == NULL) return wrong;
    const char *name = tensor_set_find(&c->set, part)->name;
    if (count != c->problem.batch)
        return sentence("%s has %lld entries; batch is %lld", name, (long long)count, (long long)c->problem.batch);
    for (int64_t b = 0; cu != NULL && b < count; ++b)
        if (lengths[b] > cu[b + 1] - cu[b])
            return sentence("%s[%lld] is %d; that sequence has %d rows", name, (long long)b, lengths[b],
                            cu[b + 1] - cu[b]);
    *flag = 1;
    *used = lengths;
    note(&c->notes, "lengths in use by %s", name);
    return NULL;
}

/* ---- pages ---- */

/* What has to be gathered of k and v. */
struct pages {
    const int32_t *table, *lengths;
    int64_t batch, per_sequence, page, rows; /* rows of the gathered tensor, of one sequence where it is dense */
    const int32_t *cu;                       /* of a ragged batch, else NULL */
};

static const void *gather(struct audit_case *c, const struct pages *g, const struct view *rows)
{
    const size_t bytes = tensor_dtype_bytes(rows->dtype);
    const int64_t heads = rows->shape[2], dim = rows->shape[3], *s = rows->stride;
    char *out = case_own(c, allocate((size_t)((g->cu != NULL ? 1 : g->batch) * g->rows * heads * dim), bytes));
    for (int64_t b = 0; b < g->batch; ++b) {
        for (int64_t j = 0; j < g->lengths[b]; ++j) {
            const int64_t page = g->table[b * g->per_sequence + j / g->page];
            const int64_t row = g->cu != NULL ? g->cu[b] + j : b * g->rows + j;
            for (int64_t h = 0; h < heads; ++h)
                memcpy(out + (size_t)((row * heads + h) * dim) * bytes,
                       (const char *)rows->data + (size_t)(page * s[0] + j % g->page * s[1] + h * s[2]) * bytes,
                       (size_t)dim * bytes);
        }
    }
    return out;
}

static char *check_pages(const struct pages *g, int64_t num_pages, const char *name)
{
    for (int64_t b = 0; b < g->batch; ++b) {
        for (int64_t i = 0; i * g->page < g->lengths[b]; ++i) {
            const int32_t page = g->table[b * g->per_sequence + i];
            if (page < 0 || page >= num_pages)
                return sentence("%s[%lld][%lld] is %d, and that page is in use; it must be 0 .. %lld", name,
                                (long long)b, (long long)i, page, (long long)num_pages - 1);
        }
    }
    return NULL;
}

static void place_gathered(struct audit_case *c, const struct pages *g, const struct view *k, const struct view *v)
{
    struct attest_problem *p = &c->problem;
    const int64_t heads = p->num_heads_kv;
    c->args.forward.k = gather(c, g, k);
    c->args.forward.v = gather(c, g, v);
    p->k = (struct attest_tensor){.dtype = k->dtype, .batch = g->rows * heads * p->head_dim,
                                  .seqlen = heads * p->head_dim, .head = p->head_dim};
    p->v = (struct attest_tensor){.dtype = v->dtype, .batch = g->rows * heads * p->head_dim_v,
                                  .seqlen = heads * p->head_dim_v, .head = p->head_dim_v};
}

static char *read_pages(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    const struct tensor *t = tensor_set_find(&c->set, PART_BLOCK_TABLE);
    const struct view k = c->rows_k, v = c->rows_v;
    struct pages g = {.batch = p->batch, .page = k.shape[1]};
    int32_t *table, *lengths;
    int64_t count = 0, used = 0;
    char *wrong = read_integers(c, PART_BLOCK_TABLE, INT32_MAX, &table, &count);
    if (wrong != NULL) return wrong;
    if (t->ndim != 2 || t->shape[0] != p->batch) return sentence("%s must be [batch, pages], batch being %lld", t->name,
                                                                 (long long)p->batch);
    g.table = table;
    g.per_sequence = t->shape[1];
    wrong = read_integers(c, PART_USED_K, g.per_sequence * g.page, &lengths, &used);
    if (wrong != NULL) return wrong;
    if (lengths == NULL || used != p->batch)
        return sentence("%s needs seqused_k (or cache_seqlens), a length for each of %lld sequences", t->name,
                        (long long)p->batch);
    g.lengths = lengths;
    wrong = check_pages(&g, k.shape[0], t->name);
    if (wrong != NULL) return wrong;
    int32_t *cu = case_own(c, allocate((size_t)p->batch + 1, sizeof *cu));
    p->seqlen_k = 0;
    for (int64_t b = 0; b < p->batch; ++b) {
        cu[b + 1] = cu[b] + lengths[b];
        if (lengths[b] > p->seqlen_k) p->seqlen_k = lengths[b];
    }
    g.rows = p->ragged ? cu[p->batch] : p->seqlen_k;
    if (p->ragged) g.cu = c->args.forward.cu_seqlens_k = cu, p->total_k = g.rows;
    else p->has_seqused_k = 1, c->args.forward.seqused_k = lengths;
    place_gathered(c, &g, &k, &v);
    note(&c->notes, "k and v are gathered from pages of %lld rows (%s)", (long long)g.page, t->name);
    return NULL;
}

char *case_read_sequences(struct audit_case *c)
{
    struct attest_problem *p = &c->problem;
    struct attest_forward_args *a = &c->args.forward;
    const bool is_paged = tensor_set_find(&c->set, PART_BLOCK_TABLE) != NULL;
    char *wrong = read_ragged(c, is_paged);
    if (wrong == NULL)
        wrong = read_used(c, PART_USED_Q, a->cu_seqlens_q, p->seqlen_q, &p->has_seqused_q, &a->seqused_q);
    if (wrong != NULL) return wrong;
    if (is_paged) return read_pages(c);
    return read_used(c, PART_USED_K, a->cu_seqlens_k, p->seqlen_k, &p->has_seqused_k, &a->seqused_k);
}

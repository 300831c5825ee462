/* published_batch.c - prefill, decode and hybrid batches of inference: ragged, causal, ALiBi, GQA. */
#include <inttypes.h>
#include <math.h>

#include "lib/shares.h"
#include "proptests/published/published_tensors.h"
#include "reference/bounds.h"
#include "reference/oracle.h"

enum { SEQLEN = 128, DIM = 128 };

/* Sequences that prefill lie spread among those that decode. */
static int64_t queries_of(int64_t sequence, int64_t prefills)
{
    const bool is_prefill = (sequence + 1) * prefills / PUBLISHED_BATCH > sequence * prefills / PUBLISHED_BATCH;
    return is_prefill ? SEQLEN : 1;
}

static struct attest_problem batch_problem(const struct machine *machine, int64_t total_q, int64_t heads_q,
                                           int64_t heads_kv)
{
    struct attest_problem p = packed_problem(machine, SEQLEN, SEQLEN, heads_q, DIM);
    p.k = p.v = packed_rows(ATTEST_FP16, SEQLEN, heads_kv, DIM);
    p.num_heads_kv = heads_kv;
    p.ragged = 1, p.batch = PUBLISHED_BATCH, p.total_q = total_q, p.total_k = PUBLISHED_BATCH * SEQLEN;
    p.has_alibi = 1, p.window_right = 0, p.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    return p;
}

/* By the bounds and, o, by statistics. */
static int judge(const struct attest_problem *p, const struct attest_forward_args *a, struct memory *m, FILE *out)
{
    const int64_t rows = p->total_q * p->num_heads_q;
    const struct ref_forward want = {new_doubles(m, rows * DIM), new_doubles(m, rows)};
    const struct ref_bound o = {.bound = new_doubles(m, rows * DIM),
                                .sigma = new_doubles(m, rows * DIM),
                                .bias = new_doubles(m, rows * DIM)};
    const struct ref_bound lse = {.bound = new_doubles(m, rows)};
    struct attest_plan *plan;
    struct ref_report of_o, of_lse;
    if (attest_plan_create(p, &plan) != ATTEST_OK) return state(out, false, "%s", attest_last_error());
    const struct ref_shares shares = shares_of_plan(plan, ATTEST_FORWARD);
    const bool found = ref_forward(p, a, &want, 0) == ATTEST_OK &&
                       ref_bound_forward_shares(p, a, &shares, &o, &lse, 0) == ATTEST_OK;
    char kernel[160];
    snprintf(kernel, sizeof kernel, "%s", attest_plan_kernel(plan, ATTEST_FORWARD));
    attest_plan_destroy(plan);
    if (!found) return state(out, false, "no memory");
    ref_judge(p, a, REF_O, a->o, want.o, &o, 1, &of_o);
    ref_judge(p, a, REF_LSE, a->lse, want.lse, &lse, 0, &of_lse);
    return state(out, of_o.verdict == REF_PASS && of_lse.verdict == REF_PASS,
                 "    %s: share of the bounds: o %.3f, lse %.3f; max error of o %.1e, rms %.1e; %.3f of the "
                 "statistical threshold",
                 kernel, of_o.use, of_lse.use, of_o.max_error, of_o.rmse, of_o.rms_ratio);
}

/* Lengths and slopes, the same for every number of heads: 2^(-8 (h + 1) / num_heads_q), as published. */
struct layout {
    struct tensor *starts_q, *starts_k, *slopes;
    int64_t total_q, total_k;
};

static struct layout new_layout(struct memory *m, int64_t prefills, int64_t num_heads_q)
{
    struct layout l = {new_tensor(m, ATTEST_FP32, PUBLISHED_BATCH + 1), new_tensor(m, ATTEST_FP32, PUBLISHED_BATCH + 1),
                       new_tensor(m, ATTEST_FP32, num_heads_q), 0, PUBLISHED_BATCH * SEQLEN};
    for (int b = 0; b <= PUBLISHED_BATCH; ++b) {
        ((int32_t *)l.starts_q->host)[b] = (int32_t)l.total_q;
        ((int32_t *)l.starts_k->host)[b] = b * SEQLEN;
        if (b < PUBLISHED_BATCH) l.total_q += queries_of(b, prefills);
    }
    for (int64_t h = 0; h < num_heads_q; ++h)
        ((float *)l.slopes->host)[h] = (float)exp2(-8 * (double)(h + 1) / (double)num_heads_q);
    to_machine(m, l.starts_q), to_machine(m, l.starts_k), to_machine(m, l.slopes);
    return l;
}

struct numbers {
    struct tensor *q, *k, *v, *o, *lse;
};

static struct attest_forward_args args_of(const struct layout *l, const struct numbers *n, place *at)
{
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    a.q = at(n->q, 0), a.k = at(n->k, 0), a.v = at(n->v, 0), a.o = at(n->o, 0), a.lse = at(n->lse, 0);
    a.cu_seqlens_q = at(l->starts_q, 0), a.cu_seqlens_k = at(l->starts_k, 0), a.alibi_slopes = at(l->slopes, 0);
    return a;
}

int published_batch(const struct machine *machine, int64_t prefills, int64_t num_heads_q, int64_t num_heads_kv,
                    FILE *out)
{
    static struct memory m;
    int broken = 1;
    m.machine = machine;
    const struct layout l = new_layout(&m, prefills, num_heads_q);
    const struct attest_problem p = batch_problem(machine, l.total_q, num_heads_q, num_heads_kv);
    const struct numbers n = {new_normal(&m, ATTEST_FP16, ROLE_Q, l.total_q, num_heads_q, DIM),
                              new_normal(&m, ATTEST_FP16, ROLE_K, l.total_k, num_heads_kv, DIM),
                              new_normal(&m, ATTEST_FP16, ROLE_V, l.total_k, num_heads_kv, DIM),
                              new_tensor(&m, ATTEST_FP16, l.total_q * num_heads_q * DIM),
                              new_tensor(&m, ATTEST_FP32, l.total_q * num_heads_q)};
    const struct attest_backward_args there = {.forward = args_of(&l, &n, there_at)};
    const struct attest_forward_args host = args_of(&l, &n, host_at);
    fprintf(out, "batch: %d sequences of %d keys, %" PRId64 " with %d queries, the others with one; causal, ALiBi, "
                 "%" PRId64 " heads on %" PRId64 ", head_dim %d\n",
            PUBLISHED_BATCH, SEQLEN, prefills, SEQLEN, num_heads_q, num_heads_kv, DIM);
    if (run(&m, &p, &there, false, out)) {
        to_host(&m, n.o), to_host(&m, n.lse);
        broken = judge(&p, &host, &m, out);
    }
    free_memory(&m, 0);
    return broken;
}

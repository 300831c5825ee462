/* kernels_chip_oracle.c - every kernel beside the oracle, at the sizes that it is made for and on the largest grids. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "lib/shares.h"
#include "proptests/cases/cuda_memory.h"
#include "proptests/kernels/kernels_chip.h"
#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/oracle.h"

/* Prints the largest share of its bound, and whether it is in it. */
static bool judge(const struct sample *c, enum ref_tensor t, const void *got, const double *want,
                  const struct ref_bound *bound)
{
    struct ref_report r;
    if (got == NULL) return true;
    ref_judge(&c->host_problem, &c->host.forward, t, got, want, bound, 0, &r);
    printf(" %s %.3f", ref_tensor_names[t], r.use);
    return r.verdict != REF_FAIL && r.use <= 1;
}

static bool is_within_bounds(const struct sample *c)
{
    const struct attest_problem *const p = &c->host_problem;
    const bool backward = p->dq.dtype != ATTEST_ABSENT;
    const int64_t rows_q = ref_rows_q(p) * p->num_heads_q, rows_k = ref_rows_k(p) * p->num_heads_kv;
    const int64_t counts[REF_NUM_TENSORS] = {
        rows_q * p->head_dim_v, rows_q, rows_q * p->head_dim, rows_k * p->head_dim, rows_k * p->head_dim_v,
        p->dbias.dtype != ATTEST_ABSENT ? p->num_heads_q * p->seqlen_q * p->seqlen_k : 0, p->num_heads_q};
    const void *const got[REF_NUM_TENSORS] = {c->host.forward.o, c->host.forward.lse, c->host.dq, c->host.dk,
                                              c->host.dv, c->host.dbias, c->host.dsink};
    double *want[REF_NUM_TENSORS];
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        want[t] = counts[t] > 0 ? malloc((size_t)counts[t] * sizeof(double)) : NULL;
        bounds[t].bound = counts[t] > 0 ? malloc((size_t)counts[t] * sizeof(double)) : NULL;
    }
    const struct ref_forward f = {want[REF_O], want[REF_LSE]};
    const struct ref_backward b = {.dq = want[REF_DQ], .dk = want[REF_DK], .dv = want[REF_DV],
                                   .dbias = got[REF_DBIAS] != NULL ? want[REF_DBIAS] : NULL,
                                   .dsink = got[REF_DSINK] != NULL ? want[REF_DSINK] : NULL};
    const struct ref_shares forward = shares_of_plan(c->plan, ATTEST_FORWARD);
    const struct ref_shares backward_shares = shares_of_plan(c->plan, ATTEST_BACKWARD);
    bool ok = ref_forward(p, &c->host.forward, &f, 0) == ATTEST_OK &&
              ref_bound_forward_shares(p, &c->host.forward, &forward, &bounds[REF_O], &bounds[REF_LSE], 0) == ATTEST_OK;
    if (backward)
        ok = ok && ref_backward(p, &c->host, NULL, &b, 0) == ATTEST_OK &&
             ref_bound_backward_shares(p, &c->host, &backward_shares, bounds, 0) == ATTEST_OK;
    for (int t = 0; t < REF_NUM_TENSORS && ok; ++t)
        if (t <= REF_LSE || backward) ok = judge(c, (enum ref_tensor)t, got[t], want[t], &bounds[t]);
    for (int t = 0; t < REF_NUM_TENSORS; ++t) free(want[t]), free(bounds[t].bound);
    return ok;
}

static bool check_shape(const struct sample_shape *shape)
{
    struct sample c;
    chip_print_shape(shape);
    const bool ok = sample_open(&c, &machine_of_cuda, shape, 0) && chip_run(&c, NULL) && is_within_bounds(&c);
    printf("; %s, %s: %s\n", attest_plan_kernel(c.plan, ATTEST_FORWARD), attest_plan_kernel(c.plan, ATTEST_BACKWARD),
           ok ? "fine" : "WRONG");
    fflush(stdout);
    sample_close(&c);
    return ok;
}

/* Every kernel and every width that it is compiled for, whole and cut heads, plain and with everything. */
bool chip_large(void)
{
    static const int32_t dtypes[] = {ATTEST_FP16, ATTEST_BF16, ATTEST_FP32};
    static const int64_t dims[] = {64, 128, 256, 40, 96, 200};
    static const unsigned features[] = {0, WITH_CAUSAL, EVERYTHING};
    bool ok = true;
    for (int d = 0; d < 3; ++d)
        for (int n = 0; n < 6; ++n)
            for (int f = 0; f < 3; ++f) {
                if (n >= 3 && f != 2) continue; /* cut heads with everything */
                const int64_t seqlen = chip_settings.quick ? 150 : f == 2 ? 1100 : 2049;
                struct sample_shape s = chip_shape(dtypes[d], seqlen, dims[n], features[f]);
                if (n >= 3) s.head_dim_v = dims[n] - 3;
                ok &= check_shape(&s);
            }
    static const int64_t widths[][2] = {{64, 64}, {96, 96}, {128, 128}, {192, 128}, {192, 192}, {256, 256}};
    for (int n = 0; n < 6; ++n) { /* few rows on many keys, which are cut */
        struct sample_shape s = chip_shape(dtypes[n % 2], 40000, widths[n][0], FORWARD_ONLY | features[n % 2]);
        s.head_dim_v = widths[n][1], s.queries = 200;
        ok &= check_shape(&s);
    }
    for (int n = 0; n < 2 && !chip_settings.quick; ++n) {
        struct sample_shape s = chip_shape(ATTEST_BF16, 8192, dims[n], features[n]);
        s.heads_q = 1;
        ok &= check_shape(&s);
    }
    return ok;
}

/* More heads than 65535. */
static bool many_heads(void)
{
    static const int32_t dtypes[] = {ATTEST_FP16, ATTEST_BF16, ATTEST_FP32};
    bool ok = true;
    for (int d = 0; d < 3; ++d) {
        struct sample_shape s = chip_shape(dtypes[d], 5, 24, EVERYTHING & ~(unsigned)WITH_BLOCK_MASK);
        s.heads_q = 70000, s.heads_kv = 35000;
        ok &= check_shape(&s);
    }
    return ok;
}

/* More tiles of fp32 rows than 65535, one key, one feature: every number is known. */
static bool many_rows(void)
{
    enum { ROWS = 2200000 };
    enum { Q, DOUT, K, V, BIAS, O, LSE, DQ, DK, DV, DBIAS, NUM };
    static const float inputs[] = {[Q] = 0, [DOUT] = 1, [K] = 2, [V] = 3, [BIAS] = 0};
    static const float wants[] = {[O] = 3, [LSE] = 0, [DQ] = 0, [DK] = 0, [DV] = ROWS, [DBIAS] = 0};
    const struct attest_tensor t = {ATTEST_FP32, 0, ROWS, 1, ROWS};
    const struct attest_score_tensor scores = {ATTEST_FP32, 0, ROWS, ROWS, 1, 1};
    const size_t bytes = ROWS * sizeof(float);
    float *const host = malloc(bytes), *there[NUM + 1] = {0}; /* the last: workspace */
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    struct attest_plan *plan = NULL;
    p.batch = p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = p.seqlen_k = 1, p.seqlen_q = ROWS;
    p.q = p.k = p.v = p.dout = p.o = p.lse = p.dq = p.dk = p.dv = t, p.softmax_scale = 1;
    p.bias = p.dbias = scores;
    bool ok = host != NULL && attest_plan_create(&p, &plan) == ATTEST_OK;
    size_t forward_bytes = 0, workspace = 0;
    ok = ok && attest_plan_workspace(plan, &forward_bytes, &workspace) == ATTEST_OK;
    for (int n = Q; n <= NUM && ok; ++n) {
        for (int i = 0; i < ROWS; ++i) host[i] = n < O ? inputs[n] : NAN;
        there[n] = cuda_allocate(n == NUM ? workspace : bytes);
        ok = there[n] != NULL && (n == NUM || cuda_copy_in(there[n], host, bytes) == 0);
    }
    a.forward.q = there[Q], a.forward.k = there[K], a.forward.v = there[V], a.forward.o = there[O];
    a.forward.bias = there[BIAS], a.forward.lse = there[LSE], a.dout = there[DOUT], a.dq = there[DQ], a.dk = there[DK];
    a.dv = there[DV], a.dbias = there[DBIAS];
    ok = ok && attest_run_forward(plan, &a.forward, NULL, 0, NULL) == ATTEST_OK &&
         attest_run_backward(plan, &a, there[NUM], workspace, NULL) == ATTEST_OK;
    for (int n = O; n < NUM && ok; ++n) {
        const int count = n == DK || n == DV ? 1 : ROWS;
        ok = cuda_copy_out(host, there[n], bytes) == 0;
        for (int i = 0; i < count && ok; ++i) ok = host[i] == wants[n];
        if (!ok) printf("  %s: number %d of %d rows is wrong\n", attest_last_error(), n, ROWS);
    }
    for (int n = Q; n <= NUM; ++n) cuda_release(there[n]);
    attest_plan_destroy(plan), free(host);
    return ok;
}

bool chip_folded(void) { return many_heads() && many_rows(); }

/* kernels_chip.c - what only the chip can show: every kernel at the sizes it is made for, under load, in graphs, far
 * apart.
 *
 *     kernels_chip [--quick] [NAME...]
 *
 * --quick: every kernel once at small sizes, memory as it was allocated: for checkers that run each access slowly. Last
 * line: N passed, M failed, K unchecked; without a GPU nothing is checked. */
#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda.h"
#include "proptests/cases/sample.h"
#include "proptests/cases/cuda_memory.h"
#include "proptests/cases/families.h"
#include "proptests/kernels/late_copy.h"
#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/oracle.h"

#define EVERYTHING                                                                                               \
    (WITH_WINDOW | WITH_BIAS | WITH_ALIBI | WITH_SOFTCAP | WITH_SINK | WITH_DROPOUT | WITH_DLSE | WITH_SEQUSED | \
     WITH_MASK | WITH_BLOCK_MASK | WITH_DBIAS)

static struct {
    bool quick;
    char **names; /* of the checks asked for; NULL: all */
} settings;

static struct sample_shape shape_of(int32_t dtype, int64_t seqlen, int64_t head_dim, unsigned features)
{
    return (struct sample_shape){.dtype = dtype, .batch = 1, .seqlen = seqlen, .heads_q = 2, .heads_kv = 1,
                               .head_dim = head_dim, .head_dim_v = head_dim, .features = features};
}

static void print_shape(const struct sample_shape *s)
{
    printf("  %s, seqlen %" PRId64 ", head_dim %" PRId64 "/%" PRId64 ", features 0x%x", ref_dtype_name(s->dtype),
           s->seqlen, s->head_dim, s->head_dim_v, s->features);
}

static bool run(struct sample *c, void *stream)
{
    return sample_send(c, settings.quick) && sample_queue(c, stream) && sample_fetch(c);
}

/* ---- beside the oracle ---- */

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
    const struct attest_recipe *const recipe = attest_plan_recipe(c->plan);
    bool ok = ref_forward(p, &c->host.forward, &f, 0) == ATTEST_OK &&
              ref_bound_forward(p, &c->host.forward, recipe, &bounds[REF_O], &bounds[REF_LSE], 0) == ATTEST_OK;
    if (backward)
        ok = ok && ref_backward(p, &c->host, NULL, &b, 0) == ATTEST_OK &&
             ref_bound_backward(p, &c->host, attest_plan_backward_recipe(c->plan), bounds, 0) == ATTEST_OK;
    for (int t = 0; t < REF_NUM_TENSORS && ok; ++t)
        if (t <= REF_LSE || backward) ok = judge(c, (enum ref_tensor)t, got[t], want[t], &bounds[t]);
    for (int t = 0; t < REF_NUM_TENSORS; ++t) free(want[t]), free(bounds[t].bound);
    return ok;
}

static bool check_shape(const struct sample_shape *shape)
{
    struct sample c;
    print_shape(shape);
    const bool ok = sample_open(&c, &machine_of_cuda, shape, 0) && run(&c, NULL) && is_within_bounds(&c);
    printf("; %s, %s: %s\n", attest_plan_kernel(c.plan), attest_plan_backward_kernel(c.plan), ok ? "fine" : "WRONG");
    fflush(stdout);
    sample_close(&c);
    return ok;
}

/* Every kernel and every width that it is compiled for, whole and cut heads, plain and with everything. */
static bool large(void)
{
    static const int32_t dtypes[] = {ATTEST_FP16, ATTEST_BF16, ATTEST_FP32};
    static const int64_t dims[] = {64, 128, 256, 40, 96, 200};
    static const unsigned features[] = {0, WITH_CAUSAL, EVERYTHING};
    bool ok = true;
    for (int d = 0; d < 3; ++d)
        for (int n = 0; n < 6; ++n)
            for (int f = 0; f < 3; ++f) {
                if (n >= 3 && f != 2) continue; /* cut heads with everything */
                const int64_t seqlen = settings.quick ? 150 : f == 2 ? 1100 : 2049;
                struct sample_shape s = shape_of(dtypes[d], seqlen, dims[n], features[f]);
                if (n >= 3) s.head_dim_v = dims[n] - 3;
                ok &= check_shape(&s);
            }
    for (int n = 0; n < 2 && !settings.quick; ++n) {
        struct sample_shape s = shape_of(ATTEST_BF16, 8192, dims[n], features[n]);
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
        struct sample_shape s = shape_of(dtypes[d], 5, 24, EVERYTHING & ~(unsigned)WITH_BLOCK_MASK);
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

static bool folded(void) { return many_heads() && many_rows(); }

/* ---- the same bits ---- */

/* Shapes that run every kernel; also of the other checks. */
enum { NUM_SHAPES = 9 };
static struct sample_shape some_shape(int n)
{
    const int64_t seqlen = settings.quick ? 150 : 1500;
    const struct sample_shape shapes[] = {
        shape_of(ATTEST_BF16, seqlen, 64, WITH_CAUSAL), shape_of(ATTEST_FP16, seqlen, 128, EVERYTHING),
        shape_of(ATTEST_BF16, seqlen, 256, 0), shape_of(ATTEST_FP32, seqlen, 64, EVERYTHING),
        shape_of(ATTEST_BF16, 64, 64, WITH_CAUSAL), shape_of(ATTEST_FP16, 100, 128, WITH_ALIBI | WITH_DROPOUT),
        shape_of(ATTEST_BF16, 30, 256, 0), shape_of(ATTEST_BF16, 128, 128, 0), shape_of(ATTEST_BF16, 128, 256, 0)};
    struct sample_shape s = shapes[n];
    s.batch = 2, s.heads_q = 6;
    s.heads_kv = s.seqlen == 128 ? 6 : 3; /* few whole problems: a kernel that takes no groups, and begins early */
    return s;
}

static bool repeats_of(struct sample *c)
{
    enum { REPEATS = 100, FEW = 3, LOAD = 1 << 26 };
    char *const memory = cuda_allocate(LOAD);
    void *const stream = cuda_new_stream(), *const other = cuda_new_stream();
    bool ok = memory != NULL && stream != NULL && other != NULL && cuda_fill(memory, 1, LOAD) == 0 && run(c, NULL);
    char *const first = ok ? sample_results(c) : NULL;
    for (int n = 0; n < (settings.quick ? FEW : REPEATS) && ok; ++n) {
        ok = sample_send(c, settings.quick) && cuda_synchronize() == 0;
        ok = ok && cuda_queue_load(memory, LOAD >> n % 5, 1 + n % 7, other) == 0; /* other times, other parts */
        ok = ok && sample_queue(c, stream) && sample_fetch(c) && sample_has_results(c, first);
    }
    free(first), cuda_release(memory);
    return ok;
}

static bool repeats(void)
{
    bool ok = true;
    for (int n = 0; n < NUM_SHAPES && ok; ++n) {
        const struct sample_shape s = some_shape(n);
        struct sample c;
        ok = sample_open(&c, &machine_of_cuda, &s, 0) && repeats_of(&c);
        sample_close(&c);
    }
    return ok;
}

/* Whether sequence b alone has the bits that it has in its batch. */
static bool is_alone_alike(const struct sample *batch, int64_t b)
{
    struct sample_shape s = batch->shape;
    struct sample alone;
    s.seqlen = s.features & WITH_RAGGED ? s.lengths[b] : s.seqlen;
    s.features &= ~(unsigned)WITH_RAGGED;
    s.batch = 1, s.first_sequence = b;
    bool ok = sample_open(&alone, &machine_of_cuda, &s, 0) && run(&alone, NULL);
    for (int i = 0, n = 0; i < alone.num_memory && ok; ++i) {
        const struct sample_memory *const one = &alone.memory[i];
        if (!one->is_output || one->kind == NULL) continue;
        while (batch->memory[n].in_args != one->in_args) ++n;
        size_t bytes, same;
        const char *const got = sample_rows(&alone, one, 0, &bytes);
        const char *const want = sample_rows(batch, &batch->memory[n], b, &same);
        ok = bytes == same && memcmp(got, want, bytes) == 0;
        if (!ok) printf("  %s of sequence %" PRId64 " has other bits in its batch\n", one->kind->name, b);
    }
    sample_close(&alone);
    return ok;
}

static bool batches(void)
{
    static const int64_t lengths[] = {1000, 37, 2048, 0, 129, 1};
    bool ok = true;
    for (int n = 0; n < 2 * NUM_SHAPES && ok; ++n) {
        struct sample_shape s = some_shape(n / 2);
        struct sample c;
        s.batch = 6, s.features &= ~(unsigned)(WITH_DROPOUT | WITH_BIAS | WITH_DBIAS | WITH_MASK | WITH_BLOCK_MASK);
        if (n % 2) s.features |= WITH_RAGGED, s.features &= ~(unsigned)WITH_SEQUSED;
        for (int b = 0; b < 6 && n % 2; ++b) s.lengths[b] = settings.quick ? (lengths[b] + 7) / 8 : lengths[b];
        if (n % 2) s.seqlen = settings.quick ? 256 : 2048;
        ok = sample_open(&c, &machine_of_cuda, &s, 0) && run(&c, NULL);
        for (int64_t b = 0; b < s.batch && ok; ++b) ok = is_alone_alike(&c, b);
        sample_close(&c);
    }
    return ok;
}

/* ---- many short sequences ---- */

static bool is_k_or_dout(const struct sample_memory *m)
{
    return m->kind != NULL && (strcmp(m->kind->name, "k") == 0 || strcmp(m->kind->name, "dout") == 0);
}

/* k and dout of all sequences are the first one's. */
static void make_alike(struct sample *c)
{
    for (int i = 0; i < c->num_memory; ++i) {
        struct sample_memory *const m = &c->memory[i];
        const size_t one = m->bytes / (size_t)c->shape.batch;
        if (!is_k_or_dout(m)) continue;
        for (int64_t b = 1; b < c->shape.batch; ++b) memcpy(m->host + (size_t)b * one, m->host, one);
    }
}

/* Whether each sequence of a batch that is `few` over and over has the bits that it has in `few`, whose results are
 * there. Inputs and outputs have `times` times the memory. `broadcast`: k and dout of one sequence serve all, and NaN
 * lies behind it. */
static bool is_alike_over_and_over(const struct sample *few, int64_t times, bool broadcast)
{
    struct attest_problem p = few->problem;
    struct attest_backward_args args = few->device;
    struct attest_plan *plan = NULL;
    char *memory[SAMPLE_MAX_MEMORY] = {NULL};
    p.batch *= times;
    if (broadcast) p.k.batch = p.dout.batch = 0;
    bool ok = attest_plan_create(&p, &plan) == ATTEST_OK;
    for (int i = 0; i < few->num_memory && ok; ++i) {
        const struct sample_memory *const m = &few->memory[i];
        ok = (memory[i] = cuda_allocate((size_t)times * m->bytes)) != NULL;
        memcpy((char *)&args + m->in_args, &memory[i], sizeof memory[i]);
        const bool is_shared = broadcast && is_k_or_dout(m);
        if (ok && (m->is_output || is_shared)) ok = cuda_fill(memory[i], 0xff, (size_t)times * m->bytes) == 0;
        if (ok && is_shared) ok = cuda_copy_in(memory[i], m->host, m->bytes / (size_t)few->shape.batch) == 0;
        for (int64_t t = 0; t < times && ok && !m->is_output && !is_shared; ++t)
            ok = cuda_copy_in(memory[i] + (size_t)t * m->bytes, m->host, m->bytes) == 0;
    }
    ok = ok && attest_run_forward(plan, &args.forward, NULL, 0, NULL) == ATTEST_OK &&
         attest_run_backward(plan, &args, NULL, 0, NULL) == ATTEST_OK;
    if (!ok) printf("  not run: %s\n", attest_last_error());
    for (int i = 0; i < few->num_memory && ok; ++i) {
        const struct sample_memory *const m = &few->memory[i];
        char *const got = malloc(m->bytes);
        if (got == NULL) abort();
        for (int64_t t = 0; t < times && ok && m->is_output; ++t) {
            ok = cuda_copy_out(got, memory[i] + (size_t)t * m->bytes, m->bytes) == 0 &&
                 memcmp(got, m->host, m->bytes) == 0;
            if (!ok) printf("  %s from sequence %" PRId64 " on has other bits\n", m->kind->name, t * few->shape.batch);
        }
        free(got);
    }
    for (int i = 0; i < few->num_memory; ++i) cuda_release(memory[i]);
    attest_plan_destroy(plan);
    return ok;
}

/* Launches by tensor maps; of CTAs that stay, more than 64 rounds of all that a GPU of 132 SMs has places for, the last
 * one not full: kernels begin them in waves, or leave the last ones to whoever has time. And, by copies, of fewer
 * problems than SMs. */
static bool many(void)
{
    static const struct {
        int32_t dtype;
        int64_t seqlen, head_dim, problems;
    } launches[] = {{ATTEST_BF16, 32, 32, 64 * 132 * 12}, {ATTEST_BF16, 64, 32, 64 * 132 * 6},
                    {ATTEST_BF16, 128, 32, 64 * 132 * 4}, {ATTEST_BF16, 128, 64, 64 * 132 * 2},
                    {ATTEST_BF16, 128, 128, 64 * 132},    {ATTEST_FP16, 128, 256, 64 * 132},
                    {ATTEST_FP16, 64, 32, 2000},          {ATTEST_BF16, 64, 64, 2000},
                    {ATTEST_BF16, 64, 256, 2000},         {ATTEST_BF16, 128, 256, 2000},
                    {ATTEST_BF16, 32, 256, 2000},         {ATTEST_BF16, 128, 64, 1},
                    {ATTEST_BF16, 128, 128, 1}};
    bool ok = true;
    for (size_t n = 0; n < 2 * sizeof launches / sizeof *launches && ok; ++n) {
        const bool broadcast = n % 2 != 0;
        struct sample_shape s = shape_of(launches[n / 2].dtype, launches[n / 2].seqlen, launches[n / 2].head_dim, 0);
        struct sample c;
        s.batch = 7, s.heads_q = s.heads_kv = 6; /* pairs are full */
        ok = sample_open(&c, &machine_of_cuda, &s, 0);
        if (ok && broadcast) make_alike(&c);
        const int64_t times = 2 * (launches[n / 2].problems / (2 * s.batch * s.heads_q) + 1); /* pairs are full */
        ok = ok && run(&c, NULL) && is_alike_over_and_over(&c, times, broadcast);
        if (!ok) print_shape(&s), printf(broadcast ? ", one k and dout for all\n" : "\n");
        sample_close(&c);
    }
    return ok;
}

/* What is captured may be the first run of a process: kernels that were never loaded. One run: a second would put right
 * what the first did wrong. */
static bool graph_of(struct sample *c, void *stream)
{
    bool ok = sample_send(c, settings.quick) && cuda_synchronize() == 0 && cuda_begin_capture(stream) == 0 &&
              sample_queue(c, stream);
    void *const graph = cuda_end_capture(stream);
    ok = ok && graph != NULL && run(c, NULL);
    char *const direct = ok ? sample_results(c) : NULL;
    for (int n = 0; n < 3 && ok; ++n)
        ok = sample_send(c, settings.quick) && cuda_synchronize() == 0 && cuda_launch_graph(graph, stream) == 0 &&
             sample_fetch(c) && sample_has_results(c, direct);
    free(direct);
    return ok;
}

static bool graphs(void)
{
    void *const stream = cuda_new_stream();
    bool ok = stream != NULL;
    for (int n = 0; n < NUM_SHAPES && ok; ++n) {
        const struct sample_shape s = some_shape(n);
        struct sample c;
        ok = sample_open(&c, &machine_of_cuda, &s, 0) && graph_of(&c, stream);
        sample_close(&c);
    }
    return ok;
}

/* A copy ahead of the pass writes `m`, which the pass reads, only after it has let the next launch begin. `lse` is what
 * run() gave. */
static bool is_waited_for(struct sample *c, const struct sample_memory *m, bool backward, void *stream,
                          const char *want)
{
    char *const from = cuda_allocate(m->bytes);
    bool ok = from != NULL && cuda_copy_in(from, m->host, m->bytes) == 0 && sample_send(c, false) &&
              cuda_synchronize() == 0 && (!backward || sample_forward(c, stream)) && cuda_synchronize() == 0 &&
              cuda_fill(m->device, 0xff, m->bytes) == 0 && cuda_synchronize() == 0 &&
              queue_late_copy(m->device, from, m->bytes, stream) == 0 && (backward || sample_forward(c, stream)) &&
              sample_backward(c, stream) && sample_fetch(c);
    if (!ok) printf("  not run\n");
    if (ok && !(ok = sample_has_results(c, want)))
        printf("  %s: %s was read before it was written\n", backward ? "backward" : "forward",
               m->kind != NULL ? m->kind->name : "an array");
    cuda_release(from);
    return ok;
}

/* Whether a launch that may begin early, and does not wait, reads what was there before the copy: if not, nobody is
 * seen to. Launched once before, as the first launch of a kernel takes long. */
static bool is_begun_early(void *stream)
{
    char *const memory = cuda_allocate(3);
    char seen = 0;
    const bool ok = memory != NULL && cuda_fill(memory, 1, 1) == 0 && cuda_fill(memory + 1, 2, 2) == 0 &&
                    cuda_synchronize() == 0 && queue_early_copy(memory + 2, memory + 1, 1, stream) == 0 &&
                    cuda_synchronize() == 0 && queue_late_copy(memory, memory + 1, 1, stream) == 0 &&
                    queue_early_copy(memory + 2, memory, 1, stream) == 0 && cuda_copy_out(&seen, memory + 2, 1) == 0;
    if (!ok || seen != 1) printf("  a launch that does not wait did not begin early\n");
    cuda_release(memory);
    return ok && seen == 1;
}

/* Of kernels that begin early, with fewer problems than SMs and more, whole ones and others. */
static bool early(void)
{
    static const struct {
        int32_t dtype;
        int64_t seqlen, head_dim, heads;
        unsigned features;
    } shapes[] = {{ATTEST_BF16, 64, 64, 6, 0},   {ATTEST_BF16, 128, 32, 6, 0},  {ATTEST_BF16, 32, 128, 6, 0},
                  {ATTEST_BF16, 128, 128, 6, 0}, {ATTEST_FP16, 128, 128, 48, 0}, {ATTEST_BF16, 64, 256, 6, 0},
                  {ATTEST_FP16, 64, 256, 48, 0}, {ATTEST_FP16, 128, 256, 6, 0}, {ATTEST_BF16, 128, 256, 12, 0},
                  {ATTEST_BF16, 128, 256, 48, 0}, {ATTEST_BF16, 100, 64, 6, WITH_SEQUSED}};
    void *const stream = cuda_new_stream();
    bool ok = stream != NULL && is_begun_early(stream);
    for (size_t n = 0; n < sizeof shapes / sizeof *shapes; ++n) {
        struct sample_shape s = shape_of(shapes[n].dtype, shapes[n].seqlen, shapes[n].head_dim, shapes[n].features);
        struct sample c;
        s.batch = 4, s.heads_q = s.heads_kv = shapes[n].heads;
        bool same = sample_open(&c, &machine_of_cuda, &s, 0) && run(&c, NULL);
        char *const want = same ? sample_results(&c) : NULL;
        for (int i = 0; i < c.num_memory && same; ++i) {
            const struct sample_memory *const m = &c.memory[i];
            const bool of_forward = m->in_args < offsetof(struct attest_backward_args, dout);
            const bool is_lse = m->in_args == offsetof(struct attest_backward_args, forward.lse);
            if (!m->is_output && of_forward) same = is_waited_for(&c, m, false, stream, want);
            if (!m->is_output || is_lse) same = same && is_waited_for(&c, m, true, stream, want);
        }
        if (!same) print_shape(&s), printf("\n");
        ok &= same;
        free(want), sample_close(&c);
    }
    return ok;
}

/* Both have the same results, whatever is in one that nobody sees, or how far apart its rows lie. */
static bool are_alike(const struct sample_shape *a, double unseen_a, const struct sample_shape *b, double unseen_b)
{
    struct sample one, other;
    bool ok = sample_open(&one, &machine_of_cuda, a, unseen_a) && run(&one, NULL);
    char *const results = ok ? sample_results(&one) : NULL;
    sample_close(&one);
    if (!ok) return false;
    ok = sample_open(&other, &machine_of_cuda, b, unseen_b) && run(&other, NULL) && sample_has_results(&other, results);
    sample_close(&other);
    free(results);
    return ok;
}

static bool invisible(void)
{
    bool ok = true;
    for (int n = 0; n < NUM_SHAPES && ok; ++n) {
        struct sample_shape s = some_shape(n);
        s.features |= WITH_SEQUSED | WITH_MASK;
        ok = are_alike(&s, 0, &s, NAN);
    }
    return ok;
}

/* Rows of a bias, of a mask, of dbias. */
static bool far_scores(void)
{
    bool ok = true;
    for (int n = 0; n < 2 && ok; ++n) {
        struct sample_shape near = shape_of(n == 0 ? ATTEST_BF16 : ATTEST_FP32, 4, 64, WITH_BIAS | WITH_DBIAS);
        near.heads_kv = 2;
        if (n == 1) near.features |= WITH_MASK;
        struct sample_shape apart = near;
        apart.score_row = (INT64_C(1) << 30) + 512;
        print_shape(&apart);
        ok = are_alike(&near, 0, &apart, 0);
        printf(", scores apart: %s\n", ok ? "fine" : "WRONG");
    }
    return ok;
}

/* Strides of sequences, heads and rows past 2^31 elements, one at a time. */
static bool far_apart(void)
{
    const int64_t far = (INT64_C(1) << 31) + 4096, half = (INT64_C(1) << 30) + 2048;
    bool ok = true;
    for (int n = 0; n < 9 && ok; ++n) {
        const int32_t dtypes[] = {ATTEST_BF16, ATTEST_FP16, ATTEST_FP32};
        const unsigned features = n / 3 == 1 ? WITH_ALIBI : WITH_CAUSAL;
        struct sample_shape near = shape_of(dtypes[n / 3], n % 3 == 2 ? 4 : 130, 64, features);
        near.heads_q = near.heads_kv = 2, near.batch = n % 3 == 2 ? 1 : 2;
        struct sample_shape apart = near;
        const int64_t room = 64 * SAMPLE_MAX_MEMORY; /* of the tensors that interleave */
        if (n % 3 == 0) apart.strides.head = room, apart.strides.seqlen = 2 * room, apart.strides.batch = far;
        if (n % 3 == 1) apart.strides.seqlen = room, apart.strides.batch = 130 * room, apart.strides.head = far;
        if (n % 3 == 2) apart.strides.head = room, apart.strides.seqlen = half, apart.strides.batch = 4 * half;
        print_shape(&apart);
        ok = are_alike(&near, 0, &apart, 0);
        printf(": %s\n", ok ? "fine" : "WRONG");
        fflush(stdout);
    }
    return ok && far_scores();
}

/* Runs on the second GPU while the first is the thread's own. */
static bool second_gpu_has(const struct sample_shape *shape, const char *results)
{
    struct sample c = {.machine = &machine_of_cuda};
    int before, between;
    const bool ok = cuda_enter(1, &before) == 0 && sample_open(&c, &machine_of_cuda, shape, 0) &&
                    sample_send(&c, settings.quick) && cuda_leave(1, 0) == 0 && sample_queue(&c, NULL) &&
                    cuda_enter(1, &between) == 0 && between == 0 && sample_fetch(&c) &&
                    sample_has_results(&c, results);
    sample_close(&c);
    return cuda_leave(1, 0) == 0 && ok;
}

static bool second_gpu(void)
{
    bool ok = true;
    for (int n = 0; n < NUM_SHAPES && ok; ++n) {
        struct sample_shape shape = some_shape(n);
        struct sample c;
        ok = sample_open(&c, &machine_of_cuda, &shape, 0) && run(&c, NULL);
        char *const results = ok ? sample_results(&c) : NULL;
        sample_close(&c);
        shape.device_ordinal = 1;
        ok = ok && second_gpu_has(&shape, results);
        free(results);
    }
    return ok;
}

/* ---- merges ---- */

enum { STATES = 3 };

/* N(0, 1) numbers, on both sides. */
static float *new_numbers(int64_t count, uint64_t seed, float **host)
{
    float *const numbers = malloc((size_t)count * sizeof *numbers);
    float *const there = cuda_allocate((size_t)count * sizeof *numbers);
    if (numbers == NULL || there == NULL) abort();
    for (int64_t i = 0; i < count; ++i) numbers[i] = (float)family_normal(family_bits(seed, 1, 0, i, 0, 0));
    if (cuda_copy_in(there, numbers, (size_t)count * sizeof *numbers) != 0) abort();
    *host = numbers;
    return there;
}

static bool are_near(const float *got, const double *want, const double *bound, int64_t count, const char *what)
{
    double use = 0;
    for (int64_t i = 0; i < count; ++i) {
        const double error = fabs((double)got[i] - want[i]), share = error == 0 ? 0 : error / bound[i];
        if (!(share <= use)) use = share;
    }
    printf("  %s %.3f of its bound\n", what, use);
    return use <= 1;
}

static double *doubles_of(const float *values, int64_t count)
{
    double *const out = malloc((size_t)count * sizeof *out);
    if (out == NULL) abort();
    for (int64_t i = 0; i < count; ++i) out[i] = values != NULL ? (double)values[i] : 0;
    return out;
}

/* The same numbers on both machines: of several states one after the other, and of each the start. */
struct numbers {
    float *chip, *host;
    double *exact;
    float *chip_at[STATES];
    double *exact_at[STATES];
};

static struct numbers new_states(int64_t step, uint64_t seed)
{
    struct numbers n;
    n.chip = new_numbers(STATES * step, seed, &n.host);
    n.exact = doubles_of(n.host, STATES * step);
    for (int s = 0; s < STATES; ++s) n.chip_at[s] = n.chip + s * step, n.exact_at[s] = n.exact + s * step;
    return n;
}

static bool fetch(struct numbers *n, int64_t count)
{
    return cuda_copy_out(n->host, n->chip, (size_t)count * sizeof *n->host) == 0;
}

static void free_numbers(struct numbers *n) { cuda_release(n->chip), free(n->host), free(n->exact); }

/* Three states of many rows, and the gradients of their union. Result and dout are "states" of which there is one. */
static bool merges(void)
{
    const struct attest_recipe *const recipe = ref_kernel_recipe("merge_backward");
    const int64_t rows = settings.quick ? 333 : 100000, dim = 72, elements = rows * dim;
    struct numbers o = new_states(elements, 1), lse = new_states(rows, 2), out = new_states(elements, 3);
    struct numbers out_lse = new_states(rows, 4), dout = new_states(elements, 5), dlse = new_states(rows, 6);
    struct numbers d_o = new_states(elements, 7), d_lse = new_states(rows, 8), bound = new_states(elements, 9);
    struct numbers bound_lse = new_states(rows, 10);
    const double *const *const o_exact = (const double *const *)o.exact_at;
    const double *const *const lse_exact = (const double *const *)lse.exact_at;
    struct attest_merge_args a = ATTEST_MERGE_ARGS_INIT;
    a.device = ATTEST_CUDA, a.num_states = STATES, a.rows = rows, a.head_dim_v = dim;
    a.o_states = (const float *const *)o.chip_at, a.lse_states = (const float *const *)lse.chip_at;
    a.o = out.chip, a.lse = out_lse.chip;
    struct attest_merge_backward_args b = ATTEST_MERGE_BACKWARD_ARGS_INIT;
    b.device = ATTEST_CUDA, b.num_states = STATES, b.rows = rows, b.head_dim_v = dim;
    b.o_states = a.o_states, b.lse_states = a.lse_states, b.o = a.o, b.lse = a.lse;
    b.dout = dout.chip, b.dlse = dlse.chip;
    b.do_states = (float *const *)d_o.chip_at, b.dlse_states = (float *const *)d_lse.chip_at;
    bool ok = attest_merge_states(&a, NULL) == ATTEST_OK && attest_merge_states_backward(&b, NULL) == ATTEST_OK &&
              fetch(&out, elements) && fetch(&out_lse, rows) && fetch(&d_o, STATES * elements) &&
              fetch(&d_lse, STATES * rows);
    ref_merge(STATES, rows, dim, o_exact, lse_exact, out.exact, out_lse.exact);
    ok = ok && ref_bound_merge(STATES, rows, dim, o_exact, lse_exact, ref_kernel_recipe("merge"), ATTEST_FP32,
                               bound.exact, bound_lse.exact) == ATTEST_OK;
    ok = ok && are_near(out.host, out.exact, bound.exact, elements, "o of the union is");
    ok = ok && are_near(out_lse.host, out_lse.exact, bound_lse.exact, rows, "lse of the union is");
    /* Gradients are those of the result as it was computed. */
    for (int64_t i = 0; i < elements; ++i) out.exact[i] = (double)out.host[i];
    for (int64_t i = 0; i < rows; ++i) out_lse.exact[i] = (double)out_lse.host[i];
    ref_merge_backward(STATES, rows, dim, o_exact, lse_exact, out.exact, out_lse.exact, dout.exact, dlse.exact,
                       d_o.exact_at, d_lse.exact_at);
    ref_bound_merge_backward(STATES, rows, dim, o_exact, lse_exact, out.exact, out_lse.exact, dout.exact, dlse.exact,
                             recipe, bound.exact_at, bound_lse.exact_at);
    ok = ok && are_near(d_o.host, d_o.exact, bound.exact, STATES * elements, "do of the states is");
    ok = ok && are_near(d_lse.host, d_lse.exact, bound_lse.exact, STATES * rows, "dlse of the states is");
    struct numbers *const all[] = {&o, &lse, &out, &out_lse, &dout, &dlse, &d_o, &d_lse, &bound, &bound_lse};
    for (size_t i = 0; i < sizeof all / sizeof *all; ++i) free_numbers(all[i]);
    return ok;
}

/* ---- the command ---- */

static const struct {
    const char *name, *sentence;
    bool (*check)(void);
    bool is_quick;
    int num_gpus;   /* that it takes, if more than one */
    int only_major; /* of their compute capability; 0: any */
} checks[] = {
    {"graphs", "a captured graph gives the bits of direct calls, the first of a process included", graphs, true, 0, 0},
    {"early", "a launch waits for one ahead that lets it begin and then writes what it reads", early, false, 0, 9},
    {"large", "every kernel is within its bounds of the oracle", large, true, 0, 0},
    {"folded", "so are more heads and rows than a side of the grid has", folded, false, 0, 0},
    {"merges", "so are merges of many rows", merges, true, 0, 0},
    {"repeats", "a hundred repeats give the same bits while another kernel loads the GPU", repeats, true, 0, 0},
    {"batches", "a sequence gives the same bits alone and in its batch", batches, true, 0, 0},
    {"many", "so it does among thousands of short ones", many, false, 0, 0},
    {"invisible", "NaN that nobody sees changes no bit", invisible, true, 0, 0},
    {"second", "so does the second GPU of a machine, whichever is the thread's", second_gpu, false, 2, 0},
    {"far", "strides past 2^31 elements change no bit", far_apart, false, 0, 0},
};
enum { NUM_CHECKS = sizeof checks / sizeof *checks };

static bool is_asked_for(int i)
{
    if (settings.quick && !checks[i].is_quick) return false;
    for (char **name = settings.names; name != NULL && *name != NULL; ++name)
        if (strcmp(*name, checks[i].name) == 0) return true;
    return settings.names == NULL;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    (void)argument;
    if (key == 'q') return settings.quick = true, 0;
    if (key != ARGP_KEY_ARGS) return ARGP_ERR_UNKNOWN;
    settings.names = state->argv + state->next;
    state->next = state->argc;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"quick", 'q', NULL, 0, "every kernel once, small, in memory that nobody wrote", 0},
        {0},
    };
    static const struct argp argp = {.options = options, .parser = parse, .args_doc = "[NAME...]",
                                     .doc = "Checks that only the chip can make."};
    int passed = 0, failed = 0, unchecked = 0;
    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    const int num_gpus = cuda_count_devices();
    for (int i = 0; i < NUM_CHECKS; ++i) {
        if (!is_asked_for(i)) continue;
        const bool has_gpu = num_gpus > 0 && num_gpus >= checks[i].num_gpus &&
                             (checks[i].only_major == 0 || checks[i].only_major == cuda_major(0));
        const bool ok = has_gpu && checks[i].check();
        printf("%-10s %s: %s\n", checks[i].name, checks[i].sentence,
               !has_gpu ? "UNCHECKED, no such GPU" : ok ? "PASS" : "FAIL");
        fflush(stdout);
        passed += ok, failed += has_gpu && !ok, unchecked += !has_gpu;
    }
    printf("%d passed, %d failed, %d unchecked\n", passed, failed, unchecked);
    return failed > 0 || passed + unchecked == 0;
}

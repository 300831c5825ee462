/* speed.c - GFLOP/s of the oracle beside a dgemm of OpenBLAS: `bazel run //reference:speed`.
 *
 * seqlen 1024, head_dim 64, bf16, not causal. Forward counts 4 seqlen_q seqlen_k head_dim operations, backward
 * 10. The three take turns, and the best of several runs counts: other work on the machine only slows. One thread is
 * timed by its own clock, several by the wall's. */
#define _POSIX_C_SOURCE 200809L /* setenv, execv, clock_gettime */
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "reference/formats.h"
#include "reference/oracle.h"
#include "reference/parallel.h"
#include "reference/vector.h"

enum { BATCH = 1, HEADS = 8, SEQLEN = 1024, HEAD_DIM = 64, ORDER = 1536, RUNS = 7 };
#define ELEMENTS ((int64_t)BATCH * SEQLEN * HEADS * HEAD_DIM)

static double seconds(int threads)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *allocate(int64_t count, size_t bytes)
{
    void *memory = calloc((size_t)count, bytes);
    if (memory) return memory;
    fputs("speed: out of memory\n", stderr);
    exit(2);
}

/* Sums of uniform numbers: scores of a common size. */
static uint16_t *draw(uint32_t *state)
{
    uint16_t *data = allocate(ELEMENTS, sizeof *data);
    for (int64_t i = 0; i < ELEMENTS; ++i) {
        double value = -2;
        for (int term = 0; term < 4; ++term) {
            *state = *state * 1664525 + 1013904223;
            value += *state * 0x1p-32;
        }
        ref_store(ATTEST_BF16, data, i, 2 * value);
    }
    return data;
}

struct subject {
    struct attest_problem p;
    struct attest_backward_args a;
    struct ref_forward forward;
    struct ref_backward backward;
    double *a_matrix, *b_matrix, *c_matrix;
};

static double dgemm(const struct subject *s, int threads)
{
    openblas_set_num_threads(threads);
    cblas_dgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, ORDER, ORDER, ORDER, 1.0, s->a_matrix, ORDER, s->b_matrix,
                ORDER, 0.0, s->c_matrix, ORDER);
    return 2.0 * ORDER * ORDER * ORDER;
}

static double forward(const struct subject *s, int threads)
{
    ref_forward(&s->p, &s->a.forward, &s->forward, threads);
    return 4.0 * BATCH * HEADS * SEQLEN * SEQLEN * HEAD_DIM;
}

static double backward(const struct subject *s, int threads)
{
    ref_backward(&s->p, &s->a, NULL, &s->backward, threads);
    return 10.0 * BATCH * HEADS * SEQLEN * SEQLEN * HEAD_DIM;
}

static struct subject make_subject(void)
{
    struct subject s = {.p = ATTEST_PROBLEM_INIT, .a = ATTEST_BACKWARD_ARGS_INIT};
    uint32_t state = 1;
    s.p.device = ATTEST_REFERENCE;
    s.p.batch = BATCH;
    s.p.seqlen_q = s.p.seqlen_k = SEQLEN;
    s.p.num_heads_q = s.p.num_heads_kv = HEADS;
    s.p.head_dim = s.p.head_dim_v = HEAD_DIM;
    s.p.softmax_scale = 0.125F;
    s.p.q = (struct attest_tensor){ATTEST_BF16, 0, (int64_t)SEQLEN * HEADS * HEAD_DIM, HEADS * HEAD_DIM, HEAD_DIM};
    s.p.k = s.p.v = s.p.dout = s.p.q;
    s.a.forward.q = draw(&state);
    s.a.forward.k = draw(&state);
    s.a.forward.v = draw(&state);
    s.a.dout = draw(&state);
    s.forward = (struct ref_forward){allocate(ELEMENTS, 8), allocate(ELEMENTS / HEAD_DIM, 8)};
    s.backward = (struct ref_backward){
        .dq = allocate(ELEMENTS, 8), .dk = allocate(ELEMENTS, 8), .dv = allocate(ELEMENTS, 8)};
    s.a_matrix = allocate(ORDER * ORDER, 8);
    s.b_matrix = allocate(ORDER * ORDER, 8);
    s.c_matrix = allocate(ORDER * ORDER, 8);
    for (int64_t i = 0; i < ORDER * ORDER; ++i) s.a_matrix[i] = s.b_matrix[i] = (double)(i % 17) - 8;
    return s;
}

/* On a CPU younger than itself OpenBLAS falls back to SSE3; it reads the name of a better kernel when loaded. */
static void wake_openblas(char **argv)
{
    const char *best = __builtin_cpu_supports("avx512dq") ? "SkylakeX" : __builtin_cpu_supports("avx2") ? "Haswell" : "";
    if (!*best || getenv("OPENBLAS_CORETYPE") || setenv("OPENBLAS_CORETYPE", best, 0) != 0) return;
    execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    (void)argc;
    wake_openblas(argv);
    double (*const run[3])(const struct subject *, int) = {dgemm, forward, backward};
    const struct subject s = make_subject();
    const int cores = ref_thread_count(0);
    printf("oracle: %s, OpenBLAS: %s\n", ref_vector()->name, openblas_get_corename());
    printf("threads   dgemm  forward  backward   GFLOP/s (of dgemm)\n");
    for (int threads = 1; threads <= cores; threads = threads == cores ? cores + 1 : cores) {
        double best[3] = {0};
        for (int i = 0; i < 3 * RUNS; ++i) {
            const double start = seconds(threads), operations = run[i % 3](&s, threads);
            const double rate = operations / (seconds(threads) - start) * 1e-9;
            if (rate > best[i % 3]) best[i % 3] = rate;
        }
        printf("%7d %7.1f %8.1f %9.1f   %.2f %.2f\n", threads, best[0], best[1], best[2], best[1] / best[0],
               best[2] / best[0]);
    }
    return 0;
}

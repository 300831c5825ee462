/* host.c - what host code costs on fixed problems, one workload a run.
 *
 *     host --list          the workloads, one a line: name, units of work (elements, calls), threads
 *     host --version       what the counts depend on beside the sources: the compiler, the processor's vectors
 *     host NAME            prepares the workload and calls measured() once; callgrind collects what happens inside
 *     host --calls NAME    the same, and prints what it asked of the C library and of its threads (wrapped.h) */
#define _GNU_SOURCE /* sched_setaffinity */
#include <inttypes.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ci/perf/wrapped.h"
#include "lib/attest.h"
#include "lib/shares.h"
#include "proptests/cases/families.h"
#include "proptests/cases/sample.h"
#include "reference/audit/tensor_file.h"
#include "reference/bounds.h"
#include "reference/oracle.h"

enum { SEQLEN = 96, DIM = 64, HEADS = 2, CALLS = 20, NUMPY_ELEMENTS = 10000 };
enum { ELEMENTS = SEQLEN * HEADS * DIM, RAGGED = (SEQLEN + 17 + 40) * HEADS * DIM };

struct workload {
    const char *name;
    int64_t units;
    void (*prepare)(void), (*run)(void);
    int32_t dtype; /* of the problem */
    unsigned features;
    int threads;
};
enum { PLAIN = WITH_CAUSAL | WITH_ALIBI | WITH_SOFTCAP };

static const struct workload *workload; /* that runs */
static int num_threads;
static struct sample sample;
static struct attest_plan *empty; /* of a problem without rows */
static double *results[REF_NUM_TENSORS];
static struct ref_bound bounds[REF_NUM_TENSORS];
static unsigned char *file;
static size_t file_bytes;

static void give_up(const char *why)
{
    fprintf(stderr, "%s: %s\n", why, attest_last_error());
    exit(1);
}

static void *room(size_t bytes)
{
    void *const memory = calloc(1, bytes);
    if (memory == NULL) give_up("no memory");
    return memory;
}

/* A problem whose results lie in `results`, inputs and a forward pass's results in `sample`. */
static void prepare_problem(int64_t seqlen)
{
    struct sample_shape shape = {.dtype = workload->dtype, .batch = 1, .seqlen = seqlen, .heads_q = HEADS,
                                 .heads_kv = 1, .head_dim = DIM, .head_dim_v = DIM, .features = workload->features,
                                 .unpromised = true};
    if (shape.features & WITH_RAGGED)
        shape.batch = 3, shape.lengths[0] = seqlen, shape.lengths[1] = 17, shape.lengths[2] = 40;
    if (!sample_open(&sample, &machine_of_host, &shape, 0) || !sample_send(&sample, false)) give_up("a problem");
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        results[t] = room((size_t)RAGGED * sizeof **results);
        bounds[t].bound = t <= REF_DV ? room((size_t)RAGGED * sizeof **results) : NULL;
    }
}

static void prepare(void) { prepare_problem(SEQLEN); }

/* On the reference device: a simulated GPU would do most of the work of a run of nothing. */
static void prepare_empty(void)
{
    prepare_problem(0);
    struct attest_problem p = sample.problem;
    p.device = ATTEST_REFERENCE;
    if (attest_plan_create(&p, &empty) != ATTEST_OK) give_up("a plan");
}

/* The forward pass's results, as backward's bounds read them. */
static void prepare_backward(void)
{
    prepare();
    if (!sample_forward(&sample, NULL) || !sample_fetch(&sample)) give_up("a forward pass");
}

static void prepare_numpy(void)
{
    static const char header[] = "\x93NUMPY\x01\x00\x76\x00"
                                 "{'descr': '<f4', 'fortran_order': False, 'shape': (100, 100), }";
    file_bytes = 128 + NUMPY_ELEMENTS * sizeof(float);
    file = room(file_bytes);
    memset(file, ' ', 127), file[127] = '\n';
    memcpy(file, header, sizeof header - 1);
}

static void prepare_safetensors(void)
{
    static const char header[] = "{\"q\":{\"dtype\":\"F32\",\"shape\":[100,100],\"data_offsets\":[0,40000]}}";
    const uint64_t length = sizeof header - 1;
    file_bytes = sizeof length + length + NUMPY_ELEMENTS * sizeof(float);
    file = room(file_bytes);
    memcpy(file, &length, sizeof length), memcpy(file + sizeof length, header, length);
}

/* ---- what is measured ---- */

static void plan_create(void)
{
    struct attest_plan *plan;
    for (int i = 0; i < CALLS; ++i) {
        if (attest_plan_create(&sample.problem, &plan) != ATTEST_OK) give_up("plan_create");
        attest_plan_destroy(plan);
    }
}

/* Without rows: what the call itself costs. */
static void run_forward(void)
{
    for (int i = 0; i < CALLS; ++i)
        if (attest_run_forward(empty, &sample.device.forward, NULL, 0, NULL) != ATTEST_OK) give_up("run_forward");
}

static void run_backward(void)
{
    for (int i = 0; i < CALLS; ++i)
        if (attest_run_backward(empty, &sample.device, NULL, 0, NULL) != ATTEST_OK) give_up("run_backward");
}

static void oracle_forward(void)
{
    const struct ref_forward out = {results[REF_O], results[REF_LSE]};
    if (ref_forward(&sample.host_problem, &sample.host.forward, &out, num_threads) != ATTEST_OK) give_up("oracle");
}

static void oracle_backward(void)
{
    const struct ref_backward out = {.dq = results[REF_DQ], .dk = results[REF_DK], .dv = results[REF_DV]};
    if (ref_backward(&sample.host_problem, &sample.host, NULL, &out, num_threads) != ATTEST_OK) give_up("oracle");
}

static void bounds_forward(void)
{
    const struct ref_shares shares = shares_of_plan(sample.plan, ATTEST_FORWARD);
    if (ref_bound_forward_shares(&sample.host_problem, &sample.host.forward, &shares, &bounds[REF_O], &bounds[REF_LSE],
                                 num_threads) != ATTEST_OK)
        give_up("bounds");
}

static void bounds_backward(void)
{
    const struct ref_shares shares = shares_of_plan(sample.plan, ATTEST_BACKWARD);
    if (ref_bound_backward_shares(&sample.host_problem, &sample.host, &shares, bounds, num_threads) != ATTEST_OK)
        give_up("bounds");
}

/* A merge of the forward pass's o, taken as two states of fp32. */
static void merge(void)
{
    const float *const o[2] = {(const float *)results[REF_O], (const float *)results[REF_DQ]};
    const float *const lse[2] = {(const float *)results[REF_LSE], (const float *)results[REF_DK]};
    if (attest_merge(2, SEQLEN, DIM, o, lse, (float *)results[REF_DV], (float *)results[REF_DSINK]) != ATTEST_OK)
        give_up("merge");
}

static void read_file(enum tensor_file_format format, const char *path)
{
    struct tensor_file *tensors;
    char sentence[200];
    if (tensor_file_parse(format, path, file, file_bytes, &tensors, sentence, sizeof sentence) != 0) {
        fprintf(stderr, "%s\n", sentence);
        exit(1);
    }
    tensor_file_close(tensors);
}

static void read_npy(void) { read_file(TENSOR_FILE_NPY, "q.npy"); }
static void read_safetensors(void) { read_file(TENSOR_FILE_SAFETENSORS, "q.safetensors"); }

#define SCORES (WITH_MASK | WITH_BIAS)

static const struct workload workloads[] = {
    {"plan_create", CALLS, prepare, plan_create, ATTEST_BF16, PLAIN, 1},
    {"plan_create_dropout", CALLS, prepare, plan_create, ATTEST_BF16, WITH_DROPOUT, 1},
    {"plan_create_fp16", CALLS, prepare, plan_create, ATTEST_FP16, 0, 1},
    {"plan_create_fp32", CALLS, prepare, plan_create, ATTEST_FP32, WITH_CAUSAL, 1},
    {"plan_create_ragged", CALLS, prepare, plan_create, ATTEST_BF16, WITH_CAUSAL | WITH_RAGGED, 1},
    {"plan_create_scores", CALLS, prepare, plan_create, ATTEST_BF16, SCORES, 1},
    {"run_forward", CALLS, prepare_empty, run_forward, ATTEST_BF16, PLAIN, 1},
    {"run_backward", CALLS, prepare_empty, run_backward, ATTEST_BF16, PLAIN, 1},
    {"oracle_forward", ELEMENTS, prepare, oracle_forward, ATTEST_BF16, PLAIN, 1},
    {"oracle_forward_dropout", ELEMENTS, prepare, oracle_forward, ATTEST_BF16, WITH_DROPOUT, 1},
    {"oracle_forward_fp16", ELEMENTS, prepare, oracle_forward, ATTEST_FP16, WITH_CAUSAL, 1},
    {"oracle_forward_fp32", ELEMENTS, prepare, oracle_forward, ATTEST_FP32, WITH_CAUSAL, 1},
    {"oracle_forward_ragged", RAGGED, prepare, oracle_forward, ATTEST_BF16, WITH_CAUSAL | WITH_RAGGED, 1},
    {"oracle_forward_scores", ELEMENTS, prepare, oracle_forward, ATTEST_BF16, SCORES, 1},
    {"oracle_forward_two_threads", ELEMENTS, prepare, oracle_forward, ATTEST_BF16, PLAIN, 2},
    {"oracle_backward", ELEMENTS, prepare, oracle_backward, ATTEST_BF16, PLAIN, 1},
    {"oracle_backward_dropout", ELEMENTS, prepare, oracle_backward, ATTEST_BF16, WITH_DROPOUT, 1},
    {"oracle_backward_fp16", ELEMENTS, prepare, oracle_backward, ATTEST_FP16, WITH_CAUSAL, 1},
    {"oracle_backward_fp32", ELEMENTS, prepare, oracle_backward, ATTEST_FP32, WITH_CAUSAL, 1},
    {"oracle_backward_ragged", RAGGED, prepare, oracle_backward, ATTEST_BF16, WITH_CAUSAL | WITH_RAGGED, 1},
    {"oracle_backward_scores", ELEMENTS, prepare, oracle_backward, ATTEST_BF16, SCORES, 1},
    {"oracle_backward_two_threads", ELEMENTS, prepare, oracle_backward, ATTEST_BF16, PLAIN, 2},
    {"bounds_forward", ELEMENTS, prepare, bounds_forward, ATTEST_BF16, PLAIN, 1},
    {"bounds_forward_dropout", ELEMENTS, prepare, bounds_forward, ATTEST_BF16, WITH_DROPOUT, 1},
    {"bounds_forward_scores", ELEMENTS, prepare, bounds_forward, ATTEST_BF16, SCORES, 1},
    {"bounds_backward", ELEMENTS, prepare_backward, bounds_backward, ATTEST_BF16, PLAIN, 1},
    {"merge", SEQLEN * DIM, prepare, merge, ATTEST_BF16, PLAIN, 1},
    {"read_npy", NUMPY_ELEMENTS, prepare_numpy, read_npy, .threads = 1},
    {"read_safetensors", NUMPY_ELEMENTS, prepare_safetensors, read_safetensors, .threads = 1},
};
enum { NUM_WORKLOADS = sizeof workloads / sizeof *workloads };

static volatile int is_measured;

/* callgrind collects between its begin and its end. */
__attribute__((noinline, noclone)) void measured(const struct workload *w);
void measured(const struct workload *w)
{
    w->run();
    is_measured = 1; /* no tail call: measured() ends after what it measures */
}

/* Where nobody says how many threads, there are as many as cores: here one. */
static void stay_on_one_core(void)
{
    cpu_set_t core;
    CPU_ZERO(&core);
    CPU_SET(sched_getcpu(), &core);
    if (sched_setaffinity(0, sizeof core, &core) != 0) give_up("one core");
}

static int run(bool counts_calls)
{
    stay_on_one_core();
    num_threads = workload->threads;
    workload->prepare();
    if (counts_calls) wrapped_begin();
    measured(workload);
    wrapped_end();
    if (counts_calls) wrapped_print();
    return 0;
}

int main(int argc, char **argv)
{
    const bool counts_calls = argc == 3 && strcmp(argv[1], "--calls") == 0;
    const char *const name = argc == 2 || counts_calls ? argv[argc - 1] : "";
    if (strcmp(name, "--version") == 0)
        return printf("gcc %s%s\n", __VERSION__, __builtin_cpu_supports("avx2") ? ", avx2" : ""), 0;
    for (workload = workloads; workload < workloads + NUM_WORKLOADS; ++workload) {
        const struct workload *const w = workload;
        if (strcmp(name, "--list") == 0) printf("%s %" PRId64 " %d\n", w->name, w->units, w->threads);
        else if (strcmp(name, w->name) == 0) return run(counts_calls);
    }
    if (strcmp(name, "--list") == 0) return 0;
    fprintf(stderr, "usage: host --list | --version | [--calls] NAME\n");
    return 2;
}

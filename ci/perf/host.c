/* host.c - what host code costs on fixed problems, one workload a run, for callgrind.
 *
 *     host --list        the workloads, one a line: name and units of work (elements, calls)
 *     host --version     what the counts depend on beside the sources: the compiler, the processor's vectors
 *     host NAME          prepares the workload and calls measured() once; callgrind collects what happens inside */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/attest.h"
#include "lib/shares.h"
#include "proptests/cases/families.h"
#include "proptests/cases/sample.h"
#include "reference/audit/tensor_file.h"
#include "reference/bounds.h"
#include "reference/oracle.h"

enum { SEQLEN = 96, DIM = 64, CALLS = 20, NUMPY_ELEMENTS = 10000 };

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
    const struct sample_shape shape = {.dtype = ATTEST_BF16, .batch = 1, .seqlen = seqlen, .heads_q = 2, .heads_kv = 1,
                                       .head_dim = DIM, .head_dim_v = DIM,
                                       .features = WITH_CAUSAL | WITH_ALIBI | WITH_SOFTCAP, .unpromised = true};
    if (!sample_open(&sample, &machine_of_host, &shape, 0) || !sample_send(&sample, false)) give_up("a problem");
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        results[t] = room((size_t)(seqlen * 2 * DIM) * sizeof **results);
        bounds[t].bound = t <= REF_DV ? room((size_t)(seqlen * 2 * DIM) * sizeof **results) : NULL;
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
    if (ref_forward(&sample.host_problem, &sample.host.forward, &out, 1) != ATTEST_OK) give_up("oracle");
}

static void oracle_backward(void)
{
    const struct ref_backward out = {.dq = results[REF_DQ], .dk = results[REF_DK], .dv = results[REF_DV]};
    if (ref_backward(&sample.host_problem, &sample.host, NULL, &out, 1) != ATTEST_OK) give_up("oracle");
}

static void bounds_forward(void)
{
    const struct ref_shares shares = shares_of_plan(sample.plan, ATTEST_FORWARD);
    if (ref_bound_forward_shares(&sample.host_problem, &sample.host.forward, &shares, &bounds[REF_O], &bounds[REF_LSE],
                                 1) != ATTEST_OK)
        give_up("bounds");
}

static void bounds_backward(void)
{
    const struct ref_shares shares = shares_of_plan(sample.plan, ATTEST_BACKWARD);
    if (ref_bound_backward_shares(&sample.host_problem, &sample.host, &shares, bounds, 1) != ATTEST_OK) give_up("bounds");
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

static const struct workload {
    const char *name;
    int64_t units;
    void (*prepare)(void), (*run)(void);
} workloads[] = {
    {"plan_create", CALLS, prepare, plan_create},
    {"run_forward", CALLS, prepare_empty, run_forward},
    {"run_backward", CALLS, prepare_empty, run_backward},
    {"oracle_forward", SEQLEN * 2 * DIM, prepare, oracle_forward},
    {"oracle_backward", SEQLEN * 2 * DIM, prepare, oracle_backward},
    {"bounds_forward", SEQLEN * 2 * DIM, prepare, bounds_forward},
    {"bounds_backward", SEQLEN * 2 * DIM, prepare_backward, bounds_backward},
    {"merge", SEQLEN * DIM, prepare, merge},
    {"read_npy", NUMPY_ELEMENTS, prepare_numpy, read_npy},
    {"read_safetensors", NUMPY_ELEMENTS, prepare_safetensors, read_safetensors},
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

int main(int argc, char **argv)
{
    const char *const name = argc == 2 ? argv[1] : "";
    if (strcmp(name, "--version") == 0)
        return printf("gcc %s%s\n", __VERSION__, __builtin_cpu_supports("avx2") ? ", avx2" : ""), 0;
    for (int i = 0; i < NUM_WORKLOADS; ++i) {
        const struct workload *const w = &workloads[i];
        if (strcmp(name, "--list") == 0) printf("%s %" PRId64 "\n", w->name, w->units);
        if (strcmp(name, w->name) != 0) continue;
        w->prepare();
        measured(w);
        return 0;
    }
    if (strcmp(name, "--list") == 0) return 0;
    fprintf(stderr, "usage: host --list | --version | NAME\n");
    return 2;
}

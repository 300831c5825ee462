/* example.c - causal attention with attest, from a problem to numbers, and its numbers beside the oracle's.
 *
 *     example [cuda|sim|reference]
 *
 * Without an argument: on the GPU where there is one, else on the reference device, which computes in double on the
 * host. On the simulated GPU only when asked. Built with -DATTEST_WITH_CUDA it can use a GPU, and needs CUDA's
 * runtime. Exit status: 0, the numbers agree; 1, they do not; 2, something else went wrong. */
#include "attest.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef ATTEST_WITH_CUDA
#include <cuda_runtime_api.h>
#endif

enum { SEQLEN = 128, HEADS_Q = 4, HEADS_KV = 2, HEAD_DIM = 64 };
enum { ROW_Q = HEADS_Q * HEAD_DIM, ROW_KV = HEADS_KV * HEAD_DIM };

/* Numbers are in [-1, 1], so scores are in [-8, 8]. A kernel in fp32 is off by at most 64 * 8 * 2^-24 = 2^-15 in a
 * score, by a factor e^(2^-14) in a weight, so by some 2^-14 in o. */
static const double TOLERANCE = 0x1p-13;

static void fail(const char *what, const char *why)
{
    fprintf(stderr, "example: %s: %s\n", what, why);
    exit(2);
}

static void check(enum attest_status status, const char *what)
{
    if (status != ATTEST_OK) fail(what, attest_last_error());
}

/* A library of another major version has other structs; an older one lacks what the header promises. */
static void check_version(void)
{
    const unsigned runs = attest_version();
    if (runs / 10000 == ATTEST_VERSION_MAJOR && runs >= ATTEST_VERSION) return;
    fprintf(stderr, "example: compiled for attest %d.%d.%d, but the library is %u.%u.%u\n", ATTEST_VERSION_MAJOR,
            ATTEST_VERSION_MINOR, ATTEST_VERSION_PATCH, runs / 10000, runs / 100 % 100, runs % 100);
    exit(2);
}

#ifdef ATTEST_WITH_CUDA
static bool gpu_is_here(void)
{
    int count = 0;
    return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

/* Managed memory: the GPU and the host see the same bytes. */
static void *gpu_memory(size_t bytes)
{
    void *memory = NULL;
    const cudaError_t error = cudaMallocManaged(&memory, bytes, cudaMemAttachGlobal);
    if (error != cudaSuccess) fail("cudaMallocManaged", cudaGetErrorString(error));
    return memory;
}

/* A run has only queued its work. */
static void wait_for_gpu(void)
{
    const cudaError_t error = cudaDeviceSynchronize();
    if (error != cudaSuccess) fail("cudaDeviceSynchronize", cudaGetErrorString(error));
}
#else
static bool gpu_is_here(void) { return false; }

static void *gpu_memory(size_t bytes)
{
    (void)bytes;
    fail("cuda", "this program was built without -DATTEST_WITH_CUDA");
    return NULL;
}

static void wait_for_gpu(void) {}
#endif

/* At least one byte, so that NULL is a failure. It is the process's to the end. */
static void *memory_for(enum attest_device device, size_t bytes)
{
    if (device == ATTEST_CUDA) return gpu_memory(bytes + 1);
    void *memory = aligned_alloc(256, bytes / 256 * 256 + 256);
    if (!memory) fail("aligned_alloc", "out of memory");
    return memory;
}

/* [rows][row] numbers in [-1, 1], the same ones at every call with the same seed. */
static float *random_rows(enum attest_device device, int row, unsigned seed)
{
    float *x = memory_for(device, sizeof(float) * SEQLEN * row);
    for (int i = 0; i < SEQLEN * row; ++i) {
        seed = seed * 1664525u + 1013904223u;
        x[i] = (float)(seed >> 8) * 0x1p-23f - 1;
    }
    return x;
}

/* Strides, in elements, of a tensor [SEQLEN][heads][features]. */
static struct attest_tensor packed(int heads, int features)
{
    return (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = heads * features, .head = features};
}

/* Plans, allocates, runs. Returns o, [SEQLEN][HEADS_Q][HEAD_DIM]. */
static const float *attention(enum attest_device device)
{
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = device;
    p.batch = 1, p.seqlen_q = p.seqlen_k = SEQLEN;
    p.num_heads_q = HEADS_Q, p.num_heads_kv = HEADS_KV;
    p.head_dim = p.head_dim_v = HEAD_DIM;
    p.q = p.o = packed(HEADS_Q, HEAD_DIM);
    p.k = p.v = packed(HEADS_KV, HEAD_DIM);
    p.lse = packed(HEADS_Q, 1);
    p.softmax_scale = 0.125f; /* 1 / sqrt(HEAD_DIM) */
    p.window_right = 0;       /* causal */

    struct attest_plan *plan;
    size_t forward_bytes, backward_bytes;
    check(attest_plan_create(&p, &plan), "attest_plan_create");
    check(attest_plan_workspace(plan, &forward_bytes, &backward_bytes), "attest_plan_workspace");

    float *o = memory_for(device, sizeof(float) * SEQLEN * ROW_Q);
    float *lse = memory_for(device, sizeof(float) * SEQLEN * HEADS_Q);
    struct attest_forward_args args = ATTEST_FORWARD_ARGS_INIT;
    args.q = random_rows(device, ROW_Q, 1);
    args.k = random_rows(device, ROW_KV, 2);
    args.v = random_rows(device, ROW_KV, 3);
    args.o = o, args.lse = lse;
    void *workspace = memory_for(device, forward_bytes);
    check(attest_run_forward(plan, &args, workspace, forward_bytes, NULL), "attest_run_forward");
    if (device == ATTEST_CUDA) wait_for_gpu();

    const float *last = o + (SEQLEN - 1) * ROW_Q;
    printf("kernel %s: last row of head 0: o = %.6f %.6f %.6f ..., lse = %.6f\n",
           attest_plan_kernel(plan, ATTEST_FORWARD), (double)last[0], (double)last[1], (double)last[2],
           (double)lse[(SEQLEN - 1) * HEADS_Q]);
    attest_plan_destroy(plan);
    return o;
}

static enum attest_device device_of(const char *name)
{
    if (strcmp(name, "cuda") == 0) return ATTEST_CUDA;
    if (strcmp(name, "sim") == 0) return ATTEST_SIM;
    if (strcmp(name, "reference") == 0) return ATTEST_REFERENCE;
    fail(name, "no device; they are cuda, sim and reference");
    return ATTEST_REFERENCE;
}

int main(int argc, char **argv)
{
    check_version();
    const bool fallen_back = argc < 2 && !gpu_is_here();
    const char *name = argc > 1 ? argv[1] : fallen_back ? "reference" : "cuda";
    const enum attest_device device = device_of(name);
    printf("device %s%s\n", name, fallen_back ? ", for this program finds no GPU: cuda is UNCHECKED" : "");
    const float *got = attention(device), *want = attention(ATTEST_REFERENCE);
    double largest = 0;
    for (int i = 0; i < SEQLEN * ROW_Q; ++i) {
        const double difference = fabs((double)got[i] - want[i]);
        if (!(difference <= largest)) largest = difference; /* NaN too */
    }
    printf("largest difference from the reference: %.2e\n", largest);
    return largest <= TOLERANCE ? 0 : 1;
}

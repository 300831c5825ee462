/* kernels_chip_places.c - the same bits wherever tensors lie: beside NaN, far apart, on another GPU. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda.h"
#include "proptests/cases/cuda_memory.h"
#include "proptests/kernels/kernels_chip.h"

/* Both have the same results, whatever is in one that nobody sees, or how far apart its rows lie. */
static bool are_alike(const struct sample_shape *a, double unseen_a, const struct sample_shape *b, double unseen_b)
{
    struct sample one, other;
    bool ok = sample_open(&one, &machine_of_cuda, a, unseen_a) && chip_run(&one, NULL);
    char *const results = ok ? sample_results(&one) : NULL;
    sample_close(&one);
    if (!ok) return false;
    ok = sample_open(&other, &machine_of_cuda, b, unseen_b) && chip_run(&other, NULL) &&
         sample_has_results(&other, results);
    sample_close(&other);
    free(results);
    return ok;
}

bool chip_invisible(void)
{
    bool ok = true;
    for (int n = 0; n < CHIP_NUM_SHAPES && ok; ++n) {
        struct sample_shape s = chip_some_shape(n);
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
        struct sample_shape near = chip_shape(n == 0 ? ATTEST_BF16 : ATTEST_FP32, 4, 64, WITH_BIAS | WITH_DBIAS);
        near.heads_kv = 2;
        if (n == 1) near.features |= WITH_MASK;
        struct sample_shape apart = near;
        apart.score_row = (INT64_C(1) << 30) + 512;
        chip_print_shape(&apart);
        ok = are_alike(&near, 0, &apart, 0);
        printf(", scores apart: %s\n", ok ? "fine" : "WRONG");
    }
    return ok;
}

/* Strides of sequences, heads and rows past 2^31 elements, one at a time. */
bool chip_far_apart(void)
{
    const int64_t far = (INT64_C(1) << 31) + 4096, half = (INT64_C(1) << 30) + 2048;
    bool ok = true;
    for (int n = 0; n < 9 && ok; ++n) {
        const int32_t dtypes[] = {ATTEST_BF16, ATTEST_FP16, ATTEST_FP32};
        const unsigned features = n / 3 == 1 ? WITH_ALIBI : WITH_CAUSAL;
        struct sample_shape near = chip_shape(dtypes[n / 3], n % 3 == 2 ? 4 : 130, 64, features);
        near.heads_q = near.heads_kv = 2, near.batch = n % 3 == 2 ? 1 : 2;
        struct sample_shape apart = near;
        const int64_t room = 64 * SAMPLE_MAX_MEMORY; /* of the tensors that interleave */
        if (n % 3 == 0) apart.strides.head = room, apart.strides.seqlen = 2 * room, apart.strides.batch = far;
        if (n % 3 == 1) apart.strides.seqlen = room, apart.strides.batch = 130 * room, apart.strides.head = far;
        if (n % 3 == 2) apart.strides.head = room, apart.strides.seqlen = half, apart.strides.batch = 4 * half;
        chip_print_shape(&apart);
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
                    sample_send(&c, chip_settings.quick) && cuda_leave(1, 0) == 0 && sample_queue(&c, NULL) &&
                    cuda_enter(1, &between) == 0 && between == 0 && sample_fetch(&c) &&
                    sample_has_results(&c, results);
    sample_close(&c);
    return cuda_leave(1, 0) == 0 && ok;
}

bool chip_second_gpu(void)
{
    bool ok = true;
    for (int n = 0; n < CHIP_NUM_SHAPES && ok; ++n) {
        struct sample_shape shape = chip_some_shape(n);
        struct sample c;
        ok = sample_open(&c, &machine_of_cuda, &shape, 0) && chip_run(&c, NULL);
        char *const results = ok ? sample_results(&c) : NULL;
        sample_close(&c);
        shape.device_ordinal = 1;
        ok = ok && second_gpu_has(&shape, results);
        free(results);
    }
    return ok;
}

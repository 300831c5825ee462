/* kernels_chip_bits.c - the same bits again: under load, alone and in a batch, among thousands of sequences. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proptests/cases/cuda_memory.h"
#include "proptests/kernels/kernels_chip.h"

static bool repeats_of(struct sample *c)
{
    enum { REPEATS = 100, FEW = 3, LOAD = 1 << 26 };
    char *const memory = cuda_allocate(LOAD);
    void *const stream = cuda_new_stream(), *const other = cuda_new_stream();
    bool ok = memory != NULL && stream != NULL && other != NULL && cuda_fill(memory, 1, LOAD) == 0 && chip_run(c, NULL);
    char *const first = ok ? sample_results(c) : NULL;
    for (int n = 0; n < (chip_settings.quick ? FEW : REPEATS) && ok; ++n) {
        ok = sample_send(c, chip_settings.quick) && cuda_synchronize() == 0;
        ok = ok && cuda_queue_load(memory, LOAD >> n % 5, 1 + n % 7, other) == 0; /* other times, other parts */
        ok = ok && sample_queue(c, stream) && sample_fetch(c) && sample_has_results(c, first);
    }
    free(first), cuda_release(memory);
    return ok;
}

bool chip_repeats(void)
{
    bool ok = true;
    for (int n = 0; n < CHIP_NUM_SHAPES && ok; ++n) {
        const struct sample_shape s = chip_some_shape(n);
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
    bool ok = sample_open(&alone, &machine_of_cuda, &s, 0) && chip_run(&alone, NULL);
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

bool chip_batches(void)
{
    static const int64_t lengths[] = {1000, 37, 2048, 0, 129, 1};
    bool ok = true;
    for (int n = 0; n < 2 * CHIP_NUM_SHAPES && ok; ++n) {
        struct sample_shape s = chip_some_shape(n / 2);
        struct sample c;
        s.batch = 6, s.features &= ~(unsigned)(WITH_DROPOUT | WITH_BIAS | WITH_DBIAS | WITH_MASK | WITH_BLOCK_MASK);
        if (n % 2) s.features |= WITH_RAGGED, s.features &= ~(unsigned)WITH_SEQUSED;
        for (int b = 0; b < 6 && n % 2; ++b) s.lengths[b] = chip_settings.quick ? (lengths[b] + 7) / 8 : lengths[b];
        if (n % 2) s.seqlen = chip_settings.quick ? 256 : 2048;
        ok = sample_open(&c, &machine_of_cuda, &s, 0) && chip_run(&c, NULL);
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
bool chip_many(void)
{
    static const struct {
        int32_t dtype;
        int64_t seqlen, head_dim, problems;
        bool unpromised; /* few full problems are the kernel of many's, too */
    } launches[] = {{ATTEST_BF16, 32, 32, 64 * 132 * 12, false}, {ATTEST_BF16, 64, 32, 64 * 132 * 6, false},
                    {ATTEST_BF16, 128, 32, 64 * 132 * 4, false}, {ATTEST_BF16, 128, 64, 64 * 132 * 2, false},
                    {ATTEST_BF16, 128, 128, 64 * 132, false}, {ATTEST_FP16, 128, 256, 64 * 132, false},
                    {ATTEST_FP16, 64, 32, 2000, false}, {ATTEST_BF16, 64, 64, 2000, false},
                    {ATTEST_BF16, 64, 256, 2000, false}, {ATTEST_BF16, 128, 256, 2000, false},
                    {ATTEST_BF16, 32, 256, 2000, false}, {ATTEST_BF16, 128, 64, 1, false},
                    {ATTEST_BF16, 128, 128, 1, false}, {ATTEST_BF16, 128, 64, 1, true},
                    {ATTEST_BF16, 128, 128, 1, true}, {ATTEST_BF16, 128, 256, 1, true}};
    bool ok = true;
    for (size_t n = 0; n < 2 * sizeof launches / sizeof *launches && ok; ++n) {
        const bool broadcast = n % 2 != 0;
        struct sample_shape s = chip_shape(launches[n / 2].dtype, launches[n / 2].seqlen, launches[n / 2].head_dim, 0);
        struct sample c;
        s.batch = 7, s.heads_q = s.heads_kv = 6; /* pairs are full */
        s.unpromised = launches[n / 2].unpromised;
        ok = sample_open(&c, &machine_of_cuda, &s, 0);
        if (ok && broadcast) make_alike(&c);
        const int64_t times = 2 * (launches[n / 2].problems / (2 * s.batch * s.heads_q) + 1); /* pairs are full */
        ok = ok && chip_run(&c, NULL) && is_alike_over_and_over(&c, times, broadcast);
        if (!ok) chip_print_shape(&s), printf(broadcast ? ", one k and dout for all\n" : "\n");
        sample_close(&c);
    }
    return ok;
}

/* kernels_chip_launches.c - launches in graphs, and ones that may begin before the launch ahead of them has ended. */
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "proptests/cases/cuda_memory.h"
#include "proptests/kernels/kernels_chip.h"
#include "proptests/kernels/late_copy.h"

/* What is captured may be the first run of a process: kernels that were never loaded. One run: a second would put right
 * what the first did wrong. */
static bool graph_of(struct sample *c, void *stream)
{
    bool ok = sample_send(c, chip_settings.quick) && cuda_synchronize() == 0 && cuda_begin_capture(stream) == 0 &&
              sample_queue(c, stream);
    void *const graph = cuda_end_capture(stream);
    ok = ok && graph != NULL && chip_run(c, NULL);
    char *const direct = ok ? sample_results(c) : NULL;
    for (int n = 0; n < 3 && ok; ++n)
        ok = sample_send(c, chip_settings.quick) && cuda_synchronize() == 0 && cuda_launch_graph(graph, stream) == 0 &&
             sample_fetch(c) && sample_has_results(c, direct);
    free(direct);
    return ok;
}

bool chip_graphs(void)
{
    void *const stream = cuda_new_stream();
    bool ok = stream != NULL;
    for (int n = 0; n < CHIP_NUM_SHAPES && ok; ++n) {
        const struct sample_shape s = chip_some_shape(n);
        struct sample c;
        ok = sample_open(&c, &machine_of_cuda, &s, 0) && graph_of(&c, stream);
        sample_close(&c);
    }
    return ok;
}

/* A copy ahead of the pass writes `m`, which the pass reads, only after it has let the next launch begin. `lse` is what
 * chip_run() gave. */
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
bool chip_early(void)
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
        struct sample_shape s = chip_shape(shapes[n].dtype, shapes[n].seqlen, shapes[n].head_dim, shapes[n].features);
        struct sample c;
        s.batch = 4, s.heads_q = s.heads_kv = shapes[n].heads;
        bool same = sample_open(&c, &machine_of_cuda, &s, 0) && chip_run(&c, NULL);
        char *const want = same ? sample_results(&c) : NULL;
        for (int i = 0; i < c.num_memory && same; ++i) {
            const struct sample_memory *const m = &c.memory[i];
            const bool of_forward = m->in_args < offsetof(struct attest_backward_args, dout);
            const bool is_lse = m->in_args == offsetof(struct attest_backward_args, forward.lse);
            if (!m->is_output && of_forward) same = is_waited_for(&c, m, false, stream, want);
            if (!m->is_output || is_lse) same = same && is_waited_for(&c, m, true, stream, want);
        }
        if (!same) chip_print_shape(&s), printf("\n");
        ok &= same;
        free(want), sample_close(&c);
    }
    return ok;
}

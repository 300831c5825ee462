/* kernels_chip.c - what only the chip can show: every kernel at the sizes it is made for, under load, in graphs, far
 * apart.
 *
 *     kernels_chip [--quick] [NAME...]
 *
 * --quick: every kernel once at small sizes, memory as it was allocated: for checkers that run each access slowly. Last
 * line: N passed, M failed, K unchecked; without a GPU nothing is checked. */
#include "proptests/kernels/kernels_chip.h"

#include <argp.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cuda.h"
#include "proptests/cases/cuda_memory.h"
#include "reference/formats.h"

struct chip_settings chip_settings;

struct sample_shape chip_shape(int32_t dtype, int64_t seqlen, int64_t head_dim, unsigned features)
{
    return (struct sample_shape){.dtype = dtype, .batch = 1, .seqlen = seqlen, .heads_q = 2, .heads_kv = 1,
                               .head_dim = head_dim, .head_dim_v = head_dim, .features = features};
}

void chip_print_shape(const struct sample_shape *s)
{
    printf("  %s, seqlen %" PRId64 ", head_dim %" PRId64 "/%" PRId64 ", features 0x%x", ref_dtype_name(s->dtype),
           s->seqlen, s->head_dim, s->head_dim_v, s->features);
}

bool chip_run(struct sample *c, void *stream)
{
    return sample_send(c, chip_settings.quick) && sample_queue(c, stream) && sample_fetch(c);
}

struct sample_shape chip_some_shape(int n)
{
    const int64_t seqlen = chip_settings.quick ? 150 : 1500;
    const struct sample_shape shapes[] = {
        chip_shape(ATTEST_BF16, seqlen, 64, WITH_CAUSAL),
        chip_shape(ATTEST_FP16, seqlen, 128, EVERYTHING),
        chip_shape(ATTEST_BF16, seqlen, 256, 0),
        chip_shape(ATTEST_FP32, seqlen, 64, EVERYTHING),
        chip_shape(ATTEST_BF16, 64, 64, WITH_CAUSAL),
        chip_shape(ATTEST_FP16, 100, 128, WITH_ALIBI | WITH_DROPOUT),
        chip_shape(ATTEST_BF16, 30, 256, 0),
        chip_shape(ATTEST_BF16, 128, 128, 0),
        chip_shape(ATTEST_BF16, 128, 256, 0),
    };
    struct sample_shape s = shapes[n];
    s.batch = 2, s.heads_q = 6;
    s.heads_kv = s.seqlen == 128 ? 6 : 3; /* few whole problems: a kernel that takes no groups, and begins early */
    return s;
}

/* ---- the command ---- */

static const struct {
    const char *name, *sentence;
    bool (*check)(void);
    bool is_quick;
    int num_gpus;   /* that it takes, if more than one */
    int only_major; /* of their compute capability; 0: any */
} checks[] = {
    {"graphs", "a captured graph gives the bits of direct calls, the first of a process included", chip_graphs, true, 0,
     0},
    {"early", "a launch waits for one ahead that lets it begin and then writes what it reads", chip_early, false, 0, 9},
    {"large", "every kernel is within its bounds of the oracle", chip_large, true, 0, 0},
    {"folded", "so are more heads and rows than a side of the grid has", chip_folded, false, 0, 0},
    {"merges", "so are merges of many rows", chip_merges, true, 0, 0},
    {"repeats", "a hundred repeats give the same bits while another kernel loads the GPU", chip_repeats, true, 0, 0},
    {"batches", "a sequence gives the same bits alone and in its batch", chip_batches, true, 0, 0},
    {"many", "so it does among thousands of short ones", chip_many, false, 0, 0},
    {"invisible", "NaN that nobody sees changes no bit", chip_invisible, true, 0, 0},
    {"second", "so does the second GPU of a machine, whichever is the thread's", chip_second_gpu, false, 2, 0},
    {"far", "strides past 2^31 elements change no bit", chip_far_apart, false, 0, 0},
};
enum { NUM_CHECKS = sizeof checks / sizeof *checks };

static bool is_asked_for(int i)
{
    if (chip_settings.quick && !checks[i].is_quick) return false;
    for (char **name = chip_settings.names; name != NULL && *name != NULL; ++name)
        if (strcmp(*name, checks[i].name) == 0) return true;
    return chip_settings.names == NULL;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    (void)argument;
    if (key == 'q') return chip_settings.quick = true, 0;
    if (key != ARGP_KEY_ARGS) return ARGP_ERR_UNKNOWN;
    chip_settings.names = state->argv + state->next;
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

/* probe.c - the command: every probe on the simulated GPU or on the chip.
 *
 *     probe          on the simulated GPU: each generation that has the instructions, every policy, a few seeds
 *     probe --cuda   on the first GPU; UNCHECKED where there is none
 *
 * One line a probe, then `N passed, M failed, K unchecked`; 1 if one failed. */
#include "kernels/device/probes/probe.h"

#include <argp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/sim/sim.h"
#ifdef ATTEST_WITH_CUDA
#include "kernels/device/probes/probe_chip.h"
#endif

static const struct probe *const tables[] = {probes_of_values, probes_of_threads, probes_of_memory, probes_of_mma,
                                             probes_of_async,  probes_of_tma,     probes_of_wgmma};

enum { TABLES = sizeof tables / sizeof *tables, ALIGNMENT = 256 };

struct arguments {
    bool cuda;
    unsigned seeds;
    const char *only;
};

struct buffers {
    void *in, *out, *expected;
};

static void *allocate(size_t bytes)
{
    void *data = aligned_alloc(ALIGNMENT, (bytes / ALIGNMENT + 1) * ALIGNMENT);
    if (data == NULL) {
        fprintf(stderr, "probe: no memory\n");
        exit(2);
    }
    memset(data, PROBE_POISON, bytes);
    return data;
}

static struct buffers buffers_of(const struct probe *p)
{
    struct buffers b = {allocate(p->in_bytes), allocate(p->out_bytes), allocate(p->out_bytes)};
    if (p->fill != NULL) p->fill(b.in);
    p->expect(b.in, b.expected);
    return b;
}

static void free_buffers(struct buffers b)
{
    free(b.in);
    free(b.out);
    free(b.expected);
}

/* False, with a line, where bits differ. `where` says on what machine. */
static bool compare(const struct probe *p, struct buffers b, const char *where)
{
    const unsigned char *got = b.out, *expected = b.expected;
    size_t first = p->out_bytes, count = 0;
    for (size_t n = p->out_bytes; n-- > 0;)
        if (got[n] != expected[n]) first = n, ++count;
    if (count == 0) return true;
    uint32_t words[2] = {0, 0}; /* the 32-bit word around it */
    memcpy(&words[0], got + first / 4 * 4, p->out_bytes - first / 4 * 4 < 4 ? 1 : 4);
    memcpy(&words[1], expected + first / 4 * 4, p->out_bytes - first / 4 * 4 < 4 ? 1 : 4);
    printf("FAILED     %s on %s: %zu of %zu bytes differ, first in the word at 0x%zx: %08x, expected %08x\n", p->name,
           where, count, p->out_bytes, first / 4 * 4, words[0], words[1]);
    return false;
}

static bool run_on_sim(const struct probe *p, struct buffers b, const struct sim_options *options)
{
    static const char *const policies[] = {"late", "early", "random"};
    struct sim_gpu *gpu = sim_gpu_create(options);
    char where[64];
    snprintf(where, sizeof where, "simulated sm_%d, seed %u, async %s", options->generation == SIM_SM_80 ? 80 : 90,
             (unsigned)options->seed, policies[options->async]);
    memset(b.out, PROBE_POISON, p->out_bytes);
    bool ok = gpu != NULL && (p->in_bytes == 0 || sim_map(gpu, "in", b.in, p->in_bytes, SIM_READ)) &&
              sim_map(gpu, "out", b.out, p->out_bytes, SIM_READ | SIM_WRITE | SIM_INITIALISED | SIM_REDUCE);
    if (!ok) printf("FAILED     %s on %s: no memory\n", p->name, where);
    if (ok && p->sim(b.in, b.out, gpu) != 0) {
        printf("FAILED     %s on %s: %s\n", p->name, where, sim_last_report(gpu)->text);
        ok = false;
    }
    ok = ok && compare(p, b, where);
    sim_gpu_destroy(gpu);
    return ok;
}

static bool check_on_every_sim(const struct probe *p, struct buffers b, unsigned seeds)
{
    for (int generation = p->sm == 90 ? SIM_SM_90 : SIM_SM_80; generation <= SIM_SM_90; ++generation)
        for (int policy = SIM_ASYNC_LATE; policy <= SIM_ASYNC_RANDOM; ++policy)
            for (unsigned seed = 0; seed < seeds; ++seed) {
                const struct sim_options options = {.generation = (enum sim_generation)generation,
                                                    .async = (enum sim_async_policy)policy,
                                                    .seed = seed};
                if (!run_on_sim(p, b, &options)) return false;
                if (p->once) return true;
            }
    return true;
}

static bool check_on_sim(const struct probe *p, unsigned seeds)
{
    const struct buffers b = buffers_of(p);
    const bool ok = check_on_every_sim(p, b, seeds);
    free_buffers(b);
    return ok;
}

static int chip_generation(void)
{
#ifdef ATTEST_WITH_CUDA
    return probe_chip_generation();
#else
    return 0;
#endif
}

static bool check_on_chip(const struct probe *p, struct buffers b)
{
#ifdef ATTEST_WITH_CUDA
    char why[256];
    if (probe_chip_run(p, b.in, b.out, why, sizeof why)) return compare(p, b, "the chip");
    printf("FAILED     %s on the chip: %s\n", p->name, why);
#else
    (void)p, (void)b;
#endif
    return false;
}

/* In a process of its own: what goes wrong on the chip ends its use by the process, and the next probe is to run. */
static int in_child(int (*deed)(const struct probe *p), const struct probe *p)
{
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        const int result = deed(p);
        fflush(stdout);
        _exit(result);
    }
    int status = 0;
    if (child < 0 || waitpid(child, &status, 0) != child || !WIFEXITED(status)) {
        printf("FAILED     %s: its process came to no end\n", p ? p->name : "the GPU's name");
        return -1;
    }
    return WEXITSTATUS(status);
}

static int generation_deed(const struct probe *p)
{
    (void)p;
    return chip_generation();
}

static int chip_deed(const struct probe *p) { return check_on_chip(p, buffers_of(p)) ? 0 : 1; }

static error_t parse(int key, char *value, struct argp_state *state)
{
    struct arguments *a = state->input;
    if (key == 'c') a->cuda = true;
    else if (key == 's') a->seeds = (unsigned)strtoul(value, NULL, 10);
    else if (key == ARGP_KEY_ARG) a->only = value;
    else return ARGP_ERR_UNKNOWN;
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {{"cuda", 'c', NULL, 0, "on the first GPU", 0},
                                                 {"seeds", 's', "N", 0, "schedules of each policy (2)", 0},
                                                 {0}};
    static const struct argp argp = {
        options, parse, "[NAME]", "Runs probes of kernels/device/, those whose names contain NAME.", NULL, NULL, NULL};
    struct arguments a = {.seeds = 2};
    if (argp_parse(&argp, argc, argv, 0, NULL, &a) != 0) return 2;
    const int chip = a.cuda ? in_child(generation_deed, NULL) : 0;
    unsigned passed = 0, failed = 0, unchecked = 0;
    for (int t = 0; t < TABLES; ++t)
        for (const struct probe *p = tables[t]; p->name != NULL; ++p) {
            if (a.only != NULL && strstr(p->name, a.only) == NULL) continue;
            if (a.cuda && chip < p->sm) {
                printf("UNCHECKED  %s: no GPU of sm_%d\n", p->name, p->sm);
                ++unchecked;
                continue;
            }
            const bool ok = a.cuda ? in_child(chip_deed, p) == 0 : check_on_sim(p, a.seeds);
            if (ok) printf("ok         %s\n", p->name);
            ok ? ++passed : ++failed;
            fflush(stdout);
        }
    printf("%u passed, %u failed, %u unchecked\n", passed, failed, unchecked);
    return failed > 0 || passed + unchecked == 0;
}

/* kernels_gpu.c - the kernels on the chip: every property, and the polynomial build's bits beside the simulated GPU's.
 *
 *     kernels_gpu [--cases 10000] [--backward 2000] [--same 1000] [--work 65536] [--seed 1] [--jobs 0]
 *                 [--corpus FILE]
 *     kernels_gpu --replay 'v1;property=...' [--work 65536]
 *
 * Cases are shared out among processes. Without a GPU it says UNCHECKED and succeeds. */
#define _GNU_SOURCE /* anonymous mappings */
#include <argp.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proptests/cases/cuda_memory.h"
#include "proptests/kernels/kernels.h"
#include "proptests/properties/outcome.h"

enum { MAX_JOBS = 256, FAR = 1 << 20 };

struct settings {
    int64_t cases, backward, same, work, seed, jobs;
    const char *replay, *corpus; /* NULL: none */
};

/* What both machines are compared in. */
enum { SAME_FORWARD, SAME_BACKWARD, SAME_MERGE, NUM_SAME };
static const char *const same_names[NUM_SAME] = {"same_forward", "same_backward", "same_merge"};

/* What one process has found. */
struct finding {
    struct kernel_tally tally;
    int64_t same[NUM_SAME], same_failures[NUM_SAME]; /* cases, and those with other bits */
    int corpus, corpus_failures;
};

/* ---- the same bits on both machines ---- */

static struct kernel_implementation sim_poly, cuda_poly;

/* Results of both as they lie in memory. */
static int same_results(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct outcome on_chip, on_sim;
    unsigned char *kept[MAX_BUFFERS];
    int failure = outcome_run(&on_chip, c, self, BITS_ONLY, context);
    if (failure != TRIAL_PASSES) return failure;
    for (int b = 0; b < c->num_buffers; ++b)
        kept[b] = memcpy(case_alloc(c, c->buffers[b].size), c->buffers[b].bytes, c->buffers[b].size);
    failure = outcome_run(&on_sim, c, &sim_poly.implementation, BITS_ONLY, context);
    if (failure != TRIAL_PASSES) return failure;
    for (int b = 0; b < c->num_buffers; ++b)
        if (memcmp(kept[b], c->buffers[b].bytes, c->buffers[b].size) != 0) {
            const int values = outcome_equal(&on_chip, &on_sim, NULL, NULL, BITS_ONLY, context);
            return values != TRIAL_PASSES ? values : fails(context, FAILS_LAW, "a NaN has other bits");
        }
    return TRIAL_PASSES;
}

/* States of N(0, 1) numbers, some of them empty, some far apart. */
static void fill_states(uint64_t seed, int64_t count, float *values, bool is_lse)
{
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t bits = family_bits(seed, 80, 0, i, 0, 0);
        const double x = family_normal(bits);
        values[i] = (float)(!is_lse ? x : bits % 8 == 0 ? -INFINITY : bits % 8 == 1 ? 1e5 * x : 10 * x);
    }
}

/* Numbers of one row after the other: what both machines made of the same states. */
static int same_numbers(const float *chip, const float *sim, int64_t count, const char *what,
                        struct prop_context *context)
{
    for (int64_t i = 0; i < count; ++i)
        if (memcmp(&chip[i], &sim[i], sizeof *chip) != 0)
            return fails(context, FAILS_LAW, "number %" PRId64 " of %s is %a on the chip, %a simulated", i, what,
                         (double)chip[i], (double)sim[i]);
    return TRIAL_PASSES;
}

static float *new_numbers(struct prop_case *c, int64_t count)
{
    return memset(case_alloc(c, (size_t)count * sizeof(float)), 0xff, (size_t)count * sizeof(float));
}

enum { MOST_STATES = 9 };

/* Gradients of the merge `a`, with its result and some dout; out: do and dlse of every state. */
static enum attest_status differentiate(const struct implementation *self, const struct attest_merge_args *a,
                                        const float *dout, float *out)
{
    const int64_t elements = a->rows * a->head_dim_v, step = elements + a->rows;
    float *d_o[MOST_STATES], *d_lse[MOST_STATES];
    struct attest_merge_backward_args b = ATTEST_MERGE_BACKWARD_ARGS_INIT;
    for (int s = 0; s < a->num_states; ++s) d_o[s] = out + s * step, d_lse[s] = d_o[s] + elements;
    b.num_states = a->num_states, b.rows = a->rows, b.head_dim_v = a->head_dim_v;
    b.o_states = a->o_states, b.lse_states = a->lse_states, b.o = a->o, b.lse = a->lse;
    b.dout = dout, b.dlse = dout + elements;
    b.do_states = (float *const *)d_o, b.dlse_states = (float *const *)d_lse;
    return self->merge_backward(self, &b);
}

static int same_merge(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    const struct implementation *const machines[] = {self, &sim_poly.implementation};
    const int64_t rows = c->p.seqlen_q + 1, elements = rows * c->p.head_dim_v, step = elements + rows;
    float *o[MOST_STATES], *lse[MOST_STATES], *merged[2], *gradients[2], *const dout = new_numbers(c, step);
    struct attest_merge_args a = ATTEST_MERGE_ARGS_INIT;
    a.num_states = (int64_t)(c->data.seed % (MOST_STATES + 1)), a.rows = rows, a.head_dim_v = c->p.head_dim_v;
    for (int s = 0; s < a.num_states; ++s) {
        o[s] = new_numbers(c, elements), lse[s] = new_numbers(c, rows);
        fill_states(c->data.seed + (uint64_t)(2 * s), elements, o[s], false);
        fill_states(c->data.seed + (uint64_t)(2 * s + 1), rows, lse[s], true);
    }
    fill_states(~c->data.seed, step, dout, false);
    a.o_states = (const float *const *)o, a.lse_states = (const float *const *)lse;
    for (int m = 0; m < 2; ++m) {
        merged[m] = new_numbers(c, step), gradients[m] = new_numbers(c, a.num_states * step);
        a.o = merged[m], a.lse = merged[m] + elements;
        if (machines[m]->merge(machines[m], &a) != ATTEST_OK ||
            differentiate(machines[m], &a, dout, gradients[m]) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "merge on %s: %s", machines[m]->name, attest_last_error());
    }
    const int failure = same_numbers(merged[0], merged[1], step, "(o, lse)", context);
    if (failure != TRIAL_PASSES) return failure;
    return same_numbers(gradients[0], gradients[1], a.num_states * step, "the gradients", context);
}

static void run_same_of(int which, const struct settings *s, int64_t work, int64_t cases, int64_t first,
                        struct finding *f)
{
    static struct check_result r;
    const struct property property = {.name = same_names[which],
                                      .sentence = "both machines give the same bits",
                                      .check = which == SAME_MERGE ? same_merge : same_results,
                                      .request = {.backward = which == SAME_BACKWARD}};
    struct property asked;
    if (cases == 0) return;
    kernels_property(&property, work, &asked);
    check_run(&asked, &cuda_poly.implementation, (uint64_t)s->seed, first, cases, &r);
    f->same[which] += r.cases, f->same_failures[which] += r.failure != 0;
    if (r.failure != 0) printf("%s FAILS: %s\n", asked.name, r.message);
    fflush(stdout);
}

/* A quarter of the cases have several tiles even where heads are wide. */
static void run_same(int which, const struct settings *s, int64_t cases, int64_t job, struct finding *f)
{
    enum { SMALL = 1 << 14, LARGE = 1 << 18 };
    run_same_of(which, s, SMALL, cases - cases / 4, job * FAR, f);
    run_same_of(which, s, LARGE, cases / 4, job * FAR + FAR / 2, f);
}

/* ---- processes ---- */

static int64_t share(int64_t total, int64_t index, int64_t count)
{
    return total * (index + 1) / count - total * index / count;
}

/* The corpus is the first job's. */
static void work(const struct settings *s, int64_t job, struct finding *f)
{
    const struct kernel_launchers on_sim = kernels_sim_poly(), on_chip = kernels_cuda_poly();
    struct kernel_implementation library = kernels_on_cuda("cuda", NULL);
    struct kernel_run run = {
        .self = &library, .first_case = job * FAR, .seed = (uint64_t)s->seed, .work = s->work};
    sim_poly = kernels_on_sim("sim_poly", cuda_is_hopper() ? SIM_SM_90 : SIM_SM_80, &on_sim);
    cuda_poly = kernels_on_cuda("cuda_poly", &on_chip);
    library.is_general = sim_poly.is_general = cuda_poly.is_general = job % 2 == 1;
    for (int i = 0; i < NUM_SAME; ++i) run_same(i, s, share(s->same, job, s->jobs), job, f);
    if (job == 0 && s->corpus != NULL) {
        int replayed;
        f->corpus_failures = kernels_corpus(s->corpus, &library.implementation, NULL, &replayed, stdout);
        f->corpus_failures += kernels_corpus(s->corpus, &cuda_poly.implementation, same_results, &f->corpus, stdout);
    }
    run.cases = share(s->cases, job, s->jobs);
    kernels_run(&run, &f->tally, stdout);
    run.backward = true, run.cases = share(s->backward, job, s->jobs);
    kernels_run(&run, &f->tally, stdout);
}

/* Runs the jobs at once; whether all of them came to their end. */
static bool run_jobs(const struct settings *s, struct finding *findings)
{
    bool ended = true;
    for (int64_t job = 0; job < s->jobs; ++job) {
        const pid_t child = fork();
        if (child == 0) {
            work(s, job, &findings[job]);
            _exit(0);
        }
        ended &= child > 0;
    }
    for (int status; wait(&status) > 0;) ended &= WIFEXITED(status) && WEXITSTATUS(status) == 0;
    return ended;
}

static bool report(const struct settings *s, const struct finding *findings)
{
    static struct kernel_tally all;
    const struct finding *const first = &findings[0];
    bool passed = s->corpus == NULL || (first->corpus > 0 && first->corpus_failures == 0);
    for (int64_t job = 0; job < s->jobs; ++job) kernels_add(&all, &findings[job].tally);
    passed &= kernels_report(&all, "cuda", stdout);
    printf("%d lines of the corpus replayed, %d failures\n", first->corpus, first->corpus_failures);
    for (int i = 0; i < NUM_SAME; ++i) {
        int64_t cases = 0, failures = 0;
        for (int64_t job = 0; job < s->jobs; ++job)
            cases += findings[job].same[i], failures += findings[job].same_failures[i];
        printf("%s: %" PRId64 " cases with the same bits on both machines, %" PRId64 " failures\n", same_names[i],
               cases, failures);
        passed &= cases >= s->same && failures == 0;
    }
    return passed;
}

/* Asked in a process of its own: one that has spoken to the driver may not fork. */
static bool has_gpu(void)
{
    int status;
    const pid_t child = fork();
    if (child == 0) _exit(cuda_count_devices() == 0);
    return child > 0 && waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

/* ---- the command ---- */

static error_t parse(int key, char *argument, struct argp_state *state)
{
    struct settings *s = state->input;
    if (key == 'r') return s->replay = argument, 0;
    if (key == 'f') return s->corpus = argument, 0;
    int64_t *const values[] = {
        ['b'] = &s->backward, ['c'] = &s->cases, ['j'] = &s->jobs,
        ['m'] = &s->same,     ['s'] = &s->seed,  ['w'] = &s->work};
    if (key < 'b' || key > 'w' || values[key] == NULL) return ARGP_ERR_UNKNOWN;
    char *end;
    *values[key] = strtoll(argument, &end, 10);
    if (*argument == '\0' || *end != '\0' || *values[key] < 0) argp_error(state, "not a number: %s", argument);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"cases", 'c', "N", 0, "of all properties of the forward pass together (10000)", 0},
        {"backward", 'b', "N", 0, "of those of the backward pass (2000)", 0},
        {"same", 'm', "N", 0, "of each pass and of merges, for the same bits on both machines (1000)", 0},
        {"work", 'w', "N", 0, "most scores x head_dim of a case (65536)", 0},
        {"seed", 's', "N", 0, "of the cases (1)", 0},
        {"jobs", 'j', "N", 0, "processes (0: one a core)", 0},
        {"corpus", 'f', "FILE", 0, "lines of cases that once failed, again", 0},
        {"replay", 'r', "LINE", 0, "one case, drawn with the same --work", 0},
        {0},
    };
    static const struct argp argp = {options, parse, NULL, "Checks the kernels on the chip.", NULL, NULL, NULL};
    struct settings s = {.cases = 10000, .backward = 2000, .same = 1000, .work = 1 << 16, .seed = 1};
    argp_parse(&argp, argc, argv, 0, NULL, &s);
    if (s.jobs == 0) s.jobs = sysconf(_SC_NPROCESSORS_ONLN);
    if (s.jobs > MAX_JOBS) s.jobs = MAX_JOBS;
    if (!has_gpu()) {
        printf("UNCHECKED: no GPU\n");
        return 0;
    }
    struct kernel_implementation library = kernels_on_cuda("cuda", NULL);
    if (s.replay != NULL) return !kernels_replay(s.replay, &library.implementation, s.work, stdout);
    struct finding *findings = mmap(NULL, (size_t)s.jobs * sizeof *findings, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (findings == MAP_FAILED) return 1;
    const bool ended = run_jobs(&s, findings), passed = report(&s, findings);
    printf("%s\n", ended && passed ? "PASS" : "FAIL");
    return !(ended && passed);
}

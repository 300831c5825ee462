/* kernels_gpu.c - the kernels on the chip: every property, and the polynomial build's bits beside the simulated GPU's.
 *
 *     kernels_gpu [--cases 10000] [--same 1000] [--work 65536] [--seed 1] [--jobs 0]
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

#include "proptests/cuda_memory.h"
#include "proptests/kernels.h"
#include "proptests/outcome.h"

enum { MAX_JOBS = 256, FAR = 1 << 20 };

struct settings {
    int64_t cases, same, work, seed, jobs;
    const char *replay; /* NULL: none */
};

/* What one process has found. */
struct finding {
    struct kernel_tally tally;
    struct check_result same_forward, same_merge;
};

/* ---- the same bits on both machines ---- */

static struct kernel_implementation sim_poly, cuda_poly;

/* Results of both as they lie in memory. */
static int same_forward(struct prop_case *c, const struct implementation *self, struct prop_context *context)
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

enum { MOST_STATES = 9 };

/* States, and where both machines put what they make of them: poison to begin with. */
struct merge_case {
    int64_t count, rows, dim;
    int32_t o_dtype;
    float *o[MOST_STATES], *lse[MOST_STATES], *dout;
    float *merged[2], *gradients[2]; /* o, then lse; of each state do, then dlse */
};

static float *poisoned(struct prop_case *c, int64_t count)
{
    return memset(case_alloc(c, (size_t)count * sizeof(float)), 0xff, (size_t)count * sizeof(float));
}

static struct merge_case draw_merge(struct prop_case *c)
{
    static const int32_t dtypes[] = {ATTEST_FP32, ATTEST_FP16, ATTEST_BF16};
    struct merge_case m = {.count = (int64_t)(c->data.seed % (MOST_STATES + 1)), .rows = c->p.seqlen_q + 1,
                           .dim = c->p.head_dim_v, .o_dtype = dtypes[c->data.seed / 16 % 3]};
    const int64_t elements = m.rows * m.dim;
    for (int s = 0; s < m.count; ++s) {
        m.o[s] = poisoned(c, elements), m.lse[s] = poisoned(c, m.rows);
        fill_states(c->data.seed + (uint64_t)(2 * s), elements, m.o[s], false);
        fill_states(c->data.seed + (uint64_t)(2 * s + 1), m.rows, m.lse[s], true);
    }
    m.dout = poisoned(c, elements);
    fill_states(c->data.seed + 99, elements, m.dout, false);
    for (int i = 0; i < 2; ++i) {
        m.merged[i] = poisoned(c, elements + m.rows);
        m.gradients[i] = poisoned(c, m.count * (elements + m.rows));
    }
    return m;
}

static enum attest_status merge_on(const struct implementation *machine, const struct merge_case *m, float *out)
{
    struct attest_merge_args a = ATTEST_MERGE_ARGS_INIT;
    a.o_dtype = m->o_dtype, a.num_states = m->count, a.rows = m->rows, a.head_dim_v = m->dim;
    a.o_states = (const float *const *)m->o, a.lse_states = (const float *const *)m->lse;
    a.o = out, a.lse = out + m->rows * m->dim;
    return machine->merge(machine, &a);
}

/* Of the first machine's merge. */
static enum attest_status differentiate_on(const struct implementation *machine, const struct merge_case *m, float *out)
{
    struct attest_merge_backward_args a = ATTEST_MERGE_BACKWARD_ARGS_INIT;
    float *d_o[MOST_STATES], *d_lse[MOST_STATES];
    const int64_t elements = m->rows * m->dim;
    for (int64_t s = 0; s < m->count; ++s)
        d_o[s] = out + s * (elements + m->rows), d_lse[s] = d_o[s] + elements;
    a.o_dtype = m->o_dtype, a.num_states = m->count, a.rows = m->rows, a.head_dim_v = m->dim;
    a.o_states = (const float *const *)m->o, a.lse_states = (const float *const *)m->lse;
    a.o = m->merged[0], a.lse = m->merged[0] + elements, a.dout = m->dout;
    a.do_states = d_o, a.dlse_states = d_lse;
    return machine->merge_backward(machine, &a);
}

static int same_floats(const char *what, float *const of[2], int64_t count, struct prop_context *context)
{
    for (int64_t i = 0; i < count; ++i)
        if (memcmp(&of[0][i], &of[1][i], sizeof(float)) != 0)
            return fails(context, FAILS_LAW, "word %" PRId64 " of %s is %a on the chip, %a simulated", i, what,
                         (double)of[0][i], (double)of[1][i]);
    return TRIAL_PASSES;
}

static int same_merge(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    const struct implementation *const machines[] = {self, &sim_poly.implementation};
    const struct merge_case m = draw_merge(c);
    const int64_t words = m.rows * m.dim + m.rows;
    for (int i = 0; i < 2; ++i)
        if (merge_on(machines[i], &m, m.merged[i]) != ATTEST_OK ||
            differentiate_on(machines[i], &m, m.gradients[i]) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "merge on %s: %s", machines[i]->name, attest_last_error());
    const int failure = same_floats("a merge", m.merged, words, context);
    return failure != TRIAL_PASSES ? failure : same_floats("its gradients", m.gradients, m.count * words, context);
}

static struct property same_bits(const char *name, int (*check)(struct prop_case *, const struct implementation *,
                                                                struct prop_context *), int64_t work)
{
    const struct property property = {.name = name, .sentence = "both machines give the same bits", .check = check};
    struct property asked;
    kernels_property(&property, work, &asked);
    return asked;
}

static void run_same(const char *name, int (*check)(struct prop_case *, const struct implementation *,
                                                    struct prop_context *), const struct settings *s, int64_t cases,
                     int64_t job, struct check_result *result)
{
    enum { SMALL = 1 << 14 };
    const struct property property = same_bits(name, check, s->work < SMALL ? s->work : SMALL);
    if (cases == 0) return;
    check_run(&property, &cuda_poly.implementation, (uint64_t)s->seed, job * FAR, cases, result);
    if (result->failure != 0) printf("%s FAILS: %s\n", name, result->message);
    fflush(stdout);
}

/* ---- processes ---- */

static int64_t share(int64_t total, int64_t index, int64_t count)
{
    return total * (index + 1) / count - total * index / count;
}

static void work(const struct settings *s, int64_t job, struct finding *f)
{
    const struct kernel_implementation library = kernels_on_cuda("cuda", NULL, NULL);
    const struct kernel_run run = {&library.implementation, share(s->cases, job, s->jobs), job * FAR, (uint64_t)s->seed,
                                   s->work};
    sim_poly = kernels_on_sim("sim_poly", forward_fp32_sim_poly, merge_sim_poly);
    cuda_poly = kernels_on_cuda("cuda_poly", forward_fp32_cuda_poly, merge_cuda_poly);
    sim_poly.merge_backward = merge_backward_sim_poly, cuda_poly.merge_backward = merge_backward_cuda_poly;
    run_same("same_forward", same_forward, s, share(s->same, job, s->jobs), job, &f->same_forward);
    run_same("same_merge", same_merge, s, share(s->same, job, s->jobs), job, &f->same_merge);
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

static bool report_same(const char *name, int64_t asked, int64_t cases, int64_t failures)
{
    printf("%s: %" PRId64 " cases with the same bits on both machines, %" PRId64 " failures\n", name, cases, failures);
    return cases >= asked && failures == 0;
}

static bool report(const struct settings *s, const struct finding *findings)
{
    static struct kernel_tally all;
    const struct implementation named = {.name = "cuda"};
    int64_t cases[2] = {0, 0}, failures[2] = {0, 0};
    for (int64_t job = 0; job < s->jobs; ++job) {
        const struct check_result *same[] = {&findings[job].same_forward, &findings[job].same_merge};
        kernels_add(&all, &findings[job].tally);
        for (int i = 0; i < 2; ++i) cases[i] += same[i]->cases, failures[i] += same[i]->failure != 0;
    }
    const bool enough = kernels_report(&all, &named, stdout);
    const bool forward = report_same("forward_fp32", s->same, cases[0], failures[0]);
    return report_same("merge", s->same, cases[1], failures[1]) && forward && enough;
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
    int64_t *const values[] = {
        ['c'] = &s->cases, ['j'] = &s->jobs, ['m'] = &s->same, ['s'] = &s->seed, ['w'] = &s->work};
    if (key < 'c' || key > 'w' || values[key] == NULL) return ARGP_ERR_UNKNOWN;
    char *end;
    *values[key] = strtoll(argument, &end, 10);
    if (*argument == '\0' || *end != '\0' || *values[key] < 0) argp_error(state, "not a number: %s", argument);
    return 0;
}

int main(int argc, char **argv)
{
    static const struct argp_option options[] = {
        {"cases", 'c', "N", 0, "of all properties together (10000)", 0},
        {"same", 'm', "N", 0, "of each kernel, for the same bits on both machines (1000)", 0},
        {"work", 'w', "N", 0, "most scores x head_dim of a case (65536)", 0},
        {"seed", 's', "N", 0, "of the cases (1)", 0},
        {"jobs", 'j', "N", 0, "processes (0: one a core)", 0},
        {"replay", 'r', "LINE", 0, "one case, drawn with the same --work", 0},
        {0},
    };
    static const struct argp argp = {options, parse, NULL, "Checks the kernels on the chip.", NULL, NULL, NULL};
    struct settings s = {.cases = 10000, .same = 1000, .work = 1 << 16, .seed = 1};
    argp_parse(&argp, argc, argv, 0, NULL, &s);
    if (s.jobs == 0) s.jobs = sysconf(_SC_NPROCESSORS_ONLN);
    if (s.jobs > MAX_JOBS) s.jobs = MAX_JOBS;
    if (!has_gpu()) {
        printf("UNCHECKED: no GPU\n");
        return 0;
    }
    const struct kernel_implementation library = kernels_on_cuda("cuda", NULL, NULL);
    if (s.replay != NULL) return !kernels_replay(s.replay, &library.implementation, s.work, stdout);
    struct finding *findings = mmap(NULL, (size_t)s.jobs * sizeof *findings, PROT_READ | PROT_WRITE,
                                    MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (findings == MAP_FAILED) return 1;
    const bool ended = run_jobs(&s, findings), passed = report(&s, findings);
    printf("%s\n", ended && passed ? "PASS" : "FAIL");
    return !(ended && passed);
}

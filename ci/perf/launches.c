/* launches.c - what the launch path of the chip asks of the CUDA runtime (runtime.c) on fixed problems (problems.c).
 *
 *     launches [PROBLEM...]    of all that are written by hand and each row's of more CTAs than SMs, or of these
 *
 * Prints lines of five words: kernel, problem, of which call, function, how often. `plan` makes a plan; `again` is a
 * pass once more on the same tensors; `elsewhere` one on tensors at other places. What is asked for once, a process's
 * first pass has asked by then. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ci/perf/problems.h"
#include "ci/perf/runtime.h"
#include "lib/attest.h"
#include "proptests/cases/sample.h"

static void give_up(const char *problem)
{
    fprintf(stderr, "%s: %s\n", problem, attest_last_error());
    exit(1);
}

static void print(const char *kernel, const char *problem, const char *call)
{
    char before[200];
    snprintf(before, sizeof before, "%s %s %s", kernel, problem, call);
    runtime_print(before);
}

/* One pass of the sample, whose calls are printed; call NULL: not. */
static void run_pass(struct sample *c, const char *problem, enum attest_pass pass, const char *call)
{
    runtime_reset();
    if (!(pass == ATTEST_FORWARD ? sample_forward(c, NULL) : sample_backward(c, NULL))) give_up(problem);
    if (call != NULL) print(attest_plan_kernel(c->plan, pass), problem, call);
}

/* A row's own pass; not where, of as few SMs as runtime.c has, another row is picked. */
static bool is_counted_pass(const struct counted_problem *p, const struct attest_plan *plan, enum attest_pass pass)
{
    if (p->of == NULL) return pass == ATTEST_FORWARD || !(p->shape.features & FORWARD_ONLY);
    return p->of->pass == pass && strcmp(attest_plan_kernel(plan, pass), p->of->name) == 0;
}

static void count_problem(const struct counted_problem *p)
{
    struct machine chip = machine_of_host;
    struct sample here, there;
    chip.device = ATTEST_CUDA;
    if (!sample_open(&here, &chip, &p->shape, 0)) give_up(p->name);
    runtime_reset();
    if (!sample_open(&there, &chip, &p->shape, 0)) give_up(p->name);
    if (p->of == NULL) print("host", p->name, "plan");
    for (int n = 0; n < 2; ++n) {
        const enum attest_pass pass = n == 0 ? ATTEST_FORWARD : ATTEST_BACKWARD;
        if (!is_counted_pass(p, here.plan, pass)) continue;
        run_pass(&here, p->name, pass, NULL);
        run_pass(&there, p->name, pass, NULL);
        run_pass(&there, p->name, pass, "again");
        run_pass(&here, p->name, pass, "elsewhere");
    }
    sample_close(&here), sample_close(&there);
}

enum { STATES = 2, ROWS = 3, DIM = 64 };

static void count_merges(const char *problem)
{
    static float o[STATES + 1][ROWS * DIM], lse[STATES + 1][ROWS], gradient[STATES + 1][ROWS * DIM], dlse[STATES][ROWS];
    const float *const o_states[] = {o[0], o[1]}, *const lse_states[] = {lse[0], lse[1]};
    float *const do_states[] = {gradient[0], gradient[1]}, *const dlse_states[] = {dlse[0], dlse[1]};
    struct attest_merge_args a = ATTEST_MERGE_ARGS_INIT;
    a.device = ATTEST_CUDA, a.num_states = STATES, a.rows = ROWS, a.head_dim_v = DIM;
    a.o_states = o_states, a.lse_states = lse_states, a.o = o[STATES], a.lse = lse[STATES];
    struct attest_merge_backward_args b = ATTEST_MERGE_BACKWARD_ARGS_INIT;
    b.device = ATTEST_CUDA, b.num_states = STATES, b.rows = ROWS, b.head_dim_v = DIM;
    b.o_states = o_states, b.lse_states = lse_states, b.o = a.o, b.lse = a.lse, b.dout = gradient[STATES];
    b.do_states = do_states, b.dlse_states = dlse_states;
    for (int n = 0; n < 2; ++n) {
        runtime_reset();
        if (attest_merge_states(&a, NULL) != ATTEST_OK) give_up(problem);
        if (n == 1) print("merge", problem, "again");
        runtime_reset();
        if (attest_merge_states_backward(&b, NULL) != ATTEST_OK) give_up(problem);
        if (n == 1) print("merge_backward", problem, "again");
    }
}

static bool is_counted(const struct counted_problem *p)
{
    static const char many[] = "_many";
    const size_t length = strlen(p->name);
    return p->of == NULL || (length > sizeof many && strcmp(p->name + length + 1 - sizeof many, many) == 0);
}

static bool is_asked_for(const char *problem, int num_names, char **names)
{
    bool found = num_names == 0;
    for (int n = 0; n < num_names; ++n) found |= strcmp(problem, names[n]) == 0;
    return found;
}

int main(int argc, char **argv)
{
    static const char merges[] = "fp32_2_states";
    size_t count;
    const struct counted_problem *const problems = counted_problems(&count);
    for (size_t n = 0; n < count; ++n)
        if (is_counted(&problems[n]) && is_asked_for(problems[n].name, argc - 1, argv + 1)) count_problem(&problems[n]);
    if (is_asked_for(merges, argc - 1, argv + 1)) count_merges(merges);
    return 0;
}

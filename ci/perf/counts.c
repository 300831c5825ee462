/* counts.c - what every kernel asks of the simulated GPU on fixed problems (problems.c).
 *
 *     counts [PROBLEM...]    of all, or of these
 *
 * Prints the compiler, then lines of four words: kernel, problem, count, value. One schedule, fixed numbers: the same
 * sources compiled by the same compiler print the same lines everywhere. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ci/perf/problems.h"
#include "kernels/sim/sim.h"
#include "lib/attest.h"
#include "proptests/cases/families.h"

static const struct sim_options schedule = {
    .generation = SIM_SM_90, .async = SIM_ASYNC_LATE, .seed = 1, .workers = 1, .unwatched = true, .counting = true};

static void give_up(const char *problem)
{
    fprintf(stderr, "%s: %s\n", problem, attest_last_error());
    exit(1);
}

static void print_count(const char *kernel, const char *problem, const char *count, uint64_t value)
{
    printf("%s %s %s %" PRIu64 "\n", kernel, problem, count, value);
}

/* That fit on an SM of 228 KB, of which a CTA takes 1 KB more than it asks for, and 2048 threads: of launches that
 * differ as of their mean. Registers are ptxas' matter. */
static uint64_t ctas_by_shared_memory(const struct sim_counts *c)
{
    const uint64_t by_threads = 2048 * c->launches / c->threads;
    const uint64_t by_bytes = 228 * 1024 * c->launches / (c->dynamic_shared_bytes + 1024 * c->launches);
    const uint64_t ctas = by_threads < by_bytes ? by_threads : by_bytes;
    return ctas < 32 ? ctas : 32;
}

/* Of one pass; fiber_switches are the simulator's own. */
static void print_counts(const char *kernel, const char *problem, struct sim_gpu *gpu)
{
    const struct sim_counts *const c = sim_counts(gpu);
#define PRINT(count) print_count(kernel, problem, #count, c->count)
    PRINT(launches);
    PRINT(blocks);
    PRINT(dynamic_shared_bytes);
    PRINT(threads);
    PRINT(cluster_ctas);
    PRINT(early_launches);
    PRINT(makespan);
    PRINT(global_read_bytes);
    PRINT(global_write_bytes);
    PRINT(global_read_sectors);
    PRINT(global_write_sectors);
    PRINT(global_read_requests);
    PRINT(global_write_requests);
    PRINT(shared_read_bytes);
    PRINT(shared_write_bytes);
    PRINT(shared_wavefronts);
    PRINT(shared_bank_conflicts);
    PRINT(mma_instructions);
    PRINT(wgmma_instructions);
    PRINT(tensor_core_flops);
    PRINT(special_function_operations);
    PRINT(warp_collectives);
    PRINT(barrier_waits);
    PRINT(mbarrier_waits);
    PRINT(async_copies);
    PRINT(async_copy_bytes);
    PRINT(products_beside_copies);
    PRINT(copy_bytes_waited_at_once);
    PRINT(copy_waits_at_once);
    PRINT(wgmma_drains);
#undef PRINT
    print_count(kernel, problem, "ctas_by_shared_memory", c->threads == 0 ? 0 : ctas_by_shared_memory(c));
    sim_reset_counts(gpu);
}

/* Backward, o follows from the others. */
static bool is_needed(const struct sample_memory *m, enum attest_pass pass)
{
    return pass == ATTEST_FORWARD || strcmp(m->kind->name, "o") != 0;
}

/* What a pass has to move at least, where no key is hidden: its inputs and its results, once. */
static void print_compulsory(const char *kernel, const char *problem, const struct sample *c, enum attest_pass pass)
{
    const unsigned hiding = WITH_MASK | WITH_BLOCK_MASK | WITH_WINDOW | WITH_SEQUSED;
    uint64_t read = 0, written = 0;
    if (c->shape.features & hiding) return;
    for (int i = 0; i < c->num_memory; ++i) {
        const struct sample_memory *const m = &c->memory[i];
        if (m->kind == NULL) continue;
        if ((m->kind->read & pass) != 0 && is_needed(m, pass)) read += m->bytes;
        if (m->kind->written & pass) written += m->bytes;
    }
    print_count(kernel, problem, "compulsory_read_bytes", read);
    print_count(kernel, problem, "compulsory_write_bytes", written);
}

static void print_pass(const struct counted_problem *p, const struct sample *c, enum attest_pass pass,
                       struct sim_gpu *gpu)
{
    const char *const kernel = attest_plan_kernel(c->plan, pass);
    if (p->of != NULL && p->of->pass != pass) return sim_reset_counts(gpu);
    print_counts(kernel, p->name, gpu);
    print_compulsory(kernel, p->name, c, pass);
    print_count(kernel, p->name, "workspace_bytes", c->workspace_bytes[pass == ATTEST_BACKWARD]);
}

/* On a GPU of the generation that the problem's kernels were picked for. */
static void count_problem(const struct counted_problem *p, struct sim_gpu *gpu)
{
    struct sim_options options = schedule;
    struct sample c;
    if (p->shape.major == 8) options.generation = SIM_SM_80;
    sim_gpu_options(gpu, &options);
    if (!sample_open(&c, &machine_of_host, &p->shape, 0) || !sample_send(&c, false) || !sample_forward(&c, gpu))
        give_up(p->name);
    print_pass(p, &c, ATTEST_FORWARD, gpu);
    if (!(p->shape.features & FORWARD_ONLY)) {
        if (!sample_backward(&c, gpu)) give_up(p->name);
        print_pass(p, &c, ATTEST_BACKWARD, gpu);
    }
    sample_close(&c);
}

/* ---- merges ---- */

enum { STATES = 5, ROWS = 200, DIM = 64 };
static const char merge_problem[] = "fp32_5_states";

static float *new_numbers(int64_t count, uint64_t stream)
{
    float *const numbers = machine_of_host.allocate((size_t)count * sizeof *numbers);
    if (numbers == NULL) give_up("no memory");
    for (int64_t i = 0; i < count; ++i) numbers[i] = (float)family_normal(family_bits(stream, 0, 0, i, 0, 0));
    return numbers;
}

static void count_merges(struct sim_gpu *gpu)
{
    const char *const name = merge_problem;
    float *o_states[STATES], *lse_states[STATES], *do_states[STATES], *dlse_states[STATES];
    for (int s = 0; s < STATES; ++s) {
        o_states[s] = new_numbers(ROWS * DIM, (uint64_t)s), lse_states[s] = new_numbers(ROWS, STATES + (uint64_t)s);
        do_states[s] = new_numbers(ROWS * DIM, 0), dlse_states[s] = new_numbers(ROWS, 0);
    }
    float *const o = new_numbers(ROWS * DIM, 0), *const lse = new_numbers(ROWS, 0);
    float *const dout = new_numbers(ROWS * DIM, 2 * STATES);
    struct attest_merge_args a = ATTEST_MERGE_ARGS_INIT;
    a.device = ATTEST_SIM, a.num_states = STATES, a.rows = ROWS, a.head_dim_v = DIM;
    a.o_states = (const float *const *)o_states, a.lse_states = (const float *const *)lse_states, a.o = o, a.lse = lse;
    if (attest_merge_states(&a, gpu) != ATTEST_OK) give_up(name);
    print_counts("merge", name, gpu);
    struct attest_merge_backward_args b = ATTEST_MERGE_BACKWARD_ARGS_INIT;
    b.device = ATTEST_SIM, b.num_states = STATES, b.rows = ROWS, b.head_dim_v = DIM;
    b.o_states = a.o_states, b.lse_states = a.lse_states, b.o = o, b.lse = lse, b.dout = dout;
    b.do_states = do_states, b.dlse_states = dlse_states;
    if (attest_merge_states_backward(&b, gpu) != ATTEST_OK) give_up(name);
    print_counts("merge_backward", name, gpu);
    for (int s = 0; s < STATES; ++s) free(o_states[s]), free(lse_states[s]), free(do_states[s]), free(dlse_states[s]);
    free(o), free(lse), free(dout);
}

/* ---- which ---- */

static bool is_asked_for(const char *problem, int num_names, char **names)
{
    bool found = num_names == 0;
    for (int n = 0; n < num_names; ++n) found |= strcmp(problem, names[n]) == 0;
    return found;
}

int main(int argc, char **argv)
{
    size_t count;
    const struct counted_problem *const problems = counted_problems(&count);
    struct sim_gpu *const gpu = sim_gpu_create(&schedule);
    printf("gcc %s\n", __VERSION__);
    if (gpu == NULL) give_up("no memory");
    for (size_t i = 0; i < count; ++i)
        if (is_asked_for(problems[i].name, argc - 1, argv + 1)) count_problem(&problems[i], gpu);
    if (is_asked_for(merge_problem, argc - 1, argv + 1)) count_merges(gpu);
    sim_gpu_destroy(gpu);
    return 0;
}

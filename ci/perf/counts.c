/* counts.c - what every kernel asks of the simulated GPU on fixed problems.
 *
 *     counts
 *
 * Prints the compiler, then lines of four words: kernel, problem, count, value. One schedule, one generation, fixed
 * numbers: the same sources compiled by the same compiler print the same lines everywhere. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/sim.h"
#include "lib/attest.h"
#include "proptests/cases/families.h"
#include "proptests/cases/sample.h"

#define EVERYTHING                                                                                               \
    (WITH_WINDOW | WITH_BIAS | WITH_ALIBI | WITH_SOFTCAP | WITH_SINK | WITH_DROPOUT | WITH_DLSE | WITH_SEQUSED | \
     WITH_MASK | WITH_DBIAS)

#define SHAPE(format, sequences, length, q, kv, dim, dim_v, with)                                                    \
    .dtype = format, .batch = sequences, .seqlen = length, .heads_q = q, .heads_kv = kv, .head_dim = dim,           \
    .head_dim_v = dim_v, .features = with

/* Every width that kernels are compiled for, plain and with each feature that changes what is read or skipped. */
static const struct {
    const char *name;
    struct sample_shape shape;
} problems[] = {
    {"bf16_d64_full", {SHAPE(ATTEST_BF16, 1, 384, 2, 2, 64, 64, 0)}},
    {"bf16_d64_causal", {SHAPE(ATTEST_BF16, 1, 384, 2, 2, 64, 64, WITH_CAUSAL)}},
    {"bf16_d64_window", {SHAPE(ATTEST_BF16, 1, 512, 1, 1, 64, 64, WITH_CAUSAL | WITH_WINDOW)}},
    {"bf16_d64_dropout", {SHAPE(ATTEST_BF16, 1, 256, 1, 1, 64, 64, WITH_DROPOUT)}},
    {"bf16_d64_ragged",
     {SHAPE(ATTEST_BF16, 3, 300, 2, 1, 64, 64, WITH_CAUSAL | WITH_RAGGED), .lengths = {300, 17, 130}}},
    {"bf16_d128_full", {SHAPE(ATTEST_BF16, 1, 256, 2, 2, 128, 128, 0)}},
    {"bf16_d128_causal", {SHAPE(ATTEST_BF16, 1, 256, 2, 1, 128, 128, WITH_CAUSAL)}},
    {"bf16_d256_full", {SHAPE(ATTEST_BF16, 1, 128, 1, 1, 256, 256, 0), .unpromised = true}},
    {"bf16_d256_few", {SHAPE(ATTEST_BF16, 1, 128, 1, 1, 256, 256, 0)}},
    {"bf16_d40_causal", {SHAPE(ATTEST_BF16, 1, 200, 1, 1, 40, 37, WITH_CAUSAL)}},
    {"bf16_d64_block_mask", {SHAPE(ATTEST_BF16, 1, 256, 1, 1, 64, 64, WITH_BLOCK_MASK)}},
    {"bf16_d32_short", {SHAPE(ATTEST_BF16, 2, 32, 2, 2, 32, 32, 0)}},
    {"bf16_d64_short", {SHAPE(ATTEST_BF16, 2, 64, 2, 2, 64, 64, 0)}},
    {"bf16_d64_hopper", {SHAPE(ATTEST_BF16, 1, 128, 2, 2, 64, 64, 0)}},
    {"bf16_d64_hopper_cut", {SHAPE(ATTEST_BF16, 5, 100, 2, 2, 64, 64, 0)}},
    {"bf16_d64_hopper_many", {SHAPE(ATTEST_BF16, 8, 128, 2, 2, 64, 64, 0), .unpromised = true}},
    {"bf16_d32_scaled", {SHAPE(ATTEST_BF16, 1, 128, 2, 2, 32, 32, 0)}},
    {"bf16_d32_scaled_cut", {SHAPE(ATTEST_BF16, 2, 100, 2, 2, 32, 32, 0)}},
    {"bf16_d128_hopper", {SHAPE(ATTEST_BF16, 2, 100, 2, 1, 128, 128, 0)}},
    {"bf16_d128_short", {SHAPE(ATTEST_BF16, 1, 128, 2, 1, 128, 128, WITH_CAUSAL)}},
    {"bf16_d256_short", {SHAPE(ATTEST_BF16, 1, 50, 2, 1, 256, 256, 0)}},
    {"bf16_d64_one", {SHAPE(ATTEST_BF16, 4, 1, 2, 1, 64, 64, 0)}},
    {"fp16_d64_full", {SHAPE(ATTEST_FP16, 1, 256, 1, 1, 64, 64, 0)}},
    {"fp16_d128_everything", {SHAPE(ATTEST_FP16, 1, 200, 4, 2, 128, 128, EVERYTHING)}},
    {"fp32_d64_full", {SHAPE(ATTEST_FP32, 1, 192, 1, 1, 64, 64, 0)}},
    {"fp32_d64_causal", {SHAPE(ATTEST_FP32, 1, 192, 2, 1, 64, 64, WITH_CAUSAL)}},
    {"fp32_d128_everything", {SHAPE(ATTEST_FP32, 1, 100, 2, 1, 128, 128, EVERYTHING)}},
};
enum { NUM_PROBLEMS = sizeof problems / sizeof *problems };

static void give_up(const char *problem)
{
    fprintf(stderr, "%s: %s\n", problem, attest_last_error());
    exit(1);
}

static void print_count(const char *kernel, const char *problem, const char *count, uint64_t value)
{
    printf("%s %s %s %" PRIu64 "\n", kernel, problem, count, value);
}

/* Of one pass; fiber_switches are the simulator's own. */
static void print_counts(const char *kernel, const char *problem, struct sim_gpu *gpu)
{
    const struct sim_counts *const c = sim_counts(gpu);
#define PRINT(count) print_count(kernel, problem, #count, c->count)
    PRINT(launches);
    PRINT(blocks);
    PRINT(dynamic_shared_bytes);
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
#undef PRINT
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

static void count_problem(const char *name, const struct sample_shape *shape, struct sim_gpu *gpu)
{
    struct sample c;
    if (!sample_open(&c, &machine_of_host, shape, 0) || !sample_send(&c, false) || !sample_forward(&c, gpu))
        give_up(name);
    const char *const forward = attest_plan_kernel(c.plan, ATTEST_FORWARD);
    const char *const backward = attest_plan_kernel(c.plan, ATTEST_BACKWARD);
    print_counts(forward, name, gpu);
    print_compulsory(forward, name, &c, ATTEST_FORWARD);
    print_count(forward, name, "workspace_bytes", c.workspace_bytes[0]);
    if (!sample_backward(&c, gpu)) give_up(name);
    print_counts(backward, name, gpu);
    print_compulsory(backward, name, &c, ATTEST_BACKWARD);
    print_count(backward, name, "workspace_bytes", c.workspace_bytes[1]);
    sample_close(&c);
}

/* ---- merges ---- */

enum { STATES = 5, ROWS = 200, DIM = 64 };

static float *new_numbers(int64_t count, uint64_t stream)
{
    float *const numbers = machine_of_host.allocate((size_t)count * sizeof *numbers);
    if (numbers == NULL) give_up("no memory");
    for (int64_t i = 0; i < count; ++i) numbers[i] = (float)family_normal(family_bits(stream, 0, 0, i, 0, 0));
    return numbers;
}

static void count_merges(struct sim_gpu *gpu)
{
    const char *const name = "fp32_5_states";
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

int main(void)
{
    const struct sim_options options = {
        .generation = SIM_SM_90, .async = SIM_ASYNC_LATE, .seed = 1, .workers = 1, .unwatched = true, .counting = true};
    struct sim_gpu *const gpu = sim_gpu_create(&options);
    printf("gcc %s\n", __VERSION__);
    if (gpu == NULL) give_up("no memory");
    for (int i = 0; i < NUM_PROBLEMS; ++i) count_problem(problems[i].name, &problems[i].shape, gpu);
    count_merges(gpu);
    sim_gpu_destroy(gpu);
    return 0;
}

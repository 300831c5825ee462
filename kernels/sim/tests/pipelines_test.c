/* pipelines_test.c - right pipelines run clean and compute what they should; each mutant of them is rejected. */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "kernels/sim/tests/pipelines/pipelines.h"

enum {
    TRIALS = 1008, /* of a right pipeline, the policies in turn */
    SEEDS = 30     /* of a mutant, each under all policies */
};

static _Alignas(128) uint16_t in[MAX_ROWS * COLUMNS], work[MAX_ROWS * COLUMNS];
static _Alignas(128) float out[MAX_FLOATS];
static float expected[MAX_FLOATS];

/* ---- what the pipelines compute ----------------------------------------------------------------------------- */

static int number(int row, int column)
{
    return (int)((unsigned)(row * COLUMNS + column) * 2654435761u >> 13) % 5 - 2;
}

static uint16_t bf16_of(int small)
{
    const float x = (float)small; /* exact in the upper half */
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return (uint16_t)(bits >> 16);
}

/* Of two rows of `in`, `plus` added to each number. */
static int dot(int row, int other, int plus)
{
    int sum = 0;
    for (int c = 0; c < COLUMNS; ++c) sum += (number(row, c) + plus) * (number(other, c) + plus);
    return sum;
}

static int of_ring(int i)
{
    int sum = 0;
    for (int key = 0; key < RING_TILES * KEY_ROWS; ++key)
        sum += dot(i / COLUMNS, RING_KEYS + key, 0) * number(RING_VALUES + key, i % COLUMNS);
    return sum;
}

static int of_turns(int i)
{
    int sum = 0;
    for (int key = 0; key < KEY_ROWS; ++key) {
        const int score = dot(i / COLUMNS, TURN_KEYS + key, 0);
        sum += (score > 0 ? 2 * score : 0) * number(TURN_VALUES + key, i % COLUMNS);
    }
    return sum;
}

static int of_multicast(int i)
{
    const int keys = 2 * KEY_ROWS, cta = i / (GROUP_ROWS * keys), row = i / keys % GROUP_ROWS, key = i % keys;
    int sum = 0;
    for (int n = 0; n < CAST_TILES; ++n)
        sum += dot((cta * CAST_TILES + n) * GROUP_ROWS + row, CAST_KEYS + n * keys + key, 0);
    return sum;
}

static int exchanged(int i, int own, int others)
{
    const int other = (i ^ SWAP_NUMBERS) ^ (SWAP_NUMBERS - 1); /* the other CTA's, mirrored */
    return own * number(i / COLUMNS, i % COLUMNS) + others * number(other / COLUMNS, other % COLUMNS);
}

static int of_pull(int i) { return exchanged(i, 1, 1); }
static int of_push(int i) { return exchanged(i, 1, 5); }

static int of_chain(int i)
{
    const int row = i / KEY_ROWS % CHAIN_KEYS, pass = i / KEY_ROWS / CHAIN_KEYS;
    return dot(row, CHAIN_KEYS + i % KEY_ROWS, pass);
}

int run_ring(struct sim_gpu *gpu, const struct room *r);
int run_turns(struct sim_gpu *gpu, const struct room *r);
int run_multicast(struct sim_gpu *gpu, const struct room *r);
int run_pull(struct sim_gpu *gpu, const struct room *r);
int run_push(struct sim_gpu *gpu, const struct room *r);
int run_chain(struct sim_gpu *gpu, const struct room *r);

static const struct pipeline {
    const char *name; /* of the mistakes, too */
    int (*run)(struct sim_gpu *gpu, const struct room *r);
    int rows, floats; /* of `in` and `out` */
    int (*expected)(int i);
} ring = {"ring", run_ring, RING_ROWS, RING_GROUPS * GROUP_ROWS * COLUMNS, of_ring},
  turns = {"turns", run_turns, TURN_ROWS, TURN_TILES * GROUP_ROWS * COLUMNS, of_turns},
  cast = {"cast", run_multicast, CAST_ROWS, CAST_CTAS * GROUP_ROWS * 2 * KEY_ROWS, of_multicast},
  pull = {"pull", run_pull, SWAP_ROWS, SWAP_ROWS * COLUMNS, of_pull},
  push = {"push", run_push, SWAP_ROWS, SWAP_ROWS * COLUMNS, of_push},
  chain = {"chain", run_chain, CHAIN_ROWS, CHAIN_PASSES * CHAIN_KEYS * KEY_ROWS, of_chain};

/* ---- the mutants -------------------------------------------------------------------------------------------- */

/* How a mutant may be rejected: rules of findings; WRONG_NUMBERS, where no rule is broken. */
enum {
    WRONG_NUMBERS = 1 << SIM_CLEAN,
    UNINITIALISED = 1 << SIM_UNINITIALISED,
    RACE = 1 << SIM_RACE,
    MISSING_WAIT = 1 << SIM_MISSING_WAIT,
    PROXY_FENCE = 1 << SIM_MISSING_PROXY_FENCE,
    WRONG_PARITY = 1 << SIM_WRONG_PARITY,
    REGISTERS_IN_FLIGHT = 1 << SIM_REGISTERS_IN_FLIGHT,
    WGMMA_FENCE = 1 << SIM_MISSING_WGMMA_FENCE,
    DIVERGED = 1 << SIM_DIVERGED,
    BARRIER_COUNT = 1 << SIM_BARRIER_COUNT,
    DEADLOCK = 1 << SIM_DEADLOCK,
    LEFT_PENDING = 1 << SIM_LEFT_PENDING,
    BAD_OPERAND = 1 << SIM_BAD_OPERAND
};

static const struct mutant {
    const struct pipeline *of;
    const char *name;
    enum mistake mistake;
    int rejected_by;
    const char *word;
} mutants[] = {
#define MISTAKE(family, name, ...) {&family, #family "_" #name, family##_##name, __VA_ARGS__},
#include "kernels/sim/tests/pipelines/mistakes.h"
#undef MISTAKE
};
enum { NUM_MUTANTS = sizeof mutants / sizeof mutants[0] };

/* ---- runs ---------------------------------------------------------------------------------------------------- */

static const enum sim_async_policy policies[] = {SIM_ASYNC_LATE, SIM_ASYNC_EARLY, SIM_ASYNC_RANDOM};

/* 2 to 5 in turn. */
static int stages_of(unsigned trial) { return 2 + (int)(trial % 4); }

/* Runs a pipeline to its end; returns the rule that was broken, SIM_CLEAN if none. */
static int run(struct sim_gpu *gpu, const struct pipeline *p, enum mistake mistake, int stages)
{
    const struct room room = {in, out, work, stages, mistake};
    const size_t in_bytes = (size_t)p->rows * COLUMNS * sizeof in[0];
    for (int i = 0; i < p->rows * COLUMNS; ++i) in[i] = bf16_of(number(i / COLUMNS, i % COLUMNS));
    for (int i = 0; i < p->floats; ++i) out[i] = NAN;
    memset(work, 0xff, in_bytes);
    sim_unmap_all(gpu);
    cr_assert(sim_map(gpu, "in", in, in_bytes, SIM_READ));
    cr_assert(sim_map(gpu, "out", out, (size_t)p->floats * sizeof out[0], SIM_WRITE));
    cr_assert(sim_map(gpu, "work", work, in_bytes, SIM_READ | SIM_WRITE));
    const int status = p->run(gpu, &room);
    return status ? status : (int)sim_check_written(gpu);
}

/* The first number that is wrong, or how many there are. */
static int first_wrong(const struct pipeline *p)
{
    int i = 0;
    while (i < p->floats && out[i] == expected[i]) ++i;
    return i;
}

static void find_expected(const struct pipeline *p)
{
    for (int i = 0; i < p->floats; ++i) expected[i] = (float)p->expected(i);
}

static void check_right(const struct pipeline *p)
{
    struct sim_options options = {.generation = SIM_SM_90};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    cr_assert_not_null(gpu);
    find_expected(p);
    for (unsigned trial = 0; trial < TRIALS; ++trial) {
        options.async = policies[trial % 3];
        options.seed = trial;
        options.workers = 1 + trial % 17 / 16;
        sim_gpu_options(gpu, &options);
        cr_assert_eq(run(gpu, p, NO_MISTAKE, stages_of(trial / 3)), SIM_CLEAN, "%s: %s", p->name,
                     sim_last_report(gpu)->text);
        const int wrong = first_wrong(p);
        cr_assert_eq(wrong, p->floats, "%s, seed %u: out[%d] = %g, not %g", p->name, trial, wrong, out[wrong],
                     expected[wrong]);
    }
    sim_gpu_destroy(gpu);
}

/* One run of a mutant: is it rejected, for the right reason? */
static void check_mutant(const struct mutant *m, const struct sim_options *options)
{
    struct sim_gpu *gpu = sim_gpu_create(options);
    cr_assert_not_null(gpu);
    const int rule = run(gpu, m->of, m->mistake, stages_of((unsigned)options->seed));
    const struct sim_report *report = sim_last_report(gpu);
    cr_assert_geq(rule, 0, "%s was not launched", m->name);
    cr_expect(m->rejected_by >> rule & 1, "%s, seed %u, async %d: rule %s. %s", m->name, (unsigned)options->seed,
              options->async, sim_rule_name(rule), report->text);
    if (rule == SIM_CLEAN) cr_expect_lt(first_wrong(m->of), m->of->floats, "%s: nothing is wrong", m->name);
    else cr_expect(strstr(report->text, m->word), "%s: %s", m->name, report->text);
    sim_gpu_destroy(gpu);
}

static void check_mutants(const struct pipeline *p)
{
    int checked = 0;
    find_expected(p);
    for (const struct mutant *m = mutants; m < mutants + NUM_MUTANTS; ++m) {
        if (m->of != p) continue;
        ++checked;
        for (unsigned trial = 0; trial < 3 * SEEDS; ++trial) {
            const struct sim_options options = {.generation = SIM_SM_90, .async = policies[trial % 3],
                                                .seed = trial / 3, .workers = 1};
            check_mutant(m, &options);
        }
    }
    cr_assert_gt(checked, 0, "%s has no mutants", p->name);
}

#define TESTS(pipeline)                                                                     \
    Test(pipeline, is_clean_and_right_under_a_thousand_schedules) { check_right(&pipeline); } \
    Test(pipeline, mutants_are_rejected_under_every_schedule) { check_mutants(&pipeline); }
TESTS(ring)
TESTS(turns)
TESTS(cast)
TESTS(pull)
TESTS(push)
TESTS(chain)

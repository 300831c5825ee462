/* watch_test.c - what ordinary accesses are found guilty of, and what the reports say. */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/machine.h"
#include "kernels/sim/tests/watch_test.h"

static const char source[] = "kernels/sim/tests/watch_test.cu";

typedef int watched(struct sim_gpu *gpu, const struct watched_args *args);
watched watched_load_and_store, watched_copy_struct, watched_copy_by_name, watched_clear_by_name, watched_copy_16,
    watched_load_in_function, watched_add_atomically, watched_read_constants, watched_read_variable,
    watched_write_constant, watched_own_bytes, watched_many_readers, watched_place, watched_of_two_blocks,
    watched_of_clusters;

static struct sim_gpu *gpu;
static float in[256] __attribute__((aligned(64))), out[256] __attribute__((aligned(64)));

static void make_gpu(uint64_t seed)
{
    const struct sim_options options = {.generation = SIM_SM_90, .seed = seed, .workers = 1};
    gpu = sim_gpu_create(&options);
    cr_assert(gpu != NULL);
}

static void setup(void)
{
    make_gpu(1);
    sim_map(gpu, "in", in, sizeof in / 2, SIM_READ);
    sim_map(gpu, "out", out, sizeof out / 2, SIM_WRITE);
}

static void teardown(void) { sim_gpu_destroy(gpu); }

TestSuite(watch, .init = setup, .fini = teardown);

/* The line of the n-th HERE(name), from 1. */
static int line_of(const char *name, int n)
{
    char mark[64], text[256];
    int line = 0;
    FILE *file = fopen(source, "r");
    cr_assert(file != NULL, "no %s", source);
    snprintf(mark, sizeof mark, "HERE(%s)", name);
    while (n > 0 && fgets(text, sizeof text, file)) {
        line++;
        if (strstr(text, mark)) n--;
    }
    fclose(file);
    cr_assert(n == 0, "no %s", mark);
    return line;
}

static void expect_clean(watched *kernel, struct watched_args args)
{
    const int rule = kernel(gpu, &args);
    cr_assert(rule == SIM_CLEAN, "%s", sim_last_report(gpu)->text);
}

/* The rule, at the line marked so, at this address; the whole text holds `words`. */
static void expect(watched *kernel, struct watched_args args, enum sim_rule rule, const char *mark, int n,
                   const char *address, const char *words)
{
    const int found = kernel(gpu, &args);
    const struct sim_report *r = sim_last_report(gpu);
    cr_assert(found == (int)rule && r->rule == rule, "%s, not %s: %s", sim_rule_name(found), sim_rule_name(rule),
              r->text);
    cr_assert(strstr(r->file, "watch_test.cu") != NULL && r->line == line_of(mark, n), "%s:%d: %s", r->file, r->line,
              r->text);
    cr_assert_str_eq(r->address, address, "%s", r->text);
    cr_assert(strstr(r->text, words) != NULL, "no '%s': %s", words, r->text);
    cr_assert(strstr(r->text, "Seed 1, async late.") != NULL, "%s", r->text);
}

#define ARGS(...) ((struct watched_args){__VA_ARGS__})

Test(watch, global_memory_is_known_to_the_byte)
{
    expect_clean(watched_load_and_store, ARGS(.from = &in[127], .to = &out[127]));
    expect(watched_load_and_store, ARGS(.from = &in[128], .to = out), SIM_OUT_OF_BOUNDS, "load", 1,
           "global, 0 bytes past the end of in", "load");
    expect(watched_load_and_store, ARGS(.from = in, .to = &out[130]), SIM_OUT_OF_BOUNDS, "store", 1,
           "global, 8 bytes past the end of out", "store");
    expect(watched_load_and_store, ARGS(.from = in, .to = in + 1), SIM_OUTSIDE_OUTPUTS, "store", 1,
           "global in + 4 bytes", "not to be written");
    expect(watched_load_and_store, ARGS(.from = out, .to = out), SIM_OUT_OF_BOUNDS, "load", 1, "global out + 0 bytes",
           "not to be read");
    expect(watched_load_and_store, ARGS(.from = (const float *)((const char *)in + 2), .to = out), SIM_MISALIGNED,
           "load", 1, "global in + 2 bytes", "no multiple of 4");
    sim_map(gpu, "odd", (char *)out + 600, 6, SIM_WRITE);
    expect(watched_load_and_store, ARGS(.from = in, .to = (float *)((char *)out + 604)), SIM_OUT_OF_BOUNDS, "store", 1,
           "global, 0 bytes past the end of odd", "not mapped");
}

Test(watch, tensors_have_gaps)
{
    const int64_t shape[] = {3, 2, 5}, stride[] = {16, 8, 1};
    sim_unmap_all(gpu);
    sim_map_tensor(gpu, "q", in, 4, 3, shape, stride, SIM_READ);
    sim_map(gpu, "out", out, sizeof out, SIM_WRITE);
    for (int i = 0; i < 48; i++) {
        const bool element = i % 8 < 5;
        const struct watched_args args = {.from = &in[i], .to = out};
        cr_assert(watched_load_and_store(gpu, &args) == (element ? SIM_CLEAN : SIM_OUT_OF_BOUNDS), "%d: %s", i,
                  sim_last_report(gpu)->text);
    }
    expect(watched_load_and_store, ARGS(.from = &in[29], .to = out), SIM_OUT_OF_BOUNDS, "load", 1,
           "global q[1][1][4], 0 bytes past its end, in a gap", "No memory that this thread may read");
    const int64_t far_shape[] = {3, 2}, far_stride[] = {(int64_t)1 << 40, 0};
    cr_assert(sim_map_tensor(gpu, "far", (void *)((uintptr_t)1 << 44), 8, 2, far_shape, far_stride, SIM_READ));
    expect(watched_load_and_store, ARGS(.from = (void *)(((uintptr_t)1 << 44) + ((uintptr_t)1 << 43) - 4), .to = out),
           SIM_OUT_OF_BOUNDS, "load", 1, "global far[0][0], 8796093022196 bytes past its end, in a gap", "load");
}

Test(watch, blocks_of_bytes_are_watched)
{
    expect_clean(watched_copy_struct, ARGS(.from = &in[122], .to = &out[122]));
    expect(watched_copy_struct, ARGS(.from = &in[123], .to = out), SIM_OUT_OF_BOUNDS, "struct", 1,
           "global, 0 bytes past the end of in", "not mapped");
    expect(watched_copy_struct, ARGS(.from = in, .to = &out[123]), SIM_OUT_OF_BOUNDS, "struct", 1,
           "global, 0 bytes past the end of out", "not mapped");
    expect_clean(watched_copy_by_name, ARGS(.from = &in[112], .to = &out[112]));
    expect(watched_copy_by_name, ARGS(.from = &in[113], .to = out), SIM_OUT_OF_BOUNDS, "memcpy", 1,
           "global, 0 bytes past the end of in", "memcpy");
    expect(watched_clear_by_name, ARGS(.to = &out[113]), SIM_OUT_OF_BOUNDS, "memset", 1,
           "global, 0 bytes past the end of out", "memset");
}

Test(watch, inlined_functions)
{
    expect_clean(watched_copy_16, ARGS(.from = &in[4], .to = &out[8]));
    expect(watched_copy_16, ARGS(.from = &in[5], .to = out), SIM_MISALIGNED, "load_16", 1, "global in + 20 bytes",
           "ld.global.v4");
    expect(watched_copy_16, ARGS(.from = in, .to = &out[2]), SIM_MISALIGNED, "store_16", 1, "global out + 8 bytes",
           "st.global.v4");
    expect(watched_load_in_function, ARGS(.from = &in[128], .to = out), SIM_OUT_OF_BOUNDS, "inner", 1,
           "global, 0 bytes past the end of in", "load_in_function");
}

Test(watch, constants_and_arguments)
{
    expect_clean(watched_read_constants, ARGS(.to = out, .n = 2, .values = {0, 0, 7, 0}));
    cr_assert(out[0] == 10);
    struct watched_args args = ARGS(.to = out, .n = 1);
    cr_assert(watched_read_variable(gpu, &args) == SIM_OUT_OF_BOUNDS);
    cr_assert(sim_last_report(gpu)->line == line_of("variable", 1));
    cr_assert(watched_write_constant(gpu, &args) == SIM_OUT_OF_BOUNDS);
    cr_assert(sim_last_report(gpu)->line == line_of("constant", 1));
    cr_assert(watched_add_atomically(gpu, &args) == SIM_BAD_OPERAND);
    cr_assert(sim_last_report(gpu)->line == line_of("atomic", 1));
}

Test(watch, races_are_exact_to_the_byte)
{
    expect_clean(watched_own_bytes, ARGS(.to = out, .n = 0));
    expect_clean(watched_own_bytes, ARGS(.to = out, .n = 2));
    struct watched_args args = ARGS(.to = out, .n = 1);
    const int rule = watched_own_bytes(gpu, &args);
    const int line = sim_last_report(gpu)->line;
    cr_assert(rule == SIM_RACE, "%s", sim_last_report(gpu)->text);
    cr_assert(line == line_of("bytes", 1) || line == line_of("bytes", 2), "%s", sim_last_report(gpu)->text);
}

/* More sets of readers than are kept: 256 readers in each of 6,000 intervals. */
Test(watch, sets_of_readers_are_swept)
{
    sim_map(gpu, "all", out, sizeof out, SIM_WRITE);
    expect_clean(watched_many_readers, ARGS(.to = out, .n = 6000));
    struct watched_args args = ARGS(.to = out, .n = 6000, .early = 1);
    cr_assert(watched_many_readers(gpu, &args) == SIM_RACE, "%s", sim_last_report(gpu)->text);
}

Test(watch, shared_memory_lies_as_badly_as_it_may)
{
    int moved = 0;
    float first[3] = {0};
    for (uint64_t seed = 0; seed < 64; seed++) {
        teardown();
        make_gpu(seed);
        sim_map(gpu, "out", out, sizeof out, SIM_WRITE);
        expect_clean(watched_place, ARGS(.to = out, .dynamic_shared = 512));
        const unsigned a = (unsigned)out[0], b = (unsigned)out[1], c = (unsigned)out[2];
        cr_assert(a % 32 == 16 && b % 2 == 1 && c % 256 == 128, "%u %u %u", a, b, c);
        cr_assert(a >= SIM_WINDOW_RESERVED + 16 && b >= a + 16 + 16 && c >= b + 64 + 16, "%u %u %u", a, b, c);
        if (seed == 0) memcpy(first, out, sizeof first);
        moved += memcmp(first, out, sizeof first) != 0;
    }
    cr_assert(moved > 32);
    teardown();
    make_gpu(1);
    sim_map(gpu, "out", out, sizeof out, SIM_WRITE);
    expect_clean(watched_place, ARGS(.to = out, .dynamic_shared = 227 * 1024 - 80));
    struct watched_args args = ARGS(.to = out, .dynamic_shared = 227 * 1024 - 79);
    cr_assert(watched_place(gpu, &args) == SIM_LIMIT);
}

Test(watch, blocks_of_a_launch_are_not_ordered)
{
    sim_map(gpu, "out", out, sizeof out / 2, SIM_READ | SIM_INITIALISED);
    expect_clean(watched_of_two_blocks, ARGS(.to = out, .n = 7));
    struct watched_args args = ARGS(.to = out, .n = 5);
    cr_assert(watched_of_two_blocks(gpu, &args) == SIM_RACE);
    const struct sim_report *r = sim_last_report(gpu);
    char other[96];
    snprintf(other, sizeof other, "lock (%u, 0, 0) %s it at", !r->block[0], r->block[0] ? "wrote" : "read");
    cr_assert(strstr(r->text, other) != NULL && strcmp(r->address, "global out + 20 bytes") == 0, "%s", r->text);
    cr_assert(r->line == line_of("block", 1 + (int)r->block[0]), "%s", r->text);
}

Test(watch, launches_of_clusters_are_ordered)
{
    for (int launch = 0; launch < 3; launch++) expect_clean(watched_of_clusters, ARGS(.to = out));
}

Test(watch, outputs_that_nobody_wrote)
{
    cr_assert(sim_check_written(gpu) == SIM_NOT_WRITTEN);
    cr_assert_str_eq(sim_last_report(gpu)->address, "global out + 0 bytes");
    expect_clean(watched_clear_by_name, ARGS(.to = out));
    cr_assert(sim_check_written(gpu) == SIM_NOT_WRITTEN);
    cr_assert_str_eq(sim_last_report(gpu)->address, "global out + 64 bytes");
    for (int i = 16; i < 128; i += 16) expect_clean(watched_clear_by_name, ARGS(.to = out + i));
    cr_assert(sim_check_written(gpu) == SIM_CLEAN);
}

/* async_test.c - see async_test.h. */
#include "kernels/sim/tests/async_test.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

_Alignas(1024) float async_in[ASYNC_FLOATS], async_out[ASYNC_FLOATS];

int async_flag;

void async_fill(void)
{
    async_flag = 0;
    for (int i = 0; i < ASYNC_FLOATS; ++i) {
        async_in[i] = (float)(i * 37 % 1009 - 500);
        async_out[i] = NAN;
    }
}

enum sim_rule async_run(struct sim_gpu *gpu, const struct async_case *c)
{
    const unsigned ctas = c->ctas ? c->ctas : 1;
    const struct sim_launch launch = {.kernel = c->name,
                                      .grid = {ctas, 1, 1},
                                      .block = {c->threads, 1, 1},
                                      .cluster = {ctas, 1, 1},
                                      .dynamic_shared = ASYNC_SHARED,
                                      .max_threads = c->threads,
                                      .min_blocks = 1,
                                      .body = c->body,
                                      .args = &c->variant,
                                      .args_bytes = sizeof c->variant};
    async_fill();
    sim_unmap_all(gpu);
    cr_assert(sim_map(gpu, "in", async_in, sizeof async_in, SIM_READ));
    cr_assert(sim_map(gpu, "out", async_out, sizeof async_out, SIM_READ | SIM_WRITE | SIM_REDUCE));
    return sim_launch(gpu, &launch);
}

void async_expect(const struct async_case *c, unsigned seeds, void (*check)(const struct async_case *c))
{
    struct sim_options options = {.generation = SIM_SM_90};
    struct sim_gpu *gpu = sim_gpu_create(&options);
    char text[sizeof(struct sim_report){0}.text];
    for (unsigned i = 0; i < 6 * seeds; ++i) {
        options.async = (enum sim_async_policy)(i / 2 % 3);
        options.seed = i / 6;
        options.workers = 1 + i % 2;
        sim_gpu_options(gpu, &options);
        const enum sim_rule found = async_run(gpu, c);
        const struct sim_report *report = sim_last_report(gpu);
        cr_assert_eq(found, c->rule, "%s %d, seed %u, policy %d: %s, not %s: %s", c->name, c->variant, i / 6,
                     options.async, sim_rule_name(found), sim_rule_name(c->rule), found ? report->text : "");
        if (found == SIM_CLEAN) {
            if (check) check(c);
            continue;
        }
        cr_assert_str_eq(report->instruction, c->instruction, "%s %d: %s", c->name, c->variant, report->text);
        cr_assert(strstr(report->text, c->words), "%s %d: no \"%s\" in: %s", c->name, c->variant, c->words,
                  report->text);
        if (i % 2 == 0) strcpy(text, report->text);
        else cr_assert_str_eq(report->text, text, "whatever the number of workers");
    }
    sim_gpu_destroy(gpu);
}

__attribute__((noinline)) float get(const void *address)
{
    float value;
    sim_watch_read(address, sizeof value, sizeof value, "load", SIM_SITE);
    memcpy(&value, address, sizeof value);
    return value;
}

__attribute__((noinline)) void put(void *address, float value)
{
    sim_watch_write(address, sizeof value, sizeof value, "store", SIM_SITE);
    memcpy(address, &value, sizeof value);
}

char *async_shared(void) { return sim_shared_dynamic(1024); }

bool is_first(void) { return sim_thread_index(0) == 0; }

void make_barrier(void *barrier, unsigned count)
{
    if (is_first()) {
        sim_mbarrier_init(barrier, count);
        sim_fence_mbarrier_init();
    }
    if (sim_cluster_size() == 1) {
        sim_sync_threads();
    } else {
        sim_cluster_arrive(false);
        sim_cluster_wait();
    }
}

void wait_for(const void *barrier, unsigned parity)
{
    while (!sim_mbarrier_try_wait(barrier, parity)) {
    }
}

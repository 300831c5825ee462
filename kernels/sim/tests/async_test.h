/* async_test.h - what the tests of asynchronous work share. Kernels are C functions that call what kernels/device/
 * calls, and name their ordinary accesses themselves: get and put. */
#ifndef ATTEST_SIM_ASYNC_TEST_H
#define ATTEST_SIM_ASYNC_TEST_H

#include "kernels/sim/calls.h"
#include "kernels/sim/machine.h"

enum { ASYNC_FLOATS = 16384 };

/* Global memory of every launch: `async_in` may be read; `async_out` read, written and added to. */
extern float async_in[ASYNC_FLOATS], async_out[ASYNC_FLOATS];

/* A kernel and one thing that is wrong with it; variant 0: nothing. */
struct async_case {
    const char *name;
    void (*body)(const void *variant); /* const int * */
    unsigned threads, ctas;            /* ctas: of one cluster */
    int variant;
    enum sim_rule rule;
    const char *instruction, *words;   /* of the report: the name, and what its text holds */
};

/* Before each run. */
void async_fill(void);
/* One run; the report is sim_last_report's. */
enum sim_rule async_run(struct sim_gpu *gpu, const struct async_case *c);
/* Every policy, one and two workers, `seeds` seeds: the finding, each time. Rule SIM_CLEAN: none; then `check`, unless
 * NULL, looks at async_out. */
void async_expect(const struct async_case *c, unsigned seeds, void (*check)(const struct async_case *c));

float get(const void *address);
void put(void *address, float value);

/* Shared memory of a launch: all that async_run asks for, at a multiple of 1024. */
enum { ASYNC_SHARED = 128 * 1024 };
char *async_shared(void);
/* An mbarrier, its place and its count, known to CTA, cluster and async proxy. */
void make_barrier(void *barrier, unsigned count);
/* try_wait until it is done. */
void wait_for(const void *barrier, unsigned parity);
bool is_first(void); /* thread of the CTA */
/* 0 before each run: an order of events that the simulated GPU does not know of. */
extern int async_flag;

#endif

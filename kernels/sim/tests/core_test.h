/* core_test.h - what the tests of scheduler, launches, collectives and barriers share. Kernels are C functions. */
#ifndef ATTEST_SIM_CORE_TEST_H
#define ATTEST_SIM_CORE_TEST_H

#include "kernels/sim/calls.h"
#include "kernels/sim/machine.h"

enum { NUM_SEEDS = 1000 };

/* A launch of one CTA of so many threads on an sm_90; `args` of args_bytes. */
struct sim_launch core_launch(const char *kernel, void (*body)(const void *args), unsigned threads, const void *args,
                              size_t args_bytes);
/* Options of seed number i: seed i, policies in turn, one or two workers. */
struct sim_options core_options(unsigned i);

/* Runs under several seeds, each of which must find exactly this, in a report whose text holds `words`. */
void expect_finding(const struct sim_launch *launch, enum sim_rule rule, const char *instruction, const char *words);
/* One run, with these options. */
void expect_clean(const struct sim_launch *launch, const struct sim_options *options);

#endif

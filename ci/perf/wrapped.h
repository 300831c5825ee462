/* wrapped.h - what a program asks of the C library, and how its parallel loops share their work. The linker sends the
 * program's own calls here (WRAPPED of wrapped.bzl); those inside of shared libraries it does not see. */
#ifndef ATTEST_CI_PERF_WRAPPED_H
#define ATTEST_CI_PERF_WRAPPED_H

/* Calls count in between. */
void wrapped_begin(void);
void wrapped_end(void);

/* Lines of a count and its value: calls and bytes of each routine that was called, threads that worked, iterations of
 * the busiest one. */
void wrapped_print(void);

#endif

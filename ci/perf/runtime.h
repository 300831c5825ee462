/* runtime.h - a stand-in for the CUDA runtime and driver that counts what the library's launch path asks of them. The
 * linker sends the library's calls there (RUNTIME of wrapped.bzl); nothing is launched, and everything succeeds. A
 * function that is not among them is the real one, which refuses without a GPU: a launch that needs it fails. */
#ifndef ATTEST_CI_PERF_RUNTIME_H
#define ATTEST_CI_PERF_RUNTIME_H

/* Forgets what was counted so far. */
void runtime_reset(void);
/* Prints `before`, a function's name, and how often it was called since, for each that was. */
void runtime_print(const char *before);

#endif

/* error.h - a thread's last error: the status of the call and one sentence. */
#ifndef ATTEST_LIB_ERROR_H
#define ATTEST_LIB_ERROR_H

#include <stdbool.h>

#include "lib/attest.h"

/* Keeps status and sentence; returns false, so that a chain of checks ends here. */
__attribute__((format(printf, 2, 3))) bool attest_refuse(enum attest_status status, const char *format, ...);

/* The status that the last attest_refuse() of this thread was given. */
enum attest_status attest_refused_status(void);

#endif

/* audit.h - the audit of files: what implementations returned, judged number by number. */
#ifndef ATTEST_AUDIT_AUDIT_H
#define ATTEST_AUDIT_AUDIT_H

#include "reference/audit/options.h"

/* Judges options->results and writes the reports. Exit status. */
int audit_files(const struct options *options);

#endif

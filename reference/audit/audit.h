/* audit.h - the audit of files: what implementations returned, judged number by number. */
#ifndef ATTEST_AUDIT_AUDIT_H
#define ATTEST_AUDIT_AUDIT_H

#include "reference/audit/options.h"

/* Judges options->results and writes the reports; sorts the paths of the options first. Exit status. */
int audit_files(struct options *options);

#endif

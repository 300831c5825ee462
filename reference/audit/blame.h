/* blame.h - which input makes a bound say nothing, and what would help. */
#ifndef ATTEST_AUDIT_BLAME_H
#define ATTEST_AUDIT_BLAME_H

#include "reference/audit/judgement.h"

/* A sentence on a tensor that is OVERFLOW or VACUOUS, to be freed; NULL for other verdicts. */
char *blame(const struct audit *audit, const struct judgement *j, enum ref_tensor which);

#endif

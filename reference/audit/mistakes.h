/* mistakes.h - which known mistake would explain results that fail. A sentence for the reader, never a verdict. */
#ifndef ATTEST_AUDIT_MISTAKES_H
#define ATTEST_AUDIT_MISTAKES_H

#include "reference/audit/judgement.h"

/* Of an answer with a tensor that is FAIL by its bound, judges 32 rows around the worst number (small problems, and
 * gradients of not too large ones, whole) as if the problem were another, and notes the first one under which they pass
 * for the forward and for the backward pass each. Without such a tensor it computes nothing. */
void mistakes_explain(const struct audit *audit, struct judgement *j);

#endif

/* settings.h - what is said about the problem, by options or by the inputs' metadata. */
#ifndef ATTEST_AUDIT_SETTINGS_H
#define ATTEST_AUDIT_SETTINGS_H

#include "reference/audit/case.h"

/* The text of a setting, and in *origin where it comes from ("option", "metadata"); NULL if nobody said. */
const char *setting_text(const struct audit_case *c, enum setting which, const char **origin);

/* How many heads there are, where it is stated, which the layouts of (hd) need. NULL, or one sentence. */
char *settings_read_heads(struct audit_case *c);

/* Fill the problem, whose shapes are known, with the other settings. NULL, or one sentence. */
char *settings_read(struct audit_case *c);

#endif

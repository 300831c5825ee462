/* settings.h - what is said about the problem, by options or by the inputs' metadata. */
#ifndef ATTEST_AUDIT_SETTINGS_H
#define ATTEST_AUDIT_SETTINGS_H

#include "reference/audit/case.h"

/* The text of a setting, and in *origin where it comes from ("--scale", "metadata"); NULL if nobody said. */
const char *setting_text(const struct options *options, const struct audit_case *c, enum setting which,
                         const char **origin);

/* Fill the problem, whose shapes are known, with the settings. NULL, or one sentence. */
char *settings_read(const struct options *options, struct audit_case *c);

#endif

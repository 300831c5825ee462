/* pictures.h - what the page draws: errors in units of the bound, by row and head and as a histogram. */
#ifndef ATTEST_AUDIT_PICTURES_H
#define ATTEST_AUDIT_PICTURES_H

#include <jansson.h>

#include "reference/audit/judgement.h"

/* {"heat": {...}, "histogram": {...}} of one judged tensor of `j`, by the recipe whose verdict counts. */
json_t *picture_json(const struct audit *audit, const struct judgement *j, enum ref_tensor which);

#endif

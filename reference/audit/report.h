/* report.h - the finished audit, for people and for programs. */
#ifndef ATTEST_AUDIT_REPORT_H
#define ATTEST_AUDIT_REPORT_H

#include <jansson.h>
#include <stdio.h>

#include "reference/audit/judgement.h"

void report_table(const struct audit *audit, FILE *out);

/* The whole audit. Numbers that are not finite are the strings "nan", "inf", "-inf". Ends the program
 * where memory runs out. */
json_t *report_json(const struct audit *audit);

/* Each writes one file; false with errno set where that fails. */
bool report_write_json(const struct audit *audit, const char *path);
bool report_write_junit(const struct audit *audit, const char *path);
bool report_write_html(const struct audit *audit, const char *path);

/* One sentence on why a tensor does not pass, to be freed: "largest error is 3.1 bounds at [0,5,0,7] ...". */
char *report_message(const struct audit *audit, const struct judged_tensor *t);

char *report_verdict(const struct judged_tensor *t); /* "PASS flash, not fp32", to be freed */

/* What its errors look like, or which rows carry a share near 1, to be freed; NULL where there is nothing to say. */
char *report_remark(const struct ref_report *r, enum ref_tensor tensor);

json_t *report_number(double x);
json_t *report_string(const char *text); /* what is not UTF-8 becomes question marks */

#endif

/* report_junit.c - JUnit XML: a test suite for each implementation, a test case for each tensor. */
#include <stdlib.h>

#include "reference/audit/report.h"

/* What XML 1.0 does not allow at all (control characters) becomes a question mark. */
static void print_escaped(const char *text, FILE *out)
{
    json_t *utf8 = report_string(text);
    for (const char *c = json_string_value(utf8); *c != '\0'; ++c) {
        switch (*c) {
        case '<': fputs("&lt;", out); break;
        case '>': fputs("&gt;", out); break;
        case '&': fputs("&amp;", out); break;
        case '"': fputs("&quot;", out); break;
        default: fputc(*c >= 0 && *c < 0x20 ? '?' : *c, out);
        }
    }
    json_decref(utf8);
}

static void print_case(const char *suite, const char *name, enum verdict verdict, const char *message, FILE *out)
{
    fputs("    <testcase classname=\"", out);
    print_escaped(suite, out);
    fprintf(out, "\" name=\"%s\"", name);
    if (verdict == VERDICT_PASS) {
        fputs("/>\n", out);
        return;
    }
    const char *element = verdict == VERDICT_ERROR ? "error" : verdict == VERDICT_UNSUPPORTED ? "skipped" : "failure";
    fprintf(out, ">\n      <%s message=\"", element);
    print_escaped(message, out);
    if (verdict != VERDICT_UNSUPPORTED) fprintf(out, "\" type=\"%s", verdict_names[verdict]);
    fprintf(out, "\"/>\n    </testcase>\n");
}

/* What a verdict rests on, such as a convention that was inferred. */
static void print_notes(const struct notes *notes, FILE *out)
{
    if (notes->count == 0) return;
    fputs("    <system-out>", out);
    for (int i = 0; i < notes->count; ++i) {
        print_escaped(notes->text[i], out);
        fputc('\n', out);
    }
    fputs("</system-out>\n", out);
}

/* An implementation of which nothing could be read still has one case: reading it. */
static void print_suite(const struct audit *audit, int i, FILE *out)
{
    const struct answer *a = &audit->answers[i];
    const struct judged_tensor *tensors = audit->judgements[i].tensors;
    int tests = 0, failures = 0, errors = 0, skipped = 0;
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        if (!tensors[t].present) continue;
        ++tests;
        errors += tensors[t].verdict == VERDICT_ERROR;
        skipped += tensors[t].verdict == VERDICT_UNSUPPORTED;
        failures += tensors[t].verdict >= VERDICT_FAIL && tensors[t].verdict <= VERDICT_VACUOUS;
    }
    const bool unread = tests == 0;
    fputs("  <testsuite name=\"", out);
    print_escaped(a->name, out);
    fprintf(out, "\" tests=\"%d\" failures=\"%d\" errors=\"%d\" skipped=\"%d\">\n", tests + unread, failures,
            errors + unread, skipped);
    if (unread) print_case(a->name, "read", VERDICT_ERROR, a->error, out);
    for (int t = 0; t < CASE_NUM_TENSORS; ++t) {
        if (!tensors[t].present) continue;
        char *message = report_message(audit, &tensors[t]);
        print_case(a->name, ref_tensor_names[t], tensors[t].verdict, message, out);
        free(message);
    }
    print_notes(&audit->judgements[i].notes, out);
    fputs("  </testsuite>\n", out);
}

bool report_write_junit(const struct audit *audit, const char *path)
{
    FILE *out = fopen(path, "w");
    if (out == NULL) return false;
    fputs("<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<testsuites name=\"attest audit\">\n", out);
    for (int i = 0; i < audit->num_answers; ++i) print_suite(audit, i, out);
    fputs("</testsuites>\n", out);
    const bool written = ferror(out) == 0;
    return fclose(out) == 0 && written;
}

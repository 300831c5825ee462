/* criterion_main.c - main() of every Criterion test under Bazel.
 *
 * Bazel says by environment where the XML report goes (XML_OUTPUT_FILE), which tests were asked for
 * (TESTBRIDGE_TEST_ONLY) and which shard this is (TEST_TOTAL_SHARDS, TEST_SHARD_INDEX,
 * TEST_SHARD_STATUS_FILE). A run in which no test ran is a failure, not a pass. */
#include <stdio.h>
#include <stdlib.h>

#include <criterion/criterion.h>
#include <criterion/hooks.h>
#include <criterion/internal/ordered-set.h>
#include <criterion/options.h>
#include <criterion/output.h>

enum { EXIT_NO_TESTS = 2, EXIT_NOTHING_RAN = 3 };

static size_t tests_run;

ReportHook(POST_ALL)(struct criterion_global_stats *stats)
{
    tests_run = stats->nb_tests - stats->tests_skipped;
}

static const char *environment(const char *name)
{
    const char *value = getenv(name);
    return value != NULL && value[0] != '\0' ? value : NULL;
}

/* Disables the tests of other shards. Returns how many stay; -1 for a malformed request or where there
 * are no tests at all, as when the linker dropped them. */
static long keep_own_shard(struct criterion_test_set *set)
{
    const char *total_text = environment("TEST_TOTAL_SHARDS"), *index_text = environment("TEST_SHARD_INDEX");
    const char *status_file = environment("TEST_SHARD_STATUS_FILE");
    const long total = total_text ? strtol(total_text, NULL, 10) : 1;
    const long index = index_text ? strtol(index_text, NULL, 10) : 0;
    if (total < 1 || index < 0 || index >= total) return -1;
    if (status_file != NULL) { /* its existence tells Bazel that sharding is understood */
        FILE *f = fopen(status_file, "w");
        if (f == NULL || fclose(f) != 0) return -1;
    }
    long ordinal = 0, kept = 0;
    FOREACH_SET(struct criterion_suite_set *suite, set->suites) {
        FOREACH_SET(struct criterion_test *test, suite->tests) {
            if (ordinal++ % total == index) ++kept;
            else test->data->disabled = true;
        }
    }
    return ordinal > 0 ? kept : -1;
}

int main(int argc, char *argv[])
{
    struct criterion_test_set *set = criterion_initialize();
    int exit_status = 0;
    if (environment("TESTBRIDGE_TEST_ONLY") != NULL) criterion_options.pattern = getenv("TESTBRIDGE_TEST_ONLY");
    if (criterion_handle_args(argc, argv, true)) {
        const long kept = keep_own_shard(set);
        if (environment("XML_OUTPUT_FILE") != NULL) criterion_add_output("xml", getenv("XML_OUTPUT_FILE"));
        if (kept < 0) exit_status = EXIT_NO_TESTS;
        else if (!criterion_run_all_tests(set)) exit_status = 1;
        else if (tests_run == 0 && kept > 0) exit_status = EXIT_NOTHING_RAN;
    }
    criterion_finalize(set);
    return exit_status;
}

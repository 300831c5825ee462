/* soak.c - the property tests for as long as one likes, with fresh seeds.
 *
 *     bazel run //proptests:soak -- --minutes 60
 *     bazel run //proptests:soak -- --replay 'v1;property=...;implementation=...;choices=...'
 *
 * Exit status 1 if a case failed: its replay line is printed, to be kept in corpus.txt. */
#include <argp.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proptests/engine/campaign.h"

static const struct argp_option options[] = {
    {"minutes", 'm', "N", 0, "how long (1)", 0},
    {"seed", 's', "N", 0, "first seed (the time)", 0},
    {"property", 'p', "NAME", 0, "only this one", 0},
    {"implementation", 'i', "NAME", 0, "only this one", 0},
    {"replay", 'r', "LINE", 0, "this case alone", 0},
    {0},
};

static struct {
    double minutes;
    uint64_t seed;
    const char *replay, *property, *implementation;
} settings = {.minutes = 1};

static error_t parse(int key, char *argument, struct argp_state *state)
{
    char *end = argument;
    switch (key) {
    case 'm': settings.minutes = strtod(argument, &end); break;
    case 's': settings.seed = strtoull(argument, &end, 0); break;
    case 'p':
        settings.property = argument;
        if (property_named(argument) == NULL) argp_error(state, "there is no property '%s'", argument);
        return 0;
    case 'i':
        settings.implementation = argument;
        if (campaign_implementation_named(argument) == NULL)
            argp_error(state, "there is no implementation '%s'", argument);
        return 0;
    case 'r': settings.replay = argument; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
    if (end == argument || *end != '\0' || !(settings.minutes >= 0))
        argp_error(state, "'%s' is not a number of 0 or more", argument);
    return 0;
}

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

int main(int argc, char **argv)
{
    enum { ROUND = 500 };
    const struct argp argp = {.options = options, .parser = parse, .doc = "Property tests with fresh seeds."};
    settings.seed = (uint64_t)time(NULL);
    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    if (settings.replay != NULL) {
        const bool passed = campaign_replay(settings.replay, stdout);
        puts(passed ? "passes" : "FAILS");
        return !passed;
    }
    static struct campaign_result result;
    const double start = seconds();
    printf("seed %" PRIu64 "\n", settings.seed);
    do {
        for (int backward = 0; backward < 2; ++backward) {
            const struct campaign campaign = {.backward = backward, .cases = ROUND, .seed = settings.seed,
                                              .property = settings.property, .implementation = settings.implementation};
            campaign_run(&campaign, &result, stdout);
        }
        ++settings.seed;
        printf("%6.1f min: %" PRId64 " cases, %" PRId64 " failures\n", (seconds() - start) / 60, result.cases,
               result.failures);
        fflush(stdout);
    } while (seconds() - start < 60 * settings.minutes);
    return result.failures > 0 || result.cases == 0;
}

/* engine_test.c - the engine on properties that are wrong in a known way. */
#include <stdio.h>

#include <criterion/criterion.h>

#include "proptests/check.h"

enum { CASES = 2000, SEED = 7 };

/* Smallest sequence of a planted property that fails; the class must be `failure`. */
static struct sequence smallest(trial_function *trial, int failure)
{
    struct search_result result;
    search(trial, NULL, SEED, 0, CASES, &result);
    cr_assert_eq(result.failure, failure, "found class %d", result.failure);
    cr_assert_not(sequence_less(&result.first, &result.smallest));
    struct choices again; /* it fails when replayed, and nothing is left to trim */
    choices_start(&again, &result.smallest, 0);
    cr_assert_eq(trial(&again, NULL), failure);
    cr_assert(result.smallest.count == 0 || result.smallest.at[result.smallest.count - 1] != 0);
    return result.smallest;
}

static void expect(const struct sequence *s, int count, const uint64_t *values)
{
    cr_assert_eq(s->count, count, "%d choices, not %d", s->count, count);
    for (int i = 0; i < count; ++i) cr_assert_eq(s->at[i], values[i], "choice %d is %lu", i, (unsigned long)s->at[i]);
}
#define EXPECT(s, ...)                                                                                                 \
    expect(s, (int)(sizeof(uint64_t[]){__VA_ARGS__} / sizeof(uint64_t)), (const uint64_t[]){__VA_ARGS__})

static int at_least_1000(struct choices *c, void *context)
{
    (void)context;
    return choose(c, -50, 1000000) >= 1000;
}

Test(engine, shrinks_a_number_to_the_border)
{
    const struct sequence s = smallest(at_least_1000, 1);
    EXPECT(&s, 1050);
}

static int whole_range(struct choices *c, void *context)
{
    (void)context;
    return choose(c, INT64_MIN, INT64_MAX) > 3;
}

Test(engine, knows_the_whole_range_of_integers)
{
    const struct sequence s = smallest(whole_range, 1);
    EXPECT(&s, (UINT64_C(1) << 63) + 4);
}

/* A list: its sum is over 100. The known minimum has one element. */
static int list_sum(struct choices *c, void *context)
{
    (void)context;
    int64_t sum = 0;
    for (int n = 0; n < 20; ++n) {
        span_begin(c);
        const bool more = choose_flag(c, 0.9);
        if (more) sum += choose(c, 0, 200);
        span_end(c);
        if (!more) break;
    }
    return sum > 100;
}

Test(engine, deletes_spans)
{
    const struct sequence s = smallest(list_sum, 1);
    EXPECT(&s, 1, 101);
}

/* A count, that many elements, and a tail that must keep its value though elements before it go. */
static int counted_list(struct choices *c, void *context)
{
    (void)context;
    bool found = false;
    const int64_t count = choose(c, 0, 12);
    for (int64_t n = 0; n < count; ++n) found |= choose(c, 0, 9) == 7;
    return found && choose(c, 0, 1000) >= 500;
}

Test(engine, deletes_what_a_lowered_count_leaves_over)
{
    const struct sequence s = smallest(counted_list, 1);
    EXPECT(&s, 1, 7, 500);
}

static int equal_pair(struct choices *c, void *context)
{
    (void)context;
    const int64_t a = choose(c, 0, 300);
    const int64_t b = choose_proposed(c, 0, 300, choices_random(c) % 2 ? a : 0);
    return a == b && a > 5;
}

Test(engine, lowers_pairs_together)
{
    const struct sequence s = smallest(equal_pair, 1);
    EXPECT(&s, 6, 6);
}

/* Class 2 hides behind smaller class 1. */
static int two_bugs(struct choices *c, void *context)
{
    (void)context;
    const int64_t x = choose(c, 0, 1000000);
    return x > 900000 ? 2 : x % 2 == 1 && x < 1000 ? 1 : TRIAL_PASSES;
}

Test(engine, keeps_the_failure_class)
{
    const struct sequence s = smallest(two_bugs, 2);
    EXPECT(&s, 900001);
}

static int always(struct choices *c, void *context)
{
    (void)context;
    for (int i = 0; i < 30; ++i) choose(c, 0, 1 << 20);
    return 1;
}

Test(engine, the_simplest_case_is_the_empty_sequence)
{
    cr_assert_eq(smallest(always, 1).count, 0);
}

static int never(struct choices *c, void *context)
{
    (void)context;
    return choose(c, 0, 9) == 4 ? TRIAL_DISCARDED : TRIAL_PASSES;
}

Test(engine, counts_cases_and_discards)
{
    struct search_result result;
    search(never, NULL, SEED, 0, CASES, &result);
    cr_assert_eq(result.failure, TRIAL_PASSES);
    cr_assert_eq(result.cases + result.discarded, CASES);
    cr_assert_gt(result.discarded, CASES / 20);
    cr_assert_lt(result.discarded, CASES / 5);
}

static int record(struct choices *c, void *context)
{
    *(int64_t *)context = choose(c, 0, INT64_MAX);
    return TRIAL_PASSES;
}

Test(engine, a_case_depends_on_seed_and_number_alone)
{
    struct search_result result;
    int64_t alone, last, other;
    search(record, &alone, SEED, 9, 1, &result);
    search(record, &last, SEED, 0, 10, &result);
    search(record, &other, SEED + 1, 9, 1, &result);
    cr_assert_eq(alone, last);
    cr_assert_neq(alone, other);
}

static int out_of_range(struct choices *c, void *context)
{
    *(int64_t *)context = choose(c, 10, 20);
    return TRIAL_PASSES;
}

Test(engine, clamps_what_is_replayed)
{
    int64_t value;
    struct choices c;
    const struct sequence huge = {1, {99}}, none = {0, {0}};
    choices_start(&c, &huge, 0);
    out_of_range(&c, &value);
    cr_assert_eq(value, 20);
    choices_start(&c, &none, 0);
    out_of_range(&c, &value);
    cr_assert_eq(value, 10);
}

Test(engine, replay_lines_come_back)
{
    char text[CHECK_MAX_LINE], why[160];
    for (int n = 0; n < 200; ++n) {
        struct replay_line line = {.property = "some_property", .implementation = "flash"}, back;
        line.choices.count = n % 3 == 0 ? 0 : n == 100 ? CHECK_MAX_CHOICES : n;
        for (int i = 0; i < line.choices.count; ++i)
            line.choices.at[i] = check_mix((uint64_t)(n * 1000 + i)) >> (i % 64);
        if (line.choices.count) line.choices.at[line.choices.count - 1] |= 1;
        replay_format(&line, text);
        cr_assert(replay_parse(text, &back, why), "%s: %s", why, text);
        cr_assert_str_eq(back.property, line.property);
        cr_assert_str_eq(back.implementation, line.implementation);
        cr_assert_eq(back.choices.count, line.choices.count);
        for (int i = 0; i < line.choices.count; ++i) cr_assert_eq(back.choices.at[i], line.choices.at[i]);
    }
}

Test(engine, malformed_replay_lines_are_refused)
{
    static const char *const lines[] = {
        "", "v1", "v2;property=a;implementation=b;choices=1", "v1;property=;implementation=b;choices=1",
        "v1;property=a;choices=1", "v1;property=a;implementation=b", "v1;property=a;implementation=b;choices=1..2",
        "v1;property=a;implementation=b;choices=1.", "v1;property=a;implementation=b;choices=.1",
        "v1;property=a;implementation=b;choices=g", "v1;property=a;implementation=b;choices=1 ",
        "v1;property=a;implementation=b;choices=1.0", "v1;property=a;implementation=b;choices=00000000000000001",
        "v1;property=0123456789012345678901234567890123456789012345678901234567890123456789;implementation=b;choices=1",
    };
    for (size_t n = 0; n < sizeof lines / sizeof *lines; ++n) {
        struct replay_line line;
        char why[160] = "";
        cr_assert_not(replay_parse(lines[n], &line, why), "accepted: %s", lines[n]);
        cr_assert_neq(why[0], '\0');
    }
    char long_line[8 * CHECK_MAX_CHOICES] = "v1;property=a;implementation=b;choices=1", why[160];
    for (int i = 0; i < CHECK_MAX_CHOICES; ++i) strcat(long_line, ".1");
    struct replay_line line;
    cr_assert_not(replay_parse(long_line, &line, why));
}

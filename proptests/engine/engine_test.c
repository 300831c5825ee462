/* engine_test.c - the engine on properties that are wrong in a known way. */
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/engine/campaign.h"

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

/* A list of elements that must stay whole: five equal choices each. One of 7 comes before one of 9. */
static int whole_elements(struct choices *c, void *context)
{
    (void)context;
    bool seven = false, nine_after_seven = false;
    for (int n = 0; n < 12; ++n) {
        span_begin(c);
        const bool more = choose_flag(c, 0.9);
        const int64_t first = more ? choose(c, 0, 9) : 0;
        for (int i = 0; more && i < 4; ++i)
            if (choose_proposed(c, 0, 9, c->made.count ? (int64_t)c->made.at[c->made.count - 1] : 0) != first)
                return TRIAL_PASSES;
        span_end(c);
        if (!more) break;
        nine_after_seven = nine_after_seven || (seven && first == 9);
        seven = seven || first == 7;
    }
    return nine_after_seven;
}

Test(engine, deletes_spans)
{
    const struct sequence s = smallest(whole_elements, 1);
    EXPECT(&s, 1, 7, 7, 7, 7, 7, 1, 9, 9, 9, 9, 9);
}

/* Numbers up to a zero, no spans; three neighbours 3 5 3. */
static int neighbours(struct choices *c, void *context)
{
    (void)context;
    int64_t before = 0, last = 0;
    for (int n = 0; n < 40; ++n) {
        const int64_t x = choose(c, 0, 6);
        if (x == 0) break;
        if (before == 3 && last == 5 && x == 3) return 1;
        before = last, last = x;
    }
    return TRIAL_PASSES;
}

Test(engine, deletes_what_is_in_no_span)
{
    const struct sequence s = smallest(neighbours, 1);
    EXPECT(&s, 3, 5, 3);
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

/* Class 1 is everywhere below class 2. */
static int two_bugs(struct choices *c, void *context)
{
    (void)context;
    const int64_t x = choose(c, 0, 1000000);
    return x > 900000 ? 2 : x > 100 ? 1 : TRIAL_PASSES;
}

Test(engine, keeps_the_failure_class)
{
    struct sequence s = {1, {950000}};
    shrink(two_bugs, NULL, 2, &s, CASES);
    EXPECT(&s, 900001);
    shrink(two_bugs, NULL, 1, &s, CASES); /* not its class: left as it is */
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

/* ---- coverage ---- */

/* A run in which every pair of features met just often enough. */
static void fill(struct campaign_result *r)
{
    *r = (struct campaign_result){.cases = 100, .work_bits = {[CAMPAIGN_LEAST_WORK_BITS] = 51, [2] = 49}};
    for (int a = 0; a < NUM_FEATURES; ++a)
        for (int b = 0; b < NUM_FEATURES; ++b) r->feature_pairs[a][b] = CAMPAIGN_LEAST_PAIRS;
}

Test(coverage, too_little_of_it_fails)
{
    static struct campaign_result r;
    const struct campaign campaign = {.backward = true, .cases = 100};
    fill(&r);
    cr_assert(campaign_report(&campaign, &r, stderr));
    r.feature_pairs[F_FP16][F_BF16] = 0; /* cannot meet */
    cr_assert(campaign_report(&campaign, &r, stderr));
    r.feature_pairs[F_MASK][F_DBIAS] -= 1;
    cr_assert_not(campaign_report(&campaign, &r, stderr));
    fill(&r);
    r.cases = 99;
    cr_assert_not(campaign_report(&campaign, &r, stderr));
    fill(&r);
    r.work_bits[CAMPAIGN_LEAST_WORK_BITS] -= 2, r.work_bits[2] += 2;
    cr_assert_not(campaign_report(&campaign, &r, stderr));
    const struct campaign nothing = {.backward = true};
    cr_assert_not(campaign_report(&nothing, &(struct campaign_result){0}, stderr));
}

Test(coverage, unknown_and_malformed_lines_fail)
{
    cr_assert(campaign_replay("v1;property=merge_laws;implementation=library;choices=", stderr));
    cr_assert_not(campaign_replay("v1;property=no_such;implementation=library;choices=", stderr));
    cr_assert_not(campaign_replay("v1;property=merge_laws;implementation=no_such;choices=", stderr));
    cr_assert_not(campaign_replay("v0", stderr));
    int replayed;
    cr_assert_eq(campaign_corpus("no such file", false, &replayed, stderr), -1);
}

/* ---- memory ---- */

static enum attest_status spoils_q(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_forward_args *a, struct computed *how)
{
    if (ref_rows_q(p) > 0) ((unsigned char *)(uintptr_t)a->q)[0] ^= 1;
    return library_implementation.forward(self, p, a, how);
}

static enum attest_status writes_before_lse(const struct implementation *self, const struct attest_problem *p,
                                            const struct attest_forward_args *a, struct computed *how)
{
    const enum attest_status status = library_implementation.forward(self, p, a, how);
    ((float *)a->lse)[-1] = 0;
    return status;
}

Test(memory, changed_inputs_and_margins_are_seen)
{
    static struct check_result r;
    struct implementation bad = library_implementation;
    bad.forward = spoils_q;
    cr_assert_not(check_run(property_named("forward_within_bound"), &bad, SEED, 0, 50, &r));
    cr_assert_eq(r.failure, FAILS_MEMORY, "%s", r.message);
    bad.forward = writes_before_lse;
    cr_assert_not(check_run(property_named("poison_is_not_felt_backward"), &bad, SEED, 0, 50, &r));
    cr_assert_eq(r.failure, FAILS_MEMORY, "%s", r.message);
}

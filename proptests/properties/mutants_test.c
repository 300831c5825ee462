/* mutants_test.c - the tests are tested: every mutant fails a property, every property rejects a mutant.
 *
 * Prints the kill table: who was rejected by which property after how many cases, and the smallest failing
 * case that shrinking found. */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/properties/mutants.h"
#include "proptests/properties/properties.h"

enum { SEED = 20, MAX_MUTANTS = 64, MAX_PROPERTIES = 64 };

/* Small problems show the same bugs, and many more of them can be drawn in the time. */
enum { WORK = 1 << 13, CASES = 50, MOST_CASES = 50 * 64 };

/* What one property saw of one mutant. */
struct kill {
    int64_t failing_case;                 /* the first; 0: it noticed nothing */
    int64_t seqlen_q, seqlen_k, head_dim; /* of the smallest */
};

static struct kill kills[MAX_MUTANTS][MAX_PROPERTIES];

static struct property small_cases(const struct property *property)
{
    struct property small = *property;
    small.request.max_work = WORK;
    return small;
}

/* A mutant of backward alone passes properties of forward: they need not be asked. */
static bool is_asked(const struct property *property, const struct mutant *m)
{
    return property->request.backward || m->passes != MUTATES_BACKWARD;
}

static int64_t size_of(const struct check_result *r) { return r->seqlen_q * r->seqlen_k + r->seqlen_q + r->seqlen_k; }

static void note_kill(struct kill *k, int64_t first_case, const struct check_result *r)
{
    const int64_t size = k->seqlen_q * k->seqlen_k + k->seqlen_q + k->seqlen_k;
    if (k->failing_case && size <= size_of(r)) return;
    const int64_t failing_case = k->failing_case ? k->failing_case : first_case + r->failing_case;
    *k = (struct kill){failing_case, r->seqlen_q, r->seqlen_k, r->head_dim};
}

/* Asks every property for `cases` cases; keeps the smallest failing one. */
static void ask_properties(int index, int64_t first_case, int64_t cases, struct check_result *smallest)
{
    static struct check_result r;
    for (int p = 0; properties[p].name; ++p) {
        const struct property property = small_cases(&properties[p]);
        if (!is_asked(&property, &mutants[index])) continue;
        if (check_run(&property, &mutants[index].implementation, SEED, first_case, cases, &r)) continue;
        if (r.failure == 0) continue; /* all discarded */
        cr_expect_neq(r.failure, FAILS_ORACLE, "%s: %s\n%s", property.name, r.message, r.line);
        if (r.failure == FAILS_ORACLE) continue;
        note_kill(&kills[index][p], first_case, &r);
        if (!smallest->failure || size_of(&r) < size_of(smallest)) *smallest = r;
    }
}

static void print_row(int index, const struct check_result *smallest)
{
    const struct mutant *m = &mutants[index];
    printf("%-22s row %2d  %-34s %s\n", m->implementation.name, m->row, m->museum, m->bug);
    for (int p = 0; properties[p].name; ++p) {
        const struct kill *k = &kills[index][p];
        if (!k->failing_case) continue;
        printf("    %-28s case %-5" PRId64 " shrunk to %" PRId64 " x %" PRId64 " x %" PRId64 "\n", properties[p].name,
               k->failing_case, k->seqlen_q, k->seqlen_k, k->head_dim);
    }
    printf("    smallest: %" PRId64 " x %" PRId64 " x %" PRId64 ": %s\n    %s\n", smallest->seqlen_q,
           smallest->seqlen_k, smallest->head_dim, smallest->message, smallest->line);
    fflush(stdout);
}

/* Searches on with fresh cases until a property has noticed, with a small case. */
static bool reject(int index)
{
    static struct check_result smallest;
    const struct mutant *m = &mutants[index];
    bool is_small = false;
    memset(&smallest, 0, sizeof smallest);
    for (int64_t first = 0, cases = CASES; !is_small && first < MOST_CASES; first += cases, cases *= 2) {
        ask_properties(index, first, cases, &smallest);
        is_small = smallest.failure && smallest.seqlen_q <= m->seqlen_q && smallest.seqlen_k <= m->seqlen_k;
    }
    if (smallest.failure) print_row(index, &smallest);
    if (!smallest.failure) printf("%-22s SURVIVES\n", m->implementation.name);
    if (smallest.failure && !is_small)
        printf("    NOT SMALL: at most %" PRId64 " x %" PRId64 " were expected\n", m->seqlen_q, m->seqlen_k);
    return is_small;
}

static bool kills_something(int p)
{
    for (int m = 0; mutants[m].implementation.name; ++m)
        if (kills[m][p].failing_case) return true;
    return false;
}

Test(mutants, every_mutant_is_rejected_and_every_property_rejects_one)
{
    int rejected = 0, count = 0, rows = 0;
    for (; mutants[count].implementation.name; ++count) {
        cr_assert_lt(count, MAX_MUTANTS);
        rejected += reject(count);
        rows += mutants[count].row > 0;
    }
    int idle = 0;
    for (int p = 0; properties[p].name; ++p) {
        cr_assert_lt(p, MAX_PROPERTIES);
        if (kills_something(p)) continue;
        printf("%s rejects no mutant\n", properties[p].name);
        ++idle;
    }
    printf("%d of %d mutants rejected, %d of them shipped bugs of the list\n", rejected, count, rows);
    cr_expect_eq(rejected, count);
    cr_expect_eq(idle, 0, "%d properties reject no mutant", idle);
    cr_expect_geq(count, 25);
}

Test(mutants, what_they_are_mutants_of_passes)
{
    static struct check_result r;
    for (const struct implementation *e = emulations; e->name; ++e) {
        for (const struct property *p = properties; p->name; ++p) {
            const struct property property = small_cases(p);
            cr_expect(check_run(&property, e, SEED, 0, CASES, &r), "%s, %s: %s\n%s", e->name, p->name, r.message,
                      r.line);
        }
    }
}

/* --- What must not pass for a pass ----------------------------------------------------------------------- */

static struct check_result result;

static int discard(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    (void)c, (void)self, (void)context;
    return TRIAL_DISCARDED;
}

Test(failures, an_empty_run_is_one)
{
    cr_assert_not(check_run(&properties[0], &emulations[0], SEED, 0, 0, &result));
    cr_assert_eq(result.cases, 0);
}

Test(failures, a_generator_of_nothing_but_discards_is_one)
{
    struct property property = small_cases(&properties[0]);
    property.check = discard;
    cr_assert_not(check_run(&property, &emulations[0], SEED, 0, CASES, &result));
    cr_assert_eq(result.discarded, CASES);
}

static enum attest_status refuse(const struct implementation *self, const struct attest_problem *p,
                                 const struct attest_forward_args *a, struct computed *how)
{
    (void)self, (void)p, (void)a, (void)how;
    return ATTEST_OUT_OF_MEMORY;
}

Test(failures, a_refused_call_is_one)
{
    const struct property property = small_cases(property_named("forward_within_bound"));
    struct implementation refuses = emulations[0];
    refuses.forward = refuse;
    cr_assert_not(check_run(&property, &refuses, SEED, 0, CASES, &result));
    cr_assert_eq(result.failure, FAILS_STATUS);
}

/* The problem with a NaN in a query that sees a key: oracle and emulation agree on NaN, and that is no pass. */
static int check_with_nan(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct prop_case spoilt;
    if (case_work(c) == 0) return TRIAL_DISCARDED;
    case_copy(&spoilt, c);
    spoilt.values[T_Q][0] = NAN;
    case_lay_out(&spoilt);
    const int failure = property_named("forward_within_bound")->check(&spoilt, self, context);
    case_free(&spoilt);
    return failure;
}

Test(failures, a_nan_in_the_oracle_is_one)
{
    struct property property = small_cases(property_named("forward_within_bound"));
    property.check = check_with_nan;
    property.request.forbids = FEATURE(MASK) | FEATURE(BLOCK_MASK) | FEATURE(BIAS) | FEATURE(CAUSAL) | FEATURE(WINDOW) |
                               FEATURE(SEQUSED) | FEATURE(RAGGED) | FEATURE(EMPTY);
    cr_assert_not(check_run(&property, &emulations[0], SEED, 0, CASES, &result));
    cr_assert_eq(result.failure, FAILS_ORACLE);
}

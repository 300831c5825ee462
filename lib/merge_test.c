/* merge_test.c - attest_merge: a commutative monoid, within its stated error of the exact sum. */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <criterion/criterion.h>

#include "lib/attest.h"
#include "reference/formats.h"

enum { MAX_STATES = 6, ROWS = 3, FEATURES = 70, ELEMENTS = ROWS * FEATURES }; /* more than one block of features */

struct state {
    float o[ELEMENTS], lse[ROWS];
};

static uint64_t random_state = 1;

static double uniform(void) /* -1 .. 1 */
{
    random_state = random_state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (double)(int64_t)random_state * 0x1p-63;
}

static struct state draw(double spread)
{
    struct state s;
    for (int i = 0; i < ELEMENTS; ++i) s.o[i] = (float)(4 * uniform());
    for (int i = 0; i < ROWS; ++i) s.lse[i] = (float)(spread * uniform());
    return s;
}

static struct state empty(void)
{
    struct state s;
    for (int i = 0; i < ELEMENTS; ++i) s.o[i] = NAN; /* not to be read */
    for (int i = 0; i < ROWS; ++i) s.lse[i] = -INFINITY;
    return s;
}

static struct state merged(int count, const struct state *const *states)
{
    const float *o[MAX_STATES], *lse[MAX_STATES];
    for (int a = 0; a < count; ++a) o[a] = states[a]->o, lse[a] = states[a]->lse;
    struct state s;
    memset(&s, 0xff, sizeof s);
    cr_assert_eq(attest_merge(count, ROWS, FEATURES, o, lse, s.o, s.lse), ATTEST_OK, "%s", attest_last_error());
    return s;
}

static struct state merged_two(const struct state *a, const struct state *b)
{
    return merged(2, (const struct state *const[]){a, b});
}

static bool same(const struct state *a, const struct state *b)
{
    return memcmp(a, b, sizeof *a) == 0;
}

Test(merge, of_two_is_bitwise_commutative)
{
    static const double spreads[] = {0, 1, 20, 200, 1e30};
    for (int trial = 0; trial < 2000; ++trial) {
        struct state a = draw(spreads[trial % 5]), b = draw(spreads[trial % 5]);
        if (trial % 10 == 0) a.o[3] = INFINITY, b.o[4] = NAN, a.o[4] = -NAN;
        if (trial % 20 == 0) a.lse[1] = NAN, b.lse[1] = -NAN;
        const struct state ab = merged_two(&a, &b), ba = merged_two(&b, &a);
        cr_assert(same(&ab, &ba), "trial %d", trial);
    }
}

Test(merge, has_the_empty_state_as_its_identity)
{
    struct state a = draw(50);
    const struct state none = empty();
    a.o[0] = -0.0f, a.o[1] = INFINITY, a.lse[2] = -INFINITY; /* row 2 is empty in all of them */
    memset(&a.o[2], 0xff, sizeof a.o[2]);                    /* a NaN with a payload */
    struct state want = a;
    for (int x = 0; x < FEATURES; ++x) want.o[2 * FEATURES + x] = 0.0f;
    const struct state left = merged_two(&none, &a), right = merged_two(&a, &none);
    const struct state one = merged(1, &(const struct state *){&a});
    cr_assert(same(&left, &want) && same(&right, &want) && same(&one, &want));

    const struct state b = draw(50), ab = merged_two(&a, &b);
    const struct state with_none = merged(3, (const struct state *const[]){&a, &none, &b});
    cr_assert(same(&with_none, &ab));

    const struct state nothing = merged(0, NULL), nobody = merged_two(&none, &none);
    cr_assert(same(&nothing, &nobody));
    for (int i = 0; i < ELEMENTS; ++i) cr_assert(nothing.o[i] == 0 && !signbit(nothing.o[i]));
    for (int i = 0; i < ROWS; ++i) cr_assert(nothing.lse[i] == -INFINITY);
}

Test(merge, of_a_nan_is_nan)
{
    struct state a = draw(1), b = draw(1);
    a.lse[0] = NAN;
    b.o[FEATURES + 5] = NAN;
    const struct state m = merged_two(&a, &b);
    cr_assert(isnan(m.lse[0]) && isnan(m.o[0]) && isnan(m.o[FEATURES + 5]));
    cr_assert(!isnan(m.lse[1]) && !isnan(m.o[FEATURES + 4]));
    const struct state none = empty(), felt = merged_two(&none, &a);
    cr_assert(isnan(felt.lse[0]), "a NaN is not an empty state");
}

/* The stated bound, against long double: its own error is 2^-11 of the bound's. */
static void check_error(const struct state *got, int count, const struct state *const *states)
{
    const long double step = (count + 760) * 0x1p-52L;
    for (int row = 0; row < ROWS; ++row) {
        long double max = -INFINITY, sum = 0;
        for (int a = 0; a < count; ++a) max = fmaxl(max, states[a]->lse[row]);
        for (int a = 0; a < count; ++a) sum += expl(states[a]->lse[row] - max);
        const long double lse = max + logl(sum), lse_error = step + 0x1p-52L * fabsl(lse);
        const double lse_bound = (double)lse_error + ref_half_ulp(ATTEST_FP32, (double)(fabsl(lse) + lse_error));
        cr_assert(fabsl(got->lse[row] - lse) <= lse_bound);
        for (int x = 0; x < FEATURES; ++x) {
            long double o = 0, magnitude = 0;
            for (int a = 0; a < count; ++a) {
                const long double term = expl(states[a]->lse[row] - max) / sum * states[a]->o[row * FEATURES + x];
                o += term, magnitude += fabsl(term);
            }
            const long double error = step * magnitude + count * 0x1p-940L;
            const double bound = (double)error + ref_half_ulp(ATTEST_FP32, (double)(fabsl(o) + error));
            cr_assert(fabsl(got->o[row * FEATURES + x] - o) <= bound);
        }
    }
}

Test(merge, is_within_its_stated_error_in_any_order)
{
    static const double spreads[] = {0.1, 3, 40, 800, 1e6};
    for (int trial = 0; trial < 500; ++trial) {
        struct state drawn[MAX_STATES];
        const struct state *forth[MAX_STATES], *back[MAX_STATES];
        const int count = 2 + trial % (MAX_STATES - 1);
        for (int a = 0; a < count; ++a) drawn[a] = draw(spreads[trial % 5]);
        for (int a = 0; a < count; ++a) forth[a] = &drawn[a], back[a] = &drawn[count - 1 - a];
        const struct state one = merged(count, forth), other = merged(count, back);
        check_error(&one, count, forth);
        check_error(&other, count, forth);
    }
}

Test(merge, may_write_over_one_of_its_states)
{
    struct state a = draw(2), b = draw(2);
    const struct state want = merged_two(&a, &b);
    const float *const o[] = {a.o, b.o}, *const lse[] = {a.lse, b.lse};
    cr_assert_eq(attest_merge(2, ROWS, FEATURES, o, lse, a.o, b.lse), ATTEST_OK);
    cr_assert(memcmp(a.o, want.o, sizeof a.o) == 0 && memcmp(b.lse, want.lse, sizeof b.lse) == 0);
}

static struct state first, second, out;

static void refused(int64_t count, int64_t rows, int64_t features, const float *const *o, const float *const *lse,
                    float *o_out, float *lse_out, const char *text)
{
    const struct state kept[] = {first, second, out};
    cr_assert_eq(attest_merge(count, rows, features, o, lse, o_out, lse_out), ATTEST_INVALID, "%s", text);
    cr_assert(strstr(attest_last_error(), text) != NULL, "\"%s\" is not in \"%s\"", text, attest_last_error());
    cr_assert(same(&kept[0], &first) && same(&kept[1], &second) && same(&kept[2], &out));
}

Test(merge, refuses_what_it_cannot_do)
{
    first = draw(1), second = draw(1), out = draw(1);
    const float *const o[] = {first.o, second.o}, *const lse[] = {first.lse, second.lse};
    const float *const o_null[] = {first.o, NULL}, *const lse_null[] = {NULL, second.lse};
    refused(-1, ROWS, FEATURES, o, lse, out.o, out.lse, "num_states = -1");
    refused(2, -7, FEATURES, o, lse, out.o, out.lse, "rows = -7");
    refused(2, ROWS, 0, o, lse, out.o, out.lse, "head_dim_v = 0");
    refused(2, INT64_MAX / 2, FEATURES, o, lse, out.o, out.lse, "rows = 4611686018427387903");
    refused(2, INT64_MAX / 256, FEATURES, o, lse, out.o, out.lse, "rows = 36028797018963967");
    refused(2, ROWS, FEATURES, NULL, lse, out.o, out.lse, "o_states = NULL");
    refused(2, ROWS, FEATURES, o, NULL, out.o, out.lse, "lse_states = NULL");
    refused(2, ROWS, FEATURES, o, lse, NULL, out.lse, "o = (nil)");
    refused(2, ROWS, FEATURES, o, lse, out.o, NULL, "lse = (nil)");
    refused(2, ROWS, FEATURES, o, lse, (float *)((char *)out.o + 2), out.lse, "o = 0x");
    refused(2, ROWS, FEATURES, o_null, lse, out.o, out.lse, "o_states[1] = (nil)");
    refused(2, ROWS, FEATURES, o, lse_null, out.o, out.lse, "lse_states[0] = (nil)");
    refused(2, ROWS, FEATURES, o, lse, out.o, out.o + 1, "must not overlap lse");
    refused(2, ROWS, FEATURES, o, lse, first.o + 1, out.lse, "must not overlap o_states[0]");
    refused(2, ROWS, FEATURES, o, lse, out.o, second.lse + 1, "must not overlap lse_states[1]");
    refused(2, ROWS, FEATURES, o, lse, out.o, second.o, "must not overlap o_states[1]");
    refused(2, 1, 1, o, lse, first.lse, out.lse, "must not overlap lse_states[0]");
    cr_assert_eq(attest_merge(2, 0, FEATURES, NULL, NULL, NULL, NULL), ATTEST_OK);
}

/* kernel_mutants_test.c - the tests of the kernels are tested: every wrong version of a kernel is rejected, on the
 * simulated GPU alone, and none that has nothing wrong. Prints who was rejected by what. This program has mutant PART
 * of the list and each PARTS-th one after it. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/kernel_mutants/kernels_reject.h"

/* Those of other parts are not linked, so their addresses are null. */
#define MUTANT(name, kernel, bug, likely) extern kernel_launcher name##_sim __attribute__((weak));
#include "proptests/kernel_mutants/kernel_mutants_list.h"
#undef MUTANT

static const struct kernel_mutant {
    const char *name, *kernel, *bug;
    const char *likely; /* as kernels_reject() has it */
    kernel_launcher *launcher;
} mutants[] = {
#define MUTANT(name, kernel, bug, likely) {#name, #kernel, bug, likely, name##_sim},
#include "proptests/kernel_mutants/kernel_mutants_list.h"
#undef MUTANT
};
enum { NUM_MUTANTS = sizeof mutants / sizeof *mutants };

enum { CASES = 8, MOST_CASES = 512 };

static bool is_sound(const struct kernel_mutant *m) { return strcmp(m->bug, "nothing") == 0; }

/* What a sound one need not pass may reject a mutant for how it is compiled. */
static bool is_named(const struct kernels_rejection *by)
{
    const bool is_long = strcmp(by->property, "several_tiles") == 0 || strcmp(by->property, KERNELS_LARGE) == 0;
    return by->likely || (!is_long && by->number < CASES);
}

static bool is_rejected(const struct kernel_mutant *m, const struct kernels_asked *of_all, int64_t cases)
{
    struct kernels_rejection by;
    struct kernel_launchers launchers = {{NULL}, {NULL}, NULL, NULL};
    struct kernels_asked asked = *of_all;
    asked.forbids = FEATURE(FP16), asked.cases = CASES; /* apply.pl */
    cr_assert_not_null(m->launcher, "%s is not in this part", m->name);
    cr_assert(kernels_replace(&launchers, m->kernel, m->launcher), "there is no kernel %s", m->kernel);
    for (; asked.first_case < cases; asked.first_case += CASES) {
        if (!kernels_reject(m->name, &launchers, &asked, &by)) continue;
        printf("%-28s %-14s %s\n    %s, case %" PRId64 ": %.300s\n", m->name, m->kernel, m->bug, by.property, by.number,
               by.message);
        fflush(stdout);
        cr_expect(is_named(&by), "%s: mutants.txt lacks a line `likely` that names what rejects it: %s, case %" PRId64
                  ": %.80s", m->name, by.property, by.number, by.message);
        return true;
    }
    printf("%-28s %-14s SURVIVES: %s\n", m->name, m->kernel, m->bug);
    fflush(stdout);
    return false;
}

Test(kernel_mutants, wrong_ones_are_rejected)
{
    int rejected = 0, count = 0;
    for (int i = PART; i < NUM_MUTANTS; i += PARTS) {
        if (is_sound(&mutants[i])) continue;
        const char *const likely[] = {mutants[i].likely, NULL};
        rejected += is_rejected(&mutants[i], &(struct kernels_asked){.likely = likely}, MOST_CASES);
        ++count;
    }
    printf("%d of %d wrong kernels rejected on the simulated GPU, part %d of %d\n", rejected, count, PART + 1, PARTS);
    cr_expect_eq(rejected, count);
}

/* What is likely to reject one of the mutants of a kernel, each once, and NULL. */
static void find_likely(const struct kernel_mutant *of, const char *out[])
{
    int count = 0;
    for (int i = 0; i < NUM_MUTANTS; ++i) {
        bool is_new = mutants[i].likely != NULL && strcmp(mutants[i].kernel, of->kernel) == 0;
        for (int n = 0; n < count && is_new; ++n) is_new = strcmp(out[n], mutants[i].likely) != 0;
        if (is_new) out[count++] = mutants[i].likely;
    }
    out[count] = NULL;
}

/* A mutant that is rejected is rejected for its bug, not for how it is compiled: one without a bug passes all that
 * rejected any of its kernel. (kernels_test asks the kernels as they are the rest.) */
Test(kernel_mutants, sound_ones_pass)
{
    for (int i = PART; i < NUM_MUTANTS; i += PARTS) {
        if (!is_sound(&mutants[i])) continue;
        static const char *likely[NUM_MUTANTS + 1];
        find_likely(&mutants[i], likely);
        const struct kernels_asked asked = {.likely = likely, .likely_alone = true};
        cr_expect(!is_rejected(&mutants[i], &asked, CASES), "%s", mutants[i].name);
    }
}

static bool has_sound_one(const char *kernel)
{
    for (int i = 0; i < NUM_MUTANTS; ++i)
        if (is_sound(&mutants[i]) && strcmp(mutants[i].kernel, kernel) == 0) return true;
    return false;
}

Test(kernel_mutants, each_kernel_has_a_sound_one)
{
    for (int i = 0; i < NUM_MUTANTS; ++i)
        cr_expect(has_sound_one(mutants[i].kernel), "%s: of %s nothing sound is asked", mutants[i].name,
                  mutants[i].kernel);
}

/* A name that no case has would be passed over. */
Test(kernel_mutants, likely_cases_exist)
{
    for (int i = 0; i < NUM_MUTANTS; ++i)
        if (mutants[i].likely != NULL)
            cr_expect(kernels_likely_exists(mutants[i].likely), "%s: %s", mutants[i].name, mutants[i].likely);
}

Test(kernel_mutants, there_are_many) { cr_expect_geq(NUM_MUTANTS, 100); }

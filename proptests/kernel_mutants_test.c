/* kernel_mutants_test.c - the tests of the kernels are tested: every wrong version of a kernel is rejected, on the
 * simulated GPU alone. Prints who was rejected by what. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/kernels.h"

#define MUTANT(name, kernel, bug) extern kernel##_launcher name##_sim;
#define forward_fp32_launcher forward_launcher
#include "proptests/kernel_mutants/kernel_mutants_list.h"
#undef MUTANT

struct kernel_mutant {
    const char *name, *bug;
    forward_launcher *forward;
    merge_launcher *merge;
    merge_backward_launcher *merge_backward;
};

/* One kernel is the mutant, the others the library's own. */
#define forward_fp32_mutant(function) function, merge_sim, merge_backward_sim
#define merge_mutant(function) forward_fp32_sim, function, merge_backward_sim
#define merge_backward_mutant(function) forward_fp32_sim, merge_sim, function
static const struct kernel_mutant mutants[] = {
#define MUTANT(name, kernel, bug) {#name, bug, kernel##_mutant(name##_sim)},
#include "proptests/kernel_mutants/kernel_mutants_list.h"
#undef MUTANT
};
enum { NUM_MUTANTS = sizeof mutants / sizeof *mutants };

enum { SEED = 3, WORK = 1 << 13, CASES = 8, MOST_CASES = 512 };

/* One case of one property; smaller ones are not looked for. */
static int ask(const struct property *property, const struct implementation *self, int64_t number,
               struct prop_context *context)
{
    struct choices choices;
    struct prop_case c;
    choices_start(&choices, NULL, check_mix(SEED + (uint64_t)number));
    case_draw(&c, &choices, &property->request);
    const int verdict = property->check(&c, self, context);
    case_free(&c);
    return verdict;
}

static void print_rejected(const struct kernel_mutant *m, const char *by, int64_t number, const char *message)
{
    printf("%-24s %s\n    %s, case %" PRId64 ": %s\n", m->name, m->bug, by, number, message);
    fflush(stdout);
}

/* A wrong merge passes properties without one: they need not be asked. */
static bool is_asked(const struct property *property, const struct kernel_mutant *m)
{
    return m->forward != forward_fp32_sim || strstr(property->name, "merge") != NULL;
}

/* Cases first_case .. first_case + CASES - 1 of each property, until one fails. */
static bool is_rejected(const struct kernel_mutant *m, int64_t first_case)
{
    static struct prop_context context;
    struct kernel_implementation kernels = kernels_on_sim(m->name, m->forward, m->merge);
    kernels.merge_backward = m->merge_backward;
    if (first_case == 0 && kernels_corners(&kernels.implementation, &context) != TRIAL_PASSES) {
        print_rejected(m, "corners", 0, context.message);
        return true;
    }
    for (const struct property *p = properties; p->name != NULL; ++p) {
        struct property asked;
        if (!is_asked(p, m) || !kernels_property(p, WORK, &asked)) continue;
        for (int64_t i = first_case; i < first_case + CASES; ++i) {
            if (ask(&asked, &kernels.implementation, i, &context) <= TRIAL_PASSES) continue;
            print_rejected(m, p->name, i, context.message);
            return true;
        }
    }
    return false;
}

Test(kernel_mutants, all_are_rejected)
{
    int rejected = 0;
    for (int i = 0; i < NUM_MUTANTS; ++i) {
        bool is_dead = false;
        for (int64_t first = 0; !is_dead && first < MOST_CASES; first += CASES)
            is_dead = is_rejected(&mutants[i], first);
        if (!is_dead) printf("%-24s SURVIVES: %s\n", mutants[i].name, mutants[i].bug);
        rejected += is_dead;
    }
    printf("%d of %d wrong kernels rejected on the simulated GPU\n", rejected, NUM_MUTANTS);
    cr_expect_eq(rejected, NUM_MUTANTS);
    cr_expect_geq(NUM_MUTANTS, 12);
}

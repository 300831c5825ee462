/* kernel_mutants_test.c - the tests of the kernels are tested: every wrong version of a kernel is rejected, on the
 * simulated GPU alone. Prints who was rejected by what. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/kernels.h"

#define MUTANT(name, kernel, bug) extern kernel_launcher name##_sim;
#include "proptests/kernel_mutants/kernel_mutants_list.h"
#undef MUTANT

static const struct kernel_mutant {
    const char *name, *kernel, *bug;
    kernel_launcher *launcher;
} mutants[] = {
#define MUTANT(name, kernel, bug) {#name, #kernel, bug, name##_sim},
#include "proptests/kernel_mutants/kernel_mutants_list.h"
#undef MUTANT
};
enum { NUM_MUTANTS = sizeof mutants / sizeof *mutants };

enum { SEED = 3, WORK = 1 << 13, CASES = 8, MOST_CASES = 512, PARTS = 4 };

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
    printf("%-28s %-14s %s\n    %s, case %" PRId64 ": %.160s\n", m->name, m->kernel, m->bug, by, number, message);
    fflush(stdout);
}

/* Whether a case that the property draws can reach the kernel: gradients are of backward kernels, formats of theirs. */
static bool is_asked(const struct kernel_mutant *m, const struct property *property, struct property *asked)
{
    const bool is_backward = strncmp(m->kernel, "backward", strlen("backward")) == 0;
    if (!kernels_property(property, WORK, asked) || property->request.backward != is_backward) return false;
    if (strcmp(m->kernel, "forward_fp32") == 0) asked->request.needs |= FEATURE(FP32);
    if (strcmp(m->kernel, "forward") == 0) asked->request.forbids |= FEATURE(FP32);
    return true;
}

/* Cases first_case .. first_case + CASES - 1 of each property, until one fails. */
static bool is_rejected(const struct kernel_mutant *m, int64_t first_case)
{
    static struct prop_context context;
    struct kernel_launchers launchers = {{NULL}, {NULL}, NULL, NULL};
    cr_assert(kernels_replace(&launchers, m->kernel, m->launcher), "there is no kernel %s", m->kernel);
    struct kernel_implementation kernels = kernels_on_sim(m->name, SIM_SM_90, &launchers);
    if (first_case == 0 && kernels_corners(&kernels.implementation, &context) != TRIAL_PASSES) {
        print_rejected(m, "corners", 0, context.message);
        return true;
    }
    for (const struct property *p = properties; p->name != NULL; ++p) {
        struct property asked;
        if (!is_asked(m, p, &asked)) continue;
        for (int64_t i = first_case; i < first_case + CASES; ++i) {
            if (ask(&asked, &kernels.implementation, i, &context) <= TRIAL_PASSES) continue;
            print_rejected(m, p->name, i, context.message);
            return true;
        }
    }
    return false;
}

/* Every PARTS-th mutant: the parts are shared out among processes. */
static void reject_part(int part)
{
    int rejected = 0, count = 0;
    for (int i = part; i < NUM_MUTANTS; i += PARTS, ++count) {
        bool is_dead = false;
        for (int64_t first = 0; !is_dead && first < MOST_CASES; first += CASES)
            is_dead = is_rejected(&mutants[i], first);
        if (!is_dead) printf("%-28s %-14s SURVIVES: %s\n", mutants[i].name, mutants[i].kernel, mutants[i].bug);
        rejected += is_dead;
    }
    printf("%d of %d wrong kernels rejected on the simulated GPU, part %d of %d\n", rejected, count, part + 1, PARTS);
    cr_expect_eq(rejected, count);
}

Test(kernel_mutants, first_part) { reject_part(0); }
Test(kernel_mutants, second_part) { reject_part(1); }
Test(kernel_mutants, third_part) { reject_part(2); }
Test(kernel_mutants, fourth_part) { reject_part(3); }

Test(kernel_mutants, there_are_many) { cr_expect_geq(NUM_MUTANTS, 40); }

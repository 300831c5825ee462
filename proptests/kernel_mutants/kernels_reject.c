/* kernels_reject.c - cases for wrong kernels; none is made smaller. */
#include "proptests/kernel_mutants/kernels_reject.h"

#include <stdio.h>
#include <string.h>

enum { SEED = 3, WORK = 1 << 13 };

#define NOT_FP32 (FEATURE(FP16) | FEATURE(BF16))
#define ALL (NOT_FP32 | FEATURE(FP32))

/* Which launchers there are, and of those only ones for fp32, or none. */
struct reach {
    bool forward, backward, merge, fp32, others;
    bool general; /* of any length */
    bool older;   /* for GPUs before Hopper, too */
};

/* By name: `*_fp32` take fp32 before all, the others 16-bit inputs. */
static void note_kernel(struct reach *reach, const char *kernel, struct lengths most)
{
    *(strstr(kernel, "_fp32") != NULL ? &reach->fp32 : &reach->others) = true;
    reach->general |= most.q == INT32_MAX;
}

static struct reach reach_of(const struct kernel_launchers *l)
{
    struct reach reach = {.merge = l->merge != NULL || l->merge_backward != NULL};
    if (reach.merge) reach.fp32 = reach.others = true; /* states are made by any */
    for (int i = 0; forward_kernels[i].name != NULL; ++i)
        if (l->forward[i] != NULL) {
            reach.forward = true, reach.older |= forward_kernels[i].only_major == 0;
            note_kernel(&reach, forward_kernels[i].name, forward_kernels[i].most);
        }
    for (int i = 0; backward_kernels[i].name != NULL; ++i)
        if (l->backward[i] != NULL) {
            reach.backward = true, reach.older |= backward_kernels[i].only_major == 0;
            note_kernel(&reach, backward_kernels[i].name, backward_kernels[i].most);
        }
    return reach;
}

static bool is_asked(const struct reach *reach, uint64_t forbids, const struct property *property,
                     struct property *asked)
{
    if (!(property->request.backward ? reach->backward : reach->forward || reach->merge)) return false;
    if (!kernels_property(property, WORK, asked)) return false;
    asked->request.forbids |= forbids;
    if (!reach->others) asked->request.forbids |= NOT_FP32;
    if (!reach->fp32) asked->request.forbids |= FEATURE(FP32);
    return (asked->request.forbids & ALL) != ALL; /* some format is left */
}

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

static bool rejected(struct kernels_rejection *out, const char *property, int64_t number,
                     const struct prop_context *context)
{
    *out = (struct kernels_rejection){.property = property, .number = number};
    memcpy(out->message, context->message, sizeof out->message);
    return true;
}

/* Nobody reads them: of one kernel most cases are another's. */
static struct kernels_verdicts verdicts;

static int ask_corners(const struct reach *reach, const struct implementation *self, struct prop_context *context)
{
    int failure = TRIAL_PASSES;
    if (reach->fp32) failure = kernels_corners(self, ATTEST_FP32, &verdicts, context);
    if (failure == TRIAL_PASSES && reach->others) failure = kernels_corners(self, ATTEST_BF16, &verdicts, context);
    return failure;
}

static int ask_several_tiles(const struct reach *reach, const struct implementation *self, const char *only,
                             struct prop_context *context)
{
    int failure = TRIAL_PASSES;
    for (int backward = 0; backward < 2; ++backward) {
        if (!(backward ? reach->backward : reach->forward)) continue;
        if (failure == TRIAL_PASSES && reach->fp32)
            failure = kernels_long(self, backward, ATTEST_FP32, only, &verdicts, context);
        if (failure == TRIAL_PASSES && reach->others)
            failure = kernels_long(self, backward, ATTEST_BF16, only, &verdicts, context);
    }
    return failure;
}

static int ask_large(const struct reach *reach, const struct implementation *self, struct prop_context *context)
{
    int failure = TRIAL_PASSES;
    if (!reach->backward) return failure;
    if (reach->fp32) failure = kernels_large(self, ATTEST_FP32, &verdicts, context);
    if (failure == TRIAL_PASSES && reach->others) failure = kernels_large(self, ATTEST_BF16, &verdicts, context);
    return failure;
}

static bool properties_reject(const struct reach *reach, const struct implementation *self, uint64_t forbids,
                              int64_t first_case, int64_t cases, struct prop_context *context,
                              struct kernels_rejection *out)
{
    for (const struct property *p = properties; p->name != NULL; ++p) {
        struct property asked;
        if (!is_asked(reach, forbids, p, &asked)) continue;
        for (int64_t i = first_case; i < first_case + cases; ++i)
            if (ask(&asked, self, i, context) > TRIAL_PASSES) return rejected(out, p->name, i, context);
    }
    return false;
}

bool kernels_reject(const char *name, const struct kernel_launchers *launchers, uint64_t forbids, int64_t first_case,
                    int64_t cases, const char *likely, struct kernels_rejection *out)
{
    static struct prop_context context;
    const struct reach reach = reach_of(launchers);
    /* Where no kernel for Hopper alone takes what is asked of others. */
    const enum sim_generation generation = reach.older || reach.merge ? SIM_SM_80 : SIM_SM_90;
    struct kernel_implementation kernels = kernels_on_sim(name, generation, launchers);
    kernels.is_general = reach.general;
    kernels.only_replaced = !reach.merge; /* nothing else is wrong */
    const bool likely_large = likely != NULL && strcmp(likely, KERNELS_LARGE) == 0;
    if (first_case == 0 && likely_large && ask_large(&reach, &kernels.implementation, &context) != TRIAL_PASSES)
        return rejected(out, KERNELS_LARGE, 0, &context);
    if (first_case == 0 && likely != NULL && !likely_large &&
        ask_several_tiles(&reach, &kernels.implementation, likely, &context) != TRIAL_PASSES)
        return rejected(out, "several_tiles", 0, &context);
    /* Of merges, corners and long cases ask little, after all that they ask of the kernels that make states. */
    if (reach.merge && properties_reject(&reach, &kernels.implementation, forbids, first_case, cases, &context, out))
        return true;
    kernels.only_replaced = false; /* corners may ask for results of other kernels */
    if (first_case == 0 && ask_corners(&reach, &kernels.implementation, &context) != TRIAL_PASSES)
        return rejected(out, "corners", 0, &context);
    kernels.only_replaced = !reach.merge;
    if (first_case == 0 && ask_several_tiles(&reach, &kernels.implementation, NULL, &context) != TRIAL_PASSES)
        return rejected(out, "several_tiles", 0, &context);
    if (first_case == 0 && !likely_large && ask_large(&reach, &kernels.implementation, &context) != TRIAL_PASSES)
        return rejected(out, KERNELS_LARGE, 0, &context);
    return !reach.merge &&
           properties_reject(&reach, &kernels.implementation, forbids, first_case, cases, &context, out);
}

/* kernels_reject.c - cases for wrong kernels; none is made smaller. */
#include "proptests/kernel_mutants/kernels_reject.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { SEED = 3, WORK = 1 << 13 };

#define NOT_FP32 (FEATURE(FP16) | FEATURE(BF16))
#define ALL (NOT_FP32 | FEATURE(FP32))

/* In corners other kernels answer, too; of other cases most are none of this one's. */
static struct kernels_verdicts corners, verdicts;
static int64_t passed; /* random cases */

/* Which launchers there are, and of those only ones for fp32, or none. */
struct reach {
    bool forward, backward, merge, fp32, others;
    bool general; /* of any length */
    bool older;   /* for GPUs before Hopper, too */
};

/* Kernels that take fp32 are asked in that, whatever else they take, the others in 16 bits. */
static void note_kernel(struct reach *reach, const struct kernel_reach *takes, struct lengths most)
{
    *((takes->formats & 1u << ATTEST_FP32) != 0 ? &reach->fp32 : &reach->others) = true;
    reach->general |= kernels_any_length(most);
}

static struct reach reach_of(const struct kernel_launchers *l)
{
    struct reach reach = {.merge = l->merge != NULL || l->merge_backward != NULL};
    if (reach.merge) reach.fp32 = reach.others = true; /* states are made by any */
    for (int i = 0; forward_kernels[i].name != NULL; ++i)
        if (l->forward[i] != NULL) {
            reach.forward = true, reach.older |= forward_kernels[i].only_major == 0;
            note_kernel(&reach, &forward_kernels[i].reach, forward_kernels[i].most);
        }
    for (int i = 0; backward_kernels[i].name != NULL; ++i)
        if (l->backward[i] != NULL) {
            reach.backward = true, reach.older |= backward_kernels[i].only_major == 0;
            note_kernel(&reach, &backward_kernels[i].reach, backward_kernels[i].most);
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
    passed += verdict == TRIAL_PASSES;
    return verdict;
}

static bool rejected(struct kernels_rejection *out, const char *property, int64_t number,
                     const struct prop_context *context)
{
    *out = (struct kernels_rejection){.property = property, .number = number};
    memcpy(out->message, context->message, sizeof out->message);
    return true;
}

static int ask_corners(const struct reach *reach, const struct implementation *self, struct prop_context *context)
{
    int failure = TRIAL_PASSES;
    if (reach->fp32) failure = kernels_corners(self, ATTEST_FP32, &corners, context);
    if (failure == TRIAL_PASSES && reach->others) failure = kernels_corners(self, ATTEST_BF16, &corners, context);
    return failure;
}

static int ask_several_tiles(const struct reach *reach, const struct implementation *self, const char *only,
                             struct prop_context *context)
{
    const struct kernels_long_asked fp32 = {.dtype = ATTEST_FP32, .every = 1, .only = only};
    const struct kernels_long_asked bf16 = {.dtype = ATTEST_BF16, .every = 1, .only = only};
    int failure = TRIAL_PASSES;
    for (int backward = 0; backward < 2; ++backward) {
        if (!(backward ? reach->backward : reach->forward)) continue;
        if (failure == TRIAL_PASSES && reach->fp32)
            failure = kernels_long(self, backward, &fp32, &verdicts, context);
        if (failure == TRIAL_PASSES && reach->others)
            failure = kernels_long(self, backward, &bf16, &verdicts, context);
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

static bool properties_reject(const struct reach *reach, const struct implementation *self,
                              const struct kernels_asked *what, struct prop_context *context,
                              struct kernels_rejection *out)
{
    for (const struct property *p = properties; p->name != NULL; ++p) {
        struct property asked;
        if (!is_asked(reach, what->forbids, p, &asked)) continue;
        for (int64_t i = what->first_case; i < what->first_case + what->cases; ++i)
            if (ask(&asked, self, i, context) > TRIAL_PASSES) return rejected(out, p->name, i, context);
    }
    return false;
}

/* The case of a property that `likely` names, if it does. */
static const struct property *property_of(const char *likely, int64_t *number)
{
    char name[64];
    return sscanf(likely, "%63s %" SCNd64, name, number) == 2 ? property_named(name) : NULL;
}

bool kernels_likely_exists(const char *likely)
{
    int64_t number;
    return kernels_long_has(likely) || strcmp(likely, KERNELS_LARGE) == 0 || property_of(likely, &number) != NULL;
}

static bool likely_rejects(const struct reach *reach, const struct implementation *self, uint64_t forbids,
                           const char *likely, struct prop_context *context, struct kernels_rejection *out)
{
    int64_t number = 0;
    struct property asked;
    const struct property *const property = property_of(likely, &number);
    if (property != NULL)
        return is_asked(reach, forbids, property, &asked) && ask(&asked, self, number, context) > TRIAL_PASSES &&
               rejected(out, property->name, number, context);
    if (strcmp(likely, KERNELS_LARGE) == 0)
        return ask_large(reach, self, context) != TRIAL_PASSES && rejected(out, KERNELS_LARGE, 0, context);
    return ask_several_tiles(reach, self, likely, context) != TRIAL_PASSES &&
           rejected(out, "several_tiles", 0, context);
}

int64_t kernels_answered(void)
{
    int64_t count = passed;
    for (int i = 0; i < verdicts.count; ++i) count += verdicts.of[i].passed;
    return count;
}

/* What has several tiles and large rows. */
static bool long_ones_reject(const struct reach *reach, const struct implementation *self, struct prop_context *context,
                             struct kernels_rejection *out)
{
    if (ask_several_tiles(reach, self, NULL, context) != TRIAL_PASSES)
        return rejected(out, "several_tiles", 0, context);
    return ask_large(reach, self, context) != TRIAL_PASSES && rejected(out, KERNELS_LARGE, 0, context);
}

bool kernels_reject(const char *name, const struct kernel_launchers *launchers, const struct kernels_asked *asked,
                    struct kernels_rejection *out)
{
    static struct prop_context context;
    const struct reach reach = reach_of(launchers);
    /* Where no kernel for Hopper alone takes what is asked of others. */
    const enum sim_generation generation = reach.older || reach.merge ? SIM_SM_80 : SIM_SM_90;
    struct kernel_implementation kernels = kernels_on_sim(name, generation, launchers);
    const struct implementation *const self = &kernels.implementation;
    kernels.is_general = reach.general;
    kernels.only_replaced = !reach.merge; /* nothing else is wrong */
    const bool is_first = asked->first_case == 0;
    for (int i = 0; is_first && asked->likely != NULL && asked->likely[i] != NULL; ++i)
        if (likely_rejects(&reach, self, asked->forbids, asked->likely[i], &context, out)) return out->likely = true;
    /* Of merges, corners and long cases ask little, after all that they ask of the kernels that make states. */
    if (reach.merge && properties_reject(&reach, self, asked, &context, out)) return true;
    kernels.only_replaced = false; /* corners may ask for results of other kernels */
    if (is_first && ask_corners(&reach, self, &context) != TRIAL_PASSES) return rejected(out, "corners", 0, &context);
    kernels.only_replaced = !reach.merge;
    if (is_first && !asked->likely_alone && long_ones_reject(&reach, self, &context, out)) return true;
    return !reach.merge && properties_reject(&reach, self, asked, &context, out);
}

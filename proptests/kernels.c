/* kernels.c - runs of the properties on kernels. */
#include "proptests/kernels.h"

#include <inttypes.h>
#include <string.h>

const struct merge_accuracy kernels_merge_accuracy = {
    .weight_error = 0x1.000004p-22, .distance_error = 3 * 0x1p-24, .log_error = 0x1p-22, .lost = 0x1p-126};

/* What no kernel takes: masks of bytes, changes of scores, formats of 8 bits. */
#define NOT_TAKEN                                                                                             \
    (FEATURE(FP8) | FEATURE(MASK) | FEATURE(BLOCK_MASK) | FEATURE(BIAS) | FEATURE(ALIBI) | FEATURE(SOFTCAP) | \
     FEATURE(DROPOUT))

/* Properties of such a feature alone. */
static bool is_about_not_taken(const struct property *property)
{
    static const char *const names[] = {"mask_forms_agree", "softcap_ends", "dropout_counter", "dropout_seeds"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i)
        if (strcmp(property->name, names[i]) == 0) return true;
    return false;
}

bool kernels_property(const struct property *property, int64_t work, struct property *out)
{
    if (property->request.backward || is_about_not_taken(property)) return false;
    *out = *property;
    if (property->request.needs & FEATURE(MASK)) /* rows may be empty in other ways */
        out->request.needs |= FEATURE(CAUSAL) | FEATURE(DIAG_GIVEN);
    out->request.needs &= ~NOT_TAKEN;
    out->request.forbids |= NOT_TAKEN;
    if (out->request.max_work == 0 || out->request.max_work > work) out->request.max_work = work;
    return true;
}

/* `cases` that are not discarded. */
static bool run_property(const struct kernel_run *run, const struct property *property, int64_t cases, int64_t *total,
                         FILE *out)
{
    enum { PATIENCE = 20 };
    static struct check_result r;
    double use_o = 0, use_lse = 0;
    int64_t ran = 0, first = run->first_case;
    while (ran < cases && first < run->first_case + PATIENCE * cases) {
        const int64_t left = cases - ran;
        const bool passed = check_run(property, run->self, run->seed, first, left, &r);
        ran += r.cases;
        first += left;
        if (!passed && r.failure != 0) {
            fprintf(out, "%-24s FAILS on %s, case %" PRId64 ": %s\n  %s work=%" PRId64 "\n", property->name,
                    run->self->name, r.failing_case, r.message, r.line, run->work);
            return false;
        }
        if (!(r.seen.use[REF_O] <= use_o)) use_o = r.seen.use[REF_O];
        if (!(r.seen.use[REF_LSE] <= use_lse)) use_lse = r.seen.use[REF_LSE];
    }
    fprintf(out, "%-24s %5" PRId64 " cases", property->name, ran);
    if (use_o > 0) fprintf(out, ", largest share of a bound: o %.3f, lse %.3f", use_o, use_lse);
    fprintf(out, "%s\n", ran < cases ? ": TOO FEW" : "");
    *total += ran;
    return ran >= cases;
}

bool kernels_run(const struct kernel_run *run, FILE *out)
{
    struct property asked;
    int64_t weights = 0, before = 0, total = 0;
    bool passed = true;
    for (const struct property *p = properties; p->name != NULL; ++p)
        weights += kernels_property(p, run->work, &asked) ? p->weight : 0;
    for (const struct property *p = properties; p->name != NULL; ++p) {
        if (!kernels_property(p, run->work, &asked)) continue;
        const int64_t cases = run->cases * (before + p->weight) / weights - run->cases * before / weights;
        if (cases > 0) passed &= run_property(run, &asked, cases, &total, out);
        before += p->weight;
    }
    fprintf(out, "%" PRId64 " cases on %s: %s\n", total, run->self->name, passed ? "all pass" : "FAILURES");
    fflush(out);
    return passed && total > 0;
}

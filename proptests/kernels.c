/* kernels.c - runs of the properties on kernels. */
#include "proptests/kernels.h"

#include <inttypes.h>
#include <string.h>

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

static double larger(double a, double b) { return !(b <= a) ? b : a; }

/* Until `cases` were not discarded, or patience ends. */
static void run_property(const struct kernel_run *run, const struct property *property, int64_t cases, int place,
                         struct kernel_tally *tally, FILE *out)
{
    enum { PATIENCE = 20 };
    static struct check_result r;
    int64_t ran = 0, first = run->first_case;
    tally->asked[place] += cases;
    while (ran < cases && first < run->first_case + PATIENCE * cases) {
        const int64_t left = cases - ran;
        check_run(property, run->self, run->seed, first, left, &r);
        ran += r.cases;
        first += left;
        tally->use_o = larger(tally->use_o, r.seen.use[REF_O]);
        tally->use_lse = larger(tally->use_lse, r.seen.use[REF_LSE]);
        if (r.failure == 0) continue;
        tally->failures += 1;
        fprintf(out, "%s FAILS on %s, case %" PRId64 "; the smallest:\n  %s\n  %s (work %" PRId64 ")\n", property->name,
                run->self->name, r.failing_case, r.message, r.line, run->work);
        fflush(out);
        break;
    }
    tally->ran[place] += ran;
}

void kernels_run(const struct kernel_run *run, struct kernel_tally *tally, FILE *out)
{
    struct property asked;
    int64_t weights = 0, before = 0;
    for (const struct property *p = properties; p->name != NULL; ++p)
        weights += kernels_property(p, run->work, &asked) ? p->weight : 0;
    for (int i = 0; properties[i].name != NULL; ++i) {
        if (!kernels_property(&properties[i], run->work, &asked)) continue;
        const int64_t after = before + asked.weight;
        run_property(run, &asked, run->cases * after / weights - run->cases * before / weights, i, tally, out);
        before = after;
    }
}

void kernels_add(struct kernel_tally *to, const struct kernel_tally *from)
{
    for (int i = 0; i < KERNELS_MAX_PROPERTIES; ++i) to->asked[i] += from->asked[i], to->ran[i] += from->ran[i];
    to->failures += from->failures;
    to->use_o = larger(to->use_o, from->use_o);
    to->use_lse = larger(to->use_lse, from->use_lse);
}

bool kernels_report(const struct kernel_tally *tally, const struct implementation *self, FILE *out)
{
    int64_t total = 0;
    bool enough = true;
    for (int i = 0; properties[i].name != NULL; ++i) {
        if (tally->asked[i] == 0) continue;
        const bool few = tally->ran[i] < tally->asked[i];
        fprintf(out, "%-24s %6" PRId64 " cases%s\n", properties[i].name, tally->ran[i], few ? ": TOO FEW" : "");
        total += tally->ran[i];
        enough &= !few;
    }
    fprintf(out, "%" PRId64 " cases on %s, %" PRId64 " failures; largest share of a bound: o %.3f, lse %.3f\n", total,
            self->name, tally->failures, tally->use_o, tally->use_lse);
    fflush(out);
    return enough && total > 0 && tally->failures == 0;
}

bool kernels_replay(const char *text, const struct implementation *self, int64_t work, FILE *out)
{
    struct replay_line line;
    struct property asked;
    char why[160];
    if (!replay_parse(text, &line, why)) {
        fprintf(out, "%s: %s\n", why, text);
        return false;
    }
    const struct property *property = property_named(line.property);
    if (property != NULL && kernels_property(property, work, &asked))
        return check_replay(&asked, self, &line.choices, out);
    fprintf(out, "no property of kernels: %s\n", line.property);
    return false;
}

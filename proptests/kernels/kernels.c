/* kernels.c - plans with launchers in place, and runs of the properties on kernels. */
#define _GNU_SOURCE /* open_memstream */
#include "proptests/kernels/kernels.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* ---- launchers ---- */

bool kernels_replace(struct kernel_launchers *launchers, const char *kernel, kernel_launcher *launcher)
{
    bool found = false; /* maybe several times, with lengths of its own each */
    for (int i = 0; forward_kernels[i].name != NULL; ++i)
        if (strcmp(kernel, forward_kernels[i].name) == 0)
            launchers->forward[i] = (forward_launcher *)launcher, found = true;
    for (int i = 0; backward_kernels[i].name != NULL; ++i)
        if (strcmp(kernel, backward_kernels[i].name) == 0)
            launchers->backward[i] = (backward_launcher *)launcher, found = true;
    if (found) return true;
    if (strcmp(kernel, merge_kernel.name) == 0) return launchers->merge = (merge_launcher *)launcher, true;
    if (strcmp(kernel, merge_backward_kernel.name) == 0)
        return launchers->merge_backward = (merge_backward_launcher *)launcher, true;
    return false;
}

bool kernels_any_length(struct lengths most) { return most.q == INT32_MAX && most.k == INT32_MAX; }

static struct attest_pass_plan pass_by(const char *kernel, struct lengths most, size_t workspace_bytes)
{
    struct attest_pass_plan out = {.num_shares = 1,
                                   .workspace_bytes = workspace_bytes,
                                   .shares = {{.struct_size = sizeof(struct attest_share),
                                               .kernel = kernel,
                                               .recipe = ref_kernel_recipe(kernel),
                                               .most_seqlen_q = most.q,
                                               .most_seqlen_k = most.k}}};
    snprintf(out.kernel, sizeof out.kernel, "%s", kernel);
    return out;
}

/* Returns whether a kernel has any length, on a GPU of generation `major`; 0 stands for the one at hand. */
static bool is_general_on(int major, struct lengths most, int only_major)
{
    return kernels_any_length(most) && (major == 0 || only_major == 0 || only_major == major);
}

/* Small cases are short: the kernels of any length would have none of them. */
static void leave_out_short(struct attest_plan *plan, int major)
{
    if (plan->forward_pass.num_shares > 0) {
        const struct forward_kernel *k = forward_kernels;
        while (!is_general_on(major, k->most, k->only_major) ||
               !kernel_takes(&k->reach, k->most, &plan->problem, 0, NULL, 0))
            ++k;
        plan->forward[0] = k;
        plan->forward_pass = pass_by(k->name, k->most, 0);
    }
    if (plan->backward_pass.num_shares > 0) {
        enum { ALIGNMENT = ATTEST_WORKSPACE_ALIGNMENT };
        const struct backward_kernel *k = backward_kernels;
        while (!is_general_on(major, k->most, k->only_major) ||
               !kernel_takes(&k->reach, k->most, &plan->problem, 0, NULL, 0))
            ++k;
        const size_t used = kernel_workspace_bytes(&k->reach, &plan->problem);
        const size_t bytes = (used + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT;
        plan->backward[0] = k;
        plan->backward_pass = pass_by(k->name, k->most, bytes);
    }
}

static void note_shares(struct computed *how, const struct attest_pass_plan *pass)
{
    *how = (struct computed){0};
    for (const struct attest_share *s = pass->shares; s < pass->shares + pass->num_shares; ++s)
        if (!computed_add(how, s->kernel, s->recipe, s->most_seqlen_q, s->most_seqlen_k)) abort();
}

enum attest_status kernels_plan(const struct kernel_implementation *self, const struct attest_problem *p,
                                enum attest_device device, enum attest_pass pass, struct kernel_run_plan *out)
{
    struct attest_problem on_device = *p;
    struct attest_plan *made;
    on_device.device = device;
    const int major = device != ATTEST_SIM ? 0 : self->generation == SIM_SM_80 ? 8 : 9;
    const enum attest_status status = attest_plan_create_for(&on_device, major, &made);
    if (status != ATTEST_OK) return status;
    struct attest_plan *const plan = &out->plan;
    *plan = *made;
    attest_plan_destroy(made);
    if (self->is_general) leave_out_short(plan, major);
    bool has_replaced = false;
    for (int n = 0; n < plan->forward_pass.num_shares; ++n) {
        forward_launcher *const launcher = self->launchers.forward[plan->forward[n] - forward_kernels];
        out->forward[n] = *plan->forward[n], plan->forward[n] = &out->forward[n];
        if (launcher != NULL) out->forward[n].sim = out->forward[n].cuda = launcher, has_replaced = true;
    }
    for (int n = 0; n < plan->backward_pass.num_shares; ++n) {
        backward_launcher *const launcher = self->launchers.backward[plan->backward[n] - backward_kernels];
        out->backward[n] = *plan->backward[n], plan->backward[n] = &out->backward[n];
        if (launcher != NULL) out->backward[n].sim = out->backward[n].cuda = launcher, has_replaced = true;
    }
    if (self->only_replaced && !has_replaced) return ATTEST_UNSUPPORTED;
    const struct attest_pass_plan *const asked = pass == ATTEST_BACKWARD ? &plan->backward_pass : &plan->forward_pass;
    out->workspace_bytes = asked->workspace_bytes;
    note_shares(&out->computed, asked);
    return ATTEST_OK;
}

/* ---- properties ---- */

bool kernels_property(const struct property *property, int64_t work, struct property *out)
{
    static const uint64_t not_taken = FEATURE(FP8);
    if (property->request.needs & not_taken) return false;
    *out = *property;
    out->request.forbids |= not_taken;
    if (out->request.max_work == 0 || out->request.max_work > work) out->request.max_work = work;
    return true;
}

static bool is_asked(const struct kernel_run *run, const struct property *property, struct property *asked)
{
    return property->request.backward == run->backward && kernels_property(property, run->work, asked);
}

static double larger(double a, double b) { return !(b <= a) ? b : a; }

static void add_seen(struct kernel_tally *tally, const struct prop_context *seen)
{
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        tally->use[t] = larger(tally->use[t], seen->use[t]);
        tally->judged[t] += seen->judged[t];
        tally->proven[t] += seen->proven[t];
    }
}

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
        check_run(property, &run->self->implementation, run->seed, first, left, &r);
        ran += r.cases;
        first += left;
        add_seen(tally, &r.seen);
        tally->refused[place] += r.seen.refused;
        if (r.failure == 0) continue;
        tally->failures += 1;
        fprintf(out, "%s FAILS on %s, case %" PRId64 "; the smallest:\n  %s\n  %s (work %" PRId64 ")\n", property->name,
                run->self->implementation.name, r.failing_case, r.message, r.line, run->work);
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
        weights += is_asked(run, p, &asked) ? p->weight : 0;
    for (int i = 0; properties[i].name != NULL; ++i) {
        if (!is_asked(run, &properties[i], &asked)) continue;
        const int64_t after = before + asked.weight;
        run_property(run, &asked, run->cases * after / weights - run->cases * before / weights, i, tally, out);
        before = after;
    }
}

void kernels_add(struct kernel_tally *to, const struct kernel_tally *from)
{
    for (int i = 0; i < KERNELS_MAX_PROPERTIES; ++i) {
        to->asked[i] += from->asked[i];
        to->ran[i] += from->ran[i];
        to->refused[i] += from->refused[i];
    }
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        to->use[t] = larger(to->use[t], from->use[t]);
        to->judged[t] += from->judged[t];
        to->proven[t] += from->proven[t];
    }
    to->failures += from->failures;
}

bool kernels_report(const struct kernel_tally *tally, const char *name, FILE *out)
{
    int64_t total = 0;
    bool enough = true;
    for (int i = 0; properties[i].name != NULL; ++i) {
        if (tally->asked[i] == 0) continue;
        const bool few = tally->ran[i] < tally->asked[i];
        fprintf(out, "%-27s %6" PRId64 " cases", properties[i].name, tally->ran[i]);
        if (tally->refused[i] > 0) fprintf(out, ", %" PRId64 " refused", tally->refused[i]);
        fprintf(out, "%s\n", few ? ": TOO FEW" : "");
        total += tally->ran[i];
        enough &= !few;
    }
    fprintf(out, "%" PRId64 " cases on %s, %" PRId64 " failures; largest share of a bound:", total, name,
            tally->failures);
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        if (tally->judged[t] > 0) fprintf(out, " %s %.3f", ref_tensor_names[t], tally->use[t]);
    fprintf(out, "\n");
    fflush(out);
    return enough && total > 0 && tally->failures == 0;
}

/* ---- cases with names ---- */

static struct kernels_verdict *verdict_of(struct kernels_verdicts *verdicts, const char *name)
{
    for (int i = 0; i < verdicts->count; ++i)
        if (strcmp(verdicts->of[i].name, name) == 0) return &verdicts->of[i];
    if (verdicts->count == KERNELS_MAX_NAMES) abort();
    struct kernels_verdict *const new_one = &verdicts->of[verdicts->count++];
    *new_one = (struct kernels_verdict){.name = name};
    return new_one;
}

int kernels_note(struct kernels_verdicts *verdicts, const char *name, int verdict)
{
    struct kernels_verdict *const of = verdict_of(verdicts, name);
    of->passed += verdict == TRIAL_PASSES;
    of->discarded += verdict == TRIAL_DISCARDED;
    return verdict == TRIAL_DISCARDED ? TRIAL_PASSES : verdict;
}

bool kernels_report_verdicts(const struct kernels_verdicts *verdicts, const char *of, FILE *out)
{
    int64_t passed = 0, discarded = 0;
    bool all = verdicts->count > 0;
    for (int i = 0; i < verdicts->count; ++i) {
        const struct kernels_verdict *const v = &verdicts->of[i];
        passed += v->passed, discarded += v->discarded;
        all &= v->passed > 0 || v->discarded == 0;
        if (v->passed == 0 && v->discarded > 0) fprintf(out, "%s: DISCARDED for every kernel\n", v->name);
    }
    fprintf(out, "%d %s: %" PRId64 " passed, %" PRId64 " discarded, as another kernel answered\n", verdicts->count, of,
            passed, discarded);
    fflush(out);
    return all;
}

/* ---- replay ---- */

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
        return check_replay(&asked, self, &line.choices, out) <= TRIAL_PASSES;
    fprintf(out, "no property of kernels: %s\n", line.property);
    return false;
}

/* The verdict; quiet, unless it fails. */
static int ask_line(const char *text, property_check *check, const struct implementation *self, FILE *out)
{
    struct replay_line line;
    char why[160], *said = NULL;
    size_t length;
    const struct property *named = replay_parse(text, &line, why) ? property_named(line.property) : NULL;
    FILE *const listener = open_memstream(&said, &length);
    if (listener == NULL) abort();
    int verdict = FAILS_LAW;
    if (named != NULL) {
        struct property property = *named;
        if (check != NULL) property.check = check;
        verdict = check_replay(&property, self, &line.choices, listener);
    }
    fclose(listener);
    if (verdict > TRIAL_PASSES) fprintf(out, "FAILS on %s: %s\n%s", self->name, text, said);
    free(said);
    return verdict;
}

int kernels_corpus(const char *path, const struct implementation *self, property_check *check, int *replayed,
                   FILE *out)
{
    FILE *const f = fopen(path, "r");
    static char text[CHECK_MAX_LINE];
    int failed = 0;
    *replayed = 0;
    if (f == NULL) return -1;
    while (fgets(text, sizeof text, f) != NULL) {
        text[strcspn(text, "\n")] = '\0';
        if (text[0] == '\0' || text[0] == '#') continue;
        const int verdict = ask_line(text, check, self, out);
        failed += verdict > TRIAL_PASSES;
        *replayed += verdict != TRIAL_DISCARDED;
    }
    fclose(f);
    return failed;
}

/* plugin_ask.c - what a plug-in takes, and each property of it. Runs in child processes. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "proptests/plugin/plugin.h"

#define DTYPES (FEATURE(FP16) | FEATURE(BF16) | FEATURE(FP32) | FEATURE(FP8))
#define DERIVED (FEATURE(ODD_HEAD_DIM) | FEATURE(LONG_Q)) /* of lengths and dims: not to be asked for one by one */
#define ALL ((UINT64_C(1) << NUM_FEATURES) - 1)

enum { FAILS_CRASH = FAILS_LAW + 1 };

/* The simulated GPU takes a hundred thousand times as long as a chip. */
static int64_t work_of(const struct plugin *plugin) { return plugin->device == ATTEST_SIM ? 1 << 13 : 1 << 16; }

/* ---- what is taken ---- */

static bool has_one_dtype(const struct prop_case *c)
{
    static const enum tensor_id outputs[] = {T_O, T_DOUT, T_DQ, T_DK, T_DV};
    for (int t = 0; t < 5; ++t) {
        const int32_t dtype = tensor_dtype(&c->p, outputs[t]);
        if (dtype != ATTEST_ABSENT && dtype != c->p.q.dtype) return false;
    }
    return true;
}

/* Whether one of several problems with `needs` and, but for dtypes and shapes, nothing else has a plan; if not, `why`
 * is what it said to one of them, of one dtype if there was such. */
static bool takes(struct plugin *plugin, bool backward, uint64_t needs, uint64_t dtypes_refused,
                  char why[PLUGIN_SENTENCE])
{
    enum { DRAWS = 24, WORK = 1 << 8 };
    const struct case_request request = {.backward = backward, .needs = needs, .max_work = WORK,
                                         .forbids = (ALL & ~DTYPES & ~needs) | dtypes_refused};
    for (uint64_t i = 0; i < DRAWS; ++i) {
        struct choices choices;
        struct prop_case c;
        choices_start(&choices, NULL, check_mix(i));
        case_draw(&c, &choices, &request);
        const enum attest_status status = plugin_takes(plugin, &c.p);
        if (i == 0 || status != ATTEST_UNSUPPORTED || has_one_dtype(&c))
            snprintf(why, PLUGIN_SENTENCE, "%s", plugin->refusal);
        case_free(&c);
        if (status != ATTEST_UNSUPPORTED) return true; /* other answers are for the properties to judge */
    }
    return false;
}

static void survey_pass(struct plugin *plugin, bool backward, struct plugin_survey *survey)
{
    static const uint64_t dtypes[] = {FEATURE(FP16), FEATURE(BF16), FEATURE(FP32), FEATURE(FP8)};
    uint64_t refused = 0;
    for (int f = 0; f < NUM_FEATURES; ++f) {
        const uint64_t bit = UINT64_C(1) << f, not_now = DERIVED | (backward ? 0 : backward_features);
        uint64_t needs = bit & ~DTYPES, forbidden = refused & DTYPES;
        if (bit & not_now) continue;
        if (bit & (FEATURE(TOP_LEFT) | FEATURE(DIAG_GIVEN))) needs |= FEATURE(CAUSAL) & ~refused; /* has a diagonal */
        for (int d = 0; d < 4; ++d) forbidden |= bit & DTYPES && bit != dtypes[d] ? dtypes[d] : 0;
        if ((forbidden & DTYPES) == DTYPES) continue; /* no dtype at all is taken */
        if (!takes(plugin, backward, needs, forbidden, survey->refusals[backward][f])) refused |= bit;
        else if (plugin->plans == 0) snprintf(survey->error, sizeof survey->error, "%s", plugin->refusal);
    }
    survey->refused[backward] = refused;
}

void plugin_ask_survey(struct plugin *plugin, struct plugin_survey *survey)
{
    const char *const wrong = plugin_load(plugin);
    if (wrong != NULL) {
        snprintf(survey->error, sizeof survey->error, "%s", wrong);
        return;
    }
    if (plugin->recipe == NULL && plugin->functions.plan_share == NULL) {
        snprintf(survey->error, sizeof survey->error, "it exports no attest_plan_share: name a recipe by --recipe");
        return;
    }
    survey->has_backward = plugin->functions.run_backward != NULL;
    survey->has_merge = plugin->functions.merge_states != NULL;
    survey->has_merge_backward = plugin->functions.merge_states_backward != NULL;
    plugin_implementation(plugin, "survey");
    for (int backward = 0; backward < 1 + survey->has_backward; ++backward) survey_pass(plugin, backward, survey);
    if (plugin->plans > 0) *survey->error = '\0';
    else if (*survey->error == '\0')
        snprintf(survey->error, sizeof survey->error, "it takes not even a plain problem: %s", plugin->refusal);
}

/* ---- a property of it ---- */

bool plugin_property(const struct property *property, const struct plugin *plugin, uint64_t refused,
                     struct property *asked, char why[PLUGIN_SENTENCE])
{
    struct case_request *request = &asked->request;
    *asked = *property;
    if ((request->needs & FEATURE(MASK)) && (refused & FEATURE(MASK))) { /* rows may be empty in other ways */
        request->needs &= ~FEATURE(MASK);
        request->needs |= (FEATURE(CAUSAL) | FEATURE(DIAG_GIVEN)) & ~refused;
    }
    for (int f = 0; f < NUM_FEATURES; ++f) {
        if (!(request->needs & refused & UINT64_C(1) << f)) continue;
        snprintf(why, PLUGIN_SENTENCE, "it needs %s, which is refused", feature_names[f]);
        return false;
    }
    request->forbids |= refused;
    if ((request->forbids & DTYPES) == DTYPES) {
        snprintf(why, PLUGIN_SENTENCE, "it needs a dtype that is refused");
        return false;
    }
    if (request->max_work == 0 || request->max_work > work_of(plugin)) request->max_work = work_of(plugin);
    return true;
}

struct trial_record {
    int verdict;
    bool was_refused, is_done;
    struct prop_context context;
    struct plugin_recipes seen;
};

struct question {
    const struct property *property;
    struct plugin_result *result;
    struct trial_record *apart; /* shared memory: each trial is a process; NULL: none is */
    bool has_failed;            /* from then on trials shrink */
    double until;               /* seconds: when shrinking ends */
};

static double seconds(void)
{
    struct timespec now;
    timespec_get(&now, TIME_UTC);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void try_here(struct plugin *plugin, const struct property *property, struct prop_case *c,
                     struct trial_record *record)
{
    plugin->status = ATTEST_OK;
    *plugin->refusal = '\0';
    record->verdict = property->check(c, &plugin->self.implementation, &record->context);
    record->was_refused = plugin->status == ATTEST_UNSUPPORTED;
    if (record->verdict == FAILS_STATUS && record->was_refused) record->verdict = TRIAL_DISCARDED;
    if (record->verdict == FAILS_STATUS || record->was_refused)
        snprintf(record->context.message, sizeof record->context.message, "%s", plugin->refusal);
    record->seen = plugin->seen;
    record->is_done = true;
}

/* The same in a process of its own. */
static void try_apart(struct plugin *plugin, const struct property *property, struct prop_case *c,
                      struct trial_record *record)
{
    int status = 0;
    fflush(NULL);
    const pid_t child = fork();
    if (child == 0) {
        const char *const name = plugin->self.implementation.name;
        if (plugin_load(plugin) == NULL) plugin_implementation(plugin, name), try_here(plugin, property, c, record);
        _exit(0);
    }
    if (child < 0 || waitpid(child, &status, 0) != child) abort();
    if (record->is_done && WIFEXITED(status)) return;
    record->verdict = FAILS_CRASH;
    plugin_ending(status, record->context.message);
}

static double larger(double a, double b) { return !(b <= a) ? b : a; }

static void count(struct plugin_result *result, const struct trial_record *record, const struct prop_case *c)
{
    const enum family family = c->data.family;
    result->refused += record->verdict == TRIAL_DISCARDED && record->was_refused;
    if (record->verdict == TRIAL_DISCARDED) return;
    result->cases += 1;
    result->family_cases[family] += 1;
    for (int f = 0; f < NUM_FEATURES; ++f) result->feature_cases[f] += c->features >> f & 1;
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        struct plugin_share *share = &result->shares[family][t];
        share->use = larger(share->use, record->context.use[t]);
        share->judged += record->context.judged[t];
        share->proven += record->context.proven[t];
    }
}

static int trial(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct plugin *const plugin = ((const struct plugin_self *)self)->plugin;
    struct question *q = plugin->question;
    struct trial_record here, *record = q->apart != NULL ? q->apart : &here;
    if (q->has_failed && seconds() > q->until) return TRIAL_PASSES;
    memset(record, 0, sizeof *record);
    q->result->drawn += !q->has_failed;
    (q->apart != NULL ? try_apart : try_here)(plugin, q->property, c, record);
    if (!q->has_failed) count(q->result, record, c);
    if (record->verdict > TRIAL_PASSES && !q->has_failed) q->until = seconds() + 60, q->has_failed = true;
    q->result->recipes = record->seen;
    if (*record->context.message != '\0') memcpy(context->message, record->context.message, sizeof context->message);
    return record->verdict;
}

static void note_failure(struct plugin_result *result, const struct check_result *r)
{
    result->verdict = r->failure == FAILS_CRASH ? PLUGIN_CRASH : PLUGIN_FAIL;
    memcpy(result->message, r->message, sizeof result->message);
    memcpy(result->line, r->line, sizeof result->line);
    result->batch = r->batch, result->head_dim = r->head_dim;
    result->seqlen_q = r->seqlen_q, result->seqlen_k = r->seqlen_k;
}

/* Whether there is a tensor of which no bound, in any case, said anything. */
static bool is_vacuous(struct plugin_result *result)
{
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        int64_t judged = 0, proven = 0;
        for (int f = 0; f < NUM_FAMILIES; ++f)
            judged += result->shares[f][t].judged, proven += result->shares[f][t].proven;
        if (judged == 0 || proven > 0) continue;
        snprintf(result->message, sizeof result->message, "the bounds of %s are larger than its values, in all %" PRId64
                 " cases", ref_tensor_names[t], judged);
        return true;
    }
    return false;
}

/* Features that are not drawn make the same choices mean another case: a replay line carries them, in the
 * implementation's name. */
static const char *const device_names[] = {"cuda", "sim", "reference"};
static void name_question(const struct plugin *plugin, uint64_t refused, char name[PLUGIN_NAME])
{
    snprintf(name, PLUGIN_NAME, "%s.%" PRIx64, device_names[plugin->device], refused);
}

static uint64_t seed_of(uint64_t seed, const struct property *property)
{
    for (const char *s = property->name; *s != '\0'; ++s) seed = check_mix(seed ^ (uint64_t)*s);
    return seed;
}

static void run(struct plugin *plugin, struct question *q, const struct property *asked, uint64_t refused,
                const struct options *options, int64_t first, int64_t cases)
{
    enum { PATIENCE = 20, ENOUGH = 200 };
    static struct check_result r;
    static char name[PLUGIN_NAME];
    struct property counted = *asked;
    struct plugin_result *result = q->result;
    const int64_t end = first + PATIENCE * cases;
    counted.check = trial;
    q->property = asked;
    plugin->question = q;
    name_question(plugin, refused, name);
    plugin_implementation(plugin, name);
    while (result->cases < cases && first < end && !q->has_failed && (result->cases > 0 || result->drawn < ENOUGH)) {
        const int64_t left = cases - result->cases < end - first ? cases - result->cases : end - first;
        check_run(&counted, &plugin->self.implementation, seed_of((uint64_t)options->seed, asked), first, left, &r);
        first += left;
    }
    if (r.failure != 0) {
        note_failure(result, &r);
    } else {
        result->verdict = result->cases == 0 ? PLUGIN_UNSUPPORTED : is_vacuous(result) ? PLUGIN_VACUOUS : PLUGIN_PASS;
        if (result->cases == 0)
            snprintf(result->message, sizeof result->message, "none of %" PRId64 " cases was taken: %.*s",
                     result->drawn, PLUGIN_REFUSAL, r.seen.message);
    }
    result->is_done = true;
}

/* A property's share of the cases, by weight. */
static int64_t cases_of(const struct property *property, int64_t all)
{
    int64_t weights = 0;
    for (const struct property *p = properties; p->name != NULL; ++p) weights += p->weight;
    return (all * property->weight + weights - 1) / weights;
}

void plugin_ask(struct plugin *plugin, const struct property *asked, uint64_t refused, const struct options *options,
                struct plugin_result *result)
{
    struct question q = {.result = result};
    if (plugin_load(plugin) == NULL) run(plugin, &q, asked, refused, options, 0, cases_of(asked, options->cases));
}

static struct trial_record *shared_record(void)
{
    struct trial_record *record =
        mmap(NULL, sizeof *record, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (record == MAP_FAILED) abort();
    return record;
}

void plugin_ask_crash(struct plugin *plugin, const struct property *asked, uint64_t refused,
                      const struct options *options, struct plugin_result *result)
{
    struct plugin_result alone = {0};
    struct question q = {.result = &alone, .apart = shared_record()};
    const int64_t at = result->drawn - 1;
    run(plugin, &q, asked, refused, options, at, 1);
    if (alone.verdict == PLUGIN_FAIL || alone.verdict == PLUGIN_CRASH) {
        result->verdict = alone.verdict;
        memcpy(result->line, alone.line, sizeof result->line);
        memcpy(result->message, alone.message, sizeof result->message);
        result->batch = alone.batch, result->head_dim = alone.head_dim;
        result->seqlen_q = alone.seqlen_q, result->seqlen_k = alone.seqlen_k;
    } else {
        const size_t length = strlen(result->message);
        snprintf(result->message + length, sizeof result->message - length,
                 " in case %" PRId64 " of this property, which alone does not end so", at + 1);
    }
    result->is_done = true;
}

/* ---- replay ---- */

/* "reference.3fe": the device and what is not drawn. */
static bool parse_question(const char *name, struct plugin *plugin, uint64_t *refused)
{
    for (int d = 0; d < 3; ++d) {
        const size_t length = strlen(device_names[d]);
        char *end;
        if (strncmp(name, device_names[d], length) != 0 || name[length] != '.') continue;
        plugin->device = (enum attest_device)d;
        *refused = strtoull(name + length + 1, &end, 16);
        return *end == '\0' && *refused <= ALL;
    }
    return false;
}

int plugin_replay(struct plugin *plugin, const char *text, FILE *out)
{
    static struct plugin_result result;
    struct replay_line line;
    struct property asked;
    char why[PLUGIN_SENTENCE] = "it names no property and device of a plug-in's audit";
    uint64_t refused;
    if (!replay_parse(text, &line, why)) {
        fprintf(stderr, "audit: %s\n", why);
        return AUDIT_EXIT_UNUSABLE;
    }
    const struct property *property = property_named(line.property);
    if (property == NULL || !parse_question(line.implementation, plugin, &refused) ||
        !plugin_property(property, plugin, refused, &asked, why)) {
        fprintf(stderr, "audit: %s: %s\n", text, why);
        return AUDIT_EXIT_UNUSABLE;
    }
    struct question q = {.property = &asked, .result = &result, .apart = shared_record()};
    struct property counted = asked;
    counted.check = trial;
    plugin->question = &q;
    plugin_implementation(plugin, line.implementation);
    const int verdict = check_replay(&counted, &plugin->self.implementation, &line.choices, out);
    if (verdict == TRIAL_DISCARDED) fprintf(out, "UNSUPPORTED: %s\n", q.apart->context.message);
    else fprintf(out, "%s\n", verdict == TRIAL_PASSES ? "PASS" : verdict == FAILS_CRASH ? "CRASH" : "FAIL");
    return verdict == TRIAL_PASSES ? AUDIT_EXIT_PASS : AUDIT_EXIT_FAIL;
}

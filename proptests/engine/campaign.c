/* campaign.c - runs of the whole table. */
#include "proptests/engine/campaign.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

const struct implementation *campaign_implementation(int index)
{
    if (index == 0) return &oracle_implementation;
    if (index == 1) return &library_implementation;
    for (int i = 0; i < index - 2; ++i)
        if (emulations[i].name == NULL) return NULL;
    return emulations[index - 2].name != NULL ? &emulations[index - 2] : NULL;
}

const struct implementation *campaign_implementation_named(const char *name)
{
    const struct implementation *e;
    for (int i = 0; (e = campaign_implementation(i)) != NULL; ++i)
        if (strcmp(e->name, name) == 0) return e;
    return NULL;
}

static bool is_asked(const struct campaign *campaign, const struct property *property)
{
    return property->request.backward == campaign->backward &&
           (campaign->property == NULL || strcmp(property->name, campaign->property) == 0);
}

static bool is_asked_of(const struct campaign *campaign, const struct property *property,
                        const struct implementation *self)
{
    return !(property->of_recipes && is_oracle(self)) &&
           (campaign->implementation == NULL || strcmp(self->name, campaign->implementation) == 0);
}

static void add_result(struct campaign_result *to, const struct check_result *from)
{
    to->cases += from->cases;
    to->discarded += from->discarded;
    to->failures += from->failure != 0;
    to->tensors += from->seen.tensors;
    to->overflows += from->seen.overflows;
    for (int i = 0; i < 64; ++i) to->work_bits[i] += from->work_bits[i];
    for (int a = 0; a < NUM_FEATURES; ++a)
        for (int b = 0; b < NUM_FEATURES; ++b) to->feature_pairs[a][b] += from->feature_pairs[a][b];
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        if (!(from->seen.use[t] <= to->use[t])) to->use[t] = from->seen.use[t];
}

static void print_failure(const struct property *property, const struct implementation *self,
                          const struct check_result *r, FILE *out)
{
    struct replay_line line;
    char why[160];
    fprintf(out, "\n%s FAILS on %s, case %" PRId64 "; shrunk in %" PRId64 " runs:\n", property->name, self->name,
            r->failing_case, r->shrink_runs);
    if (replay_parse(r->line, &line, why)) check_replay(property, self, &line.choices, out);
    fprintf(out, "  %s\n", r->line);
    fflush(out);
}

/* A stream of cases for each property and implementation: they are not to see the same ones. */
static uint64_t seed_of(const struct campaign *campaign, const struct property *property,
                        const struct implementation *self)
{
    uint64_t hash = campaign->seed;
    for (const char *s = property->name; *s; ++s) hash = check_mix(hash ^ (uint64_t)*s);
    for (const char *s = self->name; *s; ++s) hash = check_mix(hash ^ (uint64_t)*s);
    return hash;
}

/* `cases` that are not discarded. */
static bool run_pair(const struct campaign *campaign, const struct property *property,
                     const struct implementation *self, int64_t cases, struct campaign_result *result, FILE *out)
{
    enum { PATIENCE = 20 };
    static struct check_result r;
    int64_t first = campaign->first_case;
    for (int64_t left = cases; left > 0 && first < campaign->first_case + PATIENCE * cases;) {
        const bool passed = check_run(property, self, seed_of(campaign, property, self), first, left, &r);
        result->runs += 1;
        add_result(result, &r);
        if (!passed && r.failure != 0) {
            print_failure(property, self, &r, out);
            return false;
        }
        first += left;
        left -= r.cases;
    }
    return true;
}

/* Share `index` of `count` of a number that does not divide. */
static int64_t share(int64_t total, int64_t index, int64_t count)
{
    return total * (index + 1) / count - total * index / count;
}

bool campaign_run(const struct campaign *campaign, struct campaign_result *result, FILE *out)
{
    int64_t weights = 0, before = 0;
    bool passed = true;
    for (const struct property *p = properties; p->name != NULL; ++p) weights += is_asked(campaign, p) ? p->weight : 0;
    for (const struct property *p = properties; p->name != NULL; ++p) {
        if (!is_asked(campaign, p)) continue;
        const int64_t cases = campaign->cases * (before + p->weight) / weights - campaign->cases * before / weights;
        const struct implementation *self;
        int count = 0, index = 0;
        for (int i = 0; (self = campaign_implementation(i)) != NULL; ++i) count += is_asked_of(campaign, p, self);
        for (int i = 0; (self = campaign_implementation(i)) != NULL; ++i)
            if (is_asked_of(campaign, p, self))
                passed &= run_pair(campaign, p, self, share(cases, index++, count), result, out);
        before += p->weight;
    }
    return passed;
}

/* ---- what was covered ---- */

static bool may_meet(bool backward, int a, int b)
{
    if (!backward && ((backward_features >> a | backward_features >> b) & 1)) return false;
    for (int i = 0; i < num_excluded_pairs; ++i)
        if ((int)excluded_pairs[i].a == a && (int)excluded_pairs[i].b == b) return false;
    return true;
}

static void print_pairs(bool backward, const struct campaign_result *r, FILE *out)
{
    fprintf(out, "cases with both features (a dot: never by definition):\n");
    for (int a = 0; a < NUM_FEATURES; ++a) {
        if (!may_meet(backward, a, a)) continue;
        fprintf(out, "%-12s", feature_names[a]);
        for (int b = 0; b <= a; ++b) {
            if (may_meet(backward, b, a)) fprintf(out, " %4" PRId64, r->feature_pairs[b][a]);
            else fprintf(out, "    .");
        }
        fputc('\n', out);
    }
    for (int i = 0; i < num_excluded_pairs; ++i)
        fprintf(out, "never: %s and %s: %s\n", feature_names[excluded_pairs[i].a], feature_names[excluded_pairs[i].b],
                excluded_pairs[i].reason);
}

static int missing_pairs(bool backward, const struct campaign_result *r, FILE *out)
{
    int missing = 0;
    for (int a = 0; a < NUM_FEATURES; ++a)
        for (int b = a; b < NUM_FEATURES; ++b) {
            if (!may_meet(backward, a, b) || r->feature_pairs[a][b] >= CAMPAIGN_LEAST_PAIRS) continue;
            fprintf(out, "MISSING: %s and %s met %" PRId64 " times, not %d\n", feature_names[a], feature_names[b],
                    r->feature_pairs[a][b], CAMPAIGN_LEAST_PAIRS);
            ++missing;
        }
    return missing;
}

static int median_bits(const struct campaign_result *r)
{
    int64_t sum = 0;
    for (int bits = 0; bits < 64; ++bits) {
        sum += r->work_bits[bits];
        if (2 * sum > r->cases) return bits;
    }
    return -1;
}

bool campaign_report(const struct campaign *campaign, const struct campaign_result *r, FILE *out)
{
    print_pairs(campaign->backward, r, out);
    const int bits = median_bits(r), missing = missing_pairs(campaign->backward, r, out);
    fprintf(out, "%" PRId64 " cases (%" PRId64 " discarded) of %s, median of 2^%d .. 2^%d scores x head_dim\n",
            r->cases, r->discarded, campaign->backward ? "backward" : "forward", bits, bits + 1);
    fprintf(out, "largest share of a bound:");
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        if (r->use[t] > 0) fprintf(out, " %s %.3f", ref_tensor_names[t], r->use[t]);
    fprintf(out, "; %" PRId64 " of %" PRId64 " tensors reach outside of a recipe's domain\n", r->overflows, r->tensors);
    if (r->cases < campaign->cases) fprintf(out, "TOO FEW: %" PRId64 " cases were asked for\n", campaign->cases);
    if (bits < CAMPAIGN_LEAST_WORK_BITS)
        fprintf(out, "TOO SMALL: the median case must have 2^%d\n", CAMPAIGN_LEAST_WORK_BITS);
    fflush(out);
    return missing == 0 && r->cases > 0 && r->cases >= campaign->cases && bits >= CAMPAIGN_LEAST_WORK_BITS;
}

/* ---- replay ---- */

bool campaign_replay(const char *text, FILE *out)
{
    struct replay_line line;
    char why[160];
    if (!replay_parse(text, &line, why)) {
        fprintf(out, "%s: %s\n", why, text);
        return false;
    }
    const struct property *property = property_named(line.property);
    const struct implementation *self = campaign_implementation_named(line.implementation);
    if (property == NULL || self == NULL) {
        fprintf(out, "there is no %s %s\n", property == NULL ? "property" : "implementation",
                property == NULL ? line.property : line.implementation);
        return false;
    }
    return check_replay(property, self, &line.choices, out) <= TRIAL_PASSES;
}

int campaign_corpus(const char *path, bool backward, int *replayed, FILE *out)
{
    FILE *f = fopen(path, "r");
    char text[CHECK_MAX_LINE];
    int failed = 0;
    *replayed = 0;
    if (f == NULL) return -1;
    while (fgets(text, sizeof text, f) != NULL) {
        struct replay_line line;
        char why[160];
        text[strcspn(text, "\n")] = '\0';
        if (text[0] == '\0' || text[0] == '#') continue;
        const bool well_formed = replay_parse(text, &line, why);
        const struct property *property = well_formed ? property_named(line.property) : NULL;
        if (property != NULL && property->request.backward != backward) continue;
        ++*replayed;
        failed += !campaign_replay(text, out);
    }
    fclose(f);
    return failed;
}

/* check.c - choices, the search for a failing case, and its shrinking. */
#include "proptests/engine/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_SHRINK_RUNS = 3000, MAX_TRIED = 8192, REPAIR_REACH = 8 };

uint64_t check_mix(uint64_t x)
{
    x += UINT64_C(0x9e3779b97f4a7c15);
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

void choices_start(struct choices *c, const struct sequence *replay, uint64_t seed)
{
    c->replay = replay;
    c->random = seed;
    c->made.count = c->num_spans = c->depth = 0;
}

uint64_t choices_random(struct choices *c)
{
    if (c->replay != NULL) return 0;
    c->random += UINT64_C(0x9e3779b97f4a7c15);
    return check_mix(c->random);
}

int64_t choose_proposed(struct choices *c, int64_t lo, int64_t hi, int64_t proposal)
{
    const int i = c->made.count++;
    if (i == CHECK_MAX_CHOICES || lo > hi) {
        fprintf(stderr, "choose(%" PRId64 ", %" PRId64 "), choice %d: a broken generator\n", lo, hi, i);
        abort();
    }
    const uint64_t range = (uint64_t)hi - (uint64_t)lo;
    uint64_t value = (uint64_t)proposal - (uint64_t)lo;
    if (c->replay != NULL) value = i < c->replay->count ? c->replay->at[i] : 0;
    if (value > range) value = range;
    c->made.at[i] = value;
    return (int64_t)((uint64_t)lo + value);
}

int64_t choose(struct choices *c, int64_t lo, int64_t hi)
{
    const uint64_t range = (uint64_t)hi - (uint64_t)lo, bits = choices_random(c);
    return choose_proposed(c, lo, hi, (int64_t)((uint64_t)lo + (range == UINT64_MAX ? bits : bits % (range + 1))));
}

bool choose_flag(struct choices *c, double probability)
{
    const bool proposal = (double)(choices_random(c) >> 11) * 0x1p-53 < probability;
    return choose_proposed(c, 0, 1, proposal) != 0;
}

void span_begin(struct choices *c)
{
    if (c->num_spans == CHECK_MAX_SPANS || c->depth == (int)(sizeof c->open / sizeof *c->open)) abort();
    c->open[c->depth++] = c->num_spans;
    c->spans[c->num_spans++] = (struct span){c->made.count, c->made.count};
}

void span_end(struct choices *c) { c->spans[c->open[--c->depth]].end = c->made.count; }

static void trim(struct sequence *s)
{
    while (s->count > 0 && s->at[s->count - 1] == 0) --s->count;
}

bool sequence_less(const struct sequence *a, const struct sequence *b)
{
    if (a->count != b->count) return a->count < b->count;
    for (int i = 0; i < a->count; ++i) {
        if (a->at[i] != b->at[i]) return a->at[i] < b->at[i];
    }
    return false;
}

void search(trial_function *trial, void *context, uint64_t seed, int64_t first_case, int64_t cases,
            struct search_result *result)
{
    memset(result, 0, sizeof *result);
    for (int64_t n = 0; n < cases && result->failure == TRIAL_PASSES; ++n) {
        struct choices choices;
        choices_start(&choices, NULL, check_mix(seed ^ check_mix((uint64_t)(first_case + n))));
        const int verdict = trial(&choices, context);
        result->cases += verdict != TRIAL_DISCARDED;
        result->discarded += verdict == TRIAL_DISCARDED;
        if (verdict <= TRIAL_PASSES) continue;
        result->failure = verdict;
        result->failing_case = n + 1;
        trim(&choices.made);
        result->first = result->smallest = choices.made;
        result->shrink_runs = shrink(trial, context, verdict, &result->smallest, MAX_SHRINK_RUNS);
    }
}

/* ---- shrinking ---- */

struct shrinker {
    trial_function *trial;
    void *context;
    int failure;
    struct sequence best; /* trimmed */
    int drawn;            /* choices that the best case drew, zeros at the end included */
    struct span spans[CHECK_MAX_SPANS];
    int num_spans;
    int64_t runs, most_runs;
    int last_drawn;       /* choices that the last candidate drew */
    uint64_t tried[MAX_TRIED]; /* hashes of candidates, so that none runs twice */
};

static bool seen_before(struct shrinker *s, const struct sequence *candidate)
{
    uint64_t hash = check_mix((uint64_t)candidate->count);
    for (int i = 0; i < candidate->count; ++i) hash = check_mix(hash ^ candidate->at[i]);
    uint64_t *slot = &s->tried[hash % MAX_TRIED];
    const bool seen = *slot == hash;
    *slot = hash;
    return seen;
}

/* Runs a candidate; keeps it where it is smaller and still fails in the same class. */
static bool attempt(struct shrinker *s, struct sequence *candidate)
{
    trim(candidate);
    s->last_drawn = s->drawn;
    if (!sequence_less(candidate, &s->best) || seen_before(s, candidate) || s->runs >= s->most_runs) return false;
    s->runs += 1;
    struct choices choices;
    choices_start(&choices, candidate, 0);
    const int verdict = s->trial(&choices, s->context);
    s->last_drawn = choices.made.count;
    trim(&choices.made);
    if (verdict != s->failure || !sequence_less(&choices.made, &s->best)) return false;
    s->best = choices.made;
    s->drawn = s->last_drawn;
    memcpy(s->spans, choices.spans, sizeof s->spans);
    s->num_spans = choices.num_spans;
    return true;
}

static void erase(struct sequence *s, int begin, int count)
{
    if (begin >= s->count) return;
    if (count > s->count - begin) count = s->count - begin;
    memmove(s->at + begin, s->at + begin + count, (size_t)(s->count - begin - count) * sizeof *s->at);
    s->count -= count;
}

static bool attempt_without(struct shrinker *s, int begin, int count)
{
    struct sequence candidate = s->best;
    erase(&candidate, begin, count);
    return attempt(s, &candidate);
}

/* Lowers choice i. Where that alone changes what follows (fewer choices drawn: something was
 * switched off), as many of the next ones go too: those right behind it, or some a little further on. */
static bool attempt_value(struct shrinker *s, int i, uint64_t value)
{
    struct sequence candidate = s->best;
    candidate.at[i] = value;
    if (attempt(s, &candidate)) return true;
    const int fewer = s->drawn - s->last_drawn;
    for (int begin = i + 1; fewer > 0 && begin <= i + REPAIR_REACH && begin < s->best.count; ++begin) {
        candidate = s->best;
        candidate.at[i] = value;
        erase(&candidate, begin, fewer);
        if (attempt(s, &candidate)) return true;
    }
    return false;
}

static bool delete_spans(struct shrinker *s)
{
    bool any = false;
    for (int i = 0; i < s->num_spans;) {
        const struct span span = s->spans[i];
        if (span.end > span.begin && attempt_without(s, span.begin, span.end - span.begin)) any = true;
        else ++i;
    }
    return any;
}

static bool delete_chunks(struct shrinker *s)
{
    bool any = false;
    for (int size = 8; size >= 1; size /= 2) {
        for (int i = s->best.count - size; i >= 0;) {
            if (i + size <= s->best.count && attempt_without(s, i, size)) any = true;
            else --i;
        }
    }
    return any;
}

/* The smallest value of choice i that fails, if smaller values do so less: binary search. */
static bool lower_choice(struct shrinker *s, int i)
{
    if (s->best.at[i] == 0) return false;
    if (attempt_value(s, i, 0)) return true;
    bool any = false;
    uint64_t good = 0; /* does not fail */
    while (i < s->best.count && s->best.at[i] - good > 1) {
        const uint64_t middle = good + (s->best.at[i] - good) / 2;
        if (attempt_value(s, i, middle)) any = true;
        else good = middle;
    }
    while (i < s->best.count && s->best.at[i] > 0 && attempt_value(s, i, s->best.at[i] - 1)) any = true;
    return any;
}

static bool lower_choices(struct shrinker *s)
{
    bool any = false;
    for (int i = 0; i < s->best.count; ++i) any |= lower_choice(s, i);
    return any;
}

/* Two choices down by the same amount: lengths that must stay equal. */
static bool lower_pairs(struct shrinker *s)
{
    bool any = false;
    for (int i = 0; i < s->best.count; ++i) {
        for (int j = i + 1; j < s->best.count && j <= i + 12; ++j) {
            uint64_t step = s->best.at[i] < s->best.at[j] ? s->best.at[i] : s->best.at[j];
            for (; step > 0 && j < s->best.count; step /= 2) {
                struct sequence candidate = s->best;
                if (candidate.at[i] < step || candidate.at[j] < step) continue;
                candidate.at[i] -= step, candidate.at[j] -= step;
                any |= attempt(s, &candidate);
            }
        }
    }
    return any;
}

int64_t shrink(trial_function *trial, void *context, int failure, struct sequence *sequence, int64_t runs)
{
    struct shrinker *s = calloc(1, sizeof *s);
    if (s == NULL) abort();
    s->trial = trial, s->context = context, s->failure = failure, s->most_runs = runs;
    struct choices choices;
    choices_start(&choices, sequence, 0);
    if (trial(&choices, context) == failure) { /* learns spans and length */
        s->best = *sequence;
        s->drawn = choices.made.count;
        memcpy(s->spans, choices.spans, sizeof s->spans);
        s->num_spans = choices.num_spans;
        trim(&s->best);
        bool pairs = false; /* quadratic, so only where the cheap passes end; then it stays on */
        for (bool any = true; any && s->runs < runs;) {
            any = delete_spans(s);
            any |= lower_choices(s);
            any |= delete_chunks(s);
            if (!any || pairs) pairs = true, any |= lower_pairs(s);
        }
        *sequence = s->best;
    }
    const int64_t made = s->runs + 1;
    free(s);
    return made;
}

/* ---- replay lines ---- */

void replay_format(const struct replay_line *line, char out[CHECK_MAX_LINE])
{
    int at = snprintf(out, CHECK_MAX_LINE, "v1;property=%s;implementation=%s;choices=", line->property,
                      line->implementation);
    for (int i = 0; i < line->choices.count; ++i)
        at += snprintf(out + at, (size_t)(CHECK_MAX_LINE - at), "%s%" PRIx64, i ? "." : "", line->choices.at[i]);
}

/* Copies what follows `key` up to the next ';' or the end. */
static bool take_name(const char **text, const char *key, char name[64])
{
    const size_t length = strlen(key);
    if (strncmp(*text, key, length) != 0) return false;
    const size_t size = strcspn(*text + length, ";\n");
    if (size == 0 || size >= 64 || (*text)[length + size] != ';') return false;
    memcpy(name, *text + length, size);
    name[size] = '\0';
    *text += length + size + 1;
    return true;
}

static bool is_hex(char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); }

static bool take_choices(const char *text, struct sequence *s)
{
    s->count = 0;
    while (*text != '\0') {
        size_t digits = 0;
        uint64_t value = 0;
        for (; is_hex(text[digits]); ++digits)
            value = value * 16 + (uint64_t)(text[digits] <= '9' ? text[digits] - '0' : text[digits] - 'a' + 10);
        if (digits == 0 || digits > 16 || s->count == CHECK_MAX_CHOICES) return false;
        s->at[s->count++] = value;
        text += digits;
        if (*text == '\0') break;
        if (*text++ != '.' || *text == '\0') return false;
    }
    return s->count == 0 || s->at[s->count - 1] != 0;
}

bool replay_parse(const char *text, struct replay_line *line, char why[160])
{
    static const char version[] = "v1;", choices[] = "choices=";
    const char *wrong = NULL;
    memset(line, 0, sizeof *line);
    if (strncmp(text, version, strlen(version)) != 0) wrong = "it must begin with v1;";
    else if (text += strlen(version), !take_name(&text, "property=", line->property))
        wrong = "property=NAME; must follow v1;";
    else if (!take_name(&text, "implementation=", line->implementation))
        wrong = "implementation=NAME; must follow the property";
    else if (strncmp(text, choices, strlen(choices)) != 0) wrong = "choices= must follow the implementation";
    else if (!take_choices(text + strlen(choices), &line->choices))
        wrong = "choices must be hexadecimal numbers of at most 16 digits with dots between, the last not 0";
    if (wrong != NULL) snprintf(why, 160, "not a replay line: %s", wrong);
    return wrong == NULL;
}

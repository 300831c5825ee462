/* tightness.c - how much of each error bound honest kernels use.
 *
 *     bazel run //proptests:tightness -- --cases 1000     random small problems of every family, to every emulation
 *     bazel run //proptests:tightness -- --long           seqlen 1024, head_dim 64, family `normal` or another
 *
 * Prints the largest |got - oracle| / bound of every tensor and, on the families where it counts, the largest
 * share of the statistical thresholds. Exit status 1 if one is above 1 or is NaN: then a bound or an
 * emulation is wrong. */
#include <argp.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proptests/case.h"
#include "proptests/emulate.h"
#include "proptests/long_case.h"
#include "reference/bounds.h"
#include "reference/parallel.h"

enum { MAX_EMULATIONS = 16 };

static const struct argp_option options[] = {
    {"cases", 'n', "N", 0, "cases of every family (1000)", 0},
    {"seed", 's', "N", 0, "first seed (1)", 0},
    {"threads", 't', "N", 0, "threads, 0 for all cores (0)", 0},
    {"long", 'l', NULL, 0, "one long problem of every mask and dtype instead", 0},
    {"family", 'f', "NAME", 0, "cases of this family alone; of the long problem, normal without it", 0},
    {"emulation", 'e', "NAME", 0, "this one alone", 0},
    {"heads", 'h', "N", 0, "heads of the long problem (2)", 0},
    {0},
};

static struct {
    int64_t cases, seed, threads, heads;
    int family;                             /* NUM_FAMILIES: all */
    const struct implementation *emulation; /* NULL: all */
    bool is_long;
} settings = {.cases = 1000, .seed = 1, .heads = 2, .family = NUM_FAMILIES};

static int64_t parse_count(const char *text, struct argp_state *state)
{
    char *end;
    const long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 0) argp_error(state, "'%s' is not a number of 0 or more", text);
    return value;
}

static enum family parse_family(const char *name, struct argp_state *state)
{
    for (int f = 0; f < NUM_FAMILIES; ++f)
        if (strcmp(family_names[f], name) == 0) return (enum family)f;
    argp_error(state, "there is no family '%s'", name);
    return FAMILY_NORMAL;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    switch (key) {
    case 'n': settings.cases = parse_count(argument, state); return 0;
    case 's': settings.seed = parse_count(argument, state); return 0;
    case 't': settings.threads = parse_count(argument, state); return 0;
    case 'h': settings.heads = parse_count(argument, state); return 0;
    case 'f': settings.family = parse_family(argument, state); return 0;
    case 'e':
        settings.emulation = emulation_named(argument);
        if (!settings.emulation) argp_error(state, "there is no emulation '%s'", argument);
        return 0;
    case 'l': settings.is_long = true; return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* What one implementation used of its bounds. */
struct shares {
    double use[REF_NUM_TENSORS]; /* largest; NaN stays */
    double rms, mean, direction; /* largest error over its statistical threshold, of any tensor */
    int64_t tensors, outside;    /* judged; with an element outside of the recipe's domain */
};

static void raise_to(double *largest, double use)
{
    if (!isnan(*largest) && !(use <= *largest)) *largest = use;
}

static void merge(struct shares *to, const struct shares *from)
{
    for (int t = 0; t < REF_NUM_TENSORS; ++t) raise_to(&to->use[t], from->use[t]);
    raise_to(&to->rms, from->rms);
    raise_to(&to->mean, from->mean);
    raise_to(&to->direction, from->direction);
    to->tensors += from->tensors;
    to->outside += from->outside;
}

/* One problem with its oracle; which tensors take part. */
struct subject {
    struct prop_case *c;
    bool present[REF_NUM_TENSORS];
    int64_t count[REF_NUM_TENSORS];
    bool statistical; /* a family on which the statistical verdict counts */
    double *oracle[REF_NUM_TENSORS];
    struct ref_bound bounds[REF_NUM_TENSORS];
};

static const enum tensor_id ids[] = {T_O, T_LSE, T_DQ, T_DK, T_DV, T_DBIAS};

/* The families of the statistical verdict, on problems whose scores and results differ from each other. */
static bool is_statistical(const struct prop_case *c)
{
    const enum family f = c->data.family;
    const bool family = f == FAMILY_NORMAL || f == FAMILY_OUTLIER || f == FAMILY_MEAN || f == FAMILY_RECORDED;
    if (c->p.head_dim < 16 || c->p.head_dim_v < 16) return false;
    return family && !(c->features & (FEATURE(SCALE) | FEATURE(BROADCAST) | FEATURE(FP8)));
}

static void oracle_of(struct subject *s, struct prop_case *c)
{
    const bool forward = c->p.o.dtype != ATTEST_ABSENT && !c->p.external_lse;
    *s = (struct subject){.c = c, .statistical = is_statistical(c)};
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        const bool is_forward = t <= REF_LSE, is_sink = t == REF_DSINK;
        s->present[t] = is_forward ? forward : is_sink ? c->p.has_sink : t != REF_DBIAS || c->p.dbias.dtype;
        s->count[t] = is_sink ? c->p.num_heads_q : s->present[t] ? case_count(c, ids[t]) : 0;
        if (!s->present[t]) continue;
        s->oracle[t] = case_doubles(c, s->count[t]);
        s->bounds[t].bound = case_doubles(c, s->count[t]);
        if (!s->statistical) continue;
        s->bounds[t].sigma = case_doubles(c, s->count[t]);
        s->bounds[t].bias = case_doubles(c, s->count[t]);
        s->bounds[t].shift = case_doubles(c, s->count[t]);
        if (t == REF_O || t == REF_DQ) s->bounds[t].along = case_doubles(c, case_count(c, T_LSE));
    }
    const struct ref_forward f = {s->oracle[REF_O], s->oracle[REF_LSE]};
    const struct ref_backward b = {.dq = s->oracle[REF_DQ],
                                   .dk = s->oracle[REF_DK],
                                   .dv = s->oracle[REF_DV],
                                   .dbias = s->oracle[REF_DBIAS],
                                   .dsink = s->oracle[REF_DSINK]};
    if (forward && ref_forward(&c->p, &c->a.forward, &f, 1) != ATTEST_OK) abort();
    if (ref_backward(&c->p, &c->a, NULL, &b, 1) != ATTEST_OK) abort();
}

static const void *result_of(const struct prop_case *c, enum ref_tensor t)
{
    const void *const results[] = {c->a.forward.o, c->a.forward.lse, c->a.dq, c->a.dk, c->a.dv, c->a.dbias, c->a.dsink};
    return results[t];
}

static void complain(const struct subject *s, const struct implementation *self, int tensor, const struct ref_report *r)
{
    static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
    pthread_mutex_lock(&mutex);
    fprintf(
        stderr,
        "%s: %s[%ld,%ld,%ld,%ld] is %.9g, the oracle says %.9g, the bound is %.3g (%.3g of it; rms %.3g, mean %.3g, direction %.3g)\n",
        self->name, ref_tensor_names[tensor], (long)r->use_index[0], (long)r->use_index[1], (long)r->use_index[2],
        (long)r->use_index[3], r->use_got, r->use_want, r->use_bound, r->use, r->rms_ratio, r->mean_ratio,
        r->direction_ratio);
    case_print(s->c, stderr);
    pthread_mutex_unlock(&mutex);
}

static void run(struct subject *s, const struct implementation *self, int threads, struct shares *shares)
{
    struct prop_case *c = s->c;
    const struct ref_bound *const bounds = s->bounds;
    case_reset_outputs(c);
    if (s->present[REF_O]) {
        if (self->forward(self, &c->p, &c->a.forward) != ATTEST_OK) abort();
        if (ref_bound_forward(&c->p, &c->a.forward, self->recipe, &bounds[REF_O], &bounds[REF_LSE], threads)) abort();
    }
    if (self->backward(self, &c->p, &c->a) != ATTEST_OK) abort();
    if (ref_bound_backward(&c->p, &c->a, self->recipe, bounds, threads)) abort();
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        struct ref_report report;
        if (!s->present[t]) continue;
        ref_judge(&c->p, &c->a.forward, (enum ref_tensor)t, result_of(c, (enum ref_tensor)t), s->oracle[t], &bounds[t],
                  s->statistical, &report);
        if (s->statistical && t == REF_O && ref_judge_keys(&c->p, &c->a, c->a.forward.o, s->oracle[t], &bounds[t], &report))
            abort();
        if (!(report.use <= 1) || !(report.rms_ratio <= 1) || !(report.mean_ratio <= 1) || !(report.direction_ratio <= 1))
            complain(s, self, t, &report);
        raise_to(&shares->use[t], report.use);
        raise_to(&shares->rms, report.rms_ratio);
        raise_to(&shares->mean, report.mean_ratio);
        raise_to(&shares->direction, report.direction_ratio);
        ++shares->tensors;
        shares->outside += report.overflow_count > 0;
    }
}

static bool is_family_asked_for(int f) { return settings.family == NUM_FAMILIES || settings.family == f; }
static bool is_asked_for(int r) { return !settings.emulation || settings.emulation == &emulations[r]; }

/* Every case is drawn once and given to every implementation. */
struct sweep {
    int num_emulations;
    struct shares (*table)[NUM_FAMILIES][MAX_EMULATIONS]; /* one for each worker */
};

/* The other tile sizes of a recipe take every eighth case. */
static bool is_first_of_recipe(int r)
{
    for (int i = 0; i < r; ++i)
        if (emulations[i].recipe == emulations[r].recipe && emulations[i].is_unkind == emulations[r].is_unkind)
            return false;
    return true;
}

static void one_case(void *context, int64_t index, int worker)
{
    struct sweep *sweep = context;
    const enum family family = (enum family)(index % NUM_FAMILIES);
    if (!is_family_asked_for((int)family)) return;
    const struct case_request request = {
        .backward = true, .families = UINT64_C(1) << family, .max_work = INT64_C(1) << (10 + index / NUM_FAMILIES % 4)};
    struct choices choices;
    struct prop_case c;
    struct subject s;
    choices_start(&choices, NULL, check_mix((uint64_t)settings.seed) + (uint64_t)index);
    case_draw(&c, &choices, &request);
    if (c.p.batch > 0) oracle_of(&s, &c);
    for (int r = 0; r < sweep->num_emulations && c.p.batch > 0; ++r)
        if (is_asked_for(r) && (settings.emulation || is_first_of_recipe(r) || index / NUM_FAMILIES % 8 == 0))
            run(&s, &emulations[r], 1, &sweep->table[worker][family][r]);
    case_free(&c);
}

static void print_header(const char *first)
{
    printf("%-10s", first);
    for (int t = 0; t < REF_NUM_TENSORS; ++t) printf(" %8s", ref_tensor_names[t]);
    printf(" %8s %8s %9s   outside\n", "rms", "mean", "direction");
}

static bool print_shares(const char *name, const struct shares *s)
{
    bool within = true;
    printf("%-10s", name);
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        printf(" %8.4f", s->use[t]);
        within = within && s->use[t] <= 1;
    }
    within = within && s->rms <= 1 && s->mean <= 1 && s->direction <= 1;
    printf(" %8.4f %8.4f %9.4f   %ld/%ld%s\n", s->rms, s->mean, s->direction, (long)s->outside, (long)s->tensors,
           within ? "" : "   ABOVE 1");
    return within;
}

static bool sweep_cases(int num_emulations)
{
    const int workers = ref_thread_count((int)settings.threads);
    struct sweep sweep = {num_emulations, calloc((size_t)workers, sizeof *sweep.table)};
    if (!sweep.table) abort();
    ref_parallel(workers, settings.cases * NUM_FAMILIES, one_case, &sweep);
    bool within = true;
    for (int r = 0; r < num_emulations; ++r) {
        if (!is_asked_for(r)) continue;
        printf("\nlargest share of the bound, emulation %s, %ld cases of each family\n", emulations[r].name,
               (long)settings.cases);
        print_header("family");
        for (int f = 0; f < NUM_FAMILIES; ++f) {
            if (!is_family_asked_for(f)) continue;
            struct shares all = {0};
            for (int w = 0; w < workers; ++w) merge(&all, &sweep.table[w][f][r]);
            within &= print_shares(family_names[f], &all);
        }
    }
    free(sweep.table);
    return within;
}

static bool long_cases(int num_emulations)
{
    const enum family family = settings.family == NUM_FAMILIES ? FAMILY_NORMAL : (enum family)settings.family;
    bool within = true;
    for (int r = 0; r < num_emulations; ++r) {
        if (!is_asked_for(r)) continue;
        printf("\nlargest share of the bound, emulation %s, seqlen 1024, head_dim 64, %ld heads, %s\n",
               emulations[r].name, (long)settings.heads, family_names[family]);
        print_header("problem");
        for (int which = 0; which < 4; ++which) {
            static const char *const names[] = {"bf16", "bf16 caus.", "fp16", "fp16 caus."};
            struct prop_case c;
            struct subject s;
            struct shares shares = {0};
            long_case(&c, family, (uint64_t)settings.seed, which < 2 ? ATTEST_BF16 : ATTEST_FP16, 1024,
                      settings.heads);
            if (which % 2) c.p.window_right = 0;
            oracle_of(&s, &c);
            run(&s, &emulations[r], (int)settings.threads, &shares);
            within &= print_shares(names[which], &shares);
            fflush(stdout);
            case_free(&c);
        }
    }
    return within;
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        .options = options, .parser = parse, .doc = "How much of each error bound honest kernels use."};
    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    int num_emulations = 0;
    while (num_emulations < MAX_EMULATIONS && emulations[num_emulations].name) ++num_emulations;
    const bool within = settings.is_long ? long_cases(num_emulations) : sweep_cases(num_emulations);
    printf(within ? "\nevery share is at most 1\n" : "\nA SHARE IS ABOVE 1\n");
    return within ? 0 : 1;
}

/* tightness.c - how much of each error bound and of each statistical threshold honest kernels use.
 *
 *     bazel run //proptests:tightness -- --cases 1000     random small problems of every family, to every emulation
 *     bazel run //proptests:tightness -- --seconds 600 --family statistical     those of the statistical verdict alone
 *     bazel run //proptests:tightness -- --long           seqlen 1024, head_dim 64, family `normal` or another
 *     bazel run //proptests:tightness -- --long --rows 64 --keys 32768 --heads 1 --full     that many rows and keys
 *
 * Prints, of every emulation and tensor, the largest |got - oracle| / bound and the largest share of each threshold,
 * how many tensors were judged and how many of them failed. Each that did is printed with the options that repeat it.
 * Exit status 1 if one did: then a bound, a threshold or an emulation is wrong. */
#include <argp.h>
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "proptests/cases/case.h"
#include "proptests/emulations/emulate.h"
#include "proptests/cases/long_case.h"
#include "reference/bounds.h"
#include "reference/parallel.h"

enum { MAX_EMULATIONS = 24 };

#define ALL_FAMILIES ((UINT64_C(1) << NUM_FAMILIES) - 1)
/* Those of the statistical verdict. */
#define STATISTICAL \
    (UINT64_C(1) << FAMILY_NORMAL | UINT64_C(1) << FAMILY_OUTLIER | UINT64_C(1) << FAMILY_MEAN | \
     UINT64_C(1) << FAMILY_RECORDED)

static const struct argp_option options[] = {
    {"cases", 'n', "N", 0, "cases of every family (1000; no end with --seconds)", 0},
    {"seconds", 'S', "N", 0, "starts no case after that time", 0},
    {"seed", 's', "N", 0, "which cases (1)", 0},
    {"work", 'w', "N", 0, "cases of 2^10 to 2^N scores x head_dim (13)", 0},
    {"only", 'o', "N", 0, "this case alone", 0},
    {"threads", 't', "N", 0, "threads, 0 for all cores (0)", 0},
    {"long", 'l', NULL, 0, "one long problem of every mask and dtype instead", 0},
    {"family", 'f', "NAME", 0, "cases of this family alone, or `statistical`; of the long problem, else normal", 0},
    {"emulation", 'e', "NAME", 0, "this one alone", 0},
    {"heads", 'h', "N", 0, "heads of the long problem (2)", 0},
    {"rows", 'r', "N", 0, "query rows of the long problem (1024)", 0},
    {"keys", 'k', "N", 0, "keys of the long problem (1024)", 0},
    {"full", 'F', NULL, 0, "the long problem without a mask alone", 0},
    {0},
};

static struct {
    int64_t cases, seconds, seed, work, only, threads, heads, rows, keys;
    uint64_t families;
    const struct implementation *emulation; /* NULL: all */
    bool is_long, is_full;
} settings = {.seed = 1, .work = 13, .only = -1, .heads = 2, .rows = 1024, .keys = 1024, .families = ALL_FAMILIES};

static int64_t parse_count(const char *text, struct argp_state *state)
{
    char *end;
    const long value = strtol(text, &end, 10);
    if (*text == '\0' || *end != '\0' || value < 0) argp_error(state, "'%s' is not a number of 0 or more", text);
    return value;
}

static uint64_t parse_families(const char *name, struct argp_state *state)
{
    if (strcmp(name, "statistical") == 0) return STATISTICAL;
    for (int f = 0; f < NUM_FAMILIES; ++f)
        if (strcmp(family_names[f], name) == 0) return UINT64_C(1) << f;
    argp_error(state, "there is no family '%s'", name);
    return 0;
}

static error_t parse(int key, char *argument, struct argp_state *state)
{
    switch (key) {
    case 'n': settings.cases = parse_count(argument, state); return 0;
    case 'S': settings.seconds = parse_count(argument, state); return 0;
    case 's': settings.seed = parse_count(argument, state); return 0;
    case 'w':
        settings.work = parse_count(argument, state);
        if (settings.work < 10 || settings.work > 24) argp_error(state, "--work is 10 to 24, not %s", argument);
        return 0;
    case 'o': settings.only = parse_count(argument, state); return 0;
    case 't': settings.threads = parse_count(argument, state); return 0;
    case 'h': settings.heads = parse_count(argument, state); return 0;
    case 'r': settings.rows = parse_count(argument, state); return 0;
    case 'k': settings.keys = parse_count(argument, state); return 0;
    case 'F': settings.is_full = true; return 0;
    case 'f': settings.families = parse_families(argument, state); return 0;
    case 'e':
        settings.emulation = emulation_named(argument);
        if (!settings.emulation) argp_error(state, "there is no emulation '%s'", argument);
        return 0;
    case 'l': settings.is_long = true; return 0;
    case ARGP_KEY_END:
        if (settings.cases == 0) settings.cases = settings.seconds ? INT64_MAX / NUM_FAMILIES : 1000;
        return 0;
    default: return ARGP_ERR_UNKNOWN;
    }
}

/* What one implementation used of the bound and thresholds of one tensor. */
struct shares {
    double use, rms, mean, direction; /* largest; NaN stays */
    int64_t judged, statistical;      /* tensors; of them, by the statistical verdict too */
    int64_t outside, alarms;          /* with an element outside of the recipe's domain; that failed */
};

static void raise_to(double *largest, double use)
{
    if (!isnan(*largest) && !(use <= *largest)) *largest = use;
}

static void merge(struct shares *to, const struct shares *from)
{
    raise_to(&to->use, from->use);
    raise_to(&to->rms, from->rms);
    raise_to(&to->mean, from->mean);
    raise_to(&to->direction, from->direction);
    to->judged += from->judged;
    to->statistical += from->statistical;
    to->outside += from->outside;
    to->alarms += from->alarms;
}

/* One problem with its oracle; which tensors take part. */
struct subject {
    struct prop_case *c;
    int64_t index; /* of the case */
    bool present[REF_NUM_TENSORS];
    bool statistical; /* a family on which the statistical verdict counts */
    double *oracle[REF_NUM_TENSORS];
    struct ref_bound bounds[REF_NUM_TENSORS];
};

static const enum tensor_id ids[] = {T_O, T_LSE, T_DQ, T_DK, T_DV, T_DBIAS};

/* The families of the statistical verdict, on problems whose scores and results differ from each other. */
static bool is_statistical(const struct prop_case *c)
{
    if (c->p.head_dim < 16 || c->p.head_dim_v < 16) return false;
    return STATISTICAL >> c->data.family & 1 && !(c->features & (FEATURE(SCALE) | FEATURE(BROADCAST) | FEATURE(FP8)));
}

static void oracle_of(struct subject *s, struct prop_case *c)
{
    const bool forward = c->p.o.dtype != ATTEST_ABSENT && !c->p.external_lse;
    *s = (struct subject){.c = c, .statistical = is_statistical(c)};
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        const bool is_forward = t <= REF_LSE, is_sink = t == REF_DSINK;
        s->present[t] = is_forward ? forward : is_sink ? c->p.has_sink : t != REF_DBIAS || c->p.dbias.dtype;
        const int64_t count = is_sink ? c->p.num_heads_q : s->present[t] ? case_count(c, ids[t]) : 0;
        if (!s->present[t]) continue;
        s->oracle[t] = case_doubles(c, count);
        s->bounds[t].bound = case_doubles(c, count);
        if (!s->statistical) continue;
        s->bounds[t].sigma = case_doubles(c, count);
        s->bounds[t].bias = case_doubles(c, count);
        s->bounds[t].shift = case_doubles(c, count);
        for (int d = 0; d < 2; ++d) s->bounds[t].drift[d] = case_doubles(c, count);
        s->bounds[t].optional = case_doubles(c, count);
        s->bounds[t].beside = case_doubles(c, count);
        for (int n = 0; n < REF_WAYS && c->p.dropout_p > 0 && (t == REF_DQ || t == REF_DK); ++n)
            s->bounds[t].alike[n] = case_doubles(c, count);
        if (t == REF_O) s->bounds[t].phases = case_doubles(c, REF_WAYS * case_count(c, T_LSE));
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
    char text[160] = "";
    if (!(r->direction_ratio <= 1)) ref_describe_direction(r, (enum ref_tensor)tensor, text, sizeof text);
    pthread_mutex_lock(&mutex);
    printf("ALARM --seed %ld --work %ld --only %ld --emulation %s (tile of %d): %s[%ld,%ld,%ld,%ld] is %.9g, the "
           "oracle says %.9g, the bound is %.3g (%.4g of it; rms %.4g, mean %.4g, direction %.4g%s%s)\n",
           (long)settings.seed, (long)settings.work, (long)s->index, self->name, self->tile_k, ref_tensor_names[tensor],
           (long)r->use_index[0], (long)r->use_index[1], (long)r->use_index[2], (long)r->use_index[3], r->use_got,
           r->use_want, r->use_bound, r->use, r->rms_ratio, r->mean_ratio, r->direction_ratio, *text ? ": " : "", text);
    case_print(s->c, stdout);
    fflush(stdout);
    pthread_mutex_unlock(&mutex);
}

static void judge(struct subject *s, const struct implementation *self, enum ref_tensor t, int threads,
                  struct shares *shares)
{
    struct prop_case *c = s->c;
    const bool statistical = s->statistical && !self->is_unkind; /* an unkind one errs to one side where it can */
    struct ref_report r;
    ref_judge(&c->p, &c->a.forward, t, result_of(c, t), s->oracle[t], &s->bounds[t], statistical, &r);
    if (statistical &&
        ref_judge_tiles(&c->p, &c->a, self->recipe, t, result_of(c, t), s->oracle[t], &s->bounds[t], threads, &r))
        abort();
    const bool alarm = r.verdict == REF_FAIL;
    if (alarm) complain(s, self, t, &r);
    merge(shares, &(struct shares){.use = r.use,
                                   .rms = r.rms_ratio,
                                   .mean = r.mean_ratio,
                                   .direction = r.direction_ratio,
                                   .judged = 1,
                                   .statistical = statistical,
                                   .outside = r.overflow_count > 0,
                                   .alarms = alarm});
}

static void run(struct subject *s, const struct implementation *self, int threads,
                struct shares shares[REF_NUM_TENSORS])
{
    struct prop_case *c = s->c;
    const struct ref_bound *const bounds = s->bounds;
    struct computed how;
    case_reset_outputs(c);
    if (s->present[REF_O]) {
        if (self->forward(self, &c->p, &c->a.forward, &how) != ATTEST_OK) abort();
        if (ref_bound_forward(&c->p, &c->a.forward, self->recipe, &bounds[REF_O], &bounds[REF_LSE], threads)) abort();
    }
    if (self->backward(self, &c->p, &c->a, &how) != ATTEST_OK) abort();
    if (ref_bound_backward(&c->p, &c->a, self->recipe, bounds, threads)) abort();
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        if (s->present[t]) judge(s, self, (enum ref_tensor)t, threads, &shares[t]);
}

static bool is_family_asked_for(int f) { return settings.families >> f & 1; }
static bool is_asked_for(int r) { return !settings.emulation || settings.emulation == &emulations[r]; }

/* Every case is drawn once and given to every implementation. */
struct sweep {
    int num_emulations;
    struct shares (*table)[NUM_FAMILIES][MAX_EMULATIONS][REF_NUM_TENSORS]; /* one for each worker */
    atomic_int_least64_t next, cases;
    double end; /* on the clock; 0: none */
};

static double now(void)
{
    struct timespec t;
    timespec_get(&t, TIME_UTC);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* The other tile sizes of a recipe take every eighth case. */
static bool is_first_of_recipe(int r)
{
    for (int i = 0; i < r; ++i)
        if (emulations[i].recipe == emulations[r].recipe && emulations[i].is_unkind == emulations[r].is_unkind)
            return false;
    return true;
}

/* What is beyond the generator's mixture in three of four cases of the statistical verdict: where weights are nearly
 * equal, by small scores or by a softcap in saturation, their roundings are; without an output's rounding that
 * shows. */
static void draw(struct prop_case *c, int64_t index, uint64_t bits)
{
    const int family = (int)(index % NUM_FAMILIES);
    struct choices choices;
    struct prop_case drawn;
    struct case_request request = {.backward = true,
                                   .families = UINT64_C(1) << family,
                                   .max_work = INT64_C(1) << (10 + index / NUM_FAMILIES % (settings.work - 9))};
    const bool as_drawn = !(STATISTICAL >> family & 1) || bits % 4 == 0, narrows = !as_drawn && bits >> 18 & 1;
    if (!as_drawn) request.forbids = FEATURE(SCALE) | FEATURE(BROADCAST) | FEATURE(FP8);
    if (!as_drawn && bits >> 2 & 1) request.head_dim = 16 + (int64_t)(bits >> 8 & 0xff) % 113;
    if (!as_drawn && (bits >> 16 & 3) == 0) request.needs = FEATURE(SOFTCAP);
    if (narrows) request.forbids |= FEATURE(EXTERNAL) | FEATURE(DELTA); /* these are of the scores as drawn */
    choices_start(&choices, NULL, check_mix(check_mix((uint64_t)settings.seed) + (uint64_t)index));
    case_draw(&drawn, &choices, &request);
    case_copy(c, &drawn);
    case_free(&drawn);
    if (narrows) {
        c->p.softmax_scale *= exp2f(-(float)((bits >> 20) % 1600) / 100);
        if (bits >> 3 & 1) c->p.softcap = 0.0f;
    }
    struct attest_tensor *const results[] = {&c->p.o, &c->p.dq, &c->p.dk, &c->p.dv};
    for (int t = 0; t < 4 && !as_drawn && bits >> 19 & 1; ++t)
        if (results[t]->dtype != ATTEST_ABSENT) results[t]->dtype = ATTEST_FP32;
    case_lay_out(c);
}

static void one_case(struct sweep *sweep, int64_t index, int worker)
{
    const int family = (int)(index % NUM_FAMILIES);
    const uint64_t bits = check_mix(check_mix((uint64_t)settings.seed ^ check_mix((uint64_t)index)));
    struct prop_case c;
    struct subject s;
    draw(&c, index, bits);
    if (c.p.batch > 0) oracle_of(&s, &c);
    s.index = index;
    for (int r = 0; r < sweep->num_emulations && c.p.batch > 0; ++r) {
        const bool has_turn = settings.emulation || is_first_of_recipe(r) || index / NUM_FAMILIES % 8 == 0;
        if (!is_asked_for(r) || !has_turn) continue;
        struct implementation e = emulations[r];
        const int tile_k = 16 << (bits >> 60) % 4; /* of every second case; a recipe names the least */
        if (bits >> 62 & 1) e.tile_k = tile_k > e.recipe->tile_k ? tile_k : e.recipe->tile_k;
        run(&s, &e, 1, sweep->table[worker][family][r]);
    }
    case_free(&c);
    atomic_fetch_add(&sweep->cases, 1);
}

static void work(void *context, int64_t unused, int worker)
{
    struct sweep *sweep = context;
    (void)unused;
    double told = now();
    for (;;) {
        const int64_t index = settings.only >= 0 ? settings.only : atomic_fetch_add(&sweep->next, 1);
        if (settings.only < 0 && index / NUM_FAMILIES >= settings.cases) return;
        if (!is_family_asked_for((int)(index % NUM_FAMILIES))) continue;
        const double time = now();
        if (sweep->end > 0 && time >= sweep->end) return;
        if (worker == 0 && time - told >= 60) {
            fprintf(stderr, "%ld cases\n", (long)atomic_load(&sweep->cases));
            told = time;
        }
        one_case(sweep, index, worker);
        if (settings.only >= 0) return;
    }
}

static bool print_shares(const char *name, const struct shares *s)
{
    const bool within = s->alarms == 0;
    if (s->judged)
        printf("%-10s %8.4f %8.4f %8.4f %9.4f %10ld %11ld %8ld %6ld%s\n", name, s->use, s->rms, s->mean, s->direction,
               (long)s->judged, (long)s->statistical, (long)s->outside, (long)s->alarms, within ? "" : "   ABOVE 1");
    return within;
}

static void print_header(const char *first)
{
    printf("%-10s %8s %8s %8s %9s %10s %11s %8s %6s\n", first, "bound", "rms", "mean", "direction", "judged",
           "statistical", "outside", "alarms");
}

static void print_families(const struct sweep *sweep, int workers)
{
    printf("\nlargest share of any emulation and tensor\n");
    print_header("family");
    for (int f = 0; f < NUM_FAMILIES; ++f) {
        struct shares all = {0};
        for (int w = 0; w < workers; ++w)
            for (int r = 0; r < MAX_EMULATIONS; ++r)
                for (int t = 0; t < REF_NUM_TENSORS; ++t) merge(&all, &sweep->table[w][f][r][t]);
        print_shares(family_names[f], &all);
    }
}

static bool sweep_cases(int num_emulations)
{
    const int workers = settings.only >= 0 ? 1 : ref_thread_count((int)settings.threads);
    const double start = now();
    struct sweep sweep = {.num_emulations = num_emulations, .table = calloc((size_t)workers, sizeof *sweep.table)};
    if (!sweep.table) abort();
    if (settings.seconds) sweep.end = start + (double)settings.seconds;
    ref_parallel(workers, workers, work, &sweep);
    const double seconds = now() - start;
    bool within = true;
    for (int r = 0; r < num_emulations; ++r) {
        if (!is_asked_for(r)) continue;
        printf("\nlargest share, emulation %s\n", emulations[r].name);
        print_header("tensor");
        for (int t = 0; t < REF_NUM_TENSORS; ++t) {
            struct shares all = {0};
            for (int w = 0; w < workers; ++w)
                for (int f = 0; f < NUM_FAMILIES; ++f) merge(&all, &sweep.table[w][f][r][t]);
            within &= print_shares(ref_tensor_names[t], &all);
        }
    }
    print_families(&sweep, workers);
    printf("\n%ld cases in %.0f s, %.1f a second of each of %d threads\n", (long)sweep.cases, seconds,
           (double)sweep.cases / seconds / workers, workers);
    free(sweep.table);
    return within;
}

static bool long_cases(int num_emulations)
{
    bool within = true;
    int family = FAMILY_NORMAL;
    if (settings.families != ALL_FAMILIES && settings.families != STATISTICAL)
        family = __builtin_ctzll(settings.families);
    for (int r = 0; r < num_emulations; ++r) {
        if (!is_asked_for(r)) continue;
        for (int which = 0; which < 4; which += settings.is_full ? 2 : 1) {
            static const char *const names[] = {"bf16", "bf16, causal", "fp16", "fp16, causal"};
            struct prop_case c;
            struct subject s;
            struct shares shares[REF_NUM_TENSORS] = {0};
            printf("\nlargest share, emulation %s, %ld rows, %ld keys, head_dim 64, %ld heads, %s, %s\n",
                   emulations[r].name, (long)settings.rows, (long)settings.keys, (long)settings.heads,
                   family_names[family], names[which]);
            print_header("tensor");
            long_case_of(&c, (enum family)family, (uint64_t)settings.seed, which < 2 ? ATTEST_BF16 : ATTEST_FP16,
                         settings.rows, settings.keys, settings.heads);
            if (which % 2) c.p.window_right = 0;
            oracle_of(&s, &c);
            run(&s, &emulations[r], (int)settings.threads, shares);
            for (int t = 0; t < REF_NUM_TENSORS; ++t) within &= print_shares(ref_tensor_names[t], &shares[t]);
            fflush(stdout);
            case_free(&c);
        }
    }
    return within;
}

int main(int argc, char **argv)
{
    const struct argp argp = {
        .options = options, .parser = parse, .doc = "How much of each error bound and threshold honest kernels use."};
    argp_parse(&argp, argc, argv, 0, NULL, NULL);
    /* Threads would wait for each other in the system if large blocks came from it and went back each time. */
    mallopt(M_MMAP_THRESHOLD, 1 << 30);
    mallopt(M_TRIM_THRESHOLD, 1 << 30);
    int num_emulations = 0;
    while (num_emulations < MAX_EMULATIONS && emulations[num_emulations].name) ++num_emulations;
    const bool within = settings.is_long ? long_cases(num_emulations) : sweep_cases(num_emulations);
    printf(within ? "\nevery share is at most 1\n" : "\nA SHARE IS ABOVE 1\n");
    return within ? 0 : 1;
}

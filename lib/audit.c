/* audit.c - attest_audit and attest_audit_bounds: the oracle, the bounds and the judge of reference/ on problems and
 * arguments that somebody else's implementation was given. */
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/check.h"
#include "lib/error.h"
#include "reference/bounds.h"

static_assert((int)ATTEST_AUDITED_O == (int)REF_O && (int)ATTEST_AUDITED_LSE == (int)REF_LSE &&
                  (int)ATTEST_AUDITED_DQ == (int)REF_DQ && (int)ATTEST_AUDITED_DK == (int)REF_DK &&
                  (int)ATTEST_AUDITED_DV == (int)REF_DV && (int)ATTEST_AUDITED_DBIAS == (int)REF_DBIAS &&
                  (int)ATTEST_AUDITED_DSINK == (int)REF_DSINK && (int)ATTEST_NUM_AUDITED == (int)REF_NUM_TENSORS,
              "tensors have the same order in both headers");

enum { MOST_OWNED = ATTEST_NUM_AUDITED * 11 };

/* One audit: what was asked, as the oracle takes it, and what comes of it. */
struct audit {
    struct attest_problem p;
    struct attest_backward_args args; /* what is not there is NULL */
    struct attest_audit_options options;
    bool has_backward, is_present[ATTEST_NUM_AUDITED]; /* in the problem as it was asked */
    int64_t size[ATTEST_NUM_AUDITED]; /* elements */
    double *exact[ATTEST_NUM_AUDITED]; /* NULL where not wanted */
    struct ref_bound bound[ATTEST_NUM_AUDITED];
    void *owned[MOST_OWNED];
    int num_owned;
};

/* ---- what was asked -------------------------------------------------------------------------------------------- */

/* A layout for a tensor of rows that is absent, so that the checks and the oracle have one. */
static bool lay_out(const struct attest_problem *p, struct attest_tensor *t, int32_t dtype, bool is_k, int64_t features)
{
    const int64_t heads = is_k ? p->num_heads_kv : p->num_heads_q, seqlen = is_k ? p->seqlen_k : p->seqlen_q;
    *t = (struct attest_tensor){.dtype = dtype, .seqlen = heads * features, .head = features};
    if (!__builtin_mul_overflow(seqlen, t->seqlen, &t->batch)) return true;
    return attest_refuse(ATTEST_OUT_OF_MEMORY, "%lld rows of %lld heads of %lld numbers do not fit in memory",
                         (long long)seqlen, (long long)heads, (long long)features);
}

/* Results that the problem lacks are as if they were NULL. An o that nobody has seen was rounded as dout is. */
static bool fill_absent(struct audit *a)
{
    struct attest_problem *const p = &a->p;
    struct attest_backward_args *const args = &a->args;
    const int32_t o_dtype = a->has_backward ? p->dout.dtype : ATTEST_FP32;
    const struct {
        struct attest_tensor *t;
        void **data;
        bool is_needed, is_k;
        int64_t features;
        int32_t dtype;
    } rows[] = {{&p->o, &args->forward.o, true, false, p->head_dim_v, o_dtype},
                {&p->lse, &args->forward.lse, !p->external_lse, false, 1, ATTEST_FP32},
                {&p->dq, &args->dq, a->has_backward, false, p->head_dim, ATTEST_FP32},
                {&p->dk, &args->dk, a->has_backward, true, p->head_dim, ATTEST_FP32},
                {&p->dv, &args->dv, a->has_backward, true, p->head_dim_v, ATTEST_FP32}};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        a->is_present[i] = rows[i].t->dtype != ATTEST_ABSENT;
        if (a->is_present[i] || !rows[i].is_needed) continue;
        *rows[i].data = NULL;
        if (!lay_out(p, rows[i].t, rows[i].dtype, rows[i].is_k, rows[i].features)) return false;
    }
    a->is_present[ATTEST_AUDITED_DBIAS] = p->dbias.dtype != ATTEST_ABSENT;
    a->is_present[ATTEST_AUDITED_DSINK] = a->has_backward && p->has_sink;
    if (!a->is_present[ATTEST_AUDITED_DBIAS]) args->dbias = NULL;
    if (!a->is_present[ATTEST_AUDITED_DSINK]) args->dsink = NULL;
    if (p->dout.dtype == ATTEST_ABSENT) args->dout = NULL;
    if (p->dlse.dtype == ATTEST_ABSENT) args->dlse = NULL;
    if (p->delta.dtype == ATTEST_ABSENT) args->delta = NULL;
    return true;
}

static bool check_no_gradients(const struct attest_problem *p)
{
    const struct {
        const char *name;
        int32_t dtype;
    } gradients[] = {{"dq", p->dq.dtype}, {"dk", p->dk.dtype}, {"dv", p->dv.dtype}, {"dbias", p->dbias.dtype}};
    for (int i = 0; i < 4; ++i) {
        if (gradients[i].dtype == ATTEST_ABSENT) continue;
        return attest_refuse(ATTEST_INVALID,
                             "dout.dtype = 0, ATTEST_ABSENT, but must be present: %s cannot be judged without it",
                             gradients[i].name);
    }
    return true;
}

/* Results are read alone: they may overlap, and be left out. */
static void make_results_inputs(const struct audit *a, struct attest_reach *reach)
{
    for (int i = 0; i < reach->count; ++i) {
        struct attest_region *const r = &reach->at[i];
        const bool is_input_lse = a->p.external_lse && strcmp(r->name, "lse") == 0;
        for (int t = 0; t < ATTEST_NUM_AUDITED && !is_input_lse; ++t)
            if (strcmp(r->name, ref_tensor_names[t]) == 0) r->may_be_null = true;
        r->written = false;
    }
}

static bool check_memory(const struct audit *a)
{
    struct attest_reach reach;
    attest_find_reach(&a->p, a->has_backward ? ATTEST_BACKWARD : ATTEST_FORWARD, &reach);
    make_results_inputs(a, &reach);
    return attest_check_args(&reach, &a->args, a->has_backward ? ATTEST_BACKWARD : ATTEST_FORWARD, NULL, 0) &&
           attest_check_lengths(&a->p, &a->args.forward);
}

static void find_sizes(const struct attest_problem *p, int64_t size[ATTEST_NUM_AUDITED])
{
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) {
        const struct attest_layout layout = attest_layout_of(p, &attest_tensor_kinds[t]);
        int64_t elements = layout.inner;
        for (int i = 0; i < layout.num_axes; ++i) elements *= layout.axes[i].count;
        for (int n = 0; n < ATTEST_NUM_AUDITED; ++n)
            if (strcmp(attest_tensor_kinds[t].name, ref_tensor_names[n]) == 0) size[n] = elements;
    }
    size[ATTEST_AUDITED_DSINK] = p->num_heads_q;
}

static bool begin(const struct attest_problem *problem, const struct attest_backward_args *args,
                  const struct attest_audit_options *options, struct audit *a)
{
    static const struct attest_audit_options none = ATTEST_AUDIT_OPTIONS_INIT;
    *a = (struct audit){.options = none};
    if (!attest_check_struct("problem", problem, sizeof *problem) || !attest_check_struct("args", args, sizeof *args) ||
        !attest_check_inner_struct(args) || !attest_check_audit_options(options != NULL ? options : &none)) {
        return false;
    }
    a->p = *problem;
    a->args = *args;
    if (options != NULL) a->options = *options;
    if (a->options.recipe == NULL) a->options.recipe = &ref_recipes[REF_RECIPE_FLASH];
    a->p.struct_size = sizeof a->p;
    a->p.device = ATTEST_REFERENCE;
    a->p.device_ordinal = 0;
    a->has_backward = a->p.dout.dtype != ATTEST_ABSENT;
    if ((!a->has_backward && !check_no_gradients(&a->p)) || !attest_check_shapes(&a->p) || !fill_absent(a) ||
        !attest_check_problem(&a->p) || !check_memory(a)) {
        return false;
    }
    find_sizes(&a->p, a->size);
    return true;
}

/* ---- the oracle and the bounds --------------------------------------------------------------------------------- */

/* Room for that many doubles, for end(); NULL, and a sentence, where there is none. */
static double *take(struct audit *a, int64_t count)
{
    int64_t bytes;
    const bool fits = !__builtin_mul_overflow(count, (int64_t)sizeof(double), &bytes);
    double *const room = fits ? malloc(bytes > 0 ? (size_t)bytes : 1) : NULL;
    if (room == NULL) attest_refuse(ATTEST_OUT_OF_MEMORY, "%lld doubles do not fit in memory", (long long)count);
    assert(a->num_owned < MOST_OWNED);
    a->owned[a->num_owned++] = room;
    return room;
}

static void end(struct audit *a)
{
    for (int i = 0; i < a->num_owned; ++i) free(a->owned[i]);
}

static bool take_statistics(struct audit *a, enum ref_tensor t)
{
    struct ref_bound *const b = &a->bound[t];
    double **const each[] = {&b->sigma, &b->bias, &b->shift, &b->drift[0], &b->drift[1], &b->optional, &b->beside};
    for (size_t i = 0; i < sizeof each / sizeof *each; ++i)
        if ((*each[i] = take(a, a->size[t])) == NULL) return false;
    const int64_t rows = a->size[REF_LSE];
    if (t == REF_O && (b->phases = take(a, rows * REF_WAYS)) == NULL) return false;
    return (t != REF_O && t != REF_DQ) || (b->along = take(a, rows)) != NULL;
}

static bool computed(enum attest_status status)
{
    return status == ATTEST_OK || attest_refuse(status, "the oracle and its bounds do not fit in memory");
}

/* Into the arrays that are there. */
static bool evaluate(struct audit *a)
{
    const int threads = a->options.threads;
    const struct attest_recipe *recipe = a->options.recipe;
    const struct ref_forward forward = {a->exact[REF_O], a->exact[REF_LSE]};
    const struct ref_backward backward = {a->exact[REF_DQ], a->exact[REF_DK],    a->exact[REF_DV],
                                          a->exact[REF_DBIAS], a->exact[REF_DSINK], NULL};
    bool wants_forward = false, wants_backward = false;
    for (int t = 0; t < ATTEST_NUM_AUDITED; ++t) {
        const bool wanted = a->exact[t] != NULL || a->bound[t].bound != NULL;
        if (t <= REF_LSE) wants_forward |= wanted;
        else wants_backward |= wanted;
    }
    return (!wants_forward ||
            (computed(ref_forward(&a->p, &a->args.forward, &forward, threads)) &&
             computed(ref_bound_forward(&a->p, &a->args.forward, recipe, &a->bound[REF_O], &a->bound[REF_LSE],
                                        threads)))) &&
           (!wants_backward || (computed(ref_backward(&a->p, &a->args, NULL, &backward, threads)) &&
                                computed(ref_bound_backward(&a->p, &a->args, recipe, a->bound, threads))));
}

/* ---- verdicts -------------------------------------------------------------------------------------------------- */

static const void *result_of(const struct audit *a, enum attest_audited t)
{
    const void *const results[ATTEST_NUM_AUDITED] = {
        a->args.forward.o, a->p.external_lse ? NULL : a->args.forward.lse, a->args.dq, a->args.dk, a->args.dv,
        a->args.dbias,     a->args.dsink};
    return t <= ATTEST_AUDITED_LSE || a->has_backward ? results[t] : NULL; /* arguments of no pass may be anything */
}

static enum attest_verdict verdict_of(enum ref_verdict v)
{
    static const enum attest_verdict verdicts[] = {[REF_PASS] = ATTEST_PASS, [REF_FAIL] = ATTEST_FAIL,
                                                   [REF_OVERFLOW] = ATTEST_OVERFLOW, [REF_VACUOUS] = ATTEST_VACUOUS};
    return verdicts[v];
}

static void explain_fail(const struct ref_report *r, enum ref_tensor t, char *text, size_t size)
{
    const char *const name = ref_tensor_names[t];
    const int64_t *const i = r->use_index;
    if (r->nan_count > 0) {
        snprintf(text, size, "%lld of %lld elements of %s are NaN where the exact result is not",
                 (long long)r->nan_count, (long long)r->count, name);
    } else if (!(r->use <= 1)) {
        snprintf(text, size,
                 "%s[%lld, %lld, %lld, %lld] (%s) is %.9g, but must be within %.3g of %.9g: %.4g times the bound", name,
                 (long long)i[0], (long long)i[1], (long long)i[2], (long long)i[3],
                 t == REF_DBIAS ? "b, row, head, column" : "b, row, head, x", r->use_got, r->use_bound, r->use_want,
                 r->use);
    } else if (!(r->direction_ratio <= 1)) {
        char shape[128];
        ref_describe_direction(r, t, shape, sizeof shape);
        snprintf(text, size, "errors of %s look like %s: %.3g times what independent roundings make of it", name, shape,
                 r->direction_ratio);
    } else {
        snprintf(text, size, "the %s of %s is %.3g times the most that independent roundings make of it",
                 !(r->rms_ratio <= 1) ? "root mean square error" : "mean error", name,
                 !(r->rms_ratio <= 1) ? r->rms_ratio : r->mean_ratio);
    }
}

static void explain(const struct audit *a, const struct ref_report *r, enum ref_tensor t, char *text, size_t size)
{
    text[0] = '\0';
    switch (r->verdict) {
    case REF_PASS: break;
    case REF_FAIL: explain_fail(r, t, text, size); break;
    case REF_OVERFLOW:
        snprintf(text, size, "recipe %s may overflow in %lld of %lld elements of %s: nothing is proven of them",
                 a->options.recipe->name != NULL ? a->options.recipe->name : "given", (long long)r->overflow_count,
                 (long long)r->count, ref_tensor_names[t]);
        break;
    case REF_VACUOUS:
        snprintf(text, size, "the bound of %s, %.3g, is larger than it is, %.3g (root mean squares): it proves nothing",
                 ref_tensor_names[t], r->rms_bound, r->rms_oracle);
    }
}

static bool judge(const struct audit *a, enum ref_tensor t, struct attest_audit_report *out)
{
    const void *const got = result_of(a, (enum attest_audited)t);
    const int statistical = a->options.statistical;
    struct ref_report r;
    if (got == NULL) return true;
    ref_judge(&a->p, &a->args.forward, t, got, a->exact[t], &a->bound[t], statistical, &r);
    if (statistical && !computed(ref_judge_tiles(&a->p, &a->args, a->options.recipe, t, got, a->exact[t], &a->bound[t],
                                                 a->options.threads, &r))) {
        return false;
    }
    *out = (struct attest_audit_report){
        .verdict = verdict_of(r.verdict), .count = r.count, .nan_count = r.nan_count,
        .overflow_count = r.overflow_count, .max_error = r.max_error, .rmse = r.rmse,
        .relative_error = r.relative_error, .mean_error = r.mean_error, .share = r.use, .got = r.use_got,
        .exact = r.use_want, .bound = r.use_bound, .rms_ratio = r.rms_ratio, .mean_ratio = r.mean_ratio,
        .shape_ratio = r.direction_ratio, .rms_bound = r.rms_bound, .rms_exact = r.rms_oracle};
    memcpy(out->index, r.use_index, sizeof out->index);
    explain(a, &r, t, out->sentence, sizeof out->sentence);
    return true;
}

static bool audit(struct audit *a, struct attest_audit_report reports[ATTEST_NUM_AUDITED])
{
    struct attest_audit_report made[ATTEST_NUM_AUDITED] = {{0}};
    if (reports == NULL) return attest_refuse(ATTEST_INVALID, "reports = NULL, but must point to seven reports");
    for (int t = 0; t < ATTEST_NUM_AUDITED; ++t) {
        if (result_of(a, (enum attest_audited)t) == NULL) continue;
        a->exact[t] = take(a, a->size[t]);
        if (a->exact[t] == NULL || (a->bound[t].bound = take(a, a->size[t])) == NULL) return false;
        if (a->options.statistical && !take_statistics(a, (enum ref_tensor)t)) return false;
    }
    if (!evaluate(a)) return false;
    for (int t = 0; t < ATTEST_NUM_AUDITED; ++t)
        if (!judge(a, (enum ref_tensor)t, &made[t])) return false;
    memcpy(reports, made, sizeof made);
    return true;
}

enum attest_status attest_audit(const struct attest_problem *problem, const struct attest_backward_args *args,
                                const struct attest_audit_options *options,
                                struct attest_audit_report reports[ATTEST_NUM_AUDITED])
{
    struct audit a;
    const bool ok = begin(problem, args, options, &a) && audit(&a, reports);
    end(&a);
    return ok ? ATTEST_OK : attest_refused_status();
}

/* ---- bounds alone ---------------------------------------------------------------------------------------------- */

static bool take_arrays(const struct attest_audit_arrays *arrays, struct audit *a)
{
    if (!attest_check_struct("arrays", arrays, sizeof *arrays)) return false;
    if (arrays->reserved0 != 0)
        return attest_refuse(ATTEST_INVALID, "arrays.reserved0 = %u, but must be 0", (unsigned)arrays->reserved0);
    for (int t = 0; t < ATTEST_NUM_AUDITED; ++t) {
        a->exact[t] = arrays->exact[t];
        a->bound[t].bound = arrays->bound[t];
        if (t == ATTEST_AUDITED_LSE || a->is_present[t] || (a->exact[t] == NULL && a->bound[t].bound == NULL)) continue;
        return attest_refuse(ATTEST_INVALID, "arrays.%s[%d] is set, but must be NULL: the problem has no %s",
                             a->exact[t] != NULL ? "exact" : "bound", t, ref_tensor_names[t]);
    }
    return true;
}

enum attest_status attest_audit_bounds(const struct attest_problem *problem, const struct attest_backward_args *args,
                                       const struct attest_audit_options *options,
                                       const struct attest_audit_arrays *arrays)
{
    struct audit a;
    const bool ok = begin(problem, args, options, &a) && take_arrays(arrays, &a) && evaluate(&a);
    end(&a);
    return ok ? ATTEST_OK : attest_refused_status();
}

/* ---- names ----------------------------------------------------------------------------------------------------- */

const struct attest_recipe *attest_recipe_at(int i)
{
    int count = 0;
    while (ref_recipes[count].name != NULL) ++count;
    return i >= 0 && i < count ? &ref_recipes[i] : NULL;
}

const struct attest_recipe *attest_recipe_named(const char *name)
{
    if (name == NULL) return NULL;
    const struct attest_recipe *const general = ref_recipe(name);
    return general != NULL ? general : ref_kernel_recipe(name);
}

const char *attest_verdict_name(enum attest_verdict verdict)
{
    switch (verdict) {
    case ATTEST_NOT_JUDGED: return "NOT JUDGED";
    case ATTEST_PASS: return "PASS";
    case ATTEST_FAIL: return "FAIL";
    case ATTEST_OVERFLOW: return "OVERFLOW";
    case ATTEST_VACUOUS: return "VACUOUS";
    }
    return "an unknown verdict";
}

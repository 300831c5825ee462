/* properties.c - the table, and runs of its rows. */
#include "proptests/properties/properties.h"

#include <stdlib.h>
#include <string.h>

#include "proptests/properties/properties_list.h"

#define SMALL (INT64_C(1) << 14)
#define GIVEN_STATE (FEATURE(EXTERNAL) | FEATURE(DELTA))
#define KEY_POSITION (FEATURE(CAUSAL) | FEATURE(WINDOW) | FEATURE(ALIBI) | FEATURE(BLOCK_MASK) | FEATURE(DROPOUT))
#define ORDINARY (1 << FAMILY_NORMAL | 1 << FAMILY_OUTLIER | 1 << FAMILY_MEAN | 1 << FAMILY_DUPLICATE | \
                  1 << FAMILY_INTEGER | 1 << FAMILY_RECORDED)
#define FORWARD .backward = false
#define BACKWARD .backward = true

const struct property properties[] = {
    {"forward_within_bound", "o and lse are within their bounds of the oracle", check_within_bounds, {FORWARD},
     .of_recipes = true, .weight = 40},
    {"empty_rows", "a query that sees nothing has o = 0 and lse = -inf, or its sink", check_empty_rows,
     {FORWARD, .needs = FEATURE(MASK)}, .weight = 4},
    {"strides_are_layout", "strides, packing and broadcasts change no bit", check_strides,
     {FORWARD, .needs = FEATURE(STRIDED)}, .weight = 5},
    {"poison_is_not_felt", "what the contract does not read changes no bit", check_poison, {FORWARD}, .weight = 4},
    {"nan_is_felt", "a NaN in q, k or v is in every result that sees it, and in no other", check_nan_is_felt,
     {FORWARD}, .weight = 3},
    {"mask_forms_agree", "a window equals its boolean mask, its block mask and its bias of -inf", check_mask_forms,
     {FORWARD, .needs = FEATURE(CAUSAL)}, .weight = 4},
    {"causal_is_a_window", "causal is the window of all keys to the left, bit by bit", check_causal_window,
     {FORWARD, .needs = FEATURE(CAUSAL), .forbids = FEATURE(WINDOW)}, .weight = 3},
    {"gqa_repeats_heads", "a KV head shared is a KV head repeated, bit by bit", check_repeated_heads,
     {FORWARD, .needs = FEATURE(GQA)}, .weight = 3},
    {"one_by_one", "a sequence gives the same bits alone as in its batch", check_one_by_one, {FORWARD}, .weight = 5},
    {"queries_apart", "a query does not depend on the queries around it", check_queries_apart, {FORWARD}, .weight = 3},
    {"shift_moves_lse", "a constant added to all scores moves lse by it and nothing else", check_shift,
     {FORWARD, .forbids = FEATURE(SOFTCAP) | FEATURE(SINK)}, .weight = 4},
    {"keys_permute", "the order of keys does not matter", check_permuted_keys,
     {FORWARD, .forbids = KEY_POSITION | FEATURE(RAGGED) | FEATURE(SEQUSED)}, .weight = 3},
    {"values_scale", "twice v is twice o, exactly", check_scaled_values, {FORWARD, .families = ORDINARY}, .weight = 3},
    {"softcap_ends", "a softcap beyond all scores is none", check_infinite_softcap,
     {FORWARD, .forbids = FEATURE(SOFTCAP)}, .weight = 3},
    {"parameters_matter", "a changed parameter changes the answer", check_parameters_matter, {FORWARD}, .weight = 4},
    {"keys_merge", "any partition of the keys merges to the whole, in any order and tree", check_keys_merge, {FORWARD},
     .weight = 6},
    {"merge_laws", "states are a commutative monoid", check_merge_laws, {FORWARD, .max_work = SMALL}, .weight = 2},
    {"merge_backward", "the gradient of a merge in each of its states is within its bound", check_merge_backward,
     {FORWARD, .max_work = SMALL}, .weight = 2},
    {"dropout_counter", "the dropped scores are those of the documented counter", check_dropout_counter,
     {FORWARD, .needs = FEATURE(DROPOUT),
      .forbids = FEATURE(BIAS) | FEATURE(ALIBI) | FEATURE(SOFTCAP) | FEATURE(SINK)}, .weight = 3},
    {"dropout_seeds", "every bit of seed and offset counts", check_dropout_seeds,
     {FORWARD, .needs = FEATURE(DROPOUT),
      .forbids = FEATURE(BIAS) | FEATURE(ALIBI) | FEATURE(SOFTCAP) | FEATURE(SINK)}, .weight = 2},

    {"backward_within_bound", "every gradient is within its bound of the oracle", check_within_bounds, {BACKWARD},
     .of_recipes = true, .weight = 40},
    {"empty_rows_backward", "what sees nothing or is not seen has no gradient", check_empty_rows,
     {BACKWARD, .needs = FEATURE(MASK)}, .weight = 4},
    {"strides_are_layout_backward", "strides, packing and broadcasts change no bit", check_strides,
     {BACKWARD, .needs = FEATURE(STRIDED)}, .weight = 5},
    {"poison_is_not_felt_backward", "what the contract does not read changes no bit", check_poison, {BACKWARD},
     .weight = 4},
    {"mask_forms_agree_backward", "a window equals its boolean mask, its block mask and its bias of -inf",
     check_mask_forms, {BACKWARD, .needs = FEATURE(CAUSAL)}, .weight = 4},
    {"gqa_sums_heads", "dk and dv of a shared KV head are sums over its query heads", check_repeated_heads,
     {BACKWARD, .needs = FEATURE(GQA)}, .weight = 4},
    {"one_by_one_backward", "a sequence gives the same bits alone as in its batch", check_one_by_one, {BACKWARD},
     .weight = 5},
    {"shift_moves_no_gradient", "a constant added to all scores moves no gradient", check_shift,
     {BACKWARD, .forbids = FEATURE(SOFTCAP) | FEATURE(SINK) | GIVEN_STATE}, .weight = 4},
    {"keys_permute_backward", "the order of keys does not matter", check_permuted_keys,
     {BACKWARD, .forbids = KEY_POSITION | FEATURE(RAGGED) | FEATURE(SEQUSED)}, .weight = 3},
    {"gradients_scale", "twice dout and dlse is twice every gradient, exactly", check_scaled_gradient,
     {BACKWARD, .families = ORDINARY, .forbids = FEATURE(FP16) | FEATURE(FP8) | GIVEN_STATE}, .weight = 3},
    {"parameters_matter_backward", "a changed parameter changes the gradients", check_parameters_matter,
     {BACKWARD, .forbids = GIVEN_STATE}, .weight = 4},
    {"keys_backward", "parts of the keys differentiate one by one", check_keys_backward,
     {BACKWARD, .needs = FEATURE(EXTERNAL)}, .weight = 5},
    {"dropout_counter_backward", "dv drops what the documented counter says", check_dropout_counter,
     {BACKWARD, .needs = FEATURE(DROPOUT),
      .forbids = FEATURE(BIAS) | FEATURE(DBIAS) | FEATURE(ALIBI) | FEATURE(SOFTCAP) | FEATURE(SINK) | GIVEN_STATE},
     .weight = 3},
    {"gradients_are_slopes", "gradients are slopes of the oracle's forward pass", check_finite_differences,
     {BACKWARD, .families = 1 << FAMILY_NORMAL | 1 << FAMILY_MEAN | 1 << FAMILY_INTEGER,
      .forbids = FEATURE(FP32) | FEATURE(RAGGED) | GIVEN_STATE, .max_work = SMALL}, .weight = 4},
    {0},
};

const struct property *property_named(const char *name)
{
    for (const struct property *p = properties; p->name != NULL; ++p)
        if (strcmp(p->name, name) == 0) return p;
    return NULL;
}

/* ---- implementations that are always there ---- */

const struct implementation oracle_implementation = {.name = "oracle"};

static enum attest_status library_forward(const struct implementation *self, const struct attest_problem *p,
                                          const struct attest_forward_args *a, struct computed *how)
{
    struct attest_plan *plan;
    enum attest_status status = attest_plan_create(p, &plan);
    computed_by(how, self->recipe);
    if (status == ATTEST_OK) status = attest_run_forward(plan, a, NULL, 0, NULL);
    attest_plan_destroy(plan);
    return status;
}

static enum attest_status library_backward(const struct implementation *self, const struct attest_problem *p,
                                           const struct attest_backward_args *a, struct computed *how)
{
    struct attest_plan *plan;
    enum attest_status status = attest_plan_create(p, &plan);
    computed_by(how, self->recipe);
    if (status == ATTEST_OK) status = attest_run_backward(plan, a, NULL, 0, NULL);
    attest_plan_destroy(plan);
    return status;
}

const struct implementation library_implementation = {
    .name = "library", .recipe = &ref_recipes[REF_RECIPE_FP32], .forward = library_forward, .backward = library_backward,
    .merge = emulate_merge};

/* ---- runs ---- */

struct run {
    const struct property *property;
    const struct implementation *self;
    struct check_result *result; /* NULL: nothing is counted */
    struct prop_context context;
    FILE *print;                 /* NULL: quiet */
};

static void count_case(struct check_result *r, const struct prop_case *c)
{
    const int64_t work = case_work(c);
    r->work_bits[work > 0 ? 63 - __builtin_clzll((unsigned long long)work) : 0] += 1;
    for (int a = 0; a < NUM_FEATURES; ++a)
        for (int b = a; b < NUM_FEATURES; ++b)
            r->feature_pairs[a][b] += (c->features >> a & 1) && (c->features >> b & 1);
}

static void note_shape(struct check_result *r, const struct prop_case *c)
{
    r->batch = c->p.batch;
    r->seqlen_q = c->p.seqlen_q, r->seqlen_k = c->p.seqlen_k;
    r->head_dim = c->p.head_dim > c->p.head_dim_v ? c->p.head_dim : c->p.head_dim_v;
}

static int trial(struct choices *choices, void *context)
{
    struct run *run = context;
    struct prop_case c;
    case_draw(&c, choices, &run->property->request);
    const int verdict = run->property->check(&c, run->self, &run->context);
    /* Cases are counted while the search draws them, not while it shrinks. */
    if (run->result != NULL && choices->replay == NULL && verdict != TRIAL_DISCARDED) count_case(run->result, &c);
    if (run->result != NULL) note_shape(run->result, &c);
    if (run->print != NULL) case_print(&c, run->print);
    case_free(&c);
    return verdict;
}

bool check_run(const struct property *property, const struct implementation *self, uint64_t seed, int64_t first_case,
               int64_t cases, struct check_result *result)
{
    struct run run = {.property = property, .self = self, .result = result};
    struct search_result found;
    memset(result, 0, sizeof *result);
    search(trial, &run, seed, first_case, cases, &found);
    result->cases = found.cases;
    result->discarded = found.discarded;
    result->failure = found.failure;
    result->failing_case = found.failing_case;
    result->shrink_runs = found.shrink_runs;
    result->seen = run.context;
    if (found.failure == TRIAL_PASSES) return found.cases > 0;

    struct choices choices; /* the smallest once more, for its shape and message */
    choices_start(&choices, &found.smallest, 0);
    trial(&choices, &run);
    memcpy(result->message, run.context.message, sizeof result->message);
    struct replay_line line = {.choices = found.smallest};
    snprintf(line.property, sizeof line.property, "%s", property->name);
    snprintf(line.implementation, sizeof line.implementation, "%s", self->name);
    replay_format(&line, result->line);
    return false;
}

int check_replay(const struct property *property, const struct implementation *self, const struct sequence *sequence,
                 FILE *out)
{
    struct run run = {.property = property, .self = self, .print = out};
    struct choices choices;
    choices_start(&choices, sequence, 0);
    const int verdict = trial(&choices, &run);
    if (verdict > TRIAL_PASSES) fprintf(out, "  %s: %s\n", property->sentence, run.context.message);
    return verdict;
}

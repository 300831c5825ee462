/* properties_same.c - one problem said or laid out in two ways. */
#include <math.h>
#include <string.h>

#include "proptests/properties/outcome.h"
#include "proptests/properties/properties_list.h"
#include "proptests/cases/transform.h"

/* Runs a changed case, compares c's results with its, and frees it. */
static int same_as(const struct outcome *got, struct prop_case *changed, const struct implementation *self,
                   element_map *map, const void *how, int bounds, struct prop_context *context)
{
    struct outcome again;
    int failure = outcome_run(&again, changed, self, bounds, context);
    if (failure == TRIAL_PASSES) failure = outcome_equal(got, &again, map, how, bounds, context);
    case_free(changed);
    return failure;
}

int check_strides(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct outcome got;
    struct prop_case plain;
    const int failure = outcome_run(&got, c, self, BITS_ONLY, context);
    if (failure != TRIAL_PASSES) return failure;
    case_copy(&plain, c);
    case_contiguous(&plain);
    case_lay_out(&plain);
    return same_as(&got, &plain, self, NULL, NULL, BITS_ONLY, context);
}

/* NaN is the poison of every case; large numbers, whose sums overflow, and zeros are felt in other ways. */
int check_poison(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    static const unsigned char poisons[] = {0x7e, 0x00, 0xff};
    struct outcome got;
    int failure = outcome_run(&got, c, self, BITS_ONLY, context);
    for (int i = 0; i < 3 && failure == TRIAL_PASSES; ++i) {
        struct prop_case other;
        case_copy(&other, c);
        other.poison = poisons[i];
        case_lay_out(&other);
        failure = same_as(&got, &other, self, NULL, NULL, BITS_ONLY, context);
    }
    return failure;
}

int check_mask_forms(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct outcome got;
    int failure = outcome_run(&got, c, self, WITH_BOUNDS, context);
    for (int form = 0; form < NUM_MASK_FORMS && failure == TRIAL_PASSES; ++form) {
        struct prop_case other;
        transform_mask(&other, c, (enum mask_form)form);
        failure = same_as(&got, &other, self, NULL, NULL, WITH_BOUNDS, context);
    }
    return failure;
}

/* Causal is a window that reaches all keys to the left. */
int check_causal_window(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct outcome got;
    struct prop_case window;
    const int failure = outcome_run(&got, c, self, BITS_ONLY, context);
    if (failure != TRIAL_PASSES || c->p.window_left >= 0) return failure == TRIAL_PASSES ? TRIAL_DISCARDED : failure;
    case_copy(&window, c);
    window.p.window_left = INT64_C(1) << 50;
    case_lay_out(&window);
    return same_as(&got, &window, self, NULL, NULL, BITS_ONLY, context);
}

/* ---- heads ---- */

static int64_t only_queries(const void *how, enum ref_tensor t, int64_t index)
{
    (void)how;
    return t == REF_DK || t == REF_DV ? -1 : index;
}

/* dk and dv of a KV head are the sums over its query heads. */
static int sums_of_group(const struct outcome *got, const struct outcome *repeated, enum ref_tensor t,
                         struct prop_context *context)
{
    const int64_t group = got->c->p.num_heads_q / got->c->p.num_heads_kv;
    int64_t e[4];
    if (got->value[t] == NULL) return TRIAL_PASSES;
    outcome_extents(got->c, t, e);
    for (int64_t i = 0; i < e[0] * e[1] * e[2]; ++i) {
        if (!case_row_exists(got->c, true, i / (e[1] * e[2]))) continue;
        double sum = 0, allowed = got->bound[t][i];
        for (int64_t g = 0; g < group; ++g) {
            const int64_t j = (i / e[2] * group + g) * e[2] + i % e[2];
            sum += repeated->value[t][j];
            allowed += sum_allowance(repeated->value[t][j], repeated->bound[t][j]) +
                       (double)group * rounding_of(repeated->value[t][j]);
        }
        if (!numbers_agree(outcome_format(got, t), got->value[t][i], sum, allowed))
            return fails_at(context, t, i, got->value[t][i], sum, allowed);
    }
    return TRIAL_PASSES;
}

/* One kernel that takes groups otherwise: to numbers of 16 bits, and what has no groups to scaled ones. */
static bool scales(const struct computed *how)
{
    return how->num_shares > 0 && how->share[0].recipe.weights_p == ATTEST_WEIGHTS_SCALED_FP16;
}

/* Results have the same bits, but for dk and dv. Backward, kernels that sum nothing over a group may have the repeated
 * heads, or some of the sequences: then dq is the same within both bounds. */
int check_repeated_heads(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    const struct attest_problem *const p = &c->p;
    const bool is_one_kernel = !p->ragged && !p->has_seqused_q && !p->has_seqused_k;
    struct outcome got, again;
    struct prop_case repeated;
    int failure = outcome_run(&got, c, self, c->backward, context);
    if (failure != TRIAL_PASSES) return failure;
    transform_repeat_heads(&repeated, c);
    failure = outcome_run(&again, &repeated, self, c->backward, context);
    const bool is_one = is_one_kernel && strcmp(got.backward.by, again.backward.by) == 0 &&
                        !scales(&again.backward);
    const bool is_other = c->backward && !is_one;
    if (failure == TRIAL_PASSES)
        failure = outcome_equal(&got, &again, only_queries, NULL, is_other ? WITH_BOUNDS : BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = sums_of_group(&got, &again, REF_DK, context);
    if (failure == TRIAL_PASSES) failure = sums_of_group(&got, &again, REF_DV, context);
    case_free(&repeated);
    return failure;
}

/* ---- batches ---- */

/* From a sequence alone to its place among the others. */
struct place {
    const struct prop_case *alone, *c;
    int64_t b, first_q, first_k;
};

static int64_t place_of(const void *how, enum ref_tensor t, int64_t index)
{
    const struct place *place = how;
    int64_t e[4], all[4];
    outcome_extents(place->alone, t, e);
    outcome_extents(place->c, t, all);
    if (t == REF_DSINK) return place->c->p.batch == 1 ? index : -1;
    if (t != REF_DBIAS) return index + (t == REF_DK || t == REF_DV ? place->first_k : place->first_q) * e[1] * e[2];
    if (place->c->p.batch > 1 && place->c->p.dbias.batch == 0) return -1; /* a sum over sequences */
    const int64_t h = index / (e[2] * e[3]) % e[1], r = index / e[3] % e[2], col = index % e[3];
    return (((all[0] > 1 ? place->b : 0) * all[1] + h) * all[2] + r) * all[3] + col;
}

int check_one_by_one(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct outcome got;
    int failure = outcome_run(&got, c, self, BITS_ONLY, context);
    for (int64_t b = 0; b < c->p.batch && failure == TRIAL_PASSES; ++b) {
        const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
        struct prop_case alone;
        struct outcome one;
        transform_alone(&alone, c, b);
        const struct place place = {.alone = &alone, .c = c, .b = b, .first_q = s.first_q, .first_k = s.first_k};
        failure = outcome_run(&one, &alone, self, BITS_ONLY, context);
        if (failure == TRIAL_PASSES) failure = outcome_equal(&one, &got, place_of, &place, BITS_ONLY, context);
        case_free(&alone);
    }
    return failure;
}

/* ---- queries ---- */

static int64_t place_of_query(const void *how, enum ref_tensor t, int64_t index)
{
    const struct place *place = how;
    int64_t e[4];
    outcome_extents(place->alone, t, e);
    return t == REF_O || t == REF_LSE || t == REF_DQ ? index + place->first_q * e[1] * e[2] : -1;
}

/* The second half of the queries, wherever the tiles of the whole lay, with indices that say where they were. */
int check_queries_apart(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct prop_case whole, half;
    struct outcome all, some;
    if (c->p.batch == 0) return TRIAL_DISCARDED;
    transform_alone(&whole, c, c->p.batch - 1);
    const int64_t middle = whole.p.seqlen_q / 2;
    transform_part(&half, &whole, &(struct part){middle, whole.p.seqlen_q, 0, whole.p.seqlen_k, true});
    const struct place place = {.alone = &half, .c = &whole, .first_q = middle};
    int failure = outcome_run(&all, &whole, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&some, &half, self, WITH_BOUNDS, context);
    if (failure == TRIAL_PASSES) failure = outcome_equal(&some, &all, place_of_query, &place, WITH_BOUNDS, context);
    case_free(&half);
    case_free(&whole);
    return failure;
}

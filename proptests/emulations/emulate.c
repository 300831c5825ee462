/* emulate.c - the recipes' forward pass: online softmax over tiles of keys (Milakov & Gimelshein 2018; Dao 2023,
 * algorithm 1), in fp32 with the roundings that the recipe names. */
#include "proptests/emulations/emulate.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "proptests/emulations/emulate_formats.h"
#include "proptests/emulations/emulate_head.h"
#include "reference/bounds.h" /* for ref_recipes, which is data */

#define EMULATION(NAME, RECIPE, TILE_K) {IMPLEMENTATION(NAME, &ref_recipes[REF_RECIPE_##RECIPE], TILE_K)}
#define OF_KERNEL(NAME, KERNEL, TILE_K) {IMPLEMENTATION(NAME, &ref_kernel_recipes[REF_##KERNEL], TILE_K)}
#define UNKIND_OF_KERNEL(NAME, KERNEL, TILE_K) \
    {IMPLEMENTATION(NAME, &ref_kernel_recipes[REF_##KERNEL], TILE_K), .is_unkind = true}
#define IMPLEMENTATION(NAME, RECIPE, TILE_K) \
    .name = NAME, .recipe = RECIPE, .forward = emulate_forward, .backward = emulate_backward, \
    .merge = emulate_merge, .tile_k = TILE_K

const struct implementation emulations[] = {
    EMULATION("fp32", FP32, 16),
    EMULATION("mixed", MIXED, 32),
    EMULATION("flash", FLASH, 16),
    EMULATION("ampere", AMPERE, 16),
    EMULATION("hopper", HOPPER, 64),
    EMULATION("fp32-tile2", FP32, 2), /* edges of tiles in the smallest cases */
    EMULATION("flash-tile128", FLASH, 128),
    /* kernels/long/forward_sm80.cu, kernels/long/backward_sm80.cu */
    OF_KERNEL("portable", BACKWARD_SM80, 64),
    UNKIND_OF_KERNEL("portable-unkind", BACKWARD_SM80, 64),
    /* kernels/..._fp32.cu, one_query_forward_sm80.cu */
    UNKIND_OF_KERNEL("portable-fp32-unkind", BACKWARD_FP32, 64),
    UNKIND_OF_KERNEL("portable-short-unkind", SHORT_FORWARD_SM80, 128), /* kernels/short_....cu */
    OF_KERNEL("portable-scaled", SHORT_BACKWARD_SM90_N128_SCALED, 128),
    UNKIND_OF_KERNEL("portable-scaled-unkind", SHORT_BACKWARD_SM90_N128_SCALED, 128),
    EMULATION("lazy", LAZY, 16),
    /* FlashAttention-2, where "flash" rounds as the memory-efficient kernel does */
    {IMPLEMENTATION("flash-late", &ref_recipes[REF_RECIPE_FLASH], 64), .rounds_late = true},
    {0},
};

const struct implementation *emulation_named(const char *name)
{
    for (const struct implementation *e = emulations; e->name; ++e)
        if (strcmp(e->name, name) == 0) return e;
    return NULL;
}

void computed_by(struct computed *how, const struct attest_recipe *recipe)
{
    *how = (struct computed){0};
    computed_add(how, recipe->name != NULL ? recipe->name : "", recipe, INT64_MAX, INT64_MAX);
}

bool computed_add(struct computed *how, const char *name, const struct attest_recipe *recipe, int64_t most_seqlen_q,
                  int64_t most_seqlen_k)
{
    const size_t length = strlen(how->by), room = sizeof how->by - length;
    if (how->num_shares == REF_MOST_SHARES) return false;
    const char *const joint = how->num_shares > 0 ? "+" : "";
    struct computed_share *const share = &how->share[how->num_shares++];
    *share = (struct computed_share){*recipe, most_seqlen_q, most_seqlen_k};
    share->recipe.name = NULL;
    return snprintf(how->by + length, room, "%s%s", joint, name) < (int)room;
}

struct ref_shares computed_shares(const struct computed *how)
{
    struct ref_shares out = {.count = how->num_shares};
    for (int i = 0; i < how->num_shares; ++i) {
        const struct computed_share *const share = &how->share[i];
        out.share[i] = (struct ref_share){&share->recipe, share->most_seqlen_q, share->most_seqlen_k};
    }
    return out;
}

enum attest_status emulate_merge(const struct implementation *self, const struct attest_merge_args *a)
{
    (void)self;
    return attest_merge_states(a, NULL);
}

/* A block of query rows on its way through the keys. */
struct rows {
    int64_t r0, count;
    float q[TILE_Q * MAX_FEATURES];
    float max[TILE_Q], sum[TILE_Q]; /* of the exponents, or one that lags; of exp(x - max) */
    float most[TILE_Q];             /* of the exponents */
    float o[TILE_Q][MAX_FEATURES];  /* sum of p v, p = exp(x - max) */
    float base[TILE_Q];             /* that its biases and scores are taken less of */
    bool seen[TILE_Q];              /* the row has seen a key */
    bool scales;                    /* p and v to fp16, v and so o times 2^power */
    int power;
};

/* The larger one; a NaN on either side stays. */
static float max_or_nan(float a, float b) { return a > b || isnan(a) ? a : b; }

static void start_rows(const struct head *head, int64_t r0, struct rows *rows)
{
    rows->r0 = r0;
    rows->count = least(TILE_Q, head->seqlen_q - r0);
    head_load_q(head, &head->p->q, head->a->q, r0, rows->count, head->p->head_dim, rows->q);
    memset(rows->o, 0, sizeof rows->o);
    for (int64_t i = 0; i < TILE_Q; ++i) { /* a sink is a key with that score and no value */
        rows->max[i] = head->p->has_sink ? head->a->sink[head->h] - rows->base[i] : -INFINITY;
        rows->most[i] = rows->max[i];
        rows->sum[i] = rows->max[i] == -INFINITY ? 0.0f : 1.0f;
        rows->seen[i] = false;
        if (MUTANT(head, MUTANT_FINITE_INFINITY)) rows->max[i] = max_or_nan(rows->max[i], -5e4f);
    }
}

/* Of the largest number of v. */
static int power_of_values(const struct head *head)
{
    float v[MAX_TILE_K * MAX_FEATURES], largest = 0.0f;
    for (int64_t c0 = 0; c0 < head->seqlen_k; c0 += head->self->tile_k) {
        head_load_k(head, &head->p->v, head->a->v, c0, head->p->head_dim_v, v);
        largest = head_largest(v, head->self->tile_k * head->p->head_dim_v, largest);
    }
    return head_power(largest);
}

static float round_p(const struct head *head, bool scales, float p)
{
    if (scales) return emulate_round(ATTEST_FP16, p);
    const float rounded = emulate_round_weight(head->p->v.dtype, head->self->recipe->weights_p, p);
    if (MUTANT(head, MUTANT_P_TRUNCATED) && rounded > p) return emulate_round(head->p->v.dtype, 2 * p - rounded);
    return rounded;
}

/* Row i of a tile: new maximum, sum and weights; what was added up so far is scaled to the new maximum. */
static void softmax_row(const struct head *head, const struct score_tile *tile, int64_t i, struct rows *rows, float *p)
{
    float max = rows->max[i];
    for (int64_t j = 0; j < tile->keys; ++j) {
        if (!tile->seen[i][j]) continue;
        max = max_or_nan(max, tile->x[i][j]);
        rows->seen[i] = true;
    }
    memset(p, 0, (size_t)tile->keys * sizeof *p);
    if (max == -INFINITY && MUTANT(head, MUTANT_MAXIMUM_RESET)) max = 0.0f;
    if (max == -INFINITY && !MUTANT(head, MUTANT_EMPTY_TILE_NAN)) return; /* -inf - -inf would be NaN */

    const int grows = ref_rescale_log2(head->self->recipe, head->p->v.dtype);
    const bool lags = max - rows->max[i] <= (float)grows * 0.6931471f;
    rows->most[i] = max;
    if (lags && MUTANT(head, MUTANT_RESCALE_LOST)) rows->max[i] = max;
    if (lags) max = rows->max[i];
    const bool stays = rows->max[i] == max && max != -INFINITY; /* so does what was added up, exactly */
    const float alpha = stays ? 1.0f : head_exp(head, 0, rows->max[i] - max, 0.0f, 0);
    rows->max[i] = max;
    rows->sum[i] *= alpha;
    for (int64_t x = 0; x < head->p->head_dim_v; ++x) rows->o[i][x] *= alpha;
    for (int64_t j = 0; j < tile->keys; ++j) {
        if (!tile->seen[i][j]) continue;
        const float e = head_exp(head, tile->c0 + j, tile->x[i][j], max, 0);
        rows->sum[i] += e;
        p[j] = tile->dropped[i][j] ? 0.0f : round_p(head, rows->scales, e);
    }
}

static void absorb_tile(const struct head *head, int64_t c0, struct rows *rows)
{
    const struct attest_problem *p = head->p;
    struct score_tile tile = {.r0 = rows->r0, .rows = rows->count, .c0 = c0};
    float k[MAX_TILE_K * MAX_FEATURES], v[MAX_TILE_K * MAX_FEATURES], weights[TILE_Q][MAX_TILE_K];
    memcpy(tile.base, rows->base, sizeof tile.base);
    tile.padding_counts = MUTANT(head, MUTANT_PADDING_SCORED);
    head_load_k(head, &p->k, head->a->k, c0, p->head_dim, k);
    head_load_k(head, &p->v, head->a->v, c0, p->head_dim_v, v);
    score_tile_compute(head, rows->q, k, &tile);
    for (int64_t i = 0; i < tile.rows; ++i) softmax_row(head, &tile, i, rows, weights[i]);
    if (rows->scales)
        for (int64_t i = 0; i < tile.keys * p->head_dim_v; ++i)
            v[i] = emulate_round(ATTEST_FP16, v[i] * ldexpf(1.0f, rows->power));
    const int32_t dtype = rows->scales ? ATTEST_FP16 : p->v.dtype;
    const struct unit unit = unit_of(head, dtype, dtype);
    const struct seen all = {0}, seen = {tile.seen[0], MAX_TILE_K, 1};
    unit_multiply(&unit, tile.rows, p->head_dim_v, tile.keys, (struct matrix){weights[0], MAX_TILE_K, 1},
                  MUTANT(head, MUTANT_MASKED_NAN) ? all : seen, (struct matrix){v, p->head_dim_v, 1},
                  (struct matrix){rows->o[0], MAX_FEATURES, 1});
}

static void store_row(const struct head *head, int64_t r, const float *o, float scale, float lse)
{
    const struct attest_problem *p = head->p;
    const int64_t at = head_offset_q(head, &p->o, r);
    for (int64_t x = 0; x < p->head_dim_v; ++x) emulate_store(p->o.dtype, head->a->o, at + x, o[x] * scale);
    if (!p->lse.dtype) return;
    struct head place = *head;
    if (MUTANT(head, MUTANT_LSE_HEADS_SWAPPED)) {
        const int64_t group = p->num_heads_q / p->num_heads_kv;
        place.h = head->h % group * p->num_heads_kv + head->h / group;
    }
    emulate_store(p->lse.dtype, head->a->lse, head_offset_q(&place, &p->lse, r), lse);
}

static void finish_rows(const struct head *head, const struct rows *rows)
{
    for (int64_t i = 0; i < rows->count; ++i) {
        const float max = rows->max[i], sum = rows->sum[i];
        const bool is_empty = !rows->seen[i] && sum == 0.0f; /* what was added up is 0, and stays so */
        const float of_lse = MUTANT(head, MUTANT_LSE_OF_MAXIMUM) ? rows->most[i] : max;
        const float lse = rows->base[i] + (isfinite(of_lse) ? of_lse + logf(sum) : of_lse);
        const float scale = ldexpf(head->drop_scale / sum, -rows->power);
        store_row(head, rows->r0 + i, rows->o[i], is_empty ? 1.0f : scale, lse);
    }
}

static void run_rows(const struct head *head, int64_t r0, int64_t end, struct rows *rows)
{
    start_rows(head, r0, rows);
    for (int64_t c0 = 0; c0 < end; c0 += head->self->tile_k) absorb_tile(head, c0, rows);
}

/* The bases of rows that turned out to be large. Whether there is one. */
static bool take_bases(const struct head *head, struct rows *rows)
{
    bool any = false;
    for (int64_t i = 0; i < rows->count; ++i) {
        if (!head->p->bias.dtype || !head_is_large(head, rows->max[i])) continue;
        rows->base[i] = head_base(head, rows->r0 + i);
        any |= rows->base[i] != 0.0f;
    }
    return any;
}

static void forward_head(const struct head *head)
{
    static const float zeros[MAX_FEATURES];
    const int64_t tile_k = head->self->tile_k, whole = head->seqlen_k / tile_k * tile_k;
    const int64_t end = MUTANT(head, MUTANT_TAIL_DROPPED) ? whole : head->seqlen_k;
    const bool scales = head_scales(head);
    const int power = scales ? power_of_values(head) : 0;
    for (int64_t r0 = 0; r0 < head->seqlen_q; r0 += TILE_Q) {
        struct rows rows = {.scales = scales, .power = power};
        run_rows(head, r0, end, &rows);
        if (take_bases(head, &rows)) run_rows(head, r0, end, &rows);
        finish_rows(head, &rows);
    }
    for (int64_t r = head->seqlen_q; r < head->rows_q; ++r) store_row(head, r, zeros, 1.0f, -INFINITY);
}

enum attest_status emulate_forward(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_forward_args *a, struct computed *how)
{
    computed_by(how, self->recipe);
    for (int64_t b = 0; b < p->batch; ++b) {
        for (int64_t h = 0; h < p->num_heads_q; ++h) {
            const struct head head = head_of(self, p, a, b, h);
            forward_head(&head);
        }
    }
    return ATTEST_OK;
}

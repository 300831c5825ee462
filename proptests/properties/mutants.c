/* mutants.c - the table of mutants, and those that are wrong about the problem or the results. */
#include "proptests/properties/mutants.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "proptests/emulations/emulate_formats.h"
#include "proptests/emulations/emulate_head.h"
#include "reference/bounds.h" /* for ref_recipes, which is data */

/* --- Misreadings of the problem ------------------------------------------------------------------------ */

static void diagonal_top_left(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    if (p->diag_kind == ATTEST_DIAG_BOTTOM_RIGHT) p->diag_kind = ATTEST_DIAG_TOP_LEFT;
}

static void window_too_wide(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    if (p->window_left >= 0) ++p->window_left;
}

/* A window that reaches back to the first key is thought to end before it. */
static void window_not_causal(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    if (p->window_left >= p->seqlen_k - 1 && p->window_right == 0) p->window_left = p->seqlen_k - 2;
}

static void alibi_top_left_if_ragged(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    if (p->ragged && p->alibi_diag_kind != ATTEST_DIAG_GIVEN) p->alibi_diag_kind = ATTEST_DIAG_TOP_LEFT;
}

static void softcap_ignored(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    p->softcap = 0.0f;
}

static void causal_ignored(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    if (p->window_right == 0) p->window_right = -1;
}

static void first_half_of_features(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    p->head_dim = (p->head_dim + 1) / 2;
}

/* head_dim 72 computed as 64. */
static void features_cut_to_eight(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    if (p->head_dim > 8) p->head_dim -= p->head_dim % 8;
}

static void one_head_dim(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    p->head_dim = p->head_dim_v = least(p->head_dim, p->head_dim_v);
}

/* The diagonal of every sequence is that of the longest. */
static void diagonal_of_longest(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    if (!p->ragged || p->diag_kind != ATTEST_DIAG_BOTTOM_RIGHT) return;
    p->diag_kind = ATTEST_DIAG_GIVEN;
    p->diag = p->seqlen_k - p->seqlen_q;
}

static void block_mask_ignored(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    p->block_mask.dtype = ATTEST_ABSENT;
}

/* Elements from the first to past the last. */
static int64_t span(const struct attest_problem *p, const struct attest_tensor *t, int64_t rows, int64_t heads,
                    int64_t features)
{
    const int64_t batch = p->ragged || p->batch < 1 ? 0 : (p->batch - 1) * t->batch;
    return batch + (rows - 1) * t->seqlen + (heads - 1) * t->head + features;
}

/* Strides of a packed tensor, unless that would leave the memory that is there. */
static void pack(const struct attest_problem *p, struct attest_tensor *t, int64_t rows, int64_t heads, int64_t features)
{
    struct attest_tensor packed = *t;
    packed.head = features;
    packed.seqlen = heads * features;
    packed.batch = rows * heads * features;
    if (span(p, &packed, rows, heads, features) <= span(p, t, rows, heads, features)) *t = packed;
}

static int64_t rows_q(const struct attest_problem *p) { return p->ragged ? p->total_q : p->seqlen_q; }
static int64_t rows_k(const struct attest_problem *p) { return p->ragged ? p->total_k : p->seqlen_k; }

static void dout_taken_as_packed(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    pack(p, &p->dout, rows_q(p), p->num_heads_q, p->head_dim_v);
}

static void v_taken_as_packed(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    pack(p, &p->v, rows_k(p), p->num_heads_kv, p->head_dim_v);
}

/* [batch][heads][seqlen_q], whatever the strides say. */
static void lse_taken_as_packed(struct attest_problem *p, struct attest_forward_args *a)
{
    struct attest_tensor packed = p->lse;
    (void)a;
    packed.seqlen = 1;
    packed.head = rows_q(p);
    packed.batch = rows_q(p) * p->num_heads_q;
    if (span(p, &packed, rows_q(p), p->num_heads_q, 1) <= span(p, &p->lse, rows_q(p), p->num_heads_q, 1))
        p->lse = packed;
}

/* A single key in the last tile is lost where k is broadcast. */
static void last_key_lost_if_broadcast(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    const bool broadcast = (p->batch > 1 && p->k.batch == 0) || (p->num_heads_kv > 1 && p->k.head == 0) ||
                           (p->seqlen_k > 1 && p->k.seqlen == 0);
    if (!p->ragged && broadcast && !p->has_seqused_k && p->seqlen_k % 2 == 1) --p->seqlen_k;
}

static void indices_of_32_bits(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    p->q_start = (int32_t)p->q_start;
    p->k_start = (int32_t)p->k_start;
}

static void seed_of_63_bits(struct attest_problem *p, struct attest_forward_args *a)
{
    p->dropout_seed = (a->dropout_seed ? *a->dropout_seed : p->dropout_seed) & INT64_MAX;
    a->dropout_seed = NULL;
}

/* The device's seed is read before it is there. */
static void seed_read_too_early(struct attest_problem *p, struct attest_forward_args *a)
{
    if (a->dropout_seed) p->dropout_seed = 0;
    a->dropout_seed = NULL;
}

static void seed_constant(struct attest_problem *p, struct attest_forward_args *a)
{
    p->dropout_seed = 42;
    a->dropout_seed = NULL;
}

static void nothing_without_keys(struct attest_problem *p, struct attest_forward_args *a)
{
    (void)a;
    if (p->seqlen_k == 0) p->batch = 0;
}

/* --- Spoilt results ------------------------------------------------------------------------------------ */

/* Calls f for every row of o that counts, with the offsets of its o and lse. */
static void each_row(const struct attest_problem *p, const struct attest_forward_args *a,
                     void (*f)(const struct head *head, int64_t r, int64_t o, int64_t lse))
{
    static const struct implementation none;
    for (int64_t b = 0; b < p->batch; ++b) {
        for (int64_t h = 0; h < p->num_heads_q; ++h) {
            const struct head head = head_of(&none, p, a, b, h);
            for (int64_t r = 0; r < head.seqlen_q; ++r)
                f(&head, r, head_offset_q(&head, &p->o, r), head_offset_q(&head, &p->lse, r));
        }
    }
}

static bool row_is_empty(const struct head *head, int64_t lse)
{
    return head->p->lse.dtype && ((const float *)head->a->lse)[lse] == -INFINITY;
}

static void finite_lse(const struct head *head, int64_t r, int64_t o, int64_t lse)
{
    (void)r, (void)o;
    if (row_is_empty(head, lse)) ((float *)head->a->lse)[lse] = -49994.0f;
}

static void spoil_finite_lse(const struct attest_problem *p, const struct attest_forward_args *a)
{
    each_row(p, a, finite_lse);
}

/* The early exit forgets the sequence. */
static void neighbours_lse(const struct head *head, int64_t r, int64_t o, int64_t lse)
{
    (void)o;
    if (row_is_empty(head, lse) && !head->p->ragged)
        ((float *)head->a->lse)[r * head->p->lse.seqlen + head->h * head->p->lse.head] = -INFINITY;
}

static void spoil_neighbours_lse(const struct attest_problem *p, const struct attest_forward_args *a)
{
    each_row(p, a, neighbours_lse);
}

static void uniform_row(const struct head *head, int64_t r, int64_t o, int64_t lse)
{
    const struct attest_problem *p = head->p;
    (void)r;
    if (!row_is_empty(head, lse) || head->seqlen_k == 0) return;
    for (int64_t x = 0; x < p->head_dim_v; ++x) {
        float sum = 0.0f;
        for (int64_t c = 0; c < head->seqlen_k; ++c)
            sum += emulate_load(p->v.dtype, head->a->v, head_offset_k(head, &p->v, c) + x);
        emulate_store(p->o.dtype, head->a->o, o + x, sum / (float)head->seqlen_k);
    }
}

static void spoil_uniform_row(const struct attest_problem *p, const struct attest_forward_args *a)
{
    each_row(p, a, uniform_row);
}

static void past_the_row(const struct head *head, int64_t r, int64_t o, int64_t lse)
{
    (void)lse;
    if (head->seqlen_k == 0 && r == head->seqlen_q - 1 && head->h == head->p->num_heads_q - 1)
        emulate_store(head->p->o.dtype, head->a->o, o + head->p->head_dim_v, 0.0f);
}

static void spoil_past_the_row(const struct attest_problem *p, const struct attest_forward_args *a)
{
    each_row(p, a, past_the_row);
}

static void one_nan(const struct head *head, int64_t r, int64_t o, int64_t lse)
{
    (void)lse;
    if (r == head->seqlen_q - 1) emulate_store(head->p->o.dtype, head->a->o, o, NAN);
}

static void spoil_one_nan(const struct attest_problem *p, const struct attest_forward_args *a)
{
    each_row(p, a, one_nan);
}

/* --- The functions of struct implementation ------------------------------------------------------------- */

static enum attest_status forward(const struct implementation *self, const struct attest_problem *p,
                                  const struct attest_forward_args *a, struct computed *how)
{
    const struct mutant *m = (const struct mutant *)self;
    struct attest_problem problem = *p;
    struct attest_forward_args args = *a;
    if (m->misread && m->passes & MUTATES_FORWARD) m->misread(&problem, &args);
    const enum attest_status status = emulate_forward(self, &problem, &args, how);
    if (m->spoil) m->spoil(p, a);
    return status;
}

static enum attest_status backward(const struct implementation *self, const struct attest_problem *p,
                                   const struct attest_backward_args *a, struct computed *how)
{
    const struct mutant *m = (const struct mutant *)self;
    struct attest_problem problem = *p;
    struct attest_backward_args args = *a;
    if (m->misread && m->passes & MUTATES_BACKWARD) m->misread(&problem, &args.forward);
    return emulate_backward(self, &problem, &args, how);
}

/* Tiles as long as the batch is large. */
static enum attest_status forward_by_batch(const struct implementation *self, const struct attest_problem *p,
                                           const struct attest_forward_args *a, struct computed *how)
{
    struct implementation other = *self;
    other.tile_k = p->batch > 1 ? 3 : 2;
    return emulate_forward(&other, p, a, how);
}

/* --- The table ----------------------------------------------------------------------------------------- */

#define IMPLEMENTATION(NAME, RECIPE, KIND, FORWARD, MERGE, TILE_K)                                     \
    .implementation = {.name = NAME, .recipe = &ref_recipes[REF_RECIPE_##RECIPE], .mutant = KIND,      \
                       .forward = FORWARD, .backward = backward, .merge = MERGE, .tile_k = TILE_K}
#define TINY_TILES(NAME, KIND) IMPLEMENTATION(NAME, FP32, KIND, forward, emulate_merge, 2)
#define FLASH(NAME, KIND) IMPLEMENTATION(NAME, FLASH, KIND, forward, emulate_merge, 16)
#define LAZY(NAME, KIND) IMPLEMENTATION(NAME, LAZY, KIND, forward, emulate_merge, 16)
#define MERGE(NAME, FUNCTION) IMPLEMENTATION(NAME, FP32, MUTANT_WRAPPER, forward, FUNCTION, 2)
#define MISREADS(NAME, FUNCTION, PASSES) TINY_TILES(NAME, MUTANT_WRAPPER), .misread = FUNCTION, .passes = PASSES
#define SPOILS(NAME, FUNCTION) TINY_TILES(NAME, MUTANT_WRAPPER), .spoil = FUNCTION
#define SHRINKS_TO(Q, K) .seqlen_q = Q, .seqlen_k = K

const struct mutant mutants[] = {
    {TINY_TILES("tail-unmasked-backward", MUTANT_TAIL_UNMASKED), .row = 1, .museum = "flash-attention#334",
     .bug = "keys past the end count in backward: exp(0 - lse) overflows", SHRINKS_TO(1, 1)},
    {TINY_TILES("padding-scored", MUTANT_PADDING_SCORED), .row = 2, .museum = "flash-attention#443",
     .bug = "keys past the end are scored 0, not -inf", SHRINKS_TO(1, 1)},
    {TINY_TILES("finite-infinity", MUTANT_FINITE_INFINITY), .row = 6, .museum = "flashinfer#4267",
     .bug = "minus infinity is -5e4, and scores go below it", SHRINKS_TO(1, 2)},
    {TINY_TILES("maximum-reset", MUTANT_MAXIMUM_RESET), .row = 7, .museum = "flash-attention#2082",
     .bug = "a first tile that is masked sets the running maximum to 0", SHRINKS_TO(1, 3)},
    {TINY_TILES("empty-tile-nan", MUTANT_EMPTY_TILE_NAN), .row = 8, .museum = "vllm#48364",
     .bug = "a first tile that is masked makes NaN", SHRINKS_TO(1, 3)},
    {TINY_TILES("bias-finite", MUTANT_BIAS_FINITE), .row = 10, .museum = "pytorch#109517",
     .bug = "a bias of -inf is taken for the lowest finite number", SHRINKS_TO(1, 1)},
    {TINY_TILES("masked-nan", MUTANT_MASKED_NAN), .row = 11, .museum = "pytorch#101967",
     .bug = "a NaN in a masked value reaches the output as 0 NaN", SHRINKS_TO(1, 1)},
    {TINY_TILES("past-used-unwritten", MUTANT_PAST_USED_UNWRITTEN), .row = 13, .museum = "flash-attention#1228",
     .bug = "gradients of rows past the last used one are not written", SHRINKS_TO(1, 1)},
    {SPOILS("past-the-row", spoil_past_the_row), .row = 15, .museum = "flash-attention PR#1155",
     .bug = "without keys a write past the end", SHRINKS_TO(1, 1)},
    {MISREADS("nothing-without-keys", nothing_without_keys, MUTATES_BOTH), .row = 17,
     .museum = "flash-attention PR#2470", .bug = "seqlen_k = 0: outputs are not written", SHRINKS_TO(1, 0)},
    {SPOILS("neighbours-lse", spoil_neighbours_lse), .row = 18, .museum = "flash-attention#2842",
     .bug = "the early exit of an empty row writes another row's lse", SHRINKS_TO(1, 1)},
    {SPOILS("finite-lse", spoil_finite_lse), .row = 19, .museum = "flashinfer#4452",
     .bug = "empty rows have lse = -49994", SHRINKS_TO(1, 1)},
    {MERGE("merge-empty-nan", merge_empty_nan), .row = 20, .museum = "flashinfer#4051",
     .bug = "merge of two empty states is NaN", SHRINKS_TO(1, 1)},
    {TINY_TILES("lse-heads-swapped", MUTANT_LSE_HEADS_SWAPPED), .row = 21, .museum = "vllm PR#21996",
     .bug = "lse has group and KV head swapped", SHRINKS_TO(1, 1)},
    {MISREADS("lse-packed", lse_taken_as_packed, MUTATES_FORWARD), .row = 22, .museum = "flash-attention PR#2388",
     .bug = "strides of lse are hard-coded", SHRINKS_TO(2, 1)},
    {MERGE("merge-base-2", merge_base_2), .row = 23, .museum = "vllm PR#52796",
     .bug = "lse of base e merged as base 2", SHRINKS_TO(1, 2)},
    {MERGE("merge-bf16", merge_bf16), .row = 24, .museum = "ring-flash-attention#22",
     .bug = "partial o merged in bf16", SHRINKS_TO(1, 1)},
    {MISREADS("diagonal-top-left", diagonal_top_left, MUTATES_BOTH), .row = 26, .museum = "flash-attention#282",
     .bug = "bottom-right taken for top-left", SHRINKS_TO(1, 2)},
    {MISREADS("window-too-wide", window_too_wide, MUTATES_BOTH), .row = 27, .museum = "transformers#39408",
     .bug = "the window is one key too wide", SHRINKS_TO(1, 2)},
    {MISREADS("window-not-causal", window_not_causal, MUTATES_BOTH), .row = 28, .museum = "flash-attention#1133",
     .bug = "window (seqlen_k - 1, 0) is not causal", SHRINKS_TO(2, 2)},
    {MISREADS("alibi-ragged", alibi_top_left_if_ragged, MUTATES_BOTH), .row = 29, .museum = "flash-attention#907",
     .bug = "ALiBi of ragged batches starts at the top left", SHRINKS_TO(2, 2)},
    {TINY_TILES("softcap-self", MUTANT_SOFTCAP_SELF), .row = 30, .museum = "flash-attention PR#2402",
     .bug = "softcap is s tanh(s)", SHRINKS_TO(1, 1)},
    {MISREADS("softcap-ignored", softcap_ignored, MUTATES_BOTH), .row = 31, .museum = "sgl-kernel-xpu PR#491",
     .bug = "softcap is ignored", SHRINKS_TO(1, 1)},
    {MISREADS("backward-not-causal", causal_ignored, MUTATES_BACKWARD), .row = 32, .museum = "triton#4541",
     .bug = "backward ignores causal", SHRINKS_TO(1, 2)},
    {MISREADS("half-the-features", first_half_of_features, MUTATES_BOTH), .row = 33, .museum = "triton#621",
     .bug = "only the first half of head_dim is used", SHRINKS_TO(1, 1)},
    {MISREADS("features-cut-to-eight", features_cut_to_eight, MUTATES_BOTH), .row = 34, .museum = "flashinfer#4299",
     .bug = "head_dim is rounded down to a multiple of 8", SHRINKS_TO(1, 1)},
    {MISREADS("one-head-dim", one_head_dim, MUTATES_FORWARD), .row = 35, .museum = "flashinfer#4976",
     .bug = "head_dim_v is taken for head_dim", SHRINKS_TO(1, 1)},
    {MISREADS("one-head-dim-backward", one_head_dim, MUTATES_BACKWARD), .row = 36, .museum = "flash-attention#2552",
     .bug = "the same in backward alone", SHRINKS_TO(1, 1)},
    {MISREADS("ragged-backward", diagonal_of_longest, MUTATES_BACKWARD), .row = 38,
     .museum = "TransformerEngine#3333", .bug = "ragged backward takes the diagonal of the longest sequence",
     SHRINKS_TO(2, 2)},
    {MISREADS("backward-block-mask", block_mask_ignored, MUTATES_BACKWARD), .row = 39,
     .museum = "flash-attention#2623", .bug = "backward ignores the block mask", SHRINKS_TO(1, 1)},
    {MISREADS("block-mask-ignored", block_mask_ignored, MUTATES_BOTH), .row = 40, .museum = "pytorch#188322",
     .bug = "the block mask is ignored", SHRINKS_TO(1, 2)},
    {TINY_TILES("head-split", MUTANT_HEAD_SPLIT), .row = 42, .museum = "native-sparse-attention-triton#27",
     .bug = "heads are split by the wrong count", SHRINKS_TO(1, 1)},
    {TINY_TILES("group-not-summed", MUTANT_GROUP_NOT_SUMMED), .row = 43, .museum = "levanter PR#449",
     .bug = "dk and dv are not summed over the group", SHRINKS_TO(1, 1)},
    {MISREADS("dout-packed", dout_taken_as_packed, MUTATES_BACKWARD), .row = 44, .museum = "flash-attention#355",
     .bug = "strides of dout are ignored", SHRINKS_TO(2, 1)},
    {MISREADS("v-packed", v_taken_as_packed, MUTATES_BOTH), .row = 45, .museum = "pytorch#112577",
     .bug = "strides of v are ignored", SHRINKS_TO(1, 2)},
    {MISREADS("broadcast-tail", last_key_lost_if_broadcast, MUTATES_FORWARD), .row = 46, .museum = "pytorch#191937",
     .bug = "broadcast keys lose the one in the last tile", SHRINKS_TO(1, 3)},
    {MISREADS("indices-of-32-bits", indices_of_32_bits, MUTATES_BOTH), .row = 47, .museum = "flash-attention#2611",
     .bug = "indices wrap at 2^32", SHRINKS_TO(1, 1)},
    {MISREADS("seed-of-63-bits", seed_of_63_bits, MUTATES_BOTH), .row = 49, .museum = "pytorch PR#144844",
     .bug = "the dropout seed is cut to 63 bits", SHRINKS_TO(1, 4)},
    {MISREADS("seed-too-early", seed_read_too_early, MUTATES_BACKWARD), .row = 50, .museum = "pytorch PR#197563",
     .bug = "backward reads the device's seed before it is there", SHRINKS_TO(2, 4)},
    {MISREADS("seed-constant", seed_constant, MUTATES_BOTH), .row = 51, .museum = "flash-attention#2088",
     .bug = "the dropout seed is a constant", SHRINKS_TO(1, 4)},
    {IMPLEMENTATION("tile-by-batch", FP32, MUTANT_WRAPPER, forward_by_batch, emulate_merge, 2), .row = 61,
     .museum = "FlashMLA#212", .bug = "a row's bits depend on the batch around it", SHRINKS_TO(1, 4)},
    {TINY_TILES("tail-dropped", MUTANT_TAIL_DROPPED), .row = 62, .museum = "TransformerEngine#3331",
     .bug = "the keys of a tile that is not full are dropped", SHRINKS_TO(1, 1)},
    {MERGE("merge-wrong-stride", merge_wrong_stride), .row = 63, .museum = "hipfire PR#264",
     .bug = "writer and reducer of partial o disagree on the stride", SHRINKS_TO(2, 1)},
    {SPOILS("uniform-row", spoil_uniform_row), .row = 65, .museum = "apex PR#1444",
     .bug = "a row that is masked averages all values", SHRINKS_TO(1, 1)},
    {LAZY("rescale-lost", MUTANT_RESCALE_LOST), .row = 0, .museum = "not known to have shipped",
     .bug = "a rescaling that is left out, but not the new maximum", SHRINKS_TO(1, 17)},
    {LAZY("lse-of-maximum", MUTANT_LSE_OF_MAXIMUM), .row = 0, .museum = "not known to have shipped",
     .bug = "lse of the running maximum, of which the sum is not", SHRINKS_TO(1, 17)},
    {FLASH("p-truncated", MUTANT_P_TRUNCATED), .row = 0, .museum = "arXiv:2510.04212",
     .bug = "p is cut off to 16 bits, so its errors all have one sign", SHRINKS_TO(1, 4)},
    {SPOILS("one-nan", spoil_one_nan), .row = 0, .museum = "cubecl PR#1070",
     .bug = "one NaN, which a comparison by greater-than lets pass", SHRINKS_TO(1, 1)},
    {MERGE("merge-o-detached", emulate_merge), .implementation.merge_backward = merge_o_detached, .row = 0,
     .museum = "not known to have shipped", .bug = "weights of a merge get no gradient from o", SHRINKS_TO(1, 1)},
    {.row = 0},
};

const struct mutant *mutant_named(const char *name)
{
    for (const struct mutant *m = mutants; m->implementation.name; ++m)
        if (strcmp(m->implementation.name, name) == 0) return m;
    return NULL;
}

/* kernels_long.c - cases of several tiles on both sides, in every width that kernels are compiled for: random cases as
 * small as a simulated GPU asks for seldom have them. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proptests/kernels/kernels.h"
#include "proptests/properties/outcome.h"
#include "reference/formats.h"

/* Beside the features of a case: k and v are negative, so that sums of the bits of a tile tell least of its NaNs. */
#define NEGATIVE (UINT64_C(1) << NUM_FEATURES)

/* The same of one query head to a KV head. */
#define NO_GROUP (NEGATIVE << 1)

/* Every key has the same value and dout is positive: every dp is delta, so dq and dk are what delta is off by. */
#define ONE_VALUE (NO_GROUP << 1)

/* A softmax_scale of 0: all keys weigh the same. */
#define NO_SCALE (ONE_VALUE << 1)

/* All query rows are in use, all keys but seven, which are no numbers. */
#define FEW_KEYS (NO_SCALE << 1)

/* Rows of v are eight numbers further apart than those of k; rows of o, and of dq, begin anywhere: elsewhere they are
 * the same. */
#define FAR_VALUES (FEW_KEYS << 1)
#define ODD_RESULTS (FAR_VALUES << 1)

/* Scores, and so lse, of about 640, of NEGATIVE of -640, by one feature of q and k alone: below 2^10 in base 2, from
 * which on rows have an lse of their own (gradients.h). What rounding lse to fp32 does to all p of a row at once, 2^-15
 * at most, is felt where it meets delta, and the large numbers of k. */
#define FAR_SCORES (ODD_RESULTS << 1)

/* Of few rows in use, all keys are. */
#define ALL_KEYS (FAR_SCORES << 1)

/* Of ragged ones, the shortest comes first; or the others come in that order, too. */
#define LAST_FIRST (ALL_KEYS << 1)
#define RISING (LAST_FIRST << 1)

/* One score of 2048, of the hundredth row and key, behind all keys that a kernel may take for the others. */
#define LATE_KEY (RISING << 1)

/* Tensors of very different sizes, in bf16 as far as its exponents go: powers of two that add up to more, or to less,
 * than a factor of fp32 may be. */
#define LARGE_SIZES (LATE_KEY << 1)
#define SMALL_SIZES (LARGE_SIZES << 1)

/* Asked again, of tensors that lie the same way elsewhere, and then of one sequence more. */
#define ELSEWHERE (SMALL_SIZES << 1)

/* The simulated GPU has four SMs, or 16: kernels that ask take the problems for few. Elsewhere it has four at most. As
 * its seed is made of the problem, the scale is changed until it has. */
#define FEW (ELSEWHERE << 1)
#define FEWER (FEW << 1)

/* Biases as model code makes masks: of rows that they hide whole, by -1e9 or the lowest number of fp32, and of rows
 * whose first keys they hide. Where there is a mask as well, the keys that it hides have 0.7, not NaN: a
 * maximum passes a NaN by. Others have an lse that says little of its weights, and one head a sink as large. */
#define HIDING (FEWER << 1)
enum { FAR_BIAS = 3000 };

/* Two query heads to a KV head, but for NO_GROUP; as many sequences as KV heads. Quick ones first: that is how soon a
 * wrong kernel is found. */
static const struct long_case {
    const char *name;
    int64_t num_heads_kv, seqlen_q, seqlen_k, head_dim, head_dim_v, window_left, window_right;
    uint64_t features; /* of what follows in lay_out() */
} cases[] = {
    {"full", 1, 150, 180, 32, 40, -1, -1, 0},
    {"causal", 1, 170, 150, 64, 64, -1, 0, 0},
    {"a window", 1, 150, 170, 64, 64, 30, 60, FEATURE(DLSE)},
    {"a mask with hidden tiles", 1, 140, 200, 16, 16, -1, -1,
     FEATURE(MASK) | FEATURE(DROPOUT) | FEATURE(SINK) | FEATURE(SOFTCAP) | FEATURE(DLSE)},
    {"biases", 2, 100, 70, 40, 32, -1, 0,
     FEATURE(BIAS) | FEATURE(DBIAS) | FEATURE(ALIBI) | FEATURE(SOFTCAP) | FEATURE(SINK)},
    {"biases that hide rows", 2, 100, 170, 40, 32, -1, 0,
     FEATURE(BIAS) | FEATURE(DBIAS) | FEATURE(ALIBI) | FEATURE(SOFTCAP) | FEATURE(SINK) | FEATURE(DLSE) | HIDING},
    {"a mask and biases that hide rows", 1, 140, 200, 16, 16, -1, -1, FEATURE(MASK) | FEATURE(BIAS) | HIDING},
    {"biases that hide rows, no sink", 1, 70, 80, 64, 64, -1, -1, FEATURE(BIAS) | FEATURE(DROPOUT) | HIDING},
    {"a mask and biases", 2, 40, 50, 16, 16, -1, -1, FEATURE(MASK) | FEATURE(BIAS) | FEATURE(DBIAS)},
    {"negative keys", 1, 10, 64, 64, 64, 20, -1, NEGATIVE},
    {"padded rows", 1, 70, 80, 31, 23, -1, -1, FEATURE(STRIDED)},
    {"width 128", 1, 80, 140, 128, 100, 70, -1, 0},
    {"width 128, a bias", 1, 70, 80, 128, 128, -1, 0, FEATURE(BIAS)},
    {"width 256", 1, 70, 80, 200, 256, -1, 0, 0},
    {"width 256, a sink", 1, 40, 70, 256, 256, 40, -1, FEATURE(SINK)},
    {"few rows in use, a sink", 1, 40, 70, 16, 16, -1, -1, FEATURE(SEQUSED) | FEATURE(SINK)},
    {"one query", 1, 1, 200, 32, 32, -1, -1, 0},
    {"one query, a mask", 1, 1, 500, 64, 48, -1, -1,
     FEATURE(MASK) | FEATURE(DROPOUT) | FEATURE(SOFTCAP) | FEATURE(DLSE)},
    {"one query, a sink", 2, 1, 500, 40, 64, 470, 0, FEATURE(MASK) | FEATURE(DROPOUT) | FEATURE(SINK)},
    {"one query, biases", 2, 1, 200, 64, 64, 150, 0, FEATURE(BIAS) | FEATURE(ALIBI)},
    {"one query, hidden by biases", 2, 1, 200, 64, 64, 150, 0, FEATURE(BIAS) | FEATURE(ALIBI) | HIDING},
    {"one query, hidden by biases, width 32", 1, 1, 500, 32, 32, -1, -1, FEATURE(BIAS) | FEATURE(SINK) | HIDING},
    {"one query, a mask, hidden by biases", 1, 1, 300, 64, 64, -1, -1, FEATURE(MASK) | FEATURE(BIAS) | HIDING},
    {"one query, padded rows", 1, 1, 70, 31, 23, -1, -1, FEATURE(STRIDED)},
    {"one query, rows not used", 2, 3, 200, 64, 64, -1, -1, FEATURE(SEQUSED)},
    {"one query, no group", 1, 1, 200, 64, 64, -1, -1, NO_GROUP},
    {"one query, no group, a mask", 2, 1, 64, 64, 64, -1, -1, FEATURE(MASK) | NO_GROUP},
    {"one query, no group, a window of whole blocks", 2, 1, 64, 64, 64, 31, -1, NO_GROUP},
    {"one query, more keys than short ones have", 2, 3, 400, 64, 64, -1, -1, FEATURE(SEQUSED)},
    {"one query, more keys, no group", 2, 3, 400, 64, 64, -1, -1, FEATURE(SEQUSED) | NO_GROUP},
    {"one query, more keys, no group, width 256", 2, 3, 400, 136, 8, -1, -1, FEATURE(SEQUSED) | NO_GROUP},
    {"one query, no group, a sink", 1, 1, 200, 64, 64, -1, -1, FEATURE(SINK) | NO_GROUP},
    {"one query, 32 keys, width 32, odd rows of o", 2, 1, 32, 32, 32, -1, -1, ODD_RESULTS},
    {"one query, 64 keys, width 32, odd rows of o", 2, 1, 64, 32, 32, -1, -1, ODD_RESULTS | NO_GROUP},
    {"one query, 32 keys, width 64, odd rows of o", 2, 1, 32, 64, 64, -1, -1, ODD_RESULTS},
    {"one query, 128 keys, width 32, odd rows of o", 2, 1, 128, 32, 32, -1, -1, ODD_RESULTS | NO_GROUP},
    {"one query, 64 keys, width 64, odd rows of o", 2, 1, 64, 64, 64, -1, -1, ODD_RESULTS},
    {"one query, 32 keys, width 128, odd rows of o", 2, 1, 32, 128, 128, -1, -1, ODD_RESULTS | NO_GROUP},
    {"one query, 32 keys, 25 in use", 1, 1, 32, 64, 64, -1, -1, FEW_KEYS},
    {"one query, width 32", 1, 1, 500, 24, 32, 400, -1, FEATURE(SOFTCAP)},
    {"one query, width 128", 1, 1, 200, 128, 100, -1, -1, FEATURE(DROPOUT)},
    {"one query, width 256", 1, 1, 500, 256, 200, -1, 0, FEATURE(DLSE)},
    {"one query, far scores", 2, 1, 200, 64, 8, -1, -1, ONE_VALUE | FAR_SCORES},
    {"one query, few keys, far scores", 2, 1, 50, 64, 8, -1, -1, FEATURE(MASK) | NO_GROUP | ONE_VALUE | FAR_SCORES},
    {"one query, far below zero", 1, 1, 50, 64, 8, -1, -1, FEATURE(MASK) | FAR_SCORES | NEGATIVE},
    {"short, whole tiles", 2, 64, 64, 64, 64, -1, -1, NO_GROUP},
    {"short, a group", 1, 60, 50, 64, 40, -1, -1, 0},
    {"short, a mask and dropout", 1, 33, 64, 64, 64, -1, -1, FEATURE(MASK) | FEATURE(DROPOUT)},
    {"short, biases", 2, 50, 60, 40, 64, -1, 0, FEATURE(BIAS) | FEATURE(ALIBI)},
    {"short, biases that hide rows", 2, 50, 60, 40, 64, -1, 0, FEATURE(BIAS) | FEATURE(ALIBI) | HIDING},
    {"short, a mask and biases that hide rows", 1, 33, 64, 64, 64, -1, -1,
     FEATURE(MASK) | FEATURE(BIAS) | FEATURE(DROPOUT) | HIDING},
    {"short, padded rows", 1, 64, 33, 31, 23, -1, -1, FEATURE(STRIDED) | NO_GROUP},
    {"short, 32 keys", 2, 32, 32, 32, 32, -1, -1, NO_GROUP},
    {"short, 32 keys, odd rows of results", 2, 32, 32, 64, 64, -1, -1, NO_GROUP | ODD_RESULTS},
    {"short, 32 keys, one problem", 1, 32, 32, 64, 64, -1, -1, NO_GROUP},
    {"short, 20 rows, more problems than CTAs", 5, 20, 30, 32, 32, -1, -1, 0},
    {"short, more problems than CTAs, width 32", 6, 40, 64, 32, 24, -1, -1, NO_GROUP},
    {"short, whole tiles, more problems than CTAs", 6, 64, 64, 32, 32, -1, -1, NO_GROUP},
    {"short, more problems than SMs, width 64", 3, 64, 64, 64, 64, -1, -1, NO_GROUP | FAR_VALUES | ELSEWHERE},
    {"short, more problems than SMs, width 256", 3, 64, 64, 256, 256, -1, -1, NO_GROUP},
    {"short, 32 keys, more problems than SMs, width 256", 4, 32, 32, 256, 256, -1, -1, NO_GROUP},
    {"short, few problems, width 256", 1, 64, 64, 256, 256, -1, -1, NO_GROUP | FEW},
    {"short, 32 keys, few problems, width 256", 2, 32, 32, 256, 256, -1, -1, NO_GROUP | FEW},
    {"short, 32 keys, width 200", 1, 30, 32, 200, 256, -1, -1, NO_GROUP},
    {"short, width 32, no group", 2, 64, 64, 32, 32, -1, -1, NO_GROUP},
    {"short, width 128, no group", 1, 64, 64, 128, 128, -1, -1, NO_GROUP},
    {"short, width 256, no group", 1, 40, 64, 256, 200, -1, -1, NO_GROUP},
    {"short, 64 keys, 57 in use", 1, 64, 64, 64, 64, -1, -1, FEW_KEYS},
    {"short, 64 keys, 57 in use, no group", 1, 64, 64, 32, 32, -1, -1, NO_GROUP | FEW_KEYS},
    {"short, 50 rows, 64 keys, no group", 1, 50, 64, 64, 64, -1, -1, NO_GROUP},
    {"short, 64 rows, 50 keys, no group", 1, 64, 50, 64, 64, -1, -1, NO_GROUP},
    {"short, ragged, whole tiles first", 2, 64, 64, 32, 32, -1, -1, FEATURE(RAGGED) | NO_GROUP},
    {"short, whole tiles, far values", 1, 64, 64, 64, 64, -1, -1, FAR_VALUES},
    {"short, 32 keys, causal", 1, 30, 25, 64, 64, -1, 0, 0},
    {"short, width 128", 1, 64, 60, 128, 100, 40, -1, 0},
    {"short, width 256", 1, 33, 64, 256, 200, -1, 0, 0},
    {"short, whole tiles, far scores", 2, 64, 64, 64, 8, -1, -1, NO_GROUP | ONE_VALUE | FAR_SCORES},
    {"short, a group, far scores", 1, 60, 50, 32, 16, -1, 0, ONE_VALUE | FAR_SCORES},
    {"short, a mask, far scores", 2, 40, 64, 64, 8, -1, -1, FEATURE(MASK) | ONE_VALUE | FAR_SCORES},
    {"a given delta", 1, 70, 40, 16, 8, -1, -1, FEATURE(DELTA) | ONE_VALUE},
    {"a given delta, no group", 1, 128, 100, 64, 8, -1, -1, FEATURE(DELTA) | ONE_VALUE | NO_GROUP},
    {"a given delta, few rows in use", 2, 140, 150, 64, 8, -1, -1, FEATURE(DELTA) | FEATURE(SEQUSED) | ONE_VALUE},
    {"few rows in use", 2, 140, 150, 64, 64, -1, -1, FEATURE(SEQUSED)},
    {"few rows in use, width 200", 2, 140, 150, 200, 160, -1, -1, FEATURE(SEQUSED)},
    {"128 rows", 1, 128, 128, 64, 64, -1, -1, 0},
    {"128 rows, no group", 2, 128, 128, 128, 128, -1, -1, NO_GROUP},
    {"128 rows, no group, width 64", 2, 128, 128, 64, 64, -1, -1, NO_GROUP},
    {"128 rows, no group, width 32", 1, 128, 128, 32, 32, -1, -1, NO_GROUP},
    {"128 rows, width 32, far scores", 1, 128, 128, 32, 32, -1, -1, NO_GROUP | ONE_VALUE | FAR_SCORES},
    {"128 rows, width 32, odd rows of results", 2, 128, 128, 32, 32, -1, -1, NO_GROUP | ODD_RESULTS},
    {"128 rows, width 32, large sizes", 1, 128, 128, 32, 32, -1, -1, NO_GROUP | LARGE_SIZES},
    {"128 rows, width 32, small sizes", 1, 128, 128, 32, 32, -1, -1, NO_GROUP | SMALL_SIZES},
    {"128 rows, a late key", 1, 128, 128, 64, 64, -1, -1, NO_GROUP | LATE_KEY},
    {"128 rows, few in use, a late key", 2, 128, 128, 64, 64, -1, -1,
     FEATURE(SEQUSED) | ALL_KEYS | NO_GROUP | LATE_KEY},
    {"128 rows, no group, 121 keys in use", 1, 128, 128, 64, 64, -1, -1, NO_GROUP | FEW_KEYS},
    {"128 rows, no group, 40 features", 1, 128, 128, 48, 40, -1, -1, NO_GROUP},
    {"66 rows, more problems than SMs, no group", 3, 66, 66, 72, 72, -1, -1, NO_GROUP},
    {"70 rows, more problems than CTAs, width 32", 5, 70, 66, 32, 32, -1, -1, NO_GROUP},
    {"70 rows, more problems than CTAs, width 64", 5, 70, 66, 64, 64, -1, -1, NO_GROUP},
    {"128 rows, more problems than CTAs, width 64", 5, 128, 128, 64, 64, -1, -1, NO_GROUP | ELSEWHERE},
    {"128 rows, more problems than CTAs, far values", 5, 128, 128, 64, 64, -1, -1, NO_GROUP | FAR_VALUES},
    {"128 rows, more problems than SMs, width 128", 3, 128, 128, 128, 128, -1, -1, NO_GROUP},
    {"100 rows, few keys, width 32", 2, 100, 40, 32, 32, -1, -1, NO_GROUP},
    {"128 rows, more problems than CTAs, a late key", 5, 128, 128, 32, 32, -1, -1, NO_GROUP | LATE_KEY},
    {"110 rows, more problems than CTAs, a late key", 5, 110, 128, 32, 32, -1, -1, NO_GROUP | LATE_KEY},
    {"128 rows, width 32", 2, 128, 100, 32, 24, -1, -1, 0},
    {"128 keys, width 128", 1, 70, 128, 128, 101, -1, -1, 0},
    {"100 rows, padded", 1, 100, 70, 31, 23, -1, -1, FEATURE(STRIDED)},
    {"100 rows, padded, no group", 2, 100, 70, 31, 23, -1, -1, FEATURE(STRIDED) | NO_GROUP},
    {"100 rows, odd widths", 1, 66, 100, 75, 127, -1, -1, NO_GROUP},
    {"100 rows, a scale of zero", 1, 100, 90, 64, 64, -1, -1, NO_SCALE},
    {"128 rows, few in use", 2, 120, 128, 64, 64, -1, -1, FEATURE(SEQUSED)},
    {"200 rows, few in use", 2, 200, 128, 64, 48, -1, -1, FEATURE(SEQUSED)},
    {"200 rows, few in use, no group", 2, 200, 150, 64, 48, -1, -1, FEATURE(SEQUSED) | NO_GROUP},
    {"200 rows, few in use, no group, width 32", 2, 200, 150, 32, 24, -1, -1, FEATURE(SEQUSED) | NO_GROUP},
    {"128 rows, ragged", 3, 128, 110, 64, 64, -1, -1, FEATURE(RAGGED)},
    {"128 rows, ragged, width 64, no group", 3, 128, 110, 64, 64, -1, -1, FEATURE(RAGGED) | NO_GROUP},
    {"128 rows, ragged, width 32", 3, 128, 110, 32, 32, -1, -1, FEATURE(RAGGED) | NO_GROUP},
    {"80 rows, ragged, behind short ones", 4, 80, 110, 64, 64, -1, -1, FEATURE(RAGGED) | NO_GROUP | LAST_FIRST},
    {"70 rows, eight of them, width 128", 4, 70, 66, 72, 80, -1, -1, 0},
    {"128 rows, width 256", 1, 128, 128, 256, 256, -1, -1, 0},
    {"128 rows, width 256, no group", 2, 128, 70, 200, 256, -1, -1, NO_GROUP},
    {"100 rows, width 256, odd widths", 1, 100, 66, 131, 255, -1, -1, NO_GROUP},
    {"50 rows, width 256, padded", 1, 50, 90, 141, 77, -1, -1, FEATURE(STRIDED)},
    {"200 rows, few in use, width 256", 2, 200, 128, 136, 160, -1, -1, FEATURE(SEQUSED)},
    {"128 rows, few in use, all keys, width 256", 2, 128, 70, 136, 136, -1, -1, FEATURE(SEQUSED) | ALL_KEYS},
    {"80 rows, ragged, behind short ones, width 256", 4, 80, 110, 136, 200, -1, -1,
     FEATURE(RAGGED) | NO_GROUP | LAST_FIRST},
    {"80 rows, ragged, behind many", 16, 80, 110, 32, 32, -1, -1, FEATURE(RAGGED) | NO_GROUP | RISING},
    {"80 rows, ragged, behind many, width 256", 16, 80, 110, 136, 130, -1, -1, FEATURE(RAGGED) | NO_GROUP | RISING},
    {"128 rows, ragged, width 128", 3, 128, 110, 96, 128, -1, -1, FEATURE(RAGGED)},
    {"128 rows, ragged, width 256", 3, 128, 110, 168, 256, -1, -1, FEATURE(RAGGED)},
    {"128 rows, width 256, whole tiles", 2, 128, 128, 256, 256, -1, -1, NO_GROUP | FEW},
    {"128 rows, one problem, width 256", 1, 128, 128, 256, 256, -1, -1, NO_GROUP | FEW},
    {"128 rows, few problems, width 256", 2, 128, 128, 256, 256, -1, -1, NO_GROUP | FEWER},
    {"100 rows, one problem, width 256", 1, 100, 66, 256, 256, -1, -1, NO_GROUP | FEW},
    {"128 rows, more problems than SMs, width 256", 3, 128, 128, 256, 256, -1, -1, NO_GROUP},
    {"128 rows, ragged, whole tiles first, width 256", 2, 128, 128, 256, 256, -1, -1, FEATURE(RAGGED) | NO_GROUP},
    {"200 rows, few in use, width 256, no group", 2, 200, 140, 136, 100, -1, -1, FEATURE(SEQUSED) | NO_GROUP},
    {"128 rows, ragged, width 256, no group", 2, 128, 110, 200, 129, -1, -1, FEATURE(RAGGED) | NO_GROUP},
    {"120 rows, causal", 2, 120, 110, 32, 32, -1, 0, FEATURE(SINK)},
    {"64 rows, causal", 1, 64, 64, 64, 64, -1, 0, 0},
    {"64 rows", 2, 64, 64, 64, 48, -1, -1, FEATURE(ALIBI)},
    {"128 rows, far scores, no group", 2, 128, 100, 64, 8, -1, -1, NO_GROUP | ONE_VALUE | FAR_SCORES},
    {"70 rows, far scores, width 256", 1, 70, 70, 136, 8, -1, -1, NO_GROUP | ONE_VALUE | FAR_SCORES},
};

static bool has(const struct long_case *from, uint64_t feature) { return (from->features & feature) != 0; }

static bool has_sms(const struct long_case *from, unsigned sms)
{
    return has(from, FEWER) ? sms == 16 : has(from, FEW) ? sms == 4 : sms <= 4;
}

static struct attest_score_tensor scores_of(int32_t dtype)
{
    return (struct attest_score_tensor){.dtype = dtype, .seqlen_q = 1, .seqlen_k = 1}; /* one for all heads */
}

/* Of few rows one or none, and half of the keys; of many 20 and 30, then 110 and 130 if there are, or 120 without a
 * group. */
static void use_few_rows(struct prop_case *c, bool all_keys)
{
    struct attest_problem *p = &c->p;
    p->has_seqused_q = p->has_seqused_k = 1;
    c->used_q = case_alloc(c, (size_t)p->batch * sizeof *c->used_q);
    c->used_k = case_alloc(c, (size_t)p->batch * sizeof *c->used_k);
    const bool is_one = p->seqlen_q < 16;
    const int32_t more = p->num_heads_q == p->num_heads_kv ? 90 : 100;
    for (int64_t b = 0; b < p->batch; ++b) {
        c->used_q[b] = is_one ? (b + 1) % 2 : 20 + 90 * b;
        c->used_k[b] = is_one ? p->seqlen_k / 2 : 30 + more * b;
        if (all_keys || c->used_k[b] > p->seqlen_k) c->used_k[b] = p->seqlen_k;
    }
}

static void use_few_keys(struct prop_case *c)
{
    c->p.has_seqused_k = 1;
    c->used_k = case_alloc(c, (size_t)c->p.batch * sizeof *c->used_k);
    for (int64_t b = 0; b < c->p.batch; ++b) c->used_k[b] = c->p.seqlen_k - 7;
}

static int32_t at_least_0(int64_t length) { return length > 0 ? (int32_t)length : 0; }

/* Sequences of which each has 20 queries and 55 keys less than the one before; in an order of their own. */
static void make_ragged(struct prop_case *c, const struct long_case *from)
{
    struct attest_problem *p = &c->p;
    p->ragged = 1;
    c->starts_q = case_alloc(c, (size_t)(p->batch + 1) * sizeof *c->starts_q);
    c->starts_k = case_alloc(c, (size_t)(p->batch + 1) * sizeof *c->starts_k);
    c->starts_q[0] = c->starts_k[0] = 0;
    for (int64_t b = 0; b < p->batch; ++b) {
        const int64_t last = p->batch - 1;
        const int64_t place = has(from, RISING) ? last - b : has(from, LAST_FIRST) ? (b + last) % p->batch : b;
        c->starts_q[b + 1] = c->starts_q[b] + at_least_0(p->seqlen_q - 20 * place);
        c->starts_k[b + 1] = c->starts_k[b] + at_least_0(p->seqlen_k - 55 * place);
    }
    p->total_q = c->starts_q[p->batch], p->total_k = c->starts_k[p->batch];
}

static void set_features(struct prop_case *c, const struct long_case *from)
{
    struct attest_problem *p = &c->p;
    if (has(from, FEATURE(MASK))) p->mask = scores_of(ATTEST_UINT8);
    if (has(from, FEATURE(BIAS))) p->bias = scores_of(ATTEST_FP32);
    if (has(from, FEATURE(DBIAS)) && c->backward) p->dbias = scores_of(ATTEST_FP32), p->dbias.head = 1;
    if (has(from, FEATURE(DROPOUT))) p->dropout_p = 0.3f, c->dropout_seed = UINT64_C(0x123456789abcdef);
    if (has(from, FEATURE(SOFTCAP))) p->softcap = 2;
    if (has(from, FEATURE(SEQUSED))) use_few_rows(c, has(from, ALL_KEYS));
    if (has(from, FEW_KEYS)) use_few_keys(c);
    if (has(from, FEATURE(RAGGED))) make_ragged(c, from);
    p->has_sink = has(from, FEATURE(SINK));
    p->has_alibi = has(from, FEATURE(ALIBI));
    if (has(from, FEATURE(DLSE)) && c->backward) p->dlse.dtype = ATTEST_FP32;
    if (has(from, FEATURE(DELTA)) && c->backward) p->delta.dtype = ATTEST_FP32;
    if (p->has_sink) c->sink = case_doubles(c, p->num_heads_q);
    if (p->has_alibi) c->slopes = case_doubles(c, p->num_heads_q);
    for (int64_t h = 0; h < p->num_heads_q; ++h) {
        if (p->has_sink) c->sink[h] = has(from, HIDING) && h == p->num_heads_q - 1 ? FAR_BIAS : (double)h - 1;
        if (p->has_alibi) c->slopes[h] = 0.0625 * (double)(1 + h);
    }
}

/* Rows of a multiple of eight elements, of which the last are no features. */
static void pad_rows(struct attest_problem *p)
{
    static const enum tensor_id rows[] = {T_Q, T_K, T_V, T_O, T_DOUT, T_DQ, T_DK, T_DV};
    for (size_t i = 0; i < sizeof rows / sizeof *rows; ++i) {
        struct attest_tensor *const t = tensor_rows(p, rows[i]);
        if (t->dtype == ATTEST_ABSENT) continue;
        const int64_t width = (t->head + 7) / 8 * 8;
        t->batch = t->batch / t->head * width, t->seqlen = t->seqlen / t->head * width, t->head = width;
    }
}

/* Rows of a tensor of `rows` a sequence, `by` numbers further apart. */
static void spread_rows(struct attest_tensor *t, int64_t rows, int64_t by)
{
    t->seqlen += by, t->batch += rows * by;
}

/* Squares as large as tiles: seen but for some scores, not seen, and seen in one column. */
static bool is_seen(int64_t row, int64_t key)
{
    if ((row / 64 + key / 64) % 2 == 0) return (row + key) % 5 != 0;
    return row >= 64 && key % 64 == 40;
}

/* q . k keeps its size. */
static double size_of(const struct prop_case *c, const struct long_case *from, enum tensor_id t)
{
    static const int exponents[NUM_TENSORS] = {[T_Q] = -35, [T_K] = 35, [T_V] = 40, [T_DOUT] = 45};
    const int sign = has(from, LARGE_SIZES) ? 1 : has(from, SMALL_SIZES) ? -1 : 0;
    return ldexp(1, sign * (c->p.q.dtype == ATTEST_BF16 ? exponents[t] : exponents[t] / 16));
}

static double value_of(const struct prop_case *c, const struct long_case *from, enum tensor_id t, const int64_t at[4])
{
    static const enum role roles[NUM_TENSORS] = {[T_Q] = ROLE_Q, [T_K] = ROLE_K, [T_V] = ROLE_V, [T_DOUT] = ROLE_DOUT};
    if (t == T_MASK) return is_seen(at[2], at[3]);
    if (t == T_BIAS && has(from, HIDING) && at[2] % 4 < 2) return at[2] % 4 == 0 ? -1e9f : -FLT_MAX;
    if (t == T_BIAS && has(from, HIDING) && at[2] % 4 == 2 && at[3] < c->p.seqlen_k / 2) return -3e6f;
    if (t == T_BIAS)
        return (float)family_normal(family_bits(1, ROLE_OTHER, 0, at[2], 0, at[3])) +
               (has(from, HIDING) && at[2] % 4 == 3 ? FAR_BIAS : 0);
    if (t == T_DLSE) return (float)family_normal(family_bits(2, ROLE_OTHER, 0, at[0], at[1], 0));
    if (has(from, FAR_SCORES) && at[2] == 0 && t == T_Q) return 64;
    if (has(from, FAR_SCORES) && at[2] == 0 && t == T_K) return has(from, NEGATIVE) ? -80 : 80;
    if (has(from, LATE_KEY) && at[2] == 0 && t == T_Q) return at[0] % c->p.seqlen_q == 100 ? 64 : 0;
    if (has(from, LATE_KEY) && at[2] == 0 && t == T_K) return at[0] % c->p.seqlen_k == 100 ? 256 : 0;
    if (has(from, FEW_KEYS) && tensor_kinds[t].is_k && at[0] % c->p.seqlen_k >= c->p.seqlen_k - 7)
        return NAN;
    const bool is_one = has(from, ONE_VALUE) && (t == T_V || t == T_DOUT);
    const double value = family_value(&c->data, roles[t], 0, is_one && t == T_V ? 0 : at[0], at[1], at[2]);
    if (is_one) return fabs(value);
    return size_of(c, from, t) * (has(from, NEGATIVE) && tensor_kinds[t].is_k ? -fabs(value) : value);
}

/* That of the inputs, but only as good as a delta made of a rounded o: in the dtype of the tensors. */
static void add_delta(struct prop_case *c)
{
    const int64_t count = case_count(c, T_DELTA);
    double *const delta = case_doubles(c, count);
    const struct ref_backward backward = {.delta = delta};
    if (ref_backward(&c->p, &c->a, NULL, &backward, 1) != ATTEST_OK) abort();
    for (int64_t i = 0; i < count; ++i) delta[i] = ref_round(c->p.q.dtype, delta[i]);
    c->values[T_DELTA] = delta;
    case_lay_out(c);
}

/* `more`: sequences more than KV heads. */
static void set_problem(struct prop_case *c, const struct long_case *from, int64_t more, int32_t dtype, bool backward)
{
    struct attest_problem *p = &c->p;
    memset(c, 0, sizeof *c);
    *p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    p->device = ATTEST_REFERENCE;
    p->seqlen_q = from->seqlen_q, p->seqlen_k = from->seqlen_k;
    p->num_heads_kv = from->num_heads_kv, p->batch = from->num_heads_kv + more;
    p->num_heads_q = (has(from, NO_GROUP) ? 1 : 2) * from->num_heads_kv;
    p->head_dim = from->head_dim, p->head_dim_v = from->head_dim_v;
    p->softmax_scale = has(from, NO_SCALE) ? 0 : 0.125f;
    p->window_left = from->window_left, p->window_right = from->window_right, p->diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    p->q.dtype = p->k.dtype = p->v.dtype = p->o.dtype = dtype;
    p->lse.dtype = ATTEST_FP32;
    if (backward) p->dout.dtype = p->dq.dtype = p->dk.dtype = p->dv.dtype = dtype;
    c->backward = backward;
    c->poison = has(from, HIDING) && has(from, FEATURE(MASK)) ? 0x3f : 0xff;
    set_features(c, from);
    case_contiguous(c);
    if (has(from, FEATURE(STRIDED))) pad_rows(p);
    if (has(from, FAR_VALUES)) spread_rows(&p->v, p->seqlen_k, 8);
    if (has(from, ODD_RESULTS)) spread_rows(backward ? &p->dq : &p->o, p->seqlen_q, 1);
    while (!has(from, NO_SCALE) && !has_sms(from, kernels_sim_sms(p))) p->softmax_scale += 0x1p-10f;
}

static void set_values(struct prop_case *c, const struct long_case *from)
{
    static const enum tensor_id inputs[] = {T_Q, T_K, T_V, T_DOUT, T_DLSE, T_MASK, T_BIAS};
    const struct attest_problem *const p = &c->p;
    c->data = (struct family_data){FAMILY_NORMAL, 1, p->q.dtype, p->head_dim, p->softmax_scale};
    for (size_t n = 0; n < sizeof inputs / sizeof *inputs; ++n) {
        if (tensor_dtype(p, inputs[n]) == ATTEST_ABSENT) continue;
        int64_t e[4];
        case_extents(c, inputs[n], e);
        double *const out = c->values[inputs[n]] = case_doubles(c, e[0] * e[1] * e[2] * e[3]);
        for (int64_t i = 0; i < e[0] * e[1] * e[2] * e[3]; ++i) {
            const int64_t at[] = {i / (e[1] * e[2] * e[3]), i / (e[2] * e[3]) % e[1], i / e[3] % e[2], i % e[3]};
            out[i] = value_of(c, from, inputs[n], at);
        }
    }
    case_lay_out(c);
    if (p->delta.dtype != ATTEST_ABSENT) add_delta(c);
    c->features = case_features(c);
}

static void name_failure(struct prop_context *context, const char *name)
{
    char said[sizeof context->message];
    memcpy(said, context->message, sizeof said);
    snprintf(context->message, sizeof context->message, "%s: %.*s", name, (int)(sizeof said - 64), said);
}

/* Wrong kernels are asked what they have a part in alone. */
static bool is_asked(const struct implementation *self, const struct prop_case *c)
{
    struct kernel_implementation kernels = *(const struct kernel_implementation *)self; /* it counts what it refuses */
    struct kernel_run_plan run;
    const enum attest_pass pass = c->backward ? ATTEST_BACKWARD : ATTEST_FORWARD;
    return !kernels.only_replaced || kernels_plan(&kernels, &c->p, ATTEST_SIM, pass, &run) == ATTEST_OK;
}

/* A problem behind one that is like it: see set_problem(). */
static int ask_another(const struct implementation *self, const struct long_case *from, int64_t more, int32_t dtype,
                       const struct property *property, struct prop_context *context)
{
    struct prop_case other;
    set_problem(&other, from, more, dtype, property->request.backward);
    set_values(&other, from);
    const int verdict = property->check(&other, self, context);
    case_free(&other);
    return verdict;
}

bool kernels_long_has(const char *name)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i)
        if (strcmp(name, cases[i].name) == 0) return true;
    return false;
}

int kernels_long(const struct implementation *self, bool backward, int32_t dtype, const char *only,
                 struct prop_context *context)
{
    const struct property *const property =
        property_named(backward ? "backward_within_bound" : "forward_within_bound");
    const struct property *const same_bits =
        property_named(backward ? "strides_are_layout_backward" : "strides_are_layout");
    int failure = TRIAL_PASSES;
    for (size_t i = 0; i < sizeof cases / sizeof *cases && failure == TRIAL_PASSES; ++i) {
        struct prop_case c;
        if (only != NULL && strcmp(only, cases[i].name) != 0) continue;
        set_problem(&c, &cases[i], 0, dtype, backward);
        if (is_asked(self, &c)) {
            set_values(&c, &cases[i]);
            failure = property->check(&c, self, context);
            if (failure == TRIAL_PASSES && has(&cases[i], ODD_RESULTS))
                failure = same_bits->check(&c, self, context);
            for (int64_t more = 0; more < 2 && failure == TRIAL_PASSES && has(&cases[i], ELSEWHERE); ++more)
                failure = ask_another(self, &cases[i], more, dtype, property, context);
            struct long_case near = cases[i]; /* what a launch keeps of the tensors' strides is not for the next one */
            near.features &= ~FAR_VALUES;
            if (failure == TRIAL_PASSES && has(&cases[i], FAR_VALUES))
                failure = ask_another(self, &near, 0, dtype, property, context);
        }
        case_free(&c);
        if (failure > TRIAL_PASSES) name_failure(context, cases[i].name);
    }
    return failure;
}

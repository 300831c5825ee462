/* case_draw.c - the generator: a valid problem from a sequence of choices.
 *
 * Features first, each behind a flag that the shrinker clears with what belongs to it; shapes; the
 * rest of each feature; the numbers last, as a family and a seed. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proptests/cases/case.h"
#include "reference/formats.h"

#define COUNT(array) ((int64_t)(sizeof(array) / sizeof *(array)))

const char *const feature_names[NUM_FEATURES] = {
    "fp16",       "bf16",   "fp32",         "fp8",   "gqa",   "head_dim_v", "odd_head_dim", "long_q",
    "empty",      "causal", "window",       "top_left", "diag_given", "start", "mask",      "block_mask",
    "bias",       "alibi",  "softcap",      "sink",  "scale", "ragged",     "seqused",      "strided",
    "packed",     "broadcast", "dropout",   "dlse",  "dbias", "external",   "delta",
};

const uint64_t backward_features = FEATURE(DLSE) | FEATURE(DBIAS) | FEATURE(EXTERNAL) | FEATURE(DELTA);

const struct excluded_pair excluded_pairs[] = {
    {F_FP16, F_BF16, "q, k and v have one dtype"},
    {F_FP16, F_FP32, "q, k and v have one dtype"},
    {F_FP16, F_FP8, "q, k and v have one dtype"},
    {F_BF16, F_FP32, "q, k and v have one dtype"},
    {F_BF16, F_FP8, "q, k and v have one dtype"},
    {F_FP32, F_FP8, "q, k and v have one dtype"},
    {F_TOP_LEFT, F_DIAG_GIVEN, "diag_kind has one value"},
    {F_PACKED, F_BROADCAST, "parts of one row cannot have a stride of zero"},
};
const int num_excluded_pairs = (int)COUNT(excluded_pairs);

struct drawing {
    struct prop_case *c;
    struct choices *choices;
    const struct case_request *request;
    double density;   /* of features */
    uint64_t on;
    int64_t rows_q, rows_k; /* in memory, of the longest sequence or of all */
};

static int64_t pick(struct drawing *d, const int64_t *list, int64_t count)
{
    return list[choose(d->choices, 0, count - 1)];
}

/* 0 .. count - 1, for proposals: not a choice. */
static int64_t below(struct drawing *d, int64_t count)
{
    return (int64_t)(choices_random(d->choices) % (uint64_t)count);
}

static bool has(const struct drawing *d, enum feature f) { return d->on >> f & 1; }

/* Switches a feature on or off. Call inside a span that its choices share. */
static bool feature_of(struct drawing *d, enum feature f, double density)
{
    const uint64_t bit = UINT64_C(1) << f;
    const bool on = d->request->needs & bit     ? true
                    : d->request->forbids & bit ? false
                                                : choose_flag(d->choices, density);
    if (on) d->on |= bit;
    return on;
}

static bool feature(struct drawing *d, enum feature f) { return feature_of(d, f, d->density); }

static double bits_uniform(uint64_t bits) { return (double)(bits >> 11) * 0x1p-53; }

/* ---- dtypes and shapes ---- */

static void draw_dtypes(struct drawing *d)
{
    static const int32_t inputs[] = {ATTEST_FP32, ATTEST_BF16, ATTEST_FP16, ATTEST_FP8_E4M3, ATTEST_FP8_E5M2};
    static const uint64_t bits[] = {FEATURE(FP32), FEATURE(BF16), FEATURE(FP16), FEATURE(FP8), FEATURE(FP8)};
    static const int64_t proposals[] = {0, 0, 1, 1, 1, 2, 2, 2, 3, 4};
    struct attest_problem *p = &d->c->p;
    int64_t allowed[5], count = 0;
    for (int64_t i = 0; i < 5; ++i)
        if (!(d->request->forbids & bits[i])) allowed[count++] = i;
    const int64_t proposal = proposals[below(d, COUNT(proposals))];
    const int32_t input = inputs[allowed[choose_proposed(d->choices, 0, count - 1, proposal < count ? proposal : 0)]];
    const int32_t same = input <= ATTEST_BF16 ? input : ATTEST_BF16;
    for (int t = 0; t < NUM_TENSORS; ++t) {
        const struct tensor_kind *kind = &tensor_kinds[t];
        if (kind->shape == SHAPE_SCALARS) tensor_rows(p, t)->dtype = ATTEST_FP32;
        if (kind->shape != SHAPE_ROWS) continue;
        const bool plain = below(d, 4) > 0; /* most have one dtype throughout */
        tensor_rows(p, t)->dtype =
            t <= T_V ? input
                     : (int32_t)choose_proposed(d->choices, ATTEST_FP32, ATTEST_BF16, plain ? same : 1 + below(d, 3));
    }
}

static void draw_heads(struct drawing *d)
{
    static const int64_t heads[] = {1, 2, 3, 4, 6, 7, 8, 16};
    static const int64_t dims[] = {64, 64, 32, 128, 16, 8, 40, 80, 96, 72, 1, 2, 3, 17, 31, 63, 65, 127, 129, 256, 192};
    struct attest_problem *p = &d->c->p;
    const bool gqa = d->request->needs & FEATURE(GQA), equal = d->request->forbids & FEATURE(GQA);
    const int64_t heads_proposal = below(d, 3) ? below(d, 4) : below(d, COUNT(heads));
    const int64_t least = gqa ? 1 : 0;
    p->num_heads_q =
        heads[choose_proposed(d->choices, least, COUNT(heads) - 1, heads_proposal > least ? heads_proposal : least)];
    int64_t divisors[16], count = 0;
    for (int64_t n = p->num_heads_q; n >= 1; --n)
        if (p->num_heads_q % n == 0 && !(equal && n < p->num_heads_q) && !(gqa && n == p->num_heads_q))
            divisors[count++] = n;
    p->num_heads_kv = pick(d, divisors, count);
    const int64_t dim = below(d, 4) ? dims[below(d, 10)] : dims[below(d, COUNT(dims))];
    p->head_dim = choose_proposed(d->choices, 1, 256, d->request->head_dim ? d->request->head_dim : dim);
    p->head_dim_v = p->head_dim;
    span_begin(d->choices);
    if (feature(d, F_HEAD_DIM_V)) {
        p->head_dim_v = choose_proposed(d->choices, 1, 255, dims[below(d, COUNT(dims))]);
        p->head_dim_v += p->head_dim_v >= p->head_dim;
    }
    span_end(d->choices);
}

/* A length at or beside a tile's edge, near `target` if it is not negative. */
static int64_t propose_length(struct drawing *d, int64_t target)
{
    static const int64_t edges[] = {1, 2, 3, 16, 32, 64, 128, 256};
    if (target < 0) return below(d, 8) ? edges[below(d, COUNT(edges))] + below(d, 3) - 1 : below(d, 200);
    if (below(d, 3)) return target;
    return target < 12 ? target + below(d, 2) : (target + 8) / 16 * 16 + below(d, 3) - 1;
}

/* Lengths of one sequence. Never more work than the request allows; random cases aim at `scores`. */
static void draw_lengths(struct drawing *d, int64_t most, int64_t scores, int64_t *seqlen_q, int64_t *seqlen_k)
{
    const int64_t root = (int64_t)sqrt((double)scores), longest = most < 1024 ? most : 1024;
    const bool aim = below(d, 5) > 0;
    const int64_t tilt = aim && below(d, 2) ? 1 + below(d, 4) : 1;
    int64_t k = propose_length(d, aim ? root * tilt : -1);
    if (k > longest) k = longest;
    *seqlen_k = choose_proposed(d->choices, 0, longest, k);
    const int64_t most_q = *seqlen_k ? most / *seqlen_k : longest, longest_q = most_q < 1024 ? most_q : 1024;
    int64_t q = propose_length(d, aim ? scores / (*seqlen_k + 1) : -1);
    if (has(d, F_PACKED)) q = *seqlen_k;
    if (q > longest_q) q = longest_q;
    *seqlen_q = has(d, F_PACKED) && *seqlen_k <= longest_q ? *seqlen_k : choose_proposed(d->choices, 0, longest_q, q);
    if (has(d, F_PACKED)) *seqlen_k = *seqlen_q < *seqlen_k ? *seqlen_q : *seqlen_k; /* one length */
}

static int64_t *ints(struct drawing *d, int64_t count) { return case_alloc(d->c, (size_t)count * sizeof(int64_t)); }

/* Sequences one behind the other, rows of no sequence before and after. */
static void draw_ragged(struct drawing *d, int64_t most, int64_t scores)
{
    struct attest_problem *p = &d->c->p;
    enum { MOST = 5 };
    int64_t lengths_q[MOST], lengths_k[MOST], count = 0;
    const int64_t aim = 1 + below(d, MOST);
    for (; count < MOST; ++count) {
        span_begin(d->choices);
        const bool more = choose_proposed(d->choices, 0, 1, count < aim);
        if (more) draw_lengths(d, most / MOST, scores / aim, &lengths_q[count], &lengths_k[count]);
        span_end(d->choices);
        if (!more) break;
    }
    p->batch = count;
    const int64_t before = choose_proposed(d->choices, 0, 3, below(d, 3) ? 0 : below(d, 4));
    const int64_t after = choose_proposed(d->choices, 0, 3, below(d, 3) ? 0 : below(d, 4));
    int64_t *q = d->c->starts_q = ints(d, count + 1), *k = d->c->starts_k = ints(d, count + 1);
    q[0] = k[0] = before;
    for (int64_t b = 0; b < count; ++b) {
        if (b == 0 && has(d, F_EMPTY)) lengths_k[b] = 0, lengths_q[b] = has(d, F_PACKED) ? 0 : lengths_q[b];
        q[b + 1] = q[b] + lengths_q[b], k[b + 1] = k[b] + lengths_k[b];
        if (lengths_q[b] > p->seqlen_q) p->seqlen_q = lengths_q[b];
        if (lengths_k[b] > p->seqlen_k) p->seqlen_k = lengths_k[b];
    }
    p->total_q = q[count] + after, p->total_k = k[count] + after;
}

static void draw_used(struct drawing *d)
{
    struct prop_case *c = d->c;
    const struct attest_problem *p = &c->p;
    c->used_q = ints(d, p->batch), c->used_k = ints(d, p->batch);
    c->p.has_seqused_q = (int32_t)choose_proposed(d->choices, 0, 1, below(d, 3) > 0);
    c->p.has_seqused_k = (int32_t)choose_proposed(d->choices, !c->p.has_seqused_q, 1, below(d, 3) > 0);
    for (int64_t b = 0; b < p->batch; ++b) {
        const int64_t q = p->ragged ? c->starts_q[b + 1] - c->starts_q[b] : p->seqlen_q;
        const int64_t k = p->ragged ? c->starts_k[b + 1] - c->starts_k[b] : p->seqlen_k;
        const bool empty = b == 0 && has(d, F_EMPTY);
        const int64_t cut_q = below(d, q / 4 + 2), cut_k = empty ? k : below(d, k / 4 + 2);
        c->used_q[b] = q - (c->p.has_seqused_q ? choose_proposed(d->choices, 0, q, cut_q < q ? cut_q : q) : 0);
        c->used_k[b] = k - (c->p.has_seqused_k ? choose_proposed(d->choices, 0, k, cut_k < k ? cut_k : k) : 0);
    }
    if (!c->p.has_seqused_q) c->used_q = NULL;
    if (!c->p.has_seqused_k) c->used_k = NULL;
}

static void draw_shapes(struct drawing *d)
{
    struct attest_problem *p = &d->c->p;
    const int64_t dim = p->head_dim > p->head_dim_v ? p->head_dim : p->head_dim_v;
    const int64_t cap = d->request->max_work ? d->request->max_work : INT64_C(1) << 20;
    const int64_t aims = d->request->max_work ? d->request->max_work / 2 : INT64_C(1) << (15 + below(d, 6));
    feature(d, F_EMPTY);
    feature(d, F_PACKED);
    feature(d, F_SEQUSED);
    p->ragged = feature(d, F_RAGGED);
    if (p->ragged) {
        draw_ragged(d, cap / (p->num_heads_q * dim) + 1, aims / (p->num_heads_q * dim) + 1);
    } else {
        p->batch = choose_proposed(d->choices, 0, 4, below(d, 50) ? 1 + below(d, 3) : 0);
        const int64_t heads = (p->batch + !p->batch) * p->num_heads_q * dim;
        draw_lengths(d, cap / heads + 1, aims / heads + 1, &p->seqlen_q, &p->seqlen_k);
    }
    if (has(d, F_EMPTY) && !p->ragged && !has(d, F_SEQUSED) && !has(d, F_PACKED)) {
        if (choose(d->choices, 0, 1)) p->seqlen_q = 0;
        else p->seqlen_k = 0;
    }
    if (has(d, F_SEQUSED)) draw_used(d);
}

/* ---- masks and scores ---- */

static void draw_starts(struct drawing *d)
{
    static const int64_t bases[] = {0, 5, (INT64_C(1) << 31) - 3, (INT64_C(1) << 32) - 5, (INT64_C(1) << 40) + 1};
    struct attest_problem *p = &d->c->p;
    const int64_t base = pick(d, bases, COUNT(bases));
    p->q_start = base + choose(d->choices, 0, 9);
    p->k_start = base + choose(d->choices, 0, 9);
    /* Far apart, with diagonals that bring the two together again. */
    if (!has(d, F_DIAG_GIVEN) || !choose_flag(d->choices, 0.5)) return;
    p->k_start -= base;
    p->diag -= base;
    p->alibi_diag_kind = ATTEST_DIAG_GIVEN;
    p->alibi_diag = choose(d->choices, -5, 5) - base;
}

static void draw_window(struct drawing *d)
{
    struct attest_problem *p = &d->c->p;
    const int64_t longest = p->seqlen_q > p->seqlen_k ? p->seqlen_q : p->seqlen_k, far = INT64_C(1) << 40;
    span_begin(d->choices);
    if (feature(d, F_CAUSAL)) p->window_right = 0;
    span_end(d->choices);
    span_begin(d->choices);
    if (feature(d, F_WINDOW)) {
        const bool both = p->window_right < 0 && choose_flag(d->choices, 0.5);
        if (both) p->window_right = choose_proposed(d->choices, 1, far, below(d, 20) ? 1 + below(d, longest + 1) : far);
        if (!both || choose_flag(d->choices, 0.5))
            p->window_left = choose_proposed(d->choices, 0, far, below(d, 20) ? below(d, longest + 2) : far);
    }
    span_end(d->choices);
    span_begin(d->choices);
    const bool lengths_differ = p->seqlen_q != p->seqlen_k || p->ragged || p->has_seqused_q || p->has_seqused_k;
    p->diag_kind = lengths_differ || choose_flag(d->choices, 0.5) ? ATTEST_DIAG_BOTTOM_RIGHT : ATTEST_DIAG_UNSET;
    if (feature(d, F_TOP_LEFT)) {
        p->diag_kind = ATTEST_DIAG_TOP_LEFT;
    } else if (feature(d, F_DIAG_GIVEN)) {
        p->diag_kind = ATTEST_DIAG_GIVEN;
        p->diag = choose(d->choices, -longest / 2 - 2, longest / 2 + 2);
    }
    span_end(d->choices);
    span_begin(d->choices);
    if (feature(d, F_START)) draw_starts(d);
    span_end(d->choices);
}

/* Strides of a score tensor, contiguous but for the axes that are broadcast. */
static void draw_score_layout(struct drawing *d, enum tensor_id t, int32_t dtype)
{
    struct attest_problem *p = &d->c->p;
    struct attest_score_tensor *s = tensor_scores(p, t);
    *s = (struct attest_score_tensor){.dtype = dtype, .batch = 1, .head = 1, .seqlen_q = 1, .seqlen_k = 1};
    int64_t e[4], *const strides[] = {&s->batch, &s->head, &s->seqlen_q, &s->seqlen_k};
    case_extents(d->c, t, e);
    int64_t reach = 1;
    const int64_t gap = has(d, F_STRIDED) ? choose(d->choices, 0, 3) : 0;
    for (int axis = 3; axis >= 0; --axis) {
        const bool broadcast = choose_flag(d->choices, axis < 2 ? 0.5 : 0.1);
        *strides[axis] = broadcast ? 0 : reach;
        if (!broadcast) reach = reach * (e[axis] ? e[axis] : 1) + gap;
    }
}

static void draw_masks(struct drawing *d)
{
    struct attest_problem *p = &d->c->p;
    static const int64_t sizes[] = {1, 2, 3, 16, 64, 128};
    span_begin(d->choices);
    if (feature(d, F_MASK)) draw_score_layout(d, T_MASK, ATTEST_UINT8);
    span_end(d->choices);
    span_begin(d->choices);
    if (feature(d, F_BLOCK_MASK)) {
        p->block_q = pick(d, sizes, COUNT(sizes)), p->block_k = pick(d, sizes, COUNT(sizes));
        draw_score_layout(d, T_BLOCK_MASK, ATTEST_UINT8);
    }
    span_end(d->choices);
    span_begin(d->choices);
    const bool dbias = d->request->backward && (d->request->needs & FEATURE(DBIAS));
    if (feature(d, F_BIAS) || dbias) {
        d->on |= FEATURE(BIAS);
        const bool same = p->q.dtype <= ATTEST_BF16 && choose_flag(d->choices, 0.5);
        draw_score_layout(d, T_BIAS, same ? p->q.dtype : ATTEST_FP32);
        if (d->request->backward && feature_of(d, F_DBIAS, 0.7))
            draw_score_layout(d, T_DBIAS, same && choose_flag(d->choices, 0.5) ? p->q.dtype : ATTEST_FP32);
    }
    span_end(d->choices);
}

static void draw_alibi(struct drawing *d)
{
    struct prop_case *c = d->c;
    c->p.has_alibi = 1;
    c->slopes = case_doubles(c, c->p.num_heads_q);
    const bool negative = choose_flag(d->choices, 0.2);
    for (int64_t h = 0; h < c->p.num_heads_q; ++h) {
        const double slope = exp2(-8.0 * (double)(h + 1) / (double)c->p.num_heads_q);
        c->slopes[h] = (float)(negative ? -slope : slope);
    }
    if (c->p.alibi_diag_kind == ATTEST_DIAG_GIVEN) return; /* by draw_starts */
    c->p.alibi_diag_kind = (int32_t)choose(d->choices, ATTEST_DIAG_UNSET, ATTEST_DIAG_GIVEN);
    if (c->p.alibi_diag_kind == ATTEST_DIAG_GIVEN) c->p.alibi_diag = choose(d->choices, -9, 9);
}

static void draw_scores(struct drawing *d)
{
    static const float caps[] = {1, 0.25f, 5, 30, 50}, factors[] = {0, -1, 1e-3f, 1e-30f, 4, -0.25f};
    struct prop_case *c = d->c;
    struct attest_problem *p = &c->p;
    p->softmax_scale = 1 / sqrtf((float)p->head_dim);
    span_begin(d->choices);
    if (feature(d, F_SCALE)) p->softmax_scale *= factors[choose(d->choices, 0, COUNT(factors) - 1)];
    span_end(d->choices);
    span_begin(d->choices);
    if (feature(d, F_ALIBI)) draw_alibi(d);
    span_end(d->choices);
    span_begin(d->choices);
    if (feature(d, F_SOFTCAP)) p->softcap = caps[choose(d->choices, 0, COUNT(caps) - 1)];
    span_end(d->choices);
    if (feature(d, F_SINK)) {
        p->has_sink = 1;
        c->sink = case_doubles(c, p->num_heads_q);
    }
}

/* 64 bits, at times at the edge of narrower types. */
static uint64_t draw_word(struct drawing *d)
{
    static const uint64_t edges[] = {0, 1, UINT64_MAX, UINT64_C(1) << 63, UINT64_C(1) << 32, UINT32_MAX};
    const uint64_t word = below(d, 2) ? choices_random(d->choices) : edges[below(d, COUNT(edges))];
    const uint64_t high = (uint64_t)choose_proposed(d->choices, 0, UINT32_MAX, (int64_t)(word >> 32));
    return high << 32 | (uint64_t)choose_proposed(d->choices, 0, UINT32_MAX, (int64_t)(word & UINT32_MAX));
}

static void draw_dropout(struct drawing *d)
{
    static const float rates[] = {0.1f, 0.5f, 0.9f, 0x1p-16f, 0.99f};
    struct prop_case *c = d->c;
    span_begin(d->choices);
    if (feature(d, F_DROPOUT)) {
        c->p.dropout_p = rates[choose(d->choices, 0, COUNT(rates) - 1)];
        c->dropout_seed = draw_word(d);
        c->dropout_offset = draw_word(d);
        c->seed_by_pointer = choose_flag(d->choices, 0.3);
        if (choose_flag(d->choices, 0.3)) {
            c->streams = ints(d, c->p.batch * c->p.num_heads_q);
            const int64_t first = choose(d->choices, 0, INT64_C(1) << 33);
            for (int64_t i = 0; i < c->p.batch * c->p.num_heads_q; ++i) c->streams[i] = first + 7 * i;
        }
    }
    span_end(d->choices);
}

/* ---- which tensors, and where ---- */

static void draw_tensors(struct drawing *d)
{
    struct attest_problem *p = &d->c->p;
    static const enum tensor_id only_backward[] = {T_DOUT, T_DLSE, T_DELTA, T_DQ, T_DK, T_DV};
    if (!d->request->backward) {
        for (int i = 0; i < 6; ++i) tensor_rows(p, only_backward[i])->dtype = ATTEST_ABSENT;
        return;
    }
    if (!feature(d, F_DLSE)) p->dlse.dtype = ATTEST_ABSENT;
    p->external_lse = feature(d, F_EXTERNAL);
    if (feature(d, F_DELTA)) p->o.dtype = ATTEST_ABSENT;
    else if (!p->external_lse) p->delta.dtype = ATTEST_ABSENT;
}

/* Any order of the axes, gaps between. */
static void draw_strided(struct drawing *d, enum tensor_id t)
{
    static const int orders[6][3] = {{2, 1, 0}, {1, 2, 0}, {2, 0, 1}, {0, 2, 1}, {1, 0, 2}, {0, 1, 2}};
    struct attest_problem *p = &d->c->p;
    struct attest_tensor *s = tensor_rows(p, t);
    const struct tensor_kind *kind = &tensor_kinds[t];
    int64_t e[4], *const strides[] = {&s->batch, &s->seqlen, &s->head};
    case_extents(d->c, t, e);
    const int64_t seqlen = kind->is_k ? p->seqlen_k : p->seqlen_q;
    const int64_t counts[] = {p->ragged ? 1 : p->batch, p->ragged ? e[0] : seqlen, e[1]};
    const int *order = orders[choose(d->choices, 0, 5)];
    int64_t reach = e[2];
    for (int i = 0; i < 3; ++i) {
        const int axis = order[i];
        *strides[axis] = reach + choose_proposed(d->choices, 0, 64, below(d, 2) ? 0 : below(d, 3) ? 8 : below(d, 65));
        reach = (counts[axis] > 1 ? counts[axis] - 1 : 0) * *strides[axis] + reach;
    }
}

static void draw_broadcast(struct drawing *d)
{
    static const enum tensor_id inputs[] = {T_K, T_V, T_Q, T_DOUT};
    struct attest_problem *p = &d->c->p;
    const int64_t which = choose(d->choices, 1, 15), axes = choose(d->choices, 1, 7);
    for (int i = 0; i < 4; ++i) {
        struct attest_tensor *s = tensor_rows(p, inputs[i]);
        if (!(which >> i & 1)) continue;
        if (axes & 1) s->head = 0;
        if (axes & 2) s->batch = 0;
        if (axes & 4) s->seqlen = 0;
    }
}

static void pack(struct attest_problem *p)
{
    const int64_t row = (p->num_heads_q + p->num_heads_kv) * p->head_dim + p->num_heads_kv * p->head_dim_v;
    for (int t = T_Q; t <= T_V; ++t) {
        struct attest_tensor *s = tensor_rows(p, t);
        s->head = t == T_V ? p->head_dim_v : p->head_dim;
        s->seqlen = row;
        s->batch = p->seqlen_q * row;
    }
}

static void draw_layouts(struct drawing *d)
{
    struct prop_case *c = d->c;
    const bool one_length = c->p.seqlen_q == c->p.seqlen_k && c->p.total_q == c->p.total_k;
    case_contiguous(c);
    if (has(d, F_STRIDED))
        for (int t = 0; t < NUM_TENSORS; ++t) {
            const bool rows = tensor_kinds[t].shape == SHAPE_ROWS || tensor_kinds[t].shape == SHAPE_SCALARS;
            if (rows && tensor_dtype(&c->p, t) != ATTEST_ABSENT) draw_strided(d, t);
        }
    c->packed = has(d, F_PACKED) && one_length;
    if (c->packed) pack(&c->p);
    span_begin(d->choices);
    if (!has(d, F_PACKED) && feature_of(d, F_BROADCAST, 1.5 * d->density)) draw_broadcast(d);
    span_end(d->choices);
    c->offset = (int)choose_proposed(d->choices, 0, 16, below(d, 2) ? 0 : below(d, 17));
    c->promise_align = choose_flag(d->choices, 0.5);
}

/* ---- numbers ---- */

static void fill_rows(struct prop_case *c, enum tensor_id t, enum role role)
{
    const struct attest_tensor *s = tensor_rows(&c->p, t);
    struct family_data data = c->data;
    data.dtype = s->dtype;
    int64_t e[4];
    if (s->dtype == ATTEST_ABSENT) return;
    case_extents(c, t, e);
    double *out = c->values[t] = memset(case_doubles(c, e[0] * e[1] * e[2]), 0, (size_t)(e[0] * e[1] * e[2]) * 8);
    const int64_t seqlen = tensor_kinds[t].is_k ? c->p.seqlen_k : c->p.seqlen_q;
    const int64_t *starts = tensor_kinds[t].is_k ? c->starts_k : c->starts_q;
    int64_t b = 0;
    for (int64_t row = 0; row < e[0]; ++row) {
        if (!case_row_exists(c, tensor_kinds[t].is_k, row)) continue;
        while (c->p.ragged && row >= starts[b + 1]) ++b;
        if (!c->p.ragged) b = row / seqlen;
        const int64_t r = c->p.ragged ? row - starts[b] : row % seqlen;
        const bool one_row = s->seqlen == 0, one_batch = c->p.ragged ? one_row : s->batch == 0;
        for (int64_t h = 0; h < e[1]; ++h)
            for (int64_t x = 0; x < e[2]; ++x)
                out[(row * e[1] + h) * e[2] + x] =
                    family_value(&data, role, one_batch ? 0 : b, one_row ? 0 : r, s->head ? h : 0, x);
    }
}

/* kind: 0 any, 1 the first keys hidden, 2 the last ones, 3 every third row, else nothing hidden by it. */
static double mask_value(uint64_t seed, int64_t kind, double density, const int64_t at[4], const int64_t e[4])
{
    const uint64_t row = family_bits(seed, 20, at[0], at[2], at[1], 0);
    const int64_t cut = e[3] ? (int64_t)(row % (uint64_t)(e[3] + 1)) : 0;
    const uint64_t bits = family_bits(seed, 21, at[0], at[2], at[1], at[3]);
    bool seen = bits_uniform(bits) < density;
    if (kind == 1) seen = at[3] >= cut;
    if (kind == 2) seen = at[3] < cut;
    if (kind == 3) seen = seen && row % 3 != 0;
    return seen ? (double)(1 + (bits & 127)) : 0;
}

static void fill_scores(struct prop_case *c, enum tensor_id t, int64_t kind, double density)
{
    int64_t e[4];
    if (tensor_dtype(&c->p, t) == ATTEST_ABSENT) return;
    case_extents(c, t, e);
    double *out = c->values[t] = case_doubles(c, e[0] * e[1] * e[2] * e[3]);
    for (int64_t i = 0; i < e[0] * e[1] * e[2] * e[3]; ++i) {
        const int64_t at[] = {i / (e[1] * e[2] * e[3]), i / (e[2] * e[3]) % e[1], i / e[3] % e[2], i % e[3]};
        const uint64_t seed = c->data.seed + (uint64_t)t;
        if (t != T_BIAS) out[i] = mask_value(seed, kind, density, at, e);
        else if (kind && mask_value(seed, kind, density, at, e) == 0) out[i] = -INFINITY;
        else
            out[i] = ref_round(c->p.bias.dtype,
                               2 * family_normal(family_bits(seed, ROLE_OTHER, at[0], at[2], at[1], at[3])));
    }
}

/* Scalars of a row: N(0, 1) in fp32. */
static void fill_scalars(struct prop_case *c, enum tensor_id t)
{
    if (tensor_dtype(&c->p, t) == ATTEST_ABSENT) return;
    const int64_t count = case_count(c, t), heads = c->p.num_heads_q;
    c->values[t] = case_doubles(c, count);
    for (int64_t i = 0; i < count; ++i)
        c->values[t][i] = (float)family_normal(family_bits(c->data.seed, 30 + (uint64_t)t, 0, i / heads, i % heads, 0));
}

static void draw_values(struct drawing *d)
{
    struct prop_case *c = d->c;
    static const double densities[] = {1, 0.9, 0.5, 0.1};
    int64_t kinds[3];
    double density[3];
    const enum tensor_id scores[] = {T_MASK, T_BLOCK_MASK, T_BIAS};
    for (int i = 0; i < 3; ++i) {
        if (tensor_dtype(&c->p, scores[i]) == ATTEST_ABSENT) continue;
        kinds[i] = choose_proposed(d->choices, 0, 4, below(d, 2) ? 0 : 1 + below(d, 4));
        density[i] = densities[choose_proposed(d->choices, 0, 3, 1 + below(d, 3))];
    }
    int64_t families[NUM_FAMILIES], count = 0;
    for (int64_t f = 0; f < NUM_FAMILIES; ++f)
        if (!d->request->families || (d->request->families >> f & 1)) families[count++] = f;
    c->data = (struct family_data){.family = (enum family)pick(d, families, count), .dtype = c->p.q.dtype,
                                   .head_dim = c->p.head_dim, .softmax_scale = c->p.softmax_scale};
    c->data.seed = (uint64_t)choose(d->choices, 0, 0xffffff);
    fill_rows(c, T_Q, ROLE_Q);
    fill_rows(c, T_K, ROLE_K);
    fill_rows(c, T_V, ROLE_V);
    fill_rows(c, T_DOUT, ROLE_DOUT);
    fill_scalars(c, T_DLSE);
    for (int i = 0; i < 3; ++i) fill_scores(c, scores[i], kinds[i], density[i]);
    for (int64_t h = 0; c->sink && h < c->p.num_heads_q; ++h)
        c->sink[h] = (float)(3 * family_normal(family_bits(c->data.seed, 40, 0, 0, h, 0)));
}

/* lse and delta that are inputs: the problem's own, or of a larger key set. */
static void add_given_state(struct prop_case *c)
{
    if (c->p.delta.dtype == ATTEST_ABSENT) return;
    struct attest_problem own = c->p;
    own.external_lse = 0;
    const int64_t count = case_count(c, T_LSE);
    double *lse = case_doubles(c, count), *delta = case_doubles(c, count);
    const struct ref_forward forward = {.lse = lse};
    const struct ref_backward backward = {.delta = delta};
    if (ref_forward(&own, &c->a.forward, &forward, 1) != ATTEST_OK ||
        ref_backward(&own, &c->a, NULL, &backward, 1) != ATTEST_OK)
        abort();
    for (int64_t i = 0; i < count; ++i) {
        const uint64_t bits = family_bits(c->data.seed, 50, 0, i, 0, 0);
        if (c->p.external_lse && lse[i] > -INFINITY) lse[i] += 3 * bits_uniform(bits);
        if (c->p.external_lse) delta[i] += family_normal(bits);
        lse[i] = (float)lse[i], delta[i] = (float)delta[i];
    }
    c->values[T_LSE] = lse, c->values[T_DELTA] = delta;
    case_lay_out(c);
}

void case_draw(struct prop_case *c, struct choices *choices, const struct case_request *request)
{
    static const double densities[] = {0.05, 0.2, 0.35, 0.5};
    memset(c, 0, sizeof *c);
    struct drawing d = {.c = c, .choices = choices, .request = request};
    d.density = densities[below(&d, COUNT(densities))];
    c->p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    c->p.device = ATTEST_REFERENCE;
    c->backward = request->backward;
    c->poison = 0xff;
    draw_dtypes(&d);
    draw_heads(&d);
    draw_shapes(&d);
    draw_window(&d);
    feature(&d, F_STRIDED);
    draw_masks(&d);
    draw_scores(&d);
    draw_dropout(&d);
    draw_tensors(&d);
    draw_layouts(&d);
    draw_values(&d);
    case_lay_out(c);
    add_given_state(c);
    c->features = case_features(c);
}

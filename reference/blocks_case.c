/* blocks_case.c - see blocks_case.h. */
#include "reference/blocks_case.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"

static uint64_t bits(uint64_t *state)
{
    uint64_t z = *state += UINT64_C(0x9E3779B97F4A7C15);
    z = (z ^ z >> 30) * UINT64_C(0xBF58476D1CE4E5B9);
    z = (z ^ z >> 27) * UINT64_C(0x94D049BB133111EB);
    return z ^ z >> 31;
}
static int64_t range(uint64_t *g, int64_t low, int64_t high)
{
    return low + (int64_t)(bits(g) % (uint64_t)(high - low + 1));
}
static bool chance(uint64_t *g, int percent) { return range(g, 1, 100) <= percent; }
static double uniform(uint64_t *g) { return (double)(bits(g) >> 11) * 0x1p-52 - 1; } /* [-1, 1) */

/* Memory of the case, all ones: NaN where nothing is written. */
static void *allocate(struct blocks_case *c, int64_t bytes)
{
    void *memory = malloc((size_t)bytes + 8);
    if (!memory || c->num_memory == 24) abort();
    memset(memory, 0xff, (size_t)bytes + 8);
    return c->memory[c->num_memory++] = memory;
}

/* A tensor [batch][row][head][width] with a gap after each head, filled. */
static void *draw_rows(struct blocks_case *c, uint64_t *g, struct attest_tensor *t, int32_t dtype, bool is_k,
                       int64_t width, double size)
{
    const struct attest_problem *p = &c->p;
    const int64_t heads = is_k ? p->num_heads_kv : p->num_heads_q, gap = range(g, 0, 2);
    const int64_t rows = p->ragged ? (is_k ? p->total_k : p->total_q) : (is_k ? p->seqlen_k : p->seqlen_q);
    *t = (struct attest_tensor){.dtype = dtype, .head = width + gap, .seqlen = heads * (width + gap)};
    t->batch = rows * t->seqlen;
    const int64_t count = rows * t->seqlen * (p->ragged ? 1 : p->batch);
    void *data = allocate(c, count * (int64_t)ref_dtype_bytes(dtype));
    for (int64_t i = 0; i < count; ++i)
        if (i % (width + gap) < width) ref_store(dtype, data, i, size * uniform(g));
    return data;
}

static int32_t *draw_lengths(struct blocks_case *c, uint64_t *g, int64_t most, bool cumulative, int64_t *total)
{
    int32_t *lengths = allocate(c, (c->p.batch + 1) * (int64_t)sizeof *lengths);
    int64_t sum = cumulative ? range(g, 0, 2) : 0;
    for (int64_t b = 0; b <= c->p.batch; ++b) {
        lengths[b] = (int32_t)(cumulative ? sum : range(g, 0, most));
        sum += range(g, 0, most);
    }
    if (cumulative) *total = lengths[c->p.batch] + range(g, 0, 2);
    return lengths;
}

static void draw_shape(struct blocks_case *c, uint64_t *g)
{
    struct attest_problem *p = &c->p;
    p->batch = range(g, 1, 2);
    p->num_heads_kv = range(g, 1, 2);
    p->num_heads_q = p->num_heads_kv * range(g, 1, 2);
    p->seqlen_q = chance(g, 50) ? range(g, 0, 20) : range(g, 60, 140);
    p->seqlen_k = chance(g, 50) ? range(g, 0, 40) : range(g, 250, BLOCKS_MOST_KEYS - 10);
    p->head_dim = range(g, 1, 20);
    p->head_dim_v = range(g, 1, 20);
    p->ragged = chance(g, 30);
    if (p->ragged) {
        c->a.forward.cu_seqlens_q = draw_lengths(c, g, p->seqlen_q, true, &p->total_q);
        c->a.forward.cu_seqlens_k = draw_lengths(c, g, p->seqlen_k, true, &p->total_k);
    } else if (chance(g, 30)) {
        p->has_seqused_q = p->has_seqused_k = 1;
        c->a.forward.seqused_q = draw_lengths(c, g, p->seqlen_q, false, NULL);
        c->a.forward.seqused_k = draw_lengths(c, g, p->seqlen_k, false, NULL);
    }
}

static void draw_position(struct blocks_case *c, uint64_t *g)
{
    struct attest_problem *p = &c->p;
    p->q_start = chance(g, 30) ? range(g, 0, 50) : 0;
    p->k_start = chance(g, 30) ? range(g, 0, 50) : 0;
    p->diag_kind = (int32_t)range(g, ATTEST_DIAG_TOP_LEFT, ATTEST_DIAG_GIVEN);
    p->diag = range(g, -20, 300);
    if (chance(g, 40)) p->window_right = chance(g, 50) ? 0 : range(g, 0, 30);
    if (chance(g, 40)) p->window_left = range(g, 0, chance(g, 50) ? 20 : 300);
    p->softcap = chance(g, 30) ? 2.0F : 0.0F;
    p->has_alibi = chance(g, 30);
    p->has_sink = chance(g, 30);
    float *per_head = allocate(c, 2 * p->num_heads_q * (int64_t)sizeof *per_head);
    for (int64_t h = 0; h < 2 * p->num_heads_q; ++h) per_head[h] = (float)(h % 2 ? 0.02 * uniform(g) : 3 * uniform(g));
    c->a.forward.sink = per_head;
    c->a.forward.alibi_slopes = per_head + p->num_heads_q;
    c->most_alibi = p->has_alibi ? 3 * 1200 : 0;
}

/* Strides of [batch][head][rows][keys], axes broadcast at random; elements spanned. */
static int64_t lay_out_scores(const struct attest_problem *p, uint64_t *g, struct attest_score_tensor *t,
                              int32_t dtype, int64_t rows, int64_t keys)
{
    int64_t *const strides[4] = {&t->seqlen_k, &t->seqlen_q, &t->head, &t->batch};
    const int64_t extents[4] = {keys, rows, p->num_heads_q, p->batch};
    int64_t span = 1;
    *t = (struct attest_score_tensor){.dtype = dtype};
    for (int i = 0; i < 4; ++i) {
        if (chance(g, 25)) continue;
        *strides[i] = span;
        span *= extents[i] + (extents[i] == 0);
    }
    return span;
}

static uint8_t *draw_mask(struct blocks_case *c, uint64_t *g, int64_t span)
{
    uint8_t *mask = allocate(c, span);
    for (int64_t i = 0; i < span; ++i) mask[i] = chance(g, 80);
    return mask;
}

static void draw_masks(struct blocks_case *c, uint64_t *g)
{
    struct attest_problem *p = &c->p;
    if (chance(g, 25))
        c->a.forward.mask =
            draw_mask(c, g, lay_out_scores(p, g, &p->mask, ATTEST_UINT8, p->seqlen_q, p->seqlen_k));
    if (chance(g, 25)) {
        p->block_q = range(g, 1, 40), p->block_k = range(g, 1, 100);
        const int64_t rows = p->seqlen_q / p->block_q + 1, keys = p->seqlen_k / p->block_k + 1;
        c->a.forward.block_mask = draw_mask(c, g, lay_out_scores(p, g, &p->block_mask, ATTEST_UINT8, rows, keys));
    }
    if (!chance(g, 30)) return;
    const int64_t span = lay_out_scores(p, g, &p->bias, ATTEST_FP32, p->seqlen_q, p->seqlen_k);
    float *bias = allocate(c, span * (int64_t)sizeof *bias);
    for (int64_t i = 0; i < span; ++i) bias[i] = chance(g, 10) ? -INFINITY : (float)uniform(g);
    c->a.forward.bias = bias;
    c->most_bias = 1;
    lay_out_scores(p, g, &p->dbias, ATTEST_FP32, p->seqlen_q, p->seqlen_k);
}

void blocks_case_init(struct blocks_case *c, uint64_t seed)
{
    static const int32_t dtypes[] = {ATTEST_FP32, ATTEST_BF16, ATTEST_FP16, ATTEST_FP8_E4M3, ATTEST_FP8_E5M2};
    uint64_t state = seed, *g = &state;
    *c = (struct blocks_case){.p = ATTEST_PROBLEM_INIT, .a = ATTEST_BACKWARD_ARGS_INIT};
    struct attest_problem *p = &c->p;
    p->softmax_scale = (float)uniform(g);
    draw_shape(c, g);
    draw_position(c, g);
    draw_masks(c, g);
    const int32_t dtype = dtypes[range(g, 0, 4)];
    c->a.forward.q = draw_rows(c, g, &p->q, dtype, false, p->head_dim, 2);
    c->a.forward.k = draw_rows(c, g, &p->k, dtype, true, p->head_dim, 2);
    c->a.forward.v = draw_rows(c, g, &p->v, dtype, true, p->head_dim_v, 1);
    c->a.dout = draw_rows(c, g, &p->dout, ATTEST_FP32, false, p->head_dim_v, 1);
    if (chance(g, 40)) c->a.dlse = draw_rows(c, g, &p->dlse, ATTEST_FP32, false, 1, 1);
    if (chance(g, 25)) {
        p->external_lse = 1;
        c->a.forward.lse = draw_rows(c, g, &p->lse, ATTEST_FP32, false, 1, 5);
        c->a.delta = draw_rows(c, g, &p->delta, ATTEST_FP32, false, 1, 1);
    }
    p->dropout_p = chance(g, 30) ? 0.3F : 0.0F;
    p->dropout_seed = bits(g), p->dropout_offset = bits(g);
}

void blocks_case_poison(struct blocks_case *c, uint64_t seed)
{
    static const double values[] = {NAN, INFINITY, -INFINITY};
    const struct attest_problem *p = &c->p;
    const struct attest_tensor *const tensors[4] = {&p->q, &p->dout, &p->k, &p->v};
    const void *const data[4] = {c->a.forward.q, c->a.dout, c->a.forward.k, c->a.forward.v};
    for (int i = 0; i < 4; ++i) {
        const int64_t rows = i < 2 ? (p->ragged ? p->total_q : p->seqlen_q) : (p->ragged ? p->total_k : p->seqlen_k);
        if (rows == 0 || chance(&seed, 40)) continue;
        const int64_t b = p->ragged ? 0 : range(&seed, 0, p->batch - 1), row = range(&seed, 0, rows - 1);
        const int64_t h = range(&seed, 0, (i < 2 ? p->num_heads_q : p->num_heads_kv) - 1);
        const int64_t offset = b * tensors[i]->batch + row * tensors[i]->seqlen + h * tensors[i]->head;
        ref_store(tensors[i]->dtype, (void *)data[i], offset, values[range(&seed, 0, 2)]);
    }
}

void blocks_case_clear(struct blocks_case *c)
{
    for (int i = 0; i < c->num_memory; ++i) free(c->memory[i]);
}

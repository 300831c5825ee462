/* badinput_case.c - draws a valid problem and its memory. */
#include "proptests/cases/badinput_case.h"

#include <stdlib.h>
#include <string.h>

#define P(field) offsetof(struct attest_problem, field)
#define A(field) offsetof(struct attest_backward_args, field)
const struct tensor tensors[NUM_TENSORS] = {
    {"q", P(q), A(forward.q), ROWS, false, false, "rr"},
    {"k", P(k), A(forward.k), ROWS, true, false, "rr"},
    {"v", P(v), A(forward.v), ROWS, true, true, "rr"},
    {"o", P(o), A(forward.o), ROWS, false, true, "wr"},
    {"lse", P(lse), A(forward.lse), SCALARS, false, false, "wr"},
    {"dout", P(dout), A(dout), ROWS, false, true, "-r"},
    {"dlse", P(dlse), A(dlse), SCALARS, false, false, "-r"},
    {"delta", P(delta), A(delta), SCALARS, false, false, "-r"},
    {"dq", P(dq), A(dq), ROWS, false, false, "-w"},
    {"dk", P(dk), A(dk), ROWS, true, false, "-w"},
    {"dv", P(dv), A(dv), ROWS, true, true, "-w"},
    {"bias", P(bias), A(forward.bias), SCORES, false, false, "rr"},
    {"dbias", P(dbias), A(dbias), SCORES, false, false, "-w"},
    {"mask", P(mask), A(forward.mask), SCORES, false, false, "rr"},
    {"block_mask", P(block_mask), A(forward.block_mask), BLOCKS, false, false, "rr"},
};

uint64_t draw(struct bad_case *c, uint64_t below)
{
    c->random += UINT64_C(0x9e3779b97f4a7c15); /* splitmix64 */
    uint64_t z = c->random;
    z = (z ^ (z >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    z = (z ^ (z >> 27)) * UINT64_C(0x94d049bb133111eb);
    return (z ^ (z >> 31)) % below;
}

int64_t draw_range(struct bad_case *c, int64_t low, int64_t high)
{
    return low + (int64_t)draw(c, (uint64_t)(high - low) + 1);
}

size_t bytes_of_dtype(int32_t dtype)
{
    static const size_t bytes[] = {0, 4, 2, 2, 1, 1, 1};
    return bytes[dtype];
}

bool is_score(const struct tensor *t)
{
    return t->shape == SCORES || t->shape == BLOCKS;
}

static void *field_of(struct bad_case *c, const struct tensor *t)
{
    return (char *)&c->p + t->in_problem;
}

int32_t *dtype_of(struct bad_case *c, const struct tensor *t)
{
    return is_score(t) ? &((struct attest_score_tensor *)field_of(c, t))->dtype
                       : &((struct attest_tensor *)field_of(c, t))->dtype;
}

int32_t *align_of(struct bad_case *c, const struct tensor *t)
{
    return is_score(t) ? &((struct attest_score_tensor *)field_of(c, t))->align
                       : &((struct attest_tensor *)field_of(c, t))->align;
}

void *get_pointer(const struct bad_case *c, const struct tensor *t)
{
    void *pointer;
    memcpy(&pointer, (const char *)&c->a + t->in_args, sizeof pointer);
    return pointer;
}

void set_pointer(struct bad_case *c, const struct tensor *t, const void *pointer)
{
    memcpy((char *)&c->a + t->in_args, &pointer, sizeof pointer);
}

static void add_axis(struct axes *axes, const char *name, int64_t *stride, int64_t count)
{
    axes->names[axes->count] = name, axes->strides[axes->count] = stride, axes->counts[axes->count] = count;
    axes->count += 1;
}

struct axes axes_of(struct bad_case *c, const struct tensor *t)
{
    const struct attest_problem *p = &c->p;
    struct axes axes = {0};
    axes.innermost = t->shape != ROWS ? 1 : (int)(t->has_dim_v ? p->head_dim_v : p->head_dim);
    if (is_score(t)) {
        struct attest_score_tensor *s = field_of(c, t);
        const int64_t block_q = t->shape == BLOCKS ? p->block_q : 1, block_k = t->shape == BLOCKS ? p->block_k : 1;
        add_axis(&axes, "batch", &s->batch, p->batch);
        add_axis(&axes, "head", &s->head, p->num_heads_q);
        add_axis(&axes, "seqlen_q", &s->seqlen_q, (p->seqlen_q + block_q - 1) / block_q);
        add_axis(&axes, "seqlen_k", &s->seqlen_k, (p->seqlen_k + block_k - 1) / block_k);
        return axes;
    }
    struct attest_tensor *r = field_of(c, t);
    if (!p->ragged) add_axis(&axes, "batch", &r->batch, p->batch);
    const int64_t rows = p->ragged ? (t->is_k ? p->total_k : p->total_q) : t->is_k ? p->seqlen_k : p->seqlen_q;
    add_axis(&axes, "seqlen", &r->seqlen, rows);
    add_axis(&axes, "head", &r->head, t->is_k ? p->num_heads_kv : p->num_heads_q);
    return axes;
}

/* Exactly `size` bytes, so that the sanitizer sees the first one beyond. */
static void *add_block(struct bad_case *c, const char *name, size_t size)
{
    struct block *b = &c->blocks[c->num_blocks++];
    *b = (struct block){name, malloc(size), size};
    if (b->bytes == NULL) abort();
    for (size_t i = 0; i < size; ++i) b->bytes[i] = (unsigned char)draw(c, 64); /* small floats in every format */
    return b->bytes;
}

static void draw_tensor(struct bad_case *c, const struct tensor *t, int32_t dtype)
{
    *dtype_of(c, t) = dtype;
    const struct axes axes = axes_of(c, t);
    int order[4] = {0, 1, 2, 3};
    for (int i = axes.count - 1; i > 0; --i) {
        const int j = (int)draw(c, (uint64_t)i + 1), kept = order[i];
        order[i] = order[j], order[j] = kept;
    }
    const bool may_broadcast = t->use[0] != 'w' && (t->use[1] != 'w' || is_score(t));
    int64_t reach = axes.innermost; /* of the axes so far */
    for (int i = 0; i < axes.count; ++i) {
        const int a = order[i];
        const bool broadcast = may_broadcast && draw(c, 6) == 0;
        *axes.strides[a] = broadcast ? 0 : reach + (draw(c, 3) ? 0 : (int64_t)draw(c, 4));
        reach += (axes.counts[a] - 1) * *axes.strides[a];
    }
    *align_of(c, t) = draw(c, 2) ? (int32_t)bytes_of_dtype(dtype) : 0;
    set_pointer(c, t, add_block(c, t->name, (size_t)reach * bytes_of_dtype(dtype)));
}

static void draw_shapes(struct bad_case *c)
{
    struct attest_problem *p = &c->p;
    p->batch = draw_range(c, 1, 3);
    p->seqlen_q = draw_range(c, 1, 4);
    p->seqlen_k = draw_range(c, 1, 5);
    p->num_heads_kv = draw_range(c, 1, 3);
    p->num_heads_q = p->num_heads_kv * draw_range(c, 1, 3);
    p->head_dim = draw_range(c, 1, 9);
    p->head_dim_v = draw_range(c, 1, 9);
    p->block_q = draw_range(c, 1, 3);
    p->block_k = draw_range(c, 1, 3);
    p->ragged = (int32_t)draw(c, 2);
    if (p->ragged) p->total_q = p->batch * p->seqlen_q + 1, p->total_k = p->batch * p->seqlen_k + 1;
}

static void draw_scores(struct bad_case *c)
{
    struct attest_problem *p = &c->p;
    p->softmax_scale = (float)draw_range(c, -4, 4) / 4;
    p->softcap = draw(c, 2) ? 0 : 5;
    p->dropout_p = draw(c, 2) ? 0 : 0.5f;
    p->window_left = draw_range(c, -1, 3);
    p->window_right = draw_range(c, -1, 3);
    p->diag_kind = (int32_t)draw_range(c, ATTEST_DIAG_TOP_LEFT, ATTEST_DIAG_GIVEN);
    p->alibi_diag_kind = (int32_t)draw_range(c, ATTEST_DIAG_UNSET, ATTEST_DIAG_GIVEN);
    if (p->diag_kind == ATTEST_DIAG_GIVEN) p->diag = draw_range(c, -3, 3);
    if (p->alibi_diag_kind == ATTEST_DIAG_GIVEN) p->alibi_diag = draw_range(c, -3, 3);
    p->q_start = (int64_t)draw(c, 3), p->k_start = (int64_t)draw(c, 3);
    p->has_alibi = (int32_t)draw(c, 2), p->has_sink = (int32_t)draw(c, 2);
    p->has_seqused_q = (int32_t)draw(c, 2), p->has_seqused_k = (int32_t)draw(c, 2);
}

static void draw_tensors(struct bad_case *c, bool has_backward)
{
    static const int32_t inputs[] = {ATTEST_FP32, ATTEST_FP16, ATTEST_BF16, ATTEST_FP8_E4M3, ATTEST_FP8_E5M2};
    const int32_t input = inputs[draw(c, 5)];
    const bool has_bias = draw(c, 2), delta_only = has_backward && draw(c, 4) == 0;
    c->p.external_lse = has_backward && draw(c, 4) == 0;
    for (int i = 0; i < NUM_TENSORS; ++i) {
        const struct tensor *t = &tensors[i];
        const bool is_bias = t->in_problem == P(bias) || t->in_problem == P(dbias);
        const bool is_delta = t->in_problem == P(delta), is_o = t->in_problem == P(o);
        const bool optional = t->in_problem == P(dlse) || t->in_problem == P(dbias) || t->in_problem == P(mask) ||
                              t->in_problem == P(block_mask) || is_delta;
        const bool needed = is_delta && (c->p.external_lse || delta_only);
        if ((t->use[0] == '-' && !has_backward) || (is_bias && !has_bias)) continue;
        if ((optional && !needed && draw(c, 2)) || (is_o && delta_only)) continue;
        int32_t dtype = (int32_t)draw_range(c, ATTEST_FP32, ATTEST_BF16);
        if (t->in_problem == P(q) || t->in_problem == P(k) || t->in_problem == P(v)) dtype = input;
        if (t->shape == SCALARS) dtype = ATTEST_FP32;
        if (is_bias) dtype = draw(c, 2) && input <= ATTEST_BF16 ? input : ATTEST_FP32;
        if (t->in_problem == P(mask) || t->in_problem == P(block_mask)) dtype = ATTEST_UINT8;
        draw_tensor(c, t, dtype);
    }
}

static const int32_t *draw_starts(struct bad_case *c, const char *name, int64_t seqlen, int64_t total)
{
    int32_t *starts = add_block(c, name, (size_t)(c->p.batch + 1) * sizeof *starts);
    starts[0] = (int32_t)(total > 0 ? draw(c, 2) : 0);
    for (int64_t b = 0; b < c->p.batch; ++b) starts[b + 1] = starts[b] + (int32_t)draw_range(c, 0, seqlen);
    return starts;
}

static const int32_t *draw_used(struct bad_case *c, const char *name, const int32_t *starts, int64_t seqlen)
{
    int32_t *used = add_block(c, name, (size_t)c->p.batch * sizeof *used);
    for (int64_t b = 0; b < c->p.batch; ++b) {
        used[b] = (int32_t)draw_range(c, 0, starts != NULL ? starts[b + 1] - starts[b] : seqlen);
    }
    return used;
}

static void draw_arrays(struct bad_case *c)
{
    const struct attest_problem *p = &c->p;
    struct attest_forward_args *f = &c->a.forward;
    const size_t heads = (size_t)p->num_heads_q;
    if (p->has_alibi) f->alibi_slopes = add_block(c, "alibi_slopes", heads * sizeof(float));
    if (p->has_sink) f->sink = add_block(c, "sink", heads * sizeof(float));
    if (p->has_sink && draw(c, 2)) c->a.dsink = add_block(c, "dsink", heads * sizeof(float));
    if (p->ragged) {
        f->cu_seqlens_q = draw_starts(c, "cu_seqlens_q", p->seqlen_q, p->total_q);
        f->cu_seqlens_k = draw_starts(c, "cu_seqlens_k", p->seqlen_k, p->total_k);
    }
    if (p->has_seqused_q) f->seqused_q = draw_used(c, "seqused_q", f->cu_seqlens_q, p->seqlen_q);
    if (p->has_seqused_k) f->seqused_k = draw_used(c, "seqused_k", f->cu_seqlens_k, p->seqlen_k);
    if (p->dropout_p > 0 && draw(c, 2)) f->dropout_seed = add_block(c, "dropout_seed", 8);
    if (p->dropout_p > 0 && draw(c, 2)) f->dropout_offset = add_block(c, "dropout_offset", 8);
    if (p->dropout_p > 0 && draw(c, 2)) {
        f->dropout_stream = add_block(c, "dropout_stream", (size_t)p->batch * heads * 8);
    }
}

void draw_case(struct bad_case *c, uint64_t seed)
{
    *c = (struct bad_case){.random = seed, .p = ATTEST_PROBLEM_INIT, .a = ATTEST_BACKWARD_ARGS_INIT};
    c->p.device = ATTEST_REFERENCE;
    const bool has_backward = draw(c, 3) > 0;
    draw_shapes(c);
    draw_scores(c);
    draw_tensors(c, has_backward);
    draw_arrays(c);
    c->backward = has_backward && (c->p.o.dtype == ATTEST_ABSENT || draw(c, 2));
}

void free_case(struct bad_case *c)
{
    for (int i = 0; i < c->num_blocks; ++i) free(c->blocks[i].bytes);
}

uint64_t hash_memory(const struct bad_case *c)
{
    uint64_t hash = UINT64_C(0xcbf29ce484222325); /* FNV-1a */
    for (int i = 0; i < c->num_blocks; ++i) {
        for (size_t at = 0; at < c->blocks[i].size; ++at) {
            hash = (hash ^ c->blocks[i].bytes[at]) * UINT64_C(0x100000001b3);
        }
    }
    return hash;
}

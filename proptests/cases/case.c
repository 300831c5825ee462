/* case.c - a case's memory: values laid out among poison, results read back, bytes watched. */
#include "proptests/cases/case.h"

#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"

enum { MARGIN = 64 }; /* bytes of poison before and after each tensor */

#define P(field) offsetof(struct attest_problem, field)
#define A(field) offsetof(struct attest_backward_args, field)
const struct tensor_kind tensor_kinds[NUM_TENSORS] = {
    {"q", P(q), A(forward.q), SHAPE_ROWS, false, false, false, false},
    {"k", P(k), A(forward.k), SHAPE_ROWS, true, false, false, false},
    {"v", P(v), A(forward.v), SHAPE_ROWS, true, true, false, false},
    {"o", P(o), A(forward.o), SHAPE_ROWS, false, true, true, false},
    {"lse", P(lse), A(forward.lse), SHAPE_SCALARS, false, false, true, false},
    {"dout", P(dout), A(dout), SHAPE_ROWS, false, true, false, false},
    {"dlse", P(dlse), A(dlse), SHAPE_SCALARS, false, false, false, false},
    {"delta", P(delta), A(delta), SHAPE_SCALARS, false, false, false, false},
    {"dq", P(dq), A(dq), SHAPE_ROWS, false, false, false, true},
    {"dk", P(dk), A(dk), SHAPE_ROWS, true, false, false, true},
    {"dv", P(dv), A(dv), SHAPE_ROWS, true, true, false, true},
    {"bias", P(bias), A(forward.bias), SHAPE_SCORES, false, false, false, false},
    {"dbias", P(dbias), A(dbias), SHAPE_SCORES, false, false, false, true},
    {"mask", P(mask), A(forward.mask), SHAPE_SCORES, false, false, false, false},
    {"block_mask", P(block_mask), A(forward.block_mask), SHAPE_BLOCKS, false, false, false, false},
};

struct attest_tensor *tensor_rows(struct attest_problem *p, enum tensor_id t)
{
    return (struct attest_tensor *)((char *)p + tensor_kinds[t].in_problem);
}

struct attest_score_tensor *tensor_scores(struct attest_problem *p, enum tensor_id t)
{
    return (struct attest_score_tensor *)((char *)p + tensor_kinds[t].in_problem);
}

int32_t tensor_dtype(const struct attest_problem *p, enum tensor_id t)
{
    int32_t dtype; /* the first field of both layouts */
    memcpy(&dtype, (const char *)p + tensor_kinds[t].in_problem, sizeof dtype);
    return dtype;
}

static bool is_score(enum tensor_id t)
{
    return tensor_kinds[t].shape == SHAPE_SCORES || tensor_kinds[t].shape == SHAPE_BLOCKS;
}

/* ---- memory ---- */

struct owned {
    struct owned *next;
    _Alignas(64) unsigned char bytes[];
};

void *case_alloc(struct prop_case *c, size_t bytes)
{
    struct owned *block = aligned_alloc(64, (sizeof *block + bytes + 63) / 64 * 64);
    if (block == NULL) abort();
    block->next = c->owned;
    c->owned = block;
    return block->bytes;
}

double *case_doubles(struct prop_case *c, int64_t count) { return case_alloc(c, (size_t)count * sizeof(double)); }

void case_free(struct prop_case *c)
{
    while (c->owned != NULL) {
        struct owned *next = c->owned->next;
        free(c->owned);
        c->owned = next;
    }
}

static void *copy_of(struct prop_case *c, const void *from, int64_t count, size_t size)
{
    if (from == NULL) return NULL;
    return memcpy(case_alloc(c, (size_t)count * size), from, (size_t)count * size);
}

void case_copy(struct prop_case *c, const struct prop_case *from)
{
    const int64_t batch = from->p.batch, heads = from->p.num_heads_q;
    *c = *from;
    c->owned = NULL;
    c->num_buffers = 0;
    c->a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    for (int t = 0; t < NUM_TENSORS; ++t)
        c->values[t] = copy_of(c, from->values[t], from->values[t] ? case_count(from, t) : 0, sizeof(double));
    c->slopes = copy_of(c, from->slopes, heads, sizeof(double));
    c->sink = copy_of(c, from->sink, heads, sizeof(double));
    c->starts_q = copy_of(c, from->starts_q, batch + 1, sizeof(int64_t));
    c->starts_k = copy_of(c, from->starts_k, batch + 1, sizeof(int64_t));
    c->used_q = copy_of(c, from->used_q, batch, sizeof(int64_t));
    c->used_k = copy_of(c, from->used_k, batch, sizeof(int64_t));
    c->streams = copy_of(c, from->streams, batch * heads, sizeof(int64_t));
}

/* ---- shapes ---- */

static int64_t features_of(const struct attest_problem *p, enum tensor_id t)
{
    if (tensor_kinds[t].shape == SHAPE_SCALARS) return 1;
    return tensor_kinds[t].has_dim_v ? p->head_dim_v : p->head_dim;
}

static int64_t blocks(int64_t count, int64_t size) { return (count + size - 1) / size; }

void case_extents(const struct prop_case *c, enum tensor_id t, int64_t extents[4])
{
    const struct attest_problem *p = &c->p;
    if (!is_score(t)) {
        extents[0] = tensor_kinds[t].is_k ? ref_rows_k(p) : ref_rows_q(p);
        extents[1] = tensor_kinds[t].is_k ? p->num_heads_kv : p->num_heads_q;
        extents[2] = features_of(p, t);
        extents[3] = 1;
        return;
    }
    const bool in_blocks = tensor_kinds[t].shape == SHAPE_BLOCKS;
    const struct attest_score_tensor *s = tensor_scores((struct attest_problem *)p, t);
    extents[0] = s->batch ? p->batch : 1;
    extents[1] = s->head ? p->num_heads_q : 1;
    extents[2] = s->seqlen_q ? blocks(p->seqlen_q, in_blocks ? p->block_q : 1) : 1;
    extents[3] = s->seqlen_k ? blocks(p->seqlen_k, in_blocks ? p->block_k : 1) : 1;
}

int64_t case_count(const struct prop_case *c, enum tensor_id t)
{
    int64_t e[4];
    case_extents(c, t, e);
    return e[0] * e[1] * e[2] * e[3];
}

/* Element offset of row `row` (canonical) and head h. */
static int64_t row_offset(const struct prop_case *c, enum tensor_id t, int64_t row, int64_t h)
{
    const struct attest_problem *p = &c->p;
    const struct attest_tensor *layout = tensor_rows((struct attest_problem *)p, t);
    const int64_t seqlen = tensor_kinds[t].is_k ? p->seqlen_k : p->seqlen_q;
    if (p->ragged) return row * layout->seqlen + h * layout->head;
    return row / seqlen * layout->batch + row % seqlen * layout->seqlen + h * layout->head;
}

/* Elements from the first to past the last. */
static int64_t span_of(const struct prop_case *c, enum tensor_id t)
{
    int64_t e[4];
    case_extents(c, t, e);
    if (e[0] * e[1] * e[2] * e[3] == 0) return 0;
    if (!is_score(t)) {
        const struct attest_problem *p = &c->p;
        const struct attest_tensor *s = tensor_rows((struct attest_problem *)p, t);
        const int64_t rows = p->ragged ? e[0] : e[0] / p->batch;
        return (p->ragged ? 0 : (p->batch - 1) * s->batch) + (rows - 1) * s->seqlen + (e[1] - 1) * s->head + e[2];
    }
    const struct attest_score_tensor *s = tensor_scores((struct attest_problem *)&c->p, t);
    return (e[0] - 1) * s->batch + (e[1] - 1) * s->head + (e[2] - 1) * s->seqlen_q + (e[3] - 1) * s->seqlen_k + 1;
}

bool case_row_exists(const struct prop_case *c, bool is_k, int64_t row)
{
    if (!c->p.ragged) return true;
    const int64_t *starts = is_k ? c->starts_k : c->starts_q;
    return row >= starts[0] && row < starts[c->p.batch];
}

/* ---- layout ---- */

static int add_buffer(struct prop_case *c, const char *name, size_t bytes)
{
    struct prop_buffer *b = &c->buffers[c->num_buffers];
    *b = (struct prop_buffer){name, case_alloc(c, bytes + 2 * MARGIN), case_alloc(c, bytes + 2 * MARGIN),
                              bytes + 2 * MARGIN};
    memset(b->bytes, c->poison, b->size);
    return c->num_buffers++;
}

static void *tensor_memory(const struct prop_case *c, enum tensor_id t)
{
    void *pointer;
    memcpy(&pointer, (const char *)&c->a + tensor_kinds[t].in_args, sizeof pointer);
    return pointer;
}

static void set_pointer(struct prop_case *c, enum tensor_id t, const void *pointer)
{
    memcpy((char *)&c->a + tensor_kinds[t].in_args, &pointer, sizeof pointer);
}

static void add_tensor(struct prop_case *c, enum tensor_id t)
{
    const size_t bytes = ref_dtype_bytes(tensor_dtype(&c->p, t));
    c->buffer_of[t] = -1;
    if (bytes == 0) return;
    c->buffer_of[t] = add_buffer(c, tensor_kinds[t].name, (size_t)(span_of(c, t) + c->offset) * bytes);
    set_pointer(c, t, c->buffers[c->buffer_of[t]].bytes + MARGIN + (size_t)c->offset * bytes);
}

/* q, k and v of a row side by side. */
static void add_packed(struct prop_case *c)
{
    const struct attest_problem *p = &c->p;
    const size_t bytes = ref_dtype_bytes(p->q.dtype);
    const int buffer = add_buffer(c, "qkv", (size_t)(ref_rows_q(p) * p->q.seqlen + c->offset) * bytes);
    const int64_t begin[] = {0, p->num_heads_q * p->head_dim, (p->num_heads_q + p->num_heads_kv) * p->head_dim};
    for (int t = T_Q; t <= T_V; ++t) {
        c->buffer_of[t] = buffer;
        set_pointer(c, t, c->buffers[buffer].bytes + MARGIN + (size_t)(begin[t] + c->offset) * bytes);
    }
}

/* An array that is no tensor, of `count` elements of `size` bytes; `write` fills it. */
static void *add_array(struct prop_case *c, const char *name, int64_t count, size_t size)
{
    return c->buffers[add_buffer(c, name, (size_t)count * size)].bytes + MARGIN;
}

static const float *add_floats(struct prop_case *c, const char *name, const double *from)
{
    if (from == NULL) return NULL;
    float *array = add_array(c, name, c->p.num_heads_q, sizeof *array);
    for (int64_t h = 0; h < c->p.num_heads_q; ++h) array[h] = (float)from[h];
    return array;
}

static const int32_t *add_ints(struct prop_case *c, const char *name, const int64_t *from, int64_t count)
{
    if (from == NULL) return NULL;
    int32_t *array = add_array(c, name, count, sizeof *array);
    for (int64_t i = 0; i < count; ++i) array[i] = (int32_t)from[i];
    return array;
}

static void add_dropout(struct prop_case *c)
{
    c->p.dropout_seed = c->seed_by_pointer ? ~c->dropout_seed : c->dropout_seed;
    c->p.dropout_offset = c->seed_by_pointer ? ~c->dropout_offset : c->dropout_offset;
    if (c->p.dropout_p == 0) return;
    struct attest_forward_args *f = &c->a.forward;
    if (c->seed_by_pointer) {
        uint64_t *seed = add_array(c, "dropout_seed", 1, 8), *offset = add_array(c, "dropout_offset", 1, 8);
        *seed = c->dropout_seed, *offset = c->dropout_offset;
        f->dropout_seed = seed, f->dropout_offset = offset;
    }
    if (c->streams != NULL) {
        const int64_t count = c->p.batch * c->p.num_heads_q;
        int64_t *streams = add_array(c, "dropout_stream", count, 8);
        memcpy(streams, c->streams, (size_t)count * 8);
        f->dropout_stream = streams;
    }
}

static void add_arrays(struct prop_case *c)
{
    struct attest_forward_args *f = &c->a.forward;
    const int64_t batch = c->p.batch;
    f->alibi_slopes = add_floats(c, "alibi_slopes", c->slopes);
    f->sink = add_floats(c, "sink", c->sink);
    f->cu_seqlens_q = add_ints(c, "cu_seqlens_q", c->starts_q, batch + 1);
    f->cu_seqlens_k = add_ints(c, "cu_seqlens_k", c->starts_k, batch + 1);
    f->seqused_q = add_ints(c, "seqused_q", c->used_q, batch);
    f->seqused_k = add_ints(c, "seqused_k", c->used_k, batch);
    add_dropout(c);
    c->dsink_buffer = -1;
    if (c->sink == NULL || !c->backward) return;
    c->a.dsink = add_array(c, "dsink", c->p.num_heads_q, sizeof(float));
    c->dsink_buffer = c->num_buffers - 1;
}

/* Largest alignment up to 16 bytes that pointer and strides keep. */
static void promise_alignment(struct prop_case *c, enum tensor_id t)
{
    struct attest_tensor *s = tensor_rows(&c->p, t);
    const uint64_t strides = (uint64_t)s->batch | (uint64_t)s->seqlen | (uint64_t)s->head;
    const uint64_t all = strides * ref_dtype_bytes(s->dtype) | (uintptr_t)tensor_memory(c, t);
    s->align = (int32_t)(all % 16 == 0 ? 16 : all & -all);
}

/* Calls visit for every score that `view`, a problem with some of c's masks, shows. */
typedef void visit_score(struct prop_case *c, enum tensor_id t, int64_t b, int64_t h, int64_t r, int64_t col);
static void for_each_visible(struct prop_case *c, const struct attest_problem *view, visit_score *visit,
                             enum tensor_id t)
{
    for (int64_t b = 0; b < view->batch; ++b) {
        const struct ref_sequence s = ref_sequence(view, &c->a.forward, b);
        for (int64_t h = 0; h < view->num_heads_q; ++h)
            for (int64_t r = 0; r < s.seqlen_q; ++r)
                for (int64_t col = 0; col < s.seqlen_k; ++col)
                    if (ref_visible(view, &c->a.forward, &s, b, h, r, col)) visit(c, t, b, h, r, col);
    }
}

static void write_score(struct prop_case *c, enum tensor_id t, int64_t b, int64_t h, int64_t r, int64_t col)
{
    const struct attest_score_tensor *s = tensor_scores(&c->p, t);
    int64_t e[4];
    case_extents(c, t, e);
    if (tensor_kinds[t].shape == SHAPE_BLOCKS) r /= c->p.block_q, col /= c->p.block_k;
    const int64_t at[] = {e[0] > 1 ? b : 0, e[1] > 1 ? h : 0, e[2] > 1 ? r : 0, e[3] > 1 ? col : 0};
    const double value = c->values[t][((at[0] * e[1] + at[1]) * e[2] + at[2]) * e[3] + at[3]];
    const int64_t offset = ref_score_offset(s, b, h, r, col);
    if (s->dtype == ATTEST_UINT8) ((uint8_t *)tensor_memory(c, t))[offset] = (uint8_t)value;
    else ref_store(s->dtype, tensor_memory(c, t), offset, value);
}

/* Masks hide one another: an entry is written where nothing written before it hides the score. */
static void write_scores(struct prop_case *c)
{
    static const enum tensor_id order[] = {T_MASK, T_BLOCK_MASK, T_BIAS};
    struct attest_problem view = c->p;
    for (int i = 0; i < 3; ++i) tensor_scores(&view, order[i])->dtype = ATTEST_ABSENT;
    for (int i = 0; i < 3; ++i) {
        if (c->buffer_of[order[i]] >= 0) for_each_visible(c, &view, write_score, order[i]);
        *tensor_scores(&view, order[i]) = *tensor_scores(&c->p, order[i]);
    }
}

void case_find_felt(struct prop_case *c, bool *queries, bool *keys)
{
    const struct attest_problem *p = &c->p;
    memset(queries, 0, (size_t)(ref_rows_q(p) * p->num_heads_q));
    memset(keys, 0, (size_t)(ref_rows_k(p) * p->num_heads_kv));
    for (int64_t b = 0; b < p->batch; ++b) {
        const struct ref_sequence s = ref_sequence(p, &c->a.forward, b);
        for (int64_t h = 0; h < p->num_heads_q; ++h) {
            const int64_t h_kv = h / (p->num_heads_q / p->num_heads_kv);
            for (int64_t r = 0; r < s.seqlen_q; ++r)
                for (int64_t col = 0; col < s.seqlen_k; ++col) {
                    if (!ref_visible(p, &c->a.forward, &s, b, h, r, col)) continue;
                    queries[(s.first_q + r) * p->num_heads_q + h] = true;
                    keys[(s.first_k + col) * p->num_heads_kv + h_kv] = true;
                }
        }
    }
}

void case_find_used(const struct prop_case *c, bool *queries)
{
    for (int64_t b = 0; b < c->p.batch; ++b) {
        const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
        for (int64_t i = s.first_q * c->p.num_heads_q; i < (s.first_q + s.seqlen_q) * c->p.num_heads_q; ++i)
            queries[i] = true;
    }
}

static void write_rows(struct prop_case *c, enum tensor_id t, const bool *felt)
{
    int64_t e[4];
    if (c->buffer_of[t] < 0 || c->values[t] == NULL) return;
    case_extents(c, t, e);
    for (int64_t i = 0; i < e[0] * e[1]; ++i) {
        if (!felt[i]) continue;
        const int64_t offset = row_offset(c, t, i / e[1], i % e[1]);
        for (int64_t x = 0; x < e[2]; ++x)
            ref_store(tensor_dtype(&c->p, t), tensor_memory(c, t), offset + x, c->values[t][i * e[2] + x]);
    }
}

static void write_all_rows(struct prop_case *c)
{
    static const enum tensor_id others[] = {T_DOUT, T_DLSE, T_LSE, T_DELTA};
    bool *queries = case_alloc(c, (size_t)(ref_rows_q(&c->p) * c->p.num_heads_q));
    bool *keys = case_alloc(c, (size_t)(ref_rows_k(&c->p) * c->p.num_heads_kv));
    case_find_felt(c, queries, keys);
    write_rows(c, T_Q, queries);
    write_rows(c, T_K, keys);
    write_rows(c, T_V, keys);
    /* A sink gives rows without a key a gradient: what backward reads of them stays. */
    if (c->sink != NULL) case_find_used(c, queries);
    for (int i = 0; i < 4; ++i) write_rows(c, others[i], queries);
}

void case_lay_out(struct prop_case *c)
{
    c->num_buffers = 0;
    c->a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    add_arrays(c);
    for (int t = c->packed ? T_V + 1 : T_Q; t < NUM_TENSORS; ++t) add_tensor(c, t);
    if (c->packed) add_packed(c);
    write_scores(c);
    write_all_rows(c);
    for (int t = 0; t < NUM_TENSORS; ++t)
        if (c->promise_align && c->buffer_of[t] >= 0 && tensor_kinds[t].shape == SHAPE_ROWS) promise_alignment(c, t);
    for (int i = 0; i < c->num_buffers; ++i) memcpy(c->buffers[i].pristine, c->buffers[i].bytes, c->buffers[i].size);
}

void case_contiguous(struct prop_case *c)
{
    struct attest_problem *p = &c->p;
    c->packed = c->promise_align = false;
    c->offset = 0;
    for (int t = 0; t < NUM_TENSORS; ++t) {
        if (tensor_dtype(p, t) == ATTEST_ABSENT) continue;
        int64_t e[4];
        case_extents(c, t, e);
        if (is_score(t)) { /* what is broadcast stays so */
            struct attest_score_tensor *s = tensor_scores(p, t);
            int64_t *const strides[] = {&s->batch, &s->head, &s->seqlen_q, &s->seqlen_k}, reach = 1;
            for (int axis = 3; axis >= 0; --axis) {
                if (*strides[axis]) *strides[axis] = reach;
                reach *= e[axis] ? e[axis] : 1;
            }
            s->align = 0;
            continue;
        }
        struct attest_tensor *s = tensor_rows(p, t);
        const int64_t rows = p->ragged ? e[0] : tensor_kinds[t].is_k ? p->seqlen_k : p->seqlen_q;
        *s = (struct attest_tensor){
            .dtype = s->dtype, .head = e[2], .seqlen = e[1] * e[2], .batch = rows * e[1] * e[2]};
        if (tensor_kinds[t].shape == SHAPE_SCALARS) s->seqlen = 1, s->head = rows, s->batch = rows * e[1];
    }
}

/* ---- results ---- */

static bool is_output(const struct prop_case *c, enum tensor_id t, bool backward)
{
    const bool given = c->values[t] != NULL; /* external lse */
    return !given && (backward ? tensor_kinds[t].backward_output : tensor_kinds[t].forward_output);
}

void case_reset_outputs(struct prop_case *c)
{
    for (int t = 0; t < NUM_TENSORS; ++t) {
        if (c->buffer_of[t] < 0 || !(is_output(c, t, false) || is_output(c, t, true))) continue;
        struct prop_buffer *b = &c->buffers[c->buffer_of[t]];
        memset(b->bytes, c->poison, b->size);
        memset(b->pristine, c->poison, b->size);
    }
    if (c->dsink_buffer < 0) return;
    memset(c->buffers[c->dsink_buffer].bytes, c->poison, c->buffers[c->dsink_buffer].size);
    memset(c->buffers[c->dsink_buffer].pristine, c->poison, c->buffers[c->dsink_buffer].size);
}

/* Takes the elements that the pass may write as they are: pristine becomes what is there. */
static void accept_rows(struct prop_case *c, enum tensor_id t)
{
    struct prop_buffer *b = &c->buffers[c->buffer_of[t]];
    const size_t bytes = ref_dtype_bytes(tensor_dtype(&c->p, t));
    int64_t e[4];
    case_extents(c, t, e);
    for (int64_t i = 0; i < e[0] * e[1]; ++i) {
        if (!case_row_exists(c, tensor_kinds[t].is_k, i / e[1])) continue;
        const size_t at = (size_t)((unsigned char *)tensor_memory(c, t) - b->bytes) +
                          (size_t)row_offset(c, t, i / e[1], i % e[1]) * bytes;
        memcpy(b->pristine + at, b->bytes + at, (size_t)e[2] * bytes);
    }
}

static void accept_scores(struct prop_case *c, enum tensor_id t)
{
    struct prop_buffer *b = &c->buffers[c->buffer_of[t]];
    const struct attest_score_tensor *s = tensor_scores(&c->p, t);
    const size_t bytes = ref_dtype_bytes(s->dtype);
    int64_t e[4];
    case_extents(c, t, e);
    for (int64_t i = 0; i < e[0] * e[1] * e[2] * e[3]; ++i) {
        const int64_t offset = ref_score_offset(s, i / (e[1] * e[2] * e[3]), i / (e[2] * e[3]) % e[1], i / e[3] % e[2],
                                                i % e[3]);
        const size_t at = (size_t)((unsigned char *)tensor_memory(c, t) - b->bytes) + (size_t)offset * bytes;
        memcpy(b->pristine + at, b->bytes + at, bytes);
    }
}

const char *case_check_memory(struct prop_case *c, bool backward)
{
    for (int t = 0; t < NUM_TENSORS; ++t) {
        if (c->buffer_of[t] < 0 || !is_output(c, t, backward)) continue;
        if (is_score(t)) accept_scores(c, t);
        else accept_rows(c, t);
    }
    if (backward && c->dsink_buffer >= 0) {
        struct prop_buffer *b = &c->buffers[c->dsink_buffer];
        memcpy(b->pristine + MARGIN, b->bytes + MARGIN, b->size - 2 * MARGIN);
    }
    for (int i = 0; i < c->num_buffers; ++i)
        if (memcmp(c->buffers[i].bytes, c->buffers[i].pristine, c->buffers[i].size) != 0) return c->buffers[i].name;
    return NULL;
}

double *case_read(struct prop_case *c, enum tensor_id t)
{
    int64_t e[4];
    case_extents(c, t, e);
    const int32_t dtype = tensor_dtype(&c->p, t);
    const void *data = tensor_memory(c, t);
    double *out = case_doubles(c, e[0] * e[1] * e[2] * e[3]);
    if (!is_score(t)) {
        for (int64_t i = 0; i < e[0] * e[1]; ++i)
            for (int64_t x = 0; x < e[2]; ++x)
                out[i * e[2] + x] = case_row_exists(c, tensor_kinds[t].is_k, i / e[1])
                                        ? ref_load(dtype, data, row_offset(c, t, i / e[1], i % e[1]) + x)
                                        : (double)NAN;
        return out;
    }
    for (int64_t i = 0; i < e[0] * e[1] * e[2] * e[3]; ++i)
        out[i] = ref_load(dtype, data,
                          ref_score_offset(tensor_scores(&c->p, t), i / (e[1] * e[2] * e[3]), i / (e[2] * e[3]) % e[1],
                                           i / e[3] % e[2], i % e[3]));
    return out;
}

double *case_read_dsink(struct prop_case *c)
{
    double *out = case_doubles(c, c->p.num_heads_q);
    for (int64_t h = 0; h < c->p.num_heads_q; ++h) out[h] = (double)c->a.dsink[h];
    return out;
}

/* sample.c - one problem of any size on a machine. */
#include "proptests/cases/sample.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/plan.h"
#include "proptests/cases/families.h"
#include "reference/formats.h"

enum { GUARD = 256, ALIGN = 16, POISON = 0xff, HIDDEN_KEYS = 70, BLOCK = 32, WINDOW_LEFT = 100 };

static bool is_fine(const struct sample *c, int code)
{
    if (code != 0) printf("  %s\n", c->machine->error_text(code));
    return code == 0;
}

static bool has(const struct sample *c, enum sample_feature f) { return (c->shape.features & f) != 0; }

static int64_t longest(const struct sample_shape *s, bool is_k)
{
    return !is_k && s->queries != 0 ? s->queries : s->seqlen;
}

static int64_t length_of(const struct sample *c, bool is_k, int64_t b)
{
    const bool varies = has(c, WITH_RAGGED) && (is_k || c->shape.queries == 0);
    return varies ? c->shape.lengths[b] : longest(&c->shape, is_k);
}

static int64_t first_row(const struct sample *c, bool is_k, int64_t b)
{
    int64_t first = 0;
    for (int64_t n = 0; n < b; ++n) first += length_of(c, is_k, n);
    return first;
}

/* Of queries whose number is given all are used. */
static int64_t used_rows(const struct sample *c, bool is_k, int64_t b)
{
    const int64_t length = length_of(c, is_k, b);
    return has(c, WITH_SEQUSED) && (is_k || c->shape.queries == 0) ? length - 1 - length / 9 : length;
}

/* ---- the problem ---- */

static struct attest_tensor rows_tensor(const struct sample_shape *s, bool is_k, int32_t dtype, int64_t dim)
{
    const bool is_aligned = !s->unpromised && (size_t)dim * ref_dtype_bytes(dtype) % ALIGN == 0;
    const int64_t heads = is_k ? s->heads_kv : s->heads_q;
    return (struct attest_tensor){dtype, is_aligned ? ALIGN : 0, longest(s, is_k) * heads * dim, heads * dim, dim};
}

static struct attest_problem packed_problem(const struct sample_shape *s)
{
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    const unsigned f = s->features;
    const bool ragged = f & WITH_RAGGED, backward = !(f & FORWARD_ONLY);
    const int64_t scores = longest(s, false) * s->seqlen;
    p.ragged = ragged;
    p.batch = s->batch, p.seqlen_q = longest(s, false), p.seqlen_k = s->seqlen;
    for (int64_t b = 0; b < s->batch && ragged; ++b)
        p.total_q += s->queries != 0 ? s->queries : s->lengths[b], p.total_k += s->lengths[b];
    p.num_heads_q = s->heads_q, p.num_heads_kv = s->heads_kv, p.head_dim = s->head_dim, p.head_dim_v = s->head_dim_v;
    p.q = rows_tensor(s, false, s->dtype, s->head_dim), p.k = rows_tensor(s, true, s->dtype, s->head_dim);
    p.v = rows_tensor(s, true, s->dtype, s->head_dim_v), p.o = rows_tensor(s, false, s->dtype, s->head_dim_v);
    p.lse = rows_tensor(s, false, ATTEST_FP32, 1);
    if (backward) p.dout = p.o, p.dq = p.q, p.dk = p.k, p.dv = p.v;
    if (backward && (f & WITH_DLSE)) p.dlse = p.lse;
    if (backward && (f & (WITH_DELTA | WITH_EXTERNAL_LSE))) p.delta = p.lse;
    p.external_lse = backward && (f & WITH_EXTERNAL_LSE);
    if (f & WITH_BIAS) p.bias = (struct attest_score_tensor){s->dtype, 0, 0, scores, s->seqlen, 1};
    if (backward && (f & WITH_DBIAS)) p.dbias = p.bias, p.dbias.dtype = ATTEST_FP32;
    if (f & WITH_MASK) p.mask = (struct attest_score_tensor){ATTEST_UINT8, 0, 0, 0, s->seqlen, 1};
    const int64_t blocks = (s->seqlen + BLOCK - 1) / BLOCK;
    if (f & WITH_BLOCK_MASK) p.block_mask = (struct attest_score_tensor){ATTEST_UINT8, 0, 0, 0, blocks, 1};
    if (f & WITH_BLOCK_MASK) p.block_q = p.block_k = BLOCK;
    p.softmax_scale = s->head_dim > 64 ? 0.0883883461f : 0.125f;
    p.softcap = f & WITH_SOFTCAP ? 5 : 0;
    p.has_alibi = (f & WITH_ALIBI) != 0, p.has_sink = (f & WITH_SINK) != 0;
    p.has_seqused_q = p.has_seqused_k = (f & WITH_SEQUSED) != 0;
    p.window_right = f & WITH_CAUSAL ? 0 : -1, p.window_left = f & WITH_WINDOW ? WINDOW_LEFT : -1;
    p.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    p.dropout_p = f & WITH_DROPOUT ? 0.2f : 0, p.dropout_seed = 5;
    return p;
}

static void stretch(struct attest_tensor *t, const struct sample_shape *s)
{
    if (t->dtype != ATTEST_ABSENT)
        *t = (struct attest_tensor){t->dtype, 0, s->strides.batch, s->strides.seqlen, s->strides.head};
}

static bool has_strides(const struct sample_shape *s) { return s->strides.seqlen != 0; }

static void stretch_scores(struct attest_score_tensor *t, const struct sample_shape *s)
{
    t->seqlen_q = s->score_row;
    if (t->head != 0) t->head = longest(s, false) * s->score_row;
}

/* Rows interleave, so one stride for all. */
static struct attest_problem stretched_problem(const struct attest_problem *packed, const struct sample_shape *s)
{
    struct attest_problem p = *packed;
    struct attest_score_tensor *const scores[] = {&p.bias, &p.mask, &p.dbias};
    for (size_t i = 0; i < sizeof scores / sizeof *scores && s->score_row != 0; ++i) stretch_scores(scores[i], s);
    struct attest_tensor *const rows[] = {&p.q, &p.k, &p.v, &p.o, &p.lse, &p.dout, &p.dlse, &p.dq, &p.dk, &p.dv};
    for (size_t i = 0; i < sizeof rows / sizeof *rows && has_strides(s); ++i) stretch(rows[i], s);
    return p;
}

/* ---- memory ---- */

static struct sample_memory *add_memory(struct sample *c, size_t in_args, size_t bytes, bool is_output)
{
    struct sample_memory *const m = &c->memory[c->num_memory++];
    if (c->num_memory > SAMPLE_MAX_MEMORY) abort();
    *m = (struct sample_memory){.in_args = in_args, .bytes = bytes, .is_output = is_output};
    m->host = malloc(bytes);
    if (m->host == NULL) abort();
    memset(m->host, POISON, bytes);
    memcpy((char *)&c->host + in_args, &m->host, sizeof m->host);
    return m;
}

static size_t elements_of(const struct attest_layout *layout)
{
    int64_t elements = layout->inner;
    if (attest_layout_is_empty(layout)) return 0;
    for (int i = 0; i < layout->num_axes; ++i) elements += (layout->axes[i].count - 1) * layout->axes[i].stride;
    return (size_t)elements;
}

/* Those that a mask hides from all. */
static int64_t hidden_keys(const struct sample *c) { return c->shape.seqlen > HIDDEN_KEYS ? HIDDEN_KEYS : 0; }

/* Whether nobody sees row r of sequence b. */
static bool is_unseen(const struct sample *c, bool is_k, int64_t b, int64_t r)
{
    return r >= used_rows(c, is_k, b) || (is_k && has(c, WITH_MASK) && r < hidden_keys(c));
}

static void fill_rows(struct sample *c, const struct sample_memory *m, double unseen)
{
    const struct attest_layout layout = attest_layout_of(&c->host_problem, m->kind);
    const int64_t heads = m->kind->is_k ? c->shape.heads_kv : c->shape.heads_q, row = heads * layout.inner;
    for (int64_t b = 0; b < c->shape.batch; ++b)
        for (int64_t r = 0; r < length_of(c, m->kind->is_k, b); ++r)
            for (int64_t x = 0; x < row; ++x) {
                const uint64_t place = (uint64_t)(c->shape.first_sequence + b);
                const uint64_t bits = family_bits(place, m->in_args, 0, r, x, 0);
                ref_store(layout.dtype, m->host, (first_row(c, m->kind->is_k, b) + r) * row + x,
                          is_unseen(c, m->kind->is_k, b, r) ? unseen : family_normal(bits));
            }
}

/* A bias is small, a mask hides an eighth and the first keys from everybody. */
static void fill_scores(const struct sample *c, const struct sample_memory *m)
{
    const struct attest_layout layout = attest_layout_of(&c->host_problem, m->kind);
    const int64_t columns = layout.axes[layout.num_axes - 1].count;
    const int64_t elements = (int64_t)(m->bytes / (size_t)layout.element_bytes);
    for (int64_t i = 0; i < elements; ++i) {
        const uint64_t bits = family_bits(3, m->in_args, 0, i, 0, 0);
        if (layout.dtype != ATTEST_UINT8) ref_store(layout.dtype, m->host, i, family_normal(bits));
        else m->host[i] = bits % 8 != 0 && (m->kind->shape == ATTEST_BLOCKS || i % columns >= hidden_keys(c));
    }
}

static void add_tensors(struct sample *c, double unseen)
{
    for (int t = 0; t < ATTEST_NUM_TENSORS; ++t) {
        const struct attest_tensor_kind *const kind = &attest_tensor_kinds[t];
        const struct attest_layout layout = attest_layout_of(&c->host_problem, kind);
        if (layout.dtype == ATTEST_ABSENT) continue;
        const bool is_output = kind->written != 0;
        struct sample_memory *const m =
            add_memory(c, kind->in_args, elements_of(&layout) * (size_t)layout.element_bytes, is_output);
        m->kind = kind;
        if (is_output) continue;
        if (kind->shape == ATTEST_ROWS || kind->shape == ATTEST_SCALARS) fill_rows(c, m, unseen);
        else fill_scores(c, m);
    }
}

#define IN_FORWARD(field) (offsetof(struct attest_backward_args, forward) + offsetof(struct attest_forward_args, field))

static void add_arrays(struct sample *c)
{
    const size_t batch = (size_t)c->shape.batch, heads = (size_t)c->shape.heads_q;
    static const size_t starts[] = {IN_FORWARD(cu_seqlens_q), IN_FORWARD(cu_seqlens_k)};
    static const size_t used[] = {IN_FORWARD(seqused_q), IN_FORWARD(seqused_k)};
    static const size_t by_head[] = {IN_FORWARD(alibi_slopes), IN_FORWARD(sink)};
    for (int i = 0; i < 2; ++i) {
        if (has(c, WITH_RAGGED)) {
            int32_t *const at = (int32_t *)add_memory(c, starts[i], (batch + 1) * sizeof(int32_t), false)->host;
            for (int64_t b = 0; b <= c->shape.batch; ++b) at[b] = (int32_t)first_row(c, i == 1, b);
        }
        if (has(c, WITH_SEQUSED)) {
            int32_t *const at = (int32_t *)add_memory(c, used[i], batch * sizeof(int32_t), false)->host;
            for (int64_t b = 0; b < c->shape.batch; ++b) at[b] = (int32_t)used_rows(c, i == 1, b);
        }
        if (!has(c, i == 0 ? WITH_ALIBI : WITH_SINK)) continue;
        float *const at = (float *)add_memory(c, by_head[i], heads * sizeof(float), false)->host;
        for (size_t h = 0; h < heads; ++h) at[h] = i == 0 ? 1.0f / (float)(8 << h % 8) : (float)h - 1;
    }
    if (has(c, WITH_SINK) && !has(c, FORWARD_ONLY))
        add_memory(c, offsetof(struct attest_backward_args, dsink), heads * sizeof(float), true);
}

static bool has_apart_scores(const struct sample *c, const struct sample_memory *m)
{
    return c->shape.score_row != 0 && m->kind != NULL && m->kind->shape == ATTEST_SCORES;
}

static size_t bytes_there(const struct sample *c, const struct sample_memory *m)
{
    if (!has_apart_scores(c, m)) return m->bytes;
    const struct attest_layout layout = attest_layout_of(&c->problem, m->kind);
    return elements_of(&layout) * (size_t)layout.element_bytes;
}

/* Tensors with strides share two ranges, one of their dtype and one of fp32 scalars; others lie between guards. */
static bool allocate(struct sample *c)
{
    const struct sample_shape *const s = &c->shape;
    const int64_t reach = (s->batch - 1) * s->strides.batch + (s->seqlen - 1) * s->strides.seqlen +
                          (s->heads_q - 1) * s->strides.head;
    const int64_t widest = s->head_dim > s->head_dim_v ? s->head_dim : s->head_dim_v;
    const size_t element = ref_dtype_bytes(s->dtype);
    size_t rows = 0, scalars = 0;
    if (has_strides(s)) {
        c->shared = c->machine->allocate(((size_t)reach + (size_t)(SAMPLE_MAX_MEMORY * widest)) * element);
        c->shared_scalars = c->machine->allocate(((size_t)reach + SAMPLE_MAX_MEMORY) * sizeof(float));
        if (c->shared == NULL || c->shared_scalars == NULL) return printf("  no memory on the machine\n"), false;
    }
    for (int i = 0; i < c->num_memory; ++i) {
        struct sample_memory *const m = &c->memory[i];
        if (c->shared != NULL && m->kind != NULL && m->kind->shape == ATTEST_ROWS)
            m->device = c->shared + rows++ * (size_t)widest * element;
        else if (c->shared != NULL && m->kind != NULL && m->kind->shape == ATTEST_SCALARS)
            m->device = c->shared_scalars + scalars++ * sizeof(float);
        else if ((m->device = c->machine->allocate(bytes_there(c, m) + 2 * GUARD)) != NULL) m->device += GUARD;
        if (m->device == NULL) return printf("  no memory on the machine\n"), false;
        memcpy((char *)&c->device + m->in_args, &m->device, sizeof m->device);
    }
    const size_t larger = c->workspace_bytes[0] > c->workspace_bytes[1] ? c->workspace_bytes[0] : c->workspace_bytes[1];
    return larger == 0 || (c->workspace = c->machine->allocate(larger + GUARD)) != NULL;
}

bool sample_plan(struct sample *c, const struct machine *machine, const struct sample_shape *shape)
{
    *c = (struct sample){.machine = machine, .shape = *shape, .host = ATTEST_BACKWARD_ARGS_INIT,
                         .device = ATTEST_BACKWARD_ARGS_INIT};
    c->host_problem = packed_problem(shape);
    c->host_problem.device = machine->device, c->host_problem.device_ordinal = shape->device_ordinal;
    c->problem = stretched_problem(&c->host_problem, shape);
    return attest_plan_create_for(&c->problem, shape->major, &c->plan) == ATTEST_OK;
}

bool sample_open(struct sample *c, const struct machine *machine, const struct sample_shape *shape, double unseen)
{
    if (!sample_plan(c, machine, shape) ||
        attest_plan_workspace(c->plan, &c->workspace_bytes[0], &c->workspace_bytes[1]) != ATTEST_OK)
        return printf("  %s\n", attest_last_error()), false;
    add_tensors(c, unseen);
    add_arrays(c);
    return allocate(c);
}

static bool is_shared(const struct sample *c, const struct sample_memory *m)
{
    return c->shared != NULL && m->kind != NULL && (m->kind->shape == ATTEST_ROWS || m->kind->shape == ATTEST_SCALARS);
}

void sample_close(struct sample *c)
{
    for (int i = 0; i < c->num_memory; ++i) {
        free(c->memory[i].host);
        if (c->memory[i].device != NULL && !is_shared(c, &c->memory[i]))
            c->machine->release(c->memory[i].device - GUARD);
    }
    c->machine->release(c->shared), c->machine->release(c->shared_scalars), c->machine->release(c->workspace);
    attest_plan_destroy(c->plan);
}

/* ---- runs ---- */

/* Line by line between the packed copy and tensors with strides: features of a row, keys of a row of scores. */
static bool copy_lines(const struct sample *c, const struct sample_memory *m, bool in)
{
    const struct attest_layout host = attest_layout_of(&c->host_problem, m->kind);
    const struct attest_layout machine = attest_layout_of(&c->problem, m->kind);
    const size_t bytes = (size_t)((host.num_axes > 3 ? host.axes[3].count : host.inner) * host.element_bytes);
    int64_t at[3];
    bool ok = true;
    for (at[0] = 0; at[0] < host.axes[0].count; ++at[0])
        for (at[1] = 0; at[1] < host.axes[1].count; ++at[1])
            for (at[2] = 0; at[2] < host.axes[2].count; ++at[2]) {
                int64_t from = 0, to = 0;
                for (int a = 0; a < 3; ++a) from += at[a] * host.axes[a].stride, to += at[a] * machine.axes[a].stride;
                char *const here = m->host + from * host.element_bytes;
                char *const there = m->device + to * host.element_bytes;
                ok = ok && is_fine(c, in ? c->machine->copy_in(there, here, bytes)
                                         : c->machine->copy_out(here, there, bytes));
            }
    return ok;
}

static bool lies_apart(const struct sample *c, const struct sample_memory *m)
{
    return is_shared(c, m) || has_apart_scores(c, m);
}

bool sample_send(struct sample *c, bool untouched)
{
    const size_t larger = c->workspace_bytes[0] > c->workspace_bytes[1] ? c->workspace_bytes[0] : c->workspace_bytes[1];
    bool ok = true;
    for (int i = 0; i < c->num_memory && ok; ++i) {
        struct sample_memory *const m = &c->memory[i];
        if (lies_apart(c, m)) {
            if (m->is_output) memset(m->host, POISON, m->bytes);
            ok = copy_lines(c, m, true);
            continue;
        }
        ok = is_fine(c, c->machine->fill(m->device - GUARD, POISON, GUARD)) &&
             is_fine(c, c->machine->fill(m->device + m->bytes, POISON, GUARD)) &&
             (m->is_output ? untouched || is_fine(c, c->machine->fill(m->device, POISON, m->bytes))
                           : is_fine(c, c->machine->copy_in(m->device, m->host, m->bytes)));
    }
    return ok && (larger == 0 || untouched || is_fine(c, c->machine->fill(c->workspace, POISON, larger + GUARD)));
}

static bool is_queued(enum attest_status status)
{
    if (status != ATTEST_OK) printf("  %s\n", attest_last_error());
    return status == ATTEST_OK;
}

bool sample_forward(struct sample *c, void *stream)
{
    const size_t bytes = c->workspace_bytes[0];
    return is_queued(attest_run_forward(c->plan, &c->device.forward, bytes > 0 ? c->workspace : NULL, bytes, stream));
}

bool sample_backward(struct sample *c, void *stream)
{
    const size_t bytes = c->workspace_bytes[1];
    if (has(c, FORWARD_ONLY)) return true;
    return is_queued(attest_run_backward(c->plan, &c->device, bytes > 0 ? c->workspace : NULL, bytes, stream));
}

bool sample_queue(struct sample *c, void *stream) { return sample_forward(c, stream) && sample_backward(c, stream); }

static bool is_guarded(const struct sample *c, const struct sample_memory *m)
{
    unsigned char guards[2 * GUARD];
    if (!is_fine(c, c->machine->copy_out(guards, m->device - GUARD, GUARD)) ||
        !is_fine(c, c->machine->copy_out(guards + GUARD, m->device + m->bytes, GUARD)))
        return false;
    for (int i = 0; i < 2 * GUARD; ++i)
        if (guards[i] != POISON)
            return printf("  bytes changed that lie around %s\n", m->kind != NULL ? m->kind->name : "an array"), false;
    return true;
}

bool sample_fetch(struct sample *c)
{
    bool ok = true;
    for (int i = 0; i < c->num_memory && ok; ++i) {
        struct sample_memory *const m = &c->memory[i];
        if (lies_apart(c, m)) ok = !m->is_output || copy_lines(c, m, false);
        else ok = (!m->is_output || is_fine(c, c->machine->copy_out(m->host, m->device, m->bytes))) && is_guarded(c, m);
    }
    return ok;
}

char *sample_results(const struct sample *c)
{
    size_t bytes = 0;
    for (int i = 0; i < c->num_memory; ++i) bytes += c->memory[i].is_output ? c->memory[i].bytes : 0;
    char *const results = malloc(bytes), *to = results;
    if (results == NULL) abort();
    for (int i = 0; i < c->num_memory; ++i) {
        if (!c->memory[i].is_output) continue;
        memcpy(to, c->memory[i].host, c->memory[i].bytes);
        to += c->memory[i].bytes;
    }
    return results;
}

bool sample_has_results(const struct sample *c, const char *results)
{
    for (int i = 0; i < c->num_memory; ++i) {
        const struct sample_memory *const m = &c->memory[i];
        if (!m->is_output) continue;
        if (memcmp(m->host, results, m->bytes) != 0)
            return printf("  %s has other bits\n", m->kind != NULL ? m->kind->name : "dsink"), false;
        results += m->bytes;
    }
    return true;
}

const char *sample_rows(const struct sample *c, const struct sample_memory *m, int64_t b, size_t *bytes)
{
    const struct attest_layout layout = attest_layout_of(&c->host_problem, m->kind);
    const int64_t heads = m->kind->is_k ? c->shape.heads_kv : c->shape.heads_q;
    const size_t row = (size_t)(heads * layout.inner * layout.element_bytes);
    *bytes = (size_t)length_of(c, m->kind->is_k, b) * row;
    return m->host + (size_t)first_row(c, m->kind->is_k, b) * row;
}

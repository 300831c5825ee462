/* kernels_corners.c - offsets of more than 31 bits, in address space that costs nothing until it is touched; infinite
 * scores; large ones beside a bias; the diagonal of seqused; masks that rows see tiles apart by; no sequences; dropout
 * of one score in 65536; merges of one state. */
#define _GNU_SOURCE /* anonymous mappings */
#include <math.h>
#include <string.h>
#include <sys/mman.h>

#include "proptests/kernels/kernels.h"
#include "proptests/properties/outcome.h"

enum { DROPPING_SEED = 26826 }; /* the first 16 bits of its stream are 0 */
enum { BATCH = 2, SEQLEN = 5, DIM = 8, SEQUENCE = SEQLEN * DIM };
#define FAR ((INT64_C(1) << 31) + 16)

/* Tensors of rows one behind the other; results from R_O on. */
enum { R_Q, R_K, R_V, R_DOUT, R_O, R_DQ, R_DK, R_DV, NUM_ROWS };
enum { RESULT_BYTES = (NUM_ROWS - R_O) * BATCH * SEQUENCE * 4 };

/* Runs both passes of one head of BATCH sequences, `stride` apart in tensors at `memory`; copies results out. */
static enum attest_status run(const struct implementation *self, int32_t dtype, char *memory, int64_t stride,
                              char results[RESULT_BYTES])
{
    const int64_t element = (int64_t)ref_dtype_bytes(dtype), tensor = ((BATCH - 1) * stride + SEQUENCE) * element;
    const struct attest_tensor rows = {dtype, 0, stride, DIM, DIM};
    float lse[BATCH * SEQLEN];
    char *at[NUM_ROWS];
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    struct computed how;
    p.device = ATTEST_REFERENCE;
    p.batch = BATCH, p.seqlen_q = p.seqlen_k = SEQLEN;
    p.num_heads_q = p.num_heads_kv = 1, p.head_dim = p.head_dim_v = DIM;
    p.q = p.k = p.v = p.o = p.dout = p.dq = p.dk = p.dv = rows;
    p.lse = (struct attest_tensor){ATTEST_FP32, 0, SEQLEN, 1, SEQLEN};
    p.softmax_scale = 0.5f;
    for (int t = 0; t < NUM_ROWS; ++t) {
        at[t] = memory + t * tensor;
        for (int64_t i = 0; i < BATCH * SEQUENCE; ++i)
            ref_store(dtype, at[t], i / SEQUENCE * stride + i % SEQUENCE,
                      t >= R_O ? NAN : family_normal(family_bits(1, (uint64_t)t, 0, i, 0, 0)));
    }
    a.forward.q = at[R_Q], a.forward.k = at[R_K], a.forward.v = at[R_V], a.forward.o = at[R_O], a.forward.lse = lse;
    a.dout = at[R_DOUT], a.dq = at[R_DQ], a.dk = at[R_DK], a.dv = at[R_DV];
    enum attest_status status = self->forward(self, &p, &a.forward, &how);
    if (status == ATTEST_OK) status = self->backward(self, &p, &a, &how);
    for (int t = R_O; t < NUM_ROWS; ++t)
        for (int b = 0; b < BATCH; ++b, results += SEQUENCE * element)
            memcpy(results, at[t] + b * stride * element, (size_t)(SEQUENCE * element));
    return status;
}

static int far_strides(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    const size_t bytes = NUM_ROWS * (size_t)(FAR + SEQUENCE) * sizeof(float);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char near[RESULT_BYTES] = {0}, far[RESULT_BYTES] = {0};
    if (memory == MAP_FAILED) return fails(context, FAILS_LAW, "no address space of %zu bytes", bytes);
    enum attest_status status = run(self, dtype, memory, SEQUENCE, near);
    if (status == ATTEST_OK) status = run(self, dtype, memory, FAR, far);
    munmap(memory, bytes);
    if (status != ATTEST_OK) return fails(context, FAILS_STATUS, "far strides: %s", attest_last_error());
    if (memcmp(near, far, sizeof near) != 0)
        return fails(context, FAILS_O, "%s results depend on strides past 2^31", ref_dtype_name(dtype));
    return TRIAL_PASSES;
}

/* ---- infinities ---- */

enum { MOST_KEYS = 200 };

/* Rows of one query and `keys` keys, one feature: q = 1, k = scores, v = 3. A sink of inf, or none. */
static enum attest_status run_scores(const struct implementation *self, int32_t dtype, int64_t batch, int64_t keys,
                                     const float *scores, bool has_sink, float *o, float *lse)
{
    const float sink = INFINITY;
    float q[MOST_KEYS], k[MOST_KEYS], v[MOST_KEYS]; /* or numbers of 16 bits */
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    struct computed how;
    p.device = ATTEST_REFERENCE;
    p.batch = batch, p.seqlen_q = 1, p.seqlen_k = keys, p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
    p.o = p.lse = (struct attest_tensor){ATTEST_FP32, 0, 1, 1, 1};
    p.q = (struct attest_tensor){dtype, 0, 1, 1, 1};
    p.k = p.v = (struct attest_tensor){dtype, 0, keys, 1, 1};
    p.softmax_scale = 1, p.has_sink = has_sink;
    for (int64_t i = 0; i < batch * keys; ++i) {
        ref_store(dtype, q, i, 1);
        ref_store(dtype, k, i, scores[i]);
        ref_store(dtype, v, i, 3);
    }
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse, a.sink = has_sink ? &sink : NULL;
    return self->forward(self, &p, &a, &how);
}

static int infinite_scores(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    static const float scores[] = {INFINITY, 1, -INFINITY, -INFINITY, -INFINITY, 1}, one = 1;
    float o[3], lse[3], o_one, lse_one;
    if (run_scores(self, dtype, 3, 2, scores, false, o, lse) != ATTEST_OK ||
        run_scores(self, dtype, 1, 1, &one, false, &o_one, &lse_one) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "infinite scores: %s", attest_last_error());
    if (lse[0] != INFINITY || !isnan(o[0]))
        return fails(context, FAILS_LSE, "a score of inf gives o = %g, lse = %g", (double)o[0], (double)lse[0]);
    if (lse[1] != -INFINITY || !isnan(o[1]))
        return fails(context, FAILS_LSE, "scores of -inf alone give o = %g, lse = %g", (double)o[1], (double)lse[1]);
    if (o[2] != o_one || lse[2] != lse_one)
        return fails(context, FAILS_O, "a score of -inf gives o = %g, lse = %g", (double)o[2], (double)lse[2]);
    return TRIAL_PASSES;
}

/* More keys than two tiles have; all but one weigh nothing beside inf, a score or the sink. */
static int infinity_among_many(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    static const int places[] = {0, 70, MOST_KEYS - 1};
    for (int n = 0; n < 4; ++n) {
        const bool is_sink = n == 3;
        float scores[MOST_KEYS], o = -1, lse = -1;
        for (int j = 0; j < MOST_KEYS; ++j) scores[j] = j == 1 ? 200 : -300;
        if (!is_sink) scores[places[n]] = INFINITY;
        if (run_scores(self, dtype, 1, MOST_KEYS, scores, is_sink, &o, &lse) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "inf among many: %s", attest_last_error());
        if (lse != INFINITY || (is_sink ? o != 0 : !isnan(o)))
            return fails(context, FAILS_LSE, "%s of inf beside %d keys gives o = %g, lse = %g",
                         is_sink ? "a sink" : "a score", MOST_KEYS, (double)o, (double)lse);
    }
    return TRIAL_PASSES;
}

/* One format, rows of q = 1 and -1 in turns: k = inf at one key gives scores of inf and, beside others of -1, -inf. */
static int infinity_among_rows(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    enum { ROWS = 70, KEYS = 100, PLACE = 50 };
    float q[ROWS], k[KEYS], v[KEYS], o[ROWS], lse[ROWS]; /* or numbers of 16 bits */
    double o_bound[ROWS], lse_bound[ROWS];
    const struct ref_bound of_o = {.bound = o_bound}, of_lse = {.bound = lse_bound};
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    struct computed how;
    p.device = ATTEST_REFERENCE;
    p.seqlen_q = ROWS, p.seqlen_k = KEYS, p.batch = p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
    p.q = p.o = (struct attest_tensor){dtype, 0, ROWS, 1, 1};
    p.k = p.v = (struct attest_tensor){dtype, 0, KEYS, 1, 1};
    p.lse = (struct attest_tensor){ATTEST_FP32, 0, ROWS, 1, 1};
    p.softmax_scale = 1;
    for (int i = 0; i < ROWS; ++i) ref_store(dtype, q, i, i % 2 == 0 ? 1 : -1);
    for (int j = 0; j < KEYS; ++j) ref_store(dtype, k, j, j == PLACE ? INFINITY : 1), ref_store(dtype, v, j, 3);
    a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse;
    if (self->forward(self, &p, &a, &how) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "inf among rows: %s", attest_last_error());
    /* That key weighs exactly 0 beside -1: the bounds are those of a problem without it. */
    ref_store(dtype, k, PLACE, 1), --p.seqlen_k;
    const struct ref_shares shares = computed_shares(&how);
    if (ref_bound_forward_shares(&p, &a, &shares, &of_o, &of_lse, 1) != ATTEST_OK)
        return fails(context, FAILS_ORACLE, "inf among rows: no bound");
    for (int i = 0; i < ROWS; ++i) {
        const double got = ref_load(dtype, o, i);
        const bool is_three = fabs(got - 3) <= o_bound[i] && fabs(lse[i] - (log(KEYS - 1) - 1)) <= lse_bound[i];
        const bool holds = i % 2 == 0 ? lse[i] == INFINITY && isnan(got) : is_three;
        if (!holds) return fails(context, FAILS_LSE, "row %d of %d, with a key of inf, has o = %g, lse = %g", i, ROWS,
                                 got, (double)lse[i]);
    }
    return TRIAL_PASSES;
}

enum { MOST_ROWS = 150, MOST_FEATURES = 33 };

/* Rows of q = -1, a key of inf: its score is -inf, it weighs nothing, and so its gradients are 0 and those of the
 * others numbers. Rows of a tile that are not there have scores of their own, 0 times inf, and so do rows that are not
 * in use, whose dq is 0. All but the first feature is 0. */
static int infinity_beyond(int rows, int keys, int features, const struct implementation *self, int32_t dtype,
                           struct prop_context *context)
{
    enum { PLACE = 5, UNUSED = 3, NUMBERS = MOST_ROWS * MOST_FEATURES };
    const int32_t used = rows;
    static float q[NUMBERS], k[NUMBERS], v[NUMBERS], o[NUMBERS], dout[NUMBERS]; /* or 16 bits */
    static float lse[MOST_ROWS], dq[NUMBERS], dk[NUMBERS], dv[NUMBERS];
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    struct computed how;
    p.device = ATTEST_REFERENCE;
    p.seqlen_q = rows + UNUSED, p.seqlen_k = keys, p.has_seqused_q = 1;
    p.batch = p.num_heads_q = p.num_heads_kv = 1;
    p.head_dim = p.head_dim_v = features;
    p.q = p.o = p.dout = p.dq = (struct attest_tensor){dtype, 0, features, features, 1};
    p.k = p.v = p.dk = p.dv = (struct attest_tensor){dtype, 0, features, features, 1};
    p.lse = (struct attest_tensor){ATTEST_FP32, 0, 1, 1, 1};
    p.softmax_scale = 1;
    for (int n = 0; n < NUMBERS; ++n) {
        const bool is_first = n % features == 0;
        ref_store(dtype, q, n, is_first ? -1 : 0), ref_store(dtype, dout, n, is_first ? 1 : 0);
        ref_store(dtype, k, n, !is_first ? 0 : n == PLACE * features ? INFINITY : 1);
        ref_store(dtype, v, n, is_first ? 3 : 0);
    }
    a.forward.q = q, a.forward.k = k, a.forward.v = v, a.forward.o = o, a.forward.lse = lse;
    a.forward.seqused_q = &used;
    a.dout = dout, a.dq = dq, a.dk = dk, a.dv = dv;
    if (self->forward(self, &p, &a.forward, &how) != ATTEST_OK || self->backward(self, &p, &a, &how) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "inf beyond rows: %s", attest_last_error());
    for (int n = 0; n < keys * features; ++n) {
        const double of_k = ref_load(dtype, dk, n), of_v = ref_load(dtype, dv, n);
        const bool holds = n / features == PLACE ? of_k == 0 && of_v == 0 : isfinite(of_k) && isfinite(of_v);
        if (!holds)
            return fails(context, FAILS_LAW, "%d rows, a key of inf: dk[%d][%d] = %g, dv = %g", rows, n / features,
                         n % features, of_k, of_v);
    }
    for (int n = rows * features; n < (rows + UNUSED) * features; ++n)
        if (!(ref_load(dtype, dq, n) == 0))
            return fails(context, FAILS_LAW, "%d rows in use, a key of inf: dq[%d][%d] = %g", rows, n / features,
                         n % features, ref_load(dtype, dq, n));
    return TRIAL_PASSES;
}

static int infinity_beyond_rows(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    static const struct lengths {
        int rows, keys;
    } lengths[] = {{20, 32}, {40, 64}, {70, 128}, {140, MOST_ROWS}};
    int failure = TRIAL_PASSES;
    for (size_t n = 0; failure == TRIAL_PASSES && n < 2 * sizeof lengths / sizeof *lengths; ++n)
        failure = infinity_beyond(lengths[n / 2].rows, lengths[n / 2].keys, n % 2 ? MOST_FEATURES : 1, self, dtype,
                                  context);
    return failure;
}

/* Bottom-right and causal, as seqused says: with q = 0 a row's visible keys weigh 1 each, v = 2^j names them, and there
 * is one, then two of them: every step is exact. */
static int diagonal_of_used(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    enum { ROWS = 3, KEYS = 6, USED_Q = 2, USED_K = 2 };
    static const double want[ROWS] = {1, 1.5, 0};
    float q[ROWS] = {0}, k[KEYS] = {0}, v[KEYS], o[ROWS]; /* or numbers of 16 bits */
    const int32_t used_q = USED_Q, used_k = USED_K;
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    struct computed how;
    for (int j = 0; j < KEYS; ++j) ref_store(dtype, v, j, 1 << j);
    for (int i = 0; i < ROWS; ++i) ref_store(dtype, o, i, -1);
    p.device = ATTEST_REFERENCE;
    p.batch = p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1, p.seqlen_q = ROWS, p.seqlen_k = KEYS;
    p.q = p.k = p.v = p.o = (struct attest_tensor){dtype, 0, KEYS, 1, 1};
    p.softmax_scale = 1, p.window_right = 0, p.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    p.has_seqused_q = p.has_seqused_k = 1;
    a.q = q, a.k = k, a.v = v, a.o = o, a.seqused_q = &used_q, a.seqused_k = &used_k;
    if (self->forward(self, &p, &a, &how) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "the diagonal of seqused: %s", attest_last_error());
    for (int i = 0; i < ROWS; ++i)
        if (!(ref_load(dtype, o, i) == want[i]))
            return fails(context, FAILS_O, "seqused: o[%d] = %g, not %g", i, ref_load(dtype, o, i), want[i]);
    return TRIAL_PASSES;
}

/* Scores of 4096, all the same, beside a bias of 0: a row of whose biases nothing is taken off. lse may be off by 4u of
 * itself, of which the scores' scale and the last sum take 3.3 (reference/bounds.md, 11.1). */
static int large_scores_beside_a_bias(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    enum { ROWS = 20, KEYS = 16 };
    static const int rows[] = {1, ROWS};
    float q[ROWS], k[KEYS], v[KEYS], bias[KEYS] = {0}, o[ROWS], lse[ROWS]; /* or numbers of 16 bits */
    for (int n = 0; n < 2; ++n) {
        struct attest_problem p = ATTEST_PROBLEM_INIT;
        struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
        struct computed how;
        for (int i = 0; i < rows[n]; ++i) ref_store(dtype, q, i, 64), ref_store(dtype, o, i, -1);
        for (int j = 0; j < KEYS; ++j) ref_store(dtype, k, j, 64), ref_store(dtype, v, j, j % 4);
        p.device = ATTEST_REFERENCE;
        p.batch = p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
        p.seqlen_q = rows[n], p.seqlen_k = KEYS;
        p.q = p.k = p.v = p.o = (struct attest_tensor){dtype, 0, ROWS, 1, 1};
        p.lse = (struct attest_tensor){ATTEST_FP32, 0, ROWS, 1, 1};
        p.bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_k = 1};
        p.softmax_scale = 1;
        a.q = q, a.k = k, a.v = v, a.bias = bias, a.o = o, a.lse = lse;
        if (self->forward(self, &p, &a, &how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "large scores beside a bias: %s", attest_last_error());
        for (int i = 0; i < rows[n]; ++i)
            if (!(ref_load(dtype, o, i) == 1.5) || !(fabs(lse[i] - (4096 + log(KEYS))) <= 0x1p-10))
                return fails(context, FAILS_O, "large scores beside a bias, %d rows: o[%d] = %g, lse = %g", rows[n], i,
                             ref_load(dtype, o, i), (double)lse[i]);
    }
    return TRIAL_PASSES;
}

/* ---- masks ---- */

enum { MASKED_ROWS = 140, MASKED_KEYS = 140, MASK_BLOCK_Q = 32, MASK_BLOCK_K = 64 };

/* Rows whose q is 0 and that see some keys of one value: o is that value, exactly. By bytes, rows of which i mod 32 is
 * below 8 see the first 16 keys, the others those from 64 on: a tile of keys is hidden from all rows for which one warp
 * loads masks. By blocks, the first 32 rows, which are one warp's, see the first 64 keys, the others the next 64. */
static int rows_see_tiles_apart(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    static const int rows[] = {100, MASKED_ROWS};
    static uint8_t mask[MASKED_ROWS * MASKED_KEYS], blocks[5 * 3];
    static float q[MASKED_ROWS], k[MASKED_KEYS], v[MASKED_KEYS], o[MASKED_ROWS]; /* or numbers of 16 bits */
    memset(q, 0, sizeof q), memset(k, 0, sizeof k);
    for (int j = 0; j < MASKED_KEYS; ++j) ref_store(dtype, v, j, j < 64 ? 1 : 2);
    for (int i = 0; i < MASKED_ROWS; ++i)
        for (int j = 0; j < MASKED_KEYS; ++j)
            mask[i * MASKED_KEYS + j] = i % 32 < 8 ? j < 16 : j >= 64 && j < 80;
    for (int n = 0; n < 15; ++n) blocks[n] = n % 3 == (n / 3 == 0 ? 0 : 1);
    for (int n = 0; n < 4; ++n) {
        const bool by_blocks = n % 2 == 1;
        struct attest_problem p = ATTEST_PROBLEM_INIT;
        struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
        struct computed how;
        p.device = ATTEST_REFERENCE;
        p.batch = p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
        p.seqlen_q = rows[n / 2], p.seqlen_k = by_blocks ? 128 : rows[n / 2];
        p.q = p.k = p.v = p.o = (struct attest_tensor){dtype, 0, MASKED_ROWS, 1, 1};
        p.softmax_scale = 1;
        if (by_blocks) {
            p.block_mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_q = 3, .seqlen_k = 1};
            p.block_q = MASK_BLOCK_Q, p.block_k = MASK_BLOCK_K, a.block_mask = blocks;
        } else {
            p.mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_q = MASKED_KEYS, .seqlen_k = 1};
            a.mask = mask;
        }
        a.q = q, a.k = k, a.v = v, a.o = o;
        for (int i = 0; i < MASKED_ROWS; ++i) ref_store(dtype, o, i, -1);
        if (self->forward(self, &p, &a, &how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "rows see tiles apart: %s", attest_last_error());
        for (int i = 0; i < rows[n / 2]; ++i) {
            const int want = (by_blocks ? i < MASK_BLOCK_Q : i % 32 < 8) ? 1 : 2;
            if (!(ref_load(dtype, o, i) == want))
                return fails(context, FAILS_O, "%d rows, %s: o[%d] = %g, not %d", rows[n / 2],
                             by_blocks ? "blocks" : "a mask", i, ref_load(dtype, o, i), want);
        }
    }
    return TRIAL_PASSES;
}

/* Beside rows of q = 1, a row of q = -inf, whose scores are -inf alone, and one that sees no key, as a mask or a bias
 * says: the one has no softmax, the other has none to have. */
static int infinite_row_beside_a_hidden_one(const struct implementation *self, int32_t dtype,
                                            struct prop_context *context)
{
    enum { KEYS = 16, INFINITE = 3, EMPTY = 5 };
    static const int rows[] = {20, MASKED_ROWS};
    static uint8_t mask[MASKED_ROWS * KEYS];
    static float bias[MASKED_ROWS * KEYS];
    static float q[MASKED_ROWS], k[KEYS], v[KEYS], o[MASKED_ROWS], lse[MASKED_ROWS]; /* or numbers of 16 bits */
    for (int i = 0; i < MASKED_ROWS * KEYS; ++i) {
        mask[i] = i / KEYS != EMPTY;
        bias[i] = i / KEYS == EMPTY ? -INFINITY : 0;
    }
    for (int i = 0; i < MASKED_ROWS; ++i) ref_store(dtype, q, i, i == INFINITE ? -INFINITY : 1);
    for (int j = 0; j < KEYS; ++j) ref_store(dtype, k, j, 1), ref_store(dtype, v, j, 3);
    for (int n = 0; n < 4; ++n) {
        const bool by_bias = n % 2 != 0;
        struct attest_problem p = ATTEST_PROBLEM_INIT;
        struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
        struct computed how;
        p.device = ATTEST_REFERENCE;
        p.batch = p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
        p.seqlen_q = rows[n / 2], p.seqlen_k = KEYS;
        p.q = p.k = p.v = p.o = (struct attest_tensor){dtype, 0, MASKED_ROWS, 1, 1};
        p.lse = (struct attest_tensor){ATTEST_FP32, 0, MASKED_ROWS, 1, 1};
        *(by_bias ? &p.bias : &p.mask) = (struct attest_score_tensor){
            .dtype = by_bias ? ATTEST_FP32 : ATTEST_UINT8, .seqlen_q = KEYS, .seqlen_k = 1};
        p.softmax_scale = 1;
        a.q = q, a.k = k, a.v = v, a.o = o, a.lse = lse;
        if (by_bias) a.bias = bias;
        else a.mask = mask;
        for (int i = 0; i < MASKED_ROWS; ++i) ref_store(dtype, o, i, -1), lse[i] = -1;
        if (self->forward(self, &p, &a, &how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "an infinite row beside a hidden one: %s", attest_last_error());
        for (int i = 0; i < rows[n / 2]; ++i) {
            const double got = ref_load(dtype, o, i);
            const bool is_low = lse[i] == -INFINITY;
            const bool holds = i == INFINITE ? is_low && isnan(got)
                               : i == EMPTY  ? is_low && got == 0
                                             : !is_low && isfinite(lse[i]) && got == 3;
            if (!holds)
                return fails(context, FAILS_O, "row %d of %d, row %d of -inf, row %d hidden by a %s: o = %g, lse = %g",
                             i, rows[n / 2], INFINITE, EMPTY, by_bias ? "bias" : "mask", got, (double)lse[i]);
        }
    }
    return TRIAL_PASSES;
}

/* Nothing is computed, and that is no error. */
static int no_sequences(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    static const int rows[] = {1, 20};
    float numbers[1] = {0}, result[1], lse[1];
    for (int n = 0; n < 2; ++n) {
        struct attest_problem p = ATTEST_PROBLEM_INIT;
        struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
        struct computed how;
        p.device = ATTEST_REFERENCE;
        p.batch = 0, p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
        p.seqlen_q = rows[n], p.seqlen_k = 20;
        p.q = p.k = p.v = p.o = p.dout = p.dq = p.dk = p.dv = (struct attest_tensor){dtype, 0, 20, 1, 1};
        p.lse = (struct attest_tensor){ATTEST_FP32, 0, 20, 1, 1};
        p.softmax_scale = 1;
        ref_store(dtype, result, 0, -1), lse[0] = -1;
        a.forward.q = a.forward.k = a.forward.v = a.dout = numbers;
        a.forward.o = a.dq = a.dk = a.dv = result, a.forward.lse = lse;
        if (self->forward(self, &p, &a.forward, &how) != ATTEST_OK || self->backward(self, &p, &a, &how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "no sequences of %d rows: %s", rows[n], attest_last_error());
        if (!(ref_load(dtype, result, 0) == -1) || !(lse[0] == -1))
            return fails(context, FAILS_MEMORY, "no sequences of %d rows: something is written", rows[n]);
    }
    return TRIAL_PASSES;
}

/* One score, and dropout of one in 65536, with a seed that drops it and the next one. */
static int rare_dropout(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    for (int dropped = 0; dropped < 2; ++dropped) {
        const struct attest_tensor one = {dtype, 0, 1, 1, 1};
        struct attest_problem p = ATTEST_PROBLEM_INIT;
        struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
        struct computed how;
        float q = 0, v = 0, o = -1;
        ref_store(one.dtype, &v, 0, 3);
        p.device = ATTEST_REFERENCE;
        p.batch = p.seqlen_q = p.seqlen_k = p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
        p.q = p.k = p.v = p.o = one, p.o.dtype = ATTEST_FP32;
        p.softmax_scale = 1, p.dropout_p = 0x1p-16f, p.dropout_seed = dropped ? DROPPING_SEED : DROPPING_SEED + 1;
        a.q = a.k = &q, a.v = &v, a.o = &o;
        if (self->forward(self, &p, &a, &how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "rare dropout: %s", attest_last_error());
        if (dropped ? o != 0 : !(o > 3))
            return fails(context, FAILS_O, "%s at 2^-16: o = %g", dropped ? "dropped" : "kept", (double)o);
    }
    return TRIAL_PASSES;
}

/* One state and an empty one: a copy, bit by bit. An lse of NaN is no empty state. */
static int merges_of_one(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    (void)dtype; /* states are fp32 */
    static const float first[] = {-0.0f, 1}, second[] = {2, 3}, lse_first = -0.0f;
    const float *const o_states[] = {first, second};
    for (int is_nan = 0; is_nan < 2; ++is_nan) {
        const float lse_second = is_nan ? NAN : -INFINITY;
        const float *const lse_states[] = {&lse_first, &lse_second};
        struct attest_merge_args a = ATTEST_MERGE_ARGS_INIT;
        float o[] = {-1, -1}, lse = -1;
        a.device = ATTEST_REFERENCE;
        a.num_states = 2, a.rows = 1, a.head_dim_v = 2, a.o_states = o_states, a.lse_states = lse_states;
        a.o = o, a.lse = &lse;
        if (self->merge(self, &a) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "merge of one: %s", attest_last_error());
        const bool is_copy = memcmp(o, first, sizeof o) == 0 && memcmp(&lse, &lse_first, sizeof lse) == 0;
        if (is_nan ? !isnan(o[0]) || !isnan(o[1]) || !isnan(lse) : !is_copy)
            return fails(context, FAILS_LAW, "merge with an lse of %g gives o = %g, %g, lse = %g", (double)lse_second,
                         (double)o[0], (double)o[1], (double)lse);
    }
    return TRIAL_PASSES;
}

/* ---- one key ---- */

/* Rows of one query, one feature, of which one key outweighs all others, and all values are the same: dp of each is
 * delta, and dq is 0. one_query_backward_sm80 takes delta in two steps for it; other kernels are not asked: their dq is
 * what rounding delta leaves. */
static int one_key(const struct implementation *self, int32_t dtype, int64_t keys, struct prop_context *context)
{
    enum { ROWS = 8, KEYS = MOST_KEYS };
    float q[ROWS], o[ROWS], lse[ROWS], dout[ROWS], dq[ROWS];
    static float k[ROWS * KEYS], v[ROWS * KEYS], dk[ROWS * KEYS], dv[ROWS * KEYS]; /* or numbers of 16 bits */
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    struct computed how;
    p.device = ATTEST_REFERENCE;
    p.batch = ROWS, p.seqlen_q = 1, p.seqlen_k = keys;
    p.num_heads_q = p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
    p.q = p.o = p.dout = p.dq = (struct attest_tensor){dtype, 0, 1, 1, 1};
    p.k = p.v = p.dk = p.dv = (struct attest_tensor){dtype, 0, keys, 1, 1};
    p.lse = (struct attest_tensor){ATTEST_FP32, 0, 1, 1, 1};
    p.softmax_scale = 1;
    for (int64_t i = 0; i < ROWS * keys; ++i) {
        ref_store(dtype, k, i, i % keys == 7 ? 4 : -4);
        ref_store(dtype, v, i, ref_round(dtype, family_normal(family_bits(3, ROLE_V, 0, i / keys, 0, 0))));
    }
    for (int64_t i = 0; i < ROWS; ++i) {
        ref_store(dtype, q, i, 1);
        ref_store(dtype, dout, i, ref_round(dtype, family_normal(family_bits(3, ROLE_DOUT, 0, i, 0, 0))));
    }
    a.forward.q = q, a.forward.k = k, a.forward.v = v, a.forward.o = o, a.forward.lse = lse;
    a.dout = dout, a.dq = dq, a.dk = dk, a.dv = dv;
    if (self->forward(self, &p, &a.forward, &how) != ATTEST_OK || self->backward(self, &p, &a, &how) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "one key of %lld: %s", (long long)keys, attest_last_error());
    if (strcmp(how.by, "one_query_backward_sm80") != 0) return TRIAL_DISCARDED;
    for (int64_t i = 0; i < ROWS; ++i)
        if (!(ref_load(dtype, dq, i) == 0))
            return fails(context, FAILS_LAW, "one key of %lld: dq[%lld] = %g", (long long)keys, (long long)i,
                         ref_load(dtype, dq, i));
    return TRIAL_PASSES;
}

static int one_key_of_few(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    return one_key(self, dtype, 20, context);
}

static int one_key_of_many(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    return one_key(self, dtype, MOST_KEYS, context);
}

int kernels_corners(const struct implementation *self, int32_t dtype, struct kernels_verdicts *verdicts,
                    struct prop_context *context)
{
    static const struct {
        const char *name;
        int (*check)(const struct implementation *, int32_t, struct prop_context *);
    } corners[] = {{"far strides", far_strides},
                   {"infinite scores", infinite_scores},
                   {"an infinity among many", infinity_among_many},
                   {"an infinity among rows", infinity_among_rows},
                   {"an infinity beyond rows", infinity_beyond_rows},
                   {"the diagonal of seqused", diagonal_of_used},
                   {"large scores beside a bias", large_scores_beside_a_bias},
                   {"rows see tiles apart", rows_see_tiles_apart},
                   {"an infinite row beside a hidden one", infinite_row_beside_a_hidden_one},
                   {"no sequences", no_sequences},
                   {"rare dropout", rare_dropout},
                   {"merges of one", merges_of_one},
                   {"one key of few", one_key_of_few},
                   {"one key of many", one_key_of_many}};
    int failure = TRIAL_PASSES;
    for (size_t i = 0; i < sizeof corners / sizeof *corners && failure == TRIAL_PASSES; ++i)
        failure = kernels_note(verdicts, corners[i].name, corners[i].check(self, dtype, context));
    if (failure == TRIAL_PASSES) failure = kernels_nan(self, dtype, verdicts, context);
    if (failure == TRIAL_PASSES) failure = kernels_scaled(self, dtype, verdicts, context);
    return failure;
}

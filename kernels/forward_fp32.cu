/* forward_fp32.cu - attention forward in fp32, no tensor cores: the plain member of the family.
 *
 *     o = softmax(softmax_scale q k^T over visible keys) v,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp32, fp16 and bf16 tensors, any shape and strides, windows, ragged batches, seqused, a sink.
 *
 * Grid    x: batch * num_heads_q; y, z: tiles of TILE_Q query rows
 * Block   128 threads: 8 groups of 16; a group owns 4 query rows, a thread 4 of their keys, then 4 FEATURES of them
 * Shared  queries, one tile of k and then of v, weights: 36 KB at head_dim 64, 106 KB at 256
 * Phases  load q; for each tile of keys: load k, scores, online softmax, load v, accumulate; write
 *
 * Scores are in base 2: x = softmax_scale log2(e) (q . k), p = 2^(x - m), m the running maximum of the row. */
#include "kernels/device/device.h"
#include "kernels/params.h"
#include "lib/attest.h"

namespace {

enum {
    THREADS = 128,
    TILE_Q = 32,
    TILE_K = 64,
    ROWS = 4,     /* of queries, to a thread */
    KEYS = 4,     /* of a tile, to a thread: column, column + 16, ... */
    COLUMNS = 16, /* threads that share rows: one half of a warp */
    SPAN = 4 * COLUMNS
};

constexpr float LOG2_E = 1.44269504f, LN_2 = 0.693147181f;
constexpr float INVISIBLE = -1; /* in place of a weight: no weight is negative */

/* A row of features in global memory. */
struct row_pointer {
    char *data;
    int32_t dtype, by_four, length;
};

DEVICE row_pointer row_of(const row_tensor &t, int64_t b, int64_t row, int64_t head, int32_t length)
{
    const int64_t offset = b * t.batch + row * t.seqlen + head * t.head;
    return {static_cast<char *>(t.data) + offset * (t.dtype == ATTEST_FP32 ? 4 : 2), t.dtype, t.by_four, length};
}

DEVICE float load_feature(const row_pointer &row, int x)
{
    if (row.dtype == ATTEST_FP32) return reinterpret_cast<const float *>(row.data)[x];
    if (row.dtype == ATTEST_FP16) return to_f32(reinterpret_cast<const f16 *>(row.data)[x]);
    return to_f32(reinterpret_cast<const bf16 *>(row.data)[x]);
}

DEVICE void store_feature(const row_pointer &row, int x, float value)
{
    if (row.dtype == ATTEST_FP32) reinterpret_cast<float *>(row.data)[x] = one_nan_f32(value);
    else if (row.dtype == ATTEST_FP16) reinterpret_cast<f16 *>(row.data)[x] = to_f16(value);
    else reinterpret_cast<bf16 *>(row.data)[x] = to_bf16(value);
}

/* Features x .. x + 3, zero past the row's end. */
DEVICE quad load_features(const row_pointer &row, int x)
{
    if (row.dtype == ATTEST_FP32 && row.by_four && x + 4 <= row.length)
        return load_global_16<quad>(reinterpret_cast<const float *>(row.data) + x);
    quad out;
    for (int n = 0; n < 4; ++n) out.at[n] = x + n < row.length ? load_feature(row, x + n) : 0.0f;
    return out;
}

DEVICE void store_features(const row_pointer &row, int x, const quad &value)
{
    for (int n = 0; n < 4; ++n)
        if (x + n < row.length) store_feature(row, x + n, value.at[n]);
}

/* One sequence: where its rows begin, in tensors of stride `seqlen`, and how many of them there are. */
struct sequence {
    int64_t first_q, first_k, diag;
    int32_t seqlen_q, used_q, used_k;
};

DEVICE sequence find_sequence(const forward_params &p, int64_t b)
{
    sequence s = {0, 0, p.diag, p.seqlen_q, 0, p.seqlen_k};
    if (p.cu_seqlens_q != nullptr) {
        s.first_q = p.cu_seqlens_q[b], s.first_k = p.cu_seqlens_k[b];
        s.seqlen_q = p.cu_seqlens_q[b + 1] - p.cu_seqlens_q[b];
        s.used_k = p.cu_seqlens_k[b + 1] - p.cu_seqlens_k[b];
    }
    s.used_q = p.seqused_q != nullptr ? p.seqused_q[b] : s.seqlen_q;
    if (p.seqused_k != nullptr) s.used_k = p.seqused_k[b];
    if (p.diag_is_bottom_right) s.diag += s.used_k - s.used_q;
    return s;
}

/* The keys that one query sees: first .. last - 1. None where first >= last. */
struct interval {
    int32_t first, last;
};

DEVICE int32_t clamp(int64_t j, int32_t seqlen) { return j < 0 ? 0 : j > seqlen ? seqlen : static_cast<int32_t>(j); }

DEVICE interval visible_keys(const forward_params &p, const sequence &s, int32_t row)
{
    if (row >= s.used_q) return {0, 0};
    const int64_t diagonal = row + s.diag;
    return {p.window_left < 0 ? 0 : clamp(diagonal - p.window_left, s.used_k),
            p.window_right < 0 ? s.used_k : clamp(diagonal + p.window_right + 1, s.used_k)};
}

/* What a thread keeps of its rows: the running maximum in base 2, its own part of the sum of weights, o before
 * normalisation: features 4 column + SPAN n. */
template <int DIM_V>
struct accumulators {
    float max[ROWS], sum[ROWS];
    quad o[ROWS][DIM_V / SPAN];
};

/* Rows 0 .. count - 1 of k, v or q into shared memory, all else of TILE rows by `width` features zero: what nobody
 * sees is not read, and stale shared memory could hold a NaN. */
template <int TILE>
DEVICE void load_tile(float *tile, int pitch, int width, const row_tensor &t, int64_t b, int64_t first, int count,
                      int64_t head, int length)
{
    const int column = static_cast<int>(thread_x()) % COLUMNS;
    for (int r = static_cast<int>(thread_x()) / COLUMNS; r < TILE; r += THREADS / COLUMNS) {
        const row_pointer row = row_of(t, b, first + (r < count ? r : 0), head, length);
        for (int x = 4 * column; x < width; x += SPAN)
            store_16(&tile[r * pitch + x], r < count ? load_features(row, x) : quad{{0, 0, 0, 0}});
    }
}

/* score[i][c] = q of row i . k of key column + 16 c. */
DEVICE void dot_products(float (&score)[ROWS][KEYS], const float *q, const float *k, int pitch, int width)
{
    for (int i = 0; i < ROWS; ++i)
        for (int c = 0; c < KEYS; ++c) score[i][c] = 0;
    for (int x = 0; x < width; x += 4) {
        quad a[ROWS], b[KEYS];
        for (int i = 0; i < ROWS; ++i) a[i] = load_16<quad>(&q[i * pitch + x]);
        for (int c = 0; c < KEYS; ++c) b[c] = load_16<quad>(&k[c * COLUMNS * pitch + x]);
        for (int i = 0; i < ROWS; ++i)
            for (int c = 0; c < KEYS; ++c)
                for (int n = 0; n < 4; ++n) score[i][c] = fma_rn(a[i].at[n], b[c].at[n], score[i][c]);
    }
}

/* Over the 16 threads that share rows. */
DEVICE float max_of_row(float x)
{
    for (unsigned step = COLUMNS / 2; step > 0; step /= 2) x = max_f32(x, shfl_xor(FULL_WARP, x, step));
    return x;
}

DEVICE float sum_of_row(float x)
{
    for (unsigned step = COLUMNS / 2; step > 0; step /= 2) x += shfl_xor(FULL_WARP, x, step);
    return x;
}

/* Scores of one row and tile to weights; what is kept of the row follows its maximum. */
template <int DIM_V>
DEVICE void softmax_step(accumulators<DIM_V> &kept, int i, const float (&x)[KEYS], const bool (&visible)[KEYS],
                         float *weights)
{
    float max = -infinity_f32();
    for (int c = 0; c < KEYS; ++c)
        if (visible[c]) max = max_f32(max, x[c]); /* passes a NaN by: it reaches the sum */
    max = max_f32(kept.max[i], max_of_row(max));
    const float reference = max == -infinity_f32() ? 0 : max; /* against -inf - -inf where no score is finite */
    const float rescale = kept.max[i] == max ? 1 : exp2_f32(kept.max[i] - reference); /* against inf - inf */
    kept.max[i] = max;
    kept.sum[i] *= rescale;
    for (int n = 0; n < DIM_V / SPAN; ++n)
        for (int e = 0; e < 4; ++e) kept.o[i][n].at[e] *= rescale;
    for (int c = 0; c < KEYS; ++c) {
        /* inf - inf would be NaN and hide that lse is inf; o becomes inf / inf. */
        const float weight = x[c] == infinity_f32() ? infinity_f32() : exp2_f32(x[c] - reference);
        if (visible[c]) kept.sum[i] += weight;
        weights[c * COLUMNS] = visible[c] ? weight : INVISIBLE;
    }
}

/* o += p v over `count` keys. A key that a row does not see may hold a NaN, which zero times it would be, too. */
template <int DIM_V>
DEVICE void accumulate(accumulators<DIM_V> &kept, const float *weights, int weights_pitch, const float *v, int count)
{
    for (int j = 0; j < count; j += 4) {
        quad p[ROWS];
        for (int i = 0; i < ROWS; ++i) p[i] = load_16<quad>(&weights[i * weights_pitch + j]);
        for (int e = 0; e < 4; ++e)
            for (int n = 0; n < DIM_V / SPAN; ++n) {
                const quad value = load_16<quad>(&v[(j + e) * DIM_V + n * SPAN]);
                for (int i = 0; i < ROWS; ++i)
                    for (int f = 0; f < 4; ++f)
                        if (!(p[i].at[e] < 0))
                            kept.o[i][n].at[f] = fma_rn(p[i].at[e], value.at[f], kept.o[i][n].at[f]);
            }
    }
}

/* Row `row` of the sequence: o = sum p v / sum p, lse = ln 2 (m + log2 sum p); (0, -inf or the sink) if it is empty. */
template <int DIM_V>
DEVICE void write_row(const forward_params &p, const accumulators<DIM_V> &kept, int i, float sum, bool empty,
                      float empty_lse, int64_t b, int64_t row, int64_t head)
{
    const int column = static_cast<int>(thread_x()) % COLUMNS;
    const row_pointer o = row_of(p.o, b, row, head, p.head_dim_v);
    for (int n = 0; n < DIM_V / SPAN; ++n) {
        quad out;
        for (int e = 0; e < 4; ++e) out.at[e] = empty ? 0.0f : div_rn(kept.o[i][n].at[e], sum);
        store_features(o, 4 * column + n * SPAN, out);
    }
    if (p.lse.data != nullptr && column == 0)
        store_feature(row_of(p.lse, b, row, head, 1), 0,
                      empty ? empty_lse : (kept.max[i] + log2_f32(sum)) * LN_2);
}

struct shared_layout {
    int width, pitch; /* features of q and k, padded to quads; one quad more between rows spreads them over the banks */
    int weights_pitch;
    int k, weights, total; /* floats before them */
};

shared_layout layout_of(int head_dim, int dim_v) /* on the host */
{
    shared_layout l;
    l.width = (head_dim + 3) / 4 * 4;
    l.pitch = l.width + 4;
    l.weights_pitch = TILE_K + 4;
    l.k = TILE_Q * l.pitch;
    l.weights = l.k + TILE_K * (l.pitch > dim_v ? l.pitch : dim_v); /* v follows k in its place */
    l.total = l.weights + TILE_Q * l.weights_pitch;
    return l;
}

template <int DIM_V>
KERNEL(THREADS, 1) void forward_fp32_kernel(const forward_params p, const shared_layout l)
{
    DYNAMIC_SHARED(shared, 16);
    float *const q = reinterpret_cast<float *>(shared), *const weights = q + l.weights;
    float *const k = q + l.k, *const v = k; /* one after the other */
    const int64_t b = block_x() / p.num_heads_q, head = block_x() % p.num_heads_q, head_kv = head / p.group;
    const sequence s = find_sequence(p, b);
    const int64_t tile = static_cast<int64_t>(block_z()) * grid_y() + block_y();
    if (tile * TILE_Q >= s.seqlen_q) return;
    const int32_t tile_row = static_cast<int32_t>(tile) * TILE_Q;
    const int thread = static_cast<int>(thread_x()), column = thread % COLUMNS, group_row = thread / COLUMNS * ROWS;

    const float sink = p.sink != nullptr ? p.sink[head] : -infinity_f32();
    const float scale = p.softmax_scale * LOG2_E;
    accumulators<DIM_V> kept = {};
    interval seen[ROWS];
    UNROLL for (int i = 0; i < ROWS; ++i) {
        seen[i] = visible_keys(p, s, tile_row + group_row + i);
        kept.max[i] = sink * LOG2_E; /* a key of weight 2^0 and v = 0, in the sum of one thread */
        kept.sum[i] = column == 0 && sink != -infinity_f32() ? 1 : 0;
    }
    /* Intervals move to the right from row to row: so no key between these two is unseen. */
    const int rows = s.used_q - tile_row < TILE_Q ? s.used_q - tile_row : TILE_Q;
    const int32_t first_key = visible_keys(p, s, tile_row).first;
    const int32_t last_key = rows > 0 ? visible_keys(p, s, tile_row + rows - 1).last : 0;

    load_tile<TILE_Q>(q, l.pitch, l.width, p.q, b, s.first_q + tile_row, rows, head, p.head_dim);
    for (int32_t j0 = first_key; j0 < last_key; j0 += TILE_K) {
        const int count = last_key - j0 < TILE_K ? last_key - j0 : TILE_K;
        load_tile<TILE_K>(k, l.pitch, l.width, p.k, b, s.first_k + j0, count, head_kv, p.head_dim);
        sync_threads(); /* q and k are complete */
        float score[ROWS][KEYS];
        dot_products(score, &q[group_row * l.pitch], &k[column * l.pitch], l.pitch, l.width);
        UNROLL for (int i = 0; i < ROWS; ++i) {
            bool visible[KEYS];
            for (int c = 0; c < KEYS; ++c) {
                const int32_t j = j0 + column + c * COLUMNS;
                visible[c] = j >= seen[i].first && j < seen[i].last;
                score[i][c] *= scale;
            }
            softmax_step<DIM_V>(kept, i, score[i], visible, &weights[(group_row + i) * l.weights_pitch + column]);
        }
        sync_threads(); /* the weights are complete, k is free */
        load_tile<TILE_K>(v, DIM_V, DIM_V, p.v, b, s.first_k + j0, count, head_kv, p.head_dim_v);
        sync_threads(); /* v is complete */
        accumulate<DIM_V>(kept, &weights[group_row * l.weights_pitch], l.weights_pitch, &v[4 * column], count);
        sync_threads(); /* v and the weights are free */
    }
    UNROLL for (int i = 0; i < ROWS; ++i) {
        const int32_t row = tile_row + group_row + i;
        const float sum = sum_of_row(kept.sum[i]);
        if (row < s.seqlen_q)
            write_row<DIM_V>(p, kept, i, sum, seen[i].first >= seen[i].last, row < s.used_q ? sink : -infinity_f32(), b,
                             s.first_q + row, head);
    }
}

template <int DIM_V>
int launch(const forward_params &p, void *stream)
{
    const int64_t tiles = (static_cast<int64_t>(p.seqlen_q) + TILE_Q - 1) / TILE_Q;
    const unsigned y = static_cast<unsigned>(tiles < 65535 ? tiles : 65535);
    const shared_layout layout = layout_of(p.head_dim, DIM_V);
    const launch_shape shape = {
        {static_cast<unsigned>(p.batch * p.num_heads_q), y, static_cast<unsigned>((tiles + y - 1) / y)},
        {THREADS, 1, 1}, {1, 1, 1}, sizeof(float) * static_cast<size_t>(layout.total), THREADS, 1};
    return LAUNCH(forward_fp32_kernel<DIM_V>, shape, stream, p, layout);
}

} // namespace

extern "C" int KERNEL_SYMBOL(forward_fp32)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->head_dim_v <= 64) return launch<64>(*p, stream);
    if (p->head_dim_v <= 128) return launch<128>(*p, stream);
    return launch<256>(*p, stream);
}

/* forward_fp32.cu - attention forward in fp32, no tensor cores: the plain member of the family.
 *
 *     o = softmax(scores over visible keys) v,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp32, fp16 and bf16 tensors, any shape and strides, and every feature of lib/contract.md: shared/scores.h says
 * what a score is.
 *
 * Grid    x: batch * num_heads_q; y, z: tiles of TILE_A query rows
 * Block   128 threads; a thread owns 4 query rows, 4 keys of a tile, and 4 features of every 64: shared/fp32.h
 * Shared  34 KB: 64 features of a tile of queries and of one of keys, weights
 * Phases  for each tile of TILE_B keys: scores, online softmax, o += weights v; write
 *
 * Scores are in base 2, weights 2^(y - m), m the running maximum of the row. */
#include "kernels/shared/fp32.h"

namespace {

/* Holds what a thread keeps of its rows: the running maximum in base 2, its own part of the sum of weights, 1 where it
 * met a visible key, and o before normalisation, of which it has features 4 column + SPAN n. */
template <int DIM_V>
struct accumulators {
    float max[ROWS], sum[ROWS], any[ROWS];
    quad o[ROWS][DIM_V / SPAN];
};

/* Finds what is subtracted from the biases of the CTA's rows: 0 until a row's maximum turns out to be large. Returns
 * true where one of the rows has a reference only now and must therefore be retried. */
template <int DIM_V>
DEVICE bool find_references(row_numbers &reference, vote_words &votes, const accumulators<DIM_V> &kept,
                            const forward_params &p, const query_head &h, int32_t row, float sink)
{
    if (h.rule.bias == nullptr) return false;
    bool is_new = false;
    UNROLL for (int i = 0; i < ROWS; ++i) {
        float &of_row = reference.at[row_of_thread() + i];
        const bool is_open = of_row == 0 && is_large(kept.max[i]);
        float largest = -infinity_f32();
        if (is_open) largest = largest_bias(p, h.rule, h.s, row + i, column_of_thread(), COLUMNS);
        const float found = reference_of_row(max_of_row(largest), sink);
        sync_warp(FULL_WARP); /* all have read it */
        if (is_open && column_of_thread() == 0) of_row = found;
        is_new |= is_open && found != 0;
    }
    return vote_any(votes, is_new);
}

/* Turns dot products into scores, INVISIBLE where there is none; each thread takes its own pairs. */
DEVICE void find_scores(weight_tile &tile, const forward_params &p, const query_head &h, int32_t row, int32_t key,
                        const row_numbers &reference)
{
    ROLLED for (int i = 0; i < ROWS; ++i) {
        const interval keys = keys_of_row(p, h.s, row + i);
        ROLLED for (int c = 0; c < KEYS; ++c) {
            const int32_t j = key + c * COLUMNS;
            float *const at = &tile.at[pair_of_thread(i, c)];
            score found = {0, 1, false};
            if (j >= keys.first && j < keys.last)
                found = find_score(p, h.rule, h.s, row + i, j, *at, reference.at[row_of_thread() + i]);
            *at = weight_of(found.visible, found.y);
        }
    }
}

/* Turns the scores of row i and a tile into weights; what is kept of the row follows its maximum. */
template <int DIM_V>
DEVICE void softmax_step(accumulators<DIM_V> &kept, weight_tile &tile, int i)
{
    float max = -infinity_f32(), y[KEYS];
    bool visible[KEYS];
    for (int c = 0; c < KEYS; ++c) {
        y[c] = tile.at[pair_of_thread(i, c)];
        visible[c] = bits_of(y[c]) != INVISIBLE;
        if (visible[c]) max = max_f32(max, y[c]); /* ignores a NaN, which reaches the sum */
    }
    max = max_f32(kept.max[i], max_of_row(max));
    const float reference = max == -infinity_f32() ? 0 : max; /* avoids -inf - -inf where no score is finite */
    const float rescale = kept.max[i] == max ? 1 : exp2_f32(kept.max[i] - reference); /* avoids inf - inf */
    kept.max[i] = max;
    kept.sum[i] *= rescale;
    for (int n = 0; n < DIM_V / SPAN; ++n)
        for (int e = 0; e < 4; ++e) kept.o[i][n].at[e] *= rescale;
    for (int c = 0; c < KEYS; ++c) {
        if (!visible[c]) continue;
        /* inf - inf would be NaN and hide that lse is inf; o becomes inf / inf. */
        const float weight = y[c] == infinity_f32() ? infinity_f32() : exp2_f32(y[c] - reference);
        kept.sum[i] += weight, kept.any[i] = 1;
        tile.at[pair_of_thread(i, c)] = one_nan_f32(weight);
    }
}

/* Weights that dropout drops become 0, and NaN if they are infinite, since their keys are seen. */
DEVICE void drop_keys(weight_tile &tile, const forward_params &p, const query_head &h, int32_t row, int32_t key)
{
    ROLLED for (int i = 0; i < ROWS; ++i)
        ROLLED for (int c = 0; c < KEYS; ++c) {
            float *const at = &tile.at[pair_of_thread(i, c)];
            dropout_bits bits = {-1, {}};
            if (bits_of(*at) != INVISIBLE && !is_kept(p, h.rule, row + i, key + c * COLUMNS, bits)) *at *= 0;
        }
}

/* Writes row `row` of the sequence: o = sum p v / sum p and lse = ln 2 (m + log2 sum p), or (0, -inf or the sink) if
 * the row is empty. */
template <int DIM_V>
DEVICE void write_row(const forward_params &p, const accumulators<DIM_V> &kept, int i, float sum, bool empty,
                      float empty_lse, float reference, int64_t b, int64_t row, int64_t head)
{
    const int column = column_of_thread();
    const row_pointer o = row_of(p.o, b, row, head, p.head_dim_v);
    for (int n = 0; n < DIM_V / SPAN; ++n) {
        quad out;
        for (int e = 0; e < 4; ++e) out.at[e] = empty ? 0.0f : div_rn(kept.o[i][n].at[e], sum) * p.dropout_multiplier;
        store_features(o, 4 * column + n * SPAN, out);
    }
    if (p.lse.data != nullptr && column == 0)
        store_feature(row_of(p.lse, b, row, head, 1), 0,
                      empty ? empty_lse : (kept.max[i] + log2_f32(sum)) * LN_2 + reference);
}

template <int DIM_V>
KERNEL(THREADS, 1) void forward_fp32_kernel(const forward_params p)
{
    STATIC_SHARED(row_tiles, tiles);
    STATIC_SHARED(weight_tile, weights);
    STATIC_SHARED(vote_words, votes);
    STATIC_SHARED(row_numbers, reference);
    const query_head h = find_query_head(p, block_x() / p.num_heads_q, block_x() % p.num_heads_q);
    const sequence &s = h.s;
    if (first_row_of_block() >= s.seqlen_q) return;
    const int32_t tile_row = static_cast<int32_t>(first_row_of_block());
    const int rows = s.used_q - tile_row < TILE_A ? s.used_q - tile_row : TILE_A;
    const int32_t row = tile_row + row_of_thread();
    const float sink = p.sink != nullptr ? p.sink[h.head] : -infinity_f32();
    const head_rows q = query_rows(p.q, h, tile_row, rows, p.head_dim);
    const interval keys = keys_of_rows(p, s, tile_row, tile_row + rows).some;
    if (thread_x() < TILE_A) reference.at[thread_x()] = 0;
    sync_threads();
    accumulators<DIM_V> kept;
    do {
        kept = {};
        UNROLL for (int i = 0; i < ROWS; ++i) { /* the sink: a key of weight 2^0 and v = 0, in the sum of one thread */
            kept.max[i] = (sink - reference.at[row_of_thread() + i]) * LOG2_E;
            kept.sum[i] = column_of_thread() == 0 && sink != -infinity_f32() ? 1 : 0;
        }
        for (int32_t key = keys.first; key < keys.last; key += TILE_B) {
            const int count = keys.last - key < TILE_B ? keys.last - key : TILE_B;
            if (is_tile_hidden(p, h, tile_row, rows, key, count, votes)) continue;
            dot_products(weights, tiles, q, key_rows(p, p.k, h, key, count, p.head_dim));
            find_scores(weights, p, h, row, key + column_of_thread(), reference);
            UNROLL for (int i = 0; i < ROWS; ++i) softmax_step<DIM_V>(kept, weights, i);
            if (p.dropout_threshold != 0) drop_keys(weights, p, h, row, key + column_of_thread());
            accumulate<DIM_V>(kept.o, tiles, weights, key_rows(p, p.v, h, key, count, p.head_dim_v));
        }
    } while (find_references(reference, votes, kept, p, h, row, sink));
    UNROLL for (int i = 0; i < ROWS; ++i) {
        const float sum = sum_of_row(kept.sum[i]);
        const bool empty = max_of_row(kept.any[i]) == 0;
        if (row + i < s.seqlen_q)
            write_row<DIM_V>(p, kept, i, sum, empty, row + i < s.used_q ? sink : -infinity_f32(),
                             reference.at[row_of_thread() + i], h.b, s.first_q + row + i, h.head);
    }
}

template <int DIM_V>
int launch(const forward_params &p, void *stream)
{
    return LAUNCH(forward_fp32_kernel<DIM_V>, shape_of(p.batch * p.num_heads_q, p.seqlen_q), stream, p);
}

} // namespace

extern "C" int KERNEL_SYMBOL(forward_fp32)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->head_dim_v <= 64) return launch<64>(*p, stream);
    if (p->head_dim_v <= 128) return launch<128>(*p, stream);
    return launch<256>(*p, stream);
}

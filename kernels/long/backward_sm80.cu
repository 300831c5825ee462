/* backward_sm80.cu - attention backward of 16-bit tensors on tensor cores, for every GPU since 2020.
 *
 *     dx = p (dp - delta + dlse),  ds = dx (1 - (t / softcap)^2)
 *     dq = scale ds k,  dk = scale ds^T q,  dv = (m p)^T dout
 *
 * Takes fp16 and bf16, and every feature of lib/contract.md: shared/scores.h says what a score is. Two kernels:
 *
 *     dq      owns query rows and walks over keys; writes dq and, to the workspace, what the other needs of rows
 *     dk, dv  owns keys of a KV head and walks over the query rows of its group
 *
 * Grid    x: tiles of the rows that a CTA owns, times parts, the longest first where a window cuts them
 *         y, z: batch * heads
 * Block   4 warps; a warp owns 16 or 32 neighbouring rows, its lanes share them as mma.sync has it
 * Shared  tiles of the rows that it owns, two each of those that it walks over: 64 KB at DIM 64, 96 KB at 128 and 256;
 *         of scores that are not plain 48, 64 and 96 KB, and two tiles each of masks and biases
 * Phases  dq: where an lse is large, find that of the row's own scores, in two passes over the keys. Both kernels, for
 *         each tile of the other side: load the next one; for each 16 or 32 rows of it: s and dp, p and ds, and the
 *         sums that they are in
 *
 * dq begins with a provisional delta, d = dout . o of the rounded o or the delta that is given, and ends with that of p
 * and dp themselves, delta = sum dx + (d - dlse) sum p. In the same pass it sums ds k and (1 - tanh^2) p k, so that
 * errors of d and of rounding ds are taken back along their mean:
 *
 *     dq = scale (sum ds~ k + (d - delta - sum (ds~ - ds) / sum c p) sum c p k),   c = 1 - tanh^2
 *
 * where p sums to one and c is 1: scale (sum ds~ k + (dlse - sum ds~) sum p k). With lse and delta of a larger key set
 * (external_lse) nothing is taken back. The other kernel, dbias and dsink take the corrected delta. reference/bounds.md
 * has the proof, kernels/long/backward.md the figures.
 *
 * Scores that are not plain come by fragments in registers (shared/gradient_stage.h). Where a sum is not finite at the
 * end, or a row's lse is large, the CTA takes its rows again pair by pair: then, as in plain tiles that not all rows
 * see, a pair that takes no part has the weight UNSEEN, and where the other side holds a NaN, products leave it out. */
#include "kernels/shared/backward_scores.h"
#include "kernels/shared/gradient_stage.h"
#include "kernels/shared/gradients.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"

namespace {

/* ---- dq ---------------------------------------------------------------------------------------------------------- */

/* Holds what is known of a query row. */
struct query_row {
    row_lse lse;
    float d, dlse; /* d: the provisional delta */
};

/* Loads it in the four lanes of the row; it is zero where nothing of the row is read. */
template <bool PLAIN>
INLINE query_row load_query_row(const backward_params &p, const sequence &s, int64_t b, int64_t head, int32_t row)
{
    const interval keys = keys_of_row(p.forward, s, row);
    const bool exists = keys.first < keys.last || (p.external_lse && row < s.used_q);
    const int64_t at = s.first_q + (exists ? row : 0);
    float d = 0;
    if (p.delta.data == nullptr) d = multiply_row(p.dout, p.forward.o, b, at, head, exists ? p.forward.head_dim_v : 0);
    row_lse lse = {};
    const bool is_sink_alone = !PLAIN && !exists && p.forward.sink != nullptr && row < s.used_q; /* its lse is read */
    if (exists || is_sink_alone) lse = load_row_lse<PLAIN>(p, s, b, row, head);
    if (!exists) return {lse, 0, 0};
    if (p.delta.data != nullptr) d = load_scalar(p.delta, s, b, row, head);
    return {lse, d, load_scalar(p.dlse, s, b, row, head)};
}

/* Holds each lane's part of a row's sums. */
struct row_sums {
    float dx, ds_rounded;
    float p;           /* kept where p may not sum to one: under a softcap or with a sink */
    float ds, slope_p; /* kept under a softcap; else they are dx and p */
    bool any;          /* a visible key: kept where pairs are taken one by one */
};

/* Holds the state of a warp of the dq kernel. */
template <typename shape>
struct query_warp {
    own_rows<shape> q, dout;
    float lse[shape::BLOCKS][2], offset[shape::BLOCKS][2]; /* lse's high part; d - dlse */
    const query_row *known;                                /* its rows, in shared memory */
    row_sums rows[shape::BLOCKS][2];
    feature_sums<shape> ds_k, p_k;
    tile_keys keys; /* `all` is empty where an lse is large: then rows are asked one by one */
    int32_t first;  /* its first row */
};

/* Turns s and dp of block m, from key `key` on, into p and dx. CUT: not every row sees every key. SPLIT: lse may have
 * two parts. */
template <bool CUT, bool SPLIT, typename shape>
DEVICE void find_plain_gradients(query_warp<shape> &w, int m, products<shape> &p, products<shape> &ds,
                                 const interval (&keys)[2], float c, int32_t key)
{
    float low[2] = {};
    UNROLL for (int half = 0; half < 2; ++half)
        if (SPLIT) low[half] = w.known[16 * m + 8 * half + static_cast<int>(lane()) / 4].lse.low;
    UNROLL for (int n = 0; n < shape::STEP / 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e) {
            const int half = e / 2;
            const bool visible = !CUT || contains(keys[half], key + 8 * n + e % 2, 1);
            float &weight = p.at[m][n][e], &dx = ds.at[m][n][e];
            float y = fma_rn(weight, c, -w.lse[m][half]);
            if (SPLIT) y = find_exponent(weight, c, w.lse[m][half]) - low[half];
            weight = visible ? exp2_f32(y) : -0.0f;
            dx = visible ? weight * (dx - w.offset[m][half]) : 0;
            w.rows[m][half].dx += dx;
            if (shape::SINK) w.rows[m][half].p += weight;
        }
}

/* Does the same for any scores, of rows from `row` on: it finds c p and ds, where c = 1 - tanh^2. The scores take
 * turns, from memory of the thread's own, as in find_scores of shared/online_softmax.h. */
template <typename shape>
DEVICE void find_gradients(query_warp<shape> &w, int m, products<shape> &p, products<shape> &ds,
                           const interval (&keys)[2], const forward_params &f, const sequence &s,
                           const score_terms &terms, int32_t row, int32_t key)
{
    constexpr int OF_ROW = shape::STEP / 4;
    UNROLL for (int half = 0; half < 2; ++half) {
        row_sums &sums = w.rows[m][half];
        float weights[OF_ROW], values[OF_ROW];
        UNROLL for (int i = 0; i < OF_ROW; ++i) {
            weights[i] = p.at[m][i / 2][2 * half + i % 2];
            values[i] = ds.at[m][i / 2][2 * half + i % 2];
        }
        const row_lse lse = w.known[16 * m + 8 * half + static_cast<int>(lane()) / 4].lse;
        dropout_bits last;
        last.eight = -1;
        ROLLED for (int i = 0; i < OF_ROW; ++i) {
            const int32_t j = key + i / 2 * 8 + i % 2;
            pair_gradient found = {-0.0f, -0.0f, 0, 0};
            if (contains(keys[half], j, 1))
                found = find_pair_gradient(f, terms, s, row + 8 * half, j, weights[i], values[i], lse,
                                           w.offset[m][half], last);
            const bool visible = bits_of(found.p) != bits_of(-0.0f);
            weights[i] = visible ? found.slope * found.p : -0.0f;
            values[i] = found.dx * found.slope;
            sums.any |= visible;
            sums.dx += found.dx, sums.ds += values[i];
            sums.p += found.p, sums.slope_p += weights[i];
        }
        UNROLL for (int i = 0; i < OF_ROW; ++i) {
            p.at[m][i / 2][2 * half + i % 2] = weights[i];
            ds.at[m][i / 2][2 * half + i % 2] = values[i];
        }
    }
}

/* Sums ds as it is rounded. */
template <typename T, int COUNT>
DEVICE void add_rounded(row_sums (&sums)[2], const uint32_t (&ds)[COUNT][4])
{
    UNROLL for (int j = 0; j < COUNT; ++j)
        UNROLL for (int r = 0; r < 4; ++r)
            sums[r % 2].ds_rounded += unpack<T>(ds[j][r], false) + unpack<T>(ds[j][r], true);
}

/* Returns whether lse of one of the warp's rows is large: then no fused operation may subtract it from a score. */
template <typename shape>
DEVICE bool has_large(const query_warp<shape> &w)
{
    return ballot(FULL_WARP, is_large(w.known[static_cast<int>(lane()) % shape::WARP_ROWS].lse.high)) != 0;
}

/* Takes STEP keys from `key` on; k and v point to their rows in shared memory. */
template <typename T, typename shape>
DEVICE void take_keys(query_warp<shape> &w, const forward_params &f, const sequence &s, const score_terms &terms,
                      const lane_offsets &lanes, const uint16_t *k, const uint16_t *v, int32_t key, int first_x)
{
    constexpr int STEP = shape::STEP;
    if (!touches(w.keys.some, key, STEP)) return;
    const bool is_cut = !shape::PLAIN || !contains(w.keys.all, key, STEP);
    const int32_t lane_key = key + static_cast<int>(lane()) % 4 * 2;
    products<shape> p, ds; /* hold s and dp at first */
    multiply_rows<T, shape>(p, ds, w.q, w.dout, k, v, lanes);
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m) {
        if (!is_cut) {
            find_plain_gradients<false, false, shape>(w, m, p, ds, {}, terms.c, lane_key);
            continue;
        }
        const int32_t row = w.first + 16 * m + static_cast<int>(lane()) / 4;
        const interval keys[2] = {keys_of_row(f, s, row), keys_of_row(f, s, row + 8)};
        if (shape::PLAIN && has_large<shape>(w))
            find_plain_gradients<true, true, shape>(w, m, p, ds, keys, terms.c, lane_key);
        else if (shape::PLAIN) find_plain_gradients<true, false, shape>(w, m, p, ds, keys, terms.c, lane_key);
        else find_gradients<shape>(w, m, p, ds, keys, f, s, terms, row, lane_key);
    }
    weights<shape> w_p, w_ds;
    round_weights<T, shape>(w_p, p);
    round_weights<T, shape>(w_ds, ds);
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m) add_rounded<T>(w.rows[m], w_ds.a[m]);
    if (is_cut && !is_tile_finite<T, STEP, shape::DIM>(k)) {
        add_seen<T, shape>(w.ds_k, w_ds, w_p, k + first_x, lanes);
        add_seen<T, shape>(w.p_k, w_p, w_p, k + first_x, lanes);
    } else {
        add_products<T, true, shape>(w.ds_k, w.p_k, w_ds, w_p, k + first_x, lanes);
    }
}

template <typename shape>
INLINE row_sums sum_row(const row_sums &own, bool has_cap)
{
    row_sums out = own;
    out.dx = sum_of_quad(own.dx);
    out.ds_rounded = sum_of_quad(own.ds_rounded);
    if (shape::PLAIN && !shape::SINK) return out;
    out.p = sum_of_quad(own.p);
    out.ds = shape::SINK || !has_cap ? out.dx : sum_of_quad(own.ds);
    out.slope_p = shape::SINK || !has_cap ? out.p : sum_of_quad(own.slope_p);
    if (shape::WAY == PAIR_BY_PAIR) out.any = sum_of_quad(own.any ? 1.0f : 0.0f) != 0;
    return out;
}

/* Holds delta, and how often the sums of p k are added to those of ds k. */
struct correction {
    float delta, factor;
};

template <typename shape>
INLINE correction find_correction(const backward_params &p, const query_row &row, const row_sums &sums)
{
    const float offset = row.d - row.dlse;
    if (p.external_lse) return {row.d, 0};
    if ((shape::PLAIN && !shape::SINK) || (p.forward.softcap == 0 && p.forward.sink == nullptr))
        return {sums.dx + offset, row.dlse - sums.ds_rounded};
    const float delta = fma_rn(offset, sums.p, sums.dx);
    const float rounding = sums.slope_p > 0 ? div_rn(sums.ds_rounded - sums.ds, sums.slope_p) : 0;
    return {delta, row.d - delta - rounding};
}

/* Corrects the sums of row `row`, which is `half` of block m, and writes its terms. */
template <typename shape>
DEVICE void finish_query_row(const backward_params &p, const sequence &s, const cta_place &place, query_warp<shape> &w,
                             const query_row &known, int m, int half, int32_t row)
{
    const row_sums sums = sum_row<shape>(w.rows[m][half], p.forward.softcap > 0);
    const interval keys = keys_of_row(p.forward, s, row);
    const bool is_hidden = known.lse.high == -infinity_f32(); /* or some number would not be finite */
    const bool is_empty = shape::WAY == PAIR_BY_PAIR ? !sums.any
                                                     : keys.first >= keys.last || (!shape::PLAIN && is_hidden);
    correction found = find_correction<shape>(p, known, sums);
    if (is_empty && !p.external_lse) found = {0, 0};
    UNROLL for (int n = 0; n < shape::FEATURES / 8; ++n)
        UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e) {
            float &sum = w.ds_k.at[m][n][e];
            if (is_empty) sum = 0;
            else if (!p.external_lse) sum = fma_rn(found.factor, w.p_k.at[m][n][e], sum);
        }
    if (place.first_x != 0 || lane() % 4 != 0 || row >= s.used_q) return;
    const row_terms terms = terms_of(p, s, place.b, place.head);
    terms.delta[row] = found.delta;
    terms.offset[row] = found.delta - known.dlse;
    row_lse lse = known.lse;
    if (!shape::PLAIN && is_empty && is_hidden && p.forward.sink == nullptr) lse.high = 0; /* fragments subtract it */
    if (!shape::PLAIN || shape::SINK || is_large(lse.high)) return write_row_lse(terms, row, lse);
    terms.lse[row] = known.lse.high; /* nobody asks for the rest */
}

/* Returns the next tile of keys from `key` on that masks of bytes do not hide from all rows, or `last` if there is
 * none. */
template <typename shape>
DEVICE int32_t next_keys(const forward_params &p, const score_rule &rule, const sequence &s, int32_t row, int rows,
                         int32_t key, int32_t last, uint32_t *votes)
{
    const bool has_masks = !shape::PLAIN && (rule.mask != nullptr || rule.block_mask != nullptr);
    for (; has_masks && key < last; key += shape::TILE) {
        const bool hidden = is_hidden<THREADS>(p, rule, s, row, rows, key, smaller(last - key, shape::TILE), votes);
        sync_threads(); /* the votes are free */
        if (!hidden) break;
    }
    return key;
}

/* Sets up the warp's rows before any key. `known` has room for what the warp knows of them. */
template <typename shape>
DEVICE void begin_query_warp(query_warp<shape> &w, const backward_params &p, const sequence &s, const cta_place &place,
                             int32_t first, query_row *known)
{
    const int32_t last = s.used_q - first < shape::WARP_ROWS ? s.used_q : first + shape::WARP_ROWS;
    w.first = first;
    w.keys = keys_of_rows(p.forward, s, first, last);
    w.ds_k = {}, w.p_k = {};
    const int g = static_cast<int>(lane()) / 4;
    ROLLED for (int r = g; r < shape::WARP_ROWS; r += 8) {
        const query_row row = load_query_row<shape::PLAIN && !shape::SINK>(p, s, place.b, place.head, first + r);
        if (lane() % 4 == 0) known[r] = row;
    }
    sync_warp(FULL_WARP);
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const query_row &row = known[16 * m + 8 * half + g];
            w.lse[m][half] = row.lse.high, w.offset[m][half] = row.d - row.dlse;
            if (shape::WAY == BY_FRAGMENTS && row.lse.high == -infinity_f32()) w.lse[m][half] = 0; /* y is -inf, too */
            w.rows[m][half] = {};
        }
    w.known = known;
}

/* ---- rows whose lse is large ------------------------------------------------------------------------------------- */

/* Holds what a lane has of each row: its largest score, then its sum of 2^(y - m). */
template <typename shape>
struct score_numbers {
    float at[shape::BLOCKS][2];
    bool is_sum;
};

/* Adds the score y = c dot. m is the row's maximum, once that is known. */
DEVICE void add_score(float &number, bool is_sum, float dot, float c, float m)
{
    number = is_sum ? number + exp2_f32(find_exponent(dot, c, m)) : max_f32(number, dot * c);
}

/* Adds those of STEP keys. Scores that are not plain take turns, as in find_gradients. */
template <typename T, typename shape>
DEVICE void add_scores(score_numbers<shape> &to, query_warp<shape> &w, const forward_params &f, const sequence &s,
                       const score_terms &terms, const lane_offsets &lanes, const uint16_t *k, int32_t key)
{
    constexpr int OF_ROW = shape::STEP / 4;
    if (!touches(w.keys.some, key, shape::STEP)) return;
    products<shape> dots;
    clear<shape>(dots);
    UNROLL for (int x = 0; x < shape::DIM; x += 16) multiply_features<T, shape>(dots, w.q, k, lanes, x);
    key += static_cast<int>(lane()) % 4 * 2;
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const int r = 16 * m + 8 * half + static_cast<int>(lane()) / 4;
            const interval keys = keys_of_row(f, s, w.first + r);
            const row_lse lse = w.known[r].lse;
            if constexpr (shape::PLAIN) {
                UNROLL for (int i = 0; i < OF_ROW; ++i)
                    if (contains(keys, key + i / 2 * 8 + i % 2, 1))
                        add_score(to.at[m][half], to.is_sum, dots.at[m][i / 2][2 * half + i % 2], terms.c, lse.high);
            } else {
                float own[OF_ROW];
                UNROLL for (int i = 0; i < OF_ROW; ++i) own[i] = dots.at[m][i / 2][2 * half + i % 2];
                ROLLED for (int i = 0; i < OF_ROW; ++i) {
                    const int32_t j = key + i / 2 * 8 + i % 2;
                    if (!contains(keys, j, 1)) continue;
                    const score found = find_score(f, terms.rule, s, w.first + r, j, own[i], lse.reference);
                    if (found.visible) add_score(to.at[m][half], to.is_sum, found.y, terms.c, lse.high);
                }
            }
        }
}

/* Finds lse of the CTA's rows that need their own, in two passes over their keys: m, then the sum of 2^(y - m), the
 * sink in both. Since this is rare, tiles do not overlap, and those that masks of bytes hide are read. k has room for a
 * tile. */
template <typename T, typename shape>
DEVICE void find_own_lse(query_warp<shape> &w, const backward_params &p, const sequence &s, const cta_place &place,
                         const score_terms &terms, const lane_offsets &lanes, query_row *known, interval keys,
                         uint16_t *k)
{
    constexpr int DIM = shape::DIM, TILE = shape::TILE;
    const forward_params &f = p.forward;
    const int g = static_cast<int>(lane()) / 4, t = static_cast<int>(lane()) % 4;
    bool is_own[shape::BLOCKS][2];
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const int r = 16 * m + 8 * half + g;
            float largest = -infinity_f32();
            is_own[m][half] = needs_own_lse(p, known[r].lse);
            if (!shape::PLAIN && is_own[m][half] && f.bias.data != nullptr)
                largest = largest_bias(f, terms.rule, s, w.first + r, t, 4);
            const float sink = f.sink != nullptr ? f.sink[place.head] : -infinity_f32();
            const float reference = reference_of_row(max_of_quad(largest), sink);
            sync_warp(FULL_WARP); /* all four lanes have read the row */
            if (is_own[m][half] && t == 0 && f.bias.data != nullptr) known[r].lse.reference = reference;
        }
    sync_warp(FULL_WARP);
    score_numbers<shape> numbers = {};
    ROLLED for (int pass = 0; pass < 2; ++pass) {
        numbers.is_sum = pass == 1;
        UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
            UNROLL for (int half = 0; half < 2; ++half) numbers.at[m][half] = pass == 1 ? 0 : -infinity_f32();
        for (int32_t key = keys.first / TILE * TILE; key < keys.last; key += TILE) {
            sync_threads(); /* the tile is free */
            load_tile<TILE, DIM, THREADS>(k, f.k, place.b, s.first_k + key, keys.last - key, place.head / f.group,
                                          f.head_dim);
            cp_async_wait_all();
            sync_threads(); /* it is complete */
            ROLLED for (int j = 0; j < TILE; j += shape::STEP)
                add_scores<T, shape>(numbers, w, f, s, terms, lanes, k + j * DIM, key + j);
        }
        UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
            UNROLL for (int half = 0; half < 2; ++half) {
                row_lse &of_row = known[16 * m + 8 * half + g].lse;
                row_lse lse = of_row;
                const float number = numbers.at[m][half], max = max_of_quad(number), sum = sum_of_quad(number);
                float sink = -infinity_f32();
                if (f.sink != nullptr) sink = (f.sink[place.head] - lse.reference) * LOG2_E;
                if (is_own[m][half] && pass == 0) lse.high = max_f32(max, sink);
                if (is_own[m][half] && pass == 1)
                    lse = split_lse(lse.high, sum + exp2_f32(sink - lse.high), lse.reference);
                sync_warp(FULL_WARP); /* all four lanes have read the row */
                if (t == 0) of_row = lse;
                w.lse[m][half] = lse.high;
            }
        sync_warp(FULL_WARP);
    }
    sync_threads(); /* the tile is free */
}

/* Writes dq from its sums, through shared memory of the warp. */
template <typename shape>
DEVICE void end_query_warp(query_warp<shape> &w, const backward_params &p, const sequence &s, const cta_place &place,
                           const query_row *known, float *staged)
{
    const int g = static_cast<int>(lane()) / 4;
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const int r = 16 * m + 8 * half + g;
            finish_query_row<shape>(p, s, place, w, known[r], m, half, w.first + r);
        }
    stage_sums<shape>(staged, w.ds_k, p.forward.softmax_scale);
    sync_warp(FULL_WARP);
    store_sums<shape>(staged, p.dq, place.b, s.first_q + w.first, s.seqlen_q - w.first, s.used_q - w.first, place.head,
                      place.first_x, p.forward.head_dim);
}

/* Names the CTA's sequence, head and first query row. Returns whether it has rows. */
template <typename shape>
DEVICE bool find_queries(const forward_params &f, cta_place &place, sequence &s, int32_t &first)
{
    if (!find_place<shape>(f.batch, f.num_heads_q, place)) return false;
    const int64_t row = (grid_x() / shape::PARTS - 1 - place.tile) * shape::OWN;
    s = find_sequence(f, place.b);
    first = static_cast<int32_t>(row);
    return row < s.seqlen_q && is_ours(f, s);
}

/* Holds the CTA's shared memory: its own rows (q and dout, or k and v), two stages of the other side's, terms of query
 * rows, votes, and masks and biases of the stages. */
struct shared_rows {
    uint16_t *own, *own_v, *others;
    float *terms;
    uint32_t *votes;
    unsigned char *scores;
};

template <typename shape>
INLINE shared_rows find_shared_rows(unsigned char *shared)
{
    constexpr int ROW = shape::DIM * sizeof(uint16_t);
    const auto parts = cut_shared(shared, shape::OWN * ROW, shape::OWN * ROW, 4 * shape::TILE * ROW,
                                  shape::TERMS * sizeof(float), shape::VOTES * sizeof(uint32_t), SHARED_REST);
    return {reinterpret_cast<uint16_t *>(parts.at[0]), reinterpret_cast<uint16_t *>(parts.at[1]),
            reinterpret_cast<uint16_t *>(parts.at[2]), reinterpret_cast<float *>(parts.at[3]),
            reinterpret_cast<uint32_t *>(parts.at[4]), parts.at[5]};
}

/* Returns where results are staged: in the place of the tiles, once these are free. */
template <typename shape>
DEVICE float *find_staged(unsigned char *shared)
{
    static_assert(shape::OWN * PITCH<shape> * sizeof(float) <= shape::NUMBERS * sizeof(uint16_t), "terms are kept");
    return reinterpret_cast<float *>(join_shared(shared));
}

/* Finds dq of OWN rows from `tile_row` on, of plain scores or pair by pair. */
template <typename T, typename shape>
DEVICE void find_dq(const backward_params &p, unsigned char *shared, const cta_place &place, const sequence &s,
                    int32_t tile_row)
{
    constexpr int DIM = shape::DIM, TILE = shape::TILE, OWN = shape::OWN;
    const forward_params &f = p.forward;
    const shared_rows at = find_shared_rows<shape>(shared);
    uint16_t *const q = at.own, *const dout = at.own_v, *const stages = at.others; /* k and v, k and v */
    query_row *const known = reinterpret_cast<query_row *>(at.terms);
    uint32_t *const votes = at.votes, *const large_votes = votes + WARPS;

    const int64_t b = place.b, head = place.head, head_kv = head / f.group;
    const int rows = smaller(s.used_q - tile_row, OWN), warp_row = static_cast<int>(warp()) * shape::WARP_ROWS;
    const interval keys = keys_of_rows(f, s, tile_row, tile_row + rows).some;
    const score_terms terms = find_score_terms<shape::PLAIN>(f, b, head);
    const lane_offsets lanes = find_lane_offsets<DIM>();

    const auto load = [&](int stage, int32_t key) {
        uint16_t *const k = stages + stage * 2 * TILE * DIM;
        load_tile<TILE, DIM, THREADS>(k, f.k, b, s.first_k + key, keys.last - key, head_kv, f.head_dim);
        load_tile<TILE, DIM, THREADS>(k + TILE * DIM, f.v, b, s.first_k + key, keys.last - key, head_kv, f.head_dim_v);
    };
    /* Tiles begin at multiples of TILE so that a row's sums do not depend on the rows beside it. */
    int32_t key = next_keys<shape>(f, terms.rule, s, tile_row, rows, keys.first / TILE * TILE, keys.last, votes);
    if (key < keys.last) {
        load_tile<OWN, DIM, THREADS>(q, f.q, b, s.first_q + tile_row, rows, head, f.head_dim);
        load_tile<OWN, DIM, THREADS>(dout, p.dout, b, s.first_q + tile_row, rows, head, f.head_dim_v);
        load(0, key);
    }
    query_warp<shape> w;
    w.q.rows = q + warp_row * DIM, w.dout.rows = dout + warp_row * DIM;
    begin_query_warp<shape>(w, p, s, place, tile_row + warp_row, known + warp_row);
    const bool is_voted = has_large<shape>(w);
    if (lane() == 0) large_votes[warp()] = is_voted;
    cp_async_wait_all();
    sync_threads(); /* the votes are there; q, dout and the first stage are complete */
    uint32_t is_asked = 0;
    for (int n = 0; n < WARPS; ++n) is_asked |= large_votes[n];
    if (is_asked != 0 && !p.external_lse && key < keys.last)
        find_own_lse<T, shape>(w, p, s, place, terms, lanes, known + warp_row, keys, stages + 2 * TILE * DIM);
    if (is_asked != 0 && has_large<shape>(w)) w.keys.all = {};
    for (int stage = 0; key < keys.last; stage ^= 1) {
        const int32_t next = next_keys<shape>(f, terms.rule, s, tile_row, rows, key + TILE, keys.last, votes);
        if (next < keys.last) load(stage ^ 1, next);
        const uint16_t *const k = stages + stage * 2 * TILE * DIM, *const v = k + TILE * DIM;
        ROLLED for (int j = 0; j < TILE; j += shape::STEP)
            take_keys<T, shape>(w, f, s, terms, lanes, k + j * DIM, v + j * DIM, key + j, place.first_x);
        key = next;
        cp_async_wait_all();
        sync_threads(); /* the other stage is complete, this one is free */
    }
    end_query_warp<shape>(w, p, s, place, known + warp_row, find_staged<shape>(shared) + warp_row * PITCH<shape>);
}

template <typename T, typename shape>
KERNEL(THREADS, 2) void plain_dq_kernel(const backward_params p)
{
    DYNAMIC_SHARED(shared, 16);
    cta_place place;
    sequence s;
    int32_t first;
    if (find_queries<shape>(p.forward, place, s, first)) find_dq<T, shape>(p, shared, place, s, first);
}

/* ---- dq by fragments --------------------------------------------------------------------------------------------- */

/* Says what a CTA of the dq kernel works on, where masks and biases may lie beside the tiles. */
template <typename shape>
struct query_cta {
    using stages = score_stages<shape::OWN, shape::TILE, 1>;
    cta_place place;
    sequence s;
    int32_t first; /* its first row */
    int rows;
    interval keys; /* that some of its rows see */
    gradient_terms terms;
    lane_offsets lanes;
    uint16_t *q, *dout, *tiles; /* tiles: k and v, k and v */
    query_row *known;
    uint32_t *votes; /* on what masks show of the tile of either stage; on blocks; others */
    unsigned char *scores; /* masks and biases of the stages */
    bool has_stages;
};

/* Says where masks and biases of a query head are, and in shared memory those of a stage. It is found again for each
 * tile, since it would take more registers than time. */
template <typename cta, unsigned SCORES>
INLINE typename cta::stages scores_of_head(const cta &c, const forward_params &f, int64_t head, int stage)
{
    using stages = typename cta::stages;
    score_rule rule = {};
    if ((SCORES & HAS_MASKS) != 0 && f.mask.data != nullptr)
        rule.mask = reinterpret_cast<const unsigned char *>(scores_of(f.mask, c.place.b, head, 1));
    if ((SCORES & HAS_BIAS) != 0 && f.bias.data != nullptr)
        rule.bias = scores_of(f.bias, c.place.b, head, f.bias.dtype == ATTEST_FP32 ? 4 : 2);
    stages out = find_score_stages<stages>(f, rule, c.scores, c.has_stages);
    const int of_bias = f.bias.dtype == ATTEST_FP32 ? stages::wide_bias::SIZE : stages::narrow_bias::SIZE;
    const int of_stage = (out.has_mask ? stages::MASK_BYTES : 0) + (out.has_bias ? of_bias : 0);
    out.mask += stage * of_stage, out.bias += stage * of_stage;
    return out;
}

template <typename shape>
DEVICE bool has_block_mask(const forward_params &f)
{
    return (shape::SCORES & HAS_MASKS) != 0 && f.block_mask.data != nullptr;
}

/* Returns whether there are masks of bytes, in stages. */
template <typename shape, typename cta>
DEVICE bool has_masks(const cta &c, const forward_params &f)
{
    return (shape::SCORES & HAS_MASKS) != 0 && c.has_stages && f.mask.data != nullptr;
}

template <typename shape>
DEVICE bool find_query_cta(query_cta<shape> &c, const backward_params &p, unsigned char *shared, bool has_stages)
{
    const forward_params &f = p.forward;
    if (!find_queries<shape>(f, c.place, c.s, c.first)) return false;
    c.rows = smaller(c.s.used_q - c.first, shape::OWN);
    c.keys = keys_of_rows(f, c.s, c.first, c.first + c.rows).some;
    c.terms = find_gradient_terms<shape::SCORES>(f, c.place.b, c.place.head);
    c.lanes = find_lane_offsets<shape::DIM>();
    const shared_rows at = find_shared_rows<shape>(shared);
    c.q = at.own, c.dout = at.own_v, c.tiles = at.others;
    c.known = reinterpret_cast<query_row *>(at.terms);
    c.votes = at.votes, c.scores = at.scores, c.has_stages = has_stages;
    return true;
}

/* Loads the keys from `key` on, and what masks and biases say of them. */
template <typename shape>
DEVICE void load_keys(const query_cta<shape> &c, const backward_params &p, int stage, int32_t key)
{
    constexpr int DIM = shape::DIM, TILE = shape::TILE;
    const forward_params &f = p.forward;
    const int64_t head_kv = c.place.head / f.group;
    const int count = c.keys.last - key;
    uint16_t *const k = c.tiles + stage * 2 * TILE * DIM;
    load_tile<TILE, DIM, THREADS>(k, f.k, c.place.b, c.s.first_k + key, count, head_kv, f.head_dim);
    load_tile<TILE, DIM, THREADS>(k + TILE * DIM, f.v, c.place.b, c.s.first_k + key, count, head_kv, f.head_dim_v);
    const auto to = scores_of_head<query_cta<shape>, shape::SCORES>(c, f, c.place.head, stage);
    load_masks<THREADS>(to, 0, c.first, c.rows, key, count);
    load_biases<THREADS>(to, f.bias.dtype, c.first, c.rows, key, count);
}

/* Joins a bit of each warp; `words` has one for each. There is a barrier in between. */
DEVICE uint32_t join_votes(const uint32_t *words)
{
    uint32_t out = 0;
    for (int n = 0; n < WARPS; ++n) out |= words[n];
    return out;
}

DEVICE void vote(uint32_t *words, bool asks)
{
    const bool of_warp = ballot(FULL_WARP, asks) != 0;
    if (lane() == 0) words[warp()] = of_warp;
}

/* Names a tile of the other side: whether the warp's rows see some of it, as far as the block mask says, and whether a
 * block cuts it. */
struct other_tile {
    int32_t first;
    bool is_seen, is_blocked;
};

/* Returns the next tile of keys from `key` on that the block mask shows to a row. `known` is what is known of it. */
template <typename shape>
INLINE other_tile next_keys(const query_cta<shape> &c, const forward_params &f, seen_tiles &known, int32_t key)
{
    constexpr int TILE = shape::TILE;
    const bool has_blocks = has_block_mask<shape>(f);
    for (; has_blocks && key < c.keys.last; key += TILE) {
        const int32_t tile = key / TILE, warp_row = static_cast<int>(warp()) * shape::WARP_ROWS;
        if (tile - known.first >= 32) {
            uint32_t *const words = c.votes + 2 * WARPS;
            known = look_at_blocks<TILE>(f, c.terms.rule, c.first + warp_row,
                                         smaller(c.rows - warp_row, shape::WARP_ROWS), tile, c.keys.last);
            sync_threads(); /* the words before are read */
            if (lane() == 0) words[warp()] = known.some;
            sync_threads();
            known.some_of_cta = join_votes(words);
        }
        const int bit = tile - known.first;
        const bool is_seen = (known.some >> bit & 1) != 0, is_blocked = (known.all >> bit & 1) == 0;
        if ((known.some_of_cta >> bit & 1) != 0) return {key, is_seen, is_blocked};
    }
    return {key, true, false};
}

/* Takes the tile of keys from `key` on. */
template <typename T, typename shape>
DEVICE void take_key_fragments(query_warp<shape> &w, const query_cta<shape> &c, const forward_params &f, int stage,
                               const other_tile &tile)
{
    constexpr int TILE = shape::TILE;
    if (!tile.is_seen || !touches(w.keys.some, tile.first, TILE)) return;
    const auto scores = scores_of_head<query_cta<shape>, shape::SCORES>(c, f, c.place.head, stage);
    const fragment_cut cut = {!contains(w.keys.all, tile.first, TILE), tile.is_blocked};
    const uint16_t *const k = c.tiles + stage * 2 * TILE * shape::DIM;
    const bool has_cap = (shape::SCORES & HAS_CAP) != 0 && f.softcap > 0, has_p = has_cap || f.sink != nullptr;
    products<shape> p, ds; /* hold s and dp at first */
    multiply_rows<T, shape>(p, ds, w.q, w.dout, k, k + TILE * shape::DIM, c.lanes);
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int j = 0; j < shape::STEP / 16; ++j) {
            const int32_t row = w.first + 16 * m;
            const chunk_place at = {row, tile.first + 16 * j, row - c.first, 16 * j};
            gradient_chunk chunk = chunk_of<shape>(p, ds, m, j);
            find_exponents<false, shape::SCORES>(chunk, scores, f, c.s, c.terms, at, cut,
                                                 [&](int, int e) { return w.lse[m][e / 2]; });
            find_weights<false, shape::SCORES>(chunk, f, c.terms, at, [&](int, int e) { return w.offset[m][e / 2]; });
            for_pairs([&](int n, int e) { w.rows[m][e / 2].dx += chunk.dx[n][e]; });
            if (has_p) for_pairs([&](int n, int e) { w.rows[m][e / 2].p += chunk.weight[n][e]; });
            if (has_cap)
                for_pairs([&](int n, int e) {
                    chunk.dx[n][e] *= chunk.slope[n][e], chunk.weight[n][e] *= chunk.slope[n][e];
                    w.rows[m][e / 2].ds += chunk.dx[n][e], w.rows[m][e / 2].slope_p += chunk.weight[n][e];
                });
            put_chunk<shape>(p, ds, m, j, chunk.weight, chunk.dx);
        }
    weights<shape> w_p, w_ds;
    round_weights<T, shape>(w_p, p);
    round_weights<T, shape>(w_ds, ds);
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m) add_rounded<T>(w.rows[m], w_ds.a[m]);
    add_products<T, true, shape>(w.ds_k, w.p_k, w_ds, w_p, k + c.place.first_x, c.lanes);
}

/* Each thread looks at the masks that it has loaded itself, once they are there. */
template <typename shape, typename cta>
DEVICE void vote_on_masks(const cta &c, const forward_params &f, int64_t head, int stage)
{
    const auto scores = scores_of_head<cta, shape::SCORES>(c, f, head, stage);
    vote(c.votes + stage * WARPS, has_own_visible<THREADS>(scores, 0));
}

/* Walks over the keys, from a first tile on that is loaded. */
template <typename T, typename shape>
DEVICE void walk_keys(query_warp<shape> &w, const query_cta<shape> &c, const backward_params &p, other_tile tile,
                      seen_tiles &known)
{
    const forward_params &f = p.forward;
    for (int stage = 0; tile.first < c.keys.last; stage ^= 1) {
        const other_tile next = next_keys<shape>(c, f, known, tile.first + shape::TILE);
        if (next.first < c.keys.last) load_keys<shape>(c, p, stage ^ 1, next.first);
        if (!has_masks<shape>(c, f) || join_votes(c.votes + stage * WARPS) != 0)
            take_key_fragments<T, shape>(w, c, f, stage, tile);
        tile = next;
        cp_async_wait_all();
        if (has_masks<shape>(c, f) && tile.first < c.keys.last) vote_on_masks<shape>(c, f, c.place.head, stage ^ 1);
        sync_threads(); /* the other stage is complete, this one is free */
    }
}

/* Returns whether one of the lane's sums x and y of rows that are in use is no finite number. The warp's rows, or keys,
 * begin with `first`. */
template <typename shape>
DEVICE bool has_infinite(const feature_sums<shape> &x, const feature_sums<shape> &y, int32_t first, int32_t used)
{
    bool out = false;
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            float zero = 0;
            UNROLL for (int n = 0; n < shape::FEATURES / 8; ++n)
                UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e)
                    zero = fma_rn(x.at[m][n][e], 0, fma_rn(y.at[m][n][e], 0, zero));
            out |= zero != 0 && first + 16 * m + 8 * half + static_cast<int>(lane()) / 4 < used;
        }
    return out;
}

/* Finds dq of the CTA's rows pair by pair. All kernels of a width share it. */
template <typename T, int DIM>
DEVICE_CALLED void find_dq_exactly(const backward_params &p, unsigned char *shared)
{
    using shape = backward_shape<DIM, BY_FRAGMENTS, false>;
    using exact = backward_shape<DIM, PAIR_BY_PAIR, false>;
    static_assert(exact::SHARED_BYTES <= shape::SHARED_BYTES, "it has the room that fragments had");
    cta_place place;
    sequence s;
    int32_t first;
    if (!find_queries<shape>(p.forward, place, s, first)) return;
    ROLLED for (int32_t row = first; row < first + shape::OWN && row < s.seqlen_q; row += exact::OWN) {
        sync_threads(); /* shared memory is free */
        find_dq<T, exact>(p, shared, place, s, row);
    }
}

/* Returns whether a row of the warp is not for fragments: whether its lse is large, or does not say that delta, which
 * was given, is of no key, or whether something that is given for it is no number, as may be where it sees no key. */
template <typename shape>
DEVICE bool has_special_row(const query_warp<shape> &w, const backward_params &p)
{
    const query_row &row = w.known[static_cast<int>(lane()) % shape::WARP_ROWS];
    const float lse = row.lse.high, offset = row.d - row.dlse;
    return is_large(lse) || lse != lse || offset - offset != 0 || (lse == -infinity_f32() && p.delta.data != nullptr);
}

/* Takes fragments first, then pairs, where a number is not finite or fragments cannot be right. */
template <typename T, typename shape>
KERNEL(THREADS, 2) void dq_kernel(GRID_CONSTANT const backward_params p, bool has_stages)
{
    DYNAMIC_SHARED(shared, 16);
    const forward_params &f = p.forward;
    query_cta<shape> c;
    if (!find_query_cta<shape>(c, p, shared, has_stages)) return;
    const int warp_row = static_cast<int>(warp()) * shape::WARP_ROWS;
    seen_tiles known = {-32, 0, 0, 0};
    const other_tile first = next_keys<shape>(c, f, known, c.keys.first / shape::TILE * shape::TILE);
    if (first.first < c.keys.last) {
        load_tile<shape::OWN, shape::DIM, THREADS>(c.q, f.q, c.place.b, c.s.first_q + c.first, c.rows, c.place.head,
                                                   f.head_dim);
        load_tile<shape::OWN, shape::DIM, THREADS>(c.dout, p.dout, c.place.b, c.s.first_q + c.first, c.rows,
                                                   c.place.head, f.head_dim_v);
        load_keys<shape>(c, p, 0, first.first);
    }
    query_warp<shape> w;
    w.q.rows = c.q + warp_row * shape::DIM, w.dout.rows = c.dout + warp_row * shape::DIM;
    begin_query_warp<shape>(w, p, c.s, c.place, c.first + warp_row, c.known + warp_row);
    cp_async_wait_all();
    if (has_masks<shape>(c, f) && first.first < c.keys.last) vote_on_masks<shape>(c, f, c.place.head, 0);
    vote(c.votes + 3 * WARPS, has_special_row<shape>(w, p));
    sync_threads(); /* the votes are there; q, dout and the first stage are complete */
    bool is_exact = join_votes(c.votes + 3 * WARPS) != 0 ||
                    !fits_fragments(f, c.s, c.first, c.rows, c.keys, has_stages);
    if (!is_exact) {
        walk_keys<T, shape>(w, c, p, first, known);
        vote(c.votes, has_infinite<shape>(w.ds_k, w.p_k, w.first, c.s.used_q));
        sync_threads();
        is_exact = join_votes(c.votes) != 0;
    }
    if (is_exact) return find_dq_exactly<T, shape::DIM>(p, shared);
    float *const staged = find_staged<shape>(shared) + warp_row * PITCH<shape>;
    end_query_warp<shape>(w, p, c.s, c.place, c.known + warp_row, staged);
}

/* ---- dk, dv ------------------------------------------------------------------------------------------------------ */

/* Holds the state of a warp of the kernel for dk and dv. */
template <typename shape>
struct key_warp {
    own_rows<shape> k, v;
    feature_sums<shape> dk, dv;
    interval some, all; /* query rows that see some, or all, of its keys; `all` is empty once an lse was large:
                           then rows are asked one by one */
    int32_t first;      /* its first key */
};

/* Points to query rows in shared memory, from `first` on. */
struct query_rows {
    const uint16_t *q, *dout;
    const float *lse, *offset;
    const float *low, *reference; /* of lse: where it has two parts, where scores are not plain */
    int32_t first;
};

/* Turns s and dp of block m into p and ds. CUT: not every key is seen by every row. SPLIT: lse may have two parts. */
template <bool CUT, bool SPLIT, typename shape>
DEVICE void find_plain_gradients(int m, products<shape> &p, products<shape> &ds, const query_rows &rows,
                                 const interval (&seen_by)[2], float c)
{
    UNROLL for (int n = 0; n < shape::STEP / 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e) {
            const int at = 8 * n + static_cast<int>(lane()) % 4 * 2 + e % 2;
            const bool visible = !CUT || contains(seen_by[e / 2], rows.first + at, 1);
            float &weight = p.at[m][n][e], &dx = ds.at[m][n][e];
            float y = fma_rn(weight, c, -rows.lse[at]);
            if (SPLIT && visible && is_large(rows.lse[at])) y = find_exponent(weight, c, rows.lse[at]) - rows.low[at];
            weight = visible ? exp2_f32(y) : -0.0f;
            dx = visible ? weight * (dx - rows.offset[at]) : 0;
        }
}

/* Does the same for any scores, of keys from `key` on; p lacks what dropout drops. */
template <typename shape>
DEVICE void find_gradients(int m, products<shape> &p, products<shape> &ds, const query_rows &rows,
                           const interval (&seen_by)[2], const forward_params &f, const sequence &s,
                           const score_terms &terms, int32_t key)
{
    constexpr int COUNT = shape::STEP / 2;
    float weights[COUNT], values[COUNT];
    UNROLL for (int i = 0; i < COUNT; ++i) weights[i] = p.at[m][i / 4][i % 4], values[i] = ds.at[m][i / 4][i % 4];
    ROLLED for (int i = 0; i < COUNT; ++i) {
        const int at = i / 4 * 8 + static_cast<int>(lane()) % 4 * 2 + i % 2, half = i % 4 / 2;
        pair_gradient found = {-0.0f, -0.0f, 0, 0};
        dropout_bits last;
        last.eight = -1;
        if (contains(half == 0 ? seen_by[0] : seen_by[1], rows.first + at, 1))
            found = find_pair_gradient(f, terms, s, rows.first + at, key + 8 * half, weights[i], values[i],
                                       {rows.lse[at], rows.low[at], rows.reference[at]}, rows.offset[at], last);
        weights[i] = found.kept;
        values[i] = found.dx * found.slope;
    }
    UNROLL for (int i = 0; i < COUNT; ++i) p.at[m][i / 4][i % 4] = weights[i], ds.at[m][i / 4][i % 4] = values[i];
}

/* Returns whether lse of one of ROWS rows is large. */
template <int ROWS>
DEVICE bool has_large(const float *lse)
{
    bool out = false;
    UNROLL for (int r = 0; r < ROWS; r += 32) out |= is_large(lse[(r + static_cast<int>(lane())) % ROWS]);
    return ballot(FULL_WARP, out) != 0;
}

/* Takes STEP query rows of one head. */
template <typename T, typename shape>
DEVICE void take_queries(key_warp<shape> &w, const forward_params &f, const sequence &s, const score_terms &terms,
                         const lane_offsets &lanes, const query_rows &rows, int first_x)
{
    constexpr int STEP = shape::STEP;
    if (!touches(w.some, rows.first, STEP)) return;
    const bool is_cut = !shape::PLAIN || !contains(w.all, rows.first, STEP);
    products<shape> p, ds; /* hold s and dp at first */
    multiply_rows<T, shape>(p, ds, w.k, w.v, rows.q, rows.dout, lanes);
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m) {
        if (!is_cut) {
            find_plain_gradients<false, false, shape>(m, p, ds, rows, {}, terms.c);
            continue;
        }
        const int32_t key = w.first + 16 * m + static_cast<int>(lane()) / 4;
        const interval seen_by[2] = {rows_of_key(f, s, key), rows_of_key(f, s, key + 8)};
        if (shape::PLAIN && has_large<STEP>(rows.lse))
            find_plain_gradients<true, true, shape>(m, p, ds, rows, seen_by, terms.c);
        else if (shape::PLAIN) find_plain_gradients<true, false, shape>(m, p, ds, rows, seen_by, terms.c);
        else find_gradients<shape>(m, p, ds, rows, seen_by, f, s, terms, key);
    }
    weights<shape> w_p, w_ds;
    round_weights<T, shape>(w_p, p);
    round_weights<T, shape>(w_ds, ds);
    const uint16_t *const q = rows.q + first_x, *const dout = rows.dout + first_x;
    if (is_cut && !is_tile_finite<T, STEP, shape::DIM>(rows.dout))
        add_seen<T, shape>(w.dv, w_p, w_p, dout, lanes);
    else add_products<T, false, shape>(w.dv, w.dv, w_p, w_p, dout, lanes);
    if (is_cut && !is_tile_finite<T, STEP, shape::DIM>(rows.q))
        add_seen<T, shape>(w.dk, w_ds, w_p, q, lanes);
    else add_products<T, false, shape>(w.dk, w.dk, w_ds, w_ds, q, lanes);
}

/* Names a tile of query rows of one head of the group; head == group means that there are no more. */
struct query_tile {
    int32_t head, row;
    bool is_seen, is_blocked; /* as in other_tile */
};

/* Returns the first tile from `at` on that the masks do not hide from all of `keys` keys. */
template <typename shape>
INLINE query_tile next_queries(const forward_params &p, const sequence &s, const cta_place &place, interval rows,
                               int32_t key, int keys, query_tile at, uint32_t *votes)
{
    for (;; at.row += shape::TILE) {
        if (at.row >= rows.last) at = {at.head + 1, rows.first / shape::TILE * shape::TILE, true, false};
        if (shape::PLAIN || at.head >= p.group || (p.mask.data == nullptr && p.block_mask.data == nullptr)) return at;
        const score_rule rule = find_score_rule(p, place.b, place.head * p.group + at.head);
        const int count = smaller(rows.last - at.row, shape::TILE);
        const bool hidden = is_hidden<THREADS>(p, rule, s, at.row, count, key, keys, votes);
        sync_threads(); /* the votes are free */
        if (!hidden) return at;
    }
}

template <typename shape>
DEVICE void begin_key_warp(key_warp<shape> &w, const forward_params &f, const sequence &s, int32_t first)
{
    const int32_t last = s.used_k - first < shape::WARP_ROWS ? s.used_k : first + shape::WARP_ROWS;
    w.first = first;
    w.dk = {}, w.dv = {};
    w.some = rows_of_keys(f, s, first, last);
    w.all = {rows_of_key(f, s, last - 1).first, rows_of_key(f, s, first).last};
}

/* Writes dk and dv from their sums, through shared memory of the warp. */
template <typename shape>
DEVICE void end_key_warp(const key_warp<shape> &w, const backward_params &p, const sequence &s, const cta_place &place,
                         float *staged)
{
    const int count = s.seqlen_k - w.first, used = s.used_k - w.first;
    stage_sums<shape>(staged, w.dk, p.forward.softmax_scale);
    sync_warp(FULL_WARP);
    store_sums<shape>(staged, p.dk, place.b, s.first_k + w.first, count, used, place.head, place.first_x,
                      p.forward.head_dim);
    sync_warp(FULL_WARP);
    stage_sums<shape>(staged, w.dv, p.forward.dropout_multiplier);
    sync_warp(FULL_WARP);
    store_sums<shape>(staged, p.dv, place.b, s.first_k + w.first, count, used, place.head, place.first_x,
                      p.forward.head_dim_v);
}

/* Keeps the warp's rows of k and v in registers, once they are there. */
template <typename shape>
DEVICE void make_resident(key_warp<shape> &w, const lane_offsets &lanes)
{
    cp_async_wait_all();
    sync_threads(); /* k and v are complete */
    make_resident<shape>(w.k, lanes);
    make_resident<shape>(w.v, lanes);
}

/* Gives every lse of TILE rows from `row` on its low part, as one of them is large. All warps call it. */
template <int TILE>
DEVICE void load_low_parts(float *low, const float *lse, const row_terms &terms, int32_t row)
{
    const int n = static_cast<int>(thread_x());
    if (n < TILE) low[n] = is_large(lse[n]) ? terms.lse_low[row + n] : 0;
}

/* Names the CTA's sequence, KV head and first key. Returns whether it has keys. */
template <typename shape>
DEVICE bool find_keys(const forward_params &f, cta_place &place, sequence &s, int32_t &first)
{
    if (!find_place<shape>(f.batch, f.num_heads_q / f.group, place)) return false;
    const int64_t key = place.tile * shape::OWN;
    s = find_sequence(f, place.b);
    first = static_cast<int32_t>(key);
    return key < s.seqlen_k && is_ours(f, s);
}

/* Finds dk and dv of OWN keys from `tile_key` on, of plain scores or pair by pair. */
template <typename T, typename shape>
DEVICE void find_dkv(const backward_params &p, unsigned char *shared, const cta_place &place, const sequence &s,
                     int32_t tile_key)
{
    constexpr int DIM = shape::DIM, TILE = shape::TILE, OWN = shape::OWN;
    const forward_params &f = p.forward;
    const int64_t b = place.b;
    const shared_rows of_cta = find_shared_rows<shape>(shared);
    uint16_t *const k = of_cta.own, *const v = of_cta.own_v, *const stages = of_cta.others; /* q and dout, q and dout */
    float *const stage_terms = of_cta.terms;
    uint32_t *const votes = of_cta.votes;

    const int keys = smaller(s.used_k - tile_key, OWN), warp_key = static_cast<int>(warp()) * shape::WARP_ROWS;
    const interval rows = rows_of_keys(f, s, tile_key, tile_key + keys);
    const lane_offsets lanes = find_lane_offsets<DIM>();

    const auto load = [&](int stage, query_tile at) {
        const int64_t head = place.head * f.group + at.head;
        const int count = smaller(rows.last - at.row, TILE), n = static_cast<int>(thread_x()), r = n % TILE;
        uint16_t *const q = stages + stage * 2 * TILE * DIM;
        load_tile<TILE, DIM, THREADS>(q, f.q, b, s.first_q + at.row, count, head, f.head_dim);
        load_tile<TILE, DIM, THREADS>(q + TILE * DIM, p.dout, b, s.first_q + at.row, count, head, f.head_dim_v);
        const row_terms from = terms_of(p, s, b, head);
        const int64_t row = r < count ? at.row + r : 0;
        float *const to = &stage_terms[stage * shape::STAGE_TERMS + n];
        if (n < 2 * TILE) cp_async_4(to, (n < TILE ? from.lse : from.offset) + row, r < count);
        if (!shape::PLAIN && n < 2 * TILE)
            cp_async_4(to + 2 * TILE, (n < TILE ? from.lse_low : from.reference) + row, r < count);
    };
    query_tile at = {f.group, 0, true, false};
    if (rows.first < rows.last)
        at = next_queries<shape>(f, s, place, rows, tile_key, keys, {0, rows.first / TILE * TILE, true, false},
                                 votes);
    if (at.head < f.group) {
        load_tile<OWN, DIM, THREADS>(k, f.k, b, s.first_k + tile_key, keys, place.head, f.head_dim);
        load_tile<OWN, DIM, THREADS>(v, f.v, b, s.first_k + tile_key, keys, place.head, f.head_dim_v);
        load(0, at);
    }
    key_warp<shape> w;
    w.k.rows = k + warp_key * DIM, w.v.rows = v + warp_key * DIM;
    begin_key_warp<shape>(w, f, s, tile_key + warp_key);
    if (shape::RESIDENT && at.head < f.group) make_resident(w, lanes);
    for (int stage = 0; at.head < f.group; stage ^= 1) {
        const query_tile next = next_queries<shape>(f, s, place, rows, tile_key, keys,
                                                    {at.head, at.row + TILE, true, false}, votes);
        cp_async_wait_all();
        sync_threads(); /* this stage is complete, the other one is free */
        if (next.head < f.group) load(stage ^ 1, next);
        const uint16_t *const q = stages + stage * 2 * TILE * DIM, *const dout = q + TILE * DIM;
        const float *const lse = stage_terms + stage * shape::STAGE_TERMS, *const offset = lse + TILE;
        float *const low = stage_terms + stage * shape::STAGE_TERMS + 2 * TILE;
        if (shape::PLAIN && has_large<TILE>(lse)) { /* in every warp */
            load_low_parts<TILE>(low, lse, terms_of(p, s, b, place.head * f.group + at.head), at.row);
            w.all = {};
            sync_threads(); /* they are there */
        }
        const score_terms terms = find_score_terms<shape::PLAIN>(f, b, place.head * f.group + at.head);
        ROLLED for (int r = 0; r < TILE; r += shape::STEP)
            take_queries<T, shape>(w, f, s, terms, lanes,
                                   {q + r * DIM, dout + r * DIM, lse + r, offset + r, low + r, low + TILE + r,
                                    at.row + r}, place.first_x);
        at = next;
    }
    sync_threads(); /* the tiles are free */
    end_key_warp<shape>(w, p, s, place, find_staged<shape>(shared) + warp_key * PITCH<shape>);
}

template <typename T, typename shape>
KERNEL(THREADS, 2) void plain_dkv_kernel(const backward_params p)
{
    DYNAMIC_SHARED(shared, 16);
    cta_place place;
    sequence s;
    int32_t first;
    if (find_keys<shape>(p.forward, place, s, first)) find_dkv<T, shape>(p, shared, place, s, first);
}

/* ---- dk, dv by fragments ----------------------------------------------------------------------------------------- */

/* Says what a CTA of the kernel for dk and dv works on, where masks and biases may lie beside the tiles. */
template <typename shape>
struct key_cta {
    using stages = score_stages<shape::TILE, shape::OWN, 1>;
    cta_place place; /* of the KV head */
    sequence s;
    int32_t first; /* its first key */
    int keys;
    interval rows; /* that some of its keys are seen by */
    lane_offsets lanes;
    uint16_t *k, *v, *tiles; /* tiles: q and dout, q and dout */
    float *terms;            /* of rows, for each stage: lse, offset, reference */
    uint32_t *votes;
    unsigned char *scores; /* masks and biases of the stages */
    bool has_stages;
};

template <typename shape>
DEVICE bool find_key_cta(key_cta<shape> &c, const backward_params &p, unsigned char *shared, bool has_stages)
{
    const forward_params &f = p.forward;
    if (!find_keys<shape>(f, c.place, c.s, c.first)) return false;
    c.keys = smaller(c.s.used_k - c.first, shape::OWN);
    c.rows = rows_of_keys(f, c.s, c.first, c.first + c.keys);
    c.lanes = find_lane_offsets<shape::DIM>();
    const shared_rows at = find_shared_rows<shape>(shared);
    c.k = at.own, c.v = at.own_v, c.tiles = at.others, c.terms = at.terms;
    c.votes = at.votes, c.scores = at.scores, c.has_stages = has_stages;
    return true;
}

/* Loads a tile of query rows and their terms, and what masks and biases say of them. */
template <typename shape>
DEVICE void load_queries(const key_cta<shape> &c, const backward_params &p, int stage, query_tile at)
{
    constexpr int DIM = shape::DIM, TILE = shape::TILE;
    const forward_params &f = p.forward;
    const int64_t head = c.place.head * f.group + at.head, b = c.place.b;
    const int count = smaller(c.rows.last - at.row, TILE), n = static_cast<int>(thread_x()), r = n % TILE;
    uint16_t *const q = c.tiles + stage * 2 * TILE * DIM;
    load_tile<TILE, DIM, THREADS>(q, f.q, b, c.s.first_q + at.row, count, head, f.head_dim);
    load_tile<TILE, DIM, THREADS>(q + TILE * DIM, p.dout, b, c.s.first_q + at.row, count, head, f.head_dim_v);
    const row_terms from = terms_of(p, c.s, b, head);
    if (n < 3 * TILE)
        cp_async_4(&c.terms[stage * shape::STAGE_TERMS + n],
                   (n < TILE ? from.lse : n < 2 * TILE ? from.offset : from.reference) + (r < count ? at.row + r : 0),
                   r < count);
    const auto to = scores_of_head<key_cta<shape>, shape::SCORES>(c, f, head, stage);
    load_masks<THREADS>(to, 0, at.row, count, c.first, c.keys);
    load_biases<THREADS>(to, f.bias.dtype, at.row, count, c.first, c.keys);
}

/* Returns the first tile from `at` on that the block mask shows a key of. `known` is what is known of the head's. */
template <typename shape>
INLINE query_tile next_queries(const key_cta<shape> &c, const forward_params &f, seen_tiles &known, query_tile at)
{
    constexpr int TILE = shape::TILE;
    for (;; at.row += TILE) {
        if (at.row >= c.rows.last)
            at = {at.head + 1, c.rows.first / TILE * TILE, true, false}, known.first = -32;
        at.is_seen = true, at.is_blocked = false;
        if (at.head >= f.group || !has_block_mask<shape>(f)) return at;
        const int32_t tile = at.row / TILE, warp_key = static_cast<int>(warp()) * shape::WARP_ROWS;
        if (known.first < 0 || tile - known.first >= 32) {
            const int64_t head = c.place.head * f.group + at.head;
            uint32_t *const words = c.votes + 2 * WARPS;
            known = look_at_blocks_of_keys<TILE>(f, scores_of(f.block_mask, c.place.b, head, 1), c.first + warp_key,
                                                 smaller(c.keys - warp_key, shape::WARP_ROWS), tile, c.rows.last);
            sync_threads(); /* the words before are read */
            if (lane() == 0) words[warp()] = known.some;
            sync_threads();
            known.some_of_cta = join_votes(words);
        }
        const int bit = tile - known.first;
        at.is_seen = (known.some >> bit & 1) != 0, at.is_blocked = (known.all >> bit & 1) == 0;
        if ((known.some_of_cta >> bit & 1) != 0) return at;
    }
}

/* Takes a tile of query rows. */
template <typename T, typename shape>
DEVICE void take_query_fragments(key_warp<shape> &w, const key_cta<shape> &c, const forward_params &f,
                                 const gradient_terms &terms, int stage, const query_tile &tile)
{
    constexpr int TILE = shape::TILE;
    if (!tile.is_seen || !touches(w.some, tile.row, TILE)) return;
    const auto scores = scores_of_head<key_cta<shape>, shape::SCORES>(c, f, c.place.head * f.group + tile.head, stage);
    const fragment_cut cut = {!contains(w.all, tile.row, TILE), tile.is_blocked};
    const uint16_t *const q = c.tiles + stage * 2 * TILE * shape::DIM, *const dout = q + TILE * shape::DIM;
    const float *const lse = c.terms + stage * shape::STAGE_TERMS + lane_row<true>(), *const offset = lse + TILE;
    products<shape> p, ds; /* hold s and dp at first */
    multiply_rows<T, shape>(p, ds, w.k, w.v, q, dout, c.lanes);
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int j = 0; j < shape::STEP / 16; ++j) {
            const int32_t key = w.first + 16 * m;
            const chunk_place at = {tile.row + 16 * j, key, 16 * j, key - c.first};
            gradient_chunk chunk = chunk_of<shape>(p, ds, m, j);
            find_exponents<true, shape::SCORES>(chunk, scores, f, c.s, terms, at, cut,
                                                [&](int n, int e) { return lse[16 * j + row_step<true>(n, e)]; });
            find_weights<true, shape::SCORES>(chunk, f, terms, at,
                                              [&](int n, int e) { return offset[16 * j + row_step<true>(n, e)]; });
            if ((shape::SCORES & HAS_CAP) != 0 && f.softcap > 0)
                for_pairs([&](int n, int e) { chunk.dx[n][e] *= chunk.slope[n][e]; });
            put_chunk<shape>(p, ds, m, j, chunk.kept, chunk.dx);
        }
    weights<shape> w_p, w_ds;
    round_weights<T, shape>(w_p, p);
    round_weights<T, shape>(w_ds, ds);
    add_products<T, false, shape>(w.dv, w.dv, w_p, w_p, dout + c.place.first_x, c.lanes);
    add_products<T, false, shape>(w.dk, w.dk, w_ds, w_ds, q + c.place.first_x, c.lanes);
}

/* Returns whether one of ROWS rows is not for fragments: has a large lse, or a reference that its biases lack. */
template <int ROWS>
DEVICE bool has_special_row(const float *terms)
{
    const int r = static_cast<int>(lane()) % ROWS;
    return ballot(FULL_WARP, is_large(terms[r]) || terms[2 * ROWS + r] != 0) != 0;
}

/* Walks over the query rows of the group. Returns whether all of them are for fragments. */
template <typename T, typename shape>
DEVICE bool walk_queries(key_warp<shape> &w, const key_cta<shape> &c, const backward_params &p, query_tile at,
                         seen_tiles &known)
{
    const forward_params &f = p.forward;
    const bool has_mask = has_masks<shape>(c, f);
    gradient_terms terms;
    int32_t head_of_terms = -1;
    for (int stage = 0; at.head < f.group; stage ^= 1) {
        query_tile next = at;
        next.row += shape::TILE;
        next = next_queries<shape>(c, f, known, next);
        cp_async_wait_all();
        const int64_t head = c.place.head * f.group + at.head;
        if (has_mask) vote_on_masks<shape>(c, f, head, stage);
        sync_threads(); /* this stage is complete, the other one is free */
        if (next.head < f.group) load_queries<shape>(c, p, stage ^ 1, next);
        if (has_special_row<shape::TILE>(c.terms + stage * shape::STAGE_TERMS)) return false; /* in every warp */
        if (at.head != head_of_terms) terms = find_gradient_terms<shape::SCORES>(f, c.place.b, head);
        head_of_terms = at.head;
        if (!has_mask || join_votes(c.votes + stage * WARPS) != 0)
            take_query_fragments<T, shape>(w, c, f, terms, stage, at);
        at = next;
    }
    return true;
}

/* Finds dk and dv of the CTA's keys pair by pair. */
template <typename T, int DIM>
DEVICE_CALLED void find_dkv_exactly(const backward_params &p, unsigned char *shared)
{
    using shape = backward_shape<DIM, BY_FRAGMENTS, true>;
    using exact = backward_shape<DIM, PAIR_BY_PAIR, true>;
    static_assert(exact::SHARED_BYTES <= shape::SHARED_BYTES, "it has the room that fragments had");
    cta_place place;
    sequence s;
    int32_t first;
    if (!find_keys<shape>(p.forward, place, s, first)) return;
    ROLLED for (int32_t key = first; key < first + shape::OWN && key < s.seqlen_k; key += exact::OWN) {
        sync_threads(); /* shared memory is free */
        find_dkv<T, exact>(p, shared, place, s, key);
    }
}

/* Takes fragments first, as dq_kernel does. */
template <typename T, typename shape>
KERNEL(THREADS, 2) void dkv_kernel(GRID_CONSTANT const backward_params p, bool has_stages)
{
    DYNAMIC_SHARED(shared, 16);
    const forward_params &f = p.forward;
    key_cta<shape> c;
    if (!find_key_cta<shape>(c, p, shared, has_stages)) return;
    const int warp_key = static_cast<int>(warp()) * shape::WARP_ROWS;
    const int32_t last_row = c.rows.last > c.rows.first ? c.rows.last : c.rows.first;
    if (!fits_fragments(f, c.s, c.rows.first, last_row - c.rows.first, {c.first, c.first + c.keys}, has_stages))
        return find_dkv_exactly<T, shape::DIM>(p, shared);
    seen_tiles known = {-32, 0, 0, 0};
    query_tile at = {f.group, 0, false, false};
    if (c.rows.first < c.rows.last)
        at = next_queries<shape>(c, f, known, {0, c.rows.first / shape::TILE * shape::TILE, true, false});
    if (at.head < f.group) {
        load_tile<shape::OWN, shape::DIM, THREADS>(c.k, f.k, c.place.b, c.s.first_k + c.first, c.keys, c.place.head,
                                                   f.head_dim);
        load_tile<shape::OWN, shape::DIM, THREADS>(c.v, f.v, c.place.b, c.s.first_k + c.first, c.keys, c.place.head,
                                                   f.head_dim_v);
        load_queries<shape>(c, p, 0, at);
    }
    key_warp<shape> w;
    w.k.rows = c.k + warp_key * shape::DIM, w.v.rows = c.v + warp_key * shape::DIM;
    begin_key_warp<shape>(w, f, c.s, c.first + warp_key);
    const bool is_asked = !walk_queries<T, shape>(w, c, p, at, known) ||
                          has_infinite<shape>(w.dk, w.dv, w.first, c.s.used_k);
    cp_async_wait_all();
    sync_threads(); /* the tiles and the votes before are free */
    vote(c.votes, is_asked);
    sync_threads();
    if (join_votes(c.votes) != 0) return find_dkv_exactly<T, shape::DIM>(p, shared);
    end_key_warp<shape>(w, p, c.s, c.place, find_staged<shape>(shared) + warp_key * PITCH<shape>);
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

template <typename shape>
launch_shape shape_of(int64_t rows, int64_t heads)
{
    const int64_t tiles = (rows + shape::OWN - 1) / shape::OWN * shape::PARTS;
    const unsigned y = static_cast<unsigned>(heads < 65535 ? heads : 65535);
    return {{static_cast<unsigned>(tiles), y, static_cast<unsigned>((heads + y - 1) / y)},
            {THREADS, 1, 1}, {1, 1, 1}, shape::SHARED_BYTES, THREADS, 2};
}

/* Launches both kernels by fragments, with room for masks and biases where there is so much. */
template <typename T, int DIM, unsigned SCORES>
int launch_fragments(const backward_params &p, void *stream)
{
    using by_query = backward_shape<DIM, BY_FRAGMENTS, false, false, SCORES>;
    using by_key = backward_shape<DIM, BY_FRAGMENTS, true, false, SCORES>;
    const forward_params &f = p.forward;
    const size_t most = launch_max_shared(stream);
    const size_t of_queries = 2 * bytes_of_stages<typename query_cta<by_query>::stages>(f, 0, stream);
    const size_t of_keys = 2 * bytes_of_stages<typename key_cta<by_key>::stages>(f, 0, stream);
    launch_shape queries = shape_of<by_query>(f.seqlen_q, f.batch * f.num_heads_q);
    launch_shape keys = shape_of<by_key>(f.seqlen_k, f.batch * f.num_heads_q / f.group);
    const bool fit_queries = queries.dynamic_shared + of_queries <= most;
    const bool fit_keys = keys.dynamic_shared + of_keys <= most;
    if (fit_queries) queries.dynamic_shared += of_queries;
    if (fit_keys) keys.dynamic_shared += of_keys;
    int code = 0;
    if (f.seqlen_q > 0) code = LAUNCH((dq_kernel<T, by_query>), queries, stream, p, fit_queries);
    if (code == 0 && f.seqlen_k > 0) code = LAUNCH((dkv_kernel<T, by_key>), keys, stream, p, fit_keys);
    return code;
}

template <typename T, int DIM, bool SINK>
int launch_plain(const backward_params &p, void *stream)
{
    using by_query = backward_shape<DIM, PLAIN_SCORES, false, SINK>;
    using by_key = backward_shape<DIM, PLAIN_SCORES, true>;
    const forward_params &f = p.forward;
    const launch_shape queries = shape_of<by_query>(f.seqlen_q, f.batch * f.num_heads_q);
    const launch_shape keys = shape_of<by_key>(f.seqlen_k, f.batch * f.num_heads_q / f.group);
    int code = 0;
    if (f.seqlen_q > 0) code = LAUNCH((plain_dq_kernel<T, by_query>), queries, stream, p);
    if (code == 0 && f.seqlen_k > 0) code = LAUNCH((plain_dkv_kernel<T, by_key>), keys, stream, p);
    return code;
}

/* What has one feature alone has a kernel of its own, for heads of up to 128 features. */
template <typename T, int DIM>
int launch_features(const backward_params &p, void *stream)
{
    const unsigned features = features_of(p.forward);
    if constexpr (DIM <= 128) {
        if ((features & ~(HAS_MASKS | HAS_BIAS)) == 0)
            return launch_fragments<T, DIM, HAS_MASKS | HAS_BIAS>(p, stream);
        if (features == HAS_ALIBI) return launch_fragments<T, DIM, HAS_ALIBI>(p, stream);
        if (features == HAS_CAP) return launch_fragments<T, DIM, HAS_CAP>(p, stream);
        if (features == HAS_DROPOUT) return launch_fragments<T, DIM, HAS_DROPOUT>(p, stream);
    }
    return launch_fragments<T, DIM, EVERY_FEATURE>(p, stream);
}

/* Where there is a sink, p does not sum to one. */
template <typename T, int DIM>
int launch(const backward_params &p, void *stream)
{
    if (!has_plain_scores(p.forward)) return launch_features<T, DIM>(p, stream);
    if (p.forward.sink == nullptr) return launch_plain<T, DIM, false>(p, stream);
    return launch_plain<T, DIM, true>(p, stream);
}

template <typename T>
int launch_width(const backward_params &p, void *stream)
{
    const int widest = p.forward.head_dim > p.forward.head_dim_v ? p.forward.head_dim : p.forward.head_dim_v;
    if (widest <= 64) return launch<T, 64>(p, stream);
    if (widest <= 128) return launch<T, 128>(p, stream);
    return launch<T, 256>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(backward_sm80)(const struct backward_params *p, void *stream)
{
    int code = 0;
    if (p->forward.batch > 0)
        code = p->forward.q.dtype == ATTEST_FP16 ? launch_width<f16>(*p, stream) : launch_width<bf16>(*p, stream);
    if (code == 0) code = KERNEL_SYMBOL(dbias)(p, stream);
    if (code == 0) code = KERNEL_SYMBOL(dsink)(p, stream);
    return code;
}

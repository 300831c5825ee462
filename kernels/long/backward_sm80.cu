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
 * Shared  tiles of the rows that it owns, two each of those that it walks over: 64 KB at DIM 64, 96 KB at 128 and 256
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
 * A pair of rows that takes no part has the weight UNSEEN: where the other side holds a NaN, products leave it out. */
#include "kernels/shared/backward_scores.h"
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
DEVICE query_row load_query_row(const backward_params &p, const sequence &s, int64_t b, int64_t head, int32_t row)
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
    float ds, p, slope_p; /* these and `any`, a visible key, are kept where scores are not plain */
    bool any;
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

template <bool PLAIN>
DEVICE row_sums sum_row(const row_sums &own)
{
    row_sums out = own;
    out.dx = sum_of_quad(own.dx);
    out.ds_rounded = sum_of_quad(own.ds_rounded);
    if (PLAIN) return out;
    out.ds = sum_of_quad(own.ds);
    out.p = sum_of_quad(own.p);
    out.slope_p = sum_of_quad(own.slope_p);
    out.any = sum_of_quad(own.any ? 1.0f : 0.0f) != 0;
    return out;
}

/* Holds delta, and how often the sums of p k are added to those of ds k. */
struct correction {
    float delta, factor;
};

template <bool PLAIN>
DEVICE correction find_correction(const backward_params &p, const query_row &row, const row_sums &sums)
{
    const float offset = row.d - row.dlse;
    if (p.external_lse) return {row.d, 0};
    if (PLAIN || (p.forward.softcap == 0 && p.forward.sink == nullptr))
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
    const row_sums sums = sum_row<shape::PLAIN>(w.rows[m][half]);
    const interval keys = keys_of_row(p.forward, s, row);
    const bool is_empty = shape::PLAIN ? keys.first >= keys.last : !sums.any;
    correction found = find_correction<shape::PLAIN>(p, known, sums);
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
    if (!shape::PLAIN || is_large(known.lse.high)) return write_row_lse(terms, row, known.lse);
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
        const query_row row = load_query_row<shape::PLAIN>(p, s, place.b, place.head, first + r);
        if (lane() % 4 == 0) known[r] = row;
    }
    sync_warp(FULL_WARP);
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const query_row &row = known[16 * m + 8 * half + g];
            w.lse[m][half] = row.lse.high, w.offset[m][half] = row.d - row.dlse;
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

template <typename T, typename shape>
KERNEL(THREADS, 2) void dq_kernel(const backward_params p)
{
    constexpr int DIM = shape::DIM, TILE = shape::TILE, OWN = shape::OWN;
    const forward_params &f = p.forward;
    DYNAMIC_SHARED(shared, 16);
    uint16_t *const q = reinterpret_cast<uint16_t *>(shared), *const dout = q + OWN * DIM;
    uint16_t *const stages = dout + OWN * DIM; /* k and v, k and v */
    query_row *const known = reinterpret_cast<query_row *>(q + shape::NUMBERS);
    uint32_t *const votes = reinterpret_cast<uint32_t *>(known + OWN), *const large_votes = votes + WARPS;

    cta_place place;
    if (!find_place<shape>(f.batch, f.num_heads_q, place)) return;
    const int64_t b = place.b, head = place.head, head_kv = head / f.group;
    const int64_t first = (grid_x() / shape::PARTS - 1 - place.tile) * OWN;
    const sequence s = find_sequence(f, b);
    if (first >= s.seqlen_q || !is_ours(f, s)) return;
    const int32_t tile_row = static_cast<int32_t>(first);
    const int rows = smaller(s.used_q - first, OWN), warp_row = static_cast<int>(warp()) * shape::WARP_ROWS;
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
    float *const staged = reinterpret_cast<float *>(shared) + warp_row * PITCH<shape>;
    end_query_warp<shape>(w, p, s, place, known + warp_row, staged);
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
};

/* Returns the first tile from `at` on that the masks do not hide from all of `keys` keys. */
template <typename shape>
DEVICE query_tile next_queries(const forward_params &p, const sequence &s, const cta_place &place, interval rows,
                               int32_t key, int keys, query_tile at, uint32_t *votes)
{
    for (;; at.row += shape::TILE) {
        if (at.row >= rows.last) at = {at.head + 1, rows.first / shape::TILE * shape::TILE};
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

template <typename T, typename shape>
KERNEL(THREADS, 2) void dkv_kernel(const backward_params p)
{
    constexpr int DIM = shape::DIM, TILE = shape::TILE, OWN = shape::OWN;
    const forward_params &f = p.forward;
    DYNAMIC_SHARED(shared, 16);
    uint16_t *const k = reinterpret_cast<uint16_t *>(shared), *const v = k + OWN * DIM;
    uint16_t *const stages = v + OWN * DIM; /* q and dout, q and dout */
    float *const stage_terms = reinterpret_cast<float *>(k + shape::NUMBERS);
    uint32_t *const votes = reinterpret_cast<uint32_t *>(stage_terms + 2 * shape::STAGE_TERMS);

    cta_place place;
    if (!find_place<shape>(f.batch, f.num_heads_q / f.group, place)) return;
    const int64_t b = place.b, first = place.tile * OWN;
    const sequence s = find_sequence(f, b);
    if (first >= s.seqlen_k || !is_ours(f, s)) return;
    const int32_t tile_key = static_cast<int32_t>(first);
    const int keys = smaller(s.used_k - first, OWN), warp_key = static_cast<int>(warp()) * shape::WARP_ROWS;
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
    query_tile at = {f.group, 0};
    if (rows.first < rows.last)
        at = next_queries<shape>(f, s, place, rows, tile_key, keys, {0, rows.first / TILE * TILE}, votes);
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
        const query_tile next = next_queries<shape>(f, s, place, rows, tile_key, keys, {at.head, at.row + TILE}, votes);
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
    end_key_warp<shape>(w, p, s, place, reinterpret_cast<float *>(shared) + warp_key * PITCH<shape>);
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

template <typename T, int DIM, bool PLAIN>
int launch(const backward_params &p, void *stream)
{
    using by_query = backward_shape<DIM, PLAIN, false>;
    using by_key = backward_shape<DIM, PLAIN, true>;
    const forward_params &f = p.forward;
    const int64_t heads_kv = f.num_heads_q / f.group;
    int code = 0;
    if (f.seqlen_q > 0)
        code = LAUNCH((dq_kernel<T, by_query>), shape_of<by_query>(f.seqlen_q, f.batch * f.num_heads_q), stream, p);
    if (code == 0 && f.seqlen_k > 0)
        code = LAUNCH((dkv_kernel<T, by_key>), shape_of<by_key>(f.seqlen_k, f.batch * heads_kv), stream, p);
    return code;
}

template <typename T, bool PLAIN>
int launch_width(const backward_params &p, void *stream)
{
    const int widest = p.forward.head_dim > p.forward.head_dim_v ? p.forward.head_dim : p.forward.head_dim_v;
    if (widest <= 64) return launch<T, 64, PLAIN>(p, stream);
    if (widest <= 128) return launch<T, 128, PLAIN>(p, stream);
    return launch<T, 256, PLAIN>(p, stream);
}

/* Where there is a sink, p does not sum to one. */
template <typename T>
int launch_scores(const backward_params &p, void *stream)
{
    if (has_plain_scores(p.forward) && p.forward.sink == nullptr) return launch_width<T, true>(p, stream);
    return launch_width<T, false>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(backward_sm80)(const struct backward_params *p, void *stream)
{
    int code = 0;
    if (p->forward.batch > 0)
        code = p->forward.q.dtype == ATTEST_FP16 ? launch_scores<f16>(*p, stream) : launch_scores<bf16>(*p, stream);
    if (code == 0) code = KERNEL_SYMBOL(dbias)(p, stream);
    if (code == 0) code = KERNEL_SYMBOL(dsink)(p, stream);
    return code;
}

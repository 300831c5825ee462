/* backward.cu - attention backward of 16-bit tensors on tensor cores, for every GPU since 2020.
 *
 *     dx = p (dp - delta + dlse),  ds = dx (1 - (t / softcap)^2),  dq = scale ds k,  dk = scale ds^T q,  dv = (m p)^T dout
 *
 * Takes fp16 and bf16, and every feature of lib/contract.md: scores.h says what a score is. Two kernels:
 *
 *     dq      owns 64 query rows and walks over keys; writes dq and, to the workspace, what the other needs of rows
 *     dk, dv  owns 64 keys of a KV head and walks over the query rows of its group
 *
 * Grid    x: tiles of 64 rows times parts, the longest first where a window cuts them; y, z: batch * heads
 * Block   4 warps; a warp owns 16 neighbouring rows, its lanes share them as mma.sync has it
 * Shared  tiles of the rows that it owns, two each of those that it walks over: 48 KB at DIM 64, 96 KB at 128 and 256
 * Phases  for each tile of the other side: load the next one beside s and dp, p and ds, and the sums that they are in
 *
 * dq begins with the delta that the rounded o gives, d = dout . o, or with the delta that is given, and ends with that of
 * p and dp themselves, delta = sum dx + (d - dlse) sum p. In the same pass it sums ds k and (1 - tanh^2) p k, so that
 * errors of d and of rounding ds are taken back along their mean:
 *
 *     dq = scale (sum ds~ k + (d - delta - sum (ds~ - ds) / sum c p) sum c p k),   c = 1 - tanh^2
 *
 * where p sums to one and c is 1: scale (sum ds~ k + (dlse - sum ds~) sum p k). With lse and delta of a larger key set
 * (external_lse) nothing is taken back. The other kernel, dbias and dsink take the corrected delta. reference/bounds.md
 * has the proof, kernels/backward.md the figures.
 *
 * A pair of rows that takes no part has the weight UNSEEN: where the other side holds a NaN, products leave it out. */
#include "kernels/gradients.h"
#include "kernels/params.h"
#include "kernels/scores.h"
#include "kernels/tiles.h"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32, OWN = 16 * WARPS };

/* TILE: rows of the other side at a time. At 256 features a CTA owns half of each result, its sums being too many. */
template <int DIM, bool PLAIN>
struct shape {
    static constexpr int FEATURES = DIM <= 128 ? DIM : 128, PARTS = DIM / FEATURES;
    static constexpr int TILE = DIM <= 128 ? 64 : 16;
    static constexpr int MIN_BLOCKS = PLAIN && DIM <= 64 ? 3 : 2;
    static constexpr int NUMBERS = (2 * OWN + 4 * TILE) * DIM; /* two tiles of its rows, two stages of two others */
    static constexpr size_t SHARED_BYTES = NUMBERS * sizeof(uint16_t) + 4 * TILE * sizeof(float) + WARPS * sizeof(uint32_t);
};

/* ---- the workspace -------------------------------------------------------------------------------------------- */

/* Of the query rows of one head: delta, and what p and dx take of it. Three arrays as delta_at has them. */
struct row_terms {
    float *delta;  /* corrected */
    float *lse;    /* in base 2 */
    float *offset; /* delta - dlse */
};

DEVICE row_terms terms_of(const backward_params &p, const sequence &s, int64_t b, int64_t head)
{
    const int64_t all = p.forward.num_heads_q * p.forward.rows_q;
    float *const first = static_cast<float *>(p.workspace) + delta_at(p.forward, s, b, 0, head);
    return {first, first + all, first + 2 * all};
}

/* ---- scores ----------------------------------------------------------------------------------------------------- */

/* What dot products become scores by: y = c dot where scores are linear in them, else rule and c = 1. */
struct score_terms {
    score_rule rule;
    float c;
};

DEVICE score_terms find_score_terms(const forward_params &p, int64_t b, int64_t head)
{
    score_terms out = {find_score_rule(p, b, head), 1};
    if (p.bias.data == nullptr && p.alibi_slopes == nullptr && p.softcap == 0) {
        out.c = out.rule.scale;
        out.rule.scale = 1;
    }
    return out;
}

/* Of one pair of a query row and a key. */
struct pair_gradient {
    float p;     /* -0 where the pair takes no part: UNSEEN once it is rounded */
    float kept;  /* p, or 0 where dropout drops it */
    float dx;
    float slope; /* of ds by dx */
};

/* dot = q . k, dp = dout . v. `last` as is_kept has it. */
DEVICE pair_gradient find_pair_gradient(const forward_params &p, const score_terms &terms, const sequence &s, int32_t row,
                              int32_t key, float dot, float dp, float lse, float offset, dropout_bits &last)
{
    const score found = find_score(p, terms.rule, s, row, key, dot);
    if (!found.visible) return {-0.0f, -0.0f, 0, 0};
    const bool is_dropped = !is_kept(p, terms.rule, row, key, last);
    const float weight = exp2_f32(fma_rn(found.y, terms.c, -lse));
    const float value = is_dropped ? 0 * dp : p.dropout_multiplier * dp; /* a NaN of v is felt all the same */
    return {weight, is_dropped ? 0 * weight : weight, weight * (value - offset), found.slope};
}

/* ---- products ----------------------------------------------------------------------------------------------------- */

/* d = a b^T: 16 rows of tile a from `row` on, all TILE rows of tile b. */
template <typename T, int DIM, int TILE>
DEVICE void multiply_rows(float (&d)[TILE / 8][4], const uint16_t *a_tile, int row, const uint16_t *b_tile)
{
    UNROLL for (int n = 0; n < TILE / 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e) d[n][e] = 0;
    UNROLL for (int x = 0; x < DIM; x += 16) {
        uint32_t a[4];
        load_a<DIM>(a, a_tile, row, x);
        UNROLL for (int n = 0; n < TILE / 16; ++n) {
            uint32_t b[2][2];
            load_b<DIM>(b, b_tile, 16 * n, x);
            multiply<T>(d[2 * n], a, b[0]);
            multiply<T>(d[2 * n + 1], a, b[1]);
        }
    }
}

/* Weights of 16 rows and TILE others, rounded, as fragments. */
template <int TILE>
struct weights {
    uint32_t a[TILE / 16][4];
};

template <typename T, int TILE>
DEVICE void round_weights(weights<TILE> &out, const float (&d)[TILE / 8][4])
{
    UNROLL for (int j = 0; j < TILE / 16; ++j)
        UNROLL for (int r = 0; r < 4; ++r) {
            const float *const pair = &d[2 * j + r / 2][r % 2 * 2];
            out.a[j][r] = pack<T>(pair[0], pair[1]);
        }
}

/* sum += w tile, features first_x .. first_x + FEATURES - 1. SELECT: over the rows that `seen` has not as UNSEEN. */
template <typename T, int DIM, int TILE, int FEATURES, bool SELECT>
DEVICE void multiply_weights(float (&sum)[FEATURES / 8][4], const weights<TILE> &w, const weights<TILE> &seen,
                             const uint16_t *tile, int first_x)
{
    UNROLL for (int j = 0; j < TILE / 16; ++j)
        UNROLL for (int x = 0; x < FEATURES; x += 16) {
            float(&low)[4] = sum[x / 8], (&high)[4] = sum[x / 8 + 1];
            uint32_t b[2][2];
            load_b_transposed<DIM>(b, tile, 16 * j, first_x + x);
            if (SELECT) {
                multiply_seen<T>(low, high, w.a[j], seen.a[j], b);
            } else {
                multiply<T>(low, w.a[j], b[0]);
                multiply<T>(high, w.a[j], b[1]);
            }
        }
}

/* Where some rows do not see others, a NaN among those must not reach them. */
template <typename T, int DIM, int TILE, int FEATURES>
DEVICE void multiply_weights(float (&sum)[FEATURES / 8][4], const weights<TILE> &w, const weights<TILE> &seen,
                             const uint16_t *tile, int first_x, bool is_cut)
{
    if (is_cut && !is_tile_finite<T, TILE, DIM>(tile))
        multiply_weights<T, DIM, TILE, FEATURES, true>(sum, w, seen, tile, first_x);
    else multiply_weights<T, DIM, TILE, FEATURES, false>(sum, w, seen, tile, first_x);
}

/* The same of two weights and one tile: its fragments serve both. */
template <typename T, int DIM, int TILE, int FEATURES>
DEVICE void multiply_two_weights(float (&sum0)[FEATURES / 8][4], float (&sum1)[FEATURES / 8][4],
                                 const weights<TILE> &w0, const weights<TILE> &w1, const uint16_t *tile, int first_x,
                                 bool is_cut)
{
    if (is_cut && !is_tile_finite<T, TILE, DIM>(tile)) {
        multiply_weights<T, DIM, TILE, FEATURES, true>(sum0, w0, w1, tile, first_x);
        multiply_weights<T, DIM, TILE, FEATURES, true>(sum1, w1, w1, tile, first_x);
        return;
    }
    UNROLL for (int j = 0; j < TILE / 16; ++j)
        UNROLL for (int x = 0; x < FEATURES; x += 16) {
            uint32_t b[2][2];
            load_b_transposed<DIM>(b, tile, 16 * j, first_x + x);
            UNROLL for (int n = 0; n < 2; ++n) {
                multiply<T>(sum0[x / 8 + n], w0.a[j], b[n]);
                multiply<T>(sum1[x / 8 + n], w1.a[j], b[n]);
            }
        }
}

/* ---- where a CTA stands ------------------------------------------------------------------------------------------- */

/* Tile `tile` of the rows of one head of a sequence, part `part` of its result. */
struct cta_place {
    int64_t b, head, tile;
    int part;
};

template <int PARTS>
DEVICE bool find_place(int64_t batch, int64_t heads, cta_place &out)
{
    const int64_t row_of_heads = static_cast<int64_t>(block_z()) * grid_y() + block_y();
    out = {row_of_heads / heads, row_of_heads % heads, block_x() / PARTS, static_cast<int>(block_x() % PARTS)};
    return out.b < batch;
}

DEVICE int smaller(int64_t a, int b) { return a < b ? static_cast<int>(a) : b; }

/* ---- dq -------------------------------------------------------------------------------------------------------------- */

/* A query row as its four lanes know it. */
struct query_row {
    float lse;    /* in base 2 */
    float d;      /* provisional delta */
    float dlse;
    interval keys;
};

/* Each lane's part of a row's sums; after them, whether it saw a key. */
struct row_sums {
    float dx, ds_rounded;
    float ds, p, slope_p; /* these and `any` are kept where scores are not plain */
    bool any;
};

template <int FEATURES>
struct dq_sums {
    float ds_k[FEATURES / 8][4], p_k[FEATURES / 8][4];
    row_sums rows[2];
};

/* Features x .. x + 7 of a row, zero past its end. */
struct eight_features {
    float at[8];
};

template <typename T>
DEVICE void unpack_eight(eight_features &out, const void *numbers)
{
    struct alignas(16) {
        uint32_t at[4];
    } pairs;
    const sixteen_bytes bytes = load_global_16<sixteen_bytes>(numbers);
    __builtin_memcpy(&pairs, &bytes, 16);
    UNROLL for (int n = 0; n < 8; ++n) out.at[n] = unpack<T>(pairs.at[n / 2], n % 2 != 0);
}

DEVICE eight_features load_eight_features(const row_pointer &row, bool by_eight, int x)
{
    eight_features out;
    const char *const at_once = row.data + 2 * x;
    if (by_eight && x + 8 <= row.length && row.dtype == ATTEST_BF16) unpack_eight<bf16>(out, at_once);
    else if (by_eight && x + 8 <= row.length && row.dtype == ATTEST_FP16) unpack_eight<f16>(out, at_once);
    else for (int n = 0; n < 8; ++n) out.at[n] = x + n < row.length ? load_feature(row, x + n) : 0.0f;
    return out;
}

/* dout . o of a row, in its four lanes. */
DEVICE float multiply_dout_o(const backward_params &p, int64_t b, int64_t row, int64_t head)
{
    const int32_t length = p.forward.head_dim_v;
    const row_pointer dout = row_of(p.dout, b, row, head, length), o = row_of(p.forward.o, b, row, head, length);
    float sum = 0;
    for (int x = static_cast<int>(lane()) % 4 * 8; x < length; x += 32) {
        const eight_features u = load_eight_features(dout, p.dout.by_eight != 0, x);
        const eight_features w = load_eight_features(o, p.forward.o.by_eight != 0, x);
        UNROLL for (int n = 0; n < 8; ++n) sum = fma_rn(u.at[n], w.at[n], sum);
    }
    return sum_of_quad(sum);
}

DEVICE query_row load_query_row(const backward_params &p, const sequence &s, int64_t b, int64_t head, int32_t row)
{
    const interval keys = keys_of_row(p.forward, s, row);
    query_row out = {0, 0, 0, keys};
    const bool takes_part = row < s.used_q && (keys.first < keys.last || p.external_lse);
    if (p.delta.data == nullptr && s.used_q > 0) out.d = multiply_dout_o(p, b, s.first_q + (takes_part ? row : 0), head);
    if (!takes_part) return {0, 0, 0, keys};
    if (p.delta.data != nullptr) out.d = load_scalar(p.delta, s, b, row, head);
    out.dlse = load_scalar(p.dlse, s, b, row, head);
    out.lse = load_scalar(p.forward.lse, s, b, row, head) * LOG2_E;
    return out;
}

/* s and dp to p and dx. CUT: some rows of the warp do not see every key. */
template <int TILE, bool CUT>
DEVICE void find_plain_gradients(float (&s)[TILE / 8][4], float (&dp)[TILE / 8][4], row_sums (&sums)[2],
                                 const query_row (&rows)[2], float c, int32_t key)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        const float lse = rows[half].lse, offset = rows[half].d - rows[half].dlse;
        UNROLL for (int n = 0; n < TILE / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                float &p = s[n][2 * half + e], &dx = dp[n][2 * half + e];
                const int32_t j = key + 8 * n + e;
                const bool visible = !CUT || (j >= rows[half].keys.first && j < rows[half].keys.last);
                p = visible ? exp2_f32(fma_rn(p, c, -lse)) : -0.0f;
                dx = visible ? p * (dx - offset) : 0;
                sums[half].dx += dx;
            }
    }
}

/* s and dp to c p and ds, c = 1 - tanh^2, of any scores. */
template <int TILE>
DEVICE void find_gradients(float (&s)[TILE / 8][4], float (&dp)[TILE / 8][4], row_sums (&sums)[2],
                           const query_row (&rows)[2], const forward_params &p, const score_terms &terms,
                           const sequence &sequence, int32_t row, int32_t key)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        const float offset = rows[half].d - rows[half].dlse;
        dropout_bits last;
        last.eight = -1;
        UNROLL for (int n = 0; n < TILE / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                float &weight = s[n][2 * half + e], &ds = dp[n][2 * half + e];
                const int32_t j = key + 8 * n + e;
                pair_gradient found = {-0.0f, 0, 0, 0};
                if (j >= rows[half].keys.first && j < rows[half].keys.last)
                    found = find_pair_gradient(p, terms, sequence, row + 8 * half, j, weight, ds, rows[half].lse, offset, last);
                const bool visible = bits_of(found.p) != bits_of(-0.0f);
                weight = visible ? found.slope * found.p : -0.0f;
                ds = visible ? found.dx * found.slope : 0;
                sums[half].any |= visible;
                sums[half].dx += found.dx, sums[half].ds += ds;
                sums[half].p += found.p, sums[half].slope_p += weight;
            }
    }
}

/* The sum of ds as it is rounded. */
template <typename T, int TILE>
DEVICE void add_rounded(row_sums (&sums)[2], const weights<TILE> &ds)
{
    UNROLL for (int j = 0; j < TILE / 16; ++j)
        UNROLL for (int r = 0; r < 4; ++r)
            sums[r % 2].ds_rounded += unpack<T>(ds.a[j][r], false) + unpack<T>(ds.a[j][r], true);
}

/* delta, and by how much sums of p k are added to those of ds k. */
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

/* Row `row`, of rows g and g + 8 by `half`: dq, and in part 0 the row's terms. */
template <bool PLAIN, int FEATURES>
DEVICE void write_query_row(const backward_params &p, const sequence &s, const cta_place &place, const query_row &known,
                            const dq_sums<FEATURES> &kept, int half, int32_t row)
{
    const int t = static_cast<int>(lane()) % 4;
    const row_sums sums = sum_row<PLAIN>(kept.rows[half]);
    if (row >= s.seqlen_q) return;
    const bool is_empty = PLAIN ? known.keys.first >= known.keys.last : !sums.any;
    correction found = find_correction<PLAIN>(p, known, sums);
    if (is_empty && !p.external_lse) found = {0, 0};
    const row_pointer dq = row_of(p.dq, place.b, s.first_q + row, place.head, p.forward.head_dim);
    UNROLL for (int n = 0; n < FEATURES / 8; ++n) {
        float value[2];
        UNROLL for (int e = 0; e < 2; ++e) {
            const float ds_k = kept.ds_k[n][2 * half + e], p_k = kept.p_k[n][2 * half + e];
            value[e] = p.external_lse ? ds_k : fma_rn(found.factor, p_k, ds_k);
            value[e] = is_empty ? 0 : p.forward.softmax_scale * value[e];
        }
        store_pair(dq, place.part * FEATURES + 8 * n + 2 * t, value[0], value[1]);
    }
    if (place.part != 0 || t != 0 || row >= s.used_q) return;
    const row_terms terms = terms_of(p, s, place.b, place.head);
    terms.delta[row] = found.delta;
    terms.lse[row] = known.lse;
    terms.offset[row] = found.delta - known.dlse;
}

/* The next tile of keys from `key` on that masks of bytes do not hide from all rows; `last` if there is none. */
template <int TILE>
DEVICE int32_t next_keys(const forward_params &p, const score_rule &rule, int32_t row, int rows, int32_t key,
                         int32_t last, uint32_t *votes)
{
    if (rule.mask == nullptr && rule.block_mask == nullptr) return key;
    for (; key < last; key += TILE) {
        const bool hidden = is_hidden<THREADS>(p, rule, row, rows, key, smaller(last - key, TILE), votes);
        sync_threads(); /* the votes are free */
        if (!hidden) return key;
    }
    return last;
}

template <typename T, int DIM, bool PLAIN>
KERNEL(THREADS, (shape<DIM, PLAIN>::MIN_BLOCKS)) void dq_kernel(const backward_params p)
{
    using shape = shape<DIM, PLAIN>;
    constexpr int TILE = shape::TILE, FEATURES = shape::FEATURES;
    const forward_params &f = p.forward;
    DYNAMIC_SHARED(shared, 16);
    uint16_t *const q = reinterpret_cast<uint16_t *>(shared), *const dout = q + OWN * DIM;
    uint16_t *const stages = dout + OWN * DIM; /* k and v, k and v */
    uint32_t *const votes = reinterpret_cast<uint32_t *>(q + shape::NUMBERS);

    cta_place place;
    if (!find_place<shape::PARTS>(f.batch, f.num_heads_q, place)) return;
    const int64_t b = place.b, head = place.head, head_kv = head / f.group;
    const int64_t first = (grid_x() / shape::PARTS - 1 - place.tile) * OWN;
    const sequence s = find_sequence(f, b);
    if (first >= s.seqlen_q) return;
    const int32_t tile_row = static_cast<int32_t>(first);
    const int rows = smaller(s.used_q - first, OWN), warp_row = static_cast<int>(warp()) * 16;
    const interval keys = keys_of_rows(f, s, tile_row, tile_row + rows).some;
    const tile_keys warp_keys = keys_of_rows(f, s, tile_row + warp_row, tile_row + smaller(rows, warp_row + 16));
    const int32_t lane_row = tile_row + warp_row + static_cast<int>(lane()) / 4;
    const int lane_key = static_cast<int>(lane()) % 4 * 2;
    const score_terms terms = find_score_terms(f, b, head);

    const auto load = [&](int stage, int32_t key) {
        uint16_t *const k = stages + stage * 2 * TILE * DIM;
        load_tile<TILE, DIM, THREADS>(k, f.k, b, s.first_k + key, keys.last - key, head_kv, f.head_dim);
        load_tile<TILE, DIM, THREADS>(k + TILE * DIM, f.v, b, s.first_k + key, keys.last - key, head_kv, f.head_dim_v);
    };
    int32_t key = next_keys<TILE>(f, terms.rule, tile_row, rows, keys.first / TILE * TILE, keys.last, votes);
    if (key < keys.last) {
        load_tile<OWN, DIM, THREADS>(q, f.q, b, s.first_q + tile_row, rows, head, f.head_dim);
        load_tile<OWN, DIM, THREADS>(dout, p.dout, b, s.first_q + tile_row, rows, head, f.head_dim_v);
        load(0, key);
    }
    query_row known[2];
    UNROLL for (int half = 0; half < 2; ++half) known[half] = load_query_row(p, s, b, head, lane_row + 8 * half);

    dq_sums<FEATURES> kept = {};
    for (int stage = 0; key < keys.last; stage ^= 1) {
        const int32_t next = next_keys<TILE>(f, terms.rule, tile_row, rows, key + TILE, keys.last, votes);
        cp_async_wait_all();
        sync_threads(); /* this stage is complete, the other one is free */
        if (next < keys.last) load(stage ^ 1, next);
        if (key < warp_keys.some.last && key + TILE > warp_keys.some.first) {
            const bool is_cut = !PLAIN || key < warp_keys.all.first || key + TILE > warp_keys.all.last;
            const uint16_t *const k = stages + stage * 2 * TILE * DIM, *const v = k + TILE * DIM;
            float p_of[TILE / 8][4], ds_of[TILE / 8][4];
            multiply_rows<T, DIM, TILE>(p_of, q, warp_row, k);
            multiply_rows<T, DIM, TILE>(ds_of, dout, warp_row, v);
            if (!PLAIN)
                find_gradients<TILE>(p_of, ds_of, kept.rows, known, f, terms, s, lane_row, key + lane_key);
            else if (is_cut) find_plain_gradients<TILE, true>(p_of, ds_of, kept.rows, known, terms.c, key + lane_key);
            else find_plain_gradients<TILE, false>(p_of, ds_of, kept.rows, known, terms.c, key + lane_key);
            weights<TILE> w_p, w_ds;
            round_weights<T, TILE>(w_p, p_of);
            round_weights<T, TILE>(w_ds, ds_of);
            add_rounded<T, TILE>(kept.rows, w_ds);
            multiply_two_weights<T, DIM, TILE, FEATURES>(kept.ds_k, kept.p_k, w_ds, w_p, k, place.part * FEATURES, is_cut);
        }
        key = next;
    }
    UNROLL for (int half = 0; half < 2; ++half)
        write_query_row<PLAIN, FEATURES>(p, s, place, known[half], kept, half, lane_row + 8 * half);
}

/* ---- dk, dv ------------------------------------------------------------------------------------------------------- */

template <int FEATURES>
struct dkv_sums {
    float dk[FEATURES / 8][4], dv[FEATURES / 8][4];
};

/* A tile of query rows of one head of the group; head == group: past the last. */
struct query_tile {
    int32_t head, row;
};

/* s and dp, transposed, to p and ds. `lse` and `offset` are of the tile's rows. */
template <int TILE, bool CUT>
DEVICE void find_plain_gradients_t(float (&s)[TILE / 8][4], float (&dp)[TILE / 8][4], const float *lse,
                                   const float *offset, const interval (&rows)[2], float c, int32_t row)
{
    const int lane_row = static_cast<int>(lane()) % 4 * 2;
    UNROLL for (int n = 0; n < TILE / 8; ++n)
        UNROLL for (int e = 0; e < 2; ++e) {
            const int at = lane_row + 8 * n + e;
            const float row_lse = lse[at], row_offset = offset[at];
            UNROLL for (int half = 0; half < 2; ++half) {
                float &p = s[n][2 * half + e], &ds = dp[n][2 * half + e];
                const bool visible = !CUT || (row + at >= rows[half].first && row + at < rows[half].last);
                p = visible ? exp2_f32(fma_rn(p, c, -row_lse)) : -0.0f;
                ds = visible ? p * (ds - row_offset) : 0;
            }
        }
}

/* The same of any scores; p without what is dropped. */
template <int TILE>
DEVICE void find_gradients_t(float (&s)[TILE / 8][4], float (&dp)[TILE / 8][4], const float *lse, const float *offset,
                             const interval (&rows)[2], const forward_params &p, const score_terms &terms,
                             const sequence &sequence, int32_t row, int32_t key)
{
    const int lane_row = static_cast<int>(lane()) % 4 * 2;
    UNROLL for (int n = 0; n < TILE / 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e) {
            const int at = lane_row + 8 * n + e % 2, half = e / 2;
            pair_gradient found = {0, -0.0f, 0, 0};
            dropout_bits last;
            last.eight = -1;
            if (row + at >= rows[half].first && row + at < rows[half].last)
                found = find_pair_gradient(p, terms, sequence, row + at, key + 8 * half, s[n][e], dp[n][e], lse[at],
                                      offset[at], last);
            s[n][e] = found.kept;
            dp[n][e] = found.dx * found.slope;
        }
}

/* The first tile from `at` on that the masks do not hide from all of `keys` keys. */
template <int TILE>
DEVICE query_tile next_queries(const forward_params &p, const cta_place &place, interval rows, int32_t key, int keys,
                               query_tile at, uint32_t *votes)
{
    for (;; at.row += TILE) {
        if (at.row >= rows.last) at = {at.head + 1, rows.first / TILE * TILE};
        if (at.head >= p.group || (p.mask.data == nullptr && p.block_mask.data == nullptr)) return at;
        const score_rule rule = find_score_rule(p, place.b, place.head * p.group + at.head);
        const bool hidden = is_hidden<THREADS>(p, rule, at.row, smaller(rows.last - at.row, TILE), key, keys, votes);
        sync_threads(); /* the votes are free */
        if (!hidden) return at;
    }
}

/* Row `row` of dk and dv, of rows g and g + 8 by `half`. */
template <int FEATURES>
DEVICE void write_key_row(const backward_params &p, const sequence &s, const cta_place &place,
                          const dkv_sums<FEATURES> &kept, int half, int32_t row)
{
    const forward_params &f = p.forward;
    const row_pointer dk = row_of(p.dk, place.b, s.first_k + row, place.head, f.head_dim);
    const row_pointer dv = row_of(p.dv, place.b, s.first_k + row, place.head, f.head_dim_v);
    const bool exists = row < s.used_k;
    UNROLL for (int n = 0; n < FEATURES / 8; ++n) {
        const int x = place.part * FEATURES + 8 * n + static_cast<int>(lane()) % 4 * 2;
        const float *const k = &kept.dk[n][2 * half], *const v = &kept.dv[n][2 * half];
        store_pair(dk, x, exists ? f.softmax_scale * k[0] : 0, exists ? f.softmax_scale * k[1] : 0);
        store_pair(dv, x, exists ? f.dropout_multiplier * v[0] : 0, exists ? f.dropout_multiplier * v[1] : 0);
    }
}

template <typename T, int DIM, bool PLAIN>
KERNEL(THREADS, (shape<DIM, PLAIN>::MIN_BLOCKS)) void dkv_kernel(const backward_params p)
{
    using shape = shape<DIM, PLAIN>;
    constexpr int TILE = shape::TILE, FEATURES = shape::FEATURES;
    const forward_params &f = p.forward;
    DYNAMIC_SHARED(shared, 16);
    uint16_t *const k = reinterpret_cast<uint16_t *>(shared), *const v = k + OWN * DIM;
    uint16_t *const stages = v + OWN * DIM; /* q and dout, q and dout */
    float *const stage_terms = reinterpret_cast<float *>(k + shape::NUMBERS); /* lse and offset, lse and offset */
    uint32_t *const votes = reinterpret_cast<uint32_t *>(stage_terms + 4 * TILE);

    cta_place place;
    if (!find_place<shape::PARTS>(f.batch, f.num_heads_q / f.group, place)) return;
    const int64_t b = place.b, first = place.tile * OWN;
    const sequence s = find_sequence(f, b);
    if (first >= s.seqlen_k) return;
    const int32_t tile_key = static_cast<int32_t>(first);
    const int keys = smaller(s.used_k - first, OWN), warp_key = static_cast<int>(warp()) * 16;
    const interval rows = rows_of_keys(f, s, tile_key, tile_key + keys);
    const int32_t warp_first = tile_key + warp_key, warp_last = tile_key + smaller(keys, warp_key + 16);
    const interval some = rows_of_keys(f, s, warp_first, warp_last); /* that some of the warp's keys are seen by */
    const interval all = {rows_of_key(f, s, warp_last - 1).first, rows_of_key(f, s, warp_first).last};
    const int32_t lane_key = tile_key + warp_key + static_cast<int>(lane()) / 4;
    const interval lane_rows[2] = {rows_of_key(f, s, lane_key), rows_of_key(f, s, lane_key + 8)};
    const float c = find_score_terms(f, b, 0).c;

    const auto load = [&](int stage, query_tile at) {
        const int64_t head = place.head * f.group + at.head;
        const int count = smaller(rows.last - at.row, TILE), n = static_cast<int>(thread_x());
        uint16_t *const q = stages + stage * 2 * TILE * DIM;
        load_tile<TILE, DIM, THREADS>(q, f.q, b, s.first_q + at.row, count, head, f.head_dim);
        load_tile<TILE, DIM, THREADS>(q + TILE * DIM, p.dout, b, s.first_q + at.row, count, head, f.head_dim_v);
        const row_terms terms = terms_of(p, s, b, head);
        const int r = n % TILE;
        const float *const from = n < TILE ? terms.lse : terms.offset;
        if (n < 2 * TILE)
            cp_async_4(&stage_terms[stage * 2 * TILE + n], r < count ? from + at.row + r : terms.lse, r < count);
    };
    query_tile at = {f.group, 0};
    if (rows.first < rows.last)
        at = next_queries<TILE>(f, place, rows, tile_key, keys, {0, rows.first / TILE * TILE}, votes);
    if (at.head < f.group) {
        load_tile<OWN, DIM, THREADS>(k, f.k, b, s.first_k + tile_key, keys, place.head, f.head_dim);
        load_tile<OWN, DIM, THREADS>(v, f.v, b, s.first_k + tile_key, keys, place.head, f.head_dim_v);
        load(0, at);
    }
    dkv_sums<FEATURES> kept = {};
    for (int stage = 0; at.head < f.group; stage ^= 1) {
        const query_tile next =
            next_queries<TILE>(f, place, rows, tile_key, keys, {at.head, at.row + TILE}, votes);
        cp_async_wait_all();
        sync_threads(); /* this stage is complete, the other one is free */
        if (next.head < f.group) load(stage ^ 1, next);
        if (at.row < some.last && at.row + TILE > some.first) {
            const bool is_cut = !PLAIN || at.row < all.first || at.row + TILE > all.last;
            const uint16_t *const q = stages + stage * 2 * TILE * DIM, *const dout = q + TILE * DIM;
            const float *const lse = stage_terms + stage * 2 * TILE, *const offset = lse + TILE;
            float p_of[TILE / 8][4], ds_of[TILE / 8][4];
            multiply_rows<T, DIM, TILE>(p_of, k, warp_key, q);
            multiply_rows<T, DIM, TILE>(ds_of, v, warp_key, dout);
            if (!PLAIN)
                find_gradients_t<TILE>(p_of, ds_of, lse, offset, lane_rows, f,
                                       find_score_terms(f, b, place.head * f.group + at.head), s, at.row, lane_key);
            else if (is_cut) find_plain_gradients_t<TILE, true>(p_of, ds_of, lse, offset, lane_rows, c, at.row);
            else find_plain_gradients_t<TILE, false>(p_of, ds_of, lse, offset, lane_rows, c, at.row);
            weights<TILE> w_p, w_ds;
            round_weights<T, TILE>(w_p, p_of);
            round_weights<T, TILE>(w_ds, ds_of);
            multiply_weights<T, DIM, TILE, FEATURES>(kept.dv, w_p, w_p, dout, place.part * FEATURES, is_cut);
            multiply_weights<T, DIM, TILE, FEATURES>(kept.dk, w_ds, w_p, q, place.part * FEATURES, is_cut);
        }
        at = next;
    }
    UNROLL for (int half = 0; half < 2; ++half)
        if (lane_key + 8 * half < s.seqlen_k)
            write_key_row<FEATURES>(p, s, place, kept, half, lane_key + 8 * half);
}

/* ---- launch ---------------------------------------------------------------------------------------------------------- */

template <int DIM, bool PLAIN>
launch_shape shape_of(int64_t rows, int64_t heads)
{
    using shape = shape<DIM, PLAIN>;
    const int64_t tiles = (rows + OWN - 1) / OWN * shape::PARTS;
    const unsigned y = static_cast<unsigned>(heads < 65535 ? heads : 65535);
    return {{static_cast<unsigned>(tiles), y, static_cast<unsigned>((heads + y - 1) / y)},
            {THREADS, 1, 1}, {1, 1, 1}, shape::SHARED_BYTES, THREADS, shape::MIN_BLOCKS};
}

template <typename T, int DIM, bool PLAIN>
int launch(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    int code = 0;
    if (f.seqlen_q > 0)
        code = LAUNCH((dq_kernel<T, DIM, PLAIN>), (shape_of<DIM, PLAIN>(f.seqlen_q, f.batch * f.num_heads_q)), stream, p);
    if (code == 0 && f.seqlen_k > 0)
        code = LAUNCH((dkv_kernel<T, DIM, PLAIN>),
                      (shape_of<DIM, PLAIN>(f.seqlen_k, f.batch * (f.num_heads_q / f.group))), stream, p);
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

extern "C" int KERNEL_SYMBOL(backward)(const struct backward_params *p, void *stream)
{
    const float *const delta = static_cast<const float *>(p->workspace);
    int code = 0;
    if (p->forward.batch > 0)
        code = p->forward.q.dtype == ATTEST_FP16 ? launch_scores<f16>(*p, stream) : launch_scores<bf16>(*p, stream);
    if (code == 0) code = KERNEL_SYMBOL(dbias)(p, delta, stream);
    if (code == 0) code = KERNEL_SYMBOL(dsink)(p, delta, stream);
    return code;
}

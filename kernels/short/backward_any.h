/* backward_any.h - what short/backward_sm80_any.cu and short/backward_sm90_any.cu know of a problem, and p and ds of a
 * warp's rows and keys by fragments in registers. */
#ifndef ATTEST_KERNELS_SHORT_BACKWARD_ANY_H
#define ATTEST_KERNELS_SHORT_BACKWARD_ANY_H

#include "kernels/shared/gradient_stage.h"
#include "kernels/shared/gradients.h"
#include "kernels/shared/params.h"
#include "kernels/shared/score_stage.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/sums.h"
#include "kernels/shared/tiles.h"
#include "kernels/short/backward_sm80.h"
#include "kernels/short/backward_sums.h"

/* A problem has at most MOST query rows and MOST keys. SPLIT warps share its rows; of score_features it HAS some. */
template <int DIMENSIONS, int MOST, unsigned HAS>
struct any_shape {
    static constexpr unsigned SCORES = HAS;
    static constexpr int DIM = DIMENSIONS, KEYS = MOST, WARP_KEYS = 64, SPLIT = KEYS / WARP_KEYS;
    static constexpr int WARPS = KEYS / 16 * SPLIT, THREADS_OF_CTA = 32 * WARPS;
    /* 128 registers to a thread where that fills an SM, else 255. */
    static constexpr int CTAS = KEYS > 64 ? 1 : DIM <= 64 ? 4 : DIM <= 128 ? 2 : 1;
    static constexpr int FEATURES = DIM / SPLIT, SLICE = FEATURES < 64 ? FEATURES : 64; /* of a warp, at a time */
    static constexpr int TILE = KEYS * DIM, PART = KEYS * 16;
    static constexpr int TILE_BYTES = TILE * static_cast<int>(sizeof(uint16_t));
    static constexpr int PARTS_BYTES = 4 * KEYS * KEYS; /* two parts of 16 bits */
    static constexpr int ALIGNMENT = 16;                /* of parts in shared memory */
    using stages = score_stages<KEYS, KEYS, 1>;
};

/* Tensors of rows, in the order in which backward_params has them. */
enum short_tensor {
    Q_ROWS, K_ROWS, V_ROWS, O_ROWS, LSE_ROWS, DOUT_ROWS, DQ_ROWS, DK_ROWS, DV_ROWS, DLSE_ROWS, DELTA_ROWS, SHORT_TENSORS
};
static_assert(offsetof(forward_params, lse) == offsetof(forward_params, q) + LSE_ROWS * sizeof(row_tensor), "in order");
static_assert(offsetof(backward_params, delta) ==
                  offsetof(backward_params, dout) + (DELTA_ROWS - DOUT_ROWS) * sizeof(row_tensor), "in order");

/* Describes a sequence and a KV head: a warp finds it out for all, in shared memory. */
struct alignas(16) any_problem {
    int64_t b, head_kv; /* past the last sequence where the CTA has no more */
    sequence s;
    float *tiles;              /* of dbias of the CTA, in the workspace, if it adds some up */
    char *rows[SHORT_TENSORS]; /* the first row of each tensor, of a group's first head; NULL: there is none */
    bool is_ours;
};

/* What a warp tells of a row to the one that shares it. */
struct row_numbers {
    float sum_p, sum_p_dp;
    float largest, sum_of_weights; /* where pairs come one by one; at last `largest` is 0 where the row sees no key */
};

/* Holds the CTA's shared memory. */
struct any_places {
    uint16_t *q, *dout, *k, *v, *parts; /* parts: where masks and biases lie at first */
    any_problem *problem;
    row_numbers *numbers; /* of each row, by the warps that share it */
    uint32_t *votes;      /* of each warp: before fragments are taken, after */
    uint32_t *added;      /* of each row, by the warps that share it: a bit for each head whose dx is in dbias */
};

/* These are the bytes of a problem's tiles and of what is known of it and its rows; and of votes and of what is added,
 * with what is left free in front of the parts. */
template <typename shape>
constexpr int BYTES_OF_PROBLEM = 4 * shape::TILE_BYTES + static_cast<int>(sizeof(any_problem)) +
                                 shape::KEYS * shape::SPLIT * static_cast<int>(sizeof(row_numbers));
template <typename shape>
constexpr int BYTES_OF_OTHERS =
    (BYTES_OF_PROBLEM<shape> + (2 * shape::WARPS + shape::KEYS * shape::SPLIT) * static_cast<int>(sizeof(uint32_t)) +
     shape::ALIGNMENT - 1) / shape::ALIGNMENT * shape::ALIGNMENT;

template <typename shape>
INLINE any_places find_places(unsigned char *shared)
{
    const auto at = cut_shared(shared, shape::TILE_BYTES, shape::TILE_BYTES, shape::TILE_BYTES, shape::TILE_BYTES,
                               sizeof(any_problem), shape::KEYS * shape::SPLIT * sizeof(row_numbers),
                               BYTES_OF_OTHERS<shape> - BYTES_OF_PROBLEM<shape>, SHARED_REST);
    return {reinterpret_cast<uint16_t *>(at.at[0]), reinterpret_cast<uint16_t *>(at.at[1]),
            reinterpret_cast<uint16_t *>(at.at[2]), reinterpret_cast<uint16_t *>(at.at[3]),
            reinterpret_cast<uint16_t *>(at.at[7]), reinterpret_cast<any_problem *>(at.at[4]),
            reinterpret_cast<row_numbers *>(at.at[5]), reinterpret_cast<uint32_t *>(at.at[6]),
            reinterpret_cast<uint32_t *>(at.at[6]) + 2 * shape::WARPS};
}

/* Returns which part of the sequences a CTA takes; which part of KV heads, block_x() says. If the grid has more, there
 * are as many parts as sequences. */
DEVICE int64_t own_part() { return static_cast<int64_t>(block_z()) * grid_y() + block_y(); }

/* Describes a sequence and a KV head, by a warp: a lane finds the rows of a tensor. */
DEVICE void find_problem(any_problem &c, const backward_params &p, const short_sums &sums, int64_t b, int64_t head_kv,
                         int tile)
{
    const forward_params &f = p.forward;
    const unsigned n = lane();
    if (b < f.batch) {
        const sequence s = find_sequence(f, b);
        if (n < SHORT_TENSORS) {
            const row_tensor &t = n < DOUT_ROWS ? (&f.q)[n] : (&p.dout)[n - DOUT_ROWS];
            const bool is_k = n == K_ROWS || n == V_ROWS || n == DK_ROWS || n == DV_ROWS;
            char *const first = row_of(t, b, is_k ? s.first_k : s.first_q, is_k ? head_kv : head_kv * f.group, 0).data;
            c.rows[n] = t.data != nullptr ? first : nullptr;
        }
        if (n == 0) c.s = s, c.is_ours = is_ours(f, s);
    }
    if (n != 0) return;
    c.b = b, c.head_kv = head_kv;
    if (sums.way == SUMS_OF_TILES) {
        const int64_t of_part = sums.joins_heads ? sums.head_parts : f.num_heads_q;
        const int64_t first = own_part() * of_part + (sums.joins_heads ? block_x() : head_kv * f.group);
        c.tiles = find_sum_places(p).tiles + first * tile;
    }
}

/* Describes the CTA's next one, once all have read the last. */
DEVICE void find_next_problem(any_problem &c, const backward_params &p, const short_sums &sums, int tile)
{
    int64_t b = c.b, head_kv = c.head_kv + sums.head_parts;
    if (head_kv >= p.forward.by_heads_kv.by) b += sums.parts, head_kv = block_x();
    sync_warp(FULL_WARP); /* all lanes have read it */
    find_problem(c, p, sums, b, head_kv, tile);
}

/* Returns rows of a problem's tensor from row `first` on, of query head n of the group. */
INLINE row_pointer rows_of(const any_problem &c, const row_tensor &t, int tensor, int n, int first, int length)
{
    return {c.rows[tensor] + (n * t.head + first * t.seqlen) * 2, t.dtype, t.by_four, length};
}

/* Names a warp's own rows, or keys, and features. */
struct warp_place {
    int first, part;
};

template <typename shape>
INLINE warp_place place_of_warp()
{
    const int own = static_cast<int>(warp());
    return {own / shape::SPLIT * 16, own % shape::SPLIT};
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Holds what is known of a lane's rows g and g + 8. */
struct lane_rows {
    row_lse lse[2];
    float given[2], dlse[2]; /* delta, if it is given */
};

/* Returns whether a row sees a key, as far as lengths and window say. */
DEVICE bool has_keys(const forward_params &f, const sequence &s, int32_t row)
{
    if (f.window_left < 0 && f.window_right < 0) return row < s.used_q && s.used_k > 0;
    const interval keys = keys_of_row(f, s, row);
    return keys.first < keys.last;
}

/* Loads it, of query head n of the group; it is zero where nothing of the row is read. */
INLINE lane_rows load_rows_of_lane(const backward_params &p, const any_problem &c, int n, int32_t row)
{
    lane_rows out = {};
    const forward_params &f = p.forward;
    const auto load = [&](const row_tensor &t, int tensor, int32_t r) {
        return reinterpret_cast<const float *>(c.rows[tensor])[n * t.head + r * t.seqlen];
    };
    UNROLL for (int half = 0; half < 2; ++half) {
        const int32_t r = row + 8 * half;
        const bool exists = p.external_lse ? r < c.s.used_q : has_keys(f, c.s, r);
        if (exists || (f.sink != nullptr && r < c.s.used_q)) {
            if (p.external_lse) out.lse[half] = load_row_lse(p, c.s, c.b, r, c.head_kv * f.group + n);
            else out.lse[half].high = lse_in_base_2(load(f.lse, LSE_ROWS, r));
        }
        if (exists && p.delta.data != nullptr) out.given[half] = load(p.delta, DELTA_ROWS, r);
        if (exists && p.dlse.data != nullptr) out.dlse[half] = load(p.dlse, DLSE_ROWS, r);
    }
    return out;
}

/* Returns whether a row is not for fragments: whether its lse is large, or biases have a reference; whether it does not
 * say that delta, which was given, is of no key; whether something that is given for it is no number. */
DEVICE bool is_special(const lane_rows &rows, const backward_params &p)
{
    bool out = false;
    UNROLL for (int half = 0; half < 2; ++half) {
        const float lse = rows.lse[half].high, offset = rows.given[half] - rows.dlse[half];
        out |= is_large(lse) || lse != lse || rows.lse[half].reference != 0 || offset - offset != 0 ||
               (lse == -infinity_f32() && p.delta.data != nullptr);
    }
    return out;
}

/* Holds a lane's part of the sums that delta is made of, in two chains a row: of even and of odd keys. */
struct delta_sums {
    float p[2][2], p_dp[2][2];
};

/* Finds delta of a lane's rows from all sums of them. Between, all warps wait for each other. */
template <typename shape, bool EXACT>
DEVICE void find_delta(float (&delta)[2], delta_sums &sums, const backward_params &p, const lane_rows &rows,
                       const uint32_t (&seen)[2], const warp_place &own, row_numbers *numbers)
{
    float sum_p[2], sum_p_dp[2];
    row_numbers *const of_lane = &numbers[(own.first + static_cast<int>(lane()) / 4) * shape::SPLIT];
    UNROLL for (int half = 0; half < 2; ++half) {
        sum_p[half] = sum_of_quad(sums.p[half][0] + sums.p[half][1]);
        sum_p_dp[half] = sum_of_quad(sums.p_dp[half][0] + sums.p_dp[half][1]);
        row_numbers &mine = of_lane[8 * half * shape::SPLIT + own.part];
        if (shape::SPLIT > 1 && lane() % 4 == 0) mine.sum_p = sum_p[half], mine.sum_p_dp = sum_p_dp[half];
        if constexpr (EXACT) {
            const float any = sum_of_quad(seen[half] != 0 ? 1.0f : 0.0f);
            if (lane() % 4 == 0) mine.largest = any;
        }
    }
    sync_threads(); /* sums are there, v is free, and so are masks and biases */
    UNROLL for (int half = 0; half < 2; ++half) {
        const row_numbers *const of_row = of_lane + 8 * half * shape::SPLIT;
        if (shape::SPLIT > 1) {
            sum_p[half] = of_row[0].sum_p + of_row[shape::SPLIT - 1].sum_p;
            sum_p_dp[half] = of_row[0].sum_p_dp + of_row[shape::SPLIT - 1].sum_p_dp;
        }
        delta[half] = p.forward.sink != nullptr ? sum_p_dp[half] : mean_dp(sum_p[half], sum_p_dp[half]);
        if (p.delta.data != nullptr) delta[half] = rows.given[half];
        if (EXACT && !p.external_lse && of_row[0].largest + of_row[shape::SPLIT - 1].largest == 0) delta[half] = 0;
    }
    UNROLL for (int half = 0; half < 2; ++half)
        sums.p[half][0] = sum_p[half], sums.p_dp[half][0] = sum_p_dp[half]; /* of all the row */
}

/* Writes what dbias and dsink ask of the warp's rows. */
DEVICE void write_terms(const backward_params &p, const sequence &s, int64_t b, int64_t head, int32_t row,
                        const lane_rows &rows, const float (&delta)[2], const warp_place &own)
{
    if ((p.dbias.data == nullptr && p.dsink == nullptr) || own.part != 0 || lane() % 4 != 0) return;
    const row_terms terms = terms_of(p, s, b, head);
    UNROLL for (int half = 0; half < 2; ++half) {
        if (row + 8 * half >= s.used_q) continue;
        terms.delta[row + 8 * half] = delta[half];
        write_row_lse(terms, row + 8 * half, rows.lse[half]);
    }
}

/* ---- p and ds by fragments --------------------------------------------------------------------------------------- */

/* Holds s, then p, and dp, of a warp's rows and keys, and what of them dropout drops: bit 2 n + e of row g or g + 8. */
struct warp_pairs {
    row_pairs<64> p, dp, slope; /* slope: of ds by dx, under a softcap alone */
    uint32_t dropped[2];
};

/* Says which keys of a warp's rows are hidden by lengths, window and blocks. */
struct warp_cut {
    interval all;     /* that all rows see, as far as lengths and window say */
    uint32_t blocked; /* bit j: a block hides some of 16 keys */
};

template <typename shape>
INLINE warp_cut find_cut(const forward_params &f, const sequence &s, const score_rule &rule, const warp_place &own)
{
    const int last = s.used_q < own.first + 16 ? s.used_q : own.first + 16;
    warp_cut out = {keys_of_rows(f, s, own.first, last).all, 0};
    if ((shape::SCORES & HAS_MASKS) != 0 && rule.block_mask != nullptr)
        out.blocked = ~look_at_blocks<16>(f, rule, own.first, last - own.first, 0, s.used_k).all;
    return out;
}

/* Turns s into p, and finds what dropout drops. */
template <typename shape>
DEVICE void find_weights_of_warp(warp_pairs &w, const typename shape::stages &stages, const forward_params &f,
                                 const sequence &s, const gradient_terms &terms, const warp_place &own,
                                 const float (&lse)[2])
{
    const int first_key = own.part * shape::WARP_KEYS;
    const bool has_cap = (shape::SCORES & HAS_CAP) != 0 && f.softcap > 0;
    const warp_cut cut = find_cut<shape>(f, s, terms.rule, own);
    UNROLL for (int j = 0; j < shape::WARP_KEYS / 16; ++j) {
        const int key = first_key + 16 * j;
        const chunk_place at = {own.first, key, own.first, key};
        const fragment_cut of_chunk = {!contains(cut.all, key, 16), (cut.blocked >> key / 16 & 1) != 0};
        gradient_chunk chunk;
        for_pairs([&](int n, int e) { chunk.weight[n][e] = w.p.at[2 * j + n][e]; });
        find_exponents<false, shape::SCORES>(chunk, stages, f, s, terms, at, of_chunk,
                                             [&](int, int e) { return lse[e / 2]; });
        for_pairs([&](int n, int e) { w.p.at[2 * j + n][e] = exp2_f32(chunk.weight[n][e]); });
        if (has_cap) for_pairs([&](int n, int e) { w.slope.at[2 * j + n][e] = chunk.slope[n][e]; });
    }
    if ((shape::SCORES & HAS_DROPOUT) == 0 || f.dropout_threshold == 0) return;
    w.dropped[0] = w.dropped[1] = 0;
    const int64_t i = f.q_start + own.first + static_cast<int>(lane()) / 4;
    draw_dropped<64>(terms.rule, i, (f.k_start + first_key) / 8, f.dropout_threshold,
                     [&](int n, int e, bool is_dropped) {
                         if (is_dropped) w.dropped[e / 2] |= 1u << (2 * n + e % 2);
                     });
}

/* Turns dp into that of dropout, and adds what delta is made of. */
template <typename shape>
DEVICE void add_pairs(warp_pairs &w, delta_sums &sums, const forward_params &f)
{
    if ((shape::SCORES & HAS_DROPOUT) != 0 && f.dropout_threshold != 0)
        UNROLL for (int n = 0; n < 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) {
                const bool is_dropped = (w.dropped[e / 2] >> (2 * n + e % 2) & 1) != 0;
                w.dp.at[n][e] *= is_dropped ? 0 : f.dropout_multiplier;
            }
    sums = {};
    UNROLL for (int n = 0; n < 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e) {
            sums.p[e / 2][e % 2] += w.p.at[n][e];
            sums.p_dp[e / 2][e % 2] = fma_rn(w.p.at[n][e], w.dp.at[n][e], sums.p_dp[e / 2][e % 2]);
        }
}

/* Turns dp into dx. */
DEVICE void find_dx_of_warp(warp_pairs &w, const float (&offset)[2])
{
    UNROLL for (int n = 0; n < 8; ++n)
        UNROLL for (int e = 0; e < 4; ++e) w.dp.at[n][e] = w.p.at[n][e] * (w.dp.at[n][e] - offset[e / 2]);
}

/* Turns dx into ds, and p into what dropout leaves of it. */
template <typename shape>
DEVICE void find_ds_of_warp(warp_pairs &w, const forward_params &f)
{
    const bool has_cap = (shape::SCORES & HAS_CAP) != 0 && f.softcap > 0;
    if (has_cap)
        UNROLL for (int n = 0; n < 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) w.dp.at[n][e] *= w.slope.at[n][e];
    if ((shape::SCORES & HAS_DROPOUT) != 0 && f.dropout_threshold != 0)
        UNROLL for (int n = 0; n < 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e)
                if ((w.dropped[e / 2] >> (2 * n + e % 2) & 1) != 0) w.p.at[n][e] = 0;
}

#endif

/* backward_any.h - what short/backward_sm80_any.cu knows of its problem, and p and ds of a warp's rows and keys by
 * fragments in registers. */
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
    using stages = score_stages<KEYS, KEYS, 1>;
};

/* Describes a sequence and a KV head: one thread finds it out for all, in shared memory. */
struct alignas(16) any_problem {
    int64_t b, head_kv;
    sequence s;
    float *tiles; /* of dbias of the CTA, in the workspace, if it adds some up */
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

template <typename shape>
INLINE any_places find_places(unsigned char *shared)
{
    constexpr int WORDS = 2 * shape::WARPS + shape::KEYS * shape::SPLIT; /* votes, then what is added */
    const auto at = cut_shared(shared, shape::TILE_BYTES, shape::TILE_BYTES, shape::TILE_BYTES, shape::TILE_BYTES,
                               sizeof(any_problem), shape::KEYS * shape::SPLIT * sizeof(row_numbers),
                               WORDS * sizeof(uint32_t), SHARED_REST);
    return {reinterpret_cast<uint16_t *>(at.at[0]), reinterpret_cast<uint16_t *>(at.at[1]),
            reinterpret_cast<uint16_t *>(at.at[2]), reinterpret_cast<uint16_t *>(at.at[3]),
            reinterpret_cast<uint16_t *>(at.at[7]), reinterpret_cast<any_problem *>(at.at[4]),
            reinterpret_cast<row_numbers *>(at.at[5]), reinterpret_cast<uint32_t *>(at.at[6]),
            reinterpret_cast<uint32_t *>(at.at[6]) + 2 * shape::WARPS};
}

/* Returns which part of the sequences a CTA takes; which part of KV heads, block_x() says. If the grid has more, there
 * are as many parts as sequences. */
DEVICE int64_t own_part() { return static_cast<int64_t>(block_z()) * grid_y() + block_y(); }

INLINE any_problem find_problem(const backward_params &p, const short_sums &sums, int64_t b, int64_t head_kv, int tile)
{
    const forward_params &f = p.forward;
    any_problem out = {};
    out.b = b, out.head_kv = head_kv;
    out.s = find_sequence(f, b);
    out.is_ours = is_ours(f, out.s);
    if (sums.way == SUMS_OF_TILES) {
        const int64_t of_part = sums.joins_heads ? sums.head_parts : f.num_heads_q;
        const int64_t first = own_part() * of_part + (sums.joins_heads ? block_x() : head_kv * f.group);
        out.tiles = find_sum_places(p).tiles + first * tile;
    }
    return out;
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

/* Loads it; it is zero where nothing of the row is read. */
INLINE lane_rows load_rows_of_lane(const backward_params &p, const sequence &s, int64_t b, int64_t head, int32_t row)
{
    lane_rows out = {};
    UNROLL for (int half = 0; half < 2; ++half) {
        const int32_t r = row + 8 * half;
        const interval keys = keys_of_row(p.forward, s, r);
        const bool exists = keys.first < keys.last || (p.external_lse && r < s.used_q);
        if (exists || (p.forward.sink != nullptr && r < s.used_q)) out.lse[half] = load_row_lse(p, s, b, r, head);
        if (!exists) continue;
        out.given[half] = load_scalar(p.delta, s, b, r, head);
        out.dlse[half] = load_scalar(p.dlse, s, b, r, head);
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

/* Turns s into p, dp into that of dropout, and adds what delta is made of. */
template <typename shape>
DEVICE void find_weights_of_warp(warp_pairs &w, delta_sums &sums, const typename shape::stages &stages,
                                 const forward_params &f, const sequence &s, const gradient_terms &terms,
                                 const warp_place &own, const float (&lse)[2])
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
    if ((shape::SCORES & HAS_DROPOUT) != 0 && f.dropout_threshold != 0) {
        w.dropped[0] = w.dropped[1] = 0;
        const int64_t i = f.q_start + own.first + static_cast<int>(lane()) / 4;
        draw_dropped<64>(terms.rule, i, (f.k_start + first_key) / 8, f.dropout_threshold,
                         [&](int n, int e, bool is_dropped) {
                             if (is_dropped) w.dropped[e / 2] |= 1u << (2 * n + e % 2);
                             w.dp.at[n][e] *= is_dropped ? 0 : f.dropout_multiplier;
                         });
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

/* backward_any_problem.h - a short problem of any scores by mma.sync, and what kernels of such problems do around it:
 * how it begins and ends, which are taken again pair by pair, the launch with that of sums. */
#ifndef ATTEST_KERNELS_SHORT_BACKWARD_ANY_PROBLEM_H
#define ATTEST_KERNELS_SHORT_BACKWARD_ANY_PROBLEM_H

#include "kernels/short/backward_any.h"
#include "kernels/short/backward_pairs.h"

/* ---- products of weights ----------------------------------------------------------------------------------------- */

/* Loads both parts of 16 rows from `first` on and 16 keys from 16 j on; or, BY_KEY, of 16 keys from `first` on and 16
 * rows from 16 j on. */
template <bool BY_KEY, typename shape>
DEVICE void load_weights(uint32_t (&high)[4], uint32_t (&low)[4], const uint16_t *parts, int first, int j)
{
    const unsigned l = lane(), own = static_cast<unsigned>(first), other = static_cast<unsigned>(16 * j);
    if (BY_KEY) {
        const uint16_t *const at =
            &parts[2 * shape::PART * (first / 16) + tile_offset<16>(other + l % 8 + l / 16 * 8, l / 8 % 2 * 8)];
        ldmatrix_x4_trans(high, at);
        ldmatrix_x4_trans(low, at + shape::PART);
    } else {
        const uint16_t *const at = &parts[2 * shape::PART * j + tile_offset<16>(own + l % 16, l / 16 * 8)];
        ldmatrix_x4(high, at);
        ldmatrix_x4(low, at + shape::PART);
    }
}

/* Adds weights times rows of a tile, of features x .. x + SLICE - 1. */
template <typename T, typename shape, bool BY_KEY>
DEVICE void add_rows(float (&sum)[shape::SLICE / 8][4], const uint16_t *parts, int first, const uint16_t *tile, int x)
{
    UNROLL for (int j = 0; j < shape::KEYS / 16; ++j) {
        uint32_t high[4], low[4];
        load_weights<BY_KEY, shape>(high, low, parts, first, j);
        UNROLL for (int n = 0; n < shape::SLICE / 8; n += 2) {
            uint32_t b[2][2];
            load_b_transposed<shape::DIM>(b, tile, static_cast<unsigned>(16 * j), static_cast<unsigned>(x + 8 * n));
            UNROLL for (int i = 0; i < 2; ++i) multiply<T>(sum[n + i], high, b[i]);
            UNROLL for (int i = 0; i < 2; ++i) multiply<T>(sum[n + i], low, b[i]);
        }
    }
}

/* Does the same, but leaves out what the weights mark as UNSEEN. */
template <typename T, typename shape, bool BY_KEY>
DEVICE void add_seen_rows(float (&sum)[shape::SLICE / 8][4], const uint16_t *parts, int first, const uint16_t *tile,
                          int x)
{
    ROLLED for (int j = 0; j < shape::KEYS / 16; ++j) {
        uint32_t parts_of[2][4];
        load_weights<BY_KEY, shape>(parts_of[0], parts_of[1], parts, first, j);
        ROLLED for (int n = 0; n < shape::SLICE / 8; n += 2) {
            uint32_t b[2][2];
            float pair[2][4];
            load_b_transposed<shape::DIM>(b, tile, static_cast<unsigned>(16 * j), static_cast<unsigned>(x + 8 * n));
            UNROLL for (int i = 0; i < 8; ++i) pair[i / 4][i % 4] = sum[n + i / 4][i % 4];
            ROLLED for (int part = 0; part < 2; ++part) multiply_seen<T>(pair, parts_of[part], parts_of[0], b);
            UNROLL for (int i = 0; i < 8; ++i) sum[n + i / 4][i % 4] = pair[i / 4][i % 4];
        }
    }
}

/* Keeps a thread's sums of dk, or of dv, from head to head of a group: in memory, whatever the compiler thinks of it,
 * as in registers they would leave none to problems without a group. */
template <typename shape>
struct kept_sums {
    volatile float at[shape::FEATURES / shape::SLICE][shape::SLICE / 8][4];
};

/* Says which head of a group it is. */
struct head_place {
    bool is_first, is_last;
};

/* Finds a result of a warp's rows, or keys, from weights and a tile, and writes it; or keeps it, where a group has more
 * heads. Returns whether a sum of a row that is in use is no finite number. */
template <typename T, typename shape, bool BY_KEY, bool EXACT>
DEVICE bool find_result(const result_rows &to, kept_sums<shape> &kept, const head_place &head, const uint16_t *parts,
                        const uint16_t *tile, const warp_place &own)
{
    constexpr int SLICE = shape::SLICE;
    const int first_x = own.part * shape::FEATURES;
    bool has_infinite = false;
    bool is_selected = false;
    if constexpr (EXACT) is_selected = !is_tile_finite<T, shape::KEYS, shape::DIM>(tile);
    ROLLED for (int x = 0; x < shape::FEATURES; x += SLICE) {
        float sum[SLICE / 8][4] = {};
        if (!head.is_first)
            UNROLL for (int n = 0; n < SLICE / 8; ++n)
                UNROLL for (int e = 0; e < 4; ++e) sum[n][e] = kept.at[x / SLICE][n][e];
        if (is_selected) add_seen_rows<T, shape, BY_KEY>(sum, parts, own.first, tile, first_x + x);
        else add_rows<T, shape, BY_KEY>(sum, parts, own.first, tile, first_x + x);
        if (!head.is_last) {
            UNROLL for (int n = 0; n < SLICE / 8; ++n)
                UNROLL for (int e = 0; e < 4; ++e) kept.at[x / SLICE][n][e] = sum[n][e];
            continue;
        }
        float zero[2] = {0, 0};
        UNROLL for (int n = 0; n < SLICE / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) zero[e / 2] = fma_rn(sum[n][e], 0.0f, zero[e / 2]);
        UNROLL for (int half = 0; half < 2; ++half)
            has_infinite |= zero[half] != 0 && static_cast<int>(lane()) / 4 + 8 * half < to.count;
        store_sums<T, SLICE>(to, sum, first_x + x);
    }
    return has_infinite;
}

/* ---- a problem --------------------------------------------------------------------------------------------------- */

/* Asks for the masks and biases of a query head. */
template <typename shape>
DEVICE void load_scores(const any_places &at, const backward_params &p, int64_t head, bool has_stages)
{
    constexpr int ALL = shape::THREADS_OF_CTA;
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    if ((shape::SCORES & (HAS_MASKS | HAS_BIAS)) == 0 || !has_stages) return;
    const auto stages = find_score_stages<typename shape::stages>(
        f, find_gradient_terms<shape::SCORES>(f, c.b, head).rule, reinterpret_cast<unsigned char *>(at.parts), true);
    load_masks<ALL>(stages, 0, 0, c.s.used_q, 0, c.s.used_k);
    load_biases<ALL>(stages, f.bias.dtype, 0, c.s.used_q, 0, c.s.used_k);
}

/* Asks for the tiles of query head n of the group, with the first those of k and v, and its masks and biases. */
template <typename shape>
DEVICE void load_head(const any_places &at, const backward_params &p, int n, bool has_stages)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS, ALL = shape::THREADS_OF_CTA;
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    const auto load = [&](uint16_t *to, const row_tensor &t, int tensor, int head, int count, int length) {
        load_rows<KEYS, DIM, ALL>(to, rows_of(c, t, tensor, head, 0, length), t.seqlen * 2, t.by_eight != 0, count,
                                  thread_x());
    };
    if (n == 0) load(at.k, f.k, K_ROWS, 0, c.s.used_k, f.head_dim);
    load(at.q, f.q, Q_ROWS, n, c.s.used_q, f.head_dim);
    if (n == 0) load(at.v, f.v, V_ROWS, 0, c.s.used_k, f.head_dim_v);
    load(at.dout, p.dout, DOUT_ROWS, n, c.s.used_q, f.head_dim_v);
    load_scores<shape>(at, p, c.head_kv * f.group + n, has_stages);
}

template <int WARPS_OF_CTA>
DEVICE bool join_warps(const uint32_t *votes)
{
    uint32_t out = 0;
    for (int n = 0; n < WARPS_OF_CTA; ++n) out |= votes[n];
    return out != 0;
}

DEVICE void vote_of_warp(uint32_t *votes, bool asks)
{
    const bool of_warp = ballot(FULL_WARP, asks) != 0;
    if (lane() == 0) votes[warp()] = of_warp;
}

/* Says what dbias and dsink ask of a head: it is number `of_group` of its group. */
struct asked_sums {
    short_sums how;
    int of_group;
};

/* Gives dbias a warp's dx. Rows whose sums are no numbers are taken again, and only then are in it; those that are in
 * it already are not added again. */
template <typename shape, bool EXACT>
DEVICE void give_dx(const row_pairs<64> &dx, const any_places &at, const backward_params &p, const asked_sums &asked,
                    int64_t head, const bool (&is_number)[2], const warp_place &own)
{
    if ((shape::SCORES & HAS_BIAS) == 0 || p.dbias.data == nullptr || asked.how.way == SUMS_LATER) return;
    const any_problem &c = *at.problem;
    const int row = own.first + static_cast<int>(lane()) / 4;
    if (asked.how.way == SUMS_AT_ONCE)
        return write_dx(p, dx, c.b, head, row, own.part * shape::WARP_KEYS + static_cast<int>(lane()) % 4 * 2);
    bool adds[2];
    UNROLL for (int half = 0; half < 2; ++half) {
        uint32_t &added = at.added[(row + 8 * half) * shape::SPLIT + own.part];
        adds[half] = EXACT ? (added >> asked.of_group & 1) == 0 : is_number[half];
        sync_warp(FULL_WARP); /* all four lanes have read it */
        if (adds[half] && lane() % 4 == 0) added |= 1u << asked.of_group;
    }
    const int64_t tile = asked.how.joins_heads ? 0 : asked.of_group;
    const int thread = (own.first / 16 * shape::SPLIT + own.part) * 32 + static_cast<int>(lane());
    add_dx<shape::THREADS_OF_CTA>(c.tiles + tile * (shape::KEYS * shape::KEYS), dx, adds, thread);
}

/* Notes what each row gives dsink, once all have read what warps told of rows. */
template <typename shape>
DEVICE void note_sinks(const any_places &at, const backward_params &p, int64_t head, const lane_rows &rows,
                       const float (&delta)[2], const warp_place &own)
{
    if (p.dsink == nullptr || own.part != 0 || lane() % 4 != 0) return;
    const any_problem &c = *at.problem;
    UNROLL for (int half = 0; half < 2; ++half) {
        const int row = own.first + static_cast<int>(lane()) / 4 + 8 * half;
        float given = 0;
        if (row < c.s.used_q)
            given = sink_gradient(p.forward.sink[head], rows.lse[half], delta[half],
                                  load_scalar(p.dlse, c.s, c.b, row, head));
        at.numbers[row * shape::SPLIT].sum_of_weights = given;
    }
}

/* Adds them up, by a warp, once they are there. */
template <typename shape>
DEVICE void sum_sinks(const any_places &at, const backward_params &p, int64_t head)
{
    if (p.dsink == nullptr || warp() != 0) return;
    float sum = 0;
    UNROLL for (int row = 0; row < shape::KEYS; row += 32)
        sum += at.numbers[(row + static_cast<int>(lane())) * shape::SPLIT].sum_of_weights;
    UNROLL for (unsigned by = 1; by < 32; by *= 2) sum += shfl_xor(FULL_WARP, sum, by);
    if (lane() == 0) find_sum_places(p).sinks[at.problem->b * p.forward.num_heads_q + head] = sum;
}

/* Makes p and ds of a head, in parts, of s, which w holds, and dp, which find_dp() leaves there, or has left. Returns
 * whether a row of the warp has a sum that is no finite number. */
template <typename T, typename shape, bool EXACT, typename F>
DEVICE bool find_parts(row_parts<64> &of_p, row_parts<64> &of_ds, warp_pairs &w, const any_places &at,
                       const backward_params &p, int64_t head, lane_rows &rows, const warp_place &own,
                       const asked_sums &asked, bool has_stages, F find_dp)
{
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    const int32_t lane_row = own.first + static_cast<int>(lane()) / 4;
    uint32_t seen[2] = {};
    delta_sums sums;
    if constexpr (EXACT) {
        find_weights_exactly<shape>(w, sums, seen, rows, p, c.s, find_score_terms<false>(f, c.b, head), head, own,
                                    at.numbers);
    } else {
        const gradient_terms terms = find_gradient_terms<shape::SCORES>(f, c.b, head);
        const auto stages = find_score_stages<typename shape::stages>(
            f, terms.rule, reinterpret_cast<unsigned char *>(at.parts), has_stages);
        const float lse[2] = {rows.lse[0].high == -infinity_f32() ? 0 : rows.lse[0].high, /* y is -inf, too */
                              rows.lse[1].high == -infinity_f32() ? 0 : rows.lse[1].high};
        find_weights_of_warp<shape>(w, stages, f, c.s, terms, own, lse);
        find_dp();
        add_pairs<shape>(w, sums, f);
    }
    float delta[2], offset[2];
    find_delta<shape, EXACT>(delta, sums, p, rows, seen, own, at.numbers);
    bool is_number[2];
    UNROLL for (int half = 0; half < 2; ++half) {
        is_number[half] = fma_rn(sums.p[half][0], 0.0f, sums.p_dp[half][0] * 0.0f) == 0;
        offset[half] = delta[half] - rows.dlse[half];
    }
    if (asked.how.way == SUMS_LATER) write_terms(p, c.s, c.b, head, lane_row, rows, delta, own);
    else note_sinks<shape>(at, p, head, rows, delta, own);
    if constexpr (EXACT) find_dx_exactly<shape>(w, seen, offset);
    else find_dx_of_warp(w, offset);
    give_dx<shape, EXACT>(w.dp, at, p, asked, head, is_number, own);
    if constexpr (EXACT) find_ds_exactly<shape>(w, seen);
    else find_ds_of_warp<shape>(w, f);
    split<T, 64>(of_p, w.p);
    split<T, 64>(of_ds, w.dp);
    if constexpr (EXACT) mark_unseen(of_p, seen), mark_unseen(of_ds, seen);
    return !(is_number[0] && is_number[1]);
}

/* Computes the CTA's problem. Returns whether fragments are right; if not, what was written means nothing. */
template <typename T, typename shape, bool EXACT>
DEVICE bool take_problem(const any_places &at, const backward_params &p, const short_sums &sums, bool has_stages)
{
    constexpr int AREA = 16 * shape::SLICE;
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    const sequence &s = c.s;
    const warp_place own = place_of_warp<shape>();
    const int32_t lane_row = own.first + static_cast<int>(lane()) / 4;
    uint16_t *const own_parts = at.parts + own.part * (shape::WARP_KEYS / 16) * 2 * shape::PART;
    const int rows_left = s.used_q - own.first, keys_left = s.used_k - own.first;
    kept_sums<shape> of_dk, of_dv;
    bool has_infinite = false;
    for (int n = 0; n < f.group; ++n) {
        const int64_t head = c.head_kv * f.group + n;
        const head_place place = {n == 0, n == f.group - 1};
        load_head<shape>(at, p, n, !EXACT && has_stages);
        lane_rows rows = load_rows_of_lane(p, c, n, lane_row);
        if (!EXACT) vote_of_warp(at.votes, is_special(rows, p));
        cp_async_wait_all();
        sync_threads(); /* the tiles are complete */
        if (!EXACT && join_warps<shape::WARPS>(at.votes)) return false;
        row_parts<64> of_p, of_ds;
        warp_pairs w;
        const int keys = own.part * shape::WARP_KEYS * shape::DIM;
        multiply_rows<T, shape::DIM, 64>(w.p, w.dp, at.q, at.dout, at.k + keys, at.v + keys,
                                         static_cast<unsigned>(own.first));
        has_infinite |=
            find_parts<T, shape, EXACT>(of_p, of_ds, w, at, p, head, rows, own, {sums, n}, has_stages, [] {});
        store_fragments<shape::KEYS>(own_parts, of_p, static_cast<unsigned>(own.first));
        sync_threads(); /* p is complete */
        if (sums.way != SUMS_LATER) sum_sinks<shape>(at, p, head);

        const result_rows dv = {p.dv, rows_of(c, p.dv, DV_ROWS, 0, own.first, f.head_dim_v), keys_left,
                                f.dropout_multiplier, at.v + static_cast<int>(warp()) * AREA};
        has_infinite |= find_result<T, shape, true, EXACT>(dv, of_dv, place, at.parts, at.dout, own);
        sync_threads(); /* p and dout are free */
        store_fragments<shape::KEYS>(own_parts, of_ds, static_cast<unsigned>(own.first));
        sync_threads(); /* ds is complete */

        uint16_t *const own_area = at.dout + static_cast<int>(warp()) * AREA;
        const result_rows dq = {p.dq, rows_of(c, p.dq, DQ_ROWS, n, own.first, f.head_dim), rows_left,
                                f.softmax_scale, own_area};
        has_infinite |= find_result<T, shape, false, EXACT>(dq, of_dk, {true, true}, at.parts, at.k, own);
        const result_rows dk = {p.dk, rows_of(c, p.dk, DK_ROWS, 0, own.first, f.head_dim), keys_left,
                                f.softmax_scale, own_area};
        has_infinite |= find_result<T, shape, true, EXACT>(dk, of_dk, place, at.parts, at.q, own);
        if (s.used_q < s.seqlen_q)
            clear_rows<shape::DIM, shape::THREADS_OF_CTA>(p.dq, c.b, s.first_q, s.used_q, s.seqlen_q, head,
                                                          f.head_dim);
        if (!place.is_last) sync_threads(); /* all tiles are free */
    }
    if (EXACT) return true;
    vote_of_warp(at.votes + shape::WARPS, has_infinite);
    sync_threads(); /* all votes are there */
    return !join_warps<shape::WARPS>(at.votes + shape::WARPS);
}

/* Computes it pair by pair, of any features, in the places of a kernel that has found fragments wrong. All kernels of a
 * width share it. */
template <typename T, int DIM, int KEYS>
DEVICE_CALLED void take_problem_exactly(const backward_params &p, const short_sums &sums, const any_places &at)
{
    sync_threads(); /* shared memory is free */
    take_problem<T, any_shape<DIM, KEYS, EVERY_FEATURE>, true>(at, p, sums, false);
}

/* Computes what the CTA's problem descriptor describes: take(at) does by fragments, and says whether they are right. */
template <typename T, typename shape, typename F>
DEVICE void take_any_problem(const any_places &at, const backward_params &p, const short_sums &sums, bool has_stages,
                             F take)
{
    constexpr int DIM = shape::DIM, ALL = shape::THREADS_OF_CTA;
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    if (!c.is_ours) return;
    const sequence &s = c.s;
    if (sums.way == SUMS_OF_TILES)
        for (int n = static_cast<int>(thread_x()); n < shape::KEYS * shape::SPLIT; n += ALL) at.added[n] = 0;
    if (!fits_fragments(f, s, 0, shape::KEYS, {0, shape::KEYS}, has_stages) || !take(at)) {
        const any_places in_memory = at; /* which others need not be */
        take_problem_exactly<T, DIM, shape::KEYS>(p, sums, in_memory);
    }
    if (s.used_k == s.seqlen_k) return;
    clear_rows<DIM, ALL>(p.dk, c.b, s.first_k, s.used_k, s.seqlen_k, c.head_kv, f.head_dim);
    clear_rows<DIM, ALL>(p.dv, c.b, s.first_k, s.used_k, s.seqlen_k, c.head_kv, f.head_dim_v);
}

/* Takes the CTA's problems: one, or, where it adds up dbias, one after the other. What they are is known in shared
 * memory alone. */
template <typename T, typename shape, typename F>
DEVICE void take_own_problems(unsigned char *shared, const backward_params &p, const short_sums &sums, bool has_stages,
                              F take)
{
    constexpr int TILE = shape::KEYS * shape::KEYS;
    const any_places at = find_places<shape>(shared);
    any_problem &c = *at.problem;
    if (warp() == 0) find_problem(c, p, sums, own_part(), block_x(), TILE);
    sync_threads();
    if (sums.way == SUMS_OF_TILES && c.b < p.forward.batch)
        for (int n = 0; n < (sums.joins_heads ? 1 : p.forward.group); ++n)
            clear_tile<shape::THREADS_OF_CTA>(c.tiles + n * TILE);
    while (c.b < p.forward.batch) {
        take_any_problem<T, shape>(at, p, sums, has_stages, take);
        if (sums.way != SUMS_OF_TILES) break;
        sync_threads(); /* shared memory is free */
        if (warp() == 0) find_next_problem(c, p, sums, TILE);
        sync_threads();
    }
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

/* Launches a kernel by start(shape of the launch, sums, whether masks and biases have their stages), and what adds up
 * sums. */
template <typename shape, typename F>
static inline int launch_any(const backward_params &p, void *stream, F start)
{
    const forward_params &f = p.forward;
    constexpr size_t others = BYTES_OF_OTHERS<shape>;
    const size_t of_scores = bytes_of_stages<typename shape::stages>(f, others, stream);
    const size_t of_parts = shape::PARTS_BYTES;
    short_sums sums = short_sums_of_pass(&p);
    const bool is_last = f.seqlen_q <= f.most.q && f.seqlen_k <= f.most.k; /* else other launches follow */
    if (!is_last || f.of_others[0].q >= 0) sums = {SUMS_LATER, 0, 0, f.batch, f.num_heads_q / f.group};
    const unsigned y = static_cast<unsigned>(sums.parts < 65535 ? sums.parts : 65535);
    const launch_shape grid = {{static_cast<unsigned>(sums.head_parts), y,
                                static_cast<unsigned>((sums.parts + y - 1) / y)},
                               {shape::THREADS_OF_CTA, 1, 1}, {1, 1, 1},
                               others + (of_scores > of_parts ? of_scores : of_parts), shape::THREADS_OF_CTA,
                               shape::CTAS};
    int code = start(grid, sums, of_scores != 0);
    if (!is_last || code != 0) return code;
    if (sums.way != SUMS_LATER) return launch_sums<shape::KEYS>(p, sums, stream);
    code = KERNEL_SYMBOL(dbias)(&p, stream);
    return code != 0 ? code : KERNEL_SYMBOL(dsink)(&p, stream);
}

#endif

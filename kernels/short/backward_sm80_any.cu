/* backward_sm80_any.cu - attention backward of short sequences with any scores: dq, dk and dv in one launch.
 *
 *     dx = p (dp - delta + dlse),  ds = dx (1 - (t / softcap)^2)
 *     dq = scale ds k,  dk = scale ds^T q,  dv = (m p)^T dout
 *
 * Takes fp16 and bf16, at most 128 query rows and keys in use, of heads of more than 128 features 64, and every feature
 * of lib/contract.md: shared/scores.h says what a score is. delta is the sum of p dp over that of p; where there is a
 * sink, which is a key of p, too, the sum alone; and it may be given.
 *
 * Grid    x: KV heads; y, z: sequences; or parts of them, where they add to the same elements of dbias
 * Block   a warp for each 16 query rows and 64 keys: 4 warps for 64 rows and keys, 16 for 128. Then it owns 16 keys,
 *         and 16 rows again, of all features or, where two warps share them, of a half
 * Shared  tiles of q, dout, k and v; masks and biases, whose place p and then ds take; what warps tell of rows
 * Phases  for each problem, for each query head of the group: load; s and dp, scores, p; delta of a row from the warps
 *         that share it; dbias; p to shared memory; dv of a warp's keys; ds to the place of p; dq of a warp's rows, dk
 *         of its keys. What tiles of dbias and the rows' dsink add up to comes with a second launch
 *
 * Everything is read once, and written once. p and ds enter products as sums of two 16-bit numbers, as in
 * short/backward_sm80.cu; sums of dk and dv go on from head to head in memory of the thread's own. Scores come by
 * fragments in registers (shared/gradient_stage.h). Where something is not finite, or a row's lse is large, the CTA
 * takes its problem again pair by pair: then a pair that takes no part has the weight UNSEEN, and where the other side
 * holds a NaN, products leave it out. reference/bounds.md section 11.17 says what this may be off by. */
#include "kernels/short/backward_any.h"
#include "kernels/short/backward_pairs.h"

namespace {

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

/* Asks for the tiles of a query head, with the first of a group those of k and v, and its masks and biases. */
template <typename shape>
DEVICE void load_head(const any_places &at, const backward_params &p, int64_t head, bool is_first, bool has_stages)
{
    constexpr int DIM = shape::DIM, KEYS = shape::KEYS, ALL = shape::THREADS_OF_CTA;
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    const sequence &s = c.s;
    if (is_first) load_tile<KEYS, DIM, ALL>(at.k, f.k, c.b, s.first_k, s.used_k, c.head_kv, f.head_dim);
    load_tile<KEYS, DIM, ALL>(at.q, f.q, c.b, s.first_q, s.used_q, head, f.head_dim);
    if (is_first) load_tile<KEYS, DIM, ALL>(at.v, f.v, c.b, s.first_k, s.used_k, c.head_kv, f.head_dim_v);
    load_tile<KEYS, DIM, ALL>(at.dout, p.dout, c.b, s.first_q, s.used_q, head, f.head_dim_v);
    if ((shape::SCORES & (HAS_MASKS | HAS_BIAS)) == 0 || !has_stages) return;
    const auto stages = find_score_stages<typename shape::stages>(
        f, find_gradient_terms<shape::SCORES>(f, c.b, head).rule, reinterpret_cast<unsigned char *>(at.parts), true);
    load_masks<ALL>(stages, 0, 0, s.used_q, 0, s.used_k);
    load_biases<ALL>(stages, f.bias.dtype, 0, s.used_q, 0, s.used_k);
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
    add_dx<shape::THREADS_OF_CTA>(c.tiles + tile * (shape::KEYS * shape::KEYS), dx, adds);
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

/* Makes p and ds of a head, in parts: p in shared memory, ds in the warp's own registers. Returns whether a row of the
 * warp has a sum that is no finite number. */
template <typename T, typename shape, bool EXACT>
DEVICE bool find_pairs(weight_parts<64> &of_ds, const any_places &at, const backward_params &p, int64_t head,
                       lane_rows &rows, const warp_place &own, const asked_sums &asked, bool has_stages)
{
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    const int32_t lane_row = own.first + static_cast<int>(lane()) / 4;
    uint16_t *const own_parts = at.parts + own.part * (shape::WARP_KEYS / 16) * 2 * shape::PART;
    warp_pairs w; /* holds s and dp at first */
    uint32_t seen[2] = {};
    delta_sums sums;
    const int keys = own.part * shape::WARP_KEYS * shape::DIM;
    multiply_rows<T, shape::DIM, 64>(w.p, w.dp, at.q, at.dout, at.k + keys, at.v + keys,
                                     static_cast<unsigned>(own.first));
    if constexpr (EXACT) {
        find_weights_exactly<shape>(w, sums, seen, rows, p, c.s, find_score_terms<false>(f, c.b, head), head, own,
                                    at.numbers);
    } else {
        const gradient_terms terms = find_gradient_terms<shape::SCORES>(f, c.b, head);
        const auto stages = find_score_stages<typename shape::stages>(
            f, terms.rule, reinterpret_cast<unsigned char *>(at.parts), has_stages);
        const float lse[2] = {rows.lse[0].high == -infinity_f32() ? 0 : rows.lse[0].high, /* y is -inf, too */
                              rows.lse[1].high == -infinity_f32() ? 0 : rows.lse[1].high};
        find_weights_of_warp<shape>(w, sums, stages, f, c.s, terms, own, lse);
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
    weight_parts<64> of_p;
    split<T, 64>(of_p, w.p);
    split<T, 64>(of_ds, w.dp);
    if constexpr (EXACT) mark_unseen(of_p, seen), mark_unseen(of_ds, seen);
    store_fragments<shape::KEYS>(own_parts, of_p, static_cast<unsigned>(own.first));
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
        load_head<shape>(at, p, head, n == 0, !EXACT && has_stages);
        lane_rows rows = load_rows_of_lane(p, s, c.b, head, lane_row);
        if (!EXACT) vote_of_warp(at.votes, is_special(rows, p));
        cp_async_wait_all();
        sync_threads(); /* the tiles are complete */
        if (!EXACT && join_warps<shape::WARPS>(at.votes)) return false;
        weight_parts<64> of_ds;
        has_infinite |= find_pairs<T, shape, EXACT>(of_ds, at, p, head, rows, own, {sums, n}, has_stages);
        sync_threads(); /* p is complete */
        if (sums.way != SUMS_LATER) sum_sinks<shape>(at, p, head);

        const result_rows dv = {p.dv, row_of(p.dv, c.b, s.first_k + own.first, c.head_kv, f.head_dim_v), keys_left,
                                f.dropout_multiplier, at.v + static_cast<int>(warp()) * AREA};
        has_infinite |= find_result<T, shape, true, EXACT>(dv, of_dv, place, at.parts, at.dout, own);
        sync_threads(); /* p and dout are free */
        store_fragments<shape::KEYS>(own_parts, of_ds, static_cast<unsigned>(own.first));
        sync_threads(); /* ds is complete */

        uint16_t *const own_area = at.dout + static_cast<int>(warp()) * AREA;
        const result_rows dq = {p.dq, row_of(p.dq, c.b, s.first_q + own.first, head, f.head_dim), rows_left,
                                f.softmax_scale, own_area};
        has_infinite |= find_result<T, shape, false, EXACT>(dq, of_dk, {true, true}, at.parts, at.k, own);
        const result_rows dk = {p.dk, row_of(p.dk, c.b, s.first_k + own.first, c.head_kv, f.head_dim), keys_left,
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

/* All kernels of a width share it. */
template <typename T, int DIM, int KEYS>
DEVICE_CALLED void take_problem_exactly(const backward_params &p, const short_sums &sums, unsigned char *shared)
{
    using shape = any_shape<DIM, KEYS, EVERY_FEATURE>;
    sync_threads(); /* shared memory is free */
    take_problem<T, shape, true>(find_places<shape>(shared), p, sums, false);
}

/* Computes what the CTA's problem descriptor describes. */
template <typename T, typename shape>
DEVICE void take_any_problem(const any_places &at, const backward_params &p, const short_sums &sums, bool has_stages,
                             unsigned char *shared)
{
    constexpr int DIM = shape::DIM, ALL = shape::THREADS_OF_CTA;
    const forward_params &f = p.forward;
    const any_problem &c = *at.problem;
    if (!c.is_ours) return;
    const sequence &s = c.s;
    if (sums.way == SUMS_OF_TILES)
        for (int n = static_cast<int>(thread_x()); n < shape::KEYS * shape::SPLIT; n += ALL) at.added[n] = 0;
    if (!fits_fragments(f, s, 0, shape::KEYS, {0, shape::KEYS}, has_stages) ||
        !take_problem<T, shape, false>(at, p, sums, has_stages))
        take_problem_exactly<T, DIM, shape::KEYS>(p, sums, shared);
    if (s.used_k == s.seqlen_k) return;
    clear_rows<DIM, ALL>(p.dk, c.b, s.first_k, s.used_k, s.seqlen_k, c.head_kv, f.head_dim);
    clear_rows<DIM, ALL>(p.dv, c.b, s.first_k, s.used_k, s.seqlen_k, c.head_kv, f.head_dim_v);
}

template <typename T, typename shape>
KERNEL(shape::THREADS_OF_CTA, shape::CTAS) void short_backward_sm80_any_kernel(GRID_CONSTANT const backward_params p,
                                                                               const short_sums sums,
                                                                               bool has_stages)
{
    constexpr int TILE = shape::KEYS * shape::KEYS;
    DYNAMIC_SHARED(shared, 16);
    const any_places at = find_places<shape>(shared);
    bool is_first = true;
    for (int64_t b = own_part(); b < p.forward.batch; b += sums.parts)
        for (int64_t head_kv = block_x(); head_kv < p.forward.by_heads_kv.by; head_kv += sums.head_parts) {
            sync_threads(); /* shared memory is free */
            if (thread_x() == 0) *at.problem = find_problem(p, sums, b, head_kv, TILE);
            sync_threads();
            if (is_first && sums.way == SUMS_OF_TILES)
                for (int n = 0; n < (sums.joins_heads ? 1 : p.forward.group); ++n)
                    clear_tile<shape::THREADS_OF_CTA>(at.problem->tiles + n * TILE);
            is_first = false;
            take_any_problem<T, shape>(at, p, sums, has_stages, shared);
        }
}

/* ---- launch ------------------------------------------------------------------------------------------------------ */

template <typename T, typename shape>
int launch(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    const size_t others = 4 * shape::TILE_BYTES + sizeof(any_problem) + 2 * shape::WARPS * sizeof(uint32_t) +
                          shape::KEYS * shape::SPLIT * (sizeof(row_numbers) + sizeof(uint32_t));
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
    int code = LAUNCH((short_backward_sm80_any_kernel<T, shape>), grid, stream, p, sums, of_scores != 0);
    if (!is_last || code != 0) return code;
    if (sums.way != SUMS_LATER) return launch_sums<shape::KEYS>(p, sums, stream);
    code = KERNEL_SYMBOL(dbias)(&p, stream);
    return code != 0 ? code : KERNEL_SYMBOL(dsink)(&p, stream);
}

/* What is no more than lengths, windows, sinks, groups and gradients of lse has a kernel of its own. */
template <typename T, int DIM, int KEYS>
int launch_features(const backward_params &p, void *stream)
{
    if (features_of(p.forward) == 0) return launch<T, any_shape<DIM, KEYS, 0>>(p, stream);
    return launch<T, any_shape<DIM, KEYS, EVERY_FEATURE>>(p, stream);
}

/* No problem of more than 64 rows is wider than 128 features. */
template <typename T>
int launch_width(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    const int widest = f.head_dim > f.head_dim_v ? f.head_dim : f.head_dim_v;
    const bool is_long = longest_of(f) > 64;
    if (widest <= 64)
        return is_long ? launch_features<T, 64, 128>(p, stream) : launch_features<T, 64, 64>(p, stream);
    if (widest <= 128 || is_long)
        return is_long ? launch_features<T, 128, 128>(p, stream) : launch_features<T, 128, 64>(p, stream);
    return launch<T, any_shape<256, 64, EVERY_FEATURE>>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_backward_sm80_any)(const struct backward_params *p, void *stream)
{
    if (p->forward.batch == 0) { /* sums of nothing */
        const int code = KERNEL_SYMBOL(dbias)(p, stream);
        return code != 0 ? code : KERNEL_SYMBOL(dsink)(p, stream);
    }
    if (p->forward.q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

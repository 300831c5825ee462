/* backward_fp32.cu - attention backward in fp32, no tensor cores: the plain member of the family.
 *
 *     delta = sum_j p_j dp_j,             dq = softmax_scale sum_j ds_j k_j
 *     dk = softmax_scale sum_i ds_i q_i,  dv = sum_i m p_i dout_i
 *
 * Takes and gives fp32, fp16 and bf16 tensors, any shape and strides, and every feature of lib/contract.md:
 * shared/gradients.h says what one score adds. o is not read: delta is summed from p and dp of its own pass over the
 * keys, unless it is given. dbias and dsink have launchers of their own.
 *
 * dq      Grid x: batch * num_heads_q; y, z: tiles of TILE_A query rows. Two passes over tiles of TILE_B keys: delta,
 *         dq; before them two where an lse is large: the largest score, the sum. What others need of rows goes to the
 *         workspace
 * dk, dv  Grid x: batch * num_heads_kv; y, z: tiles of TILE_A keys. For each query head of the group, tiles of TILE_B
 *         queries: the sums of a group stay in one thread, in the order of its heads
 * Block   128 threads; a thread owns 4 rows, 4 of the other side of a tile, and 4 features of every 64: shared/fp32.h
 * Shared  44 KB */
#include "kernels/shared/fp32.h"

namespace {

/* Writes factor * sum to row i, or zero where the row is past those in use. Adding 0 avoids a -0 where nothing was
 * summed. */
template <int DIM>
DEVICE void write_gradient(const row_tensor &t, int64_t b, int64_t row, int64_t head, int length,
                           const quad (&sum)[DIM / SPAN], float factor, bool used)
{
    const row_pointer to = row_of(t, b, row, head, length);
    UNROLL for (int n = 0; n < DIM / SPAN; ++n) {
        quad out;
        for (int e = 0; e < 4; ++e) out.at[e] = used ? factor * sum[n].at[e] + 0.0f : 0.0f;
        store_features(to, 4 * column_of_thread() + n * SPAN, out);
    }
}

/* ---- dq ---- */

/* Names what each pass over the keys finds of a row, in the order of the passes. All but the last sum over a thread's
 * keys. */
enum pass { LARGEST_SCORE, SUM_OF_WEIGHTS, DELTA, DQ };

/* Adds what a score contributes to the number that a pass finds. In the second pass lse is the largest score. */
DEVICE float add_score(int pass, float number, const gradient &g)
{
    if (pass == LARGEST_SCORE) return max_f32(number, g.y);
    return pass == SUM_OF_WEIGHTS ? number + g.p : fma_rn(g.p, g.dp, number);
}

/* Returns the state of a row before any pass; `is_own` says that its lse is not the one it is given. */
INLINE row_state begin_row(const backward_params &p, const query_head &h, int32_t row, bool &is_own)
{
    row_state state = {};
    is_own = false;
    if (row >= h.s.used_q) return state;
    state = {load_row_lse(p, h.s, h.b, row, h.head), load_scalar(p.delta, h.s, h.b, row, h.head),
             load_scalar(p.dlse, h.s, h.b, row, h.head)};
    is_own = needs_own_lse(p, state.lse);
    return state;
}

/* Returns the reference of a row whose lse is not the one it is given. All threads that share the row call it. */
DEVICE float own_reference(const backward_params &p, const query_head &h, int32_t row, bool is_own)
{
    float largest = -infinity_f32();
    if (is_own && h.rule.bias != nullptr)
        largest = largest_bias(p.forward, h.rule, h.s, row, column_of_thread(), COLUMNS);
    const float sink = p.forward.sink != nullptr ? p.forward.sink[h.head] : -infinity_f32();
    largest = max_of_row(largest);
    return h.rule.bias != nullptr ? reference_of_row(largest, sink) : 0;
}

/* Returns the sink's score. */
DEVICE float sink_of(const backward_params &p, const query_head &h, const row_state &state)
{
    return p.forward.sink != nullptr ? (p.forward.sink[h.head] - state.lse.reference) * LOG2_E : -infinity_f32();
}

/* Updates a row after a pass that is not the last. `number` covers all of its keys. */
DEVICE void end_pass(row_state &state, int pass, float number, float sink)
{
    if (pass == LARGEST_SCORE) state.lse.high = max_f32(number, sink);
    if (pass == SUM_OF_WEIGHTS)
        state.lse = split_lse(state.lse.high, number + exp2_f32(sink - state.lse.high), state.lse.reference);
    if (pass == DELTA) state.delta = number;
}

template <int DIM>
KERNEL(THREADS, 1) void dq_kernel(const backward_params p)
{
    STATIC_SHARED(row_tiles, tiles);
    STATIC_SHARED(weight_tile, weights); /* q . k, then ds */
    STATIC_SHARED(weight_tile, dout_v);
    STATIC_SHARED(vote_words, votes);
    const forward_params &f = p.forward;
    const query_head h = find_query_head(f, block_x() / f.num_heads_q, block_x() % f.num_heads_q);
    if (first_row_of_block() >= h.s.seqlen_q) return;
    const int32_t tile_row = static_cast<int32_t>(first_row_of_block()), row = tile_row + row_of_thread();
    const int rows = h.s.used_q - tile_row < TILE_A ? h.s.used_q - tile_row : TILE_A;
    const interval keys = keys_of_rows(f, h.s, tile_row, tile_row + rows).some;

    row_state state[ROWS];
    bool is_own[ROWS];
    float any[ROWS] = {}; /* 1: a thread has met a visible key */
    quad dq[ROWS][DIM / SPAN] = {};
    UNROLL for (int i = 0; i < ROWS; ++i) {
        state[i] = begin_row(p, h, row + i, is_own[i]);
        const float reference = own_reference(p, h, row + i, is_own[i]);
        if (is_own[i]) state[i].lse.reference = reference;
    }
    const bool has_own = vote_any(votes, is_own[0] || is_own[1] || is_own[2] || is_own[3]);
    const bool has_delta = p.delta.data != nullptr;
    ROLLED for (int pass = has_own ? LARGEST_SCORE : has_delta ? DQ : DELTA; pass <= DQ; ++pass) {
        if (pass == DELTA && has_delta) continue;
        float number[ROWS];
        UNROLL for (int i = 0; i < ROWS; ++i) number[i] = pass == LARGEST_SCORE ? -infinity_f32() : 0;
        for (int32_t key = keys.first; key < keys.last; key += TILE_B) {
            const int count = keys.last - key < TILE_B ? keys.last - key : TILE_B;
            if (is_tile_hidden(f, h, tile_row, rows, key, count, votes)) continue;
            find_dots(weights, dout_v, tiles, p, h, tile_row, rows, key, count);
            UNROLL for (int i = 0; i < ROWS; ++i)
                ROLLED for (int c = 0; c < KEYS; ++c) {
                    const int at = pair_of_thread(i, c), j = key + column_of_thread() + c * COLUMNS;
                    const gradient g =
                        find_gradient(f, h.rule, h.s, row + i, j, weights.at[at], dout_v.at[at], state[i]);
                    if (g.visible) any[i] = 1;
                    if (pass == DQ) weights.at[at] = weight_of(g.visible, g.ds);
                    else if (g.visible) number[i] = add_score(pass, number[i], g);
                }
            if (pass == DQ) accumulate<DIM>(dq, tiles, weights, key_rows(f, f.k, h, key, count, f.head_dim));
        }
        UNROLL for (int i = 0; i < ROWS && pass < DQ; ++i) {
            const float of_row = pass == LARGEST_SCORE ? max_of_row(number[i]) : sum_of_row(number[i]);
            if (pass == DELTA || is_own[i]) end_pass(state[i], pass, of_row, sink_of(p, h, state[i]));
        }
    }
    UNROLL for (int i = 0; i < ROWS; ++i) {
        const bool empty = max_of_row(any[i]) == 0, used = row + i < h.s.used_q;
        if (row + i >= h.s.seqlen_q) continue;
        if (used && column_of_thread() == 0) {
            const row_terms terms = terms_of(p, h.s, h.b, h.head);
            terms.delta[row + i] = empty && !p.external_lse ? 0 : state[i].delta; /* it may have keys elsewhere */
            write_row_lse(terms, row + i, state[i].lse);
        }
        write_gradient<DIM>(p.dq, h.b, h.s.first_q + row + i, h.head, f.head_dim, dq[i], f.softmax_scale, used);
    }
}

template <int DIM>
int launch_dq(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    if (f.seqlen_q == 0) return 0;
    return LAUNCH(dq_kernel<DIM>, shape_of(f.batch * f.num_heads_q, f.seqlen_q), stream, p);
}

/* ---- dk and dv ---- */

struct alignas(16) state_tile {
    row_state at[TILE_B];
};

template <int DIM>
KERNEL(THREADS, 1) void dk_dv_kernel(const backward_params p)
{
    STATIC_SHARED(row_tiles, tiles);
    STATIC_SHARED(weight_tile, dropped_p); /* dout . v, then that */
    STATIC_SHARED(weight_tile, ds);        /* q . k, then that */
    STATIC_SHARED(state_tile, states);
    STATIC_SHARED(vote_words, votes);
    const forward_params &f = p.forward;
    const int64_t heads_kv = f.num_heads_q / f.group, b = block_x() / heads_kv, head_kv = block_x() % heads_kv;
    const sequence s = find_sequence(f, b);
    if (first_row_of_block() >= s.seqlen_k) return;
    const int32_t tile_key = static_cast<int32_t>(first_row_of_block()), key = tile_key + row_of_thread();
    const int keys = s.used_k - tile_key < TILE_A ? s.used_k - tile_key : TILE_A;
    const interval rows = rows_of_keys(f, s, tile_key, tile_key + keys);

    quad dk[ROWS][DIM / SPAN] = {}, dv[ROWS][DIM / SPAN] = {};
    for (int64_t head = head_kv * f.group; head < (head_kv + 1) * f.group; ++head) {
        const query_head h = find_query_head(f, b, head);
        for (int32_t row = rows.first; row < rows.last; row += TILE_B) {
            const int count = rows.last - row < TILE_B ? rows.last - row : TILE_B;
            if (is_tile_hidden(f, h, row, count, tile_key, keys, votes)) continue;
            if (thread_x() < TILE_B)
                states.at[thread_x()] = load_row_state(p, s, b, row + static_cast<int>(thread_x()), head);
            const head_rows q = query_rows(f.q, h, row, count, f.head_dim);
            const head_rows dout = query_rows(p.dout, h, row, count, f.head_dim_v);
            dot_products(dropped_p, tiles, key_rows(f, f.v, h, tile_key, keys, f.head_dim_v), dout);
            dot_products(ds, tiles, key_rows(f, f.k, h, tile_key, keys, f.head_dim), q);
            ROLLED for (int i = 0; i < ROWS; ++i)
                ROLLED for (int c = 0; c < KEYS; ++c) {
                    const int at = pair_of_thread(i, c), r = column_of_thread() + c * COLUMNS;
                    const gradient g =
                        find_gradient(f, h.rule, s, row + r, key + i, ds.at[at], dropped_p.at[at], states.at[r]);
                    dropped_p.at[at] = weight_of(g.visible, g.dropped_p);
                    ds.at[at] = weight_of(g.visible, g.ds);
                }
            accumulate<DIM>(dv, tiles, dropped_p, dout);
            accumulate<DIM>(dk, tiles, ds, q);
        }
    }
    UNROLL for (int i = 0; i < ROWS; ++i) {
        if (key + i >= s.seqlen_k) break;
        const bool used = key + i < s.used_k;
        write_gradient<DIM>(p.dk, b, s.first_k + key + i, head_kv, f.head_dim, dk[i], f.softmax_scale, used);
        write_gradient<DIM>(p.dv, b, s.first_k + key + i, head_kv, f.head_dim_v, dv[i], 1, used);
    }
}

template <int DIM>
int launch_dk_dv(const backward_params &p, void *stream)
{
    const forward_params &f = p.forward;
    if (f.seqlen_k == 0) return 0;
    return LAUNCH(dk_dv_kernel<DIM>, shape_of(f.batch * f.num_heads_q / f.group, f.seqlen_k), stream, p);
}

/* Launches the second kernel after dq, which leaves the terms of rows in the workspace. */
int launch_after_dq(const backward_params &p, void *stream)
{
    const int widest = p.forward.head_dim > p.forward.head_dim_v ? p.forward.head_dim : p.forward.head_dim_v;
    if (widest <= 64) return launch_dk_dv<64>(p, stream);
    if (widest <= 128) return launch_dk_dv<128>(p, stream);
    return launch_dk_dv<256>(p, stream);
}

int launch(const backward_params &p, void *stream)
{
    const int head_dim = p.forward.head_dim;
    const int code = head_dim <= 64    ? launch_dq<64>(p, stream)
                     : head_dim <= 128 ? launch_dq<128>(p, stream)
                                       : launch_dq<256>(p, stream);
    return code != 0 ? code : launch_after_dq(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(backward_fp32)(const struct backward_params *p, void *stream)
{
    int code = p->forward.batch == 0 ? 0 : launch(*p, stream);
    if (code == 0) code = KERNEL_SYMBOL(dbias)(p, stream);
    if (code == 0) code = KERNEL_SYMBOL(dsink)(p, stream);
    return code;
}

/* forward_sm80.cu - attention forward of 16-bit tensors on tensor cores, for every GPU since 2020.
 *
 *     o = softmax(scores over visible keys) v,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp16 and bf16, and every feature of lib/contract.md: shared/scores.h says what a score is.
 *
 * Grid    x: tiles of TILE_Q query rows, the longest first where a window cuts them; y, z: batch * num_heads_q
 * Block   4 warps; a warp owns 32 neighbouring rows (16 where DIM is 256), its lanes share them as mma.sync has it
 * Shared  a tile of q, one of k, one of v: 32 KB at DIM 64, 64 KB at 128, 96 KB at 256
 * Phases  load q and k; for each tile of keys: load v beside s = q k^T, the next k beside softmax and o += p v; where
 *         biases alone make a row's maximum large, retry with the largest of them subtracted; write o
 *
 * s and o are sums of the tensor cores in fp32. Weights are 2^(y - m), y the score in base 2, m the running maximum of
 * the row; p v takes them rounded to 16 bits, their sum takes them as they are. Where y is no more than c (q . k),
 * weights are 2^(fma(q . k, c, -m)), c = softmax_scale log2 e. PLAIN: that, and no masks but lengths and window, no
 * dropout. kernels/long/forward.md has the figures, reference/bounds.md section 11 what it may be off by. */
#include "kernels/shared/online_softmax.h"
#include "kernels/shared/params.h"
#include "kernels/shared/scores.h"
#include "kernels/shared/tiles.h"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32, TILE_K = 64 };

/* A warp that owns 32 rows reads k and v half as often. At 256 features o of 32 rows would not fit into registers, nor
 * would what scores that are not plain need. */
template <int DIM, bool PLAIN>
struct shape {
    static constexpr int BLOCKS = PLAIN && DIM <= 128 ? 2 : 1; /* of 16 rows to a warp */
    static constexpr int WARP_Q = 16 * BLOCKS, TILE_Q = WARPS * WARP_Q;
    static constexpr int NUMBERS = (TILE_Q + 2 * TILE_K) * DIM; /* of q, k and v in shared memory */
    static constexpr size_t SHARED_BYTES = NUMBERS * sizeof(uint16_t) + WARPS * sizeof(uint32_t);
};

/* Adds a tile of keys, the first of which is `key`, to what a warp keeps, given its dot products with them. is_cut says
 * that not every row sees every key. */
template <typename T, int DIM, int BLOCKS, bool PLAIN>
DEVICE void take_tile(const forward_params &p, const score_rule &rule, const sequence &s, float c, bool is_cut,
                      accumulators<DIM> (&kept)[BLOCKS], score_block<TILE_K> (&scores)[BLOCKS],
                      const row_references<BLOCKS> &reference, int32_t row, int32_t key, const uint16_t *v)
{
    const int32_t lane_key = key + static_cast<int>(lane()) % 4 * 2;
    if (!PLAIN || is_cut) {
        UNROLL for (int m = 0; m < BLOCKS; ++m) {
            if (PLAIN) {
                hide_keys(p, s, scores[m], row + 16 * m, lane_key);
            } else {
                find_scores(p, rule, s, scores[m], row + 16 * m, lane_key, reference[m]);
                kept[m].any[0] |= scores[m].seen[0], kept[m].any[1] |= scores[m].seen[1];
            }
        }
        softmax_step<true>(kept, scores, c);
        if (!PLAIN && p.dropout_threshold != 0)
            UNROLL for (int m = 0; m < BLOCKS; ++m) drop_keys(scores[m]);
        if (!is_tile_finite<T, TILE_K, DIM>(v)) return multiply_p_v_seen<T, 1, PLAIN ? DIM : 16>(kept, scores, v);
    } else {
        softmax_step<false>(kept, scores, c);
    }
    multiply_p_v<T, 1>(kept, scores, v);
}

/* Writes o in fp32. */
template <int DIM, int BLOCKS>
DEVICE void write_o_32(const forward_params &p, const accumulators<DIM> (&kept)[BLOCKS],
                       const row_factors<BLOCKS> &factor, int64_t b, int64_t first, int rows, int64_t head)
{
    const int g = static_cast<int>(lane()) / 4, t = static_cast<int>(lane()) % 4;
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const int row = 16 * m + 8 * half + g;
            const row_pointer o = row_of(p.o, b, first + row, head, row < rows ? p.head_dim_v : 0);
            UNROLL for (int n = 0; n < DIM / 8; ++n)
                UNROLL for (int e = 0; e < 2; ++e)
                    if (8 * n + 2 * t + e < o.length)
                        store_feature(o, 8 * n + 2 * t + e, kept[m].o[n][2 * half + e] * factor[m][half]);
        }
}

/* Returns the next tile from `key` on that masks of bytes do not hide, or `last` if there is none. Plain scores have no
 * masks. */
template <bool PLAIN>
DEVICE int32_t next_tile(const forward_params &p, const score_rule &rule, const sequence &s, int32_t row, int rows,
                         int32_t key, int32_t last, uint32_t *votes)
{
    if constexpr (!PLAIN) {
        if (rule.mask == nullptr && rule.block_mask == nullptr) return key;
        for (; key < last; key += TILE_K) {
            const int keys = last - key < TILE_K ? last - key : TILE_K;
            const bool hidden = is_hidden<THREADS>(p, rule, s, row, rows, key, keys, votes);
            sync_threads(); /* the votes are free */
            if (!hidden) return key;
        }
        return last;
    } else {
        return key;
    }
}

/* Returns whether a warp of the CTA asks for a retry. */
DEVICE bool is_taken_again(bool is_asked, uint32_t *votes)
{
    if (lane() == 0) votes[warp()] = is_asked;
    sync_threads();
    uint32_t all = 0;
    for (int w = 0; w < WARPS; ++w) all |= votes[w];
    sync_threads(); /* the votes are free */
    return all != 0;
}

/* The epilogue finds factors of o, and lse, of a lane's rows from lane_row on: o = sum p v / sum p, lse = ln 2 (m +
 * log2 sum p); (0, -inf or the sink) where no key is seen. */
template <int DIM, int BLOCKS, bool PLAIN>
DEVICE void end_rows(float (&factor)[BLOCKS][2], accumulators<DIM> (&kept)[BLOCKS], const forward_params &p,
                     const sequence &s, const row_references<BLOCKS> &reference, int64_t b, int64_t head,
                     int32_t lane_row, float sink)
{
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const int32_t row = lane_row + 16 * m + 8 * half;
            const float sum = sum_of_quad(kept[m].sum[half]);
            const interval seen = keys_of_row(p, s, row);
            bool is_empty = seen.first >= seen.last;
            if (!PLAIN) {
                const uint32_t any = kept[m].any[half] | shfl_xor(FULL_WARP, kept[m].any[half], 1);
                is_empty = (any | shfl_xor(FULL_WARP, any, 2)) == 0;
            }
            clear_empty(kept[m], half, is_empty);
            factor[m][half] = is_empty ? 0 : div_rn(p.dropout_multiplier, sum);
            const float empty_lse = row < s.used_q ? sink : -infinity_f32();
            float lse = is_empty ? empty_lse : (kept[m].max[half] + log2_f32(sum)) * LN_2;
            if (!PLAIN && !is_empty) lse += reference[m][half];
            if (p.lse.data != nullptr && row < s.seqlen_q && lane() % 4 == 0)
                store_feature(row_of(p.lse, b, s.first_q + row, head, 1), 0, lse);
        }
}

template <typename T, int DIM, bool PLAIN>
KERNEL(THREADS, 2) void forward_kernel(const forward_params p)
{
    using shape = shape<DIM, PLAIN>;
    DYNAMIC_SHARED(shared, 16);
    uint16_t *const q = reinterpret_cast<uint16_t *>(shared), *const k = q + shape::TILE_Q * DIM;
    uint16_t *const v = k + TILE_K * DIM;
    uint32_t *const votes = reinterpret_cast<uint32_t *>(q + shape::NUMBERS);

    const int64_t row_of_heads = static_cast<int64_t>(block_z()) * grid_y() + block_y();
    if (row_of_heads >= p.batch * p.num_heads_q) return;
    const int64_t b = row_of_heads / p.num_heads_q, head = row_of_heads % p.num_heads_q, head_kv = head / p.group;
    const sequence s = find_sequence(p, b);
    const int64_t first = static_cast<int64_t>(grid_x() - 1 - block_x()) * shape::TILE_Q;
    if (first >= s.seqlen_q || !is_ours(p, s)) return;
    const int32_t tile_row = static_cast<int32_t>(first);
    const int rows = s.used_q - tile_row < shape::TILE_Q ? s.used_q - tile_row : shape::TILE_Q;
    const interval keys = keys_of_rows(p, s, tile_row, tile_row + rows).some;

    const int warp_row = static_cast<int>(warp()) * shape::WARP_Q, g = static_cast<int>(lane()) / 4;
    const int32_t warp_last = rows < warp_row + shape::WARP_Q ? tile_row + rows : tile_row + warp_row + shape::WARP_Q;
    const tile_keys warp_keys = keys_of_rows(p, s, tile_row + warp_row, warp_last);
    const int32_t lane_row = tile_row + warp_row + g;

    /* Where scores are c (q . k), c >= 0, c is left to the exponent: so maxima of dot products are those of scores, and
     * masks of bytes give the bits that a window gives. */
    score_rule rule = find_score_rule(p, b, head);
    const bool is_linear = p.bias.data == nullptr && p.alibi_slopes == nullptr && p.softcap == 0 && rule.scale >= 0;
    const float c = is_linear ? rule.scale : 1;
    if (is_linear) rule.scale = 1;
    const float sink = p.sink != nullptr ? p.sink[head] : -infinity_f32();
    accumulators<DIM> kept[shape::BLOCKS];
    row_references<shape::BLOCKS> reference = {};
    do {
        begin_rows(kept, reference, sink);
        /* Tiles begin at multiples of TILE_K: then a row's sums do not depend on the rows beside it. */
        int32_t key = next_tile<PLAIN>(p, rule, s, tile_row, rows, keys.first / TILE_K * TILE_K, keys.last, votes);
        if (key < keys.last) {
            load_tile<shape::TILE_Q, DIM, THREADS>(q, p.q, b, s.first_q + tile_row, rows, head, p.head_dim);
            load_tile<TILE_K, DIM, THREADS>(k, p.k, b, s.first_k + key, keys.last - key, head_kv, p.head_dim);
        }
        while (key < keys.last) {
            const int32_t next = next_tile<PLAIN>(p, rule, s, tile_row, rows, key + TILE_K, keys.last, votes);
            const bool is_seen = key < warp_keys.some.last && key + TILE_K > warp_keys.some.first;
            const bool is_cut = !PLAIN || key < warp_keys.all.first || key + TILE_K > warp_keys.all.last;
            cp_async_wait_all();
            sync_threads(); /* q and k are complete, v is free */
            load_tile<TILE_K, DIM, THREADS>(v, p.v, b, s.first_k + key, keys.last - key, head_kv, p.head_dim_v);
            score_block<TILE_K> scores[shape::BLOCKS];
            if (is_seen) multiply_q_k<T, DIM>(scores, q, warp_row, k);
            cp_async_wait_all();
            sync_threads(); /* v is complete, k is free */
            if (next < keys.last)
                load_tile<TILE_K, DIM, THREADS>(k, p.k, b, s.first_k + next, keys.last - next, head_kv, p.head_dim);
            if (is_seen)
                take_tile<T, DIM, shape::BLOCKS, PLAIN>(p, rule, s, c, is_cut, kept, scores, reference, lane_row, key,
                                                        v);
            key = next;
        }
    } while (!PLAIN && is_taken_again(find_references(reference, kept, p, rule, s, lane_row, sink), votes));
    float factor[shape::BLOCKS][2];
    end_rows<DIM, shape::BLOCKS, PLAIN>(factor, kept, p, s, reference, b, head, lane_row, sink);
    const int left = s.seqlen_q - tile_row - warp_row;
    const int64_t warp_first = s.first_q + tile_row + warp_row;
    if (p.o.dtype == ATTEST_FP32) return write_o_32<DIM, shape::BLOCKS>(p, kept, factor, b, warp_first, left, head);
    const row_pointer o = row_of(p.o, b, warp_first, head, p.head_dim_v);
    if (p.o.dtype == ATTEST_FP16) write_o_16<f16>(p.o, kept, factor, q + warp_row * DIM, o, left);
    else write_o_16<bf16>(p.o, kept, factor, q + warp_row * DIM, o, left);
}

template <typename T, int DIM, bool PLAIN>
int launch(const forward_params &p, void *stream)
{
    using shape = shape<DIM, PLAIN>;
    const int64_t tiles = (static_cast<int64_t>(p.seqlen_q) + shape::TILE_Q - 1) / shape::TILE_Q;
    const int64_t heads = p.batch * p.num_heads_q;
    const unsigned y = static_cast<unsigned>(heads < 65535 ? heads : 65535);
    const launch_shape grid = {{static_cast<unsigned>(tiles), y, static_cast<unsigned>((heads + y - 1) / y)},
                               {THREADS, 1, 1}, {1, 1, 1}, shape::SHARED_BYTES, THREADS, 2};
    return LAUNCH((forward_kernel<T, DIM, PLAIN>), grid, stream, p);
}

template <typename T, bool PLAIN>
int launch_width(const forward_params &p, void *stream)
{
    const int widest = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    if (widest <= 64) return launch<T, 64, PLAIN>(p, stream);
    if (widest <= 128) return launch<T, 128, PLAIN>(p, stream);
    return launch<T, 256, PLAIN>(p, stream);
}

/* The maximum of plain scores is c times that of the dot products: c may not be negative. */
template <typename T>
int launch_scores(const forward_params &p, void *stream)
{
    if (has_plain_scores(p) && p.softmax_scale >= 0) return launch_width<T, true>(p, stream);
    return launch_width<T, false>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(forward_sm80)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_scores<f16>(*p, stream);
    return launch_scores<bf16>(*p, stream);
}

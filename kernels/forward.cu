/* forward.cu - attention forward of 16-bit tensors on tensor cores, for every GPU since 2020.
 *
 *     o = softmax(scores over visible keys) v,   lse = ln(sum of exp over visible keys)
 *
 * Takes fp16 and bf16, and every feature of lib/contract.md: scores.h says what a score is.
 *
 * Grid    x: tiles of TILE_Q query rows, the longest first where a window cuts them; y, z: batch * num_heads_q
 * Block   4 warps; a warp owns 32 neighbouring rows (16 where DIM is 256), its lanes share them as mma.sync has it
 * Shared  a tile of q, one of k, one of v: 32 KB at DIM 64, 64 KB at 128, 96 KB at 256
 * Phases  load q and k; for each tile of keys: load v beside s = q k^T, the next k beside softmax and o += p v; write o
 *
 * s and o are sums of the tensor cores in fp32. Weights are 2^(y - m), y the score in base 2, m the running maximum of
 * the row; p v takes them rounded to 16 bits, their sum takes them as they are. Where y is no more than c (q . k),
 * weights are 2^(fma(q . k, c, -m)), c = softmax_scale log2 e. PLAIN: that, and no masks but lengths and window, no
 * dropout. kernels/forward.md has the figures, reference/bounds.md section 11 what it may be off by. */
#include "kernels/params.h"
#include "kernels/scores.h"
#include "kernels/tiles.h"

namespace {

enum { THREADS = 128, WARPS = THREADS / 32, TILE_K = 64 };

/* 32 rows to a warp halve the reads of k and v; at 256 features their o would not fit into registers, nor would what
 * scores that are not plain need. */
template <int DIM, bool PLAIN>
struct shape {
    static constexpr int BLOCKS = PLAIN && DIM <= 128 ? 2 : 1; /* of 16 rows to a warp */
    static constexpr int WARP_Q = 16 * BLOCKS, TILE_Q = WARPS * WARP_Q;
    static constexpr int NUMBERS = (TILE_Q + 2 * TILE_K) * DIM; /* of q, k and v in shared memory */
    static constexpr size_t SHARED_BYTES = NUMBERS * sizeof(uint16_t) + WARPS * sizeof(uint32_t);
};

/* What a lane keeps of 16 rows: of rows g and g + 8 the running maximum in base 2 and its own part of the sum of
 * weights; of their o, before normalisation, features 8 n + 2 t and 8 n + 2 t + 1. */
template <int DIM>
struct accumulators {
    float max[2], sum[2];
    float o[DIM / 8][4];
    uint32_t any[2]; /* not 0: a key was visible; kept where scores are not plain */
};

/* Scores, then weights, of 16 rows and a tile of keys, and which of them are visible: bit 2 n + e of `seen[half]` is
 * s[n][2 half + e]. */
struct score_block {
    float s[TILE_K / 8][4];
    uint32_t seen[2];
};

/* s = q k^T of a warp's rows. */
template <typename T, int DIM, int BLOCKS>
DEVICE void multiply_q_k(score_block (&scores)[BLOCKS], const uint16_t *q, int first_row, const uint16_t *k)
{
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int n = 0; n < TILE_K / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) scores[m].s[n][e] = 0;
    UNROLL for (int x = 0; x < DIM; x += 16) {
        uint32_t a[BLOCKS][4];
        UNROLL for (int m = 0; m < BLOCKS; ++m) load_a<DIM>(a[m], q, first_row + 16 * m, x);
        UNROLL for (int n = 0; n < TILE_K / 16; ++n) {
            uint32_t b[2][2];
            load_b<DIM>(b, k, 16 * n, x);
            UNROLL for (int m = 0; m < BLOCKS; ++m) {
                multiply<T>(scores[m].s[2 * n], a[m], b[0]);
                multiply<T>(scores[m].s[2 * n + 1], a[m], b[1]);
            }
        }
    }
}

/* Plain scores: -inf where lengths and window hide the key. */
DEVICE void hide_keys(const forward_params &p, const sequence &s, score_block &scores, int32_t row, int32_t key)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        const interval keys = keys_of_row(p, s, row + 8 * half);
        scores.seen[half] = 0;
        UNROLL for (int n = 0; n < TILE_K / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                const int32_t j = key + 8 * n + e;
                const bool visible = j >= keys.first && j < keys.last;
                if (visible) scores.seen[half] |= 1u << (2 * n + e);
                else scores.s[n][2 * half + e] = -infinity_f32();
            }
    }
}

/* Scores in place of dot products; -inf where the key is hidden. */
DEVICE void find_scores(const forward_params &p, const score_rule &rule, const sequence &s, score_block &scores,
                        int32_t row, int32_t key)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        const interval keys = keys_of_row(p, s, row + 8 * half);
        scores.seen[half] = 0;
        UNROLL for (int n = 0; n < TILE_K / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e) {
                const int32_t j = key + 8 * n + e;
                float *const at = &scores.s[n][2 * half + e];
                score found = {0, 1, false};
                if (j >= keys.first && j < keys.last) found = find_score(p, rule, s, row + 8 * half, j, *at);
                if (found.visible) scores.seen[half] |= 1u << (2 * n + e);
                *at = found.visible ? found.y : -infinity_f32();
            }
    }
}

/* Scores of a row of which one is +inf, against inf - inf: what is left of them is weight inf, 0 or NaN, relative to
 * 0. */
DEVICE void take_infinite(score_block &scores, int half)
{
    UNROLL for (int n = 0; n < TILE_K / 8; ++n)
        UNROLL for (int e = 2 * half; e < 2 * half + 2; ++e)
            if (scores.s[n][e] < infinity_f32()) scores.s[n][e] = -infinity_f32();
}

/* Scores times c to weights; what is kept of the rows follows their maxima. A hidden key's weight is -0: UNSEEN once it
 * is rounded. All rows go through each step together: alone, each would wait for its own shuffles and sums. */
template <int DIM, int BLOCKS, bool CUT>
DEVICE void softmax_step(accumulators<DIM> (&kept)[BLOCKS], score_block (&scores)[BLOCKS], float c)
{
    float max[BLOCKS][2], rescale[BLOCKS][2], reference[BLOCKS][2], factor[BLOCKS][2];
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            max[m][half] = -infinity_f32();
            UNROLL for (int n = 0; n < TILE_K / 8; ++n) /* passes a NaN by: it reaches the sum */
                max[m][half] = max_f32(max[m][half], max_f32(scores[m].s[n][2 * half], scores[m].s[n][2 * half + 1]));
        }
    bool is_infinite = false, is_rescaled = false;
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const float before = kept[m].max[half], now = max_f32(before, c * max_of_quad(max[m][half]));
            kept[m].max[half] = now;
            reference[m][half] = now == -infinity_f32() ? 0 : now; /* against -inf - -inf */
            factor[m][half] = c;
            rescale[m][half] = before == now ? 1 : exp2_f32(before - reference[m][half]);
            is_infinite |= now == infinity_f32();
            is_rescaled |= rescale[m][half] != 1;
        }
    if (is_infinite) {
        UNROLL for (int m = 0; m < BLOCKS; ++m)
            UNROLL for (int half = 0; half < 2; ++half)
                if (kept[m].max[half] == infinity_f32()) {
                    take_infinite(scores[m], half);
                    reference[m][half] = 0, factor[m][half] = 1;
                }
    }
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            float sum[2] = {0, 0};
            UNROLL for (int n = 0; n < TILE_K / 8; ++n)
                UNROLL for (int e = 0; e < 2; ++e) {
                    float &score = scores[m].s[n][2 * half + e];
                    const float weight = exp2_f32(fma_rn(score, factor[m][half], -reference[m][half]));
                    const bool is_hidden = CUT && (scores[m].seen[half] >> (2 * n + e) & 1) == 0;
                    score = is_hidden ? -0.0f : weight;
                    sum[e] += score;
                }
            kept[m].sum[half] = fma_rn(kept[m].sum[half], rescale[m][half], sum[0] + sum[1]);
        }
    if (ballot(FULL_WARP, is_rescaled) == 0) return;
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int n = 0; n < DIM / 8; ++n)
            UNROLL for (int e = 0; e < 4; ++e) kept[m].o[n][e] *= rescale[m][e / 2];
}

/* Weights of keys that dropout drops become +0, infinite ones NaN: they are seen, and their values are not. */
DEVICE void drop_keys(const forward_params &p, const score_rule &rule, score_block &scores, int32_t row,
                      int32_t key)
{
    UNROLL for (int half = 0; half < 2; ++half) {
        dropout_bits last;
        last.eight = -1;
        UNROLL for (int n = 0; n < TILE_K / 8; ++n)
            UNROLL for (int e = 0; e < 2; ++e)
                if ((scores.seen[half] >> (2 * n + e) & 1) != 0 &&
                    !is_kept(p, rule, row + 8 * half, key + 8 * n + e, last))
                    scores.s[n][2 * half + e] *= 0;
    }
}

/* o += p v; SELECT: over the keys that each row sees, since zero times what v holds is not always zero. */
template <typename T, int DIM, int BLOCKS, bool SELECT>
DEVICE void multiply_p_v(accumulators<DIM> (&kept)[BLOCKS], const score_block (&scores)[BLOCKS], const uint16_t *v)
{
    UNROLL for (int j = 0; j < TILE_K / 16; ++j) {
        uint32_t a[BLOCKS][4];
        UNROLL for (int m = 0; m < BLOCKS; ++m)
            UNROLL for (int r = 0; r < 4; ++r) {
                const float *const pair = &scores[m].s[2 * j + r / 2][r % 2 * 2];
                a[m][r] = pack<T>(pair[0], pair[1]);
            }
        UNROLL for (int x = 0; x < DIM; x += 16) {
            uint32_t b[2][2];
            load_b_transposed<DIM>(b, v, 16 * j, x);
            UNROLL for (int m = 0; m < BLOCKS; ++m) {
                float(&low)[4] = kept[m].o[x / 8], (&high)[4] = kept[m].o[x / 8 + 1];
                if (SELECT) {
                    multiply_seen<T>(low, high, a[m], a[m], b);
                } else {
                    multiply<T>(low, a[m], b[0]);
                    multiply<T>(high, a[m], b[1]);
                }
            }
        }
    }
}

/* What a warp makes of its dot products with a tile of keys, the first at `key`. CUT: not every row sees every key. */
template <typename T, int DIM, int BLOCKS, bool PLAIN, bool CUT>
DEVICE void take_tile(const forward_params &p, const score_rule &rule, const sequence &s, float c,
                      accumulators<DIM> (&kept)[BLOCKS], score_block (&scores)[BLOCKS], int32_t row, int32_t key,
                      const uint16_t *v)
{
    const int32_t lane_key = key + static_cast<int>(lane()) % 4 * 2;
    UNROLL for (int m = 0; m < BLOCKS; ++m) {
        if (!PLAIN) find_scores(p, rule, s, scores[m], row + 16 * m, lane_key);
        else if (CUT) hide_keys(p, s, scores[m], row + 16 * m, lane_key);
        if (!PLAIN) kept[m].any[0] |= scores[m].seen[0], kept[m].any[1] |= scores[m].seen[1];
    }
    softmax_step<DIM, BLOCKS, CUT>(kept, scores, c);
    if (!PLAIN && p.dropout_threshold != 0)
        UNROLL for (int m = 0; m < BLOCKS; ++m) drop_keys(p, rule, scores[m], row + 16 * m, lane_key);
    if (CUT && !is_tile_finite<T, TILE_K, DIM>(v)) multiply_p_v<T, DIM, BLOCKS, true>(kept, scores, v);
    else multiply_p_v<T, DIM, BLOCKS, false>(kept, scores, v);
}

template <int BLOCKS>
using row_factors = float[BLOCKS][2];

/* The factor of a row that sees no key: zero times what its tile has added may be no number. */
constexpr float NO_KEYS = -1;

DEVICE float times_factor(float sum, float factor) { return factor == NO_KEYS ? 0 : sum * factor; }

/* o of 16 bits: by way of the warp's own rows of the tile of q, so that lanes store 16 bytes of a row at once. */
template <int DIM, int BLOCKS>
DEVICE void write_o_16(const forward_params &p, const accumulators<DIM> (&kept)[BLOCKS],
                       const row_factors<BLOCKS> &factor, uint16_t *tile, int64_t b, int64_t first, int rows,
                       int64_t head)
{
    constexpr unsigned CHUNKS = DIM / 8;
    const unsigned g = lane() / 4, t = lane() % 4;
    UNROLL for (int m = 0; m < BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half)
            UNROLL for (unsigned n = 0; n < CHUNKS; ++n) {
                const float *const pair = &kept[m].o[n][2 * half];
                const float low = times_factor(pair[0], factor[m][half]), high = times_factor(pair[1], factor[m][half]);
                uint16_t *const at = &tile[tile_offset<DIM>(16 * m + 8 * half + g, 8 * n) + 2 * t];
                *reinterpret_cast<uint32_t *>(at) =
                    p.o.dtype == ATTEST_FP16 ? pack_f16x2(low, high) : pack_bf16x2(low, high);
            }
    sync_warp(FULL_WARP);
    ROLLED for (unsigned n = lane(); n < 16 * BLOCKS * CHUNKS; n += 32) {
        const unsigned row = n / CHUNKS, x = n % CHUNKS * 8;
        if (static_cast<int>(row) < rows)
            store_eight(p.o, row_of(p.o, b, first + row, head, p.head_dim_v), x, &tile[tile_offset<DIM>(row, x)]);
    }
}

/* o of fp32. */
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
                        store_feature(o, 8 * n + 2 * t + e, times_factor(kept[m].o[n][2 * half + e], factor[m][half]));
        }
}

/* The next tile from `key` on that masks of bytes do not hide; `last` if there is none. Plain scores have no masks. */
template <bool PLAIN>
DEVICE int32_t next_tile(const forward_params &p, const score_rule &rule, const sequence &s, int32_t row, int rows,
                         int32_t key, int32_t last, uint32_t *votes)
{
    if (PLAIN || (rule.mask == nullptr && rule.block_mask == nullptr)) return key;
    for (; key < last; key += TILE_K) {
        const int keys = last - key < TILE_K ? last - key : TILE_K;
        const bool hidden = is_hidden<THREADS>(p, rule, s, row, rows, key, keys, votes);
        sync_threads(); /* the votes are free */
        if (!hidden) return key;
    }
    return last;
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
    accumulators<DIM> kept[shape::BLOCKS] = {};
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            kept[m].max[half] = sink * LOG2_E; /* a key of weight 2^0 and v = 0, in the sum of one lane */
            kept[m].sum[half] = lane() % 4 == 0 && sink != -infinity_f32() ? 1 : 0;
        }

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
        score_block scores[shape::BLOCKS];
        if (is_seen) multiply_q_k<T, DIM, shape::BLOCKS>(scores, q, warp_row, k);
        cp_async_wait_all();
        sync_threads(); /* v is complete, k is free */
        if (next < keys.last)
            load_tile<TILE_K, DIM, THREADS>(k, p.k, b, s.first_k + next, keys.last - next, head_kv, p.head_dim);
        if (is_seen && is_cut)
            take_tile<T, DIM, shape::BLOCKS, PLAIN, true>(p, rule, s, c, kept, scores, lane_row, key, v);
        else if (is_seen)
            take_tile<T, DIM, shape::BLOCKS, PLAIN, false>(p, rule, s, c, kept, scores, lane_row, key, v);
        key = next;
    }
    /* o = sum p v / sum p, lse = ln 2 (m + log2 sum p); (0, -inf or the sink) where no key is seen. */
    float factor[shape::BLOCKS][2];
    UNROLL for (int m = 0; m < shape::BLOCKS; ++m)
        UNROLL for (int half = 0; half < 2; ++half) {
            const int32_t row = lane_row + 16 * m + 8 * half;
            const float sum = sum_of_quad(kept[m].sum[half]);
            const interval seen = keys_of_row(p, s, row);
            bool is_empty = seen.first >= seen.last;
            if (!PLAIN) {
                const uint32_t any = kept[m].any[half] | shfl_xor(FULL_WARP, kept[m].any[half], 1);
                is_empty = (any | shfl_xor(FULL_WARP, any, 2)) == 0;
            }
            factor[m][half] = is_empty ? NO_KEYS : div_rn(p.dropout_multiplier, sum);
            const float empty_lse = row < s.used_q ? sink : -infinity_f32();
            const float lse = is_empty ? empty_lse : (kept[m].max[half] + log2_f32(sum)) * LN_2;
            if (p.lse.data != nullptr && row < s.seqlen_q && lane() % 4 == 0)
                store_feature(row_of(p.lse, b, s.first_q + row, head, 1), 0, lse);
        }
    const int left = s.seqlen_q - tile_row - warp_row;
    const int64_t warp_first = s.first_q + tile_row + warp_row;
    if (p.o.dtype == ATTEST_FP32) write_o_32<DIM, shape::BLOCKS>(p, kept, factor, b, warp_first, left, head);
    else write_o_16<DIM, shape::BLOCKS>(p, kept, factor, q + warp_row * DIM, b, warp_first, left, head);
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

extern "C" int KERNEL_SYMBOL(forward)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_scores<f16>(*p, stream);
    return launch_scores<bf16>(*p, stream);
}

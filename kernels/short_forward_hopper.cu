/* short_forward_hopper.cu - attention forward of whole short sequences on Hopper's tensor cores (wgmma).
 *
 *     o = softmax(softmax_scale q k^T) v,   lse = ln(sum of exp)
 *
 * Takes what short_forward.cu does at 65 .. 128 rows or keys, of heads of at most 128 features and scores that are no
 * more than softmax_scale q . k, softmax_scale >= 0: every row sees every key in use.
 *
 * Grid    x: problems, one for each sequence and query head
 * Block   a warpgroup: the problem's rows 0 .. 63, then, if there are any, 64 .. 127
 * Shared  q, k and v, as wgmma reads them; o in the place of q; a card: where the problem's rows are
 * Phases  card; load q, k and v; for each 64 rows: s = q k^T, softmax over all keys, o = p v, write o
 *
 * No phase of a CTA hides another's latency: several CTAs share an SM. p has two parts of 16 bits, as in
 * short_forward.cu. kernels/short.md has the figures, reference/bounds.md section 11 what it may be off by. */
#include "kernels/params.h"
#include "kernels/scores.h"
#include "kernels/tiles.h"

namespace {

enum { KEYS = 128, ROWS = 64, THREADS = 128 }; /* keys, and rows of a product */

/* q, k and v lie in panels of 64 features, or the 32 that there are: a panel's row is as long as wgmma's swizzle. */
template <int DIM>
constexpr int PANEL = DIM < 64 ? DIM : 64;

/* What a problem's threads know of it. */
struct card {
    char *rows[5]; /* the first ones, in the order of their tensors in forward_params */
    int32_t seqlen_q, used_q, used_k;
    bool is_ours;
};
enum { Q, K, V, O, LSE };
static_assert(offsetof(forward_params, lse) == offsetof(forward_params, q) + LSE * sizeof(row_tensor), "in order");

/* By one warp, a lane for each tensor. */
DEVICE void find_card(const forward_params &p, unsigned problem, card &c)
{
    const unsigned heads = static_cast<unsigned>(p.num_heads_q), b = problem / heads, head = problem % heads;
    const sequence s = find_sequence(p, b);
    if (lane() <= LSE) {
        const row_tensor &t = (&p.q)[lane()];
        const bool is_k = lane() == K || lane() == V;
        const unsigned of = is_k ? head / static_cast<unsigned>(p.group) : head;
        c.rows[lane()] = row_of(t, b, is_k ? s.first_k : s.first_q, of, 0).data;
    }
    if (lane() == 0) c.seqlen_q = s.seqlen_q, c.used_q = s.used_q, c.used_k = s.used_k, c.is_ours = is_ours(p, s);
}

/* CTAs of an SM: as many as registers or shared memory allow. */
template <int DIM>
constexpr int MIN_BLOCKS = DIM <= 64 ? 4 : 2;

/* Numbers before feature x of a row. */
template <int DIM>
DEVICE unsigned offset(unsigned row, unsigned x)
{
    return x / PANEL<DIM> * KEYS * PANEL<DIM> + tile_offset<PANEL<DIM>>(row, x % PANEL<DIM>);
}

/* The first `count` rows, of `length` numbers; all else is zero. Copies are asynchronous. */
template <int DIM>
DEVICE void load_operand(uint16_t *to, const row_tensor &t, char *rows, int length, int count)
{
    row_pointer row = {rows, t.dtype, t.by_four, length};
    UNROLL for (int x = 0; x < DIM; x += PANEL<DIM>) {
        load_rows<KEYS, PANEL<DIM>, THREADS>(to + x * KEYS, row, t.seqlen * 2, t.by_eight != 0, count, thread_x());
        row.data += 2 * PANEL<DIM>, row.length -= PANEL<DIM>;
    }
}

template <int DIM>
DEVICE uint64_t descriptor(const uint16_t *operand)
{
    return wgmma_descriptor(operand, KEYS * PANEL<DIM> * 2, 8 * PANEL<DIM> * 2, PANEL<DIM> * 2);
}

/* s = q k^T of 64 rows. */
template <typename T, int DIM>
DEVICE void multiply_q_k(float (&s)[KEYS / 2], uint64_t q, uint64_t k)
{
    wgmma_fence_operand(s);
    wgmma_fence();
    UNROLL for (unsigned x = 0; x < DIM; x += 16) {
        const uint64_t a = wgmma_advance(q, offset<DIM>(0, x) * 2), b = wgmma_advance(k, offset<DIM>(0, x) * 2);
        if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<KEYS>(s, a, b, x > 0);
        else wgmma_m64nNk16_bf16<KEYS>(s, a, b, x > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(s);
}

/* -inf in place of the scores of keys from `used` on, which are of no key. */
DEVICE void hide_keys(float (&s)[KEYS / 2], int used)
{
    const int left = used - static_cast<int>(lane() % 4 * 2);
    UNROLL for (int n = 0; n < KEYS / 2; ++n)
        if (n / 4 * 8 + n % 2 >= left) s[n] = -infinity_f32();
}

/* Of rows g and g + 8: the maximum in base 2 of their scores, and a lane's part of the sum of their weights. */
struct row_sums {
    float max[2], sum[2];
};

/* Scores times c to weights 2^(c s - m), m the row's maximum: of `used` keys, 0 of the others. */
DEVICE row_sums find_weights(float (&s)[KEYS / 2], float c, int used)
{
    row_sums out;
    float factor[2], reference[2];
    if (c == 0) { /* against 0 times -inf of what is hidden: it is 0 times the others here, NaN of an infinity */
        UNROLL for (int n = 0; n < KEYS / 2; ++n) s[n] *= 0;
        c = 1;
    }
    if (used < KEYS) hide_keys(s, used);
    UNROLL for (int half = 0; half < 2; ++half) {
        float max = -infinity_f32();
        UNROLL for (int n = 2 * half; n < KEYS / 2; n += 4) /* passes a NaN by: it reaches the sum */
            max = max_f32(max, max_f32(s[n], s[n + 1]));
        out.max[half] = c * max_of_quad(max);
        factor[half] = c;
        reference[half] = out.max[half] == -infinity_f32() ? 0 : out.max[half]; /* against -inf - -inf */
    }
    if (out.max[0] == infinity_f32() || out.max[1] == infinity_f32()) /* inf - inf: weights are inf, 0 or NaN */
        UNROLL for (int half = 0; half < 2; ++half) {
            if (out.max[half] != infinity_f32()) continue;
            UNROLL for (int n = 2 * half; n < KEYS / 2; n += 4)
                UNROLL for (int e = 0; e < 2; ++e)
                    if (s[n + e] < infinity_f32()) s[n + e] = -infinity_f32();
            factor[half] = 1, reference[half] = 0;
        }
    UNROLL for (int half = 0; half < 2; ++half) {
        float sum[2] = {0, 0};
        UNROLL for (int n = 2 * half; n < KEYS / 2; n += 4)
            UNROLL for (int e = 0; e < 2; ++e) {
                s[n + e] = exp2_f32(fma_rn(s[n + e], factor[half], -reference[half]));
                sum[e] += s[n + e];
            }
        out.sum[half] = sum[0] + sum[1];
    }
    return out;
}

/* o = p v of 64 rows, p rounded to a sum of two numbers of 16 bits. */
template <typename T, int DIM>
DEVICE void multiply_p_v(float (&o)[DIM / 2], const float (&p)[KEYS / 2], uint64_t v)
{
    uint32_t a[2][KEYS / 16][4];
    UNROLL for (int j = 0; j < KEYS / 16; ++j) {
        UNROLL for (int r = 0; r < 4; ++r) {
            const float *const pair = &p[8 * j + 2 * r];
            a[0][j][r] = pack<T>(pair[0], pair[1]);
            a[1][j][r] = pack_rest<T>(pair[0], pair[1], a[0][j][r]);
        }
        wgmma_fence_operand(a[0][j]), wgmma_fence_operand(a[1][j]);
    }
    wgmma_fence_operand(o);
    wgmma_fence();
    UNROLL for (unsigned j = 0; j < KEYS / 16; ++j)
        UNROLL for (int part = 0; part < 2; ++part) {
            const uint64_t b = wgmma_advance(v, offset<DIM>(16 * j, 0) * 2);
            const bool is_first = j == 0 && part == 0;
            if constexpr (IS_F16<T>) wgmma_m64nNk16_f16<DIM, false, false, true>(o, a[part][j], b, !is_first);
            else wgmma_m64nNk16_bf16<DIM, false, false, true>(o, a[part][j], b, !is_first);
        }
    wgmma_commit();
    wgmma_wait<0>();
    wgmma_fence_operand(o);
}

/* What a lane stores of a warp's 16 rows: o of rows lane / CHUNKS, + STEP ..., eight features each; if it is one of the
 * first two of four, lse of row lane / 4 or of the eighth after it. */
template <int DIM>
struct outputs {
    static constexpr unsigned CHUNKS = DIM / 8, STEP = 32 / CHUNKS;
    row_pointer o; /* its first row */
    char *lse;     /* NULL: not wanted, or another lane's */
};

template <int DIM>
DEVICE outputs<DIM> find_outputs(const forward_params &p, const card &c, unsigned warp_row)
{
    const int64_t row = warp_row + lane() / outputs<DIM>::CHUNKS, lse_row = warp_row + lane() / 4 + lane() % 4 * 8;
    outputs<DIM> out = {{c.rows[O] + row * p.o.seqlen * 2, p.o.dtype, p.o.by_four, p.head_dim_v}, nullptr};
    if (p.lse.data != nullptr && lane() % 4 < 2) out.lse = c.rows[LSE] + lse_row * p.lse.seqlen * 4;
    return out;
}

/* A warp's o of 16 rows, in 16 bits, by way of its own rows of q, from first_row on, so that lanes store 16 bytes of a
 * row at once. `rows` of them are in memory; those from `seen` on are zero, whatever o says. */
template <typename T, int DIM>
DEVICE void write_o(const row_tensor &t, const float (&o)[DIM / 2], const float (&factor)[2], uint16_t *q,
                    unsigned first_row, row_pointer row, int rows, int seen)
{
    constexpr unsigned CHUNKS = outputs<DIM>::CHUNKS, STEP = outputs<DIM>::STEP;
    UNROLL for (unsigned n = 0; n < CHUNKS; n += 2) {
        uint32_t pairs[4]; /* of features 8 n .., rows g and g + 8; of features 8 n + 8 .. */
        UNROLL for (unsigned r = 0; r < 4; ++r) {
            const float *const pair = &o[4 * n + 2 * r];
            pairs[r] = pack<T>(pair[0] * factor[r % 2], pair[1] * factor[r % 2]);
        }
        stmatrix_x4(&q[offset<DIM>(first_row + lane() % 16, lane() / 16 * 8) ^ offset<DIM>(0, 8 * n)], pairs);
    }
    sync_warp(FULL_WARP);
    if (seen < 16) {
        ROLLED for (unsigned r = seen > 0 ? static_cast<unsigned>(seen) : 0; r < 16; ++r)
            ROLLED for (unsigned x = lane(); x < DIM; x += 32) q[offset<DIM>(first_row + r, x)] = 0;
        sync_warp(FULL_WARP);
    }
    const unsigned x = lane() % CHUNKS * 8, first = lane() / CHUNKS, from = offset<DIM>(first_row + first, x);
    const int64_t step = STEP * t.seqlen * 2;
    if (t.by_eight && static_cast<int>(x) + 8 <= row.length) {
        UNROLL for (unsigned r = 0; r < 16; r += STEP, row.data += step)
            if (static_cast<int>(first + r) < rows)
                store_global_16(row.data + 2 * x, load_16<sixteen_bytes>(&q[from ^ offset<DIM>(r, 0)]));
    } else {
        ROLLED for (unsigned r = 0; r < 16; r += STEP, row.data += step)
            if (static_cast<int>(first + r) < rows) store_eight(row, x, &q[from ^ offset<DIM>(r, 0)]);
    }
}

/* Rows first .. first + 63 of a problem whose q, k and v are complete. */
template <typename T, int DIM>
DEVICE void take_rows(const forward_params &p, const card &c, uint16_t *q, int first, const outputs<DIM> &out)
{
    const uint16_t *const k = q + KEYS * DIM, *const v = k + KEYS * DIM;
    const int warp_row = first + static_cast<int>(warp()) * 16;
    const int seen = c.used_k > 0 ? c.used_q - warp_row : 0, rows = c.seqlen_q - warp_row; /* of the warp's */
    float s[KEYS / 2] = {}, o[DIM / 2] = {};
    const unsigned first_of_q = offset<DIM>(static_cast<unsigned>(first), 0) * 2;
    multiply_q_k<T, DIM>(s, wgmma_advance(descriptor<DIM>(q), first_of_q), descriptor<DIM>(k));
    const row_sums sums = find_weights(s, p.softmax_scale * LOG2_E, c.used_k);
    multiply_p_v<T, DIM>(o, s, descriptor<DIM>(v));
    /* o = sum p v / sum p, lse = ln 2 (m + log2 sum p); (0, -inf) of rows that see no key. */
    const float sum[2] = {sum_of_quad(sums.sum[0]), sum_of_quad(sums.sum[1])};
    const float factor[2] = {rcp_f32(sum[0]), rcp_f32(sum[1])};
    const int half = lane() % 4 == 0 ? 0 : 1, row = static_cast<int>(lane() / 4) + 8 * half;
    if (out.lse != nullptr && row < rows) {
        const float lse = ((half == 0 ? sums.max[0] : sums.max[1]) + log2_f32(half == 0 ? sum[0] : sum[1])) * LN_2;
        *reinterpret_cast<float *>(out.lse) = row < seen ? one_nan_f32(lse) : -infinity_f32();
    }
    write_o<T, DIM>(p.o, o, factor, q, static_cast<unsigned>(warp_row), out.o, rows, seen);
}

/* Rows from `first` on that no product has: past the last in use, they are (0, -inf). */
DEVICE void write_empty_rows(const forward_params &p, const card &c, int first)
{
    ROLLED for (int row = first + static_cast<int>(warp()); row < c.seqlen_q; row += THREADS / 32) {
        uint16_t *const o = reinterpret_cast<uint16_t *>(c.rows[O] + row * p.o.seqlen * 2);
        ROLLED for (int x = static_cast<int>(lane()); x < p.head_dim_v; x += 32) o[x] = 0;
        if (p.lse.data != nullptr && lane() == 0)
            *reinterpret_cast<float *>(c.rows[LSE] + row * p.lse.seqlen * 4) = -infinity_f32();
    }
}

template <typename T, int DIM>
KERNEL(THREADS, MIN_BLOCKS<DIM>) void short_forward_hopper_kernel(const GRID_CONSTANT forward_params p)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    uint16_t *const q = reinterpret_cast<uint16_t *>(shared), *const k = q + KEYS * DIM, *const v = k + KEYS * DIM;
    card &c = *reinterpret_cast<card *>(v + KEYS * DIM);
    if (warp() == 0) find_card(p, block_x(), c);
    sync_threads(); /* the card is there */
    if (!c.is_ours) return;
    load_operand<DIM>(q, p.q, c.rows[Q], p.head_dim, c.used_q);
    load_operand<DIM>(k, p.k, c.rows[K], p.head_dim, c.used_k);
    load_operand<DIM>(v, p.v, c.rows[V], p.head_dim_v, c.used_k);
    outputs<DIM> out = find_outputs<DIM>(p, c, warp() * 16);
    cp_async_wait_all();
    fence_proxy_async_shared();
    sync_threads(); /* q, k and v are complete, and wgmma may read them */
    int row = 0;
    ROLLED for (; row < c.used_q; row += ROWS) {
        take_rows<T, DIM>(p, c, q, row, out);
        out.o.data += ROWS * p.o.seqlen * 2;
        if (out.lse != nullptr) out.lse += ROWS * p.lse.seqlen * 4;
    }
    write_empty_rows(p, c, row);
}

template <typename T, int DIM>
int launch(const forward_params &p, void *stream)
{
    const launch_shape grid = {{static_cast<unsigned>(p.batch * p.num_heads_q), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               3 * KEYS * DIM * sizeof(uint16_t) + sizeof(card), THREADS, MIN_BLOCKS<DIM>};
    return LAUNCH((short_forward_hopper_kernel<T, DIM>), grid, stream, p);
}

template <typename T>
int launch_width(const forward_params &p, void *stream)
{
    const int widest = p.head_dim > p.head_dim_v ? p.head_dim : p.head_dim_v;
    if (widest <= 32) return launch<T, 32>(p, stream);
    if (widest <= 64) return launch<T, 64>(p, stream);
    return launch<T, 128>(p, stream);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_forward_hopper)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch_width<f16>(*p, stream);
    return launch_width<bf16>(*p, stream);
}

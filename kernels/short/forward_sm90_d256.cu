/* forward_sm90_d256.cu - attention forward of whole short sequences of wide heads on Hopper's tensor cores (wgmma).
 *
 *     o = softmax(softmax_scale q k^T) v,   lse = ln(sum of exp)
 *
 * Takes what short/forward_sm90.cu does of 65 .. 128 rows or keys, of heads of 129 .. 256 features: the numbers are
 * computed as there, with the maximum of all keys.
 *
 * Grid    x: persistent CTAs; each takes one problem, a sequence and query head, after the other (own_share), few where
 *         there are many full ones. They may come before the previous launch has ended (grid_wait)
 * Block   three warpgroups: consumers of rows 0 .. 63 and 64 .. 127, and a producer: two warps load q and k, two v
 * Shared  q, k and v, as wgmma reads them; o on its way out; problem descriptors: where problems' rows are, which
 *         launches of nothing but full problems do without
 * Phases  of rows: s = q k^T of half of the features when those are there, then of the rest; give q and k back;
 *         softmax; wait for v; o = p v, half of its features, then the rest, while the first half is written; give v
 *         back
 *
 * The second warpgroup of rows asks for the products of s after the first has asked, so that the first finds its
 * weights while the second's products run. Places that consumers give back are loaded for the next problem while they
 * go on with the rest, so that memory never waits. All other waiting from problem to problem is on mbarriers, whose two
 * phases belong to two problems in a row. kernels/short/short.md has the figures. */
#include "kernels/short/forward_sm90.h"

namespace {

/* The first threads are consumers, which compute rows; the others are producers, which load. Registers are divided
 * among them accordingly: 64512 of an SM's 65536. */
enum { THREADS = 384, LOADERS = 64, FIRST_OF_Q = 256, FIRST_OF_V = FIRST_OF_Q + LOADERS, FINDER = FIRST_OF_Q / 32 };
enum { REGISTERS_OF_ROWS = 224, REGISTERS_OF_LOADS = 56 };

enum { DIM = 256, KEYS = 128 };
using operand = short_shape<DIM, KEYS>;

/* A CTA takes this many of many full problems: with fewer, more loads are a CTA's first, for which rows wait; with
 * more, CTAs drift farther apart. Where problem descriptors must be found, a CTA costs too much to begin, and is
 * persistent. */
constexpr int64_t ROUNDS = 3;

/* These are the named barriers. */
enum {
    Q_K_ASKED = 1, /* those of a CTA's first problem are */
    TURN_OF_ROWS   /* rows 0 .. 63 have asked for their scores */
};

/* This many features of q and k are waited for at once, and as many of o are on their way out. */
enum { HALF_DIM = 128, HALVES = DIM / HALF_DIM };
using half = short_shape<HALF_DIM, KEYS>;

/* Problem n of a CTA has problem descriptor n % SLOTS. It is found when q and k of problem n - 1 are on their way: then
 * rows may still use that of problem n - 2. */
enum { SLOTS = 3 };

struct shared_memory {
    uint16_t q[KEYS * DIM], k[KEYS * DIM], v[KEYS * DIM], o[KEYS * HALF_DIM];
    forward_problem problems[SLOTS];               /* is_ours: there is such a problem */
    mbarrier q_full[HALVES], q_free; /* of q and k; a phase of each for every problem */
    mbarrier v_full, v_free;
};

/* Clears all operands: what is past a row's end is zero for all problems, and never written again. */
DEVICE void clear(shared_memory &m)
{
    sixteen_bytes *const pieces = reinterpret_cast<sixteen_bytes *>(&m); /* q, k and v come first */
    ROLLED for (unsigned n = thread_x(); n < 3 * KEYS * DIM / 8; n += THREADS) store_16(&pieces[n], sixteen_bytes{});
}

/* Loads WIDTH features of the first `count` rows, which have `length` left; the other rows become zero. LOADERS threads
 * share the work, and this is number `thread`. Copies are asynchronous. is_whole says that none of the tile's rows and
 * features is missing, and that all are aligned; a warp copies all of a row's features at once then, as memory likes
 * them best. */
template <int WIDTH>
DEVICE void load(uint16_t *to, const row_tensor &t, char *rows, int length, int count, bool is_whole, unsigned thread)
{
    if (is_whole) {
        constexpr unsigned OF_ROW = WIDTH / 8, AT_ONCE = LOADERS / OF_ROW; /* chunks; rows */
        const unsigned x = thread % OF_ROW * 8, first = thread / OF_ROW, at = offset<operand>(first, x);
        const int64_t step = t.seqlen * 2;
        rows += first * step + 2 * x;
        ROLLED for (int r = 0; r < KEYS; r += 8, to += 8 * operand::PANEL)
            UNROLL for (unsigned n = 0; n < 8; n += AT_ONCE, rows += AT_ONCE * step)
                cp_async_16(&to[at ^ offset<operand>(n, 0)], rows);
        return;
    }
    row_pointer row = {rows, t.dtype, t.by_four, length};
    UNROLL for (int x = 0; x < WIDTH; x += operand::PANEL) {
        if (static_cast<int>(thread % (operand::PANEL / 8) * 8) >= row.length) break;
        load_rows<KEYS, operand::PANEL, LOADERS>(to + x * KEYS, row, t.seqlen * 2, t.by_eight != 0, count, thread);
        row.data += 2 * operand::PANEL, row.length -= operand::PANEL;
    }
}

/* Arrives for a warp, once its lanes have done what came before. */
DEVICE void arrive(mbarrier &b)
{
    sync_warp(FULL_WARP);
    if (lane() == 0) mbarrier_arrive(&b);
}

/* Finds the problem descriptor of this launch's first problem among the CTA's from `next` on, and sets `next` to what
 * comes after it. One warp does it, and asks 32 problems at once whose they are. */
DEVICE void find_next_problem(const forward_params &p, const work &by_ctas, unsigned &next, forward_problem &c)
{
    const share own = own_share(by_ctas);
    uint32_t ours = 0; /* bit n: problem next + n step is */
    ROLLED for (; next < own.end; next += 32 * own.step) {
        const unsigned problem = next + lane() * own.step;
        ours = ballot(FULL_WARP,
                      problem < own.end && is_ours(p, find_sequence(p, quotient(problem, p.by_heads_q))));
        if (ours != 0) break;
    }
    if (ours == 0) {
        if (lane() == 0) c.is_ours = false;
        return;
    }
    ROLLED for (; (ours & 1) == 0; ours >>= 1) next += own.step;
    find_problem<operand>(p, next, c);
    next += own.step;
}

/* Returns whether a CTA has a problem n. ALL_WHOLE says that there are only full problems, so that every thread finds
 * by itself where their rows are, and there are no problem descriptors. */
template <bool ALL_WHOLE>
DEVICE bool has_problem(const shared_memory &m, const share &own, unsigned n)
{
    return ALL_WHOLE ? own.first + n * own.step < own.end : m.problems[n % SLOTS].is_ours;
}

/* Returns its problem descriptor, if that is not in shared memory. */
template <bool ALL_WHOLE>
INLINE forward_problem found_problem(const forward_params &p, const share &own, unsigned n)
{
    return ALL_WHOLE ? full_problem<operand>(p, own.first + n * own.step) : forward_problem{};
}

/* This is the producer of q and k, for problem after problem. Its first warp finds their problem descriptors. */
template <bool ALL_WHOLE>
DEVICE void load_q_k(const forward_params &p, const work &by_ctas, shared_memory &m, unsigned next)
{
    const share own = own_share(by_ctas);
    ROLLED for (unsigned n = 0;; ++n) {
        mbarrier_wait(&m.q_free, (n + 1) % 2);
        if (!has_problem<ALL_WHOLE>(m, own, n)) return;
        const forward_problem found = found_problem<ALL_WHOLE>(p, own, n);
        const forward_problem &c = ALL_WHOLE ? found : m.problems[n % SLOTS];
        ROLLED for (int x = 0; x < DIM; x += HALF_DIM) {
            const int length = p.head_dim - x;
            const unsigned thread = thread_x() - FIRST_OF_Q;
            load<HALF_DIM>(m.q + x * KEYS, p.q, c.rows[Q] + 2 * x, length, c.used_q, c.is_whole, thread);
            load<HALF_DIM>(m.k + x * KEYS, p.k, c.rows[K] + 2 * x, length, c.used_k, c.is_whole, thread);
            cp_async_commit();
        }
        if (n == 0) {
            sync_warp(FULL_WARP); /* lanes past a row's end have come sooner */
            named_barrier_arrive(Q_K_ASKED, 2 * LOADERS);
        }
        cp_async_wait<1>();
        fence_proxy_async_shared();
        arrive(m.q_full[0]);
        if (!ALL_WHOLE && warp() == FINDER) find_next_problem(p, by_ctas, next, m.problems[(n + 1) % SLOTS]);
        cp_async_wait_all();
        fence_proxy_async_shared();
        arrive(m.q_full[1]); /* with the next problem descriptor */
    }
}

/* This is the producer of v. A CTA's first v is asked for behind q and k, which are waited for first. */
template <bool ALL_WHOLE>
DEVICE void load_v(const forward_params &p, const work &by_ctas, shared_memory &m)
{
    const share own = own_share(by_ctas);
    if (has_problem<ALL_WHOLE>(m, own, 0)) named_barrier_sync(Q_K_ASKED, 2 * LOADERS);
    ROLLED for (unsigned n = 0;; ++n) {
        mbarrier_wait(&m.v_free, (n + 1) % 2);
        if (!has_problem<ALL_WHOLE>(m, own, n)) return;
        const forward_problem found = found_problem<ALL_WHOLE>(p, own, n);
        const forward_problem &c = ALL_WHOLE ? found : m.problems[n % SLOTS];
        load<DIM>(m.v, p.v, c.rows[V], p.head_dim_v, c.used_k, c.is_whole, thread_x() - FIRST_OF_V);
        cp_async_wait_all();
        fence_proxy_async_shared();
        arrive(m.v_full);
    }
}

/* Computes the 64 rows of this warpgroup, of which some are in memory. */
template <typename T>
DEVICE void take_consumer_rows(const forward_params &p, shared_memory &m, const forward_problem &c, unsigned parity)
{
    const unsigned warp_row = warp() * 16, first = warp_row / ROWS * ROWS;
    const int seen = (c.used_k > 0 ? c.used_q : 0) - static_cast<int>(warp_row); /* of the warp's */
    const int rows = c.seqlen_q - static_cast<int>(warp_row);
    float s[KEYS / 2] = {}, o[HALVES][HALF_DIM / 2] = {};
    weight_parts<KEYS> parts;
    UNROLL for (int n = 0; n < HALVES; ++n) {
        mbarrier_wait(&m.q_full[n], parity);
        if (n == 0 && first > 0) named_barrier_sync(TURN_OF_ROWS, FIRST_OF_Q);
        multiply_rows<T, half, KEYS>(s, descriptor<operand>(m.q, first, n * HALF_DIM),
                                     descriptor<operand>(m.k, 0, n * HALF_DIM), n > 0);
    }
    if (first == 0 && c.seqlen_q > ROWS) named_barrier_arrive(TURN_OF_ROWS, FIRST_OF_Q);
    wait_for<0>(s);
    arrive(m.q_free);
    const row_sums sums = find_softmax_weights<KEYS>(s, p.softmax_scale * LOG2_E, c.used_k, false);
    const float sum[2] = {sum_of_quad(sums.sum[0]), sum_of_quad(sums.sum[1])};
    const float factor[2] = {rcp_f32(sum[0]), rcp_f32(sum[1])}; /* o = sum p v / sum p */
    split_weights<T>(parts, s);
    row_pointer o_row = first_row_of_o<HALF_DIM>(p, c, warp_row);
    write_lse(p, c, warp_row, sums, sum, rows, seen);
    mbarrier_wait(&m.v_full, parity);
    UNROLL for (int n = 0; n < HALVES; ++n)
        multiply_parts<T, half>(o[n], parts, descriptor<operand>(m.v, 0, n * HALF_DIM));
    UNROLL for (int n = 0; n < HALVES; ++n) {
        if (n == 0) {
            wait_for<1>(o[0]);
        } else {
            wait_for<0>(o[1]);
            arrive(m.v_free);
        }
        if (n * HALF_DIM >= p.head_dim_v) continue;
        uint32_t pairs[HALF_DIM / 4];
        round_sums<T, HALF_DIM>(pairs, o[n], factor[0], factor[1]);
        stage_rows<half>(m.o, warp_row, pairs);
        write_rows<half>(p.o, m.o, warp_row, o_row, rows, seen, false);
        o_row.data += 2 * HALF_DIM, o_row.length -= HALF_DIM;
        sync_warp(FULL_WARP); /* o has been read: its place is free */
    }
}

/* This is a consumer, which computes rows first .. first + 63 of one problem after the other. */
template <typename T, bool ALL_WHOLE>
DEVICE void take_problems(const forward_params &p, const work &by_ctas, shared_memory &m)
{
    const share own = own_share(by_ctas);
    const int first = static_cast<int>(warp() * 16 / ROWS * ROWS);
    ROLLED for (unsigned n = 0;; ++n) {
        if (!has_problem<ALL_WHOLE>(m, own, n)) return;
        const forward_problem found = found_problem<ALL_WHOLE>(p, own, n);
        const forward_problem &c = ALL_WHOLE ? found : m.problems[n % SLOTS];
        const unsigned parity = n % 2;
        if (first < c.seqlen_q) {
            take_consumer_rows<T>(p, m, c, parity);
            if (!ALL_WHOLE) write_empty_rows<FINDER>(p, c, KEYS);
        } else { /* q, k and v are the others' */
            UNROLL for (mbarrier &full : m.q_full) mbarrier_wait(&full, parity);
            arrive(m.q_free);
            mbarrier_wait(&m.v_full, parity);
            arrive(m.v_free);
        }
    }
}

template <typename T, bool ALL_WHOLE>
KERNEL(THREADS, 1) void short_forward_sm90_d256_kernel(const GRID_CONSTANT forward_params p, const work by_ctas)
{
    DYNAMIC_SHARED(shared, 1024); /* swizzled operands begin at multiples of eight of their rows */
    shared_memory &m = *reinterpret_cast<shared_memory *>(shared);
    grid_wait();
    unsigned next = own_share(by_ctas).first;
    if (!ALL_WHOLE && warp() == FINDER) find_next_problem(p, by_ctas, next, m.problems[0]);
    if (thread_x() == 0) {
        UNROLL for (mbarrier &full : m.q_full) mbarrier_init(&full, LOADERS / 32);
        mbarrier_init(&m.q_free, FIRST_OF_Q / 32);
        mbarrier_init(&m.v_full, LOADERS / 32), mbarrier_init(&m.v_free, FIRST_OF_Q / 32);
    }
    if (!ALL_WHOLE && (p.head_dim < DIM || p.head_dim_v < DIM)) {
        clear(m);
        fence_proxy_async_shared();
    }
    sync_threads(); /* the first problem descriptor, the barriers and zeros are there */
    if (thread_x() < FIRST_OF_Q) {
        setmaxnreg_inc<REGISTERS_OF_ROWS>();
        take_problems<T, ALL_WHOLE>(p, by_ctas, m);
    } else {
        setmaxnreg_dec<REGISTERS_OF_LOADS>();
        if (thread_x() < FIRST_OF_V) load_q_k<ALL_WHOLE>(p, by_ctas, m, next);
        else load_v<ALL_WHOLE>(p, by_ctas, m);
    }
}

template <typename T>
int launch(const forward_params &p, void *stream)
{
    const bool is_whole = are_whole<operand>(p);
    const work by_ctas = divide_work(p.batch * p.num_heads_q, launch_num_sms(stream), is_whole ? ROUNDS : ALL_ROUNDS);
    const launch_shape grid = {{ctas_of(by_ctas), 1, 1}, {THREADS, 1, 1}, {1, 1, 1},
                               sizeof(shared_memory), THREADS, 1, true};
    if (is_whole) return LAUNCH((short_forward_sm90_d256_kernel<T, true>), grid, stream, p, by_ctas);
    return LAUNCH((short_forward_sm90_d256_kernel<T, false>), grid, stream, p, by_ctas);
}

} // namespace

extern "C" int KERNEL_SYMBOL(short_forward_sm90_d256)(const struct forward_params *p, void *stream)
{
    if (p->batch == 0 || p->seqlen_q == 0) return 0;
    if (p->q.dtype == ATTEST_FP16) return launch<f16>(*p, stream);
    return launch<bf16>(*p, stream);
}

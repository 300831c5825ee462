/* short.h - what short_forward.cu and short_forward_hopper.cu share: where a problem, one sequence and query head, is.
 */
#ifndef ATTEST_KERNELS_SHORT_H
#define ATTEST_KERNELS_SHORT_H

#include "kernels/params.h"
#include "kernels/scores.h"

/* What a problem's threads know of it. */
struct card {
    sequence s;
    row_pointer q, k, v, o, lse; /* their first rows */
    int64_t b;
    int32_t head;
    bool is_ours;
    bool is_whole; /* no row or key of the tiles is missing, and no window hides one */
};

/* By one lane, for all. */
DEVICE card find_card(const forward_params &p, unsigned problem, int most)
{
    card c = {};
    const unsigned heads = static_cast<unsigned>(p.num_heads_q), b = problem / heads, head = problem % heads;
    c.b = b, c.head = static_cast<int32_t>(head);
    if (b >= p.batch) return c;
    c.s = find_sequence(p, b);
    c.is_ours = is_ours(p, c.s);
    c.is_whole = c.s.used_q == most && c.s.used_k == most && p.window_left < 0 && p.window_right < 0;
    const unsigned head_kv = head / static_cast<unsigned>(p.group);
    c.q = row_of(p.q, b, c.s.first_q, head, p.head_dim);
    c.k = row_of(p.k, b, c.s.first_k, head_kv, p.head_dim);
    c.v = row_of(p.v, b, c.s.first_k, head_kv, p.head_dim_v);
    c.o = row_of(p.o, b, c.s.first_q, head, p.head_dim_v);
    if (p.lse.data != nullptr) c.lse = row_of(p.lse, b, c.s.first_q, head, 1);
    return c;
}

DEVICE row_pointer row_at(row_pointer first, const row_tensor &t, int row)
{
    first.data += row * t.seqlen * (t.dtype == ATTEST_FP32 ? 4 : 2);
    return first;
}

/* Rows first, first + step ... that no tile holds: past the last in use, they are (0, -inf). By one warp. */
DEVICE void write_empty_rows(const forward_params &p, const card &c, int first, int step)
{
    ROLLED for (int row = first; row < c.s.seqlen_q; row += step) {
        const row_pointer o = row_at(c.o, p.o, row);
        ROLLED for (int x = static_cast<int>(lane()); x < p.head_dim_v; x += 32) store_feature(o, x, 0);
        if (p.lse.data != nullptr && lane() == 0) store_feature(row_at(c.lse, p.lse, row), 0, -infinity_f32());
    }
}

#endif

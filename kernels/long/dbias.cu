/* dbias.cu - the gradient of the bias, of every backward pass: dbias = dx, summed over the axes of stride zero.
 *
 *     dx_ij = p_ij (dp_ij - delta_i + dlse_i)
 *
 * p and dp come again from q, k, v, dout, lse and delta, in fp32 and whatever the dtypes. Every element of dbias is
 * written, zero where no score is. No atomics: a CTA adds up all that its elements are sums of, in the order of
 * sequences, heads, rows and keys.
 *
 * Grid    x: sequences * query heads of dbias; y, z: its tiles of TILE_A rows and of TILE_B keys. An axis that is
 *         summed over counts as one
 * Block   128 threads; a thread owns 4 rows and 4 keys of a tile: shared/fp32.h
 * Shared  43 KB */
#include "kernels/shared/fp32.h"

namespace {

/* Returns part `index` of an axis in parts of `step`, or all of the axis where it is summed over, as a stride of zero
 * says. */
struct axis_part {
    int64_t first, last;
};

INLINE axis_part part_of(int64_t stride, int64_t length, int64_t index, int64_t step)
{
    if (stride == 0) return {0, length};
    return {index * step, (index + 1) * step < length ? (index + 1) * step : length};
}

/* Says how many parts each axis of dbias has. */
struct dbias_parts {
    int64_t batch, heads, rows, keys;
};

int64_t parts_of(int64_t stride, int64_t length, int64_t step)
{
    return stride == 0 ? 1 : (length + step - 1) / step;
}

struct shared_tiles {
    row_tiles rows;
    weight_tile dx, dout_v; /* dx is q . k at first, and holds the sums at last */
    vote_words votes;
};

/* Adds dx of the rows and keys of one tile: sum[i][c] += dx. */
DEVICE void add_tile(float (&sum)[ROWS][KEYS], shared_tiles &shared, const backward_params &p, const query_head &h,
                     int32_t row, int32_t key)
{
    const forward_params &f = p.forward;
    const int rows = h.s.used_q - row < TILE_A ? h.s.used_q - row : TILE_A;
    const int keys = h.s.used_k - key < TILE_B ? h.s.used_k - key : TILE_B;
    const interval some = keys_of_rows(f, h.s, row, row + rows).some;
    if (keys <= 0 || some.first >= key + keys || some.last <= key) return;
    if (is_tile_hidden(f, h, row, rows, key, keys, shared.votes)) return;
    find_dots(shared.dx, shared.dout_v, shared.rows, p, h, row, rows, key, keys);
    ROLLED for (int i = 0; i < ROWS; ++i) {
        const int32_t r = row + row_of_thread() + i;
        const row_state state = load_row_state(p, h.s, h.b, r, h.head);
        ROLLED for (int c = 0; c < KEYS; ++c) {
            const int at = pair_of_thread(i, c), j = key + column_of_thread() + c * COLUMNS;
            const gradient g =
                find_gradient(f, h.rule, h.s, r, j, shared.dx.at[at], shared.dout_v.at[at], state);
            shared.dx.at[at] = g.visible ? g.dx : 0;
        }
    }
    UNROLL for (int i = 0; i < ROWS; ++i)
        UNROLL for (int c = 0; c < KEYS; ++c) sum[i][c] += shared.dx.at[pair_of_thread(i, c)];
}

/* Returns the element of row r and key c of sums[row][key]; where all rows, or all keys, are one element, it sums over
 * them. */
DEVICE float element_of(const weight_tile &sums, const score_tensor &t, int r, int c)
{
    const int first_r = t.seqlen_q != 0 ? r : 0, last_r = t.seqlen_q != 0 ? r + 1 : TILE_A;
    const int first_c = t.seqlen_k != 0 ? c : 0, last_c = t.seqlen_k != 0 ? c + 1 : TILE_B;
    float sum = 0;
    for (int i = first_r; i < last_r; ++i)
        for (int j = first_c; j < last_c; ++j) sum += sums.at[i * PITCH + j];
    return sum;
}

/* Writes one tile of dbias. Each part has at most a tile's rows and keys, or all of them where they are summed over. */
DEVICE void write_tile(const backward_params &p, shared_tiles &shared, axis_part batch, axis_part heads,
                       axis_part rows, axis_part keys)
{
    float sum[ROWS][KEYS] = {};
    for (int64_t b = batch.first; b < batch.last; ++b)
        for (int64_t head = heads.first; head < heads.last; ++head) {
            const query_head h = find_query_head(p.forward, b, head);
            for (int64_t row = rows.first; row < rows.last; row += TILE_A)
                for (int64_t key = keys.first; key < keys.last; key += TILE_B)
                    add_tile(sum, shared, p, h, static_cast<int32_t>(row), static_cast<int32_t>(key));
        }
    sync_threads(); /* the sums of the tile before are written */
    UNROLL for (int i = 0; i < ROWS; ++i)
        UNROLL for (int c = 0; c < KEYS; ++c)
            shared.dx.at[pair_of_thread(i, c)] = sum[i][c];
    sync_threads(); /* the sums are complete */
    const score_tensor &t = p.dbias;
    const int height = t.seqlen_q != 0 ? static_cast<int>(rows.last - rows.first) : 1;
    const int width = t.seqlen_k != 0 ? static_cast<int>(keys.last - keys.first) : 1;
    for (int n = static_cast<int>(thread_x()); n < height * width; n += THREADS) {
        const int r = n / width, c = n % width;
        const int64_t at = batch.first * t.batch + heads.first * t.head + (rows.first + r) * t.seqlen_q +
                           (keys.first + c) * t.seqlen_k;
        char *const data = static_cast<char *>(t.data) + at * (t.dtype == ATTEST_FP32 ? 4 : 2);
        store_feature({data, t.dtype, 0, 1}, 0, element_of(shared.dx, t, r, c));
    }
}

KERNEL(THREADS, 1) void dbias_kernel(const backward_params p, const dbias_parts parts)
{
    STATIC_SHARED(shared_tiles, shared);
    const forward_params &f = p.forward;
    const score_tensor &t = p.dbias;
    const axis_part batch = part_of(t.batch, f.batch, block_x() / parts.heads, 1);
    const axis_part head = part_of(t.head, f.num_heads_q, block_x() % parts.heads, 1);
    for (int64_t y = block_y(); y < parts.rows; y += grid_y())
        for (int64_t z = block_z(); z < parts.keys; z += grid_z())
            write_tile(p, shared, batch, head, part_of(t.seqlen_q, f.seqlen_q, y, TILE_A),
                       part_of(t.seqlen_k, f.seqlen_k, z, TILE_B));
}

unsigned grid_of(int64_t parts) { return static_cast<unsigned>(parts < 65535 ? parts : 65535); }

} // namespace

extern "C" int KERNEL_SYMBOL(dbias)(const struct backward_params *p, void *stream)
{
    const forward_params &f = p->forward;
    const score_tensor &t = p->dbias;
    const dbias_parts parts = {parts_of(t.batch, f.batch, 1), parts_of(t.head, f.num_heads_q, 1),
                               parts_of(t.seqlen_q, f.seqlen_q, TILE_A), parts_of(t.seqlen_k, f.seqlen_k, TILE_B)};
    if (t.data == nullptr || parts.batch == 0 || parts.rows == 0 || parts.keys == 0) return 0;
    const launch_shape shape = {
        {static_cast<unsigned>(parts.batch * parts.heads), grid_of(parts.rows), grid_of(parts.keys)},
        {THREADS, 1, 1}, {1, 1, 1}, 0, THREADS, 1};
    return LAUNCH(dbias_kernel, shape, stream, *p, parts);
}

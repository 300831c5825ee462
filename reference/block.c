/* block.c - panels, the walk over blocks, and the scores of a block's rows. */
#include "reference/block.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"

/* Heads run at once while their panels fit into this. */
#define WAVE_BYTES (INT64_C(64) << 20)
#define WAVE_HEADS 1024

static double *allocate(int64_t doubles) { return aligned_alloc(64, (size_t)(doubles + 8) / 8 * 64); }

bool ref_load_finite(int32_t dtype, const void *data, int64_t offset, int64_t count, double *out)
{
    ref_load_row(dtype, data, offset, count, out);
    bool finite = true;
    for (int64_t x = 0; x < count; ++x) finite &= isfinite(out[x]) != 0;
    if (!finite) memset(out, 0, (size_t)count * sizeof *out);
    return finite;
}

/* Fewer rows where a matrix of scores would not fit a cache anyway: memory is what counts then. */
static int64_t rows_of_block(int64_t keys) { return keys <= 16384 ? REF_BLOCK_ROWS : REF_BLOCK_ROWS / 4; }

/* Scores of neighbouring rows are not a power of two apart: that would put them on few cache sets. */
static int64_t stride_of(int64_t keys) { return ref_round_up(keys) + 8; }

static struct ref_head describe_head(const struct ref_pass *pass, int64_t index)
{
    const int64_t b = index / pass->p->num_heads_kv;
    struct ref_head head = {.p = pass->p, .a = pass->a, .s = ref_sequence(pass->p, pass->a, b), .b = b};
    head.h_kv = index % pass->p->num_heads_kv;
    head.keys_packed = ref_round_up(head.s.seqlen_k);
    head.block_rows = rows_of_block(head.s.seqlen_k);
    head.blocks = (head.s.seqlen_q + head.block_rows - 1) / head.block_rows;
    return head;
}

static int64_t panel_doubles(const struct ref_pass *pass, const struct ref_head *head)
{
    const int64_t d = pass->p->head_dim, dv = pass->p->head_dim_v, keys = head->keys_packed;
    return keys * (d + pass->v_scores * dv + pass->k_rows * ref_round_up(d) + pass->v_rows * ref_round_up(dv));
}

/* One block of memory for a head: panels, then the decoded rows that they are packed from, then the
 * lists of integers. */
static bool allocate_head(const struct ref_pass *pass, struct ref_head *head)
{
    const int64_t d = pass->p->head_dim, dv = pass->p->head_dim_v, keys = head->keys_packed;
    const int64_t parts = keys / REF_KEY_PART + 1;
    double *next = allocate(panel_doubles(pass, head) + keys * (d > dv ? d : dv) + 2 * keys + parts);
    head->memory = next;
    if (!next) return false;
    head->k_scores = next, next += keys * d;
    if (pass->v_scores) head->v_scores = next, next += keys * dv;
    if (pass->k_rows) head->k_rows = next, next += keys * ref_round_up(d);
    if (pass->v_rows) head->v_rows = next, next += keys * ref_round_up(dv);
    head->special = (int64_t *)next, next += 2 * keys; /* a key's k and v may both be special */
    head->turns = (int64_t *)next;
    memset(head->turns, 0, (size_t)parts * sizeof *head->turns);
    return true;
}

/* Decodes all rows of k or v to rows[key][count], zeros for those not finite, which join the list. */
static void decode_keys(struct ref_head *head, const struct attest_tensor *t, const void *data, int64_t count,
                        double *rows)
{
    for (int64_t c = 0; c < head->s.seqlen_k; ++c) {
        const int64_t offset = ref_row_offset(head->p, t, &head->s, true, head->b, c, head->h_kv);
        if (!ref_load_finite(t->dtype, data, offset, count, rows + c * count)) head->special[head->num_special++] = c;
    }
}

struct wave {
    const struct ref_pass *pass;
    struct ref_head *heads;
    int64_t num_heads, *first_block; /* of each head, among the wave's blocks */
    int64_t turn;
    struct ref_lock lock;
    double *scratch;
    int64_t scratch_doubles; /* of one worker */
};

static void pack_head(void *context, int64_t index, int worker)
{
    (void)worker;
    const struct wave *wave = context;
    struct ref_head *head = &wave->heads[index];
    const struct attest_problem *p = head->p;
    const int64_t d = p->head_dim, dv = p->head_dim_v, keys = head->s.seqlen_k;
    double *rows = (double *)head->turns + head->keys_packed / REF_KEY_PART + 1;
    decode_keys(head, &p->k, head->a->k, d, rows);
    ref_pack(d, keys, rows, 1, d, d, head->k_scores);
    if (head->k_rows) ref_pack(keys, d, rows, d, 1, head->keys_packed, head->k_rows);
    if (!head->v_scores && !head->v_rows) return;
    decode_keys(head, &p->v, head->a->v, dv, rows);
    if (head->v_scores) ref_pack(dv, keys, rows, 1, dv, dv, head->v_scores);
    if (head->v_rows) ref_pack(keys, dv, rows, dv, 1, head->keys_packed, head->v_rows);
}

static int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }
static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* The keys inside the window of row r: first .. last - 1. */
static void window_of(const struct ref_head *head, int64_t r, int64_t *first, int64_t *last)
{
    const struct attest_problem *p = head->p;
    const int64_t keys = head->s.seqlen_k, diagonal = p->q_start + r + head->s.diag - p->k_start;
    *first = p->window_left < 0 ? 0 : smaller(keys, larger(0, diagonal - p->window_left));
    *last = p->window_right < 0 ? keys : larger(*first, smaller(keys, diagonal + p->window_right + 1));
}

static struct ref_block describe_block(struct wave *wave, const struct ref_head *head, int64_t index)
{
    struct ref_block block = {.head = head, .index = index, .pass_turn = &wave->turn, .lock = &wave->lock};
    const int64_t group = head->p->num_heads_q / head->p->num_heads_kv;
    block.h = head->h_kv * group + index / head->blocks;
    block.first_row = index % head->blocks * head->block_rows;
    block.rows = smaller(head->block_rows, head->s.seqlen_q - block.first_row);
    int64_t ignored;
    window_of(head, block.first_row, &block.first_key, &ignored);
    window_of(head, block.first_row + block.rows - 1, &ignored, &block.last_key);
    block.first_key = block.first_key / REF_PANEL * REF_PANEL;
    block.last_key = larger(block.first_key, block.last_key);
    block.width = ref_round_up(block.last_key - block.first_key);
    block.stride = stride_of(block.width);
    return block;
}

static void run_block(void *context, int64_t index, int worker)
{
    struct wave *wave = context;
    int64_t low = 0, high = wave->num_heads;
    while (high - low > 1) {
        const int64_t middle = (low + high) / 2;
        if (wave->first_block[middle] <= index) low = middle;
        else high = middle;
    }
    struct ref_block block = describe_block(wave, &wave->heads[low], index - wave->first_block[low]);
    block.pass_index = index;
    wave->pass->body(wave->pass->context, &block, wave->scratch + worker * wave->scratch_doubles);
}

/* Takes heads from *next on until the budget is spent; false where memory ends. */
static bool gather_wave(struct wave *wave, int64_t *next, int64_t *num_blocks)
{
    const struct ref_pass *pass = wave->pass;
    const int64_t end = pass->p->batch * pass->p->num_heads_kv, group = pass->p->num_heads_q / pass->p->num_heads_kv;
    int64_t bytes = 0;
    wave->num_heads = *num_blocks = wave->turn = 0;
    for (; *next < end && wave->num_heads < WAVE_HEADS && bytes < WAVE_BYTES; ++*next) {
        struct ref_head *head = &wave->heads[wave->num_heads];
        *head = describe_head(pass, *next);
        if (head->blocks == 0) continue;
        if (!allocate_head(pass, head)) return false;
        wave->first_block[wave->num_heads++] = *num_blocks;
        *num_blocks += group * head->blocks;
        bytes += 8 * panel_doubles(pass, head);
    }
    return true;
}

static bool run_waves(struct wave *wave, int threads)
{
    const int64_t heads = wave->pass->p->batch * wave->pass->p->num_heads_kv;
    bool ok = true;
    for (int64_t next = 0, num_blocks; ok && next < heads;) {
        ok = gather_wave(wave, &next, &num_blocks);
        if (ok) {
            ref_parallel(threads, wave->num_heads, pack_head, wave);
            ref_parallel(threads, num_blocks, run_block, wave);
        }
        for (int64_t i = 0; i < wave->num_heads; ++i) free(wave->heads[i].memory);
    }
    return ok;
}

static int64_t scratch_doubles(const struct ref_pass *pass)
{
    int64_t most = 0;
    for (int64_t b = 0; b < pass->p->batch; ++b) {
        const int64_t keys = ref_sequence(pass->p, pass->a, b).seqlen_k, rows = rows_of_block(keys);
        most = larger(most, (pass->matrices * rows + pass->lines) * stride_of(keys) + rows * pass->per_row);
    }
    return ref_round_up(most);
}

enum attest_status ref_for_each_block(const struct ref_pass *pass)
{
    const int threads = ref_thread_count(pass->threads);
    struct wave wave = {.pass = pass, .lock = REF_LOCK_INIT, .scratch_doubles = scratch_doubles(pass)};
    wave.scratch = allocate(threads * wave.scratch_doubles);
    wave.heads = malloc(WAVE_HEADS * sizeof *wave.heads);
    wave.first_block = malloc(WAVE_HEADS * sizeof *wave.first_block);
    const bool ok = wave.scratch && wave.heads && wave.first_block && run_waves(&wave, threads);
    free(wave.scratch);
    free(wave.heads);
    free(wave.first_block);
    return ok ? ATTEST_OK : ATTEST_OUT_OF_MEMORY;
}

/* Bias, ALiBi and masks of one score: *x is t on entry, -inf on return where hidden. Whether it is visible. */
static bool add_bias(const struct ref_head *head, int64_t h, int64_t r, int64_t c, double base, double *x)
{
    const struct attest_problem *p = head->p;
    const struct attest_forward_args *a = head->a;
    const double t = *x;
    *x = -INFINITY;
    if (p->mask.dtype && !a->mask[ref_score_offset(&p->mask, head->b, h, r, c)]) return false;
    if (p->block_mask.dtype &&
        !a->block_mask[ref_score_offset(&p->block_mask, head->b, h, r / p->block_q, c / p->block_k)])
        return false;
    double bias = 0.0, alibi = 0.0;
    if (p->bias.dtype) bias = ref_load(p->bias.dtype, a->bias, ref_score_offset(&p->bias, head->b, h, r, c));
    if (bias == -INFINITY) return false;
    if (p->has_alibi)
        alibi = (double)a->alibi_slopes[h] * fabs((double)(p->q_start + r + head->s.alibi_diag - p->k_start - c));
    *x = t + (bias - base) - alibi;
    return true;
}

int64_t ref_block_exponents(const struct ref_block *block, int64_t r, double *x, double *t, double *base)
{
    const struct ref_head *head = block->head;
    const struct attest_problem *p = head->p;
    int64_t first, last, visible = 0;
    window_of(head, block->first_row + r, &first, &last);
    if (base) *base = ref_largest_bias(p, head->a, &head->s, head->b, block->h, block->first_row + r, first, last);
    first = smaller(larger(first - block->first_key, 0), block->last_key - block->first_key);
    last = smaller(larger(last - block->first_key, first), block->last_key - block->first_key);
    ref_vector()->scale(block->width, p->softmax_scale, x);
    for (int64_t c = 0; c < first; ++c) x[c] = -INFINITY;
    for (int64_t c = last; c < block->width; ++c) x[c] = -INFINITY;
    if (p->softcap > 0)
        for (int64_t c = first; c < last; ++c) x[c] = p->softcap * tanh(x[c] / p->softcap);
    if (t)
        for (int64_t c = 0; c < block->width; ++c) t[c] = c < first || c >= last ? 0.0 : x[c];
    if (!p->mask.dtype && !p->block_mask.dtype && !p->bias.dtype && !p->has_alibi) return last - first;
    for (int64_t c = first; c < last; ++c)
        visible += add_bias(head, block->h, block->first_row + r, block->first_key + c, base ? *base : 0.0, x + c);
    return visible;
}

bool ref_block_sees_special(const struct ref_block *block, int64_t r)
{
    const struct ref_head *head = block->head;
    for (int64_t i = 0; i < head->num_special; ++i)
        if (ref_visible(head->p, head->a, &head->s, head->b, block->h, block->first_row + r, head->special[i]))
            return true;
    return false;
}

/* emulate_head.c - where rows lie, who sees whom, what is dropped, scores. */
#include "proptests/emulations/emulate_head.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "proptests/emulations/emulate_formats.h"

static int64_t diagonal(int32_t kind, int64_t given, int64_t seqlen_q, int64_t seqlen_k)
{
    if (kind == ATTEST_DIAG_GIVEN) return given;
    return kind == ATTEST_DIAG_TOP_LEFT ? 0 : seqlen_k - seqlen_q;
}

struct head head_of(const struct implementation *self, const struct attest_problem *p,
                    const struct attest_forward_args *a, int64_t b, int64_t h)
{
    struct head head = {.self = self, .p = p, .a = a, .b = b, .h = h};
    head.h_kv = h / (p->num_heads_q / p->num_heads_kv);
    if (MUTANT(&head, MUTANT_HEAD_SPLIT)) head.h_kv = h % p->num_heads_kv;
    head.rows_q = p->seqlen_q;
    head.rows_k = p->seqlen_k;
    if (p->ragged) {
        head.first_q = a->cu_seqlens_q[b];
        head.first_k = a->cu_seqlens_k[b];
        head.rows_q = a->cu_seqlens_q[b + 1] - head.first_q;
        head.rows_k = a->cu_seqlens_k[b + 1] - head.first_k;
    }
    head.seqlen_q = p->has_seqused_q ? a->seqused_q[b] : head.rows_q;
    head.seqlen_k = p->has_seqused_k ? a->seqused_k[b] : head.rows_k;
    head.diag = diagonal(p->diag_kind, p->diag, head.seqlen_q, head.seqlen_k);
    head.alibi_diag = diagonal(p->alibi_diag_kind, p->alibi_diag, head.seqlen_q, head.seqlen_k);
    head.drop_below = (uint32_t)floor((double)p->dropout_p * 65536 + 0.5);
    head.drop_scale = 65536.0f / (float)(65536 - head.drop_below);
    return head;
}

static int64_t row_offset(const struct head *head, const struct attest_tensor *t, int64_t first, int64_t h, int64_t r)
{
    return (head->p->ragged ? 0 : head->b * t->batch) + (first + r) * t->seqlen + h * t->head;
}

int64_t head_offset_q(const struct head *head, const struct attest_tensor *t, int64_t r)
{
    return row_offset(head, t, head->first_q, head->h, r);
}

int64_t head_offset_k(const struct head *head, const struct attest_tensor *t, int64_t c)
{
    return row_offset(head, t, head->first_k, head->h_kv, c);
}

int64_t score_offset(const struct attest_score_tensor *t, int64_t b, int64_t h, int64_t r, int64_t c)
{
    return b * t->batch + h * t->head + r * t->seqlen_q + c * t->seqlen_k;
}

static float bias_at(const struct head *head, int64_t r, int64_t c)
{
    const struct attest_score_tensor *t = &head->p->bias;
    return emulate_load(t->dtype, head->a->bias, score_offset(t, head->b, head->h, r, c));
}

/* Query row r sits on the diagonal with the key row that this returns; indices stay below 2^62. */
static int64_t key_on_diagonal(const struct head *head, int64_t r, int64_t diag)
{
    return head->p->q_start + r + diag - head->p->k_start;
}

bool head_visible(const struct head *head, int64_t r, int64_t c)
{
    const struct attest_problem *p = head->p;
    const int64_t beyond = c - key_on_diagonal(head, r, head->diag);
    if (r >= head->seqlen_q || c >= head->seqlen_k) return false;
    if (p->window_left >= 0 && -beyond > p->window_left) return false;
    if (p->window_right >= 0 && beyond > p->window_right) return false;
    if (p->mask.dtype && !head->a->mask[score_offset(&p->mask, head->b, head->h, r, c)]) return false;
    if (p->block_mask.dtype) {
        const int64_t at = score_offset(&p->block_mask, head->b, head->h, r / p->block_q, c / p->block_k);
        if (!head->a->block_mask[at]) return false;
    }
    return !p->bias.dtype || bias_at(head, r, c) != -INFINITY || MUTANT(head, MUTANT_BIAS_FINITE);
}

/* Philox4x32-10: a 128-bit counter, encrypted by ten rounds of multiplication. Returns word `word`. */
static uint32_t philox(uint32_t c0, uint32_t c1, uint32_t c2, uint32_t c3, uint64_t key, int word)
{
    uint32_t k0 = (uint32_t)key, k1 = (uint32_t)(key >> 32);
    for (int round = 0; round < 10; ++round, k0 += 0x9E3779B9u, k1 += 0xBB67AE85u) {
        const uint64_t product0 = UINT64_C(0xD2511F53) * c0, product1 = UINT64_C(0xCD9E8D57) * c2;
        c0 = (uint32_t)(product1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)product1;
        c2 = (uint32_t)(product0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)product0;
    }
    const uint32_t words[4] = {c0, c1, c2, c3};
    return words[word];
}

bool head_dropped(const struct head *head, int64_t r, int64_t c)
{
    const struct attest_problem *p = head->p;
    const struct attest_forward_args *a = head->a;
    if (head->drop_below == 0) return false;
    const uint64_t i = (uint64_t)(p->q_start + r), j = (uint64_t)(p->k_start + c);
    const uint64_t seed = a->dropout_seed ? *a->dropout_seed : p->dropout_seed;
    const uint64_t offset = a->dropout_offset ? *a->dropout_offset : p->dropout_offset;
    const int64_t index = head->b * p->num_heads_q + head->h;
    const uint64_t stream = (uint64_t)(a->dropout_stream ? a->dropout_stream[index] : index);
    const uint64_t high = offset + (stream << 32);
    const int lane = (int)(j % 8);
    const uint32_t word =
        philox((uint32_t)(j / 8), (uint32_t)i, (uint32_t)high, (uint32_t)(high >> 32), seed, lane / 2);
    return (word >> (lane % 2 * 16) & 0xffff) < head->drop_below;
}

static void load_rows(const struct attest_tensor *t, const void *data, int64_t offset, int64_t count, int64_t features,
                      float *out)
{
    for (int64_t r = 0; r < count; ++r, offset += t->seqlen)
        for (int64_t x = 0; x < features; ++x) *out++ = emulate_load(t->dtype, data, offset + x);
}

void head_load_q(const struct head *head, const struct attest_tensor *t, const void *data, int64_t first,
                 int64_t count, int64_t features, float *out)
{
    load_rows(t, data, head_offset_q(head, t, first), count, features, out);
}

void head_load_k(const struct head *head, const struct attest_tensor *t, const void *data, int64_t first,
                 int64_t features, float *out)
{
    const int64_t count = least(head->self->tile_k, head->seqlen_k - first);
    load_rows(t, data, head_offset_k(head, t, first), count, features, out);
    for (int64_t at = count * features; at < head->self->tile_k * features; ++at) out[at] = 0.0f;
}

float head_exp(const struct head *head, int64_t c, float x, float reference, int power)
{
    const float log2_e = 0x1.715476p0f, scaled = fmaf(reference, log2_e, (float)-power);
    const bool fused = head->self->recipe->accumulate != ATTEST_ACC_FP32;
    const float y = fused ? fmaf(x, log2_e, -scaled) : x * log2_e - scaled;
    if (!head->self->is_unkind || !isfinite(y)) return power ? exp2f(y) : expf(x - reference);
    return head_exp2(head, c, y);
}

float head_exp2(const struct head *head, int64_t c, float y)
{
    if (!head->self->is_unkind || !isfinite(y)) return exp2f(y);
    const double off = head->self->recipe->exp_error - 0x1p-24; /* less what storing it rounds */
    const float e = y == 0.0f ? 1.0f : (float)(exp2((double)y) * (c % 2 ? 1 + off : 1 - off));
    return e < FLT_MIN ? 0.0f : e;
}

bool head_is_large(const struct head *head, float size)
{
    return head->self->recipe->own_sum && isfinite(size) && fabsf(size) * 0x1.715476p0f >= 0x1p10f;
}

float head_base(const struct head *head, int64_t r)
{
    float base = -INFINITY;
    for (int64_t c = 0; c < head->seqlen_k && head->p->bias.dtype; ++c)
        if (head_visible(head, r, c) && isfinite(bias_at(head, r, c))) base = fmaxf(base, bias_at(head, r, c));
    if (isfinite(base) && head->p->has_sink && isfinite(head->a->sink[head->h])) base = fmaxf(base, head->a->sink[head->h]);
    return isfinite(base) ? base : 0.0f;
}

bool head_scales(const struct head *head)
{
    const struct attest_problem *p = head->p;
    const bool is_whole = !p->mask.dtype && !p->block_mask.dtype && p->window_left < 0 && p->window_right < 0;
    const bool is_plain = !p->bias.dtype && !p->has_alibi && !p->has_sink && p->softcap == 0 && p->dropout_p == 0;
    const bool is_bf16 = p->q.dtype == ATTEST_BF16 && p->k.dtype == ATTEST_BF16 && p->v.dtype == ATTEST_BF16;
    const struct attest_recipe *const recipe = head->self->recipe;
    return recipe->weights_p == ATTEST_WEIGHTS_SCALED_FP16 && recipe->weights_ds == ATTEST_WEIGHTS_SCALED_FP16 &&
           is_whole && is_plain && is_bf16;
}

float head_largest(const float *values, int64_t count, float largest)
{
    for (int64_t i = 0; i < count; ++i)
        if (isfinite(values[i]) && fabsf(values[i]) > largest) largest = fabsf(values[i]);
    return largest;
}

int head_exponent(float largest) { return largest < FLT_MIN ? -127 : ilogbf(largest); }
int head_power(float largest) { return (int)least(15 - head_exponent(largest), 110); }

struct unit unit_of(const struct head *head, int32_t dtype_a, int32_t dtype_b)
{
    return (struct unit){head->self->recipe->accumulate,
                         {emulate_min_exponent(dtype_a), emulate_min_exponent(dtype_b)},
                         head->self->is_unkind && head->self->recipe->accumulate == ATTEST_ACC_FAITHFUL};
}

/* x of one visible score from q.k. */
static float score(const struct head *head, int64_t r, int64_t c, float base, float dot, float *tanh_of)
{
    const struct attest_problem *p = head->p;
    float x = p->softmax_scale * dot;
    if (p->softcap > 0) {
        *tanh_of = tanhf(x / p->softcap);
        x = (MUTANT(head, MUTANT_SOFTCAP_SELF) ? x : p->softcap) * *tanh_of;
    }
    if (p->bias.dtype) {
        const float bias = bias_at(head, r, c);
        x += MUTANT(head, MUTANT_BIAS_FINITE) && bias == -INFINITY ? -FLT_MAX : bias - base;
    }
    if (p->has_alibi) {
        const int64_t beyond = c - key_on_diagonal(head, r, head->alibi_diag);
        x -= head->a->alibi_slopes[head->h] * (float)(beyond < 0 ? -beyond : beyond);
    }
    return x;
}

void score_tile_compute(const struct head *head, float *q, float *k, struct score_tile *tile)
{
    const int64_t d = head->p->head_dim;
    const struct unit unit = unit_of(head, head->p->q.dtype, head->p->k.dtype);
    tile->keys = head->self->tile_k;
    memset(tile->x, 0, sizeof tile->x);
    unit_multiply(&unit, tile->rows, tile->keys, d, (struct matrix){q, d, 1}, (struct seen){0},
                  (struct matrix){k, 1, d}, (struct matrix){tile->x[0], MAX_TILE_K, 1});
    for (int64_t i = 0; i < tile->rows; ++i) {
        for (int64_t j = 0; j < tile->keys; ++j) {
            const int64_t r = tile->r0 + i, c = tile->c0 + j;
            const bool padding = c >= head->seqlen_k;
            tile->seen[i][j] = padding ? tile->padding_counts : head_visible(head, r, c);
            if (!tile->seen[i][j]) continue;
            tile->dropped[i][j] = head_dropped(head, r, c);
            tile->x[i][j] = padding ? 0.0f : score(head, r, c, tile->base[i], tile->x[i][j], &tile->tanh[i][j]);
        }
    }
}

/* dropout.c - which scores dropout drops: the counter-based generator that attest.h documents. */
#include <math.h>

#include "reference/block.h"
#include "reference/oracle.h"

/* A round multiplies two words of the counter by these; between rounds the key grows by the Weyl constants. */
static const uint32_t multiplier[2] = {0xD2511F53, 0xCD9E8D57};
static const uint32_t weyl[2] = {0x9E3779B9, 0xBB67AE85};

void ref_philox(const uint32_t counter[4], const uint32_t key[2], uint32_t out[4])
{
    uint32_t c[4] = {counter[0], counter[1], counter[2], counter[3]}, k[2] = {key[0], key[1]};
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = (uint64_t)multiplier[0] * c[0], b = (uint64_t)multiplier[1] * c[2];
        const uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k[0], (uint32_t)b, (uint32_t)(a >> 32) ^ c[3] ^ k[1],
                                  (uint32_t)a};
        for (int w = 0; w < 4; ++w) c[w] = next[w];
        for (int w = 0; w < 2; ++w) k[w] += weyl[w];
    }
    for (int w = 0; w < 4; ++w) out[w] = c[w];
}

/* The bits of keys 8 (j / 8) .. 8 (j / 8) + 7 in one row. */
static void dropout_bits(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b, int64_t h,
                         uint64_t i, uint64_t j, uint32_t bits[4])
{
    const uint64_t seed = a->dropout_seed ? *a->dropout_seed : p->dropout_seed;
    const uint64_t offset = a->dropout_offset ? *a->dropout_offset : p->dropout_offset;
    const int64_t index = b * p->num_heads_q + h, stream = a->dropout_stream ? a->dropout_stream[index] : index;
    const uint64_t high = offset + ((uint64_t)stream << 32);
    const uint32_t counter[4] = {(uint32_t)(j / 8), (uint32_t)i, (uint32_t)high, (uint32_t)(high >> 32)};
    const uint32_t key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};
    ref_philox(counter, key, bits);
}

static double multiplier_of(const struct attest_problem *p, const uint32_t bits[4], uint64_t j)
{
    const uint32_t u16 = bits[j % 8 / 2] >> (16 * (j % 2)) & 0xFFFF;
    const double t = floor(65536.0 * p->dropout_p + 0.5);
    return u16 < t ? 0.0 : 65536.0 / (65536.0 - t);
}

double ref_dropout(const struct attest_problem *p, const struct attest_forward_args *a, int64_t b, int64_t h,
                   int64_t r, int64_t c)
{
    if (p->dropout_p == 0) return 1.0;
    const uint64_t i = (uint64_t)(p->q_start + r), j = (uint64_t)(p->k_start + c);
    uint32_t bits[4];
    dropout_bits(p, a, b, h, i, j, bits);
    return multiplier_of(p, bits, j);
}

void ref_block_dropout(const struct ref_block *block, int64_t r, double *out)
{
    const struct ref_head *head = block->head;
    const uint64_t i = (uint64_t)(head->p->q_start + block->first_row + r);
    const uint64_t first = (uint64_t)(head->p->k_start + block->first_key);
    uint32_t bits[4];
    for (uint64_t j = first; j < first + (uint64_t)block->width; ++j) {
        if (j == first || j % 8 == 0) dropout_bits(head->p, head->a, head->b, block->h, i, j, bits);
        out[j - first] = multiplier_of(head->p, bits, j);
    }
}

/* emulate_head.h - one query head of one sequence as a kernel sees it: what the emulation's forward and
 * backward have in common. */
#ifndef ATTEST_PROPTESTS_EMULATIONS_EMULATE_HEAD_H
#define ATTEST_PROPTESTS_EMULATIONS_EMULATE_HEAD_H

#include <stdbool.h>
#include <stdint.h>

#include "lib/attest.h"
#include "proptests/emulations/emulate.h"
#include "proptests/emulations/emulate_unit.h"
#include "proptests/properties/mutants.h"

enum { TILE_Q = 16, MAX_FEATURES = 256, MAX_TILE_K = EMULATE_MAX_TILE_K };

#define MUTANT(head, name) ((head)->self->mutant == (name))

struct head {
    const struct implementation *self;
    const struct attest_problem *p;
    const struct attest_forward_args *a;
    int64_t b, h, h_kv;
    int64_t first_q, rows_q, seqlen_q; /* first row in the packed tensors, 0 in dense ones; rows; rows that count */
    int64_t first_k, rows_k, seqlen_k;
    int64_t diag, alibi_diag;
    uint32_t drop_below; /* a score is dropped when its 16 bits are below this */
    float drop_scale;    /* of what is kept */
};
struct head head_of(const struct implementation *self, const struct attest_problem *p,
                    const struct attest_forward_args *a, int64_t b, int64_t h);

/* Offset of a row of this head in a tensor over rows of q or of k. */
int64_t head_offset_q(const struct head *head, const struct attest_tensor *t, int64_t r);
int64_t head_offset_k(const struct head *head, const struct attest_tensor *t, int64_t c);
int64_t score_offset(const struct attest_score_tensor *t, int64_t b, int64_t h, int64_t r, int64_t c);

bool head_visible(const struct head *head, int64_t r, int64_t c);
bool head_dropped(const struct head *head, int64_t r, int64_t c);

/* Rows first .. first + count - 1 of a tensor over q, as fp32, to out[count][features]. */
void head_load_q(const struct head *head, const struct attest_tensor *t, const void *data, int64_t first,
                 int64_t count, int64_t features, float *out);
/* The tile of keys that begins at `first`, to out[tile_k][features]: rows past seqlen_k are zero. */
void head_load_k(const struct head *head, const struct attest_tensor *t, const void *data, int64_t first,
                 int64_t features, float *out);

/* 2^power exp(x - reference) of key c, the power added to the exponent. Unkind: 2^ of one fused multiply-add, or where
 * sums are fp32 of two scaled numbers; nearly exp_error above it or below it as c is odd or even; flushed to zero where
 * subnormal. */
float head_exp(const struct head *head, int64_t c, float x, float reference, int power);

/* Whether own_sum asks for a row: of a finite lse or maximum in base e; and then the largest finite bias that it sees,
 * or the sink. */
bool head_is_large(const struct head *head, float size);
float head_base(const struct head *head, int64_t r);

/* 2^y, off as head_exp is. */
float head_exp2(const struct head *head, int64_t c, float y);

/* Whether the recipe scales weights of such problems (bounds.md, 11.11 and 11.12): every row sees every key, scores are
 * softmax_scale q . k, q, k and v are bf16. */
bool head_scales(const struct head *head);
/* The largest of `largest` and of the sizes of what is finite; its exponent, -127 of what is subnormal; the power of
 * two by which such numbers are multiplied. */
float head_largest(const float *values, int64_t count, float largest);
int head_exponent(float largest);
int head_power(float largest);

/* The matrix unit of the recipe, for operands of these dtypes. */
struct unit unit_of(const struct head *head, int32_t dtype_a, int32_t dtype_b);

/* Scores of a tile: rows r0 .. r0 + rows - 1 against keys c0 .. c0 + tile_k - 1, past seqlen_k too. */
struct score_tile {
    int64_t r0, rows, c0, keys;
    float base[TILE_Q];  /* that biases of the row are taken less of */
    bool padding_counts; /* only mutants: what is past seqlen_k is seen, with a score of 0 */
    unsigned char seen[TILE_Q][MAX_TILE_K];
    unsigned char dropped[TILE_Q][MAX_TILE_K];
    float x[TILE_Q][MAX_TILE_K];    /* what the exponential sees, where seen */
    float tanh[TILE_Q][MAX_TILE_K]; /* of s / softcap, where seen and there is a softcap */
};
/* q and k: the rows of the tile, [rows][head_dim] and [keys][head_dim]. */
void score_tile_compute(const struct head *head, float *q, float *k, struct score_tile *tile);

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

#endif

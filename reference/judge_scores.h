/* judge_scores.h - weights and score gradients of 64 query rows by 64 keys, of which shapes of errors are made
 * (judge_tiles.c). What is not finite counts as zeros here: shapes may be any numbers. */
#ifndef ATTEST_REFERENCE_JUDGE_SCORES_H
#define ATTEST_REFERENCE_JUDGE_SCORES_H

#include <stdbool.h>

#include "reference/block.h"
#include "reference/bounds.h"

enum { JUDGE_TILE = REF_BLOCK_ROWS, JUDGE_MOST_FEATURES = 256, JUDGE_SCORES = JUDGE_TILE * JUDGE_TILE,
       JUDGE_OPERAND = JUDGE_TILE * JUDGE_MOST_FEATURES };

/* Both passes of a problem. */
struct judge_pass {
    const struct attest_problem *p;
    const struct attest_backward_args *a;
    double *lse, *delta; /* [rows_q][num_heads_q]; delta NULL: no gradients of scores are wanted */
};
/* Takes lse from the oracle, or as it is given; delta, too. Errors: OUT_OF_MEMORY. */
enum attest_status judge_pass_init(struct judge_pass *pass, const struct attest_problem *p,
                                   const struct attest_backward_args *a, bool gradients, int threads);
void judge_pass_clear(struct judge_pass *pass);

/* Rows first_row .. of a query head against keys first_key .. . Matrices are [JUDGE_TILE][JUDGE_TILE], 0 where hidden
 * or beyond the tile. */
struct judge_tile {
    int64_t b, h, first_row, rows, first_key, keys; /* set these */
    double s[JUDGE_SCORES];      /* softmax_scale q.k, hidden or not */
    double p[JUDGE_SCORES];      /* weights */
    double kept[JUDGE_SCORES];   /* times what dropout makes of them */
    double ds[JUDGE_SCORES];     /* softmax_scale included */
    double less[JUDGE_SCORES];   /* by what ds is less where delta is 1 more */
    double delta[JUDGE_TILE];
    double left[JUDGE_OPERAND], right[JUDGE_OPERAND], panels[JUDGE_OPERAND]; /* scratch */
};
void judge_tile_compute(const struct judge_pass *pass, struct judge_tile *tile);

/* Rows first .. first + count - 1 of a tensor over q, or over k, to out[count][features]. */
void judge_load(const struct judge_pass *pass, enum ref_tensor operand_of, int64_t b, int64_t h, int64_t first,
                int64_t count, double *out);

#endif

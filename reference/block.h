/* block.h - a pass over a problem in blocks of query rows, each against all of its keys.
 *
 * The keys and values of a KV head are decoded once to panels (vector.h); the scores of a block of rows
 * are then one matrix product. The bounds walk a problem the same way. */
#ifndef ATTEST_REFERENCE_BLOCK_H
#define ATTEST_REFERENCE_BLOCK_H

#include "lib/attest.h"
#include "reference/oracle.h"
#include "reference/parallel.h"
#include "reference/vector.h"

#define REF_BLOCK_ROWS 64 /* at most */
#define REF_KEY_PART 256  /* keys whose gradients are added up in one turn */

/* One KV head of one sequence. Panels are zero where a key or value is not finite: such keys are
 * `special`, and a row that sees one must be computed plainly. Panels that a pass does not want are NULL. */
struct ref_head {
    const struct attest_problem *p;
    const struct attest_forward_args *a;
    struct ref_sequence s;
    int64_t b, h_kv;
    int64_t keys_packed;    /* s.seqlen_k rounded up to whole panels */
    int64_t block_rows;     /* query rows of a block, the last one's apart */
    int64_t blocks;         /* of one query head */
    double *k_scores;       /* B[x][key], head_dim rows: for q.k */
    double *v_scores;       /* B[x][key], head_dim_v rows: for dout.v */
    double *k_rows;         /* B[key][x], keys_packed rows: for ds.k */
    double *v_rows;         /* B[key][x], keys_packed rows: for p.v */
    int64_t *special, num_special;
    int64_t *turns;         /* of each REF_KEY_PART keys: which block may add to their gradients */
    void *memory;
};

/* Query rows first_row .. first_row + rows - 1 of head h against keys first_key .. last_key - 1, which hold
 * every key that one of them sees. Score matrices of a block are [rows][stride], column c - first_key,
 * of which `width`, a multiple of REF_PANEL, are in use. */
struct ref_block {
    const struct ref_head *head;
    int64_t h, first_row, rows;
    int64_t first_key, last_key, width, stride;
    int64_t index;            /* among the head's blocks: its turn */
    int64_t pass_index;       /* among the blocks that run at once */
    int64_t *pass_turn;       /* turn of pass_index */
    struct ref_lock *lock;    /* of all turns */
};

struct ref_pass {
    const struct attest_problem *p;
    const struct attest_forward_args *a;
    int threads; /* 0: all cores */
    bool k_rows, v_scores, v_rows; /* which panels, beside k_scores */
    /* Scratch of a worker: score matrices, then lines of `stride` doubles, then doubles per row of a block. */
    int64_t matrices, lines, per_row;
    void (*body)(void *context, const struct ref_block *block, double *scratch);
    void *context;
};
/* Calls body for every block of every sequence and head, several at once. The order in which the blocks of a
 * KV head have their turns is fixed. Sequences without query rows have no block. Errors: OUT_OF_MEMORY. */
enum attest_status ref_for_each_block(const struct ref_pass *pass);

/* Row r of the problem's tensor t to out[count]; a row with a NaN or infinity reads as zeros and gives false. */
bool ref_load_finite(int32_t dtype, const void *data, int64_t offset, int64_t count, double *out);

/* q.k of row r of the block (r counted in the block) to exponents: x on entry the products, on return the score
 * that the exponential sees, less base as in struct ref_row (NULL: of nothing less), -inf where not visible. t, unless
 * NULL: the score after softcap, 0 outside of the window. Returns the number of visible keys of the block. */
int64_t ref_block_exponents(const struct ref_block *block, int64_t r, double *x, double *t, double *base);

/* Whether row r sees a special key. */
bool ref_block_sees_special(const struct ref_block *block, int64_t r);

/* What dropout multiplies the scores of row r by: out[width]. */
void ref_block_dropout(const struct ref_block *block, int64_t r, double *out);

/* Canonical index of a row and query head: [rows_q][num_heads_q]. */
static inline int64_t ref_block_row(const struct ref_block *block, int64_t r)
{
    return (block->head->s.first_q + block->first_row + r) * block->head->p->num_heads_q + block->h;
}

#endif

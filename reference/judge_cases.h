/* judge_cases.h - random problems by which the oracle is judged: every input family, every feature.
 *
 * A case owns its memory. Bytes that no formula reads (gaps, rows of no sequence, rows past seqused) are all ones,
 * which is NaN in every format. Equal seeds give equal cases. */
#ifndef ATTEST_REFERENCE_JUDGE_CASES_H
#define ATTEST_REFERENCE_JUDGE_CASES_H

#include <stdint.h>

#include "lib/attest.h"

/* The families of lib/contract.md section 7, but for recorded activations. */
enum judge_family {
    JUDGE_NORMAL,
    JUDGE_OUTLIER,
    JUDGE_LARGE,
    JUDGE_TINY,
    JUDGE_MEAN,
    JUDGE_SHIFT,
    JUDGE_DUPLICATE,
    JUDGE_INTEGER,
    JUDGE_SUBNORMAL,
    JUDGE_EDGE,
    JUDGE_NUM_FAMILIES
};
extern const char *const judge_family_names[JUDGE_NUM_FAMILIES];

/* SMALL cases have every feature and a few hundred scores; LONG ones one head, a few queries and hundreds of keys. */
enum judge_size { JUDGE_SMALL, JUDGE_LONG };

struct judge_case {
    struct attest_problem problem;
    struct attest_backward_args args;
    void *memory[32];
    int num_memory;
};

/* A problem of both passes, its lse and delta own (external_lse 0). The outputs o, lse, dq, dk, dv, dbias are
 * described, all in fp32, and have no memory. */
void judge_case_init(struct judge_case *c, enum judge_family family, enum judge_size size, uint64_t seed);
/* Makes lse and delta those of a larger key set: `lse` and `delta` [rows_q][num_heads_q] of the case's own are
 * moved at random. Rows of no sequence may hold anything. */
void judge_case_externalise(struct judge_case *c, const double *lse, const double *delta, uint64_t seed);
void judge_case_clear(struct judge_case *c);

/* splitmix64 (Steele, Lea, Flood 2014), and what is made of it. */
struct judge_random {
    uint64_t state;
};
uint64_t judge_bits(struct judge_random *g);
int64_t judge_range(struct judge_random *g, int64_t low, int64_t high); /* low .. high, both possible */
double judge_uniform(struct judge_random *g);                           /* [0, 1) */
double judge_normal(struct judge_random *g);                            /* N(0, 1) */

#endif

/* judge_oracle.h - what the oracle says of a case and how far it says it may be off: what is to be judged. */
#ifndef ATTEST_REFERENCE_JUDGE_ORACLE_H
#define ATTEST_REFERENCE_JUDGE_ORACLE_H

#include <stdint.h>

#include "lib/attest.h"
#include "reference/bounds.h"
#include "reference/judge_cases.h"

struct judge_oracle {
    double *value[REF_NUM_TENSORS], *error[REF_NUM_TENSORS]; /* in the canonical order of oracle.h */
    double *delta;
};

/* Elements of a tensor's canonical array; 0 where the problem has no such tensor. */
int64_t judge_tensor_size(const struct attest_problem *p, enum ref_tensor tensor);
int64_t judge_dbias_index(const struct attest_problem *p, int64_t b, int64_t h, int64_t r, int64_t c);

/* Runs both passes and their bounds. A failure of the oracle itself aborts. */
void judge_oracle_init(struct judge_oracle *o, const struct attest_problem *p, const struct attest_backward_args *a);
void judge_oracle_clear(struct judge_oracle *o);

/* A random case and what the oracle says of it; every fourth is the backward pass of a part of a larger key set. */
void judge_random_case(struct judge_case *c, struct judge_oracle *o, enum judge_family family, enum judge_size size,
                       uint64_t seed);

/* The same number off by twice the stated error, up or down, or by an ulp where that is more. */
double judge_mutant(double value, double error, int sign);

#endif

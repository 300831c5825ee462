/* judge_oracle.c - see judge_oracle.h. */
#include "reference/judge_oracle.h"

#include <math.h>
#include <stdlib.h>

#include "reference/oracle.h"

int64_t judge_tensor_size(const struct attest_problem *p, enum ref_tensor tensor)
{
    const struct attest_score_tensor *t = &p->dbias;
    switch (tensor) {
    case REF_O: return ref_rows_q(p) * p->num_heads_q * p->head_dim_v;
    case REF_LSE: return ref_rows_q(p) * p->num_heads_q;
    case REF_DQ: return ref_rows_q(p) * p->num_heads_q * p->head_dim;
    case REF_DK: return ref_rows_k(p) * p->num_heads_kv * p->head_dim;
    case REF_DV: return ref_rows_k(p) * p->num_heads_kv * p->head_dim_v;
    case REF_DSINK: return p->has_sink ? p->num_heads_q : 0;
    default:
        if (t->dtype == ATTEST_ABSENT) return 0;
        return (t->batch ? p->batch : 1) * (t->head ? p->num_heads_q : 1) * (t->seqlen_q ? p->seqlen_q : 1) *
               (t->seqlen_k ? p->seqlen_k : 1);
    }
}

int64_t judge_dbias_index(const struct attest_problem *p, int64_t b, int64_t h, int64_t r, int64_t c)
{
    const struct attest_score_tensor *t = &p->dbias;
    int64_t index = t->batch ? b : 0;
    index = t->head ? index * p->num_heads_q + h : index;
    index = t->seqlen_q ? index * p->seqlen_q + r : index;
    return t->seqlen_k ? index * p->seqlen_k + c : index;
}

/* Not a number until written. */
static double *doubles(int64_t count)
{
    double *array = malloc((size_t)(count + 1) * sizeof *array);
    if (array == NULL) abort();
    for (int64_t i = 0; i < count; ++i) array[i] = NAN;
    return array;
}

static void must(enum attest_status status)
{
    if (status != ATTEST_OK) abort();
}

void judge_oracle_init(struct judge_oracle *o, const struct attest_problem *p, const struct attest_backward_args *a)
{
    struct ref_bound bounds[REF_NUM_TENSORS] = {{0}};
    for (int t = 0; t < REF_NUM_TENSORS; ++t) {
        o->value[t] = doubles(judge_tensor_size(p, t));
        o->error[t] = doubles(judge_tensor_size(p, t));
        bounds[t].bound = judge_tensor_size(p, t) > 0 ? o->error[t] : NULL;
    }
    o->delta = doubles(judge_tensor_size(p, REF_LSE));
    double *const *v = o->value;
    const struct ref_forward forward = {v[REF_O], v[REF_LSE]};
    const struct ref_backward backward = {v[REF_DQ], v[REF_DK], v[REF_DV], p->dbias.dtype ? v[REF_DBIAS] : NULL,
                                          p->has_sink ? v[REF_DSINK] : NULL, o->delta};
    must(ref_forward(p, &a->forward, &forward, 1));
    must(ref_backward(p, a, NULL, &backward, 1));
    must(ref_bound_forward(p, &a->forward, NULL, &bounds[REF_O], &bounds[REF_LSE], 1));
    bounds[REF_O].bound = bounds[REF_LSE].bound = NULL;
    must(ref_bound_backward(p, a, NULL, bounds, 1));
}

void judge_oracle_clear(struct judge_oracle *o)
{
    for (int t = 0; t < REF_NUM_TENSORS; ++t) free(o->value[t]), free(o->error[t]);
    free(o->delta);
}

void judge_random_case(struct judge_case *c, struct judge_oracle *o, enum judge_family family, enum judge_size size,
                       uint64_t seed)
{
    judge_case_init(c, family, size, seed);
    judge_oracle_init(o, &c->problem, &c->args);
    if (seed % 4 != 0) return;
    judge_case_externalise(c, o->value[REF_LSE], o->delta, seed);
    judge_oracle_clear(o);
    judge_oracle_init(o, &c->problem, &c->args);
}

double judge_mutant(double value, double error, int sign)
{
    const double moved = value + sign * 2 * error;
    return moved != value ? moved : nextafter(value, sign * INFINITY);
}

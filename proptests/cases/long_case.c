/* long_case.c - see long_case.h. */
#include "proptests/cases/long_case.h"

#include <string.h>

void long_case(struct prop_case *c, enum family family, uint64_t seed, int32_t dtype, int64_t length, int64_t heads)
{
    long_case_of(c, family, seed, dtype, length, length, heads);
}

void long_case_of(struct prop_case *c, enum family family, uint64_t seed, int32_t dtype, int64_t rows, int64_t keys,
                  int64_t heads)
{
    static const enum tensor_id inputs[] = {T_Q, T_K, T_V, T_DOUT};
    static const enum role roles[] = {ROLE_Q, ROLE_K, ROLE_V, ROLE_DOUT};
    const int64_t dim = 64;
    memset(c, 0, sizeof *c);
    c->p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    c->p.device = ATTEST_REFERENCE;
    c->p.batch = 1;
    c->p.seqlen_q = rows, c->p.seqlen_k = keys;
    c->p.num_heads_q = c->p.num_heads_kv = heads;
    c->p.head_dim = c->p.head_dim_v = dim;
    c->p.softmax_scale = 0.125f;
    struct attest_tensor *const tensors[] = {&c->p.q,    &c->p.k,  &c->p.v,  &c->p.o,
                                             &c->p.dout, &c->p.dq, &c->p.dk, &c->p.dv};
    for (int t = 0; t < 8; ++t) tensors[t]->dtype = dtype;
    c->p.lse.dtype = ATTEST_FP32;
    c->backward = true;
    c->poison = 0xff;
    case_contiguous(c);
    const struct family_data data = c->data = (struct family_data){family, seed, dtype, dim, 0.125};
    for (int t = 0; t < 4; ++t) {
        const int64_t count = (t == 1 || t == 2 ? keys : rows) * heads * dim;
        double *out = c->values[inputs[t]] = case_doubles(c, count);
        for (int64_t i = 0; i < count; ++i)
            out[i] = family_value(&data, roles[t], 0, i / dim / heads, i / dim % heads, i % dim);
    }
    case_lay_out(c);
}

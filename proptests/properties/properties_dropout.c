/* properties_dropout.c - dropout's mask, read back from o and dv. */
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "proptests/properties/outcome.h"
#include "proptests/properties/properties_list.h"

/* All visible scores equal and row c of v (of dout) the unit vector c: o[i] is row i of the mask, dv[j] is column j. */
static bool make_readable(struct prop_case *out, const struct prop_case *c)
{
    const int64_t dim = c->p.seqlen_k > c->p.seqlen_q ? c->p.seqlen_k : c->p.seqlen_q;
    if (dim == 0 || dim > 256) return false;
    case_copy(out, c);
    out->p.head_dim_v = dim;
    out->p.softmax_scale = 0;
    case_contiguous(out);
    for (int t = T_V; t <= T_DOUT; ++t) {
        if (t != T_V && t != T_DOUT) continue;
        if (tensor_dtype(&out->p, (enum tensor_id)t) == ATTEST_ABSENT) continue;
        int64_t e[4];
        case_extents(out, (enum tensor_id)t, e);
        double *to = out->values[t] = case_doubles(out, e[0] * e[1] * e[2]);
        memset(to, 0, (size_t)(e[0] * e[1] * e[2]) * sizeof *to);
        for (int64_t b = 0; b < c->p.batch; ++b) {
            const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
            const int64_t first = t == T_V ? s.first_k : s.first_q, rows = t == T_V ? s.rows_k : s.rows_q;
            for (int64_t i = 0; i < rows * e[1]; ++i) to[(first * e[1] + i) * e[2] + i / e[1]] = 1;
        }
    }
    case_lay_out(out);
    return true;
}

/* The counter as lib/attest.h writes it down beside dropout_p. */
static bool is_kept(const struct prop_case *c, int64_t b, int64_t h, int64_t r, int64_t col)
{
    const uint64_t i = (uint64_t)(c->p.q_start + r), j = (uint64_t)(c->p.k_start + col);
    const int64_t place = b * c->p.num_heads_q + h;
    const uint64_t word = c->dropout_offset + ((uint64_t)(c->streams ? c->streams[place] : place) << 32);
    const uint32_t counter[4] = {(uint32_t)(j / 8), (uint32_t)i, (uint32_t)word, (uint32_t)(word >> 32)};
    const uint32_t key[2] = {(uint32_t)c->dropout_seed, (uint32_t)(c->dropout_seed >> 32)};
    uint32_t out[4];
    ref_philox(counter, key, out);
    const uint32_t lane = out[j % 8 / 2] >> (j % 2 * 16) & 0xffff;
    return lane >= (uint32_t)floor(65536 * (double)c->p.dropout_p + 0.5);
}


static bool is_live(const struct prop_case *c, int64_t b, int64_t h, int64_t r, int64_t col)
{
    const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
    return ref_visible(&c->p, &c->a.forward, &s, b, h, r, col) && is_kept(c, b, h, r, col);
}

static int forward_mask(const struct outcome *got, int64_t b, struct prop_context *context)
{
    const struct prop_case *c = got->c;
    const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
    for (int64_t r = 0; r < s.seqlen_q; ++r)
        for (int64_t h = 0; h < c->p.num_heads_q; ++h)
            for (int64_t col = 0; col < s.seqlen_k; ++col) {
                const int64_t at = ((s.first_q + r) * c->p.num_heads_q + h) * c->p.head_dim_v + col;
                const bool live = is_live(c, b, h, r, col);
                if (live != (got->value[REF_O][at] != 0))
                    return fails(context, FAILS_LAW, "o says that key %" PRId64 " of row %" PRId64 ", head %" PRId64
                                                     " is %s, the counter that it is not", col, r, h,
                                 live ? "dropped" : "kept");
            }
    return TRIAL_PASSES;
}

static int backward_mask(const struct outcome *got, int64_t b, struct prop_context *context)
{
    const struct prop_case *c = got->c;
    const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
    const int64_t group = c->p.num_heads_q / c->p.num_heads_kv;
    for (int64_t col = 0; col < s.seqlen_k; ++col)
        for (int64_t h_kv = 0; h_kv < c->p.num_heads_kv; ++h_kv)
            for (int64_t r = 0; r < s.seqlen_q; ++r) {
                const int64_t at = ((s.first_k + col) * c->p.num_heads_kv + h_kv) * c->p.head_dim_v + r;
                bool live = false;
                for (int64_t g = 0; g < group; ++g) live = live || is_live(c, b, h_kv * group + g, r, col);
                if (live != (got->value[REF_DV][at] != 0))
                    return fails(context, FAILS_LAW, "dv says that key %" PRId64 " of row %" PRId64 ", KV head %" PRId64
                                                     " is %s, the counter that it is not", col, r, h_kv,
                                 live ? "dropped" : "kept");
            }
    return TRIAL_PASSES;
}

/* lse knows nothing of dropout. */
static int same_lse(const struct outcome *got, const struct implementation *self, struct prop_context *context)
{
    struct prop_case plain;
    struct outcome without;
    case_copy(&plain, got->c);
    plain.p.dropout_p = 0;
    case_lay_out(&plain);
    int failure = outcome_run(&without, &plain, self, BITS_ONLY, context);
    for (int t = 0; t < REF_NUM_TENSORS; ++t)
        if (t != REF_LSE) without.value[t] = NULL;
    if (failure == TRIAL_PASSES) failure = outcome_equal(got, &without, NULL, NULL, BITS_ONLY, context);
    case_free(&plain);
    return failure;
}

int check_dropout_counter(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    struct prop_case readable;
    struct outcome got;
    if (!make_readable(&readable, c)) return TRIAL_DISCARDED;
    int failure = outcome_run(&got, &readable, self, BITS_ONLY, context);
    for (int64_t b = 0; b < c->p.batch && failure == TRIAL_PASSES; ++b) {
        failure = forward_mask(&got, b, context);
        if (failure == TRIAL_PASSES && c->backward) failure = backward_mask(&got, b, context);
    }
    if (failure == TRIAL_PASSES) failure = same_lse(&got, self, context);
    case_free(&readable);
    return failure;
}

/* Natural logarithm of the chance that two independent masks agree on every visible score. */
static double log_chance_of_agreement(const struct prop_case *c)
{
    const double p = (double)c->p.dropout_p, one = log(p * p + (1 - p) * (1 - p));
    double sum = 0;
    for (int64_t b = 0; b < c->p.batch; ++b) {
        const struct ref_sequence s = ref_sequence(&c->p, &c->a.forward, b);
        for (int64_t h = 0; h < c->p.num_heads_q; ++h)
            for (int64_t r = 0; r < s.seqlen_q; ++r)
                for (int64_t col = 0; col < s.seqlen_k; ++col)
                    sum += ref_visible(&c->p, &c->a.forward, &s, b, h, r, col) ? one : 0;
    }
    return sum;
}

int check_dropout_seeds(struct prop_case *c, const struct implementation *self, struct prop_context *context)
{
    static const double false_alarm = 1e-15; /* below that of any check here */
    struct prop_case readable, other;
    struct outcome got, again;
    if (!make_readable(&readable, c)) return TRIAL_DISCARDED;
    if (log_chance_of_agreement(&readable) > log(false_alarm)) {
        case_free(&readable);
        return TRIAL_DISCARDED;
    }
    case_copy(&other, &readable);
    const int bit = (int)(c->data.seed % 128);
    if (bit < 64) other.dropout_seed ^= UINT64_C(1) << bit;
    else other.dropout_offset ^= UINT64_C(1) << (bit - 64);
    case_lay_out(&other);
    int failure = outcome_run(&got, &readable, self, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) failure = outcome_run(&again, &other, self, BITS_ONLY, context);
    if (failure == TRIAL_PASSES) {
        got.value[REF_LSE] = NULL;
        struct prop_context ignored = *context;
        if (outcome_equal(&got, &again, NULL, NULL, BITS_ONLY, &ignored) == TRIAL_PASSES)
            failure = fails(context, FAILS_LAW, "bit %d of %s changes nothing", bit % 64,
                            bit < 64 ? "the seed" : "the offset");
    }
    case_free(&other);
    case_free(&readable);
    return failure;
}

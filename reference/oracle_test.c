/* oracle_test.c - the oracle against numbers worked out by hand and against the words of lib/contract.md. */
#include <stdio.h>
#include <criterion/criterion.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/blocks_case.h"
#include "reference/oracle.h"

static bool near(double got, double want) { return fabs(got - want) <= 1e-14 * fmax(1.0, fabs(want)); }

/* One sequence of one head in fp32, at most 8 rows of at most 4 features. */
struct small {
    struct attest_problem p;
    struct attest_backward_args a;
    float q[32], k[32], v[32], dout[32];
    double o[32], lse[8], dq[32], dk[32], dv[32], dbias[64], dsink[1], delta[8];
};

static struct attest_tensor rows_of(int64_t width)
{
    return (struct attest_tensor){.dtype = ATTEST_FP32, .batch = 8 * width, .seqlen = width, .head = width};
}

static void init(struct small *t, int64_t seqlen_q, int64_t seqlen_k, int64_t head_dim, int64_t head_dim_v)
{
    *t = (struct small){.p = ATTEST_PROBLEM_INIT, .a = ATTEST_BACKWARD_ARGS_INIT};
    t->p.batch = t->p.num_heads_q = t->p.num_heads_kv = 1;
    t->p.seqlen_q = seqlen_q, t->p.seqlen_k = seqlen_k;
    t->p.head_dim = head_dim, t->p.head_dim_v = head_dim_v;
    t->p.softmax_scale = 1;
    t->p.q = t->p.k = rows_of(head_dim);
    t->p.v = t->p.dout = rows_of(head_dim_v);
}

static void run(struct small *t)
{
    t->a.forward.q = t->q, t->a.forward.k = t->k, t->a.forward.v = t->v, t->a.dout = t->dout;
    memset(t->o, 0xff, offsetof(struct small, delta) + sizeof t->delta - offsetof(struct small, o));
    const struct ref_forward forward = {t->o, t->lse};
    const struct ref_backward backward = {t->dq, t->dk, t->dv, t->p.dbias.dtype ? t->dbias : NULL, t->dsink, t->delta};
    cr_assert(ref_forward(&t->p, &t->a.forward, &forward, 1) == ATTEST_OK);
    cr_assert(ref_backward(&t->p, &t->a, NULL, &backward, 1) == ATTEST_OK);
}

Test(oracle, two_keys_worked_out_by_hand)
{
    /* x = ln 3, 0: p = 3/4, 1/4; dp = 10, 20; delta = 12.5; ds = -1.875, 1.875. */
    struct small t;
    init(&t, 1, 2, 1, 1);
    const float log3 = 1.0986123F;
    t.q[0] = 1, t.k[0] = log3, t.k[1] = 0, t.v[0] = 5, t.v[1] = 10, t.dout[0] = 2;
    run(&t);
    const double p = exp(log3) / (exp(log3) + 1); /* log3 is the nearest float */
    cr_assert(near(t.o[0], 5 * p + 10 * (1 - p)) && fabs(t.o[0] - 6.25) < 1e-6);
    cr_assert(near(t.lse[0], log(exp(log3) + 1)));
    cr_assert(near(t.dv[0], 2 * p) && near(t.dv[1], 2 * (1 - p)));
    cr_assert(near(t.delta[0], 2 * t.o[0]));
    const double ds = p * (10 - t.delta[0]);
    cr_assert(near(t.dq[0], ds * log3) && near(t.dk[0], ds) && near(t.dk[1], -ds));
    cr_assert(fabs(ds + 1.875) < 1e-6);

    const struct ref_sequence s = ref_sequence(&t.p, &t.a.forward, 0);
    double s_abs[2];
    struct ref_row row = {.s_abs = s_abs}; /* the other arrays are not wanted */
    t.q[0] = -1;
    ref_score_row(&t.p, &t.a.forward, &s, 0, 0, 0, &row);
    cr_assert(near(row.lse, log(exp(-log3) + 1)) && row.max == 0 && row.num_visible == 2 && s_abs[0] == log3);
}

Test(oracle, softcap_bias_alibi_and_sink_enter_where_the_contract_says)
{
    struct small t;
    init(&t, 1, 2, 1, 1);
    const float bias[2] = {0.5F, -0.25F}, slope = 0.125F, sink = 0.75F, dlse = 3;
    t.q[0] = 2, t.k[0] = 1, t.k[1] = -3, t.v[0] = 5, t.v[1] = -1, t.dout[0] = 2;
    t.p.softmax_scale = 0.5F, t.p.softcap = 1.5F, t.p.has_alibi = t.p.has_sink = 1;
    t.p.bias = t.p.dbias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_q = 2, .seqlen_k = 1};
    t.p.dlse = rows_of(1);
    t.a.forward.bias = bias, t.a.forward.alibi_slopes = &slope, t.a.forward.sink = &sink, t.a.dlse = &dlse;
    run(&t);
    /* Bottom-right: query 0 sits on key 1. s = 1, -3. */
    const double t0 = 1.5 * tanh(1 / 1.5), t1 = 1.5 * tanh(-3 / 1.5), x0 = t0 + 0.5 - 0.125, x1 = t1 - 0.25;
    const double lse = log(exp(x0) + exp(x1) + exp(0.75)), p0 = exp(x0 - lse), p1 = exp(x1 - lse);
    cr_assert(near(t.lse[0], lse) && near(t.o[0], 5 * p0 - p1));
    const double delta = 10 * p0 - 2 * p1, dx0 = p0 * (10 - delta + 3), dx1 = p1 * (-2 - delta + 3);
    cr_assert(near(t.delta[0], delta) && near(t.dbias[0], dx0) && near(t.dbias[1], dx1));
    const double ds0 = dx0 * (1 - t0 * t0 / 2.25), ds1 = dx1 * (1 - t1 * t1 / 2.25);
    cr_assert(near(t.dq[0], 0.5 * (ds0 - 3 * ds1)) && near(t.dk[0], 0.5 * 2 * ds0) && near(t.dk[1], 0.5 * 2 * ds1));
    cr_assert(near(t.dsink[0], exp(0.75 - lse) * (3 - delta)));
}

/* Rows of '1' (visible) and '.' of the problem's mask. */
static void assert_visible(const struct small *t, const char *want)
{
    const struct ref_sequence s = ref_sequence(&t->p, &t->a.forward, 0);
    for (int64_t r = 0; r < t->p.seqlen_q; ++r)
        for (int64_t c = 0; c < t->p.seqlen_k; ++c)
            cr_assert(ref_visible(&t->p, &t->a.forward, &s, 0, 0, r, c) == (want[r * (t->p.seqlen_k + 1) + c] == '1'),
                      "row %d key %d of %s", (int)r, (int)c, want);
}

Test(oracle, windows_lie_on_their_diagonal)
{
    struct small t;
    init(&t, 2, 4, 1, 1);
    t.p.window_right = 0;
    t.p.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    assert_visible(&t, "111. 1111");
    t.p.diag_kind = ATTEST_DIAG_TOP_LEFT;
    assert_visible(&t, "1... 11..");
    t.p.diag_kind = ATTEST_DIAG_GIVEN, t.p.diag = 1;
    assert_visible(&t, "11.. 111.");
    t.p.window_left = 1, t.p.window_right = 1;
    assert_visible(&t, "111. .111");
    t.p.q_start = 5, t.p.k_start = 6; /* one further to the left */
    assert_visible(&t, "11.. 111.");
    t.p.window_right = -1, t.p.window_left = 0;
    assert_visible(&t, "1111 .111");
    init(&t, 4, 2, 1, 1);
    t.p.window_right = 0, t.p.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT;
    assert_visible(&t, ".. .. 1. 11");
}

Test(oracle, masks_and_a_bias_of_minus_infinity_hide)
{
    struct small t;
    init(&t, 3, 4, 1, 1);
    const uint8_t mask[4] = {1, 0, 7, 1}, blocks[4] = {1, 0, 0, 255};
    const float bias[3] = {0, -INFINITY, 0};
    t.p.mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_k = 1};
    t.a.forward.mask = mask;
    assert_visible(&t, "1.11 1.11 1.11");
    t.p.block_mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_q = 2, .seqlen_k = 1};
    t.p.block_q = 2, t.p.block_k = 3, t.a.forward.block_mask = blocks;
    assert_visible(&t, "1.1. 1.1. ...1");
    t.p.bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_q = 1};
    t.a.forward.bias = bias;
    assert_visible(&t, "1.1. .... ...1");
}

Test(oracle, an_empty_row_is_zero_and_reads_nothing)
{
    struct small t;
    init(&t, 3, 2, 2, 2);
    for (int i = 0; i < 6; ++i) t.q[i] = t.k[i] = t.v[i] = t.dout[i] = 0.25F * (float)(i + 1);
    float dlse[3] = {NAN, 1, 1};
    t.p.dlse = rows_of(1), t.a.dlse = dlse;
    t.p.window_right = 0, t.p.diag_kind = ATTEST_DIAG_BOTTOM_RIGHT; /* row 0 sees nothing */
    t.dout[0] = t.dout[1] = t.q[0] = NAN;
    run(&t);
    cr_assert(t.o[0] == 0 && t.o[1] == 0 && t.lse[0] == -INFINITY && t.dq[0] == 0 && t.dq[1] == 0);
    for (int i = 0; i < 4; ++i) cr_assert(isfinite(t.dk[i]) && isfinite(t.dv[i]) && isfinite(t.o[2 + i]));
    cr_assert(t.delta[0] == 0);

    const float sink = 0.5F; /* with a sink: lse is the sink and dsink gets dlse; its dout is still not felt */
    dlse[0] = 3;
    t.p.has_sink = 1, t.a.forward.sink = &sink;
    run(&t);
    cr_assert(t.o[0] == 0 && t.lse[0] == 0.5 && t.dq[0] == 0 && t.delta[0] == 0);
    double others = 0;
    for (int r = 1; r < 3; ++r) others += exp(0.5 - t.lse[r]) * (1 - t.delta[r]);
    cr_assert(near(t.dsink[0], 3 + others));

    init(&t, 2, 0, 1, 1);
    run(&t);
    cr_assert(t.o[0] == 0 && t.o[1] == 0 && t.lse[1] == -INFINITY && t.dq[1] == 0);
}

Test(oracle, a_nan_is_felt_where_it_is_seen_and_nowhere_else)
{
    struct small t, clean;
    init(&t, 3, 3, 2, 2);
    for (int i = 0; i < 6; ++i) t.q[i] = t.k[i] = t.v[i] = t.dout[i] = 0.25F * (float)(i % 5) - 0.5F;
    t.p.window_right = 0;
    run(&t);
    clean = t;
    t.k[4] = NAN; /* key 2: row 2 alone sees it */
    run(&t);
    for (int i = 0; i < 4; ++i) cr_assert(near(t.o[i], clean.o[i]) && near(t.dq[i], clean.dq[i]));
    for (int i = 0; i < 2; ++i) cr_assert(t.lse[i] == clean.lse[i]);
    cr_assert(isnan(t.lse[2]) && isnan(t.o[4]) && isnan(t.o[5]) && isnan(t.dq[4]));
    for (int i = 0; i < 6; ++i) cr_assert(isnan(t.dk[i]) && isnan(t.dv[i]), "row 2 sees all keys");

    t = clean;
    t.v[5] = NAN; /* its second feature: lse and o's first do not depend on it */
    run(&t);
    cr_assert(t.lse[2] == clean.lse[2] && near(t.o[4], clean.o[4]) && isnan(t.o[5]));
    cr_assert(near(t.o[3], clean.o[3]) && isnan(t.dq[4]) && near(t.dq[3], clean.dq[3]));

    t = clean;
    t.k[4] = t.v[5] = NAN;
    t.p.window_right = -1;
    const uint8_t mask[3] = {1, 1, 0}; /* nobody sees key 2 */
    t.p.mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_k = 1};
    t.a.forward.mask = mask;
    run(&t);
    for (int i = 0; i < 6; ++i) cr_assert(isfinite(t.o[i]) && isfinite(t.dq[i]) && isfinite(t.dk[i]));
    cr_assert(t.dk[4] == 0 && t.dv[4] == 0);
}

Test(oracle, visible_infinities_follow_the_formulas)
{
    struct small t;
    init(&t, 1, 2, 1, 1);
    t.q[0] = 1, t.k[0] = INFINITY, t.k[1] = 1, t.v[0] = 1, t.v[1] = 1;
    run(&t);
    cr_assert(t.lse[0] == INFINITY && isnan(t.o[0])); /* ln(inf); exp(inf - inf) */
    t.k[0] = -INFINITY;
    run(&t);
    cr_assert(t.lse[0] == 1 && t.o[0] == 1 && t.dv[0] == 0 && isnan(t.dq[0])); /* p = 0; 0 * inf */
    t.k[1] = -INFINITY;
    run(&t);
    cr_assert(t.lse[0] == -INFINITY && isnan(t.o[0])); /* both keys are seen: this is not an empty row */
    t.k[0] = t.k[1] = 1, t.v[0] = INFINITY;
    run(&t);
    cr_assert(t.o[0] == INFINITY && near(t.lse[0], 1 + log(2)));
}

Test(oracle, shifts_beyond_the_exponential_s_range_change_nothing)
{
    struct small t;
    init(&t, 1, 3, 2, 1);
    for (int shift = -300000; shift <= 300000; shift += 150000) {
        t.q[0] = 1, t.q[1] = (float)shift;
        for (int j = 0; j < 3; ++j) t.k[2 * j] = (float)j, t.k[2 * j + 1] = 1, t.v[j] = (float)(j * j);
        run(&t);
        const double sum = 1 + exp(1) + exp(2);
        cr_assert(near(t.o[0], (exp(1) + 4 * exp(2)) / sum));
        cr_assert(near(t.lse[0], shift + log(sum)));
    }
}

Test(oracle, philox_gives_the_published_vectors)
{
    /* The known answers that come with Random123. */
    static const uint32_t cases[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
         0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (int i = 0; i < 3; ++i) {
        uint32_t out[4];
        ref_philox(cases[i], cases[i] + 4, out);
        cr_assert(memcmp(out, cases[i] + 6, sizeof out) == 0, "vector %d", i);
    }
}

Test(oracle, dropout_reads_the_documented_lane)
{
    struct small t;
    init(&t, 1, 1, 1, 1);
    t.p.num_heads_q = 3;
    t.p.dropout_p = 0.4F;
    t.p.dropout_seed = UINT64_C(0x123456789abcdef0), t.p.dropout_offset = UINT64_C(0xfffffffffffffff0);
    t.p.q_start = (INT64_C(1) << 33) + 5, t.p.k_start = (INT64_C(1) << 36) + 21;
    const uint32_t threshold = 26214; /* round(65536 * 0.4), 0.4 the float */
    int dropped = 0;
    for (int64_t r = 0; r < 20; ++r) {
        for (int64_t c = 0; c < 50; ++c) {
            const uint64_t j = (UINT64_C(1) << 36) + 21 + (uint64_t)c;
            const uint64_t high = UINT64_C(0xfffffffffffffff0) + (UINT64_C(5) << 32); /* sequence 1, head 2 of 3 */
            const uint32_t counter[4] = {(uint32_t)(j >> 3), (uint32_t)(5 + r), (uint32_t)high, (uint32_t)(high >> 32)};
            const uint32_t key[2] = {0x9abcdef0, 0x12345678};
            uint32_t words[4];
            uint16_t lanes[8];
            ref_philox(counter, key, words);
            for (int i = 0; i < 8; ++i) lanes[i] = (uint16_t)(i % 2 ? words[i / 2] >> 16 : words[i / 2]);
            const double want = lanes[j & 7] < threshold ? 0 : 65536.0 / (65536 - threshold);
            cr_assert(ref_dropout(&t.p, &t.a.forward, 1, 2, r, c) == want);
            dropped += want == 0;
        }
    }
    cr_assert(dropped > 300 && dropped < 500); /* 400 expected, standard deviation 15 */
    t.p.dropout_p = 0;
    cr_assert(ref_dropout(&t.p, &t.a.forward, 1, 2, 0, 0) == 1);
}

/* Two sequences of three and two rows in both directions, packed after one row that is nobody's, with
 * two query heads on one KV head and gaps between heads. */
Test(oracle, sequences_are_found_by_strides_lengths_and_seqused)
{
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    const int32_t cu[3] = {1, 4, 6}, used_q[2] = {3, 1}, used_k[2] = {2, 2};
    float q[7 * 2 * 2], k[7], v[7 * 3];
    for (int i = 0; i < 28; ++i) q[i] = i % 2 ? NAN : 0.25F * (float)(i % 10); /* feature 1 of every head is a gap */
    for (int i = 0; i < 7; ++i) k[i] = (float)i, v[3 * i] = 10 * k[i], v[3 * i + 1] = v[3 * i + 2] = NAN;
    p.ragged = 1, p.batch = 2, p.seqlen_q = p.seqlen_k = 3, p.total_q = p.total_k = 7;
    p.num_heads_q = 2, p.num_heads_kv = p.head_dim = p.head_dim_v = 1;
    p.softmax_scale = 1;
    p.q = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 4, .head = 2};
    p.k = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 1, .head = 1};
    p.v = (struct attest_tensor){.dtype = ATTEST_FP32, .seqlen = 3, .head = 3};
    p.has_seqused_q = p.has_seqused_k = 1;
    a.q = q, a.k = k, a.v = v, a.cu_seqlens_q = a.cu_seqlens_k = cu, a.seqused_q = used_q, a.seqused_k = used_k;
    double o[14], lse[14];
    cr_assert(ref_forward(&p, &a, &(struct ref_forward){o, lse}, 1) == ATTEST_OK);
    for (int row = 0; row < 7; ++row) {
        for (int h = 0; h < 2; ++h) {
            const double got = o[2 * row + h], got_lse = lse[2 * row + h];
            if (row == 0 || row == 6) cr_assert(isnan(got) && isnan(got_lse));
            else if (row == 5) cr_assert(got == 0 && got_lse == -INFINITY); /* past seqused_q */
            else {
                const double first = row < 4 ? 1 : 4, s = q[4 * row + 2 * h]; /* two keys, one apart */
                const double weight = exp(s) / (1 + exp(s));
                cr_assert(near(got, 10 * (first + weight)) && near(got_lse, s * first + log(1 + exp(s))));
            }
        }
    }
}

/* o and dk of the last sequence of a ragged case, as a problem of its own or in its batch. */
static void run_last(const struct blocks_case *c, bool alone, double *o, double *dk)
{
    struct blocks_case one = *c;
    struct attest_forward_args *f = &one.a.forward;
    const int64_t last = c->p.batch - 1;
    int64_t streams[8];
    if (alone) {
        for (int64_t h = 0; h < c->p.num_heads_q; ++h) streams[h] = last * c->p.num_heads_q + h;
        one.p.batch = 1;
        f->cu_seqlens_q += last, f->cu_seqlens_k += last;
        f->dropout_stream = streams;
        if (c->p.mask.dtype) f->mask += last * c->p.mask.batch;
        if (c->p.block_mask.dtype) f->block_mask += last * c->p.block_mask.batch;
        if (c->p.bias.dtype) f->bias = (const float *)f->bias + last * c->p.bias.batch;
    }
    cr_assert(ref_forward(&one.p, f, &(struct ref_forward){o, NULL}, 1) == ATTEST_OK);
    cr_assert(ref_backward(&one.p, &one.a, NULL, &(struct ref_backward){.dk = dk}, 1) == ATTEST_OK);
}

Test(oracle, a_sequence_has_the_same_bits_alone_and_in_a_batch, .timeout = 60)
{
    int compared = 0;
    for (uint64_t seed = 0; seed < 80; ++seed) {
        struct blocks_case c;
        blocks_case_init(&c, seed);
        const struct attest_problem *p = &c.p;
        const int64_t width_q = p->num_heads_q * p->head_dim_v, width_k = p->num_heads_kv * p->head_dim;
        double *o[2], *dk[2];
        for (int alone = 0; p->ragged && alone < 2; ++alone) {
            o[alone] = malloc((size_t)(p->total_q * width_q + 1) * sizeof(double));
            dk[alone] = malloc((size_t)(p->total_k * width_k + 1) * sizeof(double));
            run_last(&c, alone, o[alone], dk[alone]);
        }
        if (p->ragged) {
            const struct ref_sequence s = ref_sequence(p, &c.a.forward, p->batch - 1);
            const int64_t at_q = s.first_q * width_q, at_k = s.first_k * width_k;
            cr_assert(memcmp(o[0] + at_q, o[1] + at_q, (size_t)(s.rows_q * width_q) * sizeof(double)) == 0);
            cr_assert(memcmp(dk[0] + at_k, dk[1] + at_k, (size_t)(s.rows_k * width_k) * sizeof(double)) == 0);
            compared += p->batch > 1;
            for (int alone = 0; alone < 2; ++alone) free(o[alone]), free(dk[alone]);
        }
        blocks_case_clear(&c);
    }
    cr_assert(compared >= 5, "of 80 cases about 12 are ragged batches of two: %d", compared);
}

Test(oracle, merging_the_parts_of_a_row_gives_the_row)
{
    struct small whole, parts[3];
    init(&whole, 2, 6, 2, 2);
    for (int i = 0; i < 12; ++i) {
        whole.k[i] = (float)(i * 7 % 5) - 2, whole.v[i] = (float)(i * 3 % 7) - 3;
        if (i < 4) whole.q[i] = 0.5F * (float)(i - 1), whole.dout[i] = (float)(i + 1);
    }
    run(&whole);
    const double *o[3], *lse[3];
    for (int a = 0; a < 3; ++a) { /* keys 0-1, 2-5, none */
        parts[a] = whole;
        parts[a].p.seqlen_k = a == 0 ? 2 : a == 1 ? 4 : 0;
        for (int i = 0; i < 8 && a == 1; ++i) parts[a].k[i] = whole.k[4 + i], parts[a].v[i] = whole.v[4 + i];
        run(&parts[a]);
        o[a] = parts[a].o, lse[a] = parts[a].lse;
    }
    memset(parts[2].o, 0xff, sizeof parts[2].o); /* the o of an empty state is not read */
    double merged[4], merged_lse[2];
    ref_merge(3, 2, 2, o, lse, merged, merged_lse);
    for (int i = 0; i < 4; ++i) cr_assert(near(merged[i], whole.o[i]));
    for (int r = 0; r < 2; ++r) cr_assert(near(merged_lse[r], whole.lse[r]));

    /* Differentiated under the whole row's lse and delta, the parts add up to the whole. */
    double dq[4] = {0};
    for (int a = 0; a < 2; ++a) {
        const struct ref_external external = {whole.lse, whole.delta};
        struct small *part = &parts[a];
        part->p.external_lse = 1;
        part->a.forward.q = part->q, part->a.forward.k = part->k, part->a.forward.v = part->v;
        part->a.dout = part->dout;
        const struct ref_backward out = {.dq = part->dq, .dk = part->dk, .dv = part->dv};
        cr_assert(ref_backward(&part->p, &part->a, &external, &out, 1) == ATTEST_OK);
        for (int i = 0; i < 4; ++i) dq[i] += part->dq[i];
        for (int i = 0; i < (a == 0 ? 4 : 8); ++i) {
            cr_assert(near(part->dk[i], whole.dk[i + (a == 0 ? 0 : 4)]));
            cr_assert(near(part->dv[i], whole.dv[i + (a == 0 ? 0 : 4)]));
        }
    }
    for (int i = 0; i < 4; ++i) cr_assert(near(dq[i], whole.dq[i]));

    /* What the merge hands down to the parts. */
    double dout[4], do_parts[3][4], dlse_parts[3][2], *const to_do[3] = {do_parts[0], do_parts[1], do_parts[2]};
    double *const to_dlse[3] = {dlse_parts[0], dlse_parts[1], dlse_parts[2]};
    for (int i = 0; i < 4; ++i) dout[i] = whole.dout[i];
    ref_merge_backward(3, 2, 2, o, lse, merged, merged_lse, dout, NULL, to_do, to_dlse);
    for (int i = 0; i < 4; ++i) {
        cr_assert(near(do_parts[0][i], exp(lse[0][i / 2] - whole.lse[i / 2]) * dout[i]));
        cr_assert(do_parts[2][i] == 0);
    }
    for (int r = 0; r < 2; ++r) {
        double want = 0;
        for (int x = 0; x < 2; ++x) want += dout[2 * r + x] * (o[1][2 * r + x] - whole.o[2 * r + x]);
        cr_assert(near(dlse_parts[1][r], exp(lse[1][r] - whole.lse[r]) * want) && dlse_parts[2][r] == 0);
    }
}

Test(oracle, merge_keeps_the_laws_of_its_monoid)
{
    const double o_a[2] = {1.25, -0.0}, o_b[2] = {-3, 0.5}, lse_a = 0.75, lse_b = -2, empty = -INFINITY, nan = NAN;
    const double nans[2] = {NAN, NAN};
    double o[2], lse, o_swapped[2], lse_swapped;
    ref_merge(0, 1, 2, NULL, NULL, o, &lse);
    cr_assert(o[0] == 0 && o[1] == 0 && lse == -INFINITY);
    ref_merge(2, 1, 2, (const double *[]){o_a, nans}, (const double *[]){&lse_a, &empty}, o, &lse);
    cr_assert(memcmp(o, o_a, sizeof o) == 0 && lse == lse_a);
    ref_merge(2, 1, 2, (const double *[]){nans, nans}, (const double *[]){&empty, &empty}, o, &lse);
    cr_assert(o[0] == 0 && lse == -INFINITY);
    ref_merge(2, 1, 2, (const double *[]){o_a, o_b}, (const double *[]){&lse_a, &lse_b}, o, &lse);
    ref_merge(2, 1, 2, (const double *[]){o_b, o_a}, (const double *[]){&lse_b, &lse_a}, o_swapped, &lse_swapped);
    cr_assert(memcmp(o, o_swapped, sizeof o) == 0 && lse == lse_swapped);
    ref_merge(2, 1, 2, (const double *[]){o_a, o_b}, (const double *[]){&lse_a, &nan}, o, &lse);
    cr_assert(isnan(lse) && isnan(o[0]));
}

/* kernels_nan.c - numbers that are none, or hardly: NaN beside rows that are not used, NaN in results, a sink of
 * -inf, a mask of lowest numbers, NaN in values that dropout drops, and for rows that see no key. */
#include <math.h>

#include "proptests/kernels/kernels.h"
#include "proptests/properties/outcome.h"
#include "reference/formats.h"
#include "reference/oracle.h"

/* One head of packed rows, two tiles of keys. */
enum { ROWS = 70, DIM = 8, NUMBERS = ROWS * DIM };

/* Tensors; results from R_O on. */
enum { R_Q, R_K, R_V, R_DOUT, R_O, R_DQ, R_DK, R_DV, NUM_ROWS };
static const char *const names[] = {"q", "k", "v", "dout", "o", "dq", "dk", "dv"};

struct head {
    float rows[NUM_ROWS][NUMBERS]; /* of any format */
    float lse[ROWS];
    struct attest_problem p;
    struct attest_backward_args a;
    struct computed how; /* of the pass that ran last */
};

/* Inputs are N(0, 1), results NaN. */
static void prepare(struct head *h, int32_t dtype, bool backward)
{
    const struct attest_tensor rows = {dtype, 0, NUMBERS, DIM, DIM};
    h->p = (struct attest_problem)ATTEST_PROBLEM_INIT, h->a = (struct attest_backward_args)ATTEST_BACKWARD_ARGS_INIT;
    h->p.device = ATTEST_REFERENCE;
    h->p.batch = h->p.num_heads_q = h->p.num_heads_kv = 1, h->p.seqlen_q = h->p.seqlen_k = ROWS;
    h->p.head_dim = h->p.head_dim_v = DIM, h->p.softmax_scale = 0.5f;
    h->p.q = h->p.k = h->p.v = h->p.o = rows;
    h->p.lse = (struct attest_tensor){ATTEST_FP32, 0, ROWS, 1, ROWS};
    if (backward) h->p.dout = h->p.dq = h->p.dk = h->p.dv = rows;
    for (int t = 0; t < NUM_ROWS; ++t)
        for (int64_t i = 0; i < NUMBERS; ++i)
            ref_store(dtype, h->rows[t], i, t >= R_O ? NAN : family_normal(family_bits(2, (uint64_t)t, 0, i, 0, 0)));
    for (int i = 0; i < ROWS; ++i) h->lse[i] = NAN;
    h->a.forward.q = h->rows[R_Q], h->a.forward.k = h->rows[R_K], h->a.forward.v = h->rows[R_V];
    h->a.forward.o = h->rows[R_O], h->a.forward.lse = h->lse, h->a.dout = h->rows[R_DOUT];
    h->a.dq = h->rows[R_DQ], h->a.dk = h->rows[R_DK], h->a.dv = h->rows[R_DV];
}

/* The first key's v is NaN in feature 0, and in the second round the sink, too: used rows feel it, the others of the
 * same tile are zero. */
static int unused_rows_are_zero(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    static struct head h;
    const int32_t used = 10;
    const float sink = NAN;
    for (int has_sink = 0; has_sink < 2; ++has_sink) {
        prepare(&h, dtype, false);
        ref_store(dtype, h.rows[R_V], 0, NAN);
        h.p.has_seqused_q = 1, h.a.forward.seqused_q = &used, h.p.has_sink = has_sink, h.a.forward.sink = &sink;
        if (self->forward(self, &h.p, &h.a.forward, &h.how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "rows not used: %s", attest_last_error());
        for (int i = 0; i < NUMBERS; ++i) {
            const double o = ref_load(dtype, h.rows[R_O], i);
            const bool is_nan = has_sink || i % DIM == 0;
            if (i / DIM < used ? isnan(o) != is_nan : o != 0)
                return fails(context, FAILS_O, "%d rows used: o[%d][%d] = %g", used, i / DIM, i % DIM, o);
        }
    }
    return TRIAL_PASSES;
}

/* Whether results are NaN where the oracle's are. */
static int compare_nan(const struct head *h, int32_t dtype, int spoiled, double want[][NUMBERS],
                       struct prop_context *context)
{
    for (int t = R_O; t < NUM_ROWS; ++t)
        for (int i = 0; i < NUMBERS; ++i) {
            const double got = ref_load(dtype, h->rows[t], i), wanted = want[t - R_O][i];
            if (isnan(got) != isnan(wanted))
                return fails(context, FAILS_LAW, "a NaN in %s of %s: %s[%d][%d] = %g, not %g", names[spoiled],
                             ref_dtype_name(dtype), names[t], i / DIM, i % DIM, got, wanted);
        }
    return TRIAL_PASSES;
}

/* Causal, full, and with some rows not in use; in a feature amid, and in the last of the eight that a kernel may load
 * at once. */
static int nan_is_felt(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    static struct head h;
    static double want[NUM_ROWS - R_O][NUMBERS];
    const struct ref_forward forward = {.o = want[0]};
    const struct ref_backward backward = {.dq = want[1], .dk = want[2], .dv = want[3]};
    const int32_t used_q = 66, used_k = 68;
    int failure = TRIAL_PASSES;
    for (int n = 0; n < 24 && failure == TRIAL_PASSES; ++n) {
        const int form = n / 4 % 3, feature = n < 12 ? 3 : 7;
        prepare(&h, dtype, true);
        if (form == 0) h.p.window_right = 0, h.p.diag_kind = ATTEST_DIAG_TOP_LEFT;
        h.p.has_seqused_q = h.p.has_seqused_k = form == 2;
        h.a.forward.seqused_q = &used_q, h.a.forward.seqused_k = &used_k;
        ref_store(dtype, h.rows[n % 4], 40 * DIM + feature, NAN);
        if (self->forward(self, &h.p, &h.a.forward, &h.how) != ATTEST_OK ||
            self->backward(self, &h.p, &h.a, &h.how) != ATTEST_OK ||
            ref_forward(&h.p, &h.a.forward, &forward, 1) != ATTEST_OK ||
            ref_backward(&h.p, &h.a, NULL, &backward, 1) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "a NaN: %s", attest_last_error());
        failure = compare_nan(&h, dtype, n % 4, want, context);
    }
    return failure;
}

/* No row sees a key, the sink is -inf: rows are all sink, whose gradient is the sum of dlse. */
static int sink_of_nothing(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    static struct head h;
    static float dlse[ROWS];
    const int32_t used = 0;
    const float sink = -INFINITY;
    for (int i = 0; i < ROWS; ++i) dlse[i] = 2;
    float dsink = NAN;
    prepare(&h, dtype, true);
    h.p.has_seqused_k = 1, h.a.forward.seqused_k = &used, h.p.has_sink = 1, h.a.forward.sink = &sink;
    h.p.dlse = h.p.lse, h.a.dlse = dlse, h.a.dsink = &dsink;
    if (self->forward(self, &h.p, &h.a.forward, &h.how) != ATTEST_OK ||
        self->backward(self, &h.p, &h.a, &h.how) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "a sink of -inf: %s", attest_last_error());
    if (dsink != 2 * ROWS)
        return fails(context, FAILS_LAW, "%s: a sink of -inf alone has dsink = %g", ref_dtype_name(dtype),
                     (double)dsink);
    return TRIAL_PASSES;
}

/* A bias of the lowest number, bf16's in fp32, on every score, which is 0: the mean of v, 2, as in any precision. */
static int lowest_biases(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    const double lowest = dtype == ATTEST_FP16 ? -65504 : -0x1.fep127;
    static struct head h;
    static float bias[ROWS]; /* of any format */
    prepare(&h, dtype, false);
    for (int i = 0; i < NUMBERS; ++i) ref_store(dtype, h.rows[R_V], i, 2), ref_store(dtype, h.rows[R_Q], i, 0);
    for (int i = 0; i < ROWS; ++i) ref_store(dtype, bias, i, lowest);
    h.p.bias = (struct attest_score_tensor){.dtype = dtype, .seqlen_k = 1}, h.a.forward.bias = bias;
    if (self->forward(self, &h.p, &h.a.forward, &h.how) != ATTEST_OK)
        return fails(context, FAILS_STATUS, "lowest biases: %s", attest_last_error());
    for (int i = 0; i < NUMBERS; ++i)
        if (ref_load(dtype, h.rows[R_O], i) != 2)
            return fails(context, FAILS_O, "lowest biases: o[%d] = %g", i, ref_load(dtype, h.rows[R_O], i));
    return TRIAL_PASSES;
}

/* One query row, and a NaN in feature 0 of one value after the other: all are seen, whichever dropout drops. */
static int dropped_values_are_felt(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    static struct head h;
    for (int key = 0; key < 12; ++key) {
        prepare(&h, dtype, false);
        ref_store(dtype, h.rows[R_V], key * DIM, NAN);
        h.p.seqlen_q = 1, h.p.dropout_p = 0.5f;
        if (self->forward(self, &h.p, &h.a.forward, &h.how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "dropped values: %s", attest_last_error());
        for (int x = 0; x < DIM; ++x)
            if (isnan(ref_load(dtype, h.rows[R_O], x)) != (x == 0))
                return fails(context, FAILS_O, "a NaN in v[%d][0]: o[0][%d] = %g", key, x,
                             ref_load(dtype, h.rows[R_O], x));
    }
    return TRIAL_PASSES;
}

static bool is_zero_or_finite(const struct head *h, int tensor, int32_t dtype, int row, bool is_zero)
{
    for (int x = 0; x < DIM; ++x) {
        const double value = ref_load(dtype, h->rows[tensor], row * DIM + x);
        if (!(is_zero ? value == 0 : isfinite(value))) return false;
    }
    return true;
}

/* A mask hides all rows, or one among others. What is given for such rows is NaN: lse, dlse and dout, delta in the
 * second round of each. */
static int hidden_rows_feel_nothing(const struct implementation *self, int32_t dtype, struct prop_context *context)
{
    enum { HIDDEN = 3 };
    static struct head h;
    static uint8_t mask[ROWS * ROWS];
    static float dlse[ROWS], delta[ROWS];
    for (int round = 0; round < 4; ++round) {
        const bool hides_all = round % 2 == 0;
        prepare(&h, dtype, true);
        for (int i = 0; i < ROWS * ROWS; ++i) mask[i] = !hides_all && i / ROWS != HIDDEN;
        h.p.mask = (struct attest_score_tensor){.dtype = ATTEST_UINT8, .seqlen_q = ROWS, .seqlen_k = 1};
        h.a.forward.mask = mask, h.p.dlse = h.p.lse, h.a.dlse = dlse;
        if (round >= 2) h.p.delta = h.p.lse, h.a.delta = delta;
        if (self->forward(self, &h.p, &h.a.forward, &h.how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "hidden rows: %s", attest_last_error());
        for (int i = 0; i < ROWS; ++i) {
            const bool is_hidden = hides_all || i == HIDDEN;
            dlse[i] = delta[i] = is_hidden ? NAN : 0;
            if (is_hidden) h.lse[i] = NAN;
            for (int x = 0; x < DIM && is_hidden; ++x) ref_store(dtype, h.rows[R_DOUT], i * DIM + x, NAN);
        }
        if (self->backward(self, &h.p, &h.a, &h.how) != ATTEST_OK)
            return fails(context, FAILS_STATUS, "hidden rows: %s", attest_last_error());
        for (int t = R_DQ; t <= R_DV; ++t)
            for (int i = 0; i < ROWS; ++i)
                if (!is_zero_or_finite(&h, t, dtype, i, hides_all || (t == R_DQ && i == HIDDEN)))
                    return fails(context, FAILS_LAW, "hidden rows, round %d: %s[%d] = %g", round, names[t], i,
                                 ref_load(dtype, h.rows[t], i * DIM));
    }
    return TRIAL_PASSES;
}

int kernels_nan(const struct implementation *self, int32_t dtype, struct kernels_verdicts *verdicts,
                struct prop_context *context)
{
    static const struct {
        const char *name;
        int (*check)(const struct implementation *, int32_t, struct prop_context *);
    } corners[] = {{"rows not used are zero", unused_rows_are_zero},
                   {"NaN is felt", nan_is_felt},
                   {"a sink of nothing", sink_of_nothing},
                   {"the lowest biases", lowest_biases},
                   {"dropped values are felt", dropped_values_are_felt},
                   {"hidden rows feel nothing", hidden_rows_feel_nothing}};
    int failure = TRIAL_PASSES;
    for (size_t i = 0; i < sizeof corners / sizeof *corners && failure == TRIAL_PASSES; ++i)
        failure = kernels_note(verdicts, corners[i].name, corners[i].check(self, dtype, context));
    return failure;
}

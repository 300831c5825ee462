/* emulate_scaled_test.c - gradients of p, ds and operands scaled to fp16 (bounds.md, section 11.11), and o of p and v
 * (11.12), beside their bounds, also where kernels share a problem's sequences: on every family, numbers of any size,
 * and where one rounding after the other is nearly all of the bound. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/cases/case.h"
#include "proptests/emulations/emulate.h"
#include "reference/bounds.h"
#include "reference/formats.h"

enum { GRADIENTS = 3, DIM = 32, ROWS = 64, MOST_SEQUENCES = 8 };
static const enum ref_tensor tensors[GRADIENTS] = {REF_DQ, REF_DK, REF_DV};
static const enum tensor_id outputs[GRADIENTS] = {T_DQ, T_DK, T_DV};
static const enum tensor_id inputs[] = {T_Q, T_K, T_V, T_DOUT};
static const enum role roles[] = {ROLE_Q, ROLE_K, ROLE_V, ROLE_DOUT};

static const char *const scaled_backward = "short_backward_sm90_n128_scaled";
static const char *const scaled_forward = "short_forward_sm90_scaled";

struct shape {
    bool ragged, has_used;
    int64_t heads, dim, dim_v, sequences, length[MOST_SEQUENCES][2]; /* rows and keys */
};

/* Rows of all sequences: packed with a few of none around them, or side by side; `used` of more that are there. */
static void lay_out_sequences(struct prop_case *c, const struct shape *shape)
{
    enum { BEFORE = 3, UNUSED = 5 };
    const int64_t unused = shape->has_used ? UNUSED : 0, n = shape->sequences;
    int64_t *const starts[] = {case_alloc(c, (size_t)(n + 1) * 8), case_alloc(c, (size_t)(n + 1) * 8)};
    int64_t *const used[] = {case_alloc(c, (size_t)n * 8), case_alloc(c, (size_t)n * 8)}, longest[2] = {0};
    for (int of = 0; of < 2; ++of) {
        starts[of][0] = BEFORE;
        for (int64_t b = 0; b < n; ++b) {
            used[of][b] = shape->length[b][of];
            starts[of][b + 1] = starts[of][b] + used[of][b] + unused;
            if (longest[of] < used[of][b] + unused) longest[of] = used[of][b] + unused;
        }
    }
    c->p.batch = n, c->p.seqlen_q = longest[0], c->p.seqlen_k = longest[1];
    if (shape->has_used) c->p.has_seqused_q = c->p.has_seqused_k = 1, c->used_q = used[0], c->used_k = used[1];
    if (!shape->ragged) return;
    c->p.ragged = 1, c->starts_q = starts[0], c->starts_k = starts[1];
    c->p.total_q = starts[0][n] + BEFORE, c->p.total_k = starts[1][n] + BEFORE;
}

/* A plain problem of bf16, not laid out yet; gradients are fp32, so that their bounds are of what comes before. */
static void draw(struct prop_case *c, enum family family, uint64_t seed, const struct shape *shape)
{
    memset(c, 0, sizeof *c);
    c->p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    c->p.device = ATTEST_REFERENCE;
    c->p.num_heads_q = c->p.num_heads_kv = shape->heads;
    c->p.head_dim = shape->dim, c->p.head_dim_v = shape->dim_v;
    c->p.softmax_scale = 0.125f;
    c->p.q.dtype = c->p.k.dtype = c->p.v.dtype = c->p.o.dtype = c->p.dout.dtype = ATTEST_BF16;
    c->p.lse.dtype = c->p.dq.dtype = c->p.dk.dtype = c->p.dv.dtype = ATTEST_FP32;
    c->backward = true;
    c->poison = 0xff;
    lay_out_sequences(c, shape);
    case_contiguous(c);
    const struct family_data data = c->data = (struct family_data){family, seed, ATTEST_BF16, shape->dim, 0.125};
    for (int t = 0; t < 4; ++t) {
        int64_t e[4];
        case_extents(c, inputs[t], e);
        double *out = c->values[inputs[t]] = case_doubles(c, e[0] * e[1] * e[2]);
        for (int64_t i = 0; i < e[0] * e[1] * e[2]; ++i)
            out[i] = family_value(&data, roles[t], 0, i / e[2] / e[1], i / e[2] % e[1], i % e[2]);
    }
}

/* Of one head and one sequence. */
static void draw_one(struct prop_case *c, uint64_t seed, int64_t length)
{
    const struct shape shape = {.heads = 1, .dim = DIM, .dim_v = DIM, .sequences = 1, .length = {{length, length}}};
    draw(c, FAMILY_NORMAL, seed, &shape);
}

/* Of feature `feature`, or of all if that is -1, of one head. */
static void set(struct prop_case *c, enum tensor_id t, int64_t row, int64_t feature, double value)
{
    double *const at = c->values[t] + row * DIM;
    for (int64_t x = feature < 0 ? 0 : feature; x <= (feature < 0 ? DIM - 1 : feature); ++x)
        at[x] = ref_round(ATTEST_BF16, value);
}

static void set_all(struct prop_case *c, enum tensor_id t, int64_t feature, double value)
{
    for (int64_t row = 0; row < c->p.seqlen_q; ++row) set(c, t, row, feature, value);
}

/* Who computes sequences of up to so many rows and keys, and who the others; `second` NULL: the first does. */
struct kernels {
    const struct implementation *first, *second;
    int64_t most_q, most_k;
    bool are_mistaken; /* each is judged by the other's recipe */
};

static struct kernels alone(const struct implementation *e)
{
    return (struct kernels){e, NULL, INT64_MAX, INT64_MAX, false};
}

static struct ref_shares shares_of(const struct kernels *k)
{
    if (!k->second) return ref_one_share(k->first->recipe);
    const struct attest_recipe *const by[] = {k->first->recipe, k->second->recipe};
    return (struct ref_shares){2, {{by[k->are_mistaken], k->most_q, k->most_k},
                                   {by[!k->are_mistaken], INT64_MAX, INT64_MAX}}};
}

static int64_t length_of(const struct prop_case *c, bool keys, int64_t b)
{
    const int64_t *const used = keys ? c->used_k : c->used_q, *const starts = keys ? c->starts_k : c->starts_q;
    return used ? used[b] : starts ? starts[b + 1] - starts[b] : keys ? c->p.seqlen_k : c->p.seqlen_q;
}

/* Takes the results in memory for those of the sequences of the first share, or of the others. */
static void keep_share(const struct prop_case *c, const struct kernels *k, bool first, enum tensor_id t, float *kept)
{
    const bool keys = t == T_DK || t == T_DV;
    const float *const got = t == T_O ? c->a.forward.o : t == T_DQ ? c->a.dq : t == T_DK ? c->a.dk : c->a.dv;
    const int64_t *const starts = keys ? c->starts_k : c->starts_q, dense = keys ? c->p.seqlen_k : c->p.seqlen_q;
    const int64_t row = c->p.num_heads_q * (t == T_O || t == T_DV ? c->p.head_dim_v : c->p.head_dim);
    for (int64_t b = 0; b < c->p.batch; ++b) {
        const bool fits = length_of(c, false, b) <= k->most_q && length_of(c, true, b) <= k->most_k;
        const int64_t from = row * (c->p.ragged ? starts[b] : b * dense);
        const int64_t to = row * (c->p.ragged ? starts[b + 1] : (b + 1) * dense); /* those not in use are zeros */
        if (fits == first) memcpy(kept + from, got + from, (size_t)(to - from) * sizeof *kept);
    }
}

/* Judges dq, dk and dv of emulations, and frees the problem. */
static void judge(struct prop_case *c, const struct kernels *k, struct ref_report reports[GRADIENTS])
{
    struct ref_bound bounds[REF_NUM_TENSORS];
    double *oracle[GRADIENTS];
    float *kept[GRADIENTS];
    memset(bounds, 0, sizeof bounds);
    case_lay_out(c);
    for (int t = 0; t < GRADIENTS; ++t) {
        const int64_t count = case_count(c, outputs[t]);
        oracle[t] = case_doubles(c, count), kept[t] = case_alloc(c, (size_t)count * sizeof(float));
        bounds[tensors[t]] = (struct ref_bound){.bound = case_doubles(c, count),
                                    .sigma = case_doubles(c, count),
                                    .bias = case_doubles(c, count)};
    }
    const struct ref_backward results = {.dq = oracle[0], .dk = oracle[1], .dv = oracle[2]};
    const struct ref_shares shares = shares_of(k);
    for (int n = 0; n < shares.count; ++n) {
        const struct implementation *const e = n == 0 ? k->first : k->second;
        struct computed how;
        case_reset_outputs(c);
        cr_assert_eq(e->forward(e, &c->p, &c->a.forward, &how), ATTEST_OK);
        cr_assert_eq(e->backward(e, &c->p, &c->a, &how), ATTEST_OK);
        for (int t = 0; t < GRADIENTS; ++t) keep_share(c, k, n == 0, outputs[t], kept[t]);
    }
    cr_assert_eq(ref_backward(&c->p, &c->a, NULL, &results, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_backward_shares(&c->p, &c->a, &shares, bounds, 1), ATTEST_OK);
    for (int t = 0; t < GRADIENTS; ++t)
        ref_judge(&c->p, &c->a.forward, tensors[t], kept[t], oracle[t], &bounds[tensors[t]], 1, &reports[t]);
    case_free(c);
}

/* q and dout times 2^power, k and v times 2^-power: the same scores and dp, but for what underflows. */
static void scale(struct prop_case *c, int power)
{
    for (int t = 0; t < 4; ++t)
        for (int64_t i = 0; i < case_count(c, inputs[t]); ++i) {
            double *const value = &c->values[inputs[t]][i];
            const double scaled = ldexp(*value, inputs[t] == T_Q || inputs[t] == T_DOUT ? power : -power);
            *value = ref_round(ATTEST_BF16, fmax(-0x1p127, fmin(0x1p127, scaled)));
        }
}

/* Every family, as it is and times `count` - 1 powers of two. */
static void expect_within(const struct kernels *k, const struct shape *shape, int count)
{
    static const int powers[] = {0, 50, -110, 110};
    double use[GRADIENTS] = {0}, rms = 0.0, mean = 0.0;
    int64_t outside = 0;
    for (int f = 0; f < NUM_FAMILIES; ++f)
        for (int i = 0; i < count; ++i) {
            struct prop_case c;
            struct ref_report r[GRADIENTS];
            draw(&c, (enum family)f, 5, shape);
            scale(&c, powers[i]);
            judge(&c, k, r);
            for (int t = 0; t < GRADIENTS; ++t) {
                cr_expect(r[t].use <= 1 && r[t].rms_ratio <= 1 && r[t].mean_ratio <= 1,
                          "%s and %s, %s, 2^%d, %s: %g, %g, %g", k->first->name,
                          k->second ? k->second->name : "no other", family_names[f], powers[i],
                          ref_tensor_names[tensors[t]], r[t].use, r[t].rms_ratio, r[t].mean_ratio);
                use[t] = fmax(use[t], r[t].use), outside += r[t].overflow_count;
                rms = fmax(rms, r[t].rms_ratio), mean = fmax(mean, r[t].mean_ratio);
            }
        }
    printf("%-22s %-21s share of the bound of dq %.3f, dk %.3f, dv %.3f; of thresholds %.3f, %.3f; outside %ld\n",
           k->first->name, k->second ? k->second->name : "", use[0], use[1], use[2], rms, mean, (long)outside);
    fflush(stdout);
}

Test(emulate_scaled, of_any_size_stays_within)
{
    static const struct shape wide = {.heads = 2, .dim = 64, .dim_v = 64, .sequences = 1, .length = {{128, 128}}};
    static const struct shape narrow = {.heads = 2, .dim = 32, .dim_v = 32, .sequences = 1, .length = {{128, 128}}};
    static const char *const names[] = {"portable-scaled", "portable-scaled-unkind"};
    for (int n = 0; n < 2; ++n) {
        const struct implementation *const e = emulation_named(names[n]);
        const struct kernels k = alone(e);
        cr_assert_eq(e->recipe, ref_kernel_recipe(scaled_backward));
        expect_within(&k, &wide, 4);
        expect_within(&k, &narrow, 4);
    }
}

/* What a kernel before it in the table does, of another recipe than any emulation. */
static struct implementation emulation_of(const char *name, const char *recipe)
{
    struct implementation e = *emulation_named(name);
    e.recipe = ref_kernel_recipe(recipe), e.name = recipe;
    return e;
}

/* The scaled one's c is a median of three rows, two and a zero, or zeros. */
static const struct shape shared[] = {
    {true, false, 1, 32, 32, 6, {{128, 128}, {1, 90}, {70, 49}, {0, 20}, {128, 16}, {66, 81}}},
    {false, true, 1, 32, 20, 4, {{100, 70}, {3, 128}, {65, 1}, {80, 0}}},
    {true, true, 1, 17, 32, 3, {{128, 40}, {30, 66}, {65, 100}}}};
enum { SHAPES = sizeof shared / sizeof *shared };

Test(emulate_scaled, each_sequence_stays_within_what_its_kernel_allows, .timeout = 300)
{
    const struct implementation scaled = *emulation_named("portable-scaled"),
                                unkind = *emulation_named("portable-scaled-unkind"),
                                n64 = emulation_of("portable-short-unkind", "short_backward_sm90_n64"),
                                one = emulation_of("portable-fp32-unkind", "one_query_backward_sm80"),
                                plain = *emulation_named("portable"), other = *emulation_named("portable-unkind");
    const struct kernels pairs[] = {{&scaled, &plain, 100, 90, false},
                                    {&unkind, &other, 70, 128, false},
                                    {&n64, &unkind, 65, 66, false},
                                    {&one, &scaled, 1, 512, false}};
    for (int s = 0; s < SHAPES; ++s)
        for (int n = 0; n < 4; ++n) expect_within(&pairs[n], &shared[s], 3);
}

/* What rounds to bf16 does not pass for what rounds to fp16. */
Test(emulate_scaled, a_sequence_is_judged_by_its_own_kernel)
{
    struct kernels pair = {emulation_named("portable"), emulation_named("portable-scaled"), 100, 90, false};
    for (int n = 0; n < 2; ++n) {
        struct prop_case c;
        struct ref_report r[GRADIENTS];
        double use = 0.0;
        pair.are_mistaken = n == 1;
        draw(&c, FAMILY_NORMAL, 5, &shared[0]);
        judge(&c, &pair, r);
        for (int t = 0; t < GRADIENTS; ++t) use = fmax(use, r[t].use);
        cr_expect_eq(use > 1, n == 1, "%g", use);
    }
}

static double use_of(struct prop_case *c, int gradient)
{
    const struct kernels scaled = alone(emulation_named("portable-scaled"));
    struct ref_report r[GRADIENTS];
    judge(c, &scaled, r);
    for (int t = 0; t < GRADIENTS; ++t)
        cr_expect(r[t].use <= 1 && r[t].overflow_count == 0, "%s", ref_tensor_names[tensors[t]]);
    printf("%s: %.3f\n", ref_tensor_names[tensors[gradient]], r[gradient].use);
    fflush(stdout);
    return r[gradient].use;
}

/* Every row is the same, and so are the values of half of the keys: ds of a key has one sign. */
static void set_up_two_kinds_of_keys(struct prop_case *c)
{
    draw_one(c, 1, ROWS);
    set_all(c, T_Q, -1, 0);
    set_all(c, T_K, -1, 0);
    set_all(c, T_DOUT, -1, 1.5);
    for (int64_t j = 0; j < ROWS; ++j) set(c, T_V, j, -1, j % 2 ? 1.5 : 0.0);
}

/* Half of the keys have p of 0.9 2^-33, which is 0 in fp16 with 2^8 as its factor; or ds of which as much is lost. */
Test(emulate_scaled, small_p_and_ds_are_lost)
{
    for (int gradient = 1; gradient < GRADIENTS; ++gradient) {
        struct prop_case c;
        set_up_two_kinds_of_keys(&c);
        set_all(&c, T_Q, 0, 16);
        for (int64_t j = 1; j < ROWS; j += 2) set(&c, T_K, j, 0, gradient == 1 ? -9.125 : -9.75);
        cr_expect_gt(use_of(&c, gradient), 0.8);
    }
}

/* One number of 2^20, which nothing else meets, and others that are 0.9 of half a step of the subnormals beside it. */
Test(emulate_scaled, small_numbers_beside_a_large_one_are_lost)
{
    static const enum tensor_id of[GRADIENTS] = {T_K, T_Q, T_DOUT};
    for (int gradient = 0; gradient < GRADIENTS; ++gradient) {
        struct prop_case c;
        set_up_two_kinds_of_keys(&c);
        const double small = gradient == 0 ? 0.9 * 0x1p-19 : 0.9 * 0x1p-20;
        for (int64_t row = 0; row < ROWS; ++row) { /* of k's three rows the median is 0 */
            const bool is_centre = row == 16 || row == 48;
            set(&c, of[gradient], row, -1, gradient > 0 ? small : is_centre ? 0 : row % 2 ? small : -small);
        }
        set_all(&c, of[gradient], 1, 0.0);
        set(&c, of[gradient], 7, 1, 0x1p20);
        if (gradient == 2) set_all(&c, T_V, 1, 0.0);
        cr_expect_gt(use_of(&c, gradient), 0.8);
    }
}

/* Three keys of like weight, far from others of none, whose value is taken off: dq has roundings of three ds and of
 * three k - c, with two rows dk those of two ds, and dv those of two p. */
Test(emulate_scaled, roundings_are_nearly_all_of_the_bound, .timeout = 300)
{
    enum { LENGTH = 81, SEEDS = 100 };
    const struct kernels scaled = alone(emulation_named("portable-scaled"));
    double largest[GRADIENTS] = {0};
    for (uint64_t seed = 1; seed <= SEEDS; ++seed) {
        struct prop_case c;
        draw_one(&c, seed, LENGTH);
        for (int64_t row = 0; row < LENGTH; ++row)
            for (int64_t x = 0; x < DIM; ++x) {
                const bool is_near = row == 1 || row == 2 || row == 4;
                const double q = c.values[T_Q][row * DIM + x], k = c.values[T_K][row * DIM + x];
                set(&c, T_Q, row, x, x == 0 ? 64 : 0.01 * q);
                if (x > 0) set(&c, T_K, row, x, is_near ? 1.5 + 0.125 * k : -64);
                else set(&c, T_K, row, x, is_near ? 0 : -16);
                if (row > 1) set(&c, T_DOUT, row, x, 0.0);
            }
        struct ref_report r[GRADIENTS];
        judge(&c, &scaled, r);
        for (int t = 0; t < GRADIENTS; ++t) largest[t] = fmax(largest[t], r[t].use);
    }
    printf("roundings alone: largest share of the bound of dq %.3f, dk %.3f, dv %.3f\n", largest[0], largest[1],
           largest[2]);
    fflush(stdout);
    for (int t = 0; t < GRADIENTS; ++t) cr_expect(largest[t] <= 1 && largest[t] > 0.65);
}

/* dp of 2^121: sums of 2^8 p dp are beyond fp32, those of p dp are not. */
Test(emulate_scaled, sums_of_p_dp_beyond_fp32_are_outside_the_domain)
{
    const struct kernels scaled = alone(emulation_named("portable-scaled"));
    struct prop_case c;
    struct ref_report r[GRADIENTS];
    set_up_two_kinds_of_keys(&c);
    set_all(&c, T_DOUT, -1, 0x1p57);
    for (int64_t j = 0; j < ROWS; ++j) set(&c, T_V, j, -1, j % 2 ? 0x1p58 : 0.0);
    judge(&c, &scaled, r);
    for (int t = 0; t < GRADIENTS; ++t) cr_expect_eq(r[t].overflow_count, r[t].count);
}

/* ---- o ---- */

/* The same problem of a forward pass alone, o in fp32. Frees it. */
static struct ref_report judge_o(struct prop_case *c, const struct kernels *k)
{
    struct ref_report report;
    c->backward = false;
    c->p.o.dtype = ATTEST_FP32;
    c->p.dout.dtype = c->p.dq.dtype = c->p.dk.dtype = c->p.dv.dtype = ATTEST_ABSENT;
    case_contiguous(c);
    case_lay_out(c);
    const int64_t count = case_count(c, T_O);
    double *const oracle = case_doubles(c, count);
    float *const kept = case_alloc(c, (size_t)count * sizeof(float));
    const struct ref_bound bound = {.bound = case_doubles(c, count),
                                    .sigma = case_doubles(c, count),
                                    .bias = case_doubles(c, count)};
    const struct ref_forward results = {.o = oracle};
    const struct ref_shares shares = shares_of(k);
    for (int n = 0; n < shares.count; ++n) {
        const struct implementation *const e = n == 0 ? k->first : k->second;
        struct computed how;
        case_reset_outputs(c);
        cr_assert_eq(e->forward(e, &c->p, &c->a.forward, &how), ATTEST_OK);
        keep_share(c, k, n == 0, T_O, kept);
    }
    cr_assert_eq(ref_forward(&c->p, &c->a.forward, &results, 1), ATTEST_OK);
    cr_assert_eq(ref_bound_forward_shares(&c->p, &c->a.forward, &shares, &bound, NULL, 1), ATTEST_OK);
    ref_judge(&c->p, &c->a.forward, REF_O, kept, oracle, &bound, 1, &report);
    case_free(c);
    return report;
}

static void expect_o_within(const struct kernels *k, const struct shape *shape)
{
    static const int powers[] = {0, 50, -110, 110};
    double use = 0.0, rms = 0.0, mean = 0.0;
    int64_t outside = 0;
    for (int i = 0; i < NUM_FAMILIES * 4; ++i) {
        struct prop_case c;
        draw(&c, (enum family)(i / 4), 5, shape);
        scale(&c, powers[i % 4]);
        const struct ref_report r = judge_o(&c, k);
        const bool is_noise = i / 4 != FAMILY_DUPLICATE; /* equal weights are rounded alike */
        cr_expect(r.use <= 1 && (!is_noise || (r.rms_ratio <= 1 && r.mean_ratio <= 1)),
                  "%s and %s, %s, 2^%d: %g, %g, %g", k->first->name,
                  k->second ? k->second->name : "no other", family_names[i / 4], powers[i % 4], r.use,
                  r.rms_ratio, r.mean_ratio);
        use = fmax(use, r.use);
        if (is_noise) rms = fmax(rms, r.rms_ratio), mean = fmax(mean, r.mean_ratio);
        outside += r.overflow_count;
    }
    printf("%-22s %-21s share of the bound of o %.3f, of thresholds %.3f, %.3f; outside %ld\n", k->first->name,
           k->second ? k->second->name : "", use, rms, mean, (long)outside);
    fflush(stdout);
}

Test(emulate_scaled, o_of_any_size_stays_within)
{
    static const struct shape wide = {.heads = 2, .dim = 64, .dim_v = 64, .sequences = 1, .length = {{128, 128}}};
    static const struct shape narrow = {.heads = 2, .dim = 32, .dim_v = 32, .sequences = 1, .length = {{128, 128}}};
    const struct implementation e[] = {emulation_of("portable-scaled", scaled_forward),
                                       emulation_of("portable-scaled-unkind", scaled_forward)};
    for (int n = 0; n < 2; ++n) {
        const struct kernels k = alone(&e[n]);
        expect_o_within(&k, &wide);
        expect_o_within(&k, &narrow);
    }
}

Test(emulate_scaled, o_of_each_sequence_stays_within_what_its_kernel_allows, .timeout = 300)
{
    const struct implementation scaled = emulation_of("portable-scaled", scaled_forward),
                                unkind = emulation_of("portable-scaled-unkind", scaled_forward),
                                n64 = emulation_of("portable-short-unkind", "short_forward_sm90"),
                                one = emulation_of("portable-fp32-unkind", "one_query_forward_sm80"),
                                plain = *emulation_named("portable"), other = *emulation_named("portable-unkind");
    const struct kernels pairs[] = {{&scaled, &plain, 100, 90, false},
                                    {&unkind, &other, 70, 128, false},
                                    {&n64, &unkind, 65, 66, false},
                                    {&one, &scaled, 1, 512, false}};
    for (int s = 0; s < SHAPES; ++s)
        for (int n = 0; n < 4; ++n) expect_o_within(&pairs[n], &shared[s]);
}

static double use_of_o(struct prop_case *c)
{
    const struct kernels scaled = alone(emulation_named("portable-scaled"));
    const struct ref_report r = judge_o(c, &scaled);
    cr_expect(r.use <= 1 && r.overflow_count == 0, "o: %g", r.use);
    printf("o: %.3f\n", r.use);
    fflush(stdout);
    return r.use;
}

/* Half of the keys have p of 0.98 2^-25, of which fp16 makes 0, and values that the others have not. */
Test(emulate_scaled, small_weights_of_values_are_lost)
{
    struct prop_case c;
    set_up_two_kinds_of_keys(&c);
    set_all(&c, T_Q, 0, 16);
    for (int64_t j = 0; j < ROWS; ++j) set(&c, T_K, j, 0, j == 0 ? 0 : -8.6875);
    for (int64_t j = 0; j < ROWS; ++j) set(&c, T_V, j, -1, j == 0 ? 0 : 1.5);
    cr_expect_gt(use_of_o(&c), 0.8);
}

/* One value of 2^20, in a feature of its own, and others that are 0.9 of half a step of the subnormals beside it. */
Test(emulate_scaled, small_values_beside_a_large_one_are_lost)
{
    struct prop_case c;
    set_up_two_kinds_of_keys(&c);
    set_all(&c, T_V, -1, 0.9 * 0x1p-20);
    set_all(&c, T_V, 1, 0.0);
    set(&c, T_V, 7, 1, 0x1p20);
    cr_expect_gt(use_of_o(&c), 0.8);
}

/* Three keys of like weight and of values far apart: o has roundings of three p. */
Test(emulate_scaled, roundings_of_weights_are_nearly_all_of_the_bound)
{
    enum { LENGTH = 3, SEEDS = 200 };
    const struct kernels scaled = alone(emulation_named("portable-scaled"));
    double largest = 0.0;
    for (uint64_t seed = 1; seed <= SEEDS; ++seed) {
        struct prop_case c;
        draw_one(&c, seed, LENGTH);
        const struct ref_report r = judge_o(&c, &scaled);
        largest = fmax(largest, r.use);
    }
    printf("roundings alone: largest share of the bound of o %.3f\n", largest);
    fflush(stdout);
    cr_expect(largest <= 1 && largest > 0.6);
}

/* ---- gradients by a delta from such an o ---- */

static enum attest_status forward_scaled(const struct implementation *self, const struct attest_problem *p,
                                         const struct attest_forward_args *a, struct computed *how)
{
    (void)self;
    const struct implementation *const scaled = emulation_named("portable-scaled");
    return scaled->forward(scaled, p, a, how);
}

/* o of short_forward_sm90_scaled, gradients of backward: values of half a step of the subnormals beside one of 2^20,
 * which dout does not see, make an o of 0, and a delta that is wrong altogether; and every family, as it is and times
 * powers of two. */
Test(emulate_scaled, gradients_of_a_scaled_o_stay_within, .timeout = 300)
{
    static const struct shape narrow = {.heads = 2, .dim = 32, .dim_v = 32, .sequences = 1, .length = {{128, 128}}};
    struct implementation mixed = *emulation_named("portable");
    mixed.forward = forward_scaled;
    const struct kernels k = alone(&mixed);
    struct prop_case c;
    struct ref_report r[GRADIENTS];
    draw_one(&c, 3, ROWS);
    set_all(&c, T_V, -1, 0.9 * 0x1p-20);
    set_all(&c, T_V, 1, 0.0);
    set(&c, T_V, 7, 1, 0x1p20);
    set_all(&c, T_DOUT, 1, 0.0);
    judge(&c, &k, r);
    for (int t = 0; t < GRADIENTS; ++t) cr_expect(r[t].use <= 1, "%s: %g", ref_tensor_names[tensors[t]], r[t].use);
    printf("of a scaled o: dq uses %.3f of its bound\n", r[0].use);
    expect_within(&k, &narrow, 4);
}

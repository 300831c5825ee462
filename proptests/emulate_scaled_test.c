/* emulate_scaled_test.c - gradients of p, ds and operands scaled to fp16 (bounds.md, section 11.11) beside their
 * bounds: on every family, numbers of any size, and where one rounding after the other is nearly all of the bound. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/emulate.h"
#include "proptests/long_case.h"
#include "reference/bounds.h"
#include "reference/formats.h"

enum { GRADIENTS = 3, DIM = 64, ROWS = 64 };
static const enum ref_tensor tensors[GRADIENTS] = {REF_DQ, REF_DK, REF_DV};
static const enum tensor_id inputs[] = {T_Q, T_K, T_V, T_DOUT};

/* One bf16 problem, its values not laid out yet; gradients are fp32, so that their bounds are of what comes before. */
struct problem {
    struct prop_case drawn, c;
};

static void draw(struct problem *problem, enum family family, uint64_t seed, int64_t length, int64_t heads)
{
    long_case(&problem->drawn, family, seed, ATTEST_BF16, length, heads);
    case_copy(&problem->c, &problem->drawn);
    problem->c.p.dq.dtype = problem->c.p.dk.dtype = problem->c.p.dv.dtype = ATTEST_FP32;
}

/* Of feature `feature`, or of all if that is -1, of one head. */
static void set(struct problem *problem, enum tensor_id t, int64_t row, int64_t feature, double value)
{
    double *const at = problem->c.values[t] + row * DIM;
    for (int64_t x = feature < 0 ? 0 : feature; x <= (feature < 0 ? DIM - 1 : feature); ++x)
        at[x] = ref_round(ATTEST_BF16, value);
}

static void set_all(struct problem *problem, enum tensor_id t, int64_t feature, double value)
{
    for (int64_t row = 0; row < problem->c.p.seqlen_q; ++row) set(problem, t, row, feature, value);
}

/* Judges dq, dk and dv, and frees the problem. */
static void judge(struct problem *problem, const char *name, struct ref_report reports[GRADIENTS])
{
    struct prop_case *const c = &problem->c;
    const struct implementation *const e = emulation_named(name);
    const int64_t count = case_count(c, T_DQ);
    struct ref_bound bounds[REF_NUM_TENSORS];
    double *oracle[GRADIENTS];
    memset(bounds, 0, sizeof bounds);
    case_lay_out(c);
    case_reset_outputs(c);
    for (int t = 0; t < GRADIENTS; ++t) {
        oracle[t] = case_doubles(c, count);
        bounds[tensors[t]] = (struct ref_bound){case_doubles(c, count), case_doubles(c, count), case_doubles(c, count)};
    }
    const struct ref_backward results = {.dq = oracle[0], .dk = oracle[1], .dv = oracle[2]};
    const void *const got[GRADIENTS] = {c->a.dq, c->a.dk, c->a.dv};
    cr_assert_eq(e->recipe, ref_kernel_recipe("short_backward_scaled"));
    cr_assert_eq(ref_backward(&c->p, &c->a, NULL, &results, 1), ATTEST_OK);
    cr_assert_eq(e->forward(e, &c->p, &c->a.forward), ATTEST_OK);
    cr_assert_eq(e->backward(e, &c->p, &c->a), ATTEST_OK);
    cr_assert_eq(ref_bound_backward(&c->p, &c->a, e->recipe, bounds, 1), ATTEST_OK);
    for (int t = 0; t < GRADIENTS; ++t)
        ref_judge(&c->p, &c->a.forward, tensors[t], got[t], oracle[t], &bounds[tensors[t]], 1, &reports[t]);
    case_free(c);
    case_free(&problem->drawn);
}

static const char *const names[] = {"portable-scaled", "portable-scaled-unkind"};

/* q and dout times 2^power, k and v times 2^-power: the same scores and dp, but for what underflows. */
static void scale(struct problem *problem, int power)
{
    for (int t = 0; t < 4; ++t)
        for (int64_t i = 0; i < case_count(&problem->c, inputs[t]); ++i) {
            double *const value = &problem->c.values[inputs[t]][i];
            const double scaled = ldexp(*value, inputs[t] == T_Q || inputs[t] == T_DOUT ? power : -power);
            *value = ref_round(ATTEST_BF16, fmax(-0x1p127, fmin(0x1p127, scaled)));
        }
}

Test(emulate_scaled, every_family_of_any_size_stays_within)
{
    static const int powers[] = {0, 50, 110, -110};
    for (int n = 0; n < 2; ++n)
        for (int f = 0; f < NUM_FAMILIES; ++f) {
            double use[GRADIENTS] = {0}, rms = 0.0, mean = 0.0;
            int64_t outside = 0;
            for (int i = 0; i < 4; ++i) {
                struct problem problem;
                struct ref_report r[GRADIENTS];
                draw(&problem, (enum family)f, 5, 128, 2);
                scale(&problem, powers[i]);
                judge(&problem, names[n], r);
                for (int t = 0; t < GRADIENTS; ++t) {
                    cr_expect(r[t].use <= 1 && r[t].rms_ratio <= 1 && r[t].mean_ratio <= 1, "%s, %s, 2^%d, %s",
                              names[n], family_names[f], powers[i], ref_tensor_names[tensors[t]]);
                    use[t] = fmax(use[t], r[t].use), outside += r[t].overflow_count;
                    rms = fmax(rms, r[t].rms_ratio), mean = fmax(mean, r[t].mean_ratio);
                }
            }
            printf("%-22s %-9s share of the bound of dq %.3f, dk %.3f, dv %.3f; of thresholds %.3f, %.3f; outside "
                   "%ld\n",
                   names[n], family_names[f], use[0], use[1], use[2], rms, mean, (long)outside);
        }
    fflush(stdout);
}

static double use_of(struct problem *problem, int gradient)
{
    struct ref_report r[GRADIENTS];
    judge(problem, names[0], r);
    for (int t = 0; t < GRADIENTS; ++t) cr_expect(r[t].use <= 1 && r[t].overflow_count == 0);
    return r[gradient].use;
}

/* Every row is the same, and so are the values of half of the keys: ds of a key has one sign. */
static void set_up_two_kinds_of_keys(struct problem *problem)
{
    draw(problem, FAMILY_NORMAL, 1, ROWS, 1);
    set_all(problem, T_Q, -1, 0);
    set_all(problem, T_K, -1, 0);
    set_all(problem, T_DOUT, -1, 1.5);
    for (int64_t j = 0; j < ROWS; ++j) set(problem, T_V, j, -1, j % 2 ? 1.5 : 0.0);
}

/* Half of the keys have p of 0.9 2^-33, which is 0 in fp16 with 2^8 as its factor; and so have their ds. */
Test(emulate_scaled, small_p_and_ds_are_lost)
{
    for (int gradient = 1; gradient < GRADIENTS; ++gradient) {
        struct problem problem;
        set_up_two_kinds_of_keys(&problem);
        set_all(&problem, T_Q, 0, 16);
        for (int64_t j = 1; j < ROWS; j += 2) set(&problem, T_K, j, 0, -9.75);
        const double use = use_of(&problem, gradient);
        cr_expect(use > 0.4, "%s: %g", ref_tensor_names[tensors[gradient]], use);
    }
}

/* One number of 2^20, which nothing else meets, and others that are 0.9 of half a step of the subnormals beside it. */
Test(emulate_scaled, small_numbers_beside_a_large_one_are_lost)
{
    static const enum tensor_id of[GRADIENTS] = {T_K, T_Q, T_DOUT};
    for (int gradient = 0; gradient < GRADIENTS; ++gradient) {
        struct problem problem;
        set_up_two_kinds_of_keys(&problem);
        const double small = gradient == 0 ? 0.9 * 0x1p-19 : 0.9 * 0x1p-20;
        for (int64_t row = 0; row < ROWS; ++row) { /* of k's three rows the median is 0 */
            const bool is_end = row == 0 || row == ROWS - 1;
            set(&problem, of[gradient], row, -1, gradient > 0 ? small : is_end ? 0 : row % 2 ? small : -small);
        }
        set_all(&problem, of[gradient], 1, 0.0);
        set(&problem, of[gradient], 7, 1, 0x1p20);
        if (gradient == 2) set_all(&problem, T_V, 1, 0.0);
        const double use = use_of(&problem, gradient);
        cr_expect(use > 0.8, "%s: %g", ref_tensor_names[tensors[gradient]], use);
    }
}

/* Three keys of like weight, far from four of none, whose value is taken off: dq has roundings of three ds and of three
 * k - c, with two rows dk those of two ds, and dv those of two p. */
Test(emulate_scaled, roundings_are_nearly_all_of_the_bound)
{
    enum { LENGTH = 7 };
    double largest[GRADIENTS] = {0};
    for (uint64_t seed = 1; seed <= 300; ++seed) {
        struct problem problem;
        draw(&problem, FAMILY_NORMAL, seed, LENGTH, 1);
        for (int64_t row = 0; row < LENGTH; ++row)
            for (int64_t x = 0; x < DIM; ++x) {
                const bool is_near = row == 1 || row == 2 || row == 4;
                const double q = problem.c.values[T_Q][row * DIM + x], k = problem.c.values[T_K][row * DIM + x];
                set(&problem, T_Q, row, x, x == 0 ? 64 : 0.01 * q);
                if (x > 0) set(&problem, T_K, row, x, is_near ? 1.5 + 0.125 * k : -64);
                else set(&problem, T_K, row, x, is_near ? 0 : -16);
                if (row > 1) set(&problem, T_DOUT, row, x, 0.0);
            }
        struct ref_report r[GRADIENTS];
        judge(&problem, names[0], r);
        for (int t = 0; t < GRADIENTS; ++t) largest[t] = fmax(largest[t], r[t].use);
    }
    printf("roundings alone: largest share of the bound of dq %.3f, dk %.3f, dv %.3f\n", largest[0], largest[1],
           largest[2]);
    fflush(stdout);
    for (int t = 0; t < GRADIENTS; ++t) cr_expect(largest[t] <= 1 && largest[t] > 0.7);
}

/* dp of 2^121: sums of 2^8 p dp are beyond fp32, those of p dp are not. */
Test(emulate_scaled, sums_of_p_dp_beyond_fp32_are_outside_the_domain)
{
    struct problem problem;
    struct ref_report r[GRADIENTS];
    set_up_two_kinds_of_keys(&problem);
    set_all(&problem, T_DOUT, -1, 0x1p57);
    for (int64_t j = 0; j < ROWS; ++j) set(&problem, T_V, j, -1, j % 2 ? 0x1p58 : 0.0);
    judge(&problem, names[0], r);
    for (int t = 0; t < GRADIENTS; ++t) cr_expect_eq(r[t].overflow_count, r[t].count);
}

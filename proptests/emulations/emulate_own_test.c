/* emulate_own_test.c - rows whose scores are so large that an lse in fp32 says little of their weights: p is divided by
 * the sum of the row's own weights, and biases are taken less the largest (bounds.md, section 5.4). Rows whose every
 * key has the same finite mask, and scores of every size: within the bound, which says something, and not so
 * otherwise. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include <criterion/criterion.h>

#include "proptests/cases/case.h"
#include "proptests/emulations/emulate.h"
#include "reference/bounds.h"
#include "reference/formats.h"

enum { LENGTH = 48, DIM = 16, HEADS = 2, TENSORS = REF_DV + 1 };
static const enum tensor_id ids[TENSORS] = {T_O, T_LSE, T_DQ, T_DK, T_DV};
static const enum tensor_id inputs[] = {T_Q, T_K, T_V, T_DOUT};
static const enum role roles[] = {ROLE_Q, ROLE_K, ROLE_V, ROLE_DOUT};
static const char *const names[] = {"portable", "portable-unkind", "portable-fp32-unkind", "portable-short-unkind"};
enum { EMULATIONS = sizeof names / sizeof *names };

struct setting {
    int32_t dtype;
    double scale; /* softmax_scale */
    bool causal;
    bool has_bias;
    double mask;  /* of every key of every third row; of the others every other key */
    double bias;  /* beside it: random numbers of this size */
    bool is_causal_mask; /* the mask is of keys behind the row, and of these alone */
};

static void draw(struct prop_case *c, const struct setting *set)
{
    memset(c, 0, sizeof *c);
    c->p = (struct attest_problem)ATTEST_PROBLEM_INIT;
    struct attest_problem *p = &c->p;
    p->device = ATTEST_REFERENCE;
    p->batch = 1, p->seqlen_q = p->seqlen_k = LENGTH;
    p->num_heads_q = HEADS, p->num_heads_kv = 1;
    p->head_dim = p->head_dim_v = DIM;
    p->softmax_scale = (float)set->scale;
    if (set->causal) p->window_right = 0, p->diag_kind = ATTEST_DIAG_TOP_LEFT;
    p->q.dtype = p->k.dtype = p->v.dtype = p->dout.dtype = set->dtype;
    p->o.dtype = p->lse.dtype = p->dq.dtype = p->dk.dtype = p->dv.dtype = ATTEST_FP32;
    if (set->has_bias) p->bias = (struct attest_score_tensor){.dtype = ATTEST_FP32, .seqlen_q = 1, .seqlen_k = 1};
    c->backward = true;
    c->poison = 0xff;
    case_contiguous(c);
    const struct family_data data = c->data = (struct family_data){FAMILY_NORMAL, 3, set->dtype, DIM, 0.25};
    for (int t = 0; t < 4; ++t) {
        int64_t e[4];
        case_extents(c, inputs[t], e);
        double *out = c->values[inputs[t]] = case_doubles(c, e[0] * e[1] * e[2]);
        for (int64_t i = 0; i < e[0] * e[1] * e[2]; ++i)
            out[i] = family_value(&data, roles[t], 0, i / e[2] / e[1], i / e[2] % e[1], i % e[2]);
    }
    if (!set->has_bias) return;
    double *const bias = c->values[T_BIAS] = case_doubles(c, case_count(c, T_BIAS));
    uint64_t state = 7;
    for (int64_t i = 0; i < case_count(c, T_BIAS); ++i) {
        state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        const double random = (double)(state >> 33) * 0x1p-31;
        const bool masked = set->is_causal_mask ? i % LENGTH > i / LENGTH : i / LENGTH % 3 == 0 || i % 2 == 0;
        bias[i] = (double)(float)((masked ? set->mask : 0.0) + random * set->bias);
    }
}

/* Of each tensor: share of the bound, RMS(bound) / RMS(oracle), and how many elements are outside of the domain. */
struct judged {
    double use[TENSORS], vacuity[TENSORS];
    int64_t outside;
};

static struct judged judge(const struct setting *set, const struct implementation *e, const struct attest_recipe *by)
{
    struct prop_case c;
    struct ref_bound bounds[REF_NUM_TENSORS];
    double *want[TENSORS];
    struct judged judged = {.outside = 0};
    draw(&c, set);
    case_lay_out(&c);
    case_reset_outputs(&c);
    struct computed how;
    memset(bounds, 0, sizeof bounds);
    for (int t = 0; t < TENSORS; ++t) {
        const int64_t count = case_count(&c, ids[t]);
        want[t] = case_doubles(&c, count);
        bounds[t].bound = case_doubles(&c, count);
    }
    const struct ref_forward forward = {want[REF_O], want[REF_LSE]};
    const struct ref_backward backward = {.dq = want[REF_DQ], .dk = want[REF_DK], .dv = want[REF_DV]};
    const void *const got[TENSORS] = {c.a.forward.o, c.a.forward.lse, c.a.dq, c.a.dk, c.a.dv};
    cr_assert_eq(ref_forward(&c.p, &c.a.forward, &forward, 1), ATTEST_OK);
    cr_assert_eq(ref_backward(&c.p, &c.a, NULL, &backward, 1), ATTEST_OK);
    cr_assert_eq(e->forward(e, &c.p, &c.a.forward, &how), ATTEST_OK);
    cr_assert_eq(e->backward(e, &c.p, &c.a, &how), ATTEST_OK);
    cr_assert_eq(ref_bound_forward(&c.p, &c.a.forward, by, &bounds[REF_O], &bounds[REF_LSE], 1), ATTEST_OK);
    cr_assert_eq(ref_bound_backward(&c.p, &c.a, by, bounds, 1), ATTEST_OK);
    for (int t = 0; t < TENSORS; ++t) {
        struct ref_report r;
        ref_judge(&c.p, &c.a.forward, (enum ref_tensor)t, got[t], want[t], &bounds[t], 0, &r);
        judged.use[t] = r.use, judged.vacuity[t] = r.rms_bound / r.rms_oracle;
        judged.outside += r.overflow_count;
        for (int64_t i = 0; i < case_count(&c, ids[t]); ++i) cr_assert(!isnan(bounds[t].bound[i]));
    }
    case_free(&c);
    return judged;
}

/* As the recipe was before it found the sums of such rows again. */
static struct judged judge_by_lse(const struct setting *set, const struct implementation *e)
{
    struct implementation old = *e;
    struct attest_recipe recipe = *e->recipe;
    recipe.own_sum = 0;
    old.recipe = &recipe;
    return judge(set, &old, e->recipe);
}

static const double masks[] = {-1e4, -65504, -1e6, -1e7, -1e8, -1e9, -1e30, -(double)FLT_MAX};
enum { MASKS = sizeof masks / sizeof *masks };

Test(emulate_own, rows_of_one_finite_mask_are_right)
{
    for (int n = 0; n < EMULATIONS; ++n)
        for (int causal = 0; causal < 2; ++causal) {
            const struct implementation *const e = emulation_named(names[n]);
            double most[TENSORS] = {0}, vacuity = 0;
            for (int m = 0; m < MASKS; ++m) {
                const struct setting set = {ATTEST_BF16, 0.25, causal, true, masks[m], 1.0, false};
                const struct judged own = judge(&set, e, e->recipe), by_lse = judge_by_lse(&set, e);
                cr_expect_eq(own.outside, 0, "%s, mask %g: %ld outside", e->name, masks[m], (long)own.outside);
                for (int t = 0; t < TENSORS; ++t) {
                    cr_expect(own.use[t] <= 1, "%s, mask %g, %s: %g", e->name, masks[m], ref_tensor_names[t],
                              own.use[t]);
                    cr_expect(own.vacuity[t] <= 0.05, "%s, mask %g, %s: RMS(bound) / RMS(oracle) %g", e->name, masks[m],
                              ref_tensor_names[t], own.vacuity[t]);
                    most[t] = fmax(most[t], own.use[t]), vacuity = fmax(vacuity, own.vacuity[t]);
                }
                if (masks[m] > -1e6) continue;
                cr_expect(!(by_lse.use[REF_DV] <= 1) && !(by_lse.use[REF_O] <= 1), "%s, mask %g, p by lse: %g, o %g",
                          e->name, masks[m], by_lse.use[REF_DV], by_lse.use[REF_O]);
            }
            printf("%-22s %-6s masks: share of the bound of o %.3f, lse %.3f, dq %.3f, dk %.3f, dv %.3f; "
                   "RMS(bound) / RMS(oracle) at most %.4f\n",
                   e->name, causal ? "causal" : "full", most[0], most[1], most[2], most[3], most[4], vacuity);
            fflush(stdout);
        }
}

/* A mask of causal attention made of finite numbers, as model code makes it: every row sees a key without it, the
 * others weigh nothing in any arithmetic. Of any recipe it is inside the domain, and the bound is that of such a
 * problem. */
Test(emulate_own, a_finite_causal_mask_costs_nothing)
{
    for (const struct implementation *e = emulations; e->name; ++e) {
        double most = 0, vacuity = 0;
        for (int m = 0; m <= MASKS; ++m) {
            const double mask = m < MASKS ? masks[m] : -0x1.fep127; /* the least bf16 */
            const struct setting set = {ATTEST_BF16, 0.25, false, true, mask, 0.0, true};
            const struct setting hidden = {ATTEST_BF16, 0.25, false, true, -INFINITY, 0.0, true};
            const struct judged j = judge(&set, e, e->recipe), beside = judge(&hidden, e, e->recipe);
            cr_expect_eq(j.outside, 0, "%s, mask %g: %ld outside", e->name, mask, (long)j.outside);
            for (int t = 0; t < TENSORS; ++t) {
                /* Keys that weigh nothing count as roundings of sums still: of fp32's, one rescaling each. */
                cr_expect(j.use[t] <= 1 && j.vacuity[t] <= 2 * beside.vacuity[t], "%s, mask %g, %s: %g, %g beside %g",
                          e->name, mask, ref_tensor_names[t], j.use[t], j.vacuity[t], beside.vacuity[t]);
                most = fmax(most, j.use[t]), vacuity = fmax(vacuity, j.vacuity[t] / beside.vacuity[t]);
            }
        }
        printf("%-22s finite causal masks: share of a bound at most %.3f, bounds %.3f of those of hidden keys\n",
               e->name, most, vacuity);
        fflush(stdout);
    }
}

/* Scores of every size, by softmax_scale or by the bias. From 5e8 on, exponents of one fused multiply-add may overflow
 * where scores are no more than softmax_scale q . k: section 10. */
Test(emulate_own, scores_of_every_size_are_within)
{
    for (int n = 0; n < EMULATIONS; ++n)
        for (int by_bias = 0; by_bias < 2; ++by_bias)
            for (int causal = 0; causal < 2; ++causal) {
                const struct implementation *const e = emulation_named(names[n]);
                double most[TENSORS] = {0};
                for (double size = 1e3; size <= 1e12; size *= 10) {
                    const struct setting set = {ATTEST_BF16, by_bias ? 0.25 : size, causal, by_bias, 0,
                                                by_bias ? size : 0, false};
                    const struct judged own = judge(&set, e, e->recipe);
                    cr_expect(own.outside == 0 || (!by_bias && size > 1e6), "%s, scores of %g: %ld outside", e->name,
                              size, (long)own.outside);
                    for (int t = 0; t < TENSORS; ++t) {
                        cr_expect(own.use[t] <= 1, "%s, %s scores of %g, %s: %g", e->name, by_bias ? "biased" : "linear",
                                  size, ref_tensor_names[t], own.use[t]);
                        /* Where one key has all of a row's weight, dq and dk are nothing. */
                        if (by_bias && (t == REF_O || t == REF_DV))
                            cr_expect(own.vacuity[t] <= 0.05, "%s, scores of %g, %s: RMS(bound) / RMS(oracle) %g",
                                      e->name, size, ref_tensor_names[t], own.vacuity[t]);
                        most[t] = fmax(most[t], own.use[t]);
                    }
                }
                printf("%-22s %-6s scores, %s: share of the bound of o %.3f, lse %.3f, dq %.3f, dk %.3f, dv %.3f\n",
                       e->name, causal ? "causal" : "full", by_bias ? "bias" : "scale", most[0], most[1], most[2],
                       most[3], most[4]);
                fflush(stdout);
            }
}

/* Of scores near 10^6 p by an lse in fp32 is wrong by percents, and its delta with it. */
Test(emulate_own, weights_by_a_rounded_lse_are_beyond_the_bound)
{
    for (int n = 0; n < EMULATIONS; ++n) {
        const struct implementation *const e = emulation_named(names[n]);
        const struct setting set = {ATTEST_BF16, 0.25, false, true, -3e6, 1.0, false};
        const struct judged by_lse = judge_by_lse(&set, e);
        printf("%-22s by lse: share of the bound of dq %.3g, dk %.3g, dv %.3g\n", e->name, by_lse.use[REF_DQ],
               by_lse.use[REF_DK], by_lse.use[REF_DV]);
        fflush(stdout);
        cr_expect(!(by_lse.use[REF_DV] <= 1));
    }
}

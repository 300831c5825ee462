/* machine.c - numbers of a recipe; each is derived in reference/bounds.md sections 2 and 3. */
#include "reference/machine.h"

#include "reference/bounds.h"
#include <float.h>

#include "reference/formats.h"
#include "reference/oracle.h"

/* `parts` as recipes have it: 0 for none. Of two, the second is what the first leaves, which fp32 has exactly, rounded:
 * half an ulp, which is a number of the format, or less, of which half a unit is half as much. */
static struct ref_rounding rounding_to(int32_t dtype, int32_t parts)
{
    if (parts == 0) return (struct ref_rounding){.overflow = INFINITY};
    const struct ref_format *f = ref_format(dtype);
    const double u = f->unit_roundoff;
    /* fp32 and bf16 share their least exponent, below which a unit may flush to zero. */
    const double tiny = f->min_normal <= FLT_MIN ? FLT_MIN : f->min_subnormal / 2;
    const double relative = parts == 2 ? u * u / 2 : u / (1 + u), below_one = parts == 2 ? u * u / 4 : u / 2;
    return (struct ref_rounding){dtype, parts, relative, parts * tiny, f->overflow, below_one, 1.0};
}

struct ref_rounding ref_rounding_to_fp16(double scale)
{
    struct ref_rounding r = rounding_to(ATTEST_FP16, 1);
    r.tiny /= scale, r.overflow /= scale, r.scale = scale;
    return r;
}

static double least_normal(int32_t dtype) { return ref_format(dtype)->min_normal; }

static struct ref_machine oracle_machine(void)
{
    /* exp: REF_EXP_ULPS units, of 2^-52 at most; tanh and log of glibc: 2 units at most. */
    return (struct ref_machine){.accumulate = ATTEST_ACC_FP32,
                                .parts = 1,
                                .parts_size = 1,
                                .most_weight = 1,
                                .less_base = true,
                                .u = 0x1p-53,
                                .tiny = DBL_MIN,
                                .lost = DBL_MIN,
                                .least_operand = DBL_MIN,
                                .huge = DBL_MAX / 0x1p20,
                                .exp_error = REF_EXP_ULPS * 0x1.0001p-52,
                                .tanh_error = 0x1p-51,
                                .tanh_floor = DBL_MIN,
                                .log_error = 0x1p-51,
                                .p.overflow = INFINITY,
                                .p_dv.overflow = INFINITY,
                                .p_ds.overflow = INFINITY,
                                .p_dq.overflow = INFINITY,
                                .ds.overflow = INFINITY,
                                .dk_heads.overflow = INFINITY,
                                .dv_heads.overflow = INFINITY};
}

double ref_share_kept(const struct attest_problem *p)
{
    return (65536.0 - floor(65536.0 * (double)p->dropout_p + 0.5)) / 65536.0;
}

/* ds may lack dropout's multiplier where it is rounded or flushed, and carry softmax_scale if the recipe says so. */
static void fold_factors(const struct attest_problem *p, bool has_scale, struct ref_rounding *ds)
{
    const double scale = has_scale ? fabs((double)p->softmax_scale) : 1.0, kept = ref_share_kept(p);
    if (scale > 0.0) ds->tiny = fmax(ds->tiny, FLT_MIN) / kept / fmin(1.0, scale);
    ds->overflow /= fmax(1.0, scale);
}

/* In a forward pass: every row sees every key, scores are softmax_scale q . k, all of bf16. */
static bool can_scale_forward(const struct attest_problem *p)
{
    return p->window_left < 0 && p->window_right < 0 && !p->mask.dtype && !p->block_mask.dtype && !p->bias.dtype &&
           !p->has_alibi && !p->has_sink && p->softcap == 0 && p->dropout_p == 0 && p->q.dtype == ATTEST_BF16 &&
           p->k.dtype == ATTEST_BF16 && p->v.dtype == ATTEST_BF16;
}

/* Backward, sums of ds over keys must be zero, too, and nothing is summed over heads. */
static bool can_scale_backward(const struct attest_problem *p)
{
    return can_scale_forward(p) && p->num_heads_q == p->num_heads_kv && p->dout.dtype == ATTEST_BF16 &&
           !p->external_lse && !p->dlse.dtype && !p->delta.dtype && !p->dbias.dtype;
}

static bool is_narrow(const struct attest_problem *p)
{
    return p->head_dim <= REF_SCALED_FEATURES && p->head_dim_v <= REF_SCALED_FEATURES;
}

/* Numbers that p or ds is a sum of where nothing scales; 0: it is not rounded. */
static int32_t parts_of(int32_t weights)
{
    return weights == ATTEST_WEIGHTS_FP32 ? 0 : weights == ATTEST_WEIGHTS_ONE_PART ? 1 : 2;
}

static bool asks_to_scale(const struct attest_recipe *recipe)
{
    return recipe->weights_p == ATTEST_WEIGHTS_SCALED_FP16 && recipe->weights_ds == ATTEST_WEIGHTS_SCALED_FP16;
}

/* A row has at most four such deviations, of two signs: bounds.md section 9.10. */
static double sigmas_of_rows(double rows) { return sqrt(2 * log(8 * fmax(rows, 1.0) / REF_FALSE_ALARM)); }

/* |h| + |l| <= |x| + 2u |x| + u^2 |x|, of the coarsest of the formats that parts are made of. */
static double size_of_parts(const struct attest_problem *p)
{
    double u = fmax(ref_format(p->v.dtype)->unit_roundoff, ref_format(p->q.dtype)->unit_roundoff);
    if (p->dout.dtype != ATTEST_ABSENT) u = fmax(u, ref_format(p->dout.dtype)->unit_roundoff);
    return (1 + u) * (1 + u);
}

struct ref_machine ref_machine(const struct attest_problem *p, const struct attest_recipe *recipe)
{
    struct ref_machine m = oracle_machine();
    if (!recipe) return m;
    const int32_t parts_p = parts_of(recipe->weights_p), parts_ds = parts_of(recipe->weights_ds);
    m.accumulate = recipe->accumulate;
    m.row_sigmas = sigmas_of_rows((double)(ref_rows_q(p) * p->num_heads_q));
    m.u = 0x1p-24;
    m.tiny = FLT_MIN;
    /* A tensor core gives a subnormal operand the exponent of the least normal one (bounds.md, 3.3). */
    m.least_operand = least_normal(p->q.dtype);
    if (p->dout.dtype != ATTEST_ABSENT) m.least_operand = fmax(m.least_operand, least_normal(p->dout.dtype));
    m.lost = FLT_MIN + (recipe->accumulate == ATTEST_ACC_FP32 ? 0.0 : 0x1p-20 * m.least_operand);
    m.huge = FLT_MAX / 4;
    /* At least u: then every number here is 2^20 of the oracle's, which section 8 uses. */
    m.exp_error = -log1p(-fmax(recipe->exp_error, m.u));
    m.tanh_error = fmax(recipe->tanh_error, m.u);
    m.tanh_floor = 0x1p-22;
    m.log_error = 0x1p-22;
    m.tile_k = recipe->tile_k;
    m.most_weight = parts_p == 2 ? 0x1p15 : 1;
    m.rescales = true;
    m.less_base = false;
    m.own_sum = recipe->own_sum && !p->external_lse;
    m.corrects_delta = recipe->delta == ATTEST_DELTA_CORRECTED && !p->external_lse;
    /* One that is given is taken as it is by all but those that correct it, and may be of a rounded o. */
    const bool is_given = p->delta.dtype != ATTEST_ABSENT;
    m.normalizes_delta = recipe->delta == ATTEST_DELTA_NORMALIZED && !is_given && !p->has_sink;
    m.delta_from_o = recipe->delta == ATTEST_DELTA_FROM_ROUNDED_O || m.corrects_delta || is_given;
    m.o_dtype = p->o.dtype != ATTEST_ABSENT ? p->o.dtype : p->dout.dtype;
    m.rounds_outputs = true;
    m.scales = asks_to_scale(recipe) && can_scale_backward(p);
    m.o_may_be_scaled = m.corrects_delta && can_scale_forward(p) && is_narrow(p);
    m.power = m.scales ? 8 : 0;
    m.parts = parts_p == 2 || parts_ds == 2 ? 2 : 1;
    if (m.parts == 2) m.parts_size = size_of_parts(p);
    m.rescale_log2 = ref_rescale_log2(recipe, p->v.dtype);
    m.ordered = recipe->ordered_keys;
    m.most_weight = fmax(m.most_weight, ldexp(1.0, m.rescale_log2));
    m.p = rounding_to(p->v.dtype, parts_p);
    if (p->dout.dtype != ATTEST_ABSENT) m.p_dv = rounding_to(p->dout.dtype, parts_p);
    if (recipe->round_p_ds && p->dout.dtype != ATTEST_ABSENT) m.p_ds = rounding_to(p->dout.dtype, 1);
    if (m.corrects_delta) m.p_dq = rounding_to(p->k.dtype, parts_p);
    m.ds = rounding_to(p->q.dtype, parts_ds);
    m.ds_may_have_scale = recipe->round_scaled_ds;
    fold_factors(p, m.ds_may_have_scale, &m.ds);
    if (recipe->round_dkv_heads && p->dk.dtype != ATTEST_ABSENT && p->num_heads_q > p->num_heads_kv) {
        m.dk_heads = rounding_to(p->dk.dtype, 1);
        m.dv_heads = rounding_to(p->dv.dtype, 1);
    }
    return m;
}

struct ref_machine ref_forward_machine(const struct attest_problem *p, const struct attest_recipe *recipe)
{
    struct ref_machine m = ref_machine(p, recipe);
    m.scales = recipe && asks_to_scale(recipe) && can_scale_forward(p);
    m.own_sum = recipe && recipe->own_sum;
    m.power = 0;
    if (m.scales) m.p = ref_rounding_to_fp16(1.0), m.parts = 1, m.parts_size = 1;
    return m;
}

/* terms products in `steps` steps of the matrix unit (bounds.md, 3.2). */
static struct ref_sum sum_of(const struct ref_machine *m, double terms, double steps)
{
    const double truncation = 2 * m->u; /* 2^-23 */
    if (m->accumulate == ATTEST_ACC_FP32) {
        const double n = terms + 3;
        return (struct ref_sum){.rel = expm1(n * m->u), .sigma = sqrt(n / 3) * m->u};
    }
    if (m->accumulate == ATTEST_ACC_FAITHFUL) {
        const double n = fmax(terms, terms / 2 + 1.5 * steps) + 3;
        return (struct ref_sum){.rel = expm1(n * truncation),
                                .sigma = sqrt(n / 12) * truncation,
                                .bias = n * truncation / 2,
                                .steps = steps * truncation / 2,
                                .steps_aligned = terms * truncation / 4};
    }
    const double alignment = m->accumulate == ATTEST_ACC_HOPPER ? 0.25 : 0.5; /* a term's truncation, of 2^-23 */
    const double n = alignment * terms + steps;
    return (struct ref_sum){.rel = expm1(n * truncation + (steps + 3) * m->u),
                            .sigma = sqrt(alignment * alignment * terms / 3 + steps / 12) * truncation,
                            .bias = steps * truncation / 2,
                            .aligned = alignment * terms * truncation / 2,
                            .steps = steps * truncation / 2,
                            .steps_aligned = alignment * terms * truncation / 2};
}

static int64_t step_terms(const struct ref_machine *m) { return m->accumulate == ATTEST_ACC_HOPPER ? 16 : 8; }

struct ref_sum ref_sum_features(const struct ref_machine *m, int64_t terms)
{
    const int64_t width = step_terms(m);
    return sum_of(m, (double)terms, (double)((terms + width - 1) / width));
}

struct ref_sum ref_sum_rows(const struct ref_machine *m, int64_t terms, int64_t span, int64_t heads)
{
    const int64_t steps = heads * (span / step_terms(m) + 2);
    struct ref_sum sum = sum_of(m, (double)(m->parts * terms), (double)(m->parts * (terms < steps ? terms : steps)));
    sum.rel *= m->parts_size;
    return sum;
}

double ref_sum_of_steps(const struct ref_machine *m, int64_t terms, int64_t span)
{
    const double rel = ref_sum_rows(m, terms, span, 1).rel, steps = (double)(span / step_terms(m) + 2);
    if (m->accumulate != ATTEST_ACC_FAITHFUL || m->parts != 1) return rel;
    return fmin(rel, ref_growth(((double)terms / 2 + 1.5 * steps + 3) * 2 * m->u));
}

double ref_sum_of_tiles(const struct ref_machine *m, int64_t terms, int64_t span)
{
    const double tile = ref_sum_rows(m, terms < REF_TILE ? terms : REF_TILE, REF_TILE, 1).rel;
    return ref_both(tile, ref_growth((double)(span / REF_LEAST_TILE + 2) * m->u));
}

double ref_step_error(const struct ref_machine *m) { return m->parts_size * m->parts * expm1(16 * m->u); }

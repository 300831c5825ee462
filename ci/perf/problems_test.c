/* problems_test.c - every row of the registry is counted: in each of its formats, with each feature and of each width
 * that it takes, of several tiles, of groups of heads, and on both sides of the number of SMs. */
#include <criterion/criterion.h>
#include <string.h>

#include "ci/perf/problems.h"
#include "kernels/sim/sim.h"

enum { FORMATS = 32, SIM_MOST_SMS = 4 };

/* The planner gives these 16-bit tensors only where gradients have another format than q: sample.h makes none such. */
static bool is_never_given(const struct problem_row *row, int32_t dtype)
{
    return strstr(row->name, "_fp32") != NULL && dtype != ATTEST_FP32;
}

static bool is_mine(const struct counted_problem *p, const struct problem_row *row, int32_t dtype)
{
    return p->shape.dtype == dtype && (p->of == NULL || p->of->row == row->row) && problem_is_of(&p->shape, row);
}

static bool is_of_several_tiles(const struct sample_shape *s, const struct problem_row *row)
{
    return s->seqlen >= (row->most.k < 130 ? row->most.k : 130);
}

static bool has_feature(const struct sample_shape *s, const struct problem_feature *f)
{
    const unsigned of_pass = s->features & ~(unsigned)FORWARD_ONLY;
    return f->with == 0 ? of_pass == 0 : (s->features & f->with) == f->with;
}

/* What of the row's problems has been seen, of one format. */
struct seen {
    bool feature[PROBLEM_FEATURES], width[PROBLEM_WIDTHS], group, few, many;
};

static struct seen seen_of(const struct problem_row *row, int32_t dtype)
{
    size_t count;
    const struct counted_problem *const problems = counted_problems(&count);
    struct seen seen = {0};
    for (size_t n = 0; n < count; ++n) {
        const struct sample_shape *const s = &problems[n].shape;
        if (!is_mine(&problems[n], row, dtype) || !is_of_several_tiles(s, row)) continue;
        for (int f = 0; f < PROBLEM_FEATURES; ++f) seen.feature[f] |= has_feature(s, &problem_features[f]);
        for (int w = 0; w < PROBLEM_WIDTHS; ++w)
            seen.width[w] |= s->head_dim == problem_widths[w] && has_feature(s, &problem_features[0]);
        seen.group |= s->heads_q > s->heads_kv;
        seen.few |= s->batch * s->heads_q == 1;
        seen.many |= s->batch * s->heads_q > SIM_MOST_SMS;
    }
    return seen;
}

/* Whether, with any promise of alignment and on any GPU, the row is picked for one head of a width with these. */
static bool takes(const struct problem_row *row, int32_t dtype, int64_t width, unsigned features)
{
    const int64_t most_k = row->most.k < 130 ? row->most.k : 130;
    struct sample_shape s = {.dtype = dtype, .batch = 1, .seqlen = most_k, .heads_q = 1, .heads_kv = 1,
                             .queries = row->most.q < most_k ? row->most.q : 0, .head_dim = width, .head_dim_v = width,
                             .features = features};
    bool found = false;
    for (s.major = 8; s.major <= 9; ++s.major)
        for (int n = 0; n < 2; ++n) s.unpromised = n == 1, found |= problem_is_of(&s, row);
    return found;
}

static bool takes_width(const struct problem_row *row, int32_t dtype, int64_t width)
{
    return takes(row, dtype, width, 0);
}

/* Of what a row can run, other rows may be picked for a part. */
static bool takes_feature(const struct problem_row *row, int32_t dtype, const struct problem_feature *f)
{
    bool found = false;
    for (int w = 0; w < PROBLEM_WIDTHS; ++w) found |= takes(row, dtype, problem_widths[w], f->with);
    return found;
}

static void expect_widths(const struct problem_row *row, int32_t dtype, const struct seen *seen)
{
    int taken = 0;
    for (int w = 0; w < PROBLEM_WIDTHS; ++w) {
        const bool is_taken = takes_width(row, dtype, problem_widths[w]);
        taken += is_taken;
        cr_expect(!is_taken || seen->width[w], "%s, rows %d, dtype %d: no problem of %d features", row->name,
                  row->most.q, dtype, (int)problem_widths[w]);
    }
    bool takes_some = taken > 0;
    for (int f = 0; f < PROBLEM_FEATURES; ++f) takes_some |= takes_feature(row, dtype, &problem_features[f]);
    cr_expect(takes_some, "%s, rows %d, dtype %d: of no width at all", row->name, row->most.q, dtype);
}

static void expect_row(const struct problem_row *row, int32_t dtype)
{
    const struct seen seen = seen_of(row, dtype);
    const char *const pass = row->pass == ATTEST_FORWARD ? "forward" : "backward";
    for (int f = 0; f < PROBLEM_FEATURES; ++f) {
        const struct problem_feature *const feature = &problem_features[f];
        const bool is_taken =
            !(row->reach->lacks & feature->lacks) && (row->pass != ATTEST_FORWARD || !feature->is_backward);
        const bool is_full = row->reach->full_dims != 0 && feature->with != 0;
        cr_expect(!is_taken || is_full || seen.feature[f] || !takes_feature(row, dtype, feature),
                  "%s %s, rows %d, dtype %d: no problem has %s", pass, row->name, row->most.q, dtype, feature->name);
    }
    expect_widths(row, dtype, &seen);
    /* Problems with groups and of many CTAs are plain. */
    const bool is_plain = takes_feature(row, dtype, &problem_features[0]);
    cr_expect(row->reach->lacks & KERNEL_GROUP || seen.group || !is_plain, "%s %s, dtype %d: no group", pass,
              row->name, dtype);
    cr_expect(seen.few, "%s %s, dtype %d: no problem is one CTA's", pass, row->name, dtype);
    cr_expect(row->most.q > 128 || seen.many || !is_plain, "%s %s, dtype %d: no problem has more CTAs than SMs", pass,
              row->name, dtype);
}

Test(problems, every_row_is_counted_in_each_format_with_each_feature_and_width)
{
    size_t count;
    const struct problem_row *const rows = problem_rows(&count);
    int asked = 0;
    for (size_t n = 0; n < count; ++n)
        for (int32_t dtype = 0; dtype < FORMATS; ++dtype) {
            if (!(rows[n].reach->formats >> dtype & 1) || is_never_given(&rows[n], dtype)) continue;
            expect_row(&rows[n], dtype);
            ++asked;
        }
    cr_expect_gt(asked, 30);
}

Test(problems, have_names_of_their_own)
{
    size_t count;
    const struct counted_problem *const problems = counted_problems(&count);
    for (size_t n = 0; n < count; ++n)
        for (size_t m = 0; m < n; ++m)
            cr_expect(problems[n].of != problems[m].of || strcmp(problems[n].name, problems[m].name) != 0, "%s",
                      problems[n].name);
}

Test(problems, the_counted_gpu_has_no_more_sms_than_many_fill)
{
    const struct sim_options options = {.generation = SIM_SM_90, .seed = 1};
    struct sim_gpu *const gpu = sim_gpu_create(&options);
    cr_assert_not_null(gpu);
    cr_expect_leq(sim_num_sms(gpu), SIM_MOST_SMS);
    sim_gpu_destroy(gpu);
}

/* problems_test.c - every row of the registry is counted: in each of its formats, with each feature that it takes, of
 * several tiles, of groups of heads, and on both sides of the number of SMs. */
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
    bool feature[PROBLEM_FEATURES], group, few, many;
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
        seen.group |= s->heads_q > s->heads_kv;
        seen.few |= s->batch * s->heads_q == 1;
        seen.many |= s->batch * s->heads_q > SIM_MOST_SMS;
    }
    return seen;
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
        cr_expect(!is_taken || is_full || seen.feature[f], "%s %s, rows %d, dtype %d: no problem has %s", pass,
                  row->name, row->most.q, dtype, feature->name);
    }
    cr_expect(row->reach->lacks & KERNEL_GROUP || seen.group, "%s %s, dtype %d: no group", pass, row->name, dtype);
    cr_expect(seen.few, "%s %s, dtype %d: no problem is one CTA's", pass, row->name, dtype);
    cr_expect(row->most.q > 128 || seen.many, "%s %s, dtype %d: no problem has more CTAs than SMs", pass, row->name,
              dtype);
}

Test(problems, every_row_is_counted_in_each_format_with_each_feature)
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

/* problems.c - a list written by hand, and of each row of the registry, in each of its formats, one problem with each
 * feature that it takes, and of each width that it is compiled for. */
#include "ci/perf/problems.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "lib/plan.h"

#define EVERYTHING                                                                                               \
    (WITH_WINDOW | WITH_BIAS | WITH_ALIBI | WITH_SOFTCAP | WITH_SINK | WITH_DROPOUT | WITH_DLSE | WITH_SEQUSED | \
     WITH_MASK | WITH_DBIAS)

#define SHAPE(format, sequences, length, q, kv, dim, dim_v, with)                                                    \
    .dtype = format, .batch = sequences, .seqlen = length, .heads_q = q, .heads_kv = kv, .head_dim = dim,           \
    .head_dim_v = dim_v, .features = with

static const struct counted_problem by_hand[] = {
    {"bf16_d64_full", {SHAPE(ATTEST_BF16, 1, 384, 2, 2, 64, 64, 0)}, NULL},
    {"bf16_d64_causal", {SHAPE(ATTEST_BF16, 1, 384, 2, 2, 64, 64, WITH_CAUSAL)}, NULL},
    {"bf16_d64_causal_sm_80", {SHAPE(ATTEST_BF16, 1, 384, 2, 2, 64, 64, WITH_CAUSAL), .major = 8}, NULL},
    {"bf16_d64_window", {SHAPE(ATTEST_BF16, 1, 512, 1, 1, 64, 64, WITH_CAUSAL | WITH_WINDOW)}, NULL},
    {"bf16_d64_dropout", {SHAPE(ATTEST_BF16, 1, 256, 1, 1, 64, 64, WITH_DROPOUT)}, NULL},
    {"bf16_d64_ragged",
     {SHAPE(ATTEST_BF16, 3, 300, 2, 1, 64, 64, WITH_CAUSAL | WITH_RAGGED), .lengths = {300, 17, 130}}, NULL},
    {"bf16_d128_full", {SHAPE(ATTEST_BF16, 1, 256, 2, 2, 128, 128, 0)}, NULL},
    {"bf16_d128_causal", {SHAPE(ATTEST_BF16, 1, 256, 2, 1, 128, 128, WITH_CAUSAL)}, NULL},
    {"bf16_d256_full", {SHAPE(ATTEST_BF16, 1, 128, 1, 1, 256, 256, 0), .unpromised = true}, NULL},
    {"bf16_d256_few", {SHAPE(ATTEST_BF16, 1, 128, 1, 1, 256, 256, 0)}, NULL},
    {"bf16_d40_causal", {SHAPE(ATTEST_BF16, 1, 200, 1, 1, 40, 37, WITH_CAUSAL)}, NULL},
    {"bf16_d64_block_mask", {SHAPE(ATTEST_BF16, 1, 256, 1, 1, 64, 64, WITH_BLOCK_MASK)}, NULL},
    {"bf16_d32_short", {SHAPE(ATTEST_BF16, 2, 32, 2, 2, 32, 32, 0)}, NULL},
    {"bf16_d64_short", {SHAPE(ATTEST_BF16, 2, 64, 2, 2, 64, 64, 0)}, NULL},
    {"bf16_d64_hopper", {SHAPE(ATTEST_BF16, 1, 128, 2, 2, 64, 64, 0)}, NULL},
    {"bf16_d64_hopper_cut", {SHAPE(ATTEST_BF16, 5, 100, 2, 2, 64, 64, 0)}, NULL},
    {"bf16_d64_hopper_many", {SHAPE(ATTEST_BF16, 8, 128, 2, 2, 64, 64, 0), .unpromised = true}, NULL},
    {"bf16_d32_scaled", {SHAPE(ATTEST_BF16, 1, 128, 2, 2, 32, 32, 0)}, NULL},
    {"bf16_d32_scaled_cut", {SHAPE(ATTEST_BF16, 2, 100, 2, 2, 32, 32, 0)}, NULL},
    {"bf16_d128_hopper", {SHAPE(ATTEST_BF16, 2, 100, 2, 1, 128, 128, 0)}, NULL},
    {"bf16_d128_short", {SHAPE(ATTEST_BF16, 1, 128, 2, 1, 128, 128, WITH_CAUSAL)}, NULL},
    {"bf16_d256_short", {SHAPE(ATTEST_BF16, 1, 50, 2, 1, 256, 256, 0)}, NULL},
    {"bf16_d64_one", {SHAPE(ATTEST_BF16, 4, 1, 2, 1, 64, 64, 0)}, NULL},
    {"bf16_d64_few_of_33000", {SHAPE(ATTEST_BF16, 1, 33000, 1, 1, 64, 64, FORWARD_ONLY), .queries = 100}, NULL},
    {"bf16_d64_one_of_512", {SHAPE(ATTEST_BF16, 2, 512, 2, 1, 64, 64, 0), .queries = 1}, NULL},
    {"fp16_d256_one_of_200", {SHAPE(ATTEST_FP16, 2, 200, 2, 1, 256, 256, 0), .queries = 1}, NULL},
    {"fp16_d64_full", {SHAPE(ATTEST_FP16, 1, 256, 1, 1, 64, 64, 0)}, NULL},
    {"fp16_d128_everything", {SHAPE(ATTEST_FP16, 1, 200, 4, 2, 128, 128, EVERYTHING)}, NULL},
    {"fp32_d64_full", {SHAPE(ATTEST_FP32, 1, 192, 1, 1, 64, 64, 0)}, NULL},
    {"fp32_d64_causal", {SHAPE(ATTEST_FP32, 1, 192, 2, 1, 64, 64, WITH_CAUSAL)}, NULL},
    {"fp32_d128_everything", {SHAPE(ATTEST_FP32, 1, 100, 2, 1, 128, 128, EVERYTHING)}, NULL},
};
enum { NUM_BY_HAND = sizeof by_hand / sizeof *by_hand };

const struct problem_feature problem_features[PROBLEM_FEATURES] = {
    {"full", 0, 0, false},
    {"causal", KERNEL_WINDOW, WITH_CAUSAL, false},
    {"window", KERNEL_WINDOW, WITH_WINDOW, false},
    {"mask", KERNEL_MASK, WITH_MASK, false},
    {"block_mask", KERNEL_BLOCK_MASK, WITH_BLOCK_MASK, false},
    {"bias", KERNEL_BIAS, WITH_BIAS, false},
    {"alibi", KERNEL_ALIBI, WITH_ALIBI, false},
    {"softcap", KERNEL_SOFTCAP, WITH_SOFTCAP, false},
    {"sink", KERNEL_SINK, WITH_SINK, false},
    {"dropout", KERNEL_DROPOUT, WITH_DROPOUT, false},
    {"seqused", 0, WITH_SEQUSED, false},
    {"dlse", KERNEL_DLSE, WITH_DLSE, true},
    {"dbias", KERNEL_BIAS | KERNEL_DBIAS, WITH_BIAS | WITH_DBIAS, true},
    {"delta", KERNEL_DELTA, WITH_DELTA, true},
    {"external_lse", KERNEL_DELTA | KERNEL_EXTERNAL_LSE, WITH_EXTERNAL_LSE, true},
};

const int64_t problem_widths[PROBLEM_WIDTHS] = {32, 64, 128, 256};

/* ---- rows ------------------------------------------------------------------------------------------------------- */

const struct problem_row *problem_rows(size_t *count)
{
    static struct problem_row rows[PROBLEM_MOST_ROWS];
    size_t n = 0;
    for (const struct forward_kernel *k = forward_kernels; k->name != NULL && n < PROBLEM_MOST_ROWS; ++k)
        rows[n++] = (struct problem_row){ATTEST_FORWARD, k, k->name, &k->reach, k->most};
    for (const struct backward_kernel *k = backward_kernels; k->name != NULL && n < PROBLEM_MOST_ROWS; ++k)
        rows[n++] = (struct problem_row){ATTEST_BACKWARD, k, k->name, &k->reach, k->most};
    if (n == PROBLEM_MOST_ROWS) abort();
    *count = n;
    return rows;
}

bool problem_is_of(const struct sample_shape *shape, const struct problem_row *row)
{
    struct sample c;
    bool found = false;
    if (!sample_plan(&c, &machine_of_host, shape)) return false;
    const struct attest_pass_plan *const pass =
        row->pass == ATTEST_FORWARD ? &c.plan->forward_pass : &c.plan->backward_pass;
    for (int n = 0; n < pass->num_shares; ++n)
        found |= row->row == (row->pass == ATTEST_FORWARD ? (const void *)c.plan->forward[n] : c.plan->backward[n]);
    attest_plan_destroy(c.plan);
    return found;
}

/* ---- a problem for a row ---------------------------------------------------------------------------------------- */

/* Several tiles of rows and keys of the kernels that take any number of them, and of one query several warps' keys. */
enum { LONG = 136 };

static int64_t width_of(const struct kernel_reach *reach)
{
    if (reach->full_dims != 0) return reach->full_dims & -reach->full_dims;
    if (reach->most_dim != 0 && reach->most_dim < 64) return reach->most_dim;
    return reach->least_dim > 128 ? 256 : reach->least_dim > 64 ? 128 : 64;
}

static struct sample_shape shape_of(const struct problem_row *row, int32_t dtype)
{
    const int64_t most_q = row->most.q < LONG ? row->most.q : LONG, most_k = row->most.k < LONG ? row->most.k : LONG;
    const int64_t dim = width_of(row->reach);
    return (struct sample_shape){.dtype = dtype, .batch = 1, .seqlen = most_k, .queries = most_q < most_k ? most_q : 0,
                                 .heads_q = 1, .heads_kv = 1, .head_dim = dim, .head_dim_v = dim,
                                 .features = row->pass == ATTEST_FORWARD ? FORWARD_ONLY : 0};
}

/* Promised alignment and the GPU's generation decide between rows. */
static bool is_made_for(const struct problem_row *row, struct sample_shape *shape)
{
    for (int n = 0; n < 4; ++n) {
        shape->unpromised = n % 2 == 1, shape->major = n / 2 == 0 ? 9 : 8;
        if (problem_is_of(shape, row)) return true;
    }
    return false;
}

static struct counted_problem problems[2048];
static size_t num_problems;

static void add(const struct problem_row *row, struct sample_shape shape, const char *feature)
{
    static const char *const formats[] = {[ATTEST_FP32] = "fp32", [ATTEST_FP16] = "fp16", [ATTEST_BF16] = "bf16"};
    if (!is_made_for(row, &shape)) return;
    struct counted_problem *const p = &problems[num_problems++];
    if (num_problems == sizeof problems / sizeof *problems) abort();
    p->shape = shape, p->of = row;
    snprintf(p->name, sizeof p->name, "%s_%lldx%lld_d%lld_%s", formats[shape.dtype],
             (long long)(shape.queries != 0 ? shape.queries : shape.seqlen), (long long)shape.seqlen,
             (long long)shape.head_dim, feature);
}

/* As many CTAs as a simulated GPU of up to four SMs has in several turns. */
static void add_many(const struct problem_row *row, const struct sample_shape *plain)
{
    struct sample_shape many = *plain;
    many.batch = 5, many.heads_q = many.heads_kv = 2;
    if (row->most.q < LONG) add(row, many, "many");
}

/* Heads of a group; sequences of their own lengths. */
static void add_batches(const struct problem_row *row, const struct sample_shape *plain)
{
    struct sample_shape group = *plain, ragged = *plain;
    group.heads_q = 4, group.heads_kv = 2;
    if (!(row->reach->lacks & KERNEL_GROUP)) add(row, group, "group");
    add_many(row, plain);
    ragged.batch = 3, ragged.features |= WITH_RAGGED;
    ragged.lengths[0] = ragged.seqlen, ragged.lengths[1] = 17, ragged.lengths[2] = ragged.seqlen / 2;
    if (row->reach->full_dims == 0) add(row, ragged, "ragged");
}

/* Each width has code of its own; alone, and of more CTAs than SMs. */
static void add_widths(const struct problem_row *row, const struct sample_shape *plain)
{
    for (int n = 0; n < PROBLEM_WIDTHS; ++n) {
        struct sample_shape full = *plain;
        full.head_dim = full.head_dim_v = problem_widths[n];
        if (full.head_dim == plain->head_dim) continue;
        add(row, full, "full");
        add_many(row, &full);
    }
}

static void add_row(const struct problem_row *row)
{
    for (int32_t dtype = 0; dtype < 32; ++dtype) {
        if (!(row->reach->formats >> dtype & 1)) continue;
        const struct sample_shape plain = shape_of(row, dtype);
        for (int f = 0; f < PROBLEM_FEATURES; ++f) {
            const struct problem_feature *const feature = &problem_features[f];
            struct sample_shape shape = plain;
            shape.features |= feature->with;
            if (row->reach->lacks & feature->lacks || (feature->is_backward && row->pass == ATTEST_FORWARD)) continue;
            add(row, shape, feature->name);
        }
        add_batches(row, &plain);
        add_widths(row, &plain);
    }
}

const struct counted_problem *counted_problems(size_t *count)
{
    if (num_problems == 0) {
        size_t num_rows;
        const struct problem_row *const rows = problem_rows(&num_rows);
        memcpy(problems, by_hand, sizeof by_hand), num_problems = NUM_BY_HAND;
        for (size_t n = 0; n < num_rows; ++n) add_row(&rows[n]);
    }
    *count = num_problems;
    return problems;
}

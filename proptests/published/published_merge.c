/* published_merge.c - blocks of keys merged two by two: outputs, maxima and denominators as published, and states. */
#include <math.h>
#include <string.h>

#include "proptests/published/published_tensors.h"
#include "reference/bounds.h"
#include "reference/oracle.h"

/* Scores are plain dot products, as published: at head_dim 64 one key has most of the weight. */
enum { QUERIES = 384, KEYS = 1920, DIM = 64, BLOCKS = 3, BLOCK = KEYS / BLOCKS, FEATURES = QUERIES * DIM };

/* The three results for a block: denominators are sums of e^(score - maximum), outputs are divided by them. */
struct block {
    float outputs[FEATURES], maxima[QUERIES], denominators[QUERIES];
};

/* The same as a state, with bounds of how far it is from the true one. */
struct merged {
    float o[FEATURES], lse[QUERIES];
    double o_bound[FEATURES], lse_bound[QUERIES];
};

struct inputs {
    const float *q, *k, *v;
};

/* One row in double, rounded to fp32 at the end. */
static void attend(const struct inputs *in, int64_t i, int64_t first, struct block *block)
{
    double scores[BLOCK], max = -INFINITY, sum = 0, o[DIM] = {0};
    for (int64_t j = 0; j < BLOCK; ++j) {
        scores[j] = 0;
        for (int64_t x = 0; x < DIM; ++x)
            scores[j] += (double)in->q[i * DIM + x] * (double)in->k[(first + j) * DIM + x];
        max = fmax(max, scores[j]);
    }
    max = (double)(float)max; /* e^(score - maximum) is of the maximum that is kept */
    for (int64_t j = 0; j < BLOCK; ++j) {
        const double weight = exp(scores[j] - max);
        sum += weight;
        for (int64_t x = 0; x < DIM; ++x) o[x] += weight * (double)in->v[(first + j) * DIM + x];
    }
    block->maxima[i] = (float)max, block->denominators[i] = (float)sum;
    for (int64_t x = 0; x < DIM; ++x) block->outputs[i * DIM + x] = (float)(o[x] / sum);
}

/* The published formula in fp32: a becomes the union of a and b. */
static void merge_as_published(struct block *a, const struct block *b)
{
    for (int i = 0; i < QUERIES; ++i) {
        const float new_max = fmaxf(a->maxima[i], b->maxima[i]);
        const float sum_a = a->denominators[i] * expf(a->maxima[i] - new_max);
        const float sum_b = b->denominators[i] * expf(b->maxima[i] - new_max), new_sum = sum_a + sum_b;
        for (int x = i * DIM; x < (i + 1) * DIM; ++x)
            a->outputs[x] = a->outputs[x] * (sum_a / new_sum) + b->outputs[x] * (sum_b / new_sum);
        a->maxima[i] = new_max, a->denominators[i] = new_sum;
    }
}

/* lse = maximum + ln(denominator). Outputs, denominators and lse are rounded to fp32, by 2^-24 of their size; so much
 * moves a logarithm. 2^-40 is more than the rest: sums of 640 doubles. */
static void state_of_block(const struct block *block, struct merged *state)
{
    for (int i = 0; i < QUERIES; ++i) {
        const double lse = (double)block->maxima[i] + log((double)block->denominators[i]);
        state->lse[i] = (float)lse;
        state->lse_bound[i] = (1 + fabs(lse)) * (0x1p-24 + 0x1p-40);
    }
    for (int x = 0; x < FEATURES; ++x) {
        state->o[x] = block->outputs[x];
        state->o_bound[x] = fabs((double)block->outputs[x]) * 0x1p-24 + 0x1p-40;
    }
}

static double *widen(struct memory *m, const float *values, int64_t count)
{
    double *out = new_doubles(m, count);
    for (int64_t i = 0; i < count; ++i) out[i] = (double)values[i];
    return out;
}

/* fp32 numbers on the machine. */
static float *send(struct memory *m, const float *values, int64_t count)
{
    struct tensor *t = new_tensor(m, ATTEST_FP32, count);
    for (int64_t i = 0; i < count; ++i) ((float *)t->host)[i] = values[i];
    to_machine(m, t);
    return t->there;
}

static void receive(struct memory *m, const struct tensor *t, float *values)
{
    to_host(m, t);
    for (int64_t i = 0; i < t->count; ++i) values[i] = ((const float *)t->host)[i];
}

/* What a union of a and b may be off by: what they are, and their merge. */
static bool bound_union(struct memory *m, const struct merged *a, const struct merged *b, double *o_bound,
                        double *lse_bound)
{
    const double *const o[] = {widen(m, a->o, FEATURES), widen(m, b->o, FEATURES)};
    const double *const lse[] = {widen(m, a->lse, QUERIES), widen(m, b->lse, QUERIES)};
    const double *const o_bounds[] = {a->o_bound, b->o_bound}, *const lse_bounds[] = {a->lse_bound, b->lse_bound};
    double *const own_o = new_doubles(m, FEATURES), *const own_lse = new_doubles(m, QUERIES);
    if (ref_bound_merge(2, QUERIES, DIM, o, lse, ref_kernel_recipe("merge"), ATTEST_FP32, own_o, own_lse) != ATTEST_OK)
        return false;
    ref_bound_parts(2, QUERIES, DIM, o, lse, o_bounds, lse_bounds, o_bound, lse_bound);
    for (int x = 0; x < FEATURES; ++x) o_bound[x] += own_o[x];
    for (int i = 0; i < QUERIES; ++i) lse_bound[i] += own_lse[i];
    return true;
}

/* a becomes the union of a and b, merged on the machine. */
static bool merge_states(struct memory *m, struct merged *a, const struct merged *b, FILE *out)
{
    struct attest_merge_args args = ATTEST_MERGE_ARGS_INIT;
    const float *const o[] = {send(m, a->o, FEATURES), send(m, b->o, FEATURES)};
    const float *const lse[] = {send(m, a->lse, QUERIES), send(m, b->lse, QUERIES)};
    const struct tensor *const new_o = new_tensor(m, ATTEST_FP32, FEATURES);
    const struct tensor *const new_lse = new_tensor(m, ATTEST_FP32, QUERIES);
    double *const o_bound = new_doubles(m, FEATURES), *const lse_bound = new_doubles(m, QUERIES);
    args.device = m->machine->device, args.num_states = 2, args.rows = QUERIES, args.head_dim_v = DIM;
    args.o_states = o, args.lse_states = lse, args.o = new_o->there, args.lse = new_lse->there;
    if (attest_merge_states(&args, NULL) != ATTEST_OK) return !state(out, false, "%s", attest_last_error());
    if (!bound_union(m, a, b, o_bound, lse_bound)) return !state(out, false, "no memory");
    receive(m, new_o, a->o), receive(m, new_lse, a->lse);
    memcpy(a->o_bound, o_bound, sizeof a->o_bound), memcpy(a->lse_bound, lse_bound, sizeof a->lse_bound);
    return true;
}

static bool find_truth(struct memory *m, const struct inputs *in, double *o, double *lse)
{
    struct attest_problem p = packed_problem(m->machine, QUERIES, KEYS, 1, DIM);
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    const struct ref_forward truth = {o, lse};
    p.q.dtype = p.k.dtype = p.v.dtype = p.o.dtype = ATTEST_FP32;
    p.softmax_scale = 1;
    a.q = in->q, a.k = in->k, a.v = in->v;
    return ref_forward(&p, &a, &truth, 0) == ATTEST_OK;
}

/* What is left of both after `count` blocks, against the oracle with all of their keys. */
static int judge(struct memory *m, const struct inputs *in, const struct block *published, const struct merged *ours,
                 FILE *out)
{
    struct figures theirs_o = {0}, theirs_lse = {0}, o = {0}, lse = {0};
    double *const want_o = new_doubles(m, FEATURES), *const want_lse = new_doubles(m, QUERIES);
    if (!find_truth(m, in, want_o, want_lse)) return state(out, false, "no memory");
    for (int x = 0; x < FEATURES; ++x) {
        compare(&theirs_o, (double)published->outputs[x], want_o[x], INFINITY);
        compare(&o, (double)ours->o[x], want_o[x], ours->o_bound[x]);
    }
    for (int i = 0; i < QUERIES; ++i) {
        const double published_lse = (double)published->maxima[i] + log((double)published->denominators[i]);
        compare(&theirs_lse, published_lse, want_lse[i], INFINITY);
        compare(&lse, (double)ours->lse[i], want_lse[i], ours->lse_bound[i]);
    }
    fprintf(out, "    published formula, fp32: max / mean error of outputs %.1e / %.1e, of lse %.1e / %.1e\n",
            theirs_o.max, mean_of(&theirs_o), theirs_lse.max, mean_of(&theirs_lse));
    return state(out, o.use <= 1 && lse.use <= 1,
                 "    states, merge:           max / mean error of outputs %.1e / %.1e, of lse %.1e / %.1e; "
                 "share of the bounds: o %.3f, lse %.3f",
                 o.max, mean_of(&o), lse.max, mean_of(&lse), o.use, lse.use);
}

int published_merge(const struct machine *machine, FILE *out)
{
    static struct memory m;
    static struct block blocks[BLOCKS];
    static struct merged states[BLOCKS];
    int broken = 0;
    m.machine = machine;
    const struct inputs in = {new_normal(&m, ATTEST_FP32, ROLE_Q, QUERIES, 1, DIM)->host,
                              new_normal(&m, ATTEST_FP32, ROLE_K, KEYS, 1, DIM)->host,
                              new_normal(&m, ATTEST_FP32, ROLE_V, KEYS, 1, DIM)->host};
    fprintf(out, "merge: %d queries, %d blocks of %d keys, head_dim %d\n", QUERIES, BLOCKS, BLOCK, DIM);
    for (int b = 0; b < BLOCKS; ++b) {
        for (int64_t i = 0; i < QUERIES; ++i) attend(&in, i, b * BLOCK, &blocks[b]);
        state_of_block(&blocks[b], &states[b]);
        if (b == 0) continue;
        merge_as_published(&blocks[0], &blocks[b]);
        broken += !merge_states(&m, &states[0], &states[b], out);
    }
    broken += judge(&m, &in, &blocks[0], &states[0], out);
    free_memory(&m, 0);
    return broken;
}

/* published_chunks.c - forward and backward by blocks of keys: states merged, gradients under the lse and delta of all
 * keys. */
#include <inttypes.h>
#include <math.h>

#include "proptests/published/published_tensors.h"
#include "reference/bounds.h"
#include "reference/formats.h"
#include "reference/oracle.h"

const struct published_chunks published_head_dim_64 = {1920, 64, 384, {5e-4, 1.1e-5}, {2e-4, 4.3e-6}};
/* One pair is published at head_dim 128, not of which pass. Its mean is less than what 16-bit weights, theirs too, do
 * to o of N(0, 1) inputs: it is held against the gradients. */
const struct published_chunks published_head_dim_128 = {2048, 128, 128, {8e-4, 0}, {8e-4, 3.8e-6}};

/* dout = 2 (o - labels) / LOSS_BATCH, labels N(0, 1): the loss of the test of the code that the published one was made
 * of. Its batch is not published; 4 sequences of 16 heads fit into the published memory. */
enum { LOSS_BATCH = 4 };

enum { MAX_BLOCKS = 16, NUM_GRADIENTS = 3 };

/* What one check works on: tensors of the whole, and of each block. */
struct chunks {
    const struct published_chunks *size;
    struct memory memory;
    FILE *out;
    int64_t heads, rows, row, num_blocks, block_elements, elements; /* row: elements of a row of all heads */
    struct tensor *q, *k, *v, *dout, *o, *lse, *delta;
    struct tensor *o_states[MAX_BLOCKS], *lse_states[MAX_BLOCKS], *dq_parts[MAX_BLOCKS];
    struct tensor *dk, *dv;
    double *true_o, *true_lse, *true_gradients[NUM_GRADIENTS];
    struct attest_problem whole, part;
};

static void begin(struct chunks *c, const struct machine *machine)
{
    struct memory *m = &c->memory;
    const int64_t n = c->size->seqlen, d = c->size->head_dim;
    m->machine = machine;
    c->rows = n * c->heads, c->row = c->heads * d, c->elements = n * c->row;
    c->num_blocks = n / c->size->block, c->block_elements = c->size->block * c->row;
    c->whole = packed_problem(machine, n, n, c->heads, d);
    c->part = packed_problem(machine, n, c->size->block, c->heads, d);
    c->part.o.dtype = ATTEST_FP32;
    c->q = new_normal(m, ATTEST_FP16, ROLE_Q, n, c->heads, d);
    c->k = new_normal(m, ATTEST_FP16, ROLE_K, n, c->heads, d);
    c->v = new_normal(m, ATTEST_FP16, ROLE_V, n, c->heads, d);
    c->dout = new_normal(m, ATTEST_FP16, ROLE_DOUT, n, c->heads, d);
    c->o = new_tensor(m, ATTEST_FP32, c->elements);
    c->lse = new_tensor(m, ATTEST_FP32, c->rows);
    c->delta = new_tensor(m, ATTEST_FP32, c->rows);
    c->dk = new_tensor(m, ATTEST_FP16, c->elements);
    c->dv = new_tensor(m, ATTEST_FP16, c->elements);
    c->true_o = new_doubles(m, c->elements), c->true_lse = new_doubles(m, c->rows);
    for (int g = 0; g < NUM_GRADIENTS; ++g) c->true_gradients[g] = new_doubles(m, c->elements);
    for (int64_t b = 0; b < c->num_blocks; ++b) {
        c->o_states[b] = new_tensor(m, ATTEST_FP32, c->elements);
        c->lse_states[b] = new_tensor(m, ATTEST_FP32, c->rows);
        c->dq_parts[b] = new_tensor(m, ATTEST_FP32, c->elements);
    }
}

/* ---- forward ---- */

/* Of block b, or of all keys: -1. */
static struct attest_forward_args forward_args(const struct chunks *c, int64_t b, place *at)
{
    struct attest_forward_args a = ATTEST_FORWARD_ARGS_INIT;
    const int64_t first = b < 0 ? 0 : b * c->block_elements;
    a.q = at(c->q, 0), a.k = at(c->k, first), a.v = at(c->v, first);
    a.o = b < 0 ? at(c->o, 0) : at(c->o_states[b], 0);
    a.lse = b < 0 ? at(c->lse, 0) : at(c->lse_states[b], 0);
    return a;
}

static bool run_blocks(struct chunks *c)
{
    struct attest_merge_args a = ATTEST_MERGE_ARGS_INIT;
    const float *o[MAX_BLOCKS], *lse[MAX_BLOCKS];
    for (int64_t b = 0; b < c->num_blocks; ++b) {
        const struct attest_backward_args args = {.forward = forward_args(c, b, there_at)};
        if (!run(&c->memory, &c->part, &args, false, c->out)) return false;
        o[b] = there_at(c->o_states[b], 0), lse[b] = there_at(c->lse_states[b], 0);
        to_host(&c->memory, c->o_states[b]), to_host(&c->memory, c->lse_states[b]);
    }
    a.device = c->memory.machine->device;
    a.num_states = c->num_blocks, a.rows = c->rows, a.head_dim_v = c->size->head_dim;
    a.o_states = o, a.lse_states = lse, a.o = there_at(c->o, 0), a.lse = there_at(c->lse, 0);
    if (attest_merge_states(&a, NULL) != ATTEST_OK) return !state(c->out, false, "%s", attest_last_error());
    to_host(&c->memory, c->o), to_host(&c->memory, c->lse);
    return true;
}

/* The kernel that a plan picks, and where it rounds. NULL where there is no plan. */
static const struct attest_recipe *recipe_of(const struct attest_problem *p, enum attest_pass pass)
{
    struct attest_plan *plan;
    if (attest_plan_create(p, &plan) != ATTEST_OK) return NULL;
    const struct attest_recipe *const recipe = attest_plan_share(plan, pass, 0)->recipe; /* there is one length */
    attest_plan_destroy(plan);
    return recipe;
}

static double *doubles_of(struct chunks *c, const struct tensor *t)
{
    double *out = new_doubles(&c->memory, t->count);
    ref_load_row(t->dtype, t->host, 0, t->count, out);
    return out;
}

/* Bounds of merged o and lse against the whole: of each block's state, of what the union inherits, of the merge. */
static bool bound_merged(struct chunks *c, const struct attest_recipe *recipe, double *o_bound, double *lse_bound)
{
    double *o[MAX_BLOCKS], *lse[MAX_BLOCKS], *o_bounds[MAX_BLOCKS], *lse_bounds[MAX_BLOCKS];
    double *merge_o = new_doubles(&c->memory, c->elements), *merge_lse = new_doubles(&c->memory, c->rows);
    const int64_t d = c->size->head_dim;
    for (int64_t b = 0; b < c->num_blocks; ++b) {
        const struct attest_forward_args a = forward_args(c, b, host_at);
        o[b] = doubles_of(c, c->o_states[b]), lse[b] = doubles_of(c, c->lse_states[b]);
        o_bounds[b] = new_doubles(&c->memory, c->elements), lse_bounds[b] = new_doubles(&c->memory, c->rows);
        const struct ref_bound of_o = {.bound = o_bounds[b]}, of_lse = {.bound = lse_bounds[b]};
        if (ref_bound_forward(&c->part, &a, recipe, &of_o, &of_lse, 0) != ATTEST_OK) return false;
    }
    const double *const *os = (const double *const *)o, *const *lses = (const double *const *)lse;
    ref_bound_parts(c->num_blocks, c->rows, d, os, lses, (const double *const *)o_bounds,
                    (const double *const *)lse_bounds, o_bound, lse_bound);
    if (ref_bound_merge(c->num_blocks, c->rows, d, os, lses, ref_kernel_recipe("merge"), ATTEST_FP32, merge_o,
                        merge_lse) != ATTEST_OK)
        return false;
    for (int64_t i = 0; i < c->elements; ++i) o_bound[i] += merge_o[i];
    for (int64_t i = 0; i < c->rows; ++i) lse_bound[i] += merge_lse[i];
    return true;
}

/* Both in fp16, as the published results and their reference were. */
static void compare_in_fp16(struct figures *f, double got, double want)
{
    compare(f, ref_round(ATTEST_FP16, got), ref_round(ATTEST_FP16, want), INFINITY);
}

static int judge_errors(struct chunks *c, const char *pass, const struct figures *f,
                        const struct published_errors *published)
{
    const double mean = mean_of(f);
    const bool max_holds = f->max <= published->max;
    fprintf(c->out, "    %-8s max error %.1e, published %.1e; mean error %.1e, ", pass, f->max, published->max, mean);
    if (published->mean == 0) return state(c->out, max_holds, "none published");
    return state(c->out, max_holds && mean <= published->mean, "published %.1e", published->mean);
}

static int judge_forward(struct chunks *c)
{
    struct figures o = {0}, lse = {0}, errors = {0};
    const struct attest_recipe *recipe = recipe_of(&c->part, ATTEST_FORWARD);
    double *o_bound = new_doubles(&c->memory, c->elements), *lse_bound = new_doubles(&c->memory, c->rows);
    if (recipe == NULL || !bound_merged(c, recipe, o_bound, lse_bound)) return state(c->out, false, "no bound");
    for (int64_t i = 0; i < c->elements; ++i) {
        const double got = ((const float *)c->o->host)[i];
        compare(&o, got, c->true_o[i], o_bound[i]);
        compare_in_fp16(&errors, got, c->true_o[i]);
    }
    for (int64_t i = 0; i < c->rows; ++i)
        compare(&lse, (double)((const float *)c->lse->host)[i], c->true_lse[i], lse_bound[i]);
    return state(c->out, o.use <= 1 && lse.use <= 1, "    %s, merge: share of the bounds: o %.3f, lse %.3f", recipe->name,
                 o.use, lse.use) +
           judge_errors(c, "forward", &errors, &c->size->forward);
}

/* ---- backward ---- */

/* dout of the loss, delta of the merged o. */
static void differentiate_loss(struct chunks *c)
{
    const int64_t d = c->size->head_dim;
    for (int64_t i = 0; i < c->elements; ++i) {
        const double label = ref_load(ATTEST_FP16, c->dout->host, i), o = ((const float *)c->o->host)[i];
        ref_store(ATTEST_FP16, c->dout->host, i, 2 * (o - label) / LOSS_BATCH);
    }
    for (int64_t row = 0; row < c->rows; ++row) {
        double delta = 0;
        for (int64_t x = row * d; x < (row + 1) * d; ++x)
            delta += ref_load(ATTEST_FP16, c->dout->host, x) * (double)((const float *)c->o->host)[x];
        ((float *)c->delta->host)[row] = (float)delta;
    }
    to_machine(&c->memory, c->dout), to_machine(&c->memory, c->delta);
}

static struct attest_backward_args backward_args(const struct chunks *c, int64_t b, place *at)
{
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    a.forward = forward_args(c, b, at);
    a.forward.o = NULL, a.forward.lse = at(c->lse, 0);
    a.dout = at(c->dout, 0), a.delta = at(c->delta, 0);
    a.dq = at(c->dq_parts[b], 0), a.dk = at(c->dk, b * c->block_elements), a.dv = at(c->dv, b * c->block_elements);
    return a;
}

static struct attest_problem backward_problem(const struct chunks *c)
{
    struct attest_problem p = c->part;
    p.o = (struct attest_tensor){0};
    p.dout = p.q, p.delta = p.lse, p.external_lse = 1;
    p.dq = p.q, p.dk = p.k, p.dv = p.v;
    p.dq.dtype = ATTEST_FP32;
    return p;
}

/* One block's gradients against the oracle's with the same lse and delta; to the shares of dq, dk, dv. */
static bool judge_block(struct chunks *c, const struct attest_problem *p, const struct attest_recipe *recipe, int64_t b,
                        struct figures shares[NUM_GRADIENTS])
{
    const struct attest_backward_args a = backward_args(c, b, host_at);
    const int64_t counts[NUM_GRADIENTS] = {c->elements, c->block_elements, c->block_elements};
    const int32_t dtypes[NUM_GRADIENTS] = {p->dq.dtype, p->dk.dtype, p->dv.dtype};
    const void *const got[NUM_GRADIENTS] = {a.dq, a.dk, a.dv};
    double *want[NUM_GRADIENTS];
    struct ref_bound bounds[REF_NUM_TENSORS] = {0};
    const int kept = c->memory.num_tensors;
    for (int g = 0; g < NUM_GRADIENTS; ++g) {
        want[g] = new_doubles(&c->memory, counts[g]);
        bounds[REF_DQ + g].bound = new_doubles(&c->memory, counts[g]);
    }
    const struct ref_backward out = {.dq = want[0], .dk = want[1], .dv = want[2]};
    if (ref_backward(p, &a, NULL, &out, 0) != ATTEST_OK) return false;
    if (ref_bound_backward(p, &a, recipe, bounds, 0) != ATTEST_OK) return false;
    for (int g = 0; g < NUM_GRADIENTS; ++g)
        for (int64_t i = 0; i < counts[g]; ++i)
            compare(&shares[g], ref_load(dtypes[g], got[g], i), want[g][i], bounds[REF_DQ + g].bound[i]);
    free_memory(&c->memory, kept);
    return true;
}

static int judge_backward(struct chunks *c)
{
    const struct attest_problem p = backward_problem(c);
    struct figures shares[NUM_GRADIENTS] = {0}, errors = {0};
    const struct attest_recipe *recipe = recipe_of(&p, ATTEST_BACKWARD);
    for (int64_t b = 0; b < c->num_blocks; ++b) {
        const struct attest_backward_args a = backward_args(c, b, there_at);
        if (!run(&c->memory, &p, &a, true, c->out)) return 1;
        to_host(&c->memory, c->dq_parts[b]);
    }
    to_host(&c->memory, c->dk), to_host(&c->memory, c->dv);
    for (int64_t b = 0; b < c->num_blocks; ++b)
        if (recipe == NULL || !judge_block(c, &p, recipe, b, shares)) return state(c->out, false, "no bound");
    for (int64_t i = 0; i < c->elements; ++i) {
        float dq = 0;
        for (int64_t b = 0; b < c->num_blocks; ++b) dq += ((const float *)c->dq_parts[b]->host)[i];
        compare_in_fp16(&errors, (double)dq, c->true_gradients[0][i]);
        compare_in_fp16(&errors, ref_load(ATTEST_FP16, c->dk->host, i), c->true_gradients[1][i]);
        compare_in_fp16(&errors, ref_load(ATTEST_FP16, c->dv->host, i), c->true_gradients[2][i]);
    }
    return state(c->out, shares[0].use <= 1 && shares[1].use <= 1 && shares[2].use <= 1,
                 "    %s: share of the bounds: dq %.3f, dk %.3f, dv %.3f", recipe->name, shares[0].use, shares[1].use,
                 shares[2].use) +
           judge_errors(c, "backward", &errors, &c->size->backward);
}

/* ---- both ---- */

static bool find_truth(struct chunks *c)
{
    struct attest_problem p = c->whole;
    const struct ref_forward forward = {c->true_o, c->true_lse};
    const struct ref_backward backward = {
        .dq = c->true_gradients[0], .dk = c->true_gradients[1], .dv = c->true_gradients[2]};
    struct attest_backward_args a = ATTEST_BACKWARD_ARGS_INIT;
    a.forward = forward_args(c, -1, host_at), a.dout = host_at(c->dout, 0);
    p.dout = p.dq = p.q, p.dk = p.dv = p.k;
    return ref_forward(&c->whole, &a.forward, &forward, 0) == ATTEST_OK &&
           ref_backward(&p, &a, NULL, &backward, 0) == ATTEST_OK;
}

int published_chunks(const struct machine *machine, const struct published_chunks *size, int64_t heads, FILE *out)
{
    static struct chunks c;
    int broken = 1;
    c = (struct chunks){.size = size, .heads = heads, .out = out};
    begin(&c, machine);
    fprintf(out, "chunks: seqlen %" PRId64 ", head_dim %" PRId64 ", blocks of %" PRId64 " keys, %" PRId64 " heads\n",
            size->seqlen, size->head_dim, size->block, heads);
    if (run_blocks(&c)) {
        differentiate_loss(&c);
        broken = find_truth(&c) ? judge_forward(&c) + judge_backward(&c) : state(out, false, "no memory");
    }
    free_memory(&c.memory, 0);
    return broken;
}

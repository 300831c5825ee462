/* power_judge.c - see power_judge.h. */
#include "reference/power_judge.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reference/oracle.h"

static int64_t size_of(const struct power_case *c, enum ref_tensor t)
{
    const int64_t features = t == REF_LSE ? 1 : c->dim;
    return (t >= REF_DK ? c->keys : c->rows) * c->heads * features;
}

static void *allocate(int64_t count, size_t bytes)
{
    void *memory = calloc((size_t)count + 1, bytes);
    if (!memory) abort();
    return memory;
}

void power_judge_init(struct power_judge *j, const struct power_case *kernel, const struct attest_recipe *recipe)
{
    struct power_case *const c = &j->kernel;
    memset(j, 0, sizeof *j);
    *c = *kernel;
    j->recipe = recipe;
    power_init(c);
    for (int t = REF_O; t <= REF_DV; ++t) {
        const int64_t size = size_of(c, (enum ref_tensor)t);
        j->oracle[t] = allocate(size, sizeof(double));
        struct ref_bound *const b = &j->bounds[t];
        double **const arrays[] = {&b->bound, &b->sigma, &b->bias, &b->shift, &b->beside,
                                   &b->optional, &b->drift[0], &b->drift[1]};
        for (int i = 0; i < 8; ++i) *arrays[i] = allocate(size, sizeof(double));
        if (t == REF_O) j->bounds[t].phases = allocate(REF_WAYS * size / c->dim, sizeof(double));
        if (t == REF_O || t == REF_DQ) j->bounds[t].along = allocate(size / c->dim, sizeof(double));
    }
    const struct ref_forward forward = {j->oracle[REF_O], j->oracle[REF_LSE]};
    const struct ref_backward backward = {.dq = j->oracle[REF_DQ], .dk = j->oracle[REF_DK], .dv = j->oracle[REF_DV]};
    c->fault = POWER_HONEST;
    power_run(c);
    if (ref_forward(&c->problem, &c->args.forward, &forward, 0) != ATTEST_OK ||
        ref_backward(&c->problem, &c->args, NULL, &backward, 0) != ATTEST_OK ||
        ref_bound_forward(&c->problem, &c->args.forward, recipe, &j->bounds[REF_O], &j->bounds[REF_LSE], 0) !=
            ATTEST_OK ||
        ref_bound_backward(&c->problem, &c->args, recipe, j->bounds, 0) != ATTEST_OK)
        abort();
}

void power_judge_clear(struct power_judge *j)
{
    power_clear(&j->kernel);
    for (int t = REF_O; t <= REF_DV; ++t) {
        free(j->oracle[t]);
        free(j->bounds[t].bound), free(j->bounds[t].sigma), free(j->bounds[t].bias), free(j->bounds[t].shift);
        free(j->bounds[t].along), free(j->bounds[t].phases);
        free(j->bounds[t].beside), free(j->bounds[t].optional);
        free(j->bounds[t].drift[0]), free(j->bounds[t].drift[1]);
    }
}

double power_judge_fault(struct power_judge *j, enum power_fault fault, double size, enum ref_tensor tensor,
                         struct ref_report *r)
{
    struct power_case *const c = &j->kernel;
    c->fault = fault, c->size = size;
    power_run(c);
    const void *const got[] = {c->packed[4], c->packed[5], c->packed[6], c->packed[7], c->packed[8]};
    ref_judge(&c->problem, &c->args.forward, tensor, got[tensor], j->oracle[tensor], &j->bounds[tensor], 1, r);
    if (ref_judge_tiles(&c->problem, &c->args, j->recipe, tensor, got[tensor], j->oracle[tensor], &j->bounds[tensor], 0,
                        r))
        abort();
    return fmax(fmax(r->use, r->rms_ratio), fmax(r->mean_ratio, r->direction_ratio));
}

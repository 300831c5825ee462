/* published_tensors.c - see published_tensors.h. */
#include "proptests/published/published_tensors.h"

#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "reference/formats.h"

enum { POISON = 0xff };

static void give_up(const char *why)
{
    fprintf(stderr, "%s\n", why);
    abort();
}

static struct tensor *allocate(struct memory *m, int32_t dtype, int64_t count, size_t element_bytes)
{
    if (m->num_tensors == MAX_TENSORS) give_up("too many tensors");
    struct tensor *t = &m->tensors[m->num_tensors++];
    *t = (struct tensor){.dtype = dtype, .count = count, .bytes = (size_t)count * element_bytes};
    t->host = malloc(t->bytes);
    if (t->host == NULL) give_up("no memory on the host");
    return t;
}

struct tensor *new_tensor(struct memory *m, int32_t dtype, int64_t count)
{
    struct tensor *t = allocate(m, dtype, count, ref_dtype_bytes(dtype));
    t->there = m->machine->allocate(t->bytes);
    if (t->there == NULL) give_up("no memory on the machine");
    memset(t->host, POISON, t->bytes);
    to_machine(m, t);
    return t;
}

struct tensor *new_normal(struct memory *m, int32_t dtype, enum role role, int64_t rows, int64_t heads,
                          int64_t features)
{
    const struct family_data data = {FAMILY_NORMAL, 20, dtype, features, 1};
    struct tensor *t = new_tensor(m, dtype, rows * heads * features);
    for (int64_t i = 0; i < t->count; ++i)
        ref_store(dtype, t->host, i,
                  family_value(&data, role, 0, i / features / heads, i / features % heads, i % features));
    to_machine(m, t);
    return t;
}

double *new_doubles(struct memory *m, int64_t count)
{
    struct tensor *t = allocate(m, ATTEST_ABSENT, count, sizeof(double));
    memset(t->host, 0, t->bytes);
    return t->host;
}

void to_machine(struct memory *m, const struct tensor *t)
{
    if (m->machine->copy_in(t->there, t->host, t->bytes) != 0) give_up("nothing can be copied to the machine");
}

void to_host(struct memory *m, const struct tensor *t)
{
    if (m->machine->copy_out(t->host, t->there, t->bytes) != 0) give_up("nothing can be copied from the machine");
}

void free_memory(struct memory *m, int kept)
{
    while (m->num_tensors > kept) {
        struct tensor *t = &m->tensors[--m->num_tensors];
        free(t->host);
        if (t->there != NULL) m->machine->release(t->there);
    }
}

void *host_at(const struct tensor *t, int64_t index)
{
    return (char *)t->host + (size_t)index * ref_dtype_bytes(t->dtype);
}

void *there_at(const struct tensor *t, int64_t index)
{
    return (char *)t->there + (size_t)index * ref_dtype_bytes(t->dtype);
}

static double larger(double a, double b) { return !(b <= a) ? b : a; }

void compare(struct figures *f, double got, double want, double bound)
{
    const double error = got == want ? 0 : fabs(got - want);
    f->max = larger(f->max, error);
    f->sum += error;
    f->use = larger(f->use, error == 0 ? 0 : error / bound);
    f->count += 1;
}

double mean_of(const struct figures *f) { return f->sum / (double)f->count; }

int state(FILE *out, bool holds, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vfprintf(out, format, arguments);
    va_end(arguments);
    fputs(holds ? "\n" : "   DOES NOT HOLD\n", out);
    return !holds;
}

bool run(struct memory *m, const struct attest_problem *p, const struct attest_backward_args *a, bool backward,
         FILE *out)
{
    struct attest_plan *plan;
    size_t bytes[2];
    void *workspace = NULL;
    enum attest_status status = attest_plan_create(p, &plan);
    if (status == ATTEST_OK) status = attest_plan_workspace(plan, &bytes[0], &bytes[1]);
    if (status == ATTEST_OK && bytes[backward] > 0)
        workspace = new_tensor(m, ATTEST_FP32, (int64_t)(bytes[backward] + sizeof(float) - 1) / 4)->there;
    if (status == ATTEST_OK)
        status = backward ? attest_run_backward(plan, a, workspace, bytes[1], NULL)
                          : attest_run_forward(plan, &a->forward, workspace, bytes[0], NULL);
    attest_plan_destroy(plan);
    return status == ATTEST_OK || !state(out, false, "%s", attest_last_error());
}

struct attest_tensor packed_rows(int32_t dtype, int64_t seqlen, int64_t heads, int64_t features)
{
    return (struct attest_tensor){dtype, 16, seqlen * heads * features, heads * features, features};
}

struct attest_tensor packed_scalars(int64_t seqlen, int64_t heads)
{
    return (struct attest_tensor){ATTEST_FP32, 0, seqlen * heads, heads, 1};
}

struct attest_problem packed_problem(const struct machine *machine, int64_t seqlen_q, int64_t seqlen_k, int64_t heads,
                                     int64_t head_dim)
{
    struct attest_problem p = ATTEST_PROBLEM_INIT;
    p.device = machine->device;
    p.batch = 1, p.seqlen_q = seqlen_q, p.seqlen_k = seqlen_k;
    p.num_heads_q = p.num_heads_kv = heads, p.head_dim = p.head_dim_v = head_dim;
    p.softmax_scale = (float)(1 / sqrt((double)head_dim));
    p.q = packed_rows(ATTEST_FP16, seqlen_q, heads, head_dim);
    p.k = p.v = packed_rows(ATTEST_FP16, seqlen_k, heads, head_dim);
    p.o = p.q;
    p.lse = packed_scalars(seqlen_q, heads);
    return p;
}

/* published_memory.c - bytes that a caller allocates for forward and backward: linear in seqlen. */
#include <inttypes.h>

#include "proptests/published/published_tensors.h"
#include "reference/formats.h"

enum { SEQLEN = 1920, BATCH = 4, HEADS = 16, DIM = 64, DOUBLINGS = 4 };

/* As in unfused.h, in fp16: p and p' of forward, dp. */
enum { UNFUSED_MATRICES = 3 };

static struct attest_problem both_passes(const struct machine *machine, int64_t seqlen)
{
    struct attest_problem p = packed_problem(machine, seqlen, seqlen, HEADS, DIM);
    p.batch = BATCH;
    p.dout = p.dq = p.dk = p.dv = p.q;
    return p;
}

/* q, k, v, o, dout, dq, dk, dv. */
static int64_t bytes_of_tensors(const struct attest_problem *p)
{
    return 8 * p->batch * p->q.batch * (int64_t)ref_dtype_bytes(p->q.dtype);
}

/* Tensors, lse and workspace; -1: why not has been printed. */
static int64_t bytes_of_caller(const struct attest_problem *p, FILE *out)
{
    struct attest_plan *plan;
    size_t forward, backward;
    if (attest_plan_create(p, &plan) != ATTEST_OK) return -state(out, false, "%s", attest_last_error());
    attest_plan_workspace(plan, &forward, &backward);
    attest_plan_destroy(plan);
    return bytes_of_tensors(p) + p->batch * p->lse.batch * (int64_t)sizeof(float) + (int64_t)(forward + backward);
}

int published_memory(const struct machine *machine, FILE *out)
{
    int broken = 0;
    int64_t first = 0;
    fprintf(out, "memory: forward and backward, fp16, batch %d, %d heads, head_dim %d; published at seqlen %d: 605 MB, "
                 "4769 MB where seqlen^2 is kept\n",
            BATCH, HEADS, DIM, SEQLEN);
    for (int64_t times = 1; times < 1 << DOUBLINGS; times *= 2) {
        const struct attest_problem p = both_passes(machine, times * SEQLEN);
        const int64_t ours = bytes_of_caller(&p, out), tensors = bytes_of_tensors(&p);
        const int64_t matrices = UNFUSED_MATRICES * 2 * BATCH * HEADS * p.seqlen_q * p.seqlen_k;
        if (times == 1) first = ours;
        broken += state(out, ours > 0 && ours == times * first,
                        "    seqlen %5" PRId64 ": %6.1f MB, workspace and lse %.1f MB of it; unfused %.1f MB",
                        p.seqlen_q, (double)ours / 1e6, (double)(ours - tensors) / 1e6,
                        (double)(tensors + matrices) / 1e6);
    }
    broken += state(out, (double)first <= 605e6, "    ours at seqlen %d is not above the published", SEQLEN);
    return broken;
}

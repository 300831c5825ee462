/* wgmma.c - products of a warpgroup: issue, groups, and who owns which registers meanwhile.
 *
 * A product is issued when all 128 threads have come. From then on it reads its operands, by an epoch of the
 * warpgroup's agent, until a thread's wait covers its group; then that thread has seen it, and its registers are its
 * own again. */
#include <stdlib.h>
#include <string.h>

#include "kernels/sim/async.h"

enum { M = WGMMA_M, MAX_N = 256, ROW_BYTES = 32, ROW_WORDS = ROW_BYTES / 4, A_REGISTERS = 4 };

static const char name[] = "wgmma";

struct operands {
    enum sim_format format;
    int n;
    float *d;
    const uint32_t *a; /* NULL: by descriptor */
    uint64_t descriptor_a, descriptor_b;
    bool scale_d, transpose_a, transpose_b;
    int scale_a, scale_b;
    const void *site;
};

struct product {
    struct sim_async async;
    struct product *next;
    struct wgmma_team *team;
    struct issue issue;
    struct operands with;
    unsigned group;
    uint64_t number;          /* of the team's products */
    sim_epoch epoch;
    unsigned num_waited;      /* threads whose wait has covered it */
    bool last_of_registers;   /* the latest product that writes these d */
    bool continues;           /* no thread had waited for the one before it that writes them */
    float *d[SIM_WARPGROUP];
    const uint32_t *a[SIM_WARPGROUP];
    struct wgmma_operand at_a, at_b;
};

/* Of a warpgroup. */
struct wgmma_team {
    struct product *last;   /* issued, and not waited for by all */
    uint64_t issued;
    struct product *undone; /* the first not yet carried out */
    unsigned agent, group;  /* the group of `epoch` */
    sim_epoch epoch;
    const float *held;      /* d[0] of the product last carried out, whose accumulators are */
    float c[M * MAX_N];
};

/* Of a thread. */
struct sim_wgmma_groups {
    struct wgmma_team *team;
    unsigned groups;        /* committed */
    struct product *first;  /* not waited for */
};

/* ---- arithmetic --------------------------------------------------------------------------------------------- */

/* Thread 32 w + 4 g + t holds of A, in words of k, (16 w + g, t), (16 w + g + 8, t), then both at t + 4. */
static void gather_registers(const struct product *p, uint32_t a[M][ROW_WORDS])
{
    for (int i = 0; i < SIM_WARPGROUP; ++i) {
        const int row = i / SIM_WARP * 16 + i % SIM_WARP / 4, t = i % 4;
        for (int r = 0; r < A_REGISTERS; ++r) a[row + r % 2 * 8][t + r / 2 * 4] = p->a[i][r];
    }
}

/* And of D, columns 8 j + 2 t and the next, of rows 16 w + g and that + 8. */
static void move_accumulators(const struct product *p, float *matrix, bool to_registers)
{
    const int n = p->with.n;
    for (int i = 0; i < SIM_WARPGROUP; ++i) {
        const int row = i / SIM_WARP * 16 + i % SIM_WARP / 4, t = i % 4;
        float *high = matrix + row * n + 2 * t, *low = high + 8 * n, *d = p->d[i];
        for (int j = 0; j < n; j += 8, d += 4) {
            if (to_registers) {
                memcpy(d, high + j, 2 * sizeof *d);
                memcpy(d + 2, low + j, 2 * sizeof *d);
            } else {
                memcpy(high + j, d, 2 * sizeof *d);
                memcpy(low + j, d + 2, 2 * sizeof *d);
            }
        }
    }
}

static void negate(uint32_t *words, int n, enum sim_format format)
{
    for (int i = 0; i < n; ++i) words[i] ^= format == SIM_TF32 ? 0x80000000 : 0x80008000;
}

static void compute(const struct product *p, float *c)
{
    const struct operands *with = &p->with;
    const struct sim_cta *cta = p->issue.thread->cta;
    uint32_t a[M][ROW_WORDS], b_t[MAX_N][ROW_WORDS];
    if (with->a) gather_registers(p, a);
    else sim_wgmma_gather(&p->at_a, cta->window, (char *)a);
    sim_wgmma_gather(&p->at_b, cta->window, (char *)b_t);
    if (with->scale_a < 0) negate(&a[0][0], M * ROW_WORDS, with->format);
    if (with->scale_b < 0) negate(&b_t[0][0], with->n * ROW_WORDS, with->format);
    sim_unit(SIM_SM_90, with->format, M, with->n, ROW_BYTES / sim_operand_bytes(with->format), a, b_t,
             with->scale_d ? c : NULL, c);
}

/* In the order of their issue. Accumulators stay with the team while products go on adding to them: meanwhile nobody
 * else may see the registers. */
static void run_product(struct sim_async *async)
{
    struct product *p = (struct product *)async;
    struct wgmma_team *team = p->team;
    while (team->undone != p) sim_async_finish(p->issue.thread->cta->cluster, &team->undone->async);
    team->undone = p->next;
    if (p->with.scale_d && !(p->continues && team->held == p->d[0])) move_accumulators(p, team->c, false);
    compute(p, team->c);
    team->held = p->d[0];
    if (!(p->next && p->next->continues && p->next->d[0] == p->d[0])) move_accumulators(p, team->c, true);
}

/* ---- issue: checks ------------------------------------------------------------------------------------------ */

static bool same_operands(const struct operands *x, const struct operands *y)
{
    return x->format == y->format && x->n == y->n && !x->a == !y->a && x->descriptor_a == y->descriptor_a &&
           x->descriptor_b == y->descriptor_b && x->scale_d == y->scale_d && x->transpose_a == y->transpose_a &&
           x->transpose_b == y->transpose_b && x->scale_a == y->scale_a && x->scale_b == y->scale_b;
}

static void check_operands(const struct operands *with, struct sim_thread *thread)
{
    const char *wrong = NULL;
    if (with->n < 8 || with->n > MAX_N || with->n % 8) wrong = "N is a multiple of 8 from 8 to 256.";
    else if (with->scale_a * with->scale_a != 1 || with->scale_b * with->scale_b != 1)
        wrong = "Operands are scaled by 1 or -1.";
    else if ((with->transpose_a || with->transpose_b) && with->format == SIM_TF32)
        wrong = "Only operands of 16 bits can be transposed.";
    else if (with->transpose_a && with->a) wrong = "A in registers cannot be transposed.";
    if (wrong) sim_fail(thread, SIM_BAD_OPERAND, name, with->site, NULL, "%s", wrong);
}

static size_t d_bytes(const struct operands *with) { return (size_t)with->n / 2 * sizeof *with->d; }

static bool overlap(const void *x, size_t x_bytes, const void *y, size_t y_bytes)
{
    return (const char *)x < (const char *)y + y_bytes && (const char *)y < (const char *)x + x_bytes;
}

/* Products on the way may write the same d, whole, and read the same a. */
static void check_in_flight(const struct operands *with, struct sim_thread *thread, const struct product *p, int i)
{
    for (; p; p = p->next) {
        const bool chain = p->d[i] == with->d && p->with.n == with->n && p->with.format == with->format;
        const bool d_of = !chain && overlap(with->d, d_bytes(with), p->d[i], d_bytes(&p->with));
        const bool a_of = p->a[i] && overlap(with->d, d_bytes(with), p->a[i], A_REGISTERS * sizeof *p->a[i]);
        const bool reads = with->a && overlap(with->a, A_REGISTERS * sizeof *with->a, p->d[i], d_bytes(&p->with));
        if (!d_of && !a_of && !reads) continue;
        char file[128];
        int line;
        sim_locate(p->issue.site, file, sizeof file, &line);
        sim_fail(thread, SIM_REGISTERS_IN_FLIGHT, name, with->site, a_of || d_of ? (const void *)with->d : with->a,
                 "The wgmma issued at %s:%d still %s these registers; only products of the same shape may add to the "
                 "same accumulators before wgmma.wait_group.", file, line, a_of ? "reads" : "writes");
    }
}

static void check_fenced(const struct operands *with, struct sim_thread *thread)
{
    const bool d = sim_registers_dirty(thread, with->d, d_bytes(with));
    if (d || (with->a && sim_registers_dirty(thread, with->a, A_REGISTERS * sizeof *with->a)))
        sim_fail(thread, SIM_MISSING_WGMMA_FENCE, name, with->site, d ? (const void *)with->d : with->a,
                 "%s been written since the last wgmma.fence, or there was none.",
                 d ? "Accumulators have" : "Registers of A have");
}

/* ---- issue -------------------------------------------------------------------------------------------------- */

static struct sim_wgmma_groups *groups_of(struct sim_thread *thread)
{
    if (!thread->wgmma) thread->wgmma = sim_async_take(thread->cta, sizeof *thread->wgmma);
    return thread->wgmma;
}

static struct wgmma_team *team_of(struct sim_thread *threads)
{
    struct wgmma_team *team = groups_of(threads)->team;
    if (team) return team;
    team = sim_async_take(threads->cta, sizeof *team);
    team->agent = sim_agent_new(threads->cta->cluster);
    for (int i = 0; i < SIM_WARPGROUP; ++i) groups_of(&threads[i])->team = team;
    return team;
}

/* What each thread brings along. */
static void check_threads(struct sim_thread *threads, void *const args[SIM_WARPGROUP])
{
    const struct operands *first = args[0];
    for (int i = 0; i < SIM_WARPGROUP; ++i) {
        const struct operands *with = args[i];
        const struct sim_wgmma_groups *groups = groups_of(&threads[i]);
        if (!same_operands(with, first) || groups->groups != groups_of(threads)->groups)
            sim_fail(&threads[i], SIM_DIVERGED, name, with->site, NULL,
                     "It is not the same for all threads of the warpgroup: %s.",
                     same_operands(with, first) ? "they have executed wgmma.commit_group a different number of times"
                                                : "descriptors or other operands differ");
        if (i % SIM_WARP == 0) check_in_flight(with, &threads[i], groups->first, i);
        check_fenced(with, &threads[i]);
    }
}

/* Each warp reads its 16 rows of A, and all of B. */
static void watch_operands(const struct product *p, struct sim_thread *threads)
{
    enum { WARPS = SIM_WARPGROUP / SIM_WARP };
    struct sim_cluster *cluster = threads->cta->cluster;
    struct sim_deed deeds[WARPS];
    for (int w = 0; w < WARPS; ++w) {
        struct sim_thread *reader = &threads[w * SIM_WARP + (int)sim_draw(cluster, SIM_WARP)];
        deeds[w] = (struct sim_deed){reader, p->epoch, true, name, p->issue.site};
    }
    for (int w = 0; w < WARPS && !p->with.a; ++w) sim_wgmma_watch(&p->at_a, 16 * w, 16, &deeds[w], 1);
    sim_wgmma_watch(&p->at_b, 0, p->with.n, deeds, WARPS);
}

static void hand_over_registers(struct product *p, struct sim_thread *threads)
{
    struct product *before = groups_of(threads)->first;
    while (before && !(before->last_of_registers && before->d[0] == p->d[0])) before = before->next;
    if (before) before->last_of_registers = false;
    p->last_of_registers = p->continues = true;
    for (int i = 0; i < SIM_WARPGROUP; ++i) {
        const struct product *first = threads[i].wgmma->first;
        const bool continues = before && first && first->number <= before->number;
        p->continues &= continues;
        if (!continues) sim_registers_begin(&threads[i], p->d[i], d_bytes(&p->with), true, p->issue.site);
        if (p->a[i]) sim_registers_begin(&threads[i], p->a[i], A_REGISTERS * sizeof *p->a[i], false, p->issue.site);
    }
}

/* Registers begin as bytes 0xff, which no instruction computes. Those of products on the way are with the team. */
static void check_accumulators(const struct product *p, struct sim_thread *threads)
{
    if (!p->with.scale_d || !threads->cta->cluster->watched) return;
    for (int i = 0; i < SIM_WARPGROUP; ++i) {
        if (threads[i].wgmma->first != p) continue;
        const float *nobody = sim_unwritten_register(p->d[i], p->with.n / 2);
        if (nobody)
            sim_fail(&threads[i], SIM_UNINITIALISED, name, p->issue.site, nobody,
                     "The product is added to accumulators that nobody has written: the first one overwrites them "
                     "(scale_d 0), or they are cleared.");
    }
}

static void append(struct product *p, struct sim_thread *threads)
{
    struct wgmma_team *team = p->team;
    for (int i = 0; i < SIM_WARPGROUP; ++i)
        if (!threads[i].wgmma->first) threads[i].wgmma->first = p;
    if (team->last) team->last->next = p;
    team->last = p;
    if (!team->undone) team->undone = p;
}

static void count_product(const struct operands *with, struct sim_cluster *cluster)
{
    struct sim_counts *counts = sim_tally(cluster);
    counts->wgmma_instructions += 1;
    counts->tensor_core_flops += 2ull * M * with->n * (ROW_BYTES / sim_operand_bytes(with->format));
}

static void run_issue(struct sim_warp *warp, void *const args[SIM_WARPGROUP])
{
    struct sim_thread *threads = warp->lanes;
    struct sim_cluster *cluster = warp->cta->cluster;
    const struct operands *with = args[0];
    struct wgmma_team *team = team_of(threads);
    check_operands(with, threads);
    check_threads(threads, args);
    if (!team->epoch || team->group != threads->wgmma->groups) team->epoch = sim_epoch_next(cluster, team->agent);
    team->group = threads->wgmma->groups;
    struct product *p = sim_async_take(warp->cta, sizeof *p);
    p->async.run = run_product;
    p->team = team;
    p->issue = (struct issue){threads, name, with->site};
    p->with = *with;
    p->group = team->group;
    p->number = team->issued++;
    p->epoch = team->epoch;
    for (int i = 0; i < SIM_WARPGROUP; ++i) {
        p->d[i] = ((const struct operands *)args[i])->d;
        p->a[i] = ((const struct operands *)args[i])->a;
    }
    if (!with->a) sim_wgmma_locate(&p->at_a, with->descriptor_a, M, with->transpose_a, 'A', &p->issue);
    sim_wgmma_locate(&p->at_b, with->descriptor_b, with->n, with->transpose_b, 'B', &p->issue);
    watch_operands(p, threads);
    hand_over_registers(p, threads);
    append(p, threads);
    check_accumulators(p, threads);
    count_product(with, cluster);
    sim_overlap_product(threads, SIM_WARPGROUP, true);
    sim_async_submit(cluster, &p->async);
}

void sim_wgmma(enum sim_format format, int n, float *d, const uint32_t *a, uint64_t descriptor_a, uint64_t descriptor_b,
               bool scale_d, int scale_a, int scale_b, bool transpose_a, bool transpose_b)
{
    struct operands with = {format,      n,           d,       a,       descriptor_a, descriptor_b, scale_d,
                            transpose_a, transpose_b, scale_a, scale_b, SIM_SITE};
    sim_require_sm_90(name, with.site);
    sim_collect_warpgroup(name, with.site, &with, run_issue);
}

/* ---- groups ------------------------------------------------------------------------------------------------- */

void sim_wgmma_fence(void)
{
    sim_require_sm_90("wgmma.fence", SIM_SITE);
    sim_registers_fence(sim_self);
}

void sim_wgmma_fence_operand(const void *registers, size_t bytes)
{
    sim_registers_fence_operand(sim_self, registers, bytes);
}

void sim_wgmma_commit(void)
{
    sim_require_sm_90("wgmma.commit_group", SIM_SITE);
    ++groups_of(sim_self)->groups;
}

/* The product is done, and this thread has it behind itself. */
static void wait_for(struct sim_thread *thread, struct product *p)
{
    const unsigned i = thread->linear % SIM_WARPGROUP;
    sim_async_finish(thread->cta->cluster, &p->async);
    if (p->last_of_registers) sim_registers_end(thread, p->d[i]);
    if (p->a[i]) sim_registers_end(thread, p->a[i]);
    if (++p->num_waited < SIM_WARPGROUP) return;
    if (p->team->last == p) p->team->last = NULL;
    sim_async_give(p);
}

void sim_wgmma_wait(unsigned pending_groups)
{
    struct sim_wgmma_groups *groups = groups_of(sim_self);
    sim_epoch epoch = 0;
    unsigned finished = 0; /* groups */
    sim_require_sm_90("wgmma.wait_group", SIM_SITE);
    while (groups->first && groups->first->group + pending_groups < groups->groups) {
        struct product *p = groups->first;
        groups->first = p->next;
        epoch = p->epoch;
        finished += !p->next || p->next->group != p->group;
        wait_for(sim_self, p);
    }
    if (epoch) sim_acquire_epoch(sim_self, epoch, true);
    if (epoch) sim_overlap_wgmma_waited(sim_self, finished, !groups->first);
}

void sim_wgmma_exit(struct sim_thread *thread)
{
    const struct product *p = thread->wgmma ? thread->wgmma->first : NULL;
    if (p)
        sim_fail(thread, SIM_LEFT_PENDING, name, p->issue.site, NULL,
                 "The thread ends without a wait for this product: wgmma.wait_group.");
}

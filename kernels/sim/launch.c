/* launch.c - grids: what may be launched, which host thread runs which cluster, what comes out of it. */
#define _GNU_SOURCE /* mmap of no file */
#include <fenv.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "kernels/sim/fiber.h"
#include "kernels/sim/machine.h"
#include "kernels/sim/schedule.h"

enum {
    MAX_WORKERS = 256,
    MAX_CLUSTER = 8,          /* CTAs, without opting in to more */
    LEAST_REGISTERS = 24,     /* that a thread can do with */
    SHARED_SM_80 = 163 * 1024, /* bytes a CTA may opt in to */
    SHARED_SM_90 = 227 * 1024,
    POISON = 0xff             /* as float and bf16: NaN */
};

/* What a host thread runs clusters with. Stacks and windows cost more to make than a small launch takes, so that
 * workers stay with the process: a launch borrows as many as it needs. */
struct worker {
    struct worker *next; /* of the idle ones */
    void *fault_stack;
    struct sim_stacks *stacks;
    struct sim_schedule *schedule;
    struct sim_cluster cluster;
    struct sim_counts counts;
    unsigned ctas_capacity, threads_capacity, warps_capacity, windows_capacity;
    char *windows;
    struct run *run;
    pthread_t thread;
};

struct run {
    struct sim_gpu *gpu;
    const struct sim_launch *launch;
    unsigned cluster_ctas;
    uint64_t num_clusters, stride, offset; /* cluster number i to run has index (i stride + offset) mod num_clusters */
    atomic_uint_fast64_t next;
    atomic_uint_fast64_t lowest_failed;
    pthread_mutex_t mutex; /* of the GPU's report */
    uint64_t *work;        /* of each cluster; NULL: not counted */
};

/* ---- a GPU -------------------------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t x)
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

struct sim_gpu *sim_gpu_create(const struct sim_options *options)
{
    struct sim_gpu *gpu = calloc(1, sizeof *gpu);
    if (!gpu) return NULL;
    gpu->memory = sim_memory_create();
    if (!gpu->memory) {
        free(gpu);
        return NULL;
    }
    gpu->options = *options;
    return gpu;
}

void sim_gpu_destroy(struct sim_gpu *gpu)
{
    if (!gpu) return;
    sim_memory_destroy(gpu->memory);
    free(gpu);
}

void sim_gpu_options(struct sim_gpu *gpu, const struct sim_options *options)
{
    gpu->options = *options;
}

unsigned sim_num_sms(const struct sim_gpu *gpu)
{
    const uint64_t drawn = mix(gpu->options.seed);
    return drawn % 16 == 0 ? 16 : 1 + (unsigned)(drawn >> 62);
}

size_t sim_max_shared(const struct sim_gpu *gpu)
{
    return gpu->options.generation == SIM_SM_90 ? SHARED_SM_90 : SHARED_SM_80;
}

const struct sim_report *sim_last_report(const struct sim_gpu *gpu)
{
    return &gpu->report;
}

const struct sim_counts *sim_counts(const struct sim_gpu *gpu)
{
    return &gpu->counts;
}

void sim_reset_counts(struct sim_gpu *gpu)
{
    gpu->counts = (struct sim_counts){0};
}

const struct sim_options *sim_options_of(const struct sim_cluster *cluster)
{
    return &cluster->gpu->options;
}

/* ---- limits ------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 3, 4))) static enum sim_rule refuse(struct sim_gpu *gpu, const struct sim_launch *launch,
                                                                  const char *format, ...)
{
    struct sim_report *report = &gpu->report;
    *report = (struct sim_report){.rule = SIM_LIMIT};
    snprintf(report->kernel, sizeof report->kernel, "%s", launch->kernel);
    const int n = snprintf(report->text, sizeof report->text, "%s: kernel %s was not launched: ",
                           sim_rule_name(SIM_LIMIT), report->kernel);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(report->text + n, sizeof report->text - (size_t)n, format, arguments);
    va_end(arguments);
    return SIM_LIMIT;
}

static enum sim_rule check_axes(struct sim_gpu *gpu, const struct sim_launch *launch)
{
    static const unsigned most_ctas[3] = {2147483647, 65535, 65535}, most_threads[3] = {1024, 1024, 64};
    for (int axis = 0; axis < 3; ++axis) {
        const char name = "xyz"[axis];
        const unsigned ctas = launch->grid[axis], threads = launch->block[axis], cluster = launch->cluster[axis];
        if (!ctas || ctas > most_ctas[axis])
            return refuse(gpu, launch, "the grid has %u CTAs along %c; 1 to %u are possible.", ctas, name,
                          most_ctas[axis]);
        if (!threads || threads > most_threads[axis])
            return refuse(gpu, launch, "the block has %u threads along %c; 1 to %u are possible.", threads, name,
                          most_threads[axis]);
        if (!cluster || ctas % cluster)
            return refuse(gpu, launch, "the grid has %u CTAs along %c, which clusters of %u do not divide.", ctas, name,
                          cluster);
    }
    return SIM_CLEAN;
}

static enum sim_rule check_sizes(struct sim_gpu *gpu, const struct sim_launch *launch)
{
    const bool sm_90 = gpu->options.generation == SIM_SM_90;
    const size_t most_shared = sim_max_shared(gpu);
    const uint64_t threads = (uint64_t)launch->block[0] * launch->block[1] * launch->block[2];
    const uint64_t cluster = (uint64_t)launch->cluster[0] * launch->cluster[1] * launch->cluster[2];
    if (threads > SIM_MAX_THREADS)
        return refuse(gpu, launch, "the block has %llu threads; a CTA has at most 1024.", (unsigned long long)threads);
    if (threads > launch->max_threads)
        return refuse(gpu, launch, "the block has %llu threads; the kernel's launch bounds allow %u.",
                      (unsigned long long)threads, launch->max_threads);
    const bool same_blocks = !launch->min_blocks || launch->min_blocks == launch->bounds.min_blocks;
    if (launch->bounds.max_threads && (launch->bounds.max_threads != launch->max_threads || !same_blocks))
        return refuse(gpu, launch, "it says that the kernel's launch bounds are %u CTAs of %u threads; they are %u of "
                      "%u.", launch->min_blocks, launch->max_threads, launch->bounds.min_blocks,
                      launch->bounds.max_threads);
    if (sim_registers_of_bounds(launch->max_threads, launch->min_blocks) < LEAST_REGISTERS)
        return refuse(gpu, launch, "its launch bounds, %u CTAs of %u threads, leave fewer than 24 registers a thread.",
                      launch->min_blocks, launch->max_threads);
    if (launch->dynamic_shared > most_shared)
        return refuse(gpu, launch, "%zu bytes of dynamic shared memory; sm_%d has %zu for a CTA.",
                      launch->dynamic_shared, sm_90 ? 90 : 80, most_shared);
    if (cluster > 1 && !sm_90) return refuse(gpu, launch, "clusters need sm_90; this GPU is sm_80.");
    if (launch->begins_early && !sm_90)
        return refuse(gpu, launch, "launches that begin early need sm_90; this GPU is sm_80.");
    if (cluster > MAX_CLUSTER)
        return refuse(gpu, launch, "the cluster has %llu CTAs; at most 8 run on every sm_90.",
                      (unsigned long long)cluster);
    if (cluster * threads >= SIM_MAX_AGENTS)
        return refuse(gpu, launch, "the cluster has %llu threads; the simulator follows at most %u.",
                      (unsigned long long)(cluster * threads), SIM_MAX_AGENTS - 1);
    return SIM_CLEAN;
}

/* ---- workers ------------------------------------------------------------------------------------------------ */

static pthread_mutex_t idle_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct worker *idle_workers;

static void free_worker(struct worker *worker)
{
    sim_stacks_destroy(worker->stacks);
    sim_schedule_destroy(worker->schedule);
    free(worker->fault_stack);
    free(worker);
}

static struct worker *make_worker(void)
{
    struct worker *worker = calloc(1, sizeof *worker);
    if (!worker) return NULL;
    worker->stacks = sim_stacks_create();
    worker->schedule = sim_schedule_create();
    worker->fault_stack = malloc(SIM_FAULT_STACK);
    if (worker->stacks && worker->schedule && worker->fault_stack) return worker;
    free_worker(worker);
    return NULL;
}

static void return_workers(struct worker **workers, unsigned n)
{
    pthread_mutex_lock(&idle_mutex);
    for (unsigned i = n; i-- > 0;) {
        workers[i]->next = idle_workers;
        idle_workers = workers[i];
    }
    pthread_mutex_unlock(&idle_mutex);
}

/* How many of n there are memory for. */
static unsigned borrow_workers(struct worker **workers, unsigned n)
{
    unsigned borrowed = 0;
    pthread_mutex_lock(&idle_mutex);
    for (; borrowed < n && idle_workers; ++borrowed) {
        workers[borrowed] = idle_workers;
        idle_workers = idle_workers->next;
    }
    pthread_mutex_unlock(&idle_mutex);
    while (borrowed < n && (workers[borrowed] = make_worker())) ++borrowed;
    return borrowed;
}

/* ---- one cluster -------------------------------------------------------------------------------------------- */

/* An array of at least n elements, contents lost; false: no memory. */
static bool reserve(void **array, unsigned *capacity, unsigned n, size_t element_bytes)
{
    if (n <= *capacity) return true;
    free(*array);
    *array = calloc(n, element_bytes);
    *capacity = *array ? n : 0;
    return *array != NULL;
}

static bool reserve_windows(struct worker *worker, unsigned n)
{
    if (n <= worker->windows_capacity) return true;
    if (worker->windows) munmap(worker->windows, (size_t)(worker->windows_capacity + 1) * SIM_WINDOW);
    worker->windows = mmap(NULL, (size_t)(n + 1) * SIM_WINDOW, PROT_READ | PROT_WRITE,
                           MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (worker->windows == MAP_FAILED) worker->windows = NULL;
    worker->windows_capacity = worker->windows ? n : 0;
    if (!worker->windows) return false;
    const uintptr_t start = (uintptr_t)worker->windows, aligned = (start + SIM_WINDOW - 1) / SIM_WINDOW * SIM_WINDOW;
    worker->cluster.windows = worker->windows + (aligned - start);
    return true;
}

static bool prepare_worker(struct worker *worker, struct run *run)
{
    worker->run = run;
    const unsigned *block = run->launch->block;
    const unsigned threads = block[0] * block[1] * block[2], warps = (threads + SIM_WARP - 1) / SIM_WARP;
    struct sim_cluster *cluster = &worker->cluster;
    cluster->gpu = run->gpu;
    cluster->launch = run->launch;
    cluster->num_ctas = run->cluster_ctas;
    cluster->num_threads = cluster->num_ctas * threads;
    cluster->num_warps = cluster->num_ctas * warps;
    cluster->schedule = worker->schedule;
    cluster->watched = !run->gpu->options.unwatched;
    cluster->counting = run->gpu->options.counting;
    cluster->counts = &worker->counts;
    worker->counts = (struct sim_counts){0};
    return reserve((void **)&cluster->ctas, &worker->ctas_capacity, cluster->num_ctas, sizeof *cluster->ctas) &&
           reserve((void **)&cluster->warps, &worker->warps_capacity, cluster->num_warps, sizeof *cluster->warps) &&
           reserve((void **)&cluster->threads, &worker->threads_capacity, cluster->num_threads,
                   sizeof *cluster->threads) &&
           sim_stacks_reserve(worker->stacks, cluster->num_threads) && reserve_windows(worker, cluster->num_ctas);
}

/* Splits a linear index, axis 0 fastest. */
static void unravel(uint64_t linear, const unsigned size[3], unsigned index[3])
{
    for (int axis = 0; axis < 3; ++axis) {
        index[axis] = (unsigned)(linear % size[axis]);
        linear /= size[axis];
    }
}

static void fill_cta(struct sim_cluster *cluster, unsigned rank, const unsigned cluster_index[3])
{
    const struct sim_launch *launch = cluster->launch;
    const unsigned *grid = launch->grid;
    const unsigned num_warps = cluster->num_warps / cluster->num_ctas;
    struct sim_cta *cta = &cluster->ctas[rank];
    *cta = (struct sim_cta){.cluster = cluster, .rank = rank};
    unsigned inside[3];
    unravel(rank, launch->cluster, inside);
    for (int axis = 0; axis < 3; ++axis)
        cta->index[axis] = cluster_index[axis] * launch->cluster[axis] + inside[axis];
    cta->linear = cta->index[0] + (uint64_t)grid[0] * (cta->index[1] + (uint64_t)grid[1] * cta->index[2]);
    cta->num_threads = cluster->num_threads / cluster->num_ctas;
    cta->num_warps = num_warps;
    cta->threads = cluster->threads + rank * cta->num_threads;
    cta->warps = cluster->warps + rank * num_warps;
    cta->window = cluster->windows + (size_t)rank * SIM_WINDOW;
}

static void fill_threads(struct sim_cta *cta)
{
    for (unsigned w = 0; w < cta->num_warps; ++w) {
        struct sim_warp *warp = &cta->warps[w];
        *warp = (struct sim_warp){.cta = cta, .index = w, .lanes = cta->threads + w * SIM_WARP};
        const unsigned left = cta->num_threads - w * SIM_WARP;
        warp->num_lanes = left < SIM_WARP ? left : SIM_WARP;
        warp->exited = left < SIM_WARP ? ~0u << left : 0;
    }
    for (unsigned i = 0; i < cta->num_threads; ++i) {
        struct sim_thread *thread = &cta->threads[i];
        *thread = (struct sim_thread){.cta = cta, .warp = &cta->warps[i / SIM_WARP]};
        unravel(i, cta->cluster->launch->block, thread->index);
        thread->linear = i;
        thread->lane = i % SIM_WARP;
        thread->agent = cta->rank * cta->num_threads + i;
        thread->state = SIM_READY;
        thread->grid_waited = !cta->cluster->launch->begins_early;
    }
}

static void fill_cluster(struct sim_cluster *cluster, uint64_t index)
{
    const struct sim_launch *launch = cluster->launch;
    unsigned clusters[3], cluster_index[3];
    for (int axis = 0; axis < 3; ++axis) clusters[axis] = launch->grid[axis] / launch->cluster[axis];
    unravel(index, clusters, cluster_index);
    for (unsigned rank = 0; rank < cluster->num_ctas; ++rank) {
        fill_cta(cluster, rank, cluster_index);
        fill_threads(&cluster->ctas[rank]);
    }
    cluster->num_agents = cluster->num_threads;
    cluster->last_interval = 0;
    cluster->barrier = NULL;
    cluster->report = (struct sim_report){.rule = SIM_CLEAN};
    cluster->random = mix(cluster->gpu->options.seed ^ mix(index));
}

static const char grid_wait[] = "griddepcontrol.wait";

/* Launches run one after the other here: what is asked of a thread is that it does not rely on it. */
void sim_grid_wait(void)
{
    sim_require_sm_90(grid_wait, SIM_SITE);
    sim_self->grid_waited = true;
}

/* What a fiber does: the kernel, as one thread, and what the end of a thread means for others. */
static void run_thread(struct sim_thread *thread)
{
    const struct sim_launch *launch = thread->cta->cluster->launch;
    launch->body(launch->args);
    if (!thread->grid_waited)
        sim_fail(thread, SIM_LEFT_PENDING, grid_wait, NULL, NULL,
                 "The thread ends, and has not waited for the launches ahead, which may not have ended.");
    ++thread->cta->num_exited;
    sim_copies_exit(thread);
    sim_wgmma_exit(thread);
    sim_collective_exit(thread);
    sim_barriers_exit(thread);
    sim_schedule_exit();
}

static void run_deeds(struct sim_cluster *cluster)
{
    for (unsigned i = 0; i < cluster->num_ctas; ++i) {
        struct sim_cta *cta = &cluster->ctas[i];
        memset(cta->window, POISON, SIM_WINDOW);
        cta->shared = sim_shared_create(cta, cluster->launch->dynamic_shared);
        cta->barriers = sim_barriers_create(cta);
        cta->mbarriers = sim_mbarriers_create(cta);
        cta->pool = sim_registers_create(cta);
    }
    cluster->barrier = sim_cluster_barrier_create(cluster);
    sim_schedule_run(cluster);
    sim_end_suspicion(cluster);
    for (unsigned i = 0; i < cluster->num_ctas; ++i) {
        sim_barriers_finish(&cluster->ctas[i]);
        sim_mbarriers_finish(&cluster->ctas[i]);
        sim_shared_finish(&cluster->ctas[i]);
    }
}

/* In no unit: it says which clusters have more to do. */
static uint64_t work_of(const struct sim_counts *c)
{
    return c->tensor_core_flops / 64 + c->special_function_operations + c->global_read_bytes + c->global_write_bytes +
           c->shared_read_bytes + c->shared_write_bytes;
}

static void run_cluster(struct worker *worker, uint64_t index)
{
    struct sim_cluster *cluster = &worker->cluster;
    const uint64_t work_before = work_of(&worker->counts);
    fill_cluster(cluster, index);
    for (unsigned i = 0; i < cluster->num_threads; ++i)
        sim_fiber_start(worker->stacks, i, &cluster->threads[i], run_thread);
    sim_schedule_begin(cluster);
    sim_watch_begin(cluster);
    sim_schedule_guard(cluster, run_deeds);
    sim_cluster_barrier_destroy(cluster->barrier);
    for (unsigned i = 0; i < cluster->num_ctas; ++i) {
        struct sim_cta *cta = &cluster->ctas[i];
        sim_registers_destroy(cta->pool);
        sim_mbarriers_destroy(cta->mbarriers);
        sim_barriers_destroy(cta->barriers);
        sim_shared_destroy(cta->shared);
    }
    sim_watch_end(cluster);
    worker->counts.blocks += cluster->num_ctas;
    if (worker->run->work) worker->run->work[index] = work_of(&worker->counts) - work_before;
}

/* ---- a grid ------------------------------------------------------------------------------------------------- */

/* Of the findings of a launch, that of the cluster with the lowest index is kept. */
static void note_finding(struct run *run, uint64_t index, const struct sim_report *report)
{
    pthread_mutex_lock(&run->mutex);
    if (index < atomic_load(&run->lowest_failed)) {
        atomic_store(&run->lowest_failed, index);
        run->gpu->report = *report;
    }
    pthread_mutex_unlock(&run->mutex);
}

/* Runs clusters until none is left; those above one that failed cannot change the outcome. A GPU rounds to nearest,
 * whatever its host does. */
static void *run_clusters(void *argument)
{
    struct worker *worker = argument;
    struct run *run = worker->run;
    struct sim_fault_watch faults;
    fenv_t of_host;
    fegetenv(&of_host);
    fesetenv(FE_DFL_ENV);
    sim_faults_begin(&faults, worker->fault_stack);
    for (;;) {
        const uint64_t i = atomic_fetch_add(&run->next, 1);
        if (i >= run->num_clusters) break;
        const uint64_t index = (uint64_t)(((unsigned __int128)i * run->stride + run->offset) % run->num_clusters);
        if (index > atomic_load(&run->lowest_failed)) continue;
        run_cluster(worker, index);
        if (worker->cluster.report.rule != SIM_CLEAN) note_finding(run, index, &worker->cluster.report);
    }
    sim_faults_end(&faults);
    fesetenv(&of_host);
    return NULL;
}

static uint64_t greatest_common_divisor(uint64_t a, uint64_t b)
{
    while (b) {
        const uint64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static void order_clusters(struct run *run)
{
    const struct sim_launch *launch = run->launch;
    const unsigned *grid = launch->grid;
    run->cluster_ctas = launch->cluster[0] * launch->cluster[1] * launch->cluster[2];
    run->num_clusters = (uint64_t)grid[0] * grid[1] * grid[2] / run->cluster_ctas;
    const uint64_t drawn = mix(run->gpu->options.seed);
    run->offset = mix(drawn) % run->num_clusters;
    run->stride = drawn % run->num_clusters;
    while (greatest_common_divisor(run->stride, run->num_clusters) != 1) ++run->stride;
}

static unsigned workers_of(const struct run *run)
{
    const unsigned asked = run->gpu->options.workers;
    uint64_t workers = asked ? asked : (uint64_t)sysconf(_SC_NPROCESSORS_ONLN);
    if (workers > MAX_WORKERS) workers = MAX_WORKERS;
    return (unsigned)(workers < run->num_clusters ? workers : run->num_clusters);
}

/* Adds up the work of clusters that two SMs take in their order, each when it is free: the greater of the two sums. */
static uint64_t makespan_of(const struct run *run)
{
    uint64_t busy[2] = {0, 0};
    for (uint64_t i = 0; run->work && i < run->num_clusters; ++i) busy[busy[1] < busy[0]] += run->work[i];
    return busy[busy[1] > busy[0]];
}

/* What does not depend on the run. */
static void count_launch(struct sim_counts *counts, const struct run *run)
{
    const struct sim_launch *launch = run->launch;
    counts->launches += 1;
    counts->dynamic_shared_bytes += launch->dynamic_shared;
    counts->threads += launch->block[0] * launch->block[1] * launch->block[2];
    counts->cluster_ctas += run->cluster_ctas;
    counts->early_launches += launch->begins_early;
    counts->makespan += makespan_of(run);
}

static void add_counts(struct sim_counts *sum, const struct sim_counts *counts)
{
    uint64_t *to = (uint64_t *)sum;
    const uint64_t *from = (const uint64_t *)counts;
    for (size_t i = 0; i < sizeof *sum / sizeof *to; ++i) to[i] += from[i];
}

/* On the calling thread and n - 1 more; those that the host refuses are done without. */
static void run_grid(struct worker **workers, unsigned n)
{
    unsigned started = 1;
    while (started < n && pthread_create(&workers[started]->thread, NULL, run_clusters, workers[started]) == 0)
        ++started;
    run_clusters(workers[0]);
    for (unsigned i = 1; i < started; ++i) pthread_join(workers[i]->thread, NULL);
}

static enum sim_rule run_with(struct run *run, struct worker **workers, unsigned n)
{
    struct sim_gpu *gpu = run->gpu;
    for (unsigned i = 0; i < n; ++i)
        if (!prepare_worker(workers[i], run)) return refuse(gpu, run->launch, "the host has too little memory");
    pthread_mutex_init(&run->mutex, NULL);
    sim_memory_launch(gpu->memory, run->num_clusters * run->cluster_ctas);
    run_grid(workers, n);
    pthread_mutex_destroy(&run->mutex);
    if (run->lowest_failed != UINT64_MAX) return gpu->report.rule;
    for (unsigned i = 0; i < n; ++i) add_counts(&gpu->counts, &workers[i]->counts);
    count_launch(&gpu->counts, run);
    return SIM_CLEAN;
}

enum sim_rule sim_launch(struct sim_gpu *gpu, const struct sim_launch *launch)
{
    enum sim_rule rule = check_axes(gpu, launch);
    if (rule == SIM_CLEAN) rule = check_sizes(gpu, launch);
    if (rule != SIM_CLEAN) return rule;
    struct run run = {.gpu = gpu, .launch = launch, .lowest_failed = UINT64_MAX};
    order_clusters(&run);
    if (gpu->options.counting) run.work = calloc(run.num_clusters, sizeof *run.work);
    struct worker *workers[MAX_WORKERS];
    const unsigned n = borrow_workers(workers, workers_of(&run));
    rule = n ? run_with(&run, workers, n) : refuse(gpu, launch, "the host has too little memory");
    return_workers(workers, n);
    free(run.work);
    return rule;
}

/* wrapped.c - calls that the linker sends here: of each there is __real_NAME, and __wrap_NAME counts.
 *
 * A parallel loop gives its next iteration to whoever asks, so how many a thread gets depends on the machine. Here
 * threads begin iterations together, one each: then the busiest one's are as many as they must be. */
#include "ci/perf/wrapped.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "reference/parallel.h"

/* ---- the C library's routines ---- */

enum routine { MALLOC, CALLOC, REALLOC, ALIGNED_ALLOC, MEMSET, MEMCPY, MEMMOVE, NUM_ROUTINES };
static const char *const names[NUM_ROUTINES] = {"malloc", "calloc", "realloc", "aligned_alloc",
                                                "memset", "memcpy", "memmove"};

static atomic_bool is_counting;
static atomic_uint_least64_t calls[NUM_ROUTINES], bytes[NUM_ROUTINES];

static inline __attribute__((always_inline)) void count(enum routine routine, size_t size)
{
    if (!is_counting) return;
    ++calls[routine];
    bytes[routine] += size;
}

/* `real` is what it calls, with these parameters and arguments. */
#define WRAP(name, routine, size, parameters, ...)  \
    void *__real_##name parameters;                 \
    void *__wrap_##name parameters;                 \
    void *__wrap_##name parameters                  \
    {                                               \
        count(routine, size);                       \
        return __real_##name(__VA_ARGS__);          \
    }

WRAP(malloc, MALLOC, n, (size_t n), n)
WRAP(calloc, CALLOC, n * size, (size_t n, size_t size), n, size)
WRAP(realloc, REALLOC, n, (void *old, size_t n), old, n)
WRAP(aligned_alloc, ALIGNED_ALLOC, n, (size_t align, size_t n), align, n)
WRAP(memset, MEMSET, n, (void *to, int byte, size_t n), to, byte, n)
WRAP(memcpy, MEMCPY, n, (void *to, const void *from, size_t n), to, from, n)
WRAP(memmove, MEMMOVE, n, (void *to, const void *from, size_t n), to, from, n)
WRAP(__memset_chk, MEMSET, n, (void *to, int byte, size_t n, size_t most), to, byte, n, most)
WRAP(__memcpy_chk, MEMCPY, n, (void *to, const void *from, size_t n, size_t most), to, from, n, most)
WRAP(__memmove_chk, MEMMOVE, n, (void *to, const void *from, size_t n, size_t most), to, from, n, most)

/* ---- parallel loops ---- */

enum { MOST_THREADS = 256, PATIENCE = 60 /* seconds */ };
typedef void loop_body(void *context, int64_t index, int worker);

static struct {
    pthread_mutex_t mutex;
    pthread_cond_t begins;
    loop_body *body;
    void *context;
    int64_t count, begun, round, of_worker[MOST_THREADS];
    int threads, waiting;
} loop = {.mutex = PTHREAD_MUTEX_INITIALIZER, .begins = PTHREAD_COND_INITIALIZER};

static int most_threads;
static int64_t busiest;

int __real_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument);
int __wrap_pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*run)(void *), void *argument)
{
    pthread_mutex_lock(&loop.mutex);
    const int code = __real_pthread_create(thread, attr, run, argument);
    if (code == 0) ++loop.threads;
    pthread_mutex_unlock(&loop.mutex);
    return code;
}

/* Until all threads are here, or nothing is left for those that are not. */
static void begin_together(int worker)
{
    struct timespec until;
    timespec_get(&until, TIME_UTC);
    until.tv_sec += PATIENCE;
    pthread_mutex_lock(&loop.mutex);
    const int64_t round = loop.round;
    ++loop.of_worker[worker];
    if (++loop.begun == loop.count || loop.waiting + 1 == loop.threads) {
        loop.waiting = 0, ++loop.round;
        pthread_cond_broadcast(&loop.begins);
    } else {
        ++loop.waiting;
        while (loop.round == round)
            if (pthread_cond_timedwait(&loop.begins, &loop.mutex, &until) == ETIMEDOUT) {
                fprintf(stderr, "a parallel loop has a thread that takes no iteration\n");
                _Exit(1);
            }
    }
    pthread_mutex_unlock(&loop.mutex);
}

static void body_together(void *context, int64_t index, int worker)
{
    (void)context;
    begin_together(worker);
    loop.body(loop.context, index, worker);
}

void __real_ref_parallel(int threads, int64_t count, loop_body *body, void *context);
void __wrap_ref_parallel(int threads, int64_t count, loop_body *body, void *context);
void __wrap_ref_parallel(int threads, int64_t count, loop_body *body, void *context)
{
    if (!is_counting) return __real_ref_parallel(threads, count, body, context);
    loop.body = body, loop.context = context, loop.count = count;
    loop.begun = loop.round = loop.waiting = 0, loop.threads = 1;
    __real_memset(loop.of_worker, 0, sizeof loop.of_worker);
    __real_ref_parallel(threads, count, body_together, context);
    int64_t most = 0;
    int worked = 0;
    for (int i = 0; i < MOST_THREADS; ++i) {
        worked += loop.of_worker[i] > 0;
        if (loop.of_worker[i] > most) most = loop.of_worker[i];
    }
    busiest += most;
    if (worked > most_threads) most_threads = worked;
}

/* ---- what was counted ---- */

void wrapped_begin(void) { is_counting = true; }
void wrapped_end(void) { is_counting = false; }

void wrapped_print(void)
{
    for (int r = 0; r < NUM_ROUTINES; ++r) {
        if (calls[r] == 0) continue;
        printf("%s_calls %" PRIuLEAST64 "\n%s_bytes %" PRIuLEAST64 "\n", names[r], calls[r], names[r], bytes[r]);
    }
    printf("working_threads %d\nbusiest_thread_iterations %" PRId64 "\n", most_threads, busiest);
}

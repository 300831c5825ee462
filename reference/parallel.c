#define _GNU_SOURCE /* sched_getaffinity */
#include "reference/parallel.h"

#include <sched.h>
#include <stdatomic.h>

enum { MAX_THREADS = 256 };

int ref_thread_count(int threads)
{
    cpu_set_t cores;
    if (threads <= 0) threads = sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 1;
    return threads < MAX_THREADS ? threads : MAX_THREADS;
}

struct loop {
    atomic_int_least64_t next_index;
    atomic_int next_worker;
    int64_t count;
    void (*body)(void *context, int64_t index, int worker);
    void *context;
};

static void *work(void *argument)
{
    struct loop *loop = argument;
    const int worker = atomic_fetch_add(&loop->next_worker, 1);
    int64_t index;
    while ((index = atomic_fetch_add(&loop->next_index, 1)) < loop->count) loop->body(loop->context, index, worker);
    return NULL;
}

void ref_parallel(int threads, int64_t count, void (*body)(void *context, int64_t index, int worker), void *context)
{
    struct loop loop = {.count = count, .body = body, .context = context};
    pthread_t others[MAX_THREADS];
    int started = 0;
    while (started + 1 < threads && started + 1 < count && started < MAX_THREADS &&
           pthread_create(&others[started], NULL, work, &loop) == 0)
        ++started;
    work(&loop);
    for (int i = 0; i < started; ++i) pthread_join(others[i], NULL);
}

void ref_await_turn(struct ref_lock *lock, const int64_t *turn, int64_t mine)
{
    pthread_mutex_lock(&lock->mutex);
    while (*turn != mine) pthread_cond_wait(&lock->advanced, &lock->mutex);
    pthread_mutex_unlock(&lock->mutex);
}

void ref_end_turn(struct ref_lock *lock, int64_t *turn)
{
    pthread_mutex_lock(&lock->mutex);
    ++*turn;
    pthread_cond_broadcast(&lock->advanced);
    pthread_mutex_unlock(&lock->mutex);
}

/* parallel.h - a loop over all cores, and sections inside it that run in the order of the indices. */
#ifndef ATTEST_REFERENCE_PARALLEL_H
#define ATTEST_REFERENCE_PARALLEL_H

#include <pthread.h>
#include <stdint.h>

int ref_thread_count(int threads); /* `threads`, or the cores this process may use if it is 0 */

/* body(context, index, worker) for every index below count, on up to `threads` threads at once: worker < threads.
 * Indices are taken in increasing order, so a body may wait for those before it. Runs on the calling
 * thread alone where no other can be had. */
void ref_parallel(int threads, int64_t count, void (*body)(void *context, int64_t index, int worker), void *context);

/* Whose turn it is: `turn` counts from zero, each holder advances it by one. Many turns may share a lock. */
struct ref_lock {
    pthread_mutex_t mutex;
    pthread_cond_t advanced;
};
#define REF_LOCK_INIT {PTHREAD_MUTEX_INITIALIZER, PTHREAD_COND_INITIALIZER}
void ref_await_turn(struct ref_lock *lock, const int64_t *turn, int64_t mine);
void ref_end_turn(struct ref_lock *lock, int64_t *turn);

#endif

// exchange.cu - two CTAs of a cluster exchange partial sums through each other's shared memory, round after round.
//
// out = own numbers + the other CTA's, mirrored. `pull` reads them from the other CTA's shared memory between two
// barriers of the cluster. `push` sends them, once by ordinary stores and, times 4, by a bulk copy; mbarriers say that
// an inbox is full (to its owner) or empty (to who writes there).
#include "kernels/sim/tests/pipelines/pipelines.h"

namespace {

enum { THREADS = SWAP_NUMBERS, BYTES = THREADS * sizeof(float) };

struct alignas(16) numbers {
    float at[THREADS];
};

// Number i of a CTA of this cluster in a round.
DEVICE float number(const struct room &r, int round, unsigned rank, unsigned i)
{
    const unsigned cta = block_x() / 2 * 2 + rank;
    const bf16 x = {r.in[(static_cast<unsigned>(round) * SWAP_CTAS + cta) * THREADS + i]};
    return to_f32(x);
}

DEVICE float *result(const struct room &r, int round)
{
    return r.out + (static_cast<unsigned>(round) * SWAP_CTAS + block_x()) * THREADS + thread_x();
}

// The barrier between what this CTA has written and what the other reads.
DEVICE void publish(enum mistake mistake)
{
    if (mistake == pull_read_early) return;
    if (mistake == pull_synced_in_cta) {
        sync_threads();
    } else if (mistake == pull_arrived_relaxed) {
        cluster_arrive_relaxed();
        cluster_wait();
    } else if (mistake == pull_read_before_wait) {
        cluster_arrive();
    } else if (mistake != pull_synced_by_one_warp || warp() == 0) {
        cluster_sync();
    }
}

KERNEL(THREADS, 1) void pull_kernel(struct room r)
{
    STATIC_SHARED(numbers, own);
    const unsigned rank = cluster_rank(), i = thread_x();
    const unsigned other = r.mistake == pull_from_itself ? rank : r.mistake == pull_past_cluster ? rank + 1 : rank ^ 1;
    for (int round = 0; round < SWAP_ROUNDS; ++round) {
        const bool is_last = round == SWAP_ROUNDS - 1;
        const float mine = number(r, round, rank, i);
        own.at[i] = mine;
        publish(r.mistake);
        const float theirs = cluster_map(&own, other)->at[THREADS - 1 - i];
        if (r.mistake == pull_read_before_wait) cluster_wait();
        // Nothing may be written again, nor this CTA end, before the other has read.
        if (is_last ? r.mistake != pull_left_early : r.mistake != pull_written_early) cluster_sync();
        *result(r, round) = mine + theirs;
    }
}

struct mail {
    numbers outbox, stored, copied;
    mbarrier full, empty;
};

DEVICE void make_barriers(mail &m, enum mistake mistake)
{
    if (thread_x() == 0) {
        mbarrier_init(&m.full, mistake == push_full_counts_one_warp ? 33 : THREADS + 1);
        mbarrier_init(&m.empty, THREADS);
        if (mistake != push_init_not_fenced) fence_mbarrier_init();
    }
    if (mistake == push_init_synced_in_cta) sync_threads();
    else cluster_sync();
}

// Sends a number of each thread by a store, and the outbox by a copy.
DEVICE void send(mail &m, float stored, float copied, unsigned other, enum mistake mistake)
{
    mail *const theirs = cluster_map(&m, other);
    mbarrier *const full = mistake == push_told_itself ? &m.full : &theirs->full;
    const unsigned i = thread_x();
    m.outbox.at[i] = copied;
    if (mistake != push_outbox_not_fenced) fence_proxy_async_shared();
    if (mistake != push_outbox_not_synced) sync_threads();
    if (i == 0) bulk_copy_cluster(&theirs->copied, &m.outbox, BYTES, full);
    if (mistake == push_told_before_store) mbarrier_arrive_cluster(full);
    theirs->stored.at[i] = stored;
    if (mistake == push_told_before_store || (mistake == push_told_by_one_thread && i > 0)) return;
    mbarrier_arrive_cluster(full, mistake == push_told_by_one_thread ? THREADS : 1);
}

KERNEL(THREADS, 1) void push_kernel(struct room r)
{
    STATIC_SHARED(mail, m);
    const unsigned rank = cluster_rank(), i = thread_x(), mirrored = THREADS - 1 - i;
    const unsigned other = r.mistake == push_to_itself ? rank : rank ^ 1;
    const unsigned bytes = r.mistake == push_too_few_bytes ? BYTES / 2 : BYTES;
    unsigned parity = 0;
    make_barriers(m, r.mistake);
    for (int round = 0; round < SWAP_ROUNDS; ++round) {
        const float mine = number(r, round, rank, i);
        if (i == 0) mbarrier_arrive_expect_tx(&m.full, bytes);
        if (r.mistake != push_empty_not_waited) mbarrier_wait(&m.empty, parity ^ 1);
        send(m, mine, mine * 4, other, r.mistake);
        if (r.mistake != push_full_not_waited) mbarrier_wait(&m.full, parity);
        if (r.mistake == push_emptied_early) mbarrier_arrive_cluster(&cluster_map(&m, other)->empty);
        const float theirs = m.stored.at[mirrored] + m.copied.at[mirrored];
        if (r.mistake != push_emptied_early) mbarrier_arrive_cluster(&cluster_map(&m, other)->empty);
        *result(r, round) = mine + theirs;
        if (r.mistake != push_parity_not_turned) parity ^= 1;
    }
    // The other CTA has yet to arrive here: until then the barrier must not go.
    if (r.mistake != push_left_early) mbarrier_wait(&m.empty, parity ^ 1);
}

launch_shape shape_of_exchange()
{
    launch_shape shape = {};
    shape.grid[0] = SWAP_CTAS;
    shape.cluster[0] = 2;
    shape.block[0] = shape.max_threads = THREADS;
    shape.min_blocks = 1;
    return shape;
}

}  // namespace

extern "C" int run_pull(struct sim_gpu *gpu, const struct room *r)
{
    return LAUNCH(pull_kernel, shape_of_exchange(), gpu, *r);
}

extern "C" int run_push(struct sim_gpu *gpu, const struct room *r)
{
    return LAUNCH(push_kernel, shape_of_exchange(), gpu, *r);
}
